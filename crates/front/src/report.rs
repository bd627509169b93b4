//! The report: one JSON file, and at most 20 lines for a person (DESIGN §5).

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::evidence::{Class, Evidence, Fact};
use rankrun_core::gang::{Gang, Outside};
use rankrun_core::status::signal_name;
use rankrun_core::verdict::{Fate, Verdict};
use rankrun_core::{ExitCode, JobId, Pid, Rank, RankSet, WorkerStatus};
use rankrun_wire::message::{Containment, LeftProcess, Summary};
use serde::Serialize;

use crate::Plan;

/// The version of the JSON schema.
const SCHEMA: u32 = 1;
/// Ranks that are named one by one before the text folds them.
const MAX_LEFT: usize = 5;

/// Everything that is said of a job.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    schema: u32,
    job: JobId,
    exit_code: ExitCode,
    class: Option<Class>,
    culprit: Option<Culprit>,
    /// Seconds from start to end.
    seconds: f64,
    node: String,
    world_size: u32,
    command: Vec<String>,
    ranks: Vec<RankReport>,
    evidence: Vec<Evidence>,
    containment: Option<String>,
    #[serde(skip)]
    outside: Option<Outside>,
    left: Left,
}

#[derive(Clone, Debug, Serialize)]
struct Culprit {
    rank: Rank,
    pid: Option<Pid>,
    cause: String,
    command: String,
    /// Seconds since the start.
    at: f64,
}

#[derive(Clone, Debug, Serialize)]
struct RankReport {
    rank: Rank,
    pid: Option<Pid>,
    fate: Fate,
    status: Option<WorkerStatus>,
    /// Seconds since the start.
    ended_at: Option<f64>,
}

/// What was left of the job.
#[derive(Clone, Debug, Serialize)]
struct Left {
    /// Whether it was proved that nothing is left but what is listed.
    proven: bool,
    workers: u32,
    processes: Vec<LeftReport>,
    released: u32,
    shared_memory: Vec<String>,
    shared_memory_removed: bool,
    /// Whether all output reached the front.
    output_sent: bool,
    /// Whether what no destination took was kept in the report's directory.
    output_salvaged: bool,
    /// Whether all of it reached its destination.
    output_written: bool,
}

#[derive(Clone, Debug, Serialize)]
struct LeftReport {
    pid: Pid,
    name: String,
    state: char,
    wait_channel: Option<String>,
}

/// What the front knows of the end besides the gang.
pub(crate) struct Remainder<'a> {
    pub(crate) summary: Option<&'a Summary>,
    pub(crate) proven: bool,
    pub(crate) is_sent: bool,
    pub(crate) is_written: bool,
    /// Where output was kept that no destination took.
    pub(crate) salvaged: Option<&'a Path>,
}

impl Report {
    pub(crate) fn new(
        plan: &Plan,
        gang: &Gang,
        verdict: &Verdict,
        code: ExitCode,
        took: Duration,
        containment: Option<&Containment>,
        remainder: Remainder<'_>,
    ) -> Report {
        let map = &plan.spec.map;
        let node = map.places().first().map(|place| map.node_name(place.node).to_owned()).unwrap_or_default();
        let words = |rank| -> Vec<String> {
            plan.spec.command(rank).iter().map(|word| word.to_string_lossy().into_owned()).collect()
        };
        let culprit = verdict.evidence.map(|index| {
            let evidence = &gang.evidence()[index];
            Culprit {
                rank: evidence.rank,
                pid: evidence.pid,
                cause: cause(&evidence.fact),
                command: words(evidence.rank).join(" "),
                at: evidence.at.as_secs_f64(),
            }
        });
        let ranks = gang
            .ranks()
            .iter()
            .zip(&verdict.fates)
            .zip(0..)
            .map(|((record, fate), rank)| RankReport {
                rank: Rank(rank),
                pid: record.pid,
                fate: *fate,
                status: record.status,
                ended_at: record.ended_at.map(|at| at.as_secs_f64()),
            })
            .collect();
        let summary = remainder.summary.cloned().unwrap_or_default();
        Report {
            schema: SCHEMA,
            job: plan.spec.job.clone(),
            exit_code: code,
            class: verdict.class,
            culprit,
            seconds: took.as_secs_f64(),
            node,
            world_size: map.world_size(),
            command: words(Rank(0)),
            ranks,
            evidence: gang.evidence().to_vec(),
            containment: containment.map(|containment| containment.name().to_owned()),
            outside: gang.outside(),
            left: Left {
                proven: remainder.proven,
                workers: gang.ranks().iter().filter(|rank| rank.pid.is_some()).count() as u32,
                processes: summary.left.iter().map(LeftReport::new).collect(),
                released: summary.released,
                shared_memory: summary.shared_memory.iter().map(|name| name.to_string_lossy().into_owned()).collect(),
                shared_memory_removed: summary.shared_memory_removed,
                output_sent: remainder.is_sent,
                output_salvaged: remainder.salvaged.is_some(),
                output_written: remainder.is_sent && remainder.is_written,
            },
        }
    }

