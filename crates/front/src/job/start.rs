//! Starts a job: acquires all it needs before its first rank, or refuses the job.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use rankrun_agent::{Clock, Launched};
use rankrun_core::event::{JobEvent, JobFacts};
use rankrun_core::gang::{Gang, Rules};
use rankrun_core::job::StdinTarget;
use rankrun_core::{ExitCode, NodeRank, Rank, RankSet};
use rankrun_output::{Names, Presenter};
use rankrun_sys::poll::{Interest, Poller, Waker};
use rankrun_sys::process::Child;
use rankrun_sys::signal::{self, SignalFd};
use rankrun_sys::wait::{self, Look};
use rankrun_sys::{fork, limits, proc, terminal};
use rankrun_wire::ToAgent;
use rankrun_wire::message::Hello;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Plan;
use crate::delivery::{Delivery, Done, Files, Journal, LastLines, LastWords, Notes, Opened, Task, Threads};
use crate::job::attempts::Attempts;
use crate::job::control::{Control, States};
use crate::job::front::{Front, Outcome};
use crate::job::hooks::HookWatch;
use crate::job::refusal::Refusal;
use crate::job::report;
use crate::job::run::Token;
use crate::job::successors::Successors;
use crate::nodes::{Bootstrap, Local, NodeHandle};
use crate::terminal::{FrontTerminal, Stdin};

/// How long guard and agent of a job that is refused may take to end.
const DISMISS_BOUND: Duration = Duration::from_secs(5);
/// The least `--drain`: with none, every destination would be too slow.
const DRAIN_LEAST: Duration = Duration::from_secs(1);

/// Runs a job.
pub(crate) fn run(plan: Plan) -> Outcome {
    let color = plan.color;
    let refusal = Refusal::of(&plan);
    match start(plan) {
        Ok(front) => front.run_to_end(),
        Err(error) => {
            if error.raise.is_none() {
                report::error(color, &error.to_string(), error.source.as_ref(), error.hint.as_deref());
                if let Some((directory, refusal)) = refusal {
                    let source = error.source.as_ref().map(|source| format!(": {}", rankrun_sys::reason(source)));
                    let text = format!("{error}{}", source.unwrap_or_default());
                    if let Err(text) = (Refusal { text, code: error.code, ..refusal }).save(&directory) {
                        report::error(color, &text, None, None);
                    }
                }
            }
            Outcome { code: error.code, raise: error.raise }
        }
    }
}

/// Why a job could not even begin.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
struct StartError {
    what: String,
    source: Option<io::Error>,
    hint: Option<String>,
    code: ExitCode,
    /// This signal interrupted the start.
    raise: Option<i32>,
}

impl StartError {
    fn new(what: impl Into<String>, source: Option<io::Error>) -> StartError {
        StartError { what: what.into(), source, hint: None, code: ExitCode::INTERNAL, raise: None }
    }
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::new(format!("cannot {what}"), Some(source))
}

/// A thread could not be started: the message names the usual reason, a limit.
fn no_thread(source: io::Error) -> StartError {
    let limit = limits::processes().0.filter(|_| source.kind() == io::ErrorKind::WouldBlock);
    let hint = limit.map(|limit| format!("the user may have {limit} processes and threads (ulimit -u)"));
    StartError { hint, ..failed("start a thread")(source) }
}

fn start(mut plan: Plan) -> Result<Front, StartError> {
    let started = Instant::now();
    plan.drain = plan.drain.max(DRAIN_LEAST);
    plan.spec.ignored_signals = signal::ignored_at_start();
    // From here on a signal ends the job, not this process, which then could not clean up.
    let signals = receive_signals(&plan.spec.ignored_signals).map_err(failed("receive signals"))?;
    if plan.die_with_parent {
        fork::end_with_parent(signal::SIGTERM).map_err(failed("watch for the end of the parent"))?;
    }
    let foreign: Vec<i32> = proc::own_children();
    fork::become_subreaper().map_err(failed("become a subreaper"))?;
    let mut local = Local { options: plan.node.clone() };
    let launched = local.start(&plan.spec.job).map_err(failed("start the guard and the agent"))?;
    // From here on this process may have threads.
    let guard = launched.guard;
    make(plan, signals, launched, foreign, started).inspect_err(|_| dismiss(guard))
}

