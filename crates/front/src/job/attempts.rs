//! Attempts: what follows the end of one, and the start of the next.
//!
//! An attempt is over when every agent has reported that no process of it is left, and has sent all its output. Only then does
//! the policy decide ([`rankrun_core::restart`]). The next attempt has a gang of its own; clock, destinations and agents go on.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rankrun_core::event::JobEvent;
use rankrun_core::evidence::Class;
use rankrun_core::gang::{self, Gang, Outside, Requester};
use rankrun_core::job::{OnGiveup, StdinTarget};
use rankrun_core::report::{AttemptReport, Report};
use rankrun_core::restart::{Answer, Decision, Event, GiveUp, Outcome, Restarter, spoken};
use rankrun_core::verdict::{Verdict, verdict};
use rankrun_core::{Attempt, JobSpec, Rank};
use rankrun_wire::ToAgent;

use crate::delivery::{LastLines, LastWords, Stamp, Task};
use crate::job::front::Front;
use crate::job::hooks::HookWatch;
use crate::job::on_failure::{Asked, requeue};
use crate::job::report;

/// How long the file that shows progress may take to answer.
const STAMP_BOUND: Duration = Duration::from_millis(200);
/// A wait that is not worth a word.
const MOMENT: Duration = Duration::from_millis(1);

/// What is known of the attempts of a job.
#[derive(Debug)]
pub(crate) struct Attempts {
    policy: Restarter,
    seed: u64,
    /// A user has asked for the next one, which is to come.
    is_planned: bool,
    /// When the present one began.
    began: Duration,
    /// The ranks whose last words have been read, each once.
    pub(crate) are_read: BTreeSet<Rank>,
    /// Those before.
    past: Vec<AttemptReport>,
    /// The present one is over, and the next begins then.
    next_at: Option<Duration>,
    /// The file that shows progress, when it was last looked at; and by when it must have been, at the end of an attempt.
    stamp: Option<Stamp>,
    stamp_by: Option<Duration>,
    /// `--on-failure` is being asked about the present one, which has this report.
    asked: Option<Asked>,
    undecided: Option<Box<Report>>,
    /// The failure that the present one follows, until all its ranks run.
    failed_at: Option<Duration>,
    /// When those that have not are too late.
    ready_by: Option<Duration>,
    /// The ranks of the present one that have said that they are ready.
    ready: BTreeSet<Rank>,
    /// The ranks that somebody has stopped: when they count as failed, and the signal.
    pub(crate) stopped: BTreeMap<Rank, (Duration, i32)>,
    /// The scheduler is to be asked to run the job again.
    is_to_requeue: bool,
    /// Stdin cannot be read again, and nobody has been told.
    is_stdin_gone: bool,
    /// Why no other follows, if the policy would have allowed one.
    given_up: Option<String>,
}

impl Attempts {
    pub(crate) fn new(spec: &JobSpec, seed: u64) -> Attempts {
        Attempts {
            policy: Restarter::new(&spec.restart, seed),
            seed,
            is_planned: false,
            began: Duration::ZERO,
            are_read: BTreeSet::new(),
            past: Vec::new(),
            next_at: None,
            stamp: None,
            stamp_by: None,
            asked: None,
            undecided: None,
            failed_at: None,
            ready_by: spec.restart.ready_timeout,
            ready: BTreeSet::new(),
            stopped: BTreeMap::new(),
            is_to_requeue: false,
            is_stdin_gone: spec.io.stdin != StdinTarget::None && is_stream(rustix::stdio::stdin()),
            given_up: None,
        }
    }

