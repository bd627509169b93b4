//! Does what the job orders.

use std::borrow::Cow;
use std::ffi::OsString;
use std::time::Duration;

use rankrun_agent::Watch;
use rankrun_core::control::Answer;
use rankrun_core::event::JobEvent;
use rankrun_core::job::{Added, Effect, Event, Meeting, NodeCommand, NodeEvent, Order, StdinTarget, report_of};
use rankrun_core::planned::Notice;
use rankrun_core::report::Report;
use rankrun_core::saved;
use rankrun_core::spawning::GroupMap;
use rankrun_core::{Attempt, GroupId, NodeId, NodeRank, Pid, Rank, WorkerId};
use rankrun_output::Entry;
use rankrun_sys::{signal, terminal};
use rankrun_wire::ToAgent;
use rankrun_wire::message::NodeStart;

use super::{Front, OwnDirectory};
use crate::delivery::{Stamped, Task, text_of_standings, text_of_table};
use crate::nodes::NodeTarget;

impl Front {
    /// Does what is ordered, and what follows from that.
    pub(super) fn perform_all(&mut self) {
        if std::mem::replace(&mut self.is_at_work, true) {
            return;
        }
        while let Some(effect) = self.effects.pop_front() {
            self.perform(effect);
        }
        self.is_at_work = false;
    }

