//! Conversations of torch's own client with its own server, repeated with ours; and what holds for any bytes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{ConnId, Effect, MAGIC, MAX_KEY, MAX_KEYS, MAX_UNREAD, MAX_VALUE, Server, Violation};

const A: ConnId = ConnId(0);
const B: ConnId = ConnId(1);

/// A server, and what it has sent.
#[derive(Default)]
struct World {
    server: Server,
    sent: BTreeMap<ConnId, Vec<u8>>,
    closed: BTreeMap<ConnId, Violation>,
}

impl World {
    /// With clients that have sent the magic number.
    fn with(clients: &[ConnId]) -> World {
        let mut world = World::default();
        for conn in clients {
            world.server.opened(*conn);
            world.feed(*conn, &hello());
        }
        world
    }

    /// The driver writes all that it is given.
    fn feed(&mut self, conn: ConnId, bytes: &[u8]) {
        let mut effects = Vec::new();
        self.server.received(conn, bytes, 0, &mut effects);
        self.perform(effects);
        while self.server.is_behind(conn) {
            let mut effects = Vec::new();
            self.server.continue_with(conn, 0, &mut effects);
            self.perform(effects);
        }
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { conn, bytes } => {
                    assert!(!self.closed.contains_key(&conn), "a reply after the end");
                    self.sent.entry(conn).or_default().extend_from_slice(&bytes);
                }
                Effect::Close { conn, violation } => assert!(self.closed.insert(conn, violation).is_none()),
            }
        }
    }

    fn hang_up(&mut self, conn: ConnId) {
        let mut effects = Vec::new();
        self.server.closed(conn, &mut effects);
        self.perform(effects);
    }

    fn take(&mut self, conn: ConnId) -> Vec<u8> {
        self.sent.remove(&conn).unwrap_or_default()
    }

    fn ask(&mut self, conn: ConnId, request: &[u8]) -> Vec<u8> {
        self.feed(conn, request);
        self.take(conn)
    }
}

/// The bytes that are sent.
fn length(effect: &Effect) -> usize {
    match effect {
        Effect::Send { bytes, .. } => bytes.len(),
        Effect::Close { .. } => 0,
    }
}

