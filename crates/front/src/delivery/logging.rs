//! The log files of the ranks, as the loop sees them: what is not written, since when, and when they are given up.

use std::time::Duration;

use rankrun_core::{Rank, Stream};

use super::event::{SILENCE_BOUND, SILENCE_STEP};
use super::files::{self, Files};
use super::task::{Destination, Task};

/// The log files.
#[derive(Debug, Default)]
pub(super) struct Logging {
    /// There are log files.
    is_on: bool,
    failed_since: Option<Duration>,
    /// When to look next whether their file system answers.
    next_look: Duration,
    /// They were given up since their file system did not answer.
    has_waited_in_vain: bool,
    /// Bytes that were given to them and are not written, by stream.
    unwritten: [u64; 2],
}

impl Logging {
    pub(super) fn new(is_on: bool) -> Logging {
        Logging { is_on, ..Logging::default() }
    }

    /// A rank wrote these bytes.
    pub(super) fn write(&mut self, now: Duration, files: &mut Files, rank: Rank, stream: Stream, bytes: &[u8]) {
        if self.is_on {
            self.unwritten[stream.index()] += bytes.len() as u64;
            files.submit(now, Task::Log { rank, stream, bytes: bytes.to_vec() });
        }
    }

    /// A stream of a rank has ended.
    pub(super) fn close(&self, now: Duration, files: &mut Files, rank: Rank, stream: Stream) {
        if self.is_on {
            files.submit(now, Task::CloseLog { rank, stream });
        }
    }

    /// How many bytes of a stream wait for them.
    pub(super) fn unwritten(&self, stream: Stream) -> u64 {
        if self.is_on { self.unwritten[stream.index()] } else { 0 }
    }

    /// Whether they have unwritten bytes.
    pub(super) fn is_busy(&self, files: &Files) -> bool {
        self.is_on && (!files.is_idle(Destination::Logs) || self.failed_since.is_some())
    }

    /// So many bytes are written.
    pub(super) fn written(&mut self, bytes: [u64; 2]) {
        for (unwritten, bytes) in self.unwritten.iter_mut().zip(bytes) {
            *unwritten = unwritten.saturating_sub(bytes);
        }
    }

    /// A write has failed, and is tried again. Returns whether that is news.
    pub(super) fn failed(&mut self, now: Duration) -> bool {
        let is_news = self.is_on && self.failed_since.is_none();
        if is_news {
            self.failed_since = Some(now);
        }
        is_news
    }

    /// All is written. Returns whether that is news.
    pub(super) fn recovered(&mut self) -> bool {
        self.failed_since.take().is_some() && self.is_on
    }

    /// They could not be made.
    pub(super) fn turn_off(&mut self) {
        self.is_on = false;
    }

    /// Whether they were given up since their file system did not answer.
    pub(super) fn has_waited_in_vain(&self) -> bool {
        self.has_waited_in_vain
    }

    /// Since when they have been behind for `drain` at most: the end of that time.
    fn drain_deadline(&self, files: &Files, drain: Duration) -> Option<Duration> {
        let since = [self.failed_since, files.busy_since(Destination::Logs)].into_iter().flatten().min();
        since.filter(|_| self.is_on).map(|since| since + drain)
    }

    /// When they are given up, or are to be looked at. `ended`: when the ranks had ended.
    pub(super) fn deadline(&self, files: &Files, drain: Duration, ended: Option<Duration>) -> Option<Duration> {
        let busy = files.busy_since(Destination::Logs).filter(|_| self.is_on);
        let look = busy.zip(ended).map(|(busy, ended)| (busy.max(ended) + SILENCE_BOUND).max(self.next_look));
        self.drain_deadline(files, drain).into_iter().chain(look).min()
    }

    /// Whether they will never be written: their process has ended, or the ranks have and the file system does not answer.
    pub(super) fn are_stuck(&mut self, now: Duration, files: &Files, ended: Option<Duration>) -> bool {
        if self.is_on && files.has_failed(Destination::Logs) {
            return true;
        }
        let is_due = self.is_on && ended.is_some_and(|ended| now >= ended + SILENCE_BOUND) && now >= self.next_look;
        if is_due {
            self.next_look = now + SILENCE_STEP;
        }
        is_due && files.is_stuck(Destination::Logs, now, SILENCE_BOUND)
    }

    /// Whether they could not be written for longer than `drain`, or never will be.
    pub(super) fn are_over(&mut self, now: Duration, files: &Files, drain: Duration, ended: Option<Duration>) -> bool {
        self.drain_deadline(files, drain).is_some_and(|deadline| deadline <= now) || self.are_stuck(now, files, ended)
    }

    /// If they have unwritten bytes: gives them up. Returns what the user is told.
    pub(super) fn give_up(&mut self, now: Duration, files: &mut Files, drain: Duration) -> Option<String> {
        if !self.is_busy(files) {
            return None;
        }
        let left = files::not_in_them(self.unwritten[0] + self.unwritten[1]);
        let text = if self.failed_since.take().is_some() {
            files.submit(now, Task::GiveUpLogs);
            format!("gave up log files: {left}")
        } else {
            let has_failed = files.has_failed(Destination::Logs);
            let at = format!("\"{}\"", files.at(Destination::Logs).display());
            let why = match has_failed {
                true => format!("cannot write to {at}: {}", files.why(Destination::Logs, drain)),
                false => format!("no answer from {at}"),
            };
            files.give_up(Destination::Logs);
            self.has_waited_in_vain |= !has_failed;
            format!("{why}: gave up log files: {left}")
        };
        self.is_on = false;
        Some(text)
    }
}
