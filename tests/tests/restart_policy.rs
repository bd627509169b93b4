//! What decides about restarts, and the files of attempts (docs/restart.md).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rankrun_core::report::Report;
use rankrun_tests::{Ended, Job, Running, Tier, in_time, listed_job, processes, rankrun, scratch, wait_until};
use rustix::process::Signal;

const BOUND: Duration = Duration::from_secs(60);

/// Runs a job of shell ranks in a directory of its own, with its report.
fn run(options: &[&str], script: &str) -> (Ended, Report, PathBuf) {
    let directory = scratch();
    let words = options.iter().copied().chain(["sh", "-c", script]);
    let tier = Tier::available()[0];
    let (ended, report) = Job::new(words).tier(tier).current_dir(&directory).bound(BOUND).run_with_report();
    (ended, report, directory)
}

fn read(directory: &Path, name: &str) -> String {
    fs::read_to_string(directory.join(name)).unwrap_or_default()
}

#[test]
fn each_attempt_of_a_rank_has_the_files_that_are_named_after_it() {
    let rank = ["-n", "3", "--max-restarts", "2", "--keep-going", "--restart-scope", "rank", "--backoff", "0..1ms"];
    let files = ["--tee-stdout", "out-{attempt}-{rank}", "--stderr-file", "err-{attempt}"];
    let script = "echo out $RANK $RANKRUN_ATTEMPT; echo err $RANK $RANKRUN_ATTEMPT >&2; \
        [ $RANK = 0 ] || [ $RANKRUN_ATTEMPT = $RANK ]";
    let (ended, _, directory) = run(&[&rank[..], &files].concat(), script);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(0), "{text}");
    for (rank, attempts) in [(0, 1), (1, 2), (2, 3)] {
        for attempt in 0..attempts {
            let name = format!("out-{attempt}-{rank}");
            assert_eq!(read(&directory, &name), format!("out {rank} {attempt}\n"), "{name}: {text}");
        }
    }
    for (attempt, ranks) in [(0, 0..3), (1, 1..3), (2, 2..3)] {
        let name = format!("err-{attempt}");
        let mut lines: Vec<String> = read(&directory, &name).lines().map(str::to_owned).collect();
        lines.sort();
        assert_eq!(lines, ranks.map(|rank| format!("err {rank} {attempt}")).collect::<Vec<_>>(), "{name}: {text}");
    }
    fs::remove_dir_all(directory).expect("it is ours");
}

/// A job whose first attempt fails, and whose command has made the file `asked`.
fn start_asking(directory: &Path, own: &str) -> Running {
    start_asking_for(directory, own, &["--restart", "3"])
}

fn start_asking_for(directory: &Path, own: &str, options: &[&str]) -> Running {
    let words = [&["-n", "1", "--on-failure", own], options, &["sh", "-c", "exit 3"]].concat();
    let job = Job::new(words).tier(Tier::available()[0]).current_dir(directory).start();
    wait_until(BOUND, || directory.join("asked").exists().then_some(())).expect("it asks");
    job
}

/// A command that never answers, with children in its process group, in a session of their own, and without a parent.
const NEVER: &str =
    "sh -c 'sleep 600 & setsid sleep 600 & (setsid sh -c \"sleep 600 & sleep 600\" &) ; touch asked; sleep 600'";

/// Each of rankrun's own processes, two of them, and the one that runs the command: nothing is left of the command either.
#[test]
fn a_command_that_is_being_asked_is_ended_when_rankruns_own_processes_are_killed() {
    for victims in ["front", "agent", "guard", "host", "agent guard", "guard agent", "agent host"] {
        let directory = scratch();
        let job = start_asking(&directory, NEVER);
        let host = processes::children(job.front()).into_iter().find(|child| child.name == "rr-command");
        let host = host.expect("a process runs the command").pid;
        let pid = |victim| match victim {
            "front" => job.front(),
            "agent" => job.agent(),
            "guard" => job.guard(),
            _ => host,
        };
        let pids: Vec<i32> = victims.split(' ').map(pid).collect();
        pids.iter().for_each(|pid| processes::send(*pid, Signal::KILL));
        if victims == "host" {
            // The policy itself decides: the job is started again, fails, and asks again.
            let asked = || String::from_utf8_lossy(&job.stderr_so_far()).contains("was lost: the other options decide");
            wait_until(BOUND, || asked().then_some(())).expect("it is said");
            processes::send(job.front(), Signal::TERM);
        }
        // The harness asserts that no descendant is left.
        let ended = job.finish(BOUND);
        let text = ended.stderr_text();
        match victims {
            // The signal has come before the next attempt, in it, or after it.
            "host" => assert!(ended.code == Some(3) || ended.signal == Some(15), "{text}"),
            // So has the loss of the agent, which is then noticed by the end of its stream.
            "agent host" => assert!([Some(3), Some(121)].contains(&ended.code), "{text}"),
            "front" => assert_eq!(ended.signal, Some(9), "{victims}: {text}"),
            // Nothing of the attempt that failed was left: its code is the job's.
            _ => assert_eq!(ended.code, Some(3), "{victims}: {text}"),
        }
        if ended.signal != Some(9) {
            assert!(text.contains("left      nothing ("), "{victims}: {text}");
        }
        fs::remove_dir_all(directory).expect("it is ours");
    }
}

