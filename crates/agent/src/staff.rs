//! The processes of rankrun itself that a job has on this node, found by their names: relay, guard and agent of a node that its
//! front reached over ssh. A job's name is random, and no other process of this user has it for a name.

use rankrun_core::JobId;
use rankrun_sys::process::ProcessRef;
use rankrun_sys::{name, proc, signal};

/// Tells a relay that its front is gone. It cannot know by itself when a connection is cut in silence.
pub const FRONT_IS_GONE: i32 = signal::SIGUSR1;

/// Tells the agent of another node that its front lives, although nothing comes over its connection. By itself it does nothing to a
/// process.
pub const FRONT_LIVES: i32 = signal::SIGURG;

/// Bytes of a process's command that are read.
const TITLE: u64 = 256;

/// What a process is to the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Relay,
    Guard,
    Agent,
}

impl Role {
    const ALL: [Role; 3] = [Role::Relay, Role::Guard, Role::Agent];

    fn name(self) -> &'static str {
        match self {
            Role::Relay => "rr-relay",
            Role::Guard => "rr-guard",
            Role::Agent => "rr-agent",
        }
    }

    /// Gives this process the name of the role.
    pub(crate) fn take_name(self, job: &JobId) {
        // If the name cannot be set, it is only harder to see what this is, and to find it.
        let _ = name::set(self.name(), &self.title(&job.0));
    }

    fn title(self, job: &str) -> String {
        format!("{} {job}", self.name())
    }
}

/// One of them.
#[derive(Debug)]
pub struct Ours {
    pub role: Role,
    pub process: ProcessRef,
}

/// Those of a job that are alive. The job's name contains what tells this node from others.
pub fn of(job: &str) -> Vec<Ours> {
    let user = rankrun_sys::kernel::user();
    let role = |process: &proc::Process| {
        let role = Role::ALL.into_iter().find(|role| process.name == role.name())?;
        // Another user's process may have any name.
        let is_ours = process.state != 'Z' && proc::owner(process.pid) == Some(user);
        let title = proc::arguments(process.pid, TITLE);
        let title = title.first().filter(|_| is_ours)?;
        (*title == role.title(job).into_bytes()).then_some(role)
    };
    let found = |process: proc::Process| {
        let wanted = role(&process)?;
        let process = ProcessRef::open_if(process.pid, |again| role(again) == Some(wanted))?;
        Some(Ours { role: wanted, process })
    };
    proc::all().into_iter().filter_map(found).collect()
}
