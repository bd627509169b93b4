//! What was found in /dev/shm of a node after the job (K-8), and the word in which a guard leaves it for its parent and a relay for the
//! front.

use std::collections::HashSet;
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
                memory.more_created = created.parse().unwrap_or_default();
                memory.more_doubtful = doubtful.parse().unwrap_or_default();
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

    /// Adds what somebody else has found on the same node. Those without names on one side may be those that the other names.
    pub fn add(&mut self, other: Memory) {
        self.more_created = more(&self.created, self.more_created, &other.created, other.more_created);
        self.more_doubtful = more(&self.doubtful, self.more_doubtful, &other.doubtful, other.more_doubtful);
        unite(&mut self.created, other.created);
        unite(&mut self.doubtful, other.doubtful);
        let created: HashSet<&OsString> = self.created.iter().collect();
        self.doubtful.retain(|path| !created.contains(path));
    }
}

/// How many there are at least that neither side names.
fn more(ours: &[OsString], more_of_ours: u64, theirs: &[OsString], more_of_theirs: u64) -> u64 {
    let (ours, theirs): (HashSet<_>, HashSet<_>) = (ours.iter().collect(), theirs.iter().collect());
    let beyond = |more: u64, named: usize| more.saturating_sub(named as u64);
    let of_theirs = beyond(more_of_theirs, ours.difference(&theirs).count());
    beyond(more_of_ours, theirs.difference(&ours).count()).max(of_theirs)
}

fn unite(ours: &mut Vec<OsString>, theirs: Vec<OsString>) {
    let known: HashSet<OsString> = ours.iter().cloned().collect();
    ours.extend(theirs.into_iter().filter(|path| !known.contains(path)));
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
    fn what_two_have_found_is_named_and_counted_once() {
        let memory = |created: &[&str], more_created, doubtful: &[&str], more_doubtful| Memory {
            created: created.iter().map(OsString::from).collect(),
            doubtful: doubtful.iter().map(OsString::from).collect(),
            more_created,
            more_doubtful,
        };
        let both = |mut one: Memory, other: Memory| {
            one.add(other);
            one
        };
        let one = memory(&["a"], 0, &["b", "c"], 0);
        let other = memory(&["a", "c"], 0, &["b", "d"], 0);
        assert_eq!(both(one, other), memory(&["a", "c"], 0, &["b", "d"], 0), "what one knows to be the job's, is");
        // All that one side counts may be what the other names, and is at least as much.
        let (all, some) = (memory(&["a", "b", "c"], 0, &[], 0), memory(&["b"], 2, &[], 0));
        assert_eq!(both(all.clone(), some.clone()), all);
        assert_eq!(both(some, all.clone()), memory(&["b", "a", "c"], 0, &[], 0));
        assert_eq!(both(all, memory(&["b"], 9, &[], 4)), memory(&["a", "b", "c"], 7, &[], 4));
        assert_eq!(both(memory(&[], 0, &["a"], 1), memory(&[], 0, &["b"], 1)), memory(&[], 0, &["a", "b"], 0));
    }

    #[test]
    fn a_count_that_is_no_number_loses_no_name() {
        let memory = Memory::of_word("/*a,b|+/dev/shm/c|").expect("it begins well");
        assert_eq!((memory.created, memory.more_created), (vec![OsString::from("/dev/shm/c")], 0));
    }
}
