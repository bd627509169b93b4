use proptest::prelude::*;

use super::*;

/// What happens to an attempt.
#[derive(Clone, Debug)]
struct Life {
    /// Milliseconds that it begins late, until it is up, and until it ends.
    late: u64,
    up: u64,
    lasts: u64,
    progress: bool,
    kind: u8,
    planned: bool,
    answer: Option<Answer>,
}

impl Life {
    fn outcome(&self) -> Outcome {
        let number = u32::from(self.kind);
        match self.kind {
            0 => failed(Class::Signal, 137),
            1 => failed(Class::OutOfMemory, 137),
            2 => failed(Class::ExitCode, 3),
            3 => raised("ValueError: a"),
            4 => raised("ValueError: b"),
            5 => failed(Class::SpawnFailed, 127),
            6 => Outcome { is_not_ready: true, ..failed(Class::Signal, 143) },
            7 => failed(Class::LauncherLost, 121),
            _ => Outcome { culprit: Some(Rank(number)), ..failed(Class::Stopped, 147) },
        }
    }
}

fn lives() -> impl Strategy<Value = Vec<Life>> {
    let answers = prop_oneof![
        4 => Just(None),
        1 => Just(Some(Answer::Own)),
        2 => Just(Some(Answer::Restart)),
        1 => Just(Some(Answer::Stop)),
        2 => (0u64..20_000).prop_map(|wait| Some(Answer::Wait(Duration::from_millis(wait)))),
    ];
    let life = (0u64..3000, 0u64..5000, prop_oneof![0u64..2000, 0u64..200_000], any::<bool>(), 0u8..9, 0u8..8, answers);
    let life = life.prop_map(|(late, up, lasts, progress, kind, planned, answer)| Life {
        late,
        up,
        lasts,
        progress,
        kind,
        planned: planned == 0,
        answer,
    });
    proptest::collection::vec(life, 0..60)
}

fn specs() -> impl Strategy<Value = RestartSpec> {
    let budget = (proptest::option::of((0u32..6, 1u64..300)), proptest::option::of(0u32..40));
    let backoff = (0u64..3000, 0u64..20_000);
    (budget, backoff, 0u32..4, any::<bool>(), any::<bool>(), any::<[bool; 2]>()).prop_map(
        |((recent, total), (min, more), retries, breaker, with_file, [asks, is_free])| RestartSpec {
            budget: Budget {
                recent: recent.map(|(restarts, window)| Recent { restarts, window: seconds(window) }),
                total,
            },
            backoff: Backoff { min: Duration::from_millis(min), max: Duration::from_millis(min + more) },
            healthy: seconds(60),
            start: StartRetries { retries, backoff: Duration::from_millis(700) },
            breaker,
            node_loss: if is_free { NodeLoss::Free } else { NodeLoss::Counts },
            progress_file: with_file.then(|| "/ckpt".into()),
            on_failure: asks.then(command),
            ..RestartSpec::default()
        },
    )
}

/// A step of a run: the event, its time, and what was decided.
type Step = (Duration, Event, Option<Decision>);

/// Runs attempts until one is the last, as a front does it.
fn run(spec: &RestartSpec, seed: u64, lives: &[Life]) -> Vec<Step> {
    let mut restarter = Restarter::new(spec, seed);
    let mut steps = Vec::new();
    let mut now = Duration::ZERO;
    for (index, life) in (0..).zip(lives) {
        let mut step = |now: Duration, event: Event| {
            let decision = restarter.handle(now, event.clone());
            steps.push((now, event, decision.clone()));
            (decision, restarter.asks())
        };
        let ms = Duration::from_millis;
        now += ms(life.late);
        step(now, Event::Began);
        let outcome = life.outcome();
        if outcome.class != Some(Class::SpawnFailed) && !outcome.is_not_ready {
            now += ms(life.up);
            step(now, Event::Up);
        }
        if life.progress {
            step(now, Event::Progress(Attempt(index)));
        }
        now += ms(life.lasts);
        if life.planned {
            step(now, Event::Planned);
        }
        let (mut decision, asks) = step(now, Event::Ended(outcome));
        if let Some(answer) = life.answer.filter(|_| asks && spec.asks()) {
            (decision, _) = step(now, Event::Answered(answer));
        }
        match decision {
            Some(Decision::Restart { after, .. }) => now += after,
            _ => break,
        }
    }
    steps
}

/// Each beginning of an attempt after the first, with the decision that led to it and when that was made.
fn begun(steps: &[Step]) -> Vec<(Duration, Duration, Decision)> {
    let mut last = None;
    let mut begun = Vec::new();
    for (at, event, decision) in steps {
        if let (Event::Began, Some((decided, decision))) = (event, last.take()) {
            begun.push((*at, decided, decision));
        }
        last = decision.clone().map(|decision| (*at, decision)).or(last);
    }
    begun
}

