//! What the ranks of this node write, on this node's own stdout and stderr: the front has it too.
//!
//! A thread writes it, since these streams may block. A destination that takes next to nothing must not stop the ranks, and the front has
//! everything: here the rest is then left out, and counted ([`Backlog`]).

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rankrun_core::backlog::Backlog;
use rankrun_core::{Rank, Stream};
use rankrun_output::{Config, Names, Presenter};
use rankrun_sys::signal::SignalFd;
use rankrun_wire::frame::OutputHead;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::dial::asked_to_end;
use crate::delivery::{LAST_BYTES, last_lines};

/// Pieces that the thread may have at a time, and their size where more wait.
const PIECES: usize = 16;
const PIECE: usize = 256 * 1024;
/// Bytes that are written at a time: a slow reader is seen to take some.
const AT_ONCE: usize = 16 * 1024;
/// How often to look whether the thread has written something, where that is waited for.
const STEP: Duration = Duration::from_millis(2);

/// The ranks' output, on its way to our own stdout and stderr.
pub(crate) struct OwnOutput {
    presenter: Presenter,
    sender: Option<SyncSender<(Stream, Vec<u8>)>>,
    thread: Option<JoinHandle<()>>,
    /// What the thread has no room for.
    queue: VecDeque<(Stream, Vec<u8>)>,
    /// Bytes that are not written, in the queue and with the thread.
    waiting: Arc<AtomicUsize>,
    backlog: Backlog,
    /// Bytes that were left out.
    left_out: u64,
    last: LastLines,
}

impl OwnOutput {
    /// Starts the thread.
    pub(crate) fn new(config: Config, names: impl Fn(Rank) -> Names + Send + 'static) -> io::Result<OwnOutput> {
        let (sender, receiver) = sync_channel(PIECES);
        let waiting = Arc::new(AtomicUsize::new(0));
        let of_thread = Arc::clone(&waiting);
        let write = move || write_all(&receiver, &of_thread);
        let thread = std::thread::Builder::new().name("output".to_owned()).spawn(write)?;
        Ok(OwnOutput {
            presenter: Presenter::new(config, names),
            sender: Some(sender),
            thread: Some(thread),
            queue: VecDeque::new(),
            waiting,
            backlog: Backlog::default(),
            left_out: 0,
            last: LastLines::default(),
        })
    }

    /// Whether more may come.
    pub(crate) fn hears(&mut self, now: Duration) -> bool {
        self.backlog = self.backlog.look(now, self.waiting.load(Ordering::Acquire));
        self.backlog.hears()
    }

    /// A rank has written.
    pub(crate) fn output(&mut self, now: Duration, head: OutputHead, bytes: &[u8]) {
        self.presenter.output(now, head.at, head.worker.rank, head.stream, bytes);
        self.hand_on();
    }

    /// For the user.
    pub(crate) fn note(&mut self, now: Duration, text: &str) {
        self.presenter.notice(now, text);
        self.hand_on();
    }

    pub(crate) fn deadline(&self, now: Duration) -> Option<Duration> {
        let look = (!self.queue.is_empty() || !self.backlog.hears()).then(|| now + STEP);
        self.presenter.next_deadline().into_iter().chain(look).min()
    }

    pub(crate) fn tick(&mut self, now: Duration) {
        self.presenter.tick(now);
        self.hand_on();
    }

    fn hand_on(&mut self) {
        for stream in Stream::ALL {
            let pending = self.presenter.pending(stream);
            if pending.is_empty() {
                continue;
            }
            let bytes = std::mem::take(pending);
            self.last.add(&bytes);
            let waiting = self.waiting.load(Ordering::Acquire);
            if !self.backlog.keeps(waiting) {
                self.left_out += bytes.len() as u64;
                continue;
            }
            self.waiting.fetch_add(bytes.len(), Ordering::AcqRel);
            match self.queue.back_mut() {
                Some((last, piece)) if *last == stream && piece.len() + bytes.len() <= PIECE => piece.extend(bytes),
                Some(_) | None => self.queue.push_back((stream, bytes)),
            }
        }
        self.pump();
    }

    /// Gives the thread what it has room for.
    fn pump(&mut self) {
        let Some(sender) = &self.sender else { return };
        while let Some(piece) = self.queue.pop_front() {
            // The thread lives as long as we do.
            if let Err(TrySendError::Full(piece) | TrySendError::Disconnected(piece)) = sender.try_send(piece) {
                self.queue.push_front(piece);
                return;
            }
        }
    }

    /// The end: writes what is left, and returns the last lines. A destination that takes nothing keeps us for `bound` at most, and none any
    /// longer when a signal has come.
    pub(crate) fn finish(mut self, now: Duration, bound: Duration, signals: &SignalFd) -> Vec<u8> {
        while self.presenter.finish(now) {
            self.hand_on();
        }
        self.hand_on();
        if self.left_out > 0 {
            let text =
                format!("{} bytes of the output of this node were not written here; node 0 has them", self.left_out);
            // It is not for the destination that is full alone.
            self.backlog = Backlog::Open;
            self.note(now, &text);
        }
        let (mut until, mut waiting) = (Instant::now() + bound, usize::MAX);
        let Some(thread) = self.thread.take() else { return self.last.take() };
        while !thread.is_finished() && Instant::now() < until {
            self.pump();
            self.sender.take_if(|_| self.queue.is_empty());
            let before = std::mem::replace(&mut waiting, self.waiting.load(Ordering::Acquire));
            if waiting < before {
                until = Instant::now() + bound;
            }
            let step = Timespec { tv_sec: 0, tv_nsec: i64::from(STEP.subsec_nanos()) };
            // An interrupted wait is only shorter.
            let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&step));
            if asked_to_end(signals).is_some() {
                break;
            }
        }
        self.last.take()
    }
}

fn write_all(receiver: &Receiver<(Stream, Vec<u8>)>, waiting: &AtomicUsize) {
    while let Ok((stream, bytes)) = receiver.recv() {
        for bytes in bytes.chunks(AT_ONCE) {
            // A reader that is gone wants no more. The front has all of it.
            let _ = match stream {
                Stream::Stdout => io::stdout().write_all(bytes).and_then(|()| io::stdout().flush()),
                Stream::Stderr => io::stderr().write_all(bytes),
            };
            waiting.fetch_sub(bytes.len(), Ordering::AcqRel);
        }
    }
}

/// The last lines that were written.
#[derive(Debug, Default)]
struct LastLines(VecDeque<u8>);

impl LastLines {
    fn add(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(LAST_BYTES)..];
        self.0.extend(bytes);
        let excess = self.0.len().saturating_sub(LAST_BYTES);
        self.0.drain(..excess);
    }

    fn take(self) -> Vec<u8> {
        let bytes = Vec::from(self.0);
        last_lines(&bytes).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_twenty_lines_are_kept() {
        let mut last = LastLines::default();
        for number in 0..100 {
            last.add(format!("line {number}\n").as_bytes());
        }
        let text = String::from_utf8(last.take()).expect("UTF-8");
        assert_eq!((text.lines().next(), text.lines().count()), (Some("line 80"), 20));
        let mut few = LastLines::default();
        few.add(b"one\ntwo");
        assert_eq!(few.take(), b"one\ntwo");
        let mut long = LastLines::default();
        long.add(&[b'x'; 10_000]);
        assert_eq!(long.take().len(), LAST_BYTES);
    }
}
