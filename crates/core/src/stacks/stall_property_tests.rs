use proptest::prelude::*;

use super::*;

/// What a rank may be seen at.
const PLACES: [(ThreadState, &str); 6] = [
    (Running, ALLREDUCE),
    (Running, "PMPI_Recv@libmpi.so.12 < main halo.c:20"),
    (Sleeping, "read@libc.so.6 < load a.py:3"),
    (Running, "work a.py:4"),
    (Sleeping, "clock_nanosleep@libc.so.6 < nap a.py:5"),
    (Sleeping, ""),
];

proptest! {
    #[test]
    fn no_text_is_too_odd_to_be_read(text in "[0-9a-z:. -]{0,12}") {
        if let Ok(Given(Some(spec))) = text.parse::<Given>() {
            prop_assert_eq!(spec.to_string().parse(), Ok(Given(Some(spec))));
        }
    }

    // S-1
    #[test]
    fn a_job_is_ended_only_if_all_its_looks_were_alike_and_nobody_made_a_sound(
        changes in proptest::collection::vec((0u64..4000, 0u32..3, 0usize..PLACES.len()), 0..12),
        signs in proptest::collection::vec(0u64..4000, 0..6),
    ) {
        let mut changes = changes;
        changes.sort_unstable();
        let mut signs: Vec<Duration> = signs.into_iter().map(s).collect();
        signs.sort_unstable();
        let place = |rank: u32, now: Duration| {
            let last = changes.iter().rev().find(|(at, of, _)| *of == rank && s(*at) <= now);
            last.map_or(0, |(_, _, place)| *place)
        };
        let mut stall = Stall::new(spec(Action::Kill), false, s(0));
        let mut looks: Vec<(Duration, Vec<usize>)> = Vec::new();
        let mut pending = signs.clone();
        let mut ran = [0; 3];
        while let Some(now) = stall.deadline().filter(|now| *now <= s(9000)) {
            while pending.first().is_some_and(|sign| *sign <= now) {
                stall.sign(pending.remove(0));
            }
            if !stall.is_to_look(now) {
                continue;
            }
            let places: Vec<usize> = (0..3).map(|rank| place(rank, now)).collect();
            let seen: Vec<Seen> = (0..3).map(|number| {
                let (state, text) = PLACES[places[number as usize]];
                let mut seen = rank(number, state, text);
                // What runs has CPU time, and what cannot be looked into has some; nothing loses what it has had.
                let ran = &mut ran[number as usize];
                if state == Running || text.is_empty() {
                    *ran = now.as_micros() as u64;
                }
                seen.stack.threads[0].run_us = *ran;
                seen
            }).collect();
            looks.push((now, places));
            if let Finding::Stalled { silent } = stall.looked(now, None, prints(&seen)) {
                prop_assert!(silent >= AFTER + BETWEEN - s(1));
                prop_assert!(signs.iter().all(|sign| *sign > now || *sign + silent <= now));
                let last = &looks[looks.len() - LOOKS..];
                let places = &last[LOOKS - 1].1;
                // A rank that could not be looked into at first, and has not run since, was where it is.
                let is_alike = |(before, now): (&usize, &usize)| before == now || *before == 5;
                prop_assert!(last[0].1.iter().zip(places).all(is_alike), "{last:?}");
                prop_assert!(last[1..].iter().all(|(_, it)| it == places), "{last:?}");
                prop_assert!(places.iter().all(|place| ![3, 5].contains(place)), "{places:?}");
                prop_assert!(places.iter().any(|place| *place != 4), "{places:?}");
                return Ok(());
            }
        }
    }

    #[test]
    fn a_hang_is_found_in_time_whatever_was_before(
        before in proptest::collection::vec((1u64..900, any::<bool>()), 0..10),
        ranks in 1u32..5,
    ) {
        let mut stall = Stall::new(spec(Action::Kill), false, s(0));
        let (mut now, mut looks) = (s(0), 0);
        // Each look shows something else, and now and then there is a sign of life.
        for (wait, is_sign) in before {
            let until = now + s(wait);
            while let Some(due) = stall.deadline().filter(|due| *due <= until) {
                if stall.is_to_look(due) {
                    looks += 1;
                    let moving = vec![rank(0, Running, &format!("work a.py:{looks}"))];
                    prop_assert_eq!(stall.looked(due, None, prints(&moving)), Finding::No);
                }
            }
            now = until;
            if is_sign {
                stall.sign(now);
            }
        }
        let found = findings(stall, now + s(100_000), |look, _| waiting(ranks, look));
        prop_assert_eq!(found.len(), 1);
        prop_assert!(found[0].0 <= now + AFTER + BETWEEN + BETWEEN, "{:?} after {:?}", found[0], now);
    }
}

#[test]
fn a_silent_job_that_goes_on_costs_two_looks_each_time() {
    let mut looks = 0;
    let stall = Stall::new(spec(Action::Kill), false, s(0));
    let found = findings(stall, s(36_000), |look, _| {
        looks += 1;
        vec![rank(0, Running, &format!("work a.py:{look}"))]
    });
    assert_eq!(found, []);
    assert!(looks <= 120, "{looks} looks in ten hours");
}
