//! When to look for ranks that run MPI without being connected, and what the looks have shown.

use std::time::Duration;

use crate::alone::{PATIENCE, Sight};
use crate::ids::Rank;
use crate::job::settings::Settings;
use crate::sights::Sights;

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
pub(in crate::job) struct MpiWatch {
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
    pub(in crate::job) fn new(began: Duration, settings: &Settings, world_size: u32) -> MpiWatch {
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

    pub(in crate::job) fn deadline(&self) -> Option<Duration> {
        let look = self.next_look()?;
        Some(self.judge.map_or(look, |judge| judge.min(look)))
    }

    /// A rank is started again.
    pub(in crate::job) fn forget(&mut self, rank: Rank) {
        self.sights.forget(rank);
    }

    fn next_look(&self) -> Option<Duration> {
        let timed = self.began + look_at(self.next?, self.is_expected);
        Some(self.again.map_or(timed, |again| again.min(timed)))
    }

    /// The look that has become due: whether it is brief, at a few processes only.
    pub(in crate::job) fn due_look(&mut self, now: Duration) -> Option<bool> {
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
    pub(in crate::job) fn must_judge(&mut self, now: Duration) -> bool {
        self.judge.take_if(|judge| *judge <= now).is_some()
    }

    /// Whether no more looks are needed.
    pub(in crate::job) fn is_over(&self) -> bool {
        self.next.is_none()
    }

    pub(in crate::job) fn end(&mut self) {
        self.next = None;
    }

    /// No rank has been started: the times count from now on.
    pub(in crate::job) fn restart(&mut self, now: Duration) {
        (self.began, self.next) = (now, Some(0));
    }

    /// The agents are asked.
    pub(in crate::job) fn asked(&mut self, now: Duration) {
        self.last = Some(now);
    }

    /// Whether the agents may be asked for the end of a rank.
    pub(in crate::job) fn may_ask(&self, now: Duration) -> bool {
        self.last.is_none_or(|last| now >= last + BETWEEN)
    }

    /// What a look has shown of a rank.
    pub(in crate::job) fn see(&mut self, now: Duration, rank: Rank, sight: Sight) {
        if self.sights.see(now, rank, sight) {
            self.again = Some(now + PATIENCE);
        }
    }

    pub(in crate::job) fn sights(&self) -> &Sights {
        &self.sights
    }

    /// Ranks are alone. Whether the others have their time, from the first time on; else it is judged again then.
    pub(in crate::job) fn awaits_others(&mut self, now: Duration) -> bool {
        let since = *self.found.get_or_insert(now);
        let awaits = now < since + OTHERS;
        if awaits {
            self.judge = Some(since + OTHERS);
        }
        awaits
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
