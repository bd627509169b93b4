//! What a process of a rank says of itself, through the interpreter hook or the worker socket.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error_stack::reason_of_stack;
use crate::traceback::{exception_line, first_of_group};

/// An exception as the program put it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Exception {
    /// Its type, such as `ValueError`, or `panic`.
    pub kind: String,
    pub message: String,
    /// The whole traceback, with causes and notes.
    pub traceback: String,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub function: Option<String>,
}

impl Exception {
    /// `ValueError: failure!`, on one line. Where the message holds the traceback of another process, that one's last line is
    /// the cause; of a group, its first exception is named.
    pub fn headline(&self) -> String {
        let own = reason_of_stack(self.message.trim()).unwrap_or_else(|| first_words(&self.message));
        let of_group = || first_of_group(&self.traceback).filter(|_| self.kind.ends_with("Group"));
        let said = match (embedded(&self.message), of_group()) {
            (Some(cause), _) if cause != own => {
                let own = first_line(&self.message).trim_start_matches("-- ").trim_end_matches(['.', ':']).to_owned();
                format!("{own}: {cause}")
            }
            (None, Some(cause)) if !own.ends_with(&cause) => format!("{own}, first {cause}"),
            (_, _) => own,
        };
        match (self.kind.trim(), said.as_str()) {
            // Python prints the text of `sys.exit("no data")` alone.
            ("" | "SystemExit", said) if !said.is_empty() => said.to_owned(),
            (kind, "") => kind.to_owned(),
            (kind, said) => format!("{kind}: {said}"),
        }
    }

    /// Whether a line that was written is part of it.
    pub(crate) fn has_line(&self, line: &str) -> bool {
        self.traceback.contains(line) || self.message.contains(line) || self.headline() == line.trim()
    }
}

/// The first line of a message that says something: the message of torchrun's `ChildFailedError` begins with a rule.
fn first_line(message: &str) -> &str {
    let says = |line: &&str| line.chars().any(|c| !matches!(c, '=' | '-' | '*' | ' '));
    message.lines().map(str::trim).find(says).unwrap_or_default()
}

/// The first line of a message, and those that it announces by a colon at its end.
fn first_words(message: &str) -> String {
    let first = first_line(message);
    let mut words = first.to_owned();
    let after = message.lines().map(str::trim).skip_while(|line| *line != first).skip(1);
    for line in after.filter(|line| !line.is_empty()) {
        if !words.ends_with(':') {
            break;
        }
        words = format!("{words} {line}");
    }
    words
}

/// The last line of the traceback that a message holds, such as that of torch's DataLoader and of `mp.spawn`.
fn embedded(message: &str) -> Option<&str> {
    let (_, traceback) = message.split_once("Traceback (most recent call last):")?;
    traceback
        .lines()
        .skip(1)
        .filter(|line| !line.starts_with([' ', '\t']))
        .filter(|line| exception_line(line).is_some())
        .last()
}

/// One statement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Testimony {
    /// An exception has reached the top of the main thread.
    Uncaught(Exception),
    /// The interpreter's own exit work is done, and it is about to end with this code, which is not 0: only finalizers of
    /// libraries remain, `MPI_Finalize` among them.
    Exiting {
        code: i32,
    },
    /// It has failed, and begins to leave a world that all ranks leave together, as JAX does it in an exit handler. It will
    /// end with this code, which is not 0.
    Leaving {
        code: i32,
    },
    /// An exception ended a thread, or could not be raised anywhere. It ends nothing.
    Aside {
        place: String,
        exception: Exception,
    },
    /// The rank asks for the end of the job.
    Abort {
        code: i32,
        message: Option<String>,
    },
    Note {
        text: String,
    },
    /// The rank has done a step of its work, such as a checkpoint: a restart would not repeat all of it.
    Progress,
    /// The rank is ready to work.
    Ready,
    /// The file that torch's `@record` writes.
    ErrorFile(Exception),
}

/// How far before its arrival a message may be dated. What a program does to describe a failure may take long: it evaluates
/// its exception's text, reads source files for a traceback, waits for a place at the worker socket.
pub const DATED_BACK: Duration = Duration::from_secs(60);

