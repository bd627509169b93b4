//! Nodes that are lost, or never came: with `--nnodes MIN:N` the job runs on those that are left.

use std::path::Path;
use std::time::Duration;

use rankrun_tests::{Cut, Ended, Environment, Hosts, Job, Running, full_scale, wait_until};

/// How long a host may take to be empty after a job.
const MOMENT: Duration = Duration::from_secs(10);
/// A job of a few ranks that loses a node, however busy the machine is.
const BOUND: Duration = Duration::from_secs(90);

/// A rank says where it is. In the first attempt it waits to be ended.
const PLACE: &str = "echo $RANKRUN_ATTEMPT: $RANKRUN_RANK/$RANKRUN_WORLD_SIZE $RANKRUN_LOCAL_RANK \
    $RANKRUN_NODE_RANK/$RANKRUN_NNODES $(hostname) $MASTER_ADDR; [ $RANKRUN_ATTEMPT -gt 0 ] || exec sleep 1000";

/// Waits for so many lines of the first attempt, and then kills the relay of a node.
fn lose(hosts: &Hosts, running: &Running, node: usize, lines: usize) {
    let is_up = || {
        let text = String::from_utf8_lossy(&running.stdout_so_far()).into_owned();
        (text.lines().filter(|line| line.starts_with("0: ")).count() >= lines).then_some(())
    };
    let errors = || String::from_utf8_lossy(&running.stderr_so_far()).into_owned();
    wait_until(BOUND, is_up).unwrap_or_else(|| panic!("the ranks did not start: {}", errors()));
    hosts.node(node).kill_relay();
}

#[test]
fn the_next_attempt_runs_on_the_nodes_that_are_left() {
    let Some(hosts) = Hosts::up(3) else { return };
    let address = |node: usize| hosts.node(node).address().to_string();
    for (lost, mapping, expected) in [
        (1, "block", ["0/4 0 0/2 node0 A", "1/4 1 0/2 node0 A", "2/4 0 1/2 node2 A", "3/4 1 1/2 node2 A"]),
        // The ports of the meeting move with the first place.
        (0, "cyclic", ["0/4 0 0/2 node1 B", "1/4 0 1/2 node2 B", "2/4 1 0/2 node1 B", "3/4 1 1/2 node2 B"]),
    ] {
        let words = ["-H", "node[0-2]:2", "--map", mapping, "--nnodes", "2:3", "--restart", "1", "sh", "-c", PLACE];
        let running = Job::new(words).at(hosts.front()).start();
        lose(&hosts, &running, lost, 6);
        let ended = running.finish(BOUND);
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(0), "{text}");
        let expected = expected.map(|line| line.replace('A', &address(0)).replace('B', &address(1)));
        assert_eq!(ended.of_attempt(1), expected, "{text}");
        assert!(text.contains(&format!("rankrun: without node{lost}: 4 ranks on 2 nodes, numbered anew\n")), "{text}");
        assert!(text.contains(&format!(": node node{lost} was lost: ")), "{text}");
        assert!(text.contains("rankrun: restarted: all 4 ranks run (attempt 1, "), "{text}");
    }
    hosts.finish(MOMENT);
}

#[test]
fn a_job_that_needs_more_nodes_than_are_left_ends_with_the_reason() {
    let Some(hosts) = Hosts::up(3) else { return };
    for (options, reason) in [
        // The node would come back later.
        (
            &["--nnodes", "3:4", "--start-timeout", "1s"][..],
            "restart   2 nodes are left without node2, and --nnodes asks for 3\n",
        ),
        (&[], "restart   the job runs on all of its nodes, and node2 is lost (--nnodes MIN:MAX)\n"),
    ] {
        let words = ["-H", "node[0-2]:1", "--restart", "1"].into_iter().chain(options.iter().copied());
        let running = Job::new(words.chain(["sh", "-c", PLACE])).at(hosts.front()).start();
        lose(&hosts, &running, 2, 3);
        let ended = running.finish(BOUND);
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(121), "{text}");
        assert!(text.contains("rankrun: node node2 was lost: ") && text.contains(reason), "{text}");
        assert_eq!(ended.of_attempt(1), [""; 0], "{text}");
    }
    hosts.finish(MOMENT);
}

