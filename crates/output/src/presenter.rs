//! The console: what the ranks write, as one text.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use rankrun_core::{Rank, Stream};

use crate::config::{Config, Mode, Names};
use crate::console::{Console, Row, Rows, Source};
use crate::lines::LineBuffer;
use crate::tag::Tagger;

/// While this many bytes wait for a destination, unfinished lines are not shown: the quiet is the destination's.
const BEHIND: usize = 64 * 1024;

/// Turns the output of all ranks into the bytes of the front's stdout and stderr.
///
/// `now` is always the time since the job's start, and never goes back; `wall` is the time since the Unix epoch.
#[derive(Debug)]
pub struct Presenter {
    config: Config,
    tagger: Tagger,
    sources: HashMap<Source, SourceState>,
    consoles: [Console; 2],
    /// When to look whether an unfinished line has been quiet for long enough. At most one entry a source.
    quiet: BinaryHeap<Reverse<(Duration, Source)>>,
}

/// What is known of one stream of one rank.
#[derive(Debug, Default)]
struct SourceState {
    line: LineBuffer,
    /// The tag, as of `wall`.
    prefix: Vec<u8>,
    wall: Duration,
    /// When the unfinished line last grew.
    grew: Duration,
    /// It has an entry in `quiet`.
    is_watched: bool,
}

impl Presenter {
    /// `names` says what a rank is called; it is asked once for each stream of a rank, or for each line if its tag
    /// changes with every line.
    pub fn new(config: Config, names: impl Fn(Rank) -> Names + Send + 'static) -> Presenter {
        Presenter {
            tagger: Tagger::new(&config, Box::new(names)),
            config,
            sources: HashMap::new(),
            consoles: Default::default(),
            quiet: BinaryHeap::new(),
        }
    }

    /// A rank wrote these bytes.
    pub fn output(&mut self, now: Duration, wall: Duration, rank: Rank, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() || self.config.mode == Mode::None || !self.config.only.contains(rank) {
            return;
        }
        let console = &mut self.consoles[console_of(&self.config, stream)];
        if self.config.mode == Mode::Raw {
            console.pending.extend_from_slice(bytes);
            console.row = if bytes.ends_with(b"\n") {
                Row::Start
            } else {
                Row::Dangling
            };
            return;
        }
        let source = (rank, stream);
        let state = self.sources.entry(source).or_insert_with(|| {
            let mut state = SourceState::default();
            self.tagger.rank(rank, stream, wall, &mut state.prefix);
            state
        });
        if self.tagger.has_time() && state.wall != wall {
            state.prefix.clear();
            self.tagger.rank(rank, stream, wall, &mut state.prefix);
        }
        state.wall = wall;
        let mut rows = Rows {
            console: &mut *console,
            source,
            prefix: &state.prefix,
        };
        state.line.feed(bytes, &mut rows);
        state.grew = now;
        if state.line.text().is_empty() || state.line.is_progress() {
            return;
        }
        match state.line.shown() {
            Some(shown) if console.row == Row::Open(source) => {
                console.out().extend_from_slice(&state.line.text()[shown..]);
                state.line.mark_shown();
            }
            _ => {
                if let Some(after) = self.config.partial_after
                    && !state.is_watched
                {
                    state.is_watched = true;
                    self.quiet.push(Reverse((now + after, source)));
                }
            }
        }
    }

    /// A stream of a rank has ended: its unterminated last line is flushed.
    ///
    /// That line gets a newline if it has a tag or if anything follows it; an untagged last line is left as it was written.
    pub fn closed(&mut self, _now: Duration, rank: Rank, stream: Stream) {
        let source = (rank, stream);
        let Some(state) = self.sources.get_mut(&source) else {
            return;
        };
        let console = &mut self.consoles[console_of(&self.config, stream)];
        let mut rows = Rows {
            console,
            source,
            prefix: &state.prefix,
        };
        state.line.close(&mut rows);
    }

    /// Does what is due by now: shows unfinished lines that have been quiet for [`Config::partial_after`].
    ///
    /// To be called at [`next_deadline`](Self::next_deadline), or at any other time, but only when what was taken before
    /// has been written: while the destination is behind, the quiet of a rank means nothing.
    pub fn tick(&mut self, now: Duration) {
        let Some(after) = self.config.partial_after else {
            return;
        };
        while let Some(Reverse((due, source))) = self.quiet.peek().copied()
            && due <= now
        {
            self.quiet.pop();
            let Some(state) = self.sources.get_mut(&source) else {
                continue;
            };
            state.is_watched = false;
            let console = &mut self.consoles[console_of(&self.config, source.1)];
            let is_shown = state.line.shown().is_some() && console.row == Row::Open(source);
            if state.line.text().is_empty() || state.line.is_progress() || is_shown {
                continue;
            }
            let is_behind = console.pending.len() >= BEHIND;
            if state.grew + after > now || is_behind {
                state.is_watched = true;
                let due = if is_behind { now } else { state.grew };
                self.quiet.push(Reverse((due + after, source)));
                continue;
            }
            console.open_row(source, &state.prefix, state.line.is_continued(), state.line.text());
            state.line.mark_shown();
        }
    }

    /// When [`tick`](Self::tick) has something to do, if it has.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.quiet.peek().map(|Reverse((due, _))| *due)
    }

    /// The job is over and every stream closed: hands out what was kept for the end.
    ///
    /// Returns whether there is more: then what is pending is to be written and `finish` to be called again, so that
    /// grouped output, which may be large, never has to be in memory as a whole.
    #[must_use = "there may be more to come"]
    pub fn finish(&mut self, _now: Duration) -> bool {
        false
    }

    /// The bytes that are ready for the front's own stdout or stderr. Whoever writes them takes them, with
    /// [`std::mem::swap`] and an empty vector, whose capacity is then used again.
    pub fn pending(&mut self, stream: Stream) -> &mut Vec<u8> {
        &mut self.consoles[stream.index()].pending
    }
}

fn console_of(config: &Config, stream: Stream) -> usize {
    if config.same_destination {
        Stream::Stdout.index()
    } else {
        stream.index()
    }
}
