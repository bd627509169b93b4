//! Frames of the Python interpreter (CPython 3.9 to 3.14), read from its memory.
//!
//! The layout of its structures is in [`layout`]: from 3.13 on the interpreter itself describes it, before that it did not
//! change within a minor version. While a thread is stopped only the chain of its frames is copied ([`runtime`]); what they
//! are called is read later ([`code`]), from objects that do not change.

mod code;
mod layout;
mod lines;
mod runtime;

pub(crate) use code::Codes;
pub(crate) use runtime::{Found, RawFrames, Runtime, find};
