//! Signals to rankrun (docs/signals.md).

use std::collections::BTreeSet;
use std::time::Duration;

use rankrun_core::gang::{self, Outside, RankRecord};
use rankrun_core::job::StopPolicy;
use rankrun_core::status::signal_name;
use rankrun_core::worker::{Stop, StopWhy};
use rankrun_core::{ExitCode, NodeId, Rank, RankSet, WorkerId, WorkerStatus};
use rankrun_sys::{signal, terminal};
use rankrun_wire::ToAgent;

use crate::job::front::Front;
use crate::job::looking::Purpose;

/// A signal that comes so long after SIGKILL was ordered means that the agent has not done it.
const IMPATIENCE: Duration = Duration::from_secs(1);
/// How long after the last signal before SIGKILL the ranks that are alive are named.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long after the grace the end of a killed rank is known.
const KILLED_BY: Duration = Duration::from_secs(1);
/// What was known longer ago is not printed as the present: it is asked again.
const FRESH: Duration = Duration::from_millis(500);
/// A node that takes longer to answer is not waited for.
const ANSWER_BOUND: Duration = Duration::from_secs(2);

/// The question to all agents, some time after a stop was ordered, which of their ranks have not ended.
#[derive(Debug, Default)]
pub(crate) struct Roll {
    /// When it is asked.
    due: Option<Duration>,
    asked: Option<RollCall>,
}

/// It was asked.
#[derive(Debug)]
struct RollCall {
    until: Duration,
    /// The nodes that have not answered.
    missing: BTreeSet<NodeId>,
    /// The ranks of the others; of each, whether it is writing files.
    alive: Vec<(Rank, bool)>,
}

