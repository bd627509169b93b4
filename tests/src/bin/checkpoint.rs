//! A rank that, on SIGTERM, writes a checkpoint that it cannot write alone: each part comes from a helper process,
//! over a pipe, and slowly. The helper itself has no handler for SIGTERM, as DataLoader workers have none.
//!
//! `RANK.up` in `$RANKRUN_TEST_DIR` says that the rank is ready, `RANK.checkpoint` that the checkpoint is complete.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rankrun_sys::signal::{SIGTERM, SignalFd};
use rankrun_tests::pause;
use rustix::event::{PollFd, PollFlags, poll};

const PARTS: usize = 5;
const TIME_PER_PART: Duration = Duration::from_millis(40);

fn main() -> ExitCode {
    let result = if env::args().nth(1).as_deref() == Some("--helper") { help() } else { work() };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "checkpoint: {error}");
            ExitCode::FAILURE
        }
    }
}

fn work() -> io::Result<()> {
    let rank = env::var("RANKRUN_RANK").map_err(io::Error::other)?;
    let directory = PathBuf::from(env::var_os("RANKRUN_TEST_DIR").unwrap_or_default());
    // The helper comes first: it must not inherit the blocked signal.
    let mut helper =
        Command::new(env::current_exe()?).arg("--helper").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (Some(mut questions), Some(answers)) = (helper.stdin.take(), helper.stdout.take()) else {
        return Err(io::Error::other("the helper has no pipes"));
    };
    let mut answers = BufReader::new(answers);
    let terminations = SignalFd::new(&[SIGTERM])?;
    fs::write(directory.join(format!("{rank}.up")), "")?;
    while terminations.next().is_none() {
        // Interruptions only lead to another look.
        let _ = poll(&mut [PollFd::new(&terminations, PollFlags::IN)], None);
    }
    let mut checkpoint = String::new();
    for part in 0..PARTS {
        writeln!(questions, "{part}")?;
        if answers.read_line(&mut checkpoint)? == 0 {
            return Err(io::Error::other("the helper is gone"));
        }
    }
    let unfinished = directory.join(format!("{rank}.unfinished"));
    fs::write(&unfinished, checkpoint)?;
    fs::rename(unfinished, directory.join(format!("{rank}.checkpoint")))?;
    drop(questions);
    helper.wait()?;
    Ok(())
}

fn help() -> io::Result<()> {
    for question in io::stdin().lines() {
        pause(TIME_PER_PART);
        let mut out = io::stdout();
        writeln!(out, "part {}", question?)?;
        out.flush()?;
    }
    Ok(())
}
