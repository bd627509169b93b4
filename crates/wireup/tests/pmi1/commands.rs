//! Each command by itself.

use rankrun_core::spawning::SpawnAnswer;
use rankrun_core::{GroupId, Rank};
use rankrun_wireup::pmi1::{Effect, Lifecycle, VALLEN_MAX};

use crate::world::{INIT, World, config, replies};

#[test]
fn init_is_answered_with_our_version_and_refused_for_others() {
    let served = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1";
    let refused = "cmd=response_to_init rc=-1 pmi_version=1 pmi_subversion=1";
    for (line, reply) in [
        ("cmd=init pmi_version=1 pmi_subversion=1", served),
        ("cmd=init pmi_subversion=2 pmi_version=1", served),
        ("cmd=init pmi_version=2 pmi_subversion=0", refused),
        ("cmd=init pmi_version=one", refused),
        ("cmd=init", refused),
    ] {
        let mut world = World::new(1);
        assert_eq!(world.ask(0, line), reply, "{line}");
        let inited = matches!(world.server.lifecycle(Rank(0)), Lifecycle::Inited { .. });
        assert_eq!(inited, reply == served, "{line}");
    }
}

#[test]
fn a_known_universe_is_told_both_ways() {
    let mut config = config(1);
    config.universe_size = Some(12);
    let mut world = World::of(config);
    world.ask(0, INIT);
    assert_eq!(world.ask(0, "cmd=get_universe_size"), "cmd=universe_size rc=0 size=12");
    assert_eq!(world.ask(0, "cmd=get key=universeSize"), "cmd=get_result rc=0 msg=success value=12");
}

#[test]
fn without_a_mapping_or_a_universe_there_is_no_such_key() {
    let mut config = config(1);
    config.mapping = String::new();
    let mut world = World::of(config);
    world.ask(0, INIT);
    for key in ["PMI_process_mapping", "universeSize", "nothing"] {
        assert_eq!(world.ask(0, &format!("cmd=get key={key}")), "cmd=get_result rc=1 msg=key_not_found");
    }
}

#[test]
fn the_file_of_the_topology_is_asked_for_before_its_first_reader_gets_the_path() {
    let mut config = config(2);
    config.topology = Some("/tmp/topology.xml".to_owned());
    let mut world = World::of(config);
    world.ask(0, INIT);
    world.ask(1, INIT);
    let effects = world.send_line(0, "cmd=get key=PMI_hwloc_xmlfile");
    assert!(matches!(&effects[..], [Effect::Topology { path }, Effect::Reply { .. }] if path == "/tmp/topology.xml"));
    let reply = "cmd=get_result rc=0 msg=success value=/tmp/topology.xml";
    assert_eq!(replies(&effects), [(0, reply.to_owned())]);
    assert_eq!(world.ask(1, "cmd=get key=PMI_hwloc_xmlfile"), reply);
    let mut without = World::inited(1);
    assert_eq!(without.ask(0, "cmd=get key=PMI_hwloc_xmlfile"), "cmd=get_result rc=1 msg=key_not_found");
}

#[test]
fn puts_are_seen_after_the_barrier_and_the_last_one_counts() {
    let mut world = World::inited(1);
    world.ask(0, "cmd=put key=k value=1");
    assert_eq!(world.ask(0, "cmd=get key=k"), "cmd=get_result rc=1 msg=key_not_found");
    world.ask(0, "value=2 key=k extra=yes cmd=put kvsname=kvs_0_0");
    world.ask(0, "cmd=barrier_in");
    assert_eq!(world.ask(0, "cmd=get key=k"), "cmd=get_result rc=0 msg=success value=2");
    world.ask(0, "cmd=put key=k value=3");
    world.ask(0, "cmd=barrier_in");
    assert_eq!(world.ask(0, "cmd=get key=k"), "cmd=get_result rc=0 msg=success value=3");
}

#[test]
fn values_come_back_as_they_were_sent() {
    for value in ["a=b", r"a\ b", r"back\\slash", "(vector,(0,1,2))", "#$[5]\"'"] {
        let mut world = World::inited(1);
        world.ask(0, &format!("cmd=put key=k value={value}"));
        world.ask(0, "cmd=barrier_in");
        let expected = format!("cmd=get_result rc=0 msg=success value={value}");
        assert_eq!(world.ask(0, "cmd=get key=k"), expected);
    }
}

#[test]
fn the_longest_value_fits_into_a_reply() {
    let mut world = World::inited(1);
    let value = "v".repeat(VALLEN_MAX);
    world.ask(0, &format!("cmd=put key={} value={value}", "k".repeat(64)));
    world.ask(0, "cmd=barrier_in");
    // The length of replies is asserted on each of them.
    assert!(world.ask(0, &format!("cmd=get key={}", "k".repeat(64))).ends_with(&value));
}

