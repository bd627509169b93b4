//! The ranks' PMI connections: moves bytes between their sockets and the sans-IO server.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::Path;

use bytes::{Buf, Bytes};
use rankrun_core::collective::Collective;
use rankrun_core::evidence::MpiEvent;
use rankrun_core::job::AgentEvent;
use rankrun_core::names::{Protocol, Reply};
use rankrun_core::spawning::{SpawnAnswer, SpawnAsker};
use rankrun_core::{Attempt, GroupId, Rank, Slot, Stream, WorkerId};
use rankrun_sys::poll::{Interest, Poller, Ready};
use rankrun_sys::proc::{self, Reaction};
use rankrun_sys::process::{ProcessId, ProcessRef};
use rankrun_sys::signal;
use rankrun_sys::socket;
use rankrun_wire::ToFront;
use rankrun_wireup::pmi1;
use rankrun_wireup::pmix::Answer;

use crate::binding::topology_file;
use crate::driver::token::{Place, Token};

/// Bytes read from a client at a time: more than a request has, so that a flood is recognised.
const READ: usize = 4096;
/// Requests taken from a rank per wake-up. Its next one is often there as soon as the last one is answered; a rank that sends
/// without pause waits for the others.
const READS: usize = 64;

/// What the server learns about the ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum News {
    Mpi(Place, MpiEvent),
    /// By PMIx: it has begun a program of MPI; the process, if it is known. And it has finalized.
    InPmix(Place, Option<ProcessId>),
    OutOfPmix(Place),
    Note(String),
    /// The rank wrote this through its MPI library, and not to its own descriptors.
    Wrote(Place, Stream, Vec<u8>),
    /// The host is sent this answer, after what comes before.
    Answer {
        id: u64,
        answer: Answer,
    },
    /// What the rest of the job is asked, or answered.
    Tell(ToFront),
    /// What connects the ranks is gone.
    WireUpLost(String),
}

impl News {
    /// The group that it is news of. `None`: it is of the job.
    pub(crate) fn group(&self) -> Option<GroupId> {
        match self {
            News::Mpi(place, _) | News::InPmix(place, _) | News::OutOfPmix(place) | News::Wrote(place, ..) => {
                Some(place.group)
            }
            News::Note(_) | News::Answer { .. } | News::Tell(_) | News::WireUpLost(_) => None,
        }
    }
}

/// The agent's end of a rank's connection.
#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    out: VecDeque<Bytes>,
    /// It is polled for room to write, and not read until its replies are sent.
    awaits_room: bool,
}

#[derive(Debug, Default)]
struct Member {
    client: Option<Client>,
    /// The front was sent that the rank left a barrier of its present program.
    passed_barrier: bool,
    /// The process that has inited MPI, if the kernel gives its pid.
    process: Option<ProcessId>,
}

/// The server and its clients.
pub(crate) struct Pmi {
    group: GroupId,
    attempt: Attempt,
    server: pmi1::Server,
    ranks: Vec<Rank>,
    members: Vec<Member>,
}

impl Pmi {
    /// A server for the ranks of this node, in the order of their slots.
    pub(crate) fn new(config: pmi1::Config, attempt: Attempt, ranks: Vec<Rank>) -> Pmi {
        let members = ranks.iter().map(|_| Member::default()).collect();
        Pmi { group: config.group, attempt, server: pmi1::Server::new(config), ranks, members }
    }

    /// A rank's socket, made before its start.
    pub(crate) fn prepared(&mut self, slot: Slot, socket: OwnedFd) {
        // Without credentials the process that is in MPI is not known.
        let _ = socket::name_senders(&socket);
        self.members[slot.index()].client = Some(Client { socket, out: VecDeque::new(), awaits_room: false });
    }

    /// The rank runs: reads its socket from now on.
    pub(crate) fn started(&self, slot: Slot, poller: &Poller) -> std::io::Result<()> {
        match &self.members[slot.index()].client {
            Some(client) => poller.add(&client.socket, self.token(slot), Interest::Read),
            None => Ok(()),
        }
    }

    /// Whether a rank has inited MPI and not finalized.
    pub(crate) fn is_in_mpi(&self, slot: Slot) -> bool {
        matches!(self.server.lifecycle(self.ranks[slot.index()]), pmi1::Lifecycle::Inited { .. })
    }

