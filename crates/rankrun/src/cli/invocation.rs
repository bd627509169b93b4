//! Parses the command line: a subcommand, or the commands of a job with the options before each.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::cli::settings::duration;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use rankrun_core::RankSet;
use rankrun_core::suggest::nearest;

use crate::args;
use crate::completions::Shell;
use crate::message::Problem;
use crate::spelling::LastOption;
use crate::status::Form;
use crate::subcommands;
use crate::{habits, spelling};

/// What the user asks for.
#[derive(Debug)]
pub(crate) enum Invocation {
    /// The commands of a job; the options that concern the whole job are those of the first.
    Job(Vec<Segment>),
    /// Show the output of a job.
    Attach(Watched),
    /// Print the output that is kept of a job; until its end.
    Logs(Watched, bool),
    Resume {
        job: String,
    },
    Detach {
        job: String,
    },
    Wait {
        job: String,
    },
    Check,
    Clean {
        dry_run: bool,
    },
    Completions(Shell),
    Man,
    Report {
        /// Its id or the beginning of it, or a path.
        job: Option<PathBuf>,
        /// One of its attempts; the last by default.
        attempt: Option<u32>,
        list: bool,
        json: bool,
    },
    Replay {
        file: PathBuf,
        /// The trace, instead of the report.
        otlp: bool,
    },
    Stacks {
        job: String,
        ranks: Option<String>,
        native: bool,
        json: bool,
    },
    Profile {
        job: String,
        seconds: f64,
        rate: f64,
        ranks: Option<String>,
        output: Option<PathBuf>,
        native: bool,
        json: bool,
    },
    Status {
        /// Its id or the beginning of it.
        job: Option<String>,
        form: Form,
        /// How often it is printed again.
        watch: Option<Duration>,
    },
    Top {
        /// Its id or the beginning of it.
        job: Option<String>,
    },
    Web {
        /// Its id or the beginning of it.
        job: Option<String>,
        /// 0 is one that is free.
        port: u16,
    },
    Stop {
        job: String,
        grace: Option<Duration>,
        wait: bool,
    },
    Restart {
        job: String,
        wait: bool,
    },
    /// Text for stdout: help or the version.
    Print(String),
}

/// Which output is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Watched {
    /// The id of its job or the beginning of it, or the directory of its report.
    pub(crate) job: String,
    pub(crate) tail: Option<Tail>,
    pub(crate) ranks: Option<RankSet>,
    /// What is typed is for the ranks.
    pub(crate) stdin: bool,
}

impl Watched {
    /// How many lines of what is there already; all, if that was not said.
    pub(crate) fn lines(&self) -> Option<usize> {
        match self.tail {
            Some(Tail::Lines(lines)) => Some(lines),
            Some(Tail::All) | None => None,
        }
    }
}

/// How much of what is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tail {
    All,
    Lines(usize),
}

/// `status --watch` asks no more often: each time costs the job something.
const LEAST_STEP: Duration = Duration::from_millis(100);

/// One command of a job, with the options before it.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) typed: ArgMatches,
    /// The option right before the command, by which slips are explained.
    pub(crate) last: Option<LastOption>,
}

/// Parses the words after the program's own name.
pub(crate) fn read(words: Vec<OsString>) -> Result<Invocation, Problem> {
    let rest = words.get(1..).unwrap_or_default();
    let named = words.first().and_then(|first| first.to_str()).unwrap_or_default();
    let invocation = match subcommands::subcommand(named) {
        Some(make) => read_subcommand(named, make, rest),
        None if named == "help" => read_help(rest),
        None => read_segments(words),
    };
    match invocation {
        Err(Stop::Print(text)) => Ok(Invocation::Print(text)),
        Err(Stop::Problem(problem)) => Err(problem),
        Ok(invocation) => Ok(invocation),
    }
}

