//! Signals to rankrun (docs/signals.md).

use rankrun_core::job::Event;
use rankrun_sys::{signal, terminal};
use rankrun_wire::ToAgent;

use crate::job::front::Front;

impl Front {
    /// A signal has arrived from the process `sender`; 0 is the kernel.
    pub(crate) fn signal(&mut self, number: i32, sender: i32) {
        // A signal that the kernel sends comes from a key of the terminal.
        let by_key = sender == 0 && [signal::SIGINT, signal::SIGTSTP, signal::SIGQUIT].contains(&number);
        if by_key && self.pass_on(number) {
            return;
        }
        match number {
            signal::SIGCHLD => {
                let now = self.now();
                self.reach.look_at_children(&self.job, now);
            }
            signal::SIGTSTP => self.stopped(by_key),
            signal::SIGQUIT => self.take(Event::StandingsRequest { by_key }),
            signal::SIGCONT => self.continued(),
            signal::SIGWINCH => self.resized(),
            signal::SIGUSR1 | signal::SIGUSR2 => self.send(&ToAgent::Signal(number)),
            // We have sent it ourselves to our whole group, for a key.
            signal::SIGINT if sender == std::process::id() as i32 => {}
            number => self.take(Event::Signal { number, by_key }),
        }
    }

    /// The window of the terminal may have changed.
    pub(crate) fn resized(&mut self) {
        let window = terminal::window(rustix::stdio::stdout()).or_else(|| terminal::window(rustix::stdio::stderr()));
        let window = window.or_else(|| self.terminal.as_ref()?.window());
        let Some((rows, columns)) = window.filter(|window| Some(*window) != self.job.spec().io.window) else { return };
        self.job.spec_mut().io.window = window;
        let now = self.now();
        self.delivery.presenter.resize(now, (rows, columns));
        self.send(&ToAgent::Window(rows, columns));
    }
}
