//! A file system that never answers, and leaves whoever asks it in state D: it costs what was to be written there, and no more.
//! The caller has the exit code soon after the job's end, what is healthy is written, and the path that did not answer is named.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rankrun_tests::{Ended, Job, compile, rankrun, skip};

/// What may pass between the job's end, which comes at once, and the exit code.
const BOUND: Duration = Duration::from_secs(10);

/// A directory, and in it `dead`, on which the program mounts the file system.
struct Dead {
    program: PathBuf,
    top: tempfile::TempDir,
}

impl Dead {
    fn new() -> Option<Dead> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/dead_fs.c");
        let program = compile("cc", &["-O1", "-Wall"], &source, "dead_fs");
        let top = tempfile::tempdir().expect("the temporary directory can be written");
        let dead = Dead { program, top };
        fs::create_dir(dead.path()).expect("the directory is ours");
        let probe = Command::new(&dead.program).arg("-r").arg(dead.path()).arg("true").output();
        let probe = probe.expect("the program can be started");
        if !probe.status.success() {
            skip(&format!("no FUSE file system can be mounted: {}", String::from_utf8_lossy(&probe.stderr)));
            return None;
        }
        Some(dead)
    }

    fn path(&self) -> PathBuf {
        self.top.path().join("dead")
    }

    /// A path below it, as text.
    fn file(&self, name: &str) -> String {
        self.path().join(name).display().to_string()
    }

    /// The words that start rankrun with these arguments.
    fn words(&self, arguments: &[&str]) -> Vec<String> {
        let (dead, rankrun) = (self.path().display().to_string(), rankrun().display().to_string());
        let arguments = arguments.iter().map(|&word| word.to_owned());
        ["-r".to_owned(), dead, rankrun].into_iter().chain(arguments).collect()
    }

    fn job(&self, arguments: &[&str]) -> Job {
        Job::of_program(&self.program, self.words(arguments))
    }
}

/// Runs a job that ends at once. The file system goes 3 s later, and with it what has stayed.
fn finish(job: Job) -> Ended {
    let ended = job.start().finish(BOUND + Duration::from_secs(10));
    assert!(ended.elapsed() < BOUND, "{:?}: {}", ended.elapsed(), ended.stderr_text());
    ended
}

const FAILS: [&str; 5] = ["-n", "2", "/bin/sh", "-c", "exit 3"];

#[test]
fn the_exit_code_comes_in_time_whichever_place_does_not_answer() {
    let Some(dead) = Dead::new() else { return };
    let logs = dead.top.path().join("logs");
    fs::create_dir(&logs).expect("the directory is ours");
    std::os::unix::fs::symlink(dead.path().join("x"), logs.join("rank-0000.stdout")).expect("the directory is ours");
    let (report, progress, state) = (dead.file("report"), dead.file("progress"), dead.file("state"));
    let writes = ["-n", "2", "/bin/sh", "-c", "echo x; exit 3"];
    let with = |options: &[&'static str], values: &[&str], command: &[&str]| {
        let options = options.iter().copied().zip(values.iter().copied()).flat_map(|(name, value)| [name, value]);
        dead.job(&options.chain(command.iter().copied()).collect::<Vec<_>>())
    };
    let logs = logs.display().to_string();
    // The job; whether its report is on a healthy disk; the path that does not answer.
    let cases = [
        (with(&[], &[], &FAILS).env("HOME", dead.path()).env_remove("XDG_STATE_HOME"), false, "/.local/state"),
        (with(&[], &[], &FAILS).env("XDG_STATE_HOME", &state), false, "/state"),
        (with(&["--report-dir"], &[&report], &FAILS), false, "/report"),
        (with(&["--progress-file", "--restart"], &[&progress, "1"], &FAILS), true, "/progress"),
        (with(&[], &[], &FAILS).env("TORCHELASTIC_ERROR_FILE", dead.file("error")), true, "/error"),
        (with(&[], &[], &FAILS).env("TMPDIR", dead.path()), true, ""),
        (with(&["--log-dir", "--drain"], &[&logs, "1s"], &writes), true, "rank-0000.stdout"),
    ];
    // They wait more than they work.
    std::thread::scope(|scope| {
        for (job, has_report, blamed) in cases {
            scope.spawn(move || {
                let ended = finish(job);
                let text = ended.stderr_text();
                assert_eq!(ended.code, Some(3), "{blamed}: {text}");
                assert_eq!(text.contains("cannot write the report"), !has_report, "{blamed}: {text}");
                let is_blamed = |line: &str| line.contains(blamed) && line.contains("answer");
                assert!(blamed.is_empty() || text.lines().any(is_blamed), "{blamed}: {text}");
            });
        }
    });
}

#[test]
fn a_journal_that_cannot_be_opened_names_its_path_and_leaves_no_process() {
    let Some(dead) = Dead::new() else { return };
    let journal = dead.file("journal");
    let ended = finish(dead.job(&[&["--journal", &journal, "--drain", "1s"], &FAILS[..]].concat()));
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(2), "{text}");
    assert!(text.contains(&format!("cannot write the journal to \"{journal}\": no answer")), "{text}");
}

#[test]
fn a_working_directory_that_stops_answering_costs_nothing() {
    let Some(dead) = Dead::new() else { return };
    let stop = dead.top.path().join("stop").display().to_string();
    let script = format!("echo > {stop}; exit 3");
    let words = dead.words(&["-n", "1", "/bin/sh", "-c", &script]);
    let words = [&["-r".to_owned(), "-w".to_owned(), stop.clone()], &words[1..]].concat();
    let ended = finish(Job::of_program(&dead.program, words));
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(3), "{text}");
    assert!(!text.contains("cannot write"), "{text}");
}

/// What stays in state D holds none of the streams that the caller reads to their end.
#[test]
fn a_caller_that_reads_all_output_is_not_held_up_either() {
    let Some(dead) = Dead::new() else { return };
    let begun = Instant::now();
    let output = Command::new(&dead.program).args(dead.words(&FAILS)).env("XDG_STATE_HOME", dead.path()).output();
    let output = output.expect("the program can be started");
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    // The mount is gone 3 s later than the job, and with it what has stayed.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// Storage processes are for jobs that have something to write: the commonest job has none.
#[test]
fn a_job_that_succeeds_starts_no_storage_process() {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let trace = directory.path().join("trace").display().to_string();
    let count = |script: &str| {
        let rankrun = rankrun().display().to_string();
        let words = ["-f", "-qq", "-e", "trace=execve", "-o", &trace, &rankrun, "-n", "1", "sh", "-c", script];
        let output = Command::new("strace").args(words).env("XDG_STATE_HOME", directory.path()).output();
        output.expect("strace can be started");
        let calls = fs::read_to_string(&trace).expect("strace has written");
        calls.lines().filter(|line| line.contains("\"storage\"")).count()
    };
    assert_eq!([count("true"), count("exit 3")], [0, 1]);
}
