//! A group on several nodes: one server each, and a front between them.

use std::collections::BTreeMap;

use rankrun_core::collective::Collective;
use rankrun_core::{GroupId, Rank};
use rankrun_wireup::pmi1::{Effect, Epoch, Server};

use crate::world::{INIT, config};

/// All parts of a collective of two ranks on two nodes.
fn whole(group: u32, seq: u64, payloads: &[&[u8]]) -> Collective {
    let payloads = payloads.iter().map(|payload| payload.to_vec()).collect();
    Collective { group: GroupId(group), seq, members: 2, of: 2, gone: Vec::new(), payloads }
}

/// Node `n` of `nodes` has the ranks `n, n + nodes, ...`. The front hands a collective out when all have contributed.
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
    contributions: BTreeMap<u64, Vec<Option<Vec<u8>>>>,
}

impl Cluster {
    pub(crate) fn new(nodes: u32, size: u32) -> Cluster {
        let server = |node| {
            let mut config = config(size);
            config.local = (node..size).step_by(nodes as usize).map(Rank).collect();
            Server::new(config)
        };
        Cluster { servers: (0..nodes).map(server).collect(), contributions: BTreeMap::new() }
    }

    fn inited(nodes: u32, size: u32) -> Cluster {
        let mut cluster = Cluster::new(nodes, size);
        for rank in 0..size {
            cluster.send_line(rank, INIT);
        }
        cluster
    }

    /// What comes of one line of a rank, on all nodes, without the collectives.
    pub(crate) fn send_line(&mut self, rank: u32, line: &str) -> Vec<Effect> {
        let node = rank as usize % self.servers.len();
        let mut effects = Vec::new();
        self.servers[node].received(Rank(rank), format!("{line}\n").as_bytes(), &mut effects);
        self.exchange(node, &mut effects);
        effects
    }

    fn exchange(&mut self, node: usize, effects: &mut Vec<Effect>) {
        let nodes = self.servers.len();
        let mut results = Vec::new();
        effects.retain(|effect| {
            let Effect::Collective(part) = effect else { return true };
            let parts = self.contributions.entry(part.seq).or_insert_with(|| vec![None; nodes]);
            let before = parts[node].replace(part.payloads.concat());
            assert_eq!(before, None, "node {node} contributed twice to {}", part.seq);
            if let Some(payloads) = parts.iter().cloned().collect::<Option<Vec<_>>>() {
                results.push(Collective { payloads, ..part.clone() });
            }
            false
        });
        for result in results {
            self.contributions.remove(&result.seq);
            for node in 0..nodes {
                let mut more = Vec::new();
                self.servers[node].collective_done(result.clone(), &mut more);
                self.exchange(node, &mut more);
                effects.append(&mut more);
            }
        }
    }
}

fn replies(effects: &[Effect]) -> Vec<(u32, String)> {
    crate::world::replies(effects)
}

#[test]
fn a_barrier_of_two_nodes_carries_the_puts_of_each_to_both() {
    let mut cluster = Cluster::inited(2, 4);
    for round in 0..3 {
        for rank in 0..4 {
            cluster.send_line(rank, &format!("cmd=put key=card{rank} value=r{rank}.{round}"));
            // Of equal keys the last node's counts, on both nodes.
            cluster.send_line(rank, &format!("cmd=put key=same value=r{rank}"));
        }
        for rank in 0..3 {
            assert_eq!(cluster.send_line(rank, "cmd=barrier_in"), [], "rank {rank}");
        }
        let mut out = replies(&cluster.send_line(3, "cmd=barrier_in"));
        out.sort();
        let expected: Vec<(u32, String)> = (0..4).map(|rank| (rank, "cmd=barrier_out rc=0".to_owned())).collect();
        assert_eq!(out, expected);
        for (rank, peer) in (0..4).flat_map(|rank| (0..4).map(move |peer| (rank, peer))) {
            let reply = replies(&cluster.send_line(rank, &format!("cmd=get key=card{peer}")));
            let value = format!("cmd=get_result rc=0 msg=success value=r{peer}.{round}");
            assert_eq!(reply, [(rank, value)]);
        }
        for rank in 0..4 {
            assert!(replies(&cluster.send_line(rank, "cmd=get key=same"))[0].1.ends_with("value=r3"));
        }
    }
}

