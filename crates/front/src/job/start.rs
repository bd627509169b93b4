//! Starts a job: acquires all it needs before its first rank, or refuses the job.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rankrun_agent::{Clock, Launched, Seat, Terms};
use rankrun_core::debts::Debts;
use rankrun_core::drain::Drain;
use rankrun_core::event::JobEvent;
use rankrun_core::gang::Rules;
use rankrun_core::job::{Host, Job, OnFrontLost, OnGiveup, Origin, Settings, StdinTarget, Way};
use rankrun_core::names::PublishedNames;
use rankrun_core::planned::Notice;
use rankrun_core::quiet::QuietClock;
use rankrun_core::roster::Roster;
use rankrun_core::{ExitCode, JobId, NodeId, NodeRank};
use rankrun_output::{Names, Presenter, Recorder};
use rankrun_sys::poll::{Interest, Poller, Waker};
use rankrun_sys::signal::{self, SignalFd};
use rankrun_sys::{fork, limits, proc, terminal};
use rankrun_wire::ToAgent;
use rankrun_wire::collectives::Collectives;
use rankrun_wire::message::Hello;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::succession::{self, Estate};
use super::{Front, OwnDirectory, is_alone, stdin};
use crate::Plan;
use crate::command::Commands;
use crate::control::Control;
use crate::delivery::report;
use crate::delivery::{
    Delivery, Destination, Directory, Done, Files, Journal, Notices, Opened, Recording, SILENCE_BOUND, Task,
    TranscriptPlace, Writers,
};
use crate::heir::Heir;
use crate::job::prepared::Prepared;
use crate::job::refusal::Refusal;
use crate::join::settings::{Join, LAST_CALL};
use crate::nodes::{Calls, Enrolment, HostsOrigin, Kept, KeptDoor, NodeHandle, NodeTarget, Reach, SshSettings};
use crate::outcome::Outcome;
use crate::parent::Parent;
use crate::starter::Starter;
use crate::terminal::JobControl;
use crate::token::Token;

/// How often to look whether a file that takes long to open waits for its file system.
const STUCK_STEP: Duration = Duration::from_millis(500);
/// The least `--drain`: with none, every destination would be too slow.
const DRAIN_LEAST: Duration = Duration::from_secs(1);

/// Runs a job.
pub(crate) fn run(plan: Plan, prepared: Option<Prepared>, parent: Option<Parent>) -> Outcome {
    let color = plan.color;
    let refusal = Refusal::of(&plan);
    match start(plan, prepared, parent) {
        Ok(front) => front.run_to_end(),
        Err(error) => {
            if error.raise.is_none() {
                report::error(color, &error.to_string(), error.source.as_ref(), error.hint.as_deref());
                if let Some((directory, refusal)) = refusal {
                    let refusal = Refusal { text: error.told(), code: error.code, ..refusal };
                    if let Err(text) = refusal.save(&directory) {
                        report::error(color, &text, None, None);
                    }
                }
            }
            Outcome { code: error.code, raise: error.raise }
        }
    }
}

/// Runs a job whose front is gone to its end, in its place.
/// `heir`: the one that waits for the end of this process already.
pub(crate) fn run_again(job: &JobId, color: bool, parent: Parent, heir: Option<Heir>) -> Outcome {
    let is_seen = heir.is_none();
    match start_again(job, parent, heir) {
        Ok(front) => front.run_to_end(),
        Err(error) => {
            report::error(color, &error.to_string(), error.source.as_ref(), error.hint.as_deref());
            if !is_seen && error.code != ExitCode::USAGE {
                // Its heir tries again. Until then, those who ask for the job are told.
                succession::note_failure(job, &error.told());
            }
            Outcome { code: error.code, raise: error.raise }
        }
    }
}

