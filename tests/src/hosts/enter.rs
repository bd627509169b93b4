//! `hosts enter PID CGROUP COMMAND...` runs a command on the host whose namespaces a process holds.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, PidfdFlags};
use rustix::thread::ThreadNameSpaceType;

use super::setup::HOME;

/// Enters the host and becomes the command, so that its pid is ours. Returns only if this fails.
pub fn enter(mut arguments: impl Iterator<Item = OsString>) -> io::Error {
    let result = (|| {
        let usage = || io::Error::other("usage: hosts enter PID CGROUP COMMAND...");
        let pid =
            arguments.next().and_then(|word| word.to_str()?.parse().ok()).and_then(Pid::from_raw).ok_or_else(usage)?;
        let cgroup = arguments.next().ok_or_else(usage)?;
        let program = arguments.next().ok_or_else(usage)?;
        let host = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        if cgroup != "-" {
            fs::write(Path::new(&cgroup).join("cgroup.procs"), "0")?;
        }
        let here = std::env::current_dir();
        let namespaces = ThreadNameSpaceType::MOUNT
            | ThreadNameSpaceType::NETWORK
            | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
            | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
        rustix::thread::move_into_thread_name_spaces(host.as_fd(), namespaces)?;
        // Entering a mount namespace leads to its root.
        if let Ok(here) = here {
            // A directory that this host does not have: the root is as good.
            let _ = std::env::set_current_dir(here);
        }
        Ok(program)
    })();
    match result {
        Ok(program) => Command::new(program).args(arguments).env("HOME", HOME).exec(),
        Err(error) => error,
    }
}
