//! The server: requests in, effects out.

use std::io::Write as _;

use bytes::Bytes;
use memchr::memchr;
use rankrun_core::Rank;
use rankrun_core::collective::Collective;
use rankrun_core::names::Reply;
use rankrun_core::spawning::SpawnAnswer;

use super::barrier::Barrier;
use super::client::{Asked, Client, Violation, excerpt};
use super::gone;
use super::kvs::Kvs;
use super::payload::{self, Broken};
use super::publishing;
use super::request::Request;
use super::spawning::{self, BlockEnd, MultiLine};
use super::{Config, Effect, Epoch, KEYLEN_MAX, KVSNAME_MAX, Lifecycle, MAX_REPLY, VALLEN_MAX};

/// The version that is served. With 1.2 clients would use group barriers and several requests at a time.
const VERSION: (i64, i64) = (1, 1);

const BARRIER_OUT: &[u8] = b"cmd=barrier_out rc=0\n";
const BARRIER_BROKEN: &[u8] = b"cmd=barrier_out rc=-1 msg=a_rank_has_left\n";
const GROUP_BARRIER: &[u8] = b"cmd=barrier_out rc=-1 msg=group_barriers_are_not_supported\n";
const PUT_DONE: &[u8] = b"cmd=put_result rc=0 msg=success\n";
const PUT_RESERVED: &[u8] = b"cmd=put_result rc=1 msg=key_is_reserved\n";
const NOT_FOUND: &[u8] = b"cmd=get_result rc=1 msg=key_not_found\n";
const FINALIZED: &[u8] = b"cmd=finalize_ack rc=0\n";

/// The server of the ranks that one node has of a group.
#[derive(Debug)]
pub struct Server {
    config: Config,
    /// The names of the KVSs without the number of the epoch.
    kvs_base: String,
    /// By rank.
    clients: Vec<Client>,
    barrier: Barrier,
    kvs: Kvs,
    /// How often a rank asked for a name, or for other ranks.
    asked: u64,
    /// The file of the topology has been asked for.
    has_topology: bool,
    /// The ranks that are gone while the others run on, in the order in which that became known.
    gone: Vec<Rank>,
}

impl Server {
    /// A new server. Ranks in `local` that the group does not have are left out.
    pub fn new(mut config: Config) -> Server {
        const PREFIX_MAX: usize = 64;
        let named = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let prefix: String = config.kvs_prefix.chars().filter(named).take(PREFIX_MAX).collect();
        let kvs_base = format!("{prefix}_{}_", config.group);
        config.local.sort_unstable();
        config.local.dedup();
        config.local.retain(|rank| rank.number() < config.size);
        Server {
            kvs_base,
            clients: config.local.iter().copied().map(Client::new).collect(),
            barrier: Barrier::new(),
            kvs: Kvs::default(),
            asked: 0,
            has_topology: false,
            gone: Vec::new(),
            config,
        }
    }

    /// Bytes arrived from a rank; they may begin and end anywhere in a line. Effects are appended.
    pub fn received(&mut self, rank: Rank, bytes: &[u8], effects: &mut Vec<Effect>) {
        let Some(slot) = self.slot(rank) else { return };
        if self.clients[slot].shut {
            return;
        }
        if let Err(violation) = self.lines(slot, bytes, effects) {
            self.clients[slot].shut();
            let reason = violation.to_string();
            effects.push(Effect::Malformed { rank, reason });
        }
    }

    /// The rank's end was closed (EOF). A barrier that the rank has entered counts it still.
    pub fn closed(&mut self, rank: Rank, effects: &mut Vec<Effect>) {
        let Some(slot) = self.slot(rank) else { return };
        if self.clients[slot].shut {
            return;
        }
        self.clients[slot].shut();
        let lifecycle = self.clients[slot].lifecycle;
        effects.push(Effect::Closed { rank, lifecycle });
    }

