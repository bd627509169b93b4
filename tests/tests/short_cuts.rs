//! A connection that is cut for less than `--node-timeout` and heals: no node is lost, on every kind of connection, and no line of output
//! is lost or doubled. A cut that does not heal is found in time.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use rankrun_tests::{
    Cut, Ended, Host, Hosts, Job, Running, Slurm, full_scale, monotonic, pause, processes, slowness, wait_until,
};
use rustix::process::Signal;

/// How long the ranks may take to start, or to end.
const BOUND: Duration = Duration::from_secs(60);
/// What a host may still hold after the front has returned, for this long: a session of sshd that ends.
const MOMENT: Duration = Duration::from_secs(20);
/// Where node 0 listens. Each bench has a network of its own.
const PORT: u16 = 29_400;

/// A rank counts until it is told to end, or stopped.
const COUNT: &str = "trap 'touch $RANKRUN_TEST_DIR/stopped; exit' TERM
    printf %s $RANKRUN_JOB_ID > $RANKRUN_TEST_DIR/job
    i=0; while [ ! -e $RANKRUN_TEST_DIR/go ]; do i=$((i+1)); echo $RANKRUN_RANK $i; sleep 0.1; done; echo $RANKRUN_RANK end";

/// How front and agents are connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Ssh,
    Slurm,
    Join,
}

/// The machines of a test.
enum Bench {
    Hosts(Hosts),
    Slurm(Slurm),
}

impl Bench {
    fn up(kind: Kind, nodes: usize) -> Option<Bench> {
        Some(match kind {
            Kind::Ssh | Kind::Join => Bench::Hosts(Hosts::up(nodes)?),
            Kind::Slurm => Bench::Slurm(Slurm::up(nodes)?),
        })
    }

    fn hosts(&self) -> &Hosts {
        match self {
            Bench::Hosts(hosts) => hosts,
            Bench::Slurm(slurm) => slurm.hosts(),
        }
    }

    fn finish(self) {
        match self {
            Bench::Hosts(hosts) => hosts.finish(MOMENT),
            Bench::Slurm(slurm) => {
                assert!(slurm.wait_for_idle(BOUND), "{}", slurm.logs());
                slurm.finish(MOMENT);
            }
        }
    }
}

fn secret(hosts: &Hosts) -> PathBuf {
    let path = hosts.directory().join("jobs/secret");
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    if let Ok(mut file) = file {
        file.write_all(format!("{}A=\n", "Q".repeat(42)).as_bytes()).expect("it is ours");
    }
    path
}

/// Starts a job with a rank on each node that can be cut off. Returns the front, and those that join it.
fn start(kind: Kind, hosts: &Hosts, timeout: Duration) -> (Running, Vec<Running>) {
    let nodes = hosts.nodes().len();
    let timeout = format!("{}ms", timeout.as_millis());
    let own = ["--grace", "1s", "--linger", "100ms", "--node-timeout", &timeout];
    let command = ["--", "sh", "-c", COUNT];
    match kind {
        Kind::Ssh => {
            let names = hosts.names();
            let words = ["-H", &names, "--ppn", "1"].into_iter().chain(own).chain(command);
            (Job::new(words).at(hosts.front()).start(), Vec::new())
        }
        Kind::Slurm => {
            let count = format!("-N{nodes}");
            let rankrun = rankrun_tests::rankrun().display().to_string();
            let words =
                ["-Q", "--no-kill", &count, "--ntasks-per-node=1", &rankrun].into_iter().chain(own).chain(command);
            (Job::of_program("salloc", words).at(hosts.front()).start(), Vec::new())
        }
        Kind::Join => {
            let (count, secret) = ((nodes + 1).to_string(), secret(hosts).display().to_string());
            let address = format!("{}:{PORT}", hosts.front().address());
            let start = |host: &Host, rank: usize| {
                let rank = rank.to_string();
                let place =
                    ["--nnodes", &count, "--node-rank", &rank, "--rendezvous", &address, "--secret-file", &secret];
                Job::new(place.into_iter().chain(["--ppn", "1"]).chain(own).chain(command)).at(host).start()
            };
            let front = start(hosts.front(), 0);
            (front, hosts.nodes().iter().enumerate().map(|(index, host)| start(host, index + 1)).collect())
        }
    }
}

fn errors(running: &Running) -> String {
    String::from_utf8_lossy(&running.stderr_so_far()).into_owned()
}

