//! When a job is started again after a failure: what the user asked for. [`Restarter`](crate::restart::Restarter)
//! decides by it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::evidence::Class;
use crate::suggest::nearest;
use crate::units::{UnitError, parse_duration};

/// The restart policy of a job. The default never restarts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RestartSpec {
    pub budget: Budget,
    pub backoff: Backoff,
    /// An attempt that was up for so long begins the backoff anew.
    pub healthy: Duration,
    /// The failures that are worth a restart.
    pub on: BTreeSet<Class>,
    /// Exit codes after which the job is not restarted.
    pub never_codes: Codes,
    pub start: StartRetries,
    pub scope: RestartScope,
    /// A rank that somebody else stopped (SIGSTOP) has failed after this time. 0: at once.
    pub stopped_timeout: Duration,
    /// How long the ranks of a program that says when it is ready have for that. `None`: as long as they like.
    pub ready_timeout: Option<Duration>,
    pub on_giveup: OnGiveup,
    pub node_loss: NodeLoss,
    /// Whether failures that repeat themselves stop the job.
    pub breaker: bool,
    /// A file that changes as the job makes progress. Absolute.
    pub progress_file: Option<OsString>,
    pub on_failure: Option<OnFailureCommand>,
}

impl Default for RestartSpec {
    fn default() -> Self {
        RestartSpec {
            budget: Budget::default(),
            backoff: Backoff::default(),
            healthy: Duration::from_secs(5 * 60),
            on: RESTARTABLE.into_iter().collect(),
            never_codes: Codes::default(),
            start: StartRetries::default(),
            scope: RestartScope::Gang,
            stopped_timeout: Duration::ZERO,
            ready_timeout: None,
            on_giveup: OnGiveup::Exit,
            node_loss: NodeLoss::Counts,
            breaker: true,
            progress_file: None,
            on_failure: None,
        }
    }
}

impl RestartSpec {
    /// Whether a failure may lead to another attempt. One that a user asks for is always possible.
    pub fn is_on(&self) -> bool {
        self.budget.allows_any() || self.start.retries > 0 || self.asks() || self.node_loss == NodeLoss::Free
    }

    /// Whether somebody is asked about each failure.
    pub fn asks(&self) -> bool {
        self.on_failure.is_some()
    }
}

/// The classes of failures that can be worth a restart: all but those of the job as a whole (its time is over, somebody
/// ended it, its output cannot be written), and ranks that cannot be started, for which there is [`StartRetries`].
pub const RESTARTABLE: [Class; 13] = [
    Class::OutOfMemory,
    Class::Exception,
    Class::Abort,
    Class::Signal,
    Class::ExitCode,
    Class::StuckInFinalize,
    Class::StuckInExitHandlers,
    Class::ExitWithoutFinalize,
    Class::ExitBeforeInit,
    Class::LeftEarly,
    Class::Stopped,
    Class::Hang,
    Class::NodeLost,
];

/// How many restarts a job has. Both limits hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Budget {
    /// In each span of time of this length.
    pub recent: Option<Recent>,
    /// In the life of the job.
    pub total: Option<u32>,
}

/// A number of restarts in a sliding window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Recent {
    pub restarts: u32,
    pub window: Duration,
}

impl Budget {
    pub fn is_given(&self) -> bool {
        self.recent.is_some() || self.total.is_some()
    }

    pub fn allows_any(&self) -> bool {
        let counts = [self.recent.map(|recent| recent.restarts), self.total];
        self.is_given() && counts.into_iter().flatten().all(|count| count > 0)
    }

    /// How many restarts there may be, as torch's programs are told.
    pub fn most(&self) -> u32 {
        self.total.or(self.recent.map(|recent| recent.restarts)).unwrap_or(0)
    }

    /// What both allow.
    pub fn and(self, other: Budget) -> Budget {
        let total = match (self.total, other.total) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        Budget { recent: self.recent.or(other.recent), total }
    }
}

/// `N`, or `N/WINDOW`.
impl FromStr for Budget {
    type Err = RestartError;

