use proptest::prelude::*;

use super::*;
use crate::testimony::Standing;
use crate::worker::StopWhy;

const S0: Slot = Slot(0);
const S1: Slot = Slot(1);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn team(ranks: &[u32]) -> Team {
    let ranks = ranks.iter().map(|rank| Rank(*rank));
    Team::new(Attempt(0), ranks, StopPolicy::default(), Graces::default())
}

fn running(ranks: &[u32]) -> Team {
    let mut team = team(ranks);
    for slot in team.slots() {
        step(&mut team, ms(0), Event::SpawnBegun(slot));
        step(&mut team, ms(0), Event::Spawned(slot, Pid(100 + slot.0 as i32)));
    }
    team
}

fn step(team: &mut Team, now: Duration, event: Event) -> Vec<Effect> {
    let mut effects = Vec::new();
    team.handle(now, event, &mut effects);
    effects
}

fn stop() -> Event {
    Event::Stop(Stop { why: StopWhy::GangFailed, grace: Duration::from_secs(5) })
}

fn ended(slot: Slot) -> Event {
    Event::LeaderEnded(slot, WorkerStatus::Exited { code: 0 })
}

const QUIET: Activity = Activity { sum: 7, quiet: true };

#[test]
fn ranks_need_not_be_in_a_row() {
    let team = team(&[9, 2, 40]);
    assert_eq!(team.slot_of(Rank(40)), Some(Slot(2)));
    assert_eq!(team.slot_of(Rank(3)), None);
    assert_eq!(team.id(Slot(1)).rank, Rank(2));
}

#[test]
fn the_speaker_gets_the_signal_before_the_leader_and_the_leader_when_it_is_gone() {
    let mut team = running(&[0, 1]);
    let shell = team.add_speaker(S0, true, 10);
    let python = team.add_speaker(S0, false, 20);
    let effects = step(&mut team, ms(100), stop());
    assert!(effects.contains(&Effect::Terminate(Target::Speaker(python), SIGTERM)));
    assert!(!effects.contains(&Effect::Terminate(Target::Leader(S0), SIGTERM)));
    assert!(effects.contains(&Effect::Terminate(Target::Leader(S1), SIGTERM)), "rank 1 has no speaker but its leader");
    assert_eq!(team.deadline(), Some(ms(110)));
    assert_eq!(step(&mut team, ms(110), Event::Tick), [Effect::LookAtSpeaker(python)]);
    assert_eq!(step(&mut team, ms(110), Event::SpeakerSeen(python, Usage::default())), []);
    assert_eq!(team.deadline(), Some(ms(120)), "it is looked at again");
    assert_eq!(
        step(&mut team, ms(120), Event::SpeakerEnded(python)),
        [Effect::ForgetSpeaker { speaker: python, slot: S0 }, Effect::Terminate(Target::Leader(S0), SIGTERM)]
    );
    let effects = step(&mut team, ms(130), ended(S0));
    assert_eq!(effects, [Effect::ForgetSpeaker { speaker: shell, slot: S0 }, Effect::LookAtBoundary(S0)]);
}

#[test]
fn an_exit_is_no_answer_to_a_signal_that_the_leader_could_not_notice() {
    let exited = WorkerStatus::Exited { code: 3 };
    let killed = WorkerStatus::Signaled { signal: SIGTERM, core_dumped: false };
    let signals = |team: &Team, slot, status| team.stop_record(slot, status).signals.len();
    let mut team = running(&[0, 1, 2, 3]);
    let python = team.add_speaker(Slot(3), false, 20);
    step(&mut team, ms(100), stop());
    step(&mut team, ms(100), Event::SignalUnnoticed(S0));
    step(&mut team, ms(100), Event::SignalMissed(S1));
    assert_eq!((signals(&team, S0, exited), signals(&team, S0, killed)), (0, 1));
    assert_eq!((signals(&team, S1, exited), signals(&team, S1, killed)), (0, 0));
    assert_eq!((signals(&team, Slot(2), exited), signals(&team, Slot(2), killed)), (1, 1));
    // Its child was told first, and it may exit for that.
    step(&mut team, ms(120), Event::SpeakerEnded(python));
    step(&mut team, ms(120), Event::SignalUnnoticed(Slot(3)));
    assert_eq!(signals(&team, Slot(3), exited), 1);
}

