//! The end of a job: the proof that nothing is left, the last output, the report.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rankrun_agent::{GuardState, Keeper};
use rankrun_core::core_dump::CoreDump;
use rankrun_core::event::{End, JobEvent};
use rankrun_core::foreign_codes::Codes;
use rankrun_core::gang::{self, Outside};
use rankrun_core::job::{Ended, Event, Refused, is_by_signal};
use rankrun_core::printable::printable_lines;
use rankrun_core::report::Report;
use rankrun_core::saved;
use rankrun_core::text::{Look, lines_below, render};
use rankrun_core::torchrun_summary;
use rankrun_core::verdict::{Origin, Verdict, verdict};
use rankrun_core::{ExitCode, NodeId, Rank, Stream, WorkerStatus};
use rankrun_sys::{proc, signal};
use rankrun_wire::Memory;

use super::{Front, other_children};
use crate::delivery::report::{self, REPORT, SAVE_BOUND, cannot_write};
use crate::delivery::{Destination, Directory, Done, Files, Task, Unusable};
use crate::job::refusal::Refusal;
use crate::ledger::Entry;
use crate::nodes::NodeHandle;
use crate::outcome::Outcome;

/// How long nodes that have lost the front before this one may take to come again at the end.
const MEMBERS_BOUND: Duration = Duration::from_secs(3);
/// How long the report itself may wait for a destination that still took the ranks' output.
const REPORT_BOUND: Duration = Duration::from_secs(1);
/// How long to wait for the check of the home directory before the report is printed.
const PROBE_BOUND: Duration = Duration::from_millis(200);
/// The limit for each of these after a second signal.
const HURRIED_BOUND: Duration = Duration::from_millis(200);
/// What is waited for at the end. A progress file or a working directory that does not answer is not.
const AWAITED: [Destination; 5] =
    [Destination::Report, Destination::ErrorFile, Destination::Journal, Destination::Results, Destination::Termination];
/// How often to look whether one that takes longer works.
const SLOW_STEP: Duration = Duration::from_millis(200);

/// Lines this close above the report need no repetition: the smallest terminal shows both together.
const ABOVE: u64 = 10;

/// What the front has found out about what is left.
struct Proved {
    /// Nothing is left of the commands that were run here.
    are_commands_gone: bool,
    /// The nodes on which that is not proved.
    unproven: Vec<NodeId>,
    /// By node, what others than its agent have found in /dev/shm there.
    found: Vec<Option<Memory>>,
}

