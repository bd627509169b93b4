//! Finds the process that has made a connection.

use std::path::Path;

use rankrun_core::{Rank, pmix};
use rankrun_sys::{kernel, proc};

/// Bytes of the first message of a client. It has its credentials and its name at the start.
pub(super) const FIRST_BYTES: usize = 1024;
/// Processes looked at below a leader.
const MAX_BELOW: usize = 512;

/// The rank that a client says it is: its namespace, NUL, and the rank in network order stand in its first message, in all
/// versions of PMIx (`ptl_base_fns.c`, "construct_message"). `namespace`: that of the attempt.
pub(super) fn claimed_rank(first: &[u8], namespace: &str) -> Option<Rank> {
    let starts = first.windows(namespace.len()).enumerate().filter(|(_, window)| *window == namespace.as_bytes());
    starts.map(|(at, _)| &first[at..]).find_map(|message| {
        let end = message.iter().position(|byte| *byte == 0)?;
        let group = pmix::group_of(namespace, std::str::from_utf8(&message[..end]).ok()?)?;
        let rank = message[end + 1..].first_chunk::<4>()?;
        Some(Rank::of(group, u32::from_be_bytes(*rank)))
    })
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

/// Our user and group as the process knows them: in a container they can have other numbers, and its client sends those.
pub(super) fn owner(pid: i32) -> (u32, u32) {
    let map = |name: &str| kernel::text(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    (inside(&map("uid_map"), user), inside(&map("gid_map"), group))
}

/// A number of ours in a user namespace; the same if it has none there. A line of the map: the first number inside, the
/// first one of ours, how many.
fn inside(map: &str, ours: u32) -> u32 {
    let found = map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let (first, of_ours, count) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        let above = ours.checked_sub(of_ours)?;
        (above < count).then(|| first.saturating_add(above))
    });
    found.unwrap_or(ours)
}

#[cfg(test)]
mod tests {
    use rankrun_core::GroupId;

    use super::*;

    #[test]
    fn the_rank_of_a_client_stands_behind_its_namespace() {
        let mut message = b"native\0\0\0\0\x08........\0rankrun-7f.0\0".to_vec();
        message.extend([0, 0, 1, 2, b'5', 0]);
        assert_eq!(claimed_rank(&message, "rankrun-7f.0"), Some(Rank::of(GroupId(0), 258)));
        assert_eq!(claimed_rank(&message, "rankrun-7f.1"), None);
        assert_eq!(claimed_rank(&message[..message.len() - 3], "rankrun-7f.0"), None, "it is not all there yet");
        let mut message = b"native\0rankrun-7f.0@3\0".to_vec();
        message.extend([0, 0, 0, 1, b'5', 0]);
        assert_eq!(claimed_rank(&message, "rankrun-7f.0"), Some(Rank::of(GroupId(3), 1)), "of another group");
    }

    #[test]
    fn a_user_has_another_number_in_a_container() {
        let map = "         0       1000          1\n         1     100000      65536\n";
        assert_eq!((inside(map, 1000), inside(map, 100_005), inside(map, 7)), (0, 6, 7));
        assert_eq!(inside("0 0 4294967295\n", 1000), 1000, "no namespace of its own");
        assert_eq!(inside("", 1000), 1000);
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
