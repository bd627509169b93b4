//! Jobs whose front is killed: another one takes its place, no line is lost or doubled, and the end is the same (docs/detach.md).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rankrun_tests::{
    Job, Random, Running, Tier, full_scale, pause, processes, rankrun, seeds, skip, slowness, wait_until,
};
use rustix::process::Signal;
use serde_json::Value;

const BOUND: Duration = Duration::from_secs(60);
const LINES: usize = 3_000;

/// Ranks that write numbered lines, in bursts. $0: what the first attempt of rank 1 does in the middle. All others write all, and wait for
/// a rank that fails.
pub(crate) const COUNT: &str = "n=0; while [ $n -lt 3000 ]; do n=$((n+1)); echo $RANKRUN_ATTEMPT.$RANKRUN_RANK:$n:; \
                     [ $((n % 50)) != 0 ] || sleep 0.01; \
                     [ $n$RANKRUN_RANK$RANKRUN_ATTEMPT != 150010 ] || eval \"$0\"; done; \
                     case \"$0\" in *exit*) [ $RANKRUN_ATTEMPT != 0 ] || sleep 600;; esac";

/// What rank 1 does in the middle where the job is to live until it is told to go on.
const WAIT: &str = "until [ -e $RANKRUN_TEST_DIR/go ]; do sleep 0.01; done";

/// How a job ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Way {
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
    pub(crate) fn options(self) -> &'static str {
        if matches!(self, Way::Restarts) { "--restart 1 --backoff 0s..0s" } else { "" }
    }

    pub(crate) fn what(self) -> &'static str {
        match self {
            Way::Well => "true",
            Way::Waits => WAIT,
            Way::Fails => "echo ValueError: bad cell >&2; exit 3",
            Way::Restarts => "exit 4",
        }
    }

    pub(crate) fn code(self) -> i32 {
        if matches!(self, Way::Fails) { 3 } else { 0 }
    }

    /// That each rank has written all of its lines once and in order, up to where its attempt was ended.
    pub(crate) fn check(self, text: &str, ranks: usize, what: &str) {
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
    start_with(&rankrun(), "", tier, wait, ranks, way)
}

/// The same with this program and these options, whose job runs in the directory of the test. `$W` is the binary
/// itself: a test may remove `program` before the shell runs `wait`.
fn start_with(program: &Path, options: &str, tier: Tier, wait: &str, ranks: usize, way: Way) -> Running {
    let script = format!(
        "cd $RANKRUN_TEST_DIR; J=$($R --detach --on-front-lost wait:{wait} {options} {} -n {ranks} sh -c '{COUNT}' '{}') || exit 99; \
         echo $J > id; \
         {{ until [ -e over ]; do sleep 0.05; \
            [ ! -e again ] || {{ rm again; $W resume $J > r 2>&1; echo $? >> r; mv r resumed; }}; done }} & \
         $W wait $J; C=$?; : > over; wait; \
         [ ! -e late ] || {{ $W resume $J; $W wait $J; C=$?; }}; exit $C",
        way.options(),
        way.what()
    );
    Job::of_program("sh", ["-c", &script])
        .tier(tier)
        .env("R", program)
        .env("W", rankrun())
        .env_remove("RANKRUN_JOURNAL")
        .start()
}

/// Runs rankrun for a job of a test.
fn ask(running: &Running, words: &[&str]) -> std::process::Output {
    let mut command = Command::new(rankrun());
    command.args(words).env("XDG_STATE_HOME", running.directory().join("state")).stdin(Stdio::null());
    command.output().expect("rankrun can be started")
}

