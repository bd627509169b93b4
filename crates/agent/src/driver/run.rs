//! The agent's loop: every source becomes an event of the team, or of the agent itself.

use std::io;
use std::time::Duration;

use rankrun_core::front_watch::FrontWatch;
use rankrun_core::job::{AgentEvent, Order};
use rankrun_core::team::Event;
use rankrun_core::worker::{Stop, StopWhy};
use rankrun_core::{ExitCode, GroupId};
use rankrun_sys::cgroup::{GuardedCgroup, JobCgroup};
use rankrun_sys::limits::Limits;
use rankrun_sys::poll::{Poller, Ready, Waker};
use rankrun_sys::signal::{self, SignalFd};
use rankrun_sys::{fork, process, watched};
use rankrun_wire::message::{Hello, NodeStart};
use rankrun_wire::{ToAgent, ToFront};

use super::io::IoThread;
use super::limits::adopt;
use super::token::Token;
use crate::guard::lease::Word;
use crate::services::torch_store::TorchStore;
use crate::staff::FRONT_LIVES;
use crate::streams::{Link, LinkError};
use crate::team::{Hands, Team, Teams};
use crate::tidy::{Places, RuntimeDir, end_helpers, remove};

/// The running agent.
pub(super) struct Loop {
    hands: Hands,
    signals: SignalFd,
    wakers: Wakers,
    io: IoThread,
    places: Places,
    runtime: RuntimeDir,
    limits: Limits,
    teams: Teams,
    /// `None` once the front is lost.
    link: Option<Link>,
    /// How long the front may be silent before it counts as lost.
    patience: Option<Duration>,
    front: FrontWatch,
    /// The front has sent `End`.
    end: bool,
    guard_lost: bool,
}

/// The threads wake the loop through it.
pub(super) struct Wakers {
    pub(super) spawner: Waker,
    /// The thread that touches files, and the one that looks at interpreters.
    pub(super) io: Waker,
    /// The thread that watches /dev/shm.
    pub(super) memory: Waker,
}

/// How long the agent of another node waits for a front that is silent before it has started anything.
const UNSTARTED: Duration = Duration::from_secs(90);

impl Loop {
    pub(super) fn new(
        hands: Hands,
        signals: SignalFd,
        wakers: Wakers,
        io: IoThread,
        places: Places,
        runtime: RuntimeDir,
        limits: Limits,
    ) -> Loop {
        let patience = hands.is_away.then_some(UNSTARTED);
        Loop {
            hands,
            signals,
            wakers,
            io,
            places,
            runtime,
            limits,
            teams: Teams::default(),
            link: None,
            patience,
            front: FrontWatch::default(),
            end: false,
            guard_lost: false,
        }
    }

    /// Runs to the end, and then ends this process.
    pub(super) fn run(mut self, link: Link) -> io::Result<()> {
        self.link = Some(link);
        let mut ready: Vec<Ready> = Vec::new();
        loop {
            self.hands.lease.renew();
            self.flush();
            if self.is_done() {
                break;
            }
            let timeout = self.timeout();
            self.hands.poller.wait(Some(timeout), &mut ready)?;
            self.front.turn(self.hands.clock.now());
            self.hands.children.turn();
            for &event in &ready {
                self.hands.lease.renew();
                self.dispatch(event)?;
            }
            if !self.hands.clock.is_paused() {
                let now = self.hands.clock.now();
                let is_lost = self.front.look(now, self.patience.unwrap_or(Duration::MAX));
                if self.link.is_some() && is_lost {
                    self.lose_front(now);
                }
                self.hands.worker_socket.tick(now);
                self.with_store(now, |store, poller| store.tick(now, poller));
                self.teams.tick(&mut self.hands, now);
            }
        }
        self.tidy();
        // The kernel closes and frees faster than our destructors.
        fork::exit_now(ExitCode::SUCCESS.0)
    }

    fn is_done(&self) -> bool {
        match &self.link {
            // Only the front knows whether an attempt follows.
            Some(link) => self.end && !link.wants_write(),
            None => self.teams.is_over(&self.hands),
        }
    }

    /// When the front has been silent for too long.
    fn silent_until(&self) -> Option<Duration> {
        self.link.as_ref().and(self.patience).map(|patience| self.front.until(patience))
    }

