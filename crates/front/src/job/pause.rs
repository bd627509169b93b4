//! Job control: the whole job is stopped by ^Z or SIGTSTP, goes on with `fg` or `bg`, and the one rank on the terminal
//! stands in for the front in the eyes of the shell (docs/signals.md).

use std::time::{Duration, Instant};

use rankrun_core::{NodeRank, Rank, Stream, gang};
use rankrun_sys::{process, signal, terminal};
use rankrun_wire::ToAgent;

use crate::job::front::Front;
use crate::terminal::{FrontTerminal, is_job_control};

/// How long a destination may hold up a stop.
const FLUSH_BOUND: Duration = Duration::from_millis(300);

/// A stop that is being carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pause {
    /// The signal to stop by.
    signal: i32,
    whose: Whose,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    /// A key: the kernel has sent the signal to the whole foreground.
    Key,
    /// Somebody asked for it, who will also continue us.
    Asked,
    /// The rank on the terminal was stopped. The rest of our process group was in the background, and did not get it.
    Rank,
}

impl Front {
    /// SIGTSTP, from the keyboard if `by_key`.
    pub(crate) fn stopped(&mut self, by_key: bool) {
        let whose = if by_key { Whose::Key } else { Whose::Asked };
        self.pause(Pause { signal: signal::SIGTSTP, whose });
    }

    /// Ranks and timers stand still first.
    fn pause(&mut self, pause: Pause) {
        if self.pausing.is_some() {
            return;
        }
        self.pausing = Some(pause);
        self.clock.pause();
        self.say(ToAgent::Pause);
        if !self.is_linked() {
            self.paused();
        }
    }

    /// The ranks stand still; now this process does, until somebody continues it.
    pub(crate) fn paused(&mut self) {
        let Some(Pause { signal: number, whose }) = self.pausing else { return };
        self.flush_screen();
        // As late as can be: a shell may put us into the foreground at any time.
        if whose == Whose::Rank && self.is_rank_to_go_on(number) {
            self.go_on(true);
            return;
        }
        if let Some(terminal) = &mut self.terminal {
            terminal.leave();
        }
        let mut stopped = terminal::stop_by(number, whose == Whose::Rank);
        if !stopped && whose == Whose::Asked {
            // No shell controls us (a scheduler does, perhaps), so that the kernel has dropped the milder signal.
            stopped = process::signal_self(signal::SIGSTOP).is_ok();
        }
        self.go_on(stopped);
    }

    /// Whether a rank that has stopped on the terminal is not to stop the job: the job is being ended, and a shell's
    /// `kill` must not wait for an `fg`; or the rank wanted the terminal, which has come to us without a word (`fg` of a
    /// running job).
    fn is_rank_to_go_on(&self, number: i32) -> bool {
        let has_come = self.terminal.as_ref().is_some_and(FrontTerminal::in_foreground);
        self.gang.stop_ordered().is_some() || (has_come && [signal::SIGTTIN, signal::SIGTTOU].contains(&number))
    }

    /// Undoes a pause.
    fn go_on(&mut self, stopped: bool) {
        let Some(Pause { signal: number, .. }) = self.pausing.take() else { return };
        self.clock.resume();
        self.nodes.iter_mut().for_each(|node| node.clock.forget());
        if let Some(terminal) = &mut self.terminal {
            terminal.enter();
        }
        self.say(ToAgent::Resume);
        if let Some(terminal) = &self.terminal
            && let Some(group) = terminal.group()
        {
            if !stopped && number != signal::SIGTSTP {
                // It asks for a terminal that it can never get: the kernel's end for a stopped group without a shell.
                let _ = group.signal_group(signal::SIGHUP);
            }
            // It fails, as above, if the rank has ended, which is all that was wanted.
            let _ = group.signal_group(signal::SIGCONT);
        }
        self.resized();
    }

    /// SIGCONT: we were continued, or brought into the foreground while running.
    pub(crate) fn continued(&mut self) {
        if self.pausing.is_some() {
            // It came before the stop could be carried out, and takes it back.
            self.go_on(true);
        } else if let Some(terminal) = &mut self.terminal {
            terminal.enter();
            self.resized();
        }
    }

    /// A key was pressed (^C, ^Z) while our own group is in the foreground, although a rank is to have the terminal:
    /// the shell has put us there without a word (`fg` of a running job). Returns whether the rank has got it now.
    pub(crate) fn pass_on(&mut self, number: i32) -> bool {
        let Some(terminal) = &mut self.terminal else { return false };
        if terminal.group().is_none() || !terminal.in_foreground() {
            return false;
        }
        terminal.enter();
        terminal.group().is_some_and(|group| group.signal_group(number).is_ok())
    }

    /// A rank was stopped, and not by us.
    pub(crate) fn rank_stopped(&mut self, from: NodeRank, rank: Rank, number: i32, at: Duration) {
        let is_single = self.plan.spec.map.world_size() == 1;
        match &self.terminal {
            Some(terminal) if terminal.is_lent_to(rank) && (is_job_control(number) || is_single) => {
                let number = if is_job_control(number) { number } else { signal::SIGTSTP };
                self.pause(Pause { signal: number, whose: Whose::Rank });
            }
            Some(_) | None => {
                let name = rankrun_core::status::signal_name(number);
                self.note(format!("rank {rank} was stopped by {name}, which was not sent by rankrun"));
                self.node_event(from, at, gang::Event::Stopped { rank, signal: number });
            }
        }
    }

    /// Takes the status region off the screen and lets what is ready be written, before the shell writes its own.
    fn flush_screen(&mut self) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let now = self.now();
        self.delivery.presenter.withdraw(now);
        let until = Instant::now() + FLUSH_BOUND;
        loop {
            self.hand_on();
            let rest = until.saturating_duration_since(Instant::now());
            if self.delivery.is_done() || rest.is_zero() {
                // What else has woken us is looked at by the loop.
                self.waker.wake();
                return;
            }
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(rest.subsec_nanos()) };
            // A wait that fails shows at the end of the bound.
            let _ = poll(&mut [PollFd::new(&self.waker, PollFlags::IN)], Some(&timeout));
            self.waker.clear();
            self.delivery.hear(now);
            self.take_news();
        }
    }

    /// A rank that the terminal is lent to may make it raw at any time: what we write to it must itself return to the
    /// first column.
    pub(crate) fn suit_terminal(&mut self) {
        if !self.terminal.as_ref().is_some_and(FrontTerminal::is_lent) {
            return;
        }
        let places = [terminal::is_terminal(rustix::stdio::stdout()), terminal::is_terminal(rustix::stdio::stderr())];
        let is_shared = self.plan.output.same_destination;
        for stream in Stream::ALL {
            if places[stream.index()] || is_shared && places[0] {
                let pending = self.delivery.presenter.pending(stream);
                *pending = with_returns(pending);
            }
        }
    }
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
