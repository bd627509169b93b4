//! The terminal that rankrun was started on, and its stdin.

mod pause;
mod stdin;
mod tty;
mod typed;

pub(crate) use pause::{JobControl, Pause, Whose};
pub(crate) use stdin::Reader;
pub(crate) use typed::{Fate, PieceId, Typed, TypedSoFar};

/// The stdin of ranks that get it from the front.
#[derive(Debug)]
pub(crate) enum Stdin {
    /// The front's own.
    Read(Reader),
    /// Of a detached job.
    Typed(Typed),
}
