//! Writes the options of torchrun as ours.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rankrun_core::env::gpu_mask;
use rankrun_core::foreign_codes::Codes;

use super::parse::{Given, Options, parse};
use super::rendezvous::{self, Meeting};
use super::table::{EVENTS, Row};
use super::{completion, logs};
use crate::ask;
use crate::dialect::{For, Here, Reading, Stop, Without, fill, literal};
use crate::gpus::no_gpus;
use crate::message::Problem;

/// What the words are read against.
pub(crate) struct Around<'a> {
    pub(crate) env: &'a [(OsString, OsString)],
    /// How this program was called.
    pub(crate) called: &'a OsStr,
    /// How many CPUs and GPUs there are.
    pub(crate) cpus: fn() -> u32,
    pub(crate) gpus: fn() -> u32,
}

impl Around<'_> {
    pub(super) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.env.iter().find(|(have, value)| have == name && !value.is_empty()).map(|(_, value)| value.as_os_str())
    }

    /// The GPUs that the job may use.
    fn gpus(&self) -> u32 {
        gpu_mask(self.env, &[]).map_or_else(self.gpus, |mask| mask.devices)
    }
}

/// The signals that do not end rankrun itself.
const PASSED_ON: &[&str] = &["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"];

/// The grace of torchrun.
const GRACE: u32 = 30;

/// Reads the words after `torchrun`.
pub(crate) fn read(words: &[OsString], around: &Around<'_>) -> Result<Reading, Stop> {
    let options = parse(words, around.env)?;
    if let Some(shell) = options.get("--print-completion") {
        return Err(Stop::Text(completion::script(shell)?));
    }
    let mut writer = Writer { options: &options, around, words: Vec::new(), warnings: Vec::new() };
    let codes = writer.strict()?;
    let command = writer.command()?;
    writer.table()?;
    let meeting = {
        let is_secret = |word: &OsString| word.as_bytes().starts_with(b"--secret-file");
        let has_secret = around.variable("RANKRUN_SECRET_FILE").is_some() || options.ours.iter().any(is_secret);
        rendezvous::read(&options, has_secret)?
    };
    writer.meeting(&meeting);
    let workers = writer.workers(&meeting)?;
    writer.ending()?;
    logs::write(&mut writer, &meeting, workers)?;
    let Writer { mut words, warnings, .. } = writer;
    words.extend(options.ours.iter().cloned());
    // The program may be an option for all that our parser knows.
    words.push("--".into());
    words.extend(command);
    Ok(Reading { words, is_one_command: true, warnings, codes })
}

/// Writes words of ours.
pub(super) struct Writer<'a> {
    pub(super) options: &'a Options,
    pub(super) around: &'a Around<'a>,
    pub(super) words: Vec<OsString>,
    pub(super) warnings: Vec<String>,
}

