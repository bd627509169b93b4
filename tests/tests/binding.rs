//! The CPUs that ranks really have (docs/placement.md). Each test has a machine of its own, as far as other jobs are concerned: the cores that
//! jobs hold are noted in a file below /tmp.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use rankrun_core::topology::CpuSet;
use rankrun_tests::{Ended, Host, Hosts, Job, Running, full_scale, processes, skip, wait_until};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(60);
/// How long a host may take to be empty after a job.
const MOMENT: Duration = Duration::from_secs(10);

/// A rank that writes what the kernel says of its CPUs.
const SHOW: [&str; 3] = ["grep", "Cpus_allowed_list", "/proc/self/status"];

/// A rank that does so and stays.
const STAY: &str = "grep Cpus_allowed_list /proc/self/status > $RANKRUN_TEST_DIR/mask; exec sleep 600";

fn allowed() -> CpuSet {
    mask_in(&fs::read_to_string("/proc/self/status").expect("proc is mounted"))
}

/// The CPUs in the text of a status file.
fn mask_in(text: &str) -> CpuSet {
    let line = text.lines().find_map(|line| line.split_once("Cpus_allowed_list:").map(|(_, list)| list.trim()));
    line.and_then(|list| list.parse().ok()).unwrap_or_else(|| panic!("no CPUs: {text}"))
}

/// Two CPUs of different cores, and the host's own machine; the reason where there are none.
fn two_cores() -> Option<(u32, u32)> {
    let allowed = allowed();
    let first = allowed.lowest()?;
    let path = format!("/sys/devices/system/cpu/cpu{first}/topology/core_cpus_list");
    let siblings: CpuSet = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    let found = allowed.without(&siblings).lowest();
    if found.is_none() {
        skip("this machine has one core");
    }
    Some((first, found?))
}

/// The masks of the ranks of a job that succeeds, by rank.
fn masks(ended: &Ended) -> Vec<CpuSet> {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let text = ended.stdout_text();
    let mut lines: Vec<&str> = text.lines().collect();
    // Each has its rank in front.
    lines.sort_unstable();
    lines.into_iter().map(mask_in).collect()
}

fn show(host: &Host, options: &[&str]) -> Ended {
    let words = ["-l"].iter().chain(options).chain(&SHOW).copied();
    Job::new(words).at(host).bound(BOUND).run()
}

fn stay(host: &Host, options: &[&str]) -> Running {
    Job::new(options.iter().copied().chain(["sh", "-c", STAY])).at(host).bound(BOUND).start()
}

fn mask_of(job: &Running) -> CpuSet {
    mask_in(&job.wait_for_text("mask"))
}

fn stop(job: Running) {
    processes::send(job.front(), Signal::TERM);
    job.finish(BOUND);
}

#[test]
fn ranks_have_the_cpus_that_the_options_say() {
    let (Some((one, other)), Some(hosts)) = (two_cores(), Hosts::up(1)) else { return };
    let host = hosts.front();
    let all = allowed();
    let set = |cpus: &[u32]| cpus.iter().copied().collect::<CpuSet>();
    let lists = format!("{one}:{other}");
    let pair = format!("{one},{other}");
    let many = (all.count() + 1).to_string();
    // By default an equal share of whole cores each.
    let shares = masks(&show(host, &["-n", "2"]));
    assert_eq!(shares.len(), 2);
    assert!(!shares[0].meets(&shares[1]) && shares[0].count() == shares[1].count(), "{shares:?}");
    assert!(shares.iter().all(|share| share.without(&all).is_empty()), "{shares:?}");
    for (options, expected) in [
        // Nobody has asked for it, and it could harm.
        (&["-n", "1"][..], vec![all.clone()]),
        (&["-n", &many], vec![all.clone(); all.count() as usize + 1]),
        (&["-n", "2", "--env", "OMP_NUM_THREADS=4096"], vec![all.clone(); 2]),
        (&["-n", "2", "--env", "GOMP_CPU_AFFINITY=0 1"], vec![all.clone(); 2]),
        (&["-n", "2", "--bind-to", "none"], vec![all.clone(); 2]),
        (&["-n", "2", "--cpu-list", &lists], vec![set(&[one]), set(&[other])]),
        (&["-n", "2", "--cpu-list", &lists, "--rank-by", "slot"], vec![set(&[one]), set(&[other])]),
        (&["-n", "2", "--cpu-list", &pair, "--bind-to", "none"], vec![set(&[one, other]); 2]),
        (&["-n", "2", "--cpu-list", &pair, "--bind-to", "hwthread"], vec![set(&[one]), set(&[other])]),
        (&["-n", "1", "--cpu-list", &pair, "--bind-to", "hwthread", "--cpus-per-rank", "2"], vec![set(&[one, other])]),
    ] {
        assert_eq!(masks(&show(host, options)), expected, "{options:?}");
    }
    hosts.finish(MOMENT);
}

