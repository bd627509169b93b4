//! The state machine of a worker, from its spawn until none of its processes is alive (docs/architecture.md).
//!
//! The agent feeds it events and performs its effects; it has neither clock nor process table. It keeps:
//! * **K-3** a stop is top-down: first the leader, so that what it needs for a checkpoint stays alive; then, when it is
//!   gone, what it left; SIGKILL in two steps.
//! * **K-4** a worker is gone only when its boundary is empty.
//! * **K-5** every wait has a bound: each state but `Running` (and a wait that the user asked for) has a deadline.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::grace::{Due, Grace, Progress, SIGTERM};
pub use crate::grace::{Stop, StopWhy};
use crate::ids::Pid;
use crate::spec::job::{Descendants, StopPolicy, StopScope};
use crate::status::WorkerStatus;

/// The time from the SIGKILL of a leader to that of the rest: processes that end on EOF (Python's resource tracker) can
/// clean up.
pub const STROKE_GAP: Duration = Duration::from_millis(200);
/// How often SIGKILL is repeated while a boundary is not empty: forks may have slipped through a walk.
pub const KILL_REPEAT: Duration = Duration::from_millis(20);
/// How long after SIGKILL a boundary may stay populated before it is reported as left behind.
pub const KILL_BOUND: Duration = Duration::from_secs(5);
/// How long a core dump may take before it is cut off.
pub const CORE_DUMP_BOUND: Duration = Duration::from_secs(60);
/// How often a core dump is checked.
pub const CORE_DUMP_STEP: Duration = Duration::from_millis(250);

/// How a worker ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// It was stopped before it was started.
    NeverStarted,
    SpawnFailed,
    Ended(WorkerStatus),
    /// Its leader could not be killed within the bound.
    Unkillable,
}

/// The state of a worker: what it does, since when, until when, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Pending,
    Spawning {
        since: Duration,
        /// A stop that came while the spawn was under way.
        stop: Option<Stop>,
        /// When the kill of the child that is being started was ordered: it may be stopped, or hang before its exec.
        killed: Option<Duration>,
        /// When to kill it, or to repeat that.
        until: Option<Duration>,
    },
    Running {
        pid: Pid,
        since: Duration,
    },
    /// The leader was sent the stop signal.
    Stopping {
        pid: Pid,
        grace: Grace,
    },
    /// The leader is gone; what it left has until `until` to end by itself (`None`: no limit).
    Lingering {
        status: WorkerStatus,
        since: Duration,
        until: Option<Duration>,
        /// The worker has been ordered to stop.
        stopped: bool,
        grace: Option<Grace>,
    },
    /// The leader is gone; what it left has been sent SIGTERM.
    Terminating {
        status: WorkerStatus,
        since: Duration,
        grace: Grace,
    },
    /// The kernel is writing the leader's core file; the leader is killed after that.
    DumpingCore {
        pid: Pid,
        since: Duration,
        next: Duration,
        until: Duration,
    },
    /// First step: the leader has been killed.
    KillingLeader {
        pid: Pid,
        status: Option<WorkerStatus>,
        since: Duration,
        until: Duration,
    },
    /// Second step: everything has been killed.
    KillingAll {
        status: Option<WorkerStatus>,
        since: Duration,
        next: Duration,
        until: Duration,
    },
    Gone {
        outcome: Outcome,
        /// Some of its processes could not be killed within the bound.
        left: bool,
    },
}

/// An event of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    SpawnBegun,
    Spawned(Pid),
    SpawnFailed,
    LeaderEnded(WorkerStatus),
    /// No process of the worker is alive (K-4).
    BoundaryEmpty,
    /// What is left of the worker is idle: it will not end by itself soon.
    BoundaryIdle,
    /// The answer to [`Effect::LookAtWork`].
    Progress(Progress),
    Stop(Stop),
    /// Kill at once.
    Kill,
    /// The leader was not killed: its core is being written.
    CoreDumpSeen,
    /// The deadline may have passed.
    Tick,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send this signal, then SIGCONT, to the processes of the scope.
    Terminate(StopScope, i32),
    /// SIGTERM and SIGCONT to all that the leader left.
    TerminateRest,
    /// Look at what the worker's processes have done; `Progress` is to follow.
    LookAtWork,
    /// SIGKILL to the child that is still on its way to its exec.
    KillSpawning,
    /// SIGKILL to the leader, unless its core is being written: then `CoreDumpSeen` is to follow.
    KillLeader,
    /// SIGKILL to the whole boundary.
    KillAll,
    /// Check whether the boundary is empty; an event with the answer follows.
    LookAtBoundary,
    /// Release what is left: it outlives the job.
    Release,
    /// The worker is gone. Emitted once.
    Gone,
}

