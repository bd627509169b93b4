//! What a job *is*: ids, the rank map, what to start and how to stop it, the state machines of a worker
//! and of the gang, and the verdict.
//!
//! Nothing here has a clock, a process id table, a file descriptor or a socket. Time comes in as a
//! [`std::time::Duration`] since the start of the job, and what is to be done goes out as values.

pub mod env;
pub mod event;
pub mod evidence;
pub mod exit;
pub mod gang;
pub mod ids;
pub mod job;
pub mod lease;
pub mod printable;
pub mod rankmap;
pub mod ranks;
pub mod report;
pub mod status;
pub mod stderr;
pub mod suggest;
pub mod team;
pub mod testimony;
pub mod timers;
pub mod units;
pub mod verdict;
pub mod worker;

pub use exit::ExitCode;
pub use ids::{AppIndex, Attempt, GroupId, JobId, LocalRank, NodeRank, Pid, Rank, Slot, SpeakerId, Stream, WorkerId};
pub use job::{App, JobSpec};
pub use rankmap::RankMap;
pub use ranks::RankSet;
pub use status::WorkerStatus;
