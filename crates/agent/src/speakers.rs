//! The worker socket's connections, and the processes that speak for the ranks (docs/failures.md).
//!
//! Who a client is, the kernel says: the peer's pid, and the worker whose boundary it is in. A process that was forked
//! from another speaker, or started by `multiprocessing`, is a helper of its rank and does not testify for it.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_core::Pid;
use rankrun_core::env::error_file;
use rankrun_core::testimony::{Speaker, Testimony};
use rankrun_sys::poll::{Interest, Poller};
use rankrun_sys::{proc, signal, socket};
use rankrun_wire::ToFront;
use rankrun_wireup::pmi1;
use rankrun_wireup::worker::{self, Client, Said};

use crate::boundary::Boundary;
use crate::hook;
use crate::node::Node;
use crate::token::Token;

/// The name of the worker socket in the job's directory.
pub(crate) const WORKER_SOCKET: &str = "worker.sock";
/// Connections at a time. Each rank may start many interpreters; a job of 512 ranks has 512 of them at least.
const MAX_CLIENTS: usize = 8192;
/// Connections taken per wake-up, for the same reason as [`READ`].
const ACCEPTS: usize = 32;
/// Connections taken in a time, at least; two of each rank may come at once, when all fail together. A rank that makes one
/// for each of its thousands of notes then waits in the backlog, where it costs nobody anything, and never as long as a
/// client is patient (0.25 s).
const TAKEN: usize = 40;
const WINDOW: Duration = Duration::from_millis(20);
/// Bytes taken from a client per wake-up: a rank that floods us waits for the others.
const READ: usize = 64 * 1024;
/// Bytes of an error file that are read.
const MAX_ERROR_FILE: u64 = 1 << 20;
/// Notes and asides of a rank that are handed on each second; the rest is dropped here.
const NOTES_PER_SECOND: u32 = 20;

/// One connection.
struct Connection {
    socket: OwnedFd,
    client: Client,
    pid: i32,
    slot: usize,
    may_testify: bool,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Speakers {
    listener: Option<OwnedFd>,
    connections: BTreeMap<usize, Connection>,
    next: usize,
    /// When the present time of counting began, and how many connections were taken in it.
    window: (Duration, usize),
    /// The listener is out of the poll set until then.
    rests_until: Option<Duration>,
    /// Processes that have spoken, by pid: their rank, and how far their failure has come.
    processes: HashMap<i32, (usize, Speaker)>,
    /// What was found out of clients, by pid and start time: their slot, and whether they may testify.
    known: HashMap<i32, (u64, usize, bool)>,
    /// Notes handed on in the present second, by slot.
    notes: HashMap<usize, (u64, u32)>,
}

impl Speakers {
    /// Listens, and lays out the hook if it is wanted. An error is not worth a job: without the socket ranks are silent,
    /// and still watched. Returns the socket's path and the hook's directory, where they could be made.
    pub(crate) fn open(
        &mut self,
        runtime_dir: &Path,
        with_hook: bool,
        poller: &Poller,
    ) -> (Option<PathBuf>, Option<PathBuf>) {
        let path = runtime_dir.join(WORKER_SOCKET);
        let listener = socket::listen(&path).and_then(|listener| {
            socket::set_nonblocking(&listener)?;
            poller.add(&listener, Token::WorkerSocket.encode(), Interest::Read)?;
            Ok(listener)
        });
        let Ok(listener) = listener else { return (None, None) };
        self.listener = Some(listener);
        (Some(path), with_hook.then(|| hook::lay_out(runtime_dir).ok()).flatten())
    }
}

impl Node {
    /// Takes connections, as many as there may be in a time.
    pub(crate) fn welcome_speakers(&mut self, now: Duration, poller: &Poller) {
        if now >= self.speakers.window.0 + WINDOW {
            self.speakers.window = (now, 0);
        }
        if self.speakers.window.1 >= TAKEN.max(2 * self.slots.len())
            && let Some(listener) = &self.speakers.listener
            && poller.remove(listener).is_ok()
        {
            self.speakers.rests_until = Some(self.speakers.window.0 + WINDOW);
            return;
        }
        self.speakers.window.1 += self.accept_speakers(poller);
    }

