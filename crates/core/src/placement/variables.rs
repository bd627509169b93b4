//! The variables of MPI libraries that say how ranks are bound.

use super::request::Binding;
use super::wish::Wish;
use super::{intel, mvapich};

/// What is wanted by variables of Intel MPI or MVAPICH with these values, for so many ranks on a node. `None`: nothing, or what the library does itself.
pub fn wish(value: &dyn Fn(&str) -> Option<String>, ranks: u32) -> Option<Wish> {
    let named = |wish: Wish, variables: &str| {
        let variables = wish.binding.is_asked_for().then(|| variables.to_owned());
        Wish { binding: Binding { variables, ..wish.binding }, ..wish }
    };
    let of_intel = || Some(named(intel::wish(value, ranks)?, "I_MPI_PIN_*"));
    of_intel().or_else(|| Some(named(mvapich::wish(value)?, "MV2_CPU_* and MVP_CPU_*")))
}
