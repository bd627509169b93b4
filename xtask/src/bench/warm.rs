//! The row "warm": ranks that are forked from a prepared interpreter (`--preload`), beside ranks that are started by themselves, and beside torchrun.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Bench;
use super::measure::{Run, median, monotonic};
use super::rows::quiet;
use super::table::Table;
use crate::environments;
use crate::workspace;

const BOUND: Duration = Duration::from_secs(120);
/// Ranks that fail and come again, and ranks of a first start.
const FEW: u32 = 4;
const MANY: u32 = 8;

/// Who starts the ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Warm,
    Cold,
    Torchrun,
}

pub(super) fn warm(bench: &Bench, table: &mut Table) -> Result<()> {
    let runs = bench.runs.unwrap_or(10);
    let mut lines = vec![format!(
        "warm: medians of {runs} runs in turns; with --preload, without it and the ratio of the two; torchrun where it is there"
    )];
    for (environment, module, preload) in
        [("torch", "torch", "torch,torch.distributed"), ("torch", "numpy", "numpy"), ("jax", "jax", "jax,jax.numpy")]
    {
        let bin = environments::existing(environment).context("the environments were just made")?.join("bin");
        for (how, ranks, what) in [
            ("end", MANY, "first start, all in their program"),
            ("killed", FEW, "one is killed -> all in their program again (goal for torch: 150 ms)"),
            ("raises", FEW, "one raises -> all in their program again, its own end included"),
        ] {
            let ways: &[Way] = match module {
                "torch" if how != "end" => &[Way::Warm, Way::Cold, Way::Torchrun],
                _ => &[Way::Warm, Way::Cold],
            };
            let mut times = vec![Vec::new(); ways.len()];
            for _ in 0..runs {
                for (way, times) in ways.iter().zip(&mut times) {
                    times.push(once(bench, &bin, *way, (module, preload), how, ranks)?);
                }
            }
            let medians: Vec<f64> =
                times.into_iter().filter_map(|times| Some(median(times)?.as_secs_f64() * 1e3)).collect();
            let shown: Vec<String> = medians.iter().map(|ms| format!("{ms:.0} ms")).collect();
            lines.push(format!(
                "    {module}, {ranks} ranks, {what}: {}, {:.2} x",
                shown.join(", "),
                medians[0] / medians[1]
            ));
        }
    }
    table.add_text(lines.join("\n"));
    Ok(())
}

fn once(
    bench: &Bench,
    bin: &Path,
    way: Way,
    (module, preload): (&str, &str),
    how: &str,
    ranks: u32,
) -> Result<Duration> {
    let place = bench.meeting_place()?;
    let count = ranks.to_string();
    let mut command = match way {
        Way::Torchrun => Command::new(bin.join("torchrun")),
        Way::Warm | Way::Cold => Command::new(&bench.rankrun),
    };
    match way {
        Way::Torchrun => drop(command.args(["--nproc-per-node", &count, "--max-restarts", "1", "--master-port", "0"])),
        Way::Warm | Way::Cold => drop(command.args(["-n", &count, "--restart", "1", "--backoff", "0"])),
    }
    if way == Way::Warm {
        command.args(["--preload", preload]);
    }
    if way != Way::Torchrun {
        command.arg(bin.join("python3"));
    }
    command.arg(workspace::root().join("bench/warm.py")).arg(&place).args([module, how]);
    let began = monotonic();
    let mut run = Run::start(quiet(command.env("JAX_PLATFORMS", "cpu").env("OMP_NUM_THREADS", "1")))?;
    let ended = run.wait(BOUND)?;
    ensure!(matches!(ended, Some((_, Some(0)))), "{module} {how} ended with {ended:?}");
    let (attempt, from) = if how == "end" { (0, began) } else { (1, time(&place.join("failed"))?) };
    let up: Result<Vec<Duration>> = (0..ranks).map(|rank| time(&place.join(format!("{attempt}.{rank}")))).collect();
    let last = up?.into_iter().max().context("a job has ranks")?;
    Ok(last.saturating_sub(from))
}

fn time(path: &Path) -> Result<Duration> {
    let note = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Duration::from_nanos(note.trim().parse()?))
}
