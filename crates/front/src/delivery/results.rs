//! What ranks return to `rankrun.launch`, on its way to files.
//!
//! Each node has a room for what is not written ([`rankrun_core::result::RESULTS_ROOM`]): it is told what has been written, and sends as much
//! more. So a slow destination slows the ranks down, and nothing grows with the results. A rank waits for that within a bound: what has not
//! been written for `--drain` is given up, and the job ends.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::NodeId;
use rankrun_core::result::ResultPiece;

use crate::delivery::event::{DeliveryEvent, SILENCE_BOUND, SILENCE_STEP};
use crate::delivery::files::Files;
use crate::delivery::task::{Destination, Failure, Task};

/// The results of the ranks.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// By node: what is being written, as [`ResultPiece::cost`] counts it, and what of that it was not told yet.
    unwritten: BTreeMap<NodeId, u64>,
    taken: BTreeMap<NodeId, u64>,
    /// Why they are dropped, until the front has been told.
    reason: Option<String>,
    has_failed: bool,
    /// When to look next whether the file system answers.
    next_look: Duration,
}

impl Results {
    /// A node has sent a piece for this file, if anybody wants it.
    pub(crate) fn add(
        &mut self,
        now: Duration,
        files: &mut Files,
        node: NodeId,
        path: Option<PathBuf>,
        piece: ResultPiece,
    ) {
        let wanted = path.filter(|_| !self.has_failed);
        let sum = if wanted.is_some() { &mut self.unwritten } else { &mut self.taken };
        *sum.entry(node).or_default() += piece.cost();
        if let Some(path) = wanted {
            files.submit(now, Task::Result { node, path, piece });
        }
    }

    /// A piece was written, or could not be written.
    pub(super) fn added(&mut self, node: NodeId, cost: u64, path: &Path, result: Result<(), Failure>) {
        if let Some(unwritten) = self.unwritten.get_mut(&node) {
            *unwritten = unwritten.saturating_sub(cost);
        }
        *self.taken.entry(node).or_default() += cost;
        if let Err(error) = result {
            self.fail(path, &error.to_string());
        }
    }

    fn fail(&mut self, path: &Path, why: &str) {
        if !std::mem::replace(&mut self.has_failed, true) {
            self.reason = Some(format!("cannot write the results of ranks to \"{}\": {why}", path.display()));
        }
    }

    /// What the front has not been told.
    pub(super) fn take_events(&mut self) -> impl Iterator<Item = DeliveryEvent> {
        let taken = std::mem::take(&mut self.taken).into_iter();
        let taken = taken.map(|(node, cost)| DeliveryEvent::ResultsTaken { node, cost });
        taken.chain(self.reason.take().map(DeliveryEvent::ResultsFailed))
    }

    /// Gives up what was not written for `drain`, or for less if the ranks have `ended` and the file system does not answer. Returns
    /// whether it did.
    pub(super) fn check(&mut self, now: Duration, files: &mut Files, drain: Duration, ended: Option<Duration>) -> bool {
        let Some(busy) = files.busy_since(Destination::Results) else { return false };
        let mut is_over = now >= busy + drain || files.has_failed(Destination::Results);
        if !is_over && ended.is_some_and(|ended| now >= ended + SILENCE_BOUND) && now >= self.next_look {
            self.next_look = now + SILENCE_STEP;
            is_over = files.is_stuck(Destination::Results, now, SILENCE_BOUND);
        }
        is_over && self.give_up(now, files)
    }

    /// Gives up what is not written. Returns whether there was any.
    pub(crate) fn give_up(&mut self, now: Duration, files: &mut Files) -> bool {
        let Some(busy) = files.busy_since(Destination::Results) else { return false };
        // People read it.
        let silent = Duration::from_millis(now.saturating_sub(busy).as_millis() as u64 / 100 * 100);
        self.fail(&files.at(Destination::Results), &files.why(Destination::Results, silent));
        files.give_up(Destination::Results);
        for (node, cost) in std::mem::take(&mut self.unwritten) {
            *self.taken.entry(node).or_default() += cost;
        }
        true
    }

