//! Where Python runs without the interpreter hook, the report says so and why, if that may hide a failure.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rankrun_core::Rank;
use rankrun_core::absence::Absence;
use rankrun_core::report::Report;
use rankrun_tests::{Ended, Environment, Job, Tier, compile, processes, scratch, skip, wait_until};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(60);

/// Prints a traceback, and goes on as a program does that waits in `MPI_Finalize`.
const STUCK: &str =
    "import time, traceback\ntry: raise ValueError('boom')\nexcept ValueError: traceback.print_exc()\ntime.sleep(60)\n";
const SLEEP: &str = "import time; time.sleep(60)";

fn run(options: &[&str], command: &[&str]) -> Ended {
    Job::new([options, command].concat()).env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND).run()
}

/// An executable script in a directory.
fn script(directory: &Path, text: &str) -> String {
    let path = directory.join("run.sh");
    fs::write(&path, text).expect("the directory is ours");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    path.to_str().expect("a path of text").to_owned()
}

/// The line of the report with this name.
fn line<'a>(text: &'a str, name: &str) -> &'a str {
    let found = text.lines().find(|line| line.trim_start().starts_with(&format!("{name} ")));
    found.unwrap_or_else(|| panic!("no line \"{name}\": {text}"))
}

#[test]
fn an_mpi4py_rank_that_raised_without_the_hook_has_failed_and_the_report_says_why_it_was_not_seen() {
    let Some(environment) = Environment::find("mpich") else { return };
    let directory = scratch();
    let raise = "from mpi4py import MPI\nw = MPI.COMM_WORLD\nw.Barrier()\nif w.rank == 1: raise ValueError('boom')\nw.Barrier()\n";
    fs::write(directory.join("train.py"), raise).expect("the directory is ours");
    let python = environment.program("python");
    let train = directory.join("train.py");
    let run_sh = script(&directory, &format!("#!/bin/sh\nexport PYTHONPATH=/opt/mine\n{python} {}\n", train.display()));
    for tier in Tier::sampled() {
        let reports = scratch();
        let options = ["-n", "2", "--timeout", "50s", "--report-dir", reports.to_str().expect("a path of text")];
        let ended = Job::new([&options[..], &[&run_sh]].concat()).tier(tier).bound(BOUND).run();
        let text = ended.stderr_text();
        // Its interpreter is gone, and it waits in MPI_Finalize for the other, which waits for it.
        assert_eq!(ended.code, Some(1), "{text}");
        assert!(text.contains("rankrun: rank 1 failed: ValueError: boom  (exit 1"), "{text}");
        assert!(line(&text, "stuck").contains("stuck in  finalization after the failure"), "{text}");
        let hook = line(&text, "hook");
        let why =
            "runs Python without rankrun's hook, which reports exceptions: PYTHONPATH was replaced by \"/opt/mine\"";
        assert!(hook.contains("rank 1") && hook.ends_with(why), "{text}");
        let advice = "add to PYTHONPATH instead of replacing it: PYTHONPATH=/opt/mine:$PYTHONPATH";
        assert!(line(&text, "next").ends_with(advice), "{text}");
        let json = fs::read(reports.join("report.json")).expect("a report is written");
        let report: Report = serde_json::from_slice(&json).expect("our own form");
        assert_eq!(report.hookless.len(), 1);
        assert!(report.hookless[0].ranks.contains(Rank(1)));
        assert_eq!(report.hookless[0].why, Absence::PathReplaced { path: "/opt/mine".to_owned() });
        fs::remove_dir_all(&reports).expect("the directory is ours");
    }
    fs::remove_dir_all(&directory).expect("the directory is ours");
}

