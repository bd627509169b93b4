//! How a front takes the place of one that is gone: from the ledger ([`crate::ledger`]) it makes the job as it was, the streams to the
//! agents, and the transcript. Then it goes on as if it had been there all the time.

use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_agent::tidy::{Places, RuntimeDir};
use rankrun_core::debts::Debts;
use rankrun_core::job::{Added, ClientId, Effect, Event, Input, Job, NodeEvent, Origin};
use rankrun_core::names::{Asker, PublishedNames};
use rankrun_core::{JobId, NodeId, Rank, roster};
use rankrun_sys::poll::once_free;
use rankrun_sys::process::ProcessId;
use rankrun_wire::collectives::Collectives;
use rankrun_wire::identity::PublicKey;
use rankrun_wire::{Place, ToFront};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::Plan;
use crate::ledger::{Entry, Ledger, Turns, Unwritten, plain};
use crate::nodes::{Kept, KeptDoor};
use crate::terminal::TypedSoFar;

/// The name of the file with what a front is made from.
pub const DEED: &str = "deed";
/// The name of the file that says why no front could take the place of the last one.
pub const FAILURE: &str = "failure";
/// Bytes of the transcript that are kept beside those that may not have been written when a front was killed: notices have no credit.
const RECENT: u64 = 1 << 20;

/// How long a front that was killed may hold its files.
const END_BOUND: Duration = Duration::from_secs(1);

/// What a front is made from.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Deed<'a> {
    /// The same build has written it: nobody else can read it.
    pub(crate) build: String,
    pub(crate) plan: Cow<'a, Plan>,
    pub(crate) origin: Cow<'a, Origin>,
    pub(crate) calls: Kept,
    /// Where the nodes connect that join by themselves.
    pub(crate) door: Option<KeptDoor>,
    /// Where the first front was started.
    pub(crate) cwd: PathBuf,
    /// When its clock began.
    pub(crate) began: Duration,
}

impl Deed<'_> {
    /// Writes it to the directory of the job.
    pub(crate) fn save(&self, directory: &Path) -> io::Result<()> {
        use std::io::Write as _;
        use std::os::unix::fs::OpenOptionsExt as _;
        let bytes = postcard::to_allocvec(self).map_err(io::Error::other)?;
        let part = directory.join(format!("{DEED}.part"));
        std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&part)?.write_all(&bytes)?;
        std::fs::rename(part, directory.join(DEED))
    }

    fn read(directory: &Path) -> io::Result<Deed<'static>> {
        let mut bytes = Vec::new();
        plain(File::options().read(true), &directory.join(DEED))?.read_to_end(&mut bytes)?;
        let (build, _): (String, &[u8]) = postcard::take_from_bytes(&bytes).map_err(io::Error::other)?;
        if build != rankrun_sys::build::id()? {
            return Err(io::Error::other("another build of rankrun has started it: only that one can go on with it"));
        }
        let deed: Deed<'static> = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
        Ok(deed)
    }
}

/// The stream of a node, as the ledger has it.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) place: Place,
    /// What was sent and the node may lack.
    pub(crate) sent: VecDeque<Vec<u8>>,
    /// What was sent last ends the agent.
    pub(crate) is_left: bool,
}

/// What another front has left.
#[derive(Debug)]
pub(crate) struct Estate {
    pub(crate) directory: RuntimeDir,
    pub(crate) places: Places,
    pub(crate) ledger: Ledger,
    pub(crate) deed: Deed<'static>,
    pub(crate) job: Job,
    pub(crate) collectives: Collectives,
    pub(crate) names: PublishedNames,
    pub(crate) debts: Debts,
    /// By node.
    pub(crate) streams: Vec<(NodeId, Left)>,
    /// What was ordered and has no answer.
    pub(crate) open: Vec<Effect>,
    /// The end of what was recorded, and the last entries before it.
    pub(crate) position: u64,
    pub(crate) recorded: Vec<u8>,
    /// Log files were being written when the job was last told.
    pub(crate) was_logging: bool,
    /// Output that no credit was returned for, by stream.
    pub(crate) unpaid: [u64; 2],
    /// The nodes that have come while the job ran, in their order.
    pub(crate) added: Vec<(NodeId, Added)>,
    /// What has become of the places of nodes that join, in that order; and why no more may join.
    pub(crate) enrolled: Vec<roster::Changes<PublicKey>>,
    pub(crate) closed: Option<&'static str>,
    /// The processes of Slurm's steps.
    pub(crate) sruns: Vec<(usize, ProcessId)>,
    /// What was typed for the ranks.
    pub(crate) typed: TypedSoFar,
    /// The nodes whose ranks have not read the last piece of that.
    pub(crate) stdin_owed: BTreeSet<NodeId>,
    /// Clients have numbers below this one. The last one that asked for a profile.
    pub(crate) next_client: u32,
    pub(crate) profiled: Option<ClientId>,
    /// The job has begun; its end was told.
    pub(crate) is_begun: bool,
    pub(crate) is_reported: bool,
    /// How long it was paused in all.
    pub(crate) paused: Duration,
}

