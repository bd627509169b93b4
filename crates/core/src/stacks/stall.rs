//! When a job has stalled (`--stall`): no rank has given a sign of life for a time, and all looks into them for a while after that
//! show the same stacks.
//!
//! **Signs of life** are output of any rank, messages on the worker socket, the start and the end of a rank, and the use of what
//! connects the ranks: PMI, PMIx, a change in torch's store. What is only asked for again and again is none. While the output of
//! the job cannot be written, its ranks may wait for rankrun: the front has to count that as a sign of life too. So is a time in
//! which rankrun itself did not run (SIGSTOP, `scontrol suspend`, a frozen container): nobody was silent then.
//!
//! **Looks.** When the time is over, the ranks are looked into [`LOOKS`] times within a minute, or half of the time if that is
//! less. Two would be enough for a program that sleeps. One that exchanges small messages in a loop is in the same call at most
//! of the moments at which it is looked at, and its wait spins like that of one that hangs: the more looks, at uneven times,
//! the less often it is taken for it. The first look that differs is taken for a sign of life, and is the last one until the
//! time is over again: a silent job that goes on costs two looks each time. After the last one, one look each time is enough;
//! where that leaves no doubt for the first time, all looks are made again.
//!
//! What is compared is in [`super::print`]: functions and lines, without what is inside of a wait. CPU time never shows that a
//! rank goes on, since waits in MPI spin. Outside of such waits it shows that a rank may go on although its stack is the same.
//!
//! * **S-1** A job is ended only if all of its ranks, at all looks, were at the same place, and were seen to wait there.
//! * **S-2** It is not ended, and that is told instead, if some rank computes ([`Doubt::Computes`]): for hours at one line of
//!   Python, in one call of numpy, on its GPU, or in a process that it has started, such as a compiler. Nobody can tell that
//!   from a loop without end. If no rank waits for something else, nothing is told.
//!   So is a rank that moves from place to place, if it only computes, writes nothing, and all others wait for each other or for it.
//! * **S-3** Likewise if a rank sleeps until a time, for which the others may wait (`sleep` in a loop: [`Doubt::Sleeps`]), or a thread
//!   or a process does for which the rank may wait. A wait with a time limit is a sleep if the limit is not over between the first look
//!   and the last; a shorter one is repeated where the rank is at the same place at all looks, and counts as a wait. If it waits for input on a stdin that is no terminal ([`Doubt::AtInput`]); or if it
//!   could not be looked into ([`Doubt::Unseen`]), also not when the look was repeated. One that has not had the CPU at all is at the
//!   same place for certain.
//! * **S-4** Nothing is told, and nothing ended, while a rank waits for somebody at the terminal (a REPL, a debugger's prompt,
//!   `input()`), or is held by a debugger or SIGSTOP: that somebody knows.
//! * **S-5** The same stall is told once, whatever signs of life there are in between: a service that writes a line each hour
//!   does not tell of it each hour.
//!
//! What may be ended although it is healthy, and so should not run under `kill`: a service that waits for requests for longer
//! than the time, without a word; a program that waits for something slow outside of the job (a download, a queue) at one
//! place; and a program of tiny steps that is at every look in the same MPI call. A line of output, or progress reported on the
//! worker socket, once in the time is enough for each of them.
//! What is not found: a rank that polls (`while not request.Test(): ...`) is at another line each time, and seems to go on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::print::Doing;
pub use super::print::{Print, prints};
use crate::ids::Rank;
use crate::ranks::RankSet;
use crate::suggest::nearest;
use crate::units::{UnitError, format_duration, parse_duration};

/// The longest time between the first look and the last.
const BETWEEN: Duration = Duration::from_secs(60);
/// The shares of that time, in 60ths, between two looks: uneven, so that they do not meet a program always at the same step.
const STEPS: [u32; 7] = [7, 9, 6, 8, 11, 12, 7];
/// How often ranks are looked into before they count as stalled.
pub const LOOKS: usize = STEPS.len() + 1;
/// The shortest time that can be asked for.
const LEAST: Duration = Duration::from_secs(1);
/// A rank that was not in a wait for a fifth of the time computes: one that only wakes now and then uses far less.
const COMPUTES: u32 = 5;
/// How often a look is repeated that has not shown all ranks, and the share of the time between the first look and the last that
/// passes before.
const REPEATS: u32 = 4;
const REPEAT_SHARE: u32 = 16;
/// Of so many ranks one may go on while the others wait for it, and yet that is told.
const FOLLOWED: usize = 4;
/// Stalls that were told and are remembered, for each attempt.
const TOLD: usize = 16;
/// Who is not called for so much longer than it asked for did not run.
const LATE: Duration = Duration::from_secs(2);
/// The longest time between two calls, so that a time in which rankrun did not run is noticed.
const TICK: Duration = Duration::from_secs(30);

