//! Ranks that run MPI without being connected: when to look for them, and what is printed of them.

use std::time::Duration;

use super::event::Order;
use super::settings::Settings;
use super::{Job, MpiMode};
use crate::alone::{PATIENCE, Sight, Sights};
use crate::gang::{self, MpiLife};
use crate::ids::{Rank, WorkerId};

/// Times after the start of an attempt, in milliseconds: early for short jobs, and again for programs that call `MPI_Init` late.
/// The distances double from the last one on.
const LOOKS: [u64; 11] = [100, 200, 400, 800, 1_600, 3_000, 6_000, 8_000, 16_000, 32_000, 64_000];
/// The times for programs that are known to call `MPI_Init`: a rank that is alone may be over after 20 ms. In a healthy job the
/// first rank connects after 10 to 20 ms, and ends the looks. From the last one on each is later by a factor, so that one is close
/// to the end of a rank, however long that has lived.
const EARLY: [u64; 12] = [4, 8, 12, 16, 20, 25, 30, 40, 50, 60, 70, 85];
const FACTOR: f64 = 1.15;
/// Of those, one in so many is at all processes of all ranks: their times double.
const BRIEF: usize = 5;
/// How long the ranks that are alone are waited for, when two of them are known, and how long they have until `--strict` ends them.
const OTHERS: Duration = Duration::from_secs(1);
/// The shortest time between two looks for the ends of ranks.
const BETWEEN: Duration = Duration::from_millis(100);

/// What is known of the MPI libraries of the ranks, and when to look next.
#[derive(Debug)]
pub(super) struct MpiWatch {
    began: Duration,
    /// Whether a program of the job is known to call `MPI_Init`.
    is_expected: bool,
    /// The number of the next timed look; `None` if no more looks are needed.
    next: Option<usize>,
    /// A look at ranks that were first seen in `MPI_Init`, when they have had the time to connect.
    again: Option<Duration>,
    last: Option<Duration>,
    /// When ranks were first found to be alone.
    found: Option<Duration>,
    /// When the others have had their time.
    judge: Option<Duration>,
    sights: Sights,
}

impl MpiWatch {
    /// For an attempt that begins at `began`. A job of one rank is not looked at.
    pub(super) fn new(began: Duration, settings: &Settings, world_size: u32) -> MpiWatch {
        MpiWatch {
            began,
            is_expected: settings.mpi_libraries.iter().any(Option::is_some),
            again: None,
            next: (world_size > 1).then_some(0),
            last: None,
            found: None,
            judge: None,
            sights: Sights::default(),
        }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        let look = self.next_look()?;
        Some(self.judge.map_or(look, |judge| judge.min(look)))
    }

    /// A rank is started again.
    pub(super) fn forget(&mut self, rank: Rank) {
        self.sights.forget(rank);
    }

    fn next_look(&self) -> Option<Duration> {
        let timed = self.began + look_at(self.next?, self.is_expected);
        Some(self.again.map_or(timed, |again| again.min(timed)))
    }

    /// The look that has become due: whether it is brief, at a few processes only.
    fn due_look(&mut self, now: Duration) -> Option<bool> {
        let mut due = None;
        while let Some(at) = self.next_look().filter(|at| *at <= now) {
            let is_brief = match self.again {
                // At all that were seen: behind a shell these are no leaders.
                Some(again) if again == at => {
                    self.again = None;
                    false
                }
                _ => {
                    let number = self.next.unwrap_or_default();
                    self.next = Some(number + 1);
                    self.is_expected && (number < EARLY.len() || !number.is_multiple_of(BRIEF))
                }
            };
            due = Some(due.unwrap_or(true) && is_brief);
        }
        due
    }

    /// Whether the others have had their time, since ranks were found to be alone.
    fn must_judge(&mut self, now: Duration) -> bool {
        self.judge.take_if(|judge| *judge <= now).is_some()
    }
}

/// When a timed look is due, after the start of the attempt.
fn look_at(number: usize, is_expected: bool) -> Duration {
    if is_expected {
        let last = Duration::from_millis(EARLY[EARLY.len() - 1]);
        let later = i32::try_from(number + 1 - EARLY.len().min(number + 1)).unwrap_or(i32::MAX);
        let at = || last.mul_f64(FACTOR.powi(later.min(150)));
        return EARLY.get(number).map_or_else(at, |at| Duration::from_millis(*at));
    }
    let last = LOOKS[LOOKS.len() - 1];
    let at = LOOKS.get(number).copied().unwrap_or_else(|| last << (number + 1 - LOOKS.len()).min(32));
    Duration::from_millis(at)
}

