//! Rust, Go, Java, Node, R, Perl and Julia.

use super::message::{Accounts, Message, Recogniser, Strength, file_and_line, last};
use crate::traceback::exception_line;

pub(super) const ALL: &[Recogniser] = &[
    Recogniser { strength: Strength::Named, accounts: Accounts::Codes(&[101, 134]), find: rust, name: "rust" },
    Recogniser { strength: Strength::Named, accounts: Accounts::Codes(&[2, 134]), find: go, name: "go" },
    Recogniser { strength: Strength::Named, accounts: Accounts::Codes(&[1]), find: java, name: "java" },
    Recogniser { strength: Strength::Named, accounts: Accounts::Nothing, find: java_printed, name: "java_printed" },
    Recogniser { strength: Strength::Named, accounts: Accounts::Abort, find: java_crash, name: "java_crash" },
    Recogniser { strength: Strength::Named, accounts: Accounts::Codes(&[1, 7]), find: node, name: "node" },
    Recogniser { strength: Strength::Named, accounts: Accounts::Abort, find: node_fatal, name: "node_fatal" },
    Recogniser { strength: Strength::Fatal, accounts: Accounts::Codes(&[1]), find: r, name: "r" },
    Recogniser { strength: Strength::Error, accounts: Accounts::Nothing, find: perl, name: "perl" },
    Recogniser { strength: Strength::Fatal, accounts: Accounts::Codes(&[1]), find: julia, name: "julia" },
];

/// `thread 'main' (4711) panicked at src/main.rs:5:9:`, and the message on the next line; before Rust 1.73 it stood in
/// between. The first panic is the cause of those that follow it.
fn rust(lines: &[&str]) -> Option<Message> {
    let at = lines.iter().position(|line| line.starts_with("thread '") && line.contains(" panicked at "))?;
    let (_, place) = lines[at].split_once(" panicked at ")?;
    let (message, place, end) = match place.strip_prefix('\'').and_then(|text| text.rsplit_once("', ")) {
        Some((message, place)) => (message, place, at + 1),
        None => (lines.get(at + 1).copied().unwrap_or_default(), place.trim_end_matches(':'), at + 2),
    };
    let is_backtrace = |line: &&&str| line.starts_with([' ', '\t']) || line.starts_with("stack backtrace:");
    let end = end + lines.get(end..).unwrap_or_default().iter().take_while(is_backtrace).count();
    Some(Message::of(at..end.min(lines.len()), "panic", message).at(file_and_line(place)))
}

/// `panic: runtime error: …`, then the goroutines; also `fatal error: all goroutines are asleep - deadlock!`.
fn go(lines: &[&str]) -> Option<Message> {
    let is_routine = |line: &str| line.starts_with("goroutine ") && line.ends_with("]:");
    let routine = lines.iter().position(|line| is_routine(line))?;
    let is_start = |line: &str| line.starts_with("panic: ") || line.starts_with("fatal error: ");
    let at = (0..routine).rev().find(|&at| is_start(lines[at]))?;
    let (kind, message) = lines[at].split_once(": ")?;
    let own = |line: &&str| {
        let (place, _) = line.strip_prefix('\t')?.split_once(" +0x")?;
        file_and_line(place).filter(|(file, _)| !file.contains("/src/runtime/"))
    };
    let is_trace = |line: &&&str| {
        line.is_empty()
            || line.starts_with(['\t', ' '])
            || line.starts_with("created by ")
            || line.starts_with("exit status ")
            || is_routine(line)
            || line.ends_with(')')
    };
    let end = routine + lines[routine..].iter().take_while(is_trace).count();
    Some(Message::of(at..end, kind, message).at(lines[routine..end].iter().find_map(own)))
}

const NO_JVM: &str = "Error: Could not create the Java Virtual Machine.";

/// `Exception in thread "main" java.lang.IllegalStateException: queue is closed`, frames, `Caused by: …`.
fn java(lines: &[&str]) -> Option<Message> {
    let at = last(lines, |line| {
        line.starts_with("Exception in thread \"")
            || line.starts_with("Error: Could not find or load main class")
            || line == NO_JVM
    })?;
    if lines[at] == NO_JVM {
        // The line before it has the reason.
        let before =
            at.checked_sub(1).map(|before| lines[before]).filter(|line| !line.trim().is_empty() && *line != NO_JVM);
        let why = before.unwrap_or(lines[at]);
        let end = (at + 2).min(lines.len());
        return Some(Message::words(at.saturating_sub(1)..end, why));
    }
    let Some((_, said)) = lines[at].strip_prefix("Exception in thread \"").and_then(|rest| rest.split_once("\" "))
    else {
        return Some(Message::words(at..at + 1, lines[at]));
    };
    Some(java_exception(lines, at, said))
}

/// The same without a thread: `printStackTrace()` of an exception that was caught.
fn java_printed(lines: &[&str]) -> Option<Message> {
    let is_frame = |at: usize| lines.get(at).is_some_and(|line| line.starts_with("\tat ") && line.ends_with(')'));
    let at = (0..lines.len()).rev().find(|&at| is_frame(at + 1) && lines[at].starts_with(char::is_alphabetic))?;
    let at = match lines[at].starts_with("Caused by: ") {
        true => (0..at).rev().find(|&at| is_frame(at + 1) && !lines[at].starts_with("Caused by: ") && !is_frame(at))?,
        false => at,
    };
    let kind = lines[at].split_once(": ").map_or(lines[at], |(kind, _)| kind);
    (kind.contains('.') && !kind.contains(' ')).then(|| java_exception(lines, at, lines[at]))
}

