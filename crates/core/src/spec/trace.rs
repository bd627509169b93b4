//! The trace of a job: the ids of its spans, and the variables by which programs join it (W3C Trace Context, level 2).
//!
//! All ids follow from the job's id, the time of its start and the `TRACEPARENT` that rankrun was started with. Agents compute the span of a
//! rank when they start it, and the export of the journal (`rankrun replay --otlp`) computes the same one later.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::{Attempt, JobId, NodeId, WorkerId};

/// The variables, as OpenTelemetry names them (Environment Variables as Context Propagation Carriers).
pub const TRACEPARENT: &str = "TRACEPARENT";
pub const TRACESTATE: &str = "TRACESTATE";

/// The id of a trace. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TraceId(u128);

/// The id of a span. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SpanId(u64);

/// The trace of a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Trace {
    pub id: TraceId,
    /// The span of the job. Those of its parts follow from it.
    pub root: SpanId,
    /// The parent of that span, in the trace that rankrun was started in.
    pub parent: Option<SpanId>,
    /// The flags of its spans, as `TRACEPARENT` has them.
    pub flags: u8,
    /// `TRACESTATE`, if that goes with the parent.
    pub state: Option<String>,
    /// When the job started, in nanoseconds since the Unix epoch.
    pub started: u64,
}

/// A part of a job that has a span of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    Job,
    Attempt(Attempt),
    /// The wait before an attempt.
    Wait(Attempt),
    /// The wait before an attempt of one rank.
    RankWait(WorkerId),
    /// A node, until it takes part: the n-th time.
    Node(NodeId, u32),
    Rank(WorkerId),
    /// A rank until it is ready.
    Startup(WorkerId),
    /// From `MPI_Init` to `MPI_Finalize`.
    Mpi(WorkerId),
    /// From the first signal of a stop to the end of the rank.
    Stop(WorkerId),
}

/// The flag of a trace whose spans are recorded.
const SAMPLED: u8 = 1;
/// The flags that are passed on: sampled, and that the id is random.
const KNOWN_FLAGS: u8 = 3;

impl Trace {
    /// The trace of a job, with `TRACEPARENT` and `TRACESTATE` of its environment.
    pub fn new(job: &JobId, started: Duration, parent: Option<&OsStr>, state: Option<&OsStr>) -> Trace {
        let started = u64::try_from(started.as_nanos()).unwrap_or(u64::MAX);
        let seed = job.0.bytes().fold(mix(started), |hash, byte| mix(hash ^ u64::from(byte)));
        let parent = parent.and_then(OsStr::to_str).and_then(parse);
        let own = TraceId((u128::from(mix(seed ^ 1)) << 64 | u128::from(mix(seed ^ 2))).max(1));
        // A list of vendors without the trace that it belongs to means nothing.
        let state = state.filter(|_| parent.is_some()).and_then(OsStr::to_str).filter(|state| is_printable(state));
        Trace {
            id: parent.map_or(own, |parent| parent.trace),
            root: SpanId(mix(seed ^ 3).max(1)),
            parent: parent.map(|parent| parent.span),
            flags: parent.map_or(SAMPLED, |parent| parent.flags & KNOWN_FLAGS),
            state: state.map(str::to_owned),
            started,
        }
    }

    /// The trace of the job with this environment, in which getenv sees the first of two variables of one name.
    pub fn of_environment(job: &JobId, started: Duration, env: &[(OsString, OsString)]) -> Trace {
        let get = |name: &str| env.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_os_str());
        Trace::new(job, started, get(TRACEPARENT), get(TRACESTATE))
    }

    /// The clock of the job shows 0 at this time, since the Unix epoch. The ids stay.
    pub fn begin_at(&mut self, started: Duration) {
        self.started = u64::try_from(started.as_nanos()).unwrap_or(u64::MAX);
    }

    /// The span of a part.
    pub fn span(&self, part: Part) -> SpanId {
        let (kind, of) = match part {
            Part::Job => return self.root,
            Part::Attempt(attempt) => (1, [attempt.0, 0, 0]),
            Part::Wait(attempt) => (2, [attempt.0, 0, 0]),
            Part::Node(node, time) => (3, [node.0, time, 0]),
            Part::Rank(worker) => (4, of_worker(worker)),
            Part::Startup(worker) => (5, of_worker(worker)),
            Part::Mpi(worker) => (6, of_worker(worker)),
            Part::Stop(worker) => (7, of_worker(worker)),
            Part::RankWait(worker) => (8, of_worker(worker)),
        };
        let seed = mix(self.root.0 ^ kind);
        SpanId(of.into_iter().fold(seed, |hash, number| mix(hash ^ u64::from(number))).max(1))
    }

    /// The value of `TRACEPARENT` below a part.
    pub fn traceparent(&self, part: Part) -> String {
        format!("00-{}-{}-{:02x}", self.id, self.span(part), self.flags)
    }
}

fn of_worker(worker: WorkerId) -> [u32; 3] {
    [worker.rank.group().0, worker.rank.number(), worker.attempt.0]
}

/// What `TRACEPARENT` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Parent {
    trace: TraceId,
    span: SpanId,
    flags: u8,
}

