//! The software and hardware that jobs may use: Python, MPI libraries, GPUs. A part of `rankrun check`.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rankrun_sys::exec::resolve;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::check::{Finding, usable, variable};
use crate::mpi;

/// The time-out for Python; a file system that hangs must not hang us.
pub(crate) const PYTHON_BOUND: Duration = Duration::from_secs(10);

/// More than `ldconfig -p` prints anywhere. A command that prints more is ended.
const MAX_ANSWER: usize = 4 << 20;

/// The data that Python prints about itself. Packages are looked up in their metadata and not imported: torch takes
/// seconds.
///
/// It runs isolated (`-I`), since Python would otherwise import modules from the working directory and PYTHONPATH.
/// Packages there are still found: reading metadata runs no code.
const PYTHON_PROGRAM: &str = "\
import os, site, sys
from importlib import metadata
path = [entry for entry in os.environ.get('PYTHONPATH', '').split(':') if entry.startswith('/')] + sys.path
try: path.append(site.getusersitepackages())
except Exception: pass
def version(name):
    try: return next(iter(metadata.distributions(name=name, path=path))).version
    except Exception: return ''
print('.'.join(map(str, sys.version_info[:3])), sys.prefix, version('mpi4py'), version('torch'), sep='\\n')";

pub(crate) struct Python {
    pub(crate) executable: PathBuf,
    version: String,
    pub(crate) prefix: PathBuf,
    pub(crate) mpi4py: String,
    torch: String,
}

pub(crate) fn examine(env: &[(OsString, OsString)]) -> Vec<Finding> {
    let python = python(env);
    let mut findings = vec![python_finding(python.as_ref())];
    findings.extend(mpi::findings(env, python.as_ref()));
    findings.push(gpu_finding());
    findings
}

fn python(env: &[(OsString, OsString)]) -> Option<Python> {
    let find = |name| installed_program(variable(env, "PATH"), name);
    let executable = find("python3").or_else(|| find("python"))?;
    let mut command = Command::new(&executable);
    command.args(["-I", "-c", PYTHON_PROGRAM]).env_clear().envs(env.iter().cloned());
    // Wrappers of Python, and the dynamic linker with an empty element in LD_LIBRARY_PATH, look there.
    command.current_dir("/");
    let answered = answer(command, PYTHON_BOUND)?;
    let mut lines = answered.lines().map(str::to_owned);
    let mut next = || lines.next().unwrap_or_default();
    Some(Python { executable, version: next(), prefix: PathBuf::from(next()), mpi4py: next(), torch: next() })
}

/// A program on the PATH. Elements that mean the working directory do not count: it may belong to another user.
pub(crate) fn installed_program(path: Option<&OsStr>, name: &str) -> Option<PathBuf> {
    let directories = std::env::split_paths(path?).filter(|directory| directory.is_absolute());
    let path = std::env::join_paths(directories).ok()?;
    resolve(name.as_ref(), Some(&path), Path::new("/")).ok()
}

/// What a command writes to stdout, if it succeeds in time.
pub(crate) fn answer(mut command: Command, bound: Duration) -> Option<String> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let text = child.stdout.take().and_then(|stdout| read_until_end(&child, stdout, bound));
    if text.is_none() {
        // It has ended meanwhile.
        let _ = child.kill();
    }
    let status = child.wait().ok()?;
    text.filter(|_| status.success())
}

/// What a process writes until it ends. A process that it has started, and that keeps the pipe open, is not waited for.
fn read_until_end(child: &Child, mut stdout: ChildStdout, bound: Duration) -> Option<String> {
    let deadline = Instant::now() + bound;
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).ok()?;
    let mut bytes = Vec::new();
    let mut block = [0; 4096];
    let mut is_open = true;
    while bytes.len() < MAX_ANSWER {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok()?;
        let mut polled = vec![PollFd::new(&pidfd, PollFlags::IN)];
        if is_open {
            polled.push(PollFd::new(&stdout, PollFlags::IN));
        }
        if poll(&mut polled, Some(&left)).ok()? == 0 {
            return None;
        }
        let has_ended = !polled[0].revents().is_empty();
        let is_readable = polled.get(1).is_some_and(|stdout| !stdout.revents().is_empty());
        drop(polled);
        if is_readable {
            let length = stdout.read(&mut block).ok()?;
            bytes.extend_from_slice(&block[..length]);
            is_open = length > 0;
        } else if has_ended {
            return Some(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
    None
}

fn python_finding(python: Option<&Python>) -> Finding {
    let Some(python) = python else {
        return Finding::note("python", "no python3 on PATH, or it does not start", "needed only for Python programs");
    };
    let package = |name: &str, version: &str| match version {
        "" => format!("no {name}"),
        version => format!("{name} {version}"),
    };
    Finding::fine(
        "python",
        format!(
            "{} {}, {}, {}",
            python.executable.display(),
            python.version,
            package("mpi4py", &python.mpi4py),
            package("torch", &python.torch)
        ),
    )
}

fn gpu_finding() -> Finding {
    const TOPIC: &str = "gpus";
    let nvidia = devices("/dev", "nvidia");
    let render = devices("/dev/dri", "renderD");
    let amd = Path::new("/dev/kfd");
    let (text, used) = if !nvidia.is_empty() {
        (format!("{} NVIDIA", nvidia.len()), nvidia)
    } else if amd.exists() {
        (format!("{} AMD", render.len()), [render, vec![amd.to_owned()]].concat())
    } else if !render.is_empty() {
        (format!("{} of Intel or others (/dev/dri)", render.len()), render)
    } else {
        return Finding::fine(TOPIC, "none");
    };
    match used.iter().find(|device| !usable(device)) {
        Some(device) => Finding::note(
            TOPIC,
            format!("{text}, but {} is not accessible", device.display()),
            "add yourself to its group (see \"ls -l\"; usually render or video)",
        ),
        None => Finding::fine(TOPIC, text),
    }
}

/// Devices of a directory with this name and a number.
fn devices(directory: &str, name: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let numbered = |path: &PathBuf| {
        let number = path.file_name().and_then(|file| file.to_str()).and_then(|file| file.strip_prefix(name));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let mut devices: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(numbered).collect();
    devices.sort_unstable();
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_does_not_answer_in_time_is_ended() {
        let mut command = Command::new("sleep");
        command.arg("1000");
        assert_eq!(answer(command, Duration::from_millis(20)), None);
    }

    #[test]
    fn a_command_may_print_more_than_a_pipe_holds_and_leave_a_process_behind() {
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 300000 /dev/zero | tr '\\0' x"]);
        assert_eq!(answer(command, PYTHON_BOUND).map(|text| text.len()), Some(300_000));
        let mut command = Command::new("sh");
        // The process ends when the test does, at the latest.
        command.args(["-c", "tail -f /dev/null --pid=$PPID -s 0.05 & echo here"]);
        assert_eq!(answer(command, PYTHON_BOUND).as_deref(), Some("here\n"));
    }

    #[test]
    fn the_output_of_a_command_is_returned() {
        let mut command = Command::new("echo");
        command.arg("here");
        assert_eq!(answer(command, PYTHON_BOUND).as_deref(), Some("here\n"));
    }
}
