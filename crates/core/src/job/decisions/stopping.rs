//! What a signal or a request to stop does, and who has not ended after a stop (docs/signals.md).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::exit::ExitCode;
use crate::gang::{self, Outside, PlannedWhy, RankRecord, StopRequest};
use crate::ids::{NodeId, Rank, WorkerId};
use crate::job::event::{ClientId, Effect};
use crate::job::machine::Job;
use crate::job::order::Order;
use crate::job::parts::looks::Purpose;
use crate::job::parts::node::Node;
use crate::ranks::RankSet;
use crate::spec::job::StopPolicy;
use crate::status::{WorkerStatus, signal_name};
use crate::units::format_duration;
use crate::worker::{Stop, StopWhy};

/// Signals whose numbers are the same on every Linux.
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

/// A signal that comes so long after SIGKILL was ordered means that the agent has not done it.
const IMPATIENCE: Duration = Duration::from_secs(1);
/// How long after the last signal before SIGKILL the ranks that are alive are named.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long after the grace the end of a killed rank is known.
const KILLED_BY: Duration = Duration::from_secs(1);

impl Job {
    /// A signal has arrived that asks the job to end.
    pub(in crate::job) fn signal(&mut self, number: i32, by_key: bool) {
        if !self.hold_signal(number, by_key) {
            self.end_by_signal(number, by_key);
        }
    }

    /// A signal asks the job to end, and nobody waits for anything before.
    pub(in crate::job) fn end_by_signal(&mut self, number: i32, by_key: bool) {
        if by_key {
            self.out.push(Effect::KeyWasPressed);
        }
        let first = match self.gang.outside() {
            None => true,
            // The next attempt would have followed: nobody has ended the job.
            Some(Outside::NodeLost | Outside::Hang | Outside::Restart) => self.attempts.is_between(),
            Some(_) => false,
        };
        let is_stopping = self.gang.stop_ordered().is_some();
        if self.gang.killed_at().is_some_and(|at| self.now >= at + IMPATIENCE) {
            self.give_up_on_killers();
        }
        if self.is_planned(number) {
            return self.stop_as_planned(PlannedWhy::Signal(number));
        }
        if number != SIGTERM {
            self.planned.ended_by_user();
        }
        let is_first_interrupt = number == SIGINT && self.gang.interrupted_at().is_none();
        self.event(gang::Event::Signal(number));
        self.closing.signalled();
        if (first || is_first_interrupt) && !self.gang.over() {
            self.tell_stopping_by(number, by_key, is_stopping);
        }
        if !first && (self.is_over() || !self.is_linked()) {
            // Only our own waits are left: for output that is not read, for a file system, for a node that does not answer.
            self.closing.hurry();
            self.out.push(Effect::Hurry);
        }
    }

    /// The agents whose ranks are alive have had their chance to kill them; without them the guards do.
    fn give_up_on_killers(&mut self) {
        let (now, alive): (_, BTreeSet<Rank>) = (self.now, self.alive().into_iter().collect());
        for id in self.nodes.ids() {
            let facts = &self.facts;
            let Some(node) = self.nodes.get_mut(id).filter(|node| node.summary().is_none()) else { continue };
            if !alive.is_empty() && !node.ranks(facts).any(|rank| alive.contains(&rank)) {
                continue;
            }
            match node.is_here() {
                true => self.out.push(Effect::ExpectEnd(id, now)),
                false => node.expect_end(now),
            }
        }
    }

    /// The rank that has the terminal was interrupted, and the job is being stopped for that.
    pub(in crate::job) fn note_interrupt(&mut self) {
        // The terminal has shown `^C`.
        self.out.push(Effect::KeyWasPressed);
        if !self.alive().is_empty() {
            self.tell_stopping_by(SIGINT, true, false);
        }
    }

    /// Says what happens now, and when, after a signal.
    fn tell_stopping_by(&mut self, number: i32, by_key: bool, is_stopping: bool) {
        let stop = Stop { why: StopWhy::Signal(number), grace: self.spec.stop.grace_outside };
        let name = if number == SIGINT { "interrupt".to_owned() } else { signal_name(number) };
        self.tell_stopping(&name, stop, by_key, is_stopping);
    }

    /// Says what happens now, and when. `name` is what asks for it.
    pub(in crate::job) fn tell_stopping(&mut self, name: &str, stop: Stop, by_key: bool, is_stopping: bool) {
        let policy = &self.spec.stop;
        let seconds = |time: Duration| format!("{} s", time.as_secs_f64());
        let first = signal_name(stop.first_signal(policy));
        let kill = format!("SIGKILL after {}", seconds(stop.grace));
        let steps = match stop.terminates_after(policy) {
            _ if is_stopping => "they have been signalled before".to_owned(),
            Some(after) => format!("{first}, then SIGTERM after {}, {kill}", seconds(after)),
            None => format!("{first}, then {kill}"),
        };
        let again = if stop.why == StopWhy::Signal(SIGINT) { "; ^C again kills now" } else { "" };
        let ranks = match self.alive().len() {
            1 => "1 rank".to_owned(),
            ranks => format!("{ranks} ranks"),
        };
        self.out.push(Effect::Stopping { text: format!("{name}: stopping {ranks} ({steps}){again}"), by_key });
    }

