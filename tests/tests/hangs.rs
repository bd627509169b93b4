//! Where the ranks of a hanging job are: the odd rank is named with its line and with what it waits for.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rankrun_core::report::Report;
use rankrun_tests::processes::Process;
use rankrun_tests::{
    Ended, Environment, Job, Running, Stdin, compile, full_scale, in_time, listed_job, monotonic, processes, rankrun,
    scratch, skip, slowness, wait_until,
};
use rustix::process::Signal;
use serde_json::Value;

const BOUND: Duration = Duration::from_secs(60);

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/hangs")
}

/// What a hang is made of.
#[derive(Clone, Copy, Debug)]
enum Program {
    /// `with_mpi.py` in this environment.
    Mpi4py(&'static str),
    /// `hang.c`, with MPICH's compiler; it runs with this library.
    C(&'static str),
    /// The same in C++.
    Cpp(&'static str),
    /// `with_gloo.py`.
    Gloo,
}

impl Program {
    /// The command; `None` where what it needs is not there.
    fn command(self, kind: &str, lock: &Path) -> Option<Vec<String>> {
        let file = |name: &str| programs().join(name).display().to_string();
        let mut words = match self {
            Program::Mpi4py(name) => vec![Environment::find(name)?.program("python"), file("with_mpi.py")],
            Program::C("openmpi") => {
                let path =
                    compile("mpicc.openmpi", &["-O1", "-g", "-pthread"], &programs().join("hang.c"), "hang-ompi");
                vec![path.display().to_string()]
            }
            Program::C(library) | Program::Cpp(library) => {
                let compiler = Environment::find("mpich")?.program("mpicc");
                let cpp = ["-cc=g++", "-x", "c++", "-DMPICH_SKIP_MPICXX"];
                let (language, name) = match self {
                    Program::Cpp(_) => (&cpp[..], "hang-mpich-cpp"),
                    _ => (&[][..], "hang-mpich"),
                };
                let options = [language, &["-O1", "-g", "-pthread"]].concat();
                let path = compile(&compiler, &options, &programs().join("hang.c"), name);
                let libraries = Environment::find(library)?.libraries();
                vec!["env".to_owned(), format!("LD_LIBRARY_PATH={}", libraries.display()), path.display().to_string()]
            }
            Program::Gloo => vec![Environment::find("torch")?.program("python"), file("with_gloo.py")],
        };
        words.extend([kind.to_owned(), lock.display().to_string()]);
        Some(words)
    }
}

/// A hang and what must be told of it.
struct Hang {
    program: Program,
    kind: &'static str,
    /// Parts of the odd rank's row, and of the sentence about it; or of the remark, where nobody is odd.
    row: &'static str,
    told: &'static str,
    /// Whether the middle rank is odd, or else the first one, or nobody.
    odd: Odd,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Odd {
    Middle,
    First,
    Nobody,
}

/// The middle rank is the odd one.
const fn hang(program: Program, kind: &'static str, row: &'static str, told: &'static str) -> Hang {
    Hang { program, kind, row, told, odd: Odd::Middle }
}

const MPICH: Program = Program::Mpi4py("mpich");
const INTEL: Program = Program::Mpi4py("impi-rt");
const OPEN_MPI: Program = Program::Mpi4py("openmpi");

const IN_MPI: [Hang; 20] = [
    hang(MPICH, "never_enters", "prepare with_mpi.py:", "sleeps; the others wait in Comm.allreduce"),
    hang(INTEL, "never_enters", "prepare with_mpi.py:", "sleeps; the others wait in Comm.allreduce"),
    hang(OPEN_MPI, "never_enters", "prepare with_mpi.py:", "sleeps; the others wait in Comm.allreduce"),
    hang(MPICH, "receives", "Comm.recv < receives with_mpi.py:", "waits for a message in Comm.recv; the others wait"),
    hang(OPEN_MPI, "sends", "MPI_Ssend < sends with_mpi.py:", "waits in MPI_Ssend until its message is taken"),
    hang(MPICH, "takes_a_lock_twice", "update with_mpi.py:", "waits for a lock"),
    hang(
        OPEN_MPI,
        "waits_for_a_dead_worker",
        "next_batch with_mpi.py:",
        "waits for a worker process that is gone (pid ",
    ),
    hang(MPICH, "runs_a_command", "runs_a_command with_mpi.py:", "(sleep 600): "),
    hang(MPICH, "waits_for_a_dead_thread", "Queue.get", "waits for a thread of its own, and has none that works"),
    hang(MPICH, "joins_a_thread", "joins_a_thread with_mpi.py:", "waits for a thread of its own"),
    hang(MPICH, "loops", "loops with_mpi.py:", "computes"),
    hang(MPICH, "collects_garbage", "release with_mpi.py:", "sleeps"),
    hang(MPICH, "is_in_a_handler", "save with_mpi.py:", "sleeps"),
    hang(MPICH, "waits_for_a_file_lock", "waits_for_a_file_lock with_mpi.py:", "waits for a lock"),
    hang(MPICH, "waits_in_an_exit_handler", "prepare with_mpi.py:", "is on its way out"),
    hang(MPICH, "is_done", "MPI_Finalize", "has come to its end, and waits in MPI_Finalize"),
    hang(OPEN_MPI, "is_done", "MPI_Finalize", "has come to its end, and waits in MPI_Finalize"),
    Hang { odd: Odd::First, ..hang(MPICH, "asks", "asks with_mpi.py:", "waits for input on stdin") },
    Hang { odd: Odd::Nobody, ..hang(MPICH, "alike", "", "all alike: every rank waits for a message in Comm.recv") },
    Hang { odd: Odd::Nobody, ..hang(OPEN_MPI, "opposite_order", "", "in different calls: ") },
];

const IN_C: [Hang; 10] = [
    hang(Program::C("mpich"), "computes", "compute hang.c:", "computes; the others wait in MPI_Allreduce"),
    hang(Program::C("impi-rt"), "computes", "compute hang.c:", "computes; the others wait in MPI_Allreduce"),
    hang(Program::C("openmpi"), "computes", "compute hang.c:", "computes; the others wait in MPI_Allreduce"),
    hang(Program::C("mpich"), "locks", "pthread_mutex_lock < update hang.c:", "waits for a lock"),
    hang(Program::C("openmpi"), "broadcasts", "MPI_Bcast < main hang.c:", "waits in MPI_Bcast"),
    hang(Program::C("mpich"), "exits", "at_exit hang.c:", "is on its way out"),
    hang(Program::Cpp("mpich"), "terminates", "std::terminate", "is on its way out"),
    hang(Program::C("openmpi"), "finalizes", "MPI_Finalize < main hang.c:", "waits in MPI_Finalize"),
    hang(Program::C("mpich"), "vfork", "vfork < main hang.c:", "hang_in_vfork hang.c:"),
    Hang {
        odd: Odd::Nobody,
        ..hang(Program::C("mpich"), "exchange", "", "waits in MPI_Ssend until its message is taken")
    },
];

const IN_TORCH: [Hang; 2] = [
    hang(Program::Gloo, "never_enters", "load with_gloo.py:", "sleeps; the others wait in all_reduce"),
    hang(Program::Gloo, "receives", "main with_gloo.py:", "waits for a message in recv; the others wait in all_reduce"),
];

/// The id of a job, from the list of all.
fn id(running: &Running) -> String {
    let found = wait_until(in_time(BOUND), || listed_job(running.front()));
    found.expect("the job is in the list")
}

fn ask(arguments: &[&str]) -> Vec<u8> {
    Command::new(rankrun()).args(arguments).stdin(Stdio::null()).output().expect("rankrun can be started").stdout
}

/// What is wrong with the table, or nothing.
fn fault(hang: &Hang, ranks: u32, lines: &str) -> Option<String> {
    let odd = match hang.odd {
        Odd::Middle => Some(ranks / 2),
        Odd::First => Some(0),
        Odd::Nobody => None,
    };
    let Some(odd) = odd else {
        let is_told = lines.contains(hang.told) && !lines.contains("odd  ");
        return (!is_told).then(|| format!("no \"{}\"", hang.told));
    };
    let row = lines.lines().find(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some("1") && words.next() == Some("rank") && words.next() == Some(&odd.to_string())
    });
    let told: Vec<&str> = lines.lines().filter(|line| line.starts_with("odd ")).collect();
    match (row, told.as_slice()) {
        (None, _) => Some(format!("rank {odd} has no row of its own")),
        (Some(row), _) if !row.contains(hang.row) => Some(format!("no \"{}\"", hang.row)),
        (_, [told]) if told.contains(&format!("rank {odd} on ")) && told.contains(hang.told) => None,
        _ => Some(format!("no \"{}\"", hang.told)),
    }
}

/// Runs the hangs, and waits until each is told as it must be.
fn tell(hangs: &[Hang]) {
    let mut faults = Vec::new();
    for hang in hangs {
        for ranks in full_scale(&[4, 16][..], &[4]) {
            let directory = scratch();
            let Some(command) = hang.program.command(hang.kind, &directory.join("lock")) else { continue };
            let count = ranks.to_string();
            let arguments = ["-n", &count, "--"].map(str::to_owned).into_iter().chain(command);
            // Nobody types.
            let (stdin, _writer) = rustix::pipe::pipe().expect("a pipe");
            let stdin = Stdin::File(File::from(stdin));
            let running = Job::new(arguments).stdin(stdin).env("PYTHONDONTWRITEBYTECODE", "1").start();
            let job = id(&running);
            let mut last = String::new();
            // Sixteen imports of torch take their time.
            let is_told = wait_until(in_time(BOUND * (*ranks / 4)), || {
                last = String::from_utf8(ask(&["stacks", &job])).expect("text");
                fault(hang, *ranks, &last).is_none().then_some(())
            });
            if is_told.is_none() {
                let fault = fault(hang, *ranks, &last).unwrap_or_default();
                faults.push(format!("{:?} {} with {ranks} ranks: {fault}\n{last}", hang.program, hang.kind));
            }
            processes::send(running.front(), Signal::TERM);
            let ended = running.finish(BOUND);
            if ended.code != Some(143) && ended.signal != Some(15) {
                faults.push(format!("{:?} {}: {:?} {}", hang.program, hang.kind, ended.code, ended.stderr_text()));
            }
            fs::remove_dir_all(&directory).expect("the directory is ours");
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_odd_rank_of_a_job_of_mpi4py_is_named() {
    tell(&IN_MPI);
}

#[test]
fn the_odd_rank_of_a_job_in_c_is_named() {
    tell(&IN_C);
}

#[test]
fn the_odd_rank_of_a_job_of_torch_is_named() {
    tell(&IN_TORCH);
}

/// A job of mpi4py in which one rank waits for a worker process that is gone, and the others for it, with these options.
fn stalled(options: &[&str], ranks: &str) -> Option<(Ended, Report)> {
    let command = MPICH.command("waits_for_a_dead_worker", Path::new("none"))?;
    let options = options.iter().map(|option| (*option).to_owned());
    let arguments = ["-n".to_owned(), ranks.to_owned()].into_iter().chain(options).chain(command);
    Some(Job::new(arguments).env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND).run_with_report())
}

#[test]
fn a_stall_ends_the_job_with_the_table_in_its_report() {
    let Some((ended, report)) = stalled(&["--stall", "2s:kill"], "4") else { return };
    let text = ended.stderr_text();
    assert_eq!((ended.code, report.exit_code.0), (Some(122), 122), "{text}");
    assert!(
        text.starts_with("rankrun: 4 ranks, silent for 3 s (--stall)  (exit 122") || text.contains("silent for"),
        "{text}"
    );
    assert!(text.contains("(--stall): rank 2 on "), "{text}");
    assert_eq!(report.culprit.as_ref().map(|culprit| culprit.rank.number()), Some(2), "{text}");
    let table = report.stacks.expect("the ranks were looked into");
    assert_eq!(table.ranks, 4);
    assert_eq!(table.odd.iter().map(|odd| odd.ranks.to_string()).collect::<Vec<_>>(), ["2"], "{text}");
    assert!(text.contains("next_batch with_mpi.py:"), "{text}");
    assert!(text.contains("rank 2 on ") && text.contains("the others wait in Comm.allreduce"), "{text}");
}

#[test]
fn after_a_stall_the_next_attempt_begins() {
    let options =
        ["--stall", "2s:kill", "--restart", "1", "--restart-on", "hang", "--no-breaker", "--backoff", "0s..0s"];
    let Some((ended, report)) = stalled(&options, "2") else { return };
    let text = ended.stderr_text();
    assert_eq!((ended.code, report.attempt), (Some(122), 1), "{text}");
    assert_eq!(report.attempts.len(), 1, "{text}");
    let options = ["--stall", "2s:kill", "--restart", "1", "--restart-on", "exception"];
    let Some((ended, report)) = stalled(&options, "2") else { return };
    assert_eq!((ended.code, report.attempt), (Some(122), 0), "{}", ended.stderr_text());
}

#[test]
fn a_stall_is_told_once_and_the_job_goes_on() {
    let Some(command) = MPICH.command("waits_for_a_dead_worker", Path::new("none")) else { return };
    let arguments = ["-n", "2", "--stall", "1s:warn"].map(str::to_owned).into_iter().chain(command);
    let running = Job::new(arguments).env("PYTHONDONTWRITEBYTECODE", "1").start();
    let said = |text: &str| String::from_utf8_lossy(&running.stderr_so_far()).matches(text).count();
    wait_until(BOUND, || (said("(--stall 1s:warn)") == 1).then_some(())).expect("the stall is told");
    let told = monotonic();
    // Looks go on: nothing else is said, since nothing has changed.
    wait_until(BOUND, || (monotonic() > told + Duration::from_secs(4)).then_some(()));
    assert_eq!(said("(--stall 1s:warn)"), 1);
    processes::send(running.front(), Signal::TERM);
    running.finish(BOUND);
}

#[test]
fn one_rank_in_an_endless_loop_is_told_of_with_a_doubt() {
    let Some(mpich) = Environment::find("mpich") else { return };
    let text = "from mpi4py import MPI\nw = MPI.COMM_WORLD\nw.Barrier()\nwhile w.rank == 1: pass\nw.Barrier()";
    let python = mpich.program("python");
    let running = Job::new(["-n", "3", "--stall", "3s:warn", &python, "-c", text]).start();
    let stderr = || String::from_utf8_lossy(&running.stderr_so_far()).into_owned();
    let told = wait_until(BOUND, || stderr().contains("rank 1 computes and may go on").then_some(()));
    assert!(told.is_some(), "{}", stderr());
    assert!(stderr().contains("odd     rank 1 on "), "{}", stderr());
    processes::send(running.front(), Signal::TERM);
    running.finish(BOUND);
}

/// Ends its process when the test does, also if that panics.
struct Loop(Child);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_stall_on_a_busy_machine_ends_the_job() {
    let Some(command) = MPICH.command("takes_a_lock_twice", Path::new("none")) else { return };
    let start = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().map(Loop).expect("sh can be started");
    let cpus = std::thread::available_parallelism().map_or(2, usize::from);
    let _loops: Vec<Loop> = (0..2 * cpus).map(|_| start()).collect();
    let arguments = ["-n", "3", "--stall", "3s:kill"].map(str::to_owned).into_iter().chain(command);
    let ended = Job::new(arguments).env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND * slowness()).run();
    assert_eq!(ended.code, Some(122), "{}", ended.stderr_text());
    assert!(!ended.stderr_text().contains("could not be looked into"), "{}", ended.stderr_text());
}

/// What works without a word, and must not be taken for a stall.
fn silent_programs(directory: &Path) -> Vec<(&'static str, Vec<String>)> {
    let shell = |text: &str| ["sh", "-c", text].map(str::to_owned).to_vec();
    let python = |text: &str| ["python3", "-c", text].map(str::to_owned).to_vec();
    let loops = directory.join("loops.c");
    fs::write(&loops, "int main(void) { volatile double x = 0; for (;;) x += 1; }\n").expect("the directory is ours");
    let loops = compile("cc", &["-O1"], &loops, "hangs-loops").display().to_string();
    let source = directory.join("large.c");
    let functions = "#define F(n) int f##n(int x) { return x * n + f(x); }\nint f(int x) { return x; }\n";
    let many: String = (0..4000).map(|number| format!("F({number})\n")).collect();
    fs::write(&source, format!("{functions}{many}")).expect("the directory is ours");
    let source = source.display();
    let mut programs = vec![
        ("a loop in C", vec![loops]),
        ("a loop in Python", python("n = 0\nwhile True: n += 1")),
        ("a sum in one call of C", python("while True: sum(range(10 ** 7))")),
        (
            "a pause now and then",
            python("import time\ndef a(): time.sleep(.3)\ndef b(): time.sleep(.3)\nwhile True: a(); b()"),
        ),
        ("a shell that waits for short commands", shell("while :; do sleep 0.2; done")),
        ("a compiler", shell(&format!("while :; do cc -O2 -c -o /dev/null {source}; done"))),
        ("a search", shell("while :; do find /usr /proc/self > /dev/null 2>&1; done")),
        ("a sleep", shell("exec sleep 100")),
        ("a poll of a file", shell("while test ! -e /none; do sleep 1; done")),
        ("a sort", shell("while :; do seq 300000 | sort -R | sort > /dev/null; done")),
        ("a command in a command", shell("sh -c 'while :; do :; done'; true")),
        ("a filter", shell("yes | tr y n | grep -c x; true")),
        ("regular expressions", python("import re\nwhile True: re.match('(a|b|ab)*c', 'ab' * 12)")),
        ("many files", python("import os\nwhile True: sum(len(open('/proc/self/stat').read()) for _ in range(1000))")),
        ("a child that computes", python("import subprocess\nsubprocess.run(['sh', '-c', 'while :; do :; done'])")),
        ("a pool", python("import multiprocessing as m\nwith m.Pool(1) as p: p.map(sum, [range(10 ** 12)])")),
        ("a compression", shell("while :; do head -c 50000000 /dev/urandom | gzip -9 > /dev/null; done")),
        (
            "threads that work",
            python(
                "import threading\ndef f():\n  while True: hash('a' * 99)\nt = threading.Thread(target=f)\nt.start(); t.join()",
            ),
        ),
    ];
    if let Some(environment) = Environment::find("torch") {
        let text = "import torch\nx = torch.ones(1500, 1500)\nwhile True: x @ x";
        let waits =
            "import time\nfrom mpi4py import MPI\nw = MPI.COMM_WORLD\nif w.rank == 0: time.sleep(60)\nw.Barrier()";
        if let Some(mpich) = Environment::find("mpich") {
            let python = mpich.program("python");
            programs.push(("ranks that wait for one that sleeps", vec![python, "-c".to_owned(), waits.to_owned()]));
        }
        programs.push(("a product of matrices", vec![environment.program("python"), "-c".to_owned(), text.to_owned()]));
    }
    programs
}

#[test]
fn what_works_in_silence_is_not_ended_for_a_stall() {
    let directory = scratch();
    let mut faults = Vec::new();
    for (name, command) in silent_programs(&directory) {
        // One rank, where it does not wait for others: the programs keep a CPU busy all the time.
        let ranks = if name.starts_with("ranks ") { "2" } else { "1" };
        let arguments = ["-n", ranks, "--stall", "1s:kill", "--timeout", "3s", "--"].map(str::to_owned);
        let ended = Job::new(arguments.into_iter().chain(command)).bound(BOUND).run();
        if ended.code != Some(124) {
            faults.push(format!("{name}: {:?} {}", ended.code, ended.stderr_text()));
        }
    }
    fs::remove_dir_all(&directory).expect("the directory is ours");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The looker of a running job, as soon as there is one.
fn looker(running: &Running) -> Option<i32> {
    let is_looker = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.starts_with(b"rankrun\0--as=stack-looker\0"))
    };
    processes::children(running.agent()).into_iter().map(|child| child.pid).find(is_looker)
}

/// Starts to look into a job, and waits until its looker runs. `None`: it was too quick.
fn looking(running: &Running, job: &str) -> (Child, Option<i32>) {
    let mut asking = Command::new(rankrun());
    asking.args(["stacks", job]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut asking = asking.spawn().expect("rankrun can be started");
    let mut is_over = false;
    let found = wait_until(BOUND, || {
        let found = looker(running);
        is_over = asking.try_wait().expect("it is our child").is_some();
        (found.is_some() || is_over).then_some(found)
    });
    (asking, found.expect("there is a looker, or an answer"))
}

/// Ranks with many threads, of which one computes.
const BUSY: &str = "import os, threading\nopen(os.environ['RANKRUN_TEST_DIR'] + '/up.' + os.environ['RANK'], 'w')\nfor _ in range(20): threading.Thread(target=lambda: threading.Event().wait(), daemon=True).start()\nwhile True: pass";

#[test]
fn a_looker_that_is_killed_leaves_no_rank_stopped() {
    let running = Job::new(["-n", "2", "python3", "-c", BUSY]).start();
    let job = id(&running);
    running.wait_for_file("up.0");
    running.wait_for_file("up.1");
    let mut killed = 0;
    // On a machine that gives us little time, most are too quick.
    for number in 0..1000 {
        if number >= full_scale(200, 25) && killed > 0 {
            break;
        }
        let (mut asking, found) = looking(&running, &job);
        // At another moment each time.
        wait_until(Duration::from_micros(number * 997 % 20_000), || None::<()>);
        if let Some(looker) = found.filter(|looker| processes::is_alive(*looker)) {
            processes::send(looker, Signal::KILL);
            killed += 1;
        }
        assert!(asking.wait().expect("it is our child").success(), "what was not seen is said in the answer");
        let stopped = || running.processes().into_iter().filter(|process| matches!(process.state, 'T' | 't')).count();
        wait_until(BOUND, || (stopped() == 0).then_some(())).expect("all ranks go on");
    }
    assert!(killed > 0, "no looker was met");
    processes::send(running.front(), Signal::TERM);
    let ended = running.finish(BOUND);
    assert!(ended.stderr_text().contains("left      nothing"), "{}", ended.stderr_text());
}

/// Stops the process that the agent is just starting, if there is one. Returns whether it had not come to its exec.
fn stop_before_exec(agent: i32) -> bool {
    let starting = |process: &Process| process.name == "spawner";
    let Some(child) = processes::children(agent).into_iter().find(starting) else { return false };
    processes::send(child.pid, Signal::STOP);
    wait_until(BOUND, || {
        let now = processes::children(agent).into_iter().find(|process| process.pid == child.pid);
        now.is_none_or(|process| process.state != 'R').then_some(())
    });
    processes::children(agent)
        .iter()
        .any(|process| process.pid == child.pid && starting(process) && process.state == 'T')
}

#[test]
fn a_looker_that_is_stopped_before_its_exec_holds_up_no_later_look() {
    let running = Job::new(["-n", "2", "python3", "-c", BUSY]).start();
    let job = id(&running);
    running.wait_for_file("up.0");
    running.wait_for_file("up.1");
    let asking = || {
        let mut asking = Command::new(rankrun());
        asking.args(["stacks", &job]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        asking.spawn().expect("rankrun can be started")
    };
    let met = (0..500).any(|_| {
        let mut child = asking();
        let met = wait_until(BOUND, || {
            let met = stop_before_exec(running.agent());
            (met || child.try_wait().expect("it is our child").is_some()).then_some(met)
        });
        assert!(child.wait().expect("it is our child").success(), "what was not seen is said in the answer");
        met == Some(true)
    });
    assert!(met, "no looker was met before its exec");
    let answer = asking().wait_with_output().expect("it is our child");
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    assert!(answer.status.success() && text.contains("2 ranks"), "{text}");
    assert!(!text.contains("could not") && !text.contains("took too long"), "{text}");
    processes::send(running.front(), Signal::TERM);
    let ended = running.finish(BOUND);
    assert!(ended.stderr_text().contains("left      nothing"), "{}", ended.stderr_text());
}

#[test]
fn an_agent_that_is_killed_in_a_look_ends_the_job_as_always() {
    for _ in 0..full_scale(50, 5) {
        let running = Job::new(["-n", "2", "python3", "-c", BUSY]).start();
        let job = id(&running);
        running.wait_for_file("up.0");
        running.wait_for_file("up.1");
        let (mut asking, _) = looking(&running, &job);
        processes::send(running.agent(), Signal::KILL);
        let ended = running.finish(BOUND);
        assert_eq!(ended.code, Some(121), "{}", ended.stderr_text());
        assert!(ended.stderr_text().contains("all processes gone)"), "{}", ended.stderr_text());
        // It has an answer, or was told that the job is gone.
        let _ = asking.wait();
    }
}

/// Rank 1 polls under this command; looks are quick, say who traces it and do not call it odd, and the job ends as always.
fn look_at_traced_rank(tracer: &str, command: &str) {
    let Some(mpich) = Environment::find("mpich") else { return };
    if !["/usr/bin", "/bin", "/usr/local/bin"].iter().any(|directory| Path::new(directory).join(tracer).exists()) {
        return skip(&format!("there is no {tracer}"));
    }
    let polls = compile(&mpich.program("mpicc"), &["-O1", "-g"], &programs().join("polls.c"), "polls-mpich");
    let directory = scratch();
    let go = directory.join("go");
    let (program, libraries) = (polls.display(), mpich.libraries().display().to_string());
    let script = format!("if [ $RANK = 1 ]; then exec {command} {program} {0}; fi; exec {program} {0}", go.display());
    let job = Job::new(["-n", "3", "--stdin", "none", "sh", "-c", &script]).env("LD_LIBRARY_PATH", libraries);
    let running = job.start();
    let job = id(&running);
    let why = format!("not seen: {tracer}");
    let mut last = String::new();
    let is_seen = wait_until(in_time(BOUND), || {
        let asked = Command::new(rankrun()).args(["stacks", &job]).output().expect("rankrun can be started");
        last = String::from_utf8([asked.stdout, asked.stderr].concat()).expect("text");
        let line = last.lines().find(|line| line.contains(&why))?;
        (line.contains(" 1 ") && last.contains("MPI_Barrier")).then_some(())
    });
    assert!(is_seen.is_some(), "{last}{}", String::from_utf8_lossy(&running.stderr_so_far()));
    for _ in 0..full_scale(40, 4) {
        let began = monotonic();
        let told = String::from_utf8(ask(&["stacks", &job])).expect("text");
        let took = monotonic().saturating_sub(began);
        assert!(took <= in_time(Duration::from_secs(3)), "{took:?}\n{told}");
        assert!(told.contains(&why) && told.contains("MPI_Barrier"), "{told}");
        assert!(!told.contains("odd "), "{told}");
    }
    let began = monotonic();
    let table: Value = serde_json::from_slice(&ask(&["stacks", &job, "--json"])).expect("JSON");
    assert!(monotonic().saturating_sub(began) <= in_time(Duration::from_secs(3)));
    assert_eq!(table["table"]["odd"], Value::Array(Vec::new()));
    File::create(&go).expect("the directory is ours");
    // No look holds up the end.
    let ended = running.finish(Duration::from_secs(20));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    fs::remove_dir_all(&directory).expect("the directory is ours");
}

#[test]
fn looks_at_a_polling_rank_under_strace_are_quick() {
    look_at_traced_rank("strace", "strace -f -o /dev/null");
}

#[test]
fn looks_at_a_polling_rank_under_gdb_are_quick() {
    look_at_traced_rank("gdb", "gdb -q -batch -ex run --args");
}
