//! Ranks on several hosts over ssh: where they run, what they reach, and that all of it is as on one machine.

use std::path::Path;
use std::time::Duration;

use rankrun_tests::lines::{Faults, Fill, check};
use rankrun_tests::{
    Ended, Environment, Host, Hosts, Job, Plan, Stdin, full_scale, helper, in_time, processes, rankrun, wait_until,
};
use rustix::process::Signal;

/// A job of a few ranks, however busy the machine is.
const BOUND: Duration = Duration::from_secs(60);
/// How long a host may take to be empty after a job.
const MOMENT: Duration = Duration::from_secs(10);

fn run(host: &Host, words: &[&str]) -> Ended {
    Job::new(words).at(host).bound(BOUND).run()
}

/// The lines of a job that succeeds, sorted.
fn lines(ended: &Ended) -> Vec<String> {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let mut lines: Vec<String> = ended.stdout_text().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn program(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name).display().to_string()
}

/// Which rank runs where, by the options: the nodes of the ranks in order.
const LAYOUTS: [(&[&str], &str); 7] = [
    (&["-H", "node0:2,node1:2"], "0 0 1 1"),
    (&["-H", "node0:2,node1:2", "--map", "cyclic"], "0 1 0 1"),
    (&["-H", "node0:1,node1:3,node2:2"], "0 1 1 1 2 2"),
    (&["-H", "node0:1,node1:3,node2:2", "--map", "cyclic"], "0 1 2 1 2 1"),
    (&["-H", "node[0-3]", "--ppn", "2"], "0 0 1 1 2 2 3 3"),
    (&["-H", "node3,node1", "--ppn", "1"], "3 1"),
    (&["mpiexec", "-hosts", "node0,node1", "-ppn", "2", "-n", "4"], "0 0 1 1"),
];

#[test]
fn each_rank_runs_where_the_options_say() {
    let Some(hosts) = Hosts::up(4) else { return };
    let line =
        "echo $RANKRUN_RANK $(hostname) $RANKRUN_LOCAL_RANK $RANKRUN_LOCAL_WORLD_SIZE $RANKRUN_NNODES $MASTER_ADDR";
    // With a node of its own the front reaches it without ssh.
    for front in [hosts.front(), hosts.node(0)] {
        for (options, nodes) in LAYOUTS {
            let nodes: Vec<usize> = nodes.split(' ').map(|node| node.parse().expect("a number")).collect();
            let mut different = nodes.clone();
            different.sort_unstable();
            different.dedup();
            let expected = nodes.iter().enumerate().map(|(rank, node)| {
                let local = nodes[..rank].iter().filter(|other| *other == node).count();
                let size = nodes.iter().filter(|other| *other == node).count();
                let master = hosts.node(nodes[0]).address();
                format!("{rank} node{node} {local} {size} {} {master}", different.len())
            });
            let words: Vec<&str> = options.iter().copied().chain(["sh", "-c", line]).collect();
            assert_eq!(lines(&run(front, &words)), expected.collect::<Vec<_>>(), "{}: {options:?}", front.name());
        }
    }
    hosts.finish(MOMENT);
}

#[test]
fn each_command_of_mpiexec_runs_on_the_hosts_that_it_names() {
    let Some(hosts) = Hosts::up(3) else { return };
    let script = "echo $RANKRUN_RANK $(uname -n) $0";
    for (line, expected) in [
        ("mpiexec -n 2 -host node0 A : -n 2 -host node1 B", "node0 A, node0 A, node1 B, node1 B"),
        ("mpirun -n 1 -host node0 A : -n 1 -host node1 B : -n 1 -host node0 C", "node0 A, node1 B, node0 C"),
        ("orterun -n 2 -host node0,node1 A : -n 1 -host node2 B", "node0 A, node1 A, node2 B"),
        ("mpiexec -hosts node0:2,node1:1 -n 5 A", "node0 A, node0 A, node1 A, node0 A, node0 A"),
        (
            "mpiexec.hydra -n 2 -host node1 A : -n 1 -host node0 B : -n 1 -host node1 C",
            "node1 A, node1 A, node0 B, node1 C",
        ),
        ("mpiexec.hydra -hosts node0,node1 -n 3 A : -n 1 B", "node0 A, node1 A, node0 A, node1 B"),
        ("orterun -H node0:2,node1:2 --map-by node -n 2 A : -n 2 -H node2:2 B", "node0 A, node1 A, node2 B, node2 B"),
        ("mpirun -n 3 -H node0:2,node1:2 A : -n 1 -H node1:2 B", "node0 A, node0 A, node1 A, node1 B"),
    ] {
        let of = |word| match word {
            "A" | "B" | "C" => vec!["sh", "-c", script, word],
            word => vec![word],
        };
        let words: Vec<&str> = line.split(' ').flat_map(of).collect();
        let expected: Vec<String> =
            expected.split(", ").enumerate().map(|(rank, place)| format!("{rank} {place}")).collect();
        assert_eq!(lines(&run(hosts.front(), &words)), expected, "{line}");
    }
    hosts.finish(MOMENT);
}

