//! A program that speaks PMI-1 and nothing else: what is left of an MPI start-up when the MPI library is taken away.
//!
//! `pmi_client [--rounds N] [--fate FATE [--rank R]]`: init, get_maxes, appnum, kvsname, then N times (1) put,
//! barrier, get of every rank's value, barrier; finalize. FATE of rank R (0), in place of going on:
//!
//! * `garbage`: sends bytes that are no PMI, and exits with 9 when its connection is closed,
//! * `abort=CODE`: asks for an abort after init, and waits,
//! * `before-init=CODE`: exits before init,
//! * `leave=CODE`: exits after the first barrier, while the others go on to the next,
//! * `no-finalize=CODE`: exits when all is done, but does not say so,
//! * `crash`: is killed by SIGSEGV after the first barrier.

use std::env;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use rankrun_tests::pause;

struct Client {
    reader: BufReader<File>,
    writer: File,
}

impl Client {
    /// Opens the descriptor that `PMI_FD` names, by way of /proc, since a number is no descriptor that we own.
    fn open() -> io::Result<Client> {
        let number: i32 = number("PMI_FD")?;
        // A socket cannot be opened by its name in /proc; its copy can be taken from our own process by pidfd.
        let own = rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty())?;
        let socket = rustix::process::pidfd_getfd(&own, number, rustix::process::PidfdGetfdFlags::empty())?;
        let writer = File::from(socket);
        Ok(Client { reader: BufReader::new(writer.try_clone()?), writer })
    }

    fn send(&mut self, request: &str) -> io::Result<()> {
        self.writer.write_all(format!("{request}\n").as_bytes())
    }

    /// Asks and returns the value of one key of the answer.
    fn ask(&mut self, request: &str, command: &str, key: &str) -> io::Result<String> {
        self.send(request)?;
        let mut answer = String::new();
        self.reader.read_line(&mut answer)?;
        let complaint = || io::Error::other(format!("{request:?} was answered {answer:?}"));
        let value = |key: &str| answer.split_whitespace().find_map(|word| word.strip_prefix(&format!("{key}=")));
        // Some servers say `rc` only where something went wrong.
        if value("cmd") != Some(command) || value("rc").is_some_and(|code| code != "0") {
            return Err(complaint());
        }
        Ok(value(key).ok_or_else(complaint)?.to_owned())
    }
}

fn number<T: std::str::FromStr>(name: &str) -> io::Result<T> {
    let text = env::var(name).map_err(|error| io::Error::other(format!("{name}: {error}")))?;
    text.parse().map_err(|_| io::Error::other(format!("{name}={text}")))
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let _ = writeln!(io::stderr(), "pmi_client: {error}");
            ExitCode::from(99)
        }
    }
}

fn run() -> io::Result<u8> {
    let (mut rounds, mut fate, mut fated) = (1, String::new(), 0);
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        match argument.as_str() {
            "--rounds" => rounds = value.parse().map_err(io::Error::other)?,
            "--fate" => fate = value,
            "--rank" => fated = value.parse().map_err(io::Error::other)?,
            other => return Err(io::Error::other(format!("unknown option {other}"))),
        }
    }
    let (rank, size): (u32, u32) = (number("PMI_RANK")?, number("PMI_SIZE")?);
    let (fate, code) = if rank != fated {
        ("", 0)
    } else {
        let (name, code) = fate.split_once('=').unwrap_or((&fate, "0"));
        (name, code.parse::<u8>().map_err(io::Error::other)?)
    };
    if fate == "before-init" {
        return Ok(code);
    }
    let mut client = Client::open()?;
    client.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init", "pmi_version")?;
    client.ask("cmd=get_maxes", "maxes", "vallen_max")?;
    client.ask("cmd=get_appnum", "appnum", "appnum")?;
    let kvs = client.ask("cmd=get_my_kvsname", "my_kvsname", "kvsname")?;
    match fate {
        "garbage" => {
            client.writer.write_all(b"\x00\xff this is no PMI \n\n\n")?;
            let mut answer = Vec::new();
            // A reset is as good as an end.
            let _ = client.reader.read_to_end(&mut answer);
            return Ok(9);
        }
        "abort" => {
            client.send(&format!("cmd=abort exitcode={code}"))?;
            wait_for_the_end();
        }
        _ => {}
    }
    for round in 0..rounds {
        client.ask(&format!("cmd=put kvsname={kvs} key=r{round}-{rank} value=v{round}-{rank}"), "put_result", "rc")?;
        client.ask("cmd=barrier_in", "barrier_out", "cmd")?;
        match fate {
            "crash" => rankrun_sys::signal::die_of(rankrun_sys::signal::SIGSEGV),
            "leave" => return Ok(code),
            _ => {}
        }
        for other in 0..size {
            let request = format!("cmd=get kvsname={kvs} key=r{round}-{other}");
            let value = client.ask(&request, "get_result", "value")?;
            if value != format!("v{round}-{other}") {
                return Err(io::Error::other(format!("{request:?} gave {value:?}")));
            }
        }
        client.ask("cmd=barrier_in", "barrier_out", "cmd")?;
    }
    if fate == "no-finalize" {
        return Ok(code);
    }
    client.ask("cmd=finalize", "finalize_ack", "cmd")?;
    Ok(0)
}

fn wait_for_the_end() -> ! {
    loop {
        pause(Duration::from_secs(3600));
    }
}
