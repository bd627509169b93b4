//! Jobs in the allocations of a real Slurm: one step of srun starts the agents, which connect back.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rankrun_tests::{Cut, Ended, Job, Slurm, full_scale, processes, rankrun, wait_until};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(60);

/// Runs a line of shell in an allocation. `@` stands for the program under test.
fn allocated(slurm: &Slurm, options: &str, line: &str) -> Ended {
    // A node whose last job is being cleaned up gets no other.
    assert!(slurm.wait_for_idle(BOUND), "{}", slurm.logs());
    let line = line.replace("@", &rankrun().display().to_string());
    let words = ["-Q"].into_iter().chain(options.split_whitespace()).chain(["sh", "-c", &line]);
    Job::of_program("salloc", words).at(slurm.hosts().front()).bound(BOUND).run()
}

fn lines(ended: &Ended) -> BTreeSet<String> {
    ended.stdout_text().lines().map(str::to_owned).collect()
}

#[test]
fn the_ranks_of_an_allocation_are_on_its_nodes() {
    let Some(slurm) = Slurm::up(4) else { return };
    let echo = "echo $RANKRUN_RANK/$RANKRUN_WORLD_SIZE $RANKRUN_LOCAL_RANK $(uname -n)";
    let ended = allocated(&slurm, "-N4 --ntasks-per-node=2", &format!("@ sh -c '{echo}'"));
    assert_eq!(ended.code, Some(0), "{}{}", ended.stderr_text(), slurm.logs());
    let expected = (0..8).map(|rank| format!("{rank}/8 {} node{}", rank % 2, rank / 2)).collect();
    assert_eq!(lines(&ended), expected);
    // Tasks that differ from node to node.
    let ended = allocated(&slurm, "-N3 -n5 --distribution=block", &format!("@ sh -c '{echo}'"));
    let expected = [(0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 0, 1), (4, 0, 2)];
    let expected = expected.map(|(rank, local, node)| format!("{rank}/5 {local} node{node}"));
    assert_eq!(lines(&ended), expected.into_iter().collect(), "{}", ended.stderr_text());
    // Options of srun that its environment sets for a step of ranks are not for the agents.
    let ended = allocated(&slurm, "-N2 --ntasks-per-node=1 --cpus-per-task=2", &format!("@ sh -c '{echo}'"));
    assert_eq!((ended.code, lines(&ended).len()), (Some(0), 2), "{}", ended.stderr_text());
    slurm.finish(BOUND);
}

#[test]
fn ranks_that_all_fit_on_the_node_of_rankrun_run_without_srun() {
    let Some(slurm) = Slurm::up(2) else { return };
    // The batch script runs on the first node.
    let jobs = slurm.hosts().directory().join("jobs");
    let (script, out) = (jobs.join("script"), jobs.join("out"));
    let own = rankrun().display().to_string();
    let each = format!("{own} -n 2 uname -n; echo rc=$?\n");
    std::fs::write(&script, format!("#!/bin/sh\n{each}{own} mpirun -n 2 uname -n; echo rc=$?\n")).expect("a script");
    let submit = format!("sbatch -N2 --ntasks-per-node=2 -o {} {}", out.display(), script.display());
    assert!(slurm.run(&submit).status.success(), "{}", slurm.logs());
    let text = || std::fs::read_to_string(&out).unwrap_or_default();
    let is_over = wait_until(BOUND, || (text().matches("rc=").count() == 2).then_some(()));
    assert!(is_over.is_some(), "{}{}", text(), slurm.logs());
    let text = text();
    let count = |line: &str| text.lines().filter(|have| *have == line).count();
    assert_eq!((count("node0"), count("rc=0")), (4, 2), "{text}");
    assert!(slurm.wait_for_idle(BOUND), "{}", slurm.logs());
    slurm.finish(BOUND);
}

#[test]
fn a_failure_on_one_node_ends_the_others_and_is_named() {
    let Some(slurm) = Slurm::up(3) else { return };
    let ended = allocated(
        &slurm,
        "-N3 --ntasks-per-node=2",
        "@ sh -c 'if [ $RANKRUN_RANK = 5 ]; then echo broken >&2; exit 7; fi; sleep 600'",
    );
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(7), "{text}");
    assert!(
        text.contains("rank 5 failed") && text.contains("node node2") && text.contains("left      nothing"),
        "{text}"
    );
    assert!(slurm.wait_for_idle(BOUND), "{}", slurm.logs());
    slurm.finish(BOUND);
}

