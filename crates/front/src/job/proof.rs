//! The end of a job whose nodes were lost: they are asked once more what is left there.

use std::time::Duration;

use rankrun_agent::LOOK_STEP;
use rankrun_core::hosts::fold;

use crate::job::front::Front;
use crate::nodes::Prover;

/// How long all of it may take beyond the grace, and in all at least.
const BEYOND_GRACE: Duration = Duration::from_secs(5);
const BOUND: Duration = Duration::from_secs(10);
/// After this time the user is told for whom we wait.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the agent there may take after the grace to end, before it is killed.
const MARGIN: Duration = Duration::from_secs(1);

impl Front {
    /// Asks the nodes whose connection was lost, side by side. One whose answer is already known is not asked, nor one that was
    /// not reached by ssh.
    pub(crate) fn prove_again(&mut self) {
        let grace = self.gang.rules().grace_failure;
        let began = self.now();
        let until = began + BOUND.max(grace + BEYOND_GRACE);
        let mut is_told = false;
        for node in self.nodes.iter_mut().filter(|node| node.is_unheard()) {
            if let Some(remote) = node.remote_mut() {
                remote.prover = Some(Prover::new(grace + MARGIN));
            }
        }
        loop {
            let now = self.now();
            let Some(muster) = &self.muster else { return };
            let mut open = Vec::new();
            for node in &mut self.nodes {
                let (id, target) = (node.id, &self.plan.hosts.targets[node.id.index()]);
                let Some(prover) = node.remote_mut().and_then(|remote| remote.prover.as_mut()) else { continue };
                prover.reap(now);
                let call = muster.call(id);
                prover.try_again(now, &mut self.starter, &self.plan.hosts.ssh, target, &call);
                if !prover.has_answer() {
                    open.push(target.name.clone());
                }
            }
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