    /// When [`Front::attempt_due`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let stopped = self.stopped.values().map(|(due, _)| *due).min();
        [self.next_at, self.ready_by, self.stamp_by, stopped].into_iter().flatten().min()
    }

    /// Whether one attempt is over and the next has not begun.
    pub(crate) fn is_between(&self) -> bool {
        self.next_at.is_some() || self.asked.is_some() || self.stamp_by.is_some()
    }

    /// Those before the present one.
    pub(crate) fn past(&self) -> &[AttemptReport] {
        &self.past
    }

    /// Why no other attempt follows, if one was allowed in principle.
    pub(crate) fn given_up(&self) -> Option<&str> {
        self.given_up.as_deref()
    }

    /// A rank has a successor: what it was is told in the report.
    pub(crate) fn keep(&mut self, past: AttemptReport) {
        self.past.push(past);
    }

    /// No other attempt follows, for this reason.
    pub(crate) fn give_up(&mut self, why: String) {
        self.given_up.get_or_insert(why);
    }
}

impl Front {
    /// An agent has sent all of its attempt. When all have, the policy decides what follows.
    pub(crate) fn attempt_drained(&mut self) {
        if (!self.plan.spec.restart.is_on() || self.successors.are_on()) && !self.attempts.is_planned {
            for node in self.nodes.iter_mut().filter(|node| node.is_drained) {
                // The agent ends by itself now.
                node.link = None;
            }
            return;
        }
        if !self.nodes.iter().all(|node| node.is_drained) || self.attempts.is_between() {
            return;
        }
        if self.plan.spec.restart.progress_file.is_some() {
            self.attempts.stamp_by = Some(self.now() + STAMP_BOUND);
            self.look_for_progress();
            return;
        }
        self.attempt_over();
    }

    /// Asks whether the file that shows progress has changed.
    fn look_for_progress(&mut self) {
        if let Some(file) = self.plan.spec.restart.progress_file.clone() {
            let now = self.now();
            self.delivery.files.submit(now, Task::Stamp(file.into()));
        }
    }

    /// The file that shows progress has been looked at, or does not answer.
    fn hear_of_progress(&mut self, now: Duration) {
        for stamp in std::mem::take(&mut self.delivery.stamps) {
            if self.attempts.stamp.replace(stamp).is_some_and(|before| before != stamp) {
                self.decide(None, Event::Progress);
            }
            if self.attempts.stamp_by.take().is_some() {
                self.attempt_over();
            }
        }
        if self.attempts.stamp_by.take_if(|by| *by <= now).is_some() {
            self.attempt_over();
        }
    }

    /// Nothing of the attempt is left, and all is known of it: the policy decides.
    fn attempt_over(&mut self) {
        self.print_rest();
        self.read_last_words();
        let verdict = verdict(&self.gang);
        let end = self.end(true, true);
        let report = report::make(&self.facts, &self.gang, &verdict, &end, |rank| self.last_words.of(rank));
        let now = self.now();
        let outcome = self.outcome(&verdict, &report);
        let decision = self.decide(None, Event::Ended(outcome)).unwrap_or(Decision::Done);
        if !self.ask(&report) {
            self.follow(now, decision, &report);
        } else {
            self.attempts.undecided = Some(Box::new(report));
        }
    }

    /// Whether somebody or something has ended the job, and not only an attempt.
    fn is_ended_from_outside(&self) -> bool {
        self.gang.outside().is_some_and(|outside| outside != Outside::Restart)
    }

    /// What the policy must know of an attempt.
    fn outcome(&self, verdict: &Verdict, report: &Report) -> Outcome {
        let by_user = verdict.interrupted.is_some() || self.is_ended_from_outside();
        Outcome {
            code: report.exit_code,
            is_not_ready: verdict.class == Some(Class::NotReady),
            is_left: !report.left.processes.is_empty() || report.left.released > 0,
            ..Outcome::of(verdict, by_user)
        }
    }

    /// Asks `--on-failure`, if there is one and the end is a failure. Returns whether an answer follows.
    fn ask(&mut self, report: &Report) -> bool {
        let Some(own) = self.plan.spec.restart.on_failure.clone().filter(|_| self.attempts.policy.asks()) else {
            return false;
        };
        let asked = report::to_json(report).and_then(|json| Asked::ask(&own, json, self.waker.handle()?));
        match asked {
            Ok(asked) => self.attempts.asked = Some(asked),
            Err(error) => self.note(format!("cannot ask --on-failure: {}", rankrun_sys::reason(&error))),
        }
        self.attempts.asked.is_some()
    }

