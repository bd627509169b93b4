//! The agent's side of a profile: one sampler at a time, a process of its own (`crate::helpers::sampler`), is started when the front asks
//! for a profile and ends with it. A job that is never profiled pays nothing.

use std::io;
use std::time::Duration;

use rankrun_core::job::AgentEvent;
use rankrun_core::stacks::profile::{ProfileSpec, Samples};
use rankrun_core::{Purpose, WorkerId, WorkerStatus};
use rankrun_sys::limits::Limits;
use rankrun_sys::poll::{Poller, Ready};
use rankrun_sys::reactor::Conn;
use rankrun_sys::spawn::Command;
use rankrun_sys::{reason, socket};
use rankrun_wire::ToFront;
use rankrun_wireup::messages::Decoder;

use crate::driver::token::Token;
use crate::helpers::control::{Control, Turn, command};
use crate::helpers::looker::Subject;
use crate::helpers::sampler::{End, Request, Seen};
use crate::streams::null;

/// How long a sampler may take besides the time of the profile: to start, on a busy machine, and to end.
const SPARE: Duration = Duration::from_secs(5);
/// How long it may take to end once it is told to.
const END_BOUND: Duration = Duration::from_secs(2);

/// What it is called where it fails.
const PROCESS: &str = "the process that samples";

/// The profile that is being made.
struct Present {
    number: u64,
    workers: Vec<WorkerId>,
    control: Control,
    until: Duration,
    is_started: bool,
    /// Of each worker, whether anything of it was sent.
    is_seen: Vec<bool>,
}

/// The sampler of this node.
#[derive(Default)]
pub(crate) struct Profiler {
    present: Option<Present>,
}

impl Profiler {
    /// The number of the profile that is being made.
    pub(crate) fn number(&self) -> Option<u64> {
        self.present.as_ref().map(|present| present.number)
    }

    /// Begins a profile. Returns the command of the sampler.
    pub(crate) fn begin(
        &mut self,
        now: Duration,
        number: u64,
        subjects: Vec<(WorkerId, Subject)>,
        spec: ProfileSpec,
        limits: Limits,
        poller: &Poller,
    ) -> io::Result<Command> {
        let (ours, theirs) = socket::pair()?;
        let stdio = [theirs, null()?, null()?];
        let conn = Conn::of_socket(&poller.registry(), Token::Sampler.encode(), ours)?;
        let mut control = Control::new(conn, Decoder::default());
        let (workers, subjects): (Vec<WorkerId>, Vec<Subject>) = subjects.into_iter().unzip();
        control.send([&Request { subjects, spec }])?;
        let is_seen = vec![false; workers.len()];
        let until = now + spec.time + SPARE;
        self.present = Some(Present { number, workers, control, until, is_started: false, is_seen });
        Ok(command(Purpose::Sampler, stdio, Vec::new(), None, limits))
    }

    /// It was started. Returns whether it is wanted still.
    pub(crate) fn started(&mut self) -> bool {
        self.present.as_mut().map(|present| present.is_started = true).is_some()
    }

    /// The front wants what there is.
    pub(crate) fn end(&mut self, now: Duration, number: u64) -> Vec<ToFront> {
        let Some(present) = self.present.as_mut().filter(|present| present.number == number) else { return Vec::new() };
        present.until = present.until.min(now + END_BOUND);
        match present.control.send([&End]) {
            Ok(()) => Vec::new(),
            Err(error) => self.fail(&format!("cannot send to {PROCESS}: {}", reason(&error))),
        }
    }

    /// Nothing more comes of the profile. What was sent stays with the front.
    pub(crate) fn fail(&mut self, why: &str) -> Vec<ToFront> {
        let Some(Present { number, workers, is_seen, .. }) = self.present.take() else { return Vec::new() };
        let unseen = workers.into_iter().zip(is_seen).filter(|(_, is_seen)| !is_seen).map(|(worker, _)| {
            let samples = Samples { over: Some(why.to_owned()), ..Samples::default() };
            ToFront::Event(AgentEvent::Profiled { number, worker, samples: Box::new(samples) })
        });
        let over = ToFront::Event(AgentEvent::ProfileOver { number, why: Some(why.to_owned()) });
        unseen.chain([over]).collect()
    }

    /// The sampler has ended.
    pub(crate) fn ended(&mut self, status: WorkerStatus) -> Vec<ToFront> {
        // All that it wrote is there.
        let turn = self.present.as_mut().map(|present| present.control.read_all(PROCESS));
        let mut news = turn.map_or_else(Vec::new, |turn| self.take(turn));
        if self.present.as_ref().is_some_and(|present| present.is_started) {
            news.extend(self.fail(&format!("{PROCESS} was ended by {status}")));
        }
        news
    }

    /// Its connection is ready.
    pub(crate) fn ready(&mut self, event: Ready) -> Vec<ToFront> {
        let Some(present) = &mut self.present else { return Vec::new() };
        let turn = present.control.turn(event, PROCESS);
        self.take(turn)
    }

    /// It has sent this.
    fn take(&mut self, (messages, broken): Turn<Seen>) -> Vec<ToFront> {
        let mut news = Vec::new();
        for message in messages {
            let Some(present) = &mut self.present else { return news };
            let number = present.number;
            match message {
                Seen::Samples(index, samples) => {
                    let Some(worker) = present.workers.get(index as usize).copied() else { continue };
                    present.is_seen[index as usize] = true;
                    news.push(ToFront::Event(AgentEvent::Profiled { number, worker, samples }));
                }
                Seen::Done => {
                    self.present = None;
                    news.push(ToFront::Event(AgentEvent::ProfileOver { number, why: None }));
                }
            }
        }
        if let Some(why) = broken {
            news.extend(self.fail(&why));
        }
        news
    }

    /// When the profile has taken too long.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.present.as_ref().map(|present| present.until)
    }
}
