//! Which CPUs each rank of a node gets.

mod assign;
mod choose;
mod deal;
mod intel;
mod mvapich;
mod picture;
mod programs;
mod request;
#[cfg(test)]
mod tests;
mod wish;

pub use assign::{Count, Impossible, Place, Ranks, Sets, Unbound, assign};
pub use choose::{Choice, Claim, Free, LeftAlone, Taken, choose, left_alone};
pub use picture::picture;
pub use request::{BindTo, Binding, MapBy, MemoryBinding, Numbering, UnknownWord, Width};
pub use wish::{Wish, wish};
