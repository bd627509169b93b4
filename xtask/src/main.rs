//! `cargo xtask`: the only entry point to test, lint, measure and prepare this repository.
//!
//! | word | what it does |
//! |---|---|
//! | `test` | sets up what the tests need, builds, runs unit and black-box tests |
//! | `lint` | formatting, clippy, the rules of the tree |
//! | `bench` | measures rankrun beside the launchers that are installed |
//! | `soak` | the black-box tests with their full counts, again and again |
//! | `simulate` | whole jobs in virtual time, with faults, around the machine that decides |
//! | `env` | creates the Python environments that the black-box tests use |
//! | `docs` | builds the site from the pages in `docs/` |
//! | `screens` | records the screens and the picture that the pages show |
//! | `dist` | builds what people install: wheel, tarball, Debian package, checksums |
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this program talks to the person who started it")]

mod bench;
mod circles;
mod dist;
mod docs;
mod environments;
mod leftovers;
mod lint;
mod load;
mod makers;
mod packages;
mod process;
mod simulate;
mod tests;
mod wants;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "Test, lint and measure rankrun")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run all tests: sets up what they need first
    Test {
        /// Only the unit tests and the black-box tests that need no MPI, no torch and no compiler
        #[arg(long)]
        fast: bool,
        /// Only the tests of containment, output and MPI, while busy loops take the CPUs from them
        #[arg(long, conflicts_with = "fast")]
        loaded: bool,
        /// Test this binary; by default, the release build of this tree
        #[arg(long, value_name = "FILE")]
        binary: Option<PathBuf>,
        /// Run only the tests whose names contain one of these
        filters: Vec<String>,
    },
    /// Check formatting, clippy and the rules of the tree
    Lint,
    /// Measure rankrun beside the launchers that are installed
    Bench {
        /// How often each case is run; the median counts
        #[arg(long)]
        runs: Option<usize>,
        /// Measure this binary; by default, the release build of this tree
        #[arg(long, value_name = "FILE")]
        binary: Option<PathBuf>,
        /// A rankrun of another build, beside this one in the rows that compare launchers
        #[arg(long, value_name = "PROGRAM")]
        against: Option<PathBuf>,
        /// The rows to measure (default: all); an unknown name lists them
        rows: Vec<String>,
    },
    /// Repeat the black-box tests with their full counts
    Soak {
        /// Begin no further round after this many minutes
        #[arg(long, default_value_t = 30)]
        minutes: u64,
        /// Run only the tests whose names contain one of these
        filters: Vec<String>,
    },
    /// Simulate whole jobs in virtual time, with faults, and check what each must keep
    Simulate {
        /// At most so many nodes, and so many faults
        #[arg(long, default_value_t = 16)]
        nodes: u32,
        #[arg(long, default_value_t = 5)]
        faults: u32,
        /// At most so many nodes more without ranks: the job replaces nodes, and they come back
        #[arg(long, default_value_t = 0)]
        spares: u32,
        /// The seed of the first job; it repeats the same one
        #[arg(long, default_value_t = 0)]
        seed: u64,
        #[arg(long, default_value_t = 1)]
        jobs: u64,
    },
    /// Build the site from the pages in docs/ into target/site
    Docs,
    /// Record the screens and the picture that the pages show
    Screens,
    /// Build the wheel, the tarball and the Debian package into target/dist
    Dist {
        /// Also install each in a fresh place, run jobs there, and check what crates.io asks for
        #[arg(long)]
        check: bool,
    },
    /// Create the Python environments that the tests use
    Env {
        /// The environments to create (default: all that tests use)
        names: Vec<String>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Test { loaded: true, binary, filters, .. } => tests::loaded(binary.as_deref(), &filters),
        Command::Test { fast, binary, filters, .. } => tests::test(fast, binary.as_deref(), &filters),
        Command::Lint => lint::lint(),
        Command::Bench { runs, binary, against, rows } => bench::bench(runs, binary, against, &rows),
        Command::Soak { minutes, filters } => tests::soak(Duration::from_secs(60 * minutes), &filters),
        Command::Simulate { nodes, faults, spares, seed, jobs } => {
            simulate::simulate(nodes, faults, spares, seed, jobs)
        }
        Command::Docs => docs::docs(),
        Command::Screens => docs::screens(),
        Command::Dist { check } => dist::dist(check),
        Command::Env { names } => environments::create(&names),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
