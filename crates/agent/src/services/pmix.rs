//! The agent's side of PMIx: the socket that ranks of Open MPI connect to, and the host that is started when one does
//! (docs/adr/0022-a-pmix-host.md).

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::evidence::MpiEvent;
use rankrun_core::lease::Vitals;
use rankrun_core::names::{Protocol, Reply};
use rankrun_core::patience::Patience;
use rankrun_core::{
    AppIndex, Attempt, GroupId, JobSpec, NodeId, NodeRank, Pid, Rank, Slot, WorkerId, WorkerStatus, pmix,
};
use rankrun_sys::limits::Limits;
use rankrun_sys::poll::{Interest, Poller, Ready};
use rankrun_sys::process::ProcessId;
use rankrun_sys::reactor::{Conn, Incoming};
use rankrun_sys::spawn::Command;
use rankrun_sys::{reason, socket};
use rankrun_wire::ToFront;
use rankrun_wire::message::Collective;
use rankrun_wireup::messages::Decoder;
use rankrun_wireup::pmix::{Answer, CollectiveResult, Config, Effect, FromHost, Lifecycle, Server, Setup, ToHost};

use super::pmi::News;
use super::pmix_environment::environment;
use crate::driver::token::Token;
use crate::helpers::control::{Control, command};
use crate::streams::{Capture, Read};

/// The directory of libpmix's files in the job's.
const DIRECTORY: &str = "pmix";
/// All ranks may connect at once.
const BACKLOG: i32 = 4096;
/// Bytes of a line of the host's stderr that are kept.
const LINE: usize = 64 * 1024;
/// How long a host may take until ranks can connect, without the time for which it gets no CPU: it loads a library, and reads the machine's topology.
const START_BOUND: Duration = Duration::from_secs(60);
/// How often a host is asked whether libpmix's thread still works, and how long it may take to answer, likewise.
const PING: Duration = Duration::from_secs(5);
const PING_BOUND: Duration = Duration::from_secs(30);
/// Lines of it that are passed on as notes.
const MAX_NOTES: usize = 20;

/// Our ends of a host's descriptors.
struct Ends {
    control: Control,
    errors: Capture,
}

enum State {
    /// No rank has connected.
    Waiting(OwnedFd),
    /// A rank has connected: the host is to be started.
    Wanted(OwnedFd),
    /// It was given to the spawner, or runs and is not ready.
    Starting {
        ends: Ends,
        /// `None`: nobody waits for it.
        wait: Option<Patience>,
    },
    Running {
        ends: Ends,
        ping: Ping,
    },
    /// It has ended, or could not be started.
    Lost,
}

enum Ping {
    /// The next is due then.
    Due(Duration),
    /// One is under way.
    Sent(Patience),
}

impl Ping {
    fn at(&self) -> Duration {
        match self {
            Ping::Due(at) => *at,
            Ping::Sent(wait) => wait.due(),
        }
    }
}

/// PMIx for the ranks of this node.
pub(crate) struct Pmix {
    group: GroupId,
    attempt: Attempt,
    server: Server,
    ranks: Vec<Rank>,
    state: State,
    /// What to tell the host, once there is one.
    setup: Setup,
    leaders: Vec<(Rank, Pid)>,
    processes: Vec<Option<ProcessId>>,
    /// The last line of the host's stderr, and the beginning of the next.
    last_line: String,
    partial: Vec<u8>,
    noted: usize,
    facts: pmix::Facts,
    /// How many requests of ranks have come.
    requests: u64,
}

