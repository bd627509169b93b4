//! Asks a node whose connection is silent, over a fresh one, whether its agent runs (`core/src/machines/contact.rs`).

use std::io;
use std::time::Duration;

use bytes::Bytes;
use rankrun_core::contact::{step, try_bound};
use rankrun_sys::poll::{Ready, Registry};
use rankrun_wire::greeting::Heard;

use super::hosts::{NodeTarget, SshSettings};
use super::ssh::{Call, Ssh};
use crate::starter::Starter;

/// What the node reads when its answer is here.
const CONFIRMED: &[u8] = b"alive\n";

/// The tries to ask one node: the present one is the last, those before are only to be reaped.
#[derive(Debug, Default)]
pub(crate) struct Asker {
    tries: Vec<Ssh>,
    /// When the last one has failed.
    until: Duration,
}

impl Asker {
    /// Begins a try. One that is not connected yet is given up; one that is goes on.
    pub(crate) fn ask(
        &mut self,
        now: Duration,
        (starter, registry, token): (&mut Starter, &Registry, u64),
        ssh: (&SshSettings, &NodeTarget),
        call: &Call,
        timeout: Duration,
    ) -> io::Result<()> {
        if self.is_open(now) && self.tries.last().is_some_and(Ssh::has_logged_in) {
            return Ok(());
        }
        self.stop();
        self.tries.push(Ssh::asking(starter, registry, token, ssh, call, step(timeout))?);
        self.until = now + try_bound(timeout);
        Ok(())
    }

    /// Until when the last try may still be answered.
    pub(crate) fn until(&self) -> Duration {
        self.until
    }

    /// Whether the last try may still be answered.
    fn is_open(&self, now: Duration) -> bool {
        now < self.until && self.tries.last().is_some_and(|ssh| ssh.code.is_none())
    }

    /// Something has come from the node. Returns whether that is its answer.
    pub(crate) fn hear(&mut self, registry: &Registry, ready: Ready) -> bool {
        let mut is_answer = false;
        for ssh in &mut self.tries {
            ssh.read_words(registry);
            if let (Heard::Ready { .. }, Some(mut conn)) = ssh.hear(ready.writable, ready.readable) {
                // The pipe has room. If ssh is gone, the agent hears of it by the next try.
                let _ = conn.send([Bytes::from_static(CONFIRMED)]);
                is_answer = true;
            }
        }
        is_answer
    }

    /// Reaps the tries that have ended. Returns whether the last one has: nothing more is to come of it.
    pub(crate) fn reap(&mut self) -> bool {
        let had_tries = !self.tries.is_empty();
        self.tries.retain_mut(|ssh| !ssh.reap(false));
        had_tries && self.tries.is_empty()
    }

    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> {
        self.tries.iter().filter_map(Ssh::pid)
    }

    /// Nobody wants an answer any more.
    pub(crate) fn stop(&mut self) {
        self.until = Duration::ZERO;
        for ssh in &mut self.tries {
            ssh.hang_up();
            ssh.kill();
        }
    }
}
