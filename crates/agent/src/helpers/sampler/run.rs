//! The sampler's work.
//!
//! The main thread waits for the agent's second message and passes on what the other threads have seen. Each of them looks at its part of
//! the ranks: the kernel lets only the thread that has stopped another one let it go on.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rankrun_core::Pid;
use rankrun_core::stacks::profile::{Samples, WINDOWS};
use rankrun_stacks::{Bounds, Look, Sampler};
use rankrun_sys::process::ProcessId;
use rankrun_wireup::messages::{Decoder, encode};

use super::message::{End, Request, Seen};
use crate::helpers::control::{self, receive};
use crate::helpers::looker::{Subject, program_of};

/// Threads that look into ranks, and the ranks for which one is enough.
const MOST_THREADS: usize = 4;
const RANKS_OF_THREAD: usize = 16;
/// How often what was seen is sent.
const PIECE: Duration = Duration::from_secs(1);
/// How long after the end of the time the other threads are waited for: a step may wait for the kernel.
const SPARE: Duration = Duration::from_secs(1);
/// The share of the interval by which a look comes earlier or later: a program whose steps last as long as the interval would
/// otherwise be seen at one place.
const JITTER: f64 = 0.5;

/// Samples what the agent names. Returns the exit code.
pub fn serve() -> u8 {
    control::serve(work)
}

fn work(mut control: UnixStream) -> io::Result<()> {
    control.set_nonblocking(false)?;
    let mut decoder = Decoder::default();
    let request: Option<Request> = receive(&mut control, &mut decoder)?;
    let Request { subjects, spec } = request.ok_or(io::ErrorKind::UnexpectedEof)?;
    let start = Instant::now();
    let until = start + spec.time;
    let out = Arc::new(Mutex::new(control.try_clone()?));
    let count = subjects.len().div_ceil(RANKS_OF_THREAD).clamp(1, MOST_THREADS);
    let parts: Vec<Vec<(u32, Subject)>> = (0..count)
        .map(|part| {
            let own = subjects.iter().enumerate().skip(part).step_by(count);
            own.map(|(index, subject)| (index as u32, *subject)).collect()
        })
        .collect();
    let at_work = Arc::new(AtomicUsize::new(parts.len()));
    // Nothing is sent over these: what counts is that the other end goes.
    let (ended, ends) = mpsc::sync_channel(0);
    let mut stops = Vec::new();
    for own in parts {
        let (stop, stopped) = mpsc::sync_channel::<()>(0);
        stops.push(stop);
        let (out, at_work) = (Arc::clone(&out), Arc::clone(&at_work));
        let turn = Turn { own, start, until, interval: spec.interval, native: spec.native, out, at_work };
        start_thread(turn, stopped, ended.clone(), control.try_clone()?)?;
    }
    drop(ended);
    // The agent says that it is enough; or all threads have ended, the last of which ends this wait; or the time is over.
    control.set_read_timeout(Some(
        (until + SPARE).saturating_duration_since(Instant::now()).max(Duration::from_millis(1)),
    ))?;
    let is_told = receive::<End>(&mut control, &mut decoder);
    drop(stops);
    let last = Instant::now() + SPARE;
    while let Ok(()) = ends.recv_timeout(last.saturating_duration_since(Instant::now())) {}
    // An agent that is gone hears nothing; that is seen here.
    is_told.map(drop).or_else(|error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Ok(()),
        _ => Err(error),
    })?;
    say(&out, &Seen::Done)
}

/// What a thread has to do.
struct Turn {
    own: Vec<(u32, Subject)>,
    start: Instant,
    until: Instant,
    interval: Duration,
    native: bool,
    out: Arc<Mutex<UnixStream>>,
    /// Threads that have not ended.
    at_work: Arc<AtomicUsize>,
}

/// Starts a thread that looks, and another one after it if a rank's thread does not stop: the kernel lets that one go when the thread
/// ends that has told it to stop.
fn start_thread(turn: Turn, stopped: Receiver<()>, ended: SyncSender<()>, control: UnixStream) -> io::Result<()> {
    thread::Builder::new()
        .spawn(move || {
            let left = sample(&turn, &stopped);
            let goes_on = !left.is_empty() && Instant::now() < turn.until;
            if goes_on {
                // If it cannot be started, these ranks are looked at no more.
                let _ = start_thread(Turn { own: left, ..turn }, stopped, ended, control);
                return;
            }
            drop(ended);
            // Who waits for the agent's word has nothing to wait for when this was the last one.
            if turn.at_work.fetch_sub(1, Ordering::AcqRel) == 1 {
                let _ = control.shutdown(Shutdown::Read);
            }
        })
        .map(drop)
}

