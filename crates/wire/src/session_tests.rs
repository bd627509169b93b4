use std::time::Duration;

use proptest::prelude::*;
use rankrun_core::{Attempt, GroupId, Rank, Stream, WorkerId};

use super::*;
use crate::message::{Hello, ToFront};

const ID: NonZeroU64 = NonZeroU64::new(5).expect("not zero");
const HEAD: OutputHead = OutputHead {
    worker: WorkerId { rank: Rank::of(GroupId(1), 3), attempt: Attempt(2) },
    stream: Stream::Stderr,
    at: Duration::from_millis(7),
    more: false,
};

fn session(retain: Retain) -> Session {
    Session::new(ID, retain)
}

fn taken(session: &mut Session) -> Vec<u8> {
    session.pieces().flatten().collect()
}

fn put(session: &mut Session, bytes: &[u8]) {
    session.room(bytes.len() + 10)[..bytes.len()].copy_from_slice(bytes);
    session.filled(bytes.len());
}

fn note(text: &str) -> ToFront {
    ToFront::Note(text.to_owned())
}

/// What a session receives, as text.
fn receive(session: &mut Session) -> Result<Vec<String>, WireError> {
    let mut seen = Vec::new();
    while let Some(frame) = session.next_frame::<ToFront>()? {
        seen.push(match frame {
            Frame::Message(ToFront::Note(text)) => text,
            Frame::Message(other) => format!("{other:?}"),
            Frame::Output(HEAD, bytes) => format!("output {}", String::from_utf8_lossy(bytes)),
            Frame::Output(head, _) => format!("{head:?}"),
        });
    }
    Ok(seen)
}

#[test]
fn the_bytes_of_each_kind_of_frame_are_fixed() {
    let mut session = session(Retain::UpTo(1 << 20));
    session.message(&ToFront::Hello(Hello { version: 2, release: "0.1.0".to_owned() })).expect("a small message");
    let hello = [12, 0, 0, 0, 0, 5, 1, 0, 0, 2, 5, b'0', b'.', b'1', b'.', b'0'];
    assert_eq!(taken(&mut session), hello);
    session.output(HEAD, Bytes::from_static(b"hi")).expect("a small piece");
    // Kind, session, sequence, acknowledgement; group, rank, attempt, stream, seconds, nanoseconds, more; the bytes.
    let output = [16, 0, 0, 0, 1, 5, 2, 0, 1, 3, 2, 1, 0, 0xc0, 0x9f, 0xab, 3, 0, b'h', b'i'];
    assert_eq!(taken(&mut session), output);
    session.bare(Kind::Ack).expect("a header");
    assert_eq!(taken(&mut session), [4, 0, 0, 0, 2, 5, 2, 0]);
    session.resume().expect("all was retained");
    assert_eq!(taken(&mut session), [4, 0, 0, 0, 3, 5, 2, 0]);
}

#[test]
fn a_length_beyond_the_limit_is_refused_before_it_is_allocated() {
    let mut session = session(Retain::No);
    put(&mut session, &u32::MAX.to_le_bytes());
    assert!(matches!(receive(&mut session), Err(WireError::TooLong { .. })));
}

#[test]
fn a_frame_that_was_lost_or_came_twice_is_noticed() {
    let mut sender = session(Retain::No);
    sender.message(&note("a")).expect("a small message");
    let first = taken(&mut sender);
    sender.message(&note("b")).expect("a small message");
    let second = taken(&mut sender);
    let mut receiver = session(Retain::No);
    put(&mut receiver, &second);
    assert!(matches!(receive(&mut receiver), Err(WireError::Gap { expected: 1, got: 2 })));
    let mut receiver = session(Retain::No);
    put(&mut receiver, &[first.clone(), first].concat());
    assert!(matches!(receive(&mut receiver), Err(WireError::Gap { expected: 2, got: 1 })));
}

#[test]
fn frames_of_another_session_are_refused_after_the_greeting() {
    let mut stranger = Session::new(NonZeroU64::MAX, Retain::No);
    stranger.message(&note("hello")).expect("a small message");
    let mut receiver = session(Retain::No);
    put(&mut receiver, &taken(&mut stranger));
    assert_eq!(receive(&mut receiver).expect("a greeting passes"), ["hello"]);
    stranger.message(&note("more")).expect("a small message");
    put(&mut receiver, &taken(&mut stranger));
    assert!(matches!(receive(&mut receiver), Err(WireError::OtherSession { .. })));
}

