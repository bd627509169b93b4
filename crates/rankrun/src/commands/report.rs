//! `rankrun report`: the kept reports of jobs, for people.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rankrun_core::evidence::Class;
use rankrun_core::printable::{columns, fit, printable};
use rankrun_core::report::{Report, SCHEMA};
use rankrun_core::text::{Look, WIDTH, render};
use rankrun_output::TranscriptReader;
use rankrun_sys::{reason, terminal};
use serde::Deserialize;

use crate::message::Problem;
use crate::{file, plan};

/// The longest report that is read. rankrun writes none of more than 1 MiB.
const MOST: u64 = 64 << 20;
/// How often to look for one that is being written.
const LOOK: Duration = Duration::from_millis(20);
/// Reports that are listed.
const LISTED: usize = 1000;
/// Attempts of a job that are read.
const MOST_ATTEMPTS: u32 = 1000;
/// The name of a report in its directory.
const REPORT: &str = "report.json";

/// The fields that every version of the schema has.
#[derive(Deserialize)]
struct Version {
    schema: u32,
}

/// The reports that are kept in the default place.
#[derive(Debug)]
pub(crate) struct Reports {
    /// `None` if the user has no home.
    directory: Option<PathBuf>,
}

/// A report as it is kept.
struct Kept {
    path: PathBuf,
    json: Vec<u8>,
    report: Report,
}

impl Reports {
    /// Those of the user with this environment.
    pub(crate) fn of_user(env: impl Iterator<Item = (OsString, OsString)>) -> Reports {
        let env: Vec<(OsString, OsString)> = env.collect();
        let directory = plan::reports_directory(|name| {
            let (_, value) = env.iter().find(|(known, value)| known == name && !value.is_empty())?;
            Some(value.into())
        });
        Reports { directory }
    }

    /// The text of one report, or its JSON: that of `job`, which is an id, the beginning of one or a path; by default the
    /// newest. `attempt`: that of this attempt of the job, by default the last.
    pub(crate) fn read(
        &self,
        job: Option<&Path>,
        attempt: Option<u32>,
        as_json: bool,
        color: bool,
    ) -> Result<String, Problem> {
        let path = match job {
            Some(job) => self.find(job)?,
            None => self.newest_first()?.into_iter().next().ok_or_else(|| self.none())?,
        };
        let kept = match attempt {
            Some(attempt) => of_attempt(self.read_own(&path)?, attempt)?,
            None => self.read_own(&path)?,
        };
        if as_json {
            return String::from_utf8(kept.json)
                .map_err(|_| Problem::usage(format!("\"{}\" is not UTF-8 text", kept.path.display())));
        }
        let shown = kept.path.display().to_string();
        let mut text = render(&kept.report, Look { saved: Some(&shown), color, is_quoted_above: false });
        text.push('\n');
        Ok(text)
    }

