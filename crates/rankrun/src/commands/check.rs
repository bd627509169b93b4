//! `rankrun check`: a diagnosis of this machine, one line for each thing that jobs need, with a hint where there is a problem.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anstyle::{AnsiColor, Style};
use rankrun_agent::tidy;
use rankrun_core::printable::printable;
use rankrun_core::units::format_size;
use rankrun_core::{ExitCode, JobId};
use rankrun_sys::cgroup::JobCgroup;
use rankrun_sys::environments::Environments;
use rankrun_sys::shm;
use rustix::fs::Access;

use crate::{capacity, clean, cpus, inventory};
use rankrun_sys::{kernel, reason};

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    Fine,
    /// Jobs run, with limitations.
    Note,
    /// Jobs cannot run.
    Bad,
}

/// One line of the report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finding {
    pub(crate) topic: &'static str,
    pub(crate) level: Level,
    pub(crate) text: String,
    pub(crate) hint: Option<String>,
}

impl Finding {
    pub(crate) fn fine(topic: &'static str, text: impl Into<String>) -> Finding {
        Finding { topic, level: Level::Fine, text: text.into(), hint: None }
    }

    pub(crate) fn note(topic: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Finding {
        Finding { level: Level::Note, hint: Some(hint.into()), ..Finding::fine(topic, text) }
    }

    fn bad(topic: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Finding {
        Finding { level: Level::Bad, ..Finding::note(topic, text, hint) }
    }
}

/// Examines this machine. The text is for stdout; the code is 1 if jobs cannot run here.
pub(crate) fn run(env: &[(OsString, OsString)]) -> (String, ExitCode) {
    let mut findings = vec![containment(env), runtime_directory(), processes(), cpu_count(), pty(), tracing()];
    findings.extend(limits());
    findings.extend(shared_memory());
    findings.push(left_over());
    findings.extend(inventory::examine(env));
    let cannot_run = findings.iter().any(|finding| finding.level == Level::Bad);
    let code = if cannot_run { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    (render(&findings), code)
}

fn render(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.topic.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { topic, level, text: said, hint } in findings {
        // It quotes paths and the output of programs.
        let said = printable(said);
        let (mark, color) = match level {
            Level::Fine => ("ok  ", AnsiColor::Green),
            Level::Note => ("note", AnsiColor::Yellow),
            Level::Bad => ("bad ", AnsiColor::Red),
        };
        let style = Style::new().fg_color(Some(color.into()));
        // Writing into a string does not fail.
        let _ = writeln!(text, "{style}{mark}{style:#}  {topic:width$}  {said}");
        if let Some(hint) = hint.as_deref().map(printable) {
            let _ = writeln!(text, "      {:width$}  hint: {hint}", "");
        }
    }
    text
}

/// Which tier contains the processes of a rank (K-1), found by trying it.
fn containment(env: &[(OsString, OsString)]) -> Finding {
    const TOPIC: &str = "containment";
    const HINT: &str = "jobs run without it; to get a cgroup: systemd-run --user --scope -p Delegate=yes rankrun ...";
    let fallback = |why: String| Finding::note(TOPIC, format!("process trees (session and subreaper): {why}"), HINT);
    let name = format!("check-{}", std::process::id());
    match JobCgroup::create(&name) {
        Ok(cgroup) => {
            let path = cgroup.path().to_owned();
            let placed = place_a_process(&path, env);
            drop(cgroup);
            // The test process may not be gone yet: "rankrun clean" finds the directory.
            let _ = std::fs::remove_dir(&path);
            let above = path.parent().unwrap_or(&path).display();
            match placed {
                Ok(()) => Finding::fine(TOPIC, format!("cgroup v2: each rank runs in a cgroup below {above}")),
                Err(error) => fallback(format!(
                    "a cgroup can be created in {above}, but no process can be moved into it: {}",
                    reason(&error)
                )),
            }
        }
        Err(error) => {
            match std::error::Error::source(&error).and_then(|source| source.downcast_ref::<std::io::Error>()) {
                Some(source) => fallback(format!("{error}: {}", reason(source))),
                None => fallback(error.to_string()),
            }
        }
    }
}

/// Puts a process into a cgroup, and waits until it is gone.
fn place_a_process(cgroup: &Path, env: &[(OsString, OsString)]) -> std::io::Result<()> {
    // `cat` ends when we close its input.
    let cat = inventory::installed_program(variable(env, "PATH"), "cat").unwrap_or_else(|| "/bin/cat".into());
    let mut child = Command::new(cat).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let placed = std::fs::write(cgroup.join("cgroup.procs"), child.id().to_string());
    drop(child.stdin.take());
    child.wait()?;
    placed
}

/// The private directory of a job, found by making one.
fn runtime_directory() -> Finding {
    const TOPIC: &str = "directory";
    let bases = tidy::bases();
    let existed: Vec<bool> = bases.iter().map(|base| base.exists()).collect();
    let places = tidy::Places::of(&JobId(format!("check-{}", std::process::id())));
    let made = places.create();
    places.remove();
    for (base, _) in bases.iter().zip(existed).filter(|(_, existed)| !existed) {
        // This fails if a job uses it by now, or if it was not made: then it must stay.
        let _ = std::fs::remove_dir(base);
    }
    let usual = bases[0].display();
    match made {
        Ok(directory) if directory.path().starts_with(&bases[0]) => Finding::fine(TOPIC, format!("{usual} is private")),
        Ok(directory) => Finding::note(
            TOPIC,
            match tidy::check(&bases[0]) {
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    format!("{usual} cannot be used: {}; jobs use {}", reason(&error), directory.path().display())
                }
                Ok(()) | Err(_) => format!("{usual} cannot be used; jobs use {}", directory.path().display()),
            },
            "another user created it, or /tmp is not writable: ask the administrator to remove it",
        ),
        Err(error) => {
            Finding::bad(TOPIC, format!("{error}: {}", reason(&error.source)), "/tmp must be writable and sticky")
        }
    }
}

fn processes() -> Finding {
    const TOPIC: &str = "processes";
    match capacity::bounds(u64::MAX).into_iter().min_by_key(capacity::Bound::left) {
        Some(bound) => {
            let text = format!(
                "{} more can be started: {} is {}, {} in use",
                bound.left(),
                bound.name,
                bound.limit,
                bound.used
            );
            match bound.left() {
                0..32 => Finding::bad(TOPIC, text, bound.remedy),
                32..1024 => Finding::note(TOPIC, text, bound.remedy),
                _ => Finding::fine(TOPIC, text),
            }
        }
        None => Finding::fine(TOPIC, "no limit"),
    }
}

fn cpu_count() -> Finding {
    let online = kernel::piece_text("/proc/stat").unwrap_or_default();
    let online = online.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
    Finding::fine("cpus", format!("{} of {online} can be used (-n auto)", cpus::allowed()))
}

fn pty() -> Finding {
    use rustix::pty::{OpenptFlags, grantpt, openpt, unlockpt};
    let made = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).and_then(|pty| {
        grantpt(&pty)?;
        unlockpt(&pty)
    });
    match made {
        Ok(()) => Finding::fine("pty", "pseudo-terminals are available (--stdio pty)"),
        Err(error) => Finding::note(
            "pty",
            format!("no pseudo-terminals: {}", reason(&error.into())),
            "ranks get pipes instead; mount devpts at /dev/pts, with a larger max= if all are in use",
        ),
    }
}

/// Whether a debugger may attach to a rank.
fn tracing() -> Finding {
    let scope = kernel::piece_text("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => Finding::fine("ptrace", "debuggers can attach to your processes"),
        "1" => Finding::note(
            "ptrace",
            "debuggers can attach only to processes that they started (kernel.yama.ptrace_scope is 1)",
            "start the rank in the debugger: --tty 3 --wrap '3:gdb --args'",
        ),
        other => Finding::note(
            "ptrace",
            format!("debuggers cannot attach (kernel.yama.ptrace_scope is {other})"),
            "the administrator can allow it with \"sysctl kernel.yama.ptrace_scope=1\"",
        ),
    }
}

fn limits() -> Vec<Finding> {
    let show = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let (soft, hard) = rankrun_sys::limits::open_files();
    let text = format!("{} open files, at most {}", show(soft), show(hard));
    let files = match hard {
        Some(hard) if hard < 4096 => Finding::note(
            "nofile",
            text,
            "enough for a few hundred ranks; raise \"nofile\" in /etc/security/limits.conf for more",
        ),
        _ => Finding::fine("nofile", text),
    };
    let (soft, hard) = rankrun_sys::limits::core_size();
    let core = match (soft, hard) {
        (Some(0), Some(0)) => Finding::note(
            "core",
            "no core dumps, and they cannot be enabled",
            "raise \"core\" in /etc/security/limits.conf",
        ),
        (Some(0), _) => Finding::note("core", "no core dumps", "enable them with \"ulimit -c unlimited\""),
        (soft, _) => Finding::fine("core", format!("core dumps, {} bytes", show(soft))),
    };
    let (soft, _) = rankrun_sys::limits::locked_memory();
    let rdma = Path::new("/dev/infiniband").exists();
    let text =
        soft.map_or("unlimited locked memory".to_owned(), |bytes| format!("{} of locked memory", format_size(bytes)));
    let memlock = match soft {
        Some(_) if rdma => Finding::note("memlock", text, "InfiniBand needs more: \"ulimit -l unlimited\""),
        _ => Finding::fine("memlock", text),
    };
    vec![files, core, memlock]
}

/// MPI and torch pass messages between ranks of a node through /dev/shm.
fn shared_memory() -> Option<Finding> {
    const TOPIC: &str = "shm";
    /// The default of a container (docker, podman: 64 MiB) is too little for several ranks of any MPI.
    const LITTLE: u64 = 256 << 20;
    let Ok(stat) = rustix::fs::statvfs("/dev/shm") else {
        return Some(Finding::note(TOPIC, "/dev/shm does not exist", "MPI and torch need it: mount a tmpfs there"));
    };
    let mebibytes = |blocks: u64| (blocks * stat.f_frsize) >> 20;
    let text = format!("/dev/shm has {} MiB, {} MiB free", mebibytes(stat.f_blocks), mebibytes(stat.f_bavail));
    let unused = unused_shared_memory();
    Some(match stat.f_bavail * stat.f_frsize {
        // Where a process does not answer, nobody knows what it uses; the line "leftovers" is about processes.
        _ if unused.is_some_and(|unused| unused > 0) => {
            let files = clean::count(unused.unwrap_or_default(), "file", "files");
            let text = format!("{text}; {files} of yours that no process uses");
            Finding::note(
                TOPIC,
                text,
                "probably left by other launchers: list them with \"ls -l /dev/shm\", remove them with rm",
            )
        }
        free if free < LITTLE => Finding::note(TOPIC, text, "in a container, give it more: --shm-size=8g"),
        _ => Finding::fine(TOPIC, text),
    })
}

/// How many files of ours in /dev/shm no process maps. `None`: a process does not answer.
fn unused_shared_memory() -> Option<usize> {
    let user = rustix::process::getuid().as_raw();
    let ours = shm::files().into_iter().filter(|(_, file)| file.owner == user).collect();
    Some(shm::unused_in_time(ours)?.len())
}

/// What dead jobs left on this machine.
fn left_over() -> Finding {
    const TOPIC: &str = "leftovers";
    match clean::survey(&mut Environments::default()) {
        Ok(jobs) if jobs.is_empty() => Finding::fine(TOPIC, "no crashed jobs left anything"),
        Ok(jobs) => {
            let processes: usize = jobs.iter().map(clean::Leftover::process_count).sum();
            let dead = clean::count(jobs.len(), "crashed job", "crashed jobs");
            let alive = clean::count(processes, "process", "processes");
            let silent: BTreeMap<i32, &str> = jobs
                .iter()
                .flat_map(clean::Leftover::silent)
                .map(|process| (process.pid, process.name.as_str()))
                .collect();
            let silent: Vec<String> = silent.iter().map(|(pid, name)| format!("{pid} ({name})")).collect();
            let unknown = match silent.is_empty() {
                true => String::new(),
                false => format!("; may be of it, but do not show their environment: {}", silent.join(", ")),
            };
            let text = format!("{dead} left something behind, {alive} still running{unknown}");
            Finding::note(TOPIC, text, "remove it with \"rankrun clean\"")
        }
        Err(problem) => Finding::note(TOPIC, problem.text, "see the line \"directory\""),
    }
}

/// The value of a variable, if it is set and not empty.
pub(crate) fn variable<'a>(env: &'a [(OsString, OsString)], name: &str) -> Option<&'a OsStr> {
    let found = env.iter().find(|(have, value)| have == name && !value.is_empty());
    found.map(|(_, value)| value.as_os_str())
}

/// Whether a device can be used.
pub(crate) fn usable(device: &PathBuf) -> bool {
    rustix::fs::access(device, Access::READ_OK | Access::WRITE_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_is_a_line_and_each_hint_another() {
        let findings = [
            Finding::fine("pty", "pseudo-terminals can be made"),
            Finding::note("containment", "process trees: no cgroup", "jobs run all the same"),
            Finding::bad("directory", "/tmp/rankrun-0 is not ours", "remove it"),
        ];
        insta::assert_snapshot!(anstream::adapter::strip_str(&render(&findings)).to_string(), @"
        ok    pty          pseudo-terminals can be made
        note  containment  process trees: no cgroup
                           hint: jobs run all the same
        bad   directory    /tmp/rankrun-0 is not ours
                           hint: remove it
        ");
    }

    #[test]
    fn jobs_can_run_on_the_machine_of_the_tests() {
        let (text, code) = run(&[]);
        assert_eq!(code, ExitCode::SUCCESS, "{text}");
        for topic in ["containment", "pty", "ptrace", "nofile", "shm", "leftovers"] {
            assert!(text.contains(topic), "{topic} is missing:\n{text}");
        }
    }
}
