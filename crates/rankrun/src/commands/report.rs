//! `rankrun report`: a kept report, for people.

use std::path::Path;

use rankrun_core::report::{Report, SCHEMA};
use rankrun_core::text::{Look, render};
use serde::Deserialize;

use crate::file;
use crate::message::Problem;
use rankrun_sys::reason;

/// The longest report that is read: it grows with the number of ranks, by some 150 bytes each.
const MOST: u64 = 64 << 20;

/// What every version of the schema has.
#[derive(Deserialize)]
struct Version {
    schema: u32,
}

/// The text of the report in a file, or in a directory.
pub(crate) fn read(named: &Path, color: bool) -> Result<String, Problem> {
    let path = if named.is_dir() { named.join("report.json") } else { named.to_owned() };
    let shown = path.display();
    let json = file::read(&path, MOST)
        .map_err(|error| Problem::usage(format!("cannot read the report \"{shown}\": {}", reason(&error))))?;
    let no_report = |error: serde_json::Error| {
        Problem::usage(format!("\"{shown}\" is no report of rankrun: {error}"))
            .hint("a job that fails prints the path of its report.json")
    };
    let Version { schema } = serde_json::from_slice(&json).map_err(no_report)?;
    if schema != SCHEMA {
        return Err(Problem::usage(format!(
            "\"{shown}\" has version {schema} of the schema, and this is version {SCHEMA}"
        ))
        .hint("print it with the rankrun that wrote it"));
    }
    let report: Report = serde_json::from_slice(&json).map_err(no_report)?;
    let mut text = render(&report, Look { saved: Some(&shown.to_string()), color, is_quoted_above: false });
    text.push('\n');
    Ok(text)
}