#[test]
fn a_peer_that_acknowledges_what_was_not_sent_is_refused() {
    let mut peer = session(Retain::UpTo(1000));
    peer.received = 7;
    peer.bare(Kind::Ack).expect("a header");
    let mut ours = session(Retain::UpTo(1000));
    put(&mut ours, &taken(&mut peer));
    assert!(matches!(receive(&mut ours), Err(WireError::AckOfUnsent { sent: 0, got: 7 })));
}

#[test]
fn large_output_is_not_copied() {
    for retain in [Retain::No, Retain::UpTo(1 << 20)] {
        let mut session = session(retain);
        let output = Bytes::from(vec![b'x'; 60_000]);
        session.output(HEAD, output.clone()).expect("within limits");
        session.output(HEAD, Bytes::from_static(b"small")).expect("within limits");
        let pieces: Vec<Bytes> = session.pieces().collect();
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces[1].as_ptr(), output.as_ptr());
        if let Some([_, retained]) = session.retained.front() {
            assert_eq!(retained.as_ptr(), output.as_ptr());
        }
    }
}

#[test]
fn a_large_message_that_was_sent_takes_no_memory() {
    let mut session = session(Retain::No);
    session.message(&note("small")).expect("a small message");
    let text = "x".repeat(50_000);
    session.message(&note(&text)).expect("a large message");
    session.message(&note("behind it")).expect("a small message");
    assert!(taken(&mut session).len() > text.len());
    assert_eq!((session.tail.capacity(), session.scratch.capacity() <= SCRATCH_KEPT), (0, true));
    // Small ones share a block.
    session.message(&note("small")).expect("a small message");
    taken(&mut session);
    assert!(session.tail.capacity() > 0);
}

#[test]
fn traffic_of_one_side_is_acknowledged_and_never_rests_at_the_bound() {
    let (mut sender, mut receiver) = (session(Retain::UpTo(100_000)), session(Retain::UpTo(100_000)));
    let mut most = 0;
    for _ in 0..1000 {
        assert!(sender.has_room());
        sender.output(HEAD, Bytes::from(vec![1; 20_000])).expect("within limits");
        most = most.max(sender.retained_size);
        put(&mut receiver, &taken(&mut sender));
        receive(&mut receiver).expect("our own frames");
        put(&mut sender, &taken(&mut receiver));
        receive(&mut sender).expect("our own frames");
    }
    assert!(most < 100_000 && sender.can_resume());
}

#[test]
fn at_the_bound_output_waits_and_messages_do_not() {
    let mut sender = session(Retain::UpTo(100_000));
    while sender.has_room() {
        sender.output(HEAD, Bytes::from(vec![1; 20_000])).expect("within limits");
    }
    assert!(sender.retained_size < 130_000);
    sender.message(&note("x")).expect("a small message");
    assert!(sender.can_resume());
    // Nobody acknowledges: at last what was kept is dropped, and the session is as one that keeps nothing.
    for _ in 0..17 {
        sender.message(&note(&"x".repeat(1 << 20))).expect("within limits");
    }
    assert!(!sender.can_resume() && sender.has_room() && sender.retained_size == 0);
    assert!(matches!(sender.resume(), Err(WireError::NotRetained)));
}

#[test]
fn a_session_that_retains_nothing_does_not_resume() {
    let mut session = session(Retain::No);
    assert!(!session.can_resume());
    session.suspend();
    assert!(matches!(session.resume(), Err(WireError::NotRetained)));
}

/// Both sides, and the bytes under way between them: `way[0]` from side 0 to side 1.
struct Both {
    sides: [Session; 2],
    way: [Vec<u8>; 2],
    sent: [Vec<String>; 2],
    seen: [Vec<String>; 2],
}

#[derive(Clone, Debug)]
enum Step {
    Message {
        side: usize,
    },
    Output {
        side: usize,
        length: usize,
    },
    /// So many bytes arrive at the other side.
    Deliver {
        side: usize,
        bytes: usize,
    },
    /// The byte stream breaks; all that was under way is lost. `together` is whether messages are sent before it is
    /// there again.
    Break,
    Suspend,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..2).prop_map(|side| Step::Message { side }),
        3 => (0usize..2, prop_oneof![0usize..40, 8_000usize..20_000]).prop_map(|(side, length)| Step::Output { side, length }),
        8 => (0usize..2, prop_oneof![1usize..30, 1usize..30_000]).prop_map(|(side, bytes)| Step::Deliver { side, bytes }),
        1 => Just(Step::Break),
        1 => Just(Step::Suspend),
    ]
}

