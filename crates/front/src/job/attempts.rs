//! Attempts: what follows the end of one, and the start of the next.
//!
//! An attempt is over when every agent has reported that no process of it is left, and has sent all its output. Only then does
//! the policy decide ([`rankrun_core::restart`]). The next attempt has a gang of its own; clock, destinations and agents go on.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rankrun_core::event::JobEvent;
use rankrun_core::evidence::Class;
use rankrun_core::fence::Clearance;
use rankrun_core::gang::{self, Gang, Outside};
use rankrun_core::headline::ended_by;
use rankrun_core::job::{OnGiveup, StdinTarget};
use rankrun_core::past::PastAttempts;
use rankrun_core::report::{AttemptReport, Report};
use rankrun_core::restart::{self, Answer, AnswerError, Decision, Event, GiveUp, Outcome, Restarter};
use rankrun_core::verdict::{Verdict, verdict};
use rankrun_core::{Attempt, ExitCode, JobSpec, Rank, WorkerId, WorkerStatus};
use rankrun_wire::ToAgent;

use crate::delivery::{LastLines, LastWords, Stamp, Task, report_of};
use crate::job::alone::MpiWatch;
use crate::job::front::Front;
use crate::job::hooks::HookWatch;
use crate::job::on_failure::Asked;
use crate::job::proof::Clearing;
use crate::job::report;
use crate::job::signals::Roll;
use crate::nodes::NodeHandle;

mod opening;
mod planned;
mod progress;

pub(crate) use planned::NoRestart;

/// Why a job whose guard or agent is lost is not restarted.
const OWN_LOST: &str = "rankrun's own processes were lost";
/// A wait that is not worth a word.
const MOMENT: Duration = Duration::from_millis(1);

/// What the present attempt has come to.
#[derive(Debug, Default)]
enum Phase {
    /// Its ranks are being started, run or end, or their output is still to come.
    #[default]
    Running,
    /// Every agent has sent everything. What was kept for the end of the attempt is being shown.
    Showing,
    /// The file that shows progress is being looked at, and has time until then.
    Stamping { by: Duration },
    /// `--on-failure` is being asked about it.
    Asking { since: Duration, asked: Asked, report: Arc<Report> },
    /// The next one begins.
    Waiting(Wait),
    /// It has begun, and its log files are being made: then its ranks are started.
    Opening,
    /// It was the last one.
    Over,
}

/// The time between two attempts.
#[derive(Clone, Debug)]
struct Wait {
    since: Duration,
    until: Duration,
    because: String,
}

/// What is known of the present attempt alone.
#[derive(Debug, Default)]
pub(crate) struct Present {
    phase: Phase,
    began: Duration,
    /// When a user has asked for the next one, which is to come.
    planned_at: Option<Duration>,
    /// The end of the one that it follows, until all its ranks run.
    follows: Option<Follows>,
    /// Nodes of it were lost, and may have ranks of it: the next one waits.
    clearing: Option<Clearing>,
    /// When the ranks that are not ready are too late.
    ready_by: Option<Duration>,
    /// The ranks that have said that they are ready.
    ready: BTreeSet<Rank>,
    /// All ranks have run, and were ready.
    is_up: bool,
    /// The ranks whose last words have been read, each once.
    pub(crate) are_read: BTreeSet<Rank>,
    /// The ranks that somebody has stopped: when they count as failed, and the signal.
    pub(crate) stopped: BTreeMap<Rank, (Duration, i32)>,
}

/// What a restart is measured from.
#[derive(Clone, Copy, Debug)]
struct Follows {
    at: Duration,
    is_failure: bool,
}