impl Front {
    /// The ranks have ended, or their agent is lost: proof, output, report.
    pub(super) fn finish(&mut self) -> Outcome {
        let proved = self.prove();
        if let Some(terminal) = &mut self.job_control.terminal {
            terminal.close(verdict(self.job.gang()).code == ExitCode::SUCCESS);
        }
        if let Some(refused) = self.job.refused().cloned() {
            return self.refuse(&refused);
        }
        let mut is_written = true;
        loop {
            let now = self.now();
            let more = !self.is_reported && self.delivery.finish(now);
            is_written &= self.write_out();
            if !more || !is_written {
                break;
            }
        }
        if !self.is_reported {
            self.notices.note_withheld(self.clock.now(), true, &mut self.delivery.journal);
        }
        let mut effects = Vec::new();
        self.job.read_last_words(&mut effects);
        self.effects.extend(effects);
        self.perform_all();
        let mut end = self.job.end(self.ended(proved, is_written));
        // Nothing more becomes known of the ranks.
        let verdict = verdict(self.job.gang());
        end.core = verdict.culprit.as_ref().and_then(|culprit| self.find_core(culprit.rank));
        let report = self.report(&verdict, &end);
        let is_interrupted = self.job.is_interrupted();
        self.show_notices();
        end.is_quoted_above = self.is_quoted_above(&report);
        let is_printed = saved::is_worth_telling(&report, self.job.gang());
        // Where earlier attempts have left their reports, that of the last one says how it ended.
        let is_saved = is_printed || !self.job.past_attempts().kept().is_empty();
        let directory = self.directory().filter(|_| self.plan.report.is_asked_for || is_saved || self.was_looked_at);
        let now = self.now();
        // A guard that has ended by itself has removed them. Where a cgroup stays because a process in it could not be killed, the
        // directory stays too: `rankrun clean` needs it to find the cgroup.
        let keepers = self.reach.nodes.iter().filter_map(NodeHandle::keeper);
        let is_left = |keeper: &&Keeper| {
            !matches!(keeper.state, GuardState::Ended(_)) && !keeper.cgroup.as_deref().is_some_and(Path::exists)
        };
        for keeper in keepers.filter(is_left) {
            self.delivery.files.remove(now, &keeper.places);
        }
        let unusable = directory.as_ref().and_then(|directory| self.find_unusable(directory));
        let home = self.plan.report.home.as_deref();
        end.saved = match (&directory, &unusable) {
            (_, Some(unusable)) => Some(format!("not saved: {unusable}; see --report-dir")),
            (Some(directory), None) => Some(report::shorten_home(&directory.path.join(REPORT), home)),
            (None, None) => Some("not saved: HOME is not set; see --report-dir".to_owned()),
        };
        if let Some(enrolment) = self.reach.enrolment.as_mut().filter(|_| is_printed) {
            let node = report.culprit.as_ref().map(|culprit| format!(" (node {})", culprit.node));
            enrolment.explain(format!("{}{}", report.summary, node.unwrap_or_default()));
        }
        if self.plan.verbosity >= 0 && is_printed && !self.is_reported {
            let look =
                Look { saved: end.saved.as_deref(), color: self.plan.color, is_quoted_above: end.is_quoted_above };
            let text = render(&report, look);
            if self.plan.join.is_some() {
                let text = render(&report, Look { color: false, ..look });
                self.delivery.files.submit(self.clock.now(), Task::SayWhyEnded(text));
            }
            let is_after_key = self.notices.is_after_key();
            self.notices.say(text.trim_end_matches('\n'), is_after_key);
            if self.plan.codes == Some(Codes::Torchrun)
                && let Some(text) = torchrun_summary::summary(&report, self.job.spec())
            {
                let text = printable_lines(&text);
                self.notices.say(text.trim_end_matches('\n'), false);
            }
        }
        if let Some(ledger) = &mut self.ledger {
            ledger.add(&Entry::Reported);
        }
        let now = self.now();
        self.delivery.journal.record(now, || JobEvent::End(Box::new(end)));
        self.write_rest();
        self.save(directory.filter(|_| unusable.is_none()), &report);
        self.requeue();
        self.end_files();
        self.write_rest();
        let interrupted = verdict.interrupted.and_then(|finding| self.job.gang().ranks().get(finding.rank)?.status);
        let code = self.plan.codes.map_or(report.exit_code, |codes| codes.of(&report));
        self.control.answer_up(self.clock.now(), self.job.last_up());
        if let Some((client, profile)) = self.job.take_profile("the job ended") {
            self.control.answer_profile(self.clock.now(), client, Box::new(profile));
        }
        self.control.answer_end(self.clock.now(), code, &report);
        self.commit();
        if self.plan.codes.is_some() {
            return Outcome { code, raise: None };
        }
        let raise = match self.job.gang().outside() {
            _ if interrupted.is_some_and(is_by_signal) && report.exit_code == ExitCode::signal(signal::SIGINT) => {
                Some(signal::SIGINT)
            }
            Some(Outside::Signal(number)) if report.exit_code == ExitCode::signal(number) => Some(number),
            Some(Outside::OutputGone) if report.exit_code == ExitCode::signal(signal::SIGPIPE) => Some(signal::SIGPIPE),
            // A loop around rankrun ends, too.
            _ if is_interrupted => Some(signal::SIGINT),
            Some(_) | None => None,
        };
        Outcome { code: report.exit_code, raise }
    }