impl Writer<'_> {
    pub(super) fn push(&mut self, word: impl Into<OsString>) {
        self.words.push(word.into());
    }

    /// Sets a variable of the workers. A value that looks like a field of ours is text.
    pub(super) fn set(&mut self, name: &str, value: impl AsRef<OsStr>) {
        let mut pair = OsString::from(format!("{name}="));
        pair.push(literal(value.as_ref(), For::Value));
        self.words.extend(["-x".into(), pair]);
    }

    /// The options that are ours in other words, and those that are not done.
    fn table(&mut self) -> Result<(), Problem> {
        let mut without = Without::default();
        for (row, given) in self.options.given() {
            match row.here {
                Here::Same(words) | Here::Differs(words, _) => {
                    self.words.extend(words.iter().map(|word| fill(word, Some(&given.text))));
                }
                Here::Without(what) => {
                    check_choice(row, given)?;
                    without.note(what, &given.origin, std::slice::from_ref(&given.text));
                }
                Here::Refused(advice) => {
                    return Err(Problem::usage(format!("{} is not supported", given.origin)).hint(advice));
                }
                Here::Already(_) => check_choice(row, given)?,
                Here::Special(..) => {}
            }
        }
        if let Some(handler) = self.options.get("--event-log-handler").filter(|given| given.text != "null") {
            without.note(EVENTS, &handler.origin, std::slice::from_ref(&handler.text));
        }
        self.warnings.extend(without.warnings());
        Ok(())
    }

    /// `--strict`, and `--strict=torchrun`.
    fn strict(&self) -> Result<Option<Codes>, Problem> {
        let Some(given) = self.options.get("--strict") else { return Ok(None) };
        match given.text.is_empty() || given.text == Codes::Torchrun.name() {
            true => Ok(Some(Codes::Torchrun)),
            false => Err(given.problem(format!("\"{}\" is not torchrun", given.text.display()))),
        }
    }

    fn meeting(&mut self, meeting: &Meeting) {
        self.warnings.extend(meeting.warning.clone());
        if let Some(nodes) = &meeting.nodes {
            let rank = nodes.rank.map_or_else(|| "auto".to_owned(), |rank| rank.to_string());
            self.push(format!("--nnodes={}", nodes.count));
            self.push(format!("--node-rank={rank}"));
            self.push(format!("--rendezvous={}", nodes.address));
            if nodes.is_elastic {
                // As torchrun: more nodes restart the workers at once, and that costs no restart. Nor does a loss here.
                self.words.extend(
                    ["--grow=restart", "--node-loss=free", "--start-retries=0", "--no-breaker"].map(OsString::from),
                );
            }
            let times = [("--start-timeout", nodes.join), ("--last-call", nodes.last_call)];
            for (option, time) in times {
                self.words.extend(time.map(|time| OsString::from(format!("{option}={time}s"))));
            }
        }
        if let Some((host, port)) = &meeting.master {
            self.set("MASTER_ADDR", host);
            self.set("MASTER_PORT", port);
        }
        if let Some(id) = &meeting.run_id {
            self.set("TORCHELASTIC_RUN_ID", id);
        }
    }

    /// The number of workers, and what hangs on it. Returns the number.
    fn workers(&mut self, meeting: &Meeting) -> Result<u32, Problem> {
        let given = self.options.get("--nproc-per-node");
        let text = given.map_or(Ok("1"), Given::utf8)?.trim();
        let (word, count) = match text {
            "auto" => {
                ("gpu-or-cpu", Some(self.around.gpus()).filter(|count| *count > 0).unwrap_or_else(self.around.cpus))
            }
            "cpu" => ("auto", (self.around.cpus)()),
            "gpu" | "xpu" => match (self.around.gpus(), given) {
                (0, Some(given)) => {
                    let mask = gpu_mask(self.around.env, &[]);
                    let problem = no_gpus(&format!("{} {text}", given.origin), mask);
                    return Err(problem.hint("write --nproc-per-node auto for one worker on each CPU, or a number"));
                }
                (count, _) => ("gpu", count),
            },
            text => match (text.parse::<u32>(), given) {
                (Ok(count), _) if count > 0 => (text, count),
                (_, Some(given)) => {
                    let problem = given.problem(format!("\"{text}\" is not a number of workers, auto, cpu or gpu"));
                    return Err(problem.hint("write --nproc-per-node 2, or auto for one on each GPU (or CPU)"));
                }
                (_, None) => ("1", 1),
            },
        };
        // torchrun starts the workers of its own machine, whatever else an allocation has.
        let is_alone = meeting.nodes.is_none();
        if is_alone && crate::allocation::is_there(self.around.env) {
            self.words.push("--hosts=localhost".into());
        }
        match is_alone {
            true => self.words.extend(["-n".into(), word.into()]),
            false => self.push(format!("--ppn={count}")),
        }
        // As run.py: one thread for each worker, where the user says nothing and there are several. One worker alone may use
        // every CPU, which is OpenMP's own default.
        match (self.around.env.iter().any(|(name, _)| name == "OMP_NUM_THREADS"), count) {
            (true, _) => {}
            (false, 1) => self.words.extend(["--env-remove".into(), "OMP_NUM_THREADS".into()]),
            (false, _) => self.set("OMP_NUM_THREADS", "1"),
        }
        if self.options.has("--virtual-local-rank") {
            self.set("LOCAL_RANK", "0");
            match gpu_mask(self.around.env, &[]).is_some() || (self.around.gpus)() > 0 {
                true => self.push("--gpus-per-rank=1"),
                false => self.words.extend(["-x".into(), "CUDA_VISIBLE_DEVICES={local_rank}".into()]),
            }
        }
        self.numa_binding()?;
        self.push("--mpi=none");
        self.push("--stdin=shared");
        Ok(count)
    }

    /// `--numa-binding`, as `torch/numa/binding.py` of torch 2.15: device i is that of local rank i.
    fn numa_binding(&mut self) -> Result<(), Problem> {
        let Some(given) = self.options.get("--numa-binding") else { return Ok(()) };
        let bound = match given.utf8()? {
            "node" => "--bind-to=numa",
            "socket" => "--bind-to=package",
            "exclusive" => "--cpus-per-rank=all",
            "core-complex" => "--bind-to=l3",
            other => {
                let known = "node, socket, exclusive, core-complex";
                return Err(given.problem(format!("\"{other}\" is not one of {known}")));
            }
        };
        self.words.extend(["--map-by=gpu".into(), bound.into()]);
        Ok(())
    }

    /// How the job ends.
    fn ending(&mut self) -> Result<(), Problem> {
        let of_variable = || {
            let text = self.around.variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")?.to_owned();
            Some(Given { origin: "TORCH_ELASTIC_SHUTDOWN_TIMEOUT".to_owned(), text })
        };
        let grace = match self.options.get("--shutdown-timeout").cloned().or_else(of_variable) {
            Some(given) => given.number()?,
            None => GRACE,
        };
        self.push(format!("--grace={grace}s"));
        if let Some(signals) = self.options.get("--signals-to-handle") {
            let text = signals.utf8()?;
            for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                let number = crate::stopping::read_signal(name).map_err(|error| signals.problem(error))?;
                if !PASSED_ON.contains(&rankrun_core::status::signal_name(number).as_str()) {
                    self.warnings.push(format!("{}: {name} is not passed on to the workers", signals.origin));
                }
            }
            self.set("TORCHELASTIC_SIGNALS_TO_HANDLE", text);
        }
        if let Some(restarts) = self.options.get("--max-restarts") {
            let count = restarts.number()?;
            self.restarts(count);
        }
        if let Some(interval) = self.options.get("--monitor-interval") {
            let text = interval.utf8()?;
            if text.trim().parse::<f64>().is_err() {
                return Err(interval.problem(format!("\"{text}\" is not a number of seconds, such as 0.1")));
            }
        }
        Ok(())
    }

    /// `--max-restarts N`, as far as our own options offer it.
    /// torchrun starts again at once, whatever has failed.
    fn restarts(&mut self, count: u32) {
        if count > 0 {
            self.push(format!("--max-restarts={count}"));
            self.push("--backoff=0".to_owned());
            self.push("--no-breaker".to_owned());
            self.push("--start-retries=0".to_owned());
        }
    }

    /// The command of every worker.
    fn command(&mut self) -> Result<Vec<OsString>, Problem> {
        let options = self.options;
        let is_module = options.has("--module");
        let is_program = options.has("--no-python") && !options.has("--run-path");
        if is_module && options.has("--no-python") {
            let problem = Problem::usage("--module cannot be used with --no-python");
            return Err(problem.hint("leave one of them out: a module is run by Python"));
        }
        let (script, arguments) = options.command.split_first().ok_or_else(|| Problem::usage("no script given"))?;
        if !is_program && !is_module && is_launcher(script) {
            let name = script.display();
            return Err(Problem::usage(format!("\"{name}\" is no script: there is no such file here"))
                .hint(format!("leave \"{name}\" out: the script is run with Python; --no-python runs a program")));
        }
        let mut command = Vec::new();
        if !is_program {
            command.extend([self.python(), "-u".into()]);
            command.extend((is_module && !options.has("--run-path")).then(|| OsString::from("-m")));
        }
        command.push(script.clone());
        let arguments: Vec<Vec<Piece>> = arguments.iter().map(|argument| pieces(argument)).collect();
        if arguments.iter().flatten().any(|piece| *piece == Piece::LocalRank) {
            self.push("--expand-args");
            command.iter_mut().for_each(|word| *word = literal(word, For::Value));
            command.extend(arguments.iter().map(|pieces| {
                let text = |piece: &Piece| match piece {
                    Piece::Text(text) => literal(OsStr::from_bytes(text), For::Value),
                    Piece::LocalRank => "{local_rank}".into(),
                };
                pieces.iter().map(text).collect::<OsString>()
            }));
        } else {
            let text = |piece: Piece| if let Piece::Text(text) = piece { text } else { Vec::new() };
            command.extend(
                arguments.into_iter().map(|pieces| OsString::from_vec(pieces.into_iter().flat_map(text).collect())),
            );
        }
        Ok(command)
    }

    /// The Python of the workers: `PYTHON_EXEC`; that beside a link of ours called torchrun, whose Python torchrun itself would
    /// have; or the first on the path.
    fn python(&self) -> OsString {
        if let Some(python) = self.around.variable("PYTHON_EXEC") {
            return python.to_owned();
        }
        let found = ask::soon(|| self.look_for_python().into_vec());
        found.map_or_else(|| "python".into(), OsString::from_vec)
    }

    fn look_for_python(&self) -> OsString {
        let called = Path::new(self.around.called);
        let path = self.around.variable("PATH").unwrap_or_default();
        let directory = match called.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) => Some(parent.to_owned()),
            None => std::env::split_paths(path).find(|directory| directory.join(called).is_file()),
        };
        let beside = directory.filter(|_| super::is_name(self.around.called)).map(|directory| directory.join("python"));
        if let Some(python) = beside.filter(|python| python.is_file()) {
            return python.into();
        }
        let has = |name: &str| std::env::split_paths(path).any(|directory| directory.join(name).is_file());
        if !has("python") && has("python3") { "python3".into() } else { "python".into() }
    }
}

