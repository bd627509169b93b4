//! What a node has once while ranks of an attempt run on it, however many groups they are of: the watch over /dev/shm, what the kernel tells
//! of memory that ran out, the job's cgroup, and the end of the attempt.

use std::collections::VecDeque;
use std::time::Duration;

use rankrun_core::job::CleanShm;
use rankrun_core::segments::Names;
use rankrun_core::{GroupId, Pid};
use rankrun_sys::oom::OomWatch;
use rankrun_wire::Memory;

use super::killed::Killed;
use crate::tidy::shm::SharedMemory;

/// How often to check whether somebody else has frozen the job's cgroup.
pub(super) const FREEZER_STEP: Duration = Duration::from_secs(1);
/// When what tells of kills for lack of memory is opened: many jobs do not live so long.
const OOM_OPENS: Duration = Duration::from_millis(20);

/// How far the end of an attempt has come on this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    No,
    /// No process is left; /dev/shm is being checked, at most until then.
    Memory {
        until: Duration,
    },
    /// The front was sent that all ranks have ended.
    Over,
    /// And that no output follows.
    Drained,
}

/// The site.
pub(crate) struct Site {
    pub(super) memory: SharedMemory,
    /// Whether anybody watches /dev/shm in this attempt.
    pub(super) is_watched: bool,
    /// The first rank is not started until the present content of /dev/shm is known.
    memory_ready: bool,
    /// Whose looks are not answered, in order.
    looks: VecDeque<GroupId>,
    pub(super) removes_memory: bool,
    /// What was found when the groups were over that there were then.
    pub(super) found: Option<Memory>,
    /// Somebody else has frozen the job's cgroup, and the front was sent a note.
    pub(super) frozen_outside: bool,
    pub(super) next_freezer_look: Duration,
    pub(super) oom: Option<OomWatch>,
    /// When it is opened.
    pub(super) oom_due: Option<Duration>,
    pub(super) killed: Killed,
    pub(super) released: u32,
    /// How many groups we were told to start in this attempt.
    pub(super) groups: u32,
    pub(super) ending: Ending,
}

impl Site {
    pub(crate) fn new(memory: SharedMemory) -> Site {
        Site {
            memory,
            is_watched: false,
            memory_ready: true,
            looks: VecDeque::new(),
            removes_memory: false,
            found: None,
            frozen_outside: false,
            next_freezer_look: Duration::ZERO,
            oom: None,
            oom_due: None,
            killed: Killed::default(),
            released: 0,
            groups: 0,
            ending: Ending::No,
        }
    }

    /// An attempt begins with its first group.
    pub(super) fn begin(&mut self, now: Duration, policy: CleanShm, names: impl FnOnce() -> Names) {
        self.looks.clear();
        (self.found, self.released, self.groups) = (None, 0, 0);
        self.removes_memory = policy == CleanShm::Job;
        self.killed = Killed::default();
        self.frozen_outside = false;
        self.next_freezer_look = now + FREEZER_STEP;
        self.oom = Some(OomWatch::start());
        self.oom_due = Some(now + OOM_OPENS);
        self.watch_memory(policy, names);
    }

    fn watch_memory(&mut self, policy: CleanShm, names: impl FnOnce() -> Names) {
        self.is_watched = policy != CleanShm::No && self.memory.begin(policy, names()).is_ok();
        self.memory_ready = !self.is_watched;
    }

    /// A group is about to begin. Another may have begun before, and all of them be over.
    pub(super) fn add(&mut self, policy: CleanShm, names: impl FnOnce() -> Names) {
        self.groups += 1;
        if self.ending != Ending::No && self.groups > 1 {
            // The last look was for those that were there.
            self.watch_memory(policy, names);
        }
        self.ending = Ending::No;
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.ending, Ending::Over | Ending::Drained)
    }

    /// Whether ranks may be started.
    pub(super) fn is_ready(&self) -> bool {
        self.memory_ready
    }

    /// A rank runs.
    pub(super) fn add_leader(&self, pid: Pid) {
        if self.is_watched {
            self.memory.add_leader(pid);
        }
    }

    /// Requests a look at /dev/shm for a team, whose processes are about to be signalled. Returns whether [`News::Looked`] follows.
    pub(super) fn look(&mut self, group: GroupId) -> bool {
        let is_asked = self.is_watched && self.memory_ready && self.memory.look();
        self.looks.extend(is_asked.then_some(group));
        is_asked
    }

    /// A name has appeared in /dev/shm.
    pub(crate) fn memory_told(&mut self) {
        if self.is_watched {
            self.memory.told();
        }
    }

    /// When [`super::conclude::tick`] is due.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let memory = match self.ending {
            Ending::Memory { until } => Some(until),
            Ending::No | Ending::Over | Ending::Drained => None,
        };
        [memory, self.oom_due].into_iter().flatten().min()
    }

    pub(super) fn has_released(&self) -> bool {
        self.released > 0
    }

    /// The next news of the watch over /dev/shm.
    pub(super) fn next_news(&mut self) -> Option<News> {
        use crate::tidy::shm::Answer;
        loop {
            return Some(match self.memory.next_answer()? {
                Answer::Ready => {
                    self.memory_ready = true;
                    News::Ready
                }
                Answer::Looked => match self.looks.pop_front() {
                    Some(group) => News::Looked(group),
                    None => continue,
                },
                Answer::Finished(left) if matches!(self.ending, Ending::Memory { .. }) => News::Finished(left),
                Answer::Finished(_) => continue,
            });
        }
    }

    /// After the end: whether no output is left here is news for the front.
    pub(super) fn drained(&mut self) -> bool {
        let is_news = self.ending == Ending::Over;
        if is_news {
            self.ending = Ending::Drained;
        }
        is_news
    }
}

/// What the watch over /dev/shm has done.
pub(super) enum News {
    Ready,
    /// The look that this group has asked for is over.
    Looked(GroupId),
    Finished(Memory),
}
