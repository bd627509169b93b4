//! Rewrites options as people type them to options that our parser accepts. Refuses everything else.
//!
//! It reads the words before the command. Our own options are accepted also with one dash, as mpiexec does, or with `_`
//! for `-`, as torchrun does. An option of another launcher is rewritten as ours or refused, by the table in
//! [`habits`](crate::habits). Single letters may be combined in any order (`-lv`, `-vn4`), except for those that
//! print something instead of running a job: `-hosts` must never be read as `-h`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Arg, Command};
use rankrun_core::suggest::nearest;

use crate::args;
use crate::dialect::{Typed, with_value};
use crate::habits::{self, Arity, Habit, Here};
use crate::message::Problem;
use crate::mpiexec;
use crate::subcommands;
use crate::typography;
use crate::words::quote;

/// The options that print something instead of running a job.
const PRINTING: [&str; 4] = ["-h", "--help", "-V", "--version"];

/// The option right before a command, or at the end of the words where no command follows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LastOption {
    /// As typed, without a value behind an equals sign.
    pub(crate) name: String,
    /// The id of the option of ours that it is, or that it was written as.
    pub(crate) id: Option<String>,
    /// The words after it that it took.
    pub(crate) values: Vec<OsString>,
    /// Whether it was typed with a value behind an equals sign.
    pub(crate) has_inline: bool,
}

/// The words of a command and the options before it, as our parser takes them.
#[derive(Debug)]
pub(crate) struct Spelt {
    pub(crate) words: Vec<OsString>,
    pub(crate) last: Option<LastOption>,
}

/// Rewrites the options before a command of a job as ours. `is_only`: the job has no other command.
pub(crate) fn spell(command: &Command, words: &[OsString], is_only: bool) -> Result<Spelt, Problem> {
    let mut spelt = Vec::with_capacity(words.len());
    let mut rest = words;
    let mut printing = None;
    let mut last = None;
    while let [word, after @ ..] = rest {
        typography::check_word(command, word)?;
        if !word.as_bytes().starts_with(b"-") || word == "-" {
            break;
        }
        if word == "--" {
            spelt.push(word.clone());
            rest = after;
            last = None;
            break;
        }
        let option = Typed::of(word);
        let start = spelt.len();
        let (used, at) = match own(command, word, &option) {
            Some(own) => {
                if own.iter().any(|own| PRINTING.iter().any(|name| own == *name)) {
                    printing = Some(option.name.clone());
                }
                let end = own.last().map(|own| own.to_string_lossy().into_owned()).unwrap_or_default();
                spelt.extend(own);
                let at = spelt.len() - 1;
                let takes_next = args::takes_next_word(command, &end).unwrap_or(false);
                let values = if takes_next { &after[..after.len().min(1)] } else { &[] };
                if let [value] = values {
                    typography::check_value(&option.name, value)?;
                }
                match values {
                    // A number below 0 is a value, which the option itself refuses, and not the next option.
                    [value] if is_negative(value) && end.starts_with("--") => {
                        spelt[at].push("=");
                        spelt[at].push(value);
                    }
                    values => spelt.extend_from_slice(values),
                }
                (values.len(), at)
            }
            None => (foreign(command, word, &option, after, is_only, &mut spelt)?, start),
        };
        let written = spelt.get(at);
        last = Some(LastOption {
            id: written.and_then(|word| args::id_of(command, &word.to_string_lossy())),
            values: after[..used].to_vec(),
            has_inline: option.value.is_some(),
            name: option.name,
        });
        rest = &after[used..];
    }
    if let Some(name) = printing
        && (!rest.is_empty() || !is_only)
    {
        return Err(Problem::usage(format!("{name} prints a text and starts nothing, and a command follows it"))
            .hint(format!("write \"rankrun {name}\" alone for the text, or leave {name} out to run the command")));
    }
    if let Some(word) = rest.iter().find(|word| [":::", "::::", ":::+"].iter().any(|colons| *word == colons)) {
        return Err(Problem::usage(format!("rankrun takes no list of arguments after \"{}\"", word.display()))
            .hint("every rank runs the same command, and knows its number by RANKRUN_RANK; a program that needs this word is called from a script"));
    }
    spelt.extend(rest.iter().cloned());
    Ok(Spelt { words: spelt, last })
}

