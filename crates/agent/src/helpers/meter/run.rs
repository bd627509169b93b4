//! The meter's work.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rankrun_core::WorkerId;
use rankrun_sys::name;
use rankrun_wireup::messages::{Decoder, encode};

use super::account::Account;
use super::gpus::Gpus;
use super::message::{Reading, Request};
use crate::helpers::control::{self, receive};

/// Measures what the agent asks for. Returns the exit code.
pub fn serve() -> u8 {
    // If the name cannot be set, it is only harder to see what this is.
    let _ = name::set("rr-meter", "rr-meter");
    control::serve(work)
}

fn work(mut control: UnixStream) -> io::Result<()> {
    control.set_nonblocking(false)?;
    let mut gpus = Gpus::start(std::env::var_os("PATH"));
    let mut accounts: HashMap<WorkerId, Account> = HashMap::new();
    let mut decoder = Decoder::default();
    while let Some(Request { number, subjects }) = receive(&mut control, &mut decoder)? {
        gpus.read(Instant::now());
        let wanted: HashSet<WorkerId> = subjects.iter().map(|subject| subject.worker).collect();
        accounts.retain(|worker, _| wanted.contains(worker));
        let mut workers = Vec::with_capacity(subjects.len());
        for subject in subjects {
            let account = accounts.entry(subject.worker).or_default();
            if let Some((mut usage, pids)) = account.measure(&subject.place) {
                usage.gpus = gpus.of(&pids);
                workers.push((subject.worker, usage));
            }
        }
        control.write_all(&encode(&Reading { number, workers }).map_err(io::Error::other)?)?;
    }
    Ok(())
}
