//! What another user of the machine, or a file that happens to lie about, can make rankrun do: nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rankrun_tests::{Job, Running, processes, rankrun, skip};
use rustix::process::Signal;

/// Writes an executable script that leaves the file `ran` beside itself.
fn plant_program(directory: &Path, name: &str) {
    let program = directory.join(name);
    let marker = directory.join("ran");
    fs::write(&program, format!("#!/bin/sh\necho {name} >> '{}'\n", marker.display())).expect("the directory is ours");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("the file is ours");
}

/// Writes a Python module that leaves the file `ran` beside itself when it is imported.
fn plant_module(directory: &Path, name: &str) {
    let marker = directory.join("ran");
    let text = format!("open({:?}, 'a').write('{name}\\n')\n", marker.display().to_string());
    fs::write(directory.join(format!("{name}.py")), text).expect("the directory is ours");
}

/// Makes a shared library that leaves the file `ran` beside itself when it is loaded.
fn plant_library(directory: &Path, name: &str) {
    let marker = directory.join("ran").display().to_string();
    let text = format!(
        "#include <stdio.h>\n__attribute__((constructor)) static void run(void) {{ fputs(\"{name}\\n\", fopen({marker:?}, \"a\")); }}\n"
    );
    let source = directory.join("library.c");
    fs::write(&source, text).expect("the directory is ours");
    let library = directory.join(name);
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(made.is_ok_and(|status| status.success()), "cc makes the library");
}

#[test]
fn check_runs_nothing_of_the_working_directory() {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    for module in ["csv", "json", "email", "zipfile", "textwrap", "sitecustomize", "usercustomize", "startup", "mpi4py"]
    {
        plant_module(directory.path(), module);
    }
    for program in ["python3", "python", "cat", "mpicc", "mpichversion", "ldconfig"] {
        plant_program(directory.path(), program);
    }
    plant_library(directory.path(), "libmpi.so.12");
    let path = std::env::var("PATH").unwrap_or_default();
    for (name, value) in [
        ("PATH", format!(".:{path}")),
        ("PATH", format!(":{path}")),
        ("PYTHONPATH", ".".to_owned()),
        ("PYTHONPATH", ":".to_owned()),
        ("PYTHONSTARTUP", "startup.py".to_owned()),
        ("LD_LIBRARY_PATH", ".".to_owned()),
        ("LD_LIBRARY_PATH", ":".to_owned()),
    ] {
        let ended = Job::new(["check"]).current_dir(directory.path()).env(name, &value).run();
        let ran = fs::read_to_string(directory.path().join("ran")).unwrap_or_default();
        assert_eq!(ran, "", "{name}={value}: these ran: {ran}");
        assert!(ended.stdout_text().contains("python"), "{}", ended.stdout_text());
    }
}

/// A namespace of mounts in which somebody else was first in all places where jobs usually have their directories.
const OTHERS_FIRST: &str = r#"mkdir -p /tmp/rankrun-0 && mount -t tmpfs -o uid=65534,mode=755 none /tmp/rankrun-0 &&
mount -t tmpfs none /dev/shm && mkdir /dev/shm/rankrun-0 && chown 65534 /dev/shm/rankrun-0 &&
exec "$0" "$@""#;

/// A job of root's where others were first.
fn where_others_were_first(arguments: &[&str]) -> Job {
    let rankrun = rankrun().display().to_string();
    let command = ["-m", "sh", "-c", OTHERS_FIRST, &rankrun].into_iter().chain(arguments.iter().copied());
    Job::of_program("unshare", command).env_remove("XDG_RUNTIME_DIR")
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("only root can have mounts of its own");
    }
    root
}

#[test]
fn a_directory_that_somebody_else_made_first_keeps_nobody_from_running_jobs() {
    if !is_root() {
        return;
    }
    // Python takes what it has compiled of the hook from nowhere where others may have planted it.
    let script = "echo $RANKRUN_SOCKET; test -S $RANKRUN_SOCKET && test ${PYTHONPATH%%:*} = ${RANKRUN_SOCKET%/*}/hook";
    let ended = where_others_were_first(&["-n", "2", "sh", "-c", script]).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    for line in ended.stdout_text().lines() {
        let directory = Path::new(line).parent().expect("the socket is in a directory");
        assert!(line.starts_with("/tmp/rankrun-0-"), "{line}");
        assert!(!directory.exists(), "{line} is left");
    }
}

