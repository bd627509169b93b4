//! A node of the job, on the front's side: how far it has come, what it does in the present attempt, and what is known of it once it
//! is lost.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::settings::{Host, Way};
use crate::contact::{Asks, Contact};
use crate::exit::ExitCode;
use crate::fence::{Fate, Loss};
use crate::ids::{NodeId, NodeRank, Rank};
use crate::memory::Memory;
use crate::node_clock::NodeClock;
use crate::rankmap::RankMap;
use crate::reach::Step;
use crate::report::LeftProcess;

/// How an agent contains its workers (K-1).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Containment {
    Cgroup,
    /// Own sessions, a subreaper and an environment tag; and why not cgroups.
    Subreaper {
        why: String,
    },
}

impl Containment {
    /// Its name in the report.
    pub fn name(&self) -> &'static str {
        match self {
            Containment::Cgroup => "cgroup",
            Containment::Subreaper { .. } => "subreaper",
        }
    }
}

/// A node's data at the end of an attempt.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    pub left: Vec<LeftProcess>,
    /// Processes that were released (`--descendants leave`).
    pub released: u32,
    /// What it has left in /dev/shm; `None` if nobody has looked.
    pub memory: Option<Memory>,
    /// The files that it had created there were removed.
    pub removes_memory: bool,
}

/// What a node says of itself when its agent is ready.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct About {
    pub containment: Containment,
    /// What it calls itself.
    pub host: String,
    /// Its addresses, each with the name of its interface.
    pub addresses: Vec<(String, IpAddr)>,
    /// Equal to that of another node if both are one machine.
    pub machine: String,
    /// Its own name leads to a loopback address there.
    pub is_loopback_name: bool,
}

/// How far a node has come.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Life {
    /// It is being reached, or is to join.
    Asked,
    /// Its agent is connected. `is_suspect`: it has been silent for long, and the user was told.
    Connected {
        is_suspect: bool,
    },
    Lost(Lost),
    /// Nothing is expected of it any more: its agent was told to end, or was never started.
    Dismissed,
}

/// The loss of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost {
    pub why: String,
    /// With the bounds of its agent. `None`: no agent was ever connected.
    pub loss: Option<Loss>,
    /// Its stream ended: a better reason may become known.
    by_stream: bool,
}

/// What a node does in the present attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    /// It was not told to start.
    Idle,
    Running,
    /// No process is left there. Output may be under way.
    Over(Summary),
    /// All has come.
    Drained(Summary),
    /// The attempt was stopped before the node was told to start.
    Skipped,
}

/// What is known of a node that is called over ssh.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Call {
    pub(super) tries: u32,
    /// When the next try begins.
    pub(super) due: Option<Duration>,
    /// By when the present one must have led to an agent.
    pub(super) greet_by: Option<Duration>,
    /// The bytes of rankrun that were not sent to it, when that was last looked at.
    pub(super) unsent: Option<usize>,
    /// The step that has failed, while the words of ssh about it are awaited.
    pub(super) failed_at: Option<Step>,
    /// There is a try.
    pub(super) is_under_way: bool,
    has_greeted: bool,
    /// With what the ssh that had led to the agent has ended: the code of the relay.
    code: Option<i32>,
    /// What a second connection has found there, once it was asked.
    second: Option<Second>,
    /// Until when an ssh over a fresh connection may answer for a silent node.
    asked_until: Duration,
}

/// A second connection to a node that was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Second {
    Asked,
    /// Whether nothing is left there.
    Answered(bool),
}

/// What is known of a node that joins by itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Admission {
    /// By when it must be here; `None` once it is, or is not awaited any more.
    by: Option<Duration>,
    due: Duration,
    is_admitted: bool,
    /// It has sent something since. Until then its admission may have been lost on the way, and no rank is there.
    was_heard: bool,
    /// With what its guard has ended.
    code: Option<u8>,
    memory: Option<Memory>,
    is_given_up: bool,
}

/// How a node comes to the job, and what is known of that.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Route {
    Here { is_guard_lost: bool },
    Ssh(Call),
    Joins(Admission),
}

