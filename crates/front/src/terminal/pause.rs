//! Job control: ^Z or SIGTSTP stops the whole job, `fg` or `bg` continues it. A rank that has the terminal is what the
//! shell sees instead of the front (docs/signals.md).

use rankrun_core::job::IoPolicy;
use rankrun_core::{Rank, Stream};
use rankrun_output::Presenter;
use rankrun_sys::{process, signal, terminal};

use super::tty::{FrontTerminal, is_job_control};

/// A stop that is being carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pause {
    /// The signal to stop by.
    pub(crate) signal: i32,
    pub(crate) whose: Whose,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whose {
    /// A key: the kernel has sent the signal to the whole foreground group.
    Key,
    /// Another process sent it, and will also continue us.
    Asked,
    /// The rank that has the terminal was stopped. Our process group was in the background, and did not get the signal.
    Rank,
}

/// The terminal, and a stop that is being carried out.
#[derive(Debug)]
pub(crate) struct JobControl {
    pub(crate) terminal: Option<FrontTerminal>,
    pausing: Option<Pause>,
}

impl JobControl {
    pub(crate) fn new(io: &IoPolicy) -> JobControl {
        JobControl { terminal: FrontTerminal::open(io), pausing: None }
    }

    /// A stop begins: first the ranks are stopped. Returns whether none was being carried out.
    pub(crate) fn begin(&mut self, pause: Pause) -> bool {
        let is_first = self.pausing.is_none();
        let wants_it = pause.whose == Whose::Rank && wants_terminal(pause.signal);
        if let Some(terminal) = self.terminal.as_mut().filter(|_| wants_it) {
            terminal.ask();
        }
        self.pausing.get_or_insert(pause);
        is_first
    }

    pub(crate) fn is_pausing(&self) -> bool {
        self.pausing.is_some()
    }

    /// The ranks are stopped: now stops this process, until it is continued. `is_ending`: the job is being ended. Returns whether it was
    /// stopped.
    pub(crate) fn stop(&mut self, is_ending: bool) -> bool {
        let Some(Pause { signal: number, whose }) = self.pausing else { return false };
        // As late as can be: a shell may put us into the foreground at any time.
        if whose == Whose::Rank && self.is_rank_to_go_on(number, is_ending) {
            return true;
        }
        if let Some(terminal) = &mut self.terminal {
            terminal.leave();
        }
        let stopped = terminal::stop_by(number, whose == Whose::Rank);
        // No shell controls us (a scheduler may), so that the kernel has dropped the signal: use SIGSTOP.
        stopped || (whose == Whose::Asked && process::signal_self(signal::SIGSTOP).is_ok())
    }

    /// Whether a rank that has stopped on the terminal is not to stop the job: the job is being ended, and a shell's
    /// `kill` must not wait for an `fg`; or the rank wanted the terminal, which the shell has given to us without a
    /// signal (`fg` of a running job).
    fn is_rank_to_go_on(&self, number: i32, is_ending: bool) -> bool {
        let has_come = self.terminal.as_ref().is_some_and(FrontTerminal::in_foreground);
        is_ending || (has_come && wants_terminal(number))
    }

    /// The stop is over. Returns the signal that had asked for it.
    pub(crate) fn end(&mut self) -> Option<i32> {
        self.pausing.take().map(|pause| pause.signal)
    }

    /// The job goes on without the terminal, and the shell gets its prompt. A rank must not have it.
    pub(crate) fn leave_for_good(&mut self) {
        if let Some(terminal) = self.terminal.take() {
            terminal.leave_for_good();
        }
    }

    /// We run in the foreground again, if the shell has put us there.
    pub(crate) fn enter(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.enter();
        }
    }

    /// Continues the rank that has the terminal, after a stop by this signal; `stopped`: this process was stopped by it.
    pub(crate) fn continue_rank(&self, number: i32, stopped: bool) {
        let Some(group) = self.terminal.as_ref().and_then(FrontTerminal::group) else { return };
        if !stopped && number != signal::SIGTSTP {
            // It waits for a terminal that it can never get: end it as the kernel ends a stopped group without a shell.
            let _ = group.signal_group(signal::SIGHUP);
        }
        // It fails if the rank has ended, which is fine.
        let _ = group.signal_group(signal::SIGCONT);
    }

    /// A key was pressed (^C, ^Z) while our own group is in the foreground, although a rank is to have the terminal:
    /// the shell has put us there without a signal (`fg` of a running job), or the rank has not asked for the terminal. Returns whether
    /// the rank has got the signal.
    pub(crate) fn pass_on(&mut self, number: i32) -> bool {
        let Some(terminal) = &mut self.terminal else { return false };
        if terminal.group().is_none() || !terminal.in_foreground() {
            return false;
        }
        terminal.enter();
        terminal.group().is_some_and(|group| group.signal_group(number).is_ok())
    }

    /// A rank was stopped by somebody else. Returns the stop of the job if it stops with it: it has the terminal.
    pub(crate) fn stop_with(&self, rank: Rank, number: i32, is_single: bool) -> Option<Pause> {
        let is_lent = self.terminal.as_ref().is_some_and(|terminal| terminal.is_lent_to(rank));
        let stops = is_lent && (is_job_control(number) || is_single);
        let number = if is_job_control(number) { number } else { signal::SIGTSTP };
        stops.then_some(Pause { signal: number, whose: Whose::Rank })
    }

    /// The terminal, if it is lent to this rank.
    pub(crate) fn of_rank(&mut self, rank: Rank) -> Option<&mut FrontTerminal> {
        self.terminal.as_mut().filter(|terminal| terminal.is_lent_to(rank))
    }

    /// Whether a rank has the terminal, or is about to get it.
    fn is_lent(&self) -> bool {
        self.terminal.as_ref().is_some_and(FrontTerminal::is_lent)
    }

    /// Whether the process group of a rank is in the foreground: the kernel sends SIGWINCH to it alone.
    pub(crate) fn has_group(&self) -> bool {
        self.terminal.as_ref().is_some_and(|terminal| terminal.group().is_some())
    }

    /// A rank that has the terminal may make it raw at any time: our own text must then contain the `\r`.
    pub(crate) fn suit(&self, presenter: &mut Presenter, is_shared: bool) {
        if !self.is_lent() {
            return;
        }
        let [_, stdout, stderr] = terminal::standard();
        let places = [stdout, stderr];
        for stream in Stream::ALL {
            if places[stream.index()] || is_shared && places[0] {
                let pending = presenter.pending(stream);
                *pending = with_returns(pending);
            }
        }
    }

    /// The size of the window.
    pub(crate) fn window(&self) -> Option<(u16, u16)> {
        let window = terminal::window(rustix::stdio::stdout()).or_else(|| terminal::window(rustix::stdio::stderr()));
        window.or_else(|| self.terminal.as_ref()?.window())
    }
}

/// Whether a process that is stopped by this signal is in the background, and wants to use the terminal.
fn wants_terminal(number: i32) -> bool {
    [signal::SIGTTIN, signal::SIGTTOU].contains(&number)
}

/// Puts a `\r` before each `\n` that has none.
fn with_returns(text: &[u8]) -> Vec<u8> {
    let mut suited = Vec::with_capacity(text.len() + 16);
    for &byte in text {
        if byte == b'\n' && suited.last() != Some(&b'\r') {
            suited.push(b'\r');
        }
        suited.push(byte);
    }
    suited
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newline_gets_one_return() {
        assert_eq!(with_returns(b"a\nb\r\n\n"), b"a\r\nb\r\n\r\n");
        assert_eq!(with_returns(&with_returns(b"a\n")), b"a\r\n");
    }
}
