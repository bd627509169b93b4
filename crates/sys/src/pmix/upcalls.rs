//! What libpmix calls, from its own thread: each upcall becomes a message to the loop, which completes it later.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use super::abi::{
    AppCommand, Buffer, Info, InfoCb, LookupCb, ModexCb, Module, OpCb, PERSIST_FIRST_READ, Pdata, Proc, Query,
    RANK_WILDCARD, SpawnCb, Value, key, kind, status,
};
use super::infos::{Infos, LogText, log_texts, name, proc, slice, string, strings, text};
use super::library::Library;
use super::spawning::{Wanted, wanted};
use crate::poll::Waker;

/// A process, as PMIx names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Who {
    pub nspace: String,
    /// `None`: every rank of the namespace.
    pub rank: Option<u32>,
}

/// A published value, packed by libpmix: only a server of the same family reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Published {
    pub key: String,
    pub packed: Vec<u8>,
}

/// What the clients ask for. Each waits in its call until its completion is answered.
#[derive(Debug)]
pub enum Upcall {
    Connected {
        who: Who,
        done: Completion,
    },
    Finalized {
        who: Who,
        done: Completion,
    },
    Aborted {
        who: Who,
        code: i32,
        message: Option<String>,
        done: Completion,
    },
    /// All participants here have contributed.
    Fence {
        procs: Vec<Who>,
        data: Vec<u8>,
        done: Completion,
    },
    /// The data of a process of another node are asked for.
    Fetch {
        of: Who,
        done: Completion,
    },
    /// `once`: each is gone with its first lookup.
    Publish {
        who: Who,
        entries: Vec<Published>,
        once: bool,
        done: Completion,
    },
    Lookup {
        who: Who,
        keys: Vec<String>,
        wait: bool,
        timeout: Option<Duration>,
        done: Completion,
    },
    Unpublish {
        who: Who,
        keys: Vec<String>,
        done: Completion,
    },
    /// A further group of ranks is asked for.
    Spawn {
        who: Who,
        commands: Vec<Wanted>,
        done: Completion,
    },
    Connect {
        procs: Vec<Who>,
        done: Completion,
    },
    Disconnect {
        procs: Vec<Who>,
        done: Completion,
    },
    /// A group is made of these.
    Group {
        procs: Vec<Who>,
        wants_context: bool,
        data: Vec<u8>,
        done: Completion,
    },
    /// Texts for the streams of a process.
    Log {
        who: Who,
        texts: Vec<LogText>,
        /// How many other channels are wanted: syslog, mail, a data store.
        others: usize,
        done: Completion,
    },
    /// The answer to [`super::Server::find`] of that number. `None`: there are no data.
    Found {
        number: u64,
        data: Option<Vec<u8>>,
    },
    /// libpmix's thread has passed [`super::Server::ping`].
    Pong,
}

/// The way to answer an upcall, once. A client whose completion is dropped waits for ever.
#[must_use]
#[derive(Debug)]
pub struct Completion {
    call: Call,
    data: *mut c_void,
}

// SAFETY: `data` is libpmix's own, and its callbacks may be called from any thread (`pmix_server.h`).
unsafe impl Send for Completion {}

#[derive(Debug)]
enum Call {
    Op(OpCb),
    Modex(ModexCb),
    Lookup(LookupCb),
    Info(InfoCb),
    Spawn(SpawnCb),
}

impl Completion {
    /// Answers with a status and nothing else.
    pub fn status(self, status: i32) {
        // SAFETY: each callback is called with the data that came with it, once, as the headers ask for.
        unsafe {
            match self.call {
                Call::Op(Some(callback)) => callback(status, self.data),
                Call::Modex(Some(callback)) => {
                    callback(status, std::ptr::null(), 0, self.data, None, std::ptr::null_mut());
                }
                Call::Lookup(Some(callback)) => callback(status, std::ptr::null_mut(), 0, self.data),
                Call::Info(Some(callback)) => {
                    callback(status, std::ptr::null_mut(), 0, self.data, None, std::ptr::null_mut());
                }
                Call::Spawn(Some(callback)) => callback(status, std::ptr::null_mut(), self.data),
                Call::Op(None) | Call::Modex(None) | Call::Lookup(None) | Call::Info(None) | Call::Spawn(None) => {}
            }
        }
    }

