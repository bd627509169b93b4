//! What holds of every conclusion, whatever programs write and do.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::causes::CAUSE_WIDTH;
use crate::conclusion::sample_tests;
use crate::evidence::{Class, MpiEvent, Source};
use crate::exit::ExitCode;
use crate::gang::{Event, Gang, Rules};
use crate::grace::{StopRecord, Work};
use crate::headline::{Circumstances, WIDTH, headline};
use crate::ids::{GangId, Pid, Rank, worker};
use crate::last_words::words;
use crate::order::{SETTLE, Weight};
use crate::printable::fit;
use crate::report::OutputFate;
use crate::status::WorkerStatus;
use crate::stderr::{Tail, Tails, Words};
use crate::testimony::{Exception, Testimony};
use crate::verdict::{Origin, Verdict, verdict};
use crate::window::{MOST, window};

const RANKS: u32 = 3;
/// When rankrun's signals reach the other ranks, after the stop was ordered.
const UNTIL_SENT: u64 = 2;

fn gang() -> Gang {
    let second = Duration::from_secs(1);
    let rules =
        Rules { grace_failure: second, grace_outside: second, timeout: None, keep_going: false, terminal: None };
    let mut gang = Gang::new(GangId::default(), RANKS, rules);
    for rank in 0..RANKS {
        feed(&mut gang, 0, Event::Started { worker: worker(rank), pid: leader(rank) });
    }
    gang
}

fn leader(rank: u32) -> Pid {
    Pid(100 + rank as i32)
}

fn feed(gang: &mut Gang, ms: u64, event: Event) {
    gang.handle(Duration::from_millis(ms), event, &mut Vec::new());
}

fn is_headline(gang: &Gang, verdict: &Verdict) -> Result<(), TestCaseError> {
    let circumstances = Circumstances { code: verdict.code, output: OutputFate::Written, node: "n", why_lost: None };
    let text = headline(verdict, gang, circumstances);
    prop_assert!(!text.trim().is_empty());
    prop_assert!(fit(&text, WIDTH) == text, "{text:?}");
    prop_assert!(!text.chars().any(char::is_control), "{text:?}");
    let cause = verdict.culprit.as_ref().map_or("-", |culprit| culprit.cause.as_str());
    prop_assert!(!cause.trim().is_empty() && fit(cause, CAUSE_WIDTH) == cause, "{cause:?}");
    Ok(())
}

/// How a rank of a random job fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failure {
    /// It exits, and says nothing.
    Silent(u8),
    /// It reports an exception as it happens, and exits.
    Raises,
    /// It reports that it lost a peer.
    LosesPeer,
    /// It prints a traceback.
    Prints,
    Crashes,
    Aborts,
}

fn failure() -> impl Strategy<Value = Failure> {
    prop_oneof![
        (1u8..5).prop_map(Failure::Silent),
        Just(Failure::Raises),
        Just(Failure::LosesPeer),
        Just(Failure::Prints),
        Just(Failure::Crashes),
        Just(Failure::Aborts),
    ]
}

fn exception(kind: &str, message: &str) -> Exception {
    Exception { kind: kind.to_owned(), message: message.to_owned(), ..Exception::default() }
}

/// What one failure is seen as, its end `after` ms later.
fn events(rank: u32, at: u64, after: u64, failure: Failure) -> Vec<(u64, Event)> {
    let worker = worker(rank);
    let says = |testimony| Event::Testimony { worker, pid: leader(rank), testimony };
    let exited = |code| Event::Ended { worker, status: WorkerStatus::Exited { code } };
    let crashed = |signal| Event::Ended { worker, status: WorkerStatus::Signaled { signal, core_dumped: false } };
    let lost = exception("RuntimeError", "[gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:4711");
    let own = exception("ValueError", &format!("no mesh on rank {rank}"));
    match failure {
        Failure::Silent(code) => vec![(at, exited(code))],
        Failure::Raises => vec![(at, says(Testimony::Uncaught(own))), (at + after, exited(1))],
        Failure::LosesPeer => vec![(at, says(Testimony::Uncaught(lost))), (at + after, exited(1))],
        Failure::Prints => {
            let words = Words { failure: Some((Source::Stderr, own)), ..Words::default() };
            vec![(at, exited(1)), (at + 5_000, Event::LastWords { worker, words })]
        }
        Failure::Crashes => vec![(at, crashed(11))],
        Failure::Aborts => {
            let event = MpiEvent::Aborted { code: 7, message: None };
            vec![(at, Event::Mpi { worker, event }), (at + after, crashed(9))]
        }
    }
}

/// Lines of the samples, in any order and number, with some that are made up.
fn text() -> impl Strategy<Value = String> {
    let lines: Vec<String> = sample_tests::lines();
    let line = prop_oneof![8 => select(lines), 1 => ".{0,40}", 1 => Just(String::new())];
    let chunk = (any::<Index>(), 0usize..12).prop_map(|(at, count)| {
        let texts = sample_tests::texts();
        let lines: Vec<&str> = texts[at.index(texts.len())].lines().collect();
        let from = at.index(lines.len().max(1));
        lines[from..(from + count).min(lines.len())].join("\n")
    });
    let part = prop_oneof![line, chunk];
    proptest::collection::vec(part, 0..12).prop_map(|parts| parts.join("\n") + "\n")
}

