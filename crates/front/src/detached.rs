//! `--detach`: the job runs in a process of its own session. The process that the user has started waits until all ranks run, prints the
//! id of the job, and ends. A job that fails before that is a job in the foreground: its messages are on the terminal, and its exit
//! code is that of the command.
//!
//! No process of the job has the user's stdout or stderr, which may be a pipe that somebody reads to its end: what is to be said until all
//! ranks run is passed on.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};

use rankrun_core::{ExitCode, JobId};
use rankrun_sys::fork::{self, Side};
use rankrun_sys::poll::wait_for;
use rankrun_sys::process::Child;
use rankrun_sys::signal::{self, SignalFd};
use rankrun_sys::wait::{self, Change, Look, reap};
use rankrun_sys::{name, terminal};
use rustix::event::{PollFd, PollFlags};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::Plan;
use crate::delivery::report;
use crate::heir::Heir;
use crate::job::{start, succession};
use crate::outcome::Outcome;
use crate::parent::{BEGUN, Parent};

/// Signals to us that are for the job while it starts, and the one that says that it has ended.
const HEARD: [i32; 5] = [signal::SIGINT, signal::SIGTERM, signal::SIGHUP, signal::SIGQUIT, signal::SIGCHLD];

/// Runs the job in a child of this process, which has one thread. Returns in both.
pub(crate) fn run(plan: Plan) -> Outcome {
    let (color, is_quiet, job) = (plan.color, plan.verbosity < 0, plan.spec.job.clone());
    let run = |parent| start::run(plan, None, Some(parent));
    begin((&job, is_quiet), run, true).unwrap_or_else(|error| cannot_start(color, &error))
}

/// The same for a front that takes the place of another one.
pub(crate) fn run_again(job: &JobId, color: bool, is_quiet: bool) -> Outcome {
    let own = std::process::id();
    loop {
        let run = |parent| start::run_again(job, color, parent, None);
        let outcome = begin((job, is_quiet), run, false).unwrap_or_else(|error| cannot_start(color, &error));
        // One that was killed so early had no heir.
        if std::process::id() != own || outcome.raise != Some(signal::SIGKILL) || !succession::is_left(job) {
            return outcome;
        }
    }
}

/// Runs the job of a front that was killed, in the process that has waited for that. `words` follow [`rankrun_core::Purpose::Successor`].
pub fn run_successor(words: &[OsString]) -> u8 {
    let run = || {
        let heir = Heir::inherited(words)?;
        let job = heir.job().clone();
        // The name is for whoever looks at the processes.
        let _ = name::set("rankrun", &format!("rankrun: front of job {job}"));
        Ok(start::run_again(&job, false, Parent::inherited()?, Some(heir)))
    };
    let outcome: io::Result<Outcome> = run();
    outcome.map_or(ExitCode::INTERNAL.0, |outcome| outcome.code.0)
}

fn cannot_start(color: bool, error: &io::Error) -> Outcome {
    report::error(color, "cannot start a process for the job", Some(error), None);
    Outcome { code: ExitCode::INTERNAL, raise: None }
}

/// `is_first`: where the front is killed, its heir tells whether all ranks run.
fn begin((job, is_quiet): (&JobId, bool), run: impl FnOnce(Parent) -> Outcome, is_first: bool) -> io::Result<Outcome> {
    let (begun, child_begins) = pipe_with(PipeFlags::CLOEXEC)?;
    let (said, child_says) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&said, true)?;
    // The child gets none before it can be told.
    let signals = SignalFd::new(&HEARD)?;
    match fork::fork()? {
        Side::Child => {
            drop((begun, said, signals));
            fork::new_session()?;
            let null = rankrun_sys::null()?;
            rustix::stdio::dup2_stdin(&null)?;
            rustix::stdio::dup2_stdout(&null)?;
            rustix::stdio::dup2_stderr(&child_says)?;
            drop(child_says);
            Ok(run(Parent::new(child_begins)))
        }
        Side::Parent { child } => {
            drop((child_begins, child_says));
            let (is_begun, outcome) = wait_for_start((job, is_quiet), child, &begun, &mut File::from(said), &signals);
            Ok(match outcome.raise {
                Some(signal::SIGKILL) if is_first && succession::is_left(job) => {
                    wait_for_another((job, is_quiet), begun.into(), &signals)
                }
                // Its ranks had ended. What else has failed was said.
                None if !is_begun && !is_first && !is_quiet && !succession::has_deed(job) => {
                    let code = outcome.code.0;
                    // Who does not read it has the exit code.
                    let _ = writeln!(
                        io::stderr(),
                        "rankrun: job {job} is over, exit code {code}: see \"rankrun report {job}\""
                    );
                    outcome
                }
                _ => outcome,
            })
        }
    }
}

