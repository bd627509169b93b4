//! Starts the workers of an attempt: prepares a few ahead of the spawners, and registers each when it is spawned.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use rankrun_core::absence::Hook;
use rankrun_core::env::NodeFacts;
use rankrun_core::job::{AgentEvent, PortRange, RestartScope, StdinTarget, WorkerEvent};
use rankrun_core::open_files;
use rankrun_core::rendezvous::Rendezvous;
use rankrun_core::segments;
use rankrun_core::team::{Event, Team as Machine};
use rankrun_core::travel::on_another_node;
use rankrun_core::worker::State;
use rankrun_core::{ExitCode, JobSpec, NodeRank, Pid, Rank, Slot as SlotIndex, Stream};
use rankrun_sys::limits::{self, Limits};
use rankrun_sys::poll::Interest;
use rankrun_sys::spawn::{SpawnError, Step};
use rankrun_sys::{cpus, socket};
use rankrun_wire::ToFront;
use rankrun_wire::message::{Meeting, NodeStart};
use rankrun_wireup::pmi1;

use super::error_files::ErrorFiles;
use super::hands::Hands;
use super::prepare::{PrepareError, Preparer, stdbuf_library};
use super::slot::{SharedStdin, Slot, TAG_BYTES};
use super::spawner::{Job, NotSpawned, Spawned};
use super::speakers::Speakers;
use super::state::{Ending, Orders, Team};
use crate::binding::topology_file;
use crate::driver::token::Token;
use crate::services::pmi::Pmi;
use crate::services::pmix;
use crate::services::torch_store::Place;
use crate::streams::{Capture, Output};

/// Why an attempt cannot begin.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub(crate) struct StartError {
    what: &'static str,
    pub(crate) source: io::Error,
}

impl StartError {
    /// What cannot be done.
    pub(super) fn step(&self) -> &'static str {
        self.what
    }
}

fn cannot(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError { what, source }
}

impl Team {
    /// Acquires all that the ranks of this node need, before the first of them is started.
    pub(crate) fn start(
        hands: &mut Hands,
        now: Duration,
        start: NodeStart,
        runtime: &Path,
        limits: Limits,
    ) -> Result<Team, StartError> {
        let NodeStart { node, mut spec, meeting, hosts, sends_stdin, .. } = start;
        if hands.is_away {
            spec.base_env = on_another_node(spec.base_env, std::env::vars_os());
        }
        let cpus = cpus::allowed();
        if spec.room.is_none() && spec.map.node_count() == 1 {
            spec.room = Some(cpus);
        }
        let spec = Rc::new(spec);
        let ranks: Vec<Rank> = spec.map.on_node(node).map(|place| place.rank).collect();
        if hands.is_away || spec.spawned.is_some() {
            check_open_files(&spec, ranks.len() as u32)?;
        }
        let mut machine = Machine::new(spec.attempt, ranks.iter().copied(), spec.stop.clone(), spec.graces.clone());
        if spec.restart.scope == RestartScope::Rank && spec.restart.is_on() {
            machine.keep_open();
        }
        let tags = new_tags(machine.size()).map_err(cannot("get random bytes"))?;
        let mut slots: Vec<Slot> =
            machine.slots().zip(tags).map(|(slot, tag)| Slot::new(machine.id(slot), tag)).collect();
        for slot in &slots {
            hands.children.begin(slot.id, &slot.tag);
        }
        let bound = hands
            .binder
            .bind(&spec, node, runtime)
            .map_err(|why| StartError { what: "bind ranks to CPUs", source: io::Error::other(why) })?;
        for (index, slot) in slots.iter_mut().enumerate() {
            slot.place = bound.place(index);
        }
        hands.outbox.extend(bound.event.map(ToFront::Event));
        let offers_pmix = spec.mpi.offers_pmix();
        let facts = if offers_pmix { hands.join_pmix(now, &spec, node, hosts, cpus, limits, runtime) } else { None };
        let pmix = facts.map(|facts| pmix::Ranks::new(facts, ranks.len()));
        let pmi = spec.mpi.offers_pmi1().then(|| {
            let config = pmi1::Config {
                group: spec.group,
                size: spec.map.world_size(),
                kvs_prefix: segments::kvs_prefix(&spec.job, spec.attempt),
                mapping: pmi1::process_mapping(&spec.map).unwrap_or_default(),
                appnums: spec.map.places().iter().map(|place| place.app.0).collect(),
                universe_size: spec.stated_universe(),
                topology: topology_file::path(runtime, ranks.len()),
                preput: spec.spawned.as_ref().map(|spawned| spawned.preput.clone()).unwrap_or_default(),
                local: ranks.clone(),
            };
            Pmi::new(config, spec.attempt, ranks)
        });
        let (held_ports, rendezvous) = match meeting {
            Meeting::Here { address, open_to } => hold_ports(&spec, address, open_to, hands)?,
            Meeting::There(rendezvous) => (Vec::new(), relayed(&spec, rendezvous, hands)?),
        };
        if node == NodeRank(0) && (hands.is_away || spec.map.node_count() > 1) {
            hands.outbox.push(ToFront::Event(AgentEvent::Meeting(rendezvous.clone())));
        }
        let opened = hands.worker_socket.open(runtime, spec.hook, &hands.poller);
        hands.outbox.extend(opened.complaint.map(ToFront::Note));
        let hook = match &opened.hook {
            Some(directory) => Hook::In(directory.display().to_string()),
            None if spec.hook => Hook::Missing,
            None => Hook::Off,
        };
        let facts = NodeFacts {
            node,
            cpus,
            bound: bound.cpus,
            rendezvous,
            stdbuf: stdbuf_library(),
            socket: opened.socket.map(Into::into),
            hook: opened.hook.map(Into::into),
            pmix: pmix.as_ref().map(|pmix| pmix.facts.clone()),
            runtime_dir: Some(runtime.into()),
        };
        let mut team = Team {
            preparer: Preparer::new(facts, limits, sends_stdin, hands.is_away).map_err(cannot("open /dev/null"))?,
            servers: HashMap::new(),
            to_spawn: machine.slots().collect(),
            runtime: runtime.to_owned(),
            hook,
            slots,
            pmi,
            pmix,
            _held_ports: held_ports,
            output: Output::new(runtime, spec.io.spool),
            stdin_owed: false,
            stdin_read: false,
            has_stdin_ended: false,
            orders: Orders::default(),
            speakers: Speakers::default(),
            error_files: ErrorFiles::default(),
            frozen: false,
            started: 0,
            ending: Ending::No,
            machine,
            spec,
        };
        team.want_servers(hands, now);
        team.spawn_more(hands, now);
        Ok(team)
    }

