//! What a profile says, as a table: the functions of all ranks, and the ranks that differ.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::differ::{self, Difference, Late};
use super::meaning::Kind;
use super::request::{Profile, RankProfile};
use super::samples::{NOT_READABLE, Stops};
use super::tree::{Branch, Tally, Tree};
use crate::ids::Rank;
use crate::ranks::{RankSet, written};

/// Functions that are listed, and rows about ranks that differ.
const FUNCTIONS: usize = 15;
const ROWS: usize = 12;
/// Callers that are shown.
const CALLERS: usize = 4;
/// The part of the looks in which a rank must have been read.
const READ: f64 = 0.5;
/// The part of the looks without a CPU from which on that is said.
const CROWDED: f64 = 0.15;
/// Looks at a rank below which nothing is said of it.
const FEW: f64 = 20.0;

/// A function of all ranks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Function {
    pub function: String,
    pub file: Option<String>,
    /// The share of the looks at all ranks in which it was the innermost call, and in which it was on the stack.
    pub own: f64,
    pub total: f64,
    /// The part of `total` in which it had a CPU.
    pub running: f64,
}

/// What a rank did in all.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Each {
    pub rank: Rank,
    pub node: String,
    pub looks: u32,
    /// The share of the looks in which it waited for other ranks, and in which it ran.
    pub waits: f64,
    pub running: f64,
    /// That in which it could run, and had no CPU.
    pub queued: f64,
}

/// A rank for which the others wait.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Straggler {
    pub rank: Rank,
    pub node: String,
    /// The share of its time in which it waits for other ranks, and that of the others.
    pub waits: f64,
    pub others_wait: f64,
    /// The call in which the others wait.
    pub call: String,
    /// Where it spends that time.
    pub place: Differing,
}

/// A function in which ranks have another share of their time than the others.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Differing {
    #[serde(with = "written")]
    pub ranks: RankSet,
    pub function: String,
    pub file: Option<String>,
    pub line: Option<u32>,
    /// What it was called by, the nearest first.
    pub callers: Vec<String>,
    /// The innermost call that has most of the difference, if it is another one.
    pub inside: Option<String>,
    /// The share of their time that the ranks spend there (the largest), and the median of the others.
    pub share: f64,
    pub others: f64,
    pub kind: Kind,
    /// What is known of it besides: system calls, page faults.
    pub detail: Option<String>,
}

/// What a profile says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Summary {
    pub took: f64,
    pub rate: f64,
    #[serde(with = "written")]
    pub ranks: RankSet,
    /// Looks at a rank: the median.
    pub looks: u32,
    /// The ranks that were compared.
    pub each: Vec<Each>,
    pub functions: Vec<Function>,
    pub stragglers: Vec<Straggler>,
    pub differing: Vec<Differing>,
    /// Where nobody differs, and where little can be said.
    pub verdict: String,
    /// Ranks that were not seen, or not to the end, and why.
    pub notes: Vec<String>,
    pub stops: Stops,
}

/// What a profile says.
pub fn summarize(profile: &Profile) -> Summary {
    let read =
        |rank: &RankProfile| rank.samples.counts.iter().filter(|count| count.is_lead).map(|it| it.total()).sum::<u64>();
    let unread = |rank: &RankProfile| f64::from(rank.samples.missed) > (1.0 - READ) * f64::from(rank.samples.looks);
    let compared: Vec<&RankProfile> =
        profile.ranks.iter().filter(|rank| !unread(rank) && read(rank) as f64 >= FEW).collect();
    let tree = Tree::new(&compared);
    let stragglers = stragglers(&tree, &compared);
    let differing = differing(&tree, &compared, !stragglers.is_empty());
    let mut looks: Vec<u32> = profile.ranks.iter().map(|rank| rank.samples.looks).collect();
    looks.sort_unstable();
    let mut stops = Stops::default();
    for rank in &profile.ranks {
        stops.count += rank.samples.stops.count;
        stops.total_us += rank.samples.stops.total_us;
        stops.longest_us = stops.longest_us.max(rank.samples.stops.longest_us);
    }
    Summary {
        took: profile.took,
        rate: profile.rate,
        ranks: RankSet::of(profile.ranks.iter().map(|rank| rank.rank)),
        looks: looks.get(looks.len() / 2).copied().unwrap_or(0),
        each: compared.iter().enumerate().map(|(index, rank)| each(&tree, index, rank)).collect(),
        functions: functions(&tree),
        verdict: verdict(profile, &compared, &stragglers, &differing),
        stragglers,
        differing,
        notes: notes(profile, &tree),
        stops,
    }
}

