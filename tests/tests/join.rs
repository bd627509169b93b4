//! The same command on every node: node 0 runs the job, and the others join it over TCP. Here all nodes are this machine.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rankrun_core::gang::SECOND_INTERRUPT;
use rankrun_tests::{Ended, Job, Random, Running, in_time, processes, rankrun, skip, wait_until};
use rustix::process::Signal;

/// A job of a few ranks, however busy the machine is.
const BOUND: Duration = Duration::from_secs(60);

/// The files and the address of one job.
struct Meeting {
    directory: tempfile::TempDir,
    port: u16,
}

impl Meeting {
    fn new() -> Meeting {
        let directory = tempfile::tempdir().expect("a directory");
        let meeting = Meeting { port: free_port(), directory };
        meeting.write_secret("secret", 0x42);
        meeting
    }

    fn write_secret(&self, name: &str, byte: u8) -> PathBuf {
        let path = self.directory.path().join(name);
        let mut file = std::fs::OpenOptions::new();
        let mut file = file.write(true).create_new(true).mode(0o600).open(&path).expect("a file");
        let last = char::from(byte);
        std::io::Write::write_all(&mut file, format!("{}{last}A=\n", "Q".repeat(41)).as_bytes()).expect("written");
        path
    }

    fn job(&self, node: &str, nodes: &str, secret: &Path, options: &[&str], command: &[&str]) -> Job {
        let address = format!("127.0.0.1:{}", self.port);
        let secret = secret.to_str().expect("UTF-8");
        let own = ["--nnodes", nodes, "--node-rank", node, "--rendezvous", &address, "--secret-file", secret];
        let words: Vec<&str> = own.iter().chain(options).chain(&["--"]).chain(command).copied().collect();
        Job::new(&words).bound(BOUND)
    }

    fn start(&self, node: u32, nodes: u32, options: &[&str], command: &[&str]) -> Running {
        self.job(&node.to_string(), &nodes.to_string(), &self.directory.path().join("secret"), options, command).start()
    }

    /// Starts all nodes, the last first, and returns them in their order.
    fn start_all(&self, nodes: u32, options: &[&str], command: &[&str]) -> Vec<Running> {
        let mut running: Vec<Running> =
            (0..nodes).rev().map(|node| self.start(node, nodes, options, command)).collect();
        running.reverse();
        running
    }
}

/// A port below those that the kernel gives to connections: none of them can take it before node 0 does.
fn free_port() -> u16 {
    let mut random = Random::new(u64::from(std::process::id()) << 32 | u64::from(NEXT.fetch_add(1, Ordering::Relaxed)));
    let ports = std::iter::repeat_with(|| 20_000 + random.below(10_000) as u16);
    ports.take(100).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}

static NEXT: AtomicU32 = AtomicU32::new(0);

fn finish_all(running: Vec<Running>) -> Vec<Ended> {
    running.into_iter().map(|running| running.finish(BOUND)).collect()
}

fn codes(ended: &[Ended]) -> Vec<Option<i32>> {
    ended.iter().map(|ended| ended.code).collect()
}

