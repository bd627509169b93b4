//! Finds the options of torchrun in its words and in `PET_*`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use rankrun_core::suggest::nearest;

use super::table::{Row, TABLE};
use crate::dialect::{Stop, Typed};
use crate::message::Problem;
use crate::{args, typography};

/// A value with the place where it stands: the option as typed, or the variable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Given {
    pub(super) origin: String,
    pub(super) text: OsString,
}

impl Given {
    /// An error in this value.
    pub(super) fn problem(&self, text: impl std::fmt::Display) -> Problem {
        Problem::usage(format!("{}: {text}", self.origin))
    }

    /// How it is left out.
    pub(super) fn left_out(&self) -> String {
        match self.origin.starts_with('-') {
            true => format!("leave {} out", self.origin),
            false => format!("unset {}", self.origin),
        }
    }

    /// The value as text.
    pub(super) fn utf8(&self) -> Result<&str, Problem> {
        self.text.to_str().ok_or_else(|| self.problem(format!("{:?} is not UTF-8 text", self.text)))
    }

    /// The value as a whole number.
    pub(super) fn number(&self) -> Result<u32, Problem> {
        let text = self.utf8()?;
        text.trim().parse().map_err(|_| self.problem(format!("\"{text}\" is not a whole number from 0 on")))
    }
}

/// What is asked for.
#[derive(Default, Debug)]
pub(super) struct Options {
    /// The values by the long names of their options; that of a flag is empty.
    values: BTreeMap<&'static str, Given>,
    /// Options of ours that stand among them.
    pub(super) ours: Vec<OsString>,
    /// The script or program, and its arguments.
    pub(super) command: Vec<OsString>,
}

impl Options {
    /// The value of an option.
    pub(super) fn get(&self, name: &str) -> Option<&Given> {
        self.values.get(name)
    }

    /// Whether a flag is given.
    pub(super) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// What is given, in the order of the table.
    pub(super) fn given(&self) -> impl Iterator<Item = (&'static Row, &Given)> {
        TABLE.iter().filter_map(|row| Some((row, self.values.get(row.name)?)))
    }
}

/// Reads the words after `torchrun`, and the variables for what they leave out.
pub(super) fn parse(words: &[OsString], env: &[(OsString, OsString)]) -> Result<Options, Stop> {
    let ours = args::job();
    let mut options = Options::default();
    let mut rest = words;
    let mut took = String::new();
    while let [word, after @ ..] = rest {
        typography::check_word(&ours, word)?;
        if word == "--" {
            rest = after;
            break;
        }
        if !word.as_bytes().starts_with(b"-") || word == "-" {
            break;
        }
        let used = one(&mut options, &ours, word, after)?;
        took = match &after[..used] {
            [] => String::new(),
            values => format!(": {} took {}", Typed::of(word).name, crate::words::quote_all(values)),
        };
        rest = &after[used..];
    }
    options.command = rest.to_vec();
    variables(&mut options, env)?;
    if options.command.is_empty() && !options.has("--print-completion") {
        let usage =
            "usage: rankrun torchrun [OPTIONS] SCRIPT [ARG]..., as in \"rankrun torchrun --nproc-per-node 2 train.py\"";
        return Err(Problem::usage(format!("no script given{took}")).hint(usage).into());
    }
    Ok(options)
}

/// Reads one option, and returns how many of the words after it belong to it.
fn one(options: &mut Options, ours: &clap::Command, word: &OsStr, after: &[OsString]) -> Result<usize, Stop> {
    let (row, typed) = match named(ours, word)? {
        Some(found) => found,
        None => return own(options, ours, word, after),
    };
    match row.name {
        "--help" => return Err(Stop::Help),
        "--version" => return Err(Stop::Version),
        _ => {}
    }
    let origin = typed.name.clone();
    let (text, used) = match (row.is_flag(), typed.value, after.first()) {
        (true, Some(value), _) if row.value.starts_with("[=") => (value, 0),
        (true, Some(_), _) => return Err(Problem::usage(format!("{origin}: it takes no value")).into()),
        (true, None, _) => (OsString::new(), 0),
        (false, Some(value), _) => (value, 0),
        (false, None, Some(value)) if !is_option(value) => (value.clone(), 1),
        (false, None, _) => {
            let hint = format!("it is written {} {}", row.name, row.value);
            return Err(Problem::usage(format!("{origin}: a value is missing")).hint(hint).into());
        }
    };
    typography::check_value(&origin, &text)?;
    options.values.insert(row.name, Given { origin, text });
    Ok(used)
}

