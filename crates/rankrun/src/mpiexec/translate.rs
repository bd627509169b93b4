//! Walks along the words of mpiexec or mpirun and writes them as ours.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rankrun_core::foreign_codes::Codes;
use rankrun_core::hosts::{parse_file, parse_list};
use rankrun_core::outer::is_outer_identity;
use rankrun_core::suggest::nearest;

use super::binding::Binding;
use super::hosts::{Named, Places, Source};
use super::row::{HYDRA, OPEN_MPI, Part};
use super::table::{self, Row, Scope, Special, TABLE};
use super::values::{self, Placement, Resource};
use super::{files, lists, mca};
use crate::allocation;
use crate::dialect::{For, Here, Reading, Stop, Typed, Without, fill, literal, with_value};
use crate::message::Problem;
use crate::{args, ask, typography};

/// What the words are read against.
pub(crate) struct Around<'a> {
    /// The launcher as the user calls it.
    pub(crate) name: &'a OsStr,
    pub(crate) env: &'a [(OsString, OsString)],
    /// How many packages and NUMA nodes it has.
    pub(crate) packages: fn() -> u32,
    pub(crate) numa_nodes: fn() -> u32,
}

impl Around<'_> {
    fn variable(&self, name: &str) -> Option<&OsStr> {
        self.env.iter().find(|(have, value)| have == name && !value.is_empty()).map(|(_, value)| value.as_os_str())
    }
}

/// Reads the words after `mpiexec`.
pub(crate) fn read(words: &[OsString], around: &Around<'_>) -> Result<Reading, Stop> {
    let mut reader = Reader {
        around,
        ours: args::job(),
        job: Vec::new(),
        everywhere: Vec::new(),
        commands: Vec::new(),
        places: Places::default(),
        binding: Binding::named(super::family(around.name).unwrap_or_default()),
        without: Without::default(),
        codes: None,
        mca: Vec::new(),
        typed: Vec::new(),
        ssh: [None, None],
    };
    let family = super::family(around.name).unwrap_or_default();
    reader.places.note(family, family == HYDRA);
    for words in words.split(|word| word == ":") {
        reader.command_line(words, None)?;
    }
    reader.variables()?;
    reader.parameters_of_environment()?;
    Ok(reader.finish()?)
}

/// One command, with the words of ours before it.
#[derive(Default)]
struct CommandLine {
    count: Option<OsString>,
    words: Vec<OsString>,
    command: Vec<OsString>,
}

struct Reader<'a> {
    around: &'a Around<'a>,
    ours: clap::Command,
    /// Words of ours for the whole job.
    job: Vec<OsString>,
    /// Words about the environment that every command gets, before its own.
    everywhere: Vec<OsString>,
    commands: Vec<CommandLine>,
    places: Places,
    binding: Binding,
    without: Without,
    codes: Option<Codes>,
    /// MCA parameters of mpirun that options have set.
    mca: Vec<OsString>,
    /// What the options so far are about ([`Row::subject`]).
    typed: Vec<&'static str>,
    /// The ssh command, and further words, of MCA parameters.
    ssh: [Option<OsString>; 2],
}

