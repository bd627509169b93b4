//! What is counted of a rank: how often each stack was seen.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::stacks::{Frame, ThreadState};

/// The time of a profile is divided into so many parts: a rank that differs does so in most of them.
pub const WINDOWS: usize = 10;
/// Different stacks of a rank that are kept. What comes beyond them is counted as one.
pub const MAX_STACKS: usize = 65_536;
/// Calls of the tree of a rank that are kept.
const MAX_NODES: usize = 16 * MAX_STACKS;
/// Names of threads and of system calls that are kept, of each kind.
const MAX_NAMES: usize = 4096;
/// The name of the main thread.
pub const MAIN: &str = "main thread";
/// The function of a stack that could not be read.
pub const NOT_READABLE: &str = "(not readable)";
/// The function of all stacks beyond the bound.
pub(super) const MORE: &str = "(more stacks than are kept)";
/// The last name.
const MORE_NAMES: &str = "(others)";

/// What the kernel says that a thread does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activity {
    /// It runs (R).
    Running,
    /// It could run, and has no CPU (R, and does not stop before it gets one).
    Queued,
    /// It waits (S).
    Sleeping,
    /// It waits, mostly for a disk, and no signal wakes it (D).
    Disk,
    /// It is stopped, traced or has ended.
    Other,
}

impl Activity {
    pub fn of(state: ThreadState) -> Activity {
        match state {
            ThreadState::Running => Activity::Running,
            ThreadState::Sleeping => Activity::Sleeping,
            ThreadState::Uninterruptible => Activity::Disk,
            ThreadState::Stopped | ThreadState::Traced | ThreadState::Zombie | ThreadState::Other(_) => Activity::Other,
        }
    }

    pub(super) fn state(self) -> ThreadState {
        match self {
            Activity::Running | Activity::Queued => ThreadState::Running,
            Activity::Sleeping => ThreadState::Sleeping,
            Activity::Disk => ThreadState::Uninterruptible,
            Activity::Other => ThreadState::Stopped,
        }
    }
}

/// What the process has used since the look before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Page faults without and with input.
    pub faults: u64,
    pub major_faults: u64,
    /// CPU time in the program and in the kernel.
    pub user_us: u64,
    pub system_us: u64,
    /// The time for which its main thread could have run and had no CPU.
    pub delay_us: u64,
}

impl Cost {
    pub(super) fn add(&mut self, other: Cost) {
        self.faults = self.faults.saturating_add(other.faults);
        self.major_faults = self.major_faults.saturating_add(other.major_faults);
        self.user_us = self.user_us.saturating_add(other.user_us);
        self.system_us = self.system_us.saturating_add(other.system_us);
        self.delay_us = self.delay_us.saturating_add(other.delay_us);
    }
}

/// A call in the tree of stacks: the function, and what it was called by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Node {
    /// `None`: the outermost call. Always before its callees.
    pub parent: Option<u32>,
    pub frame: u32,
}

/// How often a thread was seen at one place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Count {
    /// The innermost call.
    pub node: u32,
    pub thread: u32,
    pub activity: Activity,
    /// The system call that it sleeps in.
    pub call: Option<u32>,
    /// It says what its rank did: it is the main thread, or the thread for which that one waits.
    pub is_lead: bool,
    /// In each part of the time.
    pub samples: [u32; WINDOWS],
    pub cost: Cost,
}

impl Count {
    pub fn total(&self) -> u64 {
        self.samples.iter().map(|count| u64::from(*count)).sum()
    }
}

/// For how long threads were stopped to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stops {
    pub count: u64,
    /// From the moment at which the thread was seen to stand still.
    pub total_us: u64,
    /// From the request to stop on: this includes the time until it gets a CPU to stop on.
    pub longest_us: u64,
}

impl Stops {
    fn add(&mut self, other: Stops) {
        self.count = self.count.saturating_add(other.count);
        self.total_us = self.total_us.saturating_add(other.total_us);
        self.longest_us = self.longest_us.max(other.longest_us);
    }
}

/// All samples of a rank, folded.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Samples {
    pub command: String,
    /// How often it was looked at, and how often in vain.
    pub looks: u32,
    pub missed: u32,
    /// The time from the first look to the last, in microseconds.
    pub time_us: u64,
    pub threads: Vec<String>,
    pub frames: Vec<Frame>,
    pub calls: Vec<String>,
    pub nodes: Vec<Node>,
    pub counts: Vec<Count>,
    pub stops: Stops,
    /// Why it could not be looked at, at the last time.
    pub unseen: Option<String>,
    /// Why it was not looked at to the end.
    pub over: Option<String>,
}

impl Samples {
    /// The frames of a stack, outermost first.
    pub fn stack(&self, node: u32) -> Vec<&Frame> {
        let mut frames = Vec::new();
        let mut next = Some(node);
        while let Some(node) = next.and_then(|at| self.nodes.get(at as usize)) {
            frames.extend(self.frames.get(node.frame as usize));
            // A parent is before its callees: a message that says otherwise has no loop.
            next = node.parent.filter(|parent| next.is_some_and(|at| *parent < at));
        }
        frames.reverse();
        frames
    }

    /// Seconds that a sample stands for.
    pub fn seconds_per_look(&self) -> f64 {
        if self.looks == 0 { 0.0 } else { self.time_us as f64 / 1e6 / f64::from(self.looks) }
    }
}

