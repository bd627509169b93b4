//! What it costs that ranks can tell of themselves: the interpreter hook, and the worker socket.
//!
//! rankrun is compared with itself: with and without what is measured, in turns.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::Bench;
use super::launchers::Kind;
use super::measure::{Run, median};
use super::table::{Table, Value};
use crate::environments;

/// No run lasts longer, unless something hangs.
const BOUND: Duration = Duration::from_secs(60);

pub(super) fn hook(bench: &Bench, table: &mut Table) -> Result<()> {
    // The machine's own `python3` may be a script, or import at each start what is none of our business.
    let python = environments::existing("mpich").context("the environments were just made")?.join("bin/python");
    for (bytecode, how) in [(None, "bytecode is kept"), (Some("1"), "PYTHONDONTWRITEBYTECODE=1")] {
        let mut command = Command::new(&bench.rankrun);
        command.args(["-n", "1"]).arg(bench.program("hook")).arg(bench.runs.unwrap_or(300).to_string());
        command.arg(&python).args(["-c", "pass"]);
        command.env_remove("PYTHONPATH").env_remove("PYTHONDONTWRITEBYTECODE");
        command.envs(bytecode.map(|value| ("PYTHONDONTWRITEBYTECODE", value)));
        let output = command.stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        let pairs: Vec<[i64; 4]> = text.lines().map(numbers).collect::<Result<_>>()?;
        let middle = |of: fn(&[i64; 4]) -> i64| {
            let mut values: Vec<i64> = pairs.iter().map(of).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().context("nothing was measured")
        };
        let time = |nanos: i64| Duration::from_nanos(nanos.unsigned_abs());
        let (more, busy) = (middle(|pair| pair[0] - pair[1])?, middle(|pair| pair[2] - pair[3])?);
        let remark = format!("{:+.2} ms, cpu {:+.2} ms", more as f64 / 1e6, busy as f64 / 1e6);
        let values = vec![
            (Kind::RankrunBare, Value::Time(time(middle(|pair| pair[1])?))),
            (Kind::Rankrun, Value::Remarked { time: time(middle(|pair| pair[0])?), remark }),
        ];
        let title = format!("hook: python -c pass in a rank, without and with the hook, {how} (goal: +2 ms)");
        table.add(title, Kind::RankrunBare, values);
    }
    Ok(())
}

fn numbers(line: &str) -> Result<[i64; 4]> {
    let numbers: Vec<i64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    match numbers[..] {
        [a, b, c, d] => Ok([a, b, c, d]),
        _ => bail!("\"{line}\" is no pair of measurements"),
    }
}

pub(super) fn notes(bench: &Bench, table: &mut Table) -> Result<()> {
    for (connections, how) in [("one", "over one connection"), ("each", "each over a connection of its own")] {
        let (mut silent, mut noted, mut rates) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..bench.runs.unwrap_or(9) {
            silent.push(write_beside_notes(bench, 0, connections)?.0);
            let (time, sent) = write_beside_notes(bench, 10_000, connections)?;
            noted.push(time);
            rates.push(Duration::from_secs_f64(sent as f64 / time.as_secs_f64()));
        }
        let nothing = "nothing was measured";
        let rate = median(rates).context(nothing)?.as_secs();
        let values = vec![
            (Kind::RankrunBare, Value::Time(median(silent).context(nothing)?)),
            (
                Kind::Rankrun,
                Value::Remarked { time: median(noted).context(nothing)?, remark: format!("{rate} notes a second") },
            ),
        ];
        table.add(
            format!(
                "notes: 4 ranks, 664 MB of lines to a file, beside a rank that writes no or 10,000 notes a second, {how} \
                 (goal: 1.05 x)"
            ),
            Kind::RankrunBare,
            values,
        );
    }
    Ok(())
}

/// The time of 4 writing ranks beside one that says notes as long as they write, and the number of its notes.
fn write_beside_notes(bench: &Bench, rate: u32, connections: &str) -> Result<(Duration, u64)> {
    let (place, errors) = (bench.meeting_place()?, bench.scratch.join("errors"));
    let mut command = Command::new(&bench.rankrun);
    command.args(["-n", "4", "sh", "-c", r#""$0" 2000000 && : > "$1/$RANKRUN_RANK""#]);
    command.arg(bench.program("writer")).arg(&place);
    command.args([":", "-n", "1"]).arg(bench.program("notes")).args([&rate.to_string(), connections]);
    command.arg(&place).arg("4");
    command.stdin(Stdio::null()).stdout(File::create(bench.scratch.join("lines"))?).stderr(File::create(&errors)?);
    let ended = Run::start(&mut command)?.wait(BOUND)?;
    let said = fs::read_to_string(&errors)?;
    let Some((time, Some(0))) = ended else { bail!("the job ended with {ended:?}: {said}") };
    let counts = said.lines().find_map(|line| line.strip_suffix(" lost")?.split_once(" sent, "));
    let (sent, lost) = counts.with_context(|| format!("no counts: {said}"))?;
    ensure!(lost == "0", "{lost} notes were not taken");
    Ok((time, sent.parse()?))
}
