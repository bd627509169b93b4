//! The fork servers of the groups (`--preload`), and how their processes come and go.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::time::Duration;

use rankrun_core::env::NodeFacts;
use rankrun_core::rendezvous::Rendezvous;
use rankrun_core::travel::on_another_node;
use rankrun_core::{AppIndex, JobSpec, Rank, WorkerStatus};
use rankrun_sys::limits::Limits;
use rankrun_sys::{cpus, signal};
use rankrun_wire::ToFront;
use rankrun_wire::message::NodeStart;

use super::prepare::{Preparer, stdbuf_library};
use super::slot::Slot;
use super::spawner::{Job, NotSpawned};
use super::{Hands, Team, Teams};
use crate::children::{Helper, ServerId};

/// The servers of the commands of a node, and why there are none for others.
type Servers = (HashMap<AppIndex, ServerId>, Vec<String>);

impl Team {
    /// Has a server for each command whose ranks can be forked. Ranks of a group that others have asked for are started one by one.
    pub(super) fn want_servers(&mut self, hands: &mut Hands, now: Duration) {
        if self.spec.preload.is_none() || self.spec.spawned.is_some() {
            return;
        }
        let ranks: Vec<Rank> = self.slots.iter().map(Slot::rank).collect();
        let (servers, obstacles) = hands.want_servers(now, &self.spec, &ranks, &mut self.preparer);
        self.servers = servers;
        // Another attempt has the same reasons.
        if self.spec.attempt.0 == 0 {
            let note = |why: String| ToFront::Note(format!("--preload: {why}; ranks start without it"));
            hands.outbox.extend(obstacles.into_iter().map(note));
        }
    }

    /// Whether it is known how all ranks are started.
    pub(super) fn knows_servers(&self, hands: &Hands) -> bool {
        self.servers.values().all(|server| hands.fork_servers.is_settled(*server))
    }

    /// All ranks run, and none is started again: the servers have nothing to do any more.
    pub(super) fn free_servers(&mut self, hands: &mut Hands) {
        if self.spec.restart.is_on() || !self.to_spawn.is_empty() || hands.spawner.is_busy() {
            return;
        }
        for (_, server) in std::mem::take(&mut self.servers) {
            hands.end_server(server);
        }
    }
}

impl Hands {
    /// Has a server for each command that these ranks have. Servers that none of them uses are ended.
    fn want_servers(&mut self, now: Duration, spec: &JobSpec, ranks: &[Rank], preparer: &mut Preparer) -> Servers {
        let mut apps: BTreeMap<AppIndex, Vec<Rank>> = BTreeMap::new();
        for place in ranks.iter().filter_map(|rank| spec.map.place(*rank)) {
            apps.entry(place.app).or_default().push(place.rank);
        }
        let (mut servers, mut obstacles) = (HashMap::new(), Vec::new());
        for (app, ranks) in apps {
            let wish = preparer.server(spec, app, &ranks).map_err(|why| why.to_string());
            let server = wish.and_then(|wish| match self.fork_servers.of(&wish.key) {
                Some(server) => Ok(server),
                None => self.fork_servers.add(wish, &self.poller).map_err(|error| rankrun_sys::reason(&error)),
            });
            match server {
                Ok(server) => drop(servers.insert(app, server)),
                Err(why) => obstacles.push(why),
            }
        }
        let used: Vec<ServerId> = servers.values().copied().collect();
        for server in self.fork_servers.keep(&used) {
            self.children.end_helpers(Helper::ForkServer(server));
        }
        self.start_servers(now);
        (servers, obstacles)
    }