/// `None`: it is to be ignored, as one that is not valid (W3C Trace Context, 3.2.2 and 4.3).
fn parse(text: &str) -> Option<Parent> {
    let mut fields = text.trim().splitn(5, '-');
    let (version, trace, span, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let version = hex(version, 2)?;
    // A later version may add fields.
    if version == 0xff || (version == 0 && fields.next().is_some()) {
        return None;
    }
    Some(Parent {
        trace: TraceId(hex(trace, 32).filter(|id| *id != 0)?),
        span: SpanId(u64::try_from(hex(span, 16)?).ok().filter(|id| *id != 0)?),
        flags: u8::try_from(hex(flags, 2)?).ok()?,
    })
}

/// A number of so many lower-case digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

fn is_printable(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// A bijection that changes half of the bits for each bit that differs: the output function of SplitMix64.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for TraceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for SpanId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TraceId, D::Error> {
        let text = String::deserialize(deserializer)?;
        let id = hex(&text, 32).filter(|id| *id != 0).map(TraceId);
        id.ok_or_else(|| D::Error::custom(format!("\"{text}\" is no id of a trace")))
    }
}

impl<'de> Deserialize<'de> for SpanId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SpanId, D::Error> {
        let text = String::deserialize(deserializer)?;
        let id = hex(&text, 16).and_then(|id| u64::try_from(id).ok()).filter(|id| *id != 0).map(SpanId);
        id.ok_or_else(|| D::Error::custom(format!("\"{text}\" is no id of a span")))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::ids::{GroupId, Rank, worker};

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn trace(job: &str, parent: Option<&str>, state: Option<&str>) -> Trace {
        let started = Duration::from_secs(1_700_000_000);
        Trace::new(&JobId(job.to_owned()), started, parent.map(OsStr::new), state.map(OsStr::new))
    }

    #[test]
    fn a_job_within_a_trace_is_a_span_of_it_and_any_other_begins_one() {
        let inner = trace("7f3a91c2", Some(PARENT), Some("vendor=1"));
        assert_eq!(inner.id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(inner.parent.map(|parent| parent.to_string()).as_deref(), Some("00f067aa0ba902b7"));
        assert_eq!((inner.flags, inner.state.as_deref()), (1, Some("vendor=1")));
        let (one, other) = (trace("7f3a91c2", None, Some("vendor=1")), trace("7f3a91c3", None, None));
        assert_eq!((one.parent, one.flags, one.state.as_deref()), (None, SAMPLED, None));
        assert_eq!(one, trace("7f3a91c2", None, None), "it follows from the job");
        assert!(one.id != other.id && one.root != other.root && one.id != inner.id);
        assert_ne!(inner.root, trace("7f3a91c3", Some(PARENT), None).root, "two jobs of one trace");
        let later = Trace::new(&JobId("7f3a91c2".to_owned()), Duration::from_secs(1_700_000_001), None, None);
        assert_ne!(one.id, later.id, "jobs of one name");
    }

    #[test]
    fn a_parent_that_is_not_valid_is_ignored() {
        for (text, is_valid) in [
            (PARENT, true),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", true),
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-of-a-later-version", true),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", false),
            ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", false),
            ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", false),
            ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", false),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", false),
            ("00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01", false),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1", false),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7", false),
            ("00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", false),
            ("", false),
        ] {
            assert_eq!(parse(text).is_some(), is_valid, "{text}");
        }
        assert_eq!(trace("7f3a91c2", Some("nonsense"), Some("vendor=1")), trace("7f3a91c2", None, None));
        assert_eq!(
            trace("7f3a91c2", Some(&PARENT.replace("-01", "-fc")), None).flags,
            0,
            "flags that mean nothing yet"
        );
    }

    #[test]
    fn what_a_program_gets_is_a_parent_that_another_rankrun_understands() {
        let trace = trace("7f3a91c2", Some(PARENT), None);
        let text = trace.traceparent(Part::Rank(worker(3)));
        let parent = parse(&text).expect("our own form");
        assert_eq!((parent.trace, parent.span, parent.flags), (trace.id, trace.span(Part::Rank(worker(3))), 1));
    }

    #[test]
    fn each_part_has_a_span_of_its_own() {
        let trace = trace("7f3a91c2", None, None);
        let mut ids = BTreeSet::from([trace.span(Part::Job)]);
        let mut count = 1;
        let mut add = |part| {
            count += 1;
            ids.insert(trace.span(part));
        };
        for attempt in (0..20).map(Attempt) {
            add(Part::Attempt(attempt));
            add(Part::Wait(attempt));
            for (group, number) in (0..3).flat_map(|group| (0..200).map(move |number| (group, number))) {
                let worker = WorkerId { rank: Rank::of(GroupId(group), number), attempt };
                let parts = [Part::Rank, Part::Startup, Part::Mpi, Part::Stop, Part::RankWait];
                parts.into_iter().for_each(|part| add(part(worker)));
            }
        }
        (0..50).for_each(|node| (0..3).for_each(|time| add(Part::Node(NodeId(node), time))));
        assert_eq!(ids.len(), count);
    }

    #[test]
    fn the_journal_has_ids_as_they_are_written() {
        let trace = trace("7f3a91c2", Some(PARENT), Some("vendor=1"));
        let text = serde_json::to_string(&trace).expect("plain data");
        assert!(text.starts_with(r#"{"id":"4bf92f3577b34da6a3ce929d0e0e4736","root":""#), "{text}");
        assert_eq!(serde_json::from_str::<Trace>(&text).expect("our own"), trace);
        let none = text.replace("4bf92f3577b34da6a3ce929d0e0e4736", "00000000000000000000000000000000");
        assert!(serde_json::from_str::<Trace>(&none).is_err());
    }
}