#[test]
fn the_servers_own_keys_cannot_be_put() {
    let mut world = World::inited(1);
    let reply = world.ask(0, "cmd=put key=PMI_process_mapping value=(vector,(0,9,9))");
    assert_eq!(reply, "cmd=put_result rc=1 msg=key_is_reserved");
    world.ask(0, "cmd=barrier_in");
    assert!(world.ask(0, "cmd=get key=PMI_process_mapping").ends_with("(vector,(0,1,1))"));
}

#[test]
fn what_is_not_served_is_answered_so_that_clients_fail_instead_of_waiting() {
    let mut world = World::inited(2);
    for (line, reply) in [
        ("cmd=get_ranks2hosts", "cmd=get_ranks2hosts_result rc=-1 msg=unknown_command"),
        ("cmd=spawn", "cmd=spawn_result rc=-1 msg=unknown_command"),
        ("cmd=barrier_in group=WORLD:1", "cmd=barrier_out rc=-1 msg=group_barriers_are_not_supported"),
        ("mcmd=future\nendcmd", "cmd=future_result rc=-1 msg=unknown_command"),
    ] {
        assert_eq!(world.ask(0, line), reply, "{line}");
    }
    // The group barrier was not counted as one.
    world.send_line(1, "cmd=barrier_in");
    assert_eq!(replies(&world.send_line(0, "cmd=barrier_in")).len(), 2);
}

