//! Hosts that cannot be reached over ssh, or on which rankrun cannot start: what is said, and what works all the same.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rankrun_tests::{Ended, Host, Hosts, Job, Plan, full_scale, processes, rankrun, skip};
use rustix::process::Signal;

/// A refusal, however busy the machine is.
const BOUND: Duration = Duration::from_secs(60);
/// How long a host may take to be empty after a job.
const MOMENT: Duration = Duration::from_secs(10);

fn run(host: &Host, words: &[&str]) -> Ended {
    Job::new(words).at(host).bound(BOUND).run()
}

/// What is said when a job does not begin.
fn refusal(ended: &Ended) -> String {
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(121), "{text}");
    assert!(ended.stdout.is_empty(), "{}", ended.stdout_text());
    // A slow machine says for whom it waits, and sshd of one version names the port where another does not.
    let lines = text.lines().filter(|line| !line.contains("nodes ready; waiting for"));
    lines.map(|line| line.replace("Connection closed by 10.99.0.1 port 22", "[CLOSED]") + "\n").collect()
}

/// A copy of rankrun that the nodes do not see.
fn own_copy(host: &Host) -> String {
    let directory = host.file("/tmp/own");
    fs::create_dir_all(&directory).expect("the host's /tmp is ours");
    fs::copy(rankrun(), directory.join("rankrun")).expect("it has room");
    "/tmp/own/rankrun".to_owned()
}

fn write(host: &Host, path: &str, text: &str) {
    let file = host.file(path);
    fs::create_dir_all(file.parent().unwrap_or(Path::new("/"))).expect("the host's files are ours");
    fs::write(&file, text).expect("the host's files are ours");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("the host's files are ours");
}

#[test]
fn what_ssh_cannot_reach_is_named_with_the_step_and_its_own_words() {
    let Some(hosts) = Hosts::up(2) else { return };
    let front = hosts.front();
    insta::assert_snapshot!("unknown_host", refusal(&run(front, &["-H", "node0,node9", "true"])));
    let known = fs::read_to_string(hosts.directory().join("ssh/known_hosts")).expect("the bench has written it");
    let options = "BatchMode yes\nIdentitiesOnly yes\nGlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes\n";
    let key = hosts.directory().join("ssh/user").display().to_string();
    // Each with one thing that is wrong.
    let swapped: String =
        known.lines().map(|line| line.replace("node0,", "nodeX,").replace("node1,", "node0,") + "\n").collect();
    write(front, "/tmp/swapped", &swapped.replace("nodeX,", "node1,"));
    write(front, "/tmp/known", &known);
    for (name, port, key, known) in [
        ("refused_port", 2222, &*key, "/tmp/known"),
        ("wrong_key", 22, "/tmp/foreign", "/tmp/known"),
        ("changed_host_key", 22, &key, "/tmp/swapped"),
        ("unknown_host_key", 22, &key, "/dev/null"),
    ] {
        if key == "/tmp/foreign" {
            assert!(front.run("ssh-keygen -q -t ed25519 -N '' -f /tmp/foreign").status.success());
        }
        write(front, "/tmp/config", &format!("{options}Port {port}\nIdentityFile {key}\nUserKnownHostsFile {known}\n"));
        let ended = run(front, &["-H", "node0", "--ssh-command", "ssh -F /tmp/config", "true"]);
        let text = refusal(&ended);
        // The fingerprint differs each time.
        let words: Vec<&str> =
            text.split(' ').map(|word| if word.starts_with("SHA256:") { "[KEY]" } else { word }).collect();
        insta::assert_snapshot!(name, words.join(" "));
    }
    hosts.finish(MOMENT);
}