#[test]
fn the_second_program_meets_its_siblings_on_the_other_node() {
    let mut cluster = Cluster::inited(2, 2);
    for _ in 0..2 {
        assert!(cluster.contributions.is_empty());
        cluster.send_line(0, "cmd=barrier_in");
        cluster.send_line(1, "cmd=barrier_in");
    }
    for rank in 0..2 {
        cluster.send_line(rank, "cmd=finalize");
        cluster.send_line(rank, INIT);
        cluster.send_line(rank, &format!("cmd=put key=k{rank} value=second"));
    }
    assert!(cluster.contributions.is_empty(), "the front holds parts of the first program");
    assert_eq!(cluster.send_line(0, "cmd=barrier_in"), []);
    assert_eq!(replies(&cluster.send_line(1, "cmd=barrier_in")).len(), 2);
    assert!(replies(&cluster.send_line(0, "cmd=get key=k1"))[0].1.ends_with("value=second"));
}

#[test]
fn a_rank_that_goes_on_to_its_next_program_frees_those_who_wait_on_another_node() {
    // Ranks 0 and 2 are on one node, 1 and 3 on the other.
    for (leaving, before) in [(INIT, false), (INIT, true), ("cmd=finalize", false), ("cmd=finalize", true)] {
        let mut cluster = Cluster::inited(2, 4);
        let mut effects = Vec::new();
        if before {
            effects.append(&mut cluster.send_line(0, leaving));
        }
        effects.append(&mut cluster.send_line(1, "cmd=barrier_in"));
        effects.append(&mut cluster.send_line(3, "cmd=barrier_in"));
        if !before {
            effects.append(&mut cluster.send_line(0, leaving));
        }
        let broken: Vec<u32> = replies(&effects)
            .into_iter()
            .filter_map(|(rank, reply)| reply.starts_with("cmd=barrier_out rc=-1").then_some(rank))
            .collect();
        assert_eq!(broken, [1, 3]);
        assert!(effects.contains(&Effect::BarrierBroken { epoch: Epoch(0), left: Some(Rank(0)) }));
        // In the next program all are together again.
        for rank in u32::from(leaving == INIT)..4 {
            cluster.send_line(rank, INIT);
        }
        for rank in 0..3 {
            cluster.send_line(rank, "cmd=barrier_in");
        }
        assert_eq!(replies(&cluster.send_line(3, "cmd=barrier_in")).len(), 4);
    }
}

#[test]
fn a_put_counts_in_its_own_barrier_only() {
    let mut cluster = Cluster::inited(2, 2);
    for (rank, value) in [(1, "first"), (0, "second")] {
        cluster.send_line(rank, &format!("cmd=put key=k value={value}"));
        cluster.send_line(0, "cmd=barrier_in");
        cluster.send_line(1, "cmd=barrier_in");
        for reader in 0..2 {
            assert!(replies(&cluster.send_line(reader, "cmd=get key=k"))[0].1.ends_with(value));
        }
    }
}

#[test]
fn a_result_that_comes_after_its_program_has_gone_is_not_the_next_ones() {
    let mut cluster = Cluster::inited(2, 2);
    cluster.send_line(0, "cmd=barrier_in");
    cluster.send_line(0, INIT);
    let mut effects = Vec::new();
    let late = whole(0, 0, &[&b"\0\x01\x01\0kv"[..]; 2]);
    cluster.servers[0].collective_done(late, &mut effects);
    assert_eq!(effects, []);
    assert!(replies(&cluster.send_line(0, "cmd=get key=k"))[0].1.contains("key_not_found"));
}

#[test]
fn a_result_that_nobody_awaits_is_passed_over() {
    let mut cluster = Cluster::inited(2, 2);
    let mut effects = Vec::new();
    for (group, seq) in [(0, 0), (1, 0), (0, 7)] {
        if group == 1 {
            cluster.send_line(0, "cmd=barrier_in");
        }
        cluster.servers[0].collective_done(whole(group, seq, &[&b"\0"[..]; 2]), &mut effects);
    }
    assert_eq!(effects, []);
}

#[test]
fn an_unreadable_contribution_breaks_the_barrier_instead_of_hanging_it() {
    for payload in [&b""[..], b"\x07", b"\0\x01", b"\x01\x01"] {
        let mut cluster = Cluster::inited(2, 2);
        cluster.send_line(0, "cmd=barrier_in");
        let mut effects = Vec::new();
        cluster.servers[0].collective_done(whole(0, 0, &[b"\0", payload]), &mut effects);
        assert!(replies(&effects)[0].1.starts_with("cmd=barrier_out rc=-1"), "{payload:?}");
        let broken = Effect::BarrierBroken { epoch: Epoch(0), left: None };
        assert!(effects.contains(&broken), "{payload:?}");
    }
}
