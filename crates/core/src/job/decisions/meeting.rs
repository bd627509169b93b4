//! Where the ranks of several nodes meet: addresses of the first node that the others can reach.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::exit::ExitCode;
use crate::ids::{GroupId, NodeId, Rank};
use crate::interface;
use crate::job::machine::{Job, Refused};
use crate::job::parts::node::Node;
use crate::spec::job::{JobSpec, StdinTarget};

impl Job {
    /// The address of the first node at which the others reach it.
    pub(in crate::job) fn meeting_address(&self) -> IpAddr {
        let first = self.nodes.seated().next();
        let own = addresses(first);
        let is_here = first.is_some_and(Node::is_here);
        let by_interface = self.settings.interface.as_ref();
        let by_interface =
            by_interface.and_then(|name| preferred(own.iter().filter(|(known, _)| known == name).map(|(_, at)| *at)));
        let asked = self.settings.local_addr.filter(|_| is_here).or(by_interface);
        let is_own = |address: &IpAddr| address.is_loopback() || own.iter().any(|(_, known)| known == address);
        let seen = first.and_then(|node| self.seen_at(node)).filter(is_own);
        let found = || preferred(seen.into_iter().chain(own.iter().map(|(_, address)| *address)));
        asked.or_else(found).unwrap_or([127, 0, 0, 1].into())
    }

    /// The address of a node as the nodes see each other: through a jump host it is another machine's.
    fn seen_at(&self, node: &Node) -> Option<IpAddr> {
        match node.is_here() {
            false => node.addresses_seen().0,
            true => self.nodes.seated().find_map(|node| node.addresses_seen().1),
        }
    }

    /// The interface at which the other nodes reach a node.
    fn interface_of(&self, node: &Node) -> Option<String> {
        let seen = self.seen_at(node)?;
        addresses(Some(node)).iter().find(|(_, address)| *address == seen).map(|(name, _)| name.clone())
    }

    /// The first node has no interface of the name that was given.
    pub(in crate::job) fn lacks_interface(&self) -> Option<Refused> {
        let name = self.settings.interface.as_ref()?;
        let first = self.nodes.seated().next().filter(|_| self.spec.map.node_count() > 1)?;
        let known = addresses(Some(first));
        if known.iter().any(|(known, _)| known == name) {
            return None;
        }
        Some(Refused {
            what: format!("--interface {name}"),
            why: format!("node {} has no such interface, or it is down", first.name()),
            hint: known_names(known),
            code: ExitCode::USAGE,
        })
    }

    /// Two hosts of the list are one machine: each of its ranks would be on two nodes, of which libraries of MPI know one. That is a
    /// warning, and under `--strict` the job does not begin. Nodes that join by themselves may be such on purpose.
    pub(in crate::job) fn has_a_machine_twice(&mut self) -> Option<Refused> {
        if self.nodes.iter().any(Node::joins) {
            return None;
        }
        let machines = self.nodes.seated().filter_map(|node| Some((node.name(), node.about()?.machine.as_str())));
        let twice = twice(machines)?;
        let why = format!("{} are one machine", twice.join(" and "));
        let hint = format!("name it once, with all of its slots ({}:N)", twice[0]);
        if !self.settings.strict {
            self.note(format!("warning: {why}, and count as {} nodes: MPI may fail; {hint}", twice.len()));
            return None;
        }
        Some(Refused { what: "--strict".to_owned(), why, hint: Some(hint), code: ExitCode::USAGE })
    }

    /// Whether ranks of a node read the front's stdin.
    pub fn reads_stdin(&self, node: NodeId) -> bool {
        let seat = self.nodes.get(node).and_then(Node::place);
        match self.spec.io.stdin {
            StdinTarget::All => seat.is_some(),
            StdinTarget::Rank(rank) => self.spec.map.place(rank).is_some_and(|place| Some(place.node) == seat),
            StdinTarget::None | StdinTarget::Shared => false,
        }
    }

    /// Whether the ranks of the present attempt can be given stdin: they have been started, and the attempt is not about to end.
    pub fn takes_stdin(&self) -> bool {
        self.has_started() && !self.is_ending() && !self.is_between_attempts()
    }

    /// The only rank that reads stdin, if it has ended and is not started again by itself.
    pub fn gone_reader(&self) -> Option<Rank> {
        let StdinTarget::Rank(rank) = self.spec.io.stdin else { return None };
        let has_ended = self.gang.ranks().get(rank).is_some_and(|record| record.outcome.is_some());
        (has_ended && self.takes_stdin() && !self.successors.are_on()).then_some(rank)
    }

    /// A group as the agent of a node gets it; `None` for one that is not there. With the interface that was chosen, if the job has several nodes and this one has it; or
    /// with the one at which the others reach the node, if its own name leads to itself alone.
    pub fn spec_for(&self, node: NodeId, group: GroupId) -> Option<JobSpec> {
        let mut spec = self.spec_of(group)?.clone();
        let Some(node) = self.nodes.get(node).filter(|_| spec.map.node_count() > 1) else { return Some(spec) };
        let has = |name: &&String| addresses(Some(node)).iter().any(|(known, _)| known == *name);
        match self.settings.interface.as_ref() {
            Some(name) => {
                if let Some(name) = Some(name).filter(has) {
                    interface::tell(&mut spec, name);
                }
            }
            None if node.about().is_some_and(|about| about.is_loopback_name) => {
                if let Some(name) = self.interface_of(node) {
                    interface::tell_by_name(&mut spec, &name);
                }
            }
            None => {}
        }
        Some(spec)
    }

    /// The addresses from which the other nodes may come.
    pub(in crate::job) fn other_addresses(&self) -> Vec<IpAddr> {
        let others = || self.nodes.seated().skip(1);
        let told = others().filter_map(Node::about);
        let told = told.flat_map(|about| about.addresses.iter().map(|(_, address)| *address));
        told.chain(others().filter_map(|node| node.addresses_seen().0)).collect()
    }
}

/// The first nodes that are one machine. Each comes with what tells its machine from others.
fn twice<'a>(nodes: impl Iterator<Item = (&'a str, &'a str)>) -> Option<Vec<String>> {
    let mut machines: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (name, machine) in nodes.filter(|(_, machine)| !machine.is_empty()) {
        machines.entry(machine).or_default().push(name.to_owned());
    }
    machines.into_values().find(|names| names.len() > 1)
}

/// The addresses of a node, each with the name of its interface.
fn addresses(node: Option<&Node>) -> &[(String, IpAddr)] {
    node.and_then(Node::about).map_or(&[], |about| &about.addresses)
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
    fn a_machine_with_two_names_is_found() {
        let none = [("a", "boot1 net1"), ("b", "boot1 net2"), ("c", "boot2 net1"), ("d", ""), ("e", "")];
        assert_eq!(twice(none.into_iter()), None);
        let some = none.into_iter().chain([("10.0.0.2", "boot1 net2")]);
        assert_eq!(twice(some), Some(vec!["b".to_owned(), "10.0.0.2".to_owned()]));
    }

    #[test]
    fn an_interface_with_several_addresses_is_named_once() {
        let at = |name: &str, last: u8| (name.to_owned(), IpAddr::from([192, 0, 2, last]));
        assert_eq!(known_names(&[at("eth0", 1), at("eth1", 2), at("eth0", 3)]).as_deref(), Some("it has eth0, eth1"));
        assert_eq!(known_names(&[]), None);
    }
}