fn sorted_lines(ended: &Ended) -> Vec<String> {
    let mut lines: Vec<String> = ended.stdout_text().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

const NUMBERS: [&str; 3] =
    ["sh", "-c", "echo $RANKRUN_RANK of $RANKRUN_WORLD_SIZE on $RANKRUN_NODE_RANK as $RANKRUN_LOCAL_RANK"];

/// The ranks of all nodes have the environment of node 0, and so its directory.
const SLEEP: [&str; 3] = ["sh", "-c", "touch $RANKRUN_TEST_DIR/$RANKRUN_RANK.leader; exec sleep 600"];

#[test]
fn every_node_runs_its_ranks_and_shows_their_output_and_node_0_all_of_it() {
    let meeting = Meeting::new();
    let ended = finish_all(meeting.start_all(3, &["-n", "5"], &NUMBERS));
    assert_eq!(codes(&ended), [Some(0); 3], "{}{}", ended[0].stderr_text(), ended[1].stderr_text());
    let of_node: [&[&str]; 3] =
        [&["0 of 5 on 0 as 0", "1 of 5 on 0 as 1"], &["2 of 5 on 1 as 0", "3 of 5 on 1 as 1"], &["4 of 5 on 2 as 0"]];
    assert_eq!(sorted_lines(&ended[0]), of_node.concat());
    assert_eq!(sorted_lines(&ended[1]), of_node[1]);
    assert_eq!(sorted_lines(&ended[2]), of_node[2]);
}

#[test]
fn every_node_ends_with_the_code_of_the_rank_that_failed() {
    let meeting = Meeting::new();
    let command = ["sh", "-c", "if [ $RANKRUN_RANK = 3 ]; then exit 7; fi; exec sleep 600"];
    let ended = finish_all(meeting.start_all(3, &["--ppn", "2"], &command));
    assert_eq!(codes(&ended), [Some(7); 3], "{}", ended[0].stderr_text());
    assert!(ended[0].stderr_text().contains("rank 3 failed: exited with code 7"), "{}", ended[0].stderr_text());
}

#[test]
fn nodes_are_numbered_by_the_index_of_a_kubernetes_job_and_else_as_they_come() {
    for variable in [true, false] {
        let meeting = Meeting::new();
        let secret = meeting.directory.path().join("secret");
        let start = |node: u32| {
            let rank = if node == 0 && !variable { "0" } else { "auto" };
            let job = meeting.job(rank, "3", &secret, &[], &NUMBERS);
            if variable { job.env("JOB_COMPLETION_INDEX", node.to_string()) } else { job }.start()
        };
        if variable {
            let ended = finish_all((0..3).map(start).collect());
            assert_eq!(codes(&ended), [Some(0); 3]);
            assert_eq!(sorted_lines(&ended[2]), ["2 of 3 on 2 as 0"]);
        } else {
            // Loopback is an address of every node here: only a node that says so is not the front.
            let front = start(0);
            let secret = &secret;
            let members = (1..3).map(|node| meeting.job(&node.to_string(), "3", secret, &[], &NUMBERS).start());
            let ended = finish_all(std::iter::once(front).chain(members).collect());
            assert_eq!(codes(&ended), [Some(0); 3]);
        }
    }
}

#[test]
fn a_node_that_does_not_come_is_named() {
    let meeting = Meeting::new();
    let front = meeting.start(0, 3, &["--start-timeout", "5s"], &["true"]);
    let member = meeting.start(2, 3, &["--start-timeout", "30s"], &["true"]);
    let ended = finish_all(vec![front, member]);
    assert_eq!(codes(&ended), [Some(121); 2]);
    let text = ended[0].stderr_text();
    assert!(text.contains("1 of 3 nodes did not join within 5 s: missing: node1"), "{text}");
    assert_eq!(ended[0].stdout_text(), "");
    // The log of the other node says why, too.
    let told = "the job has ended: 1 of 3 nodes did not join within 5 s: missing: node1; the report is on node 0";
    assert!(ended[1].stderr_text().contains(told), "{}", ended[1].stderr_text());
}

#[test]
fn a_node_without_a_front_says_what_it_waited_for() {
    let meeting = Meeting::new();
    let ended = meeting.start(1, 2, &["--start-timeout", "1s"], &["true"]).finish(BOUND);
    assert_eq!(ended.code, Some(121));
    let text = ended.stderr_text();
    assert!(text.contains("within 1 s: Connection refused"), "{text}");
}

#[test]
fn a_node_with_another_secret_is_kept_out_and_the_job_goes_on() {
    let meeting = Meeting::new();
    let other = meeting.write_secret("other", 0x77);
    let front = meeting.start(0, 2, &[], &NUMBERS);
    let stranger = meeting.job("1", "2", &other, &["--start-timeout", "4s"], &["true"]).start();
    let stranger = stranger.finish(BOUND);
    assert_eq!(stranger.code, Some(121));
    assert!(stranger.stderr_text().contains("it has another secret, or is no rankrun"), "{}", stranger.stderr_text());
    assert_eq!(stranger.stdout_text(), "");
    let ended = finish_all(vec![front, meeting.start(1, 2, &[], &NUMBERS)]);
    assert_eq!(codes(&ended), [Some(0); 2], "{}", ended[0].stderr_text());
    assert!(ended[0].stderr_text().contains("it does not know the job's secret"), "{}", ended[0].stderr_text());
}

#[test]
fn a_secret_that_others_can_read_is_refused() {
    let meeting = Meeting::new();
    let path = meeting.directory.path().join("secret");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("its mode");
    let ended = meeting.start(0, 2, &[], &["true"]).finish(BOUND);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr_text().contains("other users can read the job's secret"), "{}", ended.stderr_text());
    assert!(!ended.stderr_text().contains("QQQQ"), "{}", ended.stderr_text());
}

