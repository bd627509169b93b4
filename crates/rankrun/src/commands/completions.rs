//! `rankrun completions`: prints a shell's completion script. The scripts are in `completions/`; the options are filled in from
//! their definitions.

use std::fmt::Write as _;

use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, Command, ValueHint};

use crate::args;
use crate::subcommands;

/// A shell whose completions are tested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shell {
    Bash,
    Fish,
    Zsh,
}

impl Shell {
    /// Its name, as people type it.
    pub(crate) const NAMES: [&str; 3] = ["bash", "fish", "zsh"];

    pub(crate) fn named(name: &str) -> Option<Shell> {
        let at = Shell::NAMES.iter().position(|have| *have == name)?;
        [Shell::Bash, Shell::Fish, Shell::Zsh].get(at).copied()
    }
}

/// The script of a shell.
pub(crate) fn script(shell: Shell) -> String {
    let job = crate::texts::described(args::job);
    // The opposites of switches are hidden in the help, which would be long with them.
    let is_offered = |arg: &&Arg| arg.get_long().is_some_and(|long| !arg.is_hide_set() || long.starts_with("no-"));
    let options: Vec<Opt> = job.get_arguments().filter(is_offered).map(Opt::of).collect();
    let subcommands = subcommands::SUBCOMMANDS.map(|(_, about, make)| (make(), about));
    match shell {
        Shell::Bash => bash(&options, &subcommands),
        Shell::Fish => fish(&options, &subcommands),
        Shell::Zsh => zsh(&options, &subcommands),
    }
}

/// The signals that programs handle to save their work.
const SIGNALS: &[(&str, &str)] = &[
    ("INT", "as by ^C"),
    ("TERM", "the default after a failure"),
    ("HUP", "as when a terminal closes"),
    ("QUIT", "as by ^\\"),
    ("USR1", "for programs that handle it"),
    ("USR2", "for programs that handle it"),
];

/// What an option takes.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Takes {
    Nothing,
    /// One of these words, each with its meaning, and possibly other text.
    Words(Vec<(String, String)>),
    Directory,
    File,
    /// The name of a variable.
    Variable,
    /// A program, perhaps after ranks and a colon.
    Program,
    /// The id of a running job.
    Job,
    Text,
}

/// An option as the scripts need it.
struct Opt {
    id: String,
    short: Option<char>,
    long: Option<String>,
    help: String,
    value: String,
    takes: Takes,
    /// Its value stands behind an equals sign or is left out.
    is_optional: bool,
    is_repeated: bool,
}

impl Opt {
    fn of(arg: &Arg) -> Opt {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let value = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
        Opt {
            id: arg.get_id().to_string(),
            short: arg.get_short(),
            long: arg.get_long().map(str::to_owned),
            help,
            value: value.unwrap_or_default(),
            takes: takes(arg),
            is_optional: arg.is_require_equals_set(),
            is_repeated: matches!(arg.get_action(), ArgAction::Append | ArgAction::Count),
        }
    }

    fn names(&self) -> Vec<String> {
        let short = self.short.map(|letter| format!("-{letter}"));
        short.into_iter().chain(self.long.as_ref().map(|long| format!("--{long}"))).collect()
    }

    /// Whether the next word is its value.
    fn takes_next_word(&self) -> bool {
        self.takes != Takes::Nothing && !self.is_optional
    }
}

fn takes(arg: &Arg) -> Takes {
    if !arg.get_action().takes_values() {
        return Takes::Nothing;
    }
    let words = |words: &[(&str, &str)]| {
        Takes::Words(words.iter().map(|(word, help)| ((*word).to_owned(), (*help).to_owned())).collect())
    };
    match arg.get_id().as_str() {
        "nproc" => words(&[("auto", "one rank for each CPU"), ("gpu", "one rank for each GPU")]),
        "stdin" => {
            words(&[("none", "nobody"), ("all", "every rank"), ("0", "rank 0"), ("shared", "the rank that reads")])
        }
        "job" => Takes::Job,
        "stop-signal" => words(SIGNALS),
        "gpus-per-rank" => words(&[("none", "every rank sees all GPUs"), ("1", "one for each rank")]),
        "env" | "env-remove" => Takes::Variable,
        "wrap" => Takes::Program,
        _ => {
            let described = |value: &PossibleValue| {
                (value.get_name().to_owned(), value.get_help().map(ToString::to_string).unwrap_or_default())
            };
            let values: Vec<(String, String)> = arg.get_possible_values().iter().map(described).collect();
            match arg.get_value_hint() {
                _ if !values.is_empty() => Takes::Words(values),
                ValueHint::DirPath => Takes::Directory,
                ValueHint::FilePath | ValueHint::AnyPath => Takes::File,
                _ => Takes::Text,
            }
        }
    }
}

