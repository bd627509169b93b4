//! Words of a command line, as a shell splits and quotes them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Splits a text into words at blanks; quotes and backslashes count as they do in sh. Nothing is expanded.
///
/// `None` if a quote is not closed, or a backslash is the last character.
pub(crate) fn split(text: &OsStr) -> Option<Vec<OsString>> {
    let mut words: Vec<OsString> = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut bytes = text.as_bytes().iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b' ' | b'\t' | b'\n' => words.extend(word.take().map(OsString::from_vec)),
            b'\\' => word.get_or_insert_default().push(bytes.next()?),
            b'\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match bytes.next()? {
                        b'\'' => break,
                        other => word.push(other),
                    }
                }
            }
            b'"' => {
                let word = word.get_or_insert_default();
                loop {
                    match bytes.next()? {
                        b'"' => break,
                        b'\\' => match bytes.next()? {
                            escaped @ (b'"' | b'\\' | b'$' | b'`') => word.push(escaped),
                            other => word.extend([b'\\', other]),
                        },
                        other => word.push(other),
                    }
                }
            }
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word.map(OsString::from_vec));
    Some(words)
}

/// Writes a word so that a shell reads it back as it is.
pub(crate) fn quote(word: &OsStr) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(&byte);
    let text = word.to_string_lossy();
    if !word.is_empty() && word.as_bytes().iter().all(|byte| plain(*byte)) {
        return text.into_owned();
    }
    if std::str::from_utf8(word.as_bytes()).is_err() || text.chars().any(char::is_control) {
        return dollar_quote(word.as_bytes());
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// `$'...'`, as bash, zsh, ksh and POSIX 2024 read it: what is no text, or does not show, is written by its number.
fn dollar_quote(bytes: &[u8]) -> String {
    let mut quoted = String::from("$'");
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\n' => quoted.push_str("\\n"),
                '\t' => quoted.push_str("\\t"),
                '\\' | '\'' => quoted.extend(['\\', letter]),
                letter if letter.is_control() => {
                    let mut bytes = [0; 4];
                    quoted.extend(letter.encode_utf8(&mut bytes).bytes().map(|byte| format!("\\{byte:03o}")));
                }
                letter => quoted.push(letter),
            }
        }
        quoted.extend(chunk.invalid().iter().map(|byte| format!("\\{byte:03o}")));
    }
    quoted.push('\'');
    quoted
}

/// Writes a command so that a shell reads it back as it is.
pub(crate) fn quote_all<W: AsRef<OsStr>>(words: &[W]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| quote(word.as_ref())).collect();
    quoted.join(" ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split_text(text: &str) -> Option<Vec<String>> {
        let words = split(OsStr::new(text))?;
        Some(words.iter().map(|word| word.to_string_lossy().into_owned()).collect())
    }

    #[test]
    fn words_are_split_as_a_shell_does() {
        for (text, words) in [
            ("gdb --args", vec!["gdb", "--args"]),
            ("  a\t b ", vec!["a", "b"]),
            (r#"gdb -ex "run now" --args"#, vec!["gdb", "-ex", "run now", "--args"]),
            (r"a\ b 'c d'e", vec!["a b", "c de"]),
            (r#""\"$x\n""#, vec![r#""$x\n"#]),
            ("'' a", vec!["", "a"]),
            ("", vec![]),
        ] {
            assert_eq!(split_text(text).as_deref(), Some(&words.iter().map(|w| w.to_string()).collect::<Vec<_>>()[..]));
        }
    }

    #[test]
    fn a_quote_that_is_not_closed_is_refused() {
        for text in ["'a", "\"a", "a\\"] {
            assert_eq!(split_text(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_words_survive_quoting_and_splitting(words in proptest::collection::vec("\\PC*", 0..5)) {
            prop_assert_eq!(split_text(&quote_all(&words)), Some(words));
        }
    }

    #[test]
    fn what_does_not_show_is_quoted_by_its_number() {
        use std::os::unix::ffi::OsStrExt as _;
        for (word, quoted) in [
            (&b"\x1b[31m"[..], r"$'\033[31m'"),
            (b"a\nb\t'\\", r"$'a\nb\t\'\\'"),
            (b"\xe9t\xc3\xa9", "$'\\351t\u{e9}'"),
        ] {
            assert_eq!(quote(OsStr::from_bytes(word)), quoted);
        }
    }

    #[test]
    fn what_is_quoted_is_split_back_into_the_same_words() {
        let words = ["it's", "", "a b", "$HOME", "plain", "\"q\"", "a\\"];
        assert_eq!(split_text(&quote_all(&words)), Some(words.map(str::to_owned).to_vec()));
    }
}