/// Parses the words of a job. If `is_one_command`, a word ":" is an argument like any other.
pub(crate) fn read_job(words: Vec<OsString>, is_one_command: bool) -> Result<Invocation, Problem> {
    let segments = match is_one_command {
        true => segments_of(&[&words]),
        false => read_segments(words),
    };
    match segments {
        Err(Stop::Print(text)) => Ok(Invocation::Print(text)),
        Err(Stop::Problem(problem)) => Err(problem),
        Ok(invocation) => Ok(invocation),
    }
}

/// Why parsing stopped.
enum Stop {
    Print(String),
    Problem(Problem),
}

fn read_subcommand(name: &str, make: fn() -> Command, words: &[OsString]) -> Result<Invocation, Stop> {
    // None of them allows combined single letters, and "-hosts" must never be read as "-h".
    if let Some(word) = words.iter().find(|word| matches!(word.as_bytes(), [b'-', other, _, ..] if *other != b'-')) {
        let problem = Problem::usage(format!("unknown option \"{}\"", word.display()));
        return Err(Stop::Problem(problem.hint(format!("\"rankrun {name} --help\" lists the options"))));
    }
    let matches = parse(make, words)?;
    let file = || matches.get_one::<PathBuf>("file").cloned().expect("clap has made sure of the argument");
    let job = || matches.get_one::<String>("job").cloned().expect("clap has made sure of the argument");
    Ok(match name {
        "attach" => Invocation::Attach(read_watched(&matches)?),
        "logs" => Invocation::Logs(read_watched(&matches)?, matches.get_flag("follow")),
        "resume" => Invocation::Resume { job: job() },
        "detach" => Invocation::Detach { job: job() },
        "wait" => Invocation::Wait { job: job() },
        "check" => Invocation::Check,
        "clean" => Invocation::Clean { dry_run: matches.get_flag("dry-run") },
        "completions" => {
            let shell = matches.get_one::<String>("shell").and_then(|name| Shell::named(name));
            Invocation::Completions(shell.expect("clap has made sure of the argument"))
        }
        "man" => Invocation::Man,
        "profile" => Invocation::Profile {
            job: job(),
            seconds: number(&matches, "seconds")?,
            rate: number(&matches, "rate")?,
            ranks: matches.get_one::<String>("ranks").cloned(),
            output: matches.get_one::<PathBuf>("output").cloned(),
            native: matches.get_flag("native"),
            json: matches.get_flag("json"),
        },
        "report" => Invocation::Report {
            job: matches.get_one::<PathBuf>("job").cloned(),
            attempt: matches.get_one::<String>("attempt").map(|text| read_attempt(text)).transpose()?,
            list: matches.get_flag("list"),
            json: matches.get_flag("json"),
        },
        "restart" => Invocation::Restart { job: job(), wait: !matches.get_flag("no-wait") },
        "stacks" => Invocation::Stacks {
            job: job(),
            ranks: matches.get_one::<String>("rank").cloned(),
            native: matches.get_flag("native"),
            json: matches.get_flag("json"),
        },
        "status" => {
            let form = match (matches.get_flag("prometheus"), matches.get_flag("json")) {
                (true, _) => Form::Prometheus {
                    ranks: matches.get_flag("ranks"),
                    output: matches.get_one::<PathBuf>("output").cloned(),
                },
                (false, true) => Form::Json,
                (false, false) => Form::Text,
            };
            let watch = matches.get_one::<String>("watch").map(|text| read_step(text)).transpose()?;
            Invocation::Status { job: matches.get_one::<String>("job").cloned(), form, watch }
        }
        "stop" => {
            let grace = matches
                .get_one::<String>("grace")
                .map(|text| duration(text).map_err(|error| Stop::Problem(Problem::usage(format!("--grace: {error}")))));
            Invocation::Stop { job: job(), grace: grace.transpose()?, wait: !matches.get_flag("no-wait") }
        }
        "top" => Invocation::Top { job: matches.get_one::<String>("job").cloned() },
        "web" => Invocation::Web {
            job: matches.get_one::<String>("job").cloned(),
            port: matches.get_one::<String>("port").map(|text| read_port(text)).transpose()?.unwrap_or(0),
        },
        _ => Invocation::Replay { file: file(), otlp: matches.get_flag("otlp") },
    })
}

