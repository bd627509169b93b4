//! Removes old reports.
//!
//! Removes only what rankrun has made itself: a directory that is named like a job, belongs to us, and holds nothing but
//! a report and kept output. One without a report belongs to a job that is ending or was killed at its end; it stays.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What a job writes in the directory of its report.
const REPORT: &str = "report.json";
const FILES: [&str; 3] = ["unwritten.stdout", "unwritten.stderr", REPORT];
/// Directories that are removed after one job: its end must not take long.
const MOST: usize = 1000;

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
        for file in FILES {
            let _ = fs::remove_file(directory.join(file));
        }
        let _ = fs::remove_dir(directory);
    }
}

/// When the report in a directory was written; `None` if rankrun did not make the directory.
fn written(directory: &Path) -> Option<SystemTime> {
    let name = directory.file_name()?.to_str()?;
    let is_named = name.len() == 8 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let user = rustix::process::geteuid().as_raw();
    let metadata = fs::symlink_metadata(directory).ok()?;
    if !is_named || !metadata.is_dir() || metadata.uid() != user {
        return None;
    }
    for entry in fs::read_dir(directory).ok()? {
        let name = entry.ok()?.file_name();
        if !FILES.iter().any(|file| name == *file) {
            return None;
        }
    }
    let report = fs::symlink_metadata(directory.join(REPORT)).ok()?;
    report.modified().ok().filter(|_| report.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;

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
        make("00000003", &["report.json"], 20);
        make("00000004", &["report.json"], 5);
        make("mine", &["report.json"], 100);
        make("00000005", &["report.json", "notes.txt"], 100);
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
}
