//! The C++ programs that show how output is buffered: whole lines in every mode that promises them, on pipe and pty.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rankrun_tests::{Environment, Job, compile, open_mpi_4, skip};

const BOUND: Duration = Duration::from_secs(60);

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// An MPI that the programs of `examples/seeds` are compiled with.
#[derive(Clone, Copy, Debug)]
enum Library {
    Mpich,
    /// Debian's, the last with the `MPI::` names.
    OpenMpi4,
}

/// Compiles a program of `examples/seeds`, where need be through the header that gives it the `MPI::` names. `None` after a
/// skip.
fn build(library: Library, name: &str) -> Option<String> {
    let include = format!("-I{}", repository().join("examples/include/mpicxx_compat").display());
    let (compiler, options) = match library {
        Library::Mpich => (Environment::find("mpich")?.program("mpicxx"), vec!["-std=c++11", "-O1", &include]),
        Library::OpenMpi4 => {
            open_mpi_4()?;
            ("mpicxx.openmpi".to_owned(), vec!["-std=c++11", "-O1"])
        }
    };
    let source = repository().join("examples/seeds").join(format!("{name}.cpp"));
    Some(compile(&compiler, &options, &source, &format!("seed-{name}-{library:?}")).display().to_string())
}

/// 5 lines of 20 letters from each rank, each line of one letter alone.
fn assert_whole(output: &str, ranks: u8, case: &str) {
    // On a busy machine the beginning of a line may be shown early, with a mark.
    let mut lines: Vec<&str> = output.lines().filter(|line| !line.ends_with(" […]")).collect();
    lines.sort_unstable();
    let letters = (0..ranks).map(|rank| char::from(b'a' + rank).to_string().repeat(20));
    let expected: Vec<String> = letters.flat_map(|line| vec![line; 5]).collect();
    assert_eq!(lines, expected, "{case}:\n{output}");
}

fn every_switch_gives_whole_lines(library: Library) {
    let switches: [(&str, &[&[&str]]); 2] = [
        ("test", &[&[], &["--nosync"], &["--setvbuf"], &["--unitbuf"], &["--nosync", "--unitbuf"]]),
        ("test2", &[&[], &["-f"], &["-l"]]),
    ];
    for (name, sets) in switches {
        let Some(program) = build(library, name) else { return };
        for stdio in ["pipe", "pty"] {
            for set in sets {
                let all = ["-n", "2", "--stdio", stdio, &program].into_iter().chain(set.iter().copied());
                let ended = Job::new(all).bound(BOUND).run();
                let case = format!("{library:?}: {name} {set:?} on a {stdio}");
                assert_eq!(ended.code, Some(0), "{case}: {}", ended.stderr_text());
                assert_whole(&ended.stdout_text(), 2, &case);
            }
        }
    }
}

#[test]
fn every_switch_gives_whole_lines_on_pipe_and_pty_under_mpich() {
    every_switch_gives_whole_lines(Library::Mpich);
}

#[test]
fn every_switch_gives_whole_lines_on_pipe_and_pty_under_open_mpi_4() {
    every_switch_gives_whole_lines(Library::OpenMpi4);
}

#[test]
fn the_modes_that_promise_whole_lines_keep_the_promise() {
    let Some(program) = build(Library::Mpich, "test") else { return };
    for mode in ["line", "grouped"] {
        let ended = Job::new(["-n", "3", "--output", mode, &program, "--unitbuf"]).bound(BOUND).run();
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
