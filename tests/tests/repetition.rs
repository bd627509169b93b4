//! Many jobs in a row: no hang, no leak, no lost line.

use std::fs;
use std::time::Duration;

use rankrun_tests::{Job, full_scale, helper};

const BOUND: Duration = Duration::from_secs(20);

/// Names that could pile up and are not bound to one job that a test can name.
fn temporary_files() -> usize {
    let entries = fs::read_dir("/tmp").into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("rankrun")).count()
}

#[test]
fn jobs_that_succeed_leave_nothing_and_lose_nothing() {
    let before = temporary_files();
    for run in 0..full_scale(1000, 100) {
        let ended = Job::new(["-n", "16", "sh", "-c", "echo $RANKRUN_RANK; exec true"]).bound(BOUND).run();
        assert_eq!((ended.code, ended.stderr_text()), (Some(0), String::new()), "run {run}");
        let text = ended.stdout_text();
        let mut ranks: Vec<u32> = text.lines().map(|line| line.parse().expect("a rank")).collect();
        ranks.sort_unstable();
        assert_eq!(ranks, (0..16).collect::<Vec<u32>>(), "run {run}");
    }
    assert!(temporary_files() <= before + 1, "files pile up below /tmp");
}

#[test]
fn jobs_that_fail_at_random_leave_nothing_and_tell_the_truth() {
    // A linear congruential generator: the same failures in every run.
    let mut state = 20_261_120_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for run in 0..full_scale(200, 20) {
        let (ranks, signal) = (1 + random(12), random(2) == 0);
        let fate = if signal { [6, 9, 11, 15][random(4) as usize] } else { 1 + random(120) };
        let (rank, kind) = (random(ranks), if signal { "--signal" } else { "--exit" });
        let (ranks, rank, number) = (ranks.to_string(), rank.to_string(), fate.to_string());
        let mut all = vec!["-n", &ranks, "--grace", "1s", "--linger", "100ms"];
        let tree = helper("tree");
        all.extend([tree.as_str(), "--rank", &rank, kind, &number]);
        if random(3) > 0 {
            all.push("--alone");
        }
        let ended = Job::new(&all).bound(BOUND).run();
        let expected = if signal { 128 + fate } else { fate } as i32;
        assert_eq!(ended.code, Some(expected), "run {run}, {all:?}: {}", ended.stderr_text());
    }
}
