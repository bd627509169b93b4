//! How a node comes to the job: it is here, is called over ssh, or joins by itself. And what is known of what is left there, which
//! comes on the same way.

use std::time::Duration;

use crate::contact::Asks;
use crate::exit::ExitCode;
use crate::job::settings::Way;
use crate::memory::Memory;
use crate::reach::Step;

/// What is known of a node that is called over ssh.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Call {
    pub(in crate::job) tries: u32,
    /// When the next try begins.
    pub(in crate::job) due: Option<Duration>,
    /// By when the present one must have led to an agent.
    pub(in crate::job) greet_by: Option<Duration>,
    /// The bytes of rankrun that were not sent to it, when that was last looked at.
    pub(in crate::job) unsent: Option<usize>,
    /// The step that has failed, while the words of ssh about it are awaited.
    pub(in crate::job) failed_at: Option<Step>,
    /// There is a try.
    pub(in crate::job) is_under_way: bool,
    has_greeted: bool,
    /// With what the ssh that had led to the agent has ended: the code of the relay.
    code: Option<i32>,
    /// What a second connection has found there, once it was asked.
    second: Option<Second>,
    /// Until when an ssh over a fresh connection may answer for a silent node.
    asked_until: Duration,
}

/// A second connection to a node that was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Second {
    Asked,
    /// Whether nothing is left there.
    Answered(bool),
}

/// What is known of a node that joins by itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Admission {
    /// By when it must be here; `None` once it is, or is not awaited any more.
    by: Option<Duration>,
    due: Duration,
    is_admitted: bool,
    /// It has sent something since. Until then its admission may have been lost on the way, and no rank is there.
    was_heard: bool,
    /// With what its guard has ended.
    code: Option<u8>,
    memory: Option<Memory>,
    is_given_up: bool,
}

/// How a node comes to the job, and what is known of that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Route {
    Here { is_guard_lost: bool },
    Ssh(Call),
    Joins(Admission),
}

impl Route {
    /// That of a node of a job that begins. One that joins has time until then.
    pub(in crate::job) fn new(way: Way, start_timeout: Duration) -> Route {
        match way {
            Way::Here => Route::Here { is_guard_lost: false },
            Way::Ssh => Route::Ssh(Call { due: Some(Duration::ZERO), ..Call::default() }),
            Way::Joins => {
                Route::Joins(Admission { by: Some(start_timeout), due: start_timeout, ..Admission::default() })
            }
        }
    }

    /// It has led to an agent.
    pub(in crate::job) fn reached(&mut self) {
        match self {
            Route::Here { .. } => {}
            Route::Ssh(call) => (call.has_greeted, call.greet_by) = (true, None),
            Route::Joins(admission) => {
                // What was proved is of an earlier admission.
                *admission = Admission { due: admission.due, is_admitted: true, ..Admission::default() };
            }
        }
    }

    /// It is called as if for the first time; one that joins is on its way.
    pub(in crate::job) fn call_again(&mut self, now: Duration) {
        match self {
            Route::Here { .. } => {}
            Route::Ssh(call) => *call = Call { due: Some(now), ..Call::default() },
            Route::Joins(admission) => *admission = Admission::default(),
        }
    }

    /// The node may join again. Returns whether that is a way for it.
    pub(in crate::job) fn await_again(&mut self) -> bool {
        let Route::Joins(admission) = self else { return false };
        (admission.by, admission.is_admitted, admission.is_given_up) = (Some(admission.due), false, false);
        true
    }

    /// Nothing is expected on it any more.
    pub(in crate::job) fn stop_awaiting(&mut self) {
        match self {
            Route::Here { .. } => {}
            Route::Ssh(call) => (call.due, call.greet_by) = (None, None),
            Route::Joins(admission) => admission.by = None,
        }
    }

    /// By when a node that joins must be here, if it is awaited.
    pub(in crate::job) fn joins_by(&self) -> Option<Duration> {
        match self {
            Route::Joins(admission) => admission.by,
            Route::Here { .. } | Route::Ssh(_) => None,
        }
    }

    /// The call of the node, if it is called.
    pub(in crate::job) fn call(&self) -> Option<&Call> {
        match self {
            Route::Ssh(call) => Some(call),
            Route::Here { .. } | Route::Joins(_) => None,
        }
    }

    /// The guard of this machine is lost. Returns whether that is news.
    pub(in crate::job) fn lose_guard(&mut self) -> bool {
        match self {
            Route::Here { is_guard_lost } => !std::mem::replace(is_guard_lost, true),
            Route::Ssh(_) | Route::Joins(_) => true,
        }
    }

    /// Whether the guard of this machine was lost.
    pub(in crate::job) fn is_guard_lost(&self) -> bool {
        matches!(self, Route::Here { is_guard_lost: true })
    }

