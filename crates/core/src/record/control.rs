//! What `rankrun status|stop|restart` and a running job say to each other: one JSON object a line (docs/control.md).

use serde::{Deserialize, Serialize};

use crate::condition::Doing;
use crate::ids::{Attempt, JobId, Pid, Rank};
use crate::report::Left;
use crate::stacks::fold::{Seen, Table};
use crate::stacks::profile::Profile;
use crate::standing::Phase;
use crate::usage::GpuUsage;

/// The version of the protocol: the field `rankrun` of every line.
pub const VERSION: u32 = 1;
/// The name of the socket in the job's directory.
pub const SOCKET: &str = "control.sock";
/// The longest request, in bytes with its newline.
pub const MAX_REQUEST: usize = 16 << 10;

/// A line, with its version.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Line<T> {
    pub rankrun: u32,
    #[serde(flatten)]
    pub message: T,
}

impl<T> Line<T> {
    /// One of our version.
    pub fn new(message: T) -> Line<T> {
        Line { rankrun: VERSION, message }
    }
}

/// The field that every version has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub struct Version {
    pub rankrun: u32,
}

/// What a job is asked.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// The state of the job, with or without that of each rank.
    Status {
        #[serde(default)]
        ranks: bool,
        /// And what each rank uses of its machine, which the agents measure now.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        measure: bool,
    },
    /// End the job as SIGTERM does.
    Stop {
        /// Seconds from the first signal to SIGKILL, instead of those of the job.
        #[serde(default)]
        grace: Option<f64>,
    },
    /// Where the ranks are.
    Stacks {
        /// Only these, as in `0,4-7`.
        #[serde(default)]
        ranks: Option<String>,
        /// Native frames of all threads, also of those that have Python frames.
        #[serde(default)]
        native: bool,
        /// All that was seen of each rank, besides the table.
        #[serde(default)]
        each: bool,
    },
    /// Begin a new attempt.
    Restart {
        /// Answer a second time when all its ranks run.
        #[serde(default)]
        wait: bool,
    },
    /// Answer when the job is over.
    Wait,
    /// Show what the ranks write: answers where that is, and a second time when the job is over.
    Attach,
    /// Leave the terminal: the job goes on without it.
    Detach,
    /// Something for the stdin of the ranks: answers when they have read it, and takes it once, however often it comes.
    Input {
        /// Who types: a name of their choice, of at most 64 bytes.
        from: String,
        /// Each piece of theirs has a higher number.
        number: u64,
        /// Each character is one byte, U+0000 to U+00FF. An empty one asks whether somebody may type. `None`: the end.
        #[serde(default)]
        text: Option<String>,
    },
    /// Sample the stacks of the ranks for a time.
    Profile {
        /// Only these, as in `0,4-7`.
        #[serde(default)]
        ranks: Option<String>,
        /// Seconds.
        seconds: f64,
        /// Looks per second.
        rate: f64,
        /// With the frames of the Python interpreter itself.
        #[serde(default)]
        native: bool,
    },
    /// The profile that is being made is to end now. Its client gets what there is.
    EndProfile,
}

impl Request {
    /// Whether a client that does not know if it was taken may ask again.
    pub fn may_come_twice(&self) -> bool {
        match self {
            Request::Restart { .. } | Request::EndProfile => false,
            Request::Status { .. }
            | Request::Stop { .. }
            | Request::Stacks { .. }
            | Request::Wait
            | Request::Attach
            | Request::Detach
            | Request::Input { .. }
            | Request::Profile { .. } => true,
        }
    }
}

/// What it answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    Status(Box<JobStatus>),
    Stacks {
        table: Box<Table>,
        /// Of each rank, in order, if that was asked for.
        #[serde(default)]
        ranks: Vec<Seen>,
    },
    /// The stop has begun.
    Stopping {
        /// Ranks that have not ended.
        ranks: u32,
        /// The time left until SIGKILL, in seconds.
        grace: f64,
        /// It had begun before.
        already: bool,
    },
    Restarting {
        /// The new attempt.
        attempt: Attempt,
        /// All its ranks run.
        is_up: bool,
    },
    /// What the ranks write is in this directory.
    Attached {
        transcript: String,
        /// The position in it from which on nobody has seen it.
        from: u64,
        /// Nobody has the output but who looks: the job has left its terminal.
        is_detached: bool,
    },
    /// The job has left its terminal.
    Detached {
        /// It had before.
        already: bool,
    },
    /// No rank has more to read of what was typed, or they are gone. `read`: else all have closed their stdin.
    InputTaken {
        read: bool,
    },
    /// The job is over.
    Over {
        /// The exit code of rankrun; 128 + n if signal n ends it.
        exit_code: u8,
        summary: String,
        left: Option<Left>,
    },
    /// The request is not granted.
    Refused {
        error: String,
        hint: Option<String>,
    },
    /// What was sampled.
    Profile(Box<Profile>),
    /// The end of a profile was asked for; or none is being made.
    EndingProfile,
}

