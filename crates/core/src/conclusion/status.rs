//! How a worker's leader ended, as the kernel told it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The exit status of a worker's leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerStatus {
    /// It called `exit` with this code, 0..=255.
    Exited { code: u8 },
    /// It was ended by this signal.
    Signaled { signal: i32, core_dumped: bool },
}

impl WorkerStatus {
    /// From the status that `wait(2)` gives for a process that has ended.
    pub fn of_wait(status: i32) -> WorkerStatus {
        match status & 0x7f {
            0 => WorkerStatus::Exited { code: (status >> 8) as u8 },
            signal => WorkerStatus::Signaled { signal, core_dumped: status & 0x80 != 0 },
        }
    }

    pub fn success(self) -> bool {
        self == WorkerStatus::Exited { code: 0 }
    }

    /// Whether it comes from this signal: the signal itself, or a shell's code for it.
    pub fn is_of_signal(self, ours: i32) -> bool {
        match self {
            WorkerStatus::Signaled { signal, .. } => signal == ours,
            WorkerStatus::Exited { code } => i32::from(code) == 128 + ours,
        }
    }

    /// The status as a shell counts: the code, or 128 + the signal.
    pub fn shell_code(self) -> u8 {
        match self {
            WorkerStatus::Exited { code } => code,
            WorkerStatus::Signaled { signal, .. } => (128 + signal).clamp(129, 255) as u8,
        }
    }
}

impl fmt::Display for WorkerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkerStatus::Exited { code } => write!(f, "exit {code}"),
            WorkerStatus::Signaled { signal, core_dumped } => {
                f.write_str(&signal_name(*signal))?;
                if *core_dumped {
                    f.write_str(", core dumped")?;
                }
                Ok(())
            }
        }
    }
}

/// The name of a signal of Linux, such as `SIGSEGV`; real-time signals are counted from `SIGRTMIN` (34 under glibc).
pub fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    match signal {
        1..=31 => NAMES[signal as usize - 1].to_owned(),
        34 => "SIGRTMIN".to_owned(),
        35..=64 => format!("SIGRTMIN+{}", signal - 34),
        _ => format!("signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_read_and_count_as_a_shell_does() {
        let segv = WorkerStatus::Signaled { signal: 11, core_dumped: true };
        assert_eq!(segv.to_string(), "SIGSEGV, core dumped");
        assert_eq!(segv.shell_code(), 139);
        assert_eq!(WorkerStatus::Exited { code: 3 }.to_string(), "exit 3");
        assert_eq!(signal_name(34), "SIGRTMIN");
        assert_eq!(signal_name(36), "SIGRTMIN+2");
    }
}
