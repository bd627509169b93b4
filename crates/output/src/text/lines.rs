//! Lines out of chunks.
//!
//! A [`LineBuffer`] takes the bytes of one stream as they come and hands out whole lines. What a `\r` overwrites is
//! dropped, as on a terminal: `10%\r20%\r100%\n` is the line `100%`. `\r\n` is an ordinary end of line.

use memchr::{memchr, memchr_iter, memrchr};

use crate::block::{self, Block, Control, Found, ROW_MOST};

/// The longest line that is never cut, without its newline, in bytes. A longer one would have to be in memory as a
/// whole, for every rank at once.
pub const MAX_LINE: usize = 1 << 20;

/// Takes the lines of one stream.
pub(crate) trait LineSink {
    /// Whole lines, each with its `\n`, without any `\r`. Not empty.
    fn block(&mut self, lines: &[u8]);

    /// One line, or a piece of one that is too long.
    fn line(&mut self, line: Line<'_>);
}

/// One line, or a piece of one that is too long, without its newline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    pub(crate) text: &'a [u8],
    /// The text goes on where a cut piece ended.
    pub(crate) continued: bool,
    pub(crate) end: End,
    /// How many bytes of the text were shown as an unfinished row, if they were.
    pub(crate) shown: Option<usize>,
}

/// What ended a [`Line`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Newline,
    /// It was too long.
    Cut,
    /// The stream has ended.
    Closed,
}

/// The unfinished line of one stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineBuffer {
    text: Vec<u8>,
    /// A `\r` followed the text: what comes next overwrites it, unless it is a newline.
    returned: bool,
    /// Something was overwritten since the line began.
    progress: bool,
    continued: bool,
    shown: Option<usize>,
    /// Rows that overwrite themselves, instead of the text.
    block: Option<Box<Block>>,
    /// The beginning of a control sequence.
    sequence: Vec<u8>,
}

impl LineBuffer {
    /// The text of the unfinished line, as a terminal would show it.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Whether the unfinished line overwrites itself, as progress bars do.
    pub(crate) fn is_progress(&self) -> bool {
        self.progress || self.returned || self.block.is_some()
    }

    /// Whether nothing is to be shown of it.
    pub(crate) fn is_empty(&self) -> bool {
        match &self.block {
            Some(block) => block.rows().next().is_none(),
            None => self.text.is_empty(),
        }
    }

    /// What a terminal shows of it, row by row.
    pub(crate) fn rows(&self) -> Vec<&[u8]> {
        match &self.block {
            Some(block) => block.rows().collect(),
            None => vec![&self.text],
        }
    }

    /// Whether it has several rows, and all have ended.
    pub(crate) fn has_ended_rows(&self) -> bool {
        self.block.as_ref().is_some_and(|block| block.is_ended())
    }

    pub(crate) fn is_continued(&self) -> bool {
        self.continued
    }

    /// How many bytes of the text have been shown as an unfinished row; `None` if it was overwritten since.
    pub(crate) fn shown(&self) -> Option<usize> {
        self.shown
    }

    /// All of the text is now in an unfinished row.
    pub(crate) fn mark_shown(&mut self) {
        self.shown = Some(self.text.len());
    }

    /// Empties it. Returns the bytes that make another one show what this one has, and has not shown.
    pub(crate) fn take_unshown(&mut self) -> Vec<u8> {
        let LineBuffer { mut text, returned, shown, block, sequence, .. } = std::mem::take(self);
        if let Some(block) = block {
            text = block.rows().collect::<Vec<_>>().join(&b'\n');
        } else {
            text.drain(..shown.unwrap_or(0).min(text.len()));
        }
        if returned {
            text.push(b'\r');
        }
        text.extend_from_slice(&sequence);
        text
    }

    /// The bytes that make another one show what this one has.
    pub(crate) fn unfinished(&self) -> Vec<u8> {
        LineBuffer { shown: None, ..self.clone() }.take_unshown()
    }

    /// Adds bytes of the stream.
    pub(crate) fn feed(&mut self, bytes: &[u8], sink: &mut (impl LineSink + ?Sized)) {
        if self.block.is_none() && self.sequence.is_empty() && memchr(0x1b, bytes).is_none() {
            return self.feed_lines(bytes, sink);
        }
        let joined;
        let mut bytes = bytes;
        if !self.sequence.is_empty() {
            joined = [std::mem::take(&mut self.sequence).as_slice(), bytes].concat();
            bytes = &joined;
        }
        loop {
            match block::find(bytes, self.block.is_some()) {
                Found::Nothing => return self.feed_text(bytes, sink),
                Found::Incomplete(at) => {
                    self.feed_text(&bytes[..at], sink);
                    self.sequence.extend_from_slice(&bytes[at..]);
                    return;
                }
                Found::Control(at, length, control) => {
                    self.feed_text(&bytes[..at], sink);
                    self.control(control, sink);
                    bytes = &bytes[at + length..];
                }
            }
        }
    }

