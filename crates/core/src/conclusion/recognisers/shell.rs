//! What bash, dash and zsh say, and what a shell says of a child that died.

use super::message::{Accounts, Message, Recogniser, Strength, last};

pub(super) const ALL: &[Recogniser] = &[
    Recogniser {
        strength: Strength::Named,
        accounts: Accounts::Codes(&[126, 127]),
        find: not_run,
        name: "shell_not_run",
    },
    Recogniser { strength: Strength::Error, accounts: Accounts::Nothing, find: complaint, name: "shell_complaint" },
    Recogniser {
        strength: Strength::Manner,
        accounts: Accounts::HandedOn,
        find: child_killed,
        name: "shell_child_killed",
    },
];

/// What a shell says of a line of its script: `main.sh: line 2: text` (bash), `main.sh: 2: text` (dash), `zsh:1: text`.
fn said(line: &str) -> Option<&str> {
    let (script, rest) = line.split_once(": ")?;
    // Of the command after bash's `-c`.
    let rest = rest.strip_prefix("-c: ").unwrap_or(rest);
    if let Some((script, number)) = script.split_once(':') {
        // A compiler and a warning of Python write `main.c:1: ` too.
        return number.parse::<u32>().ok().filter(|_| script.ends_with("sh")).map(|_| rest);
    }
    let (number, text) = rest.split_once(": ")?;
    let number = number.strip_prefix("line ").unwrap_or(number);
    (number.parse::<u32>().is_ok() && !script.contains(' ')).then_some(text)
}

/// A command that could not be run.
fn not_run(lines: &[&str]) -> Option<Message> {
    const ENDS: [&str; 7] = [
        ": command not found",
        ": not found",
        ": No such file or directory",
        ": Permission denied",
        ": Exec format error",
        ": Is a directory",
        ": cannot execute: required file not found",
    ];
    let fits = |text: &str| text.starts_with("command not found: ") || ENDS.iter().any(|end| text.ends_with(end));
    let at = last(lines, |line| said(line).is_some_and(fits) || env_not_found(line))?;
    let text = said(lines[at]).unwrap_or(lines[at]);
    // dash says `exec: ` where the command was to replace the shell.
    Some(Message::words(at..at + 1, text.strip_prefix("exec: ").unwrap_or(text)))
}

/// `env: ‘foo’: No such file or directory`, `exec: foo: not found`
fn env_not_found(line: &str) -> bool {
    line.starts_with("env: ") && line.ends_with(": No such file or directory")
}

fn complaint(lines: &[&str]) -> Option<Message> {
    // After a command that it has not found a shell goes on, or exits with 127.
    let is_complaint = |text: &str| !is_death(text) && !text.ends_with(": command not found");
    let at = last(lines, |line| said(line).is_some_and(is_complaint))?;
    // The line of the script, below what is wrong with it.
    let is_quoted = said(lines[at]).is_some_and(|text| text.starts_with('`') && text.ends_with('\''));
    let what = at.checked_sub(1).filter(|&before| is_quoted && said(lines[before]).is_some()).unwrap_or(at);
    Some(Message::words(what..at + 1, lines[what]))
}

/// What bash and dash print for a child that a signal ended.
const DEATHS: [&str; 9] = [
    "Segmentation fault",
    "Aborted",
    "Killed",
    "Bus error",
    "Illegal instruction",
    "Floating point exception",
    "Bad system call",
    "Trace/breakpoint trap",
    "File size limit exceeded",
];

fn is_death(text: &str) -> bool {
    let text = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
    DEATHS.iter().any(|death| text.starts_with(death))
}

/// `main.sh: line 1: 29120 Segmentation fault      ./crash`, or `Segmentation fault` alone (dash).
fn child_killed(lines: &[&str]) -> Option<Message> {
    let is_alone = |line: &str| {
        DEATHS.iter().any(|death| line.strip_prefix(death).is_some_and(|rest| ["", " (core dumped)"].contains(&rest)))
    };
    let at = last(lines, |line| is_alone(line) || said(line).is_some_and(is_death))?;
    let text = said(lines[at]).unwrap_or(lines[at]).trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
    let mut words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(death) = DEATHS.iter().find(|death| words.starts_with(*death)) {
        let command = words[death.len()..].trim_start_matches(" (core dumped)").trim().to_owned();
        if !command.is_empty() {
            words = format!("{death}: {command}");
        }
    }
    Some(Message::words(at..at + 1, words))
}
