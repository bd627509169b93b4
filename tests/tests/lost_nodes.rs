//! Nodes that are lost, in every way and at any moment: nothing hangs, nothing is left, and the report tells which node it was.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use rankrun_core::Rank;
use rankrun_core::evidence::Class;
use rankrun_core::report::Report;
use rankrun_core::verdict::Fate;
use rankrun_tests::{
    Cut, Ended, Host, Hosts, Job, Running, full_scale, helper, in_time, monotonic, processes, rankrun, slowness,
    wait_until,
};
use rustix::process::Signal;

/// What a host may still hold after the front has returned, for this long: a session of sshd that ends.
const MOMENT: Duration = Duration::from_secs(10);
/// How long a process of a job may take to appear.
const START: Duration = Duration::from_secs(30);
/// What the jobs have as `--node-timeout`.
const NODE_TIMEOUT: Duration = Duration::from_secs(3);
/// From a loss to the end: `--node-timeout`, the grace, what is asked of the node again, and a margin.
const BOUND: Duration = Duration::from_secs(40);

/// A process that is hit. All but the front are those of the last node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Agent,
    Guard,
    Relay,
    /// The process of sshd that serves the connection.
    Sshd,
    /// The local ssh.
    Ssh,
    Front,
}

impl Victim {
    /// Waits until it is there.
    fn find(self, hosts: &Hosts, running: &Running) -> i32 {
        let node = hosts.nodes().last().expect("there are nodes");
        let named = |name: &str| {
            let present = node.survivors();
            present.iter().find(|process| process.name == name).map(|process| process.pid)
        };
        let found = wait_until(START, || match self {
            Victim::Agent => named("rr-agent"),
            Victim::Guard => named("rr-guard"),
            Victim::Relay => named("rr-relay"),
            Victim::Sshd => {
                let relay = named("rr-relay")?;
                processes::process(relay).map(|relay| relay.parent)
            }
            Victim::Ssh => {
                let all = processes::children(running.front()).into_iter().filter(|it| it.name == "ssh");
                all.map(|ssh| ssh.pid).find(|pid| command(*pid).contains(node.name()))
            }
            Victim::Front => Some(running.front()),
        });
        found.unwrap_or_else(|| panic!("no {self:?}"))
    }
}

fn command(pid: i32) -> String {
    String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).replace('\0', " ")
}

/// Where the report of the job goes.
fn reports(hosts: &Hosts) -> PathBuf {
    hosts.directory().join("reports")
}

/// Starts a job with two ranks on each host.
fn start(hosts: &Hosts, options: &[&str], program: &[&str]) -> Running {
    // What is left of an earlier job in this bench would be taken for this one's.
    let _ = std::fs::remove_dir_all(reports(hosts));
    let (names, reports) = (hosts.names(), reports(hosts).display().to_string());
    let mut words = vec!["-H", &names, "--ppn", "2", "--node-timeout", "3s", "--report-dir", &reports];
    words.extend(["--grace", "1s", "--linger", "100ms"]);
    words.extend(options);
    words.push("--");
    words.extend(program);
    Job::new(words).at(hosts.front()).start()
}

fn report(hosts: &Hosts, ended: &Ended) -> Report {
    let json = std::fs::read_to_string(reports(hosts).join("report.json"));
    let json = json.unwrap_or_else(|error| panic!("no report: {error}: {}", ended.stderr_text()));
    serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

/// The job ended because the last node was lost, and the report says so.
fn assert_lost(hosts: &Hosts, ended: &Ended, what: &str) -> Report {
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(121), "{what}: {text}");
    let report = report(hosts, ended);
    let node = hosts.nodes().last().expect("there are nodes").name();
    assert_eq!(report.class, Some(Class::NodeLost), "{what}: {text}");
    assert!(report.summary.contains(&format!("node {node} was lost")), "{what}: {text}");
    assert!(text.contains(&report.summary), "{what}: {text}");
    for rank in &report.ranks {
        match rank.node == node {
            true => assert_eq!(rank.fate, Fate::Lost, "{what}: {rank:?}: {text}"),
            false => assert!(matches!(rank.fate, Fate::EndedByRankrun), "{what}: {rank:?}: {text}"),
        }
    }
    report
}

/// A front that was killed where it had no rank leaves the directory of its control socket, since no agent is left to remove it.
fn clean_after_front(hosts: &Hosts) {
    let cleaned = hosts.front().command(rankrun()).arg("clean").output().expect("rankrun can be started");
    assert!(cleaned.status.success(), "{cleaned:?}");
}

