//! The completions of bash, zsh and fish, each in its own shell on a terminal: keys are pressed, and what the shell then runs is
//! looked at.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rankrun_tests::screen::Screen;
use rankrun_tests::{Job, processes, rankrun, skip, wait_until};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(30);

/// What is typed, and the words that the shell then calls `rankrun` with. An option's value may follow `=` or a space.
const CASES: &[(&str, &[&str])] = &[
    // An option, its value, a program, a file.
    (
        "rankrun --outp\tgro\t -n 2 marked-t\t ./mine/dat\t",
        &["--output", "grouped", "-n", "2", "marked-tool", "./mine/data-file.txt"],
    ),
    ("rankrun --output=fol\t true", &["--output", "folded", "true"]),
    ("rankrun --mpi=no\t marked-t\t", &["--mpi", "none", "marked-tool"]),
    (
        "rankrun --no-k\t --no-times\t --no-die\t true",
        &["--no-keep-going", "--no-timestamps", "--no-die-with-parent", "true"],
    ),
    ("rankrun --tf\t --no-tf\t true", &["--tf-config", "--no-tf-config", "true"]),
    ("rankrun --stop-signal HU\t true", &["--stop-signal", "HUP", "true"]),
    ("rankrun --stop-signal=QU\t true", &["--stop-signal", "QUIT", "true"]),
    ("rankrun --log-dir mine/log\t true", &["--log-dir", "mine/logs", "true"]),
    ("rankrun --log-dir=mine/log\t true", &["--log-dir", "mine/logs", "true"]),
    ("rankrun --config mine/dat\t true", &["--config", "mine/data-file.txt", "true"]),
    ("rankrun -x MARKED_V\t true", &["-x", "MARKED_VARIABLE", "true"]),
    ("rankrun --wrap marked-t\t true", &["--wrap", "marked-tool", "true"]),
    ("rankrun --keep-g\t -l ./mine/sol\t", &["--keep-going", "-l", "./mine/solver"]),
    // After a command another begins.
    (
        "rankrun -n 1 marked-t\t : --wd\t mine marked-t\t mine/dat\t",
        &["-n", "1", "marked-tool", ":", "--wdir", "mine", "marked-tool", "mine/data-file.txt"],
    ),
    // The program's options are its own.
    ("rankrun marked-tool --outp\tx", &["marked-tool", "--outpx"]),
    ("rankrun completio\t zs\t", &["completions", "zsh"]),
    ("rankrun clean --dr\t", &["clean", "--dry-run"]),
    ("rankrun replay mine/dat\t", &["replay", "mine/data-file.txt"]),
    ("rankrun help chec\t", &["help", "check"]),
    ("rankrun --stdin sha\t true", &["--stdin", "shared", "true"]),
    // The options of other launchers.
    ("rankrun torchrun --nproc-per\t 2 ./mine/sol\t", &["torchrun", "--nproc-per-node", "2", "./mine/solver"]),
    ("rankrun mpiexec -outfile-p\t x marked-t\t", &["mpiexec", "-outfile-pattern", "x", "marked-tool"]),
    ("rankrun mpirun -overs\t marked-t\t", &["mpirun", "-oversubscribe", "marked-tool"]),
    ("rankrun mpiexec.hydra -outfile-p\t x marked-t\t", &["mpiexec.hydra", "-outfile-pattern", "x", "marked-tool"]),
];

/// A home with programs and files to be completed, and the script of a shell.
fn home(shell: &str) -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("the temporary directory can be written");
    let write = |name: &str, text: &[u8], mode: u32| {
        let file = home.path().join(name);
        fs::create_dir_all(file.parent().expect("a name below the directory")).expect("it is ours");
        fs::write(&file, text).expect("it is ours");
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    write("bin/marked-tool", b"#!/bin/sh\n", 0o755);
    write("mine/solver", b"#!/bin/sh\n", 0o755);
    write("mine/data-file.txt", b"", 0o644);
    fs::create_dir(home.path().join("mine/logs")).expect("it is ours");
    // Running jobs are asked for by its name.
    symlink(rankrun(), home.path().join("bin/rankrun")).expect("it is ours");
    let script = Job::new(["completions", shell]).run();
    assert_eq!((script.code, script.stderr_text()), (Some(0), String::new()));
    // As it is installed: a file that is read, or one on zsh's fpath.
    write("completions/_rankrun", &script.stdout, 0o644);
    home
}