#[test]
fn a_job_that_may_use_fewer_cpus_than_it_has_ranks_leaves_them_there() {
    let (Some((one, other)), Some(hosts)) = (two_cores(), Hosts::up(1)) else { return };
    let host = hosts.front();
    let within = |cpus: &str, options: &[&str]| {
        let rankrun = rankrun_tests::rankrun().display().to_string();
        let words = ["-c", cpus, &rankrun, "-l"];
        let words = words.iter().chain(options).chain(&SHOW).copied();
        Job::of_program("taskset", words.collect::<Vec<_>>()).at(host).bound(BOUND).run()
    };
    let only: CpuSet = [one].into_iter().collect();
    assert_eq!(masks(&within(&one.to_string(), &["-n", "2"])), vec![only; 2]);
    // With as many cores as ranks each has one.
    let two = masks(&within(&format!("{one},{other}"), &["-n", "2"]));
    assert_eq!(two.iter().map(CpuSet::count).collect::<Vec<_>>(), [1, 1], "{two:?}");
    let refused = within(&one.to_string(), &["-n", "2", "--bind-to", "core"]);
    assert_eq!(refused.code, Some(2));
    let text = refused.stderr_text();
    assert!(text.contains("2 ranks with 1 core each need 2 cores, and there is 1 core"), "{text}");
    let refused = within(&one.to_string(), &["-n", "1", "--cpu-list", &other.to_string()]);
    assert_eq!(refused.code, Some(2));
    let text = refused.stderr_text();
    assert!(text.contains(&format!("CPU {other} cannot be used: this job may use {one}")), "{text}");
    hosts.finish(MOMENT);
}

#[test]
fn jobs_that_run_at_the_same_time_get_different_cores() {
    let (Some((one, other)), Some(hosts)) = (two_cores(), Hosts::up(1)) else { return };
    let host = hosts.front();
    // The machine of this test has two cores.
    let list = format!("{one},{other}");
    let options = ["-n", "1", "--bind-to", "hwthread", "--cpu-list", &list];
    let both: BTreeSet<String> = [one, other].map(|cpu| cpu.to_string()).into();
    for round in 0..full_scale(100, 5) {
        let [first, second] = [stay(host, &options), stay(host, &options)];
        let (of_first, of_second) = (mask_of(&first), mask_of(&second));
        assert_eq!([&of_first, &of_second].map(ToString::to_string).into_iter().collect::<BTreeSet<_>>(), both);
        // There is none for a third; it says so, since it was asked to bind.
        let third = stay(host, &options);
        assert!(mask_of(&third).count() > 1);
        let said = || String::from_utf8_lossy(&third.stderr_so_far()).into_owned();
        let says = |text: &str| said().contains(text).then_some(());
        let is_said = wait_until(BOUND, || says("not bound to CPUs: other jobs have the cores"));
        assert!(is_said.is_some(), "{}", said());
        stop(third);
        // The kernel releases what an agent held, however it ends.
        if round % 2 == 0 {
            processes::send(first.agent(), Signal::KILL);
            first.finish(BOUND);
        } else {
            stop(first);
        }
        let next = stay(host, &options);
        assert_eq!(mask_of(&next), of_first);
        stop(next);
        stop(second);
    }
    hosts.finish(MOMENT);
}

#[test]
fn shares_are_said_and_reported() {
    let (Some((one, other)), Some(hosts)) = (two_cores(), Hosts::up(1)) else { return };
    let host = hosts.front();
    let lists = format!("{one}:{other}");
    let words = ["-n", "2", "--cpu-list", &lists, "--report-bindings", "sh", "-c", "exit 3"];
    let (ended, report) = Job::new(words).at(host).bound(BOUND).run_with_report();
    let cpus: Vec<Option<String>> = report.ranks.iter().map(|rank| rank.cpus.clone()).collect();
    assert_eq!(cpus, [Some(one.to_string()), Some(other.to_string())]);
    let text = ended.stderr_text();
    for (rank, cpu) in [(0, one), (1, other)] {
        assert!(text.contains(&format!("rank {rank}: CPU {cpu} ")), "{text}");
    }
    // With -v the reason is said.
    let many = (allowed().count() + 1).to_string();
    let ended = show(host, &["-v", "-n", &many]);
    assert!(ended.stderr_text().contains("ranks are not bound to CPUs: there are"), "{}", ended.stderr_text());
    let ended = show(host, &["-n", &many]);
    assert_eq!(ended.stderr_text(), "");
    hosts.finish(MOMENT);
}

