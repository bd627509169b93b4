//! Makes the settings from the command line, the environment and the configuration file; each setting keeps its origin.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use clap::parser::ValueSource;
use rankrun_core::hosts::Mapping;
use rankrun_core::job::{
    Buffer, CleanShm, Descendants, EnvEdit, MpiMode, RestartSpec, StdinTarget, StopScope, TorchStore, Wrap,
};
use rankrun_core::outer::matches as name_matches;
use rankrun_core::placement::Binding;
use rankrun_core::preload::Preload;
use rankrun_core::stacks::stall::StallSpec;
use rankrun_core::testimony::Graces;
use rankrun_core::units::{parse_duration, parse_size};
use rankrun_core::{Rank, RankSet, Template};

use crate::args;
use crate::choices::{self, Output, Stdio, When, choose};
use crate::config::{self, Config};
use crate::files::{Files, MatchSettings, files, matches, of_ranks};
use crate::hosts::{self, HostSettings};
use crate::invocation::Segment;
use crate::joining::{self, Joining, NodeCount};
use crate::keys::KEYS;
use crate::leaving::{self, Leaving};
use crate::message::Problem;
use crate::planned::PlannedSettings;
use crate::slips::{misspelt_variables, no_command, slip};
use crate::values::{read_gpus, read_level, read_nproc, read_rank, read_stdin};
use crate::{binding, planned, restarting, stopping, words};

/// Where a setting comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    CommandLine,
    Variable(OsString),
    File { path: PathBuf, line: u32 },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::CommandLine => f.write_str("command line"),
            Origin::Variable(name) => write!(f, "environment variable {}", name.display()),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
        }
    }
}

/// A value as written, with the name of its option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Given {
    pub(crate) key: &'static str,
    pub(crate) text: OsString,
    pub(crate) origin: Origin,
}

impl Given {
    /// An error in this value, with its origin.
    pub(crate) fn problem(&self, text: impl fmt::Display) -> Problem {
        Problem::usage(match &self.origin {
            Origin::CommandLine => match self.key {
                "nproc" => format!("-n: {text}"),
                "env" => format!("-x: {text}"),
                "hosts" => format!("-H: {text}"),
                key => format!("--{key}: {text}"),
            },
            Origin::Variable(name) => format!("{}: {text}", name.display()),
            Origin::File { path, line } => format!("{}:{line}: {}: {text}", path.display(), self.key),
        })
    }
}

/// How many ranks a command has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nproc {
    /// One for each CPU.
    Auto,
    /// One for each GPU.
    Gpus,
    /// One for each GPU, or for each CPU if there is no GPU: torchrun's `auto`.
    GpusOrCpus,
    Count(u32),
}

/// One command of the job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AppSettings {
    pub(crate) command: Vec<OsString>,
    /// `None` if it is not said.
    pub(crate) nproc: Option<Nproc>,
    pub(crate) env: Vec<EnvEdit>,
    pub(crate) wdir: Option<Template>,
    pub(crate) wraps: Vec<Wrap>,
    /// What may have been meant if there is no such program: its name is then the value of the option before it.
    pub(crate) slip: Option<String>,
}