fn hello() -> Vec<u8> {
    [&[0][..], &MAGIC.to_le_bytes()].concat()
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

/// A request with string fields.
fn with(operation: u8, fields: &[&[u8]]) -> Vec<u8> {
    [operation].into_iter().chain(fields.iter().flat_map(|field| string(field))).collect()
}

fn with_keys(operation: u8, keys: &[&[u8]]) -> Vec<u8> {
    [vec![operation], (keys.len() as u64).to_le_bytes().to_vec(), keys.iter().flat_map(|key| string(key)).collect()]
        .concat()
}

fn with_number(operation: u8, key: &[u8], number: i64) -> Vec<u8> {
    [with(operation, &[key]), number.to_le_bytes().to_vec()].concat()
}

fn number(number: i64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

const SET: u8 = 1;
const GET: u8 = 3;
const ADD: u8 = 4;
const CHECK: u8 = 5;
const WAIT: u8 = 6;
const DELETE: u8 = 8;
const APPEND: u8 = 9;
const MULTI_GET: u8 = 10;
const CANCEL_WAIT: [u8; 1] = [12];
const PUSH: u8 = 14;
const POP: u8 = 15;
const BARRIER: u8 = 18;

/// `0 > hex` is what the client on connection 0 sent, `0 < hex` what it got.
fn replay(golden: &str, pieces: usize) {
    let mut world = World::default();
    let mut expected: BTreeMap<ConnId, Vec<u8>> = BTreeMap::new();
    for line in golden.lines().filter(|line| !line.starts_with('#')) {
        let (conn, rest) = line.split_once(' ').expect("a connection");
        let conn = ConnId(conn.parse().expect("its number"));
        let (direction, hex) = rest.split_once(' ').expect("a direction");
        let bytes: Vec<u8> = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal"))
            .collect();
        if let std::collections::btree_map::Entry::Vacant(entry) = expected.entry(conn) {
            entry.insert(Vec::new());
            world.server.opened(conn);
        }
        match direction {
            ">" => bytes.chunks(pieces).for_each(|piece| world.feed(conn, piece)),
            _ => {
                let so_far = expected.entry(conn).or_default();
                so_far.extend_from_slice(&bytes);
                let sent = world.sent.get(&conn).map_or(&[][..], |sent| sent);
                assert_eq!(sent.get(..so_far.len()), Some(&so_far[..]), "at \"{line}\"");
            }
        }
    }
    assert!(world.closed.is_empty(), "{:?}", world.closed);
    assert_eq!(world.sent, expected.into_iter().filter(|(_, sent)| !sent.is_empty()).collect());
}

#[test]
fn torchs_client_gets_the_answers_of_torchs_server() {
    for golden in [include_str!("golden/libuv.txt"), include_str!("golden/legacy.txt")] {
        assert!(golden.lines().count() > 70);
        for pieces in [1, 2, 7, 1 << 16] {
            replay(golden, pieces);
        }
    }
}

#[test]
fn nothing_is_served_before_the_magic_number() {
    let wrong = [&[0][..], &[1, 2, 3, 4]].concat();
    for opening in [&with(SET, &[b"k", b"v"])[..], b"GET / HTTP/1.1\r\n\r\n", &wrong, &[13, 0, 0, 0, 0]] {
        let mut world = World::default();
        world.server.opened(A);
        world.feed(A, opening);
        assert_eq!(world.closed.get(&A), Some(&Violation::NoMagic), "{opening:?}");
        assert_eq!((world.sent.len(), world.server.stored()), (0, 0));
        assert!(!world.server.is_valid(A));
    }
}

#[test]
fn what_breaks_the_protocol_ends_its_own_connection_only() {
    let long = |operation: u8, length: u64| [vec![operation], length.to_le_bytes().to_vec()].concat();
    let value = |length: u64| [with(SET, &[b"k"]), length.to_le_bytes().to_vec()].concat();
    let set = with(SET, &[b"text", b"many"]);
    let cases = [
        (vec![19], Violation::UnknownOperation(19)),
        (hello(), Violation::UnknownOperation(0)),
        (long(GET, MAX_KEY as u64 + 1), Violation::KeyTooLong(MAX_KEY as u64 + 1)),
        (long(GET, u64::MAX), Violation::KeyTooLong(u64::MAX)),
        (value(MAX_VALUE as u64 + 1), Violation::ValueTooLong(MAX_VALUE as u64 + 1)),
        (long(WAIT, MAX_KEYS + 1), Violation::TooManyKeys(MAX_KEYS + 1)),
        (long(11, u64::MAX), Violation::TooManyKeys(u64::MAX)),
        ([set.clone(), with_number(ADD, b"text", 1)].concat(), Violation::NotANumber),
        ([set, with_number(BARRIER, b"text", 1)].concat(), Violation::NotANumber),
        ([with_number(ADD, b"n", i64::MAX), with_number(ADD, b"n", 1)].concat(), Violation::NotANumber),
    ];
    for (bytes, violation) in cases {
        let mut world = World::with(&[A, B]);
        world.feed(A, &bytes);
        assert_eq!(world.closed.get(&A), Some(&violation));
        assert_eq!(world.ask(B, &with_number(ADD, b"count", 2)), number(2), "{violation}");
        assert!(!world.closed.contains_key(&B));
    }
}

#[test]
fn a_wait_ends_when_the_last_of_its_keys_is_there() {
    let mut world = World::with(&[A, B]);
    world.feed(A, &with_keys(WAIT, &[b"x", b"y", b"x"]));
    world.feed(B, &with(SET, &[b"x", b"1"]));
    assert!(world.take(A).is_empty());
    world.feed(B, &with(APPEND, &[b"y", b"1"]));
    assert_eq!(world.take(A), [0]);
    world.feed(B, &with(SET, &[b"y", b"2"]));
    assert!(world.take(A).is_empty(), "it is told once");
    assert_eq!(world.server.awaited(), 0);
}

#[test]
fn a_wait_that_is_cancelled_leaves_nothing_behind() {
    let mut world = World::with(&[A, B]);
    for _ in 0..1000 {
        world.feed(A, &with_keys(WAIT, &[b"never", b"nor this"]));
        assert_eq!(world.ask(A, &CANCEL_WAIT), [1]);
    }
    // A second wait takes the place of the first.
    world.feed(A, &with_keys(WAIT, &[b"first"]));
    world.feed(A, &with_keys(WAIT, &[b"second"]));
    world.feed(B, &with(SET, &[b"first", b""]));
    assert!(world.take(A).is_empty());
    assert_eq!((world.server.waiting(), world.server.awaited()), (1, 1));
    world.hang_up(A);
    world.feed(B, &with_number(BARRIER, b"b", 2));
    world.hang_up(B);
    assert_eq!((world.server.waiting(), world.server.awaited()), (0, 0));
}

#[test]
fn an_element_of_a_queue_wakes_one_client_that_takes_it() {
    let clients: Vec<ConnId> = (0..4).map(ConnId).collect();
    let mut world = World::with(&clients);
    for conn in &clients[..3] {
        world.feed(*conn, &with_keys(WAIT, &[b"q"]));
    }
    world.feed(clients[3], &with(PUSH, &[b"q", b"one"]));
    assert_eq!((world.take(clients[0]), world.take(clients[1])), (vec![0], vec![]));
    // The first one is gone before it has taken it, the second has timed out: the third one takes it.
    world.hang_up(clients[0]);
    assert_eq!(world.take(clients[1]), [0]);
    assert_eq!(world.ask(clients[1], &CANCEL_WAIT), [1]);
    assert_eq!(world.take(clients[2]), [0]);
    let item = [number(1), string(b"one")].concat();
    assert_eq!(world.ask(clients[2], &with(POP, &[b"q"])), item);
    assert_eq!(world.ask(clients[3], &with_keys(CHECK, &[b"q"])), [1], "an empty queue is none");
    assert_eq!(world.server.stored(), 0);
}

#[test]
fn a_barrier_lets_all_through_when_the_last_has_come() {
    let mut world = World::with(&[A, B]);
    world.feed(A, &with_number(BARRIER, b"b", 2));
    assert!(world.take(A).is_empty());
    world.feed(B, &with_number(BARRIER, b"b", 2));
    assert_eq!((world.take(A), world.take(B)), (vec![0], vec![0]));
    assert_eq!(world.ask(A, &with(GET, &[b"b"])), string(b"2"));
}

#[test]
fn a_new_store_is_empty_and_knows_nobody_of_the_one_before() {
    let mut world = World::with(&[A, B]);
    world.feed(A, &with(SET, &[b"k", b"v"]));
    world.feed(A, &with(PUSH, &[b"q", b"v"]));
    world.feed(B, &with_keys(WAIT, &[b"x"]));
    world.server = Server::new();
    world.feed(A, &with(SET, &[b"x", b"v"]));
    assert_eq!((world.server.stored(), world.server.waiting(), world.take(B)), (0, 0, vec![]));
    let new = ConnId(2);
    world.server.opened(new);
    assert_eq!(world.ask(new, &[hello(), vec![7]].concat()), number(0));
}

#[test]
fn a_client_that_does_not_read_is_not_served_further() {
    let mut world = World::with(&[A, B]);
    world.feed(B, &with(SET, &[b"big", &vec![7; MAX_VALUE]]));
    let mut effects = Vec::new();
    world.server.received(A, &with(GET, &[b"big"]).repeat(1000), 0, &mut effects);
    let unread = |effects: &[Effect]| effects.iter().map(length).sum::<usize>();
    assert!(unread(&effects) <= MAX_UNREAD + MAX_VALUE + 8, "one reply at a time");
    for served in 1..1000 {
        assert!(world.server.is_behind(A), "after {served}");
        effects.clear();
        world.server.continue_with(A, 0, &mut effects);
        assert_eq!(unread(&effects), MAX_VALUE + 8);
    }
    assert!(!world.server.is_behind(A));
    assert_eq!(world.server.held(A), 0);
}

#[test]
fn a_request_of_many_keys_is_served_in_parts_and_others_have_their_turn() {
    let mut world = World::with(&[A, B]);
    world.feed(A, &with(1, &[b"k", &[7; 4096]]));
    let names = vec![&b"k"[..]; MAX_KEYS as usize];
    let mut effects = Vec::new();
    world.server.received(A, &with_keys(10, &names), 0, &mut effects);
    let (mut parts, mut total) = (0, 0);
    loop {
        let sent: usize = effects.drain(..).map(|effect| length(&effect)).sum();
        assert!(sent <= MAX_UNREAD + 8 + 4096, "{sent} bytes at a time");
        (parts, total) = (parts + 1, total + sent);
        assert_eq!(world.ask(B, &[13, 1, 2, 3, 4]), [1, 2, 3, 4]);
        if !world.server.is_behind(A) {
            break;
        }
        world.server.continue_with(A, 0, &mut effects);
    }
    assert_eq!(total, MAX_KEYS as usize * (8 + 4096));
    assert!(parts > 100, "{parts}");
    assert_eq!(world.ask(A, &[13, 4, 3, 2, 1]), [4, 3, 2, 1], "and goes on");
}

#[test]
fn keys_that_come_while_they_are_being_named_count() {
    let keys: Vec<Vec<u8>> = (0..10_000u32).map(|key| key.to_le_bytes().to_vec()).collect();
    let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    for is_deleted in [false, true] {
        let mut world = World::with(&[A, B]);
        let mut effects = Vec::new();
        world.server.received(A, &with_keys(6, &names), 0, &mut effects);
        assert!(world.server.is_behind(A) && effects.is_empty());
        // One that is awaited already, and one that is not yet.
        for key in [names[0], names[9_999]] {
            world.feed(B, &with(1, &[key, b"v"]));
        }
        if is_deleted {
            world.feed(B, &with(8, &[names[0]]));
        }
        world.feed(A, &[]);
        while world.server.is_behind(A) {
            world.server.continue_with(A, 0, &mut effects);
        }
        assert!(effects.is_empty() && world.server.waiting() == 1);
        for key in &names[1..9_999] {
            assert!(world.take(A).is_empty());
            world.feed(B, &with(1, &[key, b"v"]));
        }
        assert_eq!((world.take(A), world.server.waiting(), world.server.awaited()), (vec![0], 0, 0));
    }
}

#[test]
fn keys_are_listed_in_parts_as_they_were_when_they_were_asked_for() {
    let mut world = World::with(&[A, B]);
    let keys: Vec<Vec<u8>> = (0..20_000u32).map(|key| key.to_le_bytes().to_vec()).collect();
    keys.iter().for_each(|key| world.feed(A, &with(SET, &[key, b"v"])));
    let mut effects = Vec::new();
    world.server.received(A, &[17], 0, &mut effects);
    let (mut parts, mut others) = (0, keys.iter());
    while world.server.is_behind(A) {
        assert!(effects.iter().map(length).sum::<usize>() <= MAX_UNREAD + 8 + 4);
        world.perform(std::mem::take(&mut effects));
        // Meanwhile half of them are deleted, and as many others set.
        for key in others.by_ref().take(500) {
            world.feed(B, &with(8, &[key]));
            world.feed(B, &with(SET, &[&[&key[..], b"more"].concat(), b"v"]));
        }
        world.server.continue_with(A, 0, &mut effects);
        parts += 1;
    }
    world.perform(effects);
    assert!(parts > 10 && others.len() < 15_000, "{parts}");
    let reply = world.take(A);
    assert_eq!(reply[..8], number(20_000));
    let mut listed: Vec<&[u8]> = reply[8..].chunks(12).map(|key| &key[8..]).collect();
    listed.sort_unstable();
    let mut expected: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    expected.sort_unstable();
    assert!(listed == expected);
    assert_eq!(world.ask(B, &[7]).last_chunk(), number(20_000).last_chunk::<8>());
    assert_eq!(world.ask(A, &[17]).len(), 8 + others.len() * 12 + (20_000 - others.len()) * 16);
}

#[test]
fn many_small_requests_are_served_in_turns() {
    let mut world = World::with(&[A, B]);
    let mut effects = Vec::new();
    world.server.received(A, &[7; 64 << 10], 0, &mut effects);
    let (mut turns, mut count) = (0, 0);
    loop {
        assert!(effects.len() <= 2048, "{} replies in a turn", effects.len());
        (turns, count) = (turns + 1, count + effects.drain(..).map(|effect| length(&effect)).sum::<usize>());
        assert_eq!(world.ask(B, &[13, 1, 2, 3, 4]), [1, 2, 3, 4]);
        if !world.server.is_behind(A) {
            break;
        }
        world.server.continue_with(A, 0, &mut effects);
    }
    assert_eq!(count, 8 * (64 << 10));
    assert!(turns > 30, "{turns}");
}

#[test]
fn a_client_is_not_woken_within_another_answer() {
    let mut world = World::with(&[A, B]);
    world.feed(A, &with_keys(WAIT, &[b"awaited"]));
    let names = vec![&b"none"[..]; 5000];
    let mut effects = Vec::new();
    world.server.received(A, &with_keys(MULTI_GET, &names), 0, &mut effects);
    assert!(world.server.is_behind(A));
    world.perform(effects);
    world.feed(B, &with(SET, &[b"awaited", b""]));
    world.feed(A, &[13, 1, 2, 3, 4]);
    let reply = world.take(A);
    assert_eq!((&reply[..8 * 5000], &reply[8 * 5000..]), (&vec![0; 8 * 5000][..], &[0, 1, 2, 3, 4][..]));
}

#[test]
fn a_long_wait_that_is_over_is_taken_back_in_parts() {
    let keys: Vec<Vec<u8>> = (0..10_000u32).map(|key| key.to_le_bytes().to_vec()).collect();
    let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let wait = with_keys(WAIT, &names);
    for hangs_up in [false, true] {
        let mut world = World::with(&[A, B]);
        world.feed(A, &wait);
        assert_eq!(world.server.awaited(), 10_000);
        if hangs_up {
            world.hang_up(A);
        } else {
            assert_eq!(world.ask(A, &CANCEL_WAIT), [1]);
        }
        assert!(world.server.awaited() > 5_000 && !world.server.is_tidy());
        // The same keys are awaited by another one, and come while the first wait is taken back.
        world.feed(B, &with_keys(WAIT, &names[..9_000]));
        let setter = ConnId(2);
        world.server.opened(setter);
        world.feed(setter, &hello());
        for name in &names[..9_000] {
            assert!(world.take(B).is_empty());
            world.feed(setter, &with(SET, &[name, b""]));
        }
        assert_eq!((world.take(B), world.take(A)), (vec![0], vec![]));
        while !world.server.is_tidy() {
            world.server.tidy();
        }
        assert_eq!((world.server.awaited(), world.server.waiting()), (0, 0));
    }
}

#[test]
fn waits_that_are_given_up_again_and_again_take_no_more_memory_than_a_few() {
    let mut world = World::with(&[A]);
    for turn in 0..20u32 {
        let keys: Vec<Vec<u8>> = (0..10_000u32).map(|key| (turn * 10_000 + key).to_le_bytes().to_vec()).collect();
        world.feed(A, &with_keys(WAIT, &keys.iter().map(Vec::as_slice).collect::<Vec<_>>()));
        world.feed(A, &CANCEL_WAIT);
        assert!(world.server.awaited() <= 20_000, "{}", world.server.awaited());
    }
}

#[test]
fn half_messages_take_no_more_memory_than_they_have_brought() {
    let mut world = World::with(&[A]);
    let announced = [with(SET, &[b"k"]), (MAX_VALUE as u64).to_le_bytes().to_vec()].concat();
    world.feed(A, &announced);
    assert!(world.server.held(A) <= 8 << 10);
    let mut brought = announced.len();
    for _ in 0..20 {
        world.feed(A, &[0; 60_000]);
        brought += 60_000;
        assert!(world.server.held(A) <= 2 * brought + (8 << 10));
    }
}

#[path = "memory_tests.rs"]
mod memory;

/// A request, from few keys, so that they meet.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let key = || prop::sample::select(vec![&b"/a"[..], b"/b", b"/longer/key"]);
    let value = || prop_oneof![Just(Vec::new()), prop::collection::vec(any::<u8>(), 0..40), Just(vec![5; 9000])];
    let keys = || prop::collection::vec(key(), 0..4);
    prop_oneof![
        (key(), value()).prop_map(|(key, value)| with(SET, &[key, &value])),
        (key(), value(), value()).prop_map(|(key, first, second)| with(2, &[key, &first, &second])),
        key().prop_map(|key| with(GET, &[key])),
        (key(), -3i64..9).prop_map(|(key, delta)| with_number(ADD, key, delta)),
        (prop::sample::select(vec![CHECK, WAIT, MULTI_GET]), keys())
            .prop_map(|(operation, keys)| with_keys(operation, &keys)),
        prop::sample::select(vec![7u8, 12, 17]).prop_map(|operation| vec![operation]),
        (prop::sample::select(vec![8, POP, 16]), key()).prop_map(|(operation, key)| with(operation, &[key])),
        (prop::sample::select(vec![APPEND, PUSH]), key(), value())
            .prop_map(|(operation, key, value)| with(operation, &[key, &value])),
        prop::collection::vec((key(), value()), 0..4).prop_map(|pairs| {
            let pairs: Vec<u8> = pairs.iter().flat_map(|(key, value)| [string(key), string(value)].concat()).collect();
            [vec![11], (pairs.len() as u64).to_le_bytes().to_vec(), pairs].concat()
        }),
        any::<u32>().prop_map(|nonce| [vec![13], nonce.to_le_bytes().to_vec()].concat()),
        (key(), 1i64..3).prop_map(|(key, size)| with_number(BARRIER, key, size)),
    ]
}

/// All clients' bytes up to now, and what they got.
fn outcome(world: &World) -> (BTreeMap<ConnId, usize>, Vec<ConnId>, usize, usize) {
    let lengths = world.sent.iter().map(|(conn, sent)| (*conn, sent.len())).collect();
    (lengths, world.closed.keys().copied().collect(), world.server.stored(), world.server.waiting())
}

proptest! {
    #[test]
    fn segmentation_never_changes_an_answer(
        requests in prop::collection::vec((0..3u32, request()), 0..40),
        cuts in prop::collection::vec(1..50usize, 1..60),
        turn in 1..5usize,
    ) {
        let clients: Vec<ConnId> = (0..3).map(ConnId).collect();
        let (mut whole, mut cut) = (World::with(&clients), World::with(&clients));
        // The answers come in small parts, too.
        cut.server.turn = turn;
        let mut cuts = cuts.iter().cycle();
        for (conn, request) in &requests {
            whole.feed(ConnId(*conn), request);
            let mut rest = &request[..];
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rest.len().min(*cuts.next().expect("a cycle")));
                cut.feed(ConnId(*conn), piece);
                rest = after;
            }
        }
        prop_assert_eq!(&whole.sent, &cut.sent);
        prop_assert_eq!(outcome(&whole), outcome(&cut));
        for conn in clients {
            cut.hang_up(conn);
        }
        while !cut.server.is_tidy() {
            cut.server.tidy();
        }
        prop_assert_eq!((cut.server.awaited(), cut.server.waiting()), (0, 0));
    }

    #[test]
    fn any_bytes_end_their_own_connection_at_most(
        pieces in prop::collection::vec((0..2u32, prop::collection::vec(any::<u8>(), 0..200)), 0..20),
    ) {
        let mut world = World::with(&[A, B, ConnId(2)]);
        for (conn, piece) in &pieces {
            world.feed(ConnId(*conn), piece);
        }
        prop_assert_eq!(world.ask(ConnId(2), &[13, 1, 2, 3, 4]), vec![1, 2, 3, 4]);
    }
}