/// Whether a job has left what another front can go on with, and somebody does.
pub(crate) fn is_left(job: &JobId) -> bool {
    Places::of(job).adopt().is_ok_and(|directory| {
        let is_alone = rustix::fs::flock(directory.lock(), FlockOperation::NonBlockingLockExclusive).is_ok();
        directory.path().join(DEED).exists() && !is_alone
    })
}

/// Whether a job has left what another front can go on with, be somebody there or not.
pub(crate) fn has_deed(job: &JobId) -> bool {
    Places::of(job).adopt().is_ok_and(|directory| directory.path().join(DEED).exists())
}

/// Notes in the directory of a job why a front could not take its place.
pub(crate) fn note_failure(job: &JobId, why: &str) {
    let Ok(directory) = Places::of(job).adopt() else { return };
    if directory.path().join(DEED).exists() {
        // It is for whoever asks: a job is no worse off without.
        let _ = std::fs::write(directory.path().join(FAILURE), why);
    }
}

/// Why no front could take the place of the last one, if one has tried.
pub(super) fn failure(job: &JobId) -> Option<String> {
    std::fs::read_to_string(Places::of(job).adopt().ok()?.path().join(FAILURE)).ok()
}

/// A front has taken the place of another one: what has failed before does not matter any more.
pub(super) fn forget_failure(directory: &Path) {
    // There may be none.
    let _ = std::fs::remove_file(directory.join(FAILURE));
}

/// Takes over what the front of a job has left.
///
/// # Errors
///
/// Nothing was left, another front has it (`WouldBlock`), or it cannot be read.
pub(crate) fn take(job: &JobId) -> io::Result<Estate> {
    let places = Places::of(job);
    let directory = places.adopt()?;
    let open = || Ledger::open(directory.path());
    let (ledger, turns) = once_free(io::ErrorKind::WouldBlock, END_BOUND, open)?;
    let deed = Deed::read(directory.path())?;
    let mut replay = Replay::new(deed.origin.clone().into_owned());
    replay.take(turns)?;
    Ok(Estate {
        directory,
        places,
        ledger,
        deed,
        job: replay.job,
        collectives: replay.collectives,
        names: replay.names,
        debts: replay.debts,
        streams: replay.streams,
        open: replay.open,
        position: replay.position,
        recorded: Vec::from(replay.recorded).concat(),
        was_logging: replay.was_logging,
        unpaid: replay.unpaid,
        added: replay.added,
        enrolled: replay.enrolled,
        closed: replay.closed,
        sruns: replay.sruns,
        typed: replay.typed,
        stdin_owed: replay.stdin_owed,
        next_client: replay.next_client,
        profiled: replay.profiled,
        is_begun: replay.is_begun,
        is_reported: replay.is_reported,
        paused: replay.paused,
    })
}

/// What comes of the turns of a ledger.
struct Replay {
    job: Job,
    collectives: Collectives,
    names: PublishedNames,
    debts: Debts,
    streams: Vec<(NodeId, Left)>,
    open: Vec<Effect>,
    position: u64,
    /// What was recorded last: whole entries, turn by turn.
    recorded: VecDeque<Vec<u8>>,
    recorded_length: u64,
    was_logging: bool,
    unpaid: [u64; 2],
    added: Vec<(NodeId, Added)>,
    enrolled: Vec<roster::Changes<PublicKey>>,
    closed: Option<&'static str>,
    sruns: Vec<(usize, ProcessId)>,
    typed: TypedSoFar,
    stdin_owed: BTreeSet<NodeId>,
    next_client: u32,
    profiled: Option<ClientId>,
    is_begun: bool,
    is_reported: bool,
    paused: Duration,
    unwritten: Unwritten,
}

impl Replay {
    fn new(origin: Origin) -> Replay {
        Replay {
            job: Job::of(origin),
            collectives: Collectives::default(),
            names: PublishedNames::default(),
            debts: Debts::default(),
            streams: Vec::new(),
            open: Vec::new(),
            position: 0,
            recorded: VecDeque::new(),
            recorded_length: 0,
            was_logging: false,
            unpaid: [0; 2],
            added: Vec::new(),
            enrolled: Vec::new(),
            closed: None,
            sruns: Vec::new(),
            typed: TypedSoFar::default(),
            stdin_owed: BTreeSet::new(),
            next_client: 0,
            profiled: None,
            is_begun: false,
            is_reported: false,
            paused: Duration::ZERO,
            unwritten: Unwritten::default(),
        }
    }

