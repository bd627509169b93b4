//! Lines that call themselves errors: of loggers (logging, loguru, glog, spdlog), of command lines (click, argparse), of
//! programs that print `FATAL: …`; and a last line that reads like a complaint.

use super::message::{Accounts, Message, Recogniser, Strength, file_and_line, last};
use super::mpi::abort_banner;

pub(super) const ALL: &[Recogniser] = &[
    Recogniser { strength: Strength::Named, accounts: Accounts::Abort, find: glog_fatal, name: "glog_fatal" },
    Recogniser { strength: Strength::Fatal, accounts: Accounts::Nothing, find: fatal, name: "fatal_line" },
    Recogniser { strength: Strength::Error, accounts: Accounts::Nothing, find: error, name: "error_line" },
    Recogniser { strength: Strength::Error, accounts: Accounts::Nothing, find: of_program, name: "program_error" },
    Recogniser { strength: Strength::Complaint, accounts: Accounts::Nothing, find: complaint, name: "complaint" },
];

const FATAL: [&str; 5] = ["FATAL", "CRITICAL", "PANIC", "EMERG", "ALERT"];
const ERROR: [&str; 3] = ["ERROR", "SEVERE", "ERR"];
/// Words in front of the severity: a date, a time, a process, a logger, a place.
const MOST_WORDS_BEFORE: usize = 6;

/// What a line says from its severity on. In capitals that may stand after a time and the like; else it begins the line,
/// and a colon follows.
fn from_severity<'a>(line: &'a str, severities: &[&str]) -> Option<&'a str> {
    let is_ours = |word: &str| severities.iter().any(|known| word.eq_ignore_ascii_case(known));
    let bare = line.trim_start();
    let (first, rest) = bare.split_once(':').unwrap_or((bare, ""));
    if !rest.trim().is_empty()
        && is_ours(first.trim_matches(['[', ']', '*', ' ']).split(' ').next().unwrap_or_default())
    {
        return Some(bare);
    }
    let mut at = 0;
    for word in line.split_whitespace().take(MOST_WORDS_BEFORE) {
        at += line[at..].find(word)?;
        let severity = word.trim_matches(|c: char| !c.is_alphanumeric());
        let severity = severity.split(':').next().unwrap_or(severity);
        let rest = line[at + word.len()..].trim();
        // spdlog writes `[critical]`.
        let is_bracketed = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).is_some_and(is_ours);
        if (severities.contains(&severity) || is_bracketed) && (!rest.is_empty() || word.contains(':')) {
            return Some(&line[at..]);
        }
        at += word.len();
    }
    None
}

/// `F1122 03:58:30.166395 12345 file.cc:69] text`: glog, absl, and what torch's C++ part logs; glog 0.6 writes the year too.
fn glog(line: &str, letter: char) -> Option<(&str, &str)> {
    let (date, rest) = line.trim_start_matches('[').strip_prefix(letter)?.split_once(' ')?;
    let is_date = [4, 8].contains(&date.len()) && date.bytes().all(|byte| byte.is_ascii_digit());
    let (place, text) = rest.split_once("] ").filter(|_| is_date)?;
    Some((place.rsplit(' ').next().unwrap_or(place), text))
}

/// A line of glog that ends the program, and the stack that glog prints after it.
fn glog_fatal(lines: &[&str]) -> Option<Message> {
    let at = last(lines, |line| glog(line, 'F').is_some())?;
    let (place, text) = glog(lines[at], 'F')?;
    let is_stack = |line: &&&str| line.starts_with("*** Check failure stack trace") || line.starts_with("    @ ");
    let depth = lines[at + 1..].iter().take_while(is_stack).count();
    Some(Message::words(at..at + 1 + depth, words(text)).at(file_and_line(place)))
}

