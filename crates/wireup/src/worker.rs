//! The worker socket: processes of a rank report about themselves, one JSON object a line.
//!
//! Sans-IO like the rest. A client gets no replies. Its cost is bounded: one line, and a number of lines between two
//! reads; nothing else is kept. Unknown types and fields are ignored, so that clients may be newer than we are, and so are
//! values of another type than they should have. A connection is ended by a line that is no JSON object, is too long, or has
//! another version.

use std::time::Duration;

use memchr::memchr;
use rankrun_core::Rank;
use rankrun_core::result::ResultPiece;
use rankrun_core::testimony::{Exception, Testimony};
use serde_json::{Map, Value};

/// The longest line that is taken, in bytes without its newline (docs/worker-socket.md).
pub const MAX_LINE: usize = 65_536;

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
    Testimony(Testimony, When),
    /// For the caller of `rankrun.launch`.
    Result(ResultPiece),
}

/// When the client says that something happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum When {
    /// On `CLOCK_MONOTONIC`.
    At(Duration),
    /// So long before the message was sent.
    Ago(Duration),
    #[default]
    Unsaid,
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

/// The fields of a line. One that is not of the type that it should have counts as left out.
struct Line(Map<String, Value>);

impl Line {
    fn text(&mut self, name: &str) -> Option<String> {
        match self.0.remove(name) {
            Some(Value::String(text)) => Some(text),
            Some(_) | None => None,
        }
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.0.get(name).and_then(Value::as_i64)
    }