    /// Answers a fence or a fetch with the data of all participants.
    pub fn data(self, data: Vec<u8>) {
        let Call::Modex(Some(callback)) = self.call else { return self.status(status::SUCCESS) };
        let size = data.len();
        let held = Box::new(data);
        let bytes = held.as_ptr().cast::<c_char>();
        let held = Box::into_raw(held).cast::<c_void>();
        // SAFETY: the bytes live until libpmix calls `release_bytes` with `held`.
        unsafe { callback(status::SUCCESS, bytes, size, self.data, Some(release_bytes), held) }
    }

    /// Answers a lookup with what was found: publisher, key and value.
    pub fn found(self, library: &Library, found: &[(Who, Published)]) {
        let Call::Lookup(Some(callback)) = self.call else { return self.status(status::SUCCESS) };
        let mut pdata: Vec<Pdata> = Vec::new();
        for (who, published) in found {
            let (Ok(nspace), Ok(key)) =
                (std::ffi::CString::new(who.nspace.as_str()), std::ffi::CString::new(published.key.as_str()))
            else {
                continue;
            };
            let Some(value) = unpack(library, &published.packed) else { continue };
            pdata.push(Pdata { proc: proc(&nspace, who.rank.unwrap_or(RANK_WILDCARD)), key: name(&key), value });
        }
        // SAFETY: libpmix copies the array before the callback returns (3.2 and 5.0 pack it, 6.1 transfers the values).
        unsafe { callback(status::SUCCESS, pdata.as_mut_ptr(), pdata.len(), self.data) }
        pdata.iter().for_each(|pdata| free(&pdata.value));
    }

    /// Answers a spawn with the namespace of the new ranks, which libpmix knows.
    pub fn spawned(self, namespace: &str) {
        let Call::Spawn(Some(callback)) = self.call else { return self.status(status::SUCCESS) };
        let Ok(name) = std::ffi::CString::new(namespace) else { return self.status(status::ERROR) };
        // SAFETY: libpmix copies the name before the callback returns.
        unsafe { callback(status::SUCCESS, name.as_ptr().cast_mut(), self.data) }
    }

    /// Answers the construction of a group.
    pub fn group(self, context: Option<usize>, members: &[Who], data: &[u8]) {
        let Call::Info(Some(callback)) = self.call else { return self.status(status::SUCCESS) };
        let mut infos = Infos::default();
        if let Some(context) = context {
            infos.size(key::GROUP_CONTEXT_ID, context);
        }
        let procs = members.iter().filter_map(|who| {
            let nspace = std::ffi::CString::new(who.nspace.as_str()).ok()?;
            Some(proc(&nspace, who.rank.unwrap_or(RANK_WILDCARD)))
        });
        infos.procs(key::GROUP_MEMBERSHIP, procs.collect());
        if !data.is_empty() {
            infos.give_bytes(key::GROUP_ENDPT_DATA, data);
        }
        let mut held = Box::new(infos);
        let (items, count) = (held.as_mut_ptr(), held.len());
        let held = Box::into_raw(held).cast::<c_void>();
        // SAFETY: the infos live until libpmix calls `release_infos` with `held`.
        unsafe { callback(status::SUCCESS, items, count, self.data, Some(release_infos), held) }
    }
}

unsafe extern "C" fn release_bytes(held: *mut c_void) {
    // SAFETY: `data` made it, and libpmix releases it once.
    drop(unsafe { Box::from_raw(held.cast::<Vec<u8>>()) });
}

unsafe extern "C" fn release_infos(held: *mut c_void) {
    // SAFETY: `group` made it, and libpmix releases it once.
    drop(unsafe { Box::from_raw(held.cast::<Infos>()) });
}

/// A value as bytes.
fn pack(library: &Library, value: &Value) -> Option<Vec<u8>> {
    let mut buffer = Buffer::empty();
    let source = std::ptr::from_ref(value).cast_mut().cast::<c_void>();
    // SAFETY: one value is packed from where it is; libpmix allocates the buffer's bytes.
    let result = unsafe { (library.pack)(std::ptr::null(), &raw mut buffer, source, 1, kind::VALUE) };
    // SAFETY: `used` bytes are at `base`.
    let packed = unsafe { slice(buffer.base.cast::<u8>().cast_const(), buffer.used) }.to_vec();
    // SAFETY: libpmix allocated it with malloc, and has no other copy of it.
    unsafe { libc::free(buffer.base.cast()) };
    (result == status::SUCCESS).then_some(packed)
}