    fn timeout(&self) -> Duration {
        let renewal = self.hands.lease.due_in();
        if self.hands.clock.is_paused() {
            return renewal;
        }
        let due = [
            self.teams.deadline(&self.hands),
            self.silent_until(),
            self.hands.worker_socket.deadline(),
            self.hands.torch_store.deadline(),
            self.hands.looker.deadline(),
            self.hands.meter.deadline(),
            self.hands.profiler.deadline(),
            self.hands.fork_servers.deadline(),
        ];
        let due = due.into_iter().flatten().min();
        due.map_or(renewal, |due| due.saturating_sub(self.hands.clock.now()).min(renewal))
    }

    fn dispatch(&mut self, event: Ready) -> io::Result<()> {
        if !self.hands.poller.is_current(event) {
            // Its descriptor was closed in this turn, and another one may have its number by now.
            return Ok(());
        }
        let now = self.hands.clock.now();
        let Some(token) = Token::decode(event.token) else { return Ok(()) };
        match token {
            Token::Front => {
                if event.readable {
                    self.receive(now);
                }
                return Ok(());
            }
            Token::Lease => {
                self.lose_guard(now);
                return Ok(());
            }
            Token::Signals => {
                while let Some((number, _)) = self.signals.next() {
                    match number {
                        signal::SIGCHLD => {}
                        watched::TOLD => self.hands.site.memory_told(),
                        FRONT_LIVES => self.front_is_alive(now),
                        signal => self.hands.outbox.push(ToFront::Event(AgentEvent::ToldToEnd { signal })),
                    }
                }
            }
            Token::Spawner => self.wakers.spawner.clear(),
            Token::Io => {
                self.wakers.io.clear();
                while let Some(done) = self.io.next_result() {
                    self.teams.io_done(done);
                }
                self.teams.looks_answered(&mut self.hands);
                return Ok(());
            }
            Token::Memory => self.wakers.memory.clear(),
            Token::TorchStore => {
                self.hands.torch_store.accept(now, &self.hands.poller);
                return Ok(());
            }
            Token::TorchClient(client) => {
                self.with_store(now, |store, poller| store.ready(client, event, poller));
                return Ok(());
            }
            Token::Output(..)
            | Token::Pmi(_)
            | Token::Stdin(_)
            | Token::Boundary(_)
            | Token::WorkerSocket
            | Token::WorkerClient(_)
            | Token::KernelLog
            | Token::Pmix
            | Token::PmixHost
            | Token::PmixErrors
            | Token::Looker
            | Token::Meter
            | Token::Sampler
            | Token::ForkServer(_)
            | Token::ForkServerOutput(..) => {}
        }
        self.teams.ready(&mut self.hands, now, token, event);
        Ok(())
    }

    /// Serves clients of torch's store.
    fn with_store(&mut self, now: Duration, serve: impl FnOnce(&mut TorchStore, &Poller)) {
        let before = self.hands.torch_store.changes();
        serve(&mut self.hands.torch_store, &self.hands.poller);
        if self.hands.torch_store.changes() != before {
            self.hands.traffic = Some(now);
        }
        let notes = self.hands.torch_store.take_notes();
        self.hands.outbox.extend(notes.into_iter().map(ToFront::Note));
    }

    /// The front was heard, over its connection or over a fresh one.
    fn front_is_alive(&mut self, now: Duration) {
        self.hands.lease.front_is_alive();
        self.front.heard(now);
    }

    fn receive(&mut self, now: Duration) {
        if self.link.is_none() {
            return;
        }
        let Some(link) = &mut self.link else { return };
        let mut messages = Vec::new();
        let alive = link.receive(&mut messages);
        // The end of the connection is no sign of life: this node's kernel may have ended it.
        if matches!(alive, Ok(true)) {
            self.front_is_alive(now);
        }
        for message in messages {
            self.handle_command(now, message);
        }
        match alive {
            Ok(true) => {}
            Ok(false) => self.lose_front(now),
            Err(error) => {
                report(&error);
                self.lose_front(now);
            }
        }
    }

