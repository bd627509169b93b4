//! The nodes of a job come together: other machines are reached, and when every agent is ready the ranks are started.
//!
//! The first node comes first: its agent binds the ports at which the ranks meet, and the others are told.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use rankrun_agent::soft_limits;
use rankrun_core::hosts::fold;
use rankrun_core::job::{OnFrontLost, StdinTarget};
use rankrun_core::names::PublishedNames;
use rankrun_core::reach::{self, Step};
use rankrun_core::rendezvous::Rendezvous;
use rankrun_core::travel::Resource;
use rankrun_core::worker::Outcome;
use rankrun_core::{ExitCode, JobId, NodeId, NodeRank, contact, gang};
use rankrun_sys::build;
use rankrun_wire::greeting::{Greeting, Heard};
use rankrun_wire::message::{Hello, Meeting, NodeStart};
use rankrun_wire::{ToAgent, VERSION};

use crate::delivery::Task;
use crate::job::event::FrontEffect;
use crate::job::front::{Front, Refused};
use crate::job::token::Token;
use crate::link::Link;
use crate::nodes::{Call, HostsOrigin, NodeHandle, OwnBinary, Ssh, SshSettings, has_proxy};

/// Nodes that are being reached at a time, and behind a jump host.
const AT_A_TIME: usize = 64;
const AT_A_TIME_BY_PROXY: usize = 8;
/// Tries for a node whose sshd has no room for a connection now, and the wait before the second.
const TRIES: u32 = 6;
const RETRY: Duration = Duration::from_millis(300);
/// A node has at least so long to greet, however short `--node-timeout` is: ssh does much before that.
const GREETING: Duration = Duration::from_secs(20);
/// How long a login shell may take to start rankrun. Its startup files may be on a slow file system.
const LOGIN_SHELL: Duration = Duration::from_secs(30);
/// How long the words of an ssh that has failed are waited for.
const WORDS: Duration = Duration::from_secs(2);
/// How long it takes until the user is told for whom we wait, and then how often.
const PATIENCE: Duration = Duration::from_secs(1);
const PROGRESS_STEP: Duration = Duration::from_secs(5);
/// How often we let the agents know that we are alive.
pub(crate) const BEAT: Duration = Duration::from_secs(1);

/// What is needed to reach other machines.
#[derive(Debug)]
pub(crate) struct Muster {
    call: Call,
    at_a_time: usize,
    /// The mask of new files' modes, and the limits that the user has set: the front has raised its own.
    umask: u32,
    limits: Vec<(Resource, Option<u64>)>,
    /// The program's bytes, once a node has asked for them.
    binary: Option<Bytes>,
    /// The nodes that wait for it to be read.
    lack_binary: Vec<NodeId>,
    /// When to say next for whom we wait.
    progress_due: Option<Duration>,
    /// The ranks of this attempt have been started on the first node, and on the others.
    phase: Phase,
    /// When the agents are to hear of us next.
    pub(super) beat_due: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Gathering,
    /// The first node has been told to start.
    First,
    All,
}

impl Muster {
    /// Looks for what relays are called with.
    pub(crate) fn new(front: &crate::Plan) -> io::Result<Muster> {
        let path = std::env::current_exe()?;
        let own = OwnBinary { size: std::fs::metadata(&path)?.len(), path: path.into(), id: build::id()? };
        let mut random = [0; 12];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let marker = random.iter().fold("rankrun-".to_owned(), |text, byte| format!("{text}{byte:02x}"));
        let home = std::env::var_os("HOME");
        let is_by_proxy = has_proxy(&front.hosts.ssh, home.as_deref().map(std::path::Path::new));
        Ok(Muster {
            call: Call { job: front.spec.job.clone(), marker, own, agent: front.node.clone() },
            at_a_time: if is_by_proxy { AT_A_TIME_BY_PROXY } else { AT_A_TIME },
            umask: umask(),
            limits: soft_limits(),
            binary: None,
            lack_binary: Vec::new(),
            progress_due: Some(PATIENCE),
            phase: Phase::Gathering,
            beat_due: Duration::ZERO,
        })
    }

