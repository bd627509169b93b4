//! The machines of a simulated job: their agents, ranks and connections.

use std::time::Duration;

use super::{Action, Living, Told, Violation, World, ready};
use crate::evidence::MpiEvent;
use crate::exit::ExitCode;
use crate::fence::Fate;
use crate::grace::StopRecord;
use crate::ids::{Attempt, GroupId, NodeId, Pid, Rank, Stream, WorkerId};
use crate::job::event::{AgentEvent, NodeEvent, WorkerEvent};
use crate::job::order::Order;
use crate::job::parts::about::Summary;
use crate::job::parts::node::Node;
use crate::job::settings::Way;
use crate::names::Protocol;
use crate::spec::job::RestartScope;
use crate::spec::spawning::{SpawnApp, SpawnAsker, SpawnRequest};
use crate::status::WorkerStatus;
use crate::worker::{Outcome, Stop, StopWhy};

impl World {
    /// J-4: nothing is said to be gone from a node that is not.
    pub(super) fn check_gone(&self) -> Result<(), Violation> {
        for (machine, node) in self.machines.iter().zip(self.job.nodes().iter()) {
            let is_said = node.is_lost() && (node.fate() == Fate::Gone || node.route().is_proved());
            if is_said && !machine.ranks.is_empty() && !node.is_here() {
                return self.violates(format!("node {} is said to be empty, and is not: {machine:?}", node.id()));
            }
        }
        Ok(())
    }

    pub(super) fn is_reachable(&self, node: NodeId) -> bool {
        let machine = &self.machines[node.index()];
        !machine.is_off && machine.cut_until <= self.now
    }

    /// The front sends something over a connection.
    pub(super) fn tell(&mut self, node: NodeId, told: Told) {
        let latency = self.latency();
        let machine = &self.machines[node.index()];
        if !machine.is_front_end_open {
            return;
        }
        let link = machine.link;
        let at = (self.now + Duration::from_millis(latency)).max(machine.cut_until + Duration::from_millis(1));
        let at = at.max(machine.last_to_agent);
        self.machines[node.index()].last_to_agent = at;
        self.at(at, Action::Told(node, link, told));
    }

    pub(super) fn beat(&mut self, node: NodeId) {
        let machine = &self.machines[node.index()];
        if machine.is_front_end_open && self.is_reachable(node) {
            let link = machine.link;
            self.after(1, Action::AgentHears(node, link));
        }
    }

    /// The front closes its end. The agent sees that, unless the network is cut.
    pub(super) fn close(&mut self, node: NodeId) {
        let machine = &mut self.machines[node.index()];
        if !std::mem::take(&mut machine.is_front_end_open) {
            return;
        }
        let (link, is_off, healed) = (machine.link, machine.is_off, machine.cut_until);
        // After a cut it may see a reset, or nothing.
        if !is_off && (healed <= self.now || self.dice.chance(50)) {
            self.at((self.now + Duration::from_millis(1)).max(healed), Action::AgentSeesEnd(node, link));
        }
    }

    pub(super) fn call(&mut self, node: NodeId) {
        let reached = NodeEvent::Reached { host: None, client: None, server: None, noise: None };
        let is_off = self.machines[node.index()].is_off;
        match self.dice.below(1000) {
            _ if is_off => {
                let words = "Connection timed out".to_owned();
                let ended = NodeEvent::CallEnded { code: 255, words, noise: None };
                self.after(20_000, Action::ArriveFrom(node, 0, ended));
            }
            0..20 => {
                let words = "kex_exchange_identification: Connection closed".to_owned();
                let ended = NodeEvent::CallEnded { code: 255, words, noise: None };
                self.after(30, Action::ArriveFrom(node, 0, ended));
            }
            20..25 => {
                let ended = NodeEvent::CallEnded { code: 255, words: "Permission denied".to_owned(), noise: None };
                self.after(30, Action::ArriveFrom(node, 0, ended));
            }
            // It never says a word.
            25..29 => {}
            _ => {
                let delay = 100 + self.dice.below(900);
                self.after(delay, Action::ArriveFrom(node, 0, reached));
            }
        }
    }

    /// A connection was made: there is an agent, which is ready soon.
    pub(super) fn connect(&mut self, node: NodeId) {
        let (link, now) = (self.next, self.now);
        let machine = &mut self.machines[node.index()];
        (machine.link, machine.is_front_end_open, machine.is_agent_end_open) = (link, true, true);
        (machine.has_agent, machine.heard) = (true, now);
        machine.is_held = machine.way != Way::Joins;
        self.next += 1;
        self.send_after(node, 5, NodeEvent::HasSent);
        self.send_after(node, 6, ready(node));
        self.after(1000, Action::AgentLooks(node));
    }

