//! `rankrun torchrun` on two hosts, as torchrun is used there: the same command on each. Where torchrun 2.15 tells nobody of a failure on
//! another host, all end at once here.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rankrun_tests::{Ended, Environment, Hosts, Job, Running, monotonic, processes, slowness, wait_until};
use rustix::process::Signal;

/// Each worker imports torch, on a busy machine in a minute.
const BOUND: Duration = Duration::from_secs(120);
/// From a failure to the end of every command. A second on a machine that has time.
const PROMPT: Duration = Duration::from_secs(6);

/// Starts the command on both hosts, node 1 first.
fn start(hosts: &Hosts, options: &[&str], script: &str) -> [Running; 2] {
    let secret = hosts.secret();
    let start = |node: usize| {
        let rank = node.to_string();
        let own = ["torchrun", "--nnodes", "2", "--node-rank", &rank, "--rdzv-endpoint", "node0:29500"];
        let words: Vec<&str> = own.iter().chain(options).chain(&[script]).copied().collect();
        let job = Job::new(words).at(hosts.node(node)).env("RANKRUN_SECRET_FILE", &secret);
        job.env("OMP_NUM_THREADS", "1").start()
    };
    let last = start(1);
    [start(0), last]
}

fn finish(running: [Running; 2]) -> [Ended; 2] {
    running.map(|running| running.finish(BOUND))
}

/// A script without torch, which the workers of a host run.
fn script(hosts: &Hosts, text: &str) -> String {
    let path = hosts.directory().join("script.py");
    fs::write(&path, text).expect("the directory is ours");
    path.display().to_string()
}

const UP: &str = "import os, sys, time\nopen(os.environ['RANKRUN_TEST_DIR'] + '/up.' + os.environ['RANK'], 'w')\n";

#[test]
fn workers_of_two_hosts_meet_over_gloo() {
    let Some(environment) = Environment::find("torch") else { return };
    let Some(hosts) = Hosts::up(2) else { return };
    let places = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/gloo_places.py").display().to_string();
    let python = environment.program("python");
    let [first, last] = finish(start(&hosts, &["--nproc-per-node", "2", "--no-python", &python], &places));
    let text = first.stderr_text();
    assert_eq!((first.code, last.code), (Some(0), Some(0)), "{text}{}", last.stderr_text());
    let mut lines: Vec<String> = first.stdout_text().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["0 node0 0 6", "1 node0 1 6", "2 node1 0 6", "3 node1 1 6"], "{text}");
    hosts.finish(BOUND);
}

#[test]
fn a_worker_that_fails_on_another_host_ends_both_commands_at_once() {
    let Some(hosts) = Hosts::up(2) else { return };
    let text = format!(
        "{UP}if os.environ['RANK'] == '3':\n\
        \x20   while not os.path.exists(os.environ['RANKRUN_TEST_DIR'] + '/go'): time.sleep(0.01)\n\
        \x20   raise ValueError('failure of 3')\ntime.sleep(600)\n"
    );
    let running = start(&hosts, &["--nproc-per-node", "2"], &script(&hosts, &text));
    // All workers have the environment of node 0's command.
    (0..4).for_each(|rank| running[0].wait_for_file(&format!("up.{rank}")));
    let before = monotonic();
    running[0].sign("go");
    for ended in finish(running) {
        let text = ended.stderr_text();
        assert!(ended.code.is_some_and(|code| code != 0), "{:?} {text}", ended.code);
        assert!(ended.ended.saturating_sub(before) < PROMPT * slowness(), "{text}");
    }
    hosts.finish(BOUND);
}

#[test]
fn a_command_or_an_agent_that_is_killed_ends_the_other_host_at_once() {
    let Some(hosts) = Hosts::up(2) else { return };
    for (victim, is_agent) in [(0, false), (1, false), (0, true), (1, true)] {
        let script = script(&hosts, &format!("{UP}time.sleep(600)\n"));
        let running = start(&hosts, &["--nproc-per-node", "2"], &script);
        (0..4).for_each(|rank| running[0].wait_for_file(&format!("up.{rank}")));
        let pid = if is_agent { running[victim].agent() } else { running[victim].front() };
        let before = monotonic();
        processes::send(pid, Signal::KILL);
        let ended = wait_until(BOUND, || running[1 - victim].front_ended()).expect("it ends");
        let what = format!("node{victim}, agent: {is_agent}");
        assert!(ended.saturating_sub(before) < PROMPT * slowness(), "{what}");
        let ended = finish(running);
        assert!(ended[1 - victim].code.is_some_and(|code| code != 0), "{what}: {}", ended[1 - victim].stderr_text());
        assert!(ended[victim].code != Some(0), "{what}: {}", ended[victim].stderr_text());
    }
    hosts.finish(Duration::from_secs(20));
}
