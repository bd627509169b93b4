//! Signals to rankrun (docs/signals.md), ^Z among them.

use std::time::{Duration, Instant};

use rankrun_core::job::{Event, Input};
use rankrun_sys::poll::wait_for;
use rankrun_sys::signal;
use rankrun_wire::ToAgent;
use rustix::event::{PollFd, PollFlags};

use super::Front;
use crate::ledger::Entry;
use crate::terminal::{Pause, Whose};

/// How long a destination may delay a stop.
const FLUSH_BOUND: Duration = Duration::from_millis(300);

impl Front {
    /// A signal has arrived from the process `sender`; 0 is the kernel.
    pub(super) fn signal(&mut self, number: i32, sender: i32) {
        // A signal that the kernel sends comes from a key of the terminal.
        let by_key = sender == 0 && [signal::SIGINT, signal::SIGTSTP, signal::SIGQUIT].contains(&number);
        if by_key && self.job_control.pass_on(number) {
            return;
        }
        match number {
            signal::SIGCHLD => {
                let now = self.now();
                self.reach.look_at_children(&self.job, now);
                self.keep_heir();
            }
            signal::SIGTSTP => {
                let whose = if by_key { Whose::Key } else { Whose::Asked };
                self.pause(Pause { signal: signal::SIGTSTP, whose });
            }
            signal::SIGQUIT => self.take(Event::StandingsRequest { by_key }),
            signal::SIGCONT => self.continued(),
            signal::SIGWINCH => self.resized(),
            signal::SIGHUP => self.hung_up(),
            signal::SIGUSR1 | signal::SIGUSR2 => self.send(&ToAgent::Signal(number)),
            // We have sent it ourselves to our whole group, for a key.
            signal::SIGINT if sender == std::process::id() as i32 => {}
            number => self.take(Event::Signal { number, by_key }),
        }
    }

    /// The window of the terminal may have changed.
    pub(super) fn resized(&mut self) {
        let window = self.job_control.window();
        let Some((rows, columns)) = window.filter(|window| Some(*window) != self.job.spec().io.window) else { return };
        self.give(Input::Window(window));
        let now = self.now();
        self.delivery.presenter.resize(now, (rows, columns));
        self.send(&ToAgent::Window(rows, columns));
    }

    // Job control.

    /// First stops the ranks and the timers.
    pub(super) fn pause(&mut self, pause: Pause) {
        if !self.job_control.begin(pause) {
            return;
        }
        self.clock.pause();
        self.take(Event::Paused);
        self.send(&ToAgent::Pause);
        // The last agent may be gone.
        self.hear_nodes();
        if !self.job.is_linked() {
            self.paused();
        }
    }

    /// The ranks are stopped: now stops this process, until it is continued.
    pub(super) fn paused(&mut self) {
        if self.job_control.is_pausing() {
            self.flush_screen();
            let stopped = self.job_control.stop(self.job.gang().stop_ordered().is_some());
            self.go_on(stopped);
        }
    }

    /// The agents are gone: nobody answers a pause.
    pub(super) fn end_pause(&mut self) {
        self.job_control.end();
        self.resume_clock();
        self.take(Event::Resumed);
    }

    fn resume_clock(&mut self) {
        self.clock.resume();
        self.delivery.journal.resumed(self.clock.paused());
        if let Some(ledger) = &mut self.ledger {
            ledger.add(&Entry::Paused(self.clock.paused()));
        }
    }

    /// Undoes a pause.
    fn go_on(&mut self, stopped: bool) {
        let Some(number) = self.job_control.end() else { return };
        self.resume_clock();
        self.take(Event::Resumed);
        self.job_control.enter();
        self.send(&ToAgent::Resume);
        self.job_control.continue_rank(number, stopped);
        self.resized();
    }

    /// SIGCONT: we were continued, or brought into the foreground while running.
    fn continued(&mut self) {
        if self.job_control.is_pausing() {
            // It arrived before the stop was carried out, and cancels it.
            self.go_on(true);
        } else if self.job_control.terminal.is_some() {
            self.job_control.enter();
            self.resized();
        }
    }

    /// Removes the status region and writes what is ready, before the shell writes its prompt.
    pub(super) fn flush_screen(&mut self) {
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
            wait_for(&mut [PollFd::new(&self.waker, PollFlags::IN)], Some(rest));
            self.waker.clear();
            self.delivery.receive(now);
            self.take_news();
        }
    }
}
