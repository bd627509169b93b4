//! The key-value space of one epoch: what barriers have made visible.

use std::collections::HashMap;

use bytes::Bytes;

use super::Epoch;
use super::payload::{Broken, next_pair};

/// The committed pairs of the last epoch that passed a barrier. Pairs point into the payloads that brought them.
#[derive(Debug, Default)]
pub(super) struct Kvs {
    epoch: Epoch,
    pairs: HashMap<Bytes, Bytes>,
}

impl Kvs {
    /// Makes pairs visible to the ranks in `epoch`; of equal keys the last counts. Pairs of an earlier epoch go:
    /// every rank was in this one when it passed its barrier.
    pub(super) fn commit(&mut self, epoch: Epoch, mut pairs: Bytes) -> Result<(), Broken> {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.pairs = HashMap::new();
        }
        while let Some((key, value)) = next_pair(&mut pairs)? {
            // The old key is removed first, because an insert would keep it, and with it the payload it points into.
            self.pairs.remove(&key);
            self.pairs.insert(key, value);
        }
        Ok(())
    }

    pub(super) fn get(&self, epoch: Epoch, key: &[u8]) -> Option<&[u8]> {
        if self.epoch != epoch {
            return None;
        }
        self.pairs.get(key).map(|value| &value[..])
    }
}
