//! The state of the ranks: printed when the job is ended from outside (`--timeout`, ^C), and on SIGQUIT.
//!
//! Ranks in the same state share a line. Two last lines count as the same if they differ only in numbers: ranks often
//! print their own number.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::evidence::{Fact, shorten};
use crate::gang::{Gang, MpiLife, RankRecord};
use crate::ids::Rank;
use crate::ranks::{RankSet, written};
use crate::status::WorkerStatus;

/// Groups that get a line each.
pub const GROUPS: usize = 8;
/// Bytes that are kept of a line, a note, an exception.
const TEXT_KEPT: usize = 200;

/// Ranks in the same state.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Standing {
    #[serde(with = "written")]
    pub ranks: RankSet,
    pub phase: Phase,
    /// How long they have been in this phase: the longest, in seconds.
    pub phase_for: Option<f64>,
    /// How long they have written nothing: the shortest and the longest, in seconds. `None` if they never wrote.
    pub silent: Option<(f64, f64)>,
    /// It has the terminal: what it writes there is not seen.
    #[serde(default)]
    pub has_terminal: bool,
    /// The last line that the first of them wrote.
    pub last_line: Option<String>,
    /// The last note of the first of them.
    pub note: Option<String>,
    /// Exceptions that ended threads.
    pub dead_threads: Vec<String>,
    /// The traceback that they wrote before they went on running.
    pub suspect: Option<String>,
}

/// The phase of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    NotStarted,
    /// It runs, and no rank of the job has called `MPI_Init`.
    Running,
    /// It runs, and others have called `MPI_Init`.
    BeforeInit,
    /// It has called `MPI_Init`, and may have left it since: MPICH 5 says nothing of that on one node.
    #[serde(alias = "in-init")]
    CalledInit,
    InMpi,
    Finalizing,
    Ended(WorkerStatus),
}

/// What is known of the output of a rank.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Voice {
    /// When it last wrote.
    pub at: Option<Duration>,
    pub line: Option<String>,
    /// Its stderr ends with this exception, and its process does not report its own.
    pub traceback: Option<String>,
}

/// How far a rank has come, and since when, as far as that is known.
pub fn phases(gang: &Gang) -> Vec<(Phase, Option<Duration>)> {
    let is_mpi = gang.ranks().iter().any(|record| record.mpi != MpiLife::NotInited);
    gang.ranks().iter().map(|record| phase(record, is_mpi, gang.ranks().len() == 1)).collect()
}

/// The last note of a rank, cut to a length that can be shown.
pub fn last_note(record: &RankRecord) -> Option<String> {
    record.passing.notes().last().and_then(|evidence| match &evidence.fact {
        Fact::Note { text } => Some(short(text)),
        _ => None,
    })
}

/// The state of all ranks at `now`, the exceptional ones first.
pub fn standings(gang: &Gang, now: Duration, voice: impl Fn(Rank) -> Voice) -> Vec<Standing> {
    let is_mpi = gang.ranks().iter().any(|record| record.mpi != MpiLife::NotInited);
    let ago = |at: Duration| now.saturating_sub(at).as_secs_f64();
    let mut groups: Vec<(Standing, Vec<Rank>)> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for record in gang.ranks() {
        let rank = record.rank;
        let voice = voice(rank);
        // Its words may be here before the agent's word of its start.
        let note = last_note(record);
        let has_spoken = voice.at.is_some() || note.is_some();
        let (phase, since) = match phase(record, is_mpi, gang.ranks().len() == 1) {
            (Phase::NotStarted, _) if has_spoken => (Phase::Running, None),
            known => known,
        };
        let phase_for = since.map(ago);
        let last_line = voice.line.as_deref().map(short);
        let died = record.passing.asides().filter_map(|evidence| match &evidence.fact {
            Fact::Aside { place, exception } => Some(short(&format!("{} (in {place})", exception.headline()))),
            _ => None,
        });
        let dead_threads: Vec<String> = died.collect();
        let is_alive = !matches!(phase, Phase::Ended(_));
        let suspect = voice.traceback.filter(|_| is_alive).map(|it| short(&it));
        // A thread that died has printed its traceback.
        let suspect = suspect.filter(|it| !dead_threads.iter().any(|thread| thread.starts_with(it.as_str())));
        let silent = voice.at.map(|at| (ago(at), ago(at)));
        let has_terminal = gang.rules().terminal == Some(rank);
        let standing = Standing {
            ranks: RankSet::of([]),
            phase,
            phase_for,
            silent,
            has_terminal,
            last_line,
            note,
            dead_threads,
            suspect,
        };
        let at = *known.entry(standing.key()).or_insert(groups.len());
        match groups.get_mut(at) {
            Some((group, ranks)) => {
                ranks.push(rank);
                group.join(&standing);
            }
            None => groups.push((standing, vec![rank])),
        }
    }
    let is_plain = |it: &Standing| it.dead_threads.is_empty() && it.suspect.is_none();
    groups.sort_by_key(|(standing, ranks)| (is_plain(standing), ranks.len(), ranks.first().copied()));
    groups.into_iter().map(|(standing, ranks)| Standing { ranks: RankSet::of(ranks), ..standing }).collect()
}

