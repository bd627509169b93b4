//! The agent's side of PMIx: the socket that ranks of Open MPI connect to, and the host that is started when one does
//! (docs/adr/0022-a-pmix-host.md). One host serves all groups of an attempt that have ranks on this node.
//!
//! * `host.rs`: our ends of the host, and how it is waited for.
//! * `namespace.rs`: what it is told of a group.
//! * `environment.rs`: its environment.

mod environment;
mod host;
mod namespace;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use rankrun_core::collective::Collective;
use rankrun_core::evidence::MpiEvent;
use rankrun_core::job::AgentEvent;
use rankrun_core::lease::Vitals;
use rankrun_core::names::{Protocol, Reply};
use rankrun_core::spawning::{GroupMap, SpawnAnswer, SpawnAsker};
use rankrun_core::{
    Attempt, GroupId, JobSpec, NodeId, NodeRank, Pid, Purpose, Rank, Slot, WorkerId, WorkerStatus, pmix,
};
use rankrun_sys::limits::Limits;
use rankrun_sys::poll::{Interest, Poller, Ready};
use rankrun_sys::process::ProcessId;
use rankrun_sys::socket;
use rankrun_sys::spawn::Command;
use rankrun_wire::ToFront;
use rankrun_wireup::pmix::{Answer, Config, Effect, FromHost, Group, Lifecycle, Namespace, Server, Setup, ToHost};

use self::host::Host;
use super::pmi::News;
use crate::driver::token::{Place, Token};
use crate::helpers::control::command;

/// The directory of libpmix's files in the job's.
const DIRECTORY: &str = "pmix";
/// All ranks may connect at once.
const BACKLOG: i32 = 4096;
/// Lines of the host's stderr that are passed on as notes.
const MAX_NOTES: usize = 20;

/// A group of which this node has heard.
struct Known {
    namespace: Namespace,
    /// The ranks of this node, by slot. Empty for a group that has none here, or none any more.
    ranks: Vec<Rank>,
    leaders: BTreeMap<Rank, Pid>,
}

/// What a team keeps of PMIx for its ranks, by slot.
#[derive(Debug)]
pub(crate) struct Ranks {
    /// For their environment.
    pub(crate) facts: pmix::Facts,
    is_in_mpi: Vec<bool>,
    processes: Vec<Option<ProcessId>>,
}

impl Ranks {
    pub(crate) fn new(facts: pmix::Facts, count: usize) -> Ranks {
        Ranks { facts, is_in_mpi: vec![false; count], processes: vec![None; count] }
    }

    /// Whether a rank has inited MPI and not finalized.
    pub(crate) fn is_in_mpi(&self, slot: Slot) -> bool {
        self.is_in_mpi[slot.index()]
    }

    /// The process of a rank that inited MPI last.
    pub(crate) fn process(&self, slot: Slot) -> Option<ProcessId> {
        self.processes[slot.index()]
    }

    pub(crate) fn inited(&mut self, slot: Slot, process: Option<ProcessId>) {
        self.is_in_mpi[slot.index()] = true;
        self.processes[slot.index()] = process;
    }

    pub(crate) fn finalized(&mut self, slot: Slot) {
        self.is_in_mpi[slot.index()] = false;
    }

    pub(crate) fn ended(&mut self, slot: Slot) {
        self.processes[slot.index()] = None;
    }
}

/// Listens for the first rank that connects. Returns the port, too.
fn listen(poller: &Poller) -> io::Result<(Host, u16)> {
    let (listener, port) = socket::listen_local(BACKLOG)?;
    poller.add(&listener, Token::Pmix.encode(), Interest::Read)?;
    Ok((Host::new(listener), port))
}

/// PMIx for the ranks of this node.
pub(crate) struct Pmix {
    attempt: Attempt,
    /// Of the group that was the first on this node.
    spec: Rc<JobSpec>,
    limits: Limits,
    node: NodeRank,
    server: Server,
    host: Host,
    /// What the host is told before it is told of groups.
    setup: Setup,
    groups: BTreeMap<GroupId, Known>,
    noted: usize,
    facts: pmix::Facts,
    /// How many requests of ranks have come, and the number of the last.
    requests: u64,
    last: u64,
    /// The ranks whose loss the host knows.
    told_lost: BTreeSet<Rank>,
}

