//! The stream that leads nowhere.

use std::io;
use std::os::fd::OwnedFd;

/// A descriptor for /dev/null.
pub(crate) fn null() -> io::Result<OwnedFd> {
    Ok(std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?.into())
}
