//! Decides how long an answer of a process is waited for: by the time in which that process could have worked, never by the clock alone.
//!
//! On a busy machine a process may get no CPU for a minute. The time that it has waited for one does not count. All other time does: that in
//! which it does nothing, and that in which it works at something else, or in an endless loop.

use std::time::Duration;

use crate::lease::{TICK, Vitals};

/// Looks at a process once a tick (a second). Ticks are counted, not time: a machine that slept ends nothing.
#[derive(Clone, Copy, Debug)]
struct Looks {
    next: Duration,
    last: Option<Vitals>,
}

impl Looks {
    fn new(now: Duration) -> Looks {
        Looks { next: now + TICK, last: None }
    }

    /// If it is time: what the kernel knew of the process a tick ago, and now, where it knew something both times.
    fn look(&mut self, now: Duration, look: impl FnOnce() -> Option<Vitals>) -> Option<Option<(Vitals, Vitals)>> {
        if now < self.next {
            return None;
        }
        self.next = now + TICK;
        let vitals = look();
        let both = self.last.zip(vitals);
        self.last = vitals;
        Some(both)
    }
}

/// A wait for one answer.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How long it may still work.
    left: Duration,
    looks: Looks,
}

impl Patience {
    /// The question is asked at `now`, and the process may work for so long until it answers.
    pub fn new(now: Duration, bound: Duration) -> Patience {
        Patience { left: bound, looks: Looks::new(now) }
    }

    /// When [`Patience::tick`] is due.
    pub fn due(&self) -> Duration {
        self.looks.next
    }

    /// Whether it is over. `look`: the kernel's data about the process, the times of its threads together; `None`, as of a process that is not
    /// there, counts as doing nothing.
    pub fn tick(&mut self, now: Duration, look: impl FnOnce() -> Option<Vitals>) -> bool {
        let Some(both) = self.looks.look(now, look) else { return false };
        let starved = both.map_or(Duration::ZERO, |(before, vitals)| {
            let delayed = vitals.delayed.saturating_sub(before.delayed);
            let ran = vitals.ran.saturating_sub(before.ran);
            // The kernel counts a delay when it is over. Who is runnable and has not run waits for a CPU.
            let waits = if vitals.state == b'R' { TICK.saturating_sub(ran) } else { Duration::ZERO };
            delayed + waits
        });
        self.left = self.left.saturating_sub(TICK.saturating_sub(starved));
        self.left.is_zero()
    }
}

/// A wait for a process that works as long as it likes, and is given up when it does nothing: it neither uses its CPU, nor waits for one, nor for
/// a file system.
#[derive(Clone, Copy, Debug)]
pub struct Idleness {
    bound: Duration,
    left: Duration,
    looks: Looks,
}

/// Who uses less of a tick than this does nothing: a thread that looks every second whether something has happened.
const NOTHING: Duration = Duration::from_millis(10);

impl Idleness {
    pub fn new(now: Duration, bound: Duration) -> Idleness {
        Idleness { bound, left: bound, looks: Looks::new(now) }
    }

    /// When [`Idleness::tick`] is due.
    pub fn due(&self) -> Duration {
        self.looks.next
    }

    /// Whether it has done nothing for so long. `look` as for [`Patience::tick`].
    pub fn tick(&mut self, now: Duration, look: impl FnOnce() -> Option<Vitals>) -> bool {
        let Some(both) = self.looks.look(now, look) else { return false };
        let works = |(before, vitals): (Vitals, Vitals)| {
            let worked = vitals.ran.saturating_sub(before.ran) + vitals.delayed.saturating_sub(before.delayed);
            matches!(vitals.state, b'R' | b'D') || worked >= NOTHING
        };
        let is_at_work = both.is_some_and(works);
        self.left = if is_at_work { self.bound } else { self.left.saturating_sub(TICK) };
        self.left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_secs(30);

    /// After how many ticks it is over, for a process whose state, run time and delay after so many ticks are these.
    fn over(vitals: impl Fn(u64) -> Option<(u8, u64, u64)>) -> Option<u64> {
        let ms = Duration::from_millis;
        let mut patience = Patience::new(Duration::ZERO, BOUND);
        (1..=1000).find(|at| {
            let look = || vitals(*at).map(|(state, ran, delayed)| Vitals { state, ran: ms(ran), delayed: ms(delayed) });
            assert!(!patience.tick(ms(at * 1000 - 1), || panic!("it is not due")));
            patience.tick(ms(at * 1000), look)
        })
    }

    #[test]
    fn who_does_nothing_or_is_not_there_has_the_time_of_the_clock() {
        assert_eq!(over(|_| Some((b'S', 5, 7))), Some(30));
        assert_eq!(over(|_| Some((b't', 5, 7))), Some(30));
        assert_eq!(over(|_| None), Some(30));
    }

    /// After how many ticks it has been idle for the bound.
    fn idle(vitals: impl Fn(u64) -> Option<(u8, u64, u64)>) -> Option<u64> {
        let ms = Duration::from_millis;
        let mut idleness = Idleness::new(Duration::ZERO, BOUND);
        (1..=1000).find(|at| {
            let look = || vitals(*at).map(|(state, ran, delayed)| Vitals { state, ran: ms(ran), delayed: ms(delayed) });
            assert_eq!(idleness.due(), ms(at * 1000));
            assert!(!idleness.tick(ms(at * 1000 - 1), || panic!("it is not due")));
            idleness.tick(ms(at * 1000), look)
        })
    }

    #[test]
    fn who_works_is_waited_for_and_who_does_nothing_is_not() {
        assert_eq!(idle(|_| Some((b'S', 5, 7))), Some(30));
        assert_eq!(idle(|_| None), Some(30));
        assert_eq!(idle(|at| Some((b'S', at, 0))), Some(30), "it looks now and then whether something has happened");
        assert_eq!(idle(|at| Some((b'S', 20 * at, 0))), None);
        assert_eq!(idle(|at| Some((b'S', 0, 20 * at))), None, "it lacks a CPU");
        assert_eq!(idle(|_| Some((b'D', 5, 7))), None, "it waits for a file system");
        assert_eq!(idle(|at| Some((b'S', 20 * at.min(100), 0))), Some(130));
    }

    #[test]
    fn who_only_lacks_a_cpu_is_waited_for() {
        assert_eq!(over(|at| Some((b'S', 5, 1000 * at))), None);
        // The delay is counted when it is over, after 100 s.
        assert_eq!(over(|at| Some((b'R', 5, 100_000 * (at / 100)))), None);
        // It gets a tenth of a CPU.
        assert_eq!(over(|at| Some((b'R', 100 * at, 900 * at))), None);
    }

    #[test]
    fn who_runs_and_does_not_answer_is_not() {
        assert_eq!(over(|at| Some((b'R', 1000 * at, 0))), Some(30));
        // Half a CPU.
        assert_eq!(over(|at| Some((b'S', 500 * at, 500 * at))), Some(59));
        // One thread hangs, and another one has something to do now and then.
        assert_eq!(over(|at| Some((b'S', at / 20, 0))), Some(30));
    }
}
