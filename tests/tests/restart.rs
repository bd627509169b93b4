//! Jobs that are started again after a failure (docs/restart.md).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::report::Report;
use rankrun_tests::{Ended, Environment, Job, Stdin, Tier, full_scale, processes, rankrun, scratch, wait_until};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(60);

fn program(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/restart").join(name).display().to_string()
}

/// Runs a job of shell ranks in a directory of its own, with its report.
fn run(tier: Tier, options: &[&str], script: &str) -> (Ended, Report, PathBuf) {
    let directory = scratch();
    let words = options.iter().copied().chain(["sh", "-c", script]);
    let (ended, report) = Job::new(words).tier(tier).current_dir(&directory).bound(BOUND).run_with_report();
    (ended, report, directory)
}

/// Ranks append what they are to a file; rank 1 fails in the first two attempts.
const FAILS_TWICE: &str = "echo $RANK $RANKRUN_ATTEMPT $TORCHELASTIC_RESTART_COUNT >> seen; \
    if [ $RANK = 1 ] && [ $RANKRUN_ATTEMPT -lt 2 ]; then echo \"no luck\" >&2; exit 7; fi; \
    until [ $(grep -c \" $RANKRUN_ATTEMPT \" seen) = 3 ]; do sleep 0.01; done";

fn lines(directory: &Path, name: &str) -> Vec<String> {
    let text = fs::read_to_string(directory.join(name)).unwrap_or_default();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn a_job_that_fails_is_started_again_with_all_its_ranks_and_says_so() {
    for tier in Tier::sampled() {
        let options = ["-n", "3", "--restart", "5", "--backoff", "10ms..20ms", "--log-dir", "logs"];
        let (ended, report, directory) = run(tier, &options, FAILS_TWICE);
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(0), "{text}");
        let seen = lines(&directory, "seen");
        let of_last: Vec<&String> = seen.iter().filter(|line| line.ends_with(" 2 2")).collect();
        assert_eq!(of_last, ["0 2 2", "1 2 2", "2 2 2"], "{seen:?}");
        assert!(text.contains("rankrun: attempt 0 is over after "), "{text}");
        assert!(text.contains(": rank 1 failed: exited with code 7; last line of stderr: no luck\n"), "{text}");
        assert!(text.contains("rankrun: restarting all ranks: attempt 1\n"), "{text}");
        assert!(text.contains("rankrun: restarted: all 3 ranks run (attempt 2, "), "{text}");
        // Each attempt has its own log files, and none is lost.
        for attempt in 0..2 {
            let log = directory.join(format!("logs/attempt-{attempt}/rank-0001.stderr"));
            assert_eq!(fs::read_to_string(log).expect("it has failed"), "no luck\n", "{text}");
        }
        assert!(directory.join("logs/attempt-2").is_dir(), "{text}");
        assert_eq!((report.attempt, report.attempts.len()), (2, 2), "{text}");
        assert_eq!(report.attempts[1].rank.map(|rank| rank.number()), Some(1), "{text}");
        fs::remove_dir_all(directory).expect("it is ours");
    }
}

#[test]
fn a_job_gives_up_after_its_budget_and_its_report_covers_all_attempts() {
    for tier in Tier::sampled() {
        let options = ["-n", "2", "--max-restarts", "2", "--backoff", "0..10ms"];
        let script = "echo $RANKRUN_ATTEMPT >> seen; [ $RANK = 0 ] && sleep 60; \
            until [ $(grep -c \"^$RANKRUN_ATTEMPT$\" seen) = 2 ]; do sleep 0.01; done; exit $((RANKRUN_ATTEMPT + 3))";
        let (ended, report, directory) = run(tier, &options, script);
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(5), "{text}");
        assert_eq!(report.attempts.iter().map(|past| past.exit_code.0).collect::<Vec<_>>(), [3, 4], "{text}");
        assert_eq!(report.given_up.as_deref(), Some("gives up after 2 restarts"), "{text}");
        assert!(text.contains("  restart   gives up after 2 restarts\n"), "{text}");
        assert!(text.contains("  before    attempt 0: rank 1 failed: exited with code 3\n"), "{text}");
        assert_eq!(lines(&directory, "seen").len(), 6, "{text}");
        fs::remove_dir_all(directory).expect("it is ours");
    }
}

