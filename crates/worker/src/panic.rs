//! Panics.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{self, PanicHookInfo};
use std::thread;
use std::time::Instant;

use crate::connection::{abort, send};
use crate::line::Line;

/// What a panic does, after it has been printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnPanic {
    /// Report the panic to rankrun. A panic of the thread that called [`install`] is expected to end the program: if it is
    /// still alive after rankrun's `--exit-grace`, rankrun ends it. A panic of any other thread is only evidence if the
    /// rank fails.
    ///
    /// This is for programs that do not catch panics in their main thread.
    Tell,
    /// End the whole job at once with code 101, whichever thread has panicked. No destructor runs: nothing can get
    /// stuck in `MPI_Finalize`.
    Abort,
}

/// Reports panics to rankrun. Call it at the beginning of `main`; the previous hook still runs first.
pub fn install(on_panic: OnPanic) {
    let main = thread::current().id();
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        // Printing a backtrace and describing it may take long, and whose panic came first decides who is named.
        let began = Instant::now();
        previous(info);
        match on_panic {
            OnPanic::Abort => abort(101, &format!("panic: {}", message(info))),
            OnPanic::Tell => {
                let line = match thread::current().id() == main {
                    true => Line::new("uncaught").number("code", 101),
                    false => Line::new("evidence").text("what", "thread"),
                };
                let line = describe(line, info);
                send(line.ago(began.elapsed()));
            }
        };
    }));
}

fn message<'a>(info: &'a PanicHookInfo<'_>) -> &'a str {
    let payload = info.payload();
    let literal = payload.downcast_ref::<&str>().copied();
    literal.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a value that is no text")
}

fn describe(line: Line, info: &PanicHookInfo<'_>) -> Line {
    let mut line = line.text("exception", "panic").text("message", message(info));
    line = line.text("thread", thread::current().name().unwrap_or("?"));
    let mut traceback = format!("panic: {}\n", message(info));
    if let Some(location) = info.location() {
        line = line.text("file", location.file()).number("line", location.line().into());
        traceback = format!("{location}\n{traceback}");
    }
    // As RUST_BACKTRACE says, like the panic message itself.
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        traceback.push_str(&backtrace.to_string());
    }
    line.traceback(&traceback)
}
