//! Making the report of a job that has ended: a pure function of what the journal has.

use crate::advice::advice;
use crate::event::{End, GroupFacts, JobFacts};
use crate::evidence::{Class, LeftOut};
use crate::exit::ExitCode;
use crate::gang::Gang;
use crate::headline::{Circumstances, headline};
use crate::hookless::{Occasion, that_matter};
use crate::ids::{JobId, Rank};
use crate::report::{Culprit, GroupReport, Left, RankReport, Report, SCHEMA};
use crate::stderr::Tail;
use crate::verdict::{Verdict, Window};

impl Report {
    /// The report of a job that was refused before its first rank. When, by which release and for how many ranks is left to the caller.
    pub fn of_refusal(job: JobId, command: Vec<String>, text: String, code: ExitCode) -> Report {
        Report {
            schema: SCHEMA,
            release: String::new(),
            job,
            summary: text,
            exit_code: code,
            class: Some(Class::Refused),
            culprit: None,
            started: 0.0,
            seconds: 0.0,
            attempt: 0,
            attempts: Vec::new(),
            given_up: None,
            world_size: 0,
            command,
            ranks: Vec::new(),
            groups: Vec::new(),
            evidence: Vec::new(),
            left_out: LeftOut::default(),
            containment: "unknown".to_owned(),
            containment_note: None,
            left: Left { proven: true, shared_memory_removed: true, ..Left::default() },
            standings: Vec::new(),
            stacks: None,
            hookless: Vec::new(),
            alone: Vec::new(),
            next: Vec::new(),
        }
    }

    /// The report of a job that has ended. `tail` has the last lines of a rank's stderr. A pure function of what is in the
    /// journal.
    pub fn of<'a>(
        facts: &JobFacts,
        gang: &Gang,
        verdict: &Verdict,
        end: &End,
        tail: impl Fn(Rank) -> Option<&'a Tail>,
    ) -> Report {
        let code = end.left.exit_code(verdict.code, verdict.class, end.only_lost_before);
        let map = &facts.map;
        let node = |rank: Rank| facts.node_name(rank).unwrap_or_default().to_owned();
        let culprit = verdict.culprit.as_ref().map(|finding| Culprit {
            rank: finding.rank,
            node: node(finding.rank),
            pid: finding.pid,
            cause: finding.cause.clone(),
            command: facts.command(finding.rank),
            at: finding.at.as_secs_f64(),
            exception: finding.exception.clone(),
            stuck_in: finding.stuck_in,
            stuck_for: finding.stuck_since.and_then(|since| {
                let stop = gang.stop_ordered()?;
                Some(stop.saturating_sub(since).as_secs_f64())
            }),
            stderr: tail(finding.rank).map(Tail::lines).unwrap_or_default().into_iter().map(bounded).collect(),
            window: finding
                .window
                .clone()
                .map(|window| Window { lines: window.lines.into_iter().map(bounded).collect(), ..window }),
            core: end.core.clone(),
            order_uncertain: verdict.uncertain.clone(),
        });
        let ranks = gang
            .ranks()
            .iter()
            .zip(verdict.fates.iter().zip(&verdict.endings))
            .map(|(record, (fate, ending))| RankReport {
                rank: record.rank,
                node: node(record.rank),
                cpus: record.cpus.as_ref().map(ToString::to_string),
                pid: record.pid,
                fate: *fate,
                status: record.status,
                started_at: record.started_at.map(|at| at.as_secs_f64()),
                ended_at: record.ended_at.map(|at| at.as_secs_f64()),
                how: ending.how.clone(),
                cause: ending.cause.clone(),
            })
            .collect();
        let lost = end.unguarded.clone().unwrap_or_else(|| node(Rank(0)));
        let mut report = Report {
            schema: SCHEMA,
            release: facts.release.clone(),
            job: facts.job.clone(),
            summary: headline(
                verdict,
                gang,
                Circumstances { code, output: end.left.output, node: &lost, why_lost: end.why_lost.as_deref() },
            ),
            exit_code: code,
            class: verdict.class,
            culprit,
            started: end.started.as_secs_f64(),
            seconds: end.took.as_secs_f64(),
            attempt: (end.attempts.len() as u64 + end.attempts_left_out) as u32,
            attempts: end.attempts.clone(),
            given_up: end.given_up.clone(),
            world_size: map.world_size(),
            command: facts.command(Rank(0)),
            ranks,
            groups: facts.groups.iter().map(GroupReport::of).collect(),
            evidence: gang.all_evidence(),
            left_out: LeftOut { attempts: end.attempts_left_out, ..gang.left_out() },
            containment: end.containment.clone(),
            containment_note: end.containment_note.clone(),
            left: end.left.clone(),
            standings: end.standings.clone(),
            stacks: end.stacks.clone(),
            hookless: {
                let outside =
                    gang.outside().filter(|_| verdict.culprit.is_none() || verdict.class == Some(Class::Hang));
                that_matter(gang, &end.standings, Occasion { now: gang.stop_ordered().unwrap_or(end.took), outside })
            },
            alone: gang.alone().to_vec(),
            next: Vec::new(),
        };
        report.next = advice(&report, facts.commands.len());
        report
    }
}

impl GroupReport {
    fn of(facts: &GroupFacts) -> GroupReport {
        let command = facts.commands.first().map(|(_, words)| words.clone()).unwrap_or_default();
        GroupReport { group: facts.group, by: facts.by, world_size: facts.map.world_size(), command }
    }
}

/// Bytes of a line of a program's output, at most.
const LINE_KEPT: usize = 1000;

/// A line, cut to the length that a report may hold. What is no UTF-8 has become three bytes for each.
fn bounded(mut line: String) -> String {
    if line.len() > LINE_KEPT {
        line.truncate((0..=LINE_KEPT).rev().find(|&at| line.is_char_boundary(at)).unwrap_or(0));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_program_is_cut_between_characters() {
        assert_eq!(bounded("x".repeat(1000)).len(), 1000);
        assert_eq!(bounded("\u{fffd}".repeat(1000)), "\u{fffd}".repeat(333));
    }
}