    /// Takes the connections that wait, and returns how many.
    fn accept_speakers(&mut self, poller: &Poller) -> usize {
        for taken in 0..ACCEPTS {
            let Some(listener) = &self.speakers.listener else { return taken };
            let Ok(socket) = socket::accept(listener) else { return taken };
            if self.speakers.connections.len() >= MAX_CLIENTS || socket::set_nonblocking(&socket).is_err() {
                continue;
            }
            let Some(pid) = socket::peer_pid(&socket) else { continue };
            let Some((slot, may_testify)) = self.identify(pid) else { continue };
            let index = self.speakers.next;
            self.speakers.next += 1;
            if poller.add(&socket, Token::WorkerClient(index).encode(), Interest::Read).is_ok() {
                let connection = Connection { socket, client: Client::new(), pid, slot, may_testify };
                self.speakers.connections.insert(index, connection);
            }
        }
        ACCEPTS
    }

    /// The worker that a process belongs to, and whether it may testify for it. A client may make a connection for each
    /// word that it says: what was found out of it is kept.
    fn identify(&mut self, pid: i32) -> Option<(usize, bool)> {
        let started = proc::process(pid)?.started;
        if let Some((known, slot, may_testify)) = self.speakers.known.get(&pid)
            && *known == started
        {
            return Some((*slot, *may_testify));
        }
        let (slot, may_testify) = (self.slot_of(pid)?, !is_helper(pid));
        if self.speakers.known.len() >= MAX_CLIENTS {
            self.speakers.known.clear();
        }
        self.speakers.known.insert(pid, (started, slot, may_testify));
        Some((slot, may_testify))
    }

    /// The worker that a process belongs to.
    fn slot_of(&self, pid: i32) -> Option<usize> {
        if let Some(slot) = self.slots.iter().position(|slot| slot.leader == Some(pid)) {
            return Some(slot);
        }
        if self.boundary.cgroup().is_some() {
            let leaf = proc::cgroup_leaf(pid, &format!("rankrun-{}", self.job))?;
            return self.slots.iter().position(|slot| Boundary::leaf(slot.rank()) == leaf);
        }
        // Up to the leader, or by the session that the leader leads, or by the tag.
        let mut process = proc::process(pid)?;
        if let Some(slot) = self.slots.iter().position(|slot| slot.leader == Some(process.session)) {
            return Some(slot);
        }
        for _ in 0..64 {
            if let Some(slot) = self.slots.iter().position(|slot| slot.leader == Some(process.pid)) {
                return Some(slot);
            }
            match proc::process(process.parent) {
                Some(parent) if parent.pid > 1 => process = parent,
                Some(_) | None => break,
            }
        }
        let job = proc::environment_variable(pid, "RANKRUN_JOB_ID")?;
        let rank = proc::environment_variable(pid, "RANKRUN_RANK")?;
        let rank: u32 = std::str::from_utf8(&rank).ok()?.parse().ok()?;
        (job == self.job.0.as_bytes()).then(|| self.slots.iter().position(|slot| slot.rank().0 == rank)).flatten()
    }

    /// A connection is readable.
    pub(crate) fn hear_speaker(&mut self, now: Duration, index: usize, poller: &Poller) {
        let mut bytes = [0u8; READ];
        let Some(connection) = self.speakers.connections.get_mut(&index) else { return };
        let mut said = Vec::new();
        let open = match rustix::io::read(&connection.socket, &mut bytes) {
            Ok(0) => false,
            Ok(count) => match connection.client.received(&bytes[..count], &mut said) {
                Ok(()) => true,
                Err(error) => {
                    let rank = self.slots[connection.slot].rank();
                    let text = format!("rank {rank}, pid {}: worker socket: {error}", connection.pid);
                    self.outbox.push(ToFront::Note(text));
                    false
                }
            },
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => true,
            Err(_) => false,
        };
        let (pid, slot, may_testify) = (connection.pid, connection.slot, connection.may_testify);
        if !open && let Some(connection) = self.speakers.connections.remove(&index) {
            let _ = poller.remove(&connection.socket);
        }
        for said in said {
            match said {
                Said::Hello { .. } if may_testify => {
                    self.speakers.processes.entry(pid).or_insert_with(|| (slot, Speaker::default()));
                }
                Said::Hello { .. } => {}
                Said::Testimony(testimony) => self.testimony(now, pid, slot, may_testify, testimony),
            }
        }
    }

