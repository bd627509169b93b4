//! Nodes, and peers that mean harm, over real sockets. The invariants are those of the module above.

mod hostile;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rankrun_core::{Attempt, GroupId, JobId, NodeId, NodeRank, Rank, Stream, WorkerId};
use rankrun_sys::poll::{Poller, Ready, Waker};
use rankrun_sys::reactor::Conn;
use rankrun_sys::socket;

use super::claim::{Ask, Claim, OneMessage, encode};
use super::connector::Connector;
use super::knock::{ANSWER_LENGTH, KnockKeys, Peer};
use super::tls::{Tls, front_config, node_config};
use super::*;
use crate::frame::OutputHead;
use crate::{Carrier, Frame, Link, Retain, Session, ToAgent, ToFront};

const BOUND: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_millis(400);
const NODE_TIMEOUT: Duration = Duration::from_secs(7);
const LISTENER: u64 = 0;
const WAKER: u64 = 1;
const PEERS: u64 = 1 << 62;

/// A front in a thread: it admits every node that knows the secret, greets it, and counts its output.
struct Front {
    address: SocketAddr,
    key: PublicKey,
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Default, Debug)]
struct Seen {
    /// (node, whether it came back)
    admitted: Vec<(NodeId, bool)>,
    turned_away: Vec<String>,
    output: usize,
    most_half_open: usize,
    half_open: usize,
}

impl Front {
    fn start(secret: &Secret) -> Front {
        Front::with(secret, Limits { patience: PATIENCE, ..Limits::default() })
    }

    fn with(secret: &Secret, limits: Limits) -> Front {
        Front::of(secret, new_keys(), limits)
    }

    fn of(secret: &Secret, keys: KeyPair, limits: Limits) -> Front {
        let door = Door::new(secret, JobId("0badcafe".to_owned()), keys, NODE_TIMEOUT, None).expect("a door");
        let key = door.key();
        let socket = socket::listen_at(Some([127, 0, 0, 1].into()), 0..=0, 4096).expect("a port");
        let address = socket.1;
        let (seen, stop) = (Arc::new(Mutex::new(Seen::default())), Arc::new(AtomicBool::new(false)));
        let waker = Waker::new().expect("a waker");
        let handle = waker.clone();
        let thread = std::thread::spawn({
            let (seen, stop) = (seen.clone(), stop.clone());
            move || serve(socket, door, limits, &handle, &seen, &stop)
        });
        Front { address, key, seen, stop, waker, thread: Some(thread) }
    }

    fn seen(&self) -> Seen {
        self.seen.lock().expect("not poisoned").clone()
    }

    fn wait_for(&self, what: impl Fn(&Seen) -> bool) -> Seen {
        wait_for(|| Some(self.seen()).filter(&what)).unwrap_or_else(|| panic!("it did not come: {:?}", self.seen()))
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the front listens");
        stream.set_read_timeout(Some(BOUND)).expect("a socket");
        stream
    }

    /// Nobody was admitted, and a node that knows the secret still is.
    fn is_unharmed(&self, secret: &Secret, admitted: usize) {
        assert_eq!(self.seen().admitted.len(), admitted, "{:?}", self.seen());
        let mut node = Node::new(secret, Some(NodeRank(7)), "good".to_owned()).expect("a node");
        enrol(&mut node, self.connect()).expect("it knows the secret");
        self.wait_for(|seen| seen.admitted.len() == admitted + 1);
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) && !std::thread::panicking() {
            panic!("the front has panicked");
        }
    }
}

/// Waits until `what` is there.
fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + BOUND;
    loop {
        match what() {
            None if Instant::now() < until => std::thread::yield_now(),
            found => return found,
        }
    }
}