/// The value again. Its pointers are from malloc.
fn unpack(library: &Library, packed: &[u8]) -> Option<Value> {
    let mut bytes = packed.to_vec();
    let base = bytes.as_mut_ptr().cast::<c_char>();
    let mut buffer = Buffer { base, pack: base, unpack: base, allocated: bytes.len(), used: bytes.len() };
    // SAFETY: `base` has that many bytes, so the end is one past the last.
    buffer.pack = unsafe { base.add(bytes.len()) };
    let mut value = Value { kind: 0, data: super::abi::Data { raw: [0; 3] } };
    let mut count = 1;
    let target = (&raw mut value).cast::<c_void>();
    // SAFETY: room for one value; the buffer is only read.
    let result = unsafe { (library.unpack)(std::ptr::null(), &raw mut buffer, target, &raw mut count, kind::VALUE) };
    (result == status::SUCCESS && count == 1).then_some(value)
}

/// Frees what a value points to, for the kinds that programs publish. Of others a few bytes stay until the host ends.
fn free(value: &Value) {
    // SAFETY: the kind says which member is set; libpmix allocated it with malloc, for us.
    unsafe {
        match value.kind {
            kind::STRING => libc::free(value.data.string.cast()),
            kind::BYTE_OBJECT => libc::free(value.data.bytes.bytes.cast()),
            _ => {}
        }
    }
}

impl Buffer {
    fn empty() -> Buffer {
        let null = std::ptr::null_mut();
        Buffer { base: null, pack: null, unpack: null, allocated: 0, used: 0 }
    }
}

/// Where upcalls go.
pub(super) struct Sink {
    pub(super) library: Library,
    pub(super) upcalls: SyncSender<Upcall>,
    pub(super) waker: Waker,
}

/// Upcalls carry no pointer of the server's, so that there can be one.
pub(super) static SINK: OnceLock<Sink> = OnceLock::new();

/// Passes an upcall on. If the loop has gone, the client gets an error.
fn send(upcall: Upcall) -> c_int {
    let Some(sink) = SINK.get() else { return status::ERROR };
    if sink.upcalls.send(upcall).is_err() {
        return status::ERROR;
    }
    sink.waker.wake();
    status::SUCCESS
}

/// # Safety
/// `proc` is null or valid.
unsafe fn who(proc: *const Proc) -> Who {
    // SAFETY: the caller promises it.
    match unsafe { proc.as_ref() } {
        Some(proc) => Who { nspace: text(&proc.nspace), rank: (proc.rank < RANK_WILDCARD).then_some(proc.rank) },
        None => Who { nspace: String::new(), rank: None },
    }
}

/// # Safety
/// `procs` is null, or leads to `count` processes.
unsafe fn all(procs: *const Proc, count: usize) -> Vec<Who> {
    // SAFETY: the caller promises it.
    unsafe { slice(procs, count).iter().map(|proc| who(proc)).collect() }
}

fn op(callback: OpCb, data: *mut c_void) -> Completion {
    Completion { call: Call::Op(callback), data }
}

// Of all of these: libpmix gives pointers that are valid during the call, null where there is nothing, and counts that are
// true. Nothing of it is kept but the callback and its data.

unsafe extern "C" fn connected(proc: *const Proc, _: *mut c_void, callback: OpCb, data: *mut c_void) -> c_int {
    // SAFETY: see above.
    send(Upcall::Connected { who: unsafe { who(proc) }, done: op(callback, data) })
}

unsafe extern "C" fn finalized(proc: *const Proc, _: *mut c_void, callback: OpCb, data: *mut c_void) -> c_int {
    // SAFETY: see above.
    send(Upcall::Finalized { who: unsafe { who(proc) }, done: op(callback, data) })
}

unsafe extern "C" fn aborted(
    proc: *const Proc,
    _: *mut c_void,
    code: c_int,
    message: *const c_char,
    _procs: *mut Proc,
    _count: usize,
    callback: OpCb,
    data: *mut c_void,
) -> c_int {
    // SAFETY: see above.
    let (who, message) = unsafe { (who(proc), string(message)) };
    send(Upcall::Aborted { who, code, message, done: op(callback, data) })
}

unsafe extern "C" fn fence(
    procs: *const Proc,
    count: usize,
    _: *const Info,
    _: usize,
    bytes: *mut c_char,
    size: usize,
    callback: ModexCb,
    data: *mut c_void,
) -> c_int {
    // No version of the header says who frees the bytes: they stay, once for each fence.
    // SAFETY: see above.
    let (procs, bytes) = unsafe { (all(procs, count), slice(bytes.cast::<u8>().cast_const(), size).to_vec()) };
    send(Upcall::Fence { procs, data: bytes, done: Completion { call: Call::Modex(callback), data } })
}

