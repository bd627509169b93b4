//! The report of a job: what is kept as JSON (docs/report.md), and the lines that a person reads.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::evidence::{Class, Evidence, LeftOut};
use crate::exit::ExitCode;
use crate::ids::{JobId, Pid, Rank};
use crate::printable::printable;
use crate::ranks::RankSet;
use crate::status::WorkerStatus;
use crate::testimony::{Exception, StuckIn};
use crate::verdict::{Fate, Window};

/// The version of the schema. It changes when a reader of the old one would misunderstand the new one.
pub const SCHEMA: u32 = 1;
/// Lines of the text at most.
pub const MAX_LINES: usize = 20;
/// Of these, lines that the culprit wrote itself.
const MAX_OWN_LINES: usize = 8;
/// Processes left behind that are named one by one.
const MAX_LEFT: usize = 4;

/// Everything that is said of a job. Times are seconds since its start.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    pub schema: u32,
    /// The version of rankrun.
    pub release: String,
    pub job: JobId,
    /// The first line of the text, without colour.
    pub summary: String,
    pub exit_code: ExitCode,
    pub class: Option<Class>,
    pub culprit: Option<Culprit>,
    /// When the job started, in seconds since the Unix epoch.
    pub started: f64,
    pub seconds: f64,
    pub world_size: u32,
    pub command: Vec<String>,
    pub ranks: Vec<RankReport>,
    pub evidence: Vec<Evidence>,
    /// What is not in the lists above, because it would be too much.
    #[serde(default)]
    pub left_out: LeftOut,
    /// How the workers were held, and why not better.
    pub containment: String,
    pub containment_note: Option<String>,
    pub left: Left,
}

/// The rank that failed first.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Culprit {
    pub rank: Rank,
    pub node: String,
    pub pid: Option<Pid>,
    /// In the program's own words where it had any.
    pub cause: String,
    pub command: Vec<String>,
    pub at: f64,
    pub exception: Option<Exception>,
    pub stuck_in: Option<StuckIn>,
    /// How long it was stuck before it was ended, in seconds.
    pub stuck_for: Option<f64>,
    /// The last lines that it wrote to stderr.
    pub stderr: Vec<String>,
    /// The lines around the cause, where they are known.
    #[serde(default)]
    pub window: Option<Window>,
}

/// One rank.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RankReport {
    pub rank: Rank,
    pub node: String,
    pub pid: Option<Pid>,
    pub fate: Fate,
    pub status: Option<WorkerStatus>,
    pub started_at: Option<f64>,
    pub ended_at: Option<f64>,
    /// How it ended where its fate leaves that open, such as `exited 1 on SIGTERM`.
    #[serde(default)]
    pub how: Option<String>,
    /// Why it failed, if it did.
    #[serde(default)]
    pub cause: Option<String>,
}

/// What was left of the job.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Left {
    /// Whether it was proved that nothing is left but what is listed.
    pub proven: bool,
    /// Workers that had been started.
    pub workers: u32,
    pub processes: Vec<LeftProcess>,
    /// Processes that were let go (`--descendants leave`).
    pub released: u32,
    pub shared_memory: Vec<String>,
    pub shared_memory_removed: bool,
    /// What the job may have created, and was left alone.
    #[serde(default)]
    pub shared_memory_doubtful: Vec<String>,
    pub output: OutputFate,
}

/// A process that could not be killed (K-5).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftProcess {
    pub pid: Pid,
    pub name: String,
    /// As proc(5) has it.
    pub state: char,
    /// Where in the kernel it waits.
    pub wait_channel: Option<String>,
}

/// What became of the ranks' output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutputFate {
    #[default]
    Written,
    /// What no destination took is kept beside the report.
    KeptBesideReport,
    /// Some of it found no place.
    Lost,
    /// The agent was lost with what it had not sent yet.
    LostWithAgent,
}

