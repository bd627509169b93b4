//! The agent's side of looking into ranks: one looker at a time, a process of its own (`crate::helpers::looker`), is started when it is
//! asked for and ends with its answer. A job that is never asked pays nothing.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use rankrun_core::job::AgentEvent;
use rankrun_core::stacks::ProcessStack;
use rankrun_core::{Pid, Purpose, WorkerId, WorkerStatus};
use rankrun_sys::limits::Limits;
use rankrun_sys::poll::{Poller, Ready};
use rankrun_sys::reactor::Conn;
use rankrun_sys::socket;
use rankrun_sys::spawn::Command;
use rankrun_wire::ToFront;
use rankrun_wireup::messages::Decoder;

use crate::driver::token::Token;
use crate::helpers::control::{Control, Turn, command};
use crate::helpers::looker::{Found, Request, Subject};
use crate::streams::null;

/// The time for all ranks of a node.
pub(crate) const LOOK_BOUND: Duration = Duration::from_secs(2);
/// How long a looker may take besides: to start, on a busy machine, and to end.
const SPARE: Duration = Duration::from_secs(3);

/// What it is called where it fails.
const PROCESS: &str = "the process that looks into ranks";

/// A look that the front has asked for.
pub(crate) struct Look {
    pub(crate) number: u64,
    pub(crate) native: bool,
    pub(crate) subjects: Vec<(WorkerId, Subject)>,
    /// Of the ranks, and so of the looker.
    pub(crate) limits: Limits,
}

/// The look that is being made.
struct Present {
    look: Look,
    control: Control,
    until: Duration,
    /// The process, once it is started.
    pid: Option<i32>,
    /// By subject: whether there is an answer.
    is_answered: Vec<bool>,
}

/// The looker of this node.
#[derive(Default)]
pub(crate) struct Looker {
    present: Option<Present>,
    waiting: VecDeque<Look>,
}

impl Looker {
    pub(crate) fn ask(&mut self, look: Look) {
        self.waiting.push_back(look);
    }

    /// Whether a looker is to be started.
    pub(crate) fn wants_start(&self) -> bool {
        self.present.is_none() && !self.waiting.is_empty()
    }

    pub(crate) fn is_looking(&self) -> bool {
        self.present.is_some()
    }

    /// The command of the looker for the next look.
    pub(crate) fn start(&mut self, now: Duration, poller: &Poller) -> io::Result<Command> {
        let Some(look) = self.waiting.front() else { return Err(io::ErrorKind::InvalidInput.into()) };
        let subjects = look.subjects.iter().map(|(_, subject)| *subject).collect();
        let request = Request { subjects, bound: LOOK_BOUND, native: look.native };
        let limits = look.limits;
        let (ours, theirs) = socket::pair()?;
        let stdio = [theirs, null()?, null()?];
        let conn = Conn::of_socket(&poller.registry(), Token::Looker.encode(), ours)?;
        let mut control = Control::new(conn, Decoder::default());
        control.send([&request])?;
        if let Some(look) = self.waiting.pop_front() {
            let is_answered = vec![false; look.subjects.len()];
            let until = now + LOOK_BOUND + SPARE;
            self.present = Some(Present { look, control, until, pid: None, is_answered });
        }
        Ok(command(Purpose::Looker, stdio, Vec::new(), None, limits))
    }

    /// It was started. Returns whether it is wanted still.
    pub(crate) fn started(&mut self, pid: i32) -> bool {
        match &mut self.present {
            Some(present) => {
                present.pid = Some(pid);
                true
            }
            None => false,
        }
    }

    /// The next look cannot be made, or the present one not to its end.
    pub(crate) fn fail(&mut self, why: &str) -> Vec<ToFront> {
        let (look, is_answered) = match (self.present.take(), self.waiting.pop_front()) {
            (Some(present), next) => {
                // Only one of them has failed.
                next.into_iter().for_each(|next| self.waiting.push_front(next));
                (present.look, present.is_answered)
            }
            (None, Some(look)) => {
                let is_answered = vec![false; look.subjects.len()];
                (look, is_answered)
            }
            (None, None) => return Vec::new(),
        };
        let Look { number, subjects, .. } = look;
        let missing = subjects.into_iter().zip(is_answered).filter(|(_, is_answered)| !is_answered);
        let unseen = missing.map(|((worker, subject), _)| {
            ToFront::Event(AgentEvent::Looked {
                number,
                worker,
                stack: Box::new(ProcessStack::not_seen(Pid(subject.pid), why)),
            })
        });
        unseen.chain([ToFront::Event(AgentEvent::LookOver { number })]).collect()
    }

    /// The looker has ended.
    pub(crate) fn ended(&mut self, status: WorkerStatus) -> Vec<ToFront> {
        // All that it wrote is there.
        let turn = self.present.as_mut().map(|present| present.control.read_all(PROCESS));
        let mut news = turn.map_or_else(Vec::new, |turn| self.take(turn));
        if self.present.is_some() {
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
    fn take(&mut self, (messages, broken): Turn<Found>) -> Vec<ToFront> {
        let mut news = Vec::new();
        for message in messages {
            let Some(present) = &mut self.present else { return news };
            match message {
                Found::Subject(index, stack) => {
                    let index = index as usize;
                    let Some((worker, _)) = present.look.subjects.get(index) else { continue };
                    present.is_answered[index] = true;
                    news.push(ToFront::Event(AgentEvent::Looked {
                        number: present.look.number,
                        worker: *worker,
                        stack,
                    }));
                }
                Found::Done => {
                    news.extend(self.fail("it was not looked into"));
                    return news;
                }
            }
        }
        if let Some(why) = broken {
            news.extend(self.fail(&why));
        }
        news
    }

    /// When the present look has taken too long.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.present.as_ref().map(|present| present.until)
    }

    pub(crate) fn is_late(&self, now: Duration) -> bool {
        self.deadline().is_some_and(|until| until <= now)
    }
}