/// All settings of a job. `None` is the default where the default depends on other things.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    pub(crate) apps: Vec<AppSettings>,
    pub(crate) hosts: HostSettings,
    pub(crate) gpus_per_rank: Option<u32>,
    pub(crate) binding: Binding,
    pub(crate) mpi: MpiMode,
    pub(crate) torch_store: TorchStore,
    /// Set `TF_CONFIG` for the ranks.
    pub(crate) tf_config: bool,
    /// What is imported before the ranks are forked.
    pub(crate) preload: Option<Preload>,
    pub(crate) pmix_library: Option<PathBuf>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) planned: PlannedSettings,
    pub(crate) grace: Option<Duration>,
    pub(crate) grace_saving: Option<Duration>,
    pub(crate) stop_signal: Option<i32>,
    pub(crate) linger: Option<Duration>,
    pub(crate) graces: Graces,
    /// End a rank whose stderr ends with a traceback, instead of warning of it.
    pub(crate) stall: Option<StallSpec>,
    pub(crate) end_suspects: bool,
    /// Give Python interpreters the hook.
    pub(crate) hook: bool,
    pub(crate) stop_scope: StopScope,
    pub(crate) descendants: Descendants,
    pub(crate) clean_shm: CleanShm,
    pub(crate) keep_going: bool,
    /// End a job whose ranks run MPI without being connected.
    pub(crate) strict: bool,
    pub(crate) die_with_parent: bool,
    /// When the job is started again. A path in it is still as written.
    pub(crate) restart: RestartSpec,
    /// How many nodes there may be, if that was said.
    pub(crate) nodes: Option<NodeCount>,
    /// The nodes of the job join by themselves.
    pub(crate) joining: Option<Joining>,
    pub(crate) output: Option<Output>,
    /// The template of the tag; empty for the default one. With its origin: only the output crate can validate it.
    pub(crate) tag: Option<Given>,
    pub(crate) timestamps: bool,
    pub(crate) only: Option<RankSet>,
    pub(crate) color: When,
    pub(crate) log_dir: Option<Template>,
    /// The files that stdout and stderr go to instead of the console.
    pub(crate) files: [Option<Files>; 2],
    /// The files that they go to beside the console.
    pub(crate) tees: [Option<Files>; 2],
    /// The lines of stdout and stderr that are copied to files of their own.
    pub(crate) matches: [Option<MatchSettings>; 2],
    /// Where torch's `@record` writes the exception of a rank.
    pub(crate) error_file: Option<Template>,
    /// Replace fields in the words of the commands.
    pub(crate) expands_args: bool,
    pub(crate) stdio: Stdio,
    pub(crate) buffer: Buffer,
    pub(crate) spool: u64,
    pub(crate) drain: Duration,
    pub(crate) leaving: Leaving,
    pub(crate) stdin: Option<StdinTarget>,
    pub(crate) tty: Option<Rank>,
    pub(crate) report_dir: Option<PathBuf>,
    pub(crate) keep_reports: u32,
    pub(crate) journal: Option<PathBuf>,
    /// -1 quiet, 0, 1, 2.
    pub(crate) verbosity: i8,
    pub(crate) dry_run: bool,
    /// Everything that is not a default, in the order of the help.
    pub(crate) given: Vec<Given>,
    /// Warnings: problems that do not prevent the job.
    pub(crate) warnings: Vec<String>,
}

impl Settings {
    /// Whether a stream goes to files that are named.
    pub(crate) fn has_files(&self) -> bool {
        self.files.iter().chain(&self.tees).any(Option::is_some)
    }

    /// Whether lines are copied to files of their own.
    pub(crate) fn has_matches(&self) -> bool {
        self.matches.iter().any(Option::is_some)
    }
}

/// How much output may wait on disk by default.
const SPOOL: u64 = 1 << 30;
/// How many reports are kept by default.
const KEEP_REPORTS: u32 = 100;
/// How long output may be written after the job's end by default.
const DRAIN: Duration = Duration::from_secs(30);

