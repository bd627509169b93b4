//! The terminal that rankrun was started on, and its stdin.

mod pause;
mod stdin;
mod tty;

pub(crate) use pause::{Pause, Whose, with_returns};
pub(crate) use stdin::Stdin;
pub(crate) use tty::{FrontTerminal, is_job_control};
