//! Guard and agent of this machine, which start while the command line is still being read.

use rankrun_agent::{Launched, Options, Seat, Terms};
use rankrun_core::JobId;
use rankrun_sys::{errand, fork};

/// Guard and agent that wait for the plan of their job (docs/adr/0035-prepared-before-the-plan.md). Nothing of it is on the machine yet.
/// If they are dropped, both end, and that is waited for.
#[derive(Debug)]
pub struct Prepared {
    pair: rankrun_agent::Prepared,
}

impl Prepared {
    /// Forks both. The calling process must have one thread.
    pub fn new(job: &JobId, options: Options) -> std::io::Result<Prepared> {
        Prepared::in_seat(job, options, Seat::OwnSession)
    }

    /// The same, with an agent that sits elsewhere.
    pub(super) fn in_seat(job: &JobId, options: Options, seat: Seat) -> std::io::Result<Prepared> {
        fork::become_subreaper()?;
        Ok(Prepared { pair: rankrun_agent::prepare(job, options, seat)? })
    }

    /// The job that they were made for.
    pub fn job(&self) -> &JobId {
        self.pair.job()
    }

    /// The agent sets itself up. Returns both, and the children of this process that have nothing to do with the job.
    pub(super) fn begin(self, terms: Terms) -> (Launched, Vec<i32>) {
        let strangers = [self.pair.strangers(), &errand::staying()].concat();
        (self.pair.begin(terms), strangers)
    }
}
