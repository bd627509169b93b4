//! Random misfortunes at random moments, also while a job is only starting. After each, the promises are checked.
//!
//! The misfortunes follow from a seed, which a failure names: `RANKRUN_TEST_SEED=N` plays them again, as far as the
//! machine's own timing allows.

use std::env;
use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use rankrun_tests::{Job, Running, Tier, full_scale, helper, pause, processes, wait_until};
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

#[test]
fn misfortunes_at_any_moment_leave_nothing() {
    let given = env::var("RANKRUN_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let first: u64 = given.unwrap_or(1);
    let count = if given.is_some() { 1 } else { full_scale(500, 30) };
    for seed in first..first + count {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut notes = Vec::new();
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| misfortune(&mut random, &mut notes)));
        assert!(outcome.is_ok(), "RANKRUN_TEST_SEED={seed}: {notes:#?}");
    }
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
