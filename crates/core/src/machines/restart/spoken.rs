//! Sentences about the policy, and the durations in them.

use std::time::Duration;

use crate::evidence::Class;
use crate::spec::restart::{Budget, OnGiveup, RESTARTABLE, RestartScope, RestartSpec, StartRetries};

/// A duration as a sentence has it: `1 h 30 min`, `1.5 s`, `500 ms`.
pub fn spoken(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    if seconds == 0 {
        return if millis == 0 { "0 s".to_owned() } else { format!("{millis} ms") };
    }
    let fraction = if millis == 0 { String::new() } else { format!(".{millis:03}") };
    let rest = format!("{}{}", seconds % 60, fraction.trim_end_matches('0'));
    let parts = [((seconds / 3600).to_string(), "h"), ((seconds / 60 % 60).to_string(), "min"), (rest, "s")];
    let parts: Vec<String> =
        parts.iter().filter(|(number, _)| number != "0").map(|(number, unit)| format!("{number} {unit}")).collect();
    parts.join(" ")
}

/// A wait of which nobody needs to know more than tenths of a second.
pub fn spoken_wait(duration: Duration) -> String {
    let rounded = (duration.as_secs_f64() * 10.0).round() / 10.0;
    if duration < Duration::from_secs(1) { spoken(duration) } else { spoken(Duration::from_secs_f64(rounded)) }
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

/// A policy in one sentence.
pub(super) fn sentence(spec: &RestartSpec) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_spoken_with_as_few_units_as_it_needs() {
        let said = |ms| spoken(Duration::from_millis(ms));
        let samples = [0, 500, 1_000, 1_500, 1_050, 61_000, 90_500, 3_600_000, 5_400_000].map(said);
        let expected = ["0 s", "500 ms", "1 s", "1.5 s", "1.05 s", "1 min 1 s", "1 min 30.5 s", "1 h", "1 h 30 min"];
        assert_eq!(samples, expected);
        let waits = [200, 999, 1_522, 1_960, 59_970].map(|ms| spoken_wait(Duration::from_millis(ms)));
        assert_eq!(waits, ["200 ms", "999 ms", "1.5 s", "2 s", "1 min"]);
    }
}