/// Resolves the settings of a job from its segments as typed and from `env`, rankrun's own environment.
pub(crate) fn resolve(segments: &[Segment], env: &[(OsString, OsString)]) -> Result<Settings, Problem> {
    let Segment { typed: first, .. } = segments.first().ok_or_else(|| no_command(None))?;
    let without_file = Sources { typed: first, env, config: None };
    let file = without_file.path("config")?;
    let config = file.map(|given| config::read(given.text.as_ref())).transpose()?;
    let sources = Sources { config: config.as_ref(), ..without_file };
    let mut warnings = misspelt_variables(env);
    let apps: Result<Vec<AppSettings>, Problem> = segments
        .iter()
        .map(|segment| app(&Sources { typed: &segment.typed, ..sources }, segment, &mut warnings))
        .collect();
    let apps = apps?;
    let mut given = sources.all();
    for segment in &segments[1..] {
        let later = Sources { typed: &segment.typed, config: None, env: &[] };
        given.extend(later.all());
    }
    let (nodes, joining) = joining::read(&sources)?;
    let switch = |key| sources.get(key, read_bool).map(|yes| yes.unwrap_or(false));
    let verbose = match first.get_count("verbose") {
        0 => sources.get("verbose", read_level)?.unwrap_or(0),
        times => times.min(2) as i8,
    };
    let quiet = match first.get_count("verbose") {
        0 => switch("quiet")?,
        _ => false,
    };
    let mut hosts = hosts::read(&sources, &mut warnings)?;
    let (binding, is_in_turn) = binding::read(&sources)?;
    if is_in_turn {
        if sources.one("map").is_some() && hosts.mapping != Mapping::Cyclic {
            return Err(
                Problem::usage("--map-by node is --map cyclic, and --map says otherwise").hint("leave one of them out")
            );
        }
        hosts.mapping = Mapping::Cyclic;
    }
    let file = |key| sources.path(key)?.map(|given| template(&given, &given.text)).transpose();
    let files = |key| sources.path(key)?.map(|given| files(&given)).transpose();
    let mut settings = Settings {
        apps,
        hosts,
        gpus_per_rank: sources.get("gpus-per-rank", read_gpus)?.flatten(),
        binding,
        mpi: sources.choice("mpi", choices::MPI)?.unwrap_or_default(),
        torch_store: sources.choice("torch-store", choices::TORCH_STORE)?.unwrap_or_default(),
        tf_config: switch("tf-config")?,
        preload: sources.get("preload", read_preload)?.flatten(),
        pmix_library: sources.path("pmix-lib")?.map(|given| given.text.into()),
        timeout: sources.get("timeout", duration)?.filter(|timeout| !timeout.is_zero()),
        planned: planned::read(&sources)?,
        grace: sources.get("grace", duration)?,
        grace_saving: sources.get("grace-saving", duration)?,
        stop_signal: sources.get("stop-signal", stopping::read_signal)?,
        linger: sources.get("linger", duration)?,
        graces: stopping::graces(sources.get("finalize-grace", duration)?, sources.get("exit-grace", duration)?),
        stall: sources.get("stall", stopping::stall)?.map_or_else(|| Some(StallSpec::default()), |given| given.0),
        end_suspects: sources.choice("on-suspect", choices::ON_SUSPECT)?.unwrap_or(false),
        hook: sources.choice("hook", choices::HOOK)?.unwrap_or(true),
        stop_scope: sources.choice("stop-scope", choices::STOP_SCOPE)?.unwrap_or_default(),
        descendants: sources.choice("descendants", choices::DESCENDANTS)?.unwrap_or_default(),
        clean_shm: sources.choice("clean-shm", choices::CLEAN_SHM)?.unwrap_or_default(),
        keep_going: switch("keep-going")?,
        strict: switch("strict")?,
        die_with_parent: switch("die-with-parent")?,
        restart: restarting::read(&sources, switch("keep-going")?)?,
        nodes,
        joining,
        output: sources.choice("output", choices::OUTPUT)?,
        tag: sources.one("tag").and_then(read_tag),
        timestamps: switch("timestamps")?,
        only: sources
            .get("only", |text| text.parse::<RankSet>().map_err(|error| format!("{error}: write 0, 0-3,8 or all")))?,
        color: sources.choice("color", choices::WHEN)?.unwrap_or(When::Auto),
        log_dir: file("log-dir")?,
        files: [files("stdout-file")?, files("stderr-file")?],
        tees: [files("tee-stdout")?, files("tee-stderr")?],
        matches: [matches(sources.every(&["match-stdout"]))?, matches(sources.every(&["match-stderr"]))?],
        error_file: file("error-file")?,
        expands_args: switch("expand-args")?,
        stdio: sources.choice("stdio", choices::STDIO)?.unwrap_or(Stdio::Auto),
        buffer: sources.choice("buffer", choices::BUFFER)?.unwrap_or_default(),
        spool: sources
            .get("spool", |text| parse_size(text).map_err(|error| format!("{error}: write 64K, 100M or 1GiB")))?
            .unwrap_or(SPOOL),
        drain: sources.get("drain", duration)?.unwrap_or(DRAIN),
        leaving: leaving::read(&sources, first.get_flag("detach"))?,
        stdin: sources.get("stdin", read_stdin)?,
        tty: sources.get("tty", read_rank)?,
        report_dir: sources.path("report-dir")?.map(|given| given.text.into()),
        keep_reports: sources.get("keep-reports", read_count)?.unwrap_or(KEEP_REPORTS),
        journal: sources.path("journal")?.map(|given| given.text.into()),
        verbosity: if quiet { -1 } else { verbose },
        dry_run: first.get_flag("dry-run"),
        given,
        warnings,
    };
    settings.warnings.extend(restarting::warning(&settings.restart, &settings.given));
    let is_marked = settings.tag.is_some() || settings.timestamps;
    if is_marked && settings.files.iter().any(Option::is_some) && settings.tees.iter().all(Option::is_none) {
        let text = "--tag and --timestamps do not apply to the files of --stdout-file and --stderr-file";
        settings.warnings.push(text.to_owned());
    }
    if is_marked && settings.output == Some(Output::Raw) {
        let text = "--output raw writes the bytes as they come: --tag, -l and --timestamps do nothing";
        settings.warnings.push(text.to_owned());
    }
    // After all values: one of them may be the command, by an option without its value.
    match settings.apps.iter().zip(segments).find(|(app, _)| app.command.is_empty()) {
        Some((_, segment)) => Err(no_command(segment.last.as_ref())),
        None => Ok(settings),
    }
}

