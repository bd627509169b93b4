//! `rankrun profile`: when the ranks are sampled, and for how long. The agents sample; [`crate::stacks::profile`] says what it means.

use crate::ids::{NodeId, Rank, WorkerId};
use crate::job::event::{ClientId, Effect};
use crate::job::machine::Job;
use crate::job::order::Order;
use crate::ranks::RankSet;
use crate::stacks::profile::{Profile, ProfileSpec, Samples};

impl Job {
    /// A client asks for a profile of these ranks, or of all.
    pub(in crate::job) fn profile_requested(&mut self, client: ClientId, ranks: Option<RankSet>, spec: ProfileSpec) {
        let nodes: Vec<NodeId> = self.nodes.ready().filter(|_| !self.is_paused).collect();
        let living = self.alive();
        let ranks: Option<Vec<Rank>> =
            ranks.map(|ranks| living.iter().copied().filter(|rank| ranks.contains(*rank)).collect());
        let is_empty = ranks.as_ref().unwrap_or(&living).is_empty();
        let refusal = match () {
            () if self.profiling.is_under_way() => Some("it is being profiled already"),
            () if is_empty || nodes.is_empty() => Some("none of these ranks is running"),
            () => None,
        };
        if let Some(why) = refusal {
            return self.out.push(Effect::RefuseProfile { client, why: why.to_owned() });
        }
        let number = self.profiling.begin(self.now, client, spec, nodes);
        let workers = ranks.map(|ranks| ranks.into_iter().map(|rank| self.gang.worker(rank)).collect());
        self.send(Order::Profile { number, workers, spec });
    }

    /// What an agent has seen of a rank since it last said so.
    pub(in crate::job) fn profiled(&mut self, from: NodeId, number: u64, worker: WorkerId, samples: &Samples) {
        let node = self.nodes.name(from).to_owned();
        self.profiling.seen(number, worker.rank, &node, samples);
    }

    /// An agent has sent all.
    pub(in crate::job) fn profile_over(&mut self, from: NodeId, number: u64, why: Option<String>) {
        self.profiling.node_over(number, from, why);
        self.profile_due();
    }

    /// A client wants what there is (`None`), or the client has gone that the profile is for.
    pub(in crate::job) fn profile_ends(&mut self, gone: Option<ClientId>) {
        let number = match gone {
            Some(client) => self.profiling.abandon(client),
            None => self.profiling.end(self.now),
        };
        if let Some(number) = number {
            self.send(Order::EndProfile { number });
        }
    }

    pub(in crate::job) fn profile_due(&mut self) {
        let now = self.now;
        let nodes = &self.nodes;
        let is_connected = |node: NodeId| nodes.get(node).is_some_and(|node| node.is_connected());
        let have_ended = self.gang.have_all_ended();
        let over = self.profiling.take(now, have_ended, is_connected, |node| nodes.name(node).to_owned(), None);
        if let Some((client, profile)) = over {
            self.out.push(Effect::Profile { client, profile: Box::new(profile) });
        }
    }

    /// Nothing more comes of the profile, and why: its client gets what there is.
    pub(in crate::job) fn cut_profile(&mut self, why: &str) {
        if let Some((client, profile)) = self.take_profile(why) {
            self.send(Order::EndProfile { number: self.profiling.number() });
            self.out.push(Effect::Profile { client, profile: Box::new(profile) });
        }
    }

    /// The profile as it is, if one is being made: the job is over.
    pub fn take_profile(&mut self, why: &str) -> Option<(ClientId, Profile)> {
        let now = self.now;
        self.profiling.take(now, false, |_| false, |_| String::new(), Some(why))
    }
}
