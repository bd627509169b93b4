//! How many files the processes of a job hold open, in addition to those that they were started with.

use crate::spec::job::{IoPolicy, MpiMode, StdinTarget, StdioKind};

/// What the agent opens for itself: poll set, signals, stream, lease, the job's directory, cgroup and shared memory, a spool.
const OF_THE_AGENT: u64 = 32;
/// What the front opens for itself: poll set, signals, stream, threads, terminal.
const OF_THE_FRONT: u64 = 24;
/// What a rank needs until it is started: its stdio, its PMI socket, its cgroup.
const EACH_AT_START: u64 = 5;
/// Ranks that the agent prepares at the same time.
const MADE_READY: u64 = 16;
/// What the front has of another node, as long as that lives: the stdin, stdout and stderr of ssh.
const EACH_NODE: u64 = 3;
/// What it has in addition until ssh is started: the other ends of these. They belong to at most so many nodes at a time.
const NODES_AT_A_TIME: u64 = 128;

/// Of an agent with so many ranks.
pub fn of_agent(ranks: u32, io: &IoPolicy, mpi: MpiMode, tf_config: bool) -> u64 {
    // A pty is open once more, for its window size.
    let stream = |kind| if kind == StdioKind::Pty { 2 } else { 1 };
    let of_pmi = u64::from(mpi.offers_pmi1());
    let of_stdin = u64::from(io.stdin == StdinTarget::All);
    // One stands for the process itself (pidfd_open(2)).
    let each = 1 + stream(io.stdout) + stream(io.stderr) + of_pmi + of_stdin + u64::from(tf_config);
    let ranks = u64::from(ranks);
    ranks * each + ranks.min(MADE_READY) * EACH_AT_START + OF_THE_AGENT
}

/// Of a front with so many log files and nodes other than its own.
pub fn of_front(logs: u32, nodes: u32) -> u64 {
    let nodes = u64::from(nodes);
    u64::from(logs) + nodes * EACH_NODE + nodes.min(NODES_AT_A_TIME) * EACH_NODE + OF_THE_FRONT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_nodes_need_more_than_most_users_may_open_at_first() {
        assert_eq!(of_front(0, 0), 24);
        assert_eq!(of_front(64, 3), 64 + 9 + 9 + 24);
        assert_eq!(of_front(0, 1000), 3000 + 384 + 24);
    }
}
