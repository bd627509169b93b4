//! Decides what the ranks get.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use rankrun_core::{GroupId, Pid, Rank};

use super::message::{Answer, Participants, Request};
use crate::names::{Names, PublishError};

/// What a server must know of its job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    pub group: GroupId,
    /// How many ranks the job has on all nodes.
    pub size: u32,
    /// The ranks of this node, in ascending order.
    pub local: Vec<Rank>,
}

/// How far a rank is in the life of a PMIx program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lifecycle {
    #[default]
    NotInited,
    Inited {
        passed_fence: bool,
    },
    Finalized,
}

/// What the driver is to do, or to know, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send the host this answer to the request of that number.
    Answer {
        id: u64,
        answer: Answer,
    },
    /// The rank has begun a program of MPI; the process, if it is known.
    Inited {
        rank: Rank,
        pid: Option<Pid>,
    },
    /// It has come out of a fence, so that all others were there too.
    PassedFence {
        rank: Rank,
    },
    Finalized {
        rank: Rank,
    },
    /// The rank asks that the job be ended.
    Aborted {
        rank: Rank,
        code: i32,
        message: Option<String>,
    },
    /// The rank asked for something that is not served, and got an error.
    Refused {
        rank: Rank,
        call: &'static str,
        detail: Option<String>,
    },
    /// The local part of a collective is complete: hand it to the front, which answers with a [`CollectiveResult`]. Only
    /// where a participant is on another node.
    Collective(Collective),
}

/// One node's part of a collective operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Collective {
    pub group: GroupId,
    /// The same on all nodes for the same operation, and different for each operation.
    pub seq: u64,
    /// How many ranks this node contributes for.
    pub members: u32,
    pub payload: Vec<u8>,
}

/// All parts of a collective operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CollectiveResult {
    pub seq: u64,
    /// Of every node that takes part, in the order of the nodes.
    pub payloads: Vec<Vec<u8>>,
}

/// What the ranks agree on together. Operations of different kinds have different numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Kind {
    Fence,
    Connect,
    Disconnect,
    Group,
}

/// A collective that waits for other nodes.
#[derive(Clone, Debug)]
struct Pending {
    id: u64,
    kind: Kind,
    who: Participants,
    context: Option<u64>,
}

/// A lookup that waits for its keys.
#[derive(Clone, Debug)]
struct Waiting {
    id: u64,
    keys: Vec<String>,
    until: Option<Duration>,
}

/// The server of one node.
#[derive(Clone, Debug)]
pub struct Server {
    config: Config,
    ranks: BTreeMap<Rank, Lifecycle>,
    names: Names<Vec<u8>>,
    waiting: Vec<Waiting>,
    /// By number of the operation.
    pending: HashMap<u64, Pending>,
    /// How many operations of each kind the same participants have begun.
    counts: HashMap<(Kind, Participants), u64>,
    contexts: u64,
}

impl Server {
    pub fn new(config: Config) -> Server {
        let ranks = config.local.iter().map(|rank| (*rank, Lifecycle::NotInited)).collect();
        Server {
            config,
            ranks,
            names: Names::default(),
            waiting: Vec::new(),
            pending: HashMap::new(),
            counts: HashMap::new(),
            contexts: 0,
        }
    }

    pub fn lifecycle(&self, rank: Rank) -> Lifecycle {
        self.ranks.get(&rank).copied().unwrap_or_default()
    }

