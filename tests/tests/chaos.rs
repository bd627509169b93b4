//! Random misfortunes at random moments, also while a job is only starting. After each, the promises are checked.
//!
//! The misfortunes follow from a seed, which a failure names: `RANKRUN_TEST_SEED=N` plays them again, as far as the
//! machine's own timing allows; `RANKRUN_TEST_SEED=N-M` plays those of several seeds.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::time::Duration;

use rankrun_tests::{
    Ended, Job, Random, Running, Tier, compile, full_scale, helper, monotonic, pause, processes, rankrun, seeds, skip,
    wait_until,
};
use rustix::process::Signal;

/// A job that has not ended by itself after so long is sent a signal.
const PATIENCE: Duration = Duration::from_millis(300);

/// From then on: the guard's lease, the grace, and a margin for a busy machine.
const BOUND: Duration = Duration::from_secs(15);

/// After at most 2^`scale` µs, a signal to any process of the job but the file system that hangs for it.
fn hit(random: &mut Random, notes: &mut Vec<String>, running: &Running, scale: u64, signals: &[Signal]) {
    let scale = random.below(scale);
    pause(Duration::from_micros(random.below(1 << scale)));
    let present: Vec<_> = running.processes().into_iter().filter(|process| process.name != "dead_fs").collect();
    if let Some(victim) = present.get(random.below(present.len().max(1) as u64) as usize) {
        let signal = random.one_of(signals);
        notes.push(format!("{signal:?} to {victim:?}, the front is {}", running.front()));
        processes::send(victim.pid, signal);
    }
}

/// One job, and at most two signals to any of its processes. What was done is noted for the message of a failure.
fn misfortune(random: &mut Random, notes: &mut Vec<String>) {
    let ranks = (1 + random.below(5)).to_string();
    let tier = random.one_of(&Tier::available());
    let tree = helper("tree");
    let mut all = vec!["-n", &ranks, "--grace", "1s", "--linger", "100ms", &tree];
    all.extend(random.one_of(&[&[][..], &["--alone"], &["--obedient"], &["--exit", "3"], &["--signal", "11"]]));
    notes.push(format!("{tier:?} {}", all.join(" ")));
    let running = Job::new(&all).tier(tier).start();
    for _ in 0..1 + random.below(2) {
        let scale = random.below(17);
        pause(Duration::from_micros(random.below(1 << scale)));
        // The first process is the front; the others follow as they were found.
        let present = running.processes();
        if present.is_empty() {
            break;
        }
        let victim = &present[random.below(present.len() as u64) as usize];
        let signal = match random.below(8) {
            0 => Signal::TERM,
            1 => Signal::INT,
            2 => Signal::HUP,
            // A front that is stopped cannot return, and should not; a stopped guard has a test of its own. When the front
            // has been killed, the guard has nobody of the job above it: the agent continues it with its last act, and
            // a stop that comes later stays, as it would for any program.
            3 if victim.parent != running.front() && present.iter().any(|it| it.pid == victim.parent) => Signal::STOP,
            _ => Signal::KILL,
        };
        notes.push(format!("{signal:?} to {victim:?}, the front is {}", running.front()));
        processes::send(victim.pid, signal);
    }
    if wait_until(PATIENCE, || running.front_ended()).is_none() {
        notes.push("TERM to the front".to_owned());
        processes::send(running.front(), Signal::TERM);
    }
    running.finish(BOUND);
}

/// Plays misfortunes, each by its seed.
fn play(count: u64, misfortune: fn(&mut Random, &mut Vec<String>)) {
    for seed in seeds(count) {
        let mut random = Random::new(seed);
        let mut notes = Vec::new();
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| misfortune(&mut random, &mut notes)));
        assert!(outcome.is_ok(), "RANKRUN_TEST_SEED={seed}: {notes:#?}");
    }
}

#[test]
fn misfortunes_at_any_moment_leave_nothing() {
    play(full_scale(400, 25), misfortune);
}

