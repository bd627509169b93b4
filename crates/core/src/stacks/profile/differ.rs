//! Which ranks differ from the others, and for which of them the others wait.

use std::collections::BTreeMap;

use super::meaning::Kind;
use super::statistics::{LEAST, Values};
use super::tree::{Function, Tally, Tree};

/// The part of a difference that a call must have for the search to go on in it.
const MOST: f64 = 0.6;
/// The part of the time of the slowest rank that another one must be late by to be named beside it.
const NEARLY: f64 = 0.5;
/// The part of its samples that says what a rank does.
const DOMINANT: f64 = 0.4;
/// Of a rank's share in a function, what the others have at most if it is not theirs.
const FOREIGN: f64 = 0.005;
/// Page faults a second, how many times those of the others, and the part of the CPU time in the kernel, of a rank that is slow by them.
const FAULTS: f64 = 200.0;
const TIMES: f64 = 5.0;
const IN_KERNEL: f64 = 0.25;
/// The part of the time in which a rank that lacks a CPU could run and had none, and how much more often than the others.
const QUEUED: f64 = 0.3;
/// The part of a difference in time that must be CPU time, and how many times what chance explains.
const ON_CPU: f64 = 0.2;
const CHANCES: f64 = 3.0;
/// Or how many times the CPU time of the others.
const MULTIPLE: f64 = 2.0;

/// A call in which a rank has another share than the others.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Difference {
    pub(super) rank: usize,
    pub(super) branch: usize,
    pub(super) share: f64,
    pub(super) others: f64,
}

impl Difference {
    pub(super) fn size(&self) -> f64 {
        self.share - self.others
    }
}

/// A rank that waits less for the others than they do.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Late {
    pub(super) rank: usize,
    pub(super) waits: f64,
    pub(super) others_wait: f64,
    /// The call in which they do.
    pub(super) call: String,
}

/// All calls in which a rank spends more of its time than the others: the innermost ones. What it spends less in follows from these.
pub(super) fn differences(tree: &Tree, rank: usize) -> Vec<Difference> {
    let mut found = Vec::new();
    for root in &tree.roots {
        search(tree, rank, *root, &mut found);
    }
    found.sort_by(|one: &Difference, other| other.size().abs().total_cmp(&one.size().abs()));
    found
}

/// Returns how far the rank differs in this call.
fn search(tree: &Tree, rank: usize, root: usize, found: &mut Vec<Difference>) {
    // Stacks may be deep: the calls that are still to be looked at are in a list, and each is judged after those inside of it.
    let mut order = vec![root];
    let mut next = 0;
    while let Some(at) = order.get(next).copied() {
        order.extend(&tree.branches[at].children);
        next += 1;
    }
    let mut sizes: BTreeMap<usize, f64> = BTreeMap::new();
    for at in order.into_iter().rev() {
        let shares = tree.shares_of(at);
        let Some(size) = shares.difference(rank, tree.looks(rank)) else { continue };
        sizes.insert(at, size);
        let is_inside = tree.branches[at].children.iter().any(|child| {
            sizes.get(child).is_some_and(|inside| inside.signum() == size.signum() && inside.abs() >= MOST * size.abs())
        });
        if !is_inside && size > 0.0 {
            let share = shares.all.of(rank);
            found.push(Difference { rank, branch: at, share, others: share - size });
        }
    }
}

/// The ranks for which the others wait, the latest first.
pub(super) fn late(tree: &Tree) -> Vec<Late> {
    let waiting = tree.shares(|rank| Some(tree.waiting[rank].samples));
    let is_late = |rank: usize| {
        let difference = waiting.difference(rank, tree.looks(rank)).filter(|difference| *difference < 0.0)?;
        let waits = waiting.all.of(rank);
        Some(Late { rank, waits, others_wait: waits - difference, call: call_of_others(tree, rank) })
    };
    let mut late: Vec<Late> = (0..tree.ranks.len()).filter_map(is_late).collect();
    let deficit = |late: &Late| late.others_wait - late.waits;
    late.sort_by(|one, other| deficit(other).total_cmp(&deficit(one)));
    // All wait for the slowest: a rank that is slow by much less than that one is not the reason.
    let most = late.first().map_or(0.0, deficit);
    late.retain(|late| deficit(late) >= NEARLY * most);
    late
}

