//! Requests as they are on the wire: an operation's number, then its fields. All numbers are little-endian; a string is
//! its length as `u64`, and its bytes.

/// What a client sends first, behind the number of the operation `VALIDATE`.
pub const MAGIC: u32 = 0x3c85_f7ce;
/// The longest key (torch 2.15, `TCPStoreLibUvBackend.cpp`), as the other limits.
pub const MAX_KEY: usize = 8 << 10;
/// The longest value.
pub const MAX_VALUE: usize = 8 << 20;
/// Keys in one request.
pub const MAX_KEYS: u64 = 128 << 10;

/// What the store may hold: keys, values, and requests that are not finished or not served. Programs exchange addresses and small objects
/// through it; with more, one client would take the memory of the ranks.
pub const MOST: usize = 1 << 30;

/// Why a connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    #[error("does not begin with the magic number of torch's store")]
    NoMagic,
    #[error("there is no operation {0}")]
    UnknownOperation(u8),
    #[error("a key of {0} bytes is longer than {MAX_KEY}")]
    KeyTooLong(u64),
    #[error("a value of {0} bytes is longer than {MAX_VALUE}")]
    ValueTooLong(u64),
    #[error("{0} keys are more than {MAX_KEYS}")]
    TooManyKeys(u64),
    #[error("the store would hold more than {} MiB", MOST >> 20)]
    Full,
    #[error("the value is not a number, or the sum is out of range")]
    NotANumber,
}

/// A request, or the part of one that is served by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request<'a> {
    Validate(u32),
    Ping([u8; 4]),
    Set {
        key: &'a [u8],
        value: &'a [u8],
    },
    CompareSet {
        key: &'a [u8],
        expected: &'a [u8],
        desired: &'a [u8],
    },
    Get {
        key: &'a [u8],
    },
    Add {
        key: &'a [u8],
        delta: i64,
    },
    Check(Keys<'a>),
    Wait(Keys<'a>),
    NumKeys,
    Delete {
        key: &'a [u8],
    },
    Append {
        key: &'a [u8],
        value: &'a [u8],
    },
    MultiGet(Keys<'a>),
    /// The head of it. So many pairs follow, each of which is stored when it is there, as by torch.
    MultiSet {
        pairs: u64,
    },
    CancelWait,
    QueuePush {
        key: &'a [u8],
        value: &'a [u8],
    },
    QueuePop {
        key: &'a [u8],
    },
    QueueLen {
        key: &'a [u8],
    },
    ListKeys,
    Barrier {
        key: &'a [u8],
        world_size: i64,
    },
}

/// A list of keys that has been checked, as it is on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Keys<'a> {
    bytes: &'a [u8],
}

impl<'a> Keys<'a> {
    /// The rest of a list of which some keys were taken.
    pub(crate) fn of_rest(bytes: &'a [u8]) -> Keys<'a> {
        Keys { bytes }
    }

    /// The keys that were not taken.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.bytes.split_first_chunk::<8>()?;
        let (key, rest) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
        self.bytes = rest;
        Some(key)
    }
}

/// What the beginning of a connection's bytes is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parsed<'a> {
    /// A whole request, of so many bytes.
    Whole(Request<'a>, usize),
    /// Not before there are so many bytes can it be more than this.
    Needs(usize),
}

/// How much of a list of keys was looked through before the bytes ended: it is not looked through again.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Seen {
    keys: u64,
    bytes: usize,
}

enum Stop {
    Needs(usize),
    Violation(Violation),
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Stop {
        Stop::Violation(violation)
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Stop> {
        let end = self.at + count;
        let taken = self.bytes.get(self.at..end).ok_or(Stop::Needs(end))?;
        self.at = end;
        Ok(taken)
    }

    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let taken = self.take(N)?;
        Ok(*taken.first_chunk().unwrap_or(&[0; N]))
    }

    fn number(&mut self) -> Result<u64, Stop> {
        Ok(u64::from_le_bytes(self.chunk()?))
    }

    fn signed(&mut self) -> Result<i64, Stop> {
        Ok(i64::from_le_bytes(self.chunk()?))
    }

    fn key(&mut self) -> Result<&'a [u8], Stop> {
        match self.number()? {
            length if length > MAX_KEY as u64 => Err(Violation::KeyTooLong(length).into()),
            length => self.take(length as usize),
        }
    }

    fn value(&mut self) -> Result<&'a [u8], Stop> {
        match self.number()? {
            length if length > MAX_VALUE as u64 => Err(Violation::ValueTooLong(length).into()),
            length => self.take(length as usize),
        }
    }

    fn count(&mut self) -> Result<u64, Stop> {
        match self.number()? {
            count if count > MAX_KEYS => Err(Violation::TooManyKeys(count).into()),
            count => Ok(count),
        }
    }

    fn keys(&mut self, seen: &mut Seen) -> Result<Keys<'a>, Stop> {
        let count = self.count()?;
        let begin = self.at;
        self.at += seen.bytes;
        while seen.keys < count {
            // Each key that follows takes 8 bytes at least.
            let others = 8 * (count - seen.keys - 1) as usize;
            self.key().map_err(|stop| match stop {
                Stop::Needs(end) => Stop::Needs(end + others),
                Stop::Violation(violation) => Stop::Violation(violation),
            })?;
            *seen = Seen { keys: seen.keys + 1, bytes: self.at - begin };
        }
        Ok(Keys { bytes: &self.bytes[begin..self.at] })
    }

    fn request(&mut self, seen: &mut Seen) -> Result<Request<'a>, Stop> {
        let [operation] = self.chunk()?;
        Ok(match operation {
            0 => Request::Validate(u32::from_le_bytes(self.chunk()?)),
            1 => Request::Set { key: self.key()?, value: self.value()? },
            2 => Request::CompareSet { key: self.key()?, expected: self.value()?, desired: self.value()? },
            3 => Request::Get { key: self.key()? },
            4 => Request::Add { key: self.key()?, delta: self.signed()? },
            5 => Request::Check(self.keys(seen)?),
            6 => Request::Wait(self.keys(seen)?),
            7 => Request::NumKeys,
            8 => Request::Delete { key: self.key()? },
            9 => Request::Append { key: self.key()?, value: self.value()? },
            10 => Request::MultiGet(self.keys(seen)?),
            11 => Request::MultiSet { pairs: self.count()? },
            12 => Request::CancelWait,
            13 => Request::Ping(self.chunk()?),
            14 => Request::QueuePush { key: self.key()?, value: self.value()? },
            15 => Request::QueuePop { key: self.key()? },
            16 => Request::QueueLen { key: self.key()? },
            17 => Request::ListKeys,
            18 => Request::Barrier { key: self.key()?, world_size: self.signed()? },
            unknown => return Err(Violation::UnknownOperation(unknown).into()),
        })
    }
}

/// Reads one request from the beginning of `bytes`; within the pairs of a `MULTI_SET`, one pair.
pub(crate) fn parse<'a>(bytes: &'a [u8], in_pairs: bool, seen: &mut Seen) -> Result<Parsed<'a>, Violation> {
    let mut reader = Reader { bytes, at: 0 };
    let request = match in_pairs {
        true => reader.key().and_then(|key| Ok(Request::Set { key, value: reader.value()? })),
        false => reader.request(seen),
    };
    match request {
        Ok(request) => {
            *seen = Seen::default();
            Ok(Parsed::Whole(request, reader.at))
        }
        Err(Stop::Needs(count)) => Ok(Parsed::Needs(count)),
        Err(Stop::Violation(violation)) => Err(violation),
    }
}
