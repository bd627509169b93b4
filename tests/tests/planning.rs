//! Guard and agent live while the front still plans (docs/adr/0035-prepared-before-the-plan.md): what happens to the three then.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use rankrun_sys::proc::{self, Process};
use rankrun_sys::process::{Child, ProcessRef};
use rankrun_sys::signal;
use rankrun_tests::{rankrun, wait_until};

const BOUND: Duration = Duration::from_secs(60);

/// rankrun, which takes so many seconds to plan. Whoever starts it is its parent, and not strace.
fn slow(seconds: u32) -> Command {
    let mut command = Command::new("strace");
    command.args(["-DDD", "-qq", "-o", "/dev/null", "-e", "trace=getcwd"]);
    command.arg("-e").arg(format!("inject=getcwd:delay_enter={seconds}s:when=1")).arg(rankrun());
    command
}

/// Guard and agent of a front that plans.
fn pair(front: i32) -> [Process; 2] {
    let child = |of: i32, wanted: &dyn Fn(&Process) -> bool| {
        proc::children_of(of).into_iter().filter_map(proc::process).find(|process| wanted(process))
    };
    let found = wait_until(BOUND, || {
        let guard = child(front, &|process| process.name == "rr-guard")?;
        let agent = child(guard.pid, &|process| process.session == process.pid)?;
        Some([guard, agent])
    });
    found.expect("they are forked before the plan is made")
}

fn send(process: &Process, number: i32) {
    let held = ProcessRef::of(process.id()).expect("it lives");
    held.signal(number).expect("it is ours");
}

fn are_gone(processes: &[Process]) -> bool {
    let lives =
        |known: &Process| proc::process(known.pid).is_some_and(|now| now.id() == known.id() && now.state != 'Z');
    wait_until(BOUND, || (!processes.iter().any(lives)).then_some(())).is_some()
}

/// A signal to the front's process group, as ^Z sends it, is for neither of them: a stopped agent would be ended by its guard.
#[test]
fn guard_and_agent_lead_sessions_of_their_own_while_the_front_plans() {
    let mut front = slow(2).args(["-n", "1", "true"]).spawn().expect("strace can be started");
    let pair = pair(front.id() as i32);
    assert!(pair.iter().all(|process| process.session == process.pid && process.group == process.pid), "{pair:?}");
    assert_eq!(front.wait().expect("it ends").code(), Some(0));
    assert!(are_gone(&pair));
}

#[test]
fn a_job_that_is_refused_ends_a_guard_and_an_agent_that_somebody_has_stopped() {
    let mut front = slow(2).args(["-n", "2", "/no/such/program"]).stderr(Stdio::piped()).spawn().expect("strace");
    let pair = pair(front.id() as i32);
    pair.iter().for_each(|process| send(process, signal::SIGSTOP));
    // They have our end of the pipe too.
    let mut said = String::new();
    front.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert_eq!(front.wait().expect("it ends").code(), Some(127), "{said}");
    assert!(said.contains("/no/such/program"), "{said}");
    assert!(are_gone(&pair));
}

#[test]
fn a_guard_that_somebody_has_stopped_ends_after_a_front_that_is_killed_while_it_plans() {
    for number in [signal::SIGKILL, signal::SIGTERM] {
        let mut front = slow(2).args(["-n", "2", "true"]).spawn().expect("strace can be started");
        let pair = pair(front.id() as i32);
        send(&pair[0], signal::SIGSTOP);
        Child::unreaped(front.id() as i32).signal(number).expect("it is ours");
        assert_eq!(front.wait().expect("it ends").code(), None);
        assert!(are_gone(&pair), "signal {number}");
    }
}

#[test]
fn a_parent_that_ends_while_the_front_plans_ends_the_job() {
    let words: Vec<String> = {
        let command = slow(2);
        let words = [command.get_program()].into_iter().chain(command.get_args());
        words.map(|word| word.to_str().expect("text").to_owned()).collect()
    };
    let script = "\"$@\" --die-with-parent -n 1 sleep 300 <&- & echo $!; read line";
    let mut parent = Command::new("sh");
    parent.args(["-c", script, "sh"]).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut parent = parent.spawn().expect("sh");
    let mut line = String::new();
    BufReader::new(parent.stdout.take().expect("a pipe")).read_line(&mut line).expect("text");
    let front = line.trim().parse().expect("a pid");
    let all = [vec![proc::process(front).expect("it lives")], pair(front).to_vec()].concat();
    drop(parent.stdin.take());
    parent.wait().expect("it ends");
    assert!(are_gone(&all));
}

/// The agent has made the job's directory and its cgroup by then, and the guard that would remove them is gone.
#[test]
fn a_job_that_is_refused_after_its_guard_was_killed_leaves_nothing() {
    let mut command = Command::new("strace");
    command.args(["-DDD", "-qq", "-o", "/dev/null", "-e", "trace=getcwd,eventfd2"]);
    command.args(["-e", "inject=getcwd:delay_enter=1s:when=1"]);
    command.args(["-e", "inject=eventfd2:error=EMFILE:delay_enter=1s:when=1"]).arg(rankrun()).args(["-n", "2", "true"]);
    let mut front = command.stderr(Stdio::piped()).spawn().expect("strace can be started");
    let pair = pair(front.id() as i32);
    let title = std::fs::read_to_string(format!("/proc/{}/cmdline", pair[0].pid)).expect("it lives");
    let job = title.trim_matches([' ', '\0']).rsplit(' ').next().expect("a word").to_owned();
    let user = rustix::process::geteuid().as_raw();
    let directory = std::path::PathBuf::from(format!("/tmp/rankrun-{user}/{job}"));
    assert!(wait_until(BOUND, || directory.exists().then_some(())).is_some(), "{}", directory.display());
    // It would tidy up as soon as it sees that the front has ended.
    send(&pair[1], signal::SIGSTOP);
    send(&pair[0], signal::SIGKILL);
    let mut said = String::new();
    front.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert_eq!(front.wait().expect("it ends").code(), Some(125), "{said}");
    assert!(said.contains("cannot make an event descriptor"), "{said}");
    assert!(are_gone(&pair));
    assert!(!directory.exists(), "{}", directory.display());
}
