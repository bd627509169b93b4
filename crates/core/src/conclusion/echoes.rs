//! Failures that only follow from that of another rank: its text came to them, or its `MPI_Abort` took them along.

use std::collections::HashMap;
use std::time::Duration;

use crate::evidence::Class;
use crate::finding::Finding;
use crate::gang::{Gang, MpiLife};
use crate::ids::Rank;
use crate::order::{SETTLE, Weight};
use crate::status::WorkerStatus;
use crate::testimony::Exception;

/// A shorter text may be in another by chance.
const TEXT_LEAST: usize = 12;

/// Makes victims of the findings that only repeat another one. With many ranks, many fail with the same words: texts are made
/// once, and looked up.
pub(crate) fn weigh(gang: &Gang, findings: &mut [Finding]) {
    let mut texts = Texts::default();
    let mut aborts: Vec<Finding> = Vec::new();
    for finding in findings.iter().filter(|finding| finding.weight != Weight::Victim) {
        texts.add(finding);
        if finding.class == Class::Abort {
            aborts.push(finding.clone());
        }
    }
    let may_be_victim = |finding: &&mut Finding| finding.weight != Weight::Victim && !is_on_our_signal(gang, finding);
    for finding in findings.iter_mut().filter(may_be_victim) {
        let origin = Origin::of(finding);
        // Of an abort that only its words tell, the end of its rank is known alone, which our signal may have made much later.
        let may_follow = |abort: &Origin| {
            let is_undated = !origin.is_reported && !abort.is_reported && !origin.is_late;
            is_undated || origin.may_follow(abort)
        };
        let is_taken = is_silent_in_mpi(gang, finding)
            && aborts.iter().any(|abort| may_follow(&Origin::of(abort)) && has_code_of(gang, finding, abort));
        if is_taken || texts.are_repeated_by(finding) {
            finding.weight = Weight::Victim;
        }
    }
}

/// Whether a late failure began after a signal of ours had been sent to its rank: then we ended the rank.
fn is_on_our_signal(gang: &Gang, finding: &Finding) -> bool {
    let record = gang.ranks().get(finding.rank);
    let first_signal = record.and_then(|record| record.stop.signals.first());
    is_late(finding) && first_signal.is_some_and(|(_, sent)| *sent <= finding.at)
}

/// Whether a failure began after our stop.
fn is_late(finding: &Finding) -> bool {
    finding.weight > Weight::Victim
}

/// Whose failure it is, and when it began.
#[derive(Clone, Copy, Debug)]
struct Origin {
    rank: Rank,
    at: Duration,
    is_reported: bool,
    is_late: bool,
}

impl Origin {
    fn of(finding: &Finding) -> Origin {
        let (rank, at, is_reported) = (finding.rank, finding.at, finding.is_reported);
        Origin { rank, at, is_reported, is_late: is_late(finding) }
    }

    /// Whether this failure may follow from another's, which did not begin after it. The times of ends that nobody reported are not that
    /// exact. A late failure follows from no other late one: as a victim it would come before that one.
    fn may_follow(&self, first: &Origin) -> bool {
        let is_exact = self.is_reported && first.is_reported;
        let are_both_late = self.is_late && first.is_late;
        self.rank != first.rank && !are_both_late && first.at <= if is_exact { self.at } else { self.at + SETTLE }
    }
}

/// The headlines of failures, by their first word: which of them are in a text is found without a look at each.
#[derive(Default)]
struct Texts {
    of_word: HashMap<String, HashMap<String, Vec<Origin>>>,
}

impl Texts {
    fn add(&mut self, finding: &Finding) {
        let Some(text) = finding.exception.as_ref().map(Exception::headline) else { return };
        if let Some((word, _)) = text.split_once(' ').filter(|_| text.chars().count() >= TEXT_LEAST) {
            let of_word = self.of_word.entry(word.to_owned()).or_default();
            of_word.entry(text).or_default().push(Origin::of(finding));
        }
    }

    /// `RuntimeError: rank 1 failed: ValueError: bad sample` repeats `ValueError: bad sample`. Ranks that fail with the same
    /// words do not: each may have said them first. Nor do those whose words only begin alike, as `bad sample 1` and
    /// `bad sample 12`.
    fn are_repeated_by(&self, finding: &Finding) -> bool {
        let Some(exception) = &finding.exception else { return false };
        let (said, headline, own) = (exception.message.as_str(), exception.headline(), Origin::of(finding));
        let begins = |at: usize| match said[..at].chars().next_back() {
            Some(before) => !is_of_word(before),
            None => !exception.kind.is_empty(),
        };
        said.char_indices().map(|(at, _)| at).filter(|at| begins(*at)).any(|at| {
            let rest = &said[at..];
            let word = rest.split_once(' ').map(|(word, _)| word);
            let ends = |text: &str| {
                rest.strip_prefix(text)
                    .is_some_and(|after| !after.starts_with(is_of_word) || !text.ends_with(is_of_word))
            };
            word.and_then(|word| self.of_word.get(word)).is_some_and(|texts| {
                let may_be = |(text, origins): (&String, &Vec<Origin>)| {
                    ends(text) && *text != headline && origins.iter().any(|origin| own.may_follow(origin))
                };
                texts.iter().any(may_be)
            })
        })
    }
}

fn is_of_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// Whether a rank in MPI exited without a word.
fn is_silent_in_mpi(gang: &Gang, finding: &Finding) -> bool {
    let record = gang.ranks().get(finding.rank);
    let is_silent = finding.class == Class::ExitCode && finding.exception.is_none();
    is_silent && record.is_some_and(|record| record.mpi == MpiLife::Inited)
}

/// Whether a rank exited with the code of another's `MPI_Abort`: libraries end the members of a communicator so, and on an
/// intercommunicator nobody but them.
fn has_code_of(gang: &Gang, finding: &Finding, abort: &Finding) -> bool {
    let status = gang.ranks().get(finding.rank).and_then(|record| record.status);
    status == Some(WorkerStatus::Exited { code: abort.code.0 })
}
