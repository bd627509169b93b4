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

/// Looks every few milliseconds until `condition` gives something; `None` after `bound`.
pub fn wait_until<T>(bound: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let start = monotonic();
    loop {
        if let Some(value) = condition() {
            return Some(value);
        }
        if monotonic() - start > bound {
            return None;
        }
        pause(Duration::from_millis(2));
    }
}
