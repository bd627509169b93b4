//! With which signals ranks are ended, and how much time they have (docs/signals.md).

use std::fs;
use std::path::Path;
use std::time::Duration;

use rankrun_core::Rank;
use rankrun_core::report::Report;
use rankrun_core::verdict::Fate;
use rankrun_tests::{Ended, Environment, Job, Running, Tier, processes, scratch};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(60);

fn program() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/stops/rank.py").display().to_string()
}

/// The job, with a report in a directory of its own.
struct Reported {
    running: Running,
    directory: std::path::PathBuf,
}

impl Reported {
    /// Starts a job, and waits until these ranks are up.
    fn start(tier: Tier, arguments: &[&str], up: &[u32]) -> Reported {
        let directory = scratch();
        let options = ["--report-dir", directory.to_str().expect("text")];
        let job = Job::new(options.iter().chain(arguments)).tier(tier).env("PYTHONDONTWRITEBYTECODE", "1");
        let running = job.start();
        for rank in up {
            running.wait_for_file(&format!("{rank}.up"));
        }
        Reported { running, directory }
    }

    fn finish(self) -> (Ended, Report) {
        let ended = self.running.finish(BOUND);
        let json = fs::read_to_string(self.directory.join("report.json"))
            .unwrap_or_else(|error| panic!("no report: {error}; {}", ended.stderr_text()));
        fs::remove_dir_all(&self.directory).expect("the directory is ours");
        (ended, serde_json::from_str(&json).expect("the report is read with the types that it was written with"))
    }
}

/// What a rank of the program has said, in order.
fn said(ended: &Ended, rank: u32) -> Vec<String> {
    let prefix = format!("rank {rank}: ");
    ended.stdout_text().lines().filter_map(|line| line.strip_prefix(&prefix)).map(str::to_owned).collect()
}

fn fates(report: &Report) -> Vec<Fate> {
    report.ranks.iter().map(|rank| rank.fate).collect()
}

#[test]
fn an_interrupted_python_rank_runs_its_except_finally_and_atexit() {
    for tier in Tier::sampled() {
        let job = Reported::start(tier, &["-n", "2", "python3", &program(), "interrupted"], &[0, 1]);
        processes::send(job.running.front(), Signal::INT);
        let (ended, report) = job.finish();
        let text = ended.stderr_text();
        for rank in [0, 1] {
            assert_eq!(said(&ended, rank), ["KeyboardInterrupt", "finally", "atexit"], "{text}");
        }
        assert_eq!(ended.signal, Some(2), "{text}");
        assert_eq!(fates(&report), [Fate::EndedByRankrun; 2], "{text}");
        let line = "rankrun: interrupt: stopping 2 ranks (SIGINT, then SIGTERM after 2 s, SIGKILL after 25 s); ^C again kills now";
        assert!(text.lines().any(|said| said == line), "{text}");
    }
}

#[test]
fn ranks_get_the_signal_that_rankrun_got_and_then_sigterm() {
    for (signal, expected) in
        [(Signal::INT, &["SIGINT", "SIGTERM"][..]), (Signal::HUP, &["SIGHUP", "SIGTERM"]), (Signal::TERM, &["SIGTERM"])]
    {
        let tier = Tier::available()[0];
        let arguments = ["-n", "2", "--grace", "2s", "python3", &program(), "note", "SIGTERM"];
        let job = Reported::start(tier, &arguments, &[0, 1]);
        processes::send(job.running.front(), signal);
        let (ended, _) = job.finish();
        assert_eq!(said(&ended, 0), expected, "{}", ended.stderr_text());
        assert_eq!(said(&ended, 1), expected, "{}", ended.stderr_text());
        assert_eq!(ended.signal, Some(signal.as_raw()), "{}", ended.stderr_text());
    }
}

#[test]
fn a_rank_that_ends_by_no_signal_is_killed_at_the_end_of_the_grace() {
    for tier in Tier::sampled() {
        let job = Reported::start(tier, &["-n", "1", "--grace", "1s", "python3", &program(), "note", ""], &[0]);
        processes::send(job.running.front(), Signal::INT);
        let (ended, report) = job.finish();
        assert_eq!(said(&ended, 0), ["SIGINT", "SIGTERM"], "{}", ended.stderr_text());
        assert_eq!(fates(&report), [Fate::EndedByRankrun], "{}", ended.stderr_text());
    }
}

