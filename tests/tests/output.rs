//! Every line that the ranks write arrives: whole, in order, and before the report of the job's end (docs/output.md).

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rankrun_tests::lines::{Faults, Fill, check, line};
use rankrun_tests::{Ended, Job, Running, full_scale, helper, monotonic, processes, wait_until};

const BOUND: Duration = Duration::from_secs(20);

/// A job of `ranks` ranks that each write `count` lines of `length` bytes.
fn lines(ranks: usize, options: &[&str], count: usize, length: usize, arguments: &[&str]) -> Job {
    let (ranks, count, length, program) = (ranks.to_string(), count.to_string(), length.to_string(), helper("lines"));
    let mut all = vec!["-n", &ranks];
    all.extend(options);
    all.extend([program.as_str(), &count, &length]);
    all.extend(arguments);
    Job::new(all).bound(BOUND)
}

fn succeeded(ended: &Ended) {
    assert_eq!((ended.code, ended.stderr_text()), (Some(0), String::new()));
}

/// The lines without their default tag, `[R] `; every line must bear that of the rank that wrote it.
fn without_tags(output: &[u8]) -> Vec<u8> {
    let mut bare = Vec::new();
    for line in output.split_inclusive(|byte| *byte == b'\n') {
        let end = line.iter().position(|byte| *byte == b']').expect("a tag");
        let tag = String::from_utf8_lossy(&line[1..end]).trim().to_owned();
        let rest = &line[end + 2..];
        assert!(rest.starts_with(format!("{tag}:").as_bytes()), "{:?}", String::from_utf8_lossy(line));
        bare.extend_from_slice(rest);
    }
    bare
}

#[test]
fn lines_of_many_ranks_are_never_torn() {
    let (ranks, count) = (8, full_scale(200_000, 5_000));
    // As a C program writes that fills a buffer, and as an MPI rank whose stdout is unbuffered does.
    for (chunk, count) in [("4096", count), ("1", 200)] {
        let ended = lines(ranks, &[], count, 83, &["--chunk", chunk]).run();
        succeeded(&ended);
        assert_eq!(check(&ended.stdout, ranks, count, 83, Fill::Text), Faults::default(), "chunks of {chunk}");
    }
}

#[test]
fn tagged_lines_bear_the_tag_of_their_rank() {
    let ended = lines(12, &["-l"], 2_000, 83, &["--chunk", "1000"]).run();
    succeeded(&ended);
    assert_eq!(check(&without_tags(&ended.stdout), 12, 2_000, 83, Fill::Text), Faults::default());
}

#[test]
fn lines_of_a_mebibyte_stay_whole() {
    let length = 1 << 20;
    let ended = lines(4, &[], 3, length, &[]).run();
    succeeded(&ended);
    assert_eq!(check(&ended.stdout, 4, 3, length, Fill::Text), Faults::default());
}

#[test]
fn bytes_that_are_no_text_pass_unchanged() {
    for (name, fill) in [("binary", Fill::Binary), ("nul", Fill::Nul)] {
        let ended = lines(3, &[], 500, 83, &["--fill", name]).run();
        succeeded(&ended);
        assert_eq!(check(&ended.stdout, 3, 500, 83, fill), Faults::default(), "{name}");
    }
}

#[test]
fn a_last_line_without_its_newline_arrives() {
    let ended = lines(1, &[], 3, 20, &["--unterminated"]).run();
    succeeded(&ended);
    let mut expected: Vec<u8> = (0..3).flat_map(|number| line(0, number, 20, Fill::Text)).collect();
    expected.pop();
    assert_eq!(ended.stdout, expected, "one rank: byte by byte");

    let ended = lines(4, &["-l"], 1, 20, &["--unterminated"]).run();
    succeeded(&ended);
    assert_eq!(check(&without_tags(&ended.stdout), 4, 1, 20, Fill::Text), Faults::default());
}

#[test]
fn one_rank_is_passed_on_byte_by_byte() {
    let running = Job::new(["-n", "1", "cat"]).stdin(rankrun_tests::Stdin::File(random_file())).start();
    let ended = running.finish(BOUND);
    succeeded(&ended);
    let mut expected = Vec::new();
    random_file().read_to_end(&mut expected).expect("the file can be read");
    assert_eq!(ended.stdout.len(), expected.len());
    assert!(ended.stdout == expected, "bytes differ");
}

/// A file with bytes that no line structure survives: a program.
fn random_file() -> File {
    File::open(helper("lines")).expect("the helper has been built")
}

#[test]
fn stderr_stays_apart_and_whole() {
    let ended = lines(4, &[], 2_000, 83, &["--stderr"]).run();
    assert_eq!(ended.code, Some(0));
    assert!(ended.stdout.is_empty());
    assert_eq!(check(&ended.stderr, 4, 2_000, 83, Fill::Text), Faults::default());
}