fn read_watched(matches: &ArgMatches) -> Result<Watched, Stop> {
    let text = |id: &str| matches.get_one::<String>(id).map(String::as_str);
    let problem = |text: String| Stop::Problem(Problem::usage(text));
    let tail = text("tail").map(|text| match text {
        "all" => Ok(Tail::All),
        text => text
            .parse()
            .map(Tail::Lines)
            .map_err(|_| problem(format!("--tail: \"{text}\" is not a number of lines or all"))),
    });
    let ranks = text("rank").map(|text| {
        text.parse::<RankSet>().map_err(|error| problem(format!("--rank: {error}: write 0, 0-3,8 or all")))
    });
    let stdin = matches.try_get_one::<bool>("stdin").ok().flatten() == Some(&true);
    let job = text("job").unwrap_or_default().to_owned();
    Ok(Watched { job, tail: tail.transpose()?, ranks: ranks.transpose()?, stdin })
}

fn read_port(text: &str) -> Result<u16, Stop> {
    text.parse()
        .map_err(|_| Stop::Problem(Problem::usage(format!("--port: \"{text}\" is not a port: write 0 to 65535"))))
}

/// The time of `--watch`.
fn read_step(text: &str) -> Result<Duration, Stop> {
    let refused = |why: String| Stop::Problem(Problem::usage(format!("--watch: {why}")));
    let step = duration(text).map_err(|error| refused(error.to_string()))?;
    match step < LEAST_STEP {
        true => Err(refused("at least 0.1 seconds".to_owned())),
        false => Ok(step),
    }
}

fn read_attempt(text: &str) -> Result<u32, Stop> {
    text.parse().map_err(|_| {
        Stop::Problem(Problem::usage(format!("--attempt: \"{text}\" is not the number of an attempt, from 0 on")))
    })
}

/// A number of seconds, or of looks a second.
fn number(matches: &ArgMatches, name: &str) -> Result<f64, Stop> {
    let text = matches.get_one::<String>(name).map_or("", String::as_str);
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| Stop::Problem(Problem::usage(format!("--{name}: \"{text}\" is not a number above 0"))))
}

/// `rankrun help`, and `rankrun help check`.
fn read_help(words: &[OsString]) -> Result<Invocation, Stop> {
    let named = |name: &str| subcommands::subcommand(crate::mpiexec::subcommand(name).unwrap_or(name));
    let make = match words {
        [] => args::job,
        [name] => named(&name.to_string_lossy()).ok_or_else(|| {
            let names: Vec<&str> = subcommands::SUBCOMMANDS.iter().map(|(name, ..)| *name).collect();
            let problem = Problem::usage(format!("there is no help for \"{}\"", name.display()));
            Stop::Problem(
                problem.hint(format!("the commands are {}; \"rankrun help\" describes all options", names.join(", "))),
            )
        })?,
        [_, extra, ..] => {
            return Err(Stop::Problem(Problem::usage(format!("\"{}\" is an extra argument", extra.display()))));
        }
    };
    parse(make, &["--help".into()]).map(|_| Invocation::Print(String::new()))
}

fn read_segments(words: Vec<OsString>) -> Result<Invocation, Stop> {
    segments_of(&words.split(|word| word == ":").collect::<Vec<_>>())
}

