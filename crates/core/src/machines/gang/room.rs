//! What is kept of the evidence, so that no rank can make us hold whatever it likes.

use std::collections::VecDeque;

use super::{Effect, Gang, LeftOut, Moment};
use crate::evidence::{Evidence, Fact, shorten};
use crate::ids::Rank;

/// Notes that are kept of each rank: the last ones.
const NOTES_KEPT: usize = 10;
/// Calls that are kept of those of each rank that are not offered.
pub(super) const CALLS_KEPT: usize = 8;
/// The call whose refusal may end the job, and the frames of mpi4py that make it.
const SPAWN: &str = "MPI_Comm_spawn";
const SPAWNS: [&str; 2] = ["Intracomm.Spawn\n", "Intracomm.Spawn_multiple\n"];
/// Bytes of the name of such a call.
const CALL_KEPT: usize = 256;
/// Testimonies that are kept of each rank, besides what it says in passing.
pub(super) const WORDS_KEPT: u32 = 32;
/// Bytes of text of all ranks that are kept in full. Later texts are shortened.
pub(super) const BYTES_KEPT: usize = 2 << 20;
/// After this many bytes of text, more testimony of a rank that already has some is dropped.
pub(super) const BYTES_MOST: usize = 4 << 20;

/// What a rank says that is no failure of it. It is kept apart from the evidence: a program may say it often, and its notes
/// must push out nothing else.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Passing {
    notes: VecDeque<Evidence>,
    /// Exceptions that ended a thread, or nothing: the first, and the last.
    first_aside: Option<Box<Evidence>>,
    last_aside: Option<Box<Evidence>>,
}

impl Passing {
    /// The last notes, the oldest first.
    pub fn notes(&self) -> impl DoubleEndedIterator<Item = &Evidence> {
        self.notes.iter()
    }

    fn into_evidence(self) -> impl Iterator<Item = Evidence> {
        let asides = self.first_aside.into_iter().chain(self.last_aside);
        self.notes.into_iter().chain(asides.map(|aside| *aside))
    }

    pub fn asides(&self) -> impl Iterator<Item = &Evidence> {
        self.first_aside.as_deref().into_iter().chain(self.last_aside.as_deref())
    }
}

impl Gang {
    /// Observations that are not evidence.
    pub fn left_out(&self) -> LeftOut {
        self.left_out
    }

    /// The evidence, with what the ranks said in passing where that belongs by its time.
    pub fn all_evidence(&self) -> Vec<Evidence> {
        let mut passing: Vec<&Evidence> =
            self.ranks.iter().flat_map(|record| record.passing.asides().chain(record.passing.notes())).collect();
        passing.sort_by_key(|evidence| evidence.at);
        let mut passing = passing.into_iter().peekable();
        let mut all = Vec::new();
        for evidence in &self.evidence {
            while let Some(before) = passing.next_if(|it| it.at <= evidence.at) {
                all.push(before.clone());
            }
            all.push(evidence.clone());
        }
        all.extend(passing.cloned());
        all
    }

    /// A rank that had ended is started again: what it did before counts no more.
    pub(super) fn again(&mut self, rank: Rank) {
        if let Some(record) = self.ranks.get_mut(rank.index()) {
            self.unstarted += usize::from(record.pid.is_some());
            let before = std::mem::take(record);
            let (dropped, kept) = std::mem::take(&mut self.evidence).into_iter().partition(|it| it.rank == rank);
            self.evidence = kept;
            let dropped: Vec<Evidence> = dropped;
            let bytes = |mut evidence: Evidence| evidence.fact.size();
            let freed: usize = dropped.into_iter().chain(before.passing.into_evidence()).map(bytes).sum();
            self.bytes = self.bytes.saturating_sub(freed);
            self.words[rank.index()] = 0;
            self.to_judge.values_mut().for_each(|ranks| ranks.retain(|judged| *judged != rank));
        }
    }