fn is_there(shell: &str) -> bool {
    let found = Command::new(shell).args(["-c", "true"]).output().is_ok_and(|output| output.status.success());
    if !found {
        skip(&format!("{shell} is not installed"));
    }
    found
}

/// Types each case at a shell after these lines of preparation.
fn complete_all(shell: &str, arguments: &[&str], preparation: &[&str]) {
    if !is_there(shell) {
        return;
    }
    let home = home(shell);
    let screen = Screen::new(24, 200);
    let path = format!("{}:/usr/bin:/bin", home.path().join("bin").display());
    let text = |path: &Path| path.to_str().expect("a path of text").to_owned();
    let job = Job::of_program(shell, arguments)
        .env("HOME", text(home.path()))
        .env("PATH", path)
        .env("TERM", "xterm")
        .env("LC_ALL", "C.UTF-8")
        .env("HISTFILE", "")
        .env("MARKED_VARIABLE", "1")
        .current_dir(home.path())
        .terminal(screen.path())
        .start();
    let typed = |line: &str| screen.press(&format!("{line}\n"));
    preparation.iter().for_each(|line| typed(line));
    let running = Job::new(["sh", "-c", "echo $RANKRUN_JOB_ID > $RANKRUN_TEST_DIR/id; exec sleep 1000"]).start();
    let id = running.wait_for_text("id").trim().to_owned();
    let stop = format!("rankrun stop {}\t", &id[..7]);
    let of_job: (&str, &[&str]) = (&stop, &["stop", &id]);
    for (number, (line, words)) in CASES.iter().chain([&of_job]).enumerate() {
        let answer = home.path().join(format!("answer-{number}"));
        // The shell says where the answer goes before the line is typed, so that the line is all that is completed.
        typed(&format!("to answer-{number}"));
        typed(line);
        let got = wait_until(BOUND, || fs::read_to_string(&answer).ok().filter(|text| text.ends_with("end\n")));
        let got = got.unwrap_or_else(|| panic!("{shell}: {line:?} gives no answer:\n{}", screen.text()));
        let got: Vec<String> = got.lines().map(str::to_owned).collect();
        let got: Vec<&str> = got[..got.len() - 1].iter().flat_map(|word| word.splitn(2, '=')).collect();
        // zsh takes the slash of a directory back when a blank follows.
        let got: Vec<&str> = got.iter().map(|word| word.trim_end_matches('/')).collect();
        assert_eq!(got, *words, "{shell}: {line:?}\n{}", screen.text());
    }
    processes::send(running.front(), Signal::TERM);
    running.finish(BOUND);
    typed("exit");
    job.finish(BOUND);
}

/// The script can be read without a word of complaint.
fn loads(shell: &str, arguments: &[&str]) {
    if !is_there(shell) {
        return;
    }
    let home = home(shell);
    let output = Command::new(shell).args(arguments).current_dir(home.path()).env("HOME", home.path()).output();
    let output = output.expect("the shell can be run");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{shell}");
    assert_eq!((String::from_utf8_lossy(&output.stdout).trim(), output.status.code()), ("loaded", Some(0)), "{shell}");
}

const POSIX: &str = r#"to() { answer=$1; }; rankrun() { printf '%s\n' "$@" end > "$answer"; }"#;

#[test]
fn bash_completes_options_values_programs_and_files() {
    loads("bash", &["--norc", "-c", "source completions/_rankrun && complete -p rankrun > /dev/null && echo loaded"]);
    complete_all("bash", &["--norc", "--noprofile", "-i"], &[POSIX, "source completions/_rankrun"]);
}

#[test]
fn zsh_completes_options_values_programs_and_files() {
    let compinit = "autoload -U compinit && compinit -u -D";
    loads("zsh", &["-f", "-c", &format!("{compinit} && source completions/_rankrun && echo loaded")]);
    let fpath = format!("fpath=($PWD/completions $fpath); {compinit}");
    complete_all("zsh", &["-f", "-i"], &[POSIX, &fpath]);
}

#[test]
fn fish_completes_options_values_programs_and_files() {
    loads("fish", &["--no-config", "-c", "source completions/_rankrun; and echo loaded"]);
    let functions = [
        "set -g fish_autosuggestion_enabled 0",
        "function to; set -g answer $argv[1]; end",
        r#"function rankrun; printf '%s\n' $argv end > $answer; end"#,
        "source completions/_rankrun",
    ];
    complete_all("fish", &["--no-config", "-i"], &functions);
}
