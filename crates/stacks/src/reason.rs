//! Why a process cannot be looked into.

use std::fs;

/// The reason, after the kernel has refused. None of the files here needs more than the right to see the process.
pub(crate) fn of_refusal(pid: i32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse::<i64>().ok()
    };
    let tracer = field("TracerPid:").filter(|tracer| *tracer > 0);
    if let Some(tracer) = tracer {
        let name = fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
        return format!("{} (pid {tracer}) traces it", name.trim_end());
    }
    let own = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let own_user =
        own.lines().find_map(|line| line.strip_prefix("Uid:")?.split_ascii_whitespace().nth(1)?.parse().ok());
    let user = field("Uid:");
    if user.is_some() && user != own_user && own_user != Some(0) {
        return "it runs as another user".to_owned();
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    match scope.as_deref().map(str::trim) {
        Some("1") => "the kernel lets only ancestors look into a process (kernel.yama.ptrace_scope = 1)".to_owned(),
        Some("2") => "the kernel lets only root look into processes (kernel.yama.ptrace_scope = 2)".to_owned(),
        Some("3") => "the kernel lets nobody look into processes (kernel.yama.ptrace_scope = 3)".to_owned(),
        _ => "the kernel refuses: it has more rights than this user, or is not dumpable, or a container forbids ptrace"
            .to_owned(),
    }
}
