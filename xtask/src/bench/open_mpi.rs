//! Open MPI beside its own launcher, and what it costs other jobs that PMIx is offered to them.
//!
//! Both are measured in pairs: one run of each, and who begins changes from pair to pair.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Bench;
use super::launchers::Kind;
use super::measure::{Run, median};
use super::table::{Table, Value};

/// No run lasts longer, unless something hangs.
const BOUND: Duration = Duration::from_secs(120);
/// Pairs of a row, unless the command line says how many.
const PAIRS: usize = 20;
/// A job without MPI takes milliseconds, so that more pairs cost nothing and the machine's noise is smaller.
const SHORT_PAIRS: usize = 60;

/// Init, barrier and finalize under rankrun and under the `mpirun` of Debian's Open MPI 4.1.
pub(super) fn open_mpi(bench: &Bench, table: &mut Table) -> Result<()> {
    for size in [4, 32, 64] {
        let mut ours = rankrun(bench, size);
        ours.arg(bench.program("init-openmpi-4"));
        let mut theirs = Command::new("mpirun.openmpi");
        theirs.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", &size.to_string()]);
        theirs.arg(bench.program("init-openmpi-4"));
        let pairs = pairs(bench.runs.unwrap_or(PAIRS), ours, theirs)?;
        let faster = pairs.iter().filter(|(ours, theirs)| ours < theirs).count();
        let remark = format!("faster in {faster} of {}", pairs.len());
        table.add(
            format!("open-mpi: MPI_Init + Barrier + Finalize, {size} ranks of Open MPI 4.1 (goal: below 1 x)"),
            Kind::OpenMpi,
            vec![
                (Kind::Rankrun, Value::Remarked { time: middle(&pairs, |pair| pair.0)?, remark }),
                (Kind::OpenMpi, Value::Time(middle(&pairs, |pair| pair.1)?)),
            ],
        );
    }
    Ok(())
}

/// A job without MPI, to which PMIx is offered (`--mpi auto`) or not (`--mpi pmi1`).
pub(super) fn offer(bench: &Bench, table: &mut Table) -> Result<()> {
    for (size, goal) in [(2, "+1 ms"), (256, "1.02 x")] {
        let [mut with, mut without] = [rankrun(bench, size), rankrun(bench, size)];
        with.args(["--mpi", "auto", "/bin/true"]);
        without.args(["--mpi", "pmi1", "/bin/true"]);
        let pairs = pairs(bench.runs.unwrap_or(SHORT_PAIRS), with, without)?;
        let mut more: Vec<i128> =
            pairs.iter().map(|(with, without)| with.as_nanos() as i128 - without.as_nanos() as i128).collect();
        more.sort_unstable();
        let more = more.get(more.len() / 2).context("nothing was measured")?;
        let remark = format!("{:+.2} ms in the pairs' median", *more as f64 / 1e6);
        table.add(
            format!("offer: {size} x /bin/true, PMIx not offered and offered (goal: {goal})"),
            Kind::RankrunBare,
            vec![
                (Kind::RankrunBare, Value::Time(middle(&pairs, |pair| pair.1)?)),
                (Kind::Rankrun, Value::Remarked { time: middle(&pairs, |pair| pair.0)?, remark }),
            ],
        );
    }
    Ok(())
}

fn rankrun(bench: &Bench, size: u32) -> Command {
    let mut command = Command::new(&bench.rankrun);
    command.args(["-n", &size.to_string()]);
    command
}

/// The times of both commands, again and again. Both must succeed.
fn pairs(count: usize, mut one: Command, mut other: Command) -> Result<Vec<(Duration, Duration)>> {
    let mut times = Vec::new();
    for round in 0..count {
        let (first, second);
        if round % 2 == 0 {
            first = time(&mut one)?;
            second = time(&mut other)?;
        } else {
            second = time(&mut other)?;
            first = time(&mut one)?;
        }
        times.push((first, second));
    }
    Ok(times)
}

fn time(command: &mut Command) -> Result<Duration> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match Run::start(command)?.wait(BOUND)? {
        Some((time, Some(0))) => Ok(time),
        ended => bail!("{command:?} ended with {ended:?}"),
    }
}

fn middle(pairs: &[(Duration, Duration)], of: fn(&(Duration, Duration)) -> Duration) -> Result<Duration> {
    median(pairs.iter().map(of).collect()).context("nothing was measured")
}
