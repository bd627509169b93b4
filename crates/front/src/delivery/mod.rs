//! Delivers the output of the ranks and of rankrun: to screen, log files, report.

mod core_file;
mod destinations;
mod event;
mod files;
mod journal;
mod leaving;
mod logging;
mod notices;
mod perform;
mod prune;
pub(crate) mod report;
mod results;
mod shown;
mod sink;
mod storage;
mod task;
mod termination;
mod transcript;
mod writers;

pub(crate) use destinations::{Delivery, Opened};
pub(crate) use event::{DeliveryEvent, SILENCE_BOUND};
pub(crate) use files::Files;
pub(crate) use journal::Journal;
pub(crate) use notices::{Notices, text_of_standings, text_of_table};
pub(crate) use perform::perform;
pub(crate) use sink::{News, Sink, THREAD_RETRY};
pub use storage::run_storage;
pub use task::TRANSCRIPT;
pub(crate) use task::{Destination, Directory, Done, Stamped, Task, Unusable};
pub(crate) use termination::{LAST_BYTES, last_lines};
pub(crate) use transcript::{Recording, TranscriptPlace};
pub(crate) use writers::Writers;