fn serve(
    socket: (std::os::fd::OwnedFd, SocketAddr),
    door: Door,
    limits: Limits,
    waker: &Waker,
    seen: &Mutex<Seen>,
    stop: &AtomicBool,
) {
    let started = Instant::now();
    let mut poller = Poller::new().expect("a poller");
    poller.add(waker, WAKER, rankrun_sys::poll::Interest::Read).expect("it can be added");
    let tokens = Tokens { listener: LISTENER, peer: |peer| PEERS | peer.0 };
    let mut listener = Listener::new(socket, poller.registry(), tokens, limits, door).expect("a listener");
    let mut links: Vec<Option<Link>> = Vec::new();
    let mut ready: Vec<Ready> = Vec::new();
    while !stop.load(Ordering::Acquire) {
        let timeout = listener.deadline().map(|due| due.saturating_sub(started.elapsed()));
        poller.wait(timeout, &mut ready).expect("an epoll set can be waited for");
        for event in std::mem::take(&mut ready) {
            if !poller.is_current(event) {
                continue;
            }
            match event.token {
                LISTENER => listener.accept(started.elapsed()),
                WAKER => {}
                peer if peer & PEERS != 0 => match listener.ready(PeerId(peer & !PEERS), event) {
                    Some(ListenerEvent::Arrived(Arrival { id, claimed, .. })) => {
                        if let Purpose::Ended { code, .. } = claimed.purpose {
                            let waiting = listener.hold(id).expect("it has just arrived");
                            waiting.dismiss(listener.door(), code + 40, "rank 1 failed");
                            continue;
                        }
                        if claimed.purpose == Purpose::Alive {
                            listener.confirm(id);
                            continue;
                        }
                        let node = claimed.was.or(claimed.node.map(|node| NodeId(node.0))).unwrap_or(NodeId(1));
                        if node == NodeId(99) {
                            listener.refuse(id, "there is no such node");
                            continue;
                        }
                        let session = random_session().expect("random numbers");
                        let carrier =
                            listener.admit(id, node, session, 2 + links.len() as u64).expect("it has just arrived");
                        let mut link = Link::new(carrier, Session::new(session, Retain::No), 100_000);
                        link.send(&ToAgent::Stdin { group: GroupId(0), bytes: Some(b"welcome".to_vec()) })
                            .expect("the node is there");
                        links.push(Some(link));
                        seen.lock().expect("not poisoned").admitted.push((node, claimed.was.is_some()));
                    }
                    Some(ListenerEvent::TurnedAway { error, .. }) => {
                        seen.lock().expect("not poisoned").turned_away.push(format!("{error} {error:?}"));
                    }
                    None => {}
                },
                link => read_link(&mut links[link as usize - 2], event, seen),
            }
        }
        listener.tick(started.elapsed());
        let mut seen = seen.lock().expect("not poisoned");
        seen.half_open = listener.half_open();
        seen.most_half_open = seen.most_half_open.max(listener.half_open());
    }
}

fn read_link(slot: &mut Option<Link>, event: Ready, seen: &Mutex<Seen>) {
    let Some(link) = slot else { return };
    if event.writable {
        link.flush().expect("the node is there");
    }
    let filled = link.fill();
    while let Some(frame) = link.next_frame::<ToFront>().expect("our own frames") {
        match frame {
            Frame::Output(_, bytes) => seen.lock().expect("not poisoned").output += bytes.len(),
            Frame::Message(ToFront::Note(text)) => {
                link.send(&ToAgent::Stdin { group: GroupId(0), bytes: Some(text.into_bytes()) })
                    .expect("the node is there");
            }
            Frame::Message(other) => panic!("{other:?}"),
        }
    }
    if filled.is_err() {
        *slot = None;
    }
}

fn send(stream: &mut TcpStream, connector: &mut Connector) {
    // The front may have closed it: what it has sent is read next.
    let _ = stream.write_all(&connector.take_output());
}

/// Enrols a node over this connection.
fn enrol(node: &mut Node, stream: TcpStream) -> Result<(Admission, TcpStream, Tls), String> {
    connect(node, stream, Purpose::Join)
}

fn connect(node: &mut Node, mut stream: TcpStream, purpose: Purpose) -> Result<(Admission, TcpStream, Tls), String> {
    let mut connector = Connector::new(node, purpose).expect("random numbers");
    send(&mut stream, &mut connector);
    let mut room = [0; 2000];
    loop {
        let count = match stream.read(&mut room) {
            Ok(0) | Err(_) if connector.was_answered() => return Err("closed".to_owned()),
            Ok(0) | Err(_) => return Err("closed without an answer".to_owned()),
            Ok(count) => count,
        };
        let step = connector.receive(&room[..count]);
        send(&mut stream, &mut connector);
        match step {
            Ok(None) => {}
            Ok(Some(Accepted::Over { code, .. })) => return Err(format!("over with {code}")),
            Ok(Some(Accepted::Alive)) => return Err("the front lives".to_owned()),
            Ok(Some(Accepted::Admitted(admission))) => {
                node.admitted(&connector, &admission);
                return Ok((admission, stream, connector.into_tls().expect("it was admitted")));
            }
            Err(error) => return Err(format!("{error} {error:?}")),
        }
    }
}