#[test]
fn the_secret_is_in_no_environment_and_on_no_command_line() {
    let meeting = Meeting::new();
    let command =
        ["sh", "-c", "env; cat /proc/*/environ /proc/*/cmdline 2> /dev/null | tr '\\0' '\\n' | grep QQQQQQ; true"];
    let ended = finish_all(meeting.start_all(2, &[], &command));
    assert_eq!(codes(&ended), [Some(0); 2]);
    // The command itself has six of them.
    assert!(ended.iter().all(|ended| !ended.stdout_text().contains(&"Q".repeat(7))));
}

#[test]
fn a_node_that_is_killed_ends_the_job_everywhere() {
    let meeting = Meeting::new();
    let mut running = meeting.start_all(3, &["--ppn", "2"], &SLEEP);
    running[0].wait_for_ranks(6);
    let killed = running.remove(1);
    processes::send(killed.front(), Signal::KILL);
    let ended = finish_all(running);
    assert_eq!(codes(&ended), [Some(121); 2], "{}", ended[0].stderr_text());
    assert!(ended[0].stderr_text().contains("was lost"), "{}", ended[0].stderr_text());
    let told = ended[1].stderr_text();
    assert!(told.contains("rankrun: the job has ended: node ") && told.contains(" was lost"), "{told}");
    killed.finish(BOUND);
}

#[test]
fn the_next_attempt_runs_on_the_nodes_that_are_left() {
    let meeting = Meeting::new();
    let line = "echo $RANKRUN_ATTEMPT: $RANKRUN_RANK/$RANKRUN_WORLD_SIZE $RANKRUN_NODE_RANK/$RANKRUN_NNODES; \
        [ $RANKRUN_ATTEMPT -gt 0 ] || exec sleep 1000";
    let start = |node: &str| {
        let secret = meeting.directory.path().join("secret");
        meeting
            .job(node, "2:3", &secret, &["--ppn", "2", "--restart", "1", "--node-timeout", "5s"], &["sh", "-c", line])
            .start()
    };
    let mut running: Vec<Running> = ["0", "1", "2"].map(start).into();
    let is_up = || (running[0].stdout_so_far().iter().filter(|byte| **byte == b'\n').count() == 6).then_some(());
    wait_until(BOUND, is_up).expect("all ranks run");
    let killed = running.remove(1);
    processes::send(killed.front(), Signal::KILL);
    let ended = finish_all(running);
    assert_eq!(codes(&ended), [Some(0); 2], "{}", ended[0].stderr_text());
    let text = ended[0].stdout_text();
    let mut lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("1: ")).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0/4 0/2", "1/4 0/2", "2/4 1/2", "3/4 1/2"], "{}", ended[0].stderr_text());
    let own = ended[1].stdout_text();
    let mut own: Vec<&str> = own.lines().filter(|line| line.starts_with("1: ")).collect();
    own.sort_unstable();
    assert_eq!(own, ["1: 2/4 1/2", "1: 3/4 1/2"], "each node has the output of its own ranks");
    killed.finish(BOUND);
}

