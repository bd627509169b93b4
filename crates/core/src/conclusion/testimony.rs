//! What a process of a rank says of itself, through the interpreter hook or the worker socket.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::recognisers::{exception_line, first_of_group};

/// An exception as the program put it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Exception {
    /// Its type, such as `ValueError`, or `panic`.
    pub kind: String,
    pub message: String,
    /// The whole traceback, with causes and notes.
    pub traceback: String,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub function: Option<String>,
}

impl Exception {
    /// `ValueError: failure!`, on one line. Where the message holds the traceback of another process, that one's last line is
    /// the cause; of a group, its first exception is named.
    pub fn headline(&self) -> String {
        let first = self.message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        let of_group = || first_of_group(&self.traceback).filter(|_| self.kind.ends_with("Group"));
        let said = match (embedded(&self.message), of_group()) {
            (Some(cause), _) if cause != first => {
                let first = first.trim_start_matches("-- ").trim_end_matches(['.', ':']);
                format!("{first}: {cause}")
            }
            (None, Some(cause)) if !first.ends_with(&cause) => format!("{first}, first {cause}"),
            (_, _) => first.to_owned(),
        };
        match (self.kind.as_str(), said.as_str()) {
            // Python prints the text of `sys.exit("no data")` alone.
            ("" | "SystemExit", said) if !said.is_empty() => said.to_owned(),
            (kind, "") => kind.to_owned(),
            (kind, said) => format!("{kind}: {said}"),
        }
    }
}

/// The last line of the traceback that a message holds, such as that of torch's DataLoader and of `mp.spawn`.
fn embedded(message: &str) -> Option<&str> {
    let (_, traceback) = message.split_once("Traceback (most recent call last):")?;
    traceback
        .lines()
        .skip(1)
        .filter(|line| !line.starts_with([' ', '\t']))
        .filter(|line| exception_line(line).is_some())
        .last()
}

/// One statement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Testimony {
    /// An exception has reached the top of the main thread.
    Uncaught(Exception),
    /// The interpreter's own exit work is done, and it is about to end with this code, which is not 0: only finalizers of
    /// libraries remain, `MPI_Finalize` among them.
    Exiting {
        code: i32,
    },
    /// An exception ended a thread, or could not be raised anywhere. It ends nothing.
    Aside {
        place: String,
        exception: Exception,
    },
    /// The rank asks for the end of the job.
    Abort {
        code: i32,
        message: Option<String>,
    },
    Note {
        text: String,
    },
    /// The file that torch's `@record` writes.
    ErrorFile(Exception),
}

/// Where a process is stuck after its failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StuckIn {
    /// In finalizers of libraries, after the interpreter's own exit work.
    Finalize,
    /// In exit handlers, threads or children that keep the interpreter from finalizing.
    ExitHandlers,
}

/// How long a process that has failed may take to end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Graces {
    /// After `Exiting`, for a rank that has inited MPI and not finalized.
    pub finalize: Duration,
    /// The most that `finalize` is extended to while the process writes.
    pub finalize_most: Duration,
    /// After `Exiting`, for any other.
    pub exit: Duration,
    /// After `Uncaught`; each note begins it anew.
    pub handlers: Duration,
}

impl Default for Graces {
    fn default() -> Self {
        Graces {
            finalize: Duration::from_millis(500),
            finalize_most: Duration::from_secs(10),
            exit: Duration::from_secs(5),
            handlers: Duration::from_secs(30),
        }
    }
}

/// What a process is to its rank. Graces are for those whose end the rank's end depends on: a helper that fails is the
/// business of the process that has started it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It has inited MPI and not finalized: its peers wait for it.
    InMpi,
    /// It is the leader, or what a leader that reports nothing, such as a shell, has started.
    Leads,
    /// Another process of the rank that reports its failures has started it, or another one is in MPI.
    Helps,
}

/// How long exit handlers may take before somebody is told what is waited for.
pub const HANDLERS_NOTE: Duration = Duration::from_secs(2);

/// One speaking process, from its first word of a failure until it ends or is found stuck.
#[derive(Clone, Debug, Default)]
pub struct Speaker {
    state: SpeakerState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum SpeakerState {
    /// It has told of no failure.
    #[default]
    Well,
    /// An exception has reached its top.
    Failing {
        until: Duration,
        since: Duration,
        /// It has been told what is waited for.
        told: bool,
    },
    /// Only finalizers remain.
    Finalizing {
        until: Duration,
        since: Duration,
        most: Duration,
        written: u64,
    },
    Stuck,
}

impl Speaker {
    /// It has told of an uncaught exception.
    pub fn uncaught(&mut self, now: Duration, graces: &Graces, standing: Standing) {
        if self.state == SpeakerState::Well && standing != Standing::Helps {
            self.state = SpeakerState::Failing { until: now + graces.handlers, since: now, told: false };
        }
    }

    /// It has told that it is exiting with failure. `written`: bytes that it has written so far.
    pub fn exiting(&mut self, now: Duration, graces: &Graces, standing: Standing, written: u64) {
        let since = match self.state {
            SpeakerState::Well => now,
            SpeakerState::Failing { since, .. } => since,
            SpeakerState::Finalizing { .. } | SpeakerState::Stuck => return,
        };
        let (grace, most) = match standing {
            Standing::InMpi => (graces.finalize, graces.finalize_most),
            Standing::Leads => (graces.exit, graces.exit),
            Standing::Helps => return,
        };
        self.state = SpeakerState::Finalizing { until: now + grace, since, most: now + most.max(grace), written };
    }

