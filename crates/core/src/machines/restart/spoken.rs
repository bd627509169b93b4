//! Sentences about the policy, and the durations in them.

use std::time::Duration;

use super::Restarter;
use crate::evidence::Class;
use crate::spec::restart::{Budget, OnGiveup, RESTARTABLE, RestartScope, RestartSpec, StartRetries};
use crate::units::format_duration;

/// A duration as a sentence has it: `1 h 30 min`, `500 ms`.
pub fn spoken(duration: Duration) -> String {
    let mut text = String::new();
    let written = format_duration(duration);
    let mut rest = written.as_str();
    while let Some(digits) = rest.find(|c: char| c.is_ascii_alphabetic()) {
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let unit = if &tail[..end] == "m" { "min" } else { &tail[..end] };
        text += &format!("{}{number} {unit}", if text.is_empty() { "" } else { " " });
        rest = &tail[end..];
    }
    text
}

/// `3 restarts in 1 h`.
pub(crate) fn restarts(count: u32, window: Option<Duration>) -> String {
    let noun = if count == 1 { "restart" } else { "restarts" };
    let window = window.map(|window| format!(" in {}", spoken(window)));
    format!("{count} {noun}{}", window.unwrap_or_default())
}

fn budget(budget: &Budget) -> String {
    let recent = budget.recent.map(|recent| restarts(recent.restarts, Some(recent.window)));
    let total = budget.total.map(|total| restarts(total, None));
    let total = if recent.is_some() { total.map(|total| format!("{total} in all")) } else { total };
    let limits: Vec<String> = recent.into_iter().chain(total).collect();
    format!("gives up after {}", limits.join(", or "))
}

impl Restarter {
    /// The policy in one sentence, for `-v`: `gives up after 3 restarts in 1 h; waits 1 s to 30 s between`.
    pub fn sentence(&self) -> String {
        sentence(&self.spec)
    }
}

fn sentence(spec: &RestartSpec) -> String {
    let mut parts = Vec::new();
    let has_restarts = spec.budget.allows_any() || (!spec.budget.is_given() && spec.asks());
    if spec.budget.allows_any() {
        parts.push(budget(&spec.budget));
    } else {
        parts.push("does not restart after a failure by itself".to_owned());
    }
    if has_restarts {
        let (min, max) = (spec.backoff.min, spec.backoff.max);
        parts.push(match min == max {
            true => format!("waits {} between", spoken(min)),
            false => format!("waits {} to {} between", spoken(min), spoken(max)),
        });
    }
    if spec.budget.allows_any() {
        let words: Vec<&str> = spec.on.iter().copied().map(Class::word).collect();
        if words.len() < RESTARTABLE.len() {
            parts.push(format!("restarts only on {}", words.join(", ")));
        }
        if !spec.never_codes.is_empty() {
            parts.push(format!("never on code {}", spec.never_codes));
        }
        if !spec.breaker {
            parts.push("also when the same failure repeats".to_owned());
        }
    }
    if spec.scope == RestartScope::Rank {
        parts.push("each rank by itself".to_owned());
    }
    if spec.start.retries > 0 && spec.start != StartRetries::OF_RESTARTS {
        let (tries, wait) = (spec.start.retries.saturating_add(1), spoken(spec.start.backoff));
        parts.push(format!("tries {tries} times to start, {wait} apart"));
    }
    if let Some(own) = &spec.on_failure {
        let name = own.command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        parts.push(format!("asks \"{name}\" after each failure"));
    }
    if spec.on_giveup == OnGiveup::Requeue {
        parts.push("requeues the job when it gives up".to_owned());
    }
    parts.join("; ")
}
