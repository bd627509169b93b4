//! Attempts: what follows the end of one, and the start of the next.
//!
//! An attempt is over when every agent has reported that no process of it is left, and has sent all its output. Only then does the
//! policy decide ([`crate::restart`]). The next attempt has a gang of its own; clock, destinations and agents go on.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::event::JobEvent;
use crate::evidence::Class;
use crate::exit::ExitCode;
use crate::fence::Clearance;
use crate::gang::{self, Gang, Outside, RankRecord, Requester};
use crate::headline::ended_by;
use crate::ids::{Attempt, NodeId, Rank, WorkerId};
use crate::job::event::Effect;
use crate::job::machine::Job;
use crate::job::parts::about::Summary;
use crate::job::parts::alone::MpiWatch;
use crate::job::parts::attempts::{Due, Follows, Stamp};
use crate::job::parts::groups::Groups;
use crate::job::parts::hooks::HookWatch;
use crate::job::parts::lines::LastLines;
use crate::job::parts::node::Node;
use crate::job::parts::nodes::Readiness;
use crate::job::parts::roll::Roll;
use crate::job::parts::words::LastWords;
use crate::job::refusals::NoRestart;
use crate::past::PastAttempts;
use crate::report::{AttemptReport, Report};
use crate::restart::{self, Answer, AnswerError, Decision, Event, GiveUp, How, Outcome};
use crate::spec::job::OnGiveup;
use crate::status::WorkerStatus;
use crate::verdict::{Verdict, verdict};
use crate::worker;

/// Why a job whose guard or agent is lost is not restarted.
const OWN_LOST: &str = "rankrun's own processes were lost";
/// A wait that is not worth a word.
const MOMENT: Duration = Duration::from_millis(1);
/// SIGINT, whose number is the same on every Linux.
const SIGINT: i32 = 2;

impl Job {
    /// The first attempt begins.
    pub(in crate::job) fn begin(&mut self) {
        let (spec, seed) = (Box::new(self.spec.restart.clone()), self.settings.seed);
        self.record(|| JobEvent::Policy { spec, seed });
        if self.spec.restart.is_on() && self.settings.verbosity > 0 {
            self.note(format!("restarts: {}", self.attempts.policy().sentence()));
        }
        self.decide(None, Event::Began);
        self.begin_successors();
        let now = self.now;
        self.planned.notice_mut().begin(now);
        self.look_for_progress();
        if self.settings.has_steps {
            self.start_steps();
        }
        if self.muster.is_none() {
            // Nobody has to be waited for.
            self.start_attempt();
        }
    }

    /// Whether all is known of one attempt, and no rank of the next has begun.
    pub fn is_between_attempts(&self) -> bool {
        self.attempts.is_between()
    }

    /// The last attempt of which all ranks have run, and were ready.
    pub fn last_up(&self) -> Option<Attempt> {
        self.attempts.last_up()
    }

    /// What is being waited for between two attempts: since when, until when, and why.
    pub fn waits(&self) -> Option<(Duration, Option<Duration>, String)> {
        self.attempts.waits()
    }

    /// When the present attempt began.
    pub fn attempt_began(&self) -> Duration {
        self.attempts.began()
    }

    /// The attempts before the present one.
    pub fn past_attempts(&self) -> &PastAttempts {
        self.attempts.past()
    }

    /// Why no other attempt follows, if one was allowed in principle.
    pub fn given_up(&self) -> Option<&str> {
        self.attempts.given_up()
    }

    /// Whether it was ^C that ended the wait for the next attempt.
    pub fn is_interrupted(&self) -> bool {
        self.attempts.is_interrupted()
    }

    /// Whether an answer of `--on-failure` is awaited.
    pub fn awaits_policy(&self) -> bool {
        self.attempts.is_asking()
    }

    /// Whether no other attempt of all ranks can follow.
    pub fn is_last_attempt(&self) -> bool {
        !self.spec.restart.is_on() || self.successors.are_on()
    }

