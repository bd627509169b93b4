//! `rankrun top`: a job and its ranks on the terminal, once a second.
//!
//! * `view.rs` and `keys.rs`: what the user looks at, and what keys do. Pure.
//! * `draw.rs`, `list.rs`, `grid.rs`, `panel.rs`, `figures.rs`: the picture. Pure.
//! * `feed.rs`: the connections to the job. `screen.rs`: the terminal. `run.rs`: the loop around both.
//!
//! What is shown of the ranks is decided in `rankrun_core::top`.

mod draw;
mod feed;
mod figures;
mod grid;
mod keys;
mod list;
mod panel;
mod run;
mod screen;
#[cfg(test)]
mod screens_tests;
mod view;

pub(crate) use draw::{Kind, Line, header};
pub(crate) use feed::in_words;
pub(crate) use figures::time;
pub(crate) use grid::{LEGEND, character};
pub(crate) use list::{Column, state, telling, words};
pub(crate) use panel::fields;
pub(crate) use run::run;
#[cfg(test)]
pub(crate) use screens_tests::model;
pub(crate) use view::{Layout, MOST_LISTED};
