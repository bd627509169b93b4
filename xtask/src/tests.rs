//! `cargo xtask test` and `soak`: everything the tests need, the tests, and one line that sums them up.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::leftovers::Leftovers;
use crate::load::Load;
use crate::makers::Makers;
use crate::wants::Wants;
use crate::{environments, packages, process, workspace};

/// The black-box tests that need a Python environment; `--fast` leaves them out.
const SUITES_WITH_PEERS: [&str; 14] = [
    "python",
    "mpi",
    "open_mpi",
    "pmix",
    "mpi4py",
    "seeds",
    "seeds_python",
    "failures",
    "chainermn",
    "chaos_mpi",
    "jax",
    "matrix",
    "training",
    "store",
];

/// The files of black-box tests that are programs of their own; all others are modules of one, `jobs`.
const OWN_PROGRAMS: [&str; 3] = ["matrix", "hang_cases", "python"];

/// A test takes as many places as it uses of the CPUs: from 1, if it waits nearly all the time, to 6 (`.config/nextest.toml`).
const PLACES_PER_CPU: usize = 6;

/// The black-box tests that run once more under load.
const SUITES_UNDER_LOAD: [&str; 4] = ["containment", "output", "mpi", "matrix"];

/// Segments whose names do not tell their job, of Intel MPI and UCX: one that a rank makes in the moment in which it is killed without
/// rankrun's doing (its agent is killed) stays, and the report of the job names it (docs/containment.md).
const NAMES_OF_NO_JOB: [&str; 2] = ["/dev/shm/Intel_MPI_", "/dev/shm/ucx_shm_posix_"];

/// As many of them may stay in a whole run.
const MOST_OF_NO_JOB: usize = 2;

/// Which tests are run.
#[derive(Clone, Copy)]
enum Selection<'a> {
    All,
    /// All but the black-box tests of these files.
    Without(&'a [&'a str]),
    /// The black-box tests of these files alone.
    Only(&'a [&'a str]),
    BlackBox,
}

/// How often and how long the black-box tests do what they do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scale {
    Brief,
    Full,
    /// As brief, while busy loops run: bounds on time are wider.
    Loaded,
}

impl Scale {
    /// How many times as long as on an idle machine things may take. Bounds of tests are far above what is usual; the factor keeps them
    /// above it.
    fn slowness(self) -> &'static str {
        match self {
            Scale::Brief | Scale::Full => "3",
            Scale::Loaded => "10",
        }
    }
}

/// Sums of test results.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Totals {
    passed: u64,
    failed: u64,
    skipped: u64,
}

pub(crate) fn test(fast: bool, binary: Option<&Path>, filters: &[String]) -> Result<()> {
    let selection = if fast { Selection::Without(&SUITES_WITH_PEERS) } else { Selection::All };
    let binary = prepare(selection, binary, filters)?;
    let (before, makers) = (Leftovers::now(), Makers::watch());
    let mut totals = Totals::default();
    let sound = run_suite(selection, filters, Scale::Brief, &binary, &mut totals)?;
    conclude(sound, totals, &before, &makers)
}

/// The tests of what a busy machine may break, on a busy machine.
pub(crate) fn loaded(binary: Option<&Path>, filters: &[String]) -> Result<()> {
    let selection = Selection::Only(&SUITES_UNDER_LOAD);
    let binary = prepare(selection, binary, filters)?;
    let (before, makers) = (Leftovers::now(), Makers::watch());
    let mut totals = Totals::default();
    let load = Load::start()?;
    let sound = run_suite(selection, filters, Scale::Loaded, &binary, &mut totals)?;
    drop(load);
    conclude(sound, totals, &before, &makers)
}

pub(crate) fn soak(time: Duration, filters: &[String]) -> Result<()> {
    let binary = prepare(Selection::BlackBox, None, filters)?;
    let (before, makers) = (Leftovers::now(), Makers::watch());
    let start = Instant::now();
    let mut totals = Totals::default();
    let mut round = 0;
    loop {
        round += 1;
        println!("soak: round {round}, {} min after the start", start.elapsed().as_secs() / 60);
        let sound = run_suite(Selection::BlackBox, filters, Scale::Full, &binary, &mut totals)?;
        if !sound || start.elapsed() >= time {
            return conclude(sound, totals, &before, &makers);
        }
    }
}

