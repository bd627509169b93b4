//! What holds for every conversation.

use proptest::collection::vec;
use proptest::prelude::*;
use rankrun_core::Rank;
use rankrun_wireup::pmi1::{Effect, Epoch, Lifecycle, MAX_REPLY, Server};

use crate::nodes::Cluster;
use crate::world::{INIT, config, replies};

/// A line such as clients send, in any order, and now and then something else.
fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => Just(INIT.to_owned()),
        4 => Just("cmd=barrier_in".to_owned()),
        2 => Just("cmd=finalize".to_owned()),
        1 => Just("cmd=get_my_kvsname".to_owned()),
        1 => Just("mcmd=spawn\nnprocs=1\nendcmd".to_owned()),
        2 => (0..3u32, 0..9u32).prop_map(|(key, value)| format!("cmd=put key=k{key} value={value}")),
        2 => (0..3u32).prop_map(|key| format!("cmd=get key=k{key}")),
        1 => (0..3u32, 0..9u32).prop_map(|(name, port)| format!("cmd=publish_name service=s{name} port=p{port}")),
        1 => ("(un)?publish_name|lookup_name", 0..3u32).prop_map(|(name, n)| format!("cmd={name} service=s{n}")),
        1 => "cmd=[a-z_]{0,9}( [a-z]{0,3}=?[^\n]{0,9}){0,3}",
    ]
}

fn left(lifecycle: Lifecycle, epoch: Epoch) -> bool {
    match lifecycle {
        Lifecycle::NotInited => false,
        Lifecycle::Inited { epoch: now, .. } => now > epoch,
        Lifecycle::Finalized { epoch: last, .. } => last >= epoch,
    }
}

proptest! {
    #[test]
    fn no_bytes_panic_the_server_or_lengthen_a_reply(
        pieces in vec((0..3u32, prop_oneof![vec(any::<u8>(), 0..80), line().prop_map(|line| (line + "\n").into_bytes())]), 0..60),
    ) {
        let mut server = Server::new(config(3));
        let mut effects = Vec::new();
        for (rank, bytes) in pieces {
            server.received(Rank(rank), &bytes, &mut effects);
        }
        for effect in &effects {
            if let Effect::Reply { bytes, .. } = effect {
                prop_assert!(bytes.len() < MAX_REPLY && bytes.ends_with(b"\n"));
            }
        }
    }

    #[test]
    fn it_does_not_matter_where_reads_cut_the_lines(
        lines in vec((0..3u32, line()), 1..40),
        cuts in vec(1..40usize, 1..40),
    ) {
        let (mut whole, mut cut) = (Server::new(config(3)), Server::new(config(3)));
        let (mut expected, mut effects) = (Vec::new(), Vec::new());
        let mut cuts = cuts.iter().cycle();
        for (rank, line) in lines {
            let bytes = format!("{line}\n").into_bytes();
            whole.received(Rank(rank), &bytes, &mut expected);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rest.len().min(*cuts.next().expect("a cycle")));
                cut.received(Rank(rank), piece, &mut effects);
                rest = after;
            }
        }
        prop_assert_eq!(effects, expected);
    }

    /// A rank waits only for ranks that can still come.
    #[test]
    fn nobody_is_left_waiting_in_a_barrier_that_cannot_complete(
        nodes in 1..4u32,
        lines in vec((0..5u32, prop_oneof![
            3 => Just(INIT), 6 => Just("cmd=barrier_in"), 1 => Just("cmd=finalize"), 1 => Just("cmd=put key=k value=v"),
        ]), 1..80),
    ) {
        let size = 5;
        let mut cluster = Cluster::new(nodes, size);
        let mut waiting: Vec<Option<Epoch>> = vec![None; size as usize];
        let mut answered = vec![true; size as usize];
        for (rank, line) in lines {
            let effects = cluster.send_line(rank, line);
            let server = &cluster.servers[(rank % nodes) as usize];
            let slot = rank as usize;
            if line == INIT {
                waiting[slot] = None;
            }
            if effects.iter().any(|effect| matches!(effect, Effect::Malformed { .. })) {
                answered[slot] = false;
            }
            if let ("cmd=barrier_in", true, Lifecycle::Inited { epoch, .. }) = (line, answered[slot], server.lifecycle(Rank(rank))) {
                waiting[slot] = Some(epoch);
            }
            for (to, reply) in replies(&effects) {
                if reply.starts_with("cmd=barrier_out") {
                    prop_assert!(waiting[to as usize].take().is_some(), "rank {} was let out of no barrier", to);
                }
            }
            let all: Vec<Lifecycle> =
                (0..size).map(|rank| cluster.servers[(rank % nodes) as usize].lifecycle(Rank(rank))).collect();
            for (rank, epoch) in waiting.iter().enumerate().filter(|(rank, _)| answered[*rank]) {
                let Some(epoch) = epoch else { continue };
                let gone = |other: u32| left(all[other as usize], *epoch);
                let here = |node: u32| (node..size).step_by(nodes as usize);
                prop_assert!(!here(rank as u32 % nodes).any(gone), "rank {} waits for one that has left its node", rank);
                // The others know when each node has nobody left to wait for. One whose words were refused says nothing more: the
                // job ends by that.
                let waits = |other: u32| answered[other as usize] && waiting[other as usize] == Some(*epoch);
                let has_entered = |node| here(node).any(gone) || here(node).all(waits);
                prop_assert!(!(0..nodes).all(has_entered), "rank {} waits in epoch {} for nobody", rank, epoch);
            }
        }
    }
}