#[test]
fn a_worker_is_said_to_save_only_while_it_lives_and_was_just_seen_to_write() {
    let mut team = running(&[7, 9]);
    let both = |seventh, ninth| [(team_id(7), seventh), (team_id(9), ninth)];
    assert_eq!(team.alive(ms(0)), both(false, false));
    step(&mut team, ms(100), stop());
    for second in 1..=4 {
        let now = ms(100 + second * 1000);
        step(&mut team, now, Event::Tick);
        step(&mut team, now, Event::Progress(S0, Progress { written: second * 1000, ..Progress::default() }));
        step(&mut team, now, Event::Progress(S1, Progress { written: 5, ..Progress::default() }));
    }
    assert_eq!(team.alive(ms(4_100)), both(true, false));
    assert_eq!(team.alive(ms(12_000)), both(false, false));
    // At the end of the grace one is killed, and the other has longer.
    step(&mut team, ms(5_100), Event::Tick);
    step(&mut team, ms(5_400), Event::Tick);
    assert_eq!(team.alive(ms(5_400)), [(team_id(7), true)]);
    step(&mut team, ms(5_500), ended(S0));
    assert_eq!(team.alive(ms(5_500)), []);
}

fn team_id(rank: u32) -> WorkerId {
    WorkerId { rank: Rank(rank), attempt: Attempt(0) }
}

#[test]
fn of_several_speakers_the_last_one_started_speaks_and_a_leader_started_last_is_itself() {
    let mut team = running(&[0]);
    team.add_speaker(S0, false, 30);
    let last = team.add_speaker(S0, false, 31);
    assert_eq!(team.voice(S0), Target::Speaker(last));
    let leader = team.add_speaker(S0, true, 32);
    assert_eq!(team.voice(S0), Target::Leader(S0), "the leader has executed an interpreter itself");
    team.set_in_mpi(last, true);
    assert_eq!(team.voice(S0), Target::Speaker(last));
    team.set_in_mpi(last, false);
    team.set_in_mpi(leader, true);
    team.add_speaker(S0, false, 40);
    assert_eq!(team.voice(S0), Target::Leader(S0), "what a process in MPI has started is its helper");
}

#[test]
fn a_stuck_process_that_is_not_the_leader_is_killed_alone() {
    let mut team = running(&[0]);
    let helper = team.add_speaker(S0, false, 1);
    team.speaker(helper, |speaker, graces| speaker.exiting(ms(0), graces, Standing::InWorld, Usage::default()));
    assert_eq!(team.deadline(), Some(ms(500)));
    assert_eq!(step(&mut team, ms(500), Event::Tick), [Effect::LookAtSpeaker(helper)]);
    assert_eq!(
        step(&mut team, ms(500), Event::SpeakerSeen(helper, Usage::default())),
        [
            Effect::Kill(Target::Speaker(helper)),
            Effect::Stuck { speaker: helper, slot: S0, place: StuckIn::Finalize, since: ms(0), is_leader: false },
        ]
    );
    assert_eq!(team.deadline(), None, "it is said once");
}

#[test]
fn a_speaker_whose_connection_is_closed_is_looked_at_until_it_is_gone() {
    let mut team = running(&[0]);
    let id = team.add_speaker(S0, false, 1);
    assert_eq!(step(&mut team, ms(10), Event::SpeakerClosed(id)), [Effect::LookAtSpeaker(id)]);
    step(&mut team, ms(10), Event::SpeakerSeen(id, Usage::default()));
    assert_eq!(team.deadline(), Some(ms(1010)));
    assert_eq!(step(&mut team, ms(1010), Event::Tick), [Effect::LookAtSpeaker(id)]);
    assert_eq!(step(&mut team, ms(1010), Event::SpeakerEnded(id)), [Effect::ForgetSpeaker { speaker: id, slot: S0 }]);
    assert_eq!(team.deadline(), None);
}

#[test]
fn what_is_left_after_a_stop_and_idle_is_told_to_end_early() {
    let mut team = running(&[0]);
    step(&mut team, ms(0), stop());
    assert_eq!(step(&mut team, ms(1), ended(S0)), [Effect::LookAtBoundary(S0)]);
    let busy = Activity { sum: 1, quiet: false };
    assert_eq!(step(&mut team, ms(1), Event::BoundaryHeld(S0, busy)), []);
    for at in [26, 51, 76, 101] {
        assert_eq!(step(&mut team, ms(at), Event::Tick), [Effect::LookAtBoundary(S0)]);
        assert_eq!(step(&mut team, ms(at), Event::BoundaryHeld(S0, QUIET)), []);
    }
    step(&mut team, ms(126), Event::Tick);
    assert_eq!(
        step(&mut team, ms(126), Event::BoundaryHeld(S0, QUIET)),
        [Effect::Terminate(Target::Rest(S0), SIGTERM)]
    );
}