    pub(super) fn ask(&mut self, node: NodeId) -> Result<(), Violation> {
        let timeout = self.patience;
        self.of_node(node, NodeEvent::Asking { until: self.now + timeout.min(Duration::from_secs(5)) })?;
        if self.is_reachable(node) && self.machines[node.index()].has_agent {
            let link = self.machines[node.index()].link;
            self.after(300, Action::ArriveFrom(node, u64::MAX, NodeEvent::Confirmed));
            self.after(301, Action::AgentHears(node, link));
        }
        Ok(())
    }

    pub(super) fn arrive(&mut self, node: NodeId, link: u64, event: NodeEvent) -> Result<(), Violation> {
        let machine = &self.machines[node.index()];
        match (link, &event) {
            // Over no connection, or over a fresh one.
            (0, NodeEvent::Reached { .. }) => {
                let is_wanted = self.job.nodes().get(node).is_some_and(|node| node.is_alive() && !node.is_connected());
                if is_wanted {
                    self.of_node(node, event)?;
                    self.connect(node);
                }
                return Ok(());
            }
            (0 | u64::MAX, _) => return self.of_node(node, event),
            _ if machine.link != link || !machine.is_front_end_open => return Ok(()),
            _ => {}
        }
        if machine.cut_until > self.now {
            let at = machine.cut_until + Duration::from_millis(1);
            self.at(at, Action::ArriveFrom(node, link, event));
            return Ok(());
        }
        if self.machines[node.index()].way != Way::Here {
            self.of_node(node, NodeEvent::Heard)?;
        }
        self.of_node(node, event)
    }

    pub(super) fn agent_starts(
        &mut self,
        node: NodeId,
        group: GroupId,
        attempt: Attempt,
        ranks: Vec<Rank>,
        is_first: bool,
    ) -> Result<(), Violation> {
        let machine = &mut self.machines[node.index()];
        let is_next = machine.attempt != Some(attempt);
        machine.groups = if is_next { 1 } else { machine.groups + 1 };
        if let Some((rank, living)) = machine.ranks.iter().find(|(rank, _)| is_next || rank.group() == group) {
            let what = format!("node {node} starts attempt {attempt}, and rank {rank} of {} lives", living.attempt);
            return self.violates(what);
        }
        (machine.attempt, machine.owes_over, machine.is_ending) = (Some(attempt), true, false);
        if is_next {
            machine.open.clear();
        }
        let spec = self.job.spec();
        if spec.restart.scope == RestartScope::Rank && spec.restart.is_on() {
            self.machines[node.index()].open.extend(&ranks);
        }
        if is_first {
            self.send(node, NodeEvent::Agent(AgentEvent::Meeting(None)));
        }
        for rank in ranks {
            // In truth it is there from now on, whatever the front knows.
            self.machines[node.index()].ranks.insert(rank, Living { attempt, has_ended: false });
            let delay = 2 + self.dice.below(20);
            self.after(delay, Action::RankStarts(node, rank, attempt));
        }
        self.check_attempts()
    }

    pub(super) fn worker(&mut self, node: NodeId, rank: Rank, attempt: Attempt, event: WorkerEvent) {
        let worker = WorkerId { rank, attempt };
        let at = self.now;
        // In order: the agent has one connection.
        self.send_after(node, 2, NodeEvent::Agent(AgentEvent::Worker { worker, at, event }));
    }

    pub(super) fn is_living(&self, node: NodeId, rank: Rank, attempt: Attempt) -> bool {
        let machine = &self.machines[node.index()];
        !machine.is_off && machine.ranks.get(&rank).is_some_and(|living| living.attempt == attempt && !living.has_ended)
    }

    pub(super) fn rank_starts(&mut self, node: NodeId, rank: Rank, attempt: Attempt) -> Result<(), Violation> {
        if !self.is_living(node, rank, attempt) || self.machines[node.index()].is_ending {
            return Ok(());
        }
        if self.dice.chance(1) {
            let event = WorkerEvent::SpawnFailed {
                step: "exec".to_owned(),
                error: "No such file".to_owned(),
                command: "x".to_owned(),
                code: ExitCode::NOT_FOUND,
            };
            self.worker(node, rank, attempt, event);
            self.after(1, Action::RankGone(node, rank, attempt, Outcome::SpawnFailed));
            return Ok(());
        }
        self.worker(node, rank, attempt, WorkerEvent::Started { pid: Pid(100 + rank.number() as i32) });
        if self.is_of_mpi {
            for event in [MpiEvent::Inited, MpiEvent::PassedBarrier] {
                self.worker(node, rank, attempt, WorkerEvent::Mpi(event));
            }
        }
        if rank.group().0 < 3 && self.dice.chance(8) {
            let delay = self.dice.below(20_000);
            self.after(delay, Action::RankAsks(node, rank, attempt));
        }
        let lasts = self.dice.time(Duration::from_secs(120));
        let status = match self.dice.below(100) {
            dice if dice < self.ranks_fail => WorkerStatus::Exited { code: 1 + self.dice.below(9) as u8 },
            dice if dice < self.ranks_fail + 2 => WorkerStatus::Signaled { signal: 11, core_dumped: false },
            _ => WorkerStatus::Exited { code: 0 },
        };
        self.at(self.now + lasts, Action::RankEnds(node, rank, attempt, status));
        Ok(())
    }

