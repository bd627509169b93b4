//! What may hold a start: programs of the front's own (ssh, srun, commands) that do not come to their exec, and a resolver that does not
//! answer. The front goes on, and gives them up.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rankrun_tests::{
    Cut, Host, Hosts, Job, Running, compile, monotonic, processes, rankrun, scratch, skip, slowness, wait_until,
};
use rustix::process::Signal;

/// The longest that a job of these tests may last: a start is given up after 10 s.
const BOUND: Duration = Duration::from_secs(40);
/// What the front may take to do what it is told.
const PROMPT: Duration = Duration::from_secs(6);
const MOMENT: Duration = Duration::from_secs(10);

fn program(name: &str) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("c/{name}.c"));
    compile("cc", &["-O1", "-Wall"], &source, name).into_os_string().into_string().expect("a path of text")
}

/// rankrun, whose first child of its own is stopped before its exec.
fn held(words: &[&str]) -> Job {
    let rankrun = rankrun().display().to_string();
    let all = [rankrun.as_str()].into_iter().chain(words.iter().copied());
    Job::of_program(program("stop_before_exec"), all)
}

/// Waits until a child of the front is stopped. Returns the front.
fn wait_for_held(running: &Running) -> i32 {
    let found = wait_until(BOUND, || {
        // Its name is that of the thread.
        let stopped = running.processes().into_iter().find(|it| it.state == 'T' && it.name == "rankrun-start")?;
        Some(stopped.parent)
    });
    found.expect("a child is stopped")
}

/// What the front says of itself. It has its directory where it runs.
fn status(host: Option<&Host>) -> String {
    let mut command = match host {
        Some(host) => host.command(rankrun()),
        None => Command::new(rankrun()),
    };
    let output = command.arg("status").output().expect("rankrun can be started");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn an_ssh_that_is_stopped_before_its_exec_is_given_up_and_the_front_answers_meanwhile() {
    let Some(hosts) = Hosts::up(2) else { return };
    let running = held(&["-H", &hosts.names(), "--ppn", "1", "true"]).at(hosts.front()).start();
    wait_for_held(&running);
    let before = monotonic();
    let text = status(Some(hosts.front()));
    assert!(text.contains(" starting "), "{text}");
    assert!(monotonic() - before < PROMPT * slowness(), "it was held");
    let ended = running.finish(BOUND);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(121), "{text}");
    assert!(text.contains("node node") && text.contains("it could not be started within 10 s"), "{text}");
    hosts.finish(MOMENT);
}

#[test]
fn a_signal_ends_a_front_whose_ssh_is_stopped_before_its_exec() {
    let Some(hosts) = Hosts::up(2) else { return };
    let running = held(&["-H", &hosts.names(), "--ppn", "1", "true"]).at(hosts.front()).start();
    let front = wait_for_held(&running);
    let before = monotonic();
    processes::send(front, Signal::TERM);
    let ended = running.finish(BOUND);
    assert_eq!(ended.code, Some(143), "{}", ended.stderr_text());
    assert!(ended.ended.saturating_sub(before) < PROMPT * slowness(), "{}", ended.stderr_text());
    hosts.finish(MOMENT);
}

#[test]
fn an_ssh_on_a_file_system_that_does_not_answer_is_given_up() {
    let Some(hosts) = Hosts::up(1) else { return };
    let front = hosts.front();
    let dead = hosts.directory().join("dead");
    fs::create_dir(&dead).expect("the directory is ours");
    let dead = dead.display().to_string();
    let dead_fs = program("dead_fs");
    let probe = front.command(&dead_fs).args([&dead, "true"]).output().expect("the program can be started");
    if !probe.status.success() {
        return skip("no FUSE file system can be mounted");
    }
    let (ssh, rankrun) = (format!("{dead}/ssh"), rankrun().display().to_string());
    let words = [&dead, &rankrun, "-H", "node0", "--ssh-command", &ssh, "true"];
    let ended = Job::of_program(&dead_fs, words).at(front).bound(BOUND).run();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(121), "{text}");
    assert!(text.contains("node node0: cannot connect to it: it could not be started within 10 s"), "{text}");
    hosts.finish(MOMENT);
}

#[test]
fn a_home_that_does_not_answer_does_not_hold_a_job_over_ssh() {
    let Some(hosts) = Hosts::up(1) else { return };
    let front = hosts.front();
    let (dead, config) = (hosts.directory().join("dead"), hosts.directory().join("config"));
    fs::create_dir(&dead).expect("the directory is ours");
    fs::create_dir(&config).expect("the directory is ours");
    let dead = dead.display().to_string();
    let dead_fs = program("dead_fs");
    let probe = front.command(&dead_fs).args([&dead, "true"]).output().expect("the program can be started");
    if !probe.status.success() {
        return skip("no FUSE file system can be mounted");
    }
    let rankrun = rankrun().display().to_string();
    let (home, config) = (format!("HOME={dead}"), format!("XDG_CONFIG_HOME={}", config.display()));
    let words = [&dead, "env", &home, &config, &rankrun, "-H", "node0", "--ppn", "2", "true"];
    let job = Job::of_program(&dead_fs, words).at(front);
    let ended = job.bound(BOUND).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    hosts.finish(MOMENT);
}