#[test]
fn the_hosts_of_other_batch_systems_are_reached_by_ssh() {
    let Some(hosts) = Hosts::up(2) else { return };
    let list = hosts.directory().join("list");
    std::fs::write(&list, "node1\nnode1\nnode0\n").expect("the directory is ours");
    let list = list.display().to_string();
    let line = "echo $RANKRUN_RANK $(uname -n)";
    let lines_of_queues = hosts.directory().join("pe_hostfile");
    std::fs::write(&lines_of_queues, "node1 2 all.q@node1 UNDEFINED\nnode0 1 all.q@node0 UNDEFINED\n")
        .expect("the directory is ours");
    let lines_of_queues = lines_of_queues.display().to_string();
    let all = [
        ("PBS_NODEFILE", &*list),
        ("LSB_DJOB_HOSTFILE", &list),
        ("LSB_MCPU_HOSTS", "node1 2 node0 1"),
        ("PE_HOSTFILE", &lines_of_queues),
        ("OAR_NODEFILE", &list),
    ];
    let fronts = [hosts.front(), hosts.node(0), hosts.node(1)];
    for (front, (name, value)) in fronts.into_iter().cycle().zip(all) {
        let ended = Job::new(["sh", "-c", line]).at(front).env(name, value).bound(BOUND).run();
        assert_eq!(lines(&ended), ["0 node1", "1 node1", "2 node0"], "{name}: {}", ended.stderr_text());
    }
    hosts.finish(MOMENT);
}

#[test]
fn mpi_programs_have_one_world_and_know_their_nodes() {
    let Some(hosts) = Hosts::up(4) else { return };
    let script = program("mpi/places.py");
    for name in ["mpich", "impi-rt"] {
        let Some(environment) = Environment::find(name) else { return };
        let python = environment.program("python");
        let all = "node0:4,node1:4,node2:4,node3:4";
        for (front, options, sizes) in [
            (hosts.front(), &["-H", all][..], [4, 4, 4, 4]),
            (hosts.node(0), &["-H", all, "--map", "cyclic"], [4, 4, 4, 4]),
            (hosts.node(1), &["-H", "node0:1,node1:3,node2:1"], [1, 3, 1, 0]),
        ] {
            let words: Vec<&str> = options.iter().copied().chain([&*python, &script]).collect();
            let ended = run(front, &words);
            let ranks: usize = sizes.iter().sum();
            let found = lines(&ended);
            assert_eq!(found.len(), ranks, "{name}, {options:?}: {found:?}{}", ended.stderr_text());
            let total = ranks * (ranks - 1) / 2;
            for (node, size) in sizes.into_iter().enumerate() {
                let mut locals: Vec<&str> = Vec::new();
                for line in &found {
                    let words: Vec<&str> = line.split(' ').collect();
                    if words[1] == format!("node{node}") {
                        assert_eq!(words[3..], [size.to_string(), "1".to_owned(), total.to_string()], "{name}: {line}");
                        locals.push(words[2]);
                    }
                }
                locals.sort_unstable();
                let all: Vec<String> = (0..size).map(|local| local.to_string()).collect();
                assert_eq!(locals, all, "{name}, {options:?}, node{node}");
            }
        }
    }
    hosts.finish(MOMENT);
}

