//! What the agent sends to the guard: records over a pipe. When one of the two ends, the pipe is closed.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rankrun_core::Attempt;
use rankrun_core::job::CleanShm;
use rankrun_core::lease::TICK;
use rankrun_sys::socket;

use super::note::GuardNote;

/// The bytes of a record: its kind, three that are zero, and milliseconds (little-endian).
pub(crate) const RECORD: usize = 8;

/// What a record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    /// The agent's loop is running; the time since the last message from the front.
    Alive { front_silent: Duration },
    /// Processes that are left when the agent ends were released (`--descendants leave`).
    Leave,
    /// Processes that are left when the agent ends could not be killed within the time limit.
    GivenUp,
    /// The job's cgroup has been made under the name that was agreed on.
    Cgroup,
    /// An attempt begins, and what becomes of the shared memory that it leaves.
    Begin { attempt: Attempt, clean_shm: CleanShm },
    /// The agent has looked through /dev/shm after the attempt.
    Looked,
    /// This child of the agent is rankrun's own: it reads the user's files, and may stay in state D.
    Reader { pid: i32 },
}

impl Word {
    fn encode(self) -> [u8; RECORD] {
        let (kind, number) = match self {
            Word::Alive { front_silent } => (b'a', front_silent.as_millis().min(u128::from(u32::MAX)) as u32),
            Word::Leave => (b'l', 0),
            Word::GivenUp => (b'g', 0),
            Word::Cgroup => (b'c', 0),
            Word::Begin { attempt, clean_shm: CleanShm::Job } => (b's', attempt.0),
            Word::Begin { attempt, clean_shm: CleanShm::List } => (b'i', attempt.0),
            Word::Begin { attempt, clean_shm: CleanShm::No } => (b'n', attempt.0),
            Word::Looked => (b'd', 0),
            Word::Reader { pid } => (b'r', pid.unsigned_abs()),
        };
        let [a, b, c, d] = number.to_le_bytes();
        [kind, 0, 0, 0, a, b, c, d]
    }

    /// `None` for anything that no agent sends.
    pub(crate) fn decode(record: &[u8]) -> Option<Word> {
        let [kind, 0, 0, 0, a, b, c, d] = *record.first_chunk::<RECORD>()? else { return None };
        let number = u32::from_le_bytes([a, b, c, d]);
        let begin = |clean_shm| Some(Word::Begin { attempt: Attempt(number), clean_shm });
        match kind {
            b'a' => Some(Word::Alive { front_silent: Duration::from_millis(number.into()) }),
            b'l' => Some(Word::Leave),
            b'g' => Some(Word::GivenUp),
            b'c' => Some(Word::Cgroup),
            b's' => begin(CleanShm::Job),
            b'i' => begin(CleanShm::List),
            b'n' => begin(CleanShm::No),
            b'd' => Some(Word::Looked),
            b'r' => Some(Word::Reader { pid: i32::try_from(number).ok()? }),
            _ => None,
        }
    }
}

/// The agent's end.
#[derive(Debug)]
pub(crate) struct Lease {
    pipe: OwnedFd,
    /// Whoever outlives guard and agent reads it.
    note: GuardNote,
    next: Cell<Instant>,
    last_from_front: Cell<Instant>,
}

impl Lease {
    /// The pipe: the agent's end and the guard's.
    pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
        let (guard, agent) = socket::pipe_without_waits()?;
        Ok((agent, guard))
    }

    pub(super) fn new(pipe: OwnedFd, note: GuardNote) -> Lease {
        let now = Instant::now();
        Lease { pipe, note, next: Cell::new(now), last_from_front: Cell::new(now) }
    }

    /// An attempt begins, and what becomes of the shared memory that it leaves. The guard reads its records at each tick; the note says it at
    /// once.
    pub(crate) fn begin(&self, attempt: Attempt, clean_shm: CleanShm) {
        self.note.begin(attempt, clean_shm);
        self.send(Word::Begin { attempt, clean_shm });
    }

    /// Renews the lease if that is due. Cheap: called in every turn of the loop, and inside long operations.
    pub(crate) fn renew(&self) {
        let now = Instant::now();
        if now >= self.next.get() {
            self.send(Word::Alive { front_silent: now.duration_since(self.last_from_front.get()) });
            self.next.set(now + TICK);
        }
    }

    /// How long until the next renewal.
    pub(crate) fn due_in(&self) -> Duration {
        self.next.get().saturating_duration_since(Instant::now())
    }

    /// The front has sent a message: it is alive.
    pub(crate) fn front_is_alive(&self) {
        self.last_from_front.set(Instant::now());
    }

    pub(crate) fn send(&self, word: Word) {
        // A full pipe means that the guard is stopped with a thousand renewals unread, or gone.
        let _ = rustix::io::write(&self.pipe, &word.encode());
    }
}

impl AsFd for Lease {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_their_encoding_and_others_are_passed_over() {
        let words = [
            Word::Alive { front_silent: Duration::from_millis(70_000) },
            Word::Leave,
            Word::GivenUp,
            Word::Cgroup,
            Word::Begin { attempt: Attempt(3), clean_shm: CleanShm::Job },
            Word::Begin { attempt: Attempt(0), clean_shm: CleanShm::List },
            Word::Begin { attempt: Attempt(70_000), clean_shm: CleanShm::No },
            Word::Looked,
            Word::Reader { pid: 4_194_304 },
        ];
        for word in words {
            assert_eq!(Word::decode(&word.encode()), Some(word));
        }
        assert_eq!(Word::decode(b"x\0\0\0\0\0\0\0"), None);
        assert_eq!(Word::decode(b"a\0\0"), None);
    }
}