fn status() -> impl Strategy<Value = WorkerStatus> {
    prop_oneof![
        (1u8..=255).prop_map(|code| WorkerStatus::Exited { code }),
        select(vec![6, 9, 11, 15]).prop_map(|signal| WorkerStatus::Signaled { signal, core_dumped: false }),
    ]
}

fn concluded(stderr: &[u8], stdout: &[u8], status: WorkerStatus) -> (Gang, Verdict) {
    let mut gang = gang();
    feed(&mut gang, 1, Event::Ended { worker: worker(1), status });
    let (mut err, mut out) = (Tail::default(), Tail::default());
    err.write(stderr);
    out.write(stdout);
    let _ = (err.last_traceback(), err.aborted(0), err.lines()); // They must not panic.
    let words = words(&gang, Rank(1), &err, &out);
    feed(&mut gang, 2, Event::LastWords { worker: worker(1), words });
    let verdict = verdict(&gang);
    (gang, verdict)
}

proptest! {
    #[test]
    fn nothing_that_began_before_our_stop_is_outranked_by_what_began_after_it(
        failures in proptest::collection::vec((failure(), 1u64..400, 0u64..50), RANKS as usize),
    ) {
        let mut all: Vec<(u64, u32, Event)> = Vec::new();
        for (rank, (failure, at, after)) in (0..).zip(&failures) {
            all.extend(events(rank, *at, *after, *failure).into_iter().map(|(at, event)| (at, rank, event)));
        }
        all.sort_by_key(|(at, ..)| *at);
        let mut gang = gang();
        let mut signalled = [None; RANKS as usize];
        for (at, rank, event) in all {
            let sent = gang.stop_ordered().map(|stop| stop + Duration::from_millis(UNTIL_SENT));
            let sent = sent.filter(|sent| Duration::from_millis(at) > *sent);
            if let (Event::Ended { .. }, Some(sent)) = (&event, sent) {
                signalled[rank as usize] = Some(sent);
                let record = StopRecord { signals: vec![(15, sent)], work: Work::Unknown };
                feed(&mut gang, at, Event::Signalled { worker: worker(rank), record });
            }
            feed(&mut gang, at, event);
        }
        let verdict = verdict(&gang);
        let culprit = verdict.culprit.clone().expect("somebody failed before the stop");
        prop_assert!(!matches!(culprit.weight, Weight::LateOwn | Weight::Late), "{culprit:?}");
        if let Some(sent) = signalled[culprit.rank.number() as usize] {
            prop_assert!(culprit.at <= sent + SETTLE, "{culprit:?}, signalled at {sent:?}");
        }
        is_headline(&gang, &verdict)?;
    }

    #[test]
    fn a_headline_is_one_line_that_fits_whatever_an_exception_says(
        kind in prop_oneof!["\\PC{0,8}", Just("SystemExit".to_owned()), ".{0,300}"],
        message in prop_oneof![".{0,400}", "(?s).{0,80}", "[ \t\r\n:=-]{0,9}", "[a-z :]{0,20}:\n[a-z \n:]{0,30}"],
        code in 1u8..=255,
        is_told in any::<bool>(),
    ) {
        let exception = exception(&kind, &message);
        let mut gang = gang();
        if is_told {
            let testimony = Testimony::Uncaught(exception.clone());
            feed(&mut gang, 1, Event::Testimony { worker: worker(1), pid: leader(1), testimony });
        }
        feed(&mut gang, 2, Event::Ended { worker: worker(1), status: WorkerStatus::Exited { code } });
        if !is_told {
            let words = Words { failure: Some((Source::Stderr, exception)), ..Words::default() };
            feed(&mut gang, 3, Event::LastWords { worker: worker(1), words });
        }
        is_headline(&gang, &verdict(&gang))?;
    }

    #[test]
    fn a_headline_is_one_line_that_fits_whatever_else_a_rank_does(
        text in prop_oneof![".{0,400}", "(?s).{0,80}", "[ \t\r\n]{0,5}"],
        code in any::<i32>(),
    ) {
        let worker = worker(1);
        let spawn = || Event::SpawnFailed {
            worker, step: "exec".to_owned(), error: text.clone(), command: text.clone(), not_found: Some(ExitCode::NOT_FOUND),
        };
        let abort = || Event::Mpi { worker, event: MpiEvent::Aborted { code, message: Some(text.clone()) } };
        let ended = || Event::Ended { worker, status: WorkerStatus::Exited { code: 3 } };
        let said = |words| Event::LastWords { worker, words };
        let lost = || said(Words { peer_lost: Some(text.clone()), ..Words::default() });
        let last = || said(Words { last_line: Some(text.clone()), ..Words::default() });
        for events in [vec![spawn()], vec![abort()], vec![ended(), lost()], vec![ended(), last()], vec![abort(), last()]] {
            let mut gang = gang();
            for (at, event) in (1..).zip(events) {
                feed(&mut gang, at, event);
            }
            is_headline(&gang, &verdict(&gang))?;
        }
    }

    #[test]
    fn any_text_is_read_without_panic_and_gives_a_headline(stderr in text(), stdout in text(), status in status()) {
        let (gang, verdict) = concluded(stderr.as_bytes(), stdout.as_bytes(), status);
        is_headline(&gang, &verdict)?;
        let culprit = verdict.culprit.expect("a rank has failed");
        prop_assert!(culprit.window.is_none_or(|window| (1..=MOST).contains(&window.lines.len())));
    }

    #[test]
    fn any_bytes_are_read_without_panic(
        stderr in proptest::collection::vec(any::<u8>(), 0..400), stdout in proptest::collection::vec(any::<u8>(), 0..100),
        status in status(),
    ) {
        let (gang, verdict) = concluded(&stderr, &stdout, status);
        is_headline(&gang, &verdict)?;
    }

    /// Whatever recogniser found it: the lines that are shown have what the headline says.
    #[test]
    fn a_window_has_the_line_that_names_the_cause(before in text(), sample in any::<Index>()) {
        let samples = sample_tests::failures();
        let (stderr, end) = &samples[sample.index(samples.len())];
        let mut tail = Tail::default();
        tail.write(format!("{before}{stderr}").as_bytes());
        let words = Tails { stderr: Some(&tail), stdout: None, ended_at: None }.words(1, *end);
        if let Some((_, exception)) = words.failure {
            let shown = window(Origin::Stderr, &exception).expect("a message has lines").lines;
            let has = |word: &str| shown.iter().any(|line| line.split_whitespace().any(|it| it.contains(word)));
            let said = exception.headline();
            let words: Vec<&str> = said.split_whitespace().take(6).collect();
            // What stands for the type of an exception where there was none is our own word.
            prop_assert!(said == "std::terminate" || words.iter().any(|word| has(word.trim_end_matches(':'))), "{said:?} of {shown:#?}");
        }
    }

    #[test]
    fn of_a_traceback_the_line_of_the_exception_is_shown(
        own in 1usize..30, library in 0usize..30, more in 0usize..30, causes in 0usize..3,
    ) {
        let mut text = String::new();
        for cause in 0..=causes {
            text += "Traceback (most recent call last):\n";
            let frame = |file: &str, at: usize| format!("  File \"{file}\", line {at}, in f{at}\n    g()\n    ^^^\n");
            text.extend((0..own).map(|at| frame("/home/ada/train.py", at)));
            text.extend((0..library).map(|at| frame("/v/lib/python3.11/site-packages/torch/a.py", at)));
            text += &format!("ValueError: cause {cause}\n");
            if cause < causes {
                text += "\nThe above exception was the direct cause of the following exception:\n\n";
            }
        }
        let line = format!("ValueError: cause {causes}");
        text.extend((0..more).map(|at| format!("detail {at}\n")));
        let exception = Exception { traceback: text, ..exception("ValueError", &format!("cause {causes}")) };
        let shown = window(Origin::Traceback, &exception).expect("it has lines").lines;
        prop_assert!(shown.len() <= MOST && shown.contains(&line), "{shown:#?}");
    }
}

