//! The table that `bench` prints.

use std::fmt;
use std::time::Duration;

use super::launchers::Kind;

/// One launcher's result in one case.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Time(Duration),
    /// It did not end within this bound.
    Longer(Duration),
    Bytes(u64),
    /// A time, the number of torn lines, and the peak of the launcher's memory in bytes.
    Output {
        time: Duration,
        torn: u64,
        memory: u64,
    },
    /// A time, and what else is to be said of it.
    Remarked {
        time: Duration,
        remark: String,
    },
    Failed(String),
}

/// One line of the table: the results of all launchers in one case.
#[derive(Debug)]
struct Case {
    title: String,
    /// Ratios are given to this launcher's value.
    base: Kind,
    values: Vec<(Kind, Value)>,
}

#[derive(Default, Debug)]
pub(super) struct Table {
    cases: Vec<Case>,
    texts: Vec<String>,
}

impl Table {
    /// Tables that are not of this kind come after it.
    pub(super) fn add_text(&mut self, text: String) {
        self.texts.push(text);
    }

    pub(super) fn add(&mut self, title: impl Into<String>, base: Kind, values: Vec<(Kind, Value)>) {
        self.cases.push(Case { title: title.into(), base, values });
    }
}

impl Value {
    /// The number by which values of a case are compared.
    fn size(&self) -> Option<f64> {
        match self {
            Value::Time(time) | Value::Output { time, .. } | Value::Remarked { time, .. } => Some(time.as_secs_f64()),
            Value::Bytes(bytes) => Some(*bytes as f64),
            Value::Longer(_) | Value::Failed(_) => None,
        }
    }
}

struct Milliseconds(Duration);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_secs_f64() * 1e3;
        match ms {
            1000.0.. => write!(f, "{:.2} s", ms / 1e3),
            0.1.. => write!(f, "{ms:.1} ms"),
            _ => write!(f, "{:.1} µs", ms * 1e3),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Time(time) => Milliseconds(*time).fmt(f),
            Value::Longer(bound) => write!(f, "> {}", Milliseconds(*bound)),
            Value::Bytes(bytes) => write!(f, "{:.1} MiB", *bytes as f64 / f64::from(1 << 20)),
            Value::Output { time, torn, memory } => {
                write!(f, "{}, {torn} torn, {}", Milliseconds(*time), Value::Bytes(*memory))
            }
            Value::Remarked { time, remark } => write!(f, "{}, {remark}", Milliseconds(*time)),
            Value::Failed(reason) => write!(f, "failed: {reason}"),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in &self.cases {
            writeln!(f, "{}", case.title)?;
            let base = case.values.iter().find(|(kind, _)| *kind == case.base).and_then(|(_, value)| value.size());
            for (kind, value) in &case.values {
                let ratio = match (base, value.size()) {
                    (Some(base), Some(size)) if base > 0.0 && *kind != case.base => format!("{:.2} x", size / base),
                    _ => String::new(),
                };
                writeln!(f, "    {:<20}{:<36}{ratio}", kind.name(), value.to_string())?;
            }
        }
        self.texts.iter().try_for_each(|text| writeln!(f, "{text}"))
    }
}
