//! Encodes and decodes frames. [`crate::session`] handles their order, and broken byte streams.

use std::time::Duration;

use rankrun_core::{Stream, WorkerId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The most that a frame may hold. A peer that announces more is refused, so that it cannot make us allocate.
pub const MAX_FRAME: usize = 64 * 1024 * 1024;
/// The most output that one frame carries.
pub const MAX_OUTPUT: usize = 64 * 1024;

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Message = 0,
    Output = 1,
    /// Nothing but a header: the acknowledgement counts. It has no number of its own.
    Ack = 2,
    /// Likewise, and the first frame of a byte stream that goes on with a session.
    Resume = 3,
}

impl Kind {
    fn of(byte: u8) -> Result<Kind, WireError> {
        match byte {
            0 => Ok(Kind::Message),
            1 => Ok(Kind::Output),
            2 => Ok(Kind::Ack),
            3 => Ok(Kind::Resume),
            kind => Err(WireError::UnknownKind { kind }),
        }
    }
}

/// Why a byte stream cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("frame of {length} bytes is beyond the limit of {MAX_FRAME}")]
    TooLong { length: usize },
    #[error("frame of unknown kind {kind}")]
    UnknownKind { kind: u8 },
    #[error("frame is empty")]
    Empty,
    #[error("message cannot be decoded")]
    Decode(#[source] postcard::Error),
    #[error("message cannot be encoded")]
    Encode(#[source] postcard::Error),
    #[error("frame {got} came in place of {expected}")]
    Gap { expected: u64, got: u64 },
    #[error("frame of session {got:x} in session {expected:x}")]
    OtherSession { expected: u64, got: u64 },
    #[error("the peer has acknowledged frame {got}, but {sent} is the last that was sent")]
    AckOfUnsent { sent: u64, got: u64 },
    #[error("the peer has forgotten frames after {got}, although it has acknowledged {acked}")]
    Forgotten { acked: u64, got: u64 },
    #[error("the session cannot go on over another stream: frames that the peer may lack were not kept")]
    NotRetained,
    #[error("frame of kind {kind} where the session does not allow it")]
    OutOfPlace { kind: u8 },
}

/// Session, sequence and acknowledgement of a frame: needed to resume after a broken connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Header {
    pub session: u64,
    /// The number of this frame in its direction, from 1.
    pub seq: u64,
    /// The last frame of the other direction that the sender has received.
    pub ack: u64,
}

/// The source of the bytes of an output frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OutputHead {
    pub worker: WorkerId,
    pub stream: Stream,
    /// When the agent read them, since the Unix epoch.
    pub at: Duration,
    /// The agent has more of this stream: a pause does not mean that the ranks are silent.
    pub more: bool,
}

/// A frame as it was received.
#[derive(Debug)]
pub enum Frame<'a, M> {
    Message(M),
    Output(OutputHead, &'a [u8]),
}

/// Makes a frame in `out`, which is cleared. `follows` bytes come after it on the stream, and belong to it.
pub(crate) fn encode<M: Serialize>(
    kind: Kind,
    header: Header,
    body: &M,
    follows: usize,
    out: &mut Vec<u8>,
) -> Result<(), WireError> {
    let mut bytes = std::mem::take(out);
    bytes.clear();
    bytes.extend_from_slice(&[0, 0, 0, 0, kind as u8]);
    bytes = postcard::to_extend(&(header, body), bytes).map_err(WireError::Encode)?;
    let length = bytes.len() - 4 + follows;
    if length > MAX_FRAME {
        return Err(WireError::TooLong { length });
    }
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    *out = bytes;
    Ok(())
}

/// A frame before its body is decoded.
#[derive(Debug)]
pub(crate) struct Cut {
    pub(crate) kind: Kind,
    pub(crate) header: Header,
    /// Where in the decoder's buffer the body is.
    body: std::ops::Range<usize>,
    /// The length of the whole frame.
    pub(crate) length: usize,
}

/// Cuts the frames of one direction out of a byte stream.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    buffer: Vec<u8>,
    /// Received bytes that are not decoded yet.
    start: usize,
    end: usize,
    /// The room that the last read was offered, and how much the next is.
    offered: usize,
    step: usize,
}

/// The least room for a read. A front has a decoder for each of a thousand nodes, of which most send a message now and then.
const STEP_LEAST: usize = 4 * 1024;
/// The room grows by this factor when a read has filled it, and shrinks by it when most of it was not needed.
const STEP_FACTOR: usize = 8;

impl Decoder {
    /// Room for the next read: up to `most` bytes, less where little has come lately.
    pub(crate) fn room_up_to(&mut self, most: usize) -> &mut [u8] {
        self.offered = self.step.max(STEP_LEAST).min(most);
        self.room(self.offered)
    }

    /// Room for `size` bytes. [`Decoder::filled`] says how much of it was filled.
    pub(crate) fn room(&mut self, size: usize) -> &mut [u8] {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.buffer.len() < self.end + size {
            self.buffer.resize(self.end + size, 0);
        }
        &mut self.buffer[self.end..self.end + size]
    }

    /// The first `read` bytes of the room were filled.
    pub(crate) fn filled(&mut self, read: usize) {
        self.end = (self.end + read).min(self.buffer.len());
        if read == self.offered {
            self.step = read * STEP_FACTOR;
        } else if read < self.offered / STEP_FACTOR {
            self.step = self.offered / STEP_FACTOR;
        }
    }

    /// Frees a buffer that is empty and larger than the next read needs.
    fn shrink(&mut self) {
        if self.start == self.end && self.buffer.len() > self.step.max(STEP_LEAST) {
            (self.start, self.end, self.buffer) = (0, 0, Vec::new());
        }
    }

    /// Bytes that were received and are not decoded.
    pub(crate) fn open_bytes(&self) -> usize {
        self.end - self.start
    }

    /// Drops what was received.
    pub(crate) fn clear(&mut self) {
        *self = Decoder::default();
    }

    /// The next whole frame, if it has arrived.
    pub(crate) fn cut(&mut self) -> Result<Option<Cut>, WireError> {
        let available = &self.buffer[self.start..self.end];
        let Some(length) = available.first_chunk::<4>() else {
            self.shrink();
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_FRAME {
            return Err(WireError::TooLong { length });
        }
        let Some(frame) = available.get(4..4 + length) else {
            return Ok(None);
        };
        let (&kind, rest) = frame.split_first().ok_or(WireError::Empty)?;
        let kind = Kind::of(kind)?;
        let (header, body): (Header, &[u8]) = postcard::take_from_bytes(rest).map_err(WireError::Decode)?;
        let end = self.start + 4 + length;
        let body = end - body.len()..end;
        self.start = end;
        Ok(Some(Cut { kind, header, body, length: 4 + length }))
    }

    /// The message or output in a frame. Call it before reading or decoding anything else.
    pub(crate) fn open<M: DeserializeOwned>(&self, cut: &Cut) -> Result<Frame<'_, M>, WireError> {
        let body = &self.buffer[cut.body.clone()];
        match cut.kind {
            Kind::Message => Ok(Frame::Message(postcard::from_bytes(body).map_err(WireError::Decode)?)),
            Kind::Output => {
                let (head, bytes) = postcard::take_from_bytes(body).map_err(WireError::Decode)?;
                Ok(Frame::Output(head, bytes))
            }
            Kind::Ack | Kind::Resume => Err(WireError::OutOfPlace { kind: cut.kind as u8 }),
        }
    }
}