fn segments_of(commands: &[&[OsString]]) -> Result<Invocation, Stop> {
    let mut segments = Vec::new();
    for (i, words) in commands.iter().enumerate() {
        let command = args::job();
        let spelling::Spelt { words, last } =
            spelling::spell(&command, words, commands.len() == 1).map_err(Stop::Problem)?;
        let typed = parse_with(command, args::job, &words)?;
        if i > 0 {
            refuse_job_wide(&typed).map_err(Stop::Problem)?;
        }
        segments.push(Segment { typed, last });
    }
    Ok(Invocation::Job(segments))
}

/// Options of the whole job must be before the first command: elsewhere they would look like options of one command.
fn refuse_job_wide(matches: &ArgMatches) -> Result<(), Problem> {
    for id in matches.ids().map(clap::Id::as_str) {
        let typed = matches.value_source(id) == Some(ValueSource::CommandLine);
        if typed && id != args::COMMAND && !args::PER_COMMAND.contains(&id) {
            return Err(Problem::usage(format!(
                "--{id} applies to the whole job, but comes after the first \":\""
            ))
            .hint(format!(
                "write --{id} before the first command; only -n, -x, --env-remove, --wdir and --wrap may follow \":\""
            )));
        }
    }
    Ok(())
}

fn parse(make: fn() -> Command, words: &[OsString]) -> Result<ArgMatches, Stop> {
    parse_with(make(), make, words)
}

/// The same, with a command that was made already.
fn parse_with(command: Command, make: fn() -> Command, words: &[OsString]) -> Result<ArgMatches, Stop> {
    let own_name = OsString::from(command.get_name());
    let all = || std::iter::once(&own_name).chain(words);
    command.try_get_matches_from(all()).map_err(|error| match error.kind() {
        ErrorKind::DisplayVersion => Stop::Print(error.render().ansi().to_string()),
        // The same words, and the texts.
        ErrorKind::DisplayHelp => {
            let error = crate::texts::described(make).try_get_matches_from(all()).err().unwrap_or(error);
            Stop::Print(error.render().ansi().to_string())
        }
        _ => Stop::Problem(explain(&make(), &error)),
    })
}

/// What those who know other programs write to our subcommands, and what to write instead.
const HABITS: &[(&[&str], &[&str], &str)] = &[
    (&["attach", "logs"], &["-n", "--lines", "--last"], "--tail N shows the last N lines"),
    (
        &["attach", "logs"],
        &["--since", "--until"],
        "--tail N shows the last N lines; --timestamps, where the job is started, dates them",
    ),
    (&["attach", "logs"], &["-t", "--timestamps"], "--timestamps, where the job is started, dates its lines"),
    (&["attach"], &["-f", "--follow"], "attach follows the job by itself; ~. leaves it"),
    (&["attach"], &["--detach-keys", "-d"], "~. and Enter leaves a job"),
    (&["attach"], &["-i", "--interactive"], "--stdin gives the job what you type"),
    (&["stop"], &["-a", "--all"], "it takes one job at a time; \"rankrun status\" lists them"),
    (&["stop"], &["-f", "--force", "-9", "-s", "--signal"], "--grace 0s kills the ranks at once"),
    (
        &["status", "top"],
        &["-i", "-d", "-n", "--interval", "--delay"],
        "\"rankrun status --watch JOB\" prints a line for each change",
    ),
];

fn habit(command: &str, option: &str) -> Option<&'static str> {
    let is_it =
        |(commands, options, _): &&(&[&str], &[&str], &str)| commands.contains(&command) && options.contains(&option);
    HABITS.iter().find(is_it).map(|(.., hint)| *hint)
}

