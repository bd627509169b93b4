//! Decides what the ranks get.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use rankrun_core::collective::Collective;
use rankrun_core::names::{Question, Reply};
use rankrun_core::spawning::{SpawnAnswer, SpawnRequest};
use rankrun_core::{GroupId, NodeId, NodeRank, Pid, Rank, Stream};

use super::collectives::{Collectives, Kind, Pending};
use super::message::{Answer, Participants, Ranks, Request};

/// What a server must know of its job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    pub node: NodeRank,
    /// How many nodes the job has.
    pub nodes: u32,
}

/// What a server must know of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    pub group: GroupId,
    /// How many ranks the group has on all nodes.
    pub size: u32,
    /// The ranks of this node.
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
        of: Rank,
        pid: Option<Pid>,
    },
    /// It has come out of a fence, so that all others were there too.
    PassedFence {
        of: Rank,
    },
    Finalized {
        of: Rank,
    },
    /// The rank asks that the job be ended.
    Aborted {
        of: Rank,
        code: i32,
        message: Option<String>,
    },
    /// The rank asks for a further group: have it started, and hand the answer to [`Server::spawned`].
    Spawn {
        id: u64,
        of: Rank,
        request: Box<SpawnRequest>,
    },
    /// The rank wrote this, through its library.
    Logged {
        of: Rank,
        stream: Stream,
        text: Vec<u8>,
    },
    /// Ask the names of the job for this rank, and hand the answer to [`Server::answered`].
    Ask {
        id: u64,
        of: Rank,
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
        of: Rank,
        data: Option<Vec<u8>>,
    },
    /// The local part of a collective is complete: hand it to the front, which answers with the whole. Only
    /// where a participant is on another node.
    Collective(Collective),
    /// These are gone, and take part in a collective that waits for other nodes.
    Gone {
        group: GroupId,
        seq: u64,
        ranks: Vec<Rank>,
    },
}

/// A question to the names of the job.
#[derive(Clone, Copy, Debug)]
struct Asked {
    of: Rank,
    /// It looks a name up.
    is_lookup: bool,
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

/// A group of ranks, as one node has it.
#[derive(Clone, Debug)]
struct Members {
    size: u32,
    /// The ranks of this node.
    local: BTreeMap<Rank, Member>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Member {
    life: Lifecycle,
    has_ended: bool,
}

/// The server of one node.
#[derive(Clone, Debug)]
pub struct Server {
    config: Config,
    groups: BTreeMap<GroupId, Members>,
    /// The requests that wait for the names of the job, and until when.
    asked: HashMap<u64, Asked>,
    /// The requests that wait for data of another node.
    fetches: HashMap<u64, Rank>,
    /// The requests that wait for a further group.
    spawns: HashSet<u64>,
    /// What other nodes wait for, by a number of ours.
    sought: BTreeMap<u64, Sought>,
    next_sought: u64,
    collectives: Collectives,
    /// The last context that a group of this node has, or that was proposed for one.
    contexts: u64,
    /// The ranks of all nodes that are gone while the others run on.
    gone: BTreeSet<Rank>,
}

impl Server {
    pub fn new(config: Config) -> Server {
        Server {
            config,
            groups: BTreeMap::new(),
            asked: HashMap::new(),
            fetches: HashMap::new(),
            spawns: HashSet::new(),
            sought: BTreeMap::new(),
            next_sought: 0,
            collectives: Collectives::default(),
            contexts: 0,
            gone: BTreeSet::new(),
        }
    }

    /// A group begins, on this node or on others.
    pub fn begin(&mut self, group: Group) {
        let local = group.local.into_iter().map(|rank| (rank, Member::default())).collect();
        self.groups.insert(group.group, Members { size: group.size, local });
    }

    /// No rank of the group is left on this node, and none will be.
    pub fn over(&mut self, group: GroupId) {
        self.collectives.forget(group);
    }

    pub fn lifecycle(&self, of: Rank) -> Lifecycle {
        self.local(of).map(|member| member.life).unwrap_or_default()
    }

    /// A rank of this node.
    fn local(&self, of: Rank) -> Option<&Member> {
        self.groups.get(&of.group())?.local.get(&of)
    }

    fn local_mut(&mut self, of: Rank) -> Option<&mut Member> {
        self.groups.get_mut(&of.group())?.local.get_mut(&of)
    }

    /// When [`Server::tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        self.asked.values().filter_map(|asked| asked.until).min()
    }

    /// Ends the lookups whose time has passed.
    pub fn tick(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        for (id, asked) in self.asked.extract_if(|_, asked| asked.until.is_some_and(|until| until <= now)) {
            effects.push(Effect::Ask { id, of: asked.of, question: Question::Withdraw });
            effects.push(Effect::Answer { id, answer: Answer::TimedOut });
        }
    }