/// A worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Worker {
    state: State,
}

impl Default for Worker {
    fn default() -> Self {
        Worker { state: State::Pending }
    }
}

impl Worker {
    /// Processes that are left after all workers are gone, and that belong to no worker: treated as if a leader had
    /// left them.
    pub fn orphans(now: Duration, policy: &StopPolicy, stop: Option<Stop>) -> Worker {
        let mut worker = Worker { state: State::Running { pid: Pid(0), since: now } };
        let mut ignored = Vec::new();
        worker.handle(now, Event::LeaderEnded(WorkerStatus::Exited { code: 0 }), policy, &mut ignored);
        if let Some(stop) = stop {
            worker.handle(now, Event::Stop(stop), policy, &mut ignored);
        }
        worker
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone { .. })
    }

    /// The leader's pid, while it is not reaped.
    pub fn leader(&self) -> Option<Pid> {
        match self.state {
            State::Running { pid, .. }
            | State::Stopping { pid, .. }
            | State::DumpingCore { pid, .. }
            | State::KillingLeader { pid, status: None, .. } => Some(pid),
            State::Pending
            | State::Spawning { .. }
            | State::Lingering { .. }
            | State::Terminating { .. }
            | State::KillingLeader { .. }
            | State::KillingAll { .. }
            | State::Gone { .. } => None,
        }
    }

    /// Whether the leader is gone and other processes are left.
    pub fn awaits_boundary(&self) -> bool {
        match self.state {
            State::Lingering { .. }
            | State::Terminating { .. }
            | State::KillingLeader { status: Some(_), .. }
            | State::KillingAll { .. } => true,
            State::Pending
            | State::Spawning { .. }
            | State::Running { .. }
            | State::Stopping { .. }
            | State::DumpingCore { .. }
            | State::KillingLeader { .. }
            | State::Gone { .. } => false,
        }
    }

    /// Whether idleness of what is left matters.
    pub fn awaits_idle(&self) -> bool {
        matches!(self.state, State::Lingering { stopped: true, .. })
    }

    /// Its grace, once it was ordered to stop.
    pub fn grace(&self) -> Option<&Grace> {
        match &self.state {
            State::Stopping { grace, .. } | State::Terminating { grace, .. } => Some(grace),
            State::Lingering { grace, .. } => grace.as_ref(),
            State::Pending
            | State::Spawning { .. }
            | State::Running { .. }
            | State::DumpingCore { .. }
            | State::KillingLeader { .. }
            | State::KillingAll { .. }
            | State::Gone { .. } => None,
        }
    }

    /// When `Tick` is due.
    pub fn deadline(&self) -> Option<Duration> {
        match self.state {
            State::Pending | State::Running { .. } | State::Gone { .. } => None,
            State::Spawning { until, .. } => until,
            State::Stopping { grace, .. } | State::Terminating { grace, .. } => Some(grace.deadline()),
            State::KillingLeader { until, .. } => Some(until),
            State::Lingering { until, grace, .. } => {
                [until, grace.and_then(|grace| grace.next_look())].into_iter().flatten().min()
            }
            State::DumpingCore { next, until, .. } | State::KillingAll { next, until, .. } => Some(next.min(until)),
        }
    }

    /// Handles one event; appends to `effects`.
    pub fn handle(&mut self, now: Duration, event: Event, policy: &StopPolicy, effects: &mut Vec<Effect>) {
        let before = self.is_gone();
        self.state = next(self.state, now, event, policy, effects);
        if !before && self.is_gone() {
            effects.push(Effect::Gone);
        }
    }
}

