//! Starting a child by a process that has prepared for it, a fork server: it is forked from that one, and goes on as a program that has
//! just been started (the other side is `python/hook/fork_server.py`).
//!
//! The child is ours: the server forks twice, and the kernel gives it to us, since we are the nearest subreaper. It does by itself what a
//! child does between clone and exec, and what others can do to it we do. It runs none of its program before that: we know its pid, it is
//! in its cgroup (K-1), and it has said that it is ready.

use std::ffi::CString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
};

use crate::process::Child;
use crate::signal;
use crate::socket;
use crate::spawn::{Command, Session, SpawnError, Spawner, Step};

/// The descriptor at which a server finds its end of the connection.
pub const CONNECTION: i32 = 3;
/// How long a server may take for one fork.
const FORK_BOUND: Duration = Duration::from_secs(30);
/// How often it is asked meanwhile whether the child is wanted.
const STEP: Duration = Duration::from_secs(1);
/// The longest answer to the question whether it can serve.
const ANSWER: usize = 4096;
/// Of set_mempolicy(2).
const STRICT: &[u8] = b"2";
const PREFERRED: &[u8] = b"5";

/// A fork server that has said that it can serve.
#[derive(Debug)]
pub struct ForkServer {
    connection: OwnedFd,
    /// What the import has written, which each child is to write too: stdout, stderr.
    spoken: [Vec<u8>; 2],
}

/// What a server says while it prepares itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Word {
    /// It begins to import this module.
    Imports(String),
    Ready,
    /// It cannot serve, and why.
    Unfit(String),
}

/// Why a server has started no child.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    /// The child could not be made what it was to be. It has ended, or is about to.
    #[error(transparent)]
    Failed(SpawnError),
    /// Nobody wants it any more.
    #[error("it is not wanted any more")]
    Unwanted,
    /// The server has not done it; a start from the beginning may succeed.
    #[error("{0}")]
    Unserved(String),
}

/// The two ends of a connection to a server: ours, which does not block, and its own.
pub fn connection() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    socket::set_nonblocking(&ours)?;
    Ok((ours, theirs))
}

