use super::*;
use crate::attempts::Attempts;
use crate::event::{Entry, JobEvent};
use crate::exit::ExitCode;
use crate::spec::restart::{
    Backoff, Budget, NodeLoss, OnFailureCommand, OnGiveup, Recent, RestartScope, RestartSpec, StartRetries,
    parse_classes,
};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn spec(budget: &str) -> RestartSpec {
    RestartSpec { budget: budget.parse().expect("a budget"), ..RestartSpec::default() }
}

fn failed(class: Class, code: u8) -> Outcome {
    Outcome { class: Some(class), code: ExitCode(code), culprit: Some(Rank(1)), ..Outcome::default() }
}

fn raised(text: &str) -> Outcome {
    let text = Some(text.to_owned());
    Outcome { exception: text.clone(), cause: text, ..failed(Class::Exception, 1) }
}

/// Runs an attempt that is up at once and ends so many seconds later.
fn attempt(restarter: &mut Restarter, begins: u64, lasts: u64, outcome: &Outcome) -> Decision {
    restarter.began(seconds(begins));
    restarter.up(seconds(begins));
    restarter.ended(seconds(begins + lasts), outcome)
}

fn no_wait() -> Backoff {
    Backoff { min: Duration::ZERO, max: Duration::ZERO }
}

fn after(decision: &Decision) -> Option<Duration> {
    match decision {
        Decision::Restart { after, .. } => Some(*after),
        Decision::GiveUp { .. } | Decision::Done => None,
    }
}

fn why(decision: Decision) -> GiveUp {
    match decision {
        Decision::GiveUp { why } => why,
        other => panic!("{other:?} goes on"),
    }
}

#[test]
fn the_budget_is_used_and_then_it_gives_up() {
    let mut restarter = Restarter::new(&spec("2"), 1);
    let killed = failed(Class::Signal, 137);
    assert_eq!(after(&attempt(&mut restarter, 0, 1, &killed)), Some(Duration::ZERO));
    assert!(after(&attempt(&mut restarter, 10, 1, &killed)).is_some_and(|after| after >= seconds(1)));
    assert_eq!(why(attempt(&mut restarter, 100, 1, &killed)).to_string(), "gives up after 2 restarts");
    assert_eq!(restarter.phase, Phase::Over { since: seconds(101) });
}

#[test]
fn the_same_exception_early_in_two_attempts_in_a_row_is_not_tried_a_third_time() {
    let mut restarter = Restarter::new(&spec("9"), 1);
    assert!(after(&attempt(&mut restarter, 0, 5, &raised("ValueError: a"))).is_some());
    assert!(after(&attempt(&mut restarter, 10, 5, &raised("ValueError: b"))).is_some(), "another one");
    assert!(after(&attempt(&mut restarter, 100, 61, &raised("ValueError: b"))).is_some(), "late");
    assert!(after(&attempt(&mut restarter, 200, 5, &raised("ValueError: b"))).is_some(), "after a late one");
    let given_up = why(attempt(&mut restarter, 300, 5, &raised("ValueError: b")));
    assert_eq!(given_up, GiveUp::Repeated { how: How::Early, what: "ValueError: b".to_owned() });
}

#[test]
fn a_lost_node_costs_nothing_where_nodes_come_and_go() {
    let free = RestartSpec { node_loss: NodeLoss::Free, ..spec("1") };
    let lost = failed(Class::NodeLost, 121);
    let mut restarter = Restarter::new(&free, 1);
    for begins in [0, 10, 20, 30] {
        assert_eq!(after(&attempt(&mut restarter, begins, 5, &lost)), Some(Duration::ZERO), "{begins}");
    }
    assert!(after(&attempt(&mut restarter, 40, 5, &failed(Class::Signal, 137))).is_some());
    assert_eq!(after(&attempt(&mut restarter, 50, 5, &failed(Class::Signal, 137))), None);
    // Also where there is no budget at all; a failure ends such a job as without a policy.
    let mut restarter = Restarter::new(&RestartSpec { node_loss: NodeLoss::Free, ..RestartSpec::default() }, 1);
    assert_eq!(after(&attempt(&mut restarter, 0, 5, &lost)), Some(Duration::ZERO));
    assert_eq!(after(&attempt(&mut restarter, 10, 5, &failed(Class::Signal, 137))), None);
    let mut counts = Restarter::new(&spec("1"), 1);
    assert!(after(&attempt(&mut counts, 0, 5, &lost)).is_some());
    assert_eq!(after(&attempt(&mut counts, 10, 5, &lost)), None);
}

