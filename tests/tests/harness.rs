//! The harness itself: it must find what a job leaves, or every other test proves nothing.

use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use rankrun_tests::{Job, helper, processes};

fn tree(arguments: &[&str]) -> Job {
    Job::of_program(helper("tree"), arguments)
        .env("RANKRUN_RANK", "0")
        .env("RANKRUN_WORLD_SIZE", "1")
        .env("RANKRUN_JOB_ID", "none")
}

#[test]
fn survivors_are_found_and_killed() {
    let running = tree(&["--exit", "3", "--on-go"]).start();
    running.wait_for_ranks(1);
    let pids: Vec<i32> = running.processes().iter().map(|process| process.pid).collect();
    assert_eq!(pids.len(), 4, "leader, child, child in a session of its own, daemon");
    running.sign("go");
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| running.finish(Duration::from_secs(1))));
    let message = *outcome.expect_err("three processes are left").downcast::<String>().expect("a text");
    assert!(message.starts_with("3 processes are left"), "{message}");
    for pid in pids {
        assert!(!processes::is_alive(pid), "{pid} lives");
    }
}

#[test]
fn an_end_is_dated_and_told() {
    let ended = tree(&["--alone", "--exit", "7"]).run();
    assert_eq!((ended.code, ended.signal), (Some(7), None));
    assert!(ended.started < ended.ended && ended.ended <= ended.empty);
    let ended = tree(&["--alone", "--signal", "9"]).run();
    assert_eq!((ended.code, ended.signal), (None, Some(9)));
}

#[test]
fn a_job_that_does_not_return_fails_its_test() {
    let running = tree(&["--alone"]).start();
    running.wait_for_ranks(1);
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| running.finish(Duration::from_millis(50))));
    let message = *outcome.expect_err("the job sleeps for ever").downcast::<String>().expect("a text");
    assert!(message.starts_with("rankrun did not return within 50ms"), "{message}");
}
