//! The transcript of the output ([`rankrun_output::Transcript`]), as the loop sees it. It is written where somebody looks at the job
//! from elsewhere, and where the job has left its console: then it is the only place of the output, and the ranks wait for it as they do
//! for any other.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rankrun_output::{Entry, Head, Recorded, Recorder};

use super::files::Files;
use super::task::{Directory, TRANSCRIPT, Task};
use crate::Plan;

/// Batches that may wait for the file system, where the ranks wait for it too.
const BATCHES: usize = 2;
/// The same where they do not: what is more is missing.
const MOST_BATCHES: usize = 64;

/// Where a transcript is, and how large it may become.
#[derive(Clone, Debug)]
pub(crate) struct TranscriptPlace {
    /// The directory of the report.
    pub(crate) directory: Directory,
    pub(crate) path: PathBuf,
    pub(crate) head: Head,
    pub(crate) bound: u64,
}

impl TranscriptPlace {
    /// That of a job which began then.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub(crate) fn of(plan: &Plan, started: Instant) -> Result<TranscriptPlace, String> {
        let directory = Directory::of_report(&plan.report).ok_or("HOME is not set, and there is no --report-dir")?;
        let mut config = plan.output.clone();
        config.status = None;
        config.color = false;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let head = Head { job: plan.spec.job.clone(), config, started: now.saturating_sub(started.elapsed()) };
        let path = directory.path.join(TRANSCRIPT);
        Ok(TranscriptPlace { directory, path, head, bound: plan.transcript_size })
    }
}

/// A transcript that is being written.
#[derive(Debug)]
pub(crate) struct Recording {
    recorder: Recorder,
    /// Its files are there.
    is_open: bool,
    /// Where each batch without an answer ends, and the last one with one.
    waiting: VecDeque<u64>,
    written: u64,
    /// The output goes nowhere else.
    is_only: bool,
    /// The file system has not taken all that it was given; and it has had its time for that.
    is_behind: bool,
    is_given_up: bool,
    /// The process that wrote it was killed: nothing more is written.
    has_no_writer: bool,
    /// Credit of batches without an answer, by stream.
    owed: [u64; 2],
    /// For the ledger, if there is one: what was recorded since it was last asked for.
    entered: Option<Vec<u8>>,
}

impl Recording {
    /// Begins one, or goes on with that of an earlier look.
    pub(crate) fn begin(now: Duration, place: TranscriptPlace, recorder: Recorder, files: &mut Files) -> Recording {
        let from = recorder.position();
        let TranscriptPlace { directory, path, head, bound } = place;
        files.submit(now, Task::OpenTranscript { directory, path, head: Box::new(head), bound, from });
        Recording::of(recorder)
    }

    /// Goes on with one whose writer is gone. `recorded` is what it was to have last.
    pub(crate) fn again(place: TranscriptPlace, recorder: Recorder, recorded: Vec<u8>, files: &mut Files) -> Recording {
        let TranscriptPlace { path, head, bound, .. } = place;
        let left = Box::new(Recorded { head, bound, end: recorder.position(), recorded });
        files.submit(Duration::ZERO, Task::ReopenTranscript { path, left });
        // It is answered as a batch that is written.
        let waiting = VecDeque::from([recorder.position()]);
        Recording { is_open: true, waiting, ..Recording::of(recorder) }
    }

    fn of(recorder: Recorder) -> Recording {
        let written = recorder.position();
        Recording {
            recorder,
            is_open: false,
            waiting: VecDeque::new(),
            written,
            is_only: false,
            is_behind: false,
            is_given_up: false,
            has_no_writer: false,
            owed: [0; 2],
            entered: None,
        }
    }

    /// From now on the output goes nowhere else.
    pub(crate) fn become_only(&mut self) {
        self.is_only = true;
    }

    pub(crate) fn is_only(&self) -> bool {
        self.is_only
    }

