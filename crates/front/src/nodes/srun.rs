//! The nodes of a Slurm allocation: one step of srun starts an agent on each, which connects back over TLS.
//!
//! The secret with which they enrol goes to them through srun's stdin: other users see the words and the environment of processes.
//! srun itself is only the messenger. A child of it ends the step if it is killed: where another front may follow this one, it outlives it.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rankrun_agent::Options;
use rankrun_core::Purpose;
use rankrun_core::hosts::fold;
use rankrun_sys::poll::{Interest, Registry};
use rankrun_sys::process::{ProcessId, ProcessRef};
use rankrun_sys::{signal, socket};
use rankrun_wire::identity::Secret;
use rustix::fs::{FileType, Mode, OFlags};

use super::ssh::Words;
use crate::starter::{Program, Request, Starter, Status};

/// Variables with which Slurm's commands set options of srun. Those that describe the allocation are kept.
const OPTIONS: &[&str] = &[
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_SOCKET",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_TRES",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_PER_GPU",
    "SLURM_TRES_PER_TASK",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPU_BIND",
    "SLURM_CPU_BIND",
    "SLURM_MEM_BIND",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_MEM_PER_NODE",
    "SLURM_DISTRIBUTION",
    "SLURM_HINT",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_WHOLE",
    "SLURM_OVERLAP",
    "SLURM_MPI_TYPE",
    "SLURM_KILL_BAD_EXIT",
    "SLURM_WAIT",
    "SLURM_LABELIO",
    "SLURM_STDINMODE",
    "SLURM_STDOUTMODE",
    "SLURM_STDERRMODE",
    "SLURM_EXPORT_ENV",
    "SLURM_TASK_PROLOG",
    "SLURM_TASK_EPILOG",
    "SLURM_MULTI_PROG",
    "SLURM_THREADS",
    "SLURM_THREADS_PER_CORE",
    "SLURM_CORE_SPEC",
    "SLURM_HOSTFILE",
    "SLURM_ARBITRARY_NODELIST",
];

/// In place of the exit code of one that another front has started.
pub(super) const UNKNOWN: i32 = -1;

/// What a step is started with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    /// The names of all nodes, in the order of their ranks, and of those that the front is not on.
    pub(crate) all: &'a [String],
    pub(crate) others: &'a [String],
    /// Where the front listens. `None`: at the address that srun tells its tasks.
    pub(crate) host: Option<&'a str>,
    pub(crate) port: u16,
    pub(crate) secret: &'a Secret,
    pub(crate) agent: &'a Options,
    /// More options for srun.
    pub(crate) extra: &'a [OsString],
    /// Where its words go if it is to outlive this process, which another one may follow.
    pub(crate) words: Option<&'a Path>,
}

/// The process of a step.
#[derive(Debug)]
enum Process {
    Ours(Program),
    /// Another front has started it.
    Followed(ProcessRef),
}

/// A step that runs.
#[derive(Debug)]
pub(crate) struct Srun {
    /// The nodes that it is for.
    nodes: Vec<String>,
    process: Process,
    /// Its exit code once it has ended.
    pub(crate) code: Option<i32>,
    /// By which signal it was ended, if so, and when that was seen.
    pub(crate) killed: Option<(i32, Duration)>,
    /// Why there was no process of it.
    pub(crate) not_started: Option<String>,
    words: Words,
}

