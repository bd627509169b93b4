//! Looks at processes: what they do, and what there is to report of them.

use rankrun_core::Pid;
use rankrun_core::report::LeftProcess;
use rankrun_core::team::Activity;
use rankrun_sys::proc;
use rankrun_sys::process::ProcessId;

/// What a set of processes did so far, and whether none of them is about to do more: asleep, stopped or dead.
pub(super) fn activity(ids: &[ProcessId]) -> Activity {
    let mut sum = ids.len() as u64;
    for id in ids {
        let Some(process) = proc::process(id.pid) else { continue };
        if !matches!(process.state, 'S' | 'I' | 'T' | 't' | 'Z') {
            // Nothing else matters as long as one is at work.
            return Activity { sum, quiet: false };
        }
        sum = sum.wrapping_add(process.started);
        sum = sum.wrapping_add(proc::run_time(id.pid).unwrap_or(0)).wrapping_add(proc::written_bytes(id.pid));
    }
    Activity { sum, quiet: true }
}

/// What the report says of processes that could not be killed.
pub(super) fn left_processes(ids: &[ProcessId]) -> Vec<LeftProcess> {
    ids.iter()
        .filter_map(|id| proc::process(id.pid).filter(|process| process.id() == *id))
        .filter(|process| process.state != 'Z')
        .map(|process| LeftProcess {
            pid: Pid(process.pid),
            name: process.name,
            state: process.state,
            wait_channel: proc::wait_channel(process.pid),
        })
        .collect()
}
