//! The steps of Slurm that start agents on nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rankrun_agent::{Clock, LOOK_STEP};
use rankrun_core::job::Event;
use rankrun_core::reach;
use rankrun_sys::poll::{Registry, wait_for};
use rankrun_sys::process::ProcessId;
use rankrun_sys::signal::SignalFd;
use rustix::event::{PollFd, PollFlags};

use super::srun::{Srun, Step, UNKNOWN};
use crate::starter::Starter;
use crate::token::Token;

/// How long the step of Slurm may take to end after the job.
const BOUND: Duration = Duration::from_secs(5);

/// Where the words of a step go that outlives the front.
pub(super) fn place_of_words(directory: &Path, step: usize) -> PathBuf {
    directory.join(format!("srun.{step}"))
}

/// The steps of the job that this front has started, by their numbers, those that have ended among them.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    sruns: BTreeMap<usize, Srun>,
    /// Those of which the ledger has the process.
    told: BTreeSet<usize>,
}

impl Steps {
    /// Asks for one.
    pub(super) fn start(
        &mut self,
        starter: &mut Starter,
        registry: &Registry,
        step: usize,
        what: &Step<'_>,
    ) -> io::Result<()> {
        self.sruns.insert(step, Srun::start(starter, registry, Token::Srun(step as u32).encode(), what)?);
        Ok(())
    }

    /// Goes on with one that another front has started for these nodes. Returns whether it runs.
    pub(super) fn follow(
        &mut self,
        registry: &Registry,
        step: usize,
        nodes: Vec<String>,
        id: ProcessId,
        words: &Path,
    ) -> bool {
        let Some(srun) = Srun::followed(registry, Token::Srun(step as u32).encode(), nodes, id, words) else {
            return false;
        };
        self.sruns.insert(step, srun);
        self.told.insert(step)
    }

    /// For the ledger: those whose processes are there and were not told of yet.
    pub(super) fn news(&mut self) -> Vec<(usize, ProcessId)> {
        let mut news = Vec::new();
        for (step, srun) in &self.sruns {
            if !self.told.contains(step)
                && let Some(id) = srun.pid().and_then(ProcessId::of)
            {
                news.push((*step, id));
            }
        }
        self.told.extend(news.iter().map(|(step, _)| *step));
        news
    }

    /// Their processes.
    pub(super) fn pids(&self) -> impl Iterator<Item = i32> {
        self.sruns.values().filter_map(Srun::pid)
    }

    /// Why a node was lost then, and that the srun that has started it was killed before, if it was.
    pub(super) fn with_srun(&self, node: &str, lost_at: Duration, why: String) -> String {
        let killed = self.sruns.values().filter(|srun| srun.is_for(node)).filter_map(|srun| srun.killed);
        let killed = killed.filter(|(_, at)| *at <= lost_at).max_by_key(|(_, at)| *at);
        let told = killed.and_then(|(signal, at)| reach::why::after_srun(&why, signal, lost_at - at));
        told.unwrap_or(why)
    }

    /// Reads what they have written.
    pub(super) fn read(&mut self, registry: &Registry) {
        self.sruns.values_mut().for_each(|srun| srun.read_words(registry));
    }

    /// What they have written since this was last asked for.
    pub(super) fn new_words(&mut self) -> Vec<String> {
        self.sruns.values_mut().flat_map(Srun::new_words).collect()
    }

    /// Reaps those that have ended now, and says so.
    pub(super) fn reap(&mut self, now: Duration, registry: &Registry) -> Vec<Event> {
        let ended = self.sruns.iter_mut().filter_map(|(step, srun)| srun.reap(now, registry).then_some(*step));
        let ended: Vec<usize> = ended.collect();
        if !ended.is_empty() {
            self.read(registry);
        }
        let event = |step: usize| {
            let srun = &self.sruns[&step];
            let (code, mut words, not_started) = (srun.code.unwrap_or(0), srun.words(), srun.not_started.clone());
            if code == UNKNOWN && words.is_empty() {
                words = "srun has ended".to_owned();
            }
            Event::StepEnded { step, code, words, not_started }
        };
        ended.into_iter().map(event).collect()
    }

    /// The nodes know that the job is over: the steps end by themselves, or else they are ended.
    pub(super) fn wait(&mut self, clock: &Clock, signals: &SignalFd, registry: &Registry) {
        let until = Instant::now() + BOUND;
        let mut is_told = self.sruns.len() < 2;
        while self.sruns.values().any(|srun| srun.code.is_none()) {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                self.sruns.values().for_each(Srun::kill);
                return;
            }
            if rest < BOUND / 2 && !std::mem::replace(&mut is_told, true) {
                // What the first has started on a node that was asked again may be stuck. srun passes this on, and ends.
                self.sruns.values().for_each(Srun::end);
            }
            // Only the ends of children are waited for: nobody handles the other events any more, and they would not go away.
            wait_for(&mut [PollFd::new(signals, PollFlags::IN)], Some(rest.min(LOOK_STEP)));
            while signals.next().is_some() {}
            for srun in self.sruns.values_mut() {
                srun.read_words(registry);
                srun.reap(clock.now(), registry);
            }
        }
    }
}
