//! Hostile PMI-1 clients: `cargo +nightly fuzz run pmi1 -- -dict=pmi1.dict`.
//!
//! The first byte picks the world. Each step after it is a byte that picks a rank and what happens to it, and for raw
//! bytes a length and the bytes. Beside the absence of panics it is asserted that replies keep to their length, that
//! nobody is spoken to after the end of its conversation, and that what is held of a client is bounded.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rankrun_core::collective::Collective;
use rankrun_core::names::{Asker, Protocol, PublishedNames};
use rankrun_core::spawning::SpawnAnswer;
use rankrun_core::{GroupId, NodeId, Rank};
use rankrun_wire::collectives::Collectives;
use rankrun_wireup::pmi1::{Config, Effect, MAX_KVS_BYTES, MAX_LINE, MAX_REPLY, Server};

const LINES: [&[u8]; 12] = [
    b"cmd=init pmi_version=1 pmi_subversion=1\n",
    b"cmd=get_maxes\n",
    b"cmd=get_my_kvsname\n",
    b"cmd=put kvsname=k_0_0 key=k value=v\n",
    b"cmd=put key=k value=w\n",
    b"cmd=get kvsname=k_0_1 key=k\n",
    b"cmd=get key=k\n",
    b"cmd=barrier_in\n",
    b"cmd=barrier_in\n",
    b"mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=1\nendcmd\n",
    b"cmd=abort exitcode=1\n",
    b"cmd=finalize\n",
];

/// The nodes of a group, with a front between them that hands collectives out.
struct Nodes {
    servers: Vec<Server>,
    shut: Vec<bool>,
    collectives: Collectives,
    names: PublishedNames,
}

impl Nodes {
    fn new(shape: u8) -> Nodes {
        let (nodes, size) = (1 + u32::from(shape) % 2, 1 + u32::from(shape >> 1) % 4);
        let server = |node: u32| {
            Server::new(Config {
                group: GroupId(0),
                size,
                kvs_prefix: "k".to_owned(),
                mapping: format!("(vector,(0,1,{size}))"),
                appnums: Vec::new(),
                universe_size: None,
                topology: None,
                preput: Vec::new(),
                local: (node..size).step_by(nodes as usize).map(Rank).collect(),
            })
        };
        Nodes {
            servers: (0..nodes).map(server).collect(),
            shut: vec![false; size as usize],
            collectives: Collectives::default(),
            names: PublishedNames::default(),
        }
    }

    fn perform(&mut self, node: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Reply { rank, bytes } => {
                    assert!(!self.shut[rank.number() as usize], "a reply after the end");
                    assert!(bytes.len() < MAX_REPLY && bytes.ends_with(b"\n"));
                    assert!(!bytes[..bytes.len() - 1].contains(&b'\n'));
                }
                Effect::Abort { rank, .. } | Effect::Malformed { rank, .. } | Effect::Closed { rank, .. } => {
                    let ended = std::mem::replace(&mut self.shut[rank.number() as usize], true);
                    assert!(!ended, "a conversation ended twice");
                }
                Effect::Collective(part) => {
                    let node_of = self.node_of();
                    let whole = self.collectives.take(NodeId(node as u32), part, node_of);
                    self.distribute(whole);
                }
                Effect::Ask { id, question } => {
                    let asker = Asker { node: NodeId(node as u32), group: GroupId(0), protocol: Protocol::Pmi1, id };
                    let mut replies = Vec::new();
                    self.names.ask(asker, question, &mut replies);
                    for (asker, reply) in replies {
                        let mut effects = Vec::new();
                        self.servers[asker.node.index()].answered(asker.id, reply, &mut effects);
                        self.perform(asker.node.index(), effects);
                    }
                }
                Effect::Inited { .. }
                | Effect::Finalized { .. }
                | Effect::BarrierBroken { .. }
                | Effect::Topology { .. } => {}
                Effect::Gone { group, seq, ranks } => {
                    let node_of = self.node_of();
                    let whole = self.collectives.gone(group, seq, &ranks, node_of);
                    self.distribute(whole);
                }
                Effect::Spawn { id, rank, .. } => {
                    let answer = match rank.number() % 2 {
                        0 => SpawnAnswer::Started(GroupId(1)),
                        _ => SpawnAnswer::Refused("no such program".to_owned()),
                    };
                    let mut effects = Vec::new();
                    self.servers[node].spawned(id, &answer, &mut effects);
                    self.perform(node, effects);
                }
            }
        }
    }

    fn node_of(&self) -> impl Fn(Rank) -> Option<NodeId> + use<> {
        let nodes = self.servers.len() as u32;
        move |rank| Some(NodeId(rank.number() % nodes))
    }

    /// Every node gets a collective that is complete.
    fn distribute(&mut self, whole: Option<Collective>) {
        let Some(whole) = whole else { return };
        for node in 0..self.servers.len() {
            let mut effects = Vec::new();
            self.servers[node].collective_done(whole.clone(), &mut effects);
            self.perform(node, effects);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&shape, mut steps)) = data.split_first() else {
        return;
    };
    let mut nodes = Nodes::new(shape);
    while let Some((&step, rest)) = steps.split_first() {
        steps = rest;
        let rank = usize::from(step & 3) % nodes.shut.len();
        let node = rank % nodes.servers.len();
        let rank = Rank(rank as u32);
        let mut effects = Vec::new();
        match usize::from(step >> 2) {
            0 => nodes.servers[node].closed(rank, &mut effects),
            canned @ 1..=12 => nodes.servers[node].received(rank, LINES[canned - 1], &mut effects),
            _ => {
                let (length, rest) =
                    steps.split_first().map_or((0, steps), |(length, rest)| (usize::from(*length), rest));
                let (bytes, rest) = rest.split_at(length.min(rest.len()));
                steps = rest;
                nodes.servers[node].received(rank, bytes, &mut effects);
            }
        }
        nodes.perform(node, effects);
        assert!(nodes.servers[node].held(rank) <= 2 * (MAX_LINE + MAX_KVS_BYTES));
    }
});
