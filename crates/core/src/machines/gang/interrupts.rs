//! What ends a gang from outside: signals, the loss of a part of rankrun, and ^C on a terminal that was lent to a rank.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Effect, Gang};
use crate::evidence::Class;
use crate::exit::ExitCode;
use crate::grace::{SIGINT, SIGTERM};
use crate::ids::Rank;
use crate::order::Weight;
use crate::verdict::{Finding, finding};
use crate::worker::{Stop, StopWhy};

/// A second SIGINT kills at once if it comes at least this long after the first: a terminal may send two for one key.
pub const SECOND_INTERRUPT: Duration = Duration::from_millis(500);

/// The exceptions that ^C raises: of Python, of Julia, of Ruby.
const INTERRUPTS: [&str; 3] = ["KeyboardInterrupt", "InterruptException", "Interrupt"];

/// Whether SIGINT raises an exception of this type.
pub(crate) fn is_raised_by_sigint(kind: &str) -> bool {
    INTERRUPTS.contains(&kind)
}

/// Why the job as a whole ended other than by its ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outside {
    Signal(i32),
    /// The rank that has the terminal was interrupted, and ends by that.
    Interrupted(Rank),
    Timeout,
    /// No rank did anything for longer than `--stall`, and their stacks did not change.
    Hang,
    OutputGone,
    OutputFailed,
    AgentLost,
    GuardLost,
    /// One of several nodes: see [`Gang::lost_nodes`].
    NodeLost,
    /// What connects the ranks of Open MPI.
    WireUpLost,
    /// Ranks run MPI, and have not connected (`--strict`).
    Alone,
    /// A user has asked for a new attempt. Anything else that comes after it counts instead.
    Restart,
}

impl Outside {
    /// The signal that asks the job to end.
    pub fn signal(self) -> Option<i32> {
        match self {
            Outside::Signal(signal) => Some(signal),
            Outside::Interrupted(_) => Some(SIGINT),
            Outside::OutputGone => Some(13),
            Outside::Restart => Some(SIGTERM),
            Outside::Timeout | Outside::Hang | Outside::OutputFailed | Outside::Alone => None,
            Outside::AgentLost | Outside::GuardLost | Outside::NodeLost | Outside::WireUpLost => None,
        }
    }

    pub(crate) fn code(self) -> ExitCode {
        match self {
            Outside::Signal(_) | Outside::Interrupted(_) | Outside::OutputGone | Outside::Restart => {
                self.signal().map_or(ExitCode::FAILURE, ExitCode::signal)
            }
            Outside::Timeout => ExitCode::TIMEOUT,
            Outside::Hang => ExitCode::HANG,
            Outside::Alone => ExitCode::FAILURE,
            Outside::AgentLost | Outside::NodeLost => ExitCode::NODE_LOST,
            Outside::GuardLost | Outside::WireUpLost | Outside::OutputFailed => ExitCode::INTERNAL,
        }
    }

    pub(crate) fn class(self) -> Class {
        match self {
            Outside::Signal(_) | Outside::Interrupted(_) | Outside::OutputGone | Outside::Restart => Class::Interrupted,
            Outside::Timeout => Class::Timeout,
            Outside::Hang => Class::Hang,
            Outside::Alone => Class::Alone,
            Outside::OutputFailed => Class::OutputFailed,
            Outside::AgentLost | Outside::GuardLost | Outside::WireUpLost => Class::LauncherLost,
            Outside::NodeLost => Class::NodeLost,
        }
    }
}

/// A request to stop the job, and the process that made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StopRequest {
    pub by: Requester,
    /// The time from the first signal to SIGKILL, instead of that of the job.
    pub grace: Option<Duration>,
}

/// A process that asks something of a running job, as the kernel names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Requester {
    /// 0 if it is in another pid namespace.
    pub pid: i32,
    /// It is root's, and the job is another user's.
    pub is_root: bool,
}

impl fmt::Display for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_root, self.pid) {
            (true, 0) => f.write_str("root"),
            (false, 0) => f.write_str("a process of another pid namespace"),
            (true, pid) => write!(f, "root, pid {pid}"),
            (false, pid) => write!(f, "pid {pid}"),
        }
    }
}

impl Gang {
    /// As SIGTERM, except that a request with a grace also shortens that of a stop that has begun.
    pub(super) fn stop_request(&mut self, now: Duration, request: StopRequest, effects: &mut Vec<Effect>) {
        let grace = request.grace.unwrap_or(self.rules.grace_outside);
        let is_first = self.outside.is_none_or(|(first, _)| matches!(first, Outside::Restart | Outside::NodeLost));
        if is_first && self.requested.is_none() {
            self.requested = Some(request);
            self.end_from_outside(now, Outside::Signal(SIGTERM), grace, effects);
        } else if request.grace.is_some() {
            self.stop(now, Stop { why: StopWhy::Signal(SIGTERM), grace }, effects);
        }
    }