/// The options and arguments of a subcommand.
fn parts(command: &Command) -> (Vec<Opt>, Vec<Takes>) {
    let (positional, options): (Vec<&Arg>, Vec<&Arg>) = command.get_arguments().partition(|arg| arg.is_positional());
    let help = Arg::new("help").long("help").short('h').help("Print help").action(ArgAction::Help);
    let options = options.into_iter().map(Opt::of).chain([Opt::of(&help)]).collect();
    (options, positional.into_iter().map(takes).collect())
}

/// The words after `rankrun` that mean this subcommand: its name, and for a dialect the names of all launchers that speak it.
fn words_for(name: &str) -> Vec<&str> {
    let others = crate::mpiexec::other_names().filter(|other| crate::mpiexec::subcommand(other) == Some(name));
    let others = others.map(|other| -> &str { other });
    std::iter::once(name).chain(others).collect()
}

/// The words after `rankrun` that mean a subcommand.
fn all_words(subcommands: &[(Command, &str)]) -> String {
    subcommands.iter().flat_map(|(command, _)| words_for(command.get_name())).collect::<Vec<_>>().join(" ")
}

/// The options of another launcher's command line, which `rankrun NAME` takes. A program follows them.
fn dialect(name: &str) -> Option<Vec<String>> {
    match name {
        "mpiexec" => Some(crate::mpiexec::names()),
        "torchrun" => Some(crate::torchrun::names()),
        _ => None,
    }
}

/// The first part of a help text: enough for a menu.
fn brief(help: &str) -> &str {
    help.split([':', ';']).next().unwrap_or(help)
}

fn all_names(options: &[Opt]) -> String {
    options.iter().flat_map(Opt::names).collect::<Vec<_>>().join(" ")
}

fn names_of(subcommands: &[(Command, &str)]) -> String {
    subcommands.iter().map(|(command, _)| command.get_name()).collect::<Vec<_>>().join(" ")
}

fn words_of(words: &[(String, String)]) -> String {
    words.iter().map(|(word, _)| word.as_str()).collect::<Vec<_>>().join(" ")
}

fn bash(options: &[Opt], subcommands: &[(Command, &str)]) -> String {
    let complete = |takes: &Takes| match takes {
        Takes::Words(words) => format!("_rankrun_words \"$word\" \"{}\"", words_of(words)),
        Takes::Directory => "_rankrun_filenames -d \"$word\"".to_owned(),
        Takes::File => "_rankrun_filenames -f \"$word\"".to_owned(),
        Takes::Variable => "_rankrun_words \"$word\" \"$(compgen -e)\"".to_owned(),
        // bash has cut the word at a colon.
        Takes::Program => "_rankrun_programs \"${word##*:}\"".to_owned(),
        Takes::Job => "_rankrun_words \"$word\" \"$(_rankrun_jobs)\"".to_owned(),
        Takes::Text | Takes::Nothing => ":".to_owned(),
    };
    let mut values = String::new();
    for option in options.iter().filter(|option| option.takes != Takes::Nothing) {
        // Writing into a string does not fail.
        let _ = writeln!(values, "        {}) {} ;;", option.names().join(" | "), complete(&option.takes));
    }
    let mut cases = String::new();
    for (command, _) in subcommands {
        let (options, positional) = parts(command);
        let position = positional.first().map_or(":".to_owned(), complete);
        let name = command.get_name();
        let (names, position) = match dialect(name) {
            Some(names) => (names.join(" "), "_rankrun_programs \"$word\"; _rankrun_filenames -f \"$word\"".to_owned()),
            None => (all_names(&options), position),
        };
        let name = words_for(name).join(" | ");
        // As above.
        let _ = writeln!(
            cases,
            "        {name}) if [[ $word == -* ]]; then _rankrun_words \"$word\" \"{names}\"; else {position}; fi ;;"
        );
    }
    let _ = writeln!(cases, "        help) _rankrun_words \"$word\" \"{}\" ;;", names_of(subcommands));
    let valued: Vec<String> = options.iter().filter(|option| option.takes_next_word()).flat_map(Opt::names).collect();
    include_str!("../../completions/rankrun.bash")
        .replace("@values@", values.trim_end())
        .replace("@subcommands@", cases.trim_end())
        .replace("@valued@", &valued.join(" | "))
        .replace("@options@", &all_names(options))
        .replace("@names@", &names_of(subcommands))
        .replace("@words@", &all_words(subcommands))
}

