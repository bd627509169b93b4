//! The last hop of the ranks' output: shows it, logs it, writes it, and returns credit to the agent, which may then
//! send as much again.
//!
//! The credit for bytes is returned when they are both on the screen and in the log files. The bytes that wait here are
//! therefore bounded by the credit of the streams.

use std::io;
use std::time::Duration;

use rankrun_core::{Stream, WorkerId};
use rankrun_output::{Config, Entry, Presenter};
use rankrun_wire::frame::OutputHead;

use crate::delivery::event::DeliveryEvent;
use crate::delivery::files::Files;
use crate::delivery::journal::Journal;
use crate::delivery::logging::Logging;
use crate::delivery::results::Results;
use crate::delivery::shown::Shown;
use crate::delivery::sink::{News, Sink, THREAD_RETRY};
use crate::delivery::task::{Destination, Directory, Done, Failure, Stamp, Stamped, Task};
use crate::delivery::transcript::Recording;
use crate::delivery::writers::Writers;

/// A batch of this size is handed to its sink before the loop handles other events.
pub(crate) const EAGER: usize = 64 * 1024;
/// The memory of a written batch up to this size is used again for the next one.
const KEPT: usize = 512 * 1024;
/// A destination that needs longer than this for a batch slows the ranks down.
const SLOW: Duration = Duration::from_millis(50);
/// For so long after that, a rank may be silent because it was slowed down.
const RECOVERY: Duration = Duration::from_millis(250);
/// Batches that may wait for a file of kept output.
const KEEPING: usize = 2;
/// A destination that has been busy for less than this counts as working.
const FRESH: Duration = Duration::from_millis(500);

/// What was opened before the first rank.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    /// There are log files.
    pub(crate) logs: bool,
    pub(crate) journal: Journal,
    /// The output goes there alone, from the start.
    pub(crate) recording: Option<Recording>,
    /// Signals that arrived meanwhile, with their senders.
    pub(crate) signals: Vec<(i32, i32)>,
}

/// The last hop.
pub(crate) struct Delivery {
    pub(crate) presenter: Presenter,
    pub(crate) files: Files,
    pub(crate) journal: Journal,
    pub(crate) results: Results,
    /// What was shown last.
    pub(crate) shown: Shown,
    logging: Logging,
    /// When the ranks of the last attempt had ended.
    ended_at: Option<Duration>,
    pub(super) sinks: [Sink; 2],
    /// By destination, if it failed to take output: the file that gets its output, and how many batches wait for that.
    keep_in: Option<Directory>,
    keeping: [Option<usize>; 2],
    /// Some of that output could not be written to its file either.
    is_lost: bool,
    /// Why the transcript was not written when that was tried last.
    pub(super) transcript_fails: String,
    /// The directory for it does not answer.
    is_keep_dead: bool,
    /// What others can look at, or what has taken the place of both streams.
    pub(super) recording: Option<Recording>,
    /// The output goes to the transcript alone, but the console gets our own notices until all ranks run.
    pub(super) tells_of_start: bool,
    /// When each destination became full.
    pub(super) full_since: [Option<Duration>; 2],
    /// Since when each destination has been busy without a pause.
    busy_since: [Duration; 2],
    /// Bytes received from the ranks.
    received: u64,
    /// When each destination got its present batch, and when one of them was last slow.
    given_at: [Duration; 2],
    slow_at: Option<Duration>,
    /// Both streams have the same destination: the first sink writes all.
    is_shared: bool,
    /// The agent holds more of a stream.
    more: [bool; 2],
    /// Bytes received and not yet handed to a destination, by stream.
    pub(super) uncredited: [u64; 2],
    /// Bytes that a destination has written, without credit returned, because a log file has not written them.
    taken: [u64; 2],
    memory: [Vec<u8>; 2],
    drain: Duration,
    /// The time of the present turn of the loop.
    pub(super) now: Duration,
    pub(super) events: Vec<DeliveryEvent>,
    /// Answers of file systems that concern the end of the job.
    pub(crate) answers: Vec<Done>,
    /// This program's bytes, which were asked for.
    pub(crate) binary: Option<Result<Vec<u8>, Failure>>,
    /// What is known of files that are watched.
    pub(crate) stamps: Vec<(Stamped, Stamp)>,
}

