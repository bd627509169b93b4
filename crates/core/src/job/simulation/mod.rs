//! Whole jobs in virtual time: nodes with agents and ranks that fail, connections that are cut and heal, agents that are killed, machines
//! that are switched off, signals and requests, around a [`Job`] as it is.
//!
//! Everything random comes from one seed, so that a run can be repeated. What a run must keep is checked at every step ([`Violation`]).

mod dice;
mod effects;
mod faults;
mod machines;
mod outset;
mod successor;
pub mod wild;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use self::dice::Dice;
use self::outset::spec;
use self::successor::Kept;
use crate::event::{Entry, JobEvent, Replay};
use crate::gang::Rules;
use crate::ids::{Attempt, GroupId, NodeId, Rank, WorkerId};
use crate::job::event::{Event, NodeEvent};
use crate::job::inputs::{Input, Origin};
use crate::job::machine::Job;
use crate::job::order::Order;
use crate::job::parts::about::{About, Containment};
use crate::job::settings::{Grow, Host, Settings, Way};
use crate::planned::PlannedSpec;
use crate::spec::job::{Recent, RestartScope};
use crate::status::WorkerStatus;
use crate::verdict::verdict;
use crate::worker::Outcome;

/// No job of a simulation lasts longer.
const LONGEST: Duration = Duration::from_secs(4 * 3600);
/// No end takes longer once no agent is connected: 15 s for what holds the nodes, 10 s for those of which nothing is known.
const CLOSING_BOUND: Duration = Duration::from_secs(26);
/// How often the front looks at what holds its nodes.
const LOOK_STEP: Duration = Duration::from_millis(250);
/// No job has more events.
const MOST_EVENTS: u64 = 200_000;

/// What is simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    /// At most so many nodes, and so many faults.
    pub nodes: u32,
    pub faults: u32,
    /// At most so many nodes more, which begin without ranks.
    pub spares: u32,
}

/// What a run has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outline {
    pub events: u64,
    pub attempts: u32,
    pub nodes_lost: u32,
    /// Nodes that were lost, and have come back; and places that another node has got.
    pub nodes_back: u32,
    pub replaced: u32,
    pub code: u8,
}

/// What a run has not kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    pub at: Duration,
    pub what: String,
}

/// Simulates one job.
///
/// # Errors
///
/// The job has not kept an invariant.
pub fn simulate(seed: u64, setup: Setup) -> Result<Outline, Violation> {
    World::new(seed, setup).run()
}

/// A rank that lives on a node.
#[derive(Clone, Copy, Debug)]
struct Living {
    attempt: Attempt,
    /// Its leader has ended.
    has_ended: bool,
}

/// A machine with its agent, in truth.
#[derive(Debug)]
struct Machine {
    way: Way,
    /// The number of the connection, and whether each side has it open.
    link: u64,
    is_front_end_open: bool,
    is_agent_end_open: bool,
    /// There is an agent.
    has_agent: bool,
    is_off: bool,
    /// Until when nothing passes between it and the front.
    cut_until: Duration,
    /// When the agent last heard the front.
    heard: Duration,
    /// The agent ends its ranks since it has lost the front, or was told to.
    is_ending: bool,
    ranks: BTreeMap<Rank, Living>,
    /// The ranks that may be started again: the front has not said that they will not.
    open: BTreeSet<Rank>,
    /// What is to be said once all ranks are gone.
    attempt: Option<Attempt>,
    /// It was not said yet that the attempt is over.
    owes_over: bool,
    /// How many groups it was told to start in the attempt.
    groups: u32,
    /// The guard has ended, and something is left.
    leaves: bool,
    /// The guard, or the ssh that leads to it, has not ended.
    is_held: bool,
    is_asked_second: bool,
    /// What is sent over a connection arrives in its order.
    last_to_agent: Duration,
    last_to_front: Duration,
}