#[test]
fn the_secret_is_in_no_command_line_and_no_environment() {
    let Some(slurm) = Slurm::up(2) else { return };
    // 32 bytes in base64.
    let look = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -cxE '[A-Za-z0-9+/]{43}=' || true";
    let ended = allocated(&slurm, "-N2 --ntasks-per-node=1", &format!("@ sh -c '{}'", look.replace('\'', "'\\''")));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(ended.stdout_text(), "0\n0\n");
    slurm.finish(BOUND);
}

#[test]
fn a_job_that_is_cancelled_says_so_and_leaves_nothing() {
    let Some(slurm) = Slurm::up(2) else { return };
    let jobs = slurm.hosts().directory().join("jobs");
    let (script, out) = (jobs.join("script"), jobs.join("out"));
    // The ranks get the signal of scancel as well, some before rankrun does.
    for line in ["sleep 600", "sh -c \"sleep 600\""] {
        std::fs::write(&script, format!("#!/bin/sh\n{} {line}\n", rankrun().display())).expect("a script");
        let submit = format!("sbatch --parsable -N2 --ntasks-per-node=2 -o {} {}", out.display(), script.display());
        let output = slurm.run(&submit);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let runs =
            |node: usize| slurm.hosts().node(node).survivors().into_iter().any(|process| process.name == "sleep");
        let up = wait_until(BOUND, || (runs(0) && runs(1)).then_some(()));
        assert!(up.is_some(), "{}", slurm.logs());
        assert!(slurm.run(&format!("scancel {id}")).status.success());
        assert!(slurm.wait_for_idle(BOUND), "{}", slurm.logs());
        let gone = wait_until(BOUND, || (!runs(0) && !runs(1)).then_some(()));
        assert!(gone.is_some(), "{:?}", slurm.hosts().node(1).survivors());
        let told = || std::fs::read_to_string(&out).ok().filter(|text| text.contains("rankrun: ended by SIGTERM"));
        let text = wait_until(BOUND, told);
        assert!(text.is_some(), "{line}: {}", std::fs::read_to_string(&out).unwrap_or_default());
    }
    slurm.finish(BOUND);
}

#[test]
fn a_signal_that_reaches_the_ranks_of_another_node_first_is_no_failure_of_them() {
    let Some(slurm) = Slurm::up(2) else { return };
    // Each step of a job gets it on its own.
    let gone = slurm.hosts().directory().join("jobs/gone").display().to_string();
    let rank = format!("[ $RANKRUN_RANK = 0 ] || {{ : > {gone}; kill -TERM $$; }}; exec sleep 600");
    let line =
        format!("@ sh -c '{rank}' & until [ -e {gone} ]; do sleep 0.01; done; sleep 0.5; kill -TERM $!; wait $!");
    let ended = allocated(&slurm, "-N2 --ntasks-per-node=1", &line);
    let text = ended.stderr_text();
    assert!(ended.code == Some(143) && text.contains("rankrun: ended by SIGTERM"), "{:?} {text}", ended.code);
    slurm.finish(BOUND);
}

#[test]
fn a_job_that_gives_up_is_run_again_by_slurm() {
    let Some(slurm) = Slurm::up(2) else { return };
    let jobs = slurm.hosts().directory().join("jobs");
    let (script, out) = (jobs.join("script"), jobs.join("out"));
    let rank = "echo \"run ${SLURM_RESTART_COUNT:-0} rank $RANKRUN_RANK on $(uname -n)\"; [ \"$SLURM_RESTART_COUNT\" ] || exit 3";
    let command = format!("{} --restart 1 --backoff 0s..0s --on-giveup requeue sh -c '{rank}'", rankrun().display());
    std::fs::write(&script, format!("#!/bin/sh\n{command}\n")).expect("a script");
    let submit = format!(
        "sbatch --requeue --open-mode=append --ntasks-per-node=1 -N2 -o {} {}",
        out.display(),
        script.display()
    );
    assert!(slurm.run(&submit).status.success(), "{}", slurm.logs());
    let text = || std::fs::read_to_string(&out).unwrap_or_default();
    let is_over = || (0..2).all(|rank| text().contains(&format!("run 1 rank {rank} on node{rank}"))).then_some(());
    assert!(wait_until(2 * BOUND, is_over).is_some(), "{}{}", text(), slurm.logs());
    assert!(text().contains("failed: exited with code 3") && text().contains("run 0 rank "), "{}", text());
    assert!(slurm.wait_for_idle(BOUND), "{}", slurm.logs());
    slurm.finish(BOUND);
}

