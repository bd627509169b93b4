//! The groups of ranks on this node, each with the team of its present attempt: leads orders and events to the team that they concern.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rankrun_core::job::{AgentEvent, Order, WorkerEvent};
use rankrun_core::team::Event;
use rankrun_core::{ExitCode, GroupId, JobSpec, Slot, WorkerId};
use rankrun_sys::limits::Limits;
use rankrun_sys::poll::Ready;
use rankrun_sys::wait::{self, Change, Look};
use rankrun_wire::ToFront;
use rankrun_wire::message::NodeStart;

use super::conclude;
use super::hands::Hands;
use super::site::News;
use super::spawner::{Job, Spawned};
use super::start::StartError;
use super::state::Team;
use crate::children::{Children, Ended, Helper};
use crate::driver::io::{Done, IoThread};
use crate::driver::token::Token;
use crate::guard::lease::Word;
use crate::services::pmix::Pmix;
use crate::services::worker_socket::Received;
use crate::streams::{Link, LinkError};
use crate::tidy::own_names;

/// The teams, once the front has sent `Start`.
#[derive(Default)]
pub(crate) struct Teams(BTreeMap<GroupId, Team>);

impl Teams {
    /// A group is about to begin. With the first one another attempt begins: nothing is left of the one before it, and the front has been
    /// told so.
    pub(crate) fn make_way(&mut self, hands: &mut Hands, now: Duration, spec: &JobSpec) {
        let names = || own_names(&spec.job, spec.attempt);
        if spec.spawned.is_none() {
            let before = std::mem::take(&mut self.0);
            if !before.is_empty() {
                hands.inherited.rewind_stdin();
            }
            before.into_values().for_each(|team| team.make_way(hands));
            hands.end_pmix();
            hands.site.begin(now, spec.clean_shm, names);
        }
        hands.site.add(spec.clean_shm, names);
    }

    /// Starts an attempt of a group.
    pub(crate) fn start(
        &mut self,
        hands: &mut Hands,
        now: Duration,
        start: NodeStart,
        runtime: &Path,
        limits: Limits,
    ) -> Result<(), StartError> {
        let group = start.spec.group;
        let started = if start.spec.spawned.is_some() { Some(start.clone()) } else { None };
        match (Team::start(hands, now, start, runtime, limits), started) {
            (Ok(team), _) => drop(self.0.insert(group, team)),
            (Err(error), Some(start)) => {
                hands.give_back(group);
                hands.leave_pmix(now, group);
                not_started(hands, now, &start, &error);
            }
            (Err(error), None) => return Err(error),
        }
        self.memory_news(hands, now);
        self.settle(hands, now);
        Ok(())
    }

    /// The team of a group.
    fn of(&mut self, group: GroupId) -> Option<&mut Team> {
        self.0.get_mut(&group)
    }

    /// The team of a worker, and the worker's slot in it.
    pub(super) fn of_worker(&mut self, worker: WorkerId) -> Option<(&mut Team, Slot)> {
        let team = self.of(worker.group())?;
        let slot = team.slot_of(worker)?;
        Some((team, slot))
    }

    /// The team of the group with which the job began. What names no group is for that one.
    pub(crate) fn first(&mut self) -> Option<&mut Team> {
        self.0.values_mut().next()
    }

    pub(crate) fn all(&mut self) -> impl Iterator<Item = &mut Team> {
        self.0.values_mut()
    }

    pub(crate) fn is_over(&self, hands: &Hands) -> bool {
        self.0.is_empty() || hands.site.is_over() && self.0.values().all(Team::is_over)
    }

    /// Whether processes were released, and must not be killed when the agent ends.
    pub(crate) fn has_released(&self, hands: &Hands) -> bool {
        hands.site.has_released()
    }

    /// When [`Teams::tick`] is due.
    pub(crate) fn deadline(&self, hands: &Hands) -> Option<Duration> {
        if self.0.is_empty() {
            return None;
        }
        let site = hands.site.deadline();
        let pmix = hands.pmix.as_ref().and_then(Pmix::deadline);
        self.0.values().filter_map(Team::deadline).chain(site).chain(pmix).min()
    }