/// Waits until all ranks run, or the job is over: also where a signal to us ends it in the moment in which all run. Meanwhile passes on what
/// it says. Returns also whether all run.
fn wait_for_start(
    of: (&JobId, bool),
    child: i32,
    begun: &OwnedFd,
    said: &mut File,
    signals: &SignalFd,
) -> (bool, Outcome) {
    let (mut is_told, mut ending) = (false, None);
    loop {
        let ended = reap(child);
        // A job that runs has closed its ends.
        let fds = [signals.as_fd(), begun.as_fd(), said.as_fd()];
        let mut ends = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let waited = if is_told { &mut ends[..1] } else { &mut ends[..] };
        if ended == Look::Nothing {
            wait_for(waited, None);
        }
        // That it closes its end says nothing.
        is_told |= ends[1].revents().contains(PollFlags::IN);
        pass_on(said);
        while let Some((number, _)) = signals.next() {
            if number != signal::SIGCHLD && ended == Look::Nothing {
                // It may have ended.
                let _ = Child::unreaped(child).signal(number);
                if is_to_end(number) {
                    ending = Some(number);
                }
            }
        }
        match ending {
            None if is_told => return (true, let_go(of)),
            // It has left our stderr by now.
            Some(number) if is_told && ended != Look::Nothing => say_ended(of, number),
            _ => {}
        }
        match ended {
            Look::Found(wait::Child { change: Change::Exited { code }, .. }) => {
                return (is_told, Outcome { code: ExitCode(code), raise: None });
            }
            Look::Found(wait::Child { change: Change::Signaled { signal, .. }, .. }) => {
                return (is_told, Outcome { code: ExitCode::signal(signal), raise: Some(signal) });
            }
            Look::NoChildren => return (is_told, Outcome { code: ExitCode::INTERNAL, raise: None }),
            Look::Found(_) | Look::Nothing => {}
        }
    }
}

/// The front was killed, and another one takes its place: waits until all ranks run, or the job is over.
fn wait_for_another((job, is_quiet): (&JobId, bool), mut begun: File, signals: &SignalFd) -> Outcome {
    loop {
        let mut ends = [signals.as_fd(), begun.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        wait_for(&mut ends, None);
        let is_told = !ends[1].revents().is_empty();
        while let Some((number, _)) = signals.next() {
            if is_to_end(number) {
                // Who does not read it has the exit code.
                let _ = writeln!(io::stderr(), "rankrun: job {job} goes on: \"rankrun stop {job}\" ends it");
                return Outcome { code: ExitCode::signal(number), raise: Some(number) };
            }
        }
        if is_told {
            let mut message = [0; 2];
            match begun.read(&mut message) {
                Ok(1..) if message[0] == BEGUN => return let_go((job, is_quiet)),
                Ok(2) => {
                    if !is_quiet {
                        // As above.
                        let _ = writeln!(
                            io::stderr(),
                            "rankrun: job {job} was over before all of its ranks ran: see \"rankrun report {job}\""
                        );
                    }
                    return Outcome { code: ExitCode(message[1]), raise: None };
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => {
                    report::error(false, "the front of the job was killed, and no other one could begin", None, None);
                    return Outcome { code: ExitCode::INTERNAL, raise: None };
                }
            }
        }
    }
}

/// Writes to stderr what the job has said.
fn pass_on(said: &mut File) {
    let mut room = [0; 4096];
    while let Ok(count @ 1..) = said.read(&mut room) {
        // Who does not read it finds it in the output of the job.
        let _ = io::stderr().write_all(&room[..count]);
    }
}

/// Whether a signal ends a job that has no terminal.
fn is_to_end(number: i32) -> bool {
    matches!(number, signal::SIGINT | signal::SIGTERM)
}

/// The job was ended as all of its ranks had begun to run.
fn say_ended((job, is_quiet): (&JobId, bool), number: i32) {
    if !is_quiet {
        let name = rankrun_core::status::signal_name(number);
        // Who does not read it has the exit code.
        let _ = writeln!(io::stderr(), "rankrun: job {job} was ended by {name}: see \"rankrun report {job}\"");
    }
}

/// All ranks run: says which job it is.
fn let_go((job, is_quiet): (&JobId, bool)) -> Outcome {
    match writeln!(io::stdout(), "{job}") {
        // Who does not read the id still finds the job.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let hint = format!("job {job} runs: \"rankrun stop {job}\" ends it");
            report::error(false, "cannot write the id of the job to stdout", Some(&error), Some(&hint));
            return Outcome { code: ExitCode::INTERNAL, raise: None };
        }
        _ => {}
    }
    if !is_quiet && terminal::is_terminal(rustix::stdio::stderr()) {
        let _ = writeln!(io::stderr(), "rankrun: all ranks run: \"rankrun attach {job}\" shows the output");
    }
    Outcome { code: ExitCode::SUCCESS, raise: None }
}
