//! Jobs, their journals, and what comes of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value;

use super::Export;
use crate::event::{End, Entry, JobEvent, JobFacts, NodeState};
use crate::evidence::{Class, MpiEvent};
use crate::exit::ExitCode;
use crate::gang::{Effect, Event, Gang, Moment, Rules};
use crate::grace::{SIGTERM, StopRecord};
use crate::ids::{Attempt, GangId, GroupId, JobId, NodeId, NodeRank, Pid, Rank, WorkerId};
use crate::rankmap::RankMap;
use crate::ranks::RankSet;
use crate::report::Left;
use crate::restart::{self, Decision, Outcome, Reason};
use crate::status::WorkerStatus;
use crate::testimony::{Exception, Testimony};
use crate::trace::{Part, Trace};
use crate::worker;

const STARTED: Duration = Duration::from_secs(1_700_000_000);
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// A journal that is being written.
struct Journal {
    lines: Vec<String>,
    gang: Gang,
    facts: JobFacts,
    paused: Duration,
}

impl Journal {
    fn new(world_size: u32, trace: Option<Trace>) -> Journal {
        let facts = JobFacts {
            release: "0.1.0".to_owned(),
            job: JobId("7f3a91c2".to_owned()),
            gang: GangId::default(),
            map: RankMap::single_node("vm", &[world_size]),
            commands: vec![(RankSet::of((0..world_size).map(Rank)), vec!["python".to_owned(), "train.py".to_owned()])],
            rules: Rules {
                grace_failure: ms(5000),
                grace_outside: ms(25_000),
                timeout: None,
                keep_going: false,
                terminal: None,
            },
            groups: Vec::new(),
            trace,
        };
        let gang = Gang::new(facts.gang, world_size, facts.rules.clone());
        let mut journal = Journal { lines: Vec::new(), gang, facts, paused: Duration::ZERO };
        journal.job(0);
        journal
    }

    fn write(&mut self, at: u64, event: JobEvent) {
        let entry = Entry::new(ms(at), event).after_pauses(self.paused);
        self.lines.push(serde_json::to_string(&entry).expect("plain data"));
    }

    fn job(&mut self, at: u64) {
        self.write(at, JobEvent::Job(Box::new(self.facts.clone())));
    }

    fn attempt(&mut self, at: u64, attempt: u32) {
        self.facts.gang = GangId { group: GroupId(0), attempt: Attempt(attempt) };
        self.gang = Gang::new(self.facts.gang, self.facts.map.world_size(), self.facts.rules.clone());
        self.job(at);
    }

    fn worker(&self, rank: u32) -> WorkerId {
        WorkerId { rank: Rank(rank), attempt: self.facts.gang.attempt }
    }

    /// An event, received some time after it happened.
    fn gang(&mut self, happened: u64, event: Event) {
        let at = happened + 1;
        self.write(at, JobEvent::Gang { happened: ms(happened), clock: None, event: Box::new(event.clone()) });
        let mut effects = Vec::new();
        let moment = Moment { now: ms(at), at: ms(happened), clock: None };
        self.gang.handle_of(moment, event, &mut effects);
        effects.into_iter().for_each(|effect: Effect| self.write(at, JobEvent::Decision(effect)));
    }

    fn node(&mut self, at: u64, state: NodeState) {
        let (node, place) = (NodeId(0), Some(NodeRank(0)));
        self.write(at, JobEvent::Node { node, place, name: "vm".to_owned(), state, why: None });
    }

    fn end(&mut self, at: u64) {
        let end = End {
            took: ms(at) + self.paused,
            started: STARTED,
            containment: "cgroup".to_owned(),
            containment_note: None,
            left: Left { proven: true, shared_memory_removed: true, ..Left::default() },
            only_lost_before: false,
            why_lost: None,
            unguarded: None,
            saved: None,
            standings: Vec::new(),
            stacks: None,
            core: None,
            is_quoted_above: false,
            attempts: Vec::new(),
            attempts_left_out: 0,
            given_up: None,
        };
        self.write(at, JobEvent::End(Box::new(end)));
    }

