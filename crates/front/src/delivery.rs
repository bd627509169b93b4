//! The ranks' output on its last hop: shown, logged, written, and settled with the agent, which may send as much again.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::{Stream, WorkerId};
use rankrun_output::{LogError, LogFiles, Presenter};
use rankrun_sys::poll::Waker;
use rankrun_wire::frame::OutputHead;

use crate::sink::{News, Sink};

/// The size from which a batch is handed on before the loop looks at anything else.
pub(crate) const EAGER: usize = 64 * 1024;
/// Memory of a batch that is kept for the next one.
const KEPT: usize = 512 * 1024;
/// A destination that takes longer than this for a batch holds the ranks up.
const SLOW: Duration = Duration::from_millis(50);
/// So long after that, the quiet of a rank may still come from having been held up.
const RECOVERY: Duration = Duration::from_millis(250);
/// How often a log directory that takes nothing is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What the delivery has to say to the front.
#[derive(Debug)]
pub(crate) enum Told {
    /// So many bytes of a stream have found their place.
    Settled {
        stream: Stream,
        bytes: u64,
    },
    Note(String),
    /// Nobody reads any more: the job is to end as SIGPIPE would end it.
    ReaderGone,
    /// The destination has been full for longer than `--drain`, or fails otherwise: the job is to end.
    Failed,
}

/// The last hop.
pub(crate) struct Delivery {
    pub(crate) presenter: Presenter,
    logs: Option<LogFiles>,
    log_retry: Option<Duration>,
    log_failed_since: Option<Duration>,
    sinks: [Sink; 2],
    /// When each destination became full.
    full_since: [Option<Duration>; 2],
    /// When each destination was given its present batch, and when one of them last took long for one.
    given_at: [Duration; 2],
    slow_at: Option<Duration>,
    /// Both streams have one destination: all goes through the first sink.
    is_shared: bool,
    /// The agent holds more of a stream.
    more: [bool; 2],
    /// Bytes that were taken and not yet settled, by stream.
    unsettled: [u64; 2],
    memory: [Vec<u8>; 2],
    drain: Duration,
    /// The time of the present turn of the loop.
    now: Duration,
    waker: Waker,
    /// Where what no destination took is kept.
    salvaged: Option<PathBuf>,
    told: Vec<Told>,
}

impl Delivery {
    /// `waker` wakes the loop for the news of the two destinations.
    pub(crate) fn new(
        presenter: Presenter,
        logs: Option<LogFiles>,
        is_shared: bool,
        drain: Duration,
        waker: Waker,
    ) -> io::Result<Delivery> {
        Ok(Delivery {
            presenter,
            logs,
            log_retry: None,
            log_failed_since: None,
            sinks: [
                Sink::new("stdout", rustix::stdio::stdout(), waker.handle()?)?,
                Sink::new("stderr", rustix::stdio::stderr(), waker.handle()?)?,
            ],
            full_since: [None, None],
            given_at: [Duration::ZERO; 2],
            slow_at: None,
            is_shared,
            more: [false, false],
            unsettled: [0, 0],
            memory: [Vec::new(), Vec::new()],
            drain,
            now: Duration::ZERO,
            waker,
            salvaged: None,
            told: Vec::new(),
        })
    }

    /// What has to be said since the last call.
    pub(crate) fn told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    /// A rank wrote these bytes.
    pub(crate) fn output(&mut self, now: Duration, head: OutputHead, bytes: &[u8]) {
        self.now = now;
        let rank = head.worker.rank;
        self.more[head.stream.index()] = head.more;
        self.unsettled[head.stream.index()] += bytes.len() as u64;
        if !self.sinks[self.sink_of(head.stream)].has_failed() {
            self.presenter.output(now, head.at, rank, head.stream, bytes);
        }
        if let Some(logs) = &mut self.logs {
            let result = logs.write(rank, head.stream, bytes);
            self.check_logs(now, result);
        }
        if self.presenter.pending(head.stream).len() >= EAGER {
            self.hand_on_stream(head.stream);
        }
    }

    /// A stream of a rank has ended.
    pub(crate) fn closed(&mut self, now: Duration, worker: WorkerId, stream: Stream) {
        let rank = worker.rank;
        self.presenter.closed(now, rank, stream);
        let result = self.logs.as_mut().map_or(Ok(()), |logs| logs.close(rank, stream));
        self.check_logs(now, result);
    }

    fn sink_of(&self, stream: Stream) -> usize {
        if self.is_shared { 0 } else { stream.index() }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.sinks.iter().all(Sink::is_idle)
    }

    /// Whether silence of the ranks would be seen: nothing is on its way from them.
    fn may_be_quiet(&self) -> bool {
        self.is_idle() && self.more == [false; 2]
    }

    /// Whether a destination has no space left.
    pub(crate) fn is_full(&self) -> bool {
        self.full_since.iter().any(Option::is_some)
    }

    /// Whether nothing waits to be written.
    pub(crate) fn is_done(&mut self) -> bool {
        self.is_idle() && Stream::ALL.iter().all(|stream| self.presenter.pending(*stream).is_empty())
    }

    /// Gives what is ready to the destinations, and settles what needs no destination.
    pub(crate) fn hand_on(&mut self, now: Duration) {
        self.now = now;
        for stream in Stream::ALL {
            self.hand_on_stream(stream);
        }
    }

