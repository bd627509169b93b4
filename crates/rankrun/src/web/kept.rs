//! What is kept of a job: its transcript and its reports.

use std::io;
use std::path::{Path, PathBuf};

use rankrun_core::Rank;
use rankrun_core::report::Report;
use rankrun_output::{Entry, Next, TranscriptReader};
use serde_json::{Value, json};

use super::pieces::Pieces;

/// Bytes of output that are shown of a rank, and as many more of all ranks are read to find them.
const SHOWN: usize = 128 << 10;
const SEARCHED: u64 = 4 << 20;
/// Bytes that are read for one answer, but for a segment before the first of them.
const MOST_READ: u64 = 64 << 20;

/// What a rank wrote, from a position on that was returned before, or the last of it.
pub(super) fn output(directory: &Path, rank: Rank, at: Option<u64>) -> io::Result<Value> {
    let mut reader = match at {
        Some(at) => TranscriptReader::new(directory.to_owned(), at),
        None => TranscriptReader::last(directory.to_owned(), SEARCHED)?,
    };
    // Before this is read, or the last entries could be missed.
    let is_over = TranscriptReader::is_over(directory);
    let begun = reader.position();
    let mut pieces = Pieces::new(SHOWN);
    let mut has_more = false;
    loop {
        match reader.read()? {
            Next::Entry(Entry::Output { rank: of, stream, bytes, .. }) if of == rank => pieces.output(stream, bytes),
            Next::Entry(Entry::Attempt) => pieces.say("another attempt begins"),
            Next::Entry(Entry::Rank(of)) if of == rank => pieces.say("the rank is started again"),
            Next::Entry(Entry::Gap { .. }) => pieces.say("what was written while nobody looked is not kept"),
            Next::Entry(Entry::Missing { bytes, .. }) => pieces.say(&format!("{bytes} bytes of the ranks are missing")),
            Next::Entry(_) => {}
            Next::Lost(bytes) if at.is_some() => pieces.say(&format!("{bytes} bytes are not kept (--transcript-size)")),
            Next::Lost(_) => {}
            Next::Nothing => break,
        }
        if reader.position() - begun > MOST_READ {
            has_more = true;
            break;
        }
    }
    let (is_cut, pieces) = pieces.finish();
    Ok(json!({
        "at": reader.position(),
        "pieces": pieces,
        // Older output is there, and not shown.
        "is_cut": at.is_none() && (is_cut || begun > 0),
        "is_over": is_over && !has_more,
    }))
}

/// What the reports of a job say about its attempts.
pub(super) struct Kept {
    pub(super) directory: PathBuf,
    pub(super) last: Option<Report>,
    pub(super) failed: Vec<Report>,
}

impl Kept {
    /// The attempts that have ended, in order. Times are in seconds since the start of the job.
    pub(super) fn attempts(&self) -> Vec<Value> {
        let mut attempts: Vec<Value> = self.failed.iter().map(in_json).collect();
        if let Some(last) = &self.last {
            // Those before it, where they have no report of their own.
            let told = last.attempts.iter().filter(|attempt| attempt.attempt as usize >= attempts.len());
            let told = told.map(|attempt| {
                json!({
                    "attempt": attempt.attempt,
                    "summary": attempt.summary,
                    "exit_code": attempt.exit_code,
                    "began": attempt.began,
                    "ended": attempt.began + attempt.seconds,
                    "rank": attempt.rank,
                    "has_report": false,
                })
            });
            let told: Vec<Value> = told.collect();
            attempts.extend(told);
            attempts.retain(|attempt| attempt["attempt"].as_u64() < Some(u64::from(last.attempt)));
            attempts.push(in_json(last));
        }
        attempts
    }
}

fn in_json(report: &Report) -> Value {
    let began = report.ranks.iter().filter_map(|rank| rank.started_at).reduce(f64::min);
    json!({
        "attempt": report.attempt,
        "summary": report.summary,
        "exit_code": report.exit_code,
        "began": began,
        "ended": report.seconds,
        "rank": report.culprit.as_ref().map(|culprit| culprit.rank),
        "has_report": true,
    })
}
