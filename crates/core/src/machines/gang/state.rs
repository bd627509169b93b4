//! What is known of a gang: what its ranks did, and what was ordered. The verdict is concluded from this.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::event::Effect;
use super::outside::{LostNode, Outside, StopRequest};
use super::record::{RankRecord, Ranks};
use crate::alone::Alone;
use crate::evidence::{Evidence, LeftOut};
use crate::exit::ExitCode;
use crate::ids::{Attempt, GangId, GroupId, Rank, WorkerId};
use crate::stacks::odd::Hang;
use crate::topology::CpuSet;
use crate::worker::Stop;

/// The rules for stopping a gang.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rules {
    pub grace_failure: Duration,
    pub grace_outside: Duration,
    pub timeout: Option<Duration>,
    pub keep_going: bool,
    /// The rank that the terminal is lent to: the keys go to it alone.
    #[serde(default)]
    pub terminal: Option<Rank>,
}

/// The ranks of all groups in one attempt: the group with which the job began, and those that its ranks have asked for.
#[derive(Clone, Debug)]
pub struct Gang {
    pub(super) rules: Rules,
    pub(super) ranks: Ranks,
    /// Who has asked for each further group.
    pub(super) askers: BTreeMap<GroupId, Rank>,
    /// How many ranks have no process yet.
    pub(super) unstarted: usize,
    /// A rank has been in MPI, and one has ended well that never was.
    pub(super) is_of_mpi: bool,
    pub(super) has_left_before_init: bool,
    pub(super) evidence: Vec<Evidence>,
    /// The bytes of text in it.
    pub(super) bytes: usize,
    pub(super) left_out: LeftOut,
    /// The exit code for a failed spawn (126, 127).
    pub(super) spawn_code: Option<ExitCode>,
    pub(super) outside: Option<(Outside, Duration)>,
    /// A node was lost first: what ended the job from outside besides.
    pub(super) after_loss: Option<Outside>,
    /// The first request to stop, if it was what ended the job.
    pub(super) requested: Option<StopRequest>,
    pub(super) hang: Option<Hang>,
    /// Why the ranks cannot be connected.
    pub(super) why_wire_up_lost: String,
    /// Why there are no log files, if that ended the job.
    pub(super) why_no_logs: Option<String>,
    pub(super) lost_nodes: Vec<LostNode>,
    /// How long rankrun itself stood still before they were lost.
    pub(super) stood_still: Option<Duration>,
    pub(super) alone: Vec<Alone>,
    pub(super) stop_at: Option<Duration>,
    /// When the shortest grace of all orders to stop is over.
    pub(super) grace_until: Option<Duration>,
    /// The first SIGINT, to rankrun or to the rank that has the terminal.
    pub(super) interrupted_at: Option<Duration>,
    pub(super) killed_at: Option<Duration>,
    /// Ranks that exited without finalize, by the time when to judge that.
    pub(super) to_judge: BTreeMap<Duration, Vec<Rank>>,
    /// Since the first failure: until when the stop may wait for its cause.
    pub(super) wait_until: Option<Duration>,
}

impl Gang {
    pub fn new(id: GangId, size: u32, rules: Rules) -> Gang {
        let mut ranks = Ranks::default();
        ranks.add(id.group, id.attempt, size);
        Gang {
            rules,
            ranks,
            askers: BTreeMap::new(),
            unstarted: size as usize,
            is_of_mpi: false,
            has_left_before_init: false,
            evidence: Vec::new(),
            bytes: 0,
            left_out: LeftOut::default(),
            spawn_code: None,
            outside: None,
            after_loss: None,
            requested: None,
            hang: None,
            why_wire_up_lost: String::new(),
            why_no_logs: None,
            lost_nodes: Vec::new(),
            stood_still: None,
            alone: Vec::new(),
            stop_at: None,
            grace_until: None,
            interrupted_at: None,
            killed_at: None,
            to_judge: BTreeMap::new(),
            wait_until: None,
        }
    }

    /// Whether a worker is one of the gang's, and not of another group or an earlier attempt.
    pub fn has(&self, worker: WorkerId) -> bool {
        let record = self.ranks.get(worker.rank);
        record.is_some_and(|record| record.attempt == worker.attempt)
    }

    /// The present worker of a rank.
    pub fn worker(&self, rank: Rank) -> WorkerId {
        let attempt = self.ranks.get(rank).map(|record| record.attempt).unwrap_or_default();
        WorkerId { rank, attempt }
    }

    /// Where these workers are bound to.
    pub(crate) fn bound(&mut self, workers: impl Iterator<Item = (WorkerId, CpuSet)>) {
        for (worker, cpus) in workers {
            if let Some(record) = self.ranks.get_mut(worker.rank) {
                record.cpus = Some(cpus);
            }
        }
    }

    /// A further group begins in the present attempt: this rank has asked for it.
    pub fn add(&mut self, group: GroupId, attempt: Attempt, size: u32, by: Rank) {
        self.ranks.add(group, attempt, size);
        self.askers.insert(group, by);
        self.unstarted += size as usize;
    }

