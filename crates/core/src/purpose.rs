//! What a process that rankrun starts of its own binary is there for.

/// What a process of rankrun that no user has called is for. Its first argument says it, in a form that no program and no command of the
/// command line has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Serves PMIx for an agent.
    PmixHost,
    /// Looks at the stacks of a node's ranks.
    Looker,
    /// Measures what a node's ranks use.
    Meter,
    /// Samples the stacks of a node's ranks.
    Sampler,
    /// Reads the files that a node's ranks leave.
    Reader,
    /// Stands on another host between the front and the agent there.
    Relay,
    /// Is the node of a host of Slurm.
    SlurmNode,
    /// Runs a command of the user for the front.
    CommandHost,
    /// Goes on with the job of a front that is gone.
    Successor,
    /// Waits until the front is gone.
    Heir,
    /// Writes files for the front.
    Storage,
    /// Asks a library of MPI for its version.
    MpiProbe,
}

/// How the argument begins.
const PREFIX: &str = "--as=";

impl Purpose {
    const ALL: [Purpose; 12] = [
        Purpose::PmixHost,
        Purpose::Looker,
        Purpose::Meter,
        Purpose::Sampler,
        Purpose::Reader,
        Purpose::Relay,
        Purpose::SlurmNode,
        Purpose::CommandHost,
        Purpose::Successor,
        Purpose::Heir,
        Purpose::Storage,
        Purpose::MpiProbe,
    ];

    /// The first argument of a process with this purpose.
    pub const fn argument(self) -> &'static str {
        match self {
            Purpose::PmixHost => "--as=pmix-host",
            Purpose::Looker => "--as=stack-looker",
            Purpose::Meter => "--as=rank-meter",
            Purpose::Sampler => "--as=stack-sampler",
            Purpose::Reader => "--as=file-reader",
            Purpose::Relay => "--as=relay",
            Purpose::SlurmNode => "--as=slurm-node",
            Purpose::CommandHost => "--as=command-host",
            Purpose::Successor => "--as=successor",
            Purpose::Heir => "--as=heir",
            Purpose::Storage => "--as=storage",
            Purpose::MpiProbe => "--as=mpi-probe",
        }
    }

    /// The purpose that the first argument of a process says, if it does.
    pub fn of_argument(argument: &[u8]) -> Option<Purpose> {
        if !argument.starts_with(PREFIX.as_bytes()) {
            return None;
        }
        Purpose::ALL.into_iter().find(|purpose| purpose.argument().as_bytes() == argument)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_purpose_is_found_by_its_argument_and_nothing_else_is() {
        for purpose in Purpose::ALL {
            assert!(purpose.argument().starts_with(PREFIX));
            assert_eq!(Purpose::of_argument(purpose.argument().as_bytes()), Some(purpose));
        }
        for other in ["relay", "heir", "--as", "--as=", "--as=front", "-as=heir"] {
            assert_eq!(Purpose::of_argument(other.as_bytes()), None);
        }
    }
}
