//! Programs in C, C++ and Fortran: glibc, libstdc++ and libc++, the sanitizers, the runtimes of gfortran, ifx and flang,
//! and the dynamic linker.

use super::message::{Accounts, Message, Recogniser, Strength, file_and_line, last};

pub(super) const ALL: &[Recogniser] = &[
    Recogniser { strength: Strength::Named, accounts: Accounts::Abort, find: glibc, name: "glibc" },
    Recogniser { strength: Strength::Named, accounts: Accounts::Abort, find: terminate, name: "cpp_terminate" },
    Recogniser { strength: Strength::Named, accounts: Accounts::Abort, find: assertion, name: "assertion" },
    Recogniser { strength: Strength::Named, accounts: Accounts::Any, find: sanitizer, name: "sanitizer" },
    Recogniser {
        strength: Strength::Named,
        accounts: Accounts::Codes(&[1]),
        find: undefined,
        name: "undefined_behaviour",
    },
    Recogniser { strength: Strength::Named, accounts: Accounts::Any, find: fortran, name: "fortran" },
    Recogniser { strength: Strength::Named, accounts: Accounts::Codes(&[1, 127]), find: linker, name: "linker" },
    Recogniser { strength: Strength::Named, accounts: Accounts::Any, find: link_editor, name: "link_editor" },
    Recogniser {
        strength: Strength::Manner,
        accounts: Accounts::SignalOr(&[]),
        find: fortran_signal,
        name: "fortran_signal",
    },
];

/// How glibc's allocator and its checks begin their last line (malloc/malloc.c, debug/fortify_fail.c, 2.36).
const GLIBC: [&str; 16] = [
    "double free or corruption",
    "free(): ",
    "malloc(): ",
    "malloc_consolidate(): ",
    "realloc(): ",
    "munmap_chunk(): ",
    "mremap_chunk(): ",
    "corrupted size vs. prev_size",
    "corrupted double-linked list",
    "break adjusted to free malloc space",
    "sysmalloc: ",
    "*** stack smashing detected ***",
    "*** buffer overflow detected ***",
    "*** %n in writable segment",
    "*** longjmp causes uninitialized stack frame ***",
    "Fatal glibc error: ",
];

fn glibc(lines: &[&str]) -> Option<Message> {
    let at = last(lines, |line| GLIBC.iter().any(|text| line.starts_with(text)))?;
    Some(Message::words(at..at + 1, lines[at]))
}

/// What stands for the type where a program was terminated without an exception.
const TERMINATE: &str = "std::terminate";

/// libstdc++'s and libc++abi's last words.
fn terminate(lines: &[&str]) -> Option<Message> {
    let is_end = |line: &str| {
        line.contains("terminate called")
            || line.starts_with("libc++abi: terminating")
            || line == "libc++abi: Pure virtual function called!"
    };
    let at = last(lines, is_end)?;
    let previous = at.checked_sub(1).map(|at| lines[at]).unwrap_or_default();
    if lines[at] == "libc++abi: Pure virtual function called!" {
        return Some(Message::words(at..at + 1, "Pure virtual function called!"));
    }
    if previous == "pure virtual method called" || previous == "deleted virtual method called" {
        return Some(Message::words(at - 1..at + 1, previous));
    }
    if let Some((_, rest)) = lines[at].split_once("terminate called after throwing an instance of '") {
        let kind = rest.trim_end_matches('\'');
        let what = lines.get(at + 1).and_then(|line| line.trim_start().strip_prefix("what():"));
        return Some(Message::of(at..at + 1 + usize::from(what.is_some()), kind, what.unwrap_or_default().trim()));
    }
    // `terminating due to uncaught exception of type std::runtime_error: boom`; before LLVM 16 it is `with`.
    if let Some((_, rest)) = lines[at].split_once(" uncaught exception of type ") {
        let (kind, what) = rest.split_once(": ").unwrap_or((rest, ""));
        return Some(Message::of(at..at + 1, kind, what));
    }
    // After something else it is how that brought the process down: torch's threads do it.
    Some(Message { is_manner: lines[at].contains("terminate called"), ..Message::of(at..at + 1, TERMINATE, "") })
}