/// A text between the single quotes of a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn zsh(options: &[Opt], subcommands: &[(Command, &str)]) -> String {
    let described = |words: &[(String, String)], indent: &str| -> String {
        let entry = |(word, help): &(String, String)| quoted(&format!("{word}:{}", help.replace(':', "\\:")));
        words.iter().map(|pair| format!("{indent}{}\n", entry(pair))).collect()
    };
    let mut functions = String::new();
    let mut action = |id: &str, takes: &Takes| match takes {
        Takes::Words(words) => {
            // Writing into a string does not fail.
            let _ = writeln!(
                functions,
                "_rankrun_values_{id}() {{\n    local -a values=(\n{}    )\n    _describe -t values value values\n}}\n",
                described(words, "        ")
            );
            format!("_rankrun_values_{id}")
        }
        Takes::Directory => "_files -/".to_owned(),
        Takes::File => "_files".to_owned(),
        Takes::Variable => "_parameters -g \"*export*\"".to_owned(),
        Takes::Program => "_command_names -e".to_owned(),
        Takes::Job => "_rankrun_jobs".to_owned(),
        Takes::Text | Takes::Nothing => " ".to_owned(),
    };
    let escape = |text: &str| text.replace('\\', "\\\\").replace('[', "\\[").replace(']', "\\]").replace(':', "\\:");
    let mut spec = |option: &Opt| {
        let names = option.names();
        let ends = match (&option.takes, option.is_optional) {
            (Takes::Nothing, _) => ["", ""],
            (_, true) => ["-", "=-"],
            (_, false) => ["+", "="],
        };
        let value = match (&option.takes, option.is_optional) {
            (Takes::Nothing, _) => String::new(),
            // One that may be left out has two colons.
            (takes, optional) => {
                let colons = if optional { "::" } else { ":" };
                format!("{colons}{}:{}", escape(&option.value), action(&option.id.replace('-', "_"), takes))
            }
        };
        let exclusive = if option.is_repeated { "*".to_owned() } else { format!("({})", names.join(" ")) };
        let ended = |name: &String| format!("{name}{}", ends[usize::from(name.starts_with("--"))]);
        let spellings: Vec<String> = names.iter().map(ended).collect();
        let spellings = match &spellings[..] {
            [only] => only.clone(),
            several => format!("'{{{}}}'", several.join(",")),
        };
        format!("'{exclusive}{spellings}[{}]{value}'", escape(brief(&option.help)).replace('\'', r"'\''"))
    };
    let specs: Vec<String> = options.iter().map(|option| format!("        {} \\", spec(option))).collect();
    let mut cases = String::new();
    for (command, _) in subcommands {
        let (options, positional) = parts(command);
        if let Some(names) = dialect(command.get_name()) {
            // As above.
            let _ = writeln!(
                cases,
                "            {}) if [[ $PREFIX == -* ]]; then compadd -- {}; else _command_names -e; _files; fi; return ;;",
                words_for(command.get_name()).join("|"),
                names.join(" "),
            );
            continue;
        }
        let mut specs: Vec<String> = options.iter().map(&mut spec).collect();
        specs.extend(positional.iter().map(|takes| match takes {
            Takes::Words(words) => format!("'1:argument:({})'", words_of(words)),
            Takes::Job => "'1:job:_rankrun_jobs'".to_owned(),
            _ => "'1:file:_files'".to_owned(),
        }));
        let name = command.get_name();
        // As above.
        let _ = writeln!(
            cases,
            "            {name}) shift words; (( CURRENT-- )); _arguments -S {}; return ;;",
            specs.join(" ")
        );
    }
    // As above.
    let names = names_of(subcommands);
    let _ = writeln!(
        cases,
        "            help) shift words; (( CURRENT-- )); _arguments '1:command of rankrun:({names})'; return ;;"
    );
    let listed: Vec<(String, String)> = subcommands
        .iter()
        .map(|(command, about)| (command.get_name().to_owned(), (*about).to_owned()))
        .chain([("help".to_owned(), "Print help".to_owned())])
        .collect();
    include_str!("../../completions/_rankrun")
        .replace("@functions@\n", &functions)
        .replace("@subcommands@", described(&listed, "            ").trim_end())
        .replace("@subcommand_cases@", cases.trim_end())
        .replace("@options@", &specs.join("\n"))
}

