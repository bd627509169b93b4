//! Any event at any time: what a peer that is broken, or evil, may send. The job must keep what it is, whatever comes.

use std::collections::BTreeSet;
use std::time::Duration;

use super::dice::Dice;
use super::{Setup, Violation, World, ready, size_of};
use crate::gang::{self, Requester, StopRequest};
use crate::grace::StopRecord;
use crate::ids::{Attempt, GroupId, NodeId, Pid, Rank, Stream, WorkerId};
use crate::job::event::{AgentEvent, ClientId, Effect, Event, NodeEvent, WorkerEvent};
use crate::job::parts::about::Summary;
use crate::job::parts::node::Node;
use crate::names::Protocol;
use crate::reach::Step;
use crate::restart::Answer;
use crate::spec::spawning::{SpawnApp, SpawnAsker, SpawnRequest};
use crate::stacks::profile::ProfileSpec;
use crate::status::WorkerStatus;
use crate::worker::Outcome;

/// Events in a sequence.
const EVENTS: u32 = 60;

/// Gives a job events that make no sense together.
///
/// # Errors
///
/// The job names a node or a rank that there is not, goes back to an earlier attempt, or waits for nothing although it is not over.
pub fn wild(seed: u64, setup: Setup) -> Result<u64, Violation> {
    let World { mut dice, mut job, .. } = World::new(seed, setup);
    let mut now = Duration::ZERO;
    let (mut attempt, mut effects, mut events) = (Attempt(0), Vec::new(), 0);
    job.handle(now, Event::Begin, &mut effects);
    let mut gone = BTreeSet::new();
    for _ in 0..EVENTS {
        now += dice.time(Duration::from_secs(20));
        let nodes = job.nodes().len() as u64;
        let event = match dice.below(4) {
            0 => Event::Tick,
            1 => of_front(&mut dice),
            // One of them is none of the job.
            _ => Event::Node {
                node: NodeId(dice.below(nodes + 1) as u32),
                event: of_node(&mut dice, job.spec().attempt),
            },
        };
        job.handle(now, event.clone(), &mut effects);
        events += 1;
        let violates = |what: &str| Err(Violation { at: now, what: format!("{what}, after {event:?}") });
        let unknown = |node: &NodeId| node.index() >= job.nodes().len();
        if effects.iter().filter_map(node_of).any(|node| unknown(&node)) {
            return violates("an effect is for a node that there is not");
        }
        if job.gang().ranks().len() != size_of(&job) {
            return violates("the gang has other ranks than the maps");
        }
        if job.spec().attempt < attempt {
            return violates("an earlier attempt has come back");
        }
        if let Some(node) = job.nodes().iter().find(|node| node.is_alive() && gone.contains(&node.id())) {
            return violates(&format!("node {} was given up, and is back", node.id()));
        }
        // One that was never reached may be called again.
        let is_gone = |node: &&Node| !node.is_alive() && (setup.spares == 0 || node.loss().is_some());
        gone.extend(job.nodes().iter().filter(is_gone).map(Node::id));
        attempt = job.spec().attempt;
        effects.clear();
    }
    Ok(events)
}

/// The node that an effect is for.
fn node_of(effect: &Effect) -> Option<NodeId> {
    match effect {
        Effect::Beat(node)
        | Effect::Start { node, .. }
        | Effect::Introduce { node, .. }
        | Effect::AnswerSpawn { node, .. }
        | Effect::ExpectEnd(node, _)
        | Effect::HasEnded(node)
        | Effect::WatchAgent(node)
        | Effect::End(node)
        | Effect::GiveUp(node)
        | Effect::Disconnect(node)
        | Effect::Call(node)
        | Effect::LookAtCall(node)
        | Effect::Ask(node)
        | Effect::StopAsking(node)
        | Effect::AskSecond(node)
        | Effect::Enrolled(node, _)
        | Effect::RankStarted { node, .. } => Some(*node),
        _ => None,
    }
}

