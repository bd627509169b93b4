//! A job that is looked at: its connections, and what was answered last. All who look share it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rankrun_core::control::{Answer, Request};
use rankrun_core::top::Model;

use crate::commands::jobs::{Connection, Found, Silence};
use crate::top::{Line, in_words};

/// What is known is shown again if it is younger.
const FRESH: Duration = Duration::from_millis(700);
/// How long somebody waits for an answer before the last one is shown again.
const PATIENCE: Duration = Duration::from_millis(2500);
/// How long the end of the job may follow the end of a connection.
const END_FOLLOWS: Duration = Duration::from_millis(500);

/// A job that is looked at.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) found: Found,
    pub(super) model: Model,
    pub(super) line: Line,
    /// Where its transcript is, once that was asked.
    pub(super) transcript: Option<PathBuf>,
    status: Option<Connection>,
    /// When the request was sent that is not answered.
    asked: Option<Instant>,
    /// When it was asked last, with or without an answer.
    tried: Option<Instant>,
    /// Waits for the end of the job.
    end: Option<Connection>,
}

impl Watched {
    pub(super) fn new(found: Found) -> Watched {
        Watched {
            found,
            model: Model::default(),
            line: Line::Live,
            transcript: None,
            status: None,
            asked: None,
            tried: None,
            end: None,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.line, Line::Over { .. } | Line::Gone(_))
    }

    /// Whether its report is there, or will be in a moment: a job that succeeded has one only if it was detached.
    pub(super) fn leaves_report(&self) -> bool {
        let is_detached = self.model.status().is_some_and(|status| status.detached);
        matches!(self.line, Line::Over { exit_code, .. } if exit_code != 0 || is_detached)
    }

    /// Asks the job, unless it has just answered. Blocks.
    pub(super) fn refresh(&mut self) {
        let is_fresh = self.tried.is_some_and(|tried| tried.elapsed() < FRESH);
        if self.is_over() || is_fresh {
            return;
        }
        match self.ask() {
            Ok(()) => self.line = Line::Live,
            Err(silence) => self.lost(silence),
        }
        self.tried = Some(Instant::now());
    }

    fn ask(&mut self) -> Result<(), Silence> {
        if self.end.is_none() {
            let mut end = self.found.connect(Duration::ZERO)?;
            end.send(&[Request::Wait])?;
            self.end = Some(end);
        }
        match self.ask_once() {
            // The front closes a connection on which nothing was asked for a while.
            Err(Silence::Ended) if !self.hear_end(Duration::ZERO)? => {
                (self.status, self.asked) = (None, None);
                self.ask_once()
            }
            asked => asked,
        }
    }

    fn ask_once(&mut self) -> Result<(), Silence> {
        let mut status = match self.status.take() {
            Some(status) => status,
            None => {
                // What was asked on another connection has no answer on this one.
                self.asked = None;
                self.found.connect(Duration::ZERO)?
            }
        };
        if self.asked.is_none() {
            status.send(&[Request::Status { ranks: true, measure: true }])?;
            self.asked = Some(Instant::now());
        }
        let answer = match status.receive(Some(PATIENCE)) {
            Err(silence @ (Silence::TimedOut { .. } | Silence::Paused { .. })) => {
                // It may answer later.
                self.status = Some(status);
                return Err(silence);
            }
            answer => answer?,
        };
        (self.status, self.asked) = (Some(status), None);
        match answer {
            Answer::Status(status) => {
                self.model.take(*status);
                Ok(())
            }
            other => Err(Silence::Nonsense(format!("{other:?}"))),
        }
    }

    /// Whether the job is over: that is told on a connection of its own, and may come a moment after the end of the others.
    fn hear_end(&mut self, bound: Duration) -> Result<bool, Silence> {
        let Some(end) = &mut self.end else { return Ok(false) };
        let answer = match bound.is_zero() {
            true => end.next_answer(),
            false => end.receive(Some(bound)).map(Some),
        };
        match answer {
            Ok(Some(Answer::Over { exit_code, summary, .. })) => {
                self.line = Line::Over { exit_code, summary };
                self.close();
                Ok(true)
            }
            Ok(None) | Err(Silence::TimedOut { .. } | Silence::Paused { .. }) => Ok(false),
            Ok(Some(_)) => Ok(false),
            Err(silence) => {
                self.end = None;
                Err(silence)
            }
        }
    }

    fn close(&mut self) {
        (self.status, self.end, self.asked) = (None, None, None);
    }

    fn lost(&mut self, silence: Silence) {
        if self.is_over() {
            return;
        }
        let line = match silence {
            Silence::Paused { front } => Line::Paused(front),
            Silence::TimedOut { .. } => Line::Silent(self.asked.map_or(0.0, |asked| asked.elapsed().as_secs_f64())),
            Silence::NoFront | Silence::Ended => {
                if matches!(self.hear_end(END_FOLLOWS), Ok(true)) {
                    return;
                }
                match self.found.is_held() {
                    // Another one takes its place.
                    true if self.found.has_heir() => Line::Silent(0.0),
                    true => Line::Gone("its front is gone: its agent ends the ranks".to_owned()),
                    false => Line::Gone("the job is gone, and its front has said nothing".to_owned()),
                }
            }
            silence => Line::Gone(in_words(&silence)),
        };
        if matches!(line, Line::Gone(_)) {
            self.close();
        }
        self.line = line;
    }
}
