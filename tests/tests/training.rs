//! Trainings whose ranks fail at random, with real torch and real MPI: they reach their last step with the right loss.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::evidence::Class;
use rankrun_tests::failures::MemoryCgroup;
use rankrun_tests::{Ended, Environment, Job, Random, full_scale, scratch, seeds, skip};

/// Memory of a rank that is to have too little: more than it has when it enters the cgroup counts from there.
const MEMORY: u64 = 64 << 20;

/// Each attempt imports torch in four processes, on a busy machine in a minute.
const ATTEMPT: Duration = Duration::from_secs(120);

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests have a directory of their own").to_owned()
}

fn program(name: &str) -> String {
    repository().join("tests/programs/restart").join(name).display().to_string()
}

/// What happens to a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Kill,
    Exception,
    Stop,
    Exit,
    Memory,
}

impl Fate {
    fn word(self) -> &'static str {
        match self {
            Fate::Kill => "kill",
            Fate::Exception => "exception",
            Fate::Stop => "stop",
            Fate::Exit => "exit",
            Fate::Memory => "memory",
        }
    }

    /// An exception in one rank of MPI gets it into MPI_Finalize, where it waits for the others.
    fn class(self, is_mpi: bool) -> Class {
        match self {
            Fate::Kill => Class::Signal,
            Fate::Exception if is_mpi => Class::StuckInFinalize,
            Fate::Exception => Class::Exception,
            Fate::Stop => Class::Stopped,
            Fate::Exit => Class::ExitCode,
            Fate::Memory => Class::OutOfMemory,
        }
    }
}

/// One failure for each attempt but the last.
struct Fault {
    rank: u64,
    fate: Fate,
    word: String,
}

/// The faults of a seed: every fate in turn, the rest by chance.
fn faults(seed: u64, count: u64, ranks: u64, fates: &[Fate]) -> Vec<Fault> {
    let mut random = Random::new(seed);
    let mut fault = |attempt: u64| {
        let fate = fates[attempt as usize % fates.len()];
        // Rank 0 writes a checkpoint after the second and the fourth step of an attempt.
        let (rank, step, place) = match random.below(4) {
            0 => (0, 2 + 2 * random.below(2), "-save"),
            _ => (random.below(ranks), random.below(5), ""),
        };
        Fault { rank, fate, word: format!("{attempt}:{rank}:{step}:{}{place}", fate.word()) }
    };
    (0..count).map(&mut fault).collect()
}