/// `-1`, `-5s`.
fn is_negative(value: &OsStr) -> bool {
    matches!(value.as_bytes(), [b'-', digit, ..] if digit.is_ascii_digit())
}

/// The word as our parser accepts it, if it is an option of ours, or several letters of ours.
fn own(command: &Command, word: &OsStr, option: &Typed) -> Option<Vec<OsString>> {
    let written = |name: &str| match &option.value {
        Some(value) => with_value(name, value),
        None => name.into(),
    };
    let is_long = |name: &str| command.get_arguments().any(|arg| arg.get_long() == Some(name));
    if let Some(long) = option.name.strip_prefix("--") {
        let long = long.replace('_', "-");
        return is_long(&long).then(|| vec![written(&format!("--{long}"))]);
    }
    let bare = &option.name[1..];
    if bare.chars().count() > 1 {
        // "-env A 1" is not "--env A".
        if habits::TABLE.iter().any(|habit| habit.names.contains(&option.name.as_str())) {
            return None;
        }
        if is_long(&bare.replace('_', "-")) {
            return Some(vec![written(&format!("--{}", bare.replace('_', "-")))]);
        }
        if !habits::named(command, &option.name).is_empty() {
            return None;
        }
        if let Some(number) = bare.strip_prefix("np").filter(|number| is_number_of_ranks(number)) {
            return Some(vec![format!("--nproc={number}").into()]);
        }
    }
    cluster(command, word)
}

/// The word, if it is one letter of ours or several that may stand together. A tag without a template ends a word of
/// its own, since our parser would take what follows for the template.
fn cluster(command: &Command, typed: &OsStr) -> Option<Vec<OsString>> {
    let bytes = typed.as_bytes();
    let (mut words, mut start) = (Vec::new(), 1);
    let word = |from: usize, to: usize| OsString::from_vec([b"-", &bytes[from..to]].concat());
    for (at, letter) in bytes.iter().enumerate().skip(1) {
        let arg = short(command, char::from(*letter))?;
        let rest = &bytes[at + 1..];
        if is_printing(char::from(*letter)) {
            return (bytes.len() == 2).then(|| vec![typed.to_owned()]);
        }
        if arg.get_id() == "tag" && !rest.is_empty() && rest[0] != b'=' {
            words.push(word(start, at + 1));
            start = at + 1;
        } else if arg.get_action().takes_values() {
            let taken = rest.is_empty() || is_value(arg, &String::from_utf8_lossy(rest));
            return taken.then(|| {
                words.push(word(start, bytes.len()));
                words
            });
        }
    }
    words.push(word(start, bytes.len()));
    Some(words)
}

/// The option of ours with this letter.
fn short(command: &Command, letter: char) -> Option<&Arg> {
    command.get_arguments().find(|arg| arg.get_short() == Some(letter))
}

fn is_printing(letter: char) -> bool {
    PRINTING.iter().any(|name| name.strip_prefix('-') == Some(letter.encode_utf8(&mut [0; 4])))
}

/// An option of another launcher with its value right behind it (`-c4`), taken apart.
fn apart(command: &Command, word: &OsStr) -> Option<Typed> {
    let text = word.to_str()?;
    let end = text.find(|letter: char| !letter.is_alphabetic() && !"-_".contains(letter) || letter == '=')?;
    let (name, value) = (&text[..end], &text[end..]);
    let takes_value = |habit: &Habit| matches!(habit.arity(), Arity::One | Arity::AfterEquals);
    let is_option = !name.starts_with("--") && habits::named(command, name).iter().any(takes_value);
    is_option.then(|| Typed { name: name.to_owned(), value: Some(value.into()) })
}

/// Whether the text after a letter can be its value, and is not the rest of an unknown word.
fn is_value(arg: &Arg, rest: &str) -> bool {
    match arg.get_id().as_str() {
        "nproc" => is_number_of_ranks(rest.strip_prefix('=').unwrap_or(rest)),
        "tag" => rest.starts_with('='),
        _ => true,
    }
}