fn start_again(job: &JobId, parent: Parent, mut heir: Option<Heir>) -> Result<Box<Front>, StartError> {
    let estate = succession::take(job).map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock => {
            // There is a front, which has an heir.
            if let Some(heir) = heir.take() {
                heir.dismiss();
            }
            let what = match succession::failure(job) {
                None => format!("nothing is to be resumed: the front of job {job} is alive"),
                Some(why) => format!("another front of job {job} tries to begin, and could not yet: {why}"),
            };
            StartError { code: ExitCode::FAILURE, ..StartError::new(what, None) }
        }
        io::ErrorKind::NotFound => StartError {
            code: ExitCode::USAGE,
            hint: Some(
                "jobs that were started with --detach and --on-front-lost wait:TIME can be resumed, within that time"
                    .to_owned(),
            ),
            ..StartError::new(format!("job {job} has left nothing on this machine that could be resumed"), None)
        },
        _ => StartError::new(format!("cannot take over job {job}"), Some(source)),
    })?;
    let is_there = std::env::set_current_dir(&estate.deed.cwd);
    if heir.is_none() {
        // An heir is where the front before it was, whatever has become of that directory.
        is_there.map_err(failed("go to the directory where the job was started"))?;
    }
    let plan = estate.deed.plan.clone().into_owned();
    let signals = receive_signals(&plan.spec.ignored_signals).map_err(failed("receive signals"))?;
    let calls = Calls::new(&plan).map_err(failed("read this program"))?.going_on(estate.deed.calls.clone());
    fork::become_subreaper().map_err(failed("become a subreaper"))?;
    let heir = match heir {
        Some(heir) => heir,
        None => {
            let patience = plan.hosts.outlasts_front.unwrap_or_default();
            Heir::start(job, patience, &estate.directory, None).map_err(failed(NO_HEIR))?
        }
    };
    let since = Clock::of(estate.deed.began, Duration::ZERO).now();
    let started = Instant::now().checked_sub(since).unwrap_or_else(Instant::now);
    make(
        plan,
        signals,
        (None, Some(estate)),
        Some(calls),
        proc::own_children(),
        started,
        (Some(parent), Some(Outlasting { heir, own: None })),
    )
}

const NO_HEIR: &str = "start the process that waits for the end of this one";

/// What a front has that another one may follow.
struct Outlasting {
    heir: Heir,
    /// The directory of the job, if it is a new one.
    own: Option<OwnDirectory>,
}