    /// The successor of a worker that is gone gets what a new one has, and a tag of its own.
    pub(super) fn start_again(&mut self, hands: &mut Hands, slot: SlotIndex) {
        let id = self.machine.id(slot);
        // Without random bytes it has the tag of the one before, of which nothing is left.
        let tag = new_tags(1).ok().and_then(|mut tags| tags.pop()).unwrap_or_else(|| self.slot(slot).tag.clone());
        let before = self.id(slot);
        hands.forget(|worker| worker == before);
        hands.children.begin(id, &tag);
        let place = self.slot(slot).place.take();
        let stdin_backlog = std::mem::take(&mut self.slot(slot).stdin_backlog);
        *self.slot(slot) = Slot { place, stdin_backlog, ..Slot::new(id, tag) };
        hands.site.killed.forget(before);
        self.to_spawn.push_back(slot);
    }

    /// Prepares as many workers as the spawner has room for.
    pub(crate) fn spawn_more(&mut self, hands: &mut Hands, now: Duration) {
        while hands.site.is_ready()
            && self.knows_servers(hands)
            && hands.spawner.has_room()
            && let Some(slot) = self.to_spawn.pop_front()
        {
            match self.machine.state(slot) {
                State::Pending => self.event(hands, now, Event::SpawnBegun(slot)),
                // It is tried again, in the other tier.
                State::Spawning { stop: None, killed: None, .. } => {}
                State::Spawning { .. } => {
                    self.event(hands, now, Event::SpawnFailed(slot));
                    continue;
                }
                State::Running { .. }
                | State::Stopping { .. }
                | State::Lingering { .. }
                | State::Terminating { .. }
                | State::DumpingCore { .. }
                | State::KillingLeader { .. }
                | State::KillingAll { .. }
                | State::Gone { .. } => continue,
            }
            if let Err(error) = self.spawn(hands, slot) {
                let (step, errno) = match &error {
                    PrepareError::Io { what, source } => ((*what).to_owned(), source.raw_os_error().unwrap_or(0)),
                    PrepareError::Nul => (Step::Exec.to_string(), 22),
                };
                self.spawn_failed(hands, now, slot, step, errno);
            }
            hands.lease.renew();
        }
    }

