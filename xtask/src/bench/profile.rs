//! The row "profile": what a program pays while it is profiled at 20 looks a second. The windows with and without alternate within one job.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value as Json;

use super::Bench;
use super::launchers::Kind;
use super::measure::{Run, descendants, median, monotonic, pause};
use super::rows::quiet;
use super::table::{Table, Value};

/// The rate of a profile, and the goal.
const RATE: &str = "20";
/// How long the steps are counted each time.
const WINDOW: Duration = Duration::from_secs(3);
/// How long a sampler may take until it is at work.
const STARTS: Duration = Duration::from_millis(700);
const BOUND: Duration = Duration::from_secs(60);
const PAIRS: usize = 10;
/// The same steps in Python.
const PROGRAM: &str = "import mmap, os, struct, sys
path = sys.argv[1] + '/0'
with open(path, 'wb') as file:
    file.truncate(8)
file = open(path, 'r+b')
count = mmap.mmap(file.fileno(), 8)
def step():
    total = 0
    for number in range(2000):
        total += number * number
    return total
def main():
    steps = 0
    while True:
        step()
        steps += 1
        count[0:8] = struct.pack('=Q', steps)
main()";

pub(super) fn profile(bench: &Bench, table: &mut Table) -> Result<()> {
    let native = vec![bench.program("steps").display().to_string()];
    let python = ["python3", "-c", PROGRAM].map(str::to_owned).to_vec();
    for (name, program) in [("C", native), ("Python", python)] {
        let place = bench.meeting_place()?;
        let mut command = Command::new(&bench.rankrun);
        command.args(["-n", "1", "--hook", "none", "--mpi", "none"]).args(program).arg(&place);
        let mut run = Run::start(quiet(&mut command))?;
        let measured = ready(&place.join("0"), &run).and_then(|()| pairs(bench, &run, &place.join("0")));
        run.kill()?;
        let Pairs { with, without, mut ratios, mut used } = measured?;
        ratios.sort_by(f64::total_cmp);
        used.sort_by(f64::total_cmp);
        let middle = |all: &[f64]| all[all.len() / 2];
        let title = format!(
            "profile: a step of a loop in {name} while it is profiled at {RATE} Hz (goal: 1.01 times its time without)"
        );
        let remark = format!(
            "without {:?}, median of the ratios of {} pairs {:.4}, {:.2} % of a core for the sampler",
            median(without).context("there were windows")?,
            ratios.len(),
            middle(&ratios),
            100.0 * middle(&used)
        );
        let time = median(with).context("there were windows")?;
        table.add(title, Kind::Floor, vec![(Kind::Rankrun, Value::Remarked { time, remark })]);
    }
    Ok(())
}

fn ready(file: &Path, run: &Run) -> Result<()> {
    while count(file).is_none_or(|count| count == 0) {
        ensure!(run.started.elapsed() < BOUND, "the rank does not come up");
        pause(Duration::from_millis(10));
    }
    Ok(())
}

fn count(file: &Path) -> Option<u64> {
    let bytes = fs::read(file).ok()?;
    Some(u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?))
}

/// The times of a step with and without a profile, their ratios, and the part of a core that the sampler used.
struct Pairs {
    with: Vec<Duration>,
    without: Vec<Duration>,
    ratios: Vec<f64>,
    used: Vec<f64>,
}

fn pairs(bench: &Bench, run: &Run, file: &Path) -> Result<Pairs> {
    let mut listed = Command::new(&bench.rankrun);
    let listed = listed.args(["status", "--json"]).stdin(Stdio::null()).output()?;
    let all: Json = serde_json::from_slice(&listed.stdout)?;
    let ours = all.as_array().into_iter().flatten().find(|job| job["pid"] == run.pid());
    let job = ours.and_then(|job| job["job"].as_str()).context("the job is listed")?;
    let mut pairs = Pairs { with: Vec::new(), without: Vec::new(), ratios: Vec::new(), used: Vec::new() };
    for _ in 0..bench.runs.unwrap_or(PAIRS) {
        let without = step(file)?;
        let mut profile = Command::new(&bench.rankrun);
        let seconds = (WINDOW + 2 * STARTS).as_secs_f64().to_string();
        let output = bench.scratch.join("profile");
        profile.args(["profile", job, "--rate", RATE, "--seconds", &seconds, "--output"]).arg(output);
        let mut profile = quiet(&mut profile).spawn()?;
        pause(STARTS);
        let before = sampler_ran(run);
        let began = monotonic();
        let with = step(file)?;
        let ran = sampler_ran(run).zip(before).map(|(after, before)| after.saturating_sub(before));
        let took = monotonic().saturating_sub(began);
        ensure!(profile.wait()?.success(), "the job was not profiled");
        pairs.used.push(ran.context("the sampler runs")?.as_secs_f64() / took.as_secs_f64());
        pairs.ratios.push(with.as_secs_f64() / without.as_secs_f64());
        pairs.with.push(with);
        pairs.without.push(without);
    }
    Ok(pairs)
}

/// The time of a step.
fn step(file: &Path) -> Result<Duration> {
    let now = || Some((monotonic(), count(file)?));
    let (began, first) = now().context("the rank counts")?;
    pause(WINDOW);
    let (ended, last) = now().context("the rank counts")?;
    let steps = u32::try_from(last - first)?;
    ensure!(steps > 0, "the rank does not go on");
    Ok(ended.saturating_sub(began) / steps)
}

/// The CPU time of the sampler.
fn sampler_ran(run: &Run) -> Option<Duration> {
    let is_sampler = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains("stack-sampler"))
    };
    let pid = descendants(run.pid()).into_iter().find(is_sampler)?;
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let ran = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Some(Duration::from_nanos(ran.sum::<u64>()))
}