/// The states of a node as people read them, and as the journal has them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    Asked,
    Reached,
    Ready,
    Running,
    Suspect,
    Lost,
    /// Lost, and nothing of the job is left there: its guard, its relay or a second connection has said so.
    Proved,
    /// Lost, and processes are left there.
    Left,
    /// Lost, and its ranks have ended by themselves by now.
    Fenced,
    Dismissed,
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    id: NodeId,
    name: String,
    /// Its place in the present attempt; `None` if that runs without it.
    place: Option<NodeRank>,
    route: Route,
    life: Life,
    about: Option<About>,
    part: Part,
    clock: NodeClock,
    contact: Contact,
    /// The addresses of the front and of the node, as its connection has them.
    client: Option<IpAddr>,
    server: Option<IpAddr>,
    /// By when an agent elsewhere must report the end of its ranks.
    end_by: Option<Duration>,
}

impl Node {
    /// A node of a job that begins. That of this machine is connected.
    pub(super) fn new(id: NodeId, host: &Host, start_timeout: Duration) -> Node {
        let (route, life) = match host.way {
            Way::Here => (Route::Here { is_guard_lost: false }, Life::Connected { is_suspect: false }),
            Way::Ssh => (Route::Ssh(Call { due: Some(Duration::ZERO), ..Call::default() }), Life::Asked),
            Way::Joins => {
                let admission = Admission { by: Some(start_timeout), due: start_timeout, ..Admission::default() };
                (Route::Joins(admission), Life::Asked)
            }
        };
        Node {
            id,
            name: host.name.clone(),
            place: Some(NodeRank(id.0)),
            route,
            life,
            about: None,
            part: Part::Idle,
            clock: NodeClock::new(id),
            contact: Contact::default(),
            client: None,
            server: None,
            end_by: None,
        }
    }

