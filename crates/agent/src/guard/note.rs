//! What a guard and its agent leave besides the guard's exit code.

use std::io;
use std::sync::Arc;

use rankrun_core::Attempt;
use rankrun_core::job::CleanShm;
use rankrun_core::lease::Lapse;
use rankrun_sys::shared::SharedNote;
use rankrun_wire::Memory;

/// Bytes of names of files in a guard's note. The memory has room for a little more.
const NAMES_MOST: usize = 31 * 1024;

/// In the note by its place here, from 1.
const POLICIES: [CleanShm; 3] = [CleanShm::Job, CleanShm::List, CleanShm::No];

/// Memory in which a guard leaves what its exit code has no room for. It outlives guard and agent.
#[derive(Clone, Debug)]
pub struct GuardNote(Arc<SharedNote>);

impl GuardNote {
    pub(super) fn new() -> io::Result<GuardNote> {
        Ok(GuardNote(Arc::new(SharedNote::new()?)))
    }

    /// Why the guard has ended the agent, if it has.
    pub fn lapse(&self) -> Option<Lapse> {
        Lapse::from_number(self.0.number())
    }

    /// The agent's pid, once it has been forked: it and the guard say so, whoever comes first.
    pub fn agent(&self) -> Option<i32> {
        Some(self.0.pid() as i32).filter(|pid| *pid > 0)
    }

    pub(super) fn agent_is(&self, pid: i32) {
        self.0.set_pid(pid.unsigned_abs());
    }

    /// The present attempt, and what becomes of the shared memory that it leaves, once the agent has begun one.
    pub(super) fn begun(&self) -> Option<(Attempt, CleanShm)> {
        let [policy, _, _, _, attempt @ ..] = self.0.word().to_le_bytes();
        let clean_shm = POLICIES.get(usize::from(policy).checked_sub(1)?)?;
        Some((Attempt(u32::from_le_bytes(attempt)), *clean_shm))
    }

    pub(super) fn begin(&self, attempt: Attempt, clean_shm: CleanShm) {
        let policy = POLICIES.iter().position(|policy| *policy == clean_shm).map_or(0, |index| index as u64 + 1);
        self.0.set_word(u64::from(attempt.0) << 32 | policy);
    }

    pub(crate) fn leave(&self, lapse: Lapse) {
        self.0.set_number(lapse as u32);
    }

    /// What the guard has found in /dev/shm, if it has looked in place of its agent.
    pub fn memory(&self) -> Option<Memory> {
        Memory::of_word(std::str::from_utf8(&self.0.text()?).ok()?)
    }

    pub(crate) fn leave_memory(&self, memory: &Memory) {
        self.0.set_text(memory.clone().within(NAMES_MOST).word().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn whoever_outlives_the_guard_knows_what_becomes_of_shared_memory() {
        let note = GuardNote::new().expect("a page");
        assert_eq!(note.begun(), None);
        for begun in [(Attempt(0), CleanShm::Job), (Attempt(70_000), CleanShm::No)] {
            note.begin(begun.0, begun.1);
            assert_eq!(note.begun(), Some(begun));
        }
    }

    #[test]
    fn a_note_about_many_files_names_whole_files_and_counts_the_others() {
        let created: Vec<OsString> = (0..3000).map(|number| format!("/dev/shm/file-{number:05}").into()).collect();
        let note = GuardNote::new().expect("a page");
        note.leave_memory(&Memory { created: created.clone(), ..Memory::default() });
        let Memory { created: named, doubtful, more_created, .. } = note.memory().expect("it was left");
        assert!(named.len() > 1000 && created.starts_with(&named), "{:?}", named.last());
        assert_eq!((doubtful.len(), more_created as usize), (0, created.len() - named.len()));
    }
}
