//! Jobs with and without a slow rank, as their samples look.

use super::*;
use crate::ids::Rank;
use crate::stacks::Frame;
use crate::stacks::samples::frames;

/// Looks at a rank.
const LOOKS: u32 = 200;

/// A stack, what the thread does there, its system call, and how many of 200 looks see it.
type Seen<'a> = (&'a str, Activity, Option<&'a str>, u32);

fn frame_names(frames: &[Frame]) -> Vec<&str> {
    frames.iter().map(|frame| frame.function.as_str()).collect()
}

fn rank(number: u32, seen: &[Seen<'_>]) -> RankProfile {
    rank_with(number, seen, Cost::default())
}

fn rank_with(number: u32, seen: &[Seen<'_>], cost: Cost) -> RankProfile {
    let mut gathering = Gathering::default();
    let about = gathering.about();
    (about.looks, about.time_us) = (LOOKS, 10_000_000);
    // Spread over the time as evenly as that can be.
    for (text, activity, call, count) in seen {
        let frames = frames(text);
        for index in 0..*count {
            let window = (index as usize * WINDOWS) / *count as usize;
            gathering.add(Sample {
                thread: MAIN,
                frames: &frames,
                activity: *activity,
                call: *call,
                is_lead: true,
                window,
                cost: if index == 0 { cost } else { Cost::default() },
            });
        }
    }
    RankProfile { rank: Rank(number), node: "node1".to_owned(), samples: gathering.take() }
}

fn job(ranks: Vec<RankProfile>) -> Summary {
    summarize(&Profile { took: 10.0, rate: 20.0, ranks, silent: Vec::new(), cut: None })
}

const RUNS: Activity = Activity::Running;
const WAITS: &str = "sched_yield@libc.so.6 < MPI_Allreduce@libmpi.so.12 < mpi4py.MPI.Comm.allreduce@MPI.so < step train.py:9 < main train.py:20";
const WORKS: &str = "forward train.py:4 < step train.py:8 < main train.py:20";

fn healthy(number: u32) -> RankProfile {
    rank(number, &[(WORKS, RUNS, None, 60), (WAITS, RUNS, None, 140)])
}

/// Three healthy ranks, and rank 2.
fn with_slow(seen: &[Seen<'_>], cost: Cost) -> Summary {
    job(vec![healthy(0), healthy(1), rank_with(2, seen, cost), healthy(3)])
}

fn only(summary: &Summary) -> (Rank, &str, Kind) {
    let [straggler] = summary.stragglers.as_slice() else { panic!("one straggler: {:#?}", summary.lines()) };
    (straggler.rank, &straggler.place.function, straggler.place.kind)
}

#[test]
fn the_straggler_is_the_rank_that_does_not_wait() {
    let summary = with_slow(&[(WORKS, RUNS, None, 190), (WAITS, RUNS, None, 10)], Cost::default());
    assert_eq!(only(&summary), (Rank(2), "forward", Kind::Cpu));
    let straggler = &summary.stragglers[0];
    assert_eq!((straggler.call.as_str(), straggler.place.line), ("Comm.allreduce", Some(4)));
    assert_eq!(straggler.place.callers, ["step", "main"]);
    insta::assert_snapshot!(summary.lines().join("\n"));
}

#[test]
fn each_kind_of_slowness_is_told() {
    let asleep = Activity::Sleeping;
    let extra = |text, activity, call| [(WORKS, RUNS, None, 60), (text, activity, call, 130), (WAITS, RUNS, None, 10)];
    let none = Cost::default();
    let branch = extra("careful train.py:30 < step train.py:8 < main train.py:20", RUNS, None);
    assert_eq!(only(&with_slow(&branch, none)), (Rank(2), "careful", Kind::Branch));
    let text = "fsync@libc.so.6 < save train.py:40 < step train.py:8 < main train.py:20";
    assert_eq!(
        only(&with_slow(&extra(text, Activity::Disk, Some("fsync /data/x")), none)),
        (Rank(2), "save", Kind::Io)
    );
    let read = extra("read@libc.so.6 < load train.py:41 < step train.py:8 < main train.py:20", RUNS, None);
    assert_eq!(only(&with_slow(&read, none)), (Rank(2), "load", Kind::Io));
    let lock = "0x85f16@libc.so.6 < take train.py:50 < step train.py:8 < main train.py:20";
    assert_eq!(only(&with_slow(&extra(lock, asleep, Some("futex")), none)), (Rank(2), "take", Kind::Lock));
    let collect = "gc_collect_main@python3.11 < build train.py:60 < step train.py:8 < main train.py:20";
    assert_eq!(only(&with_slow(&extra(collect, RUNS, None), none)), (Rank(2), "build", Kind::Gc));
    let fault = Some(PAGE_FAULT);
    let swap = "touch train.py:70 < step train.py:8 < main train.py:20";
    assert_eq!(only(&with_slow(&extra(swap, Activity::Disk, fault), none)), (Rank(2), "touch", Kind::Memory));
    let sleep = "clock_nanosleep@libc.so.6 < nap train.py:80 < step train.py:8 < main train.py:20";
    assert_eq!(only(&with_slow(&extra(sleep, asleep, Some("clock_nanosleep")), none)), (Rank(2), "nap", Kind::Sleep));
}

#[test]
fn page_faults_without_input_are_told_from_computing() {
    let text = "touch train.py:70 < step train.py:8 < main train.py:20";
    let seen = [(text, RUNS, None, 190), (WAITS, RUNS, None, 10)];
    let cost = Cost { faults: 900_000, user_us: 1_000_000, system_us: 5_000_000, ..Cost::default() };
    assert_eq!(only(&with_slow(&seen, cost)), (Rank(2), "touch", Kind::Memory));
    let cost = Cost { faults: 100, user_us: 6_000_000, system_us: 10_000, ..Cost::default() };
    assert_eq!(only(&with_slow(&seen, cost)), (Rank(2), "touch", Kind::Branch));
}

#[test]
fn a_rank_that_only_lacks_a_cpu_is_said_to_lack_one_or_nothing() {
    let queued = Activity::Queued;
    let starved = [(WORKS, RUNS, None, 60), (WORKS, queued, None, 130), (WAITS, RUNS, None, 10)];
    assert_eq!(only(&with_slow(&starved, Cost::default())), (Rank(2), "forward", Kind::Starved));
    // All share the CPUs, and chance gives this one less.
    let other = |number| {
        let seen = [(WORKS, RUNS, None, 60), (WAITS, RUNS, None, 20), (WAITS, queued, None, 120)];
        rank(number, &seen)
    };
    let own = [(WORKS, RUNS, None, 60), (WORKS, queued, None, 90), (WAITS, RUNS, None, 20), (WAITS, queued, None, 30)];
    let summary = job(vec![other(0), other(1), rank(2, &own), other(3)]);
    assert_eq!((summary.stragglers.len(), summary.verdict.as_str()), (0, "no rank differs from the others"));
    assert!(summary.notes.iter().any(|note| note.contains("too few CPUs")), "{:?}", summary.notes);
}

#[test]
fn equal_ranks_do_not_differ_and_a_single_one_is_not_compared() {
    let summary = job((0..4).map(healthy).collect());
    assert_eq!((summary.stragglers.len(), summary.differing.len()), (0, 0));
    assert_eq!(summary.verdict, "no rank differs from the others");
    assert_eq!(job(vec![healthy(0)]).verdict, "there is one rank: nothing to compare");
    assert_eq!(job(Vec::new()).verdict, "no rank was seen");
}

#[test]
fn ranks_that_nobody_waits_for_may_still_differ() {
    let other = |number| rank(number, &[(WORKS, RUNS, None, LOOKS)]);
    let own = rank(3, &[("fallback train.py:7 < step train.py:8 < main train.py:20", RUNS, None, LOOKS)]);
    let summary = job(vec![other(0), other(1), other(2), own]);
    assert_eq!(summary.stragglers, []);
    let [differing] = summary.differing.as_slice() else { panic!("one: {:?}", summary.differing) };
    assert_eq!(
        (differing.ranks.min(), differing.function.as_str(), differing.kind),
        (Some(Rank(3)), "fallback", Kind::Branch)
    );
}

#[test]
fn a_rank_that_could_not_be_read_is_not_compared_and_the_reason_is_given() {
    let mut unread = rank(1, &[("", RUNS, None, LOOKS)]);
    unread.samples.missed = LOOKS;
    unread.samples.unseen = Some("it runs as another user".to_owned());
    let summary = job(vec![healthy(0), unread, healthy(2)]);
    assert_eq!(summary.verdict, "no rank differs from the others");
    let note = "rank 1: stacks not readable in 100 % of the looks: it runs as another user";
    assert_eq!(summary.notes, [note]);
}

#[test]
fn waits_for_others_are_known_in_libraries_of_torch_too() {
    let of = |text: &str| meaning(&frames(text), Activity::Sleeping, Some("futex"), false);
    let gloo = "0x85f16@libc.so.6 < gloo::transport::tcp::Buffer::waitRecv@libtorch_cpu.so < run@libc.so.6";
    assert_eq!(of(gloo).others.map(|(call, _)| call).as_deref(), Some("gloo::transport::tcp::Buffer::waitRecv"));
    let torch = "wrapper c10d_logger.py:8 < step train.py:3";
    assert_eq!(of(torch).others, None);
    let reduce = "0x1@libc.so.6 < all_reduce distributed_c10d.py:8 < wrapper c10d_logger.py:8 < step train.py:3";
    assert_eq!(of(reduce).others, Some(("torch.distributed.all_reduce".to_owned(), 2)));
    let engine = of("0x85f16@libc.so.6 < _engine_run_backward graph.py:8 < step train.py:3");
    assert!(engine.others.is_none() && engine.is_for_thread);
}

#[test]
fn stacks_beyond_the_bound_are_counted_as_one() {
    let mut gathering = Gathering::default();
    let names: Vec<String> = (0..MAX_STACKS + 500).map(|number| format!("f{number}")).collect();
    for name in &names {
        let frames = [Frame { function: name.clone(), file: None, line: None, is_python: false }];
        gathering.add(Sample {
            thread: MAIN,
            frames: &frames,
            activity: RUNS,
            call: None,
            is_lead: true,
            window: 0,
            cost: Cost::default(),
        });
    }
    let samples = gathering.take();
    assert_eq!(samples.counts.len(), MAX_STACKS + 1);
    let last = samples.counts.last().expect("there are counts");
    assert_eq!((last.total(), samples.stack(last.node)[0].function.as_str()), (500, "(more stacks than are kept)"));
}

#[test]
fn a_tree_that_does_not_make_sense_has_no_loop() {
    let node = |parent, frame| Node { parent, frame };
    let frames = frames("f");
    let samples = Samples { frames, nodes: vec![node(Some(1), 0), node(Some(0), 7)], ..Samples::default() };
    assert_eq!(samples.stack(0).len(), 1);
    assert_eq!(samples.stack(1).len(), 1);
    assert!(samples.stack(9).is_empty());
}

#[test]
fn both_files_have_all_samples() {
    let mut other = rank(1, &[(WAITS, Activity::Sleeping, Some("futex"), 3)]);
    other.samples.threads = vec!["thread pt_autograd_0".to_owned()];
    let ranks = vec![rank(0, &[(WORKS, RUNS, None, 5)]), other];
    let profile = Profile { took: 1.0, rate: 20.0, ranks, silent: Vec::new(), cut: None };
    let text = collapsed(&profile);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "rank 0;main (train.py:20);step (train.py:8);forward (train.py:4) 5");
    assert!(lines[1].starts_with("rank 1;thread pt_autograd_0;main (train.py:20);step"), "{}", lines[1]);
    assert!(lines[1].ends_with(";sched_yield (libc.so.6);[waits: futex] 3"), "{}", lines[1]);
    let json: serde_json::Value =
        serde_json::from_str(&speedscope(&profile, "x").expect("plain data")).expect("it is JSON");
    let profiles = json["profiles"].as_array().expect("a list");
    let names: Vec<&str> = profiles.iter().filter_map(|profile| profile["name"].as_str()).collect();
    assert_eq!(names, ["all ranks", "all ranks, on CPU", "rank 0", "rank 1"]);
    let frames = json["shared"]["frames"].as_array().expect("a list").len() as u64;
    for profile in profiles {
        assert_eq!((profile["type"].as_str(), profile["unit"].as_str()), (Some("sampled"), Some("seconds")));
        let (samples, weights) = (profile["samples"].as_array(), profile["weights"].as_array());
        assert_eq!(samples.map(Vec::len), weights.map(Vec::len));
        let indices = samples.into_iter().flatten().flat_map(|stack| stack.as_array().into_iter().flatten());
        assert!(indices.filter_map(serde_json::Value::as_u64).all(|index| index < frames));
        let sum: f64 = weights.into_iter().flatten().filter_map(serde_json::Value::as_f64).sum();
        assert!((sum - profile["endValue"].as_f64().expect("a number")).abs() < 1e-9);
    }
}

#[test]
fn lines_and_threads_of_a_stack_stay_apart_when_pieces_are_merged() {
    let all = rank(0, &[(WORKS, RUNS, None, 7), (WAITS, Activity::Sleeping, Some("futex"), 4)]).samples;
    let mut merged = Gathering::default();
    merged.merge(&all);
    merged.merge(&all);
    let merged = merged.take();
    assert_eq!(merged.counts.iter().map(Count::total).collect::<Vec<_>>(), [14, 8]);
    assert_eq!((merged.looks, merged.calls.as_slice()), (2 * LOOKS, ["futex".to_owned()].as_slice()));
    let stack: Vec<Frame> = merged.stack(merged.counts[0].node).into_iter().cloned().collect();
    assert_eq!(frame_names(&stack), ["main", "step", "forward"]);
}

#[test]
fn a_rank_that_waits_for_a_lock_is_told_by_it_though_it_lacks_a_cpu_besides() {
    let queued = Activity::Queued;
    let other = |number| rank(number, &[(WORKS, RUNS, None, 12), (WAITS, RUNS, None, 28), (WAITS, queued, None, 160)]);
    let lock = "0x85f16@libc.so.6 < take train.py:50 < step train.py:8 < main train.py:20";
    let own = [
        (WORKS, RUNS, None, 14),
        (WORKS, queued, None, 86),
        (lock, Activity::Sleeping, Some("futex"), 80),
        (WAITS, RUNS, None, 20),
    ];
    let summary = job(vec![other(0), other(1), rank(2, &own), other(3)]);
    assert_eq!(only(&summary), (Rank(2), "take", Kind::Lock));
}

#[test]
fn a_rank_that_is_late_by_much_less_than_the_slowest_is_not_named() {
    let slow = |number, works| rank(number, &[(WORKS, RUNS, None, works), (WAITS, RUNS, None, LOOKS - works)]);
    let summary = job(vec![healthy(0), slow(1, 90), slow(2, 195), healthy(3), healthy(4)]);
    assert_eq!(only(&summary).0, Rank(2));
    let summary = job(vec![healthy(0), slow(1, 180), slow(2, 195), healthy(3), healthy(4)]);
    assert_eq!(summary.stragglers.iter().map(|it| it.rank).collect::<Vec<_>>(), [Rank(2), Rank(1)]);
}
