//! Nodes come and go: spares replace those that are lost, lost ones come back, and a job grows again (`--spares`, `--grow`).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rankrun_tests::{Cut, Ended, Environment, Hosts, Job, Running, processes, wait_until};
use rustix::process::Signal;

const MOMENT: Duration = Duration::from_secs(10);
const BOUND: Duration = Duration::from_secs(120);

/// A rank says where it is, and holds a lock that no rank of another attempt may hold: one for each rank, on a file system that all nodes share. It waits until a file of
/// its attempt is there.
pub(super) const PLACE: &str = "cd $RANKRUN_TEST_DIR; exec 9>lock-$RANKRUN_RANK; flock -n 9 || { echo \"two attempts at once\"; exit 9; }; \
    echo $RANKRUN_ATTEMPT: $RANKRUN_RANK/$RANKRUN_WORLD_SIZE $RANKRUN_NODE_RANK/$RANKRUN_NNODES $(hostname); \
    until [ -e go-$RANKRUN_ATTEMPT ]; do sleep 0.02; done";

pub(super) fn until(running: &Running, what: &str, is_so: impl Fn(&str, &str) -> bool) {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let both = || (text(running.stdout_so_far()), text(running.stderr_so_far()));
    let come = wait_until(BOUND, || {
        let (stdout, stderr) = both();
        is_so(&stdout, &stderr).then_some(())
    });
    assert!(come.is_some(), "{what}: {:?}", both());
}

pub(super) fn until_up(running: &Running, attempt: u32, ranks: usize) {
    let prefix = format!("{attempt}: ");
    until(running, &prefix, |stdout, _| stdout.lines().filter(|line| line.starts_with(&prefix)).count() == ranks);
}

/// The lines of an attempt with two ranks on each of these nodes.
pub(super) fn on(nodes: &[u32]) -> Vec<String> {
    let (count, world) = (nodes.len(), 2 * nodes.len());
    let line = |rank: usize| format!("{rank}/{world} {}/{count} node{}", rank / 2, nodes[rank / 2]);
    (0..world).map(line).collect()
}

fn start(hosts: &Hosts, options: &[&str]) -> Running {
    let words = ["--restart", "9", "--no-breaker", "--backoff", "0", "--timeout", "100s"];
    Job::new(options.iter().copied().chain(words).chain(["sh", "-c", PLACE])).at(hosts.front()).start()
}

/// Lets an attempt come to its end, which is a good one.
fn finish(running: Running, attempt: u32) -> (Ended, String) {
    running.sign(&format!("go-{attempt}"));
    let ended = running.finish(BOUND);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(0), "{text}");
    assert!(!ended.stdout_text().contains("two attempts"), "{text}");
    (ended, text)
}

