//! The Slurm of the bench: other tests rely on it to start, stop and requeue jobs as a cluster's does.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rankrun_tests::{Cut, Host, Slurm, monotonic, processes, wait_until};

const BOUND: Duration = Duration::from_secs(30);

fn text(slurm: &Slurm, output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}; {}", output.status, slurm.logs());
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn run(slurm: &Slurm, line: &str) -> String {
    text(slurm, &slurm.run(line))
}

#[test]
fn srun_starts_tasks_on_every_node() {
    let Some(slurm) = Slurm::up(4) else { return };
    let lines = run(&slurm, "srun -N4 --ntasks-per-node=2 sh -c 'echo $SLURM_PROCID $(hostname)'");
    let lines: BTreeSet<&str> = lines.lines().collect();
    let expected: Vec<String> = (0..8).map(|rank| format!("{rank} node{}", rank / 2)).collect();
    assert_eq!(lines, expected.iter().map(String::as_str).collect());
    // A node whose step is being cleaned up gets no other.
    assert!(slurm.wait_for_idle(BOUND), "{}", slurm.logs());
    let layout =
        run(&slurm, "salloc -Q -N3 -n5 --distribution=block sh -c 'echo $SLURM_JOB_NODELIST $SLURM_TASKS_PER_NODE'");
    assert_eq!(layout, "node[0-2] 3,1(x2)");
    slurm.finish(BOUND);
}

#[test]
fn a_batch_job_is_cancelled_and_requeued() {
    let Some(slurm) = Slurm::up(2) else { return };
    let out = slurm.hosts().directory().join("out");
    let script = "echo run $SLURM_RESTART_COUNT on $SLURM_JOB_NODELIST; srun -n2 sleep 1000";
    let id = run(
        &slurm,
        &format!("sbatch --parsable --requeue --open-mode=append -N2 -o {} --wrap '{script}'", out.display()),
    );
    let lines = |count: usize| {
        let found = wait_until(BOUND, || {
            let text = fs::read_to_string(&out).unwrap_or_default();
            (text.lines().filter(|line| line.starts_with("run")).count() == count).then_some(text)
        });
        found.unwrap_or_else(|| panic!("no run {count}: {}", slurm.logs()))
    };
    assert!(lines(1).contains("run on node[0-1]"));
    let steps = || slurm.hosts().node(1).survivors().into_iter().find(|process| process.name == "sleep");
    assert!(wait_until(BOUND, steps).is_some(), "no step on node1");
    run(&slurm, &format!("scontrol requeue {id}"));
    assert!(lines(2).contains("run 1 on node[0-1]"));
    run(&slurm, &format!("scancel {id}"));
    assert!(slurm.wait_for_idle(BOUND), "{}", slurm.logs());
    slurm.finish(BOUND);
}

#[test]
fn a_step_that_ignores_sigterm_is_killed_after_the_wait() {
    let Some(slurm) = Slurm::up(1) else { return };
    let ready = slurm.hosts().directory().join("ready");
    let script = format!("trap \"\" TERM; touch {}; while :; do sleep 1; done", ready.display());
    let id = run(&slurm, &format!("sbatch --parsable -o /dev/null --wrap 'srun sh -c '\\''{script}'\\'''"));
    assert!(wait_until(BOUND, || ready.exists().then_some(())).is_some(), "{}", slurm.logs());
    let start = monotonic();
    run(&slurm, &format!("scancel {id}"));
    assert!(slurm.wait_for_idle(BOUND), "{}", slurm.logs());
    assert!(monotonic() - start > Duration::from_secs(1), "KillWait did not count");
    slurm.finish(BOUND);
}

#[test]
fn a_node_that_is_cut_off_is_down_until_it_is_back() {
    let Some(slurm) = Slurm::up(2) else { return };
    slurm.hosts().node(1).cut(Cut::Silent);
    let state = || run(&slurm, "sinfo --noheader --Node --format=%T --nodes=node1");
    // SlurmdTimeout, and the ping of the controller that comes before.
    let down = wait_until(2 * BOUND, || state().starts_with("down").then_some(()));
    assert!(down.is_some(), "{}", slurm.logs());
    slurm.hosts().node(1).heal();
    assert!(slurm.wait_for_idle(2 * BOUND), "{}", slurm.logs());
    slurm.finish(BOUND);
}

/// Slurm with a job that runs, and the pids of all its processes.
fn busy() -> Option<(Slurm, Vec<i32>)> {
    let slurm = Slurm::up(2)?;
    run(&slurm, "sbatch -N2 -o /dev/null --wrap 'srun sleep 1000'");
    let step = || slurm.hosts().node(1).survivors().into_iter().find(|process| process.name == "sleep");
    let step = wait_until(BOUND, step).unwrap_or_else(|| panic!("no step: {}", slurm.logs()));
    let hosts = slurm.hosts().nodes().iter().chain([slurm.hosts().front()]);
    let pids: Vec<i32> = hosts.flat_map(Host::pids).collect();
    assert!(pids.contains(&step.pid));
    Some((slurm, pids))
}

fn alive(pids: &[i32]) -> Vec<i32> {
    pids.iter().copied().filter(|&pid| processes::is_alive(pid)).collect()
}

#[test]
fn nothing_is_left_of_slurm() {
    let Some((slurm, pids)) = busy() else { return };
    let directory = slurm.hosts().directory().to_owned();
    drop(slurm);
    assert_eq!(alive(&pids), [0; 0]);
    assert!(!directory.exists());
}

#[test]
fn nothing_is_left_of_slurm_when_the_test_is_killed() {
    let name = "nothing_is_left_of_slurm_when_the_test_is_killed";
    if std::env::var_os("RANKRUN_TEST_VICTIM").is_some() {
        let Some((slurm, pids)) = busy() else { return };
        let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
        let line = format!("{} {}\n", slurm.hosts().directory().display(), pids.join(" "));
        std::io::stderr().write_all(line.as_bytes()).expect("the test reads it");
        // Until it is killed.
        wait_until(Duration::from_secs(3600), || None::<()>);
        return;
    }
    let mut command = Command::new(std::env::current_exe().expect("a running test has a file"));
    command.args(["--exact", "--nocapture", name]).env("RANKRUN_TEST_VICTIM", "yes");
    let mut victim = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a test can be started");
    let stderr = BufReader::new(victim.stderr.take().expect("it was asked for"));
    let line = stderr.lines().map_while(Result::ok).find(|line| line.starts_with('/'));
    victim.kill().expect("it is our child");
    // The machine permits no hosts: the copy has noted that it was skipped.
    if victim.wait().expect("it is our child").success() {
        return;
    }
    let line = line.expect("Slurm came up");
    let (directory, pids) = line.split_once(' ').expect("a directory and pids");
    let pids: Vec<i32> = pids.split(' ').map(|pid| pid.parse().expect("a pid")).collect();
    let gone = wait_until(BOUND, || (alive(&pids).is_empty() && !Path::new(directory).exists()).then_some(()));
    assert!(gone.is_some(), "left: {:?} {directory}", alive(&pids));
}