    /// Whether there is a failure to report.
    pub(crate) fn has_failed(&self) -> bool {
        self.exit_code != ExitCode::SUCCESS
    }

    /// Whether people are to be told: not of a success, nor of a reader that has gone away (`| head`).
    pub(crate) fn is_worth_telling(&self) -> bool {
        (self.has_failed() && self.outside != Some(Outside::OutputGone)) || !self.left.output_written
    }
}

impl Left {
    fn output_lost(&self) -> &'static str {
        match self.output_sent {
            true if self.output_salvaged => "what could not be written is kept beside the report, as unwritten.*",
            true => "some of it could not be written, and is lost",
            false => "what the agent had not sent yet is lost with it",
        }
    }
}

impl LeftReport {
    fn new(process: &LeftProcess) -> LeftReport {
        LeftReport {
            pid: process.pid,
            name: process.name.clone(),
            state: process.state,
            wait_channel: process.wait_channel.clone(),
        }
    }
}

/// A fact as the cause of a failure, in a few words.
fn cause(fact: &Fact) -> String {
    match fact {
        Fact::Ended { status: WorkerStatus::Exited { code } } => format!("exited with code {code}"),
        Fact::Ended { status: WorkerStatus::Signaled { signal, core_dumped } } => {
            let core = if *core_dumped { ", core dumped" } else { "" };
            format!("killed by {}{core}", signal_name(*signal))
        }
        Fact::Aborted { code, message } => match message {
            Some(message) => format!("MPI_Abort({code}): {message}"),
            None => format!("MPI_Abort({code})"),
        },
        Fact::ExitWithoutFinalize => "exited with code 0 without MPI_Finalize, while others were in MPI".to_owned(),
        Fact::ExitBeforeInit => "exited with code 0 before MPI_Init, while others waited for it there".to_owned(),
        Fact::SpawnFailed { step, error, command } => format!("cannot {step} \"{command}\": {error}"),
        Fact::Stopped { signal } => format!("stopped by {}", signal_name(*signal)),
        Fact::Malformed { reason } => format!("broke the PMI protocol: {reason}"),
    }
}

/// The report for a person: what happened, where, what became of the others, what is left, where to read more.
pub fn render(report: &Report, saved: Option<&Path>, color: bool) -> String {
    let mut text = String::new();
    let paint = |style: &str, words: &str| match color {
        true => format!("\x1b[{style}m{words}\x1b[0m"),
        false => words.to_owned(),
    };
    let code = match report.class {
        Some(Class::Interrupted) => String::new(),
        Some(_) | None => format!("exit {}, ", report.exit_code.0),
    };
    text.push_str(&format!(
        "{} {}  ({code}after {})\n",
        paint("1;31", "rankrun:"),
        paint("1", &headline(report)),
        seconds(report.seconds)
    ));
    let mut line = |name: &str, value: &str| text.push_str(&format!("  {name:<9} {value}\n"));
    if let Some(culprit) = &report.culprit {
        let pid = culprit.pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
        line("where", &format!("node {}{pid}: {}", report.node, shorten(&culprit.command, 80)));
    }
    if let Some(others) = others(report) {
        line("others", &others);
    }
    line("left", &left(report));
    for process in report.left.processes.iter().take(MAX_LEFT) {
        let channel = process.wait_channel.as_deref().map(|name| format!(" in {name}")).unwrap_or_default();
        line("", &format!("pid {} ({}), state {}{channel}", process.pid, process.name, process.state));
    }
    if !report.left.output_written {
        line("output", report.left.output_lost());
    }
    if let Some(saved) = saved {
        line("report", &shorten_home(saved));
    }
    text
}