fn each(tree: &Tree, index: usize, rank: &RankProfile) -> Each {
    let looks = tree.looks(index).max(1.0);
    Each {
        rank: rank.rank,
        node: rank.node.clone(),
        looks: rank.samples.looks,
        waits: tree.waiting[index].total() / looks,
        running: tree.ranks[index].running / looks,
        queued: tree.ranks[index].queued / looks,
    }
}

fn functions(tree: &Tree) -> Vec<Function> {
    let looks: f64 = (0..tree.ranks.len()).map(|rank| tree.looks(rank)).sum::<f64>().max(1.0);
    let mut all: Vec<Function> = tree
        .functions
        .iter()
        .map(|(function, total)| Function {
            function: function.name.clone(),
            file: function.file.clone(),
            own: total.own / looks,
            total: total.all / looks,
            running: total.running / total.all.max(1.0),
        })
        .collect();
    all.sort_by(|one, other| other.own.total_cmp(&one.own).then(other.total.total_cmp(&one.total)));
    // Those that are seen seldom say nothing.
    all.retain(|function| function.own >= 0.005 || function.total >= 0.05);
    all.truncate(FUNCTIONS);
    all
}

fn stragglers(tree: &Tree, ranks: &[&RankProfile]) -> Vec<Straggler> {
    let straggler = |late: Late| {
        let place = differing_at(tree, ranks, &[differ::place_of(tree, late.rank)?])?;
        let (rank, node) = (ranks[late.rank].rank, ranks[late.rank].node.clone());
        Some(Straggler { rank, node, waits: late.waits, others_wait: late.others_wait, call: late.call, place })
    };
    differ::late(tree).into_iter().filter_map(straggler).collect()
}

fn differing(tree: &Tree, ranks: &[&RankProfile], has_stragglers: bool) -> Vec<Differing> {
    let mut by_place: BTreeMap<usize, Vec<Difference>> = BTreeMap::new();
    for rank in 0..ranks.len() {
        for found in differ::differences(tree, rank) {
            let is_wait = tree.branches[found.branch].function.is_for_others;
            // The others wait because of a straggler: that is said already.
            if !(has_stragglers && is_wait) {
                by_place.entry(found.branch).or_default().push(found);
            }
        }
    }
    let mut all: Vec<Vec<Difference>> = by_place.into_values().collect();
    all.sort_by(|one, other| largest(other).size().abs().total_cmp(&largest(one).size().abs()));
    all.iter().filter_map(|found| differing_at(tree, ranks, found)).take(ROWS).collect()
}

fn largest(all: &[Difference]) -> Difference {
    let most = all.iter().max_by(|one, other| one.size().abs().total_cmp(&other.size().abs()));
    most.copied().unwrap_or(Difference { rank: 0, branch: 0, share: 0.0, others: 0.0 })
}