#[test]
fn a_spare_takes_the_place_of_a_lost_node_and_a_lost_node_becomes_a_spare() {
    let Some(hosts) = Hosts::up(4) else { return };
    // Of four hosts the last one waits.
    let running = start(&hosts, &["-H", "node[0-3]:2", "--spares", "1"]);
    until_up(&running, 0, 6);
    until(&running, "the spare is here", |_, _| !hosts.node(3).survivors().is_empty());
    hosts.node(1).kill_relay();
    until_up(&running, 1, 6);
    // The one that was lost is called again, and replaces another one.
    until(&running, "it is back", |_, stderr| stderr.contains("node1 is ready, as a spare"));
    hosts.node(0).kill_relay();
    until_up(&running, 2, 6);
    let (ended, text) = finish(running, 2);
    assert_eq!(ended.of_attempt(0), on(&[0, 1, 2]), "{text}");
    assert_eq!(ended.of_attempt(1), on(&[0, 3, 2]), "{text}");
    assert_eq!(ended.of_attempt(2), on(&[1, 3, 2]), "{text}");
    for said in ["rankrun: node3 takes the place of node1\n", "rankrun: node1 takes the place of node0\n"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    hosts.finish(MOMENT);
}

#[test]
fn a_job_on_fewer_nodes_grows_when_they_are_back() {
    let Some(hosts) = Hosts::up(3) else { return };
    for is_at_once in [true, false] {
        let options = ["-H", "node[0-2]:2", "--nnodes", "2:3", "--grow", if is_at_once { "restart" } else { "next" }];
        let running = start(&hosts, &options);
        until_up(&running, 0, 6);
        hosts.node(1).kill_relay();
        until_up(&running, 1, 4);
        if is_at_once {
            until(&running, "it grows", |_, stderr| {
                stderr.contains("ending attempt 1: more nodes are here (--grow restart)")
            });
        } else {
            until(&running, "it is back", |_, stderr| stderr.contains("node1 is ready, as a spare"));
            hosts.node(2).kill_relay();
        }
        let nodes = if is_at_once { 3 } else { 2 };
        until_up(&running, 2, 2 * nodes);
        let (ended, text) = finish(running, 2);
        assert_eq!(ended.of_attempt(1), on(&[0, 2]), "{text}");
        match is_at_once {
            true => {
                assert_eq!(ended.of_attempt(2), on(&[0, 1, 2]), "{text}");
                assert!(text.contains("rankrun: node1 joins the job\n"), "{text}");
                assert!(text.contains("rankrun: 6 ranks on 3 nodes, numbered anew\n"), "{text}");
            }
            false => assert_eq!(ended.of_attempt(2), on(&[0, 1]), "{text}"),
        }
    }
    hosts.finish(MOMENT);
}

/// A host that cannot be reached at the start is replaced before the first rank.
#[test]
fn a_spare_takes_the_place_of_a_host_that_never_came() {
    let Some(hosts) = Hosts::up(3) else { return };
    let running = start(&hosts, &["-H", "node0:2,nowhere:2,node2:2,node1:2", "--spares", "1"]);
    until_up(&running, 0, 6);
    let (ended, text) = finish(running, 0);
    assert_eq!(ended.of_attempt(0), on(&[0, 1, 2]), "{text}");
    assert!(text.contains("rankrun: node1 takes the place of nowhere\n"), "{text}");
    hosts.finish(MOMENT);
}

/// A job that needs all of its nodes waits for one that is lost; one that is lost too often is left out.
#[test]
fn a_job_waits_for_a_node_that_it_needs_but_not_for_one_that_is_lost_too_often() {
    let Some(hosts) = Hosts::up(3) else { return };
    let options = ["-H", "node[0-2]:2", "--spares", "1", "--exclude-after", "2/1h"];
    let running = start(&hosts, &options);
    until_up(&running, 0, 4);
    until(&running, "the spare is here", |_, _| !hosts.node(2).survivors().is_empty());
    // It is replaced at once, and comes back.
    hosts.node(1).kill_relay();
    until_up(&running, 1, 4);
    until(&running, "it is back", |_, stderr| stderr.contains("node1 is ready, as a spare"));
    // The spare takes the place of this one.
    hosts.node(2).kill_relay();
    until_up(&running, 2, 4);
    // It is lost for the second time, and the one that was lost once comes back: that is waited for.
    hosts.node(1).kill_relay();
    until(&running, "it is left out", |_, stderr| {
        stderr.contains("node1 was lost 2 times (--exclude-after): it is left out for 10 min")
    });
    until_up(&running, 3, 4);
    let (ended, text) = finish(running, 3);
    let expected = [on(&[0, 1]), on(&[0, 2]), on(&[0, 1]), on(&[0, 2])];
    assert_eq!([0, 1, 2, 3].map(|attempt| ended.of_attempt(attempt)), expected, "{text}");
    hosts.finish(MOMENT);
}

#[test]
fn spares_are_refused_where_they_cannot_help() {
    for (words, expected) in [
        (
            &["-H", "a:2,b:2", "--spares", "1"][..],
            "--spares 1: a host is replaced when the job is restarted after its loss",
        ),
        (&["-H", "a:2,b:2", "--spares", "2", "--restart", "1"], "--spares 2: the job has only 2 hosts"),
        (
            &["-H", "a:2,b:2", "--spares", "1", "--restart", "1", "-n", "4"],
            "--spares 1: 0 hosts are left without ranks",
        ),
        (&["--spares", "x"], "--spares: \"x\" is not a number of hosts"),
    ] {
        let ended = Job::new(words.iter().copied().chain(["true"])).run();
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(2), "{words:?}: {text}");
        assert!(text.contains(expected), "{words:?}: {text}");
    }
}

/// What takes long at the start of ranks is done on a spare before they are needed there.
#[test]
fn a_spare_has_a_prepared_interpreter() {
    let Some(hosts) = Hosts::up(3) else { return };
    const SHOW: &str = "import os, time, socket\n\
        how = b'RANKRUN_FORK_SERVER' in open('/proc/self/environ', 'rb').read()\n\
        attempt = os.environ['RANKRUN_ATTEMPT']\n\
        print('%s: %s %s %s' % (attempt, os.environ['RANK'], socket.gethostname(), how), flush=True)\n\
        while not os.path.exists(os.environ['RANKRUN_TEST_DIR'] + '/go-' + attempt): time.sleep(0.02)\n";
    let Some(python) = Environment::find("torch").map(|environment| environment.program("python3")) else { return };
    let words = ["-H", "node[0-2]:1", "--spares", "1", "--restart", "1", "--backoff", "0", "--preload", "decimal"];
    let running = Job::new(words.into_iter().chain([&*python, "-c", SHOW])).at(hosts.front()).start();
    until_up(&running, 0, 2);
    let is_prepared = || hosts.node(2).survivors().iter().any(|process| process.name.starts_with("python3"));
    until(&running, "the spare is prepared", |_, _| is_prepared());
    hosts.node(1).kill_relay();
    until_up(&running, 1, 2);
    let (ended, text) = finish(running, 1);
    assert_eq!(ended.of_attempt(0), ["0 node0 True", "1 node1 True"], "{text}");
    assert_eq!(ended.of_attempt(1), ["0 node0 True", "1 node2 True"], "{text}");
    hosts.finish(MOMENT);
}

