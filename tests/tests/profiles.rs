//! `rankrun profile`: jobs with a slow rank, of which the rank, the function and the kind are known; and what ends a profile.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rankrun_tests::{
    Environment, Hosts, Job, Running, compile, full_scale, in_time, listed_job, processes, rankrun, skip, wait_until,
};
use rustix::process::Signal;
use serde_json::Value;

const BOUND: Duration = Duration::from_secs(120);

/// What the ranks are: with mpi4py, with torch and gloo, in C with MPICH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Library {
    Mpi4py,
    Torch,
    C,
}

/// Of how many ranks which one is slow, and by what.
#[derive(Clone, Copy, Debug)]
struct Case(Library, u32, &'static str, u32);

impl Case {
    /// The function in which the slow rank spends the time.
    fn function(self) -> &'static str {
        match self.2 {
            "cpu" => "forward",
            "memory" => "touch_pages",
            "io" => "write_checkpoint",
            "lock" => "wait_for_lock",
            "gc" => "collect",
            _ => "careful_path",
        }
    }

    /// The job, once all ranks are at their steps. `None`: this machine has not what it needs.
    fn start(self) -> Option<Running> {
        let Case(library, ranks, kind, slow) = self;
        let environment = Environment::find(if library == Library::Torch { "torch" } else { "mpich" })?;
        let programs = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (slow, ranks) = (slow.to_string(), ranks.to_string());
        let script = programs.join("programs/profile/slow.py").display().to_string();
        let command = match library {
            Library::Mpi4py => vec![environment.program("python"), script, "mpi".into(), kind.into(), slow],
            Library::Torch => vec![environment.program("python"), script, "torch".into(), kind.into(), slow],
            Library::C => {
                let compiler = environment.program("mpicc");
                let options = ["-O1", "-g", "-pthread"];
                let program = compile(&compiler, &options, &programs.join("c/profile_slow.c"), "profile_slow");
                vec![program.display().to_string(), kind.into(), slow]
            }
        };
        let words = ["-n".to_owned(), ranks.clone()].into_iter().chain(command);
        // The directory of the job is removed with it.
        let running = Job::new(words).start();
        await_steps(&running, self.1);
        Some(running)
    }

    /// What a profile of it says, or what is wrong with that. `None`: it was skipped.
    fn check(self, seconds: u32) -> Option<Result<(), String>> {
        let Some(running) = self.start() else {
            skip(&format!("the environment of {:?} is missing", self.0));
            return None;
        };
        let mut result = self.judge(&summary(&running, seconds));
        if result.is_err() {
            // On a machine that does something else besides, chance may hide a rank once.
            result = self.judge(&summary(&running, seconds));
        }
        end(running);
        Some(result)
    }

    /// Whether a summary names the rank.
    fn judge(self, summary: &Value) -> Result<(), String> {
        let Case(_, _, kind, slow) = self;
        let stragglers = summary["stragglers"].as_array().cloned().unwrap_or_default();
        let is_named = |it: &Value| {
            it["rank"] == slow && it["place"]["function"] == self.function() && it["place"]["kind"] == kind
        };
        match stragglers.as_slice() {
            [one] if is_named(one) => Ok(()),
            _ => Err(format!("{self:?}: {summary:#}")),
        }
    }
}

/// Waits until all ranks are at their steps.
fn await_steps(running: &Running, ranks: u32) {
    let are_up = || {
        let text = String::from_utf8_lossy(&running.stdout_so_far()).into_owned();
        (text.matches("steps").count() as u32 == ranks).then_some(())
    };
    let said = || String::from_utf8_lossy(&running.stderr_so_far()).into_owned();
    assert!(wait_until(in_time(BOUND), are_up).is_some(), "{}", said());
}

fn summary(running: &Running, seconds: u32) -> Value {
    let output = profile(running, &["--json", "--seconds", &seconds.to_string()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    told["summary"].clone()
}

fn profile(running: &Running, options: &[&str]) -> Output {
    begin(running, options).wait_with_output().expect("it is a child")
}

/// Starts `rankrun profile`, which writes its files into a directory of their own.
fn begin(running: &Running, options: &[&str]) -> Child {
    let mut command = Command::new(rankrun());
    command.args(["profile", &id(running)]).args(options).current_dir(running.directory());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("rankrun can be started")
}

fn id(running: &Running) -> String {
    let found = wait_until(in_time(BOUND), || listed_job(running.front()));
    found.expect("the job is in the list")
}

/// Ends the job: nothing of it is left.
fn end(running: Running) {
    processes::send(running.front(), Signal::TERM);
    running.finish(in_time(BOUND));
}

/// Ranks without MPI, which compute.
fn computing(ranks: &str) -> Running {
    let program = "def work():\n    n = 0\n    while True: n += 1\nprint('steps', flush=True)\nwork()";
    let running = Job::new(["-n", ranks, "python3", "-c", program]).start();
    await_steps(&running, ranks.parse().expect("a number"));
    running
}

fn samplers(running: &Running) -> Vec<i32> {
    let is_one = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains("stack-sampler"))
    };
    processes::children(running.agent()).iter().map(|child| child.pid).filter(is_one).collect()
}

