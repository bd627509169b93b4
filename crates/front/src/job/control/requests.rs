//! What a job does when it is asked.

use std::path::Path;
use std::time::Duration;

use rankrun_core::control::{Answer, Request};
use rankrun_core::gang::{Requester, StopRequest};
use rankrun_core::job::{ClientId, Event, NoRestart};
use rankrun_core::report::Report;
use rankrun_core::stacks::fold::{Seen, Table};
use rankrun_core::{Attempt, ExitCode, RankSet};

use super::clients::Awaits;
use crate::job::front::Front;

impl Front {
    /// The agent has made the job's directory: listens there for requests.
    pub(crate) fn open_control(&mut self, directory: &Path) {
        if let Err(error) = self.control.listen(directory)
            && self.plan.verbosity > 0
        {
            self.note(format!(
                "rankrun status, stop and restart cannot reach this job: {}",
                rankrun_sys::reason(&error)
            ));
        }
    }

    /// An attempt begins, or time has passed: a process may have removed the control socket. Listens again, if its directory is there, and
    /// notes what is missing.
    pub(crate) fn restore_control(&mut self) {
        match (self.control.restore(), self.is_control_lost) {
            (Ok(()), _) => self.is_control_lost = false,
            (Err(_), true) => {}
            (Err(error), false) => {
                self.is_control_lost = true;
                let why = rankrun_sys::reason(&error);
                self.note(format!("a process has removed the control socket: rankrun status, stop and restart cannot reach this job ({why})"));
            }
        }
    }

    /// Another process asks something.
    pub(crate) fn requested(&mut self, client: ClientId, by: Requester, request: Request) {
        match request {
            Request::Status { ranks: true } => {
                self.control.wait(client, Awaits::States);
                self.take(Event::StatesRequest);
            }
            Request::Status { ranks: false } => {
                let status = self.job_status(&self.clock.clone());
                self.answer(client, &Answer::Status(Box::new(status)));
            }
            Request::Stacks { ranks, native, each } => match ranks.as_deref().map(str::parse::<RankSet>).transpose() {
                Ok(ranks) => {
                    self.control.wait(client, Awaits::Stacks);
                    self.take(Event::StacksRequest { client, ranks, native, each });
                }
                Err(error) => {
                    self.answer(client, &Answer::Refused { error: format!("the ranks: {error}"), hint: None });
                }
            },
            Request::Stop { grace } => {
                let answer = self.stop_requested(by, grace);
                self.answer(client, &answer);
            }
            Request::Restart => self.take(Event::RestartRequest { client, by }),
            Request::Up { attempt } => self.control.wait(client, Awaits::Attempt(attempt)),
            Request::Wait => self.control.wait(client, Awaits::End),
        }
    }

    /// Answers a client, and handles the request that it may have sent already.
    pub(super) fn answer(&mut self, client: ClientId, answer: &Answer) {
        let now = self.now();
        self.control.answer(now, client, answer);
        if let Some((by, request)) = self.control.next_request(now, client) {
            self.requested(client, by, request);
        }
    }

    /// Answers those who wait for what has come.
    pub(crate) fn answer_waiting(&mut self) {
        for (client, awaits) in self.control.waiting() {
            if let Awaits::Attempt(attempt) = awaits
                && self.job.was_up(attempt)
            {
                self.answer(client, &Answer::Restarting { attempt, is_up: true });
            }
        }
    }

    /// `rankrun stacks`: where the ranks are.
    pub(crate) fn answer_stacks(&mut self, client: ClientId, table: Box<Table>, ranks: Vec<Seen>) {
        self.answer(client, &Answer::Stacks { table, ranks });
    }

    /// The same, where none of the ranks that it asks for lives.
    pub(crate) fn refuse_stacks(&mut self, client: ClientId) {
        let error = "none of these ranks is running".to_owned();
        let hint = Some(format!("`rankrun status {}` lists the ranks", self.job.spec().job));
        self.answer(client, &Answer::Refused { error, hint });
    }

    /// `rankrun restart`: which attempt is to come, or why none is.
    pub(crate) fn answer_restart(&mut self, client: ClientId, answer: Result<Attempt, NoRestart>) {
        let answer = match answer {
            Ok(attempt) => Answer::Restarting { attempt, is_up: false },
            Err(why) => no_restart(why),
        };
        self.answer(client, &answer);
    }

    /// `rankrun stop`: as SIGTERM.
    fn stop_requested(&mut self, by: Requester, grace: Option<f64>) -> Answer {
        let grace = match grace.map(Duration::try_from_secs_f64).transpose() {
            Ok(grace) => grace,
            Err(error) => return Answer::Refused { error: format!("the grace is no time: {error}"), hint: None },
        };
        let already = self.job.gang().stop_ordered().is_some();
        self.take(Event::StopRequest(StopRequest { by, grace }));
        let left = self.job.gang().grace_until().unwrap_or_default().saturating_sub(self.now());
        Answer::Stopping { ranks: self.job.alive().len() as u32, grace: left.as_secs_f64(), already }
    }

    /// The job is over: tells those who wait for it. They do not delay the end.
    pub(crate) fn answer_end(&mut self, code: ExitCode, report: &Report) {
        let now = self.now();
        for (client, awaits) in self.control.waiting() {
            let answer = match awaits {
                Awaits::Attempt(_) => Answer::Refused {
                    error: format!("the job ended before the new attempt was up: {}", report.summary),
                    hint: None,
                },
                Awaits::Nothing | Awaits::States | Awaits::Stacks | Awaits::End => {
                    Answer::Over { exit_code: code.0, summary: report.summary.clone(), left: Some(report.left.clone()) }
                }
            };
            self.control.answer(now, client, &answer);
        }
    }
}

/// Why a job is not restarted, as the one who asks for it reads it.
fn no_restart(why: NoRestart) -> Answer {
    let (error, hint) = match why {
        NoRestart::Ending => ("it is coming to its end", None),
        NoRestart::Restarting => ("it is being restarted already", None),
        NoRestart::OfRanks => (
            "its ranks are restarted one by one (--restart-scope rank)",
            Some("end the rank that is to be restarted".to_owned()),
        ),
    };
    Answer::Refused { error: error.to_owned(), hint }
}
