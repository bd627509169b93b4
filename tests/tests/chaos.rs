//! Random misfortunes at random moments, also while a job is only starting. After each, the promises are checked.
//!
//! The misfortunes follow from a seed, which a failure names: `RANKRUN_TEST_SEED=N` plays them again, as far as the
//! machine's own timing allows.

use std::env;
use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use rankrun_tests::{Job, Running, Tier, full_scale, helper, pause, processes, rankrun, wait_until};
use rustix::process::Signal;

/// A job is told to end when it has not ended by itself for so long.
const PATIENCE: Duration = Duration::from_millis(300);

/// From then on: the guard's lease, the grace, and a margin for a busy machine.
const BOUND: Duration = Duration::from_secs(15);

/// xorshift: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// One job, and at most two signals to any of its processes. What was done is noted for the message of a failure.
fn misfortune(random: &mut Random, notes: &mut Vec<String>) {
    let ranks = (1 + random.below(5)).to_string();
    let tier = random.one_of(&Tier::available());
    let tree = helper("tree");
    let mut all = vec!["-n", &ranks, "--grace", "1s", "--linger", "100ms", &tree];
    all.extend(random.one_of(&[&[][..], &["--alone"], &["--obedient"], &["--exit", "3"], &["--signal", "11"]]));
    notes.push(format!("{tier:?} {}", all.join(" ")));
    let running = Job::new(&all).tier(tier).start();
    for _ in 0..1 + random.below(2) {
        let scale = random.below(17);
        pause(Duration::from_micros(random.below(1 << scale)));
        // The first process is the front; the others follow as they were found.
        let present = running.processes();
        if present.is_empty() {
            break;
        }
        let victim = &present[random.below(present.len() as u64) as usize];
        let signal = match random.below(8) {
            0 => Signal::TERM,
            1 => Signal::INT,
            2 => Signal::HUP,
            // A front that is stopped cannot return, and should not; a stopped guard has a test of its own.
            3 if victim.pid != running.front() && victim.parent != running.front() => Signal::STOP,
            _ => Signal::KILL,
        };
        notes.push(format!("{signal:?} to {victim:?}, the front is {}", running.front()));
        processes::send(victim.pid, signal);
    }
    if wait_until(PATIENCE, || running.front_ended()).is_none() {
        notes.push("TERM to the front".to_owned());
        processes::send(running.front(), Signal::TERM);
    }
    running.finish(BOUND);
}

/// Plays misfortunes, each by its seed.
fn play(count: u64, misfortune: fn(&mut Random, &mut Vec<String>)) {
    let given = env::var("RANKRUN_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let first: u64 = given.unwrap_or(1);
    let count = if given.is_some() { 1 } else { count };
    for seed in first..first + count {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut notes = Vec::new();
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| misfortune(&mut random, &mut notes)));
        assert!(outcome.is_ok(), "RANKRUN_TEST_SEED={seed}: {notes:#?}");
    }
}

#[test]
fn misfortunes_at_any_moment_leave_nothing() {
    play(full_scale(700, 30), misfortune);
}

/// Gives a job a disk of few kilobytes for its log files and its report, in a namespace of mounts of its own.
const SMALL_DISK: &str = r#"mkdir "$RANKRUN_TEST_DIR/disk" &&
mount -t tmpfs -o size="$SIZE"k none "$RANKRUN_TEST_DIR/disk" && exec "$0" --drain 500ms \
--log-dir "$RANKRUN_TEST_DIR/disk/logs" --report-dir "$RANKRUN_TEST_DIR/disk/report" "$@""#;

/// Lets a job have few open files.
const FEW_FILES: &str = r#"ulimit -n "$SIZE" && exec "$0" "$@""#;

/// Limits the size of the files that rankrun writes.
const SMALL_FILES: &str = r#"mkdir "$RANKRUN_TEST_DIR/disk" && ulimit -f "$SIZE" && exec "$0" --drain 500ms \
--log-dir "$RANKRUN_TEST_DIR/disk/logs" "$@""#;

