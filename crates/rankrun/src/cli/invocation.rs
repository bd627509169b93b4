//! What was typed, taken apart: a subcommand, or the commands of a job with the options before each.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use rankrun_core::suggest::nearest;

use crate::args;
use crate::message::Problem;

/// What the user wants of us.
#[derive(Debug)]
pub(crate) enum Invocation {
    /// The commands of a job; the options that concern the whole job are those of the first.
    Job(Vec<ArgMatches>),
    Check,
    Clean {
        dry_run: bool,
    },
    Completions(clap_complete::Shell),
    Man,
    Report {
        file: PathBuf,
    },
    Replay {
        file: PathBuf,
    },
    /// Text for stdout: help or the version.
    Print(String),
}

/// Takes the words after the program's own name apart.
pub(crate) fn read(words: Vec<OsString>) -> Result<Invocation, Problem> {
    let rest = words.get(1..).unwrap_or_default();
    let invocation = match words.first().and_then(|first| first.to_str()) {
        Some("check") => parse(args::check(), rest).map(|_| Invocation::Check),
        Some("clean") => {
            parse(args::clean(), rest).map(|matches| Invocation::Clean { dry_run: matches.get_flag("dry-run") })
        }
        Some("completions") => parse(args::completions(), rest).map(|matches| {
            let shell = matches.get_one("shell").copied();
            Invocation::Completions(shell.expect("clap has made sure of the argument"))
        }),
        Some("man") => parse(args::man(), rest).map(|_| Invocation::Man),
        Some("report") => parse(args::report(), rest).map(|matches| {
            let file: Option<&PathBuf> = matches.get_one("file");
            Invocation::Report { file: file.cloned().expect("clap has made sure of the argument") }
        }),
        Some("replay") => parse(args::replay(), rest).map(|matches| {
            let file: Option<&PathBuf> = matches.get_one("file");
            Invocation::Replay { file: file.cloned().expect("clap has made sure of the argument") }
        }),
        _ => read_job(words),
    };
    match invocation {
        Err(Stop::Print(text)) => Ok(Invocation::Print(text)),
        Err(Stop::Problem(problem)) => Err(problem),
        Ok(invocation) => Ok(invocation),
    }
}

/// Why parsing went no further.
enum Stop {
    Print(String),
    Problem(Problem),
}

fn read_job(words: Vec<OsString>) -> Result<Invocation, Stop> {
    let mut segments = Vec::new();
    for (i, words) in words.split(|word| word == ":").enumerate() {
        let command = args::job();
        let words = spell_np(&command, words);
        let matches = parse(command, &words)?;
        if i > 0 {
            refuse_job_wide(&matches).map_err(Stop::Problem)?;
        }
        segments.push(matches);
    }
    Ok(Invocation::Job(segments))
}

/// Rewrites `-np`, which every MPI launcher takes and no parser of short options does.
fn spell_np(command: &Command, words: &[OsString]) -> Vec<OsString> {
    let mut spelt = words.to_vec();
    let mut at = 0;
    while let Some(word) = spelt.get(at) {
        if word == "-np" || word == "-nproc" {
            spelt[at] = "--nproc".into();
        } else if let Some(value) = word.as_bytes().strip_prefix(b"-np") {
            let value = OsStr::from_bytes(value.strip_prefix(b"=").unwrap_or(value)).to_owned();
            spelt[at] = "--nproc=".into();
            spelt[at].push(value);
        }
        let typed = spelt[at].to_string_lossy();
        if !typed.starts_with('-') || typed == "--" || typed == "-" {
            break;
        }
        at += match args::takes_next_word(command, &typed) {
            Some(true) => 2,
            Some(false) | None => 1,
        };
    }
    spelt
}

/// Options of the whole job are written before the first command, so that nobody takes them for the second's alone.
fn refuse_job_wide(matches: &ArgMatches) -> Result<(), Problem> {
    for id in matches.ids().map(clap::Id::as_str) {
        let typed = matches.value_source(id) == Some(ValueSource::CommandLine);
        if typed && id != args::COMMAND && !args::PER_COMMAND.contains(&id) {
            return Err(Problem::usage(format!(
                "--{id} concerns the whole job, and is given after the first \":\""
            ))
            .hint(format!(
                "write --{id} before the first command; only -n, -x, --env-remove, --wdir and --wrap may follow \":\""
            )));
        }
    }
    Ok(())
}