#[test]
fn a_signal_to_one_node_ends_the_job_unless_it_may_go_on_without_the_node() {
    let line = "echo $RANKRUN_ATTEMPT; [ $RANKRUN_ATTEMPT -gt 0 ] || exec sleep 1000";
    for (nodes, goes_on) in [("3", false), ("2:3", true)] {
        let meeting = Meeting::new();
        let start = |node: &str| {
            let secret = meeting.directory.path().join("secret");
            meeting.job(node, nodes, &secret, &["--restart", "1"], &["sh", "-c", line]).start()
        };
        let mut running: Vec<Running> = ["0", "1", "2"].map(start).into();
        let is_up = || (running[0].stdout_so_far() == b"0\n0\n0\n").then_some(());
        wait_until(BOUND, is_up).expect("all ranks run");
        processes::send(running[1].front(), Signal::TERM);
        let ended = finish_all(std::mem::take(&mut running));
        let text = ended[0].stderr_text();
        let expected = Some(if goes_on { 0 } else { 143 });
        for ended in [&ended[0], &ended[2]] {
            assert_eq!(ended.code.or(ended.signal.map(|signal| 128 + signal)), expected, "{text}");
        }
        match goes_on {
            true => assert!(
                text.contains("was lost: SIGTERM came to its agent") && text.contains("rankrun: without "),
                "{text}"
            ),
            false => assert!(
                text.contains(": SIGTERM came to its agent, and ends the job") && text.contains("ended by SIGTERM"),
                "{text}"
            ),
        }
    }
}

/// The ranks ignore the signals, and have ten minutes: a second ^C does not wait for them, at any node.
#[test]
fn a_second_interrupt_at_a_node_ends_that_node_at_once() {
    let meeting = Meeting::new();
    let line = "trap '' INT TERM; echo up; while :; do sleep 1; done";
    let mut running = meeting.start_all(2, &["--grace", "600"], &["sh", "-c", line]);
    let is_up = || (running[0].stdout_so_far() == b"up\nup\n").then_some(());
    wait_until(BOUND, is_up).expect("all ranks run");
    let one = running.remove(1);
    processes::send(one.front(), Signal::INT);
    let stopping = || String::from_utf8_lossy(&running[0].stderr_so_far()).contains("and ends the job").then_some(());
    wait_until(BOUND, stopping).expect("the job is being stopped");
    rankrun_tests::pause(SECOND_INTERRUPT + Duration::from_millis(100));
    processes::send(one.front(), Signal::INT);
    let ended = one.finish(BOUND);
    assert_eq!(ended.signal, Some(2), "{}", ended.stderr_text());
    let zero = running.remove(0);
    for _ in 0..2 {
        processes::send(zero.front(), Signal::INT);
        rankrun_tests::pause(SECOND_INTERRUPT + Duration::from_millis(100));
    }
    let ended = zero.finish(BOUND);
    assert_eq!(ended.signal, Some(2), "{}", ended.stderr_text());
}

#[test]
fn each_node_has_all_lines_of_its_own_ranks_where_they_are_many() {
    let meeting = Meeting::new();
    let line = "seq -f '%.0f of a line that is as long as many others are in the logs of programs' 200000; printf end";
    let ended = finish_all(meeting.start_all(2, &[], &["sh", "-c", line]));
    assert_eq!(codes(&ended), [Some(0); 2], "{}{}", ended[0].stderr_text(), ended[1].stderr_text());
    let count = |ended: &Ended| ended.stdout_text().lines().filter(|line| line.ends_with("programs")).count();
    assert_eq!((count(&ended[0]), count(&ended[1])), (400_000, 200_000), "{}", ended[1].stderr_text());
    assert!(ended[1].stdout_text().trim_end().ends_with("end"), "the last line has no newline");
}

