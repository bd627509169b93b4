//! The files that a process has open for writing, from proc(5).

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;

use crate::kernel;

/// Descriptors of a process that are looked at in [`written_positions`].
const MAX_DESCRIPTORS: usize = 256;

/// The position of a process in each file that it has open for writing, by descriptor and inode. Log files (those that
/// it appends to, stdout and stderr) and non-files are left out. No file system is accessed: it may not answer.
pub fn written_positions(pid: i32) -> HashMap<(i32, u64), u64> {
    positions_of(pid, may_be_saved_to).collect()
}

/// Whether a process has a file with a name open for writing, of those in [`written_positions`].
pub fn has_file_to_write(pid: i32) -> bool {
    let is_named = |path: &[u8]| may_be_saved_to(path) && !path.ends_with(b" (deleted)");
    positions_of(pid, is_named).next().is_some()
}

/// The positions in the files whose names are wanted.
fn positions_of(pid: i32, is_wanted: fn(&[u8]) -> bool) -> impl Iterator<Item = ((i32, u64), u64)> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let of_files = numbers.filter(|fd| *fd > 2).take(MAX_DESCRIPTORS).filter(move |fd| {
        std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).is_ok_and(|path| is_wanted(path.as_os_str().as_bytes()))
    });
    of_files.filter_map(move |fd| {
        let text = kernel::piece_text(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
        parse_position(&text).map(|(inode, position)| ((fd, inode), position))
    })
}

/// Whether the name of a descriptor may be that of a file worth keeping.
fn may_be_saved_to(path: &[u8]) -> bool {
    let is_special = [&b"/dev/"[..], b"/memfd:", b"/proc/", b"/sys/"].iter().any(|special| path.starts_with(special));
    path.starts_with(b"/") && (!is_special || path.starts_with(b"/dev/shm/"))
}

/// Inode and position, from the fdinfo of a descriptor that is open for writing, but not for appending.
fn parse_position(fdinfo: &str) -> Option<(u64, u64)> {
    let field = |name: &str| fdinfo.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let flags = i32::from_str_radix(field("flags:")?, 8).ok()?;
    let is_written = flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_APPEND == 0;
    // Linux 5.14 and newer tell the inode.
    let inode = field("ino:").and_then(|inode| inode.parse().ok()).unwrap_or(0);
    is_written.then_some((inode, field("pos:")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_position_in_a_file_that_is_written_is_seen_and_logs_are_not() {
        use std::io::Write;
        use std::os::fd::AsRawFd;
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("checkpoint");
        let mut file = std::fs::File::create(&path).expect("a file");
        let mut log =
            std::fs::OpenOptions::new().append(true).create(true).open(directory.path().join("log")).expect("a log");
        let position = |fd: i32| {
            let positions = written_positions(std::process::id() as i32);
            positions.iter().find(|((number, _), _)| *number == fd).map(|(_, position)| *position)
        };
        log.write_all(&[0; 500]).expect("a line");
        file.write_all(&[0; 5000]).expect("a part");
        assert_eq!((position(log.as_raw_fd()), position(file.as_raw_fd())), (None, Some(5000)));
        assert!(has_file_to_write(std::process::id() as i32));
        assert!(!may_be_saved_to(b"pipe:[1]") && !may_be_saved_to(b"/dev/null") && may_be_saved_to(b"/dev/shm/a"));
        assert_eq!(parse_position("pos:\t7\nflags:\t0100001\nmnt_id:\t9\nino:\t12\n"), Some((12, 7)));
        assert_eq!(parse_position("pos:\t7\nflags:\t0100000\n"), None);
    }
}
