//! The ledger: all that a front is given and has sent, so that another one can take its place (`--on-front-lost wait:TIME`).
//!
//! Nothing leaves a front before it is in the ledger. Each turn of the loop is one record: what the job was given, what other nodes were
//! passed on to, the bytes for the transcript, and for each node where its stream stands. A front that is killed has either recorded a
//! turn, and then its successor does what is left of it; or it has not, and then nobody has seen anything of that turn, and the agents
//! send again what it had read. The file is not synchronised: it outlasts the process, not the machine.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::job::Input;
use rankrun_core::{NodeId, Stream, WorkerId};
use rankrun_wire::{Place, ToFront};
use rustix::fs::{FlockOperation, OFlags};
use serde::{Deserialize, Serialize};

/// The name of the file in the job's directory.
pub(crate) const LEDGER: &str = "ledger";
/// The longest turn that is read: a larger one is not ours.
const TURN_MAX: usize = 1 << 30;
/// A ledger of this size is made shorter; and then again when it has twice the size.
const SIZE: u64 = 64 << 20;
/// The last bytes of the transcript that are kept then, beside what may not be written: what ranks have said last is in them.
const RECORDED: u64 = 16 << 20;
/// A ledger that is still larger then is given up: its end would be the end of the file system.
const MOST: u64 = 1 << 30;

/// A part of a turn.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Entry<'a> {
    /// The job was given this at that time of the front's clock. Output of ranks is [`Entry::Written`].
    Given(Duration, Input<'a>),
    /// A rank has written what the next entry of output has that was recorded for the transcript.
    Written { at: Duration, node: NodeId, worker: WorkerId, stream: Stream, length: u64 },
    /// A node has sent this, which is for other nodes.
    Passed(NodeId, Cow<'a, ToFront>),
    /// In place of what ranks have written earlier and the transcript has: so many bytes of a stream of a node.
    Elided { node: NodeId, stream: Stream, length: u64 },
    /// In place of those bytes of the transcript.
    PassedOver(u64),
    /// The end of the job was told: the report is in the transcript.
    Reported,
    /// The job goes on after a pause. So long it was paused in all.
    Paused(Duration),
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
    path: PathBuf,
    file: File,
    /// The present turn.
    turn: Vec<u8>,
    /// Its size, and that at which it is made shorter.
    size: u64,
    most: u64,
}

impl Ledger {
    /// A new one in the directory of the job.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub(crate) fn create(directory: &Path) -> io::Result<Ledger> {
        let path = directory.join(LEDGER);
        let file = File::options().append(true).create_new(true).mode(0o600).open(&path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Ledger { path, file, turn: Vec::new(), size: 0, most: SIZE })
    }

    /// One that another front has begun: it is read, and then carried on.
    ///
    /// # Errors
    ///
    /// It cannot be read, or that front lives (`WouldBlock`).
    pub(crate) fn open(directory: &Path) -> io::Result<(Ledger, Turns)> {
        let path = directory.join(LEDGER);
        let mut file = plain(File::options().read(true).append(true), &path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let (own, there) = (file.metadata()?, std::fs::metadata(&path)?);
        if (own.dev(), own.ino()) != (there.dev(), there.ino()) {
            // A front that lives has just put a shorter one in its place.
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let turns = Turns { bytes, at: 0 };
        let (mut whole, mut rest) = (0, &turns.bytes[..]);
        while let Some(length) = length_of(rest)? {
            whole += length;
            rest = &rest[length..];
        }
        // The last front was killed while it wrote.
        file.set_len(whole as u64)?;
        let size = whole as u64;
        Ok((Ledger { path, file, turn: Vec::new(), size, most: size.saturating_mul(2).max(SIZE) }, turns))
    }

    /// Adds to the present turn.
    pub(crate) fn add(&mut self, entry: &Entry<'_>) {
        add(&mut self.turn, entry);
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
        close(&mut self.turn);
        self.file.write_all(&self.turn)?;
        self.size += self.turn.len() as u64;
        self.turn.clear();
        if self.size >= self.most { self.shorten() } else { Ok(()) }
    }

    /// Leaves out the output that the transcript has long had, and what the nodes have got.
    fn shorten(&mut self) -> io::Result<()> {
        let bytes = std::fs::read(&self.path)?;
        let part = self.path.with_extension("part");
        let shorter = shorter(&bytes)?;
        // What a front has left that was killed here. It is made again.
        let _ = std::fs::remove_file(&part);
        let mut file = File::options().append(true).create_new(true).mode(0o600).open(&part)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(&shorter)?;
        std::fs::rename(&part, &self.path)?;
        (self.file, self.size) = (file, shorter.len() as u64);
        self.most = self.size.saturating_mul(2).max(SIZE);
        if self.size > MOST { Err(io::Error::other(format!("it has {} bytes", self.size))) } else { Ok(()) }
    }
}

/// Opens a file that a front has left. What somebody has put in its place may be no file, and never answer.
///
/// # Errors
///
/// It cannot be opened, or is no file.
pub(crate) fn plain(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.custom_flags(OFlags::NONBLOCK.bits() as i32 | OFlags::NOFOLLOW.bits() as i32).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other(format!("\"{}\" is no file", path.display()))),
    }
}

