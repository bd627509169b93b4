//! What comes of the words of another launcher, and the parts from which it is made.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rankrun_core::foreign_codes::Codes;

use crate::message::Problem;

/// A command line of another launcher, as ours.
#[derive(Debug)]
pub(crate) struct Reading {
    /// The words after `rankrun`.
    pub(crate) words: Vec<OsString>,
    /// Whether there is one command, in which a word ":" is an argument like any other.
    pub(crate) is_one_command: bool,
    /// What is not done, and what was not said.
    pub(crate) warnings: Vec<String>,
    /// Whose exit codes are wanted, if not ours.
    pub(crate) codes: Option<Codes>,
}

/// Why no job comes of the words.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A text is asked for.
    Help,
    Version,
    Text(String),
    Problem(Problem),
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Stop {
        Stop::Problem(problem)
    }
}

/// One option as typed: its name, and the value behind an equals sign.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Typed {
    pub(crate) name: String,
    pub(crate) value: Option<OsString>,
}

impl Typed {
    pub(crate) fn of(word: &OsStr) -> Typed {
        let bytes = word.as_bytes();
        let end = bytes.iter().position(|byte| *byte == b'=').unwrap_or(bytes.len());
        let value = bytes.get(end + 1..).map(|value| OsString::from_vec(value.to_vec()));
        Typed { name: String::from_utf8_lossy(&bytes[..end]).into_owned(), value }
    }

    pub(crate) fn problem(&self, text: impl fmt::Display) -> Problem {
        Problem::usage(format!("{}: {text}", self.name))
    }

    pub(crate) fn text<'v>(&self, value: &'v OsStr) -> Result<&'v str, Problem> {
        value.to_str().ok_or_else(|| self.problem(format!("{value:?} is not UTF-8 text")))
    }
}

/// What is not done, with the options that asked for it.
#[derive(Default, Debug)]
pub(crate) struct Without(BTreeMap<&'static str, Vec<String>>);

impl Without {
    /// Notes an option that asks for something which is not done.
    pub(crate) fn note(&mut self, what: &'static str, option: &str, values: &[OsString]) {
        let mut text = option.to_owned();
        for value in values {
            text.push(' ');
            text.push_str(&crate::words::quote(value));
        }
        let options = self.0.entry(what).or_default();
        if !options.contains(&text) {
            options.push(text);
        }
    }

    /// A warning for each thing that is not done.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.0.iter().map(|(what, options)| format!("{}: {what}", options.join(", "))).collect()
    }
}
