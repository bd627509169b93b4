//! Prints what a rank finds itself in, one JSON object on one line: descriptors with what they lead to, blocked and
//! ignored signals (masks as /proc prints them), limits (soft and hard), process ids.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    match report() {
        Ok(line) if writeln!(io::stdout(), "{line}").is_ok() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn report() -> io::Result<String> {
    let mut descriptors = BTreeMap::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let number: i32 = entry.file_name().to_string_lossy().parse().map_err(io::Error::other)?;
        let target = fs::read_link(entry.path()).map(|path| path.display().to_string()).unwrap_or_default();
        // The descriptor that reads this directory is ours.
        if !target.ends_with("/fd") {
            descriptors.insert(number, target);
        }
    }
    let descriptors: Vec<String> = descriptors.iter().map(|(fd, target)| format!("\"{fd}\":{target:?}")).collect();
    let status = fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim_start_matches(':').trim().to_owned()
    };
    let limits = fs::read_to_string("/proc/self/limits")?;
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().take(2).collect();
        words.join(" ")
    };
    let session = rustix::process::getsid(None)?;
    Ok(format!(
        "{{\"rank\":{:?},\"fds\":{{{}}},\"blocked\":{:?},\"ignored\":{:?},\"nofile\":{:?},\"nproc\":{:?},\"core\":{:?},\
         \"pid\":{},\"pgid\":{},\"sid\":{}}}",
        std::env::var("RANKRUN_RANK").unwrap_or_default(),
        descriptors.join(","),
        field("SigBlk"),
        field("SigIgn"),
        limit("Max open files"),
        limit("Max processes"),
        limit("Max core file size"),
        std::process::id(),
        rustix::process::getpgrp().as_raw_nonzero(),
        session.as_raw_nonzero(),
    ))
}