/// seeds/003: a worker of four fails, is found, and all information is handed to its successor; everybody is there again.
#[test]
fn the_successor_of_a_failed_worker_gets_all_its_information() {
    let Some(torch) = Environment::find("torch") else { return };
    let directory = scratch();
    // Each of them imports torch, twice.
    let ranks = full_scale(4, 3);
    let words = ["-n", &ranks.to_string(), "--restart", "3", "--", &torch.program("python3"), &program("rejoin.py")];
    let (ended, report) = Job::new(words)
        .env("DATA", "/data/of the job")
        .current_dir(&directory)
        .bound(Duration::from_secs(180))
        .run_with_report();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(0), "{text}");
    let said: Vec<String> = ended.stdout_text().lines().map(str::to_owned).collect();
    let sum = ranks * (ranks - 1) / 2;
    for rank in 0..ranks {
        let line = format!("rank {rank} of {ranks}, local {rank} of {ranks}, attempt 1, /data/of the job, sum {sum}");
        assert!(said.contains(&line), "{said:?}\n{text}");
    }
    assert!(text.contains(&format!("rankrun: restarted: all {ranks} ranks run (attempt 1, ")), "{text}");
    assert_eq!(report.attempts.len(), 1, "{text}");
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn a_worker_that_cannot_be_started_thrice_fails_the_job_with_its_reason() {
    let directory = scratch();
    let script = "rm -f ./worker; exit 3";
    fs::write(directory.join("worker"), format!("#!/bin/sh\n{script}\n")).expect("it can be written");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(directory.join("worker"), executable).expect("it is ours");
    let words = ["-n", "1", "--restart", "5", "--start-backoff", "20ms", "./worker"];
    let (ended, report) = Job::new(words).current_dir(&directory).bound(BOUND).run_with_report();
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(127), "{text}");
    assert_eq!(report.given_up.as_deref(), Some("gives up: ranks could not be started in 3 tries"), "{text}");
    assert_eq!(report.attempts.len(), 3, "one that failed, and two that could not be started: {text}");
    assert!(report.summary.contains("cannot exec \"./worker\""), "{text}");
    fs::remove_dir_all(directory).expect("it is ours");
}

/// A lock that every rank takes: no two attempts overlap. What a rank has left is gone before the next one.
#[test]
fn attempts_never_overlap_and_a_grandchild_is_gone_before_the_next() {
    for tier in Tier::available() {
        let restarts = full_scale(40, 8).to_string();
        let script = "for n in $(seq 0 $((RANKRUN_ATTEMPT - 1))); do for pid in $(cat new.$n); do kill -0 $pid 2>/dev/null && echo \"$pid lives\" >> wrong; done; done; \
            for n in 0 1 2 3; do [ $n = $RANK ] && exec 9>lock.$n; done; \
            flock -n 9 || echo overlap >> wrong; \
            setsid sh -c 'trap \"\" TERM; echo $$ >> new.$RANKRUN_ATTEMPT; exec sleep 60' & \
            echo up >> up.$RANKRUN_ATTEMPT; \
            [ $RANK != $((RANKRUN_ATTEMPT % 4)) ] && exec sleep 60; \
            until [ $(cat up.$RANKRUN_ATTEMPT new.$RANKRUN_ATTEMPT 2>/dev/null | wc -l) = 8 ]; do sleep 0.01; done; \
            case $((RANKRUN_ATTEMPT % 3)) in 0) exit 3;; 1) kill -9 $$;; 2) kill -STOP $$;; esac";
        let options =
            ["-n", "4", "--max-restarts", &restarts, "--backoff", "0..5ms", "--grace", "100ms", "--linger", "0"];
        let directory = scratch();
        let words = options.iter().copied().chain(["sh", "-c", script]);
        let (ended, report) =
            Job::new(words).tier(tier).current_dir(&directory).bound(Duration::from_secs(240)).run_with_report();
        let text = ended.stderr_text();
        assert_eq!(fs::read_to_string(directory.join("wrong")).unwrap_or_default(), "", "{text}");
        assert_eq!(report.attempts.len().to_string(), restarts, "{text}");
        fs::remove_dir_all(directory).expect("it is ours");
    }
}

