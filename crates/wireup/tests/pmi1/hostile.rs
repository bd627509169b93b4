//! Clients that break the protocol end their own connection, with a reason, and touch nobody else.

use rankrun_core::Rank;
use rankrun_wireup::pmi1::{Effect, MAX_KVS_BYTES, MAX_LINE};

use crate::world::{INIT, World, reason, replies};

#[test]
fn nonsense_is_refused_with_its_reason() {
    for (line, reason) in [
        ("GET / HTTP/1.1", r#"a line is no PMI request: "GET / HTTP/1.1""#),
        ("", r#"a line is no PMI request: """#),
        ("cmd=\x01", r#"a line is no PMI request: "cmd=\x01""#),
        ("cmd=what?", r#"a line is no PMI request: "what?""#),
        ("cmd=put key=k", r#""put" lacks "value""#),
        ("cmd=put value=v", r#""put" lacks "key""#),
        ("cmd=get", r#""get" lacks "key""#),
        ("cmd=put key= value=v", "a key has 0 bytes, the limit is 1 to 64"),
        ("cmd=get kvsname=kvs_0_1 key=k", r#"the key-value space "kvs_0_1" is not this program's"#),
        ("cmd=get kvsname=kvs_0_00 key=k", r#"the key-value space "kvs_0_00" is not this program's"#),
        ("cmd=put kvsname= key=k value=v", r#"the key-value space "" is not this program's"#),
        ("mcmd=what?", r#"a line is no PMI request: "what?""#),
    ] {
        assert_eq!(World::inited(1).refusal(0, line), reason, "{line:?}");
    }
}

#[test]
fn requests_out_of_order_are_refused() {
    const REQUESTS: [&str; 9] = [
        "cmd=get_maxes",
        "cmd=get_appnum",
        "cmd=get_my_kvsname",
        "cmd=get_universe_size",
        "cmd=put key=k value=v",
        "cmd=get key=k",
        "cmd=barrier_in",
        "cmd=finalize",
        "mcmd=spawn",
    ];
    for request in REQUESTS {
        assert!(World::new(1).refusal(0, request).ends_with("came before \"init\""), "{request}");

        let mut world = World::inited(1);
        world.ask(0, "cmd=finalize");
        assert!(world.refusal(0, request).ends_with("came after \"finalize\""), "{request}");

        let mut world = World::inited(2);
        world.send_line(0, "cmd=barrier_in");
        assert!(world.refusal(0, request).ends_with("came while a barrier was unanswered"), "{request}");
    }
}

#[test]
fn keys_values_and_their_sum_are_bounded() {
    let mut world = World::inited(1);
    let reason = world.refusal(0, &format!("cmd=put key={} value=v", "k".repeat(65)));
    assert_eq!(reason, "a key has 65 bytes, the limit is 1 to 64");

    let mut world = World::inited(1);
    let reason = world.refusal(0, &format!("cmd=put key=k value={}", "v".repeat(961)));
    assert_eq!(reason, "a value has 961 bytes, the limit is 960");

    // Neither a barrier nor the same key again makes room.
    let mut world = World::inited(1);
    let value = "v".repeat(900);
    let mut sum = 0;
    let reason = loop {
        let effects = world.send_line(0, &format!("cmd=put key=k value={value}"));
        if let [Effect::Malformed { reason, .. }] = &effects[..] {
            break reason.clone();
        }
        sum += value.len();
        assert!(sum <= MAX_KVS_BYTES, "no bound at {sum} bytes");
        world.ask(0, "cmd=barrier_in");
    };
    assert_eq!(reason, "more than 1048576 bytes were put");
    assert!(sum > MAX_KVS_BYTES / 2, "bound already at {sum} bytes");
}

#[test]
fn what_a_client_makes_the_server_hold_is_bounded_and_freed() {
    let mut world = World::inited(2);
    let mut most = 0;
    for i in 0.. {
        let effects = world.send_line(0, &format!("cmd=put key=k{i} value={}", "v".repeat(i % 900)));
        most = most.max(world.server.held(Rank(0)));
        if matches!(effects[..], [Effect::Malformed { .. }]) {
            break;
        }
    }
    assert!(most > MAX_KVS_BYTES / 2 && most <= 2 * MAX_KVS_BYTES, "{most} bytes");
    assert_eq!(world.server.held(Rank(0)), 0);
}

#[test]
fn a_line_without_end_is_refused_when_it_exceeds_its_bound() {
    let mut world = World::inited(1);
    assert_eq!(world.send(0, &[b'x'; MAX_LINE]), []);
    assert_eq!(reason(&world.send(0, b"x"), 0), "a line is longer than 4096 bytes");

    let mut world = World::inited(1);
    let line = [b'x'; MAX_LINE + 1];
    assert_eq!(reason(&world.send(0, &line), 0), "a line is longer than 4096 bytes");

    let mut world = World::inited(1);
    world.send(0, b"x");
    let line = [&line[1..], b"\n"].concat();
    assert_eq!(reason(&world.send(0, &line), 0), "a line is longer than 4096 bytes");
}

#[test]
fn after_its_refusal_a_client_is_not_heard_and_the_others_go_on() {
    let mut world = World::inited(2);
    world.refusal(0, "nonsense");
    assert_eq!(world.send_line(0, INIT), []);
    assert_eq!(world.send_line(0, "cmd=barrier_in"), []);
    assert_eq!(world.ask(1, "cmd=get_appnum"), "cmd=appnum rc=0 appnum=1");
    assert_eq!(world.send_line(1, "cmd=barrier_in"), []);
}

#[test]
fn a_client_that_is_refused_in_a_barrier_gets_no_reply_and_holds_nobody_up() {
    let mut world = World::inited(2);
    world.send_line(0, "cmd=barrier_in");
    world.refusal(0, "cmd=barrier_in");
    assert_eq!(world.ask(1, "cmd=barrier_in"), "cmd=barrier_out rc=0");
}

#[test]
fn a_value_cannot_smuggle_a_line_or_a_word_into_anothers_reply() {
    let mut world = World::inited(2);
    world.send_line(0, "cmd=put key=k value=v cmd=abort rc=1");
    world.send_line(0, "cmd=barrier_in");
    world.send_line(1, "cmd=barrier_in");
    assert_eq!(world.ask(1, "cmd=get key=k"), "cmd=get_result rc=0 msg=success value=v");
    assert!(world.refusal(0, "cmd=put key=k value=a\rb").contains("a\\rb"));
}

#[test]
fn many_programs_in_one_rank_do_not_hurt_the_others() {
    let mut world = World::inited(2);
    for _ in 0..1000 {
        world.send_line(0, INIT);
        world.ask(0, "cmd=put key=k value=v");
        assert_eq!(world.send_line(0, "cmd=barrier_in"), []);
    }
    let effects = world.send_line(1, "cmd=barrier_in");
    assert!(replies(&effects)[0].1.starts_with("cmd=barrier_out rc=-1"));
}

#[test]
fn a_rank_that_is_not_served_here_is_passed_over() {
    let mut world = World::inited(1);
    assert_eq!(world.send_line(1, INIT), []);
    world.server.closed(Rank(1), &mut Vec::new());
}
