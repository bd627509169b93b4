//! Random misfortunes of jobs whose nodes may be replaced: agents, relays and ranks that are killed, hosts that are cut off, that freeze, and that come back. Every job comes
//! to its end, with the right ranks, and no two attempts run at once.
//!
//! `RANKRUN_TEST_SEED=N` plays one again, as far as the machine's own timing allows; `N-M` plays several.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::time::Duration;

use rankrun_tests::{
    Cut, Host, Hosts, Job, Random, full_scale, monotonic, pause, processes, scratch_in, seeds, slowness, wait_until,
};
use rustix::process::Signal;

const NODES: usize = 4;
const BOUND: Duration = Duration::from_secs(120);
const EMPTY: Duration = Duration::from_secs(30);
/// A run in CI plays no further seed after this time.
const BRIEF: Duration = Duration::from_secs(60);

/// A rank holds a lock of its number, so that another attempt's rank of the number is seen, and works until so many steps are done, in whichever attempts.
const WORKS: &str = "cd $PLACE; exec 9>>lock-$RANKRUN_RANK; flock -n 9 || { echo overlap; exit 9; }; \
    echo $RANKRUN_ATTEMPT $RANKRUN_RANK $RANKRUN_WORLD_SIZE >> seen; \
    while read step < step && [ $step -lt 25 ]; do sleep 0.1; \
    [ $RANKRUN_RANK != 0 ] || { echo $((step + 1)) > new && mv new step; }; done";

/// It notes the host that is to be fenced, and waits until the bench has done that.
const FENCE: &str = "#!/bin/sh\ncd $(dirname $0); echo $1 >> fence; n=$(grep -c . fence)\nuntil [ -e fenced-$1 ]; do sleep 0.05; done\n";

/// Does what `--fence` asks for: ends all that the job has on a host, as switching it off would.
fn fence(hosts: &Hosts, place: &Path, done: &mut BTreeSet<String>) {
    let wanted = fs::read_to_string(place.join("fence")).unwrap_or_default();
    for name in wanted.lines().filter(|name| !done.contains(*name)).map(str::to_owned).collect::<Vec<_>>() {
        if let Some(node) = hosts.nodes().iter().find(|node| node.name() == name) {
            let end = || {
                node.survivors().into_iter().for_each(|process| processes::send(process.pid, Signal::KILL));
                node.survivors().iter().all(|process| process.state == 'Z').then_some(())
            };
            wait_until(EMPTY, end).expect("what is killed ends");
            fs::write(place.join(format!("fenced-{name}")), "").expect("it is ours");
        }
        done.insert(name);
    }
}

fn hit(random: &mut Random, notes: &mut Vec<String>, hosts: &Hosts) {
    let node = &hosts.nodes()[random.below(NODES as u64) as usize];
    let time = Duration::from_millis(random.one_of(&[10, 300, 1_500, 4_000, 8_000]));
    match random.below(6) {
        0..3 => {
            let present = node.survivors();
            let Some(process) = present.get(random.below(present.len().max(1) as u64) as usize) else { return };
            let signal = random.one_of(&[Signal::KILL, Signal::KILL, Signal::STOP]);
            // Nobody can know that a helper of a rank that stands still is not to.
            let signal = if process.name == "sleep" { Signal::KILL } else { signal };
            notes.push(format!("{signal:?} to {} ({}) on {}", process.name, process.pid, node.name()));
            processes::send(process.pid, signal);
        }
        3 => {
            notes.push(format!("{} freezes for {time:?}", node.name()));
            node.freeze();
            pause(time);
            node.thaw();
        }
        _ => {
            let how = random.one_of(&[Cut::Link, Cut::Silent, Cut::Reset]);
            notes.push(format!("{} {how:?} for {time:?}", node.name()));
            node.cut(how);
            pause(time);
            node.heal();
        }
    }
}