/// When something happened of which a message that arrived at `now` says that it was at `claimed`, by a process that was
/// started at `earliest` or later. All times are on the clock of the node.
///
/// A time that cannot be true, since it lies before the start of the process or in the future, tells nothing: then the time
/// of arrival counts. So a process can make its own failure the first one, and no other process's.
pub fn dated(now: Duration, claimed: Option<Duration>, earliest: Duration) -> Duration {
    let plausible = claimed.filter(|claimed| (earliest..=now).contains(claimed));
    plausible.map_or(now, |claimed| claimed.max(now.saturating_sub(DATED_BACK)))
}

/// Where a process is stuck after its failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StuckIn {
    /// In finalizers of libraries, after the interpreter's own exit work, or in the wait for the other ranks.
    Finalize,
    /// In exit handlers, threads or children that keep the interpreter from finalizing.
    ExitHandlers,
}

/// How long a process that has failed may take to end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Graces {
    /// After `Exiting`, for a rank that has inited MPI and not finalized, and after `Leaving`.
    pub finalize: Duration,
    /// The most that `finalize` is extended to while the process writes.
    pub finalize_most: Duration,
    /// After `Exiting`, for any other. Time in which it waits for a CPU does not count.
    pub exit: Duration,
    /// The most that `exit` is extended to while the process waits for a CPU.
    pub exit_most: Duration,
    /// After `Uncaught`; each note begins it anew.
    pub handlers: Duration,
}

impl Default for Graces {
    fn default() -> Self {
        Graces {
            finalize: Duration::from_millis(500),
            finalize_most: Duration::from_secs(10),
            exit: Duration::from_secs(5),
            exit_most: Duration::from_secs(30),
            handlers: Duration::from_secs(30),
        }
    }
}

/// What a process that is on its way out has written and waited for since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Bytes that it has written.
    pub written: u64,
    /// How long its main thread has run.
    pub ran: Duration,
    /// How long its main thread was ready to run and had no CPU, without a wait that has not ended: the kernel adds a wait at its end.
    pub waited: Duration,
    /// Its main thread runs or is ready to run.
    pub is_runnable: bool,
}

impl Usage {
    /// How long the main thread has waited for a CPU since the last look, `elapsed` before. If it is runnable now, all time counts that it
    /// did not run: the wait it is in is not in `waited` yet.
    fn wait_since(&self, last: &Usage, elapsed: Duration) -> Duration {
        let ended = self.waited.saturating_sub(last.waited);
        let ran = self.ran.saturating_sub(last.ran);
        if self.is_runnable { ended.max(elapsed.saturating_sub(ran)) } else { ended }
    }
}

/// What a process is to its rank. Graces are for those whose end the rank's end depends on: a helper that fails is the
/// business of the process that has started it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It is in a world that its ranks leave together: it has inited MPI and not finalized, or is leaving JAX.
    InWorld,
    /// It is the leader, or what a leader that reports nothing, such as a shell, has started.
    Leads,
    /// Another process of the rank that reports its failures has started it, or another one is in MPI.
    Helps,
}

/// How long a rank may live on in silence after a traceback on its stderr before it is suspected.
pub const SUSPECT_AFTER: Duration = Duration::from_secs(10);

/// What journals of older versions do not say.
pub(crate) fn suspect_after() -> Duration {
    SUSPECT_AFTER
}

/// Shorter waits for a CPU are those of every process.
const LEAST_WAIT: Duration = Duration::from_millis(10);

/// How long exit handlers may take before somebody is told what is waited for.
pub const HANDLERS_NOTE: Duration = Duration::from_secs(2);

