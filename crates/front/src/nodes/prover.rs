//! The second chance of a node whose connection was lost: one more ssh, which asks what is left of the job there (K-5).
//!
//! It waits there until relay, guard and agent have done their work, kills what is left after the grace, and exits with 0 or 123.

use std::io;
use std::time::Duration;

use rankrun_core::ExitCode;
use rankrun_sys::null;

use super::hosts::{NodeTarget, SshSettings};
use super::ssh::{self, Call};
use crate::starter::{Program, Request, Starter, Status};

/// The wait before the next try.
const RETRY: Duration = Duration::from_millis(500);

/// The tries to ask one node.
#[derive(Debug)]
pub(crate) struct Prover {
    patience: Duration,
    /// The present try.
    program: Option<Program>,
    /// The exit code of the last one: that of the node, or 255 if ssh has failed.
    code: Option<i32>,
    due: Duration,
}

impl Prover {
    /// Nothing has been asked yet. What does not end on the node within `patience` is to be killed there.
    pub(crate) fn new(patience: Duration) -> Prover {
        Prover { patience, program: None, code: None, due: Duration::ZERO }
    }

    /// Asks, if it is time to.
    pub(crate) fn try_again(
        &mut self,
        now: Duration,
        starter: &mut Starter,
        settings: &SshSettings,
        target: &NodeTarget,
        call: &Call,
    ) {
        if self.program.is_some() || self.has_answer() || self.due > now {
            return;
        }
        self.due = now + RETRY;
        // One that cannot be started is tried again.
        self.program = start(starter, ssh::proving(settings, target, call, self.patience)).ok();
    }

    /// Reaps the present try, if it has ended.
    pub(crate) fn reap(&mut self, now: Duration) {
        let code = match self.program.as_ref().map(Program::look) {
            None | Some(Status::Coming | Status::Runs) => return,
            Some(Status::Ended(code)) => code,
            // As if ssh had failed.
            Some(Status::NotStarted(_)) => 255,
        };
        (self.program, self.code, self.due) = (None, Some(code), now + RETRY);
    }

    /// Whether the node has answered. Where ssh has failed, or rankrun is not found, it has not.
    pub(crate) fn has_answer(&self) -> bool {
        let answers = [ExitCode::SUCCESS, ExitCode::LEFT_BEHIND].map(|code| Some(i32::from(code.0)));
        answers.contains(&self.code)
    }

    /// Whether nothing is left on the node.
    pub(crate) fn has_proved(&self) -> bool {
        self.code == Some(i32::from(ExitCode::SUCCESS.0))
    }

    pub(crate) fn pid(&self) -> Option<i32> {
        self.program.as_ref().and_then(Program::pid)
    }

    /// Gives up the present try.
    pub(crate) fn give_up(&mut self) {
        if let Some(program) = &self.program {
            program.kill();
        }
    }
}

fn start(starter: &mut Starter, words: io::Result<Vec<std::ffi::OsString>>) -> io::Result<Program> {
    // Only the exit code counts.
    starter.request(Request::of(words?, [null()?, null()?, null()?]))
}
