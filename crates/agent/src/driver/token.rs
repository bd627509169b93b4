//! What a descriptor of the agent's poll set belongs to.

use rankrun_core::Stream;
use rankrun_sys::kinds;

/// The owner of a descriptor; slots are counted by local rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token {
    Front,
    Signals,
    Spawner,
    Io,
    Lease,
    /// The thread that watches /dev/shm.
    Memory,
    Output(usize, Stream),
    Pmi(usize),
    Stdin(usize),
    Boundary(usize),
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
}

kinds! {
    enum Kind {
        Front, Signals, Spawner, Io, Lease, Memory, Stdout, Stderr, Pmi, Stdin, Boundary, WorkerSocket, WorkerClient, KernelLog,
        Pmix, PmixHost, PmixErrors, TorchStore, TorchClient, Looker,
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
            Token::Output(slot, Stream::Stdout) => (Kind::Stdout, slot),
            Token::Output(slot, Stream::Stderr) => (Kind::Stderr, slot),
            Token::Pmi(slot) => (Kind::Pmi, slot),
            Token::Stdin(slot) => (Kind::Stdin, slot),
            Token::Boundary(slot) => (Kind::Boundary, slot),
            Token::WorkerSocket => (Kind::WorkerSocket, 0),
            Token::WorkerClient(client) => (Kind::WorkerClient, client),
            Token::KernelLog => (Kind::KernelLog, 0),
            Token::Pmix => (Kind::Pmix, 0),
            Token::PmixHost => (Kind::PmixHost, 0),
            Token::PmixErrors => (Kind::PmixErrors, 0),
            Token::TorchStore => (Kind::TorchStore, 0),
            Token::TorchClient(client) => (Kind::TorchClient, client),
            Token::Looker => (Kind::Looker, 0),
        };
        kind.token(number as u64)
    }

    /// `None`: the agent has given no such token.
    pub(crate) fn decode(token: u64) -> Option<Token> {
        let (kind, number) = Kind::owner(token)?;
        let number = number as usize;
        Some(match kind {
            Kind::Front => Token::Front,
            Kind::Signals => Token::Signals,
            Kind::Spawner => Token::Spawner,
            Kind::Io => Token::Io,
            Kind::Lease => Token::Lease,
            Kind::Memory => Token::Memory,
            Kind::Stdout => Token::Output(number, Stream::Stdout),
            Kind::Stderr => Token::Output(number, Stream::Stderr),
            Kind::Pmi => Token::Pmi(number),
            Kind::Stdin => Token::Stdin(number),
            Kind::Boundary => Token::Boundary(number),
            Kind::WorkerSocket => Token::WorkerSocket,
            Kind::WorkerClient => Token::WorkerClient(number),
            Kind::KernelLog => Token::KernelLog,
            Kind::Pmix => Token::Pmix,
            Kind::PmixHost => Token::PmixHost,
            Kind::PmixErrors => Token::PmixErrors,
            Kind::TorchStore => Token::TorchStore,
            Kind::TorchClient => Token::TorchClient(number),
            Kind::Looker => Token::Looker,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_survives_its_encoding() {
        for token in [
            Token::Front,
            Token::Signals,
            Token::Spawner,
            Token::Io,
            Token::Lease,
            Token::Memory,
            Token::Output(70_000, Stream::Stdout),
            Token::Output(0, Stream::Stderr),
            Token::Pmi(3),
            Token::Stdin(4),
            Token::Boundary(5),
            Token::WorkerSocket,
            Token::WorkerClient(6),
            Token::KernelLog,
            Token::Pmix,
            Token::PmixHost,
            Token::PmixErrors,
            Token::TorchStore,
            Token::TorchClient(7),
            Token::Looker,
        ] {
            assert_eq!(Token::decode(token.encode()), Some(token));
        }
    }
}
