//! Removes old reports.
//!
//! Removes only what rankrun has made itself: a directory that is named like a job, belongs to us, and holds nothing but
//! reports, kept output, and the transcript, or links to those of `--report-dir`. One without a report belongs to a job that is running, or
//! was killed: it goes with the others when nobody has written its transcript for a day.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rankrun_core::job::report_of;
use rankrun_core::{Attempt, JobId};
use rankrun_output::{TranscriptReader, is_of_transcript};
use serde::Deserialize;

use super::task::TRANSCRIPT;

/// What a job writes in the directory of its report.
pub(crate) const REPORT: &str = "report.json";
const KEPT: [&str; 2] = ["unwritten.stdout", "unwritten.stderr"];
/// Directories that are removed after one job: its end must not take long.
const MOST: usize = 1000;
/// When nobody comes back to a job that was killed: another front may take the place of its own.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);
/// The longest file that is looked into. A report has at most 1 MiB.
const MOST_BYTES: u64 = 16 << 20;

/// Removes the oldest reports beside `own` until `keep` are left, the one in `own` included. What cannot be removed
/// stays.
pub(crate) fn prune(own: &Path, keep: u32) {
    let Some(entries) = own.parent().and_then(|reports| fs::read_dir(reports).ok()) else { return };
    let others = entries.flatten().map(|entry| entry.path()).filter(|path| path != own);
    let mut others: Vec<(SystemTime, PathBuf)> =
        others.filter_map(|path| written(&path).map(|written| (written, path))).collect();
    others.sort_unstable();
    let surplus = (others.len() + 1).saturating_sub(keep as usize);
    for (_, directory) in others.into_iter().take(surplus.min(MOST)) {
        // The report is removed last: a later run recognises the directory by it. Another job may remove it first.
        remove_transcript(&directory.join(TRANSCRIPT));
        let files = fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let ours = files.filter(|name| is_ours(name) && name != REPORT).collect::<Vec<_>>();
        for file in ours.into_iter().chain([OsString::from(REPORT)]) {
            // Another job may have removed it.
            let _ = fs::remove_file(directory.join(file));
        }
        // It stays if somebody has put something else there.
        let _ = fs::remove_dir(directory);
    }
}

/// What every report has.
#[derive(Deserialize)]
struct Owner {
    #[serde(rename = "schema")]
    _schema: u32,
    job: JobId,
}

