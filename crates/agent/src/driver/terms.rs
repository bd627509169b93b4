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
    /// The job has no other node: nobody asks how this one is reached.
    pub is_alone: bool,
    /// The ranks do not use up the processes and threads that the limits allow ([`limits::processes_are_scarce`]).
    pub has_plenty: bool,
}

impl Terms {
    pub(crate) fn encode(self) -> u8 {
        u8::from(self.is_alone) | u8::from(self.has_plenty) << 1
    }

    fn decode(byte: u8) -> Terms {
        Terms { is_alone: byte & 1 != 0, has_plenty: byte & 2 != 0 }
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
        for number in 0..4u8 {
            let terms = Terms { is_alone: number & 1 != 0, has_plenty: number & 2 != 0 };
            assert_eq!(Terms::decode(terms.encode()), terms);
        }
    }
}
