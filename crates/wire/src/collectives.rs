//! Collectives of the wire-up: each node sends its part, and when the parts stand for all who take part, every node gets all.

use std::collections::BTreeMap;

use crate::message::Collective;
use rankrun_core::{GroupId, NodeId};

/// Those that are not complete.
#[derive(Debug, Default)]
pub struct Collectives {
    open: BTreeMap<(GroupId, u64), Vec<(NodeId, Collective)>>,
}

impl Collectives {
    /// A part has come. Returns the whole, once it is complete: the parts in the order of the nodes.
    pub fn take(&mut self, from: NodeId, part: Collective) -> Option<Collective> {
        let (key, of) = ((part.group, part.seq), part.of);
        let parts = self.open.entry(key).or_default();
        parts.retain(|(node, _)| *node != from);
        parts.push((from, part));
        let members: u32 = parts.iter().map(|(_, part)| part.members).sum();
        if members < of {
            return None;
        }
        let mut parts = self.open.remove(&key)?;
        parts.sort_by_key(|(node, _)| *node);
        let payloads = parts.into_iter().flat_map(|(_, part)| part.payloads).collect();
        Some(Collective { group: key.0, seq: key.1, members, of, payloads })
    }

    /// Another attempt begins.
    pub fn clear(&mut self) {
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collective_is_complete_when_its_parts_stand_for_all() {
        let part = |members: u32, text: &str| Collective {
            group: GroupId::default(),
            seq: 7,
            members,
            of: 3,
            payloads: vec![text.as_bytes().to_vec()],
        };
        let mut collectives = Collectives::default();
        assert_eq!(collectives.take(NodeId(1), part(1, "b")), None);
        assert_eq!(collectives.take(NodeId(1), part(1, "b")), None, "a part counts once");
        let whole = collectives.take(NodeId(0), part(2, "a")).expect("all are there");
        assert_eq!((whole.members, whole.payloads), (3, vec![b"a".to_vec(), b"b".to_vec()]));
        assert_eq!(collectives.take(NodeId(0), part(2, "a")), None, "the next one starts empty");
    }
}
