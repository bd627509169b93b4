//! Programs on ranks that are bound to CPUs and on ranks that are not, under rankrun and under the launchers of the MPIs.
//!
//! One run of each variant, then the next of each, and each round begins with another variant. The programs measure themselves, so that the
//! start of the job does not count; of the small jobs it is all that counts. A run begins when nobody else uses the CPUs, unless that takes
//! too long; one after which somebody does is repeated. Most of the noise that is left is that of sessions: Linux weighs sessions, not
//! processes, and Hydra makes one for each rank. In a CPU cgroup, as that of a Slurm step, it does not.

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::Bench;
use super::grid::{Grid, Line};
use super::measure::{Run, monotonic};
use super::quiet::{self, Watch};
use super::table::Table;
use crate::{environments, workspace};

/// No run lasts longer, unless ranks that wait keep their CPUs.
const BOUND: Duration = Duration::from_secs(60);
const ROUNDS: usize = 15;
/// How often a run is tried again that others have disturbed.
const REPEATS: usize = 2;
/// Small jobs in a run: 200 in all rounds.
const BATCH: usize = 14;

/// How ranks are bound: the columns.
#[derive(Clone, Copy)]
enum Mode {
    Usual,
    Unbound,
    Core,
}

const MODES: [Mode; 3] = [Mode::Usual, Mode::Unbound, Mode::Core];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    Mpich,
    Intel,
    OpenMpi,
    OpenMpi4,
    Torchrun,
}

impl Peer {
    const MPIS: [Peer; 4] = [Peer::Mpich, Peer::Intel, Peer::OpenMpi, Peer::OpenMpi4];

    fn name(self) -> &'static str {
        match self {
            Peer::Mpich => "MPICH",
            Peer::Intel => "Intel MPI",
            Peer::OpenMpi => "Open MPI 5",
            Peer::OpenMpi4 => "Open MPI 4.1",
            Peer::Torchrun => "torchrun",
        }
    }

    fn environment(self) -> Option<&'static str> {
        match self {
            Peer::Mpich => Some("mpich"),
            Peer::Intel => Some("impi-rt"),
            Peer::OpenMpi => Some("openmpi"),
            Peer::OpenMpi4 => None,
            Peer::Torchrun => Some("torch"),
        }
    }

    fn directory(self) -> Option<PathBuf> {
        environments::existing(self.environment()?)
    }

    /// A program for this MPI. One for MPICH runs with the library of Intel MPI too: they have one ABI.
    fn program(self, bench: &Bench, name: &str) -> PathBuf {
        bench.program(&match self {
            Peer::Mpich | Peer::Intel | Peer::Torchrun => format!("{name}-mpich"),
            Peer::OpenMpi => format!("{name}-openmpi"),
            Peer::OpenMpi4 => format!("{name}-openmpi-4"),
        })
    }

    /// Its launcher, up to the program; `None` where it has no such mode.
    fn command(self, mode: Mode) -> Option<Command> {
        let mut command = match (self, self.directory()) {
            (Peer::OpenMpi4, _) => Command::new("mpirun.openmpi"),
            (Peer::Mpich | Peer::Intel, Some(directory)) => Command::new(directory.join("bin/mpiexec.hydra")),
            (Peer::OpenMpi, Some(directory)) => Command::new(directory.join("bin/mpirun")),
            (Peer::Torchrun, Some(directory)) => Command::new(directory.join("bin/torchrun")),
            (_, None) => return None,
        };
        match (self, mode) {
            (Peer::Mpich, Mode::Usual) | (Peer::Intel, Mode::Usual) => {}
            (Peer::Mpich, Mode::Unbound) => drop(command.args(["-bind-to", "none"])),
            (Peer::Mpich, Mode::Core) => drop(command.args(["-bind-to", "core"])),
            // It accepts -bind-to and ignores it.
            (Peer::Intel, Mode::Unbound) => drop(command.env("I_MPI_PIN", "off")),
            (Peer::Intel, Mode::Core) => drop(command.env("I_MPI_PIN_DOMAIN", "core")),
            (Peer::OpenMpi | Peer::OpenMpi4, mode) => {
                command.arg("--allow-run-as-root");
                match mode {
                    Mode::Usual => {}
                    Mode::Unbound => drop(command.args(["--bind-to", "none"])),
                    Mode::Core => drop(command.args(["--bind-to", "core"])),
                }
            }
            (Peer::Torchrun, Mode::Usual) => drop(command.args(["--standalone", "--no-python", "--nproc-per-node"])),
            (Peer::Torchrun, Mode::Unbound | Mode::Core) => return None,
        }
        if self != Peer::Torchrun {
            command.arg("-n");
        }
        command.arg("2");
        Some(command)
    }
}

