//! Published names (`MPI_Publish_name` and its like), under PMI-1 and PMIx: one map for the ranks of all nodes, which the front
//! holds. A name may have any bytes: clients send it as the program has it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, NodeId, Rank};

/// What may be held for a job, in bytes of names and values, with [`OVERHEAD`] for each. Lookups that wait have as much again.
const MAX_BYTES: usize = 16 << 20;
const OVERHEAD: usize = 64;

/// The protocol by which a rank asks. Each has names of its own: its values mean nothing to the clients of the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Protocol {
    Pmi1,
    Pmix,
}

/// Who asks. The number is different for each question of the server of a group on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker {
    pub node: NodeId,
    pub group: GroupId,
    pub protocol: Protocol,
    pub id: u64,
}

/// What a rank asks for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Question {
    /// All of these names with their values, or none. `once`: each is gone with its first lookup.
    Publish { rank: Rank, entries: Vec<(Vec<u8>, Vec<u8>)>, once: bool },
    /// `waits`: answered when all of these names are there. Otherwise at once.
    Lookup { names: Vec<Vec<u8>>, waits: bool },
    /// Any rank may take a name back, as under Hydra and PRRTE.
    Unpublish { names: Vec<Vec<u8>> },
    /// Nobody waits for the answer to the lookup of this number any more. It has no answer itself.
    Withdraw,
}

/// What it gets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    Done,
    NotFound,
    /// One of the names is published already.
    Exists,
    /// The job has published too much, or waits for too much.
    Full,
    /// Publisher, name, value, in the order of the question.
    Found(Vec<(Rank, Vec<u8>, Vec<u8>)>),
}

/// A lookup that waits for its names.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Waiting {
    asker: Asker,
    names: Vec<Vec<u8>>,
}

/// A published value.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Held {
    rank: Rank,
    value: Vec<u8>,
    /// The first lookup takes it away (`PMIX_PERSIST_FIRST_READ`).
    once: bool,
}

/// The names of a job.
#[derive(Clone, Debug, Default)]
pub struct PublishedNames {
    published: BTreeMap<(Protocol, Vec<u8>), Held>,
    bytes: usize,
    /// In the order of their arrival.
    waiting: Vec<Waiting>,
}

/// Who published a name, the name, and its value.
type Entry = (Rank, Vec<u8>, Vec<u8>);

impl PublishedNames {
    /// Answers a question, now or later. Replies are appended.
    pub fn ask(&mut self, asker: Asker, question: Question, replies: &mut Vec<(Asker, Reply)>) {
        let reply = match question {
            Question::Publish { rank, entries, once } => match self.publish(asker.protocol, rank, entries, once) {
                Ok(()) => {
                    self.look_again(asker.protocol, replies);
                    Reply::Done
                }
                Err(refusal) => refusal,
            },
            Question::Lookup { names, waits } => match self.find(asker.protocol, &names) {
                Some(found) => Reply::Found(found),
                None if waits && self.waiting_bytes() + size_of_names(&names) <= MAX_BYTES => {
                    self.waiting.push(Waiting { asker, names });
                    return;
                }
                None if waits => Reply::Full,
                None => Reply::NotFound,
            },
            Question::Unpublish { names } => {
                let gone = names.into_iter().map(|name| self.unpublish(asker.protocol, name));
                // Each of them goes, also after one that is not there.
                let gone: Vec<bool> = gone.collect();
                if gone.into_iter().all(|gone| gone) { Reply::Done } else { Reply::NotFound }
            }
            Question::Withdraw => {
                self.waiting.retain(|waiting| waiting.asker != asker);
                return;
            }
        };
        replies.push((asker, reply));
    }

    fn publish(
        &mut self,
        protocol: Protocol,
        rank: Rank,
        entries: Vec<(Vec<u8>, Vec<u8>)>,
        once: bool,
    ) -> Result<(), Reply> {
        let mut new = BTreeMap::new();
        let mut bytes = self.bytes;
        for (name, value) in entries {
            bytes += name.len() + value.len() + OVERHEAD;
            let name = (protocol, name);
            if self.published.contains_key(&name) || new.insert(name, Held { rank, value, once }).is_some() {
                return Err(Reply::Exists);
            }
        }
        if bytes > MAX_BYTES {
            return Err(Reply::Full);
        }
        self.bytes = bytes;
        self.published.extend(new);
        Ok(())
    }