proptest! {
    ///
    #[test]
    fn no_window_has_more_restarts_than_the_budget(spec in specs(), seed: u64, lives in lives()) {
        let of_failures: Vec<Duration> = begun(&run(&spec, seed, &lives))
            .into_iter()
            .filter(|(.., decision)| matches!(decision, Decision::Restart { reason: Reason::Failure, .. }))
            .map(|(at, ..)| at)
            .collect();
        if let Some(recent) = spec.budget.recent {
            for (i, first) in of_failures.iter().enumerate() {
                let inside = of_failures[i..].iter().filter(|at| **at - *first < recent.window).count();
                prop_assert!(inside <= recent.restarts as usize, "{inside} from {first:?}: {of_failures:?}");
            }
        }
        if let Some(total) = spec.budget.total {
            prop_assert!(of_failures.len() <= total as usize);
        }
        prop_assert!(spec.budget.is_given() || spec.asks() || of_failures.is_empty());
    }

    /// R-2, and the attempts are counted without a gap.
    #[test]
    fn the_first_restart_is_at_once_and_waits_keep_their_bounds(spec in specs(), seed: u64, lives in lives()) {
        let lives: Vec<Life> = lives.into_iter().map(|life| Life { answer: None, ..life }).collect();
        let (mut in_a_row, mut up_since, mut attempt) = (0u32, None, 0u32);
        for (at, event, decision) in run(&spec, seed, &lives) {
            match event {
                Event::Began => (up_since, attempt) = (None, attempt + 1),
                Event::Up => up_since = Some(at),
                Event::Ended(_) if up_since.is_some_and(|since| at - since >= spec.healthy) => in_a_row = 0,
                _ => {}
            }
            let Some(Decision::Restart { after, attempt: next, reason, .. }) = decision else { continue };
            prop_assert_eq!(next, Attempt(attempt));
            match reason {
                Reason::Planned | Reason::NodeLost => prop_assert_eq!(after, Duration::ZERO),
                Reason::NotStarted => prop_assert_eq!(after, spec.start.backoff),
                Reason::Failure if in_a_row == 0 => prop_assert_eq!(after, Duration::ZERO),
                Reason::Failure => prop_assert!(after >= spec.backoff.min && after <= spec.backoff.limit(in_a_row)),
            }
            prop_assert!(reason != Reason::Failure || after <= spec.backoff.max);
            in_a_row += u32::from(reason == Reason::Failure);
        }
    }

    ///
    #[test]
    fn the_breaker_never_counts_signals_and_lost_nodes(
        spec in specs(), seed: u64, lives in lives(), kinds in proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(7), Just(8)], 60),
    ) {
        let lives: Vec<Life> = lives.into_iter().zip(kinds).map(|(life, kind)| Life { kind, ..life }).collect();
        for (_, _, decision) in run(&spec, seed, &lives) {
            let is_breaker = matches!(decision, Some(Decision::GiveUp { why: GiveUp::Repeated { .. } }));
            prop_assert!(!is_breaker);
        }
    }

    #[test]
    fn the_same_seed_and_events_give_the_same_decisions(spec in specs(), seed: u64, lives in lives()) {
        let first = run(&spec, seed, &lives);
        prop_assert_eq!(&first, &run(&spec, seed, &lives));
    }

    #[test]
    fn a_journal_of_attempts_that_was_written_and_read_gives_the_same_decisions(
        spec in specs(), seed: u64, lives in lives(), ranks in proptest::collection::vec(proptest::option::of(0u32..3), 1..4),
    ) {
        let mut lines = Vec::new();
        let mut write = |at, event| lines.push(serde_json::to_string(&Entry::new(at, event)).expect("plain data"));
        write(Duration::ZERO, JobEvent::Policy { spec: Box::new(spec.clone()), seed });
        let ranks: std::collections::BTreeSet<Option<Rank>> = ranks.into_iter().map(|rank| rank.map(Rank)).collect();
        let mut count = 0;
        for rank in ranks {
            let of_rank = rank.map_or(seed, |rank| seed_of(seed, rank));
            for (at, event, decision) in run(&spec, of_rank, &lives) {
                write(at, JobEvent::Attempt { rank, event });
                count += usize::from(decision.is_some());
                decision.into_iter().for_each(|decision| write(at, JobEvent::Restart { rank, decision }));
            }
        }
        let mut attempts = Attempts::default();
        for line in &lines {
            let entry: Entry = serde_json::from_str(line).expect("our own");
            let at = Duration::from_nanos(entry.at);
            match entry.event {
                JobEvent::Policy { spec, seed } => attempts.begin(*spec, seed),
                JobEvent::Attempt { rank, event } => attempts.take(at, rank, event),
                JobEvent::Restart { rank, decision } => attempts.decided(rank, decision),
                other => prop_assert!(false, "{:?}", other),
            }
        }
        prop_assert!(attempts.is_faithful());
        prop_assert_eq!(attempts.decisions().len(), count);
    }
}
