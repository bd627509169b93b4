//! At the end of the job, nodes that were lost are asked what is left there.

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

impl Front {
    /// Asks the nodes whose connection was lost, for a bounded time.
    pub(crate) fn prove_again(&mut self) {
        let began = self.now();
        let until = began + BOUND.max(self.job.gang().rules().grace_failure + BEYOND_GRACE);
        let mut effects = Vec::new();
        self.job.ask_all_second(&mut effects);
        self.effects.extend(effects);
        self.perform_all();
        let mut is_told = false;
        loop {
            let now = self.now();
            self.try_seconds();
            let open: Vec<&str> = self.job.open_seconds().into_iter().map(|node| self.job.nodes().name(node)).collect();
            if now >= began + PATIENCE && !open.is_empty() && !std::mem::replace(&mut is_told, true) {
                let rest = until.saturating_sub(now).as_secs();
                let text = format!("waiting for {} to say what is left there, for {rest} s at most", fold(&open));
                self.note(text);
                self.hand_on();
            } else if open.is_empty() {
                break;
            }
            if now >= until || self.is_hurried || !self.wait_until(until.min(now + LOOK_STEP)) {
                break;
            }
        }
        for prover in self.nodes.iter_mut().filter_map(|node| node.remote_mut()?.prover.as_mut()) {
            Prover::give_up(prover);
        }
    }
}
