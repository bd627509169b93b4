//! Lines that call themselves errors: of loggers (logging, loguru, glog, spdlog), of command lines (click, argparse), of
//! programs that print `FATAL: …`; and a last line that reads like a complaint.

use super::{Accounts, Message, Recogniser, Strength, last};

pub(super) const ALL: &[Recogniser] = &[
    Recogniser { strength: Strength::Fatal, accounts: Accounts::Nothing, find: fatal },
    Recogniser { strength: Strength::Error, accounts: Accounts::Nothing, find: error },
    Recogniser { strength: Strength::Error, accounts: Accounts::Nothing, find: of_program },
    Recogniser { strength: Strength::Complaint, accounts: Accounts::Nothing, find: complaint },
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
        if severities.contains(&severity) && (!rest.is_empty() || word.contains(':')) {
            return Some(&line[at..]);
        }
        at += word.len();
    }
    None
}

/// `F1122 03:58:30.166395 12345 file.cc:69] text`: glog, and what torch's C++ part logs.
fn glog(line: &str, letter: char) -> Option<&str> {
    let bare = line.trim_start_matches('[');
    let digits = bare.strip_prefix(letter)?;
    let is_date =
        digits.len() > 5 && digits.bytes().take(4).all(|byte| byte.is_ascii_digit()) && digits[4..].starts_with(' ');
    let (_, text) = bare.split_once("] ").filter(|_| is_date)?;
    Some(text)
}

/// One line for people: runs of blanks become one.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What says only that it is over: the cause stands before it.
fn is_empty_phrase(text: &str) -> bool {
    const EMPTY: [&str; 12] = [
        "giving up",
        "aborting",
        "exiting",
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

fn marked(lines: &[&str], severities: &[&str], letter: char) -> Option<Message> {
    let said = |line: &str| {
        let text = from_severity(line, severities).or_else(|| glog(line, letter))?;
        (!is_empty_phrase(text)).then(|| words(text))
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

fn complaint(lines: &[&str]) -> Option<Message> {
    let at = last(lines, |line| !line.trim().is_empty() && super::abort_banner(line).is_none())?;
    let lower = lines[at].to_ascii_lowercase();
    let is_one = COMPLAINTS.iter().any(|word| lower.contains(word));
    let is_mild =
        ["warn", "w:", "info", "debug", "note", "retry", "0 error", "no error", "without error"].iter().any(|word| {
            lower.split_whitespace().take(4).collect::<Vec<_>>().join(" ").contains(word) || lower.contains("retrying")
        });
    (is_one && !is_mild && !is_empty_phrase(lines[at])).then(|| Message::words(at..at + 1, words(lines[at])))
}
