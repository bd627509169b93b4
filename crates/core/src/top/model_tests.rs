//! The model and the marks, from answers to rows.

use crate::condition::Doing;
use crate::control::{JobState, JobStatus, RankStatus, RankUsage};
use crate::ids::{Attempt, JobId, Pid, Rank};
use crate::standing::Phase;
use crate::top::{Mark, Model, Sort};

fn rank(number: u32) -> RankStatus {
    RankStatus {
        rank: Rank(number),
        attempt: Attempt(0),
        node: format!("node{:02}", number / 4),
        cpus: None,
        pid: Some(Pid(100 + number as i32)),
        state: Doing::Running,
        since: Some(1000.0),
        until: None,
        why: None,
        is_saving: false,
        phase: Phase::Running,
        phase_since: None,
        wrote: Some(1000.0),
        last_line: None,
        note: None,
        usage: None,
    }
}

fn used(at: f64, cpu: f64) -> RankUsage {
    RankUsage {
        at,
        cpu,
        memory: 1 << 20,
        read: Some(0),
        written: Some((cpu * 1000.0) as u64),
        processes: 1,
        threads: 1,
        is_stopped: false,
        gpus: Vec::new(),
    }
}

fn status(now: f64, state: JobState, ranks: Vec<RankStatus>) -> JobStatus {
    JobStatus {
        job: JobId("0a1b2c3d".to_owned()),
        release: "0.1.0".to_owned(),
        pid: Pid(42),
        front_pid: Some(Pid(42)),
        detached: false,
        command: vec!["python".to_owned(), "train.py".to_owned()],
        directory: "/home/me".to_owned(),
        world_size: ranks.len() as u32,
        attempt: Attempt(0),
        started: 990.0,
        now,
        state,
        since: 1000.0,
        until: None,
        why: None,
        restarts_left: None,
        silent_nodes: Vec::new(),
        members: Vec::new(),
        ranks,
    }
}

/// The model after these seconds, in which each rank has used so much CPU time a second.
fn after(seconds: u32, cpu: &[f64], change: impl Fn(&mut RankStatus)) -> Model {
    let mut model = Model::default();
    for second in 0..=seconds {
        let now = 1000.0 + f64::from(second);
        let ranks = (0..cpu.len() as u32).map(|number| {
            let usage = Some(used(now, cpu[number as usize] * f64::from(second)));
            let mut rank = RankStatus { usage, ..rank(number) };
            change(&mut rank);
            rank
        });
        model.take(status(now, JobState::Running, ranks.collect()));
    }
    model
}

fn marks(model: &Model) -> Vec<Option<Mark>> {
    model.rows().iter().map(|row| row.mark).collect()
}

#[test]
fn rates_are_differences_over_the_time_between_two_measurements() {
    let mut model = after(2, &[1.0, 0.5, 2.0], |_| {});
    let cpu: Vec<Option<f64>> = model.rows().iter().map(|row| row.cpu).collect();
    assert_eq!(cpu, [Some(100.0), Some(50.0), Some(200.0)]);
    assert_eq!((model.totals().cpu, model.totals().written), (Some(350.0), Some(3500.0)));
    // The next measurement comes late.
    model.take(status(1006.0, JobState::Running, vec![RankStatus { usage: Some(used(1006.0, 4.0)), ..rank(0) }]));
    assert_eq!(model.rows()[0].cpu, Some(50.0));
    // The agent has not answered: what was known stays.
    model.take(status(1007.0, JobState::Running, vec![rank(0)]));
    assert_eq!(model.rows()[0].cpu, Some(50.0));
    // Two answers with the same measurement, and a counter that goes back.
    for usage in [used(1006.0, 4.0), used(1007.0, 1.0)] {
        model.take(status(1007.0, JobState::Running, vec![RankStatus { usage: Some(usage), ..rank(0) }]));
        assert_eq!((model.rows()[0].cpu, model.rows().len()), (Some(50.0), 1));
    }
    assert_eq!(model.rows()[0].written, None, "a counter that has gone back has no rate");
}

#[test]
fn the_next_attempt_of_a_rank_has_no_rate_of_the_last_one() {
    let mut model = after(2, &[1.0; 3], |_| {});
    let again = RankStatus { attempt: Attempt(1), pid: Some(Pid(900)), usage: Some(used(1003.0, 0.0)), ..rank(0) };
    model.take(status(1003.0, JobState::Running, vec![again]));
    assert_eq!(model.rows()[0].cpu, None);
}

