//! Does what a node has to do once, whatever groups run on it: watches over it, and ends the attempt there.

use std::time::Duration;

use rankrun_core::Pid;
use rankrun_core::job::{AgentEvent, WorkerEvent};
use rankrun_sys::oom::{OomWatch, Victim};
use rankrun_sys::poll::Interest;
use rankrun_sys::proc;
use rankrun_wire::message::Summary;
use rankrun_wire::{Memory, ToFront};

use super::hands::Hands;
use super::site::{Ending, FREEZER_STEP};
use crate::driver::token::Token;
use crate::guard::lease::Word;
use crate::tidy::shm::FINISH_BOUND;

/// Does what is due.
pub(super) fn tick(hands: &mut Hands, now: Duration) {
    look_at_freezer(hands, now);
    if hands.site.is_watched {
        hands.site.memory.retry();
    }
    if hands.site.oom_due.take_if(|due| *due <= now).is_some() {
        open_oom(hands);
    }
    if let Ending::Memory { until } = hands.site.ending
        && now >= until
    {
        let bound = FINISH_BOUND.as_secs();
        let text = format!("could not look through /dev/shm within {bound} s: the guard looks again");
        hands.outbox.push(ToFront::Note(text));
        over(hands, None);
    }
}

/// No process of any group is left but what was given up or released: check what is left in /dev/shm.
pub(super) fn processes_gone(hands: &mut Hands, now: Duration) {
    let site = &mut hands.site;
    if site.ending != Ending::No {
        return;
    }
    if site.is_watched && site.memory.finish() {
        site.ending = Ending::Memory { until: now + FINISH_BOUND };
        return;
    }
    if site.is_watched {
        let text = "could not look through /dev/shm: the guard looks again";
        hands.outbox.push(ToFront::Note(text.to_owned()));
    }
    over(hands, None);
}

/// `memory` is what was found in /dev/shm, if anybody has looked.
pub(super) fn over(hands: &mut Hands, memory: Option<Memory>) {
    let site = &mut hands.site;
    site.ending = Ending::Over;
    let memory = match (site.found.take(), memory) {
        (Some(mut before), Some(memory)) => {
            before.add(memory);
            Some(before)
        }
        (before, memory) => memory.or(before),
    };
    site.found.clone_from(&memory);
    let given_up = hands.children.given_up();
    if !given_up.is_empty() {
        hands.lease.send(Word::GivenUp);
    }
    hands.outbox.push(ToFront::Event(AgentEvent::Over(Summary {
        groups: hands.site.groups,
        left: given_up,
        released: hands.site.released,
        memory,
        removes_memory: hands.site.removes_memory,
    })));
}

/// Sends a note when somebody else has frozen the job's cgroup: nothing else shows why the ranks make no progress.
fn look_at_freezer(hands: &mut Hands, now: Duration) {
    if now < hands.site.next_freezer_look {
        return;
    }
    hands.site.next_freezer_look = now + FREEZER_STEP;
    let Some(cgroup) = hands.children.boundary().cgroup() else { return };
    let is_frozen = cgroup.is_frozen();
    if is_frozen && !hands.site.frozen_outside {
        let path = cgroup.path().display();
        let text = format!(
            "another program has frozen the job's cgroup: its processes are stopped until 0 is written to \"{path}/cgroup.freeze\""
        );
        hands.outbox.push(ToFront::Note(text));
    }
    hands.site.frozen_outside = is_frozen;
}

/// From here on kills for lack of memory are news.
fn open_oom(hands: &mut Hands) {
    let Some(oom) = &mut hands.site.oom else { return };
    oom.open();
    if let Some(log) = oom.log() {
        // Without it only ended leaders are checked.
        let _ = hands.poller.add(log, Token::KernelLog.encode(), Interest::Read);
    }
}

/// The kernel's log has news: which processes of the ranks were killed because memory ran out? Look them up at once: their
/// parents reap them.
pub(super) fn look_for_killed_helpers(hands: &mut Hands, now: Duration) {
    let victims = hands.site.oom.as_mut().map(OomWatch::victims).unwrap_or_default();
    let user = rustix::process::geteuid();
    for Victim { pid, user: of, line } in victims {
        let is_ours = user.is_root() || of.is_none_or(|of| of == user.as_raw());
        if !is_ours || !hands.site.killed.is_new(pid) {
            continue;
        }
        let Some(process) = proc::process(pid) else {
            hands.site.killed.add_gone(now, line);
            continue;
        };
        let Some(worker) = hands.children.worker_of(&process) else { continue };
        // The end of a leader is looked up when it has ended.
        if hands.children.worker_of_leader(pid).is_some() {
            continue;
        }
        hands.site.killed.add(now, worker, line.clone());
        let event = WorkerEvent::HelperKilledForMemory { pid: Pid(pid), name: process.name, detail: line };
        hands.outbox.push(ToFront::Event(AgentEvent::Worker { worker, at: now, event }));
    }
}