/// Whether a word after an option cannot be its value, as argparse sees it: a negative number can.
fn is_option(word: &OsStr) -> bool {
    let bytes = word.as_bytes();
    bytes.len() > 1 && bytes[0] == b'-' && !bytes[1..].iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
}

/// The option that a word names, and its value if that is in the same word; `None` if it is none of torchrun's.
fn named(ours: &clap::Command, word: &OsStr) -> Result<Option<(&'static Row, Typed)>, Problem> {
    let typed = Typed::of(word);
    if !typed.name.starts_with("--") {
        let found = TABLE.iter().find_map(|row| Some((row, row.short.filter(|short| typed.name.starts_with(short))?)));
        let Some((row, short)) = found else { return Ok(None) };
        // "-r3" and "-r=3"; of a flag only the bare letter.
        let inline = word.as_bytes().get(short.len()..).filter(|rest| !rest.is_empty());
        return Ok(match inline {
            Some(_) if row.is_flag() => None,
            Some(rest) => {
                let value = OsStr::from_bytes(rest.strip_prefix(b"=").unwrap_or(rest)).to_owned();
                Some((row, Typed { name: short.to_owned(), value: Some(value) }))
            }
            None => Some((row, typed)),
        });
    }
    let name = typed.name.replace('_', "-");
    if let Some(row) = TABLE.iter().find(|row| row.name == name) {
        return Ok(Some((row, typed)));
    }
    let begin_so: Vec<&'static Row> = TABLE.iter().filter(|row| row.name.starts_with(&name)).collect();
    match begin_so[..] {
        [] => Ok(None),
        // "--nproc" is ours too, with the same meaning: the translator must see it.
        [row] => Ok(Some((row, typed))),
        _ if args::takes_next_word(ours, &typed.name).is_some() => Ok(None),
        _ => {
            let names: Vec<&str> = begin_so.iter().map(|row| row.name).collect();
            let problem = Problem::usage(format!("\"{}\" may be any of {}", typed.name, names.join(", ")));
            Err(problem.hint("write more of its name"))
        }
    }
}

/// An option of ours among those of torchrun.
fn own(options: &mut Options, ours: &clap::Command, word: &OsStr, after: &[OsString]) -> Result<usize, Stop> {
    let typed = Typed::of(word);
    let text = word.to_string_lossy();
    let is_short_of_ours = ["-x", "-v", "-vv", "-q"].iter().any(|short| typed.name == *short);
    let takes_next = match typed.name.starts_with("--") || is_short_of_ours {
        true => args::takes_next_word(ours, &text),
        false => None,
    };
    let Some(takes_next) = takes_next else { return Err(unknown(ours, &typed).into()) };
    let used = usize::from(takes_next).min(after.len());
    options.ours.push(word.to_owned());
    options.ours.extend_from_slice(&after[..used]);
    Ok(used)
}

fn unknown(ours: &clap::Command, typed: &Typed) -> Problem {
    let mut names: Vec<String> = TABLE.iter().map(|row| row.name.to_owned()).collect();
    names.extend(args::long_names(ours));
    let name = typed.name.replace('_', "-");
    let problem = Problem::usage(format!("unknown option \"{}\"", typed.name));
    if ["-n", "-np"].contains(&name.as_str()) {
        return problem.hint("the number of workers is written --nproc-per-node N");
    }
    if name.starts_with("--rdzv-") {
        let of_meeting: Vec<&str> =
            TABLE.iter().map(|row| row.name).filter(|name| name.starts_with("--rdzv-")).collect();
        return problem.hint(match nearest(&name, of_meeting.iter().copied()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("torchrun has {}", of_meeting.join(", ")),
        });
    }
    problem.hint(match nearest(&name, names.iter().map(String::as_str)) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => "\"rankrun torchrun --help\" lists the options".to_owned(),
    })
}

/// Adds what the variables say about options that were not typed.
fn variables(options: &mut Options, env: &[(OsString, OsString)]) -> Result<(), Problem> {
    for row in TABLE {
        let Some(variable) = row.variable() else { continue };
        let Some((_, text)) = env.iter().find(|(name, text)| *name == *variable && !text.is_empty()) else { continue };
        if options.has(row.name) {
            continue;
        }
        let given = Given { origin: variable, text: text.clone() };
        if row.is_flag() {
            let number: Option<i64> = text.to_str().and_then(|text| text.trim().parse().ok());
            match number {
                Some(0) => continue,
                Some(_) => {}
                None => return Err(given.problem(format!("\"{}\" is not 0 or 1", text.display()))),
            }
        }
        options.values.insert(row.name, given);
    }
    Ok(())
}
