//! The guard: the agent's parent, which outlives it and cleans up after it.
//!
//! It blocks every signal that can be blocked, holds no stream, and has another process name, so that `pkill rankrun`
//! does not kill it. Its exit code is 0 when nothing of the job is left, 123 otherwise.
//!
//! When the agent does not renew its lease, the guard checks its state ([`rankrun_core::lease`]): it ends an agent that is
//! stopped or stuck, and waits for one that only gets no CPU.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use rankrun_core::job::CleanShm;
use rankrun_core::lease::{self, Judge, TICK};
use rankrun_core::{Attempt, ExitCode, JobId};
use rankrun_sys::cgroup::GuardedCgroup;
use rankrun_sys::poll::{pause, wait_for};
use rankrun_sys::proc::ChildList;
use rankrun_sys::process::Child;
use rankrun_sys::signal::SignalFd;
use rankrun_sys::vitals::Vitals;
use rankrun_sys::wait::{self, Change, Look};
use rankrun_sys::{fork, process, signal};
use rankrun_wire::Memory;

use super::lease::{RECORD, Word};
use super::note::GuardNote;
use crate::staff::Role;
use crate::tidy::{Children, Holders, Places, Readers, Remains, Search, holders};

/// What the guard watches.
pub(crate) struct Guard {
    pub(crate) agent: Child,
    /// The guard's end of the lease.
    pub(crate) lease: OwnedFd,
    /// Where the job's cgroup will be, if the agent makes one.
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) places: Places,
    pub(crate) job: JobId,
    pub(crate) note: GuardNote,
    /// When the job was started on this node.
    pub(crate) since: SystemTime,
    /// How long the agent may do nothing at all.
    pub(crate) patience: Duration,
    /// The parent is a relay.
    pub(crate) is_away: bool,
}

/// What the agent has sent so far.
#[derive(Default)]
struct Received {
    renewed: bool,
    leave: bool,
    given_up: bool,
    /// The present attempt, and what becomes of its shared memory, once it has begun.
    attempt: Option<(Attempt, CleanShm)>,
    /// The agent has looked through /dev/shm after this attempt.
    has_looked: bool,
    /// The agent has ended by itself, and has done what it had to do.
    is_done: bool,
    /// What the job's processes held when the agent was lost.
    holders: Option<Holders>,
    /// The job's cgroup, opened when the agent has made it.
    cgroup: Option<GuardedCgroup>,
    readers: Readers,
    /// The agent's end is closed: it is exiting. SIGCHLD will report its exit.
    closed: bool,
}

impl Guard {
    /// Runs until the agent is gone and nothing of the job is left, and ends this process with the exit code.
    pub(crate) fn run(self) -> ! {
        let signals = self.detach();
        let signals_fd = signals.as_ref().map(|signals| signals.as_fd());
        let keep: Vec<BorrowedFd> = [self.lease.as_fd()].into_iter().chain(signals_fd).collect();
        fork::run_with_only(&keep, || self.outlive_agent(signals.as_ref()))
    }

    fn outlive_agent(&self, signals: Option<&SignalFd>) -> u8 {
        // The directory that we were started in must not be kept busy.
        let _ = rustix::process::chdir("/");
        // What allocates comes before the loss of the agent.
        let (children, places) = (ChildList::open(), self.places.clone());
        let received = self.watch(signals);
        if received.leave {
            self.places.remove();
            return ExitCode::SUCCESS.0;
        }
        // The agent may have been killed before it could report that it had made a cgroup.
        let cgroup = received.cgroup.or_else(|| self.open_cgroup());
        let mut remains = Remains { cgroup, children, places, search: None, readers: received.readers };
        let empty = if received.given_up { remains.end_given_up() } else { remains.end(&Children::All) };
        let has_looked = received.has_looked && received.is_done;
        if let Some((attempt, clean_shm)) = received.attempt.filter(|_| !has_looked) {
            let mut search = Search::new(&self.job, attempt, self.since, clean_shm);
            if let Some(holders) = received.holders {
                (search.held, search.used) = (holders.files(), holders.used());
            }
            remains.search = (clean_shm != CleanShm::No).then_some(search);
        }
        let found = remains.tidy();
        // Without an attempt there were no ranks, and nothing to look for.
        if let Some(memory) = found.or_else(|| received.attempt.is_none().then(Memory::default)) {
            self.note.leave_memory(&memory);
        }
        // The kernel closes them in a moment.
        std::mem::forget(remains);
        if self.is_away {
            // A relay that somebody has stopped would stay for ever: no front is left to end it.
            let _ = process::signal_parent(signal::SIGCONT);
        }
        if empty { ExitCode::SUCCESS.0 } else { ExitCode::LEFT_BEHIND.0 }
    }

