//! The command line of rankrun: words as typed (of mpiexec: as ours) → settings, each with its origin → a plan → the front runs it.
#![cfg_attr(not(test), no_main)]

mod cli;
mod commands;
mod dialect;
mod mpiexec;
mod planning;
mod top;
mod torchrun;
mod web;

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rankrun_agent::RelayCall;
use rankrun_core::{ExitCode, JobId, Purpose};
use rankrun_sys::cpus;

use cli::{
    args, binding, choices, config, files, frameworks, habits, hosts, invocation, joining, keys, leaving, message,
    planned, restarting, settings, slips, spelling, stopping, subcommands, texts, typography, values, words,
};
use commands::{
    attach, check, clean, completions, inventory, jobs, man, mpi, output, profile, prove, replay, report, restart,
    stacks, status, stop, wait, watch,
};
use planning::{
    allocation, ask, beforehand, capacity, dry_run, early, file, gpus, here, layout, local_addr, logs, plan, program,
    programs, refusal, sandbox, slurm, stops, traces,
};

use crate::early::Early;
use crate::invocation::Invocation;
use crate::message::Problem;
use crate::plan::Surroundings;

/// The environment of this process.
type Env = Vec<(OsString, OsString)>;

#[cfg(not(test))]
rankrun_sys::entry!(super::program);

#[cfg_attr(test, expect(dead_code, reason = "the tests have a `main` of their own"))]
fn program(mut words: Vec<OsString>) -> u8 {
    if let Err(why) = rankrun_sys::limits::ensure_room() {
        Problem::internal(why).print();
        return ExitCode::INTERNAL.0;
    }
    let called = if words.is_empty() { OsString::new() } else { words.remove(0) };
    if let [first, rest @ ..] = &words[..]
        && let Some(purpose) = Purpose::of_argument(first.as_bytes())
    {
        return serve(purpose, rest);
    }
    if mpiexec::is_name(&called) || torchrun::is_name(&called) {
        words.insert(0, called.clone());
    }
    let code = run(words, &called).unwrap_or_else(|problem| {
        problem.print();
        problem.code
    });
    code.0
}

/// A process that rankrun has started, which no user has called. Returns its exit code.
fn serve(purpose: Purpose, words: &[OsString]) -> u8 {
    match purpose {
        Purpose::PmixHost => rankrun_agent::serve_pmix(),
        Purpose::Looker => rankrun_agent::serve_looker(),
        Purpose::Meter => rankrun_agent::serve_meter(),
        Purpose::Sampler => rankrun_agent::serve_sampler(),
        Purpose::Reader => rankrun_agent::serve_reader(),
        Purpose::Relay => run_relay(words),
        Purpose::SlurmNode => rankrun_front::run_slurm_node(words),
        Purpose::CommandHost => rankrun_front::run_command_host(words),
        Purpose::Successor => rankrun_front::run_successor(words),
        Purpose::Heir => rankrun_front::run_heir(words),
        Purpose::Storage => rankrun_front::run_storage(words),
        Purpose::MpiProbe => probe_mpi(words),
    }
}

/// Asks the library that is the only word.
fn probe_mpi(words: &[OsString]) -> u8 {
    let [library] = words else { return ExitCode::USAGE.0 };
    let found = mpi::probe(Path::new(library), &std::env::vars_os().collect::<Vec<_>>());
    print(found.as_bytes()).map_or(1, |code| code.0)
}

/// What a front calls on another node over ssh: a relay; or `is ID`, whether this is the same build; or `prove JOB PATIENCE`,
/// whether anything of a job is left there; or `alive JOB MARKER`, whether its agent runs; or `again JOB MARKER`, where the relay of a job
/// has lost its front.
fn run_relay(words: &[OsString]) -> u8 {
    match words {
        [question, id] if question == "is" => {
            let is_same = rankrun_sys::build::id().is_ok_and(|own| id == own.as_str());
            if is_same { ExitCode::SUCCESS.0 } else { ExitCode::FAILURE.0 }
        }
        [question, rest @ ..] if question == rankrun_agent::PROVE => prove::run(rest).0,
        [question, rest @ ..] if question == rankrun_agent::ALIVE => rankrun_agent::answer_alive(rest).0,
        [question, rest @ ..] if question == rankrun_agent::AGAIN => rankrun_agent::relay_again(rest),
        words => RelayCall::of_words(words).map_or(ExitCode::USAGE.0, rankrun_agent::relay),
    }
}

