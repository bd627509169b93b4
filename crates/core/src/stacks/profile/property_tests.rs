//! What holds for all profiles.

use proptest::prelude::*;

use super::*;
use crate::ids::Rank;
use crate::stacks::Frame;

const ACTIVITIES: [Activity; 5] =
    [Activity::Running, Activity::Queued, Activity::Sleeping, Activity::Disk, Activity::Other];

fn frame(number: u8) -> Frame {
    let names = ["main", "step", "forward", "MPI_Allreduce", "read", "gc_collect_main", "all_reduce", "0x1f40"];
    let files = ["train.py", "libmpi.so.12", "distributed_c10d.py"];
    let file = files[usize::from(number / 8) % files.len()];
    Frame {
        function: names[usize::from(number) % names.len()].to_owned(),
        file: Some(file.to_owned()),
        line: (number % 5 > 2).then_some(u32::from(number)),
        is_python: file.ends_with(".py"),
    }
}

/// A sample: frames, what the thread does, whether it leads, when.
type Seen = (Vec<u8>, usize, bool, usize);

fn seen() -> impl Strategy<Value = Vec<Seen>> {
    let one = (prop::collection::vec(0u8..24, 0..6), 0..ACTIVITIES.len(), any::<bool>(), 0..WINDOWS);
    prop::collection::vec(one, 0..60)
}

fn gathered(all: &[Seen]) -> Samples {
    let mut gathering = Gathering::default();
    gathering.about().looks = all.len() as u32;
    gathering.about().time_us = 50_000 * all.len() as u64;
    for (stack, activity, is_lead, window) in all {
        let frames: Vec<Frame> = stack.iter().map(|number| frame(*number)).collect();
        let activity = ACTIVITIES[*activity];
        let call = (activity == Activity::Sleeping).then_some("futex");
        let cost = Cost { faults: 3, user_us: 10_000, ..Cost::default() };
        let thread = if *is_lead { MAIN } else { "thread x" };
        gathering.add(Sample { thread, frames: &frames, activity, call, is_lead: *is_lead, window: *window, cost });
    }
    gathering.take()
}

/// The stacks with their counts, however they are numbered.
fn content(samples: &Samples) -> Vec<String> {
    let mut all: Vec<String> = samples
        .counts
        .iter()
        .map(|count| {
            let call = count.call.map(|call| &samples.calls[call as usize]);
            let thread = &samples.threads[count.thread as usize];
            let Count { activity, is_lead, samples: counts, cost, .. } = count;
            format!("{:?} {thread} {activity:?} {call:?} {is_lead} {counts:?} {cost:?}", samples.stack(count.node))
        })
        .collect();
    all.sort();
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Pieces that are sent one after the other say what one piece says.
    #[test]
    fn folding_in_pieces_is_folding_at_once(all in seen(), at in 0usize..60) {
        let (first, rest) = all.split_at(at.min(all.len()));
        let mut merged = Gathering::default();
        merged.merge(&gathered(first));
        merged.merge(&gathered(rest));
        let merged = merged.take();
        prop_assert_eq!(content(&merged), content(&gathered(&all)));
        prop_assert_eq!(merged.looks as usize, all.len());
    }

    /// No sample is lost on the way to the files.
    #[test]
    fn the_files_have_as_many_samples_as_were_taken(all in seen()) {
        let count = all.len() as u64;
        let ranks = vec![RankProfile { rank: Rank(0), node: "a".to_owned(), samples: gathered(&all) }];
        let profile = Profile { took: 1.0, rate: 20.0, ranks, silent: Vec::new(), cut: None };
        let last = |line: &str| line.rsplit(' ').next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        prop_assert_eq!(collapsed(&profile).lines().map(last).sum::<u64>(), count);
        prop_assert!(speedscope(&profile, "x").is_ok());
    }

    /// Ranks that do the same are never told apart, and shares are shares.
    #[test]
    fn equal_ranks_never_differ(all in seen(), size in 1u32..6) {
        let samples = gathered(&all);
        let ranks = (0..size).map(|rank| RankProfile { rank: Rank(rank), node: "a".to_owned(), samples: samples.clone() });
        let profile = Profile { took: 1.0, rate: 20.0, ranks: ranks.collect(), silent: Vec::new(), cut: None };
        let summary = summarize(&profile);
        prop_assert!(summary.stragglers.is_empty() && summary.differing.is_empty(), "{:?}", summary.lines());
        let is_share = |share: f64| (-1e-9..=1.0 + 1e-9).contains(&share);
        prop_assert!(summary.functions.iter().all(|it| is_share(it.own) && is_share(it.total) && is_share(it.running)));
        prop_assert!(summary.each.iter().all(|it| is_share(it.waits) && is_share(it.running + it.queued)));
    }

    /// Whatever ranks do, at most half of them are stragglers, and each of them waits less than the others.
    #[test]
    fn stragglers_wait_less_than_the_others(ranks in prop::collection::vec(seen(), 2..6)) {
        let count = ranks.len();
        let ranks = ranks.iter().enumerate().map(|(rank, all)| {
            let all: Vec<Seen> = all.iter().cycle().take(4 * all.len()).cloned().collect();
            RankProfile { rank: Rank(rank as u32), node: "a".to_owned(), samples: gathered(&all) }
        });
        let profile = Profile { took: 1.0, rate: 20.0, ranks: ranks.collect(), silent: Vec::new(), cut: None };
        let summary = summarize(&profile);
        prop_assert!(2 * summary.stragglers.len() <= count);
        prop_assert!(summary.stragglers.iter().all(|it| it.waits < it.others_wait));
    }
}
