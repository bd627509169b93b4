//! The binary interface of libpmix: what is the same in OpenPMIx 3.2, 4.2, 5.0 and 6.1.
//!
//! Sizes, offsets and numbers were read from the headers of 3.2.5, 4.2.9, 5.0.11 and 6.1.0 with a C program; the test below
//! holds them. Source: `include/pmix_common.h.in`, `include/pmix_server.h`.

use std::ffi::{c_char, c_int, c_void};

pub(super) const MAX_NSLEN: usize = 255;
pub(super) const MAX_KEYLEN: usize = 511;

/// Statuses (`pmix_status_t`).
pub mod status {
    use std::ffi::c_int;

    pub const SUCCESS: c_int = 0;
    pub const ERROR: c_int = -1;
    pub const TIMEOUT: c_int = -24;
    pub const BAD_PARAM: c_int = -27;
    pub const NOT_FOUND: c_int = -46;
    pub const NOT_SUPPORTED: c_int = -47;
    /// The ranks that a client asked for were not started.
    pub const JOB_FAILED_TO_LAUNCH: c_int = -181;
    pub const PARTIAL_SUCCESS: c_int = -52;
    pub const DUPLICATE_KEY: c_int = -53;
    /// Done at once: no callback follows.
    pub const OPERATION_SUCCEEDED: c_int = -157;
    /// An event: a process ended without finalizing (PMIx 4 and later). For Open MPI 5 the error is then `MPI_ERR_PROC_FAILED`.
    pub const PROC_TERM_WO_SYNC: c_int = -200;
}

/// Types of a value (`pmix_data_type_t`).
pub(super) mod kind {
    pub(crate) const BOOL: u16 = 1;
    pub(crate) const STRING: u16 = 3;
    pub(crate) const SIZE: u16 = 4;
    pub(crate) const INT: u16 = 6;
    pub(crate) const UINT16: u16 = 13;
    pub(crate) const UINT32: u16 = 14;
    pub(crate) const VALUE: u16 = 21;
    pub(crate) const PROC: u16 = 22;
    pub(crate) const INFO: u16 = 24;
    pub(crate) const BYTE_OBJECT: u16 = 27;
    pub(crate) const PERSIST: u16 = 30;
    pub(crate) const DATA_ARRAY: u16 = 39;
    pub(crate) const PROC_RANK: u16 = 40;
    pub(crate) const ENVAR: u16 = 46;
    pub(crate) const REGEX: u16 = 49;
}

