//! The processes that report for the ranks over the worker socket ("speakers").

use std::collections::HashMap;

use rankrun_core::team::Event;
use rankrun_core::{Pid, SpeakerId};
use rankrun_sys::process::{ProcessId, ProcessRef};

use crate::children::Children;

/// The speakers by id and by process.
#[derive(Debug, Default)]
pub(super) struct Speakers {
    pub(super) held: HashMap<SpeakerId, ProcessRef>,
    pub(super) ids: HashMap<ProcessId, SpeakerId>,
    /// The children under way when the results of spawners were last read: a leader may send before it is known as a leader.
    pub(super) under_way: Vec<i32>,
}

impl Speakers {
    pub(super) fn pid(&self, id: SpeakerId) -> Option<Pid> {
        self.held.get(&id).map(|process| Pid(process.pid()))
    }

    pub(super) fn process(&self, id: SpeakerId) -> Option<ProcessId> {
        self.held.get(&id).map(ProcessRef::id)
    }

    /// Checks a speaker.
    pub(super) fn look(&self, id: SpeakerId, children: &Children) -> Event {
        match self.held.get(&id) {
            Some(process) if process.is_alive() => Event::SpeakerSeen(id, children.usage(process.id())),
            Some(_) | None => Event::SpeakerEnded(id),
        }
    }

    pub(super) fn signal(&self, id: SpeakerId, signals: &[i32]) {
        if let Some(process) = self.held.get(&id) {
            for signal in signals {
                // It has ended meanwhile.
                let _ = process.signal(*signal);
            }
        }
    }

    pub(super) fn forget(&mut self, id: SpeakerId) {
        if let Some(process) = self.held.remove(&id) {
            self.ids.remove(&process.id());
        }
    }
}
