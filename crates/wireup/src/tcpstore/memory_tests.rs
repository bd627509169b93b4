//! What the store holds in all is bounded.

use super::*;

/// A world whose store may hold so much.
fn with_most(most: usize, clients: &[ConnId]) -> World {
    let mut world = World::with(clients);
    world.server.most = most;
    world
}

#[test]
fn whoever_makes_the_store_hold_too_much_is_closed_and_what_is_there_stays_in_use() {
    let mut world = with_most(1 << 20, &[A, B]);
    let value = vec![7; 100_000];
    for key in 0..20u32 {
        world.feed(A, &with(SET, &[&key.to_le_bytes(), &value]));
    }
    assert_eq!(world.closed.get(&A), Some(&Violation::Full));
    assert!(world.server.held_in_all() < (1 << 20) + 110_000, "{}", world.server.held_in_all());
    assert_eq!(world.ask(B, &with(GET, &[&0u32.to_le_bytes()])).len(), 8 + value.len(), "another client is served");
    for key in 0..20u32 {
        world.feed(B, &with(DELETE, &[&key.to_le_bytes()]));
    }
    world.feed(B, &with(SET, &[b"k", &value]));
    assert_eq!(world.closed.get(&B), None);
}

#[test]
fn those_that_add_little_are_served_though_another_has_filled_the_store() {
    let mut world = with_most(1 << 20, &[A, B]);
    for key in 0..200u32 {
        world.feed(A, &with(SET, &[&key.to_le_bytes(), &[7; 10_000]]));
    }
    assert_eq!(world.closed.get(&A), Some(&Violation::Full));
    world.feed(B, &with(SET, &[b"tiny", b"1"]));
    assert_eq!(world.ask(B, &with(GET, &[b"tiny"])).len(), 9);
    assert_eq!(world.closed.get(&B), None);
    // Its own part.
    world.feed(B, &with(SET, &[b"more", &[7; 1100]]));
    assert_eq!(world.closed.get(&B), Some(&Violation::Full));
}

#[test]
fn requests_that_are_never_finished_count_together_until_their_clients_are_gone() {
    let clients: Vec<ConnId> = (0..20).map(ConnId).collect();
    let mut world = with_most(1 << 20, &clients);
    let announced = [with(SET, &[b"k"]), (MAX_VALUE as u64).to_le_bytes().to_vec()].concat();
    for conn in &clients {
        world.feed(*conn, &announced);
        world.feed(*conn, &[0; 60_000]);
        world.feed(*conn, &[0; 60_000]);
    }
    let closed = world.closed.len();
    assert!(closed > 0 && world.closed.values().all(|why| *why == Violation::Full), "{:?}", world.closed);
    assert!(world.server.held_in_all() <= (1 << 20) + 240_000, "{}", world.server.held_in_all());
    for conn in clients {
        world.hang_up(conn);
    }
    assert_eq!(world.server.held_in_all(), 0);
}

proptest! {
    /// What is counted as it changes is what there is.
    #[test]
    fn what_is_held_is_counted(requests in proptest::collection::vec((0u8..6, 0u8..4, 0usize..300), 0..60)) {
        let mut world = World::with(&[A]);
        for (operation, key, length) in requests {
            let (key, value) = ([key], vec![b'1'; length]);
            let request = match operation {
                0 => with(SET, &[&key, &value]),
                1 => with(APPEND, &[&key, &value]),
                2 => with(DELETE, &[&key]),
                3 => with(PUSH, &[&key, &value]),
                // What is no number closes the connection.
                4 => with(GET, &[&key]),
                _ => [with(POP, &[&key])].concat(),
            };
            world.feed(A, &request);
            prop_assert_eq!(world.server.map.held(), world.server.map.counted());
        }
    }
}

#[test]
fn a_value_that_is_appended_to_has_little_room_to_spare() {
    let mut map = super::super::map::Map::default();
    let mut moved = 0;
    let mut place = std::ptr::null();
    for _ in 0..20_000 {
        map.append(b"log", b"0123456789");
        let now = map.get(b"log").expect("it was appended to").as_ptr();
        moved += usize::from(now != place);
        place = now;
    }
    assert!(moved < 400, "{moved} of 20,000 appends have copied it");
    let value = map.get(b"log").expect("it was appended to").clone();
    assert_eq!(value.len(), 200_000);
    drop(map);
    let room = Vec::from(value).capacity();
    assert!(room <= 200_000 + 200_000 / 10, "{room}");
}
