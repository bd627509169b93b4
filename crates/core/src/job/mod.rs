//! The job: everything that the front decides, as one machine.
//!
//! [`Job::handle`] takes an [`Event`] and appends [`Effect`]s. It has no clock, no connection and no file: the front turns bytes into
//! events and effects into bytes (`front/src/job/`).
//!
//! `machine` has the machine itself: what it holds, and which event leads where. `parts` are its states, each with its own data, which
//! nobody else changes: nodes, attempts, questions to agents. `decisions` has what it does about events, by subject; they use parts, and
//! parts know nothing of the job. `simulation` runs whole jobs in virtual time.
//!
//! | decisions | about |
//! |---|---|
//! | `workers` | what happens to ranks, and what they wrote last |
//! | `muster`, `joining`, `meeting` | how nodes are reached or join, when ranks are started, and where they meet |
//! | `members` | which nodes come back, and when a job grows |
//! | `losses`, `clearing` | which node is silent, suspect, lost; and what is left there |
//! | `between`, `successors` | whether and when all ranks, or one, are started again |
//! | `spawning` | which further groups ranks get (`MPI_Comm_spawn`), and where |
//! | `stopping` | what a signal or a request to stop does, and who has not ended after it |
//! | `status` | what job and ranks are doing, for those who ask |
//! | `states`, `looking`, `hooks`, `alone` | what is asked of the agents, and what their answers mean |
//! | `closing`, `end` | what is waited for when no agent is connected any more, and what is known then |
//!
//! Invariants, which properties test:
//!
//! * **J-1** At most one attempt has ranks that may live: the next begins when those of the last are proved gone or fenced.
//! * **J-2** Every wait has an end (K-5): while the job is not over, [`Job::deadline`] is set, or an answer is due that has a bound elsewhere.
//! * **J-3** The end of a rank counts once in an attempt.
//! * **J-4** Nothing is said to be gone from a node without a proof of that node.
//! * **J-5** No node is told that a rank is gone that lives on it.
//! * **J-6** A job that is made from the same [`Origin`] and given the same [`Input`]s is the same job.

mod decisions;
mod event;
mod inputs;
mod machine;
mod order;
mod parts;
mod refusals;
mod settings;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;

pub use decisions::end::Ended;
pub use decisions::status::Wall;
pub use decisions::stopping::is_by_signal;
pub use event::{Added, AgentEvent, ClientId, Effect, Enrolment, Event, Meeting, NodeCommand, NodeEvent, WorkerEvent};
pub use inputs::{Input, Origin};
pub use machine::{END_BOUND, Job, KILLING_BOUND, Refused};
pub use order::Order;
pub use parts::about::{About, Containment, Summary};
pub use parts::attempts::Stamp;
pub use parts::lines::LastLines;
pub use parts::muster::BEAT;
pub use parts::node::{Lost, Node};
pub use parts::nodes::Nodes;
pub use parts::route::Route;
pub use parts::successors::Next;
pub use parts::words::LastWords;
pub use refusals::NoRestart;
pub use settings::{Grow, Host, Settings, Way, report_of};

pub use crate::spec::job::*;
