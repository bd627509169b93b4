//! The server: sets libpmix up, and tells it of namespaces.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use super::abi::{self, Module, key, status};
use super::infos::{Infos, proc};
use super::library::Library;
use super::upcalls::{SINK, Sink, Upcall, Who, found, module, pong};
use crate::poll::Waker;

/// How long libpmix may take for one call of the set-up, which takes it milliseconds.
const SETUP_BOUND: Duration = Duration::from_secs(30);
/// Upcalls that wait for the loop. libpmix's thread waits if there are more; clients wait anyway.
const UPCALLS: usize = 1024;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("{call} of \"{library}\" failed with status {status}")]
    Failed { call: &'static str, library: String, status: i32 },
    #[error("{call} of \"{library}\" did not return within {} s", bound.as_secs())]
    Stuck { call: &'static str, library: String, bound: Duration },
    #[error("{what} has a NUL byte")]
    Nul { what: &'static str },
    #[error("\"{library}\" did not say where it listens")]
    NoAddress { library: String },
    #[error("this process has a server already")]
    Second,
}

/// One command of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct App {
    /// How many ranks run it.
    pub size: u32,
    /// The first of them.
    pub first: u32,
    /// Its words, joined by blanks. Empty, as the directory is, where they are not known.
    pub command: String,
    pub directory: String,
}

/// One rank of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    pub rank: u32,
    /// The index of its node.
    pub node: u32,
    pub local_rank: u16,
    /// The index of its command, and its place among the ranks of that.
    pub app: u32,
    pub app_rank: u32,
}

/// A group of ranks, as they and others are told of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Namespace {
    pub name: String,
    /// All ranks of all nodes, in order.
    pub members: Vec<Member>,
    pub apps: Vec<App>,
    /// The names of the job's nodes, each different.
    pub nodes: Vec<String>,
    /// The index of this node.
    pub node: u32,
    /// The directory for the files of all groups, and what is below it for the group's session.
    pub directory: PathBuf,
    pub session: String,
    /// More ranks than CPUs: a rank that waits gives its CPU away.
    pub oversubscribed: bool,
    /// How many ranks all groups may have.
    pub universe: u32,
    /// The rank that has asked for the group.
    pub parent: Option<Who>,
}

impl Namespace {
    /// Where Open MPI puts what ranks of this node share. Each rank has a directory of its own below it, by its number.
    pub fn session_directory(&self) -> PathBuf {
        self.directory.join(&self.session)
    }
}

/// The running server of this process.
#[derive(Debug)]
pub struct Server {
    upcalls: Receiver<Upcall>,
    port: u16,
}

impl Server {
    /// Starts libpmix as the server `(name, 0)`, with its files below `directory`. `waker` wakes the loop for each upcall.
    pub fn start(library: Library, name: &str, directory: &Path, waker: Waker) -> Result<Server, ServerError> {
        let (sender, upcalls) = sync_channel(UPCALLS);
        let sink = Sink { library, upcalls: sender, waker };
        SINK.set(sink).map_err(|_| ServerError::Second)?;
        let library = self::library();
        let directory = c_string(directory.as_os_str(), "the directory")?;
        let name = c_string(OsStr::new(name), "the name")?;
        let mut infos = Infos::default();
        infos.string(key::SERVER_TMPDIR, &directory);
        infos.string(key::SYSTEM_TMPDIR, &directory);
        infos.string(key::SERVER_NSPACE, &name);
        infos.rank(key::SERVER_RANK, 0);
        infos.flag(key::SERVER_SHARE_TOPOLOGY, true);
        // libpmix copies as much of the table as it knows.
        let table: &'static mut Module = Box::leak(Box::new(module()));
        // SAFETY: the table lives as long as the process, the infos during the call.
        let result = unsafe { (library.init)(table, infos.as_mut_ptr(), infos.len()) };
        check("PMIx_server_init", result)?;
        Ok(Server { upcalls, port: 0 })
    }

