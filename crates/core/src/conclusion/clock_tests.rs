//! Failures on nodes with clocks of their own.

use super::*;

/// The verdict on two ranks that raise 1 ms apart, by clocks of these nodes with these bounds in milliseconds.
fn close_on(clocks: [(u32, u64); 2]) -> (Option<Rank>, Vec<Rank>) {
    let mut gang = gang(3);
    for ((rank, at), (node, bound)) in [(0, 101), (1, 100)].into_iter().zip(clocks) {
        let (at, now) = (Duration::from_millis(at), Duration::from_millis(150));
        let clock = Some(Reading { node: NodeId(node), bound: Duration::from_millis(bound) });
        gang.handle_of(Moment { now, at, clock }, raises(rank, boom()), &mut Vec::new());
        gang.handle_of(Moment { now, at: at + Duration::from_millis(20), clock }, exit(rank, 1), &mut Vec::new());
    }
    let verdict = verdict(&gang);
    (verdict.culprit.map(|culprit| culprit.rank), verdict.uncertain)
}

#[test]
fn failures_on_two_nodes_that_are_closer_than_their_clocks_allow_are_of_uncertain_order() {
    assert_eq!(close_on([(0, 1), (1, 1)]), (Some(Rank(1)), vec![Rank(0)]));
    assert_eq!(close_on([(0, 0), (1, 0)]), (Some(Rank(1)), Vec::new()), "the clocks are exact");
    assert_eq!(close_on([(1, 5), (1, 5)]), (Some(Rank(1)), Vec::new()), "one node has one clock");
}

#[test]
fn an_end_by_our_signal_may_be_dated_before_the_stop_by_the_clock_of_its_node() {
    let clock = |node, bound| Some(Reading { node: NodeId(node), bound: Duration::from_millis(bound) });
    let of = |now, at, clock| Moment { now: Duration::from_millis(now), at: Duration::from_millis(at), clock };
    let mut gang = gang(3);
    gang.handle_of(of(1000, 1000, None), exit(0, 7), &mut Vec::new());
    // The answers to beats came late while the machine was busy.
    gang.handle_of(of(1200, 900, clock(1, 300)), killed(1, 15), &mut Vec::new());
    gang.handle_of(of(1200, 900, clock(2, 10)), killed(2, 15), &mut Vec::new());
    let verdict = verdict(&gang);
    assert_eq!(verdict.fates[1], Fate::EndedByRankrun);
    assert_eq!(verdict.culprit.map(|culprit| culprit.rank), Some(Rank(2)), "that one was killed before the stop");
}

proptest::proptest! {
    /// Whoever is blamed was the first, or the report says that the order is uncertain.
    #[test]
    fn the_first_failure_on_another_node_is_blamed_or_called_uncertain(
        times in proptest::array::uniform3(0i64..40),
        bounds in proptest::array::uniform3(0i64..20),
        errors in proptest::array::uniform3(-20i64..=20),
    ) {
        let mut gang = gang(3);
        for node in 0..3 {
            // In steps of 100 µs; the clock of the node is wrong by no more than its bound.
            let at = 1000 + times[node] + errors[node].clamp(-bounds[node], bounds[node]);
            let step = |count: i64| Duration::from_micros(100) * u32::try_from(count).expect("it is positive");
            let clock = Some(Reading { node: NodeId(node as u32), bound: step(bounds[node]) });
            let moment = Moment { now: step(2000), at: step(at), clock };
            gang.handle_of(moment, raises(node as u32, boom()), &mut Vec::new());
            gang.handle_of(Moment { at: moment.at + Duration::from_millis(5), ..moment }, exit(node as u32, 1), &mut Vec::new());
        }
        let verdict = verdict(&gang);
        let blamed = verdict.culprit.expect("all have failed").rank;
        let first = times.iter().min().expect("there are three");
        let may_be_first = |rank: Rank| rank == blamed || verdict.uncertain.contains(&rank);
        let is_named = (0..3).map(Rank).any(|rank| times[rank.number() as usize] == *first && may_be_first(rank));
        proptest::prop_assert!(is_named, "{blamed} of {times:?}, uncertain {:?}", verdict.uncertain);
    }
}
