//! Which further groups ranks get (`MPI_Comm_spawn`), and where their ranks run.
//!
//! A group belongs to its attempt: its ranks are started, stopped, counted and reported as the first ones are. It begins when somebody asks for
//! it, and whoever asked is answered when all of its ranks run. If one of them cannot be started the group is withdrawn: none of its ranks is
//! left, nothing of it decides how the job ends, and whoever asked is told so.

use std::ffi::OsString;

use crate::event::{GroupFacts, JobEvent};
use crate::evidence::MpiEvent;
use crate::gang::{self, SPAWN};
use crate::ids::{NodeId, NodeRank, Rank};
use crate::job::event::{Effect, Meeting};
use crate::job::machine::Job;
use crate::job::order::Order;
use crate::job::parts::groups::Waiting;
use crate::job::parts::node::Node;
use crate::rankmap::RankMap;
use crate::spec::job::{App, IoPolicy, JobSpec, StdinTarget};
use crate::spec::spawning::{SpawnAnswer, SpawnApp, SpawnAsker, SpawnRequest, Spawned};
use crate::template::Template;

/// Ranks that an attempt may have in all.
const RANKS_MOST: usize = 1 << 20;

/// A node that may get ranks of a group.
struct Room {
    place: NodeRank,
    names: Vec<String>,
    slots: u32,
    /// Ranks that live there, those that are being placed among them.
    ranks: u32,
}

impl Job {
    /// A rank asks for a group.
    pub(in crate::job) fn spawn_requested(&mut self, node: NodeId, asker: SpawnAsker, request: SpawnRequest) {
        self.looks.sign(self.now);
        let by = asker.worker.rank;
        match self.plan_group(by, &request) {
            Ok(spec) => self.begin_group(node, asker, spec),
            Err(why) => {
                let size = request.size();
                self.note(format!("rank {by} asked for {}, and gets none: {why}", ranks(size)));
                self.note_refusal(by, &why);
                self.out.push(Effect::AnswerSpawn { node, asker, answer: SpawnAnswer::Refused(why) });
            }
        }
    }

    /// What the group is to be, or why there is none.
    fn plan_group(&mut self, by: Rank, request: &SpawnRequest) -> Result<JobSpec, String> {
        if self.is_ending() {
            return Err("the job is being ended".to_owned());
        }
        if self.successors.are_on() {
            return Err(
                "ranks are restarted one by one (--restart-scope rank), and no group could follow them".to_owned()
            );
        }
        let size = request.size();
        if size == 0 || request.apps.iter().any(|app| app.command.is_empty()) {
            return Err("a command or a number of ranks is missing".to_owned());
        }
        if self.gang.ranks().len() + size as usize > RANKS_MOST {
            return Err(format!("the job has {} already", ranks(self.gang.ranks().len() as u32)));
        }
        let parent = self.spec_of(by.group()).ok_or("its own group is gone")?.clone();
        let homes = self.homes(&request.apps)?;
        let app = parent.map.place(by).map(|place| parent.app(place.app).clone());
        let env = app.as_ref().map(|app| app.env.clone()).unwrap_or_default();
        let wdir = app.and_then(|app| app.wdir);
        let apps = request.apps.iter().map(|wanted| App {
            command: wanted.command.clone(),
            size: wanted.size,
            env: env.iter().chain(&wanted.env).cloned().chain(wanted.variables()).collect(),
            wdir: wanted.word("wdir").map(|wdir| Template::literal(in_directory(&parent.cwd, wdir))).or(wdir.clone()),
            search: wanted.word("path").map(OsString::from),
            wraps: Vec::new(),
        });
        let nodes = (0..self.spec.map.node_count()).map(|node| self.spec.map.node_name(NodeRank(node)).to_owned());
        let sizes: Vec<u32> = request.apps.iter().map(|app| app.size).collect();
        let group = self.groups.next();
        Ok(JobSpec {
            group,
            spawned: Some(Spawned { by: self.gang.worker(by), preput: request.preput.clone() }),
            apps: apps.collect(),
            map: RankMap::of_nodes(nodes.collect(), &homes, &sizes).of_group(group),
            // Nobody has named a file or a terminal for them.
            io: IoPolicy { stdin: StdinTarget::None, tty: None, ..parent.io.clone() },
            error_file: None,
            tf_config: false,
            expands_args: false,
            ..parent
        })
    }

