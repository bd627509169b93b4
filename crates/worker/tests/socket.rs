//! What the example says on the worker socket.

#![expect(clippy::unwrap_used, reason = "this is a test")]

use std::io::Read;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// An agent's end of the socket, in a directory of its own.
struct Agent {
    directory: PathBuf,
    listener: UnixListener,
}

impl Agent {
    fn new() -> Agent {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("rr-worker-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).unwrap();
        let listener = UnixListener::bind(directory.join("socket")).unwrap();
        Agent { directory, listener }
    }

    fn run(&self, how: &str) -> Output {
        example(how, Some(&self.directory.join("socket")))
    }

    /// All lines of the connections that a process which has ended has made.
    fn lines(&self) -> Vec<String> {
        self.listener.set_nonblocking(true).unwrap();
        let mut text = String::new();
        while let Ok((mut peer, _)) = self.listener.accept() {
            peer.set_nonblocking(false).unwrap();
            peer.read_to_string(&mut text).unwrap();
        }
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn example(how: &str, socket: Option<&Path>) -> Output {
    let tests = std::env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join("examples/panics");
    let mut command = Command::new(program);
    command.arg(how).env("RANKRUN_RANK", "5").env_remove("RANKRUN_SOCKET").env_remove("RUST_BACKTRACE");
    command.envs(socket.map(|path| ("RANKRUN_SOCKET", path))).output().unwrap()
}

/// The types of the lines, and those that are not greetings and the example's first note.
fn received(lines: &[String]) -> Vec<&str> {
    let greeting = |line: &&str| line.contains("\"type\":\"hello\"") || line.contains("the program starts");
    lines.iter().map(String::as_str).filter(|line| !greeting(line)).collect()
}

#[test]
fn a_panic_of_the_main_thread_is_uncaught() {
    let agent = Agent::new();
    let output = agent.run("main");
    assert_eq!(output.status.code(), Some(101));
    assert!(String::from_utf8_lossy(&output.stderr).contains("failure!"), "the usual message is printed");
    let lines = agent.lines();
    assert!(lines[0].contains("\"type\":\"hello\"") && lines[0].contains("\"rank\":5,\"kind\":\"rust\""), "{lines:?}");
    let received = received(&lines);
    assert_eq!(received.len(), 1, "{received:?}");
    assert!(received[0].starts_with(
        "{\"v\":1,\"type\":\"uncaught\",\"code\":101,\"exception\":\"panic\",\"message\":\"failure!\",\"thread\":\"main\",\"file\":\""
    ));
    assert!(received[0].contains("examples/panics.rs\",\"line\":"), "{received:?}");
    assert!(received[0].contains(",\"ago\":0."), "{received:?}");
}

#[test]
fn a_panic_of_another_thread_is_evidence() {
    let agent = Agent::new();
    assert_eq!(agent.run("thread").status.code(), Some(0));
    let lines = agent.lines();
    let received = received(&lines);
    assert_eq!(received.len(), 1, "{received:?}");
    assert!(
        received[0].starts_with("{\"v\":1,\"type\":\"evidence\",\"what\":\"thread\",\"exception\":\"panic\""),
        "{received:?}"
    );
    assert!(received[0].contains("\"thread\":\"helper\""), "{received:?}");
}

#[test]
fn an_abort_ends_the_process_with_its_code() {
    let agent = Agent::new();
    assert_eq!(agent.run("abort").status.code(), Some(3));
    let lines = agent.lines();
    assert_eq!(received(&lines), ["{\"v\":1,\"type\":\"abort\",\"code\":3,\"message\":\"no good\"}"]);
}

#[test]
fn a_panic_can_abort_the_job() {
    let agent = Agent::new();
    assert_eq!(agent.run("abort-on-panic").status.code(), Some(101));
    let lines = agent.lines();
    assert_eq!(received(&lines), ["{\"v\":1,\"type\":\"abort\",\"code\":101,\"message\":\"panic: failure!\"}"]);
}

#[test]
fn notes_that_nobody_reads_are_dropped_and_never_torn() {
    let agent = Agent::new();
    // Nobody accepts before the process has ended, so that the socket's buffer is full soon.
    assert_eq!(agent.run("notes").status.code(), Some(0));
    let lines = agent.lines();
    assert!((10..10_000).contains(&lines.len()), "{} lines", lines.len());
    for line in &lines[..lines.len() - 1] {
        assert!(line.starts_with("{\"v\":1,") && line.ends_with('}'), "{line}");
    }
}

#[test]
fn without_rankrun_a_program_runs_as_ever() {
    let output = example("main", None);
    assert_eq!(output.status.code(), Some(101));
    let output = example("abort", None);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "rankrun: rank 5 aborted: no good\n");
}