    /// One line for each report, or one object, the newest first.
    pub(crate) fn list(&self, as_json: bool) -> Result<String, Problem> {
        // Skip files that are not ours, or are just being removed.
        let kept = self.newest_first()?.into_iter().take(LISTED).filter_map(|path| self.read_own(&path).ok());
        if as_json {
            let rows: Vec<serde_json::Value> = kept.map(|kept| json(&kept)).collect();
            let text = serde_json::to_string_pretty(&rows);
            return text.map(|text| text + "\n").map_err(|error| Problem::internal(error.to_string()));
        }
        let reports: Vec<Report> = kept.map(|kept| kept.report).collect();
        if reports.is_empty() {
            return Err(self.none());
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let width =
            terminal::window(rustix::stdio::stdout()).map_or(WIDTH, |(_, columns)| usize::from(columns).max(40));
        Ok(table(&reports, now, width))
    }

    fn none(&self) -> Problem {
        match &self.directory {
            Some(directory) => Problem::usage(format!("no report is kept in \"{}\"", directory.display()))
                .hint("a job that fails leaves one; one with --report-dir leaves it there"),
            None => Problem::usage("HOME is not set: no reports are kept"),
        }
    }

    /// Reads a report. One in the default place may be a link to a directory that another job has used since.
    fn read_own(&self, path: &Path) -> Result<Kept, Problem> {
        let mut kept = read(path)?;
        let of = self.directory.as_deref().filter(|directory| path.parent().and_then(Path::parent) == Some(directory));
        match of.zip(job_of(path)).filter(|(_, job)| *job != kept.report.job.0) {
            Some((directory, job)) => Err(no_such_job(job, directory)),
            None => {
                // The reports of its attempts are there.
                kept.path = fs::read_link(path).unwrap_or(kept.path);
                Ok(kept)
            }
        }
    }

    /// The report of a job.
    fn find(&self, job: &Path) -> Result<PathBuf, Problem> {
        let id = job
            .to_str()
            .filter(|id| !id.is_empty() && id.len() <= 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if let (Some(id), Some(directory)) = (id, &self.directory) {
            let exact = directory.join(id).join(REPORT);
            if exact.is_file() {
                return Ok(exact);
            }
            let begins = |path: &PathBuf| job_of(path).is_some_and(|job| job.starts_with(id));
            let found: Vec<PathBuf> = self.newest_first().unwrap_or_default().into_iter().filter(begins).collect();
            match found.as_slice() {
                [one] => return Ok(one.clone()),
                [] if job.exists() => {}
                [] => return Err(no_such_job(id, directory)),
                several => {
                    let jobs: Vec<&str> = several.iter().filter_map(|path| job_of(path)).collect();
                    return Err(Problem::usage(format!("\"{id}\" may be any of the jobs {}", jobs.join(", "))));
                }
            }
        }
        if let (Some(word), Some(directory)) = (job.to_str().filter(|word| !word.contains('/')), &self.directory)
            && !job.exists()
        {
            return Err(no_such_job(word, directory));
        }
        Ok(if job.is_dir() { job.join(REPORT) } else { job.to_owned() })
    }

    /// The directory of a job that has ended, and its report. One whose ranks have ended, and whose report is being written, is waited for.
    pub(crate) fn ended(&self, job: &Path) -> Result<(PathBuf, Report), Problem> {
        loop {
            let is_ending = self.is_ending(job);
            match self.find(job).and_then(|path| self.read_own(&path)) {
                Ok(Kept { path, report, .. }) => {
                    return Ok((path.parent().map(Path::to_owned).unwrap_or_default(), report));
                }
                Err(problem) if !is_ending => return Err(problem),
                Err(_) => rankrun_sys::poll::pause(LOOK),
            }
        }
    }

    /// The directory in which the report of a job is, or will be, and what is there of it: its last report, if it has ended, and those of the
    /// attempts that failed before, in order. Nothing is waited for.
    pub(crate) fn of_job(&self, job: &str) -> Option<(PathBuf, Option<Report>, Vec<Report>)> {
        let directory = self.directory.as_ref()?.join(job);
        let last = read(&directory.join(REPORT)).ok().map(|kept| kept.report).filter(|report| report.job.0 == job);
        let of_attempt = |number: u32| read(&directory.join(format!("attempt-{number}.json"))).ok();
        let failed = (0..MOST_ATTEMPTS).map_while(of_attempt).map(|kept| kept.report);
        let failed = failed.take_while(|report| report.job.0 == job).collect();
        Some((directory, last, failed))
    }

    /// The reports, the newest first, but for files that are not ours or are just being removed.
    pub(crate) fn newest(&self, most: usize) -> Vec<Report> {
        let paths = self.newest_first().unwrap_or_default();
        paths.into_iter().take(most).filter_map(|path| read(&path).ok()).map(|kept| kept.report).collect()
    }

    /// The job that has left output and no report, and its directory: its front was killed.
    pub(crate) fn without_report(&self, job: &Path) -> Option<(String, PathBuf)> {
        let has_output = |path: &PathBuf| TranscriptReader::head(&path.join(rankrun_front::TRANSCRIPT)).is_ok();
        let named = self.directories_of(job).chain([job.to_owned()]).filter(has_output);
        let mut found = named.filter(|path| !path.join(REPORT).exists());
        let directory = found.next()?;
        // The beginning of an id may be that of several.
        let is_one = found.next().is_none();
        let name = directory.file_name()?.to_string_lossy().into_owned();
        is_one.then_some((name, directory))
    }

    /// The directories of the default place whose names begin with that of a job.
    fn directories_of(&self, job: &Path) -> impl Iterator<Item = PathBuf> {
        let name = job.to_str().filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_owned);
        let entries = self.directory.as_ref().and_then(|directory| fs::read_dir(directory).ok());
        let named = move |path: &PathBuf| {
            let file = path.file_name().and_then(|file| file.to_str());
            file.zip(name.as_deref()).is_some_and(|(file, name)| file.starts_with(name))
        };
        entries.into_iter().flatten().flatten().map(|entry| entry.path()).filter(named)
    }

    /// Whether the transcript of a job is being written.
    fn is_ending(&self, job: &Path) -> bool {
        let is_written = |directory: PathBuf| !TranscriptReader::is_over(&directory.join(rankrun_front::TRANSCRIPT));
        self.directories_of(job).chain([job.to_owned()]).any(is_written)
    }

    /// The jobs with a report whose ids begin so.
    pub(crate) fn begin_so(&self, word: &str) -> Vec<String> {
        let reports = self.newest_first().unwrap_or_default();
        let jobs = reports.iter().filter_map(|path| job_of(path)).filter(|job| job.starts_with(word));
        jobs.map(str::to_owned).collect()
    }

    /// The paths of the reports, the newest first.
    fn newest_first(&self) -> Result<Vec<PathBuf>, Problem> {
        let Some(directory) = &self.directory else { return Ok(Vec::new()) };
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                return Err(Problem::usage(format!("cannot read \"{}\": {}", directory.display(), reason(&error))));
            }
        };
        let paths = entries.flatten().map(|entry| entry.path().join(REPORT));
        let mut dated: Vec<(SystemTime, PathBuf)> =
            paths.filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path))).collect();
        dated.sort_unstable_by(|one, other| other.cmp(one));
        Ok(dated.into_iter().map(|(_, path)| path).collect())
    }
}

