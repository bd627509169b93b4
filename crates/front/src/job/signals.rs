//! Signals to rankrun (docs/signals.md).

use std::time::Duration;

use rankrun_core::gang::{self, Outside, RankRecord};
use rankrun_core::status::signal_name;
use rankrun_core::worker::{Stop, StopWhy};
use rankrun_core::{Rank, RankSet};
use rankrun_sys::{signal, terminal};
use rankrun_wire::ToAgent;

use crate::job::front::Front;

/// A signal that comes so long after SIGKILL was ordered means that the agent has not done it.
const IMPATIENCE: Duration = Duration::from_secs(1);
/// How long after the last signal before SIGKILL the ranks that are alive are named.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long after the grace the end of a killed rank is known.
const KILLED_BY: Duration = Duration::from_secs(1);

impl Front {
    /// A signal has arrived.
    pub(crate) fn signal(&mut self, number: i32, sender: i32) {
        // A signal that the kernel sends comes from a key of the terminal.
        let by_key = sender == 0 && [signal::SIGINT, signal::SIGTSTP, signal::SIGQUIT].contains(&number);
        if by_key && self.pass_on(number) {
            return;
        }
        match number {
            signal::SIGCHLD => self.look_at_guards(),
            signal::SIGTSTP => self.stopped(by_key),
            signal::SIGQUIT => self.print_standings(by_key),
            signal::SIGCONT => self.continued(),
            signal::SIGWINCH => self.resized(),
            signal::SIGUSR1 | signal::SIGUSR2 => self.send(ToAgent::Signal(number)),
            // We have sent it ourselves to our whole group, for a key.
            signal::SIGINT if sender == std::process::id() as i32 => {}
            number => {
                self.key_was_pressed |= by_key;
                let first = self.gang.outside().is_none();
                let is_stopping = self.gang.stop_ordered().is_some();
                let now = self.now();
                if self.gang.killed_at().is_some_and(|at| now >= at + IMPATIENCE) {
                    // The agent has had its chance to kill them; without it the guard does.
                    self.expect_end(now);
                }
                self.event(gang::Event::Signal(number));
                if first && !self.gang.over() && self.plan.verbosity >= 0 {
                    self.note_stopping(number, by_key, is_stopping);
                }
                if !first && (self.is_over() || !self.is_linked()) {
                    // Only our own waits are left: for output that is not read, for a file system.
                    self.is_hurried = true;
                    self.drain_until = Some(self.now());
                }
            }
        }
    }

    /// Prints what happens now, and when.
    fn note_stopping(&mut self, number: i32, by_key: bool, is_stopping: bool) {
        let policy = &self.plan.spec.stop;
        let stop = Stop { why: StopWhy::Signal(number), grace: policy.grace_outside };
        let seconds = |time: Duration| format!("{} s", time.as_secs_f64());
        let first = signal_name(stop.first_signal(policy));
        let kill = format!("SIGKILL after {}", seconds(stop.grace));
        let steps = match stop.terminates_after(policy) {
            _ if is_stopping => "they have been signalled before".to_owned(),
            Some(after) => format!("{first}, then SIGTERM after {}, {kill}", seconds(after)),
            None => format!("{first}, then {kill}"),
        };
        let name = if number == signal::SIGINT { "interrupt".to_owned() } else { signal_name(number) };
        let again = if number == signal::SIGINT { "; ^C again kills now" } else { "" };
        let ranks = match self.alive().len() {
            1 => "1 rank".to_owned(),
            ranks => format!("{ranks} ranks"),
        };
        let over_key = if by_key { self.over_key() } else { "" };
        self.notices.push_back(format!("{over_key}rankrun: {name}: stopping {ranks} ({steps}){again}"));
    }

    /// A stop was ordered: sets when to name the ranks that have not ended.
    pub(crate) fn await_ends(&mut self, now: Duration, stop: Stop) {
        let policy = &self.plan.spec.stop;
        self.alive_due = match stop.why {
            StopWhy::Signal(_) => Some(now + stop.terminates_after(policy).unwrap_or_default() + PATIENCE),
            // After that only a rank that is saving is left.
            _ if stop.longest(policy) > stop.grace => Some(now + stop.grace + KILLED_BY),
            _ => None,
        };
    }

    /// Prints once which ranks have not ended, some time after the stop was ordered.
    pub(crate) fn note_alive(&mut self, now: Duration) {
        if self.alive_due.is_none_or(|due| due > now) {
            return;
        }
        self.alive_due = None;
        let alive = self.alive();
        let Some(stop) = self.gang.stop_ordered().filter(|_| !alive.is_empty() && self.gang.killed_at().is_none())
        else {
            return;
        };
        let policy = &self.plan.spec.stop;
        let left = |longest: Duration| (stop + longest).saturating_sub(now).as_secs_f64().round();
        let (noun, are) = if alive.len() == 1 { ("rank", "is") } else { ("ranks", "are") };
        let may_interrupt = self.gang.outside() == Some(Outside::Signal(signal::SIGINT));
        let (ranks, again) = (RankSet::of(alive), if may_interrupt { "; ^C kills now" } else { "" });
        let text = match self.gang.outside() {
            Some(Outside::Signal(_)) if left(policy.grace_outside) > 0.0 => {
                format!("still alive: {noun} {ranks}; SIGKILL in {} s{again}", left(policy.grace_outside))
            }
            None | Some(Outside::Timeout) if left(policy.grace_saving) > 0.0 => {
                let left = left(policy.grace_saving);
                format!("{noun} {ranks} {are} still writing files, for {left} s at most (--grace-saving)")
            }
            Some(_) | None => return,
        };
        self.note(text);
    }

    /// The ranks that have not ended.
    fn alive(&self) -> Vec<Rank> {
        let ranks = self.gang.ranks().iter().zip(0..);
        let is_alive = |record: &RankRecord| record.status.is_none() && record.outcome.is_none();
        ranks.filter(|(record, _)| is_alive(record)).map(|(_, rank)| Rank(rank)).collect()
    }

    /// The start of a message after the terminal has shown `^C`: a new line.
    pub(crate) fn over_key(&self) -> &'static str {
        if self.key_was_pressed && terminal::is_terminal(rustix::stdio::stderr()) { "\r" } else { "" }
    }

    /// The window of the terminal may have changed.
    pub(crate) fn resized(&mut self) {
        let window = terminal::window(rustix::stdio::stdout()).or_else(|| terminal::window(rustix::stdio::stderr()));
        let window = window.or_else(|| self.terminal.as_ref()?.window());
        let Some((rows, columns)) = window.filter(|window| Some(*window) != self.plan.spec.io.window) else { return };
        self.plan.spec.io.window = window;
        let now = self.now();
        self.delivery.presenter.resize(now, (rows, columns));
        self.send(ToAgent::Window(rows, columns));
    }
}
