//! What is written down and shown: the events of a job, its report, and the words in them.

pub mod advice;
pub mod attempts;
pub mod calendar;
pub mod changes;
pub mod control;
pub mod core_dump;
pub mod event;
pub mod foreign_codes;
pub mod hookless;
mod making;
pub mod memory;
pub mod notes;
pub mod overview;
pub mod past;
pub mod printable;
pub mod prometheus;
pub mod reach;
pub mod report;
pub mod result;
pub mod saved;
pub mod standing;
pub mod suggest;
pub mod text;
pub mod torchrun_summary;
pub mod traces;
pub mod usage;