/// A single rank does not wait for others in `MPI_Init`, and one that has passed a barrier of the process manager is through.
fn phase(record: &RankRecord, is_mpi: bool, is_alone: bool) -> (Phase, Option<Duration>) {
    match (record.status, record.mpi) {
        (Some(status), _) => (Phase::Ended(status), record.ended_at),
        (None, _) if record.pid.is_none() => (Phase::NotStarted, None),
        (None, MpiLife::NotInited) if is_mpi => (Phase::BeforeInit, record.started_at),
        (None, MpiLife::NotInited) => (Phase::Running, None),
        (None, MpiLife::Inited) if record.finalizing_since.is_some() => (Phase::Finalizing, record.finalizing_since),
        (None, MpiLife::Inited) if record.passed_barrier || is_alone => (Phase::InMpi, record.mpi_since),
        (None, MpiLife::Inited) => (Phase::CalledInit, record.mpi_since),
        (None, MpiLife::Finalized) => (Phase::Finalizing, record.mpi_since),
    }
}

/// The lines for people: one for each group, but at most so many, and one for the rest.
pub fn lines(standings: &[Standing], most: usize) -> Vec<String> {
    let (shown, rest) = standings.split_at(standings.len().min(most));
    let names: Vec<String> = shown.iter().map(Standing::name).collect();
    let width = names.iter().map(String::len).filter(|length| *length <= 16).max().unwrap_or(0);
    let lines = shown.iter().zip(&names).map(|(standing, name)| format!("{name:<width$}  {}", standing.state()));
    let more: usize = rest.iter().map(|standing| standing.ranks.count().unwrap_or(0)).sum();
    lines.chain((more > 0).then(|| format!("and {more} more in {} other states", rest.len()))).collect()
}

impl Standing {
    /// The key of a group of ranks in the same state.
    fn key(&self) -> String {
        let Standing { ranks: _, phase, phase_for: _, silent, has_terminal, last_line, note, dead_threads, suspect } =
            self;
        without_numbers(&format!("{last_line:?} {note:?} {dead_threads:?} {suspect:?}"))
            + &format!(" {phase:?} {} {has_terminal}", silent.is_some())
    }

    /// Adds another rank in the same state.
    fn join(&mut self, other: &Standing) {
        self.phase_for = self.phase_for.zip(other.phase_for).map(|(one, other)| one.max(other));
        self.silent = self.silent.zip(other.silent).map(|(one, other)| (one.0.min(other.0), one.1.max(other.1)));
    }

    fn name(&self) -> String {
        let noun = if self.ranks.count() == Some(1) { "rank" } else { "ranks" };
        format!("{noun} {}", self.ranks)
    }

