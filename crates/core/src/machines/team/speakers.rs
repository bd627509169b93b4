//! The processes that report for the ranks ("speakers"): which one gets a rank's signal, and which are stuck.

use std::time::Duration;

use super::speaking::Speaking;
use super::{CLOSED_SPEAKER_STEP, Effect, SPEAKER_STEP, Target, Team, Timer};
use crate::ids::{Slot, SpeakerId};
use crate::testimony::{Graces, Speaker, Usage};

impl Team {
    /// A process that may testify for its rank. `started` is its start on a clock that all processes share.
    pub fn add_speaker(&mut self, slot: Slot, is_leader: bool, started: u64) -> SpeakerId {
        let id = SpeakerId(self.next_speaker);
        self.next_speaker += 1;
        let speaking =
            Speaking { slot, is_leader, started, speaker: Speaker::default(), is_closed: false, in_mpi: false };
        self.speakers.insert(id, speaking);
        id
    }

    /// A speaker reports its own failure; sets the deadline of its end.
    pub fn speaker(&mut self, id: SpeakerId, change: impl FnOnce(&mut Speaker, &Graces)) {
        if let Some(speaking) = self.speakers.get_mut(&id) {
            change(&mut speaking.speaker, &self.graces);
            self.rearm_speaker(id, None);
        }
    }

    /// Whether a worker has a speaker that is not known to have ended.
    pub fn has_speakers(&self, slot: Slot) -> bool {
        self.speakers.values().any(|speaking| speaking.slot == slot)
    }

    /// The process that gets a rank's signal: its speaker, otherwise its leader.
    pub fn voice(&self, slot: Slot) -> Target {
        self.speaker_of(slot).map_or(Target::Leader(slot), Target::Speaker)
    }

    /// A speaker is in MPI, or is no longer. It speaks for its rank, whatever else the rank starts.
    pub fn set_in_mpi(&mut self, id: SpeakerId, in_mpi: bool) {
        if let Some(speaking) = self.speakers.get_mut(&id) {
            speaking.in_mpi = in_mpi;
        }
    }

    /// The process that speaks for a rank, if it is another than the leader: the one that is in MPI, or else was started last.
    pub(super) fn speaker_of(&self, slot: Slot) -> Option<SpeakerId> {
        let of_slot = self.speakers.iter().filter(|(_, speaking)| speaking.slot == slot);
        let last = of_slot.max_by_key(|(_, speaking)| (speaking.in_mpi, speaking.started))?;
        (!last.1.is_leader).then_some(*last.0)
    }

    pub(super) fn speaker_ended(&mut self, id: SpeakerId, effects: &mut Vec<Effect>) {
        let Some(speaking) = self.speakers.remove(&id) else { return };
        self.timers.set(Timer::Speaker(id), None);
        effects.push(Effect::ForgetSpeaker { speaker: id, slot: speaking.slot });
        let member = &mut self.members[speaking.slot.index()];
        if let Some((_, signal)) = member.stopped_speaker.take_if(|(stopped, _)| *stopped == id) {
            // A leader whose speaker was signalled is signalled too, when the speaker is gone.
            effects.push(Effect::Terminate(Target::Leader(speaking.slot), signal));
        }
    }

    pub(super) fn speaker_seen(&mut self, now: Duration, id: SpeakerId, usage: Usage, effects: &mut Vec<Effect>) {
        let Some(speaking) = self.speakers.get_mut(&id) else { return };
        if let Some((place, since)) = speaking.speaker.tick(now, &self.graces, usage) {
            let (slot, is_leader) = (speaking.slot, speaking.is_leader);
            if !is_leader {
                // Its leader waits for it, and handles its end.
                effects.push(Effect::Kill(Target::Speaker(id)));
            }
            effects.push(Effect::Stuck { speaker: id, slot, place, since, is_leader });
        }
        if let Some(speaking) = self.speakers.get_mut(&id)
            && let Some(until) = speaking.speaker.waits_for_handlers(now)
        {
            effects.push(Effect::WaitsForHandlers { slot: speaking.slot, left: until.saturating_sub(now) });
        }
        self.rearm_speaker(id, Some(now));
    }

    /// Sets the time of the next check of a speaker. `looked` is the time of a check just now, if there was one.
    fn rearm_speaker(&mut self, id: SpeakerId, looked: Option<Duration>) {
        let Some(speaking) = self.speakers.get(&id) else { return };
        let is_stopped = self.members[speaking.slot.index()].stopped_speaker.is_some_and(|(stopped, _)| stopped == id);
        let step = match (is_stopped, speaking.is_closed) {
            (true, _) => Some(SPEAKER_STEP),
            // The kernel reports the end of a leader.
            (false, true) if !speaking.is_leader => Some(CLOSED_SPEAKER_STEP),
            (false, _) => None,
        };
        // Without a check just now, the one that is due stays due.
        let step =
            step.and_then(|step| looked.map_or(self.timers.at(Timer::Speaker(id)), |looked| Some(looked + step)));
        let next = [step, speaking.speaker.deadline()].into_iter().flatten().min();
        self.timers.set(Timer::Speaker(id), next);
    }

    pub(super) fn forget_speakers(&mut self, effects: &mut Vec<Effect>, is_to_go: impl Fn(&Speaking) -> bool) {
        self.speakers.retain(|id, speaking| {
            let goes = is_to_go(speaking);
            if goes {
                self.timers.set(Timer::Speaker(*id), None);
                effects.push(Effect::ForgetSpeaker { speaker: *id, slot: speaking.slot });
            }
            !goes
        });
    }
}
