//! Guard and agent, seen from the front: lost, stopped by somebody, or without an end (K-5).
//!
//! The guard watches the agent; where there is no guard any more, or it is itself stopped, the front does it. A process
//! is judged by its state, not by its silence: one that is only slow is left alone.

use std::time::Duration;

use rankrun_core::gang::Event;
use rankrun_sys::process::{Child, ProcessRef};
use rankrun_sys::wait::{self, Change, Look};
use rankrun_sys::{proc, signal};

use crate::front::Front;
use crate::link::LinkError;

/// How often it is looked whether a process is stopped.
pub(crate) const LOOK_STEP: Duration = Duration::from_millis(250);
/// Looks in a row that find a process stopped before it is given up: a second.
const LOOKS: u32 = 4;
/// How long the agent may take beyond the grace of a stop: 60 s for a process that dumps core, 30 s for one that still
/// saves, and what it takes to kill and to look.
pub(crate) const END_BOUND: Duration = Duration::from_secs(120);
/// How long it may take to kill all workers, and to find that some cannot be killed.
pub(crate) const KILLING_BOUND: Duration = Duration::from_secs(30);
/// How long an agent that was killed may take to be gone. Then it cannot be killed, and is left.
const KILL_BOUND: Duration = Duration::from_secs(5);

/// What is known of guard and agent, and when to look again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    /// Looks in a row that found the process stopped.
    guard: u32,
    agent: u32,
    /// When to look; `None` while nothing is wrong.
    next: Option<Duration>,
    /// When the agent must have said that all is over.
    end_by: Option<Duration>,
    /// When the agent was killed by us.
    killed_at: Option<Duration>,
    /// Why the agent is lost, where we know.
    pub(crate) why: Option<&'static str>,
}

impl Watch {
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let gone_by = self.killed_at.map(|at| at + KILL_BOUND);
        [self.next, self.end_by, gone_by].into_iter().flatten().min()
    }

    /// The agent has said that all is over.
    pub(crate) fn is_over(&mut self) {
        self.end_by = None;
    }
}

fn is_stopped(pid: i32) -> bool {
    proc::process(pid).is_some_and(|process| process.state == 'T')
}

fn count(looks: u32, is_stopped: bool) -> u32 {
    if is_stopped { looks + 1 } else { 0 }
}

impl Front {
    /// SIGCHLD: the guard has ended, was stopped, or was continued.
    pub(crate) fn look_at_guard(&mut self) {
        if self.guard_code.is_some() || self.guard_lost {
            return;
        }
        match wait::peek_at(self.guard) {
            Look::Found(child) => {
                wait::reap(self.guard);
                match child.change {
                    Change::Exited { code } => self.guard_code = Some(code),
                    Change::Signaled { .. } | Change::Stopped { .. } | Change::Continued => self.lose_guard(),
                }
            }
            Look::Nothing if self.watch.next.is_none() && is_stopped(self.guard) => {
                self.watch.next = Some(self.now() + LOOK_STEP);
            }
            Look::Nothing => {}
            Look::NoChildren => self.lose_guard(),
        }
    }

    pub(crate) fn lose_guard(&mut self) {
        if self.guard_lost || self.guard_code.is_some() {
            return;
        }
        self.guard_lost = true;
        if self.summary.is_none() {
            self.watch.next = Some(self.now() + LOOK_STEP);
            self.event(Event::GuardLost);
        }
    }

    pub(crate) fn lose_agent(&mut self, error: &LinkError) {
        if !matches!(error, LinkError::Ended) {
            self.note(format!("{error}"));
        }
        self.give_up_agent();
    }

    fn give_up_agent(&mut self) {
        self.link = None;
        if self.summary.is_none() {
            self.event(Event::AgentLost);
        }
    }

    /// The agent has been told to end its workers, and has until then.
    pub(crate) fn expect_end(&mut self, by: Duration) {
        if self.summary.is_none() {
            self.watch.end_by = Some(self.watch.end_by.map_or(by, |end| end.min(by)));
        }
    }

    /// Does what the guard does for an agent that is stopped, where the guard cannot: it is gone, or stopped as well. The
    /// end of the agent's stream then says the rest.
    pub(crate) fn watch(&mut self, now: Duration) {
        if self.watch.deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        if self.watch.killed_at.is_some_and(|at| at + KILL_BOUND <= now) {
            // It is in the kernel's hands: report it as left.
            self.watch.killed_at = None;
            self.give_up_agent();
            return;
        }
        if self.watch.end_by.is_some_and(|by| by <= now) {
            self.watch.end_by = None;
            self.kill_agent(now, "its agent did not end the workers in time");
        }
        if self.watch.next.is_none_or(|next| next > now) {
            return;
        }
        self.watch.guard = count(self.watch.guard, !self.guard_lost && is_stopped(self.guard));
        let is_unguarded = self.guard_lost || self.guard_code.is_some() || self.watch.guard > 0;
        if self.link.is_none() || !is_unguarded {
            (self.watch.next, self.watch.agent) = (None, 0);
            return;
        }
        self.watch.next = Some(now + LOOK_STEP);
        if self.agent.is_none() && self.watch.guard > 0 {
            // It has not said who it is. It is the only child that the guard can have so early.
            let below = |process: &proc::Process| process.parent == self.guard;
            let pid = proc::all().into_iter().find(below).map(|process| process.pid);
            self.agent = pid.and_then(|pid| ProcessRef::open_if(pid, below));
        }
        match &self.agent {
            Some(agent) => {
                self.watch.agent = count(self.watch.agent, is_stopped(agent.pid()));
                if self.watch.agent >= LOOKS && self.watch.killed_at.is_none() {
                    self.kill_agent(now, "its agent was stopped by somebody");
                }
            }
            None if self.watch.guard >= LOOKS => {
                // Nothing has been started yet. The end of the guard is that of its end of the stream.
                self.watch.why = Some("its guard was stopped by somebody before it had started the agent");
                self.kill_guard();
            }
            None => {}
        }
    }

    fn kill_agent(&mut self, now: Duration, why: &'static str) {
        self.watch.why.get_or_insert(why);
        self.watch.killed_at = Some(now);
        if let Some(agent) = &self.agent {
            // It has ended already if this fails, and its stream says so.
            let _ = agent.signal(signal::SIGKILL);
        }
    }

    fn kill_guard(&self) {
        // It has not been reaped: neither lost nor with a code.
        let _ = Child::unreaped(self.guard).signal(signal::SIGKILL);
    }

    /// At the end: ends a guard that somebody has stopped, and so cannot say that nothing is left.
    pub(crate) fn watch_guard(&mut self) {
        self.watch.guard = count(self.watch.guard, is_stopped(self.guard));
        if self.watch.guard >= LOOKS {
            self.kill_guard();
        }
    }
}
