//! The state of running jobs in the text format of Prometheus, version 0.0.4, as node_exporter's textfile collector reads it
//! (docs/traces.md).
//!
//! Each family is a row of [`OF_JOB`] or [`OF_RANK`]. What a status has besides can be one more row there.

use std::fmt::{self, Write};

use crate::condition::Doing;
use crate::control::{JobState, JobStatus, RankStatus};
use crate::ids::JobId;
use crate::printable::printable;

/// Bytes of a command line in a label.
const COMMAND: usize = 200;

/// A job that runs, and what it has answered.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    pub job: JobId,
    pub answer: Answered,
}

/// What is known of a job.
#[derive(Clone, PartialEq, Debug)]
pub enum Answered {
    /// With its ranks.
    Status(Box<JobStatus>),
    /// Its front is stopped, and has this command line.
    Paused { command: String },
    /// It does not answer.
    Nothing,
}

/// A family of metrics. `F` makes its samples: labels besides those of the job or the rank, and a value.
struct Family<F> {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    samples: F,
}

#[derive(Clone, Copy)]
enum Kind {
    Gauge,
    Counter,
}

type Labels = Vec<(&'static str, String)>;
/// Samples of one family.
type Series = Vec<(Labels, f64)>;

/// A value without further labels.
fn one(value: impl Into<f64>) -> Series {
    vec![(Vec::new(), value.into())]
}

fn if_known(value: Option<f64>) -> Series {
    value.into_iter().flat_map(one).collect()
}

const JOB_STATES: [(JobState, &str); 6] = [
    (JobState::Starting, "starting"),
    (JobState::Running, "running"),
    (JobState::Paused, "paused"),
    (JobState::Stopping, "stopping"),
    (JobState::Waiting, "waiting"),
    (JobState::Ending, "ending"),
];

const RANK_STATES: [(Doing, &str); 10] = [
    (Doing::NotStarted, "not-started"),
    (Doing::Starting, "starting"),
    (Doing::Running, "running"),
    (Doing::Stopping, "stopping"),
    (Doing::Lingering, "lingering"),
    (Doing::Terminating, "terminating"),
    (Doing::DumpingCore, "dumping-core"),
    (Doing::Killing, "killing"),
    (Doing::Ended, "ended"),
    (Doing::Waiting, "waiting"),
];

fn state_of(sample: &Sample) -> Option<JobState> {
    match &sample.answer {
        Answered::Status(status) => Some(status.state),
        Answered::Paused { .. } => Some(JobState::Paused),
        Answered::Nothing => None,
    }
}

/// A value of the status of a job that has answered.
fn of_status(sample: &Sample, value: impl FnOnce(&JobStatus) -> Series) -> Series {
    match &sample.answer {
        Answered::Status(status) => value(status),
        Answered::Paused { .. } | Answered::Nothing => Vec::new(),
    }
}

/// What makes the series of a job, and of a rank, with the time of the answer.
type OfJob = fn(&Sample) -> Series;
type OfRank = fn(&RankStatus, f64) -> Series;

/// The families of a job. Each series has the label `job`.
const OF_JOB: &[Family<OfJob>] = &[
    Family {
        name: "rankrun_job_up",
        help: "Whether the job answers: 0 if its rankrun is stopped or gone.",
        kind: Kind::Gauge,
        samples: |sample| one(matches!(sample.answer, Answered::Status(_))),
    },
    Family {
        name: "rankrun_job_info",
        help: "What the job is; always 1.",
        kind: Kind::Gauge,
        samples: |sample| {
            let (command, release) = match &sample.answer {
                Answered::Status(status) => (status.command.join(" "), status.release.clone()),
                Answered::Paused { command } => (command.clone(), String::new()),
                Answered::Nothing => return Vec::new(),
            };
            vec![(vec![("command", short(&command)), ("release", release)], 1.0)]
        },
    },
    Family {
        name: "rankrun_job_state",
        help: "1 for the state that the job is in, 0 for the others.",
        kind: Kind::Gauge,
        samples: |sample| {
            let Some(state) = state_of(sample) else { return Vec::new() };
            let series = |(of, name): &(JobState, &str)| (vec![("state", (*name).to_owned())], (*of == state).into());
            JOB_STATES.iter().map(series).collect()
        },
    },
    Family {
        name: "rankrun_job_state_since_timestamp_seconds",
        help: "When the job came into its state, since the Unix epoch.",
        kind: Kind::Gauge,
        samples: |sample| of_status(sample, |status| one(status.since)),
    },
    Family {
        name: "rankrun_job_start_timestamp_seconds",
        help: "When the job started, since the Unix epoch.",
        kind: Kind::Gauge,
        samples: |sample| of_status(sample, |status| one(status.started)),
    },
    Family {
        name: "rankrun_job_restarts_total",
        help: "How often all ranks of the job were started again.",
        kind: Kind::Counter,
        samples: |sample| of_status(sample, |status| one(status.attempt.0)),
    },
    Family {
        name: "rankrun_job_restarts_left",
        help: "Restarts after a failure that --restart still allows now.",
        kind: Kind::Gauge,
        samples: |sample| of_status(sample, |status| if_known(status.restarts_left.map(f64::from))),
    },
    Family {
        name: "rankrun_job_world_size",
        help: "The number of ranks that the job began its attempt with.",
        kind: Kind::Gauge,
        samples: |sample| of_status(sample, |status| one(status.world_size)),
    },
    Family {
        name: "rankrun_job_ranks",
        help: "How many ranks are in each state.",
        kind: Kind::Gauge,
        samples: |sample| {
            let count = |status: &JobStatus, of: Doing| status.ranks.iter().filter(|rank| rank.state == of).count();
            of_status(sample, |status| {
                let series =
                    |(of, name): &(Doing, &str)| (vec![("state", (*name).to_owned())], count(status, *of) as f64);
                RANK_STATES.iter().map(series).collect()
            })
        },
    },
    Family {
        name: "rankrun_job_silence_seconds",
        help: "How long no running rank has written anything.",
        kind: Kind::Gauge,
        samples: |sample| {
            of_status(sample, |status| {
                let silences = status.ranks.iter().filter_map(|rank| silence(rank, status.now));
                if_known(silences.reduce(f64::min))
            })
        },
    },
    Family {
        name: "rankrun_job_silent_nodes",
        help: "Nodes of the job whose agents do not answer.",
        kind: Kind::Gauge,
        samples: |sample| of_status(sample, |status| one(status.silent_nodes.len() as u32)),
    },
];

/// The families of a rank, with the time of the answer. Each series has the labels `job`, `group` and `rank`.
const OF_RANK: &[Family<OfRank>] = &[
    Family {
        name: "rankrun_rank_up",
        help: "Whether the process of the rank runs.",
        kind: Kind::Gauge,
        samples: |rank, _| one(rank.pid.is_some()),
    },
    Family {
        name: "rankrun_rank_info",
        help: "Where the rank runs; always 1.",
        kind: Kind::Gauge,
        samples: |rank, _| vec![(vec![("node", printable(&rank.node).into_owned())], 1.0)],
    },
    Family {
        name: "rankrun_rank_restarts_total",
        help: "How often the rank was started again.",
        kind: Kind::Counter,
        samples: |rank, _| one(rank.attempt.0),
    },
    Family {
        name: "rankrun_rank_silence_seconds",
        help: "How long the rank, which runs, has written nothing: since its start, if never.",
        kind: Kind::Gauge,
        samples: |rank, now| if_known(silence(rank, now)),
    },
    Family {
        name: "rankrun_rank_last_output_timestamp_seconds",
        help: "When the rank last wrote something, since the Unix epoch.",
        kind: Kind::Gauge,
        samples: |rank, _| if_known(rank.wrote),
    },
];

/// How long a running rank has written nothing.
fn silence(rank: &RankStatus, now: f64) -> Option<f64> {
    let since = rank.since.filter(|_| rank.state == Doing::Running);
    let last = rank.wrote.into_iter().chain(since).reduce(f64::max)?;
    rank.pid.map(|_| (now - last).max(0.0))
}

/// The text for these jobs: families in a fixed order, jobs by id, ranks in order. `with_ranks`: also the series of each rank.
pub fn prometheus(mut jobs: Vec<Sample>, with_ranks: bool) -> String {
    jobs.sort_by(|one, other| one.job.cmp(&other.job));
    let mut text = String::new();
    header(&mut text, "rankrun_jobs", "Jobs of this user that run on this machine.", Kind::Gauge);
    sample(&mut text, "rankrun_jobs", &[], jobs.len() as f64);
    for family in OF_JOB {
        let series = jobs.iter().flat_map(|job| {
            let labels = vec![("job", job.job.0.clone())];
            (family.samples)(job).into_iter().map(move |(more, value)| ([labels.clone(), more].concat(), value))
        });
        write_family(&mut text, (family.name, family.help, family.kind), series);
    }
    if !with_ranks {
        return text;
    }
    for family in OF_RANK {
        let series = jobs.iter().flat_map(|job| of_ranks(job, family.samples));
        write_family(&mut text, (family.name, family.help, family.kind), series);
    }
    text
}

/// The samples of each rank of a job.
fn of_ranks(job: &Sample, samples: fn(&RankStatus, f64) -> Series) -> Series {
    of_status(job, |status| {
        let of_rank = |rank: &RankStatus| {
            let (group, number) = (rank.rank.group(), rank.rank.number());
            let labels = vec![("job", job.job.0.clone()), ("group", group.to_string()), ("rank", number.to_string())];
            let samples = samples(rank, status.now).into_iter();
            samples.map(|(more, value)| ([labels.clone(), more].concat(), value)).collect::<Series>()
        };
        status.ranks.iter().flat_map(of_rank).collect()
    })
}

/// A family without series is left out.
fn write_family(
    text: &mut String,
    (name, help, kind): (&str, &str, Kind),
    series: impl Iterator<Item = (Labels, f64)>,
) {
    let mut series = series.peekable();
    if series.peek().is_some() {
        header(text, name, help, kind);
        series.for_each(|(labels, value)| sample(text, name, &labels, value));
    }
}

fn header(text: &mut String, name: &str, help: &str, kind: Kind) {
    let kind = match kind {
        Kind::Gauge => "gauge",
        Kind::Counter => "counter",
    };
    // Writing into a string does not fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn sample(text: &mut String, name: &str, labels: &[(&'static str, String)], value: f64) {
    text.push_str(name);
    for (i, (label, value)) in labels.iter().enumerate() {
        let _ = write!(text, "{}{label}=\"{}\"", if i == 0 { "{" } else { "," }, Escaped(value));
    }
    let _ = writeln!(text, "{} {value}", if labels.is_empty() { "" } else { "}" });
}

/// The value of a label: a backslash, a quote and a newline have a backslash before them.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| match character {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            other => f.write_char(other),
        })
    }
}

