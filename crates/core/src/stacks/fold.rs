//! Many ranks' stacks as one table: ranks at the same place share a row, and those that the others wait for are named.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::calls::{Place, Wait, describe_other, place_of, show};
use super::odd::{Odd, judge};
pub use super::place::{Row, Seen};
use super::{Frame, Interpreter, ThreadState};
use crate::ids::Rank;
use crate::ranks::{RankSet, written};

/// Rows that are printed, and calls that a table keeps of each.
const ROWS: usize = 8;
const CALLS: usize = 48;
/// Rows that a table keeps.
const KEPT: usize = 256;
/// Other processes of a rank that are printed.
const OTHERS: usize = 8;
/// Places that are printed at least.
const LEAST_ROWS: usize = 2;
/// Reasons for which ranks were not seen, silent nodes, and odd ranks that are printed.
const UNSEEN: usize = 3;
const NODES: usize = 6;
const ODD: usize = 3;
/// Characters of a set of ranks.
const RANKS_WIDTH: usize = 24;
/// Outer calls that all rows share are printed once if there are so many.
const COMMON: usize = 2;

/// Where the ranks are.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Table {
    /// How many ranks were looked into.
    pub ranks: u32,
    /// The largest first.
    pub rows: Vec<Row>,
    /// Rows that are not kept.
    #[serde(default)]
    pub rows_left_out: u32,
    /// Those that the others wait for, with the reason.
    pub odd: Vec<Odd>,
    /// What there is to say of all of them: that they are alike, or that they wait in different calls.
    pub remark: Option<String>,
    /// Those that could not be looked into, and why.
    pub unseen: Vec<Unseen>,
    /// Nodes that have not answered.
    #[serde(default)]
    pub silent_nodes: Vec<String>,
}

/// Ranks that could not be looked into for the same reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unseen {
    #[serde(with = "written")]
    pub ranks: RankSet,
    pub why: String,
}

/// Folds what was seen. `silent_nodes`: those that have not answered.
pub fn fold(seen: &[Seen], silent_nodes: &[String]) -> Table {
    let mut rows: Vec<(Place, Vec<Rank>)> = Vec::new();
    let mut known: HashMap<Place, usize> = HashMap::new();
    let mut unseen: Vec<(String, Vec<Rank>)> = Vec::new();
    for Seen { rank, stack, .. } in seen {
        let found = place_of(stack).filter(Place::is_known);
        let Some(mut place) = found else {
            let why = stack.unseen.clone().unwrap_or_else(|| "it has no frames".to_owned());
            match unseen.iter_mut().find(|(known, _)| *known == why) {
                Some((_, ranks)) => ranks.push(*rank),
                None => unseen.push((why, vec![*rank])),
            }
            continue;
        };
        place.calls.truncate(CALLS);
        let at = *known.entry(place).or_insert_with_key(|place| {
            rows.push((place.clone(), Vec::new()));
            rows.len() - 1
        });
        rows[at].1.push(*rank);
    }
    rows.sort_by_key(|(_, ranks)| (std::cmp::Reverse(ranks.len()), ranks.first().copied()));
    let rows: Vec<Row> = rows.into_iter().map(|(place, ranks)| Row { ranks: RankSet::of(ranks), place }).collect();
    let without_row: Vec<Rank> = unseen.iter().flat_map(|(_, ranks)| ranks).copied().collect();
    let (odd, remark) = judge(&rows, seen, &without_row, silent_nodes.is_empty());
    let rows_left_out = rows.len().saturating_sub(KEPT) as u32;
    Table {
        ranks: seen.len() as u32,
        rows: rows.into_iter().take(KEPT).collect(),
        rows_left_out,
        odd,
        remark,
        unseen: unseen.into_iter().map(|(why, ranks)| Unseen { ranks: RankSet::of(ranks), why }).collect(),
        silent_nodes: silent_nodes.to_vec(),
    }
}