#[test]
fn a_signal_ends_the_wait_for_the_next_attempt() {
    for tier in Tier::sampled() {
        for signal in [Signal::INT, Signal::TERM] {
            let directory = scratch();
            let words = ["-n", "2", "--restart", "5", "--backoff", "1h..1h", "sh", "-c", "exit 3"];
            let job = Job::new(words).tier(tier).current_dir(&directory).start();
            let waits = wait_until(BOUND, || {
                let text = String::from_utf8_lossy(&job.stderr_so_far()).into_owned();
                // The first restart is at once, the second is not.
                text.contains("restarting all ranks in ").then_some(())
            });
            assert!(waits.is_some(), "{}", String::from_utf8_lossy(&job.stderr_so_far()));
            processes::send(job.front(), signal);
            let ended = job.finish(BOUND);
            let text = ended.stderr_text();
            let (name, code, by) = match signal == Signal::INT {
                true => ("SIGINT", None, Some(2)),
                false => ("SIGTERM", Some(3), None),
            };
            assert_eq!((ended.code, ended.signal), (code, by), "{text}");
            // The report is that of attempt 1.
            assert!(text.contains("  before    attempt 0: ") && !text.contains("attempts 0-1"), "{text}");
            assert!(text.contains(&format!("ended by {name} before the next attempt began")), "{text}");
            fs::remove_dir_all(directory).expect("it is ours");
        }
    }
}

#[test]
fn a_job_that_its_user_ends_or_that_is_out_of_time_is_not_started_again() {
    for tier in Tier::sampled() {
        let directory = scratch();
        let words = ["-n", "2", "--restart", "5", "sh", "-c", "echo up > $RANK.up; exec sleep 60"];
        let job = Job::new(words).tier(tier).current_dir(&directory).start();
        for rank in 0..2 {
            wait_until(BOUND, || directory.join(format!("{rank}.up")).exists().then_some(())).expect("it starts");
        }
        processes::send(job.front(), Signal::TERM);
        let ended = job.finish(BOUND);
        assert_eq!(ended.signal, Some(15), "{}", ended.stderr_text());
        assert!(!ended.stderr_text().contains("restarting"), "{}", ended.stderr_text());
        let (ended, report, other) = run(tier, &["-n", "1", "--restart", "5", "--timeout", "300ms"], "exec sleep 60");
        assert_eq!((ended.code, report.attempts.len()), (Some(124), 0), "{}", ended.stderr_text());
        for directory in [directory, other] {
            fs::remove_dir_all(directory).expect("it is ours");
        }
    }
}

#[test]
fn classes_and_codes_decide_what_is_worth_a_restart() {
    let tier = Tier::available()[0];
    for (options, script, attempts, words) in [
        (&["--restart-on", "signal"][..], "exit 3", 0, "gives up: --restart-on does not have \"exit-code\""),
        (&["--no-restart-codes", "2,64-78"], "exit 65", 0, "gives up: --no-restart-codes has 65"),
        (&["--restart-on", "signal"], "kill -9 $$", 2, "gives up after 2 restarts"),
    ] {
        let all: Vec<&str> =
            ["-n", "1", "--restart", "2", "--backoff", "0..1ms"].iter().chain(options).copied().collect();
        let (ended, report, directory) = run(tier, &all, script);
        let text = ended.stderr_text();
        assert_eq!((report.attempts.len(), report.given_up.as_deref()), (attempts, Some(words)), "{text}");
        fs::remove_dir_all(directory).expect("it is ours");
    }
}

#[test]
fn the_same_exception_twice_early_is_no_matter_of_luck() {
    let words = ["-n", "2", "--restart", "9", "--", "python3", "-c", "raise KeyError('layer3')"];
    let (ended, report) = Job::new(words).bound(BOUND).run_with_report();
    let text = ended.stderr_text();
    assert_eq!((ended.code, report.attempts.len()), (Some(1), 1), "{text}");
    let why = report.given_up.expect("it gave up");
    assert!(why.contains("failed within 1 min with the same error") && why.contains("layer3"), "{why}");
}

