//! `fail_in_cgroup DIRECTORY COMMAND...`: enters the cgroup, and becomes the command.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let error = enter();
    let _ = writeln!(io::stderr(), "fail_in_cgroup: {error}");
    ExitCode::from(99)
}

/// Returns only what has gone wrong.
fn enter() -> io::Error {
    let mut arguments = env::args_os().skip(1);
    let (directory, program) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    // 0 stands for the writer.
    if let Err(error) = fs::write(PathBuf::from(directory).join("cgroup.procs"), "0") {
        return error;
    }
    let rest: Vec<OsString> = arguments.collect();
    Command::new(program).args(rest).exec()
}
