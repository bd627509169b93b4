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
            group: None,
            leader: None,
        })
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

    /// The rank has been started, in a process group of its own, which has made itself the foreground one.
    pub(crate) fn started(&mut self, pid: Pid) {
        self.group = Some(pid.0);
        self.leader = ProcessRef::open(pid.0);
    }

    /// The job is about to be stopped: gives the terminal back, with its modes restored.
    pub(crate) fn leave(&mut self) {
        self.suspended = None;
        if self.is_ours() {
            self.suspended = self.terminal.modes();
            self.put_back();
        }
    }

    /// We were continued: after `fg` the rank gets the terminal again.
    pub(crate) fn enter(&mut self) {
        if !self.terminal.in_foreground() {
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
        if self.group.is_none() || !self.is_ours() {
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

    /// Another attempt begins: its rank gets the terminal.
    pub(crate) fn begin_attempt(&mut self, io: &IoPolicy) {
        self.rank = io.tty.map(|grant| grant.rank);
    }

    /// The job is over.
    pub(crate) fn close(&mut self, keep_modes: bool) {
        if self.is_ours() && !keep_modes {
            self.put_back();
        } else if self.is_ours() {
            self.terminal.take();
        }
        self.forget();
    }

    fn forget(&mut self) {
        (self.rank, self.group, self.leader) = (None, None, None);
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
