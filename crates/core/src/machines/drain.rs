//! Which output is given up, and when: a destination that takes nothing holds no end up (K-6).
//!
//! The destinations have `--drain` once all ranks have ended. Then log files are given up, and what a pipe or a terminal has not taken is
//! kept beside the report. Only if that gets on no more, what the agents still have is given up too.

use std::time::Duration;

/// How long keeping the output that a destination did not take may last, as long as output comes.
const KEEPING_BOUND: Duration = Duration::from_secs(60);
/// Without output for so long meanwhile, the files or the agent's spool do not answer.
const KEEPING_STEP: Duration = Duration::from_secs(3);
/// How long the destinations have for output that waited for log files.
const RELEASE_BOUND: Duration = Duration::from_secs(3);

/// What the destinations are like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Output {
    /// One of them does not take what it has been given.
    pub is_full: bool,
    /// Log files have unwritten bytes.
    pub is_logging: bool,
    /// What they do not take is kept beside the report; it can be.
    pub is_kept: bool,
    pub can_be_kept: bool,
    /// Some of it is lost.
    pub is_lost: bool,
    /// The bytes that have come from the ranks.
    pub received: u64,
}

/// What is to be done with output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// It could not be written: the job has failed if nothing else has.
    Fail,
    GiveUpLogs,
    GiveUpResults,
    /// Keep it beside the report.
    Keep,
    /// Give up what the agents have.
    GiveUpAgents,
}

/// The wait for the destinations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drain {
    /// `--drain`.
    limit: Duration,
    until: Option<Duration>,
    keeping: Option<Keeping>,
    /// The user wants to wait no longer.
    is_hurried: bool,
    has_given_up_agents: bool,
    /// No agent is connected any more.
    is_last: bool,
}

/// Output is being kept beside the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Keeping {
    until: Duration,
    /// Bytes received at the last look.
    received: Option<u64>,
}

impl Drain {
    pub fn new(limit: Duration) -> Drain {
        Drain { limit, until: None, keeping: None, is_hurried: false, has_given_up_agents: false, is_last: false }
    }

    /// After this time, what a destination has not taken is given up.
    pub fn deadline(&self) -> Option<Duration> {
        self.until
    }

    pub fn is_hurried(&self) -> bool {
        self.is_hurried
    }

    /// Whether an agent was given up while it still had output.
    pub fn has_given_up_agents(&self) -> bool {
        self.has_given_up_agents
    }

    /// All ranks have ended.
    pub fn begin(&mut self, now: Duration) {
        self.until = Some(now + self.limit);
    }

    /// Nothing is to be written any more, or another attempt begins.
    pub fn end(&mut self) {
        (self.until, self.keeping) = (None, None);
    }

    /// The user wants to wait no longer.
    pub fn hurry(&mut self, now: Duration) {
        (self.is_hurried, self.until) = (true, Some(now));
    }

    /// No agent is connected any more.
    pub fn ranks_are_gone(&mut self) {
        self.is_last = true;
    }

    /// A destination has failed. At the end the others still have their time.
    pub fn failed(&mut self, now: Duration) {
        if !self.is_last {
            self.until = Some(now);
        }
    }

    /// Log files were given up: the destinations get the output that waited for them.
    pub fn released(&mut self, now: Duration) {
        self.until = self.until.map(|until| until.max(now + RELEASE_BOUND));
    }

    /// What is to be done now, while agents are connected. `is_over`: all ranks have ended.
    pub fn due(&mut self, now: Duration, output: Output, is_over: bool) -> Vec<Act> {
        let mut acts = Vec::new();
        if self.until.is_none_or(|until| now < until) || self.give_up_logs(now, output, &mut acts) {
            return acts;
        }
        let keeps = output.can_be_kept && !self.is_hurried;
        if keeps {
            acts.push(Act::Keep);
        }
        if !is_over {
            self.until = None;
            return acts;
        }
        let keeping = self.keeping.get_or_insert(Keeping { until: now + KEEPING_BOUND, received: None });
        let is_progress = keeping.received.replace(output.received) != Some(output.received);
        let may_wait = is_progress && now < keeping.until && !output.is_lost;
        if (keeps || output.is_kept) && !self.is_hurried && (may_wait || !output.is_kept) {
            // Writing the rest to files takes no time, unless they do not answer.
            self.until = Some(now + KEEPING_STEP);
            return acts;
        }
        self.has_given_up_agents = true;
        acts.extend([Act::Fail, Act::GiveUpAgents]);
        acts
    }