/// The job is refused, and the stream to the agent is closed: waits until agent and guard have ended.
fn dismiss(guard: Child) {
    let bound = Instant::now() + DISMISS_BOUND;
    while let Look::Nothing = wait::reap(guard.pid()) {
        if Instant::now() >= bound {
            // Somebody else has stopped it. The agent ends when both of us are gone. An error means that it has ended.
            let _ = guard.signal(signal::SIGKILL);
            return;
        }
        let step = rustix::event::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        // An interrupted wait is repeated.
        let _ = rustix::event::poll(&mut [], Some(&step));
    }
}

/// Waits until log files and journal are open. A signal to end interrupts the wait.
fn open_files(plan: &mut Plan, files: &mut Files, waker: &Waker, signals: &SignalFd) -> Result<Opened, StartError> {
    let mut opened = Opened::default();
    let refused =
        |what: &str, source| StartError { code: ExitCode::USAGE, ..StartError::new(what.to_owned(), Some(source)) };
    let (logs, journal) = (plan.logs.as_ref().map(|logs| logs.places(&plan.spec)), plan.journal.take());
    let mut what = Vec::new();
    if let Some(places) = &logs {
        what.push(format!("cannot write log files to \"{}\"", places.first().display()));
        let world_size = plan.spec.map.world_size();
        files.submit(Duration::ZERO, Task::OpenLogs { places: places.clone(), world_size });
    }
    if let Some(path) = &journal {
        what.push(format!("cannot write the journal to \"{}\"", path.display()));
        files.submit(Duration::ZERO, Task::OpenJournal(path.clone()));
    }
    let until = Instant::now() + plan.drain;
    loop {
        // Results come in the order of the tasks.
        while let Some(done) = files.next(Duration::ZERO) {
            let failure = match done {
                Done::LogsOpened(result) => {
                    opened.logs = true;
                    result.err().map(|error| match logs.as_ref().is_some_and(|logs| logs.first() == error.path) {
                        true => error.source,
                        false => io::Error::other(format!("{error}: {}", rankrun_sys::reason(&error.source))),
                    })
                }
                Done::JournalOpened(result) => {
                    opened.journal = Journal::new(journal.clone());
                    result.err()
                }
                _ => None,
            };
            let what = what.remove(0);
            if let Some(source) = failure {
                return Err(refused(&what, source));
            }
        }
        let Some(what) = what.first() else { return Ok(opened) };
        while let Some((number, sender)) = signals.next() {
            opened.signals.push((number, sender));
            if [signal::SIGINT, signal::SIGTERM, signal::SIGHUP].contains(&number) {
                return Err(StartError {
                    code: ExitCode::signal(number),
                    raise: Some(number),
                    ..StartError::new("interrupted", None)
                });
            }
        }
        let rest = until.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            let text = format!("no answer from its file system for {} s (--drain)", plan.drain.as_secs_f64());
            return Err(refused(what, io::Error::new(io::ErrorKind::TimedOut, text)));
        }
        let timeout = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: i64::from(rest.subsec_nanos()) };
        // A failed wait ends at the time limit.
        let _ = poll(&mut [PollFd::new(waker, PollFlags::IN), PollFd::new(signals, PollFlags::IN)], Some(&timeout));
        waker.clear();
    }
}

fn receive_signals(ignored: &[i32]) -> io::Result<SignalFd> {
    let mut wanted = vec![signal::SIGINT, signal::SIGTERM, signal::SIGHUP, signal::SIGTSTP, signal::SIGQUIT];
    wanted.extend([signal::SIGUSR1, signal::SIGUSR2, signal::SIGWINCH, signal::SIGCONT]);
    wanted.retain(|number| !ignored.contains(number));
    wanted.push(signal::SIGCHLD);
    SignalFd::new(&wanted)
}

/// The report's data about the job itself.
fn facts(plan: &Plan, rules: Rules) -> JobFacts {
    let map = &plan.spec.map;
    let mut commands: Vec<(Vec<String>, Vec<Rank>)> = Vec::new();
    for rank in (0..map.world_size()).map(Rank) {
        let words: Vec<String> =
            plan.spec.command(rank).iter().map(|word| word.to_string_lossy().into_owned()).collect();
        match commands.iter_mut().find(|(known, _)| *known == words) {
            Some((_, ranks)) => ranks.push(rank),
            None => commands.push((words, vec![rank])),
        }
    }
    JobFacts {
        release: env!("CARGO_PKG_VERSION").to_owned(),
        job: plan.spec.job.clone(),
        map: map.clone(),
        commands: commands.into_iter().map(|(words, ranks)| (RankSet::of(ranks), words)).collect(),
        rules,
    }
}

