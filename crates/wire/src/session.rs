//! One conversation between front and agent, over one byte stream or over several that follow each other.
//!
//! Each side numbers its messages and output from 1, and each frame acknowledges the last received frame of the other
//! side. Where the byte stream may break and be replaced (`ssh`, a front that reconnects), both sides keep what they have
//! sent until it is acknowledged. On the next byte stream each first sends a `Resume` frame with the last number that it
//! has received. Then each sends again what the other lacks. Nothing is lost, and nothing arrives twice.
//!
//! The session does no I/O. The caller reads into [`Session::room`], takes frames from [`Session::next_frame`], and
//! writes [`Session::pieces`], which are never copied if they are large.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::frame::{Cut, Decoder, Frame, Header, Kind, OutputHead, WireError, encode};

/// Output of at most this size is copied, together with the frames around it: a piece of its own costs more.
const COPIED: usize = 8 * 1024;
/// Memory for encoded frames is allocated in blocks: the first is of this size, and each following one twice as large, up to the most.
const BLOCK_LEAST: usize = 2 * 1024;
const BLOCK_MOST: usize = 64 * 1024;
/// The overhead of a retained frame.
const FRAME_COST: usize = 96;
/// Messages may exceed the limit for retained output by this much: they are small, and cannot wait.
const MESSAGES: usize = 16 << 20;

/// Whether sent frames are kept until they are acknowledged. Both sides must choose the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retain {
    /// The end of the byte stream is the end of the session: a pair of sockets between two processes of one machine,
    /// which cannot be reconnected. No acknowledgements are sent but those in the headers.
    No,
    /// The session may go on over another byte stream. About so many bytes are kept. At this limit [`Session::has_room`]
    /// is false, and output must wait. Messages do not wait. If unacknowledged messages exceed the limit by 16 MiB, all
    /// that was kept is dropped: the session goes on, but cannot be resumed any more.
    UpTo(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Open,
    /// There is no byte stream.
    Suspended,
    /// There is a new byte stream, and the peer has not sent `Resume` yet.
    Resuming,
}

/// One side of a conversation.
#[derive(Debug)]
pub struct Session {
    id: u64,
    retain: Retain,
    state: State,
    /// The last frame that was made, and the last that the peer has acknowledged.
    sent: u64,
    acked: u64,
    /// The frames after `acked`, if they are kept: head and, if it is large, the output.
    retained: VecDeque<[Bytes; 2]>,
    retained_size: usize,
    /// Frames that the peer may lack were not kept.
    is_final: bool,
    decoder: Decoder,
    /// The last frame that was received.
    received: u64,
    /// Bytes of frames received since the last acknowledgement was sent.
    unacknowledged: usize,
    out: VecDeque<Bytes>,
    tail: BytesMut,
    scratch: Vec<u8>,
    /// The size of the next block.
    block: usize,
    /// The block was made for a frame that is larger than blocks are: it is freed when that is sent.
    is_oversized: bool,
}

/// A larger scratch buffer is freed at once.
const SCRATCH_KEPT: usize = 4 * 1024;

impl Session {
    /// A session on its first byte stream. `id` is random, and the same on both sides.
    pub fn new(id: NonZeroU64, retain: Retain) -> Session {
        Session {
            id: id.get(),
            retain,
            state: State::Open,
            sent: 0,
            acked: 0,
            retained: VecDeque::new(),
            retained_size: 0,
            is_final: retain == Retain::No,
            decoder: Decoder::default(),
            received: 0,
            unacknowledged: 0,
            out: VecDeque::new(),
            tail: BytesMut::new(),
            scratch: Vec::new(),
            block: BLOCK_LEAST,
            is_oversized: false,
        }
    }

    /// A session that is carried on: so many frames were sent, and received.
    pub fn at(id: NonZeroU64, (sent, received): (u64, u64)) -> Session {
        Session { sent, received, ..Session::new(id, Retain::No) }
    }

    pub(crate) fn id(&self) -> NonZeroU64 {
        NonZeroU64::new(self.id).unwrap_or(NonZeroU64::MIN)
    }

