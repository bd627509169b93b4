//! A job that is to run again: the scheduler is asked for that when all else is done.

use std::ffi::OsString;

use rankrun_core::scheduler::is_cancelled;

use super::Front;
use crate::command::{Output, SCHEDULER_BOUND};

impl Front {
    /// After the end of the job: asks the scheduler to run it again, if that is wanted and nobody has cancelled it. Signals and
    /// `rankrun status` are answered meanwhile.
    pub(super) fn requeue(&mut self) {
        if !self.job.is_to_requeue() {
            return;
        }
        let number = self.job.spec().base_env.iter().find(|(name, _)| name == "SLURM_JOB_ID");
        let Some((_, number)) = number.cloned() else {
            return self.note("there is no scheduler to run the job again: SLURM_JOB_ID is not set".to_owned());
        };
        let id = number.to_string_lossy().into_owned();
        let answer = match self.scheduler(&["show", "job"], &number) {
            // Without an answer the request itself tells what is wrong.
            Ok(shown) if is_cancelled(&shown) => Err("it was cancelled".to_owned()),
            Ok(_) | Err(_) => self.scheduler(&["requeue"], &number),
        };
        self.note(match answer {
            Ok(_) => format!("Slurm runs job {id} again (scontrol requeue)"),
            Err(why) => format!("Slurm does not run job {id} again: {why}"),
        });
    }

    /// What `scontrol` writes to stdout when it has succeeded, or why it has not.
    fn scheduler(&mut self, words: &[&str], number: &OsString) -> Result<String, String> {
        let name = || format!("scontrol {}", words.join(" "));
        let words: Vec<OsString> =
            ["scontrol"].iter().chain(words).map(OsString::from).chain([number.clone()]).collect();
        let job = &self.job.spec().job;
        let asked = self.commands.ask_scheduler(&mut self.reach.starter, &self.waker, job, &words);
        let asked = asked.map_err(|error| rankrun_sys::reason(&error))?;
        loop {
            // The thread wakes us, in time.
            let is_awaited = !self.drain.is_hurried() && self.wait_until(self.now() + SCHEDULER_BOUND);
            match asked.result() {
                Some(Ok(Output { text, status })) if status.success() => return Ok(text),
                Some(Ok(Output { status, .. })) => return Err(format!("{}: {status}", name())),
                Some(Err(error)) => return Err(error.to_string()),
                None if !is_awaited => return Err("nobody wants to know any more".to_owned()),
                None => {}
            }
        }
    }
}
