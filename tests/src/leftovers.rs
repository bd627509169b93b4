//! What a job can leave beside processes.

use std::fs;
use std::path::{Path, PathBuf};

/// Names in /dev/shm that contain `tag`, runtime directories and cgroups of the jobs.
pub(crate) fn of_jobs(tag: &str, jobs: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in entries(Path::new("/dev/shm")) {
        if name(&path).contains(tag) {
            found.push(path);
        }
    }
    for owner in entries(Path::new("/tmp")) {
        if name(&owner).starts_with("rankrun-") {
            found.extend(entries(&owner).into_iter().filter(|path| jobs.contains(&name(path))));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        if let (Some(path), Some("cgroup2")) = (fields.next(), fields.next()) {
            cgroups(Path::new(path), jobs, &mut found);
        }
    }
    found
}

fn cgroups(directory: &Path, jobs: &[String], found: &mut Vec<PathBuf>) {
    for path in entries(directory) {
        if path.is_dir() {
            let name = name(&path);
            if name
                .strip_prefix("rankrun-")
                .is_some_and(|job| jobs.iter().any(|known| job.starts_with(known.as_str())))
            {
                found.push(path);
            } else {
                cgroups(&path, jobs, found);
            }
        }
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries.flatten().map(|entry| entry.path()).collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
