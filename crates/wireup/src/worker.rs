//! The worker socket: processes of a rank report about themselves, one JSON object a line.
//!
//! Sans-IO like the rest. A client gets no replies. Its cost is bounded: one line, and a number of lines between two
//! reads; nothing else is kept. Unknown types and fields are ignored, so that clients may be newer than we are; only
//! bytes that are not lines of JSON end a connection.

use memchr::memchr;
use rankrun_core::Rank;
use rankrun_core::testimony::{Exception, Testimony};
use serde::Deserialize;

/// The longest line that is taken, in bytes without its newline: a traceback of 64 KiB with room for its escapes.
pub const MAX_LINE: usize = 256 * 1024;

/// What a client has sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// Its own description.
    Hello {
        pid: i32,
        rank: Option<Rank>,
        kind: String,
        /// What it found in `RANKRUN_WORKER`: it names the worker when the process is gone before it can be looked up.
        tag: Option<String>,
    },
    Testimony(Testimony),
}

/// Why a client is disconnected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClientError {
    #[error("a line is longer than {MAX_LINE} bytes")]
    TooLong,
    #[error("a line is no JSON object: {reason}")]
    NotJson { reason: String },
    #[error("version {version} is not understood")]
    Version { version: i64 },
}

/// The lines of one client.
#[derive(Debug, Default)]
pub struct Client {
    partial: Vec<u8>,
}

/// A line, with every field that any of its types has.
#[derive(Deserialize)]
struct Line {
    v: Option<i64>,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    pid: i64,
    rank: Option<i64>,
    #[serde(rename = "kind", default)]
    program: String,
    #[serde(default)]
    exception: String,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    traceback: String,
    file: Option<String>,
    line: Option<i64>,
    function: Option<String>,
    #[serde(default)]
    what: String,
    code: Option<i64>,
    #[serde(default)]
    text: String,
    tag: Option<String>,
}

impl Client {
    pub fn new() -> Client {
        Client::default()
    }

    /// Bytes arrived; they may begin and end anywhere in a line. Appends the messages.
    ///
    /// # Errors
    ///
    /// Disconnect the client; what it sent before counts.
    pub fn received(&mut self, mut bytes: &[u8], said: &mut Vec<Said>) -> Result<(), ClientError> {
        while let Some(end) = memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            if self.partial.is_empty() {
                said.extend(parse(line)?);
            } else {
                self.partial.extend_from_slice(line);
                let whole = std::mem::take(&mut self.partial);
                said.extend(parse(&whole)?);
            }
            bytes = rest;
        }
        if self.partial.len() + bytes.len() > MAX_LINE {
            return Err(ClientError::TooLong);
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }
}

fn parse(line: &[u8]) -> Result<Option<Said>, ClientError> {
    if line.len() > MAX_LINE {
        return Err(ClientError::TooLong);
    }
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    // A program's message need not be UTF-8.
    let text = String::from_utf8_lossy(line);
    let line: Line = serde_json::from_str(&text).map_err(|error| ClientError::NotJson { reason: error.to_string() })?;
    if let Some(version) = line.v.filter(|version| *version != 1) {
        return Err(ClientError::Version { version });
    }
    let code = line.code.map(|code| code.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32);
    let exception = || Exception {
        kind: line.exception.clone(),
        message: line.message.clone().unwrap_or_default(),
        traceback: line.traceback.clone(),
        file: line.file.clone(),
        line: line.line.and_then(|number| u32::try_from(number).ok()),
        function: line.function.clone(),
    };
    Ok(Some(match line.kind.as_str() {
        "hello" => Said::Hello {
            pid: i32::try_from(line.pid).unwrap_or(0),
            // Outside a job a client may send -1.
            rank: line.rank.and_then(|rank| u32::try_from(rank).ok()).map(Rank),
            kind: line.program,
            tag: line.tag,
        },
        "uncaught" => Said::Testimony(Testimony::Uncaught(exception())),
        "exiting" => Said::Testimony(Testimony::Exiting { code: code.unwrap_or(1) }),
        "evidence" => Said::Testimony(Testimony::Aside { place: line.what.clone(), exception: exception() }),
        "abort" => Said::Testimony(Testimony::Abort { code: code.unwrap_or(1), message: line.message }),
        "note" => Said::Testimony(Testimony::Note { text: line.text }),
        _ => return Ok(None),
    }))
}

