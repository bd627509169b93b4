//! Stdin that comes from those who have attached to the job (`rankrun attach --stdin`), piece by piece. Whoever types gets an answer when the
//! ranks have read the piece, and sends the next one then: there is never more than one of each.
//!
//! Another front that takes the place of this one goes on with what this one has given to the ranks ([`Given`]). A piece that comes again is
//! not given again.

use std::collections::{BTreeSet, VecDeque};

use rankrun_core::NodeId;
use rankrun_core::job::ClientId;
use rankrun_sys::poll::Waker;
use serde::{Deserialize, Serialize};

/// The most pieces that wait, and the most of those who type whose last pieces are known.
const MOST: usize = 64;
/// The longest name of somebody who types.
const MOST_NAME: usize = 64;

/// What somebody has typed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PieceId {
    /// Who: a name of their choice.
    pub(crate) from: String,
    /// Each piece of theirs has a higher number.
    pub(crate) number: u64,
    /// It is the end of stdin.
    pub(crate) is_end: bool,
}

/// What the ranks have been given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Given {
    /// The last pieces, the latest at the end.
    last: VecDeque<PieceId>,
    is_at_end: bool,
    /// The present attempt is still to be told the end.
    tells_end: bool,
    /// The nodes whose ranks have not read all of it.
    pub(crate) owed: BTreeSet<NodeId>,
}

impl Given {
    /// These nodes were sent a piece; or once more the end, which nobody waits for.
    pub(crate) fn give(&mut self, id: Option<PieceId>, to: Vec<NodeId>) {
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
        self.owed.extend(to);
    }

    /// Another attempt begins. What the one before has not read, nobody does.
    pub(crate) fn begin_attempt(&mut self) {
        self.tells_end = self.is_at_end;
        self.owed.clear();
    }

    /// Whether this piece, or a later one of the same id, was given; and whether it is the very last one.
    fn find(&self, id: &PieceId) -> (bool, bool) {
        let is_last = self.last.back() == Some(id);
        (self.last.iter().any(|last| last.from == id.from && last.number >= id.number), is_last)
    }
}

/// What becomes of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// The answer follows when the ranks have read it.
    Waits,
    /// They have.
    Read,
    /// They have been given the end already.
    IsOver,
    /// Too many others wait, or the name is too long.
    Refused,
}

/// The pieces.
#[derive(Debug)]
pub(crate) struct Typed {
    waker: Waker,
    given: Given,
    waiting: VecDeque<(ClientId, PieceId, Vec<u8>)>,
    /// Whose piece the ranks read.
    reading: Option<ClientId>,
    /// They have read all that they were given.
    is_wanted: bool,
}

impl Typed {
    pub(crate) fn new(waker: Waker) -> Typed {
        let (given, waiting) = Default::default();
        Typed { waker, given, waiting, reading: None, is_wanted: true }
    }

    /// Goes on where another front was. `is_owed`: ranks still read what it has given to them.
    pub(crate) fn go_on(&mut self, given: Given, is_owed: bool) {
        (self.given, self.is_wanted) = (given, !is_owed);
        self.waker.wake();
    }

    /// Somebody has typed this.
    pub(crate) fn take(&mut self, client: ClientId, id: PieceId, bytes: Vec<u8>) -> Fate {
        let is_probe = bytes.is_empty() && !id.is_end;
        match self.given.find(&id) {
            (_, true) if !self.is_wanted => {
                self.reading = Some(client);
                return Fate::Waits;
            }
            (true, _) => return Fate::Read,
            (false, _) if self.given.is_at_end => return Fate::IsOver,
            (false, _) if id.from.len() > MOST_NAME => return Fate::Refused,
            (false, _) if is_probe => return Fate::Read,
            (false, _) => {}
        }
        // Their connection broke, and they have come again.
        self.waiting.retain(|(_, waiting, _)| *waiting != id);
        if self.waiting.len() == MOST {
            return Fate::Refused;
        }
        self.waiting.push_back((client, id, bytes));
        self.waker.wake();
        Fate::Waits
    }

    /// The next piece for the ranks, if they want one; without bytes it is the end.
    pub(crate) fn next(&mut self) -> Option<(Vec<u8>, Option<PieceId>)> {
        if self.given.tells_end {
            return Some((Vec::new(), None));
        }
        if !self.is_wanted || self.given.is_at_end {
            return None;
        }
        let (client, id, bytes) = self.waiting.pop_front()?;
        (self.reading, self.is_wanted) = (Some(client), false);
        Some((bytes, Some(id)))
    }

