//! The C++ programs that show how output is buffered: whole lines in every mode that promises them, on pipe and pty.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rankrun_tests::{Environment, Job, compile, skip};

const BOUND: Duration = Duration::from_secs(60);

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Compiles a program of `examples/seeds` with MPICH, through the header that gives it the `MPI::` names.
fn build(environment: &Environment, name: &str) -> PathBuf {
    let include = format!("-I{}", repository().join("examples/include/mpicxx_compat").display());
    let source = repository().join("examples/seeds").join(format!("{name}.cpp"));
    let compiler = environment.program("mpicxx");
    compile(&compiler, &["-std=c++11", "-O1", &include], &source, &format!("seed-{name}"))
}

/// 5 lines of 20 letters from each rank, each line of one letter alone.
fn assert_whole(output: &str, ranks: u8, case: &str) {
    let mut lines: Vec<&str> = output.lines().collect();
    lines.sort_unstable();
    let letters = (0..ranks).map(|rank| char::from(b'a' + rank).to_string().repeat(20));
    let expected: Vec<String> = letters.flat_map(|line| vec![line; 5]).collect();
    assert_eq!(lines, expected, "{case}:\n{output}");
}

#[test]
fn every_switch_gives_whole_lines_on_pipe_and_pty() {
    let Some(environment) = Environment::find("mpich") else {
        return;
    };
    let switches: [(&str, &[&[&str]]); 2] = [
        ("test", &[&[], &["--nosync"], &["--setvbuf"], &["--unitbuf"], &["--nosync", "--unitbuf"]]),
        ("test2", &[&[], &["-f"], &["-l"]]),
    ];
    for (name, sets) in switches {
        let program = build(&environment, name);
        let program = program.to_str().expect("text");
        for stdio in ["pipe", "pty"] {
            for set in sets {
                let all = ["-n", "2", "--stdio", stdio, program].into_iter().chain(set.iter().copied());
                let ended = Job::new(all).bound(BOUND).run();
                assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
                assert_whole(&ended.stdout_text(), 2, &format!("{name} {set:?} on a {stdio}"));
            }
        }
    }
}

#[test]
fn the_modes_that_promise_whole_lines_keep_the_promise() {
    let Some(environment) = Environment::find("mpich") else {
        return;
    };
    let program = build(&environment, "test");
    for mode in ["line", "grouped"] {
        let program = program.to_str().expect("text");
        let ended = Job::new(["-n", "3", "--output", mode, program, "--unitbuf"]).bound(BOUND).run();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
        assert_whole(&ended.stdout_text(), 3, mode);
    }
}

/// `shutdown` writes to the same terminals as `wall`: those with an entry in utmp. A rank's pty has none.
#[test]
fn what_wall_writes_reaches_a_login_but_no_rank() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can enter a terminal into utmp");
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/utmp_terminal.c");
    let program = compile("cc", &["-O1", "-Wall"], &source, "utmp_terminal");
    let mut login =
        Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program was just made");
    let mut screen = BufReader::new(login.stdout.take().expect("a pipe was asked for"));
    let mut terminal = String::new();
    screen.read_line(&mut terminal).expect("the program tells its terminal");

    let script = "tty; echo > $RANKRUN_TEST_DIR/up; while [ ! -e $RANKRUN_TEST_DIR/go ]; do sleep 0.01; done";
    let running = Job::new(["-n", "1", "--stdio", "pty", "--stdin", "none", "sh", "-c", script]).start();
    running.wait_for_file("up");
    let message = format!("to whom it may concern {}", std::process::id());
    let status = Command::new("wall").arg(&message).status().expect("wall is installed");
    assert!(status.success());
    let (sender, receiver) = mpsc::sync_channel(1024);
    let wanted = message.clone();
    thread::spawn(move || {
        let (mut seen, mut buffer) = (Vec::new(), [0; 1024]);
        while let Ok(count @ 1..) = screen.read(&mut buffer) {
            seen.extend_from_slice(&buffer[..count]);
            if String::from_utf8_lossy(&seen).contains(&wanted) {
                break;
            }
        }
        // The test may have given up.
        let _ = sender.send(String::from_utf8_lossy(&seen).into_owned());
    });
    let seen = receiver.recv_timeout(Duration::from_secs(10));
    running.sign("go");
    let ended = running.finish(BOUND);
    drop(login.stdin.take());
    login.wait().expect("the program is our child");
    assert!(seen.is_ok_and(|text| text.contains(&message)), "wall did not reach {terminal}");
    assert!(!ended.stdout_text().contains("concern"), "{}", ended.stdout_text());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
}
