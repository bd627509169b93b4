//! The nodes that failed often: they are left out for a time, which grows.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::spec::job::Recent;

/// For how long a node is left out at first, and at most.
const FIRST: Duration = Duration::from_secs(600);
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// What is known of the losses of each node, by its name.
#[derive(Clone, Debug, Default)]
pub(in crate::job) struct Exclusions {
    hosts: BTreeMap<String, Losses>,
}

#[derive(Clone, Debug, Default)]
struct Losses {
    at: Vec<Duration>,
    /// How often it was left out, and until when.
    times: u32,
    until: Duration,
}

impl Exclusions {
    /// A node with ranks is lost. Returns for how long it is left out, if it is now.
    pub(in crate::job) fn lost(&mut self, name: &str, now: Duration, limit: Option<Recent>) -> Option<Duration> {
        let limit = limit?;
        let losses = self.hosts.entry(name.to_owned()).or_default();
        losses.at.retain(|at| now.saturating_sub(*at) < limit.window);
        losses.at.push(now);
        if losses.at.len() < limit.restarts as usize {
            return None;
        }
        let time = FIRST.saturating_mul(2u32.saturating_pow(losses.times)).min(LONGEST);
        losses.times += 1;
        losses.until = now + time;
        losses.at.clear();
        Some(time)
    }

    /// Whether a node is left out.
    pub(in crate::job) fn has(&self, name: &str, now: Duration) -> bool {
        self.until(name, now).is_some()
    }

    /// When the next one is not left out any more.
    pub(in crate::job) fn deadline(&self, now: Duration) -> Option<Duration> {
        self.hosts.values().map(|losses| losses.until).filter(|until| *until > now).min()
    }

    /// Until when a node is left out.
    pub(in crate::job) fn until(&self, name: &str, now: Duration) -> Option<Duration> {
        self.hosts.get(name).map(|losses| losses.until).filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_lost_often_is_left_out_for_longer_and_longer() {
        let s = Duration::from_secs;
        let limit = Some(Recent { restarts: 3, window: s(3600) });
        let mut exclusions = Exclusions::default();
        let mut lost = |at: u64| exclusions.lost("a", s(at), limit).map(|time| time.as_secs());
        assert_eq!([0, 10, 20].map(&mut lost), [None, None, Some(600)]);
        assert_eq!(
            [700, 800, 900].map(&mut lost),
            [None, None, Some(1200)],
            "what has led to the first counts no more"
        );
        assert_eq!([10_000, 12_000, 13_500].map(&mut lost), [None, None, Some(2400)]);
        assert_eq!([20_000, 24_000, 28_000].map(&mut lost), [None, None, None], "they are further apart");
        assert!(exclusions.has("a", s(15_899)) && !exclusions.has("a", s(15_900)) && !exclusions.has("b", s(0)));
        assert_eq!(exclusions.lost("a", s(0), None), None);
    }
}
