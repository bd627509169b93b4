//! Several programs in one rank, and barriers that can complete no more.

use rankrun_core::Rank;
use rankrun_wireup::pmi1::{Effect, Epoch, Lifecycle};

use crate::world::{INIT, World, replies};

const BROKEN: &str = "cmd=barrier_out rc=-1 msg=a_rank_has_left";

#[test]
fn the_second_program_has_a_space_and_a_barrier_of_its_own() {
    let mut world = World::inited(2);
    world.ask(0, "cmd=put key=k value=old");
    world.ask(0, "cmd=put key=first value=only");
    world.send_line(0, "cmd=barrier_in");
    world.send_line(1, "cmd=barrier_in");
    world.ask(0, "cmd=finalize");
    world.ask(0, INIT);
    assert_eq!(world.ask(0, "cmd=get_my_kvsname"), "cmd=my_kvsname rc=0 kvsname=kvs_0_1");
    world.ask(0, "cmd=put key=k value=new");
    assert_eq!(world.send_line(0, "cmd=barrier_in"), []);

    // The sibling is still in its first program, and sees that one's pairs.
    let old = world.ask(1, "cmd=get kvsname=kvs_0_0 key=k");
    assert_eq!(old, "cmd=get_result rc=0 msg=success value=old");
    world.ask(1, "cmd=finalize");
    world.ask(1, INIT);
    assert_eq!(world.ask(1, "cmd=get key=k"), "cmd=get_result rc=1 msg=key_not_found");
    assert_eq!(replies(&world.send_line(1, "cmd=barrier_in")).len(), 2);
    assert_eq!(world.ask(1, "cmd=get key=k"), "cmd=get_result rc=0 msg=success value=new");
    assert_eq!(world.ask(1, "cmd=get key=first"), "cmd=get_result rc=1 msg=key_not_found");
    let lifecycle = Lifecycle::Inited { epoch: Epoch(1), passed_barrier: true };
    assert_eq!(world.server.lifecycle(Rank(1)), lifecycle);
}

#[test]
fn a_program_that_never_finalized_is_told_as_abandoned_by_the_next() {
    let mut world = World::inited(1);
    for (line, abandoned) in [(INIT, true), ("cmd=finalize", false), (INIT, false)] {
        let flag = world.send_line(0, line).into_iter().find_map(|effect| match effect {
            Effect::Inited { abandoned, .. } => Some(abandoned),
            _ => None,
        });
        assert_eq!(flag.unwrap_or(false), abandoned, "{line}");
    }
}

#[test]
fn whoever_waits_for_a_rank_that_goes_on_to_its_next_program_is_told() {
    for leaving in [&["cmd=finalize"][..], &[INIT], &["cmd=finalize", INIT]] {
        let mut world = World::inited(3);
        world.send_line(1, "cmd=barrier_in");
        let effects: Vec<Effect> = leaving.iter().flat_map(|line| world.send_line(0, line)).collect();
        assert!(replies(&effects).contains(&(1, BROKEN.to_owned())), "{effects:?}");
        let broken = Effect::BarrierBroken { epoch: Epoch(0), left: Some(Rank(0)) };
        assert_eq!(effects.iter().filter(|effect| **effect == broken).count(), 1);
        // A rank that enters later gets the error too, but the driver has had its effect.
        let late = world.send_line(2, "cmd=barrier_in");
        assert_eq!(replies(&late), [(2, BROKEN.to_owned())]);
        assert_eq!(late.len(), 1);
    }
}

#[test]
fn after_a_crash_in_the_first_program_the_second_one_works() {
    let mut world = World::inited(2);
    world.ask(1, "cmd=put key=lost value=1");
    world.send_line(1, "cmd=barrier_in");
    // Rank 0 dies in its first program, in the middle of a line, and its wrapper starts the next.
    world.send_line(0, "mcmd=spawn\nnprocs=1");
    world.send_line(0, INIT);
    world.ask(1, "cmd=finalize");
    world.ask(1, INIT);
    world.send_line(0, "cmd=barrier_in");
    let effects = world.send_line(1, "cmd=barrier_in");
    let out = "cmd=barrier_out rc=0".to_owned();
    assert_eq!(replies(&effects), [(0, out.clone()), (1, out)]);
    assert_eq!(world.ask(1, "cmd=get key=lost"), "cmd=get_result rc=1 msg=key_not_found");
}

#[test]
fn what_an_abandoned_program_put_is_neither_seen_nor_counted() {
    let mut world = World::inited(1);
    let value = "v".repeat(900);
    for _ in 0..3 {
        for i in 0..900 {
            world.ask(0, &format!("cmd=put key=k{i} value={value}"));
        }
        world.send_line(0, INIT);
    }
    world.ask(0, "cmd=barrier_in");
    assert_eq!(world.ask(0, "cmd=get key=k0"), "cmd=get_result rc=1 msg=key_not_found");
}

#[test]
fn the_next_program_ends_a_request_that_the_last_one_left_unfinished() {
    let mut world = World::inited(1);
    assert_eq!(world.send_line(0, "mcmd=spawn\nnprocs=1\narg1=a"), []);
    world.send_line(0, INIT);
    assert!(world.refusal(0, "nprocs=1").contains("is no PMI request"));
}

#[test]
fn a_program_that_died_in_a_barrier_is_counted_out_of_it() {
    let mut world = World::inited(2);
    world.send_line(0, "cmd=barrier_in");
    world.send_line(0, INIT);
    assert_eq!(world.send_line(0, "cmd=barrier_in"), []);
    world.send_line(1, INIT);
    assert_eq!(replies(&world.send_line(1, "cmd=barrier_in")).len(), 2);
}

#[test]
fn a_rank_that_entered_and_closed_still_counts_in_that_barrier() {
    let mut world = World::inited(2);
    world.ask(0, "cmd=put key=k value=v");
    world.send_line(0, "cmd=barrier_in");
    world.server.closed(Rank(0), &mut Vec::new());
    assert_eq!(world.ask(1, "cmd=barrier_in"), "cmd=barrier_out rc=0");
    assert_eq!(world.ask(1, "cmd=get key=k"), "cmd=get_result rc=0 msg=success value=v");
}
