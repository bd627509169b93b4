//! The answer to a request that may be answered.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use rankrun_core::Rank;
use rankrun_core::control::{Answer, Request};
use rankrun_core::overview::Row;
use rankrun_core::printable::{printable, printable_lines};
use serde_json::{Value, json};
use tokio::sync::{Mutex as Chair, Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::kept::{self, Kept};
use super::picture::picture;
use super::routes::{Asked, What};
use super::watched::Watched;
use crate::commands::jobs::{self, ANSWER_BOUND};
use crate::commands::report::Reports;
use crate::commands::status;
use crate::top::in_words;

/// Requests that are answered at a time. Each may hold a thread, as a job may not answer at once; more wait for their turn.
pub(super) const AT_ONCE: usize = 8;
/// How long a request waits for its turn.
const TURN_BOUND: Duration = Duration::from_secs(5);
/// How long a job may take to answer where its ranks are: its agents have some seconds.
const STACK_BOUND: Duration = Duration::from_secs(10);
/// Jobs that ended and are listed.
const ENDED: usize = 50;
/// How long the report may follow the end of its job, and how often it is looked for.
const REPORT_FOLLOWS: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(20);
/// A job that nobody has looked at for so long is let go.
const UNSEEN: Duration = Duration::from_secs(5);

/// What is said: a status, and an object.
pub(super) type Said = (StatusCode, Value);

/// A job that is looked at, and when it was last.
struct Seat {
    watched: Arc<Chair<Watched>>,
    used: Instant,
}

/// What answers.
pub(super) struct Desk {
    reports: Reports,
    seats: Mutex<BTreeMap<String, Seat>>,
    turns: Arc<Semaphore>,
    /// A job is looked at that was not.
    has_job: Notify,
}

impl Desk {
    pub(super) fn new(env: impl Iterator<Item = (OsString, OsString)>) -> Desk {
        let reports = Reports::of_user(env);
        Desk { reports, seats: Mutex::default(), turns: Arc::new(Semaphore::new(AT_ONCE)), has_job: Notify::new() }
    }

    /// Waits until a job is looked at that was not.
    pub(super) async fn wait_for_a_job(&self) {
        self.has_job.notified().await;
    }

    /// Lets go of jobs that nobody looks at. Returns whether some are left.
    pub(super) fn sweep(&self) -> bool {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        seats.retain(|_, seat| seat.used.elapsed() < UNSEEN);
        !seats.is_empty()
    }

    /// Answers what is asked of jobs.
    pub(super) async fn answer(self: Arc<Desk>, asked: Asked) -> Said {
        match asked {
            Asked::Page(..) => nothing("no such page"),
            Asked::Jobs => self.blocking(|| Ok(running())).await,
            Asked::Ended => {
                let desk = Arc::clone(&self);
                self.blocking(move || Ok(desk.ended())).await
            }
            Asked::Job { job, what } => self.of_job(job, what).await,
        }
    }

    async fn of_job(self: Arc<Desk>, job: String, what: What) -> Said {
        let watched = match self.seat(&job).await {
            Ok(Some(watched)) => watched,
            Ok(None) => {
                let desk = Arc::clone(&self);
                return self.blocking(move || desk.of_ended(&job, &what)).await;
            }
            Err(busy) => return busy,
        };
        // One of those who look at a job asks it, and needs a turn: a job that does not answer keeps one turn, not all.
        let Ok(mut watched) = timeout(TURN_BOUND, watched.lock_owned()).await else { return busy() };
        let desk = Arc::clone(&self);
        let work = move || {
            watched.refresh();
            if watched.is_over() && watched.model.status().is_none() {
                return desk.of_ended(&job, &what);
            }
            // A stack takes its time: others who look at the job do not wait for it.
            if let What::Stack(rank) = what {
                let found = watched.found.clone();
                drop(watched);
                return stack(&found, rank);
            }
            desk.of_running(&mut watched, &job, &what)
        };
        self.blocking(work).await
    }

    /// Does something that waits for files or for a job, in a thread. It keeps its turn to its end, also where nobody waits for it any more.
    async fn blocking(&self, work: impl FnOnce() -> Result<Value, Said> + Send + 'static) -> Said {
        let Some(turn) = self.turn().await else { return busy() };
        let work = move || {
            let _turn = turn;
            work()
        };
        match spawn_blocking(work).await {
            Ok(Ok(value)) => (StatusCode::OK, value),
            Ok(Err(said)) => said,
            Err(_) => busy(),
        }
    }

    async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        timeout(TURN_BOUND, Arc::clone(&self.turns).acquire_owned()).await.ok()?.ok()
    }

    /// A job that runs, or ran when it was looked at first.
    ///
    /// # Errors
    ///
    /// Too many others ask: nothing is known of it.
    async fn seat(&self, job: &str) -> Result<Option<Arc<Chair<Watched>>>, Said> {
        if let Some(watched) = self.seated(job) {
            return Ok(Some(watched));
        }
        let name = job.to_owned();
        let Some(turn) = self.turn().await else { return Err(busy()) };
        let found = spawn_blocking(move || {
            let _turn = turn;
            jobs::directories().into_iter().find(|found| found.job == name)
        });
        let Some(found) = found.await.ok().flatten() else { return Ok(None) };
        // Another request may have come first.
        if let Some(watched) = self.seated(job) {
            return Ok(Some(watched));
        }
        let watched = Arc::new(Chair::new(Watched::new(found)));
        let seat = Seat { watched: Arc::clone(&watched), used: Instant::now() };
        self.seats.lock().unwrap_or_else(PoisonError::into_inner).insert(job.to_owned(), seat);
        self.has_job.notify_one();
        Ok(Some(watched))
    }

    fn seated(&self, job: &str) -> Option<Arc<Chair<Watched>>> {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let seat = seats.get_mut(job)?;
        seat.used = Instant::now();
        Some(Arc::clone(&seat.watched))
    }

    fn of_running(&self, watched: &mut Watched, job: &str, what: &What) -> Result<Value, Said> {
        if matches!(what, What::Attempts | What::Report(_)) && watched.leaves_report() {
            self.wait_for_report(job);
        }
        match what {
            What::Ranks(choice) => Ok(picture(&watched.model, &watched.line, choice)),
            What::Output { rank, at } => match transcript(watched)? {
                Some(directory) => output(&directory, *rank, *at),
                None => Ok(json!({ "none": format!(
                    "The job has its output on its own terminal: none is kept. \"rankrun attach {job}\" shows it from now on; a job that was \
                     started with --detach, or left by \"rankrun detach\", keeps it."
                ) })),
            },
            What::Attempts => {
                let mut attempts = self.kept(job).map(|kept| kept.attempts()).unwrap_or_default();
                if let Some(status) = watched.model.status().filter(|_| !watched.is_over()) {
                    let present = u64::from(status.attempt.0);
                    if attempts.iter().any(|attempt| attempt["attempt"].as_u64() == Some(present)) {
                        // It has failed, and the next one has not begun.
                        return Ok(json!({ "attempts": attempts }));
                    }
                    let began = watched.model.rows().iter().filter_map(|row| row.status.since).reduce(f64::min);
                    attempts.push(json!({
                        "attempt": status.attempt,
                        "summary": status.state.name(),
                        "began": began.map(|began| (began - status.started).max(0.0)),
                        "ended": null,
                        "now": status.now - status.started,
                        "has_report": false,
                    }));
                }
                Ok(json!({ "attempts": attempts }))
            }
            What::Report(attempt) => self.report(job, *attempt),
            What::Stack(rank) => stack(&watched.found, *rank),
        }
    }

    /// A job that does not run.
    fn of_ended(&self, job: &str, what: &What) -> Result<Value, Said> {
        let kept = self.kept(job);
        let report = kept.as_ref().and_then(|kept| kept.last.as_ref());
        let (Some(kept), Some(report)) = (&kept, report) else {
            return Err(nothing("no job of yours has this id: it does not run here, and has no report"));
        };
        match what {
            What::Ranks(_) => Ok(json!({
                "job": report.job,
                "command": printable(&crate::words::quote_all(&report.command)),
                "title": format!("over, exit code {}", report.exit_code.0),
                "is_over": true,
                "lines": [{ "text": printable(&report.summary), "is_alarm": report.exit_code.0 != 0 }],
                "layout": "ended",
                "total": report.world_size,
                "culprit": report.culprit.as_ref().map(|culprit| culprit.rank),
            })),
            What::Output { rank, at } => {
                let directory = kept.directory.join(rankrun_front::TRANSCRIPT);
                match directory.is_dir() {
                    true => output(&directory, *rank, *at),
                    false => Ok(
                        json!({ "none": "No output of this job is kept: it was on its terminal, or in its --log-dir." }),
                    ),
                }
            }
            What::Attempts => Ok(json!({ "attempts": kept.attempts() })),
            What::Report(attempt) => self.report(job, *attempt),
            What::Stack(_) => Err(nothing("the job has ended")),
        }
    }

    /// A job says that it is over before its report is written.
    fn wait_for_report(&self, job: &str) {
        let begun = Instant::now();
        while begun.elapsed() < REPORT_FOLLOWS && self.kept(job).is_some_and(|kept| kept.last.is_none()) {
            rankrun_sys::poll::pause(LOOK);
        }
    }

    fn kept(&self, job: &str) -> Option<Kept> {
        let (directory, last, failed) = self.reports.of_job(job)?;
        Some(Kept { directory, last, failed })
    }

    /// The report as it is printed; while the job runs, that of an attempt that has failed.
    fn report(&self, job: &str, attempt: Option<u32>) -> Result<Value, Said> {
        let kept = self.kept(job).ok_or_else(|| nothing("HOME is not set: no reports are kept"))?;
        let named = |number: u32| kept.failed.iter().find(|report| report.attempt == number);
        let report = match attempt {
            Some(number) => named(number).or(kept.last.as_ref().filter(|last| last.attempt == number)),
            None => kept.last.as_ref(),
        };
        let report =
            report.ok_or_else(|| nothing("there is no report: a job that succeeds has none, nor has one that runs"))?;
        let look = rankrun_core::text::Look { saved: None, color: false, is_quoted_above: false };
        let text = rankrun_core::text::render(report, look);
        Ok(json!({ "attempt": report.attempt, "text": printable_lines(&text) }))
    }

    fn ended(&self) -> Value {
        let reports = self.reports.newest(ENDED).into_iter().map(|report| {
            json!({
                "job": report.job,
                "started": report.started,
                "seconds": report.seconds,
                "exit_code": report.exit_code,
                "ranks": report.world_size,
                "summary": printable(&report.summary),
            })
        });
        json!({ "ended": reports.collect::<Vec<_>>() })
    }
}

