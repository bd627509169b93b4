//! The stdin of detached jobs: what those who attach give, the ranks read, once and in order (docs/detach.md).

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rankrun_tests::screen::Session;
use rankrun_tests::{
    Hosts, Job, Random, Running, Tier, full_scale, pause, processes, rankrun, seeds, slowness, wait_until,
};
use rustix::process::Signal;

use crate::succession::{front_of, text};

const BOUND: Duration = Duration::from_secs(60);

/// A job that is detached from the start, and waited for.
fn start(tier: Tier, options: &str, rank: &str) -> (Running, String) {
    let script = format!(
        "cd $RANKRUN_TEST_DIR; J=$($R --detach {options} sh -c '{rank}') || exit 99; echo $J > id; exec $R wait $J"
    );
    let job = Job::of_program("sh", ["-c", &script]).tier(tier).env("R", rankrun()).env_remove("RANKRUN_JOURNAL");
    let running = job.start();
    let job = running.wait_for_text("id").trim().to_owned();
    (running, job)
}

fn command(running: &Running, words: &[&str]) -> Command {
    let mut command = Command::new(rankrun());
    command.args(words).env("XDG_STATE_HOME", running.directory().join("state")).stdin(Stdio::null());
    command
}

fn ask(running: &Running, words: &[&str]) -> Output {
    command(running, words).output().expect("rankrun can be started")
}