#[test]
fn a_job_begins_without_the_nodes_that_do_not_join() {
    let meeting = Meeting::new();
    let line = "echo $RANKRUN_RANK/$RANKRUN_WORLD_SIZE $RANKRUN_NODE_RANK/$RANKRUN_NNODES; \
        until [ -e $MARK ]; do sleep 0.05; done";
    let mark = meeting.directory.path().join("mark");
    let secret = meeting.directory.path().join("secret");
    let start = |node: &str| {
        let job = meeting.job(node, "2:3", &secret, &["--start-timeout", "5s"], &["sh", "-c", line]);
        job.env("MARK", &mark).start()
    };
    let running: Vec<Running> = ["0", "2"].map(start).into();
    let is_up = || (running[0].stdout_so_far().iter().filter(|byte| **byte == b'\n').count() == 2).then_some(());
    wait_until(BOUND, is_up).expect("both ranks run");
    // Too late.
    let late = start("1").finish(BOUND);
    assert_eq!(late.code, Some(121), "{}", late.stderr_text());
    assert!(late.stderr_text().contains("the job has begun without it"), "{}", late.stderr_text());
    std::fs::write(&mark, "").expect("a mark");
    let ended = finish_all(running);
    assert_eq!(codes(&ended), [Some(0); 2], "{}", ended[0].stderr_text());
    let text = ended[0].stdout_text();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0/2 0/2", "1/2 1/2"], "{}", ended[0].stderr_text());
    assert!(
        ended[0].stderr_text().contains("rankrun: without node1: 2 ranks on 2 nodes"),
        "{}",
        ended[0].stderr_text()
    );
}

#[test]
fn a_node_that_goes_away_while_others_are_awaited_is_left_out() {
    let meeting = Meeting::new();
    let secret = meeting.directory.path().join("secret");
    let start = |node: &str| meeting.job(node, "2:3", &secret, &["--ppn", "1", "-v"], &NUMBERS).start();
    let front = start("0");
    let second = start("1");
    // Until its first message it could have missed its admission, and would be awaited.
    let is_ready = || {
        let text = String::from_utf8_lossy(&front.stderr_so_far()).into_owned();
        text.lines().any(|line| line.starts_with("rankrun: node ") && line.contains(": workers are held")).then_some(())
    };
    wait_until(BOUND, is_ready).expect("node 1 joins");
    processes::send(second.front(), Signal::KILL);
    let is_left_out = || String::from_utf8_lossy(&front.stderr_so_far()).contains("2 ranks on 2 nodes").then_some(());
    wait_until(BOUND, is_left_out).expect("node 1 is left out");
    let again = start("1").finish(BOUND);
    let text = again.stderr_text();
    assert_eq!(again.code, Some(121), "{text}");
    let refused = "the front refused this node: node 1 (";
    assert!(text.contains(refused) && text.contains(") was lost, and cannot join this job again"), "{text}");
    let third = start("2");
    let ended = [front.finish(BOUND), third.finish(BOUND)];
    assert_eq!(codes(&ended), [Some(0); 2], "{}{}", ended[0].stderr_text(), ended[1].stderr_text());
    assert_eq!(sorted_lines(&ended[0]), ["0 of 2 on 0 as 0", "1 of 2 on 1 as 0"]);
    second.finish(BOUND);
}

#[test]
fn a_front_that_is_killed_ends_every_node() {
    let meeting = Meeting::new();
    let mut running = meeting.start_all(3, &["--ppn", "2"], &SLEEP);
    running[0].wait_for_ranks(6);
    let front = running.remove(0);
    processes::send(front.front(), Signal::KILL);
    let ended = finish_all(running);
    assert_eq!(codes(&ended), [Some(121); 2], "{}", ended[0].stderr_text());
    assert!(ended[0].stderr_text().contains("lost node 0"), "{}", ended[0].stderr_text());
    front.finish(BOUND);
}

/// As in a pod: the first process, an unknown user, a root directory that nobody may write to. The group may read the secret.
const POD: &str = "mount --make-rprivate / && mount --rbind / /mnt && mount -o remount,ro,bind /mnt && cd / && \
    exec chroot /mnt setpriv --reuid 12345 --regid 12345 --clear-groups env HOME=/ \"$@\"";

