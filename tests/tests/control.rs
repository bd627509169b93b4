//! `rankrun status`, `stop` and `restart` against running jobs (docs/control.md).

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rankrun_tests::{Job, Running, Tier, User, listed_job, monotonic, processes, rankrun, scratch, skip, wait_until};
use rustix::process::Signal;
use serde_json::Value;

const BOUND: Duration = Duration::from_secs(60);

/// A rank that says which signals come, and ends at the one that is named.
fn rank(ends_at: &str) -> [String; 4] {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/stops/rank.py").display().to_string();
    ["python3".to_owned(), program, "note".to_owned(), ends_at.to_owned()]
}

/// A job of such ranks that are all up, and its id.
fn start(tier: Tier, options: &[&str], ranks: u32, ends_at: &str) -> (Running, String) {
    let count = ranks.to_string();
    let arguments = ["-n", &count].into_iter().chain(options.iter().copied()).map(str::to_owned);
    let running = Job::new(arguments.chain(rank(ends_at))).tier(tier).env("PYTHONDONTWRITEBYTECODE", "1").start();
    for rank in 0..ranks {
        running.wait_for_file(&format!("{rank}.up"));
    }
    let job = id(&running);
    (running, job)
}

/// The id of a job, from the list of all.
fn id(running: &Running) -> String {
    let found = wait_until(BOUND, || listed_job(running.front()));
    found.expect("the job is in the list")
}

fn ask(arguments: &[&str]) -> Output {
    Command::new(rankrun()).args(arguments).stdin(Stdio::null()).output().expect("rankrun can be started")
}

/// What the command says, and its exit code.
fn answer(arguments: &[&str]) -> (String, Option<i32>) {
    let output = ask(arguments);
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).expect("text"), output.status.code())
}

fn status(job: &str) -> Value {
    let output = ask(&["status", job, "--json"]);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// One of the fields of every rank.
fn of_ranks<'a>(status: &'a Value, name: &str) -> Vec<&'a Value> {
    status["ranks"].as_array().expect("a list").iter().map(|rank| &rank[name]).collect()
}

/// The socket of a job of this user.
fn socket(job: &str) -> PathBuf {
    Path::new(&format!("/tmp/rankrun-{}", rustix::process::geteuid().as_raw())).join(job).join("control.sock")
}

#[test]
fn status_says_of_every_rank_what_it_does_since_when_until_when_and_why() {
    for tier in Tier::sampled() {
        let (running, job) = start(tier, &["--grace", "20s"], 3, "SIGUSR1");
        let before = status(&job);
        assert_eq!((before["state"].as_str(), before["world_size"].as_u64()), (Some("running"), Some(3)));
        assert_eq!(of_ranks(&before, "state"), ["running"; 3]);
        assert!(of_ranks(&before, "until").iter().all(|until| until.is_null()), "{before}");
        let parents = processes::children(running.agent());
        for pid in of_ranks(&before, "pid") {
            assert!(parents.iter().any(|child| *pid == child.pid), "{pid} is a leader: {parents:?}");
        }
        let (text, code) = answer(&["status", &job]);
        assert_eq!(code, Some(0));
        assert!(text.contains("ranks 0-2  running for"), "{text}");

        processes::send(running.front(), Signal::TERM);
        let stopping = wait_until(BOUND, || Some(status(&job)).filter(|status| status["state"] == "stopping"));
        let stopping = stopping.expect("it is stopping");
        let all =
            wait_until(BOUND, || Some(status(&job)).filter(|status| of_ranks(status, "state") == ["stopping"; 3]));
        let all = all.unwrap_or_else(|| panic!("the ranks are stopping: {}", status(&job)));
        assert_eq!(of_ranks(&all, "why"), ["rankrun received SIGTERM"; 3]);
        for rank in all["ranks"].as_array().expect("a list") {
            let grace = rank["until"].as_f64().expect("a deadline") - rank["since"].as_f64().expect("a beginning");
            assert!((19.9..20.1).contains(&grace), "{rank}");
        }
        assert!(stopping["until"].as_f64().is_some_and(|until| until > all["now"].as_f64().expect("a time")), "{all}");
        // One row for all, once each has written that it was told to stop.
        let row = wait_until(BOUND, || {
            let (text, _) = answer(&["status", &job]);
            (text.contains("ranks 0-2  stopping for") && text.contains("SIGKILL in")).then_some(())
        });
        assert!(row.is_some(), "{}", answer(&["status", &job]).0);

        processes::send(of_ranks(&all, "pid")[1].as_i64().expect("a pid") as i32, Signal::USR1);
        let ended = wait_until(BOUND, || Some(status(&job)).filter(|status| status["ranks"][1]["state"] == "ended"));
        assert_eq!(ended.expect("rank 1 ended")["ranks"][1]["why"], "exit 0");
        let (text, code) = answer(&["stop", "--grace", "100ms", &job]);
        assert_eq!(code, Some(0), "{text}");
        running.finish(BOUND);
        let (text, code) = answer(&["status", &job]);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(&format!("no job \"{job}\" of yours is running")), "{text}");
    }
}

