//! Jobs that cannot run here are refused at once, with the reason, and nothing is started.

use std::time::Duration;

use rankrun_tests::{Ended, Job, rankrun, skip};

/// A refusal comes at once, however busy the machine is.
const BOUND: Duration = Duration::from_secs(10);

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("only root can have mounts of its own");
    }
    root
}

/// Runs a shell script that ends with `exec "$0" ...`, which is rankrun.
fn script(prefix: &[&str], text: &str) -> Ended {
    let rankrun = rankrun().display().to_string();
    let words: Vec<&str> = prefix.iter().copied().chain(["sh", "-c", text, &rankrun]).collect();
    Job::of_program(words[0], &words[1..]).bound(BOUND).run()
}

fn refused(ended: &Ended, code: i32, words: &[&str]) {
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(code), "{text}");
    assert!(text.starts_with("error: "), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is missing: {text}");
    }
    assert!(ended.stdout.is_empty(), "{}", ended.stdout_text());
}

#[test]
fn without_proc_a_job_is_refused() {
    if !is_root() {
        return;
    }
    let ended = script(&["unshare", "-m"], r#"mount -t tmpfs none /proc && exec "$0" -n 2 echo started"#);
    refused(&ended, 125, &["/proc"]);
}

#[test]
fn with_the_proc_of_other_processes_a_job_is_refused() {
    if !is_root() {
        return;
    }
    let ended = script(&["unshare", "-p", "-f"], r#""$0" -n 2 echo started; exit $?"#);
    refused(&ended, 125, &["/proc", "namespace"]);
}

#[test]
fn a_configuration_that_is_no_regular_file_is_refused_and_not_waited_for() {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let fifo = directory.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .expect("the directory is ours");
    let fifo = fifo.display().to_string();
    for file in [&fifo, "/dev/zero", "/dev/null"] {
        let ended = Job::new(["--config", file, "-n", "2", "echo", "started"]).bound(BOUND).run();
        refused(&ended, 2, &[file, "regular file"]);
    }
    let ended = Job::new(["report", &fifo]).bound(BOUND).run();
    refused(&ended, 2, &[&fifo, "regular file"]);
    let ended = Job::new(["report", "/dev/zero"]).bound(BOUND).run();
    refused(&ended, 2, &["/dev/zero", "regular file"]);
    // A program is looked into for the interpreter that it asks for.
    let ended = Job::new(["-n", "2", &fifo]).bound(BOUND).run();
    refused(&ended, 126, &[&fifo]);
}

#[test]
fn a_configuration_beyond_all_measure_is_refused() {
    let file = tempfile::NamedTempFile::new().expect("the temporary directory can be written");
    file.as_file().set_len(1 << 40).expect("a sparse file takes no room");
    let name = file.path().display().to_string();
    let ended = Job::new(["--config", &name, "-n", "2", "echo", "started"]).bound(BOUND).run();
    refused(&ended, 2, &[&name, "larger than"]);
    let ended = Job::new(["report", &name]).bound(BOUND).run();
    refused(&ended, 2, &[&name, "larger than"]);
}

#[test]
fn numbers_beyond_all_measure_are_refused_or_taken_but_never_break_anything() {
    for number in ["4294967295", "1000000000", "400000"] {
        let ended = Job::new(["--gpus-per-rank", number, "-n", "2", "echo", "started"]).bound(BOUND).run();
        refused(&ended, 2, &["--gpus-per-rank", number]);
    }
    let long = "18446744073709549000";
    let mut options = vec!["-n", "2"];
    for option in ["--timeout", "--grace", "--linger", "--finalize-grace", "--exit-grace", "--drain"] {
        options.extend([option, long]);
    }
    options.extend(["--spool", "18446744073709551615", "sh", "-c", "sleep 0.1 & exit $RANKRUN_RANK"]);
    let ended = Job::new(options).bound(BOUND).run();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr_text());
}

#[test]
fn a_working_directory_that_is_gone_is_named() {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let gone = directory.path().join("gone").display().to_string();
    let ended = script(
        &["env", &format!("GONE={gone}")],
        r#"mkdir "$GONE" && cd "$GONE" && rmdir "$GONE" && exec "$0" -n 2 echo started"#,
    );
    refused(&ended, 2, &[&gone, "removed"]);
}

#[test]
fn a_job_that_needs_more_open_files_than_it_may_have_is_refused_with_the_limit() {
    for limit in [10, 13, 15, 16, 17, 18, 19, 22, 26] {
        let ended = script(&["env"], &format!(r#"ulimit -n {limit}; exec "$0" -n 2 echo started"#));
        refused(&ended, 2, &["open files", "RLIMIT_NOFILE", &limit.to_string(), "hint: "]);
    }
    // The soft limit is raised where it may be.
    let ended = script(&["env"], r#"ulimit -S -n 32; exec "$0" -n 16 true"#);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    // What is not refused must run.
    for ranks in [1, 2, 8, 16, 24, 48] {
        let text = format!(
            r#"for n in $(seq 20 10 400); do (ulimit -n $n; exec "$0" -n {ranks} true) 2> /dev/null
code=$?; case $code in 2) ;; 0) exit 0;; *) echo $n $code; exit 1;; esac; done"#
        );
        let ended = script(&["env"], &text);
        assert_eq!((ended.code, ended.stdout_text()), (Some(0), String::new()), "{ranks} ranks");
    }
}

#[test]
fn a_job_of_more_processes_than_its_user_may_have_is_refused_with_the_limit() {
    if !is_root() {
        return;
    }
    let nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--", "prlimit", "--nproc=12"];
    let ended = script(&nobody, r#"exec "$0" -n 2 echo started"#);
    refused(&ended, 2, &["RLIMIT_NPROC", "12", "hint: "]);
}