/// The call in which the other ranks wait for most of that time.
fn call_of_others(tree: &Tree, rank: usize) -> String {
    let mut calls: BTreeMap<&str, f64> = BTreeMap::new();
    for (_, waits) in tree.waits.iter().enumerate().filter(|(other, _)| *other != rank) {
        waits.iter().for_each(|(call, count)| *calls.entry(call).or_default() += count);
    }
    let most = calls.into_iter().max_by(|one, other| one.1.total_cmp(&other.1));
    most.map(|(call, _)| call.to_owned()).unwrap_or_default()
}

/// Where a late rank spends the time that the others wait: the innermost call that has most of it. Where it lacked a CPU says something
/// only if nothing else does: that may be anywhere.
pub(super) fn place_of(tree: &Tree, rank: usize) -> Option<Difference> {
    let at_work = |tally: &Tally| tally.total() - tally.waiting;
    let with_cpu = |tally: &Tally| at_work(tally) - tally.waiting_for_cpu;
    let branch = innermost(tree, rank, with_cpu).or_else(|| innermost(tree, rank, at_work))?.branch;
    Some(difference_of(tree, rank, branch, at_work))
}

/// How far a rank differs in a call, in what `part` counts of it.
fn difference_of(tree: &Tree, rank: usize, branch: usize, part: impl Fn(&Tally) -> f64) -> Difference {
    let tallies = &tree.branches[branch].tallies;
    let share = |rank: usize| tallies.get(&rank).map_or(0.0, &part) / tree.looks(rank).max(1.0);
    let shares = Values::new((0..tree.ranks.len()).map(share).collect());
    Difference { rank, branch, share: shares.of(rank), others: shares.of_others(rank).unwrap_or(0.0) }
}

/// The innermost call that has most of what a rank does more than the others.
fn innermost(tree: &Tree, rank: usize, part: impl Fn(&Tally) -> f64) -> Option<Difference> {
    let best = |all: &[usize]| {
        let own = all.iter().filter(|at| !tree.branches[**at].function.is_for_others);
        let sizes = own.map(|at| difference_of(tree, rank, *at, &part));
        sizes.max_by(|one, other| one.size().total_cmp(&other.size())).filter(|it| it.size() > 0.0)
    };
    let mut chosen: Option<Difference> = None;
    let mut most = 0.0_f64;
    let mut next = best(&tree.roots);
    while let Some(found) = next {
        most = most.max(found.size());
        if found.size() >= MOST * most {
            chosen = Some(found);
        } else {
            break;
        }
        next = best(&tree.branches[found.branch].children);
    }
    chosen.filter(|found| found.size() >= LEAST / 2.0)
}

/// The function of the program in which a call is: the call itself, or what has called it.
pub(super) fn function_of(tree: &Tree, branch: usize) -> usize {
    let path = tree.path(branch);
    let function = |at: &usize| &tree.branches[*at].function;
    if function(&branch).is_for_others {
        return branch;
    }
    let own = |at: &&usize| function(at).is_of_program();
    // What a program in Python calls of native code is inside of its function.
    let python = path.iter().rev().find(|at| own(at) && function(at).is_python);
    python.or(path.iter().rev().find(own)).copied().unwrap_or(branch)
}

