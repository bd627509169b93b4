//! The events of a job in the front, and its decisions: one stream, from which the report can be made again.
//!
//! It contains the part of the ranks' output that the verdict needs: the last lines of stderr of ranks that failed. It
//! contains nothing of the environment but `TRACEPARENT` and `TRACESTATE`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::attempts::Attempts;
use crate::core_dump::CoreDump;
use crate::gang::{Effect, Event, Gang, Moment, Rules};
use crate::ids::{GangId, GroupId, JobId, NodeId, NodeRank, Rank, WorkerId};
use crate::last_words::words;
use crate::node_clock::Reading;
use crate::rankmap::{Place, RankMap};
use crate::ranks::RankSet;
use crate::report::{AttemptReport, Left};
use crate::restart;
use crate::spec::job::JobSpec;
use crate::spec::restart::RestartSpec;
use crate::stacks::fold::Table;
use crate::standing::Standing;
use crate::stderr::Tail;
use crate::topology::CpuSet;
use crate::trace::Trace;

/// The version of the stream. It changes when a reader of the old one would misunderstand the new one.
pub const VERSION: u32 = 3;

/// One event.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// [`VERSION`].
    pub v: u32,
    /// When the job took what caused this: nanoseconds since its start, on the front's clock. Notes and the end have the time of their writing,
    /// and may be before entries with an earlier time.
    pub at: u64,
    /// How long the job had been paused by then, in nanoseconds: that is not part of `at`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub paused: u64,
    pub event: JobEvent,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What every version of an entry has.
#[derive(Deserialize)]
struct Versioned {
    v: u32,
}

/// The version of an entry, if it is another one than this: the rest of it means something else.
pub fn other_version(line: &str) -> Option<u32> {
    serde_json::from_str::<Versioned>(line).ok().map(|entry| entry.v).filter(|version| *version != VERSION)
}

impl Entry {
    pub fn new(at: Duration, event: JobEvent) -> Entry {
        Entry { v: VERSION, at: u64::try_from(at.as_nanos()).unwrap_or(u64::MAX), paused: 0, event }
    }

    /// The same after pauses of the job.
    pub fn after_pauses(self, paused: Duration) -> Entry {
        Entry { paused: u64::try_from(paused.as_nanos()).unwrap_or(u64::MAX), ..self }
    }
}

/// What happened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobEvent {
    /// The first event of each attempt: what the job is.
    Job(Box<JobFacts>),
    /// A rank has asked for a further group, which begins.
    Group(Box<GroupFacts>),
    /// A group that did not come up is not to be.
    GroupWithdrawn(GroupId),
    /// An event of the gang, and when it happened on its node.
    Gang {
        #[serde(with = "nanoseconds")]
        happened: Duration,
        /// How exact that is, where it was read from another machine's clock.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        clock: Option<Reading>,
        event: Box<Event>,
    },
    /// Where ranks are bound to.
    Bound(Vec<(WorkerId, CpuSet)>),
    /// An effect of the gang.
    Decision(Effect),
    /// A line that was printed.
    Note(String),
    /// The end of a rank's stderr, after its end, and that of its stdout.
    Stderr {
        worker: WorkerId,
        tail: Tail,
        #[serde(default)]
        stdout: Tail,
    },
    /// The restart policy, before the first attempt of a job that may have several, and the seed of its waits.
    Policy { spec: Box<RestartSpec>, seed: u64 },
    /// An event of the job's attempts, or of those of one rank (`--restart-scope rank`).
    Attempt { rank: Option<Rank>, event: restart::Event },
    /// What was decided after it.
    Restart { rank: Option<Rank>, decision: restart::Decision },
    /// A node has come to another state; why, if it was lost. `name` is what it is called at its place in the present attempt.
    Node {
        node: NodeId,
        place: Option<NodeRank>,
        name: String,
        state: NodeState,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// So many events before this one are missing.
    Gap { events: u64 },
    /// The last event: the results after the gang's end.
    End(Box<End>),
}

/// The states of a node as people read them, and as the journal has them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    Asked,
    Reached,
    Ready,
    Running,
    Suspect,
    Lost,
    /// Lost, and nothing of the job is left there: its guard, its relay or a second connection has said so.
    Proved,
    /// Lost, and processes are left there.
    Left,
    /// Lost, and its ranks have ended by themselves by now.
    Fenced,
    Dismissed,
}

/// The data about a job that its report needs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobFacts {
    /// The version of rankrun.
    pub release: String,
    pub job: JobId,
    pub gang: GangId,
    pub map: RankMap,
    /// Which ranks run which command.
    pub commands: Vec<(RankSet, Vec<String>)>,
    pub rules: Rules,
    /// The groups that ranks have asked for in the present attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupFacts>,
    /// The trace that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
}

