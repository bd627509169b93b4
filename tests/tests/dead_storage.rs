//! A file system that never answers, and leaves whoever asks it in state D: it costs what was to be written there, and no more.
//! The caller has the exit code soon after the job's end, what is healthy is written, and the path that did not answer is named.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rankrun_core::report::Report;
use rankrun_tests::{Ended, Job, compile, full_scale, rankrun, skip, slowness};

/// What may pass between the job's end, which comes at once, and the exit code. On a loaded machine a little more.
fn bound() -> Duration {
    Duration::from_secs(10) + Duration::from_secs(2) * (slowness() - 1)
}

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
        for name in ["dead", "report", "logs"] {
            fs::create_dir(dead.healthy(name)).expect("the directory is ours");
        }
        let probe = Command::new(&dead.program).arg("-r").arg(dead.path()).arg("true").output();
        let probe = probe.expect("the program can be started");
        if !probe.status.success() {
            skip(&format!("no FUSE file system can be mounted: {}", String::from_utf8_lossy(&probe.stderr)));
            return None;
        }
        Some(dead)
    }

    fn path(&self) -> PathBuf {
        self.healthy("dead")
    }

    /// A path beside it, on a healthy disk.
    fn healthy(&self, name: &str) -> PathBuf {
        self.top.path().join(name)
    }

    /// A path below it, as text.
    fn file(&self, name: &str) -> String {
        self.path().join(name).display().to_string()
    }

    /// A directory for log files on a healthy disk; the log file of rank 0 is a symbolic link to a dead one.
    fn logs(&self) -> String {
        let logs = self.healthy("logs");
        fs::remove_dir_all(&logs).and_then(|()| fs::create_dir(&logs)).expect("it is ours");
        std::os::unix::fs::symlink(self.path().join("x"), logs.join("rank-0000.stdout")).expect("it is ours");
        logs.display().to_string()
    }

    /// A job whose file system is as these options say, with its report on a healthy disk.
    fn job_with(&self, options: &[&str], arguments: &[&str]) -> Job {
        let (dead, rankrun) = (self.path().display().to_string(), rankrun().display().to_string());
        let words = [&["-r"], options, &[dead.as_str(), rankrun.as_str()], arguments].concat();
        Job::of_program(&self.program, words).env("XDG_STATE_HOME", self.healthy("report"))
    }

    fn job(&self, arguments: &[&str]) -> Job {
        self.job_with(&[], arguments)
    }

    /// A job during which the file system is mounted over a healthy directory: a rank that runs `script` has it dead before its end.
    fn job_that_loses(&self, arguments: &[&str], end: &str) -> Job {
        let stop = self.healthy("stop").display().to_string();
        let script = format!("touch {stop}; while [ -e {stop} ]; do sleep 0.02; done; {end}");
        self.job_with(&["-l", &stop], &[arguments, &["/bin/sh", "-c", &script]].concat())
    }

    /// The only report in the healthy directory.
    fn report(&self) -> Report {
        let jobs = self.healthy("report/rankrun");
        let jobs: Vec<_> = fs::read_dir(jobs).expect("a report is there").flatten().collect();
        let [job] = &jobs[..] else { panic!("{jobs:?}") };
        let json = fs::read(job.path().join("report.json")).expect("the report is there");
        fs::remove_dir_all(job.path()).expect("it is ours");
        serde_json::from_slice(&json).expect("it is whole")
    }
}

/// Runs a job that ends at once. The file system goes 3 s later, and with it what has stayed.
fn finish(job: Job) -> Ended {
    let ended = job.start().finish(bound() + Duration::from_secs(10));
    assert!(ended.elapsed() < bound(), "{:?}: {}", ended.elapsed(), ended.stderr_text());
    ended
}

/// A place that does not answer.
struct Case {
    name: &'static str,
    /// The job, which fails with this code.
    make: fn(&Dead) -> Job,
    code: i32,
    /// Whether the report is written; `None`: there is none.
    has_report: Option<bool>,
    /// What the message about it contains; empty: there is none, since nothing is lost.
    blamed: &'static str,
}

const FAILS: [&str; 5] = ["-n", "2", "/bin/sh", "-c", "exit 3"];
const WRITES: [&str; 5] = ["-n", "1", "/bin/sh", "-c", "echo x; exit 3"];

