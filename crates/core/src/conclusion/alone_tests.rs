use super::*;
use crate::evidence::MpiEvent;
use crate::gang::{Event, Gang, Rules};
use crate::ids::{GangId, Pid, worker};
use crate::sights::Sights;
use crate::status::WorkerStatus;

fn fact(rank: u32, library: Option<&str>, is_inited: bool, is_connected: bool) -> Fact {
    Fact { rank: Rank(rank), seen: library.map(|name| (name.to_owned(), false)), unseen: None, is_inited, is_connected }
}

fn told(facts: &[Fact], is_offered: bool) -> Vec<String> {
    alone(facts, is_offered).iter().map(Alone::to_string).collect()
}

const OPEN: Option<&str> = Some("libmpi.so.40");

#[test]
fn ranks_that_run_mpi_and_have_not_connected_are_alone() {
    let all = |count: u32| -> Vec<Fact> { (0..count).map(|rank| fact(rank, OPEN, true, false)).collect() };
    let text =
        "ranks 0-3 run MPI (libmpi.so.40) but have not connected to rankrun: each may run alone, as a world of one";
    assert_eq!(told(&all(4), true), [text]);
    assert_eq!(told(&all(2), false), ["ranks 0-1 run MPI (libmpi.so.40), each alone, as a world of one (--mpi none)"]);
    assert_eq!(told(&all(1), true), [""; 0], "a rank that is the whole world");
    assert_eq!(told(&all(0), true), [""; 0]);
    let mut facts = all(4);
    facts[3].is_inited = false;
    assert_eq!(told(&facts, true), [text], "the last one is on the way");
}

#[test]
fn nobody_is_alone_where_a_rank_has_connected_or_has_not_inited_mpi() {
    let cases = [
        ("one has connected", [fact(0, OPEN, true, false), fact(1, OPEN, true, false), fact(2, OPEN, true, true)]),
        (
            "one that is not seen has",
            [fact(0, OPEN, true, false), fact(1, OPEN, true, false), fact(2, None, false, true)],
        ),
        ("MPI_Init may go on", [0, 1, 2].map(|rank| fact(rank, OPEN, false, false))),
        ("one rank alone", [fact(0, OPEN, true, false), fact(1, OPEN, false, false), fact(2, None, false, false)]),
        ("no MPI", [0, 1, 2].map(|rank| fact(rank, None, false, false))),
    ];
    for (case, facts) in cases {
        assert_eq!(told(&facts, true), [""; 0], "{case}");
    }
}

#[test]
fn ranks_are_told_apart_by_cause_and_library() {
    let mut facts =
        [fact(0, OPEN, true, false), fact(1, Some("libmpi.so.12"), true, false), fact(2, OPEN, true, false)];
    facts[2].seen = Some(("libmpi.so.40".to_owned(), true));
    let causes: Vec<(Cause, String)> =
        alone(&facts, true).into_iter().map(|it| (it.cause, format!("{} {}", it.ranks, it.library))).collect();
    assert_eq!(
        causes,
        [
            (Cause::Removed, "2 libmpi.so.40".to_owned()),
            (Cause::Unknown, "1 libmpi.so.12".to_owned()),
            (Cause::Unknown, "0 libmpi.so.40".to_owned()),
        ]
    );
}

#[test]
fn ranks_that_were_over_before_they_were_seen_may_have_been_alone() {
    let unseen = |rank| Fact { unseen: Some("libmpi.so.40".to_owned()), ..fact(rank, None, false, false) };
    let text = "ranks 0-1 of a program that calls MPI_Init (libmpi.so.40) have ended and not connected to rankrun: each may have run alone, as a world of one";
    assert_eq!(told(&[unseen(0), unseen(1)], true), [text]);
    assert_eq!(told(&[unseen(0), unseen(1)], false), [""; 0], "they were not to connect");
    assert_eq!(told(&[unseen(0), fact(1, None, false, false)], true), [""; 0], "one rank");
    assert_eq!(told(&[unseen(0), fact(1, None, false, true)], true), [""; 0], "one has connected");
    let seen = |rank| fact(rank, OPEN, true, false);
    let text =
        "ranks 0-1 run MPI (libmpi.so.40) but have not connected to rankrun: each may run alone, as a world of one";
    assert_eq!(
        told(&[Fact { unseen: Some("libmpi.so".to_owned()), ..unseen(0) }, seen(1)], true),
        [text],
        "the other shows it"
    );
}

