//! CPython's tracebacks, also as loguru and rich print them, its fatal errors, and what it says before it runs a program.

use super::message::{Accounts, Message, Recogniser, Strength, last};
use crate::testimony::Exception;
use crate::traceback::{HEADER, exception_line, frame, is_group_header, is_header, is_library, place, within_group};

pub(super) const ALL: &[Recogniser] = &[
    Recogniser {
        strength: Strength::Named,
        accounts: Accounts::Uncaught(&[1]),
        find: traceback,
        name: "python_traceback",
    },
    Recogniser { strength: Strength::Named, accounts: Accounts::Uncaught(&[1]), find: group, name: "python_group" },
    Recogniser { strength: Strength::Named, accounts: Accounts::Uncaught(&[1]), find: rich, name: "rich_traceback" },
    Recogniser { strength: Strength::Error, accounts: Accounts::Nothing, find: rich_error, name: "rich_error" },
    Recogniser {
        strength: Strength::Named,
        accounts: Accounts::Codes(&[1]),
        find: syntax_error,
        name: "python_syntax_error",
    },
    Recogniser {
        strength: Strength::Named,
        accounts: Accounts::Codes(&[1]),
        find: timeout,
        name: "faulthandler_timeout",
    },
    Recogniser {
        strength: Strength::Named,
        accounts: Accounts::SignalOr(&[1]),
        find: fatal_error,
        name: "python_fatal_error",
    },
    Recogniser {
        strength: Strength::Fatal,
        accounts: Accounts::Codes(&[1, 2]),
        find: not_found,
        name: "python_not_found",
    },
    Recogniser { strength: Strength::Error, accounts: Accounts::Codes(&[1]), find: hydra, name: "hydra" },
];

/// Lines of a message that are taken as such, after its first.
const MOST_OF_MESSAGE: usize = 20;

/// What links the tracebacks of an exception and its cause.
fn is_link(line: &str) -> bool {
    line.starts_with("During handling of the above exception") || line.starts_with("The above exception was the direct")
}

fn with_place(mut message: Message, place: Option<(String, u32, String)>) -> Message {
    if let Some((file, line, function)) = place {
        (message.said.file, message.said.line, message.said.function) = (Some(file), Some(line), Some(function));
    }
    message
}

/// The line of a traceback's exception.
fn end_of(lines: &[&str], header: usize) -> Option<usize> {
    let is_inside = |line: &str| line.starts_with([' ', '\t']) || line.starts_with("> File \"") || line.is_empty();
    (header + 1..lines.len()).find(|&at| !is_inside(lines[at]))
}

/// The lines without what stands before each of them where a tool has marked the output (`w1: Traceback …`).
fn without_marks<'a>(lines: &[&'a str]) -> Option<Vec<&'a str>> {
    let mark = (0..lines.len().saturating_sub(1)).rev().find_map(|at| {
        let mark = lines[at].strip_suffix(HEADER).filter(|mark| !mark.trim().is_empty())?;
        lines[at + 1].strip_prefix(mark)?.starts_with("  File \"").then_some(mark)
    })?;
    Some(lines.iter().map(|line| line.strip_prefix(mark).unwrap_or(line)).collect())
}