/// What takes the time of a rank in a call. `None`: it has no more CPU time there than the others, and only waits for CPUs as they do.
/// With more ranks than CPUs, chance gives one of them less of its CPU for a while.
pub(super) fn kind(tree: &Tree, found: &Difference) -> Option<Kind> {
    let Difference { rank, branch, .. } = *found;
    let tally = tree.branches[branch].tallies.get(&rank)?;
    if tree.branches[branch].function.is_for_others {
        return computes_less(tree, found).then_some(Kind::Waits);
    }
    let total = tally.total().max(1.0);
    let waits = tally.kinds.iter().filter(|(kind, _)| !matches!(kind, Kind::Cpu | Kind::Unknown));
    let most = waits.max_by(|one, other| one.1.total_cmp(other.1)).filter(|(_, count)| **count >= DOMINANT * total);
    if let Some((kind, _)) = most {
        return Some(*kind);
    }
    if is_slow_by_faults(tree, rank, tally) {
        return Some(Kind::Memory);
    }
    let function = &tree.branches[function_of(tree, branch)].function;
    match () {
        () if is_foreign(tree, rank, function) => Some(Kind::Branch),
        () if computes_more(tree, found) => Some(Kind::Cpu),
        () if is_starved(tree, rank) => Some(Kind::Starved),
        () => None,
    }
}

/// Whether a rank has a CPU for more of its time in a call than the others.
fn computes_more(tree: &Tree, found: &Difference) -> bool {
    let tallies = &tree.branches[found.branch].tallies;
    more_cpu(tree, found, |rank| tallies.get(&rank).map_or(0.0, |tally| tally.computing)) > 0.0
}

/// Whether a rank that waits more than the others has less to do: it has a CPU for less of its time outside of those waits.
fn computes_less(tree: &Tree, found: &Difference) -> bool {
    more_cpu(tree, found, |rank| tree.ranks[rank].computing) < 0.0
}

/// How much more CPU time a rank has than the others, in parts of its looks; 0 if that is chance, or does not explain the difference.
fn more_cpu(tree: &Tree, found: &Difference, computing: impl Fn(usize) -> f64) -> f64 {
    let looks = tree.looks(found.rank).max(1.0);
    let share = |rank: usize| computing(rank) / tree.looks(rank).max(1.0);
    let values = Values::new((0..tree.ranks.len()).map(share).collect());
    let (own, others) = (values.of(found.rank), values.of_others(found.rank).unwrap_or(0.0));
    let chance = ((own * (1.0 - own) + others * (1.0 - others)) / looks).max(0.0).sqrt();
    let more = own - others;
    // With many more ranks than CPUs all of these shares are small.
    let explains = more.abs() >= ON_CPU * found.size().abs() || own.max(others) >= MULTIPLE * own.min(others);
    if explains && more.abs() >= CHANCES * chance { more } else { 0.0 }
}

/// Whether the others are not seen in a function.
fn is_foreign(tree: &Tree, rank: usize, function: &Function) -> bool {
    let Some(known) = tree.functions.get(function) else { return false };
    let share = |rank: usize| known.tallies.get(&rank).map_or(0.0, Tally::total) / tree.looks(rank).max(1.0);
    let others = (0..tree.ranks.len()).filter(|other| *other != rank).map(share);
    others.fold(0.0, f64::max) <= FOREIGN * share(rank)
}

fn is_slow_by_faults(tree: &Tree, rank: usize, tally: &Tally) -> bool {
    let per_look = |tally: &Tally| tally.cost.faults as f64 / tally.total().max(1.0);
    let cpu = (tally.cost.user_us + tally.cost.system_us) as f64;
    let values = Values::new(tree.ranks.iter().map(per_look).collect());
    // A look is some tens of milliseconds: the CPU time says how long all of them are.
    let seconds = (cpu / 1e6).max(1e-3);
    let others = values.of_others(rank).unwrap_or(0.0);
    tally.cost.faults as f64 / seconds >= FAULTS
        && per_look(tally) >= TIMES * others
        && tally.cost.system_us as f64 >= IN_KERNEL * cpu
}

/// Whether a rank lacks a CPU for a good part of its time, and the others do not.
fn is_starved(tree: &Tree, rank: usize) -> bool {
    let share = |tally: &Tally| tally.queued / tally.total().max(1.0);
    let values = Values::new(tree.ranks.iter().map(share).collect());
    values.of_others(rank).is_some_and(|others| values.of(rank) - others >= QUEUED)
}
