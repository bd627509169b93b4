//! The report for a person: at most [`MAX_LINES`] lines of at most [`WIDTH`] columns, the headline first.

use std::fmt::Write;

use crate::alone::Alone;
use crate::core_dump::CoreDump;
use crate::evidence::{Class, Fact};
use crate::hookless::Hookless;
use crate::ids::Rank;
use crate::printable::{fit, printable, wrap};
use crate::ranks::RankSet;
use crate::report::{Culprit, OutputFate, Report};
use crate::standing;
use crate::testimony::StuckIn;
use crate::verdict::{Fate, Origin};

/// Lines of the text at most.
pub const MAX_LINES: usize = 20;
/// Columns of a line at most.
pub const WIDTH: usize = 200;
/// Of these lines, those that quote the culprit, including their title.
const MAX_OWN_LINES: usize = 11;
/// Columns of a line that the culprit wrote.
const OWN_WIDTH: usize = 150;
/// Processes left behind that are named one by one.
const MAX_LEFT: usize = 3;
/// Causes of other ranks that get a line each.
const MAX_CAUSES: usize = 3;
/// Reasons why Python had no hook that get a line each.
const MAX_HOOKLESS: usize = 2;
/// Failures of earlier attempts that get a line each.
const MAX_ATTEMPTS: usize = 4;
/// Things to do next.
const MAX_NEXT: usize = 3;
/// Lines of the reason why there is no other attempt.
const MAX_GIVEN_UP: usize = 3;
/// Lines about the calls in which the ranks were, and about their state besides; and what stands before each of them.
const MAX_STACKS: usize = 10;
const MAX_STACKS_AND_STATES: usize = 12;
const STACKS_INDENT: usize = 12;

/// Where and how the text is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Look<'a> {
    /// The path of the report.
    pub saved: Option<&'a str>,
    pub color: bool,
    /// The culprit's own lines are right above.
    pub is_quoted_above: bool,
}

/// The lines, none of them wider than it may be.
struct Text(Vec<String>);

impl Text {
    /// A line with a name. One without continues the line before.
    fn line(&mut self, name: &str, value: &str) {
        self.0.push(fit(&format!("  {name:<9} {}", printable(value)), WIDTH).into_owned());
    }

    /// Several lines; only the first has the name.
    fn lines(&mut self, name: &str, values: impl IntoIterator<Item = String>) {
        for (value, at) in values.into_iter().zip(0..) {
            self.line(if at == 0 { name } else { "" }, &value);
        }
    }

    /// A sentence that may have several lines.
    fn sentence(&mut self, name: &str, value: &str, most: usize) {
        // What is before the value in each line.
        const INDENT: usize = 12;
        let value = printable(value);
        self.lines(name, wrap(&value, WIDTH - INDENT, most).into_iter().map(str::to_owned));
    }
}