    /// Their state, in words.
    fn state(&self) -> String {
        let time = self.phase_for.map(seconds).unwrap_or_default();
        let have = if self.ranks.count() == Some(1) { "has" } else { "have" };
        let phase = match self.phase {
            Phase::NotStarted => Some("not started yet".to_owned()),
            Phase::Running => None,
            Phase::BeforeInit => Some(format!("{have} not called MPI_Init")),
            Phase::CalledInit => Some(format!("called MPI_Init {time} ago")),
            Phase::InMpi => Some(format!("in MPI for {time}")),
            Phase::Finalizing => Some(format!("in MPI_Finalize for {time}")),
            Phase::Ended(status) => Some(format!("ended {time} ago ({status})")),
        };
        let is_alive = !matches!(self.phase, Phase::NotStarted | Phase::Ended(_));
        let silence = match self.silent {
            _ if !is_alive => None,
            None if self.has_terminal => Some(format!("{have} the terminal")),
            None => Some(format!("{have} written nothing")),
            Some((least, most)) if most - least < 1.0 => Some(format!("silent {}", seconds(most))),
            Some((least, most)) => Some(format!("silent {} to {}", seconds(least), seconds(most))),
        };
        let quoted = |name: &str, text: Option<&String>| text.map(|text| format!("{name}: \"{text}\""));
        let state = [silence, phase].into_iter().flatten().collect::<Vec<_>>().join(", ");
        let threads = self.dead_threads.last().map(|last| match self.dead_threads.len() {
            1 => format!("a thread died: {last}"),
            threads => format!("{threads} threads died, the last: {last}"),
        });
        let suspect = self.suspect.as_ref().map(|it| format!("its stderr ends with a traceback ({it})"));
        let is_shown = |line: &&String| {
            let mut shown = self.dead_threads.iter().chain(&self.suspect);
            shown.any(|it| it.starts_with(line.as_str()))
        };
        let last = self.last_line.as_ref().filter(|line| !is_shown(line));
        // If the lines differ in numbers, this is the line of one rank.
        let is_shared = self.ranks.count() == Some(1) || !last.is_some_and(|it| it.contains(char::is_numeric));
        let last_line = match self.ranks.min().filter(|_| !is_shared) {
            Some(rank) => quoted(&format!("last line of rank {rank}"), last),
            None => quoted("last line", last),
        };
        [Some(state), threads, suspect, quoted("note", self.note.as_ref()), last_line]
            .into_iter()
            .flatten()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("; ")
    }
}

/// `0.2 s`, `41 s`, `3 min 2 s`, `2 h 5 min`.
pub(crate) fn seconds(time: f64) -> String {
    let whole = time as u64;
    match whole {
        0..10 => format!("{time:.1} s"),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole / 60 % 60),
    }
}

/// A line, cut to a length that can be shown.
pub fn short(text: &str) -> String {
    let mut text = text.trim().to_owned();
    shorten(&mut text, TEXT_KEPT);
    text
}