    /// The job did not begin.
    fn refuse(&mut self, Refused { what, why, hint, code }: &Refused) -> Outcome {
        self.show_notices();
        let source = io::Error::other(why.clone());
        report::error(self.plan.color, what, Some(&source), hint.as_deref());
        let text = format!("{what}: {why}");
        if let Some(enrolment) = &mut self.reach.enrolment {
            enrolment.explain(text.clone());
        }
        if let Some((directory, refusal)) = Refusal::of(&self.plan)
            && let Err(text) = (Refusal { text, code: *code, ..refusal }).save(&directory)
        {
            report::error(self.plan.color, &text, None, None);
        }
        self.end_files();
        Outcome { code: *code, raise: None }
    }

    /// What the devices know of the end.
    fn ended(&self, proved: Proved, is_written: bool) -> Ended {
        let took = self.started.elapsed();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seated = self.job.nodes().seated().map(|node| &self.reach.nodes[node.id().index()]);
        Ended {
            took,
            started: now.saturating_sub(took),
            are_commands_gone: proved.are_commands_gone,
            unproven: proved.unproven,
            found: proved.found,
            is_written: is_written && !self.delivery.is_lost() && !self.delivery.is_transcript_behind(),
            is_kept: self.delivery.has_kept(),
            has_given_up_output: self.drain.has_given_up_agents(),
            why_lost: { seated }.find_map(NodeHandle::why_lost),
        }
    }

    /// Whether the lines that the report would quote were just printed above it.
    fn is_quoted_above(&self, report: &Report) -> bool {
        let Some(culprit) = &report.culprit else { return false };
        let is_stdout = culprit.window.as_ref().is_some_and(|window| window.origin == Origin::Stdout);
        let (stream, below) = match is_stdout {
            true => (Stream::Stdout, Some(0)),
            false => (Stream::Stderr, lines_below(culprit)),
        };
        let distance = self.delivery.shown.lines_since(culprit.rank, stream);
        matches!((below, distance), (Some(below), Some(distance)) if below as u64 + distance <= ABOVE)
    }

    /// The path of the culprit's core file, if there is one.
    fn find_core(&mut self, rank: Rank) -> Option<CoreDump> {
        let record = self.job.gang().ranks().get(rank)?;
        let Some(WorkerStatus::Signaled { signal, core_dumped: true }) = record.status else { return None };
        let pid = record.pid?;
        let directory = self.job.spec().directory(rank);
        let task = Task::FindCore { pid, signal, directory: directory.into(), took: self.started.elapsed() };
        let now = self.now();
        self.delivery.files.submit(now, task);
        self.wait_for_files(PROBE_BOUND, |_, answers| answers.iter().any(|it| matches!(it, Done::CoreFound(_))));
        let found = |it: &Done| if let Done::CoreFound(core) = it { core.clone() } else { None };
        self.delivery.answers.iter().find_map(found)
    }

    fn report(&self, verdict: &Verdict, end: &End) -> Report {
        Report::of(self.job.facts(), self.job.gang(), verdict, end, |rank| self.job.words().of(rank))
    }

    /// Writes the report, and the error file of torchrun, and notes what could not be written. Neither changes the exit
    /// code.
    fn save(&mut self, directory: Option<Directory>, report: &Report) {
        let (mut files, mut forget) = (Vec::new(), None);
        if let Some(directory) = directory {
            let path = directory.path.join(REPORT);
            forget = directory.is_chosen.then(|| directory.path.clone());
            files.push((Some(directory), path, saved::to_json(report)));
        }
        if let (Some(path), Some(json)) = (self.plan.error_file.clone(), saved::error_file(report)) {
            files.push((None, path, json));
        }
        let now = self.now();
        let mut paths = Vec::new();
        for (directory, path, bytes) in files {
            match bytes {
                Ok(bytes) => {
                    let task = Task::Save { directory, path: path.clone(), bytes };
                    paths.push((task.destination(), path));
                    self.delivery.files.submit(now, task);
                }
                Err(error) => self.note(cannot_write(&path, &error.to_string())),
            }
        }
        if let Some(directory) = forget {
            self.delivery.files.submit(now, Task::Forget { directory, own: report.job.clone() });
        }
        // The report lies beside the output that is kept.
        let bound = if self.drain.is_hurried() || self.delivery.is_keep_dead() { HURRIED_BOUND } else { SAVE_BOUND };
        let waited = self.wait_for_saving(bound);
        for answer in std::mem::take(&mut self.delivery.answers) {
            if let Done::Saved { path, result } = answer {
                paths.retain(|(_, unanswered)| *unanswered != path);
                if let Err(error) = result {
                    self.note(cannot_write(&path, &error.to_string()));
                }
            }
        }
        let bound = if self.drain.is_hurried() { HURRIED_BOUND } else { waited };
        let files = &self.delivery.files;
        let others = [Destination::Journal, Destination::Results].into_iter().filter(|other| !files.is_idle(*other));
        paths.extend(others.map(|other| (other, files.at(other))));
        for (destination, path) in paths {
            let why = self.delivery.files.why(destination, bound);
            self.note(cannot_write(&path, &why));
        }
    }

