//! The rows: what is run, and what is measured.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Bench;
use super::launchers::{Kind, Launcher};
use super::measure::{Run, median, monotonic, own_memory, pause};
use super::table::{Table, Value};
use crate::workspace;

/// No case lasts longer: some launchers never return from some cases.
pub(super) const BOUND: Duration = Duration::from_secs(20);

/// Length of a line of `bench/writer.c`, its newline included.
const LINE: usize = 83;

pub(super) fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// Runs each launcher in turn, `runs` times, and gives the median of what `once` measures. Of another build of rankrun, also the median of
/// the ratios of the pairs.
pub(super) fn interleaved(
    launchers: &[&Launcher],
    runs: usize,
    mut once: impl FnMut(&Launcher) -> Result<Value>,
) -> Result<Vec<(Kind, Value)>> {
    let mut times: BTreeMap<Kind, Vec<Duration>> = BTreeMap::new();
    let mut other: BTreeMap<Kind, Value> = BTreeMap::new();
    for _ in 0..runs {
        for launcher in launchers {
            if other.contains_key(&launcher.kind) {
                continue;
            }
            match once(launcher)? {
                Value::Time(time) => times.entry(launcher.kind).or_default().push(time),
                // Once is enough for what does not end, or does not work.
                value => drop(other.insert(launcher.kind, value)),
            }
        }
    }
    let pairs =
        times.get(&Kind::Rankrun).into_iter().flatten().zip(times.get(&Kind::RankrunOther).into_iter().flatten());
    let mut ratios: Vec<f64> = pairs.map(|(ours, its)| ours.as_secs_f64() / its.as_secs_f64()).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let ratio = ratios.get(ratios.len() / 2).map(|ratio| format!("rankrun takes {ratio:.3} x as long in pairs"));
    let value = |launcher: &&Launcher| {
        let kind = launcher.kind;
        let measured = median(times.remove(&kind).unwrap_or_default()).map(|time| match &ratio {
            Some(remark) if kind == Kind::RankrunOther => Value::Remarked { time, remark: remark.clone() },
            _ => Value::Time(time),
        });
        Some((kind, other.remove(&kind).or(measured)?))
    };
    Ok(launchers.iter().filter_map(value).collect())
}

impl Bench {
    /// The launchers of these kinds that are there; with rankrun goes its other build.
    pub(super) fn choose(&self, kinds: &[Kind]) -> Vec<&Launcher> {
        let kind = |launcher: &Launcher| match launcher.kind {
            Kind::RankrunOther => Kind::Rankrun,
            kind => kind,
        };
        self.launchers.iter().filter(|launcher| kinds.contains(&kind(launcher))).collect()
    }
}

/// The time of a whole run that must end with 0.
fn whole_run(launcher: &Launcher, size: u32, program: &[OsString]) -> Result<Value> {
    let ended = Run::start(quiet(&mut launcher.command(size, false, program)))?.wait(BOUND)?;
    Ok(match ended {
        Some((time, Some(0))) => Value::Time(time),
        Some((_, code)) => Value::Failed(format!("exit {code:?}")),
        None => Value::Longer(BOUND),
    })
}

pub(super) fn start(bench: &Bench, table: &mut Table) -> Result<()> {
    for (size, goal) in [(1, 0.8), (2, 0.8), (16, 0.7), (64, 0.7), (256, 0.6)] {
        let mut kinds =
            vec![Kind::Floor, Kind::Rankrun, Kind::RankrunFallback, Kind::Mpich, Kind::Intel, Kind::OpenMpi];
        let runs = bench.runs.unwrap_or(if size > 64 { 15 } else { 51 });
        let program = [OsString::from("/bin/true")];
        let mut values = interleaved(&bench.choose(&kinds), runs, |launcher| whole_run(launcher, size, &program))?;
        if size == 2 {
            // It takes seconds, and two runs say so as well as fifteen.
            kinds = vec![Kind::Torchrun];
            values.extend(interleaved(&bench.choose(&kinds), 2, |launcher| whole_run(launcher, size, &program))?);
        }
        table.add(format!("start: {size} x /bin/true (goal: {goal} x MPICH)"), Kind::Mpich, values);
    }
    Ok(())
}