    /// A node has said at the end of the attempt what is left there.
    pub(in crate::job) fn node_over(&mut self, node: NodeId, summary: Summary) {
        if !self.nodes.get_mut(node).is_some_and(|node| node.over(summary)) {
            return;
        }
        self.out.push(Effect::HasEnded(node));
        if self.is_over() {
            self.drain();
        }
    }

    /// The ranks have ended: their output has a bounded time to be written.
    pub(in crate::job) fn drain(&mut self) {
        self.out.push(Effect::Drain { is_last: self.is_last_attempt() });
    }

    /// An agent has sent all of its attempt. When all have, the policy decides what follows. Until then all agents stay: that of
    /// the first node serves the ranks of the others (torch's store), and a user may ask for another attempt.
    pub(in crate::job) fn attempt_drained(&mut self) {
        if !self.nodes.are_finished() {
            return;
        }
        if self.is_last_attempt() && self.attempts.planned_at().is_none() {
            return self.end_nodes();
        }
        if self.attempts.show() {
            self.out.push(Effect::ShowRest);
        }
    }

    /// Nothing of the attempt is to be written any more, so that no destination is waited for.
    pub(in crate::job) fn has_shown_rest(&mut self) {
        if !self.attempts.is_showing() {
            return;
        }
        self.out.push(Effect::IsShown);
        if self.spec.restart.progress_file.is_some() {
            self.attempts.await_stamp(self.now);
            self.look_for_progress();
        } else {
            self.attempt_over();
        }
    }

    /// Asks whether the file that shows progress has changed.
    fn look_for_progress(&mut self) {
        if self.spec.restart.progress_file.is_some() {
            self.out.push(Effect::Stamp(self.spec.attempt));
        }
    }

    /// The file that shows progress was looked at.
    pub(in crate::job) fn stamped(&mut self, attempt: Attempt, stamp: Stamp) {
        // One that comes late is of an attempt that is over.
        if self.attempts.stamp(stamp) {
            self.decide(None, Event::Progress(attempt));
        }
        if attempt == self.spec.attempt && self.attempts.is_stamping() {
            self.attempt_over();
        }
    }

    /// What there is to say of the file where its job is given up because it made no progress.
    fn about_progress_file(&self, why: &GiveUp) -> String {
        let file = self.spec.restart.progress_file.as_ref();
        let (GiveUp::Repeated { how: How::WithoutProgress, .. }, Some(file)) = (why, file) else {
            return String::new();
        };
        let shown = Path::new(file).display();
        match self.attempts.last_stamp() {
            (Some(None), _) => format!(" (there is no {shown})"),
            (Some(Some(_)), false) => format!(" ({shown} never changed)"),
            (Some(Some(_)), true) => format!(" ({shown} has not changed since)"),
            (None, _) => format!(" ({shown} could not be looked at)"),
        }
    }

    /// Nothing of the attempt is left, and all is known of it: the policy decides.
    fn attempt_over(&mut self) {
        self.read_words();
        let verdict = verdict(&self.gang);
        let end = self.end_of_attempt();
        let report = Report::of(&self.facts, &self.gang, &verdict, &end, |rank| self.words.of(rank));
        let report = Arc::new(report);
        let outcome = self.outcome(&verdict, &report);
        let lost = self.needs_lost();
        self.attempts.set_given_up(lost.filter(|_| report.exit_code != ExitCode::SUCCESS));
        let decision = self.decide(None, Event::Ended(outcome)).unwrap_or(Decision::Done);
        // Where the report names a failure, it says too why there is no other attempt.
        if verdict.culprit.is_some() && decision == Decision::Done && self.attempts.given_up().is_none() {
            let why = self.forbids_attempt().map(before_the_next);
            self.attempts.set_given_up(why);
            self.keep_interrupt();
        }
        if self.spec.restart.on_failure.is_some() && self.attempts.policy().asks() {
            self.out.push(Effect::AskPolicy { report: Arc::clone(&report), own: decision.clone() });
            self.attempts.ask(self.now, report, decision);
        } else {
            self.follow(decision, &report);
        }
    }