impl Pmix {
    /// Listens. A job whose ranks do not use PMIx pays for nothing else.
    pub(crate) fn open(
        spec: &Rc<JobSpec>,
        node: NodeRank,
        hosts: Vec<String>,
        limits: Limits,
        runtime: &Path,
        poller: &Poller,
    ) -> io::Result<Pmix> {
        let (host, port) = listen(poller)?;
        let nodes = match hosts.len() {
            0 | 1 => vec![rustix::system::uname().nodename().to_string_lossy().into_owned()],
            _ => pmix::node_names(hosts),
        };
        let name = nodes.get(node.index()).cloned().unwrap_or_default();
        let directory = runtime.join(DIRECTORY);
        let facts = pmix::Facts { port, directory: directory.clone().into(), host: name };
        let config = Config { node, nodes: nodes.len() as u32 };
        let setup = Setup {
            namespace: pmix::namespace(&spec.job, spec.attempt),
            directory,
            library: spec.pmix_library.clone().map(PathBuf::from),
            programs: Vec::new(),
            nodes,
            node: node.0,
            groups: Vec::new(),
            first: 1,
        };
        Ok(Pmix {
            attempt: spec.attempt,
            spec: Rc::clone(spec),
            limits,
            node,
            server: Server::new(config),
            host,
            setup,
            groups: BTreeMap::new(),
            noted: 0,
            facts,
            requests: 0,
            last: 0,
            told_lost: BTreeSet::new(),
        })
    }

    pub(crate) fn is_of(&self, attempt: Attempt) -> bool {
        self.attempt == attempt
    }

    /// Whether groups that begin now get what they ask for: its host has not ended.
    pub(crate) fn can_serve(&self) -> bool {
        !self.host.is_lost()
    }

    /// Another host serves what begins now: all ranks of this node have ended, and with them their host. Ranks of other nodes may live, and new
    /// ones here connect to them.
    pub(crate) fn renew(&mut self, poller: &Poller) -> io::Result<()> {
        (self.host, self.facts.port) = listen(poller)?;
        // An answer to a request of the last one may be under way.
        self.setup.first = self.last + 1;
        Ok(())
    }

    /// A group begins that has ranks on this node, none of which is started yet.
    pub(crate) fn begin(&mut self, spec: &JobSpec, cpus: u32) -> Vec<News> {
        let ranks: Vec<Rank> = spec.map.on_node(self.node).map(|place| place.rank).collect();
        let others = self.groups.values().map(|known| known.ranks.len() as u32).sum();
        self.setup.programs.extend(namespace::programs(spec));
        self.add(namespace::of_spec(spec, self.node, others, cpus), ranks)
    }

    /// A group begins that has no ranks on this node.
    pub(crate) fn begin_elsewhere(&mut self, map: &GroupMap) -> Vec<News> {
        self.add(namespace::of_map(map), Vec::new())
    }

    fn add(&mut self, namespace: Namespace, ranks: Vec<Rank>) -> Vec<News> {
        let (group, size) = (namespace.group, namespace.ranks.len() as u32);
        self.server.begin(Group { group, size, local: ranks.clone() });
        let sent = self.host.send(&ToHost::Begin(Box::new(namespace.clone())));
        self.groups.insert(group, Known { namespace, ranks, leaders: BTreeMap::new() });
        self.lose_if(sent)
    }

    /// No process of a group's ranks is left on this node. The host is needed as long as there are ranks of any group.
    pub(crate) fn over(&mut self, group: GroupId) -> Vec<News> {
        let Some(known) = self.groups.get_mut(&group) else { return Vec::new() };
        (known.ranks, known.leaders) = (Vec::new(), BTreeMap::new());
        let is_here_alone = known.namespace.ranks.iter().all(|(node, ..)| *node == self.node.0);
        self.server.over(group);
        if self.groups.values().all(|known| known.ranks.is_empty()) {
            self.host.end();
        }
        // The others may ask for data of the first group to their end, and connect to ranks of other nodes.
        if group == GroupId(0) || !is_here_alone {
            return Vec::new();
        }
        self.groups.remove(&group);
        let sent = self.host.send(&ToHost::Over { group });
        self.lose_if(sent)
    }