/// What comes of each rank are its numbered lines, all up to where they end, whatever happened. Returns for each rank the
/// number of the line that would have been the next.
fn next_lines(ended: &Ended, ranks: u64) -> Vec<u64> {
    let mut next = vec![1u64; ranks as usize];
    let mut is_cut = vec![false; ranks as usize];
    for line in ended.stdout_text().lines() {
        // A rank that was ended in the middle of a line has written the beginning of it, and nothing after it.
        let rank = line.split(' ').next().and_then(|rank| rank.parse::<usize>().ok()).filter(|rank| *rank < next.len());
        let Some(rank) = rank else { panic!("{line:?} is of no rank") };
        let expected = format!("{rank} {}", next[rank]);
        // The beginning of a line that was not finished for a while, for which a line of another rank made room, is marked;
        // the whole line comes later.
        let (written, is_marked) = line.strip_suffix(" […]").map_or((line, false), |written| (written, true));
        assert!(!is_cut[rank] && expected.starts_with(written), "{line:?} comes where {expected:?} should");
        if is_marked {
            continue;
        }
        if line == expected { next[rank] += 1 } else { is_cut[rank] = true }
    }
    next
}

/// Gives a job a disk of few kilobytes for its log files, in a namespace of mounts of its own.
const SMALL_DISK: &str = r#"mkdir "$RANKRUN_TEST_DIR/disk" &&
mount -t tmpfs -o size="$SIZE"k none "$RANKRUN_TEST_DIR/disk" && exec "$0" --drain 500ms \
--log-dir "$RANKRUN_TEST_DIR/disk/logs" "$@""#;

/// Lets a job have few open files.
const FEW_FILES: &str = r#"ulimit -n "$SIZE" && exec "$0" "$@""#;

/// Limits the size of the files that rankrun writes.
const SMALL_FILES: &str = r#"mkdir "$RANKRUN_TEST_DIR/disk" && ulimit -f "$SIZE" && exec "$0" --drain 500ms \
--log-dir "$RANKRUN_TEST_DIR/disk/logs" "$@""#;

/// One job that lacks something, and at most one signal. Its ranks write numbered lines and exit with 0.
fn want(random: &mut Random, notes: &mut Vec<String>) {
    let (ranks, lines) = (1 + random.below(6), random.one_of(&[10, 1000, 50_000]));
    let (script, size) = match random.below(if rustix::process::geteuid().is_root() { 3 } else { 2 }) {
        0 => (FEW_FILES, 16 + random.below(120)),
        1 => (SMALL_FILES, 1 + random.below(400)),
        _ => (SMALL_DISK, 4 + random.below(400)),
    };
    let rankrun = rankrun().display().to_string();
    let (number, last) = (ranks.to_string(), lines.to_string());
    let command = format!("exec seq -f \"$RANKRUN_RANK %.0f\" {last}");
    let mut all = if script == SMALL_DISK { vec!["unshare", "-m", "sh"] } else { vec!["sh"] };
    all.extend(["-c", script, &rankrun, "-n", &number, "--output", "line", "--grace", "1s", "sh", "-c", &command]);
    let tier = random.one_of(&Tier::available());
    notes.push(format!("{tier:?} SIZE={size} {}", all.join(" ")));
    let job = Job::of_program(all[0], &all[1..]).env("SIZE", size.to_string()).env_remove("XDG_RUNTIME_DIR").tier(tier);
    let running = job.start();
    let is_hit = random.below(2) == 0;
    if is_hit {
        hit(random, notes, &running, 19, &[Signal::KILL, Signal::TERM]);
    }
    let ended = running.finish(BOUND);
    notes.push(format!("{:?} {:?}: {}", ended.code, ended.signal, ended.stderr_text()));
    let next = next_lines(&ended, ranks);
    let is_complete = next.iter().all(|next| *next == lines + 1);
    match (ended.code, ended.signal) {
        (Some(0), _) => assert!(is_complete, "a success with lost lines: {next:?}"),
        // Without its storage process the front refuses the job.
        (Some(2), _) if is_hit => assert_eq!(next, vec![1; ranks as usize], "nothing was started"),
        (Some(2), _) => assert_eq!((next, script), (vec![1; ranks as usize], FEW_FILES), "nothing was started"),
        _ if is_hit => {}
        (code, signal) => {
            assert!(script != FEW_FILES, "a job that had begun ran out of descriptors: {code:?} {signal:?}");
            assert!(!ended.stderr.is_empty() && signal.is_none(), "no word about the failure");
            assert!(!matches!(code, Some(121 | 123)), "the node was not lost: {code:?}");
        }
    }
}

#[test]
fn want_of_disks_and_descriptors_ends_jobs_in_order_and_loses_no_line() {
    play(full_scale(400, 20), want);
}

/// Front, guard or agent of a job, as soon as it is there.
type Who = fn(&Running) -> i32;

