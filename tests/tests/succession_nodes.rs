//! The same on several hosts, however their nodes are reached: over ssh, by a step of Slurm, or as nodes that join.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Output, Stdio};
use std::time::Duration;

use rankrun_tests::{
    Cut, Host, Hosts, Job, Random, Running, Slurm, full_scale, pause, processes, rankrun, seeds, slowness, wait_until,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::succession::{COUNT, Way, front_of, text, told};

const BOUND: Duration = Duration::from_secs(60);

/// How the nodes of a job are reached.
#[derive(Clone, Copy)]
enum By<'a> {
    Ssh(&'a Hosts),
    /// The front is no node of the allocation, or it is on the first.
    Slurm(&'a Slurm, bool),
    /// The front is on node 0. All nodes have these options.
    Join(&'a Hosts, &'static str),
}

/// A job on three nodes, one rank on each.
struct OnNodes<'a> {
    /// Whoever starts the job and waits for it.
    running: Running,
    front: &'a Host,
    /// The commands of other nodes.
    others: Vec<Running>,
    job: String,
}

impl<'a> OnNodes<'a> {
    /// `early`: so long after it is there, the first front is killed, whatever it has come to.
    fn start(by: By<'a>, way: Way, early: Option<Duration>) -> OnNodes<'a> {
        let detached = format!("@ --detach --on-front-lost wait:1m {}", way.options());
        let ranks = format!("sh -c \"$COUNT\" \"{}\"", way.what());
        let (hosts, front) = match by {
            By::Ssh(hosts) => (hosts, hosts.front()),
            By::Slurm(slurm, false) => (slurm.hosts(), slurm.hosts().front()),
            By::Slurm(slurm, true) => (slurm.hosts(), slurm.hosts().node(0)),
            By::Join(hosts, _) => (hosts, hosts.node(0)),
        };
        let secret = hosts.secret();
        let options = if let By::Join(_, options) = by { options } else { "" };
        let joins = |node: u32| {
            format!("{options} --nnodes 3 --node-rank {node} --rendezvous node0:29400 --secret-file {secret}")
        };
        let begin = match by {
            By::Ssh(hosts) => format!("{detached} -H {} --ppn 1 {ranks}", hosts.names()),
            By::Slurm(..) => format!("{detached} {ranks}"),
            By::Join(..) => format!("{detached} {} {ranks}", joins(0)),
        };
        let line = |line: &str| line.replace('@', &rankrun().display().to_string());
        let shell = format!(
            "J=$({begin}) || exit 99; echo $J > $RANKRUN_TEST_DIR/id; @ wait $J; C=$?; @ logs $J > kept; \
                             @ report $J --json > report; exit $C"
        );
        let shell = line(&format!("cd $RANKRUN_TEST_DIR; {shell}"));
        let words: Vec<&str> = match by {
            By::Slurm(slurm, is_inside) => {
                // A node whose last job is being cleaned up gets no other.
                assert!(slurm.wait_for_idle(BOUND), "{}", slurm.logs());
                match is_inside {
                    true => {
                        vec!["sbatch", "-Q", "-N3", "--ntasks-per-node=1", "--wait", "-o/dev/null", "--wrap", &shell]
                    }
                    false => vec!["salloc", "-Q", "-N3", "--ntasks-per-node=1", "sh", "-c", &shell],
                }
            }
            By::Ssh(_) | By::Join(..) => vec!["sh", "-c", &shell],
        };
        let starter = if let By::Slurm(slurm, _) = by { slurm.hosts().front() } else { front };
        let of = |words: &[&str], host: &Host| {
            Job::of_program(words[0], &words[1..]).at(host).env("COUNT", COUNT).env_remove("RANKRUN_JOURNAL").start()
        };
        let others = |node: u32| {
            let words = line(&format!("exec @ {} -- {ranks}", joins(node)));
            of(&["sh", "-c", &words], hosts.node(node as usize))
        };
        let others = if matches!(by, By::Join(..)) { (1..3).map(others).collect() } else { Vec::new() };
        let running = of(&words, starter);
        if let Some(early) = early {
            let first = wait_until(BOUND * slowness(), || first_front(front)).expect("it begins");
            pause(early);
            processes::send(first, Signal::KILL);
        }
        let job = running.wait_for_text("id").trim().to_owned();
        OnNodes { running, front, others, job }
    }

    fn ask(&self, words: &[&str]) -> Output {
        let state = self.running.directory().join("state");
        let mut command = self.front.command(rankrun());
        command.args(words).env("XDG_STATE_HOME", state).stdin(Stdio::null()).output().expect("rankrun can be started")
    }

    fn kill_front(&self) {
        if let Some(front) = front_of(&self.ask(&["status", &self.job, "--json"])) {
            processes::send(front, Signal::KILL);
        }
    }

    /// What it has written, and its report.
    fn end(self, way: Way, what: &str) -> (String, Value) {
        let is_over = wait_until(BOUND * slowness(), || self.running.front_ended());
        assert!(is_over.is_some(), "{what}: it does not end: {}", text(&self.ask(&["status", &self.job])));
        let read = |name: &str| fs::read(self.running.directory().join(name)).unwrap_or_default();
        let (kept, report) = (String::from_utf8_lossy(&read("kept")).into_owned(), read("report"));
        for other in self.others {
            let ended = other.finish(BOUND);
            assert_eq!(ended.code, Some(way.code()), "{what}: {}", ended.stderr_text());
        }
        let ended = self.running.finish(BOUND);
        let all = format!("{}{}", ended.stdout_text(), ended.stderr_text());
        assert_eq!(ended.code, Some(way.code()), "{what}: {all}");
        (kept, told(&report, &self.job))
    }
}

/// The front of a job that has told nobody who it is, once another one can follow it.
fn first_front(host: &Host) -> Option<i32> {
    let has_ledger = |pid: &i32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|path| path.ends_with("ledger"))
    };
    host.pids().into_iter().find(has_ledger)
}