/// What a user waits for who asks for a text.
pub(super) fn texts(bench: &Bench, table: &mut Table) -> Result<()> {
    for words in [&["--version"][..], &["--help"], &["completions", "bash"]] {
        let launchers = bench.choose(&[Kind::Rankrun]);
        let values = interleaved(&launchers, bench.runs.unwrap_or(51), |launcher| {
            let ended = Run::start(quiet(launcher.bare().args(words)))?.wait(BOUND)?;
            Ok(ended.map_or(Value::Longer(BOUND), |(time, _)| Value::Time(time)))
        })?;
        table.add(format!("texts: rankrun {} (goal: 1 ms)", words.join(" ")), Kind::Rankrun, values);
    }
    Ok(())
}

pub(super) fn failure(bench: &Bench, table: &mut Table) -> Result<()> {
    let size = 64;
    let kinds = [Kind::Floor, Kind::Rankrun, Kind::RankrunFallback, Kind::Mpich, Kind::Intel, Kind::OpenMpi];
    let values = interleaved(&bench.choose(&kinds), bench.runs.unwrap_or(9), |launcher| {
        let place = bench.meeting_place()?;
        let program = [bench.program("failing").into(), place.clone().into(), size.to_string().into()];
        let mut run = Run::start(quiet(&mut launcher.command(size, false, &program)))?;
        let ended = run.wait(BOUND)?;
        let now = monotonic();
        if ended.is_none() {
            return Ok(Value::Longer(BOUND));
        }
        let note = fs::read_to_string(place.join("failed")).context("no rank has failed")?;
        let failed = Duration::from_nanos(note.trim().parse()?);
        Ok(Value::Time(now.saturating_sub(failed)))
    })?;
    table.add(
        format!("failure: {size} ranks, one exits 3 -> launcher gone (goal: floor + 10 ms)"),
        Kind::Floor,
        values,
    );
    Ok(())
}

pub(super) fn output(bench: &Bench, table: &mut Table) -> Result<()> {
    let (size, count) = (4_u32, 1_000_000_u64);
    let program = [bench.program("writer").into(), count.to_string().into()];
    let file = bench.scratch.join("lines");
    for tagged in [false, true] {
        let kinds = [Kind::Floor, Kind::Rankrun, Kind::Mpich, Kind::Intel, Kind::OpenMpi];
        let launchers = bench.choose(&kinds);
        let mut torn = BTreeMap::new();
        let values = interleaved(&launchers, bench.runs.unwrap_or(3), |launcher| {
            let mut command = launcher.command(size, tagged, &program);
            command.stdin(Stdio::null()).stderr(Stdio::null());
            let ended = if launcher.kind == Kind::Floor {
                into_cat(command, File::create(&file)?)?
            } else {
                // A line in the default mode of a launcher may be raw; rankrun's is not, with more than one rank.
                Run::start(command.stdout(File::create(&file)?))?.wait(BOUND)?
            };
            let time = match ended {
                Some((time, Some(0))) => time,
                Some((_, code)) => return Ok(Value::Failed(format!("exit {code:?}"))),
                None => return Ok(Value::Longer(BOUND)),
            };
            if launcher.kind != Kind::Floor {
                torn.insert(launcher.kind, count_torn(&file, u64::from(size) * count)?);
            }
            Ok(Value::Time(time))
        })?;
        let mut completed = Vec::new();
        for (kind, value) in values {
            let launcher = launchers.iter().find(|launcher| launcher.kind == kind);
            let value = match (value, torn.get(&kind), launcher) {
                (Value::Time(time), Some(torn), Some(launcher)) => {
                    let mut command = launcher.command(size, tagged, &program);
                    command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(File::create(&file)?);
                    let memory = peak_memory(&mut command, "writer")?;
                    Value::Output { time, torn: *torn, memory }
                }
                (value, _, _) => value,
            };
            completed.push((kind, value));
        }
        let how = if tagged { "tagged (goal: 2.5 x, 0 torn, 20 MiB)" } else { "without tags" };
        table.add(
            format!("output: {size} ranks, 332 MB of lines to a file through cat or the launcher, {how}"),
            Kind::Floor,
            completed,
        );
    }
    warnings(bench, table)
}

