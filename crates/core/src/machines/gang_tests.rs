use super::*;
use crate::verdict::{Verdict, verdict};

fn culprit(verdict: &Verdict) -> Option<Rank> {
    verdict.culprit.as_ref().map(|finding| finding.rank)
}

fn rules() -> Rules {
    Rules {
        grace_failure: Duration::from_secs(5),
        grace_outside: Duration::from_secs(25),
        timeout: None,
        keep_going: false,
    }
}

fn gang(size: u32) -> Gang {
    let mut gang = Gang::new(size, rules());
    for rank in 0..size {
        feed(&mut gang, 0, Event::Started { rank: Rank(rank), pid: Pid(100 + rank as i32) });
    }
    gang
}

fn feed(gang: &mut Gang, ms: u64, event: Event) -> Vec<Effect> {
    let mut effects = Vec::new();
    gang.handle(Duration::from_millis(ms), event, &mut effects);
    effects
}

fn exit(rank: u32, code: u8) -> Event {
    Event::Ended { rank: Rank(rank), status: WorkerStatus::Exited { code } }
}

fn killed(rank: u32, signal: i32) -> Event {
    Event::Ended { rank: Rank(rank), status: WorkerStatus::Signaled { signal, core_dumped: false } }
}

fn mpi(rank: u32, event: MpiEvent) -> Event {
    Event::Mpi { rank: Rank(rank), event }
}

#[test]
fn the_first_failure_stops_the_gang_and_its_code_is_the_jobs() {
    let mut gang = gang(3);
    let effects = feed(&mut gang, 10, exit(1, 3));
    assert!(matches!(effects[..], [Effect::Stop(Stop { why: StopWhy::GangFailed, .. })]));
    assert_eq!(feed(&mut gang, 12, killed(0, 15)), []);
    let signals = vec![(15, Duration::from_millis(11)), (9, Duration::from_millis(11))];
    let record = StopRecord { signals, ..StopRecord::default() };
    assert_eq!(feed(&mut gang, 12, Event::Signalled { rank: Rank(2), record }), []);
    assert_eq!(feed(&mut gang, 12, killed(2, 9)), []);
    let verdict = verdict(&gang);
    assert_eq!((verdict.code, culprit(&verdict)), (ExitCode(3), Some(Rank(1))));
}

#[test]
fn a_signal_that_we_did_not_send_is_the_ranks_own() {
    let mut gang = gang(2);
    feed(&mut gang, 10, killed(0, 9));
    let verdict = verdict(&gang);
    assert_eq!((verdict.code, culprit(&verdict)), (ExitCode(137), Some(Rank(0))));
}

#[test]
fn abort_with_zero_or_256_is_a_failure_of_code_one() {
    for (code, expected) in [(0, 1), (256, 1), (3, 3), (-1, 255), (512 + 7, 7)] {
        let mut gang = gang(2);
        feed(&mut gang, 1, mpi(0, MpiEvent::Inited));
        let effects = feed(&mut gang, 10, mpi(0, MpiEvent::Aborted { code, message: None }));
        assert_eq!(effects.len(), 1);
        feed(&mut gang, 11, killed(0, 15));
        assert_eq!(verdict(&gang).code, ExitCode(expected), "abort({code})");
    }
}

#[test]
fn exit_without_finalize_counts_only_while_a_sibling_is_in_mpi() {
    let mut gang = gang(2);
    feed(&mut gang, 1, mpi(0, MpiEvent::Inited));
    feed(&mut gang, 1, mpi(1, MpiEvent::Inited));
    assert_eq!(feed(&mut gang, 10, exit(0, 0)), []);
    assert_eq!(gang.deadline(), Some(Duration::from_millis(1010)));
    let mut finished = gang.clone();

    assert_eq!(feed(&mut gang, 1010, Event::Tick).len(), 1);
    assert_eq!((verdict(&gang).code, culprit(&verdict(&gang))), (ExitCode(1), Some(Rank(0))));

    feed(&mut finished, 500, mpi(1, MpiEvent::Finalized));
    assert_eq!(feed(&mut finished, 1010, Event::Tick), []);
    assert_eq!(verdict(&finished).code, ExitCode(0));
}

