//! Where the ranks of several nodes meet: addresses of the first node that the others can reach.

use std::io;
use std::net::IpAddr;

use rankrun_core::ExitCode;

use crate::job::front::{Front, Refused};

impl Front {
    /// The address of the first node at which the others reach it.
    pub(super) fn meeting_address(&self) -> IpAddr {
        let first = self.seated().next();
        let own = first.and_then(|node| node.about.as_ref());
        let own: &[(String, IpAddr)] = own.map_or(&[], |about| &about.addresses);
        let hosts = &self.plan.hosts;
        let is_here = first.is_some_and(|node| node.keeper().is_some());
        let by_interface = hosts.interface.as_ref().and_then(|name| own.iter().find(|(known, _)| known == name));
        let asked = hosts.local_addr.filter(|_| is_here).or(by_interface.map(|(_, address)| *address));
        let others = self.seated().filter_map(|node| node.remote());
        // As the nodes see each other: through a jump host it is another machine's.
        let seen = match is_here {
            true => others.filter_map(|remote| remote.client).next(),
            false => first.and_then(|node| node.remote()).and_then(|remote| remote.server),
        };
        let is_own = |address: &IpAddr| address.is_loopback() || own.iter().any(|(_, known)| known == address);
        let seen = seen.filter(|address| address.is_ipv4() && is_own(address));
        let first = own.iter().map(|(_, address)| *address).find(IpAddr::is_ipv4);
        asked.or(seen).or(first).unwrap_or([127, 0, 0, 1].into())
    }

    /// The first node has no interface of the name that was given.
    pub(super) fn lacks_interface(&self) -> Option<Refused> {
        let name = self.plan.hosts.interface.as_ref()?;
        let first = self.seated().next().filter(|_| self.plan.spec.map.node_count() > 1)?;
        let known = first.about.as_ref().map_or(&[][..], |about| &about.addresses);
        if known.iter().any(|(known, _)| known == name) {
            return None;
        }
        let mut names: Vec<&str> = known.iter().map(|(name, _)| name.as_str()).collect();
        names.dedup();
        let hint = if names.is_empty() { String::new() } else { format!("it has {}", names.join(", ")) };
        Some(Refused {
            what: format!("--interface {name}"),
            source: io::Error::other(format!("node {} has no such interface, or it is down", first.name)),
            hint: Some(hint).filter(|hint| !hint.is_empty()),
            code: ExitCode::USAGE,
        })
    }

    /// The addresses from which the other nodes may come.
    pub(super) fn other_addresses(&self) -> Vec<IpAddr> {
        let told = self.seated().skip(1).filter_map(|node| node.about.as_ref());
        let told = told.flat_map(|about| about.addresses.iter().map(|(_, address)| *address));
        let seen = self.seated().skip(1).filter_map(|node| node.remote()).filter_map(|remote| remote.server);
        told.chain(seen).collect()
    }
}