/// Refuses a value that is none of those that the table lists.
fn check_choice(row: &Row, given: &Given) -> Result<(), Problem> {
    let choices: Vec<&str> = row.value.split('|').collect();
    match choices.len() < 2 || choices.iter().any(|choice| given.text == *choice) {
        true => Ok(()),
        false => Err(given.problem(format!("\"{}\" is not one of {}", given.text.display(), choices.join(", ")))),
    }
}

/// Whether a word where the script should be is one that stands before a script elsewhere: `python`, `torchrun`.
fn is_launcher(script: &OsStr) -> bool {
    let is_version = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let is_named = script.to_str().is_some_and(|name| {
        ["torchrun", "rankrun"].contains(&name) || name.strip_prefix("python").is_some_and(is_version)
    });
    // Python also runs a directory that has a program.
    let script = Path::new(script);
    is_named && !ask::soon(|| script.is_file() || script.join("__main__.py").is_file()).unwrap_or(false)
}

/// A piece of an argument of the script.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Piece {
    Text(Vec<u8>),
    LocalRank,
}

/// An argument as torchrun reads it: `${local_rank}` or `$local_rank` is the local rank, `$$` is `$`, all else is text
/// (Python's `string.Template.safe_substitute`).
fn pieces(argument: &OsStr) -> Vec<Piece> {
    const NAME: &[u8] = b"local_rank";
    let (mut pieces, mut text) = (Vec::new(), Vec::new());
    let mut rest = argument.as_bytes();
    while let [byte, after @ ..] = rest {
        let braced = after.strip_prefix(b"{").and_then(|name| name.strip_prefix(NAME)?.strip_prefix(b"}"));
        let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let named = after.strip_prefix(NAME).filter(|after| !after.first().is_some_and(is_letter));
        match (*byte, braced.or(named), after) {
            (b'$', Some(after), _) => {
                pieces.extend([Piece::Text(std::mem::take(&mut text)), Piece::LocalRank]);
                rest = after;
            }
            (b'$', None, [b'$', after @ ..]) => {
                text.push(b'$');
                rest = after;
            }
            _ => {
                text.push(*byte);
                rest = after;
            }
        }
    }
    pieces.push(Piece::Text(text));
    pieces
}