fn play(random: &mut Random, notes: &mut Vec<String>, hosts: &Hosts) {
    let place = scratch_in(&hosts.front().jobs_directory());
    fs::write(place.join("step"), "0\n").expect("it is ours");
    let script = place.join("fence.sh");
    fs::write(&script, FENCE).expect("it is ours");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let (script, variable) = (script.display().to_string(), format!("PLACE={}", place.display()));
    // With a spare the job keeps its size; without one it runs on what there is.
    let has_spare = random.below(2) == 0;
    let of_members: &[&str] = match has_spare {
        true => &["-H", "node[0-3]:2", "--spares", "1"],
        false => &["-H", "node[0-3]:2", "--nnodes", "2:4", "--grow", "restart"],
    };
    let mut words: Vec<&str> = of_members.to_vec();
    words.extend(["--restart", "50", "--no-breaker", "--backoff", "0", "--node-timeout", "2s", "--grace", "1s"]);
    words.extend([
        "--linger",
        "0",
        "--fence",
        &script,
        "--start-timeout",
        "60s",
        "-x",
        &variable,
        "--",
        "sh",
        "-c",
        WORKS,
    ]);
    notes.push(words.join(" "));
    let running = Job::new(&words).at(hosts.front()).start();
    let mut fenced = BTreeSet::new();
    let is_up = || fs::read_to_string(place.join("seen")).is_ok_and(|seen| seen.lines().count() >= 6).then_some(());
    wait_until(BOUND, is_up).expect("the ranks start");
    for _ in 0..1 + random.below(3) {
        let scale = random.below(21);
        pause(Duration::from_micros(random.below(1 << scale)));
        hit(random, notes, hosts);
        fence(hosts, &place, &mut fenced);
    }
    let ended = wait_until(BOUND, || {
        fence(hosts, &place, &mut fenced);
        running.front_ended()
    });
    let ended = match ended {
        Some(_) => running.finish(BOUND),
        None => {
            processes::send(running.front(), Signal::TERM);
            running.finish(BOUND)
        }
    };
    let text = ended.stderr_text();
    notes.push(format!("{:?} {:?} after {:?}: {text}", ended.code, ended.signal, ended.elapsed()));
    hosts.nodes().iter().for_each(Host::end_sessions);
    assert_eq!(ended.code, Some(0), "the job is lost");
    assert!(!ended.stdout_text().contains("overlap"), "two attempts at once");
    let seen = fs::read_to_string(place.join("seen")).expect("it ran");
    let numbers = |line: &str| line.split(' ').map(|word| word.parse::<u32>().expect("a number")).collect::<Vec<_>>();
    let all: Vec<Vec<u32>> = seen.lines().map(numbers).collect();
    let last = all.iter().map(|line| line[0]).max().expect("it ran");
    let (mut ranks, worlds): (Vec<u32>, BTreeSet<u32>) =
        all.iter().filter(|line| line[0] == last).map(|line| (line[1], line[2])).unzip();
    ranks.sort_unstable();
    let world = *worlds.first().expect("it ran");
    assert_eq!((worlds.len(), &ranks), (1, &(0..world).collect()), "the ranks of attempt {last}");
    let sizes: &[u32] = if has_spare { &[6] } else { &[4, 6, 8] };
    assert!(sizes.contains(&world), "{world} ranks");
    let left = || -> Vec<String> { hosts.nodes().iter().chain([hosts.front()]).flat_map(Host::left).collect() };
    let gone = wait_until(EMPTY * slowness(), || {
        hosts.nodes().iter().for_each(Host::end_sessions);
        left().is_empty().then_some(())
    });
    assert!(gone.is_some(), "left on the hosts: {:#?}", left());
    fs::remove_dir_all(&place).expect("it is ours");
}

#[test]
fn jobs_whose_nodes_come_and_go_reach_their_end() {
    let Some(hosts) = Hosts::up(NODES) else { return };
    let began = monotonic();
    let mut played = 0;
    for seed in seeds(full_scale(1000, 20)) {
        if full_scale(false, true) && monotonic() - began > BRIEF {
            break;
        }
        let (mut notes, mut random) = (Vec::new(), Random::new(seed));
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| play(&mut random, &mut notes, &hosts)));
        assert!(outcome.is_ok(), "RANKRUN_TEST_SEED={seed}: {notes:#?}");
        played += 1;
    }
    // It says how much the success stands for.
    let _ = writeln!(io::stderr(), "{played} seeds played");
    assert!(played > 0, "no seed was played");
    hosts.finish(EMPTY);
}
