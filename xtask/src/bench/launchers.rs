//! The compared launchers, and the command line of each for the same job.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::environments;

/// Which launcher it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Kind {
    /// A C program that spawns all and waits for all: not a launcher, but what no launcher can beat.
    Floor,
    Rankrun,
    /// rankrun of another build (`--against`).
    RankrunOther,
    /// rankrun without what the row is about.
    RankrunBare,
    /// rankrun where it may make no cgroup: the tier of unprivileged users.
    RankrunFallback,
    Mpich,
    Intel,
    OpenMpi,
    Torchrun,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Floor => "floor",
            Kind::Rankrun => "rankrun",
            Kind::RankrunOther => "rankrun, other build",
            Kind::RankrunBare => "rankrun, without",
            Kind::RankrunFallback => "rankrun, no cgroup",
            Kind::Mpich => "MPICH",
            Kind::Intel => "Intel MPI",
            Kind::OpenMpi => "Open MPI",
            Kind::Torchrun => "torchrun",
        }
    }
}

/// One launcher of this machine.
pub(super) struct Launcher {
    pub(super) kind: Kind,
    program: PathBuf,
}

impl Launcher {
    /// All that are there, the floor and rankrun first. `other` is a rankrun of another build.
    /// `rankrun` is a copy of the program, as a user installs it: a file that the linker has just written lies in memory in small pieces, and
    /// starts up to a millisecond later.
    pub(super) fn installed(programs: &Path, rankrun: &Path, other: Option<PathBuf>) -> Vec<Launcher> {
        let mut found = vec![
            Launcher { kind: Kind::Floor, program: programs.join("floor") },
            Launcher { kind: Kind::Rankrun, program: rankrun.to_owned() },
            Launcher { kind: Kind::RankrunFallback, program: rankrun.to_owned() },
        ];
        found.extend(other.map(|program| Launcher { kind: Kind::RankrunOther, program }));
        let peers = [
            (Kind::Mpich, "mpich", "mpiexec"),
            (Kind::Intel, "impi-rt", "mpiexec"),
            (Kind::OpenMpi, "openmpi", "mpiexec"),
            (Kind::Torchrun, "torch", "torchrun"),
        ];
        for (kind, environment, program) in peers {
            if let Some(directory) = environments::existing(environment) {
                found.push(Launcher { kind, program: directory.join("bin").join(program) });
            }
        }
        found
    }

    /// Its program, without words.
    pub(super) fn bare(&self) -> Command {
        Command::new(&self.program)
    }

    /// The command that starts `size` ranks of a program.
    pub(super) fn command(&self, size: u32, tagged: bool, program: &[OsString]) -> Command {
        let mut command = self.start(size, tagged);
        command.args(program);
        command
    }

    /// The same with options of the launcher's own.
    pub(super) fn command_with(&self, size: u32, options: &[&str], program: &[OsString]) -> Command {
        let mut command = self.start(size, false);
        command.args(options).args(program);
        command
    }

    fn start(&self, size: u32, tagged: bool) -> Command {
        let mut command = Command::new(&self.program);
        match self.kind {
            Kind::Floor => command.arg(size.to_string()),
            Kind::Rankrun | Kind::RankrunOther | Kind::RankrunBare => {
                command.args(["-n", &size.to_string()]).args(tagged.then_some("-l"))
            }
            Kind::RankrunFallback => command
                .env("RANKRUN_CONTAINMENT", "subreaper")
                .args(["-n", &size.to_string()])
                .args(tagged.then_some("-l")),
            Kind::Mpich | Kind::Intel => command.args(["-n", &size.to_string()]).args(tagged.then_some("-l")),
            Kind::OpenMpi => command
                .args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"])
                .args(tagged.then_some(["--output", "tag"]).into_iter().flatten())
                .args(["-n", &size.to_string()]),
            Kind::Torchrun => command
                .args(["--standalone", "--no-python", "--nproc-per-node", &size.to_string()])
                .args(tagged.then_some(["--tee", "3"]).into_iter().flatten()),
        };
        command
    }
}