/// What is done about a stall.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// It is told, once.
    Warn,
    /// The job ends, or begins its next attempt.
    Kill,
}

/// `--stall`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StallSpec {
    /// How long without a sign of life.
    pub after: Duration,
    pub action: Action,
}

/// docs/adr/0030-the-default-of-stall.md.
impl Default for StallSpec {
    fn default() -> Self {
        StallSpec { after: Duration::from_secs(600), action: Action::Warn }
    }
}

impl fmt::Display for StallSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            Action::Warn => "warn",
            Action::Kill => "kill",
        };
        write!(f, "{}:{action}", format_duration(self.after))
    }
}

/// Why a text is no value of `--stall`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StallError {
    #[error(
        "\"{text}\" is nothing to do about a stall{}",
        meant.map_or_else(|| ": write 10m:warn or 10m:kill".to_owned(), |meant| format!("; did you mean \"{meant}\"?"))
    )]
    Action { text: String, meant: Option<&'static str> },
    #[error("\"{text}\" does not say how long ranks may be silent: write 10m:{text}")]
    NoTime { text: String },
    #[error("{after} is too short: {} is the least", format_duration(LEAST))]
    TooShort { after: String },
    #[error("what is off ends nothing: write off, or 10m:kill")]
    Off,
    #[error("{0}: write 10m, 10m:kill or off")]
    Unit(#[from] UnitError),
}

/// What `--stall` was given: `10m`, `10m:kill`, or `off`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Given(pub Option<StallSpec>);

impl FromStr for Given {
    type Err = StallError;

    fn from_str(text: &str) -> Result<Given, StallError> {
        let word =
            |text: &str| [("warn", Action::Warn), ("kill", Action::Kill)].into_iter().find(|(it, _)| *it == text);
        let (first, second) = text.split_once(':').map_or((text, None), |(first, second)| (first, Some(second)));
        if word(first).is_some() {
            return Err(StallError::NoTime { text: first.to_owned() });
        }
        let after = if first == "off" { Duration::ZERO } else { parse_duration(first)? };
        let action = match second {
            None => Action::Warn,
            Some(_) if after.is_zero() => return Err(StallError::Off),
            Some(second) => word(second).map(|(_, action)| action).ok_or_else(|| {
                let meant = nearest(second, ["warn", "kill"]).and_then(word).map(|(meant, _)| meant);
                StallError::Action { text: second.to_owned(), meant }
            })?,
        };
        match after {
            Duration::ZERO => Ok(Given(None)),
            after if after < LEAST => Err(StallError::TooShort { after: format_duration(after) }),
            after => Ok(Given(Some(StallSpec { after, action }))),
        }
    }
}

/// What looks have shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// It goes on, or that is not known yet, or there is nothing new to say.
    No,
    /// All ranks wait, each at the place where it was.
    Stalled { silent: Duration },
    /// Each is at the place where it was, and yet the job may go on.
    Waits { silent: Duration, doubt: Doubt },
}

/// Why a job may go on although nothing is seen of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// These compute, at one place.
    Computes(RankSet),
    /// These could not be looked into.
    Unseen(RankSet),
    /// These sleep until a time, and wake by themselves.
    Sleeps(RankSet),
    /// These wait for input on stdin.
    AtInput(RankSet),
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ranks, one, several) = match self {
            Doubt::Computes(ranks) => (ranks, "computes and may go on", "compute and may go on"),
            Doubt::AtInput(ranks) => (ranks, "waits for input on stdin", "wait for input on stdin"),
            Doubt::Unseen(ranks) => (ranks, "could not be looked into", "could not be looked into"),
            Doubt::Sleeps(ranks) => (ranks, "sleeps until a time", "sleep until a time"),
        };
        match ranks.count() {
            Some(1) => write!(f, "rank {ranks} {one}"),
            _ => write!(f, "ranks {ranks} {several}"),
        }
    }
}

