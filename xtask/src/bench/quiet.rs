//! Whether others use the machine's CPUs.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use super::measure::{monotonic, pause};

/// For how long to look: the kernel counts in steps of 10 ms.
const LOOK: Duration = Duration::from_millis(100);
/// The part of the CPUs that may be in use when no job runs.
const MOST: f64 = 0.1;
/// How long to wait for the others to be done.
const PATIENCE: Duration = Duration::from_secs(5);

/// Waits for moments in which nobody else uses the CPUs.
#[derive(Default)]
pub(super) struct Watch {
    /// Others were busy for so long that it is no use to wait again.
    has_given_up: bool,
}

impl Watch {
    /// Waits, and returns whether nobody uses the CPUs now.
    pub(super) fn wait(&mut self) -> Result<bool> {
        let began = monotonic();
        let is_quiet = loop {
            let is_quiet = is_quiet()?;
            if is_quiet || self.has_given_up || monotonic() - began > PATIENCE {
                break is_quiet;
            }
        };
        self.has_given_up = !is_quiet;
        Ok(is_quiet)
    }
}

/// Whether nobody uses the CPUs now.
pub(super) fn is_quiet() -> Result<bool> {
    let before = Ticks::now()?;
    pause(LOOK);
    Ok(Ticks::now()?.busy_since(&before) <= MOST)
}

/// The first line of `/proc/stat`: time of all CPUs since the machine was started.
struct Ticks {
    idle: u64,
    all: u64,
}

impl Ticks {
    fn now() -> Result<Ticks> {
        Ticks::of(&fs::read_to_string("/proc/stat")?).context("/proc/stat has no line of all CPUs")
    }

    fn of(text: &str) -> Option<Ticks> {
        let numbers = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        // user, nice, system, idle, iowait, irq, softirq, steal; what follows is part of user and nice.
        let ticks: Vec<u64> = numbers.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Ticks { idle: ticks.get(3)? + ticks.get(4)?, all: ticks.iter().sum() })
    }

    fn busy_since(&self, before: &Ticks) -> f64 {
        // The counters of idle time may go back a little.
        let all = self.all.saturating_sub(before.all);
        1.0 - self.idle.saturating_sub(before.idle) as f64 / all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_neither_idle_nor_waited_for_a_disk_is_busy() {
        let at = |text: &str| Ticks::of(text).expect("a line of all CPUs");
        let (before, after) = (at("cpu  10 0 10 100 0 0 0 0 7 0\ncpu0 1\n"), at("cpu  13 0 11 110 5 0 0 1 9 0\n"));
        assert_eq!(after.busy_since(&before), 0.25);
    }
}