#[test]
fn a_window_frees_restarts_as_it_slides() {
    let mut restarter = Restarter::new(&RestartSpec { backoff: no_wait(), ..spec("2/100s") }, 1);
    let killed = failed(Class::Signal, 137);
    // Restarts at 50, 101 and 150: each but the last has one other within the 100 s before it.
    for (begins, ends, goes_on) in [(0, 50, true), (50, 101, true), (101, 150, true), (150, 160, false)] {
        let decision = attempt(&mut restarter, begins, ends - begins, &killed);
        assert_eq!(after(&decision).is_some(), goes_on, "{begins}: {decision:?}");
    }
    // The first restart was due at 10, and began at 15: the window counts from there.
    let mut late = Restarter::new(&RestartSpec { backoff: no_wait(), ..spec("1/100s") }, 1);
    assert!(after(&attempt(&mut late, 0, 10, &killed)).is_some());
    assert_eq!(after(&attempt(&mut late, 15, 99, &killed)), None);
    let mut restarter = Restarter::new(&spec("1/1h"), 1);
    attempt(&mut restarter, 0, 1, &killed);
    assert_eq!(why(attempt(&mut restarter, 2, 1, &killed)).to_string(), "gives up after 1 restart in 1 h");
}

#[test]
fn what_is_no_failure_of_the_ranks_is_not_restarted() {
    let outcomes = [
        Outcome::default(),
        Outcome { by_user: true, ..failed(Class::Signal, 143) },
        failed(Class::Interrupted, 130),
        failed(Class::Timeout, 124),
        failed(Class::OutputFailed, 125),
        failed(Class::Refused, 2),
    ];
    for outcome in outcomes {
        let mut restarter = Restarter::new(&spec("3"), 1);
        assert_eq!(attempt(&mut restarter, 0, 1, &outcome), Decision::Done, "{outcome:?}");
        assert!(!restarter.asks());
    }
    let mut never = Restarter::new(&RestartSpec::default(), 1);
    assert_eq!(attempt(&mut never, 0, 1, &failed(Class::Signal, 137)), Decision::Done);
}

fn command() -> OnFailureCommand {
    OnFailureCommand { command: vec!["./decide".into()], timeout: seconds(30) }
}

#[test]
fn each_reason_to_give_up_is_a_sentence() {
    let classes = parse_classes("signal,out-of-memory").expect("classes");
    let on = RestartSpec { on: classes, ..spec("3") };
    let codes = RestartSpec { never_codes: "2,64-78".parse().expect("codes"), ..spec("3") };
    let own = RestartSpec { on_failure: Some(command()), ..RestartSpec::default() };
    let left = Outcome { is_left: true, ..failed(Class::Signal, 123) };
    for (spec, outcome, sentence) in [
        (on, raised("ValueError: x"), "gives up: --restart-on does not have \"exception\""),
        (codes, failed(Class::ExitCode, 70), "gives up: --no-restart-codes has 70"),
        (own, failed(Class::ExitCode, 1), "gives up: there is no --restart"),
        (spec("3"), left, "gives up: processes of the last attempt may be left"),
        (spec("0"), failed(Class::Signal, 137), ""),
    ] {
        match attempt(&mut Restarter::new(&spec, 1), 0, 1, &outcome) {
            Decision::Done => assert_eq!(sentence, ""),
            decision => assert_eq!(why(decision).to_string(), sentence),
        }
    }
    let how = |how| GiveUp::Repeated { how, what: "ValueError: x".to_owned() }.to_string();
    insta::assert_snapshot!(how(How::Early), @"gives up: two attempts in a row failed within 1 min with the same error, which another restart would not cure: ValueError: x");
    insta::assert_snapshot!(how(How::WithoutProgress), @"gives up: two attempts in a row failed in the same way without any progress, which another restart would not cure: ValueError: x");
}

