//! Planned stops: the job ends before its work is done, so that it can go on later.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::status::signal_name;
use crate::units::format_duration;

/// A stop that is no failure: the program saves its state, and a later run of the job goes on from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PlannedStop {
    pub why: PlannedWhy,
    /// The scheduler is asked to run the job again.
    pub requeues: bool,
}

/// What asks for a planned stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlannedWhy {
    /// `--time-limit` has passed.
    TimeLimit(Duration),
    /// `--preempt-notice` has come.
    Notice,
    /// A signal in a job of a scheduler.
    Signal(i32),
}

impl fmt::Display for PlannedWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlannedWhy::TimeLimit(limit) => write!(f, "its time limit (--time-limit {})", format_duration(*limit)),
            PlannedWhy::Notice => f.write_str("a preemption notice (--preempt-notice)"),
            PlannedWhy::Signal(signal) => write!(f, "{} of the scheduler", signal_name(*signal)),
        }
    }
}

impl PlannedStop {
    /// The stop as the report names it.
    pub fn headline(&self) -> String {
        let requeue = if self.requeues { ", to be requeued" } else { "" };
        format!("stopped as planned for {}{requeue}", self.why)
    }
}
