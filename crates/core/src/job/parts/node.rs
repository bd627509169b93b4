//! A node of the job, on the front's side: how far it has come, what it does in the present attempt, and what is known of it once it
//! is lost.

use std::net::IpAddr;
use std::time::Duration;

use crate::contact::Contact;
use crate::event::{JobFacts, NodeState};
use crate::fence::{Fate, Loss};
use crate::ids::{NodeId, NodeRank, Rank};
use crate::job::parts::about::{About, Containment, Summary};
use crate::job::parts::route::Route;
use crate::job::settings::{Host, Way};
use crate::node_clock::NodeClock;

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

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    id: NodeId,
    name: String,
    /// What it is known by for the life of the job, also when it comes back: the host as the user or the batch system wrote it, or the
    /// place at which a node joins.
    identity: String,
    /// How many ranks it is for; `None` if nobody has said.
    slots: Option<u32>,
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
    /// How many groups it was told to start in the present attempt.
    groups: u32,
    fencing: Fencing,
    /// The user knows that nothing but the time says that no rank is left there.
    is_trust_told: bool,
}

/// What `--fence` has said of a node that was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fencing {
    No,
    Asked,
    /// Nothing runs there.
    Done,
    Failed,
}

impl Node {
    /// A node of a job that begins. That of this machine is connected.
    pub(in crate::job) fn new(id: NodeId, host: &Host, place: Option<NodeRank>, start_timeout: Duration) -> Node {
        let life = match host.way {
            Way::Here => Life::Connected { is_suspect: false },
            Way::Ssh | Way::Joins => Life::Asked,
        };
        Node {
            id,
            name: host.name.clone(),
            identity: host.name.clone(),
            slots: host.slots,
            place,
            route: Route::new(host.way, start_timeout),
            life,
            about: None,
            part: Part::Idle,
            clock: NodeClock::new(id),
            contact: Contact::default(),
            client: None,
            server: None,
            end_by: None,
            groups: 0,
            fencing: Fencing::No,
            is_trust_told: false,
        }
    }

