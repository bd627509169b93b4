//! What the evidence of one rank comes to.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::evidence::Class;
use crate::exit::ExitCode;
use crate::ids::{Pid, Rank};
use crate::order::Weight;
use crate::peers::{Loss, loss_in, loss_of};
use crate::testimony::{Exception, StuckIn};

/// What all evidence of one rank comes to.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    pub rank: Rank,
    pub class: Class,
    pub weight: Weight,
    /// When the failure began, since the start of the job.
    pub at: Duration,
    /// The program reported it as it happened, so that its time is exact.
    #[serde(skip)]
    pub is_reported: bool,
    pub pid: Option<Pid>,
    /// In the program's own words where it had any.
    pub cause: String,
    pub code: ExitCode,
    pub exception: Option<Exception>,
    pub stuck_in: Option<StuckIn>,
    pub stuck_since: Option<Duration>,
    /// The lines around the cause, where they are known.
    pub window: Option<Window>,
}

impl Finding {
    /// What the rank says to have lost, if that is why it failed.
    pub(crate) fn loss(&self) -> Option<Loss> {
        let said = || self.exception.as_ref().map_or_else(|| loss_in(&self.cause), loss_of);
        if self.weight == Weight::Victim { said() } else { None }
    }
}

/// Lines that a program wrote around the cause of its failure, as it wrote them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Window {
    pub origin: Origin,
    pub lines: Vec<String>,
}

/// Where the lines of a [`Window`] come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    Stderr,
    Stdout,
    /// A traceback that its program sent to rankrun itself.
    Traceback,
}