    /// What the relay of a node is called with. Two nodes may be one machine: each has a directory and a cgroup of its own.
    pub(crate) fn call(&self, node: NodeId) -> Call {
        Call { job: JobId(format!("{}-n{node}", self.call.job)), ..self.call.clone() }
    }

    /// How many nodes are called in a second at most.
    pub(super) fn at_a_time(&self) -> usize {
        self.at_a_time
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        let progress = self.progress_due.filter(|_| self.phase == Phase::Gathering);
        [Some(self.beat_due), progress].into_iter().flatten().min()
    }
}

impl Front {
    /// Does what is due for nodes other than this one.
    pub(crate) fn muster_due(&mut self, now: Duration) {
        if self.muster.is_none() {
            return;
        }
        self.dismiss_unstarted();
        self.await_joins(now);
        self.ask_late_nodes_again(now);
        self.reach_nodes(now);
        self.tell_progress(now);
        self.beat(now);
    }

    /// The job is being stopped while nodes come together: those that have no ranks yet get none.
    fn dismiss_unstarted(&mut self) {
        let Some(muster) = self.muster.as_mut().filter(|it| it.phase != Phase::All) else { return };
        if self.gang.stop_ordered().is_none() {
            return;
        }
        let has_first_started = muster.phase == Phase::First;
        muster.phase = Phase::All;
        let mut unstarted = Vec::new();
        let has_started = |node: &NodeHandle| has_first_started && node.place == Some(NodeRank(0));
        for node in self.nodes.iter_mut().filter(|node| node.place.is_some() && !has_started(node)) {
            dismiss(node);
            node.is_drained = true;
            unstarted.extend(node.ranks(&self.plan.spec.map));
        }
        for rank in unstarted {
            self.event(gang::Event::Gone { rank, outcome: Outcome::NeverStarted });
        }
    }

    /// Starts ssh for nodes whose turn it is.
    fn reach_nodes(&mut self, now: Duration) {
        let Some(muster) = &self.muster else { return };
        if self.refused.is_some() || self.gang.stop_ordered().is_some() {
            return;
        }
        let is_called = |node: &&NodeHandle| node.remote().is_some_and(|it| it.joined.is_none() && it.is_coming());
        let mut under_way = self.nodes.iter().filter(is_called).count();
        let mut failed = Vec::new();
        let patience = self.plan.hosts.node_timeout.max(GREETING);
        for node in &mut self.nodes {
            let id = node.id;
            let Some(remote) = node.remote_mut() else { continue };
            if remote.greet_by.is_some_and(|by| by <= now) {
                remote.greet_by = None;
                let unsent = remote.ssh.as_ref().map_or(0, Ssh::unsent);
                match (remote.failed_at, remote.unsent.replace(unsent)) {
                    (Some(step), _) => {
                        failed.push((id, step, remote.ssh.as_ref().and_then(Ssh::noise).unwrap_or_default()));
                    }
                    // A slow line: it goes on.
                    (None, Some(before)) if unsent < before => remote.greet_by = Some(now + patience),
                    (None, Some(_)) => {
                        let why =
                            format!("rankrun was sent there, and nothing came of it within {} s", patience.as_secs());
                        failed.push((id, Step::Copy, why));
                    }
                    (None, None) => {
                        let has_logged_in = remote.ssh.as_ref().is_some_and(Ssh::has_logged_in);
                        let patience = if has_logged_in { patience.min(LOGIN_SHELL) } else { patience };
                        let (step, why) = reach::silence(has_logged_in, patience.as_secs());
                        failed.push((id, step, why));
                    }
                }
                continue;
            }
            if under_way >= muster.at_a_time || remote.due.is_none_or(|due| due > now) {
                continue;
            }
            let target = &self.plan.hosts.targets[id.index()];
            let call = muster.call(id);
            let tokens = (Token::Node(id).encode(), Token::Words(id).encode());
            (remote.due, remote.tries, remote.unsent) = (None, remote.tries + 1, None);
            remote.greet_by = Some(now + patience);
            match Ssh::start(&mut self.starter, &self.poller, tokens, &self.plan.hosts.ssh, target, &call) {
                Ok(ssh) => {
                    remote.ssh = Some(ssh);
                    under_way += 1;
                }
                Err(error) => failed.push((id, Step::Connect, rankrun_sys::reason(&error))),
            }
        }
        for (node, step, why) in failed {
            self.cannot_reach(node, step, &why);
        }
    }