impl Reader<'_> {
    /// Reads the options before a command, and the command. `file` is the file of command lines that it stands in.
    fn command_line(&mut self, words: &[OsString], file: Option<&str>) -> Result<(), Stop> {
        let mut line = CommandLine::default();
        let mut rest = words;
        let mut took = String::new();
        while let [word, after @ ..] = rest {
            typography::check_word(&self.ours, word)?;
            if word == "--" {
                rest = after;
                break;
            }
            if !word.as_bytes().starts_with(b"-") || word == "-" {
                break;
            }
            let option = Typed::of(word);
            let used = match table::named(&option.name) {
                Some(row) if row.reads_lines() => {
                    if line.count.is_some() || !line.words.is_empty() {
                        let problem =
                            option.problem("an option of one command stands before the file, which has the commands");
                        return Err(problem.hint("write -n and the like into the lines of the file").into());
                    }
                    self.lines_of_file(&option, after, file)?;
                    return Ok(());
                }
                Some(row) => self.take(&option, row, after, &mut line)?,
                None => self.own(word, &option, after, &mut line)?,
            };
            took = match &after[..used] {
                [] => String::new(),
                values => format!(": {} took {}", option.name, crate::words::quote_all(values)),
            };
            rest = &after[used..];
        }
        if rest.is_empty() {
            let place = file.map(|file| format!(" in \"{file}\"")).unwrap_or_default();
            let problem = Problem::usage(format!("no command given{place}{took}"));
            let usage = "usage: rankrun mpiexec [OPTIONS] COMMAND [ARG]..., as in \"rankrun mpiexec -n 4 ./solver\"";
            return Err(problem.hint(usage).into());
        }
        line.command = rest.to_vec();
        self.commands.push(line);
        Ok(())
    }

    /// `-configfile FILE`: the rest of the command line, one command in each line of the file.
    fn lines_of_file(&mut self, option: &Typed, after: &[OsString], outer: Option<&str>) -> Result<(), Stop> {
        let (path, used) = match (&option.value, after) {
            (Some(path), _) => (path, 0),
            (None, [path, ..]) => (path, 1),
            (None, []) => return Err(option.problem("a file is missing").into()),
        };
        let shown = path.to_string_lossy().into_owned();
        if let Some(outer) = outer {
            let problem = option.problem(format!("\"{outer}\" names another file of command lines"));
            return Err(problem.hint("write the lines of both into one file").into());
        }
        if let Some(extra) = after.get(used) {
            let problem = option.problem(format!("\"{}\" is an extra argument", extra.display()));
            return Err(problem
                .hint("the file has the commands: write options before it, and nothing after it")
                .into());
        }
        let text = read_bytes(option, path.as_ref())?;
        let lines = files::command_lines(&text).map_err(|error| option.problem(format!("\"{shown}\": {error}")))?;
        lines.iter().try_for_each(|words| self.command_line(words, Some(&shown)))
    }

    /// Takes an option by its row, and returns how many of the words after it belong to it.
    fn take(&mut self, option: &Typed, row: &Row, after: &[OsString], line: &mut CommandLine) -> Result<usize, Stop> {
        let (values, used) = values::values_of(option, row, after)?;
        if let Some(value) = values.first() {
            typography::check_value(&option.name, value)?;
        }
        self.places.note(row.launchers, false);
        self.binding.note(row.launchers);
        self.typed.push(row.subject());
        match row.here {
            Here::Same(words) | Here::Differs(words, _) => {
                let written = words.iter().map(|word| fill(word, values.first()));
                match row.scope {
                    Scope::Job => self.job.extend(written),
                    Scope::Command => line.words.extend(written),
                }
            }
            Here::Already(_) => {}
            Here::Without(what) => self.without.note(what, &option.name, &values),
            Here::Refused(advice) => {
                let text = format!("{} is not offered by rankrun", option.name);
                return Err(Problem::usage(text).hint(advice).into());
            }
            Here::Special(special, _) => {
                self.places.note(row.launchers, special.places_ranks());
                self.special(special, option, &values, line)?;
            }
        }
        Ok(used)
    }

    fn special(
        &mut self,
        special: Special,
        option: &Typed,
        values: &[OsString],
        line: &mut CommandLine,
    ) -> Result<(), Stop> {
        let first = values.first().map_or(OsStr::new(""), OsString::as_os_str);
        let bad = |error: String| option.problem(error);
        match special {
            Special::Count => line.count = Some(first.to_owned()),
            Special::Per(resource) => {
                self.per(positive(option, first)?, resource);
                if resource == Resource::Package {
                    self.binding.take(Part::MapBy, option, &format!("ppr:{}:socket", first.display()));
                }
            }
            Special::OnePerNode => self.per(1, Resource::Node),
            Special::RoundRobin => self.places.is_round_robin = true,
            Special::MapBy | Special::Ppr => {
                let prefix = if special == Special::Ppr { "ppr:" } else { "" };
                let text = format!("{prefix}{}", option.text(first)?);
                match values::map_by(&text).map_err(bad)? {
                    Placement::Per(count, resource) => self.per(count, resource),
                    Placement::Cyclic => self.places.by_node = true,
                    Placement::Seq => self.places.is_seq = true,
                    Placement::PerUncounted => self.places.is_uncounted = Some(option.clone()),
                    Placement::Places => {}
                }
                if values::oversubscribes(&text) {
                    self.job.push("--oversubscribe".into());
                }
                self.binding.take(Part::MapBy, option, &text);
            }
            // Intel MPI's "pin=yes;cell=core", of which it takes no notice either.
            Special::Binding(Part::BindTo) if first.as_bytes().contains(&b'=') => {
                self.without.note("not followed, as under Intel MPI", &option.name, values);
            }
            Special::Binding(part) => self.binding.take(part, option, option.text(first)?),
            Special::HostFile => self.host_file(option, Path::new(first))?,
            Special::HostsOrFile if ask::is_file(Path::new(first)) => self.host_file(option, Path::new(first))?,
            Special::Hosts | Special::HostsOrFile => {
                let hosts = parse_list(option.text(first)?)
                    .map_err(|error| option.problem(&error).hint_if(error.hint().map(str::to_owned)))?;
                let (source, command) = (Source::List(first.to_owned()), self.commands.len());
                self.places.named.push(Named { hosts, source, command, option: option.clone() });
            }
            Special::CommandLines => {}
            Special::Set { everywhere } => {
                let [name, value] = values else { return Ok(()) };
                let mut pair = name.clone();
                pair.push("=");
                pair.push(literal(value, For::Value));
                self.environment(everywhere, line).extend(["-x".into(), pair]);
            }
            Special::Everywhere(words) => {
                self.everywhere.extend(words.iter().map(|word| fill(word, values.first())));
            }
            Special::Drop { everywhere } => {
                let names = first.as_bytes().split(|byte| *byte == b',').filter(|name| !name.is_empty());
                let edits = names.flat_map(|name| ["--env-remove".into(), OsStr::from_bytes(name).to_owned()]);
                self.environment(everywhere, line).extend(edits);
            }
            Special::Mca(prefix) => {
                let [name, value] = values else { return Ok(()) };
                let origin = Typed { name: format!("{} {}", option.name, name.display()), value: None };
                self.parameter(origin, name, value)?;
                self.mca.push(name.clone());
                // The daemons that would read it do not exist.
                if prefix == "PRTE_MCA_" {
                    return Ok(());
                }
                let mut pair = OsString::from(prefix);
                pair.push(name);
                pair.push("=");
                pair.push(literal(value, For::Value));
                self.everywhere.extend(["-x".into(), pair]);
            }
            Special::SearchPath => {
                let pair = self.in_front("PATH", first);
                line.words.extend(["-x".into(), pair]);
            }
            Special::Prefix => {
                for (name, directory) in [("PATH", "bin"), ("LD_LIBRARY_PATH", "lib")] {
                    let pair = self.in_front(name, Path::new(first).join(directory).as_os_str());
                    self.everywhere.extend(["-x".into(), pair]);
                }
            }
            Special::Tool => self.tools(option, option.text(first)?)?,
            Special::ToolFile => self.tools(option, &read_text(option, first.as_ref())?.replace('\n', ";"))?,
            Special::TagPattern if first.is_empty() => {}
            Special::TagPattern => {
                let template = values::pattern(first, For::Tag).map_err(bad)?;
                self.job.push(with_value("--tag", &template));
            }
            Special::File(ours) => {
                let template = values::pattern(first, For::File).map_err(bad)?;
                self.job.push(with_value(ours, &template));
            }
            Special::Words(known) => self.words(known, option, first)?,
            Special::Strict => {
                let text = option.text(first)?;
                let names = Codes::OF_MPI.map(|codes| codes.name());
                let codes = Codes::OF_MPI.into_iter().find(|codes| codes.name() == text);
                let wrong = || option.problem(format!("\"{text}\" is not one of {}", names.join(", ")));
                self.codes = Some(codes.ok_or_else(wrong)?);
            }
            Special::Help => return Err(Stop::Help),
            Special::Version => return Err(Stop::Version),
        }
        Ok(())
    }

    /// Follows an MCA parameter of mpirun itself; one of the library is the library's.
    fn parameter(&mut self, origin: Typed, name: &OsStr, value: &OsStr) -> Result<(), Stop> {
        let Some(parameter) = name.to_str().and_then(mca::parameter) else { return Ok(()) };
        let mut take = |option: &str, value: Option<&OsStr>| {
            let row = table::named(option).expect("the table of parameters names options of the dialect");
            let typed = Typed { name: origin.name.clone(), value: value.map(OsStr::to_owned) };
            self.take(&typed, row, &[], &mut CommandLine::default()).map(|_| ())
        };
        match parameter {
            mca::Parameter::Option(option) => take(option, Some(value))?,
            mca::Parameter::Switch(option) if mca::is_true(value) => take(option, None)?,
            mca::Parameter::Switch(_) => {}
            mca::Parameter::HostFile => {
                self.host_file(&origin, Path::new(value))?;
                self.places.note(OPEN_MPI, true);
            }
            mca::Parameter::Interface if value.to_str().is_some_and(mca::is_interface) => take("-iface", Some(value))?,
            mca::Parameter::Interface => self.without.note(mca::NETWORK, &origin.name, &[value.to_owned()]),
            mca::Parameter::Agent => self.ssh[0] = Some(value.to_owned()),
            mca::Parameter::AgentWords => self.ssh[1] = Some(value.to_owned()),
            mca::Parameter::Without(what) => self.without.note(what, &origin.name, &[value.to_owned()]),
        }
        Ok(())
    }

    /// Follows MCA parameters of mpirun in the environment that no option has set.
    fn parameters_of_environment(&mut self) -> Result<(), Stop> {
        // Of two words of ours the later one counts.
        let (typed, words) = (self.typed.clone(), std::mem::take(&mut self.job));
        for (variable, value) in self.around.env.iter().filter(|(_, value)| !value.is_empty()) {
            // What an outer mpirun has set is no wish of the user.
            let Some(text) = variable.to_str().filter(|_| !is_outer_identity(variable)) else { continue };
            let name = text.strip_prefix("OMPI_MCA_").or_else(|| text.strip_prefix("PRTE_MCA_"));
            // Files of hosts are in the list of variables.
            let Some(name) = name.filter(|name| !name.ends_with("_default_hostfile")) else { continue };
            let is_typed = |option: &str| table::named(option).is_some_and(|row| typed.contains(&row.subject()));
            if self.mca.iter().all(|set| set != name) && !mca::option_of(name).is_some_and(is_typed) {
                self.parameter(Typed { name: text.to_owned(), value: None }, OsStr::new(name), value)?;
            }
        }
        self.job.extend(words);
        let is_given = self.job.iter().any(|word| word.as_bytes().starts_with(b"--ssh-command"));
        let [agent, words] = &self.ssh;
        if let Some(command) = mca::ssh_command(agent.as_deref(), words.as_deref()).filter(|_| !is_given) {
            self.job.push(with_value("--ssh-command", &command));
        }
        Ok(())
    }

    /// `--output TAG,DIR=logs`: a list of words, each with a meaning of its own.
    fn words(&mut self, known: &'static [table::Word], option: &Typed, list: &OsStr) -> Result<(), Stop> {
        for text in option.text(list)?.split([',', ':']).map(str::trim).filter(|text| !text.is_empty()) {
            let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
            let is = |word: &&table::Word, text: &str| word.name.eq_ignore_ascii_case(text);
            let found = known.iter().find(|word| is(word, text)).or_else(|| known.iter().find(|word| is(word, name)));
            // A switch may have a value: only the one that says no changes what it is.
            let says_no =
                value.is_some_and(|value| ["0", "no", "false", "off"].iter().any(|no| no.eq_ignore_ascii_case(value)));
            match found.map(|word| word.here) {
                Some(Here::Same(words) | Here::Differs(words, _)) => {
                    let takes_value = words.iter().any(|word| word.contains("{}"));
                    let value = value.map(OsString::from);
                    match (takes_value, &value) {
                        (true, None) => {
                            return Err(option.problem(format!("\"{name}\" needs a value: {name}=VALUE")).into());
                        }
                        (false, Some(_)) if says_no && found.is_some_and(|word| !is(&word, text)) => {}
                        _ => self.job.extend(words.iter().map(|word| fill(word, value.as_ref()))),
                    }
                }
                Some(Here::Without(what)) => self.without.note(what, &option.name, &[text.into()]),
                Some(Here::Already(_) | Here::Special(..)) => {}
                Some(Here::Refused(advice)) => {
                    return Err(option.problem(format!("\"{text}\" is not offered by rankrun")).hint(advice).into());
                }
                None => {
                    let names: Vec<&str> = known.iter().map(|word| word.name).collect();
                    let near = nearest(&name.to_uppercase(), names.iter().copied())
                        .map(|near| format!("did you mean \"{near}\"?"));
                    let problem = option.problem(format!("\"{name}\" is not one of {}", names.join(", ")));
                    return Err(problem.hint_if(near).into());
                }
            }
        }
        Ok(())
    }

    /// Tools that stand in front of the programs of some ranks.
    fn tools(&mut self, option: &Typed, text: &str) -> Result<(), Problem> {
        let text = literal(OsStr::new(text), For::File);
        let wraps = values::tools(&text.to_string_lossy()).map_err(|error| option.problem(error))?;
        self.everywhere.extend(wraps.iter().map(|wrap| format!("--wrap={wrap}").into()));
        Ok(())
    }

    /// So many ranks on each of these, where `-n` does not say it.
    fn per(&mut self, count: u32, resource: Resource) {
        let resources = match resource {
            Resource::Node => 1,
            Resource::Package => (self.around.packages)(),
            Resource::Numa => (self.around.numa_nodes)(),
        };
        // How many of them another machine has is not known: it is no bound.
        self.places.is_unbounded |= resource != Resource::Node;
        self.places.per_node = Some(count.saturating_mul(resources));
    }

    /// Where edits of the environment go.
    fn environment<'l>(&'l mut self, everywhere: bool, line: &'l mut CommandLine) -> &'l mut Vec<OsString> {
        if everywhere { &mut self.everywhere } else { &mut line.words }
    }

    /// `NAME=DIRECTORY:` and what the variable has.
    fn in_front(&self, name: &str, directory: &OsStr) -> OsString {
        let mut pair = OsString::from(name);
        pair.push("=");
        pair.push(literal(directory, For::Value));
        if let Some(have) = self.around.variable(name) {
            pair.push(":");
            pair.push(literal(have, For::Value));
        }
        pair
    }

    fn host_file(&mut self, option: &Typed, path: &Path) -> Result<(), Problem> {
        let text = read_text(option, path)?;
        let file = parse_file(&text).map_err(|error| {
            let text = format!("\"{}\": {error}", path.display());
            option.problem(text).hint_if(error.hint().map(str::to_owned))
        })?;
        // Each launcher has a syntax of its own for the number of ranks.
        match files::syntax(&text) {
            Some(files::Syntax::Colon) => self.places.note(HYDRA, true),
            Some(files::Syntax::Slots) => self.places.note(OPEN_MPI, true),
            None => {}
        }
        let (source, command) = (Source::File(path.to_owned()), self.commands.len());
        self.places.named.push(Named { hosts: file.hosts, source, command, option: option.clone() });
        Ok(())
    }

    /// Takes an option of ours, and returns how many of the words after it belong to it.
    fn own(&mut self, word: &OsStr, option: &Typed, after: &[OsString], line: &mut CommandLine) -> Result<usize, Stop> {
        let typed = word.to_string_lossy();
        let takes_next = option.name.strip_prefix("--").and_then(|_| args::takes_next_word(&self.ours, &typed));
        let Some(takes_next) = takes_next else { return Err(self.unknown(option).into()) };
        let id = args::id_of(&self.ours, &typed).unwrap_or_default();
        let words = match args::PER_COMMAND.contains(&id.as_str()) {
            true => &mut line.words,
            false => &mut self.job,
        };
        let used = usize::from(takes_next).min(after.len());
        words.push(word.to_owned());
        words.extend_from_slice(&after[..used]);
        Ok(used)
    }

    fn unknown(&self, option: &Typed) -> Problem {
        let problem = Problem::usage(format!("unknown option \"{}\"", option.name));
        // A number may stand right behind a letter elsewhere.
        let letters = option.name.trim_end_matches(|letter: char| letter.is_ascii_digit());
        if letters.len() < option.name.len() && table::named(letters).is_some_and(|row| row.words() == 1) {
            return problem.hint(format!("write {letters} {}", &option.name[letters.len()..]));
        }
        let theirs = TABLE.iter().flat_map(|row| row.names.iter().copied()).map(str::to_owned);
        let names: Vec<String> = theirs.chain(args::long_names(&self.ours)).collect();
        let bare = option.name.trim_start_matches('-');
        let near = nearest(bare, names.iter().map(|name| name.trim_start_matches('-')));
        let near = near.and_then(|near| names.iter().find(|name| name.trim_start_matches('-') == near));
        problem.hint(match near {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => "\"rankrun mpiexec --help\" lists the options".to_owned(),
        })
    }

    /// Takes the variables of the launchers that say what an option says.
    fn variables(&mut self) -> Result<(), Problem> {
        for (name, meaning) in lists::VARIABLES.iter().filter_map(|row| Some((row.name, row.meaning?))) {
            let Some(value) = self.around.variable(name) else { continue };
            let option = Typed { name: name.to_owned(), value: None };
            match meaning {
                lists::Meaning::HostFile if self.places.named.is_empty() => {
                    self.host_file(&option, Path::new(value))?;
                    self.places.note(if name.contains("MCA") { OPEN_MPI } else { HYDRA }, true);
                }
                lists::Meaning::PerNode if self.places.per_node.is_none() => {
                    self.places.note(HYDRA, true);
                    self.places.per_node = value.to_str().and_then(|text| text.parse().ok()).filter(|count| *count > 0);
                }
                lists::Meaning::Binding(part) if !self.typed.contains(&"-bind-to") => {
                    self.binding.take(part, &option, option.text(value)?);
                    self.binding.note(HYDRA);
                }
                lists::Meaning::HostFile | lists::Meaning::PerNode | lists::Meaning::Binding(_) => {}
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Reading, Problem> {
        let mut warnings = self.without.warnings();
        let counts: Vec<Option<u32>> = self
            .commands
            .iter()
            .map(|line| line.count.as_ref().and_then(|count| count.to_str()?.parse().ok()))
            .collect();
        let is_mpmd = self.commands.len() > 1;
        let mut words = self.job;
        self.places.oversubscribes = words.iter().any(|word| word == "--oversubscribe");
        words.extend(self.places.words(&counts, &mut warnings)?);
        if let Some(option) = self.places.is_uncounted.as_ref().filter(|_| counts.contains(&None)) {
            return Err(option.problem("it does not say how many ranks there are").hint("write -n N"));
        }
        let ranks = counts.iter().copied().sum::<Option<u32>>();
        let native = self.binding.words(ranks, self.places.oversubscribes)?;
        warnings.extend(native.notes);
        words.extend(native.words.into_iter().map(OsString::from));
        for (i, line) in self.commands.into_iter().enumerate() {
            if i > 0 {
                words.push(":".into());
            }
            let number = match line.count {
                Some(number) => Some(number),
                None if is_mpmd => {
                    let program = line.command.first().map(|word| word.display().to_string()).unwrap_or_default();
                    warnings.push(format!("-n is not given for {program}: starting 1 rank, as MPICH and Intel MPI do"));
                    Some("1".into())
                }
                None if self.places.say_the_number() => None,
                None => default_count(self.around, &mut warnings),
            };
            words.extend(number.into_iter().flat_map(|number| ["-n".into(), number]));
            words.extend(self.everywhere.iter().cloned());
            words.extend(line.words);
            if line.command.first().is_some_and(|word| word.as_bytes().starts_with(b"-")) {
                words.push("--".into());
            }
            words.extend(line.command);
        }
        Ok(Reading { words, is_one_command: false, warnings, codes: self.codes })
    }
}

/// The ranks of a command without `-n`: those that a resource manager has given to this machine, or one for each CPU. `None`
/// where it has given several machines: they say it.
fn default_count(around: &Around<'_>, warnings: &mut Vec<String>) -> Option<OsString> {
    // The number of all tasks is that of this machine only where it is the only one.
    let is_alone = lists::NODES.iter().all(|name| around.variable(name).is_none_or(|nodes| nodes == "1"))
        && around
            .variable("LSB_MCPU_HOSTS")
            .is_none_or(|hosts| hosts.to_string_lossy().split_whitespace().count() <= 2);
    let given = lists::TASKS.iter().find_map(|name| {
        let value = around.variable(name).filter(|_| is_alone)?;
        value.to_str()?.parse::<u32>().ok().filter(|count| *count > 0).map(|count| (name, count))
    });
    match given {
        Some((name, count)) => {
            warnings.push(format!("-n is not given: starting {count} ranks, by {name}"));
            Some(count.to_string().into())
        }
        None if !is_alone && allocation::is_there(around.env) => None,
        None => {
            warnings.push(
                "-n is not given: starting one rank for each CPU, as Open MPI and Intel MPI do; mpiexec of MPICH starts one"
                    .to_owned(),
            );
            Some("auto".into())
        }
    }
}

/// A number of ranks.
fn positive(option: &Typed, text: &OsStr) -> Result<u32, Problem> {
    let count = option.text(text)?.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| option.problem(format!("\"{}\" is not a number of ranks", text.display())))
}

/// The most of a file of hosts or of command lines that is read.
const MOST: u64 = 16 << 20;

fn read_bytes(option: &Typed, path: &Path) -> Result<Vec<u8>, Problem> {
    crate::file::read(path, MOST)
        .map_err(|error| option.problem(format!("cannot read \"{}\": {}", path.display(), rankrun_sys::reason(&error))))
}

fn read_text(option: &Typed, path: &Path) -> Result<String, Problem> {
    Ok(String::from_utf8_lossy(&read_bytes(option, path)?).into_owned())
}
