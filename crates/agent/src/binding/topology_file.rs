//! The file from which MPI libraries learn what this machine is made of.

use std::fs;
use std::path::{Path, PathBuf};

use rankrun_core::topology::{Machine, xml};

use super::here::{Here, allowed};

/// Its name in the directory of a job.
const NAME: &str = "topology.xml";

/// The path of the file of a job with so many ranks on this node. One alone reads the machine as fast itself.
pub(crate) fn path(runtime: &Path, ranks: usize) -> Option<String> {
    let path = runtime.join(NAME).into_os_string().into_string().ok()?;
    // A value of PMI-1 ends with its line, and old clients end it at a blank.
    (ranks > 1 && !path.contains(char::is_whitespace)).then_some(path)
}

/// Writes the file, if the job has none yet. Ranks that find none read the machine themselves.
pub(crate) fn write(path: &Path) {
    if path.exists() {
        return;
    }
    let text = xml(&Here, &Machine::read(&Here, &allowed()));
    let new: PathBuf = path.with_extension("new");
    // A rank never sees a part of it.
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
}
