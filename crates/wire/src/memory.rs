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
    /// How many more it had created, whose names found no room.
    pub more_created: u64,
    /// How many more it may have created, whose names found no room.
    pub more_doubtful: u64,
}

impl Memory {
    /// One word of ASCII without spaces: `/`, then `*CREATED,DOUBTFUL|` if there are more than have names here, then `+PATH|` or `?PATH|`
    /// for each.
    pub fn word(&self) -> String {
        let mut word = String::from("/");
        if (self.more_created, self.more_doubtful) != (0, 0) {
            // Writing into a string does not fail.
            let _ = write!(word, "*{},{}|", self.more_created, self.more_doubtful);
        }
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
            } else if let Some((created, doubtful)) = part.strip_prefix('*').and_then(|counts| counts.split_once(',')) {
                memory.more_created = created.parse().ok()?;
                memory.more_doubtful = doubtful.parse().ok()?;
            }
        }
        Some(memory)
    }

    /// As many of the names as fit into so many bytes, in a word too. The others are counted.
    pub fn within(mut self, bytes: usize) -> Memory {
        // The counts take room, too.
        let mut room = bytes.saturating_sub(44);
        let mut fits = |path: &OsString| {
            let length: usize = path.as_bytes().iter().map(|byte| if is_plain(*byte) { 1 } else { 3 }).sum();
            room = room.saturating_sub(length + 8);
            room > 0
        };
        let (created, doubtful) = (self.created.len(), self.doubtful.len());
        self.created.retain(&mut fits);
        self.doubtful.retain(&mut fits);
        self.more_created += (created - self.created.len()) as u64;
        self.more_doubtful += (doubtful - self.doubtful.len()) as u64;
        self
    }

    /// Names so many of the doubtful files, and counts the others.
    pub fn name_doubtful(&mut self, most: usize) {
        self.more_doubtful += self.doubtful.len().saturating_sub(most) as u64;
        self.doubtful.truncate(most);
    }

    /// Adds what somebody else has found on the same node. Those without names here may be the same ones.
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
        self.more_created = self.more_created.max(other.more_created);
        self.more_doubtful = self.more_doubtful.max(other.more_doubtful);
    }
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
            let more_created = names.len() as u64;
            let memory = Memory { created: names.clone(), doubtful: names, more_created, more_doubtful: 7 };
            let word = memory.word();
            assert!(word.bytes().all(|byte| byte.is_ascii_graphic()), "{word}");
            assert_eq!(Memory::of_word(&word), Some(memory));
        }
        assert_eq!(Memory::of_word("0"), None);
    }

    #[test]
    fn a_word_that_was_cut_has_only_whole_names() {
        let names: Vec<OsString> = ["/dev/shm/a", "/dev/shm/b c", "/dev/shm/abc"].map(OsString::from).into();
        let memory = Memory { created: names.clone(), doubtful: names.clone(), ..Memory::default() };
        let word = memory.word();
        let all = [names.clone(), names].concat();
        for length in 1..word.len() {
            let Memory { created, doubtful, .. } = Memory::of_word(&word[..length]).expect("it begins well");
            let found = [created, doubtful].concat();
            assert!(found.len() < all.len() && all.starts_with(&found), "{}: {found:?}", &word[..length]);
        }
    }

    #[test]
    fn names_within_a_bound_make_a_word_within_it() {
        let paths: Vec<OsString> = (0..600).map(|number| format!("/dev/shm/\u{e9} {number}").into()).collect();
        let memory = Memory { created: paths.clone(), doubtful: paths, ..Memory::default() }.within(2000);
        let word = memory.word();
        assert!((1000..=2000).contains(&word.len()), "{}", word.len());
        assert_eq!(Memory::of_word(&word), Some(memory));
    }

    #[test]
    fn names_that_find_no_room_are_counted() {
        let paths: Vec<OsString> = (10..30).map(|number| format!("/dev/shm/{number}").into()).collect();
        let memory = Memory { doubtful: paths.clone(), ..Memory::default() };
        assert_eq!(memory.clone().within(4096), memory);
        let cut = memory.clone().within(144);
        assert_eq!((&cut.doubtful[..], cut.more_doubtful), (&paths[..5], 15));
        let again = cut.within(104);
        assert_eq!((&again.doubtful[..], again.more_doubtful), (&paths[..3], 17));
        let created = Memory { created: paths.clone(), ..Memory::default() }.within(144);
        assert_eq!((&created.created[..], created.more_created, created.more_doubtful), (&paths[..5], 15, 0));
        let mut few = memory;
        few.name_doubtful(20);
        assert_eq!((few.doubtful.len(), few.more_doubtful), (20, 0));
        few.name_doubtful(8);
        assert_eq!((&few.doubtful[..], few.more_doubtful), (&paths[..8], 12));
    }

    #[test]
    fn what_two_have_found_is_named_once() {
        let memory = |created: &[&str], doubtful: &[&str]| Memory {
            created: created.iter().map(OsString::from).collect(),
            doubtful: doubtful.iter().map(OsString::from).collect(),
            more_created: created.len() as u64,
            more_doubtful: 0,
        };
        let mut both = memory(&["a"], &["b"]);
        both.add(memory(&["a", "c"], &["b", "c", "d"]));
        assert_eq!(both, memory(&["a", "c"], &["b", "d"]), "of one and two without names, two are certain");
    }
}
