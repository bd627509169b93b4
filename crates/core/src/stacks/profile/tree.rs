//! The calls of all ranks in one tree, with what each rank did in each call.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::meaning::{Kind, Meaning, is_special, meaning};
use super::request::RankProfile;
use super::samples::{Activity, Cost, Count, MAIN, Samples, WINDOWS};
use super::statistics::{Shares, Values};
use crate::stacks::Frame;

/// A function.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) file: Option<String>,
    pub(super) is_python: bool,
    /// It stands for a call in which other ranks are waited for.
    pub(super) is_for_others: bool,
}

impl Function {
    fn of(frame: &Frame) -> Function {
        let Frame { function, file, is_python, .. } = frame;
        Function { name: function.clone(), file: file.clone(), is_python: *is_python, is_for_others: false }
    }

    fn call(name: &str) -> Function {
        Function { name: name.to_owned(), file: None, is_python: false, is_for_others: true }
    }

    /// Whether it is the program's, and not of a library that the program calls.
    pub(super) fn is_of_program(&self) -> bool {
        const PLUMBING: [&str; 5] =
            ["threading.py", "distributed_c10d.py", "c10d_logger.py", "_contextlib.py", "runpy.py"];
        let file = self.file.as_deref().unwrap_or_default();
        let is_library = || file.contains(".so") || file == "vdso" || file.is_empty() || self.name.starts_with("0x");
        match (self.is_for_others, self.is_python) {
            (true, _) => false,
            // A generator expression is of the function that it is written in, which calls it.
            (false, true) if self.name.ends_with('>') && self.name.contains(".<") => false,
            (false, true) => !file.starts_with("<frozen") && !PLUMBING.contains(&file),
            (false, false) => !is_library() && !is_of_interpreter(file) && !is_of_libc(file),
        }
    }
}

/// Whether a source file is of CPython, whose builds may have debug information.
fn is_of_interpreter(file: &str) -> bool {
    const FILES: [&str; 26] = [
        "ceval.c",
        "gcmodule.c",
        "object.c",
        "obmalloc.c",
        "longobject.c",
        "listobject.c",
        "dictobject.c",
        "tupleobject.c",
        "unicodeobject.c",
        "call.c",
        "methodobject.c",
        "abstract.c",
        "rangeobject.c",
        "floatobject.c",
        "setobject.c",
        "typeobject.c",
        "bytesobject.c",
        "thread_pthread.h",
        "ceval_gil.h",
        "fileutils.c",
        "fileio.c",
        "bufferedio.c",
        "_threadmodule.c",
        "timemodule.c",
        "posixmodule.c",
        "gc.c",
    ];
    FILES.contains(&file) || file.starts_with("pycore_")
}

/// Whether a source file is of the C library or of the code that the compiler adds.
fn is_of_libc(file: &str) -> bool {
    file.ends_with(".S") || file.starts_with("libc-") || ["libc_start_call_main.h", "libc-start.c"].contains(&file)
}

/// What a rank did in a call, and in what that has called.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) samples: [f64; WINDOWS],
    /// Those in which it had a CPU; did not wait for other ranks besides; could run, and had no CPU.
    pub(super) running: f64,
    pub(super) computing: f64,
    pub(super) queued: f64,
    /// Those in which it waits for other ranks.
    pub(super) waiting: f64,
    /// Those of the others in which it could run, and had no CPU.
    pub(super) waiting_for_cpu: f64,
    pub(super) kinds: BTreeMap<Kind, f64>,
    pub(super) cost: Cost,
    /// The lines at which it was seen itself.
    pub(super) lines: BTreeMap<u32, f64>,
    /// System calls.
    pub(super) calls: BTreeMap<String, f64>,
}

impl Tally {
    pub(super) fn total(&self) -> f64 {
        self.samples.iter().sum()
    }

    fn add(&mut self, count: &Count, kind: Kind, call: Option<&str>, waits: bool) {
        let total = count.total() as f64;
        self.waiting += if waits { total } else { 0.0 };
        for (own, more) in self.samples.iter_mut().zip(count.samples) {
            *own += f64::from(more);
        }
        match count.activity {
            Activity::Running => {
                self.running += total;
                self.computing += if waits { 0.0 } else { total };
            }
            Activity::Queued => {
                self.queued += total;
                self.waiting_for_cpu += if waits { 0.0 } else { total };
            }
            Activity::Sleeping | Activity::Disk | Activity::Other => {}
        }
        *self.kinds.entry(kind).or_default() += total;
        self.cost.add(count.cost);
        if let Some(call) = call {
            *self.calls.entry(call.to_owned()).or_default() += total;
        }
    }
}

/// A call.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    pub(super) function: Function,
    pub(super) parent: Option<usize>,
    pub(super) children: Vec<usize>,
    pub(super) tallies: HashMap<usize, Tally>,
}

/// A function, whoever has called it.
#[derive(Clone, Debug, Default)]
pub(super) struct Total {
    pub(super) tallies: HashMap<usize, Tally>,
    /// Samples of all ranks in it, and in it alone.
    pub(super) all: f64,
    pub(super) own: f64,
    pub(super) running: f64,
}

