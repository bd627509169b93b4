//! The report: what its text says besides the headline, and where it is kept.

use std::fs;

use rankrun_core::report::Report;
use rankrun_tests::{Job, rankrun, scratch, skip};

/// A rank that prints its failure and ends; the others wait.
const FAIL: &str = r#"test $RANKRUN_RANK = 1 || exec sleep 100; printf 'a line\nValueError: no data\n' >&2; exit 3"#;

#[test]
fn what_the_culprit_wrote_is_quoted_unless_it_stands_right_above() {
    let ended = Job::new(["-n", "2", "sh", "-c", FAIL]).run();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(3), "{text}");
    assert_eq!(text.matches("ValueError: no data").count(), text.matches("failed: ValueError").count() + 1, "{text}");
    for option in ["--output=none", "--only=0", "--output=grouped"] {
        let text = Job::new(["-n", "2", option, "sh", "-c", FAIL]).run().stderr_text();
        assert!(text.contains("    | ValueError: no data\n"), "{option}: {text}");
    }
    // What others write afterwards pushes it off the screen.
    let flood = r#"trap 'for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do echo bye; done >&2; exit 1' TERM; while :; do sleep 0.01; done"#;
    let script = FAIL.replace("exec sleep 100", &format!("{{ {flood}; }}"));
    let barrier = format!("touch $0.$RANKRUN_RANK; while test ! -e $0.0; do sleep 0.01; done; {script}");
    let directory = scratch();
    let base = directory.join("up").display().to_string();
    let text = Job::new(["-n", "2", "sh", "-c", &barrier, &base]).run().stderr_text();
    assert!(text.contains("bye\n") && text.contains("    | ValueError: no data\n"), "{text}");
    fs::remove_dir_all(&directory).expect("the directory is ours");
}

#[test]
fn the_core_of_a_rank_that_crashed_is_named() {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.starts_with('|') || pattern.contains('/') || pattern.trim().is_empty() {
        return skip("cores do not go to the working directory here");
    }
    let directory = scratch();
    let report = directory.join("report");
    let script = "ulimit -c unlimited && exec \"$0\" \"$@\"";
    let crash = "test $RANKRUN_RANK = 1 && kill -SEGV $$; exec sleep 100";
    let rankrun = rankrun().display().to_string();
    let (place, wdir) = (report.display().to_string(), directory.display().to_string());
    let command = ["-c", script, &rankrun, "-n", "2", "--report-dir", &place, "--wdir", &wdir, "sh", "-c", crash];
    let ended = Job::of_program("sh", command).run();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(128 + 11), "{text}");
    let core = fs::read_dir(&directory).expect("it is ours").flatten().map(|entry| entry.path());
    let core = core.filter(|path| path.is_file()).map(|path| path.display().to_string()).next();
    let Some(core) = core else { return skip("the kernel writes no core here") };
    assert!(text.contains(&format!("\n  core      {core}\n")), "{text}");
    assert!(text.contains(&format!("\n  next      gdb sh {core}\n")), "{text}");
    assert!(text.contains("\n            retry with --tty 1 --wrap '1:gdb --args'\n"), "{text}");
    let json = fs::read_to_string(report.join("report.json")).expect("a report is written");
    let kept: Report = serde_json::from_str(&json).expect("the report has our form");
    assert_eq!(kept.next.len(), 2, "{:?}", kept.next);
    fs::remove_dir_all(&directory).expect("the directory is ours");
}
