//! Loads a `libpmix.so.2`, and holds the functions of it that a server needs.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::abi::{Buffer, DmodexCb, Info, Module, OpCb, Proc};

/// Why a library cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// `reason` is the dynamic linker's.
    #[error("cannot load \"{}\": {reason}", path.display())]
    Open { path: PathBuf, reason: String },
    #[error("\"{}\" has no function {symbol}: rankrun needs OpenPMIx 3.0 or later", path.display())]
    Missing { path: PathBuf, symbol: &'static str },
    #[error("\"{}\" is a path with a NUL byte", path.display())]
    Nul { path: PathBuf },
}

type VersionFn = unsafe extern "C" fn() -> *const c_char;
type InitFn = unsafe extern "C" fn(*mut Module, *mut Info, usize) -> c_int;
type RegisterNspaceFn = unsafe extern "C" fn(*const c_char, c_int, *mut Info, usize, OpCb, *mut c_void) -> c_int;
type RegisterClientFn =
    unsafe extern "C" fn(*const Proc, libc::uid_t, libc::gid_t, *mut c_void, OpCb, *mut c_void) -> c_int;
type DeregisterClientFn = unsafe extern "C" fn(*const Proc, OpCb, *mut c_void);
type DeregisterNspaceFn = unsafe extern "C" fn(*const c_char, OpCb, *mut c_void);
type SetupForkFn = unsafe extern "C" fn(*const Proc, *mut *mut *mut c_char) -> c_int;
type NotifyFn = unsafe extern "C" fn(c_int, *const Proc, u8, *const Info, usize, OpCb, *mut c_void) -> c_int;
type DmodexFn = unsafe extern "C" fn(*const Proc, DmodexCb, *mut c_void) -> c_int;
type GenerateFn = unsafe extern "C" fn(input: *const c_char, output: *mut *mut c_char) -> c_int;
type PackFn = unsafe extern "C" fn(*const Proc, *mut Buffer, *mut c_void, i32, u16) -> c_int;
type UnpackFn = unsafe extern "C" fn(*const Proc, *mut Buffer, *mut c_void, *mut i32, u16) -> c_int;

/// A loaded library. It stays loaded until the process ends: its thread runs its code.
pub struct Library {
    path: PathBuf,
    pub(super) version: VersionFn,
    pub(super) init: InitFn,
    pub(super) regex: GenerateFn,
    pub(super) ppn: GenerateFn,
    pub(super) register_nspace: RegisterNspaceFn,
    pub(super) deregister_nspace: DeregisterNspaceFn,
    pub(super) register_client: RegisterClientFn,
    pub(super) deregister_client: DeregisterClientFn,
    pub(super) setup_fork: SetupForkFn,
    pub(super) notify: NotifyFn,
    pub(super) dmodex_request: DmodexFn,
    pub(super) pack: PackFn,
    pub(super) unpack: UnpackFn,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Library {
    /// Loads the library at `path`, or the one of that name that the dynamic linker finds if `path` has no slash. Its code
    /// runs in this process from now on.
    pub fn load(path: &Path) -> Result<Library, LoadError> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| LoadError::Nul { path: path.to_owned() })?;
        // SAFETY: `name` is a C string. The initialisers of the library run: the caller has chosen it.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(LoadError::Open { path: path.to_owned(), reason: linker_error() });
        }
        let find = |symbol: &'static CStr| {
            // SAFETY: `handle` is open, and `symbol` a C string.
            let found = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
            if found.is_null() {
                let symbol = symbol.to_str().unwrap_or_default();
                return Err(LoadError::Missing { path: path.to_owned(), symbol });
            }
            Ok(found)
        };
        // SAFETY: each function has the type that the headers of OpenPMIx 3.2 to 6.1 declare for its name.
        unsafe {
            Ok(Library {
                path: path.to_owned(),
                version: std::mem::transmute::<*mut c_void, VersionFn>(find(c"PMIx_Get_version")?),
                init: std::mem::transmute::<*mut c_void, InitFn>(find(c"PMIx_server_init")?),
                regex: std::mem::transmute::<*mut c_void, GenerateFn>(find(c"PMIx_generate_regex")?),
                ppn: std::mem::transmute::<*mut c_void, GenerateFn>(find(c"PMIx_generate_ppn")?),
                register_nspace: std::mem::transmute::<*mut c_void, RegisterNspaceFn>(find(
                    c"PMIx_server_register_nspace",
                )?),
                deregister_nspace: std::mem::transmute::<*mut c_void, DeregisterNspaceFn>(find(
                    c"PMIx_server_deregister_nspace",
                )?),
                register_client: std::mem::transmute::<*mut c_void, RegisterClientFn>(find(
                    c"PMIx_server_register_client",
                )?),
                deregister_client: std::mem::transmute::<*mut c_void, DeregisterClientFn>(find(
                    c"PMIx_server_deregister_client",
                )?),
                setup_fork: std::mem::transmute::<*mut c_void, SetupForkFn>(find(c"PMIx_server_setup_fork")?),
                notify: std::mem::transmute::<*mut c_void, NotifyFn>(find(c"PMIx_Notify_event")?),
                dmodex_request: std::mem::transmute::<*mut c_void, DmodexFn>(find(c"PMIx_server_dmodex_request")?),
                pack: std::mem::transmute::<*mut c_void, PackFn>(find(c"PMIx_Data_pack")?),
                unpack: std::mem::transmute::<*mut c_void, UnpackFn>(find(c"PMIx_Data_unpack")?),
            })
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The library's own words, such as `OpenPMIx 5.0.11, repo rev: v5.0.11 (PMIx Standard: 4.2, …)`.
    pub fn version(&self) -> String {
        // SAFETY: it returns a constant string.
        unsafe { super::infos::string((self.version)()) }.unwrap_or_default()
    }
}

/// Why the dynamic linker refused the last call of this thread.
pub(crate) fn linker_error() -> String {
    // SAFETY: dlerror returns null or a string of this thread, which lives until the next call.
    unsafe { super::infos::string(libc::dlerror()) }.unwrap_or_else(|| "for an unknown reason".to_owned())
}
