use proptest::prelude::*;
use rankrun_core::{Attempt, GroupId, Rank};

use super::*;

fn record(number: u32, length: usize) -> Record {
    of_stream(Stream::Stdout, number, length)
}

fn of_stream(stream: Stream, number: u32, length: usize) -> Record {
    Record {
        worker: WorkerId { rank: Rank::of(GroupId(number % 3), number), attempt: Attempt(number % 5) },
        stream,
        time: Duration::new(u64::from(number), number),
        bytes: Bytes::from(vec![number as u8; length]),
    }
}

/// What a spool asks for whose destination takes nothing.
fn next(spool: &mut Spool) -> Option<Request> {
    let now = spool.deadline().unwrap_or_default();
    spool.next_request(now).or_else(|| spool.next_request(now + pace::WINDOW))
}

/// Does all that the spool asks for.
fn run_requests(spool: &mut Spool) {
    while let Some(request) = next(spool) {
        spool.complete(request.run());
    }
}

fn pop(spool: &mut Spool) -> Option<Record> {
    run_requests(spool);
    spool.pop(Stream::Stdout).expect("the file can be read")
}

/// Pushes records until one is refused. Returns how many were taken, and that one.
fn fill(spool: &mut Spool, from: u32, length: usize) -> (u32, Record) {
    let mut number = from;
    loop {
        run_requests(spool);
        match spool.push(record(number, length)) {
            Ok(()) => number += 1,
            Err(full) => return (number, full.record),
        }
    }
}

#[test]
fn a_spool_without_disk_space_refuses_at_the_memory_bound_and_loses_nothing() {
    let mut spool = Spool::new("/nonexistent", 1 << 30);
    let (taken, refused) = fill(&mut spool, 0, 60_000);
    assert_eq!(refused, record(taken, 60_000));
    assert!(!spool.has_room(Stream::Stdout));
    assert!(spool.bytes() <= HEAD + TAIL && spool.bytes() > HEAD + TAIL - 200_000);
    for number in 0..5 {
        assert_eq!(pop(&mut spool), Some(record(number, 60_000)));
    }
    assert!(spool.has_room(Stream::Stdout));
    spool.push(refused).expect("there is room again");
    for number in 5..=taken {
        assert_eq!(pop(&mut spool), Some(record(number, 60_000)));
    }
    assert_eq!(pop(&mut spool), None);
    assert_eq!(spool.bytes(), 0);
}

#[test]
fn the_limit_bounds_what_is_on_disk_and_the_space_comes_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let limit = 8 << 20;
    let mut spool = Spool::new(dir.path(), limit);
    let (mut pushed, mut popped) = (0, 0);
    // Never drained, a hundred times its limit passes through.
    while u64::from(pushed) * 60_000 < 100 * limit {
        while spool.has_room(Stream::Stdout) {
            spool.push(record(pushed, 60_000)).expect("there is room");
            run_requests(&mut spool);
            pushed += 1;
        }
        assert!(spool.on_disk <= limit);
        assert!(spool.bytes() > limit / 2);
        for _ in 0..20 {
            assert_eq!(pop(&mut spool), Some(record(popped, 60_000)));
            popped += 1;
        }
    }
    let in_directory = std::fs::read_dir(dir.path()).expect("a directory").count();
    assert_eq!(in_directory, 0, "the files have no name");
    while popped < pushed {
        assert_eq!(pop(&mut spool), Some(record(popped, 60_000)));
        popped += 1;
    }
    run_requests(&mut spool);
    assert!(spool.is_empty() && spool.on_disk == 0 && spool.to_close.is_empty());
}

#[test]
fn an_empty_queue_takes_a_record_of_any_size() {
    let mut spool = Spool::new("/nonexistent", 0);
    let large = record(1, 2 * SPOOL_MEMORY as usize);
    spool.push(large.clone()).expect("it is empty");
    fill(&mut spool, 2, 60_000);
    assert!(!spool.has_room(Stream::Stdout));
    assert_eq!(pop(&mut spool), Some(large));
    assert!(spool.has_room(Stream::Stdout));
}

#[test]
fn a_stream_that_is_full_leaves_the_other_its_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut spool = Spool::new(dir.path(), 4 << 20);
    fill(&mut spool, 0, 60_000);
    assert!(!spool.has_room(Stream::Stdout) && spool.has_room(Stream::Stderr));
    let mut number = 0;
    while spool.has_room(Stream::Stderr) {
        spool.push(of_stream(Stream::Stderr, number, 60_000)).expect("there is room");
        run_requests(&mut spool);
        number += 1;
    }
    assert!(u64::from(number) * 60_000 > HEAD + TAIL - 200_000, "{number}");
    for popped in 0..number {
        assert_eq!(spool.pop(Stream::Stderr).expect("no file"), Some(of_stream(Stream::Stderr, popped, 60_000)));
        run_requests(&mut spool);
    }
    assert_eq!(pop(&mut spool), Some(record(0, 60_000)));
}

