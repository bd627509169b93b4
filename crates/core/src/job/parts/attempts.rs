//! The attempts of a job: what the present one has come to, and what is kept of those before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{Attempt, Rank};
use crate::job::refusals::NoRestart;
use crate::job::settings::Settings;
use crate::past::PastAttempts;
use crate::report::{AttemptReport, Report};
use crate::restart::{Decision, Event, Restarter};
use crate::spec::job::JobSpec;

/// How long the file that shows progress may take to answer.
const STAMP_BOUND: Duration = Duration::from_millis(200);

/// The time of a file that shows progress, and its size; `None`: there is no such file.
pub type Stamp = Option<(u64, u64)>;

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
    /// `--on-failure` is being asked about it. Without an answer `own` happens.
    Asking { since: Duration, report: Arc<Report>, own: Decision },
    /// The next one begins.
    Waiting(Wait),
    /// It has begun, and its log files are being made: then its ranks are started.
    Opening,
    /// It was the last one.
    Over,
}

/// The time between two attempts.
#[derive(Debug)]
struct Wait {
    since: Duration,
    until: Duration,
    because: String,
    /// Nodes were lost, and may have ranks of the last attempt.
    clearing: Option<Clearing>,
}

/// The wait for nodes that were lost, before the next attempt.
#[derive(Clone, Debug)]
pub(in crate::job) struct Clearing {
    pub(in crate::job) since: Duration,
    /// The latest end of the wait.
    pub(in crate::job) until: Duration,
    /// When to look again.
    pub(in crate::job) look: Duration,
    /// The nodes, as the user reads them.
    pub(in crate::job) nodes: String,
    /// The user was told.
    pub(in crate::job) is_told: bool,
}

/// What is to be done about the present attempt, now that time has passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::job) enum Due {
    Nothing,
    /// The file that shows progress does not answer.
    Stamped,
    /// The next one may begin, if nothing forbids it. `is_time`: the wait is over.
    Next {
        is_time: bool,
    },
    /// It has begun, and is still to be ended if something forbids it.
    Opening,
}

/// What is known of the present attempt alone.
#[derive(Debug, Default)]
struct Present {
    phase: Phase,
    began: Duration,
    /// When a user has asked for the next one, which is to come.
    planned_at: Option<Duration>,
    /// The end of the one that it follows, until all its ranks run.
    follows: Option<Follows>,
    /// When the ranks that are not ready are too late.
    ready_by: Option<Duration>,
    /// The ranks that have said that they are ready.
    ready: BTreeSet<Rank>,
    /// The ranks whose last words have been read, each once.
    are_read: BTreeSet<Rank>,
    /// The ranks that somebody has stopped: when they count as failed, and the signal.
    stopped: BTreeMap<Rank, (Duration, i32)>,
}

/// What a restart is measured from.
#[derive(Clone, Copy, Debug)]
pub(in crate::job) struct Follows {
    pub(in crate::job) at: Duration,
    pub(in crate::job) is_failure: bool,
}

/// The attempts of a job.
#[derive(Debug)]
pub(in crate::job) struct Attempts {
    policy: Restarter,
    present: Present,
    /// Those before.
    past: PastAttempts,
    /// The last one that was up.
    last_up: Option<Attempt>,
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
    is_interrupted: bool,
}

impl Attempts {
    pub(in crate::job) fn new(spec: &JobSpec, settings: &Settings) -> Attempts {
        Attempts {
            policy: Restarter::new(&spec.restart, settings.seed),
            present: Present { ready_by: spec.restart.ready_timeout, ..Present::default() },
            past: PastAttempts::default(),
            last_up: None,
            stamp: None,
            has_stamp_changed: false,
            is_to_requeue: false,
            is_stdin_gone: settings.is_stdin_stream,
            given_up: None,
            is_interrupted: false,
        }
    }

