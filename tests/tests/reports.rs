//! The report: what its text says besides the headline, and where it is kept.

use std::fs;

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use rankrun_core::evidence::Class;
use rankrun_core::report::Report;
use rankrun_tests::{Environment, Job, helper, processes, rankrun, scratch, skip, wait_until};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(60);

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
    let flood = r#"trap 'for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do echo bye; done >&2; exit 1' TERM; touch $0.up; while :; do sleep 0.01; done"#;
    let script = FAIL.replace("exec sleep 100", &format!("{{ {flood}; }}"));
    let barrier = format!("test $RANKRUN_RANK = 1 && while test ! -e $0.up; do sleep 0.01; done; {script}");
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

/// `rankrun report` of a user whose reports are below this directory.
fn report(state: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(rankrun());
    command.arg("report").args(words).env("XDG_STATE_HOME", state).output().expect("rankrun can be started")
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

#[test]
fn the_last_report_any_one_and_a_list_are_printed_and_old_ones_go() {
    let state = scratch();
    let none = report(&state, &[]);
    assert_eq!(none.status.code(), Some(2));
    assert!(text(&none.stderr).starts_with("error: no report is kept in "), "{}", text(&none.stderr));
    let mut ids = Vec::new();
    for code in 1..=4 {
        let script = format!("exit {code}");
        let job = Job::new(["--keep-reports", "3", "sh", "-c", &script]).env("XDG_STATE_HOME", &state);
        assert_eq!(job.run().code, Some(code));
        let last = report(&state, &["--json"]);
        let last: Report = serde_json::from_slice(&last.stdout).expect("the report has our form");
        assert_eq!(i32::from(last.exit_code.0), code, "the newest is printed");
        ids.push(last.job.0);
    }
    assert!(text(&report(&state, &[]).stdout).starts_with("rankrun: rank 0 failed: exited with code 4"));
    assert_eq!(report(&state, &[&ids[0]]).status.code(), Some(2), "the first was the oldest of four");
    for (id, code) in ids.iter().zip(1..).skip(1) {
        let path = state.join("rankrun").join(id);
        let whole = path.join("report.json");
        for named in [id.as_str(), &id[..7], path.to_str().expect("text"), whole.to_str().expect("text")] {
            let printed = text(&report(&state, &[named]).stdout);
            assert!(printed.starts_with(&format!("rankrun: rank 0 failed: exited with code {code}")), "{printed}");
        }
    }
    let list = text(&report(&state, &["--list"]).stdout);
    let listed: Vec<&str> = list.lines().skip(1).map(|line| &line[..8]).collect();
    assert_eq!(listed, ids[1..].iter().rev().collect::<Vec<_>>(), "{list}");
    let list: serde_json::Value = serde_json::from_slice(&report(&state, &["--list", "--json"]).stdout).expect("JSON");
    assert_eq!((list.as_array().map(Vec::len), &list[0]["exit_code"]), (Some(3), &4.into()), "{list}");
    let unknown = report(&state, &["zzz"]);
    assert_eq!(unknown.status.code(), Some(2));
    fs::remove_dir_all(&state).expect("the directory is ours");
}

#[test]
fn the_report_of_an_attempt_is_printed_and_those_of_an_earlier_job_are_not_kept() {
    let directory = scratch();
    let place = directory.join("kept").display().to_string();
    let run = |restarts: &str| {
        let options = ["--restart", restarts, "--backoff", "0", "--no-breaker", "--report-dir", &place];
        let script = "exit $((3 + RANKRUN_ATTEMPT))";
        assert!(Job::new(options.into_iter().chain(["sh", "-c", script])).run().code.is_some_and(|code| code > 2));
    };
    let kept = |attempt: u32| directory.join(format!("kept/attempt-{attempt}.json")).exists();
    run("6");
    fs::write(directory.join("kept/attempt-99.json"), "mine").expect("it is ours");
    assert!((0..6).all(kept));
    for (attempt, begins) in [
        ("0", "rankrun: rank 0 failed: exited with code 3"),
        ("4", "rankrun: rank 0 failed: exited with code 7"),
        ("6", "rankrun: rank 0 failed: exited with code 9"),
    ] {
        let printed = report(&directory, &[&place, "--attempt", attempt]);
        assert!(text(&printed.stdout).starts_with(begins), "{attempt}: {}", text(&printed.stdout));
    }
    let whole = text(&report(&directory, &[&place]).stdout);
    assert!(whole.contains(&format!("attempts 1-2: \"rankrun report {place} --attempt 1\", and so on\n")), "{whole}");
    for (attempt, said) in [("7", "it has attempts 0 to 6\n"), ("-1", "\"-1\" is not the number of an attempt")] {
        let refused = report(&directory, &[&place, "--attempt", attempt]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused.stderr).contains(said), "{}", text(&refused.stderr));
    }
    run("1");
    assert!(kept(0) && !(1..6).any(kept) && kept(99), "those of the first job are gone, and a user's file is not");
    let refused = Job::new(["--report-dir", &place, "no-such-program"]).run();
    assert!(refused.code == Some(127) && !kept(0) && kept(99), "{}", refused.stderr_text());
    fs::remove_dir_all(&directory).expect("the directory is ours");
}

