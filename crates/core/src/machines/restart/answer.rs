//! The answers of `--on-failure`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::spoken::spoken;
use crate::status::WorkerStatus;
use crate::units::{LONGEST, UnitError, parse_exactly};

/// What is to be done about a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// What the policy itself decides.
    Own,
    /// Another attempt, after the policy's own wait.
    Restart,
    /// No other attempt.
    Stop,
    /// Another attempt after this time.
    Wait(Duration),
}

/// Why there is no answer. The policy's own decision stands then.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum AnswerError {
    /// The beginning of what it wrote.
    #[error("\"{text}\" is not restart, stop or wait DURATION")]
    Text { text: String },
    #[error("\"{text}\" is longer than {} years", LONGEST.as_secs() / (365 * 24 * 3600))]
    TooLong { text: String },
    #[error("the command failed ({0})")]
    Failed(WorkerStatus),
    #[error("the command was not done within {}, and was killed", spoken(*.0))]
    TimedOut(Duration),
    /// It could not be asked at all.
    #[error("{why}")]
    NotAsked { why: String },
}

/// Letters of a wrong answer that are shown.
const SHOWN: usize = 60;

/// Reads what a command wrote to its stdout: `restart`, `stop`, `wait 30s`. One that wrote nothing only wanted to know.
///
/// # Errors
///
/// It wrote something else.
pub fn parse_answer(text: &str) -> Result<Answer, AnswerError> {
    let mut words = text.split_whitespace();
    let answer = match (words.next(), words.next(), words.next()) {
        (None, ..) => Some(Answer::Own),
        (Some("restart"), None, _) => Some(Answer::Restart),
        (Some("stop"), None, _) => Some(Answer::Stop),
        (Some("wait"), Some(time), None) => match parse_exactly(time) {
            Ok(time) => Some(Answer::Wait(time)),
            Err(UnitError::TooLong { .. }) => return Err(AnswerError::TooLong { text: shown(text) }),
            Err(_) => None,
        },
        _ => None,
    };
    answer.ok_or_else(|| AnswerError::Text { text: shown(text) })
}

fn shown(text: &str) -> String {
    let plain = text.trim().replace(char::is_control, " ");
    let cut = plain.char_indices().nth(SHOWN).map_or(plain.as_str(), |(end, _)| &plain[..end]);
    if cut.len() < plain.len() { format!("{cut}...") } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_three_words_or_nothing() {
        let seconds = |count| Answer::Wait(Duration::from_secs(count));
        for (text, answer) in [
            ("restart\n", Answer::Restart),
            ("stop", Answer::Stop),
            ("  wait 30s \n", seconds(30)),
            ("wait 30", seconds(30)),
            ("wait 1m30s", seconds(90)),
            ("", Answer::Own),
            ("\n \n", Answer::Own),
        ] {
            assert_eq!(parse_answer(text), Ok(answer), "{text:?}");
        }
        for text in ["Restart", "yes", "restart now", "wait", "wait x", "wait 30 s", "wait 30s now", "stop\nrestart"] {
            assert!(parse_answer(text).is_err(), "{text:?}");
        }
        let error = parse_answer(&"x\n".repeat(100)).expect_err("no answer");
        let shown = "x ".repeat(30);
        assert_eq!(error.to_string(), format!("\"{shown}...\" is not restart, stop or wait DURATION"));
        let failed = AnswerError::Failed(WorkerStatus::Exited { code: 1 }).to_string();
        assert_eq!(failed, "the command failed (exit 1)");
        let timed_out = AnswerError::TimedOut(Duration::from_secs(30)).to_string();
        let forever = parse_answer("wait 100000000000h").expect_err("a time that nobody waits");
        assert_eq!(forever.to_string(), "\"wait 100000000000h\" is longer than 100 years");
        assert_eq!(parse_answer("wait 876000h"), Ok(Answer::Wait(LONGEST)));
        assert!(matches!(parse_answer("wait 876000h1ms"), Err(AnswerError::TooLong { .. })));
        assert_eq!(timed_out, "the command was not done within 30 s, and was killed");
    }
}