fn is_number_of_ranks(text: &str) -> bool {
    let text = text.strip_prefix('=').unwrap_or(text);
    ["auto", "gpu", "cpu"].contains(&text) || (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Takes or refuses what is no option of ours, and returns how many of the words after it belong to it.
fn foreign(
    command: &Command,
    word: &OsStr,
    option: &Typed,
    after: &[OsString],
    is_only: bool,
    spelt: &mut Vec<OsString>,
) -> Result<usize, Problem> {
    let rows = habits::named(command, &option.name);
    if !rows.is_empty() {
        return translate(option, &rows, after, is_only, spelt);
    }
    let Some(apart) = apart(command, word) else { return Err(unknown(command, option)) };
    let rows = habits::named(command, &apart.name);
    translate(&apart, &rows, &[], is_only, spelt)?;
    // It would be taken with its value apart.
    let value = apart.value.unwrap_or_default();
    match apart.name.len() {
        2 => Ok(0),
        _ => Err(unknown_option(&option.name).hint(format!("write {} {}", apart.name, quote(&value)))),
    }
}

/// Rewrites an option of another launcher as ours, and returns how many of the words after it belong to it.
fn translate(
    option: &Typed,
    rows: &[Habit],
    after: &[OsString],
    is_only: bool,
    spelt: &mut Vec<OsString>,
) -> Result<usize, Problem> {
    let [first, ..] = rows else { return Ok(0) };
    if habits::disagree(rows) {
        let value = option.value.as_ref().or(after.first()).cloned();
        return Err(refuse(option, rows, value.as_slice()));
    }
    let missing = || {
        Problem::usage(format!("{} needs a value", option.name))
            .hint(format!("it is written {} {}", option.name, first.value))
    };
    let (values, used): (Vec<OsString>, usize) = match (first.arity(), &option.value) {
        (Arity::None, Some(_)) => return Err(Problem::usage(format!("{} takes no value", option.name))),
        // No program is called so: it is meant for the value, which must stand behind an equals sign.
        (Arity::AfterEquals, None) if after.first().is_some_and(|word| word == "0" || word == "1") => {
            let value = &after[..1];
            let taken = matches!(first.here, Here::Only(accepted, _) if accepted.iter().any(|word| value[0] == *word));
            return Err(match taken {
                true => Problem::usage(format!("{} takes a value only behind an equals sign", option.name))
                    .hint(format!("leave out \"{0}\", or write {1}={0}", value[0].display(), option.name)),
                false => refuse(option, rows, value),
            });
        }
        (Arity::None, None) => (Vec::new(), 0),
        (Arity::AfterEquals, None) => (vec![OsString::new()], 0),
        (Arity::AfterEquals | Arity::One, Some(value)) => (vec![value.clone()], 0),
        (Arity::One, None) => (vec![after.first().ok_or_else(missing)?.clone()], 1),
        // Hydra takes "-genv NAME=VALUE" too, as one word after the option.
        (Arity::Two, _) => match after {
            [pair, ..] if pair.as_bytes().contains(&b'=') && option.value.is_none() => {
                let Typed { name, value, .. } = Typed::of(pair);
                (vec![name.into(), value.unwrap_or_default()], 1)
            }
            [name, value, ..] if option.value.is_none() => (vec![name.clone(), value.clone()], 2),
            _ => return Err(missing()),
        },
    };
    if first.value == "PORT"
        && values[0].to_str().and_then(|port| port.parse::<u16>().ok()).is_none_or(|port| port == 0)
    {
        return Err(Problem::usage(format!("{}: \"{}\" is not a port", option.name, values[0].display()))
            .hint("write a number from 1 to 65535, or leave it out: rankrun finds a port that is free"));
    }
    let write = |spelt: &mut Vec<OsString>, ours: &[&str]| {
        spelt.extend(ours.iter().map(|word| fill(word, &values)));
    };
    match first.here {
        // torchrun counts accelerators, and CPUs only where there are none.
        Here::Same(_) if first.names.contains(&"--nproc-per-node") && values[0] == "auto" => {
            write(spelt, &["--nproc=gpu-or-cpu"]);
        }
        Here::Same(ours) => write(spelt, ours),
        Here::SameForOne(ours) if is_only => write(spelt, ours),
        Here::Already(_) => {}
        Here::Only(accepted, _) if accepted.iter().any(|word| values[0] == *word) => {}
        _ => return Err(refuse(option, rows, &values)),
    }
    Ok(used)
}

/// One of our words, with the values of the option filled in.
fn fill(word: &str, values: &[OsString]) -> OsString {
    let mut filled = word.as_bytes().to_vec();
    let mut replace = |place: &[u8], value: &OsString| {
        if let Some(at) = filled.windows(place.len()).position(|bytes| bytes == place) {
            filled.splice(at..at + place.len(), value.as_bytes().iter().copied());
        }
    };
    match values {
        // The last placeholder first: a value may look like a placeholder.
        [name, value] => {
            replace(b"{2}", value);
            replace(b"{1}", name);
        }
        [value] => replace(b"{}", value),
        _ => {}
    }
    OsString::from_vec(filled)
}

fn refuse(option: &Typed, rows: &[Habit], values: &[OsString]) -> Problem {
    let name = &option.name;
    let values: Vec<String> = values.iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let problem = Problem::usage(match (rows, &values[..]) {
        ([Habit { here: Here::Only(..), .. }, ..], [value]) if !habits::disagree(rows) => {
            format!("{name}: \"{value}\" is not supported")
        }
        _ => format!("{name} is an option of {}, and not of rankrun", launchers(rows)),
    });
    let problem = match rows {
        [row, others @ ..] if others.iter().all(|other| other.advice(&values) == row.advice(&values)) => {
            problem.hint(row.advice(&values))
        }
        _ => rows.iter().fold(problem, |problem, row| {
            let bare = |name: &str| name.trim_start_matches('-').to_owned();
            let meaning = row.names.iter().find(|name| name.starts_with("--")).filter(|long| bare(long) != bare(name));
            let meaning = meaning.map(|long| format!(" ({long})")).unwrap_or_default();
            problem.hint(format!("for {}'s {name}{meaning}: {}", list(row.launchers), row.advice(&values)))
        }),
    };
    let dialect = format!("\"rankrun {} {name} ...\" takes the options of mpiexec and mpirun", mpiexec::SUBCOMMAND);
    let is_said = rows.iter().any(|row| matches!(row.here, Here::InDialect(mpiexec::SUBCOMMAND, _)));
    let is_of_mpi = rows
        .iter()
        .flat_map(|row| row.launchers)
        .any(|of| matches!(of, habits::Launcher::Mpiexec | habits::Launcher::Mpirun));
    problem.hint_if((is_of_mpi && mpiexec::takes(name) && !is_said).then_some(dialect))
}

fn launchers(rows: &[Habit]) -> String {
    let mut launchers: Vec<habits::Launcher> = rows.iter().flat_map(|row| row.launchers).copied().collect();
    launchers.sort_unstable();
    launchers.dedup();
    list(&launchers)
}

fn list(launchers: &[habits::Launcher]) -> String {
    let names: Vec<String> = launchers.iter().map(ToString::to_string).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

/// An unknown option, with what may have been meant.
fn unknown(command: &Command, option: &Typed) -> Problem {
    let name = &option.name;
    let own_short = |name: &str| {
        name.strip_prefix('-').filter(|rest| rest.len() == 1).and_then(|rest| short(command, rest.chars().next()?))
    };
    if let (Some(arg), Some(value)) = (own_short(name), &option.value) {
        return match value.is_empty() {
            _ if !arg.get_action().takes_values() => Problem::usage(format!("{name} takes no value")),
            true => Problem::usage(format!("{name} needs a value"))
                .hint(format!("it is written {name} {}", value_name(arg))),
            // Of the letters with a value only -n is particular about it.
            false => {
                Problem::usage(format!("{name}: \"{}\" is not a number of ranks, auto, cpu or gpu", value.display()))
            }
        };
    }
    let problem = unknown_option(name);
    let list = "\"rankrun --help\" lists the options";
    let is_ours = |letter| short(command, letter).is_some();
    if let Some(letters) = name.strip_prefix('-').filter(|letters| letters.chars().count() > 1)
        && letters.chars().all(is_ours)
    {
        return problem.hint(written_apart(command, letters));
    }
    let bare = name.trim_start_matches('-').replace('_', "-");
    let mut letters = bare.chars();
    if let (Some(letter), None) = (letters.next(), letters.next()) {
        return problem.hint(match name.starts_with("--") && short(command, letter).is_some() {
            true => format!("did you mean \"-{letter}\"?"),
            false => list.to_owned(),
        });
    }
    if subcommands::SUBCOMMANDS.iter().any(|(command, ..)| *command == bare) {
        return problem.hint(format!("did you mean \"rankrun {bare}\"?"));
    }
    if ["background", "bg", "daemon", "daemonize"].contains(&&*bare) {
        return problem.hint("--detach returns when all ranks run, and prints the id of the job");
    }
    let ours = args::long_names(command);
    // What is taken only with some values is refused with others, and an option that is refused is no way out.
    let taken =
        habits::all().filter(|habit| matches!(habit.here, Here::Same(_) | Here::SameForOne(_) | Here::Already(_)));
    let names = ours.iter().map(String::as_str).chain(taken.flat_map(|habit| habit.names.iter().copied()));
    // "--no-x" is the opposite of "--x", and not a slip.
    let is_opposite = |other: &str| bare.strip_prefix("no").is_some_and(|rest| rest.trim_start_matches('-') == other);
    let names: Vec<(&str, &str)> =
        names.map(|name| (name.trim_start_matches('-'), name)).filter(|(other, _)| !is_opposite(other)).collect();
    let near = nearest(&bare, names.iter().map(|(bare, _)| *bare));
    let near = near.and_then(|near| names.iter().find(|(bare, _)| *bare == near));
    problem.hint(near.map_or(list.to_owned(), |(_, near)| format!("did you mean \"{near}\"?")))
}

fn unknown_option(name: &str) -> Problem {
    Problem::usage(format!("unknown option \"{name}\""))
}

fn value_name(arg: &Arg) -> String {
    arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string).unwrap_or_default()
}

/// How letters that are all ours, but cannot stand together, are written.
fn written_apart(command: &Command, letters: &str) -> String {
    if let Some(letter) = letters.chars().find(|letter| is_printing(*letter)) {
        return format!("-{letter} prints a text, and stands alone");
    }
    let takes_next = |letter: char| args::takes_next_word(command, &format!("-{letter}")) == Some(true);
    let (last, first): (Vec<char>, Vec<char>) = letters.chars().partition(|letter| takes_next(*letter));
    let words: Vec<String> = first
        .iter()
        .chain(&last)
        .map(|letter| {
            let value =
                short(command, *letter).filter(|_| takes_next(*letter)).map(|arg| format!(" {}", value_name(arg)));
            format!("-{letter}{}", value.unwrap_or_default())
        })
        .collect();
    format!("a letter with a value is the last of its word: write {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(words: &[&str]) -> Result<Vec<String>, String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let spelt = spell(&args::job(), &words, true).map_err(|problem| problem.to_string())?;
        Ok(spelt.words.iter().map(|word| word.to_string_lossy().into_owned()).collect())
    }

    fn spelt(words: &[&str]) -> Vec<String> {
        spelled(words).unwrap_or_else(|problem| panic!("{words:?}: {problem}"))
    }

    #[test]
    fn an_option_of_a_launcher_on_top_of_torchs_is_said_to_be_its_own() {
        for (words, launcher) in [
            (&["--mixed-precision", "bf16", "a.py"][..], "accelerate"),
            (&["--mixed_precision=bf16", "a.py"], "accelerate"),
            (&["--multi-gpu", "a.py"], "accelerate"),
        ] {
            let problem = spelled(words).expect_err("it is refused");
            let name = words[0].split('=').next().unwrap_or_default();
            let text = format!("{name} is an option of {launcher}, and not of rankrun");
            assert!(problem.contains(&text), "{words:?}: {problem}");
        }
    }

    #[test]
    fn np_is_taken_where_options_are_and_left_alone_elsewhere() {
        assert_eq!(spelt(&["-np", "2", "./a", "-np", "3"]), ["--nproc=2", "./a", "-np", "3"]);
        assert_eq!(spelt(&["-np=2", "./a"]), ["--nproc=2", "./a"]);
        assert_eq!(spelt(&["-np2", "./a"]), ["--nproc=2", "./a"]);
        assert_eq!(spelt(&["-nproc", "2", "./a"]), ["--nproc", "2", "./a"]);
        assert_eq!(spelt(&["--wdir", "-np", "-np", "2", "a"]), ["--wdir", "-np", "--nproc=2", "a"]);
        assert_eq!(spelt(&["-vl", "-np", "2", "a"]), ["-vl", "--nproc=2", "a"], "-l takes no word after it");
        assert_eq!(spelt(&["--", "-np", "2"]), ["--", "-np", "2"]);
    }

    #[test]
    fn options_of_others_that_mean_the_same_are_written_as_ours() {
        assert_eq!(spelt(&["-genv", "A", "{}", "-env", "B", "{1}", "a"]), ["-x", "A={}", "-x", "B={1}", "a"]);
        assert_eq!(spelt(&["-genv", "A=1", "a"]), ["-x", "A=1", "a"]);
        assert_eq!(spelt(&["--nproc_per_node=gpu", "--standalone", "a"]), ["--nproc=gpu", "a"]);
        assert_eq!(spelt(&["--nproc-per-node", "auto", "a"]), ["--nproc=gpu-or-cpu", "a"]);
        assert_eq!(spelt(&["--log_dir=x", "-timeout", "3", "a"]), ["--log-dir=x", "--timeout", "3", "a"]);
        assert_eq!(spelt(&["-K", "--kill-on-bad-exit=1", "-launcher", "ssh", "a"]), ["a"]);
        assert_eq!(spelt(&["-host", "a,b", "-perhost", "2", "a"]), ["--hosts=a,b", "--ppn=2", "a"]);
    }

    #[test]
    fn letters_stand_together_only_where_each_is_ours_and_none_prints_a_text() {
        assert_eq!(spelt(&["-vvl", "-n4", "-xA=1", "-l=x", "a"]), ["-vvl", "-n4", "-xA=1", "-l=x", "a"]);
        for word in ["-hostz", "-hn4", "-vh", "-Vl", "-xterm", "-nfoo", "-vlz", "-version1"] {
            assert!(spelled(&[word, "a"]).is_err(), "{word}");
        }
    }

    #[test]
    fn a_text_is_printed_only_where_no_command_waits_to_be_run() {
        assert_eq!(spelt(&["-n", "2", "-help"]), ["-n", "2", "--help"]);
        for words in [&["-h", "./a"][..], &["--version", "-n", "2", "./a"], &["-V", "--", "./a"]] {
            assert!(spelled(words).is_err(), "{words:?}");
        }
        let help = [OsString::from("--help")];
        assert!(spell(&args::job(), &help, false).is_err(), "another command follows");
    }

    #[test]
    fn every_row_is_taken_or_refused_as_the_table_says() {
        let command = args::job();
        for habit in habits::all() {
            for name in habit.names {
                // Not where it is ours, nor where a row of the table stands for that of a dialect.
                let is_ours = own(&command, name.as_ref(), &Typed::of(name.as_ref())).is_some();
                if is_ours || habits::named(&command, name).iter().all(|row| row.here != habit.here) {
                    continue;
                }
                let mut words = match habit.arity() {
                    Arity::None | Arity::AfterEquals => vec![*name],
                    Arity::One => vec![name, "7"],
                    Arity::Two => vec![name, "A", "7"],
                };
                words.push("./a");
                let taken = match habit.here {
                    Here::Same(_) | Here::SameForOne(_) | Here::Already(_) => true,
                    Here::Only(values, _) => habit.arity() == Arity::AfterEquals && values.contains(&""),
                    _ => false,
                };
                let is_clear = !habits::disagree(&habits::named(&command, name));
                assert_eq!(spelled(&words).is_ok(), taken && is_clear, "{words:?}: {:?}", spelled(&words));
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn no_word_but_those_that_ask_for_a_text_prints_one(word in "-{1,2}[a-zA-Z]{1,6}(=[a-z]{0,2})?") {
            let words = [OsString::from(&word), "./a".into()];
            let is_printed = |words: &[OsString]| {
                matches!(crate::invocation::read(words.to_vec()), Ok(crate::invocation::Invocation::Print(_)))
            };
            proptest::prop_assert!(!is_printed(&words));
            let asks = ["-h", "--help", "-help", "-V", "--version", "-version"].contains(&word.as_str());
            proptest::prop_assert_eq!(is_printed(&words[..1]), asks);
        }
    }
}
