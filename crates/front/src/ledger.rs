//! The ledger: all that a front is given and has sent, so that another one can take its place (`--on-front-lost wait:TIME`).
//!
//! Nothing leaves a front before it is in the ledger. Each turn of the loop is one record: what the job was given, what other nodes were
//! passed on to, the bytes for the transcript, and for each node where its stream stands. A front that is killed has either recorded a
//! turn, and then its successor does what is left of it; or it has not, and then nobody has seen anything of that turn, and the agents
//! send again what it had read. The file is not synchronised: it outlasts the process, not the machine.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::job::Input;
use rankrun_core::{NodeId, Stream, WorkerId};
use rankrun_wire::{Place, ToFront};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

/// The name of the file in the job's directory.
pub(crate) const LEDGER: &str = "ledger";
/// The longest turn that is read: a larger one is not ours.
const TURN_MAX: usize = 1 << 30;

/// A part of a turn.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Entry<'a> {
    /// The job was given this at that time of the front's clock. Output of ranks is [`Entry::Written`].
    Given(Duration, Input<'a>),
    /// A rank has written what the next entry of output has that was recorded for the transcript.
    Written { at: Duration, node: NodeId, worker: WorkerId, stream: Stream, length: u64 },
    /// A node has sent this, which is for other nodes.
    Passed(NodeId, Cow<'a, ToFront>),
    /// So many bytes of a stream are written: credit was returned for them.
    Paid(Stream, u64),
    /// Bytes of the transcript.
    Recorded(#[serde(with = "slices", borrow)] &'a [u8]),
    /// Where the stream of a node stands after this turn, and what was sent in it.
    Stands {
        node: NodeId,
        place: Place,
        #[serde(with = "slices", borrow)]
        sent: &'a [u8],
    },
    /// The stream of a node is over, or the node is lost.
    Unlinked(NodeId),
    /// What was sent last to a node ends its agent: nothing more is wanted of it.
    Left(NodeId),
}

/// Bytes as a slice of what they are read from.
mod slices {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'de [u8], D::Error> {
        <&[u8]>::deserialize(deserializer)
    }
}

/// A ledger that is being written. It is locked meanwhile: there is one front.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: File,
    /// The present turn.
    turn: Vec<u8>,
}

impl Ledger {
    /// A new one in the directory of the job.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub(crate) fn create(directory: &Path) -> io::Result<Ledger> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let file = File::options().append(true).create_new(true).mode(0o600).open(directory.join(LEDGER))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Ledger { file, turn: Vec::new() })
    }

    /// One that another front has begun: it is read, and then carried on.
    ///
    /// # Errors
    ///
    /// It cannot be read, or that front lives (`WouldBlock`).
    pub(crate) fn open(directory: &Path) -> io::Result<(Ledger, Turns)> {
        let path = directory.join(LEDGER);
        let file = File::options().read(true).append(true).open(&path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let turns = Turns { bytes: std::fs::read(&path)?, at: 0, path };
        let (mut whole, mut rest) = (0, &turns.bytes[..]);
        while let Some(length) = length_of(rest)? {
            whole += length;
            rest = &rest[length..];
        }
        // The last front was killed while it wrote.
        file.set_len(whole as u64)?;
        Ok((Ledger { file, turn: Vec::new() }, turns))
    }

    /// Adds to the present turn.
    pub(crate) fn add(&mut self, entry: &Entry<'_>) {
        if self.turn.is_empty() {
            self.turn.extend_from_slice(&[0; 8]);
        }
        match postcard::to_extend(entry, std::mem::take(&mut self.turn)) {
            Ok(turn) => self.turn = turn,
            Err(error) => unreachable!("an entry is plain data: {error}"),
        }
    }

    /// Writes the present turn.
    ///
    /// # Errors
    ///
    /// It cannot be written, or only a part of it.
    pub(crate) fn write(&mut self) -> io::Result<()> {
        if self.turn.is_empty() {
            return Ok(());
        }
        let length = self.turn.len() as u64;
        self.turn[..8].copy_from_slice(&length.to_le_bytes());
        self.file.write_all(&self.turn)?;
        self.turn.clear();
        Ok(())
    }
}

/// How long the turn is with which these bytes begin. `None`: it is not whole.
fn length_of(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(length) = bytes.first_chunk::<8>() else { return Ok(None) };
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if !(8..=TURN_MAX).contains(&length) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no ledger"));
    }
    Ok((bytes.len() >= length).then_some(length))
}

/// The turns of a ledger.
#[derive(Debug)]
pub(crate) struct Turns {
    path: PathBuf,
    bytes: Vec<u8>,
    at: usize,
}

impl Turns {
    /// The entries of the next turn.
    ///
    /// # Errors
    ///
    /// The file has something else.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<Entry<'_>>>> {
        let rest = &self.bytes[self.at..];
        let Some(length) = length_of(rest)? else { return Ok(None) };
        self.at += length;
        let (mut entries, mut rest) = (Vec::new(), &rest[8..length]);
        while !rest.is_empty() {
            let (entry, after) = postcard::take_from_bytes(rest).map_err(|error| {
                let text = format!("\"{}\" has no entry at its place: {error}", self.path.display());
                io::Error::new(io::ErrorKind::InvalidData, text)
            })?;
            entries.push(entry);
            rest = after;
        }
        Ok(Some(entries))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use rankrun_core::job::Event;

    use super::*;

    #[test]
    fn a_ledger_is_read_up_to_the_last_whole_turn_and_carried_on() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut ledger = Ledger::create(directory.path()).expect("it can be made");
        assert!(Ledger::open(directory.path()).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
        for turn in 0..3u64 {
            ledger.add(&Entry::Given(Duration::from_secs(turn), Input::Event(Cow::Owned(Event::Tick))));
            ledger.add(&Entry::Recorded(&[7; 1000]));
            let place =
                Place { session: NonZeroU64::MIN, sent: 3 * turn, acknowledged: 0, received: turn, frames: (turn, 1) };
            ledger.add(&Entry::Stands { node: NodeId(2), place, sent: b"abc" });
            ledger.write().expect("it can be written");
        }
        drop(ledger);
        let path = directory.path().join(LEDGER);
        let whole = std::fs::read(&path).expect("bytes");
        for cut in [whole.len() - 1, whole.len() - 500, whole.len() * 2 / 3 + 1] {
            std::fs::write(&path, &whole[..cut]).expect("it is cut");
            let (mut ledger, mut turns) = Ledger::open(directory.path()).expect("it can be read");
            let mut count = 0;
            while let Some(entries) = turns.next().expect("turns") {
                let [Entry::Given(at, _), Entry::Recorded(bytes), Entry::Stands { place, sent: b"abc", .. }] =
                    &entries[..]
                else {
                    panic!("{entries:?}")
                };
                assert_eq!((at.as_secs(), bytes.len(), place.received), (count, 1000, count));
                count += 1;
            }
            assert_eq!(count, 2);
            ledger.add(&Entry::Paid(Stream::Stdout, 5));
            ledger.write().expect("it goes on");
            drop(ledger);
            let (_ledger, mut turns) = Ledger::open(directory.path()).expect("it can be read");
            let mut last = None;
            while let Some(entries) = turns.next().expect("turns") {
                last = Some(format!("{entries:?}"));
            }
            assert_eq!(last.as_deref(), Some("[Paid(Stdout, 5)]"));
        }
        std::fs::write(&path, b"something else, which is longer than that").expect("garbage");
        assert!(Ledger::open(directory.path()).is_err());
    }
}
