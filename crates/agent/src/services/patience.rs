//! How long a process of rankrun's own is waited for.

use std::time::Duration;

use rankrun_core::lease::{Judge, Lapse, TICK, Vitals};

/// A wait for a process of rankrun's own. It is judged by its state, as an agent is: on a busy machine it may get no CPU for a minute.
pub(super) struct Wait {
    /// How long it may do nothing.
    patience: Duration,
    judge: Judge,
    /// When it is looked at next.
    pub(super) next: Duration,
}

impl Wait {
    pub(super) fn begin(now: Duration, patience: Duration) -> Wait {
        Wait { patience, judge: Judge::new(patience), next: now + TICK }
    }

    /// Why it is not waited for any longer. `look`: what the kernel knows of it.
    pub(super) fn tick(&mut self, now: Duration, look: impl FnOnce() -> Option<Vitals>) -> Option<String> {
        if now < self.next {
            return None;
        }
        self.next = now + TICK;
        let bound = self.patience.as_secs();
        Some(match self.judge.tick(false, look())? {
            Lapse::Stopped => "another process has stopped it".to_owned(),
            Lapse::Stuck => format!("it did nothing for {bound} s"),
            Lapse::Spinning => format!("it ran for {} s", 2 * bound),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_only_lacks_a_cpu_is_waited_for_and_who_does_nothing_is_not() {
        let s = Duration::from_secs;
        let looked_at = |delays: bool| {
            let mut wait = Wait::begin(s(0), s(30));
            (1..=100).find_map(|at| {
                let delayed = if delays { s(at) } else { s(0) };
                let look = || Some(Vitals { state: b'S', ran: s(0), delayed });
                wait.tick(s(at), look).map(|why| (at, why))
            })
        };
        assert_eq!(looked_at(true), None);
        assert_eq!(looked_at(false), Some((31, "it did nothing for 30 s".to_owned())));
    }
}