fn traceback(lines: &[&str]) -> Option<Message> {
    if let Some(lines) = without_marks(lines) {
        return traceback(&lines);
    }
    let (mut aside, mut told_elsewhere) = (None, None);
    for header in (0..lines.len()).rev().filter(|&at| is_header(lines[at])) {
        let Some(end) = end_of(lines, header) else { continue };
        let Some((kind, _)) = exception_line(lines[end]) else { continue };
        let kind = kind.rsplit('.').next().unwrap_or(kind);
        let message = lines[end].split_once(": ").map(|(_, message)| message).unwrap_or_default();
        // The message has more lines where this one says nothing, or announces them; another exception, the beginning of
        // another traceback or a blank line ends it.
        let announces = message.trim_end().ends_with(':') || is_rule(message);
        let next =
            (end + 1..lines.len()).find(|&at| is_header(lines[at]) || is_title(lines[at])).unwrap_or(lines.len());
        let more = lines[end + 1..next].iter().take_while(|line| match message.trim().is_empty() {
            true => line.starts_with([' ', '\t']) || exception_line(line).is_none(),
            false => announces && !line.trim().is_empty(),
        });
        let whole = end + 1 + more.take(MOST_OF_MESSAGE).count();
        let whole = embedded(lines, end, whole);
        // An exception and its causes are one message.
        let mut start = header;
        while start >= 2
            && let Some(link) = (0..start).rev().find(|&at| !lines[at].is_empty()).filter(|&at| is_link(lines[at]))
            && let Some(before) = (0..link).rev().find(|&at| is_header(lines[at]))
        {
            start = before;
        }
        let text = std::iter::once(message).chain(lines[end + 1..whole].iter().copied());
        let said = Message::of(start..whole, kind, text.collect::<Vec<_>>().join("\n"));
        let said = with_place(said, place(lines[header..end].iter().copied()));
        let title = header.checked_sub(1).map(|at| lines[at]).unwrap_or_default();
        if is_title(title) {
            // It ended a thread or nothing. The first counts where nothing else is said.
            aside.get_or_insert(Message { is_aside: title.starts_with("Exception ignored"), ..said });
        } else if is_embedded(title) || is_embedded(lines[header]) || said.said.kind == "ChildFailedError" {
            // The message of another exception holds it; or torchrun tells of a child, which had words of its own.
            told_elsewhere.get_or_insert(said);
        } else {
            return Some(said);
        }
    }
    told_elsewhere.or(aside)
}

/// What stands before the traceback of an exception that ended a thread or nothing.
fn is_title(line: &str) -> bool {
    line.starts_with("Exception in thread") || line.starts_with("Exception ignored")
}

/// Whether a message begins with a rule: that of torchrun's `ChildFailedError` is a box.
fn is_rule(message: &str) -> bool {
    message.len() > 3 && message.chars().all(|c| matches!(c, '=' | '-' | '*'))
}

/// Whether a line is followed by the traceback of another process, within a message.
fn is_embedded(line: &str) -> bool {
    line.contains("Original Traceback") || line.starts_with("-- Process ")
}

/// The end of a message that holds the traceback of another process, as torch's do.
fn embedded(lines: &[&str], end: usize, whole: usize) -> usize {
    let Some(inner) = (end + 1..lines.len().min(end + 5)).find(|&at| is_embedded(lines[at])) else { return whole };
    let header = if is_header(lines[inner]) { inner } else { inner + 1 };
    end_of(lines, header).map_or(whole, |at| at + 1)
}

/// An exception group: its own line, and in it the first of its exceptions.
fn group(lines: &[&str]) -> Option<Message> {
    let start = last(lines, is_group_header)?;
    let is_inside = |line: &&&str| line.trim_start().starts_with(['|', '+']);
    let end = start + 1 + lines[start + 1..].iter().take_while(is_inside).count();
    let inside = || lines[start + 1..end].iter().map(|line| within_group(line));
    let said = inside().find_map(|line| exception_line(line).filter(|(kind, _)| kind.ends_with("Group")))?;
    Some(with_place(Message::of(start..end, said.0, said.1), place(inside())))
}

/// `╭──── Traceback (most recent call last) ────╮`, as rich prints it.
fn rich(lines: &[&str]) -> Option<Message> {
    let start = last(lines, |line| line.contains("─ Traceback (most recent call last) ─"))?;
    let bottom = (start + 1..lines.len()).find(|&at| lines[at].starts_with('╰'))?;
    let (kind, message) = exception_line(lines.get(bottom + 1)?)?;
    let places = lines[start..bottom].iter().filter_map(|line| {
        let (place, function) = line.trim_matches(['│', ' ']).rsplit_once(" in ")?;
        let (file, number) = place.rsplit_once(':')?;
        Some((file.to_owned(), number.parse().ok()?, function.to_owned()))
    });
    let places: Vec<(String, u32, String)> = places.collect();
    let own = places.iter().rev().find(|(file, ..)| !is_library(file)).or(places.last()).cloned();
    Some(with_place(Message::of(start..bottom + 2, kind, message), own))
}

/// `╭─ Error ───╮`, and in it what click and typer say of a command line.
fn rich_error(lines: &[&str]) -> Option<Message> {
    let start = last(lines, |line| line.starts_with("╭─ Error ─"))?;
    let bottom = (start + 1..lines.len()).find(|&at| lines[at].starts_with('╰'))?;
    let words: Vec<&str> =
        lines[start + 1..bottom].iter().flat_map(|line| line.trim_matches('│').split_whitespace()).collect();
    Some(Message::words(start..bottom + 1, words.join(" ")))
}