    /// When something is due for the present attempt.
    pub(in crate::job) fn deadline(&self) -> Option<Duration> {
        let due = match &self.present.phase {
            Phase::Stamping { by } => Some(*by),
            Phase::Waiting(wait) => Some(wait.clearing.as_ref().map_or(wait.until, |clearing| clearing.look)),
            Phase::Running | Phase::Showing | Phase::Asking { .. } | Phase::Opening | Phase::Over => None,
        };
        let stopped = self.present.stopped.values().map(|(due, _)| *due).min();
        [due, self.present.ready_by, stopped].into_iter().flatten().min()
    }

    // The present attempt.

    /// When it began.
    pub(in crate::job) fn began(&self) -> Duration {
        self.present.began
    }

    /// Whether its ranks are being started, run or end.
    pub(in crate::job) fn is_running(&self) -> bool {
        matches!(self.present.phase, Phase::Running)
    }

    /// Whether all is known of one attempt, and no rank of the next has begun.
    pub(in crate::job) fn is_between(&self) -> bool {
        matches!(self.present.phase, Phase::Stamping { .. } | Phase::Asking { .. } | Phase::Waiting(_) | Phase::Opening)
    }

    /// Whether the time limit of the job ends what is waited for between two attempts.
    pub(in crate::job) fn heeds_limit(&self) -> bool {
        matches!(self.present.phase, Phase::Asking { .. } | Phase::Waiting(_) | Phase::Opening)
    }

    /// Whether the agents have sent all of an attempt, and another one may follow.
    pub(in crate::job) fn may_follow(&self) -> bool {
        self.is_between() || matches!(self.present.phase, Phase::Showing)
    }

    /// Whether `--on-failure` is being asked.
    pub(in crate::job) fn is_asking(&self) -> bool {
        matches!(self.present.phase, Phase::Asking { .. })
    }

    /// What is being waited for between two attempts: since when, until when, and why.
    pub(in crate::job) fn waits(&self) -> Option<(Duration, Option<Duration>, String)> {
        match &self.present.phase {
            Phase::Asking { since, .. } => Some((*since, None, "--on-failure is being asked".to_owned())),
            Phase::Waiting(Wait { since, until, because, clearing }) => Some(match clearing {
                Some(clearing) if clearing.until > *until => {
                    let what = format!("{} must prove that no rank is left there", clearing.nodes);
                    (clearing.since, Some(clearing.until), what)
                }
                _ => (*since, Some(*until), because.clone()),
            }),
            Phase::Running | Phase::Showing | Phase::Stamping { .. } | Phase::Opening | Phase::Over => None,
        }
    }

    /// What is due for it.
    pub(in crate::job) fn due(&self, now: Duration) -> Due {
        match &self.present.phase {
            Phase::Stamping { by } if *by <= now => Due::Stamped,
            Phase::Running | Phase::Showing | Phase::Stamping { .. } | Phase::Over => Due::Nothing,
            Phase::Asking { .. } => Due::Next { is_time: false },
            Phase::Waiting(wait) => Due::Next { is_time: wait.until <= now },
            Phase::Opening => Due::Opening,
        }
    }

    /// Every agent has sent everything. Returns whether that is news.
    pub(in crate::job) fn show(&mut self) -> bool {
        let is_news = self.is_running();
        if is_news {
            self.present.phase = Phase::Showing;
        }
        is_news
    }

    /// Whether what was kept for its end is being shown.
    pub(in crate::job) fn is_showing(&self) -> bool {
        matches!(self.present.phase, Phase::Showing)
    }

    /// The file that shows progress is being looked at.
    pub(in crate::job) fn await_stamp(&mut self, now: Duration) {
        self.present.phase = Phase::Stamping { by: now + STAMP_BOUND };
    }

    pub(in crate::job) fn is_stamping(&self) -> bool {
        matches!(self.present.phase, Phase::Stamping { .. })
    }

