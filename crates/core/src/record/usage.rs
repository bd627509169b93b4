//! What the processes of a rank use of their machine, as an agent measures it for `rankrun top`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What the processes of a worker use. Counters begin at an arbitrary value: only their differences count.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time: a counter.
    pub cpu: Duration,
    /// Resident memory in bytes. Pages that several processes share count once for each.
    pub memory: u64,
    /// Bytes read from and written to storage: counters. `None` where the kernel does not say.
    pub read: Option<u64>,
    pub written: Option<u64>,
    pub processes: u32,
    pub threads: u32,
    /// All processes are stopped, by SIGSTOP or a debugger.
    pub is_stopped: bool,
    pub gpus: Vec<GpuUsage>,
}

/// What a rank uses of a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GpuUsage {
    /// The number of the GPU on its node, as the driver counts.
    pub index: u32,
    /// Percent of the last sampling period in which a kernel of the rank ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<u32>,
    /// Memory of the GPU that the rank has, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
}

/// When, on the job's clock, and what was measured.
pub type Measured = (Duration, Usage);
