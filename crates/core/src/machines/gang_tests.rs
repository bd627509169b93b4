use std::time::Duration;

use proptest::prelude::*;

use super::cause::CAUSE_PATIENCE;
use super::room::{BYTES_MOST, CALLS_KEPT, WORDS_KEPT};
use super::*;
use crate::evidence::{Fact, MpiEvent};
use crate::exit::ExitCode;
use crate::grace::StopRecord;
use crate::ids::{GangId, NodeRank, Pid, Rank, WorkerId, worker};
use crate::standing::{Voice, standings};
use crate::status::WorkerStatus;
use crate::testimony::{Exception, Testimony};
use crate::verdict::{Fate, Verdict, verdict};
use crate::worker::{Stop, StopWhy};

fn culprit(verdict: &Verdict) -> Option<Rank> {
    verdict.culprit.as_ref().map(|finding| finding.rank)
}

fn rules() -> Rules {
    Rules {
        grace_failure: Duration::from_secs(5),
        grace_outside: Duration::from_secs(25),
        timeout: None,
        keep_going: false,
        terminal: None,
    }
}

fn gang(size: u32) -> Gang {
    let mut gang = Gang::new(GangId::default(), size, rules());
    for rank in 0..size {
        feed(&mut gang, 0, Event::Started { worker: worker(rank), pid: Pid(100 + rank as i32) });
    }
    gang
}

fn feed(gang: &mut Gang, ms: u64, event: Event) -> Vec<Effect> {
    let mut effects = Vec::new();
    gang.handle(Duration::from_millis(ms), event, &mut effects);
    effects
}

fn exit(rank: u32, code: u8) -> Event {
    Event::Ended { worker: worker(rank), status: WorkerStatus::Exited { code } }
}

fn killed(rank: u32, signal: i32) -> Event {
    Event::Ended { worker: worker(rank), status: WorkerStatus::Signaled { signal, core_dumped: false } }
}

fn mpi(rank: u32, event: MpiEvent) -> Event {
    Event::Mpi { worker: worker(rank), event }
}

#[test]
fn the_first_failure_stops_the_gang_and_its_code_is_the_jobs() {
    let mut gang = gang(3);
    let effects = feed(&mut gang, 10, exit(1, 3));
    assert!(matches!(effects[..], [Effect::Stop(Stop { why: StopWhy::GangFailed, .. })]));
    assert_eq!(feed(&mut gang, 12, killed(0, 15)), []);
    let signals = vec![(15, Duration::from_millis(11)), (9, Duration::from_millis(11))];
    let record = StopRecord { signals, ..StopRecord::default() };
    assert_eq!(feed(&mut gang, 12, Event::Signalled { worker: worker(2), record }), []);
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
    feed(&mut finished, 1020, exit(1, 0));
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
    let mut gang = Gang::new(GangId::default(), 3, Rules { keep_going: true, ..rules() });
    assert_eq!(feed(&mut gang, 1, exit(2, 9)), []);
    assert_eq!(feed(&mut gang, 2, exit(0, 4)), []);
    assert_eq!(feed(&mut gang, 3, exit(1, 0)), []);
    assert_eq!(verdict(&gang).code, ExitCode(9));
}

fn lost(worker: WorkerId, goes_on: bool) -> Event {
    let (name, why) = ("b".to_owned(), "gone".to_owned());
    Event::NodeLost { node: NodeRank(1), name, why, workers: vec![worker], goes_on }
}

#[test]
fn a_node_without_which_the_others_go_on_stops_nobody_and_the_code_says_that_it_was_lost() {
    let of = |events: &[(u64, Event)]| {
        let mut gang = Gang::new(GangId::default(), 3, Rules { keep_going: true, ..rules() });
        for (at, event) in events {
            assert_eq!(feed(&mut gang, *at, event.clone()), []);
        }
        assert!(gang.have_all_ended());
        let verdict = verdict(&gang);
        (verdict.code, verdict.fates)
    };
    let fates = |first| vec![first, Fate::Succeeded, Fate::Lost];
    let lost = || lost(worker(2), true);
    assert_eq!(of(&[(1, lost()), (2, exit(0, 0)), (3, exit(1, 0))]), (ExitCode::NODE_LOST, fates(Fate::Succeeded)));
    assert_eq!(of(&[(1, lost()), (2, exit(0, 4)), (3, exit(1, 0))]), (ExitCode::NODE_LOST, fates(Fate::FailedToo)));
    assert_eq!(of(&[(1, exit(0, 4)), (2, lost()), (3, exit(1, 0))]), (ExitCode(4), fates(Fate::Culprit)));
}