    fn spawn(&mut self, hands: &mut Hands, index: SlotIndex) -> Result<(), PrepareError> {
        let spec = Rc::clone(&self.spec);
        let Hands { children, inherited, .. } = hands;
        let slot = &mut self.slots[index.index()];
        let worker = slot.id;
        let prepared = self.preparer.prepare(&spec, slot, inherited, || children.take_leaf(worker))?;
        slot.captures = prepared.captures.map(|fd| fd.map(Capture::new));
        slot.closed = [slot.captures[0].is_none(), slot.captures[1].is_none()];
        slot.windows = prepared.windows;
        let mut queue = std::mem::take(&mut slot.stdin_backlog);
        if self.has_stdin_ended && queue.is_empty() {
            queue.push_back(Bytes::new());
        }
        slot.stdin = prepared.stdin.map(|pipe| SharedStdin { pipe, queue });
        slot.awaits_start = false;
        if let (Some(pmi), Some(socket)) = (&mut self.pmi, prepared.pmi) {
            pmi.prepared(index, socket);
        }
        let rank = self.machine.id(index).rank;
        let is_last_reader = match spec.io.stdin {
            StdinTarget::Rank(reader) => reader == rank,
            StdinTarget::Shared => index.index() + 1 == self.slots.len(),
            StdinTarget::None | StdinTarget::All => false,
        };
        if is_last_reader {
            // From here on only the ranks that read it hold the front's stdin, unless their successors may need it.
            inherited.give_stdin(spec.restart.is_on());
        }
        let app = spec.map.place(rank).map(|place| place.app);
        let server = app.and_then(|app| self.servers.get(&app));
        let server = server.and_then(|id| Some((*id, hands.fork_servers.serving(*id)?)));
        match hands.spawner.spawn_by(server, Job::Worker(worker), prepared.program, prepared.command) {
            true => Ok(()),
            false => Err(PrepareError::Io { what: "wait for a spawner", source: io::ErrorKind::WouldBlock.into() }),
        }
    }

    pub(super) fn spawn_results(&mut self, hands: &mut Hands, now: Duration) {
        while let Some(Spawned { job, result, unserved }) = hands.spawner.next_result(Some(self.group())) {
            if let Some((server, why)) = unserved {
                hands.server_failed(server, &why);
            }
            let slot = match job {
                Job::Worker(worker) => self.slot_of(worker),
                // Those are of no group.
                Job::Helper(_) => None,
            };
            // One that was given up may have a successor.
            let Some(slot) = slot else { continue };
            match result {
                Ok(pid) => self.spawned(hands, now, slot, pid),
                Err(NotSpawned::Failed(error)) => self.spawn_refused(hands, now, slot, &error),
                Err(NotSpawned::Unresolved { errno }) => {
                    hands.children.free_leaf(self.id(slot), false);
                    self.spawn_failed(hands, now, slot, Step::Exec.to_string(), errno);
                }
                Err(NotSpawned::Cancelled | NotSpawned::Unfit(_)) => {
                    hands.children.free_leaf(self.id(slot), false);
                    self.close_streams(slot);
                    self.event(hands, now, Event::SpawnFailed(slot));
                }
            }
        }
    }