#[test]
fn torch_meets_at_an_address_that_every_node_reaches() {
    let Some(environment) = Environment::find("torch") else { return };
    let Some(hosts) = Hosts::up(2) else { return };
    let words = ["-H", "node0:2,node1:2", &environment.program("python"), &program("gloo_places.py")];
    for front in [hosts.front(), hosts.node(0)] {
        let ended = Job::new(words).at(front).env("OMP_NUM_THREADS", "1").bound(2 * BOUND).run();
        assert_eq!(lines(&ended), ["0 node0 0 6", "1 node0 1 6", "2 node1 0 6", "3 node1 1 6"]);
    }
    hosts.finish(MOMENT);
}

#[test]
fn launch_brings_the_function_to_other_machines_and_its_results_back() {
    let Some(environment) = Environment::find("mpich") else { return };
    let Some(hosts) = Hosts::up(2) else { return };
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python").display().to_string();
    // Where the command is.
    let path = format!("{}:/usr/bin:/bin", rankrun().parent().unwrap_or(Path::new("/")).display());
    for (front, named) in [(hosts.front(), "node0:2,node1:2"), (hosts.node(0), "node0:2,node1:2")] {
        let words = [&program("nodes.py"), &package, named];
        let job = Job::of_program(environment.program("python"), words).at(front).env("PATH", &path);
        let ended = job.env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND).run();
        let text = "[(0, 'node0', 1000000), (1, 'node0', 1000000), (2, 'node1', 1000000), (3, 'node1', 1000000)]\n\
                    [4, 4]\n2 ValueError('failure of 2') True\n";
        assert_eq!(ended.stdout_text(), text, "{}", ended.stderr_text());
        assert!(!ended.stderr_text().contains("warning"), "{}", ended.stderr_text());
    }
    hosts.finish(MOMENT);
}

#[test]
fn an_exception_on_one_node_ends_the_ranks_of_all() {
    let Some(environment) = Environment::find("mpich") else { return };
    let Some(hosts) = Hosts::up(4) else { return };
    let python = environment.program("python");
    let words = ["-H", "node0:4,node1:4,node2:4,node3:4", &python, &program("seeds/barrier_000.py")];
    let (ended, report) = Job::new(words).at(hosts.front()).bound(BOUND).run_with_report();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(1), "{text}");
    assert!(text.contains("ValueError: failure!") && text.contains("where     node node0"), "{text}");
    let failed = report.culprit.as_ref().map(|culprit| culprit.rank.number());
    assert_eq!(failed, Some(0), "{text}");
    assert!(report.left.proven && report.left.processes.is_empty(), "{text}");
    let took = report.seconds - report.culprit.as_ref().map_or(0.0, |culprit| culprit.at);
    // A second on a machine that has time; this one may be busy.
    assert!(took <= in_time(Duration::from_secs(5)).as_secs_f64(), "{took:.2} s after the failure: {text}");
    hosts.finish(MOMENT);
}

#[test]
fn stdin_goes_to_the_rank_that_reads_it_wherever_it_is() {
    let Some(hosts) = Hosts::up(2) else { return };
    let text: String = (0..100_000).map(|number| format!("{number}\n")).collect();
    let count = format!("{}", text.len());
    for (options, readers) in [(&[][..], &[0][..]), (&["--stdin", "3"], &[3]), (&["--stdin", "all"], &[0, 1, 2, 3])] {
        let line = ["sh", "-c", "echo $RANKRUN_RANK $(wc -c)"];
        let words: Vec<&str> = ["-H", "node0:2,node1:2"].iter().chain(options).chain(&line).copied().collect();
        let job = Job::new(words).at(hosts.front()).stdin(Stdin::Bytes(text.clone().into_bytes())).bound(BOUND);
        let expected = |rank| format!("{rank} {}", if readers.contains(&rank) { &count } else { "0" });
        assert_eq!(lines(&job.run()), (0..4).map(expected).collect::<Vec<_>>(), "{options:?}");
    }
    hosts.finish(MOMENT);
}

