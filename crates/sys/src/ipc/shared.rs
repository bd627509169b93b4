//! Three numbers and a text in memory that forked processes share. They last as long as one of the processes lives.

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The memory: three numbers, 0 at first, and a text that one process writes once. Made before the fork.
#[derive(Debug)]
pub struct SharedNote {
    page: *const Page,
}

/// Bytes of a text at most.
const TEXT: usize = 32 * 1024;

#[repr(C)]
struct Page {
    word: AtomicU64,
    number: AtomicU32,
    pid: AtomicU32,
    /// The length of the text, and 1; 0 while there is none.
    length: AtomicU32,
    text: [AtomicU8; TEXT],
}

// SAFETY: the mapping belongs to this value, and atomics may be used from any thread.
unsafe impl Send for SharedNote {}
// SAFETY: as above: all that is shared is atomics.
unsafe impl Sync for SharedNote {}

impl SharedNote {
    pub fn new() -> io::Result<SharedNote> {
        // SAFETY: an anonymous mapping at an address that the kernel chooses touches no memory of ours.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Page>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(SharedNote { page: page.cast() })
    }

    fn page(&self) -> &Page {
        // SAFETY: it is mapped, zeroed and aligned as long as this value lives, and zeroes are valid atomics.
        unsafe { &*self.page }
    }

    pub fn number(&self) -> u32 {
        self.page().number.load(Ordering::Acquire)
    }

    pub fn set_number(&self, number: u32) {
        self.page().number.store(number, Ordering::Release);
    }

    /// A number for eight bytes.
    pub fn word(&self) -> u64 {
        self.page().word.load(Ordering::Acquire)
    }

    pub fn set_word(&self, word: u64) {
        self.page().word.store(word, Ordering::Release);
    }

    /// The pid of one of the processes; 0 while it has not begun.
    pub fn pid(&self) -> u32 {
        self.page().pid.load(Ordering::Acquire)
    }

    pub fn set_pid(&self, pid: u32) {
        self.page().pid.store(pid, Ordering::Release);
    }

    /// Writes the text, as far as there is room. Only one process does so, and once.
    pub fn set_text(&self, text: &[u8]) {
        let page = self.page();
        let length = text.len().min(TEXT);
        for (place, byte) in page.text.iter().zip(text) {
            place.store(*byte, Ordering::Relaxed);
        }
        page.length.store(length as u32 + 1, Ordering::Release);
    }

    /// The text, if one was written.
    pub fn text(&self) -> Option<Vec<u8>> {
        let page = self.page();
        let length = page.length.load(Ordering::Acquire).checked_sub(1)? as usize;
        Some(page.text.iter().take(length).map(|byte| byte.load(Ordering::Relaxed)).collect())
    }
}

impl Drop for SharedNote {
    fn drop(&mut self) {
        // SAFETY: `page` is the start of a mapping of this size, made in `new`.
        unsafe { libc::munmap(self.page.cast_mut().cast(), size_of::<Page>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait;

    #[test]
    fn what_a_fork_writes_is_read_by_its_parent() {
        let note = SharedNote::new().expect("a page");
        assert_eq!((note.word(), note.number(), note.pid(), note.text()), (0, 0, 0, None));
        // SAFETY: the child stores numbers and a text, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            note.set_word(u64::MAX);
            note.set_number(7);
            note.set_pid(8);
            note.set_text(b"");
            crate::fork::exit_now(0);
        }
        while wait::reap(child) == wait::Look::Nothing {
            std::thread::yield_now();
        }
        assert_eq!((note.word(), note.number(), note.pid(), note.text()), (u64::MAX, 7, 8, Some(Vec::new())));
        note.set_text(&[b'x'; TEXT + 1]);
        assert_eq!(note.text(), Some(vec![b'x'; TEXT]));
    }
}