/// What a server has said; `None`: nothing yet.
///
/// # Errors
///
/// `UnexpectedEof`: it has ended, or closed its connection.
pub fn word(connection: &OwnedFd) -> io::Result<Option<Word>> {
    let mut room = [0; ANSWER];
    let count = match rustix::io::read(connection, &mut room) {
        Ok(count) => count,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match room[..count].split_first() {
        Some((b'i', name)) => Ok(Some(Word::Imports(text(name)))),
        Some((b'y', _)) => Ok(Some(Word::Ready)),
        Some((b'n', why)) => Ok(Some(Word::Unfit(text(why)))),
        Some(_) => Err(io::ErrorKind::InvalidData.into()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

impl ForkServer {
    pub fn new(connection: OwnedFd, spoken: [Vec<u8>; 2]) -> ForkServer {
        ForkServer { connection, spoken }
    }

    /// Asks for a child. Returns our end of the connection to it.
    fn ask(&self, command: &Command) -> io::Result<OwnedFd> {
        let (ours, theirs) = socket::pair()?;
        let session = match command.session {
            Session::Own => b's',
            Session::Shared { foreground: false } => b'g',
            Session::Shared { foreground: true } => b'f',
        };
        let (kept, number) = match &command.keep {
            Some((fd, number)) => (Some(fd.as_fd()), *number as u8),
            None => (None, 0),
        };
        let fds: Vec<BorrowedFd<'_>> =
            [theirs.as_fd()].into_iter().chain(command.stdio.iter().map(AsFd::as_fd)).chain(kept).collect();
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(&self.connection, &[IoSlice::new(&[session, number])], &mut control, SendFlags::NOSIGNAL)?;
        Ok(ours)
    }

    /// What a child is told when it has a place of its own.
    fn order(&self, command: &Command) -> Vec<u8> {
        let memory = command.place.as_ref().and_then(|place| place.memory.as_ref());
        let mode = memory.map_or(&b""[..], |memory| if memory.is_strict { STRICT } else { PREFERRED });
        let nodes: Vec<u8> =
            memory.map_or_else(Vec::new, |memory| memory.nodes.iter().flat_map(|word| word.to_ne_bytes()).collect());
        let wdir = command.wdir.as_ref().map_or(&b""[..], |wdir| wdir.as_bytes());
        let tag = of_tag(&command.env);
        let fixed = [wdir, tag, mode, &nodes, &self.spoken[0], &self.spoken[1]];
        let environment = command.env.iter().chain(&*command.shared_env).map(|entry| entry.as_bytes());
        let mut body = Vec::new();
        for field in fixed.into_iter().chain(environment) {
            body.extend((field.len() as u32).to_ne_bytes());
            body.extend(field);
        }
        let mut order = (body.len() as u32).to_ne_bytes().to_vec();
        order.append(&mut body);
        order
    }
}

/// The value of the variable by which a worker's processes are known.
fn of_tag(env: &[CString]) -> &[u8] {
    env.iter().find_map(|entry| entry.as_bytes().strip_prefix(b"RANKRUN_WORKER=")).unwrap_or_default()
}

impl Spawner {
    /// Has a server fork a child, and returns its pid when it is about to run its program. The program itself, and the command's limits and
    /// ignored signals, are those of the server.
    ///
    /// # Errors
    ///
    /// As of [`Spawner::spawn`], and where the server fails.
    pub fn fork(
        &mut self,
        server: &ForkServer,
        command: &Command,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<i32, ForkError> {
        let unserved = |what: &str, error: &io::Error| ForkError::Unserved(format!("{what}: {}", crate::reason(error)));
        let channel = server.ask(command).map_err(|error| unserved("it takes no requests", &error))?;
        let pid = first_word(&channel, is_wanted)?;
        self.under_way().begin(pid);
        let failed = |step: Step, source: io::Error| {
            // It waits for its order. Nobody has reaped it.
            let _ = Child::unreaped(pid).signal(signal::SIGKILL);
            ForkError::Failed(SpawnError { step, source, pid: Some(pid) })
        };
        if let Some(cgroup) = &command.cgroup {
            enter(cgroup, pid).map_err(|source| failed(Step::Cgroup, source))?;
        }
        if let Some(place) = &command.place {
            crate::cpus::bind(pid, &place.cpus).map_err(|source| failed(Step::Bind, source))?;
        }
        let mut answer = [0; 8];
        let answered = write_all(&channel, &server.order(command)).and_then(|()| read_exact(&channel, &mut answer));
        match answered.map(|()| (number(&answer[..4]), number(&answer[4..]))) {
            Ok((0, _)) => Ok(pid),
            Ok((step, errno)) => {
                let source = io::Error::from_raw_os_error(errno);
                Err(ForkError::Failed(SpawnError { step: Step::of_number(step), source, pid: Some(pid) }))
            }
            Err(error) => Err(unserved("what it has forked has ended before its program began", &error)),
        }
    }
}

/// Waits for a child's first word, its pid.
fn first_word(channel: &OwnedFd, is_wanted: &dyn Fn() -> bool) -> Result<i32, ForkError> {
    let unserved = |why: String| Err(ForkError::Unserved(why));
    let mut pid = [0; 4];
    let mut waited = Duration::ZERO;
    loop {
        // If it cannot be set, the wait has no bound but the end of the server.
        let _ = set_socket_timeout(channel, Timeout::Recv, Some(STEP));
        match read_exact(channel, &mut pid) {
            Ok(()) => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => waited += STEP,
            Err(error) => return unserved(format!("it has forked nothing: {}", crate::reason(&error))),
        }
        if !is_wanted() {
            return Err(ForkError::Unwanted);
        }
        if waited >= FORK_BOUND {
            return unserved(format!("it has forked nothing within {} s", FORK_BOUND.as_secs()));
        }
    }
    // From here on the child can be killed if it does not answer.
    let _ = set_socket_timeout(channel, Timeout::Recv, None);
    Ok(number(&pid))
}

fn number(bytes: &[u8]) -> i32 {
    bytes.try_into().map_or(0, i32::from_ne_bytes)
}

/// Puts a process into a cgroup.
fn enter(cgroup: &OwnedFd, pid: i32) -> io::Result<()> {
    use rustix::fs::{Mode, OFlags, openat};
    let procs = openat(cgroup, "cgroup.procs", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&procs, pid.to_string().as_bytes())?;
    Ok(())
}

fn write_all(socket: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(count) => bytes = &bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn read_exact(socket: &OwnedFd, mut room: &mut [u8]) -> io::Result<()> {
    while !room.is_empty() {
        match rustix::io::read(socket, &mut *room) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => room = &mut room[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