    /// A rank asks for a group.
    pub(super) fn rank_asks(&mut self, node: NodeId, rank: Rank, attempt: Attempt) {
        if !self.is_living(node, rank, attempt) {
            return;
        }
        let worker = WorkerId { rank, attempt };
        let asker = SpawnAsker { worker, protocol: Protocol::Pmi1, id: self.next };
        let app = SpawnApp { command: vec!["x".into()], size: 1 + self.dice.below(4) as u32, ..SpawnApp::default() };
        let request = Box::new(SpawnRequest { apps: vec![app], preput: Vec::new() });
        self.asked.insert((worker, asker.id));
        self.next += 1;
        self.send_after(node, 2, NodeEvent::Agent(AgentEvent::Spawn { asker, request }));
    }

    pub(super) fn rank_ends(&mut self, node: NodeId, rank: Rank, attempt: Attempt, status: WorkerStatus) {
        if !self.is_living(node, rank, attempt) {
            return;
        }
        if let Some(living) = self.machines[node.index()].ranks.get_mut(&rank) {
            living.has_ended = true;
        }
        let event = WorkerEvent::Ended { status, stop: StopRecord::default() };
        self.worker(node, rank, attempt, event);
        let lingers = if self.dice.chance(90) { 1 } else { self.dice.below(2_000) };
        self.after(lingers, Action::RankGone(node, rank, attempt, Outcome::Ended(status)));
    }

    pub(super) fn rank_gone(&mut self, node: NodeId, rank: Rank, attempt: Attempt, outcome: Outcome) {
        let machine = &mut self.machines[node.index()];
        let is_there = machine.ranks.get(&rank).is_some_and(|living| living.attempt == attempt);
        if machine.is_off || !is_there {
            return;
        }
        machine.ranks.remove(&rank);
        self.worker(node, rank, attempt, WorkerEvent::Gone { outcome, is_left: false });
        for stream in Stream::ALL {
            self.worker(node, rank, attempt, WorkerEvent::Closed(stream));
        }
        self.agent_may_be_over(node);
    }

    /// Without ranks an attempt is over on a node. The place of one that may be started again stays open.
    pub(super) fn agent_may_be_over(&mut self, node: NodeId) {
        let machine = &mut self.machines[node.index()];
        let is_open = !machine.is_ending && !machine.open.is_empty();
        if machine.ranks.is_empty() && !is_open && std::mem::take(&mut machine.owes_over) {
            let summary = Summary { groups: machine.groups, ..Summary::default() };
            self.send_after(node, 3, NodeEvent::Agent(AgentEvent::Over(summary)));
            self.send_after(node, 4, NodeEvent::Agent(AgentEvent::Drained));
        }
    }

    /// Ends all ranks of a node, each within the grace.
    pub(super) fn end_ranks(&mut self, node: NodeId, grace: Duration) {
        self.machines[node.index()].is_ending = true;
        let ranks: Vec<(Rank, Living)> =
            self.machines[node.index()].ranks.iter().map(|(rank, it)| (*rank, *it)).collect();
        for (rank, living) in ranks {
            let lasts = if self.dice.chance(70) { self.dice.time(grace) } else { grace };
            let status = WorkerStatus::Signaled { signal: if lasts == grace { 9 } else { 15 }, core_dumped: false };
            self.at(self.now + lasts, Action::RankEnds(node, rank, living.attempt, status));
        }
        self.agent_may_be_over(node);
    }

    pub(super) fn agent_loses_front(&mut self, node: NodeId) {
        self.end_ranks(node, self.grace);
        self.after(1, Action::Proves(node));
    }