/// The numbers that each rank has printed, as far as they are here. Each must follow the one before.
fn counts(text: &str, ranks: usize) -> Vec<u64> {
    let mut counts = vec![0; ranks];
    for line in text.lines() {
        let (rank, number) = line.split_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        let rank: usize = rank.parse().unwrap_or_else(|_| panic!("{line:?}"));
        if let Ok(number) = number.parse::<u64>() {
            counts[rank] += 1;
            assert_eq!(counts[rank], number, "rank {rank} lost or doubled a line");
        }
    }
    counts
}

fn counts_now(running: &Running, ranks: usize) -> Vec<u64> {
    let bytes = running.stdout_so_far();
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    counts(&String::from_utf8_lossy(&bytes[..whole]), ranks)
}

/// Waits until each rank has printed something more than `than`. False if the job says before that a node was lost.
fn all_count_on(running: &Running, than: &[u64], bound: Duration) -> bool {
    let look = || {
        if errors(running).contains("was lost") || running.front_ended().is_some() {
            return Some(false);
        }
        let now = counts_now(running, than.len());
        now.iter().zip(than).all(|(now, before)| now > before).then_some(true)
    };
    wait_until(bound, look).unwrap_or_else(|| panic!("ranks stand still: {than:?}: {}", errors(running)))
}

/// Cuts all nodes at once, each for its share of the time-out, in percent. Returns how many were lost.
fn play(kind: Kind, how: Cut, timeout: Duration, shares: &[u32]) -> usize {
    let Some(bench) = Bench::up(kind, shares.len()) else { return 0 };
    let hosts = bench.hosts();
    let what = format!("{kind:?}, {how:?}, {shares:?} % of {timeout:?}");
    let (front, members) = start(kind, hosts, timeout);
    let ranks = shares.len() + usize::from(kind == Kind::Join);
    assert!(all_count_on(&front, &vec![0; ranks], BOUND * slowness()), "{what}: {}", errors(&front));
    let mut heals: Vec<(u32, &Host)> = shares.iter().copied().zip(hosts.nodes()).collect();
    heals.sort_by_key(|(share, _)| *share);
    let mut began = Vec::new();
    for (_, host) in &heals {
        host.cut(how);
        began.push(monotonic());
    }
    for ((share, host), began) in heals.iter().zip(began) {
        pause((began + timeout * *share / 100).saturating_sub(monotonic()));
        host.heal();
    }
    let healed = counts_now(&front, ranks);
    // TCP tries again at twice the length of the cut.
    let goes_on = all_count_on(&front, &healed, 3 * timeout + BOUND * slowness());
    front.sign("go");
    let ended = front.finish(BOUND);
    let text = ended.stderr_text();
    let lost = lost_nodes(&ended, hosts);
    assert!(goes_on == (lost == 0), "{what}: {text}");
    if lost == 0 {
        assert_eq!(ended.code, Some(0), "{what}: {text}");
        let stdout = ended.stdout_text();
        counts(&stdout, ranks);
        assert_eq!(stdout.lines().filter(|line| line.ends_with(" end")).count(), ranks, "{what}: {stdout}");
    } else {
        let _ = writeln!(io::stderr(), "{what}: {lost} lost: {text}");
    }
    for member in members {
        let ended = member.finish(BOUND);
        assert!(lost > 0 || ended.code == Some(0), "{what}: {:?} {}", ended.code, ended.stderr_text());
    }
    bench.finish();
    lost
}

/// How many nodes the job has lost.
fn lost_nodes(ended: &Ended, hosts: &Hosts) -> usize {
    let text = ended.stderr_text();
    hosts.nodes().iter().filter(|node| text.contains(&format!("node {} was lost", node.name()))).count()
}

/// The cuts, of each kind of connection and in both ways that leave connections open.
fn no_short_cut_loses_a_node(kind: Kind) {
    let timeout = full_scale(Duration::from_secs(10), Duration::from_secs(3));
    const ALL: [&[u32]; 2] = [&[1, 20, 40, 60, 80], &[10, 30, 50, 70, 90]];
    const FEW: [&[u32]; 1] = [&[40, 90]];
    let batches = full_scale(&ALL[..], &FEW[..]);
    let mut lost = 0;
    let mut all = 0;
    for how in [Cut::Silent, Cut::Link].into_iter().take(full_scale(2, 1)) {
        for shares in batches {
            lost += play(kind, how, timeout, shares);
            all += shares.len();
        }
    }
    let _ = writeln!(io::stderr(), "{kind:?}: {lost} of {all} lost");
    assert_eq!(lost, 0, "{kind:?}: {lost} of {all} lost");
}

