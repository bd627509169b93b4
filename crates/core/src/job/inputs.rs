//! All that a job is given, in a form that can be kept. A job that is made from the same origin and given the same decides the same: so
//! another front can take the place of one that was killed.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::event::{Effect, Event};
use super::machine::Job;
use super::settings::Settings;
use crate::gang::Rules;
use crate::ids::{Rank, Stream};
use crate::spec::job::JobSpec;

/// What a job is made from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Origin {
    pub spec: JobSpec,
    pub rules: Rules,
    pub settings: Settings,
}

/// What it is given then.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Input<'a> {
    /// The loop of the front turns.
    Turn,
    Event(Cow<'a, Event>),
    /// A rank has written these bytes.
    Write {
        rank: Rank,
        stream: Stream,
        bytes: Cow<'a, [u8]>,
    },
    /// The ranks may wait for rankrun.
    SignOfLife,
    /// The window of the terminal, in rows and columns.
    Window(Option<(u16, u16)>),
}

impl Job {
    /// A job whose own node, if it has one here, is connected.
    pub fn of(origin: Origin) -> Job {
        Job::new(origin.spec, origin.rules, origin.settings)
    }

    /// Takes an input; appends what is to be done.
    pub fn give(&mut self, now: Duration, input: Input<'_>, effects: &mut Vec<Effect>) {
        match input {
            Input::Turn => self.turn(now),
            Input::Event(event) => self.handle(now, event.into_owned(), effects),
            Input::Write { rank, stream, bytes } => self.write(now, rank, stream, &bytes),
            Input::SignOfLife => self.sign_of_life(now),
            Input::Window(window) => self.spec_mut().io.window = window,
        }
    }
}
