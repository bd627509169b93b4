//! What ranks can make rankrun hold and print is bounded: evidence, the report, notes. Nor does what they print keep it
//! from its work.

use std::fs;
use std::time::Duration;

use rankrun_tests::{Ended, Job, Running, helper, in_time, monotonic, processes, slowness, wait_until};

const BOUND: Duration = Duration::from_secs(60);

fn report(job: &Running) -> String {
    let reports = job.directory().join("state/rankrun");
    let saved = wait_until(BOUND, || {
        let entry = fs::read_dir(&reports).ok()?.flatten().next()?;
        fs::read_to_string(entry.path().join("report.json")).ok().filter(|json| json.ends_with('\n'))
    });
    saved.expect("a report is saved")
}

#[test]
fn thousands_of_long_exceptions_cost_the_front_little_memory() {
    let talk = helper("talk");
    let script =
        r#"if test $RANKRUN_RANK = 0; then "$0" uncaught 5000 0; touch $RANKRUN_TEST_DIR/said; fi; exec sleep 100"#;
    let running =
        Job::new(["-n", "2", "--keep-going", "--exit-grace", "90s", "--timeout", "60s", "sh", "-c", script, &talk])
            .start();
    running.wait_for_file("said");
    // The last of it may be under way. What has been taken in stays.
    let most = 40 << 20;
    let mut highest = 0;
    let grown = wait_until(Duration::from_secs(3), || {
        highest = processes::proportional_memory(running.front()).max(highest);
        (highest > most).then_some(())
    });
    assert!(grown.is_none(), "the front uses {} MiB", highest >> 20);
    processes::send(running.front(), rustix::process::Signal::TERM);
    running.finish(BOUND);
}

#[test]
fn a_report_is_never_longer_than_a_mebibyte() {
    let talk = helper("talk");
    let running = Job::new(["-n", "48", "--keep-going", &talk, "thread", "12", "3"]).start();
    let json = report(&running);
    let ended = running.finish(BOUND);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    assert!(json.len() <= 1 << 20, "{} bytes", json.len());
    let report: serde_json::Value = serde_json::from_str(&json).expect("the report is JSON");
    assert!(report["left_out"]["bytes"].as_u64() > Some(1 << 20), "{}", report["left_out"]);
    assert_eq!(report["ranks"].as_array().map(Vec::len), Some(48));
    assert!(ended.stderr_text().lines().all(|line| line.len() < 1_000), "{}", ended.stderr_text());
}

#[test]
fn notes_about_a_rank_that_talks_garbage_are_printed_in_part_and_counted() {
    let talk = helper("talk");
    let ended = Job::new(["-n", "1", &talk, "garbage", "2000", "0"]).bound(BOUND).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let text = ended.stderr_text();
    assert!(text.lines().count() <= 40, "{} lines: {text}", text.lines().count());
    let withheld = text.lines().filter_map(|line| line.strip_prefix("rankrun: ")?.split_once(" more note"));
    let withheld: usize = withheld.map(|(count, _)| count.parse::<usize>().expect("a number")).sum();
    let printed = text.lines().filter(|line| line.contains("worker socket")).count();
    // The agent takes only so many a second of one rank; what comes through is printed or counted.
    assert!(printed >= 1 && withheld >= 1 && printed + withheld <= 2_000, "{text}");
}

#[test]
fn the_count_of_notes_that_were_not_printed_stands_before_the_report() {
    let ended = Job::new(["-n", "1", &helper("talk"), "garbage", "200", "3"]).bound(BOUND).run();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(3), "{text}");
    let at = |what: &str| text.lines().position(|line| line.contains(what));
    let (counted, report) = (at(" of rank 0 were not printed"), at("rankrun: rank 0 failed: "));
    assert!(counted.is_some() && counted < report, "{text}");
}

/// How long after its cause the end of a job with a flood may come: seconds, where it takes minutes if the cost of a line grows
/// with the lines before it.
const SOON: Duration = Duration::from_secs(15);

fn assert_soon(ended: &Ended, cause: Duration) {
    let text = ended.stderr_text();
    let last: Vec<&str> = text.lines().rev().take(10).collect();
    assert!(ended.elapsed() < cause + in_time(SOON), "{:?}: {last:?}", ended.elapsed());
}

#[test]
fn a_flood_on_stderr_is_written_in_the_time_that_it_takes() {
    let flood = helper("flood");
    let ended = Job::new(["-n", "1", &flood, "200000", "21", ":", "-n", "2", "sleep", "100"]).bound(BOUND).run();
    assert_eq!(ended.code, Some(21));
    let text = ended.stderr_text();
    assert_eq!(text.lines().filter(|line| line.contains("something looks odd in this cell")).count(), 200_000);
    assert!(text.contains("rankrun: rank 0 failed: exited with code 21; last line of stderr: FATAL: giving up"));
    assert_soon(&ended, Duration::ZERO);
}

#[test]
fn a_time_limit_holds_while_stderr_is_flooded() {
    for mode in ["line", "grouped", "none"] {
        let flood = helper("flood");
        let ended =
            Job::new(["-n", "2", "--output", mode, "--timeout", "2s", "--grace", "1s", &flood, "0", "0", "100"])
                .bound(BOUND * slowness())
                .run();
        assert_eq!(ended.code, Some(124), "{mode}");
        assert_soon(&ended, Duration::from_secs(2));
    }
}

#[test]
fn the_failure_of_a_peer_ends_a_job_whose_stderr_is_flooded() {
    let flood = helper("flood");
    let ended = Job::new(["-n", "3", &flood, "0", "0", "100", ":", "-n", "1", &flood, "2500", "7", "100"])
        .bound(BOUND * slowness())
        .run();
    assert_eq!(ended.code, Some(7));
    assert!(ended.stderr_text().contains("rankrun: rank 3 failed: exited with code 7"));
    assert_soon(&ended, Duration::ZERO);
}

#[test]
fn a_signal_ends_a_job_whose_stderr_is_flooded() {
    let flood = helper("flood");
    let running = Job::new(["-n", "2", &flood, "0", "0", "100"]).start();
    running.wait_for_file("0.up");
    let sent = monotonic();
    processes::send(running.front(), rustix::process::Signal::TERM);
    let ended = running.finish(BOUND * slowness());
    assert_eq!(ended.signal, Some(15));
    assert!(ended.ended - sent < in_time(SOON), "{:?}", ended.ended - sent);
    assert!(ended.stderr_text().contains("rankrun: SIGTERM: stopping 2 ranks"));
}
