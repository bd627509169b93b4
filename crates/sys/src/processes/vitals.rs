//! The state of a process and its scheduler statistics: read without allocation, through files that were opened before.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// The kernel's data about the main thread of a process (proc(5)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// `R`, `S`, `D`, `T` and so on.
    pub state: u8,
    /// How long it has run.
    pub ran: Duration,
    /// How long it was ready to run and had no CPU; zero where the kernel does not count it (CONFIG_SCHED_INFO).
    pub delayed: Duration,
}

/// The files. They belong to the process that had the pid when they were opened, and to no other after it.
#[derive(Debug)]
pub struct Vitals {
    stat: OwnedFd,
    /// Missing if the kernel has no such statistics; then only the state and the ticks of `stat` are used.
    schedstat: Option<OwnedFd>,
}

impl Vitals {
    /// `None` where /proc cannot be read.
    pub fn open(pid: i32) -> Option<Vitals> {
        Vitals::open_thread(pid, pid)
    }

    fn open_thread(pid: i32, thread: i32) -> Option<Vitals> {
        let open = |name: &str| File::open(format!("/proc/{pid}/task/{thread}/{name}")).map(OwnedFd::from);
        Some(Vitals { stat: open("stat").ok()?, schedstat: open("schedstat").ok() })
    }

    /// `None` when the process is gone.
    pub fn read(&self) -> Option<Reading> {
        let mut buffer = [0u8; 1024];
        let length = rustix::io::pread(&self.stat, &mut buffer, 0).ok()?;
        let stat = &buffer[..length];
        let close = stat.iter().rposition(|&byte| byte == b')')?;
        let state = *stat.get(close + 2)?;
        // Fields 14 and 15 are the ticks of user and system time; the state is the third.
        let mut fields = stat[close + 2..].split(|&byte| byte == b' ').skip(14 - 3);
        let ticks = number(fields.next()?)? + number(fields.next()?)?;
        let mut reading = Reading { state, ran: Duration::from_millis(ticks * 10), delayed: Duration::ZERO };
        let mut buffer = [0u8; 128];
        if let Some(file) = &self.schedstat
            && let Ok(length) = rustix::io::pread(file, &mut buffer, 0)
        {
            let mut fields = buffer[..length].split(|&byte| byte == b' ');
            if let (Some(ran), Some(delayed)) = (fields.next().and_then(number), fields.next().and_then(number)) {
                reading.ran = Duration::from_nanos(ran);
                reading.delayed = Duration::from_nanos(delayed);
            }
        }
        Some(reading)
    }
}

/// Of all threads of a process: `R` if one of them runs or could run, else the state of the last; their times together. `None` when the
/// process is gone.
pub fn of_process(pid: i32) -> Option<Reading> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let read = |thread: std::fs::DirEntry| Vitals::open_thread(pid, thread.file_name().to_str()?.parse().ok()?)?.read();
    threads.filter_map(read).reduce(|sum, thread| Reading {
        state: if sum.state == b'R' { sum.state } else { thread.state },
        ran: sum.ran + thread.ran,
        delayed: sum.delayed + thread.delayed,
    })
}

fn number(digits: &[u8]) -> Option<u64> {
    let digits = digits.trim_ascii();
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_of_a_process_count() {
        let (stop, stopped) = std::sync::mpsc::sync_channel::<()>(0);
        let busy = std::thread::spawn(move || while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {});
        let me = std::process::id() as i32;
        let own = Vitals::open_thread(me, rustix::thread::gettid().as_raw_pid()).expect("our own files");
        let all = || of_process(me).expect("it lives");
        // What the others have run: this thread is read last, so that its own time does not count.
        let others = || all().ran.saturating_sub(own.read().expect("it lives").ran);
        let before = others();
        while others() < before + Duration::from_millis(50) {}
        assert_eq!(all().state, b'R');
        drop(stop);
        busy.join().expect("it ends");
        assert_eq!(of_process(i32::MAX), None);
    }

    #[test]
    fn a_process_that_runs_is_seen_to_run_and_one_that_was_reaped_is_gone() {
        let me = Vitals::open(std::process::id() as i32).expect("our own files");
        let before = me.read().expect("we live");
        let mut child =
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh starts");
        let vitals = Vitals::open(child.id() as i32).expect("its files");
        let first = vitals.read().expect("it lives");
        while vitals.read().expect("it lives").ran < first.ran + Duration::from_millis(20) {
            std::thread::yield_now();
        }
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
        assert_eq!(vitals.read(), None);
        assert!(me.read().expect("we live").ran >= before.ran);
    }
}
