//! The proof that a rank has failed which is silent after a traceback, and whose Python has no hook that could tell.
//!
//! Its interpreter is gone, its main thread is on its way out of the process, and waits in `MPI_Finalize` for the other ranks. That
//! alone is no failure: a worker that has logged an exception, and has nothing left to do, waits there too until the others have
//! done their work. So the others are looked into. While one of them may still do something, nothing is proved. If all of them wait
//! for each other or for this rank, at the same places at [`LOOKS`] looks, without a sign of life in between, nobody goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::calls::{Wait, is_leaving, place_of};
use super::fold::Seen;
use super::print::{Print, prints};
use super::{Interpreter, ProcessStack};
use crate::ids::Rank;

/// How often all ranks must be seen to wait.
const LOOKS: u32 = 3;

/// What one look into a rank says that is silent after a traceback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It runs something: it has survived the traceback, or is on its way out.
    GoesOn,
    /// It has nothing left to do, and waits for the other ranks.
    IsAtItsEnd,
    Unknown,
}

impl Standing {
    pub fn of(process: &ProcessStack) -> Standing {
        match (&process.interpreter, place_of(process).map(|place| place.wait)) {
            (Interpreter::Running { .. }, _) => Standing::GoesOn,
            (Interpreter::Gone, Some(Wait::Finalize)) if is_leaving(process) => Standing::IsAtItsEnd,
            // A program that has used Python, and goes on without it.
            (Interpreter::Gone, Some(_)) if has_native_frames(process) && !is_leaving(process) => Standing::GoesOn,
            (Interpreter::Gone | Interpreter::None | Interpreter::Unknown { .. }, _) => Standing::Unknown,
        }
    }
}

fn has_native_frames(process: &ProcessStack) -> bool {
    process.threads.iter().any(|thread| thread.is_main && thread.frames.len() > 1)
}

/// What is known of a rank that [`Standing::IsAtItsEnd`] after another look into all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finding {
    /// Other ranks may go on, and end its wait.
    OthersGoOn,
    /// All wait. Another look is needed.
    Again,
    /// All wait, and have waited at all looks.
    HasFailed,
}

/// The looks that have shown that all wait.
#[derive(Clone, Debug, Default)]
pub struct Proof {
    began: Duration,
    looks: u32,
    first: BTreeMap<Rank, Print>,
}