/// Nothing is left anywhere.
fn assert_nothing_left(hosts: &Hosts, what: &str) {
    let left = || -> Vec<String> { hosts.nodes().iter().chain([hosts.front()]).flat_map(|host| host.left()).collect() };
    let gone = wait_until(MOMENT * slowness(), || left().is_empty().then_some(()));
    assert!(gone.is_some(), "{what}: {:#?}", left());
}

/// Every process of the job that held the workers is gone when the front returns: it is not only on its way.
fn assert_no_workers(hosts: &Hosts, what: &str) {
    for node in hosts.nodes() {
        let workers: Vec<_> = node.survivors().into_iter().filter(|it| it.name == "tree").collect();
        assert!(workers.is_empty(), "{what}: {workers:?}");
    }
}

const NODES: usize = 2;

fn tree() -> String {
    helper("tree")
}

#[test]
fn whatever_is_killed_or_stopped_on_a_node_the_job_ends_and_the_node_is_named() {
    let Some(hosts) = Hosts::up(NODES) else { return };
    use Victim::{Agent, Relay, Ssh, Sshd};
    for victim in [Agent, Relay, Sshd, Ssh] {
        for signal in [Signal::KILL, Signal::STOP] {
            let what = format!("{signal:?} to {victim:?}");
            let running = start(&hosts, &[], &[&tree(), "--obedient"]);
            running.wait_for_ranks(4);
            let pid = victim.find(&hosts, &running);
            let before = monotonic();
            processes::send(pid, signal);
            let ended = running.finish(BOUND);
            let took = ended.ended.saturating_sub(before);
            assert_no_workers(&hosts, &what);
            if (victim, signal) == (Sshd, Signal::STOP) {
                processes::send(pid, Signal::KILL);
            }
            let report = assert_lost(&hosts, &ended, &what);
            assert!(report.left.proven, "{what}: {}", ended.stderr_text());
            let why = match (victim, signal) {
                (Agent, Signal::KILL) => "node1 was lost: its agent was killed, or ended without a report",
                (Agent, Signal::STOP) => "node1 was lost: another process stopped its agent, and its guard killed it",
                (Relay, Signal::KILL) => "node1 was lost: the relay of rankrun was killed there",
                (Sshd, Signal::KILL) => "node1 was lost: its connection was closed: ",
                (Ssh, Signal::KILL) => "node1 was lost: its ssh on this machine was ended by SIGKILL",
                _ => "node1 was lost: ",
            };
            assert!(report.summary.contains(why), "{what}: {}", report.summary);
            assert!(took < in_time(Duration::from_secs(20)), "{what} took {took:?}: {}", ended.stderr_text());
            assert_nothing_left(&hosts, &what);
        }
    }
    hosts.finish(MOMENT);
}

#[test]
fn a_lost_guard_ends_the_job_and_its_node_is_named() {
    let Some(hosts) = Hosts::up(NODES) else { return };
    let running = start(&hosts, &[], &[&tree(), "--obedient"]);
    running.wait_for_ranks(4);
    processes::send(Victim::Guard.find(&hosts, &running), Signal::KILL);
    let ended = running.finish(BOUND);
    assert_no_workers(&hosts, "guard");
    assert_eq!(ended.code, Some(125), "{}", ended.stderr_text());
    assert!(report(&hosts, &ended).left.proven, "{}", ended.stderr_text());
    assert!(ended.stderr_text().contains("the guard of node node1 was killed"), "{}", ended.stderr_text());
    assert_nothing_left(&hosts, "guard");
    // One that is stopped is only in the way of the end.
    let running = start(&hosts, &[], &[&tree(), "--obedient", "--on-go", "--exit", "3"]);
    running.wait_for_ranks(4);
    processes::send(Victim::Guard.find(&hosts, &running), Signal::STOP);
    running.sign("go");
    let ended = running.finish(BOUND);
    assert_no_workers(&hosts, "guard");
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    assert!(report(&hosts, &ended).left.proven, "{}", ended.stderr_text());
    assert_nothing_left(&hosts, "guard");
    hosts.finish(MOMENT);
}

