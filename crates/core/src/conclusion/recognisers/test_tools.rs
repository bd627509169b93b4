//! pytest, unittest and GoogleTest.

use super::message::{Accounts, Message, Recogniser, Strength, file_and_line, last};
use crate::traceback::place;

pub(super) const ALL: &[Recogniser] = &[
    Recogniser { strength: Strength::Named, accounts: Accounts::Codes(&[1, 2]), find: pytest, name: "pytest" },
    Recogniser { strength: Strength::Named, accounts: Accounts::Codes(&[1]), find: unittest, name: "unittest" },
    Recogniser { strength: Strength::Named, accounts: Accounts::Codes(&[1]), find: google_test, name: "google_test" },
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
    // With `-q` no rule ends it, but a line such as `2 failed, 1 passed in 0.03s`.
    let is_count = |line: &str| line.starts_with(|c: char| c.is_ascii_digit()) && line.contains(" in ");
    let is_last = |line: &str| line.starts_with('=') || is_count(line);
    let is_inside = |line: &&&str| is_case(line) || line.starts_with([' ', '!', '>']);
    let inside = title + 1 + lines[title + 1..].iter().take_while(is_inside).count();
    let end = inside + usize::from(lines.get(inside).is_some_and(|line| is_last(line)));
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
    let place = place(lines[first..rule].iter().copied()).map(|(file, line, _)| (file, Some(line)));
    let message = and_more(&format!("{} - {}", lines[first], lines[why]), cases.len());
    Some(Message::words(first..end + 1, message).at(place))
}

/// `[  FAILED  ] Suite.Test`
fn google_test(lines: &[&str]) -> Option<Message> {
    let listed = last(lines, |line| line.starts_with("[  FAILED  ] ") && line.ends_with(" listed below:"));
    let from = listed.map_or(0, |at| at + 1);
    let at = (from..lines.len()).find(|&at| lines[at].starts_with("[  FAILED  ] "))?;
    let count = lines[at..].iter().filter(|line| line.starts_with("[  FAILED  ] ")).count();
    let name = lines[at].trim_start_matches("[  FAILED  ] ");
    // What has failed stands between `[ RUN      ] Suite.Test` and its end: `main.cc:2: Failure`, and the reason.
    let run = lines.iter().position(|line| line.strip_prefix("[ RUN      ] ") == Some(name));
    let failure = run.and_then(|run| (run..at).find(|&at| lines[at].ends_with(": Failure")));
    let Some(failure) = failure else { return Some(Message::words(at..at + count, and_more(name, count))) };
    let why: Vec<&str> =
        lines[failure + 1..at].iter().take_while(|line| !line.starts_with('[')).map(|it| it.trim()).collect();
    let end = failure + 1 + why.len();
    let message = and_more(&format!("{name} - {}", why.join(" ")), count);
    Some(Message::words(failure..end, message).at(file_and_line(lines[failure].trim_end_matches(": Failure"))))
}