    /// Adds text without control sequences that concern blocks.
    fn feed_text(&mut self, bytes: &[u8], sink: &mut (impl LineSink + ?Sized)) {
        match &mut self.block {
            None => self.feed_lines(bytes, sink),
            Some(block) => {
                if block.write(bytes, sink) {
                    self.end_block(sink);
                }
            }
        }
    }

    fn control(&mut self, control: Control, sink: &mut (impl LineSink + ?Sized)) {
        if self.block.is_none() && control == Control::Return {
            // As `\r`, except that a prompt may begin with it, and is no progress bar.
            self.returned |= !self.text.is_empty();
            return;
        }
        if self.block.is_none() {
            if self.continued || self.shown.is_some() || self.text.len() > ROW_MOST {
                // It is partly in a row already.
                self.end(End::Newline, sink);
            }
            let block = Block::new(std::mem::take(&mut self.text), std::mem::take(&mut self.returned));
            self.block = Some(Box::new(block));
        }
        if self.block.as_mut().is_some_and(|block| block.control(control)) {
            self.end_block(sink);
        }
    }

    /// The rows become lines; the last of them is the unfinished line.
    pub(crate) fn end_block(&mut self, sink: &mut (impl LineSink + ?Sized)) {
        if let Some((text, returned)) = self.block.take().and_then(|block| block.end(sink)) {
            (self.text, self.returned) = (text, returned);
        }
    }

    fn feed_lines(&mut self, bytes: &[u8], sink: &mut (impl LineSink + ?Sized)) {
        let Some(last) = memrchr(b'\n', bytes) else {
            self.push(bytes, sink);
            return;
        };
        let (mut whole, rest) = bytes.split_at(last + 1);
        if self.is_begun()
            && let Some(end) = memchr(b'\n', whole)
        {
            self.push(&whole[..end], sink);
            self.end(End::Newline, sink);
            whole = &whole[end + 1..];
        }
        if whole.len() <= MAX_LINE && memchr(b'\r', whole).is_none() {
            if !whole.is_empty() {
                sink.block(whole);
            }
        } else {
            let mut begin = 0;
            for end in memchr_iter(b'\n', whole) {
                self.push(&whole[begin..end], sink);
                self.end(End::Newline, sink);
                begin = end + 1;
            }
        }
        self.push(rest, sink);
    }

    /// The stream has ended: returns the unterminated last line, if there is one.
    pub(crate) fn close(&mut self, sink: &mut (impl LineSink + ?Sized)) {
        let sequence = std::mem::take(&mut self.sequence);
        self.feed_text(&sequence, sink);
        self.end_block(sink);
        if !self.text.is_empty() {
            self.end(End::Closed, sink);
        }
        *self = LineBuffer::default();
    }

    fn is_begun(&self) -> bool {
        !self.text.is_empty() || self.is_progress() || self.continued
    }

    /// Takes bytes without a newline.
    fn push(&mut self, mut bytes: &[u8], sink: &mut (impl LineSink + ?Sized)) {
        while let Some(end) = memchr(b'\r', bytes) {
            self.extend(&bytes[..end], sink);
            self.returned = true;
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes, sink);
    }

    /// Takes bytes without a newline and without a `\r`.
    fn extend(&mut self, mut bytes: &[u8], sink: &mut (impl LineSink + ?Sized)) {
        if bytes.is_empty() {
            return;
        }
        if self.returned {
            self.text.clear();
            self.shown = None;
            self.returned = false;
            self.progress = true;
        }
        while self.text.len() + bytes.len() > MAX_LINE {
            let (now, later) = bytes.split_at(MAX_LINE - self.text.len());
            self.text.extend_from_slice(now);
            bytes = later;
            self.cut(sink);
        }
        self.text.extend_from_slice(bytes);
    }