    /// For the ranks' environment.
    pub(crate) fn facts(&self) -> &pmix::Facts {
        &self.facts
    }

    /// How many requests of ranks have come in this attempt.
    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// A rank has connected: the host is to be started.
    pub(crate) fn connected(&mut self, poller: &Poller) {
        self.host.connected(poller);
    }

    pub(crate) fn wants_host(&self) -> bool {
        self.host.is_wanted()
    }

    /// A rank has asked for the host, which does not answer yet.
    pub(crate) fn is_coming_up(&self) -> bool {
        self.host.is_coming_up()
    }

    /// No rank has connected, so that no host was asked for.
    pub(crate) fn is_idle(&self) -> bool {
        self.host.is_idle()
    }

    /// The command of the host, which inherits the listening socket.
    pub(crate) fn start_host(
        &mut self,
        now: Duration,
        cgroup: Option<OwnedFd>,
        poller: &Poller,
    ) -> io::Result<Command> {
        // An earlier host has left its files. Where they stay, the next line says so.
        let _ = std::fs::remove_dir_all(&self.setup.directory);
        std::fs::create_dir(&self.setup.directory)?;
        let groups = self.groups.values().map(|known| known.namespace.clone()).collect();
        let mut messages = vec![ToHost::Setup(Box::new(Setup { groups, ..self.setup.clone() }))];
        let leaders = self.groups.values().flat_map(|known| &known.leaders);
        messages.extend(leaders.map(|(of, pid)| ToHost::Leader { of: *of, pid: *pid }));
        let inherited = self.host.start(now, &messages, poller)?;
        Ok(command(Purpose::PmixHost, inherited, environment::environment(&self.spec), cgroup, self.limits))
    }

    /// A rank has been started.
    pub(crate) fn leader(&mut self, of: Rank, pid: Pid) -> Vec<News> {
        if let Some(known) = self.groups.get_mut(&of.group()) {
            known.leaders.insert(of, pid);
        }
        self.told_lost.remove(&of);
        self.server.started(of);
        let sent = self.host.send(&ToHost::Leader { of, pid });
        self.lose_if(sent)
    }

    /// The host was not started.
    pub(crate) fn not_started(&mut self, why: &str) -> Vec<News> {
        self.lose(format!("the PMIx host could not be started: {why}"))
    }

    /// The host has ended. It ends by itself only if something is wrong.
    pub(crate) fn host_ended(&mut self, now: Duration, status: WorkerStatus) -> Vec<News> {
        // All that it wrote is there: why it could not begin, too.
        let mut news = Vec::new();
        self.read(now, &mut news);
        let last = match self.host.last_line() {
            "" => String::new(),
            line => format!("; it wrote: {line}"),
        };
        news.extend(self.lose(format!("the PMIx host was ended by {status}{last}")));
        news
    }

    /// The host was stopped: nobody would be answered.
    pub(crate) fn host_stopped(&mut self, signal: i32) -> Vec<News> {
        self.lose(format!("the PMIx host was stopped by signal {signal}"))
    }

    /// The host's connection is ready.
    pub(crate) fn ready(&mut self, now: Duration, event: Ready) -> Vec<News> {
        let mut news = Vec::new();
        if event.writable
            && let Err(why) = self.host.flush()
        {
            return self.lose(why);
        }
        if event.readable {
            self.read(now, &mut news);
        }
        news
    }

    fn read(&mut self, now: Duration, news: &mut Vec<News>) {
        loop {
            match self.host.read() {
                Ok(true) => {}
                Ok(false) => return,
                Err(why) => return news.extend(self.lose(why)),
            }
            loop {
                match self.host.next_message() {
                    Ok(Some(message)) => self.receive(now, message, news),
                    Ok(None) => break,
                    Err(why) => return news.extend(self.lose(why)),
                }
            }
        }
    }

