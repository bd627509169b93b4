//! The guard's parent: the front, or a relay on another node. It reaps the guard, does its work if the guard is lost, and gives up
//! guard and agent if both hang.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rankrun_core::job::CleanShm;
use rankrun_core::lease::Lapse;
use rankrun_core::{Attempt, ExitCode, JobId};
use rankrun_sys::cgroup::GuardedCgroup;
use rankrun_sys::proc::{self, ChildList};
use rankrun_sys::process::{Child, ProcessRef};
use rankrun_sys::signal;
use rankrun_sys::wait::{self, Change, Look};
use rankrun_wire::Memory;

use super::launch::Launched;
use super::note::GuardNote;
use super::watchdog::{Act, Seen, Watch, is_stopped};
use crate::tidy::{Children, Known, Places, Readers, Remains, Search};

/// The state of a guard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuardState {
    /// It has not been reaped.
    Alive,
    /// It has ended with this code: 0 if nothing is left.
    Ended(u8),
    /// It was killed.
    Lost,
}

/// What was known of the agent when the guard's work is to be done in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastKnown {
    /// It has sent all that it had to send, and ends by itself.
    pub is_done: bool,
    /// It has let processes go, which live on (`--descendants leave`).
    pub has_released: bool,
    /// The present attempt, and what becomes of shared memory that the job left. `None`: what the guard knew of it.
    pub begun: Option<(Attempt, CleanShm)>,
}

impl LastKnown {
    /// For a process that moves bytes and does not read them.
    pub fn unknown() -> LastKnown {
        LastKnown { is_done: false, has_released: false, begun: None }
    }
}

/// What is known of a node when its guard is gone, or has done its work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proof {
    /// Nothing of the job is left there.
    pub is_empty: bool,
    /// What was found in /dev/shm in place of the agent; `None` where nobody but the agent may have looked.
    pub memory: Option<Memory>,
}

/// The guard of this node, and the agent below it.
#[derive(Debug)]
pub struct Keeper {
    /// Where the job's directory may be.
    pub places: Places,
    /// Where the job's cgroup is, if there is one.
    pub cgroup: Option<PathBuf>,
    child: Child,
    /// What the guard has left.
    note: GuardNote,
    job: JobId,
    since: SystemTime,
    pub state: GuardState,
    /// The loss of the guard has been noticed.
    pub is_lost: bool,
    /// The agent, once it is known.
    pub agent: Option<ProcessRef>,
    pub watch: Watch,
}

impl Keeper {
    /// Of a guard that was just started. The stream to the agent stays with the caller.
    pub fn new(launched: Launched) -> Keeper {
        let Launched { guard, cgroup, places, note, job, since, .. } = launched;
        Keeper {
            places,
            cgroup,
            child: guard,
            note,
            job,
            since,
            state: GuardState::Alive,
            is_lost: false,
            agent: None,
            watch: Watch::default(),
        }
    }

    /// Why the guard has ended the agent, if it has.
    pub fn lapse(&self) -> Option<Lapse> {
        self.note.lapse()
    }