fn differing_at(tree: &Tree, ranks: &[&RankProfile], all: &[Difference]) -> Option<Differing> {
    let found = largest(all);
    let at = differ::function_of(tree, found.branch);
    let path = tree.path(at);
    let branch = |at: &usize| &tree.branches[*at];
    let Branch { function, .. } = branch(&at);
    let tally = branch(&at).tallies.get(&found.rank);
    let most =
        |lines: &BTreeMap<u32, f64>| lines.iter().max_by(|one, other| one.1.total_cmp(other.1)).map(|(line, _)| *line);
    let line = tally.map(|tally| &tally.lines).and_then(most);
    let callers = path.iter().rev().skip(1).map(|at| &branch(at).function);
    let callers = callers.filter(|function| function.is_of_program()).take(CALLERS);
    let inside = (found.branch != at).then(|| branch(&found.branch).function.name.clone());
    let kind = differ::kind(tree, &found)?;
    Some(Differing {
        ranks: RankSet::of(all.iter().map(|found| ranks[found.rank].rank)),
        function: function.name.clone(),
        file: function.file.clone(),
        line,
        callers: callers.map(|function| function.name.clone()).collect(),
        inside,
        share: found.share,
        others: found.others,
        kind,
        detail: branch(&found.branch).tallies.get(&found.rank).and_then(|tally| detail(kind, tally)),
    })
}

/// What is known of a place besides its kind.
fn detail(kind: Kind, tally: &Tally) -> Option<String> {
    let call = || tally.calls.iter().max_by(|one, other| one.1.total_cmp(other.1)).map(|(call, _)| call.clone());
    let cpu = (tally.cost.user_us + tally.cost.system_us).max(1);
    let in_kernel = 100 * tally.cost.system_us / cpu;
    match kind {
        Kind::Memory => Some(format!(
            "{} page faults, {} of them with input, {in_kernel} % of the CPU time in the kernel",
            tally.cost.faults + tally.cost.major_faults,
            tally.cost.major_faults
        )),
        Kind::Starved => Some(format!(
            "it could run and had no CPU in {}",
            percent(tally.queued / tally.total().max(1.0)).trim_start()
        )),
        Kind::Io | Kind::Lock | Kind::Process | Kind::Event | Kind::Sleep => call(),
        Kind::Cpu | Kind::Branch | Kind::Gc | Kind::Gpu | Kind::Waits | Kind::Stopped | Kind::Unknown => None,
    }
}

fn verdict(profile: &Profile, compared: &[&RankProfile], stragglers: &[Straggler], differing: &[Differing]) -> String {
    let few = || "there are too few looks to compare the ranks".to_owned();
    match (profile.ranks.len(), compared.len()) {
        (0, _) => return "no rank was seen".to_owned(),
        (1, _) => return "there is one rank: nothing to compare".to_owned(),
        (_, 0 | 1) => return few(),
        _ => {}
    }
    if stragglers.is_empty() && differing.is_empty() {
        return "no rank differs from the others".to_owned();
    }
    let ranks = RankSet::of(stragglers.iter().map(|straggler| straggler.rank));
    match stragglers {
        [] => "ranks differ, and the others do not wait for them".to_owned(),
        [_] => format!("the others wait for rank {ranks}"),
        _ => format!("the others wait for ranks {ranks}"),
    }
}

fn notes(profile: &Profile, tree: &Tree) -> Vec<String> {
    let mut by_reason: BTreeMap<String, Vec<Rank>> = BTreeMap::new();
    for RankProfile { rank, samples, .. } in &profile.ranks {
        let missed = samples.unseen.as_ref().filter(|_| samples.missed > 0).map(|why| {
            let part = 100 * u64::from(samples.missed) / u64::from(samples.looks.max(1));
            format!("stacks not readable in {part} % of the looks: {why}")
        });
        for reason in missed.into_iter().chain(samples.over.clone()) {
            by_reason.entry(reason).or_default().push(*rank);
        }
    }
    let of_ranks = by_reason.into_iter().map(|(reason, ranks)| format!("rank {}: {reason}", RankSet::of(ranks)));
    let silent = profile.silent.iter().map(|node| format!("node {node} has not sent all that was sampled there"));
    let cut = profile.cut.iter().map(|why| format!("the profile ended after {:.1} s: {why}", profile.took));
    let mut queued: Vec<f64> = tree.ranks.iter().map(|tally| tally.queued / tally.total().max(1.0)).collect();
    queued.sort_by(f64::total_cmp);
    let median = queued.get(queued.len() / 2).copied().filter(|median| *median >= CROWDED);
    let crowded = median.map(|median| {
        let part = percent(median);
        format!(
            "the ranks could run and had no CPU in {} of the looks (median): there are too few CPUs",
            part.trim_start()
        )
    });
    cut.chain(of_ranks).chain(silent).chain(crowded).collect()
}