    fn take(&mut self, mut turns: Turns) -> io::Result<()> {
        while let Some(entries) = turns.next()? {
            let mut written = self.outputs(&entries)?;
            for entry in entries {
                self.entry(entry, &mut written)?;
            }
        }
        Ok(())
    }

    /// What ranks have written in a turn.
    fn outputs(&mut self, entries: &[Entry<'_>]) -> io::Result<VecDeque<Vec<u8>>> {
        let mut outputs = VecDeque::new();
        for entry in entries {
            let Entry::Recorded(bytes) = entry else { continue };
            for entry in rankrun_output::entries(bytes)? {
                if let rankrun_output::Entry::Output { bytes, .. } = entry {
                    outputs.push_back(bytes.to_owned());
                }
            }
        }
        Ok(outputs)
    }

    fn entry(&mut self, entry: Entry<'_>, written: &mut VecDeque<Vec<u8>>) -> io::Result<()> {
        match entry {
            Entry::Given(now, input) => self.give(now, input),
            Entry::Written { at, node, worker, stream, length } => {
                let bytes = written.pop_front().filter(|bytes| bytes.len() as u64 == length);
                let bytes = bytes.ok_or_else(|| io::Error::other("the ledger lacks output that it names"))?;
                let input = Input::Write { rank: worker.rank, stream, bytes: bytes.into() };
                self.give(at, input);
                self.debts.received(node, stream, length);
                self.unpaid[stream.index()] += length;
                self.unwritten.output(length);
            }
            Entry::Reported => self.is_reported = true,
            Entry::Paused(paused) => self.paused = paused,
            Entry::Elided { node, stream, length } => {
                self.debts.received(node, stream, length);
                self.unpaid[stream.index()] += length;
                self.unwritten.output(length);
            }
            Entry::PassedOver(count) => {
                self.position += count;
                // Only what comes after a gap is of use.
                self.recorded.clear();
                self.recorded_length = 0;
            }
            Entry::Passed(from, message) => self.pass(from, message.into_owned()),
            Entry::Paid(stream, bytes) => {
                self.debts.paid(stream, bytes);
                let unpaid = &mut self.unpaid[stream.index()];
                *unpaid = unpaid.saturating_sub(bytes);
                self.unwritten.paid(bytes);
            }
            Entry::Recorded(bytes) => {
                self.position += bytes.len() as u64;
                self.recorded.push_back(bytes.to_owned());
                self.unwritten.recorded(self.position);
                let kept = self.unwritten.kept(self.position, RECENT);
                self.recorded_length += bytes.len() as u64;
                while let Some(first) = self.recorded.front()
                    && self.recorded_length - first.len() as u64 >= kept
                {
                    self.recorded_length -= first.len() as u64;
                    self.recorded.pop_front();
                }
            }
            Entry::Stands { node, place, sent } => {
                let stream = match self.streams.iter_mut().find(|(of, _)| *of == node) {
                    Some((_, stream)) => stream,
                    None => {
                        self.streams.push((node, Left { place, sent: VecDeque::new(), is_left: false }));
                        let Some((_, stream)) = self.streams.last_mut() else { return Ok(()) };
                        stream
                    }
                };
                stream.place = place;
                if !sent.is_empty() {
                    stream.sent.push_back(sent.to_owned());
                }
                // What the node had at that time need not be kept, piece by piece.
                let mut kept: u64 = stream.sent.iter().map(|piece| piece.len() as u64).sum();
                while let Some(first) = stream.sent.front()
                    && place.sent - kept + first.len() as u64 <= place.acknowledged
                {
                    kept -= first.len() as u64;
                    stream.sent.pop_front();
                }
            }
            Entry::Srun { step, pid, started } => self.sruns.push((step, ProcessId { pid, started })),
            Entry::Typed { id, to } => {
                self.typed.give(id.map(Cow::into_owned));
                self.stdin_owed = to;
            }
            Entry::Taken(node) => drop(self.stdin_owed.remove(&node)),
            Entry::Enrolled(changes) => self.enrolled.push(changes),
            Entry::Unlinked(node) => self.streams.retain(|(of, _)| *of != node),
            Entry::Left(node) => {
                if let Some((_, stream)) = self.streams.iter_mut().find(|(of, _)| *of == node) {
                    stream.is_left = true;
                }
            }
        }
        Ok(())
    }

    fn give(&mut self, now: Duration, input: Input<'_>) {
        if let Input::Event(event) = &input {
            match **event {
                Event::Logging(is) => self.was_logging = is,
                Event::Begin => self.is_begun = true,
                Event::ProfileRequest { client, .. } => self.profiled = Some(client),
                Event::ProfileEnd { .. } => self.profiled = None,
                _ => {}
            }
            if let Some(ClientId(client)) = client_of(event) {
                self.next_client = self.next_client.max(client + 1);
            }
            self.open.retain(|effect| !is_answered(effect, event));
        }
        let mut effects = Vec::new();
        self.job.give(now, input, &mut effects);
        for effect in effects {
            match &effect {
                Effect::BeginRanks => {
                    self.collectives.clear();
                    self.names = PublishedNames::default();
                    self.typed.begin_attempt();
                    self.stdin_owed.clear();
                }
                Effect::BeginAttempt | Effect::IsShown => {
                    self.open.retain(|open| !matches!(open, Effect::Drain { .. } | Effect::Hurry));
                }
                Effect::StopAsking(node) | Effect::GiveUp(node) | Effect::Disconnect(node) | Effect::End(node) => {
                    let is_of = |open: &Effect| matches!(open, Effect::Ask(of) | Effect::Call(of) if of == node);
                    self.open.retain(|open| !is_of(open));
                }
                Effect::CloseDoor { why } => self.closed = Some(why),
                Effect::AddNode(node, added) => self.added.push((*node, added.clone())),
                _ => {}
            }
            if awaits_answer(&effect) {
                self.open.retain(|open| *open != effect);
                self.open.push(effect);
            }
        }
    }

    fn pass(&mut self, from: NodeId, message: ToFront) {
        let node_of = |rank: Rank| {
            let place = self.job.facts().place(rank)?;
            self.job.nodes().at(place.node)
        };
        match message {
            ToFront::Collective(part) => drop(self.collectives.take(from, part, node_of)),
            ToFront::Gone { group, seq, ranks } => drop(self.collectives.gone(group, seq, &ranks, node_of)),
            ToFront::Ask { group, protocol, id, question } => {
                self.names.ask(Asker { node: from, group, protocol, id }, question, &mut Vec::new());
            }
            _ => {}
        }
    }
}

/// Whether a front that is gone may not have done an effect to its end: its answer is an event.
fn awaits_answer(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::RunFor(..)
            | Effect::LookForNotice(_)
            | Effect::Call(_)
            | Effect::StartStep { .. }
            | Effect::Ask(_)
            | Effect::AskSecond(_)
            | Effect::OpenLogs
            | Effect::ShowRest
            | Effect::Stamp(_)
            | Effect::AskPolicy { .. }
            | Effect::Drain { .. }
            | Effect::Hurry
            | Effect::Closing
            // Nobody says whether it was written.
            | Effect::SaveReport { .. }
    )
}