    /// What the policy must know of an attempt.
    fn outcome(&self, verdict: &Verdict, report: &Report) -> Outcome {
        let is_ended_from_outside = match self.gang.ended_by() {
            Some(Outside::Planned(_)) => verdict.is_planned_stop(),
            Some(_) => true,
            None => self.needs_lost().is_some(),
        };
        let has_succeeded = |record: &gang::RankRecord| {
            record.status.is_some_and(WorkerStatus::success) && !record.stop_ordered_before_end
        };
        Outcome {
            code: report.exit_code,
            is_not_ready: verdict.class == Some(Class::NotReady),
            is_left: !report.left.processes.is_empty() || report.left.released > 0,
            has_succeeded: self.gang.ranks().iter().all(has_succeeded),
            ..Outcome::of(verdict, verdict.interrupted.is_some() || is_ended_from_outside)
        }
    }

    /// `--on-failure` has answered.
    pub(in crate::job) fn policy_answered(&mut self, answer: Result<Answer, AnswerError>) {
        if !self.awaits_policy() {
            return;
        }
        let answer = answer.unwrap_or_else(|why| {
            let restart = &self.spec.restart;
            let instead = match restart.budget.allows_any() || restart.start.retries > 0 {
                true => "the other options decide",
                false => "there is no other attempt without --restart",
            };
            self.note(format!("--on-failure: {why}: {instead}"));
            Answer::Own
        });
        let decision = self.decide(None, Event::Answered(answer)).unwrap_or(Decision::Done);
        if let Some((report, _)) = self.attempts.take_asked() {
            self.follow(decision, &report);
        }
    }

    /// `--on-failure` could not be asked: the other options decide.
    pub(in crate::job) fn policy_not_asked(&mut self, why: &str) {
        if !self.awaits_policy() {
            return;
        }
        self.note(format!("cannot ask --on-failure: {why}"));
        if let Some((report, own)) = self.attempts.take_asked() {
            self.follow(own, &report);
        }
    }

    /// The job ends: nobody is asked any more.
    pub(in crate::job) fn end_asking(&mut self) {
        if self.awaits_policy() {
            self.attempts.end();
        }
    }

    /// Does what was decided.
    fn follow(&mut self, decision: Decision, report: &Arc<Report>) {
        match decision {
            Decision::Done => self.end_agents(),
            Decision::GiveUp { why } => {
                // That there was only one attempt is no news where one more was never wanted.
                let is_news = why != GiveUp::NoBudget;
                let text = is_news.then(|| format!("{why}{}", self.about_progress_file(&why)));
                self.attempts.set_given_up(text);
                self.attempts.requeue(self.spec.restart.on_giveup == OnGiveup::Requeue);
                self.end_agents();
            }
            Decision::Restart { after, attempt, because, .. } => match self.planned_between() {
                Some(stop) => self.end_as_planned(stop),
                None => self.plan_attempt(after, attempt, because, report),
            },
        }
    }

    /// Notes the end of an attempt, and when the next begins.
    fn plan_attempt(&mut self, after: Duration, attempt: Attempt, because: String, report: &Arc<Report>) {
        let (now, began, present) = (self.now, self.attempts.began(), self.spec.attempt);
        let seconds = now.saturating_sub(began).as_secs_f64();
        self.out.push(Effect::SaveReport { report: Arc::clone(report), attempt: present });
        self.attempts.keep(AttemptReport {
            attempt: present.0,
            summary: report.summary.clone(),
            exit_code: report.exit_code,
            class: report.class,
            rank: report.culprit.as_ref().map(|culprit| culprit.rank),
            began: began.as_secs_f64(),
            seconds,
            report: self.settings.report_of(present),
        });
        // Which node it was matters more than the class.
        let what = if report.class == Some(Class::NodeLost) { &report.summary } else { &because };
        let over = format!("attempt {present} is over after {seconds:.2} s: {what}");
        self.note(over);
        self.note(format!("restarting all ranks{}: attempt {attempt}", spoken_wait(after)));
        if self.attempts.tells_of_stdin() {
            self.note("stdin is a pipe: what an attempt has read of it, the next does not get again".to_owned());
        }
        self.attempts.wait(now, now + after, because);
    }

