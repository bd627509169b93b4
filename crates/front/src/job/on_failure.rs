//! What is asked when an attempt has failed: `--on-failure COMMAND`, a command of the user's own that reads the report's JSON on stdin
//! and writes its answer to stdout; and at the end, if that is wanted, the scheduler.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rankrun_core::job::Event;
use rankrun_core::report::Report;
use rankrun_core::restart::Decision;

use crate::command::{Asked, Command, CommandError, Hold, Output, OwnCommand, Pending, ask_on_thread};
use crate::job::front::Front;

/// How long the scheduler may take.
const REQUEUE_BOUND: Duration = Duration::from_secs(20);

impl Front {
    /// Asks `--on-failure` about an end; `own` is what happens without it.
    pub(crate) fn ask_policy(&mut self, report: Arc<Report>, own: Decision) {
        let Some(wanted) = self.job.spec().restart.on_failure.clone() else { return };
        let asked = self.start_command(&wanted.command).and_then(|(hold, command)| {
            let policy = OwnCommand { command, timeout: wanted.timeout };
            ask_on_thread(hold, self.waker.handle()?, policy, report, own)
        });
        match asked {
            Ok(asked) => self.asked = Some(asked),
            Err(error) => self.take(Event::NotAsked { why: rankrun_sys::reason(&error) }),
        }
    }

    fn start_command(&mut self, words: &[OsString]) -> io::Result<(Hold, Command)> {
        let (hold, command) = Command::start(&mut self.reach.starter, &self.job.spec().job, words)?;
        self.commands.retain(|host| !host.has_proved());
        self.commands.push(hold.host.clone());
        Ok((hold, command))
    }

    /// `--on-failure` may have answered. If the job does not wait for that any more, the command is ended.
    pub(crate) fn hear_answer(&mut self) {
        if self.asked.is_none() {
            return;
        }
        let answer = self.asked.as_ref().filter(|_| self.job.awaits_policy()).and_then(Asked::result);
        if answer.is_some() || !self.job.awaits_policy() {
            self.asked = None;
        }
        if let Some(answer) = answer {
            self.take(Event::Answered(answer));
        }
    }

    /// After the end of the job: asks the scheduler to run it again, if that is wanted. Signals and `rankrun status` are
    /// answered meanwhile.
    pub(crate) fn requeue(&mut self) {
        if self.job.is_to_requeue() {
            let (Ok(text) | Err(text)) = self.ask_scheduler();
            self.note(text);
        }
    }

    fn ask_scheduler(&mut self) -> Result<String, String> {
        let environment = &self.job.spec().base_env;
        let Some((_, job)) = environment.iter().find(|(name, _)| name == "SLURM_JOB_ID") else {
            return Err("--on-giveup requeue: there is no scheduler: SLURM_JOB_ID is not set".to_owned());
        };
        let id = job.to_string_lossy().into_owned();
        let refused = |why: String| format!("Slurm does not run job {id} again: {why}");
        let words = ["scontrol".into(), "requeue".into(), job.clone()];
        let asked = self.start_command(&words).and_then(|(hold, mut command)| {
            Pending::new(hold, self.waker.handle()?, move || command.converse(b"", REQUEUE_BOUND))
        });
        let asked = asked.map_err(|error| refused(rankrun_sys::reason(&error)))?;
        let output = loop {
            if let Some(output) = asked.result() {
                break output;
            }
            // The thread wakes us, in time.
            if self.drain.is_hurried() || !self.wait_until(self.now() + REQUEUE_BOUND) {
                break Err(CommandError::Unwanted);
            }
        };
        match output {
            Ok(Output { status, .. }) if status.success() => {
                Ok(format!("Slurm runs job {id} again (scontrol requeue)"))
            }
            Ok(Output { status, .. }) => Err(refused(format!("scontrol requeue: {status}"))),
            Err(error) => Err(refused(error.to_string())),
        }
    }
}
