//! A process that holds the lock on its own memory for ever keeps whoever reads its environment waiting. Nobody waits for it, and nobody
//! says that it is not of a crashed job: it is named.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rankrun_tests::{Ended, Job, compile, rankrun, skip};

/// The crashed job that `c/locked_memory.c` makes.
const JOB: &str = "deadbeef";

/// Runs rankrun beside such a process.
fn beside_it(words: &[&str]) -> Option<Ended> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/locked_memory.c");
    let program = compile("cc", &["-O1", "-Wall", "-pthread"], &source, "locked_memory");
    let probe = Command::new(&program).args([JOB, "/bin/true"]).output().expect("the program can be started");
    if !probe.status.success() {
        skip(&format!("no process can be made that locks its memory: {}", String::from_utf8_lossy(&probe.stderr)));
        return None;
    }
    let rankrun = rankrun().display().to_string();
    let words = [&[JOB, &rankrun], words].concat();
    Some(Job::of_program(&program, words).start().finish(Duration::from_secs(20)))
}

/// Whether a text names the process.
fn names_it(text: &str) -> bool {
    text.contains("(locked_memory)")
}

#[test]
fn clean_does_not_wait_for_it_and_keeps_the_directory() {
    let Some(listed) = beside_it(&["clean", "--dry-run"]) else { return };
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert_eq!(listed.code, Some(0), "{text}");
    assert!(names_it(&text) && text.contains("it does not show its environment"), "{text}");

    let Some(cleaned) = beside_it(&["clean"]) else { return };
    let text = cleaned.stderr_text();
    assert_eq!(cleaned.code, Some(123), "{text}");
    assert!(names_it(&text) && text.contains(&format!("may be of job {JOB}")), "{text}");
}

#[test]
fn check_does_not_wait_for_it() {
    let Some(checked) = beside_it(&["check"]) else { return };
    let text = String::from_utf8_lossy(&checked.stdout).into_owned();
    let line = text.lines().find(|line| line.contains("leftovers")).unwrap_or_default();
    assert!(line.contains("1 crashed job") && names_it(line), "{text}");
}

#[test]
fn a_node_beside_it_is_not_proved_empty_and_says_so_at_once() {
    let Some(proved) = beside_it(&["--as=relay", "prove", JOB, "0"]) else { return };
    assert_eq!(proved.code, Some(123), "{}", proved.stderr_text());
}
