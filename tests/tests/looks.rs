//! What those see who look at a job that is running: whole lines, each once, and what is missing is said (docs/detach.md).

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Child;

use rankrun_tests::{Job, Tier, listed_job, processes, slowness, wait_until};
use rustix::process::Signal;

use crate::detach::{BOUND, COUNT, Looker, shell};

#[test]
fn a_job_in_the_foreground_is_seen_from_now_on_and_keeps_its_own_output() {
    let words = ["-n", "2", "sh", "-c", COUNT, "100000"];
    let running = Job::new(words).start();
    let job = wait_until(BOUND * slowness(), || listed_job(running.front()));
    let looker = Looker::of(&running, &job.expect("it has an id"));
    let mut last = 0;
    let mut firsts = Vec::new();
    for visit in 0..4 {
        let mut visitor = looker.start(&["attach", "JOB"]);
        let mut reader = BufReader::new(visitor.stdout.take().expect("a pipe"));
        let mut seen = Vec::new();
        reader.read_until(b'\n', &mut seen).expect("it can be read");
        processes::send(visitor.id().cast_signed(), Signal::TERM);
        reader.read_to_end(&mut seen).expect("it can be read");
        assert_eq!(visitor.wait().expect("it ends").code(), None, "it ends by the signal");
        let text = String::from_utf8(seen).expect("text");
        let numbers = text.lines().filter_map(|line| line.strip_prefix("0:")?.strip_suffix(':')?.parse().ok());
        let numbers: Vec<usize> = numbers.collect();
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{text}");
        assert!(numbers.first().is_none_or(|first| *first > last), "{last}: {text}");
        last = numbers.last().copied().unwrap_or(last);
        firsts.extend(numbers.first().map(|first| format!("0:{first}:\n")));
        // Who reads what is kept leaves it as it is. It has what was written while somebody looked.
        let kept = [looker.output(&["logs", "JOB"]), looker.output(&["logs", "JOB"])];
        let text = String::from_utf8_lossy(&kept[0].stdout).into_owned();
        assert!(firsts.iter().all(|first| text.matches(&**first).count() == 1), "{firsts:?} {text}");
        assert_eq!(kept[0].stdout, kept[1].stdout);
        let said = String::from_utf8_lossy(&kept[0].stderr).into_owned();
        assert_eq!(said.matches("while nobody looked").count(), visit, "{said}");
    }
    processes::send(running.front(), Signal::TERM);
    let ended = running.finish(BOUND);
    let text = ended.stdout_text();
    let numbers: Vec<usize> =
        text.lines().filter_map(|line| line.strip_prefix("0:")?.strip_suffix(':')?.parse().ok()).collect();
    assert!(numbers.iter().copied().eq(1..=numbers.len()) && numbers.len() >= last, "{last}");
}

#[test]
fn a_line_that_has_begun_is_seen_whole_and_once_by_who_looks_before_and_after_the_terminal_is_gone() {
    // Each part waits for the file of its name.
    let script = "cd $RANKRUN_TEST_DIR; for part in one two three; do until [ -e $part ]; do sleep 0.01; done; \
                  printf '%s, ' $part; : > $RANKRUN_RANK.$part; done; echo end.";
    for tier in Tier::sampled() {
        let running = Job::new(["--on-hangup", "detach", "-n", "2", "sh", "-c", script]).tier(tier).start();
        let write = |part: &str| {
            running.sign(part);
            (0..2).for_each(|rank| running.wait_for_file(&format!("{rank}.{part}")));
        };
        let job = wait_until(BOUND * slowness(), || listed_job(running.front()));
        let looker = Looker::of(&running, &job.expect("it has an id"));
        let read_until = |viewer: &mut Child, end: &str| {
            let mut reader = viewer.stdout.take().expect("a pipe");
            let mut seen = String::new();
            while !seen.contains(end) {
                let mut room = [0; 4096];
                let count = reader.read(&mut room).expect("it can be read");
                assert!(count > 0, "{seen}");
                seen.push_str(&String::from_utf8_lossy(&room[..count]));
            }
            viewer.stdout = Some(reader);
            seen
        };
        write("one");
        let mut early = looker.start(&["attach", "JOB"]);
        let mut seen = read_until(&mut early, "one, ");
        write("two");
        seen += &read_until(&mut early, "two, ");
        processes::send(running.front(), Signal::HUP);
        let mut viewers = vec![early];
        viewers.extend(
            [["attach", "JOB"].as_slice(), &["logs", "-f", "JOB"], &["attach", "--tail", "all", "JOB"]]
                .map(|words| looker.start(words)),
        );
        write("three");
        let texts: Vec<String> = viewers
            .into_iter()
            .map(|viewer| {
                let output = viewer.wait_with_output().expect("it ends");
                String::from_utf8(output.stdout).expect("text")
            })
            .collect();
        let ended = running.finish(BOUND);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr_text());
        let whole = "one, two, three, end.\n".repeat(2);
        assert_eq!(texts[2], whole, "logs");
        assert_eq!(texts[3], whole, "attach --tail all");
        let own = ended.stdout_text();
        for (text, before, who) in [(&texts[0], &seen, "attach before"), (&texts[1], &own, "attach after")] {
            // An unfinished row is shown again where the other rank has written meanwhile, but never twice in one row.
            let text = format!("{before}|{text}");
            assert_eq!(text.matches("end.\n").count(), 2, "{who}: {text:?}");
            for part in ["one, ", "two, ", "three, "] {
                assert!(!text.contains(&part.repeat(2)) && text.contains(part), "{who}: {part} {text:?}");
            }
        }
    }
}

