//! Guard and agent, seen from the front: lost, or stopped by somebody, which comes to the same.
//!
//! The guard watches the agent; where there is no guard any more, or it is itself stopped, the front does it.

use std::time::Duration;

use rankrun_core::gang::Event;
use rankrun_sys::wait::{self, Change, Look};
use rankrun_sys::{proc, signal};

use crate::front::Front;
use crate::link::LinkError;

/// How often it is looked whether a process is stopped.
pub(crate) const LOOK_STEP: Duration = Duration::from_millis(250);
/// Looks in a row that find a process stopped before it is given up: a second.
const LOOKS: u32 = 4;

/// How often in a row a process was found stopped, and when to look again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StoppedFor {
    looks: u32,
    next: Option<Duration>,
}

impl StoppedFor {
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.next
    }

    /// Looks once. Returns whether the process has been stopped for too long.
    fn look(&mut self, pid: i32) -> bool {
        let stopped = proc::process(pid).is_some_and(|process| process.state == 'T');
        self.looks = if stopped { self.looks + 1 } else { 0 };
        self.looks >= LOOKS
    }
}

impl Front {
    pub(crate) fn look_at_guard(&mut self) {
        if self.guard_code.is_some() || self.guard_lost {
            return;
        }
        if let Look::Found(child) = wait::peek_at(self.guard.pid()) {
            wait::reap(self.guard.pid());
            match child.change {
                Change::Exited { code } => self.guard_code = Some(code),
                Change::Signaled { .. } | Change::Stopped { .. } | Change::Continued => self.lose_guard(),
            }
        }
    }

    pub(crate) fn lose_guard(&mut self) {
        if self.guard_lost || self.guard_code.is_some() {
            return;
        }
        self.guard_lost = true;
        if self.summary.is_none() {
            self.stopped.next = Some(self.now() + LOOK_STEP);
            self.event(Event::GuardLost);
        }
    }

    pub(crate) fn lose_agent(&mut self, error: &LinkError) {
        if !matches!(error, LinkError::Ended) {
            self.note(format!("{error}"));
        }
        self.link = None;
        if self.summary.is_none() {
            self.event(Event::AgentLost);
        }
    }

    /// Without a guard: ends an agent that somebody has stopped. The end of its stream then says the rest.
    pub(crate) fn watch_agent(&mut self, now: Duration) {
        if self.stopped.next.is_none_or(|next| next > now) {
            return;
        }
        self.stopped.next = Some(now + LOOK_STEP);
        let Some(agent) = self.agent.filter(|_| self.link.is_some()) else {
            self.stopped.next = None;
            return;
        };
        if self.stopped.look(agent.0) {
            let _ = signal::send(agent.0, signal::SIGKILL);
        }
    }

    /// At the end: ends a guard that somebody has stopped, and so cannot say that nothing is left.
    pub(crate) fn watch_guard(&mut self) {
        if self.stopped.look(self.guard.pid()) {
            let _ = self.guard.signal(signal::SIGKILL);
        }
    }
}