    /// A group that did not come up is not to be: nothing that was known of its ranks decides anything.
    pub fn withdraw(&mut self, group: GroupId) {
        let of_group = |record: &&RankRecord| record.rank.group() == group;
        self.unstarted -= self.ranks.iter().filter(of_group).filter(|record| record.pid.is_none()).count();
        self.ranks.remove(group);
        self.askers.remove(&group);
        self.evidence.retain(|evidence| evidence.rank.group() != group);
        self.to_judge.values_mut().for_each(|ranks| ranks.retain(|rank| rank.group() != group));
    }

    pub fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    /// Whether every rank has been started. It costs the same however many there are.
    pub fn are_all_started(&self) -> bool {
        self.unstarted == 0
    }

    /// Whether a rank has been in MPI.
    pub(crate) fn is_of_mpi(&self) -> bool {
        self.is_of_mpi
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What speaks for a failure, in the order in which it became known.
    pub fn evidence(&self) -> &[Evidence] {
        &self.evidence
    }

    /// That no rank had made progress for a time, if the job was ended for that.
    pub fn hang(&self) -> Option<&Hang> {
        self.hang.as_ref()
    }

    pub fn outside(&self) -> Option<Outside> {
        self.outside.map(|(outside, _)| outside)
    }

    /// What ended the gang from outside, and when.
    pub(crate) fn ended_from_outside(&self) -> Option<(Outside, Duration)> {
        self.outside
    }

    /// What ended the job, not only this attempt of it: the loss of a node does not by itself, nor does a hang.
    pub fn ended_by(&self) -> Option<Outside> {
        self.outside()
            .filter(|outside| !matches!(outside, Outside::Restart | Outside::NodeLost | Outside::Hang))
            .or(self.after_loss)
    }

    /// The request that ended the job, if one did.
    pub fn requested(&self) -> Option<StopRequest> {
        self.requested
    }

    pub fn why_wire_up_lost(&self) -> &str {
        &self.why_wire_up_lost
    }

    /// The ranks that run MPI, and have not connected.
    pub fn alone(&self) -> &[Alone] {
        &self.alone
    }

    /// Why the log files could not be made, or results not be written, if that is why output could not be written.
    pub fn why_no_logs(&self) -> Option<&str> {
        self.why_no_logs.as_deref()
    }

    pub fn spawn_code(&self) -> Option<ExitCode> {
        self.spawn_code
    }

    /// When the stop was ordered, if it was.
    pub fn stop_ordered(&self) -> Option<Duration> {
        self.stop_at
    }

    /// Until when the ranks have time to end, once the stop was ordered; one that is saving may have more.
    pub fn grace_until(&self) -> Option<Duration> {
        self.grace_until
    }

    /// When the first SIGINT came, if one did: another one kills.
    pub fn interrupted_at(&self) -> Option<Duration> {
        self.interrupted_at
    }

    /// When the kill was ordered, if it was.
    pub fn killed_at(&self) -> Option<Duration> {
        self.killed_at
    }

    /// Whether the leaders of all workers have ended. What they have left may live on for a while.
    pub(crate) fn have_all_ended(&self) -> bool {
        self.ranks.iter().all(|rank| rank.ended_at.is_some() || rank.is_lost)
    }

    /// Whether every worker is gone.
    pub fn over(&self) -> bool {
        self.ranks.iter().all(|rank| rank.outcome.is_some() || rank.is_lost)
    }

    /// When `Tick` is due.
    pub fn deadline(&self) -> Option<Duration> {
        let timeout = self.rules.timeout.filter(|_| self.stop_at.is_none());
        let judge = self.to_judge.keys().next().copied();
        let wait = self.wait_until.filter(|_| self.stop_at.is_none());
        [timeout, judge, wait].into_iter().flatten().min()
    }

    /// The nodes that were lost, in the order in which that was noticed.
    pub fn lost_nodes(&self) -> &[LostNode] {
        &self.lost_nodes
    }

    /// How long rankrun itself stood still, if the nodes that were lost have given it up.
    pub fn stood_still(&self) -> Option<Duration> {
        self.stood_still
    }

    /// Observations that are not evidence.
    pub fn left_out(&self) -> LeftOut {
        self.left_out
    }

    /// The evidence, with what the ranks said in passing where that belongs by its time.
    pub fn all_evidence(&self) -> Vec<Evidence> {
        let mut passing: Vec<&Evidence> =
            self.ranks.iter().flat_map(|record| record.passing.asides().chain(record.passing.notes())).collect();
        passing.sort_by_key(|evidence| evidence.at);
        let mut passing = passing.into_iter().peekable();
        let mut all = Vec::new();
        for evidence in &self.evidence {
            while let Some(before) = passing.next_if(|it| it.at <= evidence.at) {
                all.push(before.clone());
            }
            all.push(evidence.clone());
        }
        all.extend(passing.cloned());
        all
    }

    /// Orders the stop.
    pub(super) fn stop(&mut self, now: Duration, stop: Stop, effects: &mut Vec<Effect>) {
        self.stop_at.get_or_insert(now);
        let end = now + stop.grace;
        self.grace_until = Some(self.grace_until.map_or(end, |until| until.min(end)));
        effects.push(Effect::Stop(stop));
    }
}