    /// The nodes of the ranks, in order.
    fn homes(&self, apps: &[SpawnApp]) -> Result<Vec<NodeRank>, String> {
        let mut rooms: Vec<Room> =
            self.nodes.seated().filter(|node| self.may_get_ranks(node)).filter_map(|node| self.room(node)).collect();
        let mut homes = Vec::new();
        for app in apps {
            if let Some(key) =
                ["hostfile", "add-hostfile", "add_hostfile"].into_iter().find(|key| app.word(key).is_some())
            {
                return Err(format!("the key \"{key}\" is not served: name hosts of the job with \"host\""));
            }
            let wanted: Vec<(String, Option<u32>)> = ["host", "hosts", "add-host", "add_host"]
                .iter()
                .filter_map(|key| app.word(key))
                .flat_map(host_list)
                .collect();
            for (name, slots) in &wanted {
                let Some(room) = rooms.iter_mut().find(|room| room.names.contains(name)) else {
                    return Err(self.no_such_host(name));
                };
                room.slots = slots.map_or(room.slots, |slots| slots.max(room.slots));
            }
            let is_meant = |room: &Room| wanted.is_empty() || wanted.iter().any(|(name, _)| room.names.contains(name));
            let is_spread = app
                .word("map_by")
                .or(app.word("map-by"))
                .is_some_and(|by| by.starts_with("node") || by.starts_with("ppr:1:node"));
            for _ in 0..app.size {
                let next = next_room(&rooms, is_meant, is_spread).ok_or("no node of the job can take ranks")?;
                rooms[next].ranks += 1;
                homes.push(rooms[next].place);
            }
        }
        Ok(homes)
    }

    /// Whether a node can be told to start ranks.
    fn may_get_ranks(&self, node: &Node) -> bool {
        node.is_ready() && (node.is_running() || node.summary().is_some())
    }

    fn room(&self, node: &Node) -> Option<Room> {
        let place = node.place()?;
        let lives = |rank: &Rank| self.gang.ranks().get(*rank).is_some_and(|record| record.outcome.is_none());
        let host = self.settings.hosts.get(node.id().index());
        let mut names = vec![node.name().to_owned(), self.spec.map.node_name(place).to_owned()];
        names.extend(host.map(|host| host.name.clone()));
        names.extend(node.about().map(|about| about.host.clone()));
        if node.is_here() {
            names.extend(["localhost".to_owned(), "127.0.0.1".to_owned()]);
        }
        names.extend(names.clone().iter().filter_map(|name| name.split_once('.').map(|(short, _)| short.to_owned())));
        let ranks = node.ranks(&self.facts).filter(lives).count() as u32;
        Some(Room { place, names, slots: host.and_then(|host| host.slots).unwrap_or(1), ranks })
    }

    fn no_such_host(&self, name: &str) -> String {
        let known = self.nodes.names(self.nodes.seated().map(Node::id).collect::<Vec<_>>());
        format!(
            "host \"{name}\" is not one of the job's ({known}); all hosts must be named when the job begins (-H, --universe)"
        )
    }

