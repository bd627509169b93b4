//! Which ranks are odd: those for which the others wait. Where that is not certain, nobody is named.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::calls::{Place, Wait, describe_other, is_for_disk, place};
use super::libraries::is_of_loop;
use super::place::{Row, Seen};
use super::{OtherProcess, ProcessStack, ThreadState};
use crate::ids::Rank;
use crate::ranks::{RankSet, written};

/// Odd ranks that are named.
const NAMED: usize = 4;

/// Ranks that the others wait for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Odd {
    #[serde(with = "written")]
    pub ranks: RankSet,
    /// The sentence about them.
    pub text: String,
    /// The others may wait for something else.
    #[serde(default)]
    pub is_doubtful: bool,
}

/// That no rank has made progress.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hang {
    /// How long no rank had given a sign of life.
    pub silent: Duration,
    pub odd: Option<OddRank>,
}

/// A rank that the others were seen to wait for when the job had stalled.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OddRank {
    pub rank: Rank,
    /// The sentence about it, and those that are odd with it.
    pub text: String,
    /// The others are in calls that end only when it comes to them, or are likely to.
    pub is_certain: bool,
}

impl OddRank {
    /// The first of those that a table names.
    pub fn of(odd: &[Odd]) -> Option<OddRank> {
        let first = odd.first()?;
        let rank = first.ranks.min()?;
        Some(OddRank { rank, text: first.text.clone(), is_certain: odd.iter().all(|odd| !odd.is_doubtful) })
    }
}

/// The odd ranks; and what there is to say of all of them, where nobody is odd. `unseen`: ranks without a row; `is_whole`: all
/// nodes have answered.
pub(super) fn judge(rows: &[Row], seen: &[Seen], unseen: &[Rank], is_whole: bool) -> (Vec<Odd>, Option<String>) {
    let total: usize = rows.iter().map(Row::count).sum();
    let is_whole = is_whole && unseen.is_empty();
    let waits: Vec<&Wait> = rows.iter().map(|row| &row.place.wait).collect();
    // Those that wait for others, by what they wait in; the calls around it do not matter.
    let mut waiting: Vec<(&Wait, usize)> = Vec::new();
    for row in rows.iter().filter(|row| row.place.wait.is_for_others()) {
        match waiting.iter_mut().find(|(wait, _)| **wait == row.place.wait) {
            Some((_, count)) => *count += row.count(),
            None => waiting.push((&row.place.wait, row.count())),
        }
    }
    waiting.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let waiters: usize = waiting.iter().map(|(_, count)| count).sum();
    if total < 2 {
        return (Vec::new(), None);
    }
    if let [one] = waits.as_slice() {
        // What waits for other ranks is held up by them, and what computes or sleeps by nobody, whatever its other threads do.
        let is_own = matches!(one, Wait::Thread | Wait::Lock | Wait::Process | Wait::Event);
        let differ = is_own && !rows[0].place.calls.iter().any(is_of_loop) && others_differ(seen);
        let remark = if differ { OTHERS_DIFFER.to_owned() } else { alike(one, &rows[0].place, is_whole) };
        return (Vec::new(), Some(remark));
    }
    // A rank that was not seen may be the one.
    let but = match unseen {
        [] => String::new(),
        [rank] => format!("; rank {rank} was not seen"),
        ranks => format!("; ranks {} were not seen", RankSet::of(ranks.to_vec())),
    };
    if waiters == 0 {
        return (beside_waits(rows, seen, &but), None);
    }
    let others_in = |wait: &Wait| match wait {
        Wait::Collective(call) => format!("the others wait in {call}{but}"),
        Wait::Finalize => format!("the others wait in MPI_Finalize{but}"),
        Wait::Message(call) => format!("the others wait for messages in {call}{but}"),
        Wait::Taker(call) => format!("the others wait in {call} until their messages are taken{but}"),
        _ => format!("the others wait{but}"),
    };
    // Ranks that wait for no other rank hold up those that do.
    let idle: Vec<&Row> = rows.iter().filter(|row| !row.place.wait.is_for_others()).collect();
    if !idle.is_empty() {
        let Some((most, _)) = waiting.first() else { return (Vec::new(), None) };
        let because = others_in(most);
        return (named(&idle, seen, &because), None);
    }
    match waiting.as_slice() {
        [(wait, _)] => (Vec::new(), Some(alike(wait, &rows[0].place, is_whole))),
        [(most, count), ..] if *count * 2 > total => {
            let less: Vec<&Row> = rows.iter().filter(|row| row.place.wait != **most).collect();
            (named(&less, seen, &others_in(most)), None)
        }
        several => {
            let calls: Vec<String> = several
                .iter()
                .take(NAMED)
                .map(|(wait, count)| {
                    let noun = if *count == 1 { "rank" } else { "ranks" };
                    format!("{count} {noun} in {}", call(wait))
                })
                .collect();
            (Vec::new(), Some(format!("the ranks wait for each other in different calls: {}", calls.join(", "))))
        }
    }
}

