//! The messages between the agent and its host: `postcard` behind a length (u32, little-endian). Both are the same binary,
//! so that there is no version.

use std::path::PathBuf;

use rankrun_core::{Pid, Rank};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The longest message, in bytes. A fence of 100,000 ranks has some 100 MB.
pub const MAX_MESSAGE: usize = 1 << 29;
/// The length before each message.
const HEAD: usize = 4;

/// From the agent to its host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToHost {
    /// The first message.
    Setup(Box<Setup>),
    /// The leader of a local rank: the process that connects is below it.
    Leader { rank: Rank, pid: Pid },
    /// To the request of that number.
    Answer { id: u64, answer: Answer },
    /// A rank has ended without finalizing, and the job goes on.
    Lost { rank: Rank },
    /// To be answered with `Pong`, after libpmix's thread has done something.
    Ping,
}

/// What a host must know of the job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Setup {
    pub namespace: String,
    /// The directory for libpmix's files and for the ranks' session directories.
    pub directory: PathBuf,
    /// The library that the user named.
    pub library: Option<PathBuf>,
    /// Where the programs of the job are: a library may be beside them.
    pub programs: Vec<PathBuf>,
    /// By rank: node, local rank, index of the command.
    pub ranks: Vec<(u32, u16, u32)>,
    /// By index: the words of the command, and its directory.
    pub apps: Vec<(String, String)>,
    pub nodes: Vec<String>,
    pub node: u32,
    pub oversubscribed: bool,
}

/// From the host to its agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FromHost {
    /// Ranks can connect.
    Ready {
        library: PathBuf,
        version: String,
    },
    /// It cannot serve. It ends after this message.
    Failed {
        reason: String,
    },
    Request {
        id: u64,
        request: Request,
    },
    Pong,
    /// The connection for which it was started is none of a rank's: it waits for the next one.
    NoClient,
    /// After `NoClient`: a rank has connected.
    Client,
}

/// Who takes part in an operation.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Participants {
    All,
    Ranks(Vec<Rank>),
}

/// What a rank asks for. It waits for the [`Answer`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// It has called `PMIx_Init`. `pid`: the process, if it could be found.
    Init {
        rank: Rank,
        pid: Option<Pid>,
    },
    Finalize {
        rank: Rank,
    },
    Abort {
        rank: Rank,
        code: i32,
        message: Option<String>,
    },
    /// All participants of this node are in the fence. `data` is theirs.
    Fence {
        who: Participants,
        data: Vec<u8>,
    },
    /// Data of a rank of another node.
    Fetch {
        of: Rank,
    },
    /// Values as libpmix packs them.
    Publish {
        rank: Rank,
        entries: Vec<(String, Vec<u8>)>,
    },
    /// `wait`: until all keys are there, for so many seconds at most (0: without a limit).
    Lookup {
        rank: Rank,
        keys: Vec<String>,
        wait: Option<u64>,
    },
    Unpublish {
        rank: Rank,
        keys: Vec<String>,
    },
    Spawn {
        rank: Rank,
        commands: Vec<String>,
    },
    Connect {
        who: Participants,
    },
    Disconnect {
        who: Participants,
    },
    /// A group of ranks is made. `data`: of those on this node.
    Group {
        who: Participants,
        wants_context: bool,
        data: Vec<u8>,
    },
}

/// What a rank gets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    Done,
    NotFound,
    NotSupported,
    /// The name is published already.
    Exists,
    TimedOut,
    /// The data of all participants of a fence.
    Data(Vec<u8>),
    /// Publisher, key, value.
    Found(Vec<(Rank, String, Vec<u8>)>),
    Group {
        context: Option<u64>,
        who: Vec<Rank>,
        data: Vec<u8>,
    },
}

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

    #[test]
    fn messages_come_out_as_they_went_in_however_the_bytes_are_cut() {
        let messages = [
            FromHost::Pong,
            FromHost::Request { id: 7, request: Request::Fence { who: Participants::All, data: vec![9; 5000] } },
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
