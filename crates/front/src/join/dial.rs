//! Connects a node to the front, and tries again until it is admitted, is refused, or has waited long enough.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rankrun_sys::errand::Lookup;
use rankrun_sys::poll::{Interest, Poller, Ready};
use rankrun_sys::signal::{self, SignalFd};
use rankrun_wire::Carrier;
use rankrun_wire::identity::{Accepted, JoinError, Node, Purpose};

use super::call::{Call, Failed, Trouble};
use super::settings::FrontAddress;

/// One try may take this long: the connection, and the enrolment.
pub(super) const TRY_BOUND: Duration = Duration::from_secs(10);
/// The wait after the first try that failed. It doubles up to the longest: all nodes of a job start at the same time.
pub(super) const FIRST_WAIT: Duration = Duration::from_millis(20);
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Nothing is said about tries that fail before: the nodes of a job start one after the other.
const QUIET: Duration = Duration::from_secs(2);
/// For so long nobody listens where node 0 was: it has ended.
pub(super) const GONE_AFTER: Duration = Duration::from_secs(2);

const SIGNALS: u64 = 0;
const FRONT: u64 = 1;

/// Why a node does not reach the front.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("cannot reach node 0 at {at} within {} s: {why}", bound.as_secs())]
    TimedOut { at: FrontAddress, bound: Duration, why: String },
    #[error("node 0 at {at}: {source}")]
    Denied { at: FrontAddress, source: JoinError },
    #[error("node 0 at {at} has ended: Connection refused")]
    Gone { at: FrontAddress },
    #[error("interrupted")]
    Signal(i32),
    #[error("cannot connect")]
    Io(#[from] io::Error),
}

/// What a try comes to.
enum Tried {
    Accepted(Box<(Accepted, Option<Carrier>)>),
    Denied(JoinError),
    Signal(i32),
}

/// What the resolver says.
enum Found {
    Addresses(Vec<SocketAddr>),
    Signal(i32),
}

/// What connects.
pub(crate) struct Dialer<'a> {
    pub(crate) at: &'a FrontAddress,
    pub(crate) signals: &'a SignalFd,
    /// Under which the connection is polled afterwards.
    pub(crate) poller: &'a Poller,
    pub(crate) token: u64,
    /// Where the front was reached before: the resolver is not asked again.
    pub(crate) known: Option<SocketAddr>,
    /// A node that has ended waits for the end of the job, however long that takes.
    pub(crate) awaits_end: bool,
    /// For how long nobody may listen where the front was, until it counts as ended.
    pub(crate) gone_after: Duration,
    /// Is told why a try has failed, when that is another reason than before.
    pub(crate) note: &'a mut dyn FnMut(&str),
}