/// The report for a person.
///
/// Much of it is text of programs, or from a file that anybody may have written: every value goes through [`printable`].
pub fn render(report: &Report, look: Look<'_>) -> String {
    let mut text = Text(vec![headline(report, look.color)]);
    if let Some(culprit) = &report.culprit {
        text.line("where", &place(culprit));
        if let (Some(place), Some(time)) = (culprit.stuck_in, culprit.stuck_for) {
            let place = match place {
                StuckIn::Finalize => "finalization",
                StuckIn::ExitHandlers => "its exit handlers, threads or children",
            };
            text.line("stuck in", &format!("{place} after the failure; ended by rankrun after {}", duration(time)));
        }
        text.lines("note", last_note(report, culprit));
        if !culprit.order_uncertain.is_empty() {
            let ranks = named(culprit.order_uncertain.clone());
            text.line(
                "order",
                &format!("uncertain: {ranks} may have failed before it; the clocks of the nodes do not tell"),
            );
        }
    }
    let stacks = report.stacks.as_ref().map(|table| table.lines(WIDTH - STACKS_INDENT, MAX_STACKS));
    let stacks = stacks.unwrap_or_default();
    // Where the calls are known, the phases say little more. One line is for those left out.
    let states = (MAX_STACKS_AND_STATES - 1 - stacks.len().min(MAX_STACKS)).min(standing::GROUPS);
    text.lines("stacks", stacks);
    text.lines("state", standing::lines(&report.standings, states));
    let reasons = if text.0.len() > MAX_LINES / 3 { 1 } else { MAX_HOOKLESS };
    text.lines("hook", report.hookless.iter().take(reasons).map(Hookless::to_string));
    if report.class != Some(Class::Alone) {
        text.lines("mpi", report.alone.iter().take(reasons).map(Alone::to_string));
    }
    text.lines("others", others(report));
    text.lines("also", causes(report));
    text.lines("before", attempts(report));
    if let Some(why) = &report.given_up {
        text.sentence("restart", why, MAX_GIVEN_UP);
    }
    left(report, &mut text);
    match report.left.output {
        OutputFate::Written => {}
        OutputFate::KeptBesideReport => {
            text.line("output", "what could not be written is kept beside the report, as unwritten.*");
        }
        OutputFate::Lost => text.line("output", "some of it could not be written, and is lost"),
        OutputFate::LostWithAgent => text.line("output", "what the agent had not sent yet is lost with it"),
    }
    if let Some(CoreDump::File(path)) = report.culprit.as_ref().and_then(|culprit| culprit.core.as_ref()) {
        text.line("core", path);
    }
    // The path of the report is the last line.
    let room = MAX_LINES.saturating_sub(text.0.len() + 1).min(MAX_NEXT);
    text.lines("next", report.next.iter().take(room).cloned());
    if let Some(saved) = look.saved {
        text.line("report", saved);
    }
    if !look.is_quoted_above {
        let room = MAX_LINES.saturating_sub(text.0.len()).min(MAX_OWN_LINES);
        own_words(report, room, &mut text);
    }
    text.0.join("\n")
}

fn headline(report: &Report, color: bool) -> String {
    let paint = |style: &str, words: &str| match color {
        true => format!("\x1b[{style}m{words}\x1b[0m"),
        false => words.to_owned(),
    };
    let code = match report.class {
        Some(Class::Interrupted) => String::new(),
        Some(_) | None => format!("exit {}, ", report.exit_code.0),
    };
    const NAME: &str = "rankrun:";
    let rest = format!("  ({code}after {})", duration(report.seconds));
    let summary = printable(&report.summary);
    let summary = fit(&summary, WIDTH.saturating_sub(NAME.len() + 1 + rest.len()));
    format!("{} {}{rest}", paint("1;31", NAME), paint("1", &summary))
}

/// The culprit's own lines, with a title: those around the cause, otherwise its last ones.
fn own_words(report: &Report, room: usize, text: &mut Text) {
    let Some(culprit) = report.culprit.as_ref().filter(|_| room > 1) else { return };
    let traceback = culprit.exception.as_ref().map(|it| it.traceback.lines().map(str::to_owned).collect::<Vec<_>>());
    let (source, what, own) = match &culprit.window {
        Some(window) => {
            let source = match window.origin {
                Origin::Stderr => "stderr",
                Origin::Stdout => "stdout",
                Origin::Traceback => "traceback",
            };
            (source, "of", window.lines.clone())
        }
        None if culprit.stderr.is_empty() => ("traceback", "the last of", traceback.unwrap_or_default()),
        None => ("stderr", "the last of", culprit.stderr.clone()),
    };
    let own: Vec<String> = own.into_iter().filter(|line| !line.trim().is_empty()).collect();
    if own.is_empty() {
        return;
    }
    let kept = &own[own.len().saturating_sub(room - 1)..];
    text.line(source, &format!("{what} rank {}:", culprit.rank));
    text.0.extend(kept.iter().map(|line| format!("    | {}", fit(&printable(line), OWN_WIDTH))));
}

/// How many lines the culprit wrote to stderr after those that [`render`] quotes; `None` if the quoted lines are not from
/// stderr.
pub fn lines_below(culprit: &Culprit) -> Option<usize> {
    let last = |lines: &[String]| lines.iter().rev().find(|line| !line.trim().is_empty()).cloned();
    let quoted = match &culprit.window {
        Some(window) if window.origin == Origin::Stdout => return None,
        Some(window) => last(&window.lines)?,
        None => last(&culprit.stderr)?,
    };
    let at = culprit.stderr.iter().rposition(|line| *line == quoted)?;
    Some(culprit.stderr.len() - 1 - at)
}

fn place(culprit: &Culprit) -> String {
    let mut text = format!("node {}", culprit.node);
    // Writing into a string cannot fail, here and below.
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
            let _ = write!(text, ": {}", fit(&printable(&culprit.command.join(" ")), 80));
        }
    }
    text
}