#[test]
fn much_output_of_several_nodes_is_tagged_and_whole() {
    const COUNT: usize = 50_000;
    const LENGTH: usize = 250;
    let Some(hosts) = Hosts::up(4) else { return };
    let words = ["-H", "node[0-3]", "--tag={node} ", &helper("lines"), &COUNT.to_string(), &LENGTH.to_string()];
    let ended = run(hosts.front(), &words);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let mut plain = Vec::new();
    for line in ended.stdout.split_inclusive(|byte| *byte == b'\n') {
        let text = String::from_utf8_lossy(line);
        let (node, rest) = text.split_once(' ').expect("a tag");
        assert_eq!(node, format!("node{}", &rest[..1]), "{text}");
        plain.extend_from_slice(rest.as_bytes());
    }
    assert_eq!(check(&plain, 4, COUNT, LENGTH, Fill::Text), Faults::default());
    hosts.finish(MOMENT);
}

#[test]
fn log_files_and_reports_are_on_the_machine_of_the_front() {
    let Some(hosts) = Hosts::up(2) else { return };
    // Rank 3 fails once all have written.
    let script = "hostname; touch $RANKRUN_TEST_DIR/$RANKRUN_RANK.up; [ $RANKRUN_RANK = 3 ] || exit 0
        for rank in 0 1 2; do until [ -e $RANKRUN_TEST_DIR/$rank.up ]; do sleep 0.01; done; done; exit 7";
    let words = ["-H", "node0:2,node1:2", "--log-dir", "/tmp/logs", "sh", "-c", script];
    let (ended, report) = Job::new(words).at(hosts.front()).bound(BOUND).run_with_report();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(7), "{text}");
    assert!(text.contains("rank 3 failed: exited with code 7") && text.contains("where     node node1, pid"), "{text}");
    assert_eq!(report.culprit.as_ref().map(|culprit| culprit.rank.number()), Some(3));
    for rank in 0..4 {
        let file = hosts.front().file(format!("/tmp/logs/rank-{rank:04}.stdout"));
        let log = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}: {text}", file.display()));
        assert_eq!(log, format!("node{}\n", rank / 2));
    }
    hosts.finish(MOMENT);
}

#[test]
fn signals_and_time_limits_end_the_ranks_of_all_nodes() {
    let Some(hosts) = Hosts::up(2) else { return };
    let line = "touch $RANKRUN_TEST_DIR/$RANKRUN_RANK.up; exec sleep 1000";
    for front in [hosts.front(), hosts.node(0)] {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let running = Job::new(["-H", "node0:2,node1:2", "sh", "-c", line]).at(front).start();
            (0..4).for_each(|rank| running.wait_for_file(&format!("{rank}.up")));
            processes::send(running.front(), signal);
            let ended = running.finish(BOUND);
            let by = ended.signal.map(|signal| 128 + signal).or(ended.code);
            assert_eq!(by, Some(code), "{}", ended.stderr_text());
        }
        let ended = run(front, &["-H", "node0:2,node1:2", "--timeout", "2s", "sleep", "1000"]);
        assert_eq!(ended.code, Some(124), "{}", ended.stderr_text());
    }
    hosts.finish(MOMENT);
}