    /// Tells libpmix of a group and of its ranks on this node, and learns where it listens from the first that has any.
    ///
    /// `user` and `group`: what the clients take themselves for. libpmix refuses those that send others.
    pub fn register(&mut self, namespace: &Namespace, user: u32, group: u32) -> Result<(), ServerError> {
        let library = library();
        let name = c_string(OsStr::new(&namespace.name), "the name of the namespace")?;
        let local: Vec<u32> =
            namespace.members.iter().filter(|member| member.node == namespace.node).map(|member| member.rank).collect();
        let infos = describe(library, namespace, &name, &local)?;
        let path = library.path();
        call(
            path,
            "PMIx_server_register_nspace",
            SETUP_BOUND,
            (name.clone(), infos),
            |(name, infos), callback, data| {
                let (items, count) = (infos.as_mut_ptr(), infos.len());
                // SAFETY: `call` keeps the name and the infos until the callback has been called, or for ever.
                unsafe {
                    (library.register_nspace)(name.as_ptr(), local.len() as c_int, items, count, Some(callback), data)
                }
            },
        )?;
        for rank in &local {
            let client = proc(&name, *rank);
            call(path, "PMIx_server_register_client", SETUP_BOUND, client, |client, callback, data| {
                // SAFETY: `call` keeps the client until the callback has been called, or for ever.
                unsafe { (library.register_client)(client, user, group, std::ptr::null_mut(), Some(callback), data) }
            })?;
        }
        if let (0, Some(first)) = (self.port, local.first()) {
            self.port = address(library, &name, *first)?;
        }
        Ok(())
    }

    /// No rank of the group is left on this node: libpmix frees what it has of it.
    pub fn deregister(&self, namespace: &str) {
        let Ok(name) = CString::new(namespace) else { return };
        // SAFETY: libpmix copies the name. It wants a callback.
        unsafe { (library().deregister_nspace)(name.as_ptr(), Some(ignored), std::ptr::null_mut()) }
    }

    /// The port of 127.0.0.1 at which libpmix takes clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What wakes the loop when there is an upcall.
    pub fn waker(&self) -> io::Result<Waker> {
        Ok(SINK.get().ok_or(io::ErrorKind::NotFound)?.waker.clone())
    }

    /// The next upcall, if there is one.
    pub fn next(&self) -> Option<Upcall> {
        self.upcalls.try_recv().ok()
    }

    /// Asks libpmix's thread for a [`Upcall::Pong`].
    pub fn ping(&self) {
        let nobody = proc(c"rankrun-ping", 0);
        // SAFETY: libpmix copies the name. It knows no such client, and only calls back.
        unsafe { (library().deregister_client)(&raw const nobody, Some(pong), std::ptr::null_mut()) }
    }

    /// Asks libpmix for the data of a rank of this node, for another one: [`Upcall::Found`] has the number. libpmix waits until
    /// the rank has committed some.
    pub fn find(&self, namespace: &str, rank: u32, number: u64) -> Result<(), ServerError> {
        let name = c_string(OsStr::new(namespace), "the name of the namespace")?;
        let wanted = proc(&name, rank);
        // SAFETY: libpmix copies the name, and gives the number back as it is.
        let result = unsafe {
            (library().dmodex_request)(
                &raw const wanted,
                Some(found),
                std::ptr::without_provenance_mut(number as usize),
            )
        };
        check("PMIx_server_dmodex_request", result)
    }

    /// Tells the clients that asked for such events that these ranks have ended without finalizing.
    pub fn tell_lost(&self, ranks: &[Who]) {
        let named = |who: &Who| Some(proc(&CString::new(who.nspace.as_str()).ok()?, who.rank?));
        let ranks: Vec<abi::Proc> = ranks.iter().filter_map(named).collect();
        // An event of the server itself would come back to it.
        let Some(source) = ranks.first().copied() else { return };
        let mut infos = Infos::default();
        // Open MPI 5 looks at these alone, and not at the source.
        ranks.into_iter().for_each(|rank| infos.proc(key::EVENT_AFFECTED_PROC, rank));
        // Open MPI's default handler would abort the others, and hide who failed first.
        infos.flag(key::EVENT_NON_DEFAULT, true);
        // libpmix may read the infos later.
        let infos: &'static mut Infos = Box::leak(Box::new(infos));
        // SAFETY: the infos live for ever; libpmix copies the source.
        let _ = unsafe {
            (library().notify)(
                status::PROC_TERM_WO_SYNC,
                &raw const source,
                abi::RANGE_SESSION,
                infos.as_mut_ptr(),
                infos.len(),
                None,
                std::ptr::null_mut(),
            )
        };
    }