/// The data about a group that a rank has asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupFacts {
    pub group: GroupId,
    /// Who has asked for it.
    pub by: Rank,
    pub map: RankMap,
    /// Which ranks run which command.
    pub commands: Vec<(RankSet, Vec<String>)>,
}

impl GroupFacts {
    /// Those of a group that this rank has asked for.
    pub fn of(spec: &JobSpec, by: Rank) -> GroupFacts {
        GroupFacts { group: spec.group, by, map: spec.map.clone(), commands: commands(spec) }
    }
}

/// Which ranks of a group run which command.
fn commands(spec: &JobSpec) -> Vec<(RankSet, Vec<String>)> {
    let mut commands: Vec<(Vec<String>, Vec<Rank>)> = Vec::new();
    for rank in spec.map.places().iter().map(|place| place.rank) {
        let words: Vec<String> = spec.command(rank).iter().map(|word| word.to_string_lossy().into_owned()).collect();
        match commands.iter_mut().find(|(known, _)| *known == words) {
            Some((_, ranks)) => ranks.push(rank),
            None => commands.push((words, vec![rank])),
        }
    }
    commands.into_iter().map(|(words, ranks)| (RankSet::of(ranks), words)).collect()
}

impl JobFacts {
    /// Those of a job with these rules.
    pub fn of(spec: &JobSpec, rules: Rules) -> JobFacts {
        JobFacts {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            job: spec.job.clone(),
            gang: spec.gang(),
            map: spec.map.clone(),
            commands: commands(spec),
            rules,
            groups: Vec::new(),
            trace: spec.trace.clone(),
        }
    }

    /// The group of a rank, if another rank has asked for that.
    fn group_of(&self, rank: Rank) -> Option<&GroupFacts> {
        self.groups.iter().find(|facts| facts.group == rank.group())
    }

    /// A group is not to be.
    pub fn withdraw(&mut self, group: GroupId) {
        self.groups.retain(|facts| facts.group != group);
    }

    /// The place of a rank.
    pub fn place(&self, rank: Rank) -> Option<&Place> {
        self.map.place(rank).or_else(|| self.group_of(rank)?.map.place(rank))
    }

    /// The name of the node of a rank.
    pub fn node_name(&self, rank: Rank) -> Option<&str> {
        self.place(rank).map(|place| self.map.node_name(place.node))
    }

    /// The ranks on a node, of all groups.
    pub fn on_node(&self, node: NodeRank) -> impl Iterator<Item = Rank> {
        let maps = std::iter::once(&self.map).chain(self.groups.iter().map(|facts| &facts.map));
        maps.flat_map(move |map| map.on_node(node)).map(|place| place.rank)
    }

    /// The command of a rank.
    pub fn command(&self, rank: Rank) -> Vec<String> {
        let commands = self.group_of(rank).map_or(&self.commands, |facts| &facts.commands);
        let command = commands.iter().find(|(ranks, _)| ranks.contains(rank));
        command.map(|(_, words)| words.clone()).unwrap_or_default()
    }
}

/// What the front knows of the end besides the gang.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct End {
    /// How long the job took.
    #[serde(with = "nanoseconds")]
    pub took: Duration,
    /// When it started, since the Unix epoch.
    #[serde(with = "nanoseconds")]
    pub started: Duration,
    /// `cgroup`, `subreaper` or `unknown`, and why not `cgroup`.
    pub containment: String,
    pub containment_note: Option<String>,
    pub left: Left,
    /// What is not proved is so only of nodes that were lost before, and without which the last attempt ran.
    #[serde(default)]
    pub only_lost_before: bool,
    /// Why the agent is lost, where that is known.
    pub why_lost: Option<String>,
    /// The node whose guard is lost, if that is not the first.
    #[serde(default)]
    pub unguarded: Option<String>,
    /// The path of the report, as printed.
    pub saved: Option<String>,
    /// The state of the ranks when the job was ended from outside.
    #[serde(default)]
    pub standings: Vec<Standing>,
    /// In which calls they were then.
    #[serde(default)]
    pub stacks: Option<Table>,
    /// The core of the rank that failed first.
    #[serde(default)]
    pub core: Option<CoreDump>,
    /// The output of the rank that failed first is right above the report.
    #[serde(default)]
    pub is_quoted_above: bool,
    /// The attempts before the last.
    #[serde(default)]
    pub attempts: Vec<AttemptReport>,
    /// How many attempts are not among them.
    #[serde(default)]
    pub attempts_left_out: u64,
    /// Why the last one was the last, if another was allowed.
    #[serde(default)]
    pub given_up: Option<String>,
}

