//! What the kernel says of a thread: its state, and the system call that it is in.

use std::time::Duration;

use rankrun_core::stacks::ThreadState;
use rankrun_sys::proc;
use rankrun_sys::trace::numbers;

use crate::memory::{Memory, word_at};

/// Descriptors of one call that are looked at.
const DESCRIPTORS: usize = 256;

/// The state behind a letter of `/proc/PID/stat`.
pub(crate) fn state(letter: char) -> ThreadState {
    match letter {
        'R' => ThreadState::Running,
        'S' => ThreadState::Sleeping,
        'D' => ThreadState::Uninterruptible,
        'T' => ThreadState::Stopped,
        't' => ThreadState::Traced,
        'Z' | 'X' => ThreadState::Zombie,
        other => ThreadState::Other(other),
    }
}

/// The system call that a thread sleeps in: `/proc/PID/task/TID/syscall`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Call {
    /// -1: it sleeps outside of a system call, as in a page fault.
    pub(crate) number: i64,
    pub(crate) first: u64,
    pub(crate) second: u64,
    pub(crate) third: u64,
    pub(crate) fourth: u64,
    pub(crate) fifth: u64,
    pub(crate) sp: u64,
    pub(crate) pc: u64,
}

impl Call {
    /// `running`, or the number, six arguments, the stack pointer and the program counter; after -1, only these two.
    pub(crate) fn parse(text: &str) -> Option<Call> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let number = words.first()?.parse().ok()?;
        let hex = |word: &&str| u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok();
        let [.., sp, pc] = words.as_slice() else { return None };
        let argument = |at: usize| if words.len() == 9 { hex(&words[at]) } else { Some(0) };
        Some(Call {
            number,
            first: argument(1)?,
            second: argument(2)?,
            third: argument(3)?,
            fourth: argument(4)?,
            fifth: argument(5)?,
            sp: hex(sp)?,
            pc: hex(pc)?,
        })
    }

    pub(crate) fn name(&self) -> Option<&'static str> {
        CALLS.iter().find(|(number, ..)| *number == self.number).map(|(_, name, _)| *name)
    }

    /// The call itself, where the kernel says only that it goes on with a wait that a stop has interrupted: one look would change
    /// what the next one shows. The registers have its arguments still.
    pub(crate) fn restarted(&self, wchan: Option<&str>, memory: Memory) -> Option<Call> {
        if self.number != numbers::restart_syscall {
            return Some(*self);
        }
        let wchan = wchan.unwrap_or_default();
        let of_place = [("futex", numbers::futex), ("nanosleep", numbers::clock_nanosleep), ("poll", numbers::poll)];
        if let Some((_, number)) = of_place.into_iter().find(|(place, _)| wchan.contains(place)) {
            return Some(Call { number, ..*self });
        }
        // x86-64: mov $number, %eax, not far before the call.
        const DISTANCE: u64 = 48;
        let code = memory.copy(self.pc.wrapping_sub(DISTANCE), DISTANCE as usize);
        let numbers = code.windows(5).rev().filter_map(|bytes| match bytes {
            [0xb8, a, b, 0, 0] => Some(i64::from(u16::from_le_bytes([*a, *b]))),
            _ => None,
        });
        let restarted = [numbers::futex, numbers::nanosleep, numbers::clock_nanosleep, numbers::poll];
        let number = numbers.into_iter().find(|number| restarted.contains(number))?;
        Some(Call { number, ..*self })
    }

    /// How long it may last yet, or at most where the kernel does not tell when it began. `None`: until something happens.
    pub(crate) fn limit(&self, memory: Memory) -> Option<Duration> {
        let milliseconds = |value: u64| u64::try_from(value as i32).ok().map(Duration::from_millis);
        let time = |address: u64, of_second: u64| {
            let bytes = memory.copy(address, 16);
            let (seconds, parts) = (word_at(&bytes, 0)?, word_at(&bytes, 8)?);
            Some(Duration::new(seconds.min(i64::MAX as u64), (parts % of_second * (1_000_000_000 / of_second)) as u32))
        };
        let nanoseconds = |address: u64| time(address, 1_000_000_000);
        match self.number {
            numbers::epoll_wait | numbers::epoll_pwait => milliseconds(self.fourth),
            numbers::poll => milliseconds(self.third),
            numbers::ppoll | numbers::rt_sigtimedwait => nanoseconds(self.third),
            numbers::epoll_pwait2 | numbers::semtimedop => nanoseconds(self.fourth),
            numbers::select => time(self.fifth, 1_000_000),
            numbers::pselect6 => nanoseconds(self.fifth),
            numbers::futex => {
                /// The operations that wait until a time of a clock (linux/futex.h); FUTEX_WAIT waits for a time.
                const UNTIL: [u64; 3] = [6, 9, 11];
                const REALTIME: u64 = 256;
                let given = nanoseconds(self.fourth)?;
                match self.second & 127 {
                    0 => Some(given),
                    operation if UNTIL.contains(&operation) => {
                        let now = if self.second & REALTIME != 0 { proc::realtime() } else { proc::monotonic() };
                        Some(given.saturating_sub(now))
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The descriptors from which it reads, or waits to be able to.
    pub(crate) fn reads(&self, memory: Memory) -> Vec<i32> {
        let number_of = |bytes: &[u8]| bytes.try_into().ok().map(i32::from_le_bytes);
        match self.number {
            numbers::read | numbers::readv | numbers::pread64 | numbers::recvfrom | numbers::recvmsg => {
                i32::try_from(self.first).into_iter().collect()
            }
            numbers::poll | numbers::ppoll => {
                // struct pollfd: descriptor, events, what has happened.
                const READABLE: u8 = 1;
                let count = usize::try_from(self.second).unwrap_or(0).min(DESCRIPTORS);
                let all = memory.copy(self.first, count * 8);
                let wanted = all.chunks_exact(8).filter(|it| it[4] & READABLE != 0);
                wanted.filter_map(|it| number_of(&it[..4])).filter(|fd| *fd >= 0).collect()
            }
            numbers::select | numbers::pselect6 => {
                let count = usize::try_from(self.first).unwrap_or(0).min(DESCRIPTORS);
                let bits = memory.copy(self.second, count.div_ceil(8));
                let is_set = |fd: &usize| bits.get(fd / 8).is_some_and(|byte| byte >> (fd % 8) & 1 == 1);
                (0..count).filter(is_set).map(|fd| fd as i32).collect()
            }
            numbers::epoll_wait | numbers::epoll_pwait | numbers::epoll_pwait2 => {
                let info = rankrun_sys::kernel::piece_text(format!("/proc/{}/fdinfo/{}", memory.pid, self.first))
                    .unwrap_or_default();
                let descriptors = info.lines().filter_map(|line| line.strip_prefix("tfd:"));
                let numbers = descriptors.filter_map(|rest| rest.split_ascii_whitespace().next()?.parse().ok());
                numbers.take(DESCRIPTORS).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Whether it waits for no file, only for the end of a time: `select(0, NULL, NULL, NULL, &time)`.
    pub(crate) fn is_without_files(&self) -> bool {
        [numbers::select, numbers::pselect6].contains(&self.number) && self.first == 0 && self.fifth != 0
    }

    /// Whether it waits for events, with a time limit.
    pub(crate) fn is_until_a_time(&self) -> bool {
        [numbers::epoll_wait, numbers::epoll_pwait].contains(&self.number) && self.fourth as i32 >= 0
    }

    /// The value that a futex has while it is waited for: that of a thread's end is the thread's id.
    pub(crate) fn value_of_futex(&self) -> Option<i32> {
        (self.number == numbers::futex).then_some(self.third as u32 as i32)
    }

    /// Whether its first argument is a descriptor of something that has a name.
    pub(crate) fn is_on_descriptor(&self) -> bool {
        const NAMES: [&str; 18] = [
            "read",
            "write",
            "readv",
            "writev",
            "pread64",
            "pwrite64",
            "fsync",
            "fdatasync",
            "flock",
            "fcntl",
            "ioctl",
            "accept",
            "accept4",
            "sendto",
            "sendmsg",
            "recvfrom",
            "recvmsg",
            "getdents64",
        ];
        self.name().is_some_and(|name| NAMES.contains(&name))
    }

    /// Whether it would fail with EINTR after a stop (signal(7)), which a program need not expect.
    pub(crate) fn is_fragile(&self) -> bool {
        fails_after_stop(self.number)
    }
}

/// Whether the call of this number fails with EINTR after a stop.
pub(crate) fn fails_after_stop(number: i64) -> bool {
    CALLS.iter().any(|(known, _, after)| *known == number && *after == After::Fails)
}

/// What a call does after the thread was stopped and goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    GoesOn,
    Fails,
}

macro_rules! calls {
    ($($after:ident: $($name:ident)*;)*) => { &[$($((numbers::$name, stringify!($name), After::$after),)*)*] };
}

/// Those in which threads sleep for long.
const CALLS: &[(i64, &str, After)] = calls![
    GoesOn: read write readv writev pread64 pwrite64 openat close fsync fdatasync flock fcntl ioctl statx newfstatat
        getdents64 renameat2 unlinkat mkdirat ftruncate fallocate sync mmap munmap mprotect madvise execve clone clone3 vfork
        futex nanosleep clock_nanosleep restart_syscall wait4 waitid poll ppoll select pselect6 pause rt_sigsuspend
        sched_yield connect accept accept4 sendto sendmsg recvfrom recvmsg recvmmsg splice sendfile;
    Fails: epoll_wait epoll_pwait epoll_pwait2 semop semtimedop msgrcv msgsnd io_getevents io_uring_enter
        rt_sigtimedwait;
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_thread_has_a_call_and_a_running_one_none() {
        let text = "230 0x0 0x0 0x7ffd30 0x7ffd31 0x0 0x0 0x7ffd28 0x7f6b\n";
        assert_eq!(
            Call::parse(text),
            Some(Call {
                number: 230,
                first: 0,
                second: 0,
                third: 0x7ffd30,
                fourth: 0x7ffd31,
                fifth: 0,
                sp: 0x7ffd28,
                pc: 0x7f6b
            })
        );
        assert_eq!(
            Call::parse("-1 0x7ffd28 0x7f6b"),
            Some(Call { number: -1, first: 0, second: 0, third: 0, fourth: 0, fifth: 0, sp: 0x7ffd28, pc: 0x7f6b })
        );
        assert_eq!(Call::parse("running\n"), None);
    }

    #[test]
    fn a_wait_for_no_file_until_a_time_is_a_sleep() {
        let select = |first, fifth| Call {
            number: numbers::pselect6,
            first,
            second: 0,
            third: 0,
            fourth: 0,
            fifth,
            sp: 0,
            pc: 0,
        };
        assert!(select(0, 0x7ffd28).is_without_files());
        assert!(!select(0, 0).is_without_files() && !select(4, 0x7ffd28).is_without_files());
    }

    #[test]
    fn a_call_says_how_long_it_lasts_at_most() {
        let memory = Memory { pid: std::process::id() as i32 };
        let call = |number| Call { number, first: 0, second: 0, third: 0, fourth: 0, fifth: 0, sp: 0, pc: 0 };
        let time = [7u64, 500_000_000];
        let at = time.as_ptr() as u64;
        let epoll = |limit: i32| Call { fourth: limit as u32 as u64, ..call(numbers::epoll_pwait) }.limit(memory);
        assert_eq!((epoll(1500), epoll(-1)), (Some(Duration::from_millis(1500)), None));
        assert_eq!(Call { third: at, ..call(numbers::ppoll) }.limit(memory), Some(Duration::from_millis(7500)));
        assert_eq!(Call { fourth: at, ..call(numbers::futex) }.limit(memory), Some(Duration::from_millis(7500)));
        assert_eq!(call(numbers::futex).limit(memory), None);
        // FUTEX_WAIT_BITSET, private.
        let until = [proc::monotonic().as_secs() + 100, 0];
        let wait = Call { second: 137, fourth: until.as_ptr() as u64, ..call(numbers::futex) };
        let left = wait.limit(memory).expect("it has a limit");
        assert!(left > Duration::from_secs(50) && left <= Duration::from_secs(100), "{left:?}");
    }

    #[test]
    fn a_call_says_what_it_reads() {
        let memory = Memory { pid: std::process::id() as i32 };
        let call = |number, first, second| Call { number, first, second, third: 0, fourth: 0, fifth: 0, sp: 0, pc: 0 };
        // Of the second only that it can be written is of interest.
        let polled: [(i32, u16, u16); 3] = [(0, 1, 0), (5, 4, 0), (-1, 1, 0)];
        let bytes: Vec<u8> = polled
            .iter()
            .flat_map(|(fd, events, got)| {
                [&fd.to_le_bytes()[..], &events.to_le_bytes()[..], &got.to_le_bytes()[..]].concat()
            })
            .collect();
        assert_eq!(call(numbers::ppoll, bytes.as_ptr() as u64, 3).reads(memory), [0]);
        let set = [0b1001u64];
        assert_eq!(call(numbers::pselect6, 4, set.as_ptr() as u64).reads(memory), [0, 3]);
        assert_eq!(call(numbers::read, 4, 0).reads(memory), [4]);
        assert!(call(numbers::write, 4, 0).reads(memory).is_empty());
    }

    #[test]
    fn calls_that_a_stop_would_end_are_known() {
        let call = |number| Call { number, first: 0, second: 0, third: 0, fourth: 0, fifth: 0, sp: 0, pc: 0 };
        assert!(call(numbers::epoll_pwait).is_fragile());
        assert!(!call(numbers::futex).is_fragile());
        assert_eq!(call(numbers::clock_nanosleep).name(), Some("clock_nanosleep"));
    }
}
