//! The front's loop: the agent's messages, signals, destinations and time become events of the gang, and the gang's
//! effects become messages to the agent.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use rankrun_agent::clean::{MAX_FOREIGN, Remains, remove_runtime_dir};
use rankrun_agent::{Clock, Launched};
use rankrun_core::gang::{Effect, Event, Gang, Outside, Rules};
use rankrun_core::job::StdinTarget;
use rankrun_core::verdict::verdict;
use rankrun_core::{ExitCode, Pid, Rank, Stream, WorkerStatus};
use rankrun_output::{LogFiles, Names, Presenter};
use rankrun_sys::cgroup::GuardedCgroup;
use rankrun_sys::poll::{Interest, Poller, Ready, Waker};
use rankrun_sys::proc::{self, ChildList};
use rankrun_sys::signal::{self, SignalFd};
use rankrun_sys::wait::{self, Look};
use rankrun_sys::{fork, terminal};
use rankrun_wire::frame::OutputHead;
use rankrun_wire::message::{Containment, Hello, Summary};
use rankrun_wire::{Frame, ToAgent, ToFront};

use crate::Plan;
use crate::link::{Link, LinkError};
use crate::report::{self, Report};
use crate::runtime::RuntimeDir;
use crate::sink::{News, Sink};
use crate::stdin::Stdin;
use crate::tty::LentTerminal;

/// How long guard and agent may take to end once all is over, beyond what a kill may take.
const GUARD_BOUND: Duration = Duration::from_secs(15);
/// How long before the loss of both guard and agent nobody may have looked after the job.
const UNATTENDED: Duration = Duration::from_secs(2);
/// Bytes made for a destination before the loop stops taking output, until the destination has taken a batch.
const BATCH: usize = 256 * 1024;
/// The size from which a batch is handed on before the loop looks at anything else.
const EAGER: usize = 64 * 1024;

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
            report::error(color, &error.to_string(), error.source.as_ref(), None);
            Outcome { code: ExitCode::INTERNAL, raise: None }
        }
    }
}

/// Why a job could not even begin.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
struct StartError {
    what: String,
    source: Option<io::Error>,
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError { what: format!("cannot {what}"), source: Some(source) }
}

fn start(mut plan: Plan) -> Result<Front, StartError> {
    let started = Instant::now();
    let runtime = RuntimeDir::create(&plan.spec.job)
        .map_err(|error| StartError { what: error.to_string(), source: Some(error.source) })?;
    let logs = match plan.log_dir.take().map(|directory| LogFiles::create(directory, plan.spec.map.world_size())) {
        Some(Ok(logs)) => Some(logs),
        Some(Err(error)) => {
            remove_runtime_dir(&runtime.path);
            return Err(StartError { what: error.to_string(), source: Some(error.source) });
        }
        None => None,
    };
    plan.spec.runtime_dir = runtime.path.clone().into();
    plan.spec.ignored_signals = signal::ignored_now();
    plan.output.temp_dir = runtime.path.clone();
    let foreign: Vec<i32> = proc::own_children().into_iter().take(MAX_FOREIGN).collect();
    fork::become_subreaper().map_err(failed("become a subreaper"))?;
    let launched = rankrun_agent::launch(&plan.spec.job, &runtime.path, &runtime.alive)
        .map_err(failed("start the guard and the agent"))?;
    // From here on this process may have threads.
    Front::new(plan, runtime, logs, launched, foreign, started)
}

