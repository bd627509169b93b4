//! Starting a child by a process that has prepared for it, a fork server: it is forked from that one, and goes on as a program that has
//! just been started (the other side is `python/hook/fork_server.py`).
//!
//! The child is ours: the server forks twice, and the kernel gives it to us, since we are the nearest subreaper. It does by itself what a
//! child does between clone and exec; nothing is done to it by its number. It runs none of its program before that: we know its pid, it is
//! in its cgroup (K-1), and it has said that it is ready.
//!
//! A child sends answers of one size, each with its kind: it has begun, it is ready, or it could not do a step. Its pid is that of the sender,
//! which the kernel adds. A server or a child that does not answer, or not by this protocol, leaves the start to the caller.

use std::ffi::CString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
};

use crate::process::ProcessRef;
use crate::signal;
use crate::socket;
use crate::spawn::{Command, Session, SpawnError, Spawner, Step};

/// The descriptor at which a server finds its end of the connection.
pub const CONNECTION: i32 = 3;
/// How long a server and its child may take until the child is ready. A start from the beginning has time left then.
const FORK_BOUND: Duration = Duration::from_secs(30);
/// How often it is asked meanwhile whether the child is wanted.
const STEP: Duration = Duration::from_secs(1);
/// The size of an answer: three numbers.
const REPLY: usize = 12;
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
    /// It has not served once: nobody waits for it again.
    has_failed: AtomicBool,
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
        ForkServer { connection, spoken, has_failed: AtomicBool::new(false) }
    }

    /// Asks for a child, which enters its cgroup by this file. Returns our end of the connection to it.
    fn ask(&self, command: &Command, cgroup: Option<&OwnedFd>) -> io::Result<OwnedFd> {
        let (ours, theirs) = socket::pair()?;
        socket::name_senders(&ours)?;
        let session = match command.session {
            Session::Own => b's',
            Session::Shared { foreground: false } => b'g',
            Session::Shared { foreground: true } => b'f',
        };
        let (kept, number) = match &command.keep {
            Some((fd, number)) => (Some(fd.as_fd()), *number as u8),
            None => (None, 0),
        };
        let stdio = command.stdio.iter().map(AsFd::as_fd);
        let fds: Vec<BorrowedFd<'_>> =
            [theirs.as_fd()].into_iter().chain(stdio).chain(kept).chain(cgroup.map(AsFd::as_fd)).collect();
        let request = [session, number, u8::from(cgroup.is_some())];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(6))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(&self.connection, &[IoSlice::new(&request)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(ours)
    }

    /// What a child is told when it has a place of its own.
    fn order(&self, command: &Command) -> Vec<u8> {
        let bytes = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_ne_bytes()).collect() };
        let cpus = command.place.as_ref().map_or_else(Vec::new, |place| bytes(&place.cpus));
        let memory = command.place.as_ref().and_then(|place| place.memory.as_ref());
        let mode = memory.map_or(&b""[..], |memory| if memory.is_strict { STRICT } else { PREFERRED });
        let nodes = memory.map_or_else(Vec::new, |memory| bytes(&memory.nodes));
        let wdir = command.wdir.as_ref().map_or(&b""[..], |wdir| wdir.as_bytes());
        let tag = of_tag(&command.env);
        let fixed = [wdir, tag, &cpus, mode, &nodes, &self.spoken[0], &self.spoken[1]];
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
        if server.has_failed.load(Ordering::Relaxed) {
            return Err(ForkError::Unserved("it has failed before".to_owned()));
        }
        let forked = self.fork_by(server, command, is_wanted);
        if let Err(ForkError::Unserved(_)) = &forked {
            server.has_failed.store(true, Ordering::Relaxed);
        }
        forked
    }

    fn fork_by(
        &mut self,
        server: &ForkServer,
        command: &Command,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<i32, ForkError> {
        let failed =
            |step: Step, source: io::Error, pid: Option<i32>| ForkError::Failed(SpawnError { step, source, pid });
        let cgroup = command.cgroup.as_ref().map(members_of).transpose();
        let cgroup = cgroup.map_err(|source| failed(Step::Cgroup, source, None))?;
        let channel = server
            .ask(command, cgroup.as_ref())
            .map_err(|error| ForkError::Unserved(format!("it takes no requests: {}", crate::reason(&error))))?;
        let mut exchange = Exchange { channel, is_wanted, left: FORK_BOUND };
        let (reply, sender) = exchange.receive()?;
        let (Reply::Begun, Some(pid)) = (reply, sender) else { return Err(against_protocol()) };
        // If it ends from here on, it is not reaped before we have our result.
        self.under_way().begin(pid);
        let child = own_child(pid).ok_or_else(|| ForkError::Unserved(ENDED.to_owned()))?;
        let answered = exchange.send(&server.order(command)).and_then(|()| exchange.receive());
        let result = match answered {
            Ok((Reply::Ready, Some(sender))) if sender == pid => return Ok(pid),
            Ok((Reply::Refused { step, errno }, _)) => {
                Err(failed(step, io::Error::from_raw_os_error(errno), Some(pid)))
            }
            Ok(_) => Err(against_protocol()),
            Err(error) => Err(error),
        };
        // It may hang, and must not go on later beside another one. If it has ended, there is nobody to signal.
        let _ = child.signal(signal::SIGKILL);
        result
    }
}

