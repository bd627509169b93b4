//! What a client says of the ranks that it asks for (`PMIx_Spawn`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::abi::{AppCommand, Info};
use super::infos::{slice, string, words};

/// A command that is to be started, with its ranks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// The program and its arguments.
    pub words: Vec<OsString>,
    /// How many ranks run it.
    pub size: i32,
    /// Names, and the values that they get, or none any more.
    pub variables: Vec<(OsString, Option<OsString>)>,
    pub directory: Option<String>,
    /// What is said of it, and of all commands together, in texts: the keys are those of PMIx.
    pub infos: Vec<(String, String)>,
}

/// A command, with what is said of all (`common`).
///
/// # Safety
/// All that it leads to is valid.
pub(super) unsafe fn wanted(app: &AppCommand, common: &[Info]) -> Wanted {
    // SAFETY: the caller promises it.
    let (mut words, pairs, own) =
        unsafe { (words(app.argv.cast_const()), words(app.env.cast_const()), slice(app.info, app.ninfo)) };
    if words.is_empty() {
        // SAFETY: the caller promises it.
        words.extend(unsafe { string(app.cmd) }.map(OsString::from));
    }
    let mut variables: Vec<(OsString, Option<OsString>)> = Vec::new();
    for pair in pairs {
        let bytes = pair.as_bytes();
        let Some(end) = bytes.iter().position(|byte| *byte == b'=').filter(|end| *end > 0) else { continue };
        variables
            .push((OsStr::from_bytes(&bytes[..end]).to_owned(), Some(OsStr::from_bytes(&bytes[end + 1..]).to_owned())));
    }
    let mut texts = Vec::new();
    for info in common.iter().chain(own) {
        // SAFETY: the caller promises it.
        match unsafe { (info.as_variable(), info.as_text()) } {
            (Some(variable), _) => variables.push(variable),
            (None, Some(text)) => texts.push((info.name(), String::from_utf8_lossy(&text).into_owned())),
            (None, None) => {}
        }
    }
    // SAFETY: the caller promises it.
    let directory = unsafe { string(app.cwd) };
    Wanted { words, size: app.maxprocs, variables, directory, infos: texts }
}
