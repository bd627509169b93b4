//! The torchrun dialect: a command line of torchrun becomes one of ours.
//!
//! `rankrun torchrun …`, and a binary that is called `torchrun`, take the options of torchrun 2.15, its abbreviations and its
//! `PET_*` variables. What each of them is here is in one [`table`], which docs/torchrun.md shows. [`parse`] finds the options,
//! [`translate`] writes them as ours; the result is read by the parser of our own options, so that a setting has one meaning.

mod completion;
mod describe;
mod logs;
mod parse;
mod rendezvous;
mod table;
mod translate;

#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::path::Path;

use crate::habits::{Habit, Here, Launcher};

pub(crate) use describe::{names, options};
pub(crate) use translate::{Around, read};

/// The word after `rankrun` that asks for the dialect.
pub(crate) const SUBCOMMAND: &str = "torchrun";

/// The options of the dialect, as the parser of our own options knows them.
pub(crate) fn habits() -> impl Iterator<Item = Habit> {
    table::TABLE.iter().flat_map(|row| {
        let here = Here::of_dialect(&row.here, SUBCOMMAND);
        let spellings = [std::slice::from_ref(&row.name), row.short.as_slice()];
        spellings.map(|names| Habit { launchers: &[Launcher::Torchrun], names, value: row.value, here })
    })
}

/// Whether a program that was called as `path` speaks the dialect.
pub(crate) fn is_name(path: &OsStr) -> bool {
    Path::new(path).file_name().is_some_and(|name| name == SUBCOMMAND)
}