impl Dialer<'_> {
    /// Connects as this node, for so long at most. The connection comes with an admission only.
    pub(crate) fn dial(
        &mut self,
        node: &mut Node,
        purpose: Purpose,
        bound: Duration,
    ) -> Result<(Accepted, Option<Carrier>), DialError> {
        let began = Instant::now();
        let mut until = began + bound;
        let mut noted = String::new();
        let mut wait = FIRST_WAIT;
        let mut last = String::new();
        let mut refused_since = None;
        // It has listened there.
        let mut was_there = purpose != Purpose::Join;
        loop {
            match self.try_once(node, &purpose, until) {
                Ok(Tried::Accepted(accepted)) => return Ok(*accepted),
                Ok(Tried::Denied(source)) => return Err(DialError::Denied { at: self.at.clone(), source }),
                Ok(Tried::Signal(signal)) => return Err(DialError::Signal(signal)),
                // The last try is cut short: the reason of the one before says more.
                Err(_) if !last.is_empty() && Instant::now() >= until => {}
                Err(Failed { why, is_refused, was_answered }) => {
                    was_there |= was_answered;
                    if was_answered && purpose != Purpose::Join {
                        // It has waited for the end of the job, however long that took.
                        until = Instant::now() + bound;
                    }
                    last = why;
                    refused_since = is_refused.then(|| refused_since.unwrap_or_else(Instant::now));
                    let is_gone = refused_since.is_some_and(|since: Instant| since.elapsed() >= self.gone_after);
                    if is_gone && was_there {
                        // It does not start again.
                        return Err(DialError::Gone { at: self.at.clone() });
                    }
                }
            }
            if last != noted && began.elapsed() >= QUIET {
                (self.note)(&last);
                noted.clone_from(&last);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(DialError::TimedOut { at: self.at.clone(), bound, why: last });
            }
            if let Some(signal) = self.rest(wait.min(left))? {
                return Err(DialError::Signal(signal));
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Waits for this time, or for a signal.
    fn rest(&self, time: Duration) -> io::Result<Option<i32>> {
        let mut poller = Poller::new()?;
        poller.add(self.signals, SIGNALS, Interest::Read)?;
        poller.wait(Some(time), &mut Vec::new())?;
        Ok(asked_to_end(self.signals))
    }

    fn try_once(&mut self, node: &mut Node, purpose: &Purpose, until: Instant) -> Result<Tried, Failed> {
        let addresses = match self.look_up(until)? {
            Found::Addresses(addresses) => addresses,
            Found::Signal(signal) => return Ok(Tried::Signal(signal)),
        };
        let mut last = Failed::new(format!("{} has no address", self.at.host));
        for address in addresses {
            match self.try_address(node, purpose, address, until) {
                Err(failed) => last = failed,
                tried => {
                    self.known = Some(address);
                    return tried;
                }
            }
        }
        Err(last)
    }

    /// Where the front may be. Signals are heard meanwhile.
    fn look_up(&self, until: Instant) -> Result<Found, Failed> {
        let given = self.at.host.parse::<IpAddr>().ok().map(|address| SocketAddr::new(address, self.at.port));
        if let Some(address) = self.known.or(given) {
            return Ok(Found::Addresses(vec![address]));
        }
        let until = until.min(Instant::now() + TRY_BOUND);
        let mut lookup = Lookup::start(&self.at.host, self.at.port)?;
        let mut poller = Poller::new()?;
        poller.add(self.signals, SIGNALS, Interest::Read)?;
        poller.add(&lookup, FRONT, Interest::Read)?;
        let mut ready = Vec::new();
        loop {
            match lookup.result() {
                Some(Ok(addresses)) => return Ok(Found::Addresses(addresses)),
                Some(Err(why)) => return Err(Failed::new(why)),
                None => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failed::new(format!("the resolver does not answer for {}", self.at.host)));
            }
            poller.wait(Some(left), &mut ready)?;
            if let Some(signal) = asked_to_end(self.signals) {
                return Ok(Found::Signal(signal));
            }
        }
    }

    fn try_address(
        &self,
        node: &mut Node,
        purpose: &Purpose,
        address: SocketAddr,
        until: Instant,
    ) -> Result<Tried, Failed> {
        let until = until.min(Instant::now() + TRY_BOUND);
        let mut poller = Poller::new()?;
        poller.add(self.signals, SIGNALS, Interest::Read)?;
        let mut call = Call::begin(poller.registry(), FRONT, purpose.clone(), address)?;
        let mut ready = Vec::new();
        loop {
            // The front has its own limit for what comes before the claim. The answer to a node that has ended comes at the end
            // of the job.
            let is_bounded = *purpose == Purpose::Join || !call.has_claimed() || !self.awaits_end;
            let bound = is_bounded.then_some(until);
            if let Some(signal) = self.wait(&mut poller, bound, &mut ready)? {
                return Ok(Tried::Signal(signal));
            }
            if !ready.iter().any(|ready| ready.token == FRONT) {
                continue;
            }
            match call.ready(node) {
                Ok(None) => {}
                Ok(Some(Accepted::Admitted(admission))) => {
                    let carrier = call.admitted(node, &admission, &self.poller.registry(), self.token)?;
                    return Ok(Tried::Accepted(Box::new((Accepted::Admitted(admission), Some(carrier)))));
                }
                Ok(Some(accepted)) => return Ok(Tried::Accepted(Box::new((accepted, None)))),
                Err(Trouble::Denied(error)) => return Ok(Tried::Denied(error)),
                Err(Trouble::Failed(failed)) => {
                    // A node that has ended has waited for the end of the job.
                    let was_answered = failed.was_answered || (*purpose != Purpose::Join && call.has_claimed());
                    return Err(Failed { was_answered, ..failed });
                }
            }
        }
    }

    /// Waits for the front. Returns a signal that has come meanwhile.
    fn wait(&self, poller: &mut Poller, until: Option<Instant>, ready: &mut Vec<Ready>) -> Result<Option<i32>, Failed> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Failed::new("it does not answer"));
        }
        poller.wait(left, ready)?;
        Ok(asked_to_end(self.signals))
    }
}

/// A signal that ends this node. Children are somebody else's business.
pub(super) fn asked_to_end(signals: &SignalFd) -> Option<i32> {
    std::iter::from_fn(|| signals.next()).map(|(signal, _)| signal).find(|signal| *signal != signal::SIGCHLD)
}