/// The six places of the promise, and others.
const CASES: [Case; 13] = [
    Case {
        name: "HOME",
        make: |dead| dead.job(&FAILS).env("HOME", dead.path()).env_remove("XDG_STATE_HOME"),
        code: 3,
        has_report: Some(false),
        blamed: "/.local/state",
    },
    Case {
        name: "the state directory",
        make: |dead| dead.job(&FAILS).env("XDG_STATE_HOME", dead.file("state")),
        code: 3,
        has_report: Some(false),
        blamed: "/state",
    },
    Case {
        name: "the log directory",
        make: |dead| dead.job(&[&["--log-dir", &dead.path().display().to_string()], &WRITES[..]].concat()),
        // No rank is started.
        code: 2,
        has_report: None,
        blamed: "cannot write log files to",
    },
    Case {
        name: "a log file",
        make: |dead| dead.job(&[&["--log-dir", &dead.logs()], &WRITES[..]].concat()),
        code: 3,
        has_report: Some(true),
        blamed: "rank-0000.stdout",
    },
    Case {
        name: "the report",
        make: |dead| dead.job(&[&["--report-dir", &dead.file("report")], &FAILS[..]].concat()),
        code: 3,
        has_report: Some(false),
        blamed: "/report",
    },
    Case {
        name: "the progress file",
        make: |dead| {
            let progress = dead.file("progress");
            dead.job(&[&["--progress-file", &progress, "--restart", "1"], &FAILS[..]].concat())
        },
        code: 3,
        has_report: Some(true),
        blamed: "/progress",
    },
    Case {
        name: "the working directory, with a core in it",
        make: |dead| dead.job_with(&["-c"], &["-n", "1", "/bin/sh", "-c", "ulimit -c unlimited; kill -SEGV $$"]),
        code: 139,
        has_report: Some(true),
        blamed: "",
    },
    Case {
        name: "TMPDIR",
        make: |dead| {
            // More than is kept in memory.
            let writes = ["--output", "grouped", "-n", "2", "/bin/sh", "-c", "seq 1000000; exit 3"];
            dead.job(&writes).env("TMPDIR", dead.path())
        },
        code: 3,
        has_report: Some(true),
        blamed: "",
    },
    Case {
        name: "XDG_RUNTIME_DIR",
        make: |dead| dead.job(&FAILS).env("XDG_RUNTIME_DIR", dead.path()),
        code: 3,
        has_report: Some(true),
        blamed: "",
    },
    Case {
        name: "the error file of the job",
        make: |dead| dead.job(&FAILS).env("TORCHELASTIC_ERROR_FILE", dead.file("error")),
        code: 3,
        has_report: Some(true),
        blamed: "/error",
    },
    Case {
        name: "the error file of a rank",
        make: |dead| dead.job_that_loses(&["--error-file", &dead.file("error.{rank}"), "-n", "1"], "exit 3"),
        code: 3,
        has_report: Some(true),
        blamed: "/error.0",
    },
    Case {
        name: "the log directory of torchrun, which has error files too",
        make: |dead| {
            let logs = dead.path().display().to_string();
            let words = ["torchrun", "--nproc-per-node", "1", "--log-dir", &logs, "--no-python"];
            dead.job_that_loses(&words, "exit 3")
        },
        code: 3,
        has_report: Some(true),
        blamed: "error.json",
    },
    Case {
        name: "log files and report together",
        make: |dead| {
            let report = dead.file("report");
            dead.job(&[&["--report-dir", &report, "--log-dir", &dead.logs()], &WRITES[..]].concat())
        },
        code: 3,
        has_report: Some(false),
        blamed: "/report",
    },
];

#[test]
#[expect(clippy::print_stdout, reason = "the times are for whoever runs this test alone")]
fn the_exit_code_comes_in_time_whichever_place_does_not_answer() {
    // They wait more than they work. Each has a directory of its own.
    let Some(_) = Dead::new() else { return };
    std::thread::scope(|scope| {
        for case in &CASES {
            scope.spawn(move || {
                let Some(dead) = Dead::new() else { return };
                let times: Vec<Duration> = (0..full_scale(20, 1)).map(|_| check(case, &dead)).collect();
                println!("{}: {} of {}, {:.1?} at most", case.name, times.len(), times.len(), times.iter().max());
            });
        }
    });
}