/// Adds an entry to a turn.
fn add(turn: &mut Vec<u8>, entry: &Entry<'_>) {
    if turn.is_empty() {
        turn.extend_from_slice(&[0; 8]);
    }
    match postcard::to_extend(entry, std::mem::take(turn)) {
        Ok(longer) => *turn = longer,
        Err(error) => unreachable!("an entry is plain data: {error}"),
    }
}

/// The turn is complete.
fn close(turn: &mut [u8]) {
    let length = turn.len() as u64;
    if let Some(head) = turn.first_chunk_mut() {
        *head = length.to_le_bytes();
    }
}

/// Which part of the transcript may not be written: credit is returned for what ranks have written, in its order.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    /// Of turns whose output was not paid: the end of what was recorded, and how much output there was up to there.
    turns: VecDeque<(u64, u64)>,
    output: u64,
    paid: u64,
    /// All before is written.
    written: u64,
}

impl Unwritten {
    /// Ranks have written so much.
    pub(crate) fn output(&mut self, length: u64) {
        self.output += length;
    }

    /// What was recorded ends here now, after this turn.
    pub(crate) fn recorded(&mut self, position: u64) {
        self.turns.push_back((position, self.output));
    }

    /// Credit was returned for so much.
    pub(crate) fn paid(&mut self, length: u64) {
        self.paid += length;
        while let Some((position, output)) = self.turns.front().copied()
            && output <= self.paid
        {
            self.written = position;
            self.turns.pop_front();
        }
    }

    /// How many of the last bytes before this position are to be kept, and `more` than what may not be written.
    pub(crate) fn kept(&self, position: u64, more: u64) -> u64 {
        (position - self.written.min(position)).saturating_add(more)
    }
}

