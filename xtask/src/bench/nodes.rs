//! Rows of jobs over ssh, on hosts of the tests' bench.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags};
use serde_json::Value as Json;

use super::Bench;
use super::hosts::Hosts;
use super::launchers::Kind;
use super::measure::{Run, median, monotonic, pause};
use super::rows::{BOUND, count_torn, quiet};
use super::table::{Table, Value};
use crate::environments;

/// The ranks of the first row: how many nodes, and ranks on each.
const NODES: u32 = 8;
const EACH: u32 = 8;
/// How long the ranks run before one fails: the processes to be watched are found meanwhile.
const LEAD: Duration = Duration::from_millis(400);

/// Median, nine tenths, and the most.
pub(super) fn spread(mut times: Vec<Duration>) -> Value {
    times.sort_unstable();
    let (Some(middle), Some(most)) = (median(times.clone()), times.last()) else {
        return Value::Failed("no times".to_owned());
    };
    let tenth = times[times.len() * 9 / 10];
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Value::Remarked { time: middle, remark: format!("p90 {:.1} ms, max {:.1} ms", ms(tenth), ms(*most)) }
}

/// What one run with a failure has shown.
struct Told {
    /// From the exit of the rank to the last death of another, as the kernel tells it.
    all: Duration,
    /// The same in the journal, and its parts: until the stop is ordered, and from then on.
    in_journal: Duration,
    ordered: Duration,
    carried_out: Duration,
}

pub(super) fn failure(bench: &Bench, table: &mut Table) -> Result<()> {
    let hosts = Hosts::up(NODES as usize)?;
    let runs = bench.runs.unwrap_or(30);
    let told = (0..runs).map(|_| fail_once(bench, &hosts)).collect::<Result<Vec<Told>>>()?;
    let title = format!("nodes: {NODES} x {EACH} ranks over ssh, one exits 3 ->");
    let mut add = |what: &str, time: fn(&Told) -> Duration| {
        table.add(
            format!("{title} {what}"),
            Kind::Floor,
            vec![(Kind::Rankrun, spread(told.iter().map(time).collect()))],
        );
    };
    add("the last of the others is dead (goal: 20 ms)", |told| told.all);
    add("the same by the journal", |told| told.in_journal);
    add("the stop is ordered, by the journal", |told| told.ordered);
    add("from the order to the last death, by the journal", |told| told.carried_out);
    drop(hosts);
    exception(bench, table)
}

fn fail_once(bench: &Bench, hosts: &Hosts) -> Result<Told> {
    let place = hosts.directory("ranks")?;
    let journal = hosts.directory("journal")?.join("journal");
    let size = NODES * EACH;
    let mut command = hosts.rankrun()?;
    command.arg("-H").arg(format!("node[0-{}]:{EACH}", NODES - 1)).arg("--journal").arg(&journal);
    command.arg("--report-dir").arg(hosts.directory("report")?);
    command.arg(bench.program("failing")).arg(&place).arg(size.to_string()).arg(LEAD.as_micros().to_string());
    let mut run = Run::start(quiet(&mut command))?;
    let all_up = || (0..size).all(|rank| place.join(rank.to_string()).exists());
    while !all_up() {
        ensure!(run.started.elapsed() < BOUND && !run.has_ended()?, "the ranks do not start");
        pause(Duration::from_millis(2));
    }
    let others = workers("failing")?;
    ensure!(others.len() + 1 == size as usize, "{} ranks beside the first", others.len());
    let mut last = Duration::ZERO;
    let mut alive: Vec<&OwnedFd> = others.iter().collect();
    while !alive.is_empty() {
        let mut polled: Vec<PollFd> = alive.iter().map(|fd| PollFd::new(*fd, PollFlags::IN)).collect();
        poll(&mut polled, None)?;
        last = monotonic();
        let dead: Vec<bool> = polled.iter().map(|it| !it.revents().is_empty()).collect();
        let mut dead = dead.into_iter();
        alive.retain(|_| !dead.next().unwrap_or_default());
    }
    match run.wait(BOUND)? {
        Some((_, Some(3))) => {}
        other => bail!("the job ended with {other:?}"),
    }
    let note = fs::read_to_string(place.join("failed")).context("no rank has failed")?;
    let failed = Duration::from_nanos(note.trim().parse()?);
    let (ended, ordered, last_ended) = times_of(&journal)?;
    Ok(Told {
        all: last.saturating_sub(failed),
        in_journal: last_ended.saturating_sub(ended),
        ordered: ordered.saturating_sub(ended),
        carried_out: last_ended.saturating_sub(ordered),
    })
}