/// A switch in the environment or a file; else a template. `None` takes back what a file says.
fn read_tag(given: Given) -> Option<Given> {
    let switch = match given.origin {
        Origin::CommandLine if given.text == "no" => Some(false),
        Origin::CommandLine => None,
        Origin::Variable(_) | Origin::File { .. } => given.text.to_str().and_then(|text| read_bool(text).ok()),
    };
    match switch {
        Some(false) => None,
        Some(true) => Some(Given { text: OsString::new(), ..given }),
        None => Some(given),
    }
}

fn read_preload(text: &str) -> Result<Option<Preload>, String> {
    match text {
        "no" => Ok(None),
        _ => text.parse().map(Some),
    }
}

fn read_count(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| format!("\"{text}\" is not a number from 1"))
}

/// Where values are looked up, in this order: the command line, the environment, the file.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    typed: &'a ArgMatches,
    env: &'a [(OsString, OsString)],
    config: Option<&'a Config>,
}

impl<'a> Sources<'a> {
    /// The value of an option, from the first of these that has it.
    pub(crate) fn one(&self, key: &'static str) -> Option<Given> {
        let given = |text: OsString, origin| Given { key, text, origin };
        if let Some(text) = self.typed_switch(key) {
            return Some(given(text.into(), Origin::CommandLine));
        }
        if self.is_typed(key) && !args::SWITCHES.contains(&key) {
            let text = self.typed.get_raw(key).and_then(|mut texts| texts.next_back());
            return text.map(|text| given(text.to_owned(), Origin::CommandLine));
        }
        let name = args::variable(key);
        let set = self.env.iter().find(|(have, text)| *have == name && !text.is_empty());
        if let Some((_, text)) = set.filter(|_| !joining::is_of_outer_job(key, self.env)) {
            return Some(given(text.clone(), Origin::Variable(name)));
        }
        self.mpiexec_timeout(key).or_else(|| self.filed(key).pop())
    }

