//! Hostile clients of torch's store: `cargo +nightly fuzz run tcpstore`.
//!
//! Each step is a byte that picks a client and what happens to it, and for raw bytes a length and the bytes. Beside the
//! absence of panics it is asserted that nobody is spoken to after the end of its conversation, that what is held of a
//! client is bounded, and that a client that behaves is answered at the end.

#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use rankrun_wireup::tcpstore::{ConnId, Effect, MAGIC, MAX_VALUE, Server};

const CLIENTS: u32 = 4;

struct World {
    server: Server,
    open: BTreeSet<ConnId>,
    next: u32,
    /// By client: its present connection.
    conns: [ConnId; CLIENTS as usize],
    answered: Vec<u8>,
}

impl World {
    fn connect(&mut self, client: usize) {
        let conn = ConnId(self.next);
        self.next += 1;
        self.server.opened(conn);
        self.open.insert(conn);
        self.conns[client] = conn;
        let hello = [&[0][..], &MAGIC.to_le_bytes()].concat();
        self.feed(conn, &hello);
    }

    fn feed(&mut self, conn: ConnId, bytes: &[u8]) {
        let mut effects = Vec::new();
        self.server.received(conn, bytes, 0, &mut effects);
        self.perform(conn, effects);
        while self.server.is_behind(conn) {
            let mut effects = Vec::new();
            self.server.continue_with(conn, 0, &mut effects);
            self.perform(conn, effects);
        }
        assert!(self.server.held(conn) <= 2 * MAX_VALUE);
    }

    fn perform(&mut self, from: ConnId, effects: Vec<Effect>) {
        self.answered.clear();
        for effect in effects {
            match effect {
                Effect::Send { conn, bytes } => {
                    assert!(self.open.contains(&conn), "a reply after the end");
                    if conn == from {
                        self.answered.extend_from_slice(&bytes);
                    }
                }
                Effect::Close { conn, .. } => {
                    assert_eq!(conn, from, "another connection was ended");
                    assert!(self.open.remove(&conn), "a conversation ended twice");
                }
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut world = World {
        server: Server::new(),
        open: BTreeSet::new(),
        next: 0,
        conns: [ConnId(u32::MAX); CLIENTS as usize],
        answered: Vec::new(),
    };
    (0..CLIENTS as usize).for_each(|client| world.connect(client));
    let mut steps = data;
    while let Some((&step, rest)) = steps.split_first() {
        steps = rest;
        let client = usize::from(step) % CLIENTS as usize;
        match step >> 2 {
            0 => {
                let conn = world.conns[client];
                if world.open.remove(&conn) {
                    let mut effects = Vec::new();
                    world.server.closed(conn, &mut effects);
                    world.perform(conn, effects);
                }
                world.connect(client);
            }
            1 => {
                world.server = Server::new();
                world.open.clear();
                assert_eq!((world.server.stored(), world.server.waiting()), (0, 0));
                (0..CLIENTS as usize).for_each(|client| world.connect(client));
            }
            _ => {
                let (length, rest) =
                    steps.split_first().map_or((0, steps), |(length, rest)| (usize::from(*length), rest));
                let (bytes, rest) = rest.split_at(length.min(rest.len()));
                steps = rest;
                let conn = world.conns[client];
                if world.open.contains(&conn) {
                    world.feed(conn, bytes);
                }
            }
        }
    }
    world.connect(0);
    let conn = world.conns[0];
    world.feed(conn, &[13, 1, 2, 3, 4]);
    assert_eq!(world.answered, [1, 2, 3, 4]);
    for conn in std::mem::take(&mut world.open) {
        world.server.closed(conn, &mut Vec::new());
    }
    while !world.server.is_tidy() {
        world.server.tidy();
    }
    assert_eq!(world.server.waiting(), 0);
});