/// What is known of the attempts of a job.
#[derive(Debug)]
pub(crate) struct Attempts {
    policy: Restarter,
    seed: u64,
    pub(crate) present: Present,
    /// Those before.
    past: PastAttempts,
    /// The file that shows progress, when it was last looked at, and whether it has changed since the job began.
    stamp: Option<Stamp>,
    has_stamp_changed: bool,
    /// The scheduler is to be asked to run the job again.
    is_to_requeue: bool,
    /// Stdin cannot be read again, and nobody has been told.
    is_stdin_gone: bool,
    /// Why no other follows, if the policy would have allowed one.
    given_up: Option<String>,
    /// It was ^C that ended the wait for the next.
    pub(super) is_interrupted: bool,
}

impl Attempts {
    pub(crate) fn new(spec: &JobSpec, seed: u64) -> Attempts {
        Attempts {
            policy: Restarter::new(&spec.restart, seed),
            seed,
            present: Present { ready_by: spec.restart.ready_timeout, ..Present::default() },
            past: PastAttempts::default(),
            stamp: None,
            has_stamp_changed: false,
            is_to_requeue: false,
            is_stdin_gone: spec.io.stdin != StdinTarget::None && is_stream(rustix::stdio::stdin()),
            given_up: None,
            is_interrupted: false,
        }
    }

