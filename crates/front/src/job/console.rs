//! Who looks at the output from elsewhere, and how a job leaves its terminal (docs/detach.md).

use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rankrun_core::control::{Answer, Request};
use rankrun_core::gang;
use rankrun_core::job::{ClientId, Event};
use rankrun_output::{Mode, Recorder};
use rankrun_sys::poll::wait_for;
use rankrun_sys::process::ProcessRef;
use rankrun_sys::{signal, terminal};
use rankrun_wire::ToAgent;
use rustix::event::{PollFd, PollFlags};

use super::Front;
use crate::delivery::{Directory, Task, TranscriptPlace};
use crate::terminal::Stdin;

/// How long a write to the console that is under way may take when the console is left.
const HALT_BOUND: Duration = Duration::from_secs(1);

impl Front {
    /// A request that concerns the console, not the job. Returns whether it was one.
    pub(super) fn console_request(&mut self, client: ClientId, request: &Request) -> bool {
        let now = self.now();
        let place = match request {
            Request::Detach if self.delivery.is_away() => {
                self.control.answer(now, client, &Answer::Detached { already: true });
                return true;
            }
            Request::Detach => self.may_detach(),
            Request::Attach => TranscriptPlace::of(&self.plan, self.started),
            Request::Input { from, number, text } => {
                self.typed(client, from, *number, text.as_deref());
                return true;
            }
            Request::Status { .. }
            | Request::Stop { .. }
            | Request::Stacks { .. }
            | Request::Restart { .. }
            | Request::Profile { .. }
            | Request::EndProfile
            | Request::Wait => return false,
        };
        match place {
            Ok(place) => {
                // The answer follows when the transcript is there.
                self.control.await_transcript(client, *request == Request::Detach);
                self.begin_recording(place, *request == Request::Detach);
                if self.delivery.is_recording() {
                    self.transcript_is_there();
                }
            }
            Err(error) => self.control.answer(now, client, &Answer::Refused { error, hint: None }),
        }
        true
    }

    /// Somebody looks, or the console is to be left: from now on there is a transcript.
    fn begin_recording(&mut self, place: TranscriptPlace, leaves: bool) {
        let now = self.now();
        let map = self.job.spec().map.clone();
        let groups = self.job.specs_of_groups().map(|spec| (spec.group, spec.map.clone())).collect();
        let recorder = Recorder::at(place.bound, map, groups, self.looked_until, &[]);
        let directory = place.directory.path.clone();
        self.delivery.begin_recording(now, place, recorder, leaves);
        if !std::mem::replace(&mut self.was_looked_at, true)
            && let Some(from) = Directory::of_pointer(&self.plan.report)
        {
            self.delivery.files.submit(now, Task::Point { from, to: directory });
        }
    }

    /// Where the transcript is to be, if the job can go on without its terminal. Else why it cannot.
    fn may_detach(&self) -> Result<TranscriptPlace, String> {
        if self.plan.spec.io.tty.is_some() {
            let why = match self.plan.spec.map.world_size() {
                1 => "its rank has the terminal; with --on-hangup detach a single rank does not get it",
                _ => "a rank has the terminal (--tty)",
            };
            return Err(why.to_owned());
        }
        if self.plan.output.mode == Mode::Grouped {
            return Err("its output is shown when it ends (--output grouped)".to_owned());
        }
        TranscriptPlace::of(&self.plan, self.started)
    }

    /// All ranks run: who has waited for that may go, and the terminal with it.
    pub(super) fn have_begun(&mut self) {
        let is_resumed = self.is_successor && self.parent.as_ref().is_some_and(|parent| !parent.is_inherited);
        let is_up = match is_resumed {
            true => self.reach.is_together(),
            false => self.job.last_up().is_some(),
        };
        let Some(parent) = self.parent.take_if(|_| is_up && self.control.has_tried()) else {
            return;
        };
        self.flush_screen();
        // Without descriptors the terminal is held, and nothing is written to it.
        let _ = self.delivery.forget_console(&self.waker);
        self.plan.color = false;
        self.send(&ToAgent::LeaveStreams);
        leave_streams();
        parent.dismiss();
    }

    /// The transcript is there: tells those who wait for it, and leaves the terminal, if that is what it is for.
    pub(super) fn transcript_is_there(&mut self) {
        if let Ok(place) = TranscriptPlace::of(&self.plan, self.started) {
            let is_detached = self.delivery.is_away();
            let from = if is_detached { self.left_at } else { self.delivery.recorded() };
            let transcript = place.path.to_string_lossy().into_owned();
            let now = self.now();
            self.control.answer_attached(now, &Answer::Attached { transcript, from, is_detached });
        }
        if !self.delivery.is_away() && self.control.awaits_detach() {
            let result = self.leave();
            let now = self.now();
            self.control.answer_detach(now, &result);
        }
    }

