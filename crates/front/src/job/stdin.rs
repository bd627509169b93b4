//! The stdin of ranks that get it from the front: its own, or what those type who have attached to a detached job.

use std::borrow::Cow;
use std::io;

use rankrun_core::job::{ClientId, StdinTarget};
use rankrun_core::{NodeId, Rank};
use rankrun_sys::poll::Waker;

use super::Front;
use crate::Plan;
use crate::ledger::Entry;
use crate::terminal::{Fate, Given, PieceId, Reader, Stdin, Typed};

/// Why somebody who types is refused, and what can be done.
type Refusal = (&'static str, &'static str);

const NO_STDIN: Refusal =
    ("its ranks have no stdin that could be given", "start it with --detach --stdin RANK, or --stdin all");
const IS_OVER: Refusal = ("the stdin of its ranks has ended", "somebody has typed ^D, or has given a file to its end");
const NO_ROOM: Refusal = ("others type already", "try again when the ranks have read that");
const NO_BYTES: Refusal = ("a character of the text is no byte", "write bytes as U+0000 to U+00FF");

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
        if !self.job.has_started() {
            return;
        }
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
        let sent = self.reach.send_stdin(&self.job, now, piece);
        let Some(Stdin::Typed(typed)) = &mut self.stdin else { return };
        // The end is not waited for.
        let is_read = is_end || sent.is_empty();
        let to = if is_end { Vec::new() } else { sent };
        if let Some(ledger) = &mut self.ledger {
            ledger.add(&Entry::Typed { id: id.as_ref().map(Cow::Borrowed), to: to.clone() });
        }
        typed.give(id, to);
        if is_read {
            self.want_stdin();
        }
    }

    /// The ranks of a node have read what they were sent.
    pub(super) fn stdin_taken(&mut self, node: NodeId) {
        let is_all_taken = self.reach.stdin_taken(node);
        if let (Some(Stdin::Typed(_)), Some(ledger)) = (&self.stdin, &mut self.ledger) {
            ledger.add(&Entry::Taken(node));
        }
        if is_all_taken {
            self.want_stdin();
        }
    }

    /// The ranks have read all that they were sent.
    fn want_stdin(&mut self) {
        match &mut self.stdin {
            None => {}
            Some(Stdin::Read(reader)) => reader.want_more(),
            Some(Stdin::Typed(typed)) => {
                let told = typed.want_more();
                self.tell_typists(told);
            }
        }
    }

    /// Another attempt begins.
    pub(super) fn begin_stdin(&mut self) {
        let is_owed = self.reach.forget_stdin();
        match &mut self.stdin {
            None => {}
            Some(Stdin::Read(reader)) => reader.begin_attempt(is_owed),
            Some(Stdin::Typed(typed)) => {
                let told = typed.begin_attempt();
                self.tell_typists(told);
            }
        }
    }

    /// This front takes the place of another one, which has given this to the ranks.
    pub(super) fn stdin_goes_on(&mut self, given: Given) {
        let is_owed = self.reach.owe_stdin(&given.owed);
        if let Some(Stdin::Typed(typed)) = &mut self.stdin {
            typed.go_on(given, is_owed);
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
            (Some(Stdin::Typed(typed)), Some(bytes)) => match typed.take(client, id, bytes) {
                Fate::Waits => return self.control.await_input(client),
                Fate::Read => Ok(()),
                Fate::IsOver => Err(IS_OVER),
                Fate::Refused => Err(NO_ROOM),
            },
        };
        self.control.answer_input(now, client, result);
    }

    /// This one's piece was read. The others come too late.
    fn tell_typists(&mut self, (read, late): (Option<ClientId>, Vec<ClientId>)) {
        let now = self.now();
        if let Some(client) = read {
            self.control.answer_input(now, client, Ok(()));
        }
        for client in late {
            self.control.answer_input(now, client, Err(IS_OVER));
        }
    }
}
