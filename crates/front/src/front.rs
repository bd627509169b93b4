//! The front's loop: the agent's messages, signals, destinations and time become events of the gang, and the gang's
//! effects become messages to the agent.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rankrun_agent::clean::MAX_FOREIGN;
use rankrun_agent::runtime::Places;
use rankrun_agent::{Clock, Launched};
use rankrun_core::event::{JobEvent, JobFacts};
use rankrun_core::gang::{Effect, Event, Gang, Moment, Rules};
use rankrun_core::job::StdinTarget;
use rankrun_core::{ExitCode, Rank, RankSet, Stream};
use rankrun_output::{Names, Presenter};
use rankrun_sys::poll::{Interest, Poller, Ready, Waker};
use rankrun_sys::process::{Child, ProcessRef};
use rankrun_sys::signal::{self, SignalFd};
use rankrun_sys::wait::{self, Look};
use rankrun_sys::{fork, limits, proc, terminal};
use rankrun_wire::message::{Containment, Hello, Summary};
use rankrun_wire::{Frame, ToAgent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Plan;
use crate::delivery::{Delivery, Opened, Threads, Told};
use crate::files::{Directory, Done, Files, Task};
use crate::journal::Journal;
use crate::launcher::{END_BOUND, KILLING_BOUND, Watch};
use crate::link::{Link, LinkError};
use crate::node_clock::NodeClock;
use crate::notes::Notes;
use crate::pause::Pause;
use crate::report;
use crate::stdin::Stdin;
use crate::suspects::LastWords;
use crate::tty::FrontTerminal;

/// How long files may take to take in what a destination would not.
const SALVAGE_BOUND: Duration = Duration::from_secs(60);
/// A signal that comes so long after the order to kill everything is meant for an agent that does not do it.
const IMPATIENCE: Duration = Duration::from_secs(1);
/// How long guard and agent of a job that is refused may take to end.
const DISMISS_BOUND: Duration = Duration::from_secs(5);
/// How often the window is looked at while a rank has the terminal, and so is the only one to be told of changes.
const WINDOW_STEP: Duration = Duration::from_millis(500);

const FRONT: u64 = 0;
const SIGNALS: u64 = 1;
const WAKER: u64 = 2;

/// What came of it.
pub(crate) struct Outcome {
    pub(crate) code: ExitCode,
    /// The signal to end this process by.
    pub(crate) raise: Option<i32>,
}

/// Runs a job.
pub(crate) fn run(plan: Plan) -> Outcome {
    let color = plan.color;
    match start(plan) {
        Ok(front) => front.run(),
        Err(error) => {
            if error.raise.is_none() {
                report::error(color, &error.to_string(), error.source.as_ref(), error.hint.as_deref());
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
    /// It was interrupted by this signal.
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

/// A thread could not be started: names the limit that is the usual reason.
fn no_thread(source: io::Error) -> StartError {
    let limit = limits::processes().0.filter(|_| source.kind() == io::ErrorKind::WouldBlock);
    let hint = limit.map(|limit| format!("the user may have {limit} processes and threads (ulimit -u)"));
    StartError { hint, ..failed("start a thread")(source) }
}

fn start(mut plan: Plan) -> Result<Front, StartError> {
    let started = Instant::now();
    plan.spec.ignored_signals = signal::ignored_now();
    // From here on a signal ends the job, not this process, which then could not clean up.
    let signals = receive_signals(&plan.spec.ignored_signals).map_err(failed("receive signals"))?;
    if plan.die_with_parent {
        fork::end_with_parent(signal::SIGTERM).map_err(failed("be told of the end of the parent"))?;
    }
    let foreign: Vec<i32> = proc::own_children().into_iter().take(MAX_FOREIGN).collect();
    fork::become_subreaper().map_err(failed("become a subreaper"))?;
    let launched = rankrun_agent::launch(&plan.spec.job, plan.spec.io.tty.is_some())
        .map_err(failed("start the guard and the agent"))?;
    // From here on this process may have threads.
    let guard = launched.guard;
    Front::new(plan, signals, launched, foreign, started).inspect_err(|_| dismiss(guard))
}

/// The job is refused, and the stream to the agent is closed: waits until agent and guard have ended.
fn dismiss(guard: i32) {
    let bound = Instant::now() + DISMISS_BOUND;
    while let Look::Nothing = wait::reap(guard) {
        if Instant::now() >= bound {
            // It cannot be our own doing that it has not ended; the agent below it sees that both of us are gone. An
            // error means that it has ended.
            let _ = Child::unreaped(guard).signal(signal::SIGKILL);
            return;
        }
        let step = rustix::event::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        // A signal cuts the wait short.
        let _ = rustix::event::poll(&mut [], Some(&step));
    }
}

/// Waits until log files and journal are open; a signal that asks us to end is obeyed meanwhile.
fn open_files(plan: &mut Plan, files: &mut Files, waker: &Waker, signals: &SignalFd) -> Result<Opened, StartError> {
    let mut opened = Opened::default();
    let refused =
        |what: &str, source| StartError { code: ExitCode::USAGE, ..StartError::new(what.to_owned(), Some(source)) };
    let (logs, journal) = (plan.log_dir.take(), plan.journal.take());
    let mut what = Vec::new();
    if let Some(directory) = &logs {
        what.push(format!("cannot write log files to \"{}\"", directory.display()));
        let world_size = plan.spec.map.world_size();
        files.submit(Duration::ZERO, Task::OpenLogs { directory: directory.clone(), world_size });
    }
    if let Some(path) = &journal {
        what.push(format!("cannot write the journal to \"{}\"", path.display()));
        files.submit(Duration::ZERO, Task::OpenJournal(path.clone()));
    }
    let until = Instant::now() + plan.drain;
    loop {
        // Answers come in the order of the tasks.
        while let Some(done) = files.next(Duration::ZERO) {
            let failure = match done {
                Done::LogsOpened(result) => {
                    opened.logs = true;
                    result.err().map(|error| match Some(&error.path) == logs.as_ref() {
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
        while let Some((number, _)) = signals.next() {
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
        // A wait that fails shows at the end of the bound.
        let _ = poll(&mut [PollFd::new(waker, PollFlags::IN), PollFd::new(signals, PollFlags::IN)], Some(&timeout));
        waker.clear();
    }
}

fn receive_signals(ignored: &[i32]) -> io::Result<SignalFd> {
    let mut wanted = vec![signal::SIGINT, signal::SIGTERM, signal::SIGHUP, signal::SIGTSTP];
    wanted.extend([signal::SIGUSR1, signal::SIGUSR2, signal::SIGWINCH, signal::SIGCONT]);
    wanted.retain(|number| !ignored.contains(number));
    wanted.push(signal::SIGCHLD);
    SignalFd::new(&wanted)
}

/// The running front.
pub(crate) struct Front {
    pub(crate) plan: Plan,
    /// Whoever waits for the end does not want to wait any more: every wait of ours is over.
    pub(crate) is_hurried: bool,
    /// Where the job's directory may be.
    pub(crate) places: Places,
    pub(crate) started: Instant,
    pub(crate) clock: Clock,
    pub(crate) node_clock: NodeClock,
    pub(crate) poller: Poller,
    pub(crate) signals: SignalFd,
    pub(crate) waker: Waker,
    pub(crate) link: Option<Link>,
    pub(crate) link_writing: bool,
    pub(crate) guard: i32,
    /// The agent, once it is known.
    pub(crate) agent: Option<ProcessRef>,
    /// Where the job's cgroup is, if there is one.
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) foreign: Vec<i32>,
    /// What the report says of the job itself.
    pub(crate) facts: JobFacts,
    pub(crate) gang: Gang,
    pub(crate) delivery: Delivery,
    pub(crate) last_words: LastWords,
    pub(crate) stdin: Option<Stdin>,
    pub(crate) terminal: Option<FrontTerminal>,
    pub(crate) containment: Option<Containment>,
    pub(crate) summary: Option<Summary>,
    pub(crate) is_drained: bool,
    pub(crate) said_end: bool,
    pub(crate) guard_code: Option<u8>,
    pub(crate) guard_lost: bool,
    pub(crate) watch: Watch,
    /// After this, a destination that takes nothing is given up.
    pub(crate) drain_until: Option<Duration>,
    pub(crate) pausing: Option<Pause>,
    /// The terminal has shown `^C` at the start of the row in which we write next.
    pub(crate) key_was_pressed: bool,
    pub(crate) notices: VecDeque<String>,
    pub(crate) notes: Notes,
    /// Why the agent cannot serve.
    pub(crate) refused: Option<(String, io::Error)>,
}

/// What the report says of the job itself.
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

impl Front {
    fn new(
        mut plan: Plan,
        signals: SignalFd,
        launched: Launched,
        foreign: Vec<i32>,
        started: Instant,
    ) -> Result<Front, StartError> {
        let waker = Waker::new().map_err(failed("make an event descriptor"))?;
        let poller = Poller::new().map_err(failed("make an epoll set"))?;
        let handle = || waker.handle().map_err(failed("make an event descriptor"));
        // A rank may use up all processes and threads that the user may have. What we need is started before the first.
        let mut threads = Threads::start(&waker).map_err(no_thread)?;
        let opened = open_files(&mut plan, &mut threads.files, &waker, &signals)?;
        let Launched { guard, stream, cgroup, places } = launched;
        let mut link = Link::new(stream).map_err(failed("reach the agent"))?;
        poller.add(&link, FRONT, Interest::Read).map_err(failed("watch the agent"))?;
        poller.add(&signals, SIGNALS, Interest::Read).map_err(failed("watch for signals"))?;
        poller.add(&waker, WAKER, Interest::Read).map_err(failed("watch for wake-ups"))?;
        let terminal = FrontTerminal::open(&plan.spec.io);
        let is_behind = terminal.as_ref().is_some_and(|terminal| !terminal.in_foreground());
        if let Some(grant) = &mut plan.spec.io.tty {
            grant.foreground = terminal.is_some() && !is_behind;
            if plan.spec.map.world_size() > 1 {
                // Bars would move the cursor from where the rank on the terminal believes it to be.
                plan.output.status = None;
            }
        } else if is_behind && terminal::is_terminal(rustix::stdio::stdin()) {
            // A rank in a session of its own is not kept from the terminal: it would take what is typed for the shell.
            plan.spec.io.stdin = StdinTarget::None;
        }
        let say = |link: &mut Link, message: ToAgent| {
            link.say(&message).map_err(|error| StartError::new(error.to_string(), None))
        };
        let stdin = match plan.spec.io.stdin {
            StdinTarget::All => Some(Stdin::start(handle()?).map_err(no_thread)?),
            StdinTarget::None | StdinTarget::Rank(_) => None,
        };
        say(&mut link, ToAgent::Hello(Hello::ours()))?;
        say(&mut link, ToAgent::Start(Box::new(plan.spec.clone())))?;
        let rules = Rules {
            grace_failure: plan.spec.stop.grace_failure,
            grace_outside: plan.spec.stop.grace_outside,
            timeout: plan.timeout,
            keep_going: plan.keep_going,
        };
        let map = plan.spec.map.clone();
        let names = move |rank: Rank| match map.place(rank) {
            Some(place) => {
                Names { node: map.node_name(place.node).to_owned(), local_rank: place.local_rank, app: place.app }
            }
            None => Names { node: String::new(), local_rank: Default::default(), app: Default::default() },
        };
        let presenter = Presenter::new(plan.output.clone(), names);
        let delivery = Delivery::new(presenter, threads, opened, plan.output.same_destination, plan.drain);
        let facts = facts(&plan, rules.clone());
        let mut delivery = delivery;
        delivery.journal.record(Duration::ZERO, || JobEvent::Job(Box::new(facts.clone())));
        Ok(Front {
            gang: Gang::new(plan.spec.map.world_size(), rules),
            facts,
            delivery,
            last_words: LastWords::default(),
            plan,
            is_hurried: false,
            places,
            started,
            clock: Clock::default(),
            node_clock: NodeClock::default(),
            poller,
            signals,
            waker,
            link: Some(link),
            link_writing: false,
            guard,
            cgroup,
            foreign,
            agent: None,
            stdin,
            terminal,
            containment: None,
            summary: None,
            is_drained: false,
            said_end: false,
            guard_code: None,
            guard_lost: false,
            watch: Watch::default(),
            drain_until: None,
            pausing: None,
            key_was_pressed: false,
            notices: VecDeque::new(),
            notes: Notes::default(),
            refused: None,
        })
    }

    fn run(mut self) -> Outcome {
        let mut ready = Vec::new();
        while self.link.is_some() {
            self.hand_on();
            let timeout = self.timeout();
            if let Err(error) = self.poller.wait(timeout, &mut ready) {
                self.note(format!("cannot wait for events: {error}"));
                break;
            }
            // While output keeps coming, the quiet of a rank is only that of a busy machine.
            let quiet = !ready.iter().any(|event| event.token == FRONT);
            for &event in &ready {
                self.dispatch(event);
            }
            self.tick(quiet);
        }
        self.finish()
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    fn timeout(&self) -> Option<Duration> {
        if self.clock.is_paused() {
            return None;
        }
        let now = self.now();
        let window = self.must_watch_window().then(|| now + WINDOW_STEP);
        let waits =
            [self.last_words.deadline(), self.watch.deadline(), self.drain_until, window, self.notes.deadline()];
        let deadlines = waits.into_iter().chain([self.gang.deadline(), self.delivery.deadline()]);
        deadlines.flatten().min().map(|deadline| deadline.saturating_sub(now))
    }

    pub(crate) fn dispatch(&mut self, event: Ready) {
        match event.token {
            FRONT => {
                if event.writable && self.link.as_ref().is_some_and(Link::wants_write) {
                    let result = self.link.as_mut().map_or(Ok(()), Link::flush);
                    self.check_link(result);
                }
                if event.readable {
                    self.hear_agent();
                }
            }
            SIGNALS => {
                while let Some((number, sender)) = self.signals.next() {
                    self.signal(number, sender);
                }
            }
            _ => {
                self.waker.clear();
                let now = self.now();
                self.delivery.hear(now);
                self.hear_delivery();
                self.hear_stdin();
            }
        }
    }

    fn tick(&mut self, quiet: bool) {
        if self.clock.is_paused() {
            return;
        }
        let now = self.now();
        if self.gang.deadline().is_some_and(|deadline| deadline <= now) {
            self.event(Event::Tick);
        }
        self.watch(now);
        self.suspect(now);
        self.tell_withheld_notes(Some(now));
        self.delivery.tick(now, quiet);
        self.hear_delivery();
        if self.must_watch_window() {
            self.resized();
        }
        if self.drain_until.is_some_and(|until| until <= now) {
            self.give_up_on_destinations(now);
        }
    }

    /// The rank on the terminal is told of a new window by the kernel, and nobody else is.
    fn must_watch_window(&self) -> bool {
        self.plan.spec.map.world_size() > 1 && self.terminal.as_ref().is_some_and(|terminal| terminal.group().is_some())
    }

    pub(crate) fn event(&mut self, event: Event) {
        let now = self.now();
        self.event_of(Moment { now, at: now }, event);
    }

    /// An event that happened on a node, at a time of its clock.
    pub(crate) fn node_event(&mut self, at: Duration, event: Event) {
        let moment = self.node_clock.moment(self.clock.now(), at);
        self.event_of(moment, event);
    }

    fn event_of(&mut self, moment: Moment, event: Event) {
        let mut effects = Vec::new();
        let now = moment.now;
        let journal = &mut self.delivery.journal;
        journal.record(now, || JobEvent::Gang { happened: moment.at, event: Box::new(event.clone()) });
        self.gang.handle_of(moment, event, &mut effects);
        for effect in effects {
            self.delivery.journal.record(now, || JobEvent::Decision(effect));
            let message = match effect {
                Effect::Stop(stop) => {
                    self.expect_end(now + stop.grace + END_BOUND);
                    ToAgent::Stop(stop)
                }
                Effect::Kill => {
                    self.expect_end(now + KILLING_BOUND);
                    ToAgent::Kill
                }
            };
            self.say(&message);
        }
    }

    pub(crate) fn say(&mut self, message: &ToAgent) {
        if let Some(link) = &mut self.link {
            let result = link.say(message);
            self.check_link(result);
        }
    }

    pub(crate) fn check_link(&mut self, result: Result<(), LinkError>) {
        if let Err(error) = result {
            self.lose_agent(&error);
            return;
        }
        if let Some(link) = &self.link
            && link.wants_write() != self.link_writing
        {
            self.link_writing = link.wants_write();
            let interest = if self.link_writing { Interest::ReadWrite } else { Interest::Read };
            let _ = self.poller.change(link, FRONT, interest);
        }
    }

    fn hear_agent(&mut self) {
        let Some(mut link) = self.link.take() else { return };
        let filled = link.fill();
        loop {
            match link.next() {
                Ok(Some(Frame::Output(head, bytes))) => {
                    let now = self.clock.now();
                    if head.stream == Stream::Stderr {
                        self.last_words.write(now, head.rank, bytes);
                    }
                    self.delivery.output(now, head, bytes);
                }
                Ok(Some(Frame::Message(message))) => {
                    self.link = Some(link);
                    self.message(message);
                    match self.link.take() {
                        Some(same) => link = same,
                        None => return,
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    self.lose_agent(&error);
                    return;
                }
            }
        }
        match filled {
            Ok(()) => self.link = Some(link),
            Err(_) if self.said_end => {}
            Err(error) => self.lose_agent(&error),
        }
    }

    fn signal(&mut self, number: i32, sender: i32) {
        // What the kernel sends by itself comes from a key of the terminal.
        let by_key = sender == 0 && [signal::SIGINT, signal::SIGTSTP].contains(&number);
        if by_key && self.pass_on(number) {
            return;
        }
        match number {
            signal::SIGCHLD => self.look_at_guard(),
            signal::SIGTSTP => self.stopped(by_key),
            signal::SIGCONT => self.continued(),
            signal::SIGWINCH => self.resized(),
            signal::SIGUSR1 | signal::SIGUSR2 => self.say(&ToAgent::Signal(number)),
            // We have sent it to our whole group, on behalf of a key.
            signal::SIGINT if sender == std::process::id() as i32 => {}
            number => {
                self.key_was_pressed |= by_key;
                let first = self.gang.outside().is_none();
                let now = self.now();
                if self.gang.killed_at().is_some_and(|at| now >= at + IMPATIENCE) {
                    // The agent has had its chance to kill them; without it the guard does.
                    self.expect_end(now);
                }
                self.event(Event::Signal(number));
                if first && !self.gang.over() && self.plan.verbosity >= 0 {
                    self.tell_stopping(number, by_key);
                }
                if !first && (self.summary.is_some() || self.link.is_none()) {
                    // Nothing is left but our own waiting: for output that nobody takes, for a file system.
                    self.is_hurried = true;
                    self.drain_until = Some(self.now());
                }
            }
        }
    }

    fn tell_stopping(&mut self, number: i32, by_key: bool) {
        let name = rankrun_core::status::signal_name(number);
        let grace = self.plan.spec.stop.grace_outside.as_secs_f64();
        let again = if number == signal::SIGINT { "; press ^C again to kill at once" } else { "" };
        let ranks = self.plan.spec.map.world_size();
        let ranks = if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
        let over_key = if by_key { self.over_key() } else { "" };
        self.notices.push_back(format!("{over_key}rankrun: {name}: stopping {ranks}, with {grace} s to end{again}"));
    }

    /// What a message begins with so as not to stand behind the `^C` that the terminal has shown.
    pub(crate) fn over_key(&self) -> &'static str {
        if self.key_was_pressed && terminal::is_terminal(rustix::stdio::stderr()) { "\r" } else { "" }
    }

    /// Gives what is ready to the destinations, our own notices among it.
    pub(crate) fn hand_on(&mut self) {
        let now = self.now();
        while let Some(text) = self.notices.pop_front() {
            self.delivery.presenter.notice(now, &text);
        }
        self.suit_terminal();
        self.delivery.hand_on(now);
        self.hear_delivery();
    }

    fn hear_delivery(&mut self) {
        for told in self.delivery.told() {
            match told {
                Told::Settled { stream, bytes } => self.say(&ToAgent::Credit { stream, bytes }),
                Told::Note(text) => self.note(text),
                Told::ReaderGone if self.summary.is_none() => self.event(Event::OutputGone),
                Told::Failed => {
                    self.event(Event::OutputFailed);
                    self.drain_until = Some(self.now());
                }
                Told::ReaderGone => {}
            }
        }
    }

    /// A destination takes nothing, and has had its time: what it was to get is kept beside the report.
    fn give_up_on_destinations(&mut self, now: Duration) {
        if self.delivery.is_full() {
            self.event(Event::OutputFailed);
        }
        self.delivery.give_up_logs(now);
        match self.directory().filter(|_| !self.delivery.is_salvaged() && !self.is_hurried) {
            Some(directory) => {
                self.delivery.salvage(directory);
                // The files take what is left at once, unless they cannot take it at all.
                self.drain_until = self.summary.as_ref().map(|_| now + SALVAGE_BOUND);
            }
            None if self.summary.is_some() => self.link = None,
            None => self.drain_until = None,
        }
    }

    /// Where report and salvaged output go.
    pub(crate) fn directory(&self) -> Option<Directory> {
        let place = &self.plan.report;
        let path = place.directory.clone()?;
        let below = place.home.clone().filter(|home| path.starts_with(home));
        Some(Directory { path, below })
    }

    pub(crate) fn hear_stdin(&mut self) {
        let Some(stdin) = &self.stdin else { return };
        if let Some(piece) = stdin.next() {
            match piece {
                Some(bytes) => self.say(&ToAgent::Stdin(bytes)),
                None => self.say(&ToAgent::StdinEnd),
            }
        }
    }

    /// A note of an agent: it may come from what a rank does thousands of times.
    pub(crate) fn agent_note(&mut self, text: String) {
        let now = self.now();
        if self.plan.verbosity >= 0 && self.notes.take(now, &text) {
            self.note(text);
        }
    }

    /// Says how many notes were not printed: those whose time is over, or all.
    pub(crate) fn tell_withheld_notes(&mut self, now: Option<Duration>) {
        for text in self.notes.withheld(now) {
            self.note(text);
        }
    }

    pub(crate) fn note(&mut self, text: String) {
        if self.plan.verbosity >= 0 {
            let now = self.now();
            self.delivery.journal.record(now, || JobEvent::Note(text.clone()));
            self.notices.push_back(format!("rankrun: {text}"));
        }
    }
}