/// The report of an attempt, which lies beside that of the last.
fn of_attempt(last: Kept, attempt: u32) -> Result<Kept, Problem> {
    let Report { job, attempt: present, .. } = &last.report;
    if attempt == *present {
        return Ok(last);
    }
    let have = match present {
        0 => "it has only attempt 0".to_owned(),
        present => format!("it has attempts 0 to {present}"),
    };
    if attempt > *present {
        return Err(Problem::usage(format!("job {job} has no attempt {attempt}: {have}")));
    }
    let path = last.path.with_file_name(format!("attempt-{attempt}.json"));
    let found = read(&path)?;
    match found.report.job == *job {
        true => Ok(found),
        false => Err(Problem::usage(format!("\"{}\" is of job {}, not of {job}", path.display(), found.report.job))),
    }
}

fn no_such_job(word: &str, directory: &Path) -> Problem {
    Problem::usage(format!("no report of a job \"{word}\" is kept in \"{}\"", directory.display()))
        .hint("\"rankrun report --list\" lists those that are; \"rankrun report\" prints the newest")
}

/// The id of the job whose report this is, in the default place.
fn job_of(path: &Path) -> Option<&str> {
    path.parent()?.file_name()?.to_str()
}

fn read(path: &Path) -> Result<Kept, Problem> {
    let shown = path.display();
    let json = file::read(path, MOST)
        .map_err(|error| Problem::usage(format!("cannot read the report \"{shown}\": {}", reason(&error))))?;
    let no_report = |error: serde_json::Error| {
        Problem::usage(format!("\"{shown}\" is not a report of rankrun: {error}"))
            .hint("a job that fails prints the path of its report.json")
    };
    let Version { schema } = serde_json::from_slice(&json).map_err(no_report)?;
    if schema != SCHEMA {
        return Err(Problem::usage(format!(
            "\"{shown}\" has version {schema} of the schema, and this is version {SCHEMA}"
        ))
        .hint("print it with the rankrun that wrote it"));
    }
    let report = serde_json::from_slice(&json).map_err(no_report)?;
    Ok(Kept { path: path.to_owned(), json, report })
}