/// The running front.
struct Front {
    plan: Plan,
    runtime: RuntimeDir,
    started: Instant,
    clock: Clock,
    poller: Poller,
    signals: SignalFd,
    waker: Waker,
    link: Option<Link>,
    link_writing: bool,
    guard: i32,
    /// Where the job's cgroup is, if there is one.
    cgroup: Option<PathBuf>,
    foreign: Vec<i32>,
    agent: Option<Pid>,
    gang: Gang,
    presenter: Presenter,
    logs: Option<LogFiles>,
    log_retry: Option<Duration>,
    log_failed_since: Option<Duration>,
    sinks: [Sink; 2],
    /// Both streams have one destination: all goes through the first sink.
    is_shared: bool,
    /// Bytes of the ranks' output that were taken and not yet settled with the agent, by stream.
    unsettled: [u64; 2],
    memory: [Vec<u8>; 2],
    stdin: Option<Stdin>,
    terminal: Option<LentTerminal>,
    containment: Option<Containment>,
    summary: Option<Summary>,
    is_drained: bool,
    said_end: bool,
    guard_code: Option<u8>,
    guard_lost: bool,
    /// After this, a destination that takes nothing is given up.
    drain_until: Option<Duration>,
    /// A SIGTSTP is being carried out.
    pausing: bool,
    notices: VecDeque<String>,
}

impl Front {
    fn new(
        mut plan: Plan,
        runtime: RuntimeDir,
        logs: Option<LogFiles>,
        launched: Launched,
        foreign: Vec<i32>,
        started: Instant,
    ) -> Result<Front, StartError> {
        let ignored = |number: &i32| !plan.spec.ignored_signals.contains(number);
        let mut wanted = vec![signal::SIGINT, signal::SIGTERM, signal::SIGHUP, signal::SIGTSTP];
        wanted.extend([signal::SIGUSR1, signal::SIGUSR2, signal::SIGWINCH]);
        wanted.retain(ignored);
        wanted.push(signal::SIGCHLD);
        let signals = SignalFd::new(&wanted).map_err(failed("receive signals"))?;
        let waker = Waker::new().map_err(failed("make an event descriptor"))?;
        let poller = Poller::new().map_err(failed("make an epoll set"))?;
        let handle = || waker.handle().map_err(failed("make an event descriptor"));
        let sinks = [
            Sink::start("stdout", rustix::stdio::stdout(), handle()?).map_err(failed("start a thread"))?,
            Sink::start("stderr", rustix::stdio::stderr(), handle()?).map_err(failed("start a thread"))?,
        ];
        let Launched { guard, stream, cgroup } = launched;
        let mut link = Link::new(stream).map_err(failed("reach the agent"))?;
        poller.add(&link, FRONT, Interest::Read).map_err(failed("watch the agent"))?;
        poller.add(&signals, SIGNALS, Interest::Read).map_err(failed("watch for signals"))?;
        poller.add(&waker, WAKER, Interest::Read).map_err(failed("watch for wake-ups"))?;
        let terminal = plan.spec.io.tty.and_then(|grant| LentTerminal::open(grant.rank));
        if let Some(grant) = &mut plan.spec.io.tty {
            grant.foreground = terminal.as_ref().is_some_and(LentTerminal::in_foreground);
        }
        let say = |link: &mut Link, message: ToAgent| {
            link.say(&message).map_err(|error| StartError { what: error.to_string(), source: None })
        };
        say(&mut link, ToAgent::Hello(Hello::ours()))?;
        say(&mut link, ToAgent::Start(Box::new(plan.spec.clone())))?;
        let stdin = match plan.spec.io.stdin {
            StdinTarget::All => Some(Stdin::start(handle()?).map_err(failed("start a thread"))?),
            StdinTarget::None | StdinTarget::Rank(_) => None,
        };
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
        Ok(Front {
            gang: Gang::new(plan.spec.map.world_size(), rules),
            presenter: Presenter::new(plan.output.clone(), names),
            is_shared: plan.output.same_destination,
            plan,
            runtime,
            started,
            clock: Clock::default(),
            poller,
            signals,
            waker,
            link: Some(link),
            link_writing: false,
            guard,
            cgroup,
            foreign,
            agent: None,
            logs,
            log_retry: None,
            log_failed_since: None,
            sinks,
            unsettled: [0, 0],
            memory: [Vec::new(), Vec::new()],
            stdin,
            terminal,
            containment: None,
            summary: None,
            is_drained: false,
            said_end: false,
            guard_code: None,
            guard_lost: false,
            drain_until: None,
            pausing: false,
            notices: VecDeque::new(),
        })
    }

