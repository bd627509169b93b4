//! pytest, unittest and GoogleTest.

use super::{Accounts, Message, Recogniser, Strength, last};

pub(super) const ALL: &[Recogniser] = &[
    Recogniser { strength: Strength::Named, accounts: Accounts::Codes(&[1, 2]), find: pytest },
    Recogniser { strength: Strength::Named, accounts: Accounts::Codes(&[1]), find: unittest },
    Recogniser { strength: Strength::Named, accounts: Accounts::Codes(&[1]), find: google_test },
];

fn and_more(first: &str, count: usize) -> String {
    match count {
        0 | 1 => first.to_owned(),
        count => format!("{first} (and {} more)", count - 1),
    }
}

/// The short summary: `FAILED test_x.py::test_a - assert 1 == 2`.
fn pytest(lines: &[&str]) -> Option<Message> {
    let title = last(lines, |line| line.starts_with('=') && line.contains(" short test summary info "))?;
    let is_case = |line: &&str| line.starts_with("FAILED ") || line.starts_with("ERROR ");
    let cases: Vec<&str> = lines[title + 1..].iter().copied().filter(is_case).collect();
    let end = (title + 1..lines.len()).find(|&at| lines[at].starts_with('=')).map_or(lines.len(), |at| at + 1);
    let first = *cases.first()?;
    // The summary of a file that cannot be imported names only the file; the reason stands on a line of its own.
    let reason = || lines[..title].iter().rev().find_map(|line| line.strip_prefix("E   ")).map(str::trim);
    let message = match reason().filter(|_| !first.contains(" - ")) {
        Some(reason) => format!("{first} - {reason}"),
        None => first.to_owned(),
    };
    Some(Message::words(title..end, and_more(&message, cases.len())))
}

/// `FAIL: test_a (x.T.test_a)`, its traceback, and at the end `FAILED (failures=1)`.
fn unittest(lines: &[&str]) -> Option<Message> {
    let end = last(lines, |line| line.starts_with("FAILED (") && line.ends_with(')'))?;
    let is_case = |at: &usize| {
        (lines[*at].starts_with("FAIL: ") || lines[*at].starts_with("ERROR: "))
            && lines[..*at].last().is_some_and(|line| line.starts_with("===="))
    };
    let cases: Vec<usize> = (0..end).filter(is_case).collect();
    let first = *cases.first()?;
    let rule =
        (first + 2..end).find(|&at| lines[at].starts_with("----") || lines[at].starts_with("====")).unwrap_or(end);
    let why = (first..rule).rev().find(|&at| !lines[at].is_empty() && !lines[at].starts_with(' '))?;
    let place = super::place(lines[first..rule].iter().copied()).map(|(file, line, _)| (file, Some(line)));
    let message = and_more(&format!("{} - {}", lines[first], lines[why]), cases.len());
    Some(Message::words(first..end + 1, message).at(place))
}

/// `[  FAILED  ] Suite.Test`
fn google_test(lines: &[&str]) -> Option<Message> {
    let listed = last(lines, |line| line.starts_with("[  FAILED  ] ") && line.ends_with(" listed below:"));
    let from = listed.map_or(0, |at| at + 1);
    let at = (from..lines.len()).find(|&at| lines[at].starts_with("[  FAILED  ] "))?;
    let count = lines[at..].iter().filter(|line| line.starts_with("[  FAILED  ] ")).count();
    Some(Message::words(at..at + count, and_more(lines[at], count)))
}