    /// It ends with success after all: its own hook has dealt with the exception.
    pub fn retract(&mut self) {
        self.state = SpeakerState::Well;
    }

    /// It has said something that shows that it is still at work.
    pub fn note(&mut self, now: Duration, graces: &Graces) {
        if let SpeakerState::Failing { until, .. } = &mut self.state {
            *until = now + graces.handlers;
        }
    }

    /// When [`Speaker::tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        match self.state {
            SpeakerState::Well | SpeakerState::Stuck => None,
            SpeakerState::Failing { until, since, told: false } => Some(until.min(since + HANDLERS_NOTE)),
            SpeakerState::Failing { until, .. } | SpeakerState::Finalizing { until, .. } => Some(until),
        }
    }

    /// Whether its exit handlers take so long that somebody is to be told. Returns once, until when they are waited for.
    pub fn waits_for_handlers(&mut self, now: Duration) -> Option<Duration> {
        match &mut self.state {
            SpeakerState::Failing { until, since, told: told @ false } if now >= *since + HANDLERS_NOTE => {
                *told = true;
                Some(*until)
            }
            SpeakerState::Well
            | SpeakerState::Failing { .. }
            | SpeakerState::Finalizing { .. }
            | SpeakerState::Stuck => None,
        }
    }

    /// The process is alive at `now`, and has written this many bytes. Says once that it is stuck, where, and since when.
    pub fn tick(&mut self, now: Duration, graces: &Graces, bytes: u64) -> Option<(StuckIn, Duration)> {
        match &mut self.state {
            SpeakerState::Failing { until, since, .. } if now >= *until => {
                let stuck = (StuckIn::ExitHandlers, *since);
                self.state = SpeakerState::Stuck;
                Some(stuck)
            }
            SpeakerState::Finalizing { until, most, written, .. }
                if now >= *until && bytes > *written && now < *most =>
            {
                // Files are being flushed: HDF5, gcov and tracing do it here.
                *written = bytes;
                *until = (now + graces.finalize).min(*most);
                None
            }
            SpeakerState::Finalizing { until, since, .. } if now >= *until => {
                let stuck = (StuckIn::Finalize, *since);
                self.state = SpeakerState::Stuck;
                Some(stuck)
            }
            SpeakerState::Well
            | SpeakerState::Failing { .. }
            | SpeakerState::Finalizing { .. }
            | SpeakerState::Stuck => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_speaker_in_mpi_is_stuck_half_a_second_after_its_exit_work() {
        let (mut speaker, graces) = (Speaker::default(), Graces::default());
        speaker.uncaught(ms(100), &graces, Standing::InMpi);
        assert_eq!(speaker.deadline(), Some(ms(2_100)));
        speaker.exiting(ms(110), &graces, Standing::InMpi, 0);
        assert_eq!(speaker.deadline(), Some(ms(610)));
        assert_eq!(speaker.tick(ms(609), &graces, 0), None);
        assert_eq!(speaker.tick(ms(610), &graces, 0), Some((StuckIn::Finalize, ms(100))));
        assert_eq!(speaker.tick(ms(900), &graces, 0), None, "it is said once");
    }

    #[test]
    fn a_speaker_that_flushes_files_has_longer_but_not_for_ever() {
        let (mut speaker, graces) = (Speaker::default(), Graces::default());
        speaker.exiting(ms(0), &graces, Standing::InMpi, 10);
        let mut now = ms(0);
        let mut bytes = 10;
        let stuck = loop {
            now = speaker.deadline().expect("it is finalizing").max(now);
            bytes += 1;
            if let Some(stuck) = speaker.tick(now, &graces, bytes) {
                break stuck;
            }
        };
        assert_eq!((stuck.0, now), (StuckIn::Finalize, graces.finalize_most));
    }

    #[test]
    fn outside_mpi_the_grace_is_that_of_a_stop() {
        let (mut speaker, graces) = (Speaker::default(), Graces::default());
        speaker.exiting(ms(0), &graces, Standing::Leads, 0);
        assert_eq!(speaker.deadline(), Some(graces.exit));
    }

    #[test]
    fn a_note_extends_the_time_of_exit_handlers() {
        let (mut speaker, graces) = (Speaker::default(), Graces::default());
        speaker.note(ms(0), &graces);
        assert_eq!(speaker.deadline(), None, "a note alone is no failure");
        speaker.uncaught(ms(0), &graces, Standing::Leads);
        speaker.note(ms(20_000), &graces);
        assert_eq!(speaker.tick(ms(30_000), &graces, 0), None);
        assert_eq!(speaker.tick(ms(50_000), &graces, 0), Some((StuckIn::ExitHandlers, ms(0))));
    }

    #[test]
    fn a_helper_has_all_the_time_that_it_needs() {
        let (mut speaker, graces) = (Speaker::default(), Graces::default());
        speaker.uncaught(ms(0), &graces, Standing::Helps);
        speaker.exiting(ms(10), &graces, Standing::Helps, 0);
        assert_eq!(speaker.deadline(), None);
        assert_eq!(speaker.tick(ms(600_000), &graces, 0), None);
    }

    #[test]
    fn exit_handlers_that_take_long_are_told_of_once() {
        let (mut speaker, graces) = (Speaker::default(), Graces::default());
        speaker.uncaught(ms(100), &graces, Standing::Leads);
        assert_eq!(speaker.waits_for_handlers(ms(2_099)), None);
        assert_eq!(speaker.waits_for_handlers(ms(2_100)), Some(ms(30_100)));
        assert_eq!((speaker.waits_for_handlers(ms(3_000)), speaker.deadline()), (None, Some(ms(30_100))));
    }
}