#[test]
fn a_job_that_is_refused_leaves_a_report_where_one_is_asked_for() {
    let directory = scratch();
    let place = directory.join("report").display().to_string();
    for (words, code) in [
        (&["-n", "2", "no-such-program"][..], 127),
        (&["-n", "10000000", "true"], 2),
        (&["--log-dir", "/proc/logs", "true"], 2),
    ] {
        let ended = Job::new(["--report-dir", &place].iter().chain(words)).run();
        assert_eq!(ended.code, Some(code), "{}", ended.stderr_text());
        let json = fs::read(directory.join("report/report.json")).expect("a report is written");
        let report: Report = serde_json::from_slice(&json).expect("the report has our form");
        assert_eq!((i32::from(report.exit_code.0), report.class), (code, Some(Class::Refused)));
        let first = ended.stderr_text().lines().next().map(str::to_owned);
        assert_eq!(first, Some(format!("error: {}", report.summary)));
        fs::remove_dir_all(directory.join("report")).expect("the directory is ours");
    }
    fs::remove_dir_all(&directory).expect("the directory is ours");
}

/// What the lines say, without their times.
fn without_times(text: &str) -> String {
    let mut words = Vec::new();
    for word in text.split_whitespace() {
        let number = word.trim_end_matches([',', ';']);
        match number.parse::<f64>() {
            Ok(_) if number.contains('.') => words.push(word.replace(number, "N")),
            _ => words.push(word.to_owned()),
        }
    }
    words.join(" ")
}

#[test]
fn a_timeout_says_where_the_ranks_were() {
    let talk = helper("talk");
    let script = r#"
        case $RANKRUN_RANK in
            0) echo epoch 3; "$0" note 3 0;;
            1) echo; ;;
            2) exit 0;;
            *) echo "step of rank $RANKRUN_RANK";;
        esac
        exec sleep 100"#;
    let ended = Job::new(["-n", "6", "--timeout", "4s", "--output", "none", "sh", "-c", script, &talk]).run();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(124), "{text}");
    let states =
        text.lines().skip_while(|line| !line.starts_with("  state")).take_while(|it| !it.starts_with("  others"));
    let states: Vec<String> = states.map(without_times).collect();
    assert_eq!(
        states,
        [
            "state rank 0 silent N s; note: \"step 3\"; last line: \"epoch 3\"",
            "rank 1 silent N s",
            "rank 2 ended N s ago (exit 0)",
            "ranks 3-5 silent N s; last line of rank 3: \"step of rank 3\"",
        ],
        "{text}"
    );
}

#[test]
fn sigquit_says_where_the_ranks_are_and_the_job_goes_on() {
    let directory = scratch();
    let go = directory.join("go").display().to_string();
    let script = r#"echo waiting; while test ! -e "$0"; do sleep 0.05; done; echo done"#;
    let running = Job::new(["-n", "3", "sh", "-c", script, &go]).start();
    let has_written = |what: &[u8], bytes: Vec<u8>| bytes.windows(what.len()).filter(|it| *it == what).count();
    let bound = Duration::from_secs(60);
    let waiting = || (has_written(b"waiting", running.stdout_so_far()) == 3).then_some(());
    wait_until(bound, waiting).expect("the ranks run");
    processes::send(running.front(), Signal::QUIT);
    let told = || (has_written(b"where the ranks are:\n", running.stderr_so_far()) == 1).then_some(());
    wait_until(bound, told).expect("the lines are printed");
    fs::write(&go, "").expect("the directory is ours");
    let ended = running.finish(bound);
    assert_eq!((ended.code, ended.stdout_text().matches("done").count()), (Some(0), 3));
    let text = ended.stderr_text();
    let (states, places) = text.split_once("rankrun: where the ranks are:\n").expect("both are told");
    assert_eq!(without_times(states), "rankrun: after N s: ranks 0-2 silent N s; last line: \"waiting\"");
    assert!(places.contains(" < "), "{text}");
    fs::remove_dir_all(&directory).expect("the directory is ours");
}

#[test]
fn a_rank_whose_program_is_over_is_told_apart_from_those_in_a_barrier() {
    for name in ["mpich", "impi-rt"] {
        let Some(environment) = Environment::find(name) else { continue };
        let code = "import os; from mpi4py import MPI; w = MPI.COMM_WORLD; w.Barrier()\n\
            open('%s/%d.up' % (os.environ['RANKRUN_TEST_DIR'], w.rank), 'w')\nw.rank == 1 or w.Barrier()";
        let job = Job::new(["-n", "3", &environment.program("python"), "-c", code]).start();
        job.wait_for_file("1.up");
        let told = wait_until(BOUND, || {
            processes::send(job.front(), Signal::QUIT);
            let text = String::from_utf8_lossy(&job.stderr_so_far()).into_owned();
            text.contains("\n  rank 1     has written nothing, in MPI_Finalize for ").then_some(text)
        });
        processes::send(job.front(), Signal::TERM);
        let ended = job.finish(BOUND);
        let text = told.unwrap_or_else(|| panic!("{name}: {}", ended.stderr_text()));
        assert!(text.contains("\n  ranks 0,2  have written nothing, "), "{name}: {text}");
        assert!(ended.stderr_text().contains("\n  state     rank 1     has written nothing, in MPI_Finalize for "));
    }
}

#[test]
fn notes_are_lines_where_that_is_asked_for_and_the_last_is_in_the_report() {
    let talk = helper("talk");
    let running = Job::new(["-v", "-n", "1", &talk, "note", "3", "0"]).start();
    let has_noted = || String::from_utf8_lossy(&running.stderr_so_far()).contains("rank 0: step 3").then_some(());
    wait_until(Duration::from_secs(60), has_noted).expect("the note is printed");
    processes::send(running.front(), Signal::TERM);
    let text = running.finish(Duration::from_secs(60)).stderr_text();
    assert!(text.contains("\n  state     rank 0  has written nothing; note: \"step 3\"\n"), "{text}");
}
