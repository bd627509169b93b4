//! The terminal that rankrun was started on, and its stdin.

mod stdin;
mod tty;

pub(crate) use stdin::Stdin;
pub(crate) use tty::{FrontTerminal, is_job_control};
