//! What the last lines of a rank's output add to the evidence.

use super::{Effect, Gang, Moment, MpiLife};
use crate::evidence::{Evidence, Fact};
use crate::ids::Rank;
use crate::status::WorkerStatus;
use crate::stderr::Words;

impl Gang {
    pub(super) fn last_words(&mut self, moment: Moment, rank: Rank, words: Words, effects: &mut Vec<Effect>) {
        if let Some((source, exception)) = words.failure {
            self.fact(moment, rank, Fact::Exception { source, exception }, effects);
        }
        if let Some(line) = words.peer_lost {
            self.fact(moment, rank, Fact::PeerLost { line }, effects);
        }
        if let Some(line) = words.last_line {
            self.fact(moment, rank, Fact::LastLine { line }, effects);
        }
        if let Some(code) = words.aborted {
            self.aborted_in_words(rank, code);
        }
    }

    /// A rank that printed the banner of its `MPI_Abort` and did not report it: on an intercommunicator, libraries only
    /// end its members. Its time is its own end, or that of the first rank that it ended.
    fn aborted_in_words(&mut self, rank: Rank, code: i32) {
        let is_known = |known: &Evidence| known.rank == rank && matches!(known.fact, Fact::Aborted { .. });
        let Some(record) = self.ranks.get(rank.index()).filter(|record| record.mpi == MpiLife::Inited) else { return };
        if self.evidence.iter().any(is_known) {
            return;
        }
        let taken_along = WorkerStatus::Exited { code: (code & 0xff) as u8 };
        let others = self.evidence.iter().filter(|it| it.fact == Fact::Ended { status: taken_along }).map(|it| it.at);
        let Some(at) = others.chain(record.ended_at).min() else { return };
        let pid = record.pid;
        self.record(Evidence { rank, at, pid, fact: Fact::Aborted { code, message: None } });
    }
}
