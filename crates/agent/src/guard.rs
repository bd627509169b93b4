//! The guard: the agent's parent, which outlives it and cleans up after it.
//!
//! It ignores every signal that can be ignored, holds no stream, and bears a name of its own, so that whoever kills
//! "rankrun" leaves it alive. Its exit code is the proof: 0 when nothing is left, 123 otherwise.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use rankrun_core::ExitCode;
use rankrun_sys::cgroup::GuardedCgroup;
use rankrun_sys::proc::ChildList;
use rankrun_sys::wait::{self, Change, Look};
use rankrun_sys::{fork, name, signal};

use crate::clean::Remains;
use crate::lease::{self, LAPSE_TICKS, RENEWAL};
use crate::runtime::Places;

/// How long an agent may stay stopped by somebody's SIGSTOP.
const STOPPED_BOUND: Duration = Duration::from_secs(1);

/// An agent that renews its lease may be behind with noting shared memory by so much.
const UNATTENDED_MARGIN: Duration = Duration::from_millis(200);

/// How the agent's life ended.
struct End {
    /// What it left is to be left.
    leave: bool,
    /// Since when nobody may have looked after the job, if the end was not in order.
    unattended: Option<SystemTime>,
}

/// What the guard watches.
pub(crate) struct Guard {
    pub(crate) agent: i32,
    /// The guard's end of the lease.
    pub(crate) lease: OwnedFd,
    /// Where the job's cgroup will be, if the agent makes one.
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) places: Places,
    pub(crate) job: String,
}

impl Guard {
    /// Runs until the agent is gone and nothing of the job is left. Returns the exit code.
    pub(crate) fn run(self) -> u8 {
        let signals = self.settle();
        let mut remains =
            Remains { cgroup: None, children: ChildList::open(), places: self.places.clone(), clean_shm: false };
        let end = self.watch(signals.as_ref(), &mut remains);
        if remains.cgroup.is_none() {
            // It was killed before it could say that it had made one.
            remains.cgroup = self.cgroup.as_deref().and_then(|path| GuardedCgroup::open(path).ok());
        }
        if end.leave {
            self.places.remove();
            return ExitCode::SUCCESS.0;
        }
        let empty = remains.end(&[]);
        remains.tidy(end.unattended);
        if empty { ExitCode::SUCCESS.0 } else { ExitCode::LEFT_BEHIND.0 }
    }

    /// Becomes what the module says.
    fn settle(&self) -> Option<signal::SignalFd> {
        let _ = fork::become_subreaper();
        let _ = fork::new_session();
        let _ = name::set("rr-guard", &format!("rr-guard {}", self.job));
        for number in (1..=31).filter(|number| {
            ![signal::SIGKILL, signal::SIGSTOP, signal::SIGCHLD, signal::SIGSEGV, signal::SIGCONT].contains(number)
        }) {
            signal::ignore(number);
        }
        let signals = signal::SignalFd::new(&[signal::SIGCHLD]).ok();
        let mut keep = vec![self.lease.as_raw_fd()];
        keep.extend(signals.as_ref().map(|signals| signals.as_fd().as_raw_fd()));
        fork::keep_only(&keep);
        // The directory that we were started in must not be kept busy.
        let _ = rustix::process::chdir("/");
        signals
    }

    /// Watches until the agent is gone.
    fn watch(&self, signals: Option<&signal::SignalFd>, remains: &mut Remains) -> End {
        let mut leave = false;
        let mut renewal = SystemTime::now();
        let mut lease_open = true;
        let mut missed = 0;
        let mut next_tick = Instant::now() + RENEWAL;
        let mut stopped_since: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let stop_bound = stopped_since.map(|since| since + STOPPED_BOUND);
            let deadline = stop_bound.map_or(next_tick, |bound| bound.min(next_tick));
            self.wait(signals, lease_open, deadline.saturating_duration_since(now));
            if let Some(signals) = signals {
                while signals.next().is_some() {}
            }
            let renewed = self.hear(&mut lease_open, &mut leave, remains);
            while let Look::Found(child) = wait::stop_news() {
                if child.pid == self.agent {
                    stopped_since = matches!(child.change, Change::Stopped { .. }).then(Instant::now);
                }
            }
            match wait::peek_at(self.agent) {
                Look::Found(child) => {
                    wait::reap(self.agent);
                    let in_order = child.change == Change::Exited { code: 0 };
                    // What the agent said in its last moment counts.
                    self.hear(&mut lease_open, &mut leave, remains);
                    return End { leave, unattended: (!in_order).then(|| renewal - UNATTENDED_MARGIN) };
                }
                Look::NoChildren => return End { leave, unattended: None },
                Look::Nothing => {}
            }
            if renewed {
                missed = 0;
                renewal = SystemTime::now();
            }
            let now = Instant::now();
            if now >= next_tick {
                missed = if renewed { 0 } else { missed + 1 };
                next_tick = now + RENEWAL;
            }
            let frozen = stopped_since.is_some_and(|since| now >= since + STOPPED_BOUND);
            if missed > LAPSE_TICKS || frozen {
                let _ = signal::send(self.agent, signal::SIGKILL);
            }
        }
    }

    /// Hears what the agent has said. Returns whether that was anything.
    fn hear(&self, lease_open: &mut bool, leave: &mut bool, remains: &mut Remains) -> bool {
        let mut renewed = false;
        let mut bytes = [0u8; 64];
        while let Ok(count) = rustix::io::read(&self.lease, &mut bytes) {
            if count == 0 {
                // The agent is on its way out; SIGCHLD tells when it is there.
                *lease_open = false;
                break;
            }
            renewed = true;
            let said = |byte: u8| bytes[..count].contains(&byte);
            *leave |= said(lease::LEAVE);
            remains.clean_shm |= said(lease::CLEAN_SHM);
            if said(lease::CGROUP) && remains.cgroup.is_none() {
                remains.cgroup = self.cgroup.as_deref().and_then(|path| GuardedCgroup::open(path).ok());
            }
        }
        renewed
    }

    fn wait(&self, signals: Option<&signal::SignalFd>, lease_open: bool, time: Duration) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        // Without a signal descriptor the ticks alone must do.
        let lease = PollFd::new(&self.lease, if lease_open { PollFlags::IN } else { PollFlags::empty() });
        let _ = match (signals, lease_open) {
            (Some(signals), true) => poll(&mut [lease, PollFd::new(signals, PollFlags::IN)], Some(&timeout)),
            (Some(signals), false) => poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&timeout)),
            (None, true) => poll(&mut [lease], Some(&timeout)),
            (None, false) => poll(&mut [], Some(&timeout)),
        };
    }
}
