//! How a job ends, and with which exit code (README, "Exit codes").

use std::time::Duration;

use rankrun_tests::{Ended, Job, Tier, helper, processes, wait_until};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(10);

fn code(ended: &Ended) -> Option<i32> {
    assert_eq!(ended.signal, None, "{}", ended.stderr_text());
    ended.code
}

/// The exit code of a job of `ranks` ranks; rank 0 meets the fate when all are up.
fn tree(ranks: u32, arguments: &[&str]) -> Option<i32> {
    let (ranks, tree) = (ranks.to_string(), helper("tree"));
    let job = Job::new(["-n", &ranks, &tree, "--alone"].into_iter().chain(arguments.iter().copied()));
    code(&job.bound(BOUND).run())
}

fn pmi(ranks: u32, arguments: &[&str]) -> Ended {
    let (ranks, client) = (ranks.to_string(), helper("pmi_client"));
    Job::new(["-n", &ranks, &client].into_iter().chain(arguments.iter().copied())).bound(BOUND).run()
}

#[test]
fn a_job_whose_ranks_all_exit_with_0_succeeds_and_says_nothing() {
    for tier in Tier::sampled() {
        let ended = Job::new(["-n", "4", "true"]).tier(tier).run();
        assert_eq!(code(&ended), Some(0), "{}", ended.stderr_text());
        assert_eq!((ended.stdout_text(), ended.stderr_text()), (String::new(), String::new()));
    }
}

#[test]
fn the_code_of_the_rank_that_failed_is_the_code_of_the_job() {
    assert_eq!(tree(3, &["--exit", "3"]), Some(3));
    assert_eq!(tree(3, &["--exit", "255", "--rank", "2"]), Some(255));
    assert_eq!(tree(1, &["--exit", "125"]), Some(125));
}

#[test]
fn a_rank_killed_by_a_signal_gives_128_and_its_number() {
    assert_eq!(tree(3, &["--signal", "11", "--rank", "1"]), Some(139));
    assert_eq!(tree(3, &["--signal", "9"]), Some(137));
    assert_eq!(tree(3, &["--signal", "6"]), Some(134));
    assert_eq!(tree(1, &["--signal", "15"]), Some(143));
}

#[test]
fn ranks_that_keep_going_are_not_ended_by_the_failure_of_one() {
    let job = Job::new(["-n", "4", "--keep-going", &helper("tree"), "--alone", "--all", "--exit", "5"]);
    assert_eq!(code(&job.bound(BOUND).run()), Some(5));
}

#[test]
fn pmi_clients_that_finish_make_a_job_that_succeeds() {
    for ranks in [1, 2, 8] {
        let ended = pmi(ranks, &["--rounds", "3"]);
        assert_eq!(code(&ended), Some(0), "{ranks} ranks: {}", ended.stderr_text());
    }
}

#[test]
fn an_abort_ends_the_job_with_its_code() {
    assert_eq!(code(&pmi(3, &["--fate", "abort=7"])), Some(7));
    assert_eq!(
        code(&pmi(3, &["--fate", "abort=0", "--rank", "2"])),
        Some(1),
        "an abort is a failure, whatever its code"
    );
}

#[test]
fn a_rank_that_exits_before_init_ends_the_job() {
    assert_eq!(code(&pmi(3, &["--fate", "before-init=5"])), Some(5));
    let ended = pmi(3, &["--fate", "before-init=0", "--rank", "1"]);
    assert_eq!(code(&ended), Some(1), "{}", ended.stderr_text());
}

#[test]
fn a_rank_that_leaves_without_finalize_while_others_wait_ends_the_job() {
    let ended = pmi(3, &["--rounds", "2", "--fate", "leave=0", "--rank", "1"]);
    assert_eq!(code(&ended), Some(1), "{}", ended.stderr_text());
    assert_eq!(code(&pmi(3, &["--rounds", "2", "--fate", "leave=6"])), Some(6));
}

#[test]
fn a_rank_that_does_not_finalize_at_the_very_end_is_no_failure() {
    let ended = pmi(3, &["--fate", "no-finalize=0"]);
    assert_eq!(code(&ended), Some(0), "{}", ended.stderr_text());
}

#[test]
fn a_rank_that_crashes_between_barriers_ends_the_job() {
    assert_eq!(code(&pmi(3, &["--fate", "crash", "--rank", "2"])), Some(139));
}

#[test]
fn garbage_costs_its_sender_the_connection_and_nobody_else_anything() {
    assert_eq!(code(&pmi(3, &["--fate", "garbage"])), Some(9));
}

#[test]
fn a_timeout_gives_124() {
    let ended = Job::new(["-n", "2", "--timeout", "300ms", &helper("tree"), "--alone"]).bound(BOUND).run();
    assert_eq!(code(&ended), Some(124), "{}", ended.stderr_text());
}

#[test]
fn commands_that_cannot_run_give_126_and_127() {
    let ended = Job::new(["-n", "2", "rankrun-no-such-command"]).run();
    assert_eq!(code(&ended), Some(127), "{}", ended.stderr_text());
    let ended = Job::new(["-n", "2", "/etc/passwd"]).run();
    assert_eq!(code(&ended), Some(126), "{}", ended.stderr_text());
}

#[test]
fn a_second_interrupt_kills_at_once() {
    let running = Job::new(["-n", "2", "--grace", "60s", &helper("tree")]).start();
    running.wait_for_ranks(2);
    // The daemons ignore the first.
    running.interrupt_twice(|| assert_eq!(running.front_ended(), None, "the grace is a minute"));
    let ended = running.finish(Duration::from_secs(3));
    assert!(ended.signal == Some(2) || ended.code == Some(130), "{:?} {:?}", ended.code, ended.signal);
}

#[test]
fn a_shell_loop_around_rankrun_stops_when_it_is_interrupted() {
    let script = format!(
        "for i in 1 2 3; do echo round $i >> \"$RANKRUN_TEST_DIR/rounds\"; '{}' -n 2 '{}' --alone; done",
        rankrun_tests::rankrun().display(),
        helper("tree")
    );
    let running = Job::of_program("bash", ["-c", &script]).start();
    running.wait_for_ranks(2);
    // What ^C does: every process of the group of the terminal's foreground gets it.
    let front = processes::children(running.front());
    assert_eq!(front.len(), 1, "bash runs one rankrun");
    processes::send(running.front(), Signal::INT);
    processes::send(front[0].pid, Signal::INT);
    let rounds = running.directory().join("rounds");
    let ended = wait_until(BOUND, || running.front_ended());
    let text = std::fs::read_to_string(rounds).unwrap_or_default();
    assert!(ended.is_some(), "the loop goes on: {text}");
    assert_eq!(text, "round 1\n");
    let ended = running.finish(BOUND);
    assert!(ended.signal == Some(2) || ended.code == Some(130), "{:?} {:?}", ended.code, ended.signal);
}
