//! Ranks that run Python without the interpreter hook: when to look for them, and what is printed of them.

use crate::absence::Absence;
use crate::gang::{self, Outside};
use crate::hookless::{Hookless, Occasion, that_matter};
use crate::ids::WorkerId;
use crate::job::machine::Job;
use crate::job::order::Order;
use crate::job::parts::looks::Purpose;

/// SIGQUIT, whose number is the same on every Linux.
const SIGQUIT: i32 = 3;

impl Job {
    /// Asks the agents which ranks run Python without the hook, when it is time. They answer if there are any.
    pub(in crate::job) fn look_for_hooks(&mut self) {
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
    pub(in crate::job) fn ask_for_hooks(&mut self, is_to_be_printed: bool) {
        if is_to_be_printed {
            self.hooks.ask(self.now);
        }
        self.send(Order::LookForHooks);
    }

    /// The answer of an agent.
    pub(in crate::job) fn hookless(&mut self, found: Vec<(WorkerId, Absence)>) {
        let is_news = |(worker, why): &(WorkerId, Absence)| {
            self.gang.ranks().get(worker.rank).is_some_and(|record| record.hookless.as_ref() != Some(why))
        };
        let news: Vec<(WorkerId, Absence)> = found.into_iter().filter(is_news).collect();
        for (worker, why) in &news {
            self.event(gang::Event::Hookless(*worker, why.clone()));
        }
        let now = self.now;
        let is_asked = self.hooks.is_asked(now);
        let lines = match is_asked {
            _ if self.settings.verbosity > 0 => {
                Hookless::groups(news.into_iter().map(|(worker, why)| (worker.rank, why)))
            }
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