/// A script for `--replace` or `--fence`, which notes for which host it was called.
fn script(hosts: &Hosts, name: &str, text: &str) -> String {
    let path = hosts.front().jobs_directory().join(name);
    let calls = path.with_extension("calls");
    fs::write(&path, format!("#!/bin/sh\necho \"$@\" >> {}\n{text}\n", calls.display())).expect("it is ours");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    path.display().to_string()
}

fn calls(script: &str) -> String {
    fs::read_to_string(Path::new(script).with_extension("calls")).unwrap_or_default()
}

#[test]
fn a_command_finds_a_host_in_place_of_a_lost_one() {
    let Some(hosts) = Hosts::up(3) else { return };
    let finds = script(&hosts, "finds", "sleep 0.3; echo node2:4");
    let running = start(&hosts, &["-H", "node[0-1]:2", "--replace", &format!("{finds} 'for this'")]);
    until_up(&running, 0, 4);
    hosts.node(1).kill_relay();
    until_up(&running, 1, 4);
    let (ended, text) = finish(running, 1);
    assert_eq!(ended.of_attempt(1), on(&[0, 2]), "{text}");
    assert!(text.contains("rankrun: node2 comes in place of node1 (--replace)\n"), "{text}");
    assert_eq!(calls(&finds), "for this node1\n", "{text}");

    // One that finds nobody does not help, and the host itself comes back.
    let fails = script(&hosts, "fails", "echo no >&2; exit 3");
    let running = start(&hosts, &["-H", "node[0-1]:2", "--replace", &fails]);
    until_up(&running, 0, 4);
    hosts.node(1).kill_relay();
    until_up(&running, 1, 4);
    let (ended, text) = finish(running, 1);
    assert_eq!(ended.of_attempt(1), on(&[0, 1]), "{text}");
    assert!(text.contains("rankrun: --replace has found nobody for node1: exit 3\n"), "{text}");
    hosts.finish(MOMENT);
}

/// A host that is cut off does not say that nothing is left there: a command makes sure, or the time that it takes is waited for.
#[test]
fn a_host_that_is_cut_off_is_fenced_before_another_attempt() {
    let Some(hosts) = Hosts::up(3) else { return };
    for (command, is_done) in [("exit 0", true), ("echo not now >&2; exit 1", false)] {
        let fences = script(&hosts, "fences", command);
        let options =
            ["-H", "node[0-2]:2", "--spares", "1", "--node-timeout", "2s", "--grace", "1s", "--fence", &fences];
        let running = start(&hosts, &options);
        until_up(&running, 0, 4);
        hosts.node(1).cut(Cut::Silent);
        if is_done {
            // As the command says.
            for process in hosts.node(1).survivors() {
                processes::send(process.pid, Signal::KILL);
            }
        }
        until_up(&running, 1, 4);
        hosts.node(1).heal();
        let (ended, text) = finish(running, 1);
        assert_eq!(ended.of_attempt(1), on(&[0, 2]), "{text}");
        assert_eq!(calls(&fences), "node1\n", "{text}");
        let said = if is_done { "node1 is fenced (--fence)" } else { "node1 could not be fenced (--fence): exit 1" };
        assert!(text.contains(said), "{text}");
        assert_eq!(text.contains("no answer from node1"), !is_done, "{text}");
        fs::remove_file(Path::new(&fences).with_extension("calls")).expect("it was called");
    }
    let options = ["-H", "node[0-2]:2", "--spares", "1", "--node-timeout", "2s", "--grace", "1s", "--unproven", "stop"];
    let running = start(&hosts, &options);
    until_up(&running, 0, 4);
    hosts.node(1).cut(Cut::Silent);
    let ended = running.finish(BOUND);
    let text = ended.stderr_text();
    hosts.node(1).heal();
    assert_eq!(ended.code, Some(121), "{text}");
    assert!(
        text.contains("nobody could prove that no rank of the last attempt is left on node1 (--unproven stop)"),
        "{text}"
    );
    hosts.finish(MOMENT);
}

/// Nobody has ended the job before: the other nodes are asked what is left, and their answers are waited for.
#[test]
fn an_interrupt_while_a_job_waits_for_a_node_is_the_first_one() {
    let Some(hosts) = Hosts::up(2) else { return };
    let running = start(&hosts, &["-H", "node0:2,node1:2", "--nnodes", "2:2"]);
    until_up(&running, 0, 4);
    hosts.node(1).kill_relay();
    until(&running, "it waits", |_, stderr| stderr.contains("waiting for some to come back"));
    processes::send(running.front(), Signal::INT);
    let ended = running.finish(BOUND);
    let text = ended.stderr_text();
    assert_eq!(ended.signal, Some(2), "{text}");
    assert!(!text.contains("not proven") && !text.contains("could not be written"), "{text}");
    hosts.finish(MOMENT);
}