#[test]
fn a_job_that_has_ended_is_told_from_one_that_never_was() {
    let state = scratch();
    let ended = Job::new(["sh", "-c", "exit 3"]).env("XDG_STATE_HOME", &state).run();
    assert_eq!(ended.code, Some(3));
    let names = fs::read_dir(state.join("rankrun")).expect("it has a report").flatten();
    let job = names.map(|entry| entry.file_name().into_string().expect("an id")).next().expect("one job");
    for command in ["status", "stop", "restart"] {
        for (word, said) in [
            (
                &job[..],
                format!(
                    "error: job {job} is not running: it has ended\nhint: \"rankrun report {job}\" prints its report\n"
                ),
            ),
            (&job[..6], format!("error: job {job} is not running: it has ended\n")),
            ("zzz", "error: no job \"zzz\" of yours is running on this machine\n".to_owned()),
        ] {
            let mut asked = Command::new(rankrun());
            let asked = asked.args([command, word]).env("XDG_STATE_HOME", &state).output().expect("it can be started");
            let text = String::from_utf8_lossy(&asked.stderr).into_owned();
            assert!(asked.status.code() == Some(2) && text.starts_with(&said), "{command} {word}: {text}");
        }
    }
    for command in ["stop", "restart"] {
        let (text, code) = answer(&[command]);
        assert_eq!(
            (text.as_str(), code),
            ("error: JOB is missing\nhint: \"rankrun status\" lists the running jobs\n", Some(2))
        );
    }
    fs::remove_dir_all(&state).expect("the directory is ours");
}

#[test]
fn stop_ends_the_job_as_sigterm_does_waits_and_the_report_says_who_asked() {
    for tier in Tier::sampled() {
        let (running, job) = start(tier, &[], 2, "SIGTERM");
        let mut stop = Command::new(rankrun());
        let stop = stop.args(["stop", &job[..6]]).stdout(Stdio::piped()).spawn().expect("rankrun can be started");
        let pid = stop.id();
        let output = stop.wait_with_output().expect("it ends");
        assert!(!processes::is_alive(running.front()), "it has waited");
        let text = String::from_utf8_lossy(&output.stdout);
        let summary = format!("stopped by \"rankrun stop\" (pid {pid})");
        assert!(text.contains(&format!("job {job}: over, exit code 143: {summary}; left nothing")), "{text}");
        assert_eq!(output.status.code(), Some(0), "{text}");
        let ended = running.finish(BOUND);
        assert_eq!(ended.signal, Some(15));
        assert!(ended.stderr_text().contains(&format!("rankrun: {summary}")), "{}", ended.stderr_text());
        for rank in 0..2 {
            assert!(ended.stdout_text().contains(&format!("rank {rank}: SIGTERM\n")), "{}", ended.stdout_text());
        }
    }
}

#[test]
fn a_second_stop_shortens_the_grace_of_the_first() {
    let (running, job) = start(Tier::available()[0], &["--grace", "60s"], 2, "SIGUSR1");
    let (text, code) = answer(&["stop", "--no-wait", &job]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("stopping, 2 ranks; SIGKILL in 60 s"), "{text}");
    let began = monotonic();
    let (text, code) = answer(&["stop", "--grace", "500ms", &job]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("is being stopped already, 2 ranks; SIGKILL in 0.5 s"), "{text}");
    assert!(text.contains("over, exit code 143"), "{text}");
    assert!(monotonic() - began < Duration::from_secs(20), "{text}");
    running.finish(BOUND);
}