#[test]
fn ranks_that_cannot_be_started_have_tries_of_their_own() {
    let spec = RestartSpec { start: StartRetries { retries: 2, backoff: seconds(1) }, ..spec("1") };
    let mut restarter = Restarter::new(&spec, 1);
    let unstarted = Outcome { cause: Some("exec: No such file".to_owned()), ..failed(Class::SpawnFailed, 127) };
    let killed = failed(Class::Signal, 137);
    assert_eq!(after(&attempt(&mut restarter, 0, 10, &killed)), Some(Duration::ZERO));
    let mut decision = Decision::Done;
    for begins in [10, 12, 14] {
        restarter.began(seconds(begins));
        decision = restarter.ended(seconds(begins + 1), &unstarted);
        if begins == 10 {
            let because = "rank 1 could not be started: exec: No such file, in try 1 of 3".to_owned();
            let again = (seconds(1), Attempt(2), Reason::NotStarted);
            let (after, attempt, reason) = again;
            assert_eq!(decision, Decision::Restart { after, attempt, reason, because });
        }
    }
    assert_eq!(why(decision).to_string(), "gives up: ranks could not be started in 3 tries");
    assert_eq!(restarter.counts.total, 1);
    // One that succeeds begins the count anew.
    let mut restarter = Restarter::new(&RestartSpec { start: spec.start, ..RestartSpec::default() }, 1);
    let not_ready = Outcome { is_not_ready: true, ..failed(Class::Signal, 143) };
    for begins in [0, 10, 20, 30] {
        restarter.began(seconds(begins));
        assert!(after(&restarter.ended(seconds(begins + 1), &not_ready)).is_some());
        if begins == 10 {
            restarter.began(seconds(15));
            restarter.up(seconds(15));
            assert_eq!(why(restarter.ended(seconds(16), &killed)), GiveUp::NoBudget, "only starts are tried again");
        }
    }
    restarter.began(seconds(40));
    let given_up = why(restarter.ended(seconds(41), &not_ready)).to_string();
    assert_eq!(given_up, "gives up: ranks were not ready in time in 3 tries");
}

#[test]
fn an_attempt_that_was_up_for_long_begins_the_backoff_anew() {
    let mut restarter = Restarter::new(&spec("99"), 1);
    let killed = failed(Class::Signal, 137);
    let waits: Vec<bool> = [(0, 1), (10, 1), (100, 299), (1000, 300), (2000, 1)]
        .map(|(begins, lasts)| after(&attempt(&mut restarter, begins, lasts, &killed)) == Some(Duration::ZERO))
        .to_vec();
    assert_eq!(waits, [true, false, false, true, false]);
}

#[test]
fn a_failure_without_progress_is_told_only_where_progress_is_known() {
    let exits = Outcome { cause: Some("exited with code 3 at step 12".to_owned()), ..failed(Class::ExitCode, 3) };
    let with_file = RestartSpec { progress_file: Some("/ckpt".into()), ..spec("9") };
    let mut restarter = Restarter::new(&with_file, 1);
    assert!(after(&attempt(&mut restarter, 0, 500, &exits)).is_some());
    let other = Outcome { cause: Some("exited with code 3 at step 99".to_owned()), ..exits.clone() };
    let given_up = why(attempt(&mut restarter, 600, 500, &other));
    assert!(matches!(given_up, GiveUp::Repeated { how: How::WithoutProgress, .. }), "only a number differs");
    // Progress in one of the two.
    let mut restarter = Restarter::new(&with_file, 1);
    for begins in [0, 1000, 2000] {
        restarter.began(seconds(begins));
        restarter.up(seconds(begins));
        let attempt = Attempt((begins / 1000) as u32);
        assert!(restarter.progress(attempt) && !restarter.progress(attempt));
        assert!(after(&restarter.ended(seconds(begins + 3), &exits)).is_some());
    }
    // Progress that becomes known late counts for the attempt that made it, and not for the next.
    for (late, gives_up) in [(0, false), (1, false), (7, true)] {
        let mut restarter = Restarter::new(&with_file, 1);
        assert!(after(&attempt(&mut restarter, 0, 500, &exits)).is_some());
        assert!(after(&attempt(&mut restarter, 1000, 500, &raised("ValueError: x"))).is_some());
        restarter.began(seconds(2000));
        restarter.progress(Attempt(late));
        let again = restarter.ended(seconds(2500), &raised("ValueError: x"));
        assert_eq!(after(&again).is_none(), gives_up || late == 0, "{late} {again:?}");
    }
    // Nobody ever told of any, or the breaker is off.
    for spec in [spec("9"), RestartSpec { breaker: false, ..with_file }] {
        let mut restarter = Restarter::new(&spec, 1);
        for begins in [0, 1000, 2000] {
            assert!(after(&attempt(&mut restarter, begins, 500, &exits)).is_some());
        }
    }
}

#[test]
fn a_lost_peer_and_the_code_of_a_signal_are_no_defect() {
    for outcome in [
        Outcome { is_of_lost_peer: true, ..raised("RuntimeError: Connection reset by peer") },
        failed(Class::ExitCode, 137),
        failed(Class::Stopped, 147),
        failed(Class::NodeLost, 121),
    ] {
        let spec = RestartSpec { progress_file: Some("/ckpt".into()), ..spec("9") };
        let mut restarter = Restarter::new(&spec, 1);
        for begins in [0, 10, 20] {
            assert!(after(&attempt(&mut restarter, begins, 5, &outcome)).is_some(), "{outcome:?}");
        }
    }
}

