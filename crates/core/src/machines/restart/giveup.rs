//! Why there is no other attempt.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::repeated::{EARLY, How};
use super::spoken::{restarts, spoken};
use crate::evidence::Class;
use crate::exit::ExitCode;

/// Why a job that failed is not restarted. It is written as a sentence that goes on after "rankrun".
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GiveUp {
    /// There have been as many restarts as the budget allows.
    Budget { restarts: u32, window: Option<Duration> },
    /// `--on-failure` may restart the job, and by itself it is not.
    NoBudget,
    /// Not one of `--restart-on`.
    Class(Class),
    /// One of `--no-restart-codes`.
    Code(ExitCode),
    /// The breaker.
    Repeated { how: How, what: String },
    /// Ranks could not be started, or did not become ready, so often in a row.
    NotStarted { tries: u32, is_not_ready: bool },
    /// `--on-failure` said so.
    Told,
    /// Processes of the last attempt could not be killed, or not be proved gone.
    Left,
}

impl fmt::Display for GiveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GiveUp::Budget { restarts: 0, .. } => f.write_str("gives up: the budget has no restarts"),
            GiveUp::Budget { restarts: count, window } => {
                write!(f, "gives up after {}", restarts(*count, *window))
            }
            GiveUp::NoBudget => f.write_str("gives up: there is no --restart"),
            GiveUp::Class(class) => write!(f, "gives up: --restart-on does not have \"{}\"", class.word()),
            GiveUp::Code(code) => write!(f, "gives up: --no-restart-codes has {}", code.0),
            GiveUp::Repeated { how: How::Early, what } => write!(
                f,
                "gives up: two attempts in a row failed within {} with the same error, which another restart would not \
                 cure: {what}",
                spoken(EARLY)
            ),
            GiveUp::Repeated { how: How::WithoutProgress, what } => write!(
                f,
                "gives up: two attempts in a row failed in the same way without any progress, which another restart \
                 would not cure: {what}"
            ),
            GiveUp::NotStarted { tries, is_not_ready } => {
                let what = if *is_not_ready { "ranks were not ready in time" } else { "ranks could not be started" };
                match tries {
                    1 => write!(f, "gives up: {what}"),
                    tries => write!(f, "gives up: {what} in {tries} tries"),
                }
            }
            GiveUp::Told => f.write_str("gives up: --on-failure said stop"),
            GiveUp::Left => f.write_str("gives up: processes of the last attempt may be left"),
        }
    }
}
