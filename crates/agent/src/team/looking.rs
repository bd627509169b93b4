//! Looks into the ranks, when the front asks where they are.

use std::time::Duration;

use rankrun_core::team::Target;
use rankrun_core::worker::State;
use rankrun_core::{Rank, Slot as SlotIndex, WorkerStatus};
use rankrun_sys::poll::Ready;
use rankrun_sys::process::ProcessId;
use rankrun_sys::signal;
use rankrun_wire::ToFront;

use super::spawner::{Job, NotSpawned, Program};
use super::{Hands, Team};
use crate::children::Helper;
use crate::looker::Subject;
use crate::services::looker::Look;

impl Team {
    /// The front asks where these ranks are, or all.
    pub(crate) fn look(&mut self, hands: &mut Hands, now: Duration, number: u64, ranks: Option<&[Rank]>, native: bool) {
        let is_wanted = |slot: &SlotIndex| {
            let is_alive = matches!(self.machine.state(*slot), State::Running { .. } | State::Stopping { .. });
            is_alive && ranks.is_none_or(|ranks| ranks.contains(&self.machine.id(*slot).rank))
        };
        let subject = |slot: SlotIndex| Some((self.machine.id(slot), self.subject(hands, slot)?));
        let subjects: Vec<_> = self.machine.slots().filter(is_wanted).filter_map(subject).collect();
        hands.outbox.push(ToFront::Looking { number, ranks: subjects.len() as u32, traffic: hands.traffic, at: now });
        hands.looker.ask(Look { number, native, subjects });
        self.start_looker(hands, now);
    }

    /// The process of a rank that is looked into: the one in MPI, else the one that reports for the rank, else the leader.
    fn subject(&self, hands: &Hands, slot: SlotIndex) -> Option<Subject> {
        let leader = hands.children.leader(slot).map(|leader| leader.pid());
        let speaker = if let Target::Speaker(id) = self.machine.voice(slot) { self.speakers.process(id) } else { None };
        let known = self.in_mpi(slot).flatten().or(speaker);
        let of = |id: ProcessId| Subject { pid: id.pid, started: id.started, is_leader: Some(id.pid) == leader };
        known.or_else(|| ProcessId::of(leader?)).map(of)
    }

    /// Starts a looker as soon as the spawner has room for it.
    pub(crate) fn start_looker(&mut self, hands: &mut Hands, now: Duration) {
        while hands.looker.wants_start() && hands.spawner.has_room() && !hands.spawner.awaits(Job::Looker) {
            hands.children.end_helpers(Helper::Looker);
            let limits = self.preparer.limits();
            let command = hands.looker.start(now, limits, &hands.poller);
            let why = match command {
                Ok(command) => match hands.spawner.spawn(Job::Looker, Program::ourselves(), command) {
                    true => return,
                    false => "the spawner cannot be reached".to_owned(),
                },
                Err(error) => rankrun_sys::reason(&error),
            };
            self.no_look(hands, &why);
        }
    }

    fn no_look(&mut self, hands: &mut Hands, why: &str) {
        let why = format!("the process that looks into ranks could not be started: {why}");
        let news = hands.looker.fail(&why);
        hands.outbox.extend(news);
    }

    pub(super) fn looker_spawned(&mut self, hands: &mut Hands, result: Result<i32, NotSpawned>) {
        match result {
            // It was given up before it was started.
            Err(_) if !hands.looker.is_looking() => {}
            Ok(pid) => {
                hands.children.add_helper(Helper::Looker, pid);
                if !hands.looker.started(pid) {
                    hands.children.end_helpers(Helper::Looker);
                }
            }
            Err(NotSpawned::Failed(error)) => {
                self.no_look(hands, &format!("{error}: {}", rankrun_sys::reason(&error.source)));
            }
            Err(NotSpawned::Unresolved { errno }) => {
                self.no_look(hands, &rankrun_sys::reason(&std::io::Error::from_raw_os_error(errno)));
            }
            Err(NotSpawned::Cancelled) => self.no_look(hands, "the job is being stopped"),
        }
    }

    pub(super) fn looker_ended(&mut self, hands: &mut Hands, now: Duration, status: WorkerStatus) {
        let news = hands.looker.ended(status);
        hands.outbox.extend(news);
        self.start_looker(hands, now);
    }

    pub(crate) fn looker_ready(&mut self, hands: &mut Hands, now: Duration, event: Ready) {
        let news = hands.looker.ready(event);
        let is_over = news.iter().any(|news| matches!(news, ToFront::LookOver { .. }));
        hands.outbox.extend(news);
        if is_over {
            self.start_looker(hands, now);
        }
    }

    /// A looker that takes too long is killed: what it has found is with the front.
    pub(super) fn looker_tick(&mut self, hands: &mut Hands, now: Duration) {
        if hands.looker.is_late(now) {
            hands.children.end_helpers(Helper::Looker);
            if let Some(child) = hands.spawner.starting(Job::Looker) {
                // It has not come to its exec, and holds up the spawner. It has no result yet: nobody has reaped it.
                let _ = child.signal(signal::SIGKILL);
            }
            let news = hands.looker.fail("looking into the ranks of this node took too long");
            hands.outbox.extend(news);
        }
        self.start_looker(hands, now);
    }
}
