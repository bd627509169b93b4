//! Peers that mean harm: replays, somebody in between, false fronts, slow and many connections.

use super::*;

/// Passes bytes between a node and the front, and returns what each has sent. The first slice is what the node sent.
fn record(front: &Front, node: &mut Node) -> Vec<Vec<u8>> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let onward = front.connect();
    let wire = std::thread::spawn(move || {
        let (near, _) = listener.accept().expect("the node");
        let copy = |mut from: TcpStream, mut to: TcpStream| {
            std::thread::spawn(move || {
                let (mut pieces, mut room) = (Vec::new(), [0; 4096]);
                while let Ok(count @ 1..) = from.read(&mut room) {
                    pieces.push(room[..count].to_vec());
                    if to.write_all(&room[..count]).is_err() {
                        break;
                    }
                }
                // Both may be closed already.
                let _ = to.shutdown(std::net::Shutdown::Both);
                pieces
            })
        };
        let clone = |stream: &TcpStream| stream.try_clone().expect("a duplicate");
        let up = copy(clone(&near), clone(&onward));
        let down = copy(onward, near);
        let pieces = up.join().expect("the node's bytes");
        down.join().expect("the front's bytes");
        pieces
    });
    let enrolled = enrol(node, TcpStream::connect(address).expect("it listens"));
    drop(enrolled.expect("a wire changes nothing"));
    wire.join().expect("the bytes")
}

#[test]
fn a_replayed_handshake_is_worth_nothing() {
    let secret = new_secret();
    let front = Front::start(&secret);
    let pieces = record(&front, &mut new_node(&secret, 1));
    assert!(pieces[0].len() == KNOCK_LENGTH && pieces.len() >= 3, "knock, hello, claim");
    front.wait_for(|seen| seen.admitted.len() == 1);
    // To the same front, at once and piece by piece: it remembers the knock.
    assert_eq!(answer_to(&front, &pieces[0]), b"");
    assert_eq!(answer_to(&front, &pieces.concat()), b"");
    front.wait_for(|seen| seen.turned_away.iter().any(|error| error.contains("Replay")));
    // To a front of the same secret that has never heard it: it answers the knock, and the rest is for another connection.
    let other = Front::start(&secret);
    let mut stream = other.connect();
    stream.write_all(&pieces[0]).expect("the front reads");
    stream.read_exact(&mut [0; ANSWER_LENGTH]).expect("it answers");
    for piece in &pieces[1..] {
        // It closes the connection at some point.
        let _ = stream.write_all(piece);
    }
    let _ = stream.read_to_end(&mut Vec::new());
    let seen = other.wait_for(|seen| !seen.turned_away.is_empty());
    assert!(seen.admitted.is_empty() && seen.turned_away[0].contains("Tls"), "{seen:?}");
    other.is_unharmed(&secret, 0);
    front.is_unharmed(&secret, 1);
}

/// Somebody between node and front, without the secret: passes on knock and answer, and has TLS of its own with each.
#[test]
fn somebody_in_between_cannot_pass_the_proofs_on() {
    let secret = new_secret();
    let front = Front::start(&secret);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let mut far = front.connect();
    let between = std::thread::spawn(move || {
        let (mut near, _) = listener.accept().expect("the node");
        let (mut knock, mut answer) = ([0; KNOCK_LENGTH], [0; ANSWER_LENGTH]);
        near.read_exact(&mut knock).expect("the node knocks");
        far.write_all(&knock).expect("the front reads");
        far.read_exact(&mut answer).expect("the front answers");
        near.write_all(&answer).expect("the node reads");
        let keys = KeyPair::generate().expect("random numbers");
        let mut ours = Tls::of_front(&front_config(&keys).expect("a configuration")).expect("a connection");
        let mut theirs = Tls::of_node(node_config(&keys, None).expect("a configuration")).expect("a connection");
        for (tls, stream) in [(&mut ours, &mut near), (&mut theirs, &mut far)] {
            let mut room = [0; 4096];
            loop {
                let is_shaken = tls.shake().expect("a handshake");
                stream.write_all(&tls.take_output()).expect("the peer reads");
                if is_shaken {
                    break;
                }
                let count = stream.read(&mut room).expect("the peer answers");
                tls.received(&room[..count]);
            }
        }
        // The node's claim, passed on as it is.
        let mut room = [0; 4096];
        let mut claim = Vec::new();
        while claim.is_empty() {
            let count = ours.read(&mut room).expect("the node's records");
            claim.extend_from_slice(&room[..count]);
            if count == 0 {
                let count = near.read(&mut room).expect("the node's claim");
                ours.received(&room[..count]);
            }
        }
        theirs.write(&claim).expect("memory");
        far.write_all(&theirs.take_output()).expect("the front reads");
        // The front closes the connection, and says nothing.
        let mut rest = Vec::new();
        let _ = far.read_to_end(&mut rest);
        theirs.received(&rest);
        theirs.read(&mut room).unwrap_or(0)
    });
    assert!(enrol(&mut new_node(&secret, 1), TcpStream::connect(address).expect("it listens")).is_err());
    assert_eq!(between.join().expect("it was between"), 0, "the front has told something");
    let seen = front.wait_for(|seen| !seen.turned_away.is_empty());
    assert!(seen.turned_away[0].contains("NoProof"), "{seen:?}");
    front.is_unharmed(&secret, 0);
}