impl Srun {
    /// Asks for one. What it writes is watched under `words`.
    pub(crate) fn start(starter: &mut Starter, registry: &Registry, words: u64, step: &Step<'_>) -> io::Result<Srun> {
        let Step { all, others, host, port, secret, agent, extra, words: kept } = *step;
        let count = others.len().to_string();
        let mut arguments: Vec<OsString> = vec!["srun".into()];
        arguments.extend(
            [
                "--overlap",
                "--ntasks-per-node=1",
                "--cpu-bind=none",
                "--mpi=none",
                "--kill-on-bad-exit=0",
                // A node that Slurm finds down must not end the agents of the others.
                "--no-kill",
                "--wait=0",
                "--unbuffered",
                "--export=ALL",
                "--quiet",
                "--chdir=/",
            ]
            .map(OsString::from),
        );
        arguments.push(format!("--nodes={count}").into());
        arguments.push(format!("--ntasks={count}").into());
        arguments.push(format!("--nodelist={}", others.join(",")).into());
        arguments.extend(extra.iter().cloned());
        arguments.push(std::env::current_exe()?.into());
        let containment = agent.containment.as_deref().unwrap_or("-");
        let patience = agent.patience.as_millis().to_string();
        let words_of_node =
            [Purpose::SlurmNode.argument(), host.unwrap_or("-"), &port.to_string(), &fold(all), containment, &patience];
        arguments.extend(words_of_node.map(OsString::from));
        let (stdin, ours_in) = socket::pipe()?;
        let (ours_err, theirs) = match kept {
            None => socket::pipe()?,
            Some(path) => {
                // Of a front that was killed at this place.
                let _ = std::fs::remove_file(path);
                // It is never without a reader: srun goes on where this process is killed.
                rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
                (open_words(path, OFlags::NONBLOCK)?, open_words(path, OFlags::empty())?)
            }
        };
        socket::set_nonblocking(&ours_err)?;
        // A pipe has room for it.
        std::fs::File::from(ours_in).write_all(secret.to_text().as_bytes())?;
        let stdout: OwnedFd = theirs.try_clone()?;
        let env = std::env::vars_os().filter(|(name, _)| !OPTIONS.iter().any(|option| name == OsStr::new(option)));
        let outlives_us = kept.is_some();
        let request = Request { env: env.collect(), outlives_us, ..Request::of(arguments, [stdin, stdout, theirs]) };
        let program = starter.request(request)?;
        registry.add(&ours_err, words, Interest::Read)?;
        Ok(Srun {
            nodes: others.to_vec(),
            process: Process::Ours(program),
            code: None,
            killed: None,
            not_started: None,
            words: Words::new(ours_err),
        })
    }

    /// One that another front has started. `None`: it is over, and nobody knows what it said.
    pub(crate) fn followed(
        registry: &Registry,
        token: u64,
        nodes: Vec<String>,
        id: ProcessId,
        words: &Path,
    ) -> Option<Srun> {
        let process = ProcessRef::of(id)?;
        let words = open_words(words, OFlags::NONBLOCK).ok()?;
        registry.add(&words, token, Interest::Read).ok()?;
        if let Some(end) = process.descriptor() {
            registry.add(end, token, Interest::Read).ok()?;
        }
        let process = Process::Followed(process);
        Some(Srun { nodes, process, code: None, killed: None, not_started: None, words: Words::new(words) })
    }

    pub(crate) fn is_for(&self, node: &str) -> bool {
        self.nodes.iter().any(|name| name == node)
    }

    /// Its process, if that is a child of ours.
    pub(crate) fn pid(&self) -> Option<i32> {
        match &self.process {
            Process::Ours(program) => program.pid(),
            Process::Followed(_) => None,
        }
    }

    /// It has written something.
    pub(crate) fn read_words(&mut self, registry: &Registry) {
        self.words.read(registry);
    }

    pub(crate) fn words(&self) -> String {
        self.words.text()
    }

    pub(crate) fn new_words(&mut self) -> Vec<String> {
        self.words.news()
    }

    /// Reaps it, if it has ended now.
    pub(crate) fn reap(&mut self, now: Duration, registry: &Registry) -> bool {
        if self.code.is_some() {
            return false;
        }
        self.code = match &self.process {
            Process::Ours(program) => {
                self.killed = program.killed_by().map(|signal| (signal, now));
                match program.look() {
                    Status::Coming | Status::Runs => None,
                    Status::Ended(code) => Some(code),
                    Status::NotStarted(why) => {
                        self.not_started = Some(why);
                        Some(255)
                    }
                }
            }
            Process::Followed(process) if process.is_alive() => None,
            Process::Followed(process) => {
                if let Some(end) = process.descriptor() {
                    // It stays readable.
                    let _ = registry.remove(end);
                }
                Some(UNKNOWN)
            }
        };
        self.code.is_some()
    }

    /// Asks it to end its step.
    pub(crate) fn end(&self) {
        match &self.process {
            Process::Ours(program) => program.signal(signal::SIGTERM),
            // It has ended meanwhile.
            Process::Followed(process) => drop(process.signal(signal::SIGTERM)),
        }
    }

    /// Ends it.
    pub(crate) fn kill(&self) {
        match &self.process {
            Process::Ours(program) => program.kill(),
            // As above.
            Process::Followed(process) => drop(process.signal(signal::SIGKILL)),
        }
    }
}

/// Opens the FIFO for the words of an srun. Whoever has it open has both ends.
fn open_words(path: &Path, how: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, how | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?)
}