#[test]
fn a_command_that_is_stopped_before_its_exec_is_given_up() {
    let directory = scratch();
    let words = ["-n", "1", "--restart", "0", "--on-failure", "echo stop", "--on-failure-timeout", "2s"];
    let job = held(&[&words[..], &["sh", "-c", "exit 3"]].concat()).current_dir(&directory);
    let running = job.start();
    wait_for_held(&running);
    let text = status(None);
    assert!(text.lines().any(|line| line.contains(" waiting ") && line.ends_with("sh -c exit 3")), "{text}");
    let ended = running.finish(BOUND);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(3), "{text}");
    assert!(text.contains("--on-failure: the command was not done within 2 s"), "{text}");
    assert!(text.contains("left      nothing ("), "{text}");
    fs::remove_dir_all(directory).expect("it is ours");
}

/// Names are asked of a server that takes questions and does not answer.
fn kill_resolver(hosts: &Hosts) {
    let etc = hosts.directory().join("etc");
    let server = hosts.nodes().last().expect("there are nodes");
    fs::write(etc.join("resolv.conf"), format!("nameserver {}\n", server.address())).expect("it is ours");
    fs::write(etc.join("nsswitch.conf"), "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n")
        .expect("it is ours");
    server.cut(Cut::Silent);
    let before = monotonic();
    assert!(!hosts.front().run("timeout 3 getent hosts far").status.success());
    assert!(monotonic() - before > Duration::from_secs(2), "the resolver answers");
}

#[test]
fn a_resolver_that_does_not_answer_delays_a_start_by_a_second_at_most() {
    let Some(hosts) = Hosts::up(2) else { return };
    kill_resolver(&hosts);
    let front = hosts.front();
    let own = format!("far:1,farther:1,{}:1,node0:1", front.address());
    let before = monotonic();
    let ended = Job::new(["--dry-run", "-H", &own, "true"]).at(front).bound(BOUND).run();
    let took = monotonic() - before;
    let text = ended.stdout_text() + &ended.stderr_text();
    assert_eq!(ended.code, Some(0), "{text}");
    assert!(took < Duration::from_secs(3) * slowness(), "{took:?}: {text}");
    // Addresses are known without it.
    assert!(text.contains("  far: 0") && text.contains("  front: 2 (this machine)"), "{text}");
    hosts.nodes().iter().for_each(Host::heal);
    hosts.finish(MOMENT);
}

#[test]
fn a_node_that_joins_by_a_name_that_the_resolver_does_not_know_ends_in_time_and_by_a_signal() {
    let Some(hosts) = Hosts::up(2) else { return };
    kill_resolver(&hosts);
    let front = hosts.front();
    let secret = hosts.directory().join("jobs/secret");
    fs::write(&secret, format!("{}A=\n", "Q".repeat(42))).expect("it is ours");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let secret = secret.display().to_string();
    let words = |bound: &'static str| {
        let own = ["--nnodes", "2", "--node-rank", "1", "--rendezvous", "far:29400", "--secret-file", &secret];
        Job::new(own.into_iter().chain(["--start-timeout", bound, "--", "true"])).at(front)
    };
    let before = monotonic();
    let ended = words("2s").bound(BOUND).run();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(121), "{text}");
    assert!(text.contains("the resolver does not answer for far"), "{text}");
    assert!(monotonic() - before < PROMPT * slowness(), "{text}");
    let running = words("5m").start();
    let asks = || running.processes().into_iter().find(|it| it.parent == running.front());
    wait_until(BOUND, asks).expect("a child asks");
    let before = monotonic();
    processes::send(running.front(), Signal::TERM);
    let ended = running.finish(BOUND);
    assert_eq!(ended.signal, Some(15), "{}", ended.stderr_text());
    assert!(ended.ended.saturating_sub(before) < PROMPT * slowness(), "{}", ended.stderr_text());
    hosts.nodes().iter().for_each(Host::heal);
    hosts.finish(MOMENT);
}

/// A thread that starts a program waits until it has called exec: on a slow file system the next ranks are started meanwhile.
#[test]
fn while_one_rank_waits_in_its_exec_others_are_started() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can hold an exec");
    }
    let directory = scratch();
    let program = directory.join("held");
    fs::copy("/bin/true", &program).expect("a program");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/hold_execs.py");
    let mut holder = Command::new("python3")
        .arg(script)
        .args([program.as_os_str(), "2".as_ref()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python can be started");
    let mut said = BufReader::new(holder.stdout.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("it says something");
    assert_eq!(line, "ready\n");
    let words = ["-n".as_ref(), "6".as_ref(), "--oversubscribe".as_ref(), program.as_os_str()];
    let ended = Job::new(words).bound(BOUND).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    drop(holder.stdin.take());
    line.clear();
    said.read_line(&mut line).expect("it says how many");
    assert!(holder.wait().expect("it ends").success());
    let most: u32 = line.trim().parse().expect("a number");
    assert!(most >= 2, "{most} at a time");
    fs::remove_dir_all(directory).expect("it is ours");
}
