//! One end of a byte stream that outlives the connections which carry it.
//!
//! Each side keeps what it has sent until the other has said that it is safe. A connection begins with a hello of each side: the stream
//! ([`HELLO`] bytes in all), and how many of the other's bytes it has safe. What the other lacks is then sent again. What follows are
//! chunks: a length, how many bytes of the other direction are safe, and so many bytes.
//!
//! What is safe is for the owner to say ([`Pipe::is_safe`]): a front that may be killed has it when it is in its log. The pipe does no I/O.

use std::collections::VecDeque;

use bytes::{Buf as _, Bytes, BytesMut};

/// The length of a hello: eight bytes that tell it from anything else, the stream, and what is safe.
const HELLO: usize = 24;
const MAGIC: [u8; 8] = *b"rankrun\x01";
/// What comes before the bytes of a chunk: their number, and what is safe.
const HEAD: usize = 12;
/// The most bytes of a chunk.
const CHUNK: usize = 1 << 20;
/// So many bytes may become safe until the other side is told, if there is nothing else to send.
const UNTOLD: u64 = 64 * 1024;

/// Why a connection does not go on with the stream.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PipeError {
    #[error("the connection does not begin as one of rankrun")]
    NoHello,
    #[error("the connection is one of stream {got:x} in place of {expected:x}")]
    OtherStream { expected: u64, got: u64 },
    #[error("the other side has {got} bytes, of {sent} that were sent and {kept} that are not kept any more")]
    OtherPlace { kept: u64, sent: u64, got: u64 },
    #[error("chunk of {0} bytes, beyond the limit")]
    TooLong(usize),
}

/// Where the stream stands: enough to go on with it in another process.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// Bytes that the other side has safe.
    pub acknowledged: u64,
    /// Those that were sent after these.
    pub kept: VecDeque<Bytes>,
    /// Bytes of the other side that are safe.
    pub safe: u64,
}

/// One end of the stream.
#[derive(Debug)]
pub struct Pipe {
    id: u64,
    /// How many bytes the other side has safe, and those that come after them.
    acknowledged: u64,
    kept: VecDeque<Bytes>,
    sent: u64,
    /// How many bytes of the other side were received, are safe, and which number it was told.
    received: u64,
    safe: u64,
    told: u64,
    step: Step,
    /// A part of a hello or of a head.
    part: BytesMut,
    /// Bytes that are still to come of the present chunk.
    rest: usize,
    /// The other side wants nothing more.
    is_finished: bool,
    /// This one does not; and whether that was said over this connection.
    wants_no_more: Option<bool>,
}

/// In place of a length: the side that says it wants nothing more.
const FINISHED: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// There is no connection.
    Apart,
    /// The other side has not said hello.
    Greeting,
    Open,
}

impl Pipe {
    /// A stream that begins. `id` is the same on both sides.
    pub fn new(id: u64) -> Pipe {
        Pipe::at(id, Standing::default())
    }

    /// A stream that stands there.
    pub fn at(id: u64, standing: Standing) -> Pipe {
        let Standing { acknowledged, kept, safe } = standing;
        let sent = acknowledged + kept.iter().map(|piece| piece.len() as u64).sum::<u64>();
        let (step, part, rest, is_finished) = (Step::Apart, BytesMut::new(), 0, false);
        Pipe {
            id,
            acknowledged,
            kept,
            sent,
            received: safe,
            safe,
            told: safe,
            step,
            part,
            rest,
            is_finished,
            wants_no_more: None,
        }
    }

    /// A connection begins: what is to be sent over it first. What was received and is not safe comes again.
    pub fn connect(&mut self) -> Bytes {
        (self.step, self.rest) = (Step::Greeting, 0);
        self.wants_no_more = self.wants_no_more.map(|_| false);
        self.part.clear();
        self.received = self.safe;
        self.told = self.safe;
        let mut hello = BytesMut::with_capacity(HELLO);
        hello.extend_from_slice(&MAGIC);
        hello.extend_from_slice(&self.id.to_le_bytes());
        hello.extend_from_slice(&self.safe.to_le_bytes());
        hello.freeze()
    }

    /// The connection is gone.
    pub fn disconnect(&mut self) {
        self.step = Step::Apart;
    }

    /// Bytes for the other side. What of them goes over the connection now is added to `out`.
    pub fn send(&mut self, bytes: Bytes, out: &mut Vec<Bytes>) {
        if bytes.is_empty() {
            return;
        }
        self.sent += bytes.len() as u64;
        self.kept.push_back(bytes.clone());
        if self.step == Step::Open {
            self.chunks(bytes, out);
        }
    }

