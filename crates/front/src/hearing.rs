//! What the agent says, and what follows from it.

use std::io;
use std::time::Duration;

use rankrun_core::event::{JobEvent, last_words};
use rankrun_core::gang::Event;
use rankrun_core::job::StdinTarget;
use rankrun_core::testimony::Testimony;
use rankrun_core::{ExitCode, Rank, WorkerStatus};
use rankrun_sys::process::ProcessRef;
use rankrun_sys::{signal, terminal};
use rankrun_wire::ToFront;
use rankrun_wire::message::{Containment, Hello};

use crate::front::Front;

impl Front {
    pub(crate) fn message(&mut self, message: ToFront) {
        match message {
            ToFront::Hello(hello) if hello.version != rankrun_wire::VERSION => {
                self.note(format!("the agent is rankrun {}, this is {}", hello.release, Hello::ours().release));
                self.link = None;
            }
            ToFront::Hello(_) => {}
            ToFront::Refused { what, source } => {
                self.refused = Some((what, io::Error::other(source)));
                self.link = None;
            }
            ToFront::Ready { pid, containment } => {
                self.agent = ProcessRef::open(pid.0);
                if self.plan.verbosity > 0 {
                    self.note(match &containment {
                        Containment::Cgroup => "workers are held in cgroups".to_owned(),
                        Containment::Subreaper { why } => {
                            format!("workers are held by a subreaper, not in cgroups: {why}")
                        }
                    });
                }
                self.containment = Some(containment);
            }
            ToFront::Started { worker, pid, at } => {
                if self.plan.spec.io.stdin == StdinTarget::Rank(worker.rank) {
                    leave_stdin();
                }
                if let Some(terminal) = self.terminal.as_mut().filter(|terminal| terminal.is_lent_to(worker.rank)) {
                    terminal.started(pid);
                }
                if self.plan.verbosity > 1 {
                    self.note(format!("rank {} started, pid {pid}", worker.rank));
                }
                self.node_event(at, Event::Started { rank: worker.rank, pid });
            }
            ToFront::SpawnFailed { worker, step, errno, command, at } => {
                let error = io::Error::from_raw_os_error(errno);
                let code = match error.kind() {
                    io::ErrorKind::NotFound => ExitCode::NOT_FOUND,
                    _ => ExitCode::NOT_EXECUTABLE,
                };
                let event = Event::SpawnFailed {
                    rank: worker.rank,
                    step,
                    error: rankrun_sys::reason(&error),
                    command: command.to_string_lossy().into_owned(),
                    not_found: Some(code),
                };
                self.node_event(at, event);
            }
            ToFront::Ended { worker, status, at } => {
                self.last_words.settle(worker.rank);
                self.rank_ended(worker.rank, status, at);
            }
            ToFront::Gone { worker, outcome, .. } => self.event(Event::Gone { rank: worker.rank, outcome }),
            ToFront::Stopped { worker, signal, at } => self.rank_stopped(worker.rank, signal, at),
            ToFront::Continued { .. } | ToFront::Collective(_) => {}
            ToFront::Mpi { worker, event, at } => self.node_event(at, Event::Mpi { rank: worker.rank, event }),
            ToFront::Testimony { worker, pid, testimony, at } => {
                if let Testimony::Uncaught(_) | Testimony::Exiting { .. } = testimony {
                    self.last_words.settle(worker.rank);
                }
                self.node_event(at, Event::Testimony { rank: worker.rank, pid, testimony });
            }
            ToFront::Stuck { worker, pid, place, since, is_leader, at } => {
                let rank = worker.rank;
                if !is_leader {
                    self.note(format!("rank {rank}: process {pid} could not end after its failure, and was killed"));
                }
                let now = self.now();
                let since = self.node_clock.moment(now, since).at;
                self.node_event(at, Event::Stuck { rank, pid, place, since, leader: is_leader });
            }
            ToFront::KilledForMemory { worker, detail, at } => {
                self.node_event(at, Event::OutOfMemory { rank: worker.rank, detail });
            }
            ToFront::Closed { rank, stream } => {
                let now = self.now();
                self.delivery.closed(now, rank, stream);
            }
            ToFront::StdinTaken(_) => {
                if let Some(stdin) = &self.stdin {
                    stdin.want_more();
                }
            }
            ToFront::Paused => self.paused(),
            ToFront::GuardLost => self.lose_guard(),
            ToFront::Note(text) => self.agent_note(text),
            ToFront::Over(summary) => {
                self.watch.is_over();
                self.summary = Some(summary);
                self.drain_until = Some(self.now() + self.plan.drain);
            }
            ToFront::Drained => {
                self.is_drained = true;
                // The agent ends by itself now.
                self.said_end = true;
                self.link = None;
            }
        }
    }

    /// A leader has ended.
    fn rank_ended(&mut self, rank: Rank, status: WorkerStatus, at: Duration) {
        if let Some(terminal) = self.terminal.as_mut().filter(|terminal| terminal.is_lent_to(rank)) {
            let was_lent = terminal.ended(status.success());
            // ^C went to the rank alone; what it ended, it was meant to end.
            if matches!(status, WorkerStatus::Signaled { signal: signal::SIGINT, .. }) {
                self.key_was_pressed = true;
                self.event(Event::Signal(signal::SIGINT));
                if was_lent {
                    // A script that runs us goes on unless it has seen the key too.
                    terminal::signal_own_group(signal::SIGINT);
                }
            }
        }
        self.node_event(at, Event::Ended { rank, status });
    }

    /// Ranks whose stderr ends with a traceback, and that live on in silence.
    pub(crate) fn suspect(&mut self, now: Duration) {
        if self.last_words.deadline().is_none_or(|due| due > now) {
            return;
        }
        for (rank, exception) in self.last_words.due(now) {
            let end = self.plan.end_suspects;
            if !end {
                let headline = exception.headline();
                self.note(format!(
                    "rank {rank} has written a traceback ({headline}) and lives on; --on-suspect kill would end the job"
                ));
            }
            self.event(Event::Suspect { rank, exception, end });
        }
    }

    /// Before the verdict: what the last lines of stderr say of the ranks that failed.
    pub(crate) fn hear_last_words(&mut self) {
        let failed: Vec<Rank> = (0..self.plan.spec.map.world_size())
            .map(Rank)
            .filter(|rank| self.gang.evidence().iter().any(|evidence| evidence.rank == *rank))
            .collect();
        for rank in failed {
            let Some(tail) = self.last_words.of(rank) else { continue };
            let (now, event) = (self.clock.now(), last_words(rank, tail));
            self.delivery.journal.record(now, || JobEvent::Stderr { rank, tail: tail.clone() });
            // It follows from the event that has just been recorded, and orders nothing any more.
            self.gang.handle(now, event, &mut Vec::new());
        }
    }
}

/// The rank alone holds the front's stdin from now on.
fn leave_stdin() {
    if let Ok(null) = std::fs::File::open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
    }
}