    fn unpublish(&mut self, protocol: Protocol, name: Vec<u8>) -> bool {
        let name = (protocol, name);
        let Some(Held { value, .. }) = self.published.remove(&name) else { return false };
        self.bytes -= name.1.len() + value.len() + OVERHEAD;
        true
    }

    /// All of these names, or nothing. What is to be read once is gone then.
    fn find(&mut self, protocol: Protocol, names: &[Vec<u8>]) -> Option<Vec<Entry>> {
        let find = |name: &Vec<u8>| {
            let Held { rank, value, once } = self.published.get(&(protocol, name.clone()))?;
            Some(((*rank, name.clone(), value.clone()), *once))
        };
        let found: Vec<(Entry, bool)> = names.iter().map(find).collect::<Option<_>>()?;
        for ((_, name, _), _) in found.iter().filter(|(_, once)| *once) {
            self.unpublish(protocol, name.clone());
        }
        Some(found.into_iter().map(|(entry, _)| entry).collect())
    }

    /// Answers the lookups that have waited for what is there now.
    fn look_again(&mut self, protocol: Protocol, replies: &mut Vec<(Asker, Reply)>) {
        for waiting in std::mem::take(&mut self.waiting) {
            let found = (waiting.asker.protocol == protocol).then(|| self.find(protocol, &waiting.names)).flatten();
            match found {
                Some(found) => replies.push((waiting.asker, Reply::Found(found))),
                None => self.waiting.push(waiting),
            }
        }
    }

    fn waiting_bytes(&self) -> usize {
        self.waiting.iter().map(|waiting| size_of_names(&waiting.names)).sum()
    }
}

