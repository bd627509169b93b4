//! A number in memory that forked processes share. It lasts as long as one of them lives.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number, 0 at first. Made before the fork.
#[derive(Debug)]
pub struct SharedNumber {
    page: *const AtomicU32,
}

// SAFETY: the mapping belongs to this value, and an atomic may be used from any thread.
unsafe impl Send for SharedNumber {}

const SIZE: usize = 4096;

impl SharedNumber {
    pub fn new() -> io::Result<SharedNumber> {
        // SAFETY: an anonymous mapping at an address that the kernel chooses touches no memory of ours.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(SharedNumber { page: page.cast() })
    }

    pub fn get(&self) -> u32 {
        // SAFETY: the page is mapped, zeroed and aligned as long as this value lives.
        unsafe { &*self.page }.load(Ordering::Acquire)
    }

    pub fn set(&self, number: u32) {
        // SAFETY: as above.
        unsafe { &*self.page }.store(number, Ordering::Release);
    }
}

impl Drop for SharedNumber {
    fn drop(&mut self) {
        // SAFETY: `page` is the start of a mapping of this size, made in `new`.
        unsafe { libc::munmap(self.page.cast_mut().cast(), SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait;

    #[test]
    fn what_a_fork_writes_is_read_by_its_parent() {
        let number = SharedNumber::new().expect("a page");
        assert_eq!(number.get(), 0);
        // SAFETY: the child stores a number and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            number.set(7);
            crate::fork::exit_now(0);
        }
        while wait::reap(child) == wait::Look::Nothing {
            std::thread::yield_now();
        }
        assert_eq!(number.get(), 7);
    }
}
