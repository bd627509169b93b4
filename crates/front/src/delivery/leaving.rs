//! How the output leaves the console, and is recorded for those who look from elsewhere.

use std::io;
use std::time::Duration;

use rankrun_core::{Rank, Stream};
use rankrun_output::{Entry, Left, Recorder};
use rankrun_sys::poll::Waker;

use super::destinations::Delivery;
use super::event::DeliveryEvent;
use super::sink::Sink;
use super::task::{Destination, Failure};
use super::transcript::{Recording, TranscriptPlace};
use crate::ledger::{Entry as LedgerEntry, Ledger};

impl Delivery {
    /// Whether a stream of the console has failed.
    pub(crate) fn has_lost_console(&self) -> bool {
        self.sinks.iter().any(Sink::has_failed)
    }

    /// Whether there is a transcript, and its files are there.
    pub(crate) fn is_recording(&self) -> bool {
        self.recording.as_ref().is_some_and(Recording::is_open)
    }

    /// Where the next entry of the transcript will be.
    pub(crate) fn recorded(&self) -> u64 {
        self.recording.as_ref().map_or(0, Recording::position)
    }

    /// A rank sent a note. Returns whether it is shown where notes have their place.
    pub(crate) fn note_of(&mut self, now: Duration, rank: Rank, text: &str) -> bool {
        if let Some(recording) = &mut self.recording {
            recording.record(&Entry::Note { rank, text });
        }
        self.is_away() || self.presenter.note(now, rank, text)
    }

    /// Shows what was kept for the end, piece by piece. Returns whether there is more.
    pub(crate) fn finish(&mut self, now: Duration) -> bool {
        let more = !self.is_away() && self.presenter.finish(now);
        if !more && let Some(recording) = &mut self.recording {
            recording.record(&Entry::Rest);
        }
        more
    }

    /// What the console is given is recorded too, from the beginning of the present lines on: somebody looks from elsewhere, or it is to be
    /// left. Then what it has not taken is recorded before.
    pub(crate) fn begin_recording(&mut self, now: Duration, place: TranscriptPlace, recorder: Recorder, leaves: bool) {
        if self.recording.is_some() {
            return;
        }
        let goes_on = recorder.position() > 0;
        let unfinished = self.presenter.unfinished();
        let has = |source| unfinished.iter().any(|one| (one.rank, one.stream) == source);
        let within: Vec<_> = self.shown.within().into_iter().filter(|source| !has(*source)).collect();
        let recorder = recorder.within(within.iter().copied());
        let mut recording = Recording::begin(now, place, recorder, &mut self.files);
        if goes_on {
            recording.record(&Entry::Gap { within });
        }
        for (stream, sink) in Stream::ALL.into_iter().zip(&self.sinks).filter(|_| leaves) {
            let bytes = [sink.untaken(), self.presenter.pending(stream).clone()].concat();
            if !bytes.is_empty() {
                recording.record(&Entry::Text { stream, bytes: &bytes });
            }
        }
        for unfinished in &unfinished {
            recording.record(&Entry::unfinished(unfinished));
        }
        self.recording = Some(recording);
    }

    /// Nobody looks any more, or it has failed: nothing is recorded, if the console is still there. Returns where a later one goes on.
    pub(crate) fn end_recording(&mut self) -> Option<u64> {
        let recording = self.recording.take_if(|recording| !recording.is_only())?;
        self.files.give_up(Destination::Transcript);
        recording.is_open().then(|| recording.written())
    }

    /// The transcript has taken a batch, or its process keeps it.
    pub(super) fn transcribed(&mut self, now: Duration, credits: [u64; 2], failure: Option<Failure>, is_behind: bool) {
        if let Some(recording) = &mut self.recording {
            recording.answered(credits, is_behind);
        }
        if let Some(error) = failure
            && self.full_since[0].is_none()
            && self.is_away()
        {
            self.full_since[0] = Some(now);
            self.transcript_fails = format!("cannot write the output to the directory of the report: {error}");
            self.note(format!("the transcript of the output: {error}; trying again"));
        }
        self.return_credit(credits);
    }

    /// The transcript has taken what it had not taken before.
    pub(super) fn transcript_recovered(&mut self, credits: [u64; 2]) {
        if let Some(recording) = &mut self.recording {
            recording.paid(credits);
            recording.caught_up();
        }
        if self.full_since[0].take().is_some() {
            self.note("the transcript takes output again".to_owned());
        }
        self.return_credit(credits);
    }