/// The beginning of a command line, without control characters.
fn short(command: &str) -> String {
    let command = printable(command);
    match command.char_indices().take_while(|(at, _)| *at < COMMAND).last() {
        Some((at, last)) if at + last.len_utf8() < command.len() => format!("{}...", &command[..at]),
        _ => command.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Attempt, GroupId, Pid, Rank};
    use crate::standing::Phase;

    fn rank(rank: Rank, state: Doing, wrote: Option<f64>) -> RankStatus {
        let pid = (state != Doing::Ended).then_some(Pid(100));
        RankStatus {
            rank,
            attempt: Attempt(1),
            node: "node1".to_owned(),
            cpus: None,
            pid,
            state,
            since: Some(1_700_000_010.0),
            until: None,
            why: None,
            is_saving: false,
            phase: Phase::Running,
            phase_since: None,
            wrote,
            last_line: None,
            note: None,
            usage: None,
        }
    }

    fn status(job: &str, command: &str, ranks: Vec<RankStatus>) -> Sample {
        let status = JobStatus {
            job: JobId(job.to_owned()),
            release: "0.1.0".to_owned(),
            pid: Pid(7),
            front_pid: None,
            detached: false,
            command: vec!["sh".to_owned(), "-c".to_owned(), command.to_owned()],
            directory: "/".to_owned(),
            world_size: 3,
            attempt: Attempt(1),
            restarts_left: Some(2),
            started: 1_700_000_000.0,
            now: 1_700_000_070.5,
            state: JobState::Running,
            since: 1_700_000_010.25,
            until: None,
            why: None,
            silent_nodes: Vec::new(),
            members: Vec::new(),
            ranks,
        };
        Sample { job: JobId(job.to_owned()), answer: Answered::Status(Box::new(status)) }
    }

    fn jobs() -> Vec<Sample> {
        let spawned = Rank::of(GroupId(1), 0);
        let ranks = vec![
            rank(Rank(0), Doing::Running, Some(1_700_000_060.0)),
            rank(Rank(1), Doing::Running, None),
            rank(spawned, Doing::Ended, Some(1_700_000_020.0)),
        ];
        vec![
            status("7f3a91c2", "echo \"a\\b\"\nexit", ranks),
            Sample { job: JobId("0a1b2c3d".to_owned()), answer: Answered::Paused { command: "rankrun a".to_owned() } },
            Sample { job: JobId("5e5e5e5e".to_owned()), answer: Answered::Nothing },
        ]
    }

    #[test]
    fn jobs_and_ranks_are_families_of_series_in_order() {
        insta::assert_snapshot!(prometheus(jobs(), true));
        let mut other = jobs();
        other.reverse();
        assert_eq!(prometheus(other, true), prometheus(jobs(), true));
    }

    /// The text format: what may come in which line, and that no series comes twice.
    fn check(text: &str) -> usize {
        let (mut family, mut seen) = (String::new(), std::collections::BTreeSet::new());
        assert!(text.ends_with('\n'));
        for line in text.split_terminator('\n') {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                family = rest.split(' ').next().expect("a name").to_owned();
                assert!(seen.insert(format!("# {family}")), "the lines of a family are together");
                continue;
            }
            if line.starts_with('#') {
                let kinds = ["gauge", "counter"].map(|kind| format!("# TYPE {family} {kind}"));
                assert!(kinds.iter().any(|kind| kind == line), "{line}");
                continue;
            }
            let (series, value) = line.rsplit_once(' ').expect("a series and a value");
            assert!(value.parse::<f64>().is_ok() && seen.insert(series.to_owned()), "{line}");
            let labels = series.strip_prefix(&*family).expect("of its family");
            let mut rest = labels.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or_default();
            while let Some((name, value)) = rest.split_once("=\"") {
                assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{line}");
                let mut is_escaped = false;
                let end = value.char_indices().find(|(_, character)| {
                    let is_end = *character == '"' && !is_escaped;
                    is_escaped = *character == '\\' && !is_escaped;
                    is_end
                });
                let (end, _) = end.expect("a quote at the end");
                rest = value[end + 1..].strip_prefix(',').unwrap_or(&value[end + 1..]);
            }
            assert_eq!(rest, "", "{line}");
        }
        seen.len()
    }

    #[test]
    fn whatever_a_command_is_the_lines_stay_lines() {
        for command in
            ["", "\\", "\"", "a\\\"b", "\n\r\t\x1b[31mred", "{job=\"x\"} 1\nrankrun_fake 1", "\u{2028}é\u{202e}"]
        {
            assert!(check(&prometheus(vec![status("7f3a91c2", command, Vec::new())], true)) > 10);
        }
        let long = prometheus(vec![status("7f3a91c2", &"é\"".repeat(4000), Vec::new())], false);
        assert!(check(&long) > 10 && long.lines().all(|line| line.len() < 600), "{long}");
    }

    #[test]
    fn series_of_ranks_are_there_only_where_they_are_wanted() {
        let many = |ranks: u32| {
            let ranks = (0..ranks).map(|number| rank(Rank(number), Doing::Running, None)).collect();
            vec![status("7f3a91c2", "x", ranks)]
        };
        assert_eq!(prometheus(many(1000), false).lines().count(), prometheus(many(1), false).lines().count());
        assert!(check(&prometheus(many(1000), true)) > 4000);
        assert_eq!(prometheus(Vec::new(), true).lines().last(), Some("rankrun_jobs 0"));
    }
}
