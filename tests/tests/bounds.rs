//! Every wait of the front has a bound (K-5): guard and agent that are both stopped, file systems that never answer,
//! log files that are none, threads that cannot be started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rankrun_tests::{Job, Tier, User, compile, helper, processes, rankrun, skip, wait_until};
use rustix::process::Signal;

/// The longest that a job of these tests may last.
const BOUND: Duration = Duration::from_secs(30);

/// What may pass between a stop of guard and agent and the end of the job.
const STOPPED: Duration = Duration::from_secs(12);

fn program(name: &str) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("c/{name}.c"));
    compile("cc", &["-O1", "-Wall"], &source, name).into_os_string().into_string().expect("a path of text")
}

/// A directory, and in it `dead`, a file system that never answers, for the jobs that are started through the words.
fn dead_file_system() -> Option<(tempfile::TempDir, PathBuf, Vec<String>)> {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let dead = directory.path().join("dead");
    fs::create_dir(&dead).expect("the directory is ours");
    let words = vec![program("dead_fs"), dead.to_str().expect("a path of text").to_owned()];
    let probe = Command::new(&words[0]).args([&words[1], "true"]).output().expect("the program can be started");
    if !probe.status.success() {
        skip(&format!("no FUSE file system can be mounted: {}", String::from_utf8_lossy(&probe.stderr)));
        return None;
    }
    Some((directory, dead, words))
}

/// rankrun, started through other words.
fn through(words: &[String], arguments: &[&str]) -> Job {
    let rest = words[1..].iter().cloned().chain([rankrun().to_str().expect("a path of text").to_owned()]);
    Job::of_program(&words[0], rest.chain(arguments.iter().map(|&argument| argument.to_owned())))
}

fn stop(pid: i32) {
    processes::send(pid, Signal::STOP);
    let stopped = || processes::process(pid).filter(|process| process.state == 'T').map(|_| ());
    wait_until(BOUND, stopped).expect("the process is stopped");
}

/// Stops the agent and kills the guard as soon as there are both, which is before the agent has said a word.
const EARLY: &str = r#""$0" -n 1 sleep 3 & front=$!
while [ -z "$agent" ]; do
  guard=; read -r guard _ < /proc/$front/task/$front/children
  [ -n "$guard" ] && read -r agent _ < /proc/$guard/task/$guard/children
done 2> /dev/null
kill -STOP $agent; kill -KILL $guard; wait $front"#;

#[test]
fn an_agent_that_is_stopped_when_its_guard_is_killed_ends_the_job_however_early() {
    for tier in Tier::available() {
        for _ in 0..4 {
            let job = Job::of_program("bash", ["-c", EARLY, rankrun().to_str().expect("text")]).tier(tier);
            let ended = job.bound(STOPPED).run();
            assert!([Some(121), Some(125)].contains(&ended.code), "{tier:?}: {}", ended.stderr_text());
        }
    }
}

#[test]
fn a_job_whose_guard_and_agent_are_stopped_ends() {
    for tier in Tier::available() {
        let running = Job::new(["-n", "2", "--grace", "1s", &helper("tree")]).tier(tier).start();
        running.wait_for_ranks(2);
        let (guard, agent) = (running.guard(), running.agent());
        stop(guard);
        stop(agent);
        let ended = running.finish(STOPPED);
        assert_eq!(ended.code, Some(121), "{tier:?}: {}", ended.stderr_text());
        assert!(ended.stderr_text().contains("stopped"), "{tier:?}: {}", ended.stderr_text());
    }
}

#[test]
fn an_agent_that_is_stopped_before_its_guard_is_ends_the_job() {
    let running = Job::new(["-n", "2", "--timeout", "1s", "--grace", "1s", &helper("tree")]).start();
    running.wait_for_ranks(2);
    let (guard, agent) = (running.guard(), running.agent());
    stop(agent);
    stop(guard);
    let ended = running.finish(STOPPED);
    assert!([Some(121), Some(124)].contains(&ended.code), "{}", ended.stderr_text());
}

