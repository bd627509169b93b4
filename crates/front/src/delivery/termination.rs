//! Why a container has ended, where Kubernetes reads it.

use std::io;

/// A file that Kubernetes puts there.
pub(super) const FILE: &str = "/dev/termination-log";
/// Lines of it, and the bytes that Kubernetes reads.
const LAST_LINES: usize = 20;
pub(crate) const LAST_BYTES: usize = 4096;

/// Says why the container has ended, where Kubernetes asks for it: the last lines of this text.
pub(super) fn write(text: &str) -> io::Result<()> {
    if text.is_empty() || !std::fs::metadata(FILE)?.is_file() {
        return Ok(());
    }
    std::fs::write(FILE, last_lines(text.as_bytes()))
}

/// The last lines of a text.
pub(crate) fn last_lines(text: &[u8]) -> &[u8] {
    let text = &text[text.len().saturating_sub(LAST_BYTES)..];
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let mut breaks = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    &text[breaks.nth(LAST_LINES - 1).map_or(0, |(at, _)| at + 1)..]
}
