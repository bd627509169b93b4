//! The stream between front and agent: it takes a job of any size, and one stream of output never waits for the other.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rankrun_tests::lines::{Faults, Fill, check, line};
use rankrun_tests::{Job, Running, helper, monotonic, processes, wait_until};

const BOUND: Duration = Duration::from_secs(20);

#[test]
fn a_job_with_a_megabyte_of_arguments_and_environment_starts() {
    for _ in 0..3 {
        let arguments: Vec<String> = (0..5_000).map(|number| format!("{number:0100}")).collect();
        let mut job =
            Job::new(["-n", "2", "true"].into_iter().chain(arguments.iter().map(String::as_str))).bound(BOUND);
        for number in 0..6 {
            job = job.env(&format!("RANKRUN_TEST_LARGE_{number}"), "x".repeat(100_000));
        }
        let ended = job.run();
        assert_eq!((ended.code, ended.stderr_text()), (Some(0), String::new()));
    }
}

/// A rank that writes `stdout` lines to stdout, and then `stderr` lines to stderr; and rankrun's stdout, which nobody reads.
fn stdout_then_stderr(stdout: usize, stderr: usize, options: &[&str]) -> (Running, std::io::PipeReader) {
    let (reader, writer) = std::io::pipe().expect("a pipe can be made");
    let both = format!("\"$0\" {stdout} 83 && \"$0\" {stderr} 83 --stderr");
    let program = helper("lines");
    let words = options.iter().copied().chain(["-n", "1", "sh", "-c", &both, &program]);
    (Job::new(words).bound(BOUND).stdout(OwnedFd::from(writer)).start(), reader)
}

fn wait_for_line(running: &Running, last: &[u8]) -> bool {
    wait_until(BOUND, || running.stderr_so_far().windows(last.len()).any(|window| window == last).then_some(()))
        .is_some()
}

#[test]
fn stderr_arrives_while_nobody_reads_stdout() {
    let (running, mut reader) = stdout_then_stderr(100_000, 50_000, &[]);
    let arrived = wait_for_line(&running, &line(0, 49_999, 83, Fill::Text));
    let mut output = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut output).expect("a pipe can be read");
    let ended = running.finish(BOUND);
    assert!(arrived, "stderr has waited for stdout");
    assert_eq!(ended.code, Some(0));
    assert_eq!(check(&output, 1, 100_000, 83, Fill::Text), Faults::default());
    assert_eq!(check(&ended.stderr, 1, 50_000, 83, Fill::Text), Faults::default());
}

#[test]
fn stderr_arrives_while_a_rank_waits_with_its_stdout() {
    // Without a place on disk, rank 0 comes to rest in a write to stdout. Rank 1 starts to write when that is so.
    let (reader, writer) = std::io::pipe().expect("a pipe can be made");
    let program = helper("lines");
    let late = "while [ ! -e \"$1\" ]; do sleep 0.05; done; exec \"$0\" 20000 83 --stderr";
    let go = std::env::temp_dir().join(format!("rr-go-{}", std::process::id()));
    let go_word = go.display().to_string();
    let words =
        ["--spool", "0", "-n", "1", &program, "1000000", "83", ":", "-n", "1", "sh", "-c", late, &program, &go_word];
    let running = Job::new(words).bound(BOUND).stdout(OwnedFd::from(writer)).start();
    let mut last = (0, monotonic());
    let rests = wait_until(BOUND, || {
        let writers = running.processes().into_iter().filter(|process| process.name == "lines");
        let written: u64 = writers.map(|process| processes::written(process.pid)).sum();
        if written != last.0 {
            last = (written, monotonic());
        }
        (written > 1 << 20 && monotonic() - last.1 > Duration::from_millis(300)).then_some(())
    });
    std::fs::write(&go, "").expect("a file can be made");
    let arrived = wait_for_line(&running, &line(1, 19_999, 83, Fill::Text));
    std::fs::remove_file(&go).expect("it is ours");
    drop(reader);
    running.finish(BOUND);
    assert!(rests.is_some(), "rank 0 writes on");
    assert!(arrived, "stderr has waited for stdout");
}
