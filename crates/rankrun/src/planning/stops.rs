//! Planned stops: what the words of their options mean on this machine, in this allocation.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rankrun_core::job::StopPolicy;
use rankrun_core::planned::{Notice, OnPlannedStop, PlannedSpec};
use rankrun_core::units::format_duration;

use crate::message::Problem;
use crate::plan::Surroundings;
use crate::planned::Limit;
use crate::settings::Settings;
use crate::{ask, program, words};

/// Slurm's time of the end of the allocation, in seconds since the Unix epoch.
const END: &str = "SLURM_JOB_END_TIME";
/// What marks a file.
const FILE: &[u8] = b"file:";
/// What rankrun needs after the ranks have ended: the report, and the scheduler's answer.
const MARGIN: Duration = Duration::from_secs(30);

/// The planned stops of a job.
pub(crate) fn spec(settings: &Settings, stop: &StopPolicy, around: &Surroundings) -> Result<PlannedSpec, Problem> {
    let planned = &settings.planned;
    let limit = match planned.limit {
        None => None,
        Some(Limit::After(limit)) => Some(limit),
        Some(Limit::Auto) => Some(until_end(around.variable(END), stop, SystemTime::now())?),
    };
    let notice = planned.notice.as_ref().map(|text| notice(text, around)).transpose()?;
    let heeds_sigterm = planned.on_stop == OnPlannedStop::Requeue;
    Ok(PlannedSpec { limit, heeds_sigterm, requeues: heeds_sigterm && has_scheduler(around), notice })
}

/// Whether there is a scheduler that can run the job again.
pub(crate) fn has_scheduler(around: &Surroundings) -> bool {
    around.variable("SLURM_JOB_ID").is_some()
}

/// The time until the ranks must be stopped, so that all is done when the allocation ends.
fn until_end(end: Option<&OsStr>, stop: &StopPolicy, now: SystemTime) -> Result<Duration, Problem> {
    let problem = |text: String| Problem::usage(format!("--time-limit auto: {text}"));
    let hint = "write the time: --time-limit 55m";
    let Some(text) = end else {
        let text = format!("Slurm has not said when the allocation ends: {END} is not set");
        return Err(problem(text).hint(hint));
    };
    let Some(end) = text.to_str().and_then(|text| text.parse().ok()).map(Duration::from_secs) else {
        return Err(problem(format!("{END} is \"{}\", which is no time", text.display())).hint(hint));
    };
    let left = end.saturating_sub(now.duration_since(UNIX_EPOCH).unwrap_or_default());
    let needed = stop.grace_outside.max(stop.grace_saving) + MARGIN;
    match left.checked_sub(needed).filter(|limit| !limit.is_zero()) {
        Some(limit) => Ok(limit),
        None => {
            let (left, needed) = (format_duration(Duration::from_secs(left.as_secs())), format_duration(needed));
            Err(problem(format!("the allocation ends in {left}, and a planned stop may take {needed}")))
        }
    }
}

/// A file or a command.
fn notice(text: &OsString, around: &Surroundings) -> Result<Notice, Problem> {
    let problem = |text: String| Problem::usage(format!("--preempt-notice: {text}"));
    let file = |path: &OsStr| {
        let path = around.cwd.join(path);
        let looked = path.clone();
        match ask::soon(move || looked.is_dir()) {
            // It changes whenever a file is made there.
            Some(true) => Err(problem(format!("\"{}\" is a directory", path.display()))),
            Some(false) | None => Ok(Notice::File(path.into())),
        }
    };
    match text.as_bytes().strip_prefix(FILE) {
        Some(b"") => return Err(problem("the name of the file is empty".to_owned())),
        Some(path) => return file(OsStr::from_bytes(path)),
        None => {}
    }
    let words = match words::split(text) {
        None => return Err(problem(format!("a quote is not closed in \"{}\"", text.display()))),
        Some(words) if words.is_empty() => return Err(problem("the command is empty".to_owned())),
        Some(words) => words,
    };
    // What a file system does not answer about in time is found out later.
    let look = || program::find(&words[0], around.variable("PATH"), &around.cwd).err();
    let missing = ask::soon(look).flatten();
    match missing {
        Some(_) if words.len() == 1 && words[0].as_bytes().contains(&b'/') => file(&words[0]),
        Some(missing) => Err(problem(missing.text).hint("write file:NAME for a file that is to appear")),
        None => Ok(Notice::Command(words)),
    }
}

/// Warns of a file that cannot appear.
pub(crate) fn why_no_file(path: &Path) -> Option<String> {
    let directory = path.parent()?;
    (!directory.is_dir()).then(|| format!("there is no directory \"{}\"", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_allocation_leaves_time_for_the_stop() {
        let now = UNIX_EPOCH + Duration::from_secs(1000);
        let of = |end: Option<&str>| until_end(end.map(OsStr::new), &StopPolicy::default(), now);
        assert_eq!(of(Some("4600")).expect("an hour"), Duration::from_secs(3600 - 60));
        let error = |end| of(end).expect_err("too late").text;
        insta::assert_snapshot!([error(None), error(Some("x")), error(Some("1060"))].join("\n"), @r#"
        --time-limit auto: Slurm has not said when the allocation ends: SLURM_JOB_END_TIME is not set
        --time-limit auto: SLURM_JOB_END_TIME is "x", which is no time
        --time-limit auto: the allocation ends in 1m, and a planned stop may take 1m
        "#);
    }
}