/// Looks until the end, or until a thread does not stop: returns the ranks that are still to be looked at.
fn sample(turn: &Turn, stopped: &Receiver<()>) -> Vec<(u32, Subject)> {
    let mut sampler = Sampler::new(Bounds { is_native_whole: turn.native, ..Bounds::default() });
    let mut living: Vec<(usize, u32, Subject)> = Vec::new();
    for (index, subject) in &turn.own {
        if ProcessId::of(subject.pid) == Some(subject.id()) {
            living.push((sampler.add(Pid(program_of(*subject))), *index, *subject));
        } else {
            send(turn, *index, Samples { over: Some("it has ended".to_owned()), ..Samples::default() });
        }
    }
    let mut random =
        u64::from(std::process::id()) << 16 | u64::from(turn.own.first().map_or(0, |(index, _)| *index)) | 1;
    let mut next = Instant::now();
    let mut piece = next + PIECE;
    while !living.is_empty() && next < turn.until {
        // Sleeps, and ends at once when nobody wants more.
        match stopped.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
        }
        let now = Instant::now();
        let window = window(now - turn.start, turn.until - turn.start);
        let mut ended = Vec::new();
        for (place, (at, ..)) in living.iter().enumerate() {
            match sampler.look(*at, now, window) {
                Look::Seen => {}
                Look::Ended => ended.push(place),
                Look::Pending => {
                    living.iter().for_each(|(at, index, _)| send(turn, *index, sampler.take(*at)));
                    return living.into_iter().map(|(_, index, subject)| (index, subject)).collect();
                }
            }
        }
        for place in ended.into_iter().rev() {
            let (at, index, subject) = living.swap_remove(place);
            let after = format!("it ended after {:.1} s", turn.start.elapsed().as_secs_f64());
            // A wrapper may have started its next program.
            match program_of(subject) {
                pid if subject.is_leader
                    && ProcessId::of(subject.pid) == Some(subject.id())
                    && is_other(&sampler, at, pid) =>
                {
                    sampler.replace(at, Pid(pid));
                    living.push((at, index, subject));
                }
                _ => send(turn, index, Samples { over: Some(after), ..sampler.take(at) }),
            }
        }
        if now >= piece {
            piece = now + PIECE;
            for (at, index, subject) in &living {
                send(turn, *index, sampler.take(*at));
                if subject.is_leader {
                    sampler.replace(*at, Pid(program_of(*subject)));
                }
            }
        }
        next = next.max(now.checked_sub(turn.interval).unwrap_or(now)) + jittered(turn.interval, &mut random);
    }
    living.iter().for_each(|(at, index, _)| send(turn, *index, sampler.take(*at)));
    Vec::new()
}

fn is_other(sampler: &Sampler, at: usize, pid: i32) -> bool {
    sampler.pid(at) != Some(Pid(pid)) && ProcessId::of(pid).is_some()
}

/// In which part of the time a look is made.
fn window(since: Duration, all: Duration) -> usize {
    let share = since.as_secs_f64() / all.as_secs_f64().max(1e-9);
    ((share * WINDOWS as f64) as usize).min(WINDOWS - 1)
}

/// The interval, a little longer or shorter each time.
fn jittered(interval: Duration, random: &mut u64) -> Duration {
    // xorshift64.
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    let unit = (*random >> 11) as f64 / (1u64 << 53) as f64;
    interval.mul_f64(1.0 + JITTER * (unit - 0.5))
}

fn send(turn: &Turn, index: u32, samples: Samples) {
    // The agent is gone if it cannot be told: the main thread sees that.
    let _ = say(&turn.out, &Seen::Samples(index, Box::new(samples)));
}

fn say(out: &Mutex<UnixStream>, seen: &Seen) -> io::Result<()> {
    let bytes = encode(seen).map_err(io::Error::other)?;
    out.lock().unwrap_or_else(PoisonError::into_inner).write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_looks_are_not_regular_and_their_rate_is_kept() {
        let interval = Duration::from_millis(50);
        let mut random = 77;
        let times: Vec<Duration> = (0..2000).map(|_| jittered(interval, &mut random)).collect();
        assert!(times.iter().all(|time| *time >= interval.mul_f64(0.74) && *time <= interval.mul_f64(1.26)));
        let sum: Duration = times.iter().sum();
        assert!((sum.as_secs_f64() - 100.0).abs() < 2.0, "{sum:?}");
        assert!(times.windows(2).filter(|pair| pair[0] == pair[1]).count() < 10);
    }

    #[test]
    fn each_look_is_in_one_part_of_the_time() {
        let s = Duration::from_secs;
        assert_eq!([0, 1, 9, 10, 99].map(|at| window(s(at), s(10))), [0, 1, 9, 9, 9]);
        assert_eq!(window(s(0), s(0)), 0);
    }
}