    /// The time limit of mpiexec and mpirun, in seconds; a negative one is none, as Hydra reads it.
    fn mpiexec_timeout(&self, key: &'static str) -> Option<Given> {
        let name = OsString::from("MPIEXEC_TIMEOUT");
        let (_, text) = self.env.iter().find(|(have, text)| key == "timeout" && *have == name && !text.is_empty())?;
        let text = if text.as_bytes().starts_with(b"-") { OsString::from("0") } else { text.clone() };
        Some(Given { key, text, origin: Origin::Variable(name) })
    }

    /// The name of a file or a directory.
    pub(crate) fn path(&self, key: &'static str) -> Result<Option<Given>, Problem> {
        match self.one(key) {
            Some(given) if given.text.is_empty() => Err(given.problem("the name is empty")),
            given => Ok(given),
        }
    }

    fn is_typed(&self, key: &str) -> bool {
        self.typed.value_source(key) == Some(ValueSource::CommandLine)
    }

    fn typed_switch(&self, key: &str) -> Option<&'static str> {
        if key == "quiet" {
            return self.is_typed(key).then_some("yes");
        }
        if !args::SWITCHES.contains(&key) || key == "dry-run" {
            return None;
        }
        let no = format!("no-{key}");
        (self.is_typed(&no).then_some("no")).or(self.is_typed(key).then_some("yes"))
    }

    fn filed(&self, key: &'static str) -> Vec<Given> {
        let Some(config) = self.config else {
            return Vec::new();
        };
        let given = |(text, line): &(String, u32)| Given {
            key,
            text: text.into(),
            origin: Origin::File { path: config.path.clone(), line: *line },
        };
        config.values(key).iter().map(given).collect()
    }

    /// All values of a repeatable option: those of the file first, then those of the command line in their order.
    fn every(&self, keys: &[&'static str]) -> Vec<Given> {
        let mut given: Vec<Given> = keys.iter().flat_map(|key| self.filed(key)).collect();
        let mut typed: Vec<(usize, Given)> = Vec::new();
        for key in keys.iter().copied().filter(|key| self.is_typed(key)) {
            let texts = self.typed.get_raw(key).into_iter().flatten();
            let positions = self.typed.indices_of(key).into_iter().flatten();
            typed.extend(positions.zip(texts).map(|(position, text)| {
                let text = text.to_owned();
                let origin = Origin::CommandLine;
                (position, Given { key, text, origin })
            }));
        }
        typed.sort_by_key(|(position, _)| *position);
        given.extend(typed.into_iter().map(|(_, given)| given));
        given
    }

    /// The value of an option, which must be UTF-8.
    pub(crate) fn get<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Problem> {
        let Some(given) = self.one(key) else {
            return Ok(None);
        };
        let text = given.text.to_str().ok_or_else(|| given.problem(format!("{:?} is not UTF-8 text", given.text)))?;
        read(text).map(Some).map_err(|error| given.problem(error))
    }

    pub(crate) fn choice<T: Copy>(
        &self,
        key: &'static str,
        choices: &[choices::Choice<T>],
    ) -> Result<Option<T>, Problem> {
        self.get(key, |word| choose(choices, word))
    }

    /// All values that are not defaults, with their origins, for `--dry-run`.
    fn all(&self) -> Vec<Given> {
        KEYS.iter()
            .flat_map(|key| match args::REPEATED.contains(key) {
                true => self.every(&[key]),
                false => self.one(key).into_iter().collect(),
            })
            .collect()
    }
}

