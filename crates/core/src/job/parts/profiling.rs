//! The profile that is being made: for whom, and what has come of it so far. There is one at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::{NodeId, Rank};
use crate::job::event::ClientId;
use crate::job::parts::inquiry::Inquiry;
use crate::stacks::profile::{Gathering, Profile, ProfileSpec, RankProfile, Samples};

/// How long the agents have, beyond the time of the profile: each starts a process, on a machine that may be busy.
const ANSWER_BOUND: Duration = Duration::from_secs(6);
/// How long they have to send the rest once the profile is to end.
const END_BOUND: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct Present {
    client: ClientId,
    spec: ProfileSpec,
    since: Duration,
    ranks: BTreeMap<Rank, (String, Gathering)>,
    cut: Option<String>,
    is_ending: bool,
}

/// All that is known of it.
#[derive(Debug, Default)]
pub(in crate::job) struct Profiling {
    last: u64,
    present: Option<Inquiry<Present>>,
}

impl Profiling {
    pub(in crate::job) fn is_under_way(&self) -> bool {
        self.present.is_some()
    }

    /// A profile begins on these nodes. Returns its number.
    pub(in crate::job) fn begin(
        &mut self,
        now: Duration,
        client: ClientId,
        spec: ProfileSpec,
        nodes: Vec<NodeId>,
    ) -> u64 {
        self.last += 1;
        let present = Present { client, spec, since: now, ranks: BTreeMap::new(), cut: None, is_ending: false };
        self.present = Some(Inquiry::new(self.last, now + spec.time + ANSWER_BOUND, nodes, present));
        self.last
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Inquiry<Present>> {
        self.present.as_mut().filter(|present| present.is(number))
    }

    /// An agent has seen this of a rank.
    pub(in crate::job) fn seen(&mut self, number: u64, rank: Rank, node: &str, samples: &Samples) {
        if let Some(present) = self.get_mut(number) {
            let (_, gathering) =
                present.found.ranks.entry(rank).or_insert_with(|| (node.to_owned(), Gathering::default()));
            gathering.merge(samples);
        }
    }

    /// A node has sent all, or could not begin.
    pub(in crate::job) fn node_over(&mut self, number: u64, node: NodeId, why: Option<String>) {
        if let Some(present) = self.get_mut(number) {
            present.answered(node);
            present.found.cut = present.found.cut.take().or(why);
        }
    }

    /// The client wants what there is. Returns the number of the profile if the agents are to be told.
    pub(in crate::job) fn end(&mut self, now: Duration) -> Option<u64> {
        let present = self.present.as_mut().filter(|present| !present.found.is_ending)?;
        present.found.is_ending = true;
        present.found.cut.get_or_insert_with(|| "it was ended early".to_owned());
        present.hurry(now + END_BOUND);
        Some(self.last)
    }

    /// A client has gone. Returns the number of the profile if it was for that one: nobody wants it any more.
    pub(in crate::job) fn abandon(&mut self, client: ClientId) -> Option<u64> {
        self.present.take_if(|present| present.found.client == client).map(|_| self.last)
    }

    /// The profile, if it is over; or as it is, if nothing more comes of it, and `why`. Where all ranks `have_ended`, their agents end too, and
    /// need not have said all.
    pub(in crate::job) fn take(
        &mut self,
        now: Duration,
        have_ended: bool,
        is_connected: impl Fn(NodeId) -> bool,
        name: impl Fn(NodeId) -> String,
        why: Option<&str>,
    ) -> Option<(ClientId, Profile)> {
        let over = self.present.take_if(|present| why.is_some() || present.is_over(now, is_connected))?;
        let silent: Vec<String> = over.missing().iter().filter(|_| why.is_none()).map(|node| name(*node)).collect();
        let Present { client, spec, since, ranks, cut, .. } = over.found;
        let is_short = !silent.is_empty() || now.saturating_sub(since) < spec.time;
        let ended = (have_ended && is_short).then_some("all ranks have ended");
        let silent = if ended.is_some() { Vec::new() } else { silent };
        let ranks = ranks.into_iter().map(|(rank, (node, mut gathering))| RankProfile {
            rank,
            node,
            samples: gathering.take(),
        });
        let profile = Profile {
            took: now.saturating_sub(since).min(spec.time).as_secs_f64(),
            rate: 1.0 / spec.interval.as_secs_f64().max(1e-6),
            ranks: ranks.collect(),
            silent,
            cut: why.map(str::to_owned).or(cut).or(ended.map(str::to_owned)),
        };
        Some((client, profile))
    }

    /// The number of the last profile.
    pub(in crate::job) fn number(&self) -> u64 {
        self.last
    }

    pub(in crate::job) fn deadline(&self) -> Option<Duration> {
        self.present.as_ref().map(Inquiry::until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn begun() -> (Profiling, u64) {
        let spec = ProfileSpec { time: s(10), interval: Duration::from_millis(50), native: false };
        let mut profiling = Profiling::default();
        let number = profiling.begin(s(1), ClientId(7), spec, vec![NodeId(0), NodeId(1)]);
        (profiling, number)
    }

    fn taken(profiling: &mut Profiling, now: u64, why: Option<&str>) -> Option<(ClientId, Profile)> {
        profiling.take(s(now), false, |_| true, |node| format!("node{}", node.0), why)
    }

    #[test]
    fn a_profile_is_over_when_all_nodes_have_sent_all_or_its_time_has_passed() {
        let (mut profiling, number) = begun();
        let samples = Samples { looks: 20, ..Samples::default() };
        profiling.seen(number, Rank(1), "node0", &samples);
        profiling.seen(number, Rank(1), "node0", &samples);
        profiling.seen(number + 1, Rank(2), "node0", &samples);
        profiling.node_over(number, NodeId(0), None);
        assert_eq!(taken(&mut profiling, 11, None), None);
        let (client, profile) = taken(&mut profiling, 17, None).expect("its time has passed");
        assert_eq!((client, profile.silent), (ClientId(7), vec!["node1".to_owned()]));
        assert_eq!(profile.ranks.iter().map(|it| (it.rank, it.samples.looks)).collect::<Vec<_>>(), [(Rank(1), 40)]);
        assert!(!profiling.is_under_way());
    }

    #[test]
    fn what_there_is_is_given_when_the_client_or_the_end_of_the_job_wants_it() {
        let (mut profiling, number) = begun();
        assert_eq!(profiling.end(s(2)), Some(number));
        assert_eq!((profiling.end(s(2)), profiling.deadline()), (None, Some(s(5))));
        let (_, profile) = taken(&mut profiling, 5, None).expect("the agents had their time");
        assert_eq!(profile.cut.as_deref(), Some("it was ended early"));
        let (mut profiling, _) = begun();
        let (_, profile) = taken(&mut profiling, 3, Some("the job ended")).expect("the job is over");
        assert_eq!((profile.cut.as_deref(), profile.took), (Some("the job ended"), 2.0));
    }

    #[test]
    fn a_profile_of_ranks_that_have_all_ended_says_so() {
        let take = |profiling: &mut Profiling, now, is_connected| {
            let over = profiling.take(s(now), true, |_| is_connected, |node| format!("node{}", node.0), None);
            over.map(|(_, profile)| (profile.cut, profile.silent))
        };
        let ended = Some("all ranks have ended".to_owned());
        // Their agents have ended with them.
        let (mut profiling, _) = begun();
        assert_eq!(take(&mut profiling, 3, true), None);
        assert_eq!(take(&mut profiling, 3, false), Some((ended.clone(), Vec::new())));
        // They have said all before.
        for (now, cut) in [(4, ended), (11, None)] {
            let (mut profiling, number) = begun();
            (0..2).for_each(|node| profiling.node_over(number, NodeId(node), None));
            assert_eq!(take(&mut profiling, now, true), Some((cut, Vec::new())));
        }
    }

    #[test]
    fn a_client_that_goes_ends_only_its_own_profile() {
        let (mut profiling, number) = begun();
        assert_eq!((profiling.abandon(ClientId(8)), profiling.is_under_way()), (None, true));
        assert_eq!((profiling.abandon(ClientId(7)), profiling.is_under_way()), (Some(number), false));
    }
}