/// Each number as one `0`.
pub(crate) fn without_numbers(text: &str) -> String {
    let mut key = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '0'..='9' if key.ends_with('0') => {}
            '0'..='9' => key.push('0'),
            other => key.push(other),
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::MpiEvent;
    use crate::gang::{Event, Rules};
    use crate::ids::{GangId, Pid, worker};
    use crate::testimony::{Exception, Testimony};

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn gang(size: u32) -> Gang {
        let rules =
            Rules { grace_failure: s(5), grace_outside: s(25), timeout: None, keep_going: true, terminal: None };
        let mut gang = Gang::new(GangId::default(), size, rules);
        for rank in 0..size {
            gang.handle(s(0), Event::Started { worker: worker(rank), pid: Pid(100 + rank as i32) }, &mut Vec::new());
        }
        gang
    }

    fn said(gang: &mut Gang, at: u64, rank: u32, testimony: Testimony) {
        let event = Event::Testimony { worker: worker(rank), pid: Pid(100 + rank as i32), testimony };
        gang.handle(s(at), event, &mut Vec::new());
    }

    fn voice(at: u64, line: &str) -> Voice {
        Voice { at: Some(s(at)), line: Some(line.to_owned()), traceback: None }
    }

    #[test]
    fn ranks_in_the_same_state_share_a_line() {
        let mut gang = gang(9);
        for rank in 0..6 {
            gang.handle(s(1), Event::Mpi { worker: worker(rank), event: MpiEvent::Inited }, &mut Vec::new());
        }
        for rank in 0..5 {
            gang.handle(s(2), Event::Mpi { worker: worker(rank), event: MpiEvent::PassedBarrier }, &mut Vec::new());
        }
        gang.handle(s(30), Event::Mpi { worker: worker(4), event: MpiEvent::Finalized }, &mut Vec::new());
        gang.handle(
            s(39),
            Event::Ended { worker: worker(8), status: WorkerStatus::Exited { code: 0 } },
            &mut Vec::new(),
        );
        said(&mut gang, 3, 3, Testimony::Note { text: "epoch 3".to_owned() });
        let exception = Exception { kind: "KeyError".to_owned(), message: "'x'".to_owned(), ..Exception::default() };
        said(&mut gang, 4, 3, Testimony::Aside { place: "Thread-1".to_owned(), exception });
        let standings = standings(&gang, s(42), |rank| match rank.number() {
            0..=2 => voice(u64::from(rank.number()), &format!("[{0}] rank {0}: epoch 3", rank.number())),
            3 => voice(41, "epoch 3"),
            7 => Voice { traceback: Some("ValueError: no data".to_owned()), ..voice(10, "ValueError: no data") },
            8 => voice(38, "done"),
            _ => Voice::default(),
        });
        insta::assert_snapshot!(lines(&standings, GROUPS).join("\n"));
        let json = serde_json::to_string(&standings).expect("plain data");
        assert_eq!(serde_json::from_str::<Vec<Standing>>(&json).expect("our own"), standings);
        assert!(json.contains(r#""ranks":"0-2""#), "{json}");
    }

    #[test]
    fn a_rank_whose_program_is_over_does_not_stand_with_those_in_a_barrier() {
        let mut gang = gang(3);
        for rank in 0..3 {
            gang.handle(s(1), Event::Mpi { worker: worker(rank), event: MpiEvent::Inited }, &mut Vec::new());
        }
        gang.handle(s(5), Event::Mpi { worker: worker(1), event: MpiEvent::Finalizing }, &mut Vec::new());
        let told = standings(&gang, s(42), |_| Voice::default());
        let expected = [
            "rank 1     has written nothing, in MPI_Finalize for 37 s",
            "ranks 0,2  have written nothing, called MPI_Init 41 s ago",
        ];
        assert_eq!(lines(&told, GROUPS), expected);
    }

    #[test]
    fn a_rank_that_has_spoken_has_started_whatever_else_is_known() {
        let rules =
            Rules { grace_failure: s(5), grace_outside: s(25), timeout: None, keep_going: true, terminal: None };
        let mut gang = Gang::new(GangId::default(), 3, rules);
        said(&mut gang, 1, 0, Testimony::Note { text: "step 3".to_owned() });
        let told = standings(&gang, s(2), |rank| if rank.number() == 1 { voice(1, "hello") } else { Voice::default() });
        let expected = [
            "rank 0  has written nothing; note: \"step 3\"",
            "rank 1  silent 1.0 s; last line: \"hello\"",
            "rank 2  not started yet",
        ];
        assert_eq!(lines(&told, GROUPS), expected);
    }

    #[test]
    fn a_rank_that_wrote_more_after_its_traceback_is_no_suspect_any_more() {
        let mut gang = gang(1);
        let exception = Exception { kind: "ValueError".to_owned(), message: "x".to_owned(), ..Exception::default() };
        gang.handle(s(10), Event::Suspect { worker: worker(0), exception, end: false, silent: s(10) }, &mut Vec::new());
        let told = standings(&gang, s(20), |_| voice(19, "step 5"));
        assert_eq!(lines(&told, GROUPS), ["rank 0  silent 1.0 s; last line: \"step 5\""]);
        assert_eq!(told[0].suspect, None);
    }

    #[test]
    fn a_job_without_mpi_has_no_phases_and_many_states_are_counted() {
        let mut gang = gang(200);
        let quiet = standings(&gang, s(7), |_| Voice::default());
        assert_eq!(lines(&quiet, GROUPS), ["ranks 0-199  have written nothing"]);
        for rank in 0..20 {
            let text = "x".repeat(rank as usize + 1);
            said(&mut gang, 3, rank, Testimony::Note { text });
        }
        let busy = standings(&gang, s(7), |_| voice(6, "y"));
        let lines = lines(&busy, GROUPS);
        assert_eq!(lines.len(), GROUPS + 1);
        assert_eq!(lines[0], "rank 0  silent 1.0 s; note: \"x\"; last line: \"y\"");
        assert_eq!(lines[GROUPS], "and 192 more in 13 other states");
    }
}
