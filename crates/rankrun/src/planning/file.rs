//! Reads files that the user names: only regular ones, up to a size limit.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rankrun_core::units::format_size;
use rustix::fs::{FileType, Mode, OFlags};

/// Reads a file as a whole.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
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