impl Delivery {
    /// `writers` are the destinations.
    pub(crate) fn new(
        presenter: Presenter,
        writers: Writers,
        opened: Opened,
        output: &Config,
        drain: Duration,
    ) -> Delivery {
        let Writers { files, sinks } = writers;
        let Opened { logs, journal, mut recording, signals: _ } = opened;
        recording.iter_mut().for_each(Recording::become_only);
        Delivery {
            presenter,
            files,
            journal,
            results: Results::default(),
            shown: Shown::new(output),
            logging: Logging::new(logs),
            ended_at: None,
            sinks,
            keep_in: None,
            keeping: [None, None],
            is_lost: false,
            transcript_fails: String::new(),
            is_keep_dead: false,
            tells_of_start: recording.is_some(),
            recording,
            full_since: [None, None],
            busy_since: [Duration::ZERO; 2],
            received: 0,
            given_at: [Duration::ZERO; 2],
            slow_at: None,
            is_shared: output.same_destination,
            more: [false, false],
            uncredited: [0, 0],
            taken: [0, 0],
            memory: [Vec::new(), Vec::new()],
            drain,
            now: Duration::ZERO,
            events: Vec::new(),
            answers: Vec::new(),
            binary: None,
            stamps: Vec::new(),
        }
    }

    /// The events since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<DeliveryEvent> {
        self.events.extend(self.results.take_events());
        std::mem::take(&mut self.events)
    }

    /// A rank wrote these bytes.
    pub(crate) fn output(&mut self, now: Duration, head: OutputHead, bytes: &[u8]) {
        self.now = now;
        let rank = head.worker.rank;
        self.received += bytes.len() as u64;
        self.more[head.stream.index()] = head.more;
        self.uncredited[head.stream.index()] += bytes.len() as u64;
        let entry = Entry::Output { rank, stream: head.stream, wall: head.at, bytes };
        if self.is_away() || !self.sinks[self.sink_of(head.stream)].has_failed() {
            self.show(now, &entry);
            self.shown.output(rank, head.stream, bytes);
        } else {
            self.shown.follow(&entry);
        }
        self.logging.write(now, &mut self.files, rank, head.stream, bytes);
        if self.presenter.pending(head.stream).len() >= EAGER {
            self.hand_on_stream(head.stream);
        }
        if self.recording.as_mut().is_some_and(|it| !it.waits_for_ledger() && it.ready() >= EAGER) {
            self.hand_on_recording();
        }
    }

    /// The console is given this; where it was left, only the transcript is.
    pub(crate) fn show(&mut self, now: Duration, entry: &Entry<'_>) {
        self.shown.follow(entry);
        if let Some(recording) = &mut self.recording {
            recording.record(entry);
        }
        if !self.is_away() || (self.tells_of_start && matches!(entry, Entry::Notice(_))) {
            self.presenter.take(now, entry);
        }
    }

    /// Whether the console was left, and the transcript has taken its place.
    pub(crate) fn is_away(&self) -> bool {
        self.recording.as_ref().is_some_and(Recording::is_only)
    }

    /// A stream of a rank has ended.
    pub(crate) fn closed(&mut self, now: Duration, worker: WorkerId, stream: Stream) {
        let rank = worker.rank;
        self.show(now, &Entry::Closed { rank, stream });
        self.logging.close(now, &mut self.files, rank, stream);
    }

    fn sink_of(&self, stream: Stream) -> usize {
        if self.is_shared { 0 } else { stream.index() }
    }

    /// Whether the destinations have written all that they got.
    pub(crate) fn is_idle(&self) -> bool {
        let is_recorded = self.recording.as_ref().is_none_or(|recording| !recording.is_only() || recording.is_idle());
        is_recorded && (0..2).all(|index| self.is_sink_idle(index))
    }

    fn is_sink_idle(&self, index: usize) -> bool {
        self.keeping[index].map_or_else(|| self.sinks[index].is_idle(), |waiting| waiting == 0)
    }

    fn has_room(&self, index: usize) -> bool {
        self.keeping[index].map_or_else(|| self.sinks[index].has_room(), |waiting| waiting < KEEPING)
    }

    /// Whether a destination has no space left.
    pub(crate) fn is_full(&self) -> bool {
        self.full_since.iter().any(Option::is_some)
    }

    /// Whether the sinks have taken all that was shown.
    pub(crate) fn is_all_taken(&mut self) -> bool {
        Stream::ALL.iter().all(|stream| self.presenter.pending(*stream).is_empty())
    }

    /// Whether nothing waits to be written.
    pub(crate) fn is_done(&mut self) -> bool {
        let has_results = !self.files.is_idle(Destination::Results);
        self.is_idle() && !self.is_logging() && !has_results && self.is_all_taken()
    }

    /// Whether log files have unwritten bytes.
    pub(crate) fn is_logging(&self) -> bool {
        self.logging.is_busy(&self.files)
    }

    /// Hands what is ready to the destinations, and returns the credit for what needs none.
    pub(crate) fn hand_on(&mut self, now: Duration) {
        self.now = now;
        self.journal.hand_on(now, &mut self.files);
        for sink in 0..2 {
            if self.keeping[sink].is_none() && self.sinks[sink].lacks_thread() {
                self.sinks[sink].retry().into_iter().for_each(|news| self.heard(sink, news, now));
            }
        }
        for stream in Stream::ALL {
            self.hand_on_stream(stream);
        }
        self.hand_on_recording();
    }

    /// Hands what is ready to the transcript.
    fn hand_on_recording(&mut self) {
        let Some(recording) = &mut self.recording else { return };
        if recording.ready() > 0 && recording.has_room() && !recording.is_ahead() {
            let credits = if recording.is_only() { std::mem::take(&mut self.uncredited) } else { [0, 0] };
            recording.hand_on(self.now, credits, &mut self.files);
        }
        if self.recording.as_ref().is_some_and(Recording::has_no_writer) {
            let credits = std::mem::take(&mut self.uncredited);
            self.return_credit(credits);
        }
    }

    fn hand_on_stream(&mut self, stream: Stream) {
        let sink = self.sink_of(stream);
        if self.sinks[sink].has_failed() {
            self.presenter.pending(stream).clear();
        }
        if self.presenter.pending(stream).is_empty() {
            // The presenter bounds what it keeps. The credit of a shared destination is returned in the order of its
            // writes.
            if !self.is_shared || self.is_sink_idle(0) {
                let credits = self.take_uncredited(stream);
                self.return_credit(credits);
            }
            return;
        }
        if !self.has_room(sink) {
            return;
        }
        let mut bytes = std::mem::take(&mut self.memory[sink]);
        bytes.clear();
        std::mem::swap(&mut bytes, self.presenter.pending(stream));
        let credits = self.take_uncredited(stream);
        if self.is_sink_idle(sink) {
            (self.given_at[sink], self.busy_since[sink]) = (self.now, self.now);
        }
        match self.keeping[sink] {
            Some(_) => self.keep(sink, bytes, credits),
            None => {
                if let Some(news) = self.sinks[sink].write(bytes, credits) {
                    self.heard(sink, news, self.now);
                }
            }
        }
    }

    fn take_uncredited(&mut self, stream: Stream) -> [u64; 2] {
        if self.is_away() {
            // That of the transcript.
            return [0, 0];
        }
        if self.is_shared {
            return std::mem::take(&mut self.uncredited);
        }
        let mut credits = [0, 0];
        credits[stream.index()] = std::mem::take(&mut self.uncredited[stream.index()]);
        credits
    }

    /// A destination has written so many bytes, or there is no destination for them.
    pub(super) fn return_credit(&mut self, credits: [u64; 2]) {
        for (taken, bytes) in self.taken.iter_mut().zip(credits) {
            *taken += bytes;
        }
        for stream in Stream::ALL {
            let index = stream.index();
            // It only matters how many bytes of a stream are on the screen and not in their file, not which.
            let bytes = self.taken[index].saturating_sub(self.logging.unwritten(stream));
            if bytes > 0 {
                self.taken[index] -= bytes;
                self.events.push(DeliveryEvent::Credit { stream, bytes });
            }
        }
    }

    /// Receives the results of the destinations.
    pub(crate) fn receive(&mut self, now: Duration) {
        while let Some(done) = self.files.next(now) {
            self.handle_file_done(now, done);
        }
        for index in 0..2 {
            if self.keeping[index].is_some() {
                continue;
            }
            while let Some(news) = self.sinks[index].next_news() {
                self.heard(index, news, now);
            }
        }
        self.check_transcript();
    }

    /// A destination has news.
    fn heard(&mut self, index: usize, news: News, now: Duration) {
        let name = Stream::ALL[index];
        match news {
            News::Written { credits, memory } => {
                if now > self.given_at[index] + SLOW {
                    self.slow_at = Some(now);
                }
                self.given_at[index] = now;
                if let Some(memory) = memory.filter(|memory| memory.capacity() <= KEPT) {
                    self.memory[index] = memory;
                }
                self.return_credit(credits);
            }
            News::Full(error) => {
                self.full_since[index] = Some(now);
                self.note(format!("{name}: {}; trying again", rankrun_sys::reason(&error)));
            }
            News::Recovered => {
                self.full_since[index] = None;
                self.note(format!("{name} takes output again"));
            }
            News::Failed(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.events.push(DeliveryEvent::ReaderGone);
            }
            News::Failed(error) => {
                self.note(format!("cannot write to {name}: {}", rankrun_sys::reason(&error)));
                self.events.push(DeliveryEvent::Failed);
            }
        }
    }

    /// Does all that is due. Unfinished lines are shown only if there is `quiet` now.
    pub(crate) fn tick(&mut self, now: Duration, quiet: bool) {
        if quiet && self.may_be_quiet() && self.slow_at.is_none_or(|slow| now >= slow + RECOVERY) {
            self.presenter.tick(now);
        }
        self.check_logs(now);
        self.check_results(now);
        for index in 0..2 {
            if self.full_since[index].is_some_and(|since| now >= since + self.drain) {
                self.full_since[index] = None;
                self.events.push(match self.recording.as_mut().filter(|recording| recording.is_only()) {
                    Some(recording) => {
                        recording.give_up();
                        DeliveryEvent::TranscriptIsFull(self.transcript_fails.clone())
                    }
                    None => DeliveryEvent::Failed,
                });
            }
        }
    }

    /// Whether silence of the ranks is real: no output of theirs is on its way.
    fn may_be_quiet(&self) -> bool {
        self.is_idle() && self.more == [false; 2]
    }

    /// When [`Delivery::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let recovered = self.slow_at.map_or(Duration::ZERO, |slow| slow + RECOVERY);
        let presenter = self.presenter.next_deadline().filter(|_| self.may_be_quiet()).map(|due| due.max(recovered));
        let full = self.full_since.iter().flatten().map(|since| *since + self.drain);
        let results = self.results.deadline(&self.files, self.drain, self.ended_at);
        let thread = self.sinks.iter().any(Sink::lacks_thread).then(|| self.now + THREAD_RETRY);
        full.chain(presenter)
            .chain(self.logging.deadline(&self.files, self.drain, self.ended_at))
            .chain(results)
            .chain(thread)
            .min()
    }

    /// Gives up results that their file system does not take. Returns whether it did.
    pub(crate) fn check_results(&mut self, now: Duration) -> bool {
        self.results.check(now, &mut self.files, self.drain, self.ended_at)
    }

    /// Another attempt begins after all.
    pub(crate) fn begin_attempt(&mut self) {
        self.ended_at = None;
        self.show(self.now, &Entry::Attempt);
    }

    /// The ranks have ended, and no attempt follows.
    pub(crate) fn ranks_ended(&mut self, now: Duration) {
        self.ended_at.get_or_insert(now);
    }

    /// Whether log files were given up since their file system did not answer.
    pub(crate) fn has_waited_in_vain(&self) -> bool {
        self.logging.has_waited_in_vain()
    }

    /// Whether log files will never be written: their process has ended, or the ranks have and the file system does not answer.
    pub(crate) fn are_logs_stuck(&mut self, now: Duration) -> bool {
        self.logging.are_stuck(now, &self.files, self.ended_at)
    }

    fn handle_file_done(&mut self, now: Duration, done: Done) {
        match done {
            Done::Logged { bytes, failure, is_behind: _ } => {
                self.logged(bytes);
                if let Some(error) = failure
                    && self.logging.failed(now)
                {
                    self.note(format!("{error}; trying again"));
                }
            }
            Done::Recovered { bytes } => {
                self.logged(bytes);
                if self.logging.recovered() {
                    self.note("the log directory takes output again".to_owned());
                }
            }
            Done::Kept { stream, credits, result } => {
                let index = stream.index();
                self.keeping[index] = self.keeping[index].map(|waiting| waiting.saturating_sub(1));
                if let Err(error) = result
                    && !std::mem::replace(&mut self.is_lost, true)
                {
                    let directory = self.keep_in.as_ref().map(|keep| keep.path.display().to_string());
                    let directory = directory.unwrap_or_default();
                    self.note(format!("cannot save the remaining output in \"{directory}\": {error}"));
                }
                self.return_credit(credits);
            }
            Done::TranscriptOpened(result) => self.events.push(match result {
                Ok(()) => {
                    self.recording.iter_mut().for_each(Recording::opened);
                    DeliveryEvent::TranscriptOpened
                }
                Err(error) => DeliveryEvent::TranscriptFailed(error.to_string()),
            }),
            Done::Transcribed { credits, failure, is_behind } => self.transcribed(now, credits, failure, is_behind),
            Done::TranscriptRecovered { credits } => self.transcript_recovered(credits),
            Done::Journaled { bytes, result } => {
                if let Some(text) = self.journal.written(bytes, result) {
                    self.note(text);
                }
            }
            // Those of a later attempt: without them its output would be lost.
            Done::LogsOpened(Err(error)) => {
                self.logging.turn_off();
                self.return_credit([0, 0]);
                self.events.push(DeliveryEvent::LogsFailed(error.to_string()));
            }
            Done::LogsOpened(Ok(())) => self.events.push(DeliveryEvent::LogsOpened),
            Done::GivenUp | Done::Removed | Done::JournalOpened(_) | Done::NotRecovered => {}
            Done::ResultAdded { node, cost, path, result } => self.results.added(node, cost, &path, result),
            Done::Stamped(of, stamp) => self.stamps.push((of, stamp)),
            Done::BinaryRead { bytes, result } => self.binary = Some(result.map(|()| bytes)),
            done @ (Done::Probed(_) | Done::Saved { .. } | Done::CoreFound(_)) => self.answers.push(done),
        }
    }

    fn logged(&mut self, bytes: [u64; 2]) {
        self.logging.written(bytes);
        self.return_credit([0, 0]);
    }

    /// Gives up log files that could not be written for longer than `--drain`.
    fn check_logs(&mut self, now: Duration) {
        if !self.logging.are_over(now, &self.files, self.drain, self.ended_at) {
            return;
        }
        let why = format!("cannot write log files: {}", self.files.why(Destination::Logs, self.drain));
        let has_failed = self.files.has_failed(Destination::Logs);
        if self.give_up_logs(now) {
            let event = if has_failed { DeliveryEvent::LogsFailed(why) } else { DeliveryEvent::LogsGivenUp };
            self.events.push(event);
        }
    }

    /// If log files have unwritten bytes: gives them up, and notes it. Returns whether it did.
    pub(crate) fn give_up_logs(&mut self, now: Duration) -> bool {
        let Some(text) = self.logging.give_up(now, &mut self.files, self.drain) else { return false };
        self.note(text);
        self.return_credit([0, 0]);
        true
    }

    pub(super) fn note(&mut self, text: String) {
        self.events.push(DeliveryEvent::Note(text));
    }

    /// From now on the output for a destination that does not take it goes into a file in this directory. A destination
    /// that was idle a moment ago counts as working; a later call checks it again.
    pub(crate) fn salvage(&mut self, now: Duration, directory: Directory) {
        self.now = now;
        self.keep_in = Some(directory);
        for index in 0..2 {
            let sink = &mut self.sinks[index];
            let is_fresh = self.full_since[index].is_none() && now < self.busy_since[index] + FRESH;
            if self.keeping[index].is_some() || sink.is_idle() || sink.has_failed() || is_fresh {
                continue;
            }
            let (bytes, credits) = sink.abandon();
            self.keeping[index] = Some(0);
            self.full_since[index] = None;
            self.keep(index, bytes, credits);
        }
    }

    fn keep(&mut self, index: usize, bytes: Vec<u8>, credits: [u64; 2]) {
        let Some(directory) = self.keep_in.clone() else { return };
        self.keeping[index] = self.keeping[index].map(|waiting| waiting + 1);
        self.files.submit(self.now, Task::Keep { stream: Stream::ALL[index], directory, bytes, credits });
    }

    /// Whether output that no destination took was kept, or should have been.
    pub(crate) fn is_salvaged(&self) -> bool {
        self.keep_in.is_some()
    }

    /// Whether there is output that no destination took.
    pub(crate) fn has_kept(&self) -> bool {
        self.keeping.iter().any(Option::is_some)
    }

    /// The directory does not answer: gives up the output that could not be kept, and the blocked process.
    pub(crate) fn give_up_kept(&mut self) {
        if self.keeping.iter().flatten().all(|waiting| *waiting == 0) {
            return;
        }
        (self.is_lost, self.is_keep_dead) = (true, true);
        self.keeping.iter_mut().flatten().for_each(|waiting| *waiting = 0);
        self.files.give_up(Destination::Report);
    }

    /// Whether the directory for kept output does not answer.
    pub(crate) fn is_keep_dead(&self) -> bool {
        self.is_keep_dead
    }

    /// Bytes received from the ranks so far.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Output was lost before it reached the front.
    pub(crate) fn lose(&mut self) {
        self.is_lost = true;
    }

    /// Whether output is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }
}