    fn cut(&mut self, sink: &mut (impl LineSink + ?Sized)) {
        let is_inside = |at: usize| self.text.get(at).is_some_and(|byte| byte & 0xC0 == 0x80);
        // A UTF-8 sequence has at most three bytes after its first; anything longer is not UTF-8, and is cut anywhere.
        let start = (MAX_LINE - 4..MAX_LINE).rev().find(|at| !is_inside(*at)).unwrap_or(MAX_LINE);
        let is_whole = std::str::from_utf8(&self.text[start..]).is_ok();
        let shown = self.shown.unwrap_or(0);
        let at = if is_whole || start < shown { MAX_LINE } else { start };
        let rest = self.text.split_off(at);
        self.end(End::Cut, sink);
        self.text = rest;
        self.continued = true;
    }

    fn end(&mut self, end: End, sink: &mut (impl LineSink + ?Sized)) {
        sink.line(Line { text: &self.text, continued: self.continued, end, shown: self.shown });
        self.text.clear();
        if self.text.capacity() > RETAINED {
            self.text = Vec::new();
        }
        self.returned = false;
        self.progress = false;
        self.continued = false;
        self.shown = None;
    }
}

/// The buffer that a stream keeps between lines, in bytes: one long line must not cost memory for the rest of the job.
const RETAINED: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines with a letter for their end: `n`ewline, `c`ut, `e`nd of stream.
    #[derive(Default)]
    struct Seen(Vec<(Vec<u8>, char)>);

    impl LineSink for Seen {
        fn block(&mut self, lines: &[u8]) {
            let lines = lines.strip_suffix(b"\n").expect("a block of whole lines");
            self.0.extend(lines.split(|byte| *byte == b'\n').map(|line| (line.to_vec(), 'n')));
        }

        fn line(&mut self, line: Line<'_>) {
            let end = match line.end {
                End::Newline => 'n',
                End::Cut => 'c',
                End::Closed => 'e',
            };
            self.0.push((line.text.to_vec(), end));
        }
    }

    fn lines(chunks: &[&[u8]]) -> Vec<(String, char)> {
        let mut buffer = LineBuffer::default();
        let mut seen = Seen::default();
        for chunk in chunks {
            buffer.feed(chunk, &mut seen);
        }
        buffer.close(&mut seen);
        seen.0.into_iter().map(|(text, end)| (String::from_utf8_lossy(&text).into_owned(), end)).collect()
    }

    fn expect(chunks: &[&[u8]], expected: &[(&str, char)]) {
        let expected: Vec<(String, char)> = expected.iter().map(|(text, end)| ((*text).to_owned(), *end)).collect();
        assert_eq!(lines(chunks), expected);
    }

    #[test]
    fn only_the_last_state_of_a_line_that_overwrites_itself_is_kept() {
        expect(&[b"10%\r20%\r100%\n"], &[("100%", 'n')]);
        expect(&[b"10%\r20", b"%\r", b"100%\r\n"], &[("100%", 'n')]);
        expect(&[b"\r1%", b"\r2%\r"], &[("2%", 'e')]);
        expect(&[b"a\r\r\nb\r", b"\nc\n"], &[("a", 'n'), ("b", 'n'), ("c", 'n')]);
        expect(&[b"\r\n\r", b"\n"], &[("", 'n'), ("", 'n')]);
        expect(&[b"10%\x1b[1G20%\x1b", b"[G\x1b[K30%\n"], &[("\x1b[K30%", 'n')]);
    }

    #[test]
    fn a_line_of_one_mebibyte_is_whole_and_a_longer_one_is_cut_between_characters() {
        let longest = "x".repeat(MAX_LINE);
        expect(&[longest.as_bytes(), b"\n"], &[(&longest, 'n')]);
        expect(&[format!("a\n{longest}\nb\n").as_bytes()], &[("a", 'n'), (&longest, 'n'), ("b", 'n')]);
        let wide = format!("x{}\n", "é".repeat(MAX_LINE / 2));
        let seen = lines(&[wide.as_bytes()]);
        assert_eq!(
            seen.iter().map(|(text, end)| (text.len(), *end)).collect::<Vec<_>>(),
            [(MAX_LINE - 1, 'c'), (2, 'n')]
        );
        let binary = vec![0x80; 3 * MAX_LINE + 5];
        let mut buffer = LineBuffer::default();
        let mut seen = Seen::default();
        buffer.feed(&binary, &mut seen);
        buffer.close(&mut seen);
        assert_eq!(seen.take(), binary);
    }

    impl Seen {
        fn take(self) -> Vec<u8> {
            self.0.into_iter().flat_map(|(text, _)| text).collect()
        }
    }
}