/// Lines on stderr, each with a write of its own, of ranks that say nothing of themselves: what is read of them must not grow
/// with what came before.
fn warnings(bench: &Bench, table: &mut Table) -> Result<()> {
    let count = 200_000_u64;
    let file = bench.scratch.join("warnings");
    for size in [1, 4] {
        let program = [bench.program("warnings").into(), (count / u64::from(size)).to_string().into()];
        let kinds = [Kind::Floor, Kind::Rankrun, Kind::Mpich, Kind::Intel, Kind::OpenMpi];
        let values = interleaved(&bench.choose(&kinds), bench.runs.unwrap_or(5), |launcher| {
            let mut command = launcher.command(size, false, &program);
            if let Kind::Rankrun | Kind::RankrunOther = launcher.kind {
                command.env("RANKRUN_HOOK", "none");
            }
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&file)?);
            let ended = Run::start(&mut command)?.wait(BOUND)?;
            let lines = fs::read_to_string(&file)?.lines().filter(|line| line.contains(": warning ")).count();
            Ok(match ended {
                // Some launchers join lines of two ranks.
                Some((time, Some(0))) if size > 1 || lines as u64 == count => Value::Time(time),
                Some((_, code)) => Value::Failed(format!("exit {code:?}, {lines} lines")),
                None => Value::Longer(BOUND),
            })
        })?;
        let ranks = if size == 1 { "1 rank" } else { "4 ranks" };
        table.add(
            format!("output: {ranks}, 200,000 lines on stderr, one write each, without the hook (goal: 1 x Hydra)"),
            Kind::Mpich,
            values,
        );
    }
    Ok(())
}

/// Runs a command with its stdout into `cat`, which writes the file.
fn into_cat(mut command: Command, file: File) -> Result<Option<(Duration, Option<i32>)>> {
    let (reader, writer) = std::io::pipe()?;
    let mut cat = Command::new("cat").stdin(reader).stdout(file).spawn()?;
    command.stdout(writer);
    let mut run = Run::start(&mut command)?;
    let started = run.started;
    // The command holds the writing end of the pipe, and cat would wait for it.
    drop(command);
    let ended = run.wait(BOUND)?;
    cat.wait()?;
    Ok(ended.map(|(_, code)| (started.elapsed(), code)))
}

/// Lines of the file that are not, after some tag, a line of the writer; and lines that are missing.
pub(super) fn count_torn(file: &std::path::Path, expected: u64) -> Result<u64> {
    let mut reader = BufReader::with_capacity(1 << 20, File::open(file)?);
    let (mut line, mut whole, mut torn) = (Vec::new(), 0_u64, 0_u64);
    while reader.read_until(b'\n', &mut line)? > 0 {
        if is_whole(&line) {
            whole += 1
        } else {
            torn += 1
        }
        line.clear();
    }
    Ok(torn.max(expected.saturating_sub(whole)))
}

fn is_whole(line: &[u8]) -> bool {
    let Some(start) = line.len().checked_sub(LINE) else {
        return false;
    };
    let (tag, body) = line.split_at(start);
    let tagged = tag.is_empty() || (tag.starts_with(b"[") && tag.len() < 40 && !tag.contains(&b'x'));
    tagged
        && body[0].is_ascii_digit()
        && body[1] == b':'
        && body[2..9].iter().all(u8::is_ascii_digit)
        && body[9] == b':'
        && body[10..LINE - 1].iter().all(|byte| *byte == b'x')
        && body[LINE - 1] == b'\n'
}

