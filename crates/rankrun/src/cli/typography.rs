//! Dashes and quotes as word processors and web pages write them, where a shell wants those of a keyboard.

use std::ffi::OsStr;

use clap::Command;

use crate::message::Problem;
use crate::{args, habits};

/// Hyphens and dashes that are not the one of the keyboard.
const DASHES: &[char] =
    &['\u{2010}', '\u{2011}', '\u{2012}', '\u{2013}', '\u{2014}', '\u{2015}', '\u{2212}', '\u{fe63}', '\u{ff0d}'];

/// Quotes that no shell knows.
const QUOTES: &[char] = &['\u{2018}', '\u{2019}', '\u{201a}', '\u{201c}', '\u{201d}', '\u{201e}'];

/// Refuses a word in the place of an option or a command that begins with such a dash or quote.
pub(crate) fn check_word(command: &Command, word: &OsStr) -> Result<(), Problem> {
    let text = word.to_string_lossy();
    let quotes = text.chars().filter(|letter| QUOTES.contains(letter)).count();
    if text.starts_with(QUOTES) || (text.starts_with('-') && text.ends_with(QUOTES) && quotes == 1) {
        return Err(quote_problem(&text));
    }
    let bare = text.trim_start_matches(|letter| letter == '-' || DASHES.contains(&letter));
    let dashes = &text[..text.len() - bare.len()];
    if bare.is_empty() || !dashes.contains(DASHES) {
        return Ok(());
    }
    let name = bare.split('=').next().unwrap_or(bare);
    let long = format!("--{name}");
    let has_dash = |wanted: &str| habits::named(command, wanted).iter().any(|habit| habit.names.contains(&wanted));
    let is_letter = name.chars().count() == 1;
    let is_ours = args::long_names(command).contains(&long);
    let is_long = !is_letter && (is_ours || has_dash(&long) && !has_dash(&format!("-{name}")));
    let meant = format!("{}{bare}", if is_long { "--" } else { "-" });
    Err(Problem::usage(format!("\"{text}\" begins with a typographic dash")).hint(format!("write {meant}")))
}

/// Refuses a value that begins with such a quote and is cut off at the next blank: the shell has not seen the quote.
pub(crate) fn check_value(option: &str, value: &OsStr) -> Result<(), Problem> {
    let text = value.to_string_lossy();
    let is_text = ["--tag", "-l", "-x", "--env"].contains(&option);
    let is_closed = text.chars().filter(|letter| QUOTES.contains(letter)).count() > 1;
    match text.starts_with(QUOTES) && !(is_text && is_closed) {
        true => Err(quote_problem(&text)),
        false => Ok(()),
    }
}

fn quote_problem(text: &str) -> Problem {
    Problem::usage(format!("{text} has a typographic quote, which is no quote for a shell")).hint("write ' or \"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(word: &str) -> Option<String> {
        check_word(&args::job(), OsStr::new(word)).err().and_then(|problem| problem.hints.into_iter().next())
    }

    #[test]
    fn an_error_about_a_typographic_dash_names_the_option() {
        for (typed, meant) in [
            ("–n", "write -n"),
            ("−n", "write -n"),
            ("—np", "write -np"),
            ("–tag", "write --tag"),
            ("–-log-dir=x", "write --log-dir=x"),
            ("—oversubscribe", "write --oversubscribe"),
        ] {
            assert_eq!(hint(typed).as_deref(), Some(meant), "{typed}");
        }
    }

    #[test]
    fn an_error_about_a_typographic_quote_names_the_plain_one() {
        for word in ["‘./solver", "“./solver”", "--args’"] {
            assert_eq!(hint(word).as_deref(), Some("write ' or \""), "{word}");
        }
        assert!(check_value("--wrap", OsStr::new("‘0:gdb")).is_err());
        assert!(check_value("-x", OsStr::new("A=“b”")).is_ok());
        for word in ["-n", "--tag=“{rank}”", "solver", "a–b", "-", "--", ""] {
            assert_eq!(hint(word), None, "{word}");
        }
    }
}
