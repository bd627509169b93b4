//! The variables by which libraries are told the network interface that connects the hosts (`--interface`).

use std::ffi::{OsStr, OsString};
use std::net::IpAddr;

use crate::spec::job::{EnvEdit, JobSpec};

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

/// The variables of libraries that take the address of the node's own name, which may be a loopback address (Debian's 127.0.1.1): then
/// no other node reaches them.
const BY_NAME: [&str; 2] = ["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"];

/// As [`tell`], for a node whose own name leads to itself alone: `interface` is the one at which the others reach it.
pub fn tell_by_name(spec: &mut JobSpec, interface: &str) {
    for name in BY_NAME {
        if !spec.base_env.iter().any(|(have, _)| have == name) {
            spec.base_env.push((OsString::from(name), OsString::from(interface)));
        }
    }
}

/// Whether a file of hosts (hosts(5)) gives a name a loopback address: the first line that has the name counts.
pub fn is_loopback_name(hosts: &str, name: &str) -> bool {
    let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
    let mut found = lines.filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        (address.is_ipv4() && words.any(|word| word.eq_ignore_ascii_case(name))).then_some(address)
    });
    found.next().is_some_and(|address| address.is_loopback())
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
    fn libraries_that_look_up_the_own_name_are_told_where_the_user_has_not_told_them() {
        let mut spec = JobSpec::sample(1, &[("GLOO_SOCKET_IFNAME", "ib0")], Vec::new());
        tell_by_name(&mut spec, "eth1");
        let of = |name: &str| -> Vec<OsString> {
            spec.base_env.iter().filter(|(have, _)| have == name).map(|(_, value)| value.clone()).collect()
        };
        assert_eq!(of("GLOO_SOCKET_IFNAME"), ["ib0"]);
        assert_eq!(of("TP_SOCKET_IFNAME"), ["eth1"]);
        assert_eq!(of("NCCL_SOCKET_IFNAME").len(), 0, "it does not look up the name");
    }

    #[test]
    fn a_name_with_a_loopback_address_is_found_in_the_file_of_hosts() {
        let debian = "127.0.0.1\tlocalhost\n127.0.1.1\tnode0.cluster node0 # Debian\n192.0.2.1 node1\n::1 node2\n192.0.2.3 node2\n";
        for (name, expected) in
            [("node0", true), ("NODE0", true), ("node1", false), ("node2", false), ("Debian", false)]
        {
            assert_eq!(is_loopback_name(debian, name), expected, "{name}");
        }
        assert!(!is_loopback_name("192.0.2.1 node0\n127.0.1.1 node0\n", "node0"), "the first line counts");
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