#[test]
fn a_paused_job_is_said_to_be_paused_at_once_with_the_way_out() {
    let (running, job) = start(Tier::available()[0], &["--grace", "1s"], 2, "SIGTERM");
    let front = running.front();
    let mut waiting = Vec::new();
    for stop in [Signal::TSTP, Signal::STOP] {
        processes::send(front, stop);
        let stopped = || processes::process(front).is_some_and(|process| process.state == 'T').then_some(());
        assert!(wait_until(BOUND, stopped).is_some(), "{stop:?}");
        let began = monotonic();
        for command in ["stop", "restart", "stacks"] {
            let (text, code) = answer(&[command, &job]);
            assert_eq!(code, Some(1), "{text}");
            assert!(text.contains(&format!("error: job {job} is paused: its rankrun, process {front}, ")), "{text}");
            assert!(text.contains(&format!("with \"kill -CONT {front}\", and repeat")), "{text}");
        }
        let (text, code) = answer(&["status", &job]);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.starts_with(&format!("job {job}: paused: ")), "{text}");
        let (text, code) = answer(&["status"]);
        assert_eq!(code, Some(0), "{text}");
        let row = text.lines().find(|line| line.starts_with(&job)).expect("it is in the list");
        assert!(row.contains("paused") && row.contains("--grace 1s"), "{text}");
        let whole = status(&job);
        assert_eq!((&whole["state"], &whole["pid"]), (&"paused".into(), &front.into()), "{whole}");
        assert!(monotonic() - began < Duration::from_secs(20), "each answer took 5 s and more");
        // Whoever waits for its end does so.
        let mut waits = Command::new(rankrun());
        // It may look again only when the job is over: then its report says how it has ended.
        waits.env("XDG_STATE_HOME", running.directory().join("state"));
        waits.args(["wait", &job]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut waits = waits.spawn().expect("rankrun can be started");
        let mut said = String::new();
        let mut words = BufReader::new(waits.stderr.take().expect("piped"));
        words.read_line(&mut said).expect("text");
        assert_eq!(said, format!("rankrun: job {job} is paused: its rankrun, process {front}, is stopped\n"));
        waiting.push((waits, words));
        processes::send(front, Signal::CONT);
        let continued = || (answer(&["status", &job]).0.contains(": running")).then_some(());
        assert!(wait_until(BOUND, continued).is_some(), "the stop that was refused is not carried out later");
    }
    let (text, code) = answer(&["stop", &job]);
    assert_eq!(code, Some(0), "{text}");
    for (mut waits, mut words) in waiting {
        let mut rest = String::new();
        words.read_to_string(&mut rest).expect("text");
        assert_eq!((waits.wait().expect("it ends").code(), rest.as_str()), (Some(143), ""));
    }
    running.finish(BOUND);
}

#[test]
fn a_control_socket_that_was_removed_is_there_again_though_nothing_else_happens() {
    let (running, job) = start(Tier::available()[0], &["--grace", "1s"], 1, "SIGTERM");
    fs::remove_file(socket(&job)).expect("it is ours");
    let answers = || (ask(&["status", &job]).status.code() == Some(0)).then_some(());
    assert!(wait_until(Duration::from_secs(20), answers).is_some(), "nobody listens again");
    assert_eq!(ask(&["stop", &job]).status.code(), Some(0));
    running.finish(BOUND);
}

#[test]
fn a_lost_agent_does_not_keep_status_from_its_answer() {
    let (running, job) = start(Tier::available()[0], &["--grace", "1s"], 2, "SIGTERM");
    processes::send(running.agent(), Signal::STOP);
    let began = monotonic();
    let output = ask(&["status", &job, "--json"]);
    assert!(monotonic() - began < Duration::from_secs(9), "the front has its own limit");
    if output.status.success() {
        let status: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
        assert_eq!(of_ranks(&status, "state").len(), 2, "{status}");
        assert_eq!(status["silent_nodes"].as_array().map(Vec::len), Some(1), "{status}");
    }
    let ended = running.finish(BOUND);
    assert_eq!(ended.code, Some(121), "{}", ended.stderr_text());
}

#[test]
fn any_job_can_be_restarted_as_planned_and_that_costs_no_budget() {
    for tier in Tier::sampled() {
        for options in [&[][..], &["--restart", "1"]] {
            let (running, job) = start(tier, options, 2, "SIGTERM");
            for attempt in 1..4 {
                let (text, code) = answer(&["restart", &job]);
                assert_eq!((text.as_str(), code), (format!("job {job}: attempt {attempt} runs\n").as_str(), Some(0)));
                let status = status(&job);
                assert_eq!((&status["state"], &status["attempt"]), (&"running".into(), &attempt.into()));
            }
            answer(&["stop", &job]);
            let ended = running.finish(BOUND);
            assert!(ended.stderr_text().contains("attempts 0-2: ended for a requested restart"));
        }
    }
}

