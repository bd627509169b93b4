//! The memory of another process.

use rankrun_sys::trace;

/// Reads of a process's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) pid: i32,
}

impl Memory {
    /// Fills `into`; false if a part cannot be read.
    pub(crate) fn fill(self, address: u64, into: &mut [u8]) -> bool {
        trace::read_memory(self.pid, address, into).is_ok_and(|read| read == into.len())
    }

    /// As much as can be read from `address` on, up to `length` bytes.
    pub(crate) fn copy(self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let read = trace::read_memory(self.pid, address, &mut bytes).unwrap_or(0);
        bytes.truncate(read);
        bytes
    }

    pub(crate) fn word(self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.fill(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }

    pub(crate) fn half(self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.fill(address, &mut bytes).then(|| u32::from_le_bytes(bytes))
    }
}

/// The word at an offset of what was read before.
pub(crate) fn word_at(bytes: &[u8], offset: usize) -> Option<u64> {
    let bytes = bytes.get(offset..offset.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}