fn await_sampler(running: &Running) {
    assert!(wait_until(in_time(BOUND), || (!samplers(running).is_empty()).then_some(())).is_some(), "it samples");
}

fn await_no_sampler(running: &Running) {
    assert!(wait_until(in_time(BOUND), || samplers(running).is_empty().then_some(())).is_some(), "it has ended");
}

/// How long ago a process was started, in seconds.
fn age(pid: i32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks: f64 = text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let uptime: f64 = fs::read_to_string("/proc/uptime").ok()?.split(' ').next()?.parse().ok()?;
    Some(uptime - ticks / 100.0)
}

#[test]
fn a_rank_that_computes_more_is_named_with_its_function() {
    Case(Library::Mpi4py, 4, "cpu", 2).check(8).into_iter().for_each(|result| result.expect("it is named"));
}

#[test]
fn a_rank_that_is_slow_by_page_faults_is_named_with_its_function() {
    Case(Library::C, 4, "memory", 3).check(6).into_iter().for_each(|result| result.expect("it is named"));
}

#[test]
fn a_rank_that_writes_files_is_named_with_its_function() {
    Case(Library::C, 4, "io", 1).check(6).into_iter().for_each(|result| result.expect("it is named"));
}

#[test]
fn a_rank_that_waits_for_a_lock_is_named_with_its_function() {
    Case(Library::Mpi4py, 4, "lock", 0).check(6).into_iter().for_each(|result| result.expect("it is named"));
}

#[test]
fn a_rank_that_collects_garbage_is_named_with_its_function() {
    Case(Library::Torch, 4, "gc", 1).check(6).into_iter().for_each(|result| result.expect("it is named"));
}

#[test]
fn a_rank_in_another_branch_is_named_with_its_function() {
    Case(Library::Torch, 4, "branch", 3).check(6).into_iter().for_each(|result| result.expect("it is named"));
}

#[test]
fn of_twenty_slow_ranks_nineteen_are_named_and_no_balanced_job_is_accused() {
    use Library::{C, Mpi4py, Torch};
    if !full_scale(true, false) {
        return;
    }
    let kinds = ["cpu", "memory", "io", "lock", "gc", "branch"];
    let python = [Mpi4py, Torch].into_iter().flat_map(|library| kinds.map(|kind| Case(library, 4, kind, 2)));
    let native = kinds.into_iter().filter(|kind| *kind != "gc").map(|kind| Case(C, 4, kind, 3));
    let more = [Case(C, 8, "memory", 0), Case(Mpi4py, 6, "branch", 5), Case(C, 8, "io", 4)];
    let results: Vec<_> = python.chain(native).chain(more).filter_map(|case| case.check(8)).collect();
    let faults: Vec<String> = results.iter().filter_map(|result| result.clone().err()).collect();
    assert!(faults.len() <= 1, "{} of {} are wrong: {}", faults.len(), results.len(), faults.join("\n"));
    let mut accused = Vec::new();
    for round in 0..20 {
        let (library, ranks) = [(C, 4), (Mpi4py, 4), (Torch, 4), (Mpi4py, 2), (C, 2)][round % 5];
        let Some(running) = Case(library, ranks, "none", u32::MAX >> 1).start() else { continue };
        let summary = summary(&running, 5);
        end(running);
        if summary["stragglers"].as_array().is_none_or(|list| !list.is_empty()) {
            accused.push(format!("{summary:#}"));
        }
    }
    assert_eq!(accused, Vec::<String>::new());
}

