//! What the user says about binding to an MPI library, by variables.

use super::request::{BindTo, Binding};
use crate::topology::CpuSet;

/// How ranks are bound by the variables of their MPI library.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wish {
    pub binding: Binding,
    /// What is done differently, for the user.
    pub notes: Vec<String>,
}

/// A list for each rank in turn.
pub(super) fn lists(wish: &mut Wish, mut lists: Vec<CpuSet>) {
    if lists.len() == 1 {
        // One list alone would be shared out.
        wish.binding.to = BindTo::None;
    }
    wish.binding.cpus.append(&mut lists);
}

pub(super) fn is_off(text: &str) -> bool {
    ["0", "no", "off", "false", "disable"].iter().any(|off| text.trim().eq_ignore_ascii_case(off))
}

/// A number of CPUs.
pub(super) fn number(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|count| *count > 0)
}
