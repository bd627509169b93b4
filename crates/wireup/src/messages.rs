//! Messages between an agent and a process of its own: `postcard` behind a length (u32, little-endian). Both are the same
//! binary, so that there is no version.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message, in bytes. A fence of 100,000 ranks has some 100 MB.
pub const MAX_MESSAGE: usize = 1 << 29;
/// The length before each message.
const HEAD: usize = 4;

/// Why a message cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    #[error("message of {length} bytes is beyond the limit of {MAX_MESSAGE}")]
    TooLong { length: usize },
    #[error("message cannot be decoded")]
    Decode(#[source] postcard::Error),
    #[error("message cannot be encoded")]
    Encode(#[source] postcard::Error),
}

/// A message as bytes, with its length before it.
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, MessageError> {
    let bytes = postcard::to_extend(message, vec![0; HEAD]).map_err(MessageError::Encode)?;
    let length = bytes.len() - HEAD;
    if length > MAX_MESSAGE {
        return Err(MessageError::TooLong { length });
    }
    let mut bytes = bytes;
    bytes[..HEAD].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(bytes)
}

/// Takes bytes as they come, and gives whole messages.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// Bytes of messages that were taken.
    taken: usize,
}

impl Decoder {
    pub fn received(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message. After an error the stream cannot be read any further.
    pub fn next_message<M: DeserializeOwned>(&mut self) -> Result<Option<M>, MessageError> {
        let rest = &self.bytes[self.taken..];
        let Some(head) = rest.first_chunk::<HEAD>() else { return Ok(None) };
        let length = u32::from_le_bytes(*head) as usize;
        if length > MAX_MESSAGE {
            return Err(MessageError::TooLong { length });
        }
        let Some(message) = rest.get(HEAD..HEAD + length) else { return Ok(None) };
        let message = postcard::from_bytes(message).map_err(MessageError::Decode)?;
        self.taken += HEAD + length;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_core::GroupId;

    use crate::pmix::{FromHost, Participants, Request};

    #[test]
    fn messages_come_out_as_they_went_in_however_the_bytes_are_cut() {
        let messages = [
            FromHost::Pong,
            FromHost::Request {
                id: 7,
                request: Request::Fence { who: Participants::all_of(GroupId(0)), data: vec![9; 5000] },
            },
            FromHost::Failed { reason: "no library".to_owned() },
        ];
        let bytes: Vec<u8> = messages.iter().flat_map(|message| encode(message).expect("it is short")).collect();
        for piece in [1, 3, 7, 4096, bytes.len()] {
            let (mut decoder, mut found) = (Decoder::default(), Vec::new());
            for piece in bytes.chunks(piece) {
                decoder.received(piece);
                while let Some(message) = decoder.next_message::<FromHost>().expect("it is whole") {
                    found.push(message);
                }
            }
            assert_eq!(found, messages);
        }
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_its_bytes_come() {
        let mut decoder = Decoder::default();
        decoder.received(&u32::MAX.to_le_bytes());
        assert!(matches!(decoder.next_message::<FromHost>(), Err(MessageError::TooLong { .. })));
        let mut decoder = Decoder::default();
        decoder.received(&[1, 0, 0, 0, 200]);
        assert!(matches!(decoder.next_message::<FromHost>(), Err(MessageError::Decode(_))));
    }
}