    /// A request of the host.
    pub fn request(&mut self, now: Duration, id: u64, request: Request, effects: &mut Vec<Effect>) {
        let answer = match request {
            Request::Init { of, pid } => {
                if let Some(member) = self.local_mut(of) {
                    member.life = Lifecycle::Inited { passed_fence: false };
                    effects.push(Effect::Inited { of, pid });
                }
                Answer::Done
            }
            Request::Finalize { of } => {
                if let Some(member) = self.local_mut(of) {
                    member.life = Lifecycle::Finalized;
                    effects.push(Effect::Finalized { of });
                }
                Answer::Done
            }
            Request::Abort { of, code, message } => {
                // Open MPI 4 has no message.
                let message = message.filter(|message| !message.is_empty() && message != "N/A");
                effects.push(Effect::Aborted { of, code, message });
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
            Request::Fetch { of } if !self.exists(of) || self.local(of).is_some() => Answer::NotFound,
            Request::Fetch { of } => {
                self.fetches.insert(id, of);
                effects.push(Effect::Fetch { id, of });
                return;
            }
            Request::Publish { entries, .. } if size_of(&entries) > MAX_DATA => Answer::NotSupported,
            Request::Publish { of, entries, once } => {
                let entries = entries.into_iter().map(|(key, value)| (key.into_bytes(), value)).collect();
                let asked = Asked { of, is_lookup: false, until: None };
                return self.ask(id, asked, Question::Publish { rank: of, entries, once }, effects);
            }
            Request::Lookup { of, keys, wait } => {
                let until = wait.filter(|seconds| *seconds > 0).map(|seconds| now + Duration::from_secs(seconds));
                let question = Question::Lookup { names: bytes(keys), waits: wait.is_some() };
                return self.ask(id, Asked { of, is_lookup: true, until }, question, effects);
            }
            Request::Unpublish { of, keys } => {
                let asked = Asked { of, is_lookup: false, until: None };
                return self.ask(id, asked, Question::Unpublish { names: bytes(keys) }, effects);
            }
            Request::Log { of, texts, others } => {
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
                    effects.push(Effect::Logged { of, stream, text });
                }
                answer
            }
            Request::Spawn { of, request } if request.size() > 0 && is_whole(&request) => {
                self.spawns.insert(id);
                effects.push(Effect::Spawn { id, of, request });
                return;
            }
            Request::Spawn { .. } => Answer::NotSpawned,
        };
        effects.push(Effect::Answer { id, answer });
    }

    /// All parts of a collective are there.
    pub fn collective_done(&mut self, whole: Collective, effects: &mut Vec<Effect>) {
        if let Some(pending) = self.collectives.take(whole.seq) {
            self.complete(pending, whole.payloads, effects);
        }
    }

    fn ask(&mut self, id: u64, asked: Asked, question: Question, effects: &mut Vec<Effect>) {
        self.asked.insert(id, asked);
        effects.push(Effect::Ask { id, of: asked.of, question });
    }

    /// The ranks that a request has asked for have been started, or will not be.
    pub fn spawned(&mut self, id: u64, answer: &SpawnAnswer, effects: &mut Vec<Effect>) {
        if self.spawns.remove(&id) {
            let answer = match answer {
                SpawnAnswer::Started(group) => Answer::Spawned(*group),
                SpawnAnswer::Refused(_) => Answer::NotSpawned,
            };
            effects.push(Effect::Answer { id, answer });
        }
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
        if self.fetches.remove(&id).is_some() {
            let answer = data.map_or(Answer::NotFound, Answer::Data);
            effects.push(Effect::Answer { id, answer });
        }
    }

    /// Another node asks for the data of a rank of this one. It waits until the rank has data, or is gone.
    pub fn seek(&mut self, by: NodeId, id: u64, of: Rank, effects: &mut Vec<Effect>) {
        if self.local(of).is_none_or(|member| member.has_ended) {
            return effects.push(Effect::Fetched { by, id, of, data: None });
        }
        let number = self.next_sought;
        self.next_sought += 1;
        self.sought.insert(number, Sought { by, id, of });
        effects.push(Effect::Find { id: number, of });
    }

    /// libpmix has answered a [`Effect::Find`].
    pub fn found(&mut self, number: u64, data: Option<Vec<u8>>, effects: &mut Vec<Effect>) {
        // The rank may have ended before.
        if let Some(Sought { by, id, of }) = self.sought.remove(&number) {
            let data = data.filter(|data| data.len() <= MAX_DATA);
            effects.push(Effect::Fetched { by, id, of, data });
        }
    }

    /// What was asked of the host and is not answered: a host that has just begun to serve has heard of none of it.
    pub fn unanswered(&self) -> impl Iterator<Item = Effect> {
        self.sought.iter().map(|(number, sought)| Effect::Find { id: *number, of: sought.of })
    }

