//! State machines: of a worker, of the workers of one agent, of the gang, of its attempts and the wait between two of them, of the nodes that join, and of the lease
//! between agent and guard and of silence between front and agents; the names that its ranks have published, and the clocks of nodes, on which the times of events are read;
//! and how long rankrun's own processes are waited for.

pub mod condition;
pub mod contact;
pub mod debts;
pub mod drain;
pub mod fence;
pub mod front_watch;
pub mod gang;
pub mod grace;
pub mod lease;
pub mod names;
pub mod node_clock;
pub mod patience;
pub mod quiet;
pub mod restart;
pub mod roster;
pub mod silence;
pub mod team;
pub mod timers;
pub mod worker;