impl Pmix {
    /// Listens. A job whose ranks do not use PMIx pays for nothing else.
    pub(crate) fn open(
        spec: &JobSpec,
        node: NodeRank,
        hosts: Vec<String>,
        cpus: u32,
        runtime: &Path,
        poller: &Poller,
    ) -> io::Result<Pmix> {
        let ranks: Vec<Rank> = spec.map.on_node(node).map(|place| place.rank).collect();
        let (listener, port) = socket::listen_local(BACKLOG)?;
        poller.add(&listener, Token::Pmix(spec.group).encode(), Interest::Read)?;
        let nodes = match hosts.len() {
            0 | 1 => vec![rustix::system::uname().nodename().to_string_lossy().into_owned()],
            _ => pmix::node_names(hosts),
        };
        let host = nodes.get(node.index()).cloned().unwrap_or_default();
        let directory = runtime.join(DIRECTORY);
        let facts = pmix::Facts { port, directory: directory.clone().into(), host };
        let config = Config {
            group: spec.group,
            size: spec.map.world_size(),
            local: ranks.clone(),
            node,
            nodes: spec.map.node_count(),
        };
        let setup = Setup {
            namespace: pmix::namespace(&spec.job, spec.attempt),
            directory,
            library: spec.pmix_library.clone().map(PathBuf::from),
            programs: programs(spec),
            ranks: spec
                .map
                .places()
                .iter()
                .map(|place| (place.node.0, place.local_rank.0 as u16, place.app.0))
                .collect(),
            apps: apps(spec),
            nodes,
            node: node.0,
            oversubscribed: spec.map.local_size(node) > cpus,
        };
        let processes = vec![None; ranks.len()];
        Ok(Pmix {
            group: spec.group,
            attempt: spec.attempt,
            server: Server::new(config),
            ranks,
            state: State::Waiting(listener),
            setup,
            leaders: Vec::new(),
            processes,
            last_line: String::new(),
            partial: Vec::new(),
            noted: 0,
            facts,
            requests: 0,
        })
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
        self.state = match std::mem::replace(&mut self.state, State::Lost) {
            State::Waiting(listener) => {
                // The host watches it from now on.
                let _ = poller.remove(&listener);
                State::Wanted(listener)
            }
            other => other,
        };
    }

    pub(crate) fn wants_host(&self) -> bool {
        matches!(self.state, State::Wanted(_))
    }

    /// A rank has asked for the host, which does not answer yet.
    pub(crate) fn is_coming_up(&self) -> bool {
        matches!(self.state, State::Wanted(_) | State::Starting { .. })
    }

    /// No rank has connected, so that no host was asked for.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    /// The command of the host, which inherits the listening socket.
    pub(crate) fn start_host(
        &mut self,
        now: Duration,
        spec: &JobSpec,
        limits: Limits,
        cgroup: Option<OwnedFd>,
        poller: &Poller,
    ) -> io::Result<Command> {
        // The host of an earlier attempt has left its files. Where they stay, the next line says so.
        let _ = std::fs::remove_dir_all(&self.setup.directory);
        std::fs::create_dir(&self.setup.directory)?;
        let (ours, theirs) = socket::pair()?;
        let (errors, their_errors) = socket::pipe()?;
        socket::set_nonblocking(&errors)?;
        poller.add(&errors, Token::PmixErrors(self.group).encode(), Interest::Read)?;
        let conn = Conn::of_socket(&poller.registry(), Token::PmixHost(self.group).encode(), ours)?;
        let mut control = Control::new(conn, Decoder::default());
        let mut messages = vec![ToHost::Setup(Box::new(self.setup.clone()))];
        messages.extend(self.leaders.iter().map(|(rank, pid)| ToHost::Leader { rank: *rank, pid: *pid }));
        control.send(&messages)?;
        let ends = Ends { control, errors: Capture::new(errors) };
        // Not before all else is done: an error is that of a host which is wanted.
        let State::Wanted(listener) =
            std::mem::replace(&mut self.state, State::Starting { ends, wait: Some(Patience::new(now, START_BOUND)) })
        else {
            self.state = State::Lost;
            return Err(io::ErrorKind::InvalidInput.into());
        };
        Ok(command("pmix-host", [theirs, listener, their_errors], environment(spec), cgroup, limits))
    }

