//! Decides what the ranks get.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use rankrun_core::names::{Question, Reply};
use rankrun_core::{GroupId, NodeId, NodeRank, Pid, Rank, Stream};

use super::message::{Answer, Participants, Request};

/// What a server must know of its job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    pub group: GroupId,
    /// How many ranks the job has on all nodes.
    pub size: u32,
    /// The ranks of this node, in ascending order.
    pub local: Vec<Rank>,
    pub node: NodeRank,
    /// How many nodes the job has.
    pub nodes: u32,
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
    /// The rank wrote this, through its library.
    Logged {
        rank: Rank,
        stream: Stream,
        text: Vec<u8>,
    },
    /// Ask the names of the job, and hand the answer to [`Server::answered`].
    Ask {
        id: u64,
        question: Question,
    },
    /// Ask the node of this rank for the rank's data, and hand them to [`Server::fetched`].
    Fetch {
        id: u64,
        of: Rank,
    },
    /// Have the host ask libpmix for the data of a rank of this node, and hand them to [`Server::found`].
    Find {
        id: u64,
        of: Rank,
    },
    /// What another node has asked for; `None` if the rank is gone.
    Fetched {
        by: NodeId,
        id: u64,
        data: Option<Vec<u8>>,
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
    /// How many ranks this node contributes for, and how many take part on all nodes together.
    pub members: u32,
    pub of: u32,
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
    wants_context: bool,
}

/// A question to the names of the job.
#[derive(Clone, Copy, Default, Debug)]
struct Asked {
    /// The rank that looks a name up.
    lookup_of: Option<Rank>,
    until: Option<Duration>,
}

/// Data of a rank of this node that another node has asked for.
#[derive(Clone, Debug)]
struct Sought {
    by: NodeId,
    /// The number that the other node has given it.
    id: u64,
    of: Rank,
}

/// Some bytes more than a rank has to tell; a frame of the wire has room for it.
const MAX_DATA: usize = 16 << 20;
/// The proposed context before the data of a group.
const PROPOSAL: usize = 8;

/// The server of one node.
#[derive(Clone, Debug)]
pub struct Server {
    config: Config,
    ranks: BTreeMap<Rank, Lifecycle>,
    /// The requests that wait for the names of the job, and until when.
    asked: HashMap<u64, Asked>,
    /// The requests that wait for data of another node.
    fetches: HashSet<u64>,
    /// What other nodes wait for, by a number of ours.
    sought: BTreeMap<u64, Sought>,
    next_sought: u64,
    /// Local ranks that have ended.
    gone: HashSet<Rank>,
    /// By number of the operation.
    pending: HashMap<u64, Pending>,
    /// How many operations of each kind the same participants have begun.
    counts: HashMap<(Kind, Participants), u64>,
    /// The last context that a group of this node has, or that was proposed for one.
    contexts: u64,
}

