//! Decides when guard and agent of a node are given up (K-5): they were stopped, or do not end.
//!
//! The guard watches the agent; if the guard is gone or stopped, the guard's own parent does: the front, or a relay. A process is judged by its state, not
//! by its silence: one that is only slow is not given up.

use std::time::Duration;

use rankrun_sys::proc;

/// How often to check whether a process is stopped.
pub const LOOK_STEP: Duration = Duration::from_millis(250);
/// A process is given up after so many checks in a row that find it stopped: a second.
const LOOKS: u32 = 4;
/// How long a killed agent may take to end. After that it cannot be killed, and is given up.
const KILL_BOUND: Duration = Duration::from_secs(5);

/// What is known of guard and agent, and when to look again.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// Checks in a row that found the process stopped.
    guard: u32,
    agent: u32,
    /// When to check next; `None` while nothing is wrong.
    next: Option<Duration>,
    /// By when the agent must report the end.
    end_by: Option<Duration>,
    /// When we killed the agent.
    killed_at: Option<Duration>,
    /// Why the agent is lost, if known.
    pub(crate) why: Option<&'static str>,
}

/// The state of guard and agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// The guard has not ended.
    pub(crate) is_guarded: bool,
    pub(crate) guard_stopped: bool,
    /// `None`: there is no agent, or it is not known.
    pub(crate) agent_stopped: Option<bool>,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    KillAgent,
    KillGuard,
    /// The agent cannot be killed: it is left to the kernel.
    GiveUpAgent,
}

impl Watch {
    pub fn deadline(&self) -> Option<Duration> {
        let gone_by = self.killed_at.map(|at| at + KILL_BOUND);
        [self.next, self.end_by, gone_by].into_iter().flatten().min()
    }

    /// The guard is stopped, or gone: from now on both are checked.
    pub fn begin(&mut self, now: Duration) {
        self.next.get_or_insert(now + LOOK_STEP);
    }

    /// The agent was sent the order to end its workers, and has until then.
    pub fn expect_end(&mut self, by: Duration) {
        self.end_by = Some(self.end_by.map_or(by, |end| end.min(by)));
    }

    /// The agent has reported the end.
    pub fn is_over(&mut self) {
        self.end_by = None;
    }

    /// Decides what is due at `now`. `look` is asked only when it matters.
    pub(crate) fn tick(&mut self, now: Duration, look: impl FnOnce() -> Seen) -> Option<Act> {
        if self.killed_at.is_some_and(|at| at + KILL_BOUND <= now) {
            (self.killed_at, self.next, self.end_by) = (None, None, None);
            return Some(Act::GiveUpAgent);
        }
        if self.end_by.is_some_and(|by| by <= now) {
            self.end_by = None;
            return Some(self.kill(now, "its agent did not end the workers in time"));
        }
        if self.next.is_none_or(|next| next > now) {
            return None;
        }
        let seen = look();
        self.guard = count(self.guard, seen.guard_stopped);
        if seen.is_guarded && !seen.guard_stopped {
            (self.next, self.agent) = (None, 0);
            return None;
        }
        self.next = Some(now + LOOK_STEP);
        match seen.agent_stopped {
            Some(is_stopped) => {
                self.agent = count(self.agent, is_stopped);
                let is_due = self.agent >= LOOKS && self.killed_at.is_none();
                is_due.then(|| self.kill(now, "another process stopped its agent"))
            }
            None if self.guard >= LOOKS => {
                // No rank was started yet.
                self.why = Some("another process stopped its guard before it had started the agent");
                Some(Act::KillGuard)
            }
            None => None,
        }
    }

    /// At the end: decides whether to kill a guard that was stopped and so cannot exit.
    pub(crate) fn tick_guard(&mut self, is_stopped: bool) -> Option<Act> {
        self.guard = count(self.guard, is_stopped);
        (self.guard >= LOOKS).then_some(Act::KillGuard)
    }

