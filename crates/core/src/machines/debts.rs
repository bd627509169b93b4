//! Which node is granted credit when output has been written: those whose bytes came first.

use std::collections::VecDeque;

use crate::ids::{NodeId, Stream};

/// The bytes that were received and for which no credit was returned, in their order.
#[derive(Debug, Default)]
pub struct Debts([VecDeque<(NodeId, u64)>; 2]);

impl Debts {
    /// Bytes of a stream have come from a node.
    pub fn received(&mut self, node: NodeId, stream: Stream, bytes: u64) {
        let queue = &mut self.0[stream.index()];
        match queue.back_mut() {
            Some((last, sum)) if *last == node => *sum += bytes,
            Some(_) | None => queue.push_back((node, bytes)),
        }
    }

    /// So many bytes of a stream have been written: returns what each node is granted for it.
    pub fn paid(&mut self, stream: Stream, mut bytes: u64) -> Vec<(NodeId, u64)> {
        let queue = &mut self.0[stream.index()];
        let mut grants: Vec<(NodeId, u64)> = Vec::new();
        while let Some((node, owed)) = queue.front_mut().filter(|_| bytes > 0) {
            let part = bytes.min(*owed);
            match grants.iter_mut().find(|(known, _)| known == node) {
                Some((_, sum)) => *sum += part,
                None => grants.push((*node, part)),
            }
            (bytes, *owed) = (bytes - part, *owed - part);
            if *owed == 0 {
                queue.pop_front();
            }
        }
        grants
    }

    /// Forgets what is owed for a stream, and returns it in its order.
    pub fn take(&mut self, stream: Stream) -> VecDeque<(NodeId, u64)> {
        std::mem::take(&mut self.0[stream.index()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_goes_to_those_whose_bytes_came_first() {
        let mut debts = Debts::default();
        for (node, bytes) in [(0, 10), (0, 5), (1, 20), (0, 7)] {
            debts.received(NodeId(node), Stream::Stdout, bytes);
        }
        assert_eq!(debts.paid(Stream::Stdout, 16), [(NodeId(0), 15), (NodeId(1), 1)]);
        assert_eq!(debts.paid(Stream::Stderr, 16), []);
        assert_eq!(debts.paid(Stream::Stdout, 100), [(NodeId(1), 19), (NodeId(0), 7)]);
    }
}
