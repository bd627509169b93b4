//! What the ranks get, on one node and on two.

use std::time::Duration;

use rankrun_core::collective::Collective;
use rankrun_core::names::{Question, Reply};
use rankrun_core::spawning::{SpawnAnswer, SpawnApp, SpawnRequest};
use rankrun_core::{GroupId, NodeId, NodeRank, Rank, Stream};

use super::message::{Answer, Participants, Request};
use super::server::{Config, Effect, Group, Lifecycle, Server};

const NOW: Duration = Duration::from_secs(1);

fn server(size: u32, local: impl IntoIterator<Item = u32>) -> Server {
    let local: Vec<Rank> = local.into_iter().map(Rank).collect();
    let node = NodeRank(u32::from(local.first() != Some(&Rank(0))));
    let nodes = if local.len() as u32 == size { 1 } else { 2 };
    let mut server = Server::new(Config { node, nodes });
    server.begin(Group { group: GroupId(0), size, local });
    server
}

/// A rank of the first group.
fn first(number: u32) -> Rank {
    Rank::of(GroupId(0), number)
}

fn ranks(group: u32, numbers: &[u32]) -> Participants {
    Participants::of(numbers.iter().map(|number| (GroupId(group), Some(*number))))
}

fn all() -> Participants {
    Participants::all_of(GroupId(0))
}

fn request(server: &mut Server, id: u64, request: Request) -> Vec<Effect> {
    let mut effects = Vec::new();
    server.request(NOW, id, request, &mut effects);
    effects
}

fn answer(id: u64, answer: Answer) -> Effect {
    Effect::Answer { id, answer }
}

#[test]
fn a_rank_goes_from_init_through_a_fence_to_finalize() {
    let mut server = server(2, 0..2);
    let of = first(1);
    let init = request(&mut server, 1, Request::Init { of, pid: None });
    assert_eq!(init, [Effect::Inited { of, pid: None }, answer(1, Answer::Done)]);
    let fence = request(&mut server, 2, Request::Fence { who: all(), data: vec![1, 2] });
    assert_eq!(fence, [answer(2, Answer::Data(vec![1, 2])), Effect::PassedFence { of }], "rank 0 has not inited");
    let again = request(&mut server, 3, Request::Fence { who: all(), data: vec![] });
    assert_eq!(again, [answer(3, Answer::Data(vec![]))], "once for each program");
    assert_eq!(server.lifecycle(of), Lifecycle::Inited { passed_fence: true });
    let end = request(&mut server, 4, Request::Finalize { of });
    assert_eq!(end, [Effect::Finalized { of }, answer(4, Answer::Done)]);
    assert_eq!(server.lifecycle(of), Lifecycle::Finalized);
    // A wrapper may run another program.
    request(&mut server, 5, Request::Init { of, pid: None });
    assert_eq!(server.lifecycle(of), Lifecycle::Inited { passed_fence: false });
}

#[test]
fn a_fence_of_a_few_does_not_say_that_all_are_there() {
    let mut server = server(3, 0..3);
    for rank in 0..3 {
        request(&mut server, 0, Request::Init { of: first(rank), pid: None });
    }
    let who = ranks(0, &[0, 2]);
    assert_eq!(request(&mut server, 1, Request::Fence { who, data: vec![] }), [answer(1, Answer::Data(vec![]))]);
    let who = ranks(0, &[0, 1, 2]);
    let effects = request(&mut server, 2, Request::Fence { who, data: vec![] });
    assert_eq!(effects.len(), 4, "{effects:?}");
}

fn whole(seq: u64, payloads: Vec<Vec<u8>>) -> Collective {
    Collective { group: GroupId(0), seq, members: 4, of: 4, gone: Vec::new(), payloads }
}

#[test]
fn a_fence_over_nodes_goes_through_the_front_and_has_the_same_number_on_each() {
    let (mut one, mut second) = (server(4, [0, 1]), server(4, [2, 3]));
    let mut numbers = Vec::new();
    for id in [1, 2] {
        for server in [&mut one, &mut second] {
            let effects = request(server, id, Request::Fence { who: all(), data: vec![id as u8] });
            let [Effect::Collective(collective)] = &effects[..] else { panic!("{effects:?}") };
            assert_eq!((collective.members, &collective.payloads[..]), (2, &[vec![id as u8]][..]));
            numbers.push(collective.seq);
        }
    }
    assert_eq!((numbers[0], numbers[2]), (numbers[1], numbers[3]));
    assert_ne!(numbers[0], numbers[2]);
    let mut effects = Vec::new();
    one.collective_done(whole(numbers[0], vec![vec![1], vec![9]]), &mut effects);
    assert_eq!(effects, [answer(1, Answer::Data(vec![1, 9]))]);
    one.collective_done(whole(77, vec![]), &mut effects);
    assert_eq!(effects.len(), 1, "nobody waits for it");
}

