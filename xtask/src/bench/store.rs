//! torch's store: the agent's, and torch's own in a process of its own, with the same clients, in turns.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Bench;
use super::launchers::Kind;
use super::measure::median;
use super::table::{Table, Value};
use crate::{environments, workspace};

/// Set + get of all clients together.
const TRIPS: u32 = 8_000;
/// No run lasts longer.
const BOUND: Duration = Duration::from_secs(60);
/// rankrun's exit code at `--timeout`.
const TIMED_OUT: i32 = 124;

pub(super) fn store(bench: &Bench, table: &mut Table) -> Result<()> {
    for clients in [1, 8, 64] {
        let each = (TRIPS / clients).to_string();
        let goal = if clients == 8 { " (goal: torch takes 1.5 x as long)" } else { "" };
        let title = format!("store: {TRIPS} times set + get, by {clients} of torch's clients{goal}");
        row(bench, table, title, &["trips", &clients.to_string(), &each])?;
    }
    // torch's server looks up each client's name: how long that takes is up to the machine's resolver.
    let title = "store: 1,000 clients connect, one after the other (goal: 0.5 s)".to_owned();
    row(bench, table, title, &["connect", "1000"])?;
    row(bench, table, "store: one set wakes 9,000 that wait".to_owned(), &["wake", "9000"])
}

fn row(bench: &Bench, table: &mut Table, title: String, case: &[&str]) -> Result<()> {
    let mut times = [Vec::new(), Vec::new()];
    let mut is_late = [false, false];
    for _ in 0..bench.runs.unwrap_or(5) {
        for (side, whose) in
            ["own", "ranks"].into_iter().enumerate().filter(|(side, _)| !is_late[*side]).collect::<Vec<_>>()
        {
            match once(bench, whose, case)? {
                Some(time) => times[side].push(time),
                None => is_late[side] = true,
            }
        }
    }
    let kinds = [Kind::Torchrun, Kind::Rankrun];
    let values = kinds.into_iter().zip(times).zip(is_late).filter_map(|((kind, times), is_late)| {
        let value = if is_late { Value::Longer(BOUND) } else { Value::Time(median(times)?) };
        Some((kind, value))
    });
    table.add(title, Kind::Torchrun, values.collect());
    Ok(())
}

/// The seconds that `bench/store.py` prints; `None` if it takes too long. It is a rank in both cases.
fn once(bench: &Bench, whose: &str, case: &[&str]) -> Result<Option<Duration>> {
    let python = environments::existing("torch").context("the environments were just made")?.join("bin/python3");
    let mut command = Command::new(&bench.rankrun);
    let bound = format!("{}s", BOUND.as_secs());
    command.args(["-n", "1", "--hook", "none", "--timeout", &bound, "--"]).arg(python);
    command.arg(workspace::root().join("bench/store.py")).arg(whose).args(case);
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.code() == Some(TIMED_OUT) {
        return Ok(None);
    }
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let seconds: f64 = text.trim().parse().with_context(|| format!("\"{}\" is no number", text.trim()))?;
    Ok(Some(Duration::from_secs_f64(seconds)))
}
