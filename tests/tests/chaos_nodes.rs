//! Random misfortunes of jobs on several hosts: processes that are killed or stopped, links that are cut and healed, hosts that
//! freeze, at any moment. After each, the promises are checked.
//!
//! `RANKRUN_TEST_SEED=N` plays one again, as far as the machine's own timing allows; `N-M` plays several.
//! `cargo xtask soak nodes_among` plays 200, again and again.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use rankrun_core::report::Report;
use rankrun_core::verdict::Fate;
use rankrun_tests::{
    Cut, Ended, Host, Hosts, Job, Random, Running, full_scale, helper, monotonic, pause, processes, rankrun, seeds,
    slowness, wait_until,
};
use rustix::process::Signal;

/// A job that has not ended by itself after so long is sent a signal.
const PATIENCE: Duration = Duration::from_secs(8);
/// From then on: `--node-timeout`, the grace, what is asked of nodes that were lost, and a margin for a busy machine.
const BOUND: Duration = Duration::from_secs(60);
/// How long hosts that can be reached again may take until they are empty.
const EMPTY: Duration = Duration::from_secs(30);
/// A run in CI plays no further seed after this time.
const BRIEF: Duration = Duration::from_secs(150);

const NODES: usize = 3;

/// What was done to a job.
#[derive(Default)]
struct Done {
    notes: Vec<String>,
    /// The hosts that were hit, or whose connections were.
    hit: BTreeSet<String>,
    /// Those that were cut off or frozen, for a while at least.
    cut: BTreeSet<String>,
    /// The names of the processes that were sent a signal.
    names: BTreeSet<String>,
    front_was_killed: bool,
    /// The front was told to end the job.
    was_told_to_stop: bool,
    /// A rank exits with 3.
    has_failure: bool,
    /// Children of the front that were stopped.
    stopped: Vec<i32>,
}

/// A signal to a process of the job, on any host.
fn hit_process(random: &mut Random, done: &mut Done, hosts: &Hosts, running: &Running) {
    let mut present: Vec<(String, i32, String)> = Vec::new();
    for node in hosts.nodes() {
        present.extend(node.survivors().into_iter().map(|it| (node.name().to_owned(), it.pid, it.name)));
    }
    present.extend(running.processes().into_iter().map(|it| ("front".to_owned(), it.pid, it.name)));
    // Rankrun's own processes are few, and matter more than the ranks' helpers.
    if random.below(3) > 0 {
        present
            .retain(|(_, _, name)| name.starts_with("rr-") || name.starts_with("ssh") || name.starts_with("rankrun"));
    }
    let Some((host, pid, name)) = present.get(random.below(present.len().max(1) as u64) as usize).cloned() else {
        return;
    };
    let is_front = pid == running.front();
    let signal = match random.below(4) {
        // A front that is stopped cannot return.
        0 if !is_front => Signal::STOP,
        1 if is_front => Signal::TERM,
        _ => Signal::KILL,
    };
    done.front_was_killed |= is_front && signal == Signal::KILL;
    done.was_told_to_stop |= is_front && signal == Signal::TERM;
    if !is_front {
        done.names.insert(name.clone());
    }
    done.notes.push(format!("{signal:?} to {name} ({pid}) on {host}"));
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).into_owned();
    // An ssh of the front belongs to the node to which it leads.
    done.hit.extend(hosts.nodes().iter().filter(|node| line.contains(node.name())).map(|node| node.name().to_owned()));
    let is_own = host == "front";
    done.hit.insert(host);
    processes::send(pid, signal);
    if is_front && signal == Signal::KILL {
        // A child that was stopped before it could ask for a signal at the end of its parent is known to nobody else any more.
        for child in &done.stopped {
            processes::send(*child, Signal::CONT);
        }
    } else if is_own && signal == Signal::STOP {
        done.stopped.push(pid);
    }
}

/// Cuts or freezes a host, most often for a while only.
fn hit_host(random: &mut Random, done: &mut Done, hosts: &Hosts) {
    let node = &hosts.nodes()[random.below(NODES as u64) as usize];
    let heals = (random.below(4) > 0).then(|| Duration::from_millis(random.one_of(&[10, 300, 2_500, 4_000, 7_000])));
    let how = random.one_of(&[Some(Cut::Link), Some(Cut::Silent), Some(Cut::Reset), None]);
    done.notes.push(format!("{} {how:?} for {heals:?}", node.name()));
    done.hit.insert(node.name().to_owned());
    done.cut.insert(node.name().to_owned());
    match how {
        Some(cut) => node.cut(cut),
        None => node.freeze(),
    }
    if let Some(time) = heals {
        pause(time);
        restore(node);
    }
}

fn restore(node: &Host) {
    node.heal();
    node.thaw();
}