/// Whoever has stopped the process that runs the command stops nothing else: it is killed with the command when its time is over.
#[test]
fn a_command_whose_host_is_stopped_is_ended_when_its_time_is_over() {
    let directory = scratch();
    let job = start_asking_for(&directory, NEVER, &["--on-failure-timeout", "2", "--max-restarts", "0"]);
    let host = processes::children(job.front()).into_iter().find(|child| child.name == "rr-command");
    processes::send(host.expect("a process runs the command").pid, Signal::STOP);
    // The harness asserts that no descendant is left.
    let ended = job.finish(BOUND);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(3), "{text}");
    assert!(text.contains("left      nothing ("), "{text}");
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn the_answer_is_what_a_command_has_written_when_it_ends_and_its_children_end_with_it() {
    for background in ["sleep 600 &", "setsid sleep 600 &", "(setsid sh -c \"sleep 600 & sleep 600\" &);"] {
        let own = format!("sh -c '{background} echo $! > child; echo restart'");
        let script = "[ $RANKRUN_ATTEMPT = 0 ] && exit 3; kill -0 $(cat child) 2> /dev/null && exit 9; exit 0";
        let begun = Instant::now();
        let (ended, report, directory) = run(&["-n", "1", "--restart", "1", "--on-failure", &own], script);
        let text = ended.stderr_text();
        assert_eq!((ended.code, report.attempts.len()), (Some(0), 1), "{background}: {text}");
        assert!(!text.contains("--on-failure:"), "{background}: {text}");
        assert!(begun.elapsed() < Duration::from_secs(15), "{background}: {text}");
        fs::remove_dir_all(directory).expect("it is ours");
    }
}

/// A command that does nothing.
fn make_command(directory: &Path, name: &str) {
    let path = directory.join(name);
    fs::write(&path, "#!/bin/sh\n").expect("it can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
}

#[test]
fn a_command_that_cannot_be_asked_is_named_with_its_reason() {
    for (own, said) in [
        ("./gone", "--on-failure: cannot start \"./gone\": command not found: the other options decide"),
        ("false", "--on-failure: the command failed (exit 1): the other options decide"),
        ("sh -c 'kill -9 $$'", "--on-failure: the command failed (SIGKILL"),
        (
            "echo wait 100000000000h",
            "--on-failure: \"wait 100000000000h\" is longer than 100 years: the other options decide",
        ),
    ] {
        let directory = scratch();
        make_command(&directory, "gone");
        let words = ["-n", "1", "--restart", "1", "--on-failure", own, "sh", "-c", "rm -f gone; exit 3"];
        let job = Job::new(words).tier(Tier::available()[0]).current_dir(&directory).bound(BOUND);
        let (ended, report) = job.run_with_report();
        let text = ended.stderr_text();
        assert_eq!((ended.code, report.attempts.len()), (Some(3), 1), "{own}: {text}");
        assert!(text.contains(said), "{own}: {text}");
        fs::remove_dir_all(directory).expect("it is ours");
    }
    let (ended, report, directory) = run(
        &["-n", "1", "--restart", "0", "--on-failure", "sh -c 'head -c 9999999 /dev/zero; cat > /dev/null'"],
        "exit 3",
    );
    assert!(ended.stderr_text().contains("is not restart, stop or wait DURATION"), "{}", ended.stderr_text());
    assert_eq!(report.attempts.len(), 0);
    fs::remove_dir_all(directory).expect("it is ours");
    let (ended, report, directory) = run(&["-n", "1", "--on-failure", "echo Restart"], "exit 3");
    let text = ended.stderr_text();
    let said =
        "--on-failure: \"Restart\" is not restart, stop or wait DURATION: there is no other attempt without --restart";
    assert!(report.attempts.is_empty() && text.contains(said), "{text}");
    fs::remove_dir_all(directory).expect("it is ours");
}

/// The lines of `/proc/PID/status` about signals.
const SIGNALS: &str = "grep -E \"^Sig(Blk|Ign)\" /proc/self/status";

#[test]
fn a_command_starts_with_the_signals_that_a_rank_starts_with() {
    let own = format!("sh -c '{SIGNALS} > command; echo stop'");
    let options = ["-n", "1", "--restart", "1", "--on-failure", &own];
    let (ended, _, directory) = run(&options, &format!("{SIGNALS} > rank; exit 3"));
    let seen = read(&directory, "command");
    assert!(seen.contains("SigBlk:\t0000000000000000\n"), "{seen} {}", ended.stderr_text());
    assert_eq!(seen, read(&directory, "rank"), "{}", ended.stderr_text());
    fs::remove_dir_all(directory).expect("it is ours");
}

/// A job that gives up within an allocation of Slurm, whose `scontrol` is this script.
fn start_requeue(directory: &Path, scontrol: &str) -> Running {
    fs::write(directory.join("scontrol"), format!("#!/bin/sh\n{scontrol}\n")).expect("it can be written");
    fs::set_permissions(directory.join("scontrol"), fs::Permissions::from_mode(0o755)).expect("it is ours");
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default());
    let words =
        ["-n", "1", "--restart", "0", "--on-giveup", "requeue", "--on-failure", "echo stop", "sh", "-c", "exit 3"];
    let tier = Tier::available()[0];
    Job::new(words).tier(tier).env("PATH", path).env("SLURM_JOB_ID", "7").current_dir(directory).start()
}