#[test]
fn a_restart_that_is_asked_for_costs_nothing() {
    let mut restarter = Restarter::new(&spec("1"), 1);
    let planned = |attempt| Decision::Restart {
        after: Duration::ZERO,
        attempt: Attempt(attempt),
        reason: Reason::Planned,
        because: "restart requested".to_owned(),
    };
    // Of a running attempt: it is stopped, and its end has the same decision, whatever it was.
    for (number, outcome) in
        [(1, Outcome::default()), (2, failed(Class::Signal, 143)), (3, failed(Class::Interrupted, 1))]
    {
        restarter.began(seconds(10 * u64::from(number)));
        restarter.up(seconds(10 * u64::from(number)));
        assert_eq!(restarter.planned(seconds(10 * u64::from(number) + 1)), planned(number));
        assert_eq!(restarter.ended(seconds(10 * u64::from(number) + 2), &outcome), planned(number));
        assert!(!restarter.asks());
    }
    assert_eq!(restarter.counts.total, 0);
    // While it waits: at once.
    assert!(after(&attempt(&mut restarter, 100, 1, &failed(Class::Signal, 137))).is_some());
    assert_eq!(restarter.planned(seconds(101)), planned(4));
    assert_eq!(
        restarter.phase,
        Phase::Waiting { since: seconds(101), until: seconds(101), because: "restart requested".to_owned() }
    );
    // Not if its user ends the job meanwhile, or processes are left.
    for (outcome, decision) in [
        (Outcome { by_user: true, ..failed(Class::Interrupted, 130) }, Decision::Done),
        (failed(Class::Timeout, 124), Decision::Done),
        (Outcome { is_left: true, ..failed(Class::Signal, 123) }, Decision::GiveUp { why: GiveUp::Left }),
    ] {
        restarter.began(seconds(200));
        restarter.up(seconds(200));
        restarter.planned(seconds(201));
        assert_eq!(restarter.ended(seconds(202), &outcome), decision);
    }
}

#[test]
fn an_answer_counts_more_than_the_policy_and_less_than_the_budget() {
    let asked = |budget: &str| RestartSpec { on_failure: Some(command()), ..spec(budget) };
    let killed = failed(Class::Signal, 137);
    let answer = |spec: &RestartSpec, outcome: &Outcome, answer| {
        let mut restarter = Restarter::new(spec, 1);
        attempt(&mut restarter, 0, 1, outcome);
        assert!(restarter.asks());
        let decision = restarter.answered(seconds(2), &answer);
        (decision, restarter.counts.total)
    };
    let (decision, counted) = answer(&asked("1"), &killed, Answer::Own);
    assert_eq!((after(&decision), counted), (Some(Duration::ZERO), 1));
    let (decision, counted) = answer(&asked("1"), &killed, Answer::Restart);
    assert_eq!((after(&decision), counted), (Some(Duration::ZERO), 1));
    let (decision, counted) = answer(&asked("1"), &killed, Answer::Wait(seconds(30)));
    assert_eq!((after(&decision), counted), (Some(seconds(30)), 1), "one restart, not two");
    let (decision, counted) = answer(&asked("1"), &killed, Answer::Stop);
    assert_eq!((why(decision).to_string(), counted), ("gives up: --on-failure said stop".to_owned(), 0));
    // Against the policy.
    let codes = RestartSpec { never_codes: "137".parse().expect("codes"), ..asked("1") };
    assert_eq!(after(&answer(&codes, &killed, Answer::Restart).0), Some(Duration::ZERO));
    let unlimited = RestartSpec { on_failure: Some(command()), ..RestartSpec::default() };
    assert_eq!(after(&answer(&unlimited, &killed, Answer::Restart).0), Some(Duration::ZERO));
    assert_eq!(why(answer(&unlimited, &killed, Answer::Own).0), GiveUp::NoBudget);
    // Not beyond the budget, nor over what is left.
    let budget = GiveUp::Budget { restarts: 0, window: None };
    assert_eq!(why(answer(&asked("0"), &killed, Answer::Restart).0), budget);
    let left = Outcome { is_left: true, ..killed };
    assert_eq!(why(answer(&asked("9"), &left, Answer::Wait(seconds(1))).0), GiveUp::Left);
}