fn of_front(dice: &mut Dice) -> Event {
    let by = Requester { pid: 1, is_root: false };
    match dice.below(20) {
        0 => Event::Paused,
        1 => Event::Resumed,
        2 => Event::Signal { number: [2, 15][dice.below(2) as usize], by_key: false },
        3 => Event::StopRequest { client: ClientId(0), request: StopRequest { by, grace: None } },
        4 => Event::RestartRequest { client: ClientId(1), by },
        5 => Event::StatesRequest { measure: dice.below(2) == 0 },
        6 => Event::StacksRequest { client: ClientId(1), ranks: None, native: false, each: true },
        7 => Event::StandingsRequest { by_key: false },
        8 => Event::Front(gang::Event::OutputFailed),
        9 => Event::OutputGivenUp,
        10 => Event::Shown,
        11 => Event::Logging(dice.chance(50)),
        12 => Event::LogsOpened,
        13 => Event::Stamped { attempt: Attempt(dice.below(3) as u32), stamp: None },
        14 => Event::Answered(Ok(Answer::Own)),
        15 => Event::NoticeFile { stamp: Some((dice.below(3), 1)) },
        16 => Event::NoticeCommand(Ok(WorkerStatus::Exited { code: dice.below(2) as u8 })),
        17 => {
            let spec = ProfileSpec { time: Duration::from_secs(9), interval: Duration::from_millis(50), native: false };
            Event::ProfileRequest { client: ClientId(dice.below(3) as u32), ranks: None, spec }
        }
        18 => Event::ProfileEnd { gone: dice.chance(50).then(|| ClientId(dice.below(3) as u32)) },
        _ => Event::NotAsked { why: "x".to_owned() },
    }
}

fn of_node(dice: &mut Dice, attempt: Attempt) -> NodeEvent {
    let why = || "x".to_owned();
    match dice.below(45) {
        42 => NodeEvent::Followed,
        43 => NodeEvent::Agent(AgentEvent::ProfileOver { number: dice.below(3), why: None }),
        44 => {
            let worker = WorkerId { rank: Rank(dice.below(9) as u32), attempt };
            NodeEvent::Agent(AgentEvent::Profiled { number: dice.below(3), worker, samples: Box::default() })
        }
        0 => NodeEvent::CallFailed { step: Step::Connect, why: why() },
        1 => NodeEvent::CallFailing { step: Step::Start },
        2 => NodeEvent::LoggedIn,
        3 => NodeEvent::LacksProgram,
        4 => NodeEvent::Copying { bytes: 7 },
        5 => NodeEvent::CallSeen { unsent: 3, has_logged_in: true, noise: None },
        6 => NodeEvent::CallEnded { code: 255, words: why(), noise: None },
        7..=10 => NodeEvent::Reached { host: None, client: None, server: None, noise: None },
        11 => NodeEvent::Heard,
        12 => NodeEvent::HasSent,
        13 => NodeEvent::Confirmed,
        14 => NodeEvent::CannotAsk,
        15 => NodeEvent::Broke { is_end: dice.chance(50), why: why() },
        16 => NodeEvent::LossKnown { why: why() },
        17 => NodeEvent::SshEnded { code: [0, 123, 255][dice.below(3) as usize] },
        18 => NodeEvent::GuardEnded { code: 0, memory: None },
        19 => NodeEvent::SecondAnswered { is_empty: dice.chance(50) },
        20 => NodeEvent::GuardLost,
        21 => NodeEvent::Agent(AgentEvent::Refused { what: why(), source: why() }),
        22..=26 => ready(NodeId(dice.below(3) as u32)),
        27 => NodeEvent::Agent(AgentEvent::Meeting(None)),
        28 => NodeEvent::Agent(AgentEvent::ToldToEnd { signal: 15 }),
        29 => NodeEvent::Agent(AgentEvent::LookOver { number: dice.below(3) }),
        30 => NodeEvent::Agent(AgentEvent::Over(Summary::default())),
        31 => NodeEvent::Agent(AgentEvent::Drained),
        32 | 33 => {
            let worker = WorkerId { rank: Rank::of(GroupId(dice.below(3) as u32), dice.below(4) as u32), attempt };
            let asker = SpawnAsker { worker, protocol: Protocol::Pmix, id: dice.below(9) };
            let app = SpawnApp { command: vec!["x".into()], size: dice.below(4) as u32, ..SpawnApp::default() };
            let request = Box::new(SpawnRequest { apps: vec![app], preput: Vec::new() });
            NodeEvent::Agent(AgentEvent::Spawn { asker, request })
        }
        _ => {
            let rank = Rank::of(GroupId(dice.below(3).saturating_sub(1) as u32), dice.below(9) as u32);
            let worker = WorkerId { rank, attempt: Attempt(attempt.0 + dice.below(2) as u32) };
            NodeEvent::Agent(AgentEvent::Worker {
                worker,
                at: Duration::from_secs(dice.below(99)),
                event: of_worker(dice),
            })
        }
    }
}