#[test]
fn a_guard_that_is_stopped_before_it_has_an_agent_ends_the_job() {
    // The program is in the kernel's memory: no child looks it up, and the first one is the guard.
    let looked = std::process::Command::new("/bin/sleep").arg("0").status();
    assert!(looked.expect("it is there").success());
    let words = [program("stop_child"), "1".to_owned()];
    let ended = through(&words, &["-n", "2", "/bin/sleep", "100"]).start().finish(STOPPED);
    assert_eq!(ended.code, Some(121), "{}", ended.stderr_text());
    assert!(ended.stderr_text().contains("node"), "{}", ended.stderr_text());
}

#[test]
fn a_fifo_among_the_log_files_is_refused_before_anything_starts() {
    let logs = tempfile::tempdir().expect("the temporary directory can be written");
    let fifo = logs.path().join("rank-0000.stdout");
    make_fifo(&fifo);
    let ended = Job::new(["-n", "2", "--log-dir", logs.path().to_str().expect("text"), "echo", "x"]).run();
    assert_eq!(ended.code, Some(2), "{}", ended.stderr_text());
    let text = ended.stderr_text();
    assert!(text.contains("rank-0000.stdout") && text.contains("FIFO"), "{text}");
    assert_eq!(ended.stdout_text(), "");
}

#[test]
fn a_fifo_that_appears_as_a_log_file_holds_up_neither_a_failure_nor_an_interrupt() {
    for interrupted in [false, true] {
        let logs = tempfile::tempdir().expect("the temporary directory can be written");
        let directory = logs.path().to_str().expect("text");
        let end = if interrupted { "exec sleep 100" } else { "exit 3" };
        let script = format!(
            "if test $RANKRUN_RANK = 0; then mkfifo {directory}/rank-0000.stdout; echo x; touch $RANKRUN_TEST_DIR/up; sleep 0.2; {end}; fi; exec sleep 100"
        );
        let job = Job::new(["-n", "2", "--drain", "2s", "--grace", "1s", "--log-dir", directory, "sh", "-c", &script]);
        let running = job.start();
        running.wait_for_file("up");
        if interrupted {
            processes::send(running.front(), Signal::INT);
        }
        let ended = running.finish(STOPPED);
        let text = ended.stderr_text();
        if interrupted {
            assert!(ended.signal == Some(2) || ended.code == Some(130), "{text}");
        } else {
            assert_eq!(ended.code, Some(3), "{text}");
        }
        assert!(text.contains("rank-0000.stdout") && text.contains("FIFO"), "{text}");
        assert_eq!(ended.stdout_text(), "x\n");
    }
}

fn make_fifo(path: &Path) {
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("the directory is ours");
}

#[test]
fn a_log_file_on_a_dead_file_system_holds_up_neither_a_failure_nor_an_interrupt() {
    let Some((directory, dead, words)) = dead_file_system() else { return };
    for (logs, end) in [("failure", "exit 3"), ("interrupt", "exec sleep 100")] {
        let logs = directory.path().join(logs);
        fs::create_dir_all(&logs).expect("the directory is ours");
        let link = logs.join("rank-0000.stdout");
        std::os::unix::fs::symlink(dead.join("x"), &link).expect("the directory is ours");
        let script =
            format!("echo x; touch $RANKRUN_TEST_DIR/up; sleep 0.2; test $RANKRUN_RANK = 1 || {end}; exec sleep 100");
        let options = ["-n", "2", "--drain", "2s", "--grace", "1s", "--log-dir", logs.to_str().expect("text")];
        let running = through(&words, &[&options[..], &["sh", "-c", &script]].concat()).start();
        running.wait_for_file("up");
        if end != "exit 3" {
            running.interrupt_twice(|| ());
        }
        let ended = running.finish(STOPPED);
        let text = ended.stderr_text();
        if end == "exit 3" {
            assert_eq!(ended.code, Some(3), "{text}");
            assert!(text.contains(link.to_str().expect("text")), "{text}");
        } else {
            assert!(ended.signal == Some(2) || ended.code == Some(130), "{text}");
        }
    }
}

