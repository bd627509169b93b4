//! What the user chose about the console.

use std::path::PathBuf;
use std::time::Duration;

use rankrun_core::{AppIndex, LocalRank, Rank, RankMap, RankSet, Stream, portable};
use serde::{Deserialize, Serialize};

use crate::template::Template;

/// How the output of many ranks becomes one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Mode {
    /// Line by line, none torn, in the order in which they end.
    #[default]
    Line,
    /// Bytes as they come. Tags, timestamps and colours do not apply.
    Raw,
    /// Rank by rank, when the job is over.
    Grouped,
    /// Identical lines of several ranks as one line.
    Folded,
    /// Nothing.
    None,
}

/// The settings of a [`Presenter`](crate::Presenter).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Config {
    pub mode: Mode,
    /// The text in front of each line; `None` is no tag, except in [`Mode::Folded`], which then has the default one.
    pub tag: Option<Template>,
    /// Put the wall time in front of each line, before the tag: UTC, to the millisecond.
    pub timestamps: bool,
    /// The ranks that are shown.
    pub only: RankSet,
    /// The ranks whose stdout and stderr are not shown, since they go to files instead.
    pub hidden: [Option<RankSet>; 2],
    /// Give the tag of each rank a colour.
    pub color: bool,
    /// The number of ranks, for the width of tags and for knowing when a folded line is complete.
    pub world_size: u32,
    /// Rows and columns of the terminal, if the console is one: progress lines then have a region at its bottom.
    pub status: Option<(u16, u16)>,
    /// The stream whose destination that terminal is, if stdout and stderr have different ones.
    pub status_on: Stream,
    /// Stdout and stderr are the same terminal or open file. All bytes then come out on [`Stream::Stdout`], because only
    /// one sequence of bytes can keep the rows of two streams apart.
    pub same_destination: bool,
    /// For stdout and stderr, the quiet after which an unterminated line, such as a prompt, is shown. `None` never shows one before it
    /// ends, which suits a regular file.
    pub partial_after: [Option<Duration>; 2],
    /// Where grouped output that does not fit in memory waits, in an unlinked file. The caller waits for its file system, so it is
    /// not the user's.
    #[serde(with = "portable::paths")]
    pub temp_dir: PathBuf,
}

impl Config {
    /// Whether what a rank writes to a stream is shown.
    pub fn shows(&self, rank: Rank, stream: Stream) -> bool {
        !self.hides(rank, stream) && self.only.contains(rank)
    }

    /// Whether a stream of a rank goes to a file instead.
    pub fn hides(&self, rank: Rank, stream: Stream) -> bool {
        self.hidden[stream.index()].as_ref().is_some_and(|ranks| ranks.contains(rank))
    }

    /// All ranks, no tags, and a console that is no terminal.
    pub fn new(mode: Mode, world_size: u32) -> Config {
        Config {
            mode,
            tag: None,
            timestamps: false,
            only: RankSet::All,
            hidden: [None, None],
            color: false,
            world_size,
            status: None,
            status_on: Stream::Stderr,
            same_destination: false,
            partial_after: [Some(PARTIAL_AFTER); 2],
            temp_dir: PathBuf::from("/tmp"),
        }
    }
}

/// Long enough for a program that writes a line in pieces, short enough for a person at a prompt.
pub const PARTIAL_AFTER: Duration = Duration::from_millis(100);

/// The same where several ranks write to what is no terminal. `python -u` writes each argument of `print` by itself, and on a busy
/// machine the next may come long after: a program that reads the lines would get a preview as one more.
pub const PARTIAL_IN_PIPE_AFTER: Duration = Duration::from_secs(1);

/// What a rank is called in tags.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    pub node: String,
    pub local_rank: LocalRank,
    pub app: AppIndex,
}

impl Names {
    /// What a map calls its ranks.
    pub fn of(map: RankMap) -> impl Fn(Rank) -> Names + Send + 'static {
        move |rank| match map.place(rank) {
            Some(place) => {
                Names { node: map.node_name(place.node).to_owned(), local_rank: place.local_rank, app: place.app }
            }
            None => Names { node: String::new(), local_rank: Default::default(), app: Default::default() },
        }
    }
}
