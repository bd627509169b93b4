//! The connections to a job: its status once a second, its end, and what the user asks for.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rankrun_core::Rank;
use rankrun_core::control::{Answer, Request};
use rankrun_core::top::Model;

use super::draw::Line;
use super::view::{Action, View};
use crate::commands::jobs::{Connection, Found, Silence};

/// How often the job is asked.
const STEP: Duration = Duration::from_secs(1);
/// After this time without an answer, the user is told.
const PATIENCE: Duration = Duration::from_millis(2500);

/// A job that is looked at.
pub(super) struct Feed {
    found: Found,
    status: Option<Connection>,
    /// When the request was sent that is not answered.
    asked: Option<Instant>,
    next: Instant,
    /// Waits for the end of the job.
    end: Option<Connection>,
    /// What the user has asked for.
    errand: Option<(Errand, Connection)>,
    pub(super) line: Line,
}

/// What the user has asked for.
#[derive(Clone, Copy)]
enum Errand {
    Stack(Rank),
    Restart,
    Stop,
}

impl Feed {
    pub(super) fn new(found: Found, now: Instant) -> Feed {
        Feed { found, status: None, asked: None, next: now, end: None, errand: None, line: Line::Live }
    }

    fn is_over(&self) -> bool {
        matches!(self.line, Line::Over { .. } | Line::Gone(_))
    }

