//! What a process that rankrun starts of its own binary is there for.

/// The role of a process of rankrun that no user has called. Its first argument says it, in a form that no program and no command of the
/// command line has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
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
const PREFIX: &str = "--role=";

impl Role {
    const ALL: [Role; 12] = [
        Role::PmixHost,
        Role::Looker,
        Role::Meter,
        Role::Sampler,
        Role::Reader,
        Role::Relay,
        Role::SlurmNode,
        Role::CommandHost,
        Role::Successor,
        Role::Heir,
        Role::Storage,
        Role::MpiProbe,
    ];

    /// The first argument of a process with this role.
    pub const fn argument(self) -> &'static str {
        match self {
            Role::PmixHost => "--role=pmix-host",
            Role::Looker => "--role=stack-looker",
            Role::Meter => "--role=rank-meter",
            Role::Sampler => "--role=stack-sampler",
            Role::Reader => "--role=file-reader",
            Role::Relay => "--role=relay",
            Role::SlurmNode => "--role=slurm-node",
            Role::CommandHost => "--role=command-host",
            Role::Successor => "--role=successor",
            Role::Heir => "--role=heir",
            Role::Storage => "--role=storage",
            Role::MpiProbe => "--role=mpi-probe",
        }
    }

    /// The role that the first argument of a process says, if it does.
    pub fn of_argument(argument: &[u8]) -> Option<Role> {
        if !argument.starts_with(PREFIX.as_bytes()) {
            return None;
        }
        Role::ALL.into_iter().find(|role| role.argument().as_bytes() == argument)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_is_found_by_its_argument_and_nothing_else_is() {
        for role in Role::ALL {
            assert!(role.argument().starts_with(PREFIX));
            assert_eq!(Role::of_argument(role.argument().as_bytes()), Some(role));
        }
        for other in ["relay", "heir", "--role", "--role=", "--role=front", "-role=heir"] {
            assert_eq!(Role::of_argument(other.as_bytes()), None);
        }
    }
}
