//! One destination and the row that its cursor is in.
//!
//! A row is finished (the cursor is at the start of the next), *open* (it shows the beginning of a line that its rank has
//! not ended yet, such as a prompt), or *dangling* (it is whole but has no newline, because its stream ended without one).
//!
//! When another line comes while a row is open, ` […]` and a newline end the open row, and its line is shown again as a
//! whole when it ends. So every line is whole in exactly one row, and a row that ends in ` […]` was only a preview of a
//! line to come. The one exception is a line longer than [`MAX_LINE`](crate::MAX_LINE): it is cut into rows; all but the
//! last end in ` […]`, and all but the first begin with `[…] `.

use rankrun_core::{Rank, Stream};

use crate::lines::{End, Line, LineSink};

/// The end of a row that does not have its whole line.
pub const CUT_MARK: &str = " […]";
/// Begins a row that goes on where a cut row ended.
pub const CONTINUED_MARK: &str = "[…] ";

/// The greatest width of a tab, in columns; every other byte takes at most one.
const TAB: usize = 8;

/// One stream of one rank.
pub type Source = (Rank, Stream);

/// The row that the cursor is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Row {
    #[default]
    Start,
    /// It shows the beginning of this source's unfinished line.
    Open(Source),
    Dangling,
}

/// The bytes for one destination.
#[derive(Debug, Default)]
pub(crate) struct Console {
    pub(crate) pending: Vec<u8>,
    /// Whole rows that wait for the next redraw of the status region.
    pub(crate) held: Vec<u8>,
    /// A status region stands below the last row, so rows go to `held`.
    pub(crate) is_held: bool,
    pub(crate) row: Row,
    /// The width of an open row in columns, or more.
    pub(crate) open_width: usize,
}

impl Console {
    /// Where bytes go.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        if self.is_held { &mut self.held } else { &mut self.pending }
    }

    /// Puts the cursor at the start of a row.
    pub(crate) fn start_row(&mut self) {
        match self.row {
            Row::Start => return,
            Row::Open(_) => {
                self.out().extend_from_slice(CUT_MARK.as_bytes());
                self.out().push(b'\n');
            }
            Row::Dangling => self.out().push(b'\n'),
        }
        self.row = Row::Start;
    }

    /// Shows the beginning of an unfinished line.
    pub(crate) fn open_row(&mut self, source: Source, prefix: &[u8], continued: bool, text: &[u8]) {
        self.start_row();
        write_text(self.out(), prefix, continued, text);
        self.row = Row::Open(source);
        self.open_width = prefix.len() + CONTINUED_MARK.len() + width(text);
    }

    /// Adds to the open row.
    pub(crate) fn extend_row(&mut self, text: &[u8]) {
        self.out().extend_from_slice(text);
        self.open_width += width(text);
    }

    /// Ends the open row of this source with the rest of its line, if the row shows the beginning of just this line.
    pub(crate) fn finish_row(&mut self, source: Source, is_tagged: bool, line: Line<'_>) -> bool {
        match line.shown {
            Some(shown) if self.row == Row::Open(source) => {
                self.out().extend_from_slice(&line.text[shown..]);
                self.row = finish(self.out(), is_tagged, line.end);
                true
            }
            _ => false,
        }
    }
}

/// The rows of one source, on their way to a console.
#[derive(Debug)]
pub(crate) struct Rows<'a> {
    pub(crate) console: &'a mut Console,
    pub(crate) source: Source,
    pub(crate) prefix: &'a [u8],
}

impl LineSink for Rows<'_> {
    fn block(&mut self, lines: &[u8]) {
        self.console.start_row();
        write_block(self.console.out(), self.prefix, lines);
    }

    fn line(&mut self, line: Line<'_>) {
        if !self.console.finish_row(self.source, !self.prefix.is_empty(), line) {
            self.console.start_row();
            self.console.row = write_line(self.console.out(), self.prefix, line);
        }
    }
}

/// Appends whole lines, each with its prefix.
pub(crate) fn write_block(out: &mut Vec<u8>, prefix: &[u8], lines: &[u8]) {
    if prefix.is_empty() {
        out.extend_from_slice(lines);
        return;
    }
    let mut begin = 0;
    for end in memchr::memchr_iter(b'\n', lines) {
        write_text(out, prefix, false, &lines[begin..=end]);
        begin = end + 1;
    }
}

/// Appends one line with its prefix and marks. An unterminated last line gets a newline only if it has a prefix.
pub(crate) fn write_line(out: &mut Vec<u8>, prefix: &[u8], line: Line<'_>) -> Row {
    write_text(out, prefix, line.continued, line.text);
    finish(out, !prefix.is_empty(), line.end)
}

/// The width of a text in columns, or more.
fn width(text: &[u8]) -> usize {
    text.len() + TAB * memchr::memchr_iter(b'\t', text).count()
}

fn write_text(out: &mut Vec<u8>, prefix: &[u8], continued: bool, text: &[u8]) {
    out.extend_from_slice(prefix);
    if continued {
        out.extend_from_slice(CONTINUED_MARK.as_bytes());
    }
    match prefix.is_empty() || continued {
        true => out.extend_from_slice(text),
        false => write_after_tag(out, text),
    }
}

/// Appends a line, without what it begins with to have its row empty and the cursor in the first column: its tag is there.
pub(crate) fn write_after_tag(out: &mut Vec<u8>, text: &[u8]) {
    let mut rest = text;
    loop {
        rest = match rest {
            [b'\r' | b'\x08', after @ ..] => after,
            [0x1b, b'[', after @ ..] => {
                let is_parameter = |byte: &&u8| matches!(byte, b'0'..=b'9' | b';' | b'?' | b':');
                let (parameters, after) = after.split_at(after.iter().take_while(is_parameter).count());
                match (parameters, after) {
                    // Erase in line; cursor to a column, by either name; cursor left (ECMA-48, 8.3.41, 9, 57 and 18).
                    (_, [b'K' | b'D', after @ ..]) | (b"" | b"0" | b"1", [b'G' | b'`', after @ ..]) => after,
                    // Colours and modes move nothing.
                    (_, [b'm' | b'h' | b'l', after @ ..]) => {
                        out.extend_from_slice(&rest[..rest.len() - after.len()]);
                        after
                    }
                    _ => break,
                }
            }
            _ => break,
        };
    }
    out.extend_from_slice(rest);
}

fn finish(out: &mut Vec<u8>, is_tagged: bool, end: End) -> Row {
    match end {
        End::Closed if !is_tagged => return Row::Dangling,
        End::Cut => out.extend_from_slice(CUT_MARK.as_bytes()),
        End::Newline | End::Closed => {}
    }
    out.push(b'\n');
    Row::Start
}