#[test]
fn nodes_that_lose_the_front_end_their_workers() {
    let Some(hosts) = Hosts::up(NODES) else { return };
    let running = start(&hosts, &[], &[&tree()]);
    running.wait_for_ranks(4);
    processes::send(running.front(), Signal::KILL);
    let ended = running.finish(BOUND);
    assert_eq!(ended.signal, Some(9));
    clean_after_front(&hosts);
    assert_nothing_left(&hosts, "front killed");
    // A front that is stopped cannot return. The nodes hear nothing from it.
    let running = start(&hosts, &[], &[&tree()]);
    running.wait_for_ranks(4);
    processes::send(running.front(), Signal::STOP);
    let are_gone = || {
        let workers = hosts.nodes().iter().flat_map(|node| node.survivors()).filter(|it| it.name == "tree").count();
        (workers == 0).then_some(())
    };
    assert!(wait_until(BOUND * slowness(), are_gone).is_some(), "workers outlive a stopped front");
    processes::send(running.front(), Signal::CONT);
    let ended = running.finish(BOUND);
    assert_eq!(ended.code, Some(121), "{}", ended.stderr_text());
    let report = report(&hosts, &ended);
    assert!(report.left.proven, "{}", ended.stderr_text());
    // No node is to blame.
    let summary = &report.summary;
    assert!(summary.starts_with("rankrun itself stood still for ") && !summary.contains("was lost"), "{summary}");
    hosts.finish(MOMENT);
}

#[test]
fn a_node_that_is_cut_off_is_lost_in_time_and_its_agent_ends_by_itself() {
    let Some(hosts) = Hosts::up(NODES) else { return };
    for cut in [Cut::Link, Cut::Silent, Cut::Reset] {
        let what = format!("{cut:?}");
        let running = start(&hosts, &[], &[&tree()]);
        running.wait_for_ranks(4);
        let before = monotonic();
        hosts.node(1).cut(cut);
        let ended = running.finish(BOUND);
        let took = ended.ended.saturating_sub(before);
        let report = assert_lost(&hosts, &ended, &what);
        let text = ended.stderr_text();
        assert!(took < in_time(Duration::from_secs(25)), "{what} took {took:?}: {text}");
        assert_eq!((report.left.proven, &report.left.unproven[..]), (false, &["node1".to_owned()][..]), "{text}");
        assert!(text.contains("not proven on node1"), "{text}");
        // Nobody can tell it, and nobody has to.
        let own = || hosts.node(1).survivors().iter().all(|it| it.name.starts_with("sshd")).then_some(());
        assert!(wait_until(BOUND * slowness(), own).is_some(), "{what}: {:?}", hosts.node(1).survivors());
        hosts.node(1).heal();
        // The kernel of a host that was cut off tries for minutes to deliver what it has.
        for session in hosts.node(1).survivors() {
            processes::send(session.pid, Signal::KILL);
        }
        assert_nothing_left(&hosts, &what);
    }
    hosts.finish(MOMENT);
}

#[test]
fn whoever_goes_on_pressing_waits_for_no_node_that_does_not_answer() {
    let Some(hosts) = Hosts::up(NODES) else { return };
    let running = start(&hosts, &["--node-timeout", "10s"], &[&tree()]);
    running.wait_for_ranks(4);
    hosts.node(1).cut(Cut::Silent);
    running.interrupt_twice(|| {});
    let before = monotonic();
    // Each is a word that the one before has not helped.
    let ended = || {
        processes::send(running.front(), Signal::INT);
        wait_until(Duration::from_secs(1), || running.front_ended())
    };
    let ended = wait_until(BOUND, ended).expect("it ends");
    let text = String::from_utf8_lossy(&running.stderr_so_far()).into_owned();
    assert!(ended.saturating_sub(before) < in_time(Duration::from_secs(6)), "{text}");
    assert!(text.contains("not proven on node1:"), "{text}");
    let own = || hosts.node(1).survivors().iter().all(|it| it.name.starts_with("sshd")).then_some(());
    assert!(wait_until(START * slowness(), own).is_some(), "{:?}", hosts.node(1).survivors());
    hosts.node(1).heal();
    for session in hosts.node(1).survivors() {
        processes::send(session.pid, Signal::KILL);
    }
    running.finish(BOUND);
    assert_nothing_left(&hosts, "healed");
    hosts.finish(MOMENT);
}