#[test]
fn the_odd_rank_is_named_with_its_node() {
    let Some(environment) = Environment::find("mpich") else { return };
    let Some(hosts) = Hosts::up(2) else { return };
    let text = "import os\nfrom mpi4py import MPI\nw = MPI.COMM_WORLD\nw.Barrier()\n\
        open(os.environ['RANKRUN_TEST_DIR'] + '/%d.up' % w.rank, 'w')\n\
        def next_batch(): os.read(os.pipe()[0], 1)\n\
        if w.rank == 2: next_batch()\nw.Barrier()\n";
    let words = ["-H", "node0:2,node1:2", &environment.program("python"), "-c", text];
    let running = Job::new(words).at(hosts.front()).env("PYTHONDONTWRITEBYTECODE", "1").start();
    (0..4).for_each(|rank| running.wait_for_file(&format!("{rank}.up")));
    let asked = |words: &[&str]| {
        let output = hosts.front().command(rankrun()).args(words).output().expect("rankrun starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let status = asked(&["status"]);
    let job = status.lines().nth(1).and_then(|row| row.split(' ').next()).unwrap_or_else(|| panic!("no job: {status}"));
    // The others may be on their way into the barrier.
    let is_seen = || {
        let text = asked(&["stacks", job]);
        let has_others = text.lines().any(|line| line.starts_with("3 ranks  0-1,3  ") && line.contains("Barrier"));
        let has_odd = text.lines().any(|line| line.starts_with("odd ") && line.contains("rank 2 on node1: "));
        (has_others && has_odd && text.contains("next_batch")).then_some(())
    };
    assert!(wait_until(BOUND, is_seen).is_some(), "{}", asked(&["stacks", job]));
    let only = asked(&["stacks", job, "--rank", "2"]);
    assert!(only.contains("rank 2 on node1: pid "), "{only}");
    processes::send(running.front(), Signal::TERM);
    running.finish(BOUND);
    hosts.finish(MOMENT);
}

#[test]
fn ranks_that_outlive_a_signal_are_named_once_for_all_nodes() {
    let Some(hosts) = Hosts::up(2) else { return };
    let line = "trap '' TERM; touch $RANKRUN_TEST_DIR/$RANKRUN_RANK.up; exec sleep 1000";
    let words = ["-H", "node0:2,node1:2", "--grace", "6s", "sh", "-c", line];
    let running = Job::new(words).at(hosts.front()).start();
    (0..4).for_each(|rank| running.wait_for_file(&format!("{rank}.up")));
    processes::send(running.front(), Signal::TERM);
    let ended = running.finish(BOUND);
    let text = ended.stderr_text();
    let named = text.lines().filter(|line| line.starts_with("rankrun: still alive: ")).collect::<Vec<_>>();
    assert!(matches!(named[..], [line] if line.contains("ranks 0-3; SIGKILL in ")), "{text}");
    let tables = text.lines().filter(|line| line.starts_with("rankrun: where they are:")).count();
    assert_eq!(tables, 1, "{text}");
    assert!(text.lines().any(|line| line.trim_start().starts_with("4 ranks  0-3  ")), "{text}");
    hosts.finish(MOMENT);
}

#[test]
fn a_job_on_other_machines_alone_can_be_asked_and_stopped() {
    let Some(hosts) = Hosts::up(2) else { return };
    let line = "touch $RANKRUN_TEST_DIR/$RANKRUN_RANK.up; exec sleep 1000";
    for front in [hosts.front(), hosts.node(0)] {
        let running = Job::new(["-H", "node0:2,node1:2", "sh", "-c", line]).at(front).start();
        (0..4).for_each(|rank| running.wait_for_file(&format!("{rank}.up")));
        let rankrun = rankrun();
        let mut status = String::new();
        // That they run comes after they do.
        let is_running = wait_until(MOMENT, || {
            let output = front.command(&rankrun).arg("status").output().expect("rankrun starts");
            status = String::from_utf8_lossy(&output.stdout).into_owned();
            status.lines().nth(1)?.contains("running").then_some(())
        });
        assert!(is_running.is_some(), "{status}");
        let row = status.lines().nth(1).unwrap_or_default();
        let job = row.split(' ').next().unwrap_or_default().to_owned();
        let shown = front.command(&rankrun).args(["status", &job]).output().expect("rankrun starts");
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("running"), "{shown}");
        let stopped = front.command(&rankrun).args(["stop", &job]).status().expect("rankrun starts");
        assert!(stopped.success());
        let ended = running.finish(BOUND);
        assert!(ended.code != Some(0), "{}", ended.stderr_text());
        assert!(!front.file("/tmp/rankrun-0").join(&job).exists());
    }
    hosts.finish(MOMENT);
}

#[test]
fn the_surroundings_of_the_front_go_along_except_those_of_the_host() {
    let Some(hosts) = Hosts::up(1) else { return };
    let rankrun = rankrun().display().to_string();
    let show = "umask; ulimit -Sn; ulimit -Sc; ulimit -Ss; pwd; echo $MINE $TMPDIR $DISPLAY; echo $HOME; [ -n \"$SSH_CONNECTION\" ]";
    let line = format!(
        "umask 027; ulimit -Sn 777; ulimit -Sc 0; ulimit -Ss 4096; cd /usr/share; \
         export MINE=mine TMPDIR=/front DISPLAY=:7; exec {rankrun} -H node0 sh -c '{show}'"
    );
    let ended = Job::of_program("sh", ["-c", &line]).at(hosts.front()).bound(BOUND).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(ended.stdout_text(), "0027\n777\n0\n4096\n/usr/share\nmine\n/run/root\n");
    // The node's sshd, and so the relay, may lock less.
    let pid = hosts.node(0).sshd().expect("sshd runs");
    let lowered =
        std::process::Command::new("prlimit").args(["--pid", &pid.to_string(), "--memlock=65536:65536"]).status();
    assert!(lowered.is_ok_and(|status| status.success()));
    let ended = run(hosts.front(), &["-H", "node0", "sh", "-c", "ulimit -l"]);
    assert_eq!(ended.stdout_text(), "64\n");
    let warning = "node node0: the limit on locked memory is 64 KiB there and";
    assert!(ended.stderr_text().contains(warning), "{}", ended.stderr_text());
    let line = format!("mkdir -p /tmp/here && cd /tmp/here && exec {rankrun} -H node0 pwd");
    let ended = Job::of_program("sh", ["-c", &line]).at(hosts.front()).bound(BOUND).run();
    assert_eq!(ended.code, Some(127));
    let text = "cannot enter the working directory \"/tmp/here\": No such file or directory";
    assert!(ended.stderr_text().contains(text), "{}", ended.stderr_text());
    let gone = wait_until(MOMENT, || hosts.front().survivors().is_empty().then_some(()));
    assert!(gone.is_some());
    hosts.finish(MOMENT);
}

#[test]
fn the_front_raises_its_limit_on_open_files_and_the_ranks_get_the_users() {
    let Some(hosts) = Hosts::up(2) else { return };
    let rankrun = rankrun().display().to_string();
    let front = |limits: &str, words: &str| {
        let line = format!("{limits}; exec {rankrun} {words}");
        Job::of_program("sh", ["-c", &line]).at(hosts.front()).bound(BOUND).run()
    };
    // The front alone has more than 20: its stdio, and three for each node.
    let ended = front("ulimit -Sn 20", "-H node0,node1,localhost sh -c 'ulimit -Sn'");
    assert_eq!((ended.code, &*ended.stdout_text()), (Some(0), "20\n20\n20\n"), "{}", ended.stderr_text());
    let running = Job::of_program(
        "sh",
        ["-c", &format!("ulimit -Sn 20; exec {rankrun} -H node0,node1 --grace 1s {}", helper("tree"))],
    );
    let running = running.at(hosts.front()).start();
    running.wait_for_ranks(2);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", running.front())).expect("it runs");
    let files: Vec<&str> =
        limits.lines().find(|line| line.starts_with("Max open files")).expect("a line").split_whitespace().collect();
    assert_eq!(files[3], files[4], "{limits}");
    processes::send(running.front(), Signal::TERM);
    running.finish(BOUND);
    // The hard limit is what counts, here and there.
    let ended = front("ulimit -n 100", "-H 'n[1-40]' true");
    assert_eq!(ended.code, Some(2), "{}", ended.stderr_text());
    assert!(
        ended.stderr_text().contains("cannot run on 40 other nodes: rankrun needs up to"),
        "{}",
        ended.stderr_text()
    );
    let pid = hosts.node(0).sshd().expect("sshd runs");
    let lowered = std::process::Command::new("prlimit").args(["--pid", &pid.to_string(), "--nofile=100:100"]).status();
    assert!(lowered.is_ok_and(|status| status.success()));
    let ended = run(hosts.front(), &["-H", "node0:2", "true"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let ended = run(hosts.front(), &["-H", "node1:1,node0:30", "true"]);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(125), "{text}");
    assert!(text.contains("node node0: cannot start the ranks: 30 ranks need up to"), "{text}");
    assert!(text.contains("the hard limit there (RLIMIT_NOFILE) is 100"), "{text}");
    hosts.finish(MOMENT);
}

#[test]
fn the_ports_at_which_hosts_meet_are_of_the_range_that_was_given() {
    let Some(hosts) = Hosts::up(2) else { return };
    let show = "echo $MASTER_PORT";
    let ended = run(hosts.front(), &["-H", "node0,node1", "--port-range", "20100-20109", "sh", "-c", show]);
    assert_eq!((ended.code, &*ended.stdout_text()), (Some(0), "20100\n20100\n"), "{}", ended.stderr_text());
    // What others use is passed over: a listener, and what another job holds.
    let other = Job::new(["-H", "node0,node1", "--port-range", "20101-20109", "--grace", "1s", &helper("tree")])
        .at(hosts.front())
        .start();
    other.wait_for_ranks(2);
    let job = ["-H", "node0,node1", "--port-range", "20101-20104", "--tf-config", "sh", "-c"];
    let ended = run(hosts.front(), &[&job[..], &[show]].concat());
    assert_eq!(ended.code, Some(125), "{}", ended.stderr_text());
    let text = "cannot hold the ports at which the ranks meet: 3 more ports are needed, and too few of 20101-20104 (--port-range) are free";
    assert!(ended.stderr_text().contains(text), "{}", ended.stderr_text());
    let ended = run(hosts.front(), &["-H", "node0,node1", "--port-range", "20101-20104", "sh", "-c", show]);
    assert_eq!((ended.code, &*ended.stdout_text()), (Some(0), "20103\n20103\n"), "{}", ended.stderr_text());
    processes::send(other.front(), Signal::TERM);
    other.finish(BOUND);
    hosts.finish(MOMENT);
}

#[test]
fn the_interface_is_told_to_the_libraries_of_the_ranks_of_every_host() {
    let Some(hosts) = Hosts::up(2) else { return };
    let shown = "echo $RANKRUN_RANK $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME $FI_TCP_IFACE";
    let words = ["-x", "FI_TCP_IFACE=lo", "--interface", "eth0", "-H", "node0,node1", "sh", "-c", shown];
    assert_eq!(lines(&run(hosts.front(), &words)), ["0 eth0 =eth0 lo", "1 eth0 =eth0 lo"]);
    hosts.finish(MOMENT);
}

/// Prints the sum of an allreduce by gloo, and the networks of the connections that this process has to other hosts.
const GLOO: &str = r#"
import os, socket, torch, torch.distributed as dist
dist.init_process_group("gloo")
tensor = torch.ones(1)
dist.all_reduce(tensor)
mine = set()
for fd in os.listdir("/proc/self/fd"):
    try:
        mine.add(os.readlink("/proc/self/fd/" + fd))
    except OSError:
        pass
networks = set()
for line in open("/proc/self/net/tcp").readlines()[1:]:
    words = line.split()
    if words[3] == "01" and "socket:[%s]" % words[9] in mine:
        address = socket.inet_ntoa(bytes.fromhex(words[1].split(":")[0])[::-1])
        networks.add(address.rpartition(".")[0])
print(int(tensor), *sorted(networks), flush=True)
dist.barrier()
"#;

/// Two ranks of JAX, on two hosts, meet. gloo prints lines of its own.
fn assert_jax_meets(jax: &Environment, front: &Host) {
    let (python, world) = (jax.program("python"), program("jax/world.py"));
    let job = Job::new(["-H", "node0,node1", &python, &world, "meet"]).at(front);
    let ended = job.env("JAX_PLATFORMS", "cpu").env("PYTHONDONTWRITEBYTECODE", "1").bound(2 * BOUND).run();
    let met = ["rank 0 of 2: [0, 10] [7], 1 device", "rank 1 of 2: [0, 10] [7], 1 device"];
    let mut lines = lines(&ended);
    lines.retain(|line| line.starts_with("rank "));
    assert_eq!(lines, met, "{}", ended.stderr_text());
}

#[test]
fn hosts_whose_own_names_are_loopback_addresses_run_torch_and_jax() {
    let Some(torch) = Environment::find("torch") else { return };
    let Some(jax) = Environment::find("jax") else { return };
    let Some(hosts) = Plan::new(2).own_name_is_loopback().up() else { return };
    let front = hosts.front();
    let shown = "getent hosts $(hostname); echo $RANKRUN_RANK $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME";
    let told = lines(&run(front, &["-H", "node0,node1", "sh", "-c", shown]));
    assert_eq!(told, ["0 eth0", "1 eth0", "127.0.1.1       node0", "127.0.1.1       node1"]);
    // What the user has chosen stays.
    let shown = ["-x", "GLOO_SOCKET_IFNAME=lo", "-H", "node0,node1", "sh", "-c", "echo $GLOO_SOCKET_IFNAME"];
    assert_eq!(lines(&run(front, &shown)), ["lo", "lo"]);
    let python = torch.program("python3");
    let ended = Job::new(["-H", "node0,node1", &python, "-c", GLOO]).at(front).bound(2 * BOUND).run();
    assert_eq!(lines(&ended), ["2 10.99.0"; 2], "{}", ended.stderr_text());
    if full_scale(true, false) {
        // So it is without the interface.
        let words = ["--env-remove", "GLOO_SOCKET_IFNAME", "-H", "node0,node1", &python, "-c", GLOO];
        let ended = Job::new(words).at(front).bound(2 * BOUND).run();
        assert_eq!(ended.code, Some(1), "{}", ended.stderr_text());
    }
    assert_jax_meets(&jax, front);
    hosts.finish(MOMENT);
}

#[test]
fn gloo_uses_the_interface_that_was_chosen() {
    let Some(torch) = Environment::find("torch") else { return };
    let Some(hosts) = Plan::new(2).second_network().up() else { return };
    let python = torch.program("python3");
    for (options, network) in [(&["--interface", "eth1"][..], "2 10.98.0"), (&[], "2 10.99.0")] {
        let words = [options, &["-H", "node0,node1", &python, "-c", GLOO]].concat();
        let ended = Job::new(words).at(hosts.front()).bound(2 * BOUND).run();
        assert_eq!(lines(&ended), [network; 2], "{}", ended.stderr_text());
    }
    hosts.finish(MOMENT);
}

#[test]
fn hosts_without_ipv4_run_torch_and_jax() {
    let Some(torch) = Environment::find("torch") else { return };
    let Some(jax) = Environment::find("jax") else { return };
    let Some(hosts) = Plan::new(2).ipv6().up() else { return };
    let front = hosts.front();
    let python = torch.program("python3");
    let sum = "import os, torch, torch.distributed as dist; dist.init_process_group('gloo'); t = torch.ones(1); \
        dist.all_reduce(t); print(int(t), os.environ['MASTER_ADDR']); dist.barrier()";
    let ended = Job::new(["-H", "node0,node1", &python, "-c", sum]).at(front).bound(2 * BOUND).run();
    assert_eq!(lines(&ended), ["2 fd00:99::1"; 2], "{}", ended.stderr_text());
    assert_jax_meets(&jax, front);
    hosts.finish(MOMENT);
}

#[test]
fn one_machine_under_two_names_is_told_and_strict_refuses_it() {
    let Some(hosts) = Hosts::up(2) else { return };
    let front = hosts.front();
    let list = ["-H", "node0,node1:2,10.99.0.2:2", "true"];
    let ended = run(front, &list);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let told = "warning: node1 and 10.99.0.2 are one machine, and count as 2 nodes: MPI may fail; name it once, with all of its \
        slots (node1:N)";
    assert!(ended.stderr_text().contains(told), "{}", ended.stderr_text());
    let ended = run(front, &[&["--strict"], &list[..]].concat());
    assert_eq!((ended.code, ended.stdout.is_empty()), (Some(2), true), "{}", ended.stderr_text());
    assert!(ended.stderr_text().contains("node1 and 10.99.0.2 are one machine"), "{}", ended.stderr_text());
    assert!(!run(front, &["-H", "node0:2,node1:2", "true"]).stderr_text().contains("one machine"));
    hosts.finish(MOMENT);
}
