//! Simulates whole jobs in virtual time: `cargo xtask simulate --nodes 16 --faults 5 --seed 7`, or `--jobs 100000` from a seed on.
//!
//! Prints each violation with the seed that repeats it. Exits with 1 if there is one.

use std::process::ExitCode;
use std::time::Instant;

use rankrun_core::job::simulation::wild::wild;
use rankrun_core::job::simulation::{Setup, simulate};

/// Violations that are printed.
const PRINTED: usize = 20;

fn main() -> ExitCode {
    let mut setup = Setup { nodes: 16, faults: 5, spares: 0 };
    let (mut seed, mut jobs) = (0, 1);
    let words: Vec<String> = std::env::args().skip(1).collect();
    for pair in words.chunks(2) {
        let number = pair.get(1).and_then(|number| number.parse::<u64>().ok());
        match (pair[0].as_str(), number) {
            ("--nodes", Some(number @ 1..=1024)) => setup.nodes = number as u32,
            ("--faults", Some(number @ 0..=1000)) => setup.faults = number as u32,
            ("--spares", Some(number @ 0..=1024)) => setup.spares = number as u32,
            ("--seed", Some(number)) => seed = number,
            ("--jobs", Some(number)) => jobs = number,
            (option, _) => return misused(option),
        }
    }
    let began = Instant::now();
    let (mut violations, mut events, mut attempts, mut lost) = (Vec::new(), 0u64, 0u64, 0u64);
    let (mut back, mut replaced) = (0u64, 0u64);
    for seed in seed..seed + jobs {
        match simulate(seed, setup) {
            Ok(outline) => {
                events += outline.events;
                attempts += u64::from(outline.attempts);
                lost += u64::from(outline.nodes_lost);
                back += u64::from(outline.nodes_back);
                replaced += u64::from(outline.replaced);
            }
            Err(violation) => violations.push((seed, violation)),
        }
    }
    for (seed, violation) in violations.iter().take(PRINTED) {
        say(&format!("seed {seed}: at {:?}: {}", violation.at, violation.what));
    }
    let seconds = began.elapsed().as_secs_f64();
    let wild_began = Instant::now();
    for seed in seed..seed + jobs {
        if let Err(violation) = wild(seed, setup) {
            say(&format!("wild seed {seed}: at {:?}: {}", violation.at, violation.what));
            violations.push((seed, violation));
        }
    }
    let per_second = jobs as f64 / wild_began.elapsed().as_secs_f64();
    say(&format!("{jobs} sequences of events that make no sense together: {per_second:.0} a second"));
    say(&format!(
        "{jobs} jobs, {attempts} attempts, {lost} nodes lost, {back} back, {replaced} places taken by others, {events} events in {seconds:.1} s: {} violations",
        violations.len()
    ));
    ExitCode::from(u8::from(!violations.is_empty()))
}

fn misused(option: &str) -> ExitCode {
    say(&format!("\"{option}\" is no option with a number: --nodes, --faults, --spares, --seed, --jobs"));
    ExitCode::from(2)
}

fn say(text: &str) {
    use std::io::Write;
    // Where stdout is closed there is nobody left to tell.
    let _ = writeln!(std::io::stdout(), "{text}");
}
