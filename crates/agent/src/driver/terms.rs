//! What a prepared agent waits for: how it serves its job.

use std::io;
use std::os::fd::OwnedFd;

use rankrun_sys::limits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::guard::lease::Lease;

/// How the agent serves this job. It is known later than [`Options`]: a prepared agent waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Terms {
    /// A rank gets the terminal of the front. Only a process of the terminal's session can give it.
    pub lends_terminal: bool,
    /// The job has no other node: nobody asks how this one is reached.
    pub is_alone: bool,
    /// The ranks do not use up the processes and threads that the limits allow ([`limits::processes_are_scarce`]).
    pub has_plenty: bool,
}

impl Terms {
    pub(crate) fn encode(self) -> u8 {
        u8::from(self.lends_terminal) | u8::from(self.is_alone) << 1 | u8::from(self.has_plenty) << 2
    }

    fn decode(byte: u8) -> Terms {
        Terms { lends_terminal: byte & 1 != 0, is_alone: byte & 2 != 0, has_plenty: byte & 4 != 0 }
    }

    /// Waits until the front sends the terms. `None` if it has ended, or has no use for an agent.
    pub(crate) fn receive(stream: &OwnedFd, lease: &Lease) -> io::Result<Option<Terms>> {
        let mut byte = [0];
        loop {
            lease.renew();
            let rest = lease.due_in();
            let rest = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: i64::from(rest.subsec_nanos()) };
            match poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&rest)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            match rustix::io::read(stream, &mut byte) {
                Ok(0) | Err(Errno::CONNRESET) => return Ok(None),
                Ok(_) => {
                    lease.front_is_alive();
                    let terms = Terms::decode(byte[0]);
                    if terms.has_plenty {
                        limits::processes_are_plenty();
                    }
                    return Ok(Some(terms));
                }
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_survive_their_encoding() {
        for number in 0..8u8 {
            let terms =
                Terms { lends_terminal: number & 1 != 0, is_alone: number & 2 != 0, has_plenty: number & 4 != 0 };
            assert_eq!(Terms::decode(terms.encode()), terms);
        }
    }
}
