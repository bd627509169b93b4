//! Starts guard and agent on a node.

use std::io;

use rankrun_agent::{Launched, Options};
use rankrun_core::JobId;

/// A way to start guard and agent on a node, and to reach the agent.
pub(crate) trait Bootstrap {
    /// Starts both. Returns the stream to the agent, and what the front needs to do the guard's work if the guard is
    /// lost.
    fn start(&mut self, job: &JobId) -> io::Result<Launched>;
}

/// On this machine: both are forked. The calling process must have one thread.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    /// The settings of the agent.
    pub(crate) options: Options,
}

impl Bootstrap for Local {
    fn start(&mut self, job: &JobId) -> io::Result<Launched> {
        rankrun_agent::launch(job, self.options.clone())
    }
}
