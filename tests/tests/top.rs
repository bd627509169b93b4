//! `rankrun top` and `rankrun status --watch` at running jobs (docs/top.md).

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use rankrun_tests::screen::Session;
use rankrun_tests::{Job, Running, Tier, listed_job, monotonic, processes, rankrun, slowness, wait_until};
use rustix::process::Signal;
use serde_json::Value;

const BOUND: Duration = Duration::from_secs(60);
/// What is wrong with a rank is shown after this time at most.
const SOON: Duration = Duration::from_secs(2);

/// A job of ranks that say their number and sleep, once all of them are up; and its id.
fn start(tier: Tier, ranks: u32, options: &[&str]) -> (Running, String) {
    start_with(tier, ranks, options, |job| job)
}

fn start_with(tier: Tier, ranks: u32, options: &[&str], change: impl FnOnce(Job) -> Job) -> (Running, String) {
    let script = "echo this is rank $RANKRUN_RANK; echo $$ > $RANKRUN_TEST_DIR/$RANKRUN_RANK.pid; exec sleep 600";
    let count = ranks.to_string();
    let words = ["-n", &count].into_iter().chain(options.iter().copied()).chain(["sh", "-c", script]);
    let running = change(Job::new(words).tier(tier)).start();
    for rank in 0..ranks {
        running.wait_for_text(&format!("{rank}.pid"));
    }
    let job = running.job_ids().into_iter().next();
    let job = job.or_else(|| wait_until(BOUND, || listed_job(running.front()))).expect("the job has an id");
    // The front knows a moment later than the rank that it runs.
    let is_running = || {
        let status: Value = serde_json::from_slice(&ask(&["status", &job, "--json"])).ok()?;
        (status["state"] == "running").then_some(())
    };
    wait_until(BOUND, is_running).expect("the job runs");
    (running, job)
}

fn ask(arguments: &[&str]) -> Vec<u8> {
    Command::new(rankrun()).args(arguments).stdin(Stdio::null()).output().expect("rankrun can be started").stdout
}

fn pid(running: &Running, rank: u32) -> i32 {
    running.wait_for_text(&format!("{rank}.pid")).trim().parse().expect("a pid")
}

/// Ends a job from outside, and proves that nothing is left.
fn end(running: Running) {
    processes::send(running.front(), Signal::TERM);
    running.finish(BOUND);
}

/// Sockets and threads of a process.
type Held = (usize, Vec<String>);

/// How many sockets a process has, and the names of its threads, but that of the thread that watches /dev/shm: an agent starts it when it is
/// wanted, whoever looks.
fn holds(pid: i32) -> Held {
    let entries = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).expect("it lives").flatten();
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default().trim().to_owned();
    let mut threads: Vec<String> = entries("task").map(name).filter(|name| name != "shm").collect();
    threads.sort();
    let is_socket = |fd: &fs::DirEntry| {
        fs::read_link(fd.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    };
    (entries("fd").filter(is_socket).count(), threads)
}

fn has_meter(agent: i32) -> bool {
    processes::children(agent).iter().any(|child| child.name == "rr-meter")
}

/// Waits for a row of the screen that begins so; for no longer than what is wrong may take to be shown.
fn wait_soon(session: &Session, row: &str) {
    let begun = monotonic();
    session.screen.wait(row, |screen| screen.rows().iter().any(|shown| shown.starts_with(row)));
    let took = monotonic() - begun;
    assert!(took < SOON * slowness(), "{row:?} took {took:?}");
}