pub(super) const RANK_WILDCARD: u32 = u32::MAX - 1;
/// All processes of the job, of whichever namespace (`pmix_data_range_t`).
pub(super) const RANGE_SESSION: u8 = 4;
/// Published data are gone with their first lookup (`pmix_persistence_t`).
pub(super) const PERSIST_FIRST_READ: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Proc {
    pub(super) nspace: [c_char; MAX_NSLEN + 1],
    pub(super) rank: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ByteObject {
    pub(super) bytes: *mut c_char,
    pub(super) size: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DataArray {
    pub(super) kind: u16,
    pub(super) size: usize,
    pub(super) array: *mut c_void,
}

/// A variable of the environment (`pmix_envar_t`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Envar {
    pub(super) name: *mut c_char,
    pub(super) value: *mut c_char,
    pub(super) separator: c_char,
}

/// The union of a value; the largest member is 24 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Data {
    pub(super) flag: bool,
    pub(super) string: *mut c_char,
    pub(super) size: usize,
    pub(super) integer: c_int,
    pub(super) uint8: u8,
    pub(super) uint16: u16,
    pub(super) uint32: u32,
    pub(super) bytes: ByteObject,
    pub(super) array: *mut DataArray,
    pub(super) proc: *mut Proc,
    pub(super) envar: Envar,
    pub(super) raw: [u64; 3],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Value {
    pub(super) kind: u16,
    pub(super) data: Data,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Info {
    pub(super) key: [c_char; MAX_KEYLEN + 1],
    pub(super) flags: u32,
    pub(super) value: Value,
}

/// Published data with its publisher.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Pdata {
    pub(super) proc: Proc,
    pub(super) key: [c_char; MAX_KEYLEN + 1],
    pub(super) value: Value,
}

#[repr(C)]
pub(super) struct Query {
    pub(super) keys: *mut *mut c_char,
    pub(super) qualifiers: *mut Info,
    pub(super) nqual: usize,
}

/// A buffer that values are packed into (`pmix_data_buffer_t`).
#[repr(C)]
pub(super) struct Buffer {
    pub(super) base: *mut c_char,
    pub(super) pack: *mut c_char,
    pub(super) unpack: *mut c_char,
    pub(super) allocated: usize,
    pub(super) used: usize,
}

/// The command of an application to be spawned (`pmix_app_t`).
#[repr(C)]
pub(super) struct AppCommand {
    pub(super) cmd: *mut c_char,
    pub(super) argv: *mut *mut c_char,
    pub(super) env: *mut *mut c_char,
    pub(super) cwd: *mut c_char,
    pub(super) maxprocs: c_int,
    pub(super) info: *mut Info,
    pub(super) ninfo: usize,
}

pub(super) type OpCb = Option<unsafe extern "C" fn(status: c_int, data: *mut c_void)>;
pub(super) type ReleaseCb = Option<unsafe extern "C" fn(data: *mut c_void)>;
pub(super) type ModexCb = Option<
    unsafe extern "C" fn(
        status: c_int,
        bytes: *const c_char,
        size: usize,
        data: *mut c_void,
        release: ReleaseCb,
        release_data: *mut c_void,
    ),
>;
pub(super) type DmodexCb =
    Option<unsafe extern "C" fn(status: c_int, data: *mut c_char, size: usize, cbdata: *mut c_void)>;
pub(super) type LookupCb =
    Option<unsafe extern "C" fn(status: c_int, found: *mut Pdata, count: usize, data: *mut c_void)>;
pub(super) type InfoCb = Option<
    unsafe extern "C" fn(
        status: c_int,
        infos: *mut Info,
        count: usize,
        data: *mut c_void,
        release: ReleaseCb,
        release_data: *mut c_void,
    ),
>;
pub(super) type SpawnCb = Option<unsafe extern "C" fn(status: c_int, nspace: *mut c_char, data: *mut c_void)>;

type ClientFn = unsafe extern "C" fn(*const Proc, *mut c_void, OpCb, *mut c_void) -> c_int;
type AbortFn =
    unsafe extern "C" fn(*const Proc, *mut c_void, c_int, *const c_char, *mut Proc, usize, OpCb, *mut c_void) -> c_int;
type FenceFn =
    unsafe extern "C" fn(*const Proc, usize, *const Info, usize, *mut c_char, usize, ModexCb, *mut c_void) -> c_int;
type ModexFn = unsafe extern "C" fn(*const Proc, *const Info, usize, ModexCb, *mut c_void) -> c_int;
type PublishFn = unsafe extern "C" fn(*const Proc, *const Info, usize, OpCb, *mut c_void) -> c_int;
type LookupFn = unsafe extern "C" fn(*const Proc, *mut *mut c_char, *const Info, usize, LookupCb, *mut c_void) -> c_int;
type UnpublishFn = unsafe extern "C" fn(*const Proc, *mut *mut c_char, *const Info, usize, OpCb, *mut c_void) -> c_int;
type SpawnFn =
    unsafe extern "C" fn(*const Proc, *const Info, usize, *const AppCommand, usize, SpawnCb, *mut c_void) -> c_int;
type ConnectFn = unsafe extern "C" fn(*const Proc, usize, *const Info, usize, OpCb, *mut c_void) -> c_int;
type RegisterEventsFn = unsafe extern "C" fn(*mut c_int, usize, *const Info, usize, OpCb, *mut c_void) -> c_int;
type DeregisterEventsFn = unsafe extern "C" fn(*mut c_int, usize, OpCb, *mut c_void) -> c_int;
type NotifyFn = unsafe extern "C" fn(c_int, *const Proc, u8, *mut Info, usize, OpCb, *mut c_void) -> c_int;
type QueryFn = unsafe extern "C" fn(*mut Proc, *mut Query, usize, InfoCb, *mut c_void) -> c_int;
type LogFn = unsafe extern "C" fn(*const Proc, *const Info, usize, *const Info, usize, OpCb, *mut c_void);
type JobControlFn =
    unsafe extern "C" fn(*const Proc, *const Proc, usize, *const Info, usize, InfoCb, *mut c_void) -> c_int;
type GroupFn =
    unsafe extern "C" fn(c_int, *mut c_char, *const Proc, usize, *const Info, usize, InfoCb, *mut c_void) -> c_int;

/// `pmix_server_module_t`. Later versions append members; libpmix copies as many as it knows, so that zeros must follow.
#[repr(C)]
pub(super) struct Module {
    pub(super) client_connected: Option<ClientFn>,
    pub(super) client_finalized: Option<ClientFn>,
    pub(super) abort: Option<AbortFn>,
    pub(super) fence: Option<FenceFn>,
    pub(super) direct_modex: Option<ModexFn>,
    pub(super) publish: Option<PublishFn>,
    pub(super) lookup: Option<LookupFn>,
    pub(super) unpublish: Option<UnpublishFn>,
    pub(super) spawn: Option<SpawnFn>,
    pub(super) connect: Option<ConnectFn>,
    pub(super) disconnect: Option<ConnectFn>,
    pub(super) register_events: Option<RegisterEventsFn>,
    pub(super) deregister_events: Option<DeregisterEventsFn>,
    pub(super) listener: usize,
    pub(super) notify_event: Option<NotifyFn>,
    pub(super) query: Option<QueryFn>,
    pub(super) tool_connected: usize,
    /// 6.1 asks this one where its own `log2` is not set.
    pub(super) log: Option<LogFn>,
    pub(super) allocate: usize,
    pub(super) job_control: Option<JobControlFn>,
    pub(super) monitor: usize,
    pub(super) get_credential: usize,
    pub(super) validate_credential: usize,
    pub(super) iof_pull: usize,
    pub(super) push_stdin: usize,
    /// From version 4 on.
    pub(super) group: Option<GroupFn>,
    /// What later versions have. Twice what 6.1 has.
    pub(super) later: [usize; 32],
}

/// The names of the information that is exchanged, as C strings.
pub(super) mod key {
    use std::ffi::CStr;

    pub(crate) const SERVER_TMPDIR: &CStr = c"pmix.srvr.tmpdir";
    pub(crate) const SYSTEM_TMPDIR: &CStr = c"pmix.sys.tmpdir";
    pub(crate) const SERVER_NSPACE: &CStr = c"pmix.srv.nspace";
    pub(crate) const SERVER_RANK: &CStr = c"pmix.srv.rank";
    pub(crate) const SERVER_SHARE_TOPOLOGY: &CStr = c"pmix.srvr.share";
    pub(crate) const JOBID: &CStr = c"pmix.jobid";
    pub(crate) const UNIV_SIZE: &CStr = c"pmix.univ.size";
    pub(crate) const JOB_SIZE: &CStr = c"pmix.job.size";
    pub(crate) const LOCAL_SIZE: &CStr = c"pmix.local.size";
    pub(crate) const NODE_SIZE: &CStr = c"pmix.node.size";
    pub(crate) const LOCAL_PEERS: &CStr = c"pmix.lpeers";
    pub(crate) const LOCAL_LEADER: &CStr = c"pmix.lldr";
    pub(crate) const MAX_PROCS: &CStr = c"pmix.max.size";
    pub(crate) const JOB_NUM_APPS: &CStr = c"pmix.job.napps";
    pub(crate) const NUM_NODES: &CStr = c"pmix.num.nodes";
    pub(crate) const NODE_MAP: &CStr = c"pmix.nmap";
    pub(crate) const PROC_MAP: &CStr = c"pmix.pmap";
    pub(crate) const TMPDIR: &CStr = c"pmix.tmpdir";
    pub(crate) const NSDIR: &CStr = c"pmix.nsdir";
    pub(crate) const TDIR_RMCLEAN: &CStr = c"pmix.tdir.rmclean";
    pub(crate) const NODE_OVERSUBSCRIBED: &CStr = c"pmix.ndosub";
    pub(crate) const PROC_INFO_ARRAY: &CStr = c"pmix.pdata";
    pub(crate) const APP_INFO_ARRAY: &CStr = c"pmix.app.arr";
    pub(crate) const RANK: &CStr = c"pmix.rank";
    pub(crate) const NODEID: &CStr = c"pmix.nodeid";
    pub(crate) const LOCAL_RANK: &CStr = c"pmix.lrank";
    pub(crate) const NODE_RANK: &CStr = c"pmix.nrank";
    pub(crate) const GLOBAL_RANK: &CStr = c"pmix.grank";
    pub(crate) const APP_RANK: &CStr = c"pmix.apprank";
    pub(crate) const APPNUM: &CStr = c"pmix.appnum";
    pub(crate) const APP_SIZE: &CStr = c"pmix.app.size";
    pub(crate) const APP_LEADER: &CStr = c"pmix.aldr";
    pub(crate) const APP_ARGV: &CStr = c"pmix.app.argv";
    pub(crate) const WDIR: &CStr = c"pmix.wdir";
    pub(crate) const HOSTNAME: &CStr = c"pmix.hname";
    pub(crate) const SPAWNED: &CStr = c"pmix.spawned";
    pub(crate) const PROCDIR: &CStr = c"pmix.pdir";
    pub(crate) const WAIT: &CStr = c"pmix.wait";
    pub(crate) const TIMEOUT: &CStr = c"pmix.timeout";
    pub(crate) const LOG_STDERR: &CStr = c"pmix.log.stderr";
    pub(crate) const LOG_STDOUT: &CStr = c"pmix.log.stdout";
    pub(crate) const PERSISTENCE: &CStr = c"pmix.persist";
    pub(crate) const RANGE: &CStr = c"pmix.range";
    pub(crate) const USERID: &CStr = c"pmix.euid";
    pub(crate) const GRPID: &CStr = c"pmix.egid";
    pub(crate) const GROUP_CONTEXT_ID: &CStr = c"pmix.grp.ctxid";
    pub(crate) const GROUP_ASSIGN_CONTEXT_ID: &CStr = c"pmix.grp.actxid";
    pub(crate) const GROUP_ENDPT_DATA: &CStr = c"pmix.grp.endpt";
    pub(crate) const GROUP_MEMBERSHIP: &CStr = c"pmix.grp.mbrs";
    pub(crate) const PARENT_ID: &CStr = c"pmix.parent";
    pub(crate) const SET_ENVAR: &CStr = c"pmix.envar.set";
    pub(crate) const UNSET_ENVAR: &CStr = c"pmix.envar.unset";
    pub(crate) const EVENT_NON_DEFAULT: &CStr = c"pmix.evnondef";
    pub(crate) const EVENT_AFFECTED_PROC: &CStr = c"pmix.evproc";
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn structures_are_laid_out_as_in_the_headers() {
        assert_eq!((size_of::<Value>(), offset_of!(Value, data)), (32, 8));
        assert_eq!((size_of::<Info>(), offset_of!(Info, flags), offset_of!(Info, value)), (552, 512, 520));
        assert_eq!((size_of::<Proc>(), offset_of!(Proc, rank)), (260, 256));
        assert_eq!((size_of::<DataArray>(), offset_of!(DataArray, size), offset_of!(DataArray, array)), (24, 8, 16));
        assert_eq!((size_of::<ByteObject>(), offset_of!(ByteObject, size)), (16, 8));
        assert_eq!((size_of::<Pdata>(), offset_of!(Pdata, key), offset_of!(Pdata, value)), (808, 260, 776));
        assert_eq!((size_of::<Query>(), offset_of!(Query, qualifiers), offset_of!(Query, nqual)), (24, 8, 16));
        assert_eq!(size_of::<Buffer>(), 40);
        assert_eq!((size_of::<Envar>(), size_of::<AppCommand>(), offset_of!(AppCommand, info)), (24, 56, 40));
        assert_eq!((offset_of!(Module, push_stdin), offset_of!(Module, group)), (192, 200));
        assert_eq!(offset_of!(Module, log), 136);
        // 6.1.0 has 256 bytes.
        assert!(size_of::<Module>() >= 2 * 200);
    }
}