#[test]
fn a_job_whose_ranks_are_restarted_one_by_one_refuses_a_restart_and_goes_on() {
    let options = ["--restart", "1", "--keep-going", "--restart-scope", "rank"];
    let (running, job) = start(Tier::available()[0], &options, 2, "SIGTERM");
    let (text, code) = answer(&["restart", &job]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&format!("cannot restart job {job}: its ranks are restarted one by one")), "{text}");
    assert_eq!(status(&job)["state"], "running");
    answer(&["stop", &job]);
    running.finish(BOUND);
}

#[test]
fn an_unknown_job_is_told_with_those_that_run() {
    let (running, job) = start(Tier::available()[0], &[], 1, "SIGTERM");
    for command in ["status", "stop", "restart"] {
        let (text, code) = answer(&[command, "nojob"]);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("error: no job \"nojob\" of yours is running on this machine"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("hint: running: ") && line.contains(&job)), "{text}");
    }
    answer(&["stop", &job]);
    running.finish(BOUND);
}

#[test]
fn a_job_of_another_user_is_said_to_be_theirs() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can run rankrun as another user");
    }
    let options = ["-n", "1"].map(str::to_owned).into_iter();
    let running = Job::new(options.chain(rank("SIGTERM"))).user(User::Nobody).start();
    let directory = Path::new("/tmp/rankrun-65534");
    let job = wait_until(BOUND, || {
        let entries = fs::read_dir(directory).ok()?.flatten();
        let mut jobs = entries.filter(|entry| entry.path().join("control.sock").exists());
        Some(jobs.next()?.file_name().to_string_lossy().into_owned())
    });
    let job = job.expect("its directory is there");
    let (text, code) = answer(&["stop", &job]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains(&format!("error: job {job} is not yours: it belongs to user nobody")), "{text}");
    assert!(text.contains(&format!("hint: sudo -u nobody rankrun stop {job}")), "{text}");
    // Its owner may, and root may: the kernel says who is at the other end.
    // The socket has its name a moment before its owner listens.
    let socket = directory.join(&job).join("control.sock");
    let stream = wait_until(BOUND, || UnixStream::connect(&socket).ok());
    let mut stream = stream.expect("root may connect");
    stream
        .write_all(b"{\"rankrun\":1,\"request\":\"stop\",\"grace\":1}\n{\"rankrun\":1,\"request\":\"wait\"}\n")
        .expect("there is room");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("answers");
    let summary = format!("stopped by \\\"rankrun stop\\\" (root, pid {})", std::process::id());
    assert!(text.contains(&summary) && text.contains("\"answer\":\"over\""), "{text}");
    running.finish(BOUND);
}

#[test]
fn garbage_half_lines_and_idle_connections_hurt_nobody() {
    let (running, job) = start(Tier::available()[0], &["--grace", "2s"], 2, "SIGTERM");
    let path = socket(&job);
    let mut kept = Vec::new();
    let long = vec![b'x'; 100_000];
    let flood = b"{\"rankrun\":1,\"request\":\"status\",\"ranks\":true}\n".repeat(2000);
    let lines: [&[u8]; 9] = [
        b"",
        b"{\"rankrun\":1,\"request\":",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xfe\x00\n",
        b"{\"rankrun\":99,\"request\":\"stop\"}\n",
        b"{\"rankrun\":1,\"request\":\"dance\"}\n",
        b"{\"rankrun\":1,\"request\":\"stop\",\"grace\":-1}\n",
        &long,
        &flood,
    ];
    for number in 0..300 {
        let mut stream = UnixStream::connect(&path).expect("the front takes connections");
        stream.set_write_timeout(Some(Duration::from_millis(20))).expect("a socket");
        // The front may have closed it, or takes no more of it: that is what is tested.
        let _ = stream.write_all(lines[number % lines.len()]);
        if number % 2 == 0 {
            kept.push(stream);
        }
    }
    let began = monotonic();
    let status = status(&job);
    assert!(monotonic() - began < Duration::from_secs(5), "{status}");
    assert_eq!(status["state"], "running");
    let open = fs::read_dir(format!("/proc/{}/fd", running.front())).expect("it is alive").count();
    assert!(open < 120, "{open} descriptors");
    let mut stream = UnixStream::connect(&path).expect("the front takes connections");
    stream.write_all(b"hello\n").expect("there is room");
    let mut told = String::new();
    stream.read_to_string(&mut told).expect("the front closes the connection");
    assert!(
        told.starts_with("{\"rankrun\":1,\"answer\":\"refused\",\"error\":\"this is no request of rankrun"),
        "{told}"
    );
    let (text, code) = answer(&["stop", &job]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("left nothing"), "{text}");
    drop(kept);
    running.finish(BOUND);
}

