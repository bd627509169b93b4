//! What the ranks of this node write, on this node's own stdout and stderr: the front has it too.
//!
//! A destination that takes too little must not stop the ranks, and the front has everything: here the rest is then left out, and counted.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use rankrun_core::{Rank, Stream};
use rankrun_output::{Config, Names, Presenter};
use rankrun_sys::poll::{Waker, wait_for};
use rankrun_sys::signal::SignalFd;
use rankrun_wire::frame::OutputHead;
use rustix::event::{PollFd, PollFlags};

use super::dial::asked_to_end;
use crate::delivery::{LAST_BYTES, News, Sink, THREAD_RETRY, last_lines};

/// Bytes that may wait for each destination.
const MOST: usize = 64 << 20;
/// How often to look whether a destination has taken a part of what it was given.
const LOOK: Duration = Duration::from_millis(100);
/// How long stderr may take for the last note.
const NOTE_BOUND: Duration = Duration::from_millis(200);

/// The ranks' output, on its way to our own stdout and stderr.
pub(crate) struct OwnOutput {
    presenter: Presenter,
    sinks: [Sink; 2],
    /// Wakes us when a sink has written something.
    waker: Waker,
    /// What waits for each sink.
    queues: [Queue; 2],
    /// Both streams lead to one place: the first sink has them.
    is_shared: bool,
    /// Who has written.
    sources: BTreeSet<(Rank, Stream)>,
    /// Bytes that were left out.
    left_out: usize,
    last: LastLines,
    /// The time of the last turn.
    now: Duration,
}

/// How long destinations may take for the last output: in all, and for a part of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) total: Duration,
    pub(crate) silence: Duration,
}

impl OwnOutput {
    /// What writes wakes the loop through `waker`.
    pub(crate) fn new(
        config: Config,
        names: impl Fn(Rank) -> Names + Send + 'static,
        waker: Waker,
    ) -> io::Result<OwnOutput> {
        let sinks = [
            Sink::new("stdout", rustix::stdio::stdout(), waker.clone())?,
            Sink::new("stderr", rustix::stdio::stderr(), waker.clone())?,
        ];
        Ok(OwnOutput {
            sinks,
            waker,
            queues: Default::default(),
            is_shared: config.same_destination,
            sources: BTreeSet::new(),
            left_out: 0,
            last: LastLines::default(),
            now: Duration::ZERO,
            presenter: Presenter::new(config, names),
        })
    }

    /// A rank has written.
    pub(crate) fn output(&mut self, now: Duration, head: OutputHead, bytes: &[u8]) {
        self.sources.insert((head.worker.rank, head.stream));
        self.presenter.output(now, head.at, head.worker.rank, head.stream, bytes);
        self.hand_on();
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        let lacks_thread = self.sinks.iter().any(Sink::lacks_thread);
        self.presenter.next_deadline().into_iter().chain(lacks_thread.then_some(self.now + THREAD_RETRY)).min()
    }

    pub(crate) fn tick(&mut self, now: Duration) {
        self.now = now;
        self.sinks.iter_mut().for_each(|sink| drop(sink.retry()));
        self.presenter.tick(now);
        self.hand_on();
    }

    /// A sink has news.
    pub(crate) fn ready(&mut self, now: Duration) {
        self.waker.clear();
        for index in 0..2 {
            let name = Stream::ALL[index];
            self.sinks[index].retry();
            while let Some(news) = self.sinks[index].next_news() {
                let note = match news {
                    News::Written { .. } => continue,
                    News::Full(error) => format!("rankrun: {name}: {}; trying again", rankrun_sys::reason(&error)),
                    News::Recovered => format!("rankrun: {name} takes output again"),
                    // A reader that is gone wants no more.
                    News::Failed(error) if error.kind() == io::ErrorKind::BrokenPipe => continue,
                    News::Failed(error) => {
                        let why = rankrun_sys::reason(&error);
                        format!("rankrun: cannot write to {name}: {why}; node 0 has all output")
                    }
                };
                self.presenter.notice(now, &note);
            }
        }
        self.hand_on();
    }

    fn hand_on(&mut self) {
        for stream in Stream::ALL {
            let pending = self.presenter.pending(stream);
            if pending.is_empty() {
                continue;
            }
            self.last.add(pending);
            let index = if self.is_shared { 0 } else { stream.index() };
            if !self.sinks[index].has_failed() {
                self.left_out += self.queues[index].push(pending);
            }
            pending.clear();
        }
        for (sink, queue) in self.sinks.iter_mut().zip(&mut self.queues) {
            if sink.has_room() && !queue.bytes.is_empty() {
                // What was taken at once is no news here.
                let _ = sink.write(std::mem::take(&mut queue.bytes), [0, 0]);
            }
        }
    }

    /// Bytes that are not written.
    fn unwritten(&self) -> usize {
        self.sinks.iter().zip(&self.queues).map(|(sink, queue)| sink.unwritten() + queue.bytes.len()).sum()
    }