fn json(kept: &Kept) -> serde_json::Value {
    let Kept { path, report, .. } = kept;
    serde_json::json!({
        "job": report.job,
        "started": report.started,
        "exit_code": report.exit_code,
        "class": report.class,
        "world_size": report.world_size,
        "seconds": report.seconds,
        "summary": report.summary,
        "path": path.to_string_lossy(),
    })
}

/// The reports as a table that is so many columns wide.
fn table(reports: &[Report], now: f64, width: usize) -> String {
    let head = ["JOB", "STARTED", "EXIT", "RANKS", "TOOK", "WHAT"].map(str::to_owned);
    let rows = reports.iter().map(|report| {
        [
            report.job.0.clone(),
            ago(now - report.started),
            if report.class == Some(Class::Interrupted) { "-".to_owned() } else { report.exit_code.0.to_string() },
            report.world_size.to_string(),
            took(report.seconds),
            report.summary.clone(),
        ]
        .map(|cell| printable(&cell).into_owned())
    });
    let rows: Vec<[String; 6]> = std::iter::once(head).chain(rows).collect();
    let wide = |text: &str| text.chars().map(columns).sum::<usize>();
    let widths: [usize; 5] = std::array::from_fn(|at| rows.iter().map(|row| wide(&row[at])).max().unwrap_or(0));
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
            let gap = " ".repeat(width - wide(cell));
            // Numbers are aligned to the right. Writing into a string does not fail, here and below.
            let _ = if at >= 2 { write!(line, "{gap}{cell}  ") } else { write!(line, "{cell}{gap}  ") };
        }
        line.push_str(&row[5]);
        let _ = writeln!(text, "{}", fit(&line, width));
    }
    text
}

/// How long ago, in the largest unit that fits.
fn ago(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

fn took(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 60.0 => format!("{seconds:.1} s"),
        seconds if seconds < 3600.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_one_row_for_each_report_and_fits() {
        let report = |job: &str,
                      started: f64,
                      seconds: f64,
                      class: &str,
                      code: u8,
                      ranks: u32,
                      summary: &str|
         -> Report {
            let json = serde_json::json!({
                "schema": 1, "release": "0.1.0", "job": job, "summary": summary, "exit_code": code, "class": class,
                "culprit": null, "started": started, "seconds": seconds, "world_size": ranks, "command": [], "ranks": [],
                "evidence": [], "containment": "cgroup", "containment_note": null,
                "left": {"proven": true, "workers": 1, "processes": [], "released": 0, "shared_memory": [],
                    "shared_memory_removed": true, "output": "written"},
            });
            serde_json::from_value(json).expect("it has our form")
        };
        let reports = [
            report("7f3a91c2", 990.0, 0.31, "exception", 1, 4, "rank 0 failed: ValueError: failure!"),
            report("0a1b2c3d", 400.0, 125.0, "interrupted", 130, 256, "ended by SIGINT"),
            report(
                "bce18fe3",
                -9e3,
                8000.0,
                "signal",
                139,
                2,
                "rank 1 failed: \u{1b}[2J日本日本日本日本日本日本日本日本日本",
            ),
            report("00000000", -9e6, 0.0, "refused", 127, 0, "\"slep\" was not found"),
        ];
        let table = table(&reports, 1e3, 60);
        assert!(table.lines().all(|line| line.chars().map(columns).sum::<usize>() <= 60), "{table}");
        insta::assert_snapshot!(table, @r#"
        JOB       STARTED       EXIT  RANKS   TOOK  WHAT
        7f3a91c2  10 s ago         1      4  0.3 s  rank 0 failed: …
        0a1b2c3d  10 min ago       -    256  2 min  ended by SIGINT
        bce18fe3  2 h ago        139      2  2.2 h  rank 1 failed: …
        00000000  104 days ago   127      0  0.0 s  "slep" was not …
        "#);
    }
}
