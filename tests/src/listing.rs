//! The running jobs, as rankrun lists them.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::helper::rankrun;

/// The id of the job with this front, from the list of all that run.
///
/// # Panics
/// If rankrun cannot be started, or the list is no JSON.
pub fn listed_job(front: i32) -> Option<String> {
    let listed = Command::new(rankrun()).args(["status", "--json"]).stdin(Stdio::null()).output();
    let all: Value = serde_json::from_slice(&listed.expect("rankrun can be started").stdout).expect("it is JSON");
    let ours = all.as_array()?.iter().find(|job| job["pid"] == front)?;
    Some(ours["job"].as_str()?.to_owned())
}