    /// There is no transcript.
    pub(super) fn lose_transcript(&mut self, why: &str) {
        let text = format!("cannot write the output to the directory of the report: {why}");
        let now = self.now();
        self.control.answer_no_transcript(now, &text);
        self.control.answer_detach(now, &Err(text.clone()));
        if self.delivery.is_away() {
            self.note(text);
            self.event(gang::Event::OutputFailed);
        }
        self.looked_until = self.delivery.end_recording().unwrap_or(self.looked_until);
    }

    /// The process that writes the transcript was killed. Only another front has all that is to be written.
    pub(super) fn lose_writer(&mut self) {
        if self.ledger.is_some() && self.heir.is_some() {
            self.note("the process that writes the output was killed: another front writes it again".to_owned());
            self.commit();
            if let Some(own) = ProcessRef::open(std::process::id() as i32) {
                // Where that fails, it goes on as without another front.
                let _ = own.signal(signal::SIGKILL);
            }
        }
        self.delivery.lose_writer();
        let why = "the process that writes there has ended";
        match self.delivery.is_away() {
            true => {
                let reason = format!("cannot write the output to the directory of the report: {why}");
                self.event(gang::Event::LogsFailed { reason });
            }
            false => self.lose_transcript(why),
        }
    }

    /// The terminal is gone, or who reads the output is. Returns whether the job goes on.
    pub(super) fn goes_on_without_console(&mut self) -> bool {
        if !self.plan.goes_on_after_hangup || !self.delivery.has_lost_console() || self.job.is_over() {
            return false;
        }
        self.hang_up()
    }

    /// SIGHUP.
    pub(super) fn hung_up(&mut self) {
        let goes_on = self.delivery.is_away() || (self.plan.goes_on_after_hangup && self.hang_up());
        if !goes_on {
            self.take(Event::Signal { number: signal::SIGHUP, by_key: false });
        }
    }

    fn hang_up(&mut self) -> bool {
        let left = self.may_detach().and_then(|place| {
            self.begin_recording(place, true);
            self.leave()
        });
        if let Err(why) = &left {
            self.note(format!("cannot go on without the terminal: {why}"));
        }
        left.is_ok()
    }

    /// The output goes to the transcript alone from now on, and nothing of ours uses the terminal.
    fn leave(&mut self) -> Result<(), String> {
        let job = self.job.spec().job.clone();
        if !self.delivery.has_lost_console() {
            self.note(format!("job {job} goes on without this terminal: see it with \"rankrun attach {job}\""));
            self.flush_screen();
            // It may have been lost meanwhile.
            if self.delivery.is_away() {
                return Ok(());
            }
        }
        self.halt_console();
        let now = self.now();
        self.left_at = self.delivery.leave(now, &self.waker).map_err(|error| rankrun_sys::reason(&error))?;
        (self.plan.color, self.plan.output.status) = (false, None);
        if terminal::standard()[0]
            && let Some(Stdin::Read(reader)) = &mut self.stdin
        {
            reader.end();
        }
        self.send(&ToAgent::LeaveStreams);
        leave_streams();
        self.job_control.leave_for_good();
        Ok(())
    }

    /// Waits until it is known what the console has taken. One that is blocked may take more later: that is then seen twice.
    fn halt_console(&mut self) {
        self.delivery.halt_console();
        let until = Instant::now() + HALT_BOUND;
        while !self.delivery.is_console_halted() {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return;
            }
            wait_for(&mut [PollFd::new(&self.waker, PollFlags::IN)], Some(rest));
            self.waker.clear();
            let now = self.now();
            self.delivery.receive(now);
        }
        // The loop handles what else has come.
        self.waker.wake();
    }

    /// Nobody looks any more.
    pub(super) fn end_recording(&mut self) {
        if !self.control.is_watched() && !self.control.awaits_detach() {
            self.looked_until = self.delivery.end_recording().unwrap_or(self.looked_until);
        }
    }
}

/// Our own streams lead nowhere from now on.
fn leave_streams() {
    let Ok(null) = File::options().read(true).write(true).open("/dev/null") else { return };
    // Where that fails, they stay what they are, and nothing uses them. A file or a pipe is read to its end.
    if terminal::is_terminal(rustix::stdio::stdin()) {
        // The same.
        let _ = rustix::stdio::dup2_stdin(null.as_fd());
    }
    // The same.
    let _ = rustix::stdio::dup2_stdout(null.as_fd());
    let _ = rustix::stdio::dup2_stderr(null.as_fd());
}
