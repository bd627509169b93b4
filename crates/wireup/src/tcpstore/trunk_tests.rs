//! Two ends, and what is under way between them.

use proptest::prelude::*;

use super::*;

/// Both ends, and what each has read and may still read.
#[derive(Default)]
struct Pair {
    ends: [Trunk; 2],
    news: [Vec<News>; 2],
}

impl Pair {
    /// Passes on all parcels until there is none.
    fn settle(&mut self) {
        loop {
            let mut is_quiet = true;
            for side in 0..2 {
                while let Some(parcel) = self.ends[side].parcel(Attempt(0)) {
                    is_quiet = false;
                    assert!(self.ends[side].under_way <= UNDER_WAY);
                    self.ends[1 - side].take(parcel, &mut self.news[1 - side]);
                }
            }
            if is_quiet {
                return;
            }
        }
    }

    /// The bytes that have arrived at an end, which reads them if it is told so.
    fn bytes(&mut self, side: usize, reads: bool) -> Vec<u8> {
        let mut all = Vec::new();
        for news in std::mem::take(&mut self.news[side]) {
            if let News::Bytes(conn, bytes) = news {
                if reads {
                    self.ends[side].read(conn, bytes.len());
                }
                all.extend(bytes);
            }
        }
        all
    }
}

#[test]
fn a_connection_that_is_not_read_holds_up_no_other() {
    let mut pair = Pair::default();
    pair.ends[0].open(1);
    pair.ends[0].open(2);
    pair.ends[0].send(1, vec![7; 3 * WINDOW].into());
    pair.settle();
    assert_eq!(pair.bytes(1, false).len(), WINDOW);
    pair.ends[0].send(2, b"hello".to_vec().into());
    pair.settle();
    assert_eq!(pair.bytes(1, true), b"hello");
    assert_eq!(pair.ends[0].unread(1), 3 * WINDOW);
    pair.ends[1].read(1, WINDOW);
    pair.settle();
    assert_eq!(pair.bytes(1, true).len(), WINDOW);
    pair.settle();
    assert_eq!(pair.bytes(1, true).len(), WINDOW);
}

#[test]
fn the_end_of_a_connection_follows_its_bytes_though_it_reads_no_more() {
    let mut pair = Pair::default();
    pair.ends[0].open(1);
    pair.settle();
    // The store answers more than the client reads, and the client is gone.
    pair.ends[1].send(1, vec![7; 5 * WINDOW].into());
    pair.settle();
    pair.ends[0].send(1, vec![8; 2 * WINDOW].into());
    pair.ends[0].read(1, WINDOW);
    pair.ends[0].close(1);
    pair.settle();
    assert_eq!(pair.ends[1].unread(1), 0, "what comes for it is read and dropped");
    assert_eq!(pair.bytes(1, true).len(), WINDOW);
    pair.settle();
    let end = pair.news[1].pop();
    assert_eq!(end, Some(News::Closed(1)));
    assert!(pair.ends.iter().all(Trunk::is_empty));
}

#[test]
fn an_end_that_both_sides_decide_is_an_end() {
    let mut pair = Pair::default();
    pair.ends[0].open(1);
    pair.settle();
    pair.ends[0].close(1);
    pair.ends[1].send(1, b"a reply".to_vec().into());
    pair.ends[1].close(1);
    pair.settle();
    assert!(pair.ends.iter().all(Trunk::is_empty));
}

/// What has passed from an end over a connection.
type Passed = HashMap<(usize, u32), Vec<u8>>;

/// Passes on what there is, and notes what arrives. Returns how much of it was not read before.
fn pass(pair: &mut Pair, got: &mut Passed, held: &mut HashMap<(usize, u32), usize>) -> usize {
    pair.settle();
    let mut count = 0;
    for end in 0..2 {
        for news in std::mem::take(&mut pair.news[end]) {
            if let News::Bytes(conn, bytes) = news {
                count += bytes.len();
                *held.entry((end, conn)).or_default() += bytes.len();
                got.entry((1 - end, conn)).or_default().extend(bytes);
            }
        }
    }
    count
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each byte arrives once, in order; no window is exceeded, and nothing is left over.
    #[test]
    fn bytes_arrive_in_order(
        pieces in proptest::collection::vec((0usize..2, 0u32..4, 1usize..100_000, any::<bool>()), 1..40),
    ) {
        let mut pair = Pair::default();
        (0..4).for_each(|conn| pair.ends[0].open(conn));
        let (mut sent, mut got, mut held) = (Passed::new(), Passed::new(), HashMap::new());
        pass(&mut pair, &mut got, &mut held);
        for (number, (side, conn, length, reads)) in pieces.into_iter().enumerate() {
            let bytes: Vec<u8> = (0..length).map(|at| (31 * at + number) as u8).collect();
            sent.entry((side, conn)).or_default().extend(&bytes);
            pair.ends[side].send(conn, bytes.into());
            pass(&mut pair, &mut got, &mut held);
            prop_assert!(held.values().all(|held| *held <= WINDOW));
            for ((end, conn), count) in held.iter_mut().filter(|_| reads) {
                pair.ends[*end].read(*conn, std::mem::take(count));
            }
        }
        // In the end all is read.
        loop {
            for ((end, conn), count) in &mut held {
                pair.ends[*end].read(*conn, std::mem::take(count));
            }
            if pass(&mut pair, &mut got, &mut held) == 0 {
                break;
            }
        }
        prop_assert!(got == sent);
        (0..4).for_each(|conn| pair.ends[0].close(conn));
        pair.settle();
        prop_assert!(pair.ends.iter().all(Trunk::is_empty));
    }
}
