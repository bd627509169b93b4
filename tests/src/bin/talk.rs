//! A rank that says too much to the worker socket, and then exits with CODE.
//!
//! * `talk garbage COUNT CODE` makes COUNT connections, and says on each what is no message.
//! * `talk uncaught COUNT CODE` tells COUNT times of an exception of 60,000 bytes, on one connection.
//! * `talk thread COUNT CODE` tells as often of such an exception that has ended a thread.

use std::env;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let _ = writeln!(io::stderr(), "talk: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<u8> {
    let usage = || io::Error::other("usage: talk garbage|uncaught|thread COUNT CODE");
    let words: Vec<String> = env::args().skip(1).collect();
    let [what, count, code] = &words[..] else { return Err(usage()) };
    let count: u32 = count.parse().map_err(|_| usage())?;
    let code = code.parse().map_err(|_| usage())?;
    let socket = env::var("RANKRUN_SOCKET").map_err(io::Error::other)?;
    if what == "garbage" {
        for number in 0..count {
            // One that is closed before all is written is what a talker of garbage must expect.
            let _ = UnixStream::connect(&socket)?.write_all(format!("no message {number}\n").as_bytes());
        }
        return Ok(code);
    }
    let text = "x".repeat(29_900);
    let kind = match what.as_str() {
        "uncaught" => r#""type":"uncaught""#,
        "thread" => r#""type":"evidence","what":"thread""#,
        _ => return Err(usage()),
    };
    let mut stream = UnixStream::connect(&socket)?;
    for number in 0..count {
        let words = format!(r#""exception":"ValueError","message":"{number} {text}","traceback":"{text}""#);
        stream.write_all(format!("{{\"v\":1,{kind},{words}}}\n").as_bytes())?;
    }
    Ok(code)
}