/// The gang event for the ends of a rank's output.
pub fn last_words(gang: &Gang, worker: WorkerId, stderr: &Tail, stdout: &Tail) -> Event {
    Event::LastWords { worker, words: words(gang, worker.rank, stderr, stdout) }
}

/// A stream of events, replayed.
#[derive(Clone, Debug)]
pub struct Replay {
    pub facts: JobFacts,
    pub gang: Gang,
    /// The ends of the stderr of ranks that failed.
    pub tails: Vec<(Rank, Tail)>,
    pub end: Option<End>,
    /// What its nodes have come to.
    pub nodes: BTreeMap<NodeId, NodeState>,
    /// Its attempts.
    pub attempts: Attempts,
    /// Events that are missing.
    pub missing: u64,
    /// The recorded decisions, and those of the replay.
    decided: Vec<Effect>,
    decides: Vec<Effect>,
}

/// Why a stream cannot be replayed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("event has version {0}, and this is version {VERSION}")]
    Version(u32),
    #[error("events do not begin with that of the job")]
    NoJob,
    #[error("neither the first event nor the last says when the job started")]
    NoStart,
}

impl Replay {
    /// Begins with the first event.
    ///
    /// # Errors
    ///
    /// It is not that of the job, or of another version.
    pub fn new(first: Entry) -> Result<Replay, ReplayError> {
        check(&first)?;
        let JobEvent::Job(facts) = first.event else { return Err(ReplayError::NoJob) };
        Ok(Replay {
            gang: Gang::new(facts.gang, facts.map.world_size(), facts.rules.clone()),
            facts: *facts,
            tails: Vec::new(),
            end: None,
            nodes: BTreeMap::new(),
            attempts: Attempts::default(),
            missing: 0,
            decided: Vec::new(),
            decides: Vec::new(),
        })
    }

    /// Takes the next event.
    ///
    /// # Errors
    ///
    /// It is of another version.
    pub fn take(&mut self, entry: Entry) -> Result<(), ReplayError> {
        check(&entry)?;
        let now = Duration::from_nanos(entry.at);
        match entry.event {
            JobEvent::Job(facts) => {
                // Another attempt.
                self.gang = Gang::new(facts.gang, facts.map.world_size(), facts.rules.clone());
                (self.facts, self.tails) = (*facts, Vec::new());
            }
            JobEvent::Group(facts) => {
                self.gang.add(facts.group, self.facts.gang.attempt, facts.map.world_size(), facts.by);
                self.facts.groups.push(*facts);
            }
            JobEvent::GroupWithdrawn(group) => {
                self.gang.withdraw(group);
                self.facts.withdraw(group);
                self.tails.retain(|(rank, _)| rank.group() != group);
            }
            JobEvent::Note(_) => {}
            JobEvent::Gang { happened, clock, event } => {
                if let Event::Again { worker } = *event {
                    self.tails.retain(|(of, _)| *of != worker.rank);
                }
                self.gang.handle_of(Moment { now, at: happened, clock }, *event, &mut self.decides);
            }
            JobEvent::Bound(workers) => self.gang.bound(workers.into_iter()),
            JobEvent::Decision(effect) => self.decided.push(effect),
            JobEvent::Stderr { worker, tail, stdout } => {
                let event = last_words(&self.gang, worker, &tail, &stdout);
                self.gang.handle(now, event, &mut self.decides);
                self.tails.push((worker.rank, tail));
            }
            JobEvent::Policy { spec, seed } => self.attempts.begin(*spec, seed),
            JobEvent::Attempt { rank, event } => self.attempts.take(now, rank, event),
            JobEvent::Restart { rank, decision } => self.attempts.decided(rank, decision),
            JobEvent::Node { node, place, name, state, .. } => {
                // One that has joined calls itself by another name.
                if let Some(place) = place {
                    self.facts.map.rename_node(place, &name);
                }
                self.nodes.insert(node, state);
            }
            JobEvent::Gap { events } => self.missing += events,
            JobEvent::End(end) => self.end = Some(*end),
        }
        Ok(())
    }

    /// Whether the replay made the recorded decisions.
    pub fn is_faithful(&self) -> bool {
        self.decided == self.decides && self.attempts.is_faithful()
    }
}

fn check(entry: &Entry) -> Result<(), ReplayError> {
    if entry.v == VERSION { Ok(()) } else { Err(ReplayError::Version(entry.v)) }
}

