//! Lists and files of hosts, on one machine: what names this machine runs here, and everything else is refused or shown.

use std::time::Duration;

use rankrun_tests::{Ended, Job};

/// A job of a few ranks that print their numbers, however busy the machine is.
const BOUND: Duration = Duration::from_secs(60);

/// Prints the number of each rank, of its node and of the ranks there.
const NUMBERS: [&str; 3] =
    ["sh", "-c", "echo $RANKRUN_RANK $RANKRUN_NODE_RANK $RANKRUN_LOCAL_WORLD_SIZE/$RANKRUN_NNODES"];

fn run(env: &[(&str, &str)], words: &[&str]) -> Ended {
    env.iter().fold(Job::new(words), |job, (name, value)| job.env(name, value)).bound(BOUND).run()
}

/// The ranks that ran, sorted.
fn ran(env: &[(&str, &str)], options: &[&str]) -> Vec<String> {
    let words: Vec<&str> = options.iter().chain(&NUMBERS).copied().collect();
    let ended = run(env, &words);
    assert_eq!(ended.code, Some(0), "{options:?}: {}", ended.stderr_text());
    let mut lines: Vec<String> = ended.stdout_text().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn of(count: u32) -> Vec<String> {
    (0..count).map(|rank| format!("{rank} 0 {count}/1")).collect()
}

fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[test]
fn names_of_this_machine_start_ranks_here() {
    let own = own_name();
    for (options, count) in [
        (&["-H", "localhost:4"][..], 4),
        (&["-H", "localhost", "-n", "3"], 3),
        (&["-H", &format!("localhost,{own}:2,127.0.0.1")], 4),
        (&["--ppn", "3"], 3),
        (&["-H", &own, "--ppn", "2"], 2),
        (&["-H", "localhost:1", "-n", "3", "--oversubscribe"], 3),
        (&["-H", "localhost:4", "-n", "2", "--map", "cyclic"], 2),
        (&["mpiexec", "-hosts", "localhost:2"], 2),
        (&["mpiexec", "-host", "localhost", "-n", "3"], 3),
        (&["mpiexec", "-ppn", "2", "-n", "4"], 4),
    ] {
        assert_eq!(ran(&[], options), of(count), "{options:?}");
    }
    assert_eq!(ran(&[("RANKRUN_HOSTS", "localhost:2")], &[]), of(2));
}

#[test]
fn a_host_file_of_this_machine_starts_ranks_here() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().display().to_string();
    for (text, count) in
        [("localhost\nlocalhost\n", 2), ("# here\nlocalhost:3 ifhn=eth0\n", 3), ("localhost slots=4 max_slots=8\n", 4)]
    {
        std::fs::write(file.path(), text).expect("it can be written");
        assert_eq!(ran(&[], &["--hostfile", &path]), of(count), "{text}");
        assert_eq!(ran(&[], &["mpiexec", "--hostfile", &path]), of(count), "{text}");
    }
}

#[test]
fn an_allocation_of_this_machine_alone_changes_nothing() {
    let own = own_name();
    let slurm = [("SLURM_JOB_NODELIST", &*own), ("SLURM_TASKS_PER_NODE", "4"), ("SLURM_JOB_ID", "1")];
    assert_eq!(ran(&slurm, &[]), of(1));
    assert_eq!(ran(&slurm, &["-n", "6"]), of(6));
    let several = [("SLURM_JOB_NODELIST", "elsewhere[1-3]"), ("SLURM_TASKS_PER_NODE", "4(x3)")];
    assert_eq!(ran(&several, &["-H", "localhost:2"]), of(2), "the user's hosts count");
    // The hosts of the allocation are taken by the job whose rank it is.
    let rankrun = rankrun_tests::rankrun().display().to_string();
    let nested = run(&several, &["-H", "localhost:1", &rankrun, "-n", "2", "echo", "nested"]);
    assert_eq!((nested.code, nested.stdout_text().lines().count()), (Some(0), 2), "{}", nested.stderr_text());
}

#[test]
fn where_ranks_would_run_is_shown() {
    let ended = run(&[], &["-H", "node[01-40]:2,localhost:1", "--map", "cyclic", "--dry-run", "true"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let text = ended.stdout_text();
    let shown: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(shown[0], format!("81 ranks on 41 nodes: node[01-40],{}", own_name()));
    assert_eq!(shown[1], "  node01: 0,41");
    assert_eq!(shown.last(), Some(&"  and 9 more nodes; -v shows all"));
}

#[test]
fn what_cannot_be_placed_or_read_starts_nothing() {
    for (options, words) in [
        (&["-H", "localhost:2", "-n", "3"][..], "it has 2 slots"),
        (&["-H", "localhost:0"], "has 0 slots"),
        (&["-H", "node[1-"], "a \"[\" is not closed"),
        (&["--hosts=-oProxyCommand=touch"], "begins with \"-\""),
        (&["--hostfile", "/nonexistent"], "cannot read"),
    ] {
        let all: Vec<&str> = options.iter().copied().chain(["echo", "started"]).collect();
        let ended = run(&[], &all);
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(2), "{options:?}: {text}");
        assert!(text.contains(words), "{text}");
        assert!(ended.stdout.is_empty(), "{options:?}");
    }
}
