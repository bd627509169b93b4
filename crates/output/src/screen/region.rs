//! The status region: unfinished lines that overwrite themselves, at the bottom of a terminal.
//!
//! The region is below the last row of the console, with the cursor at the end of its own last row. While it is shown,
//! finished lines wait for its next redraw (at most [`INTERVAL`]), so that one write removes it, prints them and draws it
//! again without flicker.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rankrun_core::printable::{columns, printable};
use rankrun_core::{Rank, RankSet};

use crate::console::{Console, Row, Source};

/// Between two redraws: 15 a second.
const INTERVAL: Duration = Duration::from_nanos(1_000_000_000 / 15 + 1);

/// The greatest height, in rows.
const ROWS: usize = 8;

/// When so many bytes of finished lines wait for the next redraw, they are printed without it.
const HELD: usize = 64 * 1024;

/// The region of one console.
#[derive(Debug)]
pub(crate) struct Region {
    rows: u16,
    columns: u16,
    /// The sources of the unfinished lines that are shown.
    entries: BTreeSet<Source>,
    /// The last note of each rank, below them.
    notes: BTreeMap<Rank, String>,
    /// A line of rankrun's own, below them.
    footer: Option<String>,
    /// The height of what is on the screen, in rows, and its bytes.
    drawn_rows: usize,
    drawn: Vec<u8>,
    redrawn: Option<Duration>,
    due: Option<Duration>,
}

impl Region {
    pub(crate) fn new((rows, columns): (u16, u16)) -> Region {
        Region {
            rows,
            columns,
            entries: BTreeSet::new(),
            notes: BTreeMap::new(),
            footer: None,
            drawn_rows: 0,
            drawn: Vec::new(),
            redrawn: None,
            due: None,
        }
    }

    pub(crate) fn resize(&mut self, now: Duration, (rows, columns): (u16, u16)) {
        (self.rows, self.columns) = (rows, columns);
        self.drawn.clear();
        self.schedule(now);
    }

    /// Whether there is, or soon will be, anything in the region.
    pub(crate) fn is_in_use(&self) -> bool {
        !self.entries.is_empty() || !self.notes.is_empty() || self.footer.is_some()
    }

    /// The last note of a rank; `None` removes it.
    pub(crate) fn note(&mut self, now: Duration, rank: Rank, text: Option<&str>) {
        let was = match text {
            Some(text) => self.notes.insert(rank, printable(text).into_owned()),
            None => self.notes.remove(&rank),
        };
        if was.as_deref() != text {
            self.schedule(now);
        }
    }

    /// The line below all others.
    pub(crate) fn foot(&mut self, now: Duration, text: Option<&str>) {
        if self.footer.as_deref() != text {
            self.footer = text.map(str::to_owned);
            self.schedule(now);
        }
    }

    /// Ranks with the same note share a row.
    fn note_rows(&self) -> Vec<String> {
        let mut rows: Vec<(&str, Vec<Rank>)> = Vec::new();
        for (rank, text) in &self.notes {
            match rows.iter_mut().find(|(known, _)| known == text) {
                Some((_, ranks)) => ranks.push(*rank),
                None => rows.push((text, vec![*rank])),
            }
        }
        rows.into_iter().map(|(text, ranks)| format!("[{}] {text}", RankSet::of(ranks))).collect()
    }

    pub(crate) fn contains(&self, source: Source) -> bool {
        self.entries.contains(&source)
    }

    /// The unfinished line of this source is new or has changed.
    pub(crate) fn show(&mut self, now: Duration, source: Source) {
        self.entries.insert(source);
        self.schedule(now);
    }

    /// The unfinished line of this source is removed from the region.
    pub(crate) fn hide(&mut self, now: Duration, source: Source) {
        if self.entries.remove(&source) {
            self.schedule(now);
        }
    }

    pub(crate) fn hide_all(&mut self) {
        self.entries.clear();
        self.notes.clear();
        self.footer = None;
    }

    /// Removes the region from the screen. The next redraw shows it again, wherever the cursor is then.
    pub(crate) fn withdraw(&mut self, now: Duration, console: &mut Console) {
        self.erase(console);
        self.drawn.clear();
        if self.is_in_use() {
            self.schedule(now);
        }
    }

    pub(crate) fn due(&self) -> Option<Duration> {
        self.due
    }

    /// The console got bytes: schedules the redraw that prints them.
    pub(crate) fn schedule_redraw(&mut self, now: Duration, console: &mut Console) {
        if !console.is_held || console.held.is_empty() {
            return;
        }
        if console.held.len() >= HELD {
            self.erase(console);
        }
        self.schedule(now);
    }

    /// Postpones the redraw: the destination is behind.
    pub(crate) fn postpone(&mut self, now: Duration) {
        self.due = Some(now + INTERVAL);
    }

