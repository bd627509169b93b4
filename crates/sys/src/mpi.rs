//! What an MPI library says of itself.

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::pmix::linker_error;

/// Room for `MPI_MAX_LIBRARY_VERSION_STRING` of each MPI: 8,192 in MPICH and Intel MPI, 256 in Open MPI.
const MAX_VERSION: usize = 32_768;

type VersionFn = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;

/// Loads the MPI library at `path`, and returns what its `MPI_Get_library_version` says. Its initialisers run in this
/// process, and it stays loaded: call this only in a process of its own.
pub fn library_version(path: &Path) -> Result<String, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "its path has a NUL byte".to_owned())?;
    // SAFETY: `name` is a C string. The initialisers of the library run: the caller has chosen it.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(linker_error());
    }
    // SAFETY: `handle` is open, and the symbol a C string.
    let found = unsafe { libc::dlsym(handle, c"MPI_Get_library_version".as_ptr()) };
    if found.is_null() {
        return Err("it has no function MPI_Get_library_version (MPI 3.0)".to_owned());
    }
    // SAFETY: MPI 3.0 declares the function so, in each implementation.
    let version = unsafe { std::mem::transmute::<*mut c_void, VersionFn>(found) };
    let mut text = vec![0_u8; MAX_VERSION];
    let mut length: c_int = 0;
    // SAFETY: both places can be written. The standard allows the call before MPI_Init.
    let code = unsafe { version(text.as_mut_ptr().cast(), &raw mut length) };
    if code != 0 {
        return Err(format!("MPI_Get_library_version returned {code}"));
    }
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    Ok(String::from_utf8_lossy(&text[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_mpi_library_is_an_error_with_the_reason() {
        let error = library_version(Path::new("/etc/passwd")).expect_err("it is no library");
        assert!(error.contains("/etc/passwd"), "{error}");
        let error = library_version(Path::new("libc.so.6")).expect_err("it is no MPI");
        assert!(error.contains("MPI_Get_library_version"), "{error}");
    }
}
