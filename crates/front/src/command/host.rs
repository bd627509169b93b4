//! The process that starts a command, and ends all that is left of it.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use rankrun_agent::tidy;
use rankrun_core::{ExitCode, WorkerStatus};
use rankrun_sys::limits::Limits;
use rankrun_sys::signal::{self, SignalFd};
use rankrun_sys::spawn::{self, Command, Session, Spawner};
use rankrun_sys::wait::{self, Change, Look};
use rankrun_sys::{exec, fork, name};
use rustix::event::{PollFd, PollFlags, poll};

/// The descriptor of the socket to the front.
pub(super) const CONTROL: i32 = 3;

/// What the host says of its command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It has ended, and nothing of it is left.
    Ended(WorkerStatus),
    /// It could not be started.
    NotStarted(String),
    /// Something of it could not be killed.
    Left,
}

impl Verdict {
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Verdict::Ended(WorkerStatus::Exited { code }) => format!("exited {code}"),
            Verdict::Ended(WorkerStatus::Signaled { signal, .. }) => format!("signaled {signal}"),
            Verdict::NotStarted(why) => format!("not-started {why}"),
            Verdict::Left => "left ".to_owned(),
        }
        .into_bytes()
    }

    pub(super) fn of_bytes(bytes: &[u8]) -> Option<Verdict> {
        let text = String::from_utf8_lossy(bytes);
        let (word, rest) = text.split_once(' ')?;
        match word {
            "exited" => Some(Verdict::Ended(WorkerStatus::Exited { code: rest.parse().ok()? })),
            "signaled" => {
                Some(Verdict::Ended(WorkerStatus::Signaled { signal: rest.parse().ok()?, core_dumped: false }))
            }
            "not-started" => Some(Verdict::NotStarted(rest.to_owned())),
            "left" => Some(Verdict::Left),
            _ => None,
        }
    }
}

/// Runs the host: the job's id and the command are its words, stdin, stdout and stderr are the command's, and descriptor 3 is a
/// socket to the front. The calling process must have one thread.
///
/// Returns the exit code.
pub fn run_command_host(words: &[OsString]) -> u8 {
    let [job, command @ ..] = words else { return ExitCode::USAGE.0 };
    match run(job, command) {
        Ok(code) => code.0,
        // The front is told nothing, and sees the end.
        Err(_) => ExitCode::INTERNAL.0,
    }
}

fn run(job: &OsStr, command: &[OsString]) -> io::Result<ExitCode> {
    use signal::{SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM};
    let control = spawn::inherited(CONTROL)?;
    [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE].into_iter().for_each(signal::ignore);
    // If the name cannot be set, it is only harder to see what this is.
    let _ = name::set("rr-command", &format!("rr-command {}", job.to_string_lossy()));
    fork::become_subreaper()?;
    // When the front is gone the socket ends, and there is time to end the command's processes.
    fork::end_with_parent(fork::parent_pid(), 0)?;
    let signals = SignalFd::new(&[signal::SIGCHLD])?;
    let verdict = match start(command) {
        Ok(pid) => watch(pid, &signals, &control),
        Err(error) => Some(Verdict::NotStarted(rankrun_sys::reason(&error))),
    };
    let is_empty = tidy::end_children(&Vec::new);
    if let Some(verdict) = verdict {
        let verdict = if is_empty { verdict } else { Verdict::Left };
        // If the front is gone, nobody wants to know.
        let _ = rustix::io::write(&control, &verdict.to_bytes());
    }
    Ok(if is_empty { ExitCode::SUCCESS } else { ExitCode::LEFT_BEHIND })
}

/// Starts the command, and gives it our stdin and stdout.
fn start(command: &[OsString]) -> io::Result<i32> {
    let path = std::env::var_os("PATH");
    let here = std::env::current_dir().unwrap_or_else(|_| "/".into());
    let name = command.first().ok_or(io::ErrorKind::InvalidInput)?;
    let program = exec::resolve(name, path.as_deref(), &here).map_err(io::Error::other)?;
    let variable = |(mut name, value): (OsString, OsString)| {
        name.push("=");
        name.push(value);
        CString::new(name.into_vec())
    };
    let streams: [OwnedFd; 3] = [
        rustix::stdio::stdin().try_clone_to_owned()?,
        rustix::stdio::stdout().try_clone_to_owned()?,
        rustix::stdio::stderr().try_clone_to_owned()?,
    ];
    let command = Command {
        program: CString::new(program.as_os_str().as_bytes())?,
        argv: command.iter().map(|word| CString::new(word.as_bytes())).collect::<Result<_, _>>()?,
        env: std::env::vars_os().map(variable).collect::<Result<_, _>>()?,
        shared_env: Arc::new([]),
        wdir: None,
        stdio: streams,
        keep: None,
        keeps_no_other: false,
        cgroup: None,
        session: Session::Own,
        ignored: signal::ignored_at_start(),
        limits: Limits::default(),
        place: None,
        parent: std::process::id() as i32,
        outlives_parent: false,
    };
    let spawned = Spawner::new()?.spawn(&command).map_err(|error| error.source);
    drop(command);
    // Whoever reads what the command writes must see its end.
    let null = rankrun_sys::null()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    spawned
}

/// Waits for the end of the command. `None`: the front wants it no longer, or is gone.
fn watch(pid: i32, signals: &SignalFd, control: &OwnedFd) -> Option<Verdict> {
    loop {
        while let Look::Found(child) = wait::peek() {
            wait::reap(child.pid);
            match child.change {
                Change::Exited { code } if child.pid == pid => {
                    return Some(Verdict::Ended(WorkerStatus::Exited { code }));
                }
                Change::Signaled { signal, core_dumped } if child.pid == pid => {
                    return Some(Verdict::Ended(WorkerStatus::Signaled { signal, core_dumped }));
                }
                // An orphan of the command.
                _ => {}
            }
        }
        let mut ends = [PollFd::new(control, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        // An interrupted wait is only shorter.
        let _ = poll(&mut ends, None);
        // The front sends nothing: this is the end.
        if !ends[0].revents().is_empty() {
            return None;
        }
        while signals.next().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_says_is_understood() {
        for verdict in [
            Verdict::Ended(WorkerStatus::Exited { code: 3 }),
            Verdict::Ended(WorkerStatus::Signaled { signal: 9, core_dumped: false }),
            Verdict::NotStarted("command not found".to_owned()),
            Verdict::Left,
        ] {
            assert_eq!(Verdict::of_bytes(&verdict.to_bytes()), Some(verdict));
        }
        for bytes in ["", "exited", "exited x", "lost 3"] {
            assert_eq!(Verdict::of_bytes(bytes.as_bytes()), None);
        }
    }
}