fn misfortune(random: &mut Random, done: &mut Done, hosts: &Hosts) {
    let reports = hosts.directory().join("reports");
    // That of the job before.
    let _ = fs::remove_dir_all(&reports);
    let (names, directory, tree) = (hosts.names(), reports.display().to_string(), helper("tree"));
    let mut words = vec!["-H", &names, "--ppn", "2", "--node-timeout", "3s", "--report-dir", &directory];
    words.extend(["--grace", "1s", "--linger", "100ms"]);
    words.extend(random.one_of(&[&[][..], &["--on-front-lost", "wait:2s"]]));
    words.extend(["--", tree.as_str()]);
    words.extend(random.one_of(&[&[][..], &["--alone"], &["--obedient"], &["--rank", "3", "--exit", "3"]]));
    done.has_failure = words.ends_with(&["--exit", "3"]);
    done.notes.push(words.join(" "));
    let running = Job::new(&words).at(hosts.front()).start();
    for _ in 0..1 + random.below(2) {
        let scale = random.below(23);
        pause(Duration::from_micros(random.below(1 << scale)));
        match random.below(3) {
            0 => hit_host(random, done, hosts),
            _ => hit_process(random, done, hosts, &running),
        }
    }
    if wait_until(PATIENCE, || running.front_ended()).is_none() {
        done.notes.push("TERM to the front".to_owned());
        done.was_told_to_stop = true;
        processes::send(running.front(), Signal::TERM);
    }
    let ended = running.finish(BOUND);
    done.notes.push(format!(
        "{:?} {:?} after {:?}: {}",
        ended.code,
        ended.signal,
        ended.elapsed(),
        ended.stderr_text()
    ));
    // As the front left them.
    let workers: Vec<_> = hosts.nodes().iter().map(|node| (node.name(), workers(node))).collect();
    let report = fs::read_to_string(reports.join("report.json")).ok();
    let report: Option<Report> = report.map(|json| serde_json::from_str(&json).expect("a report can be read"));
    hosts.nodes().iter().for_each(restore);
    hosts.nodes().iter().for_each(Host::end_sessions);
    if done.front_was_killed {
        // It has no rank on its own machine, so that nobody is left there to remove its directory.
        let cleaned = hosts.front().command(rankrun()).arg("clean").output().expect("rankrun can be started");
        assert!(cleaned.status.success(), "{cleaned:?}");
    }
    check(done, &ended, report.as_ref(), &workers);
    let left = || -> Vec<String> { hosts.nodes().iter().chain([hosts.front()]).flat_map(Host::left).collect() };
    let gone = wait_until(EMPTY * slowness(), || {
        hosts.nodes().iter().for_each(Host::end_sessions);
        left().is_empty().then_some(())
    });
    assert!(gone.is_some(), "left on the hosts: {:#?}", left());
}

fn workers(node: &Host) -> Vec<i32> {
    node.survivors().into_iter().filter(|it| it.name == "tree" && it.state != 'Z').map(|it| it.pid).collect()
}

/// The second promise and the third.
fn check(done: &Done, ended: &Ended, report: Option<&Report>, workers: &[(&str, Vec<i32>)]) {
    if done.front_was_killed {
        return;
    }
    let text = ended.stderr_text();
    let code = ended.code.or(ended.signal.map(|signal| 128 + signal));
    let was_hit = |names: &[&str]| done.names.iter().any(|hit| names.iter().any(|name| hit.starts_with(name)));
    // A relay and its descendants have other names for a moment.
    let ours = ["rr-", "ssh", "rankrun", "sh", "env"];
    let fits = match code {
        // What writes the journal was stopped before it had begun.
        Some(2) => was_hit(&["rr-storage"]) && report.is_none(),
        Some(3) => done.has_failure,
        Some(121) => !done.cut.is_empty() || was_hit(&ours),
        Some(123) => report.is_none_or(|report| !report.left.proven),
        Some(125) => was_hit(&ours),
        // A rank that was killed, or was stopped and then killed.
        Some(137 | 147) => was_hit(&["tree"]),
        Some(143) => done.was_told_to_stop,
        _ => false,
    };
    assert!(fits, "{code:?} does not fit");
    let unproven = report.map(|report| report.left.unproven.clone()).unwrap_or_default();
    for node in &unproven {
        assert!(done.hit.contains(node), "{node} was never hit, and is not proved");
        assert!(text.contains("not proven"), "{text}");
    }
    // Whoever is not named is empty. Of a job that did not begin there is no report.
    for (node, alive) in workers.iter().filter(|_| report.is_some()) {
        assert!(alive.is_empty() || unproven.iter().any(|name| name == node), "workers on {node}: {alive:?}");
    }
    if let Some(report) = report.filter(|report| report.summary.contains(" was lost")) {
        let named = done.hit.iter().any(|name| report.summary.contains(&format!("node {name} was lost")));
        assert!(named, "a node was lost that nobody hit: {text}");
    }
    let lost = report.into_iter().flat_map(|report| &report.ranks).filter(|rank| rank.fate == Fate::Lost);
    for rank in lost {
        assert!(done.hit.contains(&rank.node), "{} was lost, and nobody hit it: {text}", rank.node);
    }
}

#[test]
fn nodes_among_misfortunes_end_and_leave_nothing() {
    let Some(hosts) = Hosts::up(NODES) else { return };
    let began = monotonic();
    let mut played = 0;
    for seed in seeds(full_scale(200, 30)) {
        if full_scale(false, true) && monotonic() - began > BRIEF {
            break;
        }
        let mut done = Done::default();
        let mut random = Random::new(seed);
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| misfortune(&mut random, &mut done, &hosts)));
        let listens: Vec<_> =
            hosts.nodes().iter().map(|node| (node.name(), node.sshd(), node.listens_on(22))).collect();
        assert!(outcome.is_ok(), "RANKRUN_TEST_SEED={seed}: {:#?}, sshd {listens:?}", done.notes);
        assert!(
            listens.iter().all(|(.., listens)| *listens),
            "after RANKRUN_TEST_SEED={seed}: {:#?}, {listens:?}",
            done.notes
        );
        played += 1;
    }
    // It says how much the success stands for.
    let _ = writeln!(io::stderr(), "{played} seeds played");
    assert!(played > 0, "no seed was played");
    hosts.finish(EMPTY);
}
