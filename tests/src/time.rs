//! Waiting for conditions, with a bound.

use std::time::Duration;

use rustix::thread::NanosleepRelativeResult;
use rustix::time::{ClockId, Timespec};

/// Time on the clock that the reaper's records use as well.
pub fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Sleeps: for programs whose part it is to be there, and between two looks at a condition. Never to wait for one.
pub fn pause(time: Duration) {
    let mut rest = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos() as _ };
    while let NanosleepRelativeResult::Interrupted(left) = rustix::thread::nanosleep(&rest) {
        rest = left;
    }
}

/// What one look counts at most. A whole machine may stand still for a minute (another guest of its host, a snapshot of it), and what is
/// looked at stood still as long: that time proves nothing.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// The longest pause between two quick looks, after a while.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Looks every few milliseconds until `condition` gives something; `None` after `bound`. Time in which this process could not look hardly
/// counts. Between two looks passes as much time as a look takes, and more the longer it lasts: a look that reads four interpreters, or all of
/// /proc, must not take the CPUs from what it waits for.
pub fn wait_until<T>(bound: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let (mut spent, mut before) = (Duration::ZERO, monotonic());
    loop {
        let began = monotonic();
        if let Some(value) = condition() {
            return Some(value);
        }
        if spent > bound {
            return None;
        }
        let took = monotonic().saturating_sub(began);
        let lazily = (spent / 16).min(LONGEST_PAUSE.max(4 * took));
        pause(took.max(lazily).clamp(Duration::from_millis(2), LONGEST_LOOK / 2));
        let now = monotonic();
        spent += (now - before).min(LONGEST_LOOK);
        before = now;
    }
}