/// glibc's `prog: file.c:5: func: Assertion `x' failed.`, musl's `Assertion failed: x (file.c: func: 5)`.
fn assertion(lines: &[&str]) -> Option<Message> {
    let at = last(lines, |line| {
        (line.contains(": Assertion `") || line.contains(": Assertion '")) && line.contains("' failed")
            || line.starts_with("Assertion failed: ")
    })?;
    let Some((before, after)) = lines[at].split_once(": Assertion ") else {
        return Some(Message::words(at..at + 1, lines[at]));
    };
    let message = format!("Assertion {}", after.trim_end_matches('.'));
    // The function may have colons of its own.
    let place = before.split(": ").find_map(file_and_line);
    Some(Message::words(at..at + 1, message).at(place))
}

/// `==1==ERROR: AddressSanitizer: heap-buffer-overflow on address …` up to its summary, which has the place.
fn sanitizer(lines: &[&str]) -> Option<Message> {
    let is_start = |line: &str| {
        line.split_once("==ERROR: ")
            .is_some_and(|(_, rest)| rest.split(':').next().is_some_and(|it| it.ends_with("Sanitizer")))
            || line.starts_with("WARNING: ThreadSanitizer: ")
            || line.contains("==WARNING: MemorySanitizer: ")
    };
    let start = lines.iter().position(|line| is_start(line))?;
    let (_, text) = lines[start].split_once("Sanitizer: ")?;
    let kind = lines[start][..lines[start].len() - text.len() - 2].rsplit([' ', ':']).next()?;
    let summary = (start..lines.len()).find(|&at| lines[at].starts_with("SUMMARY: "));
    let (message, place) = match summary.and_then(|at| lines[at].split_once("Sanitizer: ")) {
        // `heap-buffer-overflow /a/b.c:2 in get`
        // `1000 byte(s) leaked in 1 allocation(s).` has neither a kind nor a place.
        Some((_, told)) if told.contains(" leaked in ") => (format!("{text}: {told}"), None),
        Some((_, told)) => (told.to_owned(), told.split_whitespace().find_map(file_and_line)),
        None => (text.split(" on address ").next().unwrap_or(text).to_owned(), None),
    };
    Some(Message::of(start..summary.map_or(start, |at| at) + 1, kind, message).at(place))
}

/// `ub.c:1:45: runtime error: signed integer overflow: …`
fn undefined(lines: &[&str]) -> Option<Message> {
    let at = last(lines, |line| line.contains(": runtime error: "))?;
    let (place, message) = lines[at].split_once(": runtime error: ")?;
    let place = file_and_line(place)?;
    Some(Message::of(at..at + 1, "runtime error", message).at(Some(place)))
}

/// The runtimes' own lines: gfortran (libgfortran/runtime/error.c), ifx (`forrtl`), flang.
fn fortran(lines: &[&str]) -> Option<Message> {
    let at = last(lines, |line| {
        line.starts_with("Fortran runtime error: ")
            || line.starts_with("ERROR STOP")
            || line.starts_with("Fortran ERROR STOP")
            || line.starts_with("fatal Fortran runtime error(")
            // What ifx says of our own SIGTERM is no cause.
            || (line.starts_with("forrtl: ") && !line.contains("SIGTERM") && !line.contains("SIGINT"))
    })?;
    let backtrace = |line: &&&str| {
        let line = line.trim_start();
        line.is_empty() || line.starts_with("Error termination.") || line.starts_with('#') || line.starts_with("at ")
    };
    let end = at + 1 + lines[at + 1..].iter().take_while(backtrace).count();
    // gfortran: `At line 4 of file a.f90 (unit = 10)` before it; ifx: `…, file /a/b.f90, line 4` in it.
    let before = at.checked_sub(1).and_then(|at| lines[at].strip_prefix("At line "));
    let place = before.and_then(|text| {
        let (line, file) = text.split_once(" of file ")?;
        let file = file.split(" (unit").next().unwrap_or(file);
        Some((file.to_owned(), line.parse().ok()))
    });
    let traced = || lines[at..end].iter().find_map(|line| file_and_line(line.trim_start().strip_prefix("at ")?));
    let start = at - usize::from(before.is_some());
    Some(Message::words(start..end, lines[at]).at(place.or_else(traced)))
}

