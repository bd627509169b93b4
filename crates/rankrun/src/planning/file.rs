//! Reads files that the user names: only regular ones, up to a size limit, and for a bounded time. Replaces those that are written at once.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

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

/// Links that are followed to a file.
const LINKS: usize = 40;

/// Replaces a file, or makes it: a reader finds the old text or the new one, and never a part. The mode is that of any new file. A link is
/// followed. The name of the file beside it, which is there for a moment, does not end as that of the file.
///
/// # Errors
///
/// It cannot be written, or is no regular file, such as a device: the name would lead to a file instead of the device from then on.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let path = written_file(path)?;
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let mut beside = OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(beside);
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, &path));
    written.inspect_err(|_| {
        // It may not be there.
        let _ = std::fs::remove_file(&beside);
    })
}

/// The file that is replaced by this name: that at the end of all links, which may not be there yet.
///
/// # Errors
///
/// What is there is no regular file.
pub(crate) fn written_file(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let kind = match std::fs::symlink_metadata(&path) {
            Ok(found) => found.file_type(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
            Err(error) => return Err(error),
        };
        if kind.is_symlink() {
            let target = std::fs::read_link(&path)?;
            path = path.parent().map_or(target.clone(), |directory| directory.join(&target));
        } else if kind.is_file() {
            return Ok(path);
        } else if kind.is_dir() {
            return Err(rustix::io::Errno::ISDIR.into());
        } else {
            return Err(no_regular_file());
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

fn no_regular_file() -> io::Error {
    io::Error::other("it is not a regular file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_is_replaced_and_links_are_followed() {
        let top = tempfile::tempdir().expect("a directory for the test");
        let at = |name: &str| top.path().join(name);
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, at(name)).expect("it is ours");
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).expect("it is ours");
        std::fs::create_dir(at("sub")).expect("it is ours");
        link("fifo", "to-fifo");
        link("sub/file", "to-file");
        link("to-file", "to-link");
        link("round", "round");
        for (name, why) in [
            ("fifo", "it is not a regular file"),
            ("to-fifo", "it is not a regular file"),
            ("sub", "Is a directory"),
            ("round", "Too many levels of symbolic links"),
        ] {
            let error = reason(&replace(&at(name), "x").expect_err(name));
            assert!(error.contains(why), "{name}: {error}");
        }
        for text in ["one", "two"] {
            replace(&at("to-link"), text).expect("its target may be written");
            assert_eq!(std::fs::read_to_string(at("sub/file")).expect("it is there"), text);
        }
        for name in ["to-fifo", "to-file", "to-link"] {
            assert!(std::fs::symlink_metadata(at(name)).expect("it is there").is_symlink(), "{name}");
        }
        let count = |name: &str| std::fs::read_dir(at(name)).expect("it is ours").count();
        assert_eq!((count(""), count("sub")), (6, 1), "nothing is left beside them");
    }

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
