//! The row "restart": from the exit of a rank to the next attempt.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Bench;
use super::hosts::Hosts;
use super::launchers::{Kind, Launcher};
use super::measure::Run;
use super::nodes::spread;
use super::rows::{BOUND, interleaved, quiet};
use super::table::{Table, Value};

/// What one run has noted.
#[derive(Clone, Copy)]
enum Measure {
    /// From the exit of the rank that fails to the last rank of the next attempt in `main`.
    All,
    /// The same to the first rank: what ends the old ranks, proves that they are gone, and decides.
    First,
    /// From the first rank to the last one in the first attempt: what starting them takes anyway.
    Start,
}

/// The floor kills, reaps and starts as well: what a launcher takes beyond it is its own.
pub(super) fn restart(bench: &Bench, table: &mut Table) -> Result<()> {
    let size = 64;
    let runs = bench.runs.unwrap_or(15);
    for (measure, title) in [
        (Measure::All, "one exits 3 -> all in main again (goal: floor + 20 ms)"),
        (Measure::First, "one exits 3 -> the first in main again"),
        (Measure::Start, "the first in main -> all, in the first attempt"),
    ] {
        let kinds = [Kind::Floor, Kind::Rankrun, Kind::RankrunFallback];
        let mut values = interleaved(&bench.choose(&kinds), runs, |launcher| once(bench, launcher, size, measure))?;
        // It takes seconds, and three runs say so as well as fifteen.
        let torchrun = bench.choose(&[Kind::Torchrun]);
        values.extend(interleaved(&torchrun, runs.min(3), |launcher| once(bench, launcher, size, measure))?);
        table.add(format!("restart: {size} ranks, {title}"), Kind::Floor, values);
    }
    Ok(())
}

/// A host is lost, and a spare one takes its place.
pub(super) fn spare(bench: &Bench, table: &mut Table) -> Result<()> {
    let hosts = Hosts::up(4)?;
    let mut times = Vec::new();
    for _ in 0..bench.runs.unwrap_or(15) {
        let place = hosts.directory("ranks")?;
        let mut command = hosts.rankrun()?;
        command.args(["-H", "node[0-3]:2", "--spares", "1", "--restart", "1", "--report-dir"]);
        command.arg(hosts.directory("report")?).arg(bench.program("attempts")).arg(&place).args(["6", "node"]);
        let ended = Run::start(quiet(&mut command))?.wait(3 * BOUND)?;
        ensure!(matches!(ended, Some((_, Some(0)))), "the job ended with {ended:?}");
        times.push(up(&place, 1, 6)?.1.saturating_sub(time(&place.join("failed"))?));
    }
    let title =
        "spare: 3 x 2 ranks over ssh and a spare host, rankrun is killed on one -> all in main again (goal: 1 s)";
    table.add(title, Kind::Floor, vec![(Kind::Rankrun, spread(times))]);
    Ok(())
}

fn once(bench: &Bench, launcher: &Launcher, size: u32, measure: Measure) -> Result<Value> {
    let place = bench.meeting_place()?;
    let program = [bench.program("attempts").into(), place.clone().into(), size.to_string().into()];
    let options: &[&str] = match launcher.kind {
        Kind::Floor => &[],
        Kind::Torchrun => &["--max-restarts", "1"],
        _ => &["--restart", "1"],
    };
    let mut command = launcher.command_with(size, options, &program);
    let mut run = Run::start(quiet(command.env("FLOOR_RESTARTS", "1")))?;
    match run.wait(3 * BOUND)? {
        Some((_, Some(0))) => {}
        Some((_, code)) => return Ok(Value::Failed(format!("exit {code:?}"))),
        None => return Ok(Value::Longer(3 * BOUND)),
    }
    let failed = time(&place.join("failed"))?;
    let (first, last) = match measure {
        Measure::All | Measure::First => up(&place, 1, size)?,
        Measure::Start => up(&place, 0, size)?,
    };
    Ok(Value::Time(match measure {
        Measure::All => last.saturating_sub(failed),
        Measure::First => first.saturating_sub(failed),
        Measure::Start => last.saturating_sub(first),
    }))
}

/// When the first and the last rank of an attempt were in `main`.
fn up(place: &Path, attempt: u32, size: u32) -> Result<(Duration, Duration)> {
    let times: Result<Vec<Duration>> = (0..size).map(|rank| time(&place.join(format!("{attempt}.{rank}")))).collect();
    let times = times?;
    let first = times.iter().min().context("a job has ranks")?;
    let last = times.iter().max().context("a job has ranks")?;
    Ok((*first, *last))
}

fn time(path: &Path) -> Result<Duration> {
    let note = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Duration::from_nanos(note.trim().parse()?))
}
