//! `rankrun torchrun` on two hosts, as torchrun is used there: the same command on each. Where torchrun 2.15 tells nobody of a failure on
//! another host, all end at once here.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rankrun_tests::{Ended, Environment, Hosts, Job, Running, monotonic, processes, scratch_in, slowness, wait_until};
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

/// A worker says which it is, and fails as one does that loses its peers, when it is told to.
const ELASTIC: &str = "cd $PLACE; echo $RANK/$WORLD_SIZE >> seen; \
    until [ -e go ]; do [ ! -e lost-$WORLD_SIZE ] || exit 1; sleep 0.05; done";

/// torchrun and rankrun side by side: a job of one to three nodes grows with each that joins, and shrinks when one is killed.
#[test]
fn an_elastic_job_grows_and_shrinks_as_with_torchrun() {
    let Some(environment) = Environment::find("torch") else { return };
    let Some(hosts) = Hosts::up(3) else { return };
    let (python, secret) = (environment.program("python3"), hosts.secret());
    let mut worlds = Vec::new();
    for is_ours in [true, false] {
        let place = scratch_in(&hosts.front().jobs_directory());
        let start = |node: usize| {
            // Three agents may need more than a second to meet on a busy machine.
            let options = "--nnodes 1:3 --nproc-per-node 2 --rdzv-backend c10d --rdzv-id x --rdzv-endpoint node0:29400 \
                --rdzv-conf last_call_timeout=4 --max-restarts 3 --no-python";
            let words = options.split_whitespace().chain(["sh", "-c", ELASTIC]);
            let job = match is_ours {
                true => Job::new(["torchrun"].into_iter().chain(words)).env("RANKRUN_SECRET_FILE", &secret),
                false => Job::of_program(&python, ["-m", "torch.distributed.run"].into_iter().chain(words)),
            };
            // torchrun 2.15 fails when it grows with the store that agents and workers share: the first agent sets no address again.
            let job = job.env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
            job.at(hosts.node(node)).env("PLACE", &place).start()
        };
        let mut running = vec![start(0)];
        let seen = || fs::read_to_string(place.join("seen")).unwrap_or_default();
        let until = |lines: usize, running: &[Running]| {
            let said = || running.iter().map(|it| String::from_utf8_lossy(&it.stderr_so_far()).into_owned());
            let come = wait_until(BOUND, || (seen().lines().count() >= lines).then_some(()));
            assert!(come.is_some(), "{lines}: {}{:#?}", seen(), said().collect::<Vec<_>>());
        };
        until(2, &running);
        running.push(start(1));
        until(2 + 4, &running);
        running.push(start(2));
        until(2 + 4 + 6, &running);
        let killed = running.pop().expect("it was started");
        match is_ours {
            true => {
                // Its guard says that nothing is left there.
                let all = hosts.node(2).survivors();
                let agent = all.iter().find(|process| process.name == "rr-agent").expect("it has an agent");
                processes::send(agent.pid, Signal::KILL);
            }
            false => hosts.node(2).survivors().iter().for_each(|process| processes::send(process.pid, Signal::KILL)),
        }
        fs::write(place.join("lost-6"), "").expect("it is ours");
        assert!(killed.finish(BOUND).code != Some(0));
        until(2 + 4 + 6 + 4, &running);
        fs::write(place.join("go"), "").expect("it is ours");
        for running in running {
            let ended = running.finish(BOUND);
            assert_eq!(ended.code, Some(0), "ours: {is_ours}: {}", ended.stderr_text());
        }
        let text = seen();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for world in [0..2, 2..6, 6..12, 12..16] {
            lines[world].sort();
        }
        worlds.push(lines);
    }
    assert_eq!(worlds[0], worlds[1], "rankrun and torchrun");
    let of = |world: u32| (0..world).map(move |rank| format!("{rank}/{world}"));
    assert_eq!(worlds[0], of(2).chain(of(4)).chain(of(6)).chain(of(4)).collect::<Vec<_>>());
    hosts.finish(BOUND);
}