/// The commands of ranks whose Python has no hook, each with what is said of it.
fn hookless_commands(directory: &Path) -> Vec<(Vec<String>, String)> {
    let python =
        |options: &[&str]| [&["python3"], options, &["-c", SLEEP]].concat().iter().map(|it| (*it).to_owned()).collect();
    let shell = |text: &str| vec!["sh".to_owned(), "-c".to_owned(), text.to_owned(), SLEEP.to_owned()];
    let mut commands = vec![
        (python(&["-I"]), "Python was started with -I".to_owned()),
        (python(&["-sE"]), "Python was started with -E".to_owned()),
        (python(&["-W", "ignore", "-S"]), "Python was started with -S".to_owned()),
        (
            shell("export PYTHONPATH=/opt/mine; python3 -c \"$0\""),
            "PYTHONPATH was replaced by \"/opt/mine\"".to_owned(),
        ),
        (shell("unset PYTHONPATH; exec python3 -c \"$0\""), "PYTHONPATH was removed from its environment".to_owned()),
        (
            shell("exec env -i \"PATH=$PATH\" \"HOME=$HOME\" python3 -c \"$0\""),
            "RANKRUN_SOCKET was removed from its environment".to_owned(),
        ),
    ];
    // As a site's own module does that is put first.
    let shadow = directory.join("shadow");
    fs::create_dir(&shadow).expect("the directory is ours");
    fs::write(shadow.join("sitecustomize.py"), "").expect("the directory is ours");
    let shadow = shadow.to_str().expect("a path of text");
    commands.push((
        shell(&format!("PYTHONPATH={shadow}:$PYTHONPATH exec python3 -c \"$0\"")),
        format!("\"{shadow}/sitecustomize\" comes first in PYTHONPATH"),
    ));
    // Not every Python has a shared library, and few machines have an old one. The tests of core have both.
    commands.extend(embedding().map(|command| (command, "\"embed_python\" embeds Python".to_owned())));
    commands.extend(old_python().map(|python| {
        let command = vec![python.display().to_string(), "-c".to_owned(), SLEEP.to_owned()];
        (command, "Python 2.7 is too old (3.6 is needed)".to_owned())
    }));
    if rustix::process::geteuid().is_root() {
        // As in a container that does not show /tmp.
        let hide = "exec unshare -m sh -c 'd=${RANKRUN_SOCKET%/*}; mount -t tmpfs none ${d%/*} && exec python3 -c \"$0\"' \"$0\"";
        commands.push((shell(hide), "it does not see \"".to_owned()));
        let other = "exec setpriv --reuid 65534 --clear-groups /usr/bin/python3 -c \"$0\"";
        commands.push((shell(other), "it runs as another user".to_owned()));
    } else {
        skip("only root can mount, and change its user");
    }
    commands
}

fn embedding() -> Option<Vec<String>> {
    let query = "import sysconfig as s; print(s.get_config_var('LIBDIR') + '/' + s.get_config_var('INSTSONAME'))";
    let output = Command::new("python3").args(["-c", query]).output().ok()?;
    let library = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    let is_there = library.contains(".so") && Path::new(&library).exists();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/embed_python.c");
    is_there.then(|| {
        let program = compile("cc", &["-O1", "-Wall", "-ldl"], &source, "embed_python");
        vec![program.display().to_string(), library, SLEEP.to_owned()]
    })
}

fn old_python() -> Option<PathBuf> {
    let home = std::env::var_os("HOME")?;
    let versions = Path::new(&home).join(".pyenv/versions");
    let candidates = [versions.join("2.7.18/bin/python2.7"), PathBuf::from("/usr/bin/python2.7")];
    candidates.into_iter().find(|path| path.exists())
}

#[test]
fn each_reason_is_told_where_it_can_be_known() {
    let directory = scratch();
    let commands = hookless_commands(&directory);
    // Where nothing else explains it, an interpreter is given 5 s to import the hook, and more on a busy machine.
    let mut words: Vec<String> = ["-v", "--timeout", "20s"].map(str::to_owned).into();
    for (command, _) in &commands {
        words.extend(["-n", "1"].map(str::to_owned));
        words.extend(command.iter().cloned());
        words.push(":".to_owned());
    }
    // These have nothing to say: no Python, and one with its hook.
    words.extend(["-n", "1", "sleep", "60", ":", "-n", "1", "python3", "-c", SLEEP].map(str::to_owned));
    words.extend([":", "-n", "1", "sh", "-c", "python3 -c \"$0\"; true", SLEEP].map(str::to_owned));
    let ended = Job::new(&words).env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND).run();
    let text = ended.stderr_text();
    let told: Vec<&str> =
        text.lines().filter(|line| line.starts_with("rankrun: ") && line.contains("'s hook")).collect();
    for (rank, (command, why)) in commands.iter().enumerate() {
        let start = format!("rankrun: rank {rank} runs Python without rankrun's hook, which reports exceptions: {why}");
        assert_eq!(told.iter().filter(|line| line.starts_with(&start)).count(), 1, "{command:?}: {start}\n{text}");
    }
    assert_eq!(told.len(), commands.len(), "{text}");
    assert_eq!(ended.code, Some(124), "{text}");
    assert!(
        text.lines().filter(|line| line.contains("'s hook")).count() <= commands.len() + 2,
        "two lines in the report: {text}"
    );
    fs::remove_dir_all(&directory).expect("the directory is ours");
}

