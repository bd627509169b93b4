//! What the kernel says of a thread: its state, and the system call that it is in.

use rankrun_core::stacks::ThreadState;
use rankrun_sys::trace::numbers;

use crate::memory::Memory;

/// The state behind a letter of `/proc/PID/stat`.
pub(crate) fn state(letter: char) -> ThreadState {
    match letter {
        'R' => ThreadState::Running,
        'S' => ThreadState::Sleeping,
        'D' => ThreadState::Uninterruptible,
        'T' | 't' => ThreadState::Stopped,
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
        let first = if words.len() == 9 { hex(&words[1])? } else { 0 };
        Some(Call { number, first, sp: hex(sp)?, pc: hex(pc)? })
    }

    pub(crate) fn name(&self) -> Option<&'static str> {
        CALLS.iter().find(|(number, ..)| *number == self.number).map(|(_, name, _)| *name)
    }

    /// Its name, where the kernel says only that it goes on with a wait that a stop has interrupted: one look would change
    /// what the next one shows.
    pub(crate) fn name_of_restarted(&self, wchan: Option<&str>, memory: Memory) -> Option<&'static str> {
        let wchan = wchan.unwrap_or_default();
        for (place, name) in [("futex", "futex"), ("nanosleep", "clock_nanosleep"), ("poll", "poll")] {
            if wchan.contains(place) {
                return Some(name);
            }
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
        Call { number, ..*self }.name()
    }

    pub(crate) fn is_restarted(&self) -> bool {
        self.number == numbers::restart_syscall
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
        assert_eq!(Call::parse(text), Some(Call { number: 230, first: 0, sp: 0x7ffd28, pc: 0x7f6b }));
        assert_eq!(Call::parse("-1 0x7ffd28 0x7f6b"), Some(Call { number: -1, first: 0, sp: 0x7ffd28, pc: 0x7f6b }));
        assert_eq!(Call::parse("running\n"), None);
    }

    #[test]
    fn calls_that_a_stop_would_end_are_known() {
        let call = |number| Call { number, first: 0, sp: 0, pc: 0 };
        assert!(call(numbers::epoll_pwait).is_fragile());
        assert!(!call(numbers::futex).is_fragile());
        assert_eq!(call(numbers::clock_nanosleep).name(), Some("clock_nanosleep"));
    }
}
