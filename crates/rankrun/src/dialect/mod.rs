//! What the dialects have in common: the command line of another launcher becomes one of ours (docs/adr/0023).
//!
//! A dialect has one table of the options of its launcher, which its translator, its help and its page of the documentation
//! read. [`Here`] is what an option is here; [`Reading`] is what comes out.

mod fields;
mod here;
#[cfg(test)]
pub(crate) mod page;
mod reading;

pub(crate) use fields::{For, fill, literal, name_in_braces, with_value};
pub(crate) use here::Here;
pub(crate) use reading::{Reading, Stop, Typed, Without};