fn run(words: Vec<OsString>, called: &OsStr) -> Result<ExitCode, Problem> {
    let env: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let early = Early::of(&words, &env)?;
    // The command line of another launcher, with "rankrun" before it. That may begin with the path of the launcher.
    if let [first, rest @ ..] = &words[..]
        && mpiexec::is_name(first)
    {
        return run_mpiexec(rest, first, env, early);
    }
    if let [first, rest @ ..] = &words[..]
        && torchrun::is_name(first)
    {
        let is_path = first.as_bytes().contains(&b'/');
        return run_torchrun(rest, if is_path { first } else { called }, env, early);
    }
    match invocation::read(words)? {
        Invocation::Job(segments) => run_job(&segments, None, env, early),
        Invocation::Attach(watched) => attach::run(&watched, env),
        Invocation::Logs(watched, follows) => output::run(&watched, follows, env),
        Invocation::Resume { job } => {
            let job = JobId(jobs::find("resume", &job)?.job);
            Ok(rankrun_front::resume(&job, rankrun_sys::terminal::is_terminal(rustix::stdio::stderr()), false))
        }
        Invocation::Detach { job } => print(attach::detach(&job)?.as_bytes()),
        Invocation::Wait { job } => {
            let (text, code) = wait::run(&job, env)?;
            print(text.as_bytes())?;
            Ok(code)
        }
        Invocation::Print(text) => print(text.as_bytes()),
        Invocation::Completions(shell) => print(completions::script(shell).as_bytes()),
        Invocation::Man => print(&man::page()),
        Invocation::Check => {
            let (text, code) = check::run(&env);
            print(text.as_bytes())?;
            Ok(code)
        }
        Invocation::Report { job, attempt, list, json } => {
            let color = anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never;
            let reports = report::Reports::of_user(env.into_iter());
            let text = match list {
                true => reports.list(json)?,
                false => reports.read(job.as_deref(), attempt, json, color)?,
            };
            print(text.as_bytes())
        }
        Invocation::Replay { file, otlp: true } => print(replay::trace(&file)?.as_bytes()),
        Invocation::Replay { file, otlp: false } => {
            let color = anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never;
            print(replay::read(&file, color)?.as_bytes())
        }
        Invocation::Stacks { job, ranks, native, json } => {
            print(stacks::run(stacks::Asked { job, ranks, native, json })?.as_bytes())
        }
        Invocation::Top { job } => top::run(job.as_deref()),
        Invocation::Web { job, port } => web::run(job.as_deref(), port, env),
        Invocation::Status { job, form, watch: Some(step) } => {
            watch::run(job.as_deref(), form == status::Form::Json, step)
        }
        Invocation::Status { job, form, watch: None } => print(status::run(job.as_deref(), &form)?.as_bytes()),
        Invocation::Profile { job, seconds, rate, ranks, output, native, json } => {
            print(profile::run(profile::Asked { job, seconds, rate, ranks, output, native, json })?.as_bytes())
        }
        Invocation::Restart { job, wait } => print(restart::run(&job, wait)?.as_bytes()),
        Invocation::Stop { job, grace, wait } => {
            let (text, code) = stop::run(&job, grace, wait)?;
            print(text.as_bytes())?;
            Ok(code)
        }
        Invocation::Clean { dry_run } => {
            let (text, code) = clean::run(dry_run)?;
            print(text.as_bytes())?;
            Ok(code)
        }
    }
}