fn size_of_names(names: &[Vec<u8>]) -> usize {
    OVERHEAD + names.iter().map(|name| name.len() + OVERHEAD).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(node: u32, id: u64) -> Asker {
        Asker { node: NodeId(node), group: GroupId(0), protocol: Protocol::Pmix, id }
    }

    fn list(names: &[&str]) -> Vec<Vec<u8>> {
        names.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    fn publish(rank: u32, entries: &[(&str, &str)]) -> Question {
        let entries = entries.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()));
        Question::Publish { rank: Rank(rank), entries: entries.collect(), once: false }
    }

    fn publish_once(rank: u32, entries: &[(&str, &str)]) -> Question {
        match publish(rank, entries) {
            Question::Publish { rank, entries, .. } => Question::Publish { rank, entries, once: true },
            other => other,
        }
    }

    fn found(rank: u32, name: &str, value: &str) -> Reply {
        Reply::Found(vec![(Rank(rank), name.as_bytes().to_vec(), value.as_bytes().to_vec())])
    }

    fn ask(names: &mut PublishedNames, asker: Asker, question: Question) -> Vec<(Asker, Reply)> {
        let mut replies = Vec::new();
        names.ask(asker, question, &mut replies);
        replies
    }

    #[test]
    fn a_name_is_there_for_every_node_from_publish_to_unpublish() {
        let mut names = PublishedNames::default();
        let lookup = || Question::Lookup { names: list(&["service"]), waits: false };
        assert_eq!(ask(&mut names, asker(1, 1), lookup()), [(asker(1, 1), Reply::NotFound)]);
        let service = publish(2, &[("service", "port")]);
        assert_eq!(ask(&mut names, asker(0, 1), service.clone()), [(asker(0, 1), Reply::Done)]);
        assert_eq!(ask(&mut names, asker(1, 2), service), [(asker(1, 2), Reply::Exists)]);
        assert_eq!(ask(&mut names, asker(1, 3), lookup()), [(asker(1, 3), found(2, "service", "port"))]);
        let other = Asker { protocol: Protocol::Pmi1, ..asker(1, 3) };
        assert_eq!(ask(&mut names, other, lookup()), [(other, Reply::NotFound)], "it is one of PMIx");
        let unpublish = Question::Unpublish { names: list(&["none", "service"]) };
        assert_eq!(ask(&mut names, asker(1, 4), unpublish), [(asker(1, 4), Reply::NotFound)]);
        assert_eq!(ask(&mut names, asker(1, 5), lookup()), [(asker(1, 5), Reply::NotFound)]);
        assert_eq!(names.bytes, 0);
    }

    #[test]
    fn a_lookup_waits_until_all_its_names_are_there_or_it_is_withdrawn() {
        let mut names = PublishedNames::default();
        let lookup = || Question::Lookup { names: list(&["a"]), waits: true };
        assert_eq!(ask(&mut names, asker(1, 7), lookup()), []);
        assert_eq!(ask(&mut names, asker(2, 7), lookup()), []);
        assert_eq!(ask(&mut names, asker(1, 7), Question::Withdraw), []);
        let both = [(asker(2, 7), found(0, "a", "x")), (asker(0, 1), Reply::Done)];
        assert_eq!(ask(&mut names, asker(0, 1), publish(0, &[("a", "x")])), both);
        assert_eq!(ask(&mut names, asker(0, 2), publish(0, &[("b", "x")])), [(asker(0, 2), Reply::Done)]);
    }

    #[test]
    fn a_name_to_be_read_once_is_gone_with_its_first_lookup_and_can_be_published_again() {
        let mut names = PublishedNames::default();
        let lookup = |waits| Question::Lookup { names: list(&["a"]), waits };
        let once = || publish_once(0, &[("a", "x")]);
        for id in 0..2 {
            assert_eq!(ask(&mut names, asker(0, id), once()), [(asker(0, id), Reply::Done)]);
            assert_eq!(ask(&mut names, asker(1, id), lookup(false)), [(asker(1, id), found(0, "a", "x"))]);
            assert_eq!(ask(&mut names, asker(1, id), lookup(false)), [(asker(1, id), Reply::NotFound)]);
        }
        assert_eq!(names.bytes, 0);
    }

    #[test]
    fn of_lookups_that_wait_the_first_takes_a_name_to_be_read_once() {
        let mut names = PublishedNames::default();
        let lookup = |names: &[&str]| Question::Lookup { names: list(names), waits: true };
        for (id, wanted) in [(1, &["a", "b"][..]), (2, &["a"]), (3, &["a"])] {
            assert_eq!(ask(&mut names, asker(1, id), lookup(wanted)), []);
        }
        let once = || publish_once(0, &[("a", "x")]);
        let reply = |id| (asker(1, id), found(0, "a", "x"));
        assert_eq!(ask(&mut names, asker(0, 1), once()), [reply(2), (asker(0, 1), Reply::Done)]);
        assert_eq!(ask(&mut names, asker(0, 2), once()), [reply(3), (asker(0, 2), Reply::Done)]);
        assert_eq!(ask(&mut names, asker(0, 3), once()), [(asker(0, 3), Reply::Done)], "the first wants both");
    }

    #[test]
    fn of_several_names_all_are_published_or_none() {
        let mut names = PublishedNames::default();
        for twice in [[("a", "1"), ("a", "2")], [("b", "1"), ("b", "1")]] {
            assert_eq!(ask(&mut names, asker(0, 1), publish(0, &twice)), [(asker(0, 1), Reply::Exists)]);
        }
        assert_eq!((names.bytes, names.published.len()), (0, 0));
    }

    #[test]
    fn a_job_can_neither_publish_nor_wait_without_end() {
        let mut names = PublishedNames::default();
        let value = "x".repeat(1 << 20);
        let reply = |names: &mut PublishedNames, n: u64, question| {
            ask(names, asker(0, n), question).pop().map(|(_, reply)| reply)
        };
        let published =
            (0..100).filter(|n| reply(&mut names, *n, publish(0, &[(&n.to_string(), &value)])) == Some(Reply::Done));
        assert_eq!(published.count(), 15);
        let wait = |n: u64| Question::Lookup { names: vec![vec![n as u8; 1 << 20]], waits: true };
        let waiting = (0..100).filter(|n| reply(&mut names, *n, wait(*n)).is_none()).count();
        assert_eq!(waiting, 15);
    }
}
