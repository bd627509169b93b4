//! Ranks that run Python without the interpreter hook: when to look for them, and what is printed of them.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Job;
use super::event::Order;
use super::looking::Purpose;
use crate::absence::Absence;
use crate::gang::{self, Outside};
use crate::hookless::{Hookless, Occasion, that_matter};
use crate::ids::{Rank, WorkerId};

/// SIGQUIT, whose number is the same on every Linux.
const SIGQUIT: i32 = 3;
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
pub(super) struct HookWatch {
    due: BTreeSet<Duration>,
    /// The user has asked for the state of the ranks, until then.
    asked_until: Option<Duration>,
}

impl HookWatch {
    pub(super) fn new(is_verbose: bool, timeout: Option<Duration>) -> HookWatch {
        let early = WITH_V.into_iter().filter(|_| is_verbose);
        let late = timeout.into_iter().flat_map(|at| BEFORE_TIMEOUT.map(|before| at.saturating_sub(before)));
        HookWatch { due: early.chain(late.filter(|at| !at.is_zero())).collect(), asked_until: None }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.due.first().copied()
    }

    fn is_due(&mut self, now: Duration) -> bool {
        let later = self.due.split_off(&(now + Duration::from_nanos(1)));
        !std::mem::replace(&mut self.due, later).is_empty()
    }
}

impl Job {
    /// Asks the agents which ranks run Python without the hook, when it is time. They answer if there are any.
    pub(super) fn look_for_hooks(&mut self) {
        let now = self.now;
        // Both are asked: each forgets what is due.
        let (by_words, by_time) = (self.words.due_to_look(now), self.hooks.is_due(now));
        if self.gang.stop_ordered().is_some() {
            return;
        }
        if !by_words.is_empty() || by_time {
            self.send(Order::LookForHooks);
        }
        if !by_words.is_empty() {
            let ranks = by_words.iter().map(|(rank, _)| *rank).collect();
            self.look(Purpose::Suspects(by_words), Some(ranks), false);
        }
    }

    /// The user asks for the state of the ranks, or wants them to end.
    pub(super) fn ask_for_hooks(&mut self, is_to_be_printed: bool) {
        if is_to_be_printed {
            self.hooks.asked_until = Some(self.now + ANSWER_WITHIN);
        }
        self.send(Order::LookForHooks);
    }

    /// The answer of an agent.
    pub(super) fn hookless(&mut self, found: Vec<(WorkerId, Absence)>) {
        let is_news = |(rank, why): &(Rank, Absence)| {
            self.gang.ranks().get(rank.index()).is_some_and(|record| record.hookless.as_ref() != Some(why))
        };
        let found = found.into_iter().map(|(worker, why)| (worker.rank, why));
        let news: Vec<(Rank, Absence)> = found.filter(is_news).collect();
        for (rank, why) in &news {
            self.event(gang::Event::Hookless(*rank, why.clone()));
        }
        let now = self.now;
        let is_asked = self.hooks.asked_until.take().is_some_and(|until| now <= until);
        let lines = match is_asked {
            _ if self.settings.verbosity > 0 => Hookless::groups(news),
            true => {
                let occasion = Occasion { now, outside: Some(Outside::Signal(SIGQUIT)) };
                that_matter(&self.gang, &self.standings(), occasion)
            }
            false => Vec::new(),
        };
        for line in lines {
            self.note(line.to_string());
        }
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