    /// Whether the transcript lacks something that its file system has not taken.
    pub(crate) fn is_transcript_behind(&self) -> bool {
        self.recording.as_ref().is_some_and(|recording| recording.is_only() && recording.is_behind())
    }

    /// Looks whether the process that writes the transcript is still there.
    pub(super) fn check_transcript(&mut self) {
        let is_written = self.recording.as_ref().is_some_and(|recording| !recording.has_no_writer());
        let is_known = self.events.iter().any(|event| matches!(event, DeliveryEvent::TranscriptHasNoWriter));
        if is_written && !is_known && self.files.has_ended(Destination::Transcript) {
            self.events.push(DeliveryEvent::TranscriptHasNoWriter);
        }
    }

    /// The process that wrote the transcript was killed, and no other one writes it: all that it has not written is lost.
    pub(crate) fn lose_writer(&mut self) {
        let Some(recording) = &mut self.recording else { return };
        let credits = recording.lose_writer();
        self.lose();
        self.files.give_up(Destination::Transcript);
        self.return_credit(credits);
    }

    /// All ranks run: the console gets nothing more.
    ///
    /// # Errors
    ///
    /// There are no descriptors left.
    pub(crate) fn forget_console(&mut self, waker: &Waker) -> io::Result<()> {
        self.tells_of_start = false;
        Stream::ALL.iter().for_each(|stream| self.presenter.pending(*stream).clear());
        self.sinks = nowhere(waker)?;
        Ok(())
    }

    /// From now on nothing is written to the transcript before the ledger has it.
    pub(crate) fn keep_for_ledger(&mut self) {
        self.recording.iter_mut().for_each(Recording::keep_for_ledger);
    }

    /// Another front has delivered all before: so many bytes of the streams are in the transcript, and their credit was not returned.
    pub(crate) fn again(&mut self, unpaid: [u64; 2]) {
        self.tells_of_start = false;
        for (stream, bytes) in Stream::ALL.into_iter().zip(unpaid) {
            if bytes > 0 {
                self.events.push(DeliveryEvent::Credit { stream, bytes });
            }
        }
    }

    /// There is no ledger any more.
    pub(crate) fn end_keeping(&mut self) {
        self.recording.iter_mut().for_each(Recording::end_keeping);
    }

    /// For the ledger: what was recorded since the last turn.
    pub(crate) fn enter(&mut self, ledger: &mut Ledger) {
        let recorded = self.recording.as_mut().map(Recording::take_for_ledger).unwrap_or_default();
        if !recorded.is_empty() {
            ledger.add(&LedgerEntry::Recorded(&recorded));
        }
    }

    /// The console is to take no more.
    pub(crate) fn halt_console(&self) {
        self.sinks.iter().for_each(Sink::halt);
    }

    /// Whether what it has taken is known.
    pub(crate) fn is_console_halted(&self) -> bool {
        self.sinks.iter().all(Sink::is_halted)
    }

    /// The console is left: what is recorded from now on goes nowhere else. Returns where that begins, with what the console has not taken.
    ///
    /// # Errors
    ///
    /// There are no descriptors left: nothing is changed.
    pub(crate) fn leave(&mut self, now: Duration, waker: &Waker) -> io::Result<u64> {
        self.now = now;
        let nowhere = nowhere(waker)?;
        let Some(recording) = &mut self.recording else { return Ok(0) };
        let mut left = Left { at: recording.position(), ..Left::default() };
        for (stream, mut sink) in Stream::ALL.into_iter().zip(std::mem::replace(&mut self.sinks, nowhere)) {
            let (mut bytes, credits) = sink.abandon();
            bytes.append(self.presenter.pending(stream));
            left.ready[stream.index()] = bytes;
            self.uncredited.iter_mut().zip(credits).for_each(|(sum, more)| *sum += more);
        }
        left.unfinished = self.presenter.take_unfinished();
        let begin = left.at;
        recording.record(&Entry::Leave(left));
        recording.become_only();
        self.full_since = [None; 2];
        Ok(begin)
    }
}

/// Destinations that take everything, and keep nothing.
fn nowhere(waker: &Waker) -> io::Result<[Sink; 2]> {
    let sink = |name| Sink::new(name, rankrun_sys::null()?, waker.clone());
    Ok([sink("stdout")?, sink("stderr")?])
}
