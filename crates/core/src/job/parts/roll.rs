//! The question which ranks a stop has not ended, while the agents may answer it.

use std::time::Duration;

use crate::ids::{NodeId, Rank};
use crate::job::parts::inquiry::Inquiry;

/// What was known longer ago is not printed as the present: it is asked again.
const FRESH: Duration = Duration::from_millis(500);
/// A node that takes longer to answer is not waited for.
const ANSWER_BOUND: Duration = Duration::from_secs(2);

/// The question to all agents, some time after a stop was ordered, which of their ranks have not ended.
#[derive(Debug, Default)]
pub(in crate::job) struct Roll {
    /// When it is asked.
    due: Option<Duration>,
    /// The ranks that live; of each, whether it is writing files.
    asked: Option<Inquiry<Vec<(Rank, bool)>>>,
}

impl Roll {
    pub(in crate::job) fn deadline(&self) -> Option<Duration> {
        self.due.into_iter().chain(self.asked.as_ref().map(Inquiry::until)).min()
    }

    /// It is to be asked then.
    pub(in crate::job) fn plan(&mut self, due: Option<Duration>) {
        self.due = due;
    }

    /// Whether it is to be asked now: these nodes are.
    pub(in crate::job) fn ask_due(&mut self, now: Duration, nodes: impl IntoIterator<Item = NodeId>) -> bool {
        let is_due = self.due.take_if(|due| *due <= now).is_some();
        if is_due {
            self.asked = Some(Inquiry::new(0, now + ANSWER_BOUND, nodes, Vec::new()));
        }
        is_due
    }

    /// A node has answered, `late` after it knew. What was known long ago is not the present: it is asked again.
    pub(in crate::job) fn answered(
        &mut self,
        now: Duration,
        node: NodeId,
        late: Duration,
        alive: impl IntoIterator<Item = (Rank, bool)>,
    ) {
        // An answer that comes too late is not waited for.
        let Some(asked) = &mut self.asked else { return };
        if !asked.answered(node) {
            return;
        }
        match late > FRESH {
            true => *self = Roll { due: Some(now), asked: None },
            false => asked.found.extend(alive),
        }
    }

    /// What the nodes have answered, when nothing more is waited for.
    pub(in crate::job) fn take_over(
        &mut self,
        now: Duration,
        is_connected: impl Fn(NodeId) -> bool,
    ) -> Option<Vec<(Rank, bool)>> {
        self.asked.take_if(|asked| asked.is_over(now, is_connected)).map(|asked| asked.found)
    }
}
