//! `rankrun profile`: samples the stacks of a running job.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::control::{Answer, Request};
use rankrun_core::printable::{fit, printable};
use rankrun_core::stacks::profile::{Profile, collapsed, speedscope, summarize};
use rankrun_core::text::WIDTH;
use rankrun_sys::signal::{self, SignalFd};
use rankrun_sys::{reason, terminal};
use serde_json::json;

use crate::commands::jobs::{self, ANSWER_BOUND, Found};
use crate::file;
use crate::message::Problem;

/// How long a job may take to answer, beyond the time of the profile: its agents have some seconds.
const SPARE: Duration = Duration::from_secs(15);
/// What the names of the files end in.
const COLLAPSED: &str = ".folded";
const SPEEDSCOPE: &str = ".speedscope.json";

/// What is asked.
pub(crate) struct Asked {
    pub(crate) job: String,
    pub(crate) seconds: f64,
    pub(crate) rate: f64,
    pub(crate) ranks: Option<String>,
    pub(crate) output: Option<PathBuf>,
    pub(crate) native: bool,
    pub(crate) json: bool,
}

/// The text for stdout.
pub(crate) fn run(asked: Asked) -> Result<String, Problem> {
    let Asked { job, seconds, rate, ranks, output, native, json } = asked;
    if let Some(output) = output.as_deref().filter(|output| !output.is_dir()) {
        file::written_file(output).map_err(|error| {
            Problem::usage(format!("--output: cannot write \"{}\": {}", output.display(), reason(&error)))
        })?;
    }
    let found = jobs::find("profile", &job)?;
    let profile = sample(&found, Request::Profile { ranks, seconds, rate, native }, seconds)?;
    let summary = summarize(&profile);
    let base = base(output.as_deref(), &found.job);
    let name = base.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let [folded, scope] = [COLLAPSED, SPEEDSCOPE].map(|end| base.with_file_name(format!("{name}{end}")));
    let cannot_write = |error: serde_json::Error| Problem::internal(format!("cannot write JSON: {error}"));
    write(&folded, &collapsed(&profile))?;
    write(&scope, &speedscope(&profile, &name).map_err(cannot_write)?)?;
    if json {
        let files = [&folded, &scope].map(|path| path.display().to_string());
        let text = serde_json::to_string_pretty(&json!({ "summary": summary, "files": files }));
        return text.map(|text| text + "\n").map_err(cannot_write);
    }
    let width = terminal::window(rustix::stdio::stdout()).map_or(WIDTH, |(_, columns)| usize::from(columns).max(40));
    let mut text = String::new();
    for line in summary.lines() {
        // Writing into a string does not fail.
        let _ = writeln!(text, "{}", fit(&printable(&line), width.max(WIDTH)));
    }
    let _ = writeln!(text, "\nwrote {} and {}", folded.display(), scope.display());
    Ok(text)
}

/// Asks for the profile. SIGINT ends it early: the job then sends what there is.
fn sample(found: &Found, request: Request, seconds: f64) -> Result<Profile, Problem> {
    let explain = |silence| jobs::explain("profile", found, silence);
    let signals = SignalFd::new(&[signal::SIGINT])
        .map_err(|error| Problem::internal(format!("cannot receive signals: {}", reason(&error))))?;
    let mut connection = found.connect(ANSWER_BOUND).map_err(explain)?;
    connection.send(&[request]).map_err(explain)?;
    let bound = Duration::try_from_secs_f64(seconds).unwrap_or_default().saturating_add(SPARE);
    let mut is_ending = false;
    let answer = connection.receive_beside(Some(bound), &signals, || {
        while signals.next().is_some() {
            if is_ending {
                // Whoever asks twice does not want to wait.
                signal::die_of(signal::SIGINT);
            }
            is_ending = true;
            // If the job cannot be told, its answer comes at the end of the time.
            let _ = found.ask(Request::EndProfile, ANSWER_BOUND);
        }
    });
    match answer.map_err(|silence| jobs::explain("profile", found, silence))? {
        Answer::Profile(profile) => Ok(*profile),
        Answer::Refused { error, hint } => Err(jobs::refused("profile", &found.job, &error, hint)),
        other => Err(jobs::unexpected(&found.job, &other)),
    }
}

/// The path of the files, without what their names end in.
fn base(output: Option<&Path>, job: &str) -> PathBuf {
    let own = format!("rankrun-profile-{job}");
    let Some(output) = output else { return PathBuf::from(own) };
    if output.is_dir() {
        return output.join(own);
    }
    let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let ends = [SPEEDSCOPE, ".json", COLLAPSED];
    let stem = ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
    output.with_file_name(stem)
}

fn write(path: &Path, text: &str) -> Result<(), Problem> {
    file::replace(path, text)
        .map_err(|error| Problem::internal(format!("cannot write {}: {}", path.display(), reason(&error))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_have_the_name_that_is_asked_for() {
        let named = |output: &str| base(Some(Path::new(output)), "7f3a91c2").display().to_string();
        assert_eq!(base(None, "7f3a91c2"), Path::new("rankrun-profile-7f3a91c2"));
        assert_eq!(named("out/slow.speedscope.json"), "out/slow");
        assert_eq!(named("slow.folded"), "slow");
        assert_eq!(named("slow.v2"), "slow.v2");
        assert_eq!(named("/"), "/rankrun-profile-7f3a91c2");
    }
}