    /// Hears all that a worker's processes have said before its end.
    pub(crate) fn hear_speakers_of(&mut self, now: Duration, slot: usize, poller: &Poller) {
        self.accept_speakers(poller);
        let of_slot = self.speakers.connections.iter().filter(|(_, connection)| connection.slot == slot);
        let indices: Vec<usize> = of_slot.map(|(index, _)| *index).collect();
        for index in indices {
            self.hear_speaker(now, index, poller);
        }
    }

    fn testimony(&mut self, now: Duration, pid: i32, slot: usize, may_testify: bool, testimony: Testimony) {
        let graces = self.graces();
        let in_mpi = self.is_in_mpi(slot);
        match &testimony {
            Testimony::Uncaught(_) | Testimony::Exiting { .. } | Testimony::Aside { .. } if !may_testify => return,
            Testimony::Uncaught(_) => self.speaker(pid, slot).uncaught(now, &graces),
            Testimony::Exiting { code: 0 } => self.speaker(pid, slot).retract(),
            Testimony::Exiting { .. } => {
                let written = proc::written_bytes(pid);
                self.speaker(pid, slot).exiting(now, &graces, in_mpi, written);
            }
            Testimony::Note { .. } | Testimony::Aside { .. } => {
                self.speaker(pid, slot).note(now, &graces);
                let second = now.as_secs();
                let (at, count) = self.speakers.notes.entry(slot).or_insert((second, 0));
                if *at != second {
                    (*at, *count) = (second, 0);
                }
                *count += 1;
                if *count > NOTES_PER_SECOND {
                    return;
                }
            }
            Testimony::Abort { .. } | Testimony::ErrorFile(_) => {}
        }
        let worker = self.slots[slot].id;
        self.outbox.push(ToFront::Testimony { worker, pid: Pid(pid), testimony, at: now });
    }

    /// A rank has failed: what torch may have written of it.
    pub(crate) fn read_error_file(&mut self, now: Duration, slot: usize, pid: i32) {
        let worker = self.slots[slot].id;
        let path = error_file(self.runtime.path().as_os_str(), worker.rank);
        let json = std::fs::File::open(path).and_then(|file| {
            let mut json = Vec::new();
            file.take(MAX_ERROR_FILE).read_to_end(&mut json).map(|_| json)
        });
        if let Some(exception) = json.ok().and_then(|json| worker::error_file(&json)) {
            let testimony = Testimony::ErrorFile(exception);
            self.outbox.push(ToFront::Testimony { worker, pid: Pid(pid), testimony, at: now });
        }
    }

    fn speaker(&mut self, pid: i32, slot: usize) -> &mut Speaker {
        &mut self.speakers.processes.entry(pid).or_insert_with(|| (slot, Speaker::default())).1
    }

    fn is_in_mpi(&self, slot: usize) -> bool {
        let rank = self.slots[slot].rank();
        self.pmi.as_ref().is_some_and(|server| matches!(server.lifecycle(rank), pmi1::Lifecycle::Inited { .. }))
    }

    /// When [`Node::tick_speakers`] is due.
    pub(crate) fn speakers_deadline(&self) -> Option<Duration> {
        let speakers = self.speakers.processes.values().filter_map(|(_, speaker)| speaker.deadline());
        let stopping = self.slots.iter().filter_map(|slot| slot.next_speaker_look);
        speakers.chain(stopping).chain(self.speakers.rests_until).min()
    }