unsafe extern "C" fn direct_modex(
    proc: *const Proc,
    _: *const Info,
    _: usize,
    callback: ModexCb,
    data: *mut c_void,
) -> c_int {
    // SAFETY: see above.
    send(Upcall::Fetch { of: unsafe { who(proc) }, done: Completion { call: Call::Modex(callback), data } })
}

unsafe extern "C" fn publish(
    proc: *const Proc,
    infos: *const Info,
    count: usize,
    callback: OpCb,
    data: *mut c_void,
) -> c_int {
    let Some(sink) = SINK.get() else { return status::ERROR };
    // What the client and libpmix say about the data, and not the data.
    let about = [key::RANGE, key::PERSISTENCE, key::USERID, key::GRPID, key::TIMEOUT];
    // SAFETY: see above.
    let (who, infos) = unsafe { (who(proc), slice(infos, count)) };
    let mut entries = Vec::new();
    for info in infos.iter().filter(|info| !about.iter().any(|key| info.has(key))) {
        let Some(packed) = pack(&sink.library, &info.value) else { return status::BAD_PARAM };
        entries.push(Published { key: info.name(), packed });
    }
    let persistence = infos.iter().find(|info| info.has(key::PERSISTENCE)).and_then(Info::as_u32);
    let once = persistence == Some(PERSIST_FIRST_READ);
    send(Upcall::Publish { who, entries, once, done: op(callback, data) })
}

unsafe extern "C" fn lookup(
    proc: *const Proc,
    keys: *mut *mut c_char,
    infos: *const Info,
    count: usize,
    callback: LookupCb,
    data: *mut c_void,
) -> c_int {
    // SAFETY: see above.
    let (who, keys, infos) = unsafe { (who(proc), strings(keys), slice(infos, count)) };
    // PMIX_WAIT is a number of keys (0: all) or a flag: its presence asks to wait.
    let wait = infos.iter().any(|info| info.has(key::WAIT) && (info.is_true() || info.as_u32().is_some()));
    let timeout =
        infos.iter().find(|info| info.has(key::TIMEOUT)).and_then(Info::as_u32).filter(|seconds| *seconds > 0);
    let timeout = timeout.map(|seconds| Duration::from_secs(seconds.into()));
    let done = Completion { call: Call::Lookup(callback), data };
    send(Upcall::Lookup { who, keys, wait, timeout, done })
}

unsafe extern "C" fn unpublish(
    proc: *const Proc,
    keys: *mut *mut c_char,
    _: *const Info,
    _: usize,
    callback: OpCb,
    data: *mut c_void,
) -> c_int {
    // SAFETY: see above.
    let (who, keys) = unsafe { (who(proc), strings(keys)) };
    send(Upcall::Unpublish { who, keys, done: op(callback, data) })
}

unsafe extern "C" fn spawn(
    proc: *const Proc,
    infos: *const Info,
    infos_count: usize,
    apps: *const AppCommand,
    count: usize,
    callback: SpawnCb,
    data: *mut c_void,
) -> c_int {
    // SAFETY: see above.
    let (who, infos, apps) = unsafe { (who(proc), slice(infos, infos_count), slice(apps, count)) };
    // SAFETY: see above.
    let commands = apps.iter().map(|app| unsafe { wanted(app, infos) }).collect();
    send(Upcall::Spawn { who, commands, done: Completion { call: Call::Spawn(callback), data } })
}

unsafe extern "C" fn log(
    proc: *const Proc,
    infos: *const Info,
    count: usize,
    _: *const Info,
    _: usize,
    callback: OpCb,
    data: *mut c_void,
) {
    // SAFETY: see above.
    let (who, (texts, others)) = unsafe { (who(proc), log_texts(slice(infos, count))) };
    if send(Upcall::Log { who, texts, others, done: op(callback, data) }) != status::SUCCESS {
        op(callback, data).status(status::ERROR);
    }
}

unsafe extern "C" fn connect(
    procs: *const Proc,
    count: usize,
    _: *const Info,
    _: usize,
    callback: OpCb,
    data: *mut c_void,
) -> c_int {
    // SAFETY: see above.
    send(Upcall::Connect { procs: unsafe { all(procs, count) }, done: op(callback, data) })
}

