//! The processes of a bench of hosts (`tests/src/hosts`).
//!
//! * `hosts keep DIRECTORY CGROUPS NAME...` starts the others and ends everything when its stdin ends.
//! * `hosts switch` and `hosts hold DIRECTORY NAME CGROUP` hold the namespaces that they were started in.
//! * `hosts enter PID CGROUP COMMAND...` runs a command on a host.
//! * `hosts relay` delays connections.
//! * `hosts up COUNT` brings a bench up for `cargo xtask bench`, until its stdin ends: prints the rankrun that the hosts see, a directory
//!   that they share, the configuration for ssh, and for each host the words before a command that make it one of that host.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rankrun_tests::{Hosts, hosts, rankrun};

/// How long hosts may take to be empty after the last job.
const MOMENT: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "hosts: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let part = arguments.next().unwrap_or_default();
    if part == "enter" {
        return Err(hosts::enter(arguments));
    }
    let text = |word: Option<OsString>| word.and_then(|word| word.into_string().ok()).unwrap_or_default();
    match part.to_str() {
        Some("keep") => {
            let directory = PathBuf::from(arguments.next().unwrap_or_default());
            let cgroups = text(arguments.next());
            let names: Vec<String> = arguments.map(|name| text(Some(name))).collect();
            hosts::keep(&directory, &cgroups, &names)
        }
        Some("hold") => {
            let directory = PathBuf::from(arguments.next().unwrap_or_default());
            let name = text(arguments.next());
            hosts::hold(&directory, &name, &text(arguments.next()))
        }
        Some("switch") => hosts::switch(),
        Some("relay") => hosts::relay(),
        Some("up") => up(text(arguments.next()).parse().unwrap_or(1)),
        _ => Err(io::Error::other("usage: hosts keep|hold|switch|enter|relay|up ...")),
    }
}

fn up(count: usize) -> io::Result<()> {
    let Some(hosts) = Hosts::up(count) else { return Err(io::Error::other("this machine can have no hosts")) };
    let mut out = io::stdout();
    writeln!(out, "rankrun {}", rankrun().display())?;
    writeln!(out, "directory {}", hosts.directory().join("jobs").display())?;
    writeln!(out, "ssh {}", hosts.ssh_config().display())?;
    for host in std::iter::once(hosts.front()).chain(hosts.nodes()) {
        let words: Vec<String> = host.entrance().iter().map(|word| word.to_string_lossy().into_owned()).collect();
        writeln!(out, "{} {}", host.name(), words.join(" "))?;
    }
    writeln!(out, "up")?;
    io::stdin().read_to_end(&mut Vec::new())?;
    hosts.finish(MOMENT);
    Ok(())
}
