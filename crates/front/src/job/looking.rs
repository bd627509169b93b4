//! Where the ranks are: when they are looked into, and what comes of it. The agents look (`rankrun_agent::serve_looker`);
//! [`rankrun_core::stacks`] says what it means.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rankrun_core::control::Answer;
use rankrun_core::event::JobEvent;
use rankrun_core::gang::{self, MpiLife};
use rankrun_core::job::StdinTarget;
use rankrun_core::printable::{fit, printable};
use rankrun_core::stacks::ProcessStack;
use rankrun_core::stacks::fold::{Seen, Table, fold};
use rankrun_core::stacks::odd::{Hang, OddRank};
use rankrun_core::stacks::proof::{Finding, Proof, Standing};
use rankrun_core::stacks::stall::{self, Action, Print, Stall, prints};
use rankrun_core::testimony::Exception;
use rankrun_core::text::{MAX_LINES, WIDTH};
use rankrun_core::units::format_duration;
use rankrun_core::{NodeId, Rank, WorkerId};
use rankrun_sys::terminal;
use rankrun_wire::ToAgent;

use super::control::ClientId;
use super::front::Front;
use crate::Plan;

/// How long the agents have, beyond the time that they need themselves.
const ANSWER_BOUND: Duration = Duration::from_secs(6);
/// How long before `--timeout` the ranks are looked into, but not before a part of that time has passed.
const BEFORE_TIMEOUT: Duration = Duration::from_secs(2);
const TIMEOUT_SHARE: u32 = 4;
/// How long a signal may wait, with `-v`, until it is known where the ranks are.
const HOLD: Duration = Duration::from_secs(1);

/// The time between the looks that prove that a rank has failed.
const PROVE_AGAIN: Duration = Duration::from_millis(250);

/// For whom the ranks are looked into.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// SIGQUIT: to be printed.
    Asked,
    /// `rankrun stacks`.
    Client { client: ClientId, each: bool },
    /// The job is about to be ended: for the report.
    End,
    /// None of them has given a sign of life.
    Stall,
    /// These have not ended, and must.
    Alive,
    /// These are silent after a traceback: to know whether they run something.
    Suspects(Vec<(Rank, Exception)>),
    /// These do not: to know whether somebody else does.
    Proof(Vec<(Rank, Exception)>),
}

/// A question to all agents.
#[derive(Debug)]
struct Look {
    number: u64,
    purpose: Purpose,
    due: Duration,
    /// The nodes that have not sent all.
    missing: BTreeSet<NodeId>,
    seen: Vec<Seen>,
    /// When ranks last used what connects them, on any node.
    traffic: Option<Duration>,
}

/// A signal that waits until the ranks have been looked into.
#[derive(Clone, Copy, Debug)]
struct Held {
    number: i32,
    by_key: bool,
    until: Duration,
}

/// All that is known of it.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    last: u64,
    present: Vec<Look>,
    /// When to look for the sake of `--timeout`.
    before_timeout: Option<Duration>,
    held: Option<Held>,
    stall: Option<Stall>,
    /// Where the ranks were when the job was ended, or when they should have ended.
    for_report: Option<Table>,
    /// When a rank last gave a sign of life.
    last_sign: Option<Duration>,
    /// Of ranks that are silent after a traceback.
    proofs: BTreeMap<Rank, Proof>,
}

/// Whether somebody may type.
fn has_terminal(plan: &Plan) -> bool {
    plan.spec.io.stdin != StdinTarget::None && terminal::is_terminal(rustix::stdio::stdin())
}

impl Looks {
    pub(crate) fn new(plan: &Plan) -> Looks {
        let lead = |timeout: Duration| timeout.saturating_sub(BEFORE_TIMEOUT.min(timeout / TIMEOUT_SHARE));
        let stall = plan.stall.map(|spec| Stall::new(spec, has_terminal(plan), Duration::ZERO));
        Looks { before_timeout: plan.timeout.map(lead), stall, ..Looks::default() }
    }

    /// A rank has given a sign of life.
    pub(crate) fn sign(&mut self, now: Duration) {
        self.last_sign = Some(now);
        if let Some(stall) = &mut self.stall {
            stall.sign(now);
        }
    }

    /// The stalled ranks were looked for in vain.
    fn looked(&mut self, now: Duration, traffic: Option<Duration>, prints: BTreeMap<Rank, Print>) {
        if let Some(stall) = &mut self.stall {
            stall.looked(now, traffic, prints);
        }
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        let looks = self.present.iter().map(|look| look.due);
        let stall = self.stall.as_ref().and_then(Stall::deadline);
        looks.chain(self.before_timeout).chain(self.held.map(|held| held.until)).chain(stall).min()
    }

    /// For the report of an attempt that was ended from outside.
    pub(crate) fn table(&self) -> Option<&Table> {
        self.for_report.as_ref()
    }

