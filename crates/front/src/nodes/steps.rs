//! The steps of Slurm that start agents on nodes.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use rankrun_agent::{Clock, LOOK_STEP};
use rankrun_core::job::Event;
use rankrun_core::{NodeId, reach};
use rankrun_sys::poll::{Registry, wait_for};
use rankrun_sys::signal::SignalFd;
use rustix::event::{PollFd, PollFlags};

use super::reach::Reach;
use super::srun::{Srun, Step};
use crate::Plan;
use crate::starter::Starter;
use crate::token::Token;

/// How long the step of Slurm may take to end after the job.
const BOUND: Duration = Duration::from_secs(5);

impl Reach {
    /// Starts a step of Slurm for these nodes.
    pub(crate) fn start_step(&mut self, plan: &Plan, step: usize, nodes: &[NodeId]) {
        if let Err(error) = self.try_step(plan, step, nodes) {
            self.found.events.push(Event::StepFailed { step, why: rankrun_sys::reason(&error) });
        }
    }

    fn try_step(&mut self, plan: &Plan, step: usize, nodes: &[NodeId]) -> io::Result<()> {
        let (Some(join), Some(enrolment)) = (&plan.join, &self.enrolment) else { return Ok(()) };
        // By their places: nodes that were added are of one of these.
        let places = self.hosts.targets.iter().take(join.nodes as usize + join.spares as usize);
        let all: Vec<String> = places.map(|target| target.name.clone()).collect();
        let others: Vec<String> = nodes.iter().map(|node| self.hosts.targets[node.index()].name.clone()).collect();
        let address = self.hosts.local_addr.map(|address| address.to_string());
        let what = Step {
            all: &all,
            others: &others,
            host: address.as_deref(),
            port: enrolment.port(),
            secret: &join.secret,
            agent: &plan.node,
            extra: &self.hosts.srun_args,
        };
        self.steps.start(&mut self.starter, &self.registry, step, &what)
    }
}

/// The steps of the job that this front has started, by their numbers, those that have ended among them.
#[derive(Debug, Default)]
pub(crate) struct Steps(BTreeMap<usize, Srun>);

impl Steps {
    /// Asks for one.
    fn start(&mut self, starter: &mut Starter, registry: &Registry, step: usize, what: &Step<'_>) -> io::Result<()> {
        self.0.insert(step, Srun::start(starter, registry, Token::Srun(step as u32).encode(), what)?);
        Ok(())
    }

    /// Their processes.
    pub(super) fn pids(&self) -> impl Iterator<Item = i32> {
        self.0.values().filter_map(Srun::pid)
    }

    /// Why a node was lost then, and that the srun that has started it was killed before, if it was.
    pub(super) fn with_srun(&self, node: &str, lost_at: Duration, why: String) -> String {
        let killed = self.0.values().filter(|srun| srun.is_for(node)).filter_map(|srun| srun.killed);
        let killed = killed.filter(|(_, at)| *at <= lost_at).max_by_key(|(_, at)| *at);
        let told = killed.and_then(|(signal, at)| reach::why::after_srun(&why, signal, lost_at - at));
        told.unwrap_or(why)
    }

    /// Reads what they have written.
    pub(super) fn read(&mut self, registry: &Registry) {
        self.0.values_mut().for_each(|srun| srun.read_words(registry));
    }

    /// What they have written since this was last asked for.
    pub(super) fn new_words(&mut self) -> Vec<String> {
        self.0.values_mut().flat_map(Srun::new_words).collect()
    }

    /// Reaps those that have ended now, and says so.
    pub(super) fn reap(&mut self, now: Duration, registry: &Registry) -> Vec<Event> {
        let ended = self.0.iter_mut().filter_map(|(step, srun)| srun.reap(now).then_some(*step));
        let ended: Vec<usize> = ended.collect();
        if !ended.is_empty() {
            self.read(registry);
        }
        let event = |step: usize| {
            let srun = &self.0[&step];
            let (code, words, not_started) = (srun.code.unwrap_or(0), srun.words(), srun.not_started.clone());
            Event::StepEnded { step, code, words, not_started }
        };
        ended.into_iter().map(event).collect()
    }

    /// The nodes know that the job is over: the steps end by themselves, or else they are ended.
    pub(super) fn wait(&mut self, clock: &Clock, signals: &SignalFd, registry: &Registry) {
        let until = Instant::now() + BOUND;
        let mut is_told = self.0.len() < 2;
        while self.0.values().any(|srun| srun.code.is_none()) {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                self.0.values().for_each(Srun::kill);
                return;
            }
            if rest < BOUND / 2 && !std::mem::replace(&mut is_told, true) {
                // What the first has started on a node that was asked again may be stuck. srun passes this on, and ends.
                self.0.values().for_each(Srun::end);
            }
            // Only the ends of children are waited for: nobody handles the other events any more, and they would not go away.
            wait_for(&mut [PollFd::new(signals, PollFlags::IN)], Some(rest.min(LOOK_STEP)));
            while signals.next().is_some() {}
            for srun in self.0.values_mut() {
                srun.read_words(registry);
                srun.reap(clock.now());
            }
        }
    }
}
