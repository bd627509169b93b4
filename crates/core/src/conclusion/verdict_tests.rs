use super::*;
use crate::evidence::MpiEvent;
use crate::gang::{Event, Rules};
use crate::stderr::Words;
use crate::testimony::Testimony;

/// The leader of rank r has the pid 100 + r.
fn gang(size: u32) -> Gang {
    let rules = Rules {
        grace_failure: Duration::from_secs(5),
        grace_outside: Duration::from_secs(25),
        timeout: None,
        keep_going: false,
    };
    let mut gang = Gang::new(size, rules);
    for rank in 0..size {
        feed(&mut gang, 0, Event::Started { rank: Rank(rank), pid: leader(rank) });
    }
    gang
}

fn leader(rank: u32) -> Pid {
    Pid(100 + rank as i32)
}

fn feed(gang: &mut Gang, ms: u64, event: Event) {
    gang.handle(Duration::from_millis(ms), event, &mut Vec::new());
}

fn exit(rank: u32, code: u8) -> Event {
    Event::Ended { rank: Rank(rank), status: WorkerStatus::Exited { code } }
}

fn killed(rank: u32, signal: i32) -> Event {
    Event::Ended { rank: Rank(rank), status: WorkerStatus::Signaled { signal, core_dumped: false } }
}

fn exception(kind: &str, message: &str) -> Exception {
    Exception { kind: kind.to_owned(), message: message.to_owned(), ..Exception::default() }
}

fn boom() -> Exception {
    exception("ValueError", "boom")
}

fn lost() -> Exception {
    exception("RuntimeError", "[gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:4711")
}

fn says(rank: u32, testimony: Testimony) -> Event {
    Event::Testimony { rank: Rank(rank), pid: leader(rank), testimony }
}

fn raises(rank: u32, exception: Exception) -> Event {
    says(rank, Testimony::Uncaught(exception))
}

fn words(rank: u32, exception: Option<Exception>, peer_lost: Option<&str>) -> Event {
    let failure = exception.map(|exception| (Source::Stderr, exception));
    let words = Words { failure, peer_lost: peer_lost.map(str::to_owned), aborted: None, last_line: None };
    Event::LastWords { rank: Rank(rank), words }
}

fn stuck(rank: u32, place: StuckIn) -> Event {
    Event::Stuck { rank: Rank(rank), pid: leader(rank), place, since: Duration::from_millis(1), leader: true }
}

/// What happens to a gang, with its time in milliseconds.
type Events = Vec<(u64, Event)>;

/// Who failed, of what class, why, and the exit code.
type Told = (u32, Class, String, u8);

/// Feeds a gang of 3 ranks.
fn conclude(events: Events) -> (Option<Told>, Vec<Fate>) {
    let mut gang = gang(3);
    for (ms, event) in events {
        feed(&mut gang, ms, event);
    }
    let verdict = verdict(&gang);
    let code = verdict.code.0;
    let told = verdict.culprit.map(|culprit| (culprit.rank.0, culprit.class, culprit.cause, code));
    (told, verdict.fates)
}

fn told(rank: u32, class: Class, cause: &str, code: u8) -> Option<Told> {
    Some((rank, class, cause.to_owned(), code))
}

