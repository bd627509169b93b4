//! A rank in Rust. `fail_rust FATE RANK`: that rank meets the fate when all are up, the others wait.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rankrun_tests::{pause, processes, wait_until};
use rustix::process::Signal;

/// Longer than any test.
const BOUND: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [fate, fated] = arguments.as_slice() else { return ExitCode::from(98) };
    let rank = env::var("RANKRUN_RANK").unwrap_or_default();
    wait_for_all(&rank);
    if rank == *fated {
        return meet(fate);
    }
    pause(BOUND);
    ExitCode::SUCCESS
}

/// Every rank has a file in the directory of the test.
fn wait_for_all(rank: &str) {
    let directory = PathBuf::from(env::var_os("RANKRUN_TEST_DIR").unwrap_or_default());
    let size: u32 = env::var("RANKRUN_WORLD_SIZE").ok().and_then(|size| size.parse().ok()).unwrap_or(0);
    let _ = fs::write(directory.join(format!("{rank}.up")), "");
    wait_until(BOUND, || (0..size).all(|rank| directory.join(format!("{rank}.up")).exists()).then_some(()));
}

fn meet(fate: &str) -> ExitCode {
    let own = std::process::id().cast_signed();
    match fate {
        "exception" => panic!("failure!"),
        "exit-code" => return ExitCode::from(3),
        // Rust's own handler only counts a first one: it expects the faulty instruction to be repeated.
        "sigsegv" => (0..2).for_each(|_| processes::send(own, Signal::SEGV)),
        "sigkill" => processes::send(own, Signal::KILL),
        "sigabrt" => std::process::abort(),
        "sigstop" => drop(Command::new("kill").args(["-STOP", &own.to_string()]).status()),
        "out-of-memory" => hoard(),
        _ => return ExitCode::from(99),
    }
    pause(BOUND);
    ExitCode::SUCCESS
}

/// Takes memory until there is none.
fn hoard() {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    loop {
        kept.push(vec![b'x'; 1 << 20]);
    }
}