#[test]
fn a_node_that_can_be_reached_again_is_asked_and_proves_that_nothing_is_left() {
    let Some(hosts) = Hosts::up(NODES) else { return };
    // Ranks that do not obey, and agents that would wait for the front for a minute.
    let running = start(&hosts, &["--on-front-lost", "wait:60s"], &[&tree()]);
    running.wait_for_ranks(4);
    hosts.node(1).cut(Cut::Silent);
    let lost = || String::from_utf8_lossy(&running.stderr_so_far()).contains("to say what is left").then_some(());
    assert!(wait_until(BOUND, lost).is_some());
    hosts.node(1).heal();
    let ended = running.finish(BOUND);
    assert_no_workers(&hosts, "healed");
    let report = assert_lost(&hosts, &ended, "healed");
    assert!(report.left.proven, "{}", ended.stderr_text());
    assert_nothing_left(&hosts, "healed");
    hosts.finish(MOMENT);
}

#[test]
fn a_silent_node_is_suspect_and_may_answer_again() {
    let Some(hosts) = Hosts::up(NODES) else { return };
    let running = start(&hosts, &["--node-timeout", "20s"], &[&tree(), "--obedient", "--on-go", "--exit", "3"]);
    running.wait_for_ranks(4);
    let said = |what: &str| {
        let found = || String::from_utf8_lossy(&running.stderr_so_far()).contains(what).then_some(());
        assert!(wait_until(BOUND, found).is_some(), "{}", String::from_utf8_lossy(&running.stderr_so_far()));
    };
    let relay = Victim::Relay.find(&hosts, &running);
    processes::send(relay, Signal::STOP);
    said("node node1 has been silent for 10 s; it counts as lost in 10 s unless it answers (--node-timeout)");
    processes::send(relay, Signal::CONT);
    said("node node1 answers again");
    running.sign("go");
    let ended = running.finish(BOUND);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    assert_nothing_left(&hosts, "suspect");
    hosts.finish(MOMENT);
}

#[test]
fn a_frozen_node_is_lost_and_ends_its_workers_when_it_thaws() {
    let Some(hosts) = Hosts::up(NODES) else { return };
    let running = start(&hosts, &[], &[&tree()]);
    running.wait_for_ranks(4);
    hosts.node(1).freeze();
    let ended = running.finish(BOUND);
    let report = assert_lost(&hosts, &ended, "frozen");
    assert_eq!(report.left.unproven, ["node1"], "{}", ended.stderr_text());
    hosts.node(1).thaw();
    assert_nothing_left(&hosts, "frozen");
    hosts.finish(MOMENT);
}

/// The front counts on the end of the ranks there by then, and another attempt may run elsewhere: they get no grace.
#[test]
fn a_node_that_was_frozen_and_cut_off_kills_its_ranks_when_it_thaws() {
    let Some(hosts) = Hosts::up(NODES) else { return };
    let rank = "trap 'echo $RANKRUN_RANK >> $RANKRUN_TEST_DIR/asked; exit 0' TERM\n\
        : > $RANKRUN_TEST_DIR/$RANKRUN_RANK.leader\nwhile :; do sleep 0.2; done";
    let running = start(&hosts, &["--grace", "10s"], &["sh", "-c", rank]);
    running.wait_for_ranks(4);
    let asked = running.directory().join("asked");
    hosts.node(1).cut(Cut::Silent);
    hosts.node(1).freeze();
    let lost = || String::from_utf8_lossy(&running.stderr_so_far()).contains("node node1 was lost").then_some(());
    assert!(wait_until(BOUND, lost).is_some(), "{}", String::from_utf8_lossy(&running.stderr_so_far()));
    hosts.node(1).thaw();
    let own = || hosts.node(1).survivors().iter().all(|it| it.name.starts_with("sshd")).then_some(());
    assert!(wait_until(BOUND * slowness(), own).is_some(), "{:?}", hosts.node(1).survivors());
    let asked = std::fs::read_to_string(asked).unwrap_or_default();
    let mut ranks: Vec<&str> = asked.lines().collect();
    ranks.sort_unstable();
    assert_eq!(ranks, ["0", "1"], "only those of the other node were asked to end");
    hosts.node(1).heal();
    let ended = running.finish(BOUND);
    assert_lost(&hosts, &ended, "frozen and cut off");
    for session in hosts.node(1).survivors() {
        processes::send(session.pid, Signal::KILL);
    }
    assert_nothing_left(&hosts, "frozen and cut off");
    hosts.finish(MOMENT);
}