    /// Makes this process hard to kill by accident, as the module describes. A failure here has no other effect.
    fn detach(&self) -> Option<SignalFd> {
        let _ = fork::new_session();
        Role::Guard.take_name(&self.job);
        signal::block_all();
        // Without a signal descriptor the guard polls at each tick.
        SignalFd::new(&[signal::SIGCHLD]).ok()
    }

    /// Opens the job's cgroup. Without one, only the children are known.
    fn open_cgroup(&self) -> Option<GuardedCgroup> {
        self.cgroup.as_deref().and_then(|path| GuardedCgroup::open(path).ok())
    }

    /// Watches until the agent is gone.
    fn watch(&self, signals: Option<&SignalFd>) -> Received {
        let mut received = Received::default();
        // Opened at the first tick: most agents do not live so long. Until it is reaped, nobody else has its pid.
        let mut vitals: Option<Vitals> = None;
        let mut judge = Judge::new(self.patience);
        let mut next_tick = Instant::now() + TICK;
        loop {
            self.wait(signals, !received.closed, next_tick.saturating_duration_since(Instant::now()));
            if let Some(signals) = signals {
                while signals.next().is_some() {}
            }
            // Nobody waits for its records: they are read at each tick, at its end, and if a signal comes in between.
            self.receive(&mut received);
            match wait::peek_at(self.agent.pid()) {
                Look::Found(child) => {
                    wait::reap(self.agent.pid());
                    // Read what the agent sent just before its end.
                    self.receive(&mut received);
                    received.is_done = child.change == Change::Exited { code: 0 };
                    self.look_at_holders(&mut received);
                    return received;
                }
                Look::NoChildren => return received,
                Look::Nothing => {}
            }
            let now = Instant::now();
            if now < next_tick {
                continue;
            }
            next_tick = now + TICK;
            vitals = vitals.or_else(|| Vitals::open(self.agent.pid()));
            let reading = vitals.as_ref().and_then(Vitals::read).map(|reading| lease::Vitals {
                state: reading.state,
                ran: reading.ran,
                delayed: reading.delayed,
            });
            if let Some(lapse) = judge.tick(std::mem::take(&mut received.renewed), reading) {
                self.note.leave(lapse);
                self.look_at_holders(&mut received);
                // It is our child and has not been reaped. If it cannot be killed, it does not end, and the next tick
                // tries again.
                let _ = self.agent.signal(signal::SIGKILL);
            }
        }
    }

    /// Receives the agent's records.
    fn receive(&self, received: &mut Received) {
        let mut bytes = [0u8; 64 * RECORD];
        while let Ok(count) = rustix::io::read(&self.lease, &mut bytes) {
            if count == 0 {
                received.closed = true;
                break;
            }
            // A record is smaller than PIPE_BUF: it is never read in part.
            for word in bytes[..count].chunks_exact(RECORD).filter_map(Word::decode) {
                received.renewed = true;
                match word {
                    Word::Alive { .. } => {}
                    Word::Leave => received.leave = true,
                    Word::GivenUp => received.given_up = true,
                    Word::Cgroup => received.cgroup = self.open_cgroup(),
                    Word::Begin { attempt, clean_shm } => {
                        (received.attempt, received.has_looked) = (Some((attempt, clean_shm)), false);
                    }
                    Word::Looked => received.has_looked = true,
                    Word::Reader { pid } => received.readers.add(pid),
                }
            }
        }
    }

    /// Finds out which files of /dev/shm the job's processes hold before they are killed, where the agent may have had no time to.
    fn look_at_holders(&self, received: &mut Received) {
        let is_wanted = received.attempt.is_some_and(|(_, clean_shm)| clean_shm != CleanShm::No) && !received.is_done;
        if is_wanted && received.holders.is_none() {
            received.holders = Some(holders(self.agent.pid()));
        }
    }

    fn wait(&self, signals: Option<&SignalFd>, lease_open: bool, time: Duration) {
        use rustix::event::{PollFd, PollFlags};
        // Only its end is waited for.
        let lease = PollFd::new(&self.lease, PollFlags::empty());
        match (signals, lease_open) {
            (Some(signals), true) => wait_for(&mut [lease, PollFd::new(signals, PollFlags::IN)], Some(time)),
            (Some(signals), false) => wait_for(&mut [PollFd::new(signals, PollFlags::IN)], Some(time)),
            (None, true) => wait_for(&mut [lease], Some(time)),
            (None, false) => pause(time),
        }
    }
}
