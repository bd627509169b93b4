//! Jobs that go on without their terminal, and those who look at them: no line is lost or doubled, nobody slows the job, and its end is the
//! same (docs/detach.md).

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rankrun_tests::screen::Session;
use rankrun_tests::{
    Ended, Host, Hosts, Job, Running, Tier, full_scale, listed_job, processes, rankrun, slowness, wait_until,
};
use rustix::process::Signal;
use serde_json::Value;

pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// Ranks that write numbered lines, wait for the file `go` after that of $1, for the file `rest` after that of $2, and after the last for the
/// file `end`. Rank 1 then fails.
pub(crate) const COUNT: &str = "n=0; while [ $n -lt $0 ]; do n=$((n+1)); echo $RANKRUN_RANK:$n:; [ $((n % 50)) != 0 ] || sleep 0.01; \
                     [ $n != \"$1\" ] || until [ -e $RANKRUN_TEST_DIR/go ]; do sleep 0.01; done; \
                     [ $n != \"$2\" ] || until [ -e $RANKRUN_TEST_DIR/rest ]; do sleep 0.01; done; done; \
                     : > $RANKRUN_TEST_DIR/$RANKRUN_RANK.done; until [ -e $RANKRUN_TEST_DIR/end ]; do sleep 0.01; done; \
                     [ $RANKRUN_RANK != 1 ] || exit 3";

/// A job that is detached from the start, and waited for.
fn start(tier: Tier, lines: usize) -> (Running, Looker) {
    let script = format!("J=$($R --detach -n 2 sh -c '{COUNT}' {lines}) || exit 99; echo $J > id; exec $R wait $J");
    let running = shell(tier, &script);
    let looker = Looker::of(&running, running.wait_for_text("id").trim());
    (running, looker)
}

pub(crate) fn shell(tier: Tier, script: &str) -> Running {
    let script = format!("cd $RANKRUN_TEST_DIR; {script}");
    Job::of_program("sh", ["-c", &script]).tier(tier).env("R", rankrun()).env_remove("RANKRUN_JOURNAL").start()
}

/// Somebody who looks at a job from elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct Looker {
    job: String,
    state: std::path::PathBuf,
}

impl Looker {
    pub(crate) fn of(running: &Running, job: &str) -> Looker {
        Looker { job: job.to_owned(), state: running.directory().join("state") }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(rankrun());
        let words = words.iter().map(|word| if *word == "JOB" { &self.job } else { *word });
        command.args(words).env("XDG_STATE_HOME", &self.state).stdin(Stdio::null());
        command
    }

    pub(crate) fn output(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("rankrun can be started")
    }

    pub(crate) fn text(&self, words: &[&str]) -> String {
        String::from_utf8(self.output(words).stdout).expect("text")
    }