    /// `--on-failure` may have answered.
    pub(crate) fn hear_answer(&mut self) {
        let Some(answer) = self.attempts.asked.as_ref().and_then(Asked::answer) else { return };
        self.attempts.asked = None;
        let answer = answer.unwrap_or_else(|why| {
            self.note(format!("--on-failure: {why}: the job's own policy decides"));
            Answer::Own
        });
        let Some(report) = self.attempts.undecided.take() else { return };
        let now = self.now();
        let decision = self.decide(None, Event::Answered(answer)).unwrap_or(Decision::Done);
        self.follow(now, decision, &report);
    }

    /// Does what was decided.
    fn follow(&mut self, now: Duration, decision: Decision, report: &Report) {
        match decision {
            Decision::Done => self.end_agents(),
            Decision::GiveUp { why } => {
                // That there was only one attempt is no news where one more was never wanted.
                let is_news = why != GiveUp::NoBudget;
                self.attempts.given_up = is_news.then(|| why.to_string());
                self.attempts.is_to_requeue = self.plan.spec.restart.on_giveup == OnGiveup::Requeue;
                self.end_agents();
            }
            Decision::Restart { after, attempt, because, .. } => {
                self.plan_attempt(now, after, attempt, &because, report);
            }
        }
    }

    /// Notes the end of an attempt, and when the next begins.
    fn plan_attempt(&mut self, now: Duration, after: Duration, attempt: Attempt, because: &str, report: &Report) {
        let seconds = now.saturating_sub(self.attempts.began).as_secs_f64();
        let name = format!("attempt-{}.json", self.plan.spec.attempt);
        let path = self.directory().map(|directory| directory.path.join(&name));
        if let (Some(directory), Some(path), Ok(bytes)) = (self.directory(), path.clone(), report::to_json(report)) {
            self.delivery.files.submit(now, Task::Save { directory: Some(directory), path, bytes });
        }
        let home = self.plan.report.home.clone();
        self.attempts.past.push(AttemptReport {
            attempt: self.plan.spec.attempt.0,
            summary: report.summary.clone(),
            exit_code: report.exit_code,
            class: report.class,
            rank: report.culprit.as_ref().map(|culprit| culprit.rank),
            began: self.attempts.began.as_secs_f64(),
            seconds,
            report: path.map(|path| report::shorten_home(&path, home.as_deref())),
        });
        let wait = spoken_wait(after);
        self.note(format!("attempt {} is over after {seconds:.2} s: {because}", self.plan.spec.attempt));
        self.note(format!("restarting all ranks{wait}: attempt {attempt}"));
        if std::mem::take(&mut self.attempts.is_stdin_gone) {
            self.note("stdin is a pipe: what an attempt has read of it, the next does not get again".to_owned());
        }
        self.attempts.failed_at = self.gang.stop_ordered().or(Some(now));
        self.attempts.next_at = Some(now + after);
        self.drain_until = None;
    }

    /// Does what is due: ranks that were stopped for too long or are not ready have failed; the next attempt begins when
    /// what was written before is in its files.
    pub(crate) fn attempt_due(&mut self, now: Duration) {
        self.hear_of_progress(now);
        while let Some((&rank, &(_, signal))) = self.attempts.stopped.iter().find(|(_, (due, _))| *due <= now) {
            self.attempts.stopped.remove(&rank);
            self.event(gang::Event::Stopped { rank, signal });
        }
        if self.attempts.ready_by.take_if(|by| *by <= now).is_some() {
            let after = self.plan.spec.restart.ready_timeout.unwrap_or_default();
            let late =
                (0..self.plan.spec.map.world_size()).map(Rank).filter(|rank| !self.attempts.ready.contains(rank));
            for rank in late.collect::<Vec<_>>() {
                self.event(gang::Event::NotReady { rank, after });
            }
        }
        if !self.attempts.is_between() || self.attempts.stamp_by.is_some() {
            return;
        }
        if let Some(outside) = self.gang.outside().filter(|_| self.is_ended_from_outside()) {
            let what = match outside {
                Outside::Signal(_) | Outside::Interrupted(_) => "ended by a signal",
                Outside::Restart => return,
                Outside::Timeout => "the time limit was reached",
                Outside::OutputGone | Outside::OutputFailed => "its output could not be written",
                Outside::AgentLost | Outside::GuardLost | Outside::WireUpLost => "rankrun's own processes were lost",
            };
            (self.attempts.next_at, self.attempts.asked, self.attempts.undecided) = (None, None, None);
            self.attempts.given_up = Some(format!("{what} before the next attempt began"));
            self.end_agents();
            return;
        }
        if self.attempts.next_at.is_some_and(|due| due <= now) && !self.delivery.is_logging() {
            self.attempts.next_at = None;
            self.begin_attempt(now);
        }
    }

