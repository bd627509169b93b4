//! What a descriptor of the agent's poll set belongs to.

use rankrun_core::{GroupId, Slot, Stream};
use rankrun_sys::kinds;

use crate::children::ServerId;

/// A worker's place on this node: its group, and its slot in the team of that group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) group: GroupId,
    pub(crate) slot: Slot,
}

impl Place {
    /// A token has 56 bits for it: no job has 2^24 groups.
    fn number(self) -> u64 {
        u64::from(self.group.0) << u32::BITS | u64::from(self.slot.0)
    }

    fn of(number: u64) -> Place {
        Place { group: GroupId((number >> u32::BITS) as u32), slot: Slot(number as u32) }
    }
}

/// The owner of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token {
    Front,
    Signals,
    Spawner,
    Io,
    Lease,
    /// The thread that watches /dev/shm.
    Memory,
    Output(Place, Stream),
    Pmi(Place),
    Stdin(Place),
    Boundary(Place),
    WorkerSocket,
    WorkerClient(usize),
    KernelLog,
    /// The socket that ranks of Open MPI connect to, the connection to the PMIx host, and its stderr.
    Pmix,
    PmixHost,
    PmixErrors,
    /// Where torch's store listens, and its clients.
    TorchStore,
    TorchClient(usize),
    /// The connection to the process that looks into ranks.
    Looker,
    /// The connection to the process that measures what ranks use.
    Meter,
    /// The connection to the process that samples them.
    Sampler,
    /// The connection to an interpreter that ranks are forked from, and what its imports write.
    ForkServer(ServerId),
    ForkServerOutput(ServerId, Stream),
}

kinds! {
    enum Kind {
        Front, Signals, Spawner, Io, Lease, Memory, Stdout, Stderr, Pmi, Stdin, Boundary, WorkerSocket, WorkerClient, KernelLog,
        Pmix, PmixHost, PmixErrors, TorchStore, TorchClient, Looker, Meter, Sampler, ForkServer, ForkServerStdout, ForkServerStderr,
    }
}

impl Token {
    pub(crate) fn encode(self) -> u64 {
        let (kind, number) = match self {
            Token::Front => (Kind::Front, 0),
            Token::Signals => (Kind::Signals, 0),
            Token::Spawner => (Kind::Spawner, 0),
            Token::Io => (Kind::Io, 0),
            Token::Lease => (Kind::Lease, 0),
            Token::Memory => (Kind::Memory, 0),
            Token::Output(place, Stream::Stdout) => (Kind::Stdout, place.number()),
            Token::Output(place, Stream::Stderr) => (Kind::Stderr, place.number()),
            Token::Pmi(place) => (Kind::Pmi, place.number()),
            Token::Stdin(place) => (Kind::Stdin, place.number()),
            Token::Boundary(place) => (Kind::Boundary, place.number()),
            Token::WorkerSocket => (Kind::WorkerSocket, 0),
            Token::WorkerClient(client) => (Kind::WorkerClient, client as u64),
            Token::KernelLog => (Kind::KernelLog, 0),
            Token::Pmix => (Kind::Pmix, 0),
            Token::PmixHost => (Kind::PmixHost, 0),
            Token::PmixErrors => (Kind::PmixErrors, 0),
            Token::TorchStore => (Kind::TorchStore, 0),
            Token::TorchClient(client) => (Kind::TorchClient, client as u64),
            Token::Looker => (Kind::Looker, 0),
            Token::Meter => (Kind::Meter, 0),
            Token::Sampler => (Kind::Sampler, 0),
            Token::ForkServer(id) => (Kind::ForkServer, id.0.into()),
            Token::ForkServerOutput(id, Stream::Stdout) => (Kind::ForkServerStdout, id.0.into()),
            Token::ForkServerOutput(id, Stream::Stderr) => (Kind::ForkServerStderr, id.0.into()),
        };
        kind.token(number)
    }

    /// `None`: the agent has given no such token.
    pub(crate) fn decode(token: u64) -> Option<Token> {
        let (kind, number) = Kind::owner(token)?;
        Some(match kind {
            Kind::Front => Token::Front,
            Kind::Signals => Token::Signals,
            Kind::Spawner => Token::Spawner,
            Kind::Io => Token::Io,
            Kind::Lease => Token::Lease,
            Kind::Memory => Token::Memory,
            Kind::Stdout => Token::Output(Place::of(number), Stream::Stdout),
            Kind::Stderr => Token::Output(Place::of(number), Stream::Stderr),
            Kind::Pmi => Token::Pmi(Place::of(number)),
            Kind::Stdin => Token::Stdin(Place::of(number)),
            Kind::Boundary => Token::Boundary(Place::of(number)),
            Kind::WorkerSocket => Token::WorkerSocket,
            Kind::WorkerClient => Token::WorkerClient(number as usize),
            Kind::KernelLog => Token::KernelLog,
            Kind::Pmix => Token::Pmix,
            Kind::PmixHost => Token::PmixHost,
            Kind::PmixErrors => Token::PmixErrors,
            Kind::TorchStore => Token::TorchStore,
            Kind::TorchClient => Token::TorchClient(number as usize),
            Kind::Looker => Token::Looker,
            Kind::Meter => Token::Meter,
            Kind::Sampler => Token::Sampler,
            Kind::ForkServer => Token::ForkServer(ServerId(number as u32)),
            Kind::ForkServerStdout => Token::ForkServerOutput(ServerId(number as u32), Stream::Stdout),
            Kind::ForkServerStderr => Token::ForkServerOutput(ServerId(number as u32), Stream::Stderr),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_survives_its_encoding() {
        let place = |group, slot| Place { group: GroupId(group), slot: Slot(slot) };
        for token in [
            Token::Front,
            Token::Signals,
            Token::Spawner,
            Token::Io,
            Token::Lease,
            Token::Memory,
            Token::Output(place(3, 70_000), Stream::Stdout),
            Token::Output(place(0, 0), Stream::Stderr),
            Token::Pmi(place(0, 3)),
            Token::Stdin(place(1, 4)),
            Token::Boundary(place((1 << 24) - 1, u32::MAX)),
            Token::WorkerSocket,
            Token::WorkerClient(6),
            Token::KernelLog,
            Token::Pmix,
            Token::PmixHost,
            Token::PmixErrors,
            Token::TorchStore,
            Token::TorchClient(7),
            Token::Looker,
            Token::Meter,
            Token::Sampler,
            Token::ForkServer(ServerId(u32::MAX)),
            Token::ForkServerOutput(ServerId(3), Stream::Stdout),
            Token::ForkServerOutput(ServerId(4), Stream::Stderr),
        ] {
            assert_eq!(Token::decode(token.encode()), Some(token));
        }
    }
}
