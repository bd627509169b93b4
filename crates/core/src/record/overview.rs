//! The state of running jobs, for people: `rankrun status`.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::condition::Doing;
use crate::control::{JobState, JobStatus, Member, RankStatus};
use crate::printable::{columns, fit, printable};
use crate::ranks::RankSet;
use crate::standing::{Phase, seconds, without_numbers};

/// Groups of ranks that get a line each.
const GROUPS: usize = 40;

/// A row of the list of jobs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    pub job: String,
    pub since: String,
    pub attempt: String,
    pub ranks: String,
    pub state: String,
    pub command: String,
}

impl Row {
    /// That of a job that has answered.
    pub fn of(status: &JobStatus) -> Row {
        Row {
            job: status.job.0.clone(),
            since: seconds((status.now - status.started).max(0.0)),
            attempt: status.attempt.to_string(),
            ranks: status.world_size.to_string(),
            state: status.state.name().to_owned(),
            command: status.command.join(" "),
        }
    }

    /// That of a job that has not.
    pub fn unknown(job: &str, state: &str, command: &str) -> Row {
        let unknown = || "?".to_owned();
        Row {
            job: job.to_owned(),
            since: unknown(),
            attempt: unknown(),
            ranks: unknown(),
            state: state.to_owned(),
            command: command.to_owned(),
        }
    }
}

/// The list of jobs as a table that is so many columns wide.
pub fn table(rows: &[Row], width: usize) -> String {
    let head = ["JOB", "SINCE", "ATTEMPT", "RANKS", "STATE"].map(str::to_owned);
    let cells = rows.iter().map(|row| {
        let Row { job, since, attempt, ranks, state, command: _ } = row;
        [job, since, attempt, ranks, state].map(|cell| printable(cell).into_owned())
    });
    let cells: Vec<[String; 5]> = std::iter::once(head).chain(cells).collect();
    let wide = |text: &str| text.chars().map(columns).sum::<usize>();
    let widths: [usize; 5] = std::array::from_fn(|at| cells.iter().map(|row| wide(&row[at])).max().unwrap_or(0));
    let commands = std::iter::once("COMMAND").chain(rows.iter().map(|row| row.command.as_str()));
    let mut text = String::new();
    for (row, command) in cells.iter().zip(commands) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // Writing into a string does not fail, here and below.
            let _ = write!(line, "{cell}{}  ", " ".repeat(width - wide(cell)));
        }
        line.push_str(&printable(command));
        let _ = writeln!(text, "{}", fit(&line, width).trim_end());
    }
    text
}

/// One job and its ranks, in lines of so many columns.
pub fn describe(status: &JobStatus, width: usize) -> String {
    let ago = |at: f64| seconds((status.now - at).max(0.0));
    let mut lines = vec![format!(
        "job {}: {} for {}{}{}",
        status.job,
        status.state.name(),
        ago(status.since),
        status.why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default(),
        status.until.map(|until| format!("; {}", due(status, until - status.now))).unwrap_or_default(),
    )];
    let mut field = |name: &str, value: &str| lines.push(format!("  {name:<10}{value}"));
    field("command", &status.command.join(" "));
    field("directory", &status.directory);
    field(
        "started",
        &format!("{} ago, attempt {}; its front is process {}", ago(status.started), status.attempt, status.pid),
    );
    for node in &status.silent_nodes {
        field("node", &format!("the agent of {node} does not answer: less is known of its ranks"));
    }
    for member in &status.members {
        let text = match (member.state, member.until) {
            (Member::Spare, _) => format!("{} is a spare", member.node),
            (Member::Away, _) => format!("{} is away, and is called again", member.node),
            (Member::LeftOut, None) => format!("{} is left out (--exclude-after)", member.node),
            (Member::LeftOut, Some(until)) => {
                let rest = seconds((until - status.now).max(0.0));
                format!("{} was lost too often, and is left out for {rest} (--exclude-after)", member.node)
            }
        };
        field("node", &text);
    }
    let bound = status.ranks.iter().filter_map(|rank| Some(format!("{}: {}", rank.rank, rank.cpus.as_ref()?)));
    let bound: Vec<String> = bound.collect();
    if !bound.is_empty() {
        field("CPUs", &bound.join("  "));
    }
    let groups = groups(status);
    let width_of_names =
        groups.iter().take(GROUPS).map(|(name, _)| name.len()).filter(|length| *length <= 16).max().unwrap_or(0);
    lines.extend(groups.iter().take(GROUPS).map(|(name, text)| format!("{name:<width_of_names$}  {text}")));
    if groups.len() > GROUPS {
        lines.push(format!("and {} more states (--json has all)", groups.len() - GROUPS));
    }
    lines.iter().map(|line| format!("{}\n", fit(&printable(line), width))).collect()
}