fn headline(report: &Report) -> String {
    match (&report.culprit, report.outside) {
        (Some(culprit), _) if report.class == Some(Class::SpawnFailed) => {
            format!("rank {} could not be started: {}", culprit.rank, culprit.cause)
        }
        (Some(culprit), _) => format!("rank {} failed: {}", culprit.rank, culprit.cause),
        (None, Some(Outside::Signal(signal))) => format!("ended by {}", signal_name(signal)),
        (None, Some(Outside::OutputFailed)) => "its output found no place for longer than --drain".to_owned(),
        (None, Some(Outside::Timeout)) => "ended by --timeout".to_owned(),
        (None, Some(Outside::OutputGone)) => "nobody reads the output any more".to_owned(),
        (None, Some(Outside::AgentLost)) => format!("node {} was lost: its agent was killed or stopped", report.node),
        (None, Some(Outside::GuardLost)) => format!("the guard of node {} was killed", report.node),
        (None, None) if report.left.output_written => "processes of the job are left".to_owned(),
        (None, None) => "the job succeeded, but its output could not be written".to_owned(),
    }
}

fn others(report: &Report) -> Option<String> {
    let with = |fate: Fate| -> Vec<Rank> {
        report.ranks.iter().filter(|rank| rank.fate == fate).map(|rank| rank.rank).collect()
    };
    let groups = [
        (Fate::EndedByRankrun, "ended by rankrun"),
        (Fate::FailedToo, "failed after it"),
        (Fate::Succeeded, "succeeded"),
        (Fate::NeverStarted, "never started"),
        (Fate::Unknown, "unknown"),
    ];
    let parts: Vec<String> = groups
        .into_iter()
        .filter_map(|(fate, words)| {
            let ranks = with(fate);
            let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
            (!ranks.is_empty()).then(|| format!("{noun} {} {words}", RankSet::of(ranks.iter().copied())))
        })
        .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn left(report: &Report) -> String {
    let left = &report.left;
    let tier = report.containment.as_deref().unwrap_or("unknown");
    let mut words = match (left.proven, left.processes.len()) {
        (true, 0) => format!("nothing: {} workers, 0 processes", left.workers),
        (_, 0) => "not proven: processes of the job may be alive".to_owned(),
        (_, count) => format!("{count} processes that could not be killed"),
    };
    if left.released > 0 {
        words = format!("{} processes, let go (--descendants leave)", left.released);
    }
    let files = left.shared_memory.len();
    match (left.shared_memory_removed, files) {
        (true, 0) => words.push_str(", 0 shm files"),
        (true, count) => words.push_str(&format!(", 0 shm files ({count} removed)")),
        (false, count) => words.push_str(&format!(", {count} shm files")),
    }
    format!("{words} ({tier})")
}

fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 60.0 => format!("{s:.2} s"),
        s if s < 3600.0 => format!("{} min {:.0} s", s as u64 / 60, s % 60.0),
        s => format!("{} h {} min", s as u64 / 3600, (s as u64 % 3600) / 60),
    }
}

fn shorten(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most - 1).collect();
    format!("{kept}…")
}

fn shorten_home(path: &Path) -> String {
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.as_os_str().len() > 1);
    match home.and_then(|home| path.strip_prefix(home).ok().map(Path::to_owned)) {
        Some(below) => format!("~/{}", below.display()),
        None => path.display().to_string(),
    }
}

/// Where reports go unless told otherwise.
pub(crate) fn default_dir(job: &JobId) -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("rankrun").join(&job.0))
}

/// Writes the report. Returns the path of the report.
pub(crate) fn save(directory: &Path, report: &Report) -> io::Result<PathBuf> {
    std::fs::create_dir_all(directory)?;
    let path = directory.join("report.json");
    let mut json = serde_json::to_vec_pretty(report)?;
    json.push(b'\n');
    std::fs::write(&path, json)?;
    Ok(path)
}

/// An error of rankrun's own, before there is anything else to write to.
pub(crate) fn error(color: bool, what: &str, source: Option<&io::Error>, hint: Option<&str>) {
    let paint = |style: &str, word: &str| match color {
        true => format!("\x1b[{style}m{word}\x1b[0m"),
        false => word.to_owned(),
    };
    let source = source.map(|source| format!(": {}", os_text(source))).unwrap_or_default();
    let mut stderr = io::stderr();
    let _ = writeln!(stderr, "{} {what}{source}", paint("1;31", "error:"));
    if let Some(hint) = hint {
        let _ = writeln!(stderr, "{} {hint}", paint("36", "hint:"));
    }
}

/// The text of an OS error without Rust's "(os error 2)".
pub(crate) fn os_text(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((text, _)) => text.to_owned(),
        None => text,
    }
}