    fn from_str(text: &str) -> Result<Budget, RestartError> {
        let count = |count: &str| count.parse().map_err(|_| RestartError::Count { text: count.to_owned() });
        let Some((restarts, window)) = text.split_once('/') else {
            return Ok(Budget { recent: None, total: Some(count(text)?) });
        };
        let restarts = count(restarts)?;
        if window.is_empty() {
            return Err(RestartError::NoWindow { text: text.to_owned() });
        }
        // `3/h` reads as "three an hour".
        let window = match window.starts_with(|first: char| first.is_ascii_alphabetic()) {
            // What is wrong is named as it was typed.
            true => parse_duration(&format!("1{window}")).or_else(|_| parse_duration(window))?,
            false => parse_duration(window)?,
        };
        if window.is_zero() {
            return Err(RestartError::Window);
        }
        Ok(Budget { recent: Some(Recent { restarts, window }), total: None })
    }
}

/// The time between a failure and the next attempt. The first restart is at once; before the next ones there is a random
/// time from `min` to a limit that doubles each time, up to `max`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Backoff {
    pub min: Duration,
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff { min: Duration::from_secs(1), max: Duration::from_secs(30) }
    }
}

/// The least limit that is doubled, so that `0s..30s` grows too.
const LEAST_BASE: Duration = Duration::from_millis(100);

impl Backoff {
    /// The limit of the wait after so many restarts in a row.
    pub fn limit(&self, restarts: u32) -> Duration {
        let factor = 1u32.checked_shl(restarts).unwrap_or(u32::MAX);
        self.min.max(LEAST_BASE).saturating_mul(factor).min(self.max)
    }
}

/// `MIN..MAX`, or one duration for both.
impl FromStr for Backoff {
    type Err = RestartError;

    fn from_str(text: &str) -> Result<Backoff, RestartError> {
        let shape = || RestartError::Shape { text: text.to_owned() };
        let (min, max) = match text.split_once("..") {
            Some((min, max)) if min.is_empty() || max.is_empty() => return Err(shape()),
            Some((min, max)) => (parse_duration(min)?, parse_duration(max)?),
            None => {
                let both = parse_duration(text).map_err(|_| shape())?;
                (both, both)
            }
        };
        match min <= max {
            true => Ok(Backoff { min, max }),
            false => Err(RestartError::Backwards { text: text.to_owned() }),
        }
    }
}

/// Reads the words of `--restart-on`: classes as reports name them, separated by commas.
///
/// # Errors
///
/// One is no class, or of a kind that is never worth a restart.
pub fn parse_classes(text: &str) -> Result<BTreeSet<Class>, RestartError> {
    text.split(',').map(|word| parse_class(word.trim())).collect()
}

/// What people call some of them.
const OTHER_NAMES: [(&str, Class); 6] = [
    ("oom", Class::OutOfMemory),
    ("memory", Class::OutOfMemory),
    ("killed", Class::Signal),
    ("segfault", Class::Signal),
    ("exit", Class::ExitCode),
    ("lost", Class::NodeLost),
];

fn parse_class(word: &str) -> Result<Class, RestartError> {
    match Class::ALL.into_iter().find(|class| class.word() == word) {
        Some(class) if RESTARTABLE.contains(&class) => Ok(class),
        Some(Class::SpawnFailed) => Err(RestartError::Spawn),
        Some(class) => Err(RestartError::Never { class: class.word() }),
        None => {
            let words = RESTARTABLE.map(Class::word);
            let meant =
                OTHER_NAMES.iter().find(|(name, _)| *name == word.to_lowercase()).map(|(_, class)| class.word());
            if word.eq_ignore_ascii_case("all") {
                return Err(RestartError::All { text: word.to_owned() });
            }
            let meant = meant.or_else(|| nearest(word, words.iter().copied())).map(str::to_owned);
            Err(RestartError::Class { text: word.to_owned(), meant })
        }
    }
}

/// Exit codes, as ranges that do not overlap, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Codes(Vec<(u8, u8)>);

impl Codes {
    pub fn contains(&self, code: u8) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&code))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// `2,64-78`.
impl FromStr for Codes {
    type Err = RestartError;

    fn from_str(text: &str) -> Result<Codes, RestartError> {
        let of = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let range = (first.trim().parse::<u8>().ok()?, last.trim().parse::<u8>().ok()?);
            (0 < range.0 && range.0 <= range.1).then_some(range)
        };
        let ranges: Result<Vec<(u8, u8)>, RestartError> =
            text.split(',').map(|part| of(part).ok_or_else(|| RestartError::Code { text: part.to_owned() })).collect();
        let mut ranges = ranges?;
        ranges.sort_unstable();
        let mut joined: Vec<(u8, u8)> = Vec::new();
        for (first, last) in ranges {
            match joined.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => joined.push((first, last)),
            }
        }
        Ok(Codes(joined))
    }
}