#[test]
fn pods_end_together_as_the_first_process_of_an_unknown_user_with_nothing_to_write_to() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can make what is like a pod");
    }
    let meeting = Meeting::new();
    let secret = meeting.write_secret("shared", 0x42);
    let (path, address) = (meeting.directory.path(), format!("127.0.0.1:{}", meeting.port));
    std::os::unix::fs::chown(&secret, None, Some(12345)).expect("we are root");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o440)).expect("the file is ours");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("the directory is ours");
    let (rankrun, secret) = (rankrun().display().to_string(), secret.display().to_string());
    // A process that is left to the first one, and ends later, is reaped.
    let script = "(sh -c 'sleep 0.1; exit 0' &); echo on $RANKRUN_NODE_RANK; test $RANK = 2 && exit 5; exec sleep 600";
    let start = |node: u32| {
        let ours =
            ["-pfm", "--kill-child", "--mount-proc", "sh", "-c", POD, "sh", &rankrun, "--nnodes", "2", "--ppn", "2"];
        let theirs = ["--rendezvous", &address, "--secret-file", &secret, "--", "sh", "-c", script];
        let words: Vec<&str> = ours.into_iter().chain(theirs).collect();
        let job = Job::of_program("unshare", words).env_remove("RANKRUN_JOURNAL");
        job.env("JOB_COMPLETION_INDEX", node.to_string()).bound(BOUND).start()
    };
    let ended = finish_all((0..2).map(start).collect());
    assert_eq!(codes(&ended), [Some(5); 2], "{}{}", ended[0].stderr_text(), ended[1].stderr_text());
    let text = ended[0].stderr_text();
    assert!(text.contains("rank 2 failed: exited with code 5"), "{text}");
    assert!(text.contains("left      nothing"), "{text}");
    // Rank 3 may be ended before it has written.
    let own = ended[1].stdout_text();
    assert!(!own.is_empty() && own.lines().all(|line| line == "on 1"), "{own}");
}

/// What is between a node and node 0.
struct Between {
    listener: TcpListener,
    port: u16,
}

impl Between {
    fn new(front: u16) -> Between {
        Between { listener: TcpListener::bind(("127.0.0.1", 0)).expect("a port"), port: front }
    }

    fn address(&self) -> String {
        self.listener.local_addr().expect("an address").to_string()
    }

    /// Carries one connection up to the claim of the node, and nothing back from then on, until `is_over`. Then both ends are closed.
    fn lose_verdict(&self, is_over: &dyn Fn() -> bool) {
        let (mut node, _) = self.listener.accept().expect("a node connects");
        let mut front = TcpStream::connect(("127.0.0.1", self.port)).expect("node 0 listens");
        // A node sends three times: its knock, its part of the handshake, and its claim. Each follows an answer.
        let (mut turns, mut is_nodes_turn) = (0, false);
        for stream in [&node, &front] {
            stream.set_read_timeout(Some(Duration::from_millis(2))).expect("a socket");
        }
        while !is_over() {
            let mut room = [0; 4096];
            if let Ok(count @ 1..) = node.read(&mut room) {
                turns += u32::from(!std::mem::replace(&mut is_nodes_turn, true));
                front.write_all(&room[..count]).expect("node 0 takes it");
            }
            if let Ok(count @ 1..) = front.read(&mut room)
                && turns < 3
            {
                is_nodes_turn = false;
                node.write_all(&room[..count]).expect("the node takes it");
            }
        }
    }

