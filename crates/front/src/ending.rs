//! The end of a job: the proof that nothing is left, the last output, the report.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rankrun_agent::tidy::Remains;
use rankrun_core::ExitCode;
use rankrun_core::gang::{Event, Outside};
use rankrun_core::job::CleanShm;
use rankrun_core::report::{OutputFate, Report, render};
use rankrun_core::stderr::Tail;
use rankrun_core::verdict::verdict;
use rankrun_sys::cgroup::GuardedCgroup;
use rankrun_sys::proc::ChildList;
use rankrun_sys::signal;

use crate::front::{Front, Outcome};
use crate::launcher::LOOK_STEP;
use crate::report::{self, Ending};

/// How long guard and agent may take to end once all is over, beyond what a kill may take.
const GUARD_BOUND: Duration = Duration::from_secs(15);
/// How long before the loss of both guard and agent nobody may have looked after the job.
const UNATTENDED: Duration = Duration::from_secs(2);
/// How long the report itself may wait for a destination that still took the ranks' output.
const REPORT_BOUND: Duration = Duration::from_secs(1);

impl Front {
    /// The ranks are gone, or nobody holds them any more: proof, output, report.
    pub(crate) fn finish(mut self) -> Outcome {
        // A pause that nobody can answer any more is over.
        self.pausing = None;
        self.clock.resume();
        let proven = self.await_guard();
        if let Some(terminal) = &mut self.terminal {
            terminal.close(verdict(&self.gang).code == ExitCode::SUCCESS);
        }
        if let Some((what, source)) = &self.refused {
            report::error(self.plan.color, what, Some(source), None);
            return Outcome { code: ExitCode::INTERNAL, raise: None };
        }
        let mut is_written = true;
        loop {
            let now = self.now();
            let more = self.delivery.presenter.finish(now);
            is_written &= self.write_out(None);
            if !more || !is_written {
                break;
            }
        }
        self.hear_last_words();
        let verdict = verdict(&self.gang);
        let mut code = verdict.code;
        let left = self.summary.as_ref().map(|summary| summary.left.clone()).unwrap_or_default();
        if !proven || !left.is_empty() {
            code = ExitCode::LEFT_BEHIND;
        }
        let tail = verdict.culprit.as_ref().and_then(|culprit| self.last_words.of(culprit.rank));
        let ending = Ending {
            code,
            took: self.started.elapsed(),
            containment: self.containment.as_ref(),
            summary: self.summary.as_ref(),
            proven,
            output: match (self.is_drained, is_written, self.delivery.salvaged().is_some()) {
                (false, _, _) => OutputFate::LostWithAgent,
                (true, true, true) => OutputFate::KeptBesideReport,
                (true, true, false) => OutputFate::Written,
                (true, false, _) => OutputFate::Lost,
            },
            stderr: tail.map(Tail::lines).unwrap_or_default(),
        };
        let report = report::make(&self.plan, &self.gang, &verdict, ending);
        self.conclude(&report);
        let raise = match self.gang.outside() {
            Some(Outside::Signal(number)) if code == ExitCode::signal(number) => Some(number),
            Some(Outside::OutputGone) if code == ExitCode::signal(signal::SIGPIPE) => Some(signal::SIGPIPE),
            Some(_) | None => None,
        };
        self.places.remove();
        Outcome { code, raise }
    }

    /// Saves the report where there is something to report, and tells it.
    fn conclude(&mut self, report: &Report) {
        let is_told = report::is_worth_telling(report, &self.gang);
        let mut place = None;
        if (self.plan.report_dir.is_some() || is_told)
            && let Some(directory) = self.report_dir()
        {
            match report::save(&directory, report) {
                Ok(path) => place = Some(path),
                // A full or read-only home never changes the exit code.
                Err(error) if self.plan.verbosity > 0 => {
                    let error = rankrun_sys::reason(&error);
                    self.note(format!("cannot write the report in \"{}\": {error}", directory.display()));
                }
                Err(_) => {}
            }
        }
        if let Some(path) = std::env::var_os("TORCHELASTIC_ERROR_FILE") {
            let _ = report::write_error_file(Path::new(&path), report);
        }
        if self.plan.verbosity >= 0 && is_told {
            let place = place.as_deref().map(report::shorten_home);
            let text = render(report, place.as_deref(), self.plan.color);
            let now = self.now();
            let text = format!("{}{}", self.over_key(), text.trim_end_matches('\n'));
            self.delivery.presenter.notice(now, &text);
        }
        self.write_out(Some(REPORT_BOUND));
    }

    /// Hands on what is pending until all is written or the time has passed: what is left of the drain, if none is
    /// given. Returns whether all is written.
    fn write_out(&mut self, bound: Option<Duration>) -> bool {
        let until = match bound {
            Some(bound) => self.now() + bound,
            None => *self.drain_until.get_or_insert(self.clock.now() + self.plan.drain),
        };
        let mut ready = Vec::new();
        loop {
            self.hand_on();
            if self.delivery.is_done() && self.notices.is_empty() {
                return true;
            }
            let now = self.now();
            if now >= until {
                if self.delivery.is_full() {
                    self.event(Event::OutputFailed);
                }
                let directory = self.report_dir();
                if self.delivery.salvaged().is_some() || bound.is_some() {
                    return false;
                }
                let Some(Ok(())) = directory.map(|directory| self.delivery.salvage(&directory)) else { return false };
                return self.write_out(Some(REPORT_BOUND));
            }
            let due = self.delivery.deadline().map_or(until, |due| due.min(until));
            if self.poller.wait(Some(due.saturating_sub(now)), &mut ready).is_err() {
                return false;
            }
            for event in std::mem::take(&mut ready) {
                self.dispatch(event);
            }
        }
    }

    /// Waits for the guard's word that nothing is left; where there is no guard any more, does its work.
    fn await_guard(&mut self) -> bool {
        let bound = Instant::now() + GUARD_BOUND;
        let mut ready = Vec::new();
        loop {
            self.look_at_guard();
            if self.guard_code.is_some() || self.guard_lost {
                break;
            }
            let now = Instant::now();
            self.watch_guard();
            if now >= bound || self.poller.wait(Some(LOOK_STEP), &mut ready).is_err() {
                break;
            }
            for event in std::mem::take(&mut ready) {
                self.dispatch(event);
            }
        }
        if let Some(code) = self.guard_code {
            return code == ExitCode::SUCCESS.0;
        }
        let remains = Remains {
            cgroup: self.cgroup.as_deref().and_then(|path| GuardedCgroup::open(path).ok()),
            children: ChildList::open(),
            places: self.places.clone(),
            clean_shm: self.plan.spec.clean_shm == CleanShm::Job,
        };
        if self.is_drained {
            remains.let_end(&self.foreign);
        }
        let empty = remains.end(&self.foreign);
        remains.tidy(self.summary.is_none().then(|| SystemTime::now() - UNATTENDED));
        empty
    }
}
