//! What of the front's surroundings goes along to another node: environment and soft limits.

use std::ffi::{OsStr, OsString};

use serde::{Deserialize, Serialize};

use crate::outer::matches;

/// A resource whose soft limit goes along.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Resource {
    OpenFiles,
    Stack,
    Core,
    LockedMemory,
}

impl Resource {
    pub const ALL: [Resource; 4] = [Resource::OpenFiles, Resource::Stack, Resource::Core, Resource::LockedMemory];
}

/// The soft limit of ranks on another node: the front's, as far as the hard limit there allows. `None` is unlimited.
pub fn limit_there(front: Option<u64>, hard: Option<u64>) -> Option<u64> {
    front.into_iter().chain(hard).min()
}

/// The warning for a node where ranks may lock less memory than on the front's machine.
pub fn less_locked_memory(front: Option<u64>, there: Option<u64>) -> Option<String> {
    let there = there.filter(|there| front.is_none_or(|front| *there < front))?;
    let text =
        |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |bytes| format!("{} KiB", bytes / 1024));
    Some(format!(
        "the limit on locked memory is {} there and {} here (ulimit -l); RDMA may fail",
        text(Some(there)),
        text(front)
    ))
}

/// Variables that are a matter of the host, of a login there, or of a process. A `*` stands for any rest. On another node they
/// have that node's values, or none.
const OF_THE_HOST: &[&str] = &[
    // The login.
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "MAIL",
    "SSH_*",
    "XDG_RUNTIME_DIR",
    "XDG_SESSION_*",
    "XDG_SEAT",
    "XDG_VTNR",
    "DBUS_SESSION_BUS_ADDRESS",
    "KRB5CCNAME",
    // The screen and the terminal.
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "WINDOWID",
    "GPG_TTY",
    "SSH_TTY",
    "TMUX*",
    "STY",
    // The host.
    "HOSTNAME",
    "HOST",
    "TMPDIR",
    "TMP",
    "TEMP",
    // Slurm's daemon sets them for the node of a step.
    "SLURMD_NODENAME",
    "SLURM_CPUS_ON_NODE",
    "SLURM_TOPOLOGY_ADDR*",
    // A service.
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_PID",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "WATCHDOG_*",
    // A shell.
    "OLDPWD",
    "SHLVL",
    "_",
];

/// Whether a variable is a matter of the host.
pub fn is_of_the_host(name: &OsStr) -> bool {
    OF_THE_HOST.iter().any(|pattern| matches(OsStr::new(pattern), name))
}

/// The environment that ranks on another node start from: the front's, with that node's values of what is a matter of the host.
pub fn on_another_node(
    front: Vec<(OsString, OsString)>,
    node: impl Iterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    let along = front.into_iter().filter(|(name, _)| !is_of_the_host(name));
    along.chain(node.filter(|(name, _)| is_of_the_host(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(all: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        all.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn a_soft_limit_goes_along_as_far_as_the_hard_one_allows() {
        assert_eq!(limit_there(Some(4096), Some(1024)), Some(1024));
        assert_eq!(limit_there(Some(1024), None), Some(1024));
        assert_eq!(limit_there(None, Some(1024)), Some(1024));
        assert_eq!(limit_there(None, None), None);
        assert_eq!(less_locked_memory(None, None), None);
        assert_eq!(less_locked_memory(Some(65536), Some(65536)), None);
        let warning = "the limit on locked memory is 64 KiB there and unlimited here (ulimit -l); RDMA may fail";
        assert_eq!(less_locked_memory(None, Some(65536)).as_deref(), Some(warning));
    }

    #[test]
    fn what_is_a_matter_of_the_host_stays_there() {
        let front = variables(&[
            ("PATH", "/opt/mpi/bin"),
            ("HOME", "/home/ada"),
            ("SSH_AUTH_SOCK", "/tmp/agent"),
            ("OMP_PROC_BIND", "close"),
            ("TMPDIR", "/scratch/front"),
        ]);
        let node = variables(&[("PATH", "/usr/bin"), ("HOME", "/root"), ("SSH_CONNECTION", "10.0.0.1 5 10.0.0.2 22")]);
        let there = on_another_node(front, node.into_iter());
        let expected = [
            ("PATH", "/opt/mpi/bin"),
            ("OMP_PROC_BIND", "close"),
            ("HOME", "/root"),
            ("SSH_CONNECTION", "10.0.0.1 5 10.0.0.2 22"),
        ];
        assert_eq!(there, variables(&expected));
    }
}
