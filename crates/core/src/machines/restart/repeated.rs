//! Whether a failure repeats the one before: a defect of the program is not cured by repetition.
//!
//! Two rules (DESIGN: the breaker). Both look at two attempts in a row.
//!
//! 1. Each was ended by the same exception (type, message, place), or with the same error line, within [`EARLY`] of being up, and before any progress.
//! 2. Each failed in the same way, at whatever time, and made no progress, in a job whose progress is known.
//!
//! What comes from outside the program says nothing about it: signals (also the kernel's when it is out of memory, and a shell's code for
//! one), ranks that were stopped, lost nodes, and the loss of a peer.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::evidence::Class;
use crate::exit::ExitCode;
use crate::ids::{Attempt, Rank};
use crate::testimony::Exception;
use crate::verdict::Verdict;

/// A failure so soon after all ranks were up is early.
pub const EARLY: Duration = Duration::from_secs(60);

/// How an attempt ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// What rankrun would exit with.
    pub code: ExitCode,
    /// `None`: it succeeded.
    pub class: Option<Class>,
    pub culprit: Option<Rank>,
    /// The exception that ended it, as [`identity`] has it.
    pub exception: Option<String>,
    /// The cause in the words of the report.
    pub cause: Option<String>,
    /// The culprit only lost a peer.
    pub is_of_lost_peer: bool,
    /// A user ended it: ^C, a signal to rankrun, `rankrun stop`.
    pub by_user: bool,
    /// Its ranks were not ready within `--ready-timeout`.
    pub is_not_ready: bool,
    /// Processes of it could not be killed, or not be proved gone.
    pub is_left: bool,
    /// Every rank had ended well before it was to be stopped: a restart that was asked for came too late.
    #[serde(default)]
    pub has_succeeded: bool,
}

impl Default for Outcome {
    /// A success.
    fn default() -> Self {
        Outcome {
            code: ExitCode::SUCCESS,
            class: None,
            culprit: None,
            exception: None,
            cause: None,
            is_of_lost_peer: false,
            by_user: false,
            is_not_ready: false,
            is_left: false,
            has_succeeded: false,
        }
    }
}

impl Outcome {
    /// That of an attempt with this verdict. Only the front knows what is left of it, and for what it was stopped from
    /// outside: a user's demand for a restart is not `by_user`.
    pub fn of(verdict: &Verdict, by_user: bool) -> Outcome {
        let culprit = verdict.culprit.as_ref();
        Outcome {
            code: verdict.code,
            class: verdict.class,
            culprit: culprit.map(|culprit| culprit.rank),
            exception: culprit.and_then(|culprit| culprit.exception.as_ref()).map(identity),
            cause: culprit.map(|culprit| culprit.cause.clone()),
            is_of_lost_peer: culprit.is_some_and(|culprit| culprit.loss().is_some()),
            by_user,
            ..Outcome::default()
        }
    }

    /// Whether a restart that was asked for can follow. What the ranks did on the way to their end does not matter.
    pub(super) fn allows_planned(&self) -> bool {
        let is_over = matches!(
            self.class,
            Some(Class::Timeout | Class::PlannedStop | Class::OutputFailed | Class::Refused | Class::Alone)
        );
        !self.by_user && !self.is_left && !is_over && !self.has_succeeded
    }

    /// `rank 1 failed: ValueError: bad sample`.
    pub(super) fn because(&self) -> String {
        let words = self.words();
        match (self.culprit, self.class) {
            (_, _) if self.is_not_ready => "ranks were not ready in time".to_owned(),
            (Some(rank), Some(Class::SpawnFailed)) => format!("rank {rank} could not be started: {words}"),
            (Some(rank), _) => format!("rank {rank} failed: {words}"),
            (None, _) => words,
        }
    }

    /// The cause, or else the class and the code.
    pub(super) fn words(&self) -> String {
        let class = || self.class.map_or("success", Class::word);
        self.cause.clone().unwrap_or_else(|| format!("{}, exit code {}", class(), self.code.0))
    }
}

/// The failure of an attempt, as far as it matters for whether the next one repeats it.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    attempt: Attempt,
    class: Class,
    code: ExitCode,
    exception: Option<String>,
    cause: Option<String>,
    is_early: bool,
    progressed: bool,
    /// It came from outside the program.
    is_of_outside: bool,
}

/// How a failure repeats the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    Early,
    WithoutProgress,
}

impl Failure {
    /// `lasted` is the time since all ranks were up, or else since the attempt began.
    pub(super) fn new(
        attempt: Attempt,
        class: Class,
        outcome: &Outcome,
        lasted: Duration,
        progressed: bool,
    ) -> Failure {
        Failure {
            attempt,
            class,
            code: outcome.code,
            exception: outcome.exception.clone(),
            cause: outcome.cause.as_deref().map(fold),
            is_early: lasted < EARLY && !progressed,
            progressed,
            is_of_outside: is_of_outside(class, outcome.code) || outcome.is_of_lost_peer,
        }
    }

    /// The attempt that it ended.
    pub(super) fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// The attempt had made progress, which has become known after its end.
    pub(super) fn has_progressed(&mut self) {
        (self.progressed, self.is_early) = (true, false);
    }