/// The state of a job. Times are in seconds since the Unix epoch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct JobStatus {
    pub job: JobId,
    /// The version of rankrun.
    pub release: String,
    /// The front's process.
    pub pid: Pid,
    /// The same: the name that tells it from the processes of the ranks.
    #[serde(default)]
    pub front_pid: Option<Pid>,
    /// It goes on without a terminal.
    #[serde(default)]
    pub detached: bool,
    pub command: Vec<String>,
    /// That of rank 0.
    pub directory: String,
    pub world_size: u32,
    pub attempt: Attempt,
    pub started: f64,
    /// The time of this answer.
    pub now: f64,
    pub state: JobState,
    pub since: f64,
    /// When rankrun takes the next step: SIGKILL, the next attempt, or `--timeout`.
    pub until: Option<f64>,
    pub why: Option<String>,
    /// Restarts after a failure that the policy still allows now; `None` without `--restart`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts_left: Option<u32>,
    /// Nodes whose agents did not answer: of their ranks the front knows less.
    #[serde(default)]
    pub silent_nodes: Vec<String>,
    /// Nodes without ranks, of a job whose nodes may be replaced: spares, those that are away, and those that are left out for a time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<MemberStatus>,
    /// Each rank in order, if they were asked for.
    #[serde(default)]
    pub ranks: Vec<RankStatus>,
}

/// A node without ranks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MemberStatus {
    pub node: String,
    pub state: Member,
    /// Until when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<f64>,
}

/// What a node without ranks is to the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Member {
    /// It is ready to replace another.
    Spare,
    /// It was lost, or could not be reached, and is called again.
    Away,
    /// It was lost too often (`--exclude-after`).
    LeftOut,
}

/// What a job is doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// Ranks are being started.
    Starting,
    Running,
    /// Stopped by ^Z or SIGTSTP.
    Paused,
    Stopping,
    /// One attempt has ended, and the next is to begin.
    Waiting,
    /// The ranks have ended; the rest of the output and the report are being written.
    Ending,
}

impl JobState {
    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            JobState::Starting => "starting",
            JobState::Running => "running",
            JobState::Paused => "paused",
            JobState::Stopping => "stopping",
            JobState::Waiting => "waiting",
            JobState::Ending => "ending",
        }
    }
}

/// The state of a rank. Times are in seconds since the Unix epoch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RankStatus {
    pub rank: Rank,
    /// Its own attempt, the last one where it waits for the next: of the job, if ranks are not restarted one by one.
    #[serde(default)]
    pub attempt: Attempt,
    pub node: String,
    /// The CPUs that it is bound to, as the kernel writes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// Its leader, until that has ended.
    pub pid: Option<Pid>,
    pub state: Doing,
    pub since: Option<f64>,
    /// When rankrun takes the next step: mostly SIGKILL, or the start of its next attempt.
    pub until: Option<f64>,
    /// Why it is being stopped, or how it ended.
    pub why: Option<String>,
    /// It is seen to write files, for which it gets more time.
    #[serde(default)]
    pub is_saving: bool,
    /// How far it has come in MPI.
    pub phase: Phase,
    pub phase_since: Option<f64>,
    /// When it last wrote, if ever.
    pub wrote: Option<f64>,
    pub last_line: Option<String>,
    /// Its last note on the worker socket.
    pub note: Option<String>,
    /// What its processes use, if that was asked for and could be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<RankUsage>,
}

/// What the processes of a rank use of their machine. Counters begin at an arbitrary value: only their differences count.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RankUsage {
    /// When it was measured, in seconds since the Unix epoch.
    pub at: f64,
    /// CPU time, in seconds: a counter.
    pub cpu: f64,
    /// Resident memory of all processes, in bytes. Pages that they share count once for each.
    pub memory: u64,
    /// Bytes read from and written to storage (`/proc/PID/io`): counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<u64>,
    pub processes: u32,
    pub threads: u32,
    /// All its processes are stopped, by SIGSTOP or a debugger.
    #[serde(default)]
    pub is_stopped: bool,
    /// The GPUs that its processes use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuUsage>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Option<Request> {
        serde_json::from_str::<Line<Request>>(text).ok().map(|line| line.message)
    }

    #[test]
    fn a_request_is_an_object_with_its_version_and_unknown_fields_are_ignored() {
        assert_eq!(
            request(r#"{"rankrun":1,"request":"status"}"#),
            Some(Request::Status { ranks: false, measure: false })
        );
        assert_eq!(
            request(r#"{"request":"status","ranks":true,"x":[],"rankrun":1}"#),
            Some(Request::Status { ranks: true, measure: false })
        );
        assert_eq!(
            request(r#"{"request":"status","ranks":true,"measure":true,"rankrun":1}"#),
            Some(Request::Status { ranks: true, measure: true })
        );
        assert_eq!(request(r#"{"rankrun":1,"request":"stop","grace":0.5}"#), Some(Request::Stop { grace: Some(0.5) }));
        assert_eq!(request(r#"{"rankrun":1,"request":"stop"}"#), Some(Request::Stop { grace: None }));
        assert_eq!(request(r#"{"rankrun":1,"request":"restart"}"#), Some(Request::Restart { wait: false }));
        assert_eq!(request(r#"{"rankrun":1,"request":"restart","wait":true}"#), Some(Request::Restart { wait: true }));
        assert_eq!(request(r#"{"rankrun":1,"request":"wait"}"#), Some(Request::Wait));
        for nonsense in ["", "{}", "null", "[]", r#"{"request":"stop"}"#, r#"{"rankrun":1,"request":"dance"}"#] {
            assert_eq!(request(nonsense), None, "{nonsense}");
        }
        let line = serde_json::to_string(&Line::new(Request::Wait)).expect("plain data");
        assert_eq!(line, r#"{"rankrun":1,"request":"wait"}"#);
    }

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        let answer = Answer::Refused { error: "no".to_owned(), hint: None };
        let line = serde_json::to_string(&Line::new(answer.clone())).expect("plain data");
        assert_eq!(line, r#"{"rankrun":1,"answer":"refused","error":"no","hint":null}"#);
        assert_eq!(serde_json::from_str::<Line<Answer>>(&line).expect("our own").message, answer);
    }
}