    /// Every node has contributed to a collective. Results that no rank waits for any more are ignored.
    pub fn collective_done(&mut self, whole: Collective, effects: &mut Vec<Effect>) {
        if whole.group != self.config.group || !self.barrier.awaits(whole.seq) {
            return;
        }
        let epoch = self.barrier.current();
        let parts: Result<Vec<Bytes>, Broken> = whole.payloads.into_iter().map(payload::read).collect();
        let committed = parts.and_then(|parts| parts.into_iter().try_for_each(|pairs| self.kvs.commit(epoch, pairs)));
        match committed {
            Ok(()) => self.release(effects),
            Err(broken) => {
                let left = broken.left().map(|left| Rank::of(self.config.group, left.number()));
                self.barrier.close(epoch, left);
                if self.refuse_waiting(effects) {
                    self.report_broken(epoch, effects);
                }
            }
        }
    }

    /// Ranks are gone, on whichever node, and the others run on. Barriers do not wait for them: MPICH over UCX has one in `MPI_Finalize`.
    pub fn lost(&mut self, ranks: &[Rank], effects: &mut Vec<Effect>) {
        let of_group = ranks.iter().copied().filter(|rank| rank.group() == self.config.group);
        let new: Vec<Rank> = of_group.filter(|rank| !self.gone.contains(rank)).collect();
        if new.is_empty() {
            return;
        }
        self.gone.extend(&new);
        match self.barrier.awaited() {
            Some(seq) => effects.push(Effect::Gone { group: self.config.group, seq, ranks: new }),
            None => self.complete_barrier(effects),
        }
    }

    /// The names of the job have answered the question of that number.
    pub fn answered(&mut self, id: u64, reply: Reply, effects: &mut Vec<Effect>) {
        let Some(slot) = self.asking(id) else { return };
        if let Some((_, Asked::Name(command))) = self.clients[slot].asking.take()
            && !self.clients[slot].shut
        {
            self.reply(slot, publishing::reply(command, reply), effects);
        }
    }

    /// The ranks of an [`Effect::Spawn`] have been started, or will not be.
    pub fn spawned(&mut self, id: u64, answer: &SpawnAnswer, effects: &mut Vec<Effect>) {
        let Some(slot) = self.asking(id) else { return };
        if let Some((_, Asked::Spawn(size))) = self.clients[slot].asking.take()
            && !self.clients[slot].shut
        {
            self.reply(slot, spawning::reply(size, answer), effects);
        }
    }

    /// The rank that has asked with this number. It may have begun its next program meanwhile.
    fn asking(&self, id: u64) -> Option<usize> {
        self.clients.iter().position(|client| client.asking.is_some_and(|(number, _)| number == id))
    }

    /// How far a rank is; [`Lifecycle::NotInited`] also for a rank that is not served here.
    pub fn lifecycle(&self, rank: Rank) -> Lifecycle {
        self.slot(rank).map_or(Lifecycle::NotInited, |slot| self.clients[slot].lifecycle)
    }

    /// The bytes of memory that a rank's unfinished request and puts since its last barrier take.
    pub fn held(&self, rank: Rank) -> usize {
        let held = |slot: usize| {
            let client = &self.clients[slot];
            let request = client.multi_line.as_ref().map_or(0, MultiLine::held);
            client.line.capacity() + client.pairs.capacity() + request
        };
        self.slot(rank).map_or(0, held)
    }

    fn slot(&self, rank: Rank) -> Option<usize> {
        self.clients.binary_search_by_key(&rank, |client| client.rank).ok()
    }

    fn spans_nodes(&self) -> bool {
        self.clients.len() < self.config.size as usize
    }