#[test]
fn a_command_that_would_have_no_rank_ends_the_job() {
    let Some(hosts) = Hosts::up(2) else { return };
    let words = [
        "-H",
        "node[0-1]:1",
        "--nnodes",
        "1:2",
        "--start-timeout",
        "1s",
        "--restart",
        "1",
        "-n",
        "1",
        "sh",
        "-c",
        PLACE,
    ];
    let running = Job::new(words.into_iter().chain([":", "-n", "1", "sh", "-c", PLACE])).at(hosts.front()).start();
    lose(&hosts, &running, 1, 2);
    let ended = running.finish(BOUND);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(121), "{text}");
    assert!(text.contains("restart   the job cannot run without node1\n"), "{text}");
    hosts.finish(MOMENT);
}

/// Rank 1 of the first attempt ignores SIGTERM. A rank of the second one looks whether it is alive.
const OUTLIVES: &str = "if [ $RANKRUN_ATTEMPT -gt 0 ]; then kill -0 $(cat $RANKRUN_TEST_DIR/old) && echo 1: beside || echo 1: alone; exit; fi; \
    [ $RANKRUN_RANK = 0 ] && echo 0: up && exec sleep 1000; \
    trap '' TERM; echo $$ > $RANKRUN_TEST_DIR/old; echo 0: up; while :; do sleep 0.1; done";

#[test]
fn no_attempt_begins_while_ranks_of_a_node_that_was_lost_may_live() {
    let Some(hosts) = Hosts::up(2) else { return };
    for (heals, told) in [
        (true, "rankrun: waiting for node1 to prove that no rank is left there, for "),
        (false, "rankrun: no answer from node1: "),
    ] {
        let words = ["-H", "node[0-1]:1", "--nnodes", "1:2", "--restart", "1", "--node-timeout", "2s", "--grace", "2s"];
        let running = Job::new(words.into_iter().chain(["sh", "-c", OUTLIVES])).at(hosts.front()).start();
        let has = |bytes: Vec<u8>, text: &str, count| String::from_utf8_lossy(&bytes).matches(text).count() >= count;
        wait_until(BOUND, || has(running.stdout_so_far(), "0: up", 2).then_some(())).expect("both ranks run");
        hosts.node(1).cut(Cut::Silent);
        // Where it stays cut off, until the bound of its agent has passed.
        let awaited = if heals { "node1 was lost" } else { told };
        wait_until(BOUND, || has(running.stderr_so_far(), awaited, 1).then_some(())).expect("it is given up");
        hosts.node(1).heal();
        let ended = running.finish(BOUND);
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(0), "{text}");
        assert_eq!(ended.of_attempt(1), ["alone"], "{text}");
        assert!(text.contains(told), "{text}");
        assert_eq!(text.contains("no answer from"), !heals, "{text}");
    }
    hosts.finish(MOMENT);
}