#[test]
fn two_of_three_that_are_killed_while_the_job_starts_leave_nothing() {
    let three: [(&str, Who); 3] = [("front", Running::front), ("guard", Running::guard), ("agent", Running::agent)];
    let mut random = Random::new(1);
    for round in 0..full_scale(50, 4) {
        for (first, find_first) in three {
            for (second, find_second) in three.into_iter().filter(|(name, _)| *name != first) {
                let tier = random.one_of(&Tier::available());
                let running = Job::new(["-n", "3", "--grace", "1s", "sleep", "600"]).tier(tier).start();
                let pids = [find_first(&running), find_second(&running)];
                for pid in pids {
                    let longest = random.one_of(&[500, 3000, 10_000]);
                    pause(Duration::from_micros(random.below(longest)));
                    processes::send(pid, Signal::KILL);
                }
                let outcome = panic::catch_unwind(AssertUnwindSafe(|| running.finish(BOUND)));
                assert!(outcome.is_ok(), "round {round}: {first}, then {second}, {tier:?}");
            }
        }
    }
}

/// A stop of the agent, or of the guard, that is shorter changes nothing: guard and front give up who is stopped for a
/// second.
const SHORT: Duration = Duration::from_millis(600);

/// What ranks do that write so many numbered lines, with a rest in the middle. Rank 0 ends with `code`.
fn writing(lines: u64, rest: u64, code: u64) -> String {
    let half = lines / 2;
    format!(
        "seq -f \"$RANKRUN_RANK %.0f\" 1 {half}; sleep {}.{:03}; seq -f \"$RANKRUN_RANK %.0f\" {} {lines}; \
         test $RANKRUN_RANK != 0 || exit {code}",
        rest / 1000,
        rest % 1000,
        half + 1
    )
}

/// One job of which front, guard and agent are stopped, one to three of them, each for a while. Guard and agent may be
/// stopped for good. A front is always continued, since it could not return.
fn stops(random: &mut Random, notes: &mut Vec<String>) {
    let (ranks, lines, rest) = (1 + random.below(4), random.one_of(&[2, 1000, 100_000]), random.below(1500));
    let (code, tier) = (random.one_of(&[0, 3]), random.one_of(&Tier::available()));
    let (number, command) = (ranks.to_string(), writing(lines, rest, code));
    let all = ["-n", &number, "--output", "line", "--grace", "1s", "--linger", "100ms", "sh", "-c", &command];
    notes.push(format!("{tier:?} {}", all.join(" ")));
    let running = Job::new(all).tier(tier).start();
    let three: [(&str, i32); 3] = [("front", running.front()), ("guard", running.guard()), ("agent", running.agent())];
    let scale = random.below(21);
    pause(Duration::from_micros(random.below(1 << scale)));
    // Who is stopped, in which order, and how long: most often two of them, or all.
    let mut left = three.to_vec();
    let mut stopped = Vec::new();
    for _ in 0..random.one_of(&[1, 2, 2, 2, 3, 3]) {
        let (who, pid) = left.remove(random.below(left.len() as u64) as usize);
        let scale = random.below(15);
        pause(Duration::from_micros(random.below(1 << scale)));
        processes::send(pid, Signal::STOP);
        let for_good = who != "front" && random.below(4) == 0;
        let time = Duration::from_millis(random.one_of(&[5, 300, 2500]) + random.below(250));
        notes.push(format!(
            "{who} ({pid}) is stopped {}",
            if for_good { "for good".into() } else { format!("for {time:?}") }
        ));
        stopped.push((who, pid, monotonic() + time, (!for_good).then_some(time)));
    }
    let mut to_continue: Vec<_> = stopped.iter().filter(|(.., time)| time.is_some()).collect();
    to_continue.sort_by_key(|(_, _, at, _)| *at);
    let mut longest = Duration::ZERO;
    for (_, pid, at, time) in to_continue {
        pause(at.saturating_sub(monotonic()));
        longest = longest.max(time.unwrap_or_default() + monotonic().saturating_sub(*at));
        processes::send(*pid, Signal::CONT);
    }
    let ended = running.finish(BOUND);
    let text = ended.stderr_text();
    notes.push(format!("{:?} {:?}: {text}", ended.code, ended.signal));
    let next = next_lines(&ended, ranks);
    let others = stopped.iter().filter(|(who, ..)| *who != "front");
    let is_short = longest < SHORT && others.clone().all(|(.., time)| time.is_some());
    let may_be_lost = others.clone().count() > 0 && !is_short;
    match ended.code {
        Some(0) => {
            assert_eq!((code, next), (0, vec![lines + 1; ranks as usize]), "no success");
            assert!(!text.contains("failed") && !text.contains("lost"), "{text}");
        }
        Some(3) => {
            assert_eq!((code, next[0]), (3, lines + 1), "the lines of the rank that failed");
            assert!(text.contains("rank 0 failed: exited with code 3"), "{text}");
        }
        Some(121) => {
            assert!(may_be_lost, "nobody was stopped for long");
            assert!(text.contains(" was lost: "), "{text}");
        }
        code => panic!("{code:?} does not fit"),
    }
}

