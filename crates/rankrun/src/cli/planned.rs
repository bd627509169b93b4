//! The options for planned stops, and their values.

use std::ffi::OsString;
use std::time::Duration;

use clap::Arg;
use rankrun_core::planned::OnPlannedStop;

use crate::args::{choice, option};
use crate::choices;
use crate::message::Problem;
use crate::settings::{Sources, duration};

/// What was asked for. What a file, a command and the end of an allocation are, is looked up later.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct PlannedSettings {
    pub(crate) limit: Option<Limit>,
    /// As it was written.
    pub(crate) notice: Option<OsString>,
    pub(crate) on_stop: OnPlannedStop,
}

/// The time limit of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Limit {
    /// Shortly before the end of the allocation.
    Auto,
    After(Duration),
}

/// The options, for the help under `heading`.
pub(crate) fn args(heading: &'static str) -> Vec<Arg> {
    vec![
        option(
            "time-limit",
            "DURATION",
            heading,
            "Stop the job as planned after this time; exit code 75",
            "The ranks get --stop-signal and --grace to save their state. This is no failure: it is not followed by a restart. \
             \"auto\" is the end of the allocation of Slurm (SLURM_JOB_END_TIME), less the graces and 30s. 0 means no limit.",
        ),
        option(
            "preempt-notice",
            "COMMAND|FILE",
            heading,
            "Stop the job as planned when this file appears or this command succeeds",
            "A single word with a slash that is no program is a file, as is file:PATH: it is looked for every second. Anything else \
             is a command: it is run from the start of the job, and 5s after each end with another code than 0.",
        ),
        choice(
            "on-planned-stop",
            "WHAT",
            heading,
            "What to do after a planned stop",
            "Planned stops are those of --time-limit and --preempt-notice, and with \"requeue\" also SIGTERM to rankrun. ^C and \
             \"rankrun stop\" are none.",
            choices::ON_PLANNED_STOP,
        ),
    ]
}

/// Reads them.
pub(crate) fn read(sources: &Sources<'_>) -> Result<PlannedSettings, Problem> {
    Ok(PlannedSettings {
        limit: sources.get("time-limit", read_limit)?.flatten(),
        notice: sources.path("preempt-notice")?.map(|given| given.text),
        on_stop: sources.choice("on-planned-stop", choices::ON_PLANNED_STOP)?.unwrap_or_default(),
    })
}

fn read_limit(text: &str) -> Result<Option<Limit>, String> {
    match text {
        "auto" => Ok(Some(Limit::Auto)),
        text => match duration(text) {
            Ok(limit) => Ok((!limit.is_zero()).then_some(Limit::After(limit))),
            Err(error) => Err(format!("{error}, or auto")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_is_a_duration_or_the_end_of_the_allocation() {
        assert_eq!(read_limit("auto"), Ok(Some(Limit::Auto)));
        assert_eq!(read_limit("55m"), Ok(Some(Limit::After(Duration::from_secs(55 * 60)))));
        assert_eq!(read_limit("0"), Ok(None));
        let error = read_limit("soon").expect_err("it is neither");
        insta::assert_snapshot!(error, @r#""soon" is not a duration: write 500ms, 5s, 1m30s or 2h, or auto"#);
    }
}
