//! `ExportTraceServiceRequest` of OTLP in its JSON form (opentelemetry.io/docs/specs/otlp, "JSON Protobuf Encoding"): names in
//! lowerCamelCase, ids in hex, 64-bit numbers as text, enums as numbers.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::trace::{SpanId, TraceId};

/// `SPAN_KIND_INTERNAL`.
pub(super) const INTERNAL: u8 = 1;
/// `STATUS_CODE_ERROR`.
pub(super) const ERROR: u8 = 2;
/// `SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK` and `SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK`: whether the parent is of another process.
pub(super) const HAS_IS_REMOTE: u32 = 0x100;
pub(super) const IS_REMOTE: u32 = 0x200;

#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    pub resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceSpans {
    pub resource: Resource,
    pub scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Resource {
    pub attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ScopeSpans {
    pub scope: Scope,
    pub spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Scope {
    pub name: String,
    pub version: String,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_span_id: Option<SpanId>,
    pub flags: u32,
    pub name: &'static str,
    pub kind: u8,
    #[serde(serialize_with = "text")]
    pub start_time_unix_nano: u64,
    #[serde(serialize_with = "text")]
    pub end_time_unix_nano: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<Attribute>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
    #[serde(skip_serializing_if = "is_zero")]
    pub dropped_events_count: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    #[serde(serialize_with = "text")]
    pub time_unix_nano: u64,
    pub name: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Link {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    pub attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Status {
    pub message: String,
    pub code: u8,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Attribute {
    pub key: &'static str,
    pub value: Value,
}

/// `AnyValue`.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    Text(String),
    Integer(i64),
    Number(f64),
    Truth(bool),
    Texts(Vec<String>),
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Texts {
            values: Vec<Value>,
        }
        let mut value = serializer.serialize_struct("AnyValue", 1)?;
        match self {
            Value::Text(text) => value.serialize_field("stringValue", text)?,
            Value::Integer(number) => value.serialize_field("intValue", &number.to_string())?,
            Value::Number(number) => value.serialize_field("doubleValue", number)?,
            Value::Truth(truth) => value.serialize_field("boolValue", truth)?,
            Value::Texts(texts) => {
                let values = texts.iter().cloned().map(Value::Text).collect();
                value.serialize_field("arrayValue", &Texts { values })?;
            }
        }
        value.end()
    }
}

macro_rules! from {
    ($($from:ty => |$it:ident| $value:expr),* $(,)?) => {
        $(impl From<$from> for Value {
            fn from($it: $from) -> Value {
                $value
            }
        })*
    };
}

from! {
    String => |text| Value::Text(text),
    &str => |text| Value::Text(text.to_owned()),
    u32 => |number| Value::Integer(number.into()),
    i32 => |number| Value::Integer(number.into()),
    u8 => |number| Value::Integer(number.into()),
    bool => |truth| Value::Truth(truth),
    Vec<String> => |texts| Value::Texts(texts),
    std::time::Duration => |time| Value::Number(time.as_secs_f64()),
}

/// An attribute.
pub(super) fn attribute(key: &'static str, value: impl Into<Value>) -> Attribute {
    Attribute { key, value: value.into() }
}

fn text<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}
