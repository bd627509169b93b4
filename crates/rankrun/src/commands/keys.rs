//! The keys of the terminal on which somebody looks at a job.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rankrun_sys::poll::wait_for;
use rankrun_sys::terminal::{self, ControllingTerminal, Modes};
use rustix::event::{PollFd, PollFlags};

/// The keys of our terminal.
#[derive(Debug)]
pub(super) struct Keys {
    terminal: ControllingTerminal,
    found: Option<Modes>,
    /// The last key was `~` at the beginning of a line.
    is_after_tilde: bool,
    is_at_start: bool,
    /// Lines are typed, which the terminal shows and lets the user edit: they are read when they are whole.
    types: bool,
    /// A question is asked meanwhile, which one key answers.
    is_asked: bool,
    /// ^D was typed.
    has_ended: bool,
}

impl Keys {
    /// `None` where nobody could press one, or see what it does. `types`: whether lines are typed.
    pub(super) fn open(types: bool) -> Option<Keys> {
        if terminal::standard() != [true; 3] {
            return None;
        }
        let terminal = ControllingTerminal::open().ok()?;
        let (found, is_at_start) = (None, true);
        let (is_after_tilde, is_asked, has_ended) = Default::default();
        let mut keys = Keys { terminal, found, is_after_tilde, is_at_start, types, is_asked, has_ended };
        keys.enter();
        Some(keys)
    }

    /// We are in the foreground: keys are for us.
    pub(super) fn enter(&mut self) {
        if self.found.is_none() && self.are_ours() {
            self.found = self.terminal.modes();
            self.set_modes();
        }
    }

    /// The same after we may have been stopped: a shell has set its own modes meanwhile.
    pub(super) fn enter_again(&mut self) {
        match &self.found {
            Some(_) if self.are_ours() => self.set_modes(),
            _ => self.enter(),
        }
    }

    fn set_modes(&self) {
        if let Some(found) = &self.found {
            match self.types && !self.is_asked {
                true => self.terminal.set_modes(found),
                false => self.terminal.set_modes(&found.for_keys()),
            }
        }
    }

    /// From now on the next key answers a question.
    pub(super) fn ask(&mut self) {
        (self.is_after_tilde, self.is_at_start, self.is_asked) = (false, true, true);
        if self.types {
            // The beginning of a line is no answer.
            self.terminal.forget_input();
        }
        self.set_modes();
    }

    /// It was answered.
    pub(super) fn end_question(&mut self) {
        self.is_asked = false;
        self.set_modes();
    }

    /// Whether ^D was typed since the last time, and what was held back before it.
    pub(super) fn take_end(&mut self) -> Option<Vec<u8>> {
        let held = || std::mem::take(&mut self.is_after_tilde).then_some(b'~').into_iter().collect();
        std::mem::take(&mut self.has_ended).then(held)
    }

    pub(super) fn leave(&mut self) {
        if let Some(found) = self.found.take().filter(|_| self.are_ours()) {
            self.terminal.set_modes(&found);
        }
    }

    fn are_ours(&self) -> bool {
        self.terminal.in_foreground()
    }

    /// Whether [`Keys::read`] reads: who waits for keys otherwise finds them again and again.
    pub(super) fn are_read(&self) -> bool {
        self.found.is_some() && self.are_ours()
    }

    fn has_one(&self) -> bool {
        let mut ends = [PollFd::new(&self.terminal, PollFlags::IN)];
        wait_for(&mut ends, Some(Duration::ZERO));
        !ends[0].revents().is_empty()
    }

    /// The keys that were pressed.
    pub(super) fn read(&mut self) -> Vec<u8> {
        let mut keys = Vec::new();
        if !self.are_read() {
            return keys;
        }
        let mut room = [0; 64];
        while self.has_one() {
            match rustix::io::read(&self.terminal, &mut room) {
                Ok(count) if count > 0 => keys.extend_from_slice(&room[..count]),
                read => {
                    self.has_ended |= read == Ok(0) && self.types && !self.is_asked;
                    break;
                }
            }
        }
        keys
    }

    /// What is typed with a key. `None`: it ends the sequence that leaves.
    pub(super) fn typed(&mut self, key: u8) -> Option<Vec<u8>> {
        let was_after_tilde = self.is_after_tilde;
        if was_after_tilde && key == b'.' {
            return None;
        }
        if was_after_tilde && key == b'~' {
            // As in ssh: one is meant.
            (self.is_after_tilde, self.is_at_start) = (false, false);
            return Some(vec![key]);
        }
        self.is_after_tilde = key == b'~' && self.is_at_start;
        self.is_at_start = matches!(key, b'\n' | b'\r');
        // It is known with the next key what a tilde was for.
        let mut typed = Vec::new();
        typed.extend(was_after_tilde.then_some(b'~'));
        typed.extend((!self.is_after_tilde).then_some(key));
        Some(typed)
    }
}

impl AsFd for Keys {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.terminal.as_fd()
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.leave();
    }
}