    fn begin_attempt(&mut self, now: Duration) {
        let plan = &mut self.plan;
        plan.spec.attempt = Attempt(plan.spec.attempt.0 + 1);
        if let Some(logs) = &plan.logs
            && logs.are_for_each_attempt(&plan.spec)
        {
            let (places, world_size) = (logs.places(&plan.spec), plan.spec.map.world_size());
            self.delivery.files.submit(now, Task::OpenLogs { places, world_size });
        }
        self.gang = Gang::new(plan.spec.map.world_size(), self.facts.rules.clone());
        self.last_words = LastWords::default();
        self.last_lines = LastLines::default();
        self.hooks = HookWatch::new(plan.verbosity > 0, plan.timeout);
        self.standings.clear();
        (self.alive_due, self.drain_until, self.salvage) = (None, None, None);
        (self.attempts.began, self.attempts.is_planned) = (now, false);
        self.attempts.are_read.clear();
        self.attempts.ready.clear();
        self.attempts.stopped.clear();
        self.attempts.ready_by = plan.spec.restart.ready_timeout.map(|patience| now + patience);
        self.delivery.presenter.begin_attempt();
        for node in &mut self.nodes {
            node.begin_attempt();
        }
        if let Some(terminal) = &mut self.terminal {
            terminal.begin_attempt(&plan.spec.io);
        }
        self.decide(None, Event::Began);
        let facts = self.facts.clone();
        self.delivery.journal.record(now, || JobEvent::Job(Box::new(facts)));
        self.send(ToAgent::Start(Box::new(self.plan.spec.clone())));
    }

    /// A rank runs. When all do, the restart is done.
    pub(crate) fn rank_is_up(&mut self) {
        if self.successors.are_on() || self.gang.ranks().iter().any(|rank| rank.pid.is_none()) {
            return;
        }
        let all = self.gang.ranks().len();
        if self.plan.spec.restart.ready_timeout.is_some() && self.attempts.ready.len() < all {
            return;
        }
        self.attempts.ready_by = None;
        let now = self.now();
        self.decide(None, Event::Up);
        if let Some(failed_at) = self.attempts.failed_at.take() {
            let ranks = match self.gang.ranks().len() {
                1 => "the rank runs".to_owned(),
                ranks => format!("all {ranks} ranks run"),
            };
            let took = now.saturating_sub(failed_at).as_secs_f64();
            self.note(format!(
                "restarted: {ranks} (attempt {}, {took:.2} s after the failure)",
                self.plan.spec.attempt
            ));
        }
    }

    /// Feeds an event to the policy of the job, or of a rank, and journals both the event and what is decided.
    pub(crate) fn decide(&mut self, rank: Option<Rank>, event: Event) -> Option<Decision> {
        let now = self.now();
        let is_told = self.plan.spec.restart.is_on() || self.attempts.is_planned;
        let journal = &mut self.delivery.journal;
        if is_told {
            journal.record(now, || JobEvent::Attempt { rank, event: event.clone() });
        }
        let policy = match rank {
            Some(rank) => self.successors.policy(rank),
            None => &mut self.attempts.policy,
        };
        let decision = policy.handle(now, event)?;
        if is_told {
            journal.record(now, || JobEvent::Restart { rank, decision: decision.clone() });
        }
        Some(decision)
    }