/// A ledger without the output that has long been written, and without what the nodes have got. Of what ranks have written to stderr all is
/// kept: the job decides by it.
fn shorter(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let (mut recorded, mut acknowledged, mut unwritten) = (0, HashMap::new(), Unwritten::default());
    let mut turns = Turns { bytes: bytes.to_owned(), at: 0 };
    while let Some(entries) = turns.next()? {
        for entry in entries {
            match entry {
                Entry::Recorded(bytes) => {
                    recorded += bytes.len() as u64;
                    unwritten.recorded(recorded);
                }
                Entry::PassedOver(count) => recorded += count,
                Entry::Written { length, .. } | Entry::Elided { length, .. } => unwritten.output(length),
                Entry::Paid(_, bytes) => unwritten.paid(bytes),
                Entry::Stands { node, place, .. } => {
                    acknowledged.insert((node, place.session), place.acknowledged);
                }
                _ => {}
            }
        }
    }
    let old = recorded.saturating_sub(unwritten.kept(recorded, RECORDED));
    let (mut shorter, mut turn, mut at) = (Vec::new(), Vec::new(), 0);
    turns.at = 0;
    while let Some(entries) = turns.next()? {
        let here: u64 =
            entries.iter().map(|entry| if let Entry::Recorded(bytes) = entry { bytes.len() as u64 } else { 0 }).sum();
        at += here;
        let has_stderr = entries.iter().any(|entry| matches!(entry, Entry::Written { stream: Stream::Stderr, .. }));
        let is_old = at < old && !has_stderr;
        for entry in entries {
            match entry {
                Entry::Written { node, stream, length, .. } if is_old => {
                    add(&mut turn, &Entry::Elided { node, stream, length });
                }
                Entry::Recorded(bytes) if is_old => add(&mut turn, &Entry::PassedOver(bytes.len() as u64)),
                Entry::PassedOver(count) => {
                    at += count;
                    add(&mut turn, &entry);
                }
                Entry::Stands { node, place, .. }
                    if acknowledged.get(&(node, place.session)).is_some_and(|has| place.sent <= *has) =>
                {
                    add(&mut turn, &Entry::Stands { node, place, sent: &[] });
                }
                entry => add(&mut turn, &entry),
            }
        }
        close(&mut turn);
        shorter.append(&mut turn);
    }
    Ok(shorter)
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
                io::Error::new(io::ErrorKind::InvalidData, format!("the ledger has no entry at its place: {error}"))
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
    fn a_shorter_ledger_has_the_same_sums_and_the_last_output() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut ledger = Ledger::create(directory.path()).expect("it can be made");
        ledger.most = 3 * RECORDED;
        let (mut sent, mut count) = (0, 0);
        let worker = WorkerId { rank: rankrun_core::Rank(3), attempt: rankrun_core::Attempt(0) };
        while count * 100_000 < 8 * RECORDED {
            ledger.add(&Entry::Written {
                at: Duration::ZERO,
                node: NodeId(1),
                worker,
                stream: Stream::Stdout,
                length: 99_990,
            });
            ledger.add(&Entry::Recorded(&[count as u8; 100_000]));
            ledger.add(&Entry::Paid(Stream::Stdout, 99_990));
            sent += 1000;
            let place = Place {
                session: NonZeroU64::MIN,
                sent,
                acknowledged: sent - 1000,
                received: count,
                frames: (count, 0),
            };
            ledger.add(&Entry::Stands { node: NodeId(1), place, sent: &[1; 1000] });
            ledger.write().expect("it can be written");
            count += 1;
        }
        let size = std::fs::metadata(&ledger.path).expect("a file").len();
        assert!(size < 4 * RECORDED, "{size}");
        drop(ledger);
        let (_ledger, mut turns) = Ledger::open(directory.path()).expect("it can be read");
        let (mut recorded, mut kept, mut written, mut paid, mut last) = (0, 0, 0, 0, 0);
        while let Some(entries) = turns.next().expect("turns") {
            for entry in entries {
                match entry {
                    Entry::Recorded(bytes) => (recorded, kept) = (recorded + bytes.len(), kept + bytes.len()),
                    Entry::PassedOver(count) => recorded += count as usize,
                    Entry::Written { length, .. } | Entry::Elided { length, .. } => written += length,
                    Entry::Paid(_, bytes) => paid += bytes,
                    Entry::Stands { place, sent, .. } => {
                        assert!(sent.len() == 1000 || place.sent < size, "{place:?}");
                        last = place.sent;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(
            (recorded as u64, written, paid, last),
            (100_000 * count, 99_990 * count, 99_990 * count, 1000 * count)
        );
        assert!(kept as u64 >= RECORDED, "{kept}");
    }

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
