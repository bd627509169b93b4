//! Encodes what one node contributes to a barrier, for the servers of the other nodes.
//!
//! The first byte tells the kind: [`PUTS`], followed by pairs (length of the key as u8, length of the value as u16
//! little-endian, key, value), or [`BROKEN`], followed by a rank (u32 little-endian) that has left the epoch.

use bytes::Bytes;
use rankrun_core::Rank;

use super::{KEYLEN_MAX, VALLEN_MAX};

const PUTS: u8 = 0;
const BROKEN: u8 = 1;
const PAIR_HEADER: usize = 3;

/// Why the contributions do not complete a barrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("rank {0} has left the epoch")]
    Left(Rank),
    #[error("a contribution is unreadable")]
    Unreadable,
}

impl Broken {
    /// The rank that has left, if that is why.
    pub(super) fn left(self) -> Option<Rank> {
        match self {
            Broken::Left(rank) => Some(rank),
            Broken::Unreadable => None,
        }
    }
}

/// Appends one pair. Key and value are within their limits, which their lengths' fields can hold.
pub(super) fn append_pair(pairs: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    debug_assert!(key.len() <= KEYLEN_MAX && value.len() <= VALLEN_MAX);
    pairs.reserve(PAIR_HEADER + key.len() + value.len());
    pairs.push(key.len() as u8);
    pairs.extend_from_slice(&(value.len() as u16).to_le_bytes());
    pairs.extend_from_slice(key);
    pairs.extend_from_slice(value);
}

/// The contribution of puts, from the pairs of each rank.
pub(super) fn puts<'a>(pairs: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut payload = vec![PUTS];
    pairs.for_each(|some| payload.extend_from_slice(some));
    payload
}

/// The contribution that ends an epoch's barriers.
pub(super) fn broken(left: Rank) -> Vec<u8> {
    let mut payload = vec![BROKEN];
    payload.extend_from_slice(&left.number().to_le_bytes());
    payload
}

/// The pairs of a contribution.
pub(super) fn read(payload: Vec<u8>) -> Result<Bytes, Broken> {
    match payload.split_first() {
        Some((&PUTS, _)) => Ok(Bytes::from(payload).slice(1..)),
        Some((&BROKEN, rank)) => {
            let rank = rank.try_into().map_err(|_| Broken::Unreadable)?;
            Err(Broken::Left(Rank(u32::from_le_bytes(rank))))
        }
        Some(_) | None => Err(Broken::Unreadable),
    }
}

/// Takes the first pair off `pairs`; both parts share its memory.
pub(super) fn next_pair(pairs: &mut Bytes) -> Result<Option<(Bytes, Bytes)>, Broken> {
    if pairs.is_empty() {
        return Ok(None);
    }
    let Some(&[key, low, high]) = pairs.first_chunk::<PAIR_HEADER>() else {
        return Err(Broken::Unreadable);
    };
    let (key, value) = (usize::from(key), usize::from(u16::from_le_bytes([low, high])));
    if key > KEYLEN_MAX || value > VALLEN_MAX || pairs.len() < PAIR_HEADER + key + value {
        return Err(Broken::Unreadable);
    }
    let mut pair = pairs.split_to(PAIR_HEADER + key + value).split_off(PAIR_HEADER);
    let key = pair.split_to(key);
    Ok(Some((key, pair)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_come_back_as_they_were_put() {
        let mut pairs = Vec::new();
        append_pair(&mut pairs, b"k", b"v");
        append_pair(&mut pairs, &[b'k'; KEYLEN_MAX], &[b'v'; VALLEN_MAX]);
        append_pair(&mut pairs, b"empty", b"");
        let payload = puts([&pairs[..]].into_iter());
        let mut read = read(payload).expect("puts");
        let mut lengths = Vec::new();
        while let Some((key, value)) = next_pair(&mut read).expect("readable") {
            lengths.push((key.len(), value.len()));
        }
        assert_eq!(lengths, [(1, 1), (KEYLEN_MAX, VALLEN_MAX), (5, 0)]);
        assert_eq!(super::read(broken(Rank(7))), Err(Broken::Left(Rank(7))));
    }

    #[test]
    fn cut_or_foreign_bytes_are_refused() {
        for payload in [&b""[..], b"\x02", b"\x01\x00", b"\x01\x00\x00\x00\x00\x00"] {
            assert_eq!(read(payload.to_vec()), Err(Broken::Unreadable), "{payload:?}");
        }
        for pairs in [&b"\x01"[..], b"\x01\x01\x00k", b"\x41\x00\x00", b"\x00\xff\xff"] {
            assert_eq!(next_pair(&mut Bytes::from_static(pairs)), Err(Broken::Unreadable), "{pairs:?}");
        }
    }
}