/// The culprit's last note before it failed.
fn last_note(report: &Report, culprit: &Culprit) -> Option<String> {
    let notes = report.evidence.iter().rev().filter(|evidence| evidence.rank == culprit.rank);
    let mut notes = notes.filter_map(|evidence| match &evidence.fact {
        Fact::Note { text } => Some((text, evidence.at.as_secs_f64())),
        _ => None,
    });
    let (note, at) = notes.next()?;
    let before = culprit.at - at;
    let when = if before > 0.0 { format!(", {} before it failed", duration(before)) } else { String::new() };
    Some(format!("{note} (rank {}{when})", culprit.rank))
}

/// `1 rank`, `ranks 0-2`.
fn named(ranks: Vec<Rank>) -> String {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", RankSet::of(ranks))
}

/// Groups ranks by a key, in the order of the first rank of each group.
fn grouped<K: PartialEq>(ranks: impl Iterator<Item = (Rank, K)>) -> Vec<(K, Vec<Rank>)> {
    let mut groups: Vec<(K, Vec<Rank>)> = Vec::new();
    for (rank, key) in ranks {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((key, vec![rank])),
        }
    }
    groups
}

/// The fates of the others.
fn others(report: &Report) -> Option<String> {
    const FATES: [(Fate, &str); 7] = [
        (Fate::Victim, "failed because of another rank"),
        (Fate::FailedToo, "failed too"),
        (Fate::EndedByRankrun, "ended by rankrun"),
        (Fate::Succeeded, "succeeded"),
        (Fate::NeverStarted, "never started"),
        (Fate::Lost, "lost with the node"),
        (Fate::Unknown, "unknown"),
    ];
    let mut parts = Vec::new();
    for (fate, words) in FATES {
        // Ranks that failed with a cause are listed separately.
        let of_fate =
            report.ranks.iter().filter(|rank| rank.fate == fate && (fate != Fate::FailedToo || rank.cause.is_none()));
        for (how, ranks) in grouped(of_fate.map(|rank| (rank.rank, rank.how.as_deref()))) {
            let how = how.map(|how| format!(" ({how})")).unwrap_or_default();
            parts.push(format!("{} {words}{how}", named(ranks)));
        }
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Why others failed too.
fn causes(report: &Report) -> Vec<String> {
    let failed = report.ranks.iter().filter(|rank| rank.fate == Fate::FailedToo);
    let mut groups = grouped(failed.filter_map(|rank| Some((rank.rank, rank.cause.as_deref()?))));
    let more: usize = groups.drain(groups.len().min(MAX_CAUSES)..).map(|(_, ranks)| ranks.len()).sum();
    let first = report.culprit.as_ref().map(|culprit| culprit.cause.as_str());
    let lines = groups.into_iter().map(|(cause, ranks)| {
        let cause = if Some(cause) == first { "the same" } else { cause };
        format!("{} failed: {cause}", named(ranks))
    });
    let rest = (more > 0).then(|| format!("{more} more with other causes"));
    lines.chain(rest).collect()
}

/// What is or was left of the job.
fn left(report: &Report, text: &mut Text) {
    let left = &report.left;
    let workers = if left.workers == 1 { "1 worker".to_owned() } else { format!("{} workers", left.workers) };
    let files = |count: usize| if count == 1 { "1 shm file".to_owned() } else { format!("{count} shm files") };
    let mut gone = vec![workers];
    let mut stays = Vec::new();
    match (left.shared_memory_removed, left.shared_memory.len() + left.shared_memory_more as usize) {
        (_, 0) => {}
        (true, count) => gone.push(format!("{} removed", files(count))),
        (false, count) => stays.push(files(count)),
    }
    match left.shared_memory_doubtful.len() + left.shared_memory_doubtful_more as usize {
        0 => {}
        count => stays.push(format!("possibly {}", files(count))),
    }
    match left.shared_memory_unchecked.as_slice() {
        [] => {}
        nodes => stays.push(format!("/dev/shm not checked on {}", nodes.join(", "))),
    }
    let stays = (!stays.is_empty()).then(|| stays.join(", "));
    let mut words = match (left.proven, left.processes.len(), left.released) {
        (true, 0, 0) => {
            gone.insert(1, "all processes gone".to_owned());
            stays.unwrap_or_else(|| "nothing".to_owned())
        }
        (_, processes, released) => {
            let doubt = left.doubt(&format!(" ({})", report.containment));
            let what = match (doubt, processes, released) {
                (None, 0, 1) => "1 process that was let go (--descendants leave)".to_owned(),
                (None, 0, released) => format!("{released} processes that were let go (--descendants leave)"),
                (Some(doubt), 0, _) => doubt,
                (_, 1, _) => "1 process that could not be killed".to_owned(),
                (_, count, _) => format!("{count} processes that could not be killed"),
            };
            [Some(what), stays].into_iter().flatten().collect::<Vec<_>>().join(", ")
        }
    };
    // Writing into a string does not fail.
    let _ = match words.ends_with(')') {
        true => write!(words, "; {}", gone.join(", ")),
        false => write!(words, " ({})", gone.join(", ")),
    };
    text.line("left", &words);
    // The number of the others takes the line of one.
    let shown = |count: usize| if count > MAX_LEFT { MAX_LEFT - 1 } else { count };
    let more = |text: &mut Text, count: usize| {
        if let more @ 1.. = count - shown(count) {
            text.line("", &format!("and {more} more, in the report"));
        }
    };
    for process in left.processes.iter().take(shown(left.processes.len())) {
        let channel = process.wait_channel.as_deref().map(|name| format!(" in {name}")).unwrap_or_default();
        text.line("", &format!("pid {} ({}), state {}{channel}", process.pid, process.name, process.state));
    }
    more(text, left.processes.len());
    for path in left.shared_memory_doubtful.iter().take(shown(left.shared_memory_doubtful.len())) {
        text.line("", &format!("possibly of this job, not removed: {path}"));
    }
    more(text, left.shared_memory_doubtful.len());
    if let more @ 1.. = left.shared_memory_doubtful_more {
        text.line("", &format!("and {more} more in /dev/shm, without names here"));
    }
}

/// How the attempts before the last one failed: those that failed alike in a row have one line.
fn attempts(report: &Report) -> Vec<String> {
    let mut groups: Vec<(u32, u32, &str)> = Vec::new();
    for past in &report.attempts {
        match groups.last_mut().filter(|(.., summary)| *summary == past.summary) {
            Some((_, last, _)) => *last = past.attempt,
            None => groups.push((past.attempt, past.attempt, &past.summary)),
        }
    }
    // A line that stands for one group alone would save nothing.
    let hidden = Some(groups.len().saturating_sub(MAX_ATTEMPTS)).filter(|hidden| *hidden > 1).unwrap_or(0);
    let line = |(first, last, summary): &(u32, u32, &str)| match first == last {
        true => format!("attempt {first}: {summary}"),
        false => format!("attempts {first}-{last}: {summary}"),
    };
    // The first failure may have led to the others; the last ones are the freshest.
    let mut lines: Vec<String> = groups.iter().take(1).chain(groups.iter().skip(1 + hidden)).map(line).collect();
    if hidden > 0 {
        let (from, to) = (groups[1].0, groups[hidden].1);
        let path = report.attempts.iter().find(|past| past.attempt == from).and_then(|past| past.report.as_deref());
        lines.insert(
            1,
            match path.and_then(|path| path.rsplit_once('/')) {
                Some((directory, _)) => {
                    format!("attempts {from}-{to}: \"rankrun report {directory} --attempt {from}\", and so on")
                }
                // With --restart-scope rank, the attempts are those of several ranks.
                None => format!("{hidden} more failures, which report.json has"),
            },
        );
    }
    if report.left_out.attempts > 0 {
        lines.insert(1, format!("and {} attempts that are not listed, nor in report.json", report.left_out.attempts));
    }
    lines
}

/// A report from a file may have any number here.
fn duration(seconds: f64) -> String {
    match seconds.max(0.0) {
        s if s < 60.0 => format!("{s:.2} s"),
        s if s < 3600.0 => format!("{} min {:.0} s", s as u64 / 60, s % 60.0),
        s => format!("{} h {} min", s as u64 / 3600, (s as u64 % 3600) / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::absence::Absence;
    use crate::advice::advice;
    use crate::evidence::{Evidence, LeftOut};
    use crate::exit::ExitCode;
    use crate::ids::{JobId, Pid};
    use crate::printable::{columns, printable_lines};
    use crate::report::{AttemptReport, Left, LeftProcess, RankReport, SCHEMA};
    use crate::standing::{Phase, Standing};
    use crate::status::WorkerStatus;
    use crate::testimony::Exception;
    use crate::verdict::Window;
    use std::time::Duration;

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
            cpus: None,
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
            groups: Vec::new(),
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
                core: None,
                order_uncertain: Vec::new(),
            }),
            started: 1.79e9,
            seconds: 0.71,
            attempt: 0,
            attempts: Vec::new(),
            given_up: None,
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
            standings: Vec::new(),
            stacks: None,
            hookless: Vec::new(),
            alone: Vec::new(),
            next: Vec::new(),
        }
    }

    fn plain(report: &Report) -> String {
        let saved = Some("~/.local/state/rankrun/7f3a91c2/report.json");
        let text = render(report, Look { saved, ..Look::default() });
        assert!(text.lines().count() <= MAX_LINES, "{text}");
        for line in text.lines() {
            assert!(line.chars().map(columns).sum::<usize>() <= WIDTH, "{line}");
        }
        text
    }

    /// A rank that crashed without a known exception.
    fn crash(signal: i32, core_dumped: bool) -> Report {
        let mut report = report();
        let culprit = report.culprit.as_mut().expect("there is one");
        culprit.cause = "ended by SIGSEGV".to_owned();
        culprit.command = vec!["./my solver".to_owned(), "input.dat".to_owned()];
        (culprit.exception, culprit.stuck_in, culprit.stderr) = (None, None, Vec::new());
        report.summary = "rank 0 failed: ended by SIGSEGV".to_owned();
        report.class = Some(Class::Signal);
        report.exit_code = ExitCode::signal(signal);
        report.ranks[0].status = Some(WorkerStatus::Signaled { signal, core_dumped });
        report
    }

    #[test]
    fn attempts_that_failed_alike_have_one_line_and_there_are_few_lines() {
        let past = |attempt: u32, summary: &str| AttemptReport {
            attempt,
            summary: summary.to_owned(),
            exit_code: ExitCode(1),
            class: Some(Class::Exception),
            rank: Some(Rank(1)),
            began: 0.0,
            seconds: 1.0,
            report: None,
        };
        let mut report = report();
        assert!(attempts(&report).is_empty());
        report.attempts = vec![past(0, "a"), past(1, "a"), past(2, "b")];
        assert_eq!(attempts(&report), ["attempts 0-1: a", "attempt 2: b"]);
        report.attempts = (0..7).map(|attempt| past(attempt, ["a", "b"][attempt as usize % 2])).collect();
        assert_eq!(
            attempts(&report),
            ["attempt 0: a", "3 more failures, which report.json has", "attempt 4: a", "attempt 5: b", "attempt 6: a"]
        );
        report.attempts.iter_mut().for_each(|past| past.report = Some(format!("~/r/x/attempt-{}.json", past.attempt)));
        assert_eq!(attempts(&report)[1], "attempts 1-3: \"rankrun report ~/r/x --attempt 1\", and so on");
        report.left_out.attempts = 9;
        assert_eq!(attempts(&report)[1], "and 9 attempts that are not listed, nor in report.json");
        report.left_out.attempts = 0;
        report.attempts.truncate(5);
        assert_eq!(attempts(&report).len(), 5);
        report.given_up = Some("gives up after 7 restarts".to_owned());
        assert!(plain(&report).contains("  restart   gives up after 7 restarts\n"), "{}", plain(&report));
        report.given_up = Some(format!("gives up: {} (/a/file never changed)", "word ".repeat(36).trim()));
        assert!(plain(&report).contains("(/a/file never changed)\n"), "{}", plain(&report));
        report.given_up = Some("x".repeat(1000));
        assert!(plain(&report).lines().all(|line| line.chars().count() <= WIDTH), "{}", plain(&report));
    }

    #[test]
    fn a_duration_that_cannot_be_does_not_widen_the_headline() {
        for seconds in [-1e300, -1.0, 1e300, f64::MAX, f64::NAN] {
            let mut report = report();
            report.seconds = seconds;
            report.summary = "x".repeat(500);
            if let Some(culprit) = &mut report.culprit {
                (culprit.stuck_for, culprit.at) = (Some(seconds), seconds);
            }
            let text = render(&report, Look::default());
            assert!(text.lines().all(|line| line.chars().map(columns).sum::<usize>() <= WIDTH), "{text}");
            assert!(text.contains("xxx"), "{text}");
        }
    }

    #[test]
    fn the_text_reads_well_in_black_and_white() {
        insta::assert_snapshot!(plain(&report()));
    }

    #[test]
    fn lines_that_stand_right_above_are_not_printed_again() {
        let text = render(&report(), Look { is_quoted_above: true, ..Look::default() });
        insta::assert_snapshot!(text);
    }

    #[test]
    fn the_lines_around_the_cause_are_shown_before_the_last_ones() {
        let mut report = report();
        let lines = vec!["  File \"seed0.py\", line 5, in func".to_owned(), "ValueError: failure!".to_owned()];
        for origin in [Origin::Stderr, Origin::Stdout, Origin::Traceback] {
            report.culprit.as_mut().expect("there is one").window = Some(Window { origin, lines: lines.clone() });
            let text = plain(&report);
            let own: Vec<&str> = text.lines().skip_while(|line| !line.ends_with("of rank 0:")).collect();
            let source = format!("{origin:?}").to_lowercase();
            assert_eq!(own[0], format!("  {source:<9} of rank 0:"));
            assert_eq!(own[1..], ["    |   File \"seed0.py\", line 5, in func", "    | ValueError: failure!"]);
        }
    }

    #[test]
    fn how_far_above_the_quoted_lines_stand_is_known() {
        let mut culprit = report().culprit.expect("there is one");
        assert_eq!(lines_below(&culprit), Some(0));
        let window = |origin, line: &str| Some(Window { origin, lines: vec!["a".to_owned(), line.to_owned()] });
        for (given, below) in [
            (window(Origin::Stderr, "line 25"), Some(4)),
            (window(Origin::Traceback, "line 29"), Some(0)),
            (window(Origin::Traceback, "ValueError: failure!"), None),
            (window(Origin::Stdout, "line 29"), None),
        ] {
            culprit.window = given;
            assert_eq!(lines_below(&culprit), below, "{:?}", culprit.window);
        }
        (culprit.window, culprit.stderr) = (None, Vec::new());
        assert_eq!(lines_below(&culprit), None);
    }

    #[test]
    fn fates_say_how_and_causes_of_others_are_folded() {
        let mut report = report();
        report.class = Some(Class::Exception);
        report.culprit.as_mut().expect("there is one").stuck_in = None;
        report.ranks = (0..20).map(|number| RankReport { rank: Rank(number), ..report.ranks[1].clone() }).collect();
        report.ranks[0].fate = Fate::Culprit;
        for rank in &mut report.ranks[1..8] {
            rank.fate = Fate::FailedToo;
            rank.cause = Some("ValueError: failure!".to_owned());
        }
        report.ranks[3].cause = Some("KeyError: 'x'".to_owned());
        report.ranks[5].cause = None;
        report.ranks[5].how = Some("exit 3".to_owned());
        for rank in [8, 10, 12] {
            report.ranks[rank].how = Some("exited 1 on SIGTERM".to_owned());
        }
        report.ranks[9].how = Some("killed after 5 s of grace, still working".to_owned());
        report.next = advice(&report, 1);
        insta::assert_snapshot!(plain(&report));
        for (rank, number) in report.ranks[1..8].iter_mut().zip(1..) {
            rank.cause = Some(format!("cause {number} {}", "x".repeat(300)));
        }
        insta::assert_snapshot!(plain(&report));
    }

    #[test]
    fn what_is_left_is_said_in_words() {
        let left = |change: &dyn Fn(&mut Left)| {
            let mut report = report();
            report.culprit = None;
            change(&mut report.left);
            let text = plain(&report);
            let lines = text
                .lines()
                .skip_while(|line| !line.starts_with("  left"))
                .take_while(|line| !line.starts_with("  report"));
            lines.collect::<Vec<_>>().join("\n")
        };
        let process = LeftProcess { pid: Pid(7), name: "python".to_owned(), state: 'D', wait_channel: None };
        let file = |number: u32| format!("/dev/shm/file_{number}");
        let cases: [&dyn Fn(&mut Left); 13] = [
            &|_| {},
            &|left| left.workers = 1,
            &|left| left.shared_memory = vec![file(0)],
            &|left| (left.shared_memory, left.shared_memory_removed) = (vec![file(0), file(1)], false),
            &|left| left.released = 2,
            &|left| left.proven = false,
            &|left| {
                left.processes = vec![LeftProcess { wait_channel: Some("fuse_wait".to_owned()), ..process.clone() }]
            },
            &|left| (left.processes, left.proven) = (vec![process.clone(); 5], false),
            &|left| left.shared_memory_doubtful = vec![file(0), file(1)],
            &|left| left.shared_memory_doubtful = (0..9).map(file).collect(),
            &|left| {
                (left.shared_memory, left.shared_memory_more, left.shared_memory_removed) = (vec![file(0)], 7, true);
                (left.shared_memory_doubtful, left.shared_memory_doubtful_more) = ((0..6).map(file).collect(), 136);
            },
            &|left| left.shared_memory_unchecked = vec!["vm".to_owned()],
            &|left| (left.proven, left.shared_memory_unchecked) = (false, vec!["vm".to_owned()]),
        ];
        insta::assert_snapshot!(cases.map(|case| left(case)).join("\n"));
    }

    #[test]
    fn a_crash_comes_with_its_core_and_the_way_to_a_debugger() {
        let mut report = crash(11, true);
        report.culprit.as_mut().expect("there is one").core = Some(CoreDump::File("/cores/core.9292".to_owned()));
        report.next = advice(&report, 1);
        insta::assert_snapshot!(plain(&report));
    }

    #[test]
    fn what_to_do_next_suits_the_job() {
        let next = |report: &Report, commands| advice(report, commands).join("\n");
        assert_eq!(next(&report(), 1), "", "an exception has its traceback");
        let mut report = crash(6, false);
        assert_eq!(next(&report, 1), "retry with --tty 0 --wrap '0:gdb --args'");
        assert_eq!(next(&report, 2), "retry with --tty 0, and --wrap '0:gdb --args' before the command of rank 0");
        let set = |report: &mut Report, program: &str, core| {
            let culprit = report.culprit.as_mut().expect("there is one");
            (culprit.command[0], culprit.core) = (program.to_owned(), core);
        };
        let handler = |name: &str| Some(CoreDump::Handler(name.to_owned()));
        set(&mut report, "./a.out", handler("systemd-coredump"));
        assert_eq!(next(&report, 1), "coredumpctl gdb 9292\nretry with --tty 0 --wrap '0:gdb --args'");
        set(&mut report, "./a.py", handler("apport"));
        assert_eq!(
            next(&report, 1),
            "the core was given to apport (kernel.core_pattern)\nretry with --tty 0 --wrap '0:gdb --args python3'"
        );
        set(&mut report, "/usr/bin/gdb", None);
        assert_eq!(next(&report, 1), "");
        set(&mut report, "./a.out", None);
        report.world_size = 1;
        assert_eq!(next(&report, 1), "retry with --wrap 'gdb --args'");
        report.ranks[0].status = Some(WorkerStatus::Signaled { signal: 9, core_dumped: false });
        assert_eq!(next(&report, 1), "", "SIGKILL is no crash");
        report.ranks[2].how = Some("killed after 5 s of grace".to_owned());
        assert_eq!(next(&report, 1), "a longer --grace gives rank 2 time to end");
    }

    #[test]
    fn the_last_note_of_the_culprit_is_in_the_text() {
        let mut report = report();
        let note = |rank, at, text: &str| Evidence {
            rank: Rank(rank),
            at: Duration::from_millis(at),
            pid: None,
            fact: Fact::Note { text: text.to_owned() },
        };
        report.evidence = vec![note(0, 10, "epoch 1"), note(0, 120, "epoch 2\x07"), note(1, 150, "of another")];
        let text = plain(&report);
        assert!(text.contains("\n  note      epoch 2\\x07 (rank 0, 0.08 s before it failed)\n"), "{text}");
    }

    #[test]
    fn no_word_of_a_program_is_obeyed_by_a_terminal() {
        let nasty = "a\x1b]0;title\x07\x1b[2J\u{9b}1A\u{202e}\rb\n";
        let mut report = report();
        report.summary = nasty.to_owned();
        report.containment = nasty.to_owned();
        report.next = vec![nasty.to_owned()];
        report.ranks[1].how = Some(nasty.to_owned());
        (report.ranks[2].fate, report.ranks[2].cause) = (Fate::FailedToo, Some(nasty.to_owned()));
        report.left.processes = vec![LeftProcess {
            pid: Pid(1),
            name: nasty.to_owned(),
            state: '\r',
            wait_channel: Some(nasty.to_owned()),
        }];
        let culprit = report.culprit.as_mut().expect("there is one");
        culprit.node = nasty.to_owned();
        culprit.core = Some(CoreDump::File(nasty.to_owned()));
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
        for (nasty_report, lines) in [(&report, 14), (&other, 12)] {
            let text = render(nasty_report, Look { saved: Some(nasty), ..Look::default() });
            assert_eq!(printable_lines(&text), text);
            assert_eq!(text.lines().count(), lines, "{text}");
        }
        let text = render(&clean, Look::default());
        assert_eq!(printable_lines(&text), text);
    }

    #[test]
    fn the_text_never_has_more_than_twenty_lines() {
        let mut report = report();
        report.left.processes = (0..9)
            .map(|pid| LeftProcess { pid: Pid(pid), name: "python".to_owned(), state: 'D', wait_channel: None })
            .collect();
        report.left.output = OutputFate::Lost;
        report.left.shared_memory_doubtful = vec!["/dev/shm/a".to_owned()];
        report.next = vec!["gdb".to_owned(); 9];
        report.ranks = (0..200)
            .map(|number| RankReport {
                rank: Rank(number),
                fate: Fate::FailedToo,
                cause: Some(format!("cause {number} {}", "x".repeat(2000))),
                ..report.ranks[0].clone()
            })
            .collect();
        report.summary = "日本".repeat(1000);
        plain(&report);
        let text = render(&report, Look { saved: Some("/a"), color: true, is_quoted_above: false });
        assert!(text.lines().count() <= MAX_LINES, "{text}");
    }

    #[test]
    fn a_timeout_of_ranks_without_the_hook_fits_whatever_else_there_is_to_say() {
        let mut report = report();
        report.culprit = None;
        report.summary = "timed out after 60 s (--timeout)".to_owned();
        let paths = ["/a", "/b", "/c"].map(|path| Absence::PathReplaced { path: path.to_owned() });
        report.hookless = Hookless::groups((0..3).map(Rank).zip(paths));
        report.next = advice(&report, 1);
        insta::assert_snapshot!(plain(&report), @r#"
        rankrun: timed out after 60 s (--timeout)  (exit 1, after 0.71 s)
          hook      rank 0 runs Python without rankrun's hook, which reports exceptions: PYTHONPATH was replaced by "/a"
                    rank 1 runs Python without rankrun's hook, which reports exceptions: PYTHONPATH was replaced by "/b"
          others    rank 3 failed because of another rank; ranks 1-2 ended by rankrun; rank 4 succeeded
          left      nothing (5 workers, all processes gone)
          next      add to PYTHONPATH instead of replacing it: PYTHONPATH=/a:$PYTHONPATH
                    add to PYTHONPATH instead of replacing it: PYTHONPATH=/b:$PYTHONPATH
                    add to PYTHONPATH instead of replacing it: PYTHONPATH=/c:$PYTHONPATH
          report    ~/.local/state/rankrun/7f3a91c2/report.json
        "#);
        let standing = |rank: u32| Standing {
            ranks: RankSet::of([Rank(rank)]),
            phase: Phase::Running,
            phase_for: None,
            silent: None,
            has_terminal: false,
            last_line: Some("x".repeat(rank as usize)),
            note: None,
            dead_threads: Vec::new(),
            suspect: None,
        };
        report.standings = (0..20).map(standing).collect();
        report.left.processes = (0..9)
            .map(|pid| LeftProcess { pid: Pid(pid), name: "python".to_owned(), state: 'D', wait_channel: None })
            .collect();
        report.left.output = OutputFate::Lost;
        report.left.shared_memory_doubtful = vec!["/dev/shm/a".to_owned()];
        let text = render(&report, Look { saved: Some("/a"), color: false, is_quoted_above: false });
        assert!(text.lines().count() <= MAX_LINES && text.contains("  next ") && text.contains("  hook "), "{text}");
    }

    #[test]
    fn what_is_written_can_be_read_again() {
        let report = report();
        let json = serde_json::to_string(&report).expect("it has only plain data");
        assert_eq!(serde_json::from_str::<Report>(&json).expect("our own"), report);
    }
}