/// Decides when to look, and what it means.
#[derive(Clone, Debug)]
pub struct Stall {
    spec: StallSpec,
    has_terminal: bool,
    /// The last sign of life.
    last: Duration,
    /// From when on it counts: the last sign of life, also if only a look has shown it.
    base: Duration,
    /// When this was last called.
    called: Duration,
    round: Option<Round>,
    /// Ranks that a look has shown since the last sign of life: a rank that ends is one.
    known: BTreeSet<Rank>,
    /// How often the present look was repeated.
    repeats: u32,
    /// When to look next; `None` while a look is under way, or when the job is to be ended.
    due: Option<Duration>,
    /// What was told, the newest last.
    told: VecDeque<u64>,
}

/// Looks one after another.
#[derive(Clone, Debug)]
struct Round {
    began: Duration,
    /// So many were made, and so many are to be.
    looks: usize,
    wanted: usize,
    /// The round before has left no doubt.
    was_certain: bool,
    first: BTreeMap<Rank, Print>,
    /// Those that go on, at one place and another, while all others wait for them.
    moving: BTreeSet<Rank>,
    /// Those that some look has not shown.
    unseen: BTreeSet<Rank>,
    /// In how many looks a rank had a process that runs.
    busy_children: BTreeMap<Rank, usize>,
}

impl Stall {
    /// From `now` on. `has_terminal`: somebody may type.
    pub fn new(spec: StallSpec, has_terminal: bool, now: Duration) -> Stall {
        let due = Some(now.saturating_add(spec.after));
        Stall {
            spec,
            has_terminal,
            last: now,
            base: now,
            called: now,
            round: None,
            known: BTreeSet::new(),
            repeats: 0,
            due,
            told: VecDeque::new(),
        }
    }

    pub fn spec(&self) -> StallSpec {
        self.spec
    }

    /// A sign of life. It costs nothing: there may be millions.
    pub fn sign(&mut self, now: Duration) {
        self.called = self.called.max(now);
        self.last = self.last.max(now);
        self.base = self.base.max(now);
        self.known.clear();
    }

    /// When [`Stall::is_to_look`] wants to be called, at the latest. `None`: when something else has happened.
    pub fn deadline(&self) -> Option<Duration> {
        self.due.map(|due| due.min(self.called.saturating_add(self.tick())))
    }

    fn tick(&self) -> Duration {
        TICK.min(self.spec.after / 8)
    }

    fn between(&self) -> Duration {
        BETWEEN.min(self.spec.after / 2)
    }

    /// Whether it is time to look into all ranks; [`Stall::looked`] is to follow.
    pub fn is_to_look(&mut self, now: Duration) -> bool {
        self.wake(now);
        if self.due.is_none_or(|due| due > now) {
            return false;
        }
        if !self.is_silent(now) {
            self.rest();
            return false;
        }
        self.due = None;
        true
    }

    /// Notices a time in which nobody ran.
    fn wake(&mut self, now: Duration) {
        let slept = now.saturating_sub(self.called);
        self.called = self.called.max(now);
        if self.due.is_some() && slept > self.tick() + LATE {
            self.base = now.min(self.base.saturating_add(slept));
            self.rest();
        }
    }

    fn is_silent(&self, now: Duration) -> bool {
        self.base.saturating_add(self.spec.after) <= now
    }

    /// Waits until the time is over again.
    fn rest(&mut self) {
        self.round = None;
        self.due = Some(self.base.saturating_add(self.spec.after));
    }

    /// The same, from now on: a look has shown life.
    fn rest_from(&mut self, now: Duration) -> Finding {
        self.base = self.base.max(now);
        self.rest();
        Finding::No
    }