    /// `--on-failure` is being asked.
    pub(in crate::job) fn ask(&mut self, since: Duration, report: Arc<Report>, own: Decision) {
        self.present.phase = Phase::Asking { since, report, own };
    }

    /// `--on-failure` has answered, or is not asked any more: what it was asked about, and what happens without it.
    pub(in crate::job) fn take_asked(&mut self) -> Option<(Arc<Report>, Decision)> {
        match std::mem::take(&mut self.present.phase) {
            Phase::Asking { report, own, .. } => Some((report, own)),
            phase => {
                self.present.phase = phase;
                None
            }
        }
    }

    /// The next one begins at that time.
    pub(in crate::job) fn wait(&mut self, since: Duration, until: Duration, because: String) {
        self.present.phase = Phase::Waiting(Wait { since, until, because, clearing: None });
    }

    /// Whether the next one is waited for, and what is known of the nodes that were lost.
    pub(in crate::job) fn clearing(&self) -> Option<Option<Clearing>> {
        match &self.present.phase {
            Phase::Waiting(wait) => Some(wait.clearing.clone()),
            _ => None,
        }
    }

    pub(in crate::job) fn set_clearing(&mut self, clearing: Option<Clearing>) {
        if let Phase::Waiting(wait) = &mut self.present.phase {
            wait.clearing = clearing;
        }
    }

    /// The next one begins. `follows`: what that is measured from.
    pub(in crate::job) fn begin(&mut self, now: Duration, follows: Follows) {
        self.present = Present { began: now, follows: Some(follows), ..Present::default() };
    }

    /// Its log files are being made.
    pub(in crate::job) fn open(&mut self) {
        self.present.phase = Phase::Opening;
    }

    pub(in crate::job) fn is_opening(&self) -> bool {
        matches!(self.present.phase, Phase::Opening)
    }

    /// Its ranks are started. Those that are to say that they are ready have time until then.
    pub(in crate::job) fn run(&mut self, ready_by: Option<Duration>) {
        (self.present.phase, self.present.ready_by) = (Phase::Running, ready_by);
    }

    /// No other follows.
    pub(in crate::job) fn end(&mut self) {
        self.present.phase = Phase::Over;
    }

    /// When a user has asked for the next one.
    pub(in crate::job) fn planned_at(&self) -> Option<Duration> {
        self.present.planned_at
    }

    /// Whether a user may ask for the next one now: `Ok` says whether this one is over. `is_ending`: its ranks end, or have ended; `has_failed`:
    /// for a failure after which another attempt may follow.
    pub(in crate::job) fn may_plan(&self, is_ending: bool, has_failed: bool) -> Result<bool, NoRestart> {
        if self.present.planned_at.is_some() || self.is_opening() {
            return Err(NoRestart::Restarting);
        }
        match &self.present.phase {
            Phase::Running if !is_ending => Ok(false),
            Phase::Running | Phase::Showing | Phase::Stamping { .. } if has_failed => Err(NoRestart::Failing),
            // What has succeeded is not run again.
            Phase::Running | Phase::Showing | Phase::Stamping { .. } | Phase::Opening | Phase::Over => {
                Err(NoRestart::Ending)
            }
            Phase::Asking { .. } | Phase::Waiting(_) => Ok(true),
        }
    }

    /// A user has asked for the next one.
    pub(in crate::job) fn plan(&mut self, now: Duration) {
        self.present.planned_at = Some(now);
    }

    // Its ranks.

    /// Whether the last words of a rank are to be read: once in an attempt.
    pub(in crate::job) fn is_to_be_read(&mut self, rank: Rank) -> bool {
        self.present.are_read.insert(rank)
    }

    /// A rank is started again: its last words are to be read again.
    pub(in crate::job) fn forget(&mut self, rank: Rank) {
        self.present.are_read.remove(&rank);
    }