    pub(super) fn agent_is_told(&mut self, node: NodeId, order: Order) -> Result<(), Violation> {
        match order {
            Order::Stop(Stop { grace, why }) => {
                // One of twenty agents never does it.
                if !(self.dice.chance(1) && self.machines[node.index()].way != Way::Here) || why == StopWhy::Over {
                    self.end_ranks(node, grace);
                }
            }
            Order::Kill => self.end_ranks(node, Duration::from_millis(200)),
            Order::KillGroup(group) => {
                let machine = &self.machines[node.index()];
                let of_group = machine.ranks.iter().filter(|(rank, _)| rank.group() == group);
                let ranks: Vec<(Rank, Attempt)> = of_group.map(|(rank, it)| (*rank, it.attempt)).collect();
                for (rank, attempt) in ranks {
                    let status = WorkerStatus::Signaled { signal: 9, core_dumped: false };
                    self.after(100, Action::RankEnds(node, rank, attempt, status));
                }
            }
            Order::Again(WorkerId { rank, attempt, .. }) => {
                let is_here = self.job.spec().map.place(rank).is_some_and(|place| {
                    self.job.nodes().get(node).is_some_and(|node| node.place() == Some(place.node))
                });
                if is_here {
                    self.machines[node.index()].ranks.insert(rank, Living { attempt, has_ended: false });
                    self.after(3, Action::RankStarts(node, rank, attempt));
                }
            }
            Order::Settled(worker) => {
                self.machines[node.index()].open.remove(&worker.rank);
                self.agent_may_be_over(node);
            }
            Order::WhoIsAlive => {
                let machine = &self.machines[node.index()];
                let worker = |(rank, it): (&Rank, &Living)| (WorkerId { rank: *rank, attempt: it.attempt }, false);
                let workers = machine.ranks.iter().map(worker).collect();
                self.send_after(node, 2, NodeEvent::Agent(AgentEvent::Alive { workers, at: self.now }));
            }
            Order::ReportConditions(number) | Order::Measure(number) => {
                self.send_after(
                    node,
                    2,
                    NodeEvent::Agent(AgentEvent::Conditions { number, workers: Vec::new(), at: self.now }),
                );
            }
            Order::Look { number, .. } => self.send_after(node, 9, NodeEvent::Agent(AgentEvent::LookOver { number })),
            Order::Profile { number, .. } => {
                let over = AgentEvent::ProfileOver { number, why: None };
                self.send_after(node, 9, NodeEvent::Agent(over));
            }
            // J-5
            Order::Lost(workers) => {
                let is_here = |worker: &&WorkerId| self.is_living(node, worker.rank, worker.attempt);
                if let Some(worker) = workers.iter().find(is_here) {
                    return self.violates(format!("{worker:?} is said to be gone, and lives on {node}"));
                }
            }
            Order::LookForHooks | Order::LookForMpi { .. } | Order::Without { .. } | Order::EndProfile { .. } => {}
        }
        Ok(())
    }

    /// A node that was lost says what is left, when nothing of the job runs there any more, and it can be reached.
    pub(super) fn prove(&mut self, node: NodeId) -> Result<(), Violation> {
        let machine = &self.machines[node.index()];
        if machine.is_off {
            return Ok(());
        }
        if !machine.ranks.is_empty() || machine.cut_until > self.now {
            self.after(500, Action::Proves(node));
            return Ok(());
        }
        let is_empty = !machine.leaves;
        // One of a hundred never ends.
        if self.dice.chance(99) {
            self.machines[node.index()].is_held = false;
        }
        match self.machines[node.index()].way {
            Way::Here => Ok(()),
            Way::Ssh if self.machines[node.index()].is_asked_second => {
                self.of_node(node, NodeEvent::SecondAnswered { is_empty })
            }
            // What holds it was lost with the connection, or says so itself.
            Way::Ssh if self.dice.chance(50) => {
                let code = if is_empty { ExitCode::SUCCESS } else { ExitCode::LEFT_BEHIND };
                self.of_node(node, NodeEvent::SshEnded { code: i32::from(code.0) })
            }
            Way::Ssh => self.of_node(node, NodeEvent::SshEnded { code: 255 }),
            Way::Joins => {
                let code = if is_empty { 0 } else { ExitCode::LEFT_BEHIND.0 };
                self.of_node(node, NodeEvent::GuardEnded { code, memory: None })
            }
        }
    }

    /// A node that comes by itself is there.
    pub(super) fn joins(&mut self, node: NodeId) -> Result<(), Violation> {
        let is_off = self.machines[node.index()].is_off;
        let is_coming = |node: &Node| node.is_alive() && !node.is_connected();
        if !is_off && self.job.nodes().get(node).is_some_and(is_coming) {
            let host = Some(format!("n{node}"));
            self.of_node(node, NodeEvent::Reached { host, client: None, server: None, noise: None })?;
            self.connect(node);
        }
        Ok(())
    }
}