/// Removes the reports of attempts of other jobs: a directory that the user has named may have had a job before. Files of
/// these names that are no reports stay.
pub(crate) fn forget(directory: &Path, own: &JobId) {
    let names = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
    for name in names.filter(|name| is_of_attempt(name)).take(MOST) {
        let path = directory.join(name);
        let is_file =
            fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= MOST_BYTES);
        let owner = is_file.then(|| fs::read(&path).ok()).flatten();
        let owner = owner.and_then(|bytes| serde_json::from_slice::<Owner>(&bytes).ok());
        if owner.is_some_and(|owner| owner.job != *own) {
            // What cannot be removed stays.
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether a job writes a file of this name in the directory of its report.
fn is_ours(name: &OsStr) -> bool {
    name == REPORT || KEPT.iter().any(|kept| name == *kept) || is_of_attempt(name)
}

/// Whether a file of this name is the report of an attempt.
fn is_of_attempt(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let number = name.strip_prefix("attempt-").and_then(|rest| rest.strip_suffix(".json"));
    let attempt = number.and_then(|number| number.parse().ok()).map(Attempt);
    attempt.is_some_and(|attempt| report_of(attempt) == name)
}

/// When the report in a directory was written, or that of a job that was killed could have been; `None` if rankrun did not make the directory,
/// or the job may be running.
fn written(directory: &Path) -> Option<SystemTime> {
    let name = directory.file_name()?.to_str()?;
    let is_named = name.len() == 8 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if !is_named || !is_own_directory(directory) {
        return None;
    }
    let transcript = directory.join(TRANSCRIPT);
    for entry in fs::read_dir(directory).ok()? {
        let name = entry.ok()?.file_name();
        let is_known = if name == TRANSCRIPT { is_ours_to_remove(&transcript) } else { is_ours(&name) };
        if !is_known {
            return None;
        }
    }
    let report = directory.join(REPORT);
    let itself = fs::symlink_metadata(&report).ok();
    match fs::metadata(&report) {
        Ok(found) if found.is_file() => itself?.modified().ok(),
        Ok(_) => None,
        // The job is running, or was killed.
        Err(_) => last_written(&transcript).filter(|_| TranscriptReader::is_over(&transcript)),
    }
}

/// Whether what has the name of a transcript is one, or leads to one.
fn is_ours_to_remove(transcript: &Path) -> bool {
    if fs::symlink_metadata(transcript).is_ok_and(|found| found.is_symlink()) {
        return true;
    }
    let mut entries = fs::read_dir(transcript).into_iter().flatten();
    is_own_directory(transcript) && entries.all(|entry| entry.is_ok_and(|entry| is_of_transcript(&entry.file_name())))
}

fn is_own_directory(path: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == user)
}

/// When a transcript was written to for the last time, if that was long ago.
fn last_written(transcript: &Path) -> Option<SystemTime> {
    let files = fs::read_dir(transcript).into_iter().flatten().flatten().map(|entry| entry.path());
    let times =
        files.chain([transcript.to_owned()]).filter_map(|path| fs::symlink_metadata(path).ok()?.modified().ok());
    let last = times.max()?;
    last.elapsed().is_ok_and(|age| age >= ABANDONED).then_some(last)
}

/// Removes a transcript, or the link to one.
fn remove_transcript(transcript: &Path) {
    if is_own_directory(transcript) {
        for entry in fs::read_dir(transcript).into_iter().flatten().flatten() {
            if is_of_transcript(&entry.file_name()) {
                // Another job may have removed it.
                let _ = fs::remove_file(entry.path());
            }
        }
        // The same.
        let _ = fs::remove_dir(transcript);
    } else {
        // There may be none.
        let _ = fs::remove_file(transcript);
    }
}

/// Lets a job be found in the default place whose report is to be elsewhere: links lead there. Those that are there stay.
///
/// # Errors
///
/// They cannot be made.
pub(crate) fn point(own: &Path, to: &Path) -> std::io::Result<()> {
    for name in [REPORT, TRANSCRIPT] {
        match std::os::unix::fs::symlink(to.join(name), own.join(name)) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;

    #[test]
    fn reports_of_attempts_of_other_jobs_go_and_no_other_files() {
        let root = tempfile::tempdir().expect("the temporary directory can be written");
        let write = |name: &str, text: &str| fs::write(root.path().join(name), text).expect("it is ours");
        write("attempt-0.json", r#"{"schema":1,"job":"0000000a","x":[]}"#);
        write("attempt-1.json", r#"{"schema":1,"job":"0000000b"}"#);
        write("attempt-2.json", r#"{"job":"0000000b"}"#);
        write("attempt-3.json", "mine");
        write("attempt-04.json", r#"{"schema":1,"job":"0000000b"}"#);
        write("report.json", r#"{"schema":1,"job":"0000000b"}"#);
        forget(root.path(), &JobId("0000000a".to_owned()));
        let names = fs::read_dir(root.path()).expect("it is ours").map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<OsString> = names.collect();
        names.sort();
        assert_eq!(names, ["attempt-0.json", "attempt-04.json", "attempt-2.json", "attempt-3.json", "report.json"]);
    }

    #[test]
    fn the_oldest_reports_go_and_nothing_else() {
        let root = tempfile::tempdir().expect("the temporary directory can be written");
        let make = |name: &str, files: &[&str], age: u64| {
            let directory = root.path().join(name);
            fs::create_dir(&directory).expect("the directory is ours");
            for file in files {
                let file = File::create(directory.join(file)).expect("the directory is ours");
                file.set_modified(SystemTime::now() - Duration::from_secs(age)).expect("the file is ours");
            }
        };
        make("00000001", &["report.json"], 10);
        make("0000000a", &["report.json", "unwritten.stdout"], 30);
        make("00000003", &["report.json", "attempt-0.json", "attempt-17.json"], 20);
        make("00000004", &["report.json"], 5);
        make("mine", &["report.json"], 100);
        make("00000005", &["report.json", "attempt-x.json"], 100);
        make("00000006", &["unwritten.stdout"], 100);
        make("00000007", &[], 100);
        std::os::unix::fs::symlink(root.path().join("mine"), root.path().join("00000008")).expect("it is ours");
        let names = || {
            let mut names: Vec<String> = fs::read_dir(root.path())
                .expect("it is ours")
                .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
                .filter(|name| name.starts_with("0000000"))
                .collect();
            names.sort();
            names.iter().map(|name| name[7..].to_owned()).collect::<String>()
        };
        let own = root.path().join("00000004");
        prune(&own, 4);
        assert_eq!(names(), "1345678a", "four are there");
        prune(&own, 2);
        assert_eq!(names(), "145678");
        prune(&own, 1);
        assert_eq!(names(), "45678");
        prune(&own, 1);
        assert_eq!(names(), "45678", "its own is never removed");
        assert!(root.path().join("mine/report.json").exists());
    }

    #[test]
    fn what_a_job_that_was_detached_has_left_goes_too() {
        let root = tempfile::tempdir().expect("the temporary directory can be written");
        let day = Duration::from_secs(24 * 3600);
        let make = |name: &str, files: &[&str], age: Duration| {
            let directory = root.path().join(name);
            fs::create_dir_all(directory.join(TRANSCRIPT)).expect("the directory is ours");
            for file in files {
                let file = File::create(directory.join(file)).expect("the directory is ours");
                file.set_modified(SystemTime::now() - age).expect("the file is ours");
            }
            let transcript = File::open(directory.join(TRANSCRIPT)).expect("it is there");
            transcript.set_modified(SystemTime::now() - age).expect("it is ours");
            directory
        };
        let parts = ["transcript/head", "transcript/left", "transcript/0000000000000000"];
        let with = |more: &'static str| [&parts[..], &[more]].concat();
        make("00000001", &with(REPORT), day);
        make("00000002", &parts, 3 * day);
        make("00000003", &parts, day / 2);
        make("00000004", &with("transcript/mine"), 3 * day);
        let running = make("00000005", &parts, 3 * day);
        let head = File::open(running.join("transcript/head")).expect("it is there");
        rustix::fs::flock(&head, rustix::fs::FlockOperation::LockExclusive).expect("nobody else has it");
        // One whose report is elsewhere, and one whose report would be, and which may be running.
        make("elsewhere", &with(REPORT), day);
        for (name, to) in [("00000006", "elsewhere"), ("00000007", "nowhere")] {
            fs::create_dir(root.path().join(name)).expect("it is ours");
            point(&root.path().join(name), &root.path().join(to)).expect("it is ours");
        }
        let own = make("00000008", &with(REPORT), Duration::ZERO);
        prune(&own, 1);
        let mut names: Vec<String> = fs::read_dir(root.path())
            .expect("it is ours")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        assert_eq!(names, ["00000003", "00000004", "00000005", "00000007", "00000008", "elsewhere"]);
        assert_eq!(fs::read_dir(root.path().join("elsewhere/transcript")).expect("it is there").count(), 3);
    }
}