    fn receive(&mut self, now: Duration, message: FromHost, news: &mut Vec<News>) {
        match message {
            FromHost::Ready { .. } => {
                self.host.ready(now);
                let sought = self.server.unanswered().collect();
                self.perform(sought, news);
            }
            FromHost::Failed { reason } => news.extend(self.lose(reason)),
            FromHost::NoClient => self.host.has_no_client(),
            FromHost::Client => self.host.has_client(now),
            FromHost::Pong => self.host.pong(now),
            FromHost::Found { number, data } => {
                news.extend(self.having(|server, effects| server.found(number, data, effects)));
            }
            FromHost::Request { id, request } => {
                (self.requests, self.last) = (self.requests + 1, id);
                news.extend(self.having(|server, effects| server.request(now, id, request, effects)));
            }
        }
    }

    /// All nodes have contributed to a collective.
    pub(crate) fn collective_done(&mut self, whole: Collective) -> Vec<News> {
        self.having(|server, effects| server.collective_done(whole, effects))
    }

    /// The names of the job have answered.
    pub(crate) fn answered(&mut self, id: u64, reply: Reply) -> Vec<News> {
        self.having(|server, effects| server.answered(id, reply, effects))
    }

    /// The ranks that a rank has asked for have been started, or will not be.
    pub(crate) fn spawned(&mut self, id: u64, answer: &SpawnAnswer) -> Vec<News> {
        self.having(|server, effects| server.spawned(id, answer, effects))
    }

    /// Another node asks for the data of a rank of this one.
    pub(crate) fn seek(&mut self, by: NodeId, id: u64, of: WorkerId) -> Vec<News> {
        self.having(|server, effects| server.seek(by, id, of.rank, effects))
    }

    /// Another node has sent the data of a rank.
    pub(crate) fn fetched(&mut self, id: u64, data: Option<Vec<u8>>) -> Vec<News> {
        self.having(|server, effects| server.fetched(id, data, effects))
    }

    fn having(&mut self, handle: impl FnOnce(&mut Server, &mut Vec<Effect>)) -> Vec<News> {
        let (mut effects, mut news) = (Vec::new(), Vec::new());
        handle(&mut self.server, &mut effects);
        self.perform(effects, &mut news);
        news
    }

    /// A rank has ended. `goes_on`: the others do not end for it.
    pub(crate) fn rank_ended(&mut self, of: Rank, goes_on: bool) -> Vec<News> {
        if let Some(known) = self.groups.get_mut(&of.group()) {
            known.leaders.remove(&of);
        }
        if goes_on && matches!(self.server.lifecycle(of), Lifecycle::Inited { .. }) {
            // It is told for the others' sake. If the host is gone, that is reported.
            self.told_lost.insert(of);
            drop(self.host.send(&ToHost::Lost { ranks: vec![of] }));
        }
        self.having(|server, effects| server.ended(of, effects))
    }

    /// Ranks are gone, on whichever node, and the others run on.
    pub(crate) fn lost(&mut self, ranks: &[Rank]) -> Vec<News> {
        let mut new = Vec::new();
        let mut news = self.having(|server, effects| new = server.lost(ranks, effects));
        new.retain(|rank| self.told_lost.insert(*rank));
        if !new.is_empty() {
            let sent = self.host.send(&ToHost::Lost { ranks: new });
            news.extend(self.lose_if(sent));
        }
        news
    }

    /// The host's stderr is ready.
    pub(crate) fn errors_ready(&mut self, poller: &Poller) -> Vec<News> {
        let lines = self.host.read_errors(poller);
        let may_note = MAX_NOTES.saturating_sub(self.noted);
        self.noted += lines.len();
        let notes = lines.into_iter().filter(|line| !line.trim().is_empty()).take(may_note);
        notes.map(|line| News::Note(format!("libpmix: {}", line.trim_end()))).collect()
    }