/// Kills the fronts of so many jobs at random moments. Their ends are those of jobs whose fronts live.
fn kill_fronts(by: By<'_>, jobs: u64) {
    // Of each way the report of a job whose front lives.
    let mut reports: BTreeMap<Way, Value> = BTreeMap::new();
    for seed in seeds(jobs) {
        let random = &mut Random::new(seed);
        let way = random.one_of(&[Way::Well, Way::Fails, Way::Restarts]);
        let what = format!("seed {seed}, {way:?}");
        let wanted = reports.entry(way).or_insert_with(|| OnNodes::start(by, way, None).end(way, &what).1).clone();
        let is_early = random.below(3) == 0;
        let early = Duration::from_millis(random.below(300));
        let running = OnNodes::start(by, way, is_early.then_some(early));
        for _ in 0..1 + random.below(3) {
            pause(Duration::from_millis(random.below(400)));
            running.kill_front();
        }
        let (kept, report) = running.end(way, &what);
        way.check(&kept, 3, &what);
        assert_eq!(report, wanted, "{what}");
    }
}

#[test]
fn a_job_over_ssh_goes_on_whenever_its_front_is_killed() {
    let Some(hosts) = Hosts::up(3) else { return };
    kill_fronts(By::Ssh(&hosts), full_scale(40, 3));
    hosts.finish(BOUND);
}

#[test]
fn a_job_whose_nodes_join_goes_on_whenever_its_front_is_killed() {
    let Some(hosts) = Hosts::up(3) else { return };
    kill_fronts(By::Join(&hosts, ""), full_scale(40, 3));
    hosts.finish(BOUND);
}

/// A front is killed while nobody reaches it, for less than `--node-timeout`.
#[test]
fn a_short_cut_during_which_the_front_is_killed_loses_no_node_that_has_joined() {
    let Some(hosts) = Hosts::up(3) else { return };
    let running = OnNodes::start(By::Join(&hosts, "--node-timeout 5s"), Way::Waits, None);
    let front = front_of(&running.ask(&["status", &running.job, "--json"])).expect("it runs");
    running.front.cut(Cut::Silent);
    processes::send(front, Signal::KILL);
    pause(Duration::from_secs(4));
    running.front.heal();
    running.others.iter().chain([&running.running]).for_each(|it| it.sign("go"));
    let (kept, _) = running.end(Way::Waits, "a cut");
    Way::Waits.check(&kept, 3, "a cut");
    hosts.finish(BOUND);
}

#[test]
fn a_signal_to_a_node_whose_front_was_just_killed_ends_the_job() {
    let Some(hosts) = Hosts::up(3) else { return };
    let job = OnNodes::start(By::Join(&hosts, ""), Way::Waits, None);
    job.kill_front();
    processes::send(job.others[0].front(), Signal::TERM);
    for other in job.others {
        let ended = other.finish(BOUND);
        assert_eq!(ended.code.or(ended.signal.map(|signal| 128 + signal)), Some(143), "{}", ended.stderr_text());
    }
    let ended = job.running.finish(BOUND);
    let all = format!("{}{}", ended.stdout_text(), ended.stderr_text());
    assert!(ended.code == Some(143) && all.contains("ended by SIGTERM"), "{:?}: {all}", ended.code);
    hosts.finish(BOUND);
}

#[test]
fn who_waits_for_a_job_that_begins_is_told_by_the_front_that_follows() {
    let Some(hosts) = Hosts::up(2) else { return };
    let node = |node: u32, detached: &str| {
        let (rankrun, secret) = (rankrun().display().to_string(), hosts.secret());
        let options = format!("--nnodes 2 --node-rank {node} --rendezvous node0:29400 --secret-file {secret}");
        let line = format!(
            "{rankrun} {detached} {options} -- sleep 1 > $RANKRUN_TEST_DIR/id && {rankrun} wait $(cat $RANKRUN_TEST_DIR/id)"
        );
        let line = if detached.is_empty() { format!("{rankrun} {options} -- sleep 1") } else { line };
        Job::of_program("sh", ["-c", &line]).at(hosts.node(node as usize)).env_remove("RANKRUN_JOURNAL").start()
    };
    let first = node(0, "--detach --on-front-lost wait:1m");
    let front = wait_until(BOUND * slowness(), || first_front(hosts.node(0))).expect("it begins");
    processes::send(front, Signal::KILL);
    let is_another = || first_front(hosts.node(0)).filter(|now| *now != front);
    assert!(wait_until(BOUND * slowness(), is_another).is_some(), "another front follows");
    let told = fs::read_to_string(first.directory().join("id")).unwrap_or_default();
    assert!(told.is_empty() && first.front_ended().is_none(), "not all ranks run: {told}");
    let second = node(1, "");
    for running in [first, second] {
        let ended = running.finish(BOUND);
        assert_eq!(ended.code, Some(0), "{}{}", ended.stdout_text(), ended.stderr_text());
    }
    hosts.finish(BOUND);
}

#[test]
fn a_job_in_an_allocation_of_slurm_goes_on_whenever_its_front_is_killed() {
    let Some(slurm) = Slurm::up(3) else { return };
    kill_fronts(By::Slurm(&slurm, false), full_scale(20, 1));
    kill_fronts(By::Slurm(&slurm, true), full_scale(20, 1));
    slurm.finish(BOUND);
}
