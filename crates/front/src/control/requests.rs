//! What a request asks of the job, and the answers.

use std::time::Duration;

use rankrun_core::control::{Answer, JobStatus, Request};
use rankrun_core::gang::{Requester, StopRequest};
use rankrun_core::job::{ClientId, Event, Job, NoRestart, Wall};
use rankrun_core::report::Report;
use rankrun_core::stacks::fold::{Seen, Table};
use rankrun_core::{Attempt, ExitCode, JobId, RankSet};

use super::clients::{Awaits, Control};
use super::profiling;

impl Control {
    /// Another process asks something. Returns what that is for the job, unless it is answered already.
    pub(crate) fn requested(
        &mut self,
        now: Duration,
        wall: Wall,
        job: &Job,
        (client, by, request): (ClientId, Requester, Request),
    ) -> Option<Event> {
        match request {
            Request::Status { ranks: true, measure } => {
                self.wait(client, Awaits::States);
                Some(Event::StatesRequest { measure })
            }
            Request::Status { ranks: false, .. } => {
                self.answer(now, client, &Answer::Status(Box::new(job.status(wall))));
                None
            }
            Request::Stacks { ranks, native, each } => match ranks.as_deref().map(str::parse::<RankSet>).transpose() {
                Ok(ranks) => {
                    self.wait(client, Awaits::Stacks);
                    Some(Event::StacksRequest { client, ranks, native, each })
                }
                Err(error) => {
                    self.answer(now, client, &Answer::Refused { error: format!("the ranks: {error}"), hint: None });
                    None
                }
            },
            Request::Stop { grace } => match grace.map(Duration::try_from_secs_f64).transpose() {
                Ok(grace) => Some(Event::StopRequest { client, request: StopRequest { by, grace } }),
                Err(error) => {
                    let error = format!("the grace is no time: {error}");
                    self.answer(now, client, &Answer::Refused { error, hint: None });
                    None
                }
            },
            Request::Restart { wait } => {
                if wait {
                    self.wait(client, Awaits::Restart);
                }
                Some(Event::RestartRequest { client, by })
            }
            Request::Wait => {
                self.wait(client, Awaits::End);
                None
            }
            Request::Profile { ranks, seconds, rate, native } => {
                match profiling::request(ranks.as_deref(), seconds, rate, native) {
                    Ok((ranks, spec)) => {
                        self.wait(client, Awaits::Profile);
                        Some(Event::ProfileRequest { client, ranks, spec })
                    }
                    Err(error) => {
                        self.answer(now, client, &Answer::Refused { error, hint: None });
                        None
                    }
                }
            }
            Request::EndProfile => {
                self.answer(now, client, &Answer::EndingProfile);
                Some(Event::ProfileEnd { gone: None })
            }
            // Answered before: they concern the console, which the job knows nothing of.
            Request::Attach | Request::Detach | Request::Input { .. } => None,
        }
    }

    /// `rankrun attach`, or `detach`: the answer follows when the transcript is there.
    pub(crate) fn await_transcript(&mut self, client: ClientId, detaches: bool) {
        self.wait(client, if detaches { Awaits::Detach } else { Awaits::Opening });
    }

    /// Where the transcript is, for those who wait for that. Another answer follows at the end of the job.
    pub(crate) fn answer_attached(&mut self, now: Duration, attached: &Answer) {
        for (client, awaits) in self.waiting() {
            if awaits == Awaits::Opening {
                self.answer(now, client, attached);
                self.wait(client, Awaits::Transcript);
            }
        }
    }

    /// Somebody has typed something: the answer follows when the ranks have read it.
    pub(crate) fn await_input(&mut self, client: ClientId) {
        self.wait(client, Awaits::Input);
    }

    /// The ranks have read what a client has typed, or (false) have closed their stdin; or why it is not for them.
    pub(crate) fn answer_input(&mut self, now: Duration, client: ClientId, result: Result<bool, (&str, &str)>) {
        let answer = match result {
            Ok(read) => Answer::InputTaken { read },
            Err((error, hint)) => Answer::Refused { error: error.to_owned(), hint: Some(hint.to_owned()) },
        };
        self.answer(now, client, &answer);
    }

    /// Whether a client waits until the job has left its terminal.
    pub(crate) fn awaits_detach(&self) -> bool {
        self.waiting().iter().any(|(_, awaits)| *awaits == Awaits::Detach)
    }