    /// Carries one connection until both ends have closed it.
    fn carry(&self) {
        let (node, _) = self.listener.accept().expect("a node connects");
        let front = TcpStream::connect(("127.0.0.1", self.port)).expect("node 0 listens");
        std::thread::scope(|scope| {
            for (mut from, mut to) in [(&node, &front), (&front, &node)] {
                scope.spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        });
    }
}

#[test]
fn a_node_whose_admission_was_lost_on_the_way_gets_its_place_when_it_asks_again() {
    for rank in ["1", "auto"] {
        let meeting = Meeting::new();
        let secret = meeting.directory.path().join("secret");
        let between = Between::new(meeting.port);
        let front = meeting.start(0, 2, &["-v"], &NUMBERS);
        let joined = || String::from_utf8_lossy(&front.stderr_so_far()).matches("node 1 has joined").count();
        let address = between.address();
        let words = ["--nnodes", "2", "--node-rank", rank, "--rendezvous", &address, "--secret-file"];
        let words = words.into_iter().chain([secret.to_str().expect("UTF-8"), "--"]).chain(NUMBERS);
        let job = Job::new(words).bound(BOUND);
        // Loopback is an address of this node, too.
        let job = if rank == "auto" { job.env("JOB_COMPLETION_INDEX", "1") } else { job };
        let member = job.start();
        wait_until(BOUND, || TcpStream::connect(("127.0.0.1", meeting.port)).ok()).expect("node 0 listens");
        between.lose_verdict(&|| joined() == 1);
        // The other attempt, and the connection that tells of the end.
        let ended = std::thread::scope(|scope| {
            let carried = scope.spawn(|| (0..2).for_each(|_| between.carry()));
            let ended = [front.finish(BOUND), member.finish(BOUND)];
            carried.join().expect("both are carried");
            ended
        });
        assert_eq!(codes(&ended), [Some(0); 2], "{}{}", ended[0].stderr_text(), ended[1].stderr_text());
        assert_eq!(sorted_lines(&ended[1]), ["1 of 2 on 1 as 0"]);
        let text = ended[0].stderr_text();
        assert_eq!(text.matches("node 1 has joined").count(), 2, "{text}");
    }
}

#[test]
fn a_node_that_was_started_for_another_number_of_nodes_is_refused_with_both_numbers() {
    let meeting = Meeting::new();
    let front = meeting.start(0, 2, &[], &NUMBERS);
    let other = meeting.start(1, 3, &[], &NUMBERS).finish(BOUND);
    assert_eq!(other.code, Some(121), "{}", other.stderr_text());
    let text = other.stderr_text();
    assert!(text.contains("it was started with --nnodes 3, and node 0 with --nnodes 2"), "{text}");
    let ended = finish_all(vec![front, meeting.start(1, 2, &[], &NUMBERS)]);
    assert_eq!(codes(&ended), [Some(0); 2], "{}", ended[0].stderr_text());
}

/// Where nobody listens any more there is no front to wait for.
#[test]
fn a_node_whose_front_has_ended_ends_soon() {
    let meeting = Meeting::new();
    let mut running = meeting.start_all(2, &[], &SLEEP);
    running[0].wait_for_ranks(2);
    let front = running.remove(0);
    processes::send(running[0].front(), Signal::STOP);
    processes::send(front.front(), Signal::KILL);
    front.finish(BOUND);
    processes::send(running[0].front(), Signal::CONT);
    let before = rankrun_tests::monotonic();
    let ended = running.remove(0).finish(BOUND);
    let (took, text) = (ended.ended.saturating_sub(before), ended.stderr_text());
    assert!(took < in_time(Duration::from_secs(5)), "{took:?}: {text}");
    assert_eq!(ended.code, Some(121), "{text}");
    assert!(text.contains("has ended: Connection refused"), "{text}");
}

#[test]
fn a_node_says_how_a_job_ended_that_another_node_has_ended() {
    let meeting = Meeting::new();
    let script = "[ $RANK = 1 ] && exit 7; exec sleep 60";
    let ended = finish_all(meeting.start_all(3, &[], &["sh", "-c", script]));
    for (node, ended) in ended.iter().enumerate().skip(1) {
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(7), "{node}: {text}");
        let lines: Vec<&str> = text.lines().collect();
        let is_told = |line: &str| {
            line.starts_with("rankrun: the job has ended: rank 1 failed: exited with code 7 (node ")
                && line.ends_with("); the report is on node 0")
        };
        assert!(matches!(lines[..], [line] if is_told(line)), "{node}: {text}");
    }
}

#[test]
fn nodes_that_join_relay_torchs_store() {
    let meeting = Meeting::new();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/store/relayed.py").display().to_string();
    let running = meeting.start_all(3, &["--torch-store", "relay"], &["python3", &program, "wait", "50"]);
    let ended = finish_all(running);
    assert_eq!(codes(&ended), [Some(0); 3], "{}", ended[0].stderr_text());
    assert_eq!(ended[0].stdout_text(), "150 woken, few descriptors besides its own clients'\n");
}