#[test]
fn a_hook_that_is_switched_off_is_named_where_an_exception_may_have_been_missed() {
    let ended = run(&["-n", "1", "--hook", "none", "--timeout", "3s"], &["python3", "-c", STUCK]);
    let text = ended.stderr_text();
    assert!(
        line(&text, "hook")
            .ends_with("rank 0 runs Python without rankrun's hook, which reports exceptions: --hook none"),
        "{text}"
    );
    assert!(line(&text, "next").ends_with("leave --hook none out"), "{text}");
}

#[test]
fn nothing_is_said_of_ranks_that_have_their_hook_or_are_not_python() {
    let options = ["-n", "2", "--timeout", "3s"];
    for command in [&["python3", "-c", STUCK][..], &["sleep", "60"], &["sh", "-c", "python3 -c \"$0\"; true", STUCK]] {
        let text = run(&options, command).stderr_text();
        assert!(text.contains("timed out after 3 s") && !text.contains("hook"), "{text}");
    }
}

#[test]
fn nothing_is_said_of_ranks_that_end_well_or_fail_with_a_cause() {
    // Long enough for the look that a silent traceback causes.
    let slow = STUCK.replace("time.sleep(60)", "time.sleep(2)");
    let ended = run(&["-n", "2"], &["python3", "-I", "-c", &slow]);
    assert_eq!(ended.code, Some(0));
    assert!(!ended.stderr_text().contains("rankrun"), "{}", ended.stderr_text());
    let ended = run(&["-n", "2", "--timeout", "30s"], &["python3", "-I", "-c", "raise ValueError('boom')"]);
    assert_eq!(ended.code, Some(1));
    let text = ended.stderr_text();
    assert!(text.contains("failed: ValueError: boom") && !text.contains("hook"), "{text}");
}

#[test]
fn a_suspect_is_named_with_the_reason() {
    let ended = run(&["-n", "1", "--on-suspect", "kill"], &["python3", "-I", "-c", STUCK]);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(1), "{text}");
    assert!(text.contains("rank 0 failed: ValueError: boom"), "{text}");
    assert!(line(&text, "hook").ends_with("Python was started with -I"), "{text}");
    assert!(text.contains("start Python without -I"), "{text}");
}

#[test]
fn a_rank_that_survives_its_traceback_is_not_suspected() {
    // What stands in the way of a look.
    let shell = "printf 'Traceback (most recent call last):\\n  File \"a.py\", line 1, in <module>\\nValueError: boom\\n' >&2; exec sleep 60";
    let warned = |command: &[&str]| {
        let text = run(&["-n", "1", "--timeout", "13s"], command).stderr_text();
        text.lines().filter(|line| line.contains("and is still running")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(warned(&["python3", "-I", "-c", STUCK]), [""; 0]);
    let note = "rankrun: rank 0 wrote a traceback (ValueError: boom) and is still running; --on-suspect kill would end the job";
    assert_eq!(warned(&["sh", "-c", shell]), [note], "there is no interpreter that could be seen to run");
}

#[test]
fn a_signal_that_asks_for_the_state_is_answered_with_the_reason_and_so_is_one_that_ends_the_job() {
    let running = Job::new(["-n", "2", "python3", "-I", "-c", STUCK]).env("PYTHONDONTWRITEBYTECODE", "1").start();
    let said = |text: &str| String::from_utf8_lossy(&running.stderr_so_far()).matches(text).count();
    wait_until(BOUND, || (said("ValueError: boom") >= 2).then_some(())).expect("both ranks have failed");
    processes::send(running.front(), Signal::QUIT);
    let why = "ranks 0-1 run Python without rankrun's hook, which reports exceptions: Python was started with -I";
    wait_until(BOUND, || (said(why) == 1).then_some(())).expect("the reason");
    processes::send(running.front(), Signal::INT);
    let text = running.finish(BOUND).stderr_text();
    assert!(line(&text, "hook").ends_with(why), "{text}");
}