impl Both {
    fn new() -> Both {
        let side = || session(Retain::UpTo(50_000));
        Both { sides: [side(), side()], way: Default::default(), sent: Default::default(), seen: Default::default() }
    }

    fn flush(&mut self) {
        for side in 0..2 {
            let bytes = taken(&mut self.sides[side]);
            if self.sides[side].state != State::Suspended {
                self.way[side].extend(bytes);
            }
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Message { side } => {
                let text = format!("message {}", self.sent[side].len());
                self.sides[side].message(&note(&text)).expect("a small message");
                self.sent[side].push(text);
            }
            Step::Output { side, length } if self.sides[side].has_room() => {
                let text = format!("{}{}", self.sent[side].len(), "x".repeat(length));
                self.sides[side].output(HEAD, Bytes::from(text.clone())).expect("within limits");
                self.sent[side].push(format!("output {text}"));
            }
            Step::Output { .. } => {}
            Step::Deliver { side, bytes } => {
                let bytes = bytes.min(self.way[side].len());
                let arrived: Vec<u8> = self.way[side].drain(..bytes).collect();
                put(&mut self.sides[1 - side], &arrived);
                let seen = receive(&mut self.sides[1 - side]).expect("our own frames");
                self.seen[1 - side].extend(seen);
            }
            Step::Suspend => {
                self.way = Default::default();
                self.sides.iter_mut().for_each(Session::suspend);
            }
            Step::Break => {
                self.way = Default::default();
                self.sides.iter_mut().for_each(|side| side.resume().expect("all was retained"));
            }
        }
        if self.sides[0].state != State::Suspended {
            self.flush();
        }
    }
}

proptest! {
    #[test]
    fn nothing_is_lost_or_doubled_wherever_the_stream_breaks(steps in proptest::collection::vec(step(), 1..120)) {
        let mut both = Both::new();
        for step in steps {
            both.apply(step);
        }
        if both.sides[0].state == State::Suspended {
            both.apply(Step::Break);
        }
        for _ in 0..4 {
            both.apply(Step::Deliver { side: 0, bytes: usize::MAX });
            both.apply(Step::Deliver { side: 1, bytes: usize::MAX });
        }
        prop_assert!(both.seen[1] == both.sent[0], "side 1 got {:?} of {:?}", both.seen[1].len(), both.sent[0].len());
        prop_assert!(both.seen[0] == both.sent[1], "side 0 got {:?} of {:?}", both.seen[0].len(), both.sent[1].len());
    }

    #[test]
    fn frames_survive_any_splitting(
        chunks in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..300)), 1..20),
        step in 1usize..50,
        retain in any::<bool>(),
    ) {
        let retain = if retain { Retain::UpTo(1 << 20) } else { Retain::No };
        let (mut sender, mut receiver) = (session(retain), session(retain));
        for (is_output, bytes) in &chunks {
            if *is_output {
                sender.output(HEAD, Bytes::copy_from_slice(bytes)).expect("within limits");
            } else {
                sender.message(&note(&format!("{bytes:?}"))).expect("within limits");
            }
        }
        let mut seen = Vec::new();
        for piece in taken(&mut sender).chunks(step) {
            put(&mut receiver, piece);
            while let Some(frame) = receiver.next_frame::<ToFront>().expect("our own frames") {
                match frame {
                    Frame::Output(got, bytes) => {
                        prop_assert_eq!(got, HEAD);
                        seen.push((true, bytes.to_vec()));
                    }
                    Frame::Message(ToFront::Note(text)) => seen.push((false, text.into_bytes())),
                    Frame::Message(other) => prop_assert!(false, "{:?}", other),
                }
            }
        }
        let expected: Vec<(bool, Vec<u8>)> = chunks
            .into_iter()
            .map(|(output, bytes)| if output { (true, bytes) } else { (false, format!("{bytes:?}").into_bytes()) })
            .collect();
        prop_assert_eq!(seen, expected);
    }

    #[test]
    fn no_bytes_of_a_peer_make_us_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        kind in 0u8..5,
        resuming in any::<bool>(),
    ) {
        let mut session = session(Retain::UpTo(100));
        if resuming {
            session.resume().expect("all was retained");
        }
        // Bytes at random, and bytes behind a length and a kind that fit.
        let mut framed = (bytes.len() as u32 + 1).to_le_bytes().to_vec();
        framed.push(kind);
        framed.extend(&bytes);
        put(&mut session, &framed);
        while let Ok(Some(_)) = session.next_frame::<ToFront>() {}
        put(&mut session, &bytes);
        while let Ok(Some(_)) = session.next_frame::<ToFront>() {}
    }
}