    fn spawned(&mut self, hands: &mut Hands, now: Duration, index: SlotIndex, pid: i32) {
        hands.children.add_leader(self.id(index), pid);
        hands.site.add_leader(Pid(pid));
        self.started += 1;
        let is_stalled = Stream::ALL.map(|stream| self.output.is_stalled(stream));
        let place = self.place(index);
        let slot = self.slot(index);
        slot.started = true;
        let mut unwatched = None;
        for stream in Stream::ALL {
            if let Some(capture) = &slot.captures[stream.index()]
                && !is_stalled[stream.index()]
            {
                let token = Token::Output(place, stream).encode();
                match hands.poller.add(capture, token, Interest::Read) {
                    Ok(()) => slot.polled[stream.index()] = true,
                    Err(error) => unwatched = Some(error),
                }
            }
        }
        if let Some(pmi) = &self.pmi
            && let Err(error) = pmi.started(index, &hands.poller)
        {
            unwatched = Some(error);
        }
        let rank = self.machine.id(index).rank;
        if self.pmix.is_some() {
            let of = rank;
            let news = hands.pmix.as_mut().map(|pmix| pmix.leader(of, Pid(pid)));
            self.mpi_news(hands, now, news.unwrap_or_default());
        }
        self.tell(hands, now, index, WorkerEvent::Started { pid: Pid(pid) });
        self.event(hands, now, Event::Spawned(index, Pid(pid)));
        if let Some(error) = unwatched {
            // A rank that is not polled could wait for ever: treat it as not started.
            let errno = error.raw_os_error().unwrap_or(0);
            self.report_spawn_failed(hands, now, index, "watch its descriptors".to_owned(), errno);
        }
        if let Some(change) = hands.early_changes.remove(&pid) {
            self.leader_changed(hands, now, index, change);
        }
        self.stdin_started(hands, index.index());
        self.free_servers(hands);
        if self.frozen {
            self.freeze_slots(hands, &[index], true);
        }
    }

    fn spawn_refused(&mut self, hands: &mut Hands, now: Duration, slot: SlotIndex, error: &SpawnError) {
        hands.children.free_leaf(self.id(slot), false);
        let no_cgroup = error.step == Step::Cgroup
            || (error.step == Step::Clone && matches!(error.source.raw_os_error(), Some(13 | 16 | 95)));
        if no_cgroup && self.started == 0 {
            // EACCES, EBUSY, EOPNOTSUPP: the directory could be made, and yet no process may be placed in it.
            if hands.children.boundary().cgroup().is_some() {
                let why = format!("processes cannot be placed in a cgroup: {}", rankrun_sys::reason(&error.source));
                hands.children.fall_back(why);
                let containment = hands.children.boundary().containment();
                hands.outbox.push(ToFront::Event(AgentEvent::Contained(containment)));
            }
            self.close_streams(slot);
            self.to_spawn.push_front(slot);
            return;
        }
        let errno = error.source.raw_os_error().unwrap_or(0);
        self.spawn_failed(hands, now, slot, error.step.to_string(), errno);
    }

    fn spawn_failed(&mut self, hands: &mut Hands, now: Duration, slot: SlotIndex, step: String, errno: i32) {
        self.close_streams(slot);
        self.report_spawn_failed(hands, now, slot, step, errno);
        self.event(hands, now, Event::SpawnFailed(slot));
    }

    pub(super) fn report_spawn_failed(
        &mut self,
        hands: &mut Hands,
        now: Duration,
        slot: SlotIndex,
        step: String,
        errno: i32,
    ) {
        let rank = self.machine.id(slot).rank;
        let command = match step == Step::Wdir.to_string() {
            true => self.spec.directory(rank),
            false => self.spec.command(rank).into_iter().next().unwrap_or_default(),
        };
        let error = io::Error::from_raw_os_error(errno);
        let code = match error.kind() {
            io::ErrorKind::NotFound => ExitCode::NOT_FOUND,
            _ => ExitCode::NOT_EXECUTABLE,
        };
        let (error, command) = (rankrun_sys::reason(&error), command.to_string_lossy().into_owned());
        self.tell(hands, now, slot, WorkerEvent::SpawnFailed { step, error, command, code });
    }

    /// A worker that was not started has no streams. What it was to read waits, should it be started in another way.
    fn close_streams(&mut self, slot: SlotIndex) {
        let slot = self.slot(slot);
        slot.captures = [None, None];
        slot.closed = [true, true];
        if let Some(stdin) = slot.stdin.take() {
            (slot.stdin_backlog, slot.awaits_start) = (stdin.queue, true);
        }
    }
}

/// The front has looked at the limit of its own machine, for the first ranks. Ours was raised when we began.
fn check_open_files(spec: &JobSpec, ranks: u32) -> Result<(), StartError> {
    // If they cannot be counted, assume what an agent has.
    let open = std::fs::read_dir("/proc/self/fd").map_or(16, Iterator::count) as u64;
    let needed = open_files::of_agent(ranks, &spec.io, spec.mpi, spec.tf_config).saturating_add(open);
    match limits::open_files().0.filter(|limit| *limit < needed) {
        None => Ok(()),
        Some(limit) => {
            let text = format!(
                "{ranks} ranks need up to {needed} open files, and the hard limit there (RLIMIT_NOFILE) is {limit}"
            );
            Err(cannot("start the ranks")(io::Error::other(text)))
        }
    }
}

