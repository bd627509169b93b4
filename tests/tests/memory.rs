//! What the kernel kills because memory ran out is named, whichever process of a rank it is.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rankrun_core::Rank;
use rankrun_core::evidence::{Class, Fact};
use rankrun_core::report::Report;
use rankrun_tests::failures::MemoryCgroup;
use rankrun_tests::{Ended, Job, Tier, helper, skip};

const BOUND: Duration = Duration::from_secs(60);
/// Enough for Python, and too little for what its helper takes.
const MEMORY: u64 = 64 << 20;

fn program() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/stops/greedy.py").display().to_string()
}

/// Runs a job whose rank 1 has little memory; the other ranks sleep. `None` after a skip.
fn run(tier: Tier, command: &[&str]) -> Option<(Ended, Report)> {
    if !is_log_readable() {
        skip("the kernel's log cannot be read here");
        return None;
    }
    let Some(cgroup) = MemoryCgroup::new(MEMORY) else {
        skip("a memory cgroup (v1) cannot be made here");
        return None;
    };
    let wrap = format!("1:{} {}", helper("fail_in_cgroup"), cgroup.path());
    let mut arguments = vec!["-n", "1", "sleep", "600", ":", "-n", "1", "--wrap", &wrap];
    arguments.extend(command);
    Some(Job::new(arguments).tier(tier).env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND).run_with_report())
}

fn is_log_readable() -> bool {
    fs::OpenOptions::new().read(true).open("/dev/kmsg").is_ok()
}

#[test]
fn a_pool_worker_that_the_kernel_killed_is_in_the_cause() {
    for tier in Tier::sampled() {
        let Some((ended, report)) = run(tier, &["python3", &program(), "pool"]) else { return };
        let text = ended.stderr_text();
        let culprit = report.culprit.as_ref().unwrap_or_else(|| panic!("no culprit: {text}"));
        assert_eq!((culprit.rank, ended.code), (Rank(1), Some(1)), "{text}");
        assert!(culprit.cause.contains("BrokenProcessPool: "), "{}", culprit.cause);
        assert!(culprit.cause.contains(" (its process python3, pid "), "{}", culprit.cause);
        assert!(culprit.cause.ends_with(", was killed by the kernel: out of memory)"), "{}", culprit.cause);
    }
}

#[test]
fn a_program_below_a_shell_that_the_kernel_killed_is_the_rank_itself() {
    for tier in Tier::sampled() {
        let script = "python3 -c 'b\"x\" * (1 << 29)'; exit $?";
        let Some((ended, report)) = run(tier, &["sh", "-c", script]) else { return };
        assert_eq!((report.class, ended.code), (Some(Class::OutOfMemory), Some(137)), "{}", ended.stderr_text());
    }
}

#[test]
fn a_helper_that_the_kernel_killed_ends_nothing_by_itself_and_is_in_the_evidence() {
    for tier in Tier::sampled() {
        let script = format!("python3 {} survived; exit 7", program());
        let Some((ended, report)) = run(tier, &["sh", "-c", &script]) else { return };
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(7), "{text}");
        assert!(ended.stdout_text().contains("the helper ended with -9"), "{text}");
        let is_killed = |fact: &Fact| matches!(fact, Fact::HelperOutOfMemory { name, .. } if name == "python3");
        assert!(report.evidence.iter().any(|evidence| is_killed(&evidence.fact)), "{text}");
    }
}