/// The odd ranks where none is in a call that says that it waits for other ranks: those that are in another wait than most, or in
/// none. Most may wait for something else than these ranks.
fn beside_waits(rows: &[Row], seen: &[Seen], but: &str) -> Vec<Odd> {
    let in_wait = |wait: &Wait| -> usize { rows.iter().filter(|row| row.place.wait == *wait).map(Row::count).sum() };
    let total: usize = rows.iter().map(Row::count).sum();
    let kinds = [(Wait::Event, "a file, a pipe, a socket or a signal"), (Wait::Lock, "a lock")];
    let most = kinds.into_iter().max_by_key(|(wait, _)| in_wait(wait));
    let Some((wait, what)) = most.filter(|(wait, _)| in_wait(wait) * 2 >= total) else { return Vec::new() };
    let others: Vec<&Row> =
        rows.iter().filter(|row| row.place.wait != wait && row.place.wait != Wait::Unknown).collect();
    let is_half = in_wait(&wait) * 2 == total;
    if is_half && others.iter().any(|row| matches!(row.place.wait, Wait::Event | Wait::Lock)) {
        return Vec::new();
    }
    let mut odd = named(&others, seen, &format!("the others wait for {what}, perhaps for this rank{but}"));
    odd.iter_mut().for_each(|odd| odd.is_doubtful = true);
    odd
}

fn call(wait: &Wait) -> String {
    match wait {
        Wait::Collective(call) | Wait::Message(call) | Wait::Taker(call) => call.clone(),
        Wait::Finalize => "MPI_Finalize".to_owned(),
        _ => "other calls".to_owned(),
    }
}

/// Where the threads that are shown are alike and others are not.
const OTHERS_DIFFER: &str =
    "the threads shown are alike, and others differ from rank to rank: --rank shows all threads";

/// Whether the threads beside the main one are not in the same waits in all ranks.
fn others_differ(seen: &[Seen]) -> bool {
    let waits = |seen: &Seen| {
        let others = seen.stack.threads.iter().filter(|thread| !thread.is_main && !thread.is_idle);
        let mut waits: Vec<String> = others.map(|thread| format!("{:?}", place(&seen.stack, thread).wait)).collect();
        waits.sort_unstable();
        waits
    };
    let mut of_each = seen.iter().filter(|seen| seen.stack.unseen.is_none()).map(waits);
    of_each.next().is_some_and(|first| of_each.any(|waits| waits != first))
}

/// What ranks at one place have in common.
fn alike(wait: &Wait, place: &Place, is_whole: bool) -> String {
    if place.calls.iter().any(is_of_loop) {
        return "all threads alike; goroutines, coroutines and callbacks that wait are on no stack".to_owned();
    }
    let whose = if is_whole { "all alike: every rank" } else { "alike as far as they were seen: each rank" };
    match wait {
        Wait::Collective(call) => format!("{whose} waits in {call}"),
        Wait::Finalize => format!("{whose} waits in MPI_Finalize"),
        Wait::Message(call) => format!("{whose} waits for a message in {call}"),
        Wait::Taker(call) => format!("{whose} waits in {call} until its message is taken"),
        Wait::Nothing => format!("{whose} computes"),
        Wait::Time => format!("{whose} sleeps"),
        Wait::Lock => format!("{whose} waits for a lock"),
        _ if is_whole => "all alike".to_owned(),
        _ => "alike as far as they were seen".to_owned(),
    }
}