    fn perform(&mut self, effect: Effect) {
        let now = self.now();
        match effect {
            Effect::Send(order) => {
                let is_stop = matches!(order, Order::Stop(_));
                self.send(&ToAgent::Order(order));
                if is_stop {
                    self.probe_place_of_report();
                }
            }
            // If it fails, that is found at the next reading.
            Effect::Beat(node) => drop(self.reach.node(node).beat(now)),
            Effect::Start { node, place, group, meeting } => {
                if let Some(start) = self.node_start(node, place, group, meeting) {
                    self.send_to(node, &ToAgent::Start(Box::new(start)));
                }
            }
            Effect::Prepare(node) => {
                let meeting = Meeting::There(None);
                let group = self.job.spec().group;
                if let Some(start) = self.node_start(node, NodeRank(0), group, meeting) {
                    self.send_to(node, &ToAgent::Prepare(Box::new(start)));
                }
            }
            Effect::Introduce { node, group } => {
                if let Some(map) = self.group_map(group) {
                    self.send_to(node, &ToAgent::Group(Box::new(map)));
                }
            }
            Effect::BeginGroup(group) => {
                if let Some(spec) = self.job.spec_of(group) {
                    self.delivery.show(now, &Entry::Group(group, Cow::Borrowed(&spec.map)));
                }
            }
            Effect::ExpectEnd(node, by) => drop(self.reach.node(node).watch().map(|watch| watch.expect_end(by))),
            Effect::HasEnded(node) => drop(self.reach.node(node).watch().map(Watch::is_over)),
            Effect::WatchAgent(node) => drop(self.reach.node(node).watch().map(|watch| watch.begin(now))),
            Effect::End(node) => self.reach.node(node).end(),
            Effect::GiveUp(node) => self.reach.node(node).give_up(),
            Effect::Disconnect(node) => self.reach.node(node).disconnect(),
            Effect::AddNode(node, added) => self.add_node(node, added),
            Effect::RunFor(node, command) => self.run_for(node, command),
            Effect::Call(node) => self.reach.call(node),
            Effect::LookAtCall(node) => self.reach.look_at_call(node),
            Effect::Ask(node) => self.reach.ask(now, node),
            Effect::StopAsking(node) => self.reach.node(node).stop_asking(),
            Effect::AskSecond(node) => self.reach.ask_second(&self.job, now, node),
            Effect::Enrolled(node, what) => self.reach.enrolled(&self.job, now, node, what),
            Effect::CloseDoor { why } => {
                if let Some(enrolment) = &mut self.reach.enrolment {
                    enrolment.close(why);
                }
            }
            Effect::StartStep { step, nodes } => {
                let directory = self.own_directory.as_ref().filter(|_| self.plan.hosts.outlasts_front.is_some());
                self.reach.start_step(&self.plan, step, &nodes, directory.map(OwnDirectory::path));
            }
            Effect::World => {
                self.delivery.show(now, &Entry::World(Cow::Borrowed(&self.job.spec().map)));
            }
            Effect::BeginAttempt => {
                self.drain.end();
                self.delivery.begin_attempt();
            }
            Effect::OpenLogs => {
                if let Some(logs) = &self.plan.logs {
                    let spec = self.job.spec();
                    let (places, world_size) = (Box::new(logs.places(spec)), spec.map.world_size());
                    self.delivery.files.submit(now, Task::OpenLogs { places, world_size });
                }
            }
            Effect::BeginRanks => {
                self.collectives.clear();
                self.names = Default::default();
                if let Some(terminal) = &mut self.job_control.terminal {
                    terminal.begin_attempt(&self.job.spec().io);
                }
                self.begin_stdin();
            }
            Effect::HaveStarted => self.waker.wake(),
            Effect::BeginRank(worker) => self.begin_rank(now, worker),
            Effect::Drain { is_last } => {
                self.drain.begin(now);
                if is_last {
                    self.delivery.ranks_ended(now);
                }
            }
            Effect::Closing => {
                self.commands.answer(false);
                self.commands.end_others();
                self.drain.ranks_are_gone();
                self.delivery.ranks_ended(now);
            }
            Effect::ShowRest => {
                self.is_showing = true;
                self.show_rest();
            }
            Effect::IsShown => self.drain.end(),
            Effect::Stamp(attempt) => {
                if let Some(file) = self.job.spec().restart.progress_file.clone() {
                    let of = Stamped::Progress(attempt);
                    self.delivery.files.submit(now, Task::Stamp { of, path: file.into() });
                }
            }
            Effect::LookForNotice(notice) => self.look_for_notice(notice),
            Effect::AskPolicy { report, own } => {
                let spec = self.job.spec();
                let of = (&spec.job, &spec.restart);
                if let Err(error) = self.commands.ask(&mut self.reach.starter, &self.waker, of, report, own) {
                    self.take(Event::NotAsked { why: rankrun_sys::reason(&error) });
                }
            }
            Effect::SaveReport { report, attempt } => self.save_report_of(now, &report, attempt),
            Effect::RankStarted { worker, pid, node, is_again } => self.rank_started(worker.rank, pid, node, is_again),
            Effect::RankEnded { worker: WorkerId { rank, .. }, status } => {
                self.delivery.show(now, &Entry::Ended(rank));
                if let Some(terminal) = self.job_control.of_rank(rank) {
                    terminal.ended(status.success());
                }
            }
            // A script that runs us goes on unless it gets the signal too.
            Effect::WasInterrupted if self.delivery.is_away() => {}
            Effect::WasInterrupted => terminal::signal_own_group(signal::SIGINT),
            Effect::Note(text) => self.note(text),
            Effect::RankNote { worker, text } => self.show_note(now, worker.rank, &text),
            Effect::KeyWasPressed => self.notices.key_was_pressed(),
            Effect::Stopping { text, by_key } => {
                if self.plan.verbosity >= 0 {
                    let is_after_key = by_key && self.notices.is_after_key();
                    self.notices.say(&format!("rankrun: {text}"), is_after_key);
                }
            }
            Effect::Table { title, table } => {
                let text = text_of_table(&title, &table);
                self.delivery.journal.record(now, || JobEvent::Note(text.clone()));
                if self.plan.verbosity >= 0 {
                    self.notices.say(&text, false);
                }
            }
            // The terminal has shown `^\`.
            Effect::Standings { standings, by_key } => {
                let text = text_of_standings(self.started.elapsed(), &standings);
                self.delivery.journal.record(now, || JobEvent::Note(text.clone()));
                self.notices.say(&text, by_key);
            }
            Effect::Hurry => self.drain.hurry(now),
            Effect::Record { at, event } => self.delivery.journal.record(at, || *event),
            Effect::States { conditions, usages, silent } => {
                let status = self.job.status_of_ranks(self.wall(), &conditions, usages, silent);
                self.control.answer_states(now, &status);
            }
            Effect::Stacks { client, table, ranks } => self.control.answer_stacks(now, client, table, ranks),
            Effect::Profile { client, profile } => self.control.answer_profile(now, client, profile),
            Effect::RefuseProfile { client, why } => self.control.refuse_profile(now, client, why),
            Effect::RefuseStacks { client } => self.control.refuse_stacks(now, client, &self.job.spec().job),
            Effect::AnswerSpawn { node, asker, answer } => self.send_to(node, &ToAgent::Spawned { asker, answer }),
            Effect::RestartAnswer { client, answer } => self.control.answer_restart(now, client, answer),
            Effect::StopAnswer { client, ranks, left, already } => {
                let grace = left.as_secs_f64();
                self.control.answer(now, client, &Answer::Stopping { ranks, grace, already });
            }
        }
    }

    /// Runs a command of the user's about a node that was lost.
    fn run_for(&mut self, node: NodeId, command: NodeCommand) {
        let hosts = &self.plan.hosts;
        let words = match command {
            NodeCommand::Fence => hosts.fence.as_ref(),
            NodeCommand::Replace => hosts.replace.as_ref(),
        };
        let Some(words) = words else { return };
        let words: Vec<OsString> = words.iter().cloned().chain([self.job.nodes().name(node).into()]).collect();
        let job = &self.job.spec().job;
        if let Err(error) = self.commands.run_for(&mut self.reach.starter, &self.waker, job, &words, (node, command)) {
            let answer = Err(rankrun_sys::reason(&error));
            self.take(Event::Node { node, event: NodeEvent::CommandEnded { command, answer } });
        }
    }