/// Handles of the processes that run a program, of ranks but the first.
fn workers(program: &str) -> Result<Vec<OwnedFd>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let file = fs::read_link(entry.path().join("exe")).unwrap_or_default();
        if file.file_name().is_none_or(|name| name != program) {
            continue;
        }
        let env = fs::read(entry.path().join("environ")).unwrap_or_default();
        let is_first = env.split(|byte| *byte == 0).any(|variable| variable == b"RANKRUN_RANK=0");
        if let Some(pid) = Pid::from_raw(pid).filter(|_| !is_first) {
            found.push(rustix::process::pidfd_open(pid, PidfdFlags::empty())?);
        }
    }
    Ok(found)
}

/// When the first rank ended, when the stop was ordered, and when the last rank ended.
fn times_of(journal: &Path) -> Result<(Duration, Duration, Duration)> {
    let (mut first, mut ordered, mut last) = (None, None, None);
    for line in BufReader::new(File::open(journal)?).lines() {
        let line: Json = serde_json::from_str(&line?)?;
        let event = &line["event"];
        if !event["gang"]["event"]["Ended"].is_null() {
            let happened = event["gang"]["happened"].as_u64().map(Duration::from_nanos);
            first = first.or(happened);
            last = last.max(happened);
        }
        if !event["decision"]["Stop"].is_null() {
            ordered = ordered.or(line["at"].as_u64().map(Duration::from_nanos));
        }
    }
    let missing = "the journal lacks an end, or the stop";
    Ok((first.context(missing)?, ordered.context(missing)?, last.context(missing)?))
}

/// The case of the seeds over hosts: from the exception to the end of the job.
fn exception(bench: &Bench, table: &mut Table) -> Result<()> {
    let Some(python) = environments::existing("mpich").map(|directory| directory.join("bin/python")) else {
        return Ok(());
    };
    let hosts = Hosts::up(4)?;
    let program = "import time\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n\
        if MPI.COMM_WORLD.rank == 5:\n    \
        open('PLACE', 'w').write(str(time.monotonic_ns()))\n    raise ValueError('failure!')\n\
        MPI.COMM_WORLD.Barrier()\n";
    let mut times = Vec::new();
    for _ in 0..bench.runs.unwrap_or(15) {
        let note = hosts.directory("ranks")?.join("failed");
        let mut command = hosts.rankrun()?;
        command.args(["-H", "node[0-3]:4", "--report-dir"]).arg(hosts.directory("report")?).arg(&python);
        command.arg("-c").arg(program.replace("PLACE", &note.display().to_string()));
        let ended = Run::start(quiet(&mut command))?.wait(3 * BOUND)?;
        let now = monotonic();
        ensure!(matches!(ended, Some((_, Some(1)))), "the job ended with {ended:?}");
        let failed = Duration::from_nanos(fs::read_to_string(&note)?.trim().parse()?);
        times.push(now.saturating_sub(failed));
    }
    let title = "nodes: 4 x 4 ranks of MPICH, an exception in one -> launcher gone (goal: 1 s, of which --finalize-grace 0.5 s)";
    table.add(title, Kind::Floor, vec![(Kind::Rankrun, spread(times))]);
    Ok(())
}