unsafe extern "C" fn disconnect(
    procs: *const Proc,
    count: usize,
    _: *const Info,
    _: usize,
    callback: OpCb,
    data: *mut c_void,
) -> c_int {
    // SAFETY: see above.
    send(Upcall::Disconnect { procs: unsafe { all(procs, count) }, done: op(callback, data) })
}

unsafe extern "C" fn register_events(
    _: *mut c_int,
    _: usize,
    _: *const Info,
    _: usize,
    _: OpCb,
    _: *mut c_void,
) -> c_int {
    // libpmix itself delivers what happens to its clients. There are no other events.
    status::OPERATION_SUCCEEDED
}

unsafe extern "C" fn deregister_events(_: *mut c_int, _: usize, _: OpCb, _: *mut c_void) -> c_int {
    status::OPERATION_SUCCEEDED
}

unsafe extern "C" fn notify_event(
    _: c_int,
    _: *const Proc,
    _: u8,
    _: *mut Info,
    _: usize,
    _: OpCb,
    _: *mut c_void,
) -> c_int {
    // libpmix has delivered it to the clients of this node.
    status::OPERATION_SUCCEEDED
}

unsafe extern "C" fn query(_: *mut Proc, _: *mut Query, _: usize, _: InfoCb, _: *mut c_void) -> c_int {
    // What libpmix can answer from the namespace, it answers itself.
    status::NOT_SUPPORTED
}

unsafe extern "C" fn job_control(
    _: *const Proc,
    _: *const Proc,
    _: usize,
    _: *const Info,
    _: usize,
    _: InfoCb,
    _: *mut c_void,
) -> c_int {
    status::NOT_SUPPORTED
}

unsafe extern "C" fn group(
    operation: c_int,
    _: *mut c_char,
    procs: *const Proc,
    count: usize,
    infos: *const Info,
    infos_count: usize,
    callback: InfoCb,
    data: *mut c_void,
) -> c_int {
    match operation {
        0 => {}
        // Nothing to do; and 5.0.11 calls twice, and corrupts its memory, if it has to wait for the end of a local group.
        1 => return status::OPERATION_SUCCEEDED,
        _ => return status::NOT_SUPPORTED,
    }
    // SAFETY: see above.
    let (procs, infos) = unsafe { (all(procs, count), slice(infos, infos_count)) };
    let wants_context = infos.iter().any(|info| info.has(key::GROUP_ASSIGN_CONTEXT_ID) && info.is_true());
    let endpoints = infos.iter().find(|info| info.has(key::GROUP_ENDPT_DATA));
    // SAFETY: see above.
    let bytes = endpoints.and_then(|info| unsafe { info.as_bytes() }).unwrap_or_default();
    let done = Completion { call: Call::Info(callback), data };
    send(Upcall::Group { procs, wants_context, data: bytes, done })
}

/// The callback of a search. `data` is its number, and leads nowhere.
pub(super) unsafe extern "C" fn found(result: c_int, bytes: *mut c_char, size: usize, data: *mut c_void) {
    // SAFETY: libpmix gives so many bytes, which are its own and valid during the call.
    let bytes = unsafe { slice(bytes.cast::<u8>().cast_const(), size) }.to_vec();
    let found = (result == status::SUCCESS).then_some(bytes);
    // Without a loop nobody waits for it.
    let _ = send(Upcall::Found { number: data.addr() as u64, data: found });
}

/// The callback of a ping.
pub(super) unsafe extern "C" fn pong(_: c_int, _: *mut c_void) {
    // Without a loop nobody waits for it.
    let _ = send(Upcall::Pong);
}

/// The table for libpmix.
pub(super) fn module() -> Module {
    Module {
        client_connected: Some(connected),
        client_finalized: Some(finalized),
        abort: Some(aborted),
        fence: Some(fence),
        direct_modex: Some(direct_modex),
        publish: Some(publish),
        lookup: Some(lookup),
        unpublish: Some(unpublish),
        spawn: Some(spawn),
        connect: Some(connect),
        disconnect: Some(disconnect),
        register_events: Some(register_events),
        deregister_events: Some(deregister_events),
        listener: 0,
        notify_event: Some(notify_event),
        query: Some(query),
        tool_connected: 0,
        log: Some(log),
        allocate: 0,
        job_control: Some(job_control),
        monitor: 0,
        get_credential: 0,
        validate_credential: 0,
        iof_pull: 0,
        push_stdin: 0,
        group: Some(group),
        later: [0; 32],
    }
}
