//! What a descriptor of the agent's poll set belongs to.

use rankrun_core::Stream;

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

impl Token {
    pub(crate) fn encode(self) -> u64 {
        let (kind, slot) = match self {
            Token::Front => (0, 0),
            Token::Signals => (1, 0),
            Token::Spawner => (2, 0),
            Token::Lease => (3, 0),
            Token::Output(slot, Stream::Stdout) => (4, slot),
            Token::Output(slot, Stream::Stderr) => (5, slot),
            Token::Pmi(slot) => (6, slot),
            Token::Stdin(slot) => (7, slot),
            Token::Boundary(slot) => (8, slot),
            Token::WorkerSocket => (9, 0),
            Token::WorkerClient(client) => (10, client),
            Token::Memory => (11, 0),
            Token::Io => (12, 0),
            Token::KernelLog => (13, 0),
            Token::Pmix => (14, 0),
            Token::PmixHost => (15, 0),
            Token::PmixErrors => (16, 0),
            Token::TorchStore => (17, 0),
            Token::TorchClient(client) => (18, client),
            Token::Looker => (19, 0),
        };
        (kind << 32) | slot as u64
    }

    pub(crate) fn decode(token: u64) -> Token {
        let slot = (token & 0xffff_ffff) as usize;
        match token >> 32 {
            0 => Token::Front,
            1 => Token::Signals,
            2 => Token::Spawner,
            3 => Token::Lease,
            4 => Token::Output(slot, Stream::Stdout),
            5 => Token::Output(slot, Stream::Stderr),
            6 => Token::Pmi(slot),
            7 => Token::Stdin(slot),
            8 => Token::Boundary(slot),
            9 => Token::WorkerSocket,
            10 => Token::WorkerClient(slot),
            11 => Token::Memory,
            13 => Token::KernelLog,
            14 => Token::Pmix,
            15 => Token::PmixHost,
            16 => Token::PmixErrors,
            17 => Token::TorchStore,
            18 => Token::TorchClient(slot),
            19 => Token::Looker,
            _ => Token::Io,
        }
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
            assert_eq!(Token::decode(token.encode()), token);
        }
    }
}
