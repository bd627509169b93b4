//! The row "restart": from the exit of a rank to the next attempt.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Bench;
use super::launchers::{Kind, Launcher};
use super::measure::Run;
use super::rows::{BOUND, interleaved, quiet};
use super::table::{Table, Value};

/// The floor kills, reaps and starts as well: what a launcher takes beyond it is its own.
pub(super) fn restart(bench: &Bench, table: &mut Table) -> Result<()> {
    let size = 64;
    let kinds = [Kind::Floor, Kind::Rankrun, Kind::RankrunFallback];
    let runs = bench.runs.unwrap_or(15);
    let mut values = interleaved(&bench.choose(&kinds), runs, |launcher| once(bench, launcher, size))?;
    // It takes seconds, and three runs say so as well as fifteen.
    values.extend(interleaved(&bench.choose(&[Kind::Torchrun]), 3, |launcher| once(bench, launcher, size))?);
    let title = format!("restart: {size} ranks, one exits 3 -> all in main again (goal: floor + 20 ms)");
    table.add(title, Kind::Floor, values);
    Ok(())
}

fn once(bench: &Bench, launcher: &Launcher, size: u32) -> Result<Value> {
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
    let up: Result<Vec<Duration>> = (0..size).map(|rank| time(&place.join(format!("1.{rank}")))).collect();
    let last = up?.into_iter().max().unwrap_or_default();
    Ok(Value::Time(last.saturating_sub(failed)))
}

fn time(path: &Path) -> Result<Duration> {
    let note = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Duration::from_nanos(note.trim().parse()?))
}
