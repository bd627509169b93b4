//! Which job a file of /dev/shm is of, by its name.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::{Duration, Instant};

use rankrun_core::segments::{self, Names};
use rankrun_core::{Attempt, JobId};
use rankrun_sys::shm;
use rustix::event::{Timespec, poll};

/// Doubtful files that are named at most; the others are counted.
pub(super) const MAX_DOUBTFUL: usize = 64;
/// How long files of which nobody knows whose they are may take to be removed by another job, and how often to look.
const OTHERS_BOUND: Duration = Duration::from_millis(500);
const OTHERS_STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Attempts of other jobs whose segments are known: a job that runs beside rarely has more.
const ATTEMPTS_OF_OTHERS: Attempt = Attempt(7);

/// The name in /dev/shm of a path: itself, or the directory that it is below.
pub(super) fn entry_of(path: &OsStr) -> Option<OsString> {
    let path = Path::new(path);
    path.ancestors()
        .find(|above| above.parent() == Some(Path::new(shm::DIRECTORY)))
        .map(|entry| entry.as_os_str().to_owned())
}

/// The names of the segments of a job that this user has started.
pub fn own_names(job: &JobId, last: Attempt) -> Names {
    Names::of(job, last, rankrun_sys::kernel::user())
}

/// Whether a path of /dev/shm is the job's by its name. A probe of Open MPI has no job in its name, and is empty: who has written
/// to a file of that name is somebody else.
pub(super) fn has_own_name(names: &Names, path: &OsStr) -> bool {
    let name = Path::new(path).file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| names.have(name) && (!segments::is_probe(name) || shm::is_empty(path)))
}

/// Whether a path of /dev/shm has the name of a probe of Open MPI.
pub(super) fn is_probe(path: &OsStr) -> bool {
    Path::new(path).file_name().and_then(OsStr::to_str).is_some_and(segments::is_probe)
}

/// The names of the segments of the jobs whose directories are beside this one.
pub(super) fn names_of_others(directory: &Path) -> Vec<Names> {
    let beside = directory.parent().and_then(|user| std::fs::read_dir(user).ok()).into_iter().flatten().flatten();
    let others = beside.filter(|entry| Some(entry.file_name().as_os_str()) != directory.file_name());
    let jobs = others.filter_map(|entry| Some(JobId(entry.file_name().to_str()?.to_owned())));
    jobs.map(|job| own_names(&job, ATTEMPTS_OF_OTHERS)).collect()
}

/// Whether a path of /dev/shm is the segment of one of these jobs. A probe of Open MPI has no job in its name.
pub(super) fn is_segment_of(jobs: &[Names], path: &OsStr) -> bool {
    let name = Path::new(path).file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| !segments::is_probe(name) && jobs.iter().any(|names| names.have(name)))
}

/// Takes those out that are soon gone: another job of this user may have ended at the same time, and removes its own. `files`: what was
/// at these paths.
pub(super) fn leave_to_others(left: &mut Vec<OsString>, files: &HashMap<OsString, shm::File>) {
    let until = Instant::now() + OTHERS_BOUND;
    while !left.is_empty() && Instant::now() < until {
        // An interrupted pause is only shorter.
        let _ = poll(&mut [], Some(&OTHERS_STEP));
        let now = shm::files();
        left.retain(|path| now.get(path) == files.get(path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_of_another_job_of_the_user_is_known_by_its_directory() {
        let user = tempfile::tempdir().expect("a directory");
        for job in ["e939867a", "55f8fa9c"] {
            std::fs::create_dir(user.path().join(job)).expect("it can be made");
        }
        let is_others = |own: &str, name: &str| {
            let others = names_of_others(&user.path().join(own));
            is_segment_of(&others, OsStr::new(&format!("/dev/shm/{name}")))
        };
        assert!(is_others("55f8fa9c", "mpich_shm_d3b4d99a_0"));
        assert!(!is_others("e939867a", "mpich_shm_d3b4d99a_0"), "it is its own");
        assert!(!is_others("55f8fa9c", "mpich_shm_d3b4d99b_0"), "of a job that is not there");
        assert!(!is_others("55f8fa9c", "open_mpi.0000"), "of any job");
    }
}
