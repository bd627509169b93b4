//! Makes text of programs safe to print on a terminal.
//!
//! A rank's stdout and stderr are passed on unchanged. In text that rankrun prints itself (headlines, quoted lines, names
//! of processes and files), nothing may move the cursor, set the clipboard, or reorder the text.

use std::borrow::Cow;
use std::fmt::Write;

/// The text with control characters written as escapes, such as `\x1b` or `\u{202e}`.
///
/// Colours (SGR sequences) are left out: programs use them often, and a quotation does not need them.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_control) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        if let Some(length) = color(rest) {
            rest = &rest[length..];
            continue;
        }
        rest = &rest[character.len_utf8()..];
        // Writing into a string does not fail.
        let _ = match character {
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            _ if !is_control(character) => out.write_char(character),
            _ if character.is_ascii() => write!(out, "\\x{:02x}", u32::from(character)),
            _ => write!(out, "\\u{{{:x}}}", u32::from(character)),
        };
    }
    Cow::Owned(out)
}

/// The same for a text of several lines: newlines are kept.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|character| character != '\n' && is_control(character)) {
        return Cow::Borrowed(text);
    }
    let lines: Vec<Cow<'_, str>> = text.split('\n').map(printable).collect();
    Cow::Owned(lines.join("\n"))
}

/// Whether a character controls the terminal, or changes how others are shown.
fn is_control(character: char) -> bool {
    match character {
        '\t' => false,
        // C0, DEL and C1.
        _ if character.is_control() => true,
        // The separators of lines and paragraphs, and the marks, embeddings, overrides and isolates of bidirectional text
        // (UAX #9).
        '\u{2028}' | '\u{2029}' => true,
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        // Annotations and tags are not shown at all.
        '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}' => true,
        _ => false,
    }
}

/// The length of the SGR sequence that a text begins with: `ESC [`, numbers, `m` (ECMA-48, 8.3.117).
fn color(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\x1b[")?;
    let end = parameters.find(|character: char| !matches!(character, '0'..='9' | ';' | ':'))?;
    parameters[end..].starts_with('m').then_some(2 + end + 1)
}

/// The columns that a character takes: 0 for those that combine, 2 for those of East Asia and for emoji. Approximate,
/// by block: an error makes a row slightly short or long.
pub fn columns(character: char) -> usize {
    match u32::from(character) {
        0x0300..=0x036F | 0x1AB0..=0x1AFF | 0x1DC0..=0x1DFF | 0x200B..=0x200F | 0x20D0..=0x20FF => 0,
        0xFE00..=0xFE0F | 0xFE20..=0xFE2F => 0,
        0x1100..=0x115F | 0x2E80..=0x303E | 0x3041..=0xA4CF | 0xA960..=0xA97F | 0xAC00..=0xD7A3 => 2,
        0xF900..=0xFAFF | 0xFE30..=0xFE6F | 0xFF00..=0xFF60 | 0xFFE0..=0xFFE6 => 2,
        0x1F300..=0x1F64F | 0x1F680..=0x1F6FF | 0x1F900..=0x1FAFF | 0x20000..=0x3FFFD => 2,
        _ => 1,
    }
}

/// As much of a text as fits in so many columns, with `…` where it was cut. A tab counts as 8 columns, its maximum.
pub fn fit(text: &str, most: usize) -> Cow<'_, str> {
    let width = |character| if character == '\t' { 8 } else { columns(character) };
    let (mut used, mut kept) = (0, 0);
    for (at, character) in text.char_indices() {
        // Leave a column for the mark.
        if used < most {
            kept = at;
        }
        used += width(character);
        if used > most {
            return Cow::Owned(format!("{}…", &text[..kept]));
        }
    }
    Cow::Borrowed(text)
}

/// A text in lines of so many columns, broken between words. The last of `most` lines has all the rest, however long.
pub fn wrap(text: &str, width: usize, most: usize) -> Vec<&str> {
    let (mut lines, mut rest) = (Vec::new(), text);
    while lines.len() + 1 < most {
        let (mut used, mut space) = (0, None);
        for (at, character) in rest.char_indices() {
            if character == ' ' && at > 0 {
                space = Some(at);
            }
            used += columns(character);
            if used > width {
                break;
            }
        }
        let Some(at) = space.filter(|_| used > width) else { break };
        lines.push(rest[..at].trim_end());
        rest = rest[at..].trim_start();
    }
    lines.push(rest);
    lines
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_sentence_is_broken_between_words() {
        assert_eq!(wrap("", 5, 3), [""]);
        assert_eq!(wrap("ab cd", 5, 3), ["ab cd"]);
        assert_eq!(wrap("ab cd ef gh", 5, 3), ["ab cd", "ef gh"]);
        assert_eq!(wrap("ab cd ef gh ij kl", 5, 2), ["ab cd", "ef gh ij kl"]);
        assert_eq!(wrap("abcdefgh ij", 5, 3), ["abcdefgh ij"]);
        assert_eq!(wrap("\u{4e00}\u{4e00} \u{4e00}", 5, 3), ["\u{4e00}\u{4e00}", "\u{4e00}"]);
    }

    #[test]
    fn plain_text_stays_as_it_is() {
        for text in ["", "ValueError: failure!", "größer, 東京\tok", "\\x1b", "👩‍🔬"] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        for (text, shown) in [
            ("a\x1b]0;title\x07b", r"a\x1b]0;title\x07b"),
            ("\x1b]52;c;cm0gLXJm\x1b\\", r"\x1b]52;c;cm0gLXJm\x1b\"),
            ("\x1b[2J\x1b[1;1Hgone", r"\x1b[2J\x1b[1;1Hgone"),
            ("ok\rbad\nx\x08\x7f\0", r"ok\rbad\nx\x08\x7f\x00"),
            ("\u{9b}2J\u{85}", r"\u{9b}2J\u{85}"),
            ("\u{202e}txet\u{2066}\u{2028}", r"\u{202e}txet\u{2066}\u{2028}"),
            ("\x1b[1;31mred\x1b[0m", "red"),
            ("\x1b[38:2:1:2:3mred\x1b[m", "red"),
            ("\x1b[31", r"\x1b[31"),
            ("\x1b[?1m", r"\x1b[?1m"),
        ] {
            assert_eq!(printable(text), shown, "{text:?}");
        }
    }

    #[test]
    fn the_ends_of_lines_can_be_kept() {
        assert_eq!(printable_lines("a\x07\n\nb\r\n"), "a\\x07\n\nb\\r\n");
        assert!(matches!(printable_lines("a\nb"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_text_is_cut_by_columns() {
        assert_eq!(fit("abcdef", 6), "abcdef");
        assert_eq!(fit("abcdef", 4), "abc…");
        assert_eq!(fit("日本語", 5), "日本…");
        assert_eq!(fit("日本語", 6), "日本語");
        assert_eq!(fit("a\tb", 9), "a…");
    }

    proptest! {
        #[test]
        fn a_cut_text_is_never_wider_than_it_may_be(text in any::<String>(), most in 1usize..40) {
            let text = printable(&text);
            let cut = fit(&text, most);
            let width: usize = cut.chars().map(|character| if character == '\t' { 8 } else { columns(character) }).sum();
            prop_assert!(width <= most, "{cut:?} is {width} wide");
        }

        #[test]
        fn nothing_is_obeyed_afterwards_and_nothing_more_happens_to_it(text in any::<String>()) {
            let once = printable(&text).into_owned();
            prop_assert!(!once.chars().any(is_control));
            prop_assert_eq!(printable(&once), once.as_str());
        }
    }
}