#[test]
fn pairs_and_triples_that_are_stopped_end_jobs_in_time_and_lose_no_line() {
    play(full_scale(400, 6), stops);
}

/// Users of nobody's, so that nobody else's processes count: one of them for each process of tests.
fn unused_user() -> u32 {
    62_000 + std::process::id() % 1_000
}

/// One job of a user who may have few processes and files, of which its ranks may use up what there is.
fn exhaustion(random: &mut Random, notes: &mut Vec<String>) {
    let user = unused_user().to_string();
    let (ranks, lines) = (1 + random.below(6), random.one_of(&[10, 1000, 50_000]));
    let (most, files) = (2 + random.below(40), random.one_of(&[24, 48, 96, 1024]) + random.below(16));
    let forks = random.below(2) == 0;
    let waster = "i=0; while [ $i -lt 60 ]; do sleep 600 & i=$((i + 1)); done 2>/dev/null; ";
    // A shell that cannot fork gives up; then the rank writes nothing, and fails.
    let command = format!("exec seq -f \"$RANKRUN_RANK %.0f\" {lines}");
    let command = if forks { format!("({waster}); {command}") } else { command };
    let rankrun = rankrun().display().to_string();
    let (number, limits) = (ranks.to_string(), [format!("--nproc={most}:{most}"), format!("--nofile={files}:{files}")]);
    let all = ["--reuid", &user, "--regid", &user, "--clear-groups", "prlimit", &limits[0], &limits[1], &rankrun];
    let options = ["-n", &number, "--output", "line", "--grace", "1s", "--linger", "100ms", "sh", "-c", &command];
    let all = [&all[..], &options].concat();
    notes.push(format!("setpriv {}", all.join(" ")));
    let running = Job::of_program("setpriv", &all).env_remove("XDG_RUNTIME_DIR").start();
    let is_hit = random.below(3) == 0;
    if is_hit {
        hit(random, notes, &running, 19, &[Signal::KILL, Signal::TERM]);
    }
    let ended = running.finish(BOUND);
    let text = ended.stderr_text();
    notes.push(format!("{:?} {:?}: {text}", ended.code, ended.signal));
    let next = next_lines(&ended, ranks);
    if ended.code == Some(0) {
        assert_eq!(next, vec![lines + 1; ranks as usize], "a success with lost lines");
    } else if !is_hit {
        assert!(
            ended.signal.is_none() && text.contains("rankrun: ") || text.starts_with("error: "),
            "no word about it"
        );
        assert!(!matches!(ended.code, Some(121 | 123)), "the node was not lost");
    }
}

#[test]
fn want_of_processes_ends_jobs_in_order_and_loses_no_line() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can run rankrun as another user");
    }
    let outcome = panic::catch_unwind(|| play(full_scale(250, 10), exhaustion));
    // What Python compiles of the hook stays for a user's next job, and this user has none.
    match fs::remove_dir_all(format!("/tmp/rankrun-{}", unused_user())) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
        _ => {}
    }
    outcome.unwrap_or_else(|panic| panic::resume_unwind(panic));
}

/// Where a file system is that never answers, how a job gets there, and what may come of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hang {
    Home,
    ReportDirectory,
    LogDirectory,
    LogFile,
    ErrorFile,
    Journal,
    WorkingDirectory,
}

impl Hang {
    const ALL: [Hang; 7] = [
        Hang::Home,
        Hang::ReportDirectory,
        Hang::LogDirectory,
        Hang::LogFile,
        Hang::ErrorFile,
        Hang::Journal,
        Hang::WorkingDirectory,
    ];

