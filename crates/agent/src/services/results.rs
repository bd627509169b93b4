//! How much of the ranks' results (`rankrun.launch`) is on its way to the files of the front, and which clients wait for that.
//!
//! A result may be larger than the memory of this process and of the front, and its destination slow. So a node has a limited room for what
//! is not written: while it is full, clients that send results are not read, and wait in `send`. Of each that is read, one read may go
//! beyond it.

use std::collections::VecDeque;

use rankrun_core::result::{RESULTS_ROOM, ResultPiece};

/// The room of a node.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// What the front has not reported as written.
    unwritten: u64,
    /// The clients that are not read, in the order in which they had to wait.
    waiting: VecDeque<usize>,
    /// Nobody takes results any more: they are read and forgotten.
    is_unlimited: bool,
}

impl Room {
    /// A piece is on its way.
    pub(super) fn take(&mut self, piece: &ResultPiece) {
        self.unwritten = self.unwritten.saturating_add(piece.cost());
    }

    pub(super) fn is_full(&self) -> bool {
        !self.is_unlimited && self.unwritten >= RESULTS_ROOM
    }

    /// A client is not read until there is room.
    pub(super) fn wait(&mut self, client: usize) {
        self.waiting.push_back(client);
    }

    /// The front has written, or dropped, so much. Returns the clients that are to be read again, in the order in which they have waited.
    /// With many clients it is not worth to wake them for a few bytes.
    pub(super) fn written(&mut self, cost: u64) -> VecDeque<usize> {
        self.unwritten = self.unwritten.saturating_sub(cost);
        if self.unwritten <= RESULTS_ROOM / 2 { std::mem::take(&mut self.waiting) } else { VecDeque::new() }
    }

    /// The front is lost. Returns the clients that are to be read again.
    pub(super) fn lift(&mut self) -> VecDeque<usize> {
        self.is_unlimited = true;
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(length: usize) -> ResultPiece {
        ResultPiece { is_error: false, data: "A".repeat(length), is_first: false, is_last: false }
    }

    #[test]
    fn clients_wait_while_the_room_is_full_and_go_on_in_their_order() {
        let mut room = Room::default();
        let piece = piece((RESULTS_ROOM / 4 - piece(0).cost()) as usize);
        for _ in 0..4 {
            assert!(!room.is_full());
            room.take(&piece);
        }
        assert!(room.is_full());
        room.wait(7);
        room.wait(3);
        assert!(room.written(piece.cost()).is_empty());
        assert!(!room.is_full(), "one that does not wait yet may send");
        assert_eq!(room.written(piece.cost()), [7, 3]);
        assert!(room.written(u64::MAX).is_empty());
        assert_eq!(room.unwritten, 0);
    }

    #[test]
    fn pieces_without_a_text_fill_the_room_too() {
        let mut room = Room::default();
        let empty = piece(0);
        let mut taken = 0;
        while !room.is_full() {
            room.take(&empty);
            taken += 1;
        }
        assert!(taken < 10_000, "{taken}");
    }

    #[test]
    fn without_a_front_nobody_waits() {
        let mut room = Room::default();
        room.take(&piece(2 * RESULTS_ROOM as usize));
        room.wait(1);
        assert!(room.is_full());
        assert_eq!(room.lift(), [1]);
        assert!(!room.is_full());
    }
}
