//! Frames: cut from a byte stream, made for one.

use std::time::Duration;

use rankrun_core::{GroupId, Rank, Stream};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The most that a frame may hold. A peer that announces more is refused, so that it cannot make us allocate.
pub const MAX_FRAME: usize = 64 * 1024 * 1024;
/// The most output that one frame carries.
pub const MAX_OUTPUT: usize = 64 * 1024;

const KIND_MESSAGE: u8 = 0;
const KIND_OUTPUT: u8 = 1;

/// Why a byte stream is not ours to understand.
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
    #[error("sequence {got} follows {expected}")]
    Gap { expected: u64, got: u64 },
}

/// Session, sequence and acknowledgement of a frame: what a broken connection needs to be taken up again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Header {
    pub session: u64,
    /// The number of this frame in its direction, from 1.
    pub seq: u64,
    /// The last frame of the other direction that the sender has taken in.
    pub ack: u64,
}

/// Where the bytes of an output frame come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OutputHead {
    pub group: GroupId,
    pub rank: Rank,
    pub stream: Stream,
    /// When the agent read them, since the Unix epoch.
    pub at: Duration,
}

/// A frame as it was received.
#[derive(Debug)]
pub enum Frame<'a, M> {
    Message(M),
    Output(OutputHead, &'a [u8]),
}

/// Makes the frames of one direction.
#[derive(Debug)]
pub struct Encoder {
    session: u64,
    seq: u64,
}

impl Encoder {
    pub fn new(session: u64) -> Encoder {
        Encoder { session, seq: 0 }
    }

    fn header(&mut self, ack: u64) -> Header {
        self.seq += 1;
        Header { session: self.session, seq: self.seq, ack }
    }

    /// Appends a message to `out`. `ack` is the last sequence received from the peer.
    pub fn message<M: Serialize>(&mut self, ack: u64, message: &M, out: &mut Vec<u8>) -> Result<(), WireError> {
        let start = begin(out, KIND_MESSAGE);
        let header = self.header(ack);
        let taken = std::mem::take(out);
        *out = postcard::to_extend(&(header, message), taken).map_err(WireError::Encode)?;
        finish(out, start, 0)
    }

    /// Appends the head of an output frame to `out`; the `length` bytes themselves are to follow on the stream.
    pub fn output(&mut self, ack: u64, head: OutputHead, length: usize, out: &mut Vec<u8>) -> Result<(), WireError> {
        let start = begin(out, KIND_OUTPUT);
        let header = self.header(ack);
        let taken = std::mem::take(out);
        *out = postcard::to_extend(&(header, head), taken).map_err(WireError::Encode)?;
        finish(out, start, length)
    }
}

fn begin(out: &mut Vec<u8>, kind: u8) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind]);
    start
}

fn finish(out: &mut [u8], start: usize, follows: usize) -> Result<(), WireError> {
    let length = out.len() - start - 4 + follows;
    if length > MAX_FRAME {
        return Err(WireError::TooLong { length });
    }
    out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(())
}

/// Cuts the frames of one direction out of a byte stream.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
    seq: u64,
}

impl Decoder {
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// The last sequence that was taken in.
    pub fn received(&self) -> u64 {
        self.seq
    }

    /// Room for the next read of up to `size` bytes; what the read did not fill is given back with [`Decoder::filled`].
    pub fn room(&mut self, size: usize) -> &mut [u8] {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        let length = self.buffer.len();
        self.buffer.resize(length + size, 0);
        &mut self.buffer[length..]
    }

    /// Of the room of `size` bytes, `read` were filled.
    pub fn filled(&mut self, size: usize, read: usize) {
        let length = self.buffer.len() - (size - read);
        self.buffer.truncate(length);
    }

    /// The next whole frame, if it has arrived.
    pub fn next_frame<M: DeserializeOwned>(&mut self) -> Result<Option<Frame<'_, M>>, WireError> {
        let available = &self.buffer[self.start..];
        let Some(length) = available.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_FRAME {
            return Err(WireError::TooLong { length });
        }
        if available.len() < 4 + length {
            return Ok(None);
        }
        let from = self.start + 4;
        self.start = from + length;
        let body = &self.buffer[from..from + length];
        let (&kind, body) = body.split_first().ok_or(WireError::Empty)?;
        let (header, rest): (Header, &[u8]) = postcard::take_from_bytes(body).map_err(WireError::Decode)?;
        if header.seq != self.seq + 1 {
            return Err(WireError::Gap { expected: self.seq + 1, got: header.seq });
        }
        self.seq = header.seq;
        match kind {
            KIND_MESSAGE => Ok(Some(Frame::Message(postcard::from_bytes(rest).map_err(WireError::Decode)?))),
            KIND_OUTPUT => {
                let (head, bytes) = postcard::take_from_bytes(rest).map_err(WireError::Decode)?;
                Ok(Some(Frame::Output(head, bytes)))
            }
            kind => Err(WireError::UnknownKind { kind }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::{Hello, ToFront};

    #[test]
    fn the_bytes_of_the_first_frame_are_fixed() {
        let mut out = Vec::new();
        let hello = ToFront::Hello(Hello { version: 1, release: "0.1.0".to_owned() });
        Encoder::new(5).message(0, &hello, &mut out).expect("a small message");
        assert_eq!(out, [12, 0, 0, 0, 0, 5, 1, 0, 0, 1, 5, b'0', b'.', b'1', b'.', b'0']);
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_it_is_allocated() {
        let mut decoder = Decoder::new();
        decoder.room(4).copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(decoder.next_frame::<ToFront>(), Err(WireError::TooLong { .. })));
    }

    #[test]
    fn a_frame_that_was_lost_is_noticed() {
        let (mut encoder, mut out) = (Encoder::new(1), Vec::new());
        encoder.message(0, &ToFront::Paused, &mut out).expect("a small message");
        let lost = out.len();
        encoder.message(0, &ToFront::Paused, &mut out).expect("a small message");
        let mut decoder = Decoder::new();
        let rest = out.len() - lost;
        decoder.room(rest).copy_from_slice(&out[lost..]);
        assert!(matches!(decoder.next_frame::<ToFront>(), Err(WireError::Gap { expected: 1, got: 2 })));
    }

    proptest! {
        #[test]
        fn frames_survive_any_splitting(
            chunks in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..300)), 1..20),
            step in 1usize..50,
        ) {
            let mut encoder = Encoder::new(9);
            let mut stream = Vec::new();
            let head = OutputHead { group: GroupId(0), rank: Rank(3), stream: Stream::Stderr, at: Duration::from_millis(7) };
            for (is_output, bytes) in &chunks {
                if *is_output {
                    encoder.output(4, head, bytes.len(), &mut stream).expect("within limits");
                    stream.extend_from_slice(bytes);
                } else {
                    encoder.message(4, &ToFront::Note(format!("{bytes:?}")), &mut stream).expect("within limits");
                }
            }
            let mut decoder = Decoder::new();
            let mut seen = Vec::new();
            for piece in stream.chunks(step) {
                let room = decoder.room(100);
                room[..piece.len()].copy_from_slice(piece);
                decoder.filled(100, piece.len());
                while let Some(frame) = decoder.next_frame::<ToFront>().expect("our own frames") {
                    match frame {
                        Frame::Output(got, bytes) => {
                            prop_assert_eq!(got, head);
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
        fn no_bytes_of_a_peer_make_us_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = Decoder::new();
            decoder.room(bytes.len()).copy_from_slice(&bytes);
            while let Ok(Some(_)) = decoder.next_frame::<ToFront>() {}
        }
    }
}