    /// The job has left its terminal, or why it does not.
    pub(crate) fn answer_detach(&mut self, now: Duration, result: &Result<(), String>) {
        for (client, awaits) in self.waiting() {
            if awaits == Awaits::Detach {
                let answer = result.as_ref().map_or_else(refusal, |()| Answer::Detached { already: false });
                self.answer(now, client, &answer);
            }
        }
    }

    /// There is no transcript: tells those who look at it.
    pub(crate) fn answer_no_transcript(&mut self, now: Duration, error: &str) {
        for (client, awaits) in self.waiting() {
            if matches!(awaits, Awaits::Opening | Awaits::Transcript) {
                self.answer(now, client, &refusal(error));
            }
        }
    }

    /// Answers those who wait for an attempt, where it or a later one was up.
    pub(crate) fn answer_up(&mut self, now: Duration, last: Option<Attempt>) {
        for (client, awaits) in self.waiting() {
            if let (Awaits::Attempt(awaited), Some(attempt)) = (awaits, last)
                && attempt >= awaited
            {
                self.answer(now, client, &Answer::Restarting { attempt, is_up: true });
            }
        }
    }

    /// What the ranks are doing is known: answers those who have asked.
    pub(crate) fn answer_states(&mut self, now: Duration, status: &JobStatus) {
        for (client, awaits) in self.waiting() {
            if awaits == Awaits::States {
                self.answer(now, client, &Answer::Status(Box::new(status.clone())));
            }
        }
    }

    /// `rankrun stacks`: where the ranks are.
    pub(crate) fn answer_stacks(&mut self, now: Duration, client: ClientId, table: Box<Table>, ranks: Vec<Seen>) {
        self.answer(now, client, &Answer::Stacks { table, ranks });
    }

    /// The same, where none of the ranks that it asks for lives.
    pub(crate) fn refuse_stacks(&mut self, now: Duration, client: ClientId, job: &JobId) {
        let error = "none of these ranks is running".to_owned();
        let hint = Some(format!("`rankrun status {job}` lists the ranks"));
        self.answer(now, client, &Answer::Refused { error, hint });
    }

    /// `rankrun restart`: which attempt is to come, or why none is.
    pub(crate) fn answer_restart(&mut self, now: Duration, client: ClientId, answer: Result<Attempt, NoRestart>) {
        let waits = self.awaits(client) == Awaits::Restart;
        match answer {
            Ok(attempt) => {
                self.answer(now, client, &Answer::Restarting { attempt, is_up: false });
                if waits {
                    self.wait(client, Awaits::Attempt(attempt));
                }
            }
            Err(why) => self.answer(now, client, &no_restart(why)),
        }
    }

    /// The job is over: tells those who wait for it. They do not delay the end.
    pub(crate) fn answer_end(&mut self, now: Duration, code: ExitCode, report: &Report) {
        for (client, awaits) in self.waiting() {
            let answer = match awaits {
                Awaits::Restart | Awaits::Attempt(_) => Answer::Refused {
                    error: format!("the job ended before the new attempt was up: {}", report.summary),
                    hint: None,
                },
                Awaits::Nothing
                | Awaits::Opening
                | Awaits::States
                | Awaits::Stacks
                | Awaits::End
                | Awaits::Transcript
                | Awaits::Profile
                | Awaits::Detach
                | Awaits::Input => {
                    Answer::Over { exit_code: code.0, summary: report.summary.clone(), left: Some(report.left.clone()) }
                }
            };
            self.answer(now, client, &answer);
        }
    }
}

fn refusal(error: impl AsRef<str>) -> Answer {
    Answer::Refused { error: error.as_ref().to_owned(), hint: None }
}

/// Why a job is not restarted, as the one who asks for it reads it.
fn no_restart(why: NoRestart) -> Answer {
    let (error, hint) = match why {
        NoRestart::Ending => ("it is coming to its end", None),
        NoRestart::Failing => (
            "a rank has failed, and it is not decided yet whether another attempt follows",
            Some("ask again in a moment, if none follows by itself".to_owned()),
        ),
        NoRestart::Restarting => ("it is being restarted already", None),
        NoRestart::OfRanks => (
            "its ranks are restarted one by one (--restart-scope rank)",
            Some("end the rank that is to be restarted".to_owned()),
        ),
    };
    Answer::Refused { error: error.to_owned(), hint }
}
