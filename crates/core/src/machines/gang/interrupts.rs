//! What ends a gang from outside: signals, the loss of a part of rankrun, and ^C on a terminal that was lent to a rank.

use std::time::Duration;

use super::event::Effect;
use super::outside::{LostNode, Outside, SECOND_INTERRUPT, StopRequest};
use super::planned::{PlannedStop, PlannedWhy};
use super::state::Gang;
use crate::grace::{SIGINT, SIGTERM};
use crate::ids::{NodeRank, Rank, WorkerId};
use crate::interrupt::{SHARED, is_interrupt};
use crate::verdict::finding;
use crate::worker::{Stop, StopWhy};

impl Gang {
    pub(super) fn know_loss(&mut self, node: NodeRank, why: String) {
        if let Some(lost) = self.lost_nodes.iter_mut().find(|lost| lost.node == node) {
            lost.why = why;
        }
    }

    /// Nothing more is known of the ranks that had not ended there.
    pub(super) fn lose_node(&mut self, lost: LostNode, workers: &[WorkerId]) {
        for worker in workers {
            if let Some(record) = self.ranks.get_mut(worker.rank) {
                record.is_lost = record.outcome.is_none();
            }
        }
        self.lost_nodes.push(lost);
    }

    /// As SIGTERM, except that a request with a grace also shortens that of a stop that has begun.
    pub(super) fn stop_request(&mut self, now: Duration, request: StopRequest, effects: &mut Vec<Effect>) {
        let grace = request.grace.unwrap_or(self.rules.grace_outside);
        let may_follow = |first| matches!(first, Outside::Restart | Outside::NodeLost | Outside::Planned(_));
        let is_first = self.outside.is_none_or(|(first, _)| may_follow(first));
        if is_first && self.requested.is_none() {
            self.requested = Some(request);
            self.end_from_outside(now, Outside::Signal(SIGTERM), grace, effects);
        } else if request.grace.is_some() {
            self.stop(now, Stop { why: StopWhy::Signal(SIGTERM), grace }, effects);
        }
    }

    pub(super) fn signal(&mut self, now: Duration, signal: i32, effects: &mut Vec<Effect>) {
        let first_interrupt = self.interrupted_at;
        if signal == SIGINT {
            self.interrupted_at = first_interrupt.or(Some(now));
        }
        if signal == SIGINT && first_interrupt.is_some_and(|at| now >= at + SECOND_INTERRUPT) {
            if self.killed_at.is_none() {
                self.killed_at = Some(now);
                effects.push(Effect::Kill);
            }
        } else if signal == SIGTERM && matches!(self.outside, Some((Outside::Planned(_), _))) {
            // A scheduler may say it twice.
            self.stop(now, Stop { why: StopWhy::Signal(signal), grace: self.rules.grace_outside }, effects);
        } else if !matches!(self.outside, Some((Outside::Signal(_) | Outside::Interrupted(_), _))) {
            self.end_from_outside(now, Outside::Signal(signal), self.rules.grace_outside, effects);
        }
    }