    /// `rankrun stop`: as SIGTERM.
    pub(in crate::job) fn stop_requested(&mut self, client: ClientId, request: StopRequest) {
        let already = self.gang.stop_ordered().is_some();
        let first = self.gang.outside().is_none();
        self.planned.ended_by_user();
        self.event(gang::Event::StopRequest(request));
        if first && !self.gang.over() {
            let grace = request.grace.unwrap_or(self.spec.stop.grace_outside);
            let stop = Stop { why: StopWhy::Signal(SIGTERM), grace };
            self.tell_stopping(&format!("rankrun stop ({})", request.by), stop, false, already);
        }
        let left = self.gang.grace_until().unwrap_or_default().saturating_sub(self.now);
        let ranks = self.alive().len() as u32;
        self.out.push(Effect::StopAnswer { client, ranks, left, already });
    }

    /// A rank was stopped by somebody else.
    pub(in crate::job) fn rank_stopped(&mut self, node: NodeId, rank: Rank, signal: i32, at: Duration) {
        let name = signal_name(signal);
        let patience = self.spec.restart.stopped_timeout;
        let until = match patience {
            Duration::ZERO => String::new(),
            patience => format!("; it counts as failed if it is still stopped after {}", format_duration(patience)),
        };
        self.note(format!("rank {rank} was stopped by {name}, which was not sent by rankrun{until}"));
        match patience {
            Duration::ZERO => self.event_at(node, at, gang::Event::Stopped { worker: self.gang.worker(rank), signal }),
            patience => self.attempts.rank_is_stopped(rank, self.now + patience, signal),
        }
    }

    /// A stop was ordered: sets when to ask which ranks have not ended, and to name them.
    pub(in crate::job) fn await_ends(&mut self, stop: Stop) {
        let (now, policy) = (self.now, &self.spec.stop);
        let due = match stop.why {
            StopWhy::Signal(_) => Some(now + stop.terminates_after(policy).unwrap_or_default() + PATIENCE),
            // After that only a rank that is saving is left.
            _ if stop.longest(policy) > stop.grace => Some(now + stop.grace + KILLED_BY),
            _ => None,
        };
        self.roll.plan(due);
    }

    /// Some time after the stop was ordered, asks once which ranks have not ended: what the front knows may be old.
    pub(in crate::job) fn ask_who_is_alive(&mut self) {
        let now = self.now;
        if self.roll.ask_due(now, self.nodes.ready()) {
            self.send(Order::WhoIsAlive);
        }
        let nodes = &self.nodes;
        if let Some(alive) = self.roll.take_over(now, |node| nodes.get(node).is_some_and(Node::is_connected)) {
            self.tell_who_is_alive(alive);
        }
    }

    /// An agent knew at `at` which of its workers were alive, and which of them were writing files.
    pub(in crate::job) fn alive_known(&mut self, from: NodeId, workers: &[(WorkerId, bool)], at: Duration) {
        let late = self.now.saturating_sub(self.moment(from, at).at);
        let alive = workers.iter().map(|(worker, is_saving)| (worker.rank, *is_saving));
        self.roll.answered(self.now, from, late, alive);
        self.ask_who_is_alive();
    }

    /// The agents have answered: says who is alive, and where they are.
    fn tell_who_is_alive(&mut self, mut alive: Vec<(Rank, bool)>) {
        let has_ended = |rank: Rank| self.gang.ranks().get(rank).is_none_or(|record| !is_alive(record));
        alive.retain(|(rank, _)| !has_ended(*rank));
        alive.sort_unstable();
        let Some(stop) = self.gang.stop_ordered().filter(|_| self.gang.killed_at().is_none()) else { return };
        let since = self.now.saturating_sub(stop);
        let mut policy = self.spec.stop.clone();
        if let Some(grace) = self.gang.requested().and_then(|request| request.grace) {
            policy.grace_outside = grace;
        }
        if let Some(text) =
            still_alive(self.gang.outside(), self.gang.interrupted_at().is_some(), since, &policy, &alive)
        {
            self.note(text);
            self.look(Purpose::Alive, Some(alive.into_iter().map(|(rank, _)| rank).collect()), false);
        }
    }

    /// The ranks that have not ended.
    pub fn alive(&self) -> Vec<Rank> {
        self.gang.ranks().iter().filter(|record| is_alive(record)).map(|record| record.rank).collect()
    }
}

/// Whether a rank that was interrupted ended as programs do that do not handle SIGINT. One that exits has handled it: a shell
/// takes its code for that of any other command, and goes on.
pub fn is_by_signal(status: WorkerStatus) -> bool {
    status != WorkerStatus::Exited { code: ExitCode::signal(SIGINT).0 }
}

fn is_alive(record: &RankRecord) -> bool {
    record.status.is_none() && record.outcome.is_none()
}

/// The line about the ranks that are alive so long after the stop; of each, whether it is writing files. `is_interrupted`: another ^C kills.
fn still_alive(
    outside: Option<Outside>,
    is_interrupted: bool,
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
        Some(Outside::Signal(_) | Outside::Interrupted(_)) if left(policy.grace_outside) > 0.0 => {
            let ranks = named(alive.iter().map(|(rank, _)| *rank).collect())?;
            let again = if is_interrupted { "; ^C kills now" } else { "" };
            Some(format!("still alive: {ranks}; SIGKILL in {} s{again}", left(policy.grace_outside)))
        }
        None | Some(Outside::Timeout | Outside::Planned(_) | Outside::Hang) if left(policy.grace_saving) > 0.0 => {
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
            let is_interrupted = outside == Some(Outside::Signal(SIGINT));
            still_alive(outside, is_interrupted, Duration::from_secs(6), &policy, &alive)
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
            line(Some(Outside::Signal(SIGINT)), &[(0, false), (1, true)]).as_deref(),
            Some("still alive: ranks 0-1; SIGKILL in 19 s; ^C kills now")
        );
        assert_eq!(line(Some(Outside::OutputGone), &[(0, true)]), None);
    }
}
