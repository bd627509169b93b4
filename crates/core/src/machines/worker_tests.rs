use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::grace::{SIGINT, SIGKILL};

const NOW: Duration = Duration::from_secs(100);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn states() -> Vec<State> {
    let (pid, since, until) = (Pid(7), Duration::from_secs(90), Duration::from_secs(99));
    let policy = StopPolicy::default();
    let stop = Stop { why: StopWhy::GangFailed, grace: Duration::from_secs(5) };
    let gentle = Stop { why: StopWhy::Signal(2), grace: Duration::from_secs(25) };
    let [grace, begun] = [since, NOW - Duration::from_secs(2)].map(|since| Grace::of(since, stop, &policy));
    let rest = Grace::of_rest(since, &policy);
    let status = WorkerStatus::Exited { code: 0 };
    vec![
        State::Pending,
        State::Spawning { since, stop: None, killed: None, until: None },
        State::Spawning { since, stop: Some(stop), killed: None, until: Some(until) },
        State::Spawning { since, stop: None, killed: Some(until), until: Some(until) },
        State::Running { pid, since },
        State::Stopping { pid, grace },
        State::Stopping { pid, grace: begun },
        State::Stopping { pid, grace: Grace::of(NOW - Duration::from_millis(500), gentle, &policy) },
        State::Lingering { status, since, until: Some(until), stopped: false, grace: Some(rest) },
        State::Lingering { status, since, until: Some(until), stopped: true, grace: Some(grace) },
        State::Lingering { status, since, until: None, stopped: false, grace: None },
        State::Terminating { status, since, grace },
        State::Terminating { status, since, grace: begun },
        State::DumpingCore { pid, since, next: until, until: NOW + Duration::from_secs(1) },
        State::KillingLeader { pid, status: None, since, until },
        State::KillingLeader { pid, status: Some(status), since, until },
        State::KillingAll { status: Some(status), since, next: until, until: NOW + Duration::from_secs(1) },
        State::KillingAll { status: None, since, next: until, until },
        State::Gone { outcome: Outcome::Ended(status), left: false },
    ]
}

fn events() -> Vec<Event> {
    vec![
        Event::SpawnBegun,
        Event::Spawned(Pid(7)),
        Event::SpawnFailed,
        Event::LeaderEnded(WorkerStatus::Exited { code: 3 }),
        Event::BoundaryEmpty,
        Event::BoundaryIdle,
        Event::Progress(Progress::default()),
        Event::Stop(Stop { why: StopWhy::Signal(15), grace: Duration::from_secs(25) }),
        Event::Kill,
        Event::CoreDumpSeen,
        Event::Tick,
    ]
}

