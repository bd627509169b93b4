//! How many lines above the end of our stderr the last output of a rank is, so that the report does not print it again; and which streams
//! are within a line.

use std::collections::HashMap;

use rankrun_core::{Rank, RankSet, Stream};
use rankrun_output::{Config, Entry, Mode, OpenLines, Source};

/// Counts the lines that were shown where our stderr goes.
#[derive(Debug)]
pub(crate) struct Shown {
    /// Whether the ranks' output is shown as it comes.
    is_shown: bool,
    only: RankSet,
    hidden: [Option<RankSet>; 2],
    /// Stdout is shown in the same place.
    is_shared: bool,
    lines: u64,
    /// The lines that had been shown when a rank last wrote.
    last: HashMap<(Rank, Stream), u64>,
    /// The streams that are within a line, shown or not.
    open: OpenLines,
}

impl Shown {
    pub(crate) fn new(config: &Config) -> Shown {
        Shown {
            is_shown: !matches!(config.mode, Mode::None | Mode::Grouped),
            only: config.only.clone(),
            hidden: config.hidden.clone(),
            is_shared: config.same_destination,
            lines: 0,
            last: HashMap::new(),
            open: OpenLines::default(),
        }
    }

    /// A rank wrote these bytes.
    pub(crate) fn output(&mut self, rank: Rank, stream: Stream, bytes: &[u8]) {
        if self.is_shown
            && !self.hidden[stream.index()].as_ref().is_some_and(|ranks| ranks.contains(rank))
            && (stream == Stream::Stderr || self.is_shared)
            && self.only.contains(rank)
        {
            self.lines += memchr::memchr_iter(b'\n', bytes).count() as u64;
            self.last.insert((rank, stream), self.lines);
        }
    }

    /// The console was given this, or would have been if it took anything.
    pub(crate) fn follow(&mut self, entry: &Entry<'_>) {
        self.open.follow(entry);
    }

    /// The streams that are within a line.
    pub(crate) fn within(&self) -> Vec<Source> {
        self.open.list()
    }

    /// rankrun itself wrote this.
    pub(crate) fn notice(&mut self, text: &str) {
        self.lines += text.lines().count() as u64;
    }

    /// How many lines were shown since this rank last wrote; `None` if it has not, or is not shown here.
    pub(crate) fn lines_since(&self, rank: Rank, stream: Stream) -> Option<u64> {
        self.last.get(&(rank, stream)).map(|last| self.lines - last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_where_stderr_goes() {
        let (first, second) = (Rank(0), Rank(1));
        let mut config = Config::new(Mode::Line, 3);
        config.only = RankSet::of([first, second]);
        let mut shown = Shown::new(&config);
        shown.output(first, Stream::Stderr, b"Traceback\nValueError\n");
        shown.output(second, Stream::Stdout, b"x\n\n\n");
        shown.output(Rank(2), Stream::Stderr, b"x\n");
        assert_eq!(shown.lines_since(first, Stream::Stderr), Some(0), "stdout goes elsewhere");
        shown.notice("a\nb");
        shown.output(second, Stream::Stderr, b"x\ny");
        assert_eq!(shown.lines_since(first, Stream::Stderr), Some(3));
        assert_eq!(
            (shown.lines_since(second, Stream::Stdout), shown.lines_since(Rank(2), Stream::Stderr)),
            (None, None)
        );
        config.same_destination = true;
        let mut shown = Shown::new(&config);
        shown.output(first, Stream::Stderr, b"x\n");
        shown.output(second, Stream::Stdout, b"x\n\n");
        assert_eq!(shown.lines_since(first, Stream::Stderr), Some(2));
        config.mode = Mode::Grouped;
        let mut shown = Shown::new(&config);
        shown.output(first, Stream::Stderr, b"x\n");
        assert_eq!(shown.lines_since(first, Stream::Stderr), None);
    }
}