#[test]
fn ranks_are_shown_with_what_is_wrong_with_them_and_the_job_goes_on() {
    for tier in Tier::sampled() {
        let (running, job) = start(tier, 4, &["--keep-going", "--stopped-timeout", "10m"]);
        let agent = running.agent();
        assert!(!has_meter(agent), "nobody looks");
        let mut session = Session::start(tier);
        let modes = session.screen.modes();
        session.line(&format!("$R top {job}"));
        session.screen.wait_for(&format!("job {job}: running"));
        session.screen.wait_for("4 ranks on 1 node: 4 running");
        session.screen.wait_for("this is rank 3");
        assert!(session.screen.is_alternate() && has_meter(agent));
        // Rates are there with the second answer.
        session
            .screen
            .wait("CPU time", |screen| screen.rows().iter().any(|row| row.starts_with("     0 running     0.0")));

        processes::send(pid(&running, 2), Signal::STOP);
        wait_soon(&session, "!    2 stopped");
        processes::send(pid(&running, 2), Signal::CONT);
        wait_soon(&session, "     2 running");
        processes::send(pid(&running, 1), Signal::KILL);
        wait_soon(&session, "!    1 failed");
        session.screen.wait_for("(SIGKILL)");
        session.screen.wait_for("3 running, 1 failed, 1 odd");

        session.screen.press("!\r");
        session.screen.wait_for("  odd      dead");
        session.screen.press("q/rank 3\r");
        // The title has the command, with the same words.
        let ranks =
            |session: &Session| session.screen.rows()[1..].iter().filter(|row| row.contains("this is rank")).count();
        session.screen.wait("only one rank", |_| ranks(&session) == 1);
        session.screen.press("\x1b");
        session.screen.wait("all ranks", |_| ranks(&session) == 3);

        session.screen.resize(40, 120);
        session.screen.wait("a larger picture", |screen| screen.rows()[39].starts_with("q quit"));
        session.screen.resize(8, 40);
        session.screen.wait("a smaller picture", |screen| screen.rows()[7].starts_with("q quit"));
        session.screen.resize(24, 80);
        session.screen.press("q");
        session.wait_for_prompt();
        assert_eq!((session.screen.is_alternate(), session.screen.modes()), (false, modes));
        session.finish();

        assert!(wait_until(BOUND, || (!has_meter(agent)).then_some(())).is_some(), "the meter stays");
        let status: Value = serde_json::from_slice(&ask(&["status", &job, "--json"])).expect("it is JSON");
        assert_eq!((&status["state"], &status["ranks"][3]["state"]), (&"running".into(), &"running".into()));
        end(running);
    }
}

#[test]
fn a_job_pays_nothing_after_a_look() {
    for tier in Tier::sampled() {
        let (running, job) = start(tier, 4, &[]);
        let (front, agent) = (running.front(), running.agent());
        let look = || {
            let mut watch = Command::new(rankrun())
                .args(["status", &job, "--watch=0.1", "--json"])
                .stdout(Stdio::piped())
                .spawn()
                .expect("rankrun can be started");
            let lines = BufReader::new(watch.stdout.take().expect("piped")).lines();
            let is_measured =
                |line: &std::io::Result<String>| line.as_ref().is_ok_and(|line| line.contains("\"processes\""));
            assert!(lines.into_iter().any(|line| is_measured(&line)), "the job was measured");
            assert!(has_meter(agent));
            watch.kill().expect("it runs");
            watch.wait().expect("it ends");
        };
        assert!(!has_meter(agent), "nobody looks");
        let before = [front, agent].map(holds);
        look();
        // At its start a job may hold more than later.
        let holds_no_more = || {
            let after = [front, agent].map(holds);
            let is_more = |(after, before): (&Held, &Held)| after.0 > before.0 || after.1.len() > before.1.len();
            !has_meter(agent) && !after.iter().zip(&before).any(is_more)
        };
        let is_as_before = wait_until(BOUND, || holds_no_more().then_some(()));
        assert!(is_as_before.is_some(), "{before:?} before, {:?} after", [front, agent].map(holds));
        end(running);
    }
}

