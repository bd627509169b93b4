//! The journal of a job comes to the same report again, byte for byte, for each class of failure.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rankrun_core::evidence::Class;
use rankrun_core::report::Report;
use rankrun_tests::{Ended, Job, Running, helper, processes, rankrun, scratch};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(60);

/// Runs a job with a journal, lets `event` happen, and compares its report with that of the journal.
fn check(class: Class, options: &[&str], command: &[&str], event: impl FnOnce(&Running)) -> Ended {
    let directory = scratch();
    let journal = directory.join("journal");
    let text = |path: &Path| path.to_str().expect("a path of text").to_owned();
    let mut words: Vec<String> =
        vec!["--journal".to_owned(), text(&journal), "--report-dir".to_owned(), text(&directory)];
    words.extend(options.iter().chain(command).map(|&word| word.to_owned()));
    let running = Job::new(words).start();
    event(&running);
    let ended = running.finish(BOUND);
    let json = fs::read_to_string(directory.join("report.json")).expect("a report is written");
    let report: Report = serde_json::from_str(&json).expect("the report has our form");
    assert_eq!(report.class, Some(class), "{}", ended.stderr_text());
    let replayed = Command::new(rankrun()).arg("replay").arg(&journal).output().expect("rankrun can be started");
    let (again, complaints) = (String::from_utf8_lossy(&replayed.stdout), String::from_utf8_lossy(&replayed.stderr));
    assert!(replayed.status.success() && complaints.is_empty(), "{complaints}");
    assert!(again.starts_with("rankrun: "), "{again}");
    let then = ended.stderr_text();
    assert!(then.ends_with(&*again), "then: {then}\nnow: {again}");
    fs::remove_dir_all(&directory).expect("the directory is ours");
    ended
}

/// A job that needs nothing to happen from outside.
fn check_alone(class: Class, options: &[&str], command: &[&str]) {
    check(class, options, command, |_| ());
}

#[test]
fn failures_of_ranks_are_replayed() {
    let traceback = r#"printf 'Traceback (most recent call last):\n  File "a.py", line 5, in f\nValueError: no data\377\n' >&2; exit 1"#;
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let bad = directory.path().join("bad");
    fs::write(&bad, "#!/\n").expect("the directory is ours");
    fs::set_permissions(&bad, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    let pmi = helper("pmi_client");
    let talk = helper("talk");
    check_alone(Class::ExitCode, &["-n", "3"], &["sh", "-c", "echo bye >&2; exit $((RANKRUN_RANK + 3))"]);
    check_alone(Class::Exception, &["-n", "2"], &["sh", "-c", traceback]);
    check_alone(Class::Signal, &["-n", "2"], &["sh", "-c", "test $RANKRUN_RANK = 0 || kill -SEGV $$; exec sleep 100"]);
    check_alone(Class::SpawnFailed, &["-n", "2"], &[bad.to_str().expect("a path of text")]);
    check_alone(Class::Abort, &["-n", "2"], &[&pmi, "--fate", "abort=7"]);
    check_alone(Class::Abort, &["-n", "2", "--grace", "1s"], &[&talk, "abort", "1", "5"]);
    check_alone(Class::ExitWithoutFinalize, &["-n", "2", "--grace", "1s"], &[&pmi, "--fate", "leave=0"]);
    check_alone(Class::ExitBeforeInit, &["-n", "2", "--grace", "1s"], &[&pmi, "--fate", "before-init=0"]);
    check_alone(Class::StuckInFinalize, &["-n", "2", "--grace", "1s"], &[&talk, "exiting", "1", "3"]);
    let script = r#""$0" thread 3 0; test $RANKRUN_RANK = 0 || exit 4; exec sleep 100"#;
    check_alone(Class::ExitCode, &["-n", "2", "--grace", "1s"], &["sh", "-c", script, &talk]);
}

#[test]
fn a_rank_that_is_stuck_in_its_exit_handlers_is_replayed() {
    // If two did so, the stop after the grace of the one could end the other before its own grace is over.
    let hangs = "import atexit, os, time; os.environ['RANKRUN_RANK'] == '0' or time.sleep(100)
atexit.register(time.sleep, 100); raise ValueError('no data')";
    check_alone(
        Class::StuckInExitHandlers,
        &["-n", "2", "--exit-grace", "1s", "--grace", "1s"],
        &["python3", "-c", hangs],
    );
}

#[test]
fn ends_from_outside_are_replayed() {
    let sleep = ["-n", "2", "--grace", "1s"];
    let tree = helper("tree");
    check_alone(Class::Timeout, &["-n", "2", "--timeout", "300ms"], &["sleep", "100"]);
    let ended = check(
        Class::Timeout,
        &["-n", "1", "--timeout", "3s"],
        &["python3", "-I", "-c", "import time; time.sleep(100)"],
        |_| (),
    );
    assert!(ended.stderr_text().contains("  hook  "), "{}", ended.stderr_text());
    let interrupted = check(Class::Interrupted, &sleep, &[&tree], |running| {
        running.wait_for_ranks(2);
        processes::send(running.front(), Signal::TERM);
    });
    assert!(interrupted.signal == Some(15) || interrupted.code == Some(143));
    check(Class::Stopped, &sleep, &[&tree], |running| {
        running.wait_for_ranks(2);
        let leader = running.wait_for_text("0.leader");
        processes::send(leader.trim().parse().expect("a pid"), Signal::STOP);
    });
    for is_guard in [false, true] {
        check(Class::LauncherLost, &sleep, &[&tree], |running| {
            running.wait_for_ranks(2);
            processes::send(if is_guard { running.guard() } else { running.agent() }, Signal::KILL);
        });
    }
}

#[test]
fn a_journal_that_cannot_be_written_is_named_before_anything_starts() {
    let ended = Job::new(["--journal", "/proc/none/journal", "-n", "2", "true"]).run();
    assert_eq!(
        (ended.code, ended.stderr_text().as_str()),
        (Some(2), "error: cannot write the journal to \"/proc/none/journal\": No such file or directory\n")
    );
}

#[test]
fn what_is_no_journal_is_refused() {
    let directory = scratch();
    let file = directory.join("journal");
    let replay = || {
        let output = Command::new(rankrun()).arg("replay").arg(&file).output().expect("rankrun can be started");
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(replay().starts_with("error: cannot read the journal"));
    for (text, told) in [
        ("", "has no end"),
        ("x\n", "line 1"),
        (r#"{"v":3,"at":0,"event":{"gap":{"events":1}}}"#, "line 1"),
        (r#"{"v":1,"at":0,"event":"else"}"#, "version 1"),
    ] {
        fs::write(&file, text).expect("the directory is ours");
        assert!(replay().contains(told), "{text}");
    }
    fs::remove_dir_all(&directory).expect("the directory is ours");
}