fn due(status: &JobStatus, left: f64) -> String {
    let time = seconds(left.max(0.0));
    match status.state {
        JobState::Waiting => format!("attempt {} in {time}", status.attempt.0 + 1),
        JobState::Stopping => format!("SIGKILL in {time}"),
        JobState::Starting | JobState::Running | JobState::Paused | JobState::Ending => format!("--timeout in {time}"),
    }
}

/// Ranks whose lines differ at most in times and in numbers share one.
fn groups(status: &JobStatus) -> Vec<(String, String)> {
    let mut found: Vec<Vec<&RankStatus>> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for rank in &status.ranks {
        let words = without_numbers(&format!("{:?} {:?}", rank.last_line, rank.note));
        let attempt = (rank.state == Doing::Waiting).then_some(rank.attempt);
        let kind = (rank.state, rank.phase, &rank.why, rank.is_saving, rank.wrote.is_some(), attempt);
        let at = *known.entry(format!("{kind:?} {words}")).or_insert(found.len());
        match found.get_mut(at) {
            Some(group) => group.push(rank),
            None => found.push(vec![rank]),
        }
    }
    found.iter().map(|group| line(group, status.now)).collect()
}

/// The name of a group and what its ranks are doing.
fn line(group: &[&RankStatus], now: f64) -> (String, String) {
    let noun = if group.len() == 1 { "rank" } else { "ranks" };
    let name = format!("{noun} {}", RankSet::of(group.iter().map(|rank| rank.rank)));
    let Some(first) = group.first() else { return (name, String::new()) };
    let times = |time: fn(&RankStatus) -> Option<f64>| {
        let all = group.iter().filter_map(|rank| time(rank)).map(|at| (at - now).abs());
        let (least, most) = all.fold((f64::MAX, f64::MIN), |(least, most), time| (least.min(time), most.max(time)));
        match most - least {
            _ if most < least => None,
            difference if difference < 1.0 => Some(seconds(most)),
            _ => Some(format!("{} to {}", seconds(least), seconds(most))),
        }
    };
    let doing = doing(first);
    let mut text = doing.to_owned();
    if let Some(time) = times(|rank| rank.since) {
        text.push_str(&if first.state == Doing::Ended { format!(" {time} ago") } else { format!(" for {time}") });
    }
    if let Some(why) = &first.why {
        let _ = write!(text, " ({why})");
    }
    if let Some(time) = times(|rank| rank.until) {
        let step = match first.state {
            Doing::Lingering => "SIGTERM".to_owned(),
            Doing::Killing => "given up".to_owned(),
            Doing::Waiting => format!("attempt {}", first.attempt.0 + 1),
            _ => "SIGKILL".to_owned(),
        };
        let _ = write!(text, "; {step} in {time}");
    }
    if !matches!(first.state, Doing::NotStarted | Doing::Ended | Doing::Waiting) {
        let since = times(|rank| rank.phase_since).unwrap_or_default();
        match first.phase {
            Phase::BeforeInit => text.push_str("; before MPI_Init"),
            Phase::CalledInit => drop(write!(text, "; called MPI_Init {since} ago")),
            Phase::InMpi => drop(write!(text, "; in MPI for {since}")),
            Phase::Finalizing => drop(write!(text, "; in MPI_Finalize for {since}")),
            Phase::NotStarted | Phase::Running | Phase::Ended(_) => {}
        }
        match times(|rank| rank.wrote) {
            Some(time) => drop(write!(text, "; silent {time}")),
            None => text.push_str("; no output"),
        }
    }
    let of_one = if group.len() == 1 { String::new() } else { format!(" of rank {}", first.rank) };
    if let Some(note) = &first.note {
        let _ = write!(text, "; note: \"{note}\"");
    }
    if let Some(last) = first.last_line.as_ref().filter(|last| !last.is_empty()) {
        let _ = write!(text, "; last line{of_one}: \"{last}\"");
    }
    (name, text)
}

