//! The stdin of ranks that get it from the front: its own, or what those type who have attached to a detached job.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;

use rankrun_core::job::{ClientId, StdinTarget};
use rankrun_core::{NodeId, Rank};
use rankrun_sys::poll::Waker;

use super::Front;
use crate::Plan;
use crate::ledger::Entry;
use crate::terminal::{Fate, PieceId, Reader, Stdin, Typed, TypedSoFar};

/// Why somebody who types is refused, and what can be done.
type Refusal = (&'static str, &'static str);

const NO_STDIN: Refusal =
    ("its ranks have no stdin that could be given", "start it with --detach --stdin RANK, or --stdin all");
const IS_OVER: Refusal = ("the stdin of its ranks has ended", "somebody has typed ^D, or has given a file to its end");
const IS_GONE: Refusal = ("the rank that reads stdin has ended", "\"rankrun status\" says how");
const NO_ROOM: Refusal = ("too many others type already", "try again when the ranks have read that");
const NO_BYTES: Refusal = ("a character of the text is no byte", "write bytes as U+0000 to U+00FF");
const LONG_NAME: Refusal = ("the name of who types is too long", "64 bytes are enough");
/// The longest name of somebody who types.
const MOST_NAME: usize = 64;

/// Where the ranks get their stdin from, if that is the front.
pub(super) fn of(plan: &Plan, waker: &Waker) -> io::Result<Option<Stdin>> {
    let is_sent = match plan.spec.io.stdin {
        StdinTarget::None | StdinTarget::Shared => false,
        StdinTarget::Rank(rank) => plan.is_detached || !is_here(plan, rank),
        StdinTarget::All => true,
    };
    if !is_sent {
        return Ok(None);
    }
    Ok(Some(match plan.is_detached {
        true => Stdin::Typed(Typed::new(waker.clone())),
        false => Stdin::Read(Reader::start(waker.clone())?),
    }))
}

/// Whether a rank runs on this machine.
fn is_here(plan: &Plan, rank: Rank) -> bool {
    let place = plan.spec.map.place(rank);
    place.and_then(|place| plan.hosts.targets.get(place.node.index())).is_some_and(|target| plan.hosts.is_here(target))
}

impl Front {
    /// The next piece goes to the ranks, if they are there and have read the last one.
    pub(super) fn hand_on_stdin(&mut self) {
        if self.stdin.is_none() || !self.job.takes_stdin() {
            return;
        }
        self.refuse_late_typists();
        let (piece, id) = match &mut self.stdin {
            None => return,
            Some(Stdin::Read(reader)) => {
                let Some(piece) = reader.next() else { return };
                if let Err(error) = piece {
                    let why = rankrun_sys::reason(&error.into());
                    self.note(format!("cannot read stdin: {why}: the ranks get its end"));
                }
                (piece.unwrap_or_default(), None)
            }
            Some(Stdin::Typed(typed)) => {
                let Some(next) = typed.next() else { return };
                next
            }
        };
        let now = self.now();
        let piece = Some(piece).filter(|piece| !piece.is_empty());
        let is_end = piece.is_none();
        let mut to = self.reach.send_stdin(&self.job, now, piece);
        let Some(Stdin::Typed(typed)) = &mut self.stdin else { return };
        if is_end {
            // Nobody reports that it was read.
            to.clear();
        }
        if let Some(ledger) = &mut self.ledger {
            ledger.add(&Entry::Typed { id: id.as_ref().map(Cow::Borrowed), to });
        }
        typed.give(id);
        if is_end {
            self.want_stdin(true);
        }
    }

    /// The ranks of a node have read what they were sent, or have all closed their stdin.
    pub(super) fn stdin_taken(&mut self, node: NodeId, is_read: bool) {
        self.reach.stdin_taken(node, is_read);
        if let (Some(Stdin::Typed(_)), Some(ledger)) = (&self.stdin, &mut self.ledger) {
            ledger.add(&Entry::Taken(node));
        }
    }

    /// All ranks may have read the last piece, or those be lost that have not.
    pub(super) fn look_at_stdin(&mut self) {
        if self.stdin.is_some()
            && let Some(is_read) = self.reach.take_stdin_read()
        {
            self.want_stdin(is_read);
        }
    }

    /// `is_read`: somebody has read the last piece.
    fn want_stdin(&mut self, is_read: bool) {
        let read = match &mut self.stdin {
            None => None,
            Some(Stdin::Read(reader)) => {
                reader.want_more();
                None
            }
            Some(Stdin::Typed(typed)) => typed.want_more(),
        };
        self.answer_typist(read, is_read);
    }

    /// Another attempt begins.
    pub(super) fn begin_stdin(&mut self) {
        let is_owed = self.reach.forget_stdin();
        let read = match &mut self.stdin {
            None => None,
            Some(Stdin::Read(reader)) => {
                reader.begin_attempt(is_owed);
                None
            }
            Some(Stdin::Typed(typed)) => typed.begin_attempt(),
        };
        self.answer_typist(read, true);
    }

    /// This front takes the place of another one, which has given this to the ranks; those of these nodes have not read all of it.
    pub(super) fn resume_stdin(&mut self, so_far: TypedSoFar, owed: BTreeSet<NodeId>) {
        if let Some(Stdin::Typed(typed)) = &mut self.stdin {
            typed.resume(so_far, !owed.is_empty());
            self.reach.owe_stdin(owed);
        }
    }

    /// Somebody has typed this; `None`: the end.
    pub(super) fn typed(&mut self, client: ClientId, from: &str, number: u64, text: Option<&str>) {
        let now = self.now();
        let bytes: Option<Vec<u8>> = text.unwrap_or_default().chars().map(|char| u8::try_from(char).ok()).collect();
        let id = PieceId { from: from.to_owned(), number, is_end: text.is_none() };
        let result = match (&mut self.stdin, bytes) {
            (None | Some(Stdin::Read(_)), _) => Err(NO_STDIN),
            (_, None) => Err(NO_BYTES),
            _ if from.len() > MOST_NAME => Err(LONG_NAME),
            (Some(Stdin::Typed(typed)), Some(bytes)) => match typed.accept(client, id, bytes) {
                Fate::Waits => return self.control.await_input(client),
                Fate::MayType if self.job.gone_reader().is_some() => Err(IS_GONE),
                Fate::Read | Fate::MayType => Ok(true),
                Fate::IsOver => Err(IS_OVER),
                Fate::NoRoom => Err(NO_ROOM),
            },
        };
        self.control.answer_input(now, client, result);
    }

    /// Somebody who has typed is gone.
    pub(super) fn forget_typist(&mut self, client: ClientId) {
        if let Some(Stdin::Typed(typed)) = &mut self.stdin {
            typed.forget(client);
        }
    }

    /// The ranks have read what this client has typed, or it was for nobody.
    fn answer_typist(&mut self, client: Option<ClientId>, is_read: bool) {
        let Some(client) = client else { return };
        let result = match self.job.gone_reader() {
            Some(_) if !is_read => Err(IS_GONE),
            _ => Ok(is_read),
        };
        let now = self.now();
        self.control.answer_input(now, client, result);
    }

    /// Nobody reads any more what some have typed.
    fn refuse_late_typists(&mut self) {
        let is_gone = self.job.gone_reader().is_some();
        let Some(Stdin::Typed(typed)) = &mut self.stdin else { return };
        let late = typed.too_late(is_gone);
        let now = self.now();
        for client in late {
            self.control.answer_input(now, client, Err(if is_gone { IS_GONE } else { IS_OVER }));
        }
    }
}
