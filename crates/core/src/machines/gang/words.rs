//! What the processes of a rank say, and the last lines of its output, as evidence.

use std::time::Duration;

use super::event::Effect;
use super::record::{MpiLife, RankRecord};
use super::room::BYTES_KEPT;
use super::state::Gang;
use crate::evidence::{Evidence, Fact, Source};
use crate::ids::{Pid, Rank};
use crate::node_clock::Moment;
use crate::status::WorkerStatus;
use crate::stderr::Words;
use crate::testimony::{Exception, Testimony};

/// The call whose failure may end the job, and the frames of mpi4py that make it.
pub(crate) const SPAWN: &str = "MPI_Comm_spawn";
const SPAWNS: [&str; 2] = ["Intracomm.Spawn\n", "Intracomm.Spawn_multiple\n"];

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
    /// end its members. It was before its own end, before that of the first rank that it ended,
    /// and before an abort that it reported, as the first banner counts.
    fn aborted_in_words(&mut self, rank: Rank, code: i32) {
        let is_known =
            |known: &Evidence| known.rank == rank && matches!(known.fact, Fact::Aborted { code: of, .. } if of == code);
        // `MPI_Abort` of Intel MPI may return, and the rank go on to `MPI_Finalize`, or to an abort that it reports.
        let in_mpi = |record: &&RankRecord| record.mpi != MpiLife::NotInited;
        let Some(record) = self.ranks.get(rank).filter(in_mpi) else { return };
        if self.evidence.iter().any(is_known) {
            return;
        }
        let taken_along = Fact::Ended { status: WorkerStatus::Exited { code: (code & 0xff) as u8 } };
        let is_later =
            |it: &&Evidence| it.fact == taken_along || it.rank == rank && matches!(it.fact, Fact::Aborted { .. });
        let later = self.evidence.iter().filter(is_later).map(|it| it.at);
        let Some(at) = later.chain(record.ended_at).min() else { return };
        let at = at.saturating_sub(Duration::from_nanos(1)); // Before whatever it led to.
        let pid = record.pid;
        self.record(Evidence { rank, at, pid, fact: Fact::Aborted { code, message: None } });
    }

    pub(super) fn testimony(
        &mut self,
        moment: Moment,
        rank: Rank,
        pid: Pid,
        testimony: Testimony,
        effects: &mut Vec<Effect>,
    ) {
        if testimony == (Testimony::Exiting { code: 0 }) {
            // The program's own hook has handled the exception: it is not a cause.
            let is_retracted = |evidence: &Evidence| {
                evidence.pid == Some(pid)
                    && evidence.rank == rank
                    && matches!(evidence.fact, Fact::Exception { source: Source::Program, .. })
            };
            while let Some(at) = self.evidence.iter().position(is_retracted) {
                self.take_out(at);
            }
            return;
        }
        if let Testimony::Uncaught(exception) = &testimony
            && self.completes(rank, pid, exception)
        {
            self.heard_of(moment.now, rank, effects);
            return;
        }
        let fact = match testimony {
            Testimony::Uncaught(exception) => Fact::Exception { source: Source::Program, exception },
            Testimony::ErrorFile(exception) => Fact::Exception { source: Source::ErrorFile, exception },
            Testimony::Exiting { code } | Testimony::Leaving { code } => Fact::Exiting { code },
            Testimony::Aside { place, exception } => Fact::Aside { place, exception },
            Testimony::Abort { code, message } => Fact::Aborted { code, message },
            Testimony::Note { text } => Fact::Note { text },
            // They matter to what follows a failure only.
            Testimony::Progress | Testimony::Ready => return,
        };
        if matches!(fact, Fact::Note { .. } | Fact::Aside { .. }) {
            self.judge_refusal(moment, rank, &fact, effects);
            self.say_in_passing(Evidence { rank, at: moment.at, pid: Some(pid), fact });
            return;
        }
        self.fact_of(moment, rank, Some(pid), fact, effects);
    }

    /// The error of a refused `MPI_Comm_spawn` has ended the thread that called it, and no other: the program waits for workers
    /// that will never come, as `MPIPoolExecutor` does.
    fn judge_refusal(&mut self, moment: Moment, rank: Rank, aside: &Fact, effects: &mut Vec<Effect>) {
        let Fact::Aside { exception, .. } = aside else { return };
        let asks =
            exception.kind.starts_with("mpi4py.") && SPAWNS.iter().any(|name| exception.traceback.contains(name));
        let of_rank = || self.evidence.iter().filter(|it| it.rank == rank).map(|it| &it.fact);
        let mut refused = of_rank().filter_map(|fact| match fact {
            Fact::Refused { call, detail, ended: false } if call == SPAWN => Some(detail.clone()),
            _ => None,
        });
        let refused = refused.next_back();
        let is_told = of_rank().any(|fact| matches!(fact, Fact::Refused { ended: true, .. }));
        if let Some(detail) = refused.filter(|_| asks && !is_told) {
            self.fact(moment, rank, Fact::Refused { call: SPAWN.to_owned(), detail, ended: true }, effects);
        }
    }

    /// Whether a report only completes an earlier one of the same process, which had no more than the type of the exception:
    /// then it takes its place.
    fn completes(&mut self, rank: Rank, pid: Pid, exception: &Exception) -> bool {
        if self.ranks.get(rank).is_some_and(|record| record.words == 0) {
            return false;
        }
        let is_first = |it: &&mut Evidence| (it.rank, it.pid) == (rank, Some(pid));
        let Some(evidence) = self.evidence.iter_mut().rfind(is_first) else { return false };
        let Fact::Exception { source: Source::Program, exception: first } = &mut evidence.fact else { return false };
        if first.kind != exception.kind || !first.message.is_empty() || !first.traceback.is_empty() {
            return false;
        }
        *first = exception.clone();
        self.left_out.bytes += evidence.fact.shorten(self.bytes >= BYTES_KEPT) as u64;
        self.bytes += evidence.fact.size();
        true
    }
}
