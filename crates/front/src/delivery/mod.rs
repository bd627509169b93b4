//! Delivers the output of the ranks and of rankrun: to screen, log files, report.

mod core_file;
mod destinations;
mod files;
mod journal;
mod last_lines;
mod last_words;
mod notes;
mod prune;
mod shown;
mod sink;
mod storage;
mod task;

pub(crate) use destinations::{Delivery, DeliveryEvent, Opened, Threads};
pub(crate) use files::Files;
pub(crate) use journal::Journal;
pub(crate) use last_lines::LastLines;
pub(crate) use last_words::LastWords;
pub(crate) use notes::Notes;
pub(crate) use prune::report_of;
pub use storage::{STORAGE, run_storage};
pub(crate) use task::{Destination, Directory, Done, Stamp, Task, Unusable};