#[test]
fn the_stop_signal_is_the_first_one_after_a_failure_too() {
    let ranks = ["-n", "1", "python3", &program(), "fail", ":", "-n", "1", "python3", &program(), "note", "SIGTERM"];
    let arguments: Vec<&str> = ["--stop-signal", "USR1", "--grace", "2s"].iter().chain(&ranks).copied().collect();
    let (ended, report) = Reported::start(Tier::available()[0], &arguments, &[]).finish();
    assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
    assert_eq!(said(&ended, 1), ["SIGUSR1", "SIGTERM"], "{}", ended.stderr_text());
    assert_eq!(report.culprit.map(|culprit| culprit.rank), Some(Rank(0)), "{}", ended.stderr_text());
}

#[test]
fn an_interrupted_mpi_job_cleans_up_and_ends_although_a_rank_is_blocked_in_mpi() {
    for name in ["mpich", "impi-rt"] {
        let Some(environment) = Environment::find(name) else { continue };
        let arguments = ["-n", "3", &environment.program("python"), &program(), "mpi"];
        let job = Reported::start(Tier::available()[0], &arguments, &[0, 1, 2]);
        processes::send(job.running.front(), Signal::INT);
        let (ended, _) = job.finish();
        assert_eq!(said(&ended, 0), ["KeyboardInterrupt", "finally", "atexit"], "{}", ended.stderr_text());
        assert_eq!(ended.signal, Some(2), "{}", ended.stderr_text());
    }
}

#[test]
fn a_rank_that_is_still_alive_is_named_once_after_a_while() {
    let arguments = ["-n", "2", "--grace", "8s", "python3", &program(), "note", ""];
    let job = Reported::start(Tier::available()[0], &arguments, &[0, 1]);
    processes::send(job.running.front(), Signal::INT);
    let (ended, _) = job.finish();
    let text = ended.stderr_text();
    let named = text.lines().filter(|line| line.starts_with("rankrun: still alive: ranks 0-1; SIGKILL in ")).count();
    assert_eq!(named, 1, "{text}");
}

/// A job whose rank 0 fails when rank 1 is up, and rank 1 runs the program in this mode.
fn failing(tier: Tier, options: &[&str], mode: &[&str]) -> (Ended, Report) {
    let program = program();
    let mut arguments = options.to_vec();
    arguments.extend(["-n", "1", "python3", &program, "fail", ":", "-n", "1", "python3", &program]);
    arguments.extend(mode);
    Reported::start(tier, &arguments, &[]).finish()
}

#[test]
fn after_a_failure_a_rank_that_saves_has_longer_than_one_that_ignores_the_signal() {
    let disk = scratch();
    let memory = Path::new("/dev/shm").join(disk.file_name().expect("it has one"));
    fs::create_dir(&memory).expect("/dev/shm can be written");
    for tier in Tier::sampled() {
        for directory in [&disk, &memory] {
            let mode = ["save", directory.to_str().expect("text"), "5"];
            let (ended, report) = failing(tier, &["--grace", "2s"], &mode);
            let text = ended.stderr_text();
            assert_eq!(ended.code, Some(3), "{text}");
            assert_eq!(said(&ended, 1), ["saved"], "{}: {text}", directory.display());
            assert_eq!(report.ranks[1].how.as_deref(), Some("exited 0 on SIGTERM"), "{text}");
            assert!(
                text.contains("rankrun: rank 1 is still writing files, for 27 s at most (--grace-saving)"),
                "{text}"
            );
        }
    }
    for directory in [disk, memory] {
        fs::remove_dir_all(directory).expect("it is ours");
    }
    let (ended, report) = failing(Tier::available()[0], &["--grace", "2s", "--output", "none"], &["chatter"]);
    assert_eq!(report.ranks[1].fate, Fate::EndedByRankrun, "{}", ended.stderr_text());
    assert!(!ended.stderr_text().contains("writing files"), "{}", ended.stderr_text());
}

#[test]
fn nobody_has_longer_where_no_grace_for_saving_is_given() {
    let directory = scratch();
    let mode = ["save", directory.to_str().expect("text"), "600"];
    let (ended, report) = failing(Tier::available()[0], &["--grace", "1s", "--grace-saving", "0"], &mode);
    fs::remove_dir_all(directory).expect("it is ours");
    assert_eq!(report.ranks[1].fate, Fate::EndedByRankrun, "{}", ended.stderr_text());
    assert_eq!(said(&ended, 1), [""; 0]);
}