fn check(case: &Case, dead: &Dead) -> Duration {
    let Case { name, make, code, has_report, blamed } = case;
    let ended = finish(make(dead));
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(*code), "{name}: {text}");
    assert_eq!(text.contains("cannot write the report"), *has_report == Some(false), "{name}: {text}");
    let is_blamed = |line: &str| line.contains(blamed) && line.contains("answer");
    assert!(blamed.is_empty() || text.lines().any(is_blamed), "{name}: {text}");
    assert!(!blamed.is_empty() || !text.contains("cannot write"), "{name}: {text}");
    if *has_report == Some(true) {
        let report = dead.report();
        assert_eq!(i32::from(report.exit_code.0), *code, "{name}");
        assert!(report.left.proven && report.left.processes.is_empty(), "{name}: {:?}", report.left);
    }
    ended.elapsed()
}

/// What is looked at before the job begins has a bound, which is that of the job where it is shorter, and names the path.
#[test]
fn planning_does_not_wait_for_a_file_system_that_does_not_answer() {
    let Some(dead) = Dead::new() else { return };
    let (program, hosts, directory) = (dead.file("program"), dead.file("hosts"), dead.path().display().to_string());
    let hidden = format!("{directory}:/usr/bin:/bin");
    let lookup = |path: &str| format!("cannot look up the program: no answer from \"{path}\" for 1 s");
    let in_time = ["--timeout", "1", "-n", "2"];
    let cases = [
        (dead.job(&[&in_time[..], &[&program]].concat()), 126, lookup(&program)),
        (dead.job(&[&in_time[..], &["env", &program]].concat()), 126, lookup(&program)),
        (dead.job(&[&in_time[..], &["--wdir", &directory, "true"]].concat()), 126, lookup(&directory)),
        (dead.job(&[&in_time[..], &["true"]].concat()).env("PATH", hidden), 126, lookup(&dead.file("true"))),
        // This takes all of the bound.
        (dead.job(&["--hostfile", &hosts, "true"]), 2, format!("cannot read \"{hosts}\": no answer from")),
    ];
    let count = full_scale(cases.len(), cases.len() - 1);
    std::thread::scope(|scope| {
        for (job, code, said) in cases.into_iter().take(count) {
            scope.spawn(move || {
                // Another 10 s for the mount to go.
                let ended = job.start().finish(bound() + Duration::from_secs(15));
                let text = ended.stderr_text();
                assert_eq!(ended.code, Some(code), "{said}: {text}");
                assert!(text.contains(&said), "{said}: {text}");
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

/// A rank without output is asked whether it uses MPI, by the symbols of its program where a segment of a transport is all there is to see.
#[test]
fn a_program_that_cannot_be_read_any_more_does_not_hold_the_job() {
    let Some(dead) = Dead::new() else { return };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/dead_program.c");
    let program = compile("cc", &["-O1", "-Wall", "-Wl,-z,now"], &source, "dead_program").display().to_string();
    let stop = dead.healthy("stop").display().to_string();
    let segment = format!("ucx_shm_posix_{}", std::process::id());
    let options = ["--timeout", "4s", "--grace", "1s", "-n", "2", &dead.file("program"), &stop, &segment, "2"];
    let job = dead.job_with(&["-x", &program, &stop], &options);
    let ended = job.start().finish(bound() + Duration::from_secs(20));
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(124), "{text}");
    assert!(ended.elapsed() < bound() + Duration::from_secs(4), "{:?}: {text}", ended.elapsed());
    let report = dead.report();
    assert!(report.left.proven && report.left.processes.is_empty(), "{:?}", report.left);
}

#[test]
fn a_working_directory_that_stops_answering_costs_nothing() {
    let Some(dead) = Dead::new() else { return };
    let stop = dead.healthy("stop").display().to_string();
    let script = format!("echo > {stop}; exit 3");
    let ended = finish(dead.job_with(&["-w", &stop], &["-n", "1", "/bin/sh", "-c", &script]));
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(3), "{text}");
    assert!(!text.contains("cannot write"), "{text}");
}

/// What stays in state D holds none of the streams that the caller reads to their end.
#[test]
fn a_caller_that_reads_all_output_is_not_held_up_either() {
    let Some(dead) = Dead::new() else { return };
    let begun = Instant::now();
    let words = ["-r".to_owned(), dead.path().display().to_string(), rankrun().display().to_string()];
    let output = Command::new(&dead.program).args(words).args(FAILS).env("XDG_STATE_HOME", dead.path()).output();
    let output = output.expect("the program can be started");
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    // The mount is gone 3 s later than the job, and with it what has stayed.
    assert!(begun.elapsed() < bound(), "{:?}", begun.elapsed());
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
        let is_ours = |line: &&str| line.contains("--as=storage") || line.contains("--as=file-reader");
        calls.lines().filter(is_ours).count()
    };
    assert_eq!([count("true"), count("exit 3")], [0, 1]);
}