/// One speaking process, from its first word of a failure until it ends or is found stuck.
#[derive(Clone, Debug, Default)]
pub struct Speaker {
    state: SpeakerState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum SpeakerState {
    /// It has told of no failure.
    #[default]
    Well,
    /// An exception has reached its top.
    Failing {
        until: Duration,
        since: Duration,
        /// It has been told what is waited for.
        told: bool,
    },
    /// Only finalizers remain.
    Finalizing {
        until: Duration,
        since: Duration,
        most: Duration,
        /// Ranks that wait for each other in a world take the CPUs from each other for ever: their waits count.
        is_in_world: bool,
        /// The last look; the first one was when it told that it is exiting.
        looked: Duration,
        last: Usage,
    },
    Stuck,
}

impl Speaker {
    /// It has told of an uncaught exception.
    pub fn uncaught(&mut self, now: Duration, graces: &Graces, standing: Standing) {
        if self.state == SpeakerState::Well && standing != Standing::Helps {
            self.state = SpeakerState::Failing { until: now + graces.handlers, since: now, told: false };
        }
    }

    /// It has told that it is exiting with failure, or leaving. `usage` is its usage by now.
    pub fn exiting(&mut self, now: Duration, graces: &Graces, standing: Standing, usage: Usage) {
        let since = match self.state {
            SpeakerState::Well => now,
            SpeakerState::Failing { since, .. } => since,
            SpeakerState::Finalizing { .. } | SpeakerState::Stuck => return,
        };
        let (grace, most) = match standing {
            Standing::InWorld => (graces.finalize, graces.finalize_most),
            Standing::Leads => (graces.exit, graces.exit_most),
            Standing::Helps => return,
        };
        let (until, most, is_in_world) = (now + grace, now + most.max(grace), standing == Standing::InWorld);
        self.state = SpeakerState::Finalizing { until, since, most, is_in_world, looked: now, last: usage };
    }

    /// It ends with success after all: its own hook has dealt with the exception.
    pub fn retract(&mut self) {
        self.state = SpeakerState::Well;
    }

    /// It has said something that shows that it is still at work.
    pub fn note(&mut self, now: Duration, graces: &Graces) {
        if let SpeakerState::Failing { until, .. } = &mut self.state {
            *until = now + graces.handlers;
        }
    }

