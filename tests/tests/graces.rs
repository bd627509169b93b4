//! Whose failures the graces are for: the process that is in MPI or leads the rank, and nobody else (docs/failures.md).

use std::path::Path;
use std::time::Duration;

use rankrun_tests::{Ended, Environment, Job, Tier};

const BOUND: Duration = Duration::from_secs(60);

fn helper() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/stops/helper.py").display().to_string()
}

fn run(tier: Tier, arguments: &[&str]) -> Ended {
    Job::new(arguments).tier(tier).env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND).run()
}

fn assert_fine(ended: &Ended, ranks: usize) {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(ended.stdout_text().lines().filter(|line| *line == "fine").count(), ranks, "{}", ended.stderr_text());
    assert_eq!(ended.stderr_text(), "");
}

#[test]
fn a_helper_of_a_rank_in_mpi_that_fails_slowly_is_left_alone() {
    for name in ["mpich", "impi-rt"] {
        let Some(environment) = Environment::find(name) else { continue };
        let python = environment.program("python");
        let ended = run(Tier::available()[0], &["-n", "2", "--exit-grace", "500ms", &python, &helper(), "mpi", "1.5"]);
        assert_fine(&ended, 2);
    }
}

#[test]
fn a_helper_of_any_python_rank_that_fails_slowly_is_left_alone() {
    for tier in Tier::sampled() {
        let options = ["-n", "2", "--exit-grace", "500ms"];
        assert_fine(&run(tier, &[&options[..], &["python3", &helper(), "plain", "1.5"]].concat()), 2);
        // A shell reports nothing; what it starts leads the rank, and what that starts does not.
        let script = format!("python3 {} plain 1.5; exit $?", helper());
        assert_fine(&run(tier, &[&options[..], &["sh", "-c", &script]].concat()), 2);
    }
}

const STUCK: &str = "import atexit, time; atexit.register(time.sleep, 600); raise ValueError('bad rate')";

#[test]
fn a_program_that_leads_its_rank_below_a_shell_is_not_left_alone() {
    for tier in Tier::sampled() {
        let script = format!("python3 -c \"{STUCK}\"; exit $?");
        let ended = run(tier, &["-n", "2", "--exit-grace", "1s", "sh", "-c", &script]);
        let text = ended.stderr_text();
        assert!(text.contains("ValueError: bad rate"), "{text}");
        assert!(text.contains("did not end after its failure, and was killed"), "{text}");
    }
}

#[test]
fn exit_handlers_that_are_waited_for_are_told_of_once() {
    let ended = run(Tier::available()[0], &["-n", "1", "--exit-grace", "4s", "python3", "-c", STUCK]);
    let text = ended.stderr_text();
    let told = "rankrun: rank 0: waiting for its exit handlers, for 2 s at most (--exit-grace)";
    assert_eq!(text.lines().filter(|line| *line == told).count(), 1, "{text}");
    assert_eq!(ended.code, Some(1), "{text}");
}

/// Prints a traceback that is survived, and is silent for longer than it takes to be suspected.
const SURVIVED: &str = "import time, traceback\ntry: raise TimeoutError('slow')\nexcept TimeoutError: traceback.print_exc()\ntime.sleep(12)\n";

#[test]
fn a_python_whose_hook_is_present_is_never_suspected() {
    let ended = run(Tier::available()[0], &["-n", "2", "--on-suspect", "kill", "python3", "-c", SURVIVED]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert!(!ended.stderr_text().contains("rankrun:"), "{}", ended.stderr_text());
}

#[test]
fn a_python_without_its_hook_is_suspected_also_after_one_that_had_it() {
    let after = "python3 -c pass; exec python3 -I -c \"$0\"";
    for program in [&["python3", "-I", "-c", SURVIVED][..], &["sh", "-c", after, SURVIVED]] {
        let ended = run(Tier::available()[0], &[&["-n", "1", "--on-suspect", "kill"], program].concat());
        assert_eq!(ended.code, Some(1), "{}", ended.stderr_text());
        assert!(ended.stderr_text().contains("TimeoutError: slow"), "{}", ended.stderr_text());
        // It is seen that its interpreter runs: nobody is warned.
        let ended = run(Tier::available()[0], &[&["-n", "1"], program].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
        assert!(!ended.stderr_text().contains("rankrun:"), "{}", ended.stderr_text());
    }
}

/// Raises while the agent stands still, which goes on when this process has ended: the agent finds the report of a process
/// that is no more. Nothing is printed.
const RAISES_UNSEEN: &str = r#"
import os, signal, time
rank, agent = os.getpid(), os.getppid()
os.close(2)
os.kill(agent, signal.SIGSTOP)
if os.fork() == 0:
    try:
        while open("/proc/%d/stat" % rank).read().rsplit(")")[-1].split()[0] != "Z": time.sleep(0.001)
    finally: os.kill(agent, signal.SIGCONT); os._exit(0)
raise ValueError("unseen")
"#;

#[test]
fn a_report_that_is_read_after_the_end_of_its_process_counts() {
    for tier in Tier::sampled() {
        let ended = run(tier, &["-n", "1", "python3", "-c", RAISES_UNSEEN]);
        let text = ended.stderr_text();
        assert!(text.contains("rankrun: rank 0 failed: ValueError: unseen"), "{text}");
    }
}