    /// The words before the options of rankrun, which is `$0`, and the first of these.
    fn words(self) -> &'static str {
        match self {
            Hang::Home => r#"env -u XDG_STATE_HOME HOME="$DEAD" "$0""#,
            Hang::ReportDirectory => r#""$0" --report-dir "$DEAD""#,
            Hang::LogDirectory => r#""$0" --log-dir "$DEAD/logs""#,
            Hang::LogFile => r#""$0" --log-dir "$RANKRUN_TEST_DIR/logs""#,
            Hang::ErrorFile => r#"env TORCHELASTIC_ERROR_FILE="$DEAD/error.json" "$0""#,
            Hang::Journal => r#""$0" --journal "$DEAD/journal""#,
            Hang::WorkingDirectory => r#""$0" --wdir "$DEAD""#,
        }
    }
}

/// One job that comes upon a file system that never answers, and at most one signal.
fn hang(random: &mut Random, notes: &mut Vec<String>) {
    let place = random.one_of(&Hang::ALL);
    let (ranks, lines, rest) = (1 + random.below(4), random.one_of(&[2, 1000, 50_000]), random.below(300));
    let (code, tier) = (random.one_of(&[0, 3]), random.one_of(&Tier::available()));
    let dead_fs = dead_fs();
    let script = format!(
        r#"DEAD="$RANKRUN_TEST_DIR/dead"; mkdir "$DEAD" "$RANKRUN_TEST_DIR/logs" &&
        ln -s "$DEAD/x" "$RANKRUN_TEST_DIR/logs/rank-0000.stdout" && exec {dead_fs} "$DEAD" {} "$@""#,
        place.words()
    );
    let (rankrun, number, command) = (rankrun().display().to_string(), ranks.to_string(), writing(lines, rest, code));
    let all = ["-c", &script, &rankrun, "-n", &number, "--output", "line", "--drain", "1s", "--grace", "1s"];
    let all = [&all[..], &["--linger", "100ms", "sh", "-c", &command]].concat();
    notes.push(format!("{tier:?} {place:?} sh {}", all.join(" ")));
    let running = Job::of_program("sh", &all).tier(tier).start();
    let mut is_hit = random.below(3) == 0;
    if is_hit {
        hit(random, notes, &running, 21, &[Signal::KILL, Signal::TERM, Signal::INT]);
    }
    if place == Hang::WorkingDirectory && wait_until(PATIENCE, || running.front_ended()).is_none() {
        // Its ranks have 60 s to come to their exec.
        is_hit = true;
        notes.push("TERM to the front".to_owned());
        processes::send(running.front(), Signal::TERM);
    }
    let ended = running.finish(BOUND);
    let text = ended.stderr_text();
    notes.push(format!("{:?} {:?} after {:?}: {text}", ended.code, ended.signal, ended.elapsed()));
    let next = next_lines(&ended, ranks);
    if ended.code == Some(0) {
        assert_eq!((code, &next), (0, &vec![lines + 1; ranks as usize]), "no success");
    }
    if is_hit {
        return;
    }
    match place {
        Hang::LogDirectory | Hang::Journal => {
            assert_eq!((ended.code, next), (Some(2), vec![1; ranks as usize]), "nothing is started");
            assert!(text.contains("no answer from its file system"), "{text}");
        }
        Hang::LogFile => {
            assert!(ended.code == Some(125) || ended.code == Some(code as i32) && code != 0, "a log file is missing");
            assert_eq!(next[0], lines + 1);
            assert!(text.contains("no answer from ") && text.contains("gave up log files"), "{text}");
        }
        Hang::Home | Hang::ReportDirectory | Hang::ErrorFile | Hang::WorkingDirectory => {
            assert_eq!((ended.code, next[0]), (Some(code as i32), lines + 1));
            assert_eq!(text.contains("rank 0 failed: exited with code 3"), code == 3, "{text}");
            let is_written = code == 3 || place == Hang::ReportDirectory;
            assert_eq!(text.contains("cannot write "), is_written, "{text}");
        }
    }
}

fn dead_fs() -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/dead_fs.c");
    compile("cc", &["-O1", "-Wall"], &source, "dead_fs").display().to_string()
}

#[test]
fn file_systems_that_never_answer_hold_up_no_end_and_cost_no_line() {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let probe = std::process::Command::new(dead_fs()).arg(directory.path()).arg("true").output();
    if !probe.expect("the program can be started").status.success() {
        return skip("no FUSE file system can be mounted");
    }
    play(full_scale(250, 8), hang);
}
