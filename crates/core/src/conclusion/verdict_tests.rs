use super::*;
use crate::evidence::MpiEvent;
use crate::gang::Moment;
use crate::gang::{Event, Rules};
use crate::grace::StopRecord;
use crate::headline::{Circumstances, headline};
use crate::ids::{GangId, NodeId, worker};
use crate::node_clock::Reading;
use crate::report::OutputFate;
use crate::stderr::Words;
use crate::testimony::Testimony;

/// The leader of rank r has the pid 100 + r.
fn gang(size: u32) -> Gang {
    let rules = Rules {
        grace_failure: Duration::from_secs(5),
        grace_outside: Duration::from_secs(25),
        timeout: None,
        keep_going: false,
        terminal: None,
    };
    let mut gang = Gang::new(GangId::default(), size, rules);
    for rank in 0..size {
        feed(&mut gang, 0, Event::Started { worker: worker(rank), pid: leader(rank) });
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
    Event::Ended { worker: worker(rank), status: WorkerStatus::Exited { code } }
}

fn killed(rank: u32, signal: i32) -> Event {
    Event::Ended { worker: worker(rank), status: WorkerStatus::Signaled { signal, core_dumped: false } }
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
    Event::Testimony { worker: worker(rank), pid: leader(rank), testimony }
}

fn raises(rank: u32, exception: Exception) -> Event {
    says(rank, Testimony::Uncaught(exception))
}

fn words(rank: u32, exception: Option<Exception>, peer_lost: Option<&str>) -> Event {
    let failure = exception.map(|exception| (Source::Stderr, exception));
    let words = Words { failure, peer_lost: peer_lost.map(str::to_owned), aborted: None, last_line: None };
    Event::LastWords { worker: worker(rank), words }
}

fn stuck(rank: u32, place: StuckIn) -> Event {
    Event::Stuck { worker: worker(rank), pid: leader(rank), place, since: Duration::from_millis(1), leader: true }
}

/// What happens to a gang, with its time in milliseconds.
type Events = Vec<(u64, Event)>;

/// A gang of 3 ranks after these events; its clock ticks whenever it asks for that.
fn after(events: Events) -> Gang {
    let mut gang = gang(3);
    for (ms, event) in events {
        while let Some(due) = gang.deadline().filter(|due| *due < Duration::from_millis(ms)) {
            gang.handle(due, Event::Tick, &mut Vec::new());
        }
        feed(&mut gang, ms, event);
    }
    gang
}

/// Who failed, of what class, why, and the exit code.
type Told = (u32, Class, String, u8);

/// Feeds a gang of 3 ranks.
fn conclude(events: Events) -> (Option<Told>, Vec<Fate>) {
    let gang = after(events);
    let verdict = verdict(&gang);
    let code = verdict.code.0;
    let told = verdict.culprit.map(|culprit| (culprit.rank.number(), culprit.class, culprit.cause, code));
    (told, verdict.fates)
}

fn told(rank: u32, class: Class, cause: &str, code: u8) -> Option<Told> {
    Some((rank, class, cause.to_owned(), code))
}

#[test]
fn each_fact_gives_its_class_its_cause_and_its_code() {
    let inited = |rank| Event::Mpi { worker: worker(rank), event: MpiEvent::Inited };
    let table: Vec<(Events, Option<Told>)> = vec![
        (vec![(1, exit(1, 3))], told(1, Class::ExitCode, "exited with code 3", 3)),
        (vec![(1, killed(1, 11))], told(1, Class::Signal, "killed by SIGSEGV", 139)),
        (vec![(1, raises(1, boom())), (2, exit(1, 1))], told(1, Class::Exception, "ValueError: boom", 1)),
        (vec![(1, exit(1, 1)), (2, words(1, Some(boom()), None))], told(1, Class::Exception, "ValueError: boom", 1)),
        (
            vec![(1, raises(1, exception("SystemExit", "no data"))), (2, exit(1, 1))],
            told(1, Class::ExitCode, "no data", 1),
        ),
        (
            vec![(1, exit(1, 255)), (2, words(1, Some(exception("", "no data at main.pl line 3")), None))],
            told(1, Class::ExitCode, "no data at main.pl line 3", 255),
        ),
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
            vec![(1, Event::Stopped { worker: worker(1), signal: 19 })],
            told(1, Class::Stopped, "stopped by SIGSTOP, which rankrun did not send", 147),
        ),
        (
            vec![(1, Event::OutOfMemory { worker: worker(1), detail: String::new() }), (1, killed(1, 9))],
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
            Event::Testimony { worker: worker(1), pid: Pid(900), testimony: Testimony::Uncaught(boom()) },
            Event::Testimony { worker: worker(1), pid: Pid(900), testimony: Testimony::Exiting { code } },
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
            // The stop waits for a word of rank 1.
            (end + 2_100, killed(1, 15)),
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
        worker: worker(1),
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

/// A connection may be to anything: a rank that has done its work and left is not accused for the loss of one.
#[test]
fn a_traceback_that_a_child_reported_and_the_rank_survived_is_not_the_ranks_own() {
    let job = |printed: Exception, last_line: &str| {
        let mut gang = gang(3);
        let child = |testimony| Event::Testimony { worker: worker(1), pid: Pid(900), testimony };
        let printed = Words {
            failure: Some((Source::Stderr, printed)),
            last_line: Some(last_line.to_owned()),
            ..Words::default()
        };
        for (ms, event) in [
            (10, child(Testimony::Uncaught(exception("ValueError", "inner trouble")))),
            (11, child(Testimony::Exiting { code: 1 })),
            (40, raises(1, exception("SystemExit", "7"))),
            (41, says(1, Testimony::Exiting { code: 7 })),
            (45, exit(1, 7)),
            (50, Event::LastWords { worker: worker(1), words: printed }),
        ] {
            feed(&mut gang, ms, event);
        }
        let culprit = verdict(&gang).culprit.expect("one has failed");
        (culprit.class, culprit.cause, culprit.pid, culprit.code.0)
    };
    let inner = || exception("ValueError", "inner trouble");
    assert_eq!(
        job(inner(), "solver gave up: no mesh"),
        (
            Class::ExitCode,
            "exited with code 7; last line of stderr: solver gave up: no mesh".to_owned(),
            Some(leader(1)),
            7
        )
    );
    assert_eq!(
        job(inner(), "ValueError: inner trouble"),
        (
            Class::Exception,
            "ValueError: inner trouble (in a child process; then the rank exited with code 7)".to_owned(),
            Some(Pid(900)),
            7
        )
    );
    let own = exception("ValueError", "outer trouble");
    assert_eq!(
        job(own, "ValueError: outer trouble"),
        (Class::Exception, "ValueError: outer trouble".to_owned(), Some(leader(1)), 7),
        "a traceback that no child reported is the rank's"
    );
}

#[test]
fn a_suspect_that_was_ended_is_stuck_where_its_mpi_life_says() {
    for (inited, expected) in [
        (true, (Class::StuckInFinalize, Some(StuckIn::Finalize))),
        (false, (Class::StuckInExitHandlers, Some(StuckIn::ExitHandlers))),
    ] {
        let mut gang = gang(3);
        if inited {
            feed(&mut gang, 1, Event::Mpi { worker: worker(1), event: MpiEvent::Inited });
        }
        feed(
            &mut gang,
            10_300,
            Event::Suspect { worker: worker(1), exception: boom(), end: true, silent: crate::testimony::SUSPECT_AFTER },
        );
        feed(&mut gang, 10_310, killed(1, 15));
        let culprit = verdict(&gang).culprit.expect("one has failed");
        assert_eq!((culprit.class, culprit.stuck_in), expected);
        assert_eq!((culprit.at, culprit.stuck_since), (Duration::from_millis(300), Some(Duration::from_millis(300))));
        assert_eq!(culprit.cause, "ValueError: boom");
    }
}

#[test]
fn an_exit_with_a_message_is_of_one_class_whether_it_ends_or_our_stop_does() {
    let exits = || (1, raises(1, exception("SystemExit", "no data")));
    let expected = told(1, Class::ExitCode, "no data", 1);
    assert_eq!(conclude(vec![exits(), (2, exit(1, 1))]).0, expected);
    assert_eq!(conclude(vec![exits(), (2, exit(0, 1)), (4, killed(1, 15))]).0, expected);
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
fn what_exits_after_the_stop_without_having_been_sent_a_signal_has_failed_too() {
    for late in [12, 80, 900] {
        let mut gang = gang(3);
        feed(&mut gang, 10, exit(0, 3));
        feed(&mut gang, late, exit(1, 3));
        let record = StopRecord { signals: vec![(15, Duration::from_millis(11))], ..StopRecord::default() };
        feed(&mut gang, late, Event::Signalled { worker: worker(2), record });
        feed(&mut gang, late, exit(2, 3));
        let verdict = verdict(&gang);
        assert_eq!(verdict.fates, [Fate::Culprit, Fate::FailedToo, Fate::EndedByRankrun], "{late}");
        let how = |rank: usize| verdict.endings[rank].how.clone();
        assert_eq!((how(1), how(2)), (None, Some("exited 3 on SIGTERM".to_owned())), "{late}");
    }
}

#[test]
fn what_our_own_sigint_raises_is_never_the_cause() {
    let sent = |ms| StopRecord { signals: vec![(2, Duration::from_millis(ms))], ..StopRecord::default() };
    let traceback = "Traceback (most recent call last):\nKeyboardInterrupt\n";
    let interrupt = || Exception { traceback: traceback.to_owned(), ..exception("KeyboardInterrupt", "") };
    let traceback = "ConnectionResetError: [Errno 104] Connection reset by peer\n\nDuring handling of the above exception, \
        another exception occurred:\n\nTraceback (most recent call last):\nKeyboardInterrupt\n";
    let in_handler = Exception { traceback: traceback.to_owned(), ..interrupt() };
    // With its hook, and without: then its time is that of its end, which may be within moments of our signal.
    let (julia, ruby) = (exception("InterruptException", ""), exception("Interrupt", ""));
    let table = [(true, interrupt()), (false, interrupt()), (true, in_handler), (false, julia), (false, ruby)];
    for (reported, raised) in table {
        let mut gang = gang(3);
        feed(&mut gang, 10, raises(0, lost()));
        feed(&mut gang, 11, exit(0, 1));
        feed(&mut gang, 12, Event::Signal(2));
        if reported {
            feed(&mut gang, 14, raises(1, raised.clone()));
        }
        feed(&mut gang, 16, Event::Signalled { worker: worker(1), record: sent(13) });
        feed(&mut gang, 16, exit(1, 1));
        if !reported {
            feed(&mut gang, 17, words(1, Some(raised), None));
        }
        let verdict = verdict(&gang);
        let culprit = verdict.culprit.map(|culprit| culprit.rank);
        assert_eq!((culprit, verdict.fates[1]), (Some(Rank(0)), Fate::EndedByRankrun), "reported: {reported}");
    }
    // Before our signal it is somebody else's.
    let mut gang = gang(3);
    feed(&mut gang, 10, raises(1, interrupt()));
    feed(&mut gang, 11, exit(1, 1));
    feed(&mut gang, 12, exit(0, 3));
    assert_eq!(verdict(&gang).culprit.map(|culprit| culprit.cause), Some("KeyboardInterrupt".to_owned()));
}

#[test]
fn a_rank_that_repeats_the_failure_of_another_is_its_victim() {
    let repeated = || exception("RuntimeError", "rank 1 failed: ValueError: bad sample\nsee its log");
    let own = || exception("ValueError", "bad sample");
    let culprit_and_fate = |events: Events, rank: usize| {
        let (culprit, fates) = conclude(events);
        (culprit.map(|(rank, ..)| rank), fates[rank])
    };
    // What is seen first is the end of the rank that repeats it.
    let told = vec![(10, raises(1, own())), (12, raises(0, repeated())), (13, exit(0, 1)), (14, exit(1, 1))];
    assert_eq!(culprit_and_fate(told, 0), (Some(1), Fate::Victim));
    let printed = vec![
        (10, exit(0, 1)),
        (14, exit(1, 1)),
        (20, words(0, Some(repeated()), None)),
        (20, words(1, Some(own()), None)),
    ];
    assert_eq!(culprit_and_fate(printed, 0), (Some(1), Fate::Victim), "the order of two ends is not exact");
    // It cannot repeat what comes later.
    let before = vec![(10, raises(0, repeated())), (12, raises(1, own())), (13, exit(0, 1)), (14, exit(1, 1))];
    assert_eq!(culprit_and_fate(before, 1), (Some(0), Fate::FailedToo));
    let both = vec![(10, raises(0, own())), (12, raises(1, own())), (13, exit(0, 1)), (14, exit(1, 1))];
    assert_eq!(culprit_and_fate(both, 1), (Some(0), Fate::FailedToo), "the same words are nobody's echo");
    let short = || exception("E", "no");
    let longer = || exception("E", "E: no more");
    let exits = || exception("SystemExit", "no data for this epoch");
    let both = vec![(10, raises(0, exits())), (12, raises(1, exits())), (13, exit(0, 1)), (14, exit(1, 1))];
    assert_eq!(culprit_and_fate(both, 1), (Some(0), Fate::FailedToo), "also where the text is all that is printed");
    // Two that fail each of its own, with words that begin alike.
    let of_sample = |number: u32| exception("ValueError", &format!("bad sample {number}"));
    let alike = vec![(10, raises(1, of_sample(1))), (12, raises(0, of_sample(12))), (13, exit(0, 1)), (14, exit(1, 1))];
    assert_eq!(culprit_and_fate(alike, 0), (Some(1), Fate::FailedToo));
    let of_another = exception("RuntimeError", "rank 2 failed (ValueError: bad sample 12)");
    let other = |number| {
        let first = [(10, raises(1, of_sample(number))), (12, raises(0, of_another.clone()))];
        culprit_and_fate(first.into_iter().chain([(13, exit(0, 1)), (14, exit(1, 1))]).collect(), 0).1
    };
    assert_eq!((other(12), other(1)), (Fate::Victim, Fate::FailedToo));
    let by_chance = vec![(10, raises(0, short())), (12, raises(1, longer())), (13, exit(0, 1)), (14, exit(1, 1))];
    assert_eq!(culprit_and_fate(by_chance, 1), (Some(0), Fate::FailedToo));
}

/// A verdict of thousands of ranks is made on the loop that serves the job. It took minutes where each failure was
/// compared with each other.
#[test]
#[expect(clippy::disallowed_methods, reason = "it is the time that this takes which is tested")]
fn a_verdict_of_many_failures_takes_no_time_to_speak_of() {
    for is_same in [true, false] {
        let mut gang = gang(4_000);
        for rank in 0..4_000 {
            let number = if is_same { 0 } else { rank };
            feed(
                &mut gang,
                10,
                raises(rank, exception("ValueError", &format!("bad sample {number} of the last epoch"))),
            );
        }
        for rank in 0..4_000 {
            feed(&mut gang, 20, exit(rank, 1));
        }
        let begin = std::time::Instant::now();
        let verdict = verdict(&gang);
        assert_eq!(verdict.fates.iter().filter(|fate| **fate == Fate::FailedToo).count(), 3_999);
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    }
}

#[test]
fn who_exits_with_the_code_of_an_mpi_abort_was_taken_along() {
    let inited = |rank| Event::Mpi { worker: worker(rank), event: MpiEvent::Inited };
    let by_banner = || Event::LastWords { worker: worker(1), words: Words { aborted: Some(8), ..Words::default() } };
    let job = |first: Event, code: u8| {
        let events =
            vec![(1, inited(0)), (1, inited(1)), (1, inited(2)), (10, first), (12, exit(2, code)), (14, killed(1, 15))];
        conclude(events.into_iter().chain([(20, by_banner())]).collect())
    };
    let (culprit, fates) = job(exit(0, 8), 8);
    assert_eq!(culprit, told(1, Class::Abort, "abort with code 8", 8));
    assert_eq!(fates, [Fate::Victim, Fate::Culprit, Fate::Victim]);
    let (_, fates) = job(exit(0, 8), 3);
    assert_eq!(fates[2], Fate::FailedToo, "its code is another");
    let late = [(1, inited(1)), (1, inited(2)), (12, exit(2, 8)), (900, killed(1, 15)), (901, by_banner())];
    assert_eq!(conclude(late.into()).1[2], Fate::Victim, "its library ends it long before our signal ends the other");
    let reported = |code| Event::Mpi { worker: worker(1), event: MpiEvent::Aborted { code, message: None } };
    let (culprit, fates) = job(reported(8), 8);
    assert_eq!((culprit.map(|(rank, ..)| rank), fates[2]), (Some(1), Fate::Victim));
    let (culprit, fates) = job(reported(7), 8);
    assert_eq!(culprit.map(|(rank, .., code)| (rank, code)), Some((1, 8)), "the first MPI_Abort returned");
    assert_eq!(fates[2], Fate::Victim);
    let (_, fates) = job(reported(8), 0);
    assert_eq!(fates[2], Fate::Victim, "it left MPI without MPI_Finalize");
    let long_after = vec![(1, inited(1)), (1, inited(2)), (10, reported(8)), (900, exit(2, 8)), (910, killed(1, 15))];
    assert_eq!(conclude(long_after).1[2], Fate::Victim, "our signal had not come to it on a busy machine");
    let without_mpi = vec![(1, inited(1)), (10, reported(8)), (900, exit(2, 8)), (910, killed(1, 15))];
    assert_eq!(conclude(without_mpi).1[2], Fate::FailedToo);
}

#[test]
fn who_exits_on_our_signal_was_not_taken_along_by_an_mpi_abort() {
    let inited = |rank| Event::Mpi { worker: worker(rank), event: MpiEvent::Inited };
    let aborts = || Event::Mpi { worker: worker(1), event: MpiEvent::Aborted { code: 8, message: None } };
    let signalled = |ms| {
        let signals = vec![(15, Duration::from_millis(ms))];
        Event::Signalled { worker: worker(2), record: StopRecord { signals, ..StopRecord::default() } }
    };
    let job = |sent: u64, exited: u64| {
        let both = vec![(1, inited(1)), (1, inited(2)), (10, aborts())];
        let ends = vec![(exited, signalled(sent)), (exited, exit(2, 8)), (1_000, killed(1, 15))];
        let verdict = verdict(&after(both.into_iter().chain(ends).collect()));
        (verdict.fates[2], verdict.endings[2].how.clone())
    };
    assert_eq!(job(11, 900), (Fate::EndedByRankrun, Some("exited 8 on SIGTERM".to_owned())));
    assert_eq!(job(901, 900).0, Fate::Victim, "the signal came after its end");
    assert_eq!(job(860, 900).0, Fate::Victim, "the abort had long come to it when the signal was sent");
    // Words of its own after our signal, too.
    let repeated = exception("RuntimeError", "rank 1 failed: ValueError: bad sample");
    let first = [(10, raises(1, exception("ValueError", "bad sample"))), (11, exit(1, 1))];
    let after = [(900, signalled(12)), (900, raises(2, repeated)), (901, exit(2, 1))];
    let events = first.into_iter().chain(after).collect();
    assert_eq!(conclude(events).1[2], Fate::EndedByRankrun);
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

#[path = "victim_tests.rs"]
mod victims;

#[path = "clock_tests.rs"]
mod clocks;

#[test]
fn a_rank_that_is_killed_for_its_cpu_time_is_told_so_only_if_it_has_used_it() {
    let cause = |used: f64, signal: i32| {
        let used = Duration::from_secs_f64(used);
        let limit = Event::CpuTime { worker: worker(1), used, limit: Duration::from_secs(2) };
        let mut gang = gang(2);
        feed(&mut gang, 1, limit);
        feed(&mut gang, 1, killed(1, signal));
        let verdict = verdict(&gang);
        let culprit = verdict.culprit.expect("a culprit");
        (culprit.class, culprit.cause, verdict.code)
    };
    let (class, text, code) = cause(1.7, 9);
    assert_eq!((class, code), (Class::Signal, ExitCode::signal(9)));
    assert_eq!(text, "killed by SIGKILL: used 1.7 s of its CPU time limit of 2 s (ulimit -t)");
    assert_eq!(cause(1.2, 9).1, "killed by SIGKILL", "somebody else has killed it");
    assert_eq!(cause(2.1, 15).1, "killed by SIGTERM");
}
