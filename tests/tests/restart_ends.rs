//! What ends the time between two attempts, and what is told of it (docs/restart.md, docs/control.md).

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rankrun_core::evidence::Class;
use rankrun_tests::{Job, Running, Tier, listed_job, monotonic, processes, rankrun, scratch, wait_until};
use rustix::process::Signal;
use serde_json::Value;

const BOUND: Duration = Duration::from_secs(60);

fn read(directory: &Path, name: &str) -> String {
    fs::read_to_string(directory.join(name)).unwrap_or_default()
}

/// The id of a job, from the list of all.
fn id(running: &Running) -> String {
    let found = wait_until(BOUND, || listed_job(running.front()));
    found.expect("the job is in the list")
}

fn ask(arguments: &[&str]) -> String {
    let output = Command::new(rankrun()).args(arguments).output().expect("rankrun can be started");
    String::from_utf8([output.stdout, output.stderr].concat()).expect("text")
}

/// Starts a job that waits for an hour before its third attempt, or before that of its rank 0.
fn start_waiting(options: &[&str], script: &str) -> Running {
    let words = [&["--restart", "5", "--backoff", "1h..1h"], options, &["sh", "-c", script]].concat();
    let job = Job::new(words).tier(Tier::available()[0]).start();
    let waits = wait_until(BOUND, || {
        let text = String::from_utf8_lossy(&job.stderr_so_far()).into_owned();
        // The first restart is at once, the second is not.
        (text.contains(" in 1 h: attempt 2")).then_some(())
    });
    assert!(waits.is_some(), "{}", String::from_utf8_lossy(&job.stderr_so_far()));
    job
}

const OF_RANK: [&str; 5] = ["-n", "2", "--keep-going", "--restart-scope", "rank"];
const RANK_0_FAILS: &str = "[ $RANK = 0 ] && exit 9; exec sleep 60";

#[test]
fn an_attempt_whose_log_files_cannot_be_made_starts_no_rank_and_that_is_the_reason() {
    for tier in Tier::sampled() {
        let directory = scratch();
        // One rank alone: of two, one may be ended between the removal and the new file.
        let script =
            "[ $RANKRUN_ATTEMPT = 0 ] || touch RAN; [ $RANK = 0 ] || exec sleep 60; rm -rf logs; touch logs; exit 3";
        let words = ["-n", "2", "--restart", "3", "--backoff", "0..0", "--log-dir", "logs", "sh", "-c", script];
        let job = Job::new(words).tier(tier).current_dir(&directory).bound(BOUND);
        let (ended, report) = job.run_with_report();
        let text = ended.stderr_text();
        let path = directory.join("logs/attempt-1");
        assert_eq!(report.summary, format!("cannot create \"{}\": Not a directory", path.display()), "{text}");
        assert_eq!((ended.code, report.attempt, report.attempts.len()), (Some(125), 1, 1), "{text}");
        assert_eq!(report.class, Some(Class::OutputFailed), "{text}");
        assert!(!directory.join("RAN").exists(), "no rank of it has begun: {text}");
        assert!(!text.contains("--drain"), "{text}");
        assert!(text.contains("ranks 0-1 never started"), "{text}");
        fs::remove_dir_all(directory).expect("it is ours");
    }
}

#[test]
fn the_report_says_who_ended_a_job_that_waits_for_its_next_attempt() {
    for (options, script, of) in [(&["-n", "1"][..], "exit 9", ""), (&OF_RANK[..], RANK_0_FAILS, "rank 0: ")] {
        let job = start_waiting(options, script);
        let mut stop = Command::new(rankrun()).args(["stop", &id(&job)]).spawn().expect("rankrun can be started");
        let pid = stop.id();
        assert!(stop.wait().expect("it ends").success());
        let ended = job.finish(BOUND);
        let text = ended.stderr_text();
        let said = format!("  restart   {of}stopped by \"rankrun stop\" (pid {pid}) before the next attempt began\n");
        assert!(ended.code == Some(9) && text.contains(&said), "{text}");
        for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::HUP, "SIGHUP")] {
            let job = start_waiting(options, script);
            processes::send(job.front(), signal);
            let ended = job.finish(BOUND);
            let text = ended.stderr_text();
            let said = format!("  restart   {of}ended by {name} before the next attempt began\n");
            assert!(ended.code == Some(9) && text.contains(&said), "{text}");
        }
    }
}