    /// Takes bytes that have come over the connection: what they carry is added to `received`, what is to be sent for them to `out`.
    pub fn receive(&mut self, mut bytes: &[u8], received: &mut Vec<u8>, out: &mut Vec<Bytes>) -> Result<(), PipeError> {
        while !bytes.is_empty() {
            if self.rest > 0 {
                let (now, later) = bytes.split_at(self.rest.min(bytes.len()));
                received.extend_from_slice(now);
                self.received += now.len() as u64;
                self.rest -= now.len();
                bytes = later;
                continue;
            }
            let whole = if self.step == Step::Open { HEAD } else { HELLO };
            let (now, later) = bytes.split_at((whole - self.part.len()).min(bytes.len()));
            self.part.extend_from_slice(now);
            bytes = later;
            if self.part.len() < whole {
                break;
            }
            let mut part = std::mem::take(&mut self.part);
            match self.step {
                Step::Open => {
                    let length = part.get_u32_le();
                    self.is_finished |= length == FINISHED;
                    self.rest = if length == FINISHED { 0 } else { length as usize };
                    if self.rest > CHUNK {
                        return Err(PipeError::TooLong(self.rest));
                    }
                    self.acknowledge(part.get_u64_le())?;
                }
                Step::Greeting | Step::Apart => self.greeted(part, out)?,
            }
        }
        Ok(())
    }

    /// The other side has said hello: gets what it lacks.
    fn greeted(&mut self, mut hello: BytesMut, out: &mut Vec<Bytes>) -> Result<(), PipeError> {
        if hello[..MAGIC.len()] != MAGIC {
            return Err(PipeError::NoHello);
        }
        hello.advance(MAGIC.len());
        let id = hello.get_u64_le();
        if id != self.id {
            return Err(PipeError::OtherStream { expected: self.id, got: id });
        }
        self.acknowledge(hello.get_u64_le())?;
        self.step = Step::Open;
        let kept: Vec<Bytes> = self.kept.iter().cloned().collect();
        kept.into_iter().for_each(|bytes| self.chunks(bytes, out));
        Ok(())
    }

    /// So many bytes in all are safe. If the other side should be told, that is added to `out`.
    pub fn is_safe(&mut self, bytes: u64, out: &mut Vec<Bytes>) {
        self.safe = self.safe.max(bytes.min(self.received));
        if self.step == Step::Open && self.safe - self.told >= UNTOLD {
            out.push(self.head(0));
        }
    }

    /// This side wants nothing more: the other one need not wait for another connection when this one is gone.
    pub fn finish(&mut self) {
        self.wants_no_more = Some(false);
    }

    /// Adds to `out`, behind all else, that this side wants nothing more, if that is so and was not said over this connection.
    pub fn say_finished(&mut self, out: &mut Vec<Bytes>) {
        if self.step == Step::Open && self.wants_no_more == Some(false) {
            self.wants_no_more = Some(true);
            out.push(self.head(FINISHED));
        }
    }

    /// Whether the other side wants nothing more.
    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// How many bytes were received in all.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// How many were sent, also without a connection.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Bytes that are kept, since the other side may lack them.
    pub fn unacknowledged(&self) -> u64 {
        self.sent - self.acknowledged
    }

    fn acknowledge(&mut self, bytes: u64) -> Result<(), PipeError> {
        if bytes < self.acknowledged || bytes > self.sent {
            return Err(PipeError::OtherPlace { kept: self.acknowledged, sent: self.sent, got: bytes });
        }
        while self.acknowledged < bytes {
            let Some(first) = self.kept.front_mut() else { break };
            let count = (bytes - self.acknowledged).min(first.len() as u64);
            self.acknowledged += count;
            first.advance(count as usize);
            if first.is_empty() {
                self.kept.pop_front();
            }
        }
        Ok(())
    }

    fn chunks(&mut self, mut bytes: Bytes, out: &mut Vec<Bytes>) {
        while !bytes.is_empty() {
            let chunk = bytes.split_to(bytes.len().min(CHUNK));
            out.push(self.head(chunk.len() as u32));
            out.push(chunk);
        }
    }