/// As on a machine that sleeps, or a host of virtual machines that stands still: nobody was silent, since nobody listened.
#[test]
fn what_stands_still_all_together_goes_on() {
    let Some(hosts) = Hosts::up(NODES) else { return };
    let running = start(&hosts, &[], &[&tree(), "--obedient", "--on-go", "--rank", "3", "--exit", "7"]);
    running.wait_for_ranks(4);
    let all = || hosts.nodes().iter().chain([hosts.front()]);
    all().for_each(Host::freeze);
    let (since, timeouts) = (monotonic(), 3 * NODE_TIMEOUT);
    let over = wait_until(2 * timeouts, || (monotonic() - since > timeouts).then_some(()));
    assert!(over.is_some());
    all().for_each(Host::thaw);
    // Longer than an agent needs to take its front for lost.
    let since = monotonic();
    assert!(wait_until(2 * timeouts, || (monotonic() - since > timeouts).then_some(())).is_some());
    running.sign("go");
    let ended = running.finish(BOUND);
    assert_eq!(ended.code, Some(7), "{}", ended.stderr_text());
    let report = report(&hosts, &ended);
    assert_eq!(report.culprit.map(|culprit| culprit.rank), Some(Rank(3)), "{}", ended.stderr_text());
    assert_nothing_left(&hosts, "all frozen");
    hosts.finish(MOMENT);
}

#[test]
fn processes_that_are_killed_while_the_nodes_come_together_or_stop_leave_nothing() {
    let Some(hosts) = Hosts::up(NODES) else { return };
    use Victim::{Agent, Front, Guard, Relay, Ssh, Sshd};
    for victim in [Ssh, Sshd, Relay, Guard, Agent, Front] {
        let what = format!("{victim:?} at the start");
        let running = start(&hosts, &[], &[&tree(), "--obedient"]);
        processes::send(victim.find(&hosts, &running), Signal::KILL);
        let ended = running.finish(BOUND);
        let text = ended.stderr_text();
        match victim {
            Front => assert_eq!(ended.signal, Some(9), "{what}"),
            Guard => assert!(matches!(ended.code, Some(121 | 125)), "{what}: {:?}: {text}", ended.code),
            _ => assert_eq!(ended.code, Some(121), "{what}: {text}"),
        }
        if victim == Front {
            clean_after_front(&hosts);
        } else {
            assert_no_workers(&hosts, &what);
            assert!(text.contains("node1"), "{what}: {text}");
        }
        assert_nothing_left(&hosts, &what);
        let what = format!("{victim:?} while stopping");
        let running = start(&hosts, &[], &["sh", "-c", STUBBORN]);
        running.wait_for_ranks(4);
        let pid = victim.find(&hosts, &running);
        processes::send(running.front(), Signal::TERM);
        running.wait_for_file("stopping");
        processes::send(pid, Signal::KILL);
        let ended = running.finish(BOUND);
        match victim {
            Front => {
                assert_eq!(ended.signal, Some(9), "{what}");
                clean_after_front(&hosts);
            }
            _ => {
                assert_no_workers(&hosts, &what);
                assert_eq!(ended.signal, Some(15), "{what}: {:?}: {}", ended.code, ended.stderr_text());
                assert!(report(&hosts, &ended).left.proven, "{what}: {}", ended.stderr_text());
            }
        }
        assert_nothing_left(&hosts, &what);
    }
    hosts.finish(MOMENT);
}

/// A rank that says that it was told to stop, and does not.
const STUBBORN: &str = "trap ': > $RANKRUN_TEST_DIR/stopping' TERM; : > $RANKRUN_TEST_DIR/$RANKRUN_RANK.leader; \
                        while :; do sleep 0.05; done";

#[test]
fn a_rank_that_fails_on_one_node_ends_those_of_all_others() {
    let Some(hosts) = Hosts::up(3) else { return };
    let running = start(&hosts, &[], &[&tree(), "--obedient", "--on-go", "--rank", "5", "--exit", "7"]);
    running.wait_for_ranks(6);
    let before = monotonic();
    running.sign("go");
    let ended = running.finish(BOUND);
    assert_eq!(ended.code, Some(7), "{}", ended.stderr_text());
    let report = report(&hosts, &ended);
    assert_eq!(report.culprit.map(|culprit| (culprit.rank, culprit.node)), Some((Rank(5), "node2".to_owned())));
    assert!(report.left.proven);
    let took = ended.ended.saturating_sub(before);
    assert!(took < in_time(Duration::from_secs(5)), "{took:?}");
    hosts.finish(MOMENT);
}