/// The launcher of a variant.
#[derive(Clone, Copy)]
enum Starter {
    Rankrun(Mode),
    Peer(Peer, Mode),
}

/// What is run: words after the launcher's, and environment.
#[derive(Clone, Default)]
struct Program {
    words: Vec<OsString>,
    env: Vec<(&'static str, OsString)>,
}

/// How a run of a variant is measured.
#[derive(Clone, Copy)]
enum Measure {
    /// Times that the program prints: their geometric mean.
    Printed,
    /// A batch of jobs, so many at once: the time of a job.
    Jobs { at_once: usize },
}

/// Memory that no cache holds.
pub(super) fn memory(bench: &Bench, table: &mut Table) -> Result<()> {
    programs(bench, table, &[("triad, 3 × 64 MiB in each rank", "triad", "40", None)], &Peer::MPIS)
}

/// Messages of all sizes.
pub(super) fn messages(bench: &Bench, table: &mut Table) -> Result<()> {
    programs(bench, table, &[("15 collectives", "collectives", "30", None)], &Peer::MPIS)
}

/// Threads in the ranks. How many there are by default follows from the binding.
pub(super) fn openmp(bench: &Bench, table: &mut Table) -> Result<()> {
    let cases = [
        ("OpenMP, `OMP_NUM_THREADS` unset", "hybrid", "60", None),
        ("OpenMP, `OMP_NUM_THREADS=2`", "hybrid", "60", Some("2")),
    ];
    programs(bench, table, &cases, &[Peer::Mpich, Peer::OpenMpi4])
}

/// A title, the program and its argument, and OMP_NUM_THREADS.
type Case = (&'static str, &'static str, &'static str, Option<&'static str>);

fn programs(bench: &Bench, table: &mut Table, cases: &[Case], peers: &[Peer]) -> Result<()> {
    let mut grid = Grid::default();
    for (title, name, argument, threads) in cases {
        for peer in peers {
            let libraries = peer.directory().map(|directory| ("LD_LIBRARY_PATH", directory.join("lib").into()));
            let threads = threads.map(|threads| ("OMP_NUM_THREADS", threads.into()));
            let program = Program {
                words: vec![peer.program(bench, name).into(), argument.into()],
                env: libraries.into_iter().chain(threads).collect(),
            };
            group(bench, &mut grid, title, &[*peer], &program, Measure::Printed)?;
        }
    }
    table.add_text(grid.to_string());
    Ok(())
}

/// A training whose ranks start processes that prepare its data.
pub(super) fn torch(bench: &Bench, table: &mut Table) -> Result<()> {
    let mut grid = Grid::default();
    let python = Peer::Torchrun.directory().context("the environments were just made")?.join("bin/python3");
    let script = workspace::root().join("bench/loader.py");
    let words = vec![python.into(), script.into(), bench.scratch.join("meeting").into(), "40".into()];
    let program = Program { words, env: Vec::new() };
    let peers = [Peer::Torchrun, Peer::Mpich, Peer::OpenMpi4];
    group(bench, &mut grid, "torch, 2 DataLoader workers each", &peers, &program, Measure::Printed)?;
    table.add_text(grid.to_string());
    Ok(())
}

/// Jobs of milliseconds.
pub(super) fn jobs(bench: &Bench, table: &mut Table) -> Result<()> {
    let mut grid = Grid::default();
    let program = Program { words: vec!["/bin/true".into()], env: Vec::new() };
    for (title, at_once) in [("small jobs, one by one", 1), ("small jobs, 2 at a time", 2)] {
        group(bench, &mut grid, title, &Peer::MPIS, &program, Measure::Jobs { at_once })?;
    }
    table.add_text(grid.to_string());
    Ok(())
}

/// Measures all variants of rankrun and of these peers in turns, and adds a line for each peer.
fn group(
    bench: &Bench,
    grid: &mut Grid,
    title: &str,
    peers: &[Peer],
    program: &Program,
    measure: Measure,
) -> Result<()> {
    let theirs = peers.iter().flat_map(|peer| MODES.map(|mode| Starter::Peer(*peer, mode)));
    let starters: Vec<Starter> = MODES.map(Starter::Rankrun).into_iter().chain(theirs).collect();
    let mut times: Vec<Vec<Option<f64>>> = vec![Vec::new(); starters.len()];
    let rounds = bench.runs.unwrap_or(ROUNDS);
    let (mut watch, mut undisturbed_runs) = (Watch::default(), 0);
    for round in 0..rounds {
        for step in 0..starters.len() {
            let at = (round + step) % starters.len();
            // What does not work once is not tried again.
            let has_failed = times[at].first().is_some_and(Option::is_none);
            if has_failed {
                times[at].push(None);
                continue;
            }
            let (time, is_undisturbed) = undisturbed(&mut watch, || once(bench, starters[at], program, measure))?;
            undisturbed_runs += usize::from(is_undisturbed);
            times[at].push(time);
        }
    }
    println!("{title}: {undisturbed_runs} of {} runs undisturbed", times.iter().flatten().flatten().count());
    let mut sets = times.chunks_exact(MODES.len()).map(<[_]>::to_vec);
    let ours = sets.next().context("rankrun was not measured")?;
    for (peer, theirs) in peers.iter().zip(sets) {
        let line = Line { title: title.to_owned(), peer: peer.name(), ours: ours.clone(), theirs };
        println!("{line}");
        grid.lines.push(line);
    }
    Ok(())
}

/// The microseconds of a run, and whether nobody disturbed it. One that others begin to disturb is repeated.
fn undisturbed(watch: &mut Watch, mut once: impl FnMut() -> Option<f64>) -> Result<(Option<f64>, bool)> {
    for _ in 0..REPEATS {
        let was_quiet = watch.wait()?;
        let time = once();
        let is_undisturbed = was_quiet && quiet::is_quiet()?;
        if time.is_none() || !was_quiet || is_undisturbed {
            return Ok((time, is_undisturbed));
        }
    }
    Ok((once(), false))
}

/// The microseconds of a run; `None` if there is no such variant, or if it fails, which is reported.
fn once(bench: &Bench, starter: Starter, program: &Program, measure: Measure) -> Option<f64> {
    let command = || command(bench, starter, program);
    command()?;
    let measured = match measure {
        Measure::Printed => command().context("it was there").and_then(|command| printed(bench, command)),
        Measure::Jobs { at_once } => batch(&command, at_once),
    };
    measured.inspect_err(|error| eprintln!("placement: {error:#}")).ok()
}

fn command(bench: &Bench, starter: Starter, program: &Program) -> Option<Command> {
    let mut command = match starter {
        Starter::Peer(peer, mode) => peer.command(mode)?,
        Starter::Rankrun(mode) => {
            let mut command = Command::new(&bench.rankrun);
            command.args(["-n", "2"]);
            match mode {
                Mode::Usual => {}
                Mode::Unbound => drop(command.args(["--bind-to", "none"])),
                Mode::Core => drop(command.args(["--bind-to", "core"])),
            }
            command
        }
    };
    command.args(&program.words).env_remove("OMP_NUM_THREADS").envs(program.env.iter().cloned());
    command.stdin(Stdio::null()).stderr(Stdio::null());
    Some(command)
}

/// Runs a program that prints lines of a name and microseconds.
fn printed(bench: &Bench, mut command: Command) -> Result<f64> {
    // Where the ranks of torch meet.
    let _ = std::fs::remove_file(bench.scratch.join("meeting"));
    let path = bench.scratch.join("times");
    command.stdout(File::create(&path)?);
    succeed(&mut command)?;
    let text = std::fs::read_to_string(&path)?;
    let numbers = text.lines().filter_map(|line| line.split_once(' ')?.1.trim().parse::<f64>().ok());
    let logarithms: Vec<f64> = numbers.map(f64::ln).collect();
    ensure!(!logarithms.is_empty(), "{command:?} has printed no times: \"{text}\"");
    Ok((logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp())
}

/// Runs a batch of jobs, so many at a time.
fn batch(command: &(dyn Fn() -> Option<Command> + Sync), at_once: usize) -> Result<f64> {
    let began = monotonic();
    let in_turn = || -> Result<()> {
        for _ in 0..BATCH / at_once {
            let mut command = command().context("it was there")?;
            succeed(command.stdout(Stdio::null()))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(in_turn)).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("a thread panicked"),
        })
    })?;
    Ok((monotonic() - began).as_secs_f64() * 1e6 / (BATCH / at_once * at_once) as f64)
}

fn succeed(command: &mut Command) -> Result<()> {
    match Run::start(command)?.wait(BOUND)? {
        Some((_, Some(0))) => Ok(()),
        None => bail!("{command:?} was not done after {BOUND:?}"),
        Some((_, code)) => bail!("{command:?} ended with {code:?}"),
    }
}
