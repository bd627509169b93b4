//! The agent's side of a profile: one sampler at a time, a process of its own (`crate::helpers::sampler`), is started when the front asks
//! for a profile and ends with it. A job that is never profiled pays nothing.

use std::io;
use std::time::Duration;

use rankrun_core::job::AgentEvent;
use rankrun_core::stacks::profile::{ProfileSpec, Samples};
use rankrun_core::{WorkerId, WorkerStatus};
use rankrun_sys::limits::Limits;
use rankrun_sys::poll::{Poller, Ready};
use rankrun_sys::reactor::{Conn, Incoming};
use rankrun_sys::spawn::Command;
use rankrun_sys::{reason, socket};
use rankrun_wire::ToFront;
use rankrun_wireup::messages::Decoder;

use crate::driver::token::Token;
use crate::helpers::control::{Control, command};
use crate::helpers::looker::Subject;
use crate::helpers::sampler::{End, Request, Seen, WORD};
use crate::streams::null;

/// How long a sampler may take besides the time of the profile: to start, on a busy machine, and to end.
const SPARE: Duration = Duration::from_secs(5);
/// How long it may take to end once it is told to.
const END_BOUND: Duration = Duration::from_secs(2);

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
        Ok(command(WORD, stdio, Vec::new(), None, limits))
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
            Err(error) => self.fail(&format!("cannot send to the process that samples: {}", reason(&error))),
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
        let mut news = self.read();
        if self.present.as_ref().is_some_and(|present| present.is_started) {
            news.extend(self.fail(&format!("the process that samples was ended by {status}")));
        }
        news
    }

    /// Its connection is ready.
    pub(crate) fn ready(&mut self, event: Ready) -> Vec<ToFront> {
        if event.writable
            && let Some(present) = &mut self.present
            && let Err(error) = present.control.flush()
        {
            return self.fail(&format!("cannot send to the process that samples: {}", reason(&error)));
        }
        match event.readable {
            true => self.read(),
            false => Vec::new(),
        }
    }

    fn read(&mut self) -> Vec<ToFront> {
        let mut news = Vec::new();
        while let Some(present) = &mut self.present {
            match present.control.read() {
                Ok(Incoming::Bytes(_)) => {}
                // Its end is reported when it is reaped, with its status.
                Ok(Incoming::Nothing | Incoming::End) | Err(_) => break,
            }
            loop {
                let Some(present) = &mut self.present else { return news };
                match present.control.next_message() {
                    Ok(Some(Seen::Samples(index, samples))) => {
                        let Some(worker) = present.workers.get(index as usize) else { continue };
                        present.is_seen[index as usize] = true;
                        let (number, worker) = (present.number, *worker);
                        news.push(ToFront::Event(AgentEvent::Profiled { number, worker, samples }));
                    }
                    Ok(Some(Seen::Done)) => {
                        let number = present.number;
                        self.present = None;
                        news.push(ToFront::Event(AgentEvent::ProfileOver { number, why: None }));
                    }
                    Ok(None) => break,
                    Err(error) => {
                        news.extend(self.fail(&format!("the process that samples wrote nonsense: {error}")));
                    }
                }
            }
        }
        news
    }

    /// When the profile has taken too long.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.present.as_ref().map(|present| present.until)
    }
}
