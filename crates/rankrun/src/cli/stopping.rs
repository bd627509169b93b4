//! The options for the signals that end ranks, and their values.

use std::time::Duration;

use clap::Arg;
use rankrun_core::stacks::stall;
use rankrun_core::status::signal_name;
use rankrun_core::testimony::Graces;

use crate::args::{option, switch};

/// The options, for the help under `heading`.
pub(crate) fn args(heading: &'static str) -> Vec<Arg> {
    let mut args = timed(heading);
    args.extend(switch(
        "strict",
        "no-strict",
        heading,
        "End a job whose ranks run MPI alone",
        "Two or more ranks run MPI and none has connected to rankrun: each may be a world of one. Without this option it is a \
         warning. The exit code is 1, the class alone (docs/mpi.md).",
    ));
    args
}

fn timed(heading: &'static str) -> Vec<Arg> {
    vec![
        option(
            "grace-saving",
            "DURATION",
            heading,
            "Time for a rank that is still writing files (default 30s)",
            "After a failure, a rank has this long instead of a shorter --grace while the number of bytes that it has written \
             grows. A rank that only ignores SIGTERM has --grace. 0 turns this off.",
        ),
        option(
            "stop-signal",
            "SIGNAL",
            heading,
            "First signal to stop the ranks, such as INT or USR1",
            "The default is the signal that rankrun received (INT, TERM or HUP), and TERM after a failure or --timeout. TERM \
             follows after 2s, or half of --grace if that is less; KILL at the end of --grace.",
        ),
    ]
}

/// Reads the value of `--stall`.
pub(crate) fn stall(text: &str) -> Result<stall::Given, String> {
    text.parse().map_err(|error: stall::StallError| error.to_string())
}

/// Reads the name or number of a signal that a program can handle.
pub(crate) fn read_signal(text: &str) -> Result<i32, String> {
    const LAST: i32 = 64;
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let by_name = || (1..=LAST).find(|number| signal_name(*number).strip_prefix("SIG") == Some(name));
    let number = text.parse().ok().filter(|number| (1..=LAST).contains(number)).or_else(by_name);
    match number {
        Some(9 | 19) => Err(format!("\"{text}\" cannot be handled by a program: use --grace 0 to kill at once")),
        // libc uses them for its own threads.
        Some(32 | 33) | None => Err(format!("\"{text}\" is not a signal: write INT, USR1 or 10")),
        Some(number) => Ok(number),
    }
}

/// How long a process that has failed may take to end.
pub(crate) fn graces(finalize: Option<Duration>, handlers: Option<Duration>) -> Graces {
    let default = Graces::default();
    Graces { finalize: finalize.unwrap_or(default.finalize), handlers: handlers.unwrap_or(default.handlers), ..default }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_by_name_and_number() {
        for (text, number) in [("INT", 2), ("sigint", 2), ("SIGUSR1", 10), ("15", 15), ("RTMIN+1", 35), ("64", 64)] {
            assert_eq!(read_signal(text), Ok(number), "{text}");
        }
        for text in ["", "KILL", "9", "STOP", "0", "65", "32", "-1", "SIG", "signal 33", "TERMINATE"] {
            assert!(read_signal(text).is_err(), "{text}");
        }
    }
}