#[test]
fn each_fact_gives_its_class_its_cause_and_its_code() {
    let inited = |rank| Event::Mpi { rank: Rank(rank), event: MpiEvent::Inited };
    let table: Vec<(Events, Option<Told>)> = vec![
        (vec![(1, exit(1, 3))], told(1, Class::ExitCode, "exited with code 3", 3)),
        (vec![(1, killed(1, 11))], told(1, Class::Signal, "killed by SIGSEGV", 139)),
        (vec![(1, raises(1, boom())), (2, exit(1, 1))], told(1, Class::Exception, "ValueError: boom", 1)),
        (vec![(1, exit(1, 1)), (2, words(1, Some(boom()), None))], told(1, Class::Exception, "ValueError: boom", 1)),
        (
            vec![(1, killed(1, 6)), (2, words(1, Some(exception("std::terminate", "")), None))],
            told(1, Class::Signal, "std::terminate (killed by SIGABRT)", 134),
        ),
        (
            vec![
                (1, raises(1, boom())),
                (1, says(1, Testimony::Exiting { code: 1 })),
                (500, stuck(1, StuckIn::Finalize)),
            ],
            told(1, Class::StuckInFinalize, "ValueError: boom", 1),
        ),
        (
            vec![
                (1, raises(1, exception("SystemExit", "3"))),
                (1, says(1, Testimony::Exiting { code: 3 })),
                (500, stuck(1, StuckIn::Finalize)),
            ],
            told(1, Class::StuckInFinalize, "exited with code 3", 3),
        ),
        (
            vec![(1, raises(1, boom())), (900, stuck(1, StuckIn::ExitHandlers))],
            told(1, Class::StuckInExitHandlers, "ValueError: boom", 1),
        ),
        (
            vec![(1, Event::Stopped { rank: Rank(1), signal: 19 })],
            told(1, Class::Stopped, "stopped by SIGSTOP, which rankrun did not send", 147),
        ),
        (
            vec![(1, Event::OutOfMemory { rank: Rank(1), detail: String::new() }), (1, killed(1, 9))],
            told(1, Class::OutOfMemory, "out of memory: killed by the kernel", 137),
        ),
        (
            vec![(1, inited(0)), (2, exit(1, 0))],
            told(1, Class::ExitBeforeInit, "exited with code 0 before MPI_Init, while others waited for it there", 1),
        ),
        (
            vec![(1, inited(0)), (1, inited(1)), (2, exit(1, 0)), (1002, Event::Tick)],
            told(1, Class::ExitWithoutFinalize, "exited with code 0 without MPI_Finalize, while others were in MPI", 1),
        ),
        (vec![(1, exit(0, 0)), (1, exit(1, 0)), (1, exit(2, 0))], None),
    ];
    for (events, expected) in table {
        let case = format!("{events:?}");
        assert_eq!(conclude(events).0, expected, "{case}");
    }
}

#[test]
fn an_abort_has_its_own_code_and_its_message_if_it_says_any() {
    let abort = |code, message: Option<&str>| {
        let testimony = Testimony::Abort { code, message: message.map(str::to_owned) };
        conclude(vec![(1, says(2, testimony)), (2, killed(2, 9))]).0
    };
    assert_eq!(abort(3, None), told(2, Class::Abort, "abort with code 3", 3));
    assert_eq!(abort(0, Some("")), told(2, Class::Abort, "abort with code 0", 1));
    assert_eq!(abort(256, Some("no data")), told(2, Class::Abort, "abort with code 256: no data", 1));
    let raised = vec![(1, raises(2, boom())), (2, says(2, Testimony::Abort { code: 1, message: None }))];
    assert_eq!(conclude(raised).0, told(2, Class::Abort, "ValueError: boom (abort with code 1)", 1));
}

#[test]
fn a_victim_that_is_seen_first_is_not_the_culprit() {
    let (culprit, fates) = conclude(vec![
        (10, raises(0, lost())),
        (11, exit(0, 1)),
        (12, raises(1, boom())),
        (13, exit(1, 1)),
        (14, killed(2, 15)),
    ]);
    assert_eq!(culprit, told(1, Class::Exception, "ValueError: boom", 1));
    assert_eq!(fates, [Fate::Victim, Fate::Culprit, Fate::EndedByRankrun]);
}

#[test]
fn a_rank_that_raised_and_is_ended_on_its_way_out_is_the_culprit_of_its_victims() {
    let (culprit, fates) = conclude(vec![
        (10, raises(1, boom())),
        (20, raises(0, lost())),
        (21, raises(2, lost())),
        (900, exit(0, 1)),
        (950, killed(1, 15)),
        (950, killed(2, 15)),
    ]);
    assert_eq!(culprit, told(1, Class::Exception, "ValueError: boom", 1));
    assert_eq!(fates, [Fate::Victim, Fate::Culprit, Fate::Victim]);

    let (culprit, _) = conclude(vec![
        (10, raises(1, exception("SystemExit", "3"))),
        (20, raises(0, lost())),
        (30, exit(0, 1)),
        (40, killed(1, 15)),
    ]);
    assert_eq!(culprit, told(1, Class::ExitCode, "exited with code 3", 3));
}