    fn head(&mut self, length: u32) -> Bytes {
        self.told = self.safe;
        let mut head = BytesMut::with_capacity(HEAD);
        head.extend_from_slice(&length.to_le_bytes());
        head.extend_from_slice(&self.safe.to_le_bytes());
        head.freeze()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two ends, the connection between them, and what each owner has got.
    struct Pair {
        ends: [Pipe; 2],
        /// On the way to each end.
        ways: [VecDeque<u8>; 2],
        got: [Vec<u8>; 2],
        is_connected: bool,
    }

    impl Pair {
        fn new() -> Pair {
            let mut pair = Pair {
                ends: [Pipe::new(7), Pipe::new(7)],
                ways: Default::default(),
                got: Default::default(),
                is_connected: false,
            };
            pair.connect();
            pair
        }

        fn connect(&mut self) {
            self.is_connected = true;
            for end in 0..2 {
                let safe = self.ends[end].safe as usize;
                self.got[end].truncate(safe);
                let hello = self.ends[end].connect();
                self.ways[1 - end] = hello.to_vec().into();
            }
        }

        fn disconnect(&mut self) {
            self.is_connected = false;
            self.ways = Default::default();
            self.ends.iter_mut().for_each(Pipe::disconnect);
        }

        /// The process of an end is replaced. It knows what was safe, and what it had sent.
        fn replace(&mut self, end: usize) {
            self.disconnect();
            let old = &self.ends[end];
            let standing = Standing { acknowledged: old.acknowledged, kept: old.kept.clone(), safe: old.safe };
            self.ends[end] = Pipe::at(7, standing);
        }

        fn put(&mut self, from: usize, out: Vec<Bytes>) {
            if self.is_connected {
                self.ways[1 - from].extend(out.iter().flatten());
            }
        }

        fn send(&mut self, end: usize, bytes: Vec<u8>) {
            let mut out = Vec::new();
            self.ends[end].send(bytes.into(), &mut out);
            self.put(end, out);
        }

        fn move_to(&mut self, end: usize, most: usize) {
            let count = most.min(self.ways[end].len());
            let bytes: Vec<u8> = self.ways[end].drain(..count).collect();
            let mut out = Vec::new();
            self.ends[end].receive(&bytes, &mut self.got[end], &mut out).expect("it fits");
            self.put(end, out);
        }

        fn save(&mut self, end: usize, share: u8) {
            let received = self.ends[end].received();
            let mut out = Vec::new();
            self.ends[end].is_safe(received * u64::from(share) / 255, &mut out);
            self.put(end, out);
        }
    }

    #[derive(Clone, Debug)]
    enum Move {
        Send(usize, Vec<u8>),
        Receive(usize, usize),
        Save(usize, u8),
        Break,
        Replace(usize),
    }

    fn moves() -> impl Strategy<Value = Move> {
        let bytes = prop_oneof![proptest::collection::vec(any::<u8>(), 0..40), Just(vec![5; 100_000])];
        prop_oneof![
            4 => (0..2usize, bytes).prop_map(|(end, bytes)| Move::Send(end, bytes)),
            6 => (0..2usize, prop_oneof![1..30usize, Just(1 << 20)]).prop_map(|(end, most)| Move::Receive(end, most)),
            3 => (0..2usize, any::<u8>()).prop_map(|(end, share)| Move::Save(end, share)),
            1 => Just(Move::Break),
            1 => (0..2usize).prop_map(Move::Replace),
        ]
    }

    proptest! {
        #[test]
        fn every_byte_arrives_once_and_in_order_whatever_breaks(moves in proptest::collection::vec(moves(), 0..60)) {
            let mut pair = Pair::new();
            let mut sent: [Vec<u8>; 2] = Default::default();
            for it in moves {
                match it {
                    Move::Send(end, bytes) => {
                        sent[end].extend(&bytes);
                        pair.send(end, bytes);
                    }
                    Move::Receive(end, most) => pair.move_to(end, most),
                    Move::Save(end, share) => pair.save(end, share),
                    Move::Break => {
                        pair.disconnect();
                        pair.connect();
                    }
                    Move::Replace(end) => {
                        pair.replace(end);
                        pair.connect();
                    }
                }
                for end in 0..2 {
                    prop_assert!(sent[1 - end].starts_with(&pair.got[end]));
                }
            }
            while pair.ways.iter().any(|way| !way.is_empty()) {
                (0..2).for_each(|end| pair.move_to(end, usize::MAX));
            }
            prop_assert!(pair.got[0] == sent[1] && pair.got[1] == sent[0]);
        }
    }

    #[test]
    fn what_is_safe_is_kept_no_longer() {
        let mut pair = Pair::new();
        (0..2).for_each(|end| pair.move_to(end, usize::MAX));
        for _ in 0..100 {
            pair.send(0, vec![1; 10_000]);
            pair.move_to(1, usize::MAX);
            pair.save(1, 255);
            pair.move_to(0, usize::MAX);
        }
        assert!(pair.ends[0].unacknowledged() <= UNTOLD + 10_000, "{}", pair.ends[0].unacknowledged());
        assert_eq!(pair.got[1].len(), 1_000_000);
    }

    #[test]
    fn strangers_and_other_streams_are_refused() {
        let (mut out, mut got) = (Vec::new(), Vec::new());
        let mut pipe = Pipe::new(7);
        pipe.connect();
        let garbage = [9; 4 * HELLO];
        assert_eq!(pipe.receive(&garbage, &mut got, &mut out), Err(PipeError::NoHello));
        let other = Pipe::new(8).connect();
        pipe.connect();
        let refused = Err(PipeError::OtherStream { expected: 7, got: 8 });
        assert_eq!(pipe.receive(&other, &mut got, &mut out), refused);
        // An older copy of the other side, which has less than what we have forgotten.
        let mut pair = Pair::new();
        (0..2).for_each(|end| pair.move_to(end, usize::MAX));
        pair.send(0, vec![1; 100_000]);
        pair.move_to(1, usize::MAX);
        pair.save(1, 255);
        pair.move_to(0, usize::MAX);
        let old = Pipe::new(7).connect();
        pair.ends[0].connect();
        let refused = pair.ends[0].receive(&old, &mut got, &mut out);
        assert!(matches!(refused, Err(PipeError::OtherPlace { got: 0, .. })), "{refused:?}");
        assert!(got.is_empty() && out.is_empty());
    }
}