    /// A rank of this node has ended: nobody will hear more of it.
    pub fn ended(&mut self, of: Rank, effects: &mut Vec<Effect>) {
        if let Some(member) = self.local_mut(of) {
            member.has_ended = true;
        }
        // It would take what is to be read once.
        for (id, asked) in self.asked.extract_if(|_, asked| asked.is_lookup && asked.of == of) {
            effects.push(Effect::Ask { id, of: asked.of, question: Question::Withdraw });
        }
        self.sought.retain(|_, sought| {
            let is_gone = sought.of == of;
            if is_gone {
                effects.push(Effect::Fetched { by: sought.by, id: sought.id, of, data: None });
            }
            !is_gone
        });
    }

    /// Ranks are gone, on whichever node, and the others run on. Returns those of which nothing was known.
    pub fn lost(&mut self, ranks: &[Rank], effects: &mut Vec<Effect>) -> Vec<Rank> {
        let new: Vec<Rank> = ranks.iter().copied().filter(|rank| self.gone.insert(*rank)).collect();
        for (seq, who) in self.collectives.waiting() {
            let ranks: Vec<Rank> = new.iter().copied().filter(|rank| who.has_rank(*rank)).collect();
            if !ranks.is_empty() {
                effects.push(Effect::Gone { group: who.first(), seq, ranks });
            }
        }
        // Nobody may be left on its node to answer.
        for (id, _) in self.fetches.extract_if(|_, of| new.contains(of)) {
            effects.push(Effect::Answer { id, answer: Answer::NotFound });
        }
        new
    }

    /// The participants that are gone.
    fn gone_of(&self, who: &Participants) -> Vec<Rank> {
        self.gone.iter().copied().filter(|rank| who.has_rank(*rank)).collect()
    }

    /// A rank of this node is started again.
    pub fn started(&mut self, of: Rank) {
        if let Some(member) = self.local_mut(of) {
            member.has_ended = false;
        }
    }

    fn exists(&self, of: Rank) -> bool {
        self.groups.get(&of.group()).is_some_and(|group| of.number() < group.size)
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
        let Some(of) = self.size_of(&who) else {
            // A group of which this node has not heard: its ranks are not started yet.
            return effects.push(Effect::Answer { id, answer: Answer::NotFound });
        };
        let members = self.local_of(&who).len() as u32;
        let seq = self.collectives.begin(kind, &who);
        let (group, gone) = (who.first(), self.gone_of(&who));
        let pending = Pending { id, kind, who, wants_context };
        if members == of {
            self.complete(pending, vec![data], effects);
        } else {
            self.collectives.wait(seq, pending);
            effects.push(Effect::Collective(Collective { group, seq, members, of, gone, payloads: vec![data] }));
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
        if kind == Kind::Fence
            && let [(group, _)] = &who.0[..]
            && self.groups.get(group).is_some_and(|members| self.size_of(&who) == Some(members.size))
        {
            for of in self.local_of(&who) {
                if let Some(Member { life: life @ Lifecycle::Inited { passed_fence: false }, .. }) = self.local_mut(of)
                {
                    *life = Lifecycle::Inited { passed_fence: true };
                    effects.push(Effect::PassedFence { of });
                }
            }
        }
    }

    /// How many ranks take part on all nodes. `None`: a group is not known.
    fn size_of(&self, who: &Participants) -> Option<u32> {
        let sizes = who.0.iter().map(|(group, ranks)| match ranks {
            Ranks::All => self.groups.get(group).map(|group| group.size),
            Ranks::Some(ranks) => self.groups.contains_key(group).then_some(ranks.len() as u32),
        });
        sizes.sum()
    }

    fn all(&self, who: &Participants) -> Vec<Rank> {
        let procs = who.0.iter().flat_map(|(group, ranks)| match ranks {
            Ranks::All => {
                let size = self.groups.get(group).map_or(0, |group| group.size);
                (0..size).map(|number| Rank::of(*group, number)).collect::<Vec<_>>()
            }
            Ranks::Some(ranks) => ranks.clone(),
        });
        procs.collect()
    }

    /// Those on this node.
    fn local_of(&self, who: &Participants) -> Vec<Rank> {
        let procs = who.0.iter().flat_map(|(group, ranks)| {
            let local = self.groups.get(group).into_iter().flat_map(|group| group.local.keys());
            let takes_part = |rank: &&Rank| match ranks {
                Ranks::All => true,
                Ranks::Some(ranks) => ranks.binary_search(rank).is_ok(),
            };
            local.filter(takes_part).copied()
        });
        procs.collect()
    }
}

/// Whether each command of a request can be started at all.
fn is_whole(request: &SpawnRequest) -> bool {
    request.apps.iter().all(|app| !app.command.is_empty() && app.size > 0)
}

fn size_of(entries: &[(String, Vec<u8>)]) -> usize {
    entries.iter().map(|(key, value)| key.len() + value.len()).sum()
}

fn bytes(keys: Vec<String>) -> Vec<Vec<u8>> {
    keys.into_iter().map(String::into_bytes).collect()
}
