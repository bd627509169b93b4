//! Runs copies of a command as the ranks of an MPI world, with nothing but the PMI-1 server: for trying real clients.
//!
//!     cargo run -p rankrun-wireup --example pmi_serve -- [-v] N COMMAND [ARGUMENT...]
//!
//! Requests and effects are shown with `-v`. Exits with the code of an abort, or the first that is not 0.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use rankrun_core::names::{Asker, Protocol, PublishedNames};
use rankrun_core::{GroupId, NodeId, Rank, RankMap};
use rankrun_wireup::pmi1::{Config, Effect, Server, process_mapping};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process_group};

/// A rank's process, with the server's end of its socket.
struct Worker {
    child: Child,
    stream: UnixStream,
}

/// What the threads share: one serves each rank.
struct World {
    server: Mutex<Server>,
    names: Mutex<PublishedNames>,
    streams: Vec<UnixStream>,
    /// Each rank is a process group of its own.
    groups: Vec<Pid>,
    code: Mutex<Option<i32>>,
    verbose: bool,
}

fn main() -> io::Result<ExitCode> {
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let verbose = arguments.first().is_some_and(|first| first == "-v");
    arguments.drain(..usize::from(verbose));
    let size = arguments.first().and_then(|size| size.to_str()?.parse().ok());
    let (Some(size @ 1..), [_, program, rest @ ..]) = (size, &arguments[..]) else {
        writeln!(io::stderr(), "usage: pmi_serve [-v] N COMMAND [ARGUMENT...]")?;
        return Ok(ExitCode::from(2));
    };
    let started = Instant::now();
    let workers = (0..size).map(|rank| spawn(program, rest, rank, size)).collect::<io::Result<Vec<Worker>>>()?;
    let mut streams = Vec::new();
    let mut groups = Vec::new();
    let mut children = Vec::new();
    for worker in workers {
        streams.push(worker.stream);
        groups.push(Pid::from_child(&worker.child));
        children.push(worker.child);
    }
    let world = World {
        server: Mutex::new(Server::new(config(size))),
        names: Mutex::default(),
        streams,
        groups,
        code: Mutex::new(None),
        verbose,
    };
    thread::scope(|scope| {
        for rank in (0..size).map(Rank) {
            let world = &world;
            scope.spawn(move || world.serve(rank));
        }
        for (child, rank) in children.iter_mut().zip(0..) {
            let status = child.wait()?;
            let lifecycle = lock(&world.server).lifecycle(Rank(rank));
            world.print(&format!("rank {rank}: {status}, {lifecycle:?}"));
            if !status.success() {
                world.end(status.code().unwrap_or(1));
            }
        }
        // A process that the rank left may hold its end open: do not wait for it.
        for stream in &world.streams {
            _ = stream.shutdown(Shutdown::Both);
        }
        io::Result::Ok(())
    })?;
    world.print(&format!("{size} ranks in {:.3} s", started.elapsed().as_secs_f64()));
    let code = lock(&world.code).unwrap_or(0);
    Ok(ExitCode::from(code as u8))
}

fn config(size: u32) -> Config {
    let map = RankMap::single_node("local", &[size]);
    Config {
        group: GroupId(0),
        size,
        kvs_prefix: format!("serve{}", std::process::id()),
        mapping: process_mapping(&map).unwrap_or_default(),
        appnums: vec![0; size as usize],
        universe_size: Some(size),
        local: (0..size).map(Rank).collect(),
    }
}

fn spawn(program: &OsString, arguments: &[OsString], rank: u32, size: u32) -> io::Result<Worker> {
    let (stream, theirs) = UnixStream::pair()?;
    // The only descriptor of ours that the child inherits. It is closed here before the next child starts.
    fcntl_setfd(&theirs, FdFlags::empty())?;
    let child = Command::new(program)
        .args(arguments)
        .env("PMI_FD", theirs.as_raw_fd().to_string())
        .env("PMI_RANK", rank.to_string())
        .env("PMI_SIZE", size.to_string())
        .env("MPI_LOCALRANKID", rank.to_string())
        .env("MPI_LOCALNRANKS", size.to_string())
        .env_remove("I_MPI_PMI_LIBRARY")
        .process_group(0)
        .spawn()?;
    Ok(Worker { child, stream })
}

impl World {
    /// Carries bytes and effects between one rank and the server until the rank's end is closed.
    fn serve(&self, rank: Rank) {
        let mut stream = &self.streams[rank.index()];
        let mut bytes = [0; 4096];
        let mut effects = Vec::new();
        loop {
            let count = match stream.read(&mut bytes) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            let mut server = lock(&self.server);
            if count == 0 {
                server.closed(rank, &mut effects);
            } else {
                if self.verbose {
                    self.print(&format!("rank {rank} -> {}", bytes[..count].escape_ascii()));
                }
                server.received(rank, &bytes[..count], &mut effects);
            }
            effects.drain(..).for_each(|effect| self.perform(&mut server, effect));
            drop(server);
            if count == 0 {
                return;
            }
        }
    }

    fn perform(&self, server: &mut Server, effect: Effect) {
        match effect {
            Effect::Reply { rank, bytes } => {
                if self.verbose {
                    self.print(&format!("rank {rank} <- {}", bytes.escape_ascii()));
                }
                // The exit of the client shows that it is gone.
                _ = (&self.streams[rank.index()]).write_all(&bytes);
            }
            Effect::Abort { code, .. } => {
                self.show(&effect);
                self.end(code);
            }
            Effect::Malformed { rank, .. } => {
                self.show(&effect);
                _ = self.streams[rank.index()].shutdown(Shutdown::Both);
                self.end(1);
            }
            Effect::Ask { id, question } => {
                let (mut replies, mut effects) = (Vec::new(), Vec::new());
                let asker = Asker { node: NodeId(0), group: GroupId(0), protocol: Protocol::Pmi1, id };
                lock(&self.names).ask(asker, question, &mut replies);
                replies.into_iter().for_each(|(_, reply)| server.answered(id, reply, &mut effects));
                effects.into_iter().for_each(|effect| self.perform(server, effect));
            }
            Effect::Refused { .. } | Effect::BarrierBroken { .. } | Effect::Collective(_) => self.show(&effect),
            Effect::Inited { .. } | Effect::Finalized { .. } | Effect::Closed { .. } => {
                if self.verbose {
                    self.show(&effect);
                }
            }
        }
    }

    /// Kills every rank; the first code counts.
    fn end(&self, code: i32) {
        lock(&self.code).get_or_insert(code);
        for group in &self.groups {
            #[expect(clippy::disallowed_methods, reason = "children that are not reaped yet keep their groups")]
            {
                _ = kill_process_group(*group, Signal::KILL);
            }
        }
    }

    fn show(&self, effect: &Effect) {
        _ = writeln!(io::stderr(), "pmi_serve: {effect:?}");
    }

    fn print(&self, text: &str) {
        if self.verbose {
            _ = writeln!(io::stderr(), "pmi_serve: {text}");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
