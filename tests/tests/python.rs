//! The tests of the Python package and of the interpreter hook (`tests/python`), one test for each of their files. Nothing of theirs is left.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use rankrun_tests::cases::in_thread;
use rankrun_tests::{Environment, Job, rankrun};

/// The longest file takes a minute by itself.
const BOUND: Duration = Duration::from_secs(240);

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python")
}

fn main() -> ExitCode {
    let entries = fs::read_dir(directory()).expect("the tests are in the repository").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut files: Vec<String> = names
        .filter(|name| name.starts_with("test_"))
        .filter_map(|name| Some(name.strip_suffix(".py")?.to_owned()))
        .collect();
    files.sort_unstable();
    let trials = files.into_iter().map(|file| {
        Trial::test(file.clone(), move || in_thread(&file.clone(), move || run(&file)).map_err(Failed::from))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

fn run(file: &str) -> Result<(), String> {
    let Some(mpich) = Environment::find("mpich") else { return Ok(()) };
    let runner = directory().join("run.py").display().to_string();
    // They start jobs of their own, as a shell does: each has a journal or none.
    let words = ["-c", r#"exec "$@""#, "sh", &mpich.program("python"), &runner, file].map(str::to_owned);
    let job = Job::of_program("sh", words).env("RANKRUN_TEST_BINARY", rankrun()).env_remove("RANKRUN_JOURNAL");
    let ended = job.bound(BOUND).run();
    let text = ended.stderr_text();
    if ended.code == Some(0) && !text.contains("Ran 0 tests") {
        Ok(())
    } else {
        Err(format!("{:?}: {text}", ended.code))
    }
}