fn app(sources: &Sources<'_>, segment: &Segment, warnings: &mut Vec<String>) -> Result<AppSettings, Problem> {
    let command = sources.typed.get_many::<OsString>(args::COMMAND);
    let command: Vec<OsString> = command.into_iter().flatten().cloned().collect();
    let slip = segment.last.as_ref().and_then(|last| slip(last, &command, sources.env)).transpose()?;
    let mut env = Vec::new();
    for given in sources.every(&["env", "env-remove"]) {
        match given.key {
            "env-remove" => env.push(EnvEdit::Remove { name: variable_name(&given, given.text.as_bytes())? }),
            _ => env.extend(env_edits(&given, sources.env, warnings)?),
        }
    }
    let wraps: Result<Vec<Wrap>, Problem> = sources.every(&["wrap"]).iter().map(wrap).collect();
    Ok(AppSettings {
        command,
        nproc: sources.get("nproc", read_nproc)?,
        env,
        wdir: sources.path("wdir")?.map(|given| template(&given, &given.text)).transpose()?,
        wraps: wraps?,
        slip,
    })
}

/// `NAME=VALUE` sets; `NAME` and `NAME*` pass on rankrun's own values.
fn env_edits(given: &Given, env: &[(OsString, OsString)], warnings: &mut Vec<String>) -> Result<Vec<EnvEdit>, Problem> {
    let text = given.text.as_bytes();
    let set = |(name, value): (OsString, OsString)| EnvEdit::Set { name, value };
    if let Some(equals) = text.iter().position(|byte| *byte == b'=') {
        let name = variable_name(given, &text[..equals])?;
        let value = Template::lenient(OsStr::from_bytes(&text[equals + 1..]));
        return Ok(vec![match value.fixed() {
            Some(fixed) => EnvEdit::Set { name, value: fixed.to_owned() },
            // The programs of all ranks are looked up with it before any is started.
            None if name == "PATH" => return Err(given.problem("PATH is the same for all ranks, and takes no fields")),
            None => EnvEdit::Fill { name, value },
        }]);
    }
    let pattern = variable_name(given, text)?;
    let passed: Vec<_> = env.iter().filter(|(name, _)| name_matches(&pattern, name)).cloned().collect();
    if passed.is_empty() {
        warnings.push(format!("-x {}: no such variable is set", pattern.display()));
    }
    Ok(passed.into_iter().map(set).collect())
}

fn variable_name(given: &Given, name: &[u8]) -> Result<OsString, Problem> {
    if name.is_empty() || name.contains(&b'=') {
        let text = given.text.display();
        return Err(given.problem(format!("\"{text}\" does not start with the name of a variable")));
    }
    Ok(OsStr::from_bytes(name).to_owned())
}

/// `[RANKS:]COMMAND`; what stands before the first colon is a part of the command unless it reads as ranks.
fn wrap(given: &Given) -> Result<Wrap, Problem> {
    let (ranks, command) = of_ranks(&given.text);
    let command = words::split(command)
        .ok_or_else(|| given.problem(format!("a quote is not closed in \"{}\"", given.text.display())))?;
    if command.is_empty() {
        return Err(given.problem(format!("\"{}\" contains no command", given.text.display())));
    }
    let command: Result<Vec<Template>, Problem> = command.iter().map(|word| template(given, word)).collect();
    Ok(Wrap { ranks, command: command? })
}

/// A text that may differ from rank to rank. An unknown field in it is an error.
pub(crate) fn template(given: &Given, text: &OsStr) -> Result<Template, Problem> {
    Template::strict(text).map_err(|error| {
        let literally = format!("write {{{{{}}}}} for that text itself", error.name);
        given.problem(error).hint(literally)
    })
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| format!("{error}: write 500ms, 5s, 1m30s or 2h"))
}