/// Why there is no answer of a child.
const ENDED: &str = "what it has forked has ended before its program began";

fn against_protocol() -> ForkError {
    ForkError::Unserved("what it has forked does not answer as it should".to_owned())
}

/// A process, if it is a child of ours.
fn own_child(pid: i32) -> Option<ProcessRef> {
    ProcessRef::open_if(pid, |process| process.parent == std::process::id().cast_signed())
}

/// What a child answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reply {
    /// It is there, and our child.
    Begun,
    /// It is about to run its program.
    Ready,
    /// It could not do this, and ends.
    Refused { step: Step, errno: i32 },
}

impl Reply {
    const BEGUN: i32 = 1;
    const READY: i32 = 2;
    const REFUSED: i32 = 3;

    fn decode(bytes: &[u8; REPLY]) -> Option<Reply> {
        let number = |at: usize| bytes[at..at + 4].try_into().map_or(0, i32::from_ne_bytes);
        match (number(0), number(4), number(8)) {
            (Reply::BEGUN, 0, 0) => Some(Reply::Begun),
            (Reply::READY, 0, 0) => Some(Reply::Ready),
            (Reply::REFUSED, step, errno) => Some(Reply::Refused { step: Step::of_number(step)?, errno }),
            _ => None,
        }
    }
}

/// Our end of the connection to a child that is not ready, and how long it is waited for.
struct Exchange<'a> {
    channel: OwnedFd,
    is_wanted: &'a dyn Fn() -> bool,
    left: Duration,
}

impl Exchange<'_> {
    fn send(&mut self, mut bytes: &[u8]) -> Result<(), ForkError> {
        while !bytes.is_empty() {
            let sent =
                self.wait_for(Timeout::Send, |channel| rustix::net::send(channel, bytes, SendFlags::NOSIGNAL))?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// The next answer, and the pid of its sender.
    fn receive(&mut self) -> Result<(Reply, Option<i32>), ForkError> {
        let (mut room, mut filled, mut sender) = ([0; REPLY], 0, None);
        while filled < REPLY {
            let (count, from) =
                self.wait_for(Timeout::Recv, |channel| socket::receive_from(channel, &mut room[filled..]))?;
            if count == 0 {
                return Err(self.unserved(ENDED.to_owned()));
            }
            filled += count;
            sender = from;
        }
        Ok((Reply::decode(&room).ok_or_else(against_protocol)?, sender))
    }

    /// Makes a call that may wait for the child.
    fn wait_for<T>(
        &mut self,
        of: Timeout,
        mut call: impl FnMut(&OwnedFd) -> rustix::io::Result<T>,
    ) -> Result<T, ForkError> {
        set_socket_timeout(&self.channel, of, Some(STEP))
            .map_err(|error| ForkError::Unserved(format!("it cannot be waited for: {error}")))?;
        loop {
            match call(&self.channel) {
                Ok(done) => return Ok(done),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    self.left = self.left.saturating_sub(STEP);
                    if !(self.is_wanted)() {
                        return Err(ForkError::Unwanted);
                    }
                    if self.left.is_zero() {
                        return Err(self.unserved(format!(
                            "it has forked no rank that was ready within {} s",
                            FORK_BOUND.as_secs()
                        )));
                    }
                }
                // The child has closed its end.
                Err(_) => return Err(self.unserved(ENDED.to_owned())),
            }
        }
    }

    /// A child that nobody wants may have been killed: that says nothing of its server.
    fn unserved(&self, why: String) -> ForkError {
        if (self.is_wanted)() { ForkError::Unserved(why) } else { ForkError::Unwanted }
    }
}

