//! A server with its ranks, spoken to line by line.

use rankrun_core::names::{Asker, Protocol, PublishedNames};
use rankrun_core::spawning::SpawnAnswer;
use rankrun_core::{GroupId, NodeId, Rank, RankMap};
use rankrun_wireup::pmi1::{Config, Effect, MAX_REPLY, Server, process_mapping};

pub(crate) const INIT: &str = "cmd=init pmi_version=1 pmi_subversion=1";

pub(crate) fn config(size: u32) -> Config {
    Config {
        group: GroupId(0),
        size,
        kvs_prefix: "kvs".to_owned(),
        mapping: process_mapping(&RankMap::single_node("vm", &[size])).unwrap_or_default(),
        appnums: (0..size).map(|rank| u32::from(rank > 0)).collect(),
        universe_size: None,
        topology: None,
        preput: Vec::new(),
        local: (0..size).map(Rank).collect(),
    }
}

pub(crate) struct World {
    pub(crate) server: Server,
    names: PublishedNames,
    /// Groups that are asked for are started.
    pub(crate) starts: bool,
}

impl World {
    pub(crate) fn new(size: u32) -> World {
        World::of(config(size))
    }

    pub(crate) fn of(config: Config) -> World {
        World { server: Server::new(config), names: PublishedNames::default(), starts: false }
    }

    /// A world in which every rank has begun its first program.
    pub(crate) fn inited(size: u32) -> World {
        let mut world = World::new(size);
        for rank in 0..size {
            world.ask(rank, INIT);
        }
        world
    }

    /// What comes of one line of a rank.
    pub(crate) fn send_line(&mut self, rank: u32, line: &str) -> Vec<Effect> {
        self.send(rank, format!("{line}\n").as_bytes())
    }

    /// What comes of some bytes of a rank.
    pub(crate) fn send(&mut self, rank: u32, bytes: &[u8]) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.server.received(Rank(rank), bytes, &mut effects);
        // In a conversation the ranks that are asked for are started at once.
        while let Some(index) = effects.iter().position(|effect| matches!(effect, Effect::Spawn { .. })) {
            if !self.starts {
                break;
            }
            let Effect::Spawn { id, .. } = effects.remove(index) else { continue };
            self.server.spawned(id, &SpawnAnswer::Started(GroupId(1)), &mut effects);
        }
        while let Some(index) = effects.iter().position(|effect| matches!(effect, Effect::Ask { .. })) {
            let Effect::Ask { id, question } = effects.remove(index) else { continue };
            let mut replies = Vec::new();
            let asker = Asker { node: NodeId(0), group: GroupId(0), protocol: Protocol::Pmi1, id };
            self.names.ask(asker, question, &mut replies);
            replies.into_iter().for_each(|(_, reply)| self.server.answered(id, reply, &mut effects));
        }
        effects
    }

    /// The one reply to one line; nobody else gets any.
    pub(crate) fn ask(&mut self, rank: u32, line: &str) -> String {
        let effects = self.send_line(rank, line);
        match &replies(&effects)[..] {
            [(to, reply)] if *to == rank => reply.clone(),
            other => panic!("\"{line}\" of rank {rank} was answered by {other:?}"),
        }
    }

    /// The reason why a line ends the connection; nothing else comes of it.
    pub(crate) fn refusal(&mut self, rank: u32, line: &str) -> String {
        reason(&self.send_line(rank, line), rank)
    }
}

/// The replies among some effects, by rank and without their newlines.
pub(crate) fn replies(effects: &[Effect]) -> Vec<(u32, String)> {
    let reply = |effect: &Effect| match effect {
        Effect::Reply { rank, bytes } => {
            let text = std::str::from_utf8(bytes).expect("replies to text are text");
            let line = text.strip_suffix('\n').expect("a reply ends with a newline");
            assert!(!line.contains('\n'), "two lines in one reply: {text:?}");
            assert!(bytes.len() < MAX_REPLY, "a reply of {} bytes", bytes.len());
            Some((rank.number(), line.to_owned()))
        }
        _ => None,
    };
    effects.iter().filter_map(reply).collect()
}

/// The reason for which these effects close a rank's connection, and do nothing else.
pub(crate) fn reason(effects: &[Effect], rank: u32) -> String {
    match effects {
        [Effect::Malformed { rank: of, reason }] if of.number() == rank => reason.clone(),
        other => panic!("not only refused: {other:?}"),
    }
}