    /// A rank has been started.
    pub(crate) fn leader(&mut self, rank: Rank, pid: Pid) -> Vec<News> {
        self.leaders.push((rank, pid));
        self.server.started(rank);
        match self.send(&ToHost::Leader { rank, pid }) {
            Ok(()) => Vec::new(),
            Err(error) => self.lose(format!("cannot send to the PMIx host: {}", reason(&error))),
        }
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
        self.read_errors();
        let last = match self.last_line.as_str() {
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
            && let Some(ends) = self.ends()
            && let Err(error) = ends.control.flush()
        {
            return self.lose(format!("cannot send to the PMIx host: {}", reason(&error)));
        }
        if event.readable {
            self.read(now, &mut news);
        }
        news
    }

    fn read(&mut self, now: Duration, news: &mut Vec<News>) {
        loop {
            let Some(ends) = self.ends() else { return };
            match ends.control.read() {
                Ok(Incoming::Bytes(_)) => {}
                // Its end is reported when it is reaped, with its status.
                Ok(Incoming::Nothing | Incoming::End) => return,
                Err(error) => {
                    return news.extend(self.lose(format!("cannot read from the PMIx host: {}", reason(&error))));
                }
            }
            loop {
                let Some(ends) = self.ends() else { return };
                match ends.control.next_message() {
                    Ok(Some(message)) => self.receive(now, message, news),
                    Ok(None) => break,
                    Err(error) => return news.extend(self.lose(format!("the PMIx host wrote nonsense: {error}"))),
                }
            }
        }
    }

    fn receive(&mut self, now: Duration, message: FromHost, news: &mut Vec<News>) {
        match message {
            FromHost::Ready { .. } => {
                self.state = match std::mem::replace(&mut self.state, State::Lost) {
                    State::Starting { ends, .. } => State::Running { ends, ping: Ping::Due(now + PING) },
                    other => other,
                };
                let sought = self.server.unanswered().collect();
                self.perform(sought, news);
            }
            FromHost::Failed { reason } => news.extend(self.lose(reason)),
            FromHost::NoClient => self.wait_for_start(None),
            FromHost::Client => self.wait_for_start(Some(Patience::new(now, START_BOUND))),
            FromHost::Pong => {
                if let State::Running { ping, .. } = &mut self.state {
                    *ping = Ping::Due(now + PING);
                }
            }
            FromHost::Found { number, data } => {
                news.extend(self.having(|server, effects| server.found(number, data, effects)));
            }
            FromHost::Request { id, request } => {
                self.requests += 1;
                news.extend(self.having(|server, effects| server.request(now, id, request, effects)));
            }
        }
    }

    /// How the host is waited for, until it is ready.
    fn wait_for_start(&mut self, next: Option<Patience>) {
        if let State::Starting { wait, .. } = &mut self.state {
            *wait = next;
        }
    }

    /// All nodes have contributed to a collective.
    pub(crate) fn collective_done(&mut self, done: Collective) -> Vec<News> {
        let done = CollectiveResult { seq: done.seq, payloads: done.payloads };
        self.having(|server, effects| server.collective_done(done, effects))
    }

    /// The names of the job have answered.
    pub(crate) fn answered(&mut self, id: u64, reply: Reply) -> Vec<News> {
        self.having(|server, effects| server.answered(id, reply, effects))
    }

    /// Another node asks for the data of a rank of this one.
    pub(crate) fn seek(&mut self, by: NodeId, id: u64, of: Rank) -> Vec<News> {
        self.having(|server, effects| server.seek(by, id, of, effects))
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
    pub(crate) fn rank_ended(&mut self, slot: Slot, goes_on: bool) -> Vec<News> {
        let rank = self.ranks[slot.index()];
        self.leaders.retain(|(other, _)| *other != rank);
        self.processes[slot.index()] = None;
        if goes_on && matches!(self.server.lifecycle(rank), Lifecycle::Inited { .. }) {
            // It is told for the others' sake. If the host is gone, that is reported.
            drop(self.send(&ToHost::Lost { ranks: vec![rank] }));
        }
        self.having(|server, effects| server.ended(rank, effects))
    }

    /// The host's stderr is ready.
    pub(crate) fn errors_ready(&mut self, poller: &Poller) -> Vec<News> {
        let (lines, is_open) = self.read_errors();
        if !is_open && let Some(ends) = self.ends() {
            // It is in the set.
            let _ = poller.remove(&ends.errors);
        }
        let may_note = MAX_NOTES.saturating_sub(self.noted);
        self.noted += lines.len();
        let notes = lines.into_iter().filter(|line| !line.trim().is_empty()).take(may_note);
        notes.map(|line| News::Note(format!("libpmix: {}", line.trim_end()))).collect()
    }

    /// The lines that are there, and whether there may be more.
    fn read_errors(&mut self) -> (Vec<String>, bool) {
        let mut buffer = Vec::new();
        let mut lines = Vec::new();
        let is_open = loop {
            let Some(ends) = self.ends() else { break false };
            match ends.errors.read(&mut buffer) {
                Read::Bytes(bytes) => self.partial.extend_from_slice(&bytes),
                Read::Empty => break true,
                Read::End => break false,
            }
            while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.partial.drain(..=end).collect();
                lines.push(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            // A line without an end is cut.
            self.partial.truncate(LINE);
        };
        if let Some(last) = lines.iter().rev().find(|line| !line.trim().is_empty()) {
            self.last_line = last.trim().to_owned();
        }
        (lines, is_open)
    }

    /// When [`Pmix::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let host = match &self.state {
            State::Starting { wait, .. } => wait.as_ref().map(Patience::due),
            State::Running { ping, .. } => Some(ping.at()),
            State::Waiting(_) | State::Wanted(_) | State::Lost => None,
        };
        [host, self.server.deadline()].into_iter().flatten().min()
    }

    /// Does all that is due. `look`: what the kernel knows of the host's process.
    pub(crate) fn tick(&mut self, now: Duration, look: impl FnOnce() -> Option<Vitals>) -> Vec<News> {
        let mut news = self.having(|server, effects| server.tick(now, effects));
        let lost = match &mut self.state {
            State::Starting { wait: Some(wait), .. } => {
                let is_over = wait.tick(now, look);
                is_over.then(|| format!("the PMIx host was not ready within {} s", START_BOUND.as_secs()))
            }
            State::Running { ping: Ping::Sent(wait), .. } => {
                let is_over = wait.tick(now, look);
                is_over.then(|| format!("libpmix did not answer for {} s", PING_BOUND.as_secs()))
            }
            State::Running { ping: ping @ Ping::Due(_), .. } if ping.at() <= now => {
                *ping = Ping::Sent(Patience::new(now, PING_BOUND));
                self.send(&ToHost::Ping).err().map(|error| format!("cannot send to the PMIx host: {}", reason(&error)))
            }
            State::Starting { .. } | State::Running { .. } | State::Waiting(_) | State::Wanted(_) | State::Lost => None,
        };
        if let Some(why) = lost {
            news.extend(self.lose(why));
        }
        news
    }

    /// Whether a rank has inited MPI and not finalized.
    pub(crate) fn is_in_mpi(&self, slot: Slot) -> bool {
        matches!(self.server.lifecycle(self.ranks[slot.index()]), Lifecycle::Inited { .. })
    }

    /// The process of a rank that inited MPI last.
    pub(crate) fn process(&self, slot: Slot) -> Option<ProcessId> {
        self.processes[slot.index()]
    }

    /// The host is needed no more: it ends when its connection is closed.
    pub(crate) fn close(&mut self) {
        self.state = State::Lost;
    }

    /// Sends the host the answer to a request.
    pub(crate) fn answer(&mut self, id: u64, answer: Answer) -> Vec<News> {
        match self.send(&ToHost::Answer { id, answer }) {
            Ok(()) => Vec::new(),
            Err(error) => self.lose(format!("cannot send to the PMIx host: {}", reason(&error))),
        }
    }

    fn perform(&mut self, effects: Vec<Effect>, news: &mut Vec<News>) {
        let mut has_written = false;
        for effect in effects {
            match effect {
                // What the rank writes after the answer comes behind the text.
                Effect::Answer { id, answer } if has_written => news.push(News::Answer { id, answer }),
                Effect::Answer { id, answer } => news.extend(self.answer(id, answer)),
                Effect::Inited { rank, pid } => {
                    let Some(slot) = self.slot_of(rank) else { continue };
                    self.processes[slot.index()] = pid.and_then(|pid| ProcessId::of(pid.0));
                    news.push(News::Mpi(slot, MpiEvent::Inited));
                }
                Effect::PassedFence { rank } => {
                    news.extend(self.slot_of(rank).map(|slot| News::Mpi(slot, MpiEvent::PassedBarrier)));
                }
                Effect::Finalized { rank } => {
                    news.extend(self.slot_of(rank).map(|slot| News::Mpi(slot, MpiEvent::Finalized)));
                }
                Effect::Aborted { rank, code, message } => {
                    news.extend(self.slot_of(rank).map(|slot| News::Mpi(slot, MpiEvent::Aborted { code, message })));
                }
                Effect::Refused { rank, call, detail } => {
                    let event = MpiEvent::Refused { call: call.to_owned(), detail };
                    news.extend(self.slot_of(rank).map(|slot| News::Mpi(slot, event)));
                }
                Effect::Find { id, of } => {
                    // One that cannot serve yet is asked when it can.
                    if matches!(self.state, State::Running { .. })
                        && let Err(error) = self.send(&ToHost::Find { number: id, of })
                    {
                        news.extend(self.lose(format!("cannot send to the PMIx host: {}", reason(&error))));
                    }
                }
                Effect::Ask { id, question } => {
                    news.push(News::Tell(ToFront::Ask { group: self.group, protocol: Protocol::Pmix, id, question }));
                }
                Effect::Logged { rank, stream, text } => {
                    news.extend(self.slot_of(rank).map(|slot| News::Wrote(slot, stream, text)));
                    has_written = true;
                }
                Effect::Fetch { id, of } => {
                    let of = WorkerId { rank: of, attempt: self.attempt };
                    news.push(News::Tell(ToFront::Fetch { id, of }));
                }
                Effect::Fetched { by, id, data } => {
                    news.push(News::Tell(ToFront::Fetched { by, group: self.group, id, data }));
                }
                Effect::Collective(collective) => news.push(News::Tell(ToFront::Collective(Collective {
                    group: collective.group,
                    seq: collective.seq,
                    members: collective.members,
                    of: collective.of,
                    payloads: vec![collective.payload],
                }))),
            }
        }
    }

    /// The host cannot serve any more. It is reported once. It ends the job also if all ranks have finalized: the last answer may
    /// not have reached its rank.
    fn lose(&mut self, why: String) -> Vec<News> {
        match std::mem::replace(&mut self.state, State::Lost) {
            State::Lost => Vec::new(),
            State::Waiting(_) | State::Wanted(_) | State::Starting { .. } | State::Running { .. } => {
                vec![News::WireUpLost(why)]
            }
        }
    }

    fn send(&mut self, message: &ToHost) -> io::Result<()> {
        match self.ends().map(|ends| ends.control.send([message])) {
            // An answer that is too long: its request was as long.
            Some(Err(error)) if error.kind() != io::ErrorKind::InvalidData => Err(error),
            Some(Ok(()) | Err(_)) | None => Ok(()),
        }
    }

    fn ends(&mut self) -> Option<&mut Ends> {
        match &mut self.state {
            State::Starting { ends, .. } | State::Running { ends, .. } => Some(ends),
            State::Waiting(_) | State::Wanted(_) | State::Lost => None,
        }
    }

    fn slot_of(&self, rank: Rank) -> Option<Slot> {
        self.ranks.binary_search(&rank).ok().map(|index| Slot(index as u32))
    }
}

/// The programs of the job that are named by a path.
fn programs(spec: &JobSpec) -> Vec<PathBuf> {
    let cwd = Path::new(&spec.cwd);
    let words = spec.apps.iter().filter_map(|app| app.command.first());
    words.map(|word| cwd.join(word)).filter(|path| path.parent() != Some(cwd)).collect()
}

fn apps(spec: &JobSpec) -> Vec<(String, String)> {
    (0..spec.apps.len() as u32)
        .map(|index| {
            let app = spec.app(AppIndex(index));
            let words: Vec<String> = app.command.iter().map(|word| word.to_string_lossy().replace('\0', "")).collect();
            let first = spec.map.places().iter().find(|place| place.app == AppIndex(index));
            let directory = first.map_or_else(|| spec.cwd.clone(), |place| spec.directory(place.rank));
            (words.join(" "), directory.to_string_lossy().into_owned())
        })
        .collect()
}