/// The exception that `said` begins, in the line `at`.
fn java_exception(lines: &[&str], at: usize, said: &str) -> Message {
    let is_more = |line: &&&str| {
        line.trim_start().starts_with("at ") || line.starts_with("Caused by: ") || line.starts_with("\t...")
    };
    let end = at + 1 + lines[at + 1..].iter().take_while(is_more).count();
    let (kind, message) = said.split_once(": ").unwrap_or((said, ""));
    let root = lines[at..end].iter().rev().find_map(|line| line.strip_prefix("Caused by: "));
    let message = match root {
        Some(root) => format!("{message} (caused by {root})"),
        None => message.to_owned(),
    };
    let frame = |line: &&str| {
        let (function, place) = line.trim_start().strip_prefix("at ")?.split_once('(')?;
        let is_library = ["java.", "javax.", "jdk.", "sun."]
            .iter()
            .any(|it| function.rsplit('/').next().is_some_and(|name| name.starts_with(it)));
        file_and_line(place).filter(|_| !is_library)
    };
    Message::of(at..end, kind, message).at(lines[at..end].iter().find_map(frame))
}

/// `# A fatal error has been detected by the Java Runtime Environment:`
fn java_crash(lines: &[&str]) -> Option<Message> {
    let at = last(lines, |line| line.starts_with("# A fatal error has been detected by the Java Runtime"))?;
    let said = lines[at + 1..].iter().map(|line| line.trim_start_matches(['#', ' '])).find(|line| !line.is_empty())?;
    let end = at + lines[at..].iter().take_while(|line| line.starts_with('#')).count();
    Some(Message::of(at..end, "Java Runtime Environment", said))
}

/// `/a/b.js:1`, the source, a caret, a blank line, `TypeError: …`, frames, and `Node.js v20.20.2`.
fn node(lines: &[&str]) -> Option<Message> {
    let end = last(lines, |line| line.starts_with("Node.js v"))?;
    let caret =
        (0..end).rev().find(|&at| !lines[at].trim().is_empty() && lines[at].trim().chars().all(|c| c == '^'))?;
    let at = (caret + 1..end).find(|&at| !lines[at].is_empty())?;
    let (kind, message) = exception_line(lines[at]).unwrap_or(("Uncaught", lines[at]));
    // A long explanation, and at its end: `The promise rejected with the reason "quota".`
    let reason = message.split_once(" rejected with the reason \"").map(|(_, reason)| reason.trim_end_matches("\"."));
    let message = reason.unwrap_or(message);
    let place = caret.checked_sub(2).and_then(|at| file_and_line(lines[at]));
    Some(Message::of(caret.saturating_sub(2)..end + 1, kind, message).at(place))
}

/// `FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory`
fn node_fatal(lines: &[&str]) -> Option<Message> {
    let at = last(lines, |line| {
        line.starts_with("FATAL ERROR: ") && (line.contains("JavaScript") || line.contains("v8::"))
    })?;
    Some(Message::words(at..at + 1, lines[at]))
}

/// `Error in f(x) : message` (the message may be on the next line), `Calls: …`, `Execution halted`.
fn r(lines: &[&str]) -> Option<Message> {
    let end = last(lines, |line| line == "Execution halted")?;
    let at = (0..end).rev().find(|&at| lines[at].starts_with("Error in ") || lines[at].starts_with("Error: "))?;
    let text: Vec<&str> =
        lines[at..end].iter().take_while(|line| !line.starts_with("Calls: ")).map(|line| line.trim()).collect();
    Some(Message::words(at..end + 1, text.join(" ")))
}

/// `matrix is singular at main.pl line 2.` A warning reads alike, so that it counts at the end alone.
fn perl(lines: &[&str]) -> Option<Message> {
    let place = |line: &str| {
        let (before, number) = line.strip_suffix('.')?.rsplit_once(" line ")?;
        // `…, <STDIN> line 5.` follows where a file was read.
        let (before, number) = match before.strip_suffix('>').and_then(|before| before.rsplit_once(", <")) {
            Some((before, _)) => before.rsplit_once(" line ")?,
            None => (before, number),
        };
        let (_, file) = before.rsplit_once(" at ")?;
        Some((file.to_owned(), Some(number.parse().ok()?)))
    };
    let is_compilation = |line: &str| line.ends_with(" aborted due to compilation errors.");
    if let Some(end) = last(lines, is_compilation) {
        // `syntax error at main.pl line 1, near "= ;"`
        let at = lines[..end].iter().position(|line| line.contains(" at ") && line.contains(" line ")).unwrap_or(end);
        return Some(Message::words(at..end + 1, lines[at].trim_end_matches('.')));
    }
    let end = last(lines, |line| place(line).is_some())?;
    let is_more = |line: &&&str| line.starts_with('\t') && line.contains(" called at ");
    let trace = lines[end + 1..].iter().take_while(is_more).count();
    if lines[end + 1 + trace..].iter().any(|line| !line.trim().is_empty()) {
        return None;
    }
    // The line before that of a failed `use` has the reason.
    let is_reason = |at: &usize| lines[end].starts_with("BEGIN failed--") && place(lines[*at]).is_some();
    let at = end.checked_sub(1).filter(is_reason).unwrap_or(end);
    Some(Message::words(at..end + 1 + trace, lines[at].trim_end_matches('.')).at(place(lines[at])))
}

/// `ERROR: LoadError: …` and `Stacktrace:`
fn julia(lines: &[&str]) -> Option<Message> {
    let stack = last(lines, |line| line == "Stacktrace:")?;
    let at = (0..stack).rev().find(|&at| lines[at].starts_with("ERROR: "))?;
    let is_trace =
        |line: &&&str| line.is_empty() || line.starts_with(' ') || line.starts_with("in expression starting");
    let end = stack + 1 + lines[stack + 1..].iter().take_while(is_trace).count();
    Some(Message::words(at..end, lines[at]))
}