#[test]
fn requests_of_a_connection_are_answered_in_order() {
    let (running, job) = start(Tier::available()[0], &[], 2, "SIGTERM");
    let mut stream = UnixStream::connect(socket(&job)).expect("the front takes connections");
    let requests = b"{\"rankrun\":1,\"request\":\"status\",\"ranks\":true}\n{\"rankrun\":1,\"request\":\"restart\"}\n\
        {\"rankrun\":1,\"request\":\"stop\"}\n{\"rankrun\":1,\"request\":\"wait\"}\n";
    stream.write_all(requests).expect("there is room");
    let answers: Vec<Value> = BufReader::new(stream)
        .lines()
        .map(|line| serde_json::from_str(&line.expect("a line")).expect("it is JSON"))
        .collect();
    let kinds: Vec<&str> = answers.iter().map(|answer| answer["answer"].as_str().expect("a word")).collect();
    assert_eq!(kinds, ["status", "restarting", "stopping", "over"]);
    assert_eq!(answers[3]["exit_code"], 143);
    running.finish(BOUND);
}

#[test]
fn a_front_that_is_killed_in_the_middle_of_a_request_ends_the_request_and_leaves_nothing() {
    for tier in Tier::sampled() {
        let (running, job) = start(tier, &["--grace", "1s"], 2, "SIGUSR1");
        let stop = Command::new(rankrun())
            .args(["stop", "--grace", "30s", &job])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("rankrun can be started");
        let stopping = wait_until(BOUND, || (status(&job)["state"] == "stopping").then_some(()));
        stopping.expect("it is stopping");
        processes::send(running.front(), Signal::KILL);
        let output = stop.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{text}");
        assert!(text.contains(&format!("the front of job {job} was killed while it ended the job")), "{text}");
        let (text, code) = answer(&["status"]);
        assert_eq!(code, Some(0), "{text}");
        if let Some(row) = text.lines().find(|line| line.starts_with(&job)) {
            assert!(row.contains("no front"), "{text}");
        }
        running.finish(BOUND);
        assert!(!socket(&job).exists());
    }
}

#[test]
fn whichever_two_are_killed_the_third_removes_the_socket() {
    type Process = fn(&Running) -> i32;
    let [front, guard, agent]: [Process; 3] = [Running::front, Running::guard, Running::agent];
    for pair in [[front, guard], [front, agent], [guard, agent]] {
        let (running, job) = start(Tier::available()[0], &["--grace", "1s"], 2, "SIGTERM");
        assert!(socket(&job).exists());
        for pid in pair.map(|process| process(&running)) {
            processes::send(pid, Signal::KILL);
        }
        running.finish(BOUND);
        assert!(!socket(&job).exists());
    }
}