/// The report for a person. `saved` is where it is kept.
///
/// Much of it is in the words of programs, or comes from a file that anybody may have written: no value reaches the text
/// but through [`printable`].
pub fn render(report: &Report, saved: Option<&str>, color: bool) -> String {
    let paint = |style: &str, words: &str| match color {
        true => format!("\x1b[{style}m{words}\x1b[0m"),
        false => words.to_owned(),
    };
    let code = match report.class {
        Some(Class::Interrupted) => String::new(),
        Some(_) | None => format!("exit {}, ", report.exit_code.0),
    };
    let mut lines = vec![format!(
        "{} {}  ({code}after {})",
        paint("1;31", "rankrun:"),
        paint("1", &printable(&report.summary)),
        duration(report.seconds)
    )];
    let mut line = |name: &str, value: &str| lines.push(format!("  {name:<9} {}", printable(value)));
    if let Some(culprit) = &report.culprit {
        line("where", &place(culprit));
        if let (Some(place), Some(time)) = (culprit.stuck_in, culprit.stuck_for) {
            let place = match place {
                StuckIn::Finalize => "finalization",
                StuckIn::ExitHandlers => "its exit handlers, threads or children",
            };
            line("stuck in", &format!("{place} after the failure; ended by rankrun after {}", duration(time)));
        }
    }
    if let Some(others) = others(report) {
        line("others", &others);
    }
    line("left", &left(report));
    for process in report.left.processes.iter().take(MAX_LEFT) {
        let channel = process.wait_channel.as_deref().map(|name| format!(" in {name}")).unwrap_or_default();
        line("", &format!("pid {} ({}), state {}{channel}", process.pid, process.name, process.state));
    }
    if let Some(first) = report.left.shared_memory_doubtful.first() {
        let more = match report.left.shared_memory_doubtful.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        line("", &format!("perhaps of this job, and left alone: {}{more}", printable(first)));
    }
    match report.left.output {
        OutputFate::Written => {}
        OutputFate::KeptBesideReport => {
            line("output", "what could not be written is kept beside the report, as unwritten.*");
        }
        OutputFate::Lost => line("output", "some of it could not be written, and is lost"),
        OutputFate::LostWithAgent => line("output", "what the agent had not sent yet is lost with it"),
    }
    if let Some(saved) = saved {
        line("report", saved);
    }
    let room = (MAX_LINES - lines.len()).min(MAX_OWN_LINES);
    lines.extend(own_words(report, room));
    lines.join("\n")
}

/// The culprit's own last lines, under a line that says so.
fn own_words(report: &Report, room: usize) -> Vec<String> {
    let Some(culprit) = report.culprit.as_ref().filter(|_| room > 1) else { return Vec::new() };
    let traceback =
        || culprit.exception.as_ref().map(|exception| exception.traceback.lines().map(str::to_owned).collect());
    let (source, own): (&str, Vec<String>) = match culprit.stderr.is_empty() {
        false => ("stderr", culprit.stderr.clone()),
        true => ("traceback", traceback().unwrap_or_default()),
    };
    let own: Vec<String> = own.into_iter().filter(|line| !line.trim().is_empty()).collect();
    if own.is_empty() {
        return Vec::new();
    }
    let kept = &own[own.len().saturating_sub(room - 1)..];
    let title = format!("  {source:<9} the last of rank {}:", culprit.rank);
    std::iter::once(title).chain(kept.iter().map(|line| format!("    | {}", shorten(&printable(line), 150)))).collect()
}

fn place(culprit: &Culprit) -> String {
    let mut text = format!("node {}", culprit.node);
    if let Some(pid) = culprit.pid {
        let _ = write!(text, ", pid {pid}");
    }
    match culprit.exception.as_ref().and_then(|exception| Some((exception, exception.file.as_deref()?))) {
        Some((exception, file)) => {
            let _ = write!(text, ", {file}");
            if let Some(line) = exception.line {
                let _ = write!(text, ":{line}");
            }
            if let Some(function) = exception.function.as_deref().filter(|name| !name.is_empty()) {
                let _ = write!(text, " in {function}");
            }
        }
        None => {
            let _ = write!(text, ": {}", shorten(&culprit.command.join(" "), 80));
        }
    }
    text
}

