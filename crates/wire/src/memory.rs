//! What was found in /dev/shm of a node after the job (K-8), and the word in which a guard leaves it for its parent and a relay for the
//! front.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::{Deserialize, Serialize};

/// The files of /dev/shm that a job has left there, by path.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    /// What it had created: removed, or under `--clean-shm list` only listed.
    pub created: Vec<OsString>,
    /// What it may have created. It was not removed.
    pub doubtful: Vec<OsString>,
}

impl Memory {
    /// One word of ASCII without spaces: `/` for nothing, else `+PATH` or `?PATH` for each, after a `|`.
    pub fn word(&self) -> String {
        let mut word = String::from("/");
        let created = self.created.iter().map(|path| ('+', path));
        for (mark, path) in created.chain(self.doubtful.iter().map(|path| ('?', path))) {
            word.push('|');
            word.push(mark);
            for byte in path.as_bytes() {
                // Writing into a string does not fail.
                let _ = match byte {
                    b'%' | b'|' => write!(word, "%{byte:02x}"),
                    b'!'..=b'~' => write!(word, "{}", char::from(*byte)),
                    _ => write!(word, "%{byte:02x}"),
                };
            }
        }
        word
    }

    /// What such a word says. A word that was cut says what is whole in it.
    pub fn of_word(word: &str) -> Option<Memory> {
        let mut memory = Memory::default();
        let mut parts = word.split('|');
        if parts.next() != Some("/") {
            return None;
        }
        for part in parts {
            if let Some(path) = part.strip_prefix('+').and_then(path) {
                memory.created.push(path);
            } else if let Some(path) = part.strip_prefix('?').and_then(path) {
                memory.doubtful.push(path);
            }
        }
        Some(memory)
    }

    /// As many of the names as fit into so many bytes; a last entry has the number of the others.
    pub fn within(mut self, bytes: usize) -> Memory {
        let mut room = bytes;
        let mut fits = |path: &OsString| {
            room = room.saturating_sub(path.len() + 8);
            room > 0
        };
        let count = self.created.len() + self.doubtful.len();
        self.created.retain(&mut fits);
        self.doubtful.retain(&mut fits);
        let left_out = count - self.created.len() - self.doubtful.len();
        if left_out > 0 {
            self.doubtful.push(format!("({left_out} more)").into());
        }
        self
    }

    /// Adds what somebody else has found on the same node.
    pub fn add(&mut self, other: Memory) {
        for path in other.created {
            if !self.created.contains(&path) {
                self.created.push(path);
            }
        }
        for path in other.doubtful {
            if !self.doubtful.contains(&path) && !self.created.contains(&path) {
                self.doubtful.push(path);
            }
        }
    }
}

fn path(escaped: &str) -> Option<OsString> {
    let mut bytes = Vec::new();
    let mut rest = escaped.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let (byte, after) = match byte {
            b'%' => (u8::from_str_radix(std::str::from_utf8(after.get(..2)?).ok()?, 16).ok()?, &after[2..]),
            byte => (byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
    Some(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_survives_whatever_the_names_are() {
        for names in [vec![], vec!["/dev/shm/a"], vec!["/dev/shm/a b|%\n\u{e9}", "/dev/shm/+?", "/dev/shm/x"]] {
            let names: Vec<OsString> = names.into_iter().map(OsString::from).collect();
            let memory = Memory { created: names.clone(), doubtful: names };
            let word = memory.word();
            assert!(word.bytes().all(|byte| byte.is_ascii_graphic()), "{word}");
            assert_eq!(Memory::of_word(&word), Some(memory));
        }
        assert_eq!(Memory::of_word("0"), None);
        assert_eq!(Memory::of_word("/|+a%"), Some(Memory::default()), "a name that was cut");
    }

    #[test]
    fn names_that_find_no_room_are_counted() {
        let paths: Vec<OsString> = (10..30).map(|number| format!("/dev/shm/{number}").into()).collect();
        let memory = Memory { created: Vec::new(), doubtful: paths.clone() };
        assert_eq!(memory.clone().within(4096), memory);
        let cut = memory.within(100);
        assert_eq!((&cut.doubtful[..5], &cut.doubtful[5..]), (&paths[..5], &["(15 more)".into()][..]));
    }

    #[test]
    fn what_two_have_found_is_named_once() {
        let memory = |created: &[&str], doubtful: &[&str]| Memory {
            created: created.iter().map(OsString::from).collect(),
            doubtful: doubtful.iter().map(OsString::from).collect(),
        };
        let mut both = memory(&["a"], &["b"]);
        both.add(memory(&["a", "c"], &["b", "c", "d"]));
        assert_eq!(both, memory(&["a", "c"], &["b", "d"]));
    }
}
