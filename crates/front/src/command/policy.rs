//! `--on-failure COMMAND`: a command of the user's own that reads the report's JSON on stdin and writes its answer to stdout.

use std::time::Duration;

use rankrun_core::report::Report;
use rankrun_core::restart::{Answer, AnswerError, Decision, OnFailure, parse_answer};
use rankrun_core::saved::to_json;

use super::run::{Command, CommandError, Output, Pending};

/// A policy that has been asked on a thread of its own.
pub(crate) type Asked = Pending<Result<Answer, AnswerError>>;

/// The command that is asked about one failure.
pub(crate) struct OwnCommand {
    pub(crate) command: Command,
    pub(crate) timeout: Duration,
}

impl OnFailure for OwnCommand {
    fn decide(&mut self, report: &Report, _own: &Decision) -> Result<Answer, AnswerError> {
        let not_asked = |why: String| AnswerError::NotAsked { why };
        let json = to_json(report).map_err(|error| not_asked(error.to_string()))?;
        match self.command.converse(&json, self.timeout) {
            Ok(Output { text, status }) if status.success() => parse_answer(&text),
            Ok(Output { status, .. }) => Err(AnswerError::Failed(status)),
            Err(CommandError::TimedOut) => Err(AnswerError::TimedOut(self.timeout)),
            Err(error) => Err(not_asked(error.to_string())),
        }
    }
}
