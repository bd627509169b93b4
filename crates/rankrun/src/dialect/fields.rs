//! Words of ours with a value of the user's in them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rankrun_core::template::Field;

/// What a pattern is for: our kinds of templates write a brace differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum For {
    /// A tag, which may also have the time (`%t`).
    Tag,
    /// The name of a file, or a command.
    File,
    /// The value of a variable, in which only the names of our fields are special.
    Value,
}

/// A text that has no fields, as our template.
pub(crate) fn literal(text: &OsStr, purpose: For) -> OsString {
    let mut template = Vec::new();
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        let end = if *byte == b'{' { name_in_braces(after) } else { None };
        let is_special = |end: usize| {
            let name = &after[..end];
            purpose != For::Value || Field::ALL.iter().any(|field| field.name().as_bytes() == name)
        };
        match end.filter(|end| is_special(*end)) {
            Some(end) => {
                template.extend([b"{{", &after[..end], b"}}"].concat());
                rest = &after[end + 1..];
            }
            None => {
                template.push(*byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(template)
}

/// The length of a name that a `}` follows.
pub(crate) fn name_in_braces(text: &[u8]) -> Option<usize> {
    let end = text.iter().position(|byte| *byte == b'}').filter(|end| *end > 0)?;
    text[..end].iter().all(|byte| byte.is_ascii_lowercase() || *byte == b'_').then_some(end)
}

/// An option of ours with its value.
pub(crate) fn with_value(option: &str, value: &OsStr) -> OsString {
    let mut word = OsString::from(option);
    word.push("=");
    word.push(value);
    word
}

/// One of our words, with the value filled in. What looks like a field of ours in it is text.
pub(crate) fn fill(word: &str, value: Option<&OsString>) -> OsString {
    match (word.split_once("{}"), value) {
        (Some((before, after)), Some(value)) => {
            let mut filled = OsString::from(before);
            let purpose = if before.is_empty() || before.contains('=') && !before.starts_with("--") {
                For::Value
            } else {
                For::File
            };
            filled.push(literal(value, purpose));
            filled.push(after);
            filled
        }
        _ => word.into(),
    }
}
