//! Of several failures the one that happened first is named, however long its program needs to say what it was
//! (docs/worker-socket.md).

use std::path::Path;
use std::time::Duration;

use rankrun_core::Rank;
use rankrun_core::report::Report;
use rankrun_tests::{Ended, Job, compile, full_scale};

const BOUND: Duration = Duration::from_secs(60);

fn program(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/order").join(name).display().to_string()
}

fn run(command: &[&str]) -> (Ended, Report) {
    let mut all = vec!["-n", "3"];
    all.extend_from_slice(command);
    Job::new(all).env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND).run_with_report()
}

/// Asserts that rank 1 is named, with a cause that begins so.
fn assert_culprit(case: &str, (ended, report): &(Ended, Report), cause: &str) {
    let culprit = report.culprit.as_ref().unwrap_or_else(|| panic!("{case}: {}", ended.stderr_text()));
    assert_eq!(culprit.rank, Rank(1), "{case}: {}", ended.stderr_text());
    assert!(culprit.cause.starts_with(cause), "{case}: {}", ended.stderr_text());
    assert_eq!(ended.code, Some(1), "{case}");
}

/// The stop that follows the second failure ends the first rank before it can say all.
#[test]
fn the_python_rank_that_raised_first_is_named_though_it_needs_long_to_say_what() {
    for (how, cause) in [("text", "Text"), ("value", "ValueError"), ("native", "Native"), ("deep", "ValueError")] {
        for round in 0..full_scale(20, 3) {
            assert_culprit(&format!("{how}, run {round}"), &run(&["python3", &program("first.py"), how]), cause);
        }
    }
}

/// Its message arrives after that of the second one.
#[test]
fn the_client_whose_failure_came_first_is_named_though_it_tells_late() {
    let include = format!("-I{}/../include", env!("CARGO_MANIFEST_DIR"));
    let late = compile("cc", &[&include, "-D_POSIX_C_SOURCE=200809L"], Path::new(&program("late.c")), "order-late");
    for round in 0..full_scale(20, 3) {
        let run = run(&[late.to_str().expect("text")]);
        assert_culprit(&format!("run {round}"), &run, "Broken: first");
    }
}