    /// When [`Front::attempt_due`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let due = match &self.present.phase {
            Phase::Stamping { by } => Some(*by),
            Phase::Waiting(wait) => Some(self.present.clearing.as_ref().map_or(wait.until, |clearing| clearing.look)),
            Phase::Running | Phase::Showing | Phase::Asking { .. } | Phase::Opening | Phase::Over => None,
        };
        let stopped = self.present.stopped.values().map(|(due, _)| *due).min();
        [due, self.present.ready_by, stopped].into_iter().flatten().min()
    }

    /// Whether all is known of one attempt, and no rank of the next has begun.
    pub(crate) fn is_between(&self) -> bool {
        matches!(self.present.phase, Phase::Stamping { .. } | Phase::Asking { .. } | Phase::Waiting(_) | Phase::Opening)
    }

    /// Whether the agents have sent all of an attempt, and another one may follow.
    pub(crate) fn may_follow(&self) -> bool {
        self.is_between() || matches!(self.present.phase, Phase::Showing)
    }

    /// Whether all ranks of this attempt, or of a later one, have run and were ready.
    pub(crate) fn was_up(&self, attempt: Attempt, present: Attempt) -> bool {
        attempt < present || (attempt == present && self.present.is_up)
    }

    /// What is being waited for between two attempts: since when, until when, and why.
    pub(crate) fn waits(&self) -> Option<(Duration, Option<Duration>, String)> {
        match &self.present.phase {
            Phase::Asking { since, .. } => Some((*since, None, "--on-failure is being asked".to_owned())),
            Phase::Waiting(Wait { since, until, because }) => Some(match &self.present.clearing {
                Some(clearing) if clearing.until > *until => {
                    let what = format!("{} must prove that no rank is left there", clearing.nodes);
                    (clearing.since, Some(clearing.until), what)
                }
                _ => (*since, Some(*until), because.clone()),
            }),
            Phase::Running | Phase::Showing | Phase::Stamping { .. } | Phase::Opening | Phase::Over => None,
        }
    }

    /// Whether the last end is one that `--on-failure` is asked about.
    pub(crate) fn asks(&self) -> bool {
        self.policy.asks()
    }

    /// What `--on-failure` has answered, once.
    pub(crate) fn answer(&self) -> Option<Result<Answer, AnswerError>> {
        let Phase::Asking { asked, .. } = &self.present.phase else { return None };
        asked.result()
    }

    /// Whether the scheduler is to be asked to run the job again.
    pub(crate) fn is_to_requeue(&self) -> bool {
        self.is_to_requeue
    }

    /// When the present attempt began.
    pub(crate) fn began(&self) -> Duration {
        self.present.began
    }

    /// Those before the present one.
    pub(crate) fn past(&self) -> &PastAttempts {
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
    /// An agent has sent all of its attempt. When all have, the policy decides what follows. Until then all agents stay: that of
    /// the first node serves the ranks of the others (torch's store), and a user may ask for another attempt.
    pub(crate) fn attempt_drained(&mut self) {
        if !self.nodes.iter().all(NodeHandle::is_finished) {
            return;
        }
        if self.is_last_attempt() && self.attempts.present.planned_at.is_none() {
            return self.nodes.iter_mut().for_each(end_agent);
        }
        if matches!(self.attempts.present.phase, Phase::Running) {
            self.attempts.present.phase = Phase::Showing;
            self.show_rest();
        }
    }

    /// Whether no other attempt of all ranks can follow.
    pub(crate) fn is_last_attempt(&self) -> bool {
        !self.plan.spec.restart.is_on() || self.successors.are_on()
    }

    /// Shows what was kept for the end of the attempt, piece by piece: the next one when the last has been taken.
    fn show_rest(&mut self) {
        while self.delivery.is_all_taken() {
            let now = self.now();
            let more = self.delivery.presenter.finish(now);
            self.hand_on();
            if !more {
                return self.has_shown_rest();
            }
        }
    }

    /// Nothing of the attempt is to be written any more, so that no destination is waited for.
    fn has_shown_rest(&mut self) {
        self.drain_until = None;
        if self.plan.spec.restart.progress_file.is_some() {
            self.await_stamp();
        } else {
            self.attempt_over();
        }
    }

    /// Nothing of the attempt is left, and all is known of it: the policy decides.
    fn attempt_over(&mut self) {
        self.read_last_words();
        let verdict = verdict(&self.gang);
        // Of one that had sent all of it nothing is left.
        let is_open = |node: &&NodeHandle| node.lost.is_some() && !node.is_drained && !node.is_proved();
        self.unproven = self.nodes.iter().filter(is_open).map(|node| node.id).collect();
        let end = self.end(true, true);
        let report = report::make(&self.facts, &self.gang, &verdict, &end, |rank| self.last_words.of(rank));
        let report = Arc::new(report);
        let now = self.now();
        let outcome = self.outcome(&verdict, &report);
        self.attempts.given_up = self.needs_lost_nodes().filter(|_| report.exit_code != ExitCode::SUCCESS);
        let decision = self.decide(None, Event::Ended(outcome)).unwrap_or(Decision::Done);
        // Where the report names a failure, it says too why there is no other attempt.
        if verdict.culprit.is_some() && decision == Decision::Done && self.attempts.given_up.is_none() {
            self.attempts.given_up = self.forbids_attempt().map(before_the_next);
            self.keep_interrupt();
        }
        match self.ask(&report, &decision) {
            Some(asked) => self.attempts.present.phase = Phase::Asking { since: now, asked, report },
            None => self.follow(now, decision, &report),
        }
    }

    /// Whether somebody or something has ended the job, and not only an attempt.
    fn is_ended_from_outside(&self) -> bool {
        self.gang.ended_by().is_some() || self.needs_lost_nodes().is_some()
    }

    /// What the policy must know of an attempt.
    fn outcome(&self, verdict: &Verdict, report: &Report) -> Outcome {
        let by_user = verdict.interrupted.is_some() || self.is_ended_from_outside();
        Outcome {
            code: report.exit_code,
            is_not_ready: verdict.class == Some(Class::NotReady),
            is_left: !report.left.processes.is_empty() || report.left.released > 0,
            has_succeeded: self
                .gang
                .ranks()
                .iter()
                .all(|record| record.status.is_some_and(WorkerStatus::success) && !record.stop_ordered_before_end),
            ..Outcome::of(verdict, by_user)
        }
    }

    /// `--on-failure` has answered, and this was decided.
    pub(crate) fn answered(&mut self, decision: Decision) {
        let now = self.now();
        if let Phase::Asking { report, .. } = std::mem::take(&mut self.attempts.present.phase) {
            self.follow(now, decision, &report);
        }
    }

    /// The job ends: nobody is asked any more. What was asked has ended then.
    pub(crate) fn end_asking(&mut self) {
        if let Phase::Asking { .. } = self.attempts.present.phase {
            self.attempts.present.phase = Phase::Over;
        }
    }

    /// Does what was decided.
    fn follow(&mut self, now: Duration, decision: Decision, report: &Report) {
        match decision {
            Decision::Done => self.end_agents(),
            Decision::GiveUp { why } => {
                // That there was only one attempt is no news where one more was never wanted.
                let is_news = why != GiveUp::NoBudget;
                self.attempts.given_up = is_news.then(|| format!("{why}{}", self.about_progress_file(&why)));
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
        let began = self.attempts.present.began;
        let seconds = now.saturating_sub(began).as_secs_f64();
        let name = report_of(self.plan.spec.attempt);
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
            began: began.as_secs_f64(),
            seconds,
            report: path.map(|path| report::shorten_home(&path, home.as_deref())),
        });
        let wait = spoken_wait(after);
        // Which node it was matters more than the class.
        let what = if report.class == Some(Class::NodeLost) { report.summary.as_str() } else { because };
        self.note(format!("attempt {} is over after {seconds:.2} s: {what}", self.plan.spec.attempt));
        self.note(format!("restarting all ranks{wait}: attempt {attempt}"));
        if std::mem::take(&mut self.attempts.is_stdin_gone) {
            self.note("stdin is a pipe: what an attempt has read of it, the next does not get again".to_owned());
        }
        let because = because.to_owned();
        self.attempts.present.phase = Phase::Waiting(Wait { since: now, until: now + after, because });
    }

    /// Does what is due: ranks that were stopped for too long or are not ready have failed; the next attempt begins when
    /// what was written before is in its files.
    pub(crate) fn attempt_due(&mut self, now: Duration) {
        self.hear_of_progress(now);
        while let Some((&rank, &(_, signal))) = self.attempts.present.stopped.iter().find(|(_, (due, _))| *due <= now) {
            self.attempts.present.stopped.remove(&rank);
            self.event(gang::Event::Stopped { rank, signal });
        }
        if self.attempts.present.ready_by.take_if(|by| *by <= now).is_some() {
            let after = self.plan.spec.restart.ready_timeout.unwrap_or_default();
            let ranks = (0..).map(Rank).zip(self.gang.ranks());
            // One that has ended has nothing more to say.
            let late =
                ranks.filter(|(rank, record)| record.status.is_none() && !self.attempts.present.ready.contains(rank));
            for rank in late.map(|(rank, _)| rank).collect::<Vec<_>>() {
                self.event(gang::Event::NotReady { rank, after });
            }
        }
        let mut is_clear = true;
        if let Phase::Waiting(_) = self.attempts.present.phase {
            let before = self.attempts.present.clearing.take();
            let (clearance, clearing) = self.clear_last_attempt(now, before);
            self.attempts.present.clearing = clearing;
            is_clear = clearance == Clearance::Clear;
            if clearance == Clearance::Left {
                return self.is_left_of_attempt();
            }
        }
        let until = match &self.attempts.present.phase {
            Phase::Showing => return self.show_rest(),
            Phase::Running | Phase::Stamping { .. } | Phase::Over => return,
            Phase::Asking { .. } | Phase::Opening => None,
            Phase::Waiting(wait) => Some(wait.until),
        };
        if let Some(why) = self.forbids_attempt() {
            match self.attempts.present.phase {
                // It has begun: its own report tells what ended it.
                Phase::Opening => self.no_rank_begins(),
                _ => self.attempts.given_up = Some(before_the_next(why)),
            }
            self.keep_interrupt();
            self.end_agents();
        } else if is_clear && until.is_some_and(|until| until <= now) && !self.delivery.is_logging() {
            self.begin_attempt(now);
        }
    }

    /// No attempt follows: notes whether ^C is the reason.
    pub(crate) fn keep_interrupt(&mut self) {
        self.attempts.is_interrupted = self.gang.ended_by() == Some(Outside::Signal(rankrun_sys::signal::SIGINT));
    }

    /// On a node that was lost, processes of the last attempt are left: no other begins.
    fn is_left_of_attempt(&mut self) {
        if let Some(Decision::GiveUp { why }) = self.decide(None, Event::Left) {
            self.attempts.give_up(why.to_string());
            self.attempts.is_to_requeue = self.plan.spec.restart.on_giveup == OnGiveup::Requeue;
        }
        self.end_agents();
    }

    /// Why no attempt may begin, whatever was decided. A guard that was lost at any time is lost until the job ends: nothing
    /// would prove that nothing is left.
    pub(crate) fn forbids_attempt(&mut self) -> Option<String> {
        let is_lost = |node: &NodeHandle| node.keeper().is_some_and(|keeper| keeper.is_lost);
        if self.gang.outside() != Some(Outside::GuardLost) && self.nodes.iter().any(is_lost) {
            self.event(gang::Event::GuardLost);
            return Some(OWN_LOST.to_owned());
        }
        // The gang of an attempt that has failed waits for no time limit any more.
        let now = self.now();
        if self.plan.timeout.is_some_and(|limit| limit <= now) {
            return Some("the time limit was reached".to_owned());
        }
        if let Some(why) = self.needs_lost_nodes() {
            return Some(why);
        }
        let why = match self.gang.ended_by()? {
            Outside::Restart | Outside::NodeLost | Outside::Hang => None,
            Outside::Signal(signal) => return Some(ended_by(&self.gang, signal)),
            Outside::Interrupted(rank) => return Some(format!("rank {rank}, which has the terminal, was interrupted")),
            Outside::Timeout => Some("the time limit was reached"),
            Outside::Alone => Some("its ranks run MPI without being connected (--strict)"),
            Outside::OutputGone | Outside::OutputFailed => Some("its output could not be written"),
            Outside::AgentLost | Outside::GuardLost | Outside::WireUpLost => Some(OWN_LOST),
        };
        why.map(str::to_owned)
    }

    fn begin_attempt(&mut self, now: Duration) {
        self.leave_out_lost();
        let planned_at = self.attempts.present.planned_at;
        let since = planned_at.or(self.gang.stop_ordered()).or(self.attempts.waits().map(|(since, ..)| since));
        let follows = Some(Follows { at: since.unwrap_or(now), is_failure: planned_at.is_none() });
        let plan = &mut self.plan;
        plan.spec.attempt = Attempt(plan.spec.attempt.0 + 1);
        self.gang = Gang::new(plan.spec.map.world_size(), self.facts.rules.clone());
        self.last_words = LastWords::default();
        self.last_lines = LastLines::default();
        self.hooks = HookWatch::new(plan.verbosity > 0, plan.timeout);
        self.mpi_watch = MpiWatch::new(now, plan);
        self.standings.clear();
        self.looks.begin_attempt(&self.plan, now);
        (self.roll, self.drain_until, self.salvage) = (Roll::default(), None, None);
        self.attempts.present = Present { began: now, follows, ..Present::default() };
        self.delivery.begin_attempt();
        self.decide(None, Event::Began);
        let facts = self.facts.clone();
        self.delivery.journal.record(now, || JobEvent::Job(Box::new(facts)));
        self.open_logs_of_attempt(now);
    }

    /// Nothing is missing any more that the ranks of an attempt need here.
    fn begin_ranks_of_attempt(&mut self, now: Duration) {
        let plan = &self.plan;
        self.attempts.present.ready_by = plan.spec.restart.ready_timeout.map(|patience| now + patience);
        let is_owed = self.nodes.iter().any(|node| node.owes_stdin);
        for node in &mut self.nodes {
            node.begin_attempt();
        }
        if let Some(terminal) = &mut self.terminal {
            terminal.begin_attempt(&plan.spec.io);
        }
        self.start_attempt();
        if let Some(stdin) = &mut self.stdin {
            stdin.begin_attempt(is_owed);
        }
    }

    /// A rank runs. When all do, the restart is done.
    pub(crate) fn rank_is_up(&mut self) {
        if self.successors.are_on() || !self.gang.are_all_started() {
            return;
        }
        let all = self.gang.ranks().len();
        if self.plan.spec.restart.ready_timeout.is_some() && self.attempts.present.ready.len() < all {
            return;
        }
        self.attempts.present.ready_by = None;
        self.attempts.present.is_up = true;
        let now = self.now();
        self.decide(None, Event::Up);
        if let Some(Follows { at, is_failure }) = self.attempts.present.follows.take() {
            let ranks = match self.gang.ranks().len() {
                1 => "the rank runs".to_owned(),
                ranks => format!("all {ranks} ranks run"),
            };
            let took = now.saturating_sub(at).as_secs_f64();
            let since = if is_failure { "the failure" } else { "it was asked for" };
            self.note(format!("restarted: {ranks} (attempt {}, {took:.2} s after {since})", self.plan.spec.attempt));
        }
    }

    /// Feeds an event to the policy of the job, or of a rank, and journals both the event and what is decided.
    pub(crate) fn decide(&mut self, rank: Option<Rank>, event: Event) -> Option<Decision> {
        let now = self.now();
        let journal = &mut self.delivery.journal;
        journal.record(now, || JobEvent::Attempt { rank, event: event.clone() });
        let policy = match rank {
            Some(rank) => self.successors.policy(rank),
            None => &mut self.attempts.policy,
        };
        let decision = policy.handle(now, event)?;
        journal.record(now, || JobEvent::Restart { rank, decision: decision.clone() });
        Some(decision)
    }

    /// A rank has done a step of its work.
    pub(crate) fn has_progressed(&mut self, worker: WorkerId) {
        self.decide(self.successors.are_on().then_some(worker.rank), Event::Progress(worker.attempt));
    }

    /// The first attempt begins.
    pub(crate) fn begin_attempts(&mut self) {
        let restart = &self.plan.spec.restart;
        let (spec, seed) = (Box::new(restart.clone()), self.attempts.seed);
        self.delivery.journal.record(Duration::ZERO, || JobEvent::Policy { spec, seed });
        if restart.is_on() && self.plan.verbosity > 0 {
            self.note(format!("restarts: {}", self.attempts.policy.sentence()));
        }
        self.decide(None, Event::Began);
        self.begin_ranks();
        self.look_for_progress();
    }

    /// A rank has said that it is ready to work.
    pub(crate) fn rank_is_ready(&mut self, worker: WorkerId) {
        if self.successors.are_on() || worker.attempt == self.plan.spec.attempt {
            self.attempts.present.ready.insert(worker.rank);
            self.rank_is_up();
        }
    }

    /// No attempt follows: the agents end. A command that is being asked is ended.
    fn end_agents(&mut self) {
        self.attempts.present.phase = Phase::Over;
        self.nodes.iter_mut().for_each(end_agent);
    }
}

/// No attempt follows on a node: its agent ends.
fn end_agent(node: &mut NodeHandle) {
    // It ends as well when the stream is closed.
    let _ = node.send(&ToAgent::End);
    node.link = None;
}

/// Why an attempt that was to come has not.
pub(crate) fn before_the_next(why: String) -> String {
    format!("{why} before the next attempt began")
}

/// How long it is until an attempt begins, in a sentence that says that it does.
pub(crate) fn spoken_wait(after: Duration) -> String {
    if after < MOMENT { String::new() } else { format!(" in {}", restart::spoken_wait(after)) }
}

/// Whether what is read from this cannot be read again.
fn is_stream(stdin: BorrowedFd<'_>) -> bool {
    use rustix::fs::FileType;
    let kind = rustix::fs::fstat(stdin).map(|found| FileType::from_raw_mode(found.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket))
}
