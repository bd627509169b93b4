//! Job control: ^Z or SIGTSTP stops the whole job, `fg` or `bg` continues it. A rank that has the terminal is what the
//! shell sees instead of the front (docs/signals.md).

use std::time::{Duration, Instant};

use rankrun_core::job::Event;
use rankrun_core::{Rank, Stream};
use rankrun_sys::{process, signal, terminal};
use rankrun_wire::ToAgent;

use crate::job::front::Front;
use crate::terminal::{FrontTerminal, Pause, Whose, is_job_control, with_returns};

/// How long a destination may delay a stop.
const FLUSH_BOUND: Duration = Duration::from_millis(300);

impl Front {
    /// SIGTSTP, from the keyboard if `by_key`.
    pub(crate) fn stopped(&mut self, by_key: bool) {
        let whose = if by_key { Whose::Key } else { Whose::Asked };
        self.pause(Pause { signal: signal::SIGTSTP, whose });
    }

    /// First stops the ranks and the timers.
    fn pause(&mut self, pause: Pause) {
        if self.pausing.is_some() {
            return;
        }
        self.pausing = Some(pause);
        self.clock.pause();
        self.take(Event::Paused);
        self.send(&ToAgent::Pause);
        if !self.job.is_linked() {
            self.paused();
        }
    }

    /// The ranks are stopped: now stops this process, until it is continued.
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
            // No shell controls us (a scheduler may), so that the kernel has dropped the signal: use SIGSTOP.
            stopped = process::signal_self(signal::SIGSTOP).is_ok();
        }
        self.go_on(stopped);
    }

    /// Whether a rank that has stopped on the terminal is not to stop the job: the job is being ended, and a shell's
    /// `kill` must not wait for an `fg`; or the rank wanted the terminal, which the shell has given to us without a
    /// signal (`fg` of a running job).
    fn is_rank_to_go_on(&self, number: i32) -> bool {
        let has_come = self.terminal.as_ref().is_some_and(FrontTerminal::in_foreground);
        self.job.gang().stop_ordered().is_some() || (has_come && [signal::SIGTTIN, signal::SIGTTOU].contains(&number))
    }

    /// The agents are gone: nobody answers a pause.
    pub(crate) fn end_pause(&mut self) {
        self.pausing = None;
        self.clock.resume();
        self.take(Event::Resumed);
    }

    /// Undoes a pause.
    fn go_on(&mut self, stopped: bool) {
        let Some(Pause { signal: number, .. }) = self.pausing.take() else { return };
        self.clock.resume();
        self.take(Event::Resumed);
        if let Some(terminal) = &mut self.terminal {
            terminal.enter();
        }
        self.send(&ToAgent::Resume);
        if let Some(terminal) = &self.terminal
            && let Some(group) = terminal.group()
        {
            if !stopped && number != signal::SIGTSTP {
                // It waits for a terminal that it can never get: end it as the kernel ends a stopped group without a
                // shell.
                let _ = group.signal_group(signal::SIGHUP);
            }
            // It fails if the rank has ended, which is fine.
            let _ = group.signal_group(signal::SIGCONT);
        }
        self.resized();
    }

    /// SIGCONT: we were continued, or brought into the foreground while running.
    pub(crate) fn continued(&mut self) {
        if self.pausing.is_some() {
            // It arrived before the stop was carried out, and cancels it.
            self.go_on(true);
        } else if let Some(terminal) = &mut self.terminal {
            terminal.enter();
            self.resized();
        }
    }

    /// A key was pressed (^C, ^Z) while our own group is in the foreground, although a rank is to have the terminal:
    /// the shell has put us there without a signal (`fg` of a running job). Returns whether the rank has got it now.
    pub(crate) fn pass_on(&mut self, number: i32) -> bool {
        let Some(terminal) = &mut self.terminal else { return false };
        if terminal.group().is_none() || !terminal.in_foreground() {
            return false;
        }
        terminal.enter();
        terminal.group().is_some_and(|group| group.signal_group(number).is_ok())
    }

    /// A rank was stopped by somebody else. Returns whether the job stops with it: it has the terminal.
    pub(crate) fn stops_the_job(&mut self, rank: Rank, number: i32) -> bool {
        let is_single = self.job.spec().map.world_size() == 1;
        let is_lent = self.terminal.as_ref().is_some_and(|terminal| terminal.is_lent_to(rank));
        let stops = is_lent && (is_job_control(number) || is_single);
        if stops {
            let number = if is_job_control(number) { number } else { signal::SIGTSTP };
            self.pause(Pause { signal: number, whose: Whose::Rank });
        }
        stops
    }

    /// Removes the status region and writes what is ready, before the shell writes its prompt.
    fn flush_screen(&mut self) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let now = self.now();
        self.delivery.presenter.withdraw(now);
        let until = Instant::now() + FLUSH_BOUND;
        loop {
            self.hand_on();
            let rest = until.saturating_duration_since(Instant::now());
            if self.delivery.is_done() || rest.is_zero() {
                // The loop handles all other events.
                self.waker.wake();
                return;
            }
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(rest.subsec_nanos()) };
            // A failed wait ends at the time limit.
            let _ = poll(&mut [PollFd::new(&self.waker, PollFlags::IN)], Some(&timeout));
            self.waker.clear();
            self.delivery.receive(now);
            self.take_news();
        }
    }

    /// A rank that has the terminal may make it raw at any time: our own text must then contain the `\r`.
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
