//! The bench of hosts itself: other tests rely on each host being a machine of its own, and on nothing being left of it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rankrun_tests::{Cut, Host, Hosts, Job, Plan, full_scale, monotonic, processes, slowness, wait_until};

const BOUND: Duration = Duration::from_secs(20);

/// `ssh` from the front to a node, as a user would type it.
fn ssh(hosts: &Hosts, node: &str, line: &str) -> Command {
    ssh_within(BOUND, hosts, node, line)
}

fn ssh_within(time: Duration, hosts: &Hosts, node: &str, line: &str) -> Command {
    let mut command = hosts.front().command("ssh");
    let time = format!("ConnectTimeout={}", time.as_secs());
    command.arg("-F").arg(hosts.ssh_config()).args(["-o", "BatchMode=yes", "-o", &time, node, line]);
    command
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Whether an `ssh` that does not wait long gets there: on a loaded machine it may not.
fn reaches(hosts: &Hosts, node: &str) -> bool {
    ssh_within(Duration::from_secs(1), hosts, node, "true").output().expect("ssh is there").status.success()
}

fn comes_to_reach(hosts: &Hosts, node: &str) -> bool {
    wait_until(BOUND, || reaches(hosts, node).then_some(())).is_some()
}

/// A shell on a node that answers each line, and lives as long as its ssh.
struct Session {
    child: Child,
}

impl Session {
    fn open(hosts: &Hosts, node: &str) -> Session {
        Session::of(ssh(hosts, node, "exec cat"))
    }

    fn of(mut command: Command) -> Session {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut session = Session { child: child.expect("ssh is there") };
        session.ask();
        session
    }

    /// The time until an answer.
    fn ask(&mut self) -> Duration {
        let start = monotonic();
        self.child.stdin.as_mut().expect("it was asked for").write_all(b"?\n").expect("ssh lives");
        let mut answer = [0; 2];
        self.child.stdout.as_mut().expect("it was asked for").read_exact(&mut answer).expect("ssh lives");
        monotonic() - start
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // One that has ended already is only reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn each_host_has_its_own_name_address_and_files() {
    let Some(hosts) = Hosts::up(2) else { return };
    for (number, node) in hosts.nodes().iter().enumerate() {
        assert_eq!(node.name(), format!("node{number}"));
        assert_eq!(
            text(&ssh(&hosts, node.name(), "hostname; cat /etc/hostname").output().expect("ssh is there")),
            [node.name(); 2].join("\n")
        );
        let shown = text(&node.run("ip -brief -4 address show dev eth0"));
        assert!(shown.contains(&node.address().to_string()), "{shown}");
        let line =
            "echo $HOME; for place in /tmp /dev/shm /run /var/log ~; do echo $(hostname) > $place/whose || exit; done";
        assert_eq!(
            text(&ssh(&hosts, node.name(), line).output().expect("ssh is there")),
            node.home().display().to_string()
        );
    }
    for node in hosts.nodes() {
        for place in [Path::new("/tmp"), Path::new("/dev/shm"), Path::new("/run"), Path::new("/var/log"), node.home()] {
            let whose = fs::read_to_string(node.file(place.join("whose"))).expect("the shell has written it");
            assert_eq!(whose.trim(), node.name(), "{}", place.display());
            assert!(!place.join("whose").exists(), "{} is the machine's", place.display());
        }
        fs::remove_file(node.file("/dev/shm/whose")).expect("the file is there");
    }
    let shared = hosts.directory().join("shared");
    text(&hosts.node(0).run(&format!("hostname > {}", shared.display())));
    assert_eq!(text(&hosts.node(1).run(&format!("cat {}", shared.display()))), "node0");
    hosts.finish(BOUND);
}

#[test]
fn every_host_reaches_every_other_by_name_and_nothing_else() {
    let Some(hosts) = Hosts::up(3) else { return };
    for from in [hosts.front(), hosts.node(2)] {
        for node in hosts.nodes() {
            // Without `-F`, from the host's own ~/.ssh/config.
            let output = from.command("ssh").args(["-o", "BatchMode=yes", node.name(), "hostname"]).output();
            assert_eq!(text(&output.expect("ssh is there")), node.name());
        }
    }
    let unknown = ssh(&hosts, "node3", "true").output().expect("ssh is there");
    let message = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(message.contains("Could not resolve hostname node3: Name or service not known"), "{message}");
    assert_eq!(text(&hosts.front().run("ip route show default")), "");
    hosts.finish(BOUND);
}

#[test]
fn a_node_asks_for_a_key_that_only_this_bench_has() {
    let Some(hosts) = Hosts::up(1) else { return };
    let Some(others) = Hosts::up(1) else { return };
    let foreign = others.directory().join("ssh/user");
    let foreign = fs::read(foreign).expect("the key of the other bench");
    let key = hosts.front().home().join("foreign");
    fs::write(hosts.front().file(&key), foreign).expect("the home of the front is ours");
    text(&hosts.front().run("chmod 600 ~/foreign"));
    let line = "ssh -F /dev/null -o StrictHostKeyChecking=no -o BatchMode=yes -i ~/foreign node0 true";
    let refused = hosts.front().run(line);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && message.contains("Permission denied (publickey)"), "{message}");
    hosts.finish(BOUND);
    others.finish(BOUND);
}

#[test]
fn a_job_of_the_front_runs_there_and_its_directory_is_seen_everywhere() {
    let Some(hosts) = Hosts::up(1) else { return };
    let line = "echo $(hostname) $HOME; ssh node0 ls -d $RANKRUN_TEST_DIR";
    let running = Job::new(["-n", "2", "--", "sh", "-c", line]).at(hosts.front()).start();
    let directory = running.directory().display().to_string();
    let ended = running.finish(BOUND);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let lines: BTreeSet<String> = ended.stdout_text().lines().map(str::to_owned).collect();
    let all = lines.into_iter().collect::<Vec<_>>().join("\n");
    assert!(all.contains("front /run/root") && all.contains(&directory), "{all}");
    hosts.finish(BOUND);
}

#[test]
fn a_host_that_is_cut_off_comes_back() {
    let Some(hosts) = Hosts::up(2) else { return };
    for how in [Cut::Link, Cut::Silent] {
        let mut session = Session::open(&hosts, "node1");
        hosts.node(1).cut(how);
        assert!(!reaches(&hosts, "node1"), "{how:?}");
        assert!(comes_to_reach(&hosts, "node0"), "{how:?}");
        assert!(!session.has_ended(), "{how:?}: the connection has heard of it");
        hosts.node(1).heal();
        session.ask();
        assert!(comes_to_reach(&hosts, "node1"), "{how:?}");
    }
    // Each side hears of a reset when it sends: without the loop, the node's sshd would wait for ever.
    let mut session =
        Session::of(ssh(&hosts, "node1", "echo .; while sleep 0.1; do echo; done & exec cat > /dev/null"));
    hosts.node(1).cut(Cut::Reset);
    // What comes from the node may have ended it already.
    let _ = session.child.stdin.as_mut().expect("it was asked for").write_all(b"?\n");
    assert!(wait_until(BOUND, || session.has_ended().then_some(())).is_some(), "no reset came");
    assert!(!reaches(&hosts, "node1"));
    hosts.node(1).heal();
    assert!(comes_to_reach(&hosts, "node1"));
    hosts.finish(BOUND);
}

#[test]
fn a_link_can_be_slow_and_far() {
    let Some(hosts) = Hosts::up(2) else { return };
    hosts.node(0).rate(16_000_000);
    let start = monotonic();
    // 2 MB at 2 MB/s.
    text(&ssh(&hosts, "node0", "head -c 2000000 /dev/zero").output().expect("ssh is there"));
    let time = monotonic() - start;
    assert!(time > Duration::from_millis(800), "{time:?}");
    let delay = Duration::from_millis(40);
    // In towards the node, and out from it.
    hosts.node(1).delay(delay);
    let mut session = Session::open(&hosts, "node1");
    let time = session.ask();
    assert!(time >= 2 * delay && time < 2 * delay + Duration::from_millis(200) * slowness(), "{time:?}");
    let line = "ssh -o BatchMode=yes node0 date +%s%N";
    let start = monotonic();
    text(&hosts.node(1).run(line));
    // Of an ssh that does next to nothing: at least the versions, the keys, the user's key and the command.
    assert!(monotonic() - start > 8 * delay);
    hosts.node(1).delay(Duration::ZERO);
    let time = (0..5).map(|_| session.ask()).min().expect("five times");
    assert!(time < 2 * delay, "{time:?}");
    drop(session);
    hosts.finish(BOUND);
}

#[test]
fn a_frozen_host_says_nothing_until_it_thaws() {
    let Some(hosts) = Hosts::up(1) else { return };
    let session = Session::open(&hosts, "node0");
    hosts.node(0).freeze();
    assert!(!reaches(&hosts, "node0"));
    hosts.node(0).thaw();
    assert!(comes_to_reach(&hosts, "node0"));
    // One that nobody thaws goes with the bench all the same.
    hosts.node(0).freeze();
    let pids = hosts.node(0).pids();
    drop(session);
    drop(hosts);
    assert_eq!(alive(&pids), [0; 0]);
}

#[test]
fn what_a_job_leaves_on_a_host_is_named() {
    let Some(hosts) = Hosts::up(2) else { return };
    text(
        &hosts
            .node(1)
            .run("setsid sleep 1000 > /dev/null 2>&1 & touch /dev/shm/segment; mkdir -p /tmp/rankrun-0/0123abcd"),
    );
    let sleeper = hosts.node(1).survivors();
    assert_eq!(sleeper.len(), 1, "{sleeper:?}");
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| hosts.finish(Duration::from_millis(100))));
    let message = *outcome.expect_err("three things are left").downcast::<String>().expect("a text");
    for part in ["sleep", "/dev/shm/segment", "/tmp/rankrun-0/0123abcd"] {
        assert!(message.contains(part), "no {part} in {message}");
    }
    assert!(!processes::is_alive(sleeper[0].pid));
}

