//! Nodes that join by themselves come and go: one that was lost comes back when its command is started again, others come late, and
//! spares replace those that are lost (`--nnodes MIN:MAX`, `--spares`, `--grow`).

use std::time::Duration;

use rankrun_tests::{Ended, Host, Hosts, Job, Running, processes};
use rustix::process::Signal;

use super::members::{PLACE, on, until, until_up};

const MOMENT: Duration = Duration::from_secs(10);
const BOUND: Duration = Duration::from_secs(120);

/// The same command on each node, which is started there when a test says so.
struct Command<'a> {
    hosts: &'a Hosts,
    secret: String,
    options: Vec<&'a str>,
    /// Nodes say which they are.
    are_numbered: bool,
}

impl<'a> Command<'a> {
    fn new(hosts: &'a Hosts, options: &[&'a str]) -> Command<'a> {
        Command { hosts, secret: hosts.secret(), options: options.to_vec(), are_numbered: true }
    }

    fn start_as(&self, host: usize, number: usize) -> Running {
        let number = number.to_string();
        let mut words = vec!["--ppn", "2", "--rendezvous", "node0:29400", "--secret-file", &self.secret];
        if self.are_numbered {
            words.extend(["--node-rank", &number]);
        }
        words.extend(["--restart", "9", "--no-breaker", "--backoff", "0", "--timeout", "100s", "--node-timeout", "3s"]);
        words.extend(self.options.iter().copied());
        words.extend(["--", "sh", "-c", PLACE]);
        Job::new(words).at(self.hosts.node(host)).start()
    }

    fn start(&self, node: usize) -> Running {
        self.start_as(node, node)
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

fn until_says(running: &Running, what: &str) {
    until(running, what, |_, stderr| stderr.contains(what));
}

/// Ends the agent of a node: its guard says that nothing is left there, and its command ends.
fn lose(host: &Host, member: Running) {
    let agent = host.survivors().into_iter().find(|process| process.name == "rr-agent").expect("it has an agent");
    processes::send(agent.pid, Signal::KILL);
    let ended = member.finish(BOUND);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(121), "{text}");
    assert!(text.contains("error: the job has lost this node, and goes on without it\n"), "{text}");
}

/// Lets an attempt come to its end, which is a good one, on each node.
fn finish(front: Running, members: Vec<Running>, attempt: u32) -> (Ended, String) {
    front.sign(&format!("go-{attempt}"));
    let ended = front.finish(BOUND);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(0), "{text}");
    assert!(!ended.stdout_text().contains("two attempts"), "{text}");
    for member in members {
        let ended = member.finish(BOUND);
        assert_eq!(ended.code, Some(0), "{}\n{text}", ended.stderr_text());
    }
    (ended, text)
}

#[test]
fn a_node_that_was_lost_comes_back_when_its_command_is_started_again() {
    let Some(hosts) = Hosts::up(3) else { return };
    for is_at_once in [true, false] {
        let command = Command::new(&hosts, &["--nnodes", "2:3", "--grow", if is_at_once { "restart" } else { "next" }]);
        let (front, one, two) = (command.start(0), command.start(1), command.start(2));
        until_up(&front, 0, 6);
        lose(hosts.node(1), one);
        until_up(&front, 1, 4);
        let one = command.start(1);
        let (members, nodes) = if is_at_once {
            until_says(&front, "ending attempt 1: more nodes are here (--grow restart)");
            (vec![one, two], &[0, 1, 2][..])
        } else {
            until_says(&front, "node1 is ready, as a spare");
            lose(hosts.node(2), two);
            (vec![one], &[0, 1][..])
        };
        until_up(&front, 2, 2 * nodes.len());
        let (ended, text) = finish(front, members, 2);
        assert_eq!(ended.of_attempt(0), on(&[0, 1, 2]), "{text}");
        assert_eq!(ended.of_attempt(1), on(&[0, 2]), "{text}");
        assert_eq!(ended.of_attempt(2), on(nodes), "{text}");
        assert!(text.contains("rankrun: without node1: 4 ranks on 2 nodes, numbered anew\n"), "{text}");
        assert!(text.contains("rankrun: node1 joins the job\n"), "{text}");
    }
    hosts.finish(MOMENT);
}

/// The job begins when as many are there as it needs, and grows with each that comes.
#[test]
fn nodes_that_come_late_are_taken_in() {
    let Some(hosts) = Hosts::up(3) else { return };
    let command = Command::new(&hosts, &["--nnodes", "1:3", "--last-call", "100ms", "--grow", "restart"]);
    let front = command.start(0);
    until_up(&front, 0, 2);
    let two = command.start(2);
    until_up(&front, 1, 4);
    let one = command.start(1);
    until_up(&front, 2, 6);
    let (ended, text) = finish(front, vec![one, two], 2);
    let expected = [on(&[0]), on(&[0, 2]), on(&[0, 1, 2])];
    assert_eq!([0, 1, 2].map(|attempt| ended.of_attempt(attempt)), expected, "{text}");
    hosts.finish(MOMENT);
}

