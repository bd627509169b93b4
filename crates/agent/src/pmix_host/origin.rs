//! Finds the process that has made a connection.

use std::path::Path;

use rankrun_sys::proc;

/// Bytes of the first message of a client. It has its credentials and its name at the start.
pub(super) const FIRST_BYTES: usize = 1024;
/// Processes looked at below a leader.
const MAX_BELOW: usize = 512;

/// The rank that a client says it is: its namespace, NUL, and the rank in network order stand in its first message, in all
/// versions of PMIx (`ptl_base_fns.c`, "construct_message").
pub(super) fn claimed_rank(first: &[u8], namespace: &str) -> Option<u32> {
    let mut name = namespace.as_bytes().to_vec();
    name.push(0);
    let at = first.windows(name.len()).position(|window| window == name)?;
    let rank = first[at + name.len()..].first_chunk::<4>()?;
    Some(u32::from_be_bytes(*rank))
}

/// The process that holds the socket: the leader, or one below it.
pub(super) fn holder(leader: i32, inode: u64) -> Option<i32> {
    let socket = format!("socket:[{inode}]");
    let mut next = vec![leader];
    let mut seen = 0;
    while let Some(pid) = next.pop() {
        if holds(pid, &socket) {
            return Some(pid);
        }
        seen += 1;
        if seen >= MAX_BELOW {
            return None;
        }
        next.extend(proc::children_of(pid));
    }
    None
}

fn holds(pid: i32, socket: &str) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors.flatten().any(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target == Path::new(socket)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_of_a_client_stands_behind_its_namespace() {
        let mut message = b"native\0\0\0\0\x08........\0rankrun-7f.0\0".to_vec();
        message.extend([0, 0, 1, 2, b'5', 0]);
        assert_eq!(claimed_rank(&message, "rankrun-7f.0"), Some(258));
        assert_eq!(claimed_rank(&message, "rankrun-7f.1"), None);
        assert_eq!(claimed_rank(&message[..message.len() - 3], "rankrun-7f.0"), None, "it is not all there yet");
    }

    #[test]
    fn the_process_that_holds_a_socket_is_found_below_its_leader() {
        let (ours, _theirs) = rankrun_sys::socket::pair().expect("a pair of sockets");
        let inode = rustix::fs::fstat(&ours).expect("it is open").st_ino;
        let me = std::process::id() as i32;
        assert_eq!(holder(me, inode), Some(me));
        assert_eq!(holder(me, 1), None);
    }
}
