//! What a job *is*: ids, the rank map, what to start and how to stop it, the state machines of a worker
//! and of the gang, and the verdict.
//!
//! Nothing here has a clock, a process id table, a file descriptor or a socket. Time comes in as a
//! [`std::time::Duration`] since the start of the job, and what is to be done goes out as values.

mod conclusion;
pub mod job;
mod machines;
pub mod placement;
mod purpose;
mod record;
mod spec;
pub mod stacks;
pub mod top;
pub mod topology;

pub use conclusion::{
    absence, alone, evidence, exit, headline, open_mpi, order, peers, status, stderr, testimony, verdict, window,
};
pub(crate) use conclusion::{
    causes, echoes, endings, error_stack, finding, interrupt, last_words, recognisers, sights, traceback,
};
pub use machines::{
    condition, contact, debts, drain, fence, front_watch, gang, grace, lease, names, node_clock, patience, quiet,
    restart, roster, silence, team, timers, worker,
};
pub use record::{
    advice, attempts, calendar, changes, control, core_dump, event, foreign_codes, hookless, memory, notes, overview,
    past, printable, prometheus, reach, report, result, saved, standing, suggest, text, torchrun_summary, traces,
    usage,
};
pub(crate) use spec::gpus;
pub use spec::{
    collective, env, hosts, ids, interface, open_files, outer, planned, pmix, portable, preload, rankmap, ranks, relay,
    rendezvous, scheduler, segments, spawning, template, trace, travel, units,
};

pub use exit::ExitCode;
pub use ids::{
    AppIndex, Attempt, GangId, GroupId, JobId, LocalRank, NodeId, NodeRank, Pid, Rank, Slot, SpeakerId, Stream,
    WorkerId,
};
pub use job::{App, JobSpec};
pub use purpose::Purpose;
pub use rankmap::RankMap;
pub use ranks::RankSet;
pub use status::WorkerStatus;
pub use template::Template;