/// 64 nodes that start and end 16 ranks each, by the events of the journal.
pub(super) fn start(bench: &Bench, table: &mut Table) -> Result<()> {
    let hosts = Hosts::up(64)?;
    let mut stages: [Vec<Duration>; 4] = Default::default();
    for _ in 0..bench.runs.unwrap_or(3) {
        let journal = hosts.directory("journal")?.join("journal");
        let mut command = hosts.rankrun()?;
        command.args(["-H", "node[0-63]:16", "-v", "--journal"]).arg(&journal).arg("/bin/true");
        let ended = Run::start(quiet(&mut command))?.wait(6 * BOUND)?;
        let Some((whole, Some(0))) = ended else { bail!("the job ended with {ended:?}") };
        let mut times = [None::<Duration>; 3];
        for line in BufReader::new(File::open(&journal)?).lines() {
            let line: Json = serde_json::from_str(&line?)?;
            let at = line["at"].as_u64().map(Duration::from_nanos);
            let event = &line["event"];
            let is_reached = event["note"].as_str().is_some_and(|note| note.ends_with("is reached"));
            let is_ready = event["note"].as_str().is_some_and(|note| note.contains("workers are held"));
            let stage = [is_reached, is_ready, !event["gang"]["event"]["Started"].is_null()];
            for (time, is_it) in times.iter_mut().zip(stage) {
                *time = if is_it { at } else { *time };
            }
        }
        for (stage, time) in stages.iter_mut().zip(times.into_iter().chain([Some(whole)])) {
            stage.extend(time);
        }
    }
    for (times, what) in
        stages.into_iter().zip(["all are reached", "all agents are ready", "all ranks are started", "the end"])
    {
        let title = format!("nodes-start: 64 hosts x 16 ranks of /bin/true over ssh -> {what}");
        table.add(title, Kind::Floor, vec![(Kind::Rankrun, spread(times))]);
    }
    Ok(())
}

/// Lines of 83 bytes that each of the four nodes writes: 332 MB together.
const LINES: u64 = 1_000_000;

/// Four nodes write as fast as they can: rankrun with tags, and four times ssh side by side.
pub(super) fn output(bench: &Bench, table: &mut Table) -> Result<()> {
    let hosts = Hosts::up(4)?;
    let file = bench.scratch.join("lines");
    let writer = bench.program("writer");
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    let mut torn = 0;
    for _ in 0..bench.runs.unwrap_or(3) {
        let mut sessions = Vec::new();
        for node in 0..4 {
            let mut ssh = hosts.command(Path::new("ssh"))?;
            ssh.arg("-F").arg(hosts.ssh_config()?).arg(format!("node{node}"));
            ssh.arg(format!("RANKRUN_RANK={node} {} {LINES}", writer.display()));
            ssh.stdin(Stdio::null())
                .stderr(Stdio::null())
                .stdout(File::create(bench.scratch.join(format!("raw{node}")))?);
            sessions.push(Run::start(&mut ssh)?);
        }
        let mut longest = Duration::ZERO;
        for mut session in sessions {
            let Some((time, Some(0))) = session.wait(6 * BOUND)? else { bail!("ssh fails") };
            longest = longest.max(time);
        }
        raw.push(longest);
        let mut command: Command = hosts.rankrun()?;
        command.args(["-H", "node[0-3]:1", "-l"]).arg(&writer).arg(LINES.to_string());
        command.stdin(Stdio::null()).stdout(File::create(&file)?);
        let ended = Run::start(&mut command)?.wait(6 * BOUND)?;
        let Some((time, Some(0))) = ended else { bail!("the job ended with {ended:?}") };
        ours.push(time);
        torn += count_torn(&file, 4 * LINES)?;
    }
    let time = median(ours).context("a run")?;
    let remark = format!("{torn} torn or lost");
    let values = vec![
        (Kind::Floor, Value::Time(median(raw).context("a run")?)),
        (Kind::Rankrun, Value::Remarked { time, remark }),
    ];
    table.add(
        "nodes-output: 4 hosts x 83 MB of lines, tagged; floor: four times ssh (goal: 1.5 x)",
        Kind::Floor,
        values,
    );
    Ok(())
}
