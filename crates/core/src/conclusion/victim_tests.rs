//! What is said where only victims are known.

use super::*;

/// The headline of a job of 3 ranks.
fn headline_of(events: Events) -> String {
    let gang = after(events);
    let verdict = verdict(&gang);
    let circumstances = Circumstances { code: verdict.code, output: OutputFate::Written, node: "vm", why_lost: None };
    headline(&verdict, &gang, circumstances)
}

#[test]
fn where_only_victims_are_known_the_headline_says_what_can_be_known() {
    let reset = || exception("ConnectionResetError", "[Errno 104] Connection reset by peer");
    let refused = || exception("ConnectionRefusedError", "[Errno 111] Connection refused");
    let gloo = lost().headline();
    let table: Vec<(Events, String)> = vec![
        (
            vec![
                (10, raises(0, lost())),
                (11, raises(2, lost())),
                (20, exit(0, 1)),
                (21, exit(2, 1)),
                (2_120, killed(1, 15)),
            ],
            format!("no rank is known to have failed of its own: rank 0 was the first to miss a peer: {gloo}"),
        ),
        (
            vec![
                (10, raises(0, lost())),
                (11, raises(2, lost())),
                (12, raises(1, lost())),
                (20, exit(0, 1)),
                (21, exit(1, 1)),
                (22, exit(2, 1)),
            ],
            format!("no rank failed of its own: rank 0 was the first to miss a peer: {gloo}"),
        ),
        (
            // Rank 1 closed its connections before its own exception reached the top.
            vec![
                (10, raises(0, reset())),
                (11, raises(2, reset())),
                (20, exit(0, 1)),
                (21, exit(2, 1)),
                (3_000, raises(1, boom())),
                (3_001, exit(1, 1)),
            ],
            format!("rank 0 was the first to lose a connection: {}", reset().headline()),
        ),
        (
            vec![(5, exit(1, 0)), (10, raises(0, lost())), (11, raises(2, lost())), (20, exit(0, 1)), (21, exit(2, 1))],
            "no rank failed of its own: rank 1 left with code 0, just before the others lost it".to_owned(),
        ),
        (
            vec![(5, exit(1, 0)), (10, raises(0, lost())), (20, exit(0, 1)), (2_120, killed(2, 15))],
            "no rank is known to have failed of its own: rank 1 left with code 0, just before rank 0 lost it"
                .to_owned(),
        ),
        (
            vec![
                (10, raises(0, reset())),
                (11, raises(2, reset())),
                (20, exit(0, 1)),
                (21, exit(2, 1)),
                (2_120, killed(1, 15)),
            ],
            format!(
                "no rank is known to have failed of its own: rank 0 was the first to lose a connection: {}",
                reset().headline()
            ),
        ),
        (
            vec![(10, raises(0, refused())), (20, exit(0, 1)), (25, killed(1, 15)), (25, killed(2, 15))],
            format!("rank 0 failed: {}", refused().headline()),
        ),
        (
            // What rank 2 lost may be rank 0.
            vec![
                (10, raises(0, reset())),
                (20, exit(0, 1)),
                (23, raises(2, lost())),
                (30, exit(2, 1)),
                (2_120, killed(1, 15)),
            ],
            format!("rank 0 failed: {}", reset().headline()),
        ),
        (
            vec![
                (10, raises(0, reset())),
                (15, raises(2, lost())),
                (20, exit(0, 1)),
                (30, exit(2, 1)),
                (2_120, killed(1, 15)),
            ],
            format!(
                "no rank is known to have failed of its own: rank 0 was the first to lose a connection: {}",
                reset().headline()
            ),
        ),
    ];
    for (events, expected) in table {
        let case = format!("{events:?}");
        assert_eq!(headline_of(events), expected, "{case}");
    }
}

#[test]
fn a_rank_that_left_with_0_while_the_others_were_in_a_collective_is_named() {
    let traceback = "Traceback (most recent call last):\n  File \"/a/train.py\", line 6, in <module>\n    dist.all_reduce(t)\n  File \
                     \"/v/site-packages/torch/distributed/c10d_logger.py\", line 83, in wrapper\n    return func()\n  File \
                     \"/v/site-packages/torch/distributed/distributed_c10d.py\", line 3007, in all_reduce\n    work.wait()\n";
    let in_torch = || Exception { traceback: traceback.to_owned(), ..lost() };
    let job = |left: u64| {
        let mut events: Events = vec![(10, raises(0, in_torch())), (11, raises(2, in_torch())), (20, exit(0, 1))];
        events.extend([(left, exit(1, 0)), (400, exit(2, 1))]);
        events.sort_by_key(|(at, _)| *at);
        headline_of(events)
    };
    let named = "no rank failed of its own: rank 1 left with code 0 while the others were in all_reduce";
    assert_eq!(job(5), named);
    assert_eq!(job(300), named, "its connections went before its process");
    let words = vec![(10, raises(0, lost())), (20, exit(0, 1)), (300, exit(1, 0)), (2_120, killed(2, 15))];
    let named = "no rank is known to have failed of its own: rank 1 left with code 0, just after rank 0 lost it";
    assert_eq!(headline_of(words), named);
    // Whoever leaves much later was waited for by nobody.
    let late = vec![(10, raises(0, lost())), (20, exit(0, 1)), (9_000, exit(1, 0)), (9_001, exit(2, 0))];
    assert!(headline_of(late).contains("rank 0 was the first to miss a peer"));
}