/// What a bench could leave on the machine, and the pids of its processes.
struct Traces {
    directory: PathBuf,
    pids: Vec<i32>,
}

impl Traces {
    fn of(hosts: &Hosts) -> Traces {
        let all = hosts.nodes().iter().chain([hosts.front()]);
        Traces { directory: hosts.directory().to_owned(), pids: all.flat_map(Host::pids).collect() }
    }

    fn left(&self) -> Vec<String> {
        let name = self.directory.file_name().expect("it has a name").to_string_lossy().into_owned();
        let mut left: Vec<String> = alive(&self.pids).iter().map(i32::to_string).collect();
        let commands = processes::all().into_iter().filter(|process| {
            let line = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&name)
        });
        left.extend(commands.map(|process| format!("{process:?}")));
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("everybody may read it");
        left.extend(mounts.lines().filter(|line| line.contains(&name)).map(str::to_owned));
        left.extend(find(Path::new("/sys/fs/cgroup"), &name).map(|path| path.display().to_string()));
        left.extend(self.directory.exists().then(|| name.clone()));
        left
    }
}

fn alive(pids: &[i32]) -> Vec<i32> {
    pids.iter().copied().filter(|&pid| processes::is_alive(pid)).collect()
}

/// A directory of this name below another.
fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.find_map(|entry| if entry.file_name() == name { Some(entry.path()) } else { find(&entry.path(), name) })
}

