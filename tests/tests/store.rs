//! torch's store, served by the agent (docs/store.md).

use std::fs;
use std::path::Path;
use std::time::Duration;

use rankrun_tests::{Ended, Environment, Job, full_scale, scratch, skip};

const BOUND: Duration = Duration::from_secs(120);

fn program(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/store").join(name).display().to_string()
}

/// A program that speaks the protocol itself, without torch.
fn light(options: &[&str], name: &str, arguments: &[&str]) -> Ended {
    let program = program(name);
    let words = options.iter().copied().chain(["--", "python3", &program]).chain(arguments.iter().copied());
    let ended = Job::new(words).bound(BOUND).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    ended
}

fn python(torch: &Environment, options: &[&str], name: &str) -> Job {
    let (interpreter, program) = (torch.program("python3"), program(name));
    Job::new(options.iter().copied().chain(["--", &interpreter, &program])).bound(BOUND)
}

#[test]
fn torchs_client_finds_the_behaviour_of_torchs_own_store() {
    let Some(torch) = Environment::find("torch") else { return };
    let ended = python(&torch, &["-n", "1"], "behaviours.py").run();
    assert_eq!((ended.code, ended.stdout_text()), (Some(0), "done\n".to_owned()), "{}", ended.stderr_text());
}

#[test]
fn the_death_of_rank_0_does_not_take_the_store_along() {
    let Some(torch) = Environment::find("torch") else { return };
    for method in ["env://", "tcp://{MASTER_ADDR}:{MASTER_PORT}"] {
        let job = python(&torch, &["-n", "4"], "outlives.py").env("METHOD", method);
        let ended = job.run();
        assert_eq!(ended.code, Some(0), "{method}: {}", ended.stderr_text());
        assert_eq!(ended.stdout_text(), "met without the first rank\n".repeat(3), "{}", ended.stderr_text());
    }
}

#[test]
fn rank_0_serves_the_store_if_it_is_told_to() {
    let Some(torch) = Environment::find("torch") else { return };
    let code = "import os, torch.distributed as d; d.init_process_group('gloo'); d.barrier(); \
        print(os.environ['TORCHELASTIC_USE_AGENT_STORE'])";
    let ended =
        Job::new(["-n", "2", "--torch-store", "rank0", "--", &torch.program("python3"), "-c", code]).bound(BOUND).run();
    assert_eq!((ended.code, ended.stdout_text()), (Some(0), "False\n".repeat(2)), "{}", ended.stderr_text());
}

#[test]
fn hostile_clients_hurt_nobody() {
    let ended = light(&["-n", "2"], "hostile.py", &[]);
    assert_eq!(ended.stdout_text(), "unharmed\n".repeat(2), "{}", ended.stderr_text());
}

#[test]
fn requests_of_very_many_keys_take_little_memory_and_others_are_served() {
    let ended = light(&["-n", "1"], "many.py", &[]);
    assert_eq!(ended.stdout_text(), "bounded\n", "{}", ended.stderr_text());
}

#[test]
fn a_new_attempt_finds_the_store_empty_at_the_same_port() {
    let directory = scratch();
    let options = ["-n", "1", "--restart", "5", "--backoff", "0..1ms", "--", "python3"];
    let program = program("attempts.py");
    let ended = Job::new(options.into_iter().chain([&*program])).current_dir(&directory).bound(BOUND).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(ended.stdout_text(), "alone with 1 key\n", "{}", ended.stderr_text());
    let ports = fs::read_to_string(directory.join("ports")).expect("it was written");
    let ports: Vec<&str> = ports.lines().collect();
    assert!(ports.len() == 4 && ports.iter().all(|port| *port == ports[0]), "{ports:?}");
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn another_user_is_turned_away() {
    if !rustix::process::geteuid().is_root() {
        skip("only root can be another user");
        return;
    }
    assert_eq!(light(&["-n", "1"], "stranger.py", &[]).stdout_text(), "turned away\n");
}

#[test]
fn one_set_wakes_all_who_wait() {
    let count = full_scale(10_000, 2_000).to_string();
    let ended = light(&["-n", "1"], "waiters.py", &[&count]);
    assert_eq!(ended.stdout_text(), format!("woken {count}\n"), "{}", ended.stderr_text());
}

/// What is at `MASTER_PORT`, and what the ranks are told of it.
const PORT: &str = "import os, socket; s = socket.socket(); \
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); \
    print(os.environ.get('TORCHELASTIC_USE_AGENT_STORE'), s.connect_ex(('127.0.0.1', int(os.environ['MASTER_PORT']))) == 0)";

#[test]
fn a_port_of_the_users_own_is_left_to_rank_0() {
    let run = |options: &[&str]| {
        let words = ["-n", "1"].iter().chain(options).copied().chain(["--", "python3", "-c", PORT]);
        Job::new(words).bound(BOUND).run().stdout_text()
    };
    assert_eq!(run(&[]), "True True\n");
    for options in [
        &["--torch-store", "rank0"][..],
        &["-x", "MASTER_PORT=1"],
        &["-x", "MASTER_ADDR=localhost"],
        &["-x", "TORCHELASTIC_USE_AGENT_STORE=False"],
    ] {
        assert_eq!(run(options), "False False\n", "{options:?}");
    }
}