/// Somebody who attaches, and gives what is written to the pipe.
fn typist(running: &Running, job: &str) -> Child {
    let mut command = command(running, &["attach", "--stdin", "--tail", "all", job]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("rankrun can be started")
}

/// The same with the bytes of a file to its end.
fn give(running: &Running, job: &str, bytes: &[u8]) -> Output {
    let mut file = tempfile::tempfile().expect("there is room");
    file.write_all(bytes).and_then(|()| std::io::Seek::rewind(&mut file)).expect("the file is ours");
    let mut command = command(running, &["attach", "--stdin", "--tail", "all", job]);
    command.stdin(file).output().expect("rankrun can be started")
}

#[test]
fn a_file_is_given_to_its_end() {
    let bytes: Vec<u8> = (0..200_000u32).map(|at| (at.wrapping_mul(at) >> 3) as u8).collect();
    for tier in Tier::available() {
        for (target, readers) in [("0", vec![0]), ("2", vec![2]), ("all", vec![0, 1, 2])] {
            let rank = "cat > got.$RANKRUN_RANK; echo read $RANKRUN_RANK";
            let (running, job) = start(tier, &format!("-n 3 --stdin {target}"), rank);
            let given = give(&running, &job, &bytes);
            assert_eq!(given.status.code(), Some(0), "{}", text(&given));
            assert_eq!(text(&given).matches("read ").count(), 3, "{}", text(&given));
            for rank in 0..3 {
                let got = fs::read(running.directory().join(format!("got.{rank}"))).expect("each has one");
                let expected: &[u8] = if readers.contains(&rank) { &bytes } else { &[] };
                assert!(got == expected, "--stdin {target}: rank {rank} has {} bytes", got.len());
            }
            assert_eq!(running.finish(BOUND).code, Some(0));
        }
    }
}

#[test]
fn who_cannot_give_anything_is_told_so() {
    let (running, job) = start(Tier::sampled()[0], "-n 1", "until [ -e go ]; do sleep 0.01; done; cat");
    let refused = give(&running, &job, b"x");
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(text(&refused).contains("its ranks have no stdin that could be given"), "{}", text(&refused));
    assert!(text(&refused).contains("--detach --stdin RANK"), "{}", text(&refused));
    running.sign("go");
    assert_eq!(running.finish(BOUND).code, Some(0), "cat has read the end");
    // The end belongs to the job.
    let rank = "cat; : > read; until [ -e go ]; do sleep 0.01; done";
    let (running, job) = start(Tier::sampled()[0], "-n 1 --stdin 0", rank);
    let mut first = typist(&running, &job);
    drop(first.stdin.take());
    running.wait_for_file("read");
    let late = give(&running, &job, b"x");
    assert!(text(&late).contains("the stdin of its ranks has ended"), "{}", text(&late));
    running.sign("go");
    assert_eq!(first.wait().expect("it ends").code(), Some(0));
    assert_eq!(running.finish(BOUND).code, Some(0));
}

#[test]
fn each_attempt_reads_on_and_is_told_the_end() {
    let rank = "read l; echo $RANKRUN_ATTEMPT:$l; [ $RANKRUN_ATTEMPT = 2 ] || exit 3";
    for options in ["-n 1", "-n 2 --keep-going --restart-scope rank"] {
        let options = format!("{options} --stdin 0 --restart 2 --backoff 0s..0s");
        let rank = format!("[ $RANKRUN_RANK = 0 ] || exit 0; {rank}");
        let (running, job) = start(Tier::sampled()[0], &options, &rank);
        let mut typist = typist(&running, &job);
        let mut input = typist.stdin.take().expect("piped");
        for attempt in 0..2 {
            writeln!(input, "line {attempt}").expect("it reads");
            let line = format!("{attempt}:line {attempt}\n");
            let is_read = || text(&ask(&running, &["logs", &job])).contains(&line).then_some(());
            assert!(wait_until(BOUND * slowness(), is_read).is_some(), "{options}: {line}");
        }
        drop(input);
        let output = typist.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{options}: {}", text(&output));
        assert!(text(&output).contains("2:\n"), "{options}: {}", text(&output));
        assert_eq!(running.finish(BOUND).code, Some(0));
    }
}

#[test]
fn what_is_given_between_two_attempts_is_for_the_next_one() {
    let rank = "[ $RANKRUN_RANK = 0 ] || exit 0; read l; echo $RANKRUN_ATTEMPT:$l; [ $RANKRUN_ATTEMPT = 1 ] || exit 3";
    for options in ["-n 1", "-n 2 --keep-going --restart-scope rank"] {
        let options = format!("{options} --stdin 0 --restart 1 --backoff 2s..2s");
        let (running, job) = start(Tier::sampled()[0], &options, rank);
        let mut typist = typist(&running, &job);
        let mut input = typist.stdin.take().expect("piped");
        input.write_all(b"one\n").expect("it reads");
        let is_between = || text(&ask(&running, &["logs", &job])).contains("restarting").then_some(());
        assert!(wait_until(BOUND * slowness(), is_between).is_some(), "{options}");
        input.write_all(b"two\n").expect("it reads");
        let output = typist.wait_with_output().expect("it ends");
        assert!(text(&output).contains("1:two\n"), "{options}: {}", text(&output));
        assert_eq!(running.finish(BOUND).code, Some(0));
    }
}

#[test]
fn who_gives_more_than_is_read_is_told_so() {
    // It reads no more than a pipe holds, and ends; another rank runs on.
    let rank = "[ $RANKRUN_RANK = 1 ] || { read l; : > read; until [ -e end ]; do sleep 0.01; done; exit 0; }; \
                until [ -e go ]; do sleep 0.01; done";
    let (running, job) = start(Tier::sampled()[0], "-n 2 --stdin 0", rank);
    let mut typist = typist(&running, &job);
    let mut input = typist.stdin.take().expect("piped");
    input.write_all(&b"line\n".repeat(20_000)).expect("it reads");
    running.wait_for_file("read");
    running.sign("end");
    let mut said = BufReader::new(typist.stderr.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("text");
    if line.contains("no rank has its stdin open") {
        // Its pipe is seen to be closed before it is known that it has ended.
        line.clear();
        said.read_line(&mut line).expect("text");
    }
    assert_eq!(line, "rankrun: nothing more that is typed is read: the rank that reads stdin has ended\n");
    let refused = give(&running, &job, b"late\n");
    assert!(text(&refused).contains("the rank that reads stdin has ended"), "{}", text(&refused));
    running.sign("go");
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("text");
    assert!(rest.contains("bytes were not given to the ranks"), "{rest}");
    assert_eq!(typist.wait().expect("it ends").code(), Some(0));
    assert_eq!(running.finish(BOUND).code, Some(0));
}

#[test]
fn what_cannot_be_read_does_not_end_the_stdin_of_the_ranks() {
    let (running, job) = start(Tier::sampled()[0], "-n 1 --stdin 0", "cat > got");
    let mut attach = command(&running, &["attach", "--stdin", &job]);
    attach.stdin(File::open("/").expect("it is there")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut attach = attach.spawn().expect("rankrun can be started");
    let mut said = String::new();
    BufReader::new(attach.stderr.take().expect("piped")).read_line(&mut said).expect("text");
    assert_eq!(said, "rankrun: cannot read stdin: Is a directory\n");
    assert_eq!(give(&running, &job, b"text").status.code(), Some(0));
    assert_eq!(attach.wait().expect("it ends").code(), Some(0));
    assert_eq!(fs::read_to_string(running.directory().join("got")).expect("it is there"), "text");
    assert_eq!(running.finish(BOUND).code, Some(0));
}

#[test]
fn who_types_is_told_when_no_rank_has_its_stdin_open() {
    for target in ["0", "all"] {
        let rank = "[ $RANKRUN_RANK != 0 ] || read x; exec <&-; : > $RANKRUN_RANK.closed; \
                    until [ -e end ]; do sleep 0.01; done";
        let (running, job) = start(Tier::sampled()[0], &format!("-n 2 --stdin {target}"), rank);
        let mut typist = typist(&running, &job);
        let mut input = typist.stdin.take().expect("a pipe");
        input.write_all(b"one\n").expect("it is taken");
        (0..2).for_each(|rank| running.wait_for_file(&format!("{rank}.closed")));
        input.write_all(b"two\n").expect("it is taken");
        let mut said = String::new();
        let mut errors = typist.stderr.take().expect("a pipe");
        while !said.contains("nobody reads") {
            let mut room = [0; 1024];
            let count = errors.read(&mut room).expect("it can be read");
            assert!(count > 0, "{target}: {said}");
            said.push_str(&String::from_utf8_lossy(&room[..count]));
        }
        running.sign("end");
        assert_eq!(typist.wait().expect("it ends").code(), Some(0), "{target}: {said}");
        drop(input);
        let ended = running.finish(BOUND);
        assert_eq!(ended.code, Some(0), "{}", ended.stdout_text());
    }
}

#[test]
fn lines_are_typed_on_a_terminal() {
    let tier = Tier::sampled()[0];
    let rank = "while read -r l; do echo got:$l:; done; echo end of it";
    let (running, job) = start(tier, "-n 1 --stdin 0", rank);
    let mut session = Session::start(tier);
    let state = running.directory().join("state");
    let attach = format!("XDG_STATE_HOME={} $R attach --stdin {job}; echo code $?", state.display());
    session.line(&attach);
    session.screen.wait_for("its ranks read what you type");
    session.screen.press("one\n");
    session.screen.wait_for("got:one:");
    session.screen.press("a~.b\n~c\n");
    session.screen.wait_for("got:a~.b:");
    session.screen.wait_for("got:~c:");
    session.screen.press("~.\n");
    session.wait_for_prompt();
    session.screen.wait_for_row("code 0");
    session.line(&attach);
    session.screen.wait("a second look", |screen| screen.all().matches("~. leaves it").count() == 2);
    session.screen.press("\x03");
    session.screen.wait_for("stop job");
    session.screen.press("x");
    session.screen.wait_for("going on");
    session.screen.press("two\n");
    session.screen.wait_for("got:two:");
    session.screen.press("\x04");
    session.screen.wait_for("end of it");
    session.wait_for_prompt();
    session.finish();
    assert_eq!(running.finish(BOUND).code, Some(0));
}

/// Gives numbered lines, and kills the front meanwhile: `front` finds it, and `kill` does that.
fn give_lines(typist: &mut Child, count: usize, seed: u64, mut kill: impl FnMut()) {
    let random = &mut Random::new(seed);
    let mut input = typist.stdin.take().expect("piped");
    let kills: Vec<usize> = (0..3).map(|_| random.below(count as u64) as usize).collect();
    for number in 0..count {
        writeln!(input, "{number}").expect("it reads");
        if kills.contains(&number) {
            kill();
        }
        pause(Duration::from_millis(random.below(4)));
    }
}

fn assert_lines(path: &Path, count: usize, what: &str) {
    let mut got = String::new();
    File::open(path).and_then(|mut file| file.read_to_string(&mut got)).expect("the rank has made it");
    let expected: String = (0..count).map(|number| format!("{number}\n")).collect();
    let differs = got.lines().zip(expected.lines()).find(|(one, other)| one != other);
    assert!(got == expected, "{what}: {} of {} bytes, {differs:?}", got.len(), expected.len());
}

#[test]
fn what_is_given_is_read_once_however_often_the_front_is_killed() {
    for tier in Tier::available() {
        for seed in seeds(full_scale(40, 2)) {
            let what = format!("{tier:?}, seed {seed}");
            let rank = "while read -r l; do echo $l; done > got.$RANKRUN_RANK";
            let (running, job) = start(tier, "--on-front-lost wait:1m -n 2 --stdin all", rank);
            let mut typist = typist(&running, &job);
            give_lines(&mut typist, 300, seed, || {
                if let Some(front) = front_of(&ask(&running, &["status", &job, "--json"])) {
                    processes::send(front, Signal::KILL);
                }
            });
            let output = typist.wait_with_output().expect("it ends");
            assert_eq!(output.status.code(), Some(0), "{what}: {}", text(&output));
            for rank in 0..2 {
                assert_lines(&running.directory().join(format!("got.{rank}")), 300, &what);
            }
            assert_eq!(running.finish(BOUND).code, Some(0), "{what}");
        }
    }
}

#[test]
fn ranks_of_other_hosts_read_what_is_given() {
    let Some(hosts) = Hosts::up(2) else { return };
    let front = hosts.front();
    let got = hosts.directory().join("got");
    let rank = format!("[ $RANKRUN_RANK = 1 ] || exit 0; while read -r l; do echo $l; done > {}", got.display());
    let mut begin = front.command(rankrun());
    begin.args(["--detach", "--on-front-lost", "wait:1m", "--stdin", "1", "-H", &hosts.names()]);
    let begun = begin.args(["sh", "-c", &rank]).stdin(Stdio::null()).output().expect("rankrun can be started");
    assert!(begun.status.success(), "{}", text(&begun));
    let job = String::from_utf8(begun.stdout).expect("text").trim().to_owned();
    let mut attach = front.command(rankrun());
    attach.args(["attach", "--stdin", &job]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut typist = attach.spawn().expect("rankrun can be started");
    give_lines(&mut typist, 300, *seeds(1).start(), || {
        let mut status = front.command(rankrun());
        let status = status.args(["status", &job, "--json"]).output().expect("rankrun can be started");
        if let Some(front) = front_of(&status) {
            processes::send(front, Signal::KILL);
        }
    });
    let output = typist.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_lines(&got, 300, "two hosts");
    hosts.finish(BOUND);
}

#[test]
fn a_node_that_is_lost_and_has_not_read_holds_up_nobody() {
    let Some(hosts) = Hosts::up(2) else { return };
    let front = hosts.front();
    let got = hosts.directory().join("got");
    let rank =
        format!("[ $RANKRUN_RANK = 0 ] || exec sleep 600; while read -r l; do echo $l; done > {}", got.display());
    let mut begin = front.command(rankrun());
    begin.args(["--detach", "--keep-going", "--stdin", "all", "-H", &hosts.names()]);
    let begun = begin.args(["sh", "-c", &rank]).stdin(Stdio::null()).output().expect("rankrun can be started");
    assert!(begun.status.success(), "{}", text(&begun));
    let job = String::from_utf8(begun.stdout).expect("text").trim().to_owned();
    let mut attach = front.command(rankrun());
    attach.args(["attach", "--stdin", &job]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut typist = attach.spawn().expect("rankrun can be started");
    let lines: String = (0..30_000).map(|number| format!("{number}\n")).collect();
    let mut input = typist.stdin.take().expect("piped");
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let is_held = || {
        let read = fs::metadata(&got).map_or(0, |meta| meta.len());
        pause(Duration::from_millis(300));
        (read > 0 && fs::metadata(&got).map_or(0, |meta| meta.len()) == read).then_some(())
    };
    assert!(wait_until(BOUND * slowness(), is_held).is_some(), "the other rank does not read");
    let agents = hosts.node(1).survivors().into_iter().filter(|process| process.name == "rr-agent");
    let agents: Vec<i32> = agents.map(|process| process.pid).collect();
    assert!(!agents.is_empty(), "{:?}", hosts.node(1).survivors());
    agents.into_iter().for_each(|agent| processes::send(agent, Signal::KILL));
    let output = typist.wait_with_output().expect("it ends");
    writer.join().expect("it writes").expect("it is read");
    assert_lines(&got, 30_000, "the other node");
    assert!(text(&output).contains("node"), "{}", text(&output));
    hosts.finish(BOUND);
}
