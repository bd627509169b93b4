//! `MPI_Publish_name`, `MPI_Lookup_name` and `MPI_Unpublish_name`.
//!
//! Replies are those of Hydra up to MPICH 4.1, which all clients read (MPICH 5's has no `info` and no `msg`). Nothing that
//! a program gives as a name or a port ends its connection: what cannot be sent is answered with `rc=1`, of which MPI
//! makes an error of the call.

use bytes::Bytes;
use rankrun_core::Rank;

use super::VALLEN_MAX;
use super::request::Request;
use crate::names::{Names, PublishError};

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

/// The reply to a request of a rank.
pub(super) fn reply(names: &mut Names<Vec<u8>>, rank: Rank, command: Command, request: &Request<'_>) -> Bytes {
    let service = request.text(b"service").unwrap_or_default();
    match command {
        Command::Publish => Bytes::from_static(publish(names, rank, service, request)),
        Command::Lookup => match names.lookup(service) {
            Some((_, port)) => {
                const FOUND: &[u8] = b"cmd=lookup_result port=";
                Bytes::from([FOUND, port, b" info=ok rc=0 msg=success\n"].concat())
            }
            None => Bytes::from_static(NOT_FOUND),
        },
        Command::Unpublish => {
            Bytes::from_static(if names.unpublish(service) { UNPUBLISHED } else { NOTHING_TO_UNPUBLISH })
        }
    }
}

fn publish(names: &mut Names<Vec<u8>>, rank: Rank, service: &[u8], request: &Request<'_>) -> &'static [u8] {
    if service.is_empty() {
        return NO_NAME;
    }
    // A client would read only the first word of it.
    let Some(port) = request.text(b"port").filter(|port| can_be_sent(port)) else { return BAD_PORT };
    match names.publish(rank, service, port.to_vec()) {
        Ok(()) => PUBLISHED,
        Err(PublishError::Exists) => ALREADY_THERE,
        Err(PublishError::Full) => TOO_MUCH,
    }
}

fn can_be_sent(port: &[u8]) -> bool {
    !port.is_empty() && port.len() <= PORT_MAX && !port.iter().any(|byte| *byte == b' ' || byte.is_ascii_control())
}