/// What torch's `@record` leaves in `TORCHELASTIC_ERROR_FILE` (torchrun 2.15): `{"message": {"message": "ValueError:
/// boom", "extraInfo": {"py_callstack": "..."}}}`, or a plain string as the message.
pub fn error_file(json: &[u8]) -> Option<Exception> {
    let value: serde_json::Value = serde_json::from_slice(json).ok()?;
    let message = value.get("message")?;
    let text = message.as_str().or_else(|| message.get("message")?.as_str())?;
    let callstack = message.pointer("/extraInfo/py_callstack").and_then(|stack| stack.as_str()).unwrap_or_default();
    let (kind, rest) = match text.split_once(": ") {
        Some((kind, rest)) if !kind.contains(' ') => (kind, rest),
        Some(_) | None => ("", text),
    };
    Some(Exception {
        kind: kind.to_owned(),
        message: rest.to_owned(),
        traceback: callstack.to_owned(),
        ..Exception::default()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONVERSATION: &str = concat!(
        r#"{"v":1,"type":"hello","pid":42,"rank":3,"kind":"python","version":"3.11.7","argv0":"x","tag":"7f3a"}"#,
        "\n\n",
        r#"{"type":"uncaught","time":1.5,"exception":"ValueError","message":"failure!","traceback":"T","file":"a.py","line":5,"function":"f","thread":"MainThread"}"#,
        "\n",
        r#"{"type":"of the future","x":[1,2]}"#,
        "\n",
        r#"{"type":"exiting","time":2,"code":3}"#,
        "\n",
        r#"{"type":"abort","code":7}"#,
        "\n",
        r#"{"type":"note","text":"epoch 1"}"#,
        "\n"
    );

    fn expected() -> Vec<Said> {
        let exception = Exception {
            kind: "ValueError".to_owned(),
            message: "failure!".to_owned(),
            traceback: "T".to_owned(),
            file: Some("a.py".to_owned()),
            line: Some(5),
            function: Some("f".to_owned()),
        };
        vec![
            Said::Hello { pid: 42, rank: Some(Rank(3)), kind: "python".to_owned(), tag: Some("7f3a".to_owned()) },
            Said::Testimony(Testimony::Uncaught(exception)),
            Said::Testimony(Testimony::Exiting { code: 3 }),
            Said::Testimony(Testimony::Abort { code: 7, message: None }),
            Said::Testimony(Testimony::Note { text: "epoch 1".to_owned() }),
        ]
    }

    #[test]
    fn a_conversation_is_understood_and_the_unknown_passed_over() {
        let (mut client, mut said) = (Client::new(), Vec::new());
        client.received(CONVERSATION.as_bytes(), &mut said).expect("our own protocol");
        assert_eq!(said, expected());
    }

    #[test]
    fn torchs_error_file_is_read_in_both_its_forms() {
        let recorded =
            br#"{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "T", "timestamp": "1"}}}"#;
        let exception = error_file(recorded).expect("torch's own");
        assert_eq!((exception.headline().as_str(), exception.traceback.as_str()), ("ValueError: boom", "T"));
        assert_eq!(error_file(br#"{"message": "out of luck"}"#).expect("a string").headline(), "out of luck");
        assert_eq!(error_file(b"{}"), None);
        assert_eq!(error_file(b"not json"), None);
    }

    #[test]
    fn a_line_without_end_is_refused_before_it_is_kept() {
        let (mut client, mut said) = (Client::new(), Vec::new());
        let flood = vec![b'x'; MAX_LINE];
        assert_eq!(client.received(&flood, &mut said), Ok(()));
        assert_eq!(client.received(b"x", &mut said), Err(ClientError::TooLong));
        assert!(said.is_empty());
    }

    #[test]
    fn what_is_no_json_ends_the_connection_and_what_was_said_before_counts() {
        let (mut client, mut said) = (Client::new(), Vec::new());
        let result = client.received(b"{\"type\":\"note\",\"text\":\"a\"}\nGET / HTTP/1.1\n", &mut said);
        assert!(matches!(result, Err(ClientError::NotJson { .. })));
        assert_eq!(said.len(), 1);
        assert!(matches!(parse(br#"{"v":2,"type":"note"}"#), Err(ClientError::Version { version: 2 })));
    }

    proptest! {
        #[test]
        fn any_splitting_says_the_same(cuts in proptest::collection::vec(1usize..60, 1..40)) {
            let (mut client, mut said) = (Client::new(), Vec::new());
            let mut rest = CONVERSATION.as_bytes();
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                client.received(piece, &mut said).expect("our own protocol");
                rest = after;
            }
            client.received(rest, &mut said).expect("our own protocol");
            prop_assert_eq!(said, expected());
        }

        #[test]
        fn no_bytes_make_us_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Client::new().received(&bytes, &mut Vec::new());
        }
    }
}
