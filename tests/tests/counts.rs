//! What a start costs, in numbers that do not depend on how busy the machine is. A bound may rise only with a reason in the commit.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rankrun_sys::proc;
use rankrun_tests::{Job, Tier, pause, processes, rankrun, scratch, wait_until};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(60);

/// What strace has seen of a job, the program of the rank included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Counts {
    calls: usize,
    /// Processes and threads that were made.
    clones: usize,
    threads: usize,
    /// Programs that were executed.
    programs: usize,
    /// Names that were made in file systems: files, directories, sockets, cgroups.
    names: usize,
}

/// rankrun, in an environment that is the same everywhere, with its streams on /dev/null.
fn job(program: impl AsRef<std::ffi::OsStr>, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", home).current_dir(home);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Of several jobs that with the fewest calls.
fn counted(ranks: usize) -> Counts {
    (0..5).map(|_| counted_once(ranks)).min_by_key(|counts| counts.calls).expect("five")
}

fn counted_once(ranks: usize) -> Counts {
    let home = scratch();
    // A file for each process: in one file of all a call's result may stand on another line than its name.
    let traces = home.join("traces");
    std::fs::create_dir(&traces).expect("it is ours");
    let mut strace = job("strace", &home);
    strace.args(["-ff", "-o"]).arg(traces.join("of")).arg(rankrun());
    // Each file that other programs have in /dev/shm costs a call, and each that they make a look at all: twenty calls where there are none.
    let status = strace.args(["-n", &ranks.to_string(), "--oversubscribe", "--clean-shm", "no", "/bin/true"]).status();
    assert!(status.expect("strace can be started").success());
    let files = std::fs::read_dir(&traces).expect("strace has written");
    let trace = |file: std::io::Result<std::fs::DirEntry>| {
        without_loader(&std::fs::read_to_string(file.expect("it is ours").path()).expect("it is ours"))
    };
    let trace: String = files.map(trace).collect();
    let call = |line: &'_ str| {
        let (name, rest) = line.split_once('(')?;
        let is_call = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        is_call.then(|| (name.to_owned(), rest.to_owned()))
    };
    let calls: Vec<(String, String)> = trace.lines().filter_map(call).collect();
    let count =
        |is_wanted: &dyn Fn(&str, &str) -> bool| calls.iter().filter(|(name, rest)| is_wanted(name, rest)).count();
    let is_clone = |name: &str| ["clone", "clone3", "fork", "vfork"].contains(&name);
    let is_name = |name: &str, rest: &str| match name {
        "mkdir" | "mkdirat" | "symlink" | "symlinkat" | "link" | "linkat" | "rename" | "renameat2" => {
            !rest.contains("EEXIST")
        }
        "open" | "openat" | "openat2" => rest.contains("O_CREAT"),
        "bind" => rest.contains("AF_UNIX"),
        _ => false,
    };
    let counts = Counts {
        calls: calls.len(),
        clones: count(&|name, _| is_clone(name)),
        threads: count(&|name, rest| is_clone(name) && rest.contains("CLONE_THREAD")),
        programs: count(&|name, rest| name == "execve" && rest.ends_with(" = 0")),
        names: count(&is_name),
    };
    std::fs::remove_dir_all(home).expect("it is ours");
    counts
}

/// Without what the dynamic linker does between a program's exec and its first own call: for a binary that also runs with old versions of
/// glibc that is twice as much. It begins with `/etc/ld.so.cache`, and ends when that is unmapped.
fn without_loader(trace: &str) -> String {
    let mut own = String::new();
    // What is to be mapped, or unmapped.
    let mut until: Option<String> = None;
    for line in trace.lines() {
        match &until {
            None if line.starts_with("openat(AT_FDCWD, \"/etc/ld.so.cache\"") => until = Some("mmap(".to_owned()),
            None => own.extend([line, "\n"]),
            Some(call) if !line.starts_with(call) => {}
            Some(call) if call == "mmap(" => {
                let address = line.rsplit_once(" = ").expect("it has a result").1;
                until = Some(format!("munmap({address},"));
            }
            Some(_) => until = None,
        }
    }
    assert!(until.is_none(), "the list of libraries stays mapped: {trace}");
    own
}