fn fish(options: &[Opt], subcommands: &[(Command, &str)]) -> String {
    let quote = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
    let described = |words: &[(String, String)]| {
        let pairs: Vec<String> = words.iter().map(|(word, help)| format!("{word}\\t{}", quote(help))).collect();
        pairs.join(" ")
    };
    let value = |takes: &Takes| match takes {
        Takes::Nothing => String::new(),
        Takes::Words(words) => format!(" -x -a {}", quote(&described(words))),
        Takes::Directory => " -x -a '(__fish_complete_directories (commandline -ct))'".to_owned(),
        Takes::File => " -r -F".to_owned(),
        Takes::Variable => " -x -a '(set -nx)'".to_owned(),
        Takes::Program => " -x -a '(__rankrun_programs)'".to_owned(),
        Takes::Job => " -x -a '(__rankrun_jobs)'".to_owned(),
        Takes::Text => " -x".to_owned(),
    };
    let line = |condition: &str, option: &Opt| {
        let short = option.short.map(|letter| format!(" -s {letter}")).unwrap_or_default();
        let long = option.long.as_ref().map(|long| format!(" -l {long}")).unwrap_or_default();
        let value = if option.is_optional { String::new() } else { value(&option.takes) };
        format!("complete -c rankrun -n {condition}{short}{long} -d {}{value}", quote(brief(&option.help)))
    };
    let mut lines = String::new();
    for (command, about) in subcommands {
        let name = command.get_name();
        let within = format!("'__rankrun_in_subcommand {}'", words_for(name).join(" "));
        // Writing into a string does not fail.
        let _ = writeln!(lines, "complete -c rankrun -n __rankrun_is_first -f -a {name} -d {}", quote(about));
        if let Some(names) = dialect(name) {
            // As above.
            let _ = writeln!(lines, "complete -c rankrun -n {within} -F -a {}", quote(&names.join(" ")));
            // As above.
            let _ = writeln!(lines, "complete -c rankrun -n {within} -a '(__rankrun_programs)'");
            continue;
        }
        let (options, positional) = parts(command);
        for option in &options {
            // As above.
            let _ = writeln!(lines, "{}", line(&within, option));
        }
        for takes in &positional {
            let argument = match takes {
                Takes::Words(words) => format!(" -f -a {}", quote(&words_of(words))),
                Takes::Job => " -f -a '(__rankrun_jobs)'".to_owned(),
                _ => " -F".to_owned(),
            };
            let _ = writeln!(lines, "complete -c rankrun -n {within}{argument}");
        }
    }
    let names = names_of(subcommands);
    // As above.
    let _ = writeln!(lines, "complete -c rankrun -n __rankrun_is_first -f -a help -d 'Print help'");
    let _ = writeln!(lines, "complete -c rankrun -n '__rankrun_in_subcommand help' -f -a {}", quote(&names));
    let of_job: Vec<String> = options.iter().map(|option| line("__rankrun_at_options", option)).collect();
    let valued: Vec<String> = options.iter().filter(|option| option.takes_next_word()).flat_map(Opt::names).collect();
    include_str!("../../completions/rankrun.fish")
        .replace("@subcommands@", lines.trim_end())
        .replace("@options@", &of_job.join("\n"))
        .replace("@valued@", &valued.join(" "))
        .replace("@words@", &all_words(subcommands))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_the_scripts_is_filled() {
        for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
            let script = script(shell);
            let place = script.lines().find(|line| {
                line.contains('@') && !line.contains("$@") && !line.contains("(@)") && !line.contains("[@]")
            });
            assert_eq!(place, None);
        }
    }
}