    /// The ranks of these nodes were sent what [`Typed::next`] has returned.
    pub(crate) fn give(&mut self, id: Option<PieceId>, to: Vec<NodeId>) {
        self.given.give(id, to);
    }

    /// The ranks have read the last piece. Returns who is to be told, and those who wait although the end has come.
    pub(crate) fn want_more(&mut self) -> (Option<ClientId>, Vec<ClientId>) {
        self.is_wanted = true;
        self.given.owed.clear();
        self.waker.wake();
        let late = match self.given.is_at_end {
            true => std::mem::take(&mut self.waiting).into_iter().map(|(client, ..)| client).collect(),
            false => Vec::new(),
        };
        (self.reading.take(), late)
    }

    /// Another attempt begins.
    pub(crate) fn begin_attempt(&mut self) -> (Option<ClientId>, Vec<ClientId>) {
        self.given.begin_attempt();
        self.want_more()
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
        typed.give(id, vec![NodeId(0)]);
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    #[test]
    fn pieces_are_given_one_after_the_other_and_answered_when_they_are_read() {
        let mut typed = typed();
        assert_eq!(typed.take(ONE, id("a", 0), Vec::new()), Fate::Read, "it asks whether it may type");
        assert_eq!(typed.take(ONE, id("a", 1), b"one".to_vec()), Fate::Waits);
        assert_eq!(typed.take(TWO, id("b", 1), b"two".to_vec()), Fate::Waits);
        assert_eq!(given(&mut typed).as_deref(), Some("one"));
        assert_eq!(given(&mut typed), None);
        assert_eq!(typed.want_more(), (Some(ONE), Vec::new()));
        assert_eq!(given(&mut typed).as_deref(), Some("two"));
        // The ranks that were to read it are gone.
        assert_eq!(typed.begin_attempt(), (Some(TWO), Vec::new()));
        assert_eq!(given(&mut typed), None);
    }

    #[test]
    fn a_piece_that_comes_again_is_given_once() {
        let mut first = typed();
        assert_eq!(first.take(ONE, id("a", 1), b"one".to_vec()), Fate::Waits);
        assert_eq!(first.take(TWO, id("a", 1), b"one".to_vec()), Fate::Waits, "its connection broke");
        assert_eq!(given(&mut first).as_deref(), Some("one"));
        assert_eq!(given(&mut first), None);
        // To another front, before the ranks have read it and after.
        let mut second = typed();
        second.go_on(first.given.clone(), true);
        assert_eq!(second.take(ONE, id("a", 1), b"one".to_vec()), Fate::Waits);
        assert_eq!(given(&mut second), None);
        assert_eq!(second.want_more(), (Some(ONE), Vec::new()));
        assert_eq!(second.take(ONE, id("a", 1), b"one".to_vec()), Fate::Read);
        assert_eq!(second.take(ONE, id("a", 2), b"two".to_vec()), Fate::Waits);
        assert_eq!(given(&mut second).as_deref(), Some("two"));
    }

    #[test]
    fn the_end_belongs_to_the_job() {
        let mut typed = typed();
        let end = PieceId { is_end: true, ..id("a", 1) };
        assert_eq!(typed.take(ONE, end.clone(), Vec::new()), Fate::Waits);
        assert_eq!(typed.take(TWO, id("b", 1), b"late".to_vec()), Fate::Waits);
        assert_eq!(given(&mut typed).as_deref(), Some(""));
        assert_eq!(typed.want_more(), (Some(ONE), vec![TWO]));
        assert_eq!(typed.take(ONE, end, Vec::new()), Fate::Read);
        assert_eq!(typed.take(TWO, id("b", 2), b"later".to_vec()), Fate::IsOver);
        assert_eq!(given(&mut typed), None);
        typed.begin_attempt();
        // Another front is to tell it too, if this one has not.
        let mut other = self::typed();
        other.go_on(typed.given.clone(), false);
        assert_eq!((given(&mut other).as_deref(), given(&mut other)), (Some(""), None));
        assert_eq!((given(&mut typed).as_deref(), given(&mut typed)), (Some(""), None));
    }

    #[test]
    fn what_waits_has_a_bound() {
        let mut typed = typed();
        for number in 0..MOST as u64 {
            assert_eq!(typed.take(ONE, id("a", number + 1), vec![1]), Fate::Waits);
        }
        assert_eq!(typed.take(ONE, id("b", 1), vec![1]), Fate::Refused);
        assert_eq!(typed.take(ONE, id(&"n".repeat(MOST_NAME + 1), 1), vec![1]), Fate::Refused);
    }
}
