//! `rankrun --as=relay prove JOB-nK PATIENCE_MS`: what a front calls on a node whose connection it has lost, to learn whether anything
//! of the job is left there.
//!
//! The relay is told that its front is gone; then the agent ends its workers, and the guard verifies it. Only what does not end by
//! itself in time is killed here, the agent first, so that the guard can still do its work.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use rankrun_agent::staff::{self, Role};
use rankrun_core::ExitCode;
use rankrun_sys::signal;

use crate::commands::clean::{self, KILL_BOUND};

/// How often to look whether somebody is still there.
const STEP: Duration = Duration::from_millis(20);
/// How often to look again for what may be left.
const AGAIN: Duration = Duration::from_millis(200);

/// Runs it. Exits with 0 if nothing is left, and with 123 if something is.
pub(crate) fn run(words: &[OsString]) -> ExitCode {
    let [job, patience] = words else { return ExitCode::USAGE };
    let (Some(job), Some(patience)) = (job.to_str(), patience.to_str().and_then(|word| word.parse().ok())) else {
        return ExitCode::USAGE;
    };
    for ours in staff::of(job) {
        // Whoever was stopped could not end by itself. One that has ended meanwhile needs no signal.
        let _ = ours.process.signal(signal::SIGCONT);
        if ours.role == Role::Relay {
            let _ = ours.process.signal(staff::FRONT_IS_GONE);
        }
    }
    let ends =
        [(None, Duration::from_millis(patience)), (Some(Role::Agent), KILL_BOUND), (Some(Role::Guard), KILL_BOUND)];
    for (killed, bound) in ends {
        if let Some(role) = killed {
            for ours in staff::of(job).into_iter().filter(|ours| ours.role == role) {
                // One that cannot be killed is found below.
                let _ = ours.process.signal(signal::SIGKILL);
            }
        }
        if wait_for_none(job, bound) {
            break;
        }
    }
    // Somebody's process that does not show its environment may be of the job, and shows it mostly in a moment.
    let until = Instant::now() + KILL_BOUND;
    loop {
        if clean::end_all_of(job) && staff::of(job).is_empty() {
            return ExitCode::SUCCESS;
        }
        if Instant::now() >= until {
            return ExitCode::LEFT_BEHIND;
        }
        // Nothing tells when.
        clean::wait_for_any(&[], AGAIN);
    }
}

/// Waits until relay, guard and agent are gone.
fn wait_for_none(job: &str, bound: Duration) -> bool {
    let until = Instant::now() + bound;
    loop {
        let present = staff::of(job);
        let Some(first) = present.first() else { return true };
        if Instant::now() >= until {
            return false;
        }
        first.process.wait(STEP);
    }
}
