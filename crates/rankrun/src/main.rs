//! The command line of rankrun: words as typed → settings, each with its origin → a plan → the front runs it.

mod cli;
mod commands;
mod planning;

use std::ffi::OsString;
use std::io::Write as _;

use rankrun_core::ExitCode;

use cli::{
    args, choices, config, frameworks, habits, invocation, message, settings, slips, spelling, stopping, texts,
    typography, words,
};
use commands::{check, clean, completions, inventory, man, replay, report};
use planning::{capacity, cpus, dry_run, file, gpus, plan, program, refusal};

use crate::invocation::Invocation;
use crate::message::Problem;
use crate::plan::Surroundings;

/// What an agent starts as its PMIx host. Nobody types it.
const PMIX_HOST: &str = "pmix-host";

fn main() -> std::process::ExitCode {
    rankrun_sys::signal::set_ours();
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if words.first().is_some_and(|word| word == PMIX_HOST) {
        return std::process::ExitCode::from(rankrun_agent::serve_pmix());
    }
    let code = run(words).unwrap_or_else(|problem| {
        problem.print();
        problem.code
    });
    std::process::ExitCode::from(code.0)
}

fn run(words: Vec<OsString>) -> Result<ExitCode, Problem> {
    match invocation::read(words)? {
        Invocation::Job(segments) => {
            let env: Vec<(OsString, OsString)> = std::env::vars_os().collect();
            let settings = settings::resolve(&segments, &env)?;
            if settings.verbosity >= 0 {
                settings.warnings.iter().for_each(|warning| message::warn(warning));
            }
            let around = Surroundings::gather(env)?;
            let plan =
                plan::make(&settings, &around).inspect_err(|problem| refusal::save(&settings, &around, problem))?;
            if settings.dry_run {
                let text = dry_run::describe(&plan, &settings.given, around.cpus(), settings.verbosity > 0);
                return print(text.as_bytes());
            }
            plan::run(plan).inspect_err(|problem| refusal::save(&settings, &around, problem))
        }
        Invocation::Print(text) => print(text.as_bytes()),
        Invocation::Completions(shell) => print(completions::script(shell).as_bytes()),
        Invocation::Man => print(&man::page()),
        Invocation::Check => {
            let env: Vec<(OsString, OsString)> = std::env::vars_os().collect();
            let (text, code) = check::run(&env);
            print(text.as_bytes())?;
            Ok(code)
        }
        Invocation::Report { job, list, json } => {
            let color = anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never;
            let reports = report::Reports::of_user(std::env::vars_os());
            print(if list { reports.list(json)? } else { reports.read(job.as_deref(), json, color)? }.as_bytes())
        }
        Invocation::Replay { file } => {
            let color = anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never;
            print(replay::read(&file, color)?.as_bytes())
        }
        Invocation::Clean { dry_run } => {
            let (text, code) = clean::run(dry_run)?;
            print(text.as_bytes())?;
            Ok(code)
        }
    }
}

/// Writes the answer to stdout. A reader that closes the pipe (`| head`) is not an error.
fn print(text: &[u8]) -> Result<ExitCode, Problem> {
    match anstream::stdout().write_all(text) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Problem::internal(format!("cannot write to stdout: {}", rankrun_sys::reason(&error))))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