    /// Leads what is left of an event to whom it concerns, and sees whether all is over.
    fn settle(&mut self, hands: &mut Hands, now: Duration) {
        self.lead_misled(hands, now);
        if !self.0.is_empty() && self.0.values().all(Team::is_over) {
            conclude::processes_gone(hands, now);
            self.memory_news(hands, now);
        }
    }

    /// The watch over /dev/shm has answered.
    fn memory_news(&mut self, hands: &mut Hands, now: Duration) {
        while let Some(news) = hands.site.next_news() {
            match news {
                News::Ready => self.all().for_each(|team| team.spawn_more(hands, now)),
                News::Looked(group) => self.on(group, |team| team.looked(hands, now)),
                News::Finished(left) => {
                    hands.lease.send(Word::Looked);
                    conclude::over(hands, Some(left));
                }
            }
        }
    }

    /// Groups that others have asked for, and of which nothing is left and all is sent, are forgotten.
    fn forget_over(&mut self, hands: &mut Hands) {
        let is_done =
            |(group, team): (&GroupId, &Team)| (group.0 > 0 && team.is_over() && team.is_drained()).then_some(*group);
        let done: Vec<GroupId> = self.0.iter().filter_map(is_done).collect();
        for team in done.into_iter().filter_map(|group| self.0.remove(&group)) {
            team.make_way(hands);
        }
    }

    fn spawned_helpers(&mut self, hands: &mut Hands, now: Duration) {
        while let Some(Spawned { job, result, .. }) = hands.spawner.next_result(None) {
            match job {
                Job::Helper(Helper::PmixHost) => self.pmix_host_spawned(hands, now, result),
                Job::Helper(Helper::ForkServer(server)) => self.server_spawned(hands, server, result),
                Job::Helper(Helper::Meter) => self.meter_spawned(hands, now, result),
                Job::Helper(Helper::Sampler) => hands.sampler_spawned(result),
                Job::Helper(Helper::Looker) | Job::Worker(_) => hands.looker_spawned(result),
            }
        }
    }

    /// Does all that is due.
    pub(crate) fn tick(&mut self, hands: &mut Hands, now: Duration) {
        if !self.0.is_empty() {
            conclude::tick(hands, now);
        }
        for team in self.all() {
            team.tick(hands, now);
        }
        self.pmix_tick(hands, now);
        self.servers_tick(hands, now);
        hands.looker_tick(now);
        self.meter_tick(hands, now);
        hands.profiler_tick(now);
        self.settle(hands, now);
    }

    /// Sends messages and output.
    pub(crate) fn send(&mut self, hands: &mut Hands, link: &mut Link) -> Result<(), LinkError> {
        if self.0.is_empty() {
            return link.send_messages(hands.outbox.drain(..));
        }
        for team in self.0.values_mut() {
            match team.send(hands, link) {
                Err(LinkError::Spool(error)) => team.lose_output(hands, &error),
                sent => sent?,
            }
        }
        if self.0.values().all(Team::is_drained) && hands.site.drained() {
            hands.outbox.push(ToFront::Event(AgentEvent::Drained));
            link.send_messages(hands.outbox.drain(..))?;
        }
        self.forget_over(hands);
        Ok(())
    }

    /// Gives the I/O thread what is to be done with files.
    pub(crate) fn start_io(&mut self, io: &mut IoThread, now: Duration) {
        self.all().for_each(|team| team.start_io(io, now));
    }

    /// The I/O thread has done something.
    pub(crate) fn io_done(&mut self, done: Done) {
        let Done::Spool(group, completion) = done;
        if let Some(team) = self.of(group) {
            team.spooled(completion);
        }
    }

