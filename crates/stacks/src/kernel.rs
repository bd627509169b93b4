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
            Some(Call { number: 230, first: 0, third: 0x7ffd30, fourth: 0x7ffd31, fifth: 0, sp: 0x7ffd28, pc: 0x7f6b })
        );
        assert_eq!(
            Call::parse("-1 0x7ffd28 0x7f6b"),
            Some(Call { number: -1, first: 0, third: 0, fourth: 0, fifth: 0, sp: 0x7ffd28, pc: 0x7f6b })
        );
        assert_eq!(Call::parse("running\n"), None);
    }

    #[test]
    fn a_wait_for_no_file_until_a_time_is_a_sleep() {
        let select = |first, fifth| Call { number: numbers::pselect6, first, third: 0, fourth: 0, fifth, sp: 0, pc: 0 };
        assert!(select(0, 0x7ffd28).is_without_files());
        assert!(!select(0, 0).is_without_files() && !select(4, 0x7ffd28).is_without_files());
    }

    #[test]
    fn calls_that_a_stop_would_end_are_known() {
        let call = |number| Call { number, first: 0, third: 0, fourth: 0, fifth: 0, sp: 0, pc: 0 };
        assert!(call(numbers::epoll_pwait).is_fragile());
        assert!(!call(numbers::futex).is_fragile());
        assert_eq!(call(numbers::clock_nanosleep).name(), Some("clock_nanosleep"));
    }
}