/// Relays torch's store to the ranks of this node, if that is wanted.
fn relayed(
    spec: &JobSpec,
    rendezvous: Option<Rendezvous>,
    hands: &mut Hands,
) -> Result<Option<Rendezvous>, StartError> {
    let Some(rendezvous @ Rendezvous { relay: Some(_), .. }) = rendezvous else { return Ok(rendezvous) };
    let address = hands.torch_store.begin(spec.attempt, Place::There, Vec::new(), &hands.poller);
    let relay = Some(address.map_err(cannot("relay torch's store"))?);
    Ok(Some(Rendezvous { relay, ..rendezvous }))
}

/// Holds the ports at which the ranks will meet, and serves torch's store at the first of them. Most jobs need none: where
/// there is no network, only those that asked for `TF_CONFIG` are refused.
fn hold_ports(
    spec: &JobSpec,
    address: IpAddr,
    open_to: Vec<IpAddr>,
    hands: &mut Hands,
) -> Result<(Vec<OwnedFd>, Option<Rendezvous>), StartError> {
    let ports = spec.ports.map_or(0..=0, PortRange::ports);
    let none_free = |range: PortRange, needed: usize| {
        let ports = if needed == 1 { "port is" } else { "ports are" };
        let text =
            format!("{needed} more {ports} needed, and too few of {range} (--port-range) are free on the first node");
        cannot("hold the ports at which the ranks meet")(io::Error::other(text))
    };
    let needed = Rendezvous::port_count(spec);
    let is_relayed = Rendezvous::wants_relay(spec);
    let store = match Rendezvous::wants_agent_store(spec) {
        false => None,
        true => {
            let (place, open_to) = match is_relayed {
                true => (Place::Relayed(ports.clone()), Vec::new()),
                false => (Place::Here(address, ports.clone()), open_to),
            };
            match (hands.torch_store.begin(spec.attempt, place, open_to, &hands.poller), spec.ports) {
                (Ok(address), _) => Some(address),
                (Err(error), Some(range)) if error.kind() == io::ErrorKind::AddrInUse => {
                    return Err(none_free(range, needed));
                }
                (Err(error), _) if is_relayed => return Err(cannot("serve torch's store")(error)),
                (Err(_), _) => None,
            }
        }
    };
    let to_hold = needed - usize::from(store.is_some());
    let held: io::Result<Vec<(OwnedFd, u16)>> = (0..to_hold).map(|_| socket::hold_port(ports.clone())).collect();
    match (held, spec.ports) {
        (Err(error), Some(range)) if error.kind() == io::ErrorKind::AddrInUse => Err(none_free(range, to_hold)),
        (held, _) => holding(spec, address, held, store),
    }
}

fn holding(
    spec: &JobSpec,
    address: IpAddr,
    held: io::Result<Vec<(OwnedFd, u16)>>,
    store: Option<SocketAddr>,
) -> Result<(Vec<OwnedFd>, Option<Rendezvous>), StartError> {
    match held {
        Ok(held) => {
            let (sockets, ports): (Vec<OwnedFd>, Vec<u16>) = held.into_iter().unzip();
            let ports: Vec<u16> = store.iter().map(SocketAddr::port).chain(ports).collect();
            let rendezvous = Rendezvous::new(address.to_string(), &ports, store.is_some());
            let relay = store.filter(|_| Rendezvous::wants_relay(spec));
            Ok((sockets, rendezvous.map(|rendezvous| Rendezvous { relay, ..rendezvous })))
        }
        Err(error) if spec.tf_config => Err(cannot("reserve a port for each rank (--tf-config)")(error)),
        Err(_) => Ok((Vec::new(), None)),
    }
}

/// Random names, one for each worker.
fn new_tags(count: usize) -> io::Result<Vec<String>> {
    use std::fmt::Write;
    let mut bytes = vec![0u8; TAG_BYTES * count];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    let hex = |bytes: &[u8]| {
        bytes.iter().fold(String::new(), |mut tag, byte| {
            // Writing to a string cannot fail.
            let _ = write!(tag, "{byte:02x}");
            tag
        })
    };
    Ok(bytes.chunks_exact(TAG_BYTES).map(hex).collect())
}
