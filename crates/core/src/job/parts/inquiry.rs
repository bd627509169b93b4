//! A question to several nodes: who was asked, who has answered, until when the others may.
//!
//! The states of the ranks, their stacks, and who is alive after a stop are all asked for in this way. No answer is waited for without
//! bound (K-5), and none from a node that is not connected any more.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::ids::NodeId;

/// One question, and what has come of it.
#[derive(Clone, Debug)]
pub(in crate::job) struct Inquiry<F> {
    /// Answers carry it.
    number: u64,
    until: Duration,
    missing: BTreeSet<NodeId>,
    pub(in crate::job) found: F,
}

impl<F> Inquiry<F> {
    /// The nodes have until then.
    pub(in crate::job) fn new(
        number: u64,
        until: Duration,
        nodes: impl IntoIterator<Item = NodeId>,
        found: F,
    ) -> Inquiry<F> {
        Inquiry { number, until, missing: nodes.into_iter().collect(), found }
    }

    pub(in crate::job) fn is(&self, number: u64) -> bool {
        self.number == number
    }

    pub(in crate::job) fn until(&self) -> Duration {
        self.until
    }

    /// A node has sent all. Returns whether it was waited for.
    pub(in crate::job) fn answered(&mut self, node: NodeId) -> bool {
        self.missing.remove(&node)
    }

    /// The nodes have until then, and no longer.
    pub(in crate::job) fn hurry(&mut self, until: Duration) {
        self.until = self.until.min(until);
    }

    pub(in crate::job) fn missing(&self) -> &BTreeSet<NodeId> {
        &self.missing
    }

    /// Whether nothing more is waited for.
    pub(in crate::job) fn is_over(&self, now: Duration, is_connected: impl Fn(NodeId) -> bool) -> bool {
        self.until <= now || !self.missing.iter().any(|node| is_connected(*node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inquiry_is_over_when_all_have_answered_or_are_lost_or_its_time_has_passed() {
        let s = Duration::from_secs;
        let nodes = || (0..3).map(NodeId);
        let mut inquiry = Inquiry::new(7, s(2), nodes(), ());
        assert!(inquiry.is(7) && !inquiry.is(6) && !inquiry.is_over(s(1), |_| true) && inquiry.is_over(s(2), |_| true));
        assert!(inquiry.answered(NodeId(1)) && !inquiry.answered(NodeId(1)), "an answer counts once");
        assert!(!inquiry.is_over(s(1), |node| node == NodeId(2)));
        assert!(inquiry.is_over(s(1), |node| node == NodeId(1)), "who is lost is not waited for");
        inquiry.answered(NodeId(0));
        inquiry.answered(NodeId(2));
        assert!(inquiry.is_over(s(0), |_| true));
    }
}