    fn begin_group(&mut self, node: NodeId, asker: SpawnAsker, spec: JobSpec) {
        let (group, size) = (spec.group, spec.map.world_size());
        let facts = GroupFacts::of(&spec, asker.worker.rank);
        if self.settings.verbosity > 0 {
            let command = facts.commands.first().map(|(_, words)| words.join(" ")).unwrap_or_default();
            self.note(format!("spawn {group}: rank {} asked for {} of {command}", asker.worker.rank, ranks(size)));
        }
        self.record(|| JobEvent::Group(Box::new(facts.clone())));
        self.facts.groups.push(facts);
        self.gang.add(group, self.spec.attempt, size, asker.worker.rank);
        let map = spec.map.clone();
        self.groups.begin(spec, Waiting { node, asker, missing: size });
        self.out.push(Effect::BeginGroup(group));
        let seats: Vec<(NodeId, NodeRank)> = self
            .nodes
            .seated()
            .filter(|node| node.is_ready())
            .filter_map(|node| Some((node.id(), node.place()?)))
            .collect();
        let (with, without): (Vec<_>, Vec<_>) = seats.into_iter().partition(|(_, place)| map.local_size(*place) > 0);
        for (node, _) in without {
            self.out.push(Effect::Introduce { node, group });
        }
        for (node, place) in with {
            self.on(node, Node::begin);
            self.out.push(Effect::Start { node, place, group, meeting: Meeting::There(None) });
        }
    }

    /// The failure of a rank may come of it.
    fn note_refusal(&mut self, by: Rank, why: &str) {
        let event = MpiEvent::Refused { call: SPAWN.to_owned(), detail: Some(why.to_owned()) };
        self.event(gang::Event::Mpi { worker: self.gang.worker(by), event });
    }

    /// A rank runs: whoever waits for its group is answered when all of them do.
    pub(in crate::job) fn spawned_rank_runs(&mut self, rank: Rank) {
        let group = rank.group();
        if let Some(Waiting { node, asker, .. }) = self.groups.rank_runs(group) {
            self.out.push(Effect::AnswerSpawn { node, asker, answer: SpawnAnswer::Started(group) });
        }
    }

    /// A rank of a group that comes up could not be started: the group is not to be.
    pub(in crate::job) fn spawn_failed(&mut self, rank: Rank, step: &str, error: &str, command: &str) {
        let group = rank.group();
        let Some(Waiting { node, asker, .. }) = self.groups.withdraw(group) else { return };
        let what = if command.is_empty() { step.to_owned() } else { format!("{step} {command}") };
        let why = format!("cannot {what}: {error}");
        self.note(format!("spawn {group}, which rank {} asked for, was not started: {why}", asker.worker.rank));
        self.record(|| JobEvent::GroupWithdrawn(group));
        let of_group: Vec<Rank> =
            self.gang.ranks().iter().map(|record| record.rank).filter(|rank| rank.group() == group).collect();
        of_group.into_iter().for_each(|rank| self.attempts.rank_continues(rank));
        self.gang.withdraw(group);
        self.facts.withdraw(group);
        self.send(Order::KillGroup(group));
        self.note_refusal(asker.worker.rank, &why);
        self.out.push(Effect::AnswerSpawn { node, asker, answer: SpawnAnswer::Refused(why) });
    }
}

/// The room that the next rank gets: with free slots the first, or the one with the fewest ranks; else the least crowded.
fn next_room(rooms: &[Room], is_meant: impl Fn(&Room) -> bool, is_spread: bool) -> Option<usize> {
    let meant = || rooms.iter().enumerate().filter(|(_, room)| is_meant(room));
    let free = || meant().filter(|(_, room)| room.ranks < room.slots);
    let first = match is_spread {
        true => free().min_by_key(|(at, room)| (room.ranks, *at)),
        false => free().next(),
    };
    let crowd = |room: &Room| u64::from(room.ranks) * 1000 / u64::from(room.slots.max(1));
    first.or_else(|| meant().min_by_key(|(at, room)| (crowd(room), *at))).map(|(at, _)| at)
}

/// The hosts of a list as MPI has them: `a,b:2`, each with its slots.
fn host_list(text: &str) -> Vec<(String, Option<u32>)> {
    let host = |word: &str| match word.rsplit_once(':').and_then(|(name, slots)| Some((name, slots.parse().ok()?))) {
        Some((name, slots)) => (name.to_owned(), Some(slots)),
        None => (word.to_owned(), None),
    };
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(host).collect()
}

fn in_directory(directory: &OsString, path: &str) -> OsString {
    std::path::Path::new(directory).join(path).into_os_string()
}

fn ranks(count: u32) -> String {
    if count == 1 { "1 rank".to_owned() } else { format!("{count} ranks") }
}
