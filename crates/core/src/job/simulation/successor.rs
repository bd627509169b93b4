//! Fronts that die. Another one makes the job again from what it was given, and goes on: it must decide as the first would have.

use std::time::Duration;

use super::dice::Dice;
use crate::job::event::Effect;
use crate::job::inputs::{Input, Origin};
use crate::job::machine::Job;

/// Of 1,000 turns of the loop, so many are the last of a front.
const DEATHS: u64 = 5;
/// No more fronts die in a job: each of them reads all that the job was given.
const MOST_DEATHS: u32 = 4;

/// What a job was made from and given, as it is kept: bytes.
#[derive(Debug)]
pub(super) struct Kept {
    /// Of its own: a seed is the job that it was without it.
    dice: Dice,
    origin: Vec<u8>,
    given: Vec<u8>,
    deaths: u32,
}

impl Kept {
    /// A job begins.
    pub(super) fn begin(seed: u64, origin: Origin) -> (Kept, Job) {
        let dice = Dice::of(seed, 0xC2B2_AE3D_27D4_EB4F);
        let kept = Kept { dice, origin: encode(&origin), given: Vec::new(), deaths: 0 };
        (kept, Job::of(origin))
    }

    /// The job is given something.
    pub(super) fn give(&mut self, job: &mut Job, now: Duration, input: Input<'_>, effects: &mut Vec<Effect>) {
        if self.deaths < MOST_DEATHS {
            self.given.extend(encode(&(now, &input)));
        }
        job.give(now, input, effects);
    }

    /// The front may die, and another come.
    ///
    /// # Errors
    ///
    /// The job is another one after that.
    pub(super) fn may_die(&mut self, job: &mut Job) -> Result<(), String> {
        if self.deaths == MOST_DEATHS || self.dice.below(1000) >= DEATHS {
            return Ok(());
        }
        self.deaths += 1;
        let again = self.make_again()?;
        let [one, other] = [&*job, &again].map(|job| format!("{job:#?}"));
        if one != other {
            let differ = one.lines().zip(other.lines()).find(|(one, other)| one != other);
            return Err(format!("another front does not have the same job: {differ:?}"));
        }
        *job = again;
        Ok(())
    }

    fn make_again(&self) -> Result<Job, String> {
        let unreadable = |error: postcard::Error| format!("what was kept cannot be read: {error}");
        let mut job = Job::of(postcard::from_bytes(&self.origin).map_err(unreadable)?);
        let mut rest = &self.given[..];
        while !rest.is_empty() {
            let (now, input): (Duration, Input<'_>);
            ((now, input), rest) = postcard::take_from_bytes(rest).map_err(unreadable)?;
            // They were done before.
            job.give(now, input, &mut Vec::new());
        }
        Ok(job)
    }
}

fn encode(what: &impl serde::Serialize) -> Vec<u8> {
    postcard::to_allocvec(what).unwrap_or_else(|error| unreachable!("it is plain data: {error}"))
}
