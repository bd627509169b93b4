//! Looks at the user's file systems before the job begins: in a child process, for a bounded time (ADR 32). Whoever asks a file system
//! that does not answer waits in state D, where neither a signal nor `--timeout` helps.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_sys::errand::{self, End, Waited};
use rankrun_sys::nearby;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long a file system may take to answer where the job cannot begin without the answer. Failing over to another server takes some
/// seconds, and so does an automounter.
pub(crate) const BOUND: Duration = Duration::from_secs(10);
/// The shortest time after which a file system is said not to answer.
pub(crate) const LEAST: Duration = Duration::from_secs(1);

/// How long a file system may take to answer where the answer only improves a message, or is needed much later.
const SOON: Duration = Duration::from_millis(500);

/// What the child sends before a path that it is about to look at, before its answer and the length of it, and after a path.
const PATH: u8 = b'p';
const ANSWER: u8 = b'a';
const END: u8 = 0;

/// Told of each path before a look at it. The look ends if this returns false.
pub(crate) type At<'a> = dyn FnMut(&Path) -> bool + 'a;

/// A file system has not answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Silent {
    /// The path that was looked at last.
    path: PathBuf,
    bound: Duration,
    /// The child that looked, if it stays.
    stays: Option<i32>,
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = self.bound.as_secs_f64();
        match self.path.as_os_str().is_empty() {
            // Whoever looks has been stopped before its first look.
            true => write!(f, "no answer for {bound} s")?,
            false => write!(f, "no answer from \"{}\" for {bound} s", self.path.display())?,
        }
        match self.stays {
            Some(pid) => write!(f, ": process {pid} of rankrun stays until it comes"),
            None => Ok(()),
        }
    }
}

impl From<Silent> for io::Error {
    fn from(silent: Silent) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, silent.to_string())
    }
}

/// The bytes that a look returns.
///
/// # Errors
///
/// It took longer than `bound`.
pub(crate) fn bytes(bound: Duration, look: impl Fn(&mut At<'_>) -> Vec<u8>) -> Result<Vec<u8>, Silent> {
    let asked = errand::perform(bound, |pipe| {
        let mut note = |path: &Path| {
            let bytes = path.as_os_str().as_bytes();
            // Without a reader nobody wants it.
            let _ = pipe.write_all(&[&[PATH], bytes, &[END]].concat());
            true
        };
        let answer = look(&mut note);
        pipe.write_all(&[&[ANSWER][..], &answer.len().to_le_bytes()].concat())?;
        pipe.write_all(&answer)
    });
    let found = asked.ok().map(|waited| found(waited, bound));
    // Without room for a process, with threads that keep this one from forking, or where whoever looks is killed again, as in a sandbox
    // that refuses a call, the risk is taken: a job is worth more.
    found.unwrap_or(Ok(None)).map(|answer| answer.unwrap_or_else(|| look(&mut |_| true)))
}

/// The answer, if there is one.
fn found(waited: Waited, bound: Duration) -> Result<Option<Vec<u8>>, Silent> {
    let Waited { end, result: sent } = waited;
    let (path, answer) = read(&sent);
    match end {
        End::TimedOut { stays } => Err(Silent { path, bound, stays }),
        End::Complete | End::Killed => Ok(answer.map(<[u8]>::to_vec)),
    }
}

/// The last path that a child has sent, and its answer, if that is complete.
fn read(mut sent: &[u8]) -> (PathBuf, Option<&[u8]>) {
    let mut last = PathBuf::new();
    loop {
        match sent {
            [PATH, rest @ ..] => {
                let Some(end) = rest.iter().position(|byte| *byte == END) else { return (last, None) };
                last = PathBuf::from(OsStr::from_bytes(&rest[..end]));
                sent = &rest[end + 1..];
            }
            [ANSWER, rest @ ..] => {
                let answer =
                    rest.split_first_chunk().filter(|(size, answer)| usize::from_le_bytes(**size) == answer.len());
                return (last, answer.map(|(_, answer)| answer));
            }
            _ => return (last, None),
        }
    }
}

/// What a look finds.
///
/// # Errors
///
/// It took longer than `bound`.
pub(crate) fn ask<T: Serialize + DeserializeOwned>(
    bound: Duration,
    look: impl Fn(&mut At<'_>) -> T,
) -> Result<T, Silent> {
    // What serde_json writes it also reads.
    let sent = bytes(bound, |at| serde_json::to_vec(&look(at)).unwrap_or_default())?;
    serde_json::from_slice(&sent).map_err(|_| Silent { path: PathBuf::new(), bound, stays: None })
}

/// What a look finds without a wait, in this process: every path that it asks for is in the kernel's memory, on a local file system. `None`
/// where that is not so, or where the look itself finds nothing.
pub(crate) fn at_once<T>(look: impl FnOnce(&mut At<'_>) -> Option<T>) -> Option<T> {
    let mut all = true;
    let found = look(&mut |path| {
        all = all && nearby::answers_at_once(path);
        all
    });
    found.filter(|_| all)
}

/// What a look finds, if it finds it soon.
pub(crate) fn soon<T: Serialize + DeserializeOwned>(look: impl Fn() -> T) -> Option<T> {
    ask(SOON, |_| look()).ok()
}

/// Whether there is a regular file. One that does not answer counts as none: whoever needs it names it.
pub(crate) fn is_file(path: &Path) -> bool {
    soon(|| path.is_file()).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_killed_has_not_been_silent() {
        let answer = [&b"p/a\0a"[..], &2usize.to_le_bytes(), b"ok"].concat();
        let waited = |end: End, sent: &[u8]| found(Waited { end, result: sent.to_vec() }, BOUND);
        assert_eq!(waited(End::Complete, &answer), Ok(Some(b"ok".to_vec())));
        for cut in 0..answer.len() {
            assert_eq!(waited(End::Killed, &answer[..cut]), Ok(None), "{cut}");
        }
        let silent = Silent { path: "/a".into(), bound: BOUND, stays: Some(7) };
        assert_eq!(waited(End::TimedOut { stays: Some(7) }, b"p/a\0"), Err(silent));
    }

    #[test]
    fn the_path_that_was_looked_at_last_is_blamed() {
        assert_eq!(read(b"p/a\0p/b\xff\0"), (PathBuf::from(OsStr::from_bytes(b"/b\xff")), None));
        assert_eq!(read(b"p/a\0p/b"), ("/a".into(), None), "the second is not complete");
        let mut whole = [&b"p/a\0a"[..], &7usize.to_le_bytes(), b"nothing"].concat();
        assert_eq!(read(&whole), ("/a".into(), Some(&b"nothing"[..])));
        whole.pop();
        assert_eq!(read(&whole), ("/a".into(), None), "whoever answers was killed");
        assert_eq!(read(b"p/a\0a"), ("/a".into(), None));
        assert_eq!(read(b""), (PathBuf::new(), None));
        let silent = Silent { path: "/dead/program".into(), bound: BOUND, stays: None };
        assert_eq!(silent.to_string(), "no answer from \"/dead/program\" for 10 s");
        let stays = Silent { stays: Some(7), ..silent };
        let text = "no answer from \"/dead/program\" for 10 s: process 7 of rankrun stays until it comes";
        assert_eq!(stays.to_string(), text);
    }
}