/// Trains without failures, then with them: the results are the same to the last bit.
fn trains(environment: &str, name: &str, ranks: u64) {
    let Some(environment) = Environment::find(environment) else { return };
    let memory = MemoryCgroup::new(MEMORY);
    let mut fates = vec![Fate::Kill, Fate::Exception, Fate::Stop, Fate::Exit];
    match &memory {
        Some(_) => fates.push(Fate::Memory),
        None => skip("a memory cgroup (v1) cannot be made here"),
    }
    let count = full_scale(20, fates.len() as u64);
    let (seed, steps) = (*seeds(1).start(), (5 * count + 10).to_string());
    let faults = faults(seed, count, ranks, &fates);
    let train = |words: &[&str], bound: Duration| {
        let directory = scratch();
        let (ranks, restarts) = (ranks.to_string(), count.to_string());
        let mut arguments = vec!["-n", &ranks, "--max-restarts", &restarts, "--backoff", "0..10ms", "--grace", "2s"];
        let (python, script) = (environment.program("python3"), program(name));
        // Ranks that are forked from one interpreter compute the same, to the last bit.
        if name == "train_torch.py" && !words.is_empty() {
            arguments.extend(["--preload", "torch"]);
        }
        arguments.extend([&*python, &*script, &*steps]);
        arguments.extend(words);
        let job = Job::new(arguments)
            .env("PYTHONPATH", repository().join("python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("MEMORY_CGROUP", memory.as_ref().map_or("", MemoryCgroup::path))
            .current_dir(&directory)
            .bound(bound);
        let (ended, report) = job.run_with_report();
        fs::remove_dir_all(directory).expect("it is ours");
        assert_eq!(ended.code, Some(0), "RANKRUN_TEST_SEED={seed}: {words:?}\n{}", ended.stderr_text());
        (ended, report)
    };
    let (unharmed, _) = train(&[], ATTEMPT);
    let words: Vec<&str> = faults.iter().map(|fault| fault.word.as_str()).collect();
    let (harmed, report) = train(&words, ATTEMPT * (count as u32 + 1));
    let text = format!("RANKRUN_TEST_SEED={seed}: {words:?}\n{}", harmed.stderr_text());
    assert!(unharmed.stdout_text().contains("\"loss\""), "{}", unharmed.stdout_text());
    assert_eq!(harmed.stdout_text(), unharmed.stdout_text(), "{text}");
    assert_eq!(report.attempts.len(), faults.len(), "{text}");
    let is_mpi = name == "train_mpi.py";
    for (past, fault) in report.attempts.iter().zip(&faults) {
        let told = (past.rank.map(|rank| u64::from(rank.number())), past.class);
        assert_eq!(told, (Some(fault.rank), Some(fault.fate.class(is_mpi))), "attempt {}: {text}", past.attempt);
    }
}

#[test]
fn a_torch_training_whose_ranks_fail_at_random_ends_with_the_right_loss() {
    // Each attempt imports torch in all of them, which is most of the time.
    trains("torch", "train_torch.py", full_scale(4, 2));
}

#[test]
fn an_mpich_training_whose_ranks_fail_at_random_ends_with_the_right_loss() {
    trains("mpich", "train_mpi.py", 4);
}

#[test]
fn an_open_mpi_training_whose_ranks_fail_at_random_ends_with_the_right_loss() {
    trains("openmpi", "train_mpi.py", 4);
}

/// Scripts of accelerate and Lightning, as they are written for torchrun.
#[test]
fn trainings_of_frameworks_go_on_from_their_checkpoints() {
    let (Some(torch), Some(trainers)) = (Environment::find("torch"), Environment::find("trainers")) else { return };
    let trainers = PathBuf::from(trainers.program("python3"));
    let version = "import sysconfig; print(sysconfig.get_path('platlib'))";
    let output = std::process::Command::new(trainers).args(["-c", version]).output().expect("Python runs");
    let packages = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let bin = PathBuf::from(torch.program("python3")).parent().expect("a directory").to_owned();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    for (name, told) in [
        ("accelerate_train.py", "from 2: 2 processes, loss 0.06956\n"),
        ("lightning_train.py", "from a checkpoint: True, 2 processes, epoch 4\n"),
    ] {
        let directory = scratch();
        let words = ["torchrun", "--nproc-per-node", "2", "--max-restarts", "1"];
        let job = Job::new(words.into_iter().chain([&*program(name)]))
            .env("PYTHONPATH", &packages)
            .env("PATH", &path)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir(&directory);
        let ended = job.bound(3 * ATTEMPT).run();
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(0), "{name}: {text}");
        assert!(ended.stdout_text().ends_with(told), "{name}: {}{text}", ended.stdout_text());
        assert!(text.contains("rank 1 failed: ValueError: bad batch"), "{name}: {text}");
        fs::remove_dir_all(directory).expect("it is ours");
    }
}

/// torchrun's store keeps the addresses of the first attempt, to which a rank that is early then connects.
#[test]
fn gloo_ranks_that_come_up_seconds_apart_after_a_restart_meet() {
    let Some(environment) = Environment::find("torch") else { return };
    let python = environment.program("python3");
    for round in 0..full_scale(25, 1) {
        // Two jobs at a time, which are not to take each other's port either.
        let start = |late: usize| {
            let late = late.to_string();
            let words = ["-n", "2", "--restart", "1", &python, &program("apart.py"), "4", &late];
            Job::new(words).env("PYTHONDONTWRITEBYTECODE", "1").start()
        };
        for (job, late) in [start(round % 2), start((round + 1) % 2)].into_iter().zip([0, 1]) {
            let ended = job.finish(2 * ATTEMPT);
            let text = ended.stderr_text();
            assert_eq!(ended.code, Some(0), "round {round}, job {late}: {text}");
            for rank in 0..2 {
                let line = format!("rank {rank} attempt 1 sum 21\n");
                assert!(ended.stdout_text().contains(&line), "round {round}: {}{text}", ended.stdout_text());
            }
        }
    }
}

/// Rank 0 listens on the job's port, which `--torch-store rank0` leaves to it, and the others ask it which job it is.
const MEET: &str = "
import os, socket, sys
own = (os.environ['RANKRUN_JOB_ID'] + ' ' + os.environ['RANKRUN_ATTEMPT']).encode()
place = ('127.0.0.1', int(os.environ['MASTER_PORT']))
if os.environ['RANK'] == '0':
    listener = socket.create_server(place)
    print('port', place[1], flush=True)
    for _ in range(2):
        with listener.accept()[0] as peer:
            peer.sendall(own)
else:
    while True:
        try:
            with socket.create_connection(place, 20) as peer:
                other = peer.recv(100)
            break
        except ConnectionRefusedError:
            pass
    assert other == own, (other, own)
sys.exit(3 if os.environ['RANKRUN_ATTEMPT'] < '3' else 0)
";

#[test]
fn concurrent_jobs_that_are_restarted_never_take_each_others_port() {
    for round in 0..full_scale(50, 5) {
        let options =
            ["-n", "3", "--max-restarts", "3", "--backoff", "0..10ms", "--linger", "0", "--torch-store", "rank0"];
        let words = options.iter().copied().chain(["--keep-going", "python3", "-c", MEET]);
        let jobs: Vec<_> = (0..2).map(|_| Job::new(words.clone()).start()).collect();
        let ended: Vec<Ended> = jobs.into_iter().map(|job| job.finish(ATTEMPT)).collect();
        for ended in &ended {
            assert_eq!(ended.code, Some(0), "round {round}: {}", ended.stderr_text());
            assert_eq!(ended.stdout_text().lines().count(), 4, "round {round}: {}", ended.stdout_text());
        }
    }
}
