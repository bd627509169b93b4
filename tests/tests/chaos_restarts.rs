//! Random misfortunes of jobs that are started again: no attempt overlaps another, and nothing is left, at any time.
//!
//! `RANKRUN_TEST_SEED=N` plays one again, as far as the machine's own timing allows.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::time::Duration;

use rankrun_core::report::Report;
use rankrun_tests::{Job, Random, Running, Tier, full_scale, pause, processes, scratch, seeds, wait_until};
use rustix::process::Signal;

/// A job that has not ended by itself after so long is sent a signal.
const PATIENCE: Duration = Duration::from_secs(30);

/// From then on: the guard's lease, the grace, and a margin for a busy machine.
const BOUND: Duration = Duration::from_secs(20);

fn program() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/restart/misfortune.py").display().to_string()
}

/// A signal to a process of the job, now or in the wait before an attempt. Returns whether it was one of rankrun's own.
fn hit(random: &mut Random, notes: &mut Vec<String>, running: &Running) -> bool {
    if random.below(3) == 0 {
        let count = 1 + random.below(2) as usize;
        // A job that ends before that has nobody to be hit.
        wait_until(PATIENCE, || {
            let text = String::from_utf8_lossy(&running.stderr_so_far()).into_owned();
            (text.matches("restarting all ranks").count() >= count || running.front_ended().is_some()).then_some(())
        });
    }
    let scale = random.below(20);
    pause(Duration::from_micros(random.below(1 << scale)));
    let present = running.processes();
    // The front, the guard and the agent come first; the others follow as they were found.
    let some = if random.below(2) == 0 { present.len().min(3) } else { present.len() };
    let Some(victim) = present.get(random.below(some.max(1) as u64) as usize) else { return false };
    let is_own = victim.pid == running.front() || victim.name.starts_with("rankrun") || victim.name.starts_with("rr-");
    let signals = match is_own {
        true => &[Signal::KILL, Signal::KILL, Signal::TERM, Signal::INT][..],
        false => &[Signal::KILL, Signal::TERM, Signal::STOP, Signal::SEGV],
    };
    let signal = random.one_of(signals);
    notes.push(format!("{signal:?} to {victim:?}, the front is {}", running.front()));
    processes::send(victim.pid, signal);
    is_own
}

fn misfortune(seed: u64, notes: &mut Vec<String>) {
    let mut random = Random::new(seed);
    let directory = scratch();
    let (ranks, attempts) = ((1 + random.below(4)).to_string(), 2 + random.below(5));
    let tier = random.one_of(&Tier::available());
    let (budget, last) = ((attempts + 4).to_string(), attempts.to_string());
    let backoff = random.one_of(&["0..1ms", "0..30ms", "20ms..60ms"]);
    let linger = random.one_of(&["0", "30ms"]);
    let (program, seed) = (program(), seed.to_string());
    let reports = directory.join("reports").display().to_string();
    let mut words = vec!["--report-dir", &reports, "-n", &ranks, "--max-restarts", &budget, "--backoff", backoff];
    words.extend(["--grace", "200ms", "--linger", linger, "--", "python3", "-ISB", &program, &seed, &last]);
    notes.push(format!("{tier:?} {}", words.join(" ")));
    let running = Job::new(&words).tier(tier).current_dir(&directory).start();
    let hits: Vec<bool> = (0..random.below(3)).map(|_| hit(&mut random, notes, &running)).collect();
    if wait_until(PATIENCE, || running.front_ended()).is_none() {
        notes.push("TERM to the front, which has not ended".to_owned());
        processes::send(running.front(), Signal::TERM);
    }
    // The harness asserts that no descendant is left.
    let ended = running.finish(BOUND);
    let text = ended.stderr_text();
    assert_eq!(fs::read_to_string(directory.join("wrong")).unwrap_or_default(), "", "{text}");
    let seen = fs::read_to_string(directory.join("seen")).unwrap_or_default();
    let seen = seen.lines().filter_map(|line| line.parse::<u32>().ok()).max();
    let report = fs::read_to_string(directory.join("reports/report.json")).ok();
    let report: Option<Report> = report.map(|json| serde_json::from_str(&json).expect("a report can be read"));
    if let Some(report) = &report {
        // Every attempt is told, in order, and no rank ran in one that is not.
        let told: Vec<u32> = report.attempts.iter().map(|past| past.attempt).chain([report.attempt]).collect();
        assert_eq!(told, (0..=report.attempt).collect::<Vec<_>>(), "{text}");
        assert!(seen.is_none_or(|seen| seen <= report.attempt), "{seen:?} {text}");
    }
    if !hits.contains(&true) {
        let report = report.unwrap_or_else(|| panic!("no report: {text}"));
        assert_eq!((ended.code, seen), (Some(0), Some(report.attempt)), "{text}");
        assert!(u64::from(report.attempt) >= attempts, "{text}");
    }
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn restarts_among_misfortunes_never_overlap_and_leave_nothing() {
    for seed in seeds(full_scale(500, 12)) {
        let mut notes = Vec::new();
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| misfortune(seed, &mut notes)));
        assert!(outcome.is_ok(), "RANKRUN_TEST_SEED={seed}: {notes:#?}");
    }
}