    /// A rank that somebody has stopped is to fail then.
    pub(in crate::job) fn rank_is_stopped(&mut self, rank: Rank, due: Duration, signal: i32) {
        self.present.stopped.insert(rank, (due, signal));
    }

    /// It goes on, or has ended.
    pub(in crate::job) fn rank_continues(&mut self, rank: Rank) {
        self.present.stopped.remove(&rank);
    }

    /// A rank that was stopped for too long, and the signal.
    pub(in crate::job) fn pop_stopped(&mut self, now: Duration) -> Option<(Rank, i32)> {
        let (&rank, &(_, signal)) = self.present.stopped.iter().find(|(_, (due, _))| *due <= now)?;
        self.present.stopped.remove(&rank);
        Some((rank, signal))
    }

    /// Whether the ranks that have not said that they are ready are too late now.
    pub(in crate::job) fn are_late(&mut self, now: Duration) -> bool {
        self.present.ready_by.take_if(|by| *by <= now).is_some()
    }

    /// A rank has said that it is ready to work.
    pub(in crate::job) fn rank_is_ready(&mut self, rank: Rank) {
        self.present.ready.insert(rank);
    }

    pub(in crate::job) fn is_ready(&self, rank: Rank) -> bool {
        self.present.ready.contains(&rank)
    }

    /// How many ranks are ready.
    pub(in crate::job) fn ready(&self) -> usize {
        self.present.ready.len()
    }

    /// All ranks run, and are ready. Returns what it follows, once.
    pub(in crate::job) fn up(&mut self, attempt: Attempt) -> Option<Follows> {
        self.last_up = Some(attempt);
        self.present.ready_by = None;
        self.present.follows.take()
    }

    // What follows.

    /// The policy takes an event.
    pub(in crate::job) fn decide(&mut self, now: Duration, event: Event) -> Option<Decision> {
        self.policy.handle(now, event)
    }

    pub(in crate::job) fn policy(&self) -> &Restarter {
        &self.policy
    }

    pub(in crate::job) fn past(&self) -> &PastAttempts {
        &self.past
    }

    /// An attempt, or a rank, has a successor: what it was is told in the report.
    pub(in crate::job) fn keep(&mut self, past: AttemptReport) {
        self.past.push(past);
    }

    /// No other attempt follows, for this reason: the first counts.
    pub(in crate::job) fn give_up(&mut self, why: String) {
        self.given_up.get_or_insert(why);
    }

    /// The same, whatever was said before.
    pub(in crate::job) fn set_given_up(&mut self, why: Option<String>) {
        self.given_up = why;
    }

    pub(in crate::job) fn given_up(&self) -> Option<&str> {
        self.given_up.as_deref()
    }

    pub(in crate::job) fn requeue(&mut self, is_wanted: bool) {
        self.is_to_requeue = is_wanted;
    }

    pub(in crate::job) fn is_to_requeue(&self) -> bool {
        self.is_to_requeue
    }

    pub(in crate::job) fn set_interrupted(&mut self, is_interrupted: bool) {
        self.is_interrupted = is_interrupted;
    }

    pub(in crate::job) fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// Whether the user is to be told, once, that stdin cannot be read again.
    pub(in crate::job) fn tells_of_stdin(&mut self) -> bool {
        std::mem::take(&mut self.is_stdin_gone)
    }

    /// The file that shows progress was looked at. Returns whether it has changed.
    pub(in crate::job) fn stamp(&mut self, stamp: Stamp) -> bool {
        let has_changed = self.stamp.replace(stamp).is_some_and(|before| before != stamp);
        self.has_stamp_changed |= has_changed;
        has_changed
    }

    /// How the file was when it was last looked at, and whether it has changed since the job began.
    pub(in crate::job) fn last_stamp(&self) -> (Option<Stamp>, bool) {
        (self.stamp, self.has_stamp_changed)
    }

    /// The last attempt that was up.
    pub(in crate::job) fn last_up(&self) -> Option<Attempt> {
        self.last_up
    }
}