#[test]
fn what_a_process_has_survived_is_not_held_against_its_rank() {
    let child = |code| {
        [
            Event::Testimony { rank: Rank(1), pid: Pid(900), testimony: Testimony::Uncaught(boom()) },
            Event::Testimony { rank: Rank(1), pid: Pid(900), testimony: Testimony::Exiting { code } },
        ]
    };
    let job = |between: u64, code: i32| {
        let [uncaught, exiting] = child(code);
        let end = 10 + between;
        conclude(vec![
            (10, uncaught),
            (11, exiting),
            (end, raises(0, lost())),
            (end + 1, exit(0, 1)),
            (end + 2, killed(1, 15)),
        ])
    };
    let victim = |told: Option<Told>| told.is_some_and(|(rank, ..)| rank == 0);
    assert!(!victim(job(20, 1).0), "it has just raised, and a peer was lost");
    assert!(victim(job(20, 0).0), "an exit with 0 takes it back");
    assert!(victim(job(20_000, 1).0), "the rank has lived on");

    let [uncaught, exiting] = child(1);
    let crash = vec![(10, uncaught), (11, exiting), (900, killed(1, 11))];
    assert_eq!(conclude(crash).0, told(1, Class::Signal, "killed by SIGSEGV", 139));
    let [uncaught, exiting] = child(1);
    let other = vec![(10, uncaught), (11, exiting), (5000, exit(1, 3))];
    assert_eq!(conclude(other).0, told(1, Class::ExitCode, "exited with code 3", 3));
    let [uncaught, exiting] = child(1);
    let handed_on = vec![(10, uncaught), (11, exiting), (100, exit(1, 2))];
    assert_eq!(
        conclude(handed_on).0,
        told(1, Class::Exception, "ValueError: boom (in a child process; then the rank exited with code 2)", 2)
    );
    let [uncaught, exiting] = child(1);
    let alone = Event::Stuck {
        rank: Rank(1),
        pid: Pid(900),
        place: StuckIn::Finalize,
        since: Duration::from_millis(11),
        leader: false,
    };
    let killed_alone = vec![(10, uncaught), (11, exiting), (8000, alone), (8010, exit(1, 137))];
    assert_eq!(conclude(killed_alone).0, told(1, Class::Exception, "ValueError: boom", 137));
    let [uncaught, exiting] = child(1);
    let same = vec![(10, uncaught), (11, exiting), (900, exit(1, 1))];
    assert_eq!(conclude(same).0, told(1, Class::Exception, "ValueError: boom", 1));

    let (culprit, fates) =
        conclude(vec![(10, raises(1, boom())), (20, exit(1, 0)), (30, exit(0, 3)), (31, killed(2, 15))]);
    assert_eq!(culprit, told(0, Class::ExitCode, "exited with code 3", 3));
    assert_eq!(fates[1], Fate::Succeeded);
}

#[test]
fn what_is_told_after_the_stop_does_not_outweigh_what_caused_it() {
    // A handler of our SIGTERM that raises.
    let handler = vec![(10, exit(0, 3)), (15, raises(1, exception("Terminated", ""))), (16, exit(1, 1))];
    assert_eq!(conclude(handler).0, told(0, Class::ExitCode, "exited with code 3", 3));
    // A crash that was under way.
    let crash = vec![(10, exit(0, 1)), (15, killed(1, 11))];
    assert_eq!(conclude(crash).0, told(1, Class::Signal, "killed by SIGSEGV", 139));
    let late = vec![(10, exit(0, 1)), (500, killed(1, 11))];
    assert_eq!(conclude(late).0, told(0, Class::ExitCode, "exited with code 1", 1));
}

#[test]
fn of_equal_weight_the_first_decides() {
    let both = vec![(10, raises(2, boom())), (12, raises(0, boom())), (20, exit(0, 1)), (21, exit(2, 1))];
    let (culprit, fates) = conclude(both);
    assert_eq!(culprit.map(|(rank, ..)| rank), Some(2));
    assert_eq!(fates[0], Fate::FailedToo);
}

#[test]
fn a_lost_peer_named_on_stderr_makes_a_victim_unless_an_exception_says_otherwise() {
    let line = Some("Connection reset by peer");
    let victim = vec![(10, exit(0, 1)), (11, exit(1, 2)), (12, words(0, None, line))];
    assert_eq!(conclude(victim).0, told(1, Class::ExitCode, "exited with code 2", 2));
    let culprit = vec![(10, exit(0, 1)), (11, exit(1, 2)), (12, words(0, Some(boom()), line))];
    assert_eq!(conclude(culprit).0, told(0, Class::Exception, "ValueError: boom", 1));
}

#[test]
fn the_programs_own_word_counts_more_than_its_stderr() {
    let events =
        vec![(10, raises(0, boom())), (11, exit(0, 1)), (12, words(0, Some(exception("KeyError", "'x'")), None))];
    assert_eq!(conclude(events).0, told(0, Class::Exception, "ValueError: boom", 1));
}

#[test]
fn a_stop_from_outside_explains_what_comes_after_it() {
    let mut gang = gang(1);
    feed(&mut gang, 10, Event::Signal(2));
    feed(&mut gang, 20, raises(0, exception("KeyboardInterrupt", "")));
    feed(&mut gang, 21, exit(0, 1));
    let told = verdict(&gang);
    assert_eq!((told.code, told.class, told.culprit), (ExitCode(130), Some(Class::Interrupted), None));
}