pub(crate) fn text(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The front of a job now.
pub(crate) fn front_of(status: &std::process::Output) -> Option<i32> {
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

/// What a report says but for what differs between two jobs that go the same way: names, times, processes, and how far the victims came.
pub(crate) fn told(report: &[u8], job: &str) -> Value {
    const OF_ONE_JOB: [&str; 9] =
        ["job", "pid", "at", "started", "seconds", "began", "started_at", "ended_at", "command"];
    fn normal(value: Value, job: &str) -> Value {
        match value {
            Value::Object(fields) => {
                let kept = fields.into_iter().filter(|(name, _)| !OF_ONE_JOB.contains(&name.as_str()));
                kept.map(|(name, value)| (name, normal(value, job))).collect()
            }
            Value::Array(values) => values.into_iter().map(|value| normal(value, job)).collect(),
            Value::String(text) => {
                let text = text.replace(job, "JOB");
                let parts = text.split(|letter: char| letter.is_ascii_digit() || letter == '.');
                Value::String(parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("#"))
            }
            other => other,
        }
    }
    let report =
        serde_json::from_slice(report).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(report)));
    normal(report, job)
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
                    // The front starts another heir; or it is dead: then the heir has a child, or no front follows.
                    processes::send(heir, Signal::KILL);
                    let is_another =
                        || heir_of(&running, &job).is_some_and(|now| now != heir) || running.front_ended().is_some();
                    let is_alone = || text(&ask(&running, &["status", &job])).contains("\"rankrun resume");
                    let found = || if is_another() { Some(true) } else { is_alone().then_some(false) };
                    match wait_until(BOUND * slowness(), found) {
                        Some(true) => {}
                        // With `late` the shell waits again, if `wait` has ended before the resume.
                        Some(false) => ["late", "again"].iter().for_each(|sign| running.sign(sign)),
                        None => panic!("{what}: nobody takes the place of the heir"),
                    }
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

/// Kills the front of a job and what would start another.
fn kill_both(running: &Running, job: &str) {
    let front = front_of(&ask(running, &["status", job, "--json"])).expect("it runs");
    let heir = heir_of(running, job).expect("it waits");
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
        // Whoever asks for the job is told how it can be resumed. Who waits for its end goes on.
        let asked = text(&ask(&running, &["status", &job]));
        let hint = format!("\"rankrun resume {job}\" goes on with it");
        assert!(asked.contains(&hint), "{asked}");
        let is_told = || String::from_utf8_lossy(&running.stderr_so_far()).contains(&hint).then_some(());
        assert!(wait_until(BOUND * slowness(), is_told).is_some(), "nobody says so");
        running.sign("again");
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
        running.sign("late");
        kill_both(&running, &job);
        let is_over = || running.processes().iter().all(|process| process.name != "rr-agent").then_some(());
        assert!(wait_until(BOUND * slowness(), is_over).is_some(), "{:?}", running.processes());
        // It finds what has become of the job, and says so.
        let ended = running.finish(BOUND);
        assert_eq!(ended.code, Some(121), "{} {}", ended.stdout_text(), ended.stderr_text());
        assert!(ended.stderr_text().contains("and no other one goes on with it"), "{}", ended.stderr_text());
        assert!(ended.stdout_text().contains("no front came in time"), "{}", ended.stdout_text());
    }
}

#[test]
fn a_front_that_cannot_take_the_place_of_another_one_says_why() {
    let running = start(Tier::available()[0], "5s", 2, Way::Waits);
    let job = job_of(&running);
    let base = format!("/tmp/rankrun-{}", rustix::process::geteuid().as_raw());
    let front = front_of(&ask(&running, &["status", &job, "--json"])).expect("it runs");
    // It must not add to it meanwhile.
    processes::send(front, Signal::STOP);
    fs::write(format!("{base}/{job}/ledger"), [0xff; 64]).expect("it is ours");
    processes::send(front, Signal::KILL);
    let said = || {
        let status = text(&ask(&running, &["status", &job]));
        status.contains("another front could not take its place").then_some(status)
    };
    let said = wait_until(BOUND * slowness(), said).expect("somebody says why");
    assert!(said.contains(&format!("cannot take over job {job}: it is no ledger")), "{said}");
    assert!(wait_until(BOUND * slowness(), || running.front_ended()).is_some(), "the wait does not end");
    // What could be resumed stays until somebody says that it is not wanted.
    fs::remove_dir_all(format!("{base}/{job}")).expect("it is ours");
    let ended = running.finish(BOUND);
    assert_eq!(ended.code, Some(125), "{} {}", ended.stdout_text(), ended.stderr_text());
    assert!(ended.stderr_text().contains("and no other one goes on with it"), "{}", ended.stderr_text());
}

#[test]
fn a_job_goes_on_whose_working_directory_is_gone() {
    let running = start(Tier::available()[0], "1m", 2, Way::Waits);
    let job = job_of(&running);
    let front = front_of(&ask(&running, &["status", &job, "--json"])).expect("it runs");
    processes::send(front, Signal::STOP);
    let (there, elsewhere) = (running.directory().to_owned(), running.directory().with_extension("moved"));
    fs::rename(&there, &elsewhere).expect("it is ours");
    processes::send(front, Signal::KILL);
    let is_followed = || front_of(&ask(&running, &["status", &job, "--json"])).filter(|now| *now != front);
    let followed = wait_until(BOUND * slowness(), is_followed);
    fs::rename(&elsewhere, &there).expect("it is ours");
    assert!(followed.is_some(), "nobody takes its place");
    go_on(running, &job, "elsewhere");
}

/// Lets a job of [`Way::Waits`] go on, and checks that it ends well with all of its lines.
fn go_on(running: Running, job: &str, what: &str) {
    running.sign("go");
    assert!(wait_until(BOUND * slowness(), || running.front_ended()).is_some(), "{what}: it does not end");
    Way::Waits.check(&text(&ask(&running, &["logs", job])), 2, what);
    let ended = running.finish(BOUND);
    assert_eq!(ended.code, Some(0), "{what}: {} {}", ended.stdout_text(), ended.stderr_text());
}