    /// Does what is due: ranks that were stopped for too long or are not ready have failed; the next attempt begins when
    /// what was written before is in its files.
    pub(in crate::job) fn attempt_due(&mut self) {
        let now = self.now;
        if self.attempts.due(now) == Due::Stamped {
            self.attempt_over();
        }
        while let Some((rank, signal)) = self.attempts.pop_stopped(now) {
            self.event(gang::Event::Stopped { worker: self.gang.worker(rank), signal });
        }
        if self.attempts.are_late(now) {
            let after = self.spec.restart.ready_timeout.unwrap_or_default();
            // One that has ended has nothing more to say.
            let is_late = |it: &&RankRecord| it.status.is_none() && !self.attempts.is_ready(it.rank);
            let late = self.gang.ranks().iter().filter(|it| it.rank.group() == self.spec.group).filter(is_late);
            for rank in late.map(|record| record.rank).collect::<Vec<_>>() {
                self.event(gang::Event::NotReady { worker: self.gang.worker(rank), after });
            }
        }
        let mut is_clear = true;
        if let Some(before) = self.attempts.clearing() {
            let (clearance, clearing) = self.clear_last_attempt(before);
            self.attempts.set_clearing(clearing);
            is_clear = clearance == Clearance::Clear;
            if clearance == Clearance::Left {
                return self.is_left_of_attempt();
            }
        }
        let (is_time, has_begun) = match self.attempts.due(now) {
            Due::Nothing | Due::Stamped => return,
            Due::Next { is_time } => (is_time, false),
            Due::Opening => (false, true),
        };
        if let Some(stop) = self.planned_between().filter(|_| !has_begun) {
            self.end_as_planned(stop);
        } else if let Some(why) = self.forbids_attempt() {
            match has_begun {
                // Its own report tells what ended it.
                true => self.no_rank_begins(),
                // Nobody has come in place of those that are lost.
                false if self.needs_lost().as_ref() == Some(&why) => self.attempts.set_given_up(Some(why)),
                false => self.attempts.set_given_up(Some(before_the_next(why))),
            }
            self.keep_interrupt();
            self.end_agents();
        } else if is_clear && is_time && !self.is_logging && !self.waits_for_nodes() {
            self.begin_attempt();
        }
    }

    /// No attempt follows: notes whether ^C is the reason.
    pub(in crate::job) fn keep_interrupt(&mut self) {
        self.attempts.set_interrupted(self.gang.ended_by() == Some(Outside::Signal(SIGINT)));
    }

    /// On a node that was lost, processes of the last attempt are left: no other begins.
    fn is_left_of_attempt(&mut self) {
        if let Some(Decision::GiveUp { why }) = self.decide(None, Event::Left) {
            self.attempts.give_up(why.to_string());
            self.attempts.requeue(self.spec.restart.on_giveup == OnGiveup::Requeue);
        }
        self.end_agents();
    }