    /// Waits until all is written that is waited for at the end, for so long at most. Where the log files have had the time for a file system
    /// that does not answer, another one that does not has little. Returns how long it took.
    fn wait_for_saving(&mut self, bound: Duration) -> Duration {
        let begun = self.now();
        let is_idle = |files: &Files| AWAITED.iter().all(|it| files.is_idle(*it) || files.has_failed(*it));
        let mut until = begun + if self.delivery.has_waited_in_vain() { REPORT_BOUND.min(bound) } else { bound };
        loop {
            if self.wait_for_files(until.saturating_sub(self.now()), |files, _| is_idle(files))
                || self.drain.is_hurried()
            {
                break;
            }
            let now = self.now();
            let files = &self.delivery.files;
            let works = |it: &&Destination| !files.is_idle(**it) && !files.is_stuck(**it, now, Duration::ZERO);
            // One that is only slow has all its time.
            if now >= begun + bound || !AWAITED.iter().any(|it| works(&it)) {
                break;
            }
            until = (now + SLOW_STEP).min(begun + bound);
        }
        let waited = self.now().saturating_sub(begun).min(bound);
        // People read it.
        Duration::from_millis(waited.as_millis() as u64 / 100 * 100)
    }

    /// Ends the storage processes, and names those that stay.
    fn end_files(&mut self) {
        let mut named = Vec::new();
        for (pid, path) in self.delivery.files.end() {
            let path = path.display();
            let channel = proc::wait_channel(pid).map(|name| format!(" in {name}")).unwrap_or_default();
            self.note(format!("\"{path}\" does not answer: process {pid} of rankrun stays{channel} until it does"));
            named.push(pid);
        }
        // A look at a path before the job began.
        let waits = |pid: &i32| proc::process(*pid).is_some_and(|process| process.state == 'D');
        for pid in proc::own_children().into_iter().filter(|pid| !named.contains(pid) && waits(pid)) {
            self.note(format!("a file system does not answer: process {pid} of rankrun stays until it does"));
        }
    }

    /// Looks at the place of the report, once: when the ranks are ordered to stop, since its process starts while they end.
    pub(super) fn probe_place_of_report(&mut self) {
        if std::mem::replace(&mut self.is_place_probed, true) {
            return;
        }
        let now = self.now();
        let directory = self.directory();
        if let Some(place) = directory.clone().filter(|place| !place.is_chosen || place.below.is_some()) {
            self.delivery.files.submit(now, Task::Probe(place));
        }
        let usual = directory.filter(|place| !place.is_chosen);
        let pointer = Directory::of_pointer(&self.plan.report).filter(|_| self.was_looked_at);
        if let Some(Directory { path: own, .. }) = usual.or(pointer) {
            // There is time for it while the ranks end.
            self.delivery.files.submit(now, Task::Prune { own, keep: self.plan.report.keep });
        }
    }

    /// Why the report is not saved in the default directory, if so. A directory that does not answer counts as usable.
    fn find_unusable(&mut self, directory: &Directory) -> Option<Unusable> {
        if directory.is_chosen && directory.below.is_none() {
            return None;
        }
        self.probe_place_of_report();
        self.wait_for_files(PROBE_BOUND, |_, answers| answers.iter().any(|it| matches!(it, Done::Probed(_))));
        let unusable = |it: &Done| if let Done::Probed(Err(unusable)) = it { Some(unusable.clone()) } else { None };
        self.delivery.answers.iter().find_map(unusable)
    }

