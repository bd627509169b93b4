//! Starting the workers of an attempt: made ready a few ahead of the spawner, registered as they come up.

use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use rankrun_core::env::{Master, NodeFacts, STDBUF_LIBRARIES};
use rankrun_core::job::{MpiMode, StdinTarget};
use rankrun_core::worker::{Event, State};
use rankrun_core::{JobSpec, NodeRank, Pid, Stream, WorkerId};
use rankrun_sys::oom::OomWatch;
use rankrun_sys::poll::{Interest, Poller};
use rankrun_sys::socket;
use rankrun_sys::spawn::{SpawnError, Step};
use rankrun_wire::ToFront;
use rankrun_wireup::pmi1;

use crate::boundary::Boundary;
use crate::capture::Capture;
use crate::node::Node;
use crate::output::Output;
use crate::prepare::{PrepareError, Preparer};
use crate::shm::SharedMemory;
use crate::spawner::Spawned;
use crate::token::Token;
use crate::worker::{PmiClient, SharedStdin, Slot};

/// Ranks that are made ready ahead of the spawner. Each holds descriptors, which every clone copies.
const AHEAD: usize = 16;

impl Node {
    /// Starts the ranks of this node.
    pub(crate) fn start(&mut self, now: Duration, spec: JobSpec, poller: &Poller) {
        let spec = Rc::new(spec);
        let node = NodeRank(0);
        self.output = Output::new(self.runtime.path(), spec.io.spool);
        self.shared_memory = Some(SharedMemory::watch(spec.clean_shm, self.runtime.path()));
        let places: Vec<_> = spec.map.on_node(node).copied().collect();
        self.slots = places
            .iter()
            .map(|place| Slot::new(WorkerId { group: spec.group, rank: place.rank, attempt: spec.attempt }))
            .collect();
        self.by_worker = self.slots.iter().map(|slot| slot.id).zip(0..).collect();
        self.to_spawn = (0..self.slots.len()).collect();
        if spec.mpi == MpiMode::Pmi1 {
            self.pmi = Some(pmi1::Server::new(pmi1::Config {
                group: spec.group,
                size: spec.map.world_size(),
                kvs_prefix: format!("rankrun_{}_{}", self.job, spec.attempt),
                mapping: pmi1::process_mapping(&spec.map).unwrap_or_default(),
                appnums: spec.map.places().iter().map(|place| place.app.0).collect(),
                universe_size: Some(spec.map.world_size()),
                local: places.iter().map(|place| place.rank).collect(),
            }));
        }
        let held = socket::hold_port().ok();
        let master = held.as_ref().map(|(_, port)| Master { addr: "127.0.0.1".to_owned(), port: *port });
        self._master_port = held.map(|(socket, _)| socket);
        let (socket, hook) = self.speakers.open(self.runtime.path(), spec.hook, poller);
        let facts = NodeFacts {
            node,
            cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32),
            master,
            stdbuf: stdbuf_library(),
            socket: socket.map(Into::into),
            hook: hook.map(Into::into),
            runtime_dir: Some(self.runtime.path().into()),
        };
        self.spec = Some(spec);
        match Preparer::new(facts, self.limits) {
            Ok(preparer) => self.preparer = Some(preparer),
            Err(error) => self.outbox.push(ToFront::Note(format!("cannot open /dev/null: {error}"))),
        }
        self.spawn_more(now, poller);
        // While the spawner is at the first ranks: no program wants too much memory in its first instructions.
        self.oom = Some(OomWatch::start());
    }

    /// Keeps the spawner busy, and not more.
    pub(crate) fn spawn_more(&mut self, now: Duration, poller: &Poller) {
        while self.spawner.outstanding() < AHEAD
            && let Some(index) = self.to_spawn.pop_front()
        {
            match self.slots[index].worker.state() {
                State::Gone { .. } => continue,
                // The stop came before the spawner had the command.
                State::Spawning { stop: Some(_), .. } | State::Spawning { kill: true, .. } => {
                    self.event(now, index, Event::SpawnFailed, poller);
                    continue;
                }
                _ => self.event(now, index, Event::SpawnBegun, poller),
            }
            if let Err(error) = self.spawn(index) {
                let (step, errno) = match &error {
                    PrepareError::Resolve(_) => (Step::Exec.to_string(), errno_of_resolve(&error)),
                    PrepareError::Io { what, source } => ((*what).to_owned(), source.raw_os_error().unwrap_or(0)),
                    PrepareError::Nul => ("exec".to_owned(), 22),
                };
                self.spawn_failed(now, index, step, errno, poller);
            }
        }
    }

    fn spawn(&mut self, index: usize) -> Result<(), PrepareError> {
        let (Some(spec), Some(preparer)) = (self.spec.clone(), &mut self.preparer) else { return Ok(()) };
        let rank = self.slots[index].rank();
        let prepared = preparer.prepare(&spec, rank, &self.boundary, &self.inherited)?;
        let slot = &mut self.slots[index];
        slot.captures = prepared.captures.map(|fd| fd.map(Capture::new));
        slot.closed = [slot.captures[0].is_none(), slot.captures[1].is_none()];
        slot.pmi = prepared.pmi.map(|socket| PmiClient { socket, out: VecDeque::new(), awaits_room: false });
        slot.windows = prepared.windows;
        slot.stdin = prepared.stdin.map(|pipe| SharedStdin { pipe, queue: VecDeque::new() });
        if spec.io.stdin == StdinTarget::Rank(rank) {
            // From here on the rank alone holds the front's stdin.
            self.inherited.stdin = None;
        }
        self.spawner.spawn(index, prepared.command);
        Ok(())
    }

    pub(crate) fn spawn_results(&mut self, now: Duration, poller: &Poller) {
        while let Some(Spawned { slot: index, result }) = self.spawner.next_result() {
            match result {
                Ok(pid) => self.spawned(now, index, pid, poller),
                Err(error) => self.spawn_refused(now, index, &error, poller),
            }
        }
    }

    fn spawned(&mut self, now: Duration, index: usize, pid: i32, poller: &Poller) {
        self.by_pid.insert(pid, index);
        self.started += 1;
        let slot = &mut self.slots[index];
        slot.leader = Some(pid);
        slot.leader_alive = true;
        for stream in Stream::ALL {
            if let Some(capture) = &slot.captures[stream.index()]
                && !self.output.is_stalled(stream)
            {
                slot.polled[stream.index()] =
                    poller.add(capture, Token::Output(index, stream).encode(), Interest::Read).is_ok();
            }
        }
        if let Some(client) = &slot.pmi {
            let _ = poller.add(&client.socket, Token::Pmi(index).encode(), Interest::Read);
        }
        self.outbox.push(ToFront::Started { worker: slot.id, pid: Pid(pid), at: now });
        self.event(now, index, Event::Spawned(Pid(pid)), poller);
        if self.frozen {
            self.freeze_slot(index, true);
        }
    }

    fn spawn_refused(&mut self, now: Duration, index: usize, error: &SpawnError, poller: &Poller) {
        if let Some(cgroup) = self.boundary.cgroup() {
            let _ = cgroup.remove_leaf(&Boundary::leaf(self.slots[index].rank()));
        }
        let no_cgroup = error.step == Step::Cgroup
            || (error.step == Step::Clone && matches!(error.source.raw_os_error(), Some(13 | 16 | 95)));
        if no_cgroup && self.started == 0 {
            // EACCES, EBUSY, EOPNOTSUPP: the directory could be made, and yet no process may be placed in it.
            if self.boundary.cgroup().is_some() {
                let why = format!("processes cannot be placed in a cgroup: {}", rankrun_sys::reason(&error.source));
                self.boundary = Boundary::Subreaper { why };
                let pid = Pid(std::process::id() as i32);
                self.outbox.push(ToFront::Ready { pid, containment: self.boundary.containment() });
            }
            self.to_spawn.push_front(index);
            return;
        }
        let errno = error.source.raw_os_error().unwrap_or(0);
        self.spawn_failed(now, index, error.step.to_string(), errno, poller);
    }

    fn spawn_failed(&mut self, now: Duration, index: usize, step: String, errno: i32, poller: &Poller) {
        let worker = self.slots[index].id;
        let command = self.spec.as_ref().and_then(|spec| spec.command(worker.rank).into_iter().next());
        let command = command.unwrap_or_default();
        self.slots[index].captures = [None, None];
        self.slots[index].closed = [true, true];
        self.outbox.push(ToFront::SpawnFailed { worker, step, errno, command, at: now });
        self.event(now, index, Event::SpawnFailed, poller);
    }
}

/// coreutils' library that makes libc buffer otherwise, where Debian, Fedora and Arch have it.
fn stdbuf_library() -> Option<std::ffi::OsString> {
    STDBUF_LIBRARIES.iter().find(|place| Path::new(place).exists()).map(Into::into)
}

fn errno_of_resolve(error: &PrepareError) -> i32 {
    use rankrun_sys::exec::ResolveError;
    match error {
        PrepareError::Resolve(ResolveError::NotFound) => 2,
        PrepareError::Resolve(ResolveError::NotExecutable { source, .. }) => source.raw_os_error().unwrap_or(13),
        PrepareError::Io { .. } | PrepareError::Nul => 0,
    }
}