    /// Prints the finished lines that waited, and draws the region again. `rows` returns the rows of a source.
    pub(crate) fn redraw(&mut self, now: Duration, console: &mut Console, rows: impl Fn(Source) -> Vec<Vec<u8>>) {
        self.due = None;
        let height = ROWS.min(usize::from(self.rows).saturating_sub(1)).max(1);
        // The last column stays empty: some terminals wrap as soon as it is written.
        let width = usize::from(self.columns).saturating_sub(1);
        let notes = self.note_rows();
        // The rows of sources that do not fit are not requested.
        let (mut lines, mut more): (Vec<Vec<u8>>, usize) = (Vec::new(), 0);
        for source in &self.entries {
            match lines.len() <= height {
                true => lines.extend(rows(*source)),
                false => more += 1,
            }
        }
        lines.extend(notes.into_iter().chain(self.footer.clone()).map(String::into_bytes));
        let count = lines.len() + more;
        let shown = if count <= height { count } else { height - 1 };
        let mut picture = Vec::new();
        for text in lines.iter().take(shown) {
            clip(text, width, &mut picture);
            picture.extend_from_slice(b"\r\n");
        }
        if shown < count {
            clip(format!("and {} more", count - shown).as_bytes(), width, &mut picture);
        } else {
            picture.truncate(picture.len().saturating_sub(2));
        }
        if picture == self.drawn && console.is_held && console.held.is_empty() {
            return;
        }
        self.erase(console);
        if count > 0 {
            if let Row::Open(source) = console.row
                && self.contains(source)
                && console.open_width < usize::from(self.columns)
            {
                console.pending.extend_from_slice(b"\r\x1b[K");
                console.row = Row::Start;
            }
            console.start_row();
            console.pending.extend_from_slice(&picture);
            console.is_held = true;
            self.drawn_rows = shown + usize::from(shown < count);
        }
        self.drawn = picture;
        self.redrawn = Some(now);
    }

    /// Removes the region from the screen and prints the lines that waited.
    fn erase(&mut self, console: &mut Console) {
        if !console.is_held {
            return;
        }
        if self.drawn_rows > 1 {
            console.pending.extend_from_slice(format!("\x1b[{}A", self.drawn_rows - 1).as_bytes());
        }
        console.pending.extend_from_slice(b"\r\x1b[J");
        let Console { pending, held, .. } = console;
        pending.append(held);
        console.is_held = false;
        self.drawn_rows = 0;
    }

    /// The first redraw after a rest waits for one interval, because a `\r` may be half of an end of line.
    fn schedule(&mut self, now: Duration) {
        if self.due.is_none() {
            let next = self.redrawn.map_or(now + INTERVAL, |redrawn| redrawn + INTERVAL);
            self.due = Some(next.max(now));
        }
    }
}

/// Appends as much of a text as fits in so many columns. Colours are kept, other control sequences are left out.
fn clip(text: &[u8], most: usize, out: &mut Vec<u8>) {
    let text = String::from_utf8_lossy(text);
    let mut characters = text.chars();
    let mut used = 0;
    let mut is_colored = false;
    while let Some(character) = characters.next() {
        if character == '\x1b' {
            if let Some(color) = skip_escape(&mut characters) {
                is_colored = true;
                out.extend_from_slice(color.as_bytes());
            }
            continue;
        }
        let character = if character == '\t' { ' ' } else { character };
        let width = columns(character);
        if used + width > most {
            break;
        }
        if !character.is_control() {
            used += width;
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    if is_colored {
        out.extend_from_slice(b"\x1b[0m");
    }
}

/// Skips what follows an ESC, and returns the sequence if all it does is to set colours (SGR).
fn skip_escape<'a>(characters: &mut std::str::Chars<'a>) -> Option<String> {
    let rest: &'a str = characters.as_str();
    match characters.next()? {
        '[' => {
            let last = characters.find(|character| ('@'..='~').contains(character))?;
            let length = rest.len() - characters.as_str().len();
            (last == 'm').then(|| format!("\x1b{}", &rest[..length]))
        }
        ']' => {
            // An operating system command lasts until BEL or ST (ECMA-48 8.3.89).
            let end = characters.find(|character| matches!(character, '\x07' | '\x1b'))?;
            if end == '\x1b' {
                characters.next();
            }
            None
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clipped(text: &str, columns: usize) -> String {
        let mut out = Vec::new();
        clip(text.as_bytes(), columns, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn rows_are_cut_by_columns_and_keep_only_colours() {
        assert_eq!(clipped("abcdef", 4), "abcd");
        assert_eq!(clipped("日本語", 5), "日本");
        assert_eq!(clipped("e\u{301}e\u{301}x", 2), "e\u{301}e\u{301}");
        assert_eq!(clipped("\x1b[2K\x1b[31mab\x1b[5Acd", 3), "\x1b[31mabc\x1b[0m");
        assert_eq!(clipped("\x1b]0;title\x07a\tb\x08c", 9), "a bc");
        assert_eq!(clipped("a\x1b[31", 9), "a");
    }
}