    pub(super) fn end_from_outside(
        &mut self,
        now: Duration,
        outside: Outside,
        grace: Duration,
        effects: &mut Vec<Effect>,
    ) {
        if let Outside::Interrupted(_) = outside {
            self.interrupted_at.get_or_insert(now);
        }
        match self.outside {
            None | Some((Outside::Restart, _)) => self.outside = Some((outside, now)),
            // A user ends a job that is being stopped as planned: it is not to go on later.
            Some((Outside::Planned(_), _)) if matches!(outside, Outside::Signal(_) | Outside::Interrupted(_)) => {
                self.outside = Some((outside, now));
            }
            // Whoever ends all processes of a job ends those of other nodes too, which may be noticed first.
            Some((Outside::NodeLost, at)) if matches!(outside, Outside::Signal(_)) && now <= at + SHARED => {
                self.outside = Some((outside, now));
            }
            Some((Outside::NodeLost | Outside::Hang, _)) if !matches!(outside, Outside::NodeLost | Outside::Hang) => {
                self.after_loss.get_or_insert(outside);
            }
            Some(_) => {}
        }
        let why = match outside {
            Outside::Signal(signal) => StopWhy::Signal(signal),
            Outside::Interrupted(_) => StopWhy::Signal(SIGINT),
            Outside::Restart => StopWhy::Signal(SIGTERM),
            Outside::OutputGone => StopWhy::Signal(13),
            Outside::OutputFailed => StopWhy::OutputFailed,
            Outside::Timeout => StopWhy::Timeout,
            Outside::Planned(PlannedStop { why: PlannedWhy::Signal(signal), .. }) => StopWhy::Signal(signal),
            Outside::Planned(_) => StopWhy::Planned,
            Outside::Hang => StopWhy::Hang,
            Outside::AgentLost => StopWhy::FrontLost,
            Outside::GuardLost => StopWhy::GuardLost,
            Outside::NodeLost | Outside::Alone => StopWhy::GangFailed,
            Outside::WireUpLost => StopWhy::WireUpLost,
        };
        self.stop(now, Stop { why, grace }, effects);
    }
}

