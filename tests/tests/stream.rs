//! The stream between front and agent: it takes a job of any size, and one stream of output never waits for the other.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rankrun_tests::lines::{Faults, Fill, check, line};
use rankrun_tests::{Job, Running, compile, helper, monotonic, processes, rankrun, skip, wait_until};

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
    reader.read_to_end(&mut output).expect("a pipe can be read");
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

/// A job whose spool is on a disk that hangs at `what`: rank 0 writes `count` lines of 83 bytes, and rank 1 exits with 3 as
/// soon as there is a file `go` in `control`. `None` if such a disk cannot be had here.
fn on_a_disk_that_hangs(
    what: &str,
    control: &Path,
    count: usize,
    options: &[&str],
    stdout: OwnedFd,
) -> Option<Running> {
    if !rustix::process::geteuid().is_root() {
        skip("only root can have a disk that hangs");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/hang_disk.c");
    let disk = compile("cc", &["-O1", "-Wall"], &source, "hang_disk");
    let (program, rankrun) = (helper("lines"), rankrun().display().to_string());
    let (control, count) = (control.display().to_string(), count.to_string());
    let late = "while [ ! -e \"$0/go\" ]; do sleep 0.05; done; exit 3";
    let mut words = vec!["/tmp/rankrun-0", &control, what, &rankrun];
    words.extend(options);
    words.extend(["-n", "1", &program, &count, "83", ":", "-n", "1", "sh", "-c", late, &control]);
    Some(Job::of_program(disk, words).bound(BOUND).stdout(stdout).start())
}

fn wait_for(path: &Path) {
    assert!(wait_until(BOUND, || path.exists().then_some(())).is_some(), "\"{}\" did not come", path.display());
}

fn ranks_are_gone(running: &Running) -> bool {
    let is_rank = |name: &str| ["lines", "sh", "sleep"].contains(&name);
    let left = || running.processes().into_iter().any(|process| is_rank(&process.name) && process.state != 'Z');
    wait_until(Duration::from_secs(5), || (!left()).then_some(())).is_some()
}

#[test]
fn a_spool_on_a_disk_that_hangs_does_not_hold_up_the_end_of_the_job() {
    let control = tempfile::tempdir().expect("a directory");
    let report = control.path().join("report");
    let report_word = report.display().to_string();
    let (mut reader, writer) = std::io::pipe().expect("a pipe can be made");
    // Longer than any lease: an agent that waited for the disk would be killed.
    let options = ["--drain", "7s", "--report-dir", &report_word];
    let Some(running) = on_a_disk_that_hangs("open", control.path(), 300_000, &options, writer.into()) else { return };
    wait_for(&control.path().join("hangs"));
    std::fs::write(control.path().join("go"), "").expect("a file can be made");
    let gone = ranks_are_gone(&running);
    let ended = running.finish(BOUND);
    assert!(gone, "the ranks are still there");
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    let mut output = Vec::new();
    reader.read_to_end(&mut output).expect("a pipe can be read");
    let kept = std::fs::read(report.join("unwritten.stdout")).expect("what the pipe did not take is kept");
    // Everything that rank 0 could write is there, in one of the two or, from a write that was under way, in both.
    let expected: Vec<u8> = (0..300_000).flat_map(|number| line(0, number, 83, Fill::Text)).collect();
    let from = expected.windows(200).position(|window| kept.starts_with(window)).expect("the kept part is whole");
    assert!(expected.starts_with(&output) && expected[from..].starts_with(&kept), "lines are lost");
    assert!(from <= output.len() && kept.len() > 1 << 20, "{} bytes, and from {from} on {}", output.len(), kept.len());
}

#[test]
fn output_on_a_disk_that_hangs_for_a_while_arrives_when_it_answers_again() {
    let control = tempfile::tempdir().expect("a directory");
    let (mut reader, writer) = std::io::pipe().expect("a pipe can be made");
    let Some(running) = on_a_disk_that_hangs("read", control.path(), 300_000, &[], writer.into()) else { return };
    // Nobody reads before rank 0 has ended: what it wrote is on the disk.
    let writes = || running.processes().iter().any(|process| process.name == "lines" && process.state != 'Z');
    assert!(wait_until(BOUND, || writes().then_some(())).is_some(), "rank 0 does not come up");
    assert!(wait_until(BOUND, || (!writes()).then_some(())).is_some(), "the spool does not take it");
    std::fs::write(control.path().join("armed"), "").expect("a file can be made");
    let collector = std::thread::spawn(move || {
        let mut output = Vec::new();
        reader.read_to_end(&mut output).map(|_| output)
    });
    wait_for(&control.path().join("hangs"));
    std::fs::write(control.path().join("go"), "").expect("a file can be made");
    let gone = ranks_are_gone(&running);
    let has_ended = running.front_ended().is_some();
    std::fs::write(control.path().join("thaw"), "").expect("a file can be made");
    let ended = running.finish(BOUND);
    let output = collector.join().expect("the reader").expect("a pipe can be read");
    assert!(gone && !has_ended, "the ranks end, and the job waits for their output");
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    assert_eq!(check(&output, 1, 300_000, 83, Fill::Text), Faults::default());
}

#[test]
fn a_spool_that_cannot_be_read_again_is_reported_as_what_it_is() {
    let (running, mut reader) = stdout_then_stderr(400_000, 1, &[]);
    // 33 MB wait: some in pipes and memory, the rest in unlinked files of the agent.
    let files = wait_until(BOUND, || {
        let directory = std::fs::read_dir(format!("/proc/{}/fd", running.agent())).ok()?;
        let links = directory.flatten().map(|entry| entry.path());
        let is_spool = |path: &std::path::PathBuf| {
            std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().ends_with("(deleted)"))
                && std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() > 1 << 20)
        };
        let files: Vec<_> = links.filter(is_spool).collect();
        (!files.is_empty()).then_some(files)
    });
    for file in files.expect("the spool is on disk") {
        std::fs::OpenOptions::new().write(true).open(file).and_then(|file| file.set_len(0)).expect("it is cut short");
    }
    let mut output = Vec::new();
    reader.read_to_end(&mut output).expect("a pipe can be read");
    let ended = running.finish(BOUND);
    let text = ended.stderr_text();
    assert!(text.contains("cannot read spooled output"), "{text}");
    assert!(!text.contains("was lost: its agent"), "{text}");
    assert_eq!(ended.code, Some(125), "{text}");
}
