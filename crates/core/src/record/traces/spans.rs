//! Spans that begin, end and get events, and what they come to.

use std::collections::BTreeMap;

use super::otlp::{self, Attribute, ERROR, HAS_IS_REMOTE, INTERNAL, IS_REMOTE, Link, Span, Status, Value, attribute};
use crate::evidence::shorten;
use crate::trace::{Part, Trace};

/// Events that one span has at most, as OpenTelemetry's SDKs have it. The count of the others is exported.
const EVENTS: usize = 128;
/// Bytes of a text at most.
const TEXT: usize = 16 << 10;

/// A span that is being made. Times are nanoseconds since the Unix epoch.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    part: Part,
    parent: Option<Part>,
    name: &'static str,
    start: u64,
    end: Option<u64>,
    attributes: Vec<Attribute>,
    events: Vec<otlp::Event>,
    dropped: u32,
    links: Vec<(Part, &'static str)>,
    error: Option<String>,
}

/// The spans of a job. A parent is opened before its children.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans {
    drafts: Vec<Draft>,
    index: BTreeMap<Part, usize>,
}

impl Spans {
    /// A span begins, unless it has begun. Events may be missing: without its parent it is left out (T-1).
    pub(super) fn open(&mut self, part: Part, parent: Option<Part>, name: &'static str, at: u64) {
        if self.has(part) || parent.is_some_and(|parent| !self.has(parent)) {
            return;
        }
        self.index.insert(part, self.drafts.len());
        self.drafts.push(Draft {
            part,
            parent,
            name,
            start: at,
            end: None,
            attributes: Vec::new(),
            events: Vec::new(),
            dropped: 0,
            links: Vec::new(),
            error: None,
        });
    }

    pub(super) fn has(&self, part: Part) -> bool {
        self.index.contains_key(&part)
    }

    /// Whether it has begun, and not ended.
    pub(super) fn is_open(&self, part: Part) -> bool {
        self.index.get(&part).is_some_and(|at| self.drafts[*at].end.is_none())
    }

    fn draft(&mut self, part: Part) -> Option<&mut Draft> {
        self.index.get(&part).map(|at| &mut self.drafts[*at])
    }

    /// A span ends, unless it has ended.
    pub(super) fn close(&mut self, part: Part, at: u64) {
        if let Some(draft) = self.draft(part) {
            draft.end.get_or_insert(at);
        }
    }

    /// Sets an attribute.
    pub(super) fn set(&mut self, part: Part, key: &'static str, value: impl Into<Value>) {
        let value = within(value.into());
        let Some(draft) = self.draft(part) else { return };
        match draft.attributes.iter_mut().find(|attribute| attribute.key == key) {
            Some(attribute) => attribute.value = value,
            None => draft.attributes.push(Attribute { key, value }),
        }
    }

    /// Something happens in a span.
    pub(super) fn event(&mut self, part: Part, at: u64, name: &'static str, attributes: Vec<Attribute>) {
        let Some(draft) = self.draft(part) else { return };
        if draft.events.len() >= EVENTS {
            draft.dropped = draft.dropped.saturating_add(1);
            return;
        }
        let attributes = attributes.into_iter().map(|it| Attribute { value: within(it.value), ..it }).collect();
        draft.events.push(otlp::Event { time_unix_nano: at, name, attributes });
    }

    /// A span has to do with another one, which is there.
    pub(super) fn link(&mut self, part: Part, to: Part, why: &'static str) {
        if self.has(to)
            && let Some(draft) = self.draft(part)
        {
            draft.links.push((to, why));
        }
    }

    /// A span is one of a failure. The first message counts.
    pub(super) fn fail(&mut self, part: Part, message: impl Into<String>) {
        if let Some(draft) = self.draft(part) {
            draft.error.get_or_insert_with(|| message.into());
        }
    }

    /// The spans as they are sent. What has not ended does at `last`; `is_cut`: nothing tells its true end.
    pub(super) fn finish(mut self, trace: &Trace, last: u64, is_cut: bool) -> Vec<Span> {
        self.nest(last, is_cut);
        let mut spans: Vec<Span> = self.drafts.into_iter().map(|draft| span(trace, draft)).collect();
        spans.sort_by_key(|span| (span.start_time_unix_nano, span.parent_span_id.is_some(), span.span_id));
        spans
    }

    /// T-2. Times of different clocks may differ by the bound of their offset, and messages are dated by their arrival.
    fn nest(&mut self, last: u64, is_cut: bool) {
        for draft in &mut self.drafts {
            if draft.end.is_none() && is_cut {
                draft.attributes.push(attribute("rankrun.unfinished", true));
            }
            draft.end.get_or_insert(last);
        }
        let parent_of = |of: &Draft| of.parent.and_then(|parent| self.index.get(&parent)).copied();
        let parents: Vec<Option<usize>> = self.drafts.iter().map(parent_of).collect();
        for (at, parent) in parents.iter().enumerate() {
            let floor = parent.map_or(0, |parent| self.drafts[parent].start);
            let draft = &mut self.drafts[at];
            draft.start = draft.start.max(floor);
            draft.end = draft.end.max(Some(draft.start));
        }
        for (at, parent) in parents.iter().enumerate().rev() {
            if let Some(parent) = *parent {
                self.drafts[parent].end = self.drafts[parent].end.max(self.drafts[at].end);
            }
        }
        for draft in &mut self.drafts {
            let (start, end) = (draft.start, draft.end.unwrap_or(draft.start));
            // What is found out about a rank after its end is dated then.
            for event in &mut draft.events {
                event.time_unix_nano = event.time_unix_nano.clamp(start, end);
            }
            draft.events.sort_by_key(|event| event.time_unix_nano);
        }
    }
}

fn span(trace: &Trace, draft: Draft) -> Span {
    let is_remote = draft.parent.is_none() && trace.parent.is_some();
    let link = |(to, why): (Part, &'static str)| Link {
        trace_id: trace.id,
        span_id: trace.span(to),
        attributes: vec![attribute("rankrun.link", why)],
    };
    Span {
        trace_id: trace.id,
        span_id: trace.span(draft.part),
        trace_state: trace.state.clone(),
        parent_span_id: draft.parent.map(|parent| trace.span(parent)).or(trace.parent),
        flags: u32::from(trace.flags) | HAS_IS_REMOTE | if is_remote { IS_REMOTE } else { 0 },
        name: draft.name,
        kind: INTERNAL,
        start_time_unix_nano: draft.start,
        end_time_unix_nano: draft.end.unwrap_or(draft.start),
        attributes: draft.attributes,
        events: draft.events,
        dropped_events_count: draft.dropped,
        links: draft.links.into_iter().map(link).collect(),
        status: draft.error.map(|message| Status { message, code: ERROR }),
    }
}

/// A value that is not too long.
fn within(value: Value) -> Value {
    let short = |mut text: String| {
        shorten(&mut text, TEXT);
        text
    };
    match value {
        Value::Text(text) => Value::Text(short(text)),
        Value::Texts(texts) => Value::Texts(texts.into_iter().map(short).collect()),
        other => other,
    }
}
