//! Which paths can be looked at without a wait: those whose names the kernel has in memory, on file systems that ask nobody
//! ([ADR 32](../../../../docs/adr/0032-storage-processes.md)).

use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags};

use crate::kernel;

/// File systems that ask neither another machine nor a process, nor another file system (as those of containers do), by their names in the
/// list of mounts.
const LOCAL: [&[u8]; 10] =
    [b"bcachefs", b"btrfs", b"devtmpfs", b"ext2", b"ext3", b"ext4", b"f2fs", b"tmpfs", b"xfs", b"zfs"];

/// Whether a look at this path returns at once: the kernel finds it, or finds that there is nothing, in its memory alone, and it is on a
/// local file system.
pub fn answers_at_once(path: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED) {
        // That nothing is there only counts if it is a local file system that has nothing.
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => path.parent().is_some_and(answers_at_once),
        Err(_) => false,
        // A file system is not asked for its name, since it may not answer that either.
        Ok(file) => {
            match rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID) {
                Ok(found) if found.stx_mask & StatxFlags::MNT_ID.bits() != 0 => {
                    is_local(kernel::mounts(), found.stx_mnt_id)
                }
                Ok(_) | Err(_) => false,
            }
        }
    }
}

/// Whether the mount with this number is of a local file system (proc_pid_mountinfo(5)). Unknown ones are not.
fn is_local(mounts: &[u8], number: u64) -> bool {
    let number = number.to_string();
    let mut lines = mounts.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b' '));
    let kind = lines.find_map(|mut fields| {
        let is_it = fields.next()? == number.as_bytes();
        is_it.then(|| fields.skip_while(|field| *field != b"-").nth(1)).flatten()
    });
    kind.is_some_and(|kind| LOCAL.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_mounts_that_are_listed_count() {
        let mounts = b"22 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw\n\
            31 22 0:27 / /run rw - tmpfs tmpfs rw\n32 31 0:28 / /doc rw - fuse.portal portal rw\n40 22 0:40 / /home rw - nfs4 s:/ rw\n";
        assert_eq!(
            [22, 31, 32, 40, 2, 222].map(|number| is_local(mounts, number)),
            [true, true, false, false, false, false]
        );
    }

    #[test]
    fn what_was_just_looked_at_answers_at_once_unless_its_file_system_is_not_local() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        std::fs::write(&file, "").expect("a file");
        std::fs::metadata(&file).expect("it is there");
        // Where the kernel is older than Linux 5.12, or its memory is short, nothing does.
        let is_known = answers_at_once(&file);
        assert!(!answers_at_once(Path::new("/proc/self/stat")));
        if is_known {
            assert!(answers_at_once(directory.path()));
            assert!(std::fs::metadata(directory.path().join("none")).is_err());
            assert!(answers_at_once(&directory.path().join("none")));
        }
    }
}
