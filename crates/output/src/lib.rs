//! What people see of a job's output (docs/output.md): lines, tags, folding, progress bars, log files, and the spool.
//!
//! * [`Presenter`] turns the output of all ranks into the bytes of the front's stdout and stderr.
//! * [`LogFiles`] keeps a file for each rank and stream.
//! * [`Transcript`] keeps what the console was given, for those who look from elsewhere or later.
//! * [`Spool`] holds output that its destination cannot take yet.
//!
//! Nothing here has a thread or a clock. `now` is the time since the job's start, and `wall` the time since the Unix epoch.

mod config;
mod files;
mod screen;
mod text;

use files::{entry, left, logfiles, matches, places, recorder, reopened, spool, torn, transcript};
use screen::{presenter, region};
use text::{block, console, fold, grouped, lines, tag, template, time, unfinished};

pub use config::{Config, Mode, Names, PARTIAL_AFTER, PARTIAL_IN_PIPE_AFTER};
pub use console::{CONTINUED_MARK, CUT_MARK, Source};
pub use entry::{Entry, entries};
pub use left::Left;
pub use lines::MAX_LINE;
pub use logfiles::{LogError, LogFiles};
pub use matches::Matches;
pub use places::{LogPlaces, open};
pub use presenter::Presenter;
pub use recorder::Recorder;
pub use reopened::Recorded;
pub use spool::{Completion, Full, Record, Request, SPOOL_MEMORY, Spool, SpoolError};
pub use template::{Template, TemplateError};
pub use torn::OpenLines;
pub use transcript::{Head, Next, Transcript, TranscriptReader, is_of_transcript};
pub use unfinished::Unfinished;
