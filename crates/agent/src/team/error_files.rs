//! Reads the error files that torch writes for failed ranks, where they are on the user's storage.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rankrun_sys::bounded::Bounded;
use rankrun_sys::spawn::UnderWay;

use crate::children::{Reader, Readers, waits};

/// How long the loop waits for an error file on the user's storage: for a file system that does not answer, for a reader that is short
/// of CPU time, and for all files of an attempt.
const ERROR_FILE_BOUND: Duration = Duration::from_millis(200);
const BUSY_BOUND: Duration = Duration::from_secs(1);
const ERROR_FILES_BOUND: Duration = Duration::from_secs(2);

/// Reads error files on the user's storage.
#[derive(Debug)]
pub(super) struct ErrorFiles {
    calls: Bounded,
    /// The reader, and its process.
    reader: Option<(Arc<Mutex<Reader>>, Arc<UnderWay>)>,
    /// What is left of [`ERROR_FILES_BOUND`].
    left: Duration,
    /// The front was sent that a file system does not answer.
    is_noted: bool,
}

impl Default for ErrorFiles {
    fn default() -> ErrorFiles {
        ErrorFiles { calls: Bounded::default(), reader: None, left: ERROR_FILES_BOUND, is_noted: false }
    }
}

impl ErrorFiles {
    /// What a file holds, or a note that its file system has not answered in time.
    pub(super) fn read(&mut self, path: &OsStr, readers: &Readers) -> Result<Option<Vec<u8>>, Option<String>> {
        if self.left.is_zero() {
            return Err(None);
        }
        let make = || {
            let (reader, process) = Reader::new(readers);
            (Arc::new(Mutex::new(reader)), process)
        };
        let (reader, process) = self.reader.get_or_insert_with(make).clone();
        let (begun, asked) = (Instant::now(), path.to_owned());
        let work = move || reader.lock().unwrap_or_else(PoisonError::into_inner).content(asked);
        let (bound, most) = (ERROR_FILE_BOUND.min(self.left), BUSY_BOUND.min(self.left));
        let json = self.calls.call_unless(bound, most, || waits(&process).is_some(), work);
        self.left = self.left.saturating_sub(begun.elapsed());
        json.ok_or_else(|| {
            // The thread that waits for this one keeps it.
            self.reader = None;
            let stays = waits(&process).map(|pid| format!(": process {pid} of rankrun stays until it does"));
            let path = path.to_string_lossy();
            let note = format!("\"{path}\", the error file of a rank, does not answer{}", stays.unwrap_or_default());
            (!std::mem::replace(&mut self.is_noted, true)).then_some(note)
        })
    }
}
