//! The ranks from one status to the next.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::condition::Doing;
use crate::control::{JobState, JobStatus, RankStatus, RankUsage};
use crate::ids::{Attempt, Pid, Rank};
use crate::top::bars::parse_bar;
use crate::top::odd::mark_odd;
use crate::top::row::{Mark, Row};

/// A rate is of at least this time: a counter of clock ticks says little about less.
const LEAST_SPAN: f64 = 0.2;
/// How many measurements a rate of CPU time is smoothed over: ranks that wait and compute in turns would be odd in turns.
const SMOOTHED: usize = 3;

/// What all ranks use together.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Totals {
    pub running: usize,
    pub ended: usize,
    pub failed: usize,
    pub odd: usize,
    pub cpu: Option<f64>,
    pub memory: Option<u64>,
    pub read: Option<f64>,
    pub written: Option<f64>,
    pub has_gpus: bool,
}

/// By what the rows are ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sort {
    /// By number, as they are.
    #[default]
    Rank,
    /// Odd ranks first.
    Odd,
    /// Those that use most first.
    Cpu,
    Memory,
    Storage,
    /// Those that have come least far first.
    Progress,
    /// Those that have been silent for longest first.
    Silence,
}

impl Sort {
    pub const ALL: [Sort; 7] =
        [Sort::Rank, Sort::Odd, Sort::Cpu, Sort::Memory, Sort::Storage, Sort::Progress, Sort::Silence];

    pub fn name(self) -> &'static str {
        match self {
            Sort::Rank => "rank",
            Sort::Odd => "odd first",
            Sort::Cpu => "CPU",
            Sort::Memory => "memory",
            Sort::Storage => "storage",
            Sort::Progress => "progress",
            Sort::Silence => "silence",
        }
    }

    /// The next one in the list.
    pub fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(at + 1) % Sort::ALL.len()]
    }
}

/// What is remembered of a rank until the next status.
#[derive(Clone, Debug)]
struct Before {
    attempt: Attempt,
    pid: Option<Pid>,
    usage: RankUsage,
    /// The last rates of CPU time, the newest first.
    rates: Vec<f64>,
    read: Option<f64>,
    written: Option<f64>,
}

/// The state of a job as it is shown.
#[derive(Clone, Debug, Default)]
pub struct Model {
    status: Option<JobStatus>,
    rows: Vec<Row>,
    totals: Totals,
    before: BTreeMap<Rank, Before>,
    /// When the ranks were told to stop. What ended later was ended by that.
    stop_began: Option<f64>,
}

impl Model {
    /// Takes the next answer.
    pub fn take(&mut self, mut status: JobStatus) {
        let now = status.now;
        let mut rows: Vec<Row> =
            std::mem::take(&mut status.ranks).into_iter().map(|rank| self.row(rank, now)).collect();
        let ranks: BTreeSet<Rank> = rows.iter().map(Row::rank).collect();
        self.before.retain(|rank, _| ranks.contains(rank));
        self.stop_began = match status.state {
            JobState::Stopping => Some(status.since),
            JobState::Waiting | JobState::Ending => self.stop_began,
            JobState::Starting | JobState::Running | JobState::Paused => None,
        };
        mark_odd(&mut rows, status.state, self.stop_began);
        self.totals = totals(&rows);
        self.rows = rows;
        self.status = Some(status);
    }

    /// The last answer, without its ranks.
    pub fn status(&self) -> Option<&JobStatus> {
        self.status.as_ref()
    }

    /// The ranks in order.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The names of the nodes with their ranks, in the order of the first rank of each.
    pub fn nodes(&self) -> Vec<(&str, Vec<&Row>)> {
        let mut nodes: Vec<(&str, Vec<&Row>)> = Vec::new();
        let mut known: BTreeMap<&str, usize> = BTreeMap::new();
        for row in &self.rows {
            let node = row.status.node.as_str();
            let at = *known.entry(node).or_insert_with(|| {
                nodes.push((node, Vec::new()));
                nodes.len() - 1
            });
            nodes[at].1.push(row);
        }
        nodes
    }

    /// The rows that contain the words, in an order.
    pub fn chosen(&self, filter: &str, sort: Sort) -> Vec<&Row> {
        let words: Vec<String> = filter.split_whitespace().map(str::to_lowercase).collect();
        let mut rows: Vec<&Row> = self.rows.iter().filter(|row| fits(row, &words)).collect();
        // Equal ones stay in the order of their ranks.
        rows.sort_by(|one, other| compare(one, other, sort));
        rows
    }