impl Job {
    /// Asks the agents which ranks have MPI libraries, when it is time, until one has connected. They answer if there are any.
    pub(super) fn look_for_mpi(&mut self) {
        let now = self.now;
        if self.mpi_watch.must_judge(now) {
            self.judge_alone(false);
        }
        let Some(is_brief) = self.mpi_watch.due_look(now) else { return };
        if self.gang.ranks().iter().all(|record| record.pid.is_none()) {
            // The nodes are still awaited: the times count from the start of the ranks.
            (self.mpi_watch.began, self.mpi_watch.next) = (now, Some(0));
        } else {
            self.ask_for_mpi(is_brief);
        }
    }

    fn ask_for_mpi(&mut self, is_brief: bool) {
        let is_over = self.gang.stop_ordered().is_some();
        if is_over || self.gang.ranks().iter().any(|record| record.mpi != MpiLife::NotInited) {
            self.mpi_watch.next = None;
        } else {
            self.mpi_watch.last = Some(self.now);
            self.send(Order::LookForMpi { is_brief });
        }
    }

    /// The answer of an agent.
    pub(super) fn mpi_seen(&mut self, found: Vec<(WorkerId, Sight)>) {
        let now = self.now;
        for (worker, sight) in found {
            // Not of an attempt that is over.
            if worker.attempt >= self.spec.attempt {
                let is_new = self.mpi_watch.sights.see(now, worker.rank, sight);
                if is_new {
                    self.mpi_watch.again = Some(now + PATIENCE);
                }
            }
        }
        self.judge_alone(false);
    }

    /// Something new is known of the ranks; `has_ended`: one has ended, and others may follow it soon.
    pub(super) fn judge_alone(&mut self, has_ended: bool) {
        if self.mpi_watch.next.is_none() || self.gang.stop_ordered().is_some() {
            return;
        }
        let now = self.now;
        if has_ended && self.mpi_watch.last.is_none_or(|last| now >= last + BETWEEN) {
            self.ask_for_mpi(false);
        }
        let is_offered = self.spec.mpi != MpiMode::None;
        let (map, libraries) = (&self.spec.map, &self.settings.mpi_libraries);
        let library = |rank| libraries.get(map.place(rank)?.app.0 as usize)?.as_deref();
        let alone = self.mpi_watch.sights.alone(&self.gang, is_offered, library);
        if alone.is_empty() {
            return;
        }
        // The others may be a little later. What `MPI_Init` makes in /dev/shm would be left by a rank that is ended in it.
        let since = *self.mpi_watch.found.get_or_insert(now);
        let records = self.gang.ranks();
        let ranks = alone.iter().filter_map(|group| group.ranks.count()).sum::<usize>();
        let is_complete = match self.settings.strict {
            true => records.iter().all(|record| record.status.is_some()),
            false => has_ended || ranks == records.len(),
        };
        if !is_complete && now < since + OTHERS {
            self.mpi_watch.judge = Some(since + OTHERS);
            return;
        }
        self.mpi_watch.next = None;
        for group in &alone {
            self.note(group.to_string());
        }
        let mut advice: Vec<&str> = alone.iter().filter_map(|group| group.cause.advice()).collect();
        advice.dedup();
        for advice in advice {
            self.note(format!("hint: {advice}"));
        }
        let end = self.settings.strict;
        self.event(gang::Event::Alone { alone, end });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(is_expected: bool) -> MpiWatch {
        let began = Duration::ZERO;
        let (next, sights) = (Some(0), Sights::default());
        MpiWatch { began, is_expected, next, again: None, last: None, found: None, judge: None, sights }
    }

    #[test]
    fn ranks_that_are_alone_are_judged_when_the_others_have_had_their_time_and_not_at_the_next_look() {
        let at = Duration::from_secs;
        let mut watch = watch(false);
        while watch.due_look(at(21)).is_some() {}
        assert_eq!(watch.deadline(), Some(at(32)));
        watch.judge = Some(at(22));
        assert_eq!((watch.deadline(), watch.must_judge(at(21))), (Some(at(22)), false));
        assert_eq!((watch.must_judge(at(22)), watch.due_look(at(22)), watch.deadline()), (true, None, Some(at(32))));
    }

    #[test]
    fn the_second_look_at_what_was_seen_is_at_all_processes() {
        let mut watch = watch(true);
        assert_eq!(watch.due_look(Duration::from_millis(4)), Some(true));
        watch.again = Some(Duration::from_millis(6));
        assert_eq!(watch.due_look(Duration::from_millis(6)), Some(false));
        assert_eq!(watch.due_look(Duration::from_millis(8)), Some(true));
    }

    #[test]
    fn looks_go_on_with_doubling_distance() {
        let at = |number| look_at(number, false).as_millis();
        assert_eq!([0, 10, 11, 12, 15].map(at), [100, 64_000, 128_000, 256_000, 2_048_000]);
        let at = |number| look_at(number, true).as_millis();
        assert_eq!([0, 11, 12, 16, 17].map(at), [4, 85, 97, 170, 196]);
        // Later than any job is long.
        assert!(
            look_at(1000, false) > Duration::from_secs(1 << 30) && look_at(1000, true) > Duration::from_secs(1 << 25)
        );
    }
}