/// What a rank is doing, in words.
pub(super) fn doing(rank: &RankStatus) -> &'static str {
    match rank.state {
        Doing::NotStarted => "not started",
        Doing::Starting => "starting",
        Doing::Running => "running",
        Doing::Stopping if rank.is_saving => "stopping and writing files",
        Doing::Stopping => "stopping",
        Doing::Lingering => "waiting for its other processes",
        Doing::Terminating => "ending its other processes",
        Doing::DumpingCore => "writing a core file",
        Doing::Killing => "being killed",
        Doing::Ended => "ended",
        Doing::Waiting => "waiting",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::ids::{Attempt, JobId, Pid, Rank};

    pub(in crate::record) fn rank(rank: u32) -> RankStatus {
        RankStatus {
            rank: Rank(rank),
            attempt: Attempt(0),
            node: "node01".to_owned(),
            cpus: None,
            pid: Some(Pid(100 + rank as i32)),
            state: Doing::Running,
            since: Some(1000.0),
            until: None,
            why: None,
            is_saving: false,
            phase: Phase::Running,
            phase_since: None,
            wrote: None,
            last_line: None,
            note: None,
            usage: None,
        }
    }

    pub(in crate::record) fn status(ranks: Vec<RankStatus>) -> JobStatus {
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
            now: 1200.5,
            state: JobState::Stopping,
            since: 1195.5,
            until: Some(1220.5),
            why: Some("rankrun received SIGTERM".to_owned()),
            restarts_left: None,
            silent_nodes: vec!["node02".to_owned()],
            members: Vec::new(),
            ranks,
        }
    }

    #[test]
    fn ranks_in_the_same_state_share_a_line() {
        let spoken = |number: u32, wrote: f64| RankStatus {
            wrote: Some(wrote),
            last_line: Some(format!("rank {number}: epoch 3")),
            ..rank(number)
        };
        let stopping = |number: u32| RankStatus {
            state: Doing::Stopping,
            since: Some(1195.5),
            until: Some(1220.5),
            why: Some("rankrun received SIGTERM".to_owned()),
            is_saving: number == 5,
            cpus: Some(format!("{number},1{number}")),
            ..rank(number)
        };
        let ended = RankStatus { state: Doing::Ended, since: Some(1200.0), why: Some("exit 0".to_owned()), ..rank(6) };
        let waiting = RankStatus {
            state: Doing::Waiting,
            attempt: Attempt(1),
            since: Some(1198.0),
            until: Some(1218.0),
            why: Some("exit 9".to_owned()),
            wrote: Some(1199.0),
            ..rank(8)
        };
        let unstarted = RankStatus { state: Doing::NotStarted, since: None, phase: Phase::NotStarted, ..rank(7) };
        let ranks = vec![
            spoken(0, 1100.5),
            spoken(1, 1199.5),
            RankStatus { phase: Phase::InMpi, phase_since: Some(1010.0), ..rank(2) },
            stopping(3),
            stopping(4),
            stopping(5),
            ended,
            unstarted,
            waiting,
        ];
        insta::assert_snapshot!(describe(&status(ranks), 120), @r#"
        job 0a1b2c3d: stopping for 5.0 s (rankrun received SIGTERM); SIGKILL in 20 s
          command   python train.py
          directory /home/me
          started   3 min 30 s ago, attempt 0; its front is process 42
          node      the agent of node02 does not answer: less is known of its ranks
          CPUs      3: 3,13  4: 4,14  5: 5,15
        ranks 0-1  running for 3 min 20 s; silent 1.0 s to 1 min 40 s; last line of rank 0: "rank 0: epoch 3"
        rank 2     running for 3 min 20 s; in MPI for 3 min 10 s; no output
        ranks 3-4  stopping for 5.0 s (rankrun received SIGTERM); SIGKILL in 20 s; no output
        rank 5     stopping and writing files for 5.0 s (rankrun received SIGTERM); SIGKILL in 20 s; no output
        rank 6     ended 0.5 s ago (exit 0)
        rank 7     not started
        rank 8     waiting for 2.5 s (exit 9); attempt 2 in 17 s
        "#);
    }

    #[test]
    fn the_list_has_a_row_for_each_job_also_for_one_that_does_not_answer() {
        let rows = [Row::of(&status(vec![rank(0)])), Row::unknown("7f3a91c2", "does not answer", "\u{1b}[2Jx")];
        insta::assert_snapshot!(table(&rows, 80), @r"
        JOB       SINCE       ATTEMPT  RANKS  STATE            COMMAND
        0a1b2c3d  3 min 30 s  0        1      stopping         python train.py
        7f3a91c2  ?           ?        ?      does not answer  \x1b[2Jx
        ");
    }
}