    pub(crate) fn start(&self, words: &[&str]) -> Child {
        self.command(words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("rankrun can be started")
    }
}

/// That each of two ranks has written all of its lines, once and in order.
fn assert_whole(text: &str, lines: usize, what: &str) {
    for rank in 0..2 {
        let prefix = format!("{rank}:");
        let numbers = text.lines().filter_map(|line| line.strip_prefix(&prefix)?.strip_suffix(':')?.parse().ok());
        let numbers: Vec<usize> = numbers.collect();
        let wrong = (1..=lines).zip(&numbers).find(|(wanted, number)| wanted != *number);
        assert!(
            wrong.is_none() && numbers.len() == lines,
            "{what}, rank {rank}: {} of {lines}, {wrong:?}",
            numbers.len()
        );
    }
    let ours = text.lines().filter(|line| !line.starts_with("rankrun: "));
    assert_eq!(ours.count(), 2 * lines, "{what}: no torn lines");
}

fn assert_ended_so(ended: &Ended) {
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    assert!(ended.stdout_text().contains("over, exit code 3: rank 1 failed"), "{}", ended.stdout_text());
}

#[test]
fn those_who_come_and_leave_miss_nothing_and_see_nothing_twice_beside_a_stopped_and_a_slow_one() {
    for tier in Tier::sampled() {
        let (lines, visits) = full_scale((20_000, 100), (4_000, 12));
        let (running, looker) = start(tier, lines);
        let whole = looker.start(&["attach", "JOB", "--tail", "all"]);
        let stopped = looker.start(&["logs", "JOB", "-f"]);
        let slow = looker.start(&["logs", "JOB", "-f"]);
        processes::send(stopped.id().cast_signed(), Signal::STOP);
        let mut seen = Vec::new();
        for visit in 0..visits {
            let mut visitor = looker.start(&["attach", "JOB"]);
            let mut reader = BufReader::new(visitor.stdout.take().expect("a pipe"));
            // The first line is there, or the job has nothing new.
            if visit + 1 < visits && !running.directory().join("0.done").exists() {
                let _ = reader.read_until(b'\n', &mut seen).expect("it can be read");
            }
            if visit + 1 == visits {
                wait_until(BOUND * slowness(), || running.directory().join("0.done").exists().then_some(()));
                wait_until(BOUND * slowness(), || running.directory().join("1.done").exists().then_some(()));
                running.sign("end");
            } else {
                processes::send(visitor.id().cast_signed(), if visit % 2 == 0 { Signal::TERM } else { Signal::HUP });
            }
            reader.read_to_end(&mut seen).expect("it can be read");
            let status = visitor.wait().expect("it ends");
            assert_eq!(status.code() == Some(3), visit + 1 == visits, "{status:?}");
        }
        processes::send(stopped.id().cast_signed(), Signal::CONT);
        assert_whole(&String::from_utf8_lossy(&seen), lines, "the visitors");
        for (what, viewer) in [("from start to end", whole), ("stopped", stopped), ("slow", slow)] {
            let output = viewer.wait_with_output().expect("it ends");
            assert_whole(&String::from_utf8_lossy(&output.stdout), lines, what);
            assert_eq!(output.status.code(), Some(if what == "from start to end" { 3 } else { 0 }), "{what}");
        }
        assert_ended_so(&running.finish(BOUND));
        // The directory of the job is gone with the test: what is kept was read before.
    }
}

#[test]
fn what_is_kept_of_a_job_that_is_over_is_read_like_that_of_a_running_one() {
    let script = format!(
        "J=$($R --detach -n 2 sh -c '{COUNT}' 100) || exit 99; echo $J > id; $R wait $J; echo code $? > over; until [ -e read ]; do sleep 0.01; done"
    );
    let running = shell(Tier::sampled()[0], &script);
    let looker = Looker::of(&running, running.wait_for_text("id").trim());
    (0..2).for_each(|rank| running.wait_for_file(&format!("{rank}.done")));
    running.sign("end");
    assert_eq!(running.wait_for_text("over"), "code 3\n");
    assert_whole(&looker.text(&["logs", "JOB"]), 100, "logs");
    assert_whole(&looker.text(&["attach", "JOB"]), 100, "attach");
    assert_eq!(looker.output(&["attach", "JOB"]).status.code(), Some(3));
    // The report is a part of it, on stderr.
    let last = looker.output(&["logs", "JOB", "--rank", "1", "--tail", "7"]);
    let streams = [last.stdout, last.stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
    let lines = streams.iter().map(|text| text.lines().count()).sum::<usize>();
    let is_right =
        lines == 7 && streams[0].ends_with("1:99:\n1:100:\n") && streams[0].lines().all(|line| line.starts_with("1:"));
    assert!(is_right, "{streams:?}");
    let waited = looker.output(&["wait", "JOB"]);
    assert_eq!(waited.status.code(), Some(3));
    let report = looker.text(&["report", "JOB"]);
    assert!(report.contains("rank 1 failed: exited with code 3"), "{report}");
    running.sign("read");
    running.finish(BOUND);
}

#[test]
fn a_job_that_does_not_begin_fails_in_the_foreground() {
    let job = |words: &[&str]| {
        let ended = Job::new(["--detach", "-n", "2"].iter().chain(words)).run();
        (ended.code, ended.stdout_text(), ended.stderr_text())
    };
    let (code, stdout, stderr) = job(&["/nowhere/program"]);
    assert_eq!((code, stdout.as_str()), (Some(127), ""), "{stderr}");
    assert!(stderr.contains("cannot run \"/nowhere/program\""), "{stderr}");
    let (code, _, stderr) = job(&["--report-dir", "/proc/nowhere", "true"]);
    assert_eq!(code, Some(2), "{stderr}");
    let (code, _, stderr) = job(&["--tty", "1", "true"]);
    assert_eq!((code, stderr.as_str()), (Some(2), "error: --detach cannot be used with --tty\n"));
    // One that is over at once has begun.
    let (code, stdout, stderr) = job(&["true"]);
    assert_eq!((code, stdout.trim().len(), stderr.as_str()), (Some(0), 8, ""));
}

#[test]
fn nobody_who_reads_the_id_to_the_end_of_the_pipe_waits_for_the_job() {
    let (running, looker) = start(Tier::sampled()[0], 1);
    // The shell has the id, although the ranks wait for the file.
    let status: Value = serde_json::from_str(&looker.text(&["status", "JOB", "--json"])).expect("JSON");
    assert_eq!((status["detached"].as_bool(), &status["front_pid"]), (Some(true), &status["pid"]));
    running.sign("end");
    assert_ended_so(&running.finish(BOUND));
}

/// The lines that a session has seen, and those that are kept from there on, are all of them.
fn assert_goes_on(session: &Session, looker: &Looker, lines: usize) {
    // The job has left its terminal: these lines are for who comes after it.
    session.running.sign("rest");
    session.running.wait_for_file("0.done");
    session.running.wait_for_file("1.done");
    let mut viewer = looker.start(&["attach", "JOB"]);
    let mut reader = BufReader::new(viewer.stdout.take().expect("a pipe"));
    let mut rest = String::new();
    // `attach` to a job that is over prints the whole transcript: wait until it follows.
    reader.read_line(&mut rest).expect("text");
    session.running.sign("end");
    reader.read_to_string(&mut rest).expect("text");
    assert_eq!(viewer.wait().expect("it ends").code(), Some(3), "{rest}");
    let before = session.screen.all().replace('\r', "").replace("^Z", "");
    let is_line = |line: &&str| line.starts_with("0:") || line.starts_with("1:");
    let all: Vec<&str> = before.lines().filter(is_line).chain(rest.lines().filter(is_line)).collect();
    assert_whole(&(all.join("\n") + "\n"), lines, "the terminal, and who came after it");
}

fn job_of(session: &Session) -> String {
    let found = wait_until(BOUND * slowness(), || {
        let output = Command::new(rankrun()).args(["status", "--json"]).output().ok()?;
        let all: Value = serde_json::from_slice(&output.stdout).ok()?;
        let ours = session.running.processes();
        let is_ours = |job: &&Value| ours.iter().any(|process| job["front_pid"] == process.pid);
        Some(all.as_array()?.iter().find(is_ours)?["job"].as_str()?.to_owned())
    });
    found.expect("the job is in the list")
}

fn start_in_shell(session: &Session, stops_at: u32) -> Looker {
    session.line(&format!("$R -n 2 sh -c '{COUNT}' 2000 {stops_at} 1990"));
    let last = [0, 1].map(|rank| format!("{rank}:{stops_at}:"));
    session.screen.wait("lines", |screen| last.iter().all(|line| screen.all().contains(line)));
    Looker::of(&session.running, &job_of(session))
}

#[test]
fn a_shell_gets_its_prompt_when_a_job_leaves_its_terminal() {
    for tier in Tier::sampled() {
        let mut session = Session::start(tier);
        let looker = start_in_shell(&session, 200);
        session.running.sign("go");
        let output = looker.output(&["detach", "JOB"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        session.wait_for_prompt();
        assert_goes_on(&session, &looker, 2000);
        session.run("wait %1; echo code $?");
        session.screen.wait_for_row("code 3");
        session.finish();
    }
}

#[test]
fn a_job_that_was_stopped_by_a_key_goes_on_without_its_terminal() {
    for tier in Tier::sampled() {
        let mut session = Session::start(tier);
        // A key throws away what the terminal has not shown.
        let looker = start_in_shell(&session, 200);
        session.screen.press("\x1a");
        session.wait_for_prompt();
        let output = looker.output(&["detach", "JOB"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        session.running.sign("go");
        assert_goes_on(&session, &looker, 2000);
        session.finish();
    }
}

#[test]
fn a_job_goes_on_when_its_terminal_is_gone() {
    for tier in Tier::sampled() {
        let terminal = Terminal::open();
        let script = format!("exec \"$R\" --on-hangup detach -n 2 sh -c '{COUNT}' 3000");
        let job = Job::of_program("sh", ["-c", &script]).tier(tier).env("R", rankrun()).terminal(&terminal.path);
        let running = job.start();
        let before = terminal.read_until("1:200:");
        let front = running.front();
        let id = wait_until(BOUND * slowness(), || listed_job(front));
        let looker = Looker::of(&running, &id.expect("the job is in the list"));
        drop(terminal);
        running.wait_for_file("0.done");
        running.wait_for_file("1.done");
        let mut viewer = looker.start(&["attach", "JOB"]);
        running.sign("end");
        let mut rest = String::new();
        viewer.stdout.take().expect("a pipe").read_to_string(&mut rest).expect("text");
        assert_eq!(viewer.wait().expect("it ends").code(), Some(3));
        // What the kernel had taken for the terminal, and nobody read, is gone with it: the rest has no gap.
        let after: Vec<usize> =
            rest.lines().filter_map(|line| line.strip_prefix("0:")?.strip_suffix(':')?.parse().ok()).collect();
        assert_eq!(after.last(), Some(&3000), "{rest}");
        assert!(after.windows(2).all(|pair| pair[1] == pair[0] + 1), "{after:?}");
        let last = before
            .lines()
            .filter_map(|line| line.trim_end().strip_prefix("0:")?.strip_suffix(':')?.parse::<usize>().ok())
            .max();
        assert!(after[0] > last.unwrap_or_default(), "nothing is seen twice");
        let ended = running.finish(BOUND);
        assert_eq!(ended.code, Some(3));
    }
}

/// A terminal that is gone when this is dropped.
struct Terminal {
    master: File,
    path: std::path::PathBuf,
}

impl Terminal {
    fn open() -> Terminal {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("it is ours");
        let path = ptsname(&master, Vec::new()).expect("it has a name").into_string().expect("text");
        Terminal { master: File::from(master), path: Path::new(&path).to_owned() }
    }

    fn read_until(&self, text: &str) -> String {
        let mut seen = Vec::new();
        let mut room = [0; 4096];
        while !String::from_utf8_lossy(&seen).contains(text) {
            let count = (&self.master).read(&mut room).expect("the job writes");
            seen.extend_from_slice(&room[..count]);
        }
        String::from_utf8_lossy(&seen).into_owned()
    }
}

#[test]
fn keys_leave_a_job_or_stop_it() {
    let (running, looker) = start(Tier::sampled()[0], 10);
    let mut session = Session::start(Tier::sampled()[0]);
    let attach = format!("XDG_STATE_HOME={} $R attach {}; echo code $?", looker.state.display(), looker.job);
    session.line(&attach);
    session.screen.wait_for("1:10:");
    session.screen.press("~.");
    session.wait_for_prompt();
    session.screen.wait_for_row("code 0");
    session.line(&attach);
    session.screen.wait("a second look", |screen| screen.all().matches("~. leaves it").count() == 2);
    session.screen.press("\x03");
    session.screen.wait_for("stop job");
    session.screen.press("x");
    session.screen.wait_for("going on");
    session.screen.press("\x1c");
    session.screen.wait_for("shows where its ranks are");
    // Twice is leaving too.
    session.screen.press("\x03");
    session.screen.wait("the question again", |screen| screen.all().matches("or go on").count() == 2);
    session.screen.press("\x03");
    session.wait_for_prompt();
    session.screen.wait("a second code", |screen| screen.all().matches("code 0").count() == 2);
    session.line(&attach.replace("attach", "attach --tail 1"));
    session.screen.wait("a third look", |screen| screen.all().matches("~. leaves it").count() == 3);
    session.screen.press("\x03");
    session.screen.wait("a third question", |screen| screen.all().matches("or go on").count() == 3);
    session.screen.press("s");
    session.wait_for_prompt();
    session.screen.wait_for_row("code 143");
    let modes = session.screen.modes();
    assert!(modes.contains("icanon") || !modes.contains("-echo "), "the terminal is as it was: {modes}");
    session.finish();
    let ended = running.finish(BOUND);
    assert_eq!(ended.code, Some(143), "{}", ended.stdout_text());
    assert!(fs::metadata(&looker.state).is_err(), "the directory of the test is gone");
}

#[test]
fn a_job_that_was_detached_is_found_by_its_id_wherever_its_report_is() {
    let script = "J=$($R --detach --report-dir there -n 1 sh -c 'echo line; exit 3') || exit 99; echo $J > id; \
                  for word in wait logs attach; do $R $word $J > $word.out; echo $word $?; done; \
                  $R -n 1 --report-dir there true; $R wait $J; echo reused $?; \
                  $R -n 1 sh -c 'exit 4'; $R logs $(cd state/rankrun; ls | grep -v $J); echo foreground $?; cat logs.out";
    let ended = shell(Tier::sampled()[0], script).finish(BOUND);
    let text = ended.stdout_text();
    for line in ["wait 3", "logs 0", "attach 3", "reused 2", "foreground 1"] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}{}", ended.stderr_text());
    }
    assert_eq!(text.lines().filter(|found| *found == "line").count(), 1, "{text}");
    assert!(ended.stderr_text().contains("no output of job "), "{}", ended.stderr_text());
}

/// A job with much output, until `end` is there.
fn start_loud() -> (Running, Looker) {
    let script = "J=$($R --detach -n 2 sh -c 'until [ -e $RANKRUN_TEST_DIR/end ]; do seq 1000; done') || exit 99; echo $J > id; \
                  exec $R wait $J";
    let running = shell(Tier::sampled()[0], script);
    let looker = Looker::of(&running, running.wait_for_text("id").trim());
    (running, looker)
}

#[test]
fn a_viewer_whose_output_nobody_takes_can_be_left() {
    let (running, looker) = start_loud();
    for words in [&["attach", "JOB"][..], &["logs", "-f", "JOB"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let full = writer.try_clone().expect("a descriptor");
        let mut viewer = looker.command(words).stdout(writer).stderr(Stdio::null()).spawn().expect("it starts");
        let is_full = || {
            let mut ends = [rustix::event::PollFd::new(&full, rustix::event::PollFlags::OUT)];
            rustix::event::poll(&mut ends, Some(&Default::default())).is_ok_and(|ready| ready == 0).then_some(())
        };
        wait_until(BOUND * slowness(), is_full).expect("the pipe is full");
        processes::send(viewer.id().cast_signed(), Signal::TERM);
        let status = wait_until(BOUND * slowness(), || viewer.try_wait().expect("it is ours")).expect("it ends");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15), "{words:?}: {status:?}");
        drop(reader);
    }
    running.sign("end");
    running.finish(BOUND);
}

#[test]
fn keys_leave_a_job_on_a_terminal_that_takes_nothing() {
    let (running, looker) = start_loud();
    let mut terminal = Terminal::open();
    let script = format!("exec setsid -c {} attach {}", rankrun().display(), looker.job);
    let open = || File::options().read(true).write(true).open(&terminal.path).expect("it is ours");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("XDG_STATE_HOME", &looker.state).stdin(open()).stdout(open()).stderr(open());
    let mut viewer = command.spawn().expect("it starts");
    terminal.read_until("~. leaves it");
    // Nobody reads any more.
    std::io::Write::write_all(&mut terminal.master, b"~.").expect("there is room");
    let status = wait_until(BOUND * slowness(), || viewer.try_wait().expect("it is ours"));
    assert_eq!(status.expect("it ends").code(), Some(0));
    running.sign("end");
    running.finish(BOUND);
}

#[test]
fn keys_are_read_when_a_viewer_comes_from_the_background() {
    let (running, looker) = start(Tier::sampled()[0], 10);
    let session = Session::start(Tier::sampled()[0]);
    session.line(&format!("XDG_STATE_HOME={} $R attach {} &", looker.state.display(), looker.job));
    session.screen.wait_for("1:10:");
    session.line("fg; echo code $?");
    session.wait_for_foreground("rankrun");
    session.screen.press("\x03");
    session.screen.wait_for("stop job");
    session.screen.press("x");
    session.screen.wait_for("going on");
    session.screen.press("\x03");
    session.screen.wait("the question again", |screen| screen.all().matches("or go on").count() == 2);
    // The end of the job answers it.
    running.sign("end");
    session.screen.wait_for_row("code 3");
    session.finish();
    assert_ended_so(&running.finish(BOUND));
}

/// What a host says when it is asked until the answer is right.
fn ask_host(host: &Host, words: &[&str], is_right: impl Fn(&str) -> bool) -> String {
    let found = wait_until(BOUND * slowness(), || {
        let output = host.command(rankrun()).args(words).stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        is_right(&text).then_some(text)
    });
    found.unwrap_or_else(|| panic!("{words:?}"))
}

/// The ids of the jobs that run on a host.
fn jobs_on(host: &Host) -> Vec<String> {
    let text = ask_host(host, &["status", "--json"], |text| serde_json::from_str::<Value>(text).is_ok());
    let all: Value = serde_json::from_str(&text).expect("JSON");
    all.as_array().expect("a list").iter().map(|job| job["job"].as_str().expect("an id").to_owned()).collect()
}

#[test]
fn a_job_goes_on_when_the_connection_of_ssh_is_gone() {
    let Some(hosts) = Hosts::up(1) else { return };
    let node = hosts.node(0);
    // With a terminal, which sshd takes away, and without one, where it closes the pipes.
    for terminal in ["-tt", "-T"] {
        let go = hosts.directory().join(format!("go{terminal}"));
        let script = format!(
            "n=0; until [ -e {} ]; do n=$((n+1)); echo $RANKRUN_RANK:$n:; sleep 0.02; done; exit 3",
            go.display()
        );
        let line = format!("{} --on-hangup detach -n 2 sh -c '{script}'", rankrun().display());
        let mut ssh = hosts.front().command("ssh");
        ssh.arg("-F").arg(hosts.ssh_config()).args(["-o", "BatchMode=yes", terminal, node.name(), &line]);
        let mut ssh =
            ssh.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("ssh starts");
        let mut before = BufReader::new(ssh.stdout.take().expect("a pipe"));
        let mut last = String::new();
        while !last.contains("0:5:") {
            last.clear();
            assert!(before.read_line(&mut last).expect("text") > 0, "the job writes");
        }
        let [job] = &jobs_on(node)[..] else { panic!("one job runs") };
        ssh.kill().expect("it runs");
        ssh.wait().expect("it ends");
        // sshd has taken its ends away when the job has noticed.
        ask_host(node, &["status", job, "--json"], |text| text.contains("\"detached\": true"));
        ask_host(node, &["logs", job], |text| text.lines().filter(|line| line.starts_with("0:")).count() > 3);
        let waits = node.command(rankrun()).args(["wait", job]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut waits = waits.expect("rankrun can be started");
        fs::write(&go, "").expect("the directory is ours");
        assert_eq!(waits.wait().expect("it ends").code(), Some(3), "{terminal}");
        let kept = ask_host(node, &["logs", job], |text| !text.is_empty());
        let numbers: Vec<usize> =
            kept.lines().filter_map(|line| line.strip_prefix("0:")?.strip_suffix(':')?.parse().ok()).collect();
        assert!(numbers.len() > 1 && numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{terminal}: {kept}");
    }
    hosts.finish(BOUND);
}

#[test]
fn a_job_on_several_hosts_is_detached_like_any_other() {
    let Some(hosts) = Hosts::up(2) else { return };
    let front = hosts.front();
    let go = hosts.directory().join("go");
    let script = format!(
        "for n in 1 2 3; do echo $RANKRUN_RANK:$n:; done; until [ -e {} ]; do sleep 0.02; done; [ $RANKRUN_RANK != 3 ] || exit 3",
        go.display()
    );
    let mut command = front.command(rankrun());
    command.args(["--detach", "-H", &hosts.names(), "--ppn", "2", "sh", "-c", &script]).stdin(Stdio::null());
    let begun = command.output().expect("rankrun can be started");
    assert!(begun.status.success(), "{}", String::from_utf8_lossy(&begun.stderr));
    let job = String::from_utf8(begun.stdout).expect("text").trim().to_owned();
    let kept = ask_host(front, &["logs", &job], |text| text.matches(":3:").count() == 4);
    assert_eq!(kept.lines().count(), 12, "{kept}");
    fs::write(&go, "").expect("the directory is ours");
    let waited = front.command(rankrun()).args(["wait", &job]).output().expect("rankrun can be started");
    assert_eq!(waited.status.code(), Some(3), "{}", String::from_utf8_lossy(&waited.stdout));
    hosts.finish(BOUND);
}