fn parse(command: Command, words: &[OsString]) -> Result<ArgMatches, Stop> {
    let own_name = OsString::from(command.get_name());
    let known = command.clone();
    command.try_get_matches_from(std::iter::once(&own_name).chain(words)).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Stop::Print(error.render().ansi().to_string()),
        _ => Stop::Problem(explain(&known, &error)),
    })
}

/// Says what clap found in our own words.
fn explain<'a>(command: &Command, error: &'a clap::Error) -> Problem {
    let text = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        Some(ContextValue::Strings(texts)) => texts.first().map(String::as_str),
        _ => None,
    };
    // clap names an argument with its value's name: `--output <WORD>`.
    let arg = text(ContextKind::InvalidArg).unwrap_or_default();
    let bare = |arg: &'a str| arg.split([' ', '=', '[', '.']).next().unwrap_or_default();
    let option = bare(arg);
    let angles = ['<', '>'];
    let value = text(ContextKind::InvalidValue).unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument if arg.starts_with('-') => {
            let names = args::long_names(command);
            let near = nearest(option, names.iter().map(String::as_str));
            Problem::usage(format!("unknown option \"{option}\"")).hint(match near {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("\"{} --help\" lists the options", command.get_bin_name().unwrap_or("rankrun")),
            })
        }
        ErrorKind::UnknownArgument => Problem::usage(format!("\"{arg}\" is one argument too many")),
        ErrorKind::InvalidValue if value.is_empty() => {
            Problem::usage(format!("{option} needs a value")).hint(format!("it is written {arg}"))
        }
        ErrorKind::InvalidValue => {
            let words: Vec<&str> = match error.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(words)) => words.iter().map(String::as_str).collect(),
                _ => Vec::new(),
            };
            let near = nearest(value, words.iter().copied()).map(|near| format!("did you mean \"{near}\"?"));
            Problem::usage(format!("{}: \"{value}\" is none of {}", option.trim_matches(angles), words.join(", ")))
                .hint_if(near)
        }
        ErrorKind::TooManyValues | ErrorKind::WrongNumberOfValues => Problem::usage(format!("{option} takes no value")),
        ErrorKind::ArgumentConflict => {
            let other = text(ContextKind::PriorArg).map_or("another option", bare);
            Problem::usage(format!("{option} cannot be used with {other}"))
        }
        ErrorKind::MissingRequiredArgument => Problem::usage(format!("{} is missing", option.trim_matches(angles))),
        _ => Problem::usage(error.to_string().trim_start_matches("error: ").trim_end().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelt(words: &[&str]) -> Vec<String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let spelt = spell_np(&args::job(), &words);
        spelt.iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn np_is_taken_where_options_are_and_left_alone_elsewhere() {
        assert_eq!(spelt(&["-np", "2", "./a", "-np", "3"]), ["--nproc", "2", "./a", "-np", "3"]);
        assert_eq!(spelt(&["-np=2", "./a"]), ["--nproc=2", "./a"]);
        assert_eq!(spelt(&["-np2", "./a"]), ["--nproc=2", "./a"]);
        assert_eq!(spelt(&["-nproc", "2", "./a"]), ["--nproc", "2", "./a"]);
        assert_eq!(spelt(&["--wdir", "-np", "-np", "2", "a"]), ["--wdir", "-np", "--nproc", "2", "a"]);
        assert_eq!(spelt(&["-vl", "-np", "2", "a"]), ["-vl", "--nproc", "2", "a"], "-l takes no word after it");
        assert_eq!(spelt(&["--", "-np", "2"]), ["--", "-np", "2"]);
    }

    #[test]
    fn a_subcommand_is_one_only_as_the_first_word() {
        let words = |words: &[&str]| read(words.iter().map(OsString::from).collect());
        assert!(matches!(words(&["check"]), Ok(Invocation::Check)));
        assert!(matches!(words(&["clean", "--dry-run"]), Ok(Invocation::Clean { dry_run: true })));
        for job in [&["-n", "2", "check"][..], &["--", "check"], &["./check"], &["-v", "man"]] {
            assert!(matches!(words(job), Ok(Invocation::Job(_))), "{job:?}");
        }
    }
}
