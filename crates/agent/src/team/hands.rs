//! What a team works with.

use std::time::Duration;

use rankrun_sys::poll::Poller;
use rankrun_wire::ToFront;

use super::prepare::Inherited;
use super::spawner::SpawnerThread;
use crate::children::{Children, Interpreters, Libraries};
use crate::driver::clock::Clock;
use crate::guard::lease::Lease;
use crate::services::looker::Looker;
use crate::services::torch_store::TorchStore;
use crate::services::worker_socket::WorkerSocket;
use crate::tidy::shm::SharedMemory;

/// What a team uses and does not own: it outlives the team.
pub(crate) struct Hands {
    pub(crate) poller: Poller,
    pub(crate) clock: Clock,
    /// Messages to the front, in order.
    pub(crate) outbox: Vec<ToFront>,
    pub(crate) children: Children,
    pub(crate) spawner: SpawnerThread,
    pub(crate) worker_socket: WorkerSocket,
    pub(crate) torch_store: TorchStore,
    pub(crate) interpreters: Interpreters,
    pub(crate) libraries: Libraries,
    pub(crate) lease: Lease,
    /// The thread that watches /dev/shm, until a team takes it.
    pub(crate) memory: Option<SharedMemory>,
    pub(crate) inherited: Inherited,
    pub(crate) looker: Looker,
    /// When the ranks last used what connects them: PMI, PMIx, torch's store.
    pub(crate) traffic: Option<Duration>,
    /// The front is on another node: its environment, its stdin and its limits are not ours.
    pub(crate) is_away: bool,
}