/// One sample.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    pub thread: &'a str,
    /// Innermost first.
    pub frames: &'a [Frame],
    pub activity: Activity,
    pub call: Option<&'a str>,
    pub is_lead: bool,
    pub window: usize,
    pub cost: Cost,
}

/// What tells one count from another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    node: u32,
    thread: u32,
    activity: Activity,
    call: Option<u32>,
    is_lead: bool,
}

/// Folds samples.
#[derive(Clone, Debug, Default)]
pub struct Gathering {
    samples: Samples,
    threads: HashMap<String, u32>,
    frames: HashMap<Frame, u32>,
    calls: HashMap<String, u32>,
    nodes: HashMap<Node, u32>,
    counts: HashMap<Key, usize>,
}

impl Gathering {
    /// All but the stacks.
    pub fn about(&mut self) -> &mut Samples {
        &mut self.samples
    }

    /// Counts a sample.
    pub fn add(&mut self, sample: Sample<'_>) {
        let mut samples = [0; WINDOWS];
        samples[sample.window.min(WINDOWS - 1)] = 1;
        let thread = index_of(&mut self.threads, &mut self.samples.threads, sample.thread);
        let call = sample.call.map(|call| index_of(&mut self.calls, &mut self.samples.calls, call));
        let node = self.node_of(sample.frames.iter().rev());
        let key = Key { node, thread, activity: sample.activity, call, is_lead: sample.is_lead };
        self.count(key, &samples, sample.cost);
    }

    /// Adds what was gathered at another time.
    pub fn merge(&mut self, other: &Samples) {
        let own = &mut self.samples;
        // A process may have replaced its program meanwhile.
        if !other.command.is_empty() {
            own.command.clone_from(&other.command);
        }
        own.looks = own.looks.saturating_add(other.looks);
        own.missed = own.missed.saturating_add(other.missed);
        own.time_us = own.time_us.saturating_add(other.time_us);
        own.stops.add(other.stops);
        own.unseen = other.unseen.clone().or(own.unseen.take());
        own.over = other.over.clone().or(own.over.take());
        let mut known: HashMap<u32, u32> = HashMap::new();
        for count in &other.counts {
            let name = |names: &[String], at: u32| names.get(at as usize).cloned().unwrap_or_default();
            let thread = name(&other.threads, count.thread);
            let thread = index_of(&mut self.threads, &mut self.samples.threads, &thread);
            let call = count.call.map(|call| name(&other.calls, call));
            let call = call.map(|call| index_of(&mut self.calls, &mut self.samples.calls, &call));
            let node = match known.get(&count.node) {
                Some(node) => *node,
                None => {
                    let node = self.node_of(other.stack(count.node).into_iter());
                    known.insert(count.node, node);
                    node
                }
            };
            let key = Key { node, thread, activity: count.activity, call, is_lead: count.is_lead };
            self.count(key, &count.samples, count.cost);
        }
    }

    /// What was gathered. Nothing of it is kept.
    pub fn take(&mut self) -> Samples {
        std::mem::take(self).samples
    }

    fn count(&mut self, key: Key, samples: &[u32; WINDOWS], cost: Cost) {
        let is_full = self.counts.len() >= MAX_STACKS;
        let key = match is_full && !self.counts.contains_key(&key) {
            true => Key { node: self.more(), call: None, ..key },
            false => key,
        };
        let Key { node, thread, activity, call, is_lead } = key;
        let at = *self.counts.entry(key).or_insert_with(|| {
            let samples = [0; WINDOWS];
            self.samples.counts.push(Count { node, thread, activity, call, is_lead, samples, cost: Cost::default() });
            self.samples.counts.len() - 1
        });
        let count = &mut self.samples.counts[at];
        for (own, more) in count.samples.iter_mut().zip(samples) {
            *own = own.saturating_add(*more);
        }
        count.cost.add(cost);
    }

    /// The place of a stack in the tree. The frames come outermost first.
    fn node_of<'a>(&mut self, frames: impl Iterator<Item = &'a Frame>) -> u32 {
        let mut parent = None;
        for frame in frames {
            if self.samples.nodes.len() >= MAX_NODES {
                return self.more();
            }
            parent = Some(self.child(parent, frame));
        }
        parent.unwrap_or_else(|| self.child(None, &special(NOT_READABLE)))
    }

    fn child(&mut self, parent: Option<u32>, frame: &Frame) -> u32 {
        let frame = match self.frames.get(frame) {
            Some(known) => *known,
            None => {
                let number = self.samples.frames.len() as u32;
                self.samples.frames.push(frame.clone());
                self.frames.insert(frame.clone(), number);
                number
            }
        };
        let node = Node { parent, frame };
        *self.nodes.entry(node).or_insert_with(|| {
            self.samples.nodes.push(node);
            self.samples.nodes.len() as u32 - 1
        })
    }

    fn more(&mut self) -> u32 {
        self.child(None, &special(MORE))
    }
}

/// A frame that is no function.
pub(super) fn special(name: &str) -> Frame {
    Frame { function: name.to_owned(), file: None, line: None, is_python: false }
}

fn index_of(known: &mut HashMap<String, u32>, names: &mut Vec<String>, name: &str) -> u32 {
    match known.get(name) {
        Some(index) => *index,
        None if names.len() > MAX_NAMES => MAX_NAMES as u32,
        None => {
            let index = names.len() as u32;
            let name = if names.len() == MAX_NAMES { MORE_NAMES } else { name };
            names.push(name.to_owned());
            known.insert(name.to_owned(), index);
            index
        }
    }
}