#[test]
fn a_log_directory_on_a_dead_file_system_is_named_and_can_be_interrupted() {
    let Some((_directory, dead, words)) = dead_file_system() else { return };
    let options = ["-n", "2", "--drain", "1s", "--log-dir", dead.to_str().expect("text")];
    let ended = through(&words, &[&options[..], &["true"]].concat()).start().finish(STOPPED);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(2), "{text}");
    assert!(text.contains(dead.to_str().expect("text")), "{text}");
    let options = ["-n", "2", "--log-dir", dead.to_str().expect("text")];
    let running = through(&words, &[&options[..], &["true"]].concat()).start();
    running.guard();
    processes::send(running.front(), Signal::INT);
    let ended = running.finish(STOPPED);
    assert!(ended.signal == Some(2) || ended.code == Some(130), "{}", ended.stderr_text());
}

#[test]
fn the_report_is_printed_although_home_is_on_a_dead_file_system() {
    let Some((_directory, dead, words)) = dead_file_system() else { return };
    let job = through(&words, &["-n", "2", "sh", "-c", "exit 3"]).env_remove("XDG_STATE_HOME");
    let ended = job.env("HOME", &dead).start().finish(STOPPED);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(3), "{text}");
    assert!(text.starts_with("rankrun: rank "), "{text}");
    assert!(text.contains("cannot write the report"), "{text}");
    assert!(text.contains(dead.to_str().expect("text")), "{text}");
}

#[test]
fn an_error_file_on_a_dead_file_system_does_not_hold_up_the_end() {
    let Some((_directory, dead, words)) = dead_file_system() else { return };
    let job =
        through(&words, &["-n", "2", "sh", "-c", "exit 3"]).env("TORCHELASTIC_ERROR_FILE", dead.join("error.json"));
    let ended = job.start().finish(STOPPED);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
}

#[test]
fn a_home_that_does_not_exist_is_not_created() {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let home = directory.path().join("home");
    for (command, code) in [("true", 0), ("false", 1)] {
        let job = Job::new(["-n", "2", command]).env_remove("XDG_STATE_HOME").env("HOME", &home);
        let ended = job.run();
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(code), "{text}");
        assert!(!home.exists(), "{text}");
        assert_eq!(text.matches(home.to_str().expect("text")).count(), usize::from(code != 0), "{text}");
    }
}

#[test]
fn output_arrives_although_the_ranks_use_up_all_processes() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can run rankrun as another user");
    }
    let (rankrun, ranks) = (rankrun().display().to_string(), program("fork_to_limit"));
    let ended = Job::of_program("prlimit", ["--nproc=40:40", &rankrun, "-n", "2", &ranks])
        .user(User::Nobody)
        .bound(BOUND)
        .run();
    let text = ended.stdout_text();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(text.matches("has all its children").count(), 2, "{text:?}; {}", ended.stderr_text());
}

#[test]
fn a_job_for_which_no_thread_can_be_started_is_refused_with_the_reason() {
    let words = [program("deny_clone3")];
    let ended = through(&words, &["-n", "2", "echo", "x"]).bound(BOUND).run();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(125), "{text}");
    assert!(text.starts_with("error: "), "{text}");
    assert!(text.contains("cannot start a thread: Operation not permitted"), "{text}");
    assert_eq!(ended.stdout_text(), "");
}

#[test]
fn a_log_file_beyond_the_limit_of_file_sizes_is_an_error_with_a_message() {
    let logs = tempfile::tempdir().expect("the temporary directory can be written");
    let ranks = ["-n", "2", "sh", "-c", "yes | head -c 100000"];
    let options = ["--drain", "1s", "--grace", "1s", "--log-dir", logs.path().to_str().expect("text")];
    let rankrun = rankrun().display().to_string();
    let script = r#"trap '' XFSZ; ulimit -f 16; exec "$0" "$@""#;
    let words = [&["-c", script, rankrun.as_str()][..], &options, &ranks].concat();
    let ended = Job::of_program("sh", words).bound(BOUND).run();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(125), "{text}");
    assert!(text.contains("File too large") && text.contains("rank-"), "{text}");
    assert!(text.contains("gave up log files"), "{text}");
}