    /// A descriptor is ready.
    pub(crate) fn ready(&mut self, hands: &mut Hands, now: Duration, token: Token, event: Ready) {
        match token {
            Token::Signals | Token::Spawner => self.children(hands, now),
            Token::Memory => self.memory_news(hands, now),
            Token::Looker => hands.looker_ready(now, event),
            Token::Meter => self.meter_ready(hands, now, event),
            Token::Sampler => hands.sampler_ready(event),
            Token::ForkServer(server) => self.server_ready(hands, now, server),
            Token::ForkServerOutput(server, stream) => hands.fork_servers.read_output(server, stream),
            Token::WorkerSocket => {
                let ranks = self.0.values().map(|team| team.machine.size()).sum();
                hands.worker_socket.accept(now, &hands.children, ranks, &hands.poller);
            }
            Token::WorkerClient(client) => {
                let received = hands.worker_socket.read(client, now, &hands.children, &hands.poller);
                self.lead(hands, now, received);
            }
            Token::Output(place, stream) => {
                self.on(place.group, |team| team.read_output(hands, place.slot, stream));
            }
            Token::Pmi(place) => self.on(place.group, |team| team.pmi_ready(hands, now, place.slot, event)),
            Token::Stdin(place) => self.on(place.group, |team| team.stdin_ready(hands, place.slot.index())),
            Token::Boundary(place) => self.on(place.group, |team| team.boundary_changed(hands, now, place.slot)),
            Token::KernelLog => conclude::look_for_killed_helpers(hands, now),
            Token::Pmix => self.pmix_connected(hands, now),
            Token::PmixHost => self.pmix_host_ready(hands, now, event),
            Token::PmixErrors => self.pmix_errors_ready(hands, now),
            Token::Front | Token::Lease | Token::Io | Token::TorchStore | Token::TorchClient(_) => {}
        }
        self.settle(hands, now);
    }

    /// Runs `action` on the team of a group, if there is one.
    pub(crate) fn on(&mut self, group: GroupId, action: impl FnOnce(&mut Team)) {
        if let Some(team) = self.of(group) {
            action(team);
        }
    }

    /// The job orders something.
    pub(crate) fn handle_order(&mut self, hands: &mut Hands, now: Duration, order: Order) {
        match order {
            Order::Again(WorkerId { rank, attempt }) => self.on(rank.group(), |team| {
                team.event_of_rank(hands, now, rank, |slot| Event::Again(slot, attempt));
            }),
            Order::Settled(worker) => {
                self.on(worker.group(), |team| team.event_of_rank(hands, now, worker.rank, Event::Settled));
            }
            Order::Stop(stop) => self.order_all(hands, now, Event::Stop(stop)),
            Order::Kill => self.order_all(hands, now, Event::Kill),
            Order::KillGroup(group) => self.on(group, |team| team.order(hands, now, Event::Kill)),
            Order::Lost(workers) => self.lost(hands, now, &workers),
            Order::Without { node, is_first } => hands.torch_store.without(node, is_first, &hands.poller),
            Order::LookForHooks => self.all().for_each(|team| team.look_for_hooks(hands)),
            Order::LookForMpi { is_brief } => self.all().for_each(|team| team.look_for_mpi(hands, is_brief)),
            Order::WhoIsAlive if self.0.is_empty() => {}
            Order::WhoIsAlive => {
                let workers = self.all().flat_map(|team| team.machine.alive(now)).collect();
                hands.outbox.push(ToFront::Event(AgentEvent::Alive { workers, at: now }));
            }
            Order::ReportConditions(_) | Order::Measure(_) if self.0.is_empty() => {}
            Order::ReportConditions(number) => self.conditions(hands, now, number),
            Order::Measure(number) => self.measure(hands, now, number),
            Order::Look { number, workers, native } => self.look(hands, now, number, workers.as_deref(), native),
            Order::Profile { number, workers, spec } => self.profile(hands, now, number, workers.as_deref(), spec),
            Order::EndProfile { number } => hands.end_profile(now, number),
        }
        self.settle(hands, now);
    }

    fn order_all(&mut self, hands: &mut Hands, now: Duration, order: Event) {
        self.all().for_each(|team| team.order(hands, now, order));
    }

    /// Leads what processes have sent over the worker socket to the teams of their groups.
    fn lead(&mut self, hands: &mut Hands, now: Duration, mut received: Vec<Received>) {
        for (group, team) in &mut self.0 {
            let is_own = |received: &Received| received.peer().worker.group() == *group;
            let (own, others): (Vec<Received>, Vec<Received>) = received.into_iter().partition(is_own);
            received = others;
            if !own.is_empty() {
                team.handle_received(hands, now, own);
            }
        }
    }

