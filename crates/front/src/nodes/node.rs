//! One node: the stream to its agent, its guard, and what is known of both.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rankrun_agent::tidy::Places;
use rankrun_agent::{LapseNote, Launched};
use rankrun_core::NodeRank;
use rankrun_core::lease::Lapse;
use rankrun_sys::poll::Poller;
use rankrun_sys::proc;
use rankrun_sys::process::{Child, ProcessRef};
use rankrun_sys::signal;
use rankrun_sys::wait::{self, Change, Look};
use rankrun_wire::ToAgent;
use rankrun_wire::message::{Containment, Summary};

use crate::link::{Link, LinkError};
use crate::nodes::clock::NodeClock;
use crate::nodes::watch::{Act, Seen, Watch, is_stopped};

/// The state of a guard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Guard {
    /// It has not been reaped.
    Alive,
    /// It has ended with this code: 0 if nothing is left.
    Ended(u8),
    /// It was killed.
    Lost,
}

/// The front's side of a node.
#[derive(Debug)]
pub(crate) struct NodeHandle {
    pub(crate) rank: NodeRank,
    /// Where the job's directory may be.
    pub(crate) places: Places,
    /// Where the job's cgroup is, if there is one.
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) link: Option<Link>,
    guard_child: Child,
    /// Why the guard has ended the agent, if it has.
    lapse: LapseNote,
    pub(crate) guard: Guard,
    /// The loss of the guard has been noticed.
    pub(crate) is_guard_lost: bool,
    /// The agent, once it is known.
    pub(crate) agent: Option<ProcessRef>,
    pub(crate) clock: NodeClock,
    pub(crate) watch: Watch,
    pub(crate) containment: Option<Containment>,
    /// The agent's summary, sent at the end.
    pub(crate) summary: Option<Summary>,
    /// All output of the node was received.
    pub(crate) is_drained: bool,
}

impl NodeHandle {
    /// A node that has just been started. Its stream is watched under `token`.
    pub(crate) fn new(rank: NodeRank, launched: Launched, poller: &Poller, token: u64) -> io::Result<NodeHandle> {
        let Launched { guard, stream, session, cgroup, places, lapse } = launched;
        let link = Link::new(&poller.registry(), token, stream, session)?;
        Ok(NodeHandle {
            rank,
            places,
            cgroup,
            link: Some(link),
            guard_child: guard,
            lapse,
            guard: Guard::Alive,
            is_guard_lost: false,
            agent: None,
            clock: NodeClock::default(),
            watch: Watch::default(),
            containment: None,
            summary: None,
            is_drained: false,
        })
    }

    /// Another attempt begins: nothing is known of its end.
    pub(crate) fn begin_attempt(&mut self) {
        (self.summary, self.is_drained) = (None, false);
    }

    /// Sends a message, if the agent is connected.
    pub(crate) fn send(&mut self, message: &ToAgent) -> Result<(), LinkError> {
        self.link.as_mut().map_or(Ok(()), |link| link.send(message))
    }

    /// Sends what the stream had no room for.
    pub(crate) fn flush(&mut self) -> Result<(), LinkError> {
        self.link.as_mut().map_or(Ok(()), Link::flush)
    }

    /// Why the agent is lost, if known: from the guard's note, or because we killed it.
    pub(crate) fn why_lost(&self) -> Option<&'static str> {
        let noted = self.lapse.lapse().map(|lapse| match lapse {
            Lapse::Stopped => "another process stopped its agent, and its guard killed it",
            Lapse::Stuck => "its agent hung without running, and its guard killed it",
            Lapse::Spinning => "its agent ran in an endless loop, and its guard killed it",
        });
        noted.or(self.watch.why)
    }

    /// Checks whether the guard has ended, and reaps it. Returns whether it was lost now.
    pub(crate) fn reap_guard(&mut self) -> bool {
        if self.guard != Guard::Alive {
            return false;
        }
        self.guard = match wait::peek_at(self.guard_child.pid()) {
            Look::Found(child) => {
                wait::reap(self.guard_child.pid());
                match child.change {
                    Change::Exited { code } => Guard::Ended(code),
                    Change::Signaled { .. } | Change::Stopped { .. } | Change::Continued => Guard::Lost,
                }
            }
            Look::Nothing => Guard::Alive,
            Look::NoChildren => Guard::Lost,
        };
        self.guard == Guard::Lost
    }

    /// Whether somebody has stopped the guard.
    pub(crate) fn is_guard_stopped(&self) -> bool {
        self.guard == Guard::Alive && is_stopped(self.guard_child.pid())
    }

    /// Decides whether guard or agent are to be given up now. `foreign` are children of the front that are not the job's.
    pub(crate) fn watch(&mut self, now: Duration, foreign: &[i32]) -> Option<Act> {
        let mut watch = std::mem::take(&mut self.watch);
        let act = watch.tick(now, || self.look(foreign));
        self.watch = watch;
        act
    }

    /// At the end: decides whether the guard is to be given up.
    pub(crate) fn watch_guard(&mut self) -> Option<Act> {
        let is_stopped = self.is_guard_stopped();
        self.watch.tick_guard(is_stopped)
    }

    fn look(&mut self, foreign: &[i32]) -> Seen {
        let guard_stopped = self.is_guard_stopped();
        if self.agent.is_none() && guard_stopped {
            // It has not sent its pid yet. It is the only child that the guard can have so early.
            self.agent = child_of(self.guard_child.pid(), |_| true);
        } else if self.agent.is_none() && self.guard != Guard::Alive {
            // The kernel has given it to us: we are the next subreaper above. It runs our own program.
            let ours = proc::executable(std::process::id() as i32);
            let is_agent = |pid| !foreign.contains(&pid) && ours.is_some() && proc::executable(pid) == ours;
            self.agent = child_of(std::process::id() as i32, is_agent);
        }
        Seen {
            is_guarded: self.guard == Guard::Alive && !self.is_guard_lost,
            guard_stopped,
            agent_stopped: self.agent.as_ref().map(|agent| is_stopped(agent.pid())),
        }
    }

    /// Kills the agent.
    pub(crate) fn kill_agent(&self) {
        if let Some(agent) = &self.agent {
            // If this fails it has ended already, and its stream ends.
            let _ = agent.signal(signal::SIGKILL);
        }
    }

    pub(crate) fn kill_guard(&self) {
        if self.guard == Guard::Alive {
            // It has not been reaped: if this fails it is another user's, and the wait for it times out.
            let _ = self.guard_child.signal(signal::SIGKILL);
        }
    }
}

/// A child of a process, held so that it can be signalled.
fn child_of(parent: i32, is_wanted: impl Fn(i32) -> bool) -> Option<ProcessRef> {
    let is_child = |process: &proc::Process| process.parent == parent && is_wanted(process.pid);
    let found = proc::all().into_iter().find(is_child)?;
    ProcessRef::open_if(found.pid, is_child)
}
