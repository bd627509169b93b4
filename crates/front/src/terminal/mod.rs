//! The terminal that rankrun was started on, and its stdin.

mod pause;
mod stdin;
mod tty;

pub(crate) use pause::{JobControl, Pause, Whose};
pub(crate) use stdin::Stdin;