/// Whether the failure of a rank, as far as it is known, is the user's ^C.
pub(super) fn is_interrupted(gang: &Gang, rank: Rank) -> bool {
    gang.rules.terminal == Some(rank) && finding(gang, rank).is_some_and(|finding| is_interrupt(gang, &finding))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Class, MpiEvent};
    use crate::exit::ExitCode;
    use crate::gang::{Event, Requester, Rules};
    use crate::grace::{SIGHUP, StopRecord};
    use crate::ids::{GangId, Pid, worker};
    use crate::spec::job::StopPolicy;
    use crate::status::WorkerStatus;
    use crate::testimony::{Exception, StuckIn, Testimony};
    use crate::verdict::{Fate, Verdict, verdict};

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Two ranks, of which rank 0 may have the terminal. The leader of rank r has the pid 100 + r.
    fn gang(terminal: Option<Rank>, timeout: Option<Duration>) -> Gang {
        let rules = Rules { grace_failure: ms(5_000), grace_outside: ms(25_000), timeout, keep_going: false, terminal };
        let mut gang = Gang::new(GangId::default(), 2, rules);
        for rank in 0..2 {
            feed(&mut gang, 0, Event::Started { worker: worker(rank), pid: Pid(100 + rank as i32) });
        }
        gang
    }

    fn feed(gang: &mut Gang, at: u64, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        gang.handle(ms(at), event, &mut effects);
        effects
    }

    fn raises(rank: u32, pid: i32, kind: &str) -> Event {
        let exception = Exception { kind: kind.to_owned(), ..Exception::default() };
        Event::Testimony { worker: worker(rank), pid: Pid(pid), testimony: Testimony::Uncaught(exception) }
    }

    fn ends(rank: u32, status: WorkerStatus) -> Event {
        Event::Ended { worker: worker(rank), status }
    }

    fn exit(rank: u32, code: u8) -> Event {
        ends(rank, WorkerStatus::Exited { code })
    }

    fn killed(rank: u32, signal: i32) -> Event {
        ends(rank, WorkerStatus::Signaled { signal, core_dumped: false })
    }

    fn stuck(leader: bool, pid: i32) -> Event {
        Event::Stuck { worker: worker(0), pid: Pid(pid), place: StuckIn::Finalize, since: ms(10), leader }
    }

    /// The signals of a stop that a rank was sent.
    fn signalled(rank: u32, signals: &[(i32, u64)]) -> Event {
        let signals = signals.iter().map(|(signal, at)| (*signal, ms(*at))).collect();
        Event::Signalled { worker: worker(rank), record: StopRecord { signals, ..StopRecord::default() } }
    }

    fn is_stop_by_sigint(effects: &[Effect]) -> bool {
        effects == [Effect::Stop(Stop { why: StopWhy::Signal(SIGINT), grace: ms(25_000) })]
    }

    fn is_interrupted(verdict: &Verdict) -> bool {
        let told = (verdict.code, verdict.class, verdict.culprit.is_none(), verdict.fates[0]);
        told == (ExitCode(130), Some(Class::Interrupted), true, Fate::Interrupted)
    }

    #[test]
    fn a_request_to_stop_ends_the_job_as_sigterm_does_and_a_later_one_shortens_the_grace() {
        let request = |grace| Event::StopRequest(StopRequest { by: Requester { pid: 7, is_root: false }, grace });
        let stop = |grace| Effect::Stop(Stop { why: StopWhy::Signal(SIGTERM), grace: ms(grace) });
        let mut asked = gang(None, None);
        assert_eq!(feed(&mut asked, 10, request(None)), [stop(25_000)]);
        assert_eq!(feed(&mut asked, 20, request(None)), [], "it has begun");
        assert_eq!(asked.grace_until(), Some(ms(25_010)));
        assert_eq!(feed(&mut asked, 1000, request(Some(ms(500)))), [stop(500)]);
        assert_eq!((asked.outside(), asked.grace_until()), (Some(Outside::Signal(SIGTERM)), Some(ms(1500))));
        assert_eq!(verdict(&asked).code, ExitCode::signal(SIGTERM));
        assert_eq!(asked.requested().map(|request| request.by.to_string()).as_deref(), Some("pid 7"));
        // Whoever came first is named.
        let mut interrupted = gang(None, None);
        feed(&mut interrupted, 10, Event::Signal(SIGINT));
        feed(&mut interrupted, 20, request(Some(ms(500))));
        assert_eq!((interrupted.requested(), interrupted.outside()), (None, Some(Outside::Signal(SIGINT))));
    }

    const LIMIT: PlannedWhy = PlannedWhy::TimeLimit(Duration::from_secs(60));
    const SCHEDULER: PlannedWhy = PlannedWhy::Signal(SIGTERM);

    fn planned(why: PlannedWhy) -> Event {
        Event::Planned(PlannedStop { why, requeues: true })
    }

    /// Whether a planned stop is what ended the job, and whether it is to run again.
    fn is_planned(gang: &Gang) -> (bool, bool) {
        let verdict = verdict(gang);
        let told = (verdict.code, verdict.class, verdict.culprit.is_none());
        let requeues = matches!(gang.ended_by(), Some(Outside::Planned(stop)) if stop.requeues);
        (told == (ExitCode(75), Some(Class::PlannedStop), true), requeues)
    }

    #[test]
    fn a_planned_stop_has_the_grace_of_one_from_outside_and_nothing_after_it_is_a_failure() {
        for (why, of_ranks) in
            [(LIMIT, StopWhy::Planned), (PlannedWhy::Notice, StopWhy::Planned), (SCHEDULER, StopWhy::Signal(15))]
        {
            let mut gang = gang(None, None);
            let stop = Effect::Stop(Stop { why: of_ranks, grace: ms(25_000) });
            assert_eq!(feed(&mut gang, 1000, planned(why)), [stop]);
            for event in [raises(0, 100, "ValueError"), exit(0, 1), exit(1, 0)] {
                assert_eq!(feed(&mut gang, 1100, event), []);
            }
            assert_eq!(is_planned(&gang), (true, true), "{why:?}");
        }
    }

    #[test]
    fn a_user_who_ends_a_job_that_is_stopped_as_planned_ends_it_for_good() {
        let request = StopRequest { by: Requester { pid: 7, is_root: false }, grace: None };
        for (later, is_planned_still) in [
            (Event::Signal(SIGINT), false),
            (Event::Signal(SIGHUP), false),
            (Event::StopRequest(request), false),
            // A scheduler may repeat it.
            (Event::Signal(SIGTERM), true),
        ] {
            let mut gang = gang(None, None);
            feed(&mut gang, 1000, planned(LIMIT));
            feed(&mut gang, 1100, later.clone());
            feed(&mut gang, 1200, exit(0, 0));
            feed(&mut gang, 1200, exit(1, 0));
            assert_eq!(is_planned(&gang), (is_planned_still, is_planned_still), "{later:?}");
        }
    }

    #[test]
    fn a_rank_that_gets_the_signal_of_the_scheduler_first_is_no_failure_and_one_that_failed_before_is() {
        for (first, is_failure) in [(killed(1, SIGTERM), false), (exit(1, 3), true), (killed(1, 11), true)] {
            let mut gang = gang(None, None);
            feed(&mut gang, 1000, first.clone());
            feed(&mut gang, 1020, planned(SCHEDULER));
            feed(&mut gang, 1030, signalled(0, &[(SIGTERM, 1021)]));
            feed(&mut gang, 1030, killed(0, SIGTERM));
            assert_eq!(is_planned(&gang).0, !is_failure, "{first:?}");
        }
    }

    #[test]
    fn a_signal_after_a_stall_ends_the_job_and_not_only_the_attempt() {
        use crate::stacks::odd::Hang;
        let mut gang = gang(None, None);
        feed(&mut gang, 1000, Event::Hang(Hang { silent: ms(900), odd: None }));
        assert_eq!(gang.ended_by(), None, "another attempt may follow");
        feed(&mut gang, 1100, Event::Signal(SIGTERM));
        assert_eq!((gang.outside(), gang.ended_by()), (Some(Outside::Hang), Some(Outside::Signal(SIGTERM))));
    }

    #[test]
    fn the_second_interrupt_kills_whatever_else_ended_the_job() {
        let request = StopRequest { by: Requester { pid: 7, is_root: false }, grace: None };
        let stops = [
            Event::Signal(SIGTERM),
            Event::Signal(1),
            Event::StopRequest(request),
            exit(1, 3),
            Event::Tick,
            Event::OutputGone,
        ];
        for stop in stops {
            let mut gang = gang(None, Some(ms(100)));
            let effects = feed(&mut gang, 100, stop.clone());
            assert!(matches!(effects[..], [Effect::Stop(_)]), "{stop:?}: {effects:?}");
            let first = feed(&mut gang, 1000, Event::Signal(SIGINT));
            assert!(!first.contains(&Effect::Kill), "{stop:?}: it may be the first that the user presses");
            assert!(!feed(&mut gang, 1100, Event::Signal(SIGINT)).contains(&Effect::Kill), "{stop:?}: one key");
            assert!(!feed(&mut gang, 1500, Event::Signal(SIGTERM)).contains(&Effect::Kill), "{stop:?}");
            assert_eq!(feed(&mut gang, 1600, Event::Signal(SIGINT)), [Effect::Kill], "{stop:?}");
            assert_eq!(feed(&mut gang, 1700, Event::Signal(SIGINT)), [], "{stop:?}");
            assert_eq!(gang.killed_at(), Some(ms(1600)), "{stop:?}");
        }
    }

    #[test]
    fn a_rank_with_the_terminal_that_ends_by_the_interrupt_key_ends_the_job_as_sigint_does() {
        let abort = |code| Event::Mpi { worker: worker(0), event: MpiEvent::Aborted { code, message: None } };
        let exiting =
            |pid, code| Event::Testimony { worker: worker(0), pid: Pid(pid), testimony: Testimony::Exiting { code } };
        let table: [(&str, Vec<Event>); 8] = [
            ("any program", vec![killed(0, SIGINT)]),
            ("Python", vec![raises(0, 100, "KeyboardInterrupt"), killed(0, SIGINT)]),
            ("a shell's code", vec![exit(0, 130)]),
            ("Python up to 3.7", vec![raises(0, 100, "KeyboardInterrupt"), exit(0, 1)]),
            ("Python in MPI", vec![raises(0, 100, "KeyboardInterrupt"), exiting(100, 130), stuck(true, 100)]),
            ("mpi4py", vec![raises(0, 100, "KeyboardInterrupt"), abort(130)]),
            ("a handler that aborts", vec![abort(130)]),
            (
                "Python in MPI below a shell",
                vec![raises(0, 300, "KeyboardInterrupt"), exiting(300, 130), stuck(false, 300), exit(0, 137)],
            ),
        ];
        for (case, mut events) in table {
            let mut gang = gang(Some(Rank(0)), None);
            let last = events.pop().expect("each has one");
            for event in events {
                assert_eq!(feed(&mut gang, 10, event), [], "{case}: it has its time to clean up");
            }
            assert!(is_stop_by_sigint(&feed(&mut gang, 20, last)), "{case}");
            assert_eq!(gang.outside(), Some(Outside::Interrupted(Rank(0))), "{case}");
            feed(&mut gang, 40, signalled(1, &[(SIGINT, 21)]));
            feed(&mut gang, 40, killed(1, SIGINT));
            let verdict = verdict(&gang);
            assert!(is_interrupted(&verdict), "{case}: {verdict:?}");
            assert_eq!(verdict.fates[1], Fate::EndedByRankrun, "{case}");
            assert_eq!(feed(&mut gang, 600, Event::Signal(SIGINT)), [Effect::Kill], "{case}: a second one kills");
        }
    }

    #[test]
    fn a_rank_that_handles_the_key_or_has_no_terminal_is_not_interrupted() {
        // An interpreter goes on; a child of it may have ended by the key.
        let mut handled = gang(Some(Rank(0)), None);
        feed(&mut handled, 10, raises(0, 300, "KeyboardInterrupt"));
        feed(&mut handled, 60_000, exit(0, 3));
        assert_eq!(verdict(&handled).code, ExitCode(3));
        let mut defect = gang(Some(Rank(0)), None);
        feed(&mut defect, 10, raises(0, 100, "ValueError"));
        feed(&mut defect, 20, exit(0, 130));
        assert_eq!(verdict(&defect).class, Some(Class::Exception));
        for terminal in [None, Some(Rank(1))] {
            let mut gang = gang(terminal, None);
            let effects = feed(&mut gang, 20, killed(0, SIGINT));
            assert!(matches!(effects[..], [Effect::Stop(Stop { why: StopWhy::GangFailed, .. })]), "{effects:?}");
            assert_eq!(verdict(&gang).culprit.map(|culprit| culprit.rank), Some(Rank(0)));
        }
    }

    #[test]
    fn a_signal_that_ranks_got_just_before_us_is_what_ended_the_job() {
        for (end, number) in [(exit(1, 143), SIGTERM), (killed(1, SIGTERM), SIGTERM), (killed(1, SIGINT), SIGINT)] {
            for (after, is_same) in [(50, true), (900, true), (1500, false)] {
                let mut gang = gang(None, None);
                feed(&mut gang, 100, end.clone());
                feed(&mut gang, 100 + after, Event::Signal(number));
                feed(&mut gang, 100 + after + 10, killed(0, number));
                let verdict = verdict(&gang);
                let told = (verdict.code, verdict.class, verdict.culprit.is_none());
                let expected = (ExitCode::signal(number), Some(Class::Interrupted), true);
                assert_eq!(told == expected, is_same, "{end:?}, {after}: {verdict:?}");
            }
        }
        // A node was lost by it, and that was noticed first; or it came later.
        for (after, class) in [(50, Class::Interrupted), (1500, Class::NodeLost)] {
            let mut gang = gang(None, None);
            let lost = Event::NodeLost {
                node: crate::ids::NodeRank(1),
                name: "b".to_owned(),
                why: "gone".to_owned(),
                workers: vec![worker(1)],
                goes_on: false,
            };
            feed(&mut gang, 100, lost);
            assert_eq!(gang.ended_by(), None);
            feed(&mut gang, 100 + after, Event::Signal(SIGTERM));
            feed(&mut gang, 100 + after + 10, killed(0, SIGTERM));
            assert_eq!(verdict(&gang).class, Some(class));
            assert_eq!(gang.ended_by(), Some(Outside::Signal(SIGTERM)), "no other attempt follows");
        }
        // Another failure is one.
        let mut gang = gang(None, None);
        feed(&mut gang, 100, exit(1, 3));
        feed(&mut gang, 150, Event::Signal(SIGTERM));
        assert_eq!(verdict(&gang).culprit.map(|culprit| culprit.rank), Some(Rank(1)));
    }

    #[test]
    fn the_interrupted_rank_is_told_also_where_a_peer_that_lost_it_ends_first() {
        let mut gang = gang(Some(Rank(0)), None);
        feed(&mut gang, 10, raises(0, 100, "KeyboardInterrupt"));
        feed(&mut gang, 20, raises(1, 101, "ConnectionResetError"));
        feed(&mut gang, 30, exit(1, 1));
        feed(&mut gang, 50, signalled(0, &[(SIGTERM, 31)]));
        feed(&mut gang, 50, killed(0, SIGTERM));
        let verdict = verdict(&gang);
        assert!(is_interrupted(&verdict), "{verdict:?}");
        assert_eq!(verdict.fates[1], Fate::Victim);
    }

    #[test]
    fn a_failure_before_the_key_is_the_cause() {
        let mut gang = gang(Some(Rank(0)), None);
        feed(&mut gang, 10, raises(1, 101, "ValueError"));
        feed(&mut gang, 20, raises(0, 100, "KeyboardInterrupt"));
        feed(&mut gang, 30, killed(0, SIGINT));
        feed(&mut gang, 40, exit(1, 1));
        assert_eq!(verdict(&gang).culprit.map(|culprit| culprit.rank), Some(Rank(1)));
    }

    /// `KeyboardInterrupt` is how a Python rank ends by our own SIGINT: of ^C, or of `--stop-signal INT`.
    #[test]
    fn a_keyboard_interrupt_that_our_own_sigint_causes_is_never_the_cause() {
        type Begin = fn(&mut Gang) -> Vec<Effect>;
        let stops: [(&str, Begin, Class, u8); 3] = [
            ("^C", |gang| feed(gang, 100, Event::Signal(SIGINT)), Class::Interrupted, 130),
            ("--timeout", |gang| feed(gang, 100, Event::Tick), Class::Timeout, 124),
            ("a failure", |gang| feed(gang, 100, exit(1, 3)), Class::ExitCode, 3),
        ];
        let policy = StopPolicy {
            signal: Some(SIGINT),
            grace_failure: ms(5_000),
            grace_outside: ms(25_000),
            grace_saving: ms(30_000),
            linger: ms(2_000),
            scope: crate::spec::job::StopScope::Leader,
            descendants: crate::spec::job::Descendants::End,
        };
        for (case, begin, class, code) in stops {
            for terminal in [None, Some(Rank(0))] {
                for end in [killed(0, SIGINT), exit(0, 1), exit(0, 130)] {
                    for told in [true, false] {
                        let mut gang = gang(terminal, Some(ms(100)));
                        let effects = begin(&mut gang);
                        let [Effect::Stop(stop)] = effects[..] else { panic!("{case}: {effects:?}") };
                        assert_eq!(stop.first_signal(&policy), SIGINT, "{case}");
                        if told {
                            feed(&mut gang, 103, raises(0, 100, "KeyboardInterrupt"));
                        }
                        feed(&mut gang, 110, signalled(0, &[(SIGINT, 101)]));
                        feed(&mut gang, 110, end.clone());
                        let verdict = verdict(&gang);
                        let case = format!("{case}, terminal {terminal:?}, {end:?}, told {told}: {verdict:?}");
                        assert_eq!((verdict.class, verdict.code), (Some(class), ExitCode(code)), "{case}");
                        assert!(verdict.culprit.is_none_or(|culprit| culprit.rank == Rank(1)), "{case}");
                        assert!(verdict.interrupted.is_none(), "{case}");
                    }
                }
            }
        }
    }
}