#[test]
fn a_headline_has_what_its_message_announces() {
    let cases = [
        (
            // mpi4py 4.1 on MPICH 5.
            "Invalid rank, error stack:\ninternal_Send_c(316): MPI_Send_c(buf=0x55d3, count=5, MPI_BYTE, 7, 0, \
             MPI_COMM_WORLD) failed\ninternal_Send_c(234): Invalid rank has value 7 but must be nonnegative and less than 3",
            "E: Invalid rank has value 7 but must be nonnegative and less than 3",
        ),
        ("Unknown error class, error stack:\nMPIR_Wait(745): \n", "E: Unknown error class"),
        (
            "Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: \"a\". \n\tUnexpected key(s): \"b\". ",
            "E: Error(s) in loading state_dict for Net: Missing key(s) in state_dict: \"a\".",
        ),
        ("\n\nno mesh\nlast run", "E: no mesh"),
        ("two things:\n\n - a:\n - b", "E: two things: - a: - b"),
        ("nothing follows:", "E: nothing follows:"),
    ];
    for (message, expected) in cases {
        assert_eq!(exception("E", message).headline(), expected);
    }
}

#[test]
fn the_classes_of_random_jobs_are_real() {
    // The generator of the first property: each failure is one.
    for failure in
        [Failure::Silent(3), Failure::Raises, Failure::LosesPeer, Failure::Prints, Failure::Crashes, Failure::Aborts]
    {
        let mut gang = gang();
        for (at, event) in events(1, 10, 5, failure) {
            feed(&mut gang, at, event);
        }
        let culprit = verdict(&gang).culprit.expect("it fails");
        let expected = match failure {
            Failure::Silent(_) => Class::ExitCode,
            Failure::Raises | Failure::LosesPeer | Failure::Prints => Class::Exception,
            Failure::Crashes => Class::Signal,
            Failure::Aborts => Class::Abort,
        };
        assert_eq!(culprit.class, expected);
    }
}