#[test]
fn each_host_binds_its_own_ranks() {
    let (Some((one, other)), Some(hosts)) = (two_cores(), Hosts::up(2)) else { return };
    let lists = format!("{one}:{other}");
    let ended = show(hosts.front(), &["-H", "node0:2,node1:2", "--cpu-list", &lists]);
    let expected = [one, other, one, other].map(|cpu| [cpu].into_iter().collect::<CpuSet>());
    assert_eq!(masks(&ended), expected);
    let ended = show(hosts.front(), &["-H", "node0:2,node1:2", "--bind-to", "core", "--cpu-list", &one.to_string()]);
    assert_ne!(ended.code, Some(0), "{}", ended.stdout_text());
    let text = ended.stderr_text();
    assert!(text.contains("2 ranks with 1 core each need 2 cores, and there is 1 core"), "{text}");
    hosts.finish(MOMENT);
}

#[test]
fn variables_that_cannot_be_followed_are_named_and_left_out() {
    let (Some(_), Some(hosts)) = (two_cores(), Hosts::up(1)) else { return };
    let beyond = allowed().iter().last().expect("there is one") + 1;
    for (name, value) in [("I_MPI_PIN_PROCESSOR_LIST", beyond.to_string()), ("MV2_CPU_MAPPING", format!("{beyond}:0"))]
    {
        let words = ["-l", "-n", "2"].iter().chain(&SHOW);
        let ended = Job::new(words).env(name, value).at(hosts.front()).bound(BOUND).run();
        let [one, other] = &masks(&ended)[..] else { panic!("two ranks") };
        assert!(!one.meets(other), "a share each, as by default");
        let text = ended.stderr_text();
        let family = name.split_once("_P").or(name.split_once("_M")).expect("a name").0;
        assert!(text.contains(family) && text.contains(&format!("CPU {beyond} cannot be used")), "{text}");
    }
    hosts.finish(MOMENT);
}

#[test]
fn what_a_list_names_is_held_as_far_as_it_is_free() {
    let (Some((one, other)), Some(hosts)) = (two_cores(), Hosts::up(1)) else { return };
    let host = hosts.front();
    let (both, lists) = (format!("{one},{other}"), format!("{one}:{other}"));
    let first = stay(host, &["-n", "1", "--bind-to", "hwthread", "--cpu-list", &one.to_string()]);
    mask_of(&first);
    let named = stay(host, &["-n", "2", "--cpu-list", &lists]);
    mask_of(&named);
    // Nothing is left for a third.
    let third = stay(host, &["-n", "1", "--bind-to", "hwthread", "--cpu-list", &both]);
    assert!(mask_of(&third).count() > 1);
    [first, named, third].into_iter().for_each(stop);
    hosts.finish(MOMENT);
}

#[test]
fn a_job_within_a_rank_has_the_cpus_of_the_rank() {
    let (Some((one, other)), Some(hosts)) = (two_cores(), Hosts::up(1)) else { return };
    let rankrun = rankrun_tests::rankrun().display().to_string();
    let list = format!("{one},{other}");
    let outer =
        ["-n", "1", "--cpu-list", &list, "--bind-to", "hwthread", "--cpus-per-rank", "2", &rankrun, "-l", "-n", "2"];
    let inner = ["--bind-to", "hwthread"].iter().chain(&SHOW);
    let ended = Job::new(outer.iter().chain(inner)).at(hosts.front()).bound(BOUND).run();
    assert_eq!(masks(&ended), [one, other].map(|cpu| [cpu].into_iter().collect::<CpuSet>()), "{}", ended.stderr_text());
    hosts.finish(MOMENT);
}

#[test]
fn a_rank_that_is_started_again_is_where_it_was() {
    let (Some((one, other)), Some(hosts)) = (two_cores(), Hosts::up(1)) else { return };
    let lists = format!("{one}:{other}");
    let script =
        "grep Cpus_allowed_list /proc/self/status; test $RANKRUN_ATTEMPT = 1 -o $RANKRUN_RANK = 1 || exit 3; exit 4";
    let words = [
        "-l",
        "-n",
        "2",
        "--cpu-list",
        &lists,
        "--restart",
        "1",
        "--keep-going",
        "--restart-scope",
        "rank",
        "sh",
        "-c",
        script,
    ];
    let (ended, report) = Job::new(words).at(hosts.front()).bound(BOUND).run_with_report();
    let cpus: Vec<Option<String>> = report.ranks.iter().map(|rank| rank.cpus.clone()).collect();
    assert_eq!(cpus, [Some(one.to_string()), Some(other.to_string())]);
    let text = ended.stdout_text();
    let of_first = text.lines().filter(|line| line.starts_with("[0]")).map(mask_in).collect::<Vec<_>>();
    assert!(of_first.len() >= 2 && of_first.iter().all(|mask| mask.to_string() == one.to_string()), "{text}");
    hosts.finish(MOMENT);
}