    /// How many frames were sent, and received; and bytes of a frame that has not come to its end.
    pub fn standing(&self) -> ((u64, u64), usize) {
        ((self.sent, self.received), self.decoder.open_bytes())
    }

    /// Sends a message.
    pub fn message<M: Serialize>(&mut self, message: &M) -> Result<(), WireError> {
        self.frame(Kind::Message, message, Bytes::new())
    }

    /// Sends output. Call it only if [`Session::has_room`].
    pub fn output(&mut self, head: OutputHead, bytes: Bytes) -> Result<(), WireError> {
        self.frame(Kind::Output, &head, bytes)
    }

    /// Whether output may be sent now. Without it, the peer's next acknowledgement makes room.
    pub fn has_room(&self) -> bool {
        match self.retain {
            Retain::UpTo(limit) if !self.is_final => self.retained_size < limit,
            Retain::UpTo(_) | Retain::No => true,
        }
    }

    /// Whether the session could go on over another byte stream.
    pub fn can_resume(&self) -> bool {
        !self.is_final
    }

    /// What is to be written to the byte stream, in order.
    pub fn pieces(&mut self) -> impl Iterator<Item = Bytes> + '_ {
        self.seal();
        self.out.drain(..)
    }

    /// Room for the next read of the byte stream: at most `most` bytes, fewer where little has come lately. [`Session::filled`] says
    /// how many were put there.
    pub fn room_up_to(&mut self, most: usize) -> &mut [u8] {
        self.decoder.room_up_to(most)
    }

    /// Room for `size` bytes of the byte stream. [`Session::filled`] says how many were put there.
    pub fn room(&mut self, size: usize) -> &mut [u8] {
        self.decoder.room(size)
    }

    /// The first `read` bytes of the room were filled.
    pub fn filled(&mut self, read: usize) {
        self.decoder.filled(read);
    }

    /// The next complete frame. The next call counts it as received, and may acknowledge it; so there may be something
    /// to send after that.
    pub fn next_frame<M: DeserializeOwned>(&mut self) -> Result<Option<Frame<'_, M>>, WireError> {
        match self.advance()? {
            Some(cut) => self.open(&cut).map(Some),
            None => Ok(None),
        }
    }

    /// The content of a frame. Call it before reading anything else.
    pub(crate) fn open<M: DeserializeOwned>(&self, cut: &Cut) -> Result<Frame<'_, M>, WireError> {
        self.decoder.open(cut)
    }

    /// Decodes the next frame with content, and handles the others.
    pub(crate) fn advance(&mut self) -> Result<Option<Cut>, WireError> {
        self.acknowledge()?;
        while let Some(cut) = self.decoder.cut()? {
            let Header { session, seq, ack } = cut.header;
            // The first frame is `Hello`. It is always accepted, so that peers of different versions can refuse each
            // other.
            let is_greeting = cut.kind == Kind::Message && self.received == 0 && seq == 1;
            if session != self.id && !is_greeting {
                return Err(WireError::OtherSession { expected: self.id, got: session });
            }
            match (self.state, cut.kind) {
                (State::Open, Kind::Message | Kind::Output) => {
                    if seq.checked_sub(1) != Some(self.received) {
                        return Err(WireError::Gap { expected: self.received.saturating_add(1), got: seq });
                    }
                    self.acknowledged(ack)?;
                    self.received = seq;
                    self.unacknowledged += cut.length + FRAME_COST;
                    return Ok(Some(cut));
                }
                (State::Open, Kind::Ack) => self.acknowledged(ack)?,
                (State::Resuming, Kind::Resume) => {
                    if ack < self.acked {
                        return Err(WireError::Forgotten { acked: self.acked, got: ack });
                    }
                    self.acknowledged(ack)?;
                    self.state = State::Open;
                    self.out.extend(self.retained.iter().flatten().filter(|piece| !piece.is_empty()).cloned());
                }
                (_, kind) => return Err(WireError::OutOfPlace { kind: kind as u8 }),
            }
        }
        Ok(None)
    }

    /// The byte stream is gone. Messages and output are still accepted, as far as they are retained.
    pub fn suspend(&mut self) {
        self.state = State::Suspended;
        // Half a frame may have arrived, or have left.
        self.decoder.clear();
        self.out.clear();
        self.tail.clear();
    }

    /// Resumes over a new byte stream.
    pub fn resume(&mut self) -> Result<(), WireError> {
        self.suspend();
        if self.is_final {
            return Err(WireError::NotRetained);
        }
        self.state = State::Resuming;
        self.bare(Kind::Resume)
    }

    fn header(&mut self) -> Header {
        self.unacknowledged = 0;
        Header { session: self.id, seq: self.sent, ack: self.received }
    }

    fn frame<M: Serialize>(&mut self, kind: Kind, body: &M, follows: Bytes) -> Result<(), WireError> {
        let header = Header { seq: self.sent + 1, ..self.header() };
        encode(kind, header, body, follows.len(), &mut self.scratch)?;
        self.sent += 1;
        if self.state != State::Open && self.is_final {
            return Ok(());
        }
        self.reserve(self.scratch.len() + if follows.len() > COPIED { 0 } else { follows.len() });
        self.tail.extend_from_slice(&self.scratch);
        if self.scratch.capacity() > SCRATCH_KEPT {
            self.scratch = Vec::new();
        }
        let large = if follows.len() > COPIED {
            follows
        } else {
            self.tail.extend_from_slice(&follows);
            Bytes::new()
        };
        if !self.is_final {
            let head = self.take_tail();
            self.retain([head.clone(), large.clone()]);
            if self.state == State::Open {
                self.out.extend([head, large].into_iter().filter(|piece| !piece.is_empty()));
            }
        } else if !large.is_empty() {
            self.seal();
            self.out.push_back(large);
        }
        Ok(())
    }

    /// A frame that has no number and is not retained.
    fn bare(&mut self, kind: Kind) -> Result<(), WireError> {
        let header = self.header();
        encode(kind, header, &(), 0, &mut self.scratch)?;
        self.reserve(self.scratch.len());
        self.tail.extend_from_slice(&self.scratch);
        self.seal();
        Ok(())
    }

    /// Makes room for `size` more bytes in the block. Memory whose bytes have all been sent is used again.
    fn reserve(&mut self, size: usize) {
        if self.tail.capacity() - self.tail.len() < size {
            self.is_oversized |= size > self.block;
            self.tail.reserve(size.max(self.block));
            self.block = (self.block * 2).min(BLOCK_MOST);
        }
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            let sealed = self.take_tail();
            self.out.push_back(sealed);
        }
    }

    /// What was encoded since the last time.
    fn take_tail(&mut self) -> Bytes {
        let taken = self.tail.split().freeze();
        // The block lives as long as a part of it does. The front tells each of a thousand nodes of all others, once.
        if std::mem::take(&mut self.is_oversized) {
            self.tail = BytesMut::new();
        }
        taken
    }

    fn retain(&mut self, frame: [Bytes; 2]) {
        let Retain::UpTo(limit) = self.retain else { return };
        self.retained_size += size_of(&frame);
        self.retained.push_back(frame);
        // One frame alone may be of any size.
        if self.retained_size > limit.saturating_add(MESSAGES) && self.retained.len() > 1 {
            self.is_final = true;
            self.retained = VecDeque::new();
            self.retained_size = 0;
        }
    }

    /// Sends a separate acknowledgement if no frame has carried one for long: the peer must not reach its limit.
    fn acknowledge(&mut self) -> Result<(), WireError> {
        match self.retain {
            Retain::UpTo(limit) if self.state == State::Open && self.unacknowledged > limit / 4 => self.bare(Kind::Ack),
            Retain::UpTo(_) | Retain::No => Ok(()),
        }
    }

    /// The peer has received everything up to `ack`. A frame that was sent again has an old acknowledgement.
    fn acknowledged(&mut self, ack: u64) -> Result<(), WireError> {
        if ack > self.sent {
            return Err(WireError::AckOfUnsent { sent: self.sent, got: ack });
        }
        while self.acked < ack {
            self.acked += 1;
            if let Some(frame) = self.retained.pop_front() {
                self.retained_size -= size_of(&frame);
            }
        }
        Ok(())
    }
}

fn size_of(frame: &[Bytes; 2]) -> usize {
    frame[0].len() + frame[1].len() + FRAME_COST
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