fn busy() -> Said {
    (StatusCode::SERVICE_UNAVAILABLE, json!({ "error": "too much is asked at a time: try again" }))
}

fn nothing(why: &str) -> Said {
    (StatusCode::NOT_FOUND, json!({ "error": why }))
}

fn failed(why: String) -> Said {
    (StatusCode::BAD_GATEWAY, json!({ "error": printable(&why) }))
}

fn running() -> Value {
    let jobs = status::rows().into_iter().map(|row| {
        let Row { job, since, attempt, ranks, state, command } = row;
        json!({
            "job": job, "since": since, "attempt": attempt, "ranks": ranks, "state": state, "command": printable(&command),
        })
    });
    json!({ "jobs": jobs.collect::<Vec<_>>() })
}

/// The directory of the transcript of a running job, if the job keeps one.
fn transcript(watched: &mut Watched) -> Result<Option<PathBuf>, Said> {
    if watched.model.status().is_none() && !watched.is_over() {
        return Err(failed("its front does not answer yet".to_owned()));
    }
    let is_detached = watched.model.status().is_some_and(|status| status.detached);
    if watched.transcript.is_none() && is_detached && !watched.is_over() {
        match watched.found.ask(Request::Attach, ANSWER_BOUND) {
            Ok(Answer::Attached { transcript, .. }) => watched.transcript = Some(transcript.into()),
            Ok(Answer::Refused { error, .. }) => return Err(failed(error)),
            Ok(_) => return Err(failed("the answer does not fit".to_owned())),
            Err(silence) => return Err(failed(in_words(&silence))),
        }
    }
    Ok(watched.transcript.clone())
}

fn output(directory: &Path, rank: Rank, at: Option<u64>) -> Result<Value, Said> {
    kept::output(directory, rank, at)
        .map_err(|error| failed(format!("cannot read the output: {}", rankrun_sys::reason(&error))))
}

fn stack(found: &jobs::Found, rank: Rank) -> Result<Value, Said> {
    let ranks = Some(rank.number().to_string());
    match found.ask(Request::Stacks { ranks, native: false, each: true }, STACK_BOUND) {
        Ok(Answer::Stacks { ranks, .. }) => {
            let lines = ranks.iter().flat_map(|seen| seen.lines());
            Ok(json!({ "lines": lines.map(|line| printable(&line).into_owned()).collect::<Vec<_>>() }))
        }
        Ok(Answer::Refused { error, .. }) => Err(failed(error)),
        Ok(_) => Err(failed("the answer does not fit".to_owned())),
        Err(silence) => Err(failed(in_words(&silence))),
    }
}