fn of_worker(dice: &mut Dice) -> WorkerEvent {
    let status = WorkerStatus::Exited { code: dice.below(3) as u8 };
    match dice.below(7) {
        0 => WorkerEvent::Started { pid: Pid(7) },
        1 => WorkerEvent::Ended { status, stop: StopRecord::default() },
        2 => WorkerEvent::Gone { outcome: Outcome::Ended(status), is_left: dice.chance(10) },
        3 => WorkerEvent::Stopped { signal: 19 },
        4 => WorkerEvent::Continued,
        5 => WorkerEvent::Reports(dice.chance(50)),
        _ => WorkerEvent::Closed(Stream::Stderr),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::absence::Absence;
    use crate::evidence::Class;
    use crate::gang::Rules;
    use crate::ids::NodeRank;
    use crate::job::event::{Added, Enrolment};
    use crate::job::machine::Job;
    use crate::job::parts::route::Route;
    use crate::job::settings::{Host, Settings, Way};
    use crate::job::{Containment, Ended, JobSpec, RestartSpec};
    use crate::rankmap::RankMap;
    use crate::report::Report;
    use crate::verdict::{Fate, verdict};

    /// J-4: what was proved of an earlier admission of a node says nothing of the next.
    #[test]
    fn a_node_that_joins_again_is_not_proved_gone_by_its_first_admission() {
        let mut route = Route::new(Way::Joins, Duration::from_secs(9));
        route.reached();
        route.guard_ended(0, None);
        assert!(route.is_proved());
        route.await_again();
        route.reached();
        assert!(!route.is_proved() && route.is_to_say());
    }

    /// J-2: without an agent the end begins, though nothing else is waited for.
    #[test]
    fn a_job_whose_only_agent_refuses_ends_at_once() {
        let World { mut job, .. } = World::new(1, Setup { nodes: 1, faults: 0, spares: 0 });
        let (mut effects, node, now) = (Vec::new(), NodeId(0), Duration::from_secs(7));
        let refused = AgentEvent::Refused { what: "x".to_owned(), source: "x".to_owned() };
        job.handle(now, Event::Node { node, event: NodeEvent::Agent(refused) }, &mut effects);
        assert!(!job.is_linked() && !job.is_closing());
        assert_eq!(job.deadline(), Some(now));
    }

    /// The report tells how the workers were contained in the end.
    #[test]
    fn a_node_that_cannot_place_workers_in_cgroups_says_so_in_the_report() {
        let World { mut job, .. } = World::new(1, Setup { nodes: 1, faults: 0, spares: 0 });
        let mut effects = Vec::new();
        let node = NodeId(0);
        let why = "processes cannot be placed in a cgroup".to_owned();
        let contained = AgentEvent::Contained(Containment::Subreaper { why: why.clone() });
        for event in [ready(node), NodeEvent::Agent(contained)] {
            job.handle(Duration::ZERO, Event::Node { node, event }, &mut effects);
        }
        let end = job.end(Ended::default());
        assert_eq!((end.containment.as_str(), end.containment_note), ("subreaper", Some(why)));
    }

    #[test]
    fn a_job_keeps_what_it_is_whatever_comes() {
        for seed in 0..3_000 {
            let result = wild(seed, Setup { nodes: 4, faults: 0, spares: 0 });
            assert!(result.is_ok(), "seed {seed}: {result:?}");
        }
    }

    /// A node that has not come in time may come later, with a number of its own; nobody comes after one that is there.
    #[test]
    fn a_node_that_comes_late_follows_the_one_that_was_awaited() {
        let World { job, .. } = World::new(1, Setup { nodes: 1, faults: 0, spares: 0 });
        let host = |(node, way)| Host { name: format!("n{node}"), way, slots: Some(1) };
        let hosts = [(0, Way::Here), (1, Way::Joins), (2, Way::Joins)].map(host).to_vec();
        let names = hosts.iter().map(|host| host.name.clone()).collect();
        let map = RankMap::of_nodes(names, &[0, 1, 2].map(NodeRank), &[3]);
        let restart = RestartSpec { budget: "3".parse().expect("a budget"), ..RestartSpec::default() };
        let spec = JobSpec { map, restart, ..job.spec().clone() };
        let rules = Rules { keep_going: false, timeout: None, ..job.gang().rules().clone() };
        let settings = Settings { hosts, least: Some(2), is_elastic: true, ..job.settings };
        let (late, mut job) = (settings.last_call, Job::new(spec, rules, settings));
        let mut handle = |now, node, event| {
            let mut effects = Vec::new();
            let event = match node {
                Some(node) => Event::Node { node: NodeId(node), event },
                None => Event::Tick,
            };
            job.handle(now, event, &mut effects);
            effects
        };
        let reached = || NodeEvent::Reached { host: None, client: None, server: None, noise: None };
        let zero = Duration::ZERO;
        handle(zero, Some(0), ready(NodeId(0)));
        handle(zero, Some(2), reached());
        handle(zero, Some(2), ready(NodeId(2)));
        assert!(!handle(zero, None, NodeEvent::Heard).iter().any(|effect| matches!(effect, Effect::Start { .. })));
        let begun = handle(late, None, NodeEvent::Heard);
        assert!(begun.iter().any(|effect| matches!(effect, Effect::Start { .. })), "{begun:?}");
        assert!(begun.contains(&Effect::Enrolled(NodeId(1), Enrolment::Lost)), "{begun:?}");
        assert!(!begun.iter().any(|effect| matches!(effect, Effect::CloseDoor { .. })), "{begun:?}");
        let comes = handle(late, Some(1), NodeEvent::Followed);
        let added = Effect::AddNode(NodeId(3), Added::Again(NodeId(1)));
        assert_eq!(comes, [added, Effect::Enrolled(NodeId(3), Enrolment::After(NodeId(1)))]);
        handle(late, Some(3), reached());
        handle(late, Some(3), ready(NodeId(3)));
        let refused = handle(late, Some(2), NodeEvent::Followed);
        assert_eq!(refused, [Effect::Enrolled(NodeId(2), Enrolment::Refused)]);
        assert_eq!(job.nodes().spares().map(|node| node.id()).collect::<Vec<_>>(), [NodeId(3)]);
    }

    /// The machine of a group of two ranks, whose agent is ready to start them.
    fn job_of(group: GroupId) -> Job {
        let World { job, .. } = World::new(1, Setup { nodes: 1, faults: 0, spares: 0 });
        let map = RankMap::single_node("n0", &[2]);
        let spec = JobSpec { group, map, restart: RestartSpec::default(), ..job.spec().clone() };
        let rules = Rules { keep_going: false, timeout: None, ..job.gang().rules().clone() };
        let mut job = Job::new(spec, rules, job.settings);
        for event in [Event::Begin, Event::Node { node: NodeId(0), event: ready(NodeId(0)) }] {
            job.handle(Duration::ZERO, event, &mut Vec::new());
        }
        job
    }

    /// A signal at another node than ours ends the job also while the next attempt is awaited.
    #[test]
    fn a_node_that_is_told_to_end_between_two_attempts_ends_the_job() {
        let World { job, .. } = World::new(1, Setup { nodes: 1, faults: 0, spares: 0 });
        let (node, s) = (NodeId(0), Duration::from_secs);
        let map = RankMap::single_node("n0", &[2]);
        let restart = RestartSpec { budget: "3".parse().expect("a budget"), ..RestartSpec::default() };
        let spec = JobSpec { map, restart, ..job.spec().clone() };
        let rules = Rules { keep_going: false, timeout: None, ..job.gang().rules().clone() };
        let mut job = Job::new(spec, rules, job.settings);
        let agent = |event| Event::Node { node, event: NodeEvent::Agent(event) };
        let lives = [0, 1].into_iter().flat_map(|rank| life(crate::ids::worker(rank), 3));
        let mut events = vec![Event::Begin, Event::Node { node, event: ready(node) }];
        events.extend(lives.map(|event| Event::Node { node, event }));
        events.extend([agent(AgentEvent::Over(Summary::default())), agent(AgentEvent::Drained), Event::Shown]);
        for event in events {
            job.handle(s(1), event, &mut Vec::new());
        }
        assert!(job.is_between_attempts() && job.gang().stop_ordered().is_some());
        job.handle(s(1), agent(AgentEvent::ToldToEnd { signal: 15 }), &mut Vec::new());
        assert_eq!(job.gang().ended_by(), Some(gang::Outside::Signal(15)));
        let mut effects = Vec::new();
        job.handle(s(60), Event::Tick, &mut effects);
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::BeginAttempt)), "{effects:?}");
    }

    /// After a pause nothing is known of a node's clock. The first message tells it, for the earlier times that are in it too.
    #[test]
    fn the_time_from_the_first_signal_to_sigkill_is_told_after_a_pause_too() {
        let s = Duration::from_secs;
        let (mut job, worker) = (job_of(GroupId(0)), crate::ids::worker(0));
        let [started, ..] = life(worker, 0);
        let status = WorkerStatus::Signaled { signal: 9, core_dumped: false };
        let stop = StopRecord { signals: vec![(15, s(2)), (9, s(4))], ..StopRecord::default() };
        let ended =
            NodeEvent::Agent(AgentEvent::Worker { worker, at: s(4), event: WorkerEvent::Ended { status, stop } });
        let node = NodeId(0);
        for (at, event) in [
            (1, Event::Node { node, event: started }),
            (2, Event::Signal { number: 15, by_key: false }),
            (3, Event::Paused),
            (3, Event::Resumed),
            (5, Event::Node { node, event: ended }),
        ] {
            job.handle(s(at), event, &mut Vec::new());
        }
        assert_eq!(job.gang().ranks().get(Rank(0)).expect("a rank").stop.killed_after(), Some(s(2)));
    }

    /// What an agent tells of a worker, from its start to its end.
    fn life(worker: WorkerId, code: u8) -> [NodeEvent; 5] {
        let event = |event| NodeEvent::Agent(AgentEvent::Worker { worker, at: Duration::from_secs(1), event });
        let status = WorkerStatus::Exited { code };
        [
            event(WorkerEvent::Started { pid: Pid(100) }),
            NodeEvent::Agent(AgentEvent::Hookless(vec![(worker, Absence::Option('I'))])),
            event(WorkerEvent::Reports(true)),
            event(WorkerEvent::Ended { status, stop: StopRecord::default() }),
            event(WorkerEvent::Gone { outcome: Outcome::Ended(status), is_left: false }),
        ]
    }

    #[test]
    fn what_a_worker_of_another_group_or_attempt_does_changes_nothing() {
        let mut jobs = [0, 1].map(|group| job_of(GroupId(group)));
        let mut ended = [0, 0];
        // Both groups have the ranks 0 and 1. Rank 1 of group 1 fails, and so do workers of a third group and of another attempt.
        for (group, rank, attempt, code) in
            [(0, 0, 0, 0), (1, 1, 0, 3), (2, 0, 0, 4), (0, 1, 1, 5), (1, 0, 0, 0), (0, 1, 0, 0)]
        {
            let worker = WorkerId { rank: Rank::of(GroupId(group), rank), attempt: Attempt(attempt) };
            for event in life(worker, code) {
                for (job, of) in jobs.iter_mut().zip(0..) {
                    let (before, mut effects) = (format!("{job:?}"), Vec::new());
                    job.handle(Duration::ZERO, Event::Node { node: NodeId(0), event: event.clone() }, &mut effects);
                    let is_own = (of, 0) == (group, attempt);
                    assert!(is_own || (format!("{job:?}"), effects.len()) == (before, 0), "group {of}: {event:?}");
                    ended[of as usize] += effects.iter().filter(|it| matches!(it, Effect::RankEnded { .. })).count();
                }
            }
        }
        assert_eq!(ended, [2, 2], "each rank has ended once in each group");
        let [zero, one] = jobs.map(|job| {
            let (verdict, end) = (verdict(job.gang()), job.end(Ended::default()));
            Report::of(job.facts(), job.gang(), &verdict, &end, |_| None)
        });
        let fates = |report: &Report| report.ranks.iter().map(|rank| rank.fate).collect::<Vec<_>>();
        assert_eq!((zero.class, zero.evidence.len(), fates(&zero)), (None, 0, vec![Fate::Succeeded; 2]));
        assert_eq!((one.class, fates(&one)), (Some(Class::ExitCode), vec![Fate::Succeeded, Fate::Culprit]));
    }
}