    /// The end: writes what is left, and returns the last lines, and a signal that has come meanwhile: then nothing is waited for.
    pub(crate) fn finish(mut self, now: Duration, bounds: Bounds, signals: &SignalFd) -> (Vec<u8>, Option<i32>) {
        for (rank, stream) in std::mem::take(&mut self.sources) {
            self.presenter.closed(now, rank, stream);
        }
        while self.presenter.finish(now) {
            self.hand_on();
        }
        self.hand_on();
        let signal = self.write_rest(now, bounds, signals);
        self.left_out += self.unwritten();
        // Who does not take the output may take no note either.
        let stderr = if self.is_shared { 0 } else { Stream::Stderr.index() };
        if self.left_out > 0 && self.sinks[stderr].is_idle() {
            self.queues = Default::default();
            let left_out = self.left_out;
            let text =
                format!("rankrun: {left_out} bytes of the output of this node were not written here; node 0 has them");
            self.presenter.notice(now, &text);
            self.hand_on();
            self.write_rest(now, Bounds { total: NOTE_BOUND, silence: NOTE_BOUND }, signals);
        }
        (self.last.take(), signal)
    }

    /// Writes what waits, as long as the destinations have. Returns a signal that has come, after which nothing is waited for.
    fn write_rest(&mut self, now: Duration, bounds: Bounds, signals: &SignalFd) -> Option<i32> {
        let end = Instant::now() + bounds.total;
        let (mut until, mut unwritten) = (end, usize::MAX);
        loop {
            self.ready(now);
            let before = std::mem::replace(&mut unwritten, self.unwritten());
            if unwritten < before {
                until = end.min(Instant::now() + bounds.silence);
            }
            let rest = until.saturating_duration_since(Instant::now()).min(LOOK);
            if unwritten == 0 || rest.is_zero() {
                return None;
            }
            let mut ends = [PollFd::new(signals, PollFlags::IN), PollFd::new(&self.waker, PollFlags::IN)];
            wait_for(&mut ends, Some(rest));
            if let Some(signal) = asked_to_end(signals) {
                return Some(signal);
            }
        }
    }
}

/// What waits for a sink. When it is full, whole lines are left out until there is room again.
#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    /// What was pushed last was not the end of a line.
    is_in_line: bool,
    is_full: bool,
}

impl Queue {
    /// Adds what there is room for. Returns how many bytes were left out.
    fn push(&mut self, bytes: &[u8]) -> usize {
        let was_in_line = std::mem::replace(&mut self.is_in_line, !bytes.ends_with(b"\n"));
        let end_of_line = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        // The line that is under way: it is left out, or kept, as a whole.
        let (line, lines) = bytes.split_at(if was_in_line { end_of_line } else { 0 });
        let has_room = self.bytes.len() + lines.len() <= if self.is_full { MOST / 2 } else { MOST };
        let mut left_out = 0;
        match self.is_full {
            false => self.bytes.extend_from_slice(line),
            true => left_out += line.len(),
        }
        let is_line_over = !was_in_line || line.ends_with(b"\n");
        match has_room {
            true if is_line_over => {
                self.bytes.extend_from_slice(lines);
                self.is_full = false;
            }
            true => {}
            false => {
                left_out += lines.len();
                if !self.is_full && !is_line_over {
                    // It has no end yet, and there is no room for it.
                    self.bytes.push(b'\n');
                }
                self.is_full = true;
            }
        }
        left_out
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
    fn a_queue_that_is_full_leaves_out_whole_lines() {
        let mut random = 7_u64;
        let mut next = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % most
        };
        let (mut queue, mut read, mut left_out, mut given) = (Queue::default(), Vec::new(), 0, 0);
        let (mut text, mut number) = (String::new(), 0);
        for round in 0..600 {
            while text.len() < 2 << 20 {
                text.push_str(&format!("{number} {}\n", "x".repeat(next(200) as usize)));
                number += 1;
            }
            let rest = text.split_off(next(text.len() as u64) as usize);
            given += text.len();
            left_out += queue.push(text.as_bytes());
            text = rest;
            assert!(queue.bytes.len() <= MOST + (1 << 20), "{}", queue.bytes.len());
            if round % 200 > 150 {
                read.append(&mut queue.bytes);
            }
        }
        read.append(&mut queue.bytes);
        assert!(left_out > 0 && read.len() + left_out <= given + 600);
        let read = String::from_utf8(read).expect("ASCII");
        let is_whole = |line: &str| {
            let (number, rest) = line.split_once(' ').unwrap_or_default();
            number.parse::<u64>().is_ok() && rest.bytes().all(|byte| byte == b'x')
        };
        let lines: Vec<&str> = read.lines().collect();
        assert!(lines[..lines.len() - 1].iter().all(|line| is_whole(line)));
    }

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
