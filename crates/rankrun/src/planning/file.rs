//! Reads files that the user names: only regular ones, up to a size limit, and for a bounded time.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rankrun_core::units::format_size;
use rankrun_sys::reason;
use rustix::fs::{FileType, Mode, OFlags};

use crate::ask;

/// Reads a file as a whole.
///
/// # Errors
///
/// It cannot be read, is no regular file or too large; or its file system does not answer.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut answer = ask::bytes(ask::BOUND, |at| {
        at(path);
        to_bytes(read_now(path, most))
    })?;
    match answer.pop() {
        Some(READ) => Ok(answer),
        Some(ERRNO) => Err(io::Error::from_raw_os_error(i32::from_le_bytes(answer.try_into().unwrap_or_default()))),
        _ => Err(io::Error::other(String::from_utf8_lossy(&answer).into_owned())),
    }
}

/// What the last byte of an answer says that the others are; else they are the text of an error.
const READ: u8 = 0;
const ERRNO: u8 = 1;
const TEXT: u8 = 2;

fn to_bytes(result: io::Result<Vec<u8>>) -> Vec<u8> {
    let (mut bytes, kind) = match result {
        Ok(bytes) => (bytes, READ),
        Err(error) => match error.raw_os_error() {
            Some(errno) => (errno.to_le_bytes().to_vec(), ERRNO),
            None => (reason(&error).into_bytes(), TEXT),
        },
    };
    bytes.push(kind);
    bytes
}

fn read_now(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let refused = || io::Error::other(format!("it is larger than {}", format_size(most)));
    let file = open(path)?;
    if file.metadata()?.len() > most {
        return Err(refused());
    }
    let mut bytes = Vec::new();
    // It may grow while we read.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(refused()) } else { Ok(bytes) }
}

/// Opens a regular file. A FIFO may have no writer, opening a device may have an effect, and neither has an end.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // A device must not even be opened.
    match std::fs::metadata(path)?.file_type() {
        kind if kind.is_file() => {}
        kind if kind.is_dir() => return Err(rustix::io::Errno::ISDIR.into()),
        _ => return Err(no_regular_file()),
    }
    let file: OwnedFd = rustix::fs::open(path, flags, Mode::empty())?;
    // It may have been replaced meanwhile.
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file.into()),
        _ => Err(no_regular_file()),
    }
}

fn no_regular_file() -> io::Error {
    io::Error::other("it is not a regular file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_a_bound() {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let path = directory.path().join("file");
        std::fs::write(&path, "12345").expect("a file");
        assert_eq!(read(&path, 5).expect("it is not too large"), b"12345");
        assert_eq!(read(&path, 4).expect_err("it is too large").to_string(), "it is larger than 4 bytes");
        assert_eq!(read(directory.path(), 4).expect_err("a directory").kind(), io::ErrorKind::IsADirectory);
        assert_eq!(read(Path::new("/dev/zero"), 4).expect_err("a device").to_string(), "it is not a regular file");
        // Its size is said to be 0.
        assert!(read(Path::new("/proc/self/stat"), 1 << 20).is_ok_and(|bytes| !bytes.is_empty()));
    }
}