/// `Program received signal SIGSEGV: Segmentation fault - invalid memory reference.`, with gfortran's backtrace.
fn fortran_signal(lines: &[&str]) -> Option<Message> {
    let at = last(lines, |line| line.starts_with("Program received signal SIG") && !line.contains("SIGTERM"))?;
    let (_, text) = lines[at].split_once(": ")?;
    let is_backtrace = |line: &&&str| {
        line.is_empty() || line.starts_with("Backtrace for") || line.starts_with('#') || line.starts_with("\tat ")
    };
    let end = at + 1 + lines[at + 1..].iter().take_while(is_backtrace).count();
    let is_own = |line: &&&str| !line.contains("/sysdeps/");
    let place = lines[at..end].iter().filter(is_own).find_map(|line| file_and_line(line.strip_prefix("\tat ")?));
    Some(Message::words(at..end, text.trim_end_matches('.')).at(place))
}

/// The dynamic linker.
fn linker(lines: &[&str]) -> Option<Message> {
    let at = last(lines, |line| {
        line.contains(": error while loading shared libraries: ")
            || line.contains(": symbol lookup error: ")
            || (line.contains(": version `") && line.contains("' not found (required by "))
    })?;
    let from = lines[at].find("error while").or_else(|| lines[at].find("symbol lookup")).unwrap_or(0);
    Some(Message::words(at..at + 1, &lines[at][from..]))
}

/// How lld, mold and gold begin a line about what is wrong. (lld/Common/ErrorHandler.cpp, mold's `common.h`, gold/errors.cc)
const LINK_EDITORS: [&str; 5] =
    ["ld.lld: error: ", "ld64.lld: error: ", "mold: error: ", "mold: fatal: ", "ld.gold: error: "];

/// What a linker says before `collect2: error: ld returned 1 exit status` (GCC) or clang's `linker command failed`, up to the lines of
/// make.
fn link_editor(lines: &[&str]) -> Option<Message> {
    let is_end = |line: &str| {
        line.starts_with("collect2: error: ld returned ")
            || line.contains(": error: linker command failed with exit code ")
    };
    let end = last(lines, is_end)?;
    // Where it says so: `/usr/bin/ld: main.o: in function ...` stands before.
    let said = |line: &'_ str| -> Option<usize> {
        let of_others = LINK_EDITORS.iter().find_map(|start| Some(line.find(start)? + start.len()));
        let of_ld = || line.find("ld: cannot find ").map(|at| at + "ld: ".len());
        let is_of_file = || line.contains(": undefined reference to ") || line.contains(": multiple definition of ");
        let of_file = || is_of_file().then(|| line.find("ld: ").map_or(0, |at| at + "ld: ".len()));
        of_others.or_else(of_ld).or_else(of_file)
    };
    let before = (0..end).rev().take_while(|at| !is_end(lines[*at]));
    let (start, from) = before.filter_map(|at| Some((at, said(lines[at])?))).last()?;
    let after =
        end + 1 + lines[end + 1..].iter().take_while(|line| is_of_make(line) || line.starts_with("ninja: ")).count();
    Some(Message::words(start..after, &lines[start][from..]))
}

/// Whether GNU make says this, which other systems call gmake.
pub(crate) fn is_of_make(line: &str) -> bool {
    let line = line.strip_prefix('g').unwrap_or(line);
    line.starts_with("make: ") || line.starts_with("make[")
}