    /// Looks for the notice of a preemption.
    fn look_for_notice(&mut self, notice: Notice) {
        match notice {
            Notice::File(path) => {
                let now = self.now();
                self.delivery.files.submit(now, Task::Stamp { of: Stamped::Notice, path: path.into() });
            }
            Notice::Command(words) => {
                let job = &self.job.spec().job;
                if let Err(error) = self.commands.await_notice(&mut self.reach.starter, &self.waker, job, &words) {
                    self.take(Event::NoticeCommand(Err(rankrun_sys::reason(&error))));
                }
            }
        }
    }

    /// A node is there that is to be called.
    pub(super) fn add_node(&mut self, node: NodeId, added: Added) {
        match added {
            Added::Again(before) => self.reach.add_again(node, before),
            Added::Host(host) => self.reach.add(node, NodeTarget::named(host)),
        }
    }

    /// What the agent of a node needs to start its ranks.
    fn node_start(&self, node: NodeId, place: NodeRank, group: GroupId, meeting: Meeting) -> Option<NodeStart> {
        let is_away = self.reach.nodes[node.index()].remote().is_some();
        let calls = self.reach.calls.as_ref().filter(|_| is_away);
        let abouts = self.job.nodes().seated().filter_map(|node| node.about());
        let is_first = group == self.job.spec().group;
        let reads_stdin = is_first && self.job.reads_stdin(node);
        Some(NodeStart {
            node: place,
            spec: self.job.spec_for(node, group)?,
            meeting,
            hosts: abouts.map(|about| about.host.clone()).collect(),
            sends_stdin: (is_away || self.stdin.is_some()) && reads_stdin,
            patience: is_away.then(|| self.job.patience()),
            umask: calls.map(|calls| calls.umask),
            limits: calls.map(|calls| calls.limits.clone()).unwrap_or_default(),
        })
    }

    /// What nodes without ranks of a group know of it.
    fn group_map(&self, group: GroupId) -> Option<GroupMap> {
        let spec = self.job.spec_of(group)?;
        let by = spec.spawned.as_ref()?.by;
        Some(GroupMap { group, map: spec.map.clone(), by })
    }

    /// A rank runs.
    fn rank_started(&mut self, rank: Rank, pid: Pid, node: NodeId, is_again: bool) {
        let spec = self.job.spec();
        let has_stdin = [StdinTarget::Rank(rank), StdinTarget::Shared].contains(&spec.io.stdin);
        if has_stdin && spec.attempt.0 == 0 && self.reach.nodes[node.index()].keeper().is_some() {
            leave_stdin();
        }
        if let Some(terminal) = self.job_control.of_rank(rank) {
            terminal.started(pid);
        }
        if is_again {
            // The agent has made the job's directory again, if a rank has removed it.
            self.restore_control();
        }
    }

    /// A rank is started again.
    fn begin_rank(&mut self, now: Duration, WorkerId { rank, attempt, .. }: WorkerId) {
        self.delivery.show(now, &Entry::Rank(rank));
        let mut spec = self.job.spec().clone();
        spec.attempt = attempt;
        if let Some(logs) = self.plan.logs.as_ref().filter(|logs| logs.are_for_each_attempt(&spec)) {
            let places = Box::new(logs.places(&spec));
            self.delivery.files.submit(now, Task::MoveLog { rank, places });
        }
    }

    /// Shows what was kept for the end of the attempt, piece by piece: the next one when the last has been taken.
    pub(super) fn show_rest(&mut self) {
        while self.is_showing && self.delivery.is_all_taken() {
            let now = self.now();
            let more = self.delivery.finish(now);
            self.hand_on();
            if !more {
                self.is_showing = false;
                self.take(Event::Shown);
            }
        }
    }

    /// Keeps the report of an attempt that another follows.
    fn save_report_of(&mut self, now: Duration, report: &Report, attempt: Attempt) {
        let path = self.directory().map(|directory| directory.path.join(report_of(attempt)));
        if let (Some(directory), Some(path), Ok(bytes)) = (self.directory(), path, saved::to_json(report)) {
            self.delivery.files.submit(now, Task::Save { directory: Some(directory), path, bytes });
        }
    }

    /// A rank sent a progress note: for the status region, or with `-v` a line.
    fn show_note(&mut self, now: Duration, rank: Rank, text: &str) {
        if self.plan.verbosity >= 0 && !self.delivery.note_of(now, rank, text) && self.plan.verbosity > 0 {
            self.agent_note(format!("rank {rank}: {text}"));
        }
    }
}

/// From now on only the rank holds the front's stdin.
fn leave_stdin() {
    if let Ok(null) = std::fs::File::open("/dev/null") {
        // If that fails, the rank and we share the descriptor, and we do not read it.
        let _ = rustix::stdio::dup2_stdin(&null);
    }
}