    fn row(&mut self, status: RankStatus, now: f64) -> Row {
        let mut row = Row {
            cpu: None,
            steady_cpu: None,
            read: None,
            written: None,
            bar: status.last_line.as_deref().and_then(parse_bar),
            silence: status.wrote.map(|at| (now - at).max(0.0)),
            mark: None,
            status,
        };
        let Some(usage) = &row.status.usage else {
            // An agent that was late once: the rates are of before.
            if let Some(before) = self.before.get(&row.status.rank).filter(|before| before.is_of(&row.status)) {
                before.show(&mut row);
            }
            return row;
        };
        let before = self.before.remove(&row.status.rank).filter(|before| before.is_of(&row.status));
        let after = match before {
            Some(before) if usage.at - before.usage.at < LEAST_SPAN => before,
            Some(before) => before.next(usage),
            None => Before {
                attempt: row.status.attempt,
                pid: row.status.pid,
                usage: usage.clone(),
                rates: Vec::new(),
                read: None,
                written: None,
            },
        };
        after.show(&mut row);
        self.before.insert(row.status.rank, after);
        row
    }
}

impl Before {
    fn is_of(&self, status: &RankStatus) -> bool {
        (self.attempt, self.pid) == (status.attempt, status.pid)
    }

    fn next(mut self, usage: &RankUsage) -> Before {
        let span = usage.at - self.usage.at;
        let rate = |before: Option<u64>, now: Option<u64>| Some(now?.checked_sub(before?)? as f64 / span);
        self.read = rate(self.usage.read, usage.read);
        self.written = rate(self.usage.written, usage.written);
        // A counter that has begun anew says nothing.
        let ran = usage.cpu - self.usage.cpu;
        if ran >= 0.0 {
            self.rates.insert(0, ran / span * 100.0);
            self.rates.truncate(SMOOTHED);
        }
        self.usage = usage.clone();
        self
    }

    fn show(&self, row: &mut Row) {
        row.cpu = self.rates.first().copied();
        let sum: f64 = self.rates.iter().sum();
        row.steady_cpu = (!self.rates.is_empty()).then(|| sum / self.rates.len() as f64);
        row.read = self.read;
        row.written = self.written;
    }
}

fn totals(rows: &[Row]) -> Totals {
    let sum = |value: fn(&Row) -> Option<f64>| rows.iter().filter_map(value).reduce(|sum, value| sum + value);
    let memory = rows.iter().filter_map(Row::memory).reduce(|sum, memory| sum.saturating_add(memory));
    Totals {
        running: rows.iter().filter(|row| row.is_running()).count(),
        ended: rows.iter().filter(|row| row.status.state == Doing::Ended).count(),
        failed: rows.iter().filter(|row| row.has_failed()).count(),
        odd: rows.iter().filter(|row| row.mark.is_some()).count(),
        cpu: sum(|row| row.cpu),
        memory,
        read: sum(|row| row.read),
        written: sum(|row| row.written),
        has_gpus: rows.iter().any(|row| row.status.usage.as_ref().is_some_and(|usage| !usage.gpus.is_empty())),
    }
}

/// Whether a row has all these words: the number of the rank, or a part of anything else.
fn fits(row: &Row, words: &[String]) -> bool {
    let texts = [
        Some(row.status.node.as_str()),
        row.status.last_line.as_deref(),
        row.status.note.as_deref(),
        row.status.why.as_deref(),
        row.mark.map(Mark::name),
        Some(row.state()),
    ];
    words.iter().all(|word| {
        let number = word.parse::<u32>().ok();
        number.is_some_and(|number| number == row.rank().number())
            || texts.iter().flatten().any(|text| number.is_none() && text.to_lowercase().contains(word.as_str()))
    })
}

fn compare(one: &Row, other: &Row, sort: Sort) -> Ordering {
    // The greatest first, those without a value last.
    let most = |value: fn(&Row) -> Option<f64>| {
        let [one, other] = [one, other].map(|row| value(row).unwrap_or(f64::NEG_INFINITY));
        other.total_cmp(&one)
    };
    match sort {
        Sort::Rank => Ordering::Equal,
        Sort::Odd => one.mark.map_or(u8::MAX, Mark::order).cmp(&other.mark.map_or(u8::MAX, Mark::order)),
        Sort::Cpu => most(|row| row.cpu),
        Sort::Memory => most(|row| row.memory().map(|memory| memory as f64)),
        Sort::Storage => most(|row| Some(row.read? + row.written?)),
        Sort::Progress => {
            let [one, other] = [one, other].map(|row| row.bar.and_then(|bar| bar.fraction).unwrap_or(f64::INFINITY));
            one.total_cmp(&other)
        }
        Sort::Silence => most(|row| row.silence.filter(|_| row.is_running())),
    }
}