    /// Another attempt begins.
    pub(crate) fn begin_attempt(&mut self, plan: &Plan, now: Duration) {
        self.for_report = None;
        self.proofs.clear();
        self.stall = plan.stall.map(|spec| Stall::new(spec, has_terminal(plan), now));
        self.present.retain(|look| matches!(look.purpose, Purpose::Client { .. }));
    }
}

impl Front {
    /// Asks all agents where these ranks are, or all.
    pub(crate) fn look(&mut self, purpose: Purpose, ranks: Option<Vec<Rank>>, native: bool) {
        let linked = self.nodes.iter().filter(|node| node.link.is_some() && node.containment.is_some());
        let missing: BTreeSet<NodeId> = linked.map(|node| node.id).collect();
        self.looks.last += 1;
        let number = self.looks.last;
        let due = self.now() + ANSWER_BOUND;
        let is_possible = !missing.is_empty() && !self.clock.is_paused();
        self.looks.present.push(Look { number, purpose, due, missing, seen: Vec::new(), traffic: None });
        match is_possible {
            true => self.send(ToAgent::Look { number, ranks, native }),
            false => self.close_looks(|look| look.number == number),
        }
    }

    /// An agent looks into so many ranks.
    pub(crate) fn looking(&mut self, from: NodeId, number: u64, traffic: Option<Duration>) {
        let now = self.now();
        let clock = &mut self.nodes[from.index()].clock;
        let traffic = traffic.map(|at| clock.moment(now, at).at);
        if let Some(look) = self.looks.present.iter_mut().find(|look| look.number == number) {
            look.traffic = look.traffic.max(traffic);
        }
    }

    /// Where a rank is.
    pub(crate) fn looked(&mut self, from: NodeId, number: u64, worker: WorkerId, stack: ProcessStack) {
        let node = self.nodes[from.index()].name.clone();
        if let Some(look) = self.looks.present.iter_mut().find(|look| look.number == number) {
            look.seen.push(Seen { rank: worker.rank, node, stack });
        }
    }

    /// An agent has sent all that it knows.
    pub(crate) fn look_over(&mut self, from: NodeId, number: u64) {
        if let Some(look) = self.looks.present.iter_mut().find(|look| look.number == number) {
            look.missing.remove(&from);
        }
        self.close_looks(|look| look.missing.is_empty());
    }

    /// Does what is due.
    pub(crate) fn looks_due(&mut self, now: Duration) {
        if self.looks.before_timeout.is_some_and(|at| at <= now) {
            self.looks.before_timeout = None;
            if self.gang.stop_ordered().is_none() && !self.alive().is_empty() {
                self.look(Purpose::End, None, false);
            }
        }
        if self.looks.stall.as_mut().is_some_and(|stall| stall.is_to_look(now)) {
            match self.gang.stop_ordered().is_none() && !self.alive().is_empty() && self.has_started() {
                true => self.look(Purpose::Stall, None, false),
                // There is nothing to look at: an attempt is beginning, or ending.
                false => self.looks.looked(now, Some(now), BTreeMap::new()),
            }
        }
        let is_linked: Vec<bool> = self.nodes.iter().map(|node| node.link.is_some()).collect();
        self.close_looks(|look| look.due <= now || !look.missing.iter().any(|node| is_linked[node.index()]));
        if self.looks.held.is_some_and(|held| held.until <= now) {
            self.release_signal();
        }
    }

    /// Takes what has come of the looks that are over.
    fn close_looks(&mut self, is_over: impl Fn(&Look) -> bool) {
        let (over, present) = std::mem::take(&mut self.looks.present).into_iter().partition(is_over);
        self.looks.present = present;
        for look in over {
            self.conclude(look);
        }
    }

    fn conclude(&mut self, look: Look) {
        let Look { purpose, mut seen, missing, traffic, .. } = look;
        seen.sort_by_key(|seen| seen.rank);
        let silent: Vec<String> = missing.iter().map(|node| self.nodes[node.index()].name.clone()).collect();
        let table = fold(&seen, &silent);
        match purpose {
            Purpose::Asked => self.print_table("where the ranks are", &table),
            Purpose::Client { client, each } => {
                let ranks = if each { seen } else { Vec::new() };
                self.answer(client, Answer::Stacks { table: Box::new(table), ranks });
            }
            Purpose::End => {
                self.looks.for_report = Some(table);
                self.release_signal();
            }
            Purpose::Stall => {
                // Of a node that has not answered nothing is known.
                let traffic = if missing.is_empty() { traffic } else { Some(self.now()) };
                self.judge_stall(traffic, &seen, table);
            }
            Purpose::Suspects(suspects) => self.judge(suspects, &seen),
            Purpose::Proof(suspects) => self.prove(suspects, &seen, traffic),
            Purpose::Alive => {
                self.print_table("where they are", &table);
                self.looks.for_report = Some(table);
            }
        }
    }