/// One line for people: runs of blanks become one.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What says only that it is over, so that the cause stands before it, or nothing.
fn is_empty_phrase(text: &str) -> bool {
    const EMPTY: [&str; 13] = [
        "giving up",
        "aborting",
        "exiting",
        "exiting now",
        "aborted",
        "failed",
        "error",
        "shutting down",
        "terminating",
        "goodbye",
        "bye",
        "stopping",
        "program terminated",
    ];
    let text = text.trim_matches(|c: char| !c.is_alphanumeric()).to_ascii_lowercase();
    let said = text.rsplit(": ").next().unwrap_or(&text);
    let said = said.rsplit(":root:").next().unwrap_or(said).rsplit(':').next().unwrap_or(said);
    EMPTY.contains(&said.trim_matches(|c: char| !c.is_alphanumeric()))
}

/// Whether a line only counts something: `FATAL: 0`, `Error rate: 0.1`.
fn is_number(text: &str) -> bool {
    !text.rsplit(": ").next().unwrap_or(text).contains(char::is_alphabetic)
}

fn marked(lines: &[&str], severities: &[&str], letter: char) -> Option<Message> {
    let said = |line: &str| {
        let text = from_severity(line, severities).or_else(|| glog(line, letter).map(|(_, text)| text))?;
        (!is_empty_phrase(text) && !is_number(text)).then(|| words(text))
    };
    let at = last(lines, |line| said(line).is_some())?;
    Some(Message::words(at..at + 1, said(lines[at])?))
}

fn fatal(lines: &[&str]) -> Option<Message> {
    marked(lines, &FATAL, 'F')
}

fn error(lines: &[&str]) -> Option<Message> {
    marked(lines, &ERROR, 'E')
}

/// `train.py: error: argument --epoch: invalid int value: 'x'` (argparse).
fn of_program(lines: &[&str]) -> Option<Message> {
    let at = last(lines, |line| {
        let Some((program, text)) = line.split_once(": error: ") else { return false };
        !program.is_empty() && program.split(' ').count() <= 3 && !text.is_empty()
    })?;
    let (_, text) = lines[at].split_once(": error: ")?;
    Some(Message::words(at..at + 1, text))
}

/// Words by which a last line is taken as the reason of the exit that follows it.
const COMPLAINTS: [&str; 40] = [
    "error",
    "fail",
    "cannot",
    "can't",
    "could not",
    "couldn't",
    "unable",
    "invalid",
    "not found",
    "no such",
    "denied",
    "missing",
    "mismatch",
    "diverge",
    "nan ",
    "overflow",
    "underflow",
    "exceed",
    "unexpected",
    "undefined",
    "illegal",
    "bad ",
    "corrupt",
    "too many",
    "too few",
    "too large",
    "too small",
    "too long",
    "out of",
    "refused",
    "unknown",
    "unsupported",
    "not supported",
    "not allowed",
    "must be",
    "singular",
    "negative",
    "inconsistent",
    "stopping:",
    "abort:",
];

/// Lines that say only that it is over, after a complaint: `tar: Error is not recoverable: exiting now`.
const MOST_FAREWELLS: usize = 2;

fn complaint(lines: &[&str]) -> Option<Message> {
    let is_said = |line: &str| !line.trim().is_empty() && abort_banner(line).is_none();
    let end = last(lines, is_said)? + 1;
    let at = last(&lines[..end], |line| is_said(line) && !is_empty_phrase(line))?;
    if end - at > MOST_FAREWELLS + 1 {
        return None;
    }
    let lower = lines[at].to_ascii_lowercase();
    let is_one = COMPLAINTS.iter().any(|word| lower.contains(word));
    let begin = lower.split_whitespace().take(4).collect::<Vec<_>>().join(" ");
    let is_mild = ["warn", "w:", "info", "debug", "note", "retry"].iter().any(|word| begin.contains(word))
        || ["retrying", "0 error", "no error", "without error"].iter().any(|word| lower.contains(word));
    // An option of a help text, a table, the last line of pytest and of unittest.
    let is_none = ["-", "|", "│", "=", "ok ("].iter().any(|start| lower.trim_start().starts_with(start));
    (is_one && !is_mild && !is_none && !is_number(lines[at])).then(|| Message::words(at..end, words(lines[at])))
}