/// The fewest minor page faults and voluntary context switches of forty jobs, all processes together. How often the kernel takes the CPU
/// away is the machine's mood.
fn least(ranks: usize) -> [usize; 2] {
    let home = scratch();
    // The kernel maps a file that was just written to a disk in larger pieces than one that was read from there: a hundred faults fewer.
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("rankrun-{}-{ranks}", std::process::id()));
    std::fs::copy(rankrun(), &program).expect("it can be copied");
    let script = "import resource, subprocess, sys
def used():
    it = resource.getrusage(resource.RUSAGE_CHILDREN)
    return it.ru_minflt, it.ru_nvcsw
runs = []
for run in range(40):
    before = used()
    subprocess.run(sys.argv[1:], check=True)
    runs.append([after - before for after, before in zip(used(), before)])
print(*map(min, zip(*runs)))";
    let mut python = job("python3", &home);
    python.args(["-c", script]).arg(&program).args(["-n", &ranks.to_string(), "--oversubscribe", "/bin/true"]);
    let output = python.stdout(Stdio::piped()).output().expect("Python can be started");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("ASCII");
    let numbers: Vec<usize> = text.split_ascii_whitespace().map(|word| word.parse().expect("a number")).collect();
    std::fs::remove_file(program).expect("it is ours");
    std::fs::remove_dir_all(home).expect("it is ours");
    numbers.try_into().expect("two numbers")
}

#[test]
fn one_rank_costs_as_many_calls_processes_threads_and_names() {
    // The hook is laid out once for a user, by the first.
    let Counts { calls, clones, threads, programs, names } = counted(1);
    // Longer lists of mounts and cgroups on another machine cost 15.
    assert!(calls <= 430, "{calls} calls");
    assert_eq!(programs, 2, "rankrun and the rank's");
    // Guard, agent, rank, and the thread that starts it.
    assert!((clones, threads) <= (4, 1), "{clones} clones, {threads} threads");
    // The user's directory, or a try to make it; the job's with two sockets; its cgroup and that of the rank.
    assert!(names <= 6, "{names} names");
}

#[test]
fn a_further_rank_costs_as_many_calls() {
    let (one, many) = (counted(1), counted(17));
    let further = (many.calls - one.calls) / 16;
    assert!(further <= 76, "{further} calls: {one:?}, {many:?}");
    assert!(many.names - one.names <= 16, "{} names", many.names);
}

#[test]
fn one_rank_costs_as_many_page_faults_and_context_switches() {
    let [faults, switches] = least(1);
    let [of_many, _] = least(17);
    let further = (of_many - faults) / 16;
    // The binary for old versions of glibc: 25 more. How many pages a fault maps is the kernel's matter, and which of them lie beside each
    // other the linker's: the same calls made 532 to 543 with binaries of the same size.
    assert!(faults <= 555, "{faults} faults");
    // Of which one is the agent's, which waits for the plan while the front makes it. Where the kernel puts the processes decides on two or three.
    assert!(switches <= 18, "{switches} context switches");
    assert!(further <= 65, "{further} faults");
}

/// An agent that waits for processes to end waits: it took 85 % of a CPU from those that it had given the time to save their work.
#[test]
fn an_agent_that_waits_in_a_grace_uses_no_cpu() {
    for tier in Tier::available() {
        let script = "(trap '' TERM; touch $RANKRUN_TEST_DIR/up; while :; do sleep 0.2; done) & \
            until [ -e $RANKRUN_TEST_DIR/up ]; do sleep 0.05; done; exit 3";
        let words = ["-n", "2", "--grace", "8s", "--linger", "0", "sh", "-c", script];
        let running = Job::new(words).tier(tier).start();
        running.wait_for_file("up");
        let leaders = || running.processes().iter().filter(|it| it.name == "sh" && it.state == 'Z').count();
        let ranks = || running.processes().iter().filter(|it| it.name == "sh").count();
        assert!(wait_until(BOUND, || (leaders() == 0 && ranks() <= 2).then_some(())).is_some(), "the leaders end");
        let used = || proc::run_time(running.agent()).expect("it lives");
        let before = used();
        pause(Duration::from_secs(3));
        let used = Duration::from_nanos(used() - before);
        processes::send(running.front(), Signal::TERM);
        processes::send(running.front(), Signal::TERM);
        let ended = running.finish(BOUND);
        assert!(used < Duration::from_millis(600), "{tier:?}: {used:?} of 3 s; {}", ended.stderr_text());
    }
}
