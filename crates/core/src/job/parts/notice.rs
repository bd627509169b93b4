//! When to look for the notice of a preemption, and whether it has come.

use std::time::Duration;

use crate::job::parts::attempts::Stamp;
use crate::planned::Notice;
use crate::status::WorkerStatus;

/// How often to look for the file.
pub(in crate::job) const FILE_STEP: Duration = Duration::from_secs(1);
/// The pause between two runs of the command.
pub(in crate::job) const COMMAND_PAUSE: Duration = Duration::from_secs(5);
/// With these codes a shell tells that it could not run a command.
const NOT_RUN: [u8; 2] = [126, 127];

/// What an answer means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::job) enum Said {
    /// It has not come.
    Nothing,
    /// The user is to know this.
    Note(String),
    /// It has come.
    Come,
}

/// The watch for the notice.
#[derive(Debug)]
pub(in crate::job) struct NoticeWatch {
    notice: Option<Notice>,
    /// When to look; `None` while an answer is awaited, and when nobody wants one.
    next: Option<Duration>,
    /// How the file was at the last look.
    stamp: Option<Stamp>,
    /// The user knows that the command does not work.
    has_told: bool,
}

impl NoticeWatch {
    pub(in crate::job) fn new(notice: Option<&Notice>) -> NoticeWatch {
        NoticeWatch { notice: notice.cloned(), next: None, stamp: None, has_told: false }
    }

    /// The job begins.
    pub(in crate::job) fn begin(&mut self, now: Duration) {
        self.next = self.notice.as_ref().map(|_| now);
    }

    /// The notice is not wanted any more.
    pub(in crate::job) fn end(&mut self) {
        self.notice = None;
        self.next = None;
    }

    pub(in crate::job) fn deadline(&self) -> Option<Duration> {
        self.next
    }

    /// What to look for now, if it is time.
    pub(in crate::job) fn due(&mut self, now: Duration) -> Option<Notice> {
        self.next.take_if(|at| *at <= now)?;
        self.notice.clone()
    }

    /// The file was looked at.
    pub(in crate::job) fn file_seen(&mut self, now: Duration, stamp: Stamp) -> Said {
        if self.notice.is_none() {
            return Said::Nothing;
        }
        self.next = Some(now + FILE_STEP);
        match self.stamp.replace(stamp) {
            None if stamp.is_some() => {
                Said::Note("the file of --preempt-notice is there from before: a change of it is the notice".to_owned())
            }
            Some(before) if stamp.is_some() && stamp != before => Said::Come,
            None | Some(_) => Said::Nothing,
        }
    }

    /// The command has ended, or could not be run.
    pub(in crate::job) fn command_ended(&mut self, now: Duration, result: Result<WorkerStatus, String>) -> Said {
        if self.notice.is_none() {
            return Said::Nothing;
        }
        self.next = Some(now + COMMAND_PAUSE);
        let why = match result {
            Ok(status) if status.success() => return Said::Come,
            Ok(WorkerStatus::Exited { code }) if !NOT_RUN.contains(&code) => return Said::Nothing,
            Ok(status) => status.to_string(),
            Err(why) => why,
        };
        match std::mem::replace(&mut self.has_told, true) {
            true => Said::Nothing,
            false => {
                Said::Note(format!("--preempt-notice: {why}: it is tried again every {} s", COMMAND_PAUSE.as_secs()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_file_that_appears_or_changes_is_the_notice_and_one_from_before_is_not() {
        let file = Notice::File("/x".into());
        let mut watch = NoticeWatch::new(Some(&file));
        assert_eq!(watch.deadline(), None);
        watch.begin(s(1));
        assert_eq!(watch.due(s(1)), Some(file.clone()));
        assert_eq!((watch.due(s(9)), watch.deadline()), (None, None), "the answer is awaited");
        assert_eq!(watch.file_seen(s(2), None), Said::Nothing);
        assert_eq!(watch.deadline(), Some(s(3)));
        assert_eq!(watch.file_seen(s(3), Some((7, 0))), Said::Come);

        let mut watch = NoticeWatch::new(Some(&file));
        watch.begin(s(1));
        assert!(matches!(watch.file_seen(s(1), Some((7, 0))), Said::Note(_)));
        assert_eq!(watch.file_seen(s(2), Some((7, 0))), Said::Nothing);
        assert_eq!(watch.file_seen(s(3), None), Said::Nothing, "somebody has removed it");
        assert_eq!(watch.file_seen(s(4), Some((8, 0))), Said::Come);
        watch.end();
        assert_eq!((watch.file_seen(s(5), Some((9, 0))), watch.deadline()), (Said::Nothing, None));
    }

    #[test]
    fn a_command_is_repeated_until_it_succeeds_and_one_that_cannot_run_is_told_of_once() {
        let mut watch = NoticeWatch::new(Some(&Notice::Command(vec!["x".into()])));
        watch.begin(s(0));
        let exit = |code| Ok(WorkerStatus::Exited { code });
        assert_eq!(watch.command_ended(s(1), exit(22)), Said::Nothing);
        assert_eq!(watch.deadline(), Some(s(6)));
        for (at, result) in [(s(7), exit(127)), (s(13), Err("lost".to_owned()))] {
            let said = watch.command_ended(at, result);
            assert_eq!(matches!(said, Said::Note(_)), at == s(7), "{said:?}");
        }
        assert_eq!(watch.command_ended(s(20), exit(0)), Said::Come);
    }
}