    /// Why the agent is lost, if known: from the guard's note, or because we killed it.
    pub fn why_lost(&self) -> Option<&'static str> {
        self.lapse().map(Lapse::why).or(self.watch.why)
    }

    /// The guard, as long as it is our child.
    pub fn guard(&self) -> Option<i32> {
        (self.state == GuardState::Alive).then_some(self.child.pid())
    }

    /// Checks whether the guard has ended, and reaps it. Returns whether it was lost now.
    pub fn reap(&mut self) -> bool {
        if self.state != GuardState::Alive {
            return false;
        }
        self.state = match wait::peek_at(self.child.pid()) {
            Look::Found(child) => {
                wait::reap(self.child.pid());
                match child.change {
                    Change::Exited { code } => GuardState::Ended(code),
                    Change::Signaled { .. } | Change::Stopped { .. } | Change::Continued => GuardState::Lost,
                }
            }
            Look::Nothing => GuardState::Alive,
            Look::NoChildren => GuardState::Lost,
        };
        self.state == GuardState::Lost
    }

    /// Whether somebody has stopped the guard.
    pub fn is_guard_stopped(&self) -> bool {
        self.state == GuardState::Alive && is_stopped(self.child.pid())
    }

    /// Decides whether guard or agent are to be given up now.
    pub fn watch(&mut self, now: Duration, known: &Known<'_>) -> Option<Act> {
        let mut watch = std::mem::take(&mut self.watch);
        let act = watch.tick(now, || self.look(known));
        self.watch = watch;
        act
    }

    /// At the end: decides whether the guard is to be given up.
    pub fn watch_guard(&mut self) -> Option<Act> {
        let is_stopped = self.is_guard_stopped();
        self.watch.tick_guard(is_stopped)
    }

    /// For a process that only moves bytes between front and agent. A child may have ended or been stopped: `has_agent`, whether the agent's
    /// stream is open.
    pub fn children_changed(&mut self, now: Duration, has_agent: bool) {
        if self.reap() && has_agent {
            // The agent notices it too, and ends its workers.
            self.is_lost = true;
            self.watch.begin(now);
        } else if self.is_guard_stopped() {
            self.watch.begin(now);
        }
    }

    /// For the same: ends guard and agent if they hang. Returns whether the agent is given up.
    pub fn end_what_hangs(&mut self, now: Duration, has_agent: bool) -> bool {
        let act = self.watch(now, &Vec::new);
        let act = if has_agent { act } else { act.or_else(|| self.watch_guard()) };
        match act {
            Some(Act::KillAgent) => self.kill_agent(),
            Some(Act::KillGuard) => self.kill_guard(),
            Some(Act::GiveUpAgent) | None => {}
        }
        self.reap();
        act == Some(Act::GiveUpAgent)
    }

    fn look(&mut self, known: &Known<'_>) -> Seen {
        let guard_stopped = self.is_guard_stopped();
        if self.agent.is_none() && guard_stopped {
            // It has not sent its pid yet. It is the only child that the guard can have so early.
            self.agent = child_of(self.child.pid(), |_| true);
        } else if self.agent.is_none() && self.state != GuardState::Alive {
            // The kernel has given it to us, to the main thread: we are the next subreaper above. It runs our own program.
            let ours = proc::executable(std::process::id() as i32);
            let is_given = |pid| proc::adopted_children().is_ok_and(|given| given.contains(&pid));
            let is_agent =
                |pid| ours.is_some() && proc::executable(pid) == ours && is_given(pid) && !known().contains(&pid);
            self.agent = child_of(std::process::id() as i32, is_agent);
        }
        Seen {
            is_guarded: self.state == GuardState::Alive && !self.is_lost,
            guard_stopped,
            agent_stopped: self.agent.as_ref().map(|agent| is_stopped(agent.pid())),
        }
    }

    /// Sends a signal to the agent, the guard's child. Returns whether there is one.
    pub fn signal_agent(&self, number: i32) -> bool {
        let ours = proc::executable(std::process::id() as i32);
        let is_agent = |pid| ours.is_some() && proc::executable(pid) == ours;
        let agent = self.guard().and_then(|guard| child_of(guard, is_agent));
        agent.is_some_and(|agent| agent.signal(number).is_ok())
    }

    /// Kills the agent.
    pub fn kill_agent(&self) {
        if let Some(agent) = &self.agent {
            // If this fails it has ended already, and its stream ends.
            let _ = agent.signal(signal::SIGKILL);
        }
    }

    /// Kills the guard.
    pub fn kill_guard(&self) {
        if self.state == GuardState::Alive {
            // It has not been reaped: if this fails it is another user's, and the wait for it times out.
            let _ = self.child.signal(signal::SIGKILL);
        }
    }

    /// Whether nothing is left on this node: by the guard's exit code, or, if the guard is gone, by doing its work.
    pub fn prove(&self, last: LastKnown, known: &Known<'_>) -> Proof {
        if let GuardState::Ended(code) = self.state {
            return Proof { is_empty: code == ExitCode::SUCCESS.0, memory: self.note.memory() };
        }
        if last.is_done && last.has_released {
            // Released processes live on; the agent has ended the rest.
            self.places.remove();
            return Proof { is_empty: true, memory: None };
        }
        let begun = last.begun.or_else(|| self.note.begun());
        let (attempt, clean_shm) = begun.unwrap_or((Attempt(0), CleanShm::List));
        let search = Search::new(&self.job, attempt, self.since, clean_shm);
        let remains = Remains {
            cgroup: self.cgroup.as_deref().and_then(|path| GuardedCgroup::open(path).ok()),
            children: ChildList::open(),
            places: self.places.clone(),
            search: (!last.is_done && clean_shm != CleanShm::No).then_some(search),
            readers: Readers::default(),
        };
        let children = Children::AllBut(known);
        if last.is_done {
            remains.let_end(&children);
        }
        let is_empty = remains.end(&children);
        let mut memory = remains.tidy();
        // Nobody knows whether what is the job's was to be removed: it was not.
        if let (Some(memory), None) = (&mut memory, begun) {
            memory.doubtful.append(&mut memory.created);
        }
        Proof { is_empty, memory }
    }
}

/// A child of a process, held so that it can be signalled.
fn child_of(parent: i32, is_wanted: impl Fn(i32) -> bool) -> Option<ProcessRef> {
    let is_child = |process: &proc::Process| process.parent == parent && is_wanted(process.pid);
    let found = proc::all().into_iter().find(is_child)?;
    ProcessRef::open_if(found.pid, is_child)
}