/// What the front sends until it closes the connection.
fn answer_to(front: &Front, bytes: &[u8]) -> Vec<u8> {
    let mut stream = front.connect();
    // The front may close it before all is written.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    // A reset is an end as well.
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn new_secret() -> Secret {
    Secret::generate().expect("random numbers")
}

fn new_keys() -> KeyPair {
    KeyPair::generate().expect("random numbers")
}

fn new_node(secret: &Secret, rank: u32) -> Node {
    Node::new(secret, Some(NodeRank(rank)), "node".to_owned()).expect("a node")
}

const HEAD: OutputHead = OutputHead {
    worker: WorkerId { rank: Rank(0), attempt: Attempt(0) },
    stream: Stream::Stdout,
    at: Duration::ZERO,
    more: false,
};

#[test]
fn an_admitted_node_and_the_front_speak_both_ways_over_tls() {
    let secret = new_secret();
    let front = Front::start(&secret);
    let (admission, stream, tls) = enrol(&mut new_node(&secret, 3), front.connect()).expect("it knows the secret");
    assert_eq!((admission.node, &*admission.job.0), (NodeId(3), "0badcafe"));
    let mut poller = Poller::new().expect("a poller");
    let conn = Conn::of_socket(&poller.registry(), 5, stream.into()).expect("a connection");
    let mut link =
        Link::new(Carrier::secured(conn, tls, Bytes::new()), Session::new(admission.session, Retain::No), 30_000);
    let mut received = Vec::new();
    let mut sent = 0;
    let echo = "x".repeat(300_000);
    link.message(&ToFront::Note(echo.clone())).expect("a small message");
    let until = Instant::now() + BOUND;
    loop {
        while sent < 200 && link.unsent() == 0 {
            link.output(HEAD, Bytes::from(vec![sent as u8; 60_000])).expect("within limits");
            link.flush().expect("the front is there");
            sent += 1;
        }
        // The first bytes may have come with the verdict: read before waiting.
        link.fill().expect("the front is there");
        while let Some(frame) = link.next_frame::<ToAgent>().expect("the front's frames") {
            let Frame::Message(ToAgent::Stdin { bytes: Some(bytes), .. }) = frame else { panic!("{frame:?}") };
            received.push(bytes);
        }
        if received.len() == 2 && sent == 200 && link.unsent() == 0 {
            break;
        }
        assert!(Instant::now() < until, "{sent} sent, {} received", received.len());
        let mut ready = Vec::new();
        poller.wait(Some(Duration::from_millis(50)), &mut ready).expect("an epoll set can be waited for");
        if ready.iter().any(|ready| ready.writable) {
            link.flush().expect("the front is there");
        }
    }
    assert!(received[0] == b"welcome" && received[1] == echo.as_bytes());
    front.wait_for(|seen| seen.output == 200 * 60_000);
}

#[test]
fn a_peer_without_the_key_gets_no_byte() {
    let secret = new_secret();
    let front = Front::start(&secret);
    let other = KnockKeys::new(&new_secret());
    let hello = {
        let config = node_config(&KeyPair::generate().expect("random numbers"), None).expect("a configuration");
        let mut tls = Tls::of_node(config).expect("a connection");
        tls.take_output()
    };
    let garbage: Vec<u8> = (0..100_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let attacks: [&[u8]; 7] = [
        b"",
        b"GET / HTTP/1.1\r\nHost: front\r\n\r\n",
        &hello,
        &garbage,
        &garbage[..KNOCK_LENGTH],
        &other.knock(&Peer::ours(), [1; 32]),
        &[KnockKeys::new(&secret).knock(&Peer::ours(), [2; 32]), vec![0]].concat(),
    ];
    for attack in attacks {
        assert_eq!(answer_to(&front, attack), b"", "{}", attack[..attack.len().min(20)].escape_ascii());
    }
    front.is_unharmed(&secret, 0);
    assert!(front.seen().turned_away.iter().all(|error| error.contains("Stranger")), "{:?}", front.seen());
}

#[test]
fn a_node_with_the_key_of_another_job_is_told_nothing() {
    let secret = new_secret();
    let front = Front::start(&secret);
    let error = enrol(&mut new_node(&new_secret(), 1), front.connect()).err();
    assert_eq!(error.as_deref(), Some("closed without an answer"));
    front.is_unharmed(&secret, 0);
}

#[test]
fn another_version_is_refused_with_both_versions_named() {
    let secret = new_secret();
    let front = Front::start(&secret);
    let keys = KnockKeys::new(&secret);
    let newer = Peer { version: crate::VERSION + 1, release: "9.9.9".to_owned() };
    let knock = keys.knock(&newer, [1; 32]);
    let answer = answer_to(&front, &knock);
    assert_eq!(answer.len(), ANSWER_LENGTH, "the answer, and no TLS");
    assert_eq!(keys.open_answer(&answer, &knock), Some(Peer::ours()));
    let seen = front.wait_for(|seen| !seen.turned_away.is_empty());
    assert!(seen.turned_away[0].contains("it runs rankrun 9.9.9 (protocol"), "{seen:?}");
    front.is_unharmed(&secret, 0);

    // The other way round: a front that is newer.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let fake = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the node");
        let mut knock = [0; KNOCK_LENGTH];
        stream.read_exact(&mut knock).expect("a knock");
        stream.write_all(&keys.answer(&newer, &knock)).expect("the node reads");
    });
    let error = enrol(&mut new_node(&secret, 1), TcpStream::connect(address).expect("it listens")).err();
    assert!(error.as_deref().is_some_and(|error| error.contains("it runs rankrun 9.9.9 (protocol")), "{error:?}");
    fake.join().expect("it has answered");
}

