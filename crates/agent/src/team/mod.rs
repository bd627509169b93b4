//! The groups of ranks on this node. A team is one group in one attempt: the machine that decides ([`rankrun_core::team`]), and what is
//! needed to perform its effects.

mod conclude;
mod effects;
mod ends;
mod error_files;
mod forks;
mod hands;
mod hooks;
mod killed;
mod looking;
mod measuring;
mod mpi;
mod orders;
mod output;
mod pmix;
mod prepare;
mod profiling;
mod site;
mod slot;
mod spawner;
mod speakers;
mod start;
mod state;
mod stdin;
mod teams;
mod testimony;

pub(crate) use hands::Hands;
pub(crate) use prepare::Inherited;
pub(crate) use site::Site;
pub(crate) use spawner::Spawners;
pub(crate) use state::Team;
pub(crate) use teams::Teams;