/// Times are nanoseconds, so that they are read as they were written.
mod nanoseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::{Pid, worker};
    use crate::report::Left;
    use crate::status::WorkerStatus;
    use crate::testimony::{Exception, Testimony};
    use crate::verdict::verdict;

    fn facts(world_size: u32) -> JobFacts {
        JobFacts {
            release: "0.1.0".to_owned(),
            job: JobId("7f3a91c2".to_owned()),
            gang: GangId::default(),
            map: RankMap::single_node("vm", &[world_size]),
            commands: vec![(RankSet::of([Rank(0), Rank(1)]), vec!["true".to_owned()])],
            groups: Vec::new(),
            trace: None,
            rules: Rules {
                grace_failure: Duration::from_secs(5),
                grace_outside: Duration::from_secs(25),
                timeout: Some(Duration::from_millis(70)),
                keep_going: false,
                terminal: None,
            },
        }
    }

    fn event(kind: u8, rank: u32, code: u8) -> Event {
        let (worker, pid) = (worker(rank), Pid(100 + rank as i32));
        match kind {
            0 => Event::Started { worker, pid },
            1 => Event::Ended { worker, status: WorkerStatus::Exited { code } },
            2 => Event::Ended {
                worker,
                status: WorkerStatus::Signaled { signal: i32::from(code % 16) + 1, core_dumped: false },
            },
            3 => {
                let exception =
                    Exception { kind: "ValueError".to_owned(), message: code.to_string(), ..Exception::default() };
                Event::Testimony { worker, pid, testimony: Testimony::Uncaught(exception) }
            }
            4 => Event::Signal(2),
            5 => Event::Stopped { worker, signal: 19 },
            _ => Event::Tick,
        }
    }

    proptest! {
        #[test]
        fn a_stream_that_was_written_and_read_comes_to_the_same_verdict(
            events in proptest::collection::vec((0u8..7, 0u32..3, any::<u8>(), 0u64..200, 0u64..50), 0..60),
        ) {
            let facts = facts(3);
            let mut gang = Gang::new(GangId::default(), 3, facts.rules.clone());
            let mut lines = vec![serde_json::to_string(&Entry::new(Duration::ZERO, JobEvent::Job(Box::new(facts)))).expect("plain data")];
            let mut now = Duration::ZERO;
            let write = |lines: &mut Vec<String>, now, event| {
                lines.push(serde_json::to_string(&Entry::new(now, event)).expect("plain data"));
            };
            for (kind, rank, code, step, late) in events {
                now += Duration::from_millis(step);
                let happened = now.saturating_sub(Duration::from_millis(late));
                let clock = Reading { node: crate::NodeId(rank), bound: Duration::from_millis(late) };
                let clock = (code % 2 == 0).then_some(clock);
                let event = event(kind, rank, code);
                write(&mut lines, now, JobEvent::Gang { happened, clock, event: Box::new(event.clone()) });
                let mut effects = Vec::new();
                gang.handle_of(Moment { now, at: happened, clock }, event, &mut effects);
                effects.into_iter().for_each(|effect| write(&mut lines, now, JobEvent::Decision(effect)));
            }
            let mut entries = lines.iter().map(|line| serde_json::from_str(line).expect("our own"));
            let mut replay = Replay::new(entries.next().expect("the first")).expect("that of the job");
            for entry in entries {
                replay.take(entry).expect("our own version");
            }
            prop_assert!(replay.is_faithful());
            prop_assert_eq!(replay.gang.evidence(), gang.evidence());
            prop_assert_eq!(verdict(&replay.gang), verdict(&gang));
        }
    }

    #[test]
    fn a_stream_of_another_version_or_without_its_beginning_is_refused() {
        let first = Entry::new(Duration::ZERO, JobEvent::Job(Box::new(facts(1))));
        let other = Entry { v: 4, ..first.clone() };
        assert_eq!(Replay::new(other).err(), Some(ReplayError::Version(4)));
        let tick = Entry::new(
            Duration::ZERO,
            JobEvent::Gang { happened: Duration::ZERO, clock: None, event: Box::new(Event::Tick) },
        );
        assert_eq!(Replay::new(tick.clone()).err(), Some(ReplayError::NoJob));
        let mut replay = Replay::new(first).expect("that of the job");
        assert_eq!(replay.take(tick), Ok(()));
        assert!(!Left::default().proven && replay.end.is_none());
    }

    #[test]
    fn the_form_of_an_entry_is_fixed() {
        let event = Event::Ended { worker: worker(1), status: WorkerStatus::Exited { code: 3 } };
        let entry = Entry::new(
            Duration::from_millis(20),
            JobEvent::Gang { happened: Duration::from_millis(19), clock: None, event: Box::new(event) },
        );
        let json = serde_json::to_string(&entry).expect("plain data");
        assert_eq!((other_version(&json), other_version(r#"{"v":1,"at":0,"event":"else"}"#)), (None, Some(1)));
        assert_eq!(
            json,
            r#"{"v":3,"at":20000000,"event":{"gang":{"happened":19000000,"event":{"Ended":{"worker":{"rank":1,"attempt":0},"status":{"exited":{"code":3}}}}}}}"#
        );
    }
}