#[test]
fn a_cut_shorter_than_the_time_out_loses_no_node_over_ssh() {
    no_short_cut_loses_a_node(Kind::Ssh);
}

#[test]
fn a_cut_shorter_than_the_time_out_loses_no_node_of_slurm() {
    no_short_cut_loses_a_node(Kind::Slurm);
}

#[test]
fn a_cut_shorter_than_the_time_out_loses_no_node_that_has_joined() {
    no_short_cut_loses_a_node(Kind::Join);
}

/// What a node may be silent for beyond `--node-timeout`: the last try to reach it over a fresh connection, and some looks a second apart.
const LAST_TRY: Duration = Duration::from_secs(8);

fn a_cut_that_does_not_heal_loses_the_node_in_time(kind: Kind) {
    let Some(bench) = Bench::up(kind, 2) else { return };
    let (hosts, timeout) = (bench.hosts(), Duration::from_secs(3));
    let (front, members) = start(kind, hosts, timeout);
    let ranks = 2 + usize::from(kind == Kind::Join);
    assert!(all_count_on(&front, &vec![0; ranks], BOUND * slowness()), "{}", errors(&front));
    hosts.node(1).cut(Cut::Silent);
    let began = monotonic();
    // The other ranks are stopped.
    let is_lost = || front.directory().join("stopped").exists().then(monotonic);
    let lost = wait_until((timeout + LAST_TRY) * slowness(), is_lost);
    let after = lost.unwrap_or_else(|| panic!("{kind:?}: {}", errors(&front))).saturating_sub(began);
    assert!(after + Duration::from_secs(1) >= timeout, "{kind:?}: lost after {after:?}");
    let _ = writeln!(io::stderr(), "{kind:?}: lost after {after:?}");
    hosts.node(1).heal();
    let ended = front.finish(BOUND);
    let text = ended.stderr_text();
    assert_eq!((ended.code, lost_nodes(&ended, hosts)), (Some(121), 1), "{kind:?}: {text}");
    assert!(text.contains("node node1 was lost: no sign of life for 3 s (--node-timeout)"), "{kind:?}: {text}");
    for member in members {
        // The one that was cut off would wait for its agent to miss the front.
        processes::send(member.front(), Signal::INT);
        processes::send(member.front(), Signal::TERM);
        member.finish(BOUND);
    }
    bench.finish();
}

#[test]
fn a_cut_that_does_not_heal_loses_a_node_over_ssh_in_time() {
    a_cut_that_does_not_heal_loses_the_node_in_time(Kind::Ssh);
}

#[test]
fn a_cut_that_does_not_heal_loses_a_node_that_has_joined_in_time() {
    a_cut_that_does_not_heal_loses_the_node_in_time(Kind::Join);
}

/// A question that the network has kept may arrive when the front has long given up the node: it must not keep the ranks alive.
#[test]
fn the_agent_is_told_that_the_front_lives_only_if_the_front_confirms_it() {
    let Some(bench) = Bench::up(Kind::Ssh, 1) else { return };
    let hosts = bench.hosts();
    let (front, _) = start(Kind::Ssh, hosts, Duration::from_secs(60));
    assert!(all_count_on(&front, &[0], BOUND * slowness()), "{}", errors(&front));
    let job = front.job_ids().pop().expect("a job");
    let rankrun = rankrun_tests::rankrun();
    let ask = |job: &str, input: &str| {
        let line = format!("{input} | {} --as=relay alive {job} rr-mark", rankrun.display());
        let output = hosts.node(0).run(&line);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).starts_with("rr-mark ready "))
    };
    assert_eq!(ask(&format!("{job}-n0"), "echo alive"), (Some(0), true));
    // The front is gone, or its answer is kept as well.
    assert_eq!(ask(&format!("{job}-n0"), "true"), (Some(1), true));
    assert_eq!(ask(&format!("{job}-n0"), "sleep 4"), (Some(1), true));
    assert_eq!(ask("0badcafe-n0", "echo alive"), (Some(1), false));
    front.sign("go");
    let ended = front.finish(BOUND);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    bench.finish();
}