#[test]
fn a_peer_that_poses_as_the_front_without_the_secret_gets_a_knock_and_no_more() {
    let secret = new_secret();
    for echoes in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let fake = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("the node");
            let mut knock = [0; KNOCK_LENGTH];
            stream.read_exact(&mut knock).expect("a knock");
            // What the node has sent itself, or an answer under another secret.
            let answer = match echoes {
                true => knock[..ANSWER_LENGTH].to_vec(),
                false => KnockKeys::new(&new_secret()).answer(&Peer::ours(), &knock),
            };
            stream.write_all(&answer).expect("the node reads");
            let mut rest = Vec::new();
            // Reset or closed: both are an end.
            let _ = stream.read_to_end(&mut rest);
            rest
        });
        let error = enrol(&mut new_node(&secret, 1), TcpStream::connect(address).expect("it listens")).err();
        assert!(error.as_deref().is_some_and(|error| error.contains("NotTheFront")), "{error:?}");
        assert_eq!(fake.join().expect("it has answered"), b"", "the node has sent more than its knock");
    }
}

#[test]
fn a_slow_peer_is_closed_in_time_wherever_it_stops() {
    let secret = new_secret();
    let front = Front::start(&secret);
    let whole = KnockKeys::new(&secret).knock(&Peer::ours(), [9; 32]);
    // One that sends nothing, one with half a knock, one that has knocked, one with a byte of TLS.
    let beginnings: [&[u8]; 4] = [b"", &whole[..50], &whole, &[0x16]];
    let began = Instant::now();
    let streams: Vec<TcpStream> = beginnings
        .iter()
        .map(|bytes| {
            let mut stream = front.connect();
            stream.write_all(bytes).expect("the front reads");
            stream
        })
        .collect();
    // And one that sends a byte whenever it can.
    let mut dripping = front.connect();
    dripping.set_nonblocking(true).expect("a socket");
    let mut last = Instant::now();
    let closed = wait_for(|| {
        if last.elapsed() > Duration::from_millis(20) {
            last = Instant::now();
            // An error: it is closed.
            let _ = dripping.write(b"r");
        }
        match dripping.read(&mut [0; 8]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
            Ok(0) | Err(_) => Some(began.elapsed()),
            Ok(count) => panic!("{count} bytes for a stranger"),
        }
    });
    assert!(closed.is_some_and(|after| after >= PATIENCE), "{closed:?}");
    for mut stream in streams {
        let mut answer = Vec::new();
        // Reset or closed: both are an end.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.len() == ANSWER_LENGTH);
    }
    front.is_unharmed(&secret, 0);
    front.wait_for(|seen| seen.half_open == 0);
}

#[test]
fn ten_thousand_connections_keep_no_node_out() {
    let secret = new_secret();
    // They may stay as long as they like: only the number of them protects us.
    let front = Front::with(&secret, Limits { patience: BOUND, ..Limits::default() });
    let mut held = Vec::with_capacity(10_000);
    let mut slowest = Duration::ZERO;
    for at in 0..10_000 {
        held.push(TcpStream::connect(front.address).expect("the front listens"));
        if at % 1000 == 999 {
            let began = Instant::now();
            let (.., stream, _tls) = enrol(&mut new_node(&secret, 1), front.connect()).expect("it knows the secret");
            slowest = slowest.max(began.elapsed());
            drop(stream);
        }
    }
    let seen = front.wait_for(|seen| seen.admitted.len() == 10);
    assert!(seen.most_half_open <= 256 + 1024, "{}", seen.most_half_open);
    assert!(slowest < Duration::from_secs(10), "a node waited for {slowest:?}");
    drop(held);
    front.is_unharmed(&secret, 10);
}

#[test]
fn nothing_secret_is_in_what_is_printed() {
    let secret = new_secret();
    let front = Front::start(&secret);
    let text = secret.to_text();
    let node = new_node(&secret, 1);
    let connector = Connector::new(&node, Purpose::Join).expect("random numbers");
    let door = Door::new(&secret, JobId("0badcafe".to_owned()), new_keys(), super::NODE_TIMEOUT, None).expect("a door");
    assert!(enrol(&mut new_node(&new_secret(), 1), front.connect()).is_err());
    let seen = front.wait_for(|seen| !seen.turned_away.is_empty());
    let printed = format!("{secret:?} {node:?} {connector:?} {door:?} {seen:?}");
    assert!(!printed.contains(text.trim_end_matches(['=', '\n'])));
    let bytes = printed.as_bytes();
    let raw = Secret::parse(text.as_bytes()).expect("our own text");
    let in_decimal = format!("{:?}", raw.to_text().as_bytes());
    assert!(!printed.contains(in_decimal.trim_matches(['[', ']'])) && !bytes.is_empty());
}

#[test]
fn connections_are_taken_again_after_a_rest_by_a_loop_that_only_polls() {
    let socket = socket::listen_at(Some([127, 0, 0, 1].into()), 0..=0, 4096).expect("a port");
    let address = socket.1;
    let mut poller = Poller::new().expect("a poller");
    let tokens = Tokens { listener: LISTENER, peer: |peer| PEERS | peer.0 };
    let limits = Limits { rate: 20, ..Limits::default() };
    let door = Door::new(&new_secret(), JobId("0badcafe".to_owned()), new_keys(), NODE_TIMEOUT, None).expect("a door");
    let mut listener = Listener::new(socket, poller.registry(), tokens, limits, door).expect("a listener");
    let count = 50;
    let streams: Vec<TcpStream> = (0..count).map(|_| TcpStream::connect(address).expect("it listens")).collect();
    let started = Instant::now();
    let mut ready = Vec::new();
    while listener.half_open() < count && started.elapsed() < BOUND {
        poller.wait(Some(BOUND.saturating_sub(started.elapsed())), &mut ready).expect("an epoll set can be waited for");
        for event in std::mem::take(&mut ready) {
            if poller.is_current(event) && event.token == LISTENER {
                listener.accept(started.elapsed());
            }
        }
    }
    assert_eq!(listener.half_open(), count);
    drop(streams);
}