/// What happens at a time.
#[derive(Clone, PartialEq, Debug)]
enum Action {
    /// An event arrives at the front, from no node, or from one over this connection.
    Arrive(Event),
    ArriveFrom(NodeId, u64, NodeEvent),
    /// The front's end of this connection sees its end.
    EndArrives(NodeId, u64),
    /// The agent's end of this connection sees its end.
    AgentSeesEnd(NodeId, u64),
    AgentHears(NodeId, u64),
    AgentLooks(NodeId),
    Told(NodeId, u64, Told),
    RankStarts(NodeId, Rank, Attempt),
    RankAsks(NodeId, Rank, Attempt),
    RankEnds(NodeId, Rank, Attempt, WorkerStatus),
    RankGone(NodeId, Rank, Attempt, Outcome),
    Joins(NodeId),
    Proves(NodeId),
    Fault,
}

/// What an agent is told.
#[derive(Clone, PartialEq, Debug)]
enum Told {
    /// `is_first`: the ranks meet there.
    Start {
        group: GroupId,
        attempt: Attempt,
        ranks: Vec<Rank>,
        is_first: bool,
    },
    Order(Order),
}

impl Machine {
    fn new(way: Way) -> Machine {
        let is_here = way == Way::Here;
        Machine {
            way,
            link: u64::from(is_here),
            is_front_end_open: is_here,
            is_agent_end_open: is_here,
            has_agent: is_here,
            is_off: false,
            cut_until: Duration::ZERO,
            heard: Duration::ZERO,
            is_ending: false,
            ranks: BTreeMap::new(),
            open: BTreeSet::new(),
            attempt: None,
            owes_over: false,
            groups: 0,
            leaves: false,
            is_held: is_here,
            is_asked_second: false,
            last_to_agent: Duration::ZERO,
            last_to_front: Duration::ZERO,
        }
    }
}

#[derive(Debug)]
struct World {
    /// The requests for groups that are not answered.
    asked: BTreeSet<(WorkerId, u64)>,
    dice: Dice,
    now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    actions: BTreeMap<u64, Action>,
    next: u64,
    /// What it was given: its front may die at any moment.
    kept: Kept,
    job: Job,
    machines: Vec<Machine>,
    patience: Duration,
    grace: Duration,
    faults: u32,
    outline: Outline,
    /// The attempt that has begun last, as the effects have it.
    attempt: Attempt,
    /// The ranks that have been started in it.
    started: BTreeSet<Rank>,
    ranks_fail: u64,
    is_of_mpi: bool,
    /// What the journal comes to, for every fourth job.
    replay: Option<Replay>,
    /// Nodes that join may come after those that were lost.
    takes_nodes_in: bool,
    /// How often the user was told each thing.
    told: BTreeMap<String, u32>,
}

