//! The end of the job: no agent is connected any more, and what is left on the nodes is to be known.

use std::time::Duration;

use crate::exit::ExitCode;
use crate::gang::Outside;
use crate::grace::SIGTERM;
use crate::hosts::fold;
use crate::ids::NodeId;
use crate::interrupt::SHARED;
use crate::job::event::Effect;
use crate::job::machine::Job;
use crate::job::parts::closing::Answers;
use crate::verdict::verdict;

impl Job {
    /// Begins the end once no agent is connected, and goes on with it.
    pub(in crate::job) fn closing_due(&mut self) {
        if !self.closing.has_begun() && !self.is_linked() {
            self.closing.begin(self.now, self.signal_until());
            // No agent can answer any more.
            self.end_asking();
            self.give_up_on_states();
            self.out.push(Effect::Closing);
        }
        self.await_answers();
    }

    /// Until when the signal may come to us too that has ended the rank which failed first, or a node: Slurm sends it to each step of a job
    /// on its own.
    fn signal_until(&self) -> Option<Duration> {
        if !self.settings.has_steps {
            return None;
        }
        if let Some((outside, at)) = self.gang.ended_from_outside() {
            return (outside == Outside::NodeLost).then_some(at + SHARED);
        }
        let culprit = verdict(&self.gang).culprit?;
        let is_by_signal = culprit.exception.is_none() && culprit.code == ExitCode::signal(SIGTERM);
        is_by_signal.then_some(culprit.at + SHARED)
    }

    /// The processes that hold these nodes have not ended. Their exit codes are the proof that nothing is left.
    pub(in crate::job) fn held(&mut self, held: &[NodeId]) {
        let awaits_lost = self.closing.awaits_lost(self.now);
        let is_any_held = self.nodes.iter().any(|node| {
            let is_to_say = node.route().is_to_say() && (awaits_lost || !node.is_lost());
            is_to_say || held.contains(&node.id())
        });
        if self.closing.looked(self.now, is_any_held, self.gang.rules().grace_failure) {
            self.ask_second(|_| true);
        }
        self.await_answers();
    }

    fn await_answers(&mut self) {
        let open = self.open_seconds();
        if let Answers::Awaited { tell: Some(rest) } = self.closing.answers(self.now, !open.is_empty()) {
            let (nodes, rest) = (self.nodes.names(open), rest.as_secs());
            self.note(format!("waiting for {nodes} to say what is left there, for {rest} s at most"));
        }
    }

    /// On these nodes it could not be proved that nothing is left. The user is told of those that were lost before the last attempt.
    pub(in crate::job) fn note_unproven(&mut self, unproven: &[NodeId]) {
        let is_before = |node: &&NodeId| self.nodes.get(**node).is_some_and(|node| node.place().is_none());
        let before: Vec<&str> = unproven.iter().filter(is_before).map(|node| self.nodes.name(*node)).collect();
        if !before.is_empty() {
            let (nodes, limit) = (fold(&before), self.patience().as_secs_f64());
            self.note(format!(
                "not proven on {nodes}, lost before: what runs there ends {limit} s after it has heard from us last (--node-timeout)"
            ));
        }
    }

    /// Whether what is left on the nodes is still to be known: what holds them is looked at meanwhile.
    pub fn is_closing(&self) -> bool {
        self.closing.is_under_way()
    }

    /// Whether nothing is waited for any more: the job has ended.
    pub fn is_closed(&self) -> bool {
        self.closing.is_over()
    }

    /// The nodes that were asked what is left there, and have not answered.
    pub fn open_seconds(&self) -> Vec<NodeId> {
        self.nodes.iter().filter(|node| node.route().is_second_open()).map(|node| node.id()).collect()
    }

    /// How long a node that was lost may take to end what is left there, before it is killed.
    pub fn second_patience(&self) -> Duration {
        self.gang.rules().grace_failure + SECOND_MARGIN
    }
}

/// How long the agent of a node that was lost may take after the grace to end, before a second connection kills it.
const SECOND_MARGIN: Duration = Duration::from_secs(1);
