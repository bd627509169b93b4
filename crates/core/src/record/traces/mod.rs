//! The trace of a job, from its journal: OTLP in JSON, as `rankrun replay --otlp` prints it (docs/traces.md).
//!
//! * **T-1** Every span but the root has a parent that is in the export. That of the root is what `TRACEPARENT` named, or none.
//! * **T-2** A span lies within its parent: it begins no earlier, and ends no later.
//! * **T-3** The ids follow from the journal alone: two exports of it are the same.

mod builder;
mod happenings;
pub mod otlp;
mod spans;

pub use builder::Export;

#[cfg(test)]
mod tests;
