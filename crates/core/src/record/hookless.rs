//! The ranks whose Python has no hook, and when that matters.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::absence::Absence;
use crate::evidence::{Evidence, Fact};
use crate::gang::{Gang, Outside};
use crate::ids::Rank;
use crate::ranks::RankSet;
use crate::standing::{Phase, Standing};
use crate::status::WorkerStatus;

/// After a signal to rankrun, a rank that has been silent for less, in seconds, is taken for one that works.
const SILENT: f64 = 10.0;

/// Ranks with the same reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hookless {
    #[serde(with = "crate::ranks::written")]
    pub ranks: RankSet,
    pub why: Absence,
}

impl Hookless {
    /// Groups ranks by the reason.
    pub fn groups(ranks: impl IntoIterator<Item = (Rank, Absence)>) -> Vec<Hookless> {
        let mut groups: Vec<(Absence, Vec<Rank>)> = Vec::new();
        for (rank, why) in ranks {
            match groups.iter_mut().find(|(known, _)| *known == why) {
                Some((_, ranks)) => ranks.push(rank),
                None => groups.push((why, vec![rank])),
            }
        }
        groups.into_iter().map(|(why, ranks)| Hookless { ranks: RankSet::of(ranks), why }).collect()
    }
}

impl fmt::Display for Hookless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (noun, verb) = if self.ranks.count() == Some(1) { ("rank", "runs") } else { ("ranks", "run") };
        let Hookless { ranks, why } = self;
        write!(f, "{noun} {ranks} {verb} Python without rankrun's hook, which reports exceptions: {why}")
    }
}

/// Since when, and for what, the ranks are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Occasion {
    pub now: Duration,
    /// What ended the job, or asks for the state of the ranks, if no rank is known to have failed.
    pub outside: Option<Outside>,
}

/// The ranks whose lack of a hook may hide a failure: those that are suspected, and where nothing else is known, those that
/// are stuck.
pub fn that_matter(gang: &Gang, standings: &[Standing], occasion: Occasion) -> Vec<Hookless> {
    let standing_of = |rank: Rank| standings.iter().find(|standing| standing.ranks.contains(rank));
    let is_named = |evidence: &&Evidence| matches!(evidence.fact, Fact::Suspect { .. });
    let suspects: BTreeSet<Rank> = gang.evidence().iter().filter(is_named).map(|evidence| evidence.rank).collect();
    let is_suspect =
        |rank: Rank| suspects.contains(&rank) || standing_of(rank).is_some_and(|standing| standing.suspect.is_some());
    let is_stuck = |rank: Rank, started: Option<Duration>| {
        let lives = |it: &&Standing| !matches!(it.phase, Phase::NotStarted | Phase::Ended(_));
        let Some(standing) = standing_of(rank).filter(lives) else { return false };
        match occasion.outside {
            Some(Outside::Timeout | Outside::Planned(_) | Outside::Hang) => true,
            Some(Outside::Signal(_)) => is_silent(standing, started, occasion.now),
            Some(_) | None => false,
        }
    };
    let hookless = gang.ranks().iter().filter_map(|record| {
        let rank = record.rank;
        let ended_well = record.status.is_some_and(WorkerStatus::success) && !record.stop_ordered_before_end;
        let why = record.hookless.clone().filter(|_| !ended_well)?;
        (is_suspect(rank) || is_stuck(rank, record.started_at)).then_some((rank, why))
    });
    Hookless::groups(hookless)
}

/// Whether a rank has written nothing for so long that it does not seem to work.
fn is_silent(standing: &Standing, started: Option<Duration>, now: Duration) -> bool {
    match (standing.silent, started) {
        (Some((least, _)), _) => least >= SILENT,
        (None, Some(started)) => now.saturating_sub(started).as_secs_f64() >= SILENT,
        (None, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::{Event, Rules};
    use crate::ids::{GangId, Pid, worker};
    use crate::standing::{Voice, standings};

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Four ranks: 0 and 1 run Python with `-I`, 2 with another PYTHONPATH, and 3 has its hook.
    fn gang() -> Gang {
        let rules =
            Rules { grace_failure: s(5), grace_outside: s(25), timeout: Some(s(60)), keep_going: true, terminal: None };
        let mut gang = Gang::new(GangId::default(), 4, rules);
        for rank in 0..4 {
            gang.handle(s(0), Event::Started { worker: worker(rank), pid: Pid(100 + rank as i32) }, &mut Vec::new());
        }
        let replaced = Absence::PathReplaced { path: "/opt/mine".to_owned() };
        for (rank, why) in [(0, Absence::Option('I')), (1, Absence::Option('I')), (2, replaced)] {
            gang.handle(s(1), Event::Hookless(worker(rank), why), &mut Vec::new());
        }
        gang
    }

    fn told(gang: &Gang, outside: Option<Outside>, voice: impl Fn(Rank) -> Voice) -> Vec<String> {
        let now = s(60);
        let occasion = Occasion { now, outside };
        that_matter(gang, &standings(gang, now, voice), occasion).iter().map(Hookless::to_string).collect()
    }

    const ISOLATED: &str =
        "ranks 0-1 run Python without rankrun's hook, which reports exceptions: Python was started with -I";
    const REPLACED: &str =
        "rank 2 runs Python without rankrun's hook, which reports exceptions: PYTHONPATH was replaced by \"/opt/mine\"";

    #[test]
    fn at_a_timeout_every_rank_matters_that_may_have_failed_unseen() {
        let mut gang = gang();
        assert_eq!(told(&gang, Some(Outside::Timeout), |_| Voice::default()), [ISOLATED, REPLACED]);
        assert_eq!(told(&gang, None, |_| Voice::default()), [""; 0], "a rank is known to have failed");
        let ended = |rank, code| Event::Ended { worker: worker(rank), status: WorkerStatus::Exited { code } };
        gang.handle(s(2), ended(0, 0), &mut Vec::new());
        gang.handle(s(2), ended(1, 3), &mut Vec::new());
        assert_eq!(told(&gang, Some(Outside::Timeout), |_| Voice::default()), [REPLACED]);
    }

    #[test]
    fn a_suspect_matters_always_and_after_a_signal_so_does_who_was_silent_for_long() {
        let gang = gang();
        let voice = |rank: Rank| Voice {
            at: Some(s([59, 40, 59, 0][rank.number() as usize])),
            // Ranks in the same state share a standing.
            line: Some(["a", "b", "c", "d"][rank.number() as usize].to_owned()),
            traceback: (rank == Rank(2)).then(|| "ValueError: boom".to_owned()),
        };
        assert_eq!(told(&gang, None, voice), [REPLACED]);
        let silent = ISOLATED.replace("ranks 0-1 run", "rank 1 runs");
        assert_eq!(told(&gang, Some(Outside::Signal(2)), voice), [silent.as_str(), REPLACED]);
        assert_eq!(told(&gang, Some(Outside::Signal(2)), |_| Voice::default()), [ISOLATED, REPLACED], "never a word");
    }
}
