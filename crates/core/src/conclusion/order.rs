//! Which of several failures was first: how much a failure says of the origin, and whether it began before our stop.

use std::time::Duration;

use serde::Serialize;

use crate::evidence::Class;
use crate::gang::{Gang, RankRecord};

/// How long after a stop an end that nobody reported may still be dated that was under way before it: on a busy machine it
/// is reaped late.
pub const SETTLE: Duration = Duration::from_millis(100);

/// How much a finding says of the origin of a failure. The first decides, and time only within one weight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weight {
    /// An own cause: an exception, a crash, an abort, out of memory, or words of its own.
    Own,
    /// A crash that was under way when the stop was ordered.
    UnderWay,
    /// A failure without a word.
    Silent,
    /// A rank that is missed by others.
    Missing,
    /// A failure right after the stop, which may come from our signal. The loss of a peer tells that there is another
    /// origin, so that this comes before it, and after all else.
    Doubtful,
    /// The rank says that a peer was lost.
    Victim,
    /// An own cause that began after our signal.
    LateOwn,
    /// Silent, and after our signal.
    Late,
}

/// When a failure began, by the side of our stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Began {
    Before,
    /// After the stop was ordered, and before the rank was sent a signal.
    UnderWay,
    /// So shortly after it that its order is not known.
    Doubtful,
    After,
}

/// When a failure of a rank began. `is_reported`: the program said so as it happened, so that its time is exact; else it is
/// that at which the end was seen. What may have been before the stop by the clock of its node, or after it, was not before it: it may
/// come from our signal.
pub(crate) fn began(gang: &Gang, record: &RankRecord, at: Duration, is_reported: bool) -> Began {
    let Some(stop) = gang.stop_ordered().filter(|stop| record.latest(at) > *stop) else { return Began::Before };
    match record.stop.signals.first() {
        Some((_, sent)) if at < *sent => Began::UnderWay,
        Some((_, sent)) if is_reported || at > *sent + SETTLE => Began::After,
        Some(_) => Began::Doubtful,
        None if at > stop + SETTLE => Began::After,
        None if is_reported => Began::Doubtful,
        None => Began::UnderWay,
    }
}

/// The weight of a finding. `is_victim`: it tells of a lost peer. `has_words`: its cause is in its own words.
pub(crate) fn weight(class: Class, began: Began, is_victim: bool, has_words: bool) -> Weight {
    let (is_own, is_missing) = match class {
        Class::SpawnFailed | Class::OutOfMemory => (true, false),
        Class::Abort | Class::Exception | Class::StuckInFinalize | Class::StuckInExitHandlers | Class::Signal => {
            (true, false)
        }
        Class::ExitCode => (has_words, false),
        Class::Stopped | Class::NotReady => (false, false),
        Class::ExitWithoutFinalize
        | Class::ExitBeforeInit
        | Class::LeftEarly
        | Class::Timeout
        | Class::PlannedStop
        | Class::Hang
        | Class::Interrupted
        | Class::LauncherLost
        | Class::NodeLost
        | Class::Alone
        | Class::OutputFailed
        | Class::Refused => (false, true),
    };
    let can_be_victim =
        !is_missing && !matches!(class, Class::SpawnFailed | Class::OutOfMemory | Class::Stopped | Class::NotReady);
    if is_victim && can_be_victim {
        return Weight::Victim;
    }
    match (began, is_own) {
        (Began::Before, true) => Weight::Own,
        (Began::UnderWay, true) if class == Class::Signal => Weight::UnderWay,
        (Began::After, true) => Weight::LateOwn,
        (_, false) if is_missing => Weight::Missing,
        (Began::Before, false) => Weight::Silent,
        (Began::UnderWay | Began::Doubtful, _) => Weight::Doubtful,
        (Began::After, false) => Weight::Late,
    }
}