fn others(report: &Report) -> Option<String> {
    let groups = [
        (Fate::Victim, "lost a peer and failed"),
        (Fate::FailedToo, "failed too"),
        (Fate::EndedByRankrun, "ended by rankrun"),
        (Fate::Succeeded, "succeeded"),
        (Fate::NeverStarted, "never started"),
        (Fate::Unknown, "unknown"),
    ];
    let parts: Vec<String> = groups
        .into_iter()
        .filter_map(|(fate, words)| {
            let ranks: Vec<Rank> = report.ranks.iter().filter(|rank| rank.fate == fate).map(|rank| rank.rank).collect();
            let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
            (!ranks.is_empty()).then(|| format!("{noun} {} {words}", RankSet::of(ranks)))
        })
        .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn left(report: &Report) -> String {
    let left = &report.left;
    let workers = if left.workers == 1 { "1 worker".to_owned() } else { format!("{} workers", left.workers) };
    let mut words = match (left.proven, left.processes.len(), left.released) {
        (true, 0, 0) => format!("nothing: {workers}, 0 processes"),
        (true, 0, released) => format!("{released} processes that were let go (--descendants leave)"),
        (_, 0, _) => "not proven: processes of the job may be alive".to_owned(),
        (_, 1, _) => "1 process that could not be killed".to_owned(),
        (_, count, _) => format!("{count} processes that could not be killed"),
    };
    match (left.shared_memory_removed, left.shared_memory.len()) {
        (true, 0) => words.push_str(", 0 shm files"),
        (true, count) => {
            let _ = write!(words, ", 0 shm files ({count} removed)");
        }
        (false, count) => {
            let _ = write!(words, ", {count} shm files");
        }
    }
    format!("{words} ({})", report.containment)
}

fn duration(seconds: f64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::printable::printable_lines;

    fn report() -> Report {
        let rank = |rank: u32, fate| RankReport {
            rank: Rank(rank),
            node: "vm".to_owned(),
            pid: Some(Pid(9292 + rank as i32)),
            fate,
            status: None,
            started_at: Some(0.01),
            ended_at: Some(0.5),
            how: None,
            cause: None,
        };
        let exception = Exception {
            kind: "ValueError".to_owned(),
            message: "failure!".to_owned(),
            traceback: "Traceback (most recent call last):\nValueError: failure!".to_owned(),
            file: Some("seed0.py".to_owned()),
            line: Some(5),
            function: Some("func".to_owned()),
        };
        Report {
            schema: SCHEMA,
            release: "0.1.0".to_owned(),
            job: JobId("7f3a91c2".to_owned()),
            summary: "rank 0 failed: ValueError: failure!".to_owned(),
            exit_code: ExitCode(1),
            class: Some(Class::StuckInFinalize),
            culprit: Some(Culprit {
                rank: Rank(0),
                node: "vm".to_owned(),
                pid: Some(Pid(9292)),
                cause: "ValueError: failure!".to_owned(),
                command: vec!["python".to_owned(), "seed0.py".to_owned()],
                at: 0.2,
                exception: Some(exception),
                stuck_in: Some(StuckIn::Finalize),
                stuck_for: Some(0.5),
                stderr: (0..30).map(|line| format!("line {line}")).collect(),
                window: None,
            }),
            started: 1.79e9,
            seconds: 0.71,
            world_size: 5,
            command: vec!["python".to_owned(), "seed0.py".to_owned()],
            ranks: vec![
                rank(0, Fate::Culprit),
                rank(1, Fate::EndedByRankrun),
                rank(2, Fate::EndedByRankrun),
                rank(3, Fate::Victim),
                rank(4, Fate::Succeeded),
            ],
            evidence: Vec::new(),
            left_out: LeftOut::default(),
            containment: "cgroup".to_owned(),
            containment_note: None,
            left: Left { proven: true, workers: 5, shared_memory_removed: true, ..Left::default() },
        }
    }

    #[test]
    fn the_text_reads_well_in_black_and_white() {
        insta::assert_snapshot!(render(&report(), Some("~/.local/state/rankrun/7f3a91c2/report.json"), false));
    }

    #[test]
    fn no_word_of_a_program_is_obeyed_by_a_terminal() {
        let nasty = "a\x1b]0;title\x07\x1b[2J\u{9b}1A\u{202e}\rb\n";
        let mut report = report();
        report.summary = nasty.to_owned();
        report.containment = nasty.to_owned();
        report.left.processes = vec![LeftProcess {
            pid: Pid(1),
            name: nasty.to_owned(),
            state: '\r',
            wait_channel: Some(nasty.to_owned()),
        }];
        let culprit = report.culprit.as_mut().expect("there is one");
        culprit.node = nasty.to_owned();
        culprit.command = vec![nasty.to_owned()];
        culprit.stderr = vec![nasty.to_owned(); 3];
        let mut exception = culprit.exception.take().expect("there is one");
        exception.file = Some(nasty.to_owned());
        exception.function = Some(nasty.to_owned());
        exception.traceback = nasty.to_owned();
        let mut other = report.clone();
        let culprit = other.culprit.as_mut().expect("there is one");
        culprit.exception = Some(exception);
        culprit.stderr = Vec::new();
        let clean = self::report();
        for (nasty_report, lines) in [(&report, 11), (&other, 9)] {
            let text = render(nasty_report, Some(nasty), false);
            assert_eq!(printable_lines(&text), text);
            assert_eq!(text.lines().count(), lines, "{text}");
        }
        assert_eq!(printable_lines(&render(&clean, None, false)), render(&clean, None, false));
    }

    #[test]
    fn the_text_never_has_more_than_twenty_lines() {
        let mut report = report();
        report.left.processes = (0..9)
            .map(|pid| LeftProcess { pid: Pid(pid), name: "python".to_owned(), state: 'D', wait_channel: None })
            .collect();
        report.left.output = OutputFate::Lost;
        let text = render(&report, Some("/a"), true);
        assert!(text.lines().count() <= MAX_LINES, "{text}");
    }

    #[test]
    fn what_is_written_can_be_read_again() {
        let report = report();
        let json = serde_json::to_string(&report).expect("it has only plain data");
        assert_eq!(serde_json::from_str::<Report>(&json).expect("our own"), report);
    }
}
