//! The looks into ranks that are under way: for whom, and what has come of them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::{NodeId, Rank};
use crate::job::event::ClientId;
use crate::job::parts::inquiry::Inquiry;
use crate::job::settings::Settings;
use crate::stacks::fold::{Seen, Table};
use crate::stacks::proof::Proof;
use crate::stacks::stall::{Finding, Print, Stall, StallSpec};
use crate::testimony::Exception;

/// How long the agents have, beyond the time that they need themselves.
const ANSWER_BOUND: Duration = Duration::from_secs(6);
/// How long before `--timeout` the ranks are looked into, but not before a part of that time has passed.
const BEFORE_TIMEOUT: Duration = Duration::from_secs(2);
const TIMEOUT_SHARE: u32 = 4;
/// How long a signal may wait, with `-v`, until it is known where the ranks are.
const HOLD: Duration = Duration::from_secs(1);

/// For whom the ranks are looked into.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::job) enum Purpose {
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

/// What has come of a look.
#[derive(Debug)]
pub(in crate::job) struct Sights {
    pub(in crate::job) purpose: Purpose,
    pub(in crate::job) seen: Vec<Seen>,
    /// When ranks last used what connects them, on any node.
    pub(in crate::job) traffic: Option<Duration>,
}

/// A signal that waits until the ranks have been looked into.
#[derive(Clone, Copy, Debug)]
pub(in crate::job) struct Held {
    pub(in crate::job) number: i32,
    pub(in crate::job) by_key: bool,
    until: Duration,
}

/// All that is known of it.
#[derive(Debug, Default)]
pub(in crate::job) struct Looks {
    last: u64,
    present: Vec<Inquiry<Sights>>,
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

impl Looks {
    pub(in crate::job) fn new(settings: &Settings, timeout: Option<Duration>) -> Looks {
        let lead = |timeout: Duration| timeout.saturating_sub(BEFORE_TIMEOUT.min(timeout / TIMEOUT_SHARE));
        let stall = settings.stall.map(|spec| Stall::new(spec, settings.has_terminal, Duration::ZERO));
        Looks { before_timeout: timeout.map(lead), stall, ..Looks::default() }
    }

    /// A rank has given a sign of life.
    pub(in crate::job) fn sign(&mut self, now: Duration) {
        self.last_sign = Some(now);
        if let Some(stall) = &mut self.stall {
            stall.sign(now);
        }
    }

    /// When a rank last gave a sign of life.
    pub(in crate::job) fn last_sign(&self) -> Option<Duration> {
        self.last_sign
    }

    /// What all ranks were seen to do, for the sake of a stall. `None`: nobody looks for one.
    pub(in crate::job) fn judge_stall(
        &mut self,
        now: Duration,
        traffic: Option<Duration>,
        prints: BTreeMap<Rank, Print>,
    ) -> Option<(StallSpec, Finding)> {
        let stall = self.stall.as_mut()?;
        Some((stall.spec(), stall.looked(now, traffic, prints)))
    }

    /// Whether it is time to look for a stall: [`Looks::judge_stall`] is to follow.
    pub(in crate::job) fn is_stall_due(&mut self, now: Duration) -> bool {
        self.stall.as_mut().is_some_and(|stall| stall.is_to_look(now))
    }

    /// Whether the job is about to be ended by its time limit.
    pub(in crate::job) fn is_limit_near(&mut self, now: Duration) -> bool {
        self.before_timeout.take_if(|at| *at <= now).is_some()
    }

    /// A look begins. Returns its number.
    pub(in crate::job) fn begin(&mut self, now: Duration, purpose: Purpose, nodes: Vec<NodeId>) -> u64 {
        self.last += 1;
        let sights = Sights { purpose, seen: Vec::new(), traffic: None };
        self.present.push(Inquiry::new(self.last, now + ANSWER_BOUND, nodes, sights));
        self.last
    }

    /// The look of that number, while it is under way.
    pub(in crate::job) fn get_mut(&mut self, number: u64) -> Option<&mut Inquiry<Sights>> {
        self.present.iter_mut().find(|look| look.is(number))
    }

    /// The looks that are over.
    pub(in crate::job) fn take_over(&mut self, is_over: impl Fn(&Inquiry<Sights>) -> bool) -> Vec<Inquiry<Sights>> {
        let (over, present) = std::mem::take(&mut self.present).into_iter().partition(is_over);
        self.present = present;
        over
    }

    /// What is known of a rank that is silent after a traceback.
    pub(in crate::job) fn proof(&mut self, rank: Rank) -> &mut Proof {
        self.proofs.entry(rank).or_default()
    }

    /// Where the ranks were when the job was ended, or when they should have ended.
    pub(in crate::job) fn keep(&mut self, table: Table) {
        self.for_report = Some(table);
    }

    /// A signal waits until the ranks have been looked into.
    pub(in crate::job) fn hold(&mut self, now: Duration, number: i32, by_key: bool) {
        self.held = Some(Held { number, by_key, until: now + HOLD });
    }

    /// The signal that waits, which does no more.
    pub(in crate::job) fn release(&mut self) -> Option<Held> {
        self.held.take()
    }

    pub(in crate::job) fn is_holding(&self) -> bool {
        self.held.is_some()
    }

    /// Whether a signal has waited for long enough.
    pub(in crate::job) fn is_hold_over(&self, now: Duration) -> bool {
        self.held.is_some_and(|held| held.until <= now)
    }

    pub(in crate::job) fn deadline(&self) -> Option<Duration> {
        let looks = self.present.iter().map(Inquiry::until);
        let stall = self.stall.as_ref().and_then(Stall::deadline);
        looks.chain(self.before_timeout).chain(self.held.map(|held| held.until)).chain(stall).min()
    }

    /// For the report of an attempt that was ended from outside.
    pub(in crate::job) fn table(&self) -> Option<&Table> {
        self.for_report.as_ref()
    }

    /// Another attempt begins.
    pub(in crate::job) fn begin_attempt(&mut self, settings: &Settings, now: Duration) {
        self.for_report = None;
        self.proofs.clear();
        self.stall = settings.stall.map(|spec| Stall::new(spec, settings.has_terminal, now));
        self.present.retain(|look| matches!(look.found.purpose, Purpose::Client { .. }));
    }
}