#[test]
fn a_disk_that_hangs_at_the_first_write_holds_nothing_up_that_is_in_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut spool = Spool::new(dir.path(), 1 << 30);
    let mut pushed = 0;
    while spool.push(record(pushed, 60_000)).is_ok() {
        pushed += 1;
    }
    let hanging = next(&mut spool).expect("a write");
    assert!(next(&mut spool).is_none(), "one write at a time");
    for number in 0..pushed {
        assert_eq!(spool.pop(Stream::Stdout).expect("no file"), Some(record(number, 60_000)));
    }
    spool.push(record(pushed, 10)).expect("it is empty");
    spool.complete(hanging.run());
    assert_eq!(spool.pop(Stream::Stdout).expect("no file"), Some(record(pushed, 10)));
    run_requests(&mut spool);
    assert!(spool.is_empty() && spool.on_disk == 0 && spool.bytes() == 0);
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_and_asked_for_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut spool = Spool::new(dir.path(), 1 << 30);
    for number in 0..60 {
        spool.push(record(number, 60_000)).expect("there is room");
        run_requests(&mut spool);
    }
    let segment = spool.queues[0].segments.front().expect("a file");
    let file = Arc::clone(segment.file.as_ref().expect("a file"));
    let length = file.metadata().expect("a file").len();
    file.set_len(0).expect("it is ours");
    let failed = loop {
        match spool.pop(Stream::Stdout) {
            Ok(_) => run_requests(&mut spool),
            Err(error) => break error,
        }
    };
    assert_eq!(failed.source.kind(), io::ErrorKind::UnexpectedEof);
    // What was cut off comes back as zeros, which nobody wrote.
    file.set_len(length).expect("it is ours");
    run_requests(&mut spool);
    let failed = spool.pop(Stream::Stdout).expect_err("a file of zeros has no records");
    assert_eq!(failed.source.kind(), io::ErrorKind::InvalidData);
}

#[test]
fn a_cleared_spool_is_as_new() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut spool = Spool::new(dir.path(), 1 << 30);
    for number in 0..75 {
        assert!(spool.push(record(number, 50_000)).is_ok(), "there is room");
        if number < 60 {
            run_requests(&mut spool);
        }
    }
    let (first, second) = (next(&mut spool), next(&mut spool));
    assert!(spool.on_disk > 0 && first.is_some());
    spool.clear();
    assert!(spool.is_empty() && spool.has_room(Stream::Stdout));
    assert_eq!((spool.bytes(), spool.on_disk), (0, 0));
    for request in [first, second].into_iter().flatten() {
        spool.complete(request.run());
    }
    assert_eq!(pop(&mut spool), None);
    assert!(spool.is_empty() && spool.to_close.is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Push {
        stream: usize,
        length: usize,
    },
    Pop {
        stream: usize,
        count: usize,
    },
    /// The thread comes to do so many of the requests that it was given.
    Run {
        count: usize,
    },
    /// From now on new files can be made, or cannot.
    Disk {
        present: bool,
    },
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        60 => (0usize..2, prop_oneof![0usize..100, 0usize..70_000, 200_000usize..400_000])
            .prop_map(|(stream, length)| Step::Push { stream, length }),
        20 => (0usize..2, 0usize..12).prop_map(|(stream, count)| Step::Pop { stream, count }),
        20 => (0usize..4).prop_map(|count| Step::Run { count }),
        3 => any::<bool>().prop_map(|present| Step::Disk { present }),
        1 => Just(Step::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// The thread is as slow as it likes, the disk comes and goes, and each stream comes out as it went in.
    #[test]
    fn records_come_out_as_they_went_in(steps in proptest::collection::vec(step(), 1..400)) {
        let top = tempfile::tempdir().expect("a directory");
        let (dir, away) = (top.path().join("spool"), top.path().join("away"));
        std::fs::create_dir(&dir).expect("a directory");
        let limit = 6 << 20;
        let mut spool = Spool::new(&dir, limit);
        let mut model = [VecDeque::new(), VecDeque::new()];
        // What the thread was given, in order.
        let mut thread = VecDeque::new();
        let mut present = true;
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push { stream, length } => {
                    let record = of_stream(Stream::ALL[stream], number as u32, length);
                    let had_room = spool.has_room(record.stream);
                    let taken = spool.push(record.clone()).is_ok();
                    prop_assert!(taken || !had_room || length > 64 << 10);
                    if taken {
                        model[stream].push_back(record);
                    }
                }
                Step::Pop { stream, count } => {
                    for _ in 0..count {
                        // Nothing may mean that it is on disk still, and never that it is forgotten.
                        if let Some(record) = spool.pop(Stream::ALL[stream]).expect("the files can be read") {
                            prop_assert_eq!(Some(record), model[stream].pop_front());
                        }
                    }
                }
                Step::Run { count } => {
                    for _ in 0..count {
                        if let Some(request) = thread.pop_front() {
                            spool.complete(Request::run(request));
                        }
                    }
                }
                Step::Disk { present: now } if now != present => {
                    let (from, to) = if now { (&away, &dir) } else { (&dir, &away) };
                    std::fs::rename(from, to).expect("a directory can be renamed");
                    present = now;
                }
                Step::Disk { .. } => {}
                Step::Clear => {
                    spool.clear();
                    model = Default::default();
                }
            }
            thread.extend(std::iter::from_fn(|| next(&mut spool)));
            prop_assert!(spool.on_disk <= limit);
            let waits = model.iter().flatten().map(|record| record.bytes.len() as u64).sum::<u64>();
            prop_assert_eq!(spool.bytes(), waits);
            prop_assert_eq!(spool.is_empty(), model.iter().all(VecDeque::is_empty));
        }
        while let Some(request) = thread.pop_front() {
            spool.complete(request.run());
            thread.extend(std::iter::from_fn(|| next(&mut spool)));
        }
        for (stream, model) in Stream::ALL.into_iter().zip(model) {
            for expected in model {
                run_requests(&mut spool);
                prop_assert_eq!(spool.pop(stream).expect("the files can be read"), Some(expected));
            }
        }
        run_requests(&mut spool);
        prop_assert!(spool.is_empty());
        prop_assert_eq!(spool.on_disk, 0);
    }
}