    /// When [`Results::check`] is due.
    pub(super) fn deadline(&self, files: &Files, drain: Duration, ended: Option<Duration>) -> Option<Duration> {
        let busy = files.busy_since(Destination::Results)?;
        let look = ended.map(|ended| (busy.max(ended) + SILENCE_BOUND).max(self.next_look));
        [Some(busy + drain), look].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use rankrun_core::JobId;
    use rankrun_sys::poll::Waker;

    use super::*;

    const DRAIN: Duration = Duration::from_secs(30);

    fn files() -> Files {
        let waker = Waker::new().expect("a waker");
        Files::new(JobId("0a1b2c3d".to_owned()), waker)
    }

    fn piece() -> ResultPiece {
        ResultPiece { is_error: false, data: "AAAA".to_owned(), is_first: true, is_last: false }
    }

    /// What each node was told, and why results are dropped.
    fn told(results: &mut Results) -> (Vec<(u32, u64)>, Option<String>) {
        let (mut taken, mut why) = (Vec::new(), None);
        for event in results.take_events() {
            match event {
                DeliveryEvent::ResultsTaken { node, cost } => taken.push((node.0, cost)),
                DeliveryEvent::ResultsFailed(reason) => why = Some(reason),
                other => panic!("{other:?}"),
            }
        }
        (taken, why)
    }

    #[test]
    fn a_node_is_told_what_was_written_and_not_before() {
        let (mut files, mut results) = (files(), Results::default());
        files.silence(Destination::Results);
        let path = || Some(PathBuf::from("/results/0.result"));
        let cost = piece().cost();
        for node in [0, 1, 1] {
            results.add(Duration::ZERO, &mut files, NodeId(node), path(), piece());
        }
        assert_eq!(told(&mut results), (vec![], None));
        results.added(NodeId(1), cost, Path::new("/results/1.result"), Ok(()));
        assert_eq!(told(&mut results), (vec![(1, cost)], None));
        // Nobody wants it.
        results.add(Duration::ZERO, &mut files, NodeId(2), None, piece());
        assert_eq!(told(&mut results), (vec![(2, cost)], None));
    }

    #[test]
    fn a_destination_that_does_not_answer_holds_no_rank_for_longer_than_drain() {
        let (mut files, mut results) = (files(), Results::default());
        files.silence(Destination::Results);
        let cost = piece().cost();
        for node in [0, 1] {
            results.add(Duration::ZERO, &mut files, NodeId(node), Some("/results/0.result".into()), piece());
        }
        let check = |results: &mut Results, files: &mut Files, now| results.check(now, files, DRAIN, None);
        assert_eq!(results.deadline(&files, DRAIN, None), Some(DRAIN));
        assert!(!check(&mut results, &mut files, DRAIN - Duration::from_millis(1)));
        assert!(check(&mut results, &mut files, DRAIN));
        let why = "cannot write the results of ranks to \"/results/0.result\": no answer from its file system for 30 s";
        assert_eq!(told(&mut results), (vec![(0, cost), (1, cost)], Some(why.to_owned())));
        assert!(!check(&mut results, &mut files, 2 * DRAIN));
        // What comes then is dropped.
        results.add(DRAIN, &mut files, NodeId(0), Some("/results/1.result".into()), piece());
        assert_eq!(told(&mut results), (vec![(0, cost)], None));
        assert!(files.is_idle(Destination::Results));
    }

    #[test]
    fn results_whose_process_has_ended_are_given_up_at_once() {
        let (mut files, mut results) = (files(), Results::default());
        files.lose(Destination::Results);
        assert!(!results.check(Duration::ZERO, &mut files, DRAIN, None));
        results.add(Duration::ZERO, &mut files, NodeId(0), Some("/results/0.result".into()), piece());
        assert!(results.check(Duration::ZERO, &mut files, DRAIN, None));
        let (taken, why) = told(&mut results);
        assert_eq!(taken, [(0, piece().cost())]);
        assert!(why.is_some_and(|why| why.ends_with("the process that writes there has ended")));
    }

    #[test]
    fn of_many_pieces_that_cannot_be_written_the_first_is_told() {
        let mut results = Results::default();
        for number in 0..3 {
            let failure = Failure::from(std::io::Error::from_raw_os_error(28));
            results.added(NodeId(0), 1, Path::new(&format!("/results/{number}.result")), Err(failure));
        }
        let why = "cannot write the results of ranks to \"/results/0.result\": No space left on device";
        assert_eq!(told(&mut results), (vec![(0, 3)], Some(why.to_owned())));
    }
}
