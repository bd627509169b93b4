//! Programs of JAX: `jax.distributed.initialize()` needs no arguments, and a rank that fails is named.

use std::path::Path;
use std::time::Duration;

use rankrun_core::Rank;
use rankrun_core::report::Report;
use rankrun_core::verdict::Fate;
use rankrun_tests::{Ended, Environment, Job, in_time};

const BOUND: Duration = Duration::from_secs(120);

/// From the failure to the end: JAX handles SIGTERM itself, so that its ranks use up the grace of 5 s. Its own timeouts are
/// 100 s and 300 s.
const MOST: Duration = Duration::from_secs(12);

fn below(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path).display().to_string()
}

/// Runs `world.py` with these arguments in ranks of JAX, if it is there.
fn world(ranks: u32, options: &[&str], arguments: &[&str], env: &[(&str, &str)]) -> Option<(Ended, Report)> {
    let python = Environment::find("jax")?.program("python");
    let (ranks, script) = (ranks.to_string(), below("programs/jax/world.py"));
    let mut words = vec!["-n", &ranks, &python];
    words.extend(options);
    words.push(&script);
    words.extend(arguments);
    let mut job = Job::new(words).env("PYTHONDONTWRITEBYTECODE", "1").env("JAX_PLATFORMS", "cpu").bound(BOUND);
    for (name, value) in env {
        job = job.env(name, value);
    }
    Some(job.run_with_report())
}

/// That every rank has met the others.
fn assert_met(ended: &Ended, world: u32) {
    let text = ended.stdout_text();
    let ranks: Vec<u32> = (0..world).map(|rank| 10 * rank).collect();
    for rank in 0..world {
        let line = format!("rank {rank} of {world}: {ranks:?} [7], 1 device");
        assert!(text.lines().any(|have| have == line), "no line \"{line}\" in {text}\n{}", ended.stderr_text());
    }
}

fn assert_fine(ended: &Ended, world: u32) {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_met(ended, world);
}

/// That rank 1 is the culprit and ended the job soon, and the others are none.
fn assert_named(ended: &Ended, report: &Report, code: i32, cause: &str) {
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(code), "{text}");
    assert!(text.contains(&format!("rankrun: rank 1 failed: {cause}")), "{text}");
    let culprit = report.culprit.as_ref().unwrap_or_else(|| panic!("no culprit: {text}"));
    assert_eq!((culprit.rank, culprit.cause.as_str()), (Rank(1), cause), "{text}");
    for rank in report.ranks.iter().filter(|rank| rank.rank != Rank(1)) {
        assert!(matches!(rank.fate, Fate::Victim | Fate::EndedByRankrun), "{:?}: {text}", rank.fate);
    }
    let took = report.seconds - culprit.at;
    assert!(took <= in_time(MOST).as_secs_f64(), "{took:.1} s after the failure: {text}");
}

#[test]
fn ranks_meet_without_arguments() {
    for ranks in [1, 2, 4] {
        let Some((ended, _)) = world(ranks, &[], &["meet"], &[]) else { return };
        assert_fine(&ended, ranks);
    }
}

#[test]
fn an_outer_step_of_slurm_is_not_mistaken_for_the_job() {
    let outer = [
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_STEP_NODELIST", "node[01-02]"),
        ("SLURM_STEP_NUM_TASKS", "8"),
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_NTASKS", "8"),
        ("SLURM_PROCID", "3"),
        ("SLURM_LOCALID", "3"),
    ];
    let Some((ended, _)) = world(2, &[], &["meet"], &outer) else { return };
    assert_fine(&ended, 2);
}

#[test]
fn arguments_of_the_program_count() {
    // The port is the coordinator's.
    let env = [("RANKRUN_TORCH_STORE", "rank0")];
    let Some((ended, _)) = world(2, &[], &["arguments"], &env) else { return };
    assert_fine(&ended, 2);
}

/// As docs/recipes.md has it.
#[test]
fn without_the_hook_the_package_is_to_be_imported() {
    let Some((ended, _)) = world(2, &["-I"], &["package", &below("../python")], &[]) else { return };
    assert_fine(&ended, 2);
    let Some((ended, _)) = world(2, &["-I"], &["meet"], &[]) else { return };
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(1), "{text}");
    assert!(text.contains("failed: ValueError: coordinator_address should be defined."), "{text}");
}

#[test]
fn a_rank_that_raises_is_named_while_the_others_wait() {
    let Some((ended, report)) = world(3, &[], &["raise"], &[]) else { return };
    assert_met(&ended, 3);
    assert_named(&ended, &report, 1, "ValueError: bad batch 7");
    let exception = report.culprit.and_then(|culprit| culprit.exception).expect("the hook told of it");
    assert!(exception.file.is_some_and(|file| file.ends_with("world.py")));
}

#[test]
fn a_rank_that_exits_is_named_with_its_code() {
    let Some((ended, report)) = world(2, &[], &["exit"], &[]) else { return };
    assert_met(&ended, 2);
    assert_named(&ended, &report, 3, "exited with code 3");
}

#[test]
fn a_rank_that_dies_is_named_and_those_that_lost_it_are_not() {
    let Some((ended, report)) = world(3, &[], &["die"], &[]) else { return };
    assert_met(&ended, 3);
    assert_named(&ended, &report, 4, "exited with code 4");
}

#[test]
fn a_rank_that_leaves_before_the_others_have_met_ends_the_job() {
    let Some((ended, report)) = world(2, &[], &["leave-before"], &[]) else { return };
    assert_named(&ended, &report, 7, "exited with code 7");
}

#[test]
fn of_ranks_that_gave_up_on_one_that_left_with_0_none_is_blamed() {
    let Some((ended, report)) = world(2, &[], &["leave-quietly"], &[]) else { return };
    let text = ended.stderr_text();
    assert!(text.contains("rankrun: no rank failed of its own: rank 1 left with code 0"), "{text}");
    assert_eq!((ended.code, report.ranks[0].fate), (Some(1), Fate::Victim), "{text}");
}
