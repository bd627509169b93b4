//! Parses one line of a request, without copying it.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

/// The `key=value` words of a line. A key without `=` has no value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a> {
    rest: &'a [u8],
}

/// One word of a line, as it was sent: escapes are left in the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: Option<&'a [u8]>,
}

impl<'a> Iterator for Words<'a> {
    type Item = Word<'a>;

    fn next(&mut self) -> Option<Word<'a>> {
        let start = self.rest.iter().position(|byte| *byte != b' ')?;
        let text = &self.rest[start..];
        let end = word_end(text);
        self.rest = &text[end..];
        let word = &text[..end];
        Some(match memchr(b'=', word) {
            Some(equals) => Word { key: &word[..equals], value: Some(&word[equals + 1..]) },
            None => Word { key: word, value: None },
        })
    }
}

/// Where the first word of `text` ends: at a space that no backslash precedes (MPICH 4.2 and later escape so).
fn word_end(text: &[u8]) -> usize {
    let mut at = 0;
    while let Some(found) = memchr2(b' ', b'\\', &text[at..]) {
        at += found;
        if text[at] == b' ' {
            return at;
        }
        at = text.len().min(at + 2);
    }
    text.len()
}

/// A request of one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    line: &'a [u8],
    pub(super) name: &'a [u8],
}

impl<'a> Request<'a> {
    /// Reads a line without its newline; `None` if it holds no `cmd=`.
    pub(super) fn parse(line: &'a [u8]) -> Option<Request<'a>> {
        let name = find(line, b"cmd")?;
        Some(Request { line, name })
    }

    /// The value of a key, as it was sent; of a key that comes twice, the first.
    pub(super) fn get(&self, key: &[u8]) -> Option<&'a [u8]> {
        find(self.line, key)
    }

    /// The value of a key as a number, if it is one.
    pub(super) fn number(&self, key: &[u8]) -> Option<i64> {
        number(self.get(key)?)
    }

    /// The value of a key, as it was sent, with the words behind it that are no `key=value` themselves: clients do not
    /// escape the spaces of a text.
    pub(super) fn text(&self, key: &[u8]) -> Option<&'a [u8]> {
        let mut words = Words { rest: self.line };
        let value = words.by_ref().find(|word| word.key == key && word.value.is_some())?.value?;
        let mut end = self.line.len() - words.rest.len();
        let start = end - value.len();
        while let Some(Word { value: None, .. }) = words.next() {
            end = self.line.len() - words.rest.len();
        }
        Some(&self.line[start..end])
    }

    /// The value of a key as text for people.
    pub(super) fn prose(&self, key: &[u8]) -> Option<String> {
        let clean = String::from_utf8_lossy(&unescape(self.text(key)?)).replace(char::is_control, " ");
        Some(clean.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// Whether the line holds a byte that no text has.
    pub(super) fn has_control_bytes(&self) -> bool {
        self.line.iter().any(u8::is_ascii_control)
    }
}

fn find<'a>(line: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    Words { rest: line }.find(|word| word.key == key)?.value
}

/// A decimal number, if the text is one.
pub(super) fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Takes the backslash off each escaped byte.
fn unescape(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr(b'\\', text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut plain = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'\\' => *bytes.next().unwrap_or(byte),
            _ => *byte,
        });
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_in_any_order_and_unknown_ones_are_passed_over() {
        let request = Request::parse(b"  value=v=1 future=yes  flag cmd=put key=k").expect("a request");
        assert_eq!(request.name, b"put");
        assert_eq!(request.get(b"key"), Some(&b"k"[..]));
        assert_eq!(request.get(b"value"), Some(&b"v=1"[..]));
        assert_eq!(request.get(b"flag"), None);
        assert_eq!(request.get(b"kvsname"), None);
    }

    #[test]
    fn an_escaped_space_does_not_end_a_value() {
        let request = Request::parse(br"cmd=put value=a\ b\\ key=k\").expect("a request");
        assert_eq!(request.get(b"value"), Some(&br"a\ b\\"[..]));
        assert_eq!(request.get(b"key"), Some(&br"k\"[..]));
    }

    #[test]
    fn prose_runs_over_words_up_to_the_next_key() {
        let text = |line: &'static [u8]| Request::parse(line).and_then(|request| request.prose(b"message"));
        assert_eq!(text(b"cmd=abort message=no such file exitcode=3"), Some("no such file".to_owned()));
        assert_eq!(text(br"cmd=abort exitcode=3 message=no\ such\tfile"), Some("no suchtfile".to_owned()));
        assert_eq!(text(b"cmd=abort message=a\x1b[31mb\xff"), Some("a [31mb\u{fffd}".to_owned()));
        assert_eq!(text(b"cmd=abort message="), None);
        assert_eq!(text(b"cmd=abort"), None);
    }

    #[test]
    fn a_text_keeps_its_bytes() {
        let request = Request::parse(b"cmd=publish_name service=a  b\\c port=x=y  ").expect("a request");
        assert_eq!(request.text(b"service"), Some(&b"a  b\\c"[..]));
        assert_eq!(request.text(b"port"), Some(&b"x=y"[..]));
        assert_eq!(request.text(b"other"), None);
    }

    #[test]
    fn a_line_without_a_command_is_no_request() {
        for line in [&b""[..], b" ", b"hello", b"cmd", b"command=init", b"GET / HTTP/1.1"] {
            assert!(Request::parse(line).is_none(), "{line:?} was taken");
        }
    }

    #[test]
    fn numbers_are_decimal() {
        assert_eq!(number(b"-12"), Some(-12));
        for text in [&b""[..], b"0x1", b"1 ", b"\xff", b"99999999999999999999"] {
            assert_eq!(number(text), None, "{text:?}");
        }
    }
}