    fn time(&self, name: &str) -> Option<Duration> {
        let seconds = self.0.get(name).and_then(Value::as_f64)?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    fn when(&self) -> When {
        let at = self.time("time").map(When::At);
        at.or_else(|| self.time("ago").map(When::Ago)).unwrap_or_default()
    }

    fn is_set(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    fn code(&self) -> Option<i32> {
        self.number("code").map(|code| code.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32)
    }

    fn exception(&mut self) -> Exception {
        Exception {
            kind: self.text("exception").unwrap_or_default(),
            message: self.text("message").unwrap_or_default(),
            traceback: self.text("traceback").unwrap_or_default(),
            file: self.text("file"),
            line: self.number("line").and_then(|number| u32::try_from(number).ok()),
            function: self.text("function"),
        }
    }

    /// Where something went wrong that does not end the program: the name of the thread, if it was one.
    fn place(&mut self) -> String {
        let what = self.text("what").unwrap_or_default();
        let thread = self.text("thread").filter(|_| what == "thread");
        thread.unwrap_or(what)
    }
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
    let fields = serde_json::from_str(&text).map_err(|error| ClientError::NotJson { reason: error.to_string() })?;
    let mut line = Line(fields);
    if let Some(version) = line.number("v").filter(|version| *version != 1) {
        return Err(ClientError::Version { version });
    }
    let when = line.when();
    let code = line.code();
    let testimony = match line.text("type").unwrap_or_default().as_str() {
        "hello" => {
            return Ok(Some(Said::Hello {
                pid: line.number("pid").and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0),
                // Outside a job a client may send -1.
                rank: line.number("rank").and_then(|rank| u32::try_from(rank).ok()).map(Rank),
                kind: line.text("kind").unwrap_or_default(),
                tag: line.text("tag"),
            }));
        }
        "result" => {
            return Ok(Some(Said::Result(ResultPiece {
                is_error: line.is_set("error"),
                data: line.text("data").unwrap_or_default(),
                is_first: line.is_set("first"),
                is_last: line.is_set("last"),
            })));
        }
        "uncaught" => Testimony::Uncaught(line.exception()),
        "exiting" => Testimony::Exiting { code: code.unwrap_or(1) },
        "leaving" if code != Some(0) => Testimony::Leaving { code: code.unwrap_or(1) },
        "evidence" => Testimony::Aside { place: line.place(), exception: line.exception() },
        "abort" => Testimony::Abort { code: code.unwrap_or(1), message: line.text("message") },
        "note" => Testimony::Note { text: line.text("text").unwrap_or_default() },
        "progress" => Testimony::Progress,
        "ready" => Testimony::Ready,
        _ => return Ok(None),
    };
    Ok(Some(Said::Testimony(testimony, when)))
}

/// What torch's `@record` leaves in `TORCHELASTIC_ERROR_FILE` (torchrun 2.15): `{"message": {"message": "ValueError:
/// boom", "extraInfo": {"py_callstack": "..."}}}`, or a plain string as the message. The end of the file may have been cut off
/// within a text.
pub fn error_file(json: &[u8]) -> Option<Exception> {
    let value: Value = serde_json::from_slice(json).ok().or_else(|| completed(json))?;
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

/// JSON whose end was cut off within a text: that text and all that was open is closed.
fn completed(json: &[u8]) -> Option<Value> {
    /// Two escapes `\\uXXXX`, which together are one character.
    const LONGEST_CHARACTER: usize = 12;
    let (mut open, mut is_text, mut is_escaped) = (Vec::new(), false, false);
    for byte in json {
        match (is_text, byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (_, b'"') => is_text = !is_text,
            (false, b'{') => open.push(b'}'),
            (false, b'[') => open.push(b']'),
            (false, b'}' | b']') => drop(open.pop()),
            (_, _) => {}
        }
    }
    if !is_text {
        return None;
    }
    let end: Vec<u8> = std::iter::once(b'"').chain(open.into_iter().rev()).collect();
    // The last character may have been cut.
    (0..=LONGEST_CHARACTER.min(json.len()))
        .find_map(|cut| serde_json::from_slice(&[&json[..json.len() - cut], &end].concat()).ok())
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
        r#"{"type":"evidence","what":"thread","exception":"KeyError","message":"'x'","thread":"Thread-1 (load)"}"#,
        "\n",
        r#"{"type":"leaving","time":1.7,"code":3}"#,
        "\n",
        r#"{"type":"leaving","time":1.8,"code":0}"#,
        "\n",
        r#"{"type":"exiting","time":2,"code":3}"#,
        "\n",
        r#"{"type":"abort","ago":0.25,"code":7}"#,
        "\n",
        r#"{"type":"note","text":"epoch 1"}"#,
        "\n",
        r#"{"type":"ready"}"#,
        "\n",
        r#"{"type":"progress"}"#,
        "\n",
        r#"{"type":"result","data":"QUJD","first":true,"last":1}"#,
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
        let in_thread = Exception { kind: "KeyError".to_owned(), message: "'x'".to_owned(), ..Exception::default() };
        vec![
            Said::Hello { pid: 42, rank: Some(Rank(3)), kind: "python".to_owned(), tag: Some("7f3a".to_owned()) },
            Said::Testimony(Testimony::Uncaught(exception), When::At(Duration::from_millis(1500))),
            Said::Testimony(
                Testimony::Aside { place: "Thread-1 (load)".to_owned(), exception: in_thread },
                When::Unsaid,
            ),
            Said::Testimony(Testimony::Leaving { code: 3 }, When::At(Duration::from_millis(1700))),
            Said::Testimony(Testimony::Exiting { code: 3 }, When::At(Duration::from_secs(2))),
            Said::Testimony(Testimony::Abort { code: 7, message: None }, When::Ago(Duration::from_millis(250))),
            Said::Testimony(Testimony::Note { text: "epoch 1".to_owned() }, When::Unsaid),
            Said::Testimony(Testimony::Ready, When::Unsaid),
            Said::Testimony(Testimony::Progress, When::Unsaid),
            Said::Result(ResultPiece { is_error: false, data: "QUJD".to_owned(), is_first: true, is_last: false }),
        ]
    }

    #[test]
    fn a_conversation_is_understood_and_the_unknown_passed_over() {
        let (mut client, mut said) = (Client::new(), Vec::new());
        client.received(CONVERSATION.as_bytes(), &mut said).expect("our own protocol");
        assert_eq!(said, expected());
    }

    #[test]
    fn what_is_no_time_is_left_out() {
        for time in ["-1", "1e300", "\"soon\"", "null", "[1]", "{}", "true"] {
            let line = format!("{{\"type\":\"note\",\"time\":{time},\"ago\":{time}}}");
            let said = parse(line.as_bytes()).expect("a time decides on no connection");
            assert!(matches!(said, Some(Said::Testimony(_, When::Unsaid))), "{time}: {said:?}");
        }
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

    /// A message may be as long as a tensor that was printed into it.
    #[test]
    fn of_an_error_file_that_was_cut_off_the_beginning_is_read() {
        let message = "\\u00e4\\ud83d\\ude00\\\"\\\\\\n\u{e9}".repeat(20);
        let begin = r#"{"message": {"message": "ValueError: "#;
        let whole = format!(r#"{begin}{message}", "extraInfo": {{"py_callstack": "T"}}}}}}"#);
        let (begin, end) = (begin.len(), begin.len() + message.len());
        assert!(error_file(whole.as_bytes()).is_some_and(|exception| exception.traceback == "T"));
        for cut in begin..end {
            let exception = error_file(&whole.as_bytes()[..cut]);
            let exception = exception.unwrap_or_else(|| panic!("cut after {cut} bytes of {whole}"));
            assert_eq!(exception.kind, "ValueError", "{cut}");
            assert!(cut < begin + 20 || exception.message.starts_with('\u{e4}'), "{exception:?}");
        }
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

    /// A note that is no text must not cost the client its connection, and with it the abort that follows.
    #[test]
    fn a_value_of_another_type_counts_as_left_out() {
        let (mut client, mut said) = (Client::new(), Vec::new());
        let lines = concat!(
            r#"{"v":"1","type":"note","text":5,"x":1}"#,
            "\n",
            r#"{"type":7}"#,
            "\n",
            r#"{"type":"uncaught","exception":"E","message":null,"line":"5","file":[],"traceback":{},"pid":1e9}"#,
            "\n",
            r#"{"type":"abort","code":"3","message":["the mesh"]}"#,
            "\n",
        );
        client.received(lines.as_bytes(), &mut said).expect("each is a JSON object");
        let exception = Exception { kind: "E".to_owned(), ..Exception::default() };
        let expected = [
            Testimony::Note { text: String::new() },
            Testimony::Uncaught(exception),
            Testimony::Abort { code: 1, message: None },
        ];
        assert_eq!(said, expected.map(|testimony| Said::Testimony(testimony, When::Unsaid)));
        for line in ["[1]", "5", "null", "\"note\"", "[1,\"note\",0,null]"] {
            assert!(matches!(parse(line.as_bytes()), Err(ClientError::NotJson { .. })), "{line}");
        }
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