    /// Serves each whole line, and keeps the rest for later.
    fn lines(&mut self, slot: usize, bytes: &[u8], effects: &mut Vec<Effect>) -> Result<(), Violation> {
        let mut rest = bytes;
        while let Some(end) = memchr(b'\n', rest) {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            rest = after;
            let mut begun = std::mem::take(&mut self.clients[slot].line);
            let longest = self.clients[slot].longest_line();
            if begun.len() + line.len() > longest {
                return Err(Violation::LineTooLong(longest));
            }
            if begun.is_empty() {
                self.line(slot, line, effects)?;
            } else {
                begun.extend_from_slice(line);
                self.line(slot, &begun, effects)?;
            }
            if self.clients[slot].shut {
                return Ok(());
            }
        }
        let longest = self.clients[slot].longest_line();
        let begun = &mut self.clients[slot].line;
        if begun.len() + rest.len() > longest {
            return Err(Violation::LineTooLong(longest));
        }
        begun.extend_from_slice(rest);
        Ok(())
    }

    fn line(&mut self, slot: usize, line: &[u8], effects: &mut Vec<Effect>) -> Result<(), Violation> {
        let open = self.clients[slot].multi_line.as_ref().map(|request| &request.name[..]);
        let is_of_it = match line.strip_prefix(b"mcmd=") {
            // Another command of the same request, if one is open.
            Some(name) if open.is_none_or(|open| open == name) => return self.begin_multi_line(slot, name),
            Some(_) => true,
            // A program that died in the middle of a request is followed by another one. Any other line may be of an argument.
            None => open.is_some() && !line.starts_with(b"cmd=init pmi_version="),
        };
        if is_of_it {
            return self.continue_multi_line(slot, line, effects);
        }
        self.clients[slot].multi_line = None;
        let request = Request::parse(line).ok_or_else(|| Violation::NotARequest(excerpt(line)))?;
        if request.name == b"abort" {
            self.abort(slot, &request, effects);
            return Ok(());
        }
        // A name may hold any text.
        let names = publishing::Command::of(&request);
        if request.has_control_bytes() && names.is_none() {
            return Err(Violation::NotARequest(excerpt(line)));
        }
        match names {
            Some(command) => self.published_names(slot, command, &request, effects),
            None => self.request(slot, &request, effects),
        }
    }

    fn request(&mut self, slot: usize, request: &Request<'_>, effects: &mut Vec<Effect>) -> Result<(), Violation> {
        if request.name == b"init" {
            return self.init(slot, request, effects);
        }
        let epoch = self.clients[slot].epoch(request.name);
        match request.name {
            b"get_maxes" => {
                epoch?;
                let (name, key, value) = (KVSNAME_MAX, KEYLEN_MAX, VALLEN_MAX);
                let text = format!("cmd=maxes rc=0 kvsname_max={name} keylen_max={key} vallen_max={value}\n");
                self.reply(slot, text.into_bytes(), effects);
            }
            b"get_appnum" => {
                epoch?;
                let appnum = self.config.appnums.get(self.clients[slot].rank.number() as usize).unwrap_or(&0);
                self.reply(slot, format!("cmd=appnum rc=0 appnum={appnum}\n").into_bytes(), effects);
            }
            b"get_my_kvsname" => {
                let text = format!("cmd=my_kvsname rc=0 kvsname={}{}\n", self.kvs_base, epoch?);
                self.reply(slot, text.into_bytes(), effects);
            }
            b"get_universe_size" => {
                epoch?;
                let size = self.config.universe_size.map_or(-1, i64::from);
                self.reply(slot, format!("cmd=universe_size rc=0 size={size}\n").into_bytes(), effects);
            }
            b"put" => self.put(slot, epoch?, request, effects)?,
            b"get" => self.get(slot, epoch?, request, effects)?,
            b"barrier_in" => self.barrier_in(slot, epoch?, request, effects),
            b"finalize" => self.finalize(slot, epoch?, effects),
            name => {
                if self.clients[slot].in_barrier || self.clients[slot].asking.is_some() {
                    epoch?;
                }
                self.unsupported(slot, name, effects)?;
            }
        }
        Ok(())
    }