    fn lead_misled(&mut self, hands: &mut Hands, now: Duration) {
        while !hands.misled.is_empty() {
            let misled = std::mem::take(&mut hands.misled);
            self.lead(hands, now, misled);
        }
        while !hands.misled_news.is_empty() {
            let misled = std::mem::take(&mut hands.misled_news);
            self.mpi_news(hands, now, misled);
        }
    }

    fn spawn_results(&mut self, hands: &mut Hands, now: Duration) {
        self.spawned_helpers(hands, now);
        self.all().for_each(|team| team.spawn_results(hands, now));
    }

    /// Reads the spawner's results and the changes of children.
    fn children(&mut self, hands: &mut Hands, now: Duration) {
        let mut orphan_ended = false;
        self.spawn_results(hands, now);
        while let Some((child, status)) = Children::peek_end() {
            // The order matters: see `peek_end`.
            let under_way = hands.spawner.under_way();
            self.spawn_results(hands, now);
            match hands.children.handle_end(child, status, &under_way) {
                Some(Ended::Leader(worker, leader, status)) => match self.of_worker(worker) {
                    Some((team, slot)) => team.leader_ended(hands, now, slot, leader, status),
                    // It was given up, and its team is over.
                    None => hands.children.reap(worker, leader),
                },
                Some(Ended::Orphan) => orphan_ended = true,
                Some(Ended::Helper(Helper::Looker, status)) => hands.looker_ended(now, status),
                Some(Ended::Helper(Helper::Meter, status)) => self.meter_ended(hands, now, status),
                Some(Ended::Helper(Helper::Sampler, status)) => hands.sampler_ended(status),
                Some(Ended::Helper(Helper::ForkServer(server), status)) => {
                    self.server_ended(hands, now, server, status);
                }
                Some(Ended::Helper(Helper::PmixHost, status)) => self.pmix_host_ended(hands, now, status),
                None => break,
            }
            hands.lease.renew();
        }
        self.stop_news(hands, now);
        let may_be_empty = orphan_ended && hands.children.boundary().cgroup().is_none();
        for team in self.all() {
            if may_be_empty {
                team.boundaries_may_be_empty(hands, now);
            }
            team.spawn_more(hands, now);
        }
    }

    fn stop_news(&mut self, hands: &mut Hands, now: Duration) {
        while let Look::Found(child) = wait::stop_news() {
            // A rank may be stopped before the spawner has sent its result, and the kernel reports a stop only once.
            let under_way = hands.spawner.under_way();
            self.spawn_results(hands, now);
            match (hands.children.worker_of_leader(child.pid), hands.children.helper(child.pid)) {
                (Some(worker), _) => {
                    if let Some((team, slot)) = self.of_worker(worker) {
                        team.leader_changed(hands, now, slot, child.change);
                    }
                }
                (None, Some(Helper::ForkServer(server))) => {
                    if let Change::Stopped { .. } = child.change {
                        hands.server_failed(server, "somebody has stopped it");
                        self.servers_settled(hands, now);
                    }
                }
                (None, Some(Helper::PmixHost)) => {
                    if let Change::Stopped { signal } = child.change {
                        self.pmix_host_stopped(hands, now, signal);
                    }
                }
                (None, _) if under_way.iter().any(|it| it.pid() == child.pid) => {
                    hands.early_changes.retain(|pid, _| under_way.iter().any(|it| it.pid() == *pid));
                    hands.early_changes.insert(child.pid, child.change);
                }
                (None, _) => {}
            }
        }
    }
}

/// What a group needs on this node cannot be had: none of its ranks is started.
fn not_started(hands: &mut Hands, now: Duration, start: &NodeStart, error: &StartError) {
    let (step, error) = (error.step().to_owned(), error.source.to_string());
    for place in start.spec.map.on_node(start.node) {
        let worker = WorkerId { rank: place.rank, attempt: start.spec.attempt };
        let event = WorkerEvent::SpawnFailed {
            step: step.clone(),
            error: error.clone(),
            command: String::new(),
            code: ExitCode::NOT_EXECUTABLE,
        };
        hands.outbox.push(ToFront::Event(AgentEvent::Worker { worker, at: now, event }));
    }
}