#[test]
fn a_rank_that_asks_for_others_waits_until_they_are_started() {
    let mut world = World::inited(2);
    let block = |so_far: usize| {
        let program = ["/usr/bin/python", "./other"][so_far - 1];
        format!("mcmd=spawn\nnprocs={}\nexecname={program}\ntotspawns=2\nspawnssofar={so_far}\nendcmd", so_far + 2)
    };
    assert_eq!(world.send_line(1, &block(1)), []);
    let effects = world.send_line(1, &block(2));
    let [Effect::Spawn { id, rank, request }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((rank.number(), request.apps.len(), request.size()), (1, 2, 7));
    let mut effects = Vec::new();
    world.server.spawned(id + 1, &SpawnAnswer::Started(GroupId(1)), &mut effects);
    assert_eq!(effects, [], "nobody has asked for that");
    world.server.spawned(*id, &SpawnAnswer::Started(GroupId(1)), &mut effects);
    world.server.spawned(*id, &SpawnAnswer::Started(GroupId(1)), &mut effects);
    assert_eq!(replies(&effects), [(1, "cmd=spawn_result rc=0 errcodes=0,0,0,0,0,0,0".to_owned())]);
    assert_eq!(world.ask(1, "cmd=get_appnum"), "cmd=appnum rc=0 appnum=1");
}

#[test]
fn an_argument_may_have_lines_that_look_like_requests() {
    for line in ["cmd=x", "cmd=abort exitcode=3", "cmd=abort_on_error()", "cmd=init()", "mcmd=other", "cmd=finalize"] {
        let mut world = World::inited(1);
        let lines = ["mcmd=spawn", "nprocs=1", "execname=sh", "argcnt=1", "arg1=import sys", line, "endcmd"];
        let effects = world.send_line(0, &lines.join("\n"));
        let [Effect::Spawn { request, .. }] = &effects[..] else { panic!("{line}: {effects:?}") };
        assert_eq!(request.apps[0].command[1], format!("import sys\n{line}").as_str());
    }
}

#[test]
fn a_rank_gets_an_error_for_ranks_that_cannot_be_started() {
    let mut world = World::inited(1);
    let effects = world.send_line(0, "mcmd=spawn\nnprocs=1\nexecname=nothing\nendcmd");
    let [Effect::Spawn { id, .. }] = &effects[..] else { panic!("{effects:?}") };
    let mut effects = Vec::new();
    world.server.spawned(*id, &SpawnAnswer::Refused("no such program".to_owned()), &mut effects);
    assert_eq!(replies(&effects), [(0, "cmd=spawn_result rc=1 msg=the_ranks_were_not_started".to_owned())]);
    assert_eq!(
        world.ask(0, "mcmd=spawn\nnprocs=0\nexecname=p\nendcmd"),
        "cmd=spawn_result rc=1 msg=so_many_ranks_cannot_be_started"
    );
}

#[test]
fn an_answer_for_a_program_that_is_over_is_dropped() {
    let mut world = World::inited(1);
    let effects = world.send_line(0, "mcmd=spawn\nnprocs=1\nexecname=p\nendcmd");
    let [Effect::Spawn { id, .. }] = &effects[..] else { panic!("{effects:?}") };
    assert!(world.refusal(0, "cmd=get_appnum").ends_with("came while another request was unanswered"));
    let mut world = World::inited(1);
    world.send_line(0, "mcmd=spawn\nnprocs=1\nexecname=p\nendcmd");
    world.send_line(0, INIT);
    let mut effects = Vec::new();
    world.server.spawned(*id, &SpawnAnswer::Started(GroupId(1)), &mut effects);
    assert_eq!(effects, []);
}

#[test]
fn the_first_program_of_a_group_that_was_asked_for_finds_what_its_parent_has_put() {
    let mut config = config(1);
    config.preput = vec![("PARENT_ROOT_PORT_NAME".to_owned(), "tag#0$x$".to_owned())];
    let mut world = World::of(config);
    let get = "cmd=get kvsname=kvs_0_0 key=PARENT_ROOT_PORT_NAME";
    world.ask(0, INIT);
    assert_eq!(world.ask(0, get), "cmd=get_result rc=0 msg=success value=tag#0$x$");
    world.ask(0, "cmd=barrier_in");
    assert_eq!(world.ask(0, get), "cmd=get_result rc=0 msg=success value=tag#0$x$");
    world.ask(0, "cmd=finalize");
    world.ask(0, INIT);
    assert_eq!(world.ask(0, "cmd=get key=PARENT_ROOT_PORT_NAME"), "cmd=get_result rc=1 msg=key_not_found");
}

/// The replies of Hydra in MPICH 4.0 and Intel MPI 2021.18.
#[test]
fn a_published_name_is_found_by_every_rank_until_it_is_taken_back() {
    let mut world = World::inited(2);
    for (rank, line, reply) in [
        (1, "cmd=lookup_name service=svc", "cmd=lookup_result rc=1 msg=service_not_found"),
        (1, "cmd=unpublish_name service=svc", "cmd=unpublish_result info=ok rc=1 msg=service_not_found"),
        (0, "cmd=publish_name service=svc port=tag#0$host#vm$", "cmd=publish_result info=ok rc=0 msg=success"),
        (1, "cmd=publish_name service=svc port=other", "cmd=publish_result info=ok rc=1 msg=key_already_present"),
        (1, "cmd=lookup_name service=svc", "cmd=lookup_result port=tag#0$host#vm$ info=ok rc=0 msg=success"),
        (0, "cmd=lookup_name service=svc", "cmd=lookup_result port=tag#0$host#vm$ info=ok rc=0 msg=success"),
        (1, "cmd=unpublish_name service=svc", "cmd=unpublish_result info=ok rc=0 msg=success"),
        (0, "cmd=lookup_name service=svc", "cmd=lookup_result rc=1 msg=service_not_found"),
    ] {
        assert_eq!(world.ask(rank, line), reply, "{line}");
    }
}

#[test]
fn a_name_is_what_the_program_gave_and_a_port_that_no_client_could_read_is_refused() {
    let mut world = World::inited(1);
    let published = "cmd=publish_result info=ok rc=0 msg=success";
    // Clients escape nothing.
    for name in ["two words", "two  words", "a=b", r"back\slash", "tab\there", "\u{e9}", &"x".repeat(1000)] {
        assert_eq!(world.ask(0, &format!("cmd=publish_name service={name} port=p")), published, "{name:?}");
        let found = world.ask(0, &format!("cmd=lookup_name service={name}"));
        assert_eq!(found, "cmd=lookup_result port=p info=ok rc=0 msg=success", "{name:?}");
    }
    let unsendable = "cmd=publish_result info=ok rc=1 msg=port_cannot_be_sent";
    for port in ["", " ", "two words", "tab\there", &"x".repeat(961)] {
        assert_eq!(world.ask(0, &format!("cmd=publish_name service=svc port={port}")), unsendable, "{port:?}");
    }
    assert_eq!(world.ask(0, r"cmd=publish_name service=swallows\ port=p"), unsendable);
    assert_eq!(world.ask(0, "cmd=publish_name service= port=p"), "cmd=publish_result info=ok rc=1 msg=name_is_empty");
    assert_eq!(world.ask(0, "cmd=lookup_name service="), "cmd=lookup_result rc=1 msg=service_not_found");
    // The length of replies is asserted on each of them.
    let longest = "x".repeat(960);
    assert_eq!(world.ask(0, &format!("cmd=publish_name service=long port={longest}")), published);
    assert!(world.ask(0, "cmd=lookup_name service=long").contains(&longest));
}

#[test]
fn a_job_cannot_publish_without_end() {
    let mut world = World::inited(1);
    let port = "x".repeat(960);
    let publish = |n: u32| format!("cmd=publish_name service={n} port={port}");
    let full = (0..100_000).find(|n| !world.ask(0, &publish(*n)).contains("rc=0")).expect("there is a limit");
    assert_eq!(world.ask(0, &publish(full)), "cmd=publish_result info=ok rc=1 msg=too_much_is_published");
    world.ask(0, "cmd=unpublish_name service=0");
    assert_eq!(world.ask(0, &publish(full)), "cmd=publish_result info=ok rc=0 msg=success");
}

#[test]
fn a_name_outlives_the_program_that_published_it() {
    let mut world = World::inited(2);
    world.ask(0, "cmd=publish_name service=svc port=p");
    world.ask(0, "cmd=finalize");
    assert_eq!(world.refusal(0, "cmd=lookup_name service=svc"), "\"lookup_name\" came after \"finalize\"");
    assert!(world.ask(1, "cmd=lookup_name service=svc").contains(" rc=0 "));
    let mut world = World::new(1);
    assert_eq!(world.refusal(0, "cmd=publish_name service=s port=p"), "\"publish_name\" came before \"init\"");
}

#[test]
fn abort_tells_code_and_message_in_either_dialect() {
    for (line, code, message) in [
        ("cmd=abort exitcode=7", 7, None),
        ("cmd=abort exitcode=-1 message=out of cheese", -1, Some("out of cheese")),
        ("cmd=abort exit_code=3 error_msg=lost", 3, Some("lost")),
        (r"cmd=abort message=two\ words exitcode=256", 256, Some("two words")),
        ("cmd=abort", 1, None),
        ("cmd=abort message=tab\there exitcode=2", 2, Some("tab here")),
    ] {
        for mut world in [World::new(1), World::inited(1)] {
            let abort = Effect::Abort { rank: Rank(0), code, message: message.map(str::to_owned) };
            assert_eq!(world.send_line(0, line), [abort], "{line}");
            assert_eq!(world.send_line(0, "the rest of the message"), [], "{line}");
        }
    }
}

#[test]
fn an_abort_in_a_barrier_is_handled() {
    let mut world = World::inited(2);
    world.send_line(0, "cmd=barrier_in");
    assert!(matches!(world.send_line(0, "cmd=abort exitcode=4")[..], [Effect::Abort { code: 4, .. }]));
}

#[test]
fn several_requests_at_once_are_answered_in_their_order() {
    let mut world = World::new(1);
    let effects = world.send(0, format!("{INIT}\ncmd=get_appnum\ncmd=get_max").as_bytes());
    assert_eq!(replies(&effects).len(), 2);
    let effects = world.send(0, b"es\n");
    assert!(replies(&effects)[0].1.starts_with("cmd=maxes "));
}

#[test]
fn an_end_that_is_closed_is_told_with_how_far_it_was() {
    let mut world = World::inited(1);
    let mut effects = Vec::new();
    world.send(0, b"cmd=fin");
    world.server.closed(Rank(0), &mut effects);
    let lifecycle = world.server.lifecycle(Rank(0));
    assert!(matches!(lifecycle, Lifecycle::Inited { passed_barrier: false, .. }));
    let rank = Rank(0);
    assert_eq!(effects, [Effect::Closed { rank, lifecycle }]);
    effects.clear();
    world.server.closed(Rank(0), &mut effects);
    world.server.received(Rank(0), b"alize\n", &mut effects);
    assert_eq!(effects, []);
}

#[test]
fn barriers_do_not_wait_for_ranks_that_are_gone_and_the_others_can_ask_which() {
    let mut world = World::inited(3);
    assert_eq!(world.ask(1, "cmd=get key=PMI_dead_processes"), "cmd=get_result rc=1 msg=key_not_found");
    assert_eq!(world.send_line(0, "cmd=barrier_in"), []);
    let mut effects = Vec::new();
    world.server.lost(&[Rank(2)], &mut effects);
    assert_eq!(effects, [], "rank 1 may come");
    assert_eq!(world.ask(1, "cmd=get key=PMI_dead_processes"), "cmd=get_result rc=0 msg=success value=2");
    assert_eq!(replies(&world.send_line(1, "cmd=barrier_in")).len(), 2);
    // The last that is waited for may be the one that is lost.
    assert_eq!(world.send_line(0, "cmd=barrier_in"), []);
    world.server.lost(&[Rank(2), Rank(1)], &mut effects);
    assert_eq!(replies(&effects).len(), 1);
    assert_eq!(world.ask(0, "cmd=get key=PMI_dead_processes"), "cmd=get_result rc=0 msg=success value=2,1");
}
