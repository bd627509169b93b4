//! What has changed from one status of a job to the next, a line each: `rankrun status --watch` where there is no terminal.
//!
//! Only states are compared. What ranks write changes all the time, and is in their output.

use std::collections::BTreeMap;

use crate::condition::Doing;
use crate::control::{JobState, JobStatus, RankStatus};
use crate::ids::Attempt;
use crate::overview::doing;
use crate::ranks::RankSet;
use crate::standing::seconds;

/// What is compared of a rank.
type Kind = (Doing, Attempt, Option<String>, bool);

/// The changes since the last status, or all of the first one. A line begins with the time since the start of the job.
pub fn changes(before: Option<&JobStatus>, now: &JobStatus) -> Vec<String> {
    let mut lines = Vec::new();
    let kind = |status: &JobStatus| (status.state, status.attempt, status.why.clone());
    if before.is_none_or(|before| kind(before) != kind(now)) {
        let why = now.why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        lines.push(format!("job {}: {}, attempt {}{why}", now.job, now.state.name(), now.attempt));
    }
    for node in &now.silent_nodes {
        if before.is_none_or(|before| !before.silent_nodes.contains(node)) {
            lines.push(format!("no answer from {node}"));
        }
    }
    let ranks_of = |status: &JobStatus| -> Vec<_> {
        status.ranks.iter().map(|rank| (rank.rank, kind_of(rank, status.state))).collect()
    };
    let known: BTreeMap<_, Kind> = before.map(ranks_of).unwrap_or_default().into_iter().collect();
    let mut groups: Vec<(Kind, Vec<&RankStatus>)> = Vec::new();
    for rank in &now.ranks {
        let kind = kind_of(rank, now.state);
        if known.get(&rank.rank) == Some(&kind) {
            continue;
        }
        match groups.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((kind, vec![rank])),
        }
    }
    for ((_, attempt, why, is_stopped), ranks) in groups {
        let Some(first) = ranks.first() else { continue };
        let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
        let set = RankSet::of(ranks.iter().map(|rank| rank.rank));
        let doing = if is_stopped { "stopped (SIGSTOP)" } else { doing(first) };
        let attempt = if attempt == now.attempt { String::new() } else { format!(", attempt {attempt}") };
        let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
        lines.push(format!("{noun} {set}: {doing}{attempt}{why}"));
    }
    let time = seconds((now.now - now.started).max(0.0));
    lines.iter().map(|line| format!("{time}  {line}")).collect()
}

fn kind_of(rank: &RankStatus, job: JobState) -> Kind {
    let is_stopped = rank.usage.as_ref().is_some_and(|usage| usage.is_stopped);
    (rank.state, rank.attempt, rank.why.clone(), is_stopped && rank.state == Doing::Running && job != JobState::Paused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::RankUsage;
    use crate::overview::tests::{rank, status};

    #[test]
    fn only_what_has_changed_gets_a_line() {
        let running = JobStatus {
            state: JobState::Running,
            why: None,
            silent_nodes: Vec::new(),
            ..status((0..4).map(rank).collect())
        };
        assert_eq!(
            changes(None, &running),
            ["3 min 30 s  job 0a1b2c3d: running, attempt 0", "3 min 30 s  ranks 0-3: running"]
        );
        let mut later = running.clone();
        later.now += 1.0;
        later.ranks[1].last_line = Some("epoch 4".to_owned());
        assert!(changes(Some(&running), &later).is_empty(), "output is no change");
        for number in [1, 2] {
            let ended = &mut later.ranks[number];
            (ended.state, ended.why) = (Doing::Ended, Some("exit 0".to_owned()));
        }
        let usage = RankUsage {
            at: 0.0,
            cpu: 0.0,
            memory: 0,
            read: None,
            written: None,
            processes: 1,
            threads: 1,
            is_stopped: true,
            gpus: Vec::new(),
        };
        later.ranks[3].usage = Some(usage);
        let expected = ["3 min 31 s  ranks 1-2: ended (exit 0)", "3 min 31 s  rank 3: stopped (SIGSTOP)"];
        assert_eq!(changes(Some(&running), &later), expected);
        let mut paused = later.clone();
        (paused.state, paused.ranks[3].usage) = (JobState::Paused, None);
        let expected = ["3 min 31 s  job 0a1b2c3d: paused, attempt 0", "3 min 31 s  rank 3: running"];
        assert_eq!(changes(Some(&later), &paused), expected);
        paused.ranks[0].attempt = Attempt(2);
        paused.silent_nodes = vec!["node02".to_owned()];
        let expected = ["no answer from node02", "rank 0: running, attempt 2", "rank 3: running"];
        let said = changes(Some(&later), &JobStatus { state: JobState::Running, ..paused });
        assert_eq!(said.iter().map(|line| &line[12..]).collect::<Vec<_>>(), expected);
    }
}