pub(crate) fn read_bool(text: &str) -> Result<bool, String> {
    match text {
        "yes" | "true" | "1" | "on" => Ok(true),
        "no" | "false" | "0" | "off" => Ok(false),
        _ => Err(format!("\"{text}\" is not yes or no")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invocation::{Invocation, read};

    fn resolved(env: &[(&str, &str)], words: &[&str]) -> Settings {
        let Ok(Invocation::Job(segments)) = read(words.iter().map(OsString::from).collect()) else {
            panic!("{words:?} is a job");
        };
        let env: Vec<(OsString, OsString)> = env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        resolve(&segments, &env).expect("good settings")
    }

    #[test]
    fn every_option_that_can_be_a_setting_is_listed_with_its_origin() {
        let command = args::job();
        let options = command.get_arguments().filter(|arg| !arg.is_hide_set()).map(|arg| arg.get_id().as_str());
        let mut options: Vec<&str> = options.filter(|id| *id == "config" || !args::ONLY_TYPED.contains(id)).collect();
        let mut keys = KEYS.to_vec();
        options.sort_unstable();
        keys.sort_unstable();
        assert_eq!(keys, options);
    }

    #[test]
    fn each_command_of_several_has_its_own_ranks_directory_and_environment() {
        let settings = resolved(
            &[("B", "2")],
            &["-n", "1", "-x", "A=1", "./a", ":", "-np", "7", "-xB", "--wdir=/", "./b", "-n", "3"],
        );
        let [a, b] = &settings.apps[..] else { panic!("two commands") };
        assert_eq!((a.nproc, b.nproc), (Some(Nproc::Count(1)), Some(Nproc::Count(7))));
        assert_eq!(b.command, ["./b", "-n", "3"], "options end at the command");
        let set = |name: &str, value: &str| EnvEdit::Set { name: name.into(), value: value.into() };
        assert_eq!((&a.env[..], &b.env[..]), (&[set("A", "1")][..], &[set("B", "2")][..]));
        assert_eq!((&a.wdir, &b.wdir), (&None, &Some(Template::literal("/"))));
    }

    #[test]
    fn edits_keep_the_order_in_which_they_were_typed() {
        let settings = resolved(&[], &["-x", "A=1", "--env-remove", "A*", "-x", "AB=2", "true"]);
        let kinds: Vec<bool> = settings.apps[0].env.iter().map(|edit| matches!(edit, EnvEdit::Set { .. })).collect();
        assert_eq!(kinds, [true, false, true]);
    }

    #[test]
    fn a_pattern_passes_on_all_variables_that_fit() {
        let settings = resolved(&[("PMI_A", "1"), ("PMI_B", "2"), ("P", "3")], &["-x", "PMI_*", "true"]);
        assert_eq!(settings.apps[0].env.len(), 2);
    }

    #[test]
    fn wraps_name_ranks_only_where_they_read_as_ranks() {
        let settings = resolved(&[], &["--wrap", "0,2-3:gdb --args", "--wrap", "env A:B=1", "true"]);
        let wraps = &settings.apps[0].wraps;
        assert_eq!((wraps[0].ranks.to_string(), wraps[0].command.len()), ("0,2-3".to_owned(), 2));
        assert_eq!((wraps[1].ranks.to_string(), wraps[1].command.len()), ("all".to_owned(), 2));
    }

    #[test]
    fn switches_can_be_taken_back() {
        let env = [("RANKRUN_KEEP_GOING", "yes"), ("RANKRUN_QUIET", "1")];
        assert!(resolved(&env, &["true"]).keep_going);
        assert!(!resolved(&env, &["--no-keep-going", "true"]).keep_going);
        assert_eq!(resolved(&env, &["true"]).verbosity, -1);
        assert_eq!(resolved(&env, &["-v", "true"]).verbosity, 1);
        assert_eq!(resolved(&[], &["-vvv", "true"]).verbosity, 2);
    }

    #[test]
    fn the_variables_of_a_rank_about_its_nodes_are_no_options() {
        // The first two are set by rankrun for each rank, the others are inherited if the outer job had them.
        let of_nodes = [
            ("RANKRUN_NNODES", "2"),
            ("RANKRUN_NODE_RANK", "1"),
            ("RANKRUN_RENDEZVOUS", "192.0.2.1:29400"),
            ("RANKRUN_SECRET_FILE", "secret"),
        ];
        let outer = [&of_nodes[..], &[("RANKRUN_RANK", "1"), ("RANKRUN_GRACE", "1s")]].concat();
        let inner = resolved(&outer, &["true"]);
        assert_eq!((inner.nodes, inner.joining), (None, None));
        assert_eq!(inner.grace, Some(Duration::from_secs(1)), "settings are kept");
        assert!(inner.given.iter().all(|given| given.key == "grace"), "{:?}", inner.given);
        let own = "--nnodes 3 --node-rank 2 --rendezvous 192.0.2.9:1 --secret-file other true";
        let typed = resolved(&outer, &own.split(' ').collect::<Vec<_>>()).joining.expect("several nodes");
        assert_eq!((typed.nodes, typed.node), (3, Some(rankrun_core::NodeRank(2))));
        let outside = resolved(&of_nodes, &["true"]).joining.expect("several nodes");
        assert_eq!((outside.nodes, outside.node), (2, Some(rankrun_core::NodeRank(1))));
    }

    #[test]
    fn a_misspelt_variable_is_a_warning_and_others_are_not() {
        let env =
            [("RANKRUN_GRCAE", "3s"), ("RANKRUN_RANK", "1"), ("RANKRUN_MY_OWN_THING", "1"), ("RANKRUN_GRACE", "1s")];
        assert_eq!(resolved(&env, &["true"]).warnings, ["RANKRUN_GRCAE is not a setting; did you mean RANKRUN_GRACE?"]);
        let env = ["RANKRUN_WRAP", "RANKRUN_ENV", "RANKRUN_DRY_RUN", "RANKRUN_LABEL", "RANKRUN_RANKFILE"]
            .map(|name| (name, "1"));
        insta::assert_snapshot!(resolved(&env, &["true"]).warnings.join("\n"), @"
        RANKRUN_WRAP is not a setting: write --wrap on the command line, or wrap in a file for --config
        RANKRUN_ENV is not a setting: write --env on the command line, or env in a file for --config
        RANKRUN_DRY_RUN is not a setting: write --dry-run on the command line
        RANKRUN_LABEL is not a setting; did you mean RANKRUN_TAG?
        RANKRUN_RANKFILE is not a setting: --rankfile is an option of another launcher
        ");
    }

    #[test]
    fn grace_and_tag_are_none_unless_given() {
        let bare = resolved(&[], &["true"]);
        assert_eq!((bare.grace, bare.tag, bare.timeout), (None, None, None));
        assert_eq!(resolved(&[("RANKRUN_TIMEOUT", "1h")], &["--timeout", "0", "true"]).timeout, None);
        assert_eq!(resolved(&[("MPIEXEC_TIMEOUT", "90")], &["true"]).timeout, Some(Duration::from_secs(90)));
        assert_eq!(resolved(&[("MPIEXEC_TIMEOUT", "-1")], &["true"]).timeout, None);
        let both = [("MPIEXEC_TIMEOUT", "90"), ("RANKRUN_TIMEOUT", "1s")];
        assert_eq!(resolved(&both, &["true"]).timeout, Some(Duration::from_secs(1)));
        let given = resolved(&[("RANKRUN_TAG", "yes")], &["--grace", "3s", "--grace=500ms", "true"]);
        assert_eq!(given.grace, Some(Duration::from_millis(500)), "the last one counts");
        assert_eq!(given.tag.map(|tag| tag.text), Some(OsString::new()));
        for (text, tag) in
            [("true", Some("")), ("1", Some("")), ("no", None), ("false", None), ("{rank}", Some("{rank}"))]
        {
            let given = resolved(&[("RANKRUN_TAG", text)], &["true"]).tag;
            assert_eq!(given.map(|given| given.text), tag.map(OsString::from), "{text}");
        }
        assert_eq!(resolved(&[], &["-l", "true"]).tag.map(|tag| tag.text), Some(OsString::new()));
        assert_eq!(resolved(&[], &["-l=x", "true"]).tag.map(|tag| tag.text), Some(OsString::from("x")));
    }
}