impl Kind {
    /// What a rank does.
    pub fn text(self) -> &'static str {
        match self {
            Kind::Cpu => "more work on a CPU",
            Kind::Branch => "a function in which the others are not seen",
            Kind::Memory => "memory: page faults",
            Kind::Io => "files",
            Kind::Lock => "a lock or another thread",
            Kind::Gc => "garbage collection",
            Kind::Sleep => "sleeps",
            Kind::Process => "waits for a process that it has started",
            Kind::Event => "waits for a socket, a pipe or a signal",
            Kind::Gpu => "waits for its GPU",
            Kind::Starved => "lacks a CPU",
            Kind::Waits => "has less to do than the others",
            Kind::Stopped => "is stopped",
            Kind::Unknown => "not known",
        }
    }
}

impl Summary {
    /// The text for a terminal.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{} rank{}, {:.1} s at {} looks a second: {} looks at each rank",
            self.ranks.count().unwrap_or(0),
            if self.ranks.count() == Some(1) { "" } else { "s" },
            self.took,
            round(self.rate),
            self.looks
        )];
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        if !self.functions.is_empty() {
            lines.push(String::new());
            lines.push(
                "  self  total  on CPU  function (all ranks; main thread, or the thread that it waits for)".to_owned(),
            );
        }
        for Function { function, file, own, total, running } in &self.functions {
            let file =
                file.as_deref().filter(|_| function != NOT_READABLE).map(|it| format!(" {it}")).unwrap_or_default();
            lines.push(format!("{}  {}   {}  {function}{file}", percent(*own), percent(*total), percent(*running)));
        }
        lines.push(String::new());
        lines.push(self.verdict.clone());
        for straggler in &self.stragglers {
            let Straggler { rank, node, waits, others_wait, call, place } = straggler;
            lines.push(format!(
                "straggler  rank {rank} on {node}: it waits for others {} of its time, they wait {} ({call})",
                percent(*waits).trim_start(),
                percent(*others_wait).trim_start()
            ));
            lines.extend(place.lines("           "));
        }
        let is_told = |differing: &&Differing| {
            self.stragglers.iter().any(|it| {
                let place = &it.place;
                place.ranks == differing.ranks && place.function == differing.function && place.file == differing.file
            })
        };
        for differing in self.differing.iter().filter(|differing| !is_told(differing)) {
            let what = format!("differs    rank {}:", differing.ranks);
            let mut rest = differing.lines("           ").into_iter();
            lines.push(format!("{what} {}", rest.next().unwrap_or_default().trim_start()));
            lines.extend(rest);
        }
        lines
    }
}

impl Differing {
    fn lines(&self, indent: &str) -> Vec<String> {
        let Differing { function, file, line, callers, inside, share, others, kind, detail, .. } = self;
        let mut text = format!("{indent}{} in {function}", percent(*share).trim_start());
        // Writing into a string does not fail.
        if let Some(file) = file {
            let _ = write!(text, " {file}");
            let _ = line.map(|line| write!(text, ":{line}"));
        }
        for caller in callers {
            let _ = write!(text, " < {caller}");
        }
        let _ = write!(text, "; the others {}", percent(*others).trim_start());
        let mut why = format!("{indent}{}", kind.text());
        let _ = detail.as_ref().map(|detail| write!(why, ": {detail}"));
        let _ = inside.as_ref().map(|inside| write!(why, " (in {inside})"));
        vec![text, why]
    }
}

fn percent(share: f64) -> String {
    format!("{:>4.0} %", 100.0 * share)
}

fn round(rate: f64) -> f64 {
    (rate * 100.0).round() / 100.0
}