    /// Says for whom we wait, if that takes long.
    fn tell_progress(&mut self, now: Duration) {
        let Some(muster) = self.muster.as_mut().filter(|it| it.phase == Phase::Gathering) else { return };
        if muster.progress_due.is_none_or(|due| due > now) {
            return;
        }
        muster.progress_due = Some(now + PROGRESS_STEP);
        let waiting = self.seated().filter(|node| node.about.is_none());
        let names: Vec<String> = waiting.map(|node| node.name.clone()).collect();
        if !names.is_empty() && self.refused.is_none() {
            let all = self.seated().count();
            let again: Vec<String> = names.iter().filter(|name| self.asked_again.contains(name)).cloned().collect();
            let again = if again.is_empty() { String::new() } else { format!(" (asked again: {})", fold(&again)) };
            self.note(format!("{}/{all} nodes ready; waiting for {}{again}", all - names.len(), fold(&names)));
        }
    }

    /// ssh has written to its stdout before the stream began.
    pub(crate) fn hear_ssh(&mut self, node: NodeId, is_writable: bool, is_readable: bool) {
        let mut is_readable = is_readable;
        loop {
            let Some(ssh) = self.nodes[node.index()].remote_mut().and_then(|it| it.ssh.as_mut()) else { return };
            let (heard, conn) = ssh.hear(is_writable, is_readable);
            is_readable = false;
            match heard {
                Heard::More => return,
                Heard::NeedsBinary { system } => self.send_binary(node, &system),
                Heard::CopyFailed { .. } => return self.await_words(node, Step::Copy),
                Heard::Nonsense => return self.await_words(node, Step::Handshake),
                Heard::Ready { greeting, rest } => {
                    if let Some(conn) = conn {
                        self.greeted(node, greeting, conn, &rest);
                    }
                    return;
                }
            }
        }
    }

    /// Ends ssh, and says what it wrote. Its words may come after the sign that something went wrong: they are waited for.
    fn await_words(&mut self, node: NodeId, step: Step) {
        let (now, registry) = (self.now(), self.poller.registry());
        let Some(remote) = self.nodes[node.index()].remote_mut() else { return };
        let Some(ssh) = &mut remote.ssh else { return };
        ssh.read_words(&registry);
        match reach::essence(&ssh.words()) {
            words if words.is_empty() && ssh.code.is_none() => {
                ssh.hang_up();
                (remote.failed_at, remote.greet_by) = (Some(step), Some(now + WORDS));
            }
            words if words.is_empty() => {
                let why = ssh.noise().unwrap_or_default();
                self.cannot_reach(node, step, &why);
            }
            words => self.cannot_reach(node, step, &words),
        }
    }

    fn send_binary(&mut self, node: NodeId, system: &str) {
        let own = rustix::system::uname();
        let ours = format!("{} {}", own.sysname().to_string_lossy(), own.machine().to_string_lossy());
        if !self.plan.hosts.ssh.copies {
            return self.cannot_reach(
                node,
                Step::Start,
                "this version of rankrun is not there, and --no-copy forbids to copy it",
            );
        }
        if system != ours {
            return self.cannot_reach(
                node,
                Step::Copy,
                &format!("the node is {system}, and this rankrun is for {ours}"),
            );
        }
        let greet_by = Some(self.now() + self.plan.hosts.node_timeout.max(GREETING));
        if let Some(remote) = self.nodes[node.index()].remote_mut() {
            remote.greet_by = greet_by;
        }
        let Some(muster) = &mut self.muster else { return };
        if let Some(binary) = muster.binary.clone() {
            return self.copy_binary(node, binary);
        }
        // It may lie on a file system that does not answer.
        muster.lack_binary.push(node);
        if muster.lack_binary.len() == 1 {
            let now = self.now();
            self.delivery.files.submit(now, Task::ReadBinary);
        }
    }