    pub(super) fn signal(&mut self, now: Duration, signal: i32, effects: &mut Vec<Effect>) {
        match self.outside {
            Some((first @ (Outside::Signal(_) | Outside::Interrupted(_)), at)) => {
                let is_second = first.signal() == Some(SIGINT) && signal == SIGINT && now >= at + SECOND_INTERRUPT;
                if is_second && self.killed_at.is_none() {
                    self.killed_at = Some(now);
                    effects.push(Effect::Kill);
                }
            }
            Some(_) | None => self.end_from_outside(now, Outside::Signal(signal), self.rules.grace_outside, effects),
        }
    }

    pub(super) fn end_from_outside(
        &mut self,
        now: Duration,
        outside: Outside,
        grace: Duration,
        effects: &mut Vec<Effect>,
    ) {
        match self.outside {
            None | Some((Outside::Restart, _)) => self.outside = Some((outside, now)),
            // Whoever ends all processes of a job ends those of other nodes too, which may be noticed first.
            Some((Outside::NodeLost, at)) if matches!(outside, Outside::Signal(_)) && now <= at + SHARED => {
                self.outside = Some((outside, now));
            }
            Some((Outside::NodeLost, _)) if outside != Outside::NodeLost => {
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
            Outside::Hang => StopWhy::Hang,
            Outside::AgentLost => StopWhy::FrontLost,
            Outside::GuardLost => StopWhy::GuardLost,
            Outside::NodeLost | Outside::Alone => StopWhy::GangFailed,
            Outside::WireUpLost => StopWhy::WireUpLost,
        };
        self.stop(now, Stop { why, grace }, effects);
    }
}

/// A signal to a whole process group, a container or a step of Slurm reaches ranks and rankrun within this time.
const SHARED: Duration = Duration::from_secs(1);

/// The signal that ended the job from outside, if a rank ended by the same one just before: whoever sent it sent it to both.
pub(crate) fn is_shared(gang: &Gang, finding: &Finding) -> Option<Outside> {
    let (outside @ Outside::Signal(signal), at) = gang.outside? else { return None };
    let kind = finding.exception.as_ref().map(|exception| exception.kind.as_str()).filter(|kind| !kind.is_empty());
    let is_by_it = match kind {
        Some(kind) => signal == SIGINT && is_raised_by_sigint(kind),
        None => finding.code == ExitCode::signal(signal),
    };
    let is_near = finding.at <= at && at - finding.at <= SHARED;
    (is_by_it && is_near && gang.requested.is_none()).then_some(outside)
}

/// Whether the failure of a rank, as far as it is known, is the user's ^C.
pub(super) fn is_interrupted(gang: &Gang, rank: Rank) -> bool {
    gang.rules.terminal == Some(rank) && finding(gang, rank).is_some_and(|finding| is_interrupt(gang, &finding))
}

/// Whether a failure is the user's ^C on the terminal that its rank has. rankrun does not get that key. A rank that does not
/// handle it dies by SIGINT, or of the exception that its language makes of it, or a shell exits with 128 + 2 for it.
///
/// What our own SIGINT does to the rank comes after it, and is no interrupt.
pub(crate) fn is_interrupt(gang: &Gang, finding: &Finding) -> bool {
    let is_ours = matches!(finding.weight, Weight::LateOwn | Weight::Late);
    let kind = finding.exception.as_ref().map(|exception| exception.kind.as_str()).filter(|kind| !kind.is_empty());
    let is_by_signal = finding.code == ExitCode::signal(SIGINT);
    gang.rules.terminal == Some(finding.rank) && !is_ours && kind.map_or(is_by_signal, is_raised_by_sigint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::MpiEvent;
    use crate::gang::{Event, Rules};
    use crate::grace::{SIGTERM, StopRecord};
    use crate::ids::Pid;
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
        let mut gang = Gang::new(2, rules);
        for rank in 0..2 {
            feed(&mut gang, 0, Event::Started { rank: Rank(rank), pid: Pid(100 + rank as i32) });
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
        Event::Testimony { rank: Rank(rank), pid: Pid(pid), testimony: Testimony::Uncaught(exception) }
    }

    fn ends(rank: u32, status: WorkerStatus) -> Event {
        Event::Ended { rank: Rank(rank), status }
    }

    fn exit(rank: u32, code: u8) -> Event {
        ends(rank, WorkerStatus::Exited { code })
    }

    fn killed(rank: u32, signal: i32) -> Event {
        ends(rank, WorkerStatus::Signaled { signal, core_dumped: false })
    }

    fn stuck(leader: bool, pid: i32) -> Event {
        Event::Stuck { rank: Rank(0), pid: Pid(pid), place: StuckIn::Finalize, since: ms(10), leader }
    }

    /// The signals of a stop that a rank was sent.
    fn signalled(rank: u32, signals: &[(i32, u64)]) -> Event {
        let signals = signals.iter().map(|(signal, at)| (*signal, ms(*at))).collect();
        Event::Signalled { rank: Rank(rank), record: StopRecord { signals, ..StopRecord::default() } }
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

    #[test]
    fn a_rank_with_the_terminal_that_ends_by_the_interrupt_key_ends_the_job_as_sigint_does() {
        let abort = |code| Event::Mpi { rank: Rank(0), event: MpiEvent::Aborted { code, message: None } };
        let exiting =
            |pid, code| Event::Testimony { rank: Rank(0), pid: Pid(pid), testimony: Testimony::Exiting { code } };
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
                ranks: vec![Rank(1)],
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