#[test]
fn the_scheduler_is_asked_while_signals_are_handled_and_nothing_of_it_stays() {
    let directory = scratch();
    let ended =
        start_requeue(&directory, &format!("echo $* > called; {SIGNALS} > mask; setsid sleep 600 &")).finish(BOUND);
    let text = ended.stderr_text();
    assert!(text.contains("Slurm runs job 7 again (scontrol requeue)"), "{text}");
    assert_eq!((ended.code, read(&directory, "called").as_str()), (Some(3), "requeue 7\n"), "{text}");
    assert!(read(&directory, "mask").contains("SigBlk:\t0000000000000000\n"), "{}", read(&directory, "mask"));
    // One that hangs ends by a second ^C at once.
    fs::remove_file(directory.join("called")).expect("it was called");
    let job = start_requeue(&directory, "setsid sleep 600 & touch called; sleep 600");
    wait_until(BOUND, || directory.join("called").exists().then_some(())).expect("it is called");
    let begun = Instant::now();
    processes::send(job.front(), Signal::INT);
    wait_until(Duration::from_millis(50), || None::<()>);
    processes::send(job.front(), Signal::INT);
    let ended = job.finish(BOUND);
    let text = ended.stderr_text();
    assert!(begun.elapsed() < in_time(Duration::from_secs(5)), "{:?} {text}", begun.elapsed());
    assert!(text.contains("Slurm does not run job 7 again"), "{text}");
    assert_eq!(ended.code, Some(3), "{text}");
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn a_command_that_decides_is_refused_where_each_rank_is_restarted_by_itself() {
    for (options, what) in
        [(["--on-failure", "true"], "--on-failure"), (["--on-giveup", "requeue"], "--on-giveup requeue")]
    {
        let words = ["-n", "2", "--restart", "1", "--keep-going", "--restart-scope", "rank"];
        let ended = Job::new(words.iter().chain(&options).chain(&["true"])).run();
        let text = ended.stderr_text();
        assert_eq!(ended.code, Some(2), "{text}");
        let said = format!("error: {what} decides about the whole job, not about one rank\n");
        assert!(text.contains(&said), "{text}");
    }
}

/// The id of a job, from the list of all.
fn id(running: &Running) -> String {
    let found = wait_until(BOUND, || listed_job(running.front()));
    found.expect("the job is in the list")
}

#[test]
fn a_planned_restart_is_in_the_journal_and_is_replayed() {
    let directory = scratch();
    let script = "touch up.$RANKRUN_ATTEMPT; [ $RANKRUN_ATTEMPT = 1 ] && exit 3; exec sleep 60";
    let words = ["--journal", "journal", "-n", "1", "sh", "-c", script];
    let job = Job::new(words).tier(Tier::available()[0]).current_dir(&directory).start();
    wait_until(BOUND, || directory.join("up.0").exists().then_some(())).expect("it starts");
    let asked = Command::new(rankrun()).args(["restart", &id(&job)]).output().expect("rankrun can be started");
    assert!(asked.status.success(), "{asked:?}");
    let ended = job.finish(BOUND);
    let text = ended.stderr_text();
    assert_eq!(ended.code, Some(3), "{text}");
    let journal = read(&directory, "journal");
    for part in ["\"planned\"", "\"RestartRequest\"", "restart requested"] {
        assert!(journal.contains(part), "{part}: {journal}");
    }
    let replayed = Command::new(rankrun()).args(["replay", "journal"]).current_dir(&directory).output();
    let replayed = replayed.expect("rankrun can be started");
    let (again, complaints) = (String::from_utf8_lossy(&replayed.stdout), String::from_utf8_lossy(&replayed.stderr));
    assert!(replayed.status.success() && complaints.is_empty(), "{complaints}");
    assert!(text.ends_with(&*again), "then: {text}\nnow: {again}");
    fs::remove_dir_all(directory).expect("it is ours");
}

/// Descriptors, threads, and KiB of memory of a process.
fn size(pid: i32) -> [u64; 3] {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel tells");
        line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
    };
    [fs::read_dir(format!("/proc/{pid}/fd")).expect("it is ours").count() as u64, field("Threads:"), field("VmRSS:")]
}

