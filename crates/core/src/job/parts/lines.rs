//! When each rank last wrote, and its last line.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Rank, Stream};

/// Bytes that are kept of each stream of a rank: the end of a long line is enough.
const KEPT: usize = 256;

/// The ends of the ranks' outputs.
#[derive(Debug, Default)]
pub struct LastLines {
    ranks: BTreeMap<Rank, [End; 2]>,
}

#[derive(Debug, Default)]
struct End {
    at: Option<Duration>,
    bytes: Vec<u8>,
}

impl LastLines {
    /// A rank wrote these bytes.
    pub fn write(&mut self, now: Duration, rank: Rank, stream: Stream, bytes: &[u8]) {
        let end = &mut self.ranks.entry(rank).or_default()[stream.index()];
        end.at = Some(now);
        end.bytes.extend_from_slice(&bytes[bytes.len().saturating_sub(KEPT)..]);
        if end.bytes.len() > 2 * KEPT {
            end.bytes.drain(..end.bytes.len() - KEPT);
        }
    }

    /// The rank is started again.
    pub fn forget(&mut self, rank: Rank) {
        self.ranks.remove(&rank);
    }

    /// When the rank last wrote, and the last line that is not empty.
    pub fn last(&self, rank: Rank) -> (Option<Duration>, Option<String>) {
        let Some(ends) = self.ranks.get(&rank) else { return (None, None) };
        let last = ends.iter().filter(|end| end.at.is_some()).max_by_key(|end| end.at);
        let line = |end: &End| {
            let text = String::from_utf8_lossy(&end.bytes).into_owned();
            let line = text.split(['\n', '\r']).rev().find(|line| !line.trim().is_empty());
            line.map(str::to_owned)
        };
        (last.and_then(|end| end.at), last.and_then(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_one_that_was_written_last() {
        let mut last_lines = LastLines::default();
        let s = Duration::from_secs;
        last_lines.write(s(1), Rank(0), Stream::Stdout, b"epoch 1\nepoch 2\n\n");
        last_lines.write(s(2), Rank(0), Stream::Stderr, b"10%\r20%");
        assert_eq!(last_lines.last(Rank(0)), (Some(s(2)), Some("20%".to_owned())));
        last_lines.write(s(3), Rank(0), Stream::Stdout, b"epo");
        last_lines.write(s(4), Rank(0), Stream::Stdout, b"ch 3\n");
        assert_eq!(last_lines.last(Rank(0)), (Some(s(4)), Some("epoch 3".to_owned())));
        assert_eq!(last_lines.last(Rank(1)), (None, None));
        for _ in 0..100 {
            last_lines.write(s(5), Rank(1), Stream::Stdout, &[b'x'; 1000]);
        }
        let (_, line) = last_lines.last(Rank(1));
        assert!(line.is_some_and(|line| (KEPT..=2 * KEPT).contains(&line.len())));
    }
}
