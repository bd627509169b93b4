//! The time that a worker has from the first signal of a stop to SIGKILL, and how it is divided (docs/signals.md).
//!
//! * The first signal is the one that rankrun received, or `--stop-signal`. SIGTERM follows after [`GENTLE`].
//! * A worker that is writing files gets more time: SIGTERM waits, and after a failure SIGKILL waits too, up to
//!   `--grace-saving`. One that merely ignores signals gets neither.
//!
//! The agent measures what the worker's processes have done; this decides what that means.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::spec::job::StopPolicy;

pub const SIGHUP: i32 = 1;
pub const SIGINT: i32 = 2;
pub const SIGKILL: i32 = 9;
pub const SIGTERM: i32 = 15;

/// How long a first signal other than SIGTERM may take to work. A Python rank handles SIGINT at its next bytecode; one that
/// is blocked in an MPI call never does, and the user who pressed ^C must not wait for it.
pub const GENTLE: Duration = Duration::from_secs(2);
/// How often a stopping worker is checked, in a grace that is long enough.
pub const LOOK_STEP: Duration = Duration::from_secs(1);
/// The same in the shortest grace.
const LOOK_STEP_LEAST: Duration = Duration::from_millis(20);
/// Checks in a short grace.
const LOOKS: u32 = 5;
/// A worker counts as saving for so many checks after it was last seen to write: serialising the next part takes time.
const PAUSES: u32 = 3;

/// What the processes of a worker have done since it was started. Neither number ever decreases.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Bytes written to files.
    pub written: u64,
    /// CPU time.
    pub ran: Duration,
    /// One of them waits for a disk (state D), as in `fsync`.
    pub waits_for_disk: bool,
}

/// What a worker was doing at the last check before its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// There were not two checks to compare.
    #[default]
    Unknown,
    Idle,
    /// It used CPU time, which may be no more than a loop that waits for a message.
    Busy,
    /// It wrote files.
    Saving,
}

/// What rankrun did to end a worker, until its leader ended.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StopRecord {
    /// The signals that its leader, or the process that speaks for it, was sent, and when, on the clock of the node.
    pub signals: Vec<(i32, Duration)>,
    pub work: Work,
}

impl StopRecord {
    /// Whether this signal was sent by that time.
    pub fn was_sent(&self, signal: i32, by: Duration) -> bool {
        self.signals.iter().any(|(sent, at)| *sent == signal && *at <= by)
    }

    /// The last signal that was sent.
    pub fn last(&self) -> Option<i32> {
        self.signals.last().map(|(signal, _)| *signal)
    }

    /// The time that the worker had from the first signal to SIGKILL, if it was killed.
    pub fn killed_after(&self) -> Option<Duration> {
        let (_, first) = self.signals.first()?;
        let (_, killed) = self.signals.iter().find(|(signal, _)| *signal == SIGKILL)?;
        Some(killed.saturating_sub(*first))
    }
}

/// Why a worker is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StopWhy {
    /// Another rank of the gang has failed.
    GangFailed,
    /// rankrun was asked to stop by this signal.
    Signal(i32),
    /// Output could not be written for longer than `--drain`.
    OutputFailed,
    /// `--timeout` passed.
    Timeout,
    /// The job is to go on later.
    Planned,
    /// No rank did anything for longer than `--stall`.
    Hang,
    /// The front is gone.
    FrontLost,
    /// The guard is gone.
    GuardLost,
    /// What connects the ranks is gone: they would wait for it for ever.
    WireUpLost,
    /// The job is over: stops what was left.
    Over,
}

/// An order to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stop {
    pub why: StopWhy,
    /// The time from the first signal to SIGKILL.
    pub grace: Duration,
}

impl Stop {
    /// The first signal of a stop.
    pub fn first_signal(&self, policy: &StopPolicy) -> i32 {
        policy.signal.unwrap_or(match self.why {
            StopWhy::Signal(signal @ (SIGHUP | SIGINT)) => signal,
            StopWhy::Signal(_)
            | StopWhy::GangFailed
            | StopWhy::OutputFailed
            | StopWhy::Timeout
            | StopWhy::Planned
            | StopWhy::Hang
            | StopWhy::FrontLost
            | StopWhy::GuardLost
            | StopWhy::WireUpLost
            | StopWhy::Over => SIGTERM,
        })
    }