    fn kill(&mut self, now: Duration, why: &'static str) -> Act {
        self.why.get_or_insert(why);
        self.killed_at = Some(now);
        Act::KillAgent
    }
}

fn count(looks: u32, is_stopped: bool) -> u32 {
    if is_stopped { looks + 1 } else { 0 }
}

/// Whether a process is stopped now.
pub(crate) fn is_stopped(pid: i32) -> bool {
    proc::process(pid).is_some_and(|process| process.state == 'T')
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: Seen = Seen { is_guarded: true, guard_stopped: false, agent_stopped: Some(false) };

    fn seen(guard_stopped: bool, agent_stopped: Option<bool>) -> Seen {
        Seen { guard_stopped, agent_stopped, ..WELL }
    }

    /// Checks whenever it is due for `time`, and returns the acts with their times.
    fn run(watch: &mut Watch, time: Duration, look: impl Fn(Duration) -> Seen) -> Vec<(Duration, Act)> {
        let mut done = Vec::new();
        while let Some(now) = watch.deadline().filter(|deadline| *deadline <= time) {
            done.extend(watch.tick(now, || look(now)).map(|act| (now, act)));
        }
        done
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn both_stopped_for_a_second_are_given_up() {
        let mut watch = Watch::default();
        assert_eq!(watch.deadline(), None, "nothing is looked at while nothing is wrong");
        watch.begin(ms(0));
        let done = run(&mut watch, ms(5_900), |_| seen(true, Some(true)));
        assert_eq!(done, [(ms(1_000), Act::KillAgent)]);
        assert_eq!(run(&mut watch, ms(6_100), |_| seen(true, Some(true))), [(ms(6_000), Act::GiveUpAgent)]);
    }

    #[test]
    fn a_stopped_guard_alone_is_only_watched_until_it_goes_on() {
        let mut watch = Watch::default();
        watch.begin(ms(0));
        let look = |now: Duration| if now < ms(10_000) { seen(true, Some(false)) } else { WELL };
        assert_eq!(run(&mut watch, ms(60_000), look), []);
        assert_eq!(watch.deadline(), None);
    }

    #[test]
    fn a_stop_that_does_not_last_is_forgotten() {
        let mut watch = Watch::default();
        watch.begin(ms(0));
        let look = |now: Duration| seen(true, Some(!now.as_millis().is_multiple_of(1_000)));
        assert_eq!(run(&mut watch, ms(10_000), look), []);
    }

    #[test]
    fn a_guard_that_is_stopped_without_an_agent_is_killed() {
        let mut watch = Watch::default();
        watch.begin(ms(0));
        let done = run(&mut watch, ms(1_100), |_| seen(true, None));
        assert_eq!(done, [(ms(1_000), Act::KillGuard)]);
        assert!(watch.why.is_some_and(|why| why.contains("before it had started")));
    }

    #[test]
    fn an_agent_without_a_guard_is_judged_by_its_state() {
        let mut watch = Watch::default();
        watch.begin(ms(0));
        let lost = Seen { is_guarded: false, ..WELL };
        assert_eq!(run(&mut watch, ms(60_000), |_| lost), []);
        let stopped = Seen { agent_stopped: Some(true), ..lost };
        assert_eq!(run(&mut watch, ms(62_000), |_| stopped)[0].1, Act::KillAgent);
    }

    #[test]
    fn an_agent_that_does_not_end_is_killed_at_the_earliest_bound() {
        let mut watch = Watch::default();
        watch.expect_end(ms(120_000));
        watch.expect_end(ms(30_000));
        watch.expect_end(ms(150_000));
        assert_eq!(run(&mut watch, ms(31_000), |_| WELL), [(ms(30_000), Act::KillAgent)]);
        let mut watch = Watch::default();
        watch.expect_end(ms(30_000));
        watch.is_over();
        assert_eq!(watch.deadline(), None);
    }
}
