//! Hosts with the ranks that they are for: what is named several times is one node.

use std::collections::HashMap;

use super::list::Host;

/// One node that ranks can be placed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeSlots {
    pub name: String,
    pub user: Option<String>,
    /// How many ranks it gets before the next node gets any.
    pub slots: u32,
    /// How many ranks it has room for without `--oversubscribe`. `None` if nobody has said: then the slots are all that
    /// `-n` uses, and `--ppn` may be any number.
    pub room: Option<u32>,
    /// The most ranks that it may have, also with `--oversubscribe`.
    pub most: Option<u32>,
}

/// A host that is named twice, as two users.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("host \"{name}\" is named twice, with the users {first} and {second}")]
pub struct MergeError {
    pub name: String,
    pub first: String,
    pub second: String,
}

/// The nodes of a list, in the order in which they are named first. The slots of a host that is named several times add
/// up, wherever they stand; a mention without a number is one slot.
pub fn merge(hosts: impl IntoIterator<Item = Host>) -> Result<Vec<NodeSlots>, MergeError> {
    let mut nodes: Vec<NodeSlots> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for host in hosts {
        let slots = host.slots.unwrap_or(1);
        let add = |have: Option<u32>, more: Option<u32>| match (have, more) {
            (Some(have), Some(more)) => Some(have.saturating_add(more)),
            (have, more) => have.or(more),
        };
        // Names of hosts are the same in capitals.
        let node = match known.get(&host.name.to_ascii_lowercase()) {
            Some(index) => &mut nodes[*index],
            None => {
                known.insert(host.name.to_ascii_lowercase(), nodes.len());
                let room = host.slots;
                nodes.push(NodeSlots { name: host.name, user: host.user, slots, room, most: host.max_slots });
                continue;
            }
        };
        if let (Some(first), Some(second)) = (&node.user, &host.user)
            && first != second
        {
            return Err(MergeError { name: host.name, first: first.clone(), second: second.clone() });
        }
        // What was without a number counts one once another mention has a number.
        node.room = match (node.room, host.slots) {
            (None, None) => None,
            (room, _) => Some(room.unwrap_or(node.slots).saturating_add(slots)),
        };
        node.slots = node.slots.saturating_add(slots);
        node.user = node.user.take().or(host.user);
        node.most = add(node.most, host.max_slots);
    }
    Ok(nodes)
}

/// The places of a list: the node of each host, as an index into what [`merge`] has made of the list, and the ranks that it is for there.
pub fn mentions(hosts: &[Host], nodes: &[NodeSlots]) -> Vec<(usize, u32)> {
    let known: HashMap<String, usize> =
        nodes.iter().enumerate().map(|(index, node)| (node.name.to_ascii_lowercase(), index)).collect();
    let of = |host: &Host| Some((*known.get(&host.name.to_ascii_lowercase())?, host.slots.unwrap_or(1)));
    hosts.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::parse_list;

    fn merged(list: &str) -> Vec<(String, u32, Option<u32>)> {
        let nodes = merge(parse_list(list).expect("a list")).expect("good hosts");
        nodes.into_iter().map(|node| (node.name, node.slots, node.room)).collect()
    }

    #[test]
    fn mentions_of_a_host_add_up() {
        let node = |name: &str, slots, room| (name.to_owned(), slots, room);
        assert_eq!(merged("a,b"), [node("a", 1, None), node("b", 1, None)]);
        assert_eq!(merged("a,b,a"), [node("a", 2, None), node("b", 1, None)]);
        assert_eq!(merged("a:2,b,A:3"), [node("a", 5, Some(5)), node("b", 1, None)]);
        assert_eq!(merged("a,a:3"), [node("a", 4, Some(4))]);
        assert_eq!(merged("a:4294967295,a:2"), [node("a", u32::MAX, Some(u32::MAX))]);
    }

    #[test]
    fn a_host_has_one_user() {
        assert_eq!(merge(parse_list("me@a,a").unwrap()).unwrap()[0].user.as_deref(), Some("me"));
        assert_eq!(merge(parse_list("a,me@a").unwrap()).unwrap()[0].user.as_deref(), Some("me"));
        let error = merge(parse_list("me@a,b,you@a").unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "host \"a\" is named twice, with the users me and you");
    }
}