#[test]
fn a_dear_look_is_taken_less_often() {
    let mut team = running(&[0]);
    step(&mut team, ms(0), ended(S0));
    team.set_pace(ms(400));
    step(&mut team, ms(0), Event::BoundaryHeld(S0, QUIET));
    assert_eq!(team.deadline(), Some(ms(400)));
    team.set_pace(ms(0));
    step(&mut team, ms(400), Event::BoundaryHeld(S0, QUIET));
    assert_eq!(team.deadline(), Some(ms(400) + IDLE_STEP));
}

#[test]
fn orphans_end_with_the_attempt() {
    let mut team = running(&[0]);
    step(&mut team, ms(0), stop());
    step(&mut team, ms(1), ended(S0));
    assert_eq!(step(&mut team, ms(2), Event::BoundaryEmpty(S0)), [Effect::Gone(S0), Effect::LookAtOrphans]);
    let mut effects = Vec::new();
    let mut now = ms(2);
    while !team.over {
        now = team.deadline().unwrap_or(now).max(now);
        effects.extend(step(&mut team, now, Event::Orphans(QUIET)));
        effects.extend(step(&mut team, now, Event::Tick));
    }
    for wanted in [
        Effect::Terminate(Target::Orphans, SIGTERM),
        Effect::Kill(Target::Orphans),
        Effect::OrphansGivenUp,
        Effect::Over,
    ] {
        assert!(effects.contains(&wanted), "{wanted:?} in {effects:?}");
    }
    assert_eq!(team.deadline(), None);
}

#[test]
fn without_orphans_all_is_over_at_once() {
    let mut team = running(&[0]);
    step(&mut team, ms(1), ended(S0));
    step(&mut team, ms(2), Event::BoundaryEmpty(S0));
    assert_eq!(step(&mut team, ms(2), Event::NoOrphans), [Effect::Over]);
    assert_eq!(step(&mut team, ms(3), Event::NoOrphans), [], "it is said once");
}

#[test]
fn only_the_program_that_hangs_in_its_exec_is_blamed() {
    let mut team = team(&[0, 1]);
    step(&mut team, ms(0), Event::SpawnBegun(S0));
    step(&mut team, ms(0), Event::SpawnBegun(S1));
    assert_eq!(team.deadline(), Some(EXEC_BOUND));
    step(&mut team, ms(40), Event::Spawned(S0, Pid(7)));
    assert_eq!(team.deadline(), Some(ms(40) + EXEC_BOUND), "the next one has its own time");
    let effects = step(&mut team, ms(40) + EXEC_BOUND, Event::Tick);
    assert_eq!(effects, [Effect::Kill(Target::Spawning(S1)), Effect::ExecTimedOut(S1)]);
}

#[test]
fn programs_that_start_beside_one_that_hangs_give_it_no_time() {
    let mut team = team(&[0, 1]);
    step(&mut team, ms(0), Event::SpawnBegun(S0));
    step(&mut team, ms(0), Event::SpawnBegun(S1));
    step(&mut team, ms(40), Event::Spawned(S1, Pid(8)));
    assert_eq!(team.deadline(), Some(EXEC_BOUND));
    let effects = step(&mut team, EXEC_BOUND, Event::Tick);
    assert_eq!(effects, [Effect::Kill(Target::Spawning(S0)), Effect::ExecTimedOut(S0)]);
}

#[test]
fn behind_a_program_that_can_neither_exec_nor_be_killed_nobody_waits_for_ever() {
    let mut team = team(&[0, 1, 2]);
    step(&mut team, ms(0), Event::SpawnBegun(S0));
    step(&mut team, ms(0), Event::SpawnBegun(S1));
    let mut effects = Vec::new();
    while !team.over {
        let now = team.deadline().expect("something is waited for");
        effects.extend(step(&mut team, now, Event::Tick));
        if effects.contains(&Effect::LookAtOrphans) {
            step(&mut team, now, Event::NoOrphans);
        }
        assert!(now < EXEC_BOUND + Duration::from_secs(15), "{effects:?}");
    }
    for slot in team.slots() {
        assert!(effects.contains(&Effect::ExecTimedOut(slot)) && effects.contains(&Effect::Gone(slot)), "{slot}");
    }
}

#[test]
fn a_speaker_that_was_told_to_end_is_looked_at_although_it_says_something() {
    let mut team = running(&[0]);
    let id = team.add_speaker(S0, false, 1);
    step(&mut team, ms(100), stop());
    team.speaker(id, |speaker, graces| speaker.uncaught(ms(101), graces, Standing::Leads));
    assert_eq!(team.deadline(), Some(ms(110)));
}