#[test]
fn a_rank_that_only_has_the_library_loaded_was_not_alone() {
    let library = |_| Some("libmpi.so.12");
    let (mut gang, mut sights) = (gang(), Sights::default());
    ended(&mut gang, 0, 0);
    assert_eq!(sights.alone(&gang, true, library), [], "the other one may connect");
    ended(&mut gang, 1, 0);
    assert_eq!(sights.alone(&gang, true, library).len(), 1);
    see(&mut sights, 1, Progress::Loaded);
    assert_eq!(sights.alone(&gang, true, library).len(), 1, "it may have called MPI_Init after that");
    see(&mut sights, 2, Progress::Loaded);
    assert_eq!(sights.alone(&gang, true, library), []);
    let (mut gang, mut sights) = (self::gang(), Sights::default());
    see(&mut sights, 0, Progress::Loaded);
    see(&mut sights, 1, Progress::Loaded);
    (0..2).for_each(|rank| ended(&mut gang, rank, 0));
    assert_eq!(sights.alone(&gang, true, library).len(), 1, "much of its life is unknown");
    let (mut gang, sights) = (self::gang(), Sights::default());
    ended(&mut gang, 0, 0);
    ended(&mut gang, 1, 1);
    assert_eq!(sights.alone(&gang, true, library), [], "MPI_Init has failed");
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn gang() -> Gang {
    let rules = Rules { grace_failure: s(5), grace_outside: s(25), timeout: None, keep_going: false, terminal: None };
    let mut gang = Gang::new(GangId::default(), 2, rules);
    for rank in [0, 1] {
        gang.handle(s(0), Event::Started { worker: worker(rank), pid: Pid(100 + rank as i32) }, &mut Vec::new());
    }
    gang
}

fn see(sights: &mut Sights, at: u64, progress: Progress) {
    for rank in [0, 1] {
        sights.see(s(at), Rank(rank), Sight { library: "libmpi.so.12".to_owned(), progress, is_removed: true });
    }
}

fn ended(gang: &mut Gang, rank: u32, code: u8) {
    let status = WorkerStatus::Exited { code };
    gang.handle(s(2), Event::Ended { worker: worker(rank), status }, &mut Vec::new());
}

#[test]
fn a_rank_in_mpi_init_has_time_to_connect() {
    let (mut gang, mut sights) = (gang(), Sights::default());
    see(&mut sights, 1, Progress::Loaded);
    see(&mut sights, 60, Progress::Loaded);
    assert_eq!(sights.alone(&gang, true, |_| None), [], "only loaded");
    see(&mut sights, 61, Progress::Begun);
    see(&mut sights, 65, Progress::Begun);
    assert_eq!(sights.alone(&gang, true, |_| None), []);
    see(&mut sights, 66, Progress::Begun);
    assert_eq!(sights.alone(&gang, true, |_| None).len(), 1);
    gang.handle(s(67), Event::Mpi { worker: worker(1), event: MpiEvent::Inited }, &mut Vec::new());
    assert_eq!(sights.alone(&gang, true, |_| None), [], "it was slow");
}

#[test]
fn a_rank_that_has_inited_or_ended_well_will_not_connect() {
    let (mut gang, mut sights) = (gang(), Sights::default());
    see(&mut sights, 1, Progress::Begun);
    ended(&mut gang, 0, 0);
    assert_eq!(sights.alone(&gang, true, |_| None), [], "the other may be connecting");
    ended(&mut gang, 1, 0);
    assert_eq!(sights.alone(&gang, true, |_| None).len(), 1);
    let (mut gang, mut sights) = (self::gang(), Sights::default());
    see(&mut sights, 1, Progress::Begun);
    ended(&mut gang, 0, 1);
    ended(&mut gang, 1, 1);
    assert_eq!(sights.alone(&gang, true, |_| None), [], "MPI_Init has failed");
    see(&mut sights, 1, Progress::Inited);
    assert_eq!(sights.alone(&gang, true, |_| None).len(), 1);
}

#[test]
fn libraries_launchers_and_segments_are_known_by_their_names() {
    for name in
        ["libmpi.so", "libmpi.so.12", "libmpi.so.40.30.4", "libmpich.so.12", "libmpi_cray.so.12", "libmpi_abi.so.0"]
    {
        assert!(is_library(name), "{name}");
    }
    for name in ["libmpicxx.so.12", "libmpi_mpifh.so.40", "libmpifort.so.12", "libmpi_cxx.so.40", "libm.so.6", "libmpi"]
    {
        assert!(!is_library(name), "{name}");
    }
    assert!(
        is_linked_library("libmpi_mpifh.so.40") && is_linked_library("libmpi.so.12") && !is_linked_library("libm.so.6")
    );
    assert!(is_prefix("env") && !is_prefix("bash"));
    for name in ["mpirun", "mpiexec.hydra", "hydra_pmi_proxy", "prterun", "mpirun.openmpi", "rankrun"] {
        assert!(is_launcher(name), "{name}");
    }
    assert!(!is_launcher("mpirunner") && !is_launcher("python3"));
    assert!(is_segment("/dev/shm/mpich_shm_41d9_0") && !is_segment("/dev/shm/ucx_shm_posix_4cfce50d"));
    assert_eq!((progress(2, true), progress(17, false)), (Progress::Loaded, Progress::Begun));
    assert_eq!(progress(39, true), Progress::Inited);
}