    /// This node may get ranks of the job later: their servers are started now.
    pub(crate) fn prepare_servers(&mut self, now: Duration, start: NodeStart, runtime: &Path, limits: Limits) {
        let NodeStart { node, mut spec, .. } = start;
        spec.base_env = on_another_node(spec.base_env, std::env::vars_os());
        let opened = self.worker_socket.open(runtime, spec.hook, &self.poller);
        let facts = NodeFacts {
            node,
            cpus: cpus::allowed(),
            bound: Vec::new(),
            // Modules look whether there is one when they are imported, and where it is later.
            rendezvous: Rendezvous::new("127.0.0.1", &vec![1; Rendezvous::port_count(&spec)], true),
            stdbuf: stdbuf_library(),
            socket: opened.socket.map(Into::into),
            hook: opened.hook.map(Into::into),
            pmix: None,
            runtime_dir: Some(runtime.into()),
        };
        let ranks: Vec<Rank> = spec.map.on_node(node).map(|place| place.rank).collect();
        if let Ok(mut preparer) = Preparer::new(facts, limits, false, self.is_away) {
            // What cannot be prepared is said when ranks are started.
            self.want_servers(now, &spec, &ranks, &mut preparer);
        }
    }

    /// Gives the spawner what waits, as far as it has room.
    fn start_servers(&mut self, now: Duration) {
        while let Some(server) = self.fork_servers.wanted()
            && self.spawner.has_room()
        {
            let helper = Helper::ForkServer(server);
            let Some((program, mut command)) = self.fork_servers.start(server, now) else { return };
            let started = self.children.take_own_leaf(helper).and_then(|cgroup| {
                command.cgroup = cgroup;
                match self.spawner.spawn(Job::Helper(helper), program, command) {
                    true => Ok(()),
                    false => Err(io::ErrorKind::WouldBlock.into()),
                }
            });
            if let Err(error) = started {
                self.server_failed(server, &rankrun_sys::reason(&error));
            }
        }
    }

    /// It is not used any more, and why.
    pub(super) fn server_failed(&mut self, server: ServerId, why: &str) {
        let note = self.fork_servers.fail(server, why);
        self.outbox.extend(note.map(ToFront::Note));
        self.children.end_helpers(Helper::ForkServer(server));
    }

    fn end_server(&mut self, server: ServerId) {
        self.fork_servers.forget(server);
        self.children.end_helpers(Helper::ForkServer(server));
    }

    /// The job is over, or the agent ends.
    pub(crate) fn end_servers(&mut self) {
        for server in self.fork_servers.keep(&[]) {
            self.children.end_helpers(Helper::ForkServer(server));
        }
    }
}

impl Teams {
    pub(super) fn server_spawned(&mut self, hands: &mut Hands, server: ServerId, result: Result<i32, NotSpawned>) {
        match hands.helper_spawned(Helper::ForkServer(server), result) {
            Ok(_) if hands.fork_servers.is_wanted(server) => {}
            Ok(_) => hands.children.end_helpers(Helper::ForkServer(server)),
            Err(error) => hands.server_failed(server, &error.to_string()),
        }
    }

    pub(super) fn server_ended(&mut self, hands: &mut Hands, now: Duration, server: ServerId, status: WorkerStatus) {
        let note = hands.fork_servers.ended(server, status, &hands.poller);
        hands.outbox.extend(note.map(ToFront::Note));
        self.servers_settled(hands, now);
    }

    /// A server has said something.
    pub(super) fn server_ready(&mut self, hands: &mut Hands, now: Duration, server: ServerId) {
        if let Some(note) = hands.fork_servers.read(server, &hands.poller) {
            hands.outbox.push(ToFront::Note(note));
            hands.children.end_helpers(Helper::ForkServer(server));
        }
        self.servers_settled(hands, now);
    }

    pub(super) fn servers_tick(&mut self, hands: &mut Hands, now: Duration) {
        hands.start_servers(now);
        let look = |server| hands.children.vitals_of(Helper::ForkServer(server));
        let late = hands.fork_servers.late(now, look);
        for server in &late {
            let why = hands.fork_servers.hangs(*server);
            hands.server_failed(*server, &why);
            if let Some(child) = hands.spawner.starting(Job::Helper(Helper::ForkServer(*server))) {
                // It has not come to its exec.
                let _ = child.signal(signal::SIGKILL);
            }
        }
        if !late.is_empty() {
            self.servers_settled(hands, now);
        }
    }

    pub(super) fn servers_settled(&mut self, hands: &mut Hands, now: Duration) {
        self.all().for_each(|team| team.spawn_more(hands, now));
    }
}
