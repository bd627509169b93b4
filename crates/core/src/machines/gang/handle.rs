//! The events of a gang, each led to what it changes.

use std::time::Duration;

use super::event::{Effect, Event};
use super::outside::{LostNode, Outside};
use super::state::Gang;
use crate::evidence::{Fact, Source};
use crate::node_clock::Moment;
use crate::open_mpi;
use crate::testimony::Exception;

impl Gang {
    /// Handles one event of the front itself; appends to `effects`.
    pub fn handle(&mut self, now: Duration, event: Event, effects: &mut Vec<Effect>) {
        self.handle_of(Moment::of_front(now), event, effects);
    }

    /// Handles one event of a node, which happened before it was received.
    pub fn handle_of(&mut self, mut moment: Moment, event: Event, effects: &mut Vec<Effect>) {
        if let (Some(Outside::GuardLost | Outside::AgentLost | Outside::WireUpLost), Some(stop)) =
            (self.outside(), self.stop_at)
        {
            // The agent stops its workers before the front knows of the loss: what is received after it is an effect of
            // it.
            moment.at = moment.at.max(stop + Duration::from_nanos(1));
        }
        let now = moment.now;
        match event {
            Event::Started { worker, pid } => {
                if let Some(record) = self.ranks.get_mut(worker.rank) {
                    self.unstarted -= usize::from(record.pid.replace(pid).is_none());
                    record.started_at = Some(moment.at);
                }
            }
            Event::SpawnFailed { worker, step, error, command, not_found } => {
                self.spawn_code = self.spawn_code.or(not_found);
                self.fact(moment, worker.rank, Fact::SpawnFailed { step, error, command }, effects);
            }
            Event::Signalled { worker, record } => {
                if let Some(of) = self.ranks.get_mut(worker.rank) {
                    of.stop = record;
                }
            }
            Event::Ended { worker, status } => self.ended(moment, worker.rank, status, effects),
            Event::Gone { worker, outcome } => {
                if let Some(record) = self.ranks.get_mut(worker.rank) {
                    record.outcome = Some(outcome);
                }
            }
            Event::Mpi { worker, event } => self.mpi(moment, worker.rank, event, effects),
            Event::Stopped { worker, signal } => self.fact(moment, worker.rank, Fact::Stopped { signal }, effects),
            Event::Again { worker } => self.again(worker),
            Event::NotReady { worker, after } => self.fact(moment, worker.rank, Fact::NotReady { after }, effects),
            Event::Testimony { worker, pid, testimony } => self.testimony(moment, worker.rank, pid, testimony, effects),
            Event::Stuck { worker, pid, place, since, leader } => {
                self.fact_of(moment, worker.rank, Some(pid), Fact::Stuck { place, since, leader }, effects);
            }
            Event::OutOfMemory { worker, detail } => {
                self.fact(moment, worker.rank, Fact::OutOfMemory { detail }, effects)
            }
            Event::CpuTime { worker, used, limit } => {
                self.fact(moment, worker.rank, Fact::CpuTime { used, limit }, effects)
            }
            Event::HelperOutOfMemory { worker, pid, name, detail } => {
                self.fact_of(moment, worker.rank, Some(pid), Fact::HelperOutOfMemory { name, detail }, effects);
            }
            Event::OpenMpi { worker } => {
                let exception = Exception { message: open_mpi::CAUSE.to_owned(), ..Exception::default() };
                self.fact(moment, worker.rank, Fact::Exception { source: Source::Program, exception }, effects);
            }
            Event::Suspect { worker, exception, end, silent } => {
                self.fact(moment, worker.rank, Fact::Suspect { exception, ended: end, silent }, effects);
            }
            Event::Hookless(worker, why) => {
                if let Some(record) = self.ranks.get_mut(worker.rank) {
                    record.hookless = Some(why);
                }
            }
            Event::Alone { alone, end } => {
                self.alone = alone;
                if end {
                    self.end_from_outside(now, Outside::Alone, self.rules.grace_failure, effects);
                }
            }
            Event::LastWords { worker, words } => self.last_words(moment, worker.rank, words, effects),
            Event::Signal(signal) => self.signal(now, signal, effects),
            Event::Planned(stop) => {
                self.end_from_outside(now, Outside::Planned(stop), self.rules.grace_outside, effects);
            }
            Event::StopRequest(request) => self.stop_request(now, request, effects),
            Event::RestartRequest => self.end_from_outside(now, Outside::Restart, self.rules.grace_outside, effects),
            Event::Hang(hang) => {
                self.hang.get_or_insert(hang);
                self.end_from_outside(now, Outside::Hang, self.rules.grace_failure, effects);
            }
            Event::OutputGone => self.end_from_outside(now, Outside::OutputGone, self.rules.grace_failure, effects),
            Event::OutputFailed => self.end_from_outside(now, Outside::OutputFailed, self.rules.grace_failure, effects),
            Event::LogsFailed { reason } => {
                self.why_no_logs.get_or_insert(reason);
                self.end_from_outside(now, Outside::OutputFailed, self.rules.grace_failure, effects);
            }
            Event::AgentLost => self.end_from_outside(now, Outside::AgentLost, self.rules.grace_failure, effects),
            Event::GuardLost => self.end_from_outside(now, Outside::GuardLost, self.rules.grace_failure, effects),
            Event::NodeLost { node, name, why, workers, goes_on } => {
                self.lose_node(LostNode { node, name, why, at: moment.at }, &workers);
                if !goes_on {
                    self.end_from_outside(now, Outside::NodeLost, self.rules.grace_failure, effects);
                }
            }
            Event::Missed { worker } => self.missed(moment, worker.rank, effects),
            Event::LossKnown { node, why } => self.know_loss(node, why),
            Event::StoodStill { time } => self.stood_still = Some(time),
            Event::WireUpLost { reason } => {
                self.why_wire_up_lost = reason;
                self.end_from_outside(now, Outside::WireUpLost, self.rules.grace_failure, effects);
            }
            Event::Tick => self.tick(now, effects),
        }
    }

    fn tick(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        self.stop_after_wait(now, effects);
        if self.rules.timeout.is_some_and(|timeout| now >= timeout) && self.stop_at.is_none() {
            self.end_from_outside(now, Outside::Timeout, self.rules.grace_failure, effects);
        }
        self.judge_exits_without_finalize(now, effects);
    }
}