    /// The longest that a worker may have from the first signal to SIGKILL: as long as it is saving, after a failure, at a planned stop,
    /// and when its leader has ended by itself. A scheduler that stops the job has its own limit, and an agent that has lost its
    /// front must end.
    pub fn longest(&self, policy: &StopPolicy) -> Duration {
        match self.why {
            StopWhy::GangFailed | StopWhy::Timeout | StopWhy::Planned | StopWhy::Hang | StopWhy::Over
                if !self.grace.is_zero() =>
            {
                self.grace.max(policy.grace_saving)
            }
            StopWhy::GangFailed
            | StopWhy::Timeout
            | StopWhy::Planned
            | StopWhy::Hang
            | StopWhy::Signal(_)
            | StopWhy::OutputFailed
            | StopWhy::FrontLost
            | StopWhy::GuardLost
            | StopWhy::WireUpLost
            | StopWhy::Over => self.grace,
        }
    }

    /// When SIGTERM follows a first signal that is another, counted from that.
    pub fn terminates_after(&self, policy: &StopPolicy) -> Option<Duration> {
        (self.first_signal(policy) != SIGTERM).then(|| GENTLE.min(self.grace / 2))
    }
}

/// What is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    Nothing,
    /// Look at what the worker does.
    Look,
    Terminate,
    Kill,
}

/// The grace of one worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grace {
    pub stop: Stop,
    pub since: Duration,
    /// When SIGTERM follows a first signal that was another.
    terminate_at: Option<Duration>,
    /// When SIGKILL is due.
    pub until: Duration,
    /// The latest time for SIGKILL.
    longest: Duration,
    next_look: Option<Duration>,
    /// A check was requested, and the agent has not answered.
    is_looking: bool,
    step: Duration,
    /// The last check.
    last: Option<(Duration, Progress)>,
    /// When it was last seen to have written.
    wrote_at: Option<Duration>,
    work: Work,
}

impl Grace {
    /// A stop begins: its first signal is being sent.
    pub fn of(now: Duration, stop: Stop, policy: &StopPolicy) -> Grace {
        let step = (stop.grace / LOOKS).clamp(LOOK_STEP_LEAST, LOOK_STEP);
        Grace {
            stop,
            since: now,
            terminate_at: stop.terminates_after(policy).map(|after| now + after),
            until: now + stop.grace,
            longest: now + stop.longest(policy),
            next_look: Some(now + step),
            is_looking: false,
            step,
            last: None,
            wrote_at: None,
            work: Work::Unknown,
        }
    }

    /// The grace of what a leader has left that ended by itself: that of a failure.
    pub fn of_rest(now: Duration, policy: &StopPolicy) -> Grace {
        let stop = Stop { why: StopWhy::Over, grace: policy.grace_failure };
        Grace::of(now, stop, policy).without_leader(now, policy)
    }

    /// Another order to stop: it can only shorten the grace.
    pub fn and(self, now: Duration, later: Stop, policy: &StopPolicy) -> Grace {
        let gentle = GENTLE.min(later.grace / 2);
        Grace {
            until: self.until.min(now + later.grace),
            longest: self.longest.min(now + later.longest(policy)),
            terminate_at: self.terminate_at.map(|at| at.min(now + gentle)),
            next_look: self.next_look.or(Some(now + self.step)),
            ..self
        }
    }

    /// The leader is gone: the rest gets SIGTERM after the linger. Whether it is saving must be known by then.
    pub fn without_leader(self, now: Duration, policy: &StopPolicy) -> Grace {
        // Two looks are within the linger.
        let first = now + self.step.min(policy.linger / 4);
        Grace { terminate_at: None, next_look: Some(self.next_look.map_or(first, |at| at.min(first))), ..self }
    }

    /// Until when the linger of a rest that is saving goes on, if it does: a part of the time is left for the effect of SIGTERM.
    pub fn lingers(&self, now: Duration) -> Option<Duration> {
        let latest = self.since + self.longest.saturating_sub(self.since) / 5 * 4;
        (self.is_saving(now) && now < latest).then(|| latest.min(now + self.step))
    }

    /// What the worker was doing at the last check.
    pub fn work(&self) -> Work {
        self.work
    }