    /// What a look has shown. `traffic`: when the ranks last used what connects them. Nothing is shown of a rank that is missing;
    /// without any, there is to be another look later.
    pub fn looked(&mut self, now: Duration, traffic: Option<Duration>, prints: BTreeMap<Rank, Print>) -> Finding {
        self.called = self.called.max(now);
        if let Some(traffic) = traffic {
            self.last = self.last.max(traffic);
            self.base = self.base.max(traffic);
        }
        if !self.is_silent(now) {
            self.rest();
            return Finding::No;
        }
        let between = self.between();
        let prints: BTreeMap<Rank, Print> =
            prints.into_iter().map(|(rank, print)| (rank, print.with_sleep_of(between))).collect();
        if prints.is_empty() {
            self.round = None;
            self.due = Some(now + self.between());
            return Finding::No;
        }
        let is_known = |print: &Print| match print.doing {
            Doing::Held => true,
            Doing::AtInput => self.has_terminal,
            Doing::Waits | Doing::Sleeps | Doing::Computes => false,
        };
        if prints.values().any(is_known) {
            return self.rest_from(now);
        }
        // A look that has not shown all ranks, as on a busy machine, is made again before anything is concluded from it.
        self.known.extend(prints.keys());
        let is_given_up = |rank: &Rank| self.round.as_ref().is_some_and(|round| round.unseen.contains(rank));
        let is_missing = |rank: &Rank| prints.get(rank).is_none_or(|print| print.place.is_none());
        if self.repeats < REPEATS && self.known.iter().any(|rank| is_missing(rank) && !is_given_up(rank)) {
            self.repeats += 1;
            self.due = Some(now + self.between() / REPEAT_SHARE);
            return Finding::No;
        }
        self.repeats = 0;
        let Some(mut round) = self.round.take() else {
            self.round = Some(Round::new(now, prints, &self.known, LOOKS));
            self.due = Some(now + self.step(1));
            return Finding::No;
        };
        if !round.add(&prints) {
            return self.rest_from(now);
        }
        if round.looks < round.wanted {
            self.due = Some(now + self.step(round.looks));
            self.round = Some(round);
            return Finding::No;
        }
        self.conclude(now, &round, prints)
    }

    /// The time after so many looks of a round.
    fn step(&self, looks: usize) -> Duration {
        self.between() * STEPS[looks - 1] / STEPS.iter().sum::<u32>()
    }

    fn conclude(&mut self, now: Duration, round: &Round, last: BTreeMap<Rank, Print>) -> Finding {
        let silent = now.saturating_sub(self.last);
        let doubt = round.doubt(now, &last);
        let is_certain = matches!(doubt, Ok(None));
        if is_certain && !round.was_certain && round.wanted < LOOKS {
            self.round = Some(Round::new(now, last, &self.known, LOOKS));
            self.due = Some(now + self.step(1));
            return Finding::No;
        }
        self.rest_from(now);
        // From now on one look each time is enough, until it shows something else or there is a sign of life.
        self.round = Some(Round { was_certain: is_certain, ..Round::new(now, last, &self.known, 2) });
        let Ok(doubt) = doubt else { return Finding::No };
        if doubt.is_none() && self.spec.action == Action::Kill {
            self.due = None;
        } else if !self.is_new(round, doubt.as_ref()) {
            return Finding::No;
        }
        match doubt {
            None => Finding::Stalled { silent },
            Some(doubt) => Finding::Waits { silent, doubt },
        }
    }

    /// Whether this stall was not told before; remembers it.
    fn is_new(&mut self, round: &Round, doubt: Option<&Doubt>) -> bool {
        let mut hasher = DefaultHasher::new();
        // The place of a rank that computes or was not seen says nothing: it may be another one at the next look.
        let of_doubt = match doubt {
            Some(Doubt::Computes(ranks) | Doubt::Unseen(ranks)) => ranks.iter().collect(),
            Some(Doubt::Sleeps(_) | Doubt::AtInput(_)) | None => BTreeSet::new(),
        };
        let certain = round.first.iter().filter(|(rank, _)| !of_doubt.contains(rank));
        certain.for_each(|(rank, print)| (rank, print.place).hash(&mut hasher));
        // Which ranks it is about may change from look to look.
        doubt.map(std::mem::discriminant).hash(&mut hasher);
        let it = hasher.finish();
        if self.told.contains(&it) {
            return false;
        }
        if self.told.len() == TOLD {
            self.told.pop_front();
        }
        self.told.push_back(it);
        true
    }
}

/// There is nothing to say.
struct Nothing;

impl Round {
    fn new(now: Duration, first: BTreeMap<Rank, Print>, known: &BTreeSet<Rank>, wanted: usize) -> Round {
        let unseen = known.iter().filter(|rank| !first.contains_key(rank)).copied().collect();
        let busy_children = BTreeMap::new();
        let (empty, moving) = (BTreeMap::new(), BTreeSet::new());
        let mut round =
            Round { began: now, looks: 0, wanted, was_certain: false, first: empty, moving, unseen, busy_children };
        round.count(&first);
        Round { first, ..round }
    }

