//! The ledger: all that a front is given and has sent, so that another one can take its place (`--on-front-lost wait:TIME`).
//!
//! Nothing leaves a front before it is in the ledger. Each turn of the loop is one record: what the job was given, what other nodes were
//! passed on to, the bytes for the transcript, and for each node where its stream stands. A front that is killed has either recorded a
//! turn, and then its successor does what is left of it; or it has not, and then nobody has seen anything of that turn, and the agents
//! send again what it had read. The file is not synchronised: it outlasts the process, not the machine.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::num::NonZeroU64;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::debts::Debts;
use rankrun_core::job::Input;
use rankrun_core::roster;
use rankrun_core::{NodeId, Rank, Stream, WorkerId};
use rankrun_wire::identity::PublicKey;
use rankrun_wire::{Place, ToFront};
use rustix::fs::{FlockOperation, OFlags};
use serde::{Deserialize, Serialize};

use crate::terminal::PieceId;

/// The name of the file in the job's directory.
pub(crate) const LEDGER: &str = "ledger";
/// The longest turn that is read: a larger one is not ours.
const TURN_MAX: usize = 1 << 30;
/// A ledger of this size is made shorter; and then again when it has twice the size.
const SIZE: u64 = 64 << 20;
/// The last bytes of the transcript that are kept then, beside what may not be written: what ranks have said last is in them.
const RECORDED: u64 = 16 << 20;
/// The last bytes of stdout of each rank that are kept then: as many as the job decides by.
const LAST_WORDS: u64 = 16 << 10;
/// Old turns become one of this size.
const TURN_LEAST: usize = 1 << 16;
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
    /// A step of Slurm runs as this process.
    Srun { step: usize, pid: i32, started: u64 },
    /// These nodes were sent what somebody has typed, and report when their ranks have read it. `None`: an attempt was told the end again.
    Typed { id: Option<Cow<'a, PieceId>>, to: BTreeSet<NodeId> },
    /// The ranks of a node have read what was typed.
    Taken(NodeId),
    /// Which nodes have the places of those that join, and how far they have come.
    Enrolled(roster::Changes<PublicKey>),
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
        let shorter = shorter(&bytes, RECORDED)?;
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

/// What the old turns of a ledger come to.
#[derive(Debug, Default)]
struct Old {
    /// Output of nodes that is not paid.
    unpaid: Debts,
    /// By stream: output that the shorter ledger has as it was, and that is not paid there.
    kept: [u64; 2],
    /// By stream: what was paid of that.
    paid: [u64; 2],
    /// Bytes of the transcript.
    recorded: u64,
    /// Where streams stand of which the nodes have all.
    stands: BTreeMap<NodeId, Place>,
}

impl Old {
    fn paid(&mut self, stream: Stream, bytes: u64) {
        let index = stream.index();
        let of_kept = bytes.min(self.kept[index]);
        self.kept[index] -= of_kept;
        self.paid[index] += of_kept;
        // The front that has written the ledger has granted it.
        self.unpaid.paid(stream, bytes - of_kept);
    }

    /// Adds to a turn what it comes to until now.
    fn add(&mut self, turn: &mut Vec<u8>) {
        for stream in Stream::ALL {
            let paid = std::mem::take(&mut self.paid[stream.index()]);
            if paid > 0 {
                add(turn, &Entry::Paid(stream, paid));
            }
            for (node, length) in self.unpaid.take(stream) {
                self.kept[stream.index()] += length;
                add(turn, &Entry::Elided { node, stream, length });
            }
        }
        if self.recorded > 0 {
            add(turn, &Entry::PassedOver(std::mem::take(&mut self.recorded)));
        }
        self.add_stands(turn);
    }

    fn add_stands(&mut self, turn: &mut Vec<u8>) {
        for (node, place) in std::mem::take(&mut self.stands) {
            add(turn, &Entry::Stands { node, place, sent: &[] });
        }
    }
}

/// What a ledger has in all.
#[derive(Debug, Default)]
struct Totals {
    recorded: u64,
    unwritten: Unwritten,
    /// What the nodes have got.
    acknowledged: HashMap<(NodeId, NonZeroU64), u64>,
    /// What ranks have written to stdout.
    stdout: HashMap<Rank, u64>,
}

impl Totals {
    fn of(bytes: &[u8]) -> io::Result<Totals> {
        let mut all = Totals::default();
        let mut turns = Turns { bytes: bytes.to_owned(), at: 0 };
        while let Some(entries) = turns.next()? {
            for entry in entries {
                all.entry(&entry);
            }
        }
        Ok(all)
    }

    fn entry(&mut self, entry: &Entry<'_>) {
        match *entry {
            Entry::Recorded(bytes) => {
                self.recorded += bytes.len() as u64;
                self.unwritten.recorded(self.recorded);
            }
            Entry::PassedOver(count) => self.recorded += count,
            Entry::Written { length, stream, worker, .. } => {
                self.unwritten.output(length);
                if stream == Stream::Stdout {
                    *self.stdout.entry(worker.rank).or_default() += length;
                }
            }
            Entry::Elided { length, .. } => self.unwritten.output(length),
            Entry::Paid(_, bytes) => self.unwritten.paid(bytes),
            Entry::Stands { node, place, .. } => {
                self.acknowledged.insert((node, place.session), place.acknowledged);
            }
            _ => {}
        }
    }
}

/// A ledger without the output that has long been written, and without what the nodes have got. Of what ranks have written to stderr all is
/// kept, and the last of stdout: the job decides by it. `spare`: bytes of the transcript that are kept beside what may not be written.
fn shorter(bytes: &[u8], spare: u64) -> io::Result<Vec<u8>> {
    let Totals { recorded, unwritten, acknowledged, stdout: written } = Totals::of(bytes)?;
    let old = recorded.saturating_sub(unwritten.kept(recorded, spare));
    let (mut shorter, mut turn, mut at) = (Vec::new(), Vec::new(), 0);
    let (mut sums, mut stdout): (Old, HashMap<Rank, u64>) = Default::default();
    let mut turns = Turns { bytes: bytes.to_owned(), at: 0 };
    while let Some(entries) = turns.next()? {
        let mut decides = false;
        for entry in &entries {
            match entry {
                Entry::Recorded(bytes) => at += bytes.len() as u64,
                Entry::PassedOver(count) => at += count,
                Entry::Written { stream: Stream::Stderr, .. } => decides = true,
                Entry::Written { worker, length, .. } => {
                    let so_far = stdout.entry(worker.rank).or_default();
                    *so_far += length;
                    decides |= *so_far + LAST_WORDS > written.get(&worker.rank).copied().unwrap_or_default();
                }
                _ => {}
            }
        }
        let is_old = at < old && !decides;
        if !is_old {
            sums.add(&mut turn);
            // What a turn has written belongs to what it has recorded.
            close(&mut turn);
            shorter.append(&mut turn);
        }
        for entry in entries {
            match entry {
                Entry::Written { node, stream, length, .. } | Entry::Elided { node, stream, length } if is_old => {
                    sums.unpaid.received(node, stream, length);
                }
                Entry::Paid(stream, bytes) if is_old => sums.paid(stream, bytes),
                Entry::Recorded(bytes) if is_old => sums.recorded += bytes.len() as u64,
                Entry::PassedOver(count) if is_old => sums.recorded += count,
                Entry::Stands { node, place, .. }
                    if acknowledged.get(&(node, place.session)).is_some_and(|has| place.sent <= *has) =>
                {
                    sums.stands.insert(node, place);
                }
                // They are about the stream as it stands.
                Entry::Stands { .. } | Entry::Left(_) | Entry::Unlinked(_) => {
                    sums.add_stands(&mut turn);
                    add(&mut turn, &entry);
                }
                entry => {
                    match entry {
                        Entry::Written { stream, length, .. } | Entry::Elided { stream, length, .. } => {
                            sums.kept[stream.index()] += length;
                        }
                        Entry::Paid(stream, bytes) => {
                            let kept = &mut sums.kept[stream.index()];
                            *kept = kept.saturating_sub(bytes);
                        }
                        _ => {}
                    }
                    add(&mut turn, &entry);
                }
            }
        }
        if !is_old || turn.len() >= TURN_LEAST {
            close(&mut turn);
            shorter.append(&mut turn);
        }
    }
    sums.add(&mut turn);
    close(&mut turn);
    shorter.append(&mut turn);
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
    use rankrun_core::Attempt;
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
        assert_eq!((recorded as u64, last), (100_000 * count, 1000 * count));
        assert_eq!(written, paid, "all was paid");
        assert!(written < 99_990 * count / 2, "{written}");
        assert!(kept as u64 >= RECORDED, "{kept}");
    }

    /// What another front makes of a ledger, but for the job itself: what is owed to whom, where the transcript ends, the last streams with
    /// what was sent and not acknowledged, and what the job was given.
    fn comes_to(bytes: &[u8]) -> String {
        let (mut debts, mut position, mut streams, mut given) = (Debts::default(), 0, BTreeMap::new(), Vec::new());
        let mut turns = Turns { bytes: bytes.to_owned(), at: 0 };
        while let Some(entries) = turns.next().expect("turns") {
            let (mut written, mut recorded) = (0, 0);
            for entry in entries {
                match entry {
                    Entry::Given(at, _) => given.push(at),
                    Entry::Written { node, stream, length, .. } => {
                        written += length;
                        debts.received(node, stream, length);
                    }
                    Entry::Elided { node, stream, length } => debts.received(node, stream, length),
                    Entry::Paid(stream, bytes) => drop(debts.paid(stream, bytes)),
                    Entry::Recorded(bytes) => {
                        recorded += bytes.len() as u64;
                        position += bytes.len() as u64;
                    }
                    Entry::PassedOver(count) => position += count,
                    Entry::Stands { node, place, sent } => {
                        let (last, rest): &mut (Place, Vec<u8>) =
                            streams.entry(node).or_insert_with(|| (place, Vec::new()));
                        rest.extend_from_slice(sent);
                        let open = (place.sent - place.acknowledged) as usize;
                        rest.drain(..rest.len().saturating_sub(open));
                        *last = place;
                    }
                    Entry::Unlinked(node) => drop(streams.remove(&node)),
                    other => panic!("{other:?}"),
                }
            }
            assert!(written <= recorded, "output without what was recorded of it");
        }
        format!("{debts:?} {position} {streams:?} {given:?}")
    }

    #[test]
    fn a_shorter_ledger_comes_to_the_same() {
        let mut state = 1u64;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let mut shortened = 0;
        for round in 0..200u64 {
            let (mut bytes, mut turn) = (Vec::new(), Vec::new());
            let (mut unpaid, mut sent, mut acknowledged) = ([0u64; 2], [0u64; 3], [0u64; 3]);
            for number in 0..below(60) + 1 {
                add(&mut turn, &Entry::Given(Duration::from_millis(number), Input::Turn));
                for _ in 0..below(4) {
                    let (node, stream) = (NodeId(below(3) as u32), Stream::ALL[usize::from(below(9) == 0)]);
                    let length = below(9_000) + 1;
                    let worker = WorkerId { rank: Rank(below(4) as u32), attempt: Attempt(0) };
                    add(&mut turn, &Entry::Written { at: Duration::ZERO, node, worker, stream, length });
                    add(&mut turn, &Entry::Recorded(&vec![1; length as usize]));
                    unpaid[stream.index()] += length;
                }
                for stream in Stream::ALL {
                    let paid = below(unpaid[stream.index()] + 1);
                    if paid > 0 {
                        add(&mut turn, &Entry::Paid(stream, paid));
                        unpaid[stream.index()] -= paid;
                    }
                }
                for node in 0..3 {
                    let more = below(20);
                    acknowledged[node] += below(sent[node] - acknowledged[node] + 1);
                    sent[node] += more;
                    let place = Place {
                        session: NonZeroU64::MIN,
                        sent: sent[node],
                        acknowledged: acknowledged[node],
                        received: number,
                        frames: (number, number),
                    };
                    let sent: Vec<u8> = (0..more).map(|byte| (number + byte) as u8).collect();
                    add(&mut turn, &Entry::Stands { node: NodeId(node as u32), place, sent: &sent });
                }
                close(&mut turn);
                bytes.append(&mut turn);
            }
            let once = shorter(&bytes, below(60_000)).expect("a ledger");
            shortened += usize::from(once.len() < bytes.len());
            assert_eq!(comes_to(&once), comes_to(&bytes), "round {round}");
            let twice = shorter(&once, 0).expect("a ledger");
            assert_eq!(comes_to(&twice), comes_to(&bytes), "round {round}, twice");
        }
        assert!(shortened > 150, "{shortened}");
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
