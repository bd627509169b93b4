//! Whole conversations, as clients speak them.

use rankrun_core::Rank;
use rankrun_wireup::pmi1::{Effect, Epoch, Lifecycle};

use crate::world::{World, replies};

/// Plays a script: `0> line` is sent by rank 0, and the lines `R< line` after it are all the replies it leads to.
fn play(size: u32, script: &str) -> World {
    let mut world = World::new(size);
    world.starts = true;
    let mut lines = script.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
    while let Some(line) = lines.next() {
        let (rank, sent) = line.split_once("> ").expect("a line that is sent");
        let effects = world.send_line(rank.parse().expect("a rank"), sent);
        let malformed = effects.iter().find(|effect| matches!(effect, Effect::Malformed { .. }));
        assert_eq!(malformed, None, "{line}");
        let mut expected = Vec::new();
        while let Some((to, reply)) = lines.peek().and_then(|line| line.split_once("< ")) {
            expected.push((to.parse().expect("a rank"), reply.to_owned()));
            lines.next();
        }
        assert_eq!(replies(&effects), expected, "{line}");
    }
    world
}

#[test]
fn mpich_4_0_exchanges_business_cards() {
    let world = play(
        2,
        "
        0> cmd=init pmi_version=1 pmi_subversion=1
        0< cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1
        0> cmd=get_maxes
        0< cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=960
        0> cmd=get_appnum
        0< cmd=appnum rc=0 appnum=0
        0> cmd=get_my_kvsname
        0< cmd=my_kvsname rc=0 kvsname=kvs_0_0
        0> cmd=get_my_kvsname
        0< cmd=my_kvsname rc=0 kvsname=kvs_0_0
        0> cmd=get kvsname=kvs_0_0 key=PMI_process_mapping
        0< cmd=get_result rc=0 msg=success value=(vector,(0,1,2))
        0> cmd=put kvsname=kvs_0_0 key=P0-businesscard value=description#vm$port#41877$ifname#10.0.0.1$
        0< cmd=put_result rc=0 msg=success
        0> cmd=barrier_in
        1> cmd=init pmi_version=1 pmi_subversion=1
        1< cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1
        1> cmd=get_appnum
        1< cmd=appnum rc=0 appnum=1
        1> cmd=put kvsname=kvs_0_0 key=P1-businesscard value=fabrics_list#shm$
        1< cmd=put_result rc=0 msg=success
        1> cmd=barrier_in
        0< cmd=barrier_out rc=0
        1< cmd=barrier_out rc=0
        0> cmd=get kvsname=kvs_0_0 key=P1-businesscard
        0< cmd=get_result rc=0 msg=success value=fabrics_list#shm$
        1> cmd=get kvsname=kvs_0_0 key=P0-businesscard
        1< cmd=get_result rc=0 msg=success value=description#vm$port#41877$ifname#10.0.0.1$
        1> cmd=get_universe_size
        1< cmd=universe_size rc=0 size=-1
        0> cmd=finalize
        0< cmd=finalize_ack rc=0
        1> cmd=finalize
        1< cmd=finalize_ack rc=0
        ",
    );
    for rank in [Rank(0), Rank(1)] {
        let done = Lifecycle::Finalized { epoch: Epoch(0), passed_barrier: true };
        assert_eq!(world.server.lifecycle(rank), done);
    }
}

/// Recorded from MPICH 5.0.2 (PyPI): on one node it enters no barrier before `MPI_Finalize`.
#[test]
fn mpich_5_asks_for_optional_keys_publishes_a_name_and_fails_cleanly_to_spawn() {
    play(
        2,
        r"
        0> cmd=init pmi_version=1 pmi_subversion=1
        0< cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1
        0> cmd=get_maxes
        0< cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=960
        0> cmd=get_appnum
        0< cmd=appnum rc=0 appnum=0
        0> cmd=get_my_kvsname
        0< cmd=my_kvsname rc=0 kvsname=kvs_0_0
        0> cmd=get kvsname=kvs_0_0 key=PMI_process_mapping
        0< cmd=get_result rc=0 msg=success value=(vector,(0,1,2))
        0> cmd=get kvsname=kvs_0_0 key=PMI_hwloc_xmlfile
        0< cmd=get_result rc=1 msg=key_not_found
        0> cmd=get kvsname=kvs_0_0 key=PMI_mpi_memory_alloc_kinds
        0< cmd=get_result rc=1 msg=key_not_found
        0> cmd=publish_name service=svc port=tag#0$description#vm$
        0< cmd=publish_result info=ok rc=0 msg=success
        0> cmd=lookup_name service=svc
        0< cmd=lookup_result port=tag#0$description#vm$ info=ok rc=0 msg=success
        0> cmd=unpublish_name service=svc
        0< cmd=unpublish_result info=ok rc=0 msg=success
        0> mcmd=spawn
        0> nprocs=2
        0> execname=/bin/true
        0> totspawns=2
        0> spawnssofar=1
        0> argcnt=2
        0> arg1=a b=c
        0> arg2=endcmd
        0> preput_num=1
        0> preput_key_0=PARENT_ROOT_PORT_NAME
        0> preput_val_0=tag#0$connentry#2027682A91DB8635AD[2]637577CC$
        0> endcmd
        0> mcmd=spawn
        0> nprocs=1
        0> execname=/bin/false
        0> totspawns=2
        0> spawnssofar=2
        0> argcnt=0
        0> endcmd
        0< cmd=spawn_result rc=0 errcodes=0,0,0
        1> cmd=init pmi_version=1 pmi_subversion=1
        1< cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1
        0> cmd=barrier_in
        1> cmd=barrier_in
        0< cmd=barrier_out rc=0
        1< cmd=barrier_out rc=0
        0> cmd=finalize
        0< cmd=finalize_ack rc=0
        1> cmd=finalize
        1< cmd=finalize_ack rc=0
        ",
    );
}

/// Recorded from Intel MPI 2021.18 (PyPI).
#[test]
fn intel_mpi_passes_a_name_on_through_the_first_barrier() {
    play(
        2,
        "
        1> cmd=init pmi_version=1 pmi_subversion=1
        1< cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1
        1> cmd=get_maxes
        1< cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=960
        0> cmd=init pmi_version=1 pmi_subversion=1
        0< cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1
        1> cmd=get_my_kvsname
        1< cmd=my_kvsname rc=0 kvsname=kvs_0_0
        1> cmd=get kvsname=kvs_0_0 key=PMI_process_mapping
        1< cmd=get_result rc=0 msg=success value=(vector,(0,1,2))
        1> cmd=barrier_in
        0> cmd=put kvsname=kvs_0_0 key=-bcast-1-0 value=2F6465762F73686D2F496E74656C5F4D50495F6A52685A6D39
        0< cmd=put_result rc=0 msg=success
        0> cmd=barrier_in
        0< cmd=barrier_out rc=0
        1< cmd=barrier_out rc=0
        1> cmd=get kvsname=kvs_0_0 key=-bcast-1-0
        1< cmd=get_result rc=0 msg=success value=2F6465762F73686D2F496E74656C5F4D50495F6A52685A6D39
        0> cmd=finalize
        0< cmd=finalize_ack rc=0
        1> cmd=finalize
        1< cmd=finalize_ack rc=0
        ",
    );
}