#[cfg(test)]
mod tests {
    use rankrun_output::{LogPlaces, Mode};

    use rankrun_core::JobId;
    use rankrun_sys::poll::Waker;

    use super::*;
    use crate::delivery::task::Task;

    /// A kill of the storage process is no silence of the file system, and its 30 s are not waited for.
    #[test]
    fn log_files_whose_process_has_ended_are_given_up_at_once_for_this_reason() {
        let waker = Waker::new().expect("a waker");
        let mut writers = Writers::new(JobId("0a1b2c3d".to_owned()), &waker).expect("descriptors");
        writers.files.lose(Destination::Logs);
        let output = Config::new(Mode::Line, 1);
        let presenter = Presenter::new(output.clone(), |_| unreachable!("nothing is shown"));
        let opened = Opened { logs: true, ..Opened::default() };
        let mut delivery = Delivery::new(presenter, writers, opened, &output, Duration::from_secs(30));
        let places = Box::new(LogPlaces::directories(vec!["/logs".into()]));
        delivery.files.submit(Duration::ZERO, Task::OpenLogs { places, world_size: 1 });
        delivery.tick(Duration::ZERO, false);
        let said = "cannot write to \"/logs\": the process that writes there has ended: gave up log files: what follows is not in them";
        let events = delivery.take_events();
        let [DeliveryEvent::Note(note), DeliveryEvent::LogsFailed(why)] = &events[..] else { panic!("{events:?}") };
        assert_eq!(note, said);
        assert_eq!(why, "cannot write log files: the process that writes there has ended");
        assert!(!delivery.has_waited_in_vain());
    }
}
