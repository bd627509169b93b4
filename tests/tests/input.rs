//! stdin: who reads it, and that nobody else's is eaten (docs/output.md).

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::time::Duration;

use rankrun_tests::{Job, Stdin, rankrun};

const BOUND: Duration = Duration::from_secs(20);

#[test]
fn a_while_read_loop_around_rankrun_loses_no_line() {
    let script = format!("while read -r line; do '{}' -n 1 true; echo \"$line\"; done", rankrun().display());
    let input: String = (0..20).map(|number| format!("line {number}\n")).collect();
    let ended = Job::of_program("sh", ["-c", &script]).stdin(Stdin::Bytes(input.clone().into_bytes())).run();
    assert_eq!(ended.stdout_text(), input, "{}", ended.stderr_text());
}

#[test]
fn what_a_rank_leaves_unread_in_a_file_is_left_for_the_next_program() {
    let mut file = tempfile::tempfile().expect("the temporary directory can be written");
    file.write_all(b"first\nsecond\n").and_then(|()| file.seek(SeekFrom::Start(0))).expect("the file is ours");
    // bash reads a file no further than the end of the line.
    let job = Job::new(["-n", "1", "bash", "-c", "read -r line; echo got $line"]);
    let ended = job.stdin(Stdin::File(file.try_clone().expect("a descriptor can be copied"))).run();
    assert_eq!(ended.stdout_text(), "got first\n", "{}", ended.stderr_text());
    let mut rest = String::new();
    file.read_to_string(&mut rest).expect("the file can be read");
    assert_eq!(rest, "second\n");
}

#[test]
fn rank_0_reads_and_the_others_see_the_end() {
    let ended = Job::new(["-n", "4", "-l", "wc", "-c"]).stdin(Stdin::Bytes(vec![b'x'; 100_000])).bound(BOUND).run();
    let mut lines: Vec<String> = ended.stdout_text().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] 100000", "[1] 0", "[2] 0", "[3] 0"], "{}", ended.stderr_text());
}

#[test]
fn another_rank_all_or_none_can_be_given_the_input() {
    for (target, expected) in [("2", [0, 0, 9]), ("all", [9, 9, 9]), ("none", [0, 0, 0])] {
        let job = Job::new(["-n", "3", "-l", "--stdin", target, "wc", "-c"]);
        let ended = job.stdin(Stdin::Bytes(b"some text".to_vec())).bound(BOUND).run();
        let mut lines: Vec<String> = ended.stdout_text().lines().map(str::to_owned).collect();
        lines.sort_unstable();
        let expected: Vec<String> = (0..3).zip(expected).map(|(rank, count)| format!("[{rank}] {count}")).collect();
        assert_eq!(lines, expected, "--stdin {target}: {}", ended.stderr_text());
    }
}

#[test]
fn a_rank_that_is_started_again_after_the_end_of_the_input_reads_the_end() {
    let words = ["-n", "2", "--stdin", "all", "--keep-going", "--restart-scope", "rank", "--restart", "1"];
    let rank = ["--backoff", "0s..0s", "sh", "-c", "cat; [ $RANKRUN_ATTEMPT = 1 ] || exit 3"];
    let job = Job::new(words.into_iter().chain(rank));
    let ended = job.stdin(Stdin::Bytes(b"line\n".to_vec())).bound(BOUND).run();
    assert_eq!((ended.code, ended.stdout_text().as_str()), (Some(0), "line\nline\n"), "{}", ended.stderr_text());
}

#[test]
fn every_rank_gets_all_of_a_shared_input_however_late_it_starts() {
    let ranks = 40;
    let job = Job::new(["-n", &ranks.to_string(), "--stdin", "all", "wc", "-c"]);
    let ended = job.stdin(Stdin::Bytes(vec![b'x'; 300_000])).bound(BOUND).run();
    let lines: Vec<String> = ended.stdout_text().lines().map(str::to_owned).collect();
    assert_eq!(lines, vec!["300000"; ranks], "{}", ended.stderr_text());
}

#[test]
fn a_rank_that_cannot_be_started_keeps_no_other_from_a_shared_input() {
    let directory = tempfile::tempdir().expect("a directory");
    let broken = directory.path().join("broken");
    // A program whose dynamic linker is not there.
    let mut program = std::fs::read("/bin/true").expect("a program");
    let linker = program.windows(8).position(|window| window == b"ld-linux").expect("it is linked dynamically");
    program[linker] = b'x';
    std::fs::write(&broken, program).expect("a program");
    std::fs::set_permissions(&broken, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("it is ours");
    let broken = broken.to_str().expect("a path of ours").to_owned();
    let job = Job::new(["--stdin", "all", "--keep-going", "-n", "1", "wc", "-c", ":", "-n", "1", &broken]);
    let ended = job.stdin(Stdin::Bytes(vec![b'x'; 300_000])).bound(BOUND).run();
    assert_eq!(ended.stdout_text(), "300000\n", "{}", ended.stderr_text());
    assert_eq!(ended.code, Some(127), "{}", ended.stderr_text());
}

#[test]
fn the_flags_of_the_callers_descriptor_stay_as_they_are() {
    let (reader, writer) = std::io::pipe().expect("a pipe can be made");
    let file = File::from(std::os::fd::OwnedFd::from(reader));
    let before = rustix::fs::fcntl_getfl(&file).expect("a pipe has flags");
    let ended = Job::new(["-n", "2", "true"]).stdin(Stdin::File(file.try_clone().expect("a copy"))).run();
    drop(writer);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert_eq!(rustix::fs::fcntl_getfl(&file).expect("a pipe has flags"), before);
}