/// Builds the chosen tests and installs what they need, and builds the binary if one of them runs it. Returns the binary to test: the given
/// one, or else the release build.
///
/// Without a filter the Python environments, which wait for the network, are installed while the compiler runs. With one, the built
/// tests first tell which of them are chosen.
fn prepare(selection: Selection, binary: Option<&Path>, filters: &[String]) -> Result<PathBuf> {
    let chooses = !filters.is_empty() || !matches!(selection, Selection::All | Selection::BlackBox);
    if chooses && has_nextest() {
        build_tests()?;
        let filter = ["--filterset".to_owned(), selection.filterset()];
        let wants = Wants::of(&[&filter, filters].concat())?;
        packages::install_missing(|words| wants.any_of(words))?;
        environments::create_if(|name| wants.environment(name))?;
        return if wants.has_black_box() { build_binary(binary) } else { Ok(workspace::release().join("rankrun")) };
    }
    packages::install_missing(|_| true)?;
    let is_fast = matches!(selection, Selection::Without(_));
    thread::scope(|scope| {
        let environments = scope.spawn(move || environments::create_if(|_| !is_fast));
        let built = build_binary(binary).and_then(|binary| build_tests().map(|()| binary));
        environments.join().map_err(|_| anyhow!("the installation of the Python environments panicked"))??;
        built
    })
}

fn cargo() -> Command {
    let mut command = workspace::cargo();
    command.current_dir(workspace::root());
    command
}

fn has_nextest() -> bool {
    workspace::find_program("cargo-nextest").is_some()
}

fn build_binary(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(binary) = given {
        return std::path::absolute(binary).context("the current directory is unknown");
    }
    println!("building rankrun");
    process::run(cargo().args(["build", "--release", "--package", "rankrun"]))?;
    Ok(workspace::release().join("rankrun"))
}

/// All tests are built in one go, whichever are asked for: another selection of packages would choose other features of the dependencies, and
/// build these and all crates once more.
fn build_tests() -> Result<()> {
    println!("building the tests");
    process::run(cargo().args(["test", "--no-run", "--quiet", "--workspace"]))
}

impl Selection<'_> {
    /// As a filter of nextest.
    fn filterset(self) -> String {
        let any = |suites: &[&str]| {
            let names = suites.join("|");
            format!("(package(=rankrun-tests) & (binary(/^({names})$/) | binary(=jobs) & test(/^({names})::/)))")
        };
        match self {
            Selection::All => "all()".to_owned(),
            Selection::Without(suites) => format!("not {}", any(suites)),
            Selection::Only(suites) => any(suites),
            Selection::BlackBox => "package(=rankrun-tests)".to_owned(),
        }
    }

    /// As arguments of `cargo test`: of what is built, and of the tests themselves, for each call. A file is chosen by its beginning and `::`, which
    /// the names of other files may end with: where these are many, nextest chooses more exactly.
    fn cargo_arguments(self) -> Vec<(Vec<String>, Vec<String>)> {
        let of_files = |suites: &[&str]| suites.iter().map(|suite| format!("{suite}::")).collect::<Vec<String>>();
        let unit = (vec!["--workspace".to_owned(), "--exclude=rankrun-tests".to_owned()], Vec::new());
        let programs = |names: &[&str]| names.iter().map(|name| format!("--test={name}")).collect::<Vec<String>>();
        let package = "--package=rankrun-tests".to_owned();
        let own =
            |suites: &[&str]| -> Vec<&str> { OWN_PROGRAMS.into_iter().filter(|name| suites.contains(name)).collect() };
        match self {
            Selection::All => vec![unit, (vec![package], Vec::new())],
            Selection::BlackBox => vec![(vec![package], Vec::new())],
            Selection::Without(suites) => {
                let skips = of_files(suites).into_iter().flat_map(|file| ["--skip".to_owned(), file]).collect();
                let rest: Vec<&str> = OWN_PROGRAMS.into_iter().filter(|name| !suites.contains(name)).collect();
                let mut of_jobs = vec![package.clone(), "--test=jobs".to_owned(), "--lib".to_owned()];
                of_jobs.extend(programs(&rest));
                vec![unit, (of_jobs, skips)]
            }
            Selection::Only(suites) => {
                let mut calls = vec![(vec![package.clone(), "--test=jobs".to_owned()], of_files(suites))];
                let others = programs(&own(suites));
                if !others.is_empty() {
                    calls.push(([vec![package], others].concat(), Vec::new()));
                }
                calls
            }
        }
    }
}

