//! The relay: what the front starts on another node. It starts guard and agent there as the front does on its own machine, and
//! moves bytes between the front and the agent.
//!
//! It ends with the guard's exit code, which is thereby known to the front: 0 if nothing of the job is left on the node.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::time::Duration;

use rankrun_core::contact::ANSWER_BOUND;
use rankrun_core::{ExitCode, JobId};
use rankrun_sys::fork;
use rankrun_sys::poll::{Interest, Poller, Ready};
use rankrun_sys::reactor::Conn;
use rankrun_sys::signal::{self, SignalFd};
use rankrun_wire::Transport;
use rankrun_wire::greeting::{Farewell, Greeting};
use rankrun_wire::pipe::Pipe;

use super::door::{self, Door};
use super::held::{Held, Holder};
use crate::driver::{Options, Terms};
use crate::guard::{Launched, launch};
use crate::staff::{self, FRONT_IS_GONE, FRONT_LIVES, Role};
use crate::streams::null;
use crate::tidy::Places;

/// Runs the relay on stdin and stdout, which lead to the front. The calling process must have one thread. `marker` comes before
/// all that the relay writes: what a login shell prints before it is not ours.
///
/// Returns the exit code. It is written to stderr too: sshd waits for everybody who holds the session's pipes, such as what a
/// startup file has left in the background, and so may ssh when the relay has ended.
pub fn relay(RelayCall { job, marker, options, keep }: RelayCall) -> u8 {
    if keep.is_some()
        && let Some(code) = door::try_again(&job, &marker)
    {
        // A front that was killed had called it before us.
        return code;
    }
    match run(&job, &marker, options, keep) {
        Ok((farewell, door)) => {
            // If nobody reads it, the exit code tells.
            let _ = io::stderr().write_all(rankrun_wire::greeting::farewell(&marker, &farewell).as_bytes());
            if let Some(door) = door {
                door.close(farewell.code);
            }
            farewell.code
        }
        Err(error) => {
            // The front reads it, and says it.
            let _ = writeln!(io::stderr(), "rankrun: relay: {}", rankrun_sys::reason(&error));
            ExitCode::INTERNAL.0
        }
    }
}

fn run(job: &JobId, marker: &str, options: Options, keep: Option<Duration>) -> io::Result<(Farewell, Option<Door>)> {
    for ignored in [signal::SIGINT, signal::SIGTERM, signal::SIGHUP, signal::SIGQUIT, signal::SIGPIPE] {
        signal::ignore(ignored);
    }
    if keep.is_some() {
        // It outlives the front.
        fork::end_with_parent(fork::parent_pid(), 0)?;
    }
    Role::Relay.take_name(job);
    fork::become_subreaper()?;
    let signals = SignalFd::new(&[signal::SIGCHLD, FRONT_IS_GONE])?;
    let lasts = keep.is_some();
    let launched = launch(job, options, Terms::default())?;
    let (mut held, door) = launched.hand_over(|launched| hold(launched, (job, marker), signals, keep))?;
    // There is something to go on with as long as we live: on the front's own machine the directory of the job says so.
    let whole = job.0.rsplit_once("-n").filter(|_| lasts).map(|(whole, _)| JobId(whole.to_owned()));
    let _lock = whole.and_then(|whole| Places::of(&whole).adopt().ok());
    let mut relay = Relay { door };
    let (code, memory) = held.run(&mut relay)?;
    Ok((Farewell { code: code.0, lapse: held.keeper.lapse(), memory }, relay.door))
}

/// Connects the agent with the front, which is greeted. `keep`: how long the stream outlives its connections, and another front may come.
fn hold(
    launched: Launched,
    (job, marker): (&JobId, &str),
    signals: SignalFd,
    keep: Option<Duration>,
) -> io::Result<(Held, Option<Door>)> {
    let greeting = Greeting::ours(launched.session, &ssh_connection());
    // Whoever reads what we write must see its end when we close it.
    let (reader, writer) =
        (rustix::stdio::stdin().try_clone_to_owned()?, rustix::stdio::stdout().try_clone_to_owned()?);
    let null = null()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    let poller = Poller::new()?;
    let mut conn = Conn::of_pair(&poller.registry(), Held::FRONT, reader, writer)?;
    let line = greeting.line(marker);
    let Some(keep) = keep else {
        conn.send([line.into()])?;
        return Ok((Held::new(launched, poller, signals, conn.into())?, None));
    };
    // Once a front has read the greeting, the next one may call.
    let mut front = Transport::lasting(Pipe::new(greeting.session.get()));
    let door = Door::open(&poller, job, marker, greeting, keep)?;
    conn.send([line.into()])?;
    front.connect(conn, Vec::new())?;
    Ok((Held::new(launched, poller, signals, front)?, Some(door)))
}

fn ssh_connection() -> String {
    std::env::var("SSH_CONNECTION").unwrap_or_default()
}

/// Our exit code comes to the front behind the stream, over the same connection.
struct Relay {
    /// Where another front may come in, if this one is gone.
    door: Option<Door>,
}

impl Holder for Relay {
    fn signal(&mut self, held: &mut Held, number: i32) {
        if number == FRONT_IS_GONE {
            held.lose_front();
        }
    }

    fn ready(&mut self, held: &mut Held, event: Ready) {
        if let Some(door) = &mut self.door {
            door.ready(held, event);
        }
    }

    fn waits_for_front(&self) -> Duration {
        self.door.as_ref().map_or(Duration::ZERO, |door| door.keep)
    }
}

/// The word after [`rankrun_core::Purpose::Relay`] by which it asks whether anything is left of a job whose connection is lost.
pub const PROVE: &str = "prove";

/// The word after [`rankrun_core::Purpose::Relay`] by which it asks whether the agent of a job runs, whose connection is silent.
pub const ALIVE: &str = "alive";

/// What a relay is called with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RelayCall {
    /// The job, with what tells this node from others on one machine.
    pub job: JobId,
    pub marker: String,
    /// The settings of the agent.
    pub options: Options,
    /// How long the ranks go on without a front: another one may take its place. `None`: they end with it.
    pub keep: Option<Duration>,
}

impl RelayCall {
    /// The words that follow [`rankrun_core::Purpose::Relay`].
    pub fn words(&self) -> [String; 5] {
        let RelayCall { job, marker, options, keep } = self;
        let containment = options.containment.clone().unwrap_or_else(|| "-".to_owned());
        let keep = keep.map_or_else(|| "-".to_owned(), |keep| keep.as_millis().to_string());
        [job.0.clone(), marker.clone(), containment, options.patience.as_millis().to_string(), keep]
    }

    /// `None`: nobody but a front of this version calls it so.
    pub fn of_words(words: &[OsString]) -> Option<RelayCall> {
        let [job, marker, containment, patience, keep] = words else { return None };
        let text = |word: &OsString| word.to_str().map(str::to_owned);
        let time = |word: &OsString| Some(Duration::from_millis(text(word)?.parse().ok()?));
        let containment = text(containment)?;
        let options = Options {
            containment: (containment != "-").then_some(containment),
            is_away: true,
            patience: time(patience)?,
        };
        let keep = if keep == "-" { None } else { Some(time(keep)?) };
        Some(RelayCall { job: JobId(text(job)?), marker: text(marker)?, options, keep })
    }
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
    poller.add(io::stdin(), 0, Interest::Read)?;
    poller.wait(Some(ANSWER_BOUND), &mut ready)?;
    Ok(!ready.is_empty() && io::stdin().read(&mut [0])? > 0)
}