#[test]
fn a_signal_while_ranks_end_after_a_failure_is_said_to_be_why_there_is_no_restart() {
    let directory = scratch();
    let script = "[ $RANK = 0 ] && until [ -e up ]; do sleep 0.01; done && exit 3; \
        trap 'touch stopping; until [ -e go ]; do sleep 0.01; done; exit 3' TERM; touch up; \
        while :; do sleep 0.01; done";
    let words = ["-n", "2", "--restart", "5", "--grace", "60s", "sh", "-c", script];
    let job = Job::new(words).tier(Tier::available()[0]).current_dir(&directory).start();
    wait_until(BOUND, || directory.join("stopping").exists().then_some(())).expect("it is being stopped");
    processes::send(job.front(), Signal::HUP);
    let heard = wait_until(BOUND, || String::from_utf8_lossy(&job.stderr_so_far()).contains("SIGHUP").then_some(()));
    assert!(heard.is_some(), "{}", String::from_utf8_lossy(&job.stderr_so_far()));
    fs::write(directory.join("go"), "").expect("it can be written");
    let ended = job.finish(BOUND);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(3), "{text}");
    assert!(text.contains("  restart   ended by SIGHUP before the next attempt began\n"), "{text}");
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn status_tells_a_rank_that_waits_to_be_started_again() {
    let job = start_waiting(&OF_RANK, RANK_0_FAILS);
    let id = id(&job);
    let status: Value = serde_json::from_str(&ask(&["status", &id, "--json"])).expect("it is JSON");
    let [first, second] = &status["ranks"].as_array().expect("a list")[..] else { panic!("{status}") };
    assert_eq!((&first["state"], &first["attempt"]), (&"waiting".into(), &1.into()), "{status}");
    assert_eq!((&first["why"], &first["pid"]), (&"exit 9".into(), &Value::Null), "{status}");
    let waits = first["until"].as_f64().expect("a time") - first["since"].as_f64().expect("a time");
    assert!((3599.0..3601.0).contains(&waits), "{status}");
    assert_eq!((&second["state"], &second["attempt"]), (&"running".into(), &0.into()), "{status}");
    assert_eq!(status["state"], "running", "{status}");
    let text = ask(&["status", &id]);
    assert!(text.contains("rank 0  waiting for ") && text.contains(" (exit 9); attempt 2 in "), "{text}");
    ask(&["stop", &id]);
    job.finish(BOUND);
}

#[test]
fn a_job_of_which_all_ranks_wait_is_not_said_to_end() {
    let job = start_waiting(&["-n", "1", "--keep-going", "--restart-scope", "rank"], "exit 9");
    let id = id(&job);
    let status: Value = serde_json::from_str(&ask(&["status", &id, "--json"])).expect("it is JSON");
    assert_eq!((&status["state"], &status["ranks"][0]["state"]), (&"running".into(), &"waiting".into()), "{status}");
    ask(&["stop", &id]);
    job.finish(BOUND);
}

#[test]
fn a_restart_that_was_asked_for_is_timed_from_the_request() {
    let job = start_waiting(&["-n", "1"], "[ $RANKRUN_ATTEMPT = 2 ] || exit 9; exec sleep 60");
    let id = id(&job);
    // The failure was earlier than this, and the request is later.
    let began = monotonic();
    wait_until(BOUND, || (monotonic() > began + Duration::from_secs(2)).then_some(())).expect("time passes");
    let asked = monotonic();
    assert_eq!(ask(&["restart", &id]), format!("job {id}: attempt 2 runs\n"));
    let most = monotonic() - asked;
    ask(&["stop", &id]);
    let ended = job.finish(BOUND);
    let text = ended.stderr_text();
    let said = text.split("(attempt 2, ").nth(1).and_then(|rest| rest.split_once(" s after it was asked for)"));
    let took: f64 = said.and_then(|(took, _)| took.parse().ok()).unwrap_or_else(|| panic!("{text}"));
    assert!(took <= most.as_secs_f64() + 0.01, "{took} s of {most:?}: {text}");
}

#[test]
fn files_that_are_named_after_their_attempt_have_nothing_of_an_earlier_job() {
    let directory = scratch();
    fs::write(directory.join("out-1"), "of an earlier job\n").expect("it can be written");
    fs::write(directory.join("match-1"), "of an earlier job\n").expect("it can be written");
    fs::write(directory.join("all"), "of an earlier job\n").expect("it can be written");
    let files = ["--stdout-file", "out-{attempt}", "--stderr-file", "all", "--match-stdout", "match-{attempt}::out"];
    let words = ["-n", "1", "--restart", "1", "--backoff", "0..0"];
    let script = "echo out $RANKRUN_ATTEMPT; echo err $RANKRUN_ATTEMPT >&2; [ $RANKRUN_ATTEMPT = 1 ]";
    let words = [&words[..], &files, &["sh", "-c", script]].concat();
    let ended = Job::new(words).tier(Tier::available()[0]).current_dir(&directory).bound(BOUND).run();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(0), "{text}");
    assert_eq!((read(&directory, "out-0"), read(&directory, "out-1")), ("out 0\n".into(), "out 1\n".into()), "{text}");
    assert_eq!(read(&directory, "all"), "err 0\nerr 1\n", "attempts follow each other: {text}");
    assert_eq!(read(&directory, "match-1"), "out 1\n", "{text}");
    fs::remove_dir_all(directory).expect("it is ours");
}