#[test]
fn a_command_of_the_users_own_decides_with_the_report_on_its_stdin() {
    let tier = Tier::available()[0];
    let directory = scratch();
    let script = directory.join("decide.sh");
    fs::write(&script, "cat >> reports; case $(grep -c '\"schema\"' reports) in 1) echo restart;; 2) echo wait 50ms;; *) echo stop;; esac")
        .expect("it can be written");
    let own = format!("sh {}", script.display());
    let options = ["-n", "2", "--restart", "9", "--on-failure", &own, "sh", "-c", "exit 3"];
    let (ended, report) = Job::new(options).tier(tier).current_dir(&directory).bound(BOUND).run_with_report();
    let text = ended.stderr_text();
    assert_eq!((ended.code, report.attempts.len()), (Some(3), 2), "{text}");
    assert_eq!(report.given_up.as_deref(), Some("gives up: --on-failure said stop"), "{text}");
    let reports = fs::read_to_string(directory.join("reports")).expect("it was asked");
    assert_eq!(reports.matches("\"schema\": 1").count(), 3, "{reports}");
    // One that does not answer in time, or nonsense: the policy's own decision stands.
    for (own, said) in
        [("sleep 60", "was not done within 200 ms, and was killed"), ("echo perhaps", "is not restart, stop or wait")]
    {
        let options = ["-n", "1", "--restart", "1", "--on-failure", own, "--on-failure-timeout", "200ms"];
        let (ended, report, other) = run(tier, &options, "exit 3");
        assert_eq!(report.attempts.len(), 1, "{}", ended.stderr_text());
        assert!(ended.stderr_text().contains(said), "{}", ended.stderr_text());
        fs::remove_dir_all(other).expect("it is ours");
    }
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn stdin_from_a_file_is_read_again_from_its_beginning() {
    let tier = Tier::available()[0];
    let directory = scratch();
    fs::write(directory.join("input"), "first\nsecond\n").expect("it can be written");
    let input = fs::File::open(directory.join("input")).expect("it is there");
    // stdin is rank 0's. The other must not fail before it has written.
    let script = "[ $RANK$RANKRUN_ATTEMPT = 10 ] && exec sleep 60; read line; echo \"$RANKRUN_ATTEMPT $line\"; [ $RANKRUN_ATTEMPT = 1 ]";
    let words = ["-n", "2", "--restart", "1", "sh", "-c", script];
    let ended = Job::new(words).tier(tier).stdin(Stdin::File(input)).current_dir(&directory).bound(BOUND).run();
    let text = ended.stdout_text();
    assert!(text.contains("0 first\n") && text.contains("1 first\n"), "{text}\n{}", ended.stderr_text());
    assert!(!ended.stderr_text().contains("stdin is a pipe"), "{}", ended.stderr_text());
    let pipe = Stdin::Bytes(b"first\nsecond\n".to_vec());
    let words = ["-n", "2", "--restart", "1", "sh", "-c", script];
    let ended = Job::new(words).tier(tier).stdin(pipe).current_dir(&directory).bound(BOUND).run();
    let text = ended.stdout_text();
    assert!(text.contains("0 first\n") && text.contains("1 second\n"), "{text}\n{}", ended.stderr_text());
    assert_eq!(ended.stderr_text().matches("stdin is a pipe").count(), 1, "{}", ended.stderr_text());
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn a_rank_that_stays_stopped_or_is_not_ready_has_failed() {
    for tier in Tier::sampled() {
        let script = "[ $RANKRUN_ATTEMPT = 1 ] && exit 0; [ $RANK = 1 ] && kill -STOP $$; exec sleep 60";
        let options = ["-n", "2", "--restart", "1", "--stopped-timeout", "200ms"];
        let (ended, report, directory) = run(tier, &options, script);
        assert_eq!((ended.code, report.attempts.len()), (Some(0), 1), "{}", ended.stderr_text());
        assert!(report.attempts[0].summary.contains("stopped by SIGSTOP"), "{}", ended.stderr_text());
        fs::remove_dir_all(directory).expect("it is ours");
        let ready = "import json, os, socket, time\n\
            if os.environ['RANK'] == '0' or os.environ['RANKRUN_ATTEMPT'] == '1':\n\
            \x20   with socket.socket(socket.AF_UNIX) as s:\n\
            \x20       s.connect(os.environ['RANKRUN_SOCKET']); s.sendall(b'{\"type\":\"ready\"}\\n')\n\
            if os.environ['RANKRUN_ATTEMPT'] == '0': time.sleep(60)\n";
        let words =
            ["-n", "2", "--restart", "1", "--ready-timeout", "5s", "--start-backoff", "0", "python3", "-c", ready];
        let (ended, report) = Job::new(words).tier(tier).bound(BOUND).run_with_report();
        let text = ended.stderr_text();
        assert_eq!((ended.code, report.attempts.len()), (Some(0), 1), "{text}");
        assert!(
            report.attempts[0].summary.starts_with("rank 1 failed: did not say that it is ready within 5s"),
            "{text}"
        );
    }
}

/// The exception is known from the hook alone: stderr is closed to it.
#[test]
fn a_rank_that_removes_the_jobs_directory_leaves_the_next_attempt_socket_and_hook() {
    for tier in Tier::sampled() {
        for scope in [&["--restart-scope", "gang"][..], &["--restart-scope", "rank", "--keep-going"]] {
            for (removed, note) in [("", "it was made again"), ("/worker.sock", "worker socket was made again")] {
                let rankrun = rankrun().display().to_string();
                // The front may listen again only a moment after the rank was started.
                let script = format!(
                    "d=${{RANKRUN_SOCKET%/*}}; if [ $RANKRUN_ATTEMPT = 0 ]; then rm -rf $d{removed}; exit 7; fi; \
                     for i in $(seq 300); do {rankrun} status $RANKRUN_JOB_ID > status 2>&1 && break; sleep 0.1; done; \
                     exec python3 -c 'raise ValueError(\"told\")' 2> /dev/null"
                );
                let options = [&["-n", "1", "--restart", "1", "--backoff", "0"], scope].concat();
                let (ended, _, directory) = run(tier, &options, &script);
                let (case, text) = (format!("{tier:?}, {scope:?}, {removed:?}"), ended.stderr_text());
                assert_eq!(ended.code, Some(1), "{case}: {text}");
                assert!(text.contains("rankrun: rank 0 failed: ValueError: told"), "{case}: {text}");
                let notes: Vec<&str> = text.lines().filter(|line| line.contains("the job's directory")).collect();
                assert!(matches!(notes[..], [line] if line.ends_with(note)), "{case}: {text}");
                let status = fs::read_to_string(directory.join("status")).expect("it was asked for");
                assert!(status.contains("rank 0  running"), "{case}: {status}");
                fs::remove_dir_all(directory).expect("it is ours");
            }
        }
    }
}

/// seeds/003's own way: only the failed one is replaced, and the others go on.
#[test]
fn with_the_scope_of_a_rank_only_the_failed_one_is_replaced() {
    for tier in Tier::sampled() {
        let script = "echo $RANK $RANKRUN_ATTEMPT $$ >> seen; \
            case $RANK.$RANKRUN_ATTEMPT in 1.0) echo once >&2; exit 3;; 1.1) setsid sleep 60 & kill -9 $$;; 3.*) exit 5;; esac; \
            until grep -q '^1 2 ' seen && [ $(grep -c '^3 ' seen) = 3 ]; do sleep 0.01; done; echo done $RANK";
        let options = ["-n", "4", "--max-restarts", "2", "--keep-going", "--restart-scope", "rank"];
        let all: Vec<&str> =
            options.into_iter().chain(["--backoff", "0..20ms", "--linger", "0", "--log-dir", "logs"]).collect();
        let (ended, report, directory) = run(tier, &all, script);
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(5), "{text}");
        let seen: Vec<String> =
            lines(&directory, "seen").iter().map(|line| line.rsplit_once(' ').expect("a pid").0.to_owned()).collect();
        assert_eq!(seen, ["0 0", "1 0", "1 1", "1 2", "2 0", "3 0", "3 1", "3 2"], "{text}");
        assert_eq!(report.given_up.as_deref(), Some("rank 3: gives up after 2 restarts"), "{text}");
        assert!(text.contains("rankrun: restarted: rank 1 runs (attempt 2, "), "{text}");
        assert!(text.contains("rankrun: rank 3 failed: exited with code 5  (exit 5"), "{text}");
        assert!(text.contains("others    ranks 0-2 succeeded"), "{text}");
        let log =
            |attempt: u32, name: &str| fs::read_to_string(directory.join(format!("logs/attempt-{attempt}/{name}")));
        assert_eq!(log(0, "rank-0001.stderr").expect("it wrote"), "once\n");
        assert_eq!(log(2, "rank-0001.stdout").expect("it wrote"), "done 1\n");
        assert_eq!(log(0, "rank-0002.stdout").expect("it wrote"), "done 2\n");
        fs::remove_dir_all(directory).expect("it is ours");
    }
    let words = ["-n", "2", "--restart", "1", "--keep-going", "--restart-scope", "rank", "--mpi", "pmi1", "true"];
    let ended = Job::new(words).run();
    assert!(ended.stderr_text().contains("do not depend on each other"), "{}", ended.stderr_text());
}

/// A stop ends the ranks that wait for their successors, too.
#[test]
fn a_signal_ends_a_job_whose_ranks_wait_to_be_replaced() {
    for tier in Tier::sampled() {
        let options = ["-n", "2", "--restart", "5", "--keep-going", "--restart-scope", "rank", "--backoff", "1h..1h"];
        let job = Job::new(options.into_iter().chain(["sh", "-c", "exit 3"])).tier(tier).start();
        let waits = wait_until(BOUND, || {
            let text = String::from_utf8_lossy(&job.stderr_so_far()).into_owned();
            (text.matches(": restarting rank ").count() == 4).then_some(())
        });
        assert!(waits.is_some(), "{}", String::from_utf8_lossy(&job.stderr_so_far()));
        processes::send(job.front(), Signal::TERM);
        let ended = job.finish(BOUND);
        assert!(ended.code == Some(3) || ended.signal == Some(15), "{}", ended.stderr_text());
    }
}

/// `kill -9` of rankrun's own processes between two attempts: nothing is left, as at any other time.
#[test]
fn nothing_is_left_when_rankruns_own_processes_are_killed_among_restarts() {
    for tier in Tier::available() {
        for round in 0..full_scale(12, 6) {
            let directory = scratch();
            let script = "setsid sleep 60 & echo $RANKRUN_ATTEMPT > attempt; sleep 0.02; exit 3";
            let options = ["-n", "3", "--max-restarts", "100000", "--backoff", "0..20ms", "--linger", "0"];
            let job = Job::new(options.iter().chain(&["sh", "-c", script])).tier(tier).current_dir(&directory).start();
            let wanted = 1 + round;
            let reached = wait_until(BOUND, || {
                let attempt = fs::read_to_string(directory.join("attempt")).unwrap_or_default();
                attempt.trim().parse::<u32>().is_ok_and(|attempt| attempt >= wanted).then_some(())
            });
            assert!(reached.is_some(), "{}", String::from_utf8_lossy(&job.stderr_so_far()));
            match round % 3 {
                0 => processes::send(job.front(), Signal::KILL),
                1 => processes::send(job.agent(), Signal::KILL),
                _ => processes::send(job.guard(), Signal::KILL),
            }
            // The harness asserts that no descendant is left.
            drop(job.finish(BOUND));
            fs::remove_dir_all(directory).expect("it is ours");
        }
    }
}

/// A job whose first attempt fails, while it waits for the next.
fn start_waiting(directory: &Path, own: &str, script: &str) -> rankrun_tests::Running {
    let words = ["-n", "1", "--restart", "3", "--on-failure", own, "sh", "-c", script];
    let job = Job::new(words).tier(Tier::available()[0]).current_dir(directory).start();
    wait_until(BOUND, || directory.join("asked").exists().then_some(())).expect("it asks");
    job
}

#[test]
fn no_attempt_begins_without_a_guard() {
    let directory = scratch();
    let own = "sh -c 'cat > /dev/null; touch asked; until [ -e go ]; do sleep 0.01; done; echo restart'";
    let job = start_waiting(&directory, own, "echo $RANKRUN_ATTEMPT >> seen; exit 3");
    let guard = job.guard();
    processes::send(guard, Signal::KILL);
    wait_until(BOUND, || (!processes::is_alive(guard)).then_some(())).expect("it is killed");
    fs::write(directory.join("go"), "").expect("it is ours");
    let ended = job.finish(BOUND);
    let text = ended.stderr_text();
    assert_eq!(lines(&directory, "seen"), ["0"], "{text}");
    // Nothing of the attempt that failed was left: its code is the job's.
    assert_eq!(ended.code, Some(3), "{text}");
    assert!(text.contains("rankrun's own processes were lost before the next attempt began"), "{text}");
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn a_command_that_takes_longer_than_the_output_may_still_decides() {
    let own = "sh -c 'cat > /dev/null; sleep 5; echo restart'";
    let options = ["-n", "1", "--drain", "100ms", "--restart", "1", "--on-failure", own];
    let (ended, report, directory) = run(Tier::available()[0], &options, "[ $RANKRUN_ATTEMPT = 1 ]");
    assert_eq!((ended.code, report.attempts.len()), (Some(0), 1), "{}", ended.stderr_text());
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn every_attempt_is_told_the_end_of_a_shared_stdin_and_reads_a_file_again() {
    let directory = scratch();
    fs::write(directory.join("input"), "hi\n").expect("it can be written");
    let words = ["--stdin", "all", "--restart", "1", "-n", "2", "sh", "-c", "cat; [ $RANKRUN_ATTEMPT = 1 ]"];
    let file = Stdin::File(fs::File::open(directory.join("input")).expect("it is there"));
    for (stdin, times) in [(Stdin::Bytes(b"hi\n".to_vec()), 2), (file, 4)] {
        let ended = Job::new(words).stdin(stdin).current_dir(&directory).bound(BOUND).run();
        let text = ended.stdout_text();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
        // With the pipe the failure of one rank may have ended the other before it has written.
        let seen = text.matches("hi\n").count();
        assert!(seen <= times && seen >= times / 2, "{text}");
    }
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn a_stopped_rank_is_late_only_while_it_lives() {
    let scope = ["--restart-scope", "rank", "--keep-going"];
    // Its successor is as healthy as any.
    let script = "[ $RANKRUN_ATTEMPT = 1 ] && sleep 1.5 && exit 0; (sleep 0.2; kill -KILL $$) & kill -STOP $$";
    let options: Vec<&str> =
        ["-n", "1", "--restart", "3", "--stopped-timeout", "1s"].into_iter().chain(scope).collect();
    let (ended, report, directory) = run(Tier::available()[0], &options, script);
    assert_eq!((ended.code, report.attempts.len()), (Some(0), 1), "{}", ended.stderr_text());
    fs::remove_dir_all(directory).expect("it is ours");
    // One that goes on and ends well has not failed, however long the job lasts.
    let script = "[ $RANK = 1 ] && exec sleep 1.5; (sleep 0.2; kill -CONT $$) & kill -STOP $$; exit 0";
    let options = ["-n", "2", "--keep-going", "--linger", "0", "--stopped-timeout", "1s"];
    let (ended, _, directory) = run(Tier::available()[0], &options, script);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn nothing_of_a_command_that_is_asked_outlives_the_job() {
    let directory = scratch();
    let own = "sh -c 'sleep 600 & echo $$ $! > pids; touch asked; exec sleep 600'";
    let job = start_waiting(&directory, own, "exit 3");
    let pids: Vec<i32> = lines(&directory, "pids")[0].split(' ').map(|pid| pid.parse().expect("a number")).collect();
    processes::send(job.front(), Signal::TERM);
    let ended = job.finish(BOUND);
    for pid in pids {
        assert!(!processes::is_alive(pid), "process {pid}: {}", ended.stderr_text());
    }
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn a_rank_that_cannot_be_started_has_one_number_for_each_attempt() {
    let directory = scratch();
    // It looks like a program, and the kernel does not find its loader.
    let mut elf = fs::read(rankrun_tests::rankrun()).expect("it is there");
    let loader = b"/lib64/ld-linux";
    let at = elf.windows(loader.len()).position(|bytes| bytes == loader).expect("it is linked dynamically");
    elf[at..at + loader.len()].copy_from_slice(b"/lib64/xx-linux");
    fs::write(directory.join("worker"), elf).expect("it can be written");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(directory.join("worker"), executable).expect("it is ours");
    let options = ["-n", "1", "--restart", "3", "--start-backoff", "20ms", "--restart-scope", "rank", "--keep-going"];
    let words = options.into_iter().chain(["./worker"]);
    let (ended, report) = Job::new(words).current_dir(&directory).bound(BOUND).run_with_report();
    let text = ended.stderr_text();
    assert_eq!(report.attempts.iter().map(|past| past.attempt).collect::<Vec<_>>(), [0, 1], "{text}");
    assert!(text.contains("attempt 1\n") || text.contains(": attempt 1"), "{text}");
    assert!(!text.contains("restarting rank 0 in 20 ms: attempt 0"), "{text}");
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn where_ranks_do_not_say_that_they_are_ready_the_report_tells_how_that_is_done() {
    let options = ["-n", "1", "--ready-timeout", "300ms", "--start-retries", "0"];
    let (ended, report, directory) = run(Tier::available()[0], &options, "exec sleep 60");
    let advice = report.next.iter().find(|line| line.contains("rankrun.ready()"));
    assert!(ended.code != Some(0) && advice.is_some(), "{}", ended.stderr_text());
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn a_rank_that_has_ended_well_is_not_said_to_be_not_ready() {
    let options = ["-n", "1", "--ready-timeout", "1500ms", "--linger", "6s", "--start-retries", "0", "--restart", "1"];
    let (ended, report, directory) = run(Tier::available()[0], &options, "(sleep 3) & exit 0");
    assert_eq!((ended.code, report.attempts.len()), (Some(0), 0), "{}", ended.stderr_text());
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn grouped_output_is_not_held_in_memory_before_a_restart() {
    let directory = scratch();
    let script = "[ $RANKRUN_ATTEMPT = 1 ] && exit 0; head -c 100000000 /dev/zero | tr '\\0' 'x'; exit 3";
    // The parent of the command is its host, and the front is the host's.
    let own = "sh -c 'cat > /dev/null; read pid name state front rest < /proc/$PPID/stat; \
        grep VmHWM /proc/$front/status > peak; echo restart'";
    let words = ["-n", "1", "--output", "grouped", "--restart", "1", "--on-failure", own, "sh", "-c", script];
    let ended = Job::new(words).current_dir(&directory).bound(BOUND).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert!(ended.stdout.len() >= 100_000_000, "{}", ended.stdout.len());
    let peak = fs::read_to_string(directory.join("peak")).expect("it was asked");
    let peak: u64 = peak.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number");
    assert!(peak < 64_000, "{peak} KiB");
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn a_job_that_succeeds_after_a_restart_leaves_a_report_that_says_so() {
    let reports = scratch();
    let words = ["-n", "1", "--restart", "1", "sh", "-c", "[ $RANKRUN_ATTEMPT = 1 ]"];
    let ended = Job::new(words).env("XDG_STATE_HOME", reports.as_os_str()).bound(BOUND).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    let mut names = Vec::new();
    let mut directories = vec![reports.clone()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("it is ours").flatten() {
            match entry.path().is_dir() {
                true => directories.push(entry.path()),
                false => names.push(entry.file_name().into_string().expect("text")),
            }
        }
    }
    names.sort();
    assert_eq!(names, ["attempt-0.json", "report.json"], "{}", ended.stderr_text());
    fs::remove_dir_all(reports).expect("it is ours");
}

#[test]
fn the_time_limit_of_the_job_ends_the_wait_for_an_attempt() {
    let waits: [&[&str]; 2] =
        [&["--backoff", "1h..2h", "--restart", "5"], &["--restart", "1", "--on-failure", "echo wait 1h"]];
    for wait in waits {
        let words = [&["-n", "2", "--timeout", "1s"], wait, &["false"]].concat();
        let (ended, report) = Job::new(words).run_with_report();
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(1), "the code of the failure: {text}");
        let why = report.given_up.unwrap_or_default();
        assert_eq!(why, "the time limit was reached before the next attempt began", "{text}");
    }
}