    fn handle_command(&mut self, now: Duration, message: ToAgent) {
        match message {
            ToAgent::Hello(hello) => {
                if hello.version != rankrun_wire::VERSION {
                    let text = format!("the agent is rankrun {}", Hello::ours().release);
                    self.hands.outbox.push(ToFront::Note(text));
                    self.end = true;
                }
            }
            ToAgent::Start(start) => self.start(now, *start),
            ToAgent::Prepare(start) => self.prepare(now, *start),
            ToAgent::Beat { sent } => {
                // Not `now`, which is before it was read: the front takes it that this is after the beat was sent.
                let at = self.hands.clock.now();
                self.hands.outbox.push(ToFront::Event(AgentEvent::Beat { sent, at }));
            }
            ToAgent::Order(order) => {
                if let Order::Again(_) = order {
                    self.restore_directory();
                }
                self.teams.handle_order(&mut self.hands, now, order);
            }
            ToAgent::Pause => {
                self.hands.clock.pause();
                self.freeze(true);
                self.hands.outbox.push(ToFront::Paused);
            }
            ToAgent::Resume => {
                self.hands.clock.resume();
                self.front.heard(self.hands.clock.now());
                self.freeze(false);
            }
            ToAgent::Credit { stream, bytes } => {
                if let Some(link) = &mut self.link {
                    link.grant(stream, bytes);
                }
            }
            ToAgent::ResultsTaken(cost) => self.hands.worker_socket.results_taken(cost, &self.hands.poller),
            ToAgent::End => self.end = true,
            ToAgent::LeaveStreams => self.hands.inherited.leave(),
            ToAgent::Signal(signal) => self.teams.all().for_each(|team| team.signal_all(&mut self.hands, signal)),
            ToAgent::Window(rows, columns) => {
                self.teams.all().for_each(|team| team.resize(&mut self.hands, (rows, columns)));
            }
            ToAgent::Collective(done) => self.teams.collective_done(&mut self.hands, now, done),
            ToAgent::Stdin { group, bytes } => self.with_team(group, |team, hands| team.stdin_bytes(hands, bytes)),
            ToAgent::Reply { group, protocol, id, reply } => {
                self.teams.name_answered(&mut self.hands, now, group, protocol, id, reply);
            }
            ToAgent::Fetch { by, id, of } => {
                self.teams.pmix_sought(&mut self.hands, now, by, id, of);
            }
            ToAgent::Spawned { asker, answer } => {
                self.teams.spawn_answered(&mut self.hands, now, asker, &answer);
            }
            ToAgent::ToStore { from, parcel } => self.with_store(now, |store, poller| {
                store.parcel_of_node(from, parcel, poller);
            }),
            ToAgent::FromStore(parcel) => {
                // What the store tells is the traffic of its own node.
                self.hands.torch_store.parcel_of_store(parcel, &self.hands.poller);
            }
            ToAgent::Group(map) => self.teams.group_elsewhere(&mut self.hands, now, &map),
            ToAgent::Fetched { group: _, id, data } => self.teams.pmix_fetched(&mut self.hands, now, id, data),
        }
    }

    /// Runs `action` on the team of a group. Before `Start` there is none.
    fn with_team(&mut self, group: GroupId, action: impl FnOnce(&mut Team, &mut Hands)) {
        self.teams.on(group, |team| action(team, &mut self.hands));
    }

