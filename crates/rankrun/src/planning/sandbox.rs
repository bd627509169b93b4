//! What a sandbox may refuse and no job can do without.

use rankrun_sys::{kernel, reason};

use crate::message::Problem;

/// Refuses to start a job where `/proc` does not show our own processes: without it, ranks could be neither watched nor
/// found, and with that of another pid namespace other processes would be mistaken for them.
pub(super) fn check_proc() -> Result<(), Problem> {
    let stat = kernel::piece_text("/proc/self/stat").map_err(|error| {
        Problem::internal(format!("cannot read \"/proc/self/stat\": {}", reason(&error)))
            .hint("mount /proc: \"mount -t proc proc /proc\"")
    })?;
    if stat.split(' ').next() != Some(std::process::id().to_string().as_str()) {
        return Err(Problem::internal("/proc shows the processes of another pid namespace")
            .hint("mount the /proc of this one: \"mount -t proc proc /proc\", or \"unshare --mount-proc\""));
    }
    Ok(())
}

/// Refuses to start a job if a sandbox prevents what its end needs: waiting for processes, pipes, and removing directories.
pub(super) fn check_calls() -> Result<(), Problem> {
    let refused = |what: &str, call: &str, error: &std::io::Error| {
        Problem::internal(format!("cannot {what}: {call}: {}", reason(error)))
            .hint(format!("allow the system call {call} in the sandbox's seccomp profile"))
    };
    rankrun_sys::wait::check().map_err(|error| refused("wait for processes", "waitid", &error))?;
    let (_reader, writer) = rankrun_sys::socket::pipe().map_err(|error| refused("make a pipe", "pipe2", &error))?;
    rustix::io::write(&writer, &[0]).map_err(|error| refused("write", "write", &error.into()))?;
    let entries = std::fs::read_dir("/proc/self/task").and_then(|mut entries| entries.next().transpose());
    entries.map_err(|error| refused("read directories", "getdents64", &error))?;
    // There is no file without a name.
    match rustix::fs::unlinkat(rustix::fs::CWD, "", rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(refused("remove files", "unlinkat", &error.into())),
    }
}