#[test]
fn where_rankrun_is_missing_it_is_copied_or_it_is_said_why_not() {
    let Some(hosts) = Hosts::up(2) else { return };
    let (front, node) = (hosts.front(), hosts.node(0));
    let own = own_copy(front);
    let run = |words: &[&str]| Job::of_program(&own, words).at(front).bound(BOUND).run();
    insta::assert_snapshot!("no_copy", refusal(&run(&["-H", "node0", "--no-copy", "true"])));
    assert!(node.run("mkdir -p ~/.cache && mount -t tmpfs -o size=1m tmpfs ~/.cache").status.success());
    insta::assert_snapshot!("no_space", refusal(&run(&["-H", "node0", "true"])));
    let left = node.run("find ~/.cache -type f");
    assert!(left.stdout.is_empty(), "{}", String::from_utf8_lossy(&left.stdout));
    assert!(node.run("umount ~/.cache").status.success());
    // The first job copies it, the second finds it.
    for copies in [1, 0] {
        let ended = run(&["-v", "-H", "node0", "hostname"]);
        assert_eq!((ended.code, &*ended.stdout_text()), (Some(0), "node0\n"), "{}", ended.stderr_text());
        assert_eq!(ended.stderr_text().matches("copying rankrun to node0").count(), copies, "{}", ended.stderr_text());
    }
    let ended = run(&["-H", "node0", "--no-copy", "hostname"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    hosts.finish(MOMENT);
}

#[test]
fn a_program_that_is_not_this_rankrun_is_told_apart() {
    let Some(hosts) = Hosts::up(1) else { return };
    let (front, node) = (hosts.front(), hosts.node(0));
    // As a relay greets, with another version of the messages and of the program.
    write(
        node,
        "/tmp/other",
        "#!/bin/sh\necho \"$3 ready 999999 99.1.0 ab 10.99.0.250 10.99.0.1\"\nexec cat > /dev/null\n",
    );
    write(node, "/tmp/garbage", "\x7fELF\x02\x01\x01 of another processor");
    write(node, "/tmp/silent", "#!/bin/sh\nexec cat > /dev/null\n");
    write(node, "/tmp/ends", "#!/bin/sh\nexit 0\n");
    for (name, path) in [
        ("another_version", "/tmp/other"),
        ("another_architecture", "/tmp/garbage"),
        ("silent_program", "/tmp/silent"),
        ("program_that_ends", "/tmp/ends"),
        ("missing_program", "/tmp/nonexistent"),
    ] {
        // Only one of them never answers; a busy machine takes its time for the others. An answer is waited for 20 s at least.
        let timeout = if path == "/tmp/silent" { "3s" } else { "60s" };
        let ended = run(front, &["-H", "node0", "--node-timeout", timeout, "--remote-binary", path, "true"]);
        insta::assert_snapshot!(name, refusal(&ended));
    }
    // Where the copy cannot run, as it is for another system.
    write(node, "/tmp/bin/uname", "#!/bin/sh\necho Linux riscv64\n");
    write(node, "/run/root/.bashrc", "PATH=/tmp/bin:$PATH\n");
    let own = own_copy(front);
    let ended = Job::of_program(&own, ["-H", "node0", "true"]).at(front).bound(BOUND).run();
    let here = format!("Linux {}", std::env::consts::ARCH);
    insta::assert_snapshot!("another_system", refusal(&ended).replace(&here, "[HERE]"));
    hosts.finish(MOMENT);
}

#[test]
fn what_a_login_shell_prints_is_skipped_and_told() {
    let Some(hosts) = Hosts::up(2) else { return };
    let (front, node) = (hosts.front(), hosts.node(0));
    for (size, script) in [
        (10_000, "echo 'Welcome to node0!'; head -c 9982 /dev/zero | tr '\\0' x"),
        (1_000_000, "echo 'Welcome to node0!'; head -c 999982 /dev/zero | tr '\\0' x"),
    ] {
        write(node, "/run/root/.bashrc", script);
        let ended = run(front, &["-v", "-H", "node0,node1", "hostname"]);
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(0), "{text}");
        let told = format!(
            "node node0 is reached; its login shell printed {size} bytes before rankrun began: \"Welcome to node0!"
        );
        assert!(text.contains(&told), "{text}");
        let quiet = run(front, &["-H", "node0,node1", "true"]);
        assert!(!quiet.stderr_text().contains("Welcome"), "{}", quiet.stderr_text());
    }
    write(node, "/run/root/.bashrc", "echo bye; exit 3\n");
    insta::assert_snapshot!("login_shell_that_exits", refusal(&run(front, &["-H", "node0,node1", "true"])));
    write(node, "/run/root/.bashrc", "exec cat /dev/zero\n");
    let text = refusal(&run(front, &["-H", "node0,node1", "true"]));
    // As much as comes with the read that is too much.
    let digits = |word: &str| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_digit());
    let words: Vec<&str> = text.split(' ').map(|word| if digits(word) { "[COUNT]" } else { word }).collect();
    insta::assert_snapshot!("login_shell_that_floods", words.join(" "));
    hosts.finish(MOMENT);
}

