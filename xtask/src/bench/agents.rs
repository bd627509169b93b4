//! The row "agents": many nodes, of which one process plays the agents (`tests/src/bin/agents.rs`). Front, stream and messages are
//! those of the product; in the place of each ssh is a process that hands its stdin and stdout to that one.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::Bench;
use super::launchers::Kind;
use super::measure::{Run, median, monotonic, pause};
use super::rows::quiet;
use super::table::{Table, Value};
use crate::workspace;

/// The nodes, and the ranks of each.
const NODES: u32 = 1000;
const EACH: u32 = 10;
/// No job lasts longer.
const BOUND: Duration = Duration::from_secs(120);

pub(super) fn agents(bench: &Bench, table: &mut Table) -> Result<()> {
    let (mut times, mut memory) = (BTreeMap::<&str, Vec<Duration>>::new(), Vec::new());
    for _ in 0..bench.runs.unwrap_or(3) {
        let (found, bytes) = once(bench)?;
        found.into_iter().for_each(|(stage, time)| times.entry(stage).or_default().push(time));
        memory.push(bytes);
    }
    let title = format!("agents: {NODES} nodes x {EACH} ranks, played by one process");
    for (stage, what) in [
        ("connected", "all are connected"),
        ("told", "all agents are told to start their ranks"),
        ("started", "all ranks are started (goal: 5 s)"),
        ("stopped", "one rank exits 3 -> all agents are told (goal: 100 ms)"),
        ("end", "the stop -> launcher gone"),
    ] {
        let time = times.remove(stage).and_then(median).with_context(|| format!("no time of \"{stage}\""))?;
        table.add(format!("{title}, {what}"), Kind::Floor, vec![(Kind::Rankrun, Value::Time(time))]);
    }
    memory.sort_unstable();
    let peak = memory[memory.len() / 2];
    let remark = format!(
        "{title}, the front's memory at its most ({} bytes for a rank; goal: 4096)",
        peak / u64::from(NODES * EACH)
    );
    table.add(remark, Kind::Floor, vec![(Kind::Rankrun, Value::Bytes(peak))]);
    Ok(())
}

/// The times of one job, and the peak of the front's memory.
fn once(bench: &Bench) -> Result<(BTreeMap<&'static str, Duration>, u64)> {
    let socket = bench.scratch.join("agents");
    // None is left where there was no run before.
    let _ = fs::remove_file(&socket);
    let program = workspace::release().join("agents");
    let mut players = Command::new(&program);
    players.arg("serve").arg(&socket).arg("fail").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut players = players.spawn()?;
    let said = players.stdout.take().context("it was asked for")?;
    while !socket.exists() {
        ensure!(players.try_wait()?.is_none(), "no agents");
        pause(Duration::from_millis(1));
    }
    let mut command = Command::new(&bench.rankrun);
    command.arg("--ssh-command").arg(format!("{} ssh {}", program.display(), socket.display()));
    // Addresses: the resolver is not asked.
    command.args(["--remote-binary", "/played", "-H", &format!("10.9.[1-{}].[1-250]:{EACH}", NODES / 250)]);
    command.arg("--report-dir").arg(bench.scratch.join("agents-report")).arg("true");
    let began = monotonic();
    let mut run = Run::start(quiet(&mut command))?;
    let mut peak = 0;
    while !run.has_ended()? {
        if run.started.elapsed() > BOUND {
            run.kill()?;
            bail!("the job does not end");
        }
        peak = peak.max(high_water(run.pid()));
        pause(Duration::from_millis(20));
    }
    let ended = monotonic();
    players.wait()?;
    let mut found = BTreeMap::new();
    for line in BufReader::new(said).lines() {
        let line = line?;
        let (stage, nanos) = line.split_once(' ').context("a stage and its time")?;
        found.insert(stage.to_owned(), Duration::from_nanos(nanos.parse()?));
    }
    let at = |stage: &str| found.get(stage).copied().with_context(|| format!("no time of \"{stage}\""));
    let times = [
        ("connected", at("connected")?.saturating_sub(began)),
        ("told", at("told")?.saturating_sub(began)),
        ("started", at("started")?.saturating_sub(began)),
        ("stopped", at("stopped")?.saturating_sub(at("failed")?)),
        ("end", ended.saturating_sub(at("stopped")?)),
    ];
    Ok((times.into(), peak))
}

/// The most memory that a process has had so far.
fn high_water(pid: i32) -> u64 {
    let text = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
