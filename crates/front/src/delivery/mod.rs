//! Where what ranks and rankrun itself have to say goes: screen, log files, report.

mod core_file;
mod destinations;
mod files;
mod journal;
mod last_words;
mod notes;
mod prune;
mod shown;
mod sink;
mod voices;

pub(crate) use destinations::{Delivery, Opened, Threads, Told};
pub(crate) use files::{Directory, Done, Files, Task, Unusable, save};
pub(crate) use journal::Journal;
pub(crate) use last_words::LastWords;
pub(crate) use notes::Notes;
pub(crate) use voices::Voices;
