//! When to look for ranks that run Python without the interpreter hook.

use std::collections::BTreeSet;
use std::time::Duration;

/// With `-v`, times after the start of the job: early for short jobs, and again for ranks that start Python late.
const WITH_V: [Duration; 5] = [
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_secs(4),
    Duration::from_secs(16),
    Duration::from_secs(64),
];
/// How long before `--timeout` ends the ranks: what is to be read of them is gone with them. Twice, since some ranks may
/// fail between, and the first look may take long on a busy machine.
const BEFORE_TIMEOUT: [Duration; 2] = [Duration::from_secs(2), Duration::from_millis(200)];
/// How long after SIGQUIT an answer belongs to it.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// When to look next.
#[derive(Debug)]
pub(in crate::job) struct HookWatch {
    due: BTreeSet<Duration>,
    /// The user has asked for the state of the ranks, until then.
    asked_until: Option<Duration>,
}

impl HookWatch {
    pub(in crate::job) fn new(is_verbose: bool, timeout: Option<Duration>) -> HookWatch {
        let early = WITH_V.into_iter().filter(|_| is_verbose);
        let late = timeout.into_iter().flat_map(|at| BEFORE_TIMEOUT.map(|before| at.saturating_sub(before)));
        HookWatch { due: early.chain(late.filter(|at| !at.is_zero())).collect(), asked_until: None }
    }

    pub(in crate::job) fn deadline(&self) -> Option<Duration> {
        self.due.first().copied()
    }

    pub(in crate::job) fn is_due(&mut self, now: Duration) -> bool {
        let later = self.due.split_off(&(now + Duration::from_nanos(1)));
        !std::mem::replace(&mut self.due, later).is_empty()
    }

    /// The user asks for the state of the ranks.
    pub(in crate::job) fn ask(&mut self, now: Duration) {
        self.asked_until = Some(now + ANSWER_WITHIN);
    }

    /// Whether an answer that comes now belongs to that: one does.
    pub(in crate::job) fn is_asked(&mut self, now: Duration) -> bool {
        self.asked_until.take().is_some_and(|until| now <= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_ranks_are_looked_at_before_they_are_ended() {
        let mut watch = HookWatch::new(false, Some(ms(10_000)));
        assert_eq!(watch.deadline(), Some(ms(8_000)));
        assert!(!watch.is_due(ms(7_999)) && watch.is_due(ms(8_000)) && !watch.is_due(ms(9_000)));
        assert_eq!(watch.deadline(), Some(ms(9_800)));
        assert!(watch.is_due(ms(11_000)));
        assert_eq!(watch.deadline(), None);
        assert_eq!(HookWatch::new(false, Some(ms(500))).deadline(), Some(ms(300)));
        assert_eq!(HookWatch::new(false, None).deadline(), None, "a job that nobody asks about is not looked at");
        assert_eq!(HookWatch::new(true, None).deadline(), Some(ms(250)));
    }
}
