//! The variables of MPI libraries that say how ranks are bound.

use super::wish::Wish;
use super::{intel, mvapich};

/// What is wanted by variables of Intel MPI or MVAPICH with these values. `None`: nothing, or what the library does itself.
pub fn wish(value: &dyn Fn(&str) -> Option<String>) -> Option<Wish> {
    intel::wish(value).or_else(|| mvapich::wish(value))
}
