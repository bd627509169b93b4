//! One rank, and how it differs from the others.

use crate::condition::Doing;
use crate::control::RankStatus;
use crate::ids::Rank;
use crate::top::bars::Bar;

/// How a rank differs from the others: the first that holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// It has ended, and did not succeed.
    Dead,
    /// All its processes are stopped.
    Stopped,
    /// It takes much less CPU time.
    Idle,
    /// It has made much less progress.
    Behind,
    /// It has written nothing for far longer.
    Silent,
}

impl Mark {
    pub fn name(self) -> &'static str {
        match self {
            Mark::Dead => "dead",
            Mark::Stopped => "stopped",
            Mark::Idle => "idle",
            Mark::Behind => "behind",
            Mark::Silent => "silent",
        }
    }

    /// The worst first.
    pub(super) fn order(self) -> u8 {
        self as u8
    }
}

/// One rank, as it is shown.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    pub status: RankStatus,
    /// CPU time a second, in percent of one CPU, between the last two measurements; and over the last few.
    pub cpu: Option<f64>,
    pub steady_cpu: Option<f64>,
    /// Bytes a second from and to storage.
    pub read: Option<f64>,
    pub written: Option<f64>,
    /// Its progress bar.
    pub bar: Option<Bar>,
    /// For how long it has written nothing, in seconds; `None` if it never wrote.
    pub silence: Option<f64>,
    /// How it differs from the others.
    pub mark: Option<Mark>,
}

impl Row {
    pub fn rank(&self) -> Rank {
        self.status.rank
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> Option<u64> {
        self.status.usage.as_ref().map(|usage| usage.memory)
    }

    /// Percent of the time in which the GPUs of the rank worked for it: of the busiest one.
    pub fn gpu(&self) -> Option<u32> {
        self.status.usage.as_ref()?.gpus.iter().filter_map(|gpu| gpu.busy).max()
    }

    /// Memory of GPUs that the rank has, in bytes.
    pub fn gpu_memory(&self) -> Option<u64> {
        let memory = self.status.usage.as_ref()?.gpus.iter().filter_map(|gpu| gpu.memory);
        memory.reduce(|sum, memory| sum.saturating_add(memory))
    }

    pub fn is_stopped(&self) -> bool {
        self.status.usage.as_ref().is_some_and(|usage| usage.is_stopped)
    }

    /// Whether its program runs, and nobody is ending it.
    pub fn is_running(&self) -> bool {
        self.status.state == Doing::Running
    }

    /// Whether it ended, and did not succeed.
    pub fn has_failed(&self) -> bool {
        let is_over = matches!(self.status.state, Doing::Ended | Doing::Waiting);
        is_over && self.status.why.as_deref() != Some("exit 0")
    }

    /// Its state in a word.
    pub fn state(&self) -> &'static str {
        match self.status.state {
            Doing::Running if self.is_stopped() => "stopped",
            Doing::NotStarted => "unstarted",
            Doing::Starting => "starting",
            Doing::Running => "running",
            Doing::Stopping if self.status.is_saving => "saving",
            Doing::Stopping => "stopping",
            Doing::Lingering => "lingering",
            Doing::Terminating => "ending",
            Doing::DumpingCore => "core dump",
            Doing::Killing => "killing",
            Doing::Ended if self.has_failed() => "failed",
            Doing::Ended => "ended",
            Doing::Waiting => "waiting",
        }
    }
}
