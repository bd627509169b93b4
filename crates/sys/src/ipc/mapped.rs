//! Files that are read through memory.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Maps a whole file, for as long as this process lives: for few files, in a process that soon ends. Pages are read when they
/// are used. A file that is cut short meanwhile, or whose disk fails, ends the process (SIGBUS).
///
/// # Errors
///
/// Those of stat and mmap. EINVAL: it is empty, or no regular file.
pub fn map(file: &File) -> io::Result<&'static [u8]> {
    let meta = file.metadata()?;
    let length = usize::try_from(meta.len()).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    if !meta.is_file() || length == 0 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping has this length and is never removed; bytes have no invalid values. Somebody who writes to a program's
    // file while it is mapped breaks the processes that run it, too.
    Ok(unsafe { std::slice::from_raw_parts(start.cast_const().cast(), length) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_and_an_empty_one_is_refused() {
        let file = File::open("/proc/self/exe").expect("it runs");
        assert_eq!(&map(&file).expect("a file")[..4], b"\x7fELF");
        assert!(map(&File::open("/dev/null").expect("it exists")).is_err());
    }
}