impl fmt::Display for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (first, last)) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

/// What is done when ranks cannot be started, or do not become ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StartRetries {
    /// How often it is tried again.
    pub retries: u32,
    /// The time before each.
    pub backoff: Duration,
}

impl StartRetries {
    /// How often it is tried again in a job that has a budget, unless the user says otherwise: thrice in all.
    pub const OF_RESTARTS: StartRetries = StartRetries { retries: 2, backoff: Duration::from_secs(1) };
}

impl Default for StartRetries {
    fn default() -> Self {
        StartRetries { retries: 0, backoff: StartRetries::OF_RESTARTS.backoff }
    }
}

/// What is started again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum RestartScope {
    /// All ranks.
    #[default]
    Gang,
    /// The rank that failed. The others run on, so that they must not depend on it.
    Rank,
}

/// What a restart after the loss of a node costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum NodeLoss {
    /// As much as after any other failure.
    #[default]
    Counts,
    /// Nothing: nodes come and go.
    Free,
}

/// What is done when the job is not restarted any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum OnGiveup {
    /// rankrun exits with the code of the last failure.
    #[default]
    Exit,
    /// The scheduler is asked to run the job again.
    Requeue,
}

/// A command that decides about each failure.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OnFailureCommand {
    /// Never empty.
    pub command: Vec<OsString>,
    /// How long it has; then the policy's own decision stands.
    pub timeout: Duration,
}

impl OnFailureCommand {
    pub const TIMEOUT: Duration = Duration::from_secs(30);
}