#[test]
fn a_job_is_stopped_on_request_and_its_end_stays_on_the_screen() {
    let (running, job) = start(Tier::available()[0], 2, &[]);
    let mut session = Session::start(Tier::available()[0]);
    let (other, _) = start(Tier::available()[0], 1, &[]);
    session.line("$R top");
    // There is a choice: also of the jobs of other tests.
    session.screen.wait_for("several jobs are running");
    let row = || session.screen.rows().iter().position(|row| row.starts_with(&job));
    let at = wait_until(BOUND, row).expect("the job is in the list");
    session.screen.press(&format!("{}\r", "j".repeat(at - 1)));
    session.screen.wait_for(&format!("job {job}: running"));
    session.screen.wait_for("2 ranks on 1 node: 2 running");
    session.screen.press("S");
    session.screen.wait_for("as SIGTERM to its rankrun does? y/n");
    session.screen.press("n");
    session.screen.wait_for("q quit  ? help");
    session.screen.press("Sy");
    session.screen.wait_for("over, exit code 143");
    running.finish(BOUND);
    session.screen.press("?");
    session.screen.wait_for("An odd rank is marked");
    session.screen.press("qq");
    session.wait_for_prompt();
    session.run("echo code $?");
    session.screen.wait_for_row("code 0");
    session.finish();
    end(other);
}

#[test]
fn the_terminal_is_put_back_however_top_ends_or_stops() {
    let (running, job) = start(Tier::available()[0], 2, &[]);
    let mut session = Session::start(Tier::available()[0]);
    let modes = session.screen.modes();
    let is_back = |session: &Session| (session.screen.is_alternate(), session.screen.modes()) == (false, modes.clone());
    session.line(&format!("$R top {job}"));
    session.screen.wait_for("2 ranks on 1 node: 2 running");
    // ^Z, and on.
    session.screen.press("\x1a");
    session.wait_for_prompt();
    assert!(is_back(&session), "{}", session.screen.text());
    session.line("fg");
    session.screen.wait("the picture again", |screen| screen.is_alternate() && screen.text().contains("2 running"));
    let top = session.screen.foreground();
    // A stop that nobody can catch: the shell puts its own modes back.
    processes::send(top, Signal::STOP);
    session.wait_for_prompt();
    session.line("fg");
    session
        .screen
        .wait("the picture again", |screen| screen.rows()[0].starts_with("job") && screen.text().contains("2 running"));
    // The front stands still.
    processes::send(running.front(), Signal::STOP);
    session.screen.wait_for("is stopped; fg in its shell continues it");
    processes::send(running.front(), Signal::CONT);
    session.screen.wait("the front's answer", |screen| !screen.text().contains("fg in its shell"));
    for (ends_by, code) in [(Some(Signal::TERM), 143), (Some(Signal::HUP), 129), (None, 130)] {
        match ends_by {
            Some(signal) => processes::send(session.screen.foreground(), signal),
            None => session.screen.press("\x03"),
        }
        session.wait_for_prompt();
        assert!(is_back(&session), "{}", session.screen.text());
        session.run("echo code $?");
        session.screen.wait_for_row(&format!("code {code}"));
        session.line(&format!("clear; $R top {job}"));
        session.screen.wait("the picture again", |screen| screen.is_alternate() && screen.text().contains("2 running"));
    }
    // The front is killed: its job is gone.
    processes::send(running.front(), Signal::KILL);
    session.screen.wait("the end of the job", |screen| screen.text().contains("front"));
    session.screen.press("q");
    session.wait_for_prompt();
    assert!(is_back(&session), "{}", session.screen.text());
    // What cannot draw is told what can.
    session.run(&format!("clear; TERM=dumb $R top {job}"));
    session.screen.wait_for("rankrun status --watch JOB");
    session.finish();
    running.finish(BOUND);
}