    /// Waits for file systems. Returns whether the awaited answer came.
    fn wait_for_files(&mut self, bound: Duration, has_come: impl Fn(&Files, &[Done]) -> bool) -> bool {
        let was_hurried = self.drain.is_hurried();
        let until = self.now() + if was_hurried { HURRIED_BOUND.min(bound) } else { bound };
        loop {
            let now = self.now();
            self.delivery.receive(now);
            if has_come(&self.delivery.files, &self.delivery.answers) {
                return true;
            }
            if now >= until || (self.drain.is_hurried() && !was_hurried) || !self.wait_until(until) {
                return false;
            }
        }
    }

    /// Nodes that have ended, and have lost the front before this one, come again for the exit code of the job.
    pub(super) fn await_members(&mut self) {
        let until = self.now() + MEMBERS_BOUND;
        while self.is_successor
            && self.reach.enrolment.as_ref().is_some_and(|enrolment| enrolment.misses_members(&self.job))
            && self.now() < until
            && self.wait_until(until)
        {}
    }

    /// Waits for events up to a time, and handles them. Returns whether that was possible.
    pub(super) fn wait_until(&mut self, until: Duration) -> bool {
        let mut ready = Vec::new();
        let rest = until.saturating_sub(self.now());
        if self.poller.wait(Some(rest), &mut ready).is_err() {
            return false;
        }
        for event in ready {
            self.dispatch(event);
        }
        // Who has asked for something waits for the answer.
        self.commit();
        true
    }

    /// Writes what is pending, as long as the destinations have time. Returns whether all is written.
    fn write_out(&mut self) -> bool {
        loop {
            if self.is_all_handed_on() {
                return true;
            }
            let now = self.now();
            if self.delivery.check_results(now) {
                continue;
            }
            let are_logs_stuck = self.delivery.are_logs_stuck(now);
            let (acts, is_over) = self.drain.due_at_end(now, self.output(), are_logs_stuck);
            let is_any = !acts.is_empty();
            self.give_up(acts);
            self.take_news();
            if is_over {
                // The report still has its second.
                let is_written = self.write_rest();
                if !is_written {
                    self.delivery.give_up_kept();
                }
                return is_written;
            }
            if !is_any && !self.wait_for_delivery(self.drain.deadline().unwrap_or(now)) {
                return false;
            }
        }
    }

    /// Writes what is pending, the report among it. Returns whether all is written.
    fn write_rest(&mut self) -> bool {
        let until = self.now() + REPORT_BOUND;
        while !self.is_all_handed_on() {
            if self.now() >= until {
                if self.delivery.is_full() {
                    self.event(gang::Event::OutputFailed);
                }
                return false;
            }
            if !self.wait_for_delivery(until) {
                return false;
            }
        }
        true
    }

    /// Hands on what there is. Returns whether nothing waits to be written.
    fn is_all_handed_on(&mut self) -> bool {
        loop {
            self.hand_on();
            // Those that came with the last events: nothing else would wake us for them.
            if !self.delivery.is_done() || self.notices.is_empty() {
                return self.delivery.is_done();
            }
        }
    }

    fn wait_for_delivery(&mut self, until: Duration) -> bool {
        let due = self.delivery.deadline().map_or(until, |due| due.min(until));
        self.wait_until(due)
    }

    /// What holds the nodes has ended, or is not waited for any more: what is left there.
    fn prove(&mut self) -> Proved {
        let files = &self.delivery.files;
        let (unproven, found) =
            self.reach.prove(&self.job, &other_children(&self.strangers, &self.commands, files, self.heir.as_ref()));
        self.take(Event::Unproven(unproven.clone()));
        let others = other_children(&self.strangers, &self.commands, &self.delivery.files, self.heir.as_ref());
        let are_commands_gone = self.commands.prove(&|| {
            let guards = self.reach.nodes.iter().filter_map(NodeHandle::keeper).filter_map(Keeper::guard);
            others().into_iter().chain(self.reach.pids()).chain(guards).collect()
        });
        Proved { are_commands_gone, unproven, found }
    }
}
