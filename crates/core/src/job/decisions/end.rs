//! What is known when an attempt or the job has ended, for the report.

use std::ffi::OsString;
use std::time::Duration;

use crate::event::End;
use crate::fence::Fate;
use crate::ids::NodeId;
use crate::job::machine::Job;
use crate::job::parts::about::Containment;
use crate::job::parts::node::Node;
use crate::memory::Memory;
use crate::report::{AttemptReport, Left, OutputFate};
use crate::spec::job::{CleanShm, RestartScope};

/// What only the front's devices know of the end.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Ended {
    /// How long the job took, and when it started, since the Unix epoch.
    pub took: Duration,
    pub started: Duration,
    /// Nothing is left of the commands that were run on this machine.
    pub are_commands_gone: bool,
    /// The nodes on which it could not be proved that nothing is left.
    pub unproven: Vec<NodeId>,
    /// By node, what others than its agent have found in /dev/shm there.
    pub found: Vec<Option<Memory>>,
    /// All output was written, or kept beside the report.
    pub is_written: bool,
    pub is_kept: bool,
    /// An agent was given up while it still had output.
    pub has_given_up_output: bool,
    /// Why a node is lost, where that is known.
    pub why_lost: Option<String>,
}

impl Job {
    /// What is known of an attempt that another may follow, when all nodes have sent all, or are lost.
    pub(in crate::job) fn end_of_attempt(&self) -> End {
        // Of one that had sent all of it nothing is left.
        let is_open = |node: &&Node| node.is_lost() && !node.is_drained() && !node.route().is_proved();
        self.end(Ended {
            took: self.now,
            are_commands_gone: true,
            unproven: self.nodes.iter().filter(is_open).map(Node::id).collect(),
            is_written: true,
            why_lost: self.nodes.lost().find_map(Node::lost).map(|lost| lost.why.clone()),
            ..Ended::default()
        })
    }

    /// What is known of the end.
    pub fn end(&self, ended: Ended) -> End {
        let (mut processes, mut released) = (Vec::new(), 0);
        for summary in self.nodes.iter().filter_map(Node::summary) {
            processes.extend(summary.left.iter().cloned());
            released += summary.released;
        }
        let mut memory = Memory::default();
        let mut unchecked = Vec::new();
        for node in self.nodes.iter().filter(|node| node.place().is_some() || ended.unproven.contains(&node.id())) {
            match self.memory_of(node, &ended) {
                Some(found) => {
                    memory.created.extend(found.created);
                    memory.doubtful.extend(found.doubtful);
                    memory.more_created += found.more_created;
                    memory.more_doubtful += found.more_doubtful;
                }
                None => unchecked.push(node.name().to_owned()),
            }
        }
        let removes = self.spec.clean_shm == CleanShm::Job;
        let is_removed = |node: &Node| node.summary().map_or(removes, |summary| summary.removes_memory);
        let unproven = || ended.unproven.iter().filter_map(|node| self.nodes.get(*node));
        let was_lost_before = |node: &Node| node.place().is_none() && node.fate() != Fate::Left;
        let (containment, containment_note) = self.containment();
        let texts = |names: Vec<OsString>| names.into_iter().map(|name| name.to_string_lossy().into_owned()).collect();
        End {
            took: ended.took,
            started: ended.started,
            containment,
            containment_note,
            left: Left {
                proven: ended.are_commands_gone && ended.unproven.is_empty(),
                unproven: unproven().map(|node| node.name().to_owned()).collect(),
                workers: self.gang.ranks().iter().filter(|rank| rank.pid.is_some()).count() as u32,
                processes,
                released,
                shared_memory: texts(memory.created),
                shared_memory_removed: self.nodes.seated().all(is_removed),
                shared_memory_doubtful: texts(memory.doubtful),
                shared_memory_more: memory.more_created,
                shared_memory_doubtful_more: memory.more_doubtful,
                shared_memory_unchecked: unchecked,
                output: match (self.nodes.seated().all(Node::is_drained), ended.is_written, ended.is_kept) {
                    (false, _, _) if ended.has_given_up_output => OutputFate::Lost,
                    (false, _, _) => OutputFate::LostWithAgent,
                    (true, true, true) => OutputFate::KeptBesideReport,
                    (true, true, false) => OutputFate::Written,
                    (true, false, _) => OutputFate::Lost,
                },
            },
            only_lost_before: ended.are_commands_gone && !ended.unproven.is_empty() && unproven().all(was_lost_before),
            why_lost: ended.why_lost,
            unguarded: self.unguarded.clone(),
            saved: None,
            standings: self.standings.clone(),
            stacks: self.table_for_report().filter(|_| self.gang.outside().is_some()).cloned(),
            core: None,
            is_quoted_above: false,
            attempts: self.attempts_before(),
            attempts_left_out: self.past_attempts().left_out(),
            given_up: self.given_up().map(str::to_owned),
        }
    }

    /// What the job has left in /dev/shm of a node, as its agent has said, or as others have found; `None` if nobody has looked. Where a
    /// job has several nodes, a name alone does not say where the file is.
    fn memory_of(&self, node: &Node, ended: &Ended) -> Option<Memory> {
        let by_agent = node.summary().and_then(|summary| summary.memory.clone());
        let mut memory = match (by_agent, ended.found.get(node.id().index()).cloned().flatten()) {
            (Some(mut memory), Some(found)) => {
                memory.add(found);
                memory
            }
            (by_agent, found) => by_agent.or(found)?,
        };
        if self.nodes.seated().count() > 1 {
            for name in memory.created.iter_mut().chain(&mut memory.doubtful) {
                let mut text = OsString::from(format!("{}:", node.name()));
                text.push(&*name);
                *name = text;
            }
        }
        Some(memory)
    }

    /// How the workers are contained, and why not better: one value for all nodes, the weakest.
    fn containment(&self) -> (String, Option<String>) {
        let of = |node: &Node| node.about().map(|about| about.containment.clone());
        let is_weak = |node: &&Node| !matches!(of(node), Some(Containment::Cgroup));
        let weakest = self.nodes.iter().find(is_weak).or(self.nodes.iter().next()).and_then(of);
        match weakest {
            Some(Containment::Subreaper { why }) => ("subreaper".to_owned(), Some(why)),
            Some(Containment::Cgroup) => ("cgroup".to_owned(), None),
            None => ("unknown".to_owned(), None),
        }
    }

    /// The attempts before the one that the report describes. While the next is awaited, that is the last one.
    fn attempts_before(&self) -> Vec<AttemptReport> {
        let is_described =
            |past: &AttemptReport| self.spec.restart.scope == RestartScope::Gang && past.attempt == self.spec.attempt.0;
        self.past_attempts().kept().iter().filter(|past| !is_described(past)).cloned().collect()
    }
}