/// The same of a node that has joined by itself: nobody can ask it, and it may tell of its end once it can.
#[test]
fn no_attempt_begins_while_ranks_of_a_joined_node_that_was_cut_off_may_live() {
    let Some(hosts) = Hosts::up(2) else { return };
    let secret = hosts.secret();
    for heals in full_scale(&[false, true][..], &[false]) {
        let start = |node: usize| {
            let rank = node.to_string();
            let words =
                ["--nnodes", "1:2", "--node-rank", &rank, "--rendezvous", "node0:29400", "--secret-file", &secret];
            let bounds = ["--restart", "1", "--node-timeout", "2s", "--grace", "2s", "--", "sh", "-c", OUTLIVES];
            Job::new(words.into_iter().chain(bounds)).at(hosts.node(node)).start()
        };
        let (front, member) = (start(0), start(1));
        let has = |bytes: Vec<u8>, text: &str, count| String::from_utf8_lossy(&bytes).matches(text).count() >= count;
        wait_until(BOUND, || has(front.stdout_so_far(), "0: up", 2).then_some(())).expect("both ranks run");
        hosts.node(1).cut(Cut::Silent);
        let awaited = if *heals { "node1 was lost" } else { "rankrun: no answer from node1: " };
        wait_until(BOUND, || has(front.stderr_so_far(), awaited, 1).then_some(())).expect("it is given up");
        hosts.node(1).heal();
        let ended = front.finish(BOUND);
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(0), "{text}");
        assert_eq!(ended.of_attempt(1), ["alone"], "{text}");
        assert_eq!(text.contains("no answer from node1"), !heals, "{text}");
        member.finish(BOUND);
    }
    hosts.finish(MOMENT);
}

/// Rank 1 is done at once. Rank 0 fails when it may.
const ONE_IS_DONE: &str = "echo $RANKRUN_ATTEMPT: $RANKRUN_RANK/$RANKRUN_WORLD_SIZE; [ $RANKRUN_ATTEMPT -gt 0 ] && exit 0; \
    [ $RANKRUN_RANK = 1 ] && exit 0; until test -e $RANKRUN_TEST_DIR/go; do sleep 0.05; done; exit 3";

/// Runs it on two nodes, and kills the relay of the second one when its rank has ended.
fn lose_after_its_ranks(hosts: &Hosts, options: &[&str]) -> Ended {
    let words = ["-H", "node[0-1]:1"].into_iter().chain(options.iter().copied()).chain(["sh", "-c", ONE_IS_DONE]);
    let running = Job::new(words).at(hosts.front()).start();
    let is_up = || {
        let text = String::from_utf8_lossy(&running.stdout_so_far()).into_owned();
        (text.lines().filter(|line| line.starts_with("0: ")).count() == 2).then_some(())
    };
    wait_until(BOUND, is_up).expect("both ranks run");
    let has_ended = || hosts.node(1).survivors().iter().all(|process| process.name != "sh").then_some(());
    wait_until(BOUND, has_ended).expect("rank 1 ends");
    lose(hosts, &running, 1, 2);
    let is_gone = || hosts.node(1).survivors().iter().all(|process| process.name != "rr-agent").then_some(());
    wait_until(BOUND, is_gone).expect("its agent ends without the relay");
    running.sign("go");
    running.finish(BOUND)
}

#[test]
fn a_node_that_is_lost_after_its_ranks_have_ended_matters_only_to_the_next_attempt() {
    let Some(hosts) = Hosts::up(2) else { return };
    for (options, code, told) in [
        (&[][..], 3, "rank 0 failed: exited with code 3"),
        (
            &["--restart", "1", "--backoff", "0s..0s", "--nnodes", "1:2"],
            0,
            "without node1: 1 rank on 1 node, numbered anew",
        ),
        (&["--restart", "1", "--backoff", "0s..0s"], 3, "the job runs on all of its nodes, and node1 is lost"),
    ] {
        // The news of the end of rank 1 may not have left the node when its relay is killed.
        let tries = std::iter::repeat_with(|| lose_after_its_ranks(&hosts, options)).take(4);
        let ended = tries.into_iter().find(|ended| !ended.stderr_text().contains("node node1 was lost: "));
        let ended = ended.expect("the news leaves the node in one of four tries");
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(code), "{options:?}: {text}");
        assert!(text.contains(told), "{options:?}: {text}");
    }
    hosts.finish(MOMENT);
}