impl World {
    fn new(seed: u64, setup: Setup) -> World {
        let mut dice = Dice::of(seed, 0x9E37_79B9_7F4A_7C15);
        let nodes = 1 + dice.below(u64::from(setup.nodes)) as u32;
        let spec = spec(&mut dice, nodes);
        let other = if dice.chance(50) { Way::Ssh } else { Way::Joins };
        let has_here = nodes == 1 || dice.chance(70);
        let way = |node: u32| if node == 0 && has_here { Way::Here } else { other };
        // Of a dice of its own: a seed without spares is the job that it was.
        let mut more = Dice::of(seed, 0xD1B5_4A32_D192_ED03);
        let spares = if nodes > 1 { more.below(u64::from(setup.spares) + 1) as u32 } else { 0 };
        let ways: Vec<Way> = (0..nodes + spares).map(way).collect();
        let hosts = ways
            .iter()
            .zip(0..)
            .map(|(way, node)| Host { name: format!("n{node}"), way: *way, slots: Some(2) })
            .collect();
        let least = dice.chance(60).then(|| 1 + dice.below(u64::from(nodes)) as u32);
        let mut plans = Dice::of(seed, 0xA076_1D64_78BD_642F);
        let limit = plans.chance(20).then(|| Duration::from_secs(1 + plans.below(300)));
        let planned = PlannedSpec::of(limit, plans.chance(50));
        let settings = Settings {
            hosts,
            least,
            is_elastic: setup.spares > 0 && (least.is_some() || spares > 0),
            wait_for_nodes: Duration::from_secs(120),
            fences: more.chance(30),
            replaces: false,
            needs_proof: false,
            exclude_after: more.chance(50).then(|| Recent { restarts: 2, window: Duration::from_secs(60) }),
            grow: if setup.spares > 0 && more.chance(50) { Grow::Restart } else { Grow::Next },
            node_timeout: Duration::from_secs(1 + dice.below(60)),
            on_front_lost: Default::default(),
            start_timeout: Duration::from_secs(60),
            last_call: Duration::from_secs(30),
            at_a_time: 8,
            interface: None,
            local_addr: None,
            is_oar: false,
            has_steps: false,
            stall: None,
            planned,
            has_terminal: false,
            strict: false,
            end_suspects: false,
            verbosity: 0,
            mpi_libraries: Vec::new(),
            opens_logs: dice.chance(20),
            is_stdin_stream: false,
            report_directory: None,
            is_recorded: seed.is_multiple_of(4),
            seed,
        };
        let rules = Rules {
            grace_failure: spec.stop.grace_failure,
            grace_outside: spec.stop.grace_outside,
            timeout: dice.chance(20).then(|| Duration::from_secs(1 + dice.below(300))),
            keep_going: dice.chance(20),
            terminal: None,
        };
        let grace = spec.stop.grace_failure;
        let is_recorded = settings.is_recorded;
        let takes_nodes_in = settings.is_elastic && spec.restart.is_on();
        let (kept, job) = Kept::begin(seed, Origin { spec, rules, settings });
        let first = || Entry::new(Duration::ZERO, JobEvent::Job(Box::new(job.facts().clone())));
        let replay = is_recorded.then(|| Replay::new(first()).expect("it begins with the job"));
        let machines = ways.iter().map(|way| Machine::new(*way)).collect();
        let ranks_fail = [0, 5, 40][dice.below(3) as usize];
        let faults = dice.below(u64::from(setup.faults) + 1) as u32;
        let patience = job.patience();
        World {
            asked: BTreeSet::new(),
            dice,
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            actions: BTreeMap::new(),
            next: 1,
            kept,
            job,
            machines,
            patience,
            grace,
            faults,
            outline: Outline::default(),
            attempt: Attempt(0),
            started: BTreeSet::new(),
            ranks_fail,
            is_of_mpi: seed % 3 == 1,
            replay,
            takes_nodes_in,
            told: BTreeMap::new(),
        }
    }

    fn run(mut self) -> Result<Outline, Violation> {
        self.take(Event::Begin)?;
        for node in self.job.nodes().ids() {
            match self.machines[node.index()].way {
                Way::Here => self.after(5, Action::ArriveFrom(node, 1, ready(node))),
                // Some never come.
                Way::Joins if self.dice.below(1000) < 995 => {
                    let after = self.dice.time(Duration::from_secs(50));
                    self.at(after, Action::Joins(node));
                }
                Way::Joins | Way::Ssh => {}
            }
        }
        for _ in 0..self.faults {
            let at = self.dice.time(Duration::from_secs(200));
            self.at(at, Action::Fault);
        }
        let mut closes_by = None;
        while !self.job.is_closed() {
            self.outline.events += 1;
            let due = self.queue.peek().map(|Reverse((at, _))| *at);
            let look = self.job.is_closing().then_some(self.now + LOOK_STEP);
            let Some(next) = [due, look, self.job.deadline()].into_iter().flatten().min() else {
                return self.violates(format!("nothing is waited for, and the job is not over: {}", self.describe()));
            };
            self.now = self.now.max(next);
            if self.job.is_closing() && self.now > *closes_by.get_or_insert(self.now + CLOSING_BOUND) {
                return self.violates(format!("the end takes too long: {}", self.describe()));
            }
            if self.now > LONGEST || self.outline.events > MOST_EVENTS {
                return self.violates(format!("the job does not end: {}", self.describe()));
            }
            self.kept.give(&mut self.job, self.now, Input::Turn, &mut Vec::new());
            if let Err(what) = self.kept.may_die(&mut self.job) {
                return self.violates(what);
            }
            if due == Some(next) {
                let Some(Reverse((_, number))) = self.queue.pop() else { continue };
                if let Some(action) = self.actions.remove(&number) {
                    self.act(action)?;
                    self.check_gone()?;
                }
            }
            // What devices find out by what was ordered comes after the tick.
            if due == Some(next) && self.dice.chance(10) {
                continue;
            }
            self.take(Event::Tick)?;
            if self.job.is_closing() {
                let held = self.job.nodes().ids().filter(|node| self.machines[node.index()].is_held).collect();
                self.take(Event::Held(held))?;
            }
        }
        self.end()
    }

