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
    assert!(message.starts_with("rankrun did not return within "), "{message}");
}

#[test]
fn a_job_starts_with_the_signals_of_a_command_in_the_foreground_whoever_runs_the_tests() {
    // A copy of this test, whose caller ignores what a shell ignores in the background, and more.
    if std::env::var_os("RANKRUN_TEST_IGNORED").is_none() {
        let test = std::env::current_exe().expect("a running test has a file");
        let name = "a_job_starts_with_the_signals_of_a_command_in_the_foreground_whoever_runs_the_tests";
        let status = std::process::Command::new("env")
            .args(["--ignore-signal=HUP,INT,QUIT,TERM,CHLD", "RANKRUN_TEST_IGNORED=yes"])
            .arg(test)
            .args(["--exact", name])
            .status();
        assert!(status.expect("env can be started").success());
        return;
    }
    let ended = Job::of_program("grep", ["SigIgn", "/proc/self/status"]).run();
    let text = ended.stdout_text();
    let mask = u64::from_str_radix(text.split_whitespace().last().unwrap_or_default(), 16).expect("a mask");
    assert_eq!(mask & 0x7fff_ffff, 0, "{text}");
}