/// A program that cannot be compiled has no frames.
fn syntax_error(lines: &[&str]) -> Option<Message> {
    let is_one =
        |line: &str| ["SyntaxError: ", "IndentationError: ", "TabError: "].iter().any(|it| line.starts_with(it));
    let end = last(lines, is_one)?;
    let start = (end.saturating_sub(5)..end).rev().find(|&at| frame(lines[at]).is_some())?;
    let (kind, message) = exception_line(lines[end])?;
    Some(with_place(Message::of(start..end + 1, kind, message), frame(lines[start])))
}

/// What faulthandler and the interpreter itself say on their way down, most recent call first.
fn fatal_error(lines: &[&str]) -> Option<Message> {
    let start = last(lines, |line| line.starts_with("Fatal Python error: "))?;
    let (kind, message) = lines[start].split_once(": ")?;
    let thread = (start..lines.len()).find(|&at| lines[at].contains("(most recent call first)")).unwrap_or(start);
    let frames = lines[thread + 1..].iter().take_while(|line| frame(line).is_some()).count();
    let mut inside: Vec<&str> = lines[thread + 1..thread + 1 + frames].to_vec();
    inside.reverse();
    // Whoever calls abort() says why before it.
    let said = Message { is_manner: message == "Aborted", ..Message::of(start..thread + 1 + frames, kind, message) };
    Some(with_place(said, place(inside.into_iter())))
}

/// `Timeout (0:00:05)!`, with the stacks of all threads behind it: `faulthandler.dump_traceback_later(..., exit=True)`.
fn timeout(lines: &[&str]) -> Option<Message> {
    let start = last(lines, |line| line.starts_with("Timeout (") && line.ends_with(")!"))?;
    let is_stack = |line: &&&str| {
        line.starts_with("Thread 0x")
            || line.starts_with("Current thread 0x")
            || line.starts_with("  ")
            || line.is_empty()
    };
    let end = start + 1 + lines[start + 1..].iter().take_while(is_stack).count();
    // The main thread's stack is the last one.
    let thread = last(&lines[start..end], |line| line.contains("(most recent call first)")).unwrap_or_default();
    let mut inside = lines[start + thread..end].to_vec();
    inside.reverse();
    Some(with_place(Message::words(start..end, lines[start].trim_end_matches('!')), place(inside.into_iter())))
}

/// `python3: can't open file 'a.py': [Errno 2] No such file or directory`, `python3: No module named nosuch`.
fn not_found(lines: &[&str]) -> Option<Message> {
    let at = last(lines, |line| {
        let Some((program, text)) = line.split_once(": ") else { return false };
        program.rsplit('/').next().is_some_and(|name| name.starts_with("python"))
            && (text.starts_with("can't open file")
                || text.starts_with("No module named")
                || text.contains("Error while"))
    })?;
    let (_, text) = lines[at].split_once(": ")?;
    Some(Message::words(at..at + 1, text))
}

/// Hydra says what is wrong with its configuration, and then how to see more.
fn hydra(lines: &[&str]) -> Option<Message> {
    let end = last(lines, |line| line.starts_with("Set the environment variable HYDRA_FULL_ERROR=1"))?;
    let start = lines[..end].iter().rposition(|line| {
        ["Could not override ", "In '", "Cannot find primary config", "Error merging ", "Could not append "]
            .iter()
            .any(|it| line.starts_with(it))
    })?;
    let key = lines[start + 1..end].iter().find(|line| line.starts_with("Key '"));
    let message = match key {
        Some(key) => format!("{} {key}", lines[start]),
        None => lines[start].to_owned(),
    };
    Some(Message::words(start..end + 1, message))
}

/// Whether the lines end with a whole traceback: nothing was written after the exception's own line.
pub(crate) fn ends_with_traceback(lines: &[&str]) -> Option<Exception> {
    let message = traceback(lines).filter(|message| message.lines.end == lines.len())?;
    Some(Exception { traceback: lines[message.lines.clone()].join("\n"), ..message.said })
}