    /// The library, to answer lookups.
    pub fn library(&self) -> &'static Library {
        library()
    }
}

/// The library of this process's server.
fn library() -> &'static Library {
    &SINK.get().expect("a server is made after its sink is set").library
}

fn describe(library: &Library, namespace: &Namespace, name: &CStr, local: &[u32]) -> Result<Infos, ServerError> {
    let size = namespace.members.len() as u32;
    // Nodes without ranks of the group are not in its maps, as under PRRTE.
    let used: BTreeSet<u32> = namespace.members.iter().map(|member| member.node).collect();
    let node_name = |node: u32| namespace.nodes.get(node as usize).map_or("localhost", String::as_str);
    let parent =
        namespace.parent.as_ref().and_then(|who| Some(proc(&CString::new(who.nspace.as_str()).ok()?, who.rank?)));
    let mut infos = Infos::default();
    infos.string(key::JOBID, name);
    for (key, number) in [
        (key::UNIV_SIZE, namespace.universe),
        (key::JOB_SIZE, size),
        (key::MAX_PROCS, size),
        (key::LOCAL_SIZE, local.len() as u32),
        (key::NODE_SIZE, local.len() as u32),
        (key::JOB_NUM_APPS, namespace.apps.len() as u32),
        (key::NUM_NODES, used.len() as u32),
    ] {
        infos.number(key, number);
    }
    let list = |ranks: &[u32]| ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    // Open MPI 5 takes an empty list for none at all, and crashes (`ompi_dpm_connect_accept`).
    if let Some(leader) = local.first() {
        infos.string(key::LOCAL_PEERS, &c_string(OsStr::new(&list(local)), "a list")?);
        infos.rank(key::LOCAL_LEADER, *leader);
    }
    infos.flag(key::SPAWNED, parent.is_some());
    if let Some(parent) = parent {
        infos.proc(key::PARENT_ID, parent);
    }
    // Open MPI takes the key itself for a yes, and then yields in every wait: two to three times the time of a small collective.
    if namespace.oversubscribed {
        infos.flag(key::NODE_OVERSUBSCRIBED, true);
    }
    let session = namespace.session_directory();
    infos.string(key::TMPDIR, &c_string(namespace.directory.as_os_str(), "the directory")?);
    infos.string(key::NSDIR, &c_string(session.as_os_str(), "the directory")?);
    // The job's directory is ours to remove.
    infos.flag(key::TDIR_RMCLEAN, true);
    let nodes = used.iter().map(|node| node_name(*node)).collect::<Vec<_>>().join(",");
    infos.regex(key::NODE_MAP, generate(library, library.regex, "PMIx_generate_regex", &nodes)?);
    let on_node = |node: &u32| {
        let ranks = namespace.members.iter().filter(|member| member.node == *node).map(|member| member.rank);
        list(&ranks.collect::<Vec<_>>())
    };
    let ranks: Vec<String> = used.iter().map(on_node).collect();
    infos.regex(key::PROC_MAP, generate(library, library.ppn, "PMIx_generate_ppn", &ranks.join(";"))?);
    infos.string(key::HOSTNAME, &c_string(OsStr::new(node_name(namespace.node)), "the name of the node")?);
    for (index, app) in (0..).zip(&namespace.apps) {
        let mut inner = Infos::default();
        inner.number(key::APPNUM, index);
        inner.number(key::APP_SIZE, app.size);
        inner.rank(key::APP_LEADER, app.first);
        if !app.command.is_empty() {
            inner.string(key::APP_ARGV, &c_string(OsStr::new(&app.command), "a command")?);
            inner.string(key::WDIR, &c_string(OsStr::new(&app.directory), "a directory")?);
        }
        infos.array(key::APP_INFO_ARRAY, inner);
    }
    for member in &namespace.members {
        let mut inner = Infos::default();
        // libpmix wants the rank first.
        inner.rank(key::RANK, member.rank);
        inner.rank(key::GLOBAL_RANK, member.rank);
        inner.rank(key::APP_RANK, member.app_rank);
        inner.number(key::APPNUM, member.app);
        inner.number(key::NODEID, member.node);
        inner.small(key::LOCAL_RANK, member.local_rank);
        inner.small(key::NODE_RANK, member.local_rank);
        if member.node == namespace.node {
            let directory = session.join(member.rank.to_string());
            inner.string(key::PROCDIR, &c_string(directory.as_os_str(), "the directory")?);
        }
        inner.string(key::HOSTNAME, &c_string(OsStr::new(node_name(member.node)), "the name of a node")?);
        if let Some(parent) = parent {
            inner.proc(key::PARENT_ID, parent);
        }
        infos.array(key::PROC_INFO_ARRAY, inner);
    }
    Ok(infos)
}