    /// The loop of the front is over: what it says must be true.
    fn end(mut self) -> Result<Outline, Violation> {
        self.check_gone()?;
        let verdict = verdict(self.job.gang());
        let size = size_of(&self.job);
        if verdict.fates.len() != size || self.job.gang().ranks().len() != size {
            return self.violates("a rank has no fate, or two".to_owned());
        }
        if let Some(replay) = &self.replay {
            let (gang, other) = (self.job.gang(), &replay.gang);
            let is_same = verdict == crate::verdict::verdict(other)
                && (gang.stop_ordered(), gang.killed_at()) == (other.stop_ordered(), other.killed_at());
            if !is_same || !replay.is_faithful() {
                return self.violates("the journal comes to another end".to_owned());
            }
        }
        self.outline.code = verdict.code.0;
        self.outline.attempts = self.attempt.0 + 1;
        self.outline.nodes_lost = self.job.nodes().iter().filter(|node| node.is_lost()).count() as u32;
        Ok(self.outline)
    }

    fn violates<T>(&self, what: String) -> Result<T, Violation> {
        Err(Violation { at: self.now, what })
    }

    fn describe(&self) -> String {
        let states = self.job.nodes().iter().map(|node| format!("{:?}", node.state(self.now))).collect::<Vec<_>>();
        let living: usize = self.machines.iter().map(|machine| machine.ranks.len()).sum();
        let waits = self.job.deadlines().map(|(what, at)| at.map(|at| format!("{what} {at:?}")));
        let waits = waits.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let gang = self.job.gang();
        let (stop, outside) = (gang.stop_ordered(), gang.outside());
        format!(
            "attempt {}, nodes {}, {living} ranks live, waits for {waits}; stop {stop:?}, {outside:?}, {:?}",
            self.attempt,
            states.join(" "),
            self.job.waits()
        )
    }

    fn at(&mut self, at: Duration, action: Action) {
        self.queue.push(Reverse((at, self.next)));
        self.actions.insert(self.next, action);
        self.next += 1;
    }

    fn after(&mut self, ms: u64, action: Action) {
        self.at(self.now + Duration::from_millis(ms), action);
    }

    /// How long a message is under way.
    fn latency(&mut self) -> u64 {
        if self.dice.chance(95) { 1 + self.dice.below(5) } else { self.dice.below(800) }
    }

    /// Something that this agent sends over its connection.
    fn send(&mut self, node: NodeId, event: NodeEvent) {
        let latency = self.latency();
        self.send_after(node, latency, event);
    }

    fn send_after(&mut self, node: NodeId, ms: u64, event: NodeEvent) {
        let machine = &self.machines[node.index()];
        if !machine.is_agent_end_open || machine.is_off {
            return;
        }
        let link = machine.link;
        // What is sent during a cut comes later, in order: TCP sends it again.
        let at = (self.now + Duration::from_millis(ms)).max(machine.cut_until + Duration::from_millis(1));
        let at = at.max(machine.last_to_front);
        self.machines[node.index()].last_to_front = at;
        self.at(at, Action::ArriveFrom(node, link, event));
    }

    /// The job takes an event, and its effects are done.
    fn take(&mut self, event: Event) -> Result<(), Violation> {
        let mut effects = Vec::new();
        self.kept.give(&mut self.job, self.now, Input::Event(Cow::Owned(event)), &mut effects);
        self.perform(effects)
    }

    fn of_node(&mut self, node: NodeId, event: NodeEvent) -> Result<(), Violation> {
        self.take(Event::Node { node, event })
    }