#[test]
fn the_whole_table_is_as_reviewed() {
    let mut table = String::new();
    for state in states() {
        writeln!(table, "{state:?}").expect("a string takes all");
        for event in events() {
            let mut worker = Worker { state };
            let mut effects = Vec::new();
            worker.handle(NOW, event, &StopPolicy::default(), &mut effects);
            if worker.state != state || !effects.is_empty() {
                writeln!(table, "    {event:?}\n        -> {:?}\n        {effects:?}", worker.state).expect("likewise");
            }
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn an_obedient_leader_with_an_idle_rest_is_gone_without_waiting_for_the_linger() {
    let policy = StopPolicy::default();
    let mut worker = Worker { state: State::Running { pid: Pid(7), since: NOW } };
    let mut effects = Vec::new();
    let stop = Stop { why: StopWhy::GangFailed, grace: policy.grace_failure };
    worker.handle(NOW, Event::Stop(stop), &policy, &mut effects);
    worker.handle(NOW, Event::LeaderEnded(WorkerStatus::Exited { code: 0 }), &policy, &mut effects);
    worker.handle(NOW, Event::BoundaryIdle, &policy, &mut effects);
    worker.handle(NOW, Event::BoundaryEmpty, &policy, &mut effects);
    assert_eq!(
        effects,
        [Effect::Terminate(StopScope::Leader, SIGTERM), Effect::LookAtBoundary, Effect::TerminateRest, Effect::Gone]
    );
}

#[test]
fn what_a_successful_leader_leaves_has_its_linger_even_when_idle() {
    let policy = StopPolicy::default();
    let mut worker = Worker { state: State::Running { pid: Pid(7), since: NOW } };
    let mut effects = Vec::new();
    worker.handle(NOW, Event::LeaderEnded(WorkerStatus::Exited { code: 0 }), &policy, &mut effects);
    worker.handle(NOW, Event::BoundaryIdle, &policy, &mut effects);
    assert_eq!(worker.deadline(), Some(NOW + policy.linger / 4), "a look at what is left");
    assert!(!effects.contains(&Effect::TerminateRest));
}

/// Lives through what follows the end of a leader. `written` is what its helpers have written by a time. Returns when they got SIGTERM and
/// SIGKILL.
fn rest(stop: Option<Stop>, written: impl Fn(Duration) -> u64) -> (Option<Duration>, Option<Duration>) {
    let policy = StopPolicy::default();
    let mut worker = Worker { state: State::Running { pid: Pid(7), since: NOW } };
    let (mut terminated, mut now) = (None, NOW);
    let mut events = vec![Event::LeaderEnded(WorkerStatus::Signaled { signal: 9, core_dumped: false })];
    events.extend(stop.map(Event::Stop));
    loop {
        let mut effects = Vec::new();
        events.drain(..).for_each(|event| worker.handle(now, event, &policy, &mut effects));
        for effect in effects {
            match effect {
                Effect::LookAtWork => {
                    events.push(Event::Progress(Progress { written: written(now - NOW), ..Progress::default() }));
                }
                Effect::TerminateRest => terminated = Some(now - NOW),
                Effect::KillAll => return (terminated, Some(now - NOW)),
                Effect::LookAtBoundary => {}
                other => panic!("{other:?}"),
            }
        }
        if events.is_empty() {
            now = now.max(worker.deadline().expect("it has a bound"));
            events.push(Event::Tick);
        }
    }
}

#[test]
fn a_helper_that_still_writes_when_its_rank_has_failed_is_not_told_to_end_before_grace_saving_is_nearly_over() {
    let failed = Some(Stop { why: StopWhy::GangFailed, grace: ms(5_000) });
    let scheduler = Some(Stop { why: StopWhy::Signal(15), grace: ms(25_000) });
    let idle = |_| 0;
    let writes_until = |end: u64| move |at: Duration| at.as_millis().min(end.into()) as u64;
    assert_eq!(rest(failed, idle), (Some(ms(2_000)), Some(ms(5_000))));
    assert_eq!(rest(None, idle), (Some(ms(2_000)), Some(ms(5_000))));
    // A writer that has finished and lives on is ended after it has written nothing for three looks.
    assert_eq!(rest(failed, writes_until(8_000)).0, Some(ms(11_500)));
    // One that never finishes is ended, and has a part of the time to react.
    for stop in [failed, None] {
        assert_eq!(rest(stop, writes_until(u64::MAX)), (Some(ms(24_000)), Some(ms(30_000))));
    }
    // Whoever stops the job by a signal has a limit, which is kept.
    let (terminated, killed) = rest(scheduler, writes_until(u64::MAX));
    assert!(terminated <= Some(ms(24_000)) && killed <= Some(ms(25_000)), "{terminated:?} {killed:?}");
    let planned = Some(Stop { why: StopWhy::Planned, grace: ms(25_000) });
    assert_eq!(rest(planned, writes_until(u64::MAX)), (Some(ms(24_000)), Some(ms(30_000))));
}

#[test]
fn an_interrupted_worker_gets_sigterm_when_sigint_has_had_its_time() {
    let policy = StopPolicy::default();
    for (grace, expected) in [(ms(25_000), ms(2_000)), (ms(1_000), ms(500))] {
        let mut worker = Worker { state: State::Running { pid: Pid(7), since: NOW } };
        let mut sent = Vec::new();
        let mut now = NOW;
        let mut event = Event::Stop(Stop { why: StopWhy::Signal(SIGINT), grace });
        while worker.leader().is_some() && sent.len() < 3 {
            let mut effects = Vec::new();
            worker.handle(now, event, &policy, &mut effects);
            event = Event::Tick;
            for effect in effects {
                match effect {
                    Effect::Terminate(_, signal) => sent.push((signal, now - NOW)),
                    Effect::KillLeader => sent.push((SIGKILL, now - NOW)),
                    Effect::LookAtWork => event = Event::Progress(Progress::default()),
                    other => panic!("{other:?}"),
                }
            }
            if event == Event::Tick {
                now = now.max(worker.deadline().expect("it has a bound"));
            }
        }
        assert_eq!(sent, [(SIGINT, ms(0)), (SIGTERM, expected), (SIGKILL, grace)]);
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    (0..events().len()).prop_map(|index| events()[index])
}

#[test]
fn a_child_that_never_comes_to_its_exec_is_killed_after_the_grace() {
    let policy = StopPolicy::default();
    let (mut worker, mut effects) = (Worker::default(), Vec::new());
    worker.handle(NOW, Event::SpawnBegun, &policy, &mut effects);
    assert_eq!(worker.deadline(), None);
    let stop = Stop { why: StopWhy::GuardLost, grace: policy.grace_failure };
    worker.handle(NOW, Event::Stop(stop), &policy, &mut effects);
    let due = worker.deadline().expect("a stop has a bound");
    worker.handle(due, Event::Tick, &policy, &mut effects);
    assert_eq!((due - NOW, effects.as_slice()), (policy.grace_failure, [Effect::KillSpawning].as_slice()));
    worker.handle(due, Event::Spawned(Pid(7)), &policy, &mut effects);
    assert_eq!(effects.last(), Some(&Effect::KillLeader));
}

#[test]
fn a_child_that_can_neither_exec_nor_be_killed_is_given_up_and_killed_if_it_comes_after_all() {
    let policy = StopPolicy::default();
    let (mut worker, mut effects) = (Worker::default(), Vec::new());
    worker.handle(NOW, Event::SpawnBegun, &policy, &mut effects);
    worker.handle(NOW, Event::Kill, &policy, &mut effects);
    let mut now = NOW;
    while !worker.is_gone() {
        now = worker.deadline().expect("it has a bound");
        worker.handle(now, Event::Tick, &policy, &mut effects);
    }
    assert_eq!(now - NOW, KILL_BOUND);
    assert_eq!(*worker.state(), State::Gone { outcome: Outcome::Unkillable, left: true });
    worker.handle(now, Event::Spawned(Pid(7)), &policy, &mut effects);
    assert_eq!(effects.last(), Some(&Effect::KillAll));
}

proptest! {
    /// Whatever happens in whatever order: after the order to stop, a worker that is only ticked is gone within the
    /// grace and the bounds, provided that its leader's end is seen after a SIGKILL (K-5).
    #[test]
    fn every_wait_is_bounded(before in proptest::collection::vec((any_event(), 0u64..3000), 0..30)) {
        let policy = StopPolicy::default();
        let mut worker = Worker::default();
        let mut now = Duration::ZERO;
        let mut effects = Vec::new();
        worker.handle(now, Event::SpawnBegun, &policy, &mut effects);
        for (event, later) in before {
            now += Duration::from_millis(later);
            worker.handle(now, event, &policy, &mut effects);
        }
        let start = now;
        worker.handle(now, Event::Stop(Stop { why: StopWhy::Timeout, grace: policy.grace_failure }), &policy, &mut effects);
        let mut steps = 0;
        while !worker.is_gone() {
            let deadline = worker.deadline();
            prop_assert!(deadline.is_some(), "no deadline in {:?}", worker.state());
            now = now.max(deadline.unwrap_or_default());
            worker.handle(now, Event::Tick, &policy, &mut effects);
            steps += 1;
            prop_assert!(steps < 2000, "stuck in {:?}", worker.state());
        }
        let bound = policy.grace_failure.max(policy.grace_outside) + CORE_DUMP_BOUND + STROKE_GAP + KILL_BOUND;
        prop_assert!(now - start <= bound + Duration::from_secs(1), "took {:?}", now - start);
        prop_assert_eq!(effects.iter().filter(|effect| **effect == Effect::Gone).count(), 1);
    }
}
