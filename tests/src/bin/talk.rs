//! A rank that says too much to the worker socket, and then exits with CODE.
//!
//! * `talk garbage COUNT CODE` makes COUNT connections, and says on each what is no message.
//! * `talk uncaught COUNT CODE` reports an exception of 60,000 bytes COUNT times, on one connection.
//! * `talk exiting COUNT CODE` reports an exception, and then that it is exiting with CODE, and does not end. COUNT is not
//!   used.
//! * `talk abort COUNT CODE` asks for the end of the job with CODE, and does not end.
//! * `talk note COUNT CODE` notes "step 1" to "step COUNT", and does not end.
//! * `talk thread COUNT CODE` reports as often such an exception that has ended a thread.

use std::env;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use rankrun_tests::pause;

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
    let usage = || io::Error::other("usage: talk garbage|uncaught|exiting|abort|note|thread COUNT CODE");
    let words: Vec<String> = env::args().skip(1).collect();
    let [what, count, code] = &words[..] else { return Err(usage()) };
    let count: u32 = count.parse().map_err(|_| usage())?;
    let code: u8 = code.parse().map_err(|_| usage())?;
    let socket = env::var("RANKRUN_SOCKET").map_err(io::Error::other)?;
    if what == "garbage" {
        for number in 0..count {
            // One that is closed before all is written is what a talker of garbage must expect.
            let _ = UnixStream::connect(&socket)?.write_all(format!("no message {number}\n").as_bytes());
        }
        return Ok(code);
    }
    if what == "exiting" || what == "abort" {
        let mut stream = UnixStream::connect(&socket)?;
        if what == "exiting" {
            stream
                .write_all(b"{\"v\":1,\"type\":\"uncaught\",\"exception\":\"ValueError\",\"message\":\"no data\"}\n")?;
        }
        stream.write_all(format!("{{\"v\":1,\"type\":\"{what}\",\"code\":{code}}}\n").as_bytes())?;
        pause(Duration::from_secs(100));
    }
    if what == "note" {
        let mut stream = UnixStream::connect(&socket)?;
        for number in 1..=count {
            stream.write_all(format!("{{\"v\":1,\"type\":\"note\",\"text\":\"step {number}\"}}\n").as_bytes())?;
        }
        pause(Duration::from_secs(100));
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
