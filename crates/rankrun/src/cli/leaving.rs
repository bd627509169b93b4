//! The options for a job that goes on without its terminal, and their values.

use clap::Arg;
use rankrun_core::job::StdinTarget;
use rankrun_core::units::parse_size;

use crate::args::{choice, option};
use crate::choices::{self, Output};
use crate::message::Problem;
use crate::settings::{Settings, Sources};

/// How large the transcript may become by default.
const TRANSCRIPT_SIZE: u64 = 256 << 20;

/// What was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Leaving {
    /// The command ends when all ranks run.
    pub(crate) is_detached: bool,
    /// The job goes on when its terminal is gone.
    pub(crate) goes_on_after_hangup: bool,
    /// Bytes of the transcript.
    pub(crate) transcript_size: u64,
}

/// The options, for the help under `heading`.
pub(crate) fn args(heading: &'static str) -> Vec<Arg> {
    vec![
        choice(
            "on-hangup",
            "WHAT",
            heading,
            "What to do when the terminal is gone (SIGHUP)",
            "A terminal is gone when its window is closed, or its ssh connection ends. A job that goes on is seen with \"rankrun attach\". \
             It also goes on when a pipe that reads its output is closed.",
            choices::ON_HANGUP,
        ),
        option(
            "transcript-size",
            "SIZE",
            heading,
            "Output to keep of a job that is detached or looked at (default 256MiB)",
            "\"rankrun attach\" and \"rankrun logs\" read it, in the directory of the report. When there is more, the oldest is removed. \
             For all of the output use --log-dir.",
        ),
    ]
}

/// Reads them.
pub(crate) fn read(sources: &Sources<'_>, is_detached: bool) -> Result<Leaving, Problem> {
    let size = |text: &str| parse_size(text).map_err(|error| format!("{error}: write 64K, 100M or 1GiB"));
    Ok(Leaving {
        is_detached,
        goes_on_after_hangup: sources.choice("on-hangup", choices::ON_HANGUP)?.unwrap_or_default(),
        transcript_size: sources.get("transcript-size", size)?.unwrap_or(TRANSCRIPT_SIZE),
    })
}

/// Refuses what needs a terminal, or a command that waits, in a job that has neither.
pub(crate) fn check(settings: &Settings) -> Result<(), Problem> {
    let other = match () {
        () if settings.tty.is_some() => "--tty",
        () if settings.die_with_parent => "--die-with-parent",
        () if settings.output == Some(Output::Grouped) => "--output grouped",
        () if settings.stdin == Some(StdinTarget::Shared) => "--stdin shared",
        () => return Ok(()),
    };
    Err(Problem::usage(format!("--detach cannot be used with {other}")))
}