    /// When [`Speaker::tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        match self.state {
            SpeakerState::Well | SpeakerState::Stuck => None,
            SpeakerState::Failing { until, since, told: false } => Some(until.min(since + HANDLERS_NOTE)),
            SpeakerState::Failing { until, .. } | SpeakerState::Finalizing { until, .. } => Some(until),
        }
    }

    /// Whether its exit handlers take so long that somebody is to be told. Returns once, until when they are waited for.
    pub fn waits_for_handlers(&mut self, now: Duration) -> Option<Duration> {
        match &mut self.state {
            SpeakerState::Failing { until, since, told: told @ false } if now >= *since + HANDLERS_NOTE => {
                *told = true;
                Some(*until)
            }
            SpeakerState::Well
            | SpeakerState::Failing { .. }
            | SpeakerState::Finalizing { .. }
            | SpeakerState::Stuck => None,
        }
    }

    /// The process is alive at `now`, and this is its usage by now. Says once that it is stuck, where, and since when.
    pub fn tick(&mut self, now: Duration, graces: &Graces, usage: Usage) -> Option<(StuckIn, Duration)> {
        match &mut self.state {
            SpeakerState::Failing { until, since, .. } if now >= *until => {
                let stuck = (StuckIn::ExitHandlers, *since);
                self.state = SpeakerState::Stuck;
                Some(stuck)
            }
            SpeakerState::Finalizing { until, since, most, is_in_world, looked, last } if now >= *until => {
                let waited = usage.wait_since(last, now.saturating_sub(*looked));
                let more = match is_in_world {
                    // Files are being flushed: HDF5, gcov and tracing do it here.
                    true => (usage.written > last.written).then_some(graces.finalize),
                    false => (waited >= LEAST_WAIT).then_some(waited),
                };
                if let Some(more) = more.filter(|_| now < *most) {
                    // What is taken for a wait now is not counted again when the kernel adds it.
                    (*looked, *last) = (now, Usage { waited: usage.waited.max(last.waited + waited), ..usage });
                    *until = (now + more).min(*most);
                    return None;
                }
                let stuck = (StuckIn::Finalize, *since);
                self.state = SpeakerState::Stuck;
                Some(stuck)
            }
            SpeakerState::Well
            | SpeakerState::Failing { .. }
            | SpeakerState::Finalizing { .. }
            | SpeakerState::Stuck => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    const fn wrote(bytes: u64) -> Usage {
        Usage { written: bytes, ran: Duration::ZERO, waited: Duration::ZERO, is_runnable: false }
    }

    #[test]
    fn a_message_has_the_time_that_it_says_if_that_can_be_true() {
        let dated = |now, claimed, earliest| super::dated(ms(now), claimed, ms(earliest));
        assert_eq!(dated(1_000, Some(ms(800)), 100), ms(800));
        assert_eq!(dated(1_000, Some(ms(1_000)), 100), ms(1_000));
        assert_eq!(dated(1_000, None, 100), ms(1_000));
        assert_eq!(dated(1_000, Some(ms(1_001)), 100), ms(1_000), "the future");
        assert_eq!(dated(1_000, Some(ms(99)), 100), ms(1_000), "before the process began");
        assert_eq!(dated(200_000, Some(ms(100)), 100), ms(140_000), "no further back than the bound");
    }

    #[test]
    fn a_speaker_in_a_world_is_stuck_half_a_second_after_its_exit_work() {
        let (mut speaker, graces) = (Speaker::default(), Graces::default());
        speaker.uncaught(ms(100), &graces, Standing::InWorld);
        assert_eq!(speaker.deadline(), Some(ms(2_100)));
        speaker.exiting(ms(110), &graces, Standing::InWorld, Usage::default());
        assert_eq!(speaker.deadline(), Some(ms(610)));
        assert_eq!(speaker.tick(ms(609), &graces, wrote(0)), None);
        assert_eq!(speaker.tick(ms(610), &graces, wrote(0)), Some((StuckIn::Finalize, ms(100))));
        assert_eq!(speaker.tick(ms(900), &graces, wrote(0)), None, "it is said once");
    }

    #[test]
    fn a_speaker_that_flushes_files_has_longer_but_not_for_ever() {
        let (mut speaker, graces) = (Speaker::default(), Graces::default());
        speaker.exiting(ms(0), &graces, Standing::InWorld, wrote(10));
        let mut now = ms(0);
        let mut bytes = 10;
        let stuck = loop {
            now = speaker.deadline().expect("it is finalizing").max(now);
            bytes += 1;
            if let Some(stuck) = speaker.tick(now, &graces, wrote(bytes)) {
                break stuck;
            }
        };
        assert_eq!((stuck.0, now), (StuckIn::Finalize, graces.finalize_most));
    }

    #[test]
    fn outside_a_world_the_grace_is_that_of_a_stop() {
        let (mut speaker, graces) = (Speaker::default(), Graces::default());
        speaker.exiting(ms(0), &graces, Standing::Leads, Usage::default());
        assert_eq!(speaker.deadline(), Some(graces.exit));
    }

    #[test]
    fn outside_a_world_the_wait_for_a_cpu_does_not_count() {
        let (mut speaker, graces) = (Speaker::default(), Graces::default());
        let waited = |time: u64| Usage { waited: ms(time), ..Usage::default() };
        speaker.exiting(ms(0), &graces, Standing::Leads, waited(700));
        assert_eq!(speaker.tick(ms(5_000), &graces, waited(4_700)), None);
        assert_eq!(speaker.deadline(), Some(ms(9_000)), "it has waited for four seconds of the five");
        assert_eq!(speaker.tick(ms(9_000), &graces, waited(4_705)), Some((StuckIn::Finalize, ms(0))));
    }

    #[test]
    fn a_process_that_never_gets_a_cpu_is_stuck_in_the_end() {
        let (mut speaker, graces) = (Speaker::default(), Graces::default());
        speaker.exiting(ms(0), &graces, Standing::Leads, Usage::default());
        let end = loop {
            let now = speaker.deadline().expect("it is finalizing");
            // The kernel has not added the wait, since it has not ended.
            if speaker.tick(now, &graces, Usage { is_runnable: true, ..Usage::default() }).is_some() {
                break now;
            }
        };
        assert_eq!(end, graces.exit_most);
    }

    #[test]
    fn a_wait_that_has_not_ended_is_not_counted_again_when_it_has() {
        let (mut speaker, graces) = (Speaker::default(), Graces::default());
        speaker.exiting(ms(0), &graces, Standing::Leads, Usage { waited: ms(700), ..Usage::default() });
        // It ran for a moment, and has waited since.
        let waits = Usage { ran: ms(2), waited: ms(700), is_runnable: true, ..Usage::default() };
        assert_eq!(speaker.tick(ms(5_000), &graces, waits), None);
        assert_eq!(speaker.deadline(), Some(ms(9_998)));
        // The wait ended after six seconds, and then the thread slept.
        let waited = Usage { ran: ms(3), waited: ms(6_700), ..Usage::default() };
        assert_eq!(speaker.tick(ms(9_998), &graces, waited), None);
        assert_eq!(speaker.deadline(), Some(ms(11_000)), "six seconds and the five");
        assert_eq!(speaker.tick(ms(11_000), &graces, waited), Some((StuckIn::Finalize, ms(0))));
    }

    #[test]
    fn a_process_that_runs_all_the_time_has_not_waited() {
        let (mut speaker, graces) = (Speaker::default(), Graces::default());
        speaker.exiting(ms(0), &graces, Standing::Leads, Usage { ran: ms(30), ..Usage::default() });
        let spins = Usage { ran: ms(5_025), waited: ms(1), is_runnable: true, ..Usage::default() };
        assert_eq!(speaker.tick(ms(5_000), &graces, spins), Some((StuckIn::Finalize, ms(0))));
    }

    #[test]
    fn a_short_grace_is_extended_while_the_process_writes_too() {
        let mut speaker = Speaker::default();
        let graces = Graces { finalize: ms(5), ..Graces::default() };
        speaker.exiting(ms(0), &graces, Standing::InWorld, wrote(10));
        assert_eq!(speaker.tick(ms(5), &graces, wrote(11)), None);
        assert_eq!(speaker.deadline(), Some(ms(10)));
    }

    #[test]
    fn in_a_world_the_wait_for_a_cpu_counts() {
        let (mut speaker, graces) = (Speaker::default(), Graces::default());
        speaker.exiting(ms(0), &graces, Standing::InWorld, Usage::default());
        let waited = Usage { waited: ms(400), is_runnable: true, ..Usage::default() };
        assert_eq!(speaker.tick(ms(500), &graces, waited), Some((StuckIn::Finalize, ms(0))));
    }

    #[test]
    fn a_note_extends_the_time_of_exit_handlers() {
        let (mut speaker, graces) = (Speaker::default(), Graces::default());
        speaker.note(ms(0), &graces);
        assert_eq!(speaker.deadline(), None, "a note alone is no failure");
        speaker.uncaught(ms(0), &graces, Standing::Leads);
        speaker.note(ms(20_000), &graces);
        assert_eq!(speaker.tick(ms(30_000), &graces, wrote(0)), None);
        assert_eq!(speaker.tick(ms(50_000), &graces, wrote(0)), Some((StuckIn::ExitHandlers, ms(0))));
    }

    #[test]
    fn a_helper_has_all_the_time_that_it_needs() {
        let (mut speaker, graces) = (Speaker::default(), Graces::default());
        speaker.uncaught(ms(0), &graces, Standing::Helps);
        speaker.exiting(ms(10), &graces, Standing::Helps, Usage::default());
        assert_eq!(speaker.deadline(), None);
        assert_eq!(speaker.tick(ms(600_000), &graces, wrote(0)), None);
    }

    #[test]
    fn exit_handlers_that_take_long_are_told_of_once() {
        let (mut speaker, graces) = (Speaker::default(), Graces::default());
        speaker.uncaught(ms(100), &graces, Standing::Leads);
        assert_eq!(speaker.waits_for_handlers(ms(2_099)), None);
        assert_eq!(speaker.waits_for_handlers(ms(2_100)), Some(ms(30_100)));
        assert_eq!((speaker.waits_for_handlers(ms(3_000)), speaker.deadline()), (None, Some(ms(30_100))));
    }
}