#[test]
fn a_rank_that_takes_much_less_cpu_than_the_others_is_idle() {
    let model = after(3, &[1.0, 1.0, 0.1, 0.9], |_| {});
    assert_eq!(marks(&model), [None, None, Some(Mark::Idle), None]);
    assert_eq!(marks(&after(3, &[0.1, 0.1, 0.01, 0.1], |_| {})), [None; 4], "nobody works");
    assert_eq!(marks(&after(3, &[1.0, 0.0], |_| {})), [None; 2], "two have no majority");
}

#[test]
fn a_rank_that_is_stopped_dead_behind_or_silent_is_marked() {
    let model = after(3, &[0.0; 8], |rank| match rank.rank.number() {
        1 => rank.usage.as_mut().expect("it is measured").is_stopped = true,
        2 => (rank.state, rank.why) = (Doing::Ended, Some("SIGKILL".to_owned())),
        3 => (rank.state, rank.why) = (Doing::Ended, Some("exit 0".to_owned())),
        4 => rank.last_line = Some(" 10%|#   | 10/100 [00:10<00:12,  4.43it/s]".to_owned()),
        5 => {
            rank.wrote = Some(900.0);
            rank.last_line = Some(" 44%|#   | 44/100 [00:10<00:12,  4.43it/s]".to_owned());
        }
        _ => rank.last_line = Some(" 45%|####   | 45/100 [00:10<00:12,  4.43it/s]".to_owned()),
    });
    let expected =
        [None, Some(Mark::Stopped), Some(Mark::Dead), None, Some(Mark::Behind), Some(Mark::Silent), None, None];
    assert_eq!(marks(&model), expected);
    let first: Vec<u32> = model.chosen("", Sort::Odd).iter().map(|row| row.rank().number()).collect();
    assert_eq!(first, [2, 1, 4, 5, 0, 3, 6, 7]);
    assert_eq!(model.totals().odd, 4);
}

#[test]
fn what_a_stop_of_the_job_ends_is_not_odd() {
    let mut model = Model::default();
    let ended = |number: u32, at: f64| RankStatus {
        state: Doing::Ended,
        since: Some(at),
        why: Some("SIGTERM".to_owned()),
        usage: None,
        ..rank(number)
    };
    let ranks = vec![ended(0, 1000.5), ended(1, 1001.5), rank(2)];
    let stopping = JobStatus { since: 1001.0, ..status(1002.0, JobState::Stopping, ranks.clone()) };
    model.take(stopping);
    assert_eq!(marks(&model), [Some(Mark::Dead), None, None]);
    model.take(status(1003.0, JobState::Ending, ranks));
    assert_eq!(marks(&model), [Some(Mark::Dead), None, None]);
}

#[test]
fn while_a_job_is_paused_stopped_ranks_are_not_odd() {
    let mut model = Model::default();
    let stopped = |number| RankStatus { usage: Some(RankUsage { is_stopped: true, ..used(1.0, 0.0) }), ..rank(number) };
    model.take(status(1000.0, JobState::Paused, (0..4).map(stopped).collect()));
    assert_eq!(marks(&model), [None; 4]);
}

#[test]
fn rows_are_found_by_number_node_and_words_and_put_in_order() {
    let model = after(2, &[0.2, 0.4, 0.1, 0.3, 0.0], |rank| {
        rank.last_line = Some(format!("Epoch 1{}", rank.rank.number()));
    });
    let chosen =
        |filter: &str, sort| model.chosen(filter, sort).iter().map(|row| row.rank().number()).collect::<Vec<u32>>();
    assert_eq!(chosen("", Sort::Cpu), [1, 3, 0, 2, 4]);
    assert_eq!(chosen("3", Sort::Rank), [3], "a number is that of a rank");
    assert_eq!(chosen("node01", Sort::Rank), [4]);
    assert_eq!(chosen("epoch running", Sort::Rank), [0, 1, 2, 3, 4]);
    assert!(chosen("epoch dead", Sort::Rank).is_empty());
    assert_eq!(
        model.nodes().iter().map(|(name, rows)| (*name, rows.len())).collect::<Vec<_>>(),
        [("node00", 4), ("node01", 1)]
    );
}