/// Has libpmix make a map. Its result is bytes that end with NUL, and may have others before.
fn generate(
    library: &Library,
    function: unsafe extern "C" fn(*const c_char, *mut *mut c_char) -> c_int,
    name: &'static str,
    input: &str,
) -> Result<Vec<u8>, ServerError> {
    let input = c_string(OsStr::new(input), "a map")?;
    let mut output: *mut c_char = std::ptr::null_mut();
    // SAFETY: libpmix allocates the result.
    let result = unsafe { function(input.as_ptr(), &raw mut output) };
    check_with(library.path(), name, result)?;
    if output.is_null() {
        return Err(ServerError::Failed { call: name, library: library.path().display().to_string(), status: result });
    }
    // SAFETY: it begins with a C string. Of the forms that libpmix 3.2 to 6.1 make, only "blob:\0…\0size=N:\0DATA" has more
    // behind it; its size stands in it.
    let bytes = unsafe {
        let head = CStr::from_ptr(output).to_bytes_with_nul().to_vec();
        if head == b"blob:\0" { blob(output, head.len()) } else { head }
    };
    // SAFETY: it is from malloc, and read.
    unsafe { libc::free(output.cast()) };
    Ok(bytes)
}

/// All of a compressed map: "blob:", NUL, "component=zlib:", NUL, "size=N:", NUL, N bytes.
///
/// # Safety
/// `start` leads to such a map.
unsafe fn blob(start: *const c_char, mut length: usize) -> Vec<u8> {
    // SAFETY: each part ends with NUL, and the last says how many bytes follow it.
    unsafe {
        for _ in 0..2 {
            let part = CStr::from_ptr(start.add(length)).to_bytes_with_nul();
            length += part.len();
            let size = part.strip_prefix(b"size=").and_then(|rest| rest.split(|byte| *byte == b':').next());
            if let Some(size) =
                size.and_then(|size| std::str::from_utf8(size).ok()).and_then(|size| size.parse::<usize>().ok())
            {
                length += size;
                break;
            }
        }
        std::slice::from_raw_parts(start.cast::<u8>(), length).to_vec()
    }
}

/// Where libpmix listens: it says so in the environment that it would give to a rank.
fn address(library: &Library, name: &CStr, rank: u32) -> Result<u16, ServerError> {
    let client = proc(name, rank);
    // An array of pointers from malloc: libpmix makes it larger with realloc.
    // SAFETY: room for one pointer, which ends the array.
    let mut env = unsafe { libc::calloc(1, size_of::<*mut c_char>()) }.cast::<*mut c_char>();
    // SAFETY: the array ends with a null pointer.
    let result = unsafe { (library.setup_fork)(&raw const client, &raw mut env) };
    check_with(library.path(), "PMIx_server_setup_fork", result)?;
    // SAFETY: libpmix has kept the array's form.
    let variables = unsafe { super::infos::strings(env.cast_const()) };
    // What the array points to stays, once for each host.
    let port = variables
        .iter()
        .filter(|variable| variable.starts_with("PMIX_SERVER_URI"))
        .find_map(|variable| variable.rsplit(':').next()?.parse().ok());
    port.ok_or_else(|| ServerError::NoAddress { library: library.path().display().to_string() })
}

