//! A command line of torchrun, by torchrun and by rankrun: how long two ranks of /bin/true take, and what the launcher weighs.

use std::ffi::OsString;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, bail};

use super::Bench;
use super::launchers::Kind;
use super::measure::{Run, median, monotonic, own_memory, pause};
use super::table::{Table, Value};
use crate::environments;

/// torchrun takes about 3 s.
const BOUND: Duration = Duration::from_secs(30);

fn command(bench: &Bench, kind: Kind, program: &[OsString]) -> Option<Command> {
    let mut command = match kind {
        Kind::Torchrun => Command::new(environments::existing("torch")?.join("bin/torchrun")),
        _ => Command::new(&bench.rankrun),
    };
    command.args((kind == Kind::Rankrun).then_some("torchrun"));
    command.args(["--standalone", "--no-python", "--nproc-per-node", "2"]).args(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Some(command)
}

pub(super) fn torchrun(bench: &Bench, table: &mut Table) -> Result<()> {
    let (mut times, mut weights) = (Vec::new(), Vec::new());
    for (kind, runs) in [(Kind::Rankrun, bench.runs.unwrap_or(15)), (Kind::Torchrun, 2)] {
        let mut own = Vec::new();
        for _ in 0..runs {
            let Some(mut command) = command(bench, kind, &["/bin/true".into()]) else { continue };
            match Run::start(&mut command)?.wait(BOUND)? {
                Some((time, Some(0))) => own.push(time),
                ended => bail!("{}: {ended:?}", kind.name()),
            }
        }
        times.extend(median(own).map(|time| (kind, Value::Time(time))));
        let place = bench.meeting_place()?;
        let Some(mut command) = command(bench, kind, &[bench.program("idle").into(), place.clone().into()]) else {
            continue;
        };
        let mut run = Run::start(&mut command)?;
        let deadline = monotonic() + BOUND;
        while fs::read_dir(&place)?.count() < 2 {
            if monotonic() > deadline {
                run.kill()?;
                bail!("{}: 2 ranks did not come up", kind.name());
            }
            pause(Duration::from_millis(5));
        }
        let weight = own_memory(run.pid(), "idle");
        run.kill()?;
        weights.push((kind, Value::Bytes(weight)));
    }
    table.add("torchrun: 2 x /bin/true by its command line (goal: 1 % of torchrun)", Kind::Torchrun, times);
    table.add("torchrun: memory of the launcher (PSS) while 2 ranks run (goal: 1 %)", Kind::Torchrun, weights);
    Ok(())
}