#[test]
fn a_step_that_cannot_be_started_is_told_in_the_words_of_srun() {
    let Some(slurm) = Slurm::up(2) else { return };
    let ended = allocated(&slurm, "-N2 --ntasks-per-node=1", "@ --srun-args=--no-such-option true");
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(121), "{text}");
    assert!(text.contains("cannot start agents on node[0-1]") && text.contains("no-such-option"), "{text}");
    slurm.finish(BOUND);
}

/// A rankrun on the front. On a node there is a script in its place, which runs the right one, and does something else the first time.
fn with_odd_node(slurm: &Slurm, odd: usize, first: &str) -> String {
    let front = slurm.hosts().front();
    let real = rankrun().display().to_string();
    assert!(front.run(&format!("mkdir -p /tmp/own && cp {real} /tmp/own/rankrun")).status.success());
    for (number, node) in slurm.hosts().nodes().iter().enumerate() {
        let first = if number == odd { format!("if mkdir /tmp/once; then {first}; fi\n") } else { String::new() };
        std::fs::create_dir_all(node.file("/tmp/own")).expect("the host's /tmp is ours");
        let script = node.file("/tmp/own/rankrun");
        std::fs::write(&script, format!("#!/bin/sh\n{first}exec {real} \"$@\"\n")).expect("it is ours");
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    "/tmp/own/rankrun".to_owned()
}

#[test]
fn a_node_that_does_not_connect_is_asked_again() {
    let Some(slurm) = Slurm::up(3) else { return };
    // It fails, or it hangs.
    for (odd, first) in [(1, "exit 3"), (2, "exec sleep 600")] {
        let own = with_odd_node(&slurm, odd, first);
        let ended = allocated(&slurm, "-N3 --ntasks-per-node=1", &format!("{own} uname -n"));
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(0), "{text}{}", slurm.logs());
        assert_eq!(lines(&ended), ["node0", "node1", "node2"].map(str::to_owned).into());
        assert!(text.contains(&format!("2/3 nodes ready; waiting for node{odd}")), "{text}");
        assert!(slurm.wait_for_idle(BOUND), "{}", slurm.logs());
    }
    slurm.finish(BOUND);
}

#[test]
fn a_step_that_fails_on_all_nodes_is_started_once_more_at_once() {
    let Some(slurm) = Slurm::up(1) else { return };
    let own = with_odd_node(&slurm, 0, "echo broken >&2; exit 3");
    let ended = allocated(&slurm, "-N1 --ntasks-per-node=2", &format!("{own} uname -n"));
    let text = ended.stderr_text();
    assert_eq!((ended.code, &*ended.stdout_text()), (Some(0), "node0\nnode0\n"), "{text}{}", slurm.logs());
    assert!(text.contains("broken") && text.contains(": asking again"), "{text}");
    slurm.finish(BOUND);
}

#[test]
fn a_job_begins_without_a_node_that_is_down_if_it_may() {
    let Some(slurm) = Slurm::up(3) else { return };
    // The allocation outlives its node. Slurm needs some seconds to notice.
    let script = "touch $RANKRUN_TEST_DIR/allocated
        until sinfo --noheader --Node --format=%T --nodes=node1 | grep -q ^down; do sleep 0.2; done
        exec @ --nnodes 2:3 uname -n";
    let script = script.replace('@', &rankrun().display().to_string());
    let words = ["-Q", "--no-kill", "-N3", "--ntasks-per-node=1", "sh", "-c", &script];
    let running = Job::of_program("salloc", words).at(slurm.hosts().front()).start();
    running.wait_for_file("allocated");
    slurm.hosts().node(1).cut(Cut::Silent);
    let ended = running.finish(3 * BOUND);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(0), "{text}{}", slurm.logs());
    assert_eq!(lines(&ended), ["node0", "node2"].map(str::to_owned).into(), "{text}");
    assert!(text.contains("without node1: 2 ranks on 2 nodes"), "{text}");
    slurm.hosts().node(1).heal();
    assert!(slurm.wait_for_idle(2 * BOUND), "{}", slurm.logs());
    slurm.finish(BOUND);
}