impl Proof {
    /// All ranks were looked into. `living`: those that have not ended; `last_sign`: when one last gave a sign of life.
    pub fn look(
        &mut self,
        now: Duration,
        living: &BTreeSet<Rank>,
        seen: &[Seen],
        last_sign: Option<Duration>,
    ) -> Finding {
        let waits = |seen: &&Seen| place_of(&seen.stack).map(|place| place.wait).filter(Wait::is_for_others);
        let waiting: BTreeMap<Rank, Wait> =
            seen.iter().filter_map(|seen| waits(&seen).map(|wait| (seen.rank, wait))).collect();
        let all_wait = living.iter().all(|rank| waiting.contains_key(rank));
        // Where all are in MPI_Finalize, it is about to return.
        let are_all_at_the_end = living.iter().all(|rank| waiting.get(rank) == Some(&Wait::Finalize));
        if !all_wait || are_all_at_the_end {
            *self = Proof::default();
            return Finding::OthersGoOn;
        }
        let present = prints(seen);
        let is_same = |rank: &Rank| {
            let place = |prints: &BTreeMap<Rank, Print>| prints.get(rank).and_then(|print| print.place);
            place(&present).is_some() && place(&present) == place(&self.first)
        };
        let has_signed = last_sign.is_some_and(|at| at > self.began);
        if self.looks == 0 || has_signed || !living.iter().all(is_same) {
            *self = Proof { began: now, looks: 1, first: present };
            return Finding::Again;
        }
        self.looks += 1;
        if self.looks < LOOKS { Finding::Again } else { Finding::HasFailed }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::rank;
    use super::*;
    use crate::stacks::ThreadState::{Running, Sleeping};

    const LEAVES: &str = "PMPI_Finalize@libmpi.so.12 < Py_FinalizeEx < Py_RunMain < main";
    const BARRIER: &str = "PMPI_Barrier@libmpi.so.12 < main a.c:9";
    const STEP: &str = "clock_nanosleep@libc.so.6 < step a.c:9 < main a.c:4";

    fn gone(number: u32, text: &str) -> Seen {
        let mut seen = rank(number, Running, text);
        seen.stack.interpreter = Interpreter::Gone;
        seen
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// What comes of looks at 0 ms, 100 ms, and so on.
    fn looks(all: &[[Seen; 3]], last_sign: u64) -> Vec<Finding> {
        let living = (0..3).map(Rank).collect();
        let mut proof = Proof::default();
        let times = (0..).step_by(100).map(ms);
        all.iter()
            .zip(times)
            .map(|(seen, now)| proof.look(now, &living, seen, Some(ms(last_sign)).filter(|at| *at <= now)))
            .collect()
    }

    fn waiting() -> [Seen; 3] {
        [gone(0, LEAVES), rank(1, Running, BARRIER), rank(2, Running, BARRIER)]
    }

    #[test]
    fn a_rank_without_an_interpreter_is_at_its_end_only_in_mpi_finalize_on_its_way_out() {
        let of = |text| Standing::of(&gone(0, text).stack);
        assert_eq!(of(LEAVES), Standing::IsAtItsEnd);
        assert_eq!(of("PMPI_Finalize@libmpi.so.12 < __run_exit_handlers < exit"), Standing::IsAtItsEnd);
        assert_eq!(of("PMPI_Finalize@libmpi.so.12 < finish a.c:8 < main a.c:2"), Standing::GoesOn);
        assert_eq!(of("step a.c:3 < main a.c:2"), Standing::GoesOn);
        assert_eq!(of("sleep@libc.so.6 < Py_FinalizeEx < Py_RunMain < main"), Standing::Unknown);
        assert_eq!(of(""), Standing::Unknown);
        assert_eq!(Standing::of(&rank(0, Running, "step a.py:3").stack), Standing::GoesOn);
        assert_eq!(Standing::of(&rank(0, Running, LEAVES).stack), Standing::Unknown);
    }

    #[test]
    fn a_rank_at_its_end_has_failed_where_all_others_wait_at_all_looks() {
        let all = [waiting(), waiting(), waiting()];
        assert_eq!(looks(&all, 0), [Finding::Again, Finding::Again, Finding::HasFailed]);
    }

    #[test]
    fn a_rank_at_its_end_has_not_failed_while_another_does_something() {
        let mut working = waiting();
        working[2] = rank(2, Sleeping, STEP);
        let mut unseen = waiting();
        unseen[2] = rank(2, Running, "");
        let mut missing = waiting();
        missing[2].rank = Rank(7);
        let all_at_the_end =
            [gone(0, LEAVES), gone(1, LEAVES), rank(2, Running, "PMPI_Finalize@libmpi.so.12 < main a.c:9")];
        for other in [working, unseen, missing, all_at_the_end] {
            let all = [waiting(), waiting(), other, waiting()];
            assert_eq!(looks(&all, 0), [Finding::Again, Finding::Again, Finding::OthersGoOn, Finding::Again]);
        }
    }

    #[test]
    fn a_sign_of_life_or_another_place_makes_the_looks_begin_anew() {
        let all = [waiting(), waiting(), waiting(), waiting()];
        assert_eq!(looks(&all, 150), [Finding::Again, Finding::Again, Finding::Again, Finding::Again]);
        let mut moved = waiting();
        moved[1] = rank(1, Running, "PMPI_Barrier@libmpi.so.12 < main a.c:12");
        let all = [waiting(), moved.clone(), moved.clone(), moved];
        assert_eq!(looks(&all, 0), [Finding::Again, Finding::Again, Finding::Again, Finding::HasFailed]);
    }
}
