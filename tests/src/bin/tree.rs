//! A rank with descendants of every sort: a plain child, a child in a session of its own, and a daemonised grandchild
//! that ignores TERM, INT and HUP. All hold stdout open. Each reports that it is up with a file `RANK.ROLE` with its
//! pid in `$RANKRUN_TEST_DIR`; `RANK.leader` comes last.
//!
//! `tree [--obedient] [--alone] [--all] [--on-go] [--rank R] [--exit CODE | --signal N] [--then PROGRAM ...]`
//!
//! When all ranks are up (with `--on-go`: when the file `go` exists as well), rank R (0) meets its fate; the others,
//! or all if no fate is given, sleep for ever. `--obedient`: nothing ignores a signal. `--alone`: no descendants.
//! `--all`: every rank meets the fate. `--then`: the leader becomes this program, which reports that it is up.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rankrun_tests::{pause, wait_until};

const BOUND: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Options {
    obedient: bool,
    alone: bool,
    on_go: bool,
    all: bool,
    fated: u32,
    exit: Option<u8>,
    signal: Option<i32>,
    role: Option<String>,
    then: Vec<String>,
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let _ = writeln!(io::stderr(), "tree: {error}");
            ExitCode::from(99)
        }
    }
}

fn run() -> io::Result<u8> {
    let options = parse()?;
    let rank = variable("RANKRUN_RANK")?;
    let directory = PathBuf::from(variable("RANKRUN_TEST_DIR")?);
    match options.role.as_deref() {
        None | Some("plain") => {}
        Some("session") => drop(rustix::process::setsid()?),
        // The first half of a daemon's start: a session leader that leaves its child behind.
        Some("daemonise") => {
            rustix::process::setsid()?;
            spawn("daemon", &options)?;
            return Ok(0);
        }
        Some(_) if options.obedient => {}
        Some(_) => {
            use rankrun_sys::signal::{SIGHUP, SIGINT, SIGTERM, ignore};
            [SIGTERM, SIGINT, SIGHUP].into_iter().for_each(ignore);
        }
    }
    if let Some(role) = &options.role {
        write_file(&directory, &format!("{rank}.{role}"), &std::process::id().to_string())?;
        sleep_for_ever();
    }

    if !options.alone {
        spawn("plain", &options)?;
        spawn("session", &options)?;
        let mut daemon = spawn("daemonise", &options)?;
        daemon.wait()?;
        for role in ["plain", "session", "daemon"] {
            wait_for(&directory, &format!("{rank}.{role}"))?;
        }
    }
    write_file(&directory, "job", &variable("RANKRUN_JOB_ID")?)?;
    if let [program, arguments @ ..] = &options.then[..] {
        return Err(Command::new(program).args(arguments).exec());
    }
    write_file(&directory, &format!("{rank}.leader"), &format!("{}\n", std::process::id()))?;
    if !options.all && rank != options.fated.to_string() {
        sleep_for_ever();
    }
    let size: u32 = variable("RANKRUN_WORLD_SIZE")?.parse().map_err(io::Error::other)?;
    for other in 0..size {
        wait_for(&directory, &format!("{other}.leader"))?;
    }
    if options.on_go {
        wait_for(&directory, "go")?;
    }
    if let Some(signal) = options.signal {
        rankrun_sys::signal::die_of(signal);
        // SIGSTOP and the like only pause.
        sleep_for_ever();
    }
    match options.exit {
        Some(code) => Ok(code),
        None => sleep_for_ever(),
    }
}

fn parse() -> io::Result<Options> {
    let mut options = Options::default();
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments.next().ok_or_else(|| io::Error::other("a number is missing"))?;
            value.parse::<u32>().map_err(io::Error::other)
        };
        match argument.as_str() {
            "--obedient" => options.obedient = true,
            "--alone" => options.alone = true,
            "--on-go" => options.on_go = true,
            "--all" => options.all = true,
            "--rank" => options.fated = number()?,
            "--exit" => options.exit = Some(number()? as u8),
            "--signal" => options.signal = Some(number()?.cast_signed()),
            "--role" => options.role = arguments.next(),
            "--then" => options.then = arguments.by_ref().collect(),
            other => return Err(io::Error::other(format!("unknown option {other}"))),
        }
    }
    Ok(options)
}

fn variable(name: &str) -> io::Result<String> {
    env::var(name).map_err(|error| io::Error::other(format!("{name}: {error}")))
}

fn spawn(role: &str, options: &Options) -> io::Result<std::process::Child> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["--role", role]);
    if options.obedient {
        command.arg("--obedient");
    }
    command.spawn()
}

/// Makes a file at once with all that it holds.
fn write_file(directory: &std::path::Path, name: &str, content: &str) -> io::Result<()> {
    let unfinished = directory.join(format!("{name}.{}", std::process::id()));
    fs::write(&unfinished, content)?;
    fs::rename(unfinished, directory.join(name))
}

fn wait_for(directory: &std::path::Path, name: &str) -> io::Result<()> {
    let path = directory.join(name);
    wait_until(BOUND, || path.exists().then_some(())).ok_or_else(|| io::Error::other(format!("{name} did not come")))
}

fn sleep_for_ever() -> ! {
    loop {
        pause(Duration::from_secs(3600));
    }
}
