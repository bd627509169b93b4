//! The block with which torchrun 2.15 ends a failed job, for programs that search for it (`--strict=torchrun`).
//!
//! The words are torchrun's (`elastic/multiprocessing/errors/__init__.py`), what they say is our report: the root cause is its
//! culprit, and ranks that were ended by us are no failures.

use std::fmt::Write as _;

use crate::calendar::civil_from_days;
use crate::evidence::{Fact, Source};
use crate::report::{RankReport, Report};
use crate::spec::job::JobSpec;
use crate::status::{WorkerStatus, signal_name};
use crate::verdict::Fate;

/// The greatest width of its lines, as torchrun has it.
const WIDTH: usize = 60;

const NO_TRACEBACK: &str = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";

/// The block; `None` if no rank failed.
pub fn summary(report: &Report, spec: &JobSpec) -> Option<String> {
    let culprit = report.ranks.iter().find(|rank| rank.fate == Fate::Culprit)?;
    let others = report.ranks.iter().filter(|rank| rank.fate == Fate::FailedToo);
    let others: Vec<String> = others.enumerate().map(|(i, rank)| failure(i + 1, rank, report, spec)).collect();
    let root = failure(0, culprit, report, spec);
    let title = format!("{} FAILED", entrypoint(&report.command));
    let widest =
        others.iter().chain([&root, &title]).flat_map(|text| text.lines()).map(|line| line.chars().count()).max();
    let width = widest.unwrap_or_default().min(WIDTH);
    let (border, section) = ("=".repeat(width), "-".repeat(width));
    let others = if others.is_empty() { "  <NO_OTHER_FAILURES>".to_owned() } else { others.join("\n") };
    Some(format!(
        "{border}\n{title}\n{section}\nFailures:\n{others}\n{section}\nRoot Cause (first observed failure):\n{root}\n{border}\n"
    ))
}

/// The name of what was started: the script of a Python, else the program.
fn entrypoint(command: &[String]) -> &str {
    let is_python = command.get(1).is_some_and(|word| word == "-u");
    let script = command.iter().skip(1).find(|word| is_python && !word.starts_with('-'));
    script.or(command.first()).map_or("", String::as_str)
}

fn failure(index: usize, rank: &RankReport, report: &Report, spec: &JobSpec) -> String {
    let place = spec.map.place(rank.rank);
    let local_rank = place.map_or_else(|| rank.rank.to_string(), |place| place.local_rank.0.to_string());
    let is_culprit = |of: &&crate::report::Culprit| of.rank == rank.rank;
    let at = report.culprit.as_ref().filter(is_culprit).map(|culprit| culprit.at).or(rank.ended_at);
    let (code, signal) = match rank.status {
        Some(WorkerStatus::Exited { code }) => (i32::from(code), None),
        Some(WorkerStatus::Signaled { signal, .. }) => (-signal, Some(signal_name(signal))),
        None => (1, None),
    };
    let exceptions = || report.evidence.iter().filter(|evidence| evidence.rank == rank.rank);
    let traceback = exceptions().find_map(|evidence| match &evidence.fact {
        Fact::Exception { exception, .. } => Some(exception.traceback.trim_end().replace('\n', "\n  ")),
        _ => None,
    });
    let pid = rank.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
    let message = traceback.filter(|text| !text.is_empty()).unwrap_or_else(|| match &signal {
        Some(name) => format!("Signal {} ({name}) received by PID {pid}", -code),
        None => NO_TRACEBACK.to_owned(),
    });
    // Whether torch has written it is known by what was read.
    let is_written =
        exceptions().any(|evidence| matches!(evidence.fact, Fact::Exception { source: Source::ErrorFile, .. }));
    let file = spec.error_file.as_ref().filter(|_| is_written).map(|file| spec.expand(file, rank.rank));
    let file = file.map_or_else(|| "<N/A>".to_owned(), |file| file.to_string_lossy().into_owned());
    let signal = signal.map(|name| format!(" ({name})")).unwrap_or_default();
    let mut text = format!("[{index}]:\n");
    // Writing into a string does not fail.
    let _ = write!(
        text,
        "  time      : {}\n  host      : {}\n  rank      : {} (local_rank: {local_rank})\n  exitcode  : {code} (pid: {pid}) {signal}\n  \
         error_file: {file}\n  traceback : {message}",
        time(report.started + at.unwrap_or(report.seconds)),
        rank.node,
        rank.rank,
    );
    text
}

/// `2026-03-01_12:34:56`, UTC. `wall` is in seconds since the Unix epoch.
fn time(wall: f64) -> String {
    let seconds = wall.max(0.0) as u64;
    let (year, month, day) = civil_from_days(seconds / 86_400);
    let of_day = seconds % 86_400;
    format!("{year:04}-{month:02}-{day:02}_{:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entrypoint_is_the_script() {
        let of =
            |words: &[&str]| entrypoint(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).to_owned();
        assert_eq!(of(&["python", "-u", "train.py", "--x"]), "train.py");
        assert_eq!(of(&["python", "-u", "-m", "pkg.train"]), "pkg.train");
        assert_eq!(of(&["/bin/false"]), "/bin/false");
        assert_eq!(of(&[]), "");
    }

    #[test]
    fn times_are_written_as_torchrun_does() {
        assert_eq!(time(1_772_368_496.9), "2026-03-01_12:34:56");
    }
}
