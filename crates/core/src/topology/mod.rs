//! What a machine is made of, and which part of it a job may use.

mod cpuset;
mod devices;
mod machine;
#[cfg(test)]
pub(crate) mod recorded;
#[cfg(test)]
mod tests;
mod xml;

pub use cpuset::{CpuSet, CpuSetError};
pub use devices::{Device, DeviceKind, devices};
pub use machine::{Core, Files, Level, Machine};
pub use xml::xml;
