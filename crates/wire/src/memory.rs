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
    /// One word of ASCII without spaces: `/`, and then `+PATH|` or `?PATH|` for each.
    pub fn word(&self) -> String {
        let mut word = String::from("/");
        let created = self.created.iter().map(|path| ('+', path));
        for (mark, path) in created.chain(self.doubtful.iter().map(|path| ('?', path))) {
            word.push(mark);
            for byte in path.as_bytes() {
                // Writing into a string does not fail.
                let _ = match byte {
                    b if is_plain(*b) => write!(word, "{}", char::from(*b)),
                    _ => write!(word, "%{byte:02x}"),
                };
            }
            word.push('|');
        }
        word
    }

    /// What such a word says. A word that was cut says what is whole in it.
    pub fn of_word(word: &str) -> Option<Memory> {
        let mut memory = Memory::default();
        for part in word.strip_prefix('/')?.split_inclusive('|').filter_map(|part| part.strip_suffix('|')) {
            if let Some(path) = part.strip_prefix('+').and_then(path) {
                memory.created.push(path);
            } else if let Some(path) = part.strip_prefix('?').and_then(path) {
                memory.doubtful.push(path);
            }
        }
        Some(memory)
    }

    /// As many of the names as fit into so many bytes, in a word too; a last entry has the number of the others.
    pub fn within(mut self, bytes: usize) -> Memory {
        let mut room = bytes;
        let mut fits = |path: &OsString| {
            let length: usize = path.as_bytes().iter().map(|byte| if is_plain(*byte) { 1 } else { 3 }).sum();
            room = room.saturating_sub(length + 8);
            room > 0
        };
        // Somebody has bounded it before.
        let before = self.doubtful.last().and_then(left_out);
        self.doubtful.truncate(self.doubtful.len() - usize::from(before.is_some()));
        let count = self.created.len() + self.doubtful.len() + before.unwrap_or(0);
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

/// The number in an entry that has the number of the others.
fn left_out(path: &OsString) -> Option<usize> {
    path.to_str()?.strip_prefix('(')?.strip_suffix(" more)")?.parse().ok()
}

/// Whether a byte of a path stands for itself in a word.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~') && !matches!(byte, b'%' | b'|')
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
    }

    #[test]
    fn a_word_that_was_cut_has_only_whole_names() {
        let names: Vec<OsString> = ["/dev/shm/a", "/dev/shm/b c", "/dev/shm/abc"].map(OsString::from).into();
        let memory = Memory { created: names.clone(), doubtful: names.clone() };
        let word = memory.word();
        let all = [names.clone(), names].concat();
        for length in 1..word.len() {
            let Memory { created, doubtful } = Memory::of_word(&word[..length]).expect("it begins well");
            let found = [created, doubtful].concat();
            assert!(found.len() < all.len() && all.starts_with(&found), "{}: {found:?}", &word[..length]);
        }
    }

    #[test]
    fn names_within_a_bound_make_a_word_within_it() {
        let paths: Vec<OsString> = (0..600).map(|number| format!("/dev/shm/\u{e9} {number}").into()).collect();
        let memory = Memory { created: paths.clone(), doubtful: paths }.within(2000);
        let word = memory.word();
        assert!((1000..2050).contains(&word.len()), "{}", word.len());
        assert_eq!(Memory::of_word(&word), Some(memory));
    }

    #[test]
    fn names_that_find_no_room_are_counted() {
        let paths: Vec<OsString> = (10..30).map(|number| format!("/dev/shm/{number}").into()).collect();
        let memory = Memory { created: Vec::new(), doubtful: paths.clone() };
        assert_eq!(memory.clone().within(4096), memory);
        let cut = memory.within(100);
        assert_eq!((&cut.doubtful[..5], &cut.doubtful[5..]), (&paths[..5], &["(15 more)".into()][..]));
        let again = cut.within(60);
        assert_eq!((&again.doubtful[..3], &again.doubtful[3..]), (&paths[..3], &["(17 more)".into()][..]));
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