impl Table {
    /// The lines for people, at most so many if there is room for two places. Places are cut to so many characters, sentences are
    /// not.
    pub fn lines(&self, width: usize, most: usize) -> Vec<String> {
        let common = self.common();
        let mut after = Vec::new();
        if common > 0
            && let Some(row) = self.rows.first()
        {
            let calls = &row.place.calls[row.place.calls.len() - common..];
            after.push(format!("common  {}", chain(calls, width.saturating_sub(8))));
        }
        let count = |unseen: &Unseen| unseen.ranks.count().unwrap_or(0);
        let (told, others) = self.unseen.split_at(self.unseen.len().min(UNSEEN));
        let sets = self.rows.iter().take(ROWS).map(|row| &row.ranks).chain(told.iter().map(|unseen| &unseen.ranks));
        let heads: Vec<(usize, String)> =
            sets.map(|ranks| (ranks.count().unwrap_or(0), cut(&ranks.to_string(), RANKS_WIDTH).to_string())).collect();
        let counts = heads.iter().map(|(count, _)| count.to_string().len()).max().unwrap_or(1);
        let sets = heads.iter().map(|(_, ranks)| ranks.chars().count()).max().unwrap_or(0);
        let head = |(count, ranks): &(usize, String)| {
            let noun = if *count == 1 { "rank " } else { "ranks" };
            format!("{count:>counts$} {noun}  {ranks:<sets$}  ")
        };
        let heads_of_unseen = &heads[heads.len() - told.len()..];
        after.extend(
            told.iter().zip(heads_of_unseen).map(|(unseen, it)| format!("{}not seen: {}", head(it), unseen.why)),
        );
        if !others.is_empty() {
            after.push(format!("{} more ranks not seen", others.iter().map(count).sum::<usize>()));
        }
        after.extend(silent(&self.silent_nodes));
        let (odd, more_odd) = self.odd.split_at(self.odd.len().min(ODD));
        after.extend(odd.iter().map(|odd| format!("odd     {}", odd.text)));
        if !more_odd.is_empty() {
            after.push(format!("and {} more odd", more_odd.len()));
        }
        after.extend(self.remark.clone());

        let room = most.saturating_sub(after.len()).max(LEAST_ROWS + 1);
        let all = self.rows.len() + self.rows_left_out as usize;
        let shown = if all <= room.min(ROWS) { all } else { ROWS.min(room - 1) };
        let shown = &self.rows[..self.rows.len().min(shown)];
        let mut lines: Vec<String> = shown
            .iter()
            .zip(&heads)
            .map(|(row, known)| {
                let head = head(known);
                let room = width.saturating_sub(head.chars().count());
                format!("{head}{}", row.text(common, room))
            })
            .collect();
        if all > shown.len() {
            let told = shown.iter().map(Row::count).chain(self.unseen.iter().map(count)).sum::<usize>();
            let ranks = (self.ranks as usize).saturating_sub(told);
            lines.push(format!("and {} more places, with {ranks} ranks", all - shown.len()));
        }
        lines.extend(after);
        lines
    }

    /// How many outer calls all rows share, if it is worth while to print them once.
    fn common(&self) -> usize {
        let [first, others @ ..] = self.rows.as_slice() else { return 0 };
        if others.is_empty() || self.rows_left_out > 0 {
            return 0;
        }
        let shared = |other: &Row| {
            let (one, other) = (first.place.calls.iter().rev(), other.place.calls.iter().rev());
            one.zip(other).take_while(|(one, other)| one == other).count()
        };
        let least = others.iter().map(shared).min().unwrap_or(0);
        // Each row keeps a call of its own.
        let most = self.rows.iter().map(|row| row.place.calls.len().saturating_sub(1)).min().unwrap_or(0);
        if least.min(most) >= COMMON { least.min(most) } else { 0 }
    }
}

impl Row {
    fn text(&self, common: usize, width: usize) -> String {
        let Place { wait, calls, thread } = &self.place;
        let own = &calls[..calls.len() - common.min(calls.len())];
        let thread = thread.as_ref().map(|name| format!("[{name}] ")).unwrap_or_default();
        let state = match wait {
            Wait::Gone => "its Python is gone: ",
            Wait::Continue => "stopped: ",
            Wait::Exit => "at exit: ",
            Wait::Disk => "in the kernel: ",
            Wait::Collective(_)
            | Wait::Finalize
            | Wait::Message(_)
            | Wait::Taker(_)
            | Wait::Process
            | Wait::Thread
            | Wait::Lock
            | Wait::Stdin
            | Wait::Time
            | Wait::Event
            | Wait::Nothing
            | Wait::Unknown => "",
        };
        let head = format!("{thread}{state}");
        let room = width.saturating_sub(head.chars().count());
        if own.is_empty() {
            return format!("{head}no frames");
        }
        format!("{head}{}", chain(own, room))
    }
}