#[test]
fn grouped_output_comes_rank_by_rank() {
    let ended = lines(4, &["--output", "grouped"], 1_000, 83, &[]).run();
    succeeded(&ended);
    let ranks: Vec<u8> = ended.stdout.split_inclusive(|byte| *byte == b'\n').map(|line| line[0]).collect();
    assert!(ranks.is_sorted(), "ranks are mixed");
    assert_eq!(check(&ended.stdout, 4, 1_000, 83, Fill::Text), Faults::default());
}

#[test]
fn identical_lines_of_several_ranks_are_folded() {
    // A line waits a moment for the same one of others, and all write long after the last of them has been started.
    let script = "until [ \"$(ls \"$1\" | wc -l)\" = 6 ]; do : > \"$1/$RANKRUN_RANK\"; done; echo same";
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let here = directory.path().to_str().expect("text");
    let ended = Job::new(["-n", "6", "--output", "folded", "sh", "-c", script, "sh", here]).bound(BOUND).run();
    succeeded(&ended);
    let text = ended.stdout_text();
    let mut ranks: Vec<u32> = Vec::new();
    for line in text.lines() {
        let tag =
            line.strip_prefix('[').and_then(|line| line.strip_suffix("] same")).unwrap_or_else(|| panic!("{text}"));
        for part in tag.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            ranks.extend(first.parse::<u32>().expect("a rank")..=last.parse().expect("a rank"));
        }
    }
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2, 3, 4, 5], "{text}");
    assert!(text.lines().count() < 6, "none is folded: {text}");
}

#[test]
fn only_the_ranks_asked_for_are_shown() {
    let ended = lines(6, &["--only", "1,4-5"], 100, 83, &[]).run();
    succeeded(&ended);
    let shown: std::collections::BTreeSet<u8> =
        ended.stdout.split_inclusive(|byte| *byte == b'\n').map(|line| line[0]).collect();
    assert_eq!(shown.into_iter().collect::<Vec<u8>>(), b"145");
    let ended = lines(2, &["--output", "none"], 100, 83, &[]).run();
    succeeded(&ended);
    assert!(ended.stdout.is_empty());
}

#[test]
fn each_rank_and_stream_has_its_log_file() {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let logs = directory.path().join("logs");
    let ended = lines(3, &["--log-dir", logs.to_str().expect("text")], 500, 83, &[]).run();
    succeeded(&ended);
    for rank in 0..3 {
        let expected: Vec<u8> = (0..500).flat_map(|number| line(rank, number, 83, Fill::Text)).collect();
        let content = fs::read(logs.join(format!("rank-{rank:04}.stdout"))).expect("the log was written");
        assert!(content == expected, "rank {rank}");
    }
}

#[test]
fn a_progress_line_leaves_its_last_state_in_a_file() {
    let ended = lines(2, &[], 50, 30, &["--progress", "--chunk", "1"]).run();
    succeeded(&ended);
    let last: Vec<Vec<u8>> = (0..2).map(|rank| line(rank, 49, 30, Fill::Text)).collect();
    let mut shown: Vec<&[u8]> = ended.stdout.split_inclusive(|byte| *byte == b'\n').collect();
    shown.sort_unstable();
    assert_eq!(shown, last);
}

#[test]
fn a_daemon_that_holds_stdout_does_not_hold_up_the_end() {
    let ended = Job::new(["-n", "2", "--linger", "100ms", "--grace", "500ms", &helper("tree"), "--all", "--exit", "0"])
        .bound(BOUND)
        .run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
}

/// A job whose stdout is a pipe that nobody reads, and the reading end.
fn into_a_full_pipe(count: usize, options: &[&str]) -> (Running, std::io::PipeReader) {
    let (reader, writer) = std::io::pipe().expect("a pipe can be made");
    let running = lines(4, options, count, 83, &[]).stdout(OwnedFd::from(writer)).start();
    (running, reader)
}

/// The ranks that are still there.
fn writers(running: &Running) -> Vec<i32> {
    let all = running.processes().into_iter();
    all.filter(|process| process.name == "lines" && process.state != 'Z').map(|process| process.pid).collect()
}

/// Waits until the ranks have come up and have ended. Returns whether they have.
fn ranks_end(running: &Running) -> bool {
    let mut came_up = false;
    let ended = wait_until(BOUND, || {
        let present = !writers(running).is_empty();
        came_up |= present;
        (came_up && !present).then_some(())
    });
    ended.is_some()
}