#[test]
fn a_node_without_cpu_time_is_not_lost() {
    let Some(hosts) = Hosts::up(NODES) else { return };
    let loops = "for i in 1 2 3 4 5 6 7 8; do sh -c 'while :; do :; done' & done; wait";
    let mut busy = hosts.node(1).command("timeout").args(["60", "sh", "-c", loops]).spawn().expect("a shell");
    let running = start(&hosts, &[], &["sleep", "9"]);
    let ended = running.finish(BOUND);
    // `timeout` ends its whole process group.
    processes::send(busy.id().cast_signed(), Signal::TERM);
    busy.wait().expect("it is our child");
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(0), "{text}");
    assert!(!text.contains("lost") && !text.contains("silent"), "{text}");
    assert_nothing_left(&hosts, "busy");
    hosts.finish(MOMENT);
}

/// Rank 3 of node1 listens; all others are connected to it, and fail when it is gone.
const PEERS: &str = r#"
import os, pathlib, socket, sys, time
rank, place = int(os.environ["RANKRUN_RANK"]), pathlib.Path(os.environ["RANKRUN_TEST_DIR"])
port = place / "port"
if rank == 3:
    listener = socket.create_server(("0.0.0.0", 0))
    (place / "part").write_text(str(listener.getsockname()[1]))
    (place / "part").rename(port)
    peers = [listener.accept()[0] for _ in range(3)]
    (place / "3.leader").touch()
    time.sleep(1000)
while not port.exists():
    time.sleep(0.01)
peer = socket.create_connection(("node1", int(port.read_text())))
(place / f"{rank}.leader").touch()
if not peer.recv(1):
    raise ConnectionResetError(104, "Connection reset by peer")
"#;

#[test]
fn ranks_that_lose_a_connection_to_a_lost_node_are_not_blamed() {
    let Some(hosts) = Hosts::up(NODES) else { return };
    for victim in [Victim::Agent, Victim::Relay] {
        let running = start(&hosts, &[], &["python3", "-c", PEERS]);
        running.wait_for_ranks(4);
        processes::send(victim.find(&hosts, &running), Signal::KILL);
        let ended = running.finish(BOUND);
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(121), "{victim:?}: {text}");
        let report = report(&hosts, &ended);
        assert_eq!((report.class, report.culprit), (Some(Class::NodeLost), None), "{victim:?}: {text}");
        assert!(report.summary.contains("node node1 was lost"), "{victim:?}: {text}");
        assert!(report.left.proven, "{text}");
        assert_nothing_left(&hosts, "victims");
    }
    hosts.finish(MOMENT);
}

/// The time from the end of the rank that fails to the end of the last rank on another node, by the report of a job.
fn time_to_tell(report: &Report) -> Duration {
    let culprit = report.culprit.as_ref().expect("a rank failed").rank;
    let of = |rank: Rank| report.ranks.iter().find(|it| it.rank == rank).expect("it is a rank");
    let (first, own) = (of(culprit).ended_at.expect("it ended"), &of(culprit).node);
    let others = report.ranks.iter().filter(|it| it.node != *own).filter_map(|it| it.ended_at);
    Duration::from_secs_f64((others.fold(first, f64::max) - first).max(0.0))
}

#[test]
fn a_failure_is_told_to_64_ranks_on_8_nodes() {
    let Some(hosts) = Hosts::up(8) else { return };
    let mut times = Vec::new();
    for round in 0..full_scale(20, 1) {
        let options = ["--ppn", "8"];
        let rank = ((round * 13) % 64).to_string();
        let running =
            start(&hosts, &options, &[&tree(), "--alone", "--obedient", "--on-go", "--rank", &rank, "--exit", "7"]);
        running.wait_for_ranks(64);
        running.sign("go");
        let ended = running.finish(BOUND);
        assert_eq!(ended.code, Some(7), "{}", ended.stderr_text());
        times.push(time_to_tell(&report(&hosts, &ended)));
    }
    times.sort();
    let median = times[times.len() / 2];
    // What is measured is for whoever reads the output of the test.
    let _ = writeln!(io::stderr(), "from a rank's end to the last end elsewhere: median {median:?} of {times:?}");
    assert!(median < Duration::from_secs(1) * slowness(), "{times:?}");
    hosts.finish(MOMENT);
}
