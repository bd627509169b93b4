//! A hostile peer of a session, on the front's side and on the agent's: `cargo +nightly fuzz run frames`.
//!
//! The first byte picks the side, and whether the session resumes. The rest arrives in pieces: each has a byte for its length, or
//! is a frame whose length, kind and header fit, with a body from the input. Beside the absence of panics it is asserted that a message
//! which can be read is read as the same when it is sent on, and that after an error nothing is read.

#![no_main]

use std::num::NonZeroU64;

use libfuzzer_sys::fuzz_target;
use rankrun_wire::frame::{Frame, Header};
use rankrun_wire::{Retain, Session, ToAgent, ToFront};
use serde::Serialize;
use serde::de::DeserializeOwned;

const ID: NonZeroU64 = NonZeroU64::new(7).unwrap();
/// A session copies no less than it is given: a target that feeds more only takes longer.
const MOST: usize = 1 << 16;

fn put(session: &mut Session, bytes: &[u8]) {
    if !bytes.is_empty() {
        session.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        session.filled(bytes.len());
    }
}

fn read_all<M: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(session: &mut Session) -> bool {
    loop {
        match session.next_frame::<M>() {
            Ok(Some(Frame::Message(message))) => {
                let bytes = postcard::to_stdvec(&message).expect("it was read");
                let again: M = postcard::from_bytes(&bytes).expect("our own encoding");
                // A float that is not a number is not equal to itself.
                assert_eq!(postcard::to_stdvec(&again).expect("it was read"), bytes);
            }
            Ok(Some(Frame::Output(..))) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

fn run<M: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(is_resuming: bool, mut rest: &[u8]) {
    let mut session = Session::new(ID, Retain::UpTo(100_000));
    if is_resuming {
        session.suspend();
        session.resume().expect("all was retained");
    }
    let mut seq = 0;
    while let Some((&step, after)) = rest.split_first() {
        let (piece, after) = after.split_at(after.len().min(usize::from(step >> 3) * 8));
        rest = after;
        if step & 4 == 0 {
            put(&mut session, piece);
        } else {
            seq += u64::from(step & 3 < 2);
            let header = Header { session: ID.get(), seq, ack: 0 };
            let header = postcard::to_stdvec(&header).expect("three numbers");
            let length = (1 + header.len() + piece.len()) as u32;
            put(&mut session, &[&length.to_le_bytes()[..], &[step & 3], &header, piece].concat());
        }
        if !read_all::<M>(&mut session) {
            return;
        }
        // What it answers is bounded by what it was sent.
        assert!(session.pieces().map(|piece| piece.len()).sum::<usize>() < MOST);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, rest)) = data.split_first() else { return };
    if rest.len() > MOST {
        return;
    }
    match first & 1 {
        0 => run::<ToAgent>(first & 2 != 0, rest),
        _ => run::<ToFront>(first & 2 != 0, rest),
    }
});