/// A node that speaks the protocol by hand, up to its claim. Returns what the front sends after it.
fn claim_by_hand(front: &Front, secret: &Secret, make: impl FnOnce(&[u8; 32], &KeyPair) -> Vec<u8>) -> Vec<u8> {
    let (mut stream, keys) = (front.connect(), KeyPair::generate().expect("random numbers"));
    let knock =
        KnockKeys::new(secret).knock(&Peer::ours(), super::acceptor::random_session().map(nonce).expect("random"));
    stream.write_all(&knock).expect("the front reads");
    let mut answer = [0; ANSWER_LENGTH];
    stream.read_exact(&mut answer).expect("the front answers");
    let mut tls = Tls::of_node(node_config(&keys, None).expect("a configuration")).expect("a connection");
    let mut room = [0; 4096];
    loop {
        stream.write_all(&tls.take_output()).expect("the front reads");
        if tls.shake().expect("a handshake") {
            break;
        }
        let count = stream.read(&mut room).expect("the front answers");
        tls.received(&room[..count]);
    }
    stream.write_all(&tls.take_output()).expect("the front reads");
    let binding = tls.binding(&[&knock[..], &answer].concat()).expect("the handshake is complete");
    tls.write(&make(&binding, &keys)).expect("memory");
    // The front may close it meanwhile.
    let _ = stream.write_all(&tls.take_output());
    let mut plain = Vec::new();
    loop {
        let count = stream.read(&mut room).unwrap_or(0);
        if count == 0 {
            return plain;
        }
        tls.received(&room[..count]);
        let mut decrypted = [0; 4096];
        let count = tls.read(&mut decrypted).expect("the front's records");
        plain.extend_from_slice(&decrypted[..count]);
    }
}

fn nonce(number: std::num::NonZeroU64) -> [u8; 32] {
    let mut nonce = [0; 32];
    nonce[..8].copy_from_slice(&number.get().to_ne_bytes());
    nonce
}

fn ask(role: Role, certificate: Option<Certificate>) -> Ask {
    Ask { role, purpose: Purpose::Join, node: Some(NodeRank(2)), nodes: None, host: "hand".to_owned(), certificate }
}

fn refusal(bytes: &[u8]) -> Option<String> {
    let mut message = OneMessage::default();
    message.add(bytes);
    match message.decode::<Verdict>().ok()?.decision {
        Decision::Refused(reason) => Some(reason),
        Decision::Admitted(_) | Decision::Later(_) | Decision::Alive | Decision::Over { .. } => None,
    }
}

#[test]
fn the_right_key_in_the_wrong_role_is_refused() {
    let secret = new_secret();
    let front = Front::start(&secret);
    let proofs = super::claim::ProofKeys::new(&secret);
    // It says that it is a front.
    let told = claim_by_hand(&front, &secret, |binding, keys| {
        let proof = proofs.prove(Role::Node, binding, keys.public());
        encode(&Claim { proof, ask: ask(Role::Front, None) }).expect("a small message")
    });
    assert_eq!(refusal(&told).as_deref(), Some("it claims to be a front"));
    // It proves that it is a front, of another connection, or with the key of somebody else: nothing is told.
    let other = KeyPair::generate().expect("random numbers").public();
    for wrong in 0..3 {
        let told = claim_by_hand(&front, &secret, |binding, keys| {
            let proof = match wrong {
                0 => proofs.prove(Role::Front, binding, keys.public()),
                1 => proofs.prove(Role::Node, &[0; 32], keys.public()),
                _ => proofs.prove(Role::Node, binding, other),
            };
            encode(&Claim { proof, ask: ask(Role::Node, None) }).expect("a small message")
        });
        assert_eq!(told, b"", "case {wrong}");
    }
    // A message beyond the limit, and one that is none.
    let told = claim_by_hand(&front, &secret, |_, _| [&5000u32.to_le_bytes()[..], &[0; 5000]].concat());
    assert_eq!(told, b"");
    let told = claim_by_hand(&front, &secret, |_, _| [&40u32.to_le_bytes()[..], &[0xff; 40]].concat());
    assert_eq!(told, b"");
    let seen = front.wait_for(|seen| seen.turned_away.len() == 6);
    assert!(seen.turned_away[0].contains("NotANode"), "{seen:?}");
    assert!(seen.turned_away[1..4].iter().all(|error| error.contains("NoProof")), "{seen:?}");
    front.is_unharmed(&secret, 0);
}