/// Runs a command line of mpiexec, which is called `name` there.
fn run_mpiexec(words: &[OsString], name: &OsStr, env: Env, early: Early) -> Result<ExitCode, Problem> {
    let around = mpiexec::Around { name, env: &env, packages: cpus::packages, numa_nodes: cpus::numa_nodes };
    let reading = mpiexec::read(words, &around);
    run_dialect(mpiexec::SUBCOMMAND, reading, env, early)
}

/// Runs a command line of torchrun. `called` is how torchrun, or this program, was called.
fn run_torchrun(words: &[OsString], called: &OsStr, env: Env, early: Early) -> Result<ExitCode, Problem> {
    let around = torchrun::Around { env: &env, called, cpus: cpus::allowed, gpus: gpus::installed };
    let reading = torchrun::read(words, &around);
    run_dialect(torchrun::SUBCOMMAND, reading, env, early)
}

/// Runs what came of the words of another launcher, or prints the text that they ask for.
fn run_dialect(
    subcommand: &str,
    reading: Result<dialect::Reading, dialect::Stop>,
    env: Env,
    early: Early,
) -> Result<ExitCode, Problem> {
    let reading = match reading {
        Ok(reading) => reading,
        Err(dialect::Stop::Problem(problem)) => return Err(problem),
        Err(dialect::Stop::Text(text)) => return print(text.as_bytes()),
        Err(dialect::Stop::Help) => return run(vec!["help".into(), subcommand.into()], OsStr::new("")),
        Err(dialect::Stop::Version) => return run(vec!["--version".into()], OsStr::new("")),
    };
    match invocation::read_job(reading.words.clone(), reading.is_one_command)? {
        Invocation::Job(segments) => run_job(&segments, Some(&reading), env, early).map_err(|problem| {
            let code = reading.codes.map_or(problem.code, |codes| codes.of_refusal(problem.code));
            problem.code(code)
        }),
        // Texts are asked for by options of the dialect, which were read.
        _ => Err(Problem::usage("no command given")),
    }
}

/// Runs a job. `reading` is the command line of another launcher that its segments come from.
fn run_job(
    segments: &[invocation::Segment],
    reading: Option<&dialect::Reading>,
    env: Env,
    Early { job, prepared, parent }: Early,
) -> Result<ExitCode, Problem> {
    let settings = settings::resolve(segments, &env)?;
    if settings.verbosity >= 0 {
        let of_dialect = reading.map_or(&[][..], |reading| &reading.warnings);
        of_dialect.iter().chain(&settings.warnings).for_each(|warning| message::warn(warning));
    }
    let mut around = Surroundings::gather(env, job)?;
    if settings.leaving.is_detached {
        leaving::check(&settings)?;
        around.leave_terminal();
    }
    beforehand::check_report_dir(&settings, &around)?;
    let plan = plan::make(&settings, &around)
        .and_then(|plan| beforehand::check(&plan, &settings, &around).map(|()| plan))
        .inspect_err(|problem| refusal::save(&settings, &around, problem))?;
    if settings.verbosity >= 0 {
        beforehand::warnings(&plan, &settings, &around).iter().for_each(|warning| message::warn(warning));
    }
    if settings.dry_run {
        let text = dry_run::describe(&plan, &settings.given, around.cpus(), settings.verbosity > 0)?;
        let same = reading.map(|reading| {
            let codes = reading.codes.map(|codes| format!(" (with the exit codes of {})", codes.name()));
            format!("the same as: rankrun {}{}\n\n", words::quote_all(&reading.words), codes.unwrap_or_default())
        });
        return print(format!("{}{text}", same.unwrap_or_default()).as_bytes());
    }
    let plan = rankrun_front::Plan {
        codes: reading.and_then(|reading| reading.codes),
        die_with: settings.die_with_parent.then_some(parent),
        ..plan
    };
    plan::run(plan, prepared).inspect_err(|problem| refusal::save(&settings, &around, problem))
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
