//! The nodes of a Slurm allocation: one step of srun starts an agent on each, which connects back over TLS.
//!
//! The secret with which they enrol goes to them through srun's stdin: other users see the words and the environment of processes.
//! srun itself is only the messenger: if it is killed, the step runs on, and the agents end when they lose the front.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rankrun_agent::Options;
use rankrun_core::Purpose;
use rankrun_core::hosts::fold;
use rankrun_sys::poll::{Interest, Registry};
use rankrun_sys::{signal, socket};
use rankrun_wire::identity::Secret;

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
}

/// A step that runs.
#[derive(Debug)]
pub(crate) struct Srun {
    /// The nodes that it is for.
    nodes: Vec<String>,
    program: Program,
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
        let Step { all, others, host, port, secret, agent, extra } = *step;
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
        let (ours_err, theirs) = socket::pipe()?;
        socket::set_nonblocking(&ours_err)?;
        // A pipe has room for it.
        std::fs::File::from(ours_in).write_all(secret.to_text().as_bytes())?;
        let stdout: OwnedFd = theirs.try_clone()?;
        let env = std::env::vars_os().filter(|(name, _)| !OPTIONS.iter().any(|option| name == OsStr::new(option)));
        let request = Request { env: env.collect(), ..Request::of(arguments, [stdin, stdout, theirs]) };
        let program = starter.request(request)?;
        registry.add(&ours_err, words, Interest::Read)?;
        Ok(Srun {
            nodes: others.to_vec(),
            program,
            code: None,
            killed: None,
            not_started: None,
            words: Words::new(ours_err),
        })
    }

    pub(crate) fn is_for(&self, node: &str) -> bool {
        self.nodes.iter().any(|name| name == node)
    }

    pub(crate) fn pid(&self) -> Option<i32> {
        self.program.pid()
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
    pub(crate) fn reap(&mut self, now: Duration) -> bool {
        if self.code.is_some() {
            return false;
        }
        self.code = match self.program.look() {
            Status::Coming | Status::Runs => None,
            Status::Ended(code) => Some(code),
            Status::NotStarted(why) => {
                self.not_started = Some(why);
                Some(255)
            }
        };
        self.killed = self.program.killed_by().map(|signal| (signal, now));
        self.code.is_some()
    }

    /// Asks it to end its step.
    pub(crate) fn end(&self) {
        self.program.signal(signal::SIGTERM);
    }

    /// Ends it.
    pub(crate) fn kill(&self) {
        self.program.kill();
    }
}
