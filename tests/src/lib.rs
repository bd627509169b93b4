//! Harness of the black-box tests: the real binary, real processes, real peers.
//!
//! Every [`Job`] runs below a process of its own, `reaper`, which is a child subreaper: whatever the job leaves
//! behind becomes its child, however often it forked and whatever it called. "Nothing is left" is therefore not a
//! search but a fact of the kernel: the reaper has no child any more. It also dates the end of the front and the end
//! of the last process with the same clock, so that bounds on time do not depend on how fast a test polls.

mod browser;
pub mod cases;
mod environment;
pub mod failures;
pub mod hangs;
mod helper;
pub mod hosts;
mod job;
mod journal;
pub mod leftovers;
pub mod lines;
mod listing;
pub mod looks;
pub mod matrix;
pub mod processes;
mod pty;
mod random;
pub mod screen;
mod skip;
mod tier;
mod time;
pub mod web;

pub use browser::Browser;
pub use environment::{Environment, compile, open_mpi_4, scratch, scratch_in, with_own_shared_memory};
pub use helper::{helper, rankrun, shared_directory};
pub use hosts::{Cut, Host, Hosts, Plan, Slurm};
pub use job::{Ended, Job, Running, Stdin, User};
pub use listing::listed_job;
pub use pty::Pty;
pub use random::{Random, seeds};
pub use skip::{full_scale, in_time, is_loaded, skip, slowness};
pub use tier::Tier;
pub use time::{monotonic, pause, wait_until};