#[test]
fn a_node_returns_to_another_front_only_if_that_has_the_key_pair_of_the_first() {
    let (secret, seed) = (new_secret(), Seed::generate().expect("random numbers"));
    let front = || Front::of(&secret, seed.keys().expect("a key pair"), Limits::default());
    let mut node = new_node(&secret, 2);
    let (admission, ..) = {
        let first = front();
        enrol(&mut node, first.connect()).expect("it knows the secret")
    };
    let other = Front::start(&secret);
    for _ in 0..2 {
        let refused = connect(&mut node, other.connect(), Purpose::Return).err();
        assert!(refused.is_some(), "it has another key pair");
        assert!(other.seen.lock().expect("not poisoned").admitted.is_empty());
        let next = front();
        let (again, ..) = connect(&mut node, next.connect(), Purpose::Return).expect("it has the same");
        assert_eq!(again.node, admission.node);
    }
    // Neither does the front take a node that it has not signed for.
    let refused = connect(&mut new_node(&secret, 2), front().connect(), Purpose::Return).err();
    assert!(refused.as_deref().is_some_and(|error| error.contains("it has no certificate")), "{refused:?}");
}

#[test]
fn a_node_comes_back_as_itself_and_nobody_else_does() {
    let secret = new_secret();
    let front = Front::start(&secret);
    let mut node = new_node(&secret, 2);
    let (admission, stream, _) = enrol(&mut node, front.connect()).expect("it knows the secret");
    drop(stream);
    let (again, ..) = enrol(&mut node, front.connect()).expect("it has its certificate");
    assert_eq!((again.node, again.node_timeout), (NodeId(2), NODE_TIMEOUT));
    let seen = front.wait_for(|seen| seen.admitted.len() == 2);
    assert_eq!(seen.admitted, [(NodeId(2), false), (NodeId(2), true)]);
    // Somebody who knows the secret and has seen the certificate, but has another key.
    let proofs = super::claim::ProofKeys::new(&secret);
    let told = claim_by_hand(&front, &secret, |binding, keys| {
        let proof = proofs.prove(Role::Node, binding, keys.public());
        let ask = ask(Role::Node, Some(admission.certificate.clone()));
        encode(&Claim { proof, ask }).expect("a small message")
    });
    assert_eq!(refusal(&told).as_deref(), Some("its certificate is not the one of its key in this job"));
    // Another front with the same secret: the node knows its front by the key.
    let other = Front::start(&secret);
    let error = enrol(&mut node, other.connect()).err();
    assert!(error.as_deref().is_some_and(|error| error.contains("TLS with it failed")), "{error:?}");
    // So does one that was told the key beforehand.
    let mut told = new_node(&secret, 4);
    told.expect_front(front.key);
    assert!(enrol(&mut told, other.connect()).is_err());
    assert!(enrol(&mut told, front.connect()).is_ok());
    assert!(other.seen().admitted.is_empty());
    // It may ask whether the front lives. Without a certificate it may not.
    let alive = connect(&mut node, front.connect(), Purpose::Alive).err();
    assert_eq!(alive.as_deref(), Some("the front lives"));
    let error = connect(&mut new_node(&secret, 2), front.connect(), Purpose::Alive).err();
    assert!(error.as_deref().is_some_and(|error| error.contains("it has no certificate")), "{error:?}");
    // At its end it says so, and gets the job's exit code. Without a certificate it may not.
    let over = connect(&mut node, front.connect(), Purpose::Ended { code: 2, lapse: None, memory: None }).err();
    assert_eq!(over.as_deref(), Some("over with 42"));
    let error =
        connect(&mut new_node(&secret, 2), front.connect(), Purpose::Ended { code: 2, lapse: None, memory: None })
            .err();
    assert!(error.as_deref().is_some_and(|error| error.contains("it has no certificate")), "{error:?}");
    // A node that asks for what does not exist gets the reason.
    let error = enrol(&mut new_node(&secret, 99), front.connect()).err();
    assert!(error.as_deref().is_some_and(|error| error.contains("there is no such node")), "{error:?}");
}