    /// The process of a rank that inited MPI last.
    pub(crate) fn process(&self, slot: Slot) -> Option<ProcessId> {
        self.members[slot.index()].process
    }

    /// A socket is ready.
    pub(crate) fn ready(&mut self, slot: Slot, event: Ready, poller: &Poller) -> Vec<News> {
        let mut news = Vec::new();
        if event.writable {
            self.write(slot, poller);
        }
        if event.readable {
            self.read(slot, poller, &mut news);
        }
        news
    }

    /// Reads the pending requests of a rank that has ended.
    pub(crate) fn read_last(&mut self, slot: Slot, poller: &Poller) -> Vec<News> {
        let mut news = Vec::new();
        self.read(slot, poller, &mut news);
        news
    }

    fn read(&mut self, slot: Slot, poller: &Poller, news: &mut Vec<News>) {
        let mut bytes = [0u8; READ];
        for _ in 0..READS {
            let Some(client) = &self.members[slot.index()].client else { return };
            // Read no requests from a client that does not read its replies.
            if !client.out.is_empty() {
                return;
            }
            let rank = self.ranks[slot.index()];
            let mut effects = Vec::new();
            let mut sender = None;
            match socket::receive_from(&client.socket, &mut bytes) {
                Ok((count, from)) if count > 0 => {
                    sender = from;
                    self.server.received(rank, &bytes[..count], &mut effects);
                }
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => continue,
                Ok(_) | Err(_) => {
                    self.server.closed(rank, &mut effects);
                    self.close(slot, poller);
                }
            }
            if effects.iter().any(|effect| matches!(effect, pmi1::Effect::Inited { .. })) {
                self.members[slot.index()].process = sender.and_then(ProcessId::of);
            }
            self.perform(effects, poller, news);
        }
    }

    fn perform(&mut self, effects: Vec<pmi1::Effect>, poller: &Poller, news: &mut Vec<News>) {
        for effect in effects {
            match effect {
                pmi1::Effect::Reply { rank, bytes } => {
                    let Some(slot) = self.slot_of(rank) else { continue };
                    if let Some(client) = &mut self.members[slot.index()].client {
                        client.out.push_back(bytes);
                        self.write(slot, poller);
                    }
                    self.note_barrier(slot, news);
                }
                pmi1::Effect::Inited { rank, .. } => {
                    let Some(slot) = self.slot_of(rank) else { continue };
                    self.members[slot.index()].passed_barrier = false;
                    news.push(News::Mpi(self.place(slot), MpiEvent::Inited));
                }
                pmi1::Effect::Finalized { rank, .. } => {
                    news.extend(self.slot_of(rank).map(|slot| News::Mpi(self.place(slot), MpiEvent::Finalized)));
                }
                pmi1::Effect::Abort { rank, code, message } => {
                    let event = MpiEvent::Aborted { code, message };
                    news.extend(self.slot_of(rank).map(|slot| News::Mpi(self.place(slot), event)));
                }
                pmi1::Effect::BarrierBroken { epoch, left } => {
                    let who = left.map_or_else(|| "a rank".to_owned(), |rank| format!("rank {rank}"));
                    let text = format!("{who} has left MPI while others wait in a barrier (program {epoch})");
                    news.push(News::Note(text));
                }
                pmi1::Effect::Collective(part) => news.push(News::Tell(ToFront::Collective(part))),
                pmi1::Effect::Gone { group, seq, ranks } => {
                    news.push(News::Tell(ToFront::Gone { group, seq, ranks }));
                }
                pmi1::Effect::Ask { id, question } => {
                    news.push(News::Tell(ToFront::Ask { group: self.group, protocol: Protocol::Pmi1, id, question }));
                }
                pmi1::Effect::Topology { path } => topology_file::write(Path::new(&path)),
                pmi1::Effect::Spawn { id, rank, request } => {
                    let worker = WorkerId { rank, attempt: self.attempt };
                    let asker = SpawnAsker { worker, protocol: Protocol::Pmi1, id };
                    news.push(News::Tell(ToFront::Event(AgentEvent::Spawn { asker, request })));
                }
                pmi1::Effect::Malformed { rank, reason } => {
                    let Some(slot) = self.slot_of(rank) else { continue };
                    news.push(News::Mpi(self.place(slot), MpiEvent::Malformed { reason }));
                    self.close(slot, poller);
                }
                pmi1::Effect::Closed { .. } => {}
            }
        }
    }