    fn init(&mut self, slot: usize, request: &Request<'_>, effects: &mut Vec<Effect>) -> Result<(), Violation> {
        let (version, subversion) = VERSION;
        let rc = if request.number(b"pmi_version") == Some(version) {
            let last = self.clients[slot].lifecycle;
            let epoch = self.clients[slot].init()?;
            let rank = self.clients[slot].rank;
            let abandoned = match last {
                Lifecycle::Inited { epoch: left, .. } => {
                    self.leave(rank, left, effects);
                    true
                }
                Lifecycle::NotInited | Lifecycle::Finalized { .. } => false,
            };
            effects.push(Effect::Inited { rank, epoch, abandoned });
            0
        } else {
            -1
        };
        let text = format!("cmd=response_to_init rc={rc} pmi_version={version} pmi_subversion={subversion}\n");
        self.reply(slot, text.into_bytes(), effects);
        Ok(())
    }

    fn put(
        &mut self,
        slot: usize,
        epoch: Epoch,
        request: &Request<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        let missing = |key| Violation::Missing { command: "put", key };
        self.check_kvsname(epoch, request)?;
        let key = request.get(b"key").ok_or_else(|| missing("key"))?;
        let value = request.get(b"value").ok_or_else(|| missing("value"))?;
        // As Hydra does: only the server sets these keys.
        if key.starts_with(b"PMI_") {
            self.reply(slot, PUT_RESERVED, effects);
            return Ok(());
        }
        self.clients[slot].put(key, value)?;
        self.reply(slot, PUT_DONE, effects);
        Ok(())
    }

    fn get(
        &mut self,
        slot: usize,
        epoch: Epoch,
        request: &Request<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        let missing = Violation::Missing { command: "get", key: "key" };
        self.check_kvsname(epoch, request)?;
        let key = request.get(b"key").ok_or(missing)?;
        let text: String;
        let value = match (key, self.config.universe_size) {
            (b"PMI_process_mapping", _) => Some(self.config.mapping.as_bytes()).filter(|mapping| !mapping.is_empty()),
            (b"PMI_hwloc_xmlfile", _) => {
                let path = self.config.topology.as_ref();
                if let Some(path) = path.filter(|_| !std::mem::replace(&mut self.has_topology, true)) {
                    effects.push(Effect::Topology { path: path.clone() });
                }
                path.map(|path| path.as_bytes())
            }
            (b"universeSize", Some(universe_size)) => {
                text = universe_size.to_string();
                Some(text.as_bytes())
            }
            (b"PMI_dead_processes", _) if !self.gone.is_empty() => {
                text = gone::list(&self.gone);
                Some(text.as_bytes())
            }
            _ => self.kvs.get(epoch, key).or_else(|| self.preput(epoch, key)),
        };
        let reply = match value {
            Some(value) => {
                const FOUND: &[u8] = b"cmd=get_result rc=0 msg=success value=";
                Bytes::from([FOUND, value, b"\n"].concat())
            }
            None => Bytes::from_static(NOT_FOUND),
        };
        self.reply(slot, reply, effects);
        Ok(())
    }

    /// What the group that asked for this one has put into its store. It is for the first program of each rank: the port in it is that of one
    /// `MPI_Comm_spawn`.
    fn preput(&self, epoch: Epoch, key: &[u8]) -> Option<&[u8]> {
        let found = self.config.preput.iter().find(|(name, _)| name.as_bytes() == key);
        found.filter(|_| epoch == Epoch::default()).map(|(_, value)| value.as_bytes())
    }

    fn published_names(
        &mut self,
        slot: usize,
        command: publishing::Command,
        request: &Request<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        self.clients[slot].epoch(request.name)?;
        match publishing::question(self.clients[slot].rank, command, request) {
            Ok(question) => {
                self.asked += 1;
                self.clients[slot].asking = Some((self.asked, Asked::Name(command)));
                effects.push(Effect::Ask { id: self.asked, question });
            }
            Err(reply) => self.reply(slot, reply, effects),
        }
        Ok(())
    }

