//! What a job needs only after a failure, or at its end, is looked at before its start (docs/restart.md).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_tests::{Ended, Job, Tier, scratch};

const BOUND: Duration = Duration::from_secs(60);

/// Runs a job of one rank in this directory. Its rank makes the file `RAN`.
fn run(directory: &Path, env: &[(&str, &str)], options: &[&str], script: &str) -> Ended {
    let script = format!("touch RAN; {script}");
    let words = [options, &["sh", "-c", &script]].concat();
    let job = Job::new(words).tier(Tier::available()[0]).current_dir(directory).bound(BOUND);
    env.iter().fold(job, |job, (name, value)| job.env(name, value)).run()
}

fn directory() -> PathBuf {
    let directory = scratch();
    fs::write(directory.join("file"), "").expect("it can be written");
    directory
}

#[test]
fn a_slip_in_what_is_needed_later_is_refused_before_the_start() {
    for (env, options, said) in [
        (&[][..], &["--on-failure", "./nosuch"][..], "error: --on-failure: cannot run \"./nosuch\": no such file\n"),
        (
            &[],
            &["--on-failure", "no-such-command now"],
            "error: --on-failure: cannot run \"no-such-command\": command not found\n",
        ),
        (&[], &["--on-failure", "./file"], "error: --on-failure: cannot run \"./file\": permission denied\n"),
        (
            &[("RANKRUN_ON_FAILURE", "./nosuch")],
            &[],
            "error: RANKRUN_ON_FAILURE: cannot run \"./nosuch\": no such file\n",
        ),
        (
            &[],
            &["--report-dir", "file"],
            "/file\" is not a directory\nhint: name a directory, which is made if there is none\n",
        ),
        (&[], &["--report-dir", "file/below"], "/file\" is not a directory\n"),
        (&[], &["--log-dir", "file"], "error: --log-dir: \"file\" is a file\nhint: name a directory"),
        (&[], &["--restart", "1", "--log-dir", "file"], "error: --log-dir: \"file\" is a file\nhint: name a directory"),
        (&[], &["--pmix-lib", "nosuch.so"], "error: --pmix-lib: \"nosuch.so\": No such file or directory\n"),
    ] {
        let directory = directory();
        let ended = run(&directory, env, options, "exit 3");
        let text = ended.stderr_text();
        assert!(ended.code == Some(2) && text.contains(said), "{options:?}: {text}");
        assert!(!directory.join("RAN").exists(), "{options:?}: {text}");
        fs::remove_dir_all(directory).expect("it is ours");
    }
}

#[test]
fn what_will_have_no_effect_after_a_failure_is_a_warning_at_the_start() {
    let restart = ["--restart", "2", "--backoff", "0..0"];
    for (options, warning, reason) in [
        (
            &["--progress-file", "no/such/p"][..],
            Some("--progress-file: there is no directory \"DIR/no/such\", and without it no progress is seen"),
            Some(" (there is no DIR/no/such/p) left"),
        ),
        (
            &["--progress-file", "."],
            Some("--progress-file: \"DIR/.\" is a directory: it changes when files are made in it"),
            None,
        ),
        (&["--progress-file", "file"], None, Some(" (DIR/file never changed) left")),
        (&["--progress-file", "later"], None, Some(" (there is no DIR/later) left")),
        (
            &["--on-giveup", "requeue"],
            Some("--on-giveup: there is no scheduler to run the job again: SLURM_JOB_ID is not set"),
            None,
        ),
    ] {
        let directory = directory();
        let ended = run(&directory, &[], &[&["-n", "1"], &restart[..], options].concat(), "exit 3");
        let text = ended.stderr_text().replace(&directory.display().to_string(), "DIR");
        assert_eq!(ended.code, Some(3), "{text}");
        let first = text.lines().next().unwrap_or_default();
        assert_eq!(first.strip_prefix("warning: "), warning, "{text}");
        if let Some(reason) = reason {
            // The line may be broken anywhere.
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words.contains("without any progress") && words.contains(reason), "{text}");
        }
        fs::remove_dir_all(directory).expect("it is ours");
    }
    // Without restarts nothing of it is asked for.
    let directory = directory();
    let ended = run(&directory, &[], &["-q", "--restart", "1", "--on-giveup", "requeue"], "exit 0");
    assert_eq!((ended.code, ended.stderr_text().as_str()), (Some(0), ""));
    fs::remove_dir_all(directory).expect("it is ours");
}