#[test]
fn exit_before_init_counts_only_with_a_sibling_that_waits_in_init() {
    let mut early = gang(3);
    assert_eq!(feed(&mut early, 5, exit(0, 0)), []);
    assert_eq!(feed(&mut early, 10, mpi(1, MpiEvent::Inited)).len(), 1);
    assert_eq!((verdict(&early).code, culprit(&verdict(&early))), (ExitCode(1), Some(Rank(0))));

    let mut late = gang(3);
    feed(&mut late, 5, mpi(1, MpiEvent::Inited));
    assert_eq!(feed(&mut late, 10, exit(0, 0)).len(), 1);

    let mut done = gang(3);
    feed(&mut done, 5, mpi(1, MpiEvent::Inited));
    feed(&mut done, 6, mpi(1, MpiEvent::PassedBarrier));
    assert_eq!(feed(&mut done, 10, exit(0, 0)), []);
}

#[test]
fn a_second_interrupt_kills_unless_it_comes_at_once() {
    let mut gang = gang(1);
    assert!(matches!(feed(&mut gang, 100, Event::Signal(2))[..], [Effect::Stop(_)]));
    assert_eq!(feed(&mut gang, 200, Event::Signal(2)), []);
    assert_eq!(feed(&mut gang, 700, Event::Signal(2)), [Effect::Kill]);
    feed(&mut gang, 710, exit(0, 0));
    assert_eq!(verdict(&gang).code, ExitCode(130));
}

#[test]
fn keep_going_runs_all_and_returns_the_first_failure() {
    let mut gang = Gang::new(3, Rules { keep_going: true, ..rules() });
    assert_eq!(feed(&mut gang, 1, exit(2, 9)), []);
    assert_eq!(feed(&mut gang, 2, exit(0, 4)), []);
    assert_eq!(feed(&mut gang, 3, exit(1, 0)), []);
    assert_eq!(verdict(&gang).code, ExitCode(9));
}

#[test]
fn a_timeout_is_124_even_if_the_ranks_then_exit_with_zero() {
    let mut gang = Gang::new(1, Rules { timeout: Some(Duration::from_secs(1)), ..rules() });
    assert_eq!(gang.deadline(), Some(Duration::from_secs(1)));
    assert_eq!(feed(&mut gang, 1000, Event::Tick).len(), 1);
    feed(&mut gang, 1010, exit(0, 0));
    assert_eq!(verdict(&gang).code, ExitCode::TIMEOUT);
}

#[test]
fn an_exception_that_the_program_takes_back_is_no_cause() {
    let mut gang = gang(2);
    let exception = Exception { kind: "ValueError".to_owned(), ..Exception::default() };
    let event = |testimony| Event::Testimony { rank: Rank(0), pid: Pid(100), testimony };
    feed(&mut gang, 5, event(Testimony::Uncaught(exception)));
    feed(&mut gang, 6, event(Testimony::Exiting { code: 0 }));
    feed(&mut gang, 7, exit(0, 0));
    feed(&mut gang, 9, exit(1, 4));
    let verdict = verdict(&gang);
    assert_eq!((verdict.code, culprit(&verdict)), (ExitCode(4), Some(Rank(1))));
    assert!(gang.evidence().iter().all(|evidence| evidence.rank == Rank(1)));
}

fn uncaught(rank: u32, pid: i32, message: &str) -> Event {
    let exception = Exception {
        kind: "ValueError".to_owned(),
        message: message.to_owned(),
        traceback: "t".repeat(60_000),
        ..Exception::default()
    };
    Event::Testimony { rank: Rank(rank), pid: Pid(pid), testimony: Testimony::Uncaught(exception) }
}

fn text_held(gang: &Gang) -> usize {
    gang.evidence().iter().map(|evidence| evidence.clone().fact.size()).sum()
}