    /// Finds the speakers that are stuck, and hears new ones again after a rest.
    pub(crate) fn tick_speakers(&mut self, now: Duration, poller: &Poller) {
        if self.speakers.rests_until.is_some_and(|until| until <= now)
            && let Some(listener) = &self.speakers.listener
        {
            let _ = poller.add(listener, Token::WorkerSocket.encode(), Interest::Read);
            self.speakers.rests_until = None;
        }
        let graces = self.graces();
        let due: Vec<i32> = self
            .speakers
            .processes
            .iter()
            .filter(|(_, (_, speaker))| speaker.deadline().is_some_and(|deadline| deadline <= now))
            .map(|(pid, _)| *pid)
            .collect();
        for pid in due {
            if !is_alive(pid) {
                self.speakers.processes.remove(&pid);
                continue;
            }
            let Some((slot, speaker)) = self.speakers.processes.get_mut(&pid) else { continue };
            let slot = *slot;
            let Some((place, since)) = speaker.tick(now, &graces, proc::written_bytes(pid)) else { continue };
            let is_leader = self.slots[slot].leader == Some(pid) && self.slots[slot].leader_alive;
            if !is_leader {
                // Its leader waits for it, and decides what its end means.
                let _ = signal::send(pid, signal::SIGKILL);
            }
            let worker = self.slots[slot].id;
            self.outbox.push(ToFront::Stuck { worker, pid: Pid(pid), place, since, is_leader, at: now });
        }
        self.stop_leaders_of_gone_speakers(now);
    }

    /// The process that speaks for a rank, if it is another than the leader: the one that was started last.
    pub(crate) fn speaker_of(&self, slot: usize) -> Option<i32> {
        let leader = self.slots[slot].leader;
        let of_slot = self.speakers.processes.iter().filter(|(_, (of, _))| *of == slot).map(|(pid, _)| *pid);
        let alive = of_slot.filter_map(proc::process).filter(|process| process.state != 'Z');
        alive.max_by_key(|process| process.started).map(|process| process.pid).filter(|pid| Some(*pid) != leader)
    }

    /// A leader whose speaker was told to end is told too, when the speaker is gone.
    fn stop_leaders_of_gone_speakers(&mut self, now: Duration) {
        for slot in &mut self.slots {
            if slot.next_speaker_look.is_none_or(|next| next > now) {
                continue;
            }
            if slot.stopped_speaker.is_some_and(is_alive) {
                slot.next_speaker_look = Some(now + SPEAKER_STEP);
                continue;
            }
            slot.next_speaker_look = None;
            slot.stopped_speaker = None;
            if let Some(leader) = slot.leader.filter(|_| slot.leader_alive) {
                let _ = signal::send(leader, signal::SIGTERM);
                let _ = signal::send(leader, signal::SIGCONT);
            }
        }
    }
}

/// How often it is looked whether a speaker that was told to end is gone.
pub(crate) const SPEAKER_STEP: Duration = Duration::from_millis(10);

fn is_alive(pid: i32) -> bool {
    proc::process(pid).is_some_and(|process| process.state != 'Z')
}

/// Whether a process only helps its rank: forked from a process of the same command, or started by `multiprocessing`.
fn is_helper(pid: i32) -> bool {
    const STARTED_AS: [&[u8]; 4] = [
        b"--multiprocessing-fork",
        b"from multiprocessing.spawn import",
        b"from multiprocessing.forkserver import",
        b"from multiprocessing.resource_tracker import",
    ];
    let Some(command) = proc::command_line(pid) else { return false };
    if STARTED_AS.iter().any(|mark| command.windows(mark.len()).any(|window| window == *mark)) {
        return true;
    }
    let parent = proc::process(pid).map(|process| process.parent);
    parent.is_some_and(|parent| {
        proc::executable(parent).is_some_and(|parents| Some(parents) == proc::executable(pid))
            && proc::command_line(parent).is_some_and(|parents| parents == command)
    })
}
