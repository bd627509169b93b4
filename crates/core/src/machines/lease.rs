//! Decides whether to end an agent that does not renew its lease: by its state, never by time alone.
//!
//! On a busy machine an agent may not run for a minute. It still works: it is runnable, or was delayed by others, and renews
//! its lease when it gets a CPU. An agent that is stopped, or that waits for something that never happens, will never renew
//! it. The guard checks its agent once a tick (a second), and this decides.
//!
//! Ticks are counted, not time: a machine that slept, or a frozen container, does not end a job.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long one tick is.
pub const TICK: Duration = Duration::from_secs(1);

/// The kernel's data about the agent's loop (proc(5)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vitals {
    /// `R`, `S`, `D`, `T` and so on.
    pub state: u8,
    /// How long it has run so far.
    pub ran: Duration,
    /// How long it has been runnable without a CPU, if known.
    pub delayed: Duration,
}

/// Why an agent is ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u32)]
pub enum Lapse {
    /// Somebody has stopped it (SIGSTOP, or a debugger).
    Stopped = 1,
    /// It neither ran nor could have run.
    Stuck = 2,
    /// It ran, and did not finish one turn of its loop.
    Spinning = 3,
}

impl Lapse {
    /// The lapse that a number stands for; 0 is none.
    pub fn from_number(number: u32) -> Option<Lapse> {
        [Lapse::Stopped, Lapse::Stuck, Lapse::Spinning].into_iter().find(|lapse| *lapse as u32 == number)
    }

    /// Why the agent is lost.
    pub fn why(self) -> &'static str {
        match self {
            Lapse::Stopped => "another process stopped its agent, and its guard killed it",
            Lapse::Stuck => "its agent hung without running, and its guard killed it",
            Lapse::Spinning => "its agent ran in an endless loop, and its guard killed it",
        }
    }
}

/// The judge. It allocates nothing.
#[derive(Clone, Copy, Debug)]
pub struct Judge {
    /// After so many ticks without renewal and without running an agent is stuck.
    patience: u32,
    /// Ticks in a row in which the agent neither renewed, ran, nor could have run.
    idle: u32,
    /// Ticks in a row in which it was found stopped.
    stopped: u32,
    last: Option<Vitals>,
    /// Its run time when it last renewed its lease.
    ran_at_renewal: Option<Duration>,
}

impl Judge {
    /// `patience` is how long an agent may do nothing at all: 30 s by default.
    pub fn new(patience: Duration) -> Judge {
        let ticks = patience.as_millis().div_ceil(TICK.as_millis()).clamp(2, u128::from(u32::MAX)) as u32;
        Judge { patience: ticks, idle: 0, stopped: 0, last: None, ran_at_renewal: None }
    }

    /// One tick: whether the agent has renewed its lease since the last one, and its state. `None` if the kernel's data
    /// could not be read: counts as doing nothing.
    pub fn tick(&mut self, renewed: bool, vitals: Option<Vitals>) -> Option<Lapse> {
        let is_stopped = !renewed && vitals.is_some_and(|vitals| matches!(vitals.state, b'T' | b't'));
        self.stopped = if is_stopped { self.stopped + 1 } else { 0 };
        // Two looks in a row: at least a second.
        if self.stopped >= 2 {
            return Some(Lapse::Stopped);
        }
        let before = std::mem::replace(&mut self.last, vitals);
        if renewed {
            self.idle = 0;
            self.ran_at_renewal = vitals.map(|vitals| vitals.ran);
            return None;
        }
        let shows_life = match (before, vitals) {
            (_, Some(now)) if now.state == b'R' => true,
            (Some(before), Some(now)) => now.ran > before.ran || now.delayed > before.delayed,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        self.idle = if shows_life { 0 } else { self.idle + 1 };
        if self.idle >= self.patience {
            return Some(Lapse::Stuck);
        }
        let ran = vitals.zip(self.ran_at_renewal).map(|(vitals, before)| vitals.ran.saturating_sub(before));
        // So much CPU time without finishing a turn is not a busy machine: it is an endless loop.
        (ran? >= 2 * self.patience * TICK).then_some(Lapse::Spinning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn vitals(state: u8, ran_ms: u64, delayed_ms: u64) -> Option<Vitals> {
        let ms = Duration::from_millis;
        Some(Vitals { state, ran: ms(ran_ms), delayed: ms(delayed_ms) })
    }

    fn ticks_until(mut tick: impl FnMut(u32) -> Option<Lapse>) -> Option<(u32, Lapse)> {
        (1..1000).find_map(|count| tick(count).map(|lapse| (count, lapse)))
    }

    #[test]
    fn a_stopped_agent_has_a_second() {
        let mut judge = Judge::new(PATIENCE);
        judge.tick(true, vitals(b'T', 5, 0));
        assert_eq!(ticks_until(|_| judge.tick(false, vitals(b'T', 5, 0))), Some((2, Lapse::Stopped)));
        let mut judge = Judge::new(PATIENCE);
        assert_eq!(judge.tick(false, vitals(b'T', 5, 0)), None);
        assert_eq!(judge.tick(false, vitals(b'S', 5, 0)), None, "it was continued");
        assert_eq!(judge.tick(false, vitals(b'T', 5, 0)), None);
    }

    #[test]
    fn an_agent_that_waits_for_nothing_is_stuck_after_its_patience() {
        for state in [b'S', b'D'] {
            let mut judge = Judge::new(PATIENCE);
            judge.tick(true, vitals(state, 5, 0));
            assert_eq!(ticks_until(|_| judge.tick(false, vitals(state, 5, 0))), Some((30, Lapse::Stuck)));
        }
    }

    #[test]
    fn a_starved_agent_is_never_ended() {
        // Runnable and never run: the kernel adds its delay only when it runs.
        let mut judge = Judge::new(PATIENCE);
        assert_eq!(ticks_until(|_| judge.tick(false, vitals(b'R', 5, 0))), None);
        // It was asleep at each check, and had waited for a CPU in between.
        let mut judge = Judge::new(PATIENCE);
        assert_eq!(ticks_until(|count| judge.tick(false, vitals(b'S', 5, u64::from(count / 20)))), None);
        // It runs a little now and then.
        let mut judge = Judge::new(PATIENCE);
        assert_eq!(ticks_until(|count| judge.tick(false, vitals(b'S', u64::from(count / 25), 0))), None);
    }

    #[test]
    fn an_agent_that_runs_a_minute_without_a_turn_spins() {
        let mut judge = Judge::new(PATIENCE);
        judge.tick(true, vitals(b'R', 100, 0));
        let second = |count: u32| vitals(b'R', 100 + 1000 * u64::from(count), 0);
        assert_eq!(ticks_until(|count| judge.tick(false, second(count))), Some((60, Lapse::Spinning)));
    }

    #[test]
    fn where_the_kernel_says_nothing_the_ticks_alone_decide() {
        let mut judge = Judge::new(PATIENCE);
        assert_eq!(ticks_until(|_| judge.tick(false, None)), Some((30, Lapse::Stuck)));
        let mut judge = Judge::new(PATIENCE);
        assert_eq!(ticks_until(|_| judge.tick(true, None)), None);
    }

    #[test]
    fn every_lapse_has_its_number() {
        for lapse in [Lapse::Stopped, Lapse::Stuck, Lapse::Spinning] {
            assert_eq!(Lapse::from_number(lapse as u32), Some(lapse));
        }
        assert_eq!(Lapse::from_number(0), None);
    }
}
