//! torch's store: the agent's, and torch's own in a process of its own, with the same clients, in turns.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Bench;
use super::hosts::Hosts;
use super::launchers::Kind;
use super::measure::median;
use super::table::{Table, Value};
use crate::{environments, workspace};

/// Set + get of all clients together.
const TRIPS: u32 = 8_000;
/// Of clients that cost less.
const LIGHT_TRIPS: u32 = 20_000;
/// No run lasts longer.
const BOUND: Duration = Duration::from_secs(60);
/// rankrun's exit code at `--timeout`.
const TIMED_OUT: i32 = 124;

pub(super) fn store(bench: &Bench, table: &mut Table) -> Result<()> {
    for clients in [1, 8, 64] {
        let each = (TRIPS / clients).to_string();
        let goal = if clients == 8 { " (goal: torch takes 1.5 x as long)" } else { "" };
        let title = format!("store: {TRIPS} times set + get, by {clients} of torch's clients{goal}");
        row(bench, table, title, false, &["trips", &clients.to_string(), &each])?;
    }
    let binary = bench.program("store").display().to_string();
    for clients in [1, 8, 64] {
        let each = (LIGHT_TRIPS / clients).to_string();
        let title = format!(
            "store: {LIGHT_TRIPS} times the same requests, by {clients} clients in C (floor: a server that only answers)"
        );
        row(bench, table, title, true, &["light", &clients.to_string(), &each, &binary])?;
    }
    // torch's server looks up each client's name: how long that takes is up to the machine's resolver.
    let title = "store: 1,000 clients connect, one after the other (goal: 0.5 s)".to_owned();
    row(bench, table, title, false, &["connect", "1000"])?;
    let title = "store: one set wakes 9,000 that wait, clients in C (goal: 0.1 s)".to_owned();
    row(bench, table, title, false, &["light", "9001", "wake", &binary])
}

fn row(bench: &Bench, table: &mut Table, title: String, has_floor: bool, case: &[&str]) -> Result<()> {
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    let mut is_late = [false, false, !has_floor];
    for _ in 0..bench.runs.unwrap_or(5) {
        for (side, whose) in
            ["own", "ranks", "floor"].into_iter().enumerate().filter(|(side, _)| !is_late[*side]).collect::<Vec<_>>()
        {
            match once(bench, whose, case)? {
                Some(time) => times[side].push(time),
                None => is_late[side] = true,
            }
        }
    }
    let kinds = [Kind::Torchrun, Kind::Rankrun, Kind::Floor];
    let is_there = |kind: &Kind| *kind != Kind::Floor || has_floor;
    let values = kinds.into_iter().zip(times).zip(is_late).filter(|((kind, _), _)| is_there(kind));
    let values = values.filter_map(|((kind, times), is_late)| {
        let value = if is_late { Value::Longer(BOUND) } else { Value::Time(median(times)?) };
        Some((kind, value))
    });
    table.add(title, Kind::Torchrun, values.collect());
    Ok(())
}

/// Clients of four hosts: of torch's own store and of the agent's, to which they connect over the network, and of the agent's with a relay.
pub(super) fn nodes(bench: &Bench, table: &mut Table) -> Result<()> {
    let hosts = Hosts::up(4)?;
    let python = environments::existing("torch").context("the environments were just made")?.join("bin/python3");
    let stores = [(Kind::Torchrun, "rank0"), (Kind::RankrunBare, "agent"), (Kind::Rankrun, "relay")];
    for (what, title) in [
        (["wait", "2250"], "one set wakes 9,000 that wait (goal: 0.1 s)"),
        (["trips", "1000"], "1,000 times set + get, by a client in Python on each"),
    ] {
        let mut times: [Vec<Duration>; 3] = Default::default();
        for _ in 0..bench.runs.unwrap_or(5) {
            for (times, (_, store)) in times.iter_mut().zip(stores) {
                let mut command = hosts.rankrun()?;
                command.args(["-H", "node[0-3]", "--hook", "none", "--timeout", "60s", "--torch-store", store, "--"]);
                command.arg(&python).arg(workspace::root().join("tests/programs/store/relayed.py")).args(what);
                let output = command.stdin(Stdio::null()).output()?;
                let (told, wrong) = (text(&output.stdout), text(&output.stderr));
                ensure!(output.status.success(), "{wrong}");
                let told = if what[0] == "wait" { after(&wrong, "all awake after ") } else { told.trim().parse().ok() };
                times.push(Duration::from_secs_f64(told.with_context(|| format!("no time in \"{wrong}\""))?));
            }
        }
        let values =
            stores.iter().zip(times).filter_map(|((kind, _), times)| Some((*kind, Value::Time(median(times)?))));
        let title = format!("store-nodes: 4 hosts, {title}; without: without a relay");
        table.add(title, Kind::Torchrun, values.collect());
    }
    Ok(())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The number that follows these words.
fn after(text: &str, words: &str) -> Option<f64> {
    text.split_once(words)?.1.split(' ').next()?.parse().ok()
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