    /// The JSON of its export.
    fn export(&self) -> Value {
        let mut entries = self.lines.iter().map(|line| serde_json::from_str::<Entry>(line).expect("our own"));
        let last: Entry = serde_json::from_str(self.lines.last().expect("a journal")).expect("our own");
        let started = if let JobEvent::End(end) = last.event { Some(end.started) } else { None };
        let mut export = Export::new(entries.next().expect("the first"), started).expect("that of the job");
        entries.for_each(|entry| export.take(entry).expect("our own version"));
        let text = serde_json::to_string(&export.finish()).expect("plain data");
        serde_json::from_str(&text).expect("JSON")
    }
}

fn trace(parent: Option<&str>) -> Trace {
    Trace::new(&JobId("7f3a91c2".to_owned()), STARTED, parent.map(str::as_ref), Some("vendor=1".as_ref()))
}

/// A job whose rank 1 raises an exception in its first attempt, and whose second one succeeds.
fn restarted(trace: Option<Trace>) -> Journal {
    let mut journal = Journal::new(2, trace);
    journal.node(0, NodeState::Reached);
    journal.node(1, NodeState::Running);
    let cpus = [(journal.worker(0), "0-3"), (journal.worker(1), "4-7")];
    let cpus = cpus.map(|(worker, cpus)| (worker, cpus.parse().expect("CPUs")));
    journal.write(5, JobEvent::Bound(cpus.to_vec()));
    for rank in 0..2 {
        journal.gang(10, Event::Started { worker: journal.worker(rank), pid: Pid(100 + rank as i32) });
        journal.gang(20, Event::Mpi { worker: journal.worker(rank), event: MpiEvent::Inited });
    }
    let exception = Exception {
        kind: "ValueError".to_owned(),
        message: "bad \"sample\"".to_owned(),
        traceback: "Traceback (most recent call last):\n".to_owned(),
        file: Some("train.py".to_owned()),
        line: Some(7),
        function: Some("step".to_owned()),
    };
    let (zero, one) = (journal.worker(0), journal.worker(1));
    journal.gang(100, Event::Testimony { worker: one, pid: Pid(101), testimony: Testimony::Uncaught(exception) });
    journal.gang(110, Event::Ended { worker: one, status: WorkerStatus::Exited { code: 1 } });
    journal.gang(111, Event::Gone { worker: one, outcome: worker::Outcome::Ended(WorkerStatus::Exited { code: 1 }) });
    let record = StopRecord { signals: vec![(SIGTERM, ms(112)), (9, ms(5112))], ..StopRecord::default() };
    journal.gang(5113, Event::Signalled { worker: zero, record });
    let status = WorkerStatus::Signaled { signal: 9, core_dumped: false };
    journal.gang(5113, Event::Ended { worker: zero, status });
    journal.gang(5114, Event::Gone { worker: zero, outcome: worker::Outcome::Ended(status) });
    let because = "rank 1 failed: ValueError: bad \"sample\"".to_owned();
    let outcome = Outcome {
        code: ExitCode(1),
        class: Some(Class::Exception),
        culprit: Some(Rank(1)),
        cause: Some(because.clone()),
        ..Outcome::default()
    };
    journal.write(5120, JobEvent::Attempt { rank: None, event: restart::Event::Ended(outcome) });
    let decision =
        Decision::Restart { after: ms(1000), attempt: Attempt(1), reason: Reason::Failure, because: because.clone() };
    journal.write(5120, JobEvent::Restart { rank: None, decision });
    journal.write(5121, JobEvent::Note("restarting all ranks: attempt 1".to_owned()));
    journal.paused = ms(500);
    journal.attempt(6120, 1);
    for rank in 0..2 {
        let worker = journal.worker(rank);
        journal.gang(6130, Event::Started { worker, pid: Pid(110 + rank as i32) });
        journal.gang(6140, Event::Testimony { worker, pid: Pid(110), testimony: Testimony::Ready });
        journal.gang(6200, Event::Ended { worker, status: WorkerStatus::Exited { code: 0 } });
        let outcome = worker::Outcome::Ended(WorkerStatus::Exited { code: 0 });
        journal.gang(6201, Event::Gone { worker, outcome });
    }
    journal.write(6210, JobEvent::Attempt { rank: None, event: restart::Event::Ended(Outcome::default()) });
    journal.end(6220);
    journal
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn spans(request: &Value) -> &[Value] {
    list(&request["resourceSpans"][0]["scopeSpans"][0], "spans")
}

fn time(value: &Value, key: &str) -> u64 {
    value[key].as_str().expect("64-bit numbers are text").parse().expect("a number")
}

/// The spans as a tree, with times in milliseconds since the start.
fn tree(request: &Value) -> String {
    fn since(value: &Value, key: &str) -> u64 {
        (time(value, key) - STARTED.as_nanos() as u64) / 1_000_000
    }
    fn attributes(of: &Value) -> String {
        let text = |it: &Value| {
            let value = it["value"].as_object().and_then(|value| value.values().next()).cloned().unwrap_or_default();
            format!(
                "{}={}",
                it["key"].as_str().unwrap_or_default(),
                value.as_str().map_or(value.to_string(), str::to_owned)
            )
        };
        let shown = list(of, "attributes").iter().filter(|it| it["key"] != "process.command_args");
        shown.map(text).collect::<Vec<_>>().join(" ")
    }
    fn below(spans: &[Value], parent: &Value, depth: usize, out: &mut String) {
        let indent = "  ".repeat(depth);
        for span in spans.iter().filter(|span| span["parentSpanId"] == *parent) {
            let (start, end) = (since(span, "startTimeUnixNano"), since(span, "endTimeUnixNano"));
            let _ = writeln!(
                out,
                "{indent}{} {start}..{end} {}",
                span["name"].as_str().unwrap_or_default(),
                attributes(span)
            );
            if let Some(message) = span["status"]["message"].as_str() {
                let _ = writeln!(out, "{indent}  ! {message}");
            }
            for event in list(span, "events") {
                let name = event["name"].as_str().unwrap_or_default();
                let _ = writeln!(
                    out,
                    "{indent}  * {} {name} {}",
                    since(event, "timeUnixNano"),
                    attributes(event).escape_debug()
                );
            }
            below(spans, &span["spanId"], depth + 1, out);
        }
    }
    let mut out = String::new();
    let spans = spans(request);
    let root = spans.iter().find(|span| span["name"] == "job").expect("a root");
    below(spans, &root["parentSpanId"], 0, &mut out);
    out.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// The fields of each message, and whether they fit (opentelemetry-proto 1.x, `trace.proto` and `common.proto`).
fn check(message: &str, value: &Value) {
    let fields = value.as_object().unwrap_or_else(|| panic!("{message} is an object: {value}"));
    for (name, value) in fields {
        let is_hex = |digits: usize| {
            value.as_str().is_some_and(|text| text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
        };
        let is_number = || value.as_str().is_some_and(|text| text.parse::<u64>().is_ok());
        let each = |message: &str| value.as_array().expect("a list").iter().for_each(|it| check(message, it));
        let fits = match (message, name.as_str()) {
            ("request", "resourceSpans") => (each("resource spans"), true).1,
            ("resource spans", "resource") => (check("resource", value), true).1,
            ("resource spans", "scopeSpans") => (each("scope spans"), true).1,
            ("scope spans", "scope") => (check("scope", value), true).1,
            ("scope spans", "spans") => (each("span"), true).1,
            ("scope", "name" | "version") => value.is_string(),
            ("span" | "link", "traceId") => is_hex(32),
            ("span" | "link", "spanId") | ("span", "parentSpanId") => is_hex(16),
            ("span", "traceState") | ("span" | "event", "name") | ("status", "message") => value.is_string(),
            ("span", "startTimeUnixNano" | "endTimeUnixNano") | ("event", "timeUnixNano") => is_number(),
            ("span", "kind" | "flags" | "droppedEventsCount") | ("status", "code") => value.is_u64(),
            ("span", "events") => (each("event"), true).1,
            ("span", "links") => (each("link"), true).1,
            ("span", "status") => (check("status", value), true).1,
            ("resource" | "span" | "event" | "link", "attributes") => (each("attribute"), true).1,
            ("attribute", "key") => value.is_string(),
            ("attribute", "value") => (check("value", value), true).1,
            ("value", "stringValue") => value.is_string(),
            ("value", "intValue") => value.as_str().is_some_and(|text| text.parse::<i64>().is_ok()),
            ("value", "doubleValue") => value.is_number(),
            ("value", "boolValue") => value.is_boolean(),
            ("value", "arrayValue") => (check("values", value), true).1,
            ("values", "values") => (each("value"), true).1,
            _ => false,
        };
        assert!(fits, "{message}.{name}: {value}");
    }
    if message == "value" {
        assert_eq!(fields.len(), 1, "one of: {value}");
    }
}

/// T-1 to T-3, and the form.
fn check_invariants(journal: &Journal) {
    let request = journal.export();
    assert_eq!(request, journal.export(), "T-3");
    check("request", &request);
    let spans = spans(&request);
    let by_id: BTreeMap<&str, &Value> =
        spans.iter().map(|span| (span["spanId"].as_str().expect("an id"), span)).collect();
    assert_eq!(by_id.len(), spans.len(), "ids are unique");
    let parent = journal.facts.trace.as_ref().and_then(|trace| trace.parent).map(|parent| parent.to_string());
    for span in spans {
        let (start, end) = (time(span, "startTimeUnixNano"), time(span, "endTimeUnixNano"));
        assert!(start <= end && start >= STARTED.as_nanos() as u64, "{span}");
        for event in list(span, "events") {
            assert!((start..=end).contains(&time(event, "timeUnixNano")), "{span}");
        }
        assert!(list(span, "links").iter().all(|link| by_id.contains_key(link["spanId"].as_str().expect("an id"))));
        let keys: Vec<&str> = list(span, "attributes").iter().filter_map(|it| it["key"].as_str()).collect();
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len(), "a key occurs once: {span}");
        if span["name"] == "job" {
            assert_eq!(span["parentSpanId"].as_str(), parent.as_deref(), "T-1");
            continue;
        }
        let above = by_id[span["parentSpanId"].as_str().expect("T-1")];
        let (first, last) = (time(above, "startTimeUnixNano"), time(above, "endTimeUnixNano"));
        assert!(first <= start && end <= last, "T-2: {span} in {above}");
    }
}

#[test]
fn a_restarted_job_is_a_tree_of_its_attempts_and_ranks() {
    let journal = restarted(Some(trace(None)));
    check_invariants(&journal);
    insta::assert_snapshot!(tree(&journal.export()));
}

#[test]
fn a_span_is_written_as_otlp_has_it() {
    let mut journal = Journal::new(1, Some(trace(Some(PARENT))));
    journal.gang(3, Event::Started { worker: journal.worker(0), pid: Pid(100) });
    journal.gang(9, Event::Ended { worker: journal.worker(0), status: WorkerStatus::Exited { code: 3 } });
    journal.end(10);
    check_invariants(&journal);
    insta::assert_snapshot!(serde_json::to_string_pretty(&journal.export()).expect("plain data"));
}

#[test]
fn the_span_of_a_rank_is_the_parent_that_its_program_got() {
    for parent in [None, Some(PARENT)] {
        let trace = trace(parent);
        let request = restarted(Some(trace.clone())).export();
        let ranks: BTreeSet<String> = spans(&request)
            .iter()
            .filter(|span| span["name"] == "rank")
            .map(|span| {
                format!("00-{}-{}-01", span["traceId"].as_str().expect("hex"), span["spanId"].as_str().expect("hex"))
            })
            .collect();
        let worker = |rank, attempt| WorkerId { rank: Rank(rank), attempt: Attempt(attempt) };
        let given = [worker(0, 0), worker(1, 0), worker(0, 1), worker(1, 1)];
        let given = given.map(|worker| trace.traceparent(Part::Rank(worker)));
        assert_eq!(ranks, BTreeSet::from(given));
    }
}

#[test]
fn a_journal_without_an_end_is_exported_up_to_there() {
    let whole = restarted(Some(trace(None)));
    for length in 1..whole.lines.len() {
        let journal = Journal { lines: whole.lines[..length].to_vec(), ..restarted(Some(trace(None))) };
        check_invariants(&journal);
        let request = journal.export();
        let root = spans(&request).iter().find(|span| span["name"] == "job").expect("a root").clone();
        assert!(list(&root, "attributes").iter().any(|it| it["key"] == "rankrun.unfinished"), "{root}");
    }
}

#[test]
fn a_journal_without_a_trace_has_one_all_the_same_if_it_says_when_the_job_started() {
    let journal = restarted(None);
    check_invariants(&journal);
    assert_eq!(spans(&journal.export()).len(), spans(&restarted(Some(trace(None))).export()).len());
    let first: Entry = serde_json::from_str(&journal.lines[0]).expect("our own");
    assert!(Export::new(first, None).is_err());
}

proptest! {
    #[test]
    fn every_span_has_its_place(
        events in proptest::collection::vec((0u8..16, 0u32..3, any::<u8>(), 0u64..200, 0u64..300), 0..60),
        has_end: bool,
        has_parent: bool,
    ) {
        let mut journal = Journal::new(3, Some(trace(has_parent.then_some(PARENT))));
        let (mut now, mut attempt) = (1000, 0);
        for (kind, rank, code, step, late) in events {
            now += step;
            let (worker, happened) = (journal.worker(rank), now - late);
            let status = match code % 2 {
                0 => WorkerStatus::Exited { code },
                _ => WorkerStatus::Signaled { signal: i32::from(code % 16) + 1, core_dumped: false },
            };
            match kind {
                0 | 1 => journal.gang(happened, Event::Started { worker, pid: Pid(100 + rank as i32) }),
                2 => journal.gang(happened, Event::Ended { worker, status }),
                3 => journal.gang(happened, Event::Gone { worker, outcome: worker::Outcome::Ended(status) }),
                4 => journal.gang(happened, Event::Mpi { worker, event: MpiEvent::Inited }),
                5 => journal.gang(happened, Event::Mpi { worker, event: MpiEvent::Finalized }),
                6 => journal.gang(happened, Event::Testimony { worker, pid: Pid(1), testimony: Testimony::Ready }),
                7 => journal.gang(happened, Event::Testimony { worker, pid: Pid(1), testimony: Testimony::Uncaught(Exception::default()) }),
                8 => {
                    let record = StopRecord { signals: vec![(SIGTERM, ms(happened))], ..StopRecord::default() };
                    journal.gang(now, Event::Signalled { worker, record });
                }
                9 => journal.node(now, [NodeState::Asked, NodeState::Ready, NodeState::Suspect, NodeState::Lost][usize::from(code % 4)]),
                10 => {
                    attempt += 1;
                    let because = String::new();
                    let decision = Decision::Restart { after: ms(1), attempt: Attempt(attempt), reason: Reason::Planned, because };
                    journal.write(now, JobEvent::Restart { rank: None, decision });
                    journal.attempt(now + 1, attempt);
                }
                11 => journal.write(now, JobEvent::Attempt { rank: None, event: restart::Event::Ended(Outcome::default()) }),
                12 => journal.paused += ms(step),
                13 => journal.gang(happened, Event::Signal(2)),
                14 => journal.write(now, JobEvent::Bound(vec![(worker, "0-3".parse().expect("CPUs"))])),
                _ => journal.write(now.saturating_sub(late), JobEvent::Note("a line".to_owned())),
            }
        }
        if has_end {
            journal.end(now + 1);
        }
        check_invariants(&journal);
    }
}