#[test]
fn a_restart_is_done_when_all_ranks_have_run_even_if_they_have_ended() {
    let script = "[ $RANKRUN_ATTEMPT = 1 ] && exit 0; touch up; exec sleep 60";
    let directory = scratch();
    let running = Job::new(["-n", "1", "sh", "-c", script]).current_dir(&directory).start();
    wait_until(BOUND, || directory.join("up").exists().then_some(())).expect("it starts");
    let job = id(&running);
    let (text, code) = answer(&["restart", &job]);
    assert_eq!((text.as_str(), code), (format!("job {job}: attempt 1 runs\n").as_str(), Some(0)));
    running.finish(BOUND);
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn a_job_that_has_succeeded_is_not_run_again() {
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    let directory = scratch();
    let script = "echo run >> runs; head -c 20000000 /dev/zero | tr '\\0' 'x'";
    let running = Job::new(["-n", "1", "sh", "-c", script]).current_dir(&directory).stdout(write).start();
    let job = id(&running);
    let is_ending = || (status(&job)["state"] == "ending").then_some(());
    wait_until(BOUND, is_ending).expect("its ranks end");
    let (text, code) = answer(&["restart", &job]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&format!("cannot restart job {job}: it is coming to its end")), "{text}");
    let reader = std::thread::spawn(move || std::io::copy(&mut fs::File::from(read), &mut std::io::sink()));
    let ended = running.finish(BOUND);
    assert_eq!(fs::read_to_string(directory.join("runs")).expect("it ran"), "run\n");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(reader.join().expect("it ends").expect("it reads"), 20_000_000);
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn a_job_whose_ranks_have_ended_is_not_run_again_while_their_processes_linger() {
    let directory = scratch();
    // A process that computes is no helper: it has the whole linger.
    let script = "echo run >> runs; (until [ -e end ]; do :; done) & exit 0";
    let running = Job::new(["-n", "1", "--linger", "60s", "sh", "-c", script]).current_dir(&directory).start();
    let job = id(&running);
    wait_until(BOUND, || answer(&["status", &job]).0.contains("waiting for its other processes").then_some(()))
        .expect("its rank ends");
    let (text, code) = answer(&["restart", "--no-wait", &job]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&format!("cannot restart job {job}: it is coming to its end")), "{text}");
    fs::write(directory.join("end"), "").expect("it is ours");
    let ended = running.finish(BOUND);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(fs::read_to_string(directory.join("runs")).expect("it ran"), "run\n");
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn a_job_whose_failure_is_not_decided_yet_says_so_when_a_restart_is_asked_for() {
    let directory = scratch();
    let script = "[ $RANKRUN_ATTEMPT = 1 ] && exit 0; \
        [ $RANK = 0 ] && { until [ -e up ]; do sleep 0.01; done; exit 3; }; trap '' TERM; touch up; until [ -e end ]; do sleep 0.01; done";
    let words = ["-n", "2", "--restart", "1", "--backoff", "0s..0s", "--grace", "60s", "sh", "-c", script];
    let running = Job::new(words).current_dir(&directory).start();
    let job = id(&running);
    wait_until(BOUND, || (directory.join("up").exists() && status(&job)["state"] == "stopping").then_some(()))
        .expect("rank 0 fails");
    let (text, code) = answer(&["restart", "--no-wait", &job]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("it is not decided yet whether another attempt follows"), "{text}");
    fs::write(directory.join("end"), "").expect("it is ours");
    let ended = running.finish(BOUND);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn a_job_that_waits_for_its_next_attempt_says_so_until_when_and_why() {
    let words = ["-n", "1", "--restart", "5", "--backoff", "1h..1h", "sh", "-c", "exit 3"];
    let running = Job::new(words).tier(Tier::available()[0]).start();
    let job = id(&running);
    // Attempt 1 follows at once; attempt 2 is the one that is awaited.
    let is_awaited = |status: &Value| status["state"] == "waiting" && status["attempt"] == 1;
    let waiting = wait_until(BOUND, || Some(status(&job)).filter(is_awaited));
    let waiting = waiting.unwrap_or_else(|| panic!("{}", status(&job)));
    let (now, until) = (waiting["now"].as_f64(), waiting["until"].as_f64());
    let left = until.expect("a time") - now.expect("a time");
    assert!((1.0..=3600.0).contains(&left), "{waiting}");
    assert!(waiting["why"].as_str().is_some_and(|why| why.contains("rank 0 failed: exited with code 3")), "{waiting}");
    let text = answer(&["status", &job]).0;
    assert!(text.contains("waiting") && text.contains("attempt 2 in "), "{text}");
    answer(&["stop", &job]);
    running.finish(BOUND);
}

#[test]
fn a_client_that_half_closes_gets_its_answer() {
    let (running, job) = start(Tier::available()[0], &[], 1, "SIGTERM");
    let mut stream = UnixStream::connect(socket(&job)).expect("the job listens");
    stream.write_all(b"{\"rankrun\":1,\"request\":\"status\",\"ranks\":true}\n").expect("it is sent");
    stream.shutdown(std::net::Shutdown::Write).expect("it is open");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it is closed after the answer");
    assert!(text.contains("\"world_size\":1"), "{text}");
    answer(&["stop", &job]);
    running.finish(BOUND);
}