/// Runs a command and looks at its memory again and again; the greatest sum seen.
fn peak_memory(command: &mut Command, program: &str) -> Result<u64> {
    let mut run = Run::start(command)?;
    let mut peak = 0;
    loop {
        peak = peak.max(own_memory(run.pid(), program));
        if run.has_ended()? {
            return Ok(peak);
        }
        if run.started.elapsed() > BOUND {
            run.kill()?;
            return Ok(peak);
        }
        pause(Duration::from_millis(20));
    }
}

pub(super) fn mpi(bench: &Bench, table: &mut Table) -> Result<()> {
    for (size, goal, usual_runs) in [(4, "1", 11), (16, "1", 20), (64, "0.7", 20), (256, "0.6", 5)] {
        // Open MPI takes minutes for as many.
        let kinds: &[Kind] = match size {
            256 => &[Kind::Rankrun, Kind::Mpich],
            _ => &[Kind::Rankrun, Kind::Mpich, Kind::OpenMpi],
        };
        let runs = bench.runs.unwrap_or(usual_runs);
        let values = interleaved(&bench.choose(kinds), runs, |launcher| {
            let library = if launcher.kind == Kind::OpenMpi { "openmpi" } else { "mpich" };
            whole_run(launcher, size, &[bench.program(&format!("init-{library}")).into()])
        })?;
        table.add(
            format!(
                "mpi: MPI_Init + Barrier + Finalize, {size} ranks of MPICH, and of Open MPI (goal: {goal} x Hydra)"
            ),
            Kind::Mpich,
            values,
        );
    }
    Ok(())
}

pub(super) fn pmi(bench: &Bench, table: &mut Table) -> Result<()> {
    let size = 64;
    let program = [workspace::release().join("pmi_client").into_os_string()];
    let kinds = [Kind::Rankrun, Kind::Mpich, Kind::Intel];
    let runs = bench.runs.unwrap_or(15);
    let values = interleaved(&bench.choose(&kinds), runs, |launcher| whole_run(launcher, size, &program))?;
    table.add(format!("pmi: PMI-1 client without MPI, {size} ranks"), Kind::Mpich, values);
    Ok(())
}

pub(super) fn memory(bench: &Bench, table: &mut Table) -> Result<()> {
    let size = 256_u32;
    let mut values = Vec::new();
    for launcher in bench.choose(&[Kind::Rankrun, Kind::Mpich, Kind::Intel, Kind::OpenMpi]) {
        let place = bench.meeting_place()?;
        let program = [bench.program("idle").into(), place.clone().into()];
        let mut run = Run::start(quiet(&mut launcher.command(size, false, &program)))?;
        let deadline = monotonic() + BOUND;
        let mut peak = 0;
        while fs::read_dir(&place)?.count() < size as usize {
            peak = peak.max(own_memory(run.pid(), "idle"));
            if monotonic() > deadline {
                run.kill()?;
                bail!("{}: {size} ranks did not come up", launcher.kind.name());
            }
            pause(Duration::from_millis(5));
        }
        peak = peak.max(own_memory(run.pid(), "idle"));
        run.kill()?;
        values.push((launcher.kind, Value::Bytes(peak)));
    }
    table.add(
        format!("memory: peak of the launcher's own processes (PSS), {size} ranks (goal: 20 MiB)"),
        Kind::Rankrun,
        values,
    );
    Ok(())
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_line_is_whole_with_and_without_a_tag_and_torn_otherwise() {
        let body = format!("3:0000012:{}\n", "x".repeat(72));
        assert_eq!(body.len(), LINE);
        for tag in ["", "[3] ", "[1,3]<stdout>: "] {
            assert!(is_whole(format!("{tag}{body}").as_bytes()));
        }
        assert!(!is_whole(&body.as_bytes()[..50]));
        assert!(!is_whole(format!("[2] 3:00000xx{body}").as_bytes()));
    }
}