#[test]
fn the_next_attempt_outlives_that_slurm_notices_the_lost_node() {
    let Some(slurm) = Slurm::up(3) else { return };
    // The second attempt lasts until Slurm has said that the node is down, and some seconds more.
    let rank = "touch $RANKRUN_TEST_DIR/$RANKRUN_ATTEMPT.$RANKRUN_RANK; [ $RANKRUN_ATTEMPT = 1 ] || exec sleep 600
        until [ -e $RANKRUN_TEST_DIR/down ]; do sleep 0.1; done; sleep 5; uname -n";
    let script = format!(
        "(until sinfo --noheader --Node --format=%T --nodes=node1 | grep -q ^down; do sleep 0.2; done; touch $RANKRUN_TEST_DIR/down) &
        exec {} --nnodes 2:3 --restart 1 --node-timeout 3s --grace 1s sh -c '{rank}'",
        rankrun().display()
    );
    let words = ["-Q", "--no-kill", "-N3", "--ntasks-per-node=1", "sh", "-c", &script];
    let running = Job::of_program("salloc", words).at(slurm.hosts().front()).start();
    (0..3).for_each(|rank| running.wait_for_file(&format!("0.{rank}")));
    slurm.hosts().node(1).cut(Cut::Silent);
    let ended = running.finish(3 * BOUND);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(0), "{text}{}", slurm.logs());
    assert_eq!(lines(&ended), ["node0", "node2"].map(str::to_owned).into(), "{text}");
    slurm.hosts().node(1).heal();
    assert!(slurm.wait_for_idle(2 * BOUND), "{}", slurm.logs());
    slurm.finish(BOUND);
}

#[test]
fn the_agents_connect_to_a_port_of_the_range() {
    let Some(slurm) = Slurm::up(2) else { return };
    let line = "@ --port-range 20200-20209 sh -c 'ss -Htn state established dport = :20200; echo $MASTER_PORT'";
    let ended = allocated(&slurm, "-N2 --ntasks-per-node=1", line);
    let text = ended.stdout_text();
    assert_eq!(ended.code, Some(0), "{text}{}", ended.stderr_text());
    assert_eq!(text.matches(":20200").count(), 2, "{text}");
    slurm.finish(BOUND);
}

#[test]
fn several_rankruns_of_one_srun_are_refused_or_join() {
    let Some(slurm) = Slurm::up(2) else { return };
    for (options, hint) in [("-n2", "--nnodes 2 --rendezvous HOST:PORT"), ("-n4", "a rank for each task")] {
        let ended = allocated(&slurm, "-N2 --ntasks-per-node=2", &format!("srun --mpi=none -N2 {options} @ echo ran"));
        let text = ended.stderr_text();
        assert_eq!((ended.code, &*ended.stdout_text()), (Some(2), ""), "{text}");
        assert!(text.contains("srun has started rankrun") && text.contains(hint), "{text}");
    }
    // With a secret and an address, each is the node that its number in Slurm says.
    let jobs = slurm.hosts().directory().join("jobs");
    let secret = jobs.join("secret");
    std::fs::write(&secret, format!("{}A=\n", "Q".repeat(42))).expect("it is ours");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
    let own = format!("--nnodes 2 --rendezvous node0:29400 --secret-file {}", secret.display());
    let line = format!("srun --mpi=none -N2 -n2 @ {own} --ppn 1 sh -c 'echo $RANKRUN_RANK $(uname -n)' | sort -u");
    let ended = allocated(&slurm, "-N2 --ntasks-per-node=2", &line);
    assert_eq!((ended.code, &*ended.stdout_text()), (Some(0), "0 node0\n1 node1\n"), "{}", ended.stderr_text());
    slurm.finish(BOUND);
}