#[test]
fn a_directory_of_a_job_that_others_drove_away_is_removed_whoever_is_killed() {
    if !is_root() {
        return;
    }
    for victim in [Running::front, Running::guard, Running::agent] {
        let script = r#"echo "$RANKRUN_SOCKET" > "$RANKRUN_TEST_DIR/new"; mv "$RANKRUN_TEST_DIR/new" "$RANKRUN_TEST_DIR/up"; sleep 600"#;
        let running = where_others_were_first(&["-n", "1", "--grace", "1s", "sh", "-c", script]).start();
        let socket = running.wait_for_text("up");
        let directory = Path::new(socket.trim()).parent().expect("the socket is in a directory").to_owned();
        assert!(directory.starts_with("/tmp") && directory.exists(), "{socket}");
        processes::send(victim(&running), Signal::KILL);
        running.finish(Duration::from_secs(10));
        assert!(!directory.exists(), "{} is left", directory.display());
    }
}

#[test]
fn clean_removes_directories_of_jobs_that_others_drove_away() {
    if !is_root() {
        return;
    }
    // What is left when front, guard and agent were killed at once.
    let script = format!(
        "mkdir -m 700 /dev/shm/rankrun-0-0a1b2c3d /dev/shm/rankrun-0-other && '{}' clean && ls /dev/shm",
        rankrun().display()
    );
    let ended = Job::of_program("unshare", ["-m", "sh", "-c", OTHERS_FIRST, "sh", "-c", &script]).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let text = ended.stdout_text();
    assert!(text.contains("job 0a1b2c3d: 0 processes ended"), "{text}");
    assert!(text.ends_with("rankrun-0\nrankrun-0-other\n"), "{text}");
}

#[test]
fn a_directory_below_one_that_others_own_or_may_write_is_not_used() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("the directory is ours");
    let make = |name: &str, owner: u32, mode: u32| {
        let path = directory.path().join(name);
        fs::create_dir(&path).expect("the directory is ours");
        std::os::unix::fs::chown(&path, Some(owner), None).expect("root may do that");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("root may do that");
        path
    };
    let others = make("others", 65534, 0o700);
    let writable = make("writable", 0, 0o777);
    let ours = make("ours", 0, 0o700);
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&ours, &link).expect("the directory is ours");
    std::os::unix::fs::lchown(&link, Some(65534), None).expect("root may do that");
    for (place, is_used) in [(&others, false), (&writable, false), (&link, false), (&ours, true)] {
        let job = where_others_were_first(&["-n", "1", "sh", "-c", "echo $RANKRUN_SOCKET"]);
        let ended = job.env("XDG_RUNTIME_DIR", place).run();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
        let used = ended.stdout_text().starts_with(place.to_str().expect("the path is text"));
        assert_eq!(used, is_used, "{}: {}", place.display(), ended.stdout_text());
    }
}

/// Programs that print control sequences when they fail: on stderr, and in an exception.
const NASTY: [[&str; 3]; 2] = [
    ["sh", "-c", r"printf 'c\rError: a\033]0;title\007\033[2J\302\2331A\342\200\256b\n' >&2; exit 3"],
    ["python3", "-c", r"raise ValueError('a\033]0;title\007\033[2J\x9b1A\u202eb\rc')"],
];

#[test]
fn what_a_rank_said_is_quoted_so_that_no_terminal_obeys_it() {
    let obeyed = |character: char| (character.is_control() && character != '\n') || character == '\u{202e}';
    for command in NASTY {
        let reports = tempfile::tempdir().expect("the temporary directory can be written");
        let directory = reports.path().display().to_string();
        // What was just printed is not quoted again.
        let options = ["-n", "1", "--color", "never", "--output", "none", "--report-dir", &directory];
        let ended = Job::new(options.iter().chain(&command)).run();
        let text = ended.stderr_text();
        let (_, ours) = text.split_once("rankrun: rank 0 failed").unwrap_or_else(|| panic!("no report: {text}"));
        assert!(ours.contains(r"| ") && ours.contains(r"\u{9b}1A\u{202e}b"), "{ours:?}");
        assert!(!ours.chars().any(obeyed), "{ours:?}");
        let again = Job::new(["report", &directory]).run();
        assert_eq!(again.code, Some(0), "{}", again.stderr_text());
        assert!(again.stdout_text().contains(r"\u{9b}1A\u{202e}b"), "{}", again.stdout_text());
        assert!(!again.stdout_text().chars().any(obeyed), "{:?}", again.stdout_text());
    }
}