/// What the random parts of the restart policy begin with.
fn seed() -> u64 {
    let mut bytes = [0; 8];
    // Without random numbers the waits of two jobs may be the same: nothing else depends on it.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

/// Makes the front, after its first node was started.
fn make(
    mut plan: Plan,
    signals: SignalFd,
    launched: Launched,
    foreign: Vec<i32>,
    started: Instant,
) -> Result<Front, StartError> {
    let waker = Waker::new().map_err(failed("make an event descriptor"))?;
    let poller = Poller::new().map_err(failed("make an epoll set"))?;
    let handle = || waker.handle().map_err(failed("make an event descriptor"));
    // Ranks may use up the user's limit on processes and threads: start our own threads before the first rank.
    let mut threads = Threads::start(&waker).map_err(no_thread)?;
    let mut opened = open_files(&mut plan, &mut threads.files, &waker, &signals)?;
    let token = Token::Node(NodeRank(0)).encode();
    let mut node = NodeHandle::new(NodeRank(0), launched, &poller, token).map_err(failed("reach the agent"))?;
    poller.add(&signals, Token::Signals.encode(), Interest::Read).map_err(failed("watch for signals"))?;
    poller.add(&waker, Token::Waker.encode(), Interest::Read).map_err(failed("watch for wake-ups"))?;
    let terminal = FrontTerminal::open(&plan.spec.io);
    let is_behind = terminal.as_ref().is_some_and(|terminal| !terminal.in_foreground());
    if let Some(grant) = &mut plan.spec.io.tty {
        grant.foreground = terminal.is_some() && !is_behind;
        if plan.spec.map.world_size() > 1 {
            // The status region would move the cursor while the rank uses the terminal.
            plan.output.status = None;
        }
    } else if is_behind && terminal::is_terminal(rustix::stdio::stdin()) {
        // A rank in a session of its own could still read the terminal in the background, and take what is typed for
        // the shell.
        plan.spec.io.stdin = StdinTarget::None;
    }
    let stdin = match plan.spec.io.stdin {
        StdinTarget::All => Some(Stdin::start(handle()?).map_err(no_thread)?),
        StdinTarget::None | StdinTarget::Rank(_) | StdinTarget::Shared => None,
    };
    for message in [ToAgent::Hello(Hello::ours()), ToAgent::Start(Box::new(plan.spec.clone()))] {
        node.send(&message).map_err(|error| StartError::new(error.to_string(), None))?;
    }
    let rules = Rules {
        grace_failure: plan.spec.stop.grace_failure,
        grace_outside: plan.spec.stop.grace_outside,
        timeout: plan.timeout,
        keep_going: plan.keep_going,
        terminal: plan.spec.io.tty.filter(|_| terminal.is_some()).map(|grant| grant.rank),
    };
    let map = plan.spec.map.clone();
    let names = move |rank: Rank| match map.place(rank) {
        Some(place) => {
            Names { node: map.node_name(place.node).to_owned(), local_rank: place.local_rank, app: place.app }
        }
        None => Names { node: String::new(), local_rank: Default::default(), app: Default::default() },
    };
    let early = std::mem::take(&mut opened.signals);
    let presenter = Presenter::new(plan.output.clone(), names);
    let mut delivery = Delivery::new(presenter, threads, opened, &plan.output, plan.drain);
    let seed = seed();
    let facts = facts(&plan, rules.clone());
    delivery.journal.record(Duration::ZERO, || JobEvent::Job(Box::new(facts.clone())));
    Ok(Front {
        gang: Gang::new(plan.spec.map.world_size(), rules),
        attempts: Attempts::new(&plan.spec, seed),
        successors: Successors::new(&plan.spec.restart, seed),
        facts,
        delivery,
        last_words: LastWords::default(),
        last_lines: LastLines::default(),
        hooks: HookWatch::new(plan.verbosity > 0, plan.timeout),
        control: Control::new(poller.registry(), |ours| Token::Control(ours).encode()),
        states: States::default(),
        standings: Vec::new(),
        plan,
        is_hurried: false,
        started,
        clock: Clock::default(),
        poller,
        signals,
        waker,
        nodes: vec![node],
        effects: VecDeque::new(),
        early,
        foreign,
        stdin,
        terminal,
        drain_until: None,
        salvage: None,
        has_given_up_output: false,
        pausing: None,
        alive_due: None,
        key_was_pressed: false,
        notices: VecDeque::new(),
        notes: Notes::default(),
        refused_calls: BTreeSet::new(),
        refused: None,
    })
}
