//! A presenter with a clock that the test sets.
#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::time::Duration;

use rankrun_core::{AppIndex, LocalRank, Rank, Stream};
use rankrun_output::{Config, Names, Presenter, Template};

/// 2026-03-01T12:00:00Z, the wall time at the start of every job here.
const EPOCH: Duration = Duration::from_secs(1_772_366_400);

pub(crate) struct Job {
    pub(crate) presenter: Presenter,
    pub(crate) now: Duration,
    out: [Vec<u8>; 2],
}

impl Job {
    pub(crate) fn new(config: Config) -> Job {
        let names = |rank: Rank| Names {
            node: format!("node{}", rank.number() / 2),
            local_rank: LocalRank(rank.number() % 2),
            app: AppIndex(0),
        };
        Job { presenter: Presenter::new(config, names), now: Duration::ZERO, out: Default::default() }
    }

    pub(crate) fn write(&mut self, rank: u32, stream: Stream, bytes: impl AsRef<[u8]>) -> &mut Job {
        self.presenter.output(self.now, EPOCH + self.now, Rank(rank), stream, bytes.as_ref());
        self.take()
    }

    pub(crate) fn out(&mut self, rank: u32, bytes: impl AsRef<[u8]>) -> &mut Job {
        self.write(rank, Stream::Stdout, bytes)
    }

    pub(crate) fn err(&mut self, rank: u32, bytes: impl AsRef<[u8]>) -> &mut Job {
        self.write(rank, Stream::Stderr, bytes)
    }

    /// Lets time pass, with a tick at each deadline.
    pub(crate) fn pass(&mut self, millis: u64) -> &mut Job {
        let end = self.now + Duration::from_millis(millis);
        while let Some(due) = self.presenter.next_deadline()
            && due <= end
        {
            self.now = self.now.max(due);
            self.presenter.tick(self.now);
            self.take();
        }
        self.now = end;
        self
    }

    pub(crate) fn close(&mut self, rank: u32) -> &mut Job {
        for stream in Stream::ALL {
            self.presenter.closed(self.now, Rank(rank), stream);
        }
        self.take()
    }

    pub(crate) fn finish(&mut self) -> &mut Job {
        while self.presenter.finish(self.now) {
            assert!(self.presenter.pending(Stream::Stdout).len() <= 5 << 20, "too much at once");
            self.take();
        }
        self.take()
    }

    pub(crate) fn take(&mut self) -> &mut Job {
        for stream in Stream::ALL {
            self.out[stream.index()].append(self.presenter.pending(stream));
        }
        self
    }

    /// All that went to stdout since this was last asked.
    pub(crate) fn stdout_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out[0])
    }

    pub(crate) fn stderr_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out[1])
    }

    pub(crate) fn stdout(&mut self) -> String {
        String::from_utf8_lossy(&self.stdout_bytes()).into_owned()
    }

    pub(crate) fn stderr(&mut self) -> String {
        String::from_utf8_lossy(&self.stderr_bytes()).into_owned()
    }
}

pub(crate) fn tagged(config: Config) -> Config {
    Config { tag: Some(Template::default()), ..config }
}
