//! The nodes that were lost, and are called again: one that is back is a spare.

use std::collections::BTreeMap;
use std::time::Duration;

/// When a node is called again for the first time, and the longest time between two calls.
const FIRST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(60);
/// How often to look whether a node may be called whose ranks may live.
const LOOK: Duration = Duration::from_secs(1);

/// The nodes that are away, by their identities.
#[derive(Clone, Debug, Default)]
pub(in crate::job) struct Returns {
    hosts: BTreeMap<String, Return>,
}

#[derive(Clone, Copy, Debug)]
struct Return {
    /// `None`: it is being called, or comes by itself.
    due: Option<Duration>,
    pause: Duration,
}

impl Returns {
    /// It is lost, or was called in vain.
    pub(in crate::job) fn lost(&mut self, name: &str, now: Duration) {
        let host = self.hosts.entry(name.to_owned()).or_insert(Return { due: None, pause: FIRST });
        host.due = Some(now + host.pause);
        host.pause = (host.pause * 2).min(LONGEST);
    }

    /// It is lost, and comes back by itself if it does.
    pub(in crate::job) fn away(&mut self, name: &str) {
        self.hosts.entry(name.to_owned()).or_insert(Return { due: None, pause: FIRST });
    }

    /// Whether it is being called.
    pub(in crate::job) fn is_being_called(&self, name: &str) -> bool {
        self.hosts.get(name).is_some_and(|host| host.due.is_none())
    }

    /// It is here: the next loss is another one. Returns whether it was away.
    pub(in crate::job) fn is_here(&mut self, name: &str) -> bool {
        self.hosts.remove(name).is_some()
    }

    /// It cannot be called yet.
    pub(in crate::job) fn later(&mut self, name: &str, now: Duration) {
        if let Some(host) = self.hosts.get_mut(name) {
            host.due = Some(now + LOOK);
        }
    }

    /// Those whose time it is. They are being called from now on.
    pub(in crate::job) fn due(&mut self, now: Duration) -> Vec<String> {
        let mut due = Vec::new();
        for (name, host) in &mut self.hosts {
            if host.due.take_if(|at| *at <= now).is_some() {
                due.push(name.clone());
            }
        }
        due
    }

    /// Those that are away.
    pub(in crate::job) fn names(&self) -> impl Iterator<Item = &String> {
        self.hosts.keys()
    }

    /// Whether any node may come back.
    pub(in crate::job) fn is_any(&self) -> bool {
        !self.hosts.is_empty()
    }

    pub(in crate::job) fn deadline(&self) -> Option<Duration> {
        self.hosts.values().filter_map(|host| host.due).min()
    }
}