/// The client that an event is about.
fn client_of(event: &Event) -> Option<ClientId> {
    match event {
        Event::StopRequest { client, .. }
        | Event::RestartRequest { client, .. }
        | Event::StacksRequest { client, .. }
        | Event::ProfileRequest { client, .. } => Some(*client),
        _ => None,
    }
}

/// Whether an event is the answer to an effect.
fn is_answered(effect: &Effect, event: &Event) -> bool {
    match (effect, event) {
        (Effect::RunFor(node, asked), Event::Node { node: of, event: NodeEvent::CommandEnded { command, .. } }) => {
            node == of && asked == command
        }
        (Effect::LookForNotice(_), Event::NoticeFile { .. } | Event::NoticeCommand(_))
        | (Effect::OpenLogs, Event::LogsOpened)
        | (Effect::ShowRest, Event::Shown)
        | (Effect::Stamp(_), Event::Stamped { .. })
        | (Effect::AskPolicy { .. }, Event::Answered(_) | Event::NotAsked { .. }) => true,
        (Effect::StartStep { step, .. }, Event::StepEnded { step: of, .. } | Event::StepFailed { step: of, .. }) => {
            step == of
        }
        (Effect::Call(node), Event::Node { node: of, event }) => {
            use NodeEvent::{CallEnded, CallFailed, Reached};
            node == of && matches!(event, Reached { .. } | CallFailed { .. } | CallEnded { .. })
        }
        (Effect::Ask(node), Event::Node { node: of, event }) => {
            node == of && matches!(event, NodeEvent::Confirmed | NodeEvent::CannotAsk | NodeEvent::Broke { .. })
        }
        (Effect::AskSecond(node), Event::Node { node: of, event: NodeEvent::SecondAnswered { .. } }) => node == of,
        _ => false,
    }
}
