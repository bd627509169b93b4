//! Lines, their tags and times, and how many of them become one.

pub(crate) mod block;
pub(crate) mod console;
pub(crate) mod fold;
pub(crate) mod grouped;
pub(crate) mod lines;
pub(crate) mod tag;
pub(crate) mod template;
pub(crate) mod time;
pub(crate) mod unfinished;
