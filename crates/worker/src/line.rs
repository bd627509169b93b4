//! One line of the protocol: a JSON object in UTF-8.

use std::fmt::Write;
use std::time::Duration;

/// The longest line, with its newline, in bytes.
pub(crate) const MAX_LINE: usize = 65536;
/// The longest text field as it is sent, in bytes. A line has at most six of them.
const MAX_TEXT: usize = 6 * 1024;
/// The longest traceback, likewise.
const MAX_TRACEBACK: usize = 24 * 1024;

/// A line under construction.
pub(crate) struct Line {
    text: String,
}

impl Line {
    pub(crate) fn new(kind: &str) -> Line {
        Line { text: format!("{{\"v\":1,\"type\":\"{kind}\"") }
    }

    pub(crate) fn number(mut self, name: &str, value: i64) -> Line {
        // Writing to a String cannot fail.
        let _ = write!(self.text, ",\"{name}\":{value}");
        self
    }

    /// How long ago it happened.
    pub(crate) fn ago(mut self, time: Duration) -> Line {
        let _ = write!(self.text, ",\"ago\":{:.6}", time.as_secs_f64());
        self
    }

    /// A text field, without its middle if it is very long.
    pub(crate) fn text(self, name: &str, value: &str) -> Line {
        self.cut_text(name, value, MAX_TEXT)
    }

    pub(crate) fn traceback(self, value: &str) -> Line {
        self.cut_text("traceback", value, MAX_TRACEBACK)
    }

    fn cut_text(mut self, name: &str, value: &str, limit: usize) -> Line {
        let _ = write!(self.text, ",\"{name}\":\"");
        if value.chars().map(escaped_len).sum::<usize>() <= limit {
            value.chars().for_each(|character| self.escape(character));
        } else {
            let head = length_within(value.chars(), limit / 2);
            let tail = value.len() - length_within(value.chars().rev(), limit / 2);
            value[..head].chars().for_each(|character| self.escape(character));
            let _ = write!(self.text, "\\n[... {} bytes cut by rankrun ...]\\n", tail - head);
            value[tail..].chars().for_each(|character| self.escape(character));
        }
        self.text.push('"');
        self
    }

    fn escape(&mut self, character: char) {
        match character {
            '"' | '\\' => self.text.extend(['\\', character]),
            control if control < ' ' => {
                let _ = write!(self.text, "\\u{:04x}", u32::from(control));
            }
            plain => self.text.push(plain),
        }
    }

    /// The bytes, with the newline.
    pub(crate) fn end(mut self) -> Vec<u8> {
        self.text.push_str("}\n");
        debug_assert!(self.text.len() <= MAX_LINE, "six texts and a traceback fit");
        self.text.into_bytes()
    }
}

/// How many bytes a character takes in a JSON string.
fn escaped_len(character: char) -> usize {
    match character {
        '"' | '\\' => 2,
        control if control < ' ' => 6,
        plain => plain.len_utf8(),
    }
}

/// How many bytes of text, from where the characters begin, take at most `limit` bytes when they are escaped.
fn length_within(characters: impl Iterator<Item = char>, limit: usize) -> usize {
    let mut escaped = 0;
    let fitting = characters.take_while(|character| {
        escaped += escaped_len(*character);
        escaped <= limit
    });
    fitting.map(char::len_utf8).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        let line = Line::new("note").number("code", -3).text("text", "\"\\\n\u{1}é\u{2028}");
        let line = line.ago(Duration::from_millis(1250)).end();
        assert_eq!(
            String::from_utf8(line).unwrap(),
            "{\"v\":1,\"type\":\"note\",\"code\":-3,\"text\":\"\\\"\\\\\\u000a\\u0001é\u{2028}\",\"ago\":1.250000}\n"
        );
    }

    #[test]
    fn long_texts_lose_their_middle_at_whole_characters() {
        let text = format!("a{}z", "€".repeat(10_000));
        let line = String::from_utf8(Line::new("note").text("text", &text).end()).unwrap();
        assert!(line.len() < MAX_TEXT + 100);
        assert!(line.starts_with("{\"v\":1,\"type\":\"note\",\"text\":\"a€"));
        assert!(line.ends_with("€z\"}\n"));
        assert!(line.contains("€\\n[... 23862 bytes cut by rankrun ...]\\n€"), "{line}");
    }

    #[test]
    fn the_worst_line_fits() {
        let text = "\u{1}".repeat(100_000);
        let line = Line::new("uncaught").text("exception", &text).text("message", &text).text("thread", &text);
        let line = line.text("file", &text).text("function", &text).text("what", &text).traceback(&text).end();
        assert!(line.len() <= MAX_LINE, "{}", line.len());
    }
}
