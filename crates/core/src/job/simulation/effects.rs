//! What the job orders, done by the simulated machines.

use std::time::Duration;

use super::{Action, Machine, Told, Violation, World};
use crate::event::Entry;
use crate::ids::Attempt;
use crate::job::event::{Added, Effect, Enrolment, Event, Meeting, NodeEvent};
use crate::job::settings::Way;
use crate::reach::Step;
use crate::restart::Answer;
use crate::spec::job::RestartScope;

/// How often the user may be told the same.
const MOST_TOLD: u32 = 200;

impl World {
    /// The user is told something: nothing again and again.
    fn is_told(&mut self, text: &str) -> Result<(), Violation> {
        let times = self.told.entry(text.to_owned()).or_default();
        *times += 1;
        match *times > MOST_TOLD {
            true => self.violates(format!("{MOST_TOLD} times: {text}")),
            false => Ok(()),
        }
    }

    pub(super) fn perform(&mut self, effects: Vec<Effect>) -> Result<(), Violation> {
        for effect in effects {
            if let Effect::Note(text) = &effect {
                self.is_told(text)?;
            }
            match effect {
                Effect::Send(order) => {
                    for node in self.job.nodes().ids() {
                        self.tell(node, Told::Order(order.clone()));
                    }
                }
                Effect::Beat(node) => self.beat(node),
                Effect::Start { node, place, group, meeting } => {
                    let Some(spec) = self.job.spec_of(group) else {
                        return self.violates(format!("group {group} begins, and is not there"));
                    };
                    let attempt = spec.attempt;
                    let is_first = matches!(meeting, Meeting::Here { .. });
                    let ranks = spec.map.on_node(place).map(|place| place.rank).collect();
                    self.tell(node, Told::Start { group, attempt, ranks, is_first });
                }
                Effect::AnswerSpawn { asker, .. } if !self.asked.remove(&(asker.worker, asker.id)) => {
                    return self.violates(format!("{asker:?} is answered, and has not asked"));
                }
                Effect::GiveUp(node) => {
                    let machine = &mut self.machines[node.index()];
                    // Its ssh is killed.
                    machine.is_held &= machine.way == Way::Here;
                    self.close(node);
                }
                Effect::End(node) | Effect::Disconnect(node) => self.close(node),
                Effect::Call(node) => self.call(node),
                Effect::LookAtCall(node) => {
                    let seen = NodeEvent::CallSeen { unsent: 0, has_logged_in: false, noise: None };
                    self.of_node(node, seen)?;
                }
                Effect::RunFor(node, command) => {
                    // What it says is true: it ends what is there.
                    let machine = &mut self.machines[node.index()];
                    machine.ranks.clear();
                    (machine.has_agent, machine.is_off) = (false, true);
                    let ended = NodeEvent::CommandEnded { command, answer: Ok(String::new()) };
                    self.after(300, Action::Arrive(Event::Node { node, event: ended }));
                }
                Effect::AddNode(node, Added::Host(_)) => return self.violates(format!("nobody has named node {node}")),
                Effect::AddNode(node, Added::Again(before)) => {
                    if node.index() != self.machines.len() {
                        return self.violates(format!("node {node} is added, and there are {}", self.machines.len()));
                    }
                    // The machine may have been switched on again.
                    let (cut_until, was_off, way) = {
                        let before = &self.machines[before.index()];
                        (before.cut_until, before.is_off, before.way)
                    };
                    // A node that joins is on.
                    let is_off = way == Way::Ssh && was_off && self.dice.chance(50);
                    self.machines.push(Machine { cut_until, is_off, ..Machine::new(way) });
                }
                // Its command is started again, or never.
                Effect::Enrolled(node, Enrolment::Lost) if self.takes_nodes_in && self.dice.chance(80) => {
                    let after = self.dice.time(Duration::from_secs(30));
                    let after = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                    self.after(after, Action::Arrive(Event::Node { node, event: NodeEvent::Followed }));
                }
                Effect::Enrolled(node, Enrolment::Refused) => {
                    self.after(1_000, Action::Arrive(Event::Node { node, event: NodeEvent::Followed }));
                }
                Effect::Enrolled(node, Enrolment::After(before)) => {
                    if self.job.nodes().get(before).is_none_or(|before| !before.is_lost()) {
                        return self.violates(format!("node {node} comes after node {before}, which is not lost"));
                    }
                    match self.dice.chance(90) {
                        true => self.after(5, Action::Joins(node)),
                        false => {
                            let gone = NodeEvent::CallFailed { step: Step::Handshake, why: "it is gone".to_owned() };
                            self.of_node(node, gone)?;
                        }
                    }
                }
                Effect::Ask(node) => self.ask(node)?,
                Effect::AskSecond(node) => {
                    self.machines[node.index()].is_asked_second = true;
                    self.after(50, Action::Proves(node));
                }
                Effect::Note(text) if text.contains(" is back") || text.contains(" takes the place of ") => {
                    self.outline.replaced += 1
                }
                Effect::Note(text) if text.contains(" is ready") => self.outline.nodes_back += 1,
                Effect::RankStarted { worker, .. } => drop(self.started.insert(worker.rank)),
                Effect::BeginAttempt => {
                    self.started.clear();
                    if self.job.spec().attempt != Attempt(self.attempt.0 + 1) {
                        return self.violates(format!("attempt {} follows {}", self.job.spec().attempt, self.attempt));
                    }
                    self.attempt = self.job.spec().attempt;
                }
                Effect::OpenLogs => self.after(3, Action::Arrive(Event::LogsOpened)),
                Effect::ShowRest => self.after(2, Action::Arrive(Event::Shown)),
                Effect::Stamp(attempt) => {
                    let stamp = self.dice.chance(50).then(|| (self.dice.below(9), 0));
                    if self.dice.chance(90) {
                        self.after(1, Action::Arrive(Event::Stamped { attempt, stamp }));
                    }
                }
                Effect::AskPolicy { .. } => self.after(20, Action::Arrive(Event::Answered(Ok(Answer::Own)))),
                Effect::Record { at, event } => {
                    let taken = self.replay.as_mut().map(|replay| replay.take(Entry::new(at, *event)));
                    if let Some(Err(error)) = taken {
                        return self.violates(format!("the journal does not fit: {error}"));
                    }
                }
                _ => {}
            }
        }
        self.check_is_up()
    }

    /// Who waits until all ranks run does not wait for ever: with `--restart-scope rank` too, where some may have ended since.
    fn check_is_up(&self) -> Result<(), Violation> {
        let spec = self.job.spec();
        let have_all_run = self.started.len() == spec.map.world_size() as usize;
        let is_of_ranks = spec.restart.scope == RestartScope::Rank && spec.restart.ready_timeout.is_none();
        match is_of_ranks && have_all_run && self.job.last_up() != Some(spec.attempt) {
            true => self.violates("all ranks have run, and the job is not up".to_owned()),
            false => Ok(()),
        }
    }
}
