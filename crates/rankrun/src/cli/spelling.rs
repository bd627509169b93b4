//! Rewrites options as people type them to options that our parser accepts. Refuses everything else.
//!
//! It reads the words before the command. Our own options are accepted also with one dash, as mpiexec does, or with `_`
//! for `-`, as torchrun does. An option of another launcher is rewritten as ours or refused, by the table in
//! [`habits`](crate::habits). Single letters may be combined (`-vl`, `-n4`), except for those that print something
//! instead of running a job: `-hosts` must never be read as `-h`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Arg, Command};
use rankrun_core::suggest::nearest;

use crate::args;
use crate::habits::{self, Arity, Habit, Here};
use crate::message::Problem;

/// The options that print something instead of running a job.
const PRINTING: [&str; 4] = ["-h", "--help", "-V", "--version"];

/// Rewrites the options before a command of a job as ours. `is_only`: the job has no other command.
pub(crate) fn spell(command: &Command, words: &[OsString], is_only: bool) -> Result<Vec<OsString>, Problem> {
    let mut spelt = Vec::with_capacity(words.len());
    let mut rest = words;
    let mut printing = None;
    while let [word, after @ ..] = rest {
        if !word.as_bytes().starts_with(b"-") || word == "-" {
            break;
        }
        if word == "--" {
            spelt.push(word.clone());
            rest = after;
            break;
        }
        let option = Typed::of(word);
        if let Some(own) = option.own(command) {
            if PRINTING.iter().any(|name| own == *name) {
                printing = Some(option.name.clone());
            }
            let takes_next = args::takes_next_word(command, &own.to_string_lossy()).unwrap_or(false);
            spelt.push(own);
            rest = after;
            if let (true, [value, after @ ..]) = (takes_next, rest) {
                spelt.push(value.clone());
                rest = after;
            }
            continue;
        }
        let rows = habits::named(&option.name);
        if rows.is_empty() {
            return Err(unknown(command, &option.name));
        }
        let used = translate(&option, &rows, after, is_only, &mut spelt)?;
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
    Ok(spelt)
}

/// One option as typed.
struct Typed {
    word: OsString,
    /// The part before the equals sign.
    name: String,
    /// The part after it.
    value: Option<OsString>,
}

impl Typed {
    fn of(word: &OsStr) -> Typed {
        let bytes = word.as_bytes();
        let (name, value) = match bytes.iter().position(|byte| *byte == b'=') {
            Some(at) => (&bytes[..at], Some(OsString::from_vec(bytes[at + 1..].to_vec()))),
            None => (bytes, None),
        };
        Typed { word: word.to_owned(), name: String::from_utf8_lossy(name).into_owned(), value }
    }

    /// The word as our parser accepts it, if it is an option of ours.
    fn own(&self, command: &Command) -> Option<OsString> {
        let with_value = |name: &str| match &self.value {
            Some(value) => {
                let mut word = OsString::from(name);
                word.push("=");
                word.push(value);
                word
            }
            None => name.into(),
        };
        let is_long = |name: &str| command.get_arguments().any(|arg| arg.get_long() == Some(name));
        if let Some(long) = self.name.strip_prefix("--") {
            let long = long.replace('_', "-");
            return is_long(&long).then(|| with_value(&format!("--{long}")));
        }
        let bare = &self.name[1..];
        if bare.chars().count() > 1 {
            let theirs = habits::named(&self.name);
            // "-env A 1" is not "--env A".
            if theirs.iter().any(|habit| habit.names.contains(&self.name.as_str())) {
                return None;
            }
            if is_long(&bare.replace('_', "-")) {
                return Some(with_value(&format!("--{}", bare.replace('_', "-"))));
            }
            if !theirs.is_empty() {
                return None;
            }
            if let Some(number) = bare.strip_prefix("np").filter(|number| is_number_of_ranks(number)) {
                return Some(format!("--nproc={number}").into());
            }
        }
        self.is_cluster(command).then(|| self.word.clone())
    }

    /// Whether the word is one letter of ours, or several that may stand together.
    fn is_cluster(&self, command: &Command) -> bool {
        let text = self.word.to_string_lossy();
        let mut letters = text[1..].chars();
        while let Some(letter) = letters.next() {
            let Some(arg) = command.get_arguments().find(|arg| arg.get_short() == Some(letter)) else {
                return false;
            };
            let rest = letters.as_str();
            if PRINTING.iter().any(|name| name.strip_prefix('-') == Some(letter.encode_utf8(&mut [0; 4]))) {
                return text.chars().count() == 2;
            }
            if arg.get_action().takes_values() {
                return rest.is_empty() || is_value(arg, rest);
            }
        }
        true
    }
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

/// Rewrites an option of another launcher as ours, and returns how many of the words after it belong to it.
fn translate(
    option: &Typed,
    rows: &[&'static Habit],
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
        Here::SameForOne(_) | Here::Only(..) | Here::Refused(_) => return Err(refuse(option, rows, &values)),
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

fn refuse(option: &Typed, rows: &[&Habit], values: &[OsString]) -> Problem {
    let name = &option.name;
    let values: Vec<String> = values.iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let problem = Problem::usage(match (rows, &values[..]) {
        ([Habit { here: Here::Only(..), .. }, ..], [value]) if !habits::disagree(rows) => {
            format!("{name}: \"{value}\" is not supported")
        }
        _ => format!("{name} is an option of {}, and not of rankrun", launchers(rows)),
    });
    match rows {
        [row, others @ ..] if others.iter().all(|other| other.advice(&values) == row.advice(&values)) => {
            problem.hint(row.advice(&values))
        }
        _ => rows.iter().fold(problem, |problem, row| {
            let meaning = row.names.iter().find(|name| name.starts_with("--")).filter(|long| *long != name);
            let meaning = meaning.map(|long| format!(" ({long})")).unwrap_or_default();
            problem.hint(format!("for {}'s {name}{meaning}: {}", list(row.launchers), row.advice(&values)))
        }),
    }
}

fn launchers(rows: &[&Habit]) -> String {
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

/// An unknown option, with the nearest known one.
fn unknown(command: &Command, name: &str) -> Problem {
    let ours = args::long_names(command);
    let taken = habits::TABLE.iter().filter(|habit| !matches!(habit.here, Here::Refused(_)));
    let theirs = taken.flat_map(|habit| habit.names.iter().copied());
    // Every letter is near to every other.
    let near = nearest(name, ours.iter().map(String::as_str).chain(theirs)).filter(|_| name.len() > 2);
    Problem::usage(format!("unknown option \"{name}\"")).hint(match near {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => "\"rankrun --help\" lists the options".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(words: &[&str]) -> Result<Vec<String>, String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let spelt = spell(&args::job(), &words, true).map_err(|problem| problem.to_string())?;
        Ok(spelt.iter().map(|word| word.to_string_lossy().into_owned()).collect())
    }

    fn spelt(words: &[&str]) -> Vec<String> {
        spelled(words).unwrap_or_else(|problem| panic!("{words:?}: {problem}"))
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
        assert_eq!(spelt(&["-K", "--kill-on-bad-exit=1", "-host", "localhost", "a"]), ["a"]);
    }

    #[test]
    fn letters_stand_together_only_where_each_is_ours_and_none_prints_a_text() {
        assert_eq!(spelt(&["-vvl", "-n4", "-xA=1", "-l=x", "a"]), ["-vvl", "-n4", "-xA=1", "-l=x", "a"]);
        for word in ["-hosts", "-hn4", "-vh", "-Vl", "-xterm", "-nfoo", "-vlz", "-version1"] {
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
        for habit in habits::TABLE {
            for name in habit.names {
                let ours = args::long_names(&args::job());
                if ours.iter().any(|long| long == name) {
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
                    Here::Refused(_) => false,
                };
                let is_clear = !habits::disagree(&habits::named(name));
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