#[test]
fn a_hundred_restarts_cost_no_descriptor_no_thread_and_no_memory() {
    for tier in Tier::sampled() {
        let directory = scratch();
        let script = "case $RANKRUN_ATTEMPT in 20|119) echo > at.$RANKRUN_ATTEMPT.$RANK; \
            until [ -e go.$RANKRUN_ATTEMPT ]; do sleep 0.02; done;; esac; echo $RANK; exit 3";
        let options = ["-n", "2", "--max-restarts", "119", "--backoff", "0..1ms", "--on-failure", "echo restart"];
        let words = options.into_iter().chain(["--log-dir", "logs", "sh", "-c", script]);
        let job = Job::new(words).tier(tier).current_dir(&directory).start();
        let comes_to = |attempt: u32| {
            for rank in 0..2 {
                let at = directory.join(format!("at.{attempt}.{rank}"));
                wait_until(BOUND, || at.exists().then_some(())).expect("it comes");
            }
        };
        let goes_on = |attempt: u32| fs::write(directory.join(format!("go.{attempt}")), "").expect("it is ours");
        let processes = [job.front(), job.agent(), job.guard()];
        let now = || (processes.map(size), processes.iter().map(|pid| processes::children(*pid).len()).sum::<usize>());
        comes_to(20);
        let before = now();
        goes_on(20);
        comes_to(119);
        let grown = || {
            let after = now();
            let sizes = ["front", "agent", "guard"].iter().zip(before.0).zip(after.0);
            let mut grown: Vec<String> = sizes
                .flat_map(|((name, before), after)| {
                    let kinds = [("descriptors", 0, 8), ("threads", 1, 2), ("KiB", 2, 1024)];
                    let grown =
                        kinds.into_iter().filter(move |(_, index, slack)| after[*index] > before[*index] + slack);
                    grown.map(move |(what, index, _)| format!("{name}: {} {what} after {before:?}", after[index]))
                })
                .collect();
            if after.1 > before.1 + 1 {
                grown.push(format!("{} children after {}, the dead ones too", after.1, before.1));
            }
            grown
        };
        // What is there for a moment only, as when ranks begin, is gone soon.
        let is_as_before = wait_until(BOUND, || grown().is_empty().then_some(()));
        assert!(is_as_before.is_some(), "{:?}", grown());
        goes_on(119);
        let ended = job.finish(BOUND);
        assert_eq!(ended.code, Some(3), "{}", ended.stderr_text());
        fs::remove_dir_all(directory).expect("it is ours");
    }
}

/// `kill -9` of rankrun's own processes at all moments of `rankrun restart JOB`.
#[test]
fn nothing_is_left_when_rankruns_own_processes_are_killed_in_a_planned_restart() {
    let mut random = rankrun_tests::Random::new(9);
    for tier in Tier::available() {
        for round in 0..rankrun_tests::full_scale(60, 9) {
            let directory = scratch();
            // They need some time to end.
            let script = "trap 'sleep 0.05; exit' TERM; setsid sleep 600 & echo > up.$RANK.$RANKRUN_ATTEMPT; \
                while :; do sleep 0.01; done";
            let words = ["-n", "3", "--linger", "0", "sh", "-c", script];
            let job = Job::new(words).tier(tier).current_dir(&directory).start();
            for rank in 0..3 {
                let up = directory.join(format!("up.{rank}.0"));
                wait_until(BOUND, || up.exists().then_some(())).expect("it starts");
            }
            let id = id(&job);
            let mut asking = Command::new(rankrun());
            asking.args(["restart", &id]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut asking = asking.spawn().expect("rankrun can be started");
            let asked = || String::from_utf8_lossy(&job.stderr_so_far()).contains("ending attempt 0");
            wait_until(BOUND, || asked().then_some(())).expect("it is said");
            rankrun_tests::pause(Duration::from_micros(random.below(200_000)));
            let (victim, code, signal) = match round % 3 {
                0 => (job.front(), None, Some(9)),
                1 => (job.agent(), Some(121), None),
                _ => (job.guard(), Some(125), None),
            };
            processes::send(victim, Signal::KILL);
            // The harness asserts that no descendant is left.
            let ended = job.finish(BOUND);
            assert_eq!((ended.code, ended.signal), (code, signal), "round {round}: {}", ended.stderr_text());
            asking.wait().expect("it ends");
            fs::remove_dir_all(directory).expect("it is ours");
        }
    }
}