/// The file by which a process enters a cgroup.
fn members_of(cgroup: &OwnedFd) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags, openat};
    Ok(openat(cgroup, "cgroup.procs", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

    use super::*;
    use crate::limits::Limits;

    /// The numbers that `fork_server.py` gives these names.
    fn in_python(names: &str) -> Vec<i32> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/hook/fork_server.py");
        let source = std::fs::read_to_string(path).expect("it is in the repository");
        let numbers = source.lines().find_map(|line| line.strip_prefix(names)?.strip_prefix(" = "));
        let numbers = numbers.unwrap_or_else(|| panic!("no line of {names}"));
        numbers.split(", ").map(|number| number.parse().expect("a number")).collect()
    }

    #[test]
    fn both_sides_have_the_same_numbers() {
        assert_eq!(in_python("BEGUN, READY, REFUSED"), [Reply::BEGUN, Reply::READY, Reply::REFUSED]);
        let steps = [Step::Cgroup, Step::Session, Step::Stdio, Step::Bind, Step::BindMemory, Step::Wdir];
        assert_eq!(in_python("CGROUP, SESSION, STDIO, BIND, BIND_MEMORY, WDIR"), steps.map(|step| step as i32));
        assert!(Step::ALL.iter().all(|step| Step::of_number(*step as i32) == Some(*step)));
        assert_eq!([0, 10, -1].map(Step::of_number), [None; 3]);
        assert_eq!(in_python("CONNECTION, KEPT")[0], CONNECTION);
    }

    fn bytes(numbers: [i32; 3]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    #[test]
    fn an_answer_is_what_its_kind_says() {
        let decode = |numbers| Reply::decode(&bytes(numbers).try_into().expect("it has the size"));
        assert_eq!(decode([1, 0, 0]), Some(Reply::Begun));
        assert_eq!(decode([2, 0, 0]), Some(Reply::Ready));
        assert_eq!(decode([3, 3, 25]), Some(Reply::Refused { step: Step::Session, errno: 25 }));
        for odd in [[0, 0, 0], [1, 7, 0], [3, 0, 1], [3, 99, 1], [4, 0, 0]] {
            assert_eq!(decode(odd), None, "{odd:?}");
        }
    }

    fn command() -> Command {
        Command {
            program: c"/bin/true".to_owned(),
            argv: vec![c"true".to_owned()],
            env: Vec::new(),
            shared_env: Arc::new([]),
            wdir: None,
            stdio: [crate::null(), crate::null(), crate::null()].map(|null| null.expect("it is there")),
            keep: None,
            keeps_no_other: false,
            cgroup: None,
            session: Session::Own,
            ignored: Vec::new(),
            limits: Limits::default(),
            place: None,
            parent: std::process::id().cast_signed(),
            outlives_parent: false,
        }
    }

    /// Takes a request as a server does. Returns the child's end of the connection.
    fn request(server: &OwnedFd) -> OwnedFd {
        let (mut request, mut room) = ([0; 16], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(6))]);
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let into = &mut [io::IoSliceMut::new(&mut request)];
        rustix::net::recvmsg(server, into, &mut control, RecvFlags::empty()).expect("a request");
        let fds = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        fds.expect("the first descriptor is the connection")
    }

    /// Has a server fork that sends this, as this process.
    fn forked(answers: &[[i32; 3]]) -> (Result<i32, ForkError>, Spawner) {
        let (ours, theirs) = connection().expect("a connection");
        let server = ForkServer::new(ours, [Vec::new(), Vec::new()]);
        let answers: Vec<u8> = answers.iter().flat_map(|numbers| bytes(*numbers)).collect();
        let thread = std::thread::spawn(move || {
            let channel = request(&theirs);
            rustix::net::send(&channel, &answers, SendFlags::NOSIGNAL).expect("it is read");
        });
        let mut spawner = Spawner::new().expect("a spawner");
        let result = spawner.fork(&server, &command(), &|| true);
        thread.join().expect("it ends");
        assert!(matches!(spawner.fork(&server, &command(), &|| true), Err(ForkError::Unserved(_))), "it is lost");
        (result, spawner)
    }

    #[test]
    fn neither_a_refusal_nor_a_stranger_is_taken_for_the_child() {
        // A step and an error where a pid is expected, and an unknown kind.
        for answers in [&[[3, 3, 25]][..], &[[0, 3, 25]], &[[2, 0, 0]]] {
            let (result, spawner) = forked(answers);
            assert!(matches!(&result, Err(ForkError::Unserved(why)) if why.contains("does not answer")), "{result:?}");
            assert!(spawner.under_way().child().is_none());
        }
        // Whoever sends is alive, and no child of this process: it is this process.
        let (result, _) = forked(&[[1, 0, 0], [2, 0, 0]]);
        assert!(matches!(&result, Err(ForkError::Unserved(why)) if why.contains("has ended")), "{result:?}");
    }

    #[test]
    fn whoever_does_not_answer_and_does_not_read_is_not_waited_for() {
        let exchange = |wanted: &'static dyn Fn() -> bool| {
            let (ours, theirs) = socket::pair().expect("a pair");
            (Exchange { channel: ours, is_wanted: wanted, left: STEP }, theirs)
        };
        let (mut silent, _theirs) = exchange(&|| true);
        assert!(matches!(silent.receive(), Err(ForkError::Unserved(why)) if why.contains("within 30 s")));
        let (mut full, _theirs) = exchange(&|| true);
        assert!(matches!(full.send(&vec![0; 1 << 24]), Err(ForkError::Unserved(_))));
        let (mut unwanted, _theirs) = exchange(&|| false);
        assert!(matches!(unwanted.receive(), Err(ForkError::Unwanted)));
        // It was killed since nobody wants it.
        let (mut killed, theirs) = exchange(&|| false);
        drop(theirs);
        assert!(matches!(killed.receive(), Err(ForkError::Unwanted)));
    }
}
