//! The row "stacks": where 64 ranks are. No launcher of the others can say it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value as Json;

use super::Bench;
use super::launchers::Kind;
use super::measure::{Run, median, monotonic, pause};
use super::rows::quiet;
use super::table::{Table, Value};

const RANKS: usize = 64;
/// No step lasts longer.
const BOUND: Duration = Duration::from_secs(60);
/// Ranks that sleep in a function of a function, with two threads more.
const PROGRAM: &str = "import os, threading, time
def wait():
    time.sleep(600)
def main():
    for _ in range(2):
        threading.Thread(target=wait, daemon=True).start()
    open(os.environ['UP'] + '/' + os.environ['RANK'], 'w').close()
    wait()
main()";

pub(super) fn stacks(bench: &Bench, table: &mut Table) -> Result<()> {
    let place = bench.meeting_place()?;
    let rankrun = &bench.rankrun;
    let mut command = Command::new(rankrun);
    command.args(["-n", &RANKS.to_string(), "--hook", "none", "--mpi", "none", "-x"]);
    command.arg(format!("UP={}", place.display())).args(["python3", "-c", PROGRAM]);
    let mut run = Run::start(quiet(&mut command))?;
    let looked = ready(&place, &run).and_then(|()| look_often(bench, rankrun, &run));
    run.kill()?;
    let (mut first, mut times, mut stops) = looked?;
    let title = format!("stacks: {RANKS} ranks of Python with 3 threads each");
    let first = first.pop().context("there was a first look")?;
    table.add(format!("{title}, the first look (goal: 1 s)"), Kind::Floor, vec![(Kind::Rankrun, Value::Time(first))]);
    times.sort_unstable();
    let time = median(times).context("there were looks")?;
    table.add(format!("{title}, another look"), Kind::Floor, vec![(Kind::Rankrun, Value::Time(time))]);
    stops.sort_unstable();
    let of_hundred = |share: usize| stops[(stops.len() - 1) * share / 100];
    let title = format!(
        "{title}, the longest stop of a rank's thread, 99 of 100 ranks (median {:?}; goal: 5 ms)",
        of_hundred(50)
    );
    table.add(title, Kind::Floor, vec![(Kind::Rankrun, Value::Time(of_hundred(99)))]);
    Ok(())
}

/// Waits until all ranks wait.
fn ready(place: &Path, run: &Run) -> Result<()> {
    while fs::read_dir(place)?.count() < RANKS {
        ensure!(run.started.elapsed() < BOUND, "the ranks do not come up");
        pause(Duration::from_millis(10));
    }
    Ok(())
}

type Looks = (Vec<Duration>, Vec<Duration>, Vec<Duration>);

/// The time of the first look, those of others, and how long each rank was stopped.
fn look_often(bench: &Bench, rankrun: &Path, run: &Run) -> Result<Looks> {
    let ask = |words: &[&str]| -> Result<Json> {
        let output = Command::new(rankrun).args(words).stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    };
    let all = ask(&["status", "--json"])?;
    let ours = all.as_array().into_iter().flatten().find(|job| job["pid"] == run.pid());
    let job = ours.and_then(|job| job["job"].as_str()).context("the job is listed")?.to_owned();
    let (mut first, mut times, mut stops) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..=bench.runs.unwrap_or(10) {
        let began = monotonic();
        let found = ask(&["stacks", &job, "--json"])?;
        let time = monotonic().saturating_sub(began);
        if number == 0 {
            first.push(time)
        } else {
            times.push(time)
        }
        let ranks = found["ranks"].as_array().context("a list")?;
        ensure!(ranks.iter().all(|rank| rank["stack"]["unseen"].is_null()) && ranks.len() == RANKS, "{found}");
        stops.extend(ranks.iter().filter_map(|rank| rank["stack"]["stopped_us"].as_u64()).map(Duration::from_micros));
    }
    Ok((first, times, stops))
}