    fn count(&mut self, prints: &BTreeMap<Rank, Print>) {
        self.looks += 1;
        self.unseen.extend(prints.iter().filter(|(_, print)| print.place.is_none()).map(|(rank, _)| *rank));
        for (rank, _) in prints.iter().filter(|(_, print)| print.has_busy_child) {
            *self.busy_children.entry(*rank).or_default() += 1;
        }
    }

    /// Another look. Returns whether it shows the same.
    fn add(&mut self, prints: &BTreeMap<Rank, Print>) -> bool {
        let is_same = |rank: &Rank, print: &Print| {
            let Some(first) = self.first.get(rank) else { return false };
            first.place.zip(print.place).is_none_or(|(first, now)| first == now)
        };
        let moved: Vec<Rank> =
            prints.iter().filter(|(rank, print)| !is_same(rank, print)).map(|(rank, _)| *rank).collect();
        if !moved.is_empty() && !self.may_follow(&moved, prints) {
            return false;
        }
        self.moving.extend(moved);
        self.unseen.extend(self.first.keys().filter(|rank| !prints.contains_key(rank)).copied());
        self.count(prints);
        true
    }

    /// Whether these ranks only compute, while all others wait for each other or for these.
    fn may_follow(&self, moved: &[Rank], prints: &BTreeMap<Rank, Print>) -> bool {
        let moving: BTreeSet<&Rank> = self.moving.iter().chain(moved).collect();
        let only_computes = |rank: &&Rank| {
            self.first.get(rank).zip(prints.get(rank)).is_some_and(|(first, now)| now.only_computes_since(first))
        };
        let all_others_wait =
            prints.iter().filter(|(rank, _)| !moving.contains(rank)).all(|(_, print)| print.waits_for_others);
        let is_few = moving.len() == 1 || moving.len() * FOLLOWED <= prints.len();
        is_few && moving.len() < prints.len() && all_others_wait && moved.iter().all(|rank| only_computes(&rank))
    }

    /// Why the job may go on, if it may.
    ///
    /// # Errors
    ///
    /// All ranks compute, so that none is seen to wait.
    fn doubt(&self, now: Duration, last: &BTreeMap<Rank, Print>) -> Result<Option<Doubt>, Nothing> {
        let least = now.saturating_sub(self.began) / COMPUTES;
        let of = |rank: &Rank| self.first.get(rank).zip(last.get(rank));
        let computes = |rank: &Rank| {
            let has_worked = of(rank).is_some_and(|(first, last)| last.worked_since(first) > least);
            let is_seen_to = of(rank).is_some_and(|(first, last)| {
                let computes = |print: &Print| print.doing == Doing::Computes || print.has_busy_thread;
                first.place.is_some() && computes(first) && computes(last)
            });
            let is_moving = self.moving.contains(rank);
            has_worked
                || is_seen_to
                || is_moving
                || self.busy_children.get(rank).is_some_and(|looks| looks * 2 >= self.looks)
        };
        let computing: Vec<Rank> = self.first.keys().filter(|rank| computes(rank)).copied().collect();
        if computing.len() == self.first.len() {
            return Err(Nothing);
        }
        if !computing.is_empty() {
            return Ok(Some(Doubt::Computes(RankSet::of(computing))));
        }
        let has_slept = |rank: &Rank| of(rank).is_some_and(|(first, last)| last.has_slept_since(first));
        let unseen: Vec<Rank> = self.unseen.iter().filter(|rank| !has_slept(rank)).copied().collect();
        if !unseen.is_empty() {
            return Ok(Some(Doubt::Unseen(RankSet::of(unseen))));
        }
        let are = |doing: Doing| -> Vec<Rank> {
            last.iter().filter(|(_, print)| print.doing == doing).map(|(rank, _)| *rank).collect()
        };
        // Of a wait until a time less is left at the last look.
        let sleeps = |rank: &Rank| {
            of(rank).is_some_and(|(first, last)| [first, last].iter().any(|print| print.doing == Doing::Sleeps))
        };
        let asleep: Vec<Rank> = last.keys().filter(|rank| sleeps(rank)).copied().collect();
        let at_input = are(Doing::AtInput);
        if !at_input.is_empty() {
            return Ok(Some(Doubt::AtInput(RankSet::of(at_input))));
        }
        Ok((!asleep.is_empty()).then(|| Doubt::Sleeps(RankSet::of(asleep))))
    }
}

#[cfg(test)]
#[path = "stall_tests.rs"]
mod tests;
