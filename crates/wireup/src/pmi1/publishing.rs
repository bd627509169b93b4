//! `MPI_Publish_name`, `MPI_Lookup_name` and `MPI_Unpublish_name`.
//!
//! Replies are those of Hydra up to MPICH 4.1, which all clients read (MPICH 5's has no `info` and no `msg`). Nothing that
//! a program gives as a name or a port ends its connection: what cannot be sent is answered with `rc=1`, of which MPI
//! makes an error of the call.

use bytes::Bytes;
use rankrun_core::Rank;
use rankrun_core::names::{Question, Reply};

use super::VALLEN_MAX;
use super::request::Request;

const PUBLISHED: &[u8] = b"cmd=publish_result info=ok rc=0 msg=success\n";
const ALREADY_THERE: &[u8] = b"cmd=publish_result info=ok rc=1 msg=key_already_present\n";
const TOO_MUCH: &[u8] = b"cmd=publish_result info=ok rc=1 msg=too_much_is_published\n";
const NO_NAME: &[u8] = b"cmd=publish_result info=ok rc=1 msg=name_is_empty\n";
const BAD_PORT: &[u8] = b"cmd=publish_result info=ok rc=1 msg=port_cannot_be_sent\n";
const UNPUBLISHED: &[u8] = b"cmd=unpublish_result info=ok rc=0 msg=success\n";
const NOTHING_TO_UNPUBLISH: &[u8] = b"cmd=unpublish_result info=ok rc=1 msg=service_not_found\n";
const NOT_FOUND: &[u8] = b"cmd=lookup_result rc=1 msg=service_not_found\n";

/// The longest port, in bytes, with which the reply to a lookup is within the limit. MPICH 5 and Intel MPI need some 400.
const PORT_MAX: usize = VALLEN_MAX;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Command {
    Publish,
    Lookup,
    Unpublish,
}

impl Command {
    pub(super) fn of(request: &Request<'_>) -> Option<Command> {
        match request.name {
            b"publish_name" => Some(Command::Publish),
            b"lookup_name" => Some(Command::Lookup),
            b"unpublish_name" => Some(Command::Unpublish),
            _ => None,
        }
    }
}

/// What to ask for a rank, or the reply to what cannot be asked.
pub(super) fn question(rank: Rank, command: Command, request: &Request<'_>) -> Result<Question, Bytes> {
    let service = request.text(b"service").unwrap_or_default();
    let names = vec![service.to_vec()];
    match command {
        Command::Publish if service.is_empty() => Err(Bytes::from_static(NO_NAME)),
        Command::Publish => match request.text(b"port").filter(|port| can_be_sent(port)) {
            Some(port) => Ok(Question::Publish { rank, entries: vec![(service.to_vec(), port.to_vec())], once: false }),
            // A client would read only the first word of it.
            None => Err(Bytes::from_static(BAD_PORT)),
        },
        Command::Lookup => Ok(Question::Lookup { names, waits: false }),
        Command::Unpublish => Ok(Question::Unpublish { names }),
    }
}

/// The reply to a rank, by what the names of the job answer.
pub(super) fn reply(command: Command, reply: Reply) -> Bytes {
    match (command, reply) {
        (Command::Lookup, Reply::Found(found)) => {
            const FOUND: &[u8] = b"cmd=lookup_result port=";
            let port = found.first().map(|(_, _, port)| &port[..]).unwrap_or_default();
            Bytes::from([FOUND, port, b" info=ok rc=0 msg=success\n"].concat())
        }
        (Command::Lookup, _) => Bytes::from_static(NOT_FOUND),
        (Command::Publish, Reply::Done) => Bytes::from_static(PUBLISHED),
        (Command::Publish, Reply::Full) => Bytes::from_static(TOO_MUCH),
        (Command::Publish, _) => Bytes::from_static(ALREADY_THERE),
        (Command::Unpublish, Reply::Done) => Bytes::from_static(UNPUBLISHED),
        (Command::Unpublish, _) => Bytes::from_static(NOTHING_TO_UNPUBLISH),
    }
}

fn can_be_sent(port: &[u8]) -> bool {
    !port.is_empty() && port.len() <= PORT_MAX && !port.iter().any(|byte| *byte == b' ' || byte.is_ascii_control())
}