    fn judge_stall(&mut self, traffic: Option<Duration>, seen: &[Seen], table: Table) {
        let now = self.now();
        let Some(stall) = &mut self.looks.stall else { return };
        let spec = stall.spec();
        let (silent, doubt) = match stall.looked(now, traffic, prints(seen)) {
            stall::Finding::No => return,
            stall::Finding::Stalled { silent } => (silent, None),
            stall::Finding::Waits { silent, doubt } => (silent, Some(doubt)),
        };
        if self.gang.stop_ordered().is_some() {
            return;
        }
        let ranks = seen.len();
        let title = format!(
            "{ranks} rank{}, silent for {}",
            if ranks == 1 { "" } else { "s" },
            format_duration(Duration::from_secs(silent.as_secs()))
        );
        match spec.action {
            Action::Kill if doubt.is_none() => {
                let odd = OddRank::of(&table.odd);
                self.looks.for_report = Some(table);
                self.event(gang::Event::Hang(Hang { silent, odd }));
            }
            Action::Kill | Action::Warn => {
                let goes_on = match doubt {
                    Some(doubt) if spec.action == Action::Kill => format!("; the job goes on: {doubt}"),
                    Some(doubt) => format!("; {doubt}"),
                    None => String::new(),
                };
                self.print_table(&format!("{title} (--stall {spec}{goes_on})"), &table)
            }
        }
    }

    /// Those that run something are healthy. For those that are at their end, all others are looked into.
    fn judge(&mut self, suspects: Vec<(Rank, Exception)>, seen: &[Seen]) {
        let now = self.now();
        let mut at_their_end = Vec::new();
        for (rank, exception) in suspects {
            let found = seen.iter().find(|seen| seen.rank == rank);
            let standing = found.map_or(Standing::Unknown, |seen| Standing::of(&seen.stack));
            let record = self.gang.ranks().get(rank.index());
            let is_in_mpi = record.is_some_and(|record| record.mpi == MpiLife::Inited && record.status.is_none());
            match standing {
                Standing::IsAtItsEnd if is_in_mpi => at_their_end.push((rank, exception)),
                // One on its way out may be between the two.
                _ => self.last_words.has_not_failed(now, rank, standing == Standing::GoesOn),
            }
        }
        if !at_their_end.is_empty() {
            self.look(Purpose::Proof(at_their_end), None, false);
        }
    }

    /// All ranks were looked into for the sake of these.
    fn prove(&mut self, suspects: Vec<(Rank, Exception)>, seen: &[Seen], traffic: Option<Duration>) {
        let (now, grace) = (self.now(), self.plan.spec.graces.finalize);
        let living: BTreeSet<Rank> = self.alive().into_iter().collect();
        let last_sign = self.looks.last_sign.max(traffic);
        for (rank, exception) in suspects.into_iter().filter(|(rank, _)| living.contains(rank)) {
            let silent = self.last_words.silence(now, rank).unwrap_or_default();
            let proof = self.looks.proofs.entry(rank).or_default();
            match proof.look(now, &living, seen, last_sign) {
                Finding::OthersGoOn => self.last_words.has_not_failed(now, rank, false),
                Finding::HasFailed if silent >= grace => {
                    self.event(gang::Event::Suspect { rank, exception, end: true, silent });
                }
                Finding::HasFailed => self.last_words.look_at(rank, now + grace - silent),
                Finding::Again => self.last_words.look_at(rank, now + PROVE_AGAIN),
            }
        }
    }

    fn print_table(&mut self, title: &str, table: &Table) {
        let mut text = format!("rankrun: {title}:");
        for line in table.lines(WIDTH - 2, MAX_LINES) {
            text.push_str("\n  ");
            text.push_str(&fit(&printable(&line), WIDTH));
        }
        let now = self.now();
        self.delivery.journal.record(now, || JobEvent::Note(text.clone()));
        if self.plan.verbosity >= 0 {
            self.notices.push_back(text);
        }
    }

    /// With `-v`, a signal that ends the job waits until it is known where the ranks are. Returns whether it does.
    pub(crate) fn hold_signal(&mut self, number: i32, by_key: bool) -> bool {
        if self.looks.held.is_some() {
            // Whoever sends a second one does not want to wait.
            self.release_signal();
            return false;
        }
        let is_first = self.gang.outside().is_none() && self.gang.stop_ordered().is_none();
        if self.plan.verbosity <= 0 || !is_first || self.alive().is_empty() || !self.is_linked() {
            return false;
        }
        self.looks.held = Some(Held { number, by_key, until: self.now() + HOLD });
        self.look(Purpose::End, None, false);
        true
    }

    fn release_signal(&mut self) {
        if let Some(Held { number, by_key, .. }) = self.looks.held.take() {
            self.end_by_signal(number, by_key);
        }
    }
}
