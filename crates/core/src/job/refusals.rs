//! Why a job does not do what it is asked.

/// Why a job is not restarted, although somebody asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRestart {
    /// It is coming to its end.
    Ending,
    /// A rank has failed, and the restart policy has not decided yet whether another attempt follows.
    Failing,
    /// It has been asked for already.
    Restarting,
    /// Each rank is restarted by itself.
    OfRanks,
}