    /// Keeps what a rank says in passing. It decides nothing.
    pub(super) fn say_in_passing(&mut self, mut evidence: Evidence) {
        let Some(record) = self.ranks.get_mut(evidence.rank.index()) else { return };
        self.left_out.bytes += evidence.fact.shorten(self.bytes >= BYTES_KEPT) as u64;
        self.bytes += evidence.fact.size();
        let passing = &mut record.passing;
        if matches!(evidence.fact, Fact::Note { .. }) {
            passing.notes.push_back(evidence);
            while passing.notes.len() > NOTES_KEPT || (passing.notes.len() > 1 && self.bytes >= BYTES_MOST) {
                let size = passing.notes.pop_front().map_or(0, |mut old| old.fact.size());
                self.bytes = self.bytes.saturating_sub(size);
            }
        } else if passing.first_aside.is_none() {
            passing.first_aside = Some(Box::new(evidence));
        } else if let Some(mut old) = passing.last_aside.replace(Box::new(evidence)) {
            self.bytes = self.bytes.saturating_sub(old.fact.size());
            self.left_out.facts += 1;
        }
    }

    /// A call that is not offered is kept once for each rank: a program may try again and again.
    pub(super) fn refused(&mut self, moment: Moment, rank: Rank, mut call: String, detail: Option<String>) {
        let Some(record) = self.ranks.get_mut(rank.index()) else { return };
        let cut = shorten(&mut call, CALL_KEPT) as u64;
        if record.refused.contains(&call) {
            return;
        }
        if record.refused.len() >= CALLS_KEPT {
            self.left_out.facts += 1;
            return;
        }
        record.refused.push(call.clone());
        self.left_out.bytes += cut;
        let pid = record.pid;
        self.record(Evidence { rank, at: moment.at, pid, fact: Fact::Refused { call, detail, ended: false } });
    }

    /// The error of a refused `MPI_Comm_spawn` has ended the thread that called it, and no other: the program waits for workers
    /// that will never come, as `MPIPoolExecutor` does.
    pub(super) fn judge_refusal(&mut self, moment: Moment, rank: Rank, aside: &Fact, effects: &mut Vec<Effect>) {
        let Fact::Aside { exception, .. } = aside else { return };
        let asks =
            exception.kind.starts_with("mpi4py.") && SPAWNS.iter().any(|name| exception.traceback.contains(name));
        let of_rank = || self.evidence.iter().filter(|it| it.rank == rank).map(|it| &it.fact);
        let refused = of_rank().find_map(|fact| match fact {
            Fact::Refused { call, detail, ended: false } if call == SPAWN => Some(detail.clone()),
            _ => None,
        });
        let is_told = of_rank().any(|fact| matches!(fact, Fact::Refused { ended: true, .. }));
        if let Some(detail) = refused.filter(|_| asks && !is_told) {
            self.fact(moment, rank, Fact::Refused { call: SPAWN.to_owned(), detail, ended: true }, effects);
        }
    }

    pub(super) fn take_out(&mut self, at: usize) {
        let mut evidence = self.evidence.remove(at);
        self.bytes = self.bytes.saturating_sub(evidence.fact.size());
        if evidence.fact.is_word()
            && let Some(words) = self.words.get_mut(evidence.rank.index())
        {
            *words = words.saturating_sub(1);
        }
    }

    /// Adds a fact to the evidence, as far as there is room.
    pub(super) fn record(&mut self, mut evidence: Evidence) {
        let rank = evidence.rank;
        let said = self.words.get(rank.index()).copied().unwrap_or_default();
        self.left_out.bytes += evidence.fact.shorten(self.bytes >= BYTES_KEPT) as u64;
        if evidence.fact.is_word() && (said >= WORDS_KEPT || (said > 0 && self.bytes >= BYTES_MOST)) {
            self.left_out.facts += 1;
            // The leader's testimony, and what was read at the end, count more than the last testimony of its children.
            let leader = self.ranks.get(rank.index()).and_then(|record| record.pid);
            let is_child = |known: &Evidence| known.rank == rank && known.fact.is_word() && known.pid != leader;
            let newest = self.evidence.iter().rposition(is_child).filter(|_| evidence.pid == leader);
            let Some(newest) = newest else { return };
            self.take_out(newest);
        }
        self.bytes += evidence.fact.size();
        if evidence.fact.is_word()
            && let Some(words) = self.words.get_mut(rank.index())
        {
            *words += 1;
        }
        self.evidence.push(evidence);
    }
}