#[test]
fn the_policy_is_one_sentence() {
    let sentence = |spec: RestartSpec| Restarter::new(&spec, 1).sentence();
    let with_start = |spec: RestartSpec| RestartSpec { start: StartRetries::OF_RESTARTS, ..spec };
    let both: Budget = "3/1h".parse::<Budget>().expect("a budget").and("20".parse().expect("a budget"));
    let command = command();
    let sentences = [
        RestartSpec::default(),
        with_start(spec("3/1h")),
        with_start(spec("1")),
        with_start(RestartSpec { budget: both, breaker: false, on_giveup: OnGiveup::Requeue, ..spec("1") }),
        RestartSpec {
            on: parse_classes("signal,out-of-memory").expect("classes"),
            never_codes: "2,64-78".parse().expect("codes"),
            backoff: "1500ms..1m30s".parse().expect("times"),
            start: StartRetries { retries: 4, backoff: Duration::from_millis(500) },
            scope: RestartScope::Rank,
            ..spec("3/1d")
        },
        RestartSpec { backoff: "5s".parse().expect("a time"), on_failure: Some(command), ..RestartSpec::default() },
    ];
    insta::assert_snapshot!(sentences.map(sentence).join("\n"), @r#"
    does not restart after a failure by itself
    gives up after 3 restarts in 1 h; waits 1 s to 30 s between
    gives up after 1 restart; waits 1 s to 30 s between
    gives up after 3 restarts in 1 h, or 20 restarts in all; waits 1 s to 30 s between; also when the same failure repeats; requeues the job when it gives up
    gives up after 3 restarts in 24 h; waits 1.5 s to 1 min 30 s between; restarts only on out-of-memory, signal; never on code 2,64-78; each rank by itself; tries 5 times to start, 500 ms apart
    does not restart after a failure by itself; waits 5 s between; asks "./decide" after each failure
    "#);
}

#[test]
fn a_restart_that_is_asked_for_gives_back_what_the_one_that_it_replaces_has_cost() {
    let killed = failed(Class::Signal, 137);
    let mut restarter = Restarter::new(&spec("1"), 1);
    assert!(after(&attempt(&mut restarter, 0, 1, &killed)).is_some());
    assert_eq!(after(&restarter.planned(seconds(1))), Some(Duration::ZERO));
    assert_eq!(restarter.counts.total, 0);
    assert!(after(&attempt(&mut restarter, 2, 1, &killed)).is_some(), "the budget is whole");
    assert_eq!(why(attempt(&mut restarter, 4, 1, &killed)).to_string(), "gives up after 1 restart");
    // What was spent before stays spent.
    let mut spent = Restarter::new(&spec("2"), 1);
    assert!(after(&attempt(&mut spent, 0, 1, &killed)).is_some());
    spent.began(seconds(2));
    spent.planned(seconds(3));
    assert_eq!(spent.counts.total, 1, "the attempt that follows a failure has begun");
}

/// R-5
#[test]
fn no_attempt_follows_once_processes_of_the_last_one_are_known_to_be_left() {
    let killed = failed(Class::Signal, 137);
    let left = Decision::GiveUp { why: GiveUp::Left };
    let mut restarter = Restarter::new(&spec("3"), 1);
    assert!(after(&attempt(&mut restarter, 0, 1, &killed)).is_some());
    assert_eq!(restarter.handle(seconds(2), Event::Left), Some(left.clone()));
    assert_eq!(restarter.counts.total, 0, "the restart that did not come costs nothing");
    assert_eq!(
        restarter.handle(seconds(3), Event::Answered(Answer::Restart)),
        Some(left.clone()),
        "whatever is answered"
    );
    // The same of a restart that a user has asked for.
    let mut restarter = Restarter::new(&spec("3"), 1);
    assert!(after(&attempt(&mut restarter, 0, 1, &killed)).is_some());
    restarter.planned(seconds(2));
    assert_eq!(restarter.left(seconds(3)), left);
    // What is over stays as it was decided.
    let mut over = Restarter::new(&spec("0"), 1);
    let decided = attempt(&mut over, 0, 1, &killed);
    assert_eq!(over.left(seconds(2)), decided);
}

#[test]
fn what_has_succeeded_is_not_run_again_because_a_demand_came_too_late() {
    let mut restarter = Restarter::new(&spec("1"), 1);
    restarter.began(seconds(0));
    restarter.up(seconds(0));
    restarter.planned(seconds(1));
    let stopped = Outcome::default();
    assert!(
        after(&restarter.clone().ended(seconds(1), &stopped)).is_some(),
        "its ranks end well when they are stopped"
    );
    let outcome = Outcome { has_succeeded: true, ..stopped };
    assert_eq!(restarter.ended(seconds(1), &outcome), Decision::Done);
}

#[path = "restart_property_tests.rs"]
mod properties;
