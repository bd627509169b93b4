//! Sockets and pipes: all close-on-exec.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::pipe::PipeFlags;

/// A pipe: (read end, write end).
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?)
}

/// The same. Neither end blocks.
pub fn pipe_without_waits() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?)
}

/// A connected pair of Unix stream sockets.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// A Unix stream socket that listens at `path`, for its owner only: the directory must be private. It does not block.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
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

/// Listens under a name that is no file, and is gone with the socket: any process of the network namespace may connect, so look at
/// [`peer`]. The listener does not block.
pub fn listen_under(name: &[u8], backlog: i32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Connects to such a listener. Any process may have taken the name: look at [`peer`].
pub fn connect_under(name: &[u8]) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(socket)
}

/// Sends three descriptors, with a byte.
pub fn send_descriptors(socket: impl AsFd, descriptors: [BorrowedFd<'_>; 3]) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The three descriptors that were sent. `None` at the end of the stream, and where something else was sent.
pub fn receive_descriptors(socket: impl AsFd) -> io::Result<Option<[OwnedFd; 3]>> {
    let (mut byte, mut room) = ([0], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))]);
    let mut control = RecvAncillaryBuffer::new(&mut room);
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let received = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors.collect::<Vec<_>>()),
        _ => None,
    });
    Ok(received.and_then(|descriptors| descriptors.try_into().ok()))
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

/// Binds the first TCP port of a range that is free, or for 0 one that the kernel picks, and holds it without listening: with
/// SO_REUSEADDR a later listener of the job can bind it, while the kernel gives it to no other process (README, "In place of torchrun").
pub fn hold_port(ports: RangeInclusive<u16>) -> io::Result<(OwnedFd, u16)> {
    let mut last = io::Error::from(io::ErrorKind::InvalidInput);
    for port in ports {
        match hold_this_port(port) {
            Ok(held) => return Ok(held),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn hold_this_port(port: u16) -> io::Result<(OwnedFd, u16)> {
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Two that do not listen could both bind it if both had the option then.
    rustix::net::sockopt::set_socket_reuseaddr(&socket, port == 0)?;
    rustix::net::bind(&socket, &std::net::SocketAddr::from(([0, 0, 0, 0], port)))?;
    if port != 0 {
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    }
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

/// Listens at the first free port of a range, at one address or at all, IPv6 and IPv4. 0 is a port that the kernel picks.
/// The listener does not block.
///
/// A port at which connections are closing still counts as free only where it is the only one of the range: one that somebody else
/// holds ([`hold_port`]) looks the same.
pub fn listen_at(
    address: Option<IpAddr>,
    ports: RangeInclusive<u16>,
    backlog: i32,
) -> io::Result<(OwnedFd, SocketAddr)> {
    let mut last = io::Error::from(io::ErrorKind::InvalidInput);
    let addresses = match address {
        Some(address) => vec![address],
        // A machine without IPv6 has the second only.
        None => vec![IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)],
    };
    let is_only = ports.start() == ports.end();
    for port in ports {
        for address in &addresses {
            match listen_at_port(SocketAddr::new(*address, port), backlog, is_only) {
                Ok(found) => return Ok(found),
                Err(error) => last = error,
            }
        }
    }
    Err(last)
}

fn listen_at_port(address: SocketAddr, backlog: i32, reuses: bool) -> io::Result<(OwnedFd, SocketAddr)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // Connections of the job before may be closing at this port.
    rustix::net::sockopt::set_socket_reuseaddr(&socket, reuses)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, backlog)?;
    let bound = rustix::net::getsockname(&socket)?.try_into();
    let bound = bound.map_err(|_| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
    Ok((socket, bound))
}

/// Takes a connection of [`listen_at`], which does not block and does not wait to fill packets, and its peer's address.
pub fn accept_at(listener: &OwnedFd) -> io::Result<(OwnedFd, SocketAddr)> {
    let (socket, peer) = rustix::net::acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
    watch_peer(&socket, Duration::ZERO)?;
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    Ok((socket, canonical(peer.ok_or(io::ErrorKind::AddrNotAvailable)?)))
}

/// Begins to connect to a TCP port. The socket does not block; it is writable when it is connected, or cannot be:
/// [`connected`] tells which.
pub fn begin_connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Whether [`begin_connect`] has succeeded, once the socket is writable.
pub fn connected(socket: &OwnedFd) -> io::Result<()> {
    Ok(rustix::net::sockopt::socket_error(socket)??)
}

/// Whether a TCP socket is connected to itself.
pub fn is_its_own_peer(socket: &OwnedFd) -> bool {
    let own = rustix::net::getsockname(socket).ok().and_then(|own| SocketAddr::try_from(own).ok());
    let peer = rustix::net::getpeername(socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
    own.is_some() && own == peer
}

/// Makes the kernel notice a peer whose machine is gone, although nothing is sent: after about so long, a minute at least. Between two
/// loops that send heartbeats it is only the last resort.
pub fn watch_peer(socket: impl AsFd, bound: Duration) -> io::Result<()> {
    use rustix::net::sockopt;
    let socket = socket.as_fd();
    // The kernel has a limit of 32,767 s.
    let step = (bound / 6).clamp(Duration::from_secs(10), Duration::from_secs(10_000));
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, 2 * step)?;
    sockopt::set_tcp_keepintvl(socket, step)?;
    Ok(sockopt::set_tcp_keepcnt(socket, 4)?)
}

/// Takes a TCP connection, which does not block and does not wait to fill packets, and its peer's address: the IPv4 address of one
/// that an IPv6 socket has mapped.
pub fn accept_tcp(listener: &OwnedFd) -> io::Result<(OwnedFd, SocketAddr)> {
    let (socket, peer) = rustix::net::acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    Ok((socket, canonical(peer.ok_or(io::ErrorKind::AddrNotAvailable)?)))
}

/// The address at which a connection was taken, or a listener listens, in the same form.
pub fn local_address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    let address = SocketAddr::try_from(rustix::net::getsockname(socket)?);
    Ok(canonical(address.map_err(|_| io::Error::from(io::ErrorKind::AddrNotAvailable))?))
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Connects to a port of 127.0.0.1.
pub fn connect_local(port: u16) -> io::Result<OwnedFd> {
    let stream = std::net::TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    Ok(stream.into())
}

/// Makes a descriptor of ours non-blocking. Never called on one that we share with others.
pub fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(fd, true)?)
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