    /// When [`Feed::tick`] is due.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.is_over()).then_some(self.next)
    }

    /// The sockets that may have answers.
    pub(super) fn sockets(&self) -> Vec<BorrowedFd<'_>> {
        let errand = self.errand.as_ref().map(|(_, connection)| connection);
        [self.status.as_ref(), self.end.as_ref(), errand].into_iter().flatten().map(AsFd::as_fd).collect()
    }

    /// Asks, if it is time. Returns whether the picture has changed.
    pub(super) fn tick(&mut self, now: Instant) -> bool {
        if self.is_over() || now < self.next {
            return false;
        }
        // After a stop of this process nothing is made up for.
        self.next = (self.next + STEP).max(now + STEP / 2);
        if let Some(asked) = self.asked {
            let silence = now.saturating_duration_since(asked);
            if silence >= PATIENCE {
                self.line = match self.status.as_ref().map(Connection::check_paused) {
                    Some(Err(Silence::Paused { front })) => Line::Paused(front),
                    _ => Line::Silent(silence.as_secs_f64()),
                };
                return true;
            }
            return false;
        }
        match self.ask(now) {
            Ok(()) => false,
            Err(silence) => self.lost(silence),
        }
    }

    fn ask(&mut self, now: Instant) -> Result<(), Silence> {
        if self.end.is_none() {
            let mut end = self.found.connect(Duration::ZERO)?;
            end.send(&[Request::Wait])?;
            self.end = Some(end);
        }
        let mut status = match self.status.take() {
            Some(status) => status,
            None => self.found.connect(Duration::ZERO)?,
        };
        status.send(&[Request::Status { ranks: true, measure: true }])?;
        (self.status, self.asked) = (Some(status), Some(now));
        Ok(())
    }

    /// A connection is not there. Whether the job is over is said by the other one, or its directory.
    fn lost(&mut self, silence: Silence) -> bool {
        (self.status, self.asked) = (None, None);
        self.line = match silence {
            Silence::Paused { front } => Line::Paused(front),
            Silence::TimedOut { .. } => Line::Silent(0.0),
            // An idle connection is closed, as after a stop of this process.
            Silence::Ended if self.end.is_some() => return false,
            // Another one takes its place.
            Silence::NoFront | Silence::Ended if self.found.has_heir() => Line::Silent(0.0),
            Silence::NoFront | Silence::Ended if self.found.is_held() => {
                Line::Gone("its front is gone: its agent ends the ranks".to_owned())
            }
            Silence::NoFront | Silence::Ended => {
                Line::Gone("the job is gone, and its front has said nothing".to_owned())
            }
            Silence::Nonsense(why) => Line::Gone(format!("its answer is not understood: {why}")),
            Silence::Io(error) => Line::Gone(format!("it cannot be asked: {}", rankrun_sys::reason(&error))),
        };
        true
    }

    /// Reads what has come. Returns whether the picture has changed.
    pub(super) fn read(&mut self, model: &mut Model, view: &mut View) -> bool {
        let mut is_changed = self.read_errand(view);
        if let Some(status) = &mut self.status {
            match status.next_answer() {
                Ok(None) => {}
                Ok(Some(Answer::Status(status))) => {
                    model.take(*status);
                    self.asked = None;
                    if !self.is_over() {
                        self.line = Line::Live;
                    }
                    is_changed = true;
                }
                Ok(Some(other)) => {
                    is_changed = self.lost(Silence::Nonsense(format!("{other:?}")));
                }
                // The end of the job is told on the other connection, and may come a moment later.
                Err(silence) => is_changed |= self.lost(silence),
            }
        }
        if let Some(end) = &mut self.end {
            match end.next_answer() {
                Ok(None) => {}
                Ok(Some(Answer::Over { exit_code, summary, .. })) => {
                    (self.status, self.end, self.asked) = (None, None, None);
                    self.line = Line::Over { exit_code, summary };
                    is_changed = true;
                }
                Ok(Some(_)) | Err(_) => {
                    self.end = None;
                    is_changed |= self.lost(Silence::Ended);
                }
            }
        }
        is_changed
    }

    /// Sends what the user wants.
    pub(super) fn send(&mut self, action: Action, view: &mut View) {
        let (errand, request) = match action {
            Action::Stack(rank) => {
                let ranks = Some(rank.number().to_string());
                (Errand::Stack(rank), Request::Stacks { ranks, native: false, each: true })
            }
            Action::Restart => (Errand::Restart, Request::Restart { wait: false }),
            Action::Stop => (Errand::Stop, Request::Stop { grace: None }),
            Action::Quit | Action::Interrupt | Action::Suspend | Action::Redraw => return,
        };
        if self.is_over() {
            return report(errand, view, "the job is over".to_owned());
        }
        let sent = self.found.connect(Duration::ZERO).and_then(|mut connection| {
            connection.send(&[request])?;
            Ok(connection)
        });
        match sent {
            Ok(connection) => self.errand = Some((errand, connection)),
            Err(silence) => report(errand, view, in_words(&silence)),
        }
    }

    fn read_errand(&mut self, view: &mut View) -> bool {
        let Some((errand, connection)) = &mut self.errand else { return false };
        let errand = *errand;
        let text = match connection.next_answer() {
            Ok(None) => return false,
            Ok(Some(Answer::Stacks { ranks, .. })) => {
                self.errand = None;
                if let Errand::Stack(rank) = errand {
                    view.show_stack(rank, ranks.iter().flat_map(|seen| seen.lines()).collect());
                }
                return true;
            }
            Ok(Some(Answer::Restarting { attempt, .. })) => format!("restarting: attempt {attempt}"),
            Ok(Some(Answer::Stopping { ranks, grace, already })) => {
                let was = if already { "is being stopped already" } else { "stopping" };
                format!("{was}: {ranks} ranks, SIGKILL in {grace:.0} s at the latest")
            }
            Ok(Some(Answer::Refused { error, .. })) => format!("refused: {error}"),
            Ok(Some(_)) => "an answer that does not fit".to_owned(),
            Err(silence) => in_words(&silence),
        };
        self.errand = None;
        report(errand, view, text);
        true
    }
}

/// Says what has come of what the user has asked for.
fn report(errand: Errand, view: &mut View, text: String) {
    match errand {
        Errand::Stack(rank) => view.show_stack(rank, vec![text]),
        Errand::Restart | Errand::Stop => view.say(text),
    }
}

/// Why a job has not answered.
pub(crate) fn in_words(silence: &Silence) -> String {
    match silence {
        Silence::NoFront => "nobody answers for the job".to_owned(),
        Silence::Paused { front } => format!("its rankrun, process {front}, is stopped"),
        Silence::TimedOut { .. } => "it does not answer".to_owned(),
        Silence::Ended => "the front closed the connection before it answered".to_owned(),
        Silence::Nonsense(why) => format!("the answer is not understood: {why}"),
        Silence::Io(error) => format!("it cannot be asked: {}", rankrun_sys::reason(error)),
    }
}