/// Why a part of the policy cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestartError {
    #[error("\"{text}\" is not a number of restarts: write 3 or 3/1h")]
    Count { text: String },
    #[error("\"{text}\" has no time after the slash: write 3/1h, or 3 without a window")]
    NoWindow { text: String },
    #[error("\"{text}\" is not MIN..MAX: write 1s..30s, or 5s for both")]
    Shape { text: String },
    #[error("the window is 0: write 3 without one, or 3/1h")]
    Window,
    #[error("\"{text}\" goes backwards: write the shorter time first, as in 1s..30s")]
    Backwards { text: String },
    #[error("{0}: write 500ms, 5s, 1m30s or 2h")]
    Unit(#[from] UnitError),
    #[error("\"{text}\" is not a class of failures{}", did_you_mean(meant.as_deref()))]
    Class { text: String, meant: Option<String> },
    #[error("\"{text}\" is no class of failures: all of them is the default, without this option")]
    All { text: String },
    #[error("ranks that cannot be started are tried again as --start-retries says")]
    Spawn,
    #[error("a job that ended with \"{class}\" is never restarted")]
    Never { class: &'static str },
    #[error("\"{text}\" is not an exit code of a failure: write 1 to 255, or a range such as 64-78")]
    Code { text: String },
}

fn did_you_mean(meant: Option<&str>) -> String {
    match meant {
        Some(meant) => format!("; did you mean \"{meant}\"?"),
        None => format!(": write some of {}", RESTARTABLE.map(Class::word).join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn budgets_are_read_with_and_without_a_window() {
        let recent = |restarts, window| Budget { recent: Some(Recent { restarts, window }), total: None };
        let total = |restarts| Budget { recent: None, total: Some(restarts) };
        for (text, budget) in [
            ("3", total(3)),
            ("0", total(0)),
            ("3/1h", recent(3, seconds(3600))),
            ("3/h", recent(3, seconds(3600))),
            ("3/m", recent(3, seconds(60))),
            ("10/1m30s", recent(10, seconds(90))),
            ("1/60", recent(1, seconds(60))),
        ] {
            assert_eq!(text.parse(), Ok(budget), "{text}");
        }
        for text in ["", "-1", "3/", "/1h", "3/0", "x", "3/1h/1h", "1.5", "99999999999"] {
            assert!(text.parse::<Budget>().is_err(), "{text}");
        }
        assert_eq!(recent(3, seconds(60)).and(total(9)), Budget { total: Some(9), ..recent(3, seconds(60)) });
        assert_eq!(total(5).and(total(2)), total(2));
        assert!(!total(0).allows_any() && !Budget::default().allows_any() && total(1).allows_any());
        assert!(!recent(3, seconds(60)).and(total(0)).allows_any());
    }

    #[test]
    fn backoffs_go_from_the_shorter_to_the_longer_time() {
        assert_eq!("1s..30s".parse(), Ok(Backoff::default()));
        assert_eq!("5".parse(), Ok(Backoff { min: seconds(5), max: seconds(5) }));
        assert_eq!("0..1m".parse(), Ok(Backoff { min: Duration::ZERO, max: seconds(60) }));
        for text in ["", "..", "1s..", "..30s", "30s..1s", "1s-30s", "1s...30s"] {
            assert!(text.parse::<Backoff>().is_err(), "{text}");
        }
        for text in ["1s-5s", "..5s", "1s..", "1s,5s", "1s.30s", ""] {
            let error = text.parse::<Backoff>().expect_err("no MIN..MAX").to_string();
            assert_eq!(error, format!("\"{text}\" is not MIN..MAX: write 1s..30s, or 5s for both"));
        }
        let error = "3/".parse::<Budget>().expect_err("no window").to_string();
        assert_eq!(error, "\"3/\" has no time after the slash: write 3/1h, or 3 without a window");
        let limits: Vec<u64> = (1..7).map(|restarts| Backoff::default().limit(restarts).as_secs()).collect();
        assert_eq!(limits, [2, 4, 8, 16, 30, 30]);
        assert_eq!(Backoff::default().limit(1000), seconds(30));
        assert_eq!(Backoff { min: Duration::ZERO, max: seconds(1) }.limit(2), Duration::from_millis(400));
    }

    #[test]
    fn classes_are_those_of_reports() {
        assert_eq!(parse_classes("signal,out-of-memory"), Ok([Class::Signal, Class::OutOfMemory].into()));
        for (text, message) in [
            ("signals", "\"signals\" is not a class of failures; did you mean \"signal\"?"),
            ("oom", "\"oom\" is not a class of failures; did you mean \"out-of-memory\"?"),
            ("all", "\"all\" is no class of failures: all of them is the default, without this option"),
            ("spawn-failed", "ranks that cannot be started are tried again as --start-retries says"),
            ("signal,timeout", "a job that ended with \"timeout\" is never restarted"),
        ] {
            assert_eq!(parse_classes(text).map_err(|error| error.to_string()), Err(message.to_owned()));
        }
        assert!(parse_classes("").is_err());
        for class in Class::ALL {
            let in_report = serde_json::to_string(&class).expect("plain data");
            assert_eq!(in_report, format!("\"{}\"", class.word()));
        }
    }

    #[test]
    fn a_window_that_is_none_is_named_as_it_was_typed() {
        let said = |text: &str| text.parse::<Budget>().map_err(|error| error.to_string());
        assert_eq!(said("3/x"), Err("\"x\" is not a duration: write 500ms, 5s, 1m30s or 2h".to_owned()));
        assert_eq!(said("3/1x"), Err("\"1x\" is not a duration: write 500ms, 5s, 1m30s or 2h".to_owned()));
    }

    #[test]
    fn codes_are_numbers_and_ranges() {
        for (text, written) in [("2", "2"), ("64-78,2", "2,64-78"), ("1,2,3", "1-3"), ("1-200,5-6, 255", "1-200,255")] {
            assert_eq!(text.parse::<Codes>().map(|codes| codes.to_string()), Ok(written.to_owned()));
        }
        let codes: Codes = "2,64-78".parse().expect("good codes");
        let inside: Vec<u8> = (0..=255).filter(|code| codes.contains(*code)).collect();
        assert_eq!((inside.len(), inside[0], inside[15]), (16, 2, 78));
        for text in ["", "0", "256", "78-64", "a", "1-", "-1", "1,,2"] {
            assert!(text.parse::<Codes>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_job_is_not_restarted_unless_somebody_asks_for_it() {
        let spec = RestartSpec::default();
        assert!(!spec.is_on());
        assert!(RestartSpec { start: StartRetries { retries: 1, ..spec.start }, ..spec.clone() }.is_on());
        assert!(!RestartSpec { budget: "0/1h".parse().expect("a budget"), ..spec }.is_on());
    }
}