    fn act(&mut self, action: Action) -> Result<(), Violation> {
        match action {
            Action::Arrive(event) => self.take(event),
            Action::ArriveFrom(node, link, event) => self.arrive(node, link, event),
            Action::EndArrives(node, link) => {
                let machine = &mut self.machines[node.index()];
                if machine.link != link || !std::mem::take(&mut machine.is_front_end_open) {
                    return Ok(());
                }
                self.of_node(node, NodeEvent::Broke { is_end: true, why: "its connection was closed".to_owned() })
            }
            Action::AgentSeesEnd(node, link) => {
                let machine = &mut self.machines[node.index()];
                if machine.link == link && std::mem::take(&mut machine.is_agent_end_open) {
                    self.agent_loses_front(node);
                }
                Ok(())
            }
            Action::AgentHears(node, link) => {
                let now = self.now;
                let machine = &mut self.machines[node.index()];
                if machine.link == link && machine.is_agent_end_open && machine.has_agent && !machine.is_off {
                    machine.heard = now;
                    self.send(node, NodeEvent::Heard);
                }
                Ok(())
            }
            Action::AgentLooks(node) => {
                let machine = &mut self.machines[node.index()];
                if !machine.has_agent || machine.is_off || !machine.is_agent_end_open {
                    return Ok(());
                }
                if self.now.saturating_sub(machine.heard) >= self.patience {
                    machine.is_agent_end_open = false;
                    self.agent_loses_front(node);
                } else {
                    self.after(1000, Action::AgentLooks(node));
                }
                Ok(())
            }
            Action::Told(node, link, told) => {
                let now = self.now;
                let machine = &mut self.machines[node.index()];
                if machine.link != link || !machine.has_agent || machine.is_off || !machine.is_agent_end_open {
                    return Ok(());
                }
                machine.heard = now;
                match told {
                    Told::Start { group, attempt, ranks, is_first } => {
                        self.agent_starts(node, group, attempt, ranks, is_first)
                    }
                    Told::Order(order) => self.agent_is_told(node, order),
                }
            }
            Action::RankStarts(node, rank, attempt) => self.rank_starts(node, rank, attempt),
            Action::RankAsks(node, rank, attempt) => {
                self.rank_asks(node, rank, attempt);
                Ok(())
            }
            Action::RankEnds(node, rank, attempt, status) => {
                self.rank_ends(node, rank, attempt, status);
                Ok(())
            }
            Action::RankGone(node, rank, attempt, outcome) => {
                self.rank_gone(node, rank, attempt, outcome);
                Ok(())
            }
            Action::Joins(node) => self.joins(node),
            Action::Proves(node) => self.prove(node),
            Action::Fault => self.fault(),
        }
    }

    /// J-1: no ranks of two attempts live.
    fn check_attempts(&self) -> Result<(), Violation> {
        if self.job.spec().restart.scope == RestartScope::Rank {
            return Ok(());
        }
        let mut living = self.machines.iter().flat_map(|machine| machine.ranks.values()).map(|living| living.attempt);
        let Some(first) = living.next() else { return Ok(()) };
        match living.find(|attempt| *attempt != first) {
            Some(other) => self.violates(format!("ranks of the attempts {first} and {other} live")),
            None => Ok(()),
        }
    }
}

/// How many ranks the job has, those of all groups.
fn size_of(job: &Job) -> usize {
    let facts = job.facts();
    let sizes = facts.groups.iter().map(|facts| facts.map.world_size());
    sizes.chain([facts.map.world_size()]).map(|size| size as usize).sum()
}

fn ready(node: NodeId) -> NodeEvent {
    NodeEvent::Ready(About {
        containment: Containment::Cgroup,
        host: format!("n{node}"),
        addresses: Vec::new(),
        machine: format!("m{node}"),
        is_loopback_name: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs that have shown a violation before: nodes, faults and seed in a line.
    const SEEDS: &str = include_str!("seeds.txt");

    #[test]
    fn jobs_that_broke_an_invariant_once_keep_all_of_them() {
        for line in SEEDS.lines().filter(|line| !line.starts_with('#')) {
            let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
            let [nodes, faults, seed] = numbers[..] else { panic!("{line}: three numbers") };
            let setup = Setup { nodes: nodes as u32, faults: faults as u32, spares: 0 };
            assert!(simulate(seed, setup).is_ok(), "{line}: {:?}", simulate(seed, setup));
        }
    }

    #[test]
    fn jobs_keep_their_invariants_whatever_fails() {
        let setup = Setup { nodes: 8, faults: 5, spares: 0 };
        let runs = 300;
        let mut attempts = 0;
        for seed in 0..runs {
            match simulate(seed, setup) {
                Ok(outline) => attempts += outline.attempts,
                Err(violation) => panic!("seed {seed}: {violation:?}"),
            }
        }
        assert!(u64::from(attempts) > runs, "jobs are started again");
    }
}