impl Outlasting {
    fn begin(job: &JobId, patience: Duration, parent: Option<&Parent>) -> Result<Outlasting, StartError> {
        let own = OwnDirectory::create(job).map_err(|error| StartError::new(error.to_string(), Some(error.source)))?;
        let heir = Heir::start(job, patience, &own.directory, parent).map_err(failed(NO_HEIR))?;
        Ok(Outlasting { heir, own: Some(own) })
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

    /// What and why, in one line.
    fn told(&self) -> String {
        let source = self.source.as_ref().map(|source| format!(": {}", rankrun_sys::reason(source)));
        format!("{self}{}", source.unwrap_or_default())
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

fn start(mut plan: Plan, prepared: Option<Prepared>, parent: Option<Parent>) -> Result<Box<Front>, StartError> {
    let started = Instant::now();
    plan.drain = plan.drain.max(DRAIN_LEAST);
    plan.hosts.outlasts_front = plan.outlasts_front();
    let is_alone = is_alone(&plan);
    plan.spec.ignored_signals = if is_alone { signal::ignored_at_start() } else { signal::all_ignored_at_start() };
    // From here on a signal ends the job, not this process, which then could not clean up.
    let signals = receive_signals(&plan.spec.ignored_signals).map_err(failed("receive signals"))?;
    if let Some(parent) = plan.die_with {
        fork::end_with_parent(parent, signal::SIGTERM).map_err(failed("watch for the end of the parent"))?;
    }
    let calls = (!is_alone).then(|| Calls::new(&plan)).transpose().map_err(failed("read this program"))?;
    let is_here = plan.hosts.targets.iter().any(|target| plan.hosts.is_here(target));
    let outlasts = plan.hosts.outlasts_front;
    let outlasting =
        outlasts.map(|patience| Outlasting::begin(&plan.spec.job, patience, parent.as_ref())).transpose()?;
    let (launched, strangers) = if is_here {
        let seat = if plan.spec.io.tty.is_some() { Seat::FrontsSession } else { Seat::OwnSession };
        let ready = prepared.filter(|ready| ready.job() == &plan.spec.job && seat == Seat::OwnSession);
        let prepared = ready.map_or_else(|| Prepared::in_seat(&plan.spec.job, plan.node.clone(), seat), Ok);
        let terms = Terms { is_alone, has_plenty: !limits::processes_are_scarce() };
        let (launched, strangers) = prepared.map_err(failed("start the guard and the agent"))?.begin(terms);
        (Some(launched), strangers)
    } else {
        drop(prepared);
        fork::become_subreaper().map_err(failed("become a subreaper"))?;
        (None, proc::own_children())
    };
    // From here on this process may have threads.
    let make = |launched| make(plan, signals, (launched, None), calls, strangers, started, (parent, outlasting));
    match launched {
        Some(launched) => launched.hand_over(|launched| make(Some(launched))),
        None => make(None),
    }
}

/// Waits until log files and journal are open. A signal to end interrupts the wait.
fn open_files(
    plan: &mut Plan,
    estate: Option<&mut Estate>,
    files: &mut Files,
    waker: &Waker,
    signals: &SignalFd,
    started: Instant,
) -> Result<Opened, StartError> {
    let mut opened = Opened::default();
    let is_followed = estate.is_some();
    let refused =
        |what: &str, source| StartError { code: ExitCode::USAGE, ..StartError::new(what.to_owned(), Some(source)) };
    let (logs, journal) = (plan.logs.as_ref().map(|logs| logs.places(&plan.spec)), plan.journal.take());
    let mut what = Vec::new();
    if let Some(places) = &logs {
        what.push((Destination::Logs, format!("cannot write log files to \"{}\"", places.first().display())));
        let world_size = plan.spec.map.world_size();
        files.submit(Duration::ZERO, Task::OpenLogs { places: Box::new(places.clone()), world_size });
    }
    if let Some(path) = &journal {
        what.push((Destination::Journal, format!("cannot write the journal to \"{}\"", path.display())));
        files.submit(Duration::ZERO, Task::OpenJournal(path.clone()));
    }
    if plan.is_detached {
        let place = TranscriptPlace::of(plan, started).map_err(|why| {
            let refused = refused("cannot keep the output of a job without a terminal", io::Error::other(why));
            StartError { hint: Some("name a place with --report-dir".to_owned()), ..refused }
        })?;
        what.push((Destination::Transcript, format!("cannot write the output to \"{}\"", place.path.display())));
        opened.recording = Some(match estate {
            None => {
                let recorder = Recorder::new(place.bound, plan.spec.map.clone(), Vec::new());
                if let Some(from) = Directory::of_pointer(&plan.report) {
                    files.submit(Duration::ZERO, Task::Point { from, to: place.directory.path.clone() });
                }
                Recording::begin(Duration::ZERO, place, recorder, files)
            }
            Some(Estate { job, position, recorded, .. }) => {
                let groups = job.specs_of_groups().map(|spec| (spec.group, spec.map.clone())).collect();
                // Entries that cannot be read say nothing of how the lines begin, and reopening says so.
                let last = rankrun_output::entries(recorded).unwrap_or_default();
                let recorder = Recorder::at(place.bound, job.spec().map.clone(), groups, *position, &last);
                Recording::again(place, recorder, recorded.clone(), files)
            }
        });
    }
    if is_followed {
        // What cannot be opened now is opened later: the job is there.
        return Ok(opened);
    }
    let begun = Instant::now();
    let until = begun + plan.drain;
    loop {
        while let Some(done) = files.next(Duration::ZERO) {
            let (destination, failure) = match done {
                Done::LogsOpened(result) => {
                    opened.logs = true;
                    let failure = result.err().map(|error| {
                        let is_first = logs.as_ref().is_some_and(|logs| logs.first() == error.path);
                        io::Error::other(if is_first { error.why } else { error.to_string() })
                    });
                    (Destination::Logs, failure)
                }
                Done::TranscriptOpened(result) => {
                    opened.recording.iter_mut().for_each(Recording::opened);
                    (Destination::Transcript, result.err().map(io::Error::other))
                }
                Done::JournalOpened(result) => {
                    opened.journal = Journal::new(journal.clone());
                    (Destination::Journal, result.err().map(io::Error::other))
                }
                _ => continue,
            };
            if let Some(source) = failure {
                let what = what.iter().find(|(at, _)| *at == destination).map_or("cannot write", |(_, what)| what);
                return Err(refused(what, source));
            }
            what.retain(|(at, _)| *at != destination);
        }
        let Some((destination, what)) = what.first() else { return Ok(opened) };
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
        // The caller waits for the exit code no longer than at the end of a job.
        let is_stuck = begun.elapsed() >= SILENCE_BOUND && files.is_stuck(*destination, Duration::ZERO, Duration::ZERO);
        if rest.is_zero() || is_stuck {
            let why = |bound| files.why(*destination, bound);
            let text = if is_stuck { why(SILENCE_BOUND) } else { format!("{} (--drain)", why(plan.drain)) };
            let problem = refused(what, io::Error::new(io::ErrorKind::TimedOut, text));
            // Nothing is wrong with what the user asked for.
            let code = if files.has_ended(*destination) { ExitCode::INTERNAL } else { problem.code };
            return Err(StartError { code, ..problem });
        }
        let rest = rest.min(SILENCE_BOUND.saturating_sub(begun.elapsed()).max(STUCK_STEP));
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

/// What the job decides by.
fn settings(plan: &Plan, calls: Option<&Calls>) -> Settings {
    let has_steps = plan.hosts.origin == HostsOrigin::Slurm;
    let way = |target: &NodeTarget| match &plan.join {
        _ if plan.hosts.is_here(target) => Way::Here,
        Some(_) if !target.is_local => Way::Joins,
        // On this machine it is a relay that is called.
        _ => Way::Ssh,
    };
    let host = |target: &NodeTarget| Host { name: target.name.clone(), way: way(target), slots: target.slots };
    let hosts = &plan.hosts;
    let home = plan.report.home.as_deref();
    Settings {
        hosts: hosts.targets.iter().map(host).collect(),
        least: hosts.least,
        is_elastic: is_elastic(plan),
        wait_for_nodes: hosts.wait_for_nodes,
        fences: hosts.fence.is_some(),
        replaces: hosts.replace.is_some(),
        needs_proof: hosts.needs_proof,
        exclude_after: hosts.exclude_after,
        grow: hosts.grow,
        node_timeout: hosts.node_timeout,
        on_front_lost: hosts.on_front_lost,
        start_timeout: plan.join.as_ref().map_or(Duration::ZERO, |join| join.start_timeout),
        last_call: plan.join.as_ref().map_or(LAST_CALL, |join| join.last_call),
        has_steps,
        at_a_time: calls.map_or(0, |calls| calls.at_a_time),
        interface: hosts.interface.clone(),
        local_addr: hosts.local_addr,
        is_oar: hosts.origin == HostsOrigin::Oar && hosts.ssh.command == SshSettings::default().command,
        stall: plan.stall,
        planned: plan.planned.clone(),
        has_terminal: plan.spec.io.stdin != StdinTarget::None && terminal::standard()[0],
        strict: plan.strict,
        end_suspects: plan.end_suspects,
        verbosity: plan.verbosity,
        mpi_libraries: plan.mpi_libraries.clone(),
        opens_logs: plan.logs.as_ref().is_some_and(|logs| logs.are_for_each_attempt(&plan.spec)),
        is_stdin_stream: plan.spec.io.stdin != StdinTarget::None && is_stream(rustix::stdio::stdin()),
        report_directory: plan.report.directory.as_deref().map(|directory| report::shorten_home(directory, home)),
        is_recorded: false,
        seed: seed(),
    }
}

/// Whether nodes that are lost may be replaced, or come back.
fn is_elastic(plan: &Plan) -> bool {
    let hosts = &plan.hosts;
    hosts.least.is_some() || hosts.replace.is_some() || hosts.targets.len() > plan.spec.map.node_count() as usize
}

/// Whether what is read from this cannot be read again.
fn is_stream(stdin: BorrowedFd<'_>) -> bool {
    use rustix::fs::FileType;
    let kind = rustix::fs::fstat(stdin).map(|found| FileType::from_raw_mode(found.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket))
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
    (launched, mut estate): (Option<Launched>, Option<Estate>),
    calls: Option<Calls>,
    strangers: Vec<i32>,
    started: Instant,
    (parent, outlasting): (Option<Parent>, Option<Outlasting>),
) -> Result<Box<Front>, StartError> {
    let is_detached = plan.is_detached;
    // Before what it is made of is opened.
    let wants_successor = is_detached && matches!(plan.hosts.on_front_lost, OnFrontLost::Wait(_));
    let no_successor = plan.why_no_successor().filter(|_| wants_successor);
    let (heir, own) = outlasting.map_or((None, None), |it| (Some(it.heir), it.own));
    let waker = Waker::new().map_err(failed("make an event descriptor"))?;
    let poller = Poller::new().map_err(failed("make an epoll set"))?;
    let mut writers = Writers::new(plan.spec.job.clone(), &waker).map_err(no_thread)?;
    // Programs that it may have to start.
    let restart = &plan.spec.restart;
    let starts = calls.is_some()
        || restart.on_failure.is_some()
        || restart.on_giveup == OnGiveup::Requeue
        || plan.planned.requeues
        || matches!(plan.planned.notice, Some(Notice::Command(_)));
    // The agent has been forked, and has raised its own: it knows what the user had. If this cannot be raised, fewer nodes fit.
    let limits = limits::raise_open_files().unwrap_or_default();
    let starter = Starter::start(starts, limits, waker.clone()).map_err(no_thread)?;
    let mut opened = open_files(&mut plan, estate.as_mut(), &mut writers.files, &waker, &signals, started)?;
    let nodes = nodes(&plan, launched, &poller).map_err(failed("reach the agent"))?;
    let door = estate.as_mut().and_then(|estate| estate.deed.door.take());
    let enrolment = plan.join.as_ref().map(|join| listen(join, &plan, &poller, door)).transpose()?;
    poller.add(&signals, Token::Signals.encode(), Interest::Read).map_err(failed("watch for signals"))?;
    poller.add(&waker, Token::Waker.encode(), Interest::Read).map_err(failed("watch for wake-ups"))?;
    let job_control = JobControl::new(&plan.spec.io);
    let terminal = &job_control.terminal;
    let is_behind = terminal.as_ref().is_some_and(|terminal| !terminal.in_foreground());
    if let Some(grant) = &mut plan.spec.io.tty {
        grant.foreground = terminal.as_ref().is_some_and(|terminal| terminal.may_take()) && !is_behind;
        if plan.spec.map.world_size() > 1 {
            // The status region would move the cursor while the rank uses the terminal.
            plan.output.status = None;
        }
    } else if is_behind && terminal::standard()[0] {
        // A rank in a session of its own could still read the terminal in the background, and take what is typed for
        // the shell.
        plan.spec.io.stdin = StdinTarget::None;
    }
    let stdin = stdin::of(&plan, &waker).map_err(no_thread)?;
    let rules = Rules {
        grace_failure: plan.spec.stop.grace_failure,
        grace_outside: plan.spec.stop.grace_outside,
        timeout: plan.timeout,
        keep_going: plan.keep_going,
        terminal: plan.spec.io.tty.filter(|_| terminal.is_some()).map(|grant| grant.rank),
    };
    let mut early = std::mem::take(&mut opened.signals);
    // The guard is older than our signals: it may have ended, or been stopped, before there were any.
    early.push((signal::SIGCHLD, 0));
    let presenter = Presenter::new(plan.output.clone(), Names::of(plan.spec.map.clone()));
    let mut delivery = Delivery::new(presenter, writers, opened, &plan.output, plan.drain);
    let settings = Settings { is_recorded: delivery.journal.is_on(), ..settings(&plan, calls.as_ref()) };
    if let Some(trace) = &mut plan.spec.trace {
        trace.begin_at(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    }
    let kept = calls.as_ref().map(Calls::kept);
    let origin = Origin { spec: plan.spec.clone(), rules, settings };
    let job = Job::of(origin.clone());
    delivery.journal.record(Duration::ZERO, || JobEvent::Job(Box::new(job.facts().clone())));
    let reach = Reach::new(nodes, calls, enrolment, starter, plan.hosts.clone(), poller.registry());
    let notices = Notices::new(plan.verbosity < 0);
    let has_region = plan.verbosity >= 0 && plan.output.status.is_some();
    let mut front = Box::new(Front {
        job,
        ledger: None,
        is_successor: false,
        is_reported: false,
        heir,
        effects: VecDeque::new(),
        is_at_work: false,
        own_directory: own,
        drain: Drain::new(plan.drain),
        delivery,
        left_at: 0,
        looked_until: 0,
        parent,
        was_looked_at: is_detached,
        control: Control::new(poller.registry(), |ours| Token::Control(ours).encode()),
        plan,
        started,
        clock: Clock::default(),
        poller,
        signals,
        waker,
        reach,
        collectives: Collectives::default(),
        names: PublishedNames::default(),
        debts: Debts::default(),
        early,
        strangers,
        commands: Commands::default(),
        is_place_probed: false,
        is_showing: false,
        was_logging: false,
        stdin,
        quiet: QuietClock::new(has_region),
        job_control,
        notices,
    });
    begin(&mut front, estate, origin, kept, no_successor)?;
    Ok(front)
}

/// Gives a front its directory, and greets the agent of this machine.
/// `no_successor`: why no other one can take its place, where the user wants that.
fn begin(
    front: &mut Front,
    estate: Option<Estate>,
    origin: Origin,
    kept: Option<Kept>,
    no_successor: Option<&'static str>,
) -> Result<(), StartError> {
    if let Some(estate) = estate {
        front.take_over(estate);
    } else if !front.plan.hosts.targets.iter().any(|target| front.plan.hosts.is_here(target)) {
        // Without it the job only cannot be asked.
        if front.own_directory.is_none() {
            front.own_directory = OwnDirectory::create(&front.plan.spec.job).ok();
        }
        if let Some(path) = front.own_directory.as_ref().map(|own| own.path().to_owned()) {
            front.listen_for_control(&path);
            if front.plan.hosts.outlasts_front.is_some() {
                front
                    .begin_ledger(&path, origin, kept.unwrap_or_default())
                    .map_err(failed("make the ledger of the job"))?;
            }
        }
    }
    if let Some(why) = no_successor {
        front.note(format!("no front can take the place of this one if it is killed: {why}"));
    }
    let hello = ToAgent::Hello(Hello::ours());
    for node in front.reach.nodes.iter_mut().filter(|node| node.entered.is_none()) {
        node.send(&hello).map_err(|error| StartError::new(error.to_string(), None))?;
    }
    Ok(())
}

/// The devices of the nodes, in their order. Only this machine is reached yet.
fn nodes(plan: &Plan, mut launched: Option<Launched>, poller: &Poller) -> io::Result<Vec<NodeHandle>> {
    let node = |(target, id): (&NodeTarget, u32)| {
        let id = NodeId(id);
        match launched.take_if(|_| plan.hosts.is_here(target)) {
            Some(launched) => NodeHandle::here(id, launched, poller, Token::Node(id).encode()),
            None => Ok(NodeHandle::there(id)),
        }
    };
    plan.hosts.targets.iter().zip(0..).map(node).collect()
}

/// Listens for the nodes that join. `kept`: where they have known another front.
fn listen(join: &Join, plan: &Plan, poller: &Poller, kept: Option<KeptDoor>) -> Result<Enrolment, StartError> {
    let own = plan.hosts.targets.iter().position(|target| target.is_local).map(|own| NodeRank(own as u32));
    let takes_nodes_in = is_elastic(plan) && plan.spec.restart.is_on();
    let roster = Roster::new(join.nodes, join.spares, own, takes_nodes_in);
    let port = kept.as_ref().map_or(join.front.port, |kept| kept.port);
    Enrolment::open(join, plan, roster, poller, kept).map_err(|source| {
        let hint = match plan.spec.ports.filter(|_| port == 0) {
            Some(range) => format!("no port of {range} (--port-range) is free on this machine"),
            None => format!("--rendezvous names a port that is free on node 0; another job may use {port}"),
        };
        StartError { hint: Some(hint), ..failed("listen for the other nodes")(source) }
    })
}
