//! The terminal that the front was started on: lent to one rank, which then works as if run directly. It is restored
//! whenever the job stops or ends.

use rankrun_core::job::IoPolicy;
use rankrun_core::{Pid, Rank};
use rankrun_sys::process::ProcessRef;
use rankrun_sys::terminal::{self, ControllingTerminal, Modes};
use rankrun_sys::{proc, signal};

/// The terminal.
#[derive(Debug)]
pub(crate) struct FrontTerminal {
    terminal: ControllingTerminal,
    /// The modes at the start, restored at the end. Not known before we were in the foreground: until then the modes
    /// are those of the shell's line editor.
    found: Option<Modes>,
    /// The modes that the job had when it was stopped.
    suspended: Option<Modes>,
    /// The rank that the terminal is lent to, until it ends, and its process group once it has been started.
    rank: Option<Rank>,
    /// The job may take the terminal and change its modes: from the start, or since its rank has asked for it. In a pipeline others may
    /// use it: a pager, a program that asks for a password.
    may_take: bool,
    /// The same at the start of an attempt.
    may_take_at_once: bool,
    group: Option<i32>,
    /// The leader of that group, if it has not ended: signals can be sent only to it.
    leader: Option<ProcessRef>,
}

impl FrontTerminal {
    /// `None` where there is no terminal.
    pub(crate) fn open(io: &IoPolicy) -> Option<FrontTerminal> {
        if io.tty.is_none() && !terminal::standard().contains(&true) {
            return None;
        }
        let terminal = ControllingTerminal::open().ok()?;
        let found = if terminal.in_foreground() { terminal.modes() } else { None };
        Some(FrontTerminal {
            terminal,
            found,
            suspended: None,
            rank: io.tty.map(|grant| grant.rank),
            may_take: may_take_at_once(io),
            may_take_at_once: may_take_at_once(io),
            group: None,
            leader: None,
        })
    }

    /// The rank was stopped because it is in the background and wants to use the terminal.
    pub(crate) fn ask(&mut self) {
        self.may_take = true;
    }

    /// Whether our own process group, not that of a rank, is in the foreground.
    pub(crate) fn in_foreground(&self) -> bool {
        self.terminal.in_foreground()
    }

    /// Whether the terminal is lent to this rank.
    pub(crate) fn is_lent_to(&self, rank: Rank) -> bool {
        self.rank == Some(rank)
    }

    /// The process group of the rank that has the terminal.
    pub(crate) fn group(&self) -> Option<&ProcessRef> {
        self.leader.as_ref()
    }

    /// Whether a rank has the terminal, or is about to get it.
    pub(crate) fn is_lent(&self) -> bool {
        self.rank.is_some()
    }

    pub(crate) fn window(&self) -> Option<(u16, u16)> {
        self.terminal.window()
    }

    /// Whether the rank has the terminal where we are in the foreground: from its start, or since it has asked for it.
    pub(crate) fn may_take(&self) -> bool {
        self.may_take
    }

    /// The rank has been started, in a process group of its own, which has made itself the foreground one if it is to have the terminal
    /// at once.
    pub(crate) fn started(&mut self, pid: Pid) {
        self.group = Some(pid.0);
        self.leader = ProcessRef::open(pid.0);
    }

    /// The job is about to be stopped: gives the terminal back, with its modes restored.
    pub(crate) fn leave(&mut self) {
        self.suspended = None;
        if self.may_take && self.is_ours() {
            self.suspended = self.terminal.modes();
            self.put_back();
        }
    }

    /// We were continued: after `fg` the rank gets the terminal again.
    pub(crate) fn enter(&mut self) {
        if !self.may_take || !self.terminal.in_foreground() {
            return;
        }
        self.found = self.terminal.modes();
        if let Some(modes) = self.suspended.take() {
            self.terminal.set_modes(&modes);
        }
        if let Some(group) = self.group {
            // A rank that has ended meanwhile cannot have it.
            let _ = self.terminal.lend(group);
        }
    }

    /// The rank has ended: the terminal is ours again. `keep_modes` leaves it the modes that it has, for a program such
    /// as `stty`. Returns whether the rank was in the foreground.
    pub(crate) fn ended(&mut self, keep_modes: bool) -> bool {
        if !self.may_take || self.group.is_none() || !self.is_ours() {
            self.forget();
            return false;
        }
        if keep_modes {
            self.found = self.terminal.modes();
        }
        let was_lent = !self.terminal.in_foreground();
        self.put_back();
        self.forget();
        was_lent
    }

    /// Another attempt begins: its rank gets the terminal as that of the first one did.
    pub(crate) fn begin_attempt(&mut self, io: &IoPolicy) {
        (self.rank, self.may_take) = (io.tty.map(|grant| grant.rank), self.may_take_at_once);
    }

    /// The job is over.
    pub(crate) fn close(&mut self, keep_modes: bool) {
        if self.may_take && self.is_ours() {
            if keep_modes {
                self.terminal.take();
            } else {
                self.put_back();
            }
        }
        self.forget();
    }

    /// The job goes on without the terminal.
    pub(crate) fn leave_for_good(self) {
        if self.may_take && self.is_ours() {
            self.put_back();
        }
        self.terminal.step_aside();
    }

    fn forget(&mut self) {
        (self.rank, self.group, self.leader) = (None, None, None);
        // What the modes are from here on is not the rank's doing.
        self.may_take = self.may_take_at_once;
    }

    fn put_back(&self) {
        self.terminal.take();
        if let Some(modes) = &self.found {
            self.terminal.set_modes(modes);
        }
    }

    /// Whether we may change the foreground group: it is ours, one that the job has started, or empty. Otherwise the
    /// shell has it, or another of its jobs (`bg`).
    fn is_ours(&self) -> bool {
        let Some(holder) = self.terminal.foreground() else { return false };
        self.terminal.in_foreground()
            || Some(holder) == self.group
            || terminal::is_empty_group(holder)
            || descends_from_us(holder)
    }
}

/// Whether the job has the terminal before a rank asks for it: where stdout is none, another program of the pipeline may use it.
fn may_take_at_once(io: &IoPolicy) -> bool {
    io.tty.map_or_else(|| terminal::standard()[1], |grant| grant.stdout)
}

fn descends_from_us(pid: i32) -> bool {
    let own = std::process::id() as i32;
    let mut next = Some(pid);
    while let Some(pid) = next.filter(|&pid| pid > 1) {
        if pid == own {
            return true;
        }
        next = proc::process(pid).map(|process| process.parent);
    }
    false
}

/// Signals of job control by which a program stops itself, or is stopped by the terminal.
pub(crate) fn is_job_control(number: i32) -> bool {
    [signal::SIGTSTP, signal::SIGTTIN, signal::SIGTTOU].contains(&number)
}