    /// This program was read: the nodes that wait for it get it.
    pub(crate) fn hear_binary(&mut self) {
        let Some(read) = self.delivery.binary.take() else { return };
        let Some(muster) = &mut self.muster else { return };
        let nodes = std::mem::take(&mut muster.lack_binary);
        let read = read.map(Bytes::from);
        muster.binary = read.as_ref().ok().cloned();
        for node in nodes {
            match &read {
                Ok(binary) => self.copy_binary(node, binary.clone()),
                Err(failure) => self.cannot_reach(node, Step::Copy, &failure.to_string()),
            }
        }
    }

    fn copy_binary(&mut self, node: NodeId, binary: Bytes) {
        let greet_by = Some(self.now() + self.plan.hosts.node_timeout.max(GREETING));
        let Some(remote) = self.nodes[node.index()].remote_mut() else { return };
        // The node may have been given up meanwhile.
        let Some(ssh) = &mut remote.ssh else { return };
        (remote.unsent, remote.greet_by) = (Some(binary.len()), greet_by);
        let megabytes = binary.len() as f64 / 1e6;
        ssh.send(binary);
        if self.plan.verbosity > 0 {
            let name = &self.nodes[node.index()].name;
            self.note(format!("copying rankrun to {name} ({megabytes:.1} MB)"));
        }
    }

    fn greeted(&mut self, node: NodeId, greeting: Greeting, conn: rankrun_sys::reactor::Conn, rest: &[u8]) {
        if greeting.version != VERSION {
            let why = format!("it is {} there and {} here", greeting.release, Hello::ours().release);
            return self.cannot_reach(node, Step::Version, &why);
        }
        let now = self.now();
        let handle = &mut self.nodes[node.index()];
        handle.contact.heard(now);
        let name = handle.name.clone();
        let Some(remote) = handle.remote_mut() else { return };
        (remote.client, remote.server, remote.greet_by) = (greeting.client, greeting.server, None);
        let link = Link::over(conn, greeting.session, rest);
        self.nodes[node.index()].link = Some(link);
        if self.plan.verbosity > 0 {
            let noise = self.nodes[node.index()].remote().and_then(|it| it.ssh.as_ref()).and_then(Ssh::noise);
            self.note(match noise {
                Some(noise) => format!("node {name} is reached; {noise}"),
                None => format!("node {name} is reached"),
            });
        }
        let (now, handle) = (self.now(), &mut self.nodes[node.index()]);
        if let Err(error) = handle.send(&ToAgent::Hello(Hello::ours())).and_then(|()| handle.beat(now)) {
            return self.lose_agent(node, &error);
        }
        self.read_node(node);
    }

    /// A node could not be reached: the job does not begin. Another try may help.
    fn cannot_reach(&mut self, node: NodeId, step: Step, why: &str) {
        let name = self.nodes[node.index()].name.clone();
        self.nodes[node.index()].kill_agent();
        if let Some(remote) = self.nodes[node.index()].remote_mut() {
            (remote.due, remote.greet_by) = (None, None);
        }
        self.nodes[node.index()].lost = Some(step.to_string());
        if self.refused.is_some() || self.gang.stop_ordered().is_some() {
            return;
        }
        let why = if why.is_empty() { "ssh printed no reason" } else { why };
        if self.map_left().is_some() {
            self.note(format!("node {name}: {step}: {why}"));
            return self.begin_without();
        }
        let hosts = &self.plan.hosts;
        let is_oar = hosts.origin == HostsOrigin::Oar && hosts.ssh.command == SshSettings::default().command;
        let of_oar = reach::way_out_of_oar(step).filter(|_| is_oar);
        self.refused = Some(Refused {
            what: format!("node {name}: {step}"),
            source: io::Error::other(why.to_owned()),
            hint: of_oar.or_else(|| reach::way_out(step, &name, why)),
            code: ExitCode::NODE_LOST,
        });
        self.dismiss_nodes();
    }

    /// The job does not begin: every agent ends.
    pub(crate) fn dismiss_nodes(&mut self) {
        self.nodes.iter_mut().for_each(dismiss);
    }

