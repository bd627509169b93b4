//! `--drain`: what is lost, kept and said when a destination takes no output, and how soon the job ends then.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rankrun_tests::{Ended, Job, compile, rankrun, skip};

/// The drain of these jobs, a few seconds, and a margin for a busy machine.
const BOUND: Duration = Duration::from_secs(14);
/// What each of four ranks writes: more than a small disk and the memory behind it take, and little enough to be written within --drain
/// on a busy machine.
const LINES: u32 = 100_000;

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip("only root can mount a file system");
    }
    is_root
}

/// Ranks write so many numbered lines each, with their log files on a disk of 300 KiB that is mounted for them alone.
fn on_a_small_disk(lines: u32, options: &[&str], has_report: bool) -> Ended {
    let script = r#"mkdir "$RANKRUN_TEST_DIR/disk" && mount -t tmpfs -o size=300k none "$RANKRUN_TEST_DIR/disk" &&
        exec "$0" --log-dir "$RANKRUN_TEST_DIR/disk/logs" ${REPORT:+--report-dir "$RANKRUN_TEST_DIR/$REPORT"} "$@""#;
    let rankrun = rankrun().display().to_string();
    let command = format!("exec seq -f \"$RANKRUN_RANK %.0f\" {lines}");
    let mut words = vec!["-m", "sh", "-c", script, &rankrun, "-n", "4", "--grace", "1s", "--output", "line"];
    words.extend(options);
    words.extend(["sh", "-c", &command]);
    let report = if has_report { "disk/report" } else { "" };
    Job::of_program("unshare", words).env("REPORT", report).start().finish(BOUND)
}

/// The ranks have written everything before the log files are given up, and stdout is well: it gets every line.
fn assert_complete(ended: &Ended, lines: usize) {
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(125), "{text}");
    assert!(text.contains("gave up log files"), "{text}");
    assert!(text.contains("could not write output for longer than --drain"), "{text}");
    assert!(!text.contains("  output "), "{text}");
    // The beginning of a line that was not finished for a while is marked, and the whole line comes later.
    let whole = ended.stdout_text().lines().filter(|line| !line.ends_with(" […]")).count();
    assert_eq!(whole, lines, "{text}");
}

#[test]
fn a_full_disk_of_log_files_costs_no_line_on_stdout() {
    if is_root() {
        assert_complete(&on_a_small_disk(LINES, &["--drain", "3s"], false), 4 * LINES as usize);
    }
}

#[test]
fn log_files_and_report_on_one_full_disk_end_the_job_in_time() {
    if !is_root() {
        return;
    }
    let ended = on_a_small_disk(LINES, &["--drain", "3s"], true);
    assert_complete(&ended, 4 * LINES as usize);
    assert!(ended.stderr_text().contains("cannot write the report"), "{}", ended.stderr_text());
}

#[test]
fn no_drain_at_all_is_enough_for_a_destination_that_takes_output() {
    for _ in 0..20 {
        let ended = Job::new(["-n", "3", "--drain", "0", "--output", "line", "seq", "20000"]).run();
        assert_eq!((ended.code, ended.stderr_text()), (Some(0), String::new()));
        assert_eq!(ended.stdout_text().lines().count(), 60_000);
    }
}

#[test]
fn a_spool_that_can_never_be_read_again_ends_the_job_in_time_and_is_no_success() {
    if !is_root() {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/hang_disk.c");
    let hang_disk = compile("cc", &["-O1", "-Wall"], &source, "hang_disk");
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let control = directory.path().to_str().expect("text").to_owned();
    let rankrun = rankrun().display().to_string();
    // Nobody reads until the rank has written all, for which memory has no room; then the spool is to be read.
    let slow = r#"exec "$@" | { until test -e "$RANKRUN_TEST_DIR/read"; do sleep 0.05; done; exec cat; }"#;
    let ranks = format!(
        r#"yes 0123456789012345678901234567890123456789 | head -c 8000000; touch "{control}/armed" "$RANKRUN_TEST_DIR/read""#
    );
    let words = ["/tmp/rankrun-0", &control, "read", "bash", "-o", "pipefail", "-c", slow, "x", &rankrun, "-n", "1"];
    let options = ["--drain", "2s", "--grace", "1s", "--output", "line", "--spool", "1G", "sh", "-c", &ranks];
    let job = Job::of_program(hang_disk, [&words[..], &options].concat()).env_remove("XDG_RUNTIME_DIR");
    let ended = job.start().finish(BOUND);
    let text = ended.stderr_text();
    assert!(directory.path().join("hangs").exists(), "the disk was not read: {text}");
    assert_eq!(ended.code, Some(125), "{text}");
    assert!(text.contains("could not write output") && text.contains("is lost"), "{text}");
}

#[test]
fn root_writes_no_report_below_the_state_directory_of_another_user() {
    if !is_root() {
        return;
    }
    let home = tempfile::tempdir().expect("the temporary directory can be written");
    let state = home.path().join(".local/state");
    fs::create_dir_all(&state).expect("the directory is ours");
    chown(home.path(), Some(65534), Some(65534)).expect("root may");
    // Below a home of another user everything may be replaced by them, also what is root's.
    for owner in [65534, 0] {
        chown(&state, Some(owner), Some(owner)).expect("root may");
        for (name, value) in [("XDG_STATE_HOME", state.as_path()), ("HOME", home.path())] {
            let job = Job::new(["-n", "2", "sh", "-c", "exit 3"]).env_remove("XDG_STATE_HOME");
            let ended = job.env(name, value).run();
            let text = ended.stderr_text();
            assert_eq!(ended.code, Some(3), "{text}");
            assert_eq!(text.matches("belongs to another user; see --report-dir").count(), 1, "{text}");
            assert!(!state.join("rankrun").exists(), "{text}");
        }
    }
}

#[test]
fn a_reader_that_reads_nothing_and_a_dead_report_directory_end_the_job_in_time() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/dead_fs.c");
    let dead_fs = compile("cc", &["-O1", "-Wall"], &source, "dead_fs").display().to_string();
    let dead = tempfile::tempdir().expect("the temporary directory can be written");
    let dead = dead.path().to_str().expect("text");
    let probe = Command::new(&dead_fs).args([dead, "true"]).output().expect("the program can be started");
    if !probe.status.success() {
        return skip("no FUSE file system can be mounted");
    }
    let (reader, writer) = std::io::pipe().expect("a pipe can be made");
    let rankrun = rankrun().display().to_string();
    let script = r#"mkdir "$RANKRUN_TEST_DIR/logs" && ln -s "$1/x" "$RANKRUN_TEST_DIR/logs/rank-0000.stdout" &&
        exec "$0" "$1" "$2" --log-dir "$RANKRUN_TEST_DIR/logs" --report-dir "$1" -n 2 --drain 1s --output line seq 100000"#;
    let ended = Job::of_program("sh", ["-c", script, &dead_fs, dead, &rankrun]).stdout(writer).start().finish(BOUND);
    drop(reader);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(125), "{text}");
    assert!(text.contains("gave up log files") && text.contains("is lost"), "{text}");
    assert!(text.contains("cannot write the report"), "{text}");
}