    /// A rank has done a step of its work.
    pub(crate) fn has_progressed(&mut self, rank: Rank) {
        self.decide(self.successors.are_on().then_some(rank), Event::Progress);
    }

    /// The first attempt begins.
    pub(crate) fn begin_attempts(&mut self) {
        let restart = &self.plan.spec.restart;
        if restart.is_on() {
            let (spec, seed) = (Box::new(restart.clone()), self.attempts.seed);
            self.delivery.journal.record(Duration::ZERO, || JobEvent::Policy { spec, seed });
            if self.plan.verbosity > 0 {
                self.note(format!("restarts: {}", self.attempts.policy.sentence()));
            }
        }
        self.decide(None, Event::Began);
        self.look_for_progress();
    }

    /// A user asks for a new attempt, which costs no budget. Returns its number.
    pub(crate) fn planned_restart(&mut self, by: Requester) -> Result<Attempt, NoRestart> {
        if self.successors.are_on() {
            return Err(NoRestart::OfRanks);
        }
        if self.attempts.is_planned {
            return Err(NoRestart::Restarting);
        }
        let is_ending = self.gang.stop_ordered().is_some() && !self.attempts.is_between();
        if is_ending || self.attempts.stamp_by.is_some() {
            return Err(NoRestart::Ending);
        }
        self.attempts.is_planned = true;
        let Some(Decision::Restart { attempt, .. }) = self.decide(None, Event::Planned) else {
            self.attempts.is_planned = false;
            return Err(NoRestart::Ending);
        };
        if self.attempts.is_between() {
            self.note(format!("rankrun restart ({by}): attempt {attempt} begins now"));
            if let Some(report) = self.attempts.undecided.take() {
                self.plan_attempt(self.now(), Duration::ZERO, attempt, "a restart was asked for", &report);
            }
            (self.attempts.asked, self.attempts.next_at) = (None, Some(self.now()));
        } else {
            self.note(format!("rankrun restart ({by}): ending attempt {}", self.plan.spec.attempt));
            // An agent whose job is not restarted by itself would end after this attempt.
            self.send(ToAgent::Stay);
            self.event(gang::Event::RestartRequest);
        }
        Ok(attempt)
    }

    /// A rank has said that it is ready to work.
    pub(crate) fn rank_is_ready(&mut self, rank: Rank) {
        self.attempts.ready.insert(rank);
        self.rank_is_up();
    }

    /// No attempt follows: the agents end.
    fn end_agents(&mut self) {
        for node in &mut self.nodes {
            if let Some(link) = &mut node.link {
                // It ends as well when the stream is closed.
                let _ = link.send(&ToAgent::End);
            }
            node.link = None;
        }
    }

    /// After the end of the job: asks the scheduler to run it again, if that is wanted.
    pub(crate) fn requeue(&mut self) {
        if self.attempts.is_to_requeue {
            let (Ok(text) | Err(text)) = requeue(&self.plan.spec.base_env);
            self.note(text);
        }
    }

    /// Shows what is kept for the end of an attempt.
    fn print_rest(&mut self) {
        loop {
            let now = self.now();
            let more = self.delivery.presenter.finish(now);
            self.hand_on();
            if !more {
                return;
            }
        }
    }
}

/// Why a job is not restarted, although somebody asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoRestart {
    /// It is coming to its end.
    Ending,
    /// It has been asked for already.
    Restarting,
    /// Each rank is restarted by itself.
    OfRanks,
}

/// How long it is until an attempt begins, in a sentence that says that it does.
pub(crate) fn spoken_wait(after: Duration) -> String {
    if after < MOMENT { String::new() } else { format!(" in {}", spoken(after)) }
}

/// Whether what is read from this cannot be read again.
fn is_stream(stdin: BorrowedFd<'_>) -> bool {
    use rustix::fs::FileType;
    let kind = rustix::fs::fstat(stdin).map(|found| FileType::from_raw_mode(found.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket))
}