    /// ssh has written to stderr.
    pub(crate) fn read_words(&mut self, node: NodeId) {
        let registry = self.poller.registry();
        let by = self.now() + LOGIN_SHELL;
        let handle = &mut self.nodes[node.index()];
        let name = handle.name.clone();
        let Some(remote) = handle.remote_mut() else { return };
        let Some(ssh) = &mut remote.ssh else { return };
        let had_logged_in = ssh.has_logged_in();
        ssh.read_words(&registry);
        if ssh.has_logged_in() && !had_logged_in {
            remote.greet_by = remote.greet_by.map(|greet_by| greet_by.min(by));
        }
        // What it says before is told if it fails.
        if ssh.has_greeted {
            for line in ssh.new_words() {
                self.agent_note(format!("node {name}: {line}"));
            }
        }
    }

    /// ssh of a node has ended.
    pub(crate) fn ssh_ended(&mut self, node: NodeId) {
        let now = self.now();
        let registry = self.poller.registry();
        // What it wrote last may not have been read.
        self.hear_ssh(node, false, true);
        let Some(remote) = self.nodes[node.index()].remote_mut() else { return };
        let Some(ssh) = &mut remote.ssh else { return };
        let Some(code) = ssh.code else { return };
        ssh.read_words(&registry);
        if ssh.has_greeted {
            return self.loss_is_known(node);
        }
        if let Some(why) = ssh.not_started() {
            if self.nodes[node.index()].lost.is_none() {
                self.cannot_reach(node, Step::Connect, &why);
            }
            return;
        }
        let words = ssh.words();
        if reach::is_worth_retrying(code, &words) && remote.tries < TRIES {
            let wait = RETRY * 2u32.pow(remote.tries - 1);
            // The nodes of one jump host must not come back together.
            let jitter = f64::from(node.0 * 7919 % 1000) / 1000.0;
            remote.ssh = None;
            (remote.due, remote.greet_by) = (Some(now + wait + wait.mul_f64(jitter)), None);
            return;
        }
        let why = match reach::essence(&words) {
            // It was we who ended it.
            words if words.is_empty() && remote.failed_at.is_some() => ssh.noise().unwrap_or_default(),
            words if words.is_empty() => {
                let noise = ssh.noise().map(|noise| format!("; {noise}")).unwrap_or_default();
                format!("{}{noise}", reach::silent_end(code))
            }
            words => words,
        };
        if self.nodes[node.index()].lost.is_none() {
            let failed_at = self.nodes[node.index()].remote().and_then(|remote| remote.failed_at);
            self.cannot_reach(node, failed_at.unwrap_or_else(|| reach::step_of(code, &words)), &why);
        }
    }

    /// An agent is ready. When all are, the ranks are started.
    pub(crate) fn node_is_ready(&mut self) {
        if self.muster.as_ref().is_none_or(|it| it.phase != Phase::Gathering)
            || self.seated().any(|node| node.about.is_none() || node.link.is_none())
        {
            return;
        }
        if let Some(refused) = self.lacks_interface().or_else(|| self.has_a_machine_twice()) {
            self.refused = Some(refused);
            return self.dismiss_nodes();
        }
        self.start_attempt();
    }

    /// Starts the ranks of the present attempt: of several nodes first those of the first.
    pub(crate) fn start_attempt(&mut self) {
        self.collectives.clear();
        self.names = PublishedNames::default();
        match &mut self.muster {
            None => {
                let meeting = Meeting::Here { address: [127, 0, 0, 1].into(), open_to: Vec::new() };
                self.start_node(NodeRank(0), meeting);
            }
            Some(muster) => {
                muster.phase = Phase::First;
                let meeting = Meeting::Here { address: self.meeting_address(), open_to: self.other_addresses() };
                self.start_node(NodeRank(0), meeting);
                if self.plan.spec.map.node_count() == 1 {
                    self.meeting_is_known(None);
                }
            }
        }
    }

    /// The first node has bound its ports: the others start.
    pub(crate) fn meeting_is_known(&mut self, rendezvous: Option<Rendezvous>) {
        let Some(muster) = self.muster.as_mut().filter(|it| it.phase == Phase::First) else { return };
        muster.phase = Phase::All;
        for node in (1..self.plan.spec.map.node_count()).map(NodeRank) {
            self.start_node(node, Meeting::There(rendezvous.clone()));
        }
        // What was read of stdin meanwhile has waited.
        self.waker.wake();
    }