    /// When [`Server::tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        self.waiting.iter().filter_map(|waiting| waiting.until).min()
    }

    /// Ends the lookups whose time has passed.
    pub fn tick(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let is_due = |waiting: &Waiting| waiting.until.is_some_and(|until| until <= now);
        for waiting in self.waiting.extract_if(.., |waiting| is_due(waiting)) {
            effects.push(Effect::Answer { id: waiting.id, answer: Answer::TimedOut });
        }
    }

    /// A request of the host.
    pub fn request(&mut self, now: Duration, id: u64, request: Request, effects: &mut Vec<Effect>) {
        let answer = match request {
            Request::Init { rank, pid } => {
                if let Some(life) = self.ranks.get_mut(&rank) {
                    *life = Lifecycle::Inited { passed_fence: false };
                    effects.push(Effect::Inited { rank, pid });
                }
                Answer::Done
            }
            Request::Finalize { rank } => {
                if let Some(life) = self.ranks.get_mut(&rank) {
                    *life = Lifecycle::Finalized;
                    effects.push(Effect::Finalized { rank });
                }
                Answer::Done
            }
            Request::Abort { rank, code, message } => {
                // Open MPI 4 has no message.
                let message = message.filter(|message| !message.is_empty() && message != "N/A");
                effects.push(Effect::Aborted { rank, code, message });
                Answer::Done
            }
            Request::Fence { who, data } => return self.collective(id, Kind::Fence, who, data, None, effects),
            Request::Connect { who } => return self.collective(id, Kind::Connect, who, Vec::new(), None, effects),
            Request::Disconnect { who } => {
                return self.collective(id, Kind::Disconnect, who, Vec::new(), None, effects);
            }
            Request::Group { who, wants_context, data } => {
                // From the top, as PRRTE counts them: MPI's own identifiers begin at 0.
                let context = wants_context.then(|| {
                    self.contexts += 1;
                    u64::from(u32::MAX) - self.contexts
                });
                return self.collective(id, Kind::Group, who, data, context, effects);
            }
            // A node has the data of its own ranks; of others it gets them in the fence.
            Request::Fetch { of: _ } => Answer::NotFound,
            Request::Publish { rank, entries } => self.publish(rank, entries, effects),
            Request::Lookup { rank: _, keys, wait } => match self.find(&keys) {
                Some(found) => Answer::Found(found),
                None => match wait {
                    Some(seconds) => {
                        let until = (seconds > 0).then(|| now.saturating_add(Duration::from_secs(seconds)));
                        self.waiting.push(Waiting { id, keys, until });
                        return;
                    }
                    None => Answer::NotFound,
                },
            },
            Request::Unpublish { rank: _, keys } => {
                let gone = keys.iter().filter(|key| self.names.unpublish(key.as_bytes())).count();
                if gone == keys.len() { Answer::Done } else { Answer::NotFound }
            }
            Request::Spawn { rank, commands } => {
                let detail = (!commands.is_empty()).then(|| commands.join(", "));
                effects.push(Effect::Refused { rank, call: "MPI_Comm_spawn", detail });
                Answer::NotSupported
            }
        };
        effects.push(Effect::Answer { id, answer });
    }

    /// All parts of a collective are there.
    pub fn collective_done(&mut self, done: CollectiveResult, effects: &mut Vec<Effect>) {
        if let Some(pending) = self.pending.remove(&done.seq) {
            self.complete(pending, done.payloads.concat(), effects);
        }
    }

    fn publish(&mut self, rank: Rank, entries: Vec<(String, Vec<u8>)>, effects: &mut Vec<Effect>) -> Answer {
        if entries.iter().any(|(key, _)| self.names.lookup(key.as_bytes()).is_some()) {
            return Answer::Exists;
        }
        for (key, value) in entries {
            match self.names.publish(rank, key.as_bytes(), value) {
                Ok(()) => {}
                Err(PublishError::Exists) => return Answer::Exists,
                Err(PublishError::Full) => return Answer::NotSupported,
            }
        }
        let waiting = std::mem::take(&mut self.waiting);
        for waiting in waiting {
            match self.find(&waiting.keys) {
                Some(found) => effects.push(Effect::Answer { id: waiting.id, answer: Answer::Found(found) }),
                None => self.waiting.push(waiting),
            }
        }
        Answer::Done
    }

    /// All of these keys, or nothing.
    fn find(&self, keys: &[String]) -> Option<Vec<(Rank, String, Vec<u8>)>> {
        let find = |key: &String| {
            let (rank, value) = self.names.lookup(key.as_bytes())?;
            Some((rank, key.clone(), value.clone()))
        };
        keys.iter().map(find).collect()
    }

    fn collective(
        &mut self,
        id: u64,
        kind: Kind,
        who: Participants,
        data: Vec<u8>,
        context: Option<u64>,
        effects: &mut Vec<Effect>,
    ) {
        let local = self.local(&who).len() as u32;
        let count = self.counts.entry((kind, who.clone())).or_default();
        *count += 1;
        let seq = number(kind, &who, *count);
        let is_local = local == self.size_of(&who);
        let pending = Pending { id, kind, who, context };
        if is_local {
            self.complete(pending, data, effects);
        } else {
            self.pending.insert(seq, pending);
            let collective = Collective { group: self.config.group, seq, members: local, payload: data };
            effects.push(Effect::Collective(collective));
        }
    }

    fn complete(&mut self, pending: Pending, data: Vec<u8>, effects: &mut Vec<Effect>) {
        let Pending { id, kind, who, context } = pending;
        let answer = match kind {
            Kind::Fence => Answer::Data(data),
            Kind::Connect | Kind::Disconnect => Answer::Done,
            Kind::Group => Answer::Group { context, who: self.all(&who), data },
        };
        effects.push(Effect::Answer { id, answer });
        // A fence of all says that all have come into it. One of a few says nothing of the rest.
        if kind == Kind::Fence && self.size_of(&who) == self.config.size {
            for rank in self.local(&who) {
                if let Some(life @ Lifecycle::Inited { passed_fence: false }) = self.ranks.get_mut(&rank) {
                    *life = Lifecycle::Inited { passed_fence: true };
                    effects.push(Effect::PassedFence { rank });
                }
            }
        }
    }

    fn size_of(&self, who: &Participants) -> u32 {
        match who {
            Participants::All => self.config.size,
            Participants::Ranks(ranks) => ranks.len() as u32,
        }
    }

    fn all(&self, who: &Participants) -> Vec<Rank> {
        match who {
            Participants::All => (0..self.config.size).map(Rank).collect(),
            Participants::Ranks(ranks) => ranks.clone(),
        }
    }

    /// Those on this node.
    fn local(&self, who: &Participants) -> Vec<Rank> {
        match who {
            Participants::All => self.config.local.clone(),
            Participants::Ranks(ranks) => {
                ranks.iter().filter(|rank| self.config.local.binary_search(rank).is_ok()).copied().collect()
            }
        }
    }
}

