//! Several rows that overwrite themselves: the bars of programs that move the cursor up (rich, tqdm with positions).
//!
//! A program that hides the cursor, or moves it up, is about to draw such rows. From then on its rows are kept as a
//! terminal would show them. They become lines when the program cannot reach them any more: it redraws only rows below
//! them, shows the cursor again, has ended, or goes on writing without moving up.

use memchr::{memchr, memchr_iter};

use crate::lines::{End, Line, LineSink};

/// Rows that are kept at most.
const ROWS: usize = 64;
/// Bytes of a row: a longer one is no bar.
pub(crate) const ROW_MOST: usize = 4096;
/// A program that has ended so many more lines than it ever moved up draws no bars any more.
const LINES: usize = 16;
/// Bytes of a control sequence whose end may still come.
const SEQUENCE_MOST: usize = 16;

/// The rows.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    rows: Vec<Row>,
    /// The row that the cursor is in.
    at: usize,
    /// The cursor is hidden, so that every row may still be drawn anew.
    is_hidden: bool,
    /// The largest number of rows by which the program has moved up.
    reach: usize,
    /// It has just moved up, and not written since.
    is_rising: bool,
    /// Lines that have ended since it last went up.
    lines: usize,
}

#[derive(Clone, Debug, Default)]
struct Row {
    /// `None`: it came before the block, and is a line already.
    text: Option<Vec<u8>>,
    /// The cursor is at its start: what comes next overwrites it.
    returned: bool,
}

/// A control sequence that concerns blocks (ECMA-48, 8.3; `?25` is DEC's DECTCEM).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Control {
    Up(usize),
    Down(usize),
    /// To the first column.
    Return,
    EraseRow,
    EraseBelow,
    HideCursor,
    ShowCursor,
}

/// What comes next in a text.
pub(crate) enum Found {
    /// A control sequence at this offset, with its length.
    Control(usize, usize, Control),
    /// The beginning of a sequence whose end has not come yet.
    Incomplete(usize),
    Nothing,
}

/// Finds the next control sequence; those that only matter within a block if `in_block`.
pub(crate) fn find(bytes: &[u8], in_block: bool) -> Found {
    let mut from = 0;
    while let Some(found) = memchr(0x1b, &bytes[from..]) {
        let at = from + found;
        let rest = &bytes[at + 1..];
        from = at + 1;
        let Some((b'[', rest)) = rest.split_first().map(|(first, rest)| (*first, rest)) else {
            if rest.is_empty() {
                return Found::Incomplete(at);
            }
            continue;
        };
        let parameters = rest.iter().position(|byte| !matches!(byte, b'0'..=b'9' | b';' | b'?' | b':'));
        let Some(length) = parameters else {
            if bytes.len() - at <= SEQUENCE_MOST {
                return Found::Incomplete(at);
            }
            continue;
        };
        let text = std::str::from_utf8(&rest[..length]).unwrap_or_default();
        let count = || text.parse().unwrap_or(1).clamp(1, ROWS);
        let control = match (rest[length], text) {
            (b'A' | b'F', _) => Some(Control::Up(count())),
            (b'l', "?25") => Some(Control::HideCursor),
            (b'h', "?25") if in_block => Some(Control::ShowCursor),
            (b'B' | b'E', _) if in_block => Some(Control::Down(count())),
            (b'G' | b'`', "" | "0" | "1") => Some(Control::Return),
            (b'K', _) if in_block => Some(Control::EraseRow),
            (b'J', "" | "0") if in_block => Some(Control::EraseBelow),
            _ => None,
        };
        if let Some(control) = control {
            return Found::Control(at, length + 3, control);
        }
    }
    Found::Nothing
}

impl Block {
    /// Begins in the row of an unfinished line.
    pub(crate) fn new(text: Vec<u8>, returned: bool) -> Block {
        let row = Row { text: Some(text), returned };
        Block { rows: vec![row], at: 0, is_hidden: false, reach: 0, is_rising: false, lines: 0 }
    }