/// One job that lacks something, and at most one signal. Its ranks write numbered lines and exit with 0.
fn want(random: &mut Random, notes: &mut Vec<String>) {
    let (ranks, lines) = (1 + random.below(6), random.one_of(&[10, 1000, 50_000]));
    let (script, size) = match random.below(if rustix::process::geteuid().is_root() { 3 } else { 2 }) {
        0 => (FEW_FILES, 16 + random.below(120)),
        1 => (SMALL_FILES, 1 + random.below(400)),
        _ => (SMALL_DISK, 4 + random.below(400)),
    };
    let rankrun = rankrun().display().to_string();
    let (number, last) = (ranks.to_string(), lines.to_string());
    let command = format!("exec seq -f \"$RANKRUN_RANK %.0f\" {last}");
    let mut all = if script == SMALL_DISK { vec!["unshare", "-m", "sh"] } else { vec!["sh"] };
    all.extend(["-c", script, &rankrun, "-n", &number, "--output", "line", "--grace", "1s", "sh", "-c", &command]);
    let tier = random.one_of(&Tier::available());
    notes.push(format!("{tier:?} SIZE={size} {}", all.join(" ")));
    let job = Job::of_program(all[0], &all[1..]).env("SIZE", size.to_string()).env_remove("XDG_RUNTIME_DIR").tier(tier);
    let running = job.start();
    let is_hit = random.below(2) == 0;
    if is_hit {
        let scale = random.below(19);
        pause(Duration::from_micros(random.below(1 << scale)));
        let present = running.processes();
        if let Some(victim) = present.get(random.below(present.len().max(1) as u64) as usize) {
            let signal = random.one_of(&[Signal::KILL, Signal::TERM]);
            notes.push(format!("{signal:?} to {victim:?}, the front is {}", running.front()));
            processes::send(victim.pid, signal);
        }
    }
    let ended = running.finish(BOUND);
    notes.push(format!("{:?} {:?}: {}", ended.code, ended.signal, ended.stderr_text()));
    // Whatever happened, what came of each rank is all up to where it ends: nothing is missing in between.
    let mut next = vec![1u64; ranks as usize];
    let mut is_cut = vec![false; ranks as usize];
    for line in ended.stdout_text().lines() {
        // A rank that was ended in the middle of a line has written the beginning of it, and nothing after it.
        let rank = line.split(' ').next().and_then(|rank| rank.parse::<usize>().ok()).filter(|rank| *rank < next.len());
        let Some(rank) = rank else { panic!("{line:?} is of no rank") };
        let expected = format!("{rank} {}", next[rank]);
        // The beginning of a line that was not finished for a while, for which a line of another rank made room, is marked;
        // the whole line comes later.
        let (written, is_marked) = line.strip_suffix(" […]").map_or((line, false), |written| (written, true));
        assert!(!is_cut[rank] && expected.starts_with(written), "{line:?} comes where {expected:?} should");
        if is_marked {
            continue;
        }
        if line == expected { next[rank] += 1 } else { is_cut[rank] = true }
    }
    let is_complete = next.iter().all(|next| *next == lines + 1);
    match (ended.code, ended.signal) {
        (Some(0), _) => assert!(is_complete, "a success with lost lines: {next:?}"),
        (Some(2), _) => assert_eq!((next, script), (vec![1; ranks as usize], FEW_FILES), "nothing was started"),
        _ if is_hit => {}
        (code, signal) => {
            assert!(script != FEW_FILES, "a job that had begun failed for want of files: {code:?} {signal:?}");
            assert!(!ended.stderr.is_empty() && signal.is_none(), "no word about the failure");
            assert!(!matches!(code, Some(121 | 123)), "the node was not lost: {code:?}");
        }
    }
}

#[test]
fn want_of_disks_and_descriptors_ends_jobs_in_order_and_loses_no_line() {
    play(full_scale(700, 25), want);
}

/// Front, guard or agent of a job, as soon as it is there.
type Who = fn(&Running) -> i32;

#[test]
fn two_of_three_that_are_killed_while_the_job_starts_leave_nothing() {
    let three: [(&str, Who); 3] = [("front", Running::front), ("guard", Running::guard), ("agent", Running::agent)];
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..full_scale(100, 6) {
        for (first, find_first) in three {
            for (second, find_second) in three.into_iter().filter(|(name, _)| *name != first) {
                let tier = random.one_of(&Tier::available());
                let running = Job::new(["-n", "3", "--grace", "1s", "sleep", "600"]).tier(tier).start();
                let pids = [find_first(&running), find_second(&running)];
                for pid in pids {
                    let longest = random.one_of(&[500, 3000, 10_000]);
                    pause(Duration::from_micros(random.below(longest)));
                    processes::send(pid, Signal::KILL);
                }
                let outcome = panic::catch_unwind(AssertUnwindSafe(|| running.finish(BOUND)));
                assert!(outcome.is_ok(), "round {round}: {first}, then {second}, {tier:?}");
            }
        }
    }
}
