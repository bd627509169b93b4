//! Asks the kernel about TCP sockets of this machine: whose one is, how many wait at a listener (sock_diag(7)).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

/// `struct nlmsghdr`.
const HEAD: usize = 16;
/// `struct inet_diag_req_v2` behind it.
const REQUEST: usize = HEAD + 56;
/// `struct inet_diag_msg` behind it.
const REPLY: usize = HEAD + 72;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;

/// Who has a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    pub uid: u32,
    pub inode: u64,
}

/// The owner of the socket that is bound to `local` and connected to `remote`, both of one family.
///
/// `NotFound` if there is none; other errors if the kernel does not answer such questions here.
pub fn tcp_owner(local: SocketAddr, remote: SocketAddr) -> io::Result<Owner> {
    // The last two words.
    ask(local, remote, |reply| Owner { uid: number(reply, REPLY - 8), inode: number(reply, REPLY - 4).into() })
}

/// How many connections wait to be accepted by the listener that is bound to `local`.
pub fn tcp_backlog(local: SocketAddr) -> io::Result<u32> {
    let any: IpAddr = if local.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    // A listener's reply has them as its received bytes.
    ask(local, SocketAddr::new(any, 0), |reply| number(reply, REPLY - 16))
}

fn ask<T>(local: SocketAddr, remote: SocketAddr, take: impl Fn(&[u8]) -> T) -> io::Result<T> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(SOCK_DIAG))?;
    sendto(&socket, &request(local, remote), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut reply = [0u8; 1024];
    let (count, _) = recv(&socket, &mut reply[..], RecvFlags::empty())?;
    check(&reply[..count]).map(take)
}

fn request(local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(REQUEST);
    bytes.extend((REQUEST as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend([0; 8]);
    // Family, protocol, no extensions, any state.
    let family = if local.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    bytes.extend([family.as_raw() as u8, 6, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(local.port().to_be_bytes());
    bytes.extend(remote.port().to_be_bytes());
    for address in [local, remote] {
        match address.ip() {
            IpAddr::V4(address) => {
                bytes.extend(address.octets());
                bytes.extend([0; 12]);
            }
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    // Any interface, and no cookie.
    bytes.extend([0; 4]);
    bytes.extend([0xff; 8]);
    bytes
}

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Whether it is the description of a socket.
fn check(reply: &[u8]) -> io::Result<&[u8]> {
    let kind = reply.get(4..6).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    match kind {
        Some(SOCK_DIAG_BY_FAMILY) if reply.len() >= REPLY => Ok(reply),
        Some(NLMSG_ERROR) => Err(io::Error::from_raw_os_error((number(reply, HEAD) as i32).wrapping_neg())),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// One that listens on each loopback address of this machine, which may lack IPv6.
    fn listeners() -> Vec<TcpListener> {
        let at = |address: IpAddr| TcpListener::bind((address, 0)).ok();
        let listeners: Vec<_> =
            [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()].into_iter().filter_map(at).collect();
        assert!(!listeners.is_empty());
        listeners
    }

    #[test]
    fn a_connection_of_this_process_is_found_from_its_peers_side() {
        for listener in listeners() {
            let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
            let (own, peer) = (client.local_addr().expect("bound"), client.peer_addr().expect("connected"));
            let owner = tcp_owner(own, peer).expect("it is there");
            let file = std::fs::metadata(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&client)));
            assert_eq!(
                (owner.uid, owner.inode),
                (rustix::process::geteuid().as_raw(), file.expect("it is open").ino())
            );
            assert!(tcp_owner(own, SocketAddr::new(own.ip(), 1)).is_err());
        }
    }

    #[test]
    fn connections_that_nobody_has_accepted_are_counted() {
        for listener in listeners() {
            let address = listener.local_addr().expect("an address");
            assert_eq!(tcp_backlog(address).expect("it is there"), 0);
            let clients = [0; 3].map(|_| TcpStream::connect(address).expect("a connection"));
            assert_eq!(tcp_backlog(address).expect("it is there"), 3);
            drop(clients);
            assert_eq!(tcp_backlog(address).expect("it is there"), 3, "a connection that was closed waits, too");
            drop(listener.accept());
            assert_eq!(tcp_backlog(address).expect("it is there"), 2);
        }
    }
}