    /// The ssh that had led to its agent has ended, with the code of the relay.
    pub(in crate::job) fn ssh_ended(&mut self, code: i32) {
        if let Route::Ssh(call) = self {
            call.code = Some(code);
        }
    }

    /// A node that has joined has said with which code its guard has ended. Returns whether it was still awaited: its admission was lost
    /// on the way.
    pub(in crate::job) fn guard_ended(&mut self, code: u8, memory: Option<Memory>) -> bool {
        let Route::Joins(admission) = self else { return false };
        (admission.is_admitted, admission.code, admission.memory) = (true, Some(code), memory);
        let was_awaited = admission.by.take().is_some();
        admission.was_heard |= was_awaited;
        was_awaited
    }

    /// Nothing is expected of a node that has joined any more.
    pub(in crate::job) fn give_up_on_proof(&mut self) {
        if let Route::Joins(admission) = self {
            admission.is_given_up = true;
        }
    }

    /// Whether a second connection is to be asked what is left there: nothing has said it, and it was not asked yet.
    pub(in crate::job) fn asks_second(&mut self) -> bool {
        let known = [ExitCode::SUCCESS, ExitCode::LEFT_BEHIND].map(|code| Some(i32::from(code.0)));
        match self {
            Route::Ssh(call) if call.has_greeted && !known.contains(&call.code) && call.second.is_none() => {
                call.second = Some(Second::Asked);
                true
            }
            Route::Here { .. } | Route::Ssh(_) | Route::Joins(_) => false,
        }
    }

    /// Whether a second connection was asked, and has not answered.
    pub fn is_second_open(&self) -> bool {
        matches!(self, Route::Ssh(Call { second: Some(Second::Asked), .. }))
    }

    /// A second connection has answered.
    pub(in crate::job) fn second_answered(&mut self, is_empty: bool) {
        if let Route::Ssh(call) = self {
            call.second = Some(Second::Answered(is_empty));
        }
    }

    /// Whether it is proved that nothing is left there, or nothing was started there. Of this machine the guard says so at the end.
    pub fn is_proved(&self) -> bool {
        match self {
            Route::Here { .. } => true,
            Route::Ssh(call) => {
                let by_relay = !call.has_greeted || call.code == Some(i32::from(ExitCode::SUCCESS.0));
                by_relay || call.second == Some(Second::Answered(true))
            }
            Route::Joins(admission) => !admission.is_admitted || admission.code == Some(ExitCode::SUCCESS.0),
        }
    }

    /// Whether guard, relay or a second connection have found processes that could not be killed.
    pub(in crate::job) fn is_known_left(&self) -> bool {
        match self {
            Route::Here { .. } => false,
            Route::Ssh(call) => {
                let by_relay = call.code == Some(i32::from(ExitCode::LEFT_BEHIND.0));
                by_relay || call.second == Some(Second::Answered(false))
            }
            Route::Joins(admission) => admission.code.is_some_and(|code| code != 0),
        }
    }

    /// Whether a node that has joined is still to say what is left there.
    pub fn is_to_say(&self) -> bool {
        matches!(self, Route::Joins(it) if it.is_admitted && it.code.is_none() && !it.is_given_up)
    }

    /// What the guard of a node that has joined has found in /dev/shm. Where nothing was started there is nothing.
    pub fn memory_of_member(&self) -> Option<Memory> {
        match self {
            Route::Joins(admission) if admission.is_admitted => admission.memory.clone(),
            Route::Here { .. } | Route::Ssh(_) | Route::Joins(_) => Some(Memory::default()),
        }
    }

    /// How it is asked for a sign of life when its connection is silent; `None` on this machine.
    pub(in crate::job) fn asks(&self, now: Duration) -> Option<Asks> {
        match self {
            Route::Here { .. } => None,
            Route::Ssh(call) => Some(Asks::Us { is_open: now < call.asked_until }),
            Route::Joins(_) => Some(Asks::Peer),
        }
    }

    /// An ssh over a fresh connection may answer for it until then.
    pub(in crate::job) fn asking_until(&mut self, until: Duration) {
        if let Route::Ssh(call) = self {
            call.asked_until = until;
        }
    }

    pub(in crate::job) fn call_mut(&mut self) -> Option<&mut Call> {
        match self {
            Route::Ssh(call) => Some(call),
            Route::Here { .. } | Route::Joins(_) => None,
        }
    }

    /// It has sent a message. Returns whether that is the first of a node that has joined: it has received its admission.
    pub(in crate::job) fn has_sent(&mut self) -> bool {
        match self {
            Route::Joins(admission) => !std::mem::replace(&mut admission.was_heard, true),
            Route::Here { .. } | Route::Ssh(_) => false,
        }
    }

    /// Whether it was admitted, and has sent nothing since.
    pub(in crate::job) fn is_unheard_since_admission(&self) -> bool {
        matches!(self, Route::Joins(admission) if admission.is_admitted && !admission.was_heard)
    }
}