    /// Why no attempt may begin, whatever was decided. A guard that was lost at any time is lost until the job ends: nothing
    /// would prove that nothing is left.
    pub(in crate::job) fn forbids_attempt(&mut self) -> Option<String> {
        if self.gang.outside() != Some(Outside::GuardLost) && self.nodes.iter().any(|node| node.route().is_guard_lost())
        {
            self.event(gang::Event::GuardLost);
            return Some(OWN_LOST.to_owned());
        }
        // The gang of an attempt that has failed waits for no time limit any more.
        if self.facts.rules.timeout.is_some_and(|limit| limit <= self.now) {
            return Some("the time limit was reached".to_owned());
        }
        if let Some(why) = self.needs_lost() {
            return Some(why);
        }
        let why = match self.gang.ended_by()? {
            Outside::Restart | Outside::NodeLost | Outside::Hang => None,
            Outside::Signal(signal) => return Some(ended_by(&self.gang, signal)),
            Outside::Interrupted(rank) => return Some(format!("rank {rank}, which has the terminal, was interrupted")),
            Outside::Timeout => Some("the time limit was reached"),
            Outside::Planned(stop) => return Some(stop.headline()),
            Outside::Alone => Some("its ranks run MPI without being connected (--strict)"),
            Outside::OutputGone | Outside::OutputFailed => Some("its output could not be written"),
            Outside::AgentLost | Outside::GuardLost | Outside::WireUpLost => Some(OWN_LOST),
        };
        why.map(str::to_owned)
    }

    fn begin_attempt(&mut self) {
        self.take_seats(Readiness::Ready);
        let (now, planned_at) = (self.now, self.attempts.planned_at());
        let since = planned_at.or(self.gang.stop_ordered()).or(self.attempts.waits().map(|(since, ..)| since));
        let follows = Follows { at: since.unwrap_or(now), is_failure: planned_at.is_none() };
        self.spec.attempt = Attempt(self.spec.attempt.0 + 1);
        self.facts.gang = self.spec.gang();
        self.facts.groups.clear();
        self.groups = Groups::default();
        self.gang = Gang::new(self.spec.gang(), self.spec.map.world_size(), self.facts.rules.clone());
        (self.words, self.lines) = (LastWords::default(), LastLines::default());
        self.hooks = HookWatch::new(self.settings.verbosity > 0, self.facts.rules.timeout);
        self.mpi_watch = MpiWatch::new(now, &self.settings, self.spec.map.world_size());
        self.standings.clear();
        self.forget_missing();
        self.looks.begin_attempt(&self.settings, now);
        self.cut_profile("the job has begun another attempt");
        self.roll = Roll::default();
        self.attempts.begin(now, follows);
        self.out.push(Effect::BeginAttempt);
        self.decide(None, Event::Began);
        let facts = self.facts.clone();
        self.record(|| JobEvent::Job(Box::new(facts)));
        if self.settings.opens_logs {
            self.attempts.open();
            self.out.push(Effect::OpenLogs);
        } else {
            self.begin_ranks();
        }
    }

    /// The attempt is over before any rank of it was started.
    fn no_rank_begins(&mut self) {
        for rank in self.gang.ranks().iter().map(|record| record.rank).collect::<Vec<_>>() {
            self.event(gang::Event::Gone { worker: self.gang.worker(rank), outcome: worker::Outcome::NeverStarted });
        }
    }

    /// The log files are there.
    pub(in crate::job) fn logs_are_open(&mut self) {
        // Those of a single rank are nobody's wait, and a job that was ended meanwhile starts nothing.
        if self.attempts.is_opening() && self.forbids_attempt().is_none() {
            self.begin_ranks();
        }
    }

    /// Nothing is missing any more that the ranks of an attempt need.
    fn begin_ranks(&mut self) {
        self.attempts.run(self.spec.restart.ready_timeout.map(|patience| self.now + patience));
        // What is known of those that are lost stays known.
        self.nodes.iter_mut().filter(|node| !node.is_lost()).for_each(Node::rest);
        self.out.push(Effect::BeginRanks);
        self.start_attempt();
    }

