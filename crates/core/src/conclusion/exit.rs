//! rankrun's own exit codes (README, "Exit codes").

use serde::{Deserialize, Serialize};

/// The exit code of `rankrun`. A code of a rank passes through unchanged; what rankrun adds has a name here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExitCode(pub u8);

impl ExitCode {
    /// Every rank exited with 0.
    pub const SUCCESS: ExitCode = ExitCode(0);
    /// A rank left with 0, or a multiple of 256, and yet failed.
    pub const FAILURE: ExitCode = ExitCode(1);
    /// Usage error: nothing was started.
    pub const USAGE: ExitCode = ExitCode(2);
    /// The job was stopped as planned before its work was done: `EX_TEMPFAIL` of `sysexits.h`.
    pub const PLANNED_STOP: ExitCode = ExitCode(75);
    /// A node was lost.
    pub const NODE_LOST: ExitCode = ExitCode(121);
    /// A hang was detected.
    pub const HANG: ExitCode = ExitCode(122);
    /// Processes of the job could not be killed, or could not be proved gone.
    pub const LEFT_BEHIND: ExitCode = ExitCode(123);
    /// `--timeout` passed.
    pub const TIMEOUT: ExitCode = ExitCode(124);
    /// rankrun itself failed.
    pub const INTERNAL: ExitCode = ExitCode(125);
    /// The command could not be executed.
    pub const NOT_EXECUTABLE: ExitCode = ExitCode(126);
    /// The command was not found.
    pub const NOT_FOUND: ExitCode = ExitCode(127);

    /// 128 + n: ended by signal n.
    pub fn signal(signal: i32) -> ExitCode {
        ExitCode((128 + signal).clamp(129, 255) as u8)
    }
}
