//! Reads along with a stream of frames that is passed on unchanged: the output in it, and nothing else.

use rankrun_core::JobId;

use crate::frame::{Cut, Decoder, Frame, Kind, OutputHead, WireError};

/// What has passed so far.
#[derive(Debug, Default)]
pub struct Tap {
    decoder: Decoder,
    /// These bytes are no frames: nothing more is read from them. Whoever they are for will say so.
    is_lost: bool,
}

impl Tap {
    /// Bytes have passed. `output` is called for each piece of output that is complete.
    pub fn pass(&mut self, bytes: &[u8], mut output: impl FnMut(OutputHead, &[u8])) {
        if self.is_lost {
            return;
        }
        self.decoder.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.decoder.filled(bytes.len());
        self.is_lost = self.read(&mut output).is_err();
    }

    fn read(&mut self, output: &mut impl FnMut(OutputHead, &[u8])) -> Result<(), WireError> {
        while let Some(cut) = self.decoder.cut()? {
            let Cut { kind: Kind::Output, .. } = cut else { continue };
            if let Frame::Output(head, bytes) = self.decoder.open::<JobId>(&cut)? {
                output(head, bytes);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use bytes::Bytes;
    use rankrun_core::{Attempt, Rank, Stream, WorkerId};

    use super::*;
    use crate::{Retain, Session, ToFront};

    #[test]
    fn the_output_of_a_stream_is_read_however_it_is_cut() {
        let mut session = Session::new(NonZeroU64::MIN, Retain::No);
        let mut sent = Vec::new();
        for number in 0..50u32 {
            let worker = WorkerId { rank: Rank(number), attempt: Attempt(0) };
            let head = OutputHead { worker, stream: Stream::Stderr, at: Duration::ZERO, more: false };
            let bytes = vec![number as u8; number as usize * 400];
            session.message(&ToFront::Note("a note".to_owned())).expect("a small message");
            session.output(head, Bytes::from(bytes.clone())).expect("within limits");
            sent.push((head, bytes));
        }
        let stream: Vec<u8> = session.pieces().flatten().collect();
        for step in [1, 7, 1000, 100_000, stream.len()] {
            let (mut tap, mut seen) = (Tap::default(), Vec::new());
            stream.chunks(step).for_each(|piece| tap.pass(piece, |head, bytes| seen.push((head, bytes.to_vec()))));
            assert!(seen == sent, "in pieces of {step}");
        }
    }

    #[test]
    fn what_is_no_stream_of_frames_is_left_alone() {
        let mut tap = Tap::default();
        tap.pass(&[0xff; 100], |_, _| panic!("there is no output"));
        tap.pass(&[0; 100], |_, _| panic!("there is no output"));
    }
}