/// The number of an operation: the same on each node, since each sees the operations of the same participants in the same
/// order. Two operations have the same number once in 2^63 (FNV-1a); PMI-1's numbers have the highest bit unset.
fn number(kind: Kind, who: &Participants, count: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |number: u64| {
        for byte in number.to_le_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    add(kind as u64);
    add(count);
    if let Participants::Ranks(ranks) = who {
        ranks.iter().for_each(|rank| add(u64::from(rank.0) + 1));
    }
    hash | (1 << 63)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    fn server(size: u32, local: impl IntoIterator<Item = u32>) -> Server {
        Server::new(Config { group: GroupId(0), size, local: local.into_iter().map(Rank).collect() })
    }

    fn request(server: &mut Server, id: u64, request: Request) -> Vec<Effect> {
        let mut effects = Vec::new();
        server.request(NOW, id, request, &mut effects);
        effects
    }

    fn answer(id: u64, answer: Answer) -> Effect {
        Effect::Answer { id, answer }
    }

    #[test]
    fn a_rank_goes_from_init_through_a_fence_to_finalize() {
        let mut server = server(2, 0..2);
        let rank = Rank(1);
        let init = request(&mut server, 1, Request::Init { rank, pid: None });
        assert_eq!(init, [Effect::Inited { rank, pid: None }, answer(1, Answer::Done)]);
        let fence = request(&mut server, 2, Request::Fence { who: Participants::All, data: vec![1, 2] });
        assert_eq!(fence, [answer(2, Answer::Data(vec![1, 2])), Effect::PassedFence { rank }], "rank 0 has not inited");
        let again = request(&mut server, 3, Request::Fence { who: Participants::All, data: vec![] });
        assert_eq!(again, [answer(3, Answer::Data(vec![]))], "once for each program");
        assert_eq!(server.lifecycle(rank), Lifecycle::Inited { passed_fence: true });
        let end = request(&mut server, 4, Request::Finalize { rank });
        assert_eq!(end, [Effect::Finalized { rank }, answer(4, Answer::Done)]);
        assert_eq!(server.lifecycle(rank), Lifecycle::Finalized);
        // A wrapper may run another program.
        request(&mut server, 5, Request::Init { rank, pid: None });
        assert_eq!(server.lifecycle(rank), Lifecycle::Inited { passed_fence: false });
    }

    #[test]
    fn a_fence_of_a_few_does_not_say_that_all_are_there() {
        let mut server = server(3, 0..3);
        for rank in 0..3 {
            request(&mut server, 0, Request::Init { rank: Rank(rank), pid: None });
        }
        let who = Participants::Ranks(vec![Rank(0), Rank(2)]);
        assert_eq!(request(&mut server, 1, Request::Fence { who, data: vec![] }), [answer(1, Answer::Data(vec![]))]);
        let who = Participants::Ranks(vec![Rank(0), Rank(1), Rank(2)]);
        let effects = request(&mut server, 2, Request::Fence { who, data: vec![] });
        assert_eq!(effects.len(), 4, "{effects:?}");
    }

    #[test]
    fn a_fence_over_nodes_goes_through_the_front_and_has_the_same_number_on_each() {
        let (mut first, mut second) = (server(4, [0, 1]), server(4, [2, 3]));
        let mut numbers = Vec::new();
        for id in [1, 2] {
            for server in [&mut first, &mut second] {
                let effects = request(server, id, Request::Fence { who: Participants::All, data: vec![id as u8] });
                let [Effect::Collective(collective)] = &effects[..] else { panic!("{effects:?}") };
                assert_eq!((collective.members, &collective.payload[..]), (2, &[id as u8][..]));
                numbers.push(collective.seq);
            }
        }
        assert_eq!((numbers[0], numbers[2]), (numbers[1], numbers[3]));
        assert_ne!(numbers[0], numbers[2]);
        let mut effects = Vec::new();
        first.collective_done(CollectiveResult { seq: numbers[0], payloads: vec![vec![1], vec![9]] }, &mut effects);
        assert_eq!(effects, [answer(1, Answer::Data(vec![1, 9]))]);
        first.collective_done(CollectiveResult { seq: 77, payloads: vec![] }, &mut effects);
        assert_eq!(effects.len(), 1, "nobody waits for it");
    }

    #[test]
    fn names_are_found_when_they_are_published_and_not_before() {
        let mut server = server(2, 0..2);
        let keys = vec!["service".to_owned()];
        let lookup = |wait| Request::Lookup { rank: Rank(0), keys: keys.clone(), wait };
        assert_eq!(request(&mut server, 1, lookup(None)), [answer(1, Answer::NotFound)]);
        assert_eq!(request(&mut server, 2, lookup(Some(0))), []);
        assert_eq!(request(&mut server, 3, lookup(Some(5))), []);
        assert_eq!(server.deadline(), Some(NOW + Duration::from_secs(5)));
        let mut effects = Vec::new();
        server.tick(NOW + Duration::from_secs(5), &mut effects);
        assert_eq!((effects, server.deadline()), (vec![answer(3, Answer::TimedOut)], None));
        let entries = vec![("service".to_owned(), vec![7])];
        let publish = Request::Publish { rank: Rank(1), entries };
        let found = Answer::Found(vec![(Rank(1), "service".to_owned(), vec![7])]);
        assert_eq!(request(&mut server, 4, publish.clone()), [answer(2, found.clone()), answer(4, Answer::Done)]);
        assert_eq!(request(&mut server, 5, publish), [answer(5, Answer::Exists)]);
        assert_eq!(request(&mut server, 6, lookup(None)), [answer(6, found)]);
        let unpublish = Request::Unpublish { rank: Rank(0), keys: keys.clone() };
        assert_eq!(request(&mut server, 7, unpublish.clone()), [answer(7, Answer::Done)]);
        assert_eq!(request(&mut server, 8, unpublish), [answer(8, Answer::NotFound)]);
    }

    #[test]
    fn a_spawn_is_refused_with_what_was_asked_for() {
        let mut server = server(1, 0..1);
        let effects = request(&mut server, 1, Request::Spawn { rank: Rank(0), commands: vec!["./worker".to_owned()] });
        let detail = Some("./worker".to_owned());
        let refused = Effect::Refused { rank: Rank(0), call: "MPI_Comm_spawn", detail };
        assert_eq!(effects, [refused, answer(1, Answer::NotSupported)]);
    }

    #[test]
    fn each_group_has_a_context_of_its_own() {
        let mut server = server(2, 0..2);
        let mut contexts = Vec::new();
        for id in 0..2 {
            let group = Request::Group { who: Participants::All, wants_context: true, data: vec![id as u8] };
            match &request(&mut server, id, group)[..] {
                [Effect::Answer { answer: Answer::Group { context: Some(context), who, data }, .. }] => {
                    assert_eq!((who.len(), &data[..]), (2, &[id as u8][..]));
                    contexts.push(*context);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_ne!(contexts[0], contexts[1]);
    }
}