#[test]
fn both_files_are_written_and_nothing_is_left_of_the_sampler() {
    let running = computing("2");
    assert_eq!(samplers(&running), Vec::<i32>::new(), "nobody samples a job that is not profiled");
    let name = running.directory().join("own").display().to_string();
    let output = profile(&running, &["--seconds", "2", "--output", &name]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("work"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let folded = fs::read_to_string(format!("{name}.folded")).expect("it was written");
    for rank in ["rank 0;", "rank 1;"] {
        assert!(folded.lines().any(|line| line.starts_with(rank) && line.contains(";work (")), "{folded}");
    }
    let scope: PathBuf = format!("{name}.speedscope.json").into();
    let scope: Value = serde_json::from_slice(&fs::read(scope).expect("it was written")).expect("it is JSON");
    assert_eq!(scope["profiles"].as_array().map(Vec::len), Some(4), "all ranks twice, and each");
    await_no_sampler(&running);
    end(running);
}

#[test]
fn an_interrupted_profile_prints_what_there_is() {
    let running = computing("2");
    let client = begin(&running, &["--seconds", "600"]);
    await_sampler(&running);
    processes::send(client.id() as i32, Signal::INT);
    let output = client.wait_with_output().expect("it is a child");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("it was ended early"), "{text}");
    await_no_sampler(&running);
    end(running);
}

#[test]
fn a_client_that_is_gone_ends_the_sampling() {
    let running = computing("2");
    let mut client = begin(&running, &["--seconds", "600"]);
    await_sampler(&running);
    client.kill().expect("it lives");
    client.wait().expect("it is a child");
    await_no_sampler(&running);
    // And the next one is served.
    assert!(profile(&running, &["--seconds", "0.5"]).status.success());
    end(running);
}

#[test]
fn a_second_profile_at_the_same_time_is_refused() {
    let running = computing("1");
    let mut client = begin(&running, &["--seconds", "600"]);
    await_sampler(&running);
    let second = profile(&running, &["--seconds", "1"]);
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("it is being profiled already"));
    client.kill().expect("it lives");
    client.wait().expect("it is a child");
    end(running);
}

#[test]
fn a_job_that_ends_gives_what_was_sampled_until_then() {
    let running = computing("2");
    let client = begin(&running, &["--seconds", "600", "--rate", "100"]);
    await_sampler(&running);
    let rank = running.processes().into_iter().find(|process| process.name.starts_with("python"));
    // It sends what it has seen once a second.
    let has_sent = || samplers(&running).iter().any(|pid| age(*pid).is_some_and(|age| age > 3.0)).then_some(());
    assert!(wait_until(in_time(BOUND), has_sent).is_some(), "it looks");
    // One rank of two ends, and with it the job.
    processes::send(rank.expect("it runs").pid, Signal::KILL);
    let output = client.wait_with_output().expect("it is a child");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.contains("work"), "{text}{said}");
    assert!(text.contains("it ended after") || text.contains("the job ended"), "{text}");
    running.finish(in_time(BOUND));
}

#[test]
fn a_rank_that_becomes_another_program_is_seen_as_that() {
    let script = "until [ -e $RANKRUN_TEST_DIR/go ]; do :; done; exec sh -c 'exec python3 -c \"$0\"' \"$0\"";
    let program = "def work():\n    n = 0\n    while True: n += 1\nwork()";
    let running = Job::new(["-n", "2", "sh", "-c", script, program]).start();
    // What is known of a program without this is known for 5 s.
    let client = begin(&running, &["--seconds", "4"]);
    await_sampler(&running);
    running.sign("go");
    let output = client.wait_with_output().expect("it is a child");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.contains("work"), "{text}{said}");
    assert!(!text.contains("it ended"), "{text}");
    end(running);
}

#[test]
fn a_slow_rank_on_another_host_is_named_with_its_node() {
    let Some(environment) = Environment::find("torch") else { return };
    let Some(hosts) = Hosts::up(2) else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/profile/slow.py").display().to_string();
    let python = environment.program("python");
    let words = ["-H", "node0:2,node1:2", &python, &script, "torch", "lock", "3"];
    // Its ranks wait without a CPU. Those of MPI compute meanwhile: on few CPUs beside other tests, a rank may have none in most looks.
    let running = Job::new(words).at(hosts.front()).env("OMP_NUM_THREADS", "1").start();
    await_steps(&running, 4);
    let asked = |words: &[&str]| {
        let mut command = hosts.front().command(rankrun());
        let output = command.args(words).output().expect("rankrun starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let status = asked(&["status"]);
    let job = status.lines().nth(1).and_then(|row| row.split(' ').next()).unwrap_or_else(|| panic!("no job: {status}"));
    let files = running.directory().join("own").display().to_string();
    let text = (0..3).map(|_| asked(&["profile", job, "--seconds", "6", "--output", &files]));
    let mut text = text.skip_while(|text| !text.contains("straggler") && text.contains("there are too few CPUs"));
    let text = text.next().expect("the profile names a straggler once in three times");
    assert!(text.contains("straggler  rank 3 on node1: "), "{text}");
    assert!(text.contains("wait_for_lock slow.py"), "{text}");
    processes::send(running.front(), Signal::TERM);
    running.finish(in_time(BOUND));
    hosts.finish(Duration::from_secs(10));
}
