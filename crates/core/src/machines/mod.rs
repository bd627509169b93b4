//! State machines: of a worker, of the workers of one agent, of the gang, of its attempts, and of the lease between agent
//! and guard.

pub mod condition;
pub mod gang;
pub mod grace;
pub mod lease;
pub mod restart;
pub mod team;
pub mod timers;
pub mod worker;