/// All calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    pub(super) branches: Vec<Branch>,
    pub(super) roots: Vec<usize>,
    children: HashMap<(Option<usize>, Function), usize>,
    pub(super) functions: BTreeMap<Function, Total>,
    /// What each rank did in all.
    pub(super) ranks: Vec<Tally>,
    /// What it did while it waited for other ranks, and the calls in which.
    pub(super) waiting: Vec<Tally>,
    pub(super) waits: Vec<BTreeMap<String, f64>>,
}

impl Tree {
    /// Of what these ranks did: one thread of each at a time.
    pub(super) fn new(ranks: &[&RankProfile]) -> Tree {
        let mut tree = Tree {
            ranks: vec![Tally::default(); ranks.len()],
            waiting: vec![Tally::default(); ranks.len()],
            waits: vec![BTreeMap::new(); ranks.len()],
            ..Tree::default()
        };
        for (rank, profile) in ranks.iter().enumerate() {
            for count in profile.samples.counts.iter().filter(|count| count.is_lead) {
                tree.count(rank, &profile.samples, count);
            }
        }
        tree
    }

    fn count(&mut self, rank: usize, samples: &Samples, count: &Count) {
        let outer: Vec<&Frame> = samples.stack(count.node);
        let frames: Vec<Frame> = outer.iter().rev().map(|frame| (*frame).clone()).collect();
        if is_special(&frames) {
            return;
        }
        let call = count.call.and_then(|call| samples.calls.get(call as usize)).map(String::as_str);
        let is_main = samples.threads.get(count.thread as usize).is_some_and(|name| name == MAIN);
        let Meaning { others, kind, .. } = meaning(&frames, count.activity, call, is_main);
        let inside = others.as_ref().map_or(0, |(_, inside)| *inside).min(frames.len());
        let mut path: Vec<Function> = frames[inside..].iter().rev().map(Function::of).collect();
        path.extend(others.as_ref().map(|(name, _)| Function::call(name)));
        self.ranks[rank].add(count, kind, call, others.is_some());
        if let Some((name, _)) = &others {
            self.waiting[rank].add(count, kind, call, others.is_some());
            *self.waits[rank].entry(name.clone()).or_default() += count.total() as f64;
        }
        let mut parent = None;
        for function in &path {
            let at = self.child(parent, function);
            self.branches[at].tallies.entry(rank).or_default().add(count, kind, call, others.is_some());
            parent = Some(at);
        }
        let total = count.total() as f64;
        let line = frames[inside..].iter().find_map(|frame| Some((Function::of(frame), frame.line?)));
        if let Some((function, line)) = &line
            && let Some(at) = self.on_path(parent, function)
        {
            *self.branches[at].tallies.entry(rank).or_default().lines.entry(*line).or_default() += total;
        }
        // A function that calls itself counts once.
        for function in path.iter().collect::<BTreeSet<_>>() {
            let known = self.functions.entry(function.clone()).or_default();
            known.tallies.entry(rank).or_default().add(count, kind, call, others.is_some());
            known.all += total;
            known.running += if count.activity == Activity::Running { total } else { 0.0 };
        }
        if let Some(innermost) = path.last() {
            self.functions.entry(innermost.clone()).or_default().own += total;
        }
    }

    /// The innermost call of a function on the path to a call.
    fn on_path(&self, from: Option<usize>, function: &Function) -> Option<usize> {
        self.path(from?).into_iter().rev().find(|at| self.branches[*at].function == *function)
    }

    fn child(&mut self, parent: Option<usize>, function: &Function) -> usize {
        let next = self.branches.len();
        let at = *self.children.entry((parent, function.clone())).or_insert(next);
        if at == next {
            let (function, tallies) = (function.clone(), HashMap::new());
            self.branches.push(Branch { function, parent, children: Vec::new(), tallies });
            match parent {
                Some(parent) => self.branches[parent].children.push(at),
                None => self.roots.push(at),
            }
        }
        at
    }

    /// The calls from the outermost to this one.
    pub(super) fn path(&self, at: usize) -> Vec<usize> {
        let mut path: Vec<usize> = std::iter::successors(Some(at), |at| self.branches[*at].parent).collect();
        path.reverse();
        path
    }

    /// The looks at a rank in which its stack was read.
    pub(super) fn looks(&self, rank: usize) -> f64 {
        self.ranks[rank].total()
    }

    /// The share of each rank's looks.
    pub(super) fn shares(&self, tally: impl Fn(usize) -> Option<[f64; WINDOWS]>) -> Shares {
        let own: Vec<[f64; WINDOWS]> =
            (0..self.ranks.len()).map(|rank| tally(rank).unwrap_or([0.0; WINDOWS])).collect();
        let all = own.iter().enumerate().map(|(rank, own)| own.iter().sum::<f64>() / self.looks(rank).max(1.0));
        let part = |part: usize| -> Vec<Option<f64>> {
            let share = |rank: usize| {
                let looks = self.ranks[rank].samples[part];
                (looks > 0.0).then(|| own[rank][part] / looks)
            };
            (0..own.len()).map(share).collect()
        };
        Shares { all: Values::new(all.collect()), parts: (0..WINDOWS).map(part).collect() }
    }

    pub(super) fn shares_of(&self, branch: usize) -> Shares {
        let tallies = &self.branches[branch].tallies;
        self.shares(|rank| tallies.get(&rank).map(|tally| tally.samples))
    }
}
