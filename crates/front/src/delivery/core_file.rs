//! Looks for the core of a process that crashed.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rankrun_core::Pid;
use rankrun_core::core_dump::{CoreDump, CorePattern};
use rankrun_sys::kernel;

/// File systems date files by the last tick of the kernel.
const TICK: Duration = Duration::from_millis(20);

/// The path of the core file of a process that ran in `directory`, in a job that `took` so long; `None` if there is
/// none.
pub(crate) fn find(pid: Pid, signal: i32, directory: &Path, took: Duration) -> Option<CoreDump> {
    let read = |name: &str| kernel::piece_text(Path::new("/proc/sys/kernel").join(name)).ok();
    let uses_pid = read("core_uses_pid").is_some_and(|text| text.trim() != "0");
    match CorePattern::read(&read("core_pattern")?, uses_pid, pid, signal)? {
        CorePattern::Handler(name) => Some(CoreDump::Handler(name)),
        CorePattern::File(file) => {
            let since = SystemTime::now().checked_sub(took + TICK)?;
            let directory = directory.join(&file.directory);
            // One of an earlier job may have the same name.
            let cores = fs::read_dir(&directory).ok()?.flatten().filter_map(|entry| {
                let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
                let written = metadata.modified().ok().filter(|written| *written >= since)?;
                entry.file_name().to_str().is_some_and(|name| file.matches(name)).then(|| (written, entry.path()))
            });
            let (_, path) = cores.max()?;
            Some(CoreDump::File(path.to_string_lossy().into_owned()))
        }
    }
}