/// Turns clap's errors into our own messages.
fn explain<'a>(command: &Command, error: &'a clap::Error) -> Problem {
    let text = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        Some(ContextValue::Strings(texts)) => texts.first().map(String::as_str),
        _ => None,
    };
    // clap names an argument with its value's name: `--output <WORD>`.
    let arg = text(ContextKind::InvalidArg).unwrap_or_default();
    let bare = |arg: &'a str| {
        let name = |arg: &'a str| arg.split([' ', '=', '[', ']', '.']).next().unwrap_or_default();
        // An argument that may be left out is shown between brackets.
        name(arg.strip_prefix('[').unwrap_or(arg))
    };
    let option = bare(arg);
    let angles = ['<', '>'];
    let value = text(ContextKind::InvalidValue).unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument if arg.starts_with('-') => {
            let names = args::long_names(command);
            let near =
                nearest(option, names.iter().map(String::as_str)).map(|near| format!("did you mean \"{near}\"?"));
            Problem::usage(format!("unknown option \"{option}\"")).hint(
                habit(command.get_name(), option).map(str::to_owned).or(near).unwrap_or_else(|| {
                    format!("\"{} --help\" lists the options", command.get_bin_name().unwrap_or("rankrun"))
                }),
            )
        }
        ErrorKind::UnknownArgument => {
            let takes_job = command.get_positionals().any(|arg| arg.get_id() == "job");
            Problem::usage(format!("\"{arg}\" is an extra argument"))
                .hint_if(takes_job.then(|| "it takes one job at a time".to_owned()))
        }
        ErrorKind::InvalidValue if value.is_empty() => {
            let problem = Problem::usage(format!("{} needs a value", option.trim_matches(angles)));
            problem.hint_if(option.starts_with('-').then(|| format!("it is written {arg}")))
        }
        ErrorKind::InvalidValue => {
            let words: Vec<&str> = match error.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(words)) => words.iter().map(String::as_str).collect(),
                _ => Vec::new(),
            };
            let near = nearest(value, words.iter().copied()).map(|near| format!("did you mean \"{near}\"?"));
            let problem = Problem::usage(format!(
                "{}: \"{value}\" is not one of {}",
                option.trim_matches(angles),
                words.join(", ")
            ));
            // The word may be valid for the option in another launcher.
            let theirs = habits::named(command, option);
            match (&theirs[..], near) {
                ([], near) | (_, near @ Some(_)) if option != "--mpi" => problem.hint_if(near),
                _ => theirs.iter().fold(problem, |problem, row| problem.hint(row.advice(&[]))),
            }
        }
        ErrorKind::TooManyValues | ErrorKind::WrongNumberOfValues => Problem::usage(format!("{option} takes no value")),
        ErrorKind::ArgumentConflict => {
            let other = text(ContextKind::PriorArg).map_or("another option", bare);
            Problem::usage(format!(
                "{} cannot be used with {}",
                option.trim_matches(angles),
                other.trim_matches(angles)
            ))
        }
        ErrorKind::MissingRequiredArgument => {
            let is_job = option == "<JOB>";
            Problem::usage(format!("{} is missing", option.trim_matches(angles)))
                .hint_if(is_job.then(|| "\"rankrun status\" lists the running jobs".to_owned()))
        }
        _ => Problem::usage(error.to_string().trim_start_matches("error: ").trim_end().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_call_an_option_of_a_command_is_answered_with_ours() {
        for (words, error, hint) in [
            ("logs -n 5 J", "unknown option \"-n\"", "--tail N shows the last N lines"),
            ("attach --follow J", "unknown option \"--follow\"", "attach follows the job by itself; ~. leaves it"),
            ("stop J K", "\"K\" is an extra argument", "it takes one job at a time"),
            ("stop --al J", "unknown option \"--al\"", "\"rankrun stop --help\" lists the options"),
        ] {
            let words = words.split(' ').map(OsString::from).collect();
            let problem = read(words).expect_err("it is wrong");
            let text = problem.to_string();
            assert!(text.contains(error) && text.contains(hint), "{text}");
        }
        let known = subcommands::SUBCOMMANDS.iter().map(|(name, ..)| *name).collect::<Vec<_>>();
        for (commands, options, _) in HABITS {
            assert!(commands.iter().all(|command| known.contains(command)), "{commands:?}");
            assert!(options.iter().all(|option| option.starts_with('-')), "{options:?}");
        }
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
