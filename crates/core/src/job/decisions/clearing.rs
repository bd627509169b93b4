//! Nodes that were lost are asked what is left there, and the next attempt waits for that.

use std::time::Duration;

use crate::fence::{Clearance, Fate, Loss, clearance};
use crate::job::event::{Effect, NodeCommand};
use crate::job::machine::Job;
use crate::job::parts::attempts::Clearing;
use crate::job::parts::node::Node;

/// After this time the user is told for whom we wait.
const PATIENCE: Duration = Duration::from_secs(1);
/// A node that has not said so long after its loss that nothing is left there is fenced: that may be switching it off.
const FENCE_AFTER: Duration = Duration::from_secs(10);
/// How often to look whether a node has answered.
const LOOK_STEP: Duration = Duration::from_millis(250);

impl Job {
    /// Whether ranks of the last attempt may live. Nodes that were lost are asked meanwhile.
    pub(in crate::job) fn clear_last_attempt(&mut self, before: Option<Clearing>) -> (Clearance, Option<Clearing>) {
        if self.nodes.lost().all(|node| node.fate() == Fate::Gone) {
            return (Clearance::Clear, None);
        }
        // The others run, and would end if they were asked.
        self.ask_second(|node| node.loss().is_some());
        let now = self.now;
        self.fence_unknown();
        // A command has a bound of its own: until it has answered, no time has passed.
        let fate = |node: &Node| match node.fate() {
            Fate::Unknown(loss) if node.is_being_fenced() => Fate::Unknown(Loss { at: now, ..loss }),
            fate => fate,
        };
        let clearance = clearance(now, self.nodes.lost().map(fate));
        let unknown = self.nodes.lost().filter(|node| matches!(node.fate(), Fate::Unknown(_)));
        let nodes = self.nodes.names(unknown.map(Node::id).collect::<Vec<_>>());
        let Clearance::Wait { until } = clearance else {
            if clearance == Clearance::Clear && !nodes.is_empty() && self.settings.needs_proof {
                let why =
                    format!("nobody could prove that no rank of the last attempt is left on {nodes} (--unproven stop)");
                self.attempts.give_up(why);
                return (Clearance::Left, None);
            }
            // The next attempt may wait for nodes, and look again.
            let trusted = self.nodes.iter_mut().filter(|node| matches!(node.fate(), Fate::Unknown(_)));
            let news = trusted
                .filter(|node| clearance == Clearance::Clear && node.is_lost())
                .filter_map(|node| node.tell_trust().then(|| node.id()));
            let news: Vec<_> = news.collect();
            if !news.is_empty() {
                let nodes = self.nodes.names(news);
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

    /// Has nodes fenced that have not said in time that nothing is left there.
    fn fence_unknown(&mut self) {
        if !self.settings.fences {
            return;
        }
        let is_due = |node: &&Node| matches!(node.fate(), Fate::Unknown(loss) if loss.at + FENCE_AFTER <= self.now);
        let unknown = self.nodes.lost().filter(is_due).map(Node::id);
        for node in unknown.collect::<Vec<_>>() {
            if self.nodes.get_mut(node).is_some_and(Node::fence) {
                self.out.push(Effect::RunFor(node, NodeCommand::Fence));
            }
        }
    }

    /// Asks the nodes from which nothing is known, side by side. One whose answer is known is not asked again, nor one that was not
    /// reached by ssh.
    pub(in crate::job) fn ask_second(&mut self, may_ask: impl Fn(&Node) -> bool) {
        for node in self.nodes.iter_mut() {
            if may_ask(node) && node.route_mut().asks_second() {
                self.out.push(Effect::AskSecond(node.id()));
            }
        }
    }
}
