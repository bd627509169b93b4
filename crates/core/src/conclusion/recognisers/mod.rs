//! What the last lines of a program's output say of its failure: recognisers, one table for each family of programs.
//!
//! A recogniser finds the last message of its kind in a tail of lines. Which of several messages is the cause is decided
//! by `choose`: a message that accounts for how the process ended comes before one that merely stands at the end, and of
//! equals the last one counts. What was written long before the end, and does not account for it, has been survived.
//!
//! Each recogniser has a sample of what a real program wrote (`conclusion/samples`).

mod choose;
mod languages;
mod logs;
mod message;
mod mpi;
mod native;
mod python;
mod shell;
mod test_tools;

pub(crate) use choose::choose;
pub(crate) use message::End;
pub(crate) use mpi::{abort_banner, without_boxes};
pub(crate) use native::is_of_make;
pub(crate) use python::ends_with_traceback;

#[cfg(test)]
pub(crate) use choose::names;
#[cfg(test)]
mod tests;
