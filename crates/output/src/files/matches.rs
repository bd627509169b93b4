//! Lines with certain texts, of all ranks in one file.

use std::collections::HashMap;
use std::path::PathBuf;

use memchr::memmem;
use rankrun_core::{GroupId, Rank, RankSet, portable};
use serde::{Deserialize, Serialize};

/// A line that is longer is looked at in pieces of this many bytes.
const LONGEST: usize = 64 << 10;

/// Which lines of a stream are copied, and where to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Matches {
    #[serde(with = "portable::paths")]
    pub file: PathBuf,
    pub ranks: RankSet,
    /// A line with one of these is copied.
    pub texts: Vec<Vec<u8>>,
    /// What is put in front of the lines of each rank.
    pub prefixes: Vec<Vec<u8>>,
}

/// The unfinished lines of the ranks.
#[derive(Debug, Default)]
pub(crate) struct Unfinished(HashMap<Rank, Vec<u8>>);

impl Matches {
    /// A rank wrote these bytes: returns its lines that are copied, as they are written.
    pub(crate) fn take(&self, unfinished: &mut Unfinished, rank: Rank, bytes: &[u8]) -> Vec<u8> {
        let mut found = Vec::new();
        if !self.ranks.contains(rank) {
            return found;
        }
        let line = unfinished.0.entry(rank).or_default();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(piece);
            if line.ends_with(b"\n") || line.len() > LONGEST {
                self.copy(rank, line, &mut found);
                line.clear();
            }
        }
        found
    }

    /// The stream of a rank has ended: the same for its last line.
    pub(crate) fn end(&self, unfinished: &mut Unfinished, rank: Rank) -> Vec<u8> {
        let mut found = Vec::new();
        if let Some(line) = unfinished.0.remove(&rank).filter(|line| !line.is_empty()) {
            self.copy(rank, &line, &mut found);
        }
        found
    }

    fn copy(&self, rank: Rank, line: &[u8], found: &mut Vec<u8>) {
        if self.texts.iter().any(|text| memmem::find(line, text).is_some()) {
            found.extend(
                self.prefixes.get(rank.number() as usize).filter(|_| rank.group() == GroupId(0)).into_iter().flatten(),
            );
            found.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
            found.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_looked_at_however_they_come() {
        let matches = Matches {
            file: "m".into(),
            ranks: RankSet::of([Rank(0), Rank(1)]),
            texts: vec![b"apple".to_vec(), b"or,ange".to_vec()],
            prefixes: vec![b"[0]:".to_vec(), b"[1]:".to_vec()],
        };
        let mut unfinished = Unfinished::default();
        let mut take = |rank, bytes: &[u8]| {
            String::from_utf8_lossy(&matches.take(&mut unfinished, Rank(rank), bytes)).into_owned()
        };
        assert_eq!(take(0, b"an app"), "");
        assert_eq!(take(1, b"an or,ange\nnothing\n"), "[1]:an or,ange\n");
        assert_eq!(take(0, b"le\na pear\npineapple"), "[0]:an apple\n");
        assert_eq!(take(2, b"apple\n"), "", "it is not one of the ranks");
        assert_eq!(matches.end(&mut unfinished, Rank(0)), b"[0]:pineapple\n");
        assert_eq!(matches.end(&mut unfinished, Rank(1)), b"");
    }
}