    pub fn id(&self) -> NodeId {
        self.id
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub(in crate::job) fn identity(&self) -> &str {
        &self.identity
    }

    pub(in crate::job) fn slots(&self) -> Option<u32> {
        self.slots
    }

    /// Its place in the present attempt; `None` if that runs without it.
    pub fn place(&self) -> Option<NodeRank> {
        self.place
    }

    pub(in crate::job) fn seat(&mut self, place: Option<NodeRank>) {
        self.place = place;
    }

    /// Its ranks in the present attempt.
    pub fn ranks<'a>(&self, facts: &'a JobFacts) -> impl Iterator<Item = Rank> + use<'a> {
        self.place.into_iter().flat_map(|node| facts.on_node(node))
    }

    /// How it comes to the job, and what is left there.
    pub fn route(&self) -> &Route {
        &self.route
    }

    pub(in crate::job) fn route_mut(&mut self) -> &mut Route {
        &mut self.route
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

    pub(in crate::job) fn awaited_until(&self) -> Option<Duration> {
        self.route.joins_by().filter(|_| self.life == Life::Asked)
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
            Life::Lost(_) if self.is_fenced() => NodeState::Fenced,
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
    pub(in crate::job) fn reached(&mut self, now: Duration, client: Option<IpAddr>, server: Option<IpAddr>) {
        self.life = Life::Connected { is_suspect: false };
        self.contact.heard(now);
        (self.client, self.server) = (client.or(self.client), server.or(self.server));
        self.route.reached();
    }

    /// It calls itself by this name.
    pub(in crate::job) fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    /// Its agent is ready.
    pub(in crate::job) fn ready(&mut self, about: About) {
        self.about.get_or_insert(about);
    }

    /// Its agent contains workers in this way from now on.
    pub(in crate::job) fn contains(&mut self, containment: Containment) {
        if let Some(about) = &mut self.about {
            about.containment = containment;
        }
    }

    /// Something has come over its connection. Returns whether it was suspect.
    pub(in crate::job) fn heard(&mut self, now: Duration) -> bool {
        self.contact.heard(now);
        match &mut self.life {
            Life::Connected { is_suspect } => std::mem::take(is_suspect),
            Life::Asked | Life::Lost(_) | Life::Dismissed => false,
        }
    }

    /// It may join again: its connection has ended before it was heard.
    pub(in crate::job) fn await_again(&mut self) {
        if self.route.await_again() {
            self.life = Life::Asked;
        }
    }

    /// It has been silent for long. Returns whether that is news.
    pub(in crate::job) fn suspect(&mut self) -> bool {
        match &mut self.life {
            Life::Connected { is_suspect } => !std::mem::replace(is_suspect, true),
            Life::Asked | Life::Lost(_) | Life::Dismissed => false,
        }
    }

    pub(in crate::job) fn is_suspect(&self) -> bool {
        self.life == Life::Connected { is_suspect: true }
    }

    /// It is to be called, again or for the first time: nothing of the job is there.
    pub(in crate::job) fn ask_again(&mut self, now: Duration) {
        self.life = Life::Asked;
        self.route.call_again(now);
    }

    /// It is lost.
    pub(in crate::job) fn lose(&mut self, why: String, loss: Option<Loss>, by_stream: bool) {
        self.life = Life::Lost(Lost { why, loss, by_stream });
        self.end_by = None;
        self.route.stop_awaiting();
    }

    /// Why it was lost is known better now. Returns whether it is.
    pub(in crate::job) fn know_loss(&mut self, why: &str) -> bool {
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
    pub(in crate::job) fn dismiss(&mut self) {
        if !self.is_lost() {
            self.life = Life::Dismissed;
        }
        self.end_by = None;
        self.route.stop_awaiting();
    }

    // Silence.

    pub(in crate::job) fn contact_mut(&mut self) -> &mut Contact {
        &mut self.contact
    }

    pub(in crate::job) fn clock_mut(&mut self) -> &mut NodeClock {
        &mut self.clock
    }

    // The way to it.

    /// Whether an ssh is on the way to it, and has not led to an agent.
    pub(in crate::job) fn is_called(&self) -> bool {
        self.life == Life::Asked && self.route.call().is_some_and(|call| call.is_under_way)
    }

    /// The address of the node, as its connection has it; and that of the front, as the node sees it.
    pub(in crate::job) fn addresses_seen(&self) -> (Option<IpAddr>, Option<IpAddr>) {
        (self.server, self.client)
    }

    // The attempt.

    /// It was told to start its ranks of a group.
    pub(in crate::job) fn begin(&mut self) {
        self.part = Part::Running;
        self.groups += 1;
    }

    /// Another attempt is to begin: nothing is known of its end.
    pub(in crate::job) fn rest(&mut self) {
        self.part = Part::Idle;
        self.groups = 0;
    }

    /// The attempt is over before it was told to start.
    pub(in crate::job) fn skip(&mut self) {
        self.part = Part::Skipped;
    }

    /// Whether it was told to start, and ranks of it may live.
    pub fn is_running(&self) -> bool {
        self.part == Part::Running
    }

    /// No process of the attempt is left there. Returns whether that still holds: it may have been told to start another group meanwhile.
    pub(in crate::job) fn over(&mut self, summary: Summary) -> bool {
        if summary.groups < self.groups {
            return false;
        }
        self.part = Part::Over(summary);
        self.end_by = None;
        true
    }

    /// All that it had to send has come.
    pub(in crate::job) fn drained(&mut self) {
        self.part = match std::mem::replace(&mut self.part, Part::Idle) {
            Part::Over(summary) => Part::Drained(summary),
            Part::Idle => Part::Drained(Summary::default()),
            // Of groups that were over before another one began.
            Part::Running if self.groups > 1 => Part::Running,
            Part::Running => Part::Drained(Summary::default()),
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
    pub(in crate::job) fn is_over(&self) -> bool {
        matches!(self.part, Part::Over(_) | Part::Drained(_) | Part::Skipped) || self.has_no_part()
    }

    /// Whether it has no ranks in this attempt: it is lost or dismissed, or a spare.
    fn has_no_part(&self) -> bool {
        !self.is_alive() || (self.place.is_none() && self.part == Part::Idle)
    }

    /// Whether nothing more of this attempt is to come from it.
    pub(in crate::job) fn is_finished(&self) -> bool {
        self.is_drained() || self.has_no_part()
    }

    /// The agent must report the end by then.
    pub(in crate::job) fn expect_end(&mut self, by: Duration) {
        self.end_by = Some(self.end_by.map_or(by, |end| end.min(by)));
    }

    /// When something is due for it: its agent's report of the end, its greeting, its joining.
    pub(in crate::job) fn deadline(&self) -> Option<Duration> {
        let end_by = self.end_by.filter(|_| self.is_connected());
        let greet_by = self.route.call().and_then(|call| call.greet_by);
        [end_by, greet_by, self.awaited_until()].into_iter().flatten().min()
    }

    /// When it is to be called.
    pub(in crate::job) fn call_due(&self) -> Option<Duration> {
        self.route.call().and_then(|call| call.due).filter(|_| self.life == Life::Asked)
    }

    /// Whether its agent has not reported the end in time. No signal reaches an agent that is elsewhere, and one that answers beats is not
    /// silent (K-5).
    pub(in crate::job) fn is_late(&mut self, now: Duration) -> bool {
        let is_connected = self.is_connected();
        self.end_by.take_if(|by| is_connected && *by <= now).is_some()
    }

    // What is left there.

    /// It is to be fenced. Returns whether that was not ordered before.
    pub(in crate::job) fn fence(&mut self) -> bool {
        let is_news = self.fencing == Fencing::No;
        if is_news {
            self.fencing = Fencing::Asked;
        }
        is_news
    }

    pub(in crate::job) fn fenced(&mut self, is_done: bool) {
        self.fencing = if is_done { Fencing::Done } else { Fencing::Failed };
    }

    /// The user is to know that nothing but the time says that no rank is left there. Returns whether that is news.
    pub(in crate::job) fn tell_trust(&mut self) -> bool {
        !std::mem::replace(&mut self.is_trust_told, true)
    }

    /// Whether `--fence` has made sure that nothing runs there.
    pub fn is_fenced(&self) -> bool {
        self.fencing == Fencing::Done
    }

    /// Whether `--fence` has been asked, and has not answered.
    pub(in crate::job) fn is_being_fenced(&self) -> bool {
        self.fencing == Fencing::Asked
    }

    /// What is known of the last attempt there, once nothing more of it is to come.
    pub fn fate(&self) -> Fate {
        match self.loss() {
            Some(_) if self.is_drained() || self.route.is_proved() || self.is_fenced() => Fate::Gone,
            Some(_) if self.route.is_known_left() => Fate::Left,
            Some(loss) => Fate::Unknown(loss),
            None => Fate::Gone,
        }
    }
}
