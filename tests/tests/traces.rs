//! The trace of a job, `TRACEPARENT` of its ranks, and the metrics of running jobs (docs/traces.md).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rankrun_tests::{Job, Running, listed_job, rankrun, scratch, wait_until};
use serde_json::Value;

const BOUND: Duration = Duration::from_secs(60);
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn ask(arguments: &[&str]) -> Output {
    Command::new(rankrun()).args(arguments).stdin(Stdio::null()).output().expect("rankrun can be started")
}

/// The spans of a journal.
fn spans(journal: &Path) -> Vec<Value> {
    let export = || ask(&["replay", journal.to_str().expect("a path of text"), "--otlp"]);
    let (one, other) = (export(), export());
    assert!(one.status.success(), "{}", String::from_utf8_lossy(&one.stderr));
    assert_eq!(one.stdout, other.stdout, "two exports are the same");
    let request: Value = serde_json::from_slice(&one.stdout).expect("JSON");
    request["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("spans").clone()
}

fn named<'a>(spans: &'a [Value], name: &str) -> Vec<&'a Value> {
    spans.iter().filter(|span| span["name"] == name).collect()
}

#[test]
fn each_rank_of_each_attempt_has_the_span_that_it_was_told() {
    let directory = scratch();
    let journal = directory.join("journal");
    let path = journal.to_str().expect("a path of text");
    let script = "echo parent $TRACEPARENT $TRACESTATE; test $RANKRUN_RANK$RANKRUN_ATTEMPT != 10 || exit 3";
    let words = ["-n", "2", "--restart", "2", "--journal", path, "sh", "-c", script];
    let ended = Job::new(words).env("TRACEPARENT", PARENT).env("TRACESTATE", "vendor=1").run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let stdout = ended.stdout_text();
    let told: BTreeSet<&str> = stdout.lines().filter_map(|line| line.strip_prefix("parent ")).collect();
    let spans = spans(&journal);
    // A rank of the first attempt may have been ended before it wrote.
    let exported: BTreeSet<String> = named(&spans, "rank")
        .iter()
        .map(|span| {
            let id = |key: &str| span[key].as_str().expect("hex").to_owned();
            format!("00-{}-{}-01 vendor=1", id("traceId"), id("spanId"))
        })
        .collect();
    assert!(told.len() >= 3 && told.iter().all(|told| exported.contains(*told)), "{told:?} {exported:?}");
    let [root] = named(&spans, "job")[..] else { panic!("one root: {spans:?}") };
    assert_eq!((&root["parentSpanId"], &root["traceState"]), (&"00f067aa0ba902b7".into(), &"vendor=1".into()));
    let attempts = named(&spans, "attempt");
    assert_eq!(attempts.len(), 2);
    assert_eq!(attempts[0]["status"]["message"], "rank 1 failed: exited with code 3");
    assert!(attempts[1].get("status").is_none(), "{}", attempts[1]);
    assert_eq!(attempts[1]["links"][0]["spanId"], attempts[0]["spanId"]);
    fs::remove_dir_all(&directory).expect("the directory is ours");
}

#[test]
fn without_a_journal_a_rank_has_the_variables_of_its_job() {
    let script = "echo $TRACEPARENT $TRACESTATE";
    let job = || Job::new(["-n", "1", "sh", "-c", script]).env_remove("RANKRUN_JOURNAL");
    let outer = job().env("TRACEPARENT", PARENT).env("TRACESTATE", "vendor=1").run();
    assert_eq!(outer.stdout_text(), format!("{PARENT} vendor=1\n"));
    assert_eq!(job().run().stdout_text().trim(), "");
}

/// The id of a job, from the list of all.
fn id(running: &Running) -> String {
    let found = wait_until(BOUND, || listed_job(running.front()));
    found.expect("the job is in the list")
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn metrics_replace_a_file_as_a_whole() {
    let script = r#": '"\'; : > $RANKRUN_TEST_DIR/$RANKRUN_RANK.up; exec sleep 1000"#;
    let running = Job::new(["-n", "2", "sh", "-c", script]).start();
    ["0.up", "1.up"].iter().for_each(|name| running.wait_for_file(name));
    let job = id(&running);
    let up = |rank: u32| format!("rankrun_rank_up{{job=\"{job}\",group=\"0\",rank=\"{rank}\"}} 1\n");
    let is_whole = wait_until(BOUND, || {
        let text = text(&ask(&["status", &job, "--prometheus"]));
        (text.contains(&up(0)) && text.contains(&up(1))).then_some(())
    });
    assert!(is_whole.is_some(), "both ranks run");
    let all = text(&ask(&["status", "--prometheus"]));
    assert!(all.contains(&format!("rankrun_job_ranks{{job=\"{job}\",state=\"running\"}} 2\n")), "{all}");
    assert!(all.contains(r#"sh -c : '\"\\'; : > $RANKRUN_TEST_DIR/"#), "{all}");
    assert!(!all.contains("rankrun_rank_"), "{all}");
    assert!(text(&ask(&["status", "--prometheus", "--ranks"])).contains(&up(1)));

    let directory = scratch();
    let file = directory.join("rankrun.prom");
    fs::write(&file, "old").expect("the directory is ours");
    let path = file.to_str().expect("a path of text");
    let before = fs::File::open(&file).expect("it is there");
    assert_eq!(text(&ask(&["status", &job, "--prometheus", "--output", path])), "");
    assert!(fs::read_to_string(&file).expect("it is there").contains(&up(0)));
    assert_eq!(std::io::read_to_string(before).expect("it was open"), "old", "a reader has the one or the other");
    let names: Vec<_> = fs::read_dir(&directory).expect("ours").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["rankrun.prom"], "nothing is left beside it");
    let refused = ask(&["status", "--prometheus", "--output", "/nonexistent/rankrun.prom"]);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(2), 0));
    fs::remove_dir_all(&directory).expect("the directory is ours");
    let stopped = ask(&["stop", &job]);
    assert!(stopped.status.success() || stopped.status.code() == Some(143), "{stopped:?}");
    running.finish(BOUND);
}