    /// The same, when no agent is connected any more; and whether nothing more is waited for then. `are_logs_stuck`: log files
    /// will never be written.
    pub fn due_at_end(&mut self, now: Duration, output: Output, are_logs_stuck: bool) -> (Vec<Act>, bool) {
        let until = *self.until.get_or_insert(now + self.limit);
        if are_logs_stuck && !self.is_hurried {
            self.until = Some(until.min(now + RELEASE_BOUND));
            return (vec![Act::GiveUpLogs, Act::Fail], false);
        }
        if now < until && !self.is_hurried {
            return (Vec::new(), false);
        }
        let mut acts = vec![Act::GiveUpResults];
        if self.give_up_logs(now, output, &mut acts) {
            return (acts, false);
        }
        if output.can_be_kept {
            acts.push(Act::Keep);
        }
        (acts, true)
    }

    /// Log files have had their time. Returns whether the other destinations have some more for that.
    fn give_up_logs(&mut self, now: Duration, output: Output, acts: &mut Vec<Act>) -> bool {
        if output.is_full {
            acts.push(Act::Fail);
        }
        if output.is_logging {
            acts.extend([Act::GiveUpLogs, Act::Fail]);
        }
        let waits = output.is_logging && !self.is_hurried;
        if waits {
            self.until = Some(now + RELEASE_BOUND);
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAN: Output =
        Output { is_full: false, is_logging: false, is_kept: false, can_be_kept: true, is_lost: false, received: 0 };

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn begun() -> Drain {
        let mut drain = Drain::new(s(10));
        assert_eq!(drain.due(s(99), CAN, true), []);
        drain.begin(s(100));
        assert_eq!(drain.due(s(109), CAN, true), []);
        drain
    }

    #[test]
    fn what_is_not_taken_is_kept_as_long_as_output_comes() {
        let mut drain = begun();
        assert_eq!(drain.due(s(110), CAN, true), [Act::Keep]);
        for turn in 1..=18 {
            let kept = Output { is_kept: true, received: turn, ..CAN };
            assert_eq!(drain.due(s(110 + 3 * turn), kept, true), [Act::Keep], "{turn}");
        }
        assert!(!drain.has_given_up_agents());
        // After a minute it is enough.
        let acts = [Act::Keep, Act::Fail, Act::GiveUpAgents];
        assert_eq!(drain.due(s(170), Output { is_kept: true, received: 99, ..CAN }, true), acts);
        assert!(drain.has_given_up_agents());
    }

    #[test]
    fn agents_are_given_up_where_nothing_comes_or_nothing_can_be_kept() {
        let mut drain = begun();
        assert_eq!(drain.due(s(110), CAN, true), [Act::Keep]);
        assert_eq!(drain.due(s(113), Output { is_kept: true, received: 5, ..CAN }, true), [Act::Keep]);
        let acts = [Act::Keep, Act::Fail, Act::GiveUpAgents];
        assert_eq!(drain.due(s(116), Output { is_kept: true, received: 5, ..CAN }, true), acts);
        let mut drain = begun();
        assert_eq!(drain.due(s(110), Output { can_be_kept: false, ..CAN }, true), [Act::Fail, Act::GiveUpAgents]);
    }

    #[test]
    fn a_rank_that_runs_keeps_its_agent() {
        let mut drain = begun();
        assert_eq!(drain.due(s(110), Output { is_full: true, ..CAN }, false), [Act::Fail, Act::Keep]);
        assert_eq!(drain.deadline(), None);
    }

    #[test]
    fn log_files_go_first_and_the_others_have_some_seconds_more() {
        let mut drain = begun();
        let logging = Output { is_logging: true, ..CAN };
        assert_eq!(drain.due(s(110), logging, true), [Act::GiveUpLogs, Act::Fail]);
        assert_eq!(drain.due(s(112), CAN, true), []);
        assert_eq!(drain.due(s(113), CAN, true), [Act::Keep]);
        let mut drain = begun();
        drain.hurry(s(101));
        assert_eq!(drain.due(s(101), logging, true), [Act::GiveUpLogs, Act::Fail, Act::Fail, Act::GiveUpAgents]);
    }

    #[test]
    fn at_the_end_all_of_the_drain_is_waited_and_then_nothing() {
        let mut drain = Drain::new(s(10));
        assert_eq!(drain.due_at_end(s(0), CAN, false), (vec![], false));
        drain.ranks_are_gone();
        drain.failed(s(5));
        assert_eq!(drain.due_at_end(s(9), CAN, false), (vec![], false));
        assert_eq!(drain.due_at_end(s(10), CAN, false), (vec![Act::GiveUpResults, Act::Keep], true));
        let mut stuck = Drain::new(s(10));
        assert_eq!(stuck.due_at_end(s(0), CAN, true), (vec![Act::GiveUpLogs, Act::Fail], false));
        assert_eq!(stuck.deadline(), Some(s(3)));
        let mut hurried = Drain::new(s(10));
        hurried.hurry(s(1));
        let logging = Output { is_logging: true, is_full: true, can_be_kept: false, ..CAN };
        let acts = vec![Act::GiveUpResults, Act::Fail, Act::GiveUpLogs, Act::Fail];
        assert_eq!(hurried.due_at_end(s(1), logging, true), (acts, true));
    }
}