#[test]
fn a_stop_cancels_what_the_spawner_has_not_begun() {
    let mut team = team(&[0, 1]);
    step(&mut team, ms(0), Event::SpawnBegun(S0));
    assert_eq!(step(&mut team, ms(1), stop()), [Effect::CancelSpawns, Effect::Gone(S1)], "rank 1 was never begun");
}

/// Takes an event, and answers every look that follows with "still there".
fn answered(team: &mut Team, now: Duration, event: Event) -> Vec<Effect> {
    let (mut all, mut events) = (Vec::new(), vec![event]);
    while let Some(event) = events.pop() {
        for effect in step(team, now, event) {
            match effect {
                Effect::LookAtWork(slot) => events.push(Event::Progress(slot, Progress::default())),
                Effect::LookAtBoundary(slot) => events.push(Event::BoundaryHeld(slot, QUIET)),
                Effect::LookAtSpeaker(id) => events.push(Event::SpeakerSeen(id, Usage::default())),
                Effect::LookAtOrphans => events.push(Event::Orphans(QUIET)),
                Effect::Terminate(..)
                | Effect::Kill(_)
                | Effect::KillLeader(_)
                | Effect::CancelSpawns
                | Effect::ExecTimedOut(_)
                | Effect::Stuck { .. }
                | Effect::WaitsForHandlers { .. }
                | Effect::ForgetSpeaker { .. }
                | Effect::Release(_)
                | Effect::Gone(_)
                | Effect::StartAgain(_)
                | Effect::OrphansGivenUp
                | Effect::Over => {}
            }
            all.push(effect);
        }
    }
    all
}

#[test]
fn a_team_without_workers_is_over_with_its_first_tick() {
    let mut team = team(&[]);
    assert_eq!(team.deadline(), Some(Duration::ZERO));
    assert_eq!(step(&mut team, ms(1), Event::Tick), [Effect::LookAtOrphans]);
    assert_eq!(step(&mut team, ms(1), Event::NoOrphans), [Effect::Over]);
    assert_eq!(team.deadline(), None);
}

fn any_event() -> impl Strategy<Value = Event> {
    let slot = (0u32..3).prop_map(Slot);
    let activity = (0u64..2, any::<bool>()).prop_map(|(sum, quiet)| Activity { sum, quiet });
    let speaker = (0u32..4).prop_map(SpeakerId);
    prop_oneof![
        slot.clone().prop_map(ended),
        slot.clone().prop_map(Event::CoreDumpSeen),
        slot.clone().prop_map(Event::BoundaryEmpty),
        (slot, activity.clone()).prop_map(|(slot, activity)| Event::BoundaryHeld(slot, activity)),
        speaker.clone().prop_map(Event::SpeakerEnded),
        (speaker.clone(), 0u64..3)
            .prop_map(|(id, written)| Event::SpeakerSeen(id, Usage { written, ..Usage::default() })),
        speaker.prop_map(Event::SpeakerClosed),
        Just(Event::NoOrphans),
        activity.prop_map(Event::Orphans),
        Just(stop()),
        Just(Event::Kill),
        Just(Event::Tick),
    ]
}

proptest! {
    /// Whatever happened before: after the order to stop, a team that is only ticked, and whose looks are answered with
    /// "still there", is over within a bound (K-5), and says so once.
    #[test]
    fn a_stopped_team_is_over_within_a_bound(before in proptest::collection::vec((any_event(), 0u64..500), 0..40)) {
        let mut team = running(&[0, 1, 2]);
        let mut all = Vec::new();
        for (slot, is_leader) in [(S0, true), (S0, false), (S1, false)] {
            let id = team.add_speaker(slot, is_leader, 5);
            team.speaker(id, |speaker, graces| speaker.uncaught(ms(0), graces, Standing::Leads));
        }
        let mut now = ms(0);
        for (event, later) in before {
            now += ms(later);
            all.extend(answered(&mut team, now, event));
        }
        let start = now;
        all.extend(answered(&mut team, now, stop()));
        let mut steps = 0;
        while !team.over {
            all.extend(answered(&mut team, now, Event::Tick));
            if team.over {
                break;
            }
            let deadline = team.deadline();
            prop_assert!(deadline.is_some(), "nothing is waited for");
            now = now.max(deadline.unwrap_or_default());
            steps += 1;
            prop_assert!(steps < 50_000);
        }
        prop_assert!(now - start < Duration::from_secs(160), "took {:?}", now - start);
        let count = |wanted: Effect| all.iter().filter(|effect| **effect == wanted).count();
        prop_assert_eq!(count(Effect::Over), 1);
        for slot in team.slots() {
            prop_assert_eq!(count(Effect::Gone(slot)), 1);
        }
    }
}