/// The machine's own links and namespaces with names.
fn machine() -> (BTreeSet<PathBuf>, BTreeSet<PathBuf>) {
    let list = |path: &str| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    (list("/sys/class/net"), list("/run/netns"))
}

#[test]
fn nothing_is_left_of_a_bench() {
    let before = machine();
    for _ in 0..full_scale(200, 20) {
        let Some(hosts) = Hosts::up(2) else { return };
        let traces = Traces::of(&hosts);
        assert!(traces.pids.len() >= 5, "three holders and two sshd: {:?}", traces.pids);
        assert!(!traces.left().is_empty(), "what is looked for cannot be found");
        hosts.finish(BOUND);
        assert_eq!(traces.left(), [""; 0]);
    }
    assert_eq!(machine(), before);
}

#[test]
fn benches_side_by_side_know_nothing_of_each_other() {
    let Some(first) = Hosts::up(2) else { return };
    let Some(second) = Plan::new(2).shared_home().sshd("Banner /etc/hostname").shell("/bin/sh").up() else { return };
    // The same names and addresses lead to different hosts.
    text(&first.node(1).run("echo first > /tmp/which"));
    text(&second.node(1).run("echo second > /tmp/which"));
    assert_eq!(text(&ssh(&first, "node1", "cat /tmp/which").output().expect("ssh is there")), "first");
    let output = ssh(&second, "node1", "cat /tmp/which; echo $0").output().expect("ssh is there");
    assert_eq!(text(&output), "second\n/bin/sh".replace("/bin/sh", "sh"));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "node1\n");
    text(&second.node(0).run("echo shared > ~/note"));
    assert_eq!(text(&second.node(1).run("cat ~/note")), "shared");
    let traces = Traces::of(&first);
    first.finish(BOUND);
    assert_eq!(traces.left(), [""; 0]);
    assert!(comes_to_reach(&second, "node0"));
    second.finish(BOUND);
}