fn named(rows: &[&Row], seen: &[Seen], because: &str) -> Vec<Odd> {
    let mut odd: Vec<Odd> = rows
        .iter()
        .take(NAMED)
        .map(|row| {
            let first = row.ranks.min().unwrap_or_default();
            let of_first = seen.binary_search_by_key(&first, |seen| seen.rank).ok().map(|at| &seen[at]);
            let reason = of_first.map_or_else(String::new, |seen| reason(&row.place.wait, &seen.stack));
            let name = match row.count() {
                1 => format!("rank {first}{}", of_first.map(|seen| format!(" on {}", seen.node)).unwrap_or_default()),
                _ => format!("ranks {}", row.ranks),
            };
            Odd { ranks: row.ranks.clone(), text: format!("{name}: {reason}; {because}"), is_doubtful: false }
        })
        .collect();
    if rows.len() > NAMED {
        let ranks: Vec<Rank> = rows[NAMED..].iter().flat_map(|row| row.ranks.iter()).collect();
        let ranks = RankSet::of(ranks);
        odd.push(Odd { text: format!("and ranks {ranks}"), ranks, is_doubtful: false });
    }
    odd
}

/// What a rank waits for itself.
fn reason(wait: &Wait, stack: &ProcessStack) -> String {
    match wait {
        Wait::Collective(call) => format!("waits in {call}"),
        Wait::Finalize => "has come to its end, and waits in MPI_Finalize".to_owned(),
        Wait::Message(call) => format!("waits for a message in {call}"),
        Wait::Taker(call) => format!("waits in {call} until its message is taken"),
        Wait::Process => of_process(stack),
        Wait::Thread => match stack.threads.iter().any(|thread| !thread.is_main && !thread.is_idle) {
            true => "waits for a thread of its own".to_owned(),
            false => "waits for a thread of its own, and has none that works".to_owned(),
        },
        Wait::Lock => "waits for a lock".to_owned(),
        Wait::Stdin => "waits for input on stdin".to_owned(),
        Wait::Disk => match stack.threads.first().and_then(|thread| thread.kernel.as_deref()) {
            Some(kernel) if kernel.rsplit(' ').next().is_some_and(is_for_disk) => {
                format!("waits for a disk or a file server ({kernel})")
            }
            Some(kernel) => format!("waits in the kernel, where no signal reaches it ({kernel})"),
            None => "waits in the kernel, where no signal reaches it".to_owned(),
        },
        Wait::Time => "sleeps".to_owned(),
        Wait::Event => {
            let dead = dead_child(stack).map(|dead| format!("; {dead}")).unwrap_or_default();
            format!("waits for a file, a pipe, a socket or a signal{dead}")
        }
        Wait::Exit => "is on its way out, in what runs after the end of its program".to_owned(),
        Wait::Gone => "interpreter exited, process still alive".to_owned(),
        Wait::Continue => "is stopped (SIGSTOP)".to_owned(),
        Wait::Nothing => "computes".to_owned(),
        Wait::Unknown => "does something else".to_owned(),
    }
}

/// Of a rank that waits for a process that it has started.
fn of_process(stack: &ProcessStack) -> String {
    match (dead_child(stack), stack.others.iter().find(|other| other.parent == stack.pid)) {
        (Some(dead), _) => format!("waits for {dead}"),
        (None, Some(other)) => format!("waits for {}", describe_other(other)),
        (None, None) => "waits for another process, and has started none that lives".to_owned(),
    }
}

/// A process that it has started has ended, and it has not taken note of it.
fn dead_child(stack: &ProcessStack) -> Option<String> {
    let is_dead = |other: &&OtherProcess| other.parent == stack.pid && other.state == ThreadState::Zombie;
    let OtherProcess { pid, command, status, .. } = stack.others.iter().find(is_dead)?;
    let how = status.map_or_else(|| command.clone(), |status| format!("{command}, {status}"));
    Some(format!("a worker process that is gone (pid {pid}, {how})"))
}
