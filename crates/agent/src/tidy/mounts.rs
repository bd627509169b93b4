//! Which file system a path is on, by the kernel's list of mounts: nobody has to ask the file system, which may not answer.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rankrun_sys::kernel;

/// File systems that wait for another machine or for a process, by their names in the list. Besides, all of FUSE.
const AWAY: [&str; 18] = [
    "9p",
    "afs",
    "autofs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "orangefs",
    "panfs",
    "smb3",
    "smbfs",
    "wekafs",
];

/// Whether a path is on a file system that may wait for another machine or for a process. Symbolic links on the way are not followed.
pub(super) fn is_away(path: &Path) -> bool {
    kernel::read("/proc/self/mountinfo").is_ok_and(|mounts| is_away_in(&mounts, path))
}

/// proc_pid_mountinfo(5). Of the mounts above the path, the longest hides the others; of equal ones the last.
fn is_away_in(mounts: &[u8], path: &Path) -> bool {
    let mounts = mounts.split(|byte| *byte == b'\n').filter_map(mount);
    let above = mounts.filter(|(point, _)| path.starts_with(point));
    let kind = above.max_by_key(|(point, _)| point.components().count()).map(|(_, kind)| kind);
    kind.is_some_and(|kind| kind == "fuse" || kind.starts_with("fuse.") || AWAY.contains(&kind.as_str()))
}

/// The mount point and the file system of a line.
fn mount(line: &[u8]) -> Option<(PathBuf, String)> {
    let mut fields = line.split(|byte| *byte == b' ');
    let point = unescaped(fields.nth(4)?);
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    Some((PathBuf::from(OsString::from_vec(point)), String::from_utf8_lossy(kind).into_owned()))
}

/// The kernel writes blanks, newlines and backslashes as three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal.filter(|_| first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
        31 22 0:27 / /run/user/7 rw,nosuid - tmpfs tmpfs rw\n\
        32 31 0:28 / /run/user/7/doc rw - fuse.portal portal rw\n\
        40 22 0:40 / /home rw,relatime shared:2 master:3 - nfs4 server:/home rw\n\
        41 22 0:41 / /a\\040b rw - fuse - rw\n\
        42 22 0:42 / /twice rw - tmpfs tmpfs rw\n\
        43 22 0:43 / /twice rw - lustre l rw\n";

    #[test]
    fn the_deepest_mount_above_a_path_tells_its_file_system() {
        for (path, expected) in [
            ("/tmp/rankrun-7", false),
            ("/run/user/7", false),
            ("/run/user/7/doc/rankrun", true),
            ("/run/user/7/docs", false),
            ("/home/a/run", true),
            ("/homes/a", false),
            ("/a b/c", true),
            ("/twice/c", true),
        ] {
            assert_eq!(is_away_in(MOUNTS, Path::new(path)), expected, "{path}");
        }
        assert!(!is_away_in(b"garbage\n", Path::new("/tmp")));
        assert!(!is_away(Path::new("/proc/self")));
    }
}