#[test]
fn hosts_that_cannot_be_reached_hold_up_none_of_the_others() {
    let Some(hosts) = Hosts::up(2) else { return };
    // Through a jump host, eight are called at a time.
    let words = ["-H", "nobody[1-9],node[0-1]", "--ssh-command", "ssh -o ProxyJump=none", "--nnodes", "2:11"];
    let ended = Job::new(words.into_iter().chain(["echo", "0: here"])).at(hosts.front()).bound(BOUND).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(ended.of_attempt(0), ["here"; 2], "{}", ended.stderr_text());
    hosts.finish(MOMENT);
}

#[test]
fn a_job_begins_without_the_hosts_that_cannot_be_reached() {
    let Some(hosts) = Hosts::up(2) else { return };
    let words = ["-H", "node0:1,nobody:2,node1:1", "--nnodes", "2:3", "sh", "-c"];
    let line = "echo 0: $RANKRUN_RANK/$RANKRUN_WORLD_SIZE $RANKRUN_NODE_RANK/$RANKRUN_NNODES $(hostname)";
    let ended = Job::new(words.into_iter().chain([line])).at(hosts.front()).bound(BOUND).run();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(0), "{text}");
    assert_eq!(ended.of_attempt(0), ["0/2 0/2 node0", "1/2 1/2 node1"], "{text}");
    assert!(
        text.contains("rankrun: node nobody: ") && text.contains("rankrun: without nobody: 2 ranks on 2 nodes"),
        "{text}"
    );
    // Too few are left: the host is named as it is without --nnodes.
    let words = ["-H", "node0:1,nobody:1", "--nnodes", "2:3", "true"];
    let ended = Job::new(words).at(hosts.front()).bound(BOUND).run();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(121), "{text}");
    assert!(text.starts_with("error: node nobody: "), "{text}");
    hosts.finish(MOMENT);
}

/// An MPI world and a store of torch on the nodes that are left.
#[test]
fn mpi_and_torch_meet_on_the_nodes_that_are_left() {
    let Some(hosts) = Hosts::up(3) else { return };
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/left");
    for (name, program) in [("mpich", "mpi.py"), ("openmpi", "mpi.py"), ("torch", "gloo.py")] {
        let Some(environment) = Environment::find(name) else { return };
        let (python, program) = (environment.program("python3"), directory.join(program).display().to_string());
        let words = ["-H", "node[0-2]:2", "--nnodes", "2:3", "--restart", "1", &python, &program];
        let running = Job::new(words).at(hosts.front()).start();
        lose(&hosts, &running, 0, 6);
        let ended = running.finish(BOUND);
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr_text());
        assert_eq!(ended.of_attempt(1), ["sum 6 of 4"; 4], "{name}: {}", ended.stderr_text());
    }
    hosts.finish(MOMENT);
}

#[test]
fn mistakes_with_the_number_of_nodes_are_refused_with_a_way_out() {
    let refused = |words: &[&str]| {
        let ended = Job::new(words).bound(BOUND).run();
        assert_eq!(ended.code, Some(2), "{words:?}");
        ended.stderr_text()
    };
    for (words, what) in [
        (&["--nnodes", "3:2", "true"][..], "\"3:2\" begins with the larger number: write MIN:MAX"),
        (&["--nnodes", "0:2", "true"], "\"0:2\" is not a number of nodes from 1 to 65536, or MIN:MAX"),
        (&["--nnodes", "1:2", "true"], "--nnodes 1:2: the job has no host but this one"),
        (&["-H", "192.0.2.[1-3]", "--nnodes", "1:2", "true"], "--nnodes 1:2: the job has 3 hosts"),
        (&["-H", "192.0.2.[1-3]", "--nnodes", "4:5", "true"], "--nnodes 4:5: the job has only 3 hosts"),
        (&["--nnodes", "2:3", "--node-rank", "1", "true"], "--nnodes 2:3 needs --rendezvous"),
    ] {
        let text = refused(words);
        assert!(text.contains(what), "{words:?}: {text}");
    }
}