/// How many places there are for tests: most of these wait, for processes, networks and bounds of time.
fn threads() -> usize {
    PLACES_PER_CPU * thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Whether a segment has a name that tells no job: of [`NAMES_OF_NO_JOB`], or of a world of one of MPICH or Open MPI, which has the number
/// of its process there.
fn is_of_no_job(thing: &str) -> bool {
    let mpich = thing.strip_prefix("/dev/shm/mpich_shm_").and_then(|rest| rest.strip_suffix("_0"));
    // The host, the user, the process and a number of the job, rank 0.
    let is_of_open_mpi = thing.starts_with("/dev/shm/sm_segment.") && thing.ends_with("0000.0");
    is_of_open_mpi
        || mpich.is_some_and(|number| number.len() < 7)
        || NAMES_OF_NO_JOB.iter().any(|name| thing.starts_with(name))
}

fn conclude(sound: bool, totals: Totals, before: &Leftovers, makers: &Makers) -> Result<()> {
    let left = before.added_since();
    for thing in &left {
        println!("left behind: {}", makers.describe(thing));
    }
    println!("{} passed, {} failed, {} skipped", totals.passed, totals.failed, totals.skipped);
    let unknown = left.iter().filter(|thing| is_of_no_job(thing)).count();
    if left.len() > unknown || unknown > MOST_OF_NO_JOB {
        bail!("the tests left {} things behind", left.len());
    }
    if totals.skipped > 0 && workspace::is_ci() {
        bail!("CI does not accept skipped tests");
    }
    if !sound || totals.failed > 0 {
        bail!("tests failed");
    }
    Ok(())
}

/// Runs some tests and adds their results. False if the runner itself says that something is wrong.
fn run_suite(
    selection: Selection,
    filters: &[String],
    scale: Scale,
    binary: &Path,
    totals: &mut Totals,
) -> Result<bool> {
    let skips = workspace::target().join("skipped-tests");
    fs::write(&skips, "").with_context(|| format!("cannot write {}", skips.display()))?;
    let nextest = has_nextest();
    let mut commands = Vec::new();
    if nextest {
        let mut command = cargo();
        command.args(["nextest", "run", "--no-tests=pass", "--status-level=pass", "--workspace", "--filterset"]);
        command.arg(selection.filterset());
        match scale {
            Scale::Brief => drop(command.arg(format!("--test-threads={}", threads()))),
            Scale::Full => drop(command.args(["--profile", "soak"])),
            Scale::Loaded => drop(command.args(["--profile", "loaded"])),
        }
        command.args(filters);
        commands.push(command);
    } else {
        for (built, chosen) in selection.cargo_arguments() {
            let mut command = cargo();
            // Of several words libtest takes each: those of the user are narrower.
            let words =
                if filters.is_empty() || chosen.iter().any(|word| word == "--skip") { chosen } else { Vec::new() };
            command.args(["test", "--no-fail-fast"]).args(built).arg("--").args(filters).args(words);
            // Two at a time: `cargo test` does not know which tests need a machine of their own.
            command.arg("--test-threads=2");
            commands.push(command);
        }
    }
    let mut sound = true;
    let mut results = Totals::default();
    for mut command in commands {
        command
            .env("RANKRUN_BIN", binary)
            .env("RANKRUN_ENV_DIR", environments::directory()?)
            .env("RANKRUN_TEST_SKIPS", &skips)
            .env("RANKRUN_TEST_SCALE", if scale == Scale::Full { "full" } else { "brief" })
            .env("RANKRUN_TEST_SLOWNESS", scale.slowness())
            .env("RANKRUN_TEST_LOADED", if scale == Scale::Loaded { "yes" } else { "" });
        let (lines, success) = run_and_listen(&mut command, filters.is_empty())?;
        sound &= success;
        for line in &lines {
            // A failing test's own output, which nextest prints, has closing lines too.
            if nextest {
                results.read_nextest(line, filters.is_empty() && matches!(selection, Selection::All));
            } else {
                results.read_libtest(line);
            }
        }
    }
    let skipped = fs::read_to_string(&skips).unwrap_or_default();
    for line in skipped.lines() {
        println!("skipped: {line}");
        results.passed = results.passed.saturating_sub(1);
        results.skipped += 1;
    }
    totals.passed += results.passed;
    totals.failed += results.failed;
    totals.skipped += results.skipped;
    Ok(sound)
}

/// Between two lines about tests that passed.
const BETWEEN_PASSES: Duration = Duration::from_secs(10);

/// Runs a command, passes its stdout and stderr on, and returns their lines as well. In a long run a test that passed has a line of its own now and
/// then: nextest counts the tests in it.
fn run_and_listen(command: &mut Command, is_long: bool) -> Result<(Vec<String>, bool)> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("cannot start cargo")?;
    let (sender, receiver) = mpsc::sync_channel(1024);
    let streams: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>),
        child.stderr.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>),
    ];
    for stream in streams.into_iter().flatten() {
        let sender = sender.clone();
        thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
                // The receiver lives as long as we do.
                let _ = sender.send(line);
            }
        });
    }
    drop(sender);
    let mut lines = Vec::new();
    let mut out = std::io::stdout();
    let mut shown: Option<Instant> = None;
    for line in receiver {
        if is_long && line.trim_ascii_start().starts_with(b"PASS [") {
            if shown.is_some_and(|shown| shown.elapsed() < BETWEEN_PASSES) {
                continue;
            }
            shown = Some(Instant::now());
        }
        out.write_all(&line)?;
        out.write_all(b"\n")?;
        lines.push(String::from_utf8_lossy(&line).into_owned());
    }
    Ok((lines, child.wait()?.success()))
}