#[test]
fn the_end_of_the_time_limit_ends_the_job_and_says_so() {
    // Slurm counts in minutes: this is for soak runs.
    if full_scale(false, true) {
        return;
    }
    let Some(slurm) = Slurm::up(2) else { return };
    let jobs = slurm.hosts().directory().join("jobs");
    let (script, out) = (jobs.join("script"), jobs.join("out"));
    std::fs::write(&script, format!("#!/bin/sh\n{} sleep 600\n", rankrun().display())).expect("a script");
    let submit = format!("sbatch --parsable -t 1 -N2 --ntasks-per-node=2 -o {} {}", out.display(), script.display());
    let output = slurm.run(&submit);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let runs = |node: usize| slurm.hosts().node(node).survivors().into_iter().any(|process| process.name == "sleep");
    assert!(wait_until(BOUND, || (runs(0) && runs(1)).then_some(())).is_some(), "{}", slurm.logs());
    let told = || std::fs::read_to_string(&out).ok().filter(|text| text.contains("rankrun: ended by SIGTERM"));
    let text = wait_until(BOUND * 4, told);
    assert!(
        text.is_some_and(|text| text.contains("left      nothing")),
        "{}{}",
        slurm.logs(),
        std::fs::read_to_string(&out).unwrap_or_default()
    );
    assert!(slurm.wait_for_idle(BOUND), "{}", slurm.logs());
    slurm.finish(BOUND);
}

/// A rank says where it is, holds a lock that no rank of another attempt may hold, and waits until its attempt may end.
const PLACE: &str = "cd $RANKRUN_TEST_DIR; exec 9>lock-$RANKRUN_RANK; flock -n 9 || { echo two attempts at once; exit 9; }; \
    echo $RANKRUN_ATTEMPT: $RANKRUN_RANK/$RANKRUN_WORLD_SIZE $(uname -n); until [ -e go-$RANKRUN_ATTEMPT ]; do sleep 0.05; done";

/// The nodes of the allocation that the job does not begin on take the places of others, and one that was lost is started again.
#[test]
fn a_node_of_the_allocation_without_ranks_takes_the_place_of_a_lost_one() {
    let Some(slurm) = Slurm::up(3) else { return };
    for options in ["--spares 1", "--nnodes 2:2"] {
        let rankrun = rankrun().display().to_string();
        let line = format!("exec {rankrun} {options} --restart 9 --backoff 0 --timeout 100s -- sh -c '{PLACE}'");
        let words = ["-Q", "--no-kill", "-N3", "--ntasks-per-node=1", "sh", "-c", &line];
        let running = Job::of_program("salloc", words).at(slurm.hosts().front()).start();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let both = || format!("{options}: {}{}", text(running.stdout_so_far()), text(running.stderr_so_far()));
        let until_up = |attempt: u32| {
            let prefix = format!("{attempt}: ");
            let lines = || text(running.stdout_so_far()).lines().filter(|line| line.starts_with(&prefix)).count();
            assert!(wait_until(BOUND, || (lines() == 2).then_some(())).is_some(), "attempt {attempt}: {}", both());
        };
        let agent = |node: usize| {
            let all = slurm.hosts().node(node).survivors();
            all.into_iter().find(|process| process.name == "rr-agent").map(|process| process.pid)
        };
        let lose = |node: usize| {
            let agent = wait_until(BOUND, || agent(node)).unwrap_or_else(|| panic!("node{node}: {}", both()));
            processes::send(agent, Signal::KILL);
        };
        until_up(0);
        assert!(wait_until(BOUND, || agent(2)).is_some(), "the spare is here: {}", both());
        lose(1);
        until_up(1);
        let is_back = || text(running.stderr_so_far()).contains("node1 is ready, as a spare").then_some(());
        assert!(wait_until(BOUND, is_back).is_some(), "it is started again: {}", both());
        lose(2);
        until_up(2);
        running.sign("go-2");
        let ended = running.finish(BOUND);
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(0), "{options}: {text}{}", slurm.logs());
        let on = |nodes: [&str; 2]| [format!("0/2 {}", nodes[0]), format!("1/2 {}", nodes[1])].to_vec();
        let expected = [on(["node0", "node1"]), on(["node0", "node2"]), on(["node0", "node1"])];
        assert_eq!([0, 1, 2].map(|attempt| ended.of_attempt(attempt)), expected, "{options}: {text}");
        assert!(slurm.wait_for_idle(2 * BOUND), "{}", slurm.logs());
    }
    slurm.finish(BOUND);
}
