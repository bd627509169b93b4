//! What a node has once while ranks of an attempt run on it, however many groups they are of: the watch over /dev/shm, what the kernel tells
//! of memory that ran out, the job's cgroup, and the end of the attempt.

use std::collections::VecDeque;
use std::time::Duration;

use rankrun_core::job::{AgentEvent, CleanShm, WorkerEvent};
use rankrun_core::segments::Names;
use rankrun_core::{GroupId, Pid};
use rankrun_sys::oom::{OomWatch, Victim};
use rankrun_sys::poll::Interest;
use rankrun_sys::proc;
use rankrun_wire::message::Summary;
use rankrun_wire::{Memory, ToFront};

use super::hands::Hands;
use super::killed::Killed;
use crate::driver::token::Token;
use crate::guard::lease::Word;
use crate::tidy::shm::{FINISH_BOUND, SharedMemory};

/// How often to check whether somebody else has frozen the job's cgroup.
const FREEZER_STEP: Duration = Duration::from_secs(1);
/// When what tells of kills for lack of memory is opened: many jobs do not live so long.
const OOM_OPENS: Duration = Duration::from_millis(20);

/// How far the end of an attempt has come on this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
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
    memory: SharedMemory,
    /// Whether anybody watches /dev/shm in this attempt.
    is_watched: bool,
    /// The first rank is not started until the present content of /dev/shm is known.
    memory_ready: bool,
    /// Whose looks are not answered, in order.
    looks: VecDeque<GroupId>,
    removes_memory: bool,
    /// What was found when the groups were over that there were then.
    found: Option<Memory>,
    /// Somebody else has frozen the job's cgroup, and the front was sent a note.
    frozen_outside: bool,
    next_freezer_look: Duration,
    pub(super) oom: Option<OomWatch>,
    /// When it is opened.
    oom_due: Option<Duration>,
    pub(super) killed: Killed,
    pub(super) released: u32,
    /// How many groups we were told to start in this attempt.
    groups: u32,
    ending: Ending,
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

    /// When [`tick`] is due.
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

/// Does what is due.
pub(super) fn tick(hands: &mut Hands, now: Duration) {
    look_at_freezer(hands, now);
    if hands.site.is_watched {
        hands.site.memory.retry();
    }
    if hands.site.oom_due.take_if(|due| *due <= now).is_some() {
        open_oom(hands);
    }
    if let Ending::Memory { until } = hands.site.ending
        && now >= until
    {
        let bound = FINISH_BOUND.as_secs();
        let text = format!("could not look through /dev/shm within {bound} s: the guard looks again");
        hands.outbox.push(ToFront::Note(text));
        over(hands, None);
    }
}

/// No process of any group is left but what was given up or released: check what is left in /dev/shm.
pub(super) fn processes_gone(hands: &mut Hands, now: Duration) {
    let site = &mut hands.site;
    if site.ending != Ending::No {
        return;
    }
    if site.is_watched && site.memory.finish() {
        site.ending = Ending::Memory { until: now + FINISH_BOUND };
        return;
    }
    if site.is_watched {
        let text = "could not look through /dev/shm: the guard looks again";
        hands.outbox.push(ToFront::Note(text.to_owned()));
    }
    over(hands, None);
}

/// `memory` is what was found in /dev/shm, if anybody has looked.
pub(super) fn over(hands: &mut Hands, memory: Option<Memory>) {
    let site = &mut hands.site;
    site.ending = Ending::Over;
    let memory = match (site.found.take(), memory) {
        (Some(mut before), Some(memory)) => {
            before.add(memory);
            Some(before)
        }
        (before, memory) => memory.or(before),
    };
    site.found.clone_from(&memory);
    let given_up = hands.children.given_up();
    if !given_up.is_empty() {
        hands.lease.send(Word::GivenUp);
    }
    hands.outbox.push(ToFront::Event(AgentEvent::Over(Summary {
        groups: hands.site.groups,
        left: given_up,
        released: hands.site.released,
        memory,
        removes_memory: hands.site.removes_memory,
    })));
}

/// Sends a note when somebody else has frozen the job's cgroup: nothing else shows why the ranks make no progress.
fn look_at_freezer(hands: &mut Hands, now: Duration) {
    if now < hands.site.next_freezer_look {
        return;
    }
    hands.site.next_freezer_look = now + FREEZER_STEP;
    let Some(cgroup) = hands.children.boundary().cgroup() else { return };
    let is_frozen = cgroup.is_frozen();
    if is_frozen && !hands.site.frozen_outside {
        let path = cgroup.path().display();
        let text = format!(
            "another program has frozen the job's cgroup: its processes are stopped until 0 is written to \"{path}/cgroup.freeze\""
        );
        hands.outbox.push(ToFront::Note(text));
    }
    hands.site.frozen_outside = is_frozen;
}

/// From here on kills for lack of memory are news.
fn open_oom(hands: &mut Hands) {
    let Some(oom) = &mut hands.site.oom else { return };
    oom.open();
    if let Some(log) = oom.log() {
        // Without it only ended leaders are checked.
        let _ = hands.poller.add(log, Token::KernelLog.encode(), Interest::Read);
    }
}

/// The kernel's log has news: which processes of the ranks were killed because memory ran out? Look them up at once: their
/// parents reap them.
pub(super) fn look_for_killed_helpers(hands: &mut Hands, now: Duration) {
    let victims = hands.site.oom.as_mut().map(OomWatch::victims).unwrap_or_default();
    let user = rustix::process::geteuid();
    for Victim { pid, user: of, line } in victims {
        let is_ours = user.is_root() || of.is_none_or(|of| of == user.as_raw());
        if !is_ours || !hands.site.killed.is_new(pid) {
            continue;
        }
        let Some(process) = proc::process(pid) else {
            hands.site.killed.add_gone(now, line);
            continue;
        };
        let Some(worker) = hands.children.worker_of(&process) else { continue };
        // The end of a leader is looked up when it has ended.
        if hands.children.worker_of_leader(pid).is_some() {
            continue;
        }
        hands.site.killed.add(now, worker, line.clone());
        let event = WorkerEvent::HelperKilledForMemory { pid: Pid(pid), name: process.name, detail: line };
        hands.outbox.push(ToFront::Event(AgentEvent::Worker { worker, at: now, event }));
    }
}
