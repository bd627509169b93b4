//! What the caller of rankrun had done to its signals and limits must not break rankrun, and the ranks get it as it was.

use std::fs;
use std::time::Duration;

use rankrun_tests::{Ended, Job, rankrun, wait_until};

const BOUND: Duration = Duration::from_secs(20);

/// Runs rankrun below a program that execs it, such as `env --ignore-signal=CHLD`.
fn below(prefix: &[&str], arguments: &[&str]) -> Ended {
    let rankrun = rankrun().display().to_string();
    let words = prefix[1..].iter().copied().chain([rankrun.as_str()]).chain(arguments.iter().copied());
    Job::of_program(prefix[0], words).bound(BOUND).run()
}

/// Runs rankrun with a limit on the size of files, in units of 512 bytes (dash) or 1024 (bash): both are far exceeded.
fn with_file_size(limit: u32, arguments: &[&str]) -> Ended {
    below(&["sh", "-c", &format!("ulimit -f {limit}; exec \"$@\""), "sh"], arguments)
}

#[test]
fn a_caller_that_ignores_the_end_of_its_children_gets_the_exit_code() {
    let ended = below(&["env", "--ignore-signal=CHLD"], &["-n", "2", "sh", "-c", "sleep 0.2; exit 3"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    let ended = below(&["env", "--ignore-signal=CHLD"], &["-n", "2", "true"]);
    assert_eq!((ended.code, ended.stderr_text()), (Some(0), String::new()));
}

#[test]
fn ranks_start_with_the_signals_of_the_caller_ignored_and_no_others() {
    let ignored = |option: &[&str]| -> u64 {
        let prefix: Vec<&str> = ["env"].iter().chain(option).copied().collect();
        let ended = below(&prefix, &["-n", "1", "grep", "SigIgn", "/proc/self/status"]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
        let text = ended.stdout_text();
        let mask = text.split_whitespace().last().unwrap_or_default();
        // Beyond 31 are real-time signals, some of which belong to libc.
        u64::from_str_radix(mask, 16).unwrap_or_else(|_| panic!("no mask: {text}")) & 0x7fff_ffff
    };
    let all = "--ignore-signal=HUP,INT,USR1,PIPE,ALRM,CHLD,TSTP,XFSZ";
    assert_eq!(ignored(&["--default-signal"]), 0);
    let bit = |number: u32| 1 << (number - 1);
    let expected = [1, 2, 10, 13, 14, 17, 20, 25].into_iter().map(bit).sum::<u64>();
    assert_eq!(ignored(&["--default-signal", all]), expected);
}

#[test]
fn a_limit_on_the_size_of_files_costs_neither_the_exit_code_nor_the_report() {
    for limit in [1, 8, 16] {
        let ended = with_file_size(limit, &["-n", "8", "false"]);
        assert_eq!((ended.code, ended.signal), (Some(1), None), "{limit}: {}", ended.stderr_text());
        assert!(ended.stderr_text().contains("exited with code 1"), "{limit}: {}", ended.stderr_text());
        let ended = with_file_size(limit, &["-n", "2", "true"]);
        assert_eq!(ended.code, Some(0), "{limit}: {}", ended.stderr_text());
        // What rankrun could not write itself is said, and nothing else.
        assert!(ended.stderr_text().lines().all(|line| line.ends_with("File too large")), "{}", ended.stderr_text());
    }
}

#[test]
fn a_log_file_beyond_the_limit_on_the_size_of_files_is_told_and_the_ranks_end() {
    let logs = tempfile::tempdir().expect("the temporary directory can be written");
    let directory = logs.path().display().to_string();
    let ended = with_file_size(16, &["-n", "2", "--log-dir", &directory, "--drain", "1s", "seq", "20000"]);
    assert_eq!(ended.signal, None, "{}", ended.stderr_text());
    assert!(!matches!(ended.code, None | Some(121 | 123 | 153)), "{:?}: {}", ended.code, ended.stderr_text());
    assert!(!ended.stderr_text().is_empty(), "nothing is said of the log file that is cut short");
}

#[test]
fn output_beyond_the_limit_on_the_size_of_files_is_not_lost() {
    // More than the memory takes, into a pipe that is not read for a while.
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe can be made");
    let rankrun = rankrun().display().to_string();
    let script = "ulimit -f 16; exec \"$@\"";
    let arguments = ["-c", script, "sh", &rankrun, "-n", "2", "seq", "-f", "%0100.0f", "60000"];
    let running = Job::of_program("sh", arguments).stdout(writer).start();
    // The ranks fill the pipe and all that waits behind it.
    let full = || rustix::io::ioctl_fionread(&reader).is_ok_and(|bytes| bytes >= 60_000).then_some(());
    wait_until(BOUND, full).expect("the pipe fills");
    let mut lines = 0;
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = rustix::io::read(&reader, &mut buffer) {
        lines += buffer[..count].iter().filter(|byte| **byte == b'\n').count();
    }
    let ended = running.finish(BOUND);
    assert_eq!((ended.code, ended.signal), (Some(0), None), "{}", ended.stderr_text());
    assert_eq!(lines, 120_000);
}

#[test]
fn a_rank_beyond_the_limit_on_the_size_of_files_dies_of_it() {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let file = directory.path().join("large").display().to_string();
    let ended = with_file_size(8, &["-n", "1", "sh", "-c", "exec seq 100000 > \"$0\"", &file]);
    assert_eq!(ended.code, Some(128 + 25), "{}", ended.stderr_text());
    assert!(fs::metadata(&file).is_ok_and(|meta| meta.len() > 0));
}
