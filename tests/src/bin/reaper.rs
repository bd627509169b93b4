//! Runs a command as the child of a subreaper that does nothing else, and records what becomes of it.
//!
//! `reaper RECORD [--tty PATH] -- COMMAND...` writes lines to RECORD, times in nanoseconds of the monotonic clock:
//!
//! * `front PID TIME` when the command has been started,
//! * `exit CODE TIME` or `signal NUMBER TIME` when it has ended,
//! * `empty TIME` when no descendant of it is left, dead or alive. Then the reaper ends.
//!
//! When the process that started the reaper is gone, it kills what is left of the job, so that a test that is killed
//! leaves nothing behind either.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::thread;

use rankrun_tests::{monotonic, processes};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "reaper: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let usage = || io::Error::other("usage: reaper RECORD [--tty PATH] -- COMMAND...");
    let record = arguments.next().ok_or_else(usage)?;
    let mut record = OpenOptions::new().append(true).create(true).open(record)?;
    let mut tty = None;
    let mut word = arguments.next().ok_or_else(usage)?;
    if word == "--tty" {
        tty = Some(arguments.next().ok_or_else(usage)?);
        word = arguments.next().ok_or_else(usage)?;
    }
    if word != "--" {
        return Err(usage());
    }
    // Whoever runs the tests may ignore signals, and the job would inherit that: a shell that runs a script ignores SIGINT in
    // what it starts with `&`.
    (1..=31).for_each(rankrun_sys::signal::restore);
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Pid::from_raw(1))?;
    end_with_parent()?;

    let mut command;
    if let Some(path) = tty {
        // A session leader without a terminal gets the first one that it opens.
        let terminal = File::options().read(true).write(true).open(path)?;
        // The keys of the terminal are for the front alone, although it is in our process group.
        let keys = [Signal::INT, Signal::QUIT, Signal::TSTP, Signal::TTIN, Signal::TTOU, Signal::HUP];
        for signal in keys {
            rankrun_sys::signal::ignore(signal.as_raw());
        }
        command = Command::new("env");
        command.arg("--default-signal=INT,QUIT,TSTP,TTIN,TTOU,HUP");
        command.stdin(Stdio::from(terminal.try_clone()?));
        command.stdout(Stdio::from(terminal.try_clone()?));
        command.stderr(Stdio::from(terminal));
        command.arg(arguments.next().ok_or_else(usage)?);
    } else {
        command = Command::new(arguments.next().ok_or_else(usage)?);
    }
    let front = command.args(arguments).spawn()?;
    drop(command);
    writeln!(record, "front {} {}", front.id(), monotonic().as_nanos())?;
    hold_no_stream()?;

    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get().unsigned_abs() == front.id() => {
                let status = ExitStatus::from_raw(status.as_raw());
                let now = monotonic().as_nanos();
                match (status.code(), status.signal()) {
                    (Some(code), _) => writeln!(record, "exit {code} {now}")?,
                    (None, Some(signal)) => writeln!(record, "signal {signal} {now}")?,
                    (None, None) => {}
                }
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CHILD) => break,
            Err(error) => return Err(error.into()),
        }
    }
    writeln!(record, "empty {}", monotonic().as_nanos())
}

/// Gives up our copies of the job's streams: their ends must depend on the job alone.
fn hold_no_stream() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Starts a thread that kills everything below us when our parent is gone.
fn end_with_parent() -> io::Result<()> {
    let Some(parent) = rustix::process::getppid() else {
        return Ok(());
    };
    let parent = rustix::process::pidfd_open(parent, PidfdFlags::empty())?;
    thread::spawn(move || {
        while poll(&mut [PollFd::new(&parent, PollFlags::IN)], None).is_err() {}
        let own = std::process::id().cast_signed();
        loop {
            let left = processes::descendants(own);
            if left.is_empty() {
                break;
            }
            for process in left {
                processes::send(process.pid, Signal::KILL);
            }
            rankrun_tests::pause(std::time::Duration::from_millis(10));
        }
    });
    Ok(())
}