/// What libpmix calls when it has done what it was asked for.
type Callback = unsafe extern "C" fn(c_int, *mut c_void);

/// Makes a call of libpmix that is completed by a callback, and waits for the callback, at most for `bound`.
///
/// libpmix may read `arguments` until then. If the callback has not come in time, they are leaked: libpmix may still read them.
fn call<A>(
    library: &Path,
    name: &'static str,
    bound: Duration,
    arguments: A,
    make: impl FnOnce(&mut A, Callback, *mut c_void) -> c_int,
) -> Result<(), ServerError> {
    // On the heap, so that they stay where they are when this function returns.
    let mut arguments = Box::new(arguments);
    let (sender, receiver) = sync_channel::<c_int>(1);
    let data = Box::into_raw(Box::new(sender)).cast::<c_void>();
    let result = make(&mut arguments, completed, data);
    if result != status::SUCCESS {
        // SAFETY: no callback follows, so that nobody else frees it.
        drop(unsafe { Box::from_raw(data.cast::<SyncSender<c_int>>()) });
        return check_with(library, name, result);
    }
    match receiver.recv_timeout(bound) {
        Ok(result) => check_with(library, name, result),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            Box::leak(arguments);
            Err(ServerError::Stuck { call: name, library: library.display().to_string(), bound })
        }
    }
}

unsafe extern "C" fn ignored(_: c_int, _: *mut c_void) {}

unsafe extern "C" fn completed(result: c_int, data: *mut c_void) {
    // SAFETY: `call` made it, and libpmix calls back once.
    let sender = unsafe { Box::from_raw(data.cast::<SyncSender<c_int>>()) };
    // It may have given up.
    let _ = sender.send(result);
}

fn check(call: &'static str, result: c_int) -> Result<(), ServerError> {
    check_with(library().path(), call, result)
}

fn check_with(library: &Path, call: &'static str, result: c_int) -> Result<(), ServerError> {
    match result {
        status::SUCCESS | status::OPERATION_SUCCEEDED => Ok(()),
        status => Err(ServerError::Failed { call, library: library.display().to_string(), status }),
    }
}

fn c_string(text: &OsStr, what: &'static str) -> Result<CString, ServerError> {
    CString::new(text.as_bytes()).map_err(|_| ServerError::Nul { what })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arguments that report when they are dropped.
    struct Arguments(SyncSender<()>);

    impl Drop for Arguments {
        fn drop(&mut self) {
            // The test may have ended.
            let _ = self.0.try_send(());
        }
    }

    #[test]
    fn arguments_of_a_call_that_libpmix_has_not_completed_stay() {
        let (dropped, drops) = sync_channel(1);
        let bound = Duration::from_millis(20);
        let mut pending = None;
        let result =
            call(Path::new("libpmix.so.2"), "PMIx_test", bound, Arguments(dropped), |arguments, callback, data| {
                pending = Some((std::ptr::from_mut(arguments), callback, data));
                status::SUCCESS
            });
        assert!(matches!(result, Err(ServerError::Stuck { .. })), "{result:?}");
        assert!(drops.try_recv().is_err(), "libpmix may still read them");
        let (arguments, callback, data) = pending.expect("the call was made");
        // SAFETY: what libpmix does when it is late: it reads the arguments, and calls back.
        let is_alive = unsafe {
            callback(status::SUCCESS, data);
            (*arguments).0.try_send(()).is_ok()
        };
        assert!(is_alive);
    }

    #[test]
    fn arguments_of_a_completed_call_are_freed() {
        for (result, fails) in [(status::SUCCESS, false), (status::OPERATION_SUCCEEDED, false), (-1, true)] {
            let (dropped, drops) = sync_channel(1);
            let bound = Duration::from_secs(60);
            let outcome =
                call(Path::new("libpmix.so.2"), "PMIx_test", bound, Arguments(dropped), |_, callback, data| {
                    if result == status::SUCCESS {
                        // SAFETY: `data` is what `call` gave.
                        unsafe { callback(status::SUCCESS, data) };
                    }
                    result
                });
            assert_eq!((outcome.is_err(), drops.try_recv().is_ok()), (fails, true), "{result}");
        }
    }
}