/// `MPI_Allreduce < reduce_gradients train.py:88 < step:120`. Where there is no room for all, calls in the middle are left out:
/// the innermost says what is waited for, and the outermost are the program's own.
fn chain(calls: &[Frame], width: usize) -> String {
    let all = |left_out: std::ops::Range<usize>| {
        let mut text = String::new();
        for (at, frame) in calls.iter().enumerate() {
            if left_out.contains(&at) {
                continue;
            }
            let is_after_gap = at == left_out.end && !left_out.is_empty();
            text.push_str(match (at, is_after_gap) {
                (0, _) => "",
                (_, true) => " < … < ",
                (_, false) => " < ",
            });
            let inside = at.checked_sub(1).and_then(|before| calls.get(before)).filter(|_| !is_after_gap);
            text.push_str(&show(frame, inside));
        }
        text
    };
    let most = calls.len().saturating_sub(2);
    (0..=most)
        .map(|count| {
            // One more is kept inside than outside.
            let first = 1 + (most - count).div_ceil(2);
            all(first..first + count)
        })
        .find(|text| text.chars().count() <= width)
        .unwrap_or_else(|| cut(&all(1..calls.len().max(1)), width))
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// The nodes that have not answered, in a line.
fn silent(nodes: &[String]) -> Option<String> {
    let names = nodes.iter().take(NODES).map(String::as_str).collect::<Vec<_>>().join(", ");
    match nodes.len() {
        0 => None,
        1 => Some(format!("node {names} has not answered")),
        count if count <= NODES => Some(format!("nodes {names} have not answered")),
        count => Some(format!("nodes {names} and {} more have not answered", count - NODES)),
    }
}

impl Seen {
    /// All that was seen of it, for people: threads with their frames, other processes.
    pub fn lines(&self) -> Vec<String> {
        let Seen { rank, node, stack } = self;
        let python = match &stack.interpreter {
            Interpreter::Running { version } => format!(", Python {version}"),
            Interpreter::Gone => ", Python is gone".to_owned(),
            Interpreter::Unknown { why } => format!(", Python not seen: {why}"),
            Interpreter::None => String::new(),
        };
        let mut lines = vec![format!("rank {rank} on {node}: pid {}, {}{python}", stack.pid, stack.command)];
        lines.extend(stack.unseen.iter().map(|why| format!("  not seen: {why}")));
        for thread in stack.threads.iter().filter(|thread| !thread.is_idle) {
            let state = match (&thread.state, &thread.kernel) {
                (ThreadState::Running, _) => "runs".to_owned(),
                (ThreadState::Uninterruptible, Some(kernel)) => format!("cannot be interrupted, in {kernel}"),
                (_, Some(kernel)) => format!("waits in {kernel}"),
                (ThreadState::Stopped, None) => "is stopped".to_owned(),
                (ThreadState::Traced, None) => "is stopped by its tracer".to_owned(),
                (_, None) => "waits".to_owned(),
            };
            let gil = if thread.holds_gil { ", holds the GIL" } else { "" };
            let main = if thread.is_main { "main thread".to_owned() } else { format!("thread {}", thread.name) };
            lines.push(format!("  {main} ({}): {state}{gil}", thread.tid));
            let mut inside = None;
            for frame in &thread.frames {
                lines.push(format!("    {}", show(frame, inside)));
                inside = Some(frame);
            }
            lines.extend(thread.is_cut.then(|| "    and more".to_owned()));
        }
        let idle: Vec<&str> =
            stack.threads.iter().filter(|thread| thread.is_idle).map(|thread| thread.name.as_str()).collect();
        if !idle.is_empty() {
            lines.push(format!("  idle threads: {}", idle.join(", ")));
        }
        let more = stack.others.len().saturating_sub(OTHERS);
        lines.extend(stack.others.iter().take(OTHERS).map(|other| format!("  {}", describe_other(other))));
        lines.extend((more > 0).then(|| format!("  and {more} more processes")));
        lines
    }
}

#[cfg(test)]
#[path = "fold_tests.rs"]
mod tests;
