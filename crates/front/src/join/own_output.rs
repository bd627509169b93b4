//! What the ranks of this node write, on this node's own stdout and stderr: the front has it too.
//!
//! A thread writes it, since these streams may block. A destination that takes nothing must not stop the ranks, and the front has
//! everything: here the rest is then left out, and counted.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rankrun_core::{Rank, Stream};
use rankrun_output::{Config, Names, Presenter};
use rankrun_wire::frame::OutputHead;

use crate::delivery::{LAST_BYTES, last_lines};

/// Pieces that wait for the thread, 64 KiB at most each. When it is full, output is left out.
const PIECES: usize = 128;
/// The ranks' output, on its way to our own stdout and stderr.
pub(crate) struct OwnOutput {
    presenter: Presenter,
    sender: Option<SyncSender<(Stream, Vec<u8>)>>,
    thread: Option<JoinHandle<()>>,
    /// Bytes that were left out since the last note.
    left_out: u64,
    last: LastLines,
}

impl OwnOutput {
    /// Starts the thread.
    pub(crate) fn new(config: Config, names: impl Fn(Rank) -> Names + Send + 'static) -> io::Result<OwnOutput> {
        let (sender, receiver) = sync_channel(PIECES);
        let thread = std::thread::Builder::new().name("output".to_owned()).spawn(move || write_all(&receiver))?;
        Ok(OwnOutput {
            presenter: Presenter::new(config, names),
            sender: Some(sender),
            thread: Some(thread),
            left_out: 0,
            last: LastLines::default(),
        })
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

    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.presenter.next_deadline()
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
            let Some(sender) = &self.sender else { continue };
            match sender.try_send((stream, bytes)) {
                Ok(()) => {}
                Err(TrySendError::Full((_, bytes)) | TrySendError::Disconnected((_, bytes))) => {
                    self.left_out += bytes.len() as u64;
                }
            }
        }
    }

    /// The end: writes what is left, and returns the last lines. A destination that takes nothing keeps us for `bound` at most.
    pub(crate) fn finish(mut self, now: Duration, bound: Duration) -> Vec<u8> {
        while self.presenter.finish(now) {
            self.hand_on();
        }
        self.hand_on();
        if self.left_out > 0 {
            let text =
                format!("{} bytes of the output of this node were not written here; node 0 has them", self.left_out);
            self.note(now, &text);
        }
        self.sender = None;
        let until = std::time::Instant::now() + bound;
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() && std::time::Instant::now() < until {
                let step = rustix::event::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                // An interrupted wait is repeated.
                let _ = rustix::event::poll(&mut [], Some(&step));
            }
        }
        self.last.take()
    }
}

fn write_all(receiver: &Receiver<(Stream, Vec<u8>)>) {
    while let Ok((stream, bytes)) = receiver.recv() {
        // A reader that is gone wants no more. The front has all of it.
        let _ = match stream {
            Stream::Stdout => io::stdout().write_all(&bytes).and_then(|()| io::stdout().flush()),
            Stream::Stderr => io::stderr().write_all(&bytes),
        };
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
