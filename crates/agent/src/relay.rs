//! The relay: what the front starts on another node. It starts guard and agent there as the front does on its own machine, and
//! moves bytes between the front and the agent.
//!
//! It ends with the guard's exit code, which is thereby known to the front: 0 if nothing of the job is left on the node. When
//! the front is gone the agent sees the end of the stream, and ends its workers; the relay waits until that is done.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use bytes::Bytes;
use rankrun_core::contact::ANSWER_BOUND;
use rankrun_core::{ExitCode, JobId};
use rankrun_sys::fork;
use rankrun_sys::poll::{Interest, Poller, Ready};
use rankrun_sys::reactor::{Conn, Incoming};
use rankrun_sys::signal::{self, SignalFd};
use rankrun_wire::greeting::{Farewell, Greeting};

use crate::driver::{Clock, Options};
use crate::guard::{GuardState, Keeper, LOOK_STEP, LastKnown, Launched, Proof, launch};
use crate::staff::{self, FRONT_IS_GONE, FRONT_LIVES, Role};
use crate::streams::null;

/// Bytes moved at a time.
const READ: usize = 256 * 1024;
/// How long the guard may take to end after the agent.
const GUARD_BOUND: Duration = Duration::from_secs(15);

const FRONT: u64 = 0;
const AGENT: u64 = 1;
const SIGNALS: u64 = 2;

/// Runs the relay on stdin and stdout, which lead to the front. The calling process must have one thread. `marker` comes before
/// all that the relay writes: what a login shell prints before it is not ours.
///
/// Returns the exit code. It is written to stderr too: sshd waits for everybody who holds the session's pipes, such as what a
/// startup file has left in the background, and so may ssh when the relay has ended.
pub fn relay(job: &JobId, marker: &str, options: Options) -> u8 {
    match run(job, marker, options) {
        Ok(farewell) => {
            // If nobody reads it, the exit code tells.
            let _ = io::stderr().write_all(rankrun_wire::greeting::farewell(marker, &farewell).as_bytes());
            farewell.code
        }
        Err(error) => {
            // The front reads it, and says it.
            let _ = writeln!(io::stderr(), "rankrun: relay: {}", rankrun_sys::reason(&error));
            ExitCode::INTERNAL.0
        }
    }
}

fn run(job: &JobId, marker: &str, options: Options) -> io::Result<Farewell> {
    for ignored in [signal::SIGINT, signal::SIGTERM, signal::SIGHUP, signal::SIGQUIT, signal::SIGPIPE] {
        signal::ignore(ignored);
    }
    Role::Relay.take_name(job);
    fork::become_subreaper()?;
    let signals = SignalFd::new(&[signal::SIGCHLD, FRONT_IS_GONE])?;
    let launched = launch(job, options)?;
    let connection = std::env::var_os("SSH_CONNECTION");
    let greeting = Greeting::ours(launched.session, connection.as_ref().and_then(|it| it.to_str()).unwrap_or_default());
    // Whoever reads what we write must see its end when we close it.
    let (reader, writer) =
        (rustix::stdio::stdin().try_clone_to_owned()?, rustix::stdio::stdout().try_clone_to_owned()?);
    let null = null()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    let mut relay = Relay::new(launched, signals, reader, writer)?;
    relay.send_to_front(greeting.line(marker).into());
    relay.run_to_end()
}

struct Relay {
    clock: Clock,
    poller: Poller,
    signals: SignalFd,
    keeper: Keeper,
    /// `None` once it is gone.
    front: Option<Conn>,
    agent: Option<Conn>,
    /// The front went first: the agent still ends its workers, and the guard outlives it.
    is_orphan: bool,
}

impl Relay {
    fn new(launched: Launched, signals: SignalFd, reader: OwnedFd, writer: OwnedFd) -> io::Result<Relay> {
        let poller = Poller::new()?;
        let stream = launched.stream.as_fd().try_clone_to_owned()?;
        let keeper = Keeper::new(launched);
        let front = Some(Conn::of_pair(&poller.registry(), FRONT, reader, writer)?);
        let agent = Some(Conn::of_socket(&poller.registry(), AGENT, stream)?);
        poller.add(&signals, SIGNALS, Interest::Read)?;
        Ok(Relay { clock: Clock::default(), poller, signals, keeper, front, agent, is_orphan: false })
    }

    fn send_to_front(&mut self, bytes: Bytes) {
        if let Some(front) = &mut self.front
            && front.send([bytes]).is_err()
        {
            self.lose_front();
        }
    }

    /// The agent sees the end of the stream, and ends its workers.
    fn lose_front(&mut self) {
        self.is_orphan |= self.agent.is_some();
        (self.front, self.agent) = (None, None);
    }

