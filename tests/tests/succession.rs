//! Jobs whose front is killed: another one takes its place, no line is lost or doubled, and the end is the same (docs/detach.md).

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use rankrun_tests::{
    Host, Hosts, Job, Random, Running, Tier, full_scale, pause, processes, rankrun, seeds, slowness, wait_until,
};
use rustix::process::Signal;
use serde_json::Value;

const BOUND: Duration = Duration::from_secs(60);
const LINES: usize = 3_000;

/// Ranks that write numbered lines, in bursts. $0: what the first attempt of rank 1 does in the middle; all others write all.
const COUNT: &str = "n=0; while [ $n -lt 3000 ]; do n=$((n+1)); echo $RANKRUN_ATTEMPT.$RANKRUN_RANK:$n:; \
                     [ $((n % 50)) != 0 ] || sleep 0.01; \
                     [ $n$RANKRUN_RANK$RANKRUN_ATTEMPT != 150010 ] || eval \"$0\"; done";

/// What rank 1 does in the middle where the job is to live until it is told to go on.
const WAIT: &str = "until [ -e $RANKRUN_TEST_DIR/go ]; do sleep 0.01; done";

/// How a job ends.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// All ranks write all.
    Well,
    /// They wait for the file `go` in the middle.
    Waits,
    /// Rank 1 fails in the middle.
    Fails,
    /// The same, and the next attempt writes all.
    Restarts,
}

impl Way {
    fn options(self) -> &'static str {
        if matches!(self, Way::Restarts) { "--restart 1 --backoff 0s..0s" } else { "" }
    }

    fn what(self) -> &'static str {
        match self {
            Way::Well => "true",
            Way::Waits => WAIT,
            Way::Fails => "echo ValueError: bad cell >&2; exit 3",
            Way::Restarts => "exit 4",
        }
    }

    fn code(self) -> i32 {
        if matches!(self, Way::Fails) { 3 } else { 0 }
    }

    /// That each rank has written all of its lines once and in order, up to where its attempt was ended.
    fn check(self, text: &str, ranks: usize, what: &str) {
        let mut seen = vec![[0; 2]; ranks];
        for line in text.lines().filter(|line| line.ends_with(':')) {
            let (attempt, rest) = line.split_once('.').unwrap_or_else(|| panic!("{what}: torn line {line:?}"));
            let (rank, number) = rest.split_once(':').unwrap_or_else(|| panic!("{what}: torn line {line:?}"));
            let of = |text: &str| text.trim_end_matches(':').parse::<usize>().unwrap_or_else(|_| panic!("{line:?}"));
            let last = &mut seen[of(rank)][of(attempt)];
            assert_eq!(of(number), *last + 1, "{what}: a line of rank {rank} is lost or doubled");
            *last += 1;
        }
        for (rank, [first, second]) in seen.into_iter().enumerate() {
            match self {
                Way::Well | Way::Waits => assert_eq!((first, second), (LINES, 0), "{what}, rank {rank}"),
                Way::Fails => assert!(second == 0 && (rank != 1 || first == 1500), "{what}, rank {rank}: {first}"),
                Way::Restarts => assert_eq!(second, LINES, "{what}, rank {rank}: {first}"),
            }
        }
    }
}

/// A job that is detached from the start, and waited for. The output of that has two lines: its id, and the end.
fn start(tier: Tier, wait: &str, ranks: usize, way: Way) -> Running {
    let script = format!(
        "cd $RANKRUN_TEST_DIR; J=$($R --detach --on-front-lost wait:{wait} {} -n {ranks} sh -c '{COUNT}' '{}') || exit 99; \
         echo $J > id; $R wait $J; C=$?; \
         [ ! -e again ] || {{ $R resume $J > r 2>&1; echo $? >> r; mv r resumed; $R wait $J; C=$?; }}; exit $C",
        way.options(),
        way.what()
    );
    Job::of_program("sh", ["-c", &script]).tier(tier).env("R", rankrun()).env_remove("RANKRUN_JOURNAL").start()
}

/// Runs rankrun for a job of a test.
fn ask(running: &Running, words: &[&str]) -> std::process::Output {
    let mut command = Command::new(rankrun());
    command.args(words).env("XDG_STATE_HOME", running.directory().join("state")).stdin(Stdio::null());
    command.output().expect("rankrun can be started")
}

fn text(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The front of a job now.
fn front_of(status: &std::process::Output) -> Option<i32> {
    let status: Value = serde_json::from_slice(&status.stdout).ok()?;
    status["front_pid"].as_i64().map(|pid| pid as i32)
}

/// The process that waits for the end of the front.
fn heir_of(running: &Running, job: &str) -> Option<i32> {
    let title = format!("rankrun: heir of job {job}");
    let is_heir =
        |pid: i32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(title.as_bytes()));
    running.processes().into_iter().map(|process| process.pid).find(|pid| is_heir(*pid))
}

fn job_of(running: &Running) -> String {
    running.wait_for_text("id").trim().to_owned()
}

