//! Why a process cannot be looked into.

use std::fs;

use rankrun_sys::proc;

/// What is known of a process that the kernel has refused to show. None of it needs more than the right to see the process.
#[derive(Clone, Debug, Default)]
struct Refused {
    is_ending: bool,
    /// The process that traces it, with its name.
    tracer: Option<(i64, String)>,
    is_of_another_user: bool,
    /// `kernel.yama.ptrace_scope`.
    scope: Option<String>,
}

/// The reason, after the kernel has refused.
pub(crate) fn of_refusal(pid: i32) -> String {
    let status = rankrun_sys::kernel::piece_text(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse::<i64>().ok()
    };
    let tracer = field("TracerPid:").and_then(named_tracer);
    let own = rankrun_sys::kernel::piece_text("/proc/self/status").unwrap_or_default();
    let own_user =
        own.lines().find_map(|line| line.strip_prefix("Uid:")?.split_ascii_whitespace().nth(1)?.parse().ok());
    let user = field("Uid:");
    Refused {
        // From a certain point of its end on, a process has no memory to read and cannot be traced.
        is_ending: status.is_empty() || proc::is_ending(pid),
        tracer,
        is_of_another_user: user.is_some() && user != own_user && own_user != Some(0),
        scope: rankrun_sys::kernel::piece_text("/proc/sys/kernel/yama/ptrace_scope")
            .ok()
            .map(|text| text.trim().to_owned()),
    }
    .to_string()
}

/// That a debugger or strace traces a process, if one does, and not this process.
pub fn tracer_of(pid: i32) -> Option<String> {
    let status = rankrun_sys::kernel::piece_text(format!("/proc/{pid}/status")).ok()?;
    let tracer: i64 = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()?;
    let is_ours = fs::exists(format!("/proc/self/task/{tracer}")).unwrap_or(false);
    Some(tracer).filter(|_| !is_ours).and_then(named_tracer).map(|tracer| traced_by(&tracer))
}

fn named_tracer(tracer: i64) -> Option<(i64, String)> {
    let name = || rankrun_sys::kernel::piece_text(format!("/proc/{tracer}/comm")).unwrap_or_default();
    (tracer > 0).then(|| (tracer, name().trim_end().to_owned()))
}

fn traced_by((tracer, name): &(i64, String)) -> String {
    format!("{name} (pid {tracer}) traces it")
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_ending {
            return f.write_str("the process is ending");
        }
        if let Some(tracer) = &self.tracer {
            return f.write_str(&traced_by(tracer));
        }
        if self.is_of_another_user {
            return f.write_str("it runs as another user");
        }
        f.write_str(match self.scope.as_deref() {
            Some("1") => "the kernel lets only ancestors look into a process (kernel.yama.ptrace_scope = 1)",
            Some("2") => "the kernel lets only root look into processes (kernel.yama.ptrace_scope = 2)",
            Some("3") => "the kernel lets nobody look into processes (kernel.yama.ptrace_scope = 3)",
            _ => "the kernel refuses: it has more rights than this user, or is not dumpable, or a container forbids ptrace",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_nearest_reason_is_given() {
        let tracer = Some((7, "gdb".to_owned()));
        let scope = Some("1".to_owned());
        let all = Refused { is_ending: true, tracer, is_of_another_user: true, scope };
        assert_eq!(all.to_string(), "the process is ending");
        let all = Refused { is_ending: false, ..all };
        assert_eq!(all.to_string(), "gdb (pid 7) traces it");
        let all = Refused { tracer: None, ..all };
        assert_eq!(all.to_string(), "it runs as another user");
        let all = Refused { is_of_another_user: false, ..all };
        assert!(all.to_string().ends_with("(kernel.yama.ptrace_scope = 1)"));
        assert!(Refused { scope: None, ..all }.to_string().starts_with("the kernel refuses"));
    }

    #[test]
    fn a_process_on_its_way_out_is_not_said_to_have_more_rights() {
        let mut child = Command::new("true").stdout(Stdio::null()).spawn().expect("true starts");
        while !proc::is_ending(child.id() as i32) {
            std::thread::yield_now();
        }
        assert_eq!(of_refusal(child.id() as i32), "the process is ending");
        child.wait().expect("it is a child");
        assert_eq!(of_refusal(child.id() as i32), "the process is ending");
    }
}
