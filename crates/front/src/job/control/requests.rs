//! What a job does when it is asked.

use std::path::Path;
use std::time::Duration;

use rankrun_core::control::{Answer, Request};
use rankrun_core::gang::{self, Requester, StopRequest};
use rankrun_core::report::Report;
use rankrun_core::worker::{Stop, StopWhy};
use rankrun_core::{Attempt, ExitCode, RankSet};
use rankrun_sys::signal;

use super::clients::{Awaits, ClientId};
use crate::job::attempts::NoRestart;
use crate::job::event::FrontEffect;
use crate::job::front::Front;
use crate::job::looking::Purpose;

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
            Request::Status { ranks: true } => self.ask_for_states(client),
            Request::Status { ranks: false } => {
                let status = self.job_status(&self.clock.clone());
                self.answer(client, Answer::Status(Box::new(status)));
            }
            Request::Stacks { ranks, native, each } => self.stacks_requested(client, ranks.as_deref(), native, each),
            Request::Stop { grace } => {
                let answer = self.stop_requested(by, grace);
                self.answer(client, answer);
            }
            Request::Restart => {
                let answer = match self.planned_restart(by) {
                    Ok(attempt) => Answer::Restarting { attempt, is_up: false },
                    Err(why) => why.into(),
                };
                self.answer(client, answer);
            }
            Request::Up { attempt } => self.control.wait(client, Awaits::Attempt(attempt)),
            Request::Wait => self.control.wait(client, Awaits::End),
        }
    }

    pub(crate) fn answer(&mut self, client: ClientId, answer: Answer) {
        self.effects.push_back(FrontEffect::Answer { client, answer: Box::new(answer) });
    }

    /// Whether every rank of this attempt, or of a later one, has run.
    fn is_up(&self, attempt: Attempt) -> bool {
        self.attempts.was_up(attempt, self.plan.spec.attempt)
    }

    /// Answers those who wait for what has come.
    pub(crate) fn answer_waiting(&mut self, now: Duration) {
        self.give_up_on_states(now);
        for (client, awaits) in self.control.waiting() {
            if let Awaits::Attempt(attempt) = awaits
                && self.is_up(attempt)
            {
                self.answer(client, Answer::Restarting { attempt, is_up: true });
            }
        }
    }

    /// `rankrun stacks`: the agents have some seconds to answer.
    fn stacks_requested(&mut self, client: ClientId, ranks: Option<&str>, native: bool, each: bool) {
        let ranks = match ranks.map(str::parse::<RankSet>).transpose() {
            Ok(ranks) => ranks.map(|ranks| self.alive().into_iter().filter(|rank| ranks.contains(*rank)).collect()),
            Err(error) => {
                return self.answer(client, Answer::Refused { error: format!("the ranks: {error}"), hint: None });
            }
        };
        if ranks.as_ref().is_some_and(Vec::is_empty) {
            let error = "none of these ranks is running".to_owned();
            let hint = Some(format!("`rankrun status {}` lists the ranks", self.plan.spec.job));
            return self.answer(client, Answer::Refused { error, hint });
        }
        self.control.wait(client, Awaits::Stacks);
        self.look(Purpose::Client { client, each }, ranks, native);
    }

    /// `rankrun stop`: as SIGTERM.
    fn stop_requested(&mut self, by: Requester, grace: Option<f64>) -> Answer {
        let grace = match grace.map(Duration::try_from_secs_f64).transpose() {
            Ok(grace) => grace,
            Err(error) => return Answer::Refused { error: format!("the grace is no time: {error}"), hint: None },
        };
        let already = self.gang.stop_ordered().is_some();
        let first = self.gang.outside().is_none();
        self.event(gang::Event::StopRequest(StopRequest { by, grace }));
        let grace = grace.unwrap_or(self.plan.spec.stop.grace_outside);
        if first && !self.gang.over() && self.plan.verbosity >= 0 {
            let stop = Stop { why: StopWhy::Signal(signal::SIGTERM), grace };
            self.note_stopping(&format!("rankrun stop ({by})"), stop, false, already);
        }
        let left = self.gang.grace_until().unwrap_or_default().saturating_sub(self.now());
        Answer::Stopping { ranks: self.alive().len() as u32, grace: left.as_secs_f64(), already }
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

impl From<NoRestart> for Answer {
    fn from(why: NoRestart) -> Answer {
        match why {
            NoRestart::Ending => Answer::Refused { error: "it is coming to its end".to_owned(), hint: None },
            NoRestart::Restarting => Answer::Refused { error: "it is being restarted already".to_owned(), hint: None },
            NoRestart::OfRanks => Answer::Refused {
                error: "its ranks are restarted one by one (--restart-scope rank)".to_owned(),
                hint: Some("end the rank that is to be restarted".to_owned()),
            },
        }
    }
}
