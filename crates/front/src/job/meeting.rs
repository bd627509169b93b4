//! Where the ranks of several nodes meet: addresses of the first node that the others can reach.

use std::io;
use std::net::IpAddr;

use rankrun_core::job::JobSpec;
use rankrun_core::{ExitCode, NodeId};

use crate::job::front::{Front, Refused};

impl Front {
    /// The address of the first node at which the others reach it.
    pub(super) fn meeting_address(&self) -> IpAddr {
        let first = self.seated().next();
        let own = first.and_then(|node| node.about.as_ref());
        let own: &[(String, IpAddr)] = own.map_or(&[], |about| &about.addresses);
        let hosts = &self.plan.hosts;
        let is_here = first.is_some_and(|node| node.keeper().is_some());
        let by_interface = hosts.interface.as_ref();
        let by_interface =
            by_interface.and_then(|name| preferred(own.iter().filter(|(known, _)| known == name).map(|(_, at)| *at)));
        let asked = hosts.local_addr.filter(|_| is_here).or(by_interface);
        let others = self.seated().filter_map(|node| node.remote());
        // As the nodes see each other: through a jump host it is another machine's.
        let seen = match is_here {
            true => others.filter_map(|remote| remote.client).next(),
            false => first.and_then(|node| node.remote()).and_then(|remote| remote.server),
        };
        let is_own = |address: &IpAddr| address.is_loopback() || own.iter().any(|(_, known)| known == address);
        let seen = seen.filter(is_own);
        let found = || preferred(seen.into_iter().chain(own.iter().map(|(_, address)| *address)));
        asked.or_else(found).unwrap_or([127, 0, 0, 1].into())
    }

    /// The first node has no interface of the name that was given.
    pub(super) fn lacks_interface(&self) -> Option<Refused> {
        let name = self.plan.hosts.interface.as_ref()?;
        let first = self.seated().next().filter(|_| self.plan.spec.map.node_count() > 1)?;
        let known = first.about.as_ref().map_or(&[][..], |about| &about.addresses);
        if known.iter().any(|(known, _)| known == name) {
            return None;
        }
        let hint = known_names(known);
        Some(Refused {
            what: format!("--interface {name}"),
            source: io::Error::other(format!("node {} has no such interface, or it is down", first.name)),
            hint,
            code: ExitCode::USAGE,
        })
    }

    /// The job as the agent of a node gets it: with the interface that was chosen, if the job has several nodes and this one has it.
    pub(super) fn spec_for(&self, node: NodeId) -> JobSpec {
        let mut spec = self.plan.spec.clone();
        let about = self.nodes[node.index()].about.as_ref().filter(|_| spec.map.node_count() > 1);
        let name = self.plan.hosts.interface.as_ref();
        let has = |name: &&String| about.is_some_and(|about| about.addresses.iter().any(|(known, _)| known == *name));
        if let Some(name) = name.filter(has) {
            rankrun_core::interface::tell(&mut spec, name);
        }
        spec
    }

    /// The addresses from which the other nodes may come.
    pub(super) fn other_addresses(&self) -> Vec<IpAddr> {
        let told = self.seated().skip(1).filter_map(|node| node.about.as_ref());
        let told = told.flat_map(|about| about.addresses.iter().map(|(_, address)| *address));
        let seen = self.seated().skip(1).filter_map(|node| node.remote()).filter_map(|remote| remote.server);
        told.chain(seen).collect()
    }
}

/// The first IPv4 address, or else the first address.
fn preferred(addresses: impl Iterator<Item = IpAddr>) -> Option<IpAddr> {
    let addresses: Vec<IpAddr> = addresses.collect();
    addresses.iter().find(|address| address.is_ipv4()).or(addresses.first()).copied()
}

/// The names of interfaces, each once: an interface with several addresses is listed for each address.
fn known_names(addresses: &[(String, IpAddr)]) -> Option<String> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in addresses {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    (!names.is_empty()).then(|| format!("it has {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_is_preferred_and_ipv6_is_taken_where_there_is_no_other() {
        let of = |addresses: &[&str]| {
            let addresses = addresses.iter().map(|address| address.parse().expect("an address"));
            preferred(addresses).map(|address: IpAddr| address.to_string())
        };
        assert_eq!(of(&["2001:db8::1", "192.0.2.1", "192.0.2.2"]).as_deref(), Some("192.0.2.1"));
        assert_eq!(of(&["2001:db8::1", "2001:db8::2"]).as_deref(), Some("2001:db8::1"));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn an_interface_with_several_addresses_is_named_once() {
        let at = |name: &str, last: u8| (name.to_owned(), IpAddr::from([192, 0, 2, last]));
        assert_eq!(known_names(&[at("eth0", 1), at("eth1", 2), at("eth0", 3)]).as_deref(), Some("it has eth0, eth1"));
        assert_eq!(known_names(&[]), None);
    }
}