#[test]
fn a_destination_that_stops_and_goes_on_loses_nothing() {
    let count = 50_000;
    let (running, mut reader) = into_a_full_pipe(count, &[]);
    // 16 MiB were written into a pipe of 64 KiB: the ranks end, the job cannot before somebody reads.
    let ranks_ended = ranks_end(&running);
    assert!(ranks_ended, "the spool takes what the destination does not");
    assert_eq!(running.front_ended(), None, "the output has nowhere to go");
    let mut output = Vec::new();
    reader.read_to_end(&mut output).expect("a pipe can be read");
    succeeded(&running.finish(BOUND));
    assert_eq!(check(&output, 4, count, 83, Fill::Text), Faults::default());
}

#[test]
fn a_destination_that_stops_costs_a_bounded_amount_of_memory() {
    let count = 1_000_000;
    let (running, mut reader) = into_a_full_pipe(count, &["--spool", "1G"]);
    // 332 MB are written, into the spool: the ranks are not held up.
    let pids: Vec<i32> = vec![running.front(), running.guard(), running.agent()];
    let ranks_ended = ranks_end(&running);
    let memory: u64 = pids.iter().map(|pid| processes::proportional_memory(*pid)).sum();
    let mut output = Vec::new();
    reader.read_to_end(&mut output).expect("a pipe can be read");
    succeeded(&running.finish(BOUND));
    assert!(ranks_ended, "the spool takes what the destination does not");
    assert!(memory <= 20 << 20, "{memory} bytes of memory");
    assert_eq!(check(&output, 4, count, 83, Fill::Text), Faults::default());
}

#[test]
fn a_spool_that_is_full_slows_the_ranks_down_and_loses_nothing() {
    let count = 200_000;
    let (running, mut reader) = into_a_full_pipe(count, &["--spool", "8M"]);
    // 66 MB do not fit into 8 MiB: the ranks must be there still when everything has come to rest.
    let mut last = (0, monotonic());
    let rest = wait_until(BOUND, || {
        let written = writers(&running).iter().map(|pid| processes::written(*pid)).sum();
        if written != last.0 {
            last = (written, monotonic());
        }
        (written > 8 << 20 && monotonic() - last.1 > Duration::from_millis(300)).then_some(())
    });
    assert!(rest.is_some(), "the ranks write on");
    let left = writers(&running).len();
    let mut output = Vec::new();
    reader.read_to_end(&mut output).expect("a pipe can be read");
    succeeded(&running.finish(BOUND));
    assert_eq!(left, 4, "the ranks wait");
    assert_eq!(check(&output, 4, count, 83, Fill::Text), Faults::default());
}

#[test]
fn a_destination_that_takes_nothing_holds_up_the_end_no_longer_than_the_drain() {
    let (running, reader) = into_a_full_pipe(50_000, &["--drain", "500ms", "--spool", "1G"]);
    let ended = running.finish(Duration::from_secs(10));
    drop(reader);
    assert!(!ended.stderr.is_empty(), "where the rest of the output is must be said");
}

#[test]
fn a_reader_that_goes_away_ends_the_job_as_sigpipe_would() {
    let (running, mut reader) = into_a_full_pipe(2_000_000, &[]);
    let mut some = [0; 1000];
    reader.read_exact(&mut some).expect("the job writes");
    drop(reader);
    let ended = running.finish(Duration::from_secs(10));
    assert!(ended.signal == Some(13) || ended.code == Some(141), "{:?} {:?}", ended.code, ended.signal);
}

#[test]
fn a_full_disk_fails_the_job_after_the_drain_and_is_told() {
    let full = OpenOptions::new().write(true).open("/dev/full").expect("/dev/full exists");
    let ended = lines(2, &["--drain", "300ms"], 100, 83, &[]).stdout(full).bound(Duration::from_secs(10)).run();
    assert!(ended.code.is_some_and(|code| code != 0), "{:?}", ended.code);
    assert!(ended.stderr_text().contains("No space left on device"), "{}", ended.stderr_text());
}

#[test]
fn a_prompt_is_shown_although_its_line_is_not_finished() {
    let script = "printf 'name? '; read answer; echo \"hello $answer\"";
    let (reader, mut writer) = std::io::pipe().expect("a pipe can be made");
    let input = File::from(OwnedFd::from(reader));
    let job = Job::new(["-n", "2", "-l", "sh", "-c", script]).stdin(rankrun_tests::Stdin::File(input));
    let running = job.start();
    let prompt = wait_until(Duration::from_secs(5), || {
        let text = String::from_utf8_lossy(&running.stdout_so_far()).into_owned();
        text.contains("[0] name? ").then_some(text)
    });
    assert!(prompt.is_some(), "{}", String::from_utf8_lossy(&running.stdout_so_far()));
    writer.write_all(b"you\n").expect("the rank reads");
    drop(writer);
    let ended = running.finish(BOUND);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
    assert!(ended.stdout_text().contains("hello you"), "{}", ended.stdout_text());
}