    /// A request without the name of a KVS means its own.
    fn check_kvsname(&self, epoch: Epoch, request: &Request<'_>) -> Result<(), Violation> {
        let Some(name) = request.get(b"kvsname") else {
            return Ok(());
        };
        let mut digits = [0; 10];
        let mut free = &mut digits[..];
        write!(free, "{epoch}").expect("a u32 has at most ten digits");
        let free = free.len();
        let number = &digits[..digits.len() - free];
        match name.strip_prefix(self.kvs_base.as_bytes()) {
            Some(named) if named == number => Ok(()),
            _ => Err(Violation::WrongKvs(excerpt(name))),
        }
    }

    fn barrier_in(&mut self, slot: usize, epoch: Epoch, request: &Request<'_>, effects: &mut Vec<Effect>) {
        if request.get(b"group").is_some() {
            self.reply(slot, GROUP_BARRIER, effects);
            return;
        }
        if !self.barrier.is_open(epoch) {
            self.reply(slot, BARRIER_BROKEN, effects);
            self.report_broken(epoch, effects);
            return;
        }
        self.clients[slot].in_barrier = true;
        self.barrier.enter();
        self.complete_barrier(effects);
    }

    /// Whether all ranks of this node that are not gone are in the barrier.
    fn is_barrier_full(&self) -> bool {
        let entered = self.barrier.entered() as usize;
        if self.gone.is_empty() {
            return entered >= self.clients.len();
        }
        entered > 0 && self.clients.iter().all(|client| client.in_barrier || self.gone.contains(&client.rank))
    }

    fn complete_barrier(&mut self, effects: &mut Vec<Effect>) {
        if !self.is_barrier_full() {
            return;
        }
        let epoch = self.barrier.current();
        if self.spans_nodes() {
            let payload = payload::puts(self.clients.iter().map(|client| &client.pairs[..]));
            self.clients.iter_mut().for_each(|client| client.pairs = Vec::new());
            let seq = self.barrier.contribute();
            self.push_collective(seq, payload, effects);
        } else {
            for client in &mut self.clients {
                let pairs = std::mem::take(&mut client.pairs).into();
                self.kvs.commit(epoch, pairs).expect("the pairs of a client are encoded by this server");
            }
            self.release(effects);
        }
    }

    /// The barrier is complete: replies to all ranks in it.
    fn release(&mut self, effects: &mut Vec<Effect>) {
        self.barrier.complete();
        for client in self.clients.iter_mut().filter(|client| client.in_barrier) {
            client.in_barrier = false;
            if let Lifecycle::Inited { passed_barrier, .. } = &mut client.lifecycle {
                *passed_barrier = true;
            }
            if !client.shut {
                let bytes = Bytes::from_static(BARRIER_OUT);
                effects.push(Effect::Reply { rank: client.rank, bytes });
            }
        }
    }

    /// A rank has left an epoch, so its barriers cannot complete any more. For the first one, the server also sends
    /// that to the other nodes: its last contribution to the epoch.
    fn leave(&mut self, rank: Rank, epoch: Epoch, effects: &mut Vec<Effect>) {
        if !self.barrier.is_open(epoch) {
            return;
        }
        let seq = self.barrier.close(epoch, Some(rank));
        if self.spans_nodes() {
            self.push_collective(seq, payload::broken(rank), effects);
        }
        if self.refuse_waiting(effects) {
            self.report_broken(epoch, effects);
        }
    }

    /// Sends an error to all ranks in a barrier that cannot complete; returns whether there were any.
    fn refuse_waiting(&mut self, effects: &mut Vec<Effect>) -> bool {
        let mut any = false;
        for client in self.clients.iter_mut().filter(|client| client.in_barrier) {
            any = true;
            client.in_barrier = false;
            if !client.shut {
                let bytes = Bytes::from_static(BARRIER_BROKEN);
                effects.push(Effect::Reply { rank: client.rank, bytes });
            }
        }
        any
    }

    /// Reports to the driver, once for each epoch, that a rank entered a barrier that cannot complete.
    fn report_broken(&mut self, epoch: Epoch, effects: &mut Vec<Effect>) {
        if self.barrier.report(epoch) {
            let left = self.barrier.last_left();
            effects.push(Effect::BarrierBroken { epoch, left });
        }
    }

