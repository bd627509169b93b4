//! `rankrun report`: a kept report, for people.

use std::path::Path;

use rankrun_core::report::{Report, SCHEMA, render};
use serde::Deserialize;

use crate::message::Problem;
use rankrun_sys::reason;

/// What every version of the schema has.
#[derive(Deserialize)]
struct Version {
    schema: u32,
}

/// The text of the report in a file, or in a directory.
pub(crate) fn read(file: &Path, color: bool) -> Result<String, Problem> {
    let file = if file.is_dir() { file.join("report.json") } else { file.to_owned() };
    let shown = file.display();
    let json = std::fs::read(&file)
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
    let mut text = render(&report, Some(&shown.to_string()), color);
    text.push('\n');
    Ok(text)
}