    /// An attempt may have ranks on this node later.
    fn prepare(&mut self, now: Duration, start: NodeStart) {
        if let Some(mask) = start.umask {
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask));
        }
        let mut limits = self.limits;
        // A warning comes with the start.
        adopt(&start.limits, &mut limits);
        self.hands.prepare_servers(now, start, self.runtime.path(), limits);
    }

    /// Starts an attempt. Nothing is left of the one before it: the front has been told so.
    fn start(&mut self, now: Duration, start: NodeStart) {
        if self.guard_lost {
            // The front has been told. Nothing would prove that nothing is left of another attempt.
            self.end = true;
            return;
        }
        self.teams.make_way(&mut self.hands, now, &start.spec);
        self.patience = start.patience;
        if let Some(mask) = start.umask {
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask));
        }
        if start.spec.attempt.0 > 0 {
            self.restore_directory();
        }
        let mut limits = self.limits;
        let warning = adopt(&start.limits, &mut limits);
        self.hands.outbox.extend(warning.filter(|_| start.spec.attempt.0 == 0).map(ToFront::Note));
        // Before the first rank: the guard may lose us any time from here on.
        self.hands.lease.begin(start.spec.attempt, start.spec.clean_shm);
        if let Err(error) = self.teams.start(&mut self.hands, now, start, self.runtime.path(), limits) {
            let (what, source) = (error.to_string(), error.source.to_string());
            self.hands.outbox.push(ToFront::Event(AgentEvent::Refused { what, source }));
            self.end = true;
        }
    }

    /// Makes again what the ranks before have removed of the job's directory, with a note: without it the next ones could not report.
    fn restore_directory(&mut self) {
        let directory = format!("the job's directory \"{}\"", self.runtime.path().display());
        let restored = self.runtime.restore().map_err(|error| {
            let reason = rankrun_sys::reason(&error);
            format!("a process has removed {directory}, and it cannot be made again: {reason}")
        });
        let restored = restored.and_then(|is_new| {
            let missing = self.hands.worker_socket.restore(&self.hands.poller)?;
            Ok(match (is_new, missing.is_empty()) {
                (true, _) => Some(format!("a process has removed {directory}: it was made again")),
                (false, false) => Some(format!("a process has changed {directory}: {} made again", were(&missing))),
                (false, true) => None,
            })
        });
        let note = restored.unwrap_or_else(Some);
        let of_hook = self.hands.worker_socket.restore_hook(self.runtime.path());
        self.hands.outbox.extend(note.into_iter().chain(of_hook).map(ToFront::Note));
    }

    fn freeze(&mut self, frozen: bool) {
        self.teams.all().for_each(|team| team.freeze(&mut self.hands, frozen));
    }

    fn lose_guard(&mut self, now: Duration) {
        // The poller would report the end of the lease again and again while it is in the set.
        let _ = self.hands.poller.remove(&self.hands.lease);
        self.guard_lost = true;
        self.hands.outbox.push(ToFront::GuardLost);
        self.stop(now, StopWhy::GuardLost, None);
    }

    /// The front is lost: end the workers, then the agent.
    fn lose_front(&mut self, now: Duration) {
        self.link = None;
        self.hands.clock.resume();
        self.freeze(false);
        if self.end {
            return;
        }
        self.teams.all().for_each(|team| team.drop_output(&mut self.hands));
        self.hands.worker_socket.drop_results(&self.hands.poller);
        let is_late = self.patience.is_some_and(|patience| self.front.may_be_given_up(now, patience));
        let grace = is_late.then_some(Duration::ZERO);
        self.stop(now, StopWhy::FrontLost, grace);
    }

    /// `grace` is that after a failure, if it is not another.
    fn stop(&mut self, now: Duration, why: StopWhy, grace: Option<Duration>) {
        for team in self.teams.all() {
            let grace = grace.unwrap_or(team.grace());
            team.order(&mut self.hands, now, Event::Stop(Stop { why, grace }));
        }
    }

    /// Sends the pending messages.
    fn flush(&mut self) {
        self.hands.torch_store.parcels(&mut self.hands.outbox);
        let result = match &mut self.link {
            Some(link) => self.teams.send(&mut self.hands, link),
            None => {
                self.hands.outbox.clear();
                Ok(())
            }
        };
        if let Err(error) = result {
            report(&error);
            let now = self.hands.clock.now();
            self.lose_front(now);
        }
        self.teams.start_io(&mut self.io, self.hands.clock.now());
    }

    /// Removes what the job has on this node besides processes, as long as the lock on its directory says that it lives: `rankrun clean` may
    /// come at any time. The guard does the same after us, if it is alive, and the front if that is lost.
    fn tidy(&mut self) {
        self.hands.end_servers();
        for pid in self.hands.children.reading() {
            self.hands.lease.send(Word::Reader { pid });
        }
        if self.teams.has_released(&self.hands) {
            self.hands.lease.send(Word::Leave);
            // Released processes have been moved out of the job's cgroup.
            if let Some(cgroup) =
                self.hands.children.boundary().cgroup().and_then(|cgroup| GuardedCgroup::open(cgroup.path()).ok())
            {
                cgroup.remove();
            }
            self.places.remove();
        } else {
            let cgroup = self.hands.children.boundary().cgroup().map(JobCgroup::path);
            // Without a front nobody would do it if the guard is killed just now.
            if self.guard_lost || self.link.is_none() {
                end_helpers(cgroup, &self.places);
            }
            // Shared memory has been looked for, or the guard does it.
            remove(cgroup, &self.places);
        }
        if self.link.is_none() && !self.guard_lost {
            // A stopped guard would stay for ever: no front is left to end it. It is our parent, or gone.
            let _ = process::signal_parent(signal::SIGCONT);
        }
    }
}

/// "a was", "a and b were".
fn were(names: &[&str]) -> String {
    let verb = if names.len() == 1 { "was" } else { "were" };
    format!("{} {verb}", names.join(" and "))
}

/// The front can no longer receive it. The agent's stderr is the front's.
fn report(error: &LinkError) {
    use std::io::Write;
    if !matches!(error, LinkError::Wire(rankrun_wire::LinkError::Io(_))) {
        // There is nowhere left to report that stderr failed.
        let _ = writeln!(std::io::stderr(), "rankrun: agent: {error}");
    }
}
