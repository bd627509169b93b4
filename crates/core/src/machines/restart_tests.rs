use super::*;
use crate::exit::ExitCode;
use crate::spec::restart::RestartSpec;

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
    assert_eq!(*restarter.phase(), Phase::Over { since: seconds(101) });
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
