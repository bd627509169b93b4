//! `--torch-store relay`: the ranks of all nodes find torch's store at their own agent (docs/store.md).

use std::path::Path;
use std::time::Duration;

use rankrun_tests::{Ended, Environment, Hosts, Job, Plan, full_scale};

const BOUND: Duration = Duration::from_secs(120);
const MOMENT: Duration = Duration::from_secs(10);

fn program(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/store").join(name).display().to_string()
}

/// Runs a program of Python on hosts whose store is relayed. It must succeed.
fn relayed(hosts: &Hosts, options: &[&str], python: &str, name: &str, arguments: &[&str]) -> Ended {
    let program = program(name);
    let words = ["--torch-store", "relay"].iter().chain(options).copied();
    let words = words.chain(["--", python, &program]).chain(arguments.iter().copied());
    let ended = Job::new(words).at(hosts.front()).bound(BOUND).run();
    assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr_text());
    ended
}

#[test]
fn torchs_client_on_another_node_finds_the_behaviour_of_torchs_own_store() {
    let Some(torch) = Environment::find("torch") else { return };
    let Some(hosts) = Hosts::up(2) else { return };
    let python = torch.program("python3");
    // The second rank alone asks.
    let script = format!(
        "import os, runpy, sys; sys.argv[0] = {0:?}; sys.path.insert(0, os.path.dirname({0:?})); \
         os.environ['RANK'] == '1' and runpy.run_path({0:?}, run_name='__main__')",
        program("behaviours.py")
    );
    let words = ["--torch-store", "relay", "-H", "node0,node1", "--", &python, "-c", &script];
    let ended = Job::new(words).at(hosts.front()).bound(BOUND).run();
    assert_eq!((ended.code, ended.stdout_text()), (Some(0), "done\n".to_owned()), "{}", ended.stderr_text());
    hosts.finish(MOMENT);
}

/// What all ranks of torch find together, where, and how the first rank's node is reached.
const SUM: &str = "import os, torch, torch.distributed as dist; dist.init_process_group('gloo'); t = torch.ones(1); \
    dist.all_reduce(t); print(int(t), os.environ['MASTER_ADDR'], os.environ['RANKRUN_JAX_COORDINATOR'].rsplit(':', 1)[0]); \
    dist.barrier()";

#[test]
fn ranks_of_torch_meet_over_relays_with_either_family_of_addresses() {
    let Some(torch) = Environment::find("torch") else { return };
    let python = torch.program("python3");
    for (plan, told) in [(Plan::new(3), "6 127.0.0.1 10.99.0.1"), (Plan::new(3).ipv6(), "6 127.0.0.1 [fd00:99::1]")] {
        let Some(hosts) = plan.up() else { return };
        let words = ["--torch-store", "relay", "-H", "node0:2,node1:2,node2:2", "--", &python, "-c", SUM];
        let ended = Job::new(words).at(hosts.front()).bound(2 * BOUND).run();
        let lines: Vec<String> = ended.stdout_text().lines().map(str::to_owned).collect();
        assert_eq!(lines, [told; 6], "{}", ended.stderr_text());
        hosts.finish(MOMENT);
    }
}

#[test]
fn very_many_clients_of_several_nodes_cost_the_store_one_connection_a_node() {
    let Some(hosts) = Hosts::up(4) else { return };
    let each = full_scale(2_500, 400);
    let names = hosts.names();
    let ended = relayed(&hosts, &["-H", &names], "python3", "relayed.py", &["wait", &each.to_string()]);
    let told = format!("{} woken, few descriptors besides its own clients'\n", 4 * each);
    assert_eq!(ended.stdout_text(), told, "{}", ended.stderr_text());
    hosts.finish(MOMENT);
}

#[test]
fn another_user_of_any_node_is_turned_away() {
    let Some(hosts) = Hosts::up(2) else { return };
    let tries = full_scale(1_000, 100).to_string();
    let ended = relayed(&hosts, &["-H", "node0,node1"], "python3", "relayed.py", &["strangers", &tries]);
    assert_eq!(ended.stdout_text(), "turned away\n".repeat(2), "{}", ended.stderr_text());
    hosts.finish(MOMENT);
}

#[test]
fn hostile_clients_of_a_relay_hurt_nobody() {
    let Some(hosts) = Hosts::up(2) else { return };
    let ended = relayed(&hosts, &["-H", "node0,node1"], "python3", "hostile.py", &[]);
    assert_eq!(ended.stdout_text(), "unharmed\n".repeat(2), "{}", ended.stderr_text());
    hosts.finish(MOMENT);
}

#[test]
fn each_attempt_finds_the_store_empty_whichever_node_has_it() {
    let Some(hosts) = Hosts::up(3) else { return };
    let program = program("moves.py");
    // The node that has the store is lost; or one of two, so that one is left.
    for (nodes, count, lost) in [("node0,node1,node2", 3, 0), ("node0,node1", 2, 1)] {
        let least = format!("{}:{count}", count - 1);
        let words = ["--torch-store", "relay", "-H", nodes, "--nnodes", &least, "--restart", "3"];
        let words = words.into_iter().chain(["--backoff", "0", "--", "python3", &program]);
        let running = Job::new(words).at(hosts.front()).start();
        // The first attempt ends by itself, the second with a node.
        (0..count).for_each(|rank| running.wait_for_file(&format!("up-1-{rank}")));
        hosts.node(lost).kill_relay();
        let ended = running.finish(BOUND);
        let told = format!("alone in {}\n", count - 1).repeat(count - 1);
        assert_eq!((ended.code, ended.stdout_text()), (Some(0), told), "{}", ended.stderr_text());
    }
    hosts.finish(MOMENT);
}

/// The first rank's node is lost while others wait for a key that nobody will set.
const WAITS: &str = "import os, sys; sys.path.insert(0, os.environ['PROGRAMS']); from light import Light; store = Light()\n\
    store.begin_wait(b'never')\n\
    open(os.environ['RANKRUN_TEST_DIR'] + '/waits-' + os.environ['RANK'], 'w').close()\n\
    try: store.read(1)\n\
    except (EOFError, ConnectionError): print('gone')\n\
    try: Light().ping()\n\
    except (EOFError, ConnectionError): print('gone')";

#[test]
fn clients_of_a_store_that_is_lost_with_its_node_do_not_wait_for_it() {
    let Some(hosts) = Hosts::up(3) else { return };
    let programs = format!("PROGRAMS={}", Path::new(&program("light.py")).parent().expect("a directory").display());
    let words = ["--torch-store", "relay", "-H", "node0,node1,node2", "--keep-going", "-x", &programs, "--"];
    let running = Job::new(words.into_iter().chain(["python3", "-c", WAITS])).at(hosts.front()).start();
    (0..3).for_each(|rank| running.wait_for_file(&format!("waits-{rank}")));
    hosts.node(0).kill_relay();
    let ended = running.finish(BOUND);
    assert_eq!(ended.stdout_text(), "gone\n".repeat(4), "{}", ended.stderr_text());
    hosts.finish(MOMENT);
}
