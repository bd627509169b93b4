//! This machine's own description.

use rankrun_core::topology::{CpuSet, Files};
use rankrun_sys::kernel;

/// The files of the kernel that runs here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Here;

impl Files for Here {
    fn text(&self, path: &str) -> Option<String> {
        kernel::piece_text(path).ok()
    }

    fn names(&self, directory: &str) -> Vec<String> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

/// The CPUs that this process may use: its affinity mask, which a cpuset narrows.
pub(super) fn allowed() -> CpuSet {
    rankrun_sys::cpus::affinity().into_iter().collect()
}