impl Totals {
    /// Adds a line such as `     Summary [   0.1s] 4 tests run: 3 passed (1 slow), 1 failed, 2 skipped`.
    fn read_nextest(&mut self, line: &str, count_skipped: bool) {
        let Some((_, counts)) = line.split_once("tests run: ").or_else(|| line.split_once("test run: ")) else {
            return;
        };
        for part in counts.split(", ") {
            let mut words = part.split_whitespace();
            let (Some(number), Some(word)) = (words.next().and_then(|number| number.parse::<u64>().ok()), words.next())
            else {
                continue;
            };
            match word {
                "passed" => self.passed += number,
                // With a filter this number is that of the tests that were not asked for.
                "skipped" => self.skipped += if count_skipped { number } else { 0 },
                _ => self.failed += number,
            }
        }
    }

    /// Adds a line such as `test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out`.
    fn read_libtest(&mut self, line: &str) {
        let Some((_, counts)) = line.split_once("test result: ").and_then(|(_, rest)| rest.split_once(". ")) else {
            return;
        };
        for part in counts.split("; ") {
            let mut words = part.split_whitespace();
            let (Some(number), Some(word)) = (words.next().and_then(|number| number.parse::<u64>().ok()), words.next())
            else {
                continue;
            };
            match word {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn closing_lines_of_both_runners_are_summed() {
        let mut totals = Totals::default();
        totals.read_nextest(
            "     Summary [   0.1s] 6 tests run: 3 passed (1 slow), 2 failed, 1 timed out, 2 skipped",
            true,
        );
        totals
            .read_libtest("test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0s");
        let expected = Totals { passed: 8, failed: 3, skipped: 3 };
        assert_eq!(totals, expected);
    }

    #[test]
    fn tests_left_out_by_a_filter_are_not_called_skipped() {
        let mut totals = Totals::default();
        totals.read_nextest("     Summary [   0.1s] 1 test run: 1 passed, 30 skipped", false);
        assert_eq!(totals, Totals { passed: 1, failed: 0, skipped: 0 });
    }
}
