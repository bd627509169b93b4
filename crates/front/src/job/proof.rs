//! Nodes that were lost are asked what is left there: before the next attempt, and at the end of the job.

use std::time::Duration;

use rankrun_agent::LOOK_STEP;
use rankrun_core::fence::{Clearance, Fate, clearance};
use rankrun_core::hosts::fold;

use crate::job::front::Front;
use crate::nodes::{NodeHandle, Prover};

/// How long all of it may take at the end of a job beyond the grace, and in all at least.
const BEYOND_GRACE: Duration = Duration::from_secs(5);
const BOUND: Duration = Duration::from_secs(10);
/// After this time the user is told for whom we wait.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the agent there may take after the grace to end, before it is killed.
const MARGIN: Duration = Duration::from_secs(1);

/// The wait for nodes that were lost, before the next attempt.
#[derive(Clone, Debug)]
pub(super) struct Clearing {
    pub(super) since: Duration,
    /// The latest end of the wait.
    pub(super) until: Duration,
    /// When to look again.
    pub(super) look: Duration,
    /// The nodes, as the user reads them.
    pub(super) nodes: String,
    is_told: bool,
}

impl Front {
    /// Whether ranks of the last attempt may live. Nodes that were lost are asked meanwhile.
    pub(super) fn clear_last_attempt(
        &mut self,
        now: Duration,
        before: Option<Clearing>,
    ) -> (Clearance, Option<Clearing>) {
        if self.lost_nodes().all(|node| node.fate() == Fate::Gone) {
            return (Clearance::Clear, None);
        }
        // The others run, and would end if they were asked.
        self.ask_unheard(now, |node| node.loss.is_some());
        let clearance = clearance(now, self.lost_nodes().map(NodeHandle::fate));
        let unknown = self.lost_nodes().filter(|node| matches!(node.fate(), Fate::Unknown(_)));
        let nodes = fold(unknown.map(|node| node.name.clone()).collect::<Vec<_>>());
        let Clearance::Wait { until } = clearance else {
            if clearance == Clearance::Clear && !nodes.is_empty() {
                self.note(format!(
                    "no answer from {nodes}: the ranks there have ended by themselves by now (--node-timeout and --grace have passed), unless something has stopped rankrun's processes there"
                ));
            }
            return (clearance, None);
        };
        let (since, mut is_told) = before.map_or((now, false), |before| (before.since, before.is_told));
        if now >= since + PATIENCE && !std::mem::replace(&mut is_told, true) {
            let rest = until.saturating_sub(now).as_secs() + 1;
            self.note(format!("waiting for {nodes} to prove that no rank is left there, for {rest} s at most"));
        }
        (clearance, Some(Clearing { since, until, look: until.min(now + LOOK_STEP), nodes, is_told }))
    }

    /// Asks the nodes from which nothing is known, side by side, and returns those that have not answered. One whose answer is known is
    /// not asked again, nor one that was not reached by ssh.
    fn ask_unheard(&mut self, now: Duration, may_ask: impl Fn(&NodeHandle) -> bool) -> Vec<String> {
        let patience = self.gang.rules().grace_failure + MARGIN;
        let Some(muster) = &self.muster else { return Vec::new() };
        let mut open = Vec::new();
        for node in &mut self.nodes {
            let (id, is_asked) = (node.id, node.is_unheard() && may_ask(node));
            let target = &self.plan.hosts.targets[id.index()];
            let Some(remote) = node.remote_mut() else { continue };
            if is_asked && remote.prover.is_none() {
                remote.prover = Some(Prover::new(patience));
            }
            let Some(prover) = &mut remote.prover else { continue };
            prover.reap(now);
            prover.try_again(now, &mut self.starter, &self.plan.hosts.ssh, target, &muster.call(id));
            if !prover.has_answer() {
                open.push(target.name.clone());
            }
        }
        open
    }

    /// At the end of the job: asks the nodes whose connection was lost, for a bounded time.
    pub(crate) fn prove_again(&mut self) {
        let began = self.now();
        let until = began + BOUND.max(self.gang.rules().grace_failure + BEYOND_GRACE);
        let mut is_told = false;
        loop {
            let now = self.now();
            let open = self.ask_unheard(now, |_| true);
            if now >= began + PATIENCE && !open.is_empty() && !std::mem::replace(&mut is_told, true) {
                let rest = until.saturating_sub(now).as_secs();
                self.note(format!("waiting for {} to say what is left there, for {rest} s at most", fold(&open)));
                self.hand_on();
            }
            if open.is_empty() || now >= until || self.is_hurried || !self.wait_until(until.min(now + LOOK_STEP)) {
                break;
            }
        }
        for prover in self.nodes.iter_mut().filter_map(|node| node.remote_mut()?.prover.as_mut()) {
            prover.give_up();
        }
    }
}
