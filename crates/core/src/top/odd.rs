//! Which ranks differ from the others.
//!
//! A rank is compared with the median of the ranks that run. Fewer than three have no majority: among them only a rank that is gone or
//! stopped is odd.

use crate::control::JobState;
use crate::top::row::{Mark, Row};

/// So many ranks are compared at least.
const LEAST_RANKS: usize = 3;
/// CPU: where the others take at least this much, in percent of one CPU, and the rank takes less than this part of it.
const BUSY: f64 = 20.0;
const IDLE_PART: f64 = 0.25;
/// Progress: a rank is behind by this part of the whole.
const BEHIND: f64 = 0.1;
/// Silence: this long at least, in seconds, and so many times as long as the others.
const SILENT: f64 = 10.0;
const SILENT_TIMES: f64 = 5.0;

/// Marks the ranks that differ from the others.
pub(super) fn mark_odd(rows: &mut [Row], state: JobState, stop_began: Option<f64>) {
    // While a job is paused, all of them are stopped.
    let is_paused = state == JobState::Paused;
    let running: Vec<&Row> = rows.iter().filter(|row| row.is_running()).collect();
    let is_enough = running.len() >= LEAST_RANKS;
    let value = |value: fn(&Row) -> Option<f64>| {
        let values: Vec<f64> = running.iter().filter_map(|row| value(row)).collect();
        if is_enough && values.len() * 2 > running.len() { median(values) } else { None }
    };
    let cpu = value(|row| row.steady_cpu).filter(|cpu| *cpu >= BUSY);
    let fraction = value(|row| row.bar.and_then(|bar| bar.fraction));
    // Bars of the same length without a percentage.
    let done = value(|row| row.bar.and_then(|bar| bar.done.filter(|_| bar.total.is_none())));
    let silence = value(|row| row.silence);
    for row in rows {
        let is_ended_by_stop = stop_began.zip(row.status.since).is_some_and(|(stop, ended)| ended >= stop);
        row.mark = match row.has_failed() {
            true => (!is_ended_by_stop).then_some(Mark::Dead),
            false => mark(row, is_paused, cpu, (fraction, done), silence),
        };
    }
}

fn mark(
    row: &Row,
    is_paused: bool,
    cpu: Option<f64>,
    (fraction, done): (Option<f64>, Option<f64>),
    silence: Option<f64>,
) -> Option<Mark> {
    if !row.is_running() {
        return None;
    }
    if row.is_stopped() && !is_paused {
        return Some(Mark::Stopped);
    }
    let is_idle = cpu.zip(row.steady_cpu).is_some_and(|(cpu, own)| own < cpu * IDLE_PART);
    if is_idle {
        return Some(Mark::Idle);
    }
    let is_behind = row.bar.is_some_and(|bar| {
        let of_whole = fraction.zip(bar.fraction).is_some_and(|(others, own)| own < others - BEHIND);
        of_whole || done.zip(bar.done).is_some_and(|(others, own)| own < others * (1.0 - BEHIND))
    });
    if is_behind {
        return Some(Mark::Behind);
    }
    let is_silent =
        silence.zip(row.silence).is_some_and(|(others, own)| own >= SILENT && own > (others + 1.0) * SILENT_TIMES);
    is_silent.then_some(Mark::Silent)
}

/// The middle one; `None` of none.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