fn next(state: State, now: Duration, event: Event, policy: &StopPolicy, effects: &mut Vec<Effect>) -> State {
    match state {
        State::Pending => match event {
            Event::SpawnBegun => State::Spawning { since: now, stop: None, killed: None, until: None },
            Event::Stop(_) | Event::Kill => State::Gone { outcome: Outcome::NeverStarted, left: false },
            Event::Spawned(_)
            | Event::SpawnFailed
            | Event::LeaderEnded(_)
            | Event::BoundaryEmpty
            | Event::BoundaryIdle
            | Event::Progress(_)
            | Event::CoreDumpSeen
            | Event::Tick => state,
        },
        State::Spawning { since, stop, killed, until } => match event {
            Event::Spawned(pid) if killed.is_some() => kill_leader(now, pid, effects),
            Event::Spawned(pid) => match stop {
                Some(stop) => stop_leader(now, pid, stop, policy, effects),
                None => State::Running { pid, since: now },
            },
            Event::SpawnFailed => State::Gone { outcome: Outcome::SpawnFailed, left: false },
            Event::Stop(stop) => {
                let end = now + stop.grace;
                let until = Some(until.map_or(end, |until| until.min(end)));
                State::Spawning { since, stop: Some(stop), killed, until }
            }
            Event::Kill => {
                let killed = Some(killed.unwrap_or(now));
                State::Spawning { since, stop, killed, until: Some(now + KILL_REPEAT) }
            }
            // It neither reaches its exec nor can be killed.
            Event::Tick if killed.is_some_and(|killed| now >= killed + KILL_BOUND) => {
                State::Gone { outcome: Outcome::Unkillable, left: true }
            }
            Event::Tick if until.is_some_and(|until| now >= until) => {
                effects.push(Effect::KillSpawning);
                let killed = killed.unwrap_or(now);
                let next = (now + STROKE_GAP).min((killed + KILL_BOUND).max(now));
                State::Spawning { since, stop, killed: Some(killed), until: Some(next) }
            }
            Event::SpawnBegun
            | Event::LeaderEnded(_)
            | Event::BoundaryEmpty
            | Event::BoundaryIdle
            | Event::Progress(_)
            | Event::CoreDumpSeen
            | Event::Tick => state,
        },
        State::Running { pid, .. } => match event {
            Event::LeaderEnded(status) => leader_left(now, status, policy, effects),
            Event::Stop(stop) => stop_leader(now, pid, stop, policy, effects),
            Event::Kill => kill_leader(now, pid, effects),
            Event::SpawnBegun
            | Event::Spawned(_)
            | Event::SpawnFailed
            | Event::BoundaryEmpty
            | Event::BoundaryIdle
            | Event::Progress(_)
            | Event::CoreDumpSeen
            | Event::Tick => state,
        },
        State::Stopping { pid, mut grace } => match event {
            Event::LeaderEnded(status) => {
                effects.push(Effect::LookAtBoundary);
                let until = Some((now + policy.linger).min(grace.until));
                State::Lingering {
                    status,
                    since: now,
                    until,
                    stopped: true,
                    grace: Some(grace.without_leader(now, policy)),
                }
            }
            Event::Stop(later) => State::Stopping { pid, grace: grace.and(now, later, policy) },
            Event::Kill => kill_leader(now, pid, effects),
            Event::Progress(progress) => {
                grace.seen(now, progress);
                State::Stopping { pid, grace }
            }
            Event::Tick => match grace.tick(now) {
                Due::Kill => kill_leader(now, pid, effects),
                due @ (Due::Nothing | Due::Look | Due::Terminate) => {
                    effects.extend(match due {
                        Due::Look => Some(Effect::LookAtWork),
                        Due::Terminate => Some(Effect::Terminate(policy.scope, SIGTERM)),
                        Due::Nothing | Due::Kill => None,
                    });
                    State::Stopping { pid, grace }
                }
            },
            Event::SpawnBegun
            | Event::Spawned(_)
            | Event::SpawnFailed
            | Event::BoundaryEmpty
            | Event::BoundaryIdle
            | Event::CoreDumpSeen => state,
        },
        State::Lingering { status, since, until, stopped, mut grace } => match event {
            Event::BoundaryEmpty => State::Gone { outcome: Outcome::Ended(status), left: false },
            // One that is saving waits for its file system, or for what it is to write next.
            Event::BoundaryIdle if stopped && grace.is_none_or(|grace| !grace.is_saving(now)) => {
                terminate_rest(now, status, grace, policy, effects)
            }
            Event::Tick => {
                let due = grace.as_mut().map_or(Due::Nothing, |grace| grace.tick(now));
                effects.extend((due == Due::Look).then_some(Effect::LookAtWork));
                // SIGKILL is not due yet: what is left gets SIGTERM first. The answer to a look comes before both.
                let is_over = due == Due::Kill || due != Due::Look && until.is_some_and(|until| now >= until);
                match grace.as_ref().and_then(|grace| grace.lingers(now)).filter(|_| due != Due::Kill) {
                    Some(later) if is_over => State::Lingering { status, since, until: Some(later), stopped, grace },
                    None if is_over => terminate_rest(now, status, grace, policy, effects),
                    Some(_) | None => State::Lingering { status, since, until, stopped, grace },
                }
            }
            Event::Progress(progress) => {
                if let Some(grace) = &mut grace {
                    grace.seen(now, progress);
                }
                State::Lingering { status, since, until, stopped, grace }
            }
            Event::Stop(stop) => {
                let grace = grace
                    .map_or_else(|| Grace::of(now, stop, policy), |grace| grace.and(now, stop, policy))
                    .without_leader(now, policy);
                let linger = (now + policy.linger).min(grace.until);
                let until = Some(until.map_or(linger, |until| until.min(linger)));
                State::Lingering { status, since, until, stopped: true, grace: Some(grace) }
            }
            Event::Kill => kill_all(now, Some(status), effects),
            Event::SpawnBegun
            | Event::Spawned(_)
            | Event::SpawnFailed
            | Event::LeaderEnded(_)
            | Event::BoundaryIdle
            | Event::CoreDumpSeen => state,
        },
        State::Terminating { status, since, mut grace } => match event {
            Event::BoundaryEmpty => State::Gone { outcome: Outcome::Ended(status), left: false },
            Event::Stop(stop) => State::Terminating { status, since, grace: grace.and(now, stop, policy) },
            Event::Kill => kill_all(now, Some(status), effects),
            Event::Progress(progress) => {
                grace.seen(now, progress);
                State::Terminating { status, since, grace }
            }
            Event::Tick => match grace.tick(now) {
                Due::Kill => kill_all(now, Some(status), effects),
                due @ (Due::Nothing | Due::Look | Due::Terminate) => {
                    effects.extend((due == Due::Look).then_some(Effect::LookAtWork));
                    State::Terminating { status, since, grace }
                }
            },
            Event::SpawnBegun
            | Event::Spawned(_)
            | Event::SpawnFailed
            | Event::LeaderEnded(_)
            | Event::BoundaryIdle
            | Event::CoreDumpSeen => state,
        },
        State::DumpingCore { pid, since, next, until } => match event {
            Event::LeaderEnded(status) => {
                effects.push(Effect::LookAtBoundary);
                State::KillingLeader { pid, status: Some(status), since, until: now + STROKE_GAP }
            }
            // After the time limit the dump is cut off with everything else.
            Event::Tick if now >= until => kill_all(now, None, effects),
            Event::Tick if now >= next => {
                effects.push(Effect::KillLeader);
                State::DumpingCore { pid, since, next: now + CORE_DUMP_STEP, until }
            }
            Event::CoreDumpSeen
            | Event::Kill
            | Event::Stop(_)
            | Event::SpawnBegun
            | Event::Spawned(_)
            | Event::SpawnFailed
            | Event::BoundaryEmpty
            | Event::BoundaryIdle
            | Event::Progress(_)
            | Event::Tick => state,
        },
        State::KillingLeader { pid, status, since, until } => match event {
            Event::LeaderEnded(status) => {
                effects.push(Effect::LookAtBoundary);
                State::KillingLeader { pid, status: Some(status), since, until }
            }
            Event::BoundaryEmpty => match status {
                Some(status) => State::Gone { outcome: Outcome::Ended(status), left: false },
                None => state,
            },
            Event::CoreDumpSeen => {
                State::DumpingCore { pid, since, next: now + CORE_DUMP_STEP, until: now + CORE_DUMP_BOUND }
            }
            Event::Tick if now >= until => kill_all(now, status, effects),
            Event::SpawnBegun
            | Event::Spawned(_)
            | Event::SpawnFailed
            | Event::BoundaryIdle
            | Event::Progress(_)
            | Event::Stop(_)
            | Event::Kill
            | Event::Tick => state,
        },
        State::KillingAll { status, since, next, until } => match event {
            Event::LeaderEnded(status) => {
                effects.push(Effect::LookAtBoundary);
                State::KillingAll { status: Some(status), since, next, until }
            }
            Event::BoundaryEmpty => match status {
                Some(status) => State::Gone { outcome: Outcome::Ended(status), left: false },
                None => state,
            },
            Event::Tick if now >= until => {
                State::Gone { outcome: status.map_or(Outcome::Unkillable, Outcome::Ended), left: true }
            }
            Event::Tick if now >= next => {
                effects.push(Effect::KillAll);
                effects.push(Effect::LookAtBoundary);
                State::KillingAll { status, since, next: now + KILL_REPEAT, until }
            }
            Event::SpawnBegun
            | Event::Spawned(_)
            | Event::SpawnFailed
            | Event::BoundaryIdle
            | Event::Progress(_)
            | Event::Stop(_)
            | Event::Kill
            | Event::CoreDumpSeen
            | Event::Tick => state,
        },
        State::Gone { .. } => match event {
            // It was given up, and reached its exec later.
            Event::Spawned(_) => {
                effects.push(Effect::KillAll);
                state
            }
            Event::SpawnBegun
            | Event::SpawnFailed
            | Event::LeaderEnded(_)
            | Event::BoundaryEmpty
            | Event::BoundaryIdle
            | Event::Progress(_)
            | Event::Stop(_)
            | Event::Kill
            | Event::CoreDumpSeen
            | Event::Tick => state,
        },
    }
}