#[test]
fn a_collective_that_waits_for_other_nodes_tells_who_is_gone_of_those_who_take_part() {
    let mut one = server(4, [0, 1]);
    let effects = request(&mut one, 1, Request::Fence { who: ranks(0, &[0, 3]), data: vec![] });
    let [Effect::Collective(waiting)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((waiting.members, waiting.of, &waiting.gone[..]), (1, 2, &[][..]));
    let mut effects = Vec::new();
    assert_eq!(one.lost(&[first(2), first(3)], &mut effects), [first(2), first(3)]);
    assert_eq!(effects, [Effect::Gone { group: GroupId(0), seq: waiting.seq, ranks: vec![first(3)] }]);
    assert_eq!(one.lost(&[first(3)], &mut effects), [], "it is known");
    let effects = request(&mut one, 2, Request::Fence { who: all(), data: vec![] });
    let [Effect::Collective(next)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((next.members, next.of, &next.gone[..]), (2, 4, &[first(2), first(3)][..]));
}

#[test]
fn a_question_is_asked_once_and_its_answer_goes_to_the_rank() {
    let mut server = server(2, 0..2);
    let keys = vec!["service".to_owned()];
    let names = vec![b"service".to_vec()];
    let lookup = |wait| Request::Lookup { of: first(0), keys: keys.clone(), wait };
    let ask = |id, waits| Effect::Ask { id, of: first(0), question: Question::Lookup { names: names.clone(), waits } };
    assert_eq!(request(&mut server, 1, lookup(None)), [ask(1, false)]);
    assert_eq!(request(&mut server, 2, lookup(Some(0))), [ask(2, true)]);
    assert_eq!(request(&mut server, 3, lookup(Some(5))), [ask(3, true)]);
    assert_eq!(server.deadline(), Some(NOW + Duration::from_secs(5)));
    let mut effects = Vec::new();
    server.tick(NOW + Duration::from_secs(5), &mut effects);
    let withdrawn = Effect::Ask { id: 3, of: first(0), question: Question::Withdraw };
    assert_eq!((effects, server.deadline()), (vec![withdrawn, answer(3, Answer::TimedOut)], None));
    let found = || Reply::Found(vec![(Rank(1), b"service".to_vec(), vec![7])]);
    let mut effects = Vec::new();
    server.answered(3, found(), &mut effects);
    assert_eq!(effects, [], "it has timed out");
    server.answered(2, found(), &mut effects);
    server.answered(1, Reply::NotFound, &mut effects);
    let found = Answer::Found(vec![(first(1), "service".to_owned(), vec![7])]);
    assert_eq!(effects, [answer(2, found), answer(1, Answer::NotFound)]);
    assert_eq!(request(&mut server, 4, lookup(Some(0))), [ask(4, true)]);
    let mut effects = Vec::new();
    server.ended(first(1), &mut effects);
    assert_eq!(effects, [], "it did not ask");
    server.ended(first(0), &mut effects);
    assert_eq!(
        effects,
        [Effect::Ask { id: 4, of: first(0), question: Question::Withdraw }],
        "nobody waits for it any more"
    );
}

#[test]
fn data_of_a_rank_come_from_its_node_or_it_is_said_that_the_rank_is_gone() {
    let (mut one, mut second) = (server(4, [0, 1]), server(4, [2, 3]));
    for (id, of) in [(7, first(2)), (8, first(3)), (9, first(3))] {
        assert_eq!(request(&mut one, id, Request::Fetch { of }), [Effect::Fetch { id, of }]);
    }
    assert_eq!(request(&mut one, 10, Request::Fetch { of: first(9) }), [answer(10, Answer::NotFound)]);
    let mut effects = Vec::new();
    second.seek(NodeId(0), 7, first(2), &mut effects);
    second.seek(NodeId(0), 8, first(3), &mut effects);
    assert_eq!(effects, [Effect::Find { id: 0, of: first(2) }, Effect::Find { id: 1, of: first(3) }]);
    assert_eq!(second.unanswered().collect::<Vec<_>>(), effects, "a host that has just started is asked");
    effects.clear();
    second.found(0, Some(vec![5]), &mut effects);
    second.ended(first(3), &mut effects);
    second.found(1, Some(vec![6]), &mut effects);
    second.seek(NodeId(0), 9, first(3), &mut effects);
    let fetched = |id, of, data| Effect::Fetched { by: NodeId(0), id, of, data };
    assert_eq!(effects, [fetched(7, first(2), Some(vec![5])), fetched(8, first(3), None), fetched(9, first(3), None)]);
    let mut effects = Vec::new();
    one.fetched(7, Some(vec![5]), &mut effects);
    one.fetched(8, None, &mut effects);
    one.fetched(8, None, &mut effects);
    assert_eq!(effects, [answer(7, Answer::Data(vec![5])), answer(8, Answer::NotFound)]);
}

/// The answers that the two nodes of a group get, and what they have of it.
fn group(servers: &mut [Server; 2], id: u64) -> Vec<(u64, Vec<u8>)> {
    let mut parts = Vec::new();
    for server in servers.iter_mut() {
        let wish = Request::Group { who: all(), wants_context: true, data: vec![id as u8] };
        let effects = request(server, id, wish);
        let [Effect::Collective(part)] = &effects[..] else { panic!("{effects:?}") };
        parts.push(part.clone());
    }
    let payloads: Vec<Vec<u8>> = parts.iter().flat_map(|part| part.payloads.clone()).collect();
    let complete = |server: &mut Server| {
        let mut effects = Vec::new();
        server.collective_done(whole(parts[0].seq, payloads.clone()), &mut effects);
        match effects.pop() {
            Some(Effect::Answer { answer: Answer::Group { context: Some(context), data, .. }, .. }) => (context, data),
            other => panic!("{other:?}"),
        }
    };
    servers.iter_mut().map(complete).collect()
}

#[test]
fn the_nodes_of_a_group_have_one_context_whatever_groups_each_had_before() {
    let mut servers = [server(4, [0, 1]), server(4, [2, 3])];
    let alone = Request::Group { who: ranks(0, &[2]), wants_context: true, data: vec![] };
    let mut contexts = Vec::new();
    for id in 0..3 {
        match &request(&mut servers[1], id, alone.clone())[..] {
            [Effect::Answer { answer: Answer::Group { context: Some(context), .. }, .. }] => contexts.push(*context),
            other => panic!("{other:?}"),
        }
    }
    for id in 3..6 {
        let answers = group(&mut servers, id);
        assert_eq!(answers[0], answers[1]);
        assert_eq!(answers[0].1, [id as u8; 2]);
        contexts.push(answers[0].0);
    }
    let all = contexts.len();
    contexts.sort_unstable();
    contexts.dedup();
    assert_eq!(contexts.len(), all, "{contexts:?}");
}

fn wish(size: u32) -> Box<SpawnRequest> {
    let app = SpawnApp { command: vec!["./worker".into()], size, ..SpawnApp::default() };
    Box::new(SpawnRequest { apps: vec![app], preput: Vec::new() })
}

#[test]
fn a_rank_that_asks_for_others_waits_until_they_are_started() {
    let mut server = server(1, 0..1);
    let of = first(0);
    for id in [1, 2] {
        let effects = request(&mut server, id, Request::Spawn { of, request: wish(2) });
        assert_eq!(effects, [Effect::Spawn { id, of, request: wish(2) }]);
    }
    let mut effects = Vec::new();
    server.spawned(2, &SpawnAnswer::Refused("no room".to_owned()), &mut effects);
    server.spawned(1, &SpawnAnswer::Started(GroupId(3)), &mut effects);
    server.spawned(1, &SpawnAnswer::Started(GroupId(3)), &mut effects);
    assert_eq!(effects, [answer(2, Answer::NotSpawned), answer(1, Answer::Spawned(GroupId(3)))]);
    let none = SpawnApp { size: 1, ..SpawnApp::default() };
    for request_of in [wish(0), Box::default(), Box::new(SpawnRequest { apps: vec![none], preput: Vec::new() })] {
        let effects = request(&mut server, 3, Request::Spawn { of, request: request_of });
        assert_eq!(effects, [answer(3, Answer::NotSpawned)]);
    }
}

/// Two nodes: rank 0 of the first group and rank 0 of another, rank 1 and ranks 1 and 2.
fn two_groups() -> [Server; 2] {
    let mut servers = [server(2, [0]), server(2, [1])];
    for (server, local) in servers.iter_mut().zip([vec![0], vec![1, 2]]) {
        let local = local.into_iter().map(|number| Rank::of(GroupId(1), number)).collect();
        server.begin(Group { group: GroupId(1), size: 3, local });
    }
    servers
}

#[test]
fn groups_connect_over_nodes_as_often_as_they_want() {
    let mut servers = two_groups();
    let who = Participants::of([(GroupId(1), None), (GroupId(0), Some(0))]);
    let mut numbers = Vec::new();
    for id in [1, 2] {
        let mut parts = Vec::new();
        for server in &mut servers {
            let effects = request(server, id, Request::Connect { who: who.clone() });
            let [Effect::Collective(part)] = &effects[..] else { panic!("{effects:?}") };
            parts.push(part.clone());
        }
        assert_eq!(
            parts.iter().map(|part| (part.group.0, part.members, part.of)).collect::<Vec<_>>(),
            [(0, 2, 4), (0, 2, 4)]
        );
        assert_eq!(parts[0].seq, parts[1].seq);
        numbers.push(parts[0].seq);
        for server in &mut servers {
            let mut effects = Vec::new();
            server.collective_done(whole(parts[0].seq, vec![vec![], vec![]]), &mut effects);
            assert_eq!(effects, [answer(id, Answer::Done)]);
        }
    }
    assert_ne!(numbers[0], numbers[1]);
    let unknown = Participants::of([(GroupId(0), None), (GroupId(7), None)]);
    assert_eq!(request(&mut servers[0], 3, Request::Connect { who: unknown }), [answer(3, Answer::NotFound)]);
}

#[test]
fn a_fence_of_two_groups_says_nothing_of_the_start_of_either() {
    let mut server = server(1, 0..1);
    server.begin(Group { group: GroupId(1), size: 1, local: vec![Rank::of(GroupId(1), 0)] });
    for of in [first(0), Rank::of(GroupId(1), 0)] {
        request(&mut server, 0, Request::Init { of, pid: None });
    }
    let who = Participants::of([(GroupId(0), Some(0)), (GroupId(1), Some(0))]);
    assert_eq!(request(&mut server, 1, Request::Fence { who, data: vec![1] }), [answer(1, Answer::Data(vec![1]))]);
    let of = Rank::of(GroupId(1), 0);
    let own = Request::Fence { who: Participants::all_of(GroupId(1)), data: vec![] };
    assert_eq!(request(&mut server, 2, own), [answer(2, Answer::Data(vec![])), Effect::PassedFence { of }]);
    assert_eq!(server.lifecycle(first(0)), Lifecycle::Inited { passed_fence: false });
}

/// Its node may be gone with it.
#[test]
fn whoever_waits_for_data_of_a_rank_is_answered_when_that_is_lost() {
    let mut one = server(4, [0, 1]);
    for (id, of) in [(7, first(2)), (8, first(3))] {
        request(&mut one, id, Request::Fetch { of });
    }
    let mut effects = Vec::new();
    one.lost(&[first(3)], &mut effects);
    assert_eq!(effects, [answer(8, Answer::NotFound)]);
    one.fetched(8, Some(vec![1]), &mut effects);
    assert_eq!(effects.len(), 1, "it is answered once");
}

#[test]
fn data_of_a_rank_of_another_group_come_from_its_node() {
    let mut servers = two_groups();
    let of = Rank::of(GroupId(1), 2);
    assert_eq!(request(&mut servers[0], 5, Request::Fetch { of }), [Effect::Fetch { id: 5, of }]);
    let mut effects = Vec::new();
    servers[1].seek(NodeId(0), 5, of, &mut effects);
    servers[1].seek(NodeId(0), 6, Rank::of(GroupId(0), 0), &mut effects);
    let not_here = Effect::Fetched { by: NodeId(0), id: 6, of: first(0), data: None };
    assert_eq!(effects, [Effect::Find { id: 0, of }, not_here]);
}

#[test]
fn a_logged_text_is_the_ranks_output_before_the_rank_gets_its_answer() {
    let mut server = server(2, 0..2);
    let of = first(1);
    let texts = vec![(Stream::Stderr, b"no memory".to_vec()), (Stream::Stdout, b"bye\n".to_vec())];
    let log = |texts, others| Request::Log { of, texts, others };
    let logged = |stream, text: &[u8]| Effect::Logged { of, stream, text: text.to_vec() };
    let expected = [logged(Stream::Stderr, b"no memory\n"), logged(Stream::Stdout, b"bye\n")];
    let effects = request(&mut server, 1, log(texts.clone(), 0));
    assert_eq!((&effects[..2], &effects[2..]), (&expected[..], &[answer(1, Answer::Done)][..]));
    let effects = request(&mut server, 2, log(texts, 1));
    assert_eq!((&effects[..2], &effects[2..]), (&expected[..], &[answer(2, Answer::Partly)][..]));
    assert_eq!(request(&mut server, 3, log(Vec::new(), 1)), [answer(3, Answer::NotSupported)]);
}

#[test]
fn each_group_has_a_context_of_its_own() {
    let mut server = server(2, 0..2);
    let mut contexts = Vec::new();
    for id in 0..2 {
        let group = Request::Group { who: all(), wants_context: true, data: vec![id as u8] };
        match &request(&mut server, id, group)[..] {
            [Effect::Answer { answer: Answer::Group { context: Some(context), who, data }, .. }] => {
                assert_eq!((who.len(), &data[..]), (2, &[id as u8][..]));
                contexts.push(*context);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_ne!(contexts[0], contexts[1]);
}
