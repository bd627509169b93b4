//! Stdin that comes from those who have attached to the job (`rankrun attach --stdin`), piece by piece. Whoever types gets an answer when the
//! ranks have read the piece, and sends the next one then: each of them has at most one piece here.
//!
//! Another front that takes the place of this one resumes with what this one has given to the ranks ([`TypedSoFar`]). A piece that comes again
//! is not given again.

use std::collections::VecDeque;

use rankrun_core::job::ClientId;
use rankrun_sys::poll::Waker;
use serde::{Deserialize, Serialize};

/// The most pieces that wait, and the most of those who type whose last pieces are known.
const MOST: usize = 64;

/// What somebody has typed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PieceId {
    /// Who: a name of their choice.
    pub(crate) from: String,
    /// Each piece of theirs has a higher number.
    pub(crate) number: u64,
    /// The piece is the end of stdin.
    pub(crate) is_end: bool,
}

/// What the ranks have been given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct TypedSoFar {
    /// The last pieces, the latest at the end.
    last: VecDeque<PieceId>,
    is_at_end: bool,
    /// The present attempt is still to be told the end.
    tells_end: bool,
}

impl TypedSoFar {
    /// The ranks were sent a piece; `None`: the end once more.
    pub(crate) fn give(&mut self, id: Option<PieceId>) {
        let Some(id) = id else {
            self.tells_end = false;
            return;
        };
        self.is_at_end |= id.is_end;
        self.last.retain(|last| last.from != id.from);
        self.last.push_back(id);
        if self.last.len() > MOST {
            self.last.pop_front();
        }
    }

    /// Another attempt begins.
    pub(crate) fn begin_attempt(&mut self) {
        self.tells_end = self.is_at_end;
    }

    /// Whether the ranks were given a piece, or a later one of the same name.
    fn has(&self, id: &PieceId) -> bool {
        self.last.iter().any(|last| last.from == id.from && last.number >= id.number)
    }
}

/// What becomes of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// The answer follows when the ranks have read the piece.
    Waits,
    /// The ranks have read the piece.
    Read,
    /// It was a question, and something can be typed.
    MayType,
    /// The ranks have been given the end already.
    IsOver,
    /// Too many others wait.
    NoRoom,
}

/// The pieces.
#[derive(Debug)]
pub(crate) struct Typed {
    waker: Waker,
    so_far: TypedSoFar,
    waiting: VecDeque<(ClientId, PieceId, Vec<u8>)>,
    /// Whose piece the ranks read.
    reading: Option<ClientId>,
    /// The ranks have read all that they were given.
    is_wanted: bool,
}

impl Typed {
    pub(crate) fn new(waker: Waker) -> Typed {
        let (so_far, waiting) = Default::default();
        Typed { waker, so_far, waiting, reading: None, is_wanted: true }
    }

    /// Resumes where another front was. `is_owed`: ranks still read what that one has given to them.
    pub(crate) fn resume(&mut self, so_far: TypedSoFar, is_owed: bool) {
        (self.so_far, self.is_wanted) = (so_far, !is_owed);
        self.waker.wake();
    }

    /// Somebody has typed this.
    pub(crate) fn accept(&mut self, client: ClientId, id: PieceId, bytes: Vec<u8>) -> Fate {
        if bytes.is_empty() && !id.is_end {
            // A question whether anything is taken.
            return if self.so_far.is_at_end { Fate::IsOver } else { Fate::MayType };
        }
        if self.so_far.last.back() == Some(&id) && !self.is_wanted {
            self.reading = Some(client);
            return Fate::Waits;
        }
        if self.so_far.has(&id) {
            return Fate::Read;
        }
        if self.so_far.is_at_end {
            return Fate::IsOver;
        }
        // Their connection broke, and they have come again.
        self.waiting.retain(|(_, waiting, _)| *waiting != id);
        if self.waiting.len() == MOST {
            return Fate::NoRoom;
        }
        self.waiting.push_back((client, id, bytes));
        self.waker.wake();
        Fate::Waits
    }

