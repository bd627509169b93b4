//! What programs wrote as they failed, and what must be said of it.
//!
//! `samples/*.sample` were captured from real programs, with their paths, hosts and pids made neutral. A file is, line by line:
//!
//! ```text
//! from: gcc 12.2, glibc 2.36       what wrote it; where it was not captured here, the source
//! end: killed 6                    or `exited 3`; with `, aborted 7` it has called MPI_Abort
//! rank: 0                          whose output it is (1)
//! class: signal                    class of the verdict
//! headline: rank 1 failed: free(): invalid pointer (killed by SIGABRT)
//! by: glibc                        the recogniser that found it, or `none`
//! first: free(): invalid pointer   the first line of the window, `none` without one
//! last: free(): invalid pointer    the last
//! --- main.c                       how it was made: any sections that are not the two streams
//! --- stderr                       what it wrote
//! --- stdout
//! ```
//!
//! `samples/healthy/*.sample` are of programs that did their work: none of their words may be taken for a failure.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use crate::evidence::{MpiEvent, Source};
use crate::exit::ExitCode;
use crate::gang::{Event, Gang, Rules};
use crate::headline::{Circumstances, headline};
use crate::ids::{GangId, Pid, Rank, worker};
use crate::last_words::words;
use crate::recognisers::{self, End};
use crate::report::OutputFate;
use crate::status::WorkerStatus;
use crate::stderr::{Tail, Tails};
use crate::verdict::verdict;

/// There shall be at least so many.
const HEALTHY: usize = 25;

#[derive(Clone, Debug, Default)]
struct Sample {
    name: String,
    rank: u32,
    status: Option<WorkerStatus>,
    aborted: Option<i32>,
    expected: Told,
    stderr: String,
    stdout: String,
}

/// What is said of a sample.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Told {
    class: String,
    headline: String,
    by: String,
    first: String,
    last: String,
}

fn samples(directory: &str) -> Vec<Sample> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conclusion").join(directory);
    let entries = fs::read_dir(&directory).expect("the samples are in the repository");
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    paths.sort();
    paths.iter().map(|path| sample(path)).collect()
}

/// Every stream of every sample.
pub(crate) fn texts() -> &'static [String] {
    static TEXTS: LazyLock<Vec<String>> = LazyLock::new(|| {
        let all = samples("samples").into_iter().chain(samples("samples/healthy"));
        all.flat_map(|sample| [sample.stderr, sample.stdout]).filter(|text| !text.is_empty()).collect()
    });
    &TEXTS
}

/// Every line of them.
pub(crate) fn lines() -> Vec<String> {
    texts().iter().flat_map(|text| text.lines()).map(str::to_owned).collect()
}

/// What the programs that failed wrote to stderr, and how they ended.
pub(crate) fn failures() -> &'static [(String, End)] {
    static FAILURES: LazyLock<Vec<(String, End)>> = LazyLock::new(|| {
        let end =
            |sample: &Sample| End { status: sample.status, has_aborted: sample.aborted.is_some(), has_left: false };
        samples("samples").into_iter().map(|sample| (sample.stderr.clone(), end(&sample))).collect()
    });
    &FAILURES
}

fn sample(path: &Path) -> Sample {
    let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
    let text = fs::read_to_string(path).expect("a sample can be read");
    let mut sample = Sample { name, rank: 1, ..Sample::default() };
    let mut section: Option<String> = None;
    // Not `lines()`: carriage returns are part of some samples.
    for line in text.split_inclusive('\n') {
        if let Some(title) = line.strip_prefix("--- ") {
            section = Some(title.trim().to_owned());
            continue;
        }
        match section.as_deref() {
            Some("stderr") => sample.stderr.push_str(line),
            Some("stdout") => sample.stdout.push_str(line),
            Some(_) => {}
            None => header(&mut sample, line.trim_end_matches('\n')),
        }
    }
    sample
}

fn header(sample: &mut Sample, line: &str) {
    let (key, value) = line.split_once(": ").unwrap_or_else(|| panic!("{}: \"{line}\"", sample.name));
    let number = |text: &str| text.parse::<i32>().unwrap_or_else(|_| panic!("{}: \"{line}\"", sample.name));
    match key {
        "from" => {}
        "end" => {
            let (end, aborted) = value.split_once(", aborted ").map_or((value, None), |(end, code)| (end, Some(code)));
            sample.aborted = aborted.map(number);
            sample.status = Some(match end.split_once(' ') {
                Some(("exited", code)) => WorkerStatus::Exited { code: number(code) as u8 },
                Some(("killed", signal)) => WorkerStatus::Signaled { signal: number(signal), core_dumped: false },
                _ => panic!("{}: \"{line}\"", sample.name),
            });
        }
        "rank" => sample.rank = number(value) as u32,
        "class" => sample.expected.class = value.to_owned(),
        "headline" => sample.expected.headline = value.to_owned(),
        "by" => sample.expected.by = value.to_owned(),
        "first" => sample.expected.first = value.to_owned(),
        "last" => sample.expected.last = value.to_owned(),
        _ => panic!("{}: \"{line}\"", sample.name),
    }
}

