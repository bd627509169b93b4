//! Looks at the user's file systems before the job begins: in a child process, for a bounded time (ADR 32). Whoever asks a file system
//! that does not answer waits in state D, where neither a signal nor `--timeout` helps.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_sys::errand::{End, Errand, Waited};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long a file system may take to answer where the job cannot begin without the answer. Failing over to another server takes some
/// seconds, and so does an automounter.
pub(crate) const BOUND: Duration = Duration::from_secs(10);
/// The shortest time after which a file system is said not to answer.
pub(crate) const LEAST: Duration = Duration::from_secs(1);

/// How long a file system may take to answer where the answer only improves a message, or is needed much later.
const SOON: Duration = Duration::from_millis(500);

/// What the child sends before a path that it is about to look at, before its answer, and after a path.
const PATH: u8 = b'p';
const ANSWER: u8 = b'a';
const END: u8 = 0;

/// Notes that a path is looked at now.
pub(crate) type At<'a> = dyn FnMut(&Path) + 'a;

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
    let errand = Errand::start(|pipe| {
        let mut note = |path: &Path| {
            let bytes = path.as_os_str().as_bytes();
            // Without a reader nobody wants it.
            let _ = pipe.write_all(&[&[PATH], bytes, &[END]].concat());
        };
        let answer = look(&mut note);
        let _ = pipe.write_all(&[ANSWER]).and_then(|()| pipe.write_all(&answer));
    });
    // Without room for a process, or with threads that keep this one from forking, the risk is taken: a job is worth more.
    let Ok(errand) = errand else { return Ok(look(&mut |_| {})) };
    let Waited { end, result: sent } = errand.wait(bound);
    let (path, answer) = read(&sent);
    match (end, answer) {
        (End::Whole, Some(answer)) => Ok(answer.to_vec()),
        (End::Late { stays }, _) => Err(Silent { path, bound, stays }),
        // Somebody has ended it, as a sandbox does that refuses a call.
        (End::Whole | End::Broken, _) => Ok(look(&mut |_| {})),
    }
}

/// The last path that a child has sent, and its answer.
fn read(mut sent: &[u8]) -> (PathBuf, Option<&[u8]>) {
    let mut last = PathBuf::new();
    loop {
        match sent {
            [PATH, rest @ ..] => {
                let Some(end) = rest.iter().position(|byte| *byte == END) else { return (last, None) };
                last = PathBuf::from(OsStr::from_bytes(&rest[..end]));
                sent = &rest[end + 1..];
            }
            [ANSWER, answer @ ..] => return (last, Some(answer)),
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
    fn the_path_that_was_looked_at_last_is_blamed() {
        assert_eq!(read(b"p/a\0p/b\xff\0"), (PathBuf::from(OsStr::from_bytes(b"/b\xff")), None));
        assert_eq!(read(b"p/a\0p/b"), ("/a".into(), None), "the second is not complete");
        assert_eq!(read(b"p/a\0anothing is wrong"), ("/a".into(), Some(&b"nothing is wrong"[..])));
        assert_eq!(read(b""), (PathBuf::new(), None));
        let silent = Silent { path: "/dead/program".into(), bound: BOUND, stays: None };
        assert_eq!(silent.to_string(), "no answer from \"/dead/program\" for 10 s");
        let stays = Silent { stays: Some(7), ..silent };
        let text = "no answer from \"/dead/program\" for 10 s: process 7 of rankrun stays until it comes";
        assert_eq!(stays.to_string(), text);
    }
}