    pub fn id(&self) -> NodeId {
        self.id
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its place in the present attempt; `None` if that runs without it.
    pub fn place(&self) -> Option<NodeRank> {
        self.place
    }

    pub(super) fn seat(&mut self, place: Option<NodeRank>) {
        self.place = place;
    }

    /// Its ranks in the present attempt.
    pub fn ranks<'a>(&self, map: &'a RankMap) -> impl Iterator<Item = Rank> + use<'a> {
        self.place.into_iter().flat_map(|node| map.on_node(node)).map(|place| place.rank)
    }

    /// It is the front's own machine.
    pub fn is_here(&self) -> bool {
        matches!(self.route, Route::Here { .. })
    }

    /// It comes by itself.
    pub fn joins(&self) -> bool {
        matches!(self.route, Route::Joins(_))
    }

    pub fn is_connected(&self) -> bool {
        matches!(self.life, Life::Connected { .. })
    }

    /// Its agent is connected and ready: it can be asked.
    pub fn is_ready(&self) -> bool {
        self.is_connected() && self.about.is_some()
    }

    /// Whether it is connected, or on the way to it.
    pub fn is_alive(&self) -> bool {
        matches!(self.life, Life::Asked | Life::Connected { .. })
    }

    /// Whether it is to join by itself, and has not.
    pub fn is_awaited(&self) -> bool {
        self.awaited_until().is_some()
    }

    pub(super) fn awaited_until(&self) -> Option<Duration> {
        match (&self.route, &self.life) {
            (Route::Joins(admission), Life::Asked) => admission.by,
            _ => None,
        }
    }

    pub fn lost(&self) -> Option<&Lost> {
        match &self.life {
            Life::Lost(lost) => Some(lost),
            Life::Asked | Life::Connected { .. } | Life::Dismissed => None,
        }
    }

    pub fn is_lost(&self) -> bool {
        self.lost().is_some()
    }

    /// When its agent was lost, if it had one.
    pub fn loss(&self) -> Option<Loss> {
        self.lost().and_then(|lost| lost.loss)
    }

    pub fn about(&self) -> Option<&About> {
        self.about.as_ref()
    }

    pub fn contact(&self) -> &Contact {
        &self.contact
    }

    /// The state of the node at a time, in one word.
    pub fn state(&self, now: Duration) -> NodeState {
        match &self.life {
            Life::Asked => NodeState::Asked,
            Life::Connected { is_suspect: true } => NodeState::Suspect,
            Life::Connected { .. } if self.about.is_none() => NodeState::Reached,
            Life::Connected { .. } if self.part == Part::Running => NodeState::Running,
            Life::Connected { .. } => NodeState::Ready,
            Life::Dismissed => NodeState::Dismissed,
            Life::Lost(_) => match self.fate() {
                Fate::Gone => NodeState::Proved,
                Fate::Left => NodeState::Left,
                Fate::Unknown(loss) if loss.fenced_at() <= now => NodeState::Fenced,
                Fate::Unknown(_) => NodeState::Lost,
            },
        }
    }

    // The connection.

    /// It is connected.
    pub(super) fn reached(&mut self, now: Duration, client: Option<IpAddr>, server: Option<IpAddr>) {
        self.life = Life::Connected { is_suspect: false };
        self.contact.heard(now);
        (self.client, self.server) = (client.or(self.client), server.or(self.server));
        match &mut self.route {
            Route::Here { .. } => {}
            Route::Ssh(call) => {
                (call.has_greeted, call.greet_by) = (true, None);
            }
            Route::Joins(admission) => {
                (admission.by, admission.is_admitted, admission.was_heard) = (None, true, false);
            }
        }
    }

    /// It calls itself by this name.
    pub(super) fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    /// Its agent is ready.
    pub(super) fn ready(&mut self, about: About) {
        self.about.get_or_insert(about);
    }

    /// Something has come over its connection. Returns whether it was suspect.
    pub(super) fn heard(&mut self, now: Duration) -> bool {
        self.contact.heard(now);
        match &mut self.life {
            Life::Connected { is_suspect } => std::mem::take(is_suspect),
            Life::Asked | Life::Lost(_) | Life::Dismissed => false,
        }
    }

    /// It has sent a message. Returns whether that is the first of a node that has joined: it has received its admission.
    pub(super) fn has_sent(&mut self) -> bool {
        match &mut self.route {
            Route::Joins(admission) => !std::mem::replace(&mut admission.was_heard, true),
            Route::Here { .. } | Route::Ssh(_) => false,
        }
    }

    /// Whether it was admitted, and has sent nothing since.
    pub(super) fn is_unheard_since_admission(&self) -> bool {
        matches!(&self.route, Route::Joins(admission) if admission.is_admitted && !admission.was_heard)
    }

    /// It may join again: its connection has ended before it was heard.
    pub(super) fn await_again(&mut self) {
        if let Route::Joins(admission) = &mut self.route {
            (admission.by, admission.is_admitted, admission.is_given_up) = (Some(admission.due), false, false);
            self.life = Life::Asked;
        }
    }

    /// It has been silent for long. Returns whether that is news.
    pub(super) fn suspect(&mut self) -> bool {
        match &mut self.life {
            Life::Connected { is_suspect } => !std::mem::replace(is_suspect, true),
            Life::Asked | Life::Lost(_) | Life::Dismissed => false,
        }
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.life == Life::Connected { is_suspect: true }
    }

    /// It is lost.
    pub(super) fn lose(&mut self, why: String, loss: Option<Loss>, by_stream: bool) {
        self.life = Life::Lost(Lost { why, loss, by_stream });
        self.end_by = None;
        self.stop_awaiting();
    }

    /// Why it was lost is known better now. Returns whether it is.
    pub(super) fn know_loss(&mut self, why: &str) -> bool {
        match &mut self.life {
            // A node that was silent was given up by us, and so was its ssh.
            Life::Lost(lost) if lost.by_stream && lost.why != why => {
                why.clone_into(&mut lost.why);
                true
            }
            _ => false,
        }
    }

    /// Nothing is expected of it any more.
    pub(super) fn dismiss(&mut self) {
        if !self.is_lost() {
            self.life = Life::Dismissed;
        }
        self.end_by = None;
        self.stop_awaiting();
    }

    fn stop_awaiting(&mut self) {
        match &mut self.route {
            Route::Here { .. } => {}
            Route::Ssh(call) => (call.due, call.greet_by) = (None, None),
            Route::Joins(admission) => admission.by = None,
        }
    }

    // Silence.

    /// How it is asked for a sign of life when its connection is silent; `None` on this machine.
    pub(super) fn asks(&self, now: Duration) -> Option<Asks> {
        match &self.route {
            Route::Here { .. } => None,
            Route::Ssh(call) => Some(Asks::Us { is_open: now < call.asked_until }),
            Route::Joins(_) => Some(Asks::Peer),
        }
    }

    /// An ssh over a fresh connection may answer for it until then.
    pub(super) fn asking_until(&mut self, until: Duration) {
        if let Route::Ssh(call) = &mut self.route {
            call.asked_until = until;
        }
    }

    pub(super) fn contact_mut(&mut self) -> &mut Contact {
        &mut self.contact
    }

    pub(super) fn clock_mut(&mut self) -> &mut NodeClock {
        &mut self.clock
    }

    // The way to it.

    pub(super) fn call_mut(&mut self) -> Option<&mut Call> {
        match &mut self.route {
            Route::Ssh(call) => Some(call),
            Route::Here { .. } | Route::Joins(_) => None,
        }
    }

    /// Whether an ssh is on the way to it, and has not led to an agent.
    pub(super) fn is_called(&self) -> bool {
        matches!((&self.route, &self.life), (Route::Ssh(call), Life::Asked) if call.is_under_way)
    }

    /// The address of the node, as its connection has it; and that of the front, as the node sees it.
    pub(super) fn addresses_seen(&self) -> (Option<IpAddr>, Option<IpAddr>) {
        (self.server, self.client)
    }

    // The attempt.

    /// It was told to start its ranks.
    pub(super) fn begin(&mut self) {
        self.part = Part::Running;
    }

    /// Another attempt is to begin: nothing is known of its end.
    pub(super) fn rest(&mut self) {
        self.part = Part::Idle;
    }

    /// The attempt is over before it was told to start.
    pub(super) fn skip(&mut self) {
        self.part = Part::Skipped;
    }

    /// Whether it was told to start, and ranks of it may live.
    pub fn is_running(&self) -> bool {
        self.part == Part::Running
    }

    /// No process of the attempt is left there.
    pub(super) fn over(&mut self, summary: Summary) {
        self.part = Part::Over(summary);
        self.end_by = None;
    }

    /// All that it had to send has come.
    pub(super) fn drained(&mut self) {
        self.part = match std::mem::replace(&mut self.part, Part::Idle) {
            Part::Over(summary) => Part::Drained(summary),
            Part::Idle | Part::Running => Part::Drained(Summary::default()),
            part @ (Part::Drained(_) | Part::Skipped) => part,
        };
    }

    /// What it has said at the end of the attempt.
    pub fn summary(&self) -> Option<&Summary> {
        match &self.part {
            Part::Over(summary) | Part::Drained(summary) => Some(summary),
            Part::Idle | Part::Running | Part::Skipped => None,
        }
    }

    /// Whether all of its attempt was received.
    pub fn is_drained(&self) -> bool {
        matches!(self.part, Part::Drained(_) | Part::Skipped)
    }

    /// Whether its ranks have ended, or nobody will say so any more.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.part, Part::Over(_) | Part::Drained(_) | Part::Skipped) || !self.is_alive()
    }

    /// Whether nothing more of this attempt is to come from it.
    pub(super) fn is_finished(&self) -> bool {
        self.is_drained() || !self.is_alive()
    }

    /// The agent must report the end by then.
    pub(super) fn expect_end(&mut self, by: Duration) {
        self.end_by = Some(self.end_by.map_or(by, |end| end.min(by)));
    }

    /// When something is due for it: its agent's report of the end, its greeting, its joining.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let end_by = self.end_by.filter(|_| self.is_connected());
        let greet_by = match &self.route {
            Route::Ssh(call) => call.greet_by,
            Route::Here { .. } | Route::Joins(_) => None,
        };
        [end_by, greet_by, self.awaited_until()].into_iter().flatten().min()
    }

    /// When it is to be called.
    pub(super) fn call_due(&self) -> Option<Duration> {
        match (&self.route, &self.life) {
            (Route::Ssh(call), Life::Asked) => call.due,
            _ => None,
        }
    }

    /// Whether its agent has not reported the end in time. No signal reaches an agent that is elsewhere, and one that answers beats is not
    /// silent (K-5).
    pub(super) fn is_late(&mut self, now: Duration) -> bool {
        let is_connected = self.is_connected();
        self.end_by.take_if(|by| is_connected && *by <= now).is_some()
    }

    // What is left there.

    /// The guard of this machine is lost. Returns whether that is news.
    pub(super) fn lose_guard(&mut self) -> bool {
        match &mut self.route {
            Route::Here { is_guard_lost } => !std::mem::replace(is_guard_lost, true),
            Route::Ssh(_) | Route::Joins(_) => true,
        }
    }

    /// Whether the guard of this machine was lost.
    pub(super) fn is_guard_lost(&self) -> bool {
        matches!(self.route, Route::Here { is_guard_lost: true })
    }

    /// The ssh that had led to its agent has ended, with the code of the relay.
    pub(super) fn ssh_ended(&mut self, code: i32) {
        if let Route::Ssh(call) = &mut self.route {
            call.code = Some(code);
        }
    }

    /// A node that has joined has said with which code its guard has ended. Returns whether it was still awaited: its admission was lost
    /// on the way.
    pub(super) fn guard_ended(&mut self, code: u8, memory: Option<Memory>) -> bool {
        let Route::Joins(admission) = &mut self.route else { return false };
        (admission.is_admitted, admission.code, admission.memory) = (true, Some(code), memory);
        let was_awaited = admission.by.take().is_some();
        admission.was_heard |= was_awaited;
        was_awaited
    }

    /// Nothing is expected of a node that has joined any more.
    pub(super) fn give_up_on_proof(&mut self) {
        if let Route::Joins(admission) = &mut self.route {
            admission.is_given_up = true;
        }
    }

    /// Whether a second connection is to be asked what is left there: nothing has said it, and it was not asked yet.
    pub(super) fn asks_second(&mut self) -> bool {
        let known = [ExitCode::SUCCESS, ExitCode::LEFT_BEHIND].map(|code| Some(i32::from(code.0)));
        match &mut self.route {
            Route::Ssh(call) if call.has_greeted && !known.contains(&call.code) && call.second.is_none() => {
                call.second = Some(Second::Asked);
                true
            }
            Route::Here { .. } | Route::Ssh(_) | Route::Joins(_) => false,
        }
    }

    /// Whether a second connection was asked, and has not answered.
    pub fn is_second_open(&self) -> bool {
        matches!(&self.route, Route::Ssh(Call { second: Some(Second::Asked), .. }))
    }

    /// A second connection has answered.
    pub(super) fn second_answered(&mut self, is_empty: bool) {
        if let Route::Ssh(call) = &mut self.route {
            call.second = Some(Second::Answered(is_empty));
        }
    }

    /// Whether it is proved that nothing is left there, or nothing was started there. Of this machine the guard says so at the end.
    pub fn is_proved(&self) -> bool {
        match &self.route {
            Route::Here { .. } => true,
            Route::Ssh(call) => {
                let by_relay = !call.has_greeted || call.code == Some(i32::from(ExitCode::SUCCESS.0));
                by_relay || call.second == Some(Second::Answered(true))
            }
            Route::Joins(admission) => !admission.is_admitted || admission.code == Some(ExitCode::SUCCESS.0),
        }
    }

    /// Whether guard, relay or a second connection have found processes that could not be killed.
    fn is_known_left(&self) -> bool {
        match &self.route {
            Route::Here { .. } => false,
            Route::Ssh(call) => {
                let by_relay = call.code == Some(i32::from(ExitCode::LEFT_BEHIND.0));
                by_relay || call.second == Some(Second::Answered(false))
            }
            Route::Joins(admission) => admission.code.is_some_and(|code| code != 0),
        }
    }

    /// Whether a node that has joined is still to say what is left there.
    pub fn is_to_say(&self) -> bool {
        matches!(&self.route, Route::Joins(it) if it.is_admitted && it.code.is_none() && !it.is_given_up)
    }

    /// What is known of the last attempt there, once nothing more of it is to come.
    pub fn fate(&self) -> Fate {
        match self.loss() {
            Some(_) if self.is_drained() || self.is_proved() => Fate::Gone,
            Some(_) if self.is_known_left() => Fate::Left,
            Some(loss) => Fate::Unknown(loss),
            None => Fate::Gone,
        }
    }

    /// What the guard of a node that has joined has found in /dev/shm. Where nothing was started there is nothing.
    pub fn memory_of_member(&self) -> Option<Memory> {
        match &self.route {
            Route::Joins(admission) if admission.is_admitted => admission.memory.clone(),
            Route::Here { .. } | Route::Ssh(_) | Route::Joins(_) => Some(Memory::default()),
        }
    }
}