#[test]
fn a_job_goes_on_whose_program_was_removed() {
    let copy = tempfile::tempdir().expect("a directory");
    let program = copy.path().join("rankrun");
    fs::copy(rankrun(), &program).expect("there is room");
    let running = start_with(&program, "", Tier::available()[0], "1m", 2, Way::Waits);
    let job = job_of(&running);
    let front = front_of(&ask(&running, &["status", &job, "--json"])).expect("it runs");
    fs::remove_file(&program).expect("it is ours");
    processes::send(front, Signal::KILL);
    go_on(running, &job, "without its program");
}

#[test]
fn the_process_that_writes_the_transcript_is_replaced_if_it_is_killed() {
    let running = start(Tier::available()[0], "1m", 2, Way::Waits);
    let job = job_of(&running);
    let writer = || {
        let all = running.processes().into_iter().filter(|process| process.name == "rr-storage");
        let writes = |pid: i32| {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains("transcript"))
        };
        all.map(|process| process.pid).find(|pid| writes(*pid))
    };
    processes::send(wait_until(BOUND * slowness(), writer).expect("it writes"), Signal::KILL);
    go_on(running, &job, "without a writer");
}

#[test]
fn a_host_that_refuses_once_is_called_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let (refuses, ssh) = (directory.path().join("refuses"), directory.path().join("ssh"));
    let script = format!(
        "#!/bin/sh\nif rm {} 2> /dev/null; then echo Connection refused >&2; exit 255; fi\nfor line; do :; done\nexec sh -c \"$line\"\n",
        refuses.display()
    );
    fs::write(&ssh, script).and_then(|()| fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755))).expect("ours");
    let options = format!("--ssh-command {} -H elsewhere:2", ssh.display());
    let running = start_with(&rankrun(), &options, Tier::available()[0], "1m", 2, Way::Waits);
    let job = job_of(&running);
    let front = front_of(&ask(&running, &["status", &job, "--json"])).expect("it runs");
    fs::write(&refuses, "").expect("it is ours");
    processes::send(front, Signal::KILL);
    assert!(wait_until(BOUND * slowness(), || (!refuses.exists()).then_some(())).is_some(), "nobody calls it");
    go_on(running, &job, "refused");
}

/// A command of a user who is neither the job's owner nor root.
fn as_nobody(program: &Path, words: &[&str]) -> std::process::Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(program).args(words);
    command.stdin(Stdio::null()).output().expect("setpriv is there")
}

#[test]
fn nobody_else_sees_a_detached_job_or_takes_its_place() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can run rankrun as another user");
    }
    // A user who may not enter the directory of the build.
    let copy = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().expect("a directory");
    let program = copy.path().join("rankrun");
    fs::copy(rankrun(), &program).expect("there is room");
    let running = start(Tier::available()[0], "1m", 2, Way::Waits);
    let job = job_of(&running);
    let is_refused = |words: &[&str]| {
        let refused = as_nobody(&program, words);
        let told = text(&refused);
        assert_eq!(refused.status.code(), Some(2), "{words:?}: {told}");
        assert!(told.contains("is not yours: it belongs to user root"), "{words:?}: {told}");
    };
    let all: [&[&str]; 9] = [
        &["attach"],
        &["logs"],
        &["wait"],
        &["detach"],
        &["stop"],
        &["restart"],
        &["resume"],
        &["profile"],
        &["status"],
    ];
    all.iter().for_each(|words| is_refused(&[words, &[job.as_str()][..]].concat()));
    // What it has in file systems, and where another front would come in.
    let base = format!("/tmp/rankrun-{}", rustix::process::geteuid().as_raw());
    for name in ["", "deed", "ledger", "control.sock"] {
        let place = format!("{base}/{job}/{name}");
        let read = as_nobody(Path::new("cat"), &[&place]);
        assert!(!read.status.success() && text(&read).contains("Permission denied"), "{place}: {}", text(&read));
    }
    let doors = fs::read_to_string("/proc/net/unix").expect("it can be read");
    let of_job = |line: &str| line.split('@').nth(1).filter(|name| name.contains(&job)).map(str::to_owned);
    let door = doors.lines().find_map(of_job).expect("the agent listens for another front");
    let garbage = "import socket, sys
kept = []
for number in range(300):
    client = socket.socket(socket.AF_UNIX)
    client.connect('\\0' + sys.argv[1])
    try:
        client.sendall([b'', b'\\0' * 5000, b'\\xff' * 12, b'GET / HTTP/1.1\\r\\n\\r\\n'][number % 4])
        assert not client.recv(1), 'it answers'
    except (BrokenPipeError, ConnectionResetError):
        pass
    kept.append(client)";
    let tried = as_nobody(Path::new("/usr/bin/python3"), &["-c", garbage, &door]);
    assert!(tried.status.success(), "{}", text(&tried));
    let front = front_of(&ask(&running, &["status", &job, "--json"])).expect("it runs");
    processes::send(front, Signal::KILL);
    all.iter().for_each(|words| is_refused(&[words, &[job.as_str()][..]].concat()));
    go_on(running, &job, "beside strangers");
}