#[test]
fn status_that_watches_prints_a_line_for_each_change_and_ends_with_the_job() {
    let (running, job) = start(Tier::available()[0], 3, &["--keep-going"]);
    let mut watch = Command::new(rankrun())
        .args(["status", &job, "--watch=0.2"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("rankrun can be started");
    let mut lines = BufReader::new(watch.stdout.take().expect("piped")).lines().map(|line| line.expect("text"));
    let mut next = |what: &str| {
        let line = lines.next().unwrap_or_else(|| panic!("no line \"{what}\""));
        assert!(line.ends_with(what), "{line:?} is not {what:?}");
    };
    next(&format!("job {job}: running, attempt 0"));
    next("ranks 0-2: running");
    processes::send(pid(&running, 1), Signal::KILL);
    next("rank 1: ended (SIGKILL)");
    let mut json = Command::new(rankrun())
        .args(["status", &job, "--watch=0.2", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("rankrun can be started");
    let mut objects = BufReader::new(json.stdout.take().expect("piped")).lines();
    let mut object = || serde_json::from_str::<Value>(&objects.next().expect("a line").expect("text")).expect("JSON");
    let first = object();
    assert_eq!((&first["state"], &first["ranks"][0]["usage"]["processes"]), (&"running".into(), &1.into()));
    for rank in [0, 2] {
        processes::send(pid(&running, rank), Signal::KILL);
    }
    running.finish(BOUND);
    let last = std::iter::from_fn(|| Some(object())).find(|object| object["state"] == "over").expect("the end");
    assert_eq!(last["exit_code"], 137);
    assert!(json.wait().expect("it ends").success() && watch.wait().expect("it ends").success());
    let rest: Vec<String> = lines.collect();
    assert!(rest.last().is_some_and(|line| line.starts_with(&format!("job {job}: over, exit code 137"))), "{rest:?}");
}

#[test]
fn status_that_watches_on_a_terminal_stays_in_its_place() {
    let (running, job) = start(Tier::available()[0], 2, &[]);
    let mut session = Session::start(Tier::available()[0]);
    session.line(&format!("$R status {job} --watch=0.1"));
    session.screen.wait("some repetitions", |screen| screen.all().matches("\x1b[J").count() > 5);
    assert_eq!(session.screen.text().matches(&format!("job {job}: running")).count(), 1, "{}", session.screen.text());
    end(running);
    session.wait_for_prompt();
    assert!(session.screen.text().contains(&format!("job {job}: over, exit code 143")), "{}", session.screen.text());
    session.finish();
}

/// A program of the name of NVIDIA's, that says the same.
#[test]
fn gpus_are_measured_by_the_vendors_program_which_ends_with_the_look() {
    use std::os::unix::fs::PermissionsExt;
    for tier in Tier::sampled() {
        let programs = rankrun_tests::scratch();
        let program = programs.join("nvidia-smi");
        let script = "#!/bin/sh\necho $$ > \"$(dirname \"$0\")/started\"\nwhile :; do\n\
            echo '# gpu pid type sm mem enc dec fb command'\necho '# Idx # C/G % % % % MB name'\n\
            for file in \"$(dirname \"$0\")\"/*.pid; do read pid < $file; echo \" 3 $pid C 77 5 - - 1024 python\"; done\n\
            sleep 0.2\ndone\n";
        fs::write(&program, script).expect("it is ours");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").expect("there is one"));
        let (running, job) = start_with(tier, 2, &[], |job| job.env("PATH", path));
        fs::copy(running.directory().join("1.pid"), programs.join("1.pid")).expect("it is there");
        assert!(!programs.join("started").exists(), "nobody looks");
        let mut watch = Command::new(rankrun())
            .args(["status", &job, "--watch=0.2", "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("rankrun can be started");
        let mut lines = BufReader::new(watch.stdout.take().expect("piped")).lines();
        let mut gpus = || {
            let line = lines.next().expect("the job runs").expect("text");
            let status: Value = serde_json::from_str(&line).expect("JSON");
            [0, 1].map(|rank: usize| status["ranks"][rank]["usage"]["gpus"].clone())
        };
        let of_one = wait_until(BOUND, || Some(gpus()).filter(|[_, one]| !one.is_null())).expect("the rank uses a GPU");
        assert_eq!(of_one, [Value::Null, serde_json::json!([{ "index": 3, "busy": 77, "memory": 1u64 << 30 }])]);
        watch.kill().expect("it runs");
        watch.wait().expect("it ends");
        let started = fs::read_to_string(programs.join("started")).expect("it was started");
        let started: i32 = started.trim().parse().expect("a pid");
        let is_gone = wait_until(BOUND, || (!processes::is_alive(started)).then_some(()));
        assert!(is_gone.is_some(), "it outlives the look");
        end(running);
        fs::remove_dir_all(programs).expect("it is ours");
    }
}
