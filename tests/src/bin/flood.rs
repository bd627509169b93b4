//! Writes lines to stderr as C programs do, each with a write of its own, and then exits with CODE.
//!
//! `flood COUNT CODE [PAUSE]`; a COUNT of 0 has no end. PAUSE is microseconds after each line, so that a reader gets each
//! line alone. After its first lines it makes the file `RANK.up` in `RANKRUN_TEST_DIR`.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rankrun_tests::pause;

/// Lines before the file is made.
const FIRST: u64 = 2000;

fn main() -> ExitCode {
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let _ = writeln!(io::stderr(), "flood: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<u8> {
    let usage = || io::Error::other("usage: flood COUNT CODE [PAUSE]");
    let words: Vec<String> = env::args().skip(1).collect();
    let ([count, code] | [count, code, _]) = &words[..] else { return Err(usage()) };
    let count: u64 = count.parse().map_err(|_| usage())?;
    let code: u8 = code.parse().map_err(|_| usage())?;
    let after = words.get(2).map(|word| word.parse().map(Duration::from_micros)).transpose().map_err(|_| usage())?;
    let rank = env::var("RANKRUN_RANK").map_err(io::Error::other)?;
    let mut stderr = io::stderr();
    for number in 0.. {
        if count > 0 && number == count {
            break;
        }
        if number == FIRST
            && let Some(directory) = env::var_os("RANKRUN_TEST_DIR")
        {
            fs::write(Path::new(&directory).join(format!("{rank}.up")), "")?;
        }
        stderr.write_all(format!("warning {number}: something looks odd in this cell\n").as_bytes())?;
        if let Some(after) = after {
            pause(after);
        }
    }
    stderr.write_all(b"FATAL: giving up\n")?;
    Ok(code)
}