    /// The rows as a terminal shows them, without empty ones at the end.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &[u8]> {
        let end = self.rows.iter().rposition(Row::is_written).map_or(0, |last| last + 1);
        self.rows[..end].iter().filter_map(|row| row.text.as_deref())
    }

    /// Whether every row is ended, so that they may be lines like all others.
    pub(crate) fn is_ended(&self) -> bool {
        self.at + 1 == self.rows.len() && !self.rows[self.at].is_written()
    }

    /// Applies a control sequence. Returns whether the block ends with it.
    pub(crate) fn control(&mut self, control: Control) -> bool {
        match control {
            Control::Up(count) => {
                let missing = count.saturating_sub(self.at);
                self.rows.splice(0..0, std::iter::repeat_n(Row::default(), missing));
                self.at = (self.at + missing) - count;
                self.reach = self.reach.max(count).max(self.rows.len() - 1 - self.at);
                self.rows[self.at].returned = true;
                (self.is_rising, self.lines) = (true, 0);
            }
            Control::Down(count) => {
                self.at = (self.at + count).min(self.rows.len() - 1);
                self.rows[self.at].returned = true;
            }
            Control::Return => self.rows[self.at].returned = true,
            Control::EraseRow => {
                let row = &mut self.rows[self.at];
                // The text before the cursor stays when the rest is erased.
                if row.returned && row.text.is_some() {
                    row.text = Some(Vec::new());
                }
            }
            Control::EraseBelow => {
                self.rows.truncate(self.at + 1);
                return self.control(Control::EraseRow);
            }
            Control::HideCursor => self.is_hidden = true,
            Control::ShowCursor => return true,
        }
        false
    }

    /// Adds text. Returns whether the block ends, since this is not one.
    pub(crate) fn write(&mut self, bytes: &[u8], sink: &mut (impl LineSink + ?Sized)) -> bool {
        let mut begin = 0;
        for end in memchr_iter(b'\n', bytes) {
            self.put(&bytes[begin..end], sink);
            self.newline(sink);
            begin = end + 1;
        }
        self.put(&bytes[begin..], sink);
        let is_long = self.rows[self.at].text.as_ref().is_some_and(|text| text.len() > ROW_MOST);
        is_long || self.lines > 2 * self.reach + LINES
    }

    fn put(&mut self, bytes: &[u8], sink: &mut (impl LineSink + ?Sized)) {
        if bytes.is_empty() {
            return;
        }
        if std::mem::take(&mut self.is_rising) {
            self.commit(self.at, sink);
        }
        let row = &mut self.rows[self.at];
        for (at, piece) in bytes.split(|byte| *byte == b'\r').enumerate() {
            row.returned |= at > 0;
            if piece.is_empty() {
                continue;
            }
            if std::mem::take(&mut row.returned) {
                row.text = None;
            }
            row.text.get_or_insert_default().extend_from_slice(piece);
        }
    }

    fn newline(&mut self, sink: &mut (impl LineSink + ?Sized)) {
        self.is_rising = false;
        self.at += 1;
        self.lines += 1;
        match self.rows.get_mut(self.at) {
            Some(row) => row.returned = true,
            None => self.rows.push(Row { text: Some(Vec::new()), returned: false }),
        }
        let most = if self.is_hidden { ROWS } else { self.reach + 1 };
        self.commit(self.rows.len().saturating_sub(most), sink);
    }

    /// The program cannot reach the first rows any more.
    fn commit(&mut self, count: usize, sink: &mut (impl LineSink + ?Sized)) {
        for row in self.rows.drain(..count) {
            row.line(End::Newline, sink);
        }
        self.at = self.at.saturating_sub(count);
    }

    /// All rows but that of the cursor become lines; returns that, if it is the last one.
    pub(crate) fn end(mut self, sink: &mut (impl LineSink + ?Sized)) -> Option<(Vec<u8>, bool)> {
        let is_last = self.at + 1 == self.rows.len();
        let last = if is_last { self.rows.pop() } else { None };
        if !is_last {
            let end = self.rows.iter().rposition(Row::is_written).map_or(0, |last| last + 1);
            self.rows.truncate(end);
        }
        for row in self.rows {
            row.line(End::Newline, sink);
        }
        last.and_then(|row| Some((row.text?, row.returned)))
    }
}

impl Row {
    fn is_written(&self) -> bool {
        self.text.as_ref().is_some_and(|text| !text.is_empty())
    }

    fn line(&self, end: End, sink: &mut (impl LineSink + ?Sized)) {
        if let Some(text) = &self.text {
            sink.line(Line { text, continued: false, end, shown: None });
        }
    }
}