    /// A client is gone. What the ranks were not given of it, they are not.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.waiting.retain(|(waiting, ..)| *waiting != client);
        self.reading.take_if(|reading| *reading == client);
    }

    /// The next piece for the ranks, if they want one; without bytes it is the end. Without an id, the end once more.
    pub(crate) fn next(&mut self) -> Option<(Vec<u8>, Option<PieceId>)> {
        if self.so_far.tells_end {
            return Some((Vec::new(), None));
        }
        if !self.is_wanted || self.so_far.is_at_end {
            return None;
        }
        let (client, id, bytes) = self.waiting.pop_front()?;
        (self.reading, self.is_wanted) = (Some(client), false);
        Some((bytes, Some(id)))
    }

    /// The ranks were sent what [`Typed::next`] has returned.
    pub(crate) fn give(&mut self, id: Option<PieceId>) {
        self.so_far.give(id);
    }

    /// The ranks have read the last piece. Returns whose it was.
    pub(crate) fn want_more(&mut self) -> Option<ClientId> {
        self.is_wanted = true;
        self.waker.wake();
        self.reading.take()
    }

    /// Another attempt begins. What the one before has not read, nobody does.
    pub(crate) fn begin_attempt(&mut self) -> Option<ClientId> {
        self.so_far.begin_attempt();
        self.want_more()
    }

    /// Those who wait although nothing of theirs can be given any more, as the end has come, or (`is_gone`) nobody reads.
    pub(crate) fn too_late(&mut self, is_gone: bool) -> Vec<ClientId> {
        if !(is_gone || self.so_far.is_at_end) {
            return Vec::new();
        }
        std::mem::take(&mut self.waiting).into_iter().map(|(client, ..)| client).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ClientId = ClientId(1);
    const TWO: ClientId = ClientId(2);

    fn id(from: &str, number: u64) -> PieceId {
        PieceId { from: from.to_owned(), number, is_end: false }
    }

    fn typed() -> Typed {
        Typed::new(Waker::new().expect("a descriptor"))
    }

    /// Gives the ranks the next piece.
    fn given(typed: &mut Typed) -> Option<String> {
        let (bytes, id) = typed.next()?;
        typed.give(id);
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    #[test]
    fn pieces_are_given_one_after_the_other_and_answered_when_they_are_read() {
        let mut typed = typed();
        assert_eq!(typed.accept(ONE, id("a", 0), Vec::new()), Fate::MayType);
        assert_eq!(typed.accept(ONE, id("a", 1), b"one".to_vec()), Fate::Waits);
        assert_eq!(typed.accept(TWO, id("b", 1), b"two".to_vec()), Fate::Waits);
        assert_eq!(given(&mut typed).as_deref(), Some("one"));
        assert_eq!(given(&mut typed), None);
        assert_eq!(typed.want_more(), Some(ONE));
        assert_eq!(given(&mut typed).as_deref(), Some("two"));
        // The ranks that were to read it are gone.
        assert_eq!(typed.begin_attempt(), Some(TWO));
        assert_eq!(given(&mut typed), None);
    }

    #[test]
    fn a_piece_that_comes_again_is_given_once() {
        let mut first = typed();
        assert_eq!(first.accept(ONE, id("a", 1), b"one".to_vec()), Fate::Waits);
        assert_eq!(first.accept(TWO, id("a", 1), b"one".to_vec()), Fate::Waits, "its connection broke");
        assert_eq!(given(&mut first).as_deref(), Some("one"));
        assert_eq!(given(&mut first), None);
        // To another front, before the ranks have read it and after.
        let mut second = typed();
        second.resume(first.so_far.clone(), true);
        assert_eq!(second.accept(ONE, id("a", 1), b"one".to_vec()), Fate::Waits);
        assert_eq!(given(&mut second), None);
        assert_eq!(second.want_more(), Some(ONE));
        assert_eq!(second.accept(ONE, id("a", 1), b"one".to_vec()), Fate::Read);
        assert_eq!(second.accept(ONE, id("a", 2), b"two".to_vec()), Fate::Waits);
        assert_eq!(given(&mut second).as_deref(), Some("two"));
    }

    #[test]
    fn the_end_belongs_to_the_job() {
        let mut typed = typed();
        let end = PieceId { is_end: true, ..id("a", 1) };
        assert_eq!(typed.accept(ONE, end.clone(), Vec::new()), Fate::Waits);
        assert_eq!(typed.accept(TWO, id("b", 1), b"late".to_vec()), Fate::Waits);
        assert_eq!(given(&mut typed).as_deref(), Some(""));
        assert_eq!(typed.too_late(false), [TWO]);
        assert_eq!(typed.want_more(), Some(ONE));
        assert_eq!(typed.accept(TWO, id("c", 0), Vec::new()), Fate::IsOver, "it asks whether it may type");
        assert_eq!(typed.accept(ONE, end, Vec::new()), Fate::Read);
        assert_eq!(typed.accept(TWO, id("b", 2), b"later".to_vec()), Fate::IsOver);
        assert_eq!(given(&mut typed), None);
        typed.begin_attempt();
        // Another front is to tell it too, if this one has not.
        let mut other = self::typed();
        other.resume(typed.so_far.clone(), false);
        assert_eq!((given(&mut other).as_deref(), given(&mut other)), (Some(""), None));
        assert_eq!((given(&mut typed).as_deref(), given(&mut typed)), (Some(""), None));
    }

    #[test]
    fn what_waits_has_a_bound() {
        let mut typed = typed();
        for number in 0..MOST as u64 {
            assert_eq!(typed.accept(ONE, id("a", number + 1), vec![1]), Fate::Waits);
        }
        assert_eq!(typed.accept(TWO, id("b", 1), vec![1]), Fate::NoRoom);
        // What those have typed who are gone is not waited for.
        typed.forget(ONE);
        assert_eq!(typed.accept(TWO, id("b", 1), vec![1]), Fate::Waits);
        assert_eq!(typed.too_late(false), []);
        assert_eq!(typed.too_late(true), [TWO]);
    }
}