    /// All nodes have contributed to a collective.
    pub(crate) fn collective_done(&mut self, whole: Collective, poller: &Poller) -> Vec<News> {
        let (mut effects, mut news) = (Vec::new(), Vec::new());
        self.server.collective_done(whole, &mut effects);
        self.perform(effects, poller, &mut news);
        news
    }

    /// Ranks are gone, on whichever node, and the others run on.
    pub(crate) fn lost(&mut self, ranks: &[Rank], poller: &Poller) -> Vec<News> {
        let (mut effects, mut news) = (Vec::new(), Vec::new());
        self.server.lost(ranks, &mut effects);
        self.perform(effects, poller, &mut news);
        news
    }

    /// Has the ranks in MPI look at `PMI_dead_processes`, as Hydra does: MPICH handles SIGUSR1 for that. A process that does not handle the
    /// signal would be ended by it.
    pub(crate) fn tell_lost(&self) {
        for (slot, member) in self.members.iter().enumerate() {
            let process = member.process.filter(|_| self.is_in_mpi(Slot(slot as u32)));
            if let Some(id) = process
                && proc::reaction(id.pid, signal::SIGUSR1) == Some(Reaction::Noticed)
                && let Some(process) = ProcessRef::of(id)
            {
                // It may have ended.
                let _ = process.signal(signal::SIGUSR1);
            }
        }
    }

    /// The names of the job have answered.
    pub(crate) fn answered(&mut self, id: u64, reply: Reply, poller: &Poller) -> Vec<News> {
        let (mut effects, mut news) = (Vec::new(), Vec::new());
        self.server.answered(id, reply, &mut effects);
        self.perform(effects, poller, &mut news);
        news
    }

    /// The ranks that one of ours has asked for have been started, or will not be.
    pub(crate) fn spawned(&mut self, id: u64, answer: &SpawnAnswer, poller: &Poller) -> Vec<News> {
        let (mut effects, mut news) = (Vec::new(), Vec::new());
        self.server.spawned(id, answer, &mut effects);
        self.perform(effects, poller, &mut news);
        news
    }

    fn note_barrier(&mut self, slot: Slot, news: &mut Vec<News>) {
        let lifecycle = self.server.lifecycle(self.ranks[slot.index()]);
        let member = &mut self.members[slot.index()];
        if matches!(lifecycle, pmi1::Lifecycle::Inited { passed_barrier: true, .. }) && !member.passed_barrier {
            member.passed_barrier = true;
            news.push(News::Mpi(self.place(slot), MpiEvent::PassedBarrier));
        }
    }

    fn write(&mut self, slot: Slot, poller: &Poller) {
        let token = self.token(slot);
        let Some(client) = &mut self.members[slot.index()].client else { return };
        let mut interest = None;
        while let Some(bytes) = client.out.front_mut() {
            match rustix::net::send(&client.socket, bytes, rustix::net::SendFlags::NOSIGNAL) {
                Ok(count) if count == bytes.len() => {
                    client.out.pop_front();
                }
                Ok(count) => {
                    bytes.advance(count);
                }
                Err(rustix::io::Errno::AGAIN) => {
                    interest = (!std::mem::replace(&mut client.awaits_room, true)).then_some(Interest::Write);
                    break;
                }
                Err(_) => {
                    self.close(slot, poller);
                    return;
                }
            }
        }
        if client.out.is_empty() && std::mem::take(&mut client.awaits_room) {
            interest = Some(Interest::Read);
        }
        if let Some(interest) = interest
            && poller.change(&client.socket, token, interest).is_err()
        {
            // Without a reply it would wait for ever. Close it; its peers see that it is gone.
            self.close(slot, poller);
        }
    }

    /// Closes a rank's connection.
    pub(crate) fn close(&mut self, slot: Slot, poller: &Poller) {
        if let Some(client) = self.members[slot.index()].client.take() {
            // It may not be in the set yet.
            let _ = poller.remove(&client.socket);
        }
    }

    fn token(&self, slot: Slot) -> u64 {
        Token::Pmi(self.place(slot)).encode()
    }

    fn place(&self, slot: Slot) -> Place {
        Place { group: self.group, slot }
    }

    fn slot_of(&self, rank: Rank) -> Option<Slot> {
        // Ranks are in ascending order on a node, and need not be in a row.
        self.ranks.binary_search(&rank).ok().map(|index| Slot(index as u32))
    }
}