/// A login shell that does not run its command, over a connection that the user's own ssh has opened before.
#[test]
fn a_login_shell_that_does_not_run_the_command_is_told_over_a_master_connection_too() {
    let Some(hosts) = Hosts::up(1) else { return };
    let (front, node) = (hosts.front(), hosts.node(0));
    let socket = hosts.directory().join("master").display().to_string();
    let master = format!("ssh -M -N -f -o ControlPath={socket} node0 < /dev/null > /dev/null 2>&1");
    assert!(front.run(&master).status.success());
    let ssh = format!("ssh -o ControlPath={socket}");
    let ended = run(front, &["-H", "node0", "--ssh-command", &ssh, "hostname"]);
    assert_eq!((ended.code, &*ended.stdout_text()), (Some(0), "node0\n"), "{}", ended.stderr_text());
    // Each is waited for 30 s.
    for shell in full_scale(&["exec cat", "exec sh -c 'cat > /dev/null'"][..], &["exec cat"]) {
        write(node, "/run/root/.bashrc", &format!("{shell}\n"));
        let ended = run(front, &["-H", "node0", "--ssh-command", &ssh, "true"]);
        let text = refusal(&ended);
        assert!(text.contains("ssh has logged in, but the login shell did not start rankrun"), "{shell}: {text}");
        // `--node-timeout` is 60 s.
        assert!(ended.elapsed() < Duration::from_secs(45), "{shell}: {:?}", ended.elapsed());
    }
    assert!(front.run(&format!("{ssh} -O exit node0")).status.success());
    hosts.finish(MOMENT);
}

#[test]
fn login_shells_of_all_kinds_start_rankrun() {
    for shell in ["/bin/bash", "/bin/dash", "/usr/bin/fish", "/bin/tcsh"] {
        if !Path::new(shell).exists() {
            skip(&format!("{shell} is not installed"));
            continue;
        }
        let Some(hosts) = Plan::new(1).shell(shell).up() else { return };
        let front = hosts.front();
        // Found in its place, copied, and found in the cache.
        for program in [rankrun().display().to_string(), own_copy(front), own_copy(front)] {
            let ended = Job::of_program(&program, ["-H", "node0:2", "hostname"]).at(front).bound(BOUND).run();
            assert_eq!(ended.stdout_text(), "node0\nnode0\n", "{shell}: {}", ended.stderr_text());
        }
        hosts.finish(MOMENT);
    }
}

#[test]
fn what_a_startup_file_leaves_in_the_background_holds_up_nobody() {
    let Some(hosts) = Hosts::up(2) else { return };
    let (front, node) = (hosts.front(), hosts.node(0));
    for held in ["", "< /dev/null > /dev/null", "2> /dev/null"] {
        write(node, "/run/root/.bashrc", &format!("sleep 600 {held} &\n"));
        let ended = run(front, &["-H", "node0", "sh", "-c", "echo here; exit 3"]);
        let text = ended.stderr_text();
        assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(3), "here\n"), "{held}: {text}");
        assert!(text.contains("left      nothing"), "{held}: {text}");
        // It waits for no bound: those are of 15 s and more.
        assert!(ended.elapsed() < Duration::from_secs(12), "{held}: {:?}", ended.elapsed());
        // It is the user's, and stays.
        let others: Vec<_> = node.survivors().into_iter().filter(|process| process.name == "sleep").collect();
        assert_eq!(others.len(), 1, "{held}");
        others.iter().for_each(|process| processes::send(process.pid, Signal::KILL));
    }
    hosts.finish(MOMENT);
}

#[test]
fn an_interface_that_the_first_node_does_not_have_is_named() {
    let Some(hosts) = Hosts::up(2) else { return };
    let ended = run(hosts.front(), &["--interface", "eth9", "-H", "node0,node1", "true"]);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(2), "{text}");
    assert!(
        text.contains("--interface eth9: node node0 has no such interface, or it is down\nhint: it has "),
        "{text}"
    );
    hosts.finish(MOMENT);
}

#[test]
fn where_a_node_of_oar_refuses_ssh_its_own_ssh_is_named() {
    let Some(hosts) = Hosts::up(1) else { return };
    // Nobody logs in on the front.
    let list = hosts.directory().join("list");
    fs::write(&list, "node0\nfront\n").expect("it is ours");
    let job = |words: &[&str]| Job::new(words).env("OAR_NODEFILE", &list).at(hosts.node(0)).bound(BOUND).run();
    let text = refusal(&job(&["true"]));
    assert!(text.contains("hint: nodes of OAR may accept its own ssh only: --ssh-command oarsh"), "{text}");
    let text = refusal(&job(&["--ssh-command", "ssh -4", "true"]));
    assert!(text.contains("Connection refused") && !text.contains("oarsh"), "{text}");
    hosts.finish(MOMENT);
}