impl Roll {
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.due.into_iter().chain(self.asked.as_ref().map(|asked| asked.until)).min()
    }
}

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
            number if self.hold_signal(number, by_key) => {}
            number => self.end_by_signal(number, by_key),
        }
    }

    /// A signal asks the job to end.
    pub(crate) fn end_by_signal(&mut self, number: i32, by_key: bool) {
        self.key_was_pressed |= by_key;
        let first = self.gang.outside().is_none();
        let is_stopping = self.gang.stop_ordered().is_some();
        let now = self.now();
        if self.gang.killed_at().is_some_and(|at| now >= at + IMPATIENCE) {
            self.give_up_on_killers(now);
        }
        self.event(gang::Event::Signal(number));
        if first && !self.gang.over() && self.plan.verbosity >= 0 {
            self.note_stopping_by(number, by_key, is_stopping);
        }
        if !first && (self.is_over() || !self.is_linked()) {
            // Only our own waits are left: for output that is not read, for a file system, for a node that does not answer.
            self.is_hurried = true;
            self.drain_until = Some(self.now());
        }
    }

    /// The agents whose ranks are alive have had their chance to kill them; without them the guards do.
    fn give_up_on_killers(&mut self, now: Duration) {
        let alive: BTreeSet<Rank> = self.alive().into_iter().collect();
        for node in self.nodes.iter_mut().filter(|node| node.summary.is_none()) {
            if alive.is_empty() || node.ranks(&self.plan.spec.map).any(|rank| alive.contains(&rank)) {
                node.expect_end(now);
            }
        }
    }

    /// The rank that has the terminal was interrupted, and the job is being stopped for that.
    pub(crate) fn note_interrupt(&mut self) {
        // The terminal has shown `^C`.
        self.key_was_pressed = true;
        if !self.alive().is_empty() && self.plan.verbosity >= 0 {
            self.note_stopping_by(signal::SIGINT, true, false);
        }
    }

    /// Prints what happens now, and when, after a signal.
    fn note_stopping_by(&mut self, number: i32, by_key: bool, is_stopping: bool) {
        let stop = Stop { why: StopWhy::Signal(number), grace: self.plan.spec.stop.grace_outside };
        let name = if number == signal::SIGINT { "interrupt".to_owned() } else { signal_name(number) };
        self.note_stopping(&name, stop, by_key, is_stopping);
    }

    /// Prints what happens now, and when. `name` is what asks for it.
    pub(crate) fn note_stopping(&mut self, name: &str, stop: Stop, by_key: bool, is_stopping: bool) {
        let policy = &self.plan.spec.stop;
        let seconds = |time: Duration| format!("{} s", time.as_secs_f64());
        let first = signal_name(stop.first_signal(policy));
        let kill = format!("SIGKILL after {}", seconds(stop.grace));
        let steps = match stop.terminates_after(policy) {
            _ if is_stopping => "they have been signalled before".to_owned(),
            Some(after) => format!("{first}, then SIGTERM after {}, {kill}", seconds(after)),
            None => format!("{first}, then {kill}"),
        };
        let again = if stop.why == StopWhy::Signal(signal::SIGINT) { "; ^C again kills now" } else { "" };
        let ranks = match self.alive().len() {
            1 => "1 rank".to_owned(),
            ranks => format!("{ranks} ranks"),
        };
        let over_key = if by_key { self.over_key() } else { "" };
        self.notices.push_back(format!("{over_key}rankrun: {name}: stopping {ranks} ({steps}){again}"));
    }

    /// A stop was ordered: sets when to ask which ranks have not ended, and to name them.
    pub(crate) fn await_ends(&mut self, now: Duration, stop: Stop) {
        let policy = &self.plan.spec.stop;
        self.roll.due = match stop.why {
            StopWhy::Signal(_) => Some(now + stop.terminates_after(policy).unwrap_or_default() + PATIENCE),
            // After that only a rank that is saving is left.
            _ if stop.longest(policy) > stop.grace => Some(now + stop.grace + KILLED_BY),
            _ => None,
        };
    }

    /// Some time after the stop was ordered, asks once which ranks have not ended: what the front knows may be old.
    pub(crate) fn ask_who_is_alive(&mut self, now: Duration) {
        if self.roll.due.is_some_and(|due| due <= now) {
            let linked = self.nodes.iter().filter(|node| node.link.is_some() && node.containment.is_some());
            let missing = linked.map(|node| node.id).collect();
            self.roll =
                Roll { due: None, asked: Some(RollCall { until: now + ANSWER_BOUND, missing, alive: Vec::new() }) };
            self.send(ToAgent::WhoIsAlive);
        }
        if self.roll.asked.as_ref().is_some_and(|asked| asked.missing.is_empty() || asked.until <= now) {
            self.tell_who_is_alive(now);
        }
    }

    /// An agent knew at `at` which of its workers were alive, and which of them were writing files.
    pub(crate) fn alive_known(&mut self, from: NodeId, workers: &[(WorkerId, bool)], at: Duration) {
        let now = self.now();
        let at = self.nodes[from.index()].clock.moment(now, at).at;
        // An answer that comes too late is not waited for, and is not the present.
        let Some(asked) = &mut self.roll.asked else { return };
        if !asked.missing.remove(&from) {
            return;
        }
        if now.saturating_sub(at) > FRESH {
            self.roll = Roll { due: Some(now), asked: None };
            return;
        }
        asked.alive.extend(workers.iter().map(|(worker, is_saving)| (worker.rank, *is_saving)));
        self.ask_who_is_alive(now);
    }

    /// The agents have answered: prints who is alive, and where they are.
    fn tell_who_is_alive(&mut self, now: Duration) {
        let Some(RollCall { mut alive, .. }) = self.roll.asked.take() else { return };
        let has_ended = |rank: Rank| self.gang.ranks().get(rank.index()).is_none_or(|record| !is_alive(record));
        alive.retain(|(rank, _)| !has_ended(*rank));
        alive.sort_unstable();
        let Some(stop) = self.gang.stop_ordered().filter(|_| self.gang.killed_at().is_none()) else { return };
        let since = now.saturating_sub(stop);
        let mut policy = self.plan.spec.stop.clone();
        if let Some(grace) = self.gang.requested().and_then(|request| request.grace) {
            policy.grace_outside = grace;
        }
        if let Some(text) = still_alive(self.gang.outside(), since, &policy, &alive) {
            self.note(text);
            self.look(Purpose::Alive, Some(alive.into_iter().map(|(rank, _)| rank).collect()), false);
        }
    }

    /// The ranks that have not ended.
    pub(crate) fn alive(&self) -> Vec<Rank> {
        let ranks = self.gang.ranks().iter().zip(0..);
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

/// Whether a rank that was interrupted ended as programs do that do not handle SIGINT. One that exits has handled it: a shell
/// takes its code for that of any other command, and goes on.
pub(crate) fn is_by_signal(status: WorkerStatus) -> bool {
    status != WorkerStatus::Exited { code: ExitCode::signal(signal::SIGINT).0 }
}

fn is_alive(record: &RankRecord) -> bool {
    record.status.is_none() && record.outcome.is_none()
}

/// The line about the ranks that are alive so long after the stop; of each, whether it is writing files.
fn still_alive(
    outside: Option<Outside>,
    since: Duration,
    policy: &StopPolicy,
    alive: &[(Rank, bool)],
) -> Option<String> {
    let left = |longest: Duration| longest.saturating_sub(since).as_secs_f64().round();
    let named = |ranks: Vec<Rank>| {
        let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
        (!ranks.is_empty()).then(|| format!("{noun} {}", RankSet::of(ranks)))
    };
    match outside {
        Some(outside @ (Outside::Signal(_) | Outside::Interrupted(_))) if left(policy.grace_outside) > 0.0 => {
            let ranks = named(alive.iter().map(|(rank, _)| *rank).collect())?;
            let again = if outside.signal() == Some(signal::SIGINT) { "; ^C kills now" } else { "" };
            Some(format!("still alive: {ranks}; SIGKILL in {} s{again}", left(policy.grace_outside)))
        }
        None | Some(Outside::Timeout | Outside::Hang) if left(policy.grace_saving) > 0.0 => {
            let saving: Vec<Rank> = alive.iter().filter(|(_, is_saving)| *is_saving).map(|(rank, _)| *rank).collect();
            let are = if saving.len() == 1 { "is" } else { "are" };
            let left = left(policy.grace_saving);
            Some(format!("{} {are} still writing files, for {left} s at most (--grace-saving)", named(saving)?))
        }
        Some(_) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ranks_that_write_files_are_said_to_save() {
        let policy = StopPolicy { grace_saving: Duration::from_secs(30), ..StopPolicy::default() };
        let line = |outside, alive: &[(u32, bool)]| {
            let alive: Vec<(Rank, bool)> = alive.iter().map(|(rank, is_saving)| (Rank(*rank), *is_saving)).collect();
            still_alive(outside, Duration::from_secs(6), &policy, &alive)
        };
        assert_eq!(
            line(None, &[(0, true), (1, false), (2, true)]).as_deref(),
            Some("ranks 0,2 are still writing files, for 24 s at most (--grace-saving)")
        );
        assert_eq!(
            line(Some(Outside::Timeout), &[(1, true), (2, false)]).as_deref(),
            Some("rank 1 is still writing files, for 24 s at most (--grace-saving)")
        );
        // They dump core, or cannot be killed.
        assert_eq!(line(None, &[(0, false), (2, false)]), None);
        assert_eq!(line(None, &[]), None);
        assert_eq!(line(Some(Outside::Signal(15)), &[]), None);
        assert_eq!(
            line(Some(Outside::Signal(signal::SIGINT)), &[(0, false), (1, true)]).as_deref(),
            Some("still alive: ranks 0-1; SIGKILL in 19 s; ^C kills now")
        );
        assert_eq!(line(Some(Outside::OutputGone), &[(0, true)]), None);
    }
}