    /// When something is due.
    pub fn deadline(&self) -> Duration {
        // Whether the worker is writing decides on SIGTERM: the answer comes first.
        let terminate_at = self.terminate_at.filter(|_| !self.is_looking);
        [terminate_at, self.next_look].into_iter().flatten().fold(self.until, Duration::min)
    }

    /// When the next look is due.
    pub fn next_look(&self) -> Option<Duration> {
        self.next_look
    }

    pub fn tick(&mut self, now: Duration) -> Due {
        if now >= self.until {
            return Due::Kill;
        }
        if self.next_look.is_some_and(|at| now >= at) {
            self.next_look = Some(now + self.step);
            self.is_looking = true;
            return Due::Look;
        }
        match self.terminate_at {
            Some(at) if now >= at && !self.is_looking => {
                let latest = self.latest_terminate();
                let is_to_wait = self.is_saving(now) && now < latest;
                self.terminate_at = is_to_wait.then(|| latest.min(now + self.step));
                if is_to_wait { Due::Nothing } else { Due::Terminate }
            }
            Some(_) | None => Due::Nothing,
        }
    }

    /// The agent has checked.
    pub fn seen(&mut self, now: Duration, progress: Progress) {
        self.is_looking = false;
        if let Some((looked_at, before)) = self.last.replace((now, progress)) {
            let is_flushing = progress.waits_for_disk && self.wrote_at.is_some();
            let has_run = progress.ran.saturating_sub(before.ran) * 20 >= now.saturating_sub(looked_at);
            self.work = match (progress.written > before.written || is_flushing, has_run) {
                (true, _) => Work::Saving,
                (false, true) => Work::Busy,
                (false, false) => Work::Idle,
            };
            if self.work == Work::Saving {
                self.wrote_at = Some(now);
                self.until = self.until.max(self.longest.min(now + self.step * PAUSES));
            }
        }
    }

    /// How long SIGTERM may wait for a worker that is saving: a part of the grace is left for its effect, also of a grace
    /// that a later order has shortened.
    fn latest_terminate(&self) -> Duration {
        self.since + self.stop.grace.min(self.until.saturating_sub(self.since)) / 5 * 4
    }