impl Server {
    pub fn new(config: Config) -> Server {
        let ranks = config.local.iter().map(|rank| (*rank, Lifecycle::NotInited)).collect();
        Server {
            config,
            ranks,
            asked: HashMap::new(),
            fetches: HashSet::new(),
            sought: BTreeMap::new(),
            next_sought: 0,
            gone: HashSet::new(),
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
        self.asked.values().filter_map(|asked| asked.until).min()
    }

    /// Ends the lookups whose time has passed.
    pub fn tick(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        for (id, _) in self.asked.extract_if(|_, asked| asked.until.is_some_and(|until| until <= now)) {
            effects.push(Effect::Ask { id, question: Question::Withdraw });
            effects.push(Effect::Answer { id, answer: Answer::TimedOut });
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
            Request::Fence { who, data } => return self.collective(id, Kind::Fence, who, data, false, effects),
            Request::Connect { who } => return self.collective(id, Kind::Connect, who, Vec::new(), false, effects),
            Request::Disconnect { who } => {
                return self.collective(id, Kind::Disconnect, who, Vec::new(), false, effects);
            }
            Request::Group { who, wants_context, data } => {
                let data = [&self.propose_context().to_le_bytes()[..], &data].concat();
                return self.collective(id, Kind::Group, who, data, wants_context, effects);
            }
            // libpmix has the data of this node's ranks, and asks for those of others alone.
            Request::Fetch { of } if of.number() >= self.config.size || self.is_local(of) => Answer::NotFound,
            Request::Fetch { of } => {
                self.fetches.insert(id);
                effects.push(Effect::Fetch { id, of });
                return;
            }
            Request::Publish { entries, .. } if size_of(&entries) > MAX_DATA => Answer::NotSupported,
            Request::Publish { rank, entries, once } => {
                let entries = entries.into_iter().map(|(key, value)| (key.into_bytes(), value)).collect();
                return self.ask(id, Asked::default(), Question::Publish { rank, entries, once }, effects);
            }
            Request::Lookup { rank, keys, wait } => {
                let until = wait.filter(|seconds| *seconds > 0).map(|seconds| now + Duration::from_secs(seconds));
                let question = Question::Lookup { names: bytes(keys), waits: wait.is_some() };
                return self.ask(id, Asked { lookup_of: Some(rank), until }, question, effects);
            }
            Request::Unpublish { rank: _, keys } => {
                return self.ask(id, Asked::default(), Question::Unpublish { names: bytes(keys) }, effects);
            }
            Request::Log { rank, texts, others } => {
                let answer = match (texts.is_empty(), others) {
                    (true, _) => Answer::NotSupported,
                    (false, 0) => Answer::Done,
                    (false, _) => Answer::Partly,
                };
                for (stream, mut text) in texts {
                    // What the rank writes next begins a line.
                    if text.last().is_some_and(|byte| *byte != b'\n') {
                        text.push(b'\n');
                    }
                    effects.push(Effect::Logged { rank, stream, text });
                }
                answer
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
            self.complete(pending, done.payloads, effects);
        }
    }

    fn ask(&mut self, id: u64, asked: Asked, question: Question, effects: &mut Vec<Effect>) {
        self.asked.insert(id, asked);
        effects.push(Effect::Ask { id, question });
    }

    /// The names of the job have answered.
    pub fn answered(&mut self, id: u64, reply: Reply, effects: &mut Vec<Effect>) {
        // A lookup may have been answered by its time limit.
        if self.asked.remove(&id).is_none() {
            return;
        }
        let text = |key: Vec<u8>| String::from_utf8_lossy(&key).into_owned();
        let answer = match reply {
            Reply::Done => Answer::Done,
            Reply::NotFound => Answer::NotFound,
            Reply::Exists => Answer::Exists,
            Reply::Full => Answer::NotSupported,
            Reply::Found(found) => {
                Answer::Found(found.into_iter().map(|(rank, key, value)| (rank, text(key), value)).collect())
            }
        };
        effects.push(Effect::Answer { id, answer });
    }

    /// The node of a rank has sent its data; `None` if the rank is gone.
    pub fn fetched(&mut self, id: u64, data: Option<Vec<u8>>, effects: &mut Vec<Effect>) {
        if self.fetches.remove(&id) {
            let answer = data.map_or(Answer::NotFound, Answer::Data);
            effects.push(Effect::Answer { id, answer });
        }
    }

    /// Another node asks for the data of a rank of this one. It waits until the rank has data, or is gone.
    pub fn seek(&mut self, by: NodeId, id: u64, of: Rank, effects: &mut Vec<Effect>) {
        if !self.is_local(of) || self.gone.contains(&of) {
            return effects.push(Effect::Fetched { by, id, data: None });
        }
        let number = self.next_sought;
        self.next_sought += 1;
        self.sought.insert(number, Sought { by, id, of });
        effects.push(Effect::Find { id: number, of });
    }

    /// libpmix has answered a [`Effect::Find`].
    pub fn found(&mut self, number: u64, data: Option<Vec<u8>>, effects: &mut Vec<Effect>) {
        // The rank may have ended before.
        if let Some(Sought { by, id, .. }) = self.sought.remove(&number) {
            let data = data.filter(|data| data.len() <= MAX_DATA);
            effects.push(Effect::Fetched { by, id, data });
        }
    }

    /// What was asked of the host and is not answered: a host that has just begun to serve has heard of none of it.
    pub fn unanswered(&self) -> impl Iterator<Item = Effect> {
        self.sought.iter().map(|(number, sought)| Effect::Find { id: *number, of: sought.of })
    }

    /// A rank of this node has ended: nobody will hear more of it.
    pub fn ended(&mut self, rank: Rank, effects: &mut Vec<Effect>) {
        self.gone.insert(rank);
        // It would take what is to be read once.
        for (id, _) in self.asked.extract_if(|_, asked| asked.lookup_of == Some(rank)) {
            effects.push(Effect::Ask { id, question: Question::Withdraw });
        }
        self.sought.retain(|_, Sought { by, id, of }| {
            let is_gone = *of == rank;
            if is_gone {
                effects.push(Effect::Fetched { by: *by, id: *id, data: None });
            }
            !is_gone
        });
    }

    /// A rank of this node is started again.
    pub fn started(&mut self, rank: Rank) {
        self.gone.remove(&rank);
    }

    fn is_local(&self, rank: Rank) -> bool {
        self.config.local.binary_search(&rank).is_ok()
    }

    /// A number that no node has proposed before, and that is greater than all that this one knows: the nodes of a group take
    /// the greatest that one of them proposes, and so two groups never have the same.
    fn propose_context(&mut self) -> u64 {
        let nodes = u64::from(self.config.nodes.max(1));
        self.contexts = (self.contexts / nodes + 1) * nodes + u64::from(self.config.node.0);
        self.contexts
    }

    fn collective(
        &mut self,
        id: u64,
        kind: Kind,
        who: Participants,
        data: Vec<u8>,
        wants_context: bool,
        effects: &mut Vec<Effect>,
    ) {
        let local = self.local(&who).len() as u32;
        let count = self.counts.entry((kind, who.clone())).or_default();
        *count += 1;
        let seq = number(kind, &who, *count);
        let of = self.size_of(&who);
        let pending = Pending { id, kind, who, wants_context };
        if local == of {
            self.complete(pending, vec![data], effects);
        } else {
            self.pending.insert(seq, pending);
            let collective = Collective { group: self.config.group, seq, members: local, of, payload: data };
            effects.push(Effect::Collective(collective));
        }
    }

    fn complete(&mut self, pending: Pending, parts: Vec<Vec<u8>>, effects: &mut Vec<Effect>) {
        let Pending { id, kind, who, wants_context } = pending;
        let answer = match kind {
            Kind::Fence => Answer::Data(parts.concat()),
            Kind::Connect | Kind::Disconnect => Answer::Done,
            Kind::Group => {
                let parts = || parts.iter().filter_map(|part| part.split_first_chunk::<PROPOSAL>());
                let agreed = parts().map(|(proposal, _)| u64::from_le_bytes(*proposal)).max().unwrap_or_default();
                self.contexts = self.contexts.max(agreed);
                // From the top, as PRRTE counts them: MPI's own identifiers begin at 0.
                let context = wants_context.then(|| u64::from(u32::MAX).saturating_sub(agreed));
                Answer::Group {
                    context,
                    who: self.all(&who),
                    data: parts().flat_map(|(_, data)| data).copied().collect(),
                }
            }
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

fn size_of(entries: &[(String, Vec<u8>)]) -> usize {
    entries.iter().map(|(key, value)| key.len() + value.len()).sum()
}

fn bytes(keys: Vec<String>) -> Vec<Vec<u8>> {
    keys.into_iter().map(String::into_bytes).collect()
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
        ranks.iter().for_each(|rank| add(u64::from(rank.number()) + 1));
    }
    hash | (1 << 63)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    fn server(size: u32, local: impl IntoIterator<Item = u32>) -> Server {
        let local: Vec<Rank> = local.into_iter().map(Rank).collect();
        let node = NodeRank(u32::from(local.first() != Some(&Rank(0))));
        let nodes = if local.len() as u32 == size { 1 } else { 2 };
        Server::new(Config { group: GroupId(0), size, local, node, nodes })
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
    fn a_question_is_asked_once_and_its_answer_goes_to_the_rank() {
        let mut server = server(2, 0..2);
        let keys = vec!["service".to_owned()];
        let names = vec![b"service".to_vec()];
        let lookup = |wait| Request::Lookup { rank: Rank(0), keys: keys.clone(), wait };
        let ask = |id, waits| Effect::Ask { id, question: Question::Lookup { names: names.clone(), waits } };
        assert_eq!(request(&mut server, 1, lookup(None)), [ask(1, false)]);
        assert_eq!(request(&mut server, 2, lookup(Some(0))), [ask(2, true)]);
        assert_eq!(request(&mut server, 3, lookup(Some(5))), [ask(3, true)]);
        assert_eq!(server.deadline(), Some(NOW + Duration::from_secs(5)));
        let mut effects = Vec::new();
        server.tick(NOW + Duration::from_secs(5), &mut effects);
        let withdrawn = Effect::Ask { id: 3, question: Question::Withdraw };
        assert_eq!((effects, server.deadline()), (vec![withdrawn, answer(3, Answer::TimedOut)], None));
        let found = || Reply::Found(vec![(Rank(1), b"service".to_vec(), vec![7])]);
        let mut effects = Vec::new();
        server.answered(3, found(), &mut effects);
        assert_eq!(effects, [], "it has timed out");
        server.answered(2, found(), &mut effects);
        server.answered(1, Reply::NotFound, &mut effects);
        let found = Answer::Found(vec![(Rank(1), "service".to_owned(), vec![7])]);
        assert_eq!(effects, [answer(2, found), answer(1, Answer::NotFound)]);
        assert_eq!(request(&mut server, 4, lookup(Some(0))), [ask(4, true)]);
        let mut effects = Vec::new();
        server.ended(Rank(1), &mut effects);
        assert_eq!(effects, [], "it did not ask");
        server.ended(Rank(0), &mut effects);
        assert_eq!(effects, [Effect::Ask { id: 4, question: Question::Withdraw }], "nobody waits for it any more");
    }

    #[test]
    fn data_of_a_rank_come_from_its_node_or_it_is_said_that_the_rank_is_gone() {
        let (mut first, mut second) = (server(4, [0, 1]), server(4, [2, 3]));
        for (id, of) in [(7, Rank(2)), (8, Rank(3)), (9, Rank(3))] {
            assert_eq!(request(&mut first, id, Request::Fetch { of }), [Effect::Fetch { id, of }]);
        }
        assert_eq!(request(&mut first, 10, Request::Fetch { of: Rank(9) }), [answer(10, Answer::NotFound)]);
        let mut effects = Vec::new();
        second.seek(NodeId(0), 7, Rank(2), &mut effects);
        second.seek(NodeId(0), 8, Rank(3), &mut effects);
        assert_eq!(effects, [Effect::Find { id: 0, of: Rank(2) }, Effect::Find { id: 1, of: Rank(3) }]);
        assert_eq!(second.unanswered().collect::<Vec<_>>(), effects, "a host that has just started is asked");
        effects.clear();
        second.found(0, Some(vec![5]), &mut effects);
        second.ended(Rank(3), &mut effects);
        second.found(1, Some(vec![6]), &mut effects);
        second.seek(NodeId(0), 9, Rank(3), &mut effects);
        let fetched = |id, data| Effect::Fetched { by: NodeId(0), id, data };
        assert_eq!(effects, [fetched(7, Some(vec![5])), fetched(8, None), fetched(9, None)]);
        let mut effects = Vec::new();
        first.fetched(7, Some(vec![5]), &mut effects);
        first.fetched(8, None, &mut effects);
        first.fetched(8, None, &mut effects);
        assert_eq!(effects, [answer(7, Answer::Data(vec![5])), answer(8, Answer::NotFound)]);
    }

    /// The answers that the two nodes of a group get, and what they have of it.
    fn group(servers: &mut [Server; 2], id: u64) -> Vec<(u64, Vec<u8>)> {
        let mut parts = Vec::new();
        for server in servers.iter_mut() {
            let wish = Request::Group { who: Participants::All, wants_context: true, data: vec![id as u8] };
            let effects = request(server, id, wish);
            let [Effect::Collective(part)] = &effects[..] else { panic!("{effects:?}") };
            parts.push(part.clone());
        }
        let payloads: Vec<Vec<u8>> = parts.iter().map(|part| part.payload.clone()).collect();
        let complete = |server: &mut Server| {
            let mut effects = Vec::new();
            let done = CollectiveResult { seq: parts[0].seq, payloads: payloads.clone() };
            server.collective_done(done, &mut effects);
            match effects.pop() {
                Some(Effect::Answer { answer: Answer::Group { context: Some(context), data, .. }, .. }) => {
                    (context, data)
                }
                other => panic!("{other:?}"),
            }
        };
        servers.iter_mut().map(complete).collect()
    }

    #[test]
    fn the_nodes_of_a_group_have_one_context_whatever_groups_each_had_before() {
        let mut servers = [server(4, [0, 1]), server(4, [2, 3])];
        let alone = Request::Group { who: Participants::Ranks(vec![Rank(2)]), wants_context: true, data: vec![] };
        let mut contexts = Vec::new();
        for id in 0..3 {
            match &request(&mut servers[1], id, alone.clone())[..] {
                [Effect::Answer { answer: Answer::Group { context: Some(context), .. }, .. }] => {
                    contexts.push(*context)
                }
                other => panic!("{other:?}"),
            }
        }
        for id in 3..6 {
            let answers = group(&mut servers, id);
            assert_eq!(answers[0], answers[1]);
            assert_eq!(answers[0].1, [id as u8; 2]);
            contexts.push(answers[0].0);
        }
        let all = contexts.len();
        contexts.sort_unstable();
        contexts.dedup();
        assert_eq!(contexts.len(), all, "{contexts:?}");
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
    fn a_logged_text_is_the_ranks_output_before_the_rank_gets_its_answer() {
        let mut server = server(2, 0..2);
        let rank = Rank(1);
        let texts = vec![(Stream::Stderr, b"no memory".to_vec()), (Stream::Stdout, b"bye\n".to_vec())];
        let log = |texts, others| Request::Log { rank, texts, others };
        let logged = |stream, text: &[u8]| Effect::Logged { rank, stream, text: text.to_vec() };
        let expected = [logged(Stream::Stderr, b"no memory\n"), logged(Stream::Stdout, b"bye\n")];
        let effects = request(&mut server, 1, log(texts.clone(), 0));
        assert_eq!((&effects[..2], &effects[2..]), (&expected[..], &[answer(1, Answer::Done)][..]));
        let effects = request(&mut server, 2, log(texts, 1));
        assert_eq!((&effects[..2], &effects[2..]), (&expected[..], &[answer(2, Answer::Partly)][..]));
        assert_eq!(request(&mut server, 3, log(Vec::new(), 1)), [answer(3, Answer::NotSupported)]);
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