fn tail(text: &str) -> Tail {
    let mut tail = Tail::default();
    tail.write(text.as_bytes());
    tail
}

/// A job of 4 ranks of which one has written this and ended so.
fn tell(sample: &Sample) -> Told {
    let second = Duration::from_secs(1);
    let rules =
        Rules { grace_failure: second, grace_outside: second, timeout: None, keep_going: false, terminal: None };
    let mut gang = Gang::new(GangId::default(), 4, rules);
    let mut feed = |ms: u64, event: Event| gang.handle(Duration::from_millis(ms), event, &mut Vec::new());
    for rank in 0..4 {
        feed(0, Event::Started { worker: worker(rank), pid: Pid(100 + rank as i32) });
    }
    let (rank, worker) = (Rank(sample.rank), worker(sample.rank));
    if let Some(code) = sample.aborted {
        feed(9, Event::Mpi { worker, event: MpiEvent::Inited });
        feed(10, Event::Mpi { worker, event: MpiEvent::Aborted { code, message: None } });
    }
    feed(11, Event::Ended { worker, status: sample.status.expect("a sample says how it ended") });
    let (stderr, stdout) = (tail(&sample.stderr), tail(&sample.stdout));
    let words = words(&gang, rank, &stderr, &stdout);
    let source = words.failure.as_ref().map(|(source, _)| *source);
    gang.handle(Duration::from_millis(20), Event::LastWords { worker, words }, &mut Vec::new());
    let verdict = verdict(&gang);
    let circumstances =
        Circumstances { code: ExitCode::FAILURE, output: OutputFate::Written, node: "", why_lost: None };
    let culprit = verdict.culprit.as_ref().expect("a rank has failed");
    let lines = culprit.window.as_ref().map(|window| window.lines.clone()).unwrap_or_default();
    let end = End { status: sample.status, has_aborted: sample.aborted.is_some(), has_left: false };
    let by = source.and_then(|source| {
        let tail = if source == Source::Stdout { &stdout } else { &stderr };
        let lines = tail.bare();
        recognisers::choose(&lines.iter().map(String::as_str).collect::<Vec<_>>(), end).map(|cause| cause.recogniser)
    });
    let class = serde_json::to_value(culprit.class).expect("plain data");
    let or_none = |line: Option<&String>| line.map_or("none".to_owned(), |line| line.trim_end().to_owned());
    Told {
        class: class.as_str().unwrap_or_default().to_owned(),
        headline: headline(&verdict, &gang, circumstances),
        by: by.unwrap_or("none").to_owned(),
        first: or_none(lines.first()),
        last: or_none(lines.last()),
    }
}

#[test]
fn of_each_sample_is_said_what_is_written_in_it() {
    let wrong: Vec<String> = samples("samples")
        .iter()
        .filter_map(|sample| {
            let told = tell(sample);
            let Told { class, headline, by, first, last } = &told;
            let text = format!("class: {class}\nheadline: {headline}\nby: {by}\nfirst: {first}\nlast: {last}");
            (told != sample.expected).then(|| format!("=== {}\n{text}", sample.name))
        })
        .collect();
    assert!(wrong.is_empty(), "{} samples are told of otherwise:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_recogniser_finds_the_cause_of_a_sample() {
    let found: BTreeSet<String> = samples("samples").into_iter().map(|sample| sample.expected.by).collect();
    let idle: Vec<&str> = recognisers::names().filter(|name| !found.contains(*name)).collect();
    assert!(idle.is_empty(), "no sample of {idle:?}");
}

#[test]
fn nothing_that_a_healthy_program_writes_is_taken_for_a_failure() {
    let all = samples("samples/healthy");
    assert!(all.len() >= HEALTHY, "{} samples", all.len());
    let signaled = |signal| WorkerStatus::Signaled { signal, core_dumped: false };
    // The programs exited with 0. These are ends that say nothing of what was written.
    let exited = |code| WorkerStatus::Exited { code };
    let ends =
        [(exited(3), false), (exited(1), true), (signaled(9), false), (signaled(15), false), (signaled(11), false)];
    let mut wrong = Vec::new();
    for sample in &all {
        let (stderr, stdout) = (tail(&sample.stderr), tail(&sample.stdout));
        for (status, has_left) in ends {
            let end = End { status: Some(status), has_left, ..End::default() };
            let words = Tails { stderr: Some(&stderr), stdout: Some(&stdout), ended_at: None }.words(0, end);
            let failure = words.failure.map(|(_, exception)| exception.headline());
            if failure.is_some() || words.peer_lost.is_some() || words.aborted.is_some() {
                wrong.push(format!("{} ({status}): {failure:?} {:?}", sample.name, words.peer_lost));
            }
        }
        if let Some(exception) = stderr.last_traceback() {
            wrong.push(format!("{}: suspected of {}", sample.name, exception.headline()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