#[test]
fn nothing_is_left_when_the_test_is_killed() {
    // A copy of this test brings the bench up, with a session and a daemon on it, and is killed.
    if std::env::var_os("RANKRUN_TEST_VICTIM").is_some() {
        let Some(hosts) = Hosts::up(2) else { return };
        let _session = Session::open(&hosts, "node0");
        text(&hosts.node(1).run("setsid sleep 1000 > /dev/null 2>&1 &"));
        hosts.node(1).delay(Duration::from_millis(1));
        let traces = Traces::of(&hosts);
        let pids: Vec<String> = traces.pids.iter().map(i32::to_string).collect();
        let line = format!("{} {}\n", traces.directory.display(), pids.join(" "));
        std::io::stderr().write_all(line.as_bytes()).expect("the test reads it");
        // Until it is killed.
        wait_until(Duration::from_secs(3600), || None::<()>);
        return;
    }
    let before = machine();
    for _ in 0..full_scale(50, 3) {
        let test = std::env::current_exe().expect("a running test has a file");
        let mut command = Command::new(test);
        command.args(["--exact", "--nocapture", "nothing_is_left_when_the_test_is_killed"]);
        command.env("RANKRUN_TEST_VICTIM", "yes").stdout(Stdio::null()).stderr(Stdio::piped());
        let mut victim = command.spawn().expect("a test can be started");
        let mut lines = BufReader::new(victim.stderr.take().expect("it was asked for")).lines().map_while(Result::ok);
        let line = lines.find(|line| line.starts_with('/'));
        victim.kill().expect("it lives");
        let status = victim.wait().expect("it is our child");
        // The machine permits no hosts: the copy has noted that it was skipped.
        if status.success() {
            return;
        }
        let line = line.expect("the bench came up");
        let (directory, pids) = line.split_once(' ').expect("a directory and pids");
        let pids = pids.split(' ').map(|pid| pid.parse().expect("a pid")).collect();
        let traces = Traces { directory: directory.into(), pids };
        assert!(traces.pids.len() >= 8, "{:?}", traces.pids);
        let gone = wait_until(BOUND, || traces.left().is_empty().then_some(()));
        assert!(gone.is_some(), "left: {:?}", traces.left());
    }
    assert_eq!(machine(), before);
}