#[test]
fn a_rank_that_lost_a_connection_keeps_its_words_and_its_code_whoever_left_before() {
    let reset = || exception("ConnectionResetError", "[Errno 104] Connection reset by peer");
    let refused = || exception("ConnectionRefusedError", "[Errno 111] Connection refused");
    let in_words = "cannot reach the database: [Errno 111] Connection refused";
    let of_code_7 = || vec![(1_000, raises(1, exception("SystemExit", "7"))), (1_001, exit(1, 7))];
    let uncaught = |lost: Exception| vec![(1_000, raises(1, lost)), (1_001, exit(1, 1))];
    let printed = || (1_002, words(1, None, Some(in_words)));
    let inited = Event::Mpi { worker: worker(0), event: MpiEvent::Inited };
    let left = |ms| vec![(ms, exit(0, 0))];
    let (told_refused, told_reset) = (refused().headline(), reset().headline());
    let table: Vec<(Events, Events, String, Class, u8)> = vec![
        (
            left(100),
            [of_code_7(), vec![printed()]].concat(),
            format!("rank 1 failed: {in_words} (rank 0 had left with code 0, 0.9 s before)"),
            Class::ExitCode,
            7,
        ),
        (
            left(990),
            uncaught(refused()),
            format!("rank 1 failed: {told_refused} (rank 0 had left with code 0 just before)"),
            Class::Exception,
            1,
        ),
        (
            // The connections of a process go before it has ended.
            left(1_000),
            vec![(995, raises(1, reset())), (1_001, exit(1, 1))],
            format!("rank 1 failed: {told_reset} (rank 0 left with code 0 at that moment)"),
            Class::Exception,
            1,
        ),
        (
            left(300),
            uncaught(reset()),
            format!("rank 1 failed: {told_reset} (rank 0 had left with code 0, 0.7 s before)"),
            Class::Exception,
            1,
        ),
        (
            left(300),
            [uncaught(reset()), vec![(1_000, raises(2, reset())), (1_002, exit(2, 1))]].concat(),
            format!(
                "no rank failed of its own: rank 1 was the first to lose a connection: {told_reset} \
                 (rank 0 had left with code 0, 0.7 s before)"
            ),
            Class::Exception,
            1,
        ),
        (vec![], uncaught(refused()), format!("rank 1 failed: {told_refused}"), Class::Exception, 1),
        (
            left(100),
            uncaught(lost()),
            "no rank failed of its own: rank 0 left with code 0, 0.9 s before rank 1 lost it".to_owned(),
            Class::LeftEarly,
            1,
        ),
        (
            // Rank 2 lost a rank, and rank 1 was still there then.
            left(100),
            vec![(1_000, raises(1, reset())), (1_001, raises(2, lost())), (1_010, exit(1, 1)), (1_011, exit(2, 1))],
            "no rank failed of its own: rank 0 left with code 0, 0.9 s before the others lost it".to_owned(),
            Class::LeftEarly,
            1,
        ),
        (
            // Whoever is in MPI and leaves without `MPI_Finalize` is missed.
            vec![(10, inited), (900, exit(0, 0))],
            uncaught(reset()),
            "rank 0 failed: left with code 0, 0.1 s before rank 1 lost it".to_owned(),
            Class::ExitWithoutFinalize,
            1,
        ),
    ];
    for (before, then, expected, class, code) in table {
        let others =
            if then.iter().any(|(_, event)| matches!(event, Event::Ended { worker, .. } if worker.rank == Rank(2))) {
                vec![]
            } else {
                vec![(1_500, exit(2, 0))]
            };
        let mut events = [before, then, others].concat();
        events.sort_by_key(|(ms, _)| *ms);
        let verdict = verdict(&after(events.clone()));
        assert_eq!(headline_of(events), expected);
        assert_eq!((verdict.class, verdict.code.0), (Some(class), code), "{expected}");
    }
    // After minutes there is nothing to tell.
    let late = vec![(100, exit(0, 0)), (5_200, raises(1, refused())), (5_201, exit(1, 1)), (5_210, killed(2, 15))];
    assert_eq!(headline_of(late), format!("rank 1 failed: {told_refused}"));
}
