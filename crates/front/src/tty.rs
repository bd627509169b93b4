//! The front's terminal, lent to one rank: it then feels as if it had been run directly.

use rankrun_core::{Pid, Rank};
use rankrun_sys::signal;
use rankrun_sys::terminal::ControllingTerminal;

/// The terminal and the rank that has it.
#[derive(Debug)]
pub(crate) struct LentTerminal {
    pub(crate) rank: Rank,
    terminal: ControllingTerminal,
    /// The process group of the rank, once it has been started.
    group: Option<i32>,
    is_lent: bool,
}

impl LentTerminal {
    /// `None` where there is no terminal to lend.
    pub(crate) fn open(rank: Rank) -> Option<LentTerminal> {
        let terminal = ControllingTerminal::open().ok()?;
        Some(LentTerminal { rank, terminal, group: None, is_lent: false })
    }

    /// Whether the rank is to be put into the foreground when it starts.
    pub(crate) fn in_foreground(&self) -> bool {
        self.terminal.in_foreground()
    }

    /// The rank has been started, in a process group of its own, which has made itself the foreground one.
    pub(crate) fn started(&mut self, pid: Pid) {
        self.group = Some(pid.0);
        self.is_lent = true;
    }

    /// The rank was stopped (^Z): stops this process too, as the shell expects, and continues both when the shell says so.
    pub(crate) fn suspend(&mut self) {
        let Some(group) = self.group else { return };
        let modes = self.terminal.modes();
        self.terminal.take_back(group);
        // The shell sees its job stopped, and takes the terminal.
        let _ = signal::send(std::process::id() as i32, signal::SIGSTOP);
        if self.terminal.in_foreground() {
            if let Some(modes) = &modes {
                self.terminal.set_modes(modes);
            }
            let _ = self.terminal.lend(group);
        }
        let _ = signal::send_group(group, signal::SIGCONT);
    }

    /// The rank has ended: the terminal is ours again.
    pub(crate) fn ended(&mut self) {
        if let Some(group) = self.group.take()
            && std::mem::take(&mut self.is_lent)
        {
            self.terminal.take_back(group);
        }
    }
}

impl Drop for LentTerminal {
    fn drop(&mut self) {
        self.ended();
    }
}