    /// Whether the nodes come together, and none has been told to start.
    pub(crate) fn is_gathering(&self) -> bool {
        self.muster.as_ref().is_some_and(|muster| muster.phase == Phase::Gathering)
    }

    /// Whether every node has been told to start the present attempt.
    pub(crate) fn has_started(&self) -> bool {
        self.muster.as_ref().is_none_or(|muster| muster.phase == Phase::All)
    }

    /// Tells the agent of a node to start the present attempt.
    fn start_node(&mut self, place: NodeRank, meeting: Meeting) {
        self.effects.push_back(FrontEffect::Start(place, meeting));
    }

    /// What the agent of a node needs for that.
    pub(super) fn node_start(&self, node: NodeId, place: NodeRank, meeting: Meeting) -> NodeStart {
        let is_away = self.nodes[node.index()].remote().is_some();
        let patience = self.patience();
        NodeStart {
            node: place,
            spec: self.spec_for(node),
            meeting,
            hosts: self.seated().filter_map(|node| node.about.as_ref()).map(|about| about.host.clone()).collect(),
            sends_stdin: (is_away || self.stdin.is_some()) && self.reads_stdin(node),
            patience: is_away.then_some(patience),
            umask: self.muster.as_ref().filter(|_| is_away).map(|muster| muster.umask),
            limits: self.muster.as_ref().filter(|_| is_away).map(|muster| muster.limits.clone()).unwrap_or_default(),
        }
    }

    /// How long the agent of another node may miss us until it ends its ranks.
    pub(super) fn patience(&self) -> Duration {
        let patience = contact::patience(self.plan.hosts.node_timeout);
        match self.plan.hosts.on_front_lost {
            OnFrontLost::Kill => patience,
            OnFrontLost::Wait(longer) => patience + longer,
        }
    }

    /// Whether ranks of a node read the front's stdin.
    pub(crate) fn reads_stdin(&self, node: NodeId) -> bool {
        let seat = self.nodes[node.index()].place;
        match self.plan.spec.io.stdin {
            StdinTarget::All => seat.is_some(),
            StdinTarget::Rank(rank) => self.plan.spec.map.place(rank).is_some_and(|place| Some(place.node) == seat),
            StdinTarget::None | StdinTarget::Shared => false,
        }
    }

    /// Sends a message to one node.
    pub(crate) fn send_to(&mut self, node: NodeId, message: ToAgent) {
        self.effects.push_back(FrontEffect::SendTo(node, message));
    }

    /// Sends a piece of stdin to the nodes whose ranks read it.
    pub(crate) fn send_stdin(&mut self, piece: Option<Vec<u8>>) {
        for node in (0..self.nodes.len() as u32).map(NodeId) {
            let is_reader = self.reads_stdin(node) && self.nodes[node.index()].link.is_some();
            if !is_reader {
                continue;
            }
            self.nodes[node.index()].owes_stdin = piece.is_some();
            self.send_to(node, piece.clone().map_or(ToAgent::StdinEnd, ToAgent::Stdin));
        }
    }

    /// The ranks of a node have read what they were sent of stdin.
    pub(crate) fn stdin_taken(&mut self, node: NodeId) {
        self.nodes[node.index()].owes_stdin = false;
        let is_owed = self.nodes.iter().any(|node| node.owes_stdin && node.link.is_some());
        if let Some(stdin) = self.stdin.as_ref().filter(|_| !is_owed) {
            stdin.want_more();
        }
    }
}

/// The mask of new files' modes. Call it while there is one thread: it is changed for a moment.
fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rustix::process::umask(mask);
    mask.as_raw_mode()
}

/// No rank is to run on a node: its agent ends.
fn dismiss(node: &mut NodeHandle) {
    if node.link.is_some() {
        // It ends as well when the stream is closed.
        let _ = node.send(&ToAgent::End);
        node.link = None;
    } else {
        node.kill_agent();
    }
    if let Some(remote) = node.remote_mut() {
        (remote.due, remote.greet_by) = (None, None);
        if let Some(joined) = &mut remote.joined {
            joined.by = None;
        }
    }
    node.lost.get_or_insert_with(|| "no rank was started there".to_owned());
}
