//! Which CPUs each rank of a node gets.

mod assign;
mod choose;
mod deal;
mod elements;
mod intel;
mod libraries;
mod mvapich;
mod picture;
mod programs;
mod ranks;
mod request;
#[cfg(test)]
mod tests;
mod variables;
mod wish;

pub use assign::assign;
pub use choose::{Choice, Claim, Free, LeftAlone, Taken, choose, left_alone};
pub use picture::picture;
pub use ranks::{Count, Impossible, Place, Ranks, Sets, Unbound};
pub use request::{BindTo, Binding, MapBy, MemoryBinding, Numbering, Width};
pub use variables::wish;
pub use wish::Wish;