    pub(super) fn repeats(&self, before: &Failure, knows_progress: bool) -> Option<How> {
        if self.is_of_outside || before.is_of_outside {
            return None;
        }
        let is_same_exception = self.exception.is_some() && self.exception == before.exception;
        let is_same = || {
            (self.class, self.code, &self.exception, &self.cause)
                == (before.class, before.code, &before.exception, &before.cause)
        };
        match () {
            () if is_same_exception && self.is_early && before.is_early => Some(How::Early),
            () if knows_progress && !self.progressed && !before.progressed && is_same() => Some(How::WithoutProgress),
            () => None,
        }
    }
}

fn is_of_outside(class: Class, code: ExitCode) -> bool {
    match class {
        Class::Signal
        | Class::OutOfMemory
        | Class::Stopped
        | Class::NotReady
        | Class::LauncherLost
        | Class::NodeLost => true,
        // A shell passes on the signal of its program as 128 + n, and signals go up to 64.
        Class::ExitCode => (129..=192).contains(&code.0),
        Class::SpawnFailed
        | Class::Exception
        | Class::Abort
        | Class::StuckInFinalize
        | Class::StuckInExitHandlers
        | Class::ExitWithoutFinalize
        | Class::ExitBeforeInit
        | Class::LeftEarly
        | Class::Timeout
        | Class::PlannedStop
        | Class::Hang
        | Class::Interrupted
        | Class::Alone
        | Class::OutputFailed
        | Class::Refused => false,
    }
}

/// What makes an exception the same as another one: type, first line of the message with its numbers folded, and place.
pub fn identity(exception: &Exception) -> String {
    let place = exception.file.as_ref().map(|file| {
        let line = exception.line.map(|line| format!(":{line}")).unwrap_or_default();
        let function = exception.function.as_ref().map(|function| format!(" in {function}")).unwrap_or_default();
        format!(" at {file}{line}{function}")
    });
    format!("{}{}", fold(&exception.headline()), place.unwrap_or_default())
}

/// A text with `#` for each number, address and id in it: two runs of a program seldom have these in common.
pub fn fold(text: &str) -> String {
    let mut folded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        if word == 0 {
            folded.push(first);
            rest = &rest[first.len_utf8()..];
        } else if is_address(&rest[..word]) {
            folded.push('#');
            rest = &rest[word..];
        } else {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            if digits == 0 {
                folded.push(first);
                rest = &rest[1..];
            } else {
                folded.push('#');
                rest = after_number(&rest[digits..]);
            }
        }
    }
    folded
}

/// Digits of a word that is an address or an id, at least: a shorter word may be one of English, such as `decade1`.
const ADDRESS_LEAST: usize = 6;

/// `0x7f00`, or a word of hexadecimal digits.
fn is_address(word: &str) -> bool {
    let is_hexadecimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match word.strip_prefix("0x") {
        Some(digits) => is_hexadecimal(digits),
        None => word.len() >= ADDRESS_LEAST && is_hexadecimal(word) && word.bytes().any(|byte| byte.is_ascii_digit()),
    }
}

/// What follows a number whose digits before its point were read: `.5e-3 s` leaves ` s`.
fn after_number(text: &str) -> &str {
    let skip_digits = |text: &'_ str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let mut rest = text;
    if let Some(tail) = rest.strip_prefix('.') {
        let digits = skip_digits(tail);
        rest = if digits > 0 { &tail[digits..] } else { rest };
    }
    if let Some(tail) = rest.strip_prefix(['e', 'E']) {
        let tail = tail.strip_prefix(['+', '-']).unwrap_or(tail);
        let digits = skip_digits(tail);
        rest = if digits > 0 { &tail[digits..] } else { rest };
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_addresses_and_ids_are_folded() {
        for (text, folded) in [
            ("rank 3 of 64 (pid 12345)", "rank # of # (pid #)"),
            ("loss is 1.5e-07 at step 100", "loss is # at step #"),
            ("at 0x7f3a91c2: x", "at #: x"),
            ("<Tensor object at 0xdeadbeef>", "<Tensor object at #>"),
            ("job 7f3a91c2 failed", "job # failed"),
            ("key 'a' is missing.", "key 'a' is missing."),
            ("10.0.0.1:41000", "#.#:#"),
            ("float32 and int64", "float# and int#"),
            ("Größe 12 µm", "Größe # µm"),
            ("", ""),
            ("3.", "#."),
            ("2e", "#e"),
        ] {
            assert_eq!(fold(text), folded, "{text}");
        }
    }

    #[test]
    fn an_exception_is_known_by_type_message_and_place() {
        let exception = |message: &str, line| Exception {
            kind: "ValueError".to_owned(),
            message: message.to_owned(),
            file: Some("train.py".to_owned()),
            line: Some(line),
            ..Exception::default()
        };
        assert_eq!(identity(&exception("bad sample 7", 12)), "ValueError: bad sample # at train.py:12");
        assert_eq!(identity(&exception("bad sample 7", 12)), identity(&exception("bad sample 8", 12)));
        assert_ne!(identity(&exception("bad sample 7", 12)), identity(&exception("bad sample 7", 13)));
    }
}