    /// A rank runs. When all do, the restart is done.
    pub(in crate::job) fn rank_is_up(&mut self) {
        let all = self.spec.map.world_size() as usize;
        let are_up = match self.successors.are_on() {
            true => self.successors.have_run() >= all,
            false => self.gang.are_all_started(),
        };
        if !are_up {
            return;
        }
        if self.spec.restart.ready_timeout.is_some() && self.attempts.ready() < all {
            return;
        }
        let follows = self.attempts.up(self.spec.attempt);
        if self.successors.are_on() {
            // The policy of each rank is told of that rank.
            return;
        }
        self.decide(None, Event::Up);
        if let Some(Follows { at, is_failure }) = follows {
            let ranks = match all {
                1 => "the rank runs".to_owned(),
                ranks => format!("all {ranks} ranks run"),
            };
            let took = self.now.saturating_sub(at).as_secs_f64();
            let since = if is_failure { "the failure" } else { "it was asked for" };
            self.note(format!("restarted: {ranks} (attempt {}, {took:.2} s after {since})", self.spec.attempt));
        }
    }

    /// Feeds an event to the policy of the job, or of a rank, and journals both the event and what is decided.
    pub(in crate::job) fn decide(&mut self, rank: Option<Rank>, event: Event) -> Option<Decision> {
        let recorded = event.clone();
        self.record(|| JobEvent::Attempt { rank, event: recorded });
        let decision = match rank {
            Some(rank) => self.successors.decide(rank, self.now, event),
            None => self.attempts.decide(self.now, event),
        }?;
        let recorded = decision.clone();
        self.record(|| JobEvent::Restart { rank, decision: recorded });
        Some(decision)
    }

    /// A rank has done a step of its work.
    pub(in crate::job) fn has_progressed(&mut self, worker: WorkerId) {
        self.decide(self.successors.are_on().then_some(worker.rank), Event::Progress(worker.attempt));
    }

    /// A rank has said that it is ready to work.
    pub(in crate::job) fn rank_is_ready(&mut self, worker: WorkerId) {
        // Those that another rank has asked for begin later, and nobody has said when they must be ready.
        if worker.rank.group() == self.spec.group {
            self.attempts.rank_is_ready(worker.rank);
        }
        self.rank_is_up();
    }

    /// No attempt follows: the agents end. A command that is being asked is ended.
    pub(in crate::job) fn end_agents(&mut self) {
        self.attempts.end();
        self.end_nodes();
    }

    /// No attempt follows on any node: the agents end.
    fn end_nodes(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.is_alive()) {
            // Spares may be on the way.
            self.out.push(if node.is_connected() { Effect::End(node.id()) } else { Effect::GiveUp(node.id()) });
            node.dismiss();
        }
    }

    /// A user asks for a new attempt, which costs no budget. Returns its number.
    pub(in crate::job) fn planned_restart(&mut self, by: Requester) -> Result<Attempt, NoRestart> {
        if self.successors.are_on() {
            return Err(NoRestart::OfRanks);
        }
        let is_stopping = self.gang.stop_ordered().is_some();
        let has_failed = is_stopping && self.gang.ended_by().is_none() && !self.is_last_attempt();
        let is_between = self.attempts.may_plan(is_stopping || self.gang.have_all_ended(), has_failed)?;
        let Some(Decision::Restart { attempt, because, .. }) = self.decide(None, Event::Planned) else {
            return Err(NoRestart::Ending);
        };
        let now = self.now;
        self.attempts.plan(now);
        if !is_between {
            self.note(format!("rankrun restart ({by}): ending attempt {}", self.spec.attempt));
            self.event(gang::Event::RestartRequest);
            return Ok(attempt);
        }
        self.note(format!("rankrun restart ({by}): attempt {attempt} begins now"));
        match self.attempts.take_asked() {
            Some((report, _)) => self.plan_attempt(Duration::ZERO, attempt, because, &report),
            None => self.attempts.wait(now, now, because),
        }
        Ok(attempt)
    }
}

/// Why an attempt that was to come has not.
pub(in crate::job) fn before_the_next(why: String) -> String {
    format!("{why} before the next attempt began")
}

/// How long it is until an attempt begins, in a sentence that says that it does.
pub(in crate::job) fn spoken_wait(after: Duration) -> String {
    if after < MOMENT { String::new() } else { format!(" in {}", restart::spoken_wait(after)) }
}