#[test]
fn what_children_of_a_rank_say_is_bounded_and_does_not_hide_what_its_leader_says() {
    let mut gang = Gang::new(1, Rules { keep_going: true, ..rules() });
    feed(&mut gang, 0, Event::Started { rank: Rank(0), pid: Pid(100) });
    for child in 0..5_000 {
        feed(&mut gang, 1, uncaught(0, 1_000 + child, &"m".repeat(60_000)));
    }
    feed(&mut gang, 2, uncaught(0, 100, "the leader's own"));
    feed(&mut gang, 3, exit(0, 1));
    assert!(gang.evidence().len() <= WORDS_KEPT as usize + 1, "{}", gang.evidence().len());
    assert!(text_held(&gang) < 2_000_000, "{}", text_held(&gang));
    let left_out = gang.left_out();
    assert_eq!(left_out.facts as usize, 5_002 - gang.evidence().len());
    assert!(left_out.bytes > 5_000 * 90_000, "{left_out:?}");
    assert!(gang.evidence().iter().any(|evidence| evidence.pid == Some(Pid(100)) && evidence.fact.is_word()));
    assert!(verdict(&gang).culprit.is_some_and(|culprit| culprit.cause.len() < 400));
}

#[test]
fn what_many_ranks_say_is_bounded_and_each_is_heard() {
    let mut gang = Gang::new(2_000, Rules { keep_going: true, ..rules() });
    for round in 0..12 {
        for rank in 0..2_000 {
            feed(&mut gang, round, uncaught(rank, 100 + rank as i32, "too long"));
        }
    }
    assert!(text_held(&gang) < BYTES_MOST + 2_000 * 2_000, "{}", text_held(&gang));
    for rank in 0..2_000 {
        assert!(gang.evidence().iter().any(|evidence| evidence.rank == Rank(rank)), "{rank}");
    }
}

#[test]
fn what_is_retracted_makes_room() {
    let mut gang = Gang::new(1, Rules { keep_going: true, ..rules() });
    for child in 0..1_000 {
        feed(&mut gang, 1, uncaught(0, child, "handled"));
        let exiting = Testimony::Exiting { code: 0 };
        feed(&mut gang, 1, Event::Testimony { rank: Rank(0), pid: Pid(child), testimony: exiting });
    }
    assert_eq!((gang.evidence().len(), text_held(&gang), gang.left_out().facts), (0, 0, 0));
}

#[test]
fn events_are_dated_by_their_node_and_waits_counted_from_when_they_became_known() {
    let mut gang = gang(2);
    let mut of = |now: u64, at: u64, event: Event| {
        let moment = Moment { now: Duration::from_millis(now), at: Duration::from_millis(at) };
        let mut effects = Vec::new();
        gang.handle_of(moment, event, &mut effects);
        (effects.len(), gang.stop_ordered())
    };
    let stopped = (1, Some(Duration::from_millis(500)));
    assert_eq!(of(500, 400, exit(1, 3)), stopped, "the stop is ordered when the failure becomes known");
    of(510, 300, killed(0, 15));
    let record = &gang.ranks()[0];
    assert_eq!((record.ended_at, record.stop_ordered_before_end), (Some(Duration::from_millis(300)), false));
    let verdict = verdict(&gang);
    assert_eq!(culprit(&verdict), Some(Rank(0)), "a SIGTERM of somebody else, 200 ms before ours");
    assert_eq!(gang.evidence()[0].at, Duration::from_millis(400));
}

#[test]
fn what_an_agent_did_by_itself_before_its_guards_loss_was_known_comes_from_that_loss() {
    for end in [killed(0, 15), exit(0, 1)] {
        let mut gang = gang(2);
        feed(&mut gang, 500, Event::GuardLost);
        let moment = Moment { now: Duration::from_millis(510), at: Duration::from_millis(200) };
        gang.handle_of(moment, end, &mut Vec::new());
        feed(&mut gang, 520, killed(1, 15));
        let verdict = verdict(&gang);
        assert_eq!((verdict.class, culprit(&verdict)), (Some(crate::evidence::Class::LauncherLost), None));
    }
}
