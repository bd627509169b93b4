//! The variables by which libraries are told the network interface that connects the hosts (`--interface`).

use std::ffi::{OsStr, OsString};

use crate::job::{EnvEdit, JobSpec};

/// What excludes an interface from Open MPI's TCP: Open MPI refuses it beside the variable that includes one.
const EXCLUDES: &str = "OMPI_MCA_btl_tcp_if_exclude";
const INCLUDES: &str = "OMPI_MCA_btl_tcp_if_include";

/// The variables of one interface, each with its value. None of them keeps a library from RDMA: `UCX_NET_DEVICES` would, and is not among them.
fn variables(interface: &str) -> [(&'static str, String); 6] {
    let name = || interface.to_owned();
    [
        ("GLOO_SOCKET_IFNAME", name()),
        ("TP_SOCKET_IFNAME", name()),
        // Without "=" it is a prefix: eth1 would be eth10, too.
        ("NCCL_SOCKET_IFNAME", format!("={interface}")),
        (INCLUDES, name()),
        // libfabric, in MPICH and Intel MPI: the provider for TCP alone.
        ("FI_TCP_IFACE", name()),
        ("FI_SOCKETS_IFACE", name()),
    ]
}

/// Tells the libraries of the ranks of one node its interface, where the user has not: adds to the inherited environment.
/// Edits of the user (`-x`, `--env-remove`) come after that.
pub fn tell(spec: &mut JobSpec, interface: &str) {
    let is_inherited = |spec: &JobSpec, name: &str| spec.base_env.iter().any(|(have, _)| have == name);
    let sets = |edit: &EnvEdit| match edit {
        EnvEdit::Set { name, .. } | EnvEdit::Fill { name, .. } => name == OsStr::new(EXCLUDES),
        EnvEdit::Remove { .. } => false,
    };
    let excludes = is_inherited(spec, EXCLUDES) || spec.apps.iter().any(|app| app.env.iter().any(sets));
    for (name, value) in variables(interface) {
        let is_decided = is_inherited(spec, name) || (excludes && name == INCLUDES);
        if !is_decided {
            spec.base_env.push((OsString::from(name), OsString::from(value)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a job with this environment and this edit has after it was told of eth1.
    fn told(base: &[(&str, &str)], edit: Option<EnvEdit>) -> Vec<(String, String)> {
        let mut spec = JobSpec::sample(1, base, edit.into_iter().collect());
        tell(&mut spec, "eth1");
        let text = |text: OsString| text.into_string().expect("the test uses UTF-8");
        spec.base_env.into_iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    fn value<'a>(env: &'a [(String, String)], name: &str) -> Option<&'a str> {
        env.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn libraries_are_told_the_interface_where_the_user_has_not_told_them() {
        let env = told(&[("GLOO_SOCKET_IFNAME", "lo")], None);
        assert_eq!(env.iter().filter(|(name, _)| name == "GLOO_SOCKET_IFNAME").count(), 1);
        let table = [
            ("GLOO_SOCKET_IFNAME", Some("lo")),
            ("NCCL_SOCKET_IFNAME", Some("=eth1")),
            ("FI_TCP_IFACE", Some("eth1")),
            (INCLUDES, Some("eth1")),
            ("UCX_NET_DEVICES", None),
        ];
        for (name, expected) in table {
            assert_eq!(value(&env, name), expected, "{name}");
        }
    }

    #[test]
    fn open_mpi_is_not_told_where_the_user_excludes_interfaces() {
        assert_eq!(value(&told(&[(EXCLUDES, "docker0")], None), INCLUDES), None);
        let edit = EnvEdit::Set { name: EXCLUDES.into(), value: "docker0".into() };
        assert_eq!(value(&told(&[], Some(edit)), INCLUDES), None);
        let other = EnvEdit::Remove { name: EXCLUDES.into() };
        assert_eq!(value(&told(&[], Some(other)), INCLUDES), Some("eth1"));
    }
}