/// Nodes that are not numbered get the places that there are.
#[test]
fn a_spare_that_has_joined_takes_the_place_of_a_lost_node() {
    let Some(hosts) = Hosts::up(3) else { return };
    for are_numbered in [true, false] {
        let command = Command { are_numbered, ..Command::new(&hosts, &["--nnodes", "2", "--spares", "1"]) };
        let (front, one) = (command.start(0), command.start(1));
        until_up(&front, 0, 4);
        // It comes when the ranks run already.
        let two = command.start(2);
        until(&front, "the spare is here", |_, _| {
            hosts.node(2).survivors().iter().any(|process| process.name == "rr-agent")
        });
        lose(hosts.node(1), one);
        until_up(&front, 1, 4);
        let one = command.start(1);
        until_says(&front, "node1 is ready, as a spare");
        lose(hosts.node(2), two);
        until_up(&front, 2, 4);
        let (ended, text) = finish(front, vec![one], 2);
        let expected = [on(&[0, 1]), on(&[0, 2]), on(&[0, 1])];
        assert_eq!([0, 1, 2].map(|attempt| ended.of_attempt(attempt)), expected, "{text}");
        assert!(text.contains("rankrun: node2 takes the place of node1\n"), "{text}");
    }
    hosts.finish(MOMENT);
}

/// N:N is a job that needs all of its nodes, and waits for them.
#[test]
fn a_job_waits_for_a_lost_node_that_it_needs() {
    let Some(hosts) = Hosts::up(2) else { return };
    let command = Command::new(&hosts, &["--nnodes", "2:2"]);
    let (front, one) = (command.start(0), command.start(1));
    until_up(&front, 0, 4);
    lose(hosts.node(1), one);
    until_says(&front, "waiting for some to come back, for 300 s at most (--start-timeout)");
    let one = command.start(1);
    until_up(&front, 1, 4);
    let (ended, text) = finish(front, vec![one], 1);
    assert_eq!([0, 1].map(|attempt| ended.of_attempt(attempt)), [on(&[0, 1]), on(&[0, 1])], "{text}");
    hosts.finish(MOMENT);
}

/// A pod may be started again elsewhere before the first is known to be gone: it waits for its place.
#[test]
fn a_node_whose_place_is_taken_waits_until_the_other_is_lost() {
    let Some(hosts) = Hosts::up(3) else { return };
    let command = Command::new(&hosts, &["--nnodes", "1:2", "--grow", "restart"]);
    let (front, one) = (command.start(0), command.start(1));
    until_up(&front, 0, 4);
    let again = command.start_as(2, 1);
    until_says(&again, "not admitted yet: node 1 has joined already, from node1");
    lose(hosts.node(1), one);
    until(&front, "the other comes", |stdout, _| stdout.lines().any(|line| line.ends_with(" 1/2 node2")));
    let attempt = text(front.stdout_so_far()).lines().last().map_or(0, |line| line[..1].parse().expect("a number"));
    until_up(&front, attempt, 4);
    let (ended, text) = finish(front, vec![again], attempt);
    assert_eq!(ended.of_attempt(attempt), on(&[0, 2]), "{text}");
    hosts.finish(MOMENT);
}

/// Its command is killed: nobody says what is left there. The next attempt waits until time has said it, or a fence.
#[test]
fn a_node_whose_command_was_killed_comes_back() {
    let Some(hosts) = Hosts::up(2) else { return };
    for fence in [&["--fence", "true"][..], &[]] {
        let options = [&["--nnodes", "1:2", "--grow", "restart", "--grace", "1s"], fence].concat();
        let command = Command::new(&hosts, &options);
        let (front, one) = (command.start(0), command.start(1));
        until_up(&front, 0, 4);
        processes::send(one.front(), Signal::KILL);
        assert_eq!(one.finish(BOUND).signal, Some(9));
        let one = command.start(1);
        until(&front, "it is back", |stdout, _| {
            stdout.lines().any(|line| !line.starts_with("0: ") && line.ends_with(" 1/2 node1"))
        });
        let attempt = if text(front.stdout_so_far()).contains("2: ") { 2 } else { 1 };
        until_up(&front, attempt, 4);
        let (ended, text) = finish(front, vec![one], attempt);
        assert_eq!(ended.of_attempt(attempt), on(&[0, 1]), "{text}");
    }
    hosts.finish(MOMENT);
}