#[test]
fn a_job_goes_on_whenever_its_front_is_killed() {
    for tier in Tier::available() {
        for seed in seeds(full_scale(120, 3)) {
            let random = &mut Random::new(seed);
            let way = random.one_of(&[Way::Well, Way::Fails, Way::Restarts]);
            let what = format!("{tier:?}, seed {seed}, {way:?}");
            let running = start(tier, "1m", 3, way);
            let job = job_of(&running);
            for _ in 0..1 + random.below(4) {
                pause(Duration::from_millis(random.below(400)));
                let of_job = random.one_of(&[heir_of(&running, &job), None]);
                if let Some(heir) = of_job {
                    // The front starts another one, or is gone itself.
                    processes::send(heir, Signal::KILL);
                    let is_another =
                        || heir_of(&running, &job).is_some_and(|now| now != heir) || running.front_ended().is_some();
                    let is_another = wait_until(BOUND * slowness(), || is_another().then_some(()));
                    assert!(is_another.is_some(), "{what}: nobody takes the place of the heir");
                }
                if let Some(front) = front_of(&ask(&running, &["status", &job, "--json"])) {
                    processes::send(front, Signal::KILL);
                }
            }
            let kept = running.directory().join("kept");
            let ended = wait_until(BOUND * slowness(), || running.front_ended());
            assert!(ended.is_some(), "{what}: it does not end");
            let logs = ask(&running, &["logs", &job]);
            fs::write(&kept, &logs.stdout).expect("the directory is ours");
            let report = text(&ask(&running, &["report", &job]));
            let ended = running.finish(BOUND);
            assert_eq!(ended.code, Some(way.code()), "{what}: {} {}", ended.stdout_text(), ended.stderr_text());
            way.check(&String::from_utf8_lossy(&logs.stdout), 3, &what);
            if matches!(way, Way::Fails) {
                assert!(report.contains("rank 1 failed: ValueError: bad cell"), "{what}: {report}");
            }
        }
    }
}

/// Kills the front of a job and what would start another. What waits for the job then resumes it.
fn kill_both(running: &Running, job: &str) {
    let front = front_of(&ask(running, &["status", job, "--json"])).expect("it runs");
    let heir = heir_of(running, job).expect("it waits");
    running.sign("again");
    // Or it starts another one.
    processes::send(front, Signal::STOP);
    processes::send(heir, Signal::KILL);
    processes::send(front, Signal::KILL);
}

#[test]
fn a_front_is_followed_by_one_that_the_user_starts_where_its_heir_is_gone_too() {
    for tier in Tier::sampled() {
        let running = start(tier, "1m", 2, Way::Waits);
        let job = job_of(&running);
        let refused = ask(&running, &["resume", &job]);
        assert!(!refused.status.success() && text(&refused).contains("is alive"), "{}", text(&refused));
        kill_both(&running, &job);
        // Whoever asks for the job is told how it can be resumed, or it is resumed by then.
        let asked = text(&ask(&running, &["status", &job]));
        let hint = format!("\"rankrun resume {job}\" goes on with it");
        assert!(asked.contains(&hint) || asked.contains("2 ranks"), "{asked}");
        let resumed = running.wait_for_text("resumed");
        assert_eq!(resumed, format!("{job}\n0\n"));
        running.sign("go");
        let over = wait_until(BOUND * slowness(), || running.front_ended());
        assert!(over.is_some(), "it does not end");
        Way::Waits.check(&text(&ask(&running, &["logs", &job])), 2, "resumed");
        let ended = running.finish(BOUND);
        assert_eq!(ended.code, Some(0), "{}", ended.stdout_text());
        assert!(ended.stderr_text().contains(&hint), "{}", ended.stderr_text());
    }
}

#[test]
fn the_ranks_end_where_no_front_comes_in_time() {
    for tier in Tier::available() {
        let running = start(tier, "1s", 2, Way::Waits);
        let job = job_of(&running);
        kill_both(&running, &job);
        let is_over = || running.processes().iter().all(|process| process.name != "rr-agent").then_some(());
        assert!(wait_until(BOUND * slowness(), is_over).is_some(), "{:?}", running.processes());
        // It finds what has become of the job, and says so.
        let ended = running.finish(BOUND);
        assert_eq!(ended.code, Some(121), "{} {}", ended.stdout_text(), ended.stderr_text());
        assert!(ended.stdout_text().contains("no front came in time"), "{}", ended.stdout_text());
    }
}

/// What a host says of a job.
fn on(host: &Host, words: &[&str]) -> std::process::Output {
    host.command(rankrun()).args(words).stdin(Stdio::null()).output().expect("rankrun can be started")
}

#[test]
fn a_job_on_three_hosts_goes_on_whenever_its_front_is_killed() {
    let Some(hosts) = Hosts::up(3) else { return };
    let front = hosts.front();
    for seed in seeds(full_scale(40, 3)) {
        let random = &mut Random::new(seed);
        let way = random.one_of(&[Way::Well, Way::Fails, Way::Restarts]);
        let what = format!("seed {seed}, {way:?}");
        let mut command = front.command(rankrun());
        command.args(["--detach", "--on-front-lost", "wait:1m", "-H", &hosts.names(), "--ppn", "1"]);
        command.args(way.options().split_whitespace()).args(["sh", "-c", COUNT, way.what()]).stdin(Stdio::null());
        let begun = command.output().expect("rankrun can be started");
        assert!(begun.status.success(), "{what}: {}", text(&begun));
        let job = String::from_utf8_lossy(&begun.stdout).trim().to_owned();
        for _ in 0..1 + random.below(3) {
            pause(Duration::from_millis(random.below(400)));
            if let Some(front) = front_of(&on(front, &["status", &job, "--json"])) {
                processes::send(front, Signal::KILL);
            }
        }
        let waited = on(front, &["wait", &job]);
        assert_eq!(waited.status.code(), Some(way.code()), "{what}: {}", text(&waited));
        let kept = on(front, &["logs", &job]);
        way.check(&String::from_utf8_lossy(&kept.stdout), 3, &what);
    }
    hosts.finish(BOUND);
}