    fn hand_on_stream(&mut self, stream: Stream) {
        let sink = self.sink_of(stream);
        if self.sinks[sink].has_failed() {
            self.presenter.pending(stream).clear();
        }
        if self.presenter.pending(stream).is_empty() {
            // What the presenter keeps is bounded by the presenter. A shared destination is settled in the order of what
            // was written to it.
            if !self.is_shared || self.sinks[0].is_idle() {
                let settles = self.take_unsettled(stream);
                self.settle(settles);
            }
            return;
        }
        if !self.sinks[sink].has_room() {
            return;
        }
        let mut bytes = std::mem::take(&mut self.memory[sink]);
        bytes.clear();
        std::mem::swap(&mut bytes, self.presenter.pending(stream));
        let settles = self.take_unsettled(stream);
        if self.sinks[sink].is_idle() {
            self.given_at[sink] = self.now;
        }
        self.sinks[sink].write(bytes, settles);
    }

    fn take_unsettled(&mut self, stream: Stream) -> [u64; 2] {
        if self.is_shared {
            return std::mem::take(&mut self.unsettled);
        }
        let mut settles = [0, 0];
        settles[stream.index()] = std::mem::take(&mut self.unsettled[stream.index()]);
        settles
    }

    fn settle(&mut self, settles: [u64; 2]) {
        for (stream, bytes) in Stream::ALL.into_iter().zip(settles) {
            if self.log_failed_since.is_some() {
                // The logs must not fall behind what is granted.
                self.unsettled[stream.index()] += bytes;
            } else if bytes > 0 {
                self.told.push(Told::Settled { stream, bytes });
            }
        }
    }

    /// Takes in what the destinations have to say.
    pub(crate) fn hear(&mut self, now: Duration) {
        for index in 0..2 {
            let name = Stream::ALL[index];
            while let Some(news) = self.sinks[index].next_news() {
                match news {
                    News::Written { settles, memory } => {
                        if now > self.given_at[index] + SLOW {
                            self.slow_at = Some(now);
                        }
                        self.given_at[index] = now;
                        if let Some(memory) = memory.filter(|memory| memory.capacity() <= KEPT) {
                            self.memory[index] = memory;
                        }
                        self.settle(settles);
                    }
                    News::Full => {
                        self.full_since[index] = Some(now);
                        self.note(format!("{name}: No space left on device; trying again"));
                    }
                    News::Recovered => {
                        self.full_since[index] = None;
                        self.note(format!("{name} takes output again"));
                    }
                    News::Failed(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                        self.told.push(Told::ReaderGone);
                    }
                    News::Failed(error) => {
                        self.note(format!("cannot write to {name}: {}", rankrun_sys::reason(&error)));
                        self.told.push(Told::Failed);
                    }
                }
            }
        }
    }

    /// All that is due; what waits for quiet only if there is `quiet` now.
    pub(crate) fn tick(&mut self, now: Duration, quiet: bool) {
        if quiet && self.may_be_quiet() && self.slow_at.is_none_or(|slow| now >= slow + RECOVERY) {
            self.presenter.tick(now);
        }
        if self.log_retry.is_some_and(|retry| retry <= now) {
            let result = self.logs.as_mut().map_or(Ok(()), LogFiles::retry);
            self.check_logs(now, result);
        }
        for index in 0..2 {
            if self.full_since[index].is_some_and(|since| now >= since + self.drain) {
                self.full_since[index] = None;
                self.told.push(Told::Failed);
            }
        }
    }

    /// When [`Delivery::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let recovered = self.slow_at.map_or(Duration::ZERO, |slow| slow + RECOVERY);
        let presenter = self.presenter.next_deadline().filter(|_| self.may_be_quiet()).map(|due| due.max(recovered));
        let full = self.full_since.iter().flatten().map(|since| *since + self.drain);
        full.chain(presenter).chain(self.log_retry).min()
    }

    fn check_logs(&mut self, now: Duration, result: Result<(), LogError>) {
        match result {
            Ok(()) => {
                if self.logs.as_ref().is_some_and(|logs| logs.unwritten() == 0) {
                    self.log_retry = None;
                    if self.log_failed_since.take().is_some() {
                        self.note("the log directory takes output again".to_owned());
                    }
                }
            }
            Err(error) => {
                let since = *self.log_failed_since.get_or_insert(now);
                let text = format!("{error}: {}", rankrun_sys::reason(&error.source));
                if now >= since + self.drain {
                    self.note(format!("{text}; giving up"));
                    self.logs = None;
                    self.log_retry = None;
                    self.log_failed_since = None;
                    self.told.push(Told::Failed);
                    return;
                }
                if self.log_retry.is_none() {
                    self.note(format!("{text}; trying again"));
                }
                self.log_retry = Some((now + RETRY).min(since + self.drain));
            }
        }
    }

    fn note(&mut self, text: String) {
        self.told.push(Told::Note(text));
    }

    /// From now on, what a destination that takes nothing was to get goes into a file of this directory.
    pub(crate) fn salvage(&mut self, directory: &Path) -> io::Result<()> {
        std::fs::create_dir_all(directory)?;
        for (index, stream) in Stream::ALL.into_iter().enumerate() {
            let is_stuck = !self.sinks[index].is_idle() && !self.sinks[index].has_failed();
            if !is_stuck {
                continue;
            }
            let file = std::fs::File::create(directory.join(format!("unwritten.{stream}")))?;
            let fresh = Sink::new("salvage", &file, self.waker.handle()?)?;
            let (bytes, settles) = std::mem::replace(&mut self.sinks[index], fresh).abandon();
            self.sinks[index].write(bytes, settles);
            self.full_since[index] = None;
        }
        self.salvaged = Some(directory.to_owned());
        Ok(())
    }

    /// The directory in which output was kept that no destination took.
    pub(crate) fn salvaged(&self) -> Option<&Path> {
        self.salvaged.as_deref()
    }
}
