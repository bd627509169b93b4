//! What is kept of the evidence, so that no rank can make us hold whatever it likes.

use super::record::RankRecord;
use super::state::Gang;
use crate::evidence::{Evidence, Fact, shorten};
use crate::ids::{Rank, WorkerId};
use crate::node_clock::Moment;

/// Notes that are kept of each rank: the last ones.
const NOTES_KEPT: usize = 10;
/// Calls that are kept of those of each rank that could not be done.
pub(super) const CALLS_KEPT: usize = 8;
/// Bytes of the name of such a call.
const CALL_KEPT: usize = 256;
/// Testimonies that are kept of each rank, besides what it says in passing.
pub(super) const WORDS_KEPT: u32 = 32;
/// Bytes of text of all ranks that are kept in full. Later texts are shortened.
pub(super) const BYTES_KEPT: usize = 2 << 20;
/// After this many bytes of text, more testimony of a rank that already has some is dropped.
pub(super) const BYTES_MOST: usize = 4 << 20;

impl Gang {
    /// A rank that had ended is started again: what it did before counts no more.
    pub(super) fn again(&mut self, worker: WorkerId) {
        let rank = worker.rank;
        if let Some(record) = self.ranks.get_mut(rank) {
            self.unstarted += usize::from(record.pid.is_some());
            // It is started where it was.
            let new = RankRecord { cpus: record.cpus.take(), ..RankRecord::new(worker) };
            let before = std::mem::replace(record, new);
            let (dropped, kept) = std::mem::take(&mut self.evidence).into_iter().partition(|it| it.rank == rank);
            self.evidence = kept;
            let dropped: Vec<Evidence> = dropped;
            let bytes = |mut evidence: Evidence| evidence.fact.size();
            let freed: usize = dropped.into_iter().chain(before.passing.into_evidence()).map(bytes).sum();
            self.bytes = self.bytes.saturating_sub(freed);
            self.to_judge.values_mut().for_each(|ranks| ranks.retain(|judged| *judged != rank));
        }
    }

    /// Keeps what a rank says in passing. It decides nothing.
    pub(super) fn say_in_passing(&mut self, mut evidence: Evidence) {
        let Some(record) = self.ranks.get_mut(evidence.rank) else { return };
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

    /// A call that could not be done is kept once for each rank and reason: a program may try again and again.
    pub(super) fn refused(&mut self, moment: Moment, rank: Rank, mut call: String, detail: Option<String>) {
        let Some(record) = self.ranks.get_mut(rank) else { return };
        let cut = shorten(&mut call, CALL_KEPT) as u64;
        let key = format!("{call} {}", detail.as_deref().unwrap_or_default());
        if record.refused.contains(&key) {
            return;
        }
        if record.refused.len() >= CALLS_KEPT {
            self.left_out.facts += 1;
            return;
        }
        record.refused.push(key);
        self.left_out.bytes += cut;
        let pid = record.pid;
        self.record(Evidence { rank, at: moment.at, pid, fact: Fact::Refused { call, detail, ended: false } });
    }

    pub(super) fn take_out(&mut self, at: usize) {
        let mut evidence = self.evidence.remove(at);
        self.bytes = self.bytes.saturating_sub(evidence.fact.size());
        if evidence.fact.is_word()
            && let Some(record) = self.ranks.get_mut(evidence.rank)
        {
            record.words = record.words.saturating_sub(1);
        }
    }

    /// Adds a fact to the evidence, as far as there is room.
    pub(super) fn record(&mut self, mut evidence: Evidence) {
        let rank = evidence.rank;
        let said = self.ranks.get(rank).map(|record| record.words).unwrap_or_default();
        self.left_out.bytes += evidence.fact.shorten(self.bytes >= BYTES_KEPT) as u64;
        if evidence.fact.is_word() && (said >= WORDS_KEPT || (said > 0 && self.bytes >= BYTES_MOST)) {
            self.left_out.facts += 1;
            // The leader's testimony, and what was read at the end, count more than the last testimony of its children.
            let leader = self.ranks.get(rank).and_then(|record| record.pid);
            let is_child = |known: &Evidence| known.rank == rank && known.fact.is_word() && known.pid != leader;
            let newest = self.evidence.iter().rposition(is_child).filter(|_| evidence.pid == leader);
            let Some(newest) = newest else { return };
            self.take_out(newest);
        }
        self.bytes += evidence.fact.size();
        if evidence.fact.is_word()
            && let Some(record) = self.ranks.get_mut(rank)
        {
            record.words += 1;
        }
        self.evidence.push(evidence);
    }
}