    /// Whether the worker was seen to write files lately.
    pub fn is_saving(&self, now: Duration) -> bool {
        self.wrote_at.is_some_and(|at| now < at + self.step * PAUSES)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: StopPolicy = StopPolicy {
        signal: None,
        grace_failure: Duration::from_secs(5),
        grace_outside: Duration::from_secs(25),
        grace_saving: Duration::from_secs(30),
        linger: Duration::from_secs(2),
        scope: crate::spec::job::StopScope::Leader,
        descendants: crate::spec::job::Descendants::End,
    };

    /// Lives through a stop. `work` is what a look at this time finds. Returns when SIGTERM and SIGKILL were sent.
    fn live(stop: Stop, work: impl Fn(Duration) -> Progress) -> (Option<Duration>, Duration, Work) {
        live_on(Grace::of(Duration::ZERO, stop, &POLICY), Duration::ZERO, work)
    }

    fn live_on(
        mut grace: Grace,
        mut now: Duration,
        work: impl Fn(Duration) -> Progress,
    ) -> (Option<Duration>, Duration, Work) {
        let mut terminated = None;
        loop {
            match grace.tick(now) {
                Due::Kill => return (terminated, now, grace.work()),
                Due::Terminate => terminated = Some(now),
                Due::Look => grace.seen(now, work(now)),
                Due::Nothing => {}
            }
            now = now.max(grace.deadline());
        }
    }

    fn failed(seconds: u64) -> Stop {
        Stop { why: StopWhy::GangFailed, grace: Duration::from_secs(seconds) }
    }

    fn interrupted(seconds: u64) -> Stop {
        Stop { why: StopWhy::Signal(SIGINT), grace: Duration::from_secs(seconds) }
    }

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn written(bytes: u64) -> Progress {
        Progress { written: bytes, ..Progress::default() }
    }

    #[test]
    fn after_a_failure_a_worker_that_saves_has_longer_and_one_that_is_merely_busy_has_not() {
        let busy = |now| Progress { ran: now, ..Progress::default() };
        assert_eq!(live(failed(5), |_| written(7)), (None, s(5), Work::Idle));
        assert_eq!(live(failed(5), busy), (None, s(5), Work::Busy));
        assert_eq!(live(failed(5), |now| written(now.as_secs())), (None, s(30), Work::Saving), "and no longer");
        // The last part is written at 9 s.
        let part = |now: Duration| written(now.as_secs().min(9));
        assert_eq!(live(failed(5), part), (None, s(12), Work::Idle));
        // It waits for a disk when all is written.
        let flushing = |now: Duration| Progress { waits_for_disk: now < s(20), ..part(now) };
        assert_eq!(live(failed(5), flushing).1, s(22));
        let stuck = |_| Progress { waits_for_disk: true, ..Progress::default() };
        assert_eq!(live(failed(5), stuck).1, s(5), "it has never written");
    }

    #[test]
    fn a_stop_from_outside_is_not_made_longer() {
        let saving = |now: Duration| written(now.as_secs());
        let stop = Stop { why: StopWhy::Signal(SIGTERM), grace: s(25) };
        assert_eq!(live(stop, saving), (None, s(25), Work::Saving));
        assert_eq!(live(failed(0), saving).1, s(0));
    }

    #[test]
    fn sigterm_waits_for_a_worker_that_saves_and_leaves_it_some_time() {
        assert_eq!(live(interrupted(25), |_| written(7)), (Some(s(2)), s(25), Work::Idle));
        assert_eq!(live(interrupted(25), |now| written(now.as_secs())), (Some(s(20)), s(25), Work::Saving));
        assert_eq!(live(interrupted(25), |now| written(now.as_secs().min(6))).0, Some(s(9)));
        let explicit = StopPolicy { signal: Some(10), ..POLICY };
        assert_eq!((failed(5).first_signal(&explicit), failed(5).terminates_after(&explicit)), (10, Some(s(2))));
        assert_eq!(failed(5).terminates_after(&POLICY), None);
    }

    /// With checks that are not much shorter than the grace, the next check after 4/5 of it is at its end.
    #[test]
    fn sigterm_comes_before_the_kill_also_in_a_short_grace() {
        let stop = Stop { why: StopWhy::Signal(SIGINT), grace: Duration::from_millis(80) };
        let saving = |now: Duration| written(now.as_millis() as u64);
        let expected = (Some(Duration::from_millis(64)), Duration::from_millis(80), Work::Saving);
        assert_eq!(live(stop, saving), expected);
    }

    #[test]
    fn an_order_that_shortens_the_grace_leaves_time_for_sigterm() {
        for grace in [Duration::from_millis(500), s(5)] {
            let mut stopping = Grace::of(Duration::ZERO, interrupted(25), &POLICY);
            let later = Stop { why: StopWhy::FrontLost, grace };
            stopping = stopping.and(s(1), later, &POLICY);
            let (terminated, killed, _) = live_on(stopping, s(1), |now| written(now.as_millis() as u64));
            assert_eq!(killed, s(1) + grace);
            assert!(terminated.is_some_and(|at| at < killed), "{terminated:?} in a grace of {grace:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_worker_does_it_is_killed_between_the_grace_and_the_longest(
            looks in proptest::collection::vec((0u64..3, 0u64..2000, any::<bool>()), 1..40),
            grace in 0u64..40_000,
            why in prop_oneof![Just(StopWhy::GangFailed), Just(StopWhy::Signal(SIGINT)), Just(StopWhy::Timeout)],
        ) {
            let stop = Stop { why, grace: Duration::from_millis(grace) };
            let seen = std::cell::RefCell::new((looks.into_iter().cycle(), Progress::default()));
            let (terminated, killed, _) = live(stop, |_| {
                let (looks, progress) = &mut *seen.borrow_mut();
                let (written, ran, waits_for_disk) = looks.next().expect("it cycles");
                progress.written += written;
                progress.ran += Duration::from_millis(ran);
                progress.waits_for_disk = waits_for_disk;
                *progress
            });
            prop_assert!(killed >= stop.grace && killed <= stop.longest(&POLICY), "killed after {killed:?}");
            prop_assert!(grace == 0 || (why == StopWhy::Signal(SIGINT)) == terminated.is_some());
            prop_assert!(terminated.is_none_or(|at| at < killed));
        }
    }
}