fn stop_leader(now: Duration, pid: Pid, stop: Stop, policy: &StopPolicy, effects: &mut Vec<Effect>) -> State {
    effects.push(Effect::Terminate(policy.scope, stop.first_signal(policy)));
    State::Stopping { pid, grace: Grace::of(now, stop, policy) }
}

/// The leader has ended by itself.
fn leader_left(now: Duration, status: WorkerStatus, policy: &StopPolicy, effects: &mut Vec<Effect>) -> State {
    match policy.descendants {
        Descendants::Leave => {
            effects.push(Effect::Release);
            State::Gone { outcome: Outcome::Ended(status), left: false }
        }
        Descendants::Wait => {
            effects.push(Effect::LookAtBoundary);
            State::Lingering { status, since: now, until: None, stopped: false, grace: None }
        }
        Descendants::End => {
            effects.push(Effect::LookAtBoundary);
            let grace = Grace::of_rest(now, policy);
            let until = (now + policy.linger).min(grace.until);
            State::Lingering { status, since: now, until: Some(until), stopped: false, grace: Some(grace) }
        }
    }
}

fn terminate_rest(
    now: Duration,
    status: WorkerStatus,
    grace: Option<Grace>,
    policy: &StopPolicy,
    effects: &mut Vec<Effect>,
) -> State {
    effects.push(Effect::TerminateRest);
    State::Terminating { status, since: now, grace: grace.unwrap_or_else(|| Grace::of_rest(now, policy)) }
}

fn kill_leader(now: Duration, pid: Pid, effects: &mut Vec<Effect>) -> State {
    effects.push(Effect::KillLeader);
    State::KillingLeader { pid, status: None, since: now, until: now + STROKE_GAP }
}

fn kill_all(now: Duration, status: Option<WorkerStatus>, effects: &mut Vec<Effect>) -> State {
    effects.push(Effect::KillAll);
    effects.push(Effect::LookAtBoundary);
    State::KillingAll { status, since: now, next: now + KILL_REPEAT, until: now + KILL_BOUND }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
