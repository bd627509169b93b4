//! What a worker is doing, since when, until when, and why: for `rankrun status`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::Pid;
use crate::status::WorkerStatus;
use crate::worker::{Outcome, State, StopWhy, Worker};

/// What a worker is doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doing {
    NotStarted,
    /// Its program is being started.
    Starting,
    Running,
    /// Its leader was sent the signal of a stop.
    Stopping,
    /// Its leader has ended, and other processes have not.
    Lingering,
    /// These were sent SIGTERM.
    Terminating,
    /// The kernel is writing a core file.
    DumpingCore,
    /// It was sent SIGKILL.
    Killing,
    /// No process is left.
    Ended,
    /// The same, and it is to be started again. Only the front knows that.
    Waiting,
}

/// The state of a worker. Times are on the clock of its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Condition {
    pub doing: Doing,
    pub since: Option<Duration>,
    /// When rankrun takes the next step: mostly SIGKILL.
    pub until: Option<Duration>,
    /// Why it is being stopped.
    pub why: Option<StopWhy>,
    /// Its leader, until that has ended.
    pub pid: Option<Pid>,
    /// How its leader ended.
    pub status: Option<WorkerStatus>,
    /// It is seen to write files, for which it gets more time.
    pub is_saving: bool,
}

impl Condition {
    fn new(doing: Doing, since: Option<Duration>, until: Option<Duration>) -> Condition {
        Condition { doing, since, until, why: None, pid: None, status: None, is_saving: false }
    }

    /// That of a worker.
    pub fn of(worker: &Worker, now: Duration) -> Condition {
        let condition = match *worker.state() {
            State::Pending => Condition::new(Doing::NotStarted, None, None),
            State::Spawning { since, killed: Some(_), until, .. } => Condition::new(Doing::Killing, Some(since), until),
            State::Spawning { since, stop, until, .. } => {
                let why = stop.map(|stop| stop.why);
                Condition { why, ..Condition::new(Doing::Starting, Some(since), until) }
            }
            State::Running { since, .. } => Condition::new(Doing::Running, Some(since), None),
            State::Stopping { grace, .. } => Condition::new(Doing::Stopping, Some(grace.since), Some(grace.until)),
            State::Lingering { status, since, until, .. } => {
                Condition { status: Some(status), ..Condition::new(Doing::Lingering, Some(since), until) }
            }
            State::Terminating { status, since, grace } => {
                Condition { status: Some(status), ..Condition::new(Doing::Terminating, Some(since), Some(grace.until)) }
            }
            State::DumpingCore { since, until, .. } => Condition::new(Doing::DumpingCore, Some(since), Some(until)),
            State::KillingLeader { status, since, until, .. } | State::KillingAll { status, since, until, .. } => {
                Condition { status, ..Condition::new(Doing::Killing, Some(since), Some(until)) }
            }
            State::Gone { outcome, .. } => {
                let status = if let Outcome::Ended(status) = outcome { Some(status) } else { None };
                Condition { status, ..Condition::new(Doing::Ended, None, None) }
            }
        };
        let grace = worker.grace();
        Condition {
            why: condition.why.or(grace.map(|grace| grace.stop.why)),
            is_saving: grace.is_some_and(|grace| grace.is_saving(now)),
            pid: worker.leader(),
            ..condition
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::job::StopPolicy;
    use crate::worker::{Event, Stop};

    #[test]
    fn every_state_of_a_stop_says_since_when_and_until_when() {
        let (policy, ms) = (StopPolicy::default(), Duration::from_millis);
        let mut worker = Worker::default();
        let mut at = |now: u64, event| {
            worker.handle(ms(now), event, &policy, &mut Vec::new());
            Condition::of(&worker, ms(now))
        };
        assert_eq!(at(0, Event::Tick).doing, Doing::NotStarted);
        assert_eq!(at(1, Event::SpawnBegun).doing, Doing::Starting);
        let running = at(2, Event::Spawned(Pid(7)));
        assert_eq!(running, Condition { pid: Some(Pid(7)), ..Condition::new(Doing::Running, Some(ms(2)), None) });
        let stop = Stop { why: StopWhy::Signal(15), grace: ms(1000) };
        let stopping = at(500, Event::Stop(stop));
        assert_eq!((stopping.doing, stopping.why), (Doing::Stopping, Some(StopWhy::Signal(15))));
        assert_eq!((stopping.since, stopping.until), (Some(ms(500)), Some(ms(1500))));
        let killing = at(1600, Event::Kill);
        assert_eq!((killing.doing, killing.since), (Doing::Killing, Some(ms(1600))));
        assert!(killing.until > killing.since);
    }
}