    fn run(mut self) -> Outcome {
        let mut ready = Vec::new();
        while !self.is_done() {
            self.hand_on();
            let timeout = self.timeout();
            if let Err(error) = self.poller.wait(timeout, &mut ready) {
                self.note(format!("cannot wait for events: {error}"));
                break;
            }
            for &event in &ready {
                self.dispatch(event);
            }
            self.tick();
        }
        self.finish()
    }

    /// All ranks are gone and the agent has nothing more to say, or there is no agent any more.
    fn is_done(&self) -> bool {
        self.link.is_none()
    }

    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn timeout(&self) -> Option<Duration> {
        if self.clock.is_paused() {
            return None;
        }
        let now = self.now();
        let presenter = if self.destinations_are_idle() { self.presenter.next_deadline() } else { None };
        let deadlines = [self.gang.deadline(), presenter, self.log_retry, self.drain_until];
        deadlines.into_iter().flatten().min().map(|deadline| deadline.saturating_sub(now))
    }

    fn dispatch(&mut self, event: Ready) {
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
                while let Some((number, _)) = self.signals.next() {
                    self.signal(number);
                }
            }
            _ => {
                self.waker.clear();
                self.hear_sinks();
                self.hear_stdin();
            }
        }
    }

    fn tick(&mut self) {
        if self.clock.is_paused() {
            return;
        }
        let now = self.now();
        if self.gang.deadline().is_some_and(|deadline| deadline <= now) {
            self.event(Event::Tick);
        }
        if self.destinations_are_idle() {
            self.presenter.tick(now);
        }
        if self.log_retry.is_some_and(|retry| retry <= now) {
            let result = self.logs.as_mut().map_or(Ok(()), LogFiles::retry);
            self.check_logs(result);
        }
        if self.drain_until.is_some_and(|until| until <= now) {
            // The agent holds output that nobody takes: it has waited long enough.
            self.link = None;
        }
    }

    fn event(&mut self, event: Event) {
        let mut effects = Vec::new();
        let now = self.now();
        self.gang.handle(now, event, &mut effects);
        for effect in effects {
            let message = match effect {
                Effect::Stop(stop) => ToAgent::Stop(stop),
                Effect::Kill => ToAgent::Kill,
            };
            self.say(&message);
        }
    }

    fn say(&mut self, message: &ToAgent) {
        if let Some(link) = &mut self.link {
            let result = link.say(message);
            self.check_link(result);
        }
    }

    fn check_link(&mut self, result: Result<(), LinkError>) {
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
                Ok(Some(Frame::Output(head, bytes))) => self.output(head, bytes),
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
            if self.presenter.pending(Stream::Stdout).len() >= EAGER {
                self.hand_on_stream(Stream::Stdout);
            }
        }
        match filled {
            Ok(()) => self.link = Some(link),
            Err(_) if self.said_end => {}
            Err(error) => self.lose_agent(&error),
        }
    }

    fn message(&mut self, message: ToFront) {
        match message {
            ToFront::Hello(hello) if hello.version != rankrun_wire::VERSION => {
                self.note(format!("the agent is rankrun {}, this is {}", hello.release, Hello::ours().release));
                self.link = None;
            }
            ToFront::Hello(_) => {}
            ToFront::Ready { pid, containment } => {
                self.agent = Some(pid);
                if self.plan.verbosity > 0 {
                    self.note(match &containment {
                        Containment::Cgroup => "workers are held in cgroups".to_owned(),
                        Containment::Subreaper { why } => {
                            format!("workers are held by a subreaper, not in cgroups: {why}")
                        }
                    });
                }
                self.containment = Some(containment);
            }
            ToFront::Started { worker, pid, .. } => {
                if self.plan.spec.io.stdin == StdinTarget::Rank(worker.rank) {
                    self.leave_stdin();
                }
                if let Some(terminal) = self.terminal.as_mut().filter(|terminal| terminal.rank == worker.rank) {
                    terminal.started(pid);
                }
                if self.plan.verbosity > 1 {
                    self.note(format!("rank {} started, pid {pid}", worker.rank));
                }
                self.event(Event::Started { rank: worker.rank, pid });
            }
            ToFront::SpawnFailed { worker, step, errno, command, .. } => {
                let error = io::Error::from_raw_os_error(errno);
                let code = match error.kind() {
                    io::ErrorKind::NotFound => ExitCode::NOT_FOUND,
                    _ => ExitCode::NOT_EXECUTABLE,
                };
                self.event(Event::SpawnFailed {
                    rank: worker.rank,
                    step,
                    error: report::os_text(&error),
                    command: command.to_string_lossy().into_owned(),
                    not_found: Some(code),
                });
            }
            ToFront::Ended { worker, status, .. } => self.rank_ended(worker.rank, status),
            ToFront::Gone { worker, outcome, .. } => self.event(Event::Gone { rank: worker.rank, outcome }),
            ToFront::Stopped { worker, signal, .. } => self.rank_stopped(worker.rank, signal),
            ToFront::Continued { .. } | ToFront::Collective(_) => {}
            ToFront::Mpi { worker, event, .. } => self.event(Event::Mpi { rank: worker.rank, event }),
            ToFront::Closed { rank, stream } => {
                let now = self.now();
                self.presenter.closed(now, rank, stream);
                let result = self.logs.as_mut().map_or(Ok(()), |logs| logs.close(rank, stream));
                self.check_logs(result);
            }
            ToFront::StdinTaken(_) => {
                if let Some(stdin) = &self.stdin {
                    stdin.want_more();
                }
            }
            ToFront::Paused => {
                if std::mem::take(&mut self.pausing) {
                    self.suspend();
                }
            }
            ToFront::GuardLost => self.lose_guard(),
            ToFront::Note(text) => self.note(text),
            ToFront::Over(summary) => {
                self.summary = Some(summary);
                self.drain_until = Some(self.now() + self.plan.drain);
            }
            ToFront::Drained => {
                self.is_drained = true;
                self.said_end = true;
                self.say(&ToAgent::End);
                self.link = None;
            }
        }
    }

    fn rank_ended(&mut self, rank: Rank, status: WorkerStatus) {
        if let Some(terminal) = self.terminal.as_mut().filter(|terminal| terminal.rank == rank) {
            terminal.ended();
            // ^C went to the rank alone; what it ended, it was meant to end.
            if matches!(status, WorkerStatus::Signaled { signal: signal::SIGINT, .. }) {
                self.event(Event::Signal(signal::SIGINT));
            }
        }
        self.event(Event::Ended { rank, status });
    }

    fn rank_stopped(&mut self, rank: Rank, number: i32) {
        let job_control = [signal::SIGTSTP, signal::SIGTTIN, signal::SIGTTOU];
        match &mut self.terminal {
            Some(terminal) if terminal.rank == rank && job_control.contains(&number) => {
                terminal.suspend();
            }
            Some(_) | None => {
                let name = rankrun_core::status::signal_name(number);
                self.note(format!("rank {rank} was stopped by {name}, which was not sent by rankrun"));
                self.event(Event::Stopped { rank, signal: number });
            }
        }
    }

    fn signal(&mut self, number: i32) {
        match number {
            signal::SIGCHLD => self.look_at_guard(),
            signal::SIGTSTP => {
                self.pausing = true;
                self.clock.pause();
                self.say(&ToAgent::Pause);
            }
            signal::SIGWINCH => {
                let window =
                    terminal::window(rustix::stdio::stdout()).or_else(|| terminal::window(rustix::stdio::stderr()));
                if let Some((rows, columns)) = window {
                    let now = self.now();
                    self.presenter.resize(now, (rows, columns));
                    self.say(&ToAgent::Window(rows, columns));
                }
            }
            signal::SIGUSR1 | signal::SIGUSR2 => self.say(&ToAgent::Signal(number)),
            number => {
                let first = self.gang.outside().is_none();
                self.event(Event::Signal(number));
                if first && !self.gang.over() && self.plan.verbosity >= 0 {
                    self.tell_stopping(number);
                }
                if !first && self.summary.is_some() {
                    // Nothing is left but output that nobody takes.
                    self.drain_until = Some(self.now());
                }
            }
        }
    }

    fn tell_stopping(&mut self, number: i32) {
        let name = rankrun_core::status::signal_name(number);
        let grace = self.plan.spec.stop.grace_outside.as_secs_f64();
        let again = if number == signal::SIGINT { "; press ^C again to kill at once" } else { "" };
        let ranks = self.plan.spec.map.world_size();
        let ranks = if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
        self.note(format!("{name}: stopping {ranks}, with {grace} s to end{again}"));
    }

    /// SIGTSTP: the ranks stand still; now this process does, until somebody continues it.
    fn suspend(&mut self) {
        self.hand_on();
        let _ = signal::send(std::process::id() as i32, signal::SIGSTOP);
        self.clock.resume();
        self.say(&ToAgent::Resume);
    }

    /// The rank alone holds the front's stdin from now on.
    fn leave_stdin(&mut self) {
        if let Ok(null) = std::fs::File::open("/dev/null") {
            let _ = rustix::stdio::dup2_stdin(&null);
        }
    }

    fn output(&mut self, head: OutputHead, bytes: &[u8]) {
        let now = self.now();
        self.unsettled[head.stream.index()] += bytes.len() as u64;
        if self.sinks[self.sink_of(head.stream)].failed {
            return;
        }
        self.presenter.output(now, head.at, head.rank, head.stream, bytes);
        if let Some(logs) = &mut self.logs {
            let result = logs.write(head.rank, head.stream, bytes);
            self.check_logs(result);
        }
    }

    fn sink_of(&self, stream: Stream) -> usize {
        if self.is_shared { 0 } else { stream.index() }
    }

    fn destinations_are_idle(&self) -> bool {
        self.sinks.iter().all(Sink::is_idle)
    }

    /// Gives what is ready to the destinations, and settles with the agent what needs no destination.
    fn hand_on(&mut self) {
        while let Some(text) = self.notices.pop_front() {
            let now = self.now();
            self.presenter.notice(now, &text);
        }
        for stream in Stream::ALL {
            self.hand_on_stream(stream);
        }
    }

    fn hand_on_stream(&mut self, stream: Stream) {
        let index = stream.index();
        if self.presenter.pending(stream).is_empty() {
            // What the presenter keeps is bounded by the presenter; the agent may send more.
            let shares = if self.is_shared { index == 0 && self.sinks[0].is_idle() } else { true };
            if shares && self.log_retry.is_none() {
                self.settle_all_of(stream);
            }
            return;
        }
        let sink = self.sink_of(stream);
        if self.sinks[sink].failed {
            self.presenter.pending(stream).clear();
            return;
        }
        if !self.sinks[sink].has_room() {
            return;
        }
        let mut bytes = std::mem::take(&mut self.memory[index]);
        bytes.clear();
        std::mem::swap(&mut bytes, self.presenter.pending(stream));
        let settles = self.take_unsettled(stream);
        self.sinks[sink].write(bytes, settles);
    }

    /// Both streams' bytes are settled together where they share a destination: packed as stdout in the low half.
    fn take_unsettled(&mut self, stream: Stream) -> u64 {
        if self.is_shared {
            let [stdout, stderr] = std::mem::take(&mut self.unsettled);
            return (stderr << 32) | stdout;
        }
        std::mem::take(&mut self.unsettled[stream.index()])
    }

    fn settle_all_of(&mut self, stream: Stream) {
        let streams: &[Stream] = if self.is_shared { &Stream::ALL } else { std::slice::from_ref(&stream) };
        for &stream in streams {
            let bytes = std::mem::take(&mut self.unsettled[stream.index()]);
            self.settle(stream, bytes);
        }
    }

    fn settle(&mut self, stream: Stream, bytes: u64) {
        if self.log_failed_since.is_some() {
            // The logs must not fall behind what is granted.
            self.unsettled[stream.index()] += bytes;
        } else if bytes > 0 {
            self.say(&ToAgent::Credit { stream, bytes });
        }
    }

    fn hear_sinks(&mut self) {
        for index in 0..2 {
            while let Some(news) = self.sinks[index].next_news() {
                match news {
                    News::Written { settles, memory } => {
                        if memory.capacity() <= 2 * BATCH {
                            self.memory[index] = memory;
                        }
                        if self.is_shared {
                            self.settle(Stream::Stdout, settles & 0xffff_ffff);
                            self.settle(Stream::Stderr, settles >> 32);
                        } else {
                            self.settle(Stream::ALL[index], settles);
                        }
                    }
                    News::Full => {
                        let name = Stream::ALL[index];
                        self.note(format!("{name} is full (no space left); waiting for space"));
                    }
                    News::Recovered => self.note(format!("{} takes output again", Stream::ALL[index])),
                    News::Failed(error) => {
                        if error.kind() != io::ErrorKind::BrokenPipe {
                            self.note(format!("cannot write to {}: {error}", Stream::ALL[index]));
                        }
                        if self.summary.is_none() {
                            self.event(Event::OutputGone);
                        }
                    }
                }
            }
        }
    }

    fn hear_stdin(&mut self) {
        let Some(stdin) = &self.stdin else { return };
        if let Some(piece) = stdin.next() {
            match piece {
                Some(bytes) => self.say(&ToAgent::Stdin(bytes)),
                None => self.say(&ToAgent::StdinEnd),
            }
        }
    }

    fn check_logs(&mut self, result: Result<(), rankrun_output::LogError>) {
        let now = self.now();
        match result {
            Ok(()) => {
                if self.logs.as_ref().is_some_and(|logs| logs.unwritten() == 0) {
                    if self.log_failed_since.take().is_some() {
                        self.note("the log directory takes output again".to_owned());
                    }
                    self.log_retry = None;
                }
            }
            Err(error) => {
                let since = *self.log_failed_since.get_or_insert(now);
                if self.log_retry.is_none() {
                    self.note(format!("{error}: {}; trying again", report::os_text(&error.source)));
                }
                self.log_retry = Some(now + Duration::from_secs(1));
                if now >= since + self.plan.drain {
                    self.note(format!("{error}: giving up"));
                    self.logs = None;
                    self.log_retry = None;
                    self.event(Event::OutputGone);
                }
            }
        }
    }

    fn look_at_guard(&mut self) {
        if self.guard_code.is_some() || self.guard_lost {
            return;
        }
        if let Look::Found(child) = wait::peek_at(self.guard) {
            wait::reap(self.guard);
            match child.change {
                wait::Change::Exited { code } => self.guard_code = Some(code),
                wait::Change::Signaled { .. } | wait::Change::Stopped { .. } | wait::Change::Continued => {
                    self.lose_guard();
                }
            }
        }
    }

    fn lose_guard(&mut self) {
        if !self.guard_lost && self.guard_code.is_none() {
            self.guard_lost = true;
            self.event(Event::GuardLost);
        }
    }

    fn lose_agent(&mut self, error: &LinkError) {
        if !matches!(error, LinkError::Ended) {
            self.note(format!("{error}"));
        }
        self.link = None;
        if self.summary.is_none() {
            self.event(Event::AgentLost);
        }
    }

    fn note(&mut self, text: String) {
        if self.plan.verbosity >= 0 {
            self.notices.push_back(format!("rankrun: {text}"));
        }
    }

    /// The ranks are gone, or nobody holds them any more: proof, output, report.
    fn finish(mut self) -> Outcome {
        self.link = None;
        let guard_lost = self.guard_lost;
        let proven = self.await_guard();
        if let Some(terminal) = &mut self.terminal {
            terminal.ended();
        }
        if guard_lost && self.summary.is_none() {
            self.guard_lost = true;
        }
        let now = self.now();
        let until = self.drain_until.unwrap_or(now + self.plan.drain);
        while self.presenter.finish(now) {
            if !self.write_out(until) {
                break;
            }
        }
        let is_written = self.write_out(until);
        let verdict = verdict(&self.gang);
        let mut code = verdict.code;
        let left = self.summary.as_ref().map(|summary| summary.left.clone()).unwrap_or_default();
        if !proven || !left.is_empty() {
            code = ExitCode::LEFT_BEHIND;
        }
        let took = self.started.elapsed();
        let report = Report::new(&self.plan, &self.gang, &verdict, code, took, self.containment.as_ref(), {
            report::Remainder { summary: self.summary.as_ref(), proven, is_sent: self.is_drained, is_written }
        });
        self.conclude(&report, until, is_written);
        let raise = match self.gang.outside() {
            Some(Outside::Signal(number)) if code == ExitCode::signal(number) => Some(number),
            Some(Outside::OutputGone) if code == ExitCode::signal(signal::SIGPIPE) => Some(signal::SIGPIPE),
            Some(_) | None => None,
        };
        remove_runtime_dir(&self.runtime.path);
        Outcome { code, raise }
    }

    /// Writes the report, and what no destination would take.
    fn conclude(&mut self, report: &Report, until: Duration, is_written: bool) {
        let wanted = self.plan.report_dir.is_some() || report.has_failed();
        let mut place = None;
        if wanted || !is_written {
            let directory = self.plan.report_dir.clone().or_else(|| report::default_dir(&self.plan.spec.job));
            if let Some(directory) = directory {
                let mut files = Vec::new();
                if !is_written {
                    for (sink, stream) in self.sinks.iter_mut().zip(Stream::ALL) {
                        let mut bytes = sink.abandon();
                        bytes.append(self.presenter.pending(stream));
                        if !bytes.is_empty() {
                            files.push((format!("unwritten.{stream}"), bytes));
                        }
                    }
                }
                match report::save(&directory, report, &files) {
                    Ok(path) => place = Some(path),
                    // A full or read-only home never changes the exit code.
                    Err(error) if self.plan.verbosity > 0 => {
                        self.note(format!("cannot write the report in \"{}\": {error}", directory.display()));
                    }
                    Err(_) => {}
                }
            }
        }
        if self.plan.verbosity >= 0 && report.is_worth_telling() {
            let text = report::render(report, place.as_deref(), self.plan.color);
            let now = self.now();
            self.presenter.notice(now, text.trim_end_matches('\n'));
        }
        self.hand_on();
        if is_written {
            self.write_out(until.max(self.now() + Duration::from_millis(100)));
        }
    }

    /// Hands on what is pending until all is written, or `until`. Returns whether all is written.
    fn write_out(&mut self, until: Duration) -> bool {
        let mut ready = Vec::new();
        loop {
            self.hand_on();
            let is_pending = Stream::ALL.iter().any(|stream| !self.presenter.pending(*stream).is_empty());
            if !is_pending && self.destinations_are_idle() && self.notices.is_empty() {
                return true;
            }
            let now = self.now();
            if now >= until {
                return false;
            }
            if self.poller.wait(Some(until - now), &mut ready).is_err() {
                return false;
            }
            let interrupts = ready.clone().into_iter().any(|event| event.token == SIGNALS);
            for event in ready.clone() {
                self.dispatch(event);
            }
            if interrupts && self.gang.outside().is_some() && self.guard_code.is_some() {
                return false;
            }
        }
    }

    /// Waits for the guard's word that nothing is left; where there is no guard any more, does its work.
    fn await_guard(&mut self) -> bool {
        let bound = Instant::now() + GUARD_BOUND;
        let mut ready = Vec::new();
        while self.guard_code.is_none() && !self.guard_lost {
            self.look_at_guard();
            if self.guard_code.is_some() || self.guard_lost {
                break;
            }
            let now = Instant::now();
            if now >= bound || self.poller.wait(Some(bound - now), &mut ready).is_err() {
                break;
            }
            for event in ready.clone() {
                self.dispatch(event);
            }
        }
        if let Some(code) = self.guard_code {
            return code == 0;
        }
        let remains = Remains {
            cgroup: self.cgroup.as_deref().and_then(|path| GuardedCgroup::open(path).ok()),
            children: ChildList::open(),
            runtime_dir: self.runtime.path.clone(),
        };
        let empty = remains.end(&self.foreign);
        remains.tidy(self.summary.is_none().then(|| SystemTime::now() - UNATTENDED));
        empty
    }
}