    fn finalize(&mut self, slot: usize, epoch: Epoch, effects: &mut Vec<Effect>) {
        let client = &mut self.clients[slot];
        if let Lifecycle::Inited { passed_barrier, .. } = client.lifecycle {
            client.lifecycle = Lifecycle::Finalized { epoch, passed_barrier };
        }
        let rank = client.rank;
        client.pairs = Vec::new();
        self.leave(rank, epoch, effects);
        effects.push(Effect::Finalized { rank, epoch });
        self.reply(slot, FINALIZED, effects);
    }

    /// The keys are `exitcode` and `message` in MPICH, `exit_code` and `error_msg` in clients of Flux's making.
    fn abort(&mut self, slot: usize, request: &Request<'_>, effects: &mut Vec<Effect>) {
        let code = request.number(b"exitcode").or_else(|| request.number(b"exit_code"));
        let message = request.prose(b"message").or_else(|| request.prose(b"error_msg"));
        let client = &mut self.clients[slot];
        client.shut();
        effects.push(Effect::Abort { rank: client.rank, code: code.map_or(1, |code| code as i32), message });
    }

    fn begin_multi_line(&mut self, slot: usize, name: &[u8]) -> Result<(), Violation> {
        self.clients[slot].epoch(name)?;
        check_name(name)?;
        self.clients[slot].multi_line.get_or_insert_with(|| MultiLine::new(name));
        Ok(())
    }

    /// A line `key=value` of a request of several lines, whose values may hold anything, or its end.
    fn continue_multi_line(&mut self, slot: usize, line: &[u8], effects: &mut Vec<Effect>) -> Result<(), Violation> {
        let Some(request) = &mut self.clients[slot].multi_line else {
            return Ok(());
        };
        if line != b"endcmd" {
            request.line(line);
            return Ok(());
        }
        if request.name != b"spawn" {
            let name = std::mem::take(&mut request.name);
            self.clients[slot].multi_line = None;
            return self.unsupported(slot, &name, effects);
        }
        match request.end_block() {
            BlockEnd::More => return Ok(()),
            BlockEnd::Refused(why) => self.reply(slot, spawning::refusal(why), effects),
            BlockEnd::Whole(request) => {
                self.asked += 1;
                self.clients[slot].asking = Some((self.asked, Asked::Spawn(request.size())));
                let rank = self.clients[slot].rank;
                effects.push(Effect::Spawn { id: self.asked, rank, request: Box::new(request) });
            }
        }
        self.clients[slot].multi_line = None;
        Ok(())
    }

    /// Replies to an unsupported command, so that its client fails instead of waiting.
    fn unsupported(&mut self, slot: usize, name: &[u8], effects: &mut Vec<Effect>) -> Result<(), Violation> {
        check_name(name)?;
        let text = [b"cmd=", name, b"_result rc=-1 msg=unknown_command\n"].concat();
        self.reply(slot, text, effects);
        Ok(())
    }

    fn reply(&self, slot: usize, bytes: impl Into<Bytes>, effects: &mut Vec<Effect>) {
        let (rank, bytes) = (self.clients[slot].rank, bytes.into());
        debug_assert!(bytes.len() < MAX_REPLY);
        effects.push(Effect::Reply { rank, bytes });
    }

    fn push_collective(&self, seq: u64, payload: Vec<u8>, effects: &mut Vec<Effect>) {
        effects.push(Effect::Collective(Collective {
            group: self.config.group,
            seq,
            members: self.clients.len() as u32,
            of: self.config.size,
            gone: self.gone.clone(),
            payloads: vec![payload],
        }));
    }
}

/// The name of a command that is repeated to its client, or kept.
fn check_name(name: &[u8]) -> Result<(), Violation> {
    const NAME_MAX: usize = 64;
    let letter = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if name.is_empty() || name.len() > NAME_MAX || !name.iter().all(letter) {
        return Err(Violation::NotARequest(excerpt(name)));
    }
    Ok(())
}