    fn run_to_end(mut self) -> io::Result<Farewell> {
        let mut ready: Vec<Ready> = Vec::new();
        let mut ended_at = None;
        loop {
            let now = self.clock.now();
            if self.agent.is_none() {
                // The front is to see the end at once, and our exit code later.
                self.front.take_if(|front| front.unsent() == 0);
                let is_late = now.saturating_sub(*ended_at.get_or_insert(now)) > GUARD_BOUND && !self.is_orphan;
                if (self.keeper.state != GuardState::Alive && self.front.is_none()) || is_late {
                    break;
                }
            }
            let due = self.keeper.watch.deadline().map(|due| due.saturating_sub(now));
            let step = self.agent.is_none().then_some(LOOK_STEP);
            self.poller.wait([due, step].into_iter().flatten().min(), &mut ready)?;
            for &event in &ready {
                if self.poller.is_current(event) {
                    self.dispatch(event);
                }
            }
            self.look_after(self.clock.now());
        }
        let Proof { is_empty, memory } = self.keeper.prove(LastKnown::unknown(), &[]);
        let code = if is_empty { ExitCode::SUCCESS } else { ExitCode::LEFT_BEHIND };
        Ok(Farewell { code: code.0, lapse: self.keeper.lapse(), memory })
    }

    fn dispatch(&mut self, event: Ready) {
        match event.token {
            FRONT => self.turn(event, true),
            AGENT => self.turn(event, false),
            _ => {
                while let Some((number, _)) = self.signals.next() {
                    if number == FRONT_IS_GONE {
                        self.lose_front();
                    }
                }
                let now = self.clock.now();
                self.keeper.children_changed(now, self.agent.is_some());
            }
        }
    }

    /// Moves what one side has sent.
    fn turn(&mut self, event: Ready, is_of_front: bool) {
        let (from, to) = match is_of_front {
            true => (&mut self.front, &mut self.agent),
            false => (&mut self.agent, &mut self.front),
        };
        let Some(side) = from else { return };
        let mut is_lost = event.writable && side.flush().is_err();
        if event.readable {
            let mut room = vec![0; READ];
            match side.read(&mut room) {
                Ok(Incoming::Bytes(count)) => {
                    room.truncate(count);
                    if let Some(to) = to {
                        // If it is gone, its own end says so.
                        let _ = to.send([Bytes::from(room)]);
                    }
                }
                Ok(Incoming::Nothing) => {}
                Ok(Incoming::End) | Err(_) => is_lost = true,
            }
        }
        match (is_lost, is_of_front) {
            (true, true) => self.lose_front(),
            (true, false) => self.agent = None,
            (false, _) => {}
        }
    }

    /// Gives up guard and agent if they hang.
    fn look_after(&mut self, now: Duration) {
        if self.keeper.end_what_hangs(now, self.agent.is_some()) {
            self.agent = None;
        }
    }
}

/// The words by which the front calls it, after the name of the program.
pub const RELAY: &str = "relay";

/// The word after [`RELAY`] by which it asks whether anything is left of a job whose connection is lost.
pub const PROVE: &str = "prove";

/// The word after [`RELAY`] by which it asks whether the agent of a job runs, whose connection is silent.
pub const ALIVE: &str = "alive";

/// What a relay is called with: the job (with what tells this node from others on one machine), the marker, and the settings of
/// the agent. `None`: nobody but a front of this version calls it so.
pub fn relay_arguments(words: &[OsString]) -> Option<(JobId, String, Options)> {
    let [job, marker, containment, patience] = words else { return None };
    let text = |word: &OsString| word.to_str().map(str::to_owned);
    let containment = text(containment)?;
    let options = Options {
        lends_terminal: false,
        containment: (containment != "-").then_some(containment),
        is_away: true,
        patience: Duration::from_millis(text(patience)?.parse().ok()?),
    };
    Some((JobId(text(job)?), text(marker)?, options))
}

/// Answers a front over a fresh connection whether the agent of a job runs here, and lets the agent know that the front does. `words` are
/// the job and the marker. The exit code is 0 if the agent was told.
///
/// The front confirms the answer before the agent is told: a command that the network has kept may begin long after the front has given
/// up the node, and must not keep the ranks alive.
pub fn answer_alive(words: &[OsString]) -> ExitCode {
    let [job, marker] = words else { return ExitCode::USAGE };
    let (Some(job), Some(marker)) = (job.to_str(), marker.to_str()) else { return ExitCode::USAGE };
    signal::ignore(signal::SIGPIPE);
    let agent = staff::of(job).into_iter().find(|ours| ours.role == Role::Agent);
    let is_told = agent.is_some_and(|agent| {
        confirm(marker).is_ok_and(|is_confirmed| is_confirmed) && agent.process.signal(FRONT_LIVES).is_ok()
    });
    if is_told { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Answers, and waits until the front has confirmed that.
fn confirm(marker: &str) -> io::Result<bool> {
    // No session follows: nothing but the line matters.
    io::stdout().write_all(Greeting::ours(NonZeroU64::MIN, "").line(marker).as_bytes())?;
    io::stdout().flush()?;
    let (mut poller, mut ready) = (Poller::new()?, Vec::new());
    poller.add(io::stdin(), FRONT, Interest::Read)?;
    poller.wait(Some(ANSWER_BOUND), &mut ready)?;
    Ok(!ready.is_empty() && io::stdin().read(&mut [0])? > 0)
}