#[test]
fn a_job_that_ends_before_its_output_could_be_written_says_so() {
    // A file may have 8 KiB.
    let script = "(ulimit -f 8; exec $R --detach --drain 1s -n 1 sh -c 'echo begins; seq 5000') > id || exit 99; \
             $R wait $(cat id); echo code $? > over; $R report $(cat id); until [ -e read ]; do sleep 0.01; done";
    let running = shell(Tier::sampled()[0], script);
    assert_eq!(running.wait_for_text("over"), "code 125\n");
    running.sign("read");
    let report = running.finish(BOUND).stdout_text();
    assert!(report.contains("could not be written, and is lost"), "{report}");
}

#[test]
fn the_rest_of_a_line_whose_beginning_is_not_known_is_not_shown_as_a_line() {
    // The output of one rank passes unchanged: how a line begins is not kept.
    let script = "cd $RANKRUN_TEST_DIR; printf 'one, '; : > printed; until [ -e go ]; do sleep 0.01; done; \
                  printf 'two\\nnext\\nthree, '; : > done; until [ -e unseen ]; do sleep 0.01; done; \
                  printf 'four\\nfive, '; : > written; until [ -e seen ]; do sleep 0.01; done; \
                  printf 'six\\nlast\\n'; : > shown; until [ -e end ]; do sleep 0.01; done";
    let running = Job::new(["-n", "1", "sh", "-c", script]).start();
    running.wait_for_file("printed");
    let job = wait_until(BOUND * slowness(), || listed_job(running.front()));
    let looker = Looker::of(&running, &job.expect("it has an id"));
    let mut viewer = looker.start(&["attach", "JOB"]);
    // It looks when there is a transcript.
    let is_there = || looker.output(&["logs", "JOB"]).status.success().then_some(());
    assert!(wait_until(BOUND * slowness(), is_there).is_some());
    running.sign("go");
    running.wait_for_file("done");
    let mut lines = BufReader::new(viewer.stdout.take().expect("a pipe")).lines();
    assert_eq!(lines.next().expect("it is shown").expect("text"), "next");
    assert_eq!(looker.text(&["logs", "JOB"]), "next\nthree, ");
    // Nobody looks while the next line begins.
    processes::send(viewer.id().cast_signed(), Signal::TERM);
    viewer.wait().expect("it ends");
    assert!(looker.output(&["status", "JOB"]).status.success());
    running.sign("unseen");
    let is_taken = || running.stdout_so_far().ends_with(b"five, ").then_some(());
    assert!(wait_until(BOUND * slowness(), is_taken).is_some());
    let mut viewer = looker.start(&["attach", "JOB"]);
    let is_gap = || looker.text(&["logs", "JOB"]).contains("three,  […]\n").then_some(());
    assert!(wait_until(BOUND * slowness(), is_gap).is_some());
    running.sign("seen");
    running.wait_for_file("shown");
    let mut lines = BufReader::new(viewer.stdout.take().expect("a pipe")).lines();
    assert_eq!(lines.next().expect("it is shown").expect("text"), "last");
    assert_eq!(looker.text(&["logs", "JOB"]), "next\nthree,  […]\nlast\n");
    running.sign("end");
    assert!(lines.next().is_none());
    viewer.wait().expect("it ends");
    assert_eq!(running.finish(BOUND).stdout_text(), "one, two\nnext\nthree, four\nfive, six\nlast\n");
}

#[test]
fn a_line_of_another_attempt_is_not_taken_for_the_rest_of_one_that_a_lost_node_has_left() {
    let directory = tempfile::tempdir().expect("a directory");
    let ssh = directory.path().join("ssh");
    fs::write(&ssh, "#!/bin/sh\nfor line; do :; done\nexec sh -c \"$line\"\n")
        .and_then(|()| fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)))
        .expect("ours");
    let script = "cd $RANKRUN_TEST_DIR; [ $RANKRUN_ATTEMPT = 1 ] || { printf 'open of %s, ' $RANKRUN_RANK; \
                  echo $PPID > part.$RANKRUN_RANK; mv part.$RANKRUN_RANK $RANKRUN_RANK.agent; exec sleep 600; }; : > again; \
                  until [ -e go ]; do sleep 0.01; done; echo first; echo second; until [ -e end ]; do sleep 0.01; done";
    let options = "--restart 1 --backoff 0s..0s -H one:1,two:1 --nnodes 1:2 --ppn 1 --ssh-command";
    let words = options.split(' ').chain([ssh.to_str().expect("text"), "sh", "-c", script]);
    let running = Job::new(words).start();
    let agent = running.wait_for_text("0.agent").trim().parse().expect("a number");
    running.wait_for_file("1.agent");
    // What does not end with a newline is shown after a moment of silence.
    let is_shown = || running.stdout_so_far().windows(9).any(|part| part == b"open of 0").then_some(());
    assert!(wait_until(BOUND * slowness(), is_shown).is_some());
    processes::send(agent, Signal::KILL);
    running.wait_for_file("again");
    let job = wait_until(BOUND * slowness(), || listed_job(running.front()));
    let looker = Looker::of(&running, &job.expect("it has an id"));
    let viewer = looker.start(&["attach", "JOB"]);
    let is_there = || looker.output(&["logs", "JOB"]).status.success().then_some(());
    assert!(wait_until(BOUND * slowness(), is_there).is_some());
    running.sign("go");
    let is_kept = || (looker.text(&["logs", "JOB"]) == "first\nsecond\n").then_some(());
    assert!(wait_until(BOUND * slowness(), is_kept).is_some(), "{}", looker.text(&["logs", "JOB"]));
    running.sign("end");
    let seen = viewer.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&seen.stdout), "first\nsecond\n");
    assert_eq!(running.finish(BOUND).code, Some(0));
}
