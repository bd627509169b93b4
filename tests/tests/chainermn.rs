//! A real training with ChainerMN: it runs to its end, and when a rank fails in it, that is said and the job ends.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rankrun_core::evidence::{Class, Fact, Source};
use rankrun_core::report::Report;
use rankrun_core::verdict::Fate;
use rankrun_core::{Pid, Rank};
use rankrun_tests::{Ended, Environment, Job, Tier};

const BOUND: Duration = Duration::from_secs(120);
/// From the exception to the end: the iterators end their processes, `MPI_Finalize` has its grace and what the ranks
/// leave has its linger. That is 3 s; the rest is for a busy machine.
const END_BOUND: Duration = Duration::from_secs(20);

/// Runs the training on 2 ranks with these arguments of its own.
fn train(environment: &Environment, tier: Tier, arguments: &[&str]) -> (Ended, Report) {
    let reports = tempfile::tempdir().expect("the temporary directory can be written");
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/chainermn/train.py");
    let (program, python) = (program.to_str().expect("text"), environment.program("python"));
    let before = ["-n", "2", "--report-dir", reports.path().to_str().expect("text"), &python, program];
    let ended = Job::new(before.iter().chain(arguments)).tier(tier).bound(BOUND).run();
    let report = fs::read_to_string(reports.path().join("report.json"));
    let report = report.unwrap_or_else(|error| panic!("no report: {error}\n{}", ended.stderr_text()));
    let report: Report = serde_json::from_str(&report).expect("the report is as the library writes it");
    assert!(report.left.proven && report.left.processes.is_empty(), "{:?}", report.left);
    // The names that MPI was not let to remove are removed by rankrun, and listed.
    let stays = |name: &String| Path::new(name).exists();
    assert!(report.left.shared_memory_removed && !report.left.shared_memory.iter().any(stays), "{:?}", report.left);
    (ended, report)
}

/// The training came to its end on both ranks, with the iterators' worker processes, and has learnt something.
fn assert_trained(ended: &Ended, report: &Report) {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let text = ended.stdout_text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    // 2 ranks, each with 2 iterators of 2 worker processes.
    assert_eq!(lines[2], "epoch 3: error 0.000, 8 workers");
    assert_eq!(lines[3], "trained on 2 ranks");
    assert_eq!((report.class, &report.culprit), (None, &None));
    assert!(report.ranks.iter().all(|rank| rank.fate == Fate::Succeeded), "{:?}", report.ranks);
}

/// What was said over the worker socket about exceptions, and by which process.
fn testimonies(report: &Report) -> Vec<(Rank, Option<Pid>, &str)> {
    let said = report.evidence.iter().filter_map(|evidence| match &evidence.fact {
        Fact::Exception { source: Source::Program, exception } | Fact::Aside { exception, .. } => {
            Some((evidence.rank, evidence.pid, exception.message.as_str()))
        }
        _ => None,
    });
    said.collect()
}

#[test]
fn a_training_runs_to_its_end_and_nothing_speaks_against_it() {
    let Some(environment) = Environment::find("chainermn") else {
        return;
    };
    for tier in Tier::sampled() {
        let (ended, report) = train(&environment, tier, &[]);
        assert_trained(&ended, &report);
        assert_eq!(report.evidence, [], "{tier:?}");
        assert_eq!(ended.stderr_text(), "", "{tier:?}");
    }
}

#[test]
fn an_exception_in_the_extension_of_one_rank_is_named_and_ends_the_training() {
    let Some(environment) = Environment::find("chainermn") else {
        return;
    };
    for tier in Tier::sampled() {
        let (ended, report) = train(&environment, tier, &["--fail-on", "1"]);
        let stderr = ended.stderr_text();
        assert_eq!(ended.code, Some(1), "{stderr}");
        assert!(stderr.contains("rankrun: rank 1 failed: ValueError: failure after epoch 1"), "{stderr}");
        // Every other rank waits in the evaluation, so that `MPI_Finalize` cannot return.
        assert_eq!(report.class, Some(Class::StuckInFinalize), "{stderr}");
        let culprit = report.culprit.as_ref().expect("a failed job has a culprit");
        assert_eq!((culprit.rank, culprit.cause.as_str()), (Rank(1), "ValueError: failure after epoch 1"));
        let exception = culprit.exception.as_ref().expect("the interpreter told of it");
        assert!(exception.file.as_ref().is_some_and(|file| file.ends_with("/train.py")), "{exception:?}");
        assert_eq!(exception.function.as_deref(), Some("__call__"));
        assert!(exception.traceback.contains("trainer.run()"), "{exception:?}");
        let fates: Vec<Fate> = report.ranks.iter().map(|rank| rank.fate).collect();
        assert_eq!(fates, [Fate::EndedByRankrun, Fate::Culprit], "{stderr}");
        // The rank alone has spoken, and once: not the worker processes that it took along.
        let pid = report.ranks[1].pid;
        assert_eq!(testimonies(&report), [(Rank(1), pid, "failure after epoch 1")]);

        let stdout = ended.stdout_text();
        let raised = stdout.split_once("raised at ").and_then(|(_, rest)| rest.split_once(" ns"));
        let raised = raised.and_then(|(nanos, _)| nanos.parse().ok()).map(Duration::from_nanos).expect("it raised");
        let lived_on = ended.ended.saturating_sub(raised);
        assert!(lived_on < END_BOUND, "{tier:?}: the job lived on for {lived_on:?}");
    }
}

#[test]
fn a_worker_process_that_fails_does_not_testify_for_its_rank() {
    let Some(environment) = Environment::find("chainermn") else {
        return;
    };
    for tier in Tier::sampled() {
        let (ended, report) = train(&environment, tier, &["--failing-worker"]);
        assert!(ended.stderr_text().contains("RuntimeError: a worker's own failure"), "{}", ended.stderr_text());
        assert_trained(&ended, &report);
        assert_eq!(testimonies(&report), [], "{tier:?}");
    }
}
