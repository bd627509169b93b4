//! Sockets and pipes: all close-on-exec.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::pipe::PipeFlags;

/// A pipe: (read end, write end).
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?)
}

/// A connected pair of Unix stream sockets.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// A Unix stream socket that listens at `path`, for its owner only: the directory must be private.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 16)?;
    Ok(socket)
}

/// The same, which does not block, and to which only its owner may connect. Linux gives the name the mode that the socket
/// has when it is bound.
pub fn listen_for_owner(path: &Path, backlog: i32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Connects to a Unix stream socket, and does not wait: where the peer's backlog is full this is `WouldBlock`.
pub fn try_connect(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Connects to a Unix stream socket.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Accepts a connection.
pub fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, SocketFlags::CLOEXEC)?)
}

/// The pid of the process that made the other end, as the kernel noted it.
pub fn peer_pid(socket: &OwnedFd) -> Option<i32> {
    rustix::net::sockopt::socket_peercred(socket).ok().map(|credentials| credentials.pid.as_raw_pid())
}

/// The pid and the effective user of the process that made the other end; of a listener, that made it listen.
pub fn peer(socket: &OwnedFd) -> io::Result<(i32, u32)> {
    let credentials = rustix::net::sockopt::socket_peercred(socket)?;
    Ok((credentials.pid.as_raw_pid(), credentials.uid.as_raw()))
}

/// Makes the kernel add the sender's pid to what arrives on a Unix socket, for [`receive_from`].
pub fn name_senders(socket: &OwnedFd) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_passcred(socket, true)?)
}

/// Reads, and returns the pid of the sender. Many processes may share a descriptor; one read never mixes what several
/// have sent.
pub fn receive_from(socket: &OwnedFd, bytes: &mut [u8]) -> rustix::io::Result<(usize, Option<i32>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(bytes)];
    let received = rustix::net::recvmsg(socket, into, &mut ancillary, RecvFlags::empty())?;
    let sender = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials.pid.as_raw_pid()),
        _ => None,
    });
    // The end of the stream has no sender, and a process in another pid namespace has no pid here.
    Ok((received.bytes, sender.filter(|pid| *pid > 0)))
}

/// Binds a TCP port that the kernel picks, and holds it without listening: with SO_REUSEADDR a later listener of the job
/// can bind it, while the kernel gives it to no other process (README, "In place of torchrun").
pub fn hold_port() -> io::Result<(OwnedFd, u16)> {
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &std::net::SocketAddr::from(([0, 0, 0, 0], 0)))?;
    let address: std::net::SocketAddr =
        rustix::net::getsockname(&socket)?.try_into().map_err(|_| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
    Ok((socket, address.port()))
}

/// Listens at a port of 127.0.0.1 that the kernel picks. The listener does not block.
pub fn listen_local(backlog: i32) -> io::Result<(OwnedFd, u16)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], 0)))?;
    rustix::net::listen(&socket, backlog)?;
    let address: std::net::SocketAddr =
        rustix::net::getsockname(&socket)?.try_into().map_err(|_| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
    Ok((socket, address.port()))
}

/// Takes a TCP connection (IPv4), which does not block and does not wait to fill packets, and its peer's address.
pub fn accept_tcp(listener: &OwnedFd) -> io::Result<(OwnedFd, SocketAddrV4)> {
    let (socket, peer) = rustix::net::acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
    let peer = peer.and_then(|peer| SocketAddrV4::try_from(peer).ok());
    Ok((socket, peer.ok_or(io::ErrorKind::AddrNotAvailable)?))
}

/// The address (IPv4) at which a connection was taken.
pub fn local_address(socket: &OwnedFd) -> io::Result<SocketAddrV4> {
    Ok(rustix::net::getsockname(socket)?.try_into()?)
}

/// Connects to a port of 127.0.0.1.
pub fn connect_local(port: u16) -> io::Result<OwnedFd> {
    let stream = std::net::TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    Ok(stream.into())
}

/// Makes a descriptor of ours non-blocking. Never called on one that we share with others.
pub fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?)
}

/// Requests a larger pipe; the kernel may refuse.
pub fn widen_pipe(fd: &OwnedFd, bytes: usize) {
    let _ = rustix::pipe::fcntl_setpipe_size(fd, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_is_named_and_not_the_process_that_made_the_socket() {
        let (ours, theirs) = pair().expect("a pair");
        name_senders(&ours).expect("a Unix socket");
        let mut bytes = [0; 64];
        rustix::io::write(&theirs, b"a").expect("there is room");
        let me = std::process::id() as i32;
        assert_eq!(receive_from(&ours, &mut bytes), Ok((1, Some(me))));
        let mut child =
            std::process::Command::new("echo").arg("hello").stdout(theirs).spawn().expect("echo can be started");
        assert_eq!(receive_from(&ours, &mut bytes), Ok((6, Some(child.id() as i32))));
        child.wait().expect("it ends");
        assert_eq!(receive_from(&ours, &mut bytes), Ok((0, None)));
    }
}
