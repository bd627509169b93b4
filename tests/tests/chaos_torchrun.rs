//! Random joins and leaves of `rankrun torchrun --nnodes 2:4`: hosts come, are asked to end, lose their agents, or are killed. Whatever the order, the
//! workers run on those that are there in the end, with the right ranks, no two attempts run at once, and none of it costs a restart.
//!
//! `RANKRUN_TEST_SEED=N` plays one again, as far as the machine's own timing allows; `N-M` plays several.

use std::fs;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::time::Duration;

use rankrun_tests::{
    Hosts, Job, Random, Running, full_scale, monotonic, pause, processes, scratch_in, seeds, wait_until,
};
use rustix::process::Signal;

const NODES: usize = 4;
const LEAST: usize = 2;
const BOUND: Duration = Duration::from_secs(120);
const EMPTY: Duration = Duration::from_secs(30);
/// A run in CI plays no further seed after this time.
const BRIEF: Duration = Duration::from_secs(60);

/// A worker holds a lock of its number, so that another attempt's worker of the number is seen, and works until it may end.
const WORKS: &str = "cd $PLACE; exec 9>>lock-$RANK; flock -n 9 || { echo overlap; exit 9; }; \
    echo $RANKRUN_ATTEMPT $RANK $WORLD_SIZE $(hostname) >> seen; until [ -e go ]; do sleep 0.05; done";

struct Game<'a> {
    hosts: &'a Hosts,
    place: &'a Path,
    secret: String,
    /// The commands that run, by host. That of the first host stays.
    present: Vec<Option<Running>>,
    notes: &'a mut Vec<String>,
    joins: u32,
    leaves: u32,
}

impl Game<'_> {
    fn start(&self, node: usize) -> Running {
        let variable = format!("PLACE={}", self.place.display());
        let words =
            ["torchrun", "--nnodes", "2:4", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "x"];
        let meeting =
            ["--rdzv-endpoint", "node0:29400", "--rdzv-conf", "last_call_timeout=1", "--shutdown-timeout", "1"];
        let ours = ["--node-timeout", "2s", "--linger", "0", "-x", &variable, "--no-python", "sh", "-c", WORKS];
        let job = Job::new(words.into_iter().chain(meeting).chain(ours)).at(self.hosts.node(node));
        job.env("RANKRUN_SECRET_FILE", &self.secret).start()
    }

    fn count(&self) -> usize {
        self.present.iter().flatten().count()
    }

    fn join(&mut self, node: usize) {
        self.notes.push(format!("node{node} joins"));
        self.joins += 1;
        self.present[node] = Some(self.start(node));
    }

    fn leave(&mut self, node: usize, random: &mut Random) {
        let Some(running) = self.present[node].take() else { return };
        let agent = || {
            let all = self.hosts.node(node).survivors();
            all.into_iter().find(|process| process.name == "rr-agent").map(|process| process.pid)
        };
        let (how, pid, signal) = match random.below(8) {
            // Where none is to spare, this would end the job.
            0..3 if self.count() >= LEAST => ("is asked to end", Some(running.front()), Signal::TERM),
            3 => ("is killed", Some(running.front()), Signal::KILL),
            // One that has none yet is killed.
            _ => ("loses its agent", agent().or(Some(running.front())), Signal::KILL),
        };
        self.notes.push(format!("node{node} {how}"));
        self.leaves += 1;
        processes::send(pid.expect("it runs"), signal);
        let ended = running.finish(BOUND);
        self.notes.push(format!("node{node} ended: {:?} {:?}", ended.code, ended.signal));
        assert!(ended.code != Some(0), "{}", ended.stderr_text());
    }

    /// Waits until the workers run on the nodes that are there.
    fn settle(&mut self) {
        let world = self.count();
        let is_there = || {
            let seen = fs::read_to_string(self.place.join("seen")).unwrap_or_default();
            let last = seen.lines().map(|line| number(line, 0)).max()?;
            let of_last: Vec<&str> = seen.lines().filter(|line| number(line, 0) == last).collect();
            let mut ranks: Vec<usize> = of_last.iter().map(|line| number(line, 1)).collect();
            ranks.sort_unstable();
            let mut names: Vec<&str> = of_last.iter().filter_map(|line| line.split(' ').nth(3)).collect();
            names.sort_unstable();
            let present = (0..NODES).filter(|node| self.present[*node].is_some()).map(|node| format!("node{node}"));
            let is_right = of_last.iter().all(|line| number(line, 2) == world) && names == present.collect::<Vec<_>>();
            (is_right && ranks == (0..world).collect::<Vec<_>>()).then_some(())
        };
        assert!(wait_until(BOUND, is_there).is_some(), "the workers do not run on {world} nodes");
    }
}

fn number(line: &str, at: usize) -> usize {
    line.split(' ').nth(at).and_then(|word| word.parse().ok()).unwrap_or(usize::MAX)
}

/// Returns how many joins and leaves there were.
fn play(random: &mut Random, notes: &mut Vec<String>, hosts: &Hosts) -> u32 {
    let place = scratch_in(&hosts.front().jobs_directory());
    let present = (0..NODES).map(|_| None).collect();
    let mut game = Game { hosts, place: &place, secret: hosts.secret(), present, notes, joins: 0, leaves: 0 };
    (0..LEAST + random.below(3) as usize).for_each(|node| game.join(node));
    game.settle();
    for _ in 0..2 + random.below(4) {
        let node = 1 + random.below(NODES as u64 - 1) as usize;
        match game.present[node].is_some() {
            // With fewer than it needs the job waits.
            true => game.leave(node, random),
            false => game.join(node),
        }
        if game.count() >= LEAST && random.below(3) > 0 {
            game.settle();
        } else {
            let scale = random.below(22);
            pause(Duration::from_micros(random.below(1 << scale)));
        }
    }
    if game.count() < LEAST {
        game.join(1);
    }
    game.settle();
    fs::write(place.join("go"), "").expect("it is ours");
    let (changes, running) = (game.joins + game.leaves, std::mem::take(&mut game.present));
    for (node, running) in running.into_iter().enumerate().filter_map(|(node, it)| Some((node, it?))) {
        let ended = running.finish(BOUND);
        notes.push(format!("node{node} {:?}: {}", ended.code, ended.stderr_text()));
        assert_eq!(ended.code, Some(0), "node{node}");
        assert!(!ended.stdout_text().contains("overlap"), "two attempts at once");
    }
    fs::remove_dir_all(&place).expect("it is ours");
    changes
}

#[test]
fn workers_run_on_the_nodes_that_are_there_whatever_joins_and_leaves_there_were() {
    let Some(hosts) = Hosts::up(NODES) else { return };
    let began = monotonic();
    let (mut played, mut changes) = (0, 0);
    for seed in seeds(full_scale(40, 4)) {
        if full_scale(false, true) && monotonic() - began > BRIEF {
            break;
        }
        let (mut notes, mut random) = (Vec::new(), Random::new(seed));
        match panic::catch_unwind(AssertUnwindSafe(|| play(&mut random, &mut notes, &hosts))) {
            Ok(count) => changes += count,
            Err(_) => panic!("RANKRUN_TEST_SEED={seed}: {notes:#?}"),
        }
        played += 1;
    }
    // It says how much the success stands for.
    let _ = writeln!(io::stderr(), "{played} seeds played, {changes} joins and leaves");
    assert!(played > 0, "no seed was played");
    hosts.finish(EMPTY);
}