#[test]
fn a_rank_that_is_gone_is_missed_only_by_those_that_wait_for_it_in_mpi_init() {
    let mpi = |rank, event| Event::Mpi { worker: worker(rank), event };
    for gone in [exit(1, 3), exit(1, 0), lost(worker(1), true)] {
        let mut gang = Gang::new(GangId::default(), 2, Rules { keep_going: true, ..rules() });
        feed(&mut gang, 1, gone);
        assert_eq!(gang.missed_in_init(), None);
        feed(&mut gang, 2, mpi(0, MpiEvent::Inited));
        assert_eq!(gang.missed_in_init(), Some(worker(1)));
        let stops = feed(&mut gang, 3, Event::Missed { worker: worker(1) });
        assert!(matches!(stops[..], [Effect::Stop(Stop { why: StopWhy::GangFailed, .. })]), "{stops:?}");
        assert_eq!(gang.missed_in_init(), None);
        assert_ne!(verdict(&gang).code, ExitCode::SUCCESS);
    }
    let mut gang = Gang::new(GangId::default(), 2, Rules { keep_going: true, ..rules() });
    for rank in 0..2 {
        feed(&mut gang, 1, mpi(rank, MpiEvent::Inited));
    }
    feed(&mut gang, 2, mpi(0, MpiEvent::PassedBarrier));
    feed(&mut gang, 3, exit(1, 3));
    assert_eq!(gang.missed_in_init(), None);
}

#[test]
fn a_timeout_is_124_even_if_the_ranks_then_exit_with_zero() {
    let mut gang = Gang::new(GangId::default(), 1, Rules { timeout: Some(Duration::from_secs(1)), ..rules() });
    assert_eq!(gang.deadline(), Some(Duration::from_secs(1)));
    assert_eq!(feed(&mut gang, 1000, Event::Tick).len(), 1);
    feed(&mut gang, 1010, exit(0, 0));
    assert_eq!(verdict(&gang).code, ExitCode::TIMEOUT);
}

#[test]
fn an_exception_that_the_program_takes_back_is_no_cause() {
    let mut gang = gang(2);
    let exception = Exception { kind: "ValueError".to_owned(), ..Exception::default() };
    let event = |testimony| Event::Testimony { worker: worker(0), pid: Pid(100), testimony };
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
    Event::Testimony { worker: worker(rank), pid: Pid(pid), testimony: Testimony::Uncaught(exception) }
}

fn text_held(gang: &Gang) -> usize {
    gang.evidence().iter().map(|evidence| evidence.clone().fact.size()).sum()
}

