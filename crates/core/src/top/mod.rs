//! What `rankrun top` shows: the ranks of a job from one status to the next, their rates, and which of them are odd.
//!
//! A model takes the answers to `status` in order ([`Model::take`]). It has no clock: all times are those of the answers.
//!
//! * `bars.rs`: the progress bar that a rank wrote last.
//! * `odd.rs`: which ranks differ from the others.

mod bars;
mod model;
#[cfg(test)]
mod model_tests;
mod odd;
mod row;

pub use bars::{Bar, parse_bar};
pub use model::{Model, Sort, Totals};
pub use row::{Mark, Row};
