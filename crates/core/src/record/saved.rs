//! The report as it is kept in a file: bounded, whatever the ranks have written.

use std::borrow::Cow;

use crate::evidence::shorten;
use crate::exit::ExitCode;
use crate::gang::{Gang, Outside};
use crate::report::{OutputFate, Report};
use crate::verdict::Fate;

/// Whether people are to be told: not of a success, nor of a reader that has gone away (`| head`).
pub fn is_worth_telling(report: &Report, gang: &Gang) -> bool {
    let failed = report.exit_code != ExitCode::SUCCESS;
    (failed && gang.outside() != Some(Outside::OutputGone)) || report.left.output != OutputFate::Written
}

/// The report as it is kept.
pub fn to_json(report: &Report) -> serde_json::Result<Vec<u8>> {
    let mut report = Cow::Borrowed(report);
    let mut json = serde_json::to_vec_pretty(&report)?;
    for cut in CUTS {
        if json.len() < JSON_MOST {
            break;
        }
        let report = report.to_mut();
        cut(report);
        json = serde_json::to_vec_pretty(&report)?;
    }
    json.push(b'\n');
    Ok(json)
}

/// Bytes of the report as it is kept, at most.
const JSON_MOST: usize = 1 << 20;
/// Bytes that are kept of a word of a command, and words of a command, where there must be less.
const WORD_KEPT: usize = 200;
const WORDS_KEPT: usize = 100;
/// Ranks that are listed where there must be less.
const RANKS_KEPT: usize = 1000;

/// What goes first from a report that is too long, and what then, until it is short enough.
const CUTS: [fn(&mut Report); 4] = [
    // The words of the others, to their beginnings and ends.
    |report| {
        let culprit = report.culprit.as_ref().map(|culprit| culprit.rank);
        for evidence in report.evidence.iter_mut().filter(|evidence| Some(evidence.rank) != culprit) {
            report.left_out.bytes += evidence.fact.shorten(true) as u64;
        }
    },
    // The commands.
    |report| {
        let culprit = report.culprit.as_mut().map(|culprit| &mut culprit.command);
        for command in culprit.into_iter().chain([&mut report.command]) {
            report.left_out.bytes += command.iter().skip(WORDS_KEPT).map(|word| word.len() as u64).sum::<u64>();
            command.truncate(WORDS_KEPT);
            report.left_out.bytes += command.iter_mut().map(|word| shorten(word, WORD_KEPT) as u64).sum::<u64>();
        }
    },
    // The ranks of which there is nothing to say, and what is known of many others.
    |report| {
        let culprit = report.culprit.as_ref().map(|culprit| culprit.rank);
        let before = (report.ranks.len(), report.evidence.len());
        report.ranks.sort_by_key(|rank| ([Fate::Succeeded, Fate::EndedByRankrun].contains(&rank.fate), rank.rank));
        report.ranks.sort_by_key(|rank| ![Fate::Culprit, Fate::Interrupted].contains(&rank.fate));
        report.ranks.truncate(RANKS_KEPT);
        report.ranks.sort_by_key(|rank| rank.rank);
        report.evidence.sort_by_key(|evidence| Some(evidence.rank) != culprit);
        report.evidence.truncate(RANKS_KEPT);
        report.left_out.ranks += (before.0 - report.ranks.len()) as u64;
        report.left_out.facts += (before.1 - report.evidence.len()) as u64;
    },
    // Every other word: control characters take six bytes each.
    |report| {
        report.evidence.truncate(WORDS_KEPT);
        for evidence in &mut report.evidence {
            report.left_out.bytes += evidence.fact.shorten(true) as u64;
        }
        if let Some(culprit) = &mut report.culprit {
            culprit.stderr.drain(..culprit.stderr.len().saturating_sub(WORDS_KEPT));
            let exception = culprit.exception.iter_mut().flat_map(|it| [&mut it.message, &mut it.traceback]);
            for text in culprit.stderr.iter_mut().chain(exception) {
                report.left_out.bytes += shorten(text, 1000) as u64;
            }
        }
    },
];

/// The cause in the form in which torchrun leaves it for whoever started us.
pub fn error_file(report: &Report) -> Option<serde_json::Result<Vec<u8>>> {
    let culprit = report.culprit.as_ref()?;
    let callstack = culprit.exception.as_ref().map(|exception| exception.traceback.clone()).unwrap_or_default();
    let json = serde_json::json!({
        "message": {
            "message": culprit.cause,
            "errorCode": report.exit_code.0,
            "extraInfo": {
                "py_callstack": callstack,
                "timestamp": ((report.started + culprit.at) as u64).to_string(),
            },
        },
    });
    Some(serde_json::to_vec(&json))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::gang::{Event, Rules};
    use crate::report::RankReport;
    use crate::testimony::{Exception, Testimony};
    use crate::verdict::verdict;
    use crate::{GangId, JobId, Pid, Rank, WorkerStatus};

    use super::*;

    #[test]
    fn a_report_of_many_long_exceptions_is_short_enough() {
        for (ranks, text, times) in [(48u32, "\u{1}x", 12), (5_000, "x", 1)] {
            let rules = Rules {
                grace_failure: Duration::ZERO,
                grace_outside: Duration::ZERO,
                timeout: None,
                keep_going: true,
                terminal: None,
            };
            let mut gang = Gang::new(GangId::default(), ranks, rules);
            for (rank, time) in (0..ranks).flat_map(|rank| (0..times).map(move |time| (rank, time))) {
                let message = text.repeat(10_000);
                let exception = Exception { traceback: message.clone(), message, ..Exception::default() };
                let testimony = Testimony::Aside { place: "thread".to_owned(), exception };
                let event = Event::Testimony { worker: gang.worker(Rank(rank)), pid: Pid(1), testimony };
                gang.handle(Duration::from_secs(time), event, &mut Vec::new());
            }
            let status = WorkerStatus::Exited { code: 3 };
            let ended = Event::Ended { worker: gang.worker(Rank(7)), status };
            gang.handle(Duration::from_secs(20), ended, &mut Vec::new());
            let verdict = verdict(&gang);
            let rank = |rank| RankReport {
                rank: Rank(rank),
                node: "n".repeat(60),
                pid: Some(Pid(100)),
                fate: verdict.fates[rank as usize],
                status: None,
                started_at: Some(0.1),
                ended_at: None,
                how: None,
                cause: None,
                cpus: None,
            };
            let command = vec!["x".repeat(100_000); 100];
            let report = Report {
                class: verdict.class,
                world_size: ranks,
                ranks: (0..ranks).map(rank).collect(),
                evidence: gang.all_evidence(),
                left_out: gang.left_out(),
                ..Report::of_refusal(JobId(String::new()), command, String::new(), verdict.code)
            };
            let json = to_json(&report).expect("plain data");
            assert!(json.len() <= JSON_MOST, "{} bytes", json.len());
            let kept: Report = serde_json::from_slice(&json).expect("our own");
            assert!(kept.ranks.iter().any(|rank| rank.rank == Rank(7)), "the culprit is listed");
            assert!(kept.left_out.bytes > 1_000_000, "{:?}", kept.left_out);
            assert!(ranks < 1_000 || kept.left_out.ranks == u64::from(ranks) - 1_000, "{:?}", kept.left_out);
        }
    }
}