#[test]
fn what_children_of_a_rank_say_is_bounded_and_does_not_hide_what_its_leader_says() {
    let mut gang = Gang::new(GangId::default(), 1, Rules { keep_going: true, ..rules() });
    feed(&mut gang, 0, Event::Started { worker: worker(0), pid: Pid(100) });
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
    let mut gang = Gang::new(GangId::default(), 2_000, Rules { keep_going: true, ..rules() });
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
fn what_a_rank_said_before_it_was_started_again_takes_no_room_from_the_others() {
    let mut gang = Gang::new(GangId::default(), 2, Rules { keep_going: true, ..rules() });
    for life in 0..5_000 {
        feed(&mut gang, life, Event::Started { worker: worker(0), pid: Pid(100) });
        feed(&mut gang, life, uncaught(0, 100, &"m".repeat(60_000)));
        feed(&mut gang, life, says(0, note(&"n".repeat(9_000))));
        feed(&mut gang, life, says(0, thread_died(&"d".repeat(9_000))));
        feed(&mut gang, life, Event::Again { worker: worker(0) });
    }
    let cut = gang.left_out().bytes;
    feed(&mut gang, 6_000, says(1, note(&"n".repeat(3_000))));
    assert_eq!(gang.left_out().bytes, cut, "that of another rank is kept in full");
}

fn note(text: &str) -> Testimony {
    Testimony::Note { text: text.to_owned() }
}

fn thread_died(of: &str) -> Testimony {
    let exception = Exception { kind: "KeyError".to_owned(), message: of.to_owned(), ..Exception::default() };
    Testimony::Aside { place: "thread".to_owned(), exception }
}

/// What the report has of a rank's notes and dead threads, in its order.
fn in_passing(gang: &Gang, rank: u32) -> Vec<String> {
    let of_rank = gang.all_evidence().into_iter().filter(|evidence| evidence.rank == Rank(rank));
    of_rank
        .filter_map(|evidence| match evidence.fact {
            Fact::Note { text } => Some(text),
            Fact::Aside { exception, .. } => Some(exception.message),
            _ => None,
        })
        .collect()
}

#[test]
fn notes_do_not_push_out_the_death_of_a_thread_nor_a_failure() {
    let mut gang = gang(2);
    feed(&mut gang, 10, says(0, thread_died("loader")));
    for epoch in 0..50 {
        feed(&mut gang, 20 + epoch, says(0, note(&format!("epoch {epoch}"))));
        feed(&mut gang, 20 + epoch, says(1, note("other")));
    }
    let last_ten = (40..50).map(|epoch| format!("epoch {epoch}"));
    assert_eq!(in_passing(&gang, 0), std::iter::once("loader".to_owned()).chain(last_ten).collect::<Vec<_>>());
    assert_eq!(gang.evidence(), [], "neither is a failure");
    assert_eq!(gang.left_out().facts, 0);
    let standing = &standings(&gang, Duration::from_secs(1), |_| Voice::default())[0];
    assert_eq!(standing.dead_threads, ["KeyError: loader (in thread)"]);
    assert_eq!(standing.note.as_deref(), Some("epoch 49"));
    for batch in 0..100 {
        feed(&mut gang, 100 + batch, says(0, thread_died(&format!("batch {batch}"))));
    }
    let told = in_passing(&gang, 0);
    assert_eq!((told[0].as_str(), told[11].as_str(), told.len()), ("loader", "batch 99", 12), "the first and the last");
    assert_eq!(gang.left_out().facts, 99);
}

#[test]
fn what_is_said_in_passing_by_many_ranks_is_bounded_and_the_last_note_of_each_is_kept() {
    let mut gang = Gang::new(GangId::default(), 2_000, rules());
    let held = |gang: &Gang| gang.all_evidence().into_iter().map(|mut evidence| evidence.fact.size()).sum::<usize>();
    for round in 0..12 {
        for rank in 0..2_000 {
            feed(&mut gang, round, says(rank, note(&"n".repeat(9_000 + round as usize))));
            feed(&mut gang, round, says(rank, thread_died(&"d".repeat(9_000))));
        }
    }
    assert!(held(&gang) < BYTES_MOST + 2_000 * 2_000, "{}", held(&gang));
    for rank in 0..2_000 {
        let passing = &gang.ranks().iter().nth(rank).expect("a rank").passing;
        assert_eq!(passing.notes().last().map(|note| note.at), Some(Duration::from_millis(11)), "{rank}");
        assert!(passing.asides().next().is_some(), "{rank}");
    }
}

#[test]
fn a_report_that_comes_in_two_parts_is_completed_also_across_a_note() {
    let mut gang = gang(1);
    let kind = Exception { kind: "ValueError".to_owned(), ..Exception::default() };
    feed(&mut gang, 10, says(0, Testimony::Uncaught(kind)));
    feed(&mut gang, 11, says(0, note("of another thread")));
    feed(&mut gang, 12, raises(0, "ValueError", "boom"));
    feed(&mut gang, 13, exit(0, 1));
    assert_eq!(verdict(&gang).culprit.map(|culprit| culprit.cause).as_deref(), Some("ValueError: boom"));
}

#[test]
fn what_is_refused_is_kept_once_and_of_a_few_calls() {
    let mut gang = gang(2);
    let refused = |call: String| MpiEvent::Refused { call, detail: None };
    for time in 0..100 {
        feed(&mut gang, time, mpi(0, refused("MPI_Comm_spawn".to_owned())));
        feed(&mut gang, time, mpi(1, refused(format!("{time} {}", "c".repeat(time as usize * 10)))));
    }
    let of_rank = |rank| gang.evidence().iter().filter(|evidence| evidence.rank == Rank(rank)).count();
    assert_eq!((of_rank(0), of_rank(1)), (1, CALLS_KEPT));
    assert_eq!(gang.left_out().facts as usize, 100 - CALLS_KEPT);
}

#[test]
fn a_refused_spawn_ends_the_job_only_if_its_error_ends_the_thread_that_asked() {
    let frame = "  File \"src/mpi4py/MPI.src/Comm.pyx\", line 2560, in mpi4py.MPI.Intracomm.Spawn\n";
    let table = [
        ("MPI_Comm_spawn", "mpi4py.MPI.Exception", frame, true),
        ("MPI_Comm_spawn", "mpi4py.MPI.Exception", "  in mpi4py.MPI.Intracomm.Spawn_multiple\n", true),
        ("MPI_Comm_spawn", "mpi4py.MPI.Exception", "  in mpi4py.MPI.Comm.Send\n", false),
        ("MPI_Comm_spawn", "ValueError", frame, false),
        ("another", "mpi4py.MPI.Exception", frame, false),
    ];
    for (call, kind, traceback, ends) in table {
        let mut gang = gang(2);
        feed(&mut gang, 1, mpi(0, MpiEvent::Inited));
        feed(&mut gang, 2, mpi(0, MpiEvent::Refused { call: call.to_owned(), detail: Some("no".to_owned()) }));
        let exception = Exception { kind: kind.to_owned(), traceback: traceback.to_owned(), ..Exception::default() };
        let aside = || Testimony::Aside { place: "Thread-1".to_owned(), exception: exception.clone() };
        // The thread of another rank says nothing of the spawn.
        feed(&mut gang, 3, says(1, aside()));
        feed(&mut gang, 4, says(0, aside()));
        let told = verdict(&gang).culprit.map(|culprit| (culprit.rank, culprit.cause));
        let cause = "MPI_Comm_spawn failed: no".to_owned();
        assert_eq!(told, ends.then_some((Rank(0), cause)), "{call} {kind} {traceback}");
    }
}

#[test]
fn what_is_retracted_makes_room() {
    let mut gang = Gang::new(GangId::default(), 1, Rules { keep_going: true, ..rules() });
    for child in 0..1_000 {
        feed(&mut gang, 1, uncaught(0, child, "handled"));
        let exiting = Testimony::Exiting { code: 0 };
        feed(&mut gang, 1, Event::Testimony { worker: worker(0), pid: Pid(child), testimony: exiting });
    }
    assert_eq!((gang.evidence().len(), text_held(&gang), gang.left_out().facts), (0, 0, 0));
}

fn raises(rank: u32, kind: &str, message: &str) -> Event {
    let exception = Exception {
        kind: kind.to_owned(),
        message: message.to_owned(),
        traceback: "t".to_owned(),
        ..Exception::default()
    };
    says(rank, Testimony::Uncaught(exception))
}

fn says(rank: u32, testimony: Testimony) -> Event {
    Event::Testimony { worker: worker(rank), pid: Pid(100 + rank as i32), testimony }
}

const GLOO: (&str, &str) = ("RuntimeError", "[gloo/transport/tcp/pair.cc:561] Connection closed by peer [::1]:4711");
const RESET: (&str, &str) = ("ConnectionResetError", "[Errno 104] Connection reset by peer");

type Events = Vec<(u64, Event)>;

/// When the stop is ordered in a gang of 3; the clock ticks whenever the gang asks for it.
fn stop_in(rules: Rules, events: Events) -> Option<u64> {
    let mut gang = Gang::new(GangId::default(), 3, rules);
    for rank in 0..3 {
        feed(&mut gang, 0, Event::Started { worker: worker(rank), pid: Pid(100 + rank as i32) });
    }
    for (at, event) in events.into_iter().chain([(60_000, Event::Tick)]) {
        while let Some(due) = gang.deadline().map(|due| due.as_millis() as u64).filter(|due| *due < at) {
            feed(&mut gang, due, Event::Tick);
        }
        feed(&mut gang, at, event);
    }
    gang.stop_ordered().map(|stop| stop.as_millis() as u64)
}

/// When the stop is ordered where rank 0 reports `loss` at 100 ms and ends at 110 ms.
fn stopped_at(rules: Rules, loss: (&str, &str), then: Events) -> Option<u64> {
    let mut events = vec![(100, raises(0, loss.0, loss.1)), (110, exit(0, 1))];
    events.extend(then);
    events.sort_by_key(|(at, _)| *at);
    stop_in(rules, events)
}

proptest! {
    #[test]
    fn a_failure_stops_the_gang_at_once_or_within_the_patience(
        steps in prop::collection::vec((0..3_u32, 0..8_u8, 0..1_500_u64), 1..12)
    ) {
        // Of each rank, whether it has ended, and whether its first report was a loss.
        let (mut now, mut ended, mut reported) = (0, [false; 3], [None; 3]);
        let (mut events, mut first, mut own) = (Events::new(), None, None);
        for (rank, what, pause) in steps {
            now += pause;
            let at = rank as usize;
            if ended[at] {
                continue;
            }
            let event = match what {
                0 => raises(rank, GLOO.0, GLOO.1),
                1 => raises(rank, RESET.0, RESET.1),
                2 => raises(rank, "ValueError", "boom"),
                3 => exit(rank, 0),
                4 | 5 => exit(rank, 1),
                6 => killed(rank, 11),
                _ => mpi(rank, MpiEvent::Aborted { code: 1, message: None }),
            };
            if what <= 2 {
                reported[at].get_or_insert(what < 2);
            }
            ended[at] = (3..=6).contains(&what);
            let is_own = match what {
                2 | 4..=6 => reported[at] != Some(true),
                7 => true,
                _ => false,
            };
            if what >= 4 {
                first.get_or_insert(now);
            }
            if is_own && first.is_some() {
                own.get_or_insert(now);
            }
            events.push((now, event));
        }
        let stop = stop_in(rules(), events);
        prop_assert_eq!(stop.is_some(), first.is_some());
        if let (Some(stop), Some(first)) = (stop, first) {
            let patience = CAUSE_PATIENCE.as_millis() as u64;
            let most = own.unwrap_or(u64::MAX).min(first + patience);
            prop_assert!((first..=most).contains(&stop), "stopped at {stop}, first {first}, own {own:?}");
        }
    }
}

#[test]
fn the_stop_waits_for_the_cause_while_only_victims_have_failed() {
    let kind_only = |rank| {
        let exception = Exception { kind: "RuntimeError".to_owned(), ..Exception::default() };
        says(rank, Testimony::Uncaught(exception))
    };
    let child = |pid| {
        let exception = Exception { kind: "ValueError".to_owned(), message: "x".to_owned(), ..Exception::default() };
        Event::Testimony { worker: worker(1), pid: Pid(pid), testimony: Testimony::Uncaught(exception) }
    };
    let abort = |code| Event::Mpi { worker: worker(1), event: MpiEvent::Aborted { code, message: None } };
    let table: Vec<(&str, Events, u64)> = vec![
        ("nobody says more", vec![], 2_110),
        ("a rank raises", vec![(500, raises(1, "ValueError", "boom"))], 500),
        ("a rank had raised before, and is on its way out", vec![(50, raises(1, "ValueError", "boom"))], 110),
        ("a rank exits without a word", vec![(500, exit(1, 3))], 500),
        ("a rank crashes", vec![(500, killed(2, 11))], 500),
        ("a rank aborts", vec![(500, abort(3))], 500),
        ("the others lose a peer too", vec![(120, raises(1, GLOO.0, GLOO.1)), (125, raises(2, RESET.0, RESET.1))], 125),
        ("one of them may still report", vec![(120, raises(1, GLOO.0, GLOO.1)), (130, exit(1, 1))], 2_110),
        ("the others succeed", vec![(300, exit(1, 0)), (400, exit(2, 0))], 400),
        ("only the type is known yet", vec![(120, kind_only(1))], 2_110),
        ("the type, then a loss", vec![(90, kind_only(1)), (300, raises(1, GLOO.0, GLOO.1))], 2_110),
        ("the type, then a cause", vec![(90, kind_only(1)), (300, raises(1, "RuntimeError", "no data"))], 300),
        ("a child may fail without harm", vec![(300, child(900))], 2_110),
        ("a late loss does not extend it", vec![(1_900, raises(1, GLOO.0, GLOO.1))], 2_110),
    ];
    for (case, then, expected) in table {
        assert_eq!(stopped_at(rules(), GLOO, then.clone()), Some(expected), "{case}");
        assert_eq!(stopped_at(rules(), RESET, then), Some(expected), "{case}");
    }
}

#[test]
fn the_stop_does_not_wait_where_a_failure_speaks_for_itself() {
    for own in
        [("ValueError", "boom"), ("ConnectionRefusedError", "[Errno 111] Connection refused"), ("SystemExit", "3")]
    {
        assert_eq!(stopped_at(rules(), own, vec![]), Some(110), "{own:?}");
    }
    let short = Rules { grace_failure: Duration::from_millis(300), ..rules() };
    assert_eq!(stopped_at(short, GLOO, vec![]), Some(410), "the grace bounds it");
    let none = Rules { grace_failure: Duration::ZERO, ..rules() };
    assert_eq!(stopped_at(none, GLOO, vec![]), Some(110));
    assert_eq!(stopped_at(Rules { keep_going: true, ..rules() }, GLOO, vec![]), None);
    assert_eq!(stopped_at(rules(), GLOO, vec![(500, Event::Signal(15))]), Some(500), "whoever asks is obeyed");
    let timeout = Rules { timeout: Some(Duration::from_millis(700)), ..rules() };
    assert_eq!(stopped_at(timeout, GLOO, vec![]), Some(700));
    let aborts = Event::Mpi { worker: worker(0), event: MpiEvent::Aborted { code: 1, message: None } };
    assert_eq!(stopped_at(rules(), GLOO, vec![(105, aborts)]), Some(105), "it asked for the end");
}

#[test]
fn who_reports_the_cause_while_the_stop_waits_is_the_culprit() {
    let mut gang = gang(3);
    for (at, event) in [
        (100, raises(0, GLOO.0, GLOO.1)),
        (101, raises(2, GLOO.0, GLOO.1)),
        (110, exit(0, 1)),
        (112, exit(2, 1)),
        (1_600, raises(1, "ValueError", "died slowly")),
    ] {
        feed(&mut gang, at, event);
    }
    feed(&mut gang, 1_610, exit(1, 1));
    let verdict = verdict(&gang);
    assert_eq!(culprit(&verdict), Some(Rank(1)));
    assert_eq!(verdict.fates, [Fate::Victim, Fate::Culprit, Fate::Victim]);
}

#[test]
fn events_are_dated_by_their_node_and_waits_counted_from_when_they_became_known() {
    let mut gang = gang(2);
    let mut of = |now: u64, at: u64, event: Event| {
        let moment = Moment { now: Duration::from_millis(now), at: Duration::from_millis(at), clock: None };
        let mut effects = Vec::new();
        gang.handle_of(moment, event, &mut effects);
        (effects.len(), gang.stop_ordered())
    };
    let stopped = (1, Some(Duration::from_millis(500)));
    assert_eq!(of(500, 400, exit(1, 3)), stopped, "the stop is ordered when the failure becomes known");
    of(510, 300, killed(0, 15));
    let record = gang.ranks().get(Rank(0)).expect("a rank");
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
        let moment = Moment { now: Duration::from_millis(510), at: Duration::from_millis(200), clock: None };
        gang.handle_of(moment, end, &mut Vec::new());
        feed(&mut gang, 520, killed(1, 15));
        let verdict = verdict(&gang);
        assert_eq!((verdict.class, culprit(&verdict)), (Some(crate::evidence::Class::LauncherLost), None));
    }
}
