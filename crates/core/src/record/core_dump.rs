//! Where the kernel writes the memory of a process that crashed: `/proc/sys/kernel/core_pattern` (core(5)).

use serde::{Deserialize, Serialize};

use crate::ids::Pid;

/// The destination of a core.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoreDump {
    /// To this file.
    File(String),
    /// To the program that the kernel hands cores to, such as `systemd-coredump`.
    Handler(String),
}

/// What the kernel does with a core.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CorePattern {
    /// Hands it to a program of this name.
    Handler(String),
    /// Writes it to a file.
    File(CoreFile),
}

/// The possible names of a core file: some parts are only known to the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreFile {
    /// The directory, absolute or below that of the process.
    pub directory: String,
    name: Vec<Piece>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Piece {
    Text(String),
    /// Anything.
    Unknown,
}

impl CorePattern {
    /// `pattern` and `uses_pid` are `/proc/sys/kernel/core_pattern` and `core_uses_pid`. `None`: no core is written.
    pub fn read(pattern: &str, uses_pid: bool, pid: Pid, signal: i32) -> Option<CorePattern> {
        let pattern = pattern.trim_end_matches('\n');
        if let Some(command) = pattern.strip_prefix('|') {
            let program = command.split_whitespace().next()?;
            return Some(CorePattern::Handler(program.rsplit('/').next().unwrap_or(program).to_owned()));
        }
        let (directory, name) = match pattern.rsplit_once('/') {
            Some(("", name)) => ("/", name),
            Some((directory, name)) => (directory, name),
            None => ("", pattern),
        };
        // A directory that is different for each core is not looked for.
        if name.is_empty() || directory.contains('%') {
            return None;
        }
        let mut pieces = Vec::new();
        let mut names_pid = false;
        let mut characters = name.chars();
        while let Some(character) = characters.next() {
            let text = match (character, if character == '%' { characters.next() } else { None }) {
                ('%', Some('%')) => "%".to_owned(),
                // A single `%` at the end is left out.
                ('%', None) => continue,
                ('%', Some('p')) => {
                    names_pid = true;
                    pid.to_string()
                }
                ('%', Some('s')) => signal.to_string(),
                ('%', Some(_)) => {
                    pieces.push(Piece::Unknown);
                    continue;
                }
                (character, _) => character.to_string(),
            };
            match pieces.last_mut() {
                Some(Piece::Text(before)) => before.push_str(&text),
                Some(Piece::Unknown) | None => pieces.push(Piece::Text(text)),
            }
        }
        if uses_pid && !names_pid {
            pieces.push(Piece::Text(format!(".{pid}")));
        }
        Some(CorePattern::File(CoreFile { directory: directory.to_owned(), name: pieces }))
    }
}

impl CoreFile {
    /// Whether a file of this name may be the core.
    pub fn matches(&self, name: &str) -> bool {
        matches(&self.name, name)
    }
}

fn matches(pieces: &[Piece], name: &str) -> bool {
    match pieces {
        [] => name.is_empty(),
        [Piece::Text(text), rest @ ..] => name.strip_prefix(text.as_str()).is_some_and(|name| matches(rest, name)),
        [Piece::Unknown] => true,
        [Piece::Unknown, rest @ ..] => {
            let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
            ends.into_iter().any(|at| matches(rest, &name[at..]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(pattern: &str, uses_pid: bool) -> CoreFile {
        match CorePattern::read(pattern, uses_pid, Pid(71), 11) {
            Some(CorePattern::File(file)) => file,
            other => panic!("{pattern} is {other:?}"),
        }
    }

    #[test]
    fn a_core_is_known_by_its_name() {
        for (pattern, uses_pid, directory, name) in [
            ("core\n", false, "", "core"),
            ("core", true, "", "core.71"),
            ("core.%p", true, "", "core.71"),
            ("/var/crash/core-%e-%s-%p-%t", false, "/var/crash", "core-my-solver-11-71-1790000000"),
            ("/%E.100%%.core", false, "/", "!usr!bin!solver.100%.core"),
            ("cores/c%", false, "cores", "c"),
        ] {
            let file = file(pattern, uses_pid);
            assert_eq!(file.directory, directory, "{pattern}");
            assert!(file.matches(name), "{pattern}: {name} is {file:?}");
            assert!(!file.matches("x.71") && !file.matches("core.72") && !file.matches(""), "{pattern}");
        }
    }

    #[test]
    fn a_handler_is_named_and_no_file_is_looked_for() {
        let read = |pattern| CorePattern::read(pattern, true, Pid(71), 11);
        assert_eq!(
            read("|/usr/lib/systemd/systemd-coredump %P %u %g"),
            Some(CorePattern::Handler("systemd-coredump".to_owned()))
        );
        assert_eq!((read(""), read("|"), read("/cores/%e/core")), (None, None, None));
    }
}
