//! Published names (`MPI_Publish_name`), under PMI-1 and PMIx: a map of the job.

use std::collections::BTreeMap;

use rankrun_core::Rank;

/// What may be held for a job, in bytes of names and values, with [`OVERHEAD`] for each.
const MAX_BYTES: usize = 16 << 20;
const OVERHEAD: usize = 64;

/// Why a name is not published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PublishError {
    #[error("the name is published already")]
    Exists,
    #[error("the job has published too much")]
    Full,
}

/// Names with their values and who published them. A name may hold any bytes: clients send it as the program has it.
#[derive(Clone, Debug)]
pub struct Names<V> {
    names: BTreeMap<Vec<u8>, (Rank, V)>,
    bytes: usize,
}

impl<V> Default for Names<V> {
    fn default() -> Names<V> {
        Names { names: BTreeMap::new(), bytes: 0 }
    }
}

impl<V: AsRef<[u8]>> Names<V> {
    pub fn publish(&mut self, rank: Rank, name: &[u8], value: V) -> Result<(), PublishError> {
        if self.names.contains_key(name) {
            return Err(PublishError::Exists);
        }
        let size = size(name, &value);
        if self.bytes + size > MAX_BYTES {
            return Err(PublishError::Full);
        }
        self.bytes += size;
        self.names.insert(name.to_owned(), (rank, value));
        Ok(())
    }

    /// Who published the name, and its value.
    pub fn lookup(&self, name: &[u8]) -> Option<(Rank, &V)> {
        self.names.get(name).map(|(rank, value)| (*rank, value))
    }

    /// Whether the name was there. Any rank may take it back, as under Hydra and PRRTE.
    pub fn unpublish(&mut self, name: &[u8]) -> bool {
        let Some((_, value)) = self.names.remove(name) else { return false };
        self.bytes -= size(name, &value);
        true
    }
}

fn size<V: AsRef<[u8]>>(name: &[u8], value: &V) -> usize {
    name.len() + value.as_ref().len() + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_there_from_publish_to_unpublish() {
        let mut names = Names::default();
        assert_eq!(names.lookup(b"service"), None);
        assert_eq!(names.publish(Rank(2), b"service", "port"), Ok(()));
        assert_eq!(names.publish(Rank(3), b"service", "other"), Err(PublishError::Exists));
        assert_eq!(names.lookup(b"service"), Some((Rank(2), &"port")));
        assert!(names.unpublish(b"service") && !names.unpublish(b"service"));
        assert_eq!(names.bytes, 0);
    }

    #[test]
    fn a_job_cannot_publish_without_end() {
        let mut names = Names::default();
        let value = "x".repeat(1 << 20);
        let published =
            (0..100).filter(|n| names.publish(Rank(0), n.to_string().as_bytes(), value.as_str()).is_ok()).count();
        assert_eq!(published, 15);
        assert_eq!(names.publish(Rank(0), b"more", value.as_str()), Err(PublishError::Full));
    }
}
