//! How the program begins, without the set-up of the standard library.
//!
//! That reads the map of the process, asks for limits, and makes a second stack with handlers that name a stack overflow: some thirty
//! system calls, and 0.1 ms of each start. All that rankrun needs of it is done here.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use crate::signal;

/// What it ends with that cannot begin: rankrun's code for what is wrong around it.
const NO_STREAM: u8 = 121;

/// Makes a function `fn(Vec<OsString>) -> u8` the program's `main`; the crate has `#![no_main]`. It gets the words of the command line,
/// and returns the exit code.
#[macro_export]
macro_rules! entry {
    ($run:path) => {
        #[expect(unsafe_code, reason = "the C library calls it by this name, which nothing else has")]
        mod entry {
            use std::ffi::{c_char, c_int};

            #[unsafe(no_mangle)]
            extern "C" fn main(count: c_int, words: *const *const c_char) -> c_int {
                // SAFETY: these are the arguments that the C library has given.
                unsafe { $crate::entry::enter(count, words, $run) }
            }
        }
    };
}

/// Runs the program with the words of its command line, and ends the process.
///
/// # Safety
/// `words` are `count` strings, which nobody changes meanwhile.
pub unsafe fn enter(count: c_int, words: *const *const c_char, run: impl FnOnce(Vec<OsString>) -> u8) -> ! {
    open_standard_streams();
    signal::set_ours();
    // SAFETY: the caller says so.
    let word = |at: usize| unsafe { CStr::from_ptr(*words.add(at)) };
    let words = (0..count as usize).map(|at| OsStr::from_bytes(word(at).to_bytes()).to_owned()).collect();
    // A panic cannot leave a function of C: it ends the process, as it does anywhere in a release.
    let code = i32::from(run(words));
    // It flushes what is buffered for stdout.
    #[expect(clippy::disallowed_methods, clippy::exit, reason = "the program is over")]
    std::process::exit(code)
}

/// A descriptor 0, 1 or 2 that the caller has closed leads to /dev/null: the next file that is opened would get its number.
fn open_standard_streams() {
    let mut streams = [0, 1, 2].map(|fd| libc::pollfd { fd, events: 0, revents: 0 });
    // SAFETY: the array has that length. Signals that come meanwhile have their defaults: it is not interrupted.
    let looked = unsafe { libc::poll(streams.as_mut_ptr(), streams.len() as libc::nfds_t, 0) };
    let is_closed = |stream: &libc::pollfd| looked < 0 || stream.revents & libc::POLLNVAL != 0;
    for stream in streams.iter().filter(|stream| is_closed(stream)) {
        // SAFETY: the flag only reads; the path is a C string; the lowest number that is free is this one.
        let is_open = unsafe {
            libc::fcntl(stream.fd, libc::F_GETFD) >= 0 || libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) == stream.fd
        };
        if !is_open {
            // Nothing must be written into a file that takes its place.
            let text = b"error: a standard stream is closed, and \"/dev/null\" cannot be opened in its place\n";
            // SAFETY: the bytes are those of the text; the process ends.
            unsafe {
                libc::write(2, text.as_ptr().cast(), text.len());
                libc::_exit(c_int::from(NO_STREAM));
            }
        }
    }
}