    /// Its files are there.
    pub(crate) fn opened(&mut self) {
        self.is_open = true;
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// The console was given this, or would have been.
    pub(crate) fn record(&mut self, entry: &Entry<'_>) {
        if self.has_no_writer {
            return;
        }
        if !self.is_only && self.waiting.len() >= MOST_BATCHES {
            match entry {
                Entry::Output { rank, stream, bytes, .. } => return self.recorder.pass_over((*rank, *stream), bytes),
                Entry::Note { .. } => return,
                _ => {}
            }
        }
        let before = self.recorder.pending().len();
        self.recorder.record(entry);
        if let Some(entered) = &mut self.entered {
            entered.extend_from_slice(&self.recorder.pending()[before..]);
        }
    }

    /// From now on what is recorded is kept for the ledger, before it is written.
    pub(crate) fn keep_for_ledger(&mut self) {
        let pending = self.recorder.pending().clone();
        self.entered.get_or_insert(pending);
    }

    /// Whether nothing may be written before the ledger has it.
    pub(crate) fn waits_for_ledger(&self) -> bool {
        self.entered.is_some()
    }

    /// What is recorded may be written at once.
    pub(crate) fn end_keeping(&mut self) {
        self.entered = None;
    }

    /// Whether something was recorded that the ledger does not have.
    pub(crate) fn is_ahead(&self) -> bool {
        self.entered.as_ref().is_some_and(|entered| !entered.is_empty())
    }

    /// What was recorded since this was last asked for.
    pub(crate) fn take_for_ledger(&mut self) -> Vec<u8> {
        self.entered.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// How many bytes are ready.
    pub(crate) fn ready(&mut self) -> usize {
        self.recorder.pending().len()
    }

    /// Whether there is room for a batch.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < if self.is_only { BATCHES } else { MOST_BATCHES }
    }

    /// Whether all that was recorded is written, or will not be.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.recorder.is_empty() && (!self.is_behind || self.is_given_up)
    }

    /// Whether the file system has not taken all that it was given.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// The file system has had its time: nobody waits for it any more.
    pub(crate) fn give_up(&mut self) {
        self.is_given_up = true;
    }

    /// All that it was given is written.
    pub(crate) fn caught_up(&mut self) {
        (self.is_behind, self.is_given_up) = (false, false);
    }

    /// Hands on what is ready. The credit is returned when it is written.
    pub(crate) fn hand_on(&mut self, now: Duration, credits: [u64; 2], files: &mut Files) {
        let bytes = std::mem::take(self.recorder.pending());
        self.waiting.push_back(self.recorder.position());
        self.owed.iter_mut().zip(credits).for_each(|(owed, more)| *owed += more);
        files.submit(now, Task::Transcript { bytes, credits });
    }

    /// A batch has been answered, and this credit is returned.
    pub(crate) fn answered(&mut self, credits: [u64; 2], is_behind: bool) {
        self.written = self.waiting.pop_front().unwrap_or(self.written);
        match is_behind {
            true => self.is_behind = true,
            false => self.caught_up(),
        }
        self.paid(credits);
    }

    /// This credit is returned.
    pub(crate) fn paid(&mut self, credits: [u64; 2]) {
        self.owed.iter_mut().zip(credits).for_each(|(owed, paid)| *owed = owed.saturating_sub(paid));
    }

    pub(crate) fn has_no_writer(&self) -> bool {
        self.has_no_writer
    }

    /// Nobody writes any more: what was recorded and not written is lost. Returns the credit that nobody else returns.
    pub(crate) fn lose_writer(&mut self) -> [u64; 2] {
        self.has_no_writer = true;
        self.waiting.clear();
        self.caught_up();
        self.recorder.pending().clear();
        std::mem::take(&mut self.owed)
    }

    /// Up to where its file system has it, as far as is known.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Where the next entry will be.
    pub(crate) fn position(&self) -> u64 {
        self.recorder.position()
    }
}