    /// When [`Pmix::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        [self.host.deadline(), self.server.deadline()].into_iter().flatten().min()
    }

    /// Does all that is due. `look`: what the kernel knows of the host's process.
    pub(crate) fn tick(&mut self, now: Duration, look: impl FnOnce() -> Option<Vitals>) -> Vec<News> {
        let mut news = self.having(|server, effects| server.tick(now, effects));
        let done = self.host.tick(now, look);
        news.extend(self.lose_if(done));
        news
    }

    /// Sends the host the answer to a request.
    pub(crate) fn answer(&mut self, id: u64, answer: Answer) -> Vec<News> {
        let sent = self.host.send(&ToHost::Answer { id, answer });
        self.lose_if(sent)
    }

    fn perform(&mut self, effects: Vec<Effect>, news: &mut Vec<News>) {
        let mut has_written = false;
        for effect in effects {
            match effect {
                // What the rank writes after the answer comes behind the text.
                Effect::Answer { id, answer } if has_written => news.push(News::Answer { id, answer }),
                Effect::Answer { id, answer } => news.extend(self.answer(id, answer)),
                Effect::Inited { of, pid } => {
                    let Some(place) = self.place(of) else { continue };
                    news.push(News::InPmix(place, pid.and_then(|pid| ProcessId::of(pid.0))));
                    news.push(News::Mpi(place, MpiEvent::Inited));
                }
                Effect::PassedFence { of } => {
                    news.extend(self.place(of).map(|place| News::Mpi(place, MpiEvent::PassedBarrier)));
                }
                Effect::Finalized { of } => {
                    let Some(place) = self.place(of) else { continue };
                    news.push(News::OutOfPmix(place));
                    news.push(News::Mpi(place, MpiEvent::Finalized));
                }
                Effect::Aborted { of, code, message } => {
                    news.extend(self.place(of).map(|place| News::Mpi(place, MpiEvent::Aborted { code, message })));
                }
                Effect::Spawn { id, of, request } => {
                    let asker = SpawnAsker { worker: self.worker(of), protocol: Protocol::Pmix, id };
                    news.push(News::Tell(ToFront::Event(AgentEvent::Spawn { asker, request })));
                }
                Effect::Find { id, of } => {
                    // One that cannot serve yet is asked when it can.
                    if self.host.is_running() {
                        let sent = self.host.send(&ToHost::Find { number: id, of });
                        news.extend(self.lose_if(sent));
                    }
                }
                Effect::Ask { id, of, question } => {
                    news.push(News::Tell(ToFront::Ask { group: of.group(), protocol: Protocol::Pmix, id, question }));
                }
                Effect::Logged { of, stream, text } => {
                    news.extend(self.place(of).map(|place| News::Wrote(place, stream, text)));
                    has_written = true;
                }
                Effect::Fetch { id, of } => news.push(News::Tell(ToFront::Fetch { id, of: self.worker(of) })),
                Effect::Fetched { by, id, of, data } => {
                    news.push(News::Tell(ToFront::Fetched { by, group: of.group(), id, data }));
                }
                Effect::Collective(part) => news.push(News::Tell(ToFront::Collective(part))),
                Effect::Gone { group, seq, ranks } => {
                    news.push(News::Tell(ToFront::Gone { group, seq, ranks }));
                }
            }
        }
    }

    /// The host cannot serve any more. It is reported once. It ends the job also if all ranks have finalized: the last answer may
    /// not have reached its rank.
    fn lose(&mut self, why: String) -> Vec<News> {
        if self.host.end() { vec![News::WireUpLost(why)] } else { Vec::new() }
    }

    fn lose_if(&mut self, done: Result<(), String>) -> Vec<News> {
        done.map_or_else(|why| self.lose(why), |()| Vec::new())
    }

    fn worker(&self, of: Rank) -> WorkerId {
        WorkerId { rank: of, attempt: self.attempt }
    }

    fn place(&self, of: Rank) -> Option<Place> {
        let ranks = &self.groups.get(&of.group())?.ranks;
        let slot = Slot(ranks.binary_search(&of).ok()? as u32);
        Some(Place { group: of.group(), slot })
    }
}
